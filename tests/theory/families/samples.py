"""Samples and matrices: weights of rows and columns, gaps, centre, scale, every algorithm, containers, dtypes.

Values, certificate, mean, scores, patterns, variances, shares, rebuilt rows and left vectors are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr

import npmdask
from npmdask.errors import NpmdaskError
from tests.conftest import write_zarr
from tests.theory.families.drawing import Rng, chance, one_of, power_of_ten, weights, whole, with_values
from tests.theory.families.judging import (
    EPS,
    Findings,
    Prepared,
    Problem,
    Question,
    Unasked,
    judge,
    largest_bound,
    prepared,
)

LARGEST = {"<i2": 3e4, ">i4": 2e9, "u1": 250, "i8": 9e15, "u8": 9e15}  # of what integers hold here; float64 holds all
CONTAINERS = (
    "C order", "Fortran order", "reversed", "read-only", "strided", "Dask", "Dask, unknown chunks", "pandas",
    "xarray", "xarray of Dask", "Zarr", "memory-mapped", "masked", "list",
)  # fmt: skip


@dataclass(frozen=True)
class Asked(Problem):
    x: np.ndarray  # as stored, in its dtype; a gap is NaN
    spectrum: str
    change: str
    gaps: str
    container: str
    chunks: tuple[int, int]
    k: float
    rows: np.ndarray | None
    columns: np.ndarray | None
    how: dict[str, Any]


def drawn_matrix(rng: Rng) -> tuple[np.ndarray, str, str]:
    """A matrix, its spectrum, and what was done to it."""
    shape = one_of(
        rng, ("tall", "wide", "small", "one row", "one column", "square"), p=[0.45, 0.25, 0.15, 0.03, 0.02, 0.1]
    )
    n, d = {
        "tall": (whole(rng, 40, 399), whole(rng, 2, 49)),
        "wide": (whole(rng, 3, 39), whole(rng, 30, 119)),
        "small": (whole(rng, 1, 7), whole(rng, 1, 7)),
        "one row": (1, whole(rng, 1, 29)),
        "one column": (whole(rng, 1, 199), 1),
        "square": (30, 30),
    }[shape]
    r = min(n, d)
    spectrum = one_of(rng, ("geometric", "power law", "flat", "deficient", "ties"))
    values = {
        "geometric": 0.7 ** np.arange(r),
        "power law": np.arange(1, r + 1) ** -1.0,
        "flat": 1 + 0.05 * rng.random(r),
        "deficient": np.where(np.arange(r) < max(1, r // 3), 1.0, 0),
        "ties": np.repeat(2.0 ** -np.arange(r), 3)[:r],
    }[spectrum]
    x = with_values(rng, n, d, values) * np.sqrt(n)
    change = one_of(rng, ("none", "means", "units", "constants", "sizes"), p=[0.6, 0.2, 0.1, 0.06, 0.04])
    if change == "means":
        x = x + rng.standard_normal(d) * power_of_ten(rng, 0, 6)
    elif change == "units":
        x = x * 10.0 ** rng.uniform(-6, 6, d)
    elif change == "constants":
        x[:, : max(1, d // 3)] = 3
    elif change == "sizes":
        x = x * 10.0 ** rng.uniform(-8, 8, (n, 1))
    return x, spectrum, change


def with_gaps(rng: Rng, x: np.ndarray) -> tuple[np.ndarray, str]:
    pattern = one_of(rng, ("random", "a block", "a column", "a row", "the largest"))
    away = rng.random(x.shape) < one_of(rng, (0.01, 0.1, 0.4))
    n, d = x.shape
    if pattern == "a block":
        away[:] = False
        away[: n // 3, : max(1, d // 3)] = True
    elif pattern == "a column":
        away[:, 0] = True
        away[int(rng.integers(n)), 0] = False
    elif pattern == "a row":
        away[int(rng.integers(n))] = True
    elif pattern == "the largest":
        away = x > np.quantile(x, 0.8)
    return np.where(away, np.nan, x), pattern


def as_dtype(x: np.ndarray, dtype: str) -> np.ndarray:
    largest = np.nanmax(np.abs(x)) or 1
    if dtype == "b1":
        return x > np.median(x)
    if dtype in LARGEST:
        x = np.round(x / largest * LARGEST[dtype])
        return (np.abs(x) if dtype[0] == "u" else x).astype(dtype)
    return (x / largest * 1000 if dtype == "f2" else x).astype(dtype)


def problem(rng: Rng) -> Asked:
    x, spectrum, change = drawn_matrix(rng)
    missing = one_of(rng, ("refuse", "mean", "drop-columns", "pairwise"), p=[0.5, 0.25, 0.1, 0.15])
    kind = "samples" if missing == "pairwise" else one_of(rng, ("samples", "matrix"), p=[0.65, 0.35])
    how: dict[str, Any] = {"kind": kind, "missing": missing, "seed": whole(rng, 0, 999)}
    how["center"] = chance(rng, 0.6) or missing in ("mean", "pairwise")
    how["scale"] = chance(rng, 0.3)
    dtype = one_of(
        rng,
        ("f8", "f4", ">f8", "f2", "<i2", ">i4", "u1", "i8", "u8", "b1"),
        p=[0.5, 0.15, 0.05, 0.05, 0.05, 0.04, 0.04, 0.05, 0.04, 0.03],
    )
    gaps = "none"
    if missing != "refuse":
        dtype = one_of(rng, ("f8", "f4", ">f8", "f2"), p=[0.4, 0.3, 0.2, 0.1])
    if missing in ("mean", "pairwise"):
        x, gaps = with_gaps(rng, x)
    if missing == "drop-columns":
        x[:, rng.random(x.shape[1]) < 0.3] = np.nan
    x = as_dtype(x, dtype)
    container = one_of(rng, CONTAINERS)
    if container == "Dask, unknown chunks":
        keep = rng.random(len(x)) < 0.7
        keep[0] = True
        x = x[keep]
    n, d = x.shape
    chunks = (max(whole(rng, 1, n), n // 40), max(whole(rng, 1, d), d // 20))
    rows = weights(rng, n, (0, 0, -55, 59, 3)) if chance(rng, 0.4) and missing != "pairwise" else None
    columns = weights(rng, d, (0, 0, -55, 59)) if chance(rng, 0.35) else None
    how["algorithm"] = one_of(rng, ("auto", "power", "krylov", "gram", "row-gram"))
    k: float = min(whole(rng, 1, max(1, min(n, d))), 25)
    if chance(rng, 0.1) and how["algorithm"] in ("auto", "krylov"):
        k = one_of(rng, (0.5, 0.9, 0.99))
    if chance(rng, 0.15):
        how["max_steps"] = whole(rng, 1, 5)
    if chance(rng, 0.1):
        how["tol"] = power_of_ten(rng, -10, -2)
    return Asked(x, spectrum, change, gaps, container, chunks, k, rows, columns, how)


def contained(problem: Asked, folder: Path) -> Any:
    """The matrix as a user might hold it."""
    x, n, d = problem.x, *problem.x.shape
    match problem.container:
        case "Fortran order":
            return np.asfortranarray(x)
        case "reversed":
            return np.flip(np.flip(x).copy())
        case "read-only":
            x = x.copy()
            x.flags.writeable = False
            return x
        case "strided":
            wide = np.zeros((2 * n, 3 * d), x.dtype)
            wide[::2, 1::3] = x
            return wide[::2, 1::3]
        case "Dask":
            return da.from_array(x, chunks=problem.chunks)
        case "Dask, unknown chunks":
            more = np.concatenate([x, x[:1]])
            rows = da.from_array(more, chunks=(problem.chunks[0], d))
            return rows[da.from_array(np.arange(n + 1) < n, chunks=problem.chunks[0])].compute_chunk_sizes()
        case "pandas":
            return pd.DataFrame(x.astype(x.dtype.newbyteorder("=")), columns=[f"c{j}" for j in range(d)])
        case "xarray":
            return xr.DataArray(x, dims=("r", "c"))
        case "xarray of Dask":
            return xr.DataArray(x, dims=("r", "c")).chunk(r=problem.chunks[0], c=problem.chunks[1])
        case "Zarr":
            return str(write_zarr(folder / "x.zarr", x, problem.chunks, config={"write_empty_chunks": True}))
        case "memory-mapped":
            np.save(folder / "x.npy", x)
            return np.load(folder / "x.npy", mmap_mode="r")
        case "masked":
            away = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
            return np.ma.masked_array(np.where(away, -999, x).astype(x.dtype), away)
        case "list" if not (x.dtype.kind == "f" and np.isnan(x).any()):
            return x.tolist()
    return x


def check(problem: Asked, folder: Path, source: Any = None) -> Findings:
    """``source``: what is asked, where values of the problem are stored in another way."""
    found, how = Findings(), problem.how
    x = problem.x.astype(float)
    observed = ~np.isnan(x)
    kept = observed.any(axis=0) if how["missing"] == "drop-columns" else np.ones(x.shape[1], bool)
    x, observed = x[:, kept], observed[:, kept]
    columns = None if problem.columns is None else problem.columns[kept]
    source = contained(problem, folder) if source is None else source
    asked = how | {"row_weights": problem.rows, "column_weights": problem.columns}
    solution = npmdask.top_k(source, problem.k, **asked)
    if how["missing"] == "pairwise":
        covariances_of_pairs(found, solution, x, observed, columns, scale=how["scale"])
        return found
    gaps = observed if how["missing"] == "mean" else None
    truth = prepared(x, center=how["center"], scale=how["scale"], rows=problem.rows, columns=columns, observed=gaps)
    if truth.is_noise:
        raise Unasked("constant data: nothing is left but the rounding of means")
    question = Question(truth.matrix, how["kind"], truth.weight)
    judge(found, solution, question)
    shares(found, solution, question, truth, center=how["center"])
    as_rows(found, solution, source, x, truth, columns, how)
    return found


def covariances_of_pairs(
    found: Findings, solution: Any, x: np.ndarray, observed: np.ndarray, columns: np.ndarray | None, *, scale: bool
) -> None:
    """Each covariance over the rows that have both columns; negative eigenvalues, which those can have, become 0."""
    there = observed.astype(np.longdouble)
    y = np.where(observed, x, 0).astype(np.longdouble)
    mean = y.sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    y = np.where(observed, y - mean, 0)
    pairs = np.maximum(there.T @ there, 1)
    sums = y.T @ there
    c = (y.T @ y - sums * sums.T / pairs) / pairs
    if scale:
        deviation = np.sqrt((y * y).sum(axis=0) / np.maximum(there.sum(axis=0), 1))
        divisor = np.where(deviation > 1e-14 * np.abs(mean), deviation, 1)
        c = c / np.outer(divisor, divisor)
    if columns is not None:
        c = c * np.sqrt(np.outer(columns, columns).astype(np.longdouble))
    c = c.astype(float)
    factor = np.abs(c).max() or 1.0
    values = np.maximum(np.linalg.eigvalsh(c / factor)[::-1], 0) * factor
    k = len(solution.values)
    errors = np.abs(solution.values - values[:k])
    bound = largest_bound(solution.certificate)
    found.answer(bound, float(errors.max()), float(values[0]))
    slack = 8 * EPS * np.sqrt(len(c)) * values[0]
    if bound is not None:
        off, top = float(errors.max()), float(values[0]) or 1.0
        found.expect(off <= bound + slack, "pairwise: error of values", off / top, "for a bound of", bound / top)
    if solution.converged and solution.explained_share is not None and values[0] > 0:
        share = float(solution.values.sum() / values.sum())
        found.close("pairwise: share", solution.explained_share, share, 1e-8, 1.0)


def shares(found: Findings, solution: Any, question: Question, truth: Prepared, *, center: bool) -> None:
    """Variances and shares are those of the values that are stated."""
    values = np.asarray(solution.values)
    variances = values if question.kind == "samples" else values**2
    total = question.total
    stated = solution.answered and total > 0 and np.isfinite(total) and solution.explained_share is not None
    if stated:
        found.close("share", solution.explained_share, variances.sum() / total, 1e-6, 1.0)
    if not center:
        return
    if stated:
        found.close("ratio", solution.explained_variance_ratio, variances / total, 1e-6, 1.0)
    try:
        stated_variances = solution.explained_variance
    except NpmdaskError:
        return
    if truth.weight > 1:
        sums = values * truth.weight if question.kind == "samples" else values**2
        found.close("variances", stated_variances, sums / (truth.weight - 1), 1e-12)


def as_rows(
    found: Findings, solution: Any, source: Any, x: np.ndarray, truth: Prepared, columns: Any, how: dict[str, Any]
) -> None:
    """Mean, scores, patterns, rebuilt rows and left vectors, of the solution's own basis."""
    basis, center = np.asarray(solution.basis), how["center"]
    rounding = truth.of_scores(scaled=how["scale"])
    if center:
        found.close("mean", solution.mean, truth.mean, 1e-13, float(np.nanmax(np.abs(x), initial=0)))
    scores = np.asarray(solution.scores(source))
    found.close("scores", scores, truth.rows_before @ basis, rounding, 1.0)
    patterns = basis * truth.deviation[:, None]
    if columns is not None:
        with np.errstate(all="ignore"):
            patterns = np.where(columns[:, None] > 0, patterns / np.sqrt(columns)[:, None], np.nan)
    shown = np.abs(basis) > 1e-10
    with np.errstate(all="ignore"):
        ratio = (np.asarray(solution.patterns()) / patterns)[shown]
    ratio = ratio[np.isfinite(patterns[shown])]
    relative = 1e-12 + rounding / (np.abs(truth.rows_before).max() or 1)  # of a deviation, by rounding
    found.close("patterns", ratio, np.ones(len(ratio)), relative, 1.0)
    rebuilt = scores @ patterns.T + (truth.mean if center else 0)
    size = float(np.nanmax(np.abs(rebuilt), initial=0))
    found.close("rebuilt rows", solution.inverse_transform(scores), rebuilt, 1e-12 + relative, size)
    if how["kind"] == "matrix" and solution.answered:
        values = np.asarray(solution.values)
        large = values > 1e-7 * values[0]
        left = (truth.matrix @ basis)[:, large] / values[large]
        found.close("left vectors", np.asarray(solution.left_basis())[:, large], left, 1e-7 + 1e7 * rounding, 1.0)
