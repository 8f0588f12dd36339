"""Predict a non-private run from a spectrum: its steps, its tolerance to noise, and better parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from npmdask.algorithms import REGISTRY as ALGORITHMS
from npmdask.algorithms import GramKrylov
from npmdask.numerics.units import time_text
from npmdask.planning.simulated_convergence import FLOPS, simulate_run
from npmdask.runs.build import default_rank
from npmdask.runs.problem import Problem
from npmdask.theory import best_q, gaussian_norm, init_tan_quantile, npm_max_noise
from npmdask.theory.power import MOST, predict_passes, steps_by_rank

ACCURACY = 0.1  # sine of the largest angle that the noise is judged by: one digit
CANDIDATE_FLOPS = 4e9  # of a rehearsal with columns that are only suggested
NEAR = 0.5  # of the largest fall (in logarithms) near k: a fall that is not smaller is as good
WORTH = 0.9  # other columns are suggested if they take at most this share of the time


@dataclass(frozen=True, kw_only=True)
class StepPrediction:
    """``steps``: at most ``max_steps``. ``reached``: the tolerance is, by then. ``how``: rehearsed, or a formula."""

    steps: int
    reached: bool
    residual: float | None
    how: str


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The predictions that a spectrum allows.

    ``gap_steps``, ``rank_steps``: of the power method by formula, with the gap at k and at the ``best_rank`` q
    (``MOST``: never). ``noise_gap``, ``noise_rank``: stddev on every entry of every product that leaves a sine of
    ``ACCURACY`` by Theorem 2.4 of Hardt and Price, and by Theorem 2.2 of Balcan et al. (constant 1), in units of the
    largest eigenvalue, as ``noise_tol``, the better of both for the tolerance. ``largest``: that eigenvalue.
    ``better_rank``: where the spectrum falls more than at ``target_rank``. ``better_columns``: p of the least time, if
    it is worth saying, and what it takes; with a ``better_rank`` always, and for that rank. ``share``: of the variance,
    if that is asked for: then the search finds ranks and columns. ``no_noise``: why there is no noise to report.
    """

    source: str
    steps: int
    reached: bool
    how: str
    residual: float | None
    gap_steps: int
    rank_steps: int
    best_rank: int
    noise_gap: float
    noise_rank: float
    noise_tol: float
    largest: float
    target_rank: int
    better_rank: int | None
    columns: int
    better_columns: int | None
    better_steps: int | None
    better_seconds: float | None
    share: float | None = None
    no_noise: str = ""

    def lines(self) -> dict[str, str]:
        """Return the lines for people, by name."""
        return {"steps": self._steps_line(), "noise": self._noise_line(), "advice": self._advice()}

    def _steps_line(self) -> str:
        how = {"rehearsed": "simulated on the spectrum", "formed": "the matrix is formed in the first"}
        where = how.get(self.how, "by a formula")
        noisy = f", relative residual {self.residual:.1e} there" if self.residual is not None else ""
        forms = f"{_count(self.gap_steps)} by the gap at k = {self.target_rank} alone, "
        forms += f"{_count(self.rank_steps)} with p = {self.columns} columns (q = {self.best_rank})"
        return f"{self.steps} ({where}{noisy}); formulas for the power method: {forms}"

    def _noise_line(self) -> str:
        if not max(self.noise_gap, self.noise_rank) > 0:
            return self.no_noise
        best = max(self.noise_gap, self.noise_rank)
        return (
            f"tolerance: stddev {best:.1e} x lambda_1 per entry of a product for sin(theta) <= {ACCURACY} "
            f"(gap at k: {self.noise_gap:.1e}, q-dependent: {self.noise_rank:.1e}); {self.noise_tol:.1e} x lambda_1 "
            "for tol"
        )

    def _advice(self) -> str:
        k = self.target_rank
        if self.share is not None:
            return f"target_rank = {self.share:g}: a fraction, for which the search chooses ranks, columns and steps"
        rank = f"target_rank = {k}"
        if self.better_rank is not None:
            rank = f"target_rank = {self.better_rank} (where the spectrum drops most; at {k} it hardly drops)"
        if self.how == "formed":
            return rank
        if self.better_columns is None:
            return f"{rank}; iteration_rank = {self.columns}; max_steps = {self.steps}"
        took = "" if self.better_seconds is None else f", {time_text(self.better_seconds)} in total"
        return f"{rank}; iteration_rank = {self.better_columns}{took}; max_steps = {self.better_steps}"


