"""Predict a run from a spectrum by simulating it: its steps, its tolerance to noise, and better parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from npmdask.core.algorithms import REGISTRY as ALGORITHMS
from npmdask.core.algorithms import Algorithm, GramKrylov, Result
from npmdask.core.algorithms.stopping import ResidualRule, StepView, view_of
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, orth
from npmdask.core.numerics.units import attributes, time_text
from npmdask.core.runs.problem import Problem, default_rank
from npmdask.core.runs.stopping_rules import LowRankRule
from npmdask.theory import best_q, gaussian_norm, init_tan_quantile, npm_max_noise
from npmdask.theory.power import MOST, ZERO, predict_passes, steps_by_rank

# Predict the steps of a run by simulating its algorithm and stopping rule on a diagonal matrix.
#
# A Gaussian start looks alike in every orthonormal basis. In that of the eigenvectors the operator is diagonal, so a
# run on the diagonal matrix of its eigenvalues takes as many steps, up to the luck of the start, and costs
# milliseconds. What no closed formula follows (restarts, pairs that are closed, the change of precision, dimensions
# that run out) happens as in the run. A prediction is a promise: the start is an unlucky one, and the residual has to
# fall below ``tol``.


# Measured on 400 random planted problems (decision 37): one typical start and tol itself promise too little in 16 %.
DRAWS, UNLUCKY = 40, 4  # of 40 starts the one that holds fourth least of the wanted vectors: nine of ten hold more
SPARE = 3.0  # tol is divided by it: entries beyond the wanted ones differ from start to start by such a factor
LOW_RANK_SPARE = 1.5  # and low_rank_tol by so much: 4 % promise too little, without it 7 %
MOST_SPARE = 1.5  # that may not cost more than half of the steps: at the floor of rounding it would never end
LEADING = 8  # times p eigenvalues are kept one by one (twice what Krylov holds), and
THINNED = 8  # times p represent all the others, which are far from the wanted ones
FEWEST = 100  # of each, whatever p is
ROUNDING = float(np.finfo(np.float32).eps)  # of a float32 product, over the largest value (1): 0.05 to 3.5 found
TINY = float(np.finfo(np.float64).tiny)
FLOPS = 2e10  # of a rehearsal: two seconds of one slow core


@dataclass(frozen=True, kw_only=True)
class SimulatedSteps:
    """``steps`` that suffice nine times in ten and more; ``reached``: False if the rule gave up before ``tol``.

    ``residual``: the worst relative one at the end of the rehearsal; under noise, where it falls no more, its plateau.
    """

    steps: int
    reached: bool
    residual: float


def simulate_steps(
    eigenvalues: np.ndarray,
    algorithm: Algorithm[Any],
    rule: ResidualRule,
    *,
    noise_stddev: float = 0.0,
    flops: float = FLOPS,
    locked: int = 0,
) -> SimulatedSteps | None:
    """Steps until ``rule`` ends a run of ``algorithm`` on an operator of these ``eigenvalues``; None: too dear.

    Parameters
    ----------
    eigenvalues : of the operator, in any order, with their signs; all d of them, or those that are not negligible.
    algorithm : PowerMethod or BlockKrylov, as the run has it (``target_rank`` k, ``iteration_rank`` p).
    rule : of the run; at most its ``max_steps`` are rehearsed.
    noise_stddev : of Gaussian noise on every entry of a product, in the units of the eigenvalues.
    flops : what it may cost, about; the same for all machines, so that a prediction does not depend on a clock.
    locked : how many leading pairs are known and locked (deflation); ``target_rank`` further ones are wanted.
    """
    if getattr(algorithm, "random_columns", 0):  # of a warm start: what is rehearsed begins at random
        algorithm = replace(algorithm, random_columns=0)  # type: ignore[type-var]
    k, p = algorithm.target_rank, algorithm.iteration_rank
    values = np.asarray(eigenvalues, np.float64)
    values = values[np.argsort(-np.abs(values), kind="stable")]
    rank = int(np.count_nonzero(np.abs(values) > ZERO * np.abs(values).max(initial=0.0)))
    if rank <= p + locked and not noise_stddev:
        return SimulatedSteps(steps=2, reached=True, residual=0.0)  # the second product has seen all that there is
    largest = max(float(np.abs(values[0])), TINY)
    values, counts = thinned(values / largest, p + locked)  # squares of values of any scale stay inside float64
    noise = noise_stddev / largest * np.sqrt(counts)[:, None]
    start, known = unlucky_start(counts[locked:], k, p), _locked(values, locked)
    start = np.concatenate([np.zeros((locked, p)), start])
    state = algorithm.init(len(values), rng=generator(0, "rehearsal"), locked=known, start=start)
    rule = replace(rule, noise_stddev=rule.noise_stddev / largest)
    spare = replace(rule, tol=rule.tol / SPARE)
    if isinstance(spare, LowRankRule):
        spare = replace(spare, low_rank_tol=spare.low_rank_tol / LOW_RANK_SPARE)
    run = play(algorithm, state, values, rule, spare=spare, noise=noise, flops=flops)
    if run is None:
        return None
    worst = float(rule.relative(run.views[-1]).max(initial=0.0))
    return SimulatedSteps(steps=len(run.views), reached=run.converged, residual=worst)


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A run on a diagonal matrix: its last state, its steps, what is left of the ``flops``."""

    state: Any
    views: list[StepView]
    converged: bool
    flops: float


