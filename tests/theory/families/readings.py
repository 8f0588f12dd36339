"""Aspects of another package: entries that are limited, rows that are left out, beside weights, from every source."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask.array as da
import numpy as np

import npmdask
from npmdask.core import features
from tests.theory.families.drawing import Rng, chance, one_of, power_of_ten, stored, weights, whole
from tests.theory.families.judging import Findings, Problem, Question, Unasked, judge, largest_bound, prepared

PLUGIN = Path(__file__).parents[2] / "plugin"


@dataclass(frozen=True)
class Read(Problem):
    x: np.ndarray
    door: str
    k: int
    low: float
    high: float
    first: int | None
    rows: np.ndarray | None
    columns: np.ndarray | None
    how: dict[str, Any]


@contextmanager
def package() -> Iterator[Any]:
    """The package of tests/plugin, as if it were installed."""
    with patch.object(sys, "path", [str(PLUGIN), *sys.path]):
        from npmdask_robust import ROBUST, aspects

        with patch.object(features, "from_outside", lambda: (ROBUST,)):
            yield aspects


def problem(rng: Rng) -> Read:
    n, d = whole(rng, 3, 399), whole(rng, 1, 10) * 2
    x = rng.standard_normal((n, d)) * np.geomspace(1, power_of_ten(rng, -3, 0), d) * power_of_ten(rng, 0, 3)
    x += one_of(rng, (0.0, 1.0, 100.0)) * rng.standard_normal(d) * np.abs(x).max()
    x = x.astype(one_of(rng, ("f8", "f8", "f4", "i4")))
    low, high = (float(np.quantile(x, share)) for share in (rng.uniform(0, 0.4), rng.uniform(0.6, 1)))
    door = one_of(rng, ("memory", "stored", "ingested", "ingested", "Dask", "N-D"))
    how: dict[str, Any] = {"center": chance(rng, 0.7), "scale": chance(rng, 0.4), "seed": whole(rng, 0, 99)}
    how["algorithm"] = one_of(rng, ("auto", "power", "krylov", "gram"))
    first = whole(rng, 2, n) if chance(rng, 0.4) else None
    rows = weights(rng, n, (0, 3)) if chance(rng, 0.3) else None
    columns = weights(rng, d, (0,)) if chance(rng, 0.25) and door != "N-D" else None
    return Read(x, door, whole(rng, 1, min(n, d, 8)), low, high, first, rows, columns, how)


def opened(problem: Read, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The source, and what is to be said of it."""
    x, n = problem.x, len(problem.x)
    match problem.door:
        case "stored":
            return stored(folder, x, n // 3), {"kind": "matrix"}
        case "ingested":  # with means of columns as they are
            np.save(folder / "x.npy", x)
            npmdask.ingest(folder / "x.npy", folder / "in.zarr", kind="matrix")
            return folder / "in.zarr", {}
        case "Dask":
            return da.from_array(x, chunks=(max(1, n // 3), x.shape[1])), {"kind": "matrix"}
        case "N-D":
            return x.reshape(n, 2, -1), {"kind": "matrix", "dim": 0}
    return x, {"kind": "matrix"}


def check(problem: Read, folder: Path) -> Findings:
    found, how = Findings(), problem.how
    source, said = opened(problem, folder)
    y = np.clip(problem.x, problem.low, problem.high, dtype=np.promote_types(problem.x.dtype, np.float32)).astype(float)
    counted = None if problem.rows is None and problem.first is None else np.ones(len(y))
    if counted is not None:
        counted *= 1 if problem.rows is None else problem.rows
        counted *= np.arange(len(y)) < (problem.first or len(y))
        if not counted.any():
            raise Unasked("no row counts")
    truth = prepared(y, center=how["center"], scale=how["scale"], rows=counted, columns=problem.columns)
    if truth.is_noise:
        raise Unasked("constant data: nothing is left but the rounding of means")
    with package() as robust:
        aspects = [robust.Clip(low=problem.low, high=problem.high)]
        aspects += [] if problem.first is None else [robust.RowLimit(first=problem.first)]
        own = {"row_weights": problem.rows, "column_weights": problem.columns}
        solution = npmdask.top_k(source, problem.k, aspects=aspects, **own, **how, **said)
        judge(found, solution, Question(truth.matrix, "matrix"))
        scores = truth.rows_before @ np.asarray(solution.basis)
        error = (largest_bound(solution.certificate) or 0.0) / (solution.values[0] or 1) * np.abs(scores).max()
        rounding = truth.of_scores(scaled=how["scale"]) + error * how["scale"]
        given = {"dim": 0} if problem.door == "N-D" else {}
        found.close("scores", solution.scores(source, **given), scores, rounding, 1.0)
    return found
