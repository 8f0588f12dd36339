"""Small singular values against mpmath; deflation, warm starts, shares as k, low_rank_tol, runs that are resumed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

import npmdask
from tests.theory.families.drawing import Rng, chance, one_of, stored, whole, with_values
from tests.theory.families.judging import (
    EPS,
    LAPACK,
    Findings,
    Problem,
    Question,
    Unasked,
    judge,
    largest_bound,
    prepared,
)


@dataclass(frozen=True)
class Small(Problem):
    x: np.ndarray
    spectrum: str
    way: str
    k: int
    first: dict[str, Any]  # options of the first run
    then: dict[str, Any]  # of what follows it
    share: float
    low_rank_tol: float


def problem(rng: Rng) -> Small:
    way = one_of(rng, ("triplets", "deflate", "warm start", "share", "low rank", "resume"))
    n, d = whole(rng, 6, 59), whole(rng, 4, 24)
    r = min(n, d)
    spectrum = one_of(rng, ("graded", "ties", "power law", "deficient", "units"))
    values = {
        "graded": 10.0 ** -np.linspace(0, rng.uniform(2, 16), r),
        "ties": np.repeat(2.0 ** -np.arange(r), 3)[:r],
        "power law": np.arange(1, r + 1) ** -0.7,
        "deficient": np.where(np.arange(r) < r // 2 + 1, 1.0, 0),
        "units": np.ones(r),
    }[spectrum]
    x = with_values(rng, n, d, values)
    if spectrum == "units":
        x = x * 10.0 ** rng.uniform(-6, 6, d)
    if chance(rng, 0.15):
        x = x.astype(np.float32)
    k = whole(rng, 1, r - (way == "deflate"))
    how = {"kind": one_of(rng, ("samples", "matrix")), "center": chance(rng, 0.4), "seed": whole(rng, 0, 99)}
    routes = {"warm start": ("power", "krylov"), "low rank": ("auto", "power", "krylov")}
    every = ("power", "krylov", "gram", "row-gram") if way == "resume" else ("auto", "power", "krylov", "gram")
    first = how | {"algorithm": one_of(rng, routes.get(way, every))}
    then: dict[str, Any] = {}
    if way == "deflate":
        then["more"] = whole(rng, 1, r - k)
    if way == "resume":
        first["max_steps"] = whole(rng, 1, 3)
    share, tolerance = one_of(rng, (0.3, 0.7, 0.9, 0.99, 0.9999)), one_of(rng, (0.01, 0.1, 1.0))
    return Small(x, spectrum, way, k, first, then, share, tolerance)


def check(problem: Small, folder: Path) -> Findings:
    found = Findings()
    x = problem.x.astype(float)
    if problem.way == "triplets":
        triplets(found, problem, x)
        return found
    truth = prepared(x, center=problem.first["center"])
    question = Question(truth.matrix, problem.first["kind"], truth.weight)
    path, first = stored(folder, problem.x, max(1, len(x) // 2)), problem.first
    k: float = problem.share if problem.way == "share" else problem.k
    options = {"low_rank_tol": problem.low_rank_tol} if problem.way == "low rank" else {}
    if problem.way == "warm start":
        before = first | {"algorithm": "power", "max_steps": 2}
        npmdask.top_k(path, max(1, problem.k - 1), store=folder / "before", **before)
        options = {"start": folder / "before"}
    solution = npmdask.top_k(path, k, store=folder / "run", **first, **options)
    if problem.way in ("deflate", "resume"):
        judge(found, solution, question)
    if problem.way == "deflate":
        if not solution.converged:
            raise Unasked("deflation goes on from a run that has converged")
        solution = npmdask.deflate(folder / "run", problem.then["more"], store=folder / "more")
    elif problem.way == "resume" and not solution.converged:
        solution = npmdask.resume(folder / "run", max_steps=100)
    judge(found, solution, question)
    shares = np.cumsum(question.values ** (1 if question.kind == "samples" else 2)) / question.total
    if problem.way == "share" and solution.answered:
        wanted = int(np.argmax(shares >= problem.share * (1 - 1e-12))) + 1
        at_the_edge = np.abs(shares - problem.share).min() <= 1e-9
        found.expect(len(solution.values) == wanted or at_the_edge, "components", len(solution.values), "for", wanted)
    if problem.way == "low rank" and solution.answered and problem.k < min(x.shape):
        left, best = question.left_over(np.asarray(solution.basis)), question.values[problem.k]
        allowed = best * (1 + problem.low_rank_tol) + question.slack
        found.expect(left <= allowed, "low rank leaves", left, "where", allowed, "are allowed")
    if solution.explained_share is not None and solution.answered:
        variances = np.asarray(solution.values) ** (1 if question.kind == "samples" else 2)
        found.close("share", solution.explained_share, variances.sum() / question.total, 1e-6, 1.0)
    return found


def triplets(found: Findings, problem: Small, x: np.ndarray) -> None:
    """Every singular value to its own bound, however small; by 50 digits where the matrix is small."""
    result = npmdask.singular_triplets(problem.x, problem.k, seed=problem.first["seed"])
    if min(x.shape) <= 8:
        with mpmath.workdps(50):
            values = sorted((float(v) for v in mpmath.svd_r(mpmath.matrix(x.tolist()), compute_uv=False)), reverse=True)
        truth, known = np.array(values), 0.0
    else:
        truth = np.linalg.svd(x, compute_uv=False)
        known = LAPACK * EPS * truth[0] * np.sqrt(sum(x.shape))
    bound = largest_bound(result.solution.certificate)
    error = float(np.abs(result.values - truth[: problem.k]).max())
    found.answer(bound, error, float(truth[0]))
    if bound is not None:
        known += np.finfo(float).tiny + EPS * truth[0]  # values are float64 numbers
        found.expect(error <= bound + known, "triplets: error of values", error, "for a bound of", bound)
    if result.solution.converged:
        ahead = np.linalg.norm(x @ result.right - result.left * result.values, axis=0)
        back = np.linalg.norm(x.T @ result.left - result.right * result.values, axis=0)
        own = LAPACK * EPS * truth[0] * np.sqrt(sum(x.shape))
        residuals = np.hypot(ahead, back)
        larger = residuals > result.residual_norms * (1 + 1e-6) + own
        found.expect(not larger.any(), "triplets: residuals", residuals, "stated", result.residual_norms)
