"""Complex samples and matrices, Hermitian ones, and HilbertEOF against SciPy's analytic signal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import scipy.signal
import xarray as xr

import npmdask
import npmdask.xarray
from tests.theory.families.drawing import Rng, chance, one_of, power_of_ten, whole
from tests.theory.families.judging import Findings, Problem, Question, Unasked, judge, prepared


@dataclass(frozen=True)
class Complex(Problem):
    x: np.ndarray  # real for HilbertEOF
    change: str
    k: int
    rows: np.ndarray | None
    columns: np.ndarray | None
    in_blocks: bool
    how: dict[str, Any]


def normal(rng: Rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


def hermitian(rng: Rng, d: int) -> np.ndarray:
    values = one_of(rng, (np.ones(d), 0.8 ** np.arange(d), np.arange(1, d + 1) ** -1.0)) * rng.choice([-1, 1], d)
    turn = np.linalg.qr(normal(rng, d, d))[0]
    return (turn * values) @ turn.conj().T


def with_zeros(rng: Rng, count: int) -> np.ndarray | None:
    if not chance(rng, 0.3):
        return None
    found = rng.random(count) * (rng.random(count) > 0.2)
    found[0] = 1
    return found


def problem(rng: Rng) -> Complex:
    kind = one_of(rng, ("samples", "matrix", "symmetric", "hilbert"), p=[0.3, 0.3, 0.2, 0.2])
    n, d = whole(rng, 1, 119), whole(rng, 1, 39)
    if kind == "hilbert":
        return of_series(rng)
    x = normal(rng, n, d) * np.geomspace(1, power_of_ten(rng, -4, 0), d)
    change = one_of(
        rng, ("none", "means", "units", "rank 2", "constants", "real"), p=[0.45, 0.25, 0.1, 0.1, 0.05, 0.05]
    )
    if change == "means":
        x = x + normal(rng, d) * power_of_ten(rng, 0, 7)
    elif change == "units":
        x = x * 10.0 ** rng.uniform(-5, 5, d)
    elif change == "rank 2" and d > 2:
        x = x[:, :2] @ normal(rng, 2, d)
    elif change == "constants":
        x[:, 0] = 1 + 2j
    elif change == "real":
        x = x.real + 0j
    if kind == "symmetric":
        x = hermitian(rng, d)
    x = x.astype("c8" if chance(rng, 0.25) else "c16")
    how: dict[str, Any] = {"kind": kind, "algorithm": one_of(rng, ("auto", "power", "krylov", "gram"))}
    how["seed"] = whole(rng, 0, 99)
    rows = columns = None
    if kind == "symmetric":
        how["algorithm"] = one_of(rng, ("auto", "power", "krylov"))  # there is no Gram of these
        x = (x + x.conj().T) / 2
    else:
        how |= {"center": chance(rng, 0.6), "scale": chance(rng, 0.25)}
        rows, columns = with_zeros(rng, n), with_zeros(rng, d)
    return Complex(x, change, min(whole(rng, 1, min(x.shape)), 12), rows, columns, chance(rng, 0.3), how)


def of_series(rng: Rng) -> Complex:
    """A field of real series along latitudes."""
    n, d = whole(rng, 3, 79), whole(rng, 2, 24)
    x = rng.standard_normal((n, d)) + power_of_ten(rng, -1, 4) * chance(rng, 0.5)
    how = {
        "kind": "hilbert",
        "use_coslat": chance(rng, 0.5),
        "standardize": chance(rng, 0.3),
        "poles": chance(rng, 0.4),
    }
    return Complex(x, "none", min(whole(rng, 1, min(n - 1, d)), 5), None, None, False, how)


def check(problem: Complex, folder: Path) -> Findings:
    found, how, x = Findings(), problem.how, problem.x
    if how["kind"] == "hilbert":
        hilbert(found, problem)
        return found
    source = da.from_array(x, chunks=(max(1, len(x) // 3), x.shape[1])) if problem.in_blocks else x
    weights = {} if how["kind"] == "symmetric" else {"row_weights": problem.rows, "column_weights": problem.columns}
    solution = npmdask.top_k(source, problem.k, **how, **weights)
    if how["kind"] == "symmetric":
        judge(found, solution, Question(x.astype(complex), "symmetric"))
        return found
    center, scale = how["center"], how["scale"]
    truth = prepared(x.astype(complex), center=center, scale=scale, rows=problem.rows, columns=problem.columns)
    if truth.is_noise:
        raise Unasked("constant data: nothing is left but the rounding of means")
    question = Question(truth.matrix, how["kind"], truth.weight)
    judge(found, solution, question)
    basis, values = np.asarray(solution.basis), np.asarray(solution.values)
    rounding = truth.of_scores(scaled=scale)
    scores = np.asarray(solution.scores(source))
    found.close("scores", scores, truth.rows_before @ basis, rounding, 1.0)
    if problem.columns is None:
        rebuilt = (truth.rows_before @ basis @ basis.conj().T) * truth.deviation + (truth.mean if center else 0)
        size = float(np.abs(rebuilt).max()) + rounding * float(truth.deviation.max())
        found.close("rebuilt rows", solution.inverse_transform(scores), rebuilt, 1e-10, size)
    if solution.answered and solution.explained_share is not None:
        variances = values if how["kind"] == "samples" else values**2
        found.close("share", solution.explained_share, variances.sum() / question.total, 1e-6, 1.0)
    if how["kind"] == "matrix" and solution.answered:
        large = values > 1e-7 * values[0]
        left = (truth.matrix @ basis)[:, large] / values[large]
        found.close("left vectors", np.asarray(solution.left_basis())[:, large], left, 1e-7 + 1e7 * rounding, 1.0)
    return found


def hilbert(found: Findings, problem: Complex) -> None:
    x, how, k = problem.x, problem.how, problem.k
    edge = 90 if how["poles"] else 70
    latitudes = np.linspace(-edge, edge, x.shape[1])
    field = xr.DataArray(x[:, :, None], dims=("time", "lat", "lon"), coords={"lat": latitudes, "lon": [0.0]})
    asked = {"use_coslat": how["use_coslat"], "standardize": how["standardize"]}
    modes = npmdask.xarray.HilbertEOF(n_modes=k, padding="none", **asked).fit(field, dim="time")
    y = x - x.mean(axis=0)
    signal = scipy.signal.hilbert(y / y.std(axis=0) if how["standardize"] else y, axis=0)
    signal = signal - signal.mean(axis=0)
    if how["use_coslat"]:
        signal = signal * np.sqrt(np.maximum(np.cos(np.deg2rad(latitudes)), 0))
    values = np.linalg.svd(signal, compute_uv=False)
    found.close("HilbertEOF: singular values", modes.singular_values().values, values[:k], 1e-6, values[0])
    variances = values**2 / (len(x) - 1)
    found.close("HilbertEOF: variances", modes.explained_variance().values, variances[:k], 1e-6, variances[0])
    ratio = variances[:k] / variances.sum()
    found.close("HilbertEOF: ratio", modes.explained_variance_ratio().values, ratio, 1e-6, 1.0)
