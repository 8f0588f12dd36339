"""A run that does not centre says so where its first component is nearly the mean of the columns."""

from __future__ import annotations

import numpy as np
import pytest

import npmdask
from npmdask.core.runs.checks import MOSTLY

MEAN = 3.0


def rows_of(share: float, n: int = 400, d: int = 6) -> np.ndarray:
    """Rows of which exactly ``share`` of the first value (of the mean square) belongs to their mean."""
    rows = np.random.default_rng(0).standard_normal((n, d))
    rows = np.linalg.qr(rows - rows.mean(axis=0))[0] * np.sqrt(n)  # centred, of deviation 1, not correlated
    rows[:, 1:] *= 0.1
    rows[:, 0] *= MEAN * np.sqrt(1 / share - 1)
    rows[:, 0] += MEAN
    return rows


def noted(solution: npmdask.Solution) -> list[str]:
    return [text for text in solution.warnings if "the mean of the columns" in text]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["matrix", "samples"])
@pytest.mark.parametrize("scale", [False, True])
def test_on_both_sides_of_the_threshold(kind: str, scale: bool) -> None:
    above, below = (
        npmdask.top_k(rows_of(share), 2, kind=kind, algorithm="gram", scale=scale)
        for share in (MOSTLY + 0.01, MOSTLY - 0.01)
    )
    assert noted(above) == ["component 1 is nearly the mean of the columns (cosine 1): set center = true for PCA"], (
        above.warnings
    )
    assert noted(below) == []
    assert noted(npmdask.top_k(rows_of(0.99), 2, kind=kind, algorithm="gram", scale=scale, center=True)) == []


def test_the_cosine_is_that_of_the_first_component_and_the_mean() -> None:
    rows = rows_of(0.95)
    rows[:, 1] += 0.3 * (rows[:, 0] - MEAN)  # the first component now leans away from the mean
    solution = npmdask.top_k(rows, 2, kind="matrix", algorithm="gram")
    mean = rows.mean(axis=0)
    cosine = abs(mean @ solution.basis[:, 0]) / np.linalg.norm(mean)
    said = noted(solution)[0]
    assert float(said.partition("cosine ")[2].partition(")")[0]) == pytest.approx(cosine, abs=1e-4)
    assert cosine < 0.9999