def play(
    algorithm: Algorithm[Any],
    state: Any,
    values: np.ndarray,
    rule: ResidualRule,
    *,
    spare: ResidualRule,
    noise: np.ndarray,
    flops: float,
) -> Simulation | None:
    """Steps on the diagonal matrix of ``values`` until ``rule`` ends them, and then ``spare``; None if too dear.

    ``noise``: stddev of every row of a product.
    """
    wide = algorithm.iteration_rank + state.locked_vectors.shape[1]
    work = algorithm.state_blocks * len(values) * wide * algorithm.iteration_rank * 2  # QR, Ritz vectors and products
    views, outcome, most = list[StepView](), None, rule.max_steps
    while len(views) < most:
        flops -= work
        if flops < 0:
            return None
        state, view = _step(algorithm, state, values, noise)
        if isinstance(rule, LowRankRule):
            view = rule.rehearsed(algorithm, state, view)
        views.append(view)
        if outcome is None:
            outcome = rule(views)
            if outcome is not None:
                most = min(most, view.step if noise.any() else int(MOST_SPARE * view.step))
        if outcome is not None and (spare is rule or spare(views) is not None):
            break
    return Simulation(state=state, views=views, converged=outcome is not None and outcome.answered, flops=flops)


def _locked(values: np.ndarray, count: int) -> Result | None:
    """The first ``count`` pairs of the diagonal matrix, as a finished run would have left them."""
    if not count:
        return None
    vectors = np.eye(len(values), count)
    return Result(
        values=values[:count], vectors=vectors, products=vectors * values[:count], residual_norms=np.zeros(count)
    )


def _step(algorithm: Algorithm[Any], state: Any, values: np.ndarray, noise: np.ndarray) -> tuple[Any, StepView]:
    """A step without data: the product with a diagonal matrix, in the dtype that is asked for, and noise."""
    block, rounded = algorithm.query(state).block, algorithm.query(state).rounded
    product = values[:, None] * block.astype(np.float64)
    # a dense product is rounded relative to the largest eigenvalue, not entry by entry
    if block.dtype == np.float32 or rounded:
        error = generator(0, "rehearsal", "rounding", state.step).standard_normal(block.shape)
        product += ROUNDING / len(values) ** 0.5 * error
    if noise.any():
        product += noise * generator(0, "rehearsal", "noise", state.step).standard_normal(block.shape)
    if rounded:
        product = np.concatenate([product, block], axis=1)
    state, info = algorithm.update(state, product)
    return state, view_of(state.step, info)