def predict_steps(
    problem: Problem, eigenvalues: np.ndarray, p: int, *, flops: float = FLOPS, most: int | None = None
) -> StepPrediction:
    """Steps of ``problem`` with ``p`` columns on an operator of these eigenvalues; never above ``most``.

    Where pairs are locked, the eigenvalues begin with theirs.
    """
    rule: Any = problem.rule if most is None else replace(problem.rule, max_steps=most)  # type: ignore[type-var]
    algorithm: Any = replace(problem.algorithm, iteration_rank=p)  # type: ignore[type-var]
    if isinstance(algorithm, GramKrylov):  # whatever the values are
        return StepPrediction(steps=algorithm.usual_steps, reached=True, residual=None, how="formed")
    stddev, locked = problem.mechanism.stddev, locked_values(problem)
    played = getattr(algorithm, "can_be_played", False)
    found = None
    if played:
        found = simulate_run(eigenvalues, algorithm, rule, noise_stddev=stddev, flops=flops, locked=len(locked))
    if found is not None:
        residual = found.residual if stddev else None
        return StepPrediction(steps=found.steps, reached=found.reached, residual=residual, how="rehearsed")
    definite = not (eigenvalues < 0).any()
    others = np.sort(np.abs(eigenvalues))[::-1][len(locked) :]
    formula = "krylov" if algorithm.name == "krylov" else "power"  # others are planned as the power method
    steps = predict_passes(others, algorithm.target_rank, p, rule.tol, formula, definite=definite)
    return StepPrediction(
        steps=min(steps, rule.max_steps), reached=steps <= rule.max_steps, residual=None, how="formula"
    )


def locked_values(problem: Problem) -> np.ndarray:
    """Eigenvalues of the operator that are found and locked (deflation); mostly none."""
    return np.zeros(0) if problem.locked is None else problem.locked.result.values


def look_ahead(
    problem: Problem,
    eigenvalues: np.ndarray,
    source: str,
    *,
    known: int,
    wide: int,
    seconds: Callable[[int | None, int], float | None],
) -> Forecast:
    """Everything that these eigenvalues predict.

    ``known``: how many of them are not made up. ``wide``: the most columns that fit. ``seconds``: of so many steps with
    so many columns.
    """
    k, p = problem.algorithm.target_rank, problem.algorithm.iteration_rank
    predicted = predict_steps(problem, eigenvalues, p)
    sizes = np.sort(np.abs(eigenvalues))[::-1]
    by_rank = steps_by_rank(sizes, k, p, problem.rule.tol)
    asked = problem.request.target_rank
    share = asked if isinstance(asked, float) else None
    better_rank = _gap_near(sizes[:known], k, wide) if share is None else None
    better = _better(problem, eigenvalues, predicted.steps, better_rank, wide, seconds)
    gap, rank, for_tol = _noise(sizes, k, p, problem.d, problem.rule.tol)
    return Forecast(
        source=source,
        steps=predicted.steps,
        reached=predicted.reached,
        how=predicted.how,
        residual=predicted.residual,
        gap_steps=by_rank[0],
        rank_steps=min(by_rank),
        best_rank=k + int(np.argmin(by_rank)),
        noise_gap=gap,
        noise_rank=rank,
        noise_tol=for_tol,
        largest=float(sizes[0]) if len(sizes) else 0.0,
        target_rank=k,
        better_rank=better_rank,
        columns=p,
        better_columns=better[0] if better else None,
        better_steps=better[1] if better else None,
        better_seconds=better[2] if better else None,
        share=share,
        no_noise=_why_no_noise(sizes, k, p),
    )


def _noise(sizes: np.ndarray, k: int, p: int, d: int, tol: float) -> tuple[float, float, float]:
    """Tolerated stddev over the largest eigenvalue: by the gap at k, by the best q, the better of both for ``tol``."""
    if len(sizes) <= p or not sizes[k - 1] > 0:
        return 0.0, 0.0, 0.0
    few, start = sizes[: p + 1] / sizes[0], init_tan_quantile(d, k, p).value

    def of_gap(accuracy: float) -> float:
        allowed = npm_max_noise(few[k - 1], few[k], accuracy, 1 / np.hypot(1, start)).value
        return min(allowed.whole / gaussian_norm(1.0, d, p), allowed.inside / gaussian_norm(1.0, k, p))

    def of_rank(accuracy: float) -> float:
        return best_q(few, k, p, d=d, acc=accuracy, by="noise").constants["noise"]

    return of_gap(ACCURACY), of_rank(ACCURACY), max(of_gap(tol), of_rank(tol))


def _why_no_noise(sizes: np.ndarray, k: int, p: int) -> str:
    """Where :func:`_noise` is 0: what keeps the theorems from speaking."""
    if len(sizes) <= p:
        return "unknown: every direction is iterated, and the theorems need one that is not"
    if not sizes[k - 1] > 0:
        return f"tolerance: none, value {k} of the spectrum is zero"
    return "tolerance: none, the spectrum has no gap from k to p"


