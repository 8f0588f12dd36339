"""What a private run will promise, cost and resolve, said before it starts: from public numbers alone.

No sample is drawn and no pass is timed: a spectrum of the data that decided on rank, steps or clip_norm would be a
look that no budget has paid for. The start block is public, so the noise of its release is known exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np

import npmdask.privacy.ledger.messages as words
from npmdask.accounting import Budget, Charge
from npmdask.algorithms import PrivatePower, Query
from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError, NpmdaskError
from npmdask.execution.memory import MemoryPlan, tree_rss
from npmdask.numerics.random import generator
from npmdask.numerics.spectra import Spectrum
from npmdask.planning.simulated_convergence import rehearse_releases
from npmdask.privacy.concerns import concerns
from npmdask.privacy.dp_pca.registry import NAMES as RECORD_ORACLES
from npmdask.privacy.ledger import Ledger, Run, Status, default_address, open_ledger
from npmdask.privacy.ledger.status import relation_unit, remaining_epsilon
from npmdask.privacy.neighbors import Entry, MatrixRelation
from npmdask.privacy.power_release import PowerRecipe
from npmdask.privacy.tensor_release import NAME as TENSOR_POWER
from npmdask.runs.problem import Problem
from npmdask.runs.session import memory_for, needs_of
from npmdask.runs.solution import Resources
from npmdask.theory.power import likely_sine
from npmdask.theory.private import ppm_error

# The likely error of a private run, and better parameters, by a guessed or given spectrum: public numbers alone.
#
# The noise is that of the product's own calibration, at the public start block. What a run is likely to find is
# simulated. No spectrum of the data is looked at (:func:`npmdask.numerics.spectra.asked_spectrum`).


MEANINGLESS = 0.5  # sine of 30 degrees: a quarter of what a wanted vector explains may be noise
USEFUL = 0.1  # a hundredth of it
BROKEN = 0.1  # of runs: so many may exceed a bound
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)  # releases that are tried: noise grows with their root, few spectra need more
FINALISTS = 3  # of what is tried once, simulated as often as what is asked for
DRAWS = 5  # runs that are simulated
SEED = 0  # of their starts and their noise: a plan says the same every time
MOST_FLOPS, CANDIDATE_FLOPS = 2e9, 2e8  # of a simulated run: of what is asked for, of each of what is tried
WHOLE = 1000  # columns of which all are tried, in one release: the noisy covariance matrix
EPSILONS = (1e-4, 1e4)
HALVINGS = 11  # of eight decades: to half a percent


@dataclass(frozen=True, kw_only=True)
class PrivateForecast:
    """Sines of the largest angle to the wanted vectors that a run would release: ``likely``, and ``bound`` at worst.

    ``bound`` holds but with probability 0.1, of a random start and of the noise together; 1: nothing is promised. Below
    ``meaningless_epsilon`` ``likely`` is above ``MEANINGLESS``, all else as it is; above ``useful_epsilon`` it is below
    ``USEFUL``; None: no epsilon does that with so many releases and columns. ``best_releases``, ``best_columns``: with
    the least likely sine, ``best_sine``, at the epsilon that is asked for.
    """

    spectrum: str
    likely: float
    bound: float
    meaningless_epsilon: float | None
    useful_epsilon: float | None
    best_releases: int
    best_columns: int
    best_sine: float

    def lines(self) -> dict[str, str]:
        """By name, what a person decides by."""
        bound = f"below {self.bound:.2g}" if self.bound < 1 else "nothing"
        sines = f"{self.likely:.2g} likely, {bound} promised in 9 of 10"
        return {
            "predicts": f"sine of the largest angle {sines} ({self.spectrum})",
            "epsilon": self._epsilon_line(),
            "suggest": self._suggestion(),
        }

    def _suggestion(self) -> str:
        if self.best_sine > MEANINGLESS:
            return f"a larger epsilon, or more records: no releases and columns bring the sine below {MEANINGLESS}"
        return (
            f"max_steps = {self.best_releases}, iteration_rank = {self.best_columns}: sine {self.best_sine:.2g} likely"
        )

    def _epsilon_line(self) -> str:
        if self.meaningless_epsilon is None:
            return f"meaningless at any epsilon with these releases and columns (sine above {MEANINGLESS})"
        said = f"meaningless below {self.meaningless_epsilon:.3g} (sine above {MEANINGLESS})"
        if self.useful_epsilon is None:
            return f"{said}; no epsilon brings the sine to {USEFUL} with these releases and columns"
        return f"{said}; {self.useful_epsilon:.3g} brings the sine to {USEFUL}"


def private_outlook(problem: Problem, spectrum: Spectrum) -> PrivateForecast:
    """What the run of ``problem`` would find if its operator had this spectrum.

    Raises
    ------
    BadInputError
        The run is of another algorithm than the private power method; or the scale cannot be known.
    """
    noise, sizes = _Noise(problem), _sizes(problem, spectrum)
    privacy, p = noise.privacy, problem.algorithm.iteration_rank
    k, releases = problem.algorithm.target_rank, noise.recipe.releases

    def likely(epsilon: float, count: int, columns: int, draws: int = DRAWS) -> float:
        return noise.likely(sizes, epsilon, count, columns, draws)

    asked = likely(privacy.epsilon, releases, p)
    tried = sorted((likely(privacy.epsilon, n, c, 1), n, c) for n, c in _candidates(problem, noise.dimension))
    best = min([(asked, releases, p), *((likely(privacy.epsilon, n, c), n, c) for _, n, c in tried[:FINALISTS])])
    return PrivateForecast(
        spectrum=spectrum.said,
        likely=asked,
        bound=noise.bound(sizes, k, p),
        meaningless_epsilon=_least(lambda epsilon: likely(epsilon, releases, p), MEANINGLESS),
        useful_epsilon=_least(lambda epsilon: likely(epsilon, releases, p), USEFUL),
        best_releases=best[1],
        best_columns=best[2],
        best_sine=best[0],
    )


def _candidates(problem: Problem, dimension: int) -> list[tuple[int, int]]:
    """Releases and columns that are tried: up to all columns, where that can be simulated in good time.

    ``dimension``: the larger side of a matrix.
    """
    k, p, matrix = problem.algorithm.target_rank, problem.algorithm.iteration_rank, problem.source.kind == "matrix"
    most = min(problem.source.shape) if matrix else problem.d
    columns = sorted({min(c, most) for c in (k, k + 5, 2 * k, 4 * k, p, most // 2, most) if c >= k})
    counts = [n for n in COUNTS if n % 2 == 0 or not matrix]
    found = [(n, c) for n in counts for c in columns if _flops(dimension, c, n) <= CANDIDATE_FLOPS]
    whole = (counts[0], most)
    return found if dimension > WHOLE or whole in found else [*found, whole]


def _flops(d: int, columns: int, releases: int) -> float:
    """Of a simulated run: mostly a QR of everything that is released."""
    return 6.0 * d * (columns * releases) ** 2


@dataclass(frozen=True, kw_only=True)
class _Level:
    """The stddev of an entry of a release at the public start block, as :class:`PrivatePower` asks for it."""

    mechanism: Any
    block: Any
    plain: float
    image_norm: float | None = None

    @property
    def pure(self) -> bool:
        return bool(self.mechanism.norm == "l1")

    def of(self, image_norm: float) -> float:
        """Where images are clipped to ``image_norm``."""
        return float(replace(self.mechanism, image_norm=image_norm).noise_stddev(self.block))

    def noise_stddev(self, block: Any) -> float:
        return self.plain if self.image_norm is None else self.of(self.image_norm)


class _Noise:
    """The stddev of a release, for other budgets, numbers of releases and columns than those of a problem."""

    def __init__(self, problem: Problem) -> None:
        if not isinstance(problem.recipe, PowerRecipe):
            raise BadInputError(
                f"{problem.algorithm.name} has no prediction from a spectrum: leave --spectrum out, or use the private "
                "power method"
            )
        self.problem, self.recipe = problem, problem.recipe
        self.privacy = problem.recipe.privacy
        alternating = problem.source.kind == "matrix"
        self.rows = problem.source.shape[0] if alternating else problem.d
        self.dimension = max(problem.source.shape) if alternating else problem.d
        self._blocks: dict[int, tuple[Any, Any]] = {}

    def likely(self, sizes: np.ndarray, epsilon: float, releases: int, columns: int, draws: int) -> float:
        """The median sine of ``draws`` runs, simulated with the noise in them on the diagonal matrix of ``sizes``.

        The run's own algorithm, calibration and clipping of images; noise as at the start, as the vectors of data need
        not lie along the axes as those of a diagonal matrix do. The same numbers are drawn for every epsilon. Where a
        run is too large for that, the formula of :func:`likely_sine`, of at most half of the columns: it says where
        the block is, and not how noise turns the answer inside of it, which is all that there is where p = d.
        """
        level = self._level(epsilon, releases, columns)
        d, k = self.dimension, self.problem.algorithm.target_rank
        if level is None or not np.square(sizes[:k]).all():  # so little budget is refused; a value of nothing is lost
            return 1.0
        if _flops(d, columns, releases) > MOST_FLOPS:
            fewer = max(k, min(columns, d // 2))
            return likely_sine(sizes, [level.plain] * releases, d=d, k=k, p=fewer).value
        sines = [self._simulated(sizes, level, releases, columns, number) for number in range(draws)]
        return float(np.median(sines))

    def _level(self, epsilon: float, releases: int, columns: int) -> _Level | None:
        """None where the product would refuse so little budget."""
        try:
            mechanism, block = self._at(columns)
            budget = Budget(epsilon, self.privacy.delta)
            mechanism = replace(mechanism, budget=budget, releases=releases)
            return _Level(mechanism=mechanism, block=block, plain=float(mechanism.noise_stddev(block, rows=self.rows)))
        except NpmdaskError:
            return None

    def _simulated(self, sizes: np.ndarray, level: _Level, releases: int, columns: int, number: int) -> float:
        """The sine of the largest angle to the leading axes."""
        rng = generator(SEED, "simulated", number)
        given: dict[str, Any] = {"iteration_rank": columns, "releases": releases}
        if isinstance(self.problem.algorithm, PrivatePower):
            given["noise"] = level
        algorithm: Any = replace(self.problem.algorithm, **given)  # type: ignore[type-var]

        def noise(shape: tuple[int, int], image_norm: float | None) -> np.ndarray:
            drawn = rng.laplace(0, sqrt(0.5), shape) if level.pure else rng.standard_normal(shape)
            return np.asarray(drawn * (level.plain if image_norm is None else level.of(image_norm)))

        vectors = rehearse_releases(algorithm, sizes, (self.rows, self.problem.d), noise, rng)
        return min(float(np.linalg.norm(vectors[algorithm.target_rank :], 2)), 1.0)

    def stddev(self, epsilon: float, releases: int, columns: int) -> float:
        """In units of the sum that is released; inf where the product would refuse so little budget."""
        level = self._level(epsilon, releases, columns)
        return inf if level is None else level.plain

    def bound(self, sizes: np.ndarray, k: int, p: int) -> float:
        """What 9 of 10 runs stay below, their starts and their noise being random; 1 where the budget is refused.

        Noise that follows the entries of X is taken as loud as it can become, whatever ``coherence`` is promised.
        """
        mechanism, block = self._at(p)
        if isinstance(mechanism.relation, Entry):  # unit vectors: no block has a larger sensitivity
            worst = replace(mechanism.relation, coherence=float(len(block)))
            mechanism, block = replace(mechanism, relation=worst), np.eye(len(block), p)
        try:
            stddev = float(mechanism.noise_stddev(block, rows=self.dimension))
        except NpmdaskError:
            return 1.0
        d, stddevs, name = self.dimension, [stddev] * self.recipe.releases, self.privacy.mechanism
        return ppm_error(sizes, stddevs, d=d, k=k, p=p, fail_prob=BROKEN, mechanism=name).value

    def _at(self, columns: int) -> tuple[Any, Any]:
        if columns not in self._blocks:
            rng = generator(self.problem.request.seed, "start")
            algorithm: Any = replace(self.problem.algorithm, iteration_rank=columns)  # type: ignore[type-var]
            query = algorithm.query(algorithm.init(self.problem.d, rng=rng))
            operator: Any = self.problem.operator(None, None)
            mechanism = self.recipe.mechanism_of(operator, columns, Query(query.block))
            self._blocks[columns] = (mechanism, operator.prepare(query.block))
        return self._blocks[columns]


def _sizes(problem: Problem, spectrum: Spectrum) -> np.ndarray:
    """Sizes of the eigenvalues (of a matrix: singular values) of what is released, a sum; in its units."""
    recipe, source = problem.recipe, problem.source
    assert isinstance(recipe, PowerRecipe)
    values = np.abs(spectrum.values if source.kind == "matrix" else spectrum.eigenvalues(source.kind))
    if spectrum.scaled:
        return np.asarray(values / recipe.scale(source))
    clip = recipe.relation.clip_norm
    if isinstance(recipe.relation, MatrixRelation):  # no entry above clip_norm: the most that all squares add up to
        return np.asarray(values * sqrt(source.shape[0] * source.shape[1] * clip**2 / np.square(values).sum()))
    if not recipe.relation.public_rows:
        raise BadInputError(
            f"{spectrum.said}: the number of records is private, so the scale of their sum is unknown; say it, with "
            ",largest=X, from public knowledge"
        )
    return np.asarray(values * (source.shape[0] * clip**2 / values.sum()))  # no record above clip_norm


def _least(sine: Callable[[float], float], most: float) -> float | None:
    """The least epsilon whose ``sine`` is at most ``most``; None if that of the largest is not."""
    low, high = EPSILONS
    if sine(high) > most:
        return None
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        low, high = (low, middle) if sine(middle) <= most else (middle, high)
    return high


MIB = 2**20
UNASKED = "nothing without a spectrum: guess one (--spectrum power:1) or give a public one (--spectrum FILE)"


@dataclass(frozen=True, kw_only=True)
class Expense:
    """What a run takes of the budget of its data set, in epsilon at the delta of the grant; None without a grant."""

    said: str
    covered: bool
    granted: float | None = None
    spent: float | None = None
    cost: float | None = None
    left: float | None = None  # for one more run after this one


@dataclass(frozen=True, kw_only=True)
class PrivatePlan:
    """A private run that has not started.

    ``noise_stddev``: of every entry of a release, given the start block; ``first_noise_stddev``: of the first one,
    where images of records are clipped too. ``smallest_value``: the norm that the noise of the last release hardly ever
    exceeds, in the units of the values that are released; what is smaller cannot be seen. Oracles of records: both
    are those of images as long as clip_norm allows, an upper bound of the noise; None where even that follows from what
    is released. ``memory``: None where the number of rows, which it follows, is private.
    """

    source: str
    kind: str
    promise: str
    mu: float
    releases: int
    target_rank: int
    iteration_rank: int
    algorithm: str
    first_noise_stddev: float | None
    noise_stddev: float | None
    smallest_value: float | None
    values_are: str
    concerns: tuple[str, ...]  # what makes the promise weak, or the answer noise; see npmdask.privacy.concerns
    expense: Expense
    memory: MemoryPlan | None
    outlook: PrivateForecast | None  # None: no spectrum was given or guessed

    def facts(self) -> dict[str, Any]:
        """Everything as plain numbers and strings, for scripts."""
        peak = {} if self.memory is None else {"memory": asdict(self.memory) | {"peak": self.memory.predicted_peak}}
        return asdict(self) | peak


def plan_private(
    problem: Problem, resources: Resources, store: str | Path | None, spectrum: Spectrum | None = None
) -> PrivatePlan:
    """Put the public numbers together and ask the ledger. Nothing is read of the data, and nothing is written.

    ``spectrum``: given or guessed, never that of the data.

    Raises
    ------
    RefusedError
        The memory limit is too small, as for the run itself.
    """
    parts, algorithm = problem.private, problem.algorithm
    assert parts is not None
    memory = memory_for(needs_of(problem), resources, tree_rss())
    charge = problem.mechanism.charge()  # type: ignore[attr-defined]
    noise = parts.release_noise(problem)
    return PrivatePlan(
        source=problem.source.path,
        kind=problem.source.kind,
        promise=problem.rule.promise,  # type: ignore[attr-defined]
        mu=sqrt(charge.mu_squared),
        releases=parts.releases,
        target_rank=algorithm.target_rank,
        iteration_rank=algorithm.iteration_rank,
        algorithm=algorithm.name,
        first_noise_stddev=noise.first,
        noise_stddev=noise.later,
        smallest_value=noise.smallest,
        values_are=parts.values_are(problem.source),
        concerns=concerns(problem),
        expense=_expense(problem, charge, store),
        memory=memory if parts.relation.public_rows else None,
        outlook=None if spectrum is None else private_outlook(problem, spectrum),
    )


def _expense(problem: Problem, charge: Charge, store: str | Path | None) -> Expense:
    assert problem.private is not None
    privacy = problem.private.privacy
    try:
        ledger = open_ledger(privacy.ledger or default_address())
        status = ledger.status(privacy.name_of(problem.source.path))
    except NpmdaskError as error:
        return Expense(said=str(error), covered=False)
    granted, asked = relation_unit(status.grant.relation), relation_unit(problem.private.relation.spec())
    if granted != asked:
        return Expense(said=words.other_relation(status.dataset, granted, asked), covered=False)
    return _of_budget(status, charge, _reserved(ledger, store))


def _of_budget(status: Status, charge: Charge, reserved: Run | None) -> Expense:
    """``reserved``: the same run, if it has begun: then it is paid for."""
    budget, cost = status.grant.budget, Charge() if reserved else charge
    after = status.spent + cost
    covered, left = after.within(budget), remaining_epsilon(after, budget)
    if not covered:
        said = words.exceeded(status.dataset, budget, status.spent, charge, status.left_epsilon)
    elif reserved:
        said = f"this run is reserved already; {words.left(left)} is left for another"
    else:
        said = f"costs {words.cost(charge, budget)} of {words.amount(budget)}; then {words.left(left)} is left"
    return Expense(
        said=said,
        covered=covered,
        granted=budget.epsilon,
        spent=status.spent_epsilon,
        cost=charge.epsilon_at(budget.delta),
        left=left if covered else status.left_epsilon,
    )


def _reserved(ledger: Ledger, store: str | Path | None) -> Run | None:
    spec = RunStore(store).read_spec() if store is not None else None
    try:
        return ledger.run(spec["release_id"]) if spec and "release_id" in spec else None
    except NpmdaskError:
        return None  # a name that was drawn, and a refusal


def private_lines(plan: PrivatePlan) -> list[str]:
    """One line for every thing that a person decides by."""
    table = {
        "data": f"{plan.source}: kind {plan.kind}; nothing was read of it",
        "promise": plan.promise,
        "releases": _releases_line(plan),
        "noise": _noise_line(plan),
        "signal": _signal_line(plan),
        "columns": _columns_line(plan),
        **({"warning": "; ".join(plan.concerns)} if plan.concerns else {}),
        "budget": plan.expense.said,
        "memory": _memory_line(plan.memory),
    }
    if plan.outlook is not None:
        table |= plan.outlook.lines()
    elif plan.algorithm not in (*RECORD_ORACLES, TENSOR_POWER):
        table["predicts"] = UNASKED
    return [f"{name:9} {said}" for name, said in table.items()]


def _releases_line(plan: PrivatePlan) -> str:
    if plan.algorithm in RECORD_ORACLES:
        return (
            f"{plan.releases} ranges and means at most, a pass over their records each, and no other look at the data"
        )
    if plan.algorithm == TENSOR_POWER:
        return f"{plan.releases} noisy contractions of {plan.iteration_rank} columns, a pass each, and no other look"
    return f"{plan.releases} noisy products, a pass each, and no other look at the data"


def _signal_line(plan: PrivatePlan) -> str:
    if plan.smallest_value is None:
        return "not known before the ranges are released"
    if plan.algorithm in RECORD_ORACLES:
        return f"values below {plan.smallest_value:.3g} drown at worst ({plan.values_are})"
    return f"values below {plan.smallest_value:.3g} drown ({plan.values_are}): the norm of the last noise"


def _columns_line(plan: PrivatePlan) -> str:
    if plan.algorithm in RECORD_ORACLES:
        return f"target_rank = {plan.target_rank}, one direction after the other by {plan.algorithm}"
    if plan.algorithm == TENSOR_POWER:
        return f"target_rank = {plan.target_rank}, restarts = {plan.iteration_rank}"
    return f"target_rank = {plan.target_rank}, iteration_rank = {plan.iteration_rank}"


def _noise_line(plan: PrivatePlan) -> str:
    if plan.noise_stddev is None or plan.first_noise_stddev is None:
        return "follows the ranges that are released before the means"
    if plan.algorithm in RECORD_ORACLES:
        return f"stddev {plan.noise_stddev:.4g} at most on every entry of a mean; mu = {plan.mu:.4g} for the whole run"
    mu = f"; mu = {plan.mu:.4g} for all of them together" if plan.mu else ""
    said = f"stddev {plan.noise_stddev:.4g} on every entry of a product with the (public) start block{mu}"
    if plan.first_noise_stddev > 0.999 * plan.noise_stddev:
        return said
    return f"{said}; {plan.first_noise_stddev:.4g} in the first release, whose images are clipped"


def _memory_line(m: MemoryPlan | None) -> str:
    if m is None:
        return "it fits; how much is not said, as it follows the number of rows, which is private"
    limit = f"of {m.limit / MIB:.0f} MiB" if m.limit else "(no limit set)"
    return f"predicted peak {m.predicted_peak / MIB:.0f} MiB {limit}, {m.threads} threads"