def thinned(values: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of falling size, those far behind by few of them, and how many each represents.

    The leading ones are kept. Of the others the largest of every cell is, cells growing in proportion to the index: a
    bulk of a million eigenvalues is smooth, and its largest make no promise that is too short.
    """
    lead, few = max(FEWEST, LEADING * p), max(FEWEST, THINNED * p)
    if len(values) <= lead + few:
        return values, np.ones(len(values))
    edges = np.unique(np.geomspace(lead, len(values), few + 1).round().astype(int))
    counts = np.concatenate([np.ones(lead), np.diff(edges)])
    return values[np.concatenate([np.arange(lead), edges[:-1]])], counts


def unlucky_start(counts: np.ndarray, k: int, p: int) -> Block:
    """An orthonormal start (d x p) that holds less of the k leading coordinates than nine of ten.

    ``counts``: coordinates that each row represents: their sum of squares is that many times as large.
    """
    rng = generator(0, "rehearsal", "start")
    leading = [rng.standard_normal((k, p)) for _ in range(DRAWS)]
    held = [np.linalg.eigvalsh(block @ block.T)[0] for block in leading]  # the least singular value, squared
    chosen = leading[int(np.argsort(held)[UNLUCKY - 1])]
    others = rng.standard_normal((len(counts) - k, p)) * np.sqrt(counts[k:, None])
    return orth(np.concatenate([chosen, others]), rng)


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
            f"tolerance: stddev {best:.1e} x lambda_1 per entry of a product for sin(theta) <= {ACCURACY} (gap at k: "
            f"{self.noise_gap:.1e}, q-dependent: {self.noise_rank:.1e}); {self.noise_tol:.1e} x lambda_1 for tol"
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
        found = simulate_steps(eigenvalues, algorithm, rule, noise_stddev=stddev, flops=flops, locked=len(locked))
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
    better_rank = _rank_at_gap(sizes[:known], k, wide) if share is None else None
    better = _better_choice(problem, eigenvalues, predicted.steps, better_rank, wide, seconds)
    gap, rank, for_tol = _noise(sizes, k, p, problem.d, problem.rule.tol)
    return Forecast(
        source=source,
        **attributes(predicted, "steps", "reached", "how", "residual"),
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
    """Explain why :func:`_noise` is 0: what keeps the theorems from speaking."""
    if len(sizes) <= p:
        return "unknown: every direction is iterated, and the theorems need one that is not"
    if not sizes[k - 1] > 0:
        return f"tolerance: none, value {k} of the spectrum is zero"
    return "tolerance: none, the spectrum has no gap from k to p"


def _rank_at_gap(sizes: np.ndarray, k: int, wide: int) -> int | None:
    """A target rank from k / 2 to 2 k at which the spectrum falls most, of at most ``wide``; None if it is (nearly) k
    itself."""
    first, last = max(1, -(-k // 2)), min(2 * k, len(sizes) - 1, wide)
    if not first <= k <= last or not sizes[last] > 0:
        return None
    falls = np.log(sizes[first - 1 : last] / sizes[first : last + 1])
    if falls[k - first] >= NEAR * falls.max():
        return None
    return first + int(falls.argmax())


def _better_choice(
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
FEWEST_SEEN = 4
UNLIKE = 3.0  # rates of two halves that differ by more: it is no rate


def steps_to(residuals: Sequence[float], tol: float) -> int | None:
    """Steps until the worst relative residual is ``tol``, if it goes on as in the last steps; None: not known.

    The rates of an earlier and of a later half must agree: a run that stagnates, or has only begun, has none.
    """
    last = np.array(residuals[-SEEN:])
    if len(last) < FEWEST_SEEN or not tol > 0 or not ((last > 0) & np.isfinite(last)).all():
        return None
    logs, half = np.log(last), len(last) // 2
    slope, early, late = _slope(logs), _slope(logs[: half + 1]), _slope(logs[half:])
    if max(early, late) >= 0 or not 1 / UNLIKE <= early / late <= UNLIKE:
        return None
    return max(0, math.ceil((math.log(tol) - logs[-1]) / slope))


def _slope(logs: np.ndarray) -> float:
    return float(np.polyfit(np.arange(len(logs)), logs, 1)[0])


def seconds_left(spec: dict[str, Any], history: list[dict[str, Any]], telemetry: list[dict[str, Any]]) -> float | None:
    """Estimate the seconds left of a run with these parameters from the times of its last passes; None: unknown.

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
