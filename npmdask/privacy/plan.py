"""Plan a private run before it starts, from public numbers alone: its guarantee, cost, noise floor and likely error.

No sample is drawn and no pass is timed: a spectrum of the data that decided on rank, steps or clip_norm would be a
look that no budget has paid for. The start block is public, so the noise of its release is known exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import inf, log, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npmdask.accounting import Budget, Charge
from npmdask.core import features
from npmdask.core.algorithms import Query
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.execution.memory import MemoryPlan
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.spectra import Spectrum, read_spectrum
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.core.runs.automatic import held_run
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Problem, Request, Start
from npmdask.core.runs.resources import Resources, memory_for, needs_of
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, NpmdaskError
from npmdask.privacy.concerns import concerns
from npmdask.privacy.matrix_release import COVARIANCE, CovarianceRecipe, MatrixRecipe, PowerRecipe
from npmdask.privacy.neighbors import Entry, MatrixRelation
from npmdask.privacy.private_power import PrivatePower, begun_options
from npmdask.privacy.tensor_release import TENSOR_POWER
from npmdask.theory.noisy_symmetric import noise_norm
from npmdask.theory.power import likely_sine
from npmdask.theory.private import ppm_error

if TYPE_CHECKING:
    from npmdask.ledger import Ledger, Run, Status

MIB = 2**20
UNASKED = "none without a spectrum: guess one (--spectrum power:1) or give a public one (--spectrum FILE)"


@dataclass(frozen=True, kw_only=True)
class Expense:
    """Cost of a run to the budget of its data set, in epsilon at the delta of the grant; None without a grant."""

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
    ways: tuple[Way, ...] = ()  # that this question can be answered in, the one that is taken by itself first

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
    memory = memory_for(needs_of(problem), resources)
    charge = problem.mechanism.charge()  # type: ignore[attr-defined]
    noise = parts.release_noise(problem)
    return PrivatePlan(
        source=problem.source.path,
        kind=problem.source.kind,
        promise=problem.rule.promise,  # type: ignore[attr-defined]
        mu=sqrt(charge.mu_squared),
        releases=parts.releases,
        **attributes(algorithm, "target_rank", "iteration_rank"),
        algorithm=algorithm.name,
        first_noise_stddev=noise.first,
        noise_stddev=noise.later,
        smallest_value=noise.smallest,
        values_are=parts.values_are(problem.source),
        concerns=concerns(problem),
        expense=_expense(problem, charge, store),
        memory=memory if parts.relation.public_rows else None,
        outlook=None if spectrum is None else private_outlook(problem, spectrum),
        ways=ways_of(problem, resources.memory, spectrum) if isinstance(parts, MatrixRecipe) else (),
    )


def _expense(problem: Problem, charge: Charge, store: str | Path | None) -> Expense:
    import npmdask.ledger.messages as words  # SQLAlchemy: a tenth of a second that no other plan needs
    from npmdask.ledger import default_address, open_ledger
    from npmdask.ledger.ledger import relation_unit

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
    import npmdask.ledger.messages as words
    from npmdask.ledger.ledger import askable_epsilon, remaining_epsilon

    budget, cost = status.grant.budget, Charge() if reserved else charge
    after = status.spent + cost
    covered, left = after.within(budget), remaining_epsilon(after, budget)
    if not covered:
        said = words.exceeded(status.dataset, budget, status.spent, charge, status.askable_epsilon)
    elif reserved:
        said = f"this run is already reserved; {words.left(askable_epsilon(after, budget))} is left for others"
    else:
        then = words.left(askable_epsilon(after, budget))
        said = f"costs {words.cost(charge, budget)} of {words.amount(budget)}, which leaves {then}"
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
    """Return the plan as lines for people."""
    table = {
        "data": f"{plan.source}: kind {plan.kind}; the data were not read",
        "promise": plan.promise,
        "releases": _releases_line(plan),
        "noise": _noise_line(plan),
        "signal": _signal_line(plan),
        "columns": _columns_line(plan),
        **({"warning": "; ".join(plan.concerns)} if plan.concerns else {}),
        "budget": plan.expense.said,
        "memory": _memory_line(plan.memory),
    }
    if plan.ways:
        table["options"] = "; ".join(map(str, plan.ways))
    if plan.outlook is not None:
        table |= plan.outlook.lines()
    elif not _of_records(plan) and plan.algorithm != TENSOR_POWER:
        table["forecast"] = UNASKED
    return [f"{name:9} {said}" for name, said in table.items()]


def _of_records(plan: PrivatePlan) -> bool:
    """Say whether images of single records are released: then options alone say how many."""
    return getattr(features.found("algorithms", plan.algorithm), "counts_steps", False)


def _releases_line(plan: PrivatePlan) -> str:
    if _of_records(plan):
        return f"at most {plan.releases} ranges and means, one pass over their records each; nothing else uses the data"
    if plan.algorithm == TENSOR_POWER:
        return (
            f"{plan.releases} noisy contractions of {plan.iteration_rank} columns, one pass each; nothing else uses "
            "the data"
        )
    if plan.algorithm == COVARIANCE:
        return "1 noisy covariance matrix, in one pass; nothing else uses the data"
    return f"{plan.releases} noisy products, one pass each; nothing else uses the data"


def _signal_line(plan: PrivatePlan) -> str:
    if plan.smallest_value is None:
        return "unknown before the ranges are released"
    if _of_records(plan):
        return f"noise floor at most {plan.smallest_value:.3g}: smaller values cannot be recovered ({plan.values_are})"
    which = "the noise" if plan.algorithm == COVARIANCE else "the last noise"
    floor = f"noise floor {plan.smallest_value:.3g}, the norm of {which}"
    return f"{floor}: smaller values cannot be recovered ({plan.values_are})"


def _columns_line(plan: PrivatePlan) -> str:
    if _of_records(plan):
        return f"target_rank = {plan.target_rank}, one direction after the other by {plan.algorithm}"
    if plan.algorithm == TENSOR_POWER:
        return f"target_rank = {plan.target_rank}, restarts = {plan.iteration_rank}"
    if plan.algorithm == COVARIANCE:
        return f"target_rank = {plan.target_rank}; the same release also serves any other number of components"
    return f"target_rank = {plan.target_rank}, iteration_rank = {plan.iteration_rank}"


def _noise_line(plan: PrivatePlan) -> str:
    if plan.noise_stddev is None or plan.first_noise_stddev is None:
        return "depends on the ranges that are released before the means"
    if _of_records(plan):
        return f"stddev at most {plan.noise_stddev:.4g} on every entry of a mean; mu = {plan.mu:.4g} for the whole run"
    if plan.algorithm == COVARIANCE:
        return (
            f"stddev {plan.noise_stddev:.4g} on the diagonal, {plan.noise_stddev / sqrt(2):.4g} off it, the same on "
            f"both sides; mu = {plan.mu:.4g}"
        )
    mu = f"; mu = {plan.mu:.4g} for all products together" if plan.mu else ""
    said = f"stddev {plan.noise_stddev:.4g} on every entry of a product with the (public) start block{mu}"
    if plan.first_noise_stddev > 0.999 * plan.noise_stddev:
        return said
    return f"{said}; {plan.first_noise_stddev:.4g} in the first release, whose images are clipped"


def _memory_line(m: MemoryPlan | None) -> str:
    if m is None:
        return "it fits; the amount is not shown, because it depends on the number of rows, which is private"
    limit = f"of {m.limit / MIB:.0f} MiB" if m.limit else "(no limit set)"
    return f"predicted peak {m.predicted_peak / MIB:.0f} MiB {limit}, {m.threads} threads"


# The likely error of a private run, better parameters and the method to take: from public numbers alone.
#
# The noise is that of the product's own calibration, at the public start block. What a run is likely to find is
# simulated. No spectrum of the data is looked at (:func:`npmdask.core.numerics.spectra.asked_spectrum`).


MEANINGLESS = 0.5  # sine of 30 degrees: a quarter of what a wanted vector explains may be noise
USEFUL = 0.1  # a hundredth of it
BROKEN = 0.1  # of runs: so many may exceed a bound
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)  # releases that are tried: noise grows with their root, few spectra need more
FINALISTS = 3  # of what is tried once, simulated as often as what is asked for
DRAWS = 5  # runs that are simulated
SEED = 0  # of their starts and their noise: a plan says the same every time
MOST_FLOPS, CANDIDATE_FLOPS = 2e9, 2e8  # of a simulated run: of what is asked for, of each of what is tried
WHOLE = 1000  # columns of which all are tried, in one release, where no covariance is offered
SIDE = 600  # of a covariance that is simulated: beyond, the noise is scaled to have the same norm
DRAWN, MOST_DRAWN = 2000, 4_000_000  # records, for what clipping their images takes from a product; numbers in them
TINY = 1e-12
EPSILONS = (1e-4, 1e4)
HALVINGS = 11  # of eight decades: to half a percent


@dataclass(frozen=True, kw_only=True)
class PrivateForecast:
    """Sines of the largest angle to the wanted vectors that a run would release: ``likely``, and ``bound`` at worst.

    ``bound`` holds but with probability 0.1, of a random start and of the noise together; 1: nothing is promised. Below
    ``meaningless_epsilon`` ``likely`` is above ``MEANINGLESS``, all else as it is; above ``useful_epsilon`` it is below
    ``USEFUL``; None: no epsilon does that with so many releases and columns. ``best_releases``, ``best_columns``: with
    the least likely sine, ``best_sine``, at the epsilon that is asked for, by ``best_algorithm``.
    """

    spectrum: str
    likely: float
    bound: float
    meaningless_epsilon: float | None
    useful_epsilon: float | None
    best_releases: int
    best_columns: int
    best_sine: float
    best_algorithm: str

    def lines(self) -> dict[str, str]:
        """Return the lines for people, by name."""
        bound = f"below {self.bound:.2g}" if self.bound < 1 else "nothing"
        sines = f"{self.likely:.2g} likely, {bound} guaranteed in 9 of 10 runs"
        return {
            "forecast": f"sine of the largest angle {sines} ({self.spectrum})",
            "epsilon": self._epsilon_line(),
            "advice": self._suggestion(),
        }

    def _suggestion(self) -> str:
        if self.best_sine > MEANINGLESS:
            return (
                "a larger epsilon, or more records: no choice of releases and columns brings the sine below "
                f"{MEANINGLESS}"
            )
        if self.best_algorithm == COVARIANCE:
            return f'algorithm = "covariance": sine {self.best_sine:.2g} likely'
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
    """Predict what the run of ``problem`` would find if its operator had this spectrum.

    Raises
    ------
    BadInputError
        The run is of another algorithm than the private power method or the covariance; or the scale cannot be known.
    """
    if not isinstance(problem.recipe, MatrixRecipe):
        raise BadInputError(
            f"{problem.algorithm.name} has no prediction from a spectrum: leave --spectrum out, or use the covariance "
            "or the private power method"
        )
    sizes, k = sizes_of(problem, spectrum), problem.algorithm.target_rank
    power, whole = both_of(problem)
    methods: dict[str, Any] = {POWER: PowerNoise(power)} | ({} if whole is None else {COVARIANCE: WholeNoise(whole)})
    here = COVARIANCE if isinstance(problem.recipe, CovarianceRecipe) else POWER
    asked = (here, problem.recipe.releases, problem.algorithm.iteration_rank)

    def likely(way: tuple[str, int, int], epsilon: float, draws: int = DRAWS) -> float:
        return float(methods[way[0]].likely(sizes, epsilon, way[1], way[2], draws))

    epsilon = problem.recipe.privacy.epsilon
    tried = sorted((likely(way, epsilon, 1), way) for way in _candidates(power, methods[POWER].dimension, whole))
    finalists = [asked, *(way for _, way in tried[:FINALISTS])]
    best_sine, best = min((likely(way, epsilon), way) for way in finalists)
    return PrivateForecast(
        spectrum=spectrum.said,
        likely=likely(asked, epsilon),
        bound=methods[here].bound(sizes, k, asked[2]),
        meaningless_epsilon=_least(lambda other: likely(asked, other), MEANINGLESS),
        useful_epsilon=_least(lambda other: likely(asked, other), USEFUL),
        best_releases=best[1],
        best_columns=best[2],
        best_sine=best_sine,
        best_algorithm=best[0],
    )


POWER = "power"
FEW = 4  # releases of a power method that only says how loud others would be


def both_of(problem: Problem) -> tuple[Problem, Problem | None]:
    """The same question by the private power method and by a covariance; None where that is not offered."""
    request, source = problem.request, problem.source
    power, whole = problem, problem
    if isinstance(problem.recipe, CovarianceRecipe):
        power = make_problem(source, replace(request, algorithm=POWER, max_steps=FEW))
    else:
        asked = replace(request, algorithm=COVARIANCE, max_steps=None, iteration_rank=None, options=None)
        try:
            whole = make_problem(source, asked)
        except NpmdaskError:
            return power, None
    return power, whole


def _candidates(problem: Problem, dimension: int, whole: Problem | None) -> list[tuple[str, int, int]]:
    """List what to try: the covariance, or where there is none all columns in one release, and blocks of some columns.

    ``problem``: of the power method. ``dimension``: the larger side of a matrix.
    """
    k, p, matrix = problem.algorithm.target_rank, problem.algorithm.iteration_rank, problem.source.kind == "matrix"
    most = min(problem.source.shape) if matrix else problem.d
    tried = (k, k + 5, 2 * k, 4 * k, p, most // 2, *([most] if whole is None else []))
    columns = sorted({min(c, most) for c in tried if c >= k})
    counts = [n for n in COUNTS if n % 2 == 0 or not matrix]
    found = [(POWER, n, c) for n in counts for c in columns if _flops(dimension, c, n) <= CANDIDATE_FLOPS]
    if whole is not None:
        return [(COVARIANCE, 1, most), *found]
    last = (POWER, counts[0], most)
    return found if dimension > WHOLE or last in found else [*found, last]


def _flops(d: int, columns: int, releases: int) -> float:
    """Estimate the operations of a simulated run: mostly a QR of everything that is released."""
    return 6.0 * d * (columns * releases) ** 2


@dataclass(frozen=True, kw_only=True)
class _Stddev:
    """The stddev of an entry of a release at the public start block, as :class:`PrivatePower` asks for it."""

    mechanism: Any
    block: Any
    plain: float
    image_norm: float | None = None

    @property
    def pure(self) -> bool:
        return bool(self.mechanism.norm == "l1")

    def of(self, image_norm: float) -> float:
        """Return the stddev where images are clipped to ``image_norm``."""
        return float(replace(self.mechanism, image_norm=image_norm).noise_stddev(self.block))

    def noise_stddev(self, block: Any) -> float:
        return self.plain if self.image_norm is None else self.of(self.image_norm)


class PowerNoise:
    """The stddev of a release, for other budgets, numbers of releases and columns than those of a problem."""

    def __init__(self, problem: Problem) -> None:
        assert isinstance(problem.recipe, PowerRecipe)
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
        sines = [_sine(self.vectors(sizes, level, releases, columns, number), k) for number in range(draws)]
        return float(np.median(sines))

    def captured(self, sizes: np.ndarray, epsilon: float, releases: int, columns: int, draws: int) -> float:
        """The mean share of what the best k vectors capture of all that the operator's squares or values add up to.

        Where a run is too large to be simulated, what a sine leaves.
        """
        level = self._level(epsilon, releases, columns)
        if level is None:
            return 0.0
        if _flops(self.dimension, columns, releases) > MOST_FLOPS:
            return 1 - self.likely(sizes, epsilon, releases, columns, draws) ** 2
        weights = np.square(sizes) if self.problem.source.kind == "matrix" else np.abs(sizes)
        k = self.problem.algorithm.target_rank
        found = [_share(self.vectors(sizes, level, releases, columns, number), weights, k) for number in range(draws)]
        return float(np.mean(found))

    def _level(self, epsilon: float, releases: int, columns: int) -> _Stddev | None:
        """None where the product would refuse so little budget."""
        try:
            mechanism, block = self._block_mechanism(columns)
            budget = Budget(epsilon, self.privacy.delta)
            mechanism = replace(mechanism, budget=budget, releases=releases)
            return _Stddev(mechanism=mechanism, block=block, plain=float(mechanism.noise_stddev(block, rows=self.rows)))
        except NpmdaskError:
            return None

    def vectors(self, sizes: np.ndarray, level: _Stddev, releases: int, columns: int, number: int) -> Block:
        """Simulate a run on the diagonal matrix of ``sizes``, with noise in every product, and return what it finds."""
        rng = generator(SEED, "simulated", number)
        given: dict[str, Any] = {"iteration_rank": columns, "releases": releases}
        if isinstance(self.problem.algorithm, PrivatePower):
            given["noise"] = level
        algorithm: Any = replace(self.problem.algorithm, **given)  # type: ignore[type-var]

        def noise(shape: tuple[int, int], image_norm: float | None) -> np.ndarray:
            drawn = rng.laplace(0, sqrt(0.5), shape) if level.pure else rng.standard_normal(shape)
            return np.asarray(drawn * (level.plain if image_norm is None else level.of(image_norm)))

        lost, d = self._clipping_loss(sizes, number), self.problem.d
        state = algorithm.init(d, rng=rng)
        for _ in range(releases):
            query = algorithm.query(state)
            product = np.zeros((d if query.transposed else self.rows, query.block.shape[1]))
            product[: len(sizes)] = sizes[:, None] * query.block[: len(sizes)]
            if lost is not None and query.image_norm is not None:
                product -= lost(query.block, query.image_norm)
            state, _ = algorithm.update(state, product + noise(product.shape, query.image_norm))
        return algorithm.finalize(state).vectors

    def _clipping_loss(self, sizes: np.ndarray, number: int) -> Callable[[Block, float], np.ndarray] | None:
        """Return what clipping images takes from a product: of normal records of these variances, as long as clip_norm.

        Without it the power method looks better than it is, by up to 0.13 of the captured share (decision 46).
        """
        clip, total = self.recipe.relation.clip_norm, float(sizes.sum())
        if isinstance(self.recipe.relation, MatrixRelation) or not total:
            return None
        drawn, held = min(DRAWN, max(MOST_DRAWN // self.dimension, 1)), list[np.ndarray]()
        weight = total / (clip**2 * drawn)  # of one of them: as many records as all add up to

        def lost(block: Block, image_norm: float) -> np.ndarray:
            if not held:
                found = generator(SEED, "simulated", "records", number).standard_normal((drawn, self.dimension))
                found *= np.sqrt(np.pad(sizes, (0, self.dimension - len(sizes))))
                held.append(found * (clip / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), clip * TINY)))
            records, images = held[0], held[0] @ block
            norms = np.linalg.norm(images, axis=1)
            over = 1 - np.divide(image_norm, norms, out=np.ones(len(norms)), where=norms > image_norm)
            return np.asarray(weight * records.T @ (images * over[:, None]))

        return lost

    def stddev(self, epsilon: float, releases: int, columns: int) -> float:
        """In units of the sum that is released; inf where the product would refuse so little budget."""
        level = self._level(epsilon, releases, columns)
        return inf if level is None else level.plain

    def bound(self, sizes: np.ndarray, k: int, p: int) -> float:
        """Bound the error of 9 of 10 runs, their starts and noise being random; 1 where the budget is refused.

        Noise that follows the entries of X is taken as loud as it can become, whatever ``coherence`` is promised.
        """
        mechanism, block = self._block_mechanism(p)
        if isinstance(mechanism.relation, Entry):  # unit vectors: no block has a larger sensitivity
            worst = replace(mechanism.relation, coherence=float(len(block)))
            mechanism, block = replace(mechanism, relation=worst), np.eye(len(block), p)
        try:
            stddev = float(mechanism.noise_stddev(block, rows=self.dimension))
        except NpmdaskError:
            return 1.0
        d, stddevs, name = self.dimension, [stddev] * self.recipe.releases, self.privacy.mechanism
        return ppm_error(sizes, stddevs, d=d, k=k, p=p, fail_prob=BROKEN, mechanism=name).value

    def _block_mechanism(self, columns: int) -> tuple[Any, Any]:
        if columns not in self._blocks:
            rng = generator(self.problem.request.seed, "start")
            algorithm: Any = replace(self.problem.algorithm, iteration_rank=columns)  # type: ignore[type-var]
            query = algorithm.query(algorithm.init(self.problem.d, rng=rng))
            operator: Any = self.problem.operator()
            mechanism = self.recipe.mechanism_of(operator, columns, Query(query.block))
            self._blocks[columns] = (mechanism, operator.prepare(query.block))
        return self._blocks[columns]


class WholeNoise:
    """The same of a covariance that is released once, of all columns, for other budgets."""

    def __init__(self, problem: Problem) -> None:
        assert isinstance(problem.recipe, CovarianceRecipe)
        self.problem, self.d, self.k = problem, problem.d, problem.algorithm.target_rank

    def stddev(self, epsilon: float) -> float:
        """Off the diagonal, in units of the sum that is released; inf where the product would refuse the budget."""
        mechanism: Any = self.problem.mechanism
        try:
            other = replace(mechanism, budget=Budget(epsilon, mechanism.budget.delta))
            return float(other.off_diagonal_stddev(np.zeros((self.d, 0))))
        except NpmdaskError:
            return inf

    def likely(self, sizes: np.ndarray, epsilon: float, releases: int, columns: int, draws: int) -> float:
        """The median sine of ``draws`` releases, simulated on the diagonal matrix of ``sizes``."""
        if self.stddev(epsilon) == inf or not np.square(sizes[: self.k]).all():
            return 1.0
        return float(np.median([_sine(self.vectors(sizes, epsilon, number), self.k) for number in range(draws)]))

    def captured(self, sizes: np.ndarray, epsilon: float, releases: int, columns: int, draws: int) -> float:
        """The mean share that they capture of what the best k vectors do."""
        if self.stddev(epsilon) == inf:
            return 0.0
        weights = np.abs(sizes)
        return float(
            np.mean([_share(self.vectors(sizes, epsilon, number), weights, self.k) for number in range(draws)])
        )

    def vectors(self, sizes: np.ndarray, epsilon: float, number: int) -> Block:
        """Simulate a release and return the vectors that it shows.

        Of many columns the first are simulated, with noise of the same norm: how far it turns the leading vectors
        follows from that alone (Baik, Ben Arous and Peche 2005).
        """
        side = min(self.d, max(SIDE, 2 * self.k))
        drawn = generator(SEED, "simulated", "covariance", number).standard_normal((side, side))
        noise = self.stddev(epsilon) * sqrt(self.d / side) * (drawn + drawn.T) / sqrt(2)
        diagonal = np.zeros(side)
        diagonal[: len(sizes)] = sizes[:side]
        _, vectors = np.linalg.eigh(np.diag(diagonal) + noise)
        return vectors[:, ::-1][:, : self.k]

    def bound(self, sizes: np.ndarray, k: int, p: int) -> float:
        """Bound the error of 9 of 10 releases; 1 where the budget is refused.

        ||Z|| / (gap - ||Z||) (Davis and Kahan 1970), and ||Z|| is at most 2 sigma sqrt(d) + sqrt(2) sigma t, but with
        probability 2 exp(-t^2 / 2) (the mean by Gordon's comparison, then concentration: Davidson and Szarek 2001).
        """
        stddev = self.stddev(self.problem.recipe.privacy.epsilon)  # type: ignore[union-attr]
        padded = np.pad(sizes, (0, max(0, k + 1 - len(sizes))))
        norm = noise_norm(stddev, self.d) + sqrt(2) * stddev * sqrt(2 * log(2 / BROKEN))
        gap = float(padded[k - 1] - padded[k]) if k < self.d else inf
        return 1.0 if gap <= 2 * norm else min(norm / (gap - norm), 1.0)


def _sine(vectors: Block, k: int) -> float:
    """Compute the sine of the largest angle to the k leading axes."""
    return min(float(np.linalg.norm(vectors[k:], 2)), 1.0)


def _share(vectors: Block, weights: np.ndarray, k: int) -> float:
    """Compute the share of the ``weights`` of the axes that orthonormal vectors capture, over the most that k can."""
    most = float(np.sort(weights)[::-1][:k].sum())
    length = min(len(weights), len(vectors))
    return float(weights[:length] @ np.sum(vectors[:length] ** 2, axis=1)) / most if most else 1.0


def sizes_of(problem: Problem, spectrum: Spectrum, rows: int | None = None) -> np.ndarray:
    """Sizes of the eigenvalues (of a matrix: singular values) of what is released, a sum; in its units.

    ``rows``: how many records to think of, where their number is private.
    """
    recipe, source = problem.recipe, problem.source
    assert isinstance(recipe, MatrixRecipe)
    values = np.abs(spectrum.eigenvalues(singular=source.traits.sparse))  # those of a matrix as they are
    if spectrum.scaled:
        return np.asarray(values / recipe.scale(source))
    clip = recipe.relation.clip_norm
    if isinstance(recipe.relation, MatrixRelation):  # no entry above clip_norm: the most that all squares add up to
        return np.asarray(values * sqrt(source.shape[0] * source.shape[1] * clip**2 / np.square(values).sum()))
    if rows is None:
        if not recipe.relation.public_rows:
            raise BadInputError(
                f"{spectrum.said}: the number of records is private, so the scale of their sum is unknown; give it "
                "from public knowledge with ,largest=X"
            )
        rows = source.shape[0]
    return np.asarray(values * (rows * clip**2 / values.sum()))  # no record above clip_norm


def _least(sine: Callable[[float], float], most: float) -> float | None:
    """The least epsilon whose ``sine`` is at most ``most``; None if that of the largest is not."""
    low, high = EPSILONS
    if sine(high) > most:
        return None
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        low, high = (low, middle) if sine(middle) <= most else (middle, high)
    return high


# Which private method a run takes that names none: the one that is predicted to capture more, by public numbers.
#
# The covariance shows every direction at once, with noise as if each were asked alone; the power method looks at p of
# them, several times, and pays for each look. Which is better depends on d, k, the noise and the spectrum. The spectrum
# is not public, and the others are: the prediction is the mean over three kinds of spectra, which span what is common,
#
#     1/i        power laws: images, counts, text
#     0.8^i      a fast decay: smooth fields, spectra, physical models
#     k spikes   k equal values over a bulk of at most a tenth of them: groups, sparse factors, signal and noise
#
# each with as much variance as records of norm ``clip_norm`` can have; where the number of records is private the mean
# over four sizes of data, as it may not decide. Each is simulated with the noise in it, with fixed seeds: the same
# public numbers choose the same way. A spectrum for which the choice is wrong costs captured variance, and no privacy:
# both ways are private for all data. The choice becomes part of the run.

RELEASES = (2, 3, 4, 6, 8)  # that are tried; with a matrix and its transpose in turn the even ones
RECORDS = (10**3, 10**4, 10**5, 10**6)  # to think of, where their number is private
FAMILY = ("power:1", "exponential:0.8", "spiked:{k},10")
BETTER = 0.005  # of the captured share, by which the power method must be ahead: it takes more passes, and keeps less
WIDEST = 2048  # columns of a covariance that is chosen: beyond, its eigenvectors take minutes
HELD = 64  # d x d arrays of float64 that a run of it holds at most, at any number of records
BESIDE = 400 * 2**20  # bytes of the program and its buffers
MANY = 300  # columns from which one simulated run is like the next: of fewer, DRAWS are simulated


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to the answer: ``captured`` is the share of what the best k vectors capture, as predicted."""

    algorithm: str
    releases: int
    iteration_rank: int
    captured: float

    def __str__(self) -> str:
        how = "1 pass" if self.algorithm == COVARIANCE else f"{self.releases} passes of {self.iteration_rank} columns"
        return f"{self.algorithm}: {how}, captures {100 * self.captured:.1f} % of the best"


def ways_of(problem: Problem, memory: int | None, spectrum: Spectrum | None = None) -> tuple[Way, ...]:
    """The covariance, where it is offered and fits, and the best power method; the one to be taken first.

    Parameters
    ----------
    problem : of either. memory : the limit of the run, bytes. spectrum : public, instead of the family.
    """
    power, whole = both_of(problem)
    sizes = _sizes(power, spectrum)
    epsilon, p = power.recipe.privacy.epsilon, power.algorithm.iteration_rank  # type: ignore[union-attr]

    draws = 1 if power.d >= MANY else DRAWS

    def captured(method: Any, releases: int, columns: int) -> float:
        with single_threaded_blas():  # small matrices
            return float(np.mean([method.captured(each, epsilon, releases, columns, draws) for each in sizes]))

    by_power = PowerNoise(power)
    counts = [n for n in RELEASES if n % 2 == 0 or power.source.kind != "matrix"]
    found = [Way(algorithm=POWER, releases=n, iteration_rank=p, captured=captured(by_power, n, p)) for n in counts]
    best = max(found, key=lambda way: way.captured)
    if whole is None or not _is_covariance_offered(whole.d, memory):
        return (best,)
    seen = captured(WholeNoise(whole), 1, whole.d)
    other = Way(algorithm=COVARIANCE, releases=1, iteration_rank=whole.d, captured=seen)
    return (best, other) if best.captured > seen + BETTER else (other, best)


def _sizes(problem: Problem, spectrum: Spectrum | None) -> list[np.ndarray]:
    """Return the eigenvalues for each spectrum and number of records that is considered."""
    d, k = problem.most_values, problem.algorithm.target_rank
    asked = [spectrum] if spectrum is not None else [read_spectrum(name.format(k=k), d) for name in FAMILY]
    if spectrum is None and problem.source.kind == "sparse":  # whose spectra are of singular values
        asked = [replace(each, values=np.sqrt(each.values)) for each in asked]
    public = problem.recipe.relation.public_rows  # type: ignore[union-attr]
    records = (None,) if public or all(each.scaled for each in asked) else RECORDS
    return [sizes_of(problem, each, rows) for each in asked for rows in records]


def _is_covariance_offered(d: int, memory: int | None) -> bool:
    """Say whether a covariance is offered, by public numbers: a plan would follow the number of rows."""
    return d <= WIDEST and (memory is None or HELD * 8 * d * d + BESIDE <= memory)


def as_begun(request: Request, source: Source, resources: Resources, store: str | Path | None, start: Any) -> Request:
    """Return the request with the answer of a private power method that ``store`` began before there were others."""
    held = held_run(store) if request.options is None else None
    if held is None or held["name"] != PrivatePower.name or request.algorithm not in ("auto", "power"):
        return request
    return request if "options" in held else replace(request, algorithm="power", options=begun_options(held))


def choose(
    request: Request, source: Source, resources: Resources, store: str | Path | None, start: Start | None
) -> Request:
    """Return the private request with everything chosen that was left open; a run in ``store`` goes on as it began.

    Raises
    ------
    BadInputError, RefusedError
        As :func:`npmdask.core.runs.build.make_problem`.
    """
    request = as_begun(request, source, resources, store, start)
    held = (None if store is None else RunStore(store).read_spec()) or {}
    open_ = request.max_steps is None and request.algorithm in ("auto", POWER) and source.kind != "tensor"
    if not open_:
        return request
    powered = request.algorithm == POWER or request.iteration_rank is not None
    name = held["algorithm"]["name"] if held else None
    if name == COVARIANCE and not powered:
        return replace(request, algorithm=COVARIANCE)
    if name in ("private-power", "private-alternating"):
        p = held["algorithm"]["iteration_rank"] if request.iteration_rank is None else request.iteration_rank
        return replace(request, algorithm=POWER, iteration_rank=p, max_steps=held["stop"]["max_steps"])
    problem = make_problem(source, replace(request, algorithm=POWER, max_steps=RELEASES[0]))
    first = next(way for way in ways_of(problem, resources.memory) if way.algorithm == POWER or not powered)
    if first.algorithm == COVARIANCE:
        return replace(request, algorithm=COVARIANCE)
    return replace(request, algorithm=POWER, max_steps=first.releases)
