"""Plan a private run before it starts, from public numbers alone: its guarantee, cost and noise floor.

No sample is drawn and no pass is timed: a spectrum of the data that decided on rank, steps or clip_norm would be a
look that no budget has paid for. The start block is public, so the noise of its release is known exactly.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import npmdask.privacy.ledger.messages as words
from npmdask.accounting import Charge
from npmdask.checkpoint.store import RunStore
from npmdask.errors import NpmdaskError
from npmdask.execution.memory import MemoryPlan
from npmdask.numerics.spectra import Spectrum
from npmdask.planning.private_forecast import PrivateForecast, Way, private_outlook, ways_of
from npmdask.privacy.concerns import concerns
from npmdask.privacy.dp_pca_release import RECORD_ORACLES
from npmdask.privacy.ledger import Ledger, Run, Status, default_address, open_ledger
from npmdask.privacy.ledger.ledger import askable_epsilon, relation_unit, remaining_epsilon
from npmdask.privacy.matrix_release import COVARIANCE, MatrixRecipe
from npmdask.privacy.tensor_release import TENSOR_POWER
from npmdask.runs.problem import Problem
from npmdask.runs.session import memory_for, needs_of
from npmdask.runs.solution import Resources

MIB = 2**20
UNASKED = "none without a spectrum: guess one (--spectrum power:1) or give a public one (--spectrum FILE)"


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
        ways=ways_of(problem, resources.memory, spectrum) if isinstance(parts, MatrixRecipe) else (),
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
    elif plan.algorithm not in (*RECORD_ORACLES, TENSOR_POWER):
        table["forecast"] = UNASKED
    return [f"{name:9} {said}" for name, said in table.items()]


def _releases_line(plan: PrivatePlan) -> str:
    if plan.algorithm in RECORD_ORACLES:
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
    if plan.algorithm in RECORD_ORACLES:
        return f"noise floor at most {plan.smallest_value:.3g}: smaller values cannot be recovered ({plan.values_are})"
    which = "the noise" if plan.algorithm == COVARIANCE else "the last noise"
    floor = f"noise floor {plan.smallest_value:.3g}, the norm of {which}"
    return f"{floor}: smaller values cannot be recovered ({plan.values_are})"


def _columns_line(plan: PrivatePlan) -> str:
    if plan.algorithm in RECORD_ORACLES:
        return f"target_rank = {plan.target_rank}, one direction after the other by {plan.algorithm}"
    if plan.algorithm == TENSOR_POWER:
        return f"target_rank = {plan.target_rank}, restarts = {plan.iteration_rank}"
    if plan.algorithm == COVARIANCE:
        return f"target_rank = {plan.target_rank}; the same release also serves any other number of components"
    return f"target_rank = {plan.target_rank}, iteration_rank = {plan.iteration_rank}"


def _noise_line(plan: PrivatePlan) -> str:
    if plan.noise_stddev is None or plan.first_noise_stddev is None:
        return "depends on the ranges that are released before the means"
    if plan.algorithm in RECORD_ORACLES:
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
