"""Random weights of all sizes, gaps, offsets, dtypes and algorithms against NumPy: right, or refused, or warned of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.errors import NpmdaskError

SIZES = ("wide", "huge", "tiny", "one", "few", "plain")
WARNED = ("not quite at", "count as constant")  # the dtype of the data rounds too much: said, and not held to digits


def weights_of(size: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Over 24 orders, far from 1, of one row or column alone, of three, or between 0 and 1."""
    if size == "wide":
        return 10.0 ** rng.uniform(-12, 12, count)
    if size in ("one", "few"):
        chosen = rng.choice(count, 1 if size == "one" else 3, replace=False)
        found = np.zeros(count)
        found[chosen] = 1 if size == "one" else rng.random(3) + 0.1
        return found
    return np.asarray(rng.random(count) * {"huge": 1e50, "tiny": 1e-50, "plain": 1.0}[size])


def drawn(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """Rows, weights of rows and of columns, and how they are asked."""
    rng = np.random.default_rng([31, number])
    m, d = int(rng.integers(20, 200)), int(rng.integers(5, 30))
    falling = 10.0 ** -np.linspace(0, rng.choice([0, 2, 4]), d)
    x = (rng.standard_normal((m, d)) * falling + rng.choice([0, 10, 1e6])).astype(rng.choice(["f4", "f8"]))
    rows, columns = (weights_of(str(rng.choice(SIZES)), count, rng) for count in (m, d))
    gaps = rng.random() < 0.4
    if gaps:
        x[rng.random(x.shape) < 0.1] = np.nan
    how = {
        "algorithm": str(rng.choice(["gram", "krylov", "power"])),
        "scale": bool(rng.random() < 0.3),
        "missing": "mean" if gaps else "refuse",
    }
    return x, rows, columns, how


def values_of(stored: np.ndarray, rows: np.ndarray, columns: np.ndarray, *, scale: bool) -> np.ndarray:
    """By NumPy, in float64: gaps are at the weighted mean, and add nothing to a deviation."""
    there, x = ~np.isnan(stored), stored.astype(float)
    times = rows[:, None] / rows.max() * there
    total = times.sum(axis=0)
    total[total == 0] = 1
    mean = (times * np.where(there, x, 0)).sum(axis=0) / total
    away = np.where(there, x - mean, 0)
    if scale:
        deviation = np.sqrt((times * away**2).sum(axis=0) / total)
        away = away / np.where(deviation > 1e-13 * np.abs(mean), deviation, 1)  # less is the rounding of the mean
    weighted = away * np.sqrt(rows / rows.max())[:, None] * np.sqrt(columns / columns.max())
    return np.linalg.svd(weighted, compute_uv=False) ** 2 / (rows / rows.max()).sum() * columns.max()


def compared(numbers: range) -> tuple[list[int], int]:
    """Problems with a wrong answer, and how many answers there were to judge."""
    wrong, judged = list[int](), 0
    for number in numbers:
        x, rows, columns, how = drawn(number)
        asked: dict[str, Any] = {"kind": "samples", "center": True, "tol": 1e-6, "threads": 1, **how}
        try:
            found = npmdask.top_k(x, 2, row_weights=rows, column_weights=columns, **asked)
        except NpmdaskError:
            continue
        if not found.converged or any(words in warning for warning in found.warnings for words in WARNED):
            continue
        judged += 1
        values = values_of(x, rows, columns, scale=how["scale"])[:2]
        rounding = (16 * np.finfo(float).eps * np.nanmax(np.abs(x))) ** 2 * columns.max()
        large = values > max(1e-9 * values[0], rounding)
        off = np.abs(found.values[large] / values[large] - 1)
        if not np.isfinite(found.values).all() or (off > 1e-4).any():
            wrong.append(number)
    return wrong, judged


@pytest.mark.slow
def test_weights_of_all_sizes() -> None:
    wrong, judged = compared(range(24))
    assert not wrong and judged >= 10


@pytest.mark.heavy
def test_weights_of_all_sizes_by_the_hundred() -> None:
    wrong, judged = compared(range(1000, 1400))
    assert not wrong and judged >= 200
