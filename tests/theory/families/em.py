"""missing="em": an own EM goes on from the answer to see what was left; scores of rows with gaps; weights; PCA."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import npmdask
from tests.theory.families.drawing import Rng, chance, one_of, orthonormal, power_of_ten, whole
from tests.theory.families.judging import EPS, Findings, Problem, Unasked, moments


@dataclass(frozen=True)
class Gappy(Problem):
    x: np.ndarray
    gaps: str
    k: int
    tol: float
    repeats: np.ndarray | None  # how often each row counts
    scale: bool


class Model(NamedTuple):
    """x = mean + loadings z + noise, z normal of variance 1 (probabilistic PCA)."""

    mean: np.ndarray
    loadings: np.ndarray
    noise: float


def problem(rng: Rng) -> Gappy:
    n, d, k = whole(rng, 30, 119), whole(rng, 4, 13), whole(rng, 1, 3)
    factors = rng.standard_normal((n, k)) * np.geomspace(6, 2, k) * one_of(rng, (1, 3))
    x = factors @ orthonormal(rng, d, k).T + rng.uniform(0.1, 1) * rng.standard_normal((n, d))
    x = x + rng.standard_normal(d) * power_of_ten(rng, 0, 4)
    x = x.astype(one_of(rng, ("f8", "f8", "f4", "f2")))
    share = one_of(rng, (0, 0.05, 0.2, 0.4))
    gaps = one_of(rng, ("random", "the largest", "a block")) if share else "none"
    away = rng.random(x.shape) < share
    if gaps == "the largest":
        about = x.astype(float) - x.mean(axis=0, dtype=float)
        away = about > np.quantile(about, 1 - share)
    elif gaps == "a block":
        away[:] = False
        away[: n // 2, : d // 3] = True
    repeats = rng.integers(0, 3, n) if chance(rng, 0.25) else None
    counted = ~away if repeats is None else ~away[repeats > 0]
    if counted.sum(axis=0).min() < 4:
        raise Unasked("a column of fewer than four values")
    return Gappy(
        np.where(away, np.nan, x).astype(x.dtype), gaps, k, power_of_ten(rng, -8, -4), repeats, chance(rng, 0.25)
    )


def step(x: np.ndarray, model: Model, weights: np.ndarray) -> tuple[float, Model]:
    """The log likelihood of a model, and the next one (Ilin and Raiko 2010; loadings and mean of a row together)."""
    d, k = model.loadings.shape
    likelihood, squares, count = 0.0, np.zeros(d), 0.0
    of_both, with_x = np.zeros((d, k + 1, k + 1)), np.zeros((d, k + 1))
    for row, weight in zip(x, weights, strict=True):
        seen = ~np.isnan(row)
        if not seen.any() or weight == 0:
            continue
        w, y = model.loadings[seen], row[seen] - model.mean[seen]
        inner = w.T @ w + model.noise * np.eye(k)
        z = np.linalg.solve(inner, w.T @ y)
        logarithm = (seen.sum() - k) * np.log(model.noise) + np.linalg.slogdet(inner)[1]
        likelihood -= weight / 2 * (seen.sum() * np.log(2 * np.pi) + logarithm + (y @ y - y @ (w @ z)) / model.noise)
        with_one = np.append(z, 1.0)
        square = np.outer(with_one, with_one)
        square[:k, :k] += model.noise * np.linalg.inv(inner)
        of_both[seen] += weight * square
        with_x[seen] += weight * np.outer(row[seen], with_one)
        squares[seen] += weight * row[seen] ** 2
        count += weight * seen.sum()
    solved = np.stack([np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(of_both, with_x, strict=True)])
    rest = squares - 2 * (solved * with_x).sum(axis=1) + np.einsum("ij,ijk,ik->i", solved, of_both, solved)
    return likelihood, Model(solved[:, k], solved[:, :k], max(float(rest.sum() / count), 1e-300))


def check(problem: Gappy, folder: Path) -> Findings:
    found, k, tol = Findings(), problem.k, problem.tol
    x = problem.x.astype(float)
    weights = np.ones(len(x)) if problem.repeats is None else problem.repeats.astype(float)
    asked: dict[str, Any] = {"kind": "samples", "center": True, "missing": "em", "options": {"held_out": 0}}
    asked |= {"tol": tol, "max_steps": 400, "scale": problem.scale}
    given = None if problem.repeats is None else weights
    solution = npmdask.top_k(problem.x, k, row_weights=given, **asked)
    divisor = deviations(x, weights) if problem.scale else np.ones(x.shape[1])
    y = (x - np.asarray(solution.mean)) / divisor  # what the model is of; its mean is then 0
    values, basis, noise = np.asarray(solution.values), np.asarray(solution.basis), float(solution.facts["noise"])
    found.expect((values >= noise * (1 - 1e-9)).all(), "a value below the noise:", values, noise)
    model = Model(np.zeros(x.shape[1]), basis * np.sqrt(np.maximum(values - noise, 0)), noise)
    # A deviation of large means is known to the rounding of the data about the mean, in units of the deviation.
    rounding = 64 * EPS * float((np.nanmax(np.abs(x), axis=0) / deviations(x, weights)).max())
    found.close("scores", solution.scores(problem.x), expected_scores(y, model, basis), 1e-8 + rounding)
    ended = limit(y, model, weights)
    error = float(np.abs(ended - values).max() / ended[0])
    found.answer(None, error, 1.0)  # a model has no certificate: what is left to go is an estimate
    if solution.converged:  # of two steps of EM nothing is certain: what falls slowest may be hidden by what falls fast
        found.claims.append(("what EM leaves to go is about its tolerance", 0.99, error <= 30 * tol + 1e-9))
        found.expect(error <= 1e4 * tol + 1e-9, "left to go", error, "with a tolerance of", tol)
    if problem.gaps == "none" and problem.repeats is None and solution.converged:
        truth = np.linalg.eigvalsh(y.T @ y / len(y) - np.outer(y.mean(axis=0), y.mean(axis=0)))[::-1]
        found.close("complete data", values, truth[:k], 30 * tol + 1e-9, truth[0])
    if problem.repeats is not None:
        repeated = npmdask.top_k(np.repeat(problem.x, problem.repeats, axis=0), k, **asked)
        if solution.converged and repeated.converged:
            found.close("weights as repeated rows", values, repeated.values, 60 * tol + 1e-8)
    least_squares(found, solution, problem.x, y, basis, rounding)
    return found


def deviations(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Over what is observed; 1 of a constant column."""
    seen = ~np.isnan(x)
    values = np.where(seen, x, 0).astype(np.longdouble)
    mean, deviation = moments(values, weights.astype(np.longdouble), seen)
    return np.where(deviation > 1e-14 * np.abs(mean), deviation, 1).astype(float)


