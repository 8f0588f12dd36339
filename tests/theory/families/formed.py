"""A matrix is formed on either side: gaps by every rule, marks of whole numbers, weights, land, dtypes, containers.

Truths are those of ``samples``; here every problem is answered by ``gram`` or ``row-gram``, and nearly all have gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.theory.families import samples
from tests.theory.families.drawing import Rng, chance, one_of, weights, whole
from tests.theory.families.judging import Findings
from tests.theory.families.samples import CONTAINERS, Asked, contained, drawn_matrix, with_gaps

MARKS = {"i1": -127, "i2": -9999, "i4": -(2**31)}
LARGEST = {"i1": 126, "i2": 9998, "i4": 10**9}  # of what is stored and not marked


@dataclass(frozen=True)
class Formed(Asked):
    """``x`` is in float64, with NaN where there is a gap, and holds the numbers of ``dtype``."""

    dtype: str


def problem(rng: Rng) -> Formed:
    x, spectrum, change = drawn_matrix(rng)
    missing = one_of(rng, ("mean", "drop-columns", "pairwise", "refuse"), p=[0.5, 0.25, 0.15, 0.1])
    kind = "samples" if missing == "pairwise" else one_of(rng, ("samples", "matrix"), p=[0.7, 0.3])
    how: dict[str, Any] = {"kind": kind, "missing": missing, "seed": whole(rng, 0, 999)}
    how["center"] = missing in ("mean", "pairwise") or chance(rng, 0.6)
    how["scale"] = chance(rng, 0.3)
    how["algorithm"] = "gram" if missing == "pairwise" else one_of(rng, ("gram", "row-gram"))
    gaps = "none"
    if missing in ("mean", "pairwise"):
        x, gaps = with_gaps(rng, x)
    if missing == "drop-columns":
        x[:, rng.random(x.shape[1]) < 0.3] = np.nan
    dtype = one_of(rng, ("f8", "f4", *MARKS))
    if dtype in MARKS:
        x = np.round(x / (np.nanmax(np.abs(x), initial=0) or 1) * LARGEST[dtype])
        if missing != "refuse":
            how["missing_values"] = [MARKS[dtype]]
    n, d = x.shape
    rows = weights(rng, n, (0, 0, 3)) if chance(rng, 0.4) and missing != "pairwise" else None
    columns = weights(rng, d, (0, 0, 3)) if chance(rng, 0.4) else None
    container = one_of(rng, [one for one in CONTAINERS if one not in ("masked", "list", "Dask, unknown chunks")])
    chunks = (max(whole(rng, 1, n), n // 40), max(whole(rng, 1, d), d // 20))
    k = min(whole(rng, 1, max(1, min(n, d))), 12)
    x = x if dtype in MARKS else x.astype(dtype).astype(float)
    return Formed(x, spectrum, change, gaps, container, chunks, k, rows, columns, how, dtype)


def check(problem: Formed, folder: Path) -> Findings:
    filled = np.where(np.isnan(problem.x), MARKS[problem.dtype], problem.x) if problem.dtype in MARKS else problem.x
    return samples.check(problem, folder, contained(replace(problem, x=filled.astype(problem.dtype)), folder))
