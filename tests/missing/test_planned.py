"""What a run of rows with missing values will take is measured before the run knows what fills them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.core.runs import automatic, forming
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.missing.rules import find_gaps
from npmdask.planning.plan import plan_run
from tests.conftest import write_zarr


def with_gaps(shape: tuple[int, int]) -> np.ndarray:
    x = np.random.default_rng(3).standard_normal(shape) + 5
    x[np.random.default_rng(4).random(shape) < 0.05] = np.nan
    return x


@pytest.mark.parametrize(
    "missing, algorithm",
    [
        ("mean", "krylov"),
        ("mean", "gram"),
        ("mean", "row-gram"),
        ("mean", "power"),
        ("drop-columns", "krylov"),
        ("drop-columns", "row-gram"),
        ("em", "auto"),
        ("pairwise", "auto"),
    ],
)
def test_every_rule_is_planned(missing: str, algorithm: str, tmp_path: Path) -> None:
    """Mutant: products of what is read before anything fills the gaps, none of which is finite."""
    x = with_gaps((60, 90) if algorithm == "row-gram" else (400, 30))
    if missing == "drop-columns":
        x = np.where(np.isnan(x[0]), np.nan, np.nan_to_num(x))
    data = open_source(str(write_zarr(tmp_path / "x.zarr", x, (20, 30))), "samples")
    asked = Request(target_rank=2, center=True, algorithm=algorithm, aspects=(find_gaps(missing=missing),))
    made = plan_run(posed(asked, data, Resources()), Resources())
    assert made.pass_seconds > 0


@pytest.mark.parametrize("shape", [(40_000, 20), (20, 40_000)])
def test_what_is_chosen_by_the_clock_is_chosen_of_rows_with_gaps(
    shape: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a gigabyte and more. Mutant: the same, with which the run itself ended in an error."""
    monkeypatch.setattr(forming, "TIMED", dict.fromkeys(forming.TIMED, 0))
    for name in ("SURE", "MANY_ENTRIES", "FEW"):
        monkeypatch.setattr(automatic, name, 0)
    monkeypatch.setattr(automatic, "TALL", 1)
    data = write_zarr(tmp_path / "x.zarr", with_gaps(shape), (shape[0] // 4, shape[1] // 2))
    found: Any = npmdask.top_k(data, 2, kind="samples", center=True, missing="mean")
    assert found.converged and found.missing is not None and found.missing.entries > 0