def _gap_near(sizes: np.ndarray, k: int, wide: int) -> int | None:
    """A target rank from k / 2 to 2 k at which the spectrum falls most, of at most ``wide``; None if it is (nearly) k
    itself."""
    first, last = max(1, -(-k // 2)), min(2 * k, len(sizes) - 1, wide)
    if not first <= k <= last or not sizes[last] > 0:
        return None
    falls = np.log(sizes[first - 1 : last] / sizes[first : last + 1])
    if falls[k - first] >= NEAR * falls.max():
        return None
    return first + int(falls.argmax())


def _better(
    problem: Problem,
    eigenvalues: np.ndarray,
    steps: int,
    rank: int | None,
    wide: int,
    seconds: Callable[[int | None, int], float | None],
) -> tuple[int, int, float | None] | None:
    """Columns, steps and seconds that are better, if that is worth a change; for another ``rank`` in any case."""
    if rank is None:
        return _better_columns(problem, eigenvalues, steps, wide, seconds)
    p = max(problem.algorithm.iteration_rank, min(default_rank(rank, problem.d), wide))
    algorithm: Any = replace(problem.algorithm, target_rank=rank, iteration_rank=p)  # type: ignore[type-var]
    other = replace(problem, algorithm=algorithm)
    steps = predict_steps(other, eigenvalues, p).steps
    return _better_columns(other, eigenvalues, steps, wide, seconds) or (p, steps, seconds(steps, p))


def _better_columns(
    problem: Problem,
    eigenvalues: np.ndarray,
    steps: int,
    wide: int,
    seconds: Callable[[int | None, int], float | None],
) -> tuple[int, int, float] | None:
    """Columns, steps and seconds of the cheapest run, if that is worth a change."""
    k, p = problem.algorithm.target_rank, problem.algorithm.iteration_rank
    now = seconds(steps, p)
    if now is None or problem.mechanism.stddev:
        return None
    found = []
    for columns in sorted({k, k + 5, k + 10, 2 * k, 3 * k, 4 * k} - {p}):
        if columns <= wide:
            predicted = predict_steps(problem, eigenvalues, columns, flops=CANDIDATE_FLOPS, most=steps)
            took = seconds(predicted.steps, columns)
            if predicted.reached and took is not None:
                found.append((took, columns, predicted.steps))
    took, columns, fewer = min(found, default=(np.inf, p, steps))
    return (columns, fewer, took) if took <= WORTH * now else None


def _count(steps: int) -> str:
    return "never" if steps >= MOST else str(steps)


# How long a run will still take, told from its history; or nothing, where that says too little.

SEEN = 6  # last steps that the rate is taken of
FEWEST = 4
UNLIKE = 3.0  # rates of two halves that differ by more: it is no rate


def steps_to(residuals: Sequence[float], tol: float) -> int | None:
    """Steps until the worst relative residual is ``tol``, if it goes on as in the last steps; None: not known.

    The rates of an earlier and of a later half must agree: a run that stagnates, or has only begun, has none.
    """
    last = np.array(residuals[-SEEN:])
    if len(last) < FEWEST or not tol > 0 or not ((last > 0) & np.isfinite(last)).all():
        return None
    logs, half = np.log(last), len(last) // 2
    slope, early, late = _slope(logs), _slope(logs[: half + 1]), _slope(logs[half:])
    if max(early, late) >= 0 or not 1 / UNLIKE <= early / late <= UNLIKE:
        return None
    return max(0, math.ceil((math.log(tol) - logs[-1]) / slope))


def _slope(logs: np.ndarray) -> float:
    return float(np.polyfit(np.arange(len(logs)), logs, 1)[0])


def seconds_left(spec: dict[str, Any], history: list[dict[str, Any]], telemetry: list[dict[str, Any]]) -> float | None:
    """Of a run with these parameters, from the times of its last passes; None: unknown.

    At most until ``max_steps``. Not for algorithms that do not converge step by step (tensors).
    """
    passes = [t["seconds"] for t in telemetry if t["event"] == "passed" and str(t["label"]).startswith("step ")]
    kind = ALGORITHMS.get(spec["algorithm"].get("name"))
    if not passes or not getattr(kind, "residuals_decrease", False):
        return None
    stop, left = spec["stop"], spec["stop"]["max_steps"] - len(history)
    if stop.get("low_rank_tol"):
        soon = steps_to([step.get("excess", math.inf) for step in history], stop["low_rank_tol"])
        if soon is None:
            return None
        left = min(left, soon)
    elif stop.get("tol"):
        needed = steps_to([step["worst_residual"] for step in history], stop["tol"])
        if needed is None:
            return None
        left = min(left, needed)
    return median(passes[-SEEN:]) * max(left, 0)
