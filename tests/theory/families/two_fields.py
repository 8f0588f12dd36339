"""MCA and CCA of two fields against NumPy: ridge, leading components, gaps, weights, nearly equal columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import npmdask
from tests.theory.families.drawing import Rng, chance, one_of, power_of_ten, whole
from tests.theory.families.judging import EPS, LAPACK, Findings, Problem, Unasked, prepared

CONVERGED = 1e-7  # by how much leading components may be turned, over the gap that follows them


@dataclass(frozen=True)
class Fields(Problem):
    left: np.ndarray
    right: np.ndarray
    change: str
    method: str
    k: int
    rows: np.ndarray | None
    scale: bool
    ridge: float
    pcs: tuple[int, int] | None


def problem(rng: Rng) -> Fields:
    method = one_of(rng, ("mca", "mca", "cca", "cca", "ridge", "components"))
    n, p, q = whole(rng, 20, 299), whole(rng, 1, 15), whole(rng, 1, 15)
    common = rng.standard_normal((n, 3))
    fields = []
    for columns in (p, q):
        own = rng.standard_normal((n, columns)) * power_of_ten(rng, -2, 1)
        fields.append((common @ rng.standard_normal((3, columns)) + own) * 10.0 ** rng.uniform(-2, 2, columns))
    change = one_of(rng, ("none", "means", "near columns", "float32"), p=[0.4, 0.3, 0.15, 0.15])
    if change == "means":
        fields = [f + rng.standard_normal(f.shape[1]) * power_of_ten(rng, 0, 4) for f in fields]
    elif change == "near columns":  # two instruments that agree but for a little
        twin = fields[0][:, :1] + power_of_ten(rng, -6, -2) * rng.standard_normal((n, 1)) * fields[0][:, :1].std()
        fields[0] = np.concatenate([fields[0], twin], axis=1)
    elif change == "float32":
        fields = [f.astype(np.float32) for f in fields]
    k = whole(rng, 1, min(fields[0].shape[1], q))
    rows = rng.integers(0, 4, n).astype(float) if chance(rng, 0.3) else None
    ridge = power_of_ten(rng, -3, 0) if method == "ridge" else 0.0
    pcs = None
    if method == "components":
        pcs = whole(rng, 1, min(fields[0].shape[1], n - 1)), whole(rng, 1, min(q, n - 1))
        k = min(k, *pcs)
    if method == "mca" and chance(rng, 0.3):
        fields[0] = np.where(rng.random(fields[0].shape) < 0.1, np.nan, fields[0]).astype(fields[0].dtype)
    return Fields(*fields, change, method, k, rows, method == "mca" and chance(rng, 0.3), ridge, pcs)


def check(problem: Fields, folder: Path) -> Findings:
    found, k = Findings(), problem.k
    fields = [field.astype(float) for field in (problem.left, problem.right)]
    sides = [
        prepared(field, center=True, scale=problem.scale, rows=problem.rows, observed=~np.isnan(field))
        for field in fields
    ]
    columns = sum(field.shape[1] for field in fields)
    weighted = [side.matrix / np.sqrt(side.weight) for side in sides]
    if problem.method == "mca":
        missing = "mean" if np.isnan(problem.left).any() else "refuse"
        asked = {"scale": problem.scale, "row_weights": problem.rows, "missing": missing}
        solution = npmdask.mca(problem.left, problem.right, k, **asked)
        truth = np.linalg.svd(weighted[0].T @ weighted[1], compute_uv=False)
        bound = max(solution.certificate["value_errors"], default=None)
        compare(found, solution, truth, bound, columns, float(np.prod([np.linalg.norm(a, 2) for a in weighted])))
        # The sum of all squares is estimated: its standard error is stated.
        fraction, error = solution.squared_covariance_fraction, solution.squared_covariance_error
        off = truth[0] ** 2 / (truth**2).sum() / fraction[0] - 1
        found.claims.append(("squares of covariances within two standard errors", 0.9, abs(off) <= 2 * error + 1e-9))
        return found
    solution = npmdask.cca(
        problem.left, problem.right, k, ridge=problem.ridge, pcs=problem.pcs, row_weights=problem.rows
    )
    if problem.pcs is not None:
        of_components(found, solution, weighted, problem.pcs)
        return found
    (left, one), (right, other) = (white(a, problem.ridge) for a in weighted)
    truth = np.linalg.svd(left.T @ right, compute_uv=False)
    stated = (solution.certificate or {}).get("correlation_error")
    if stated is None or np.isinf(stated):
        found.expect(solution.warnings, "an answer without a bound and without a warning")
    compare(found, solution, truth, stated, columns, max(one, other))
    return found


def of_components(found: Findings, solution: Any, weighted: list[np.ndarray], pcs: tuple[int, int]) -> None:
    """Correlations of leading components; what is stated is about these as they were found, so it is not used here."""
    bases, gaps = [], [1.0]
    for a, count in zip(weighted, pcs, strict=True):
        u, values, _ = np.linalg.svd(a, full_matrices=False)
        bases.append(u[:, :count])
        gaps += [float(values[count - 1] - values[count]) / values[0]] if count < len(values) else []
        if values[count - 1] < 1e-5 * values[0]:
            raise Unasked("components without variance")
    truth = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)[: len(solution.values)]
    within = CONVERGED / max(min(gaps), EPS)
    found.close("correlations of components", solution.values, truth, within, 1.0)


def white(a: np.ndarray, ridge: float) -> tuple[np.ndarray, float]:
    """Columns whose inner products with those of another field are correlations (of a ridge: regularised ones).

    And their condition, by which LAPACK's directions are off.
    """
    size = np.ones(a.shape[1]) if ridge else np.linalg.norm(a, axis=0)
    u, values, _ = np.linalg.svd(a / np.where(size > 0, size, 1), full_matrices=False)
    if ridge:
        return u * (values / np.sqrt(values**2 + ridge * (values**2).sum() / a.shape[1])), 1 / ridge
    vary = values > 64 * EPS * values[0] * np.sqrt(len(values))
    return u[:, vary], float(values[0] / values[vary].min())


def compare(found: Findings, solution: Any, truth: np.ndarray, bound: float | None, columns: int, size: float) -> None:
    """Values are as far from the truth as is stated; ``size``: times LAPACK's rounding, that of the truth."""
    values = np.asarray(solution.values)
    if len(values) > len(truth):
        raise Unasked("more pairs than directions")
    error = float(np.abs(values - truth[: len(values)]).max())
    found.answer(bound, error, float(truth[0]))
    if bound is not None:
        slack = LAPACK * EPS * np.sqrt(columns) * size
        found.expect(error <= bound + slack, "error of values", error, "for a bound of", bound, "largest", truth[0])
