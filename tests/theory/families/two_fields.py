"""MCA and CCA of two fields against NumPy: ridge, leading components, gaps, weights, nearly equal columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import npmdask
from tests.theory.families.drawing import Rng, chance, one_of, power_of_ten, whole
from tests.theory.families.judging import EPS, LAPACK, Findings, Problem, Unasked, prepared

LEFT_OUT = 1e-9  # of the largest variance: documented, directions of less do not count


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


def problem(rng: Rng) -> Fields:
    method = one_of(rng, ("mca", "mca", "cca", "cca", "ridge"))
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
    return Fields(*fields, change, method, k, rows, method == "mca" and chance(rng, 0.3), ridge)


def check(problem: Fields, folder: Path) -> Findings:
    found, k = Findings(), problem.k
    sides = [
        prepared(field.astype(float), center=True, scale=problem.scale, rows=problem.rows)
        for field in (problem.left, problem.right)
    ]
    if problem.method == "mca":
        solution = npmdask.mca(problem.left, problem.right, k, scale=problem.scale, row_weights=problem.rows)
        truth = np.linalg.svd(sides[0].matrix.T @ sides[1].matrix / sides[0].weight, compute_uv=False)
        compare(found, solution, truth, solution.certificate and max(solution.certificate["value_errors"]), sides)
        # The sum of all squares is estimated: its standard error is stated.
        fraction, error = solution.squared_covariance_fraction, solution.squared_covariance_error
        off = truth[0] ** 2 / (truth**2).sum() / fraction[0] - 1
        found.claims.append(("squares of covariances within two standard errors", 0.9, abs(off) <= 2 * error + 1e-9))
        return found
    solution = npmdask.cca(problem.left, problem.right, k, ridge=problem.ridge, row_weights=problem.rows)
    whitened = [white(side.matrix / np.sqrt(side.weight), problem.ridge) for side in sides]
    truth = np.linalg.svd(whitened[0].T @ whitened[1], compute_uv=False)
    stated = (solution.certificate or {}).get("correlation_error")
    if stated is None:
        found.answer(None, float(np.abs(solution.values - truth[:k]).max()), 1.0)
        found.expect(solution.warnings, "an answer without a bound and without a warning")
        return found
    compare(found, solution, truth, stated, sides)
    return found


def white(a: np.ndarray, ridge: float) -> np.ndarray:
    """Columns whose inner products with those of another field are correlations (of a ridge: regularised ones)."""
    if not ridge:
        size = np.linalg.norm(a, axis=0)
        u, values, _ = np.linalg.svd(a / np.where(size > 0, size, 1), full_matrices=False)
        return np.asarray(u[:, values > 64 * EPS * values[0] * np.sqrt(len(values))])
    u, values, _ = np.linalg.svd(a, full_matrices=False)
    return np.asarray(u * (values / np.sqrt(values**2 + ridge * (values**2).sum() / a.shape[1])))


def compare(found: Findings, solution: Any, truth: np.ndarray, bound: float | None, sides: list[Any]) -> None:
    values = np.asarray(solution.values)
    if len(values) > len(truth):
        raise Unasked("more pairs than directions")
    error = float(np.abs(values - truth[: len(values)]).max())
    found.answer(bound, error, float(truth[0]))
    slack = LAPACK * EPS * np.sqrt(sum(sides[0].matrix.shape) + sides[1].matrix.shape[1])
    slack *= np.prod([np.linalg.norm(side.matrix, 2) / np.sqrt(side.weight) for side in sides]) if bound else 1.0
    if bound is not None:
        found.expect(error <= bound + slack, "error of values", error, "for a bound of", bound, "largest", truth[0])
