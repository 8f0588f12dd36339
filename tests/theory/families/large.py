"""Data of 17 MiB, where "auto" takes the Gram of the columns or of the rows, or float32 products at first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

import npmdask
from tests.theory.families.drawing import Rng, chance, one_of, power_of_ten, whole
from tests.theory.families.judging import EPS, LAPACK, Findings, Problem, largest_bound

MEBIBYTES = 17


@dataclass(frozen=True)
class Large(Problem):
    x: np.ndarray
    change: str
    k: int
    rows: np.ndarray | None
    in_blocks: bool
    how: dict[str, Any]


def problem(rng: Rng) -> Large:
    dtype = one_of(rng, ("f4", "f4", "f4", "f8", "i2", "u1", "f2", "i4"))
    d = whole(rng, 40, 259)
    n = MEBIBYTES * 2**20 // np.dtype(dtype).itemsize // d + 1
    wide = chance(rng, 0.25)
    if wide:
        n, d = d, n
    r = min(n, d, 60)
    values = one_of(
        rng,
        (
            0.9 ** np.arange(r),
            np.arange(1, r + 1) ** -1.0,
            np.ones(r),
            np.append(1e4, np.ones(r - 1)),
            np.repeat(2.0 ** -np.arange(r), 3)[:r],
        ),
    )
    x = (rng.standard_normal((n, r)) * values) @ rng.standard_normal((r, d)) / np.sqrt(d)
    x += one_of(rng, (0, 0.01, 0.3)) * rng.standard_normal((n, d))
    change = one_of(rng, ("none", "means", "units", "heavy rows"), p=[0.45, 0.3, 0.15, 0.1])
    if change == "means":
        x += rng.standard_normal(d) * x.std() * power_of_ten(rng, 0, 4)
    elif change == "units":
        x *= 10.0 ** rng.uniform(-3, 3, d)
    elif change == "heavy rows":
        x *= rng.pareto(1.5, (n, 1))
    largest = {"i2": 3e4, "u1": 120, "i4": 2e9, "f2": 3e4}.get(dtype)
    if largest is not None:
        x *= largest / np.abs(x).max()
    if dtype[0] in "iu":
        x = np.round(x) + (120 if dtype == "u1" else 0)
    x = x.astype(dtype)
    how: dict[str, Any] = {"kind": one_of(rng, ("samples", "matrix")), "center": chance(rng, 0.6)}
    how |= {"scale": chance(rng, 0.2), "seed": whole(rng, 0, 99)}
    how["algorithm"] = one_of(rng, ("auto", "auto", "auto", "krylov", "power", "row-gram" if wide else "gram"))
    if how["algorithm"] == "power":
        how["max_steps"] = 15
    if dtype == "f4" and how["center"] and chance(rng, 0.3):
        x[rng.random(x.shape) < 0.02] = np.nan
        how["missing"] = "mean"
    rows = rng.random(n) if chance(rng, 0.2) else None
    return Large(x, change, one_of(rng, (1, 3, 10, 20)), rows, chance(rng, 0.5), how)


def of_filled(x: np.ndarray, weights: np.ndarray, *, scale: bool) -> tuple[np.ndarray, np.ndarray]:
    """Deviations from the mean, 0 in gaps, and their divisors: in float64, less a row, and refined once."""
    there, values = ~np.isnan(x), x.astype(float)
    first = np.where(there.any(axis=0), np.nan_to_num(values[there.argmax(axis=0), np.arange(x.shape[1])]), 0)
    away = np.where(there, values - first, 0)
    total = (weights[:, None] * there).sum(axis=0)
    for _ in range(2):
        away = np.where(there, away - (weights[:, None] * away).sum(axis=0) / total, 0)
    deviation = np.sqrt((weights[:, None] * away**2).sum(axis=0) / total)
    return away, np.where(deviation > 0, deviation, 1) if scale else np.ones(x.shape[1])


def check(problem: Large, folder: Path) -> Findings:
    """Values, bounds and shares: the largest singular values of A are those of its triangular factor."""
    found, how, x = Findings(), problem.how, problem.x
    source = da.from_array(x, chunks=(max(1, len(x) // 5), x.shape[1])) if problem.in_blocks else x
    solution = npmdask.top_k(source, problem.k, row_weights=problem.rows, **how)
    weights = np.ones(len(x)) if problem.rows is None else problem.rows
    away, divisor = of_filled(x, weights, scale=how["scale"])
    a = (away if how["center"] else x.astype(float)) / divisor * np.sqrt(weights)[:, None]
    values, total = _values(a, how["kind"], weights.sum())
    k, top = len(solution.values), values[0]
    slack = LAPACK * EPS * np.sqrt(sum(a.shape)) * top
    errors = np.abs(solution.values - values[:k])
    found.answer(largest_bound(solution.certificate), float(errors.max()), float(top))
    basis = np.asarray(solution.basis)
    rest = _values(a - (a @ basis) @ basis.T, how["kind"], weights.sum())[0][0]
    for level in (solution.certificate or {}).get("levels", []):
        for i, bound in enumerate(level.get("value_errors") or []):
            if bound is not None:
                found.expect(errors[i] <= bound + slack, f"error of value {i}", errors[i] / top, "bound", bound / top)
        if level.get("following") is not None and k < len(values):
            found.expect(values[k] <= level["following"] + slack, "the value after the last", values[k] / top)
        if level.get("low_rank_error") is not None:
            found.expect(rest <= level["low_rank_error"] + slack, "error of the low rank", rest / top)
    variances = np.asarray(solution.values) ** (1 if how["kind"] == "samples" else 2)
    if solution.answered and solution.explained_share is not None:
        found.close("share", solution.explained_share, variances.sum() / total, 2e-6, 1.0)
    if solution.converged:
        found.expect(errors.max() <= 1e-4 * top, "converged, off by", errors.max() / top)
    return found


def _values(a: np.ndarray, kind: str, weight: float) -> tuple[np.ndarray, float]:
    """By falling size, and the sum of all variances or squares."""
    factor = np.abs(a).max() or 1.0
    triangle = np.linalg.qr((a if len(a) >= a.shape[1] else a.T) / factor, mode="r")
    values = np.linalg.svd(triangle, compute_uv=False) * factor
    if kind == "samples":
        return values**2 / weight, float((values**2).sum() / weight)
    return values, float((values**2).sum())