def expected_scores(y: np.ndarray, model: Model, basis: np.ndarray) -> np.ndarray:
    """Those of the complete row that is expected, given what there is of it."""
    found = np.zeros((len(y), basis.shape[1]))
    for i, row in enumerate(y):
        seen = ~np.isnan(row)
        if seen.any():
            w = model.loadings[seen]
            z = np.linalg.solve(w.T @ w + model.noise * np.eye(w.shape[1]), w.T @ row[seen])
            found[i] = np.where(seen, row, model.loadings @ z) @ basis
    return found


def limit(y: np.ndarray, model: Model, weights: np.ndarray, steps: int = 400) -> np.ndarray:
    """Values of the model at which EM ends when it goes on from this one."""
    before = -np.inf
    for number in range(steps):
        likelihood, model = step(y, model, weights)
        if number > 20 and abs(likelihood - before) < 1e-12 * abs(likelihood):
            break
        before = likelihood
    return np.asarray(np.linalg.svd(model.loadings, compute_uv=False) ** 2 + model.noise)


def least_squares(
    found: Findings, solution: Any, stored: np.ndarray, y: np.ndarray, basis: np.ndarray, rounding: float
) -> None:
    """Scores by least squares over what a row has; NaN where that does not determine them."""
    scores = np.asarray(solution.scores(stored, missing="least-squares"))
    for row, score in zip(y, scores, strict=True):
        seen = ~np.isnan(row)
        if np.linalg.matrix_rank(basis[seen], tol=1e-6) == basis.shape[1]:
            truth = np.linalg.lstsq(basis[seen], row[seen], rcond=None)[0]
            condition = np.linalg.cond(basis[seen]) ** 2
            within = rounding + 1e-10 * condition
            found.close("least-squares scores", score, truth, within, float(np.abs(row[seen]).max()) + 1.0)
        elif seen.sum() < basis.shape[1]:
            found.expect(np.isnan(score).any(), "least-squares scores of a row that does not determine them")
        if found.faults:
            return
