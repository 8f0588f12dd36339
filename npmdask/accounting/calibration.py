"""How much noise a budget asks for: multipliers of the sensitivity, the same for all releases of a run.

Every Gaussian release l spends (sensitivity_l / stddev_l)^2 = mu^2 / L of the budget. The share is the same for all,
so stddev_l = multiplier sensitivity_l, and the sensitivity may be that at the public block of this very step: the sum
is fixed in advance although its parts are known only on the way, which composition with a filter permits at no loss.
"""

from __future__ import annotations

import math

from npmdask.accounting.budget import Budget, Charge
from npmdask.accounting.gdp import mu_for
from npmdask.errors import BadInputError, RefusedError

MARGIN = 1 + 1e-12  # so that thousands of charges, each sum rounded up, still fit into what they were computed from


def gaussian_multiplier(budget: Budget, releases: int, slack: Charge = Charge()) -> float:  # noqa: B008 (frozen)
    """stddev / sensitivity of each of ``releases`` Gaussian releases, rounded up.

    ``slack``: what else the run costs (samplers, other releases). ``gaussian_charge(multiplier, releases) + slack``
    is within the budget.

    Raises
    ------
    BadInputError
        ``releases`` not a positive integer, or delta = 0.
    RefusedError
        ``slack`` alone uses the budget up.
    """
    _check(releases)
    if budget.delta == 0:
        raise BadInputError(
            "Gaussian noise never gives delta = 0: choose a delta far below 1 / (number of records), or Laplace noise"
        )
    mu_squared = max(_affordable(budget.epsilon, budget, slack), *_affordable_below(budget, slack))
    if not mu_squared > 0:
        raise RefusedError(_used_up(budget, slack))
    return math.sqrt(releases / mu_squared) * MARGIN


def gaussian_charge(multiplier: float, releases: int) -> Charge:
    """What ``releases`` Gaussian releases with stddev = multiplier * sensitivity cost, rounded up."""
    _check(releases)
    if not 0 < multiplier < math.inf:
        raise BadInputError(f"a multiplier of {multiplier!r} makes no sense: stddev / sensitivity is positive")
    return Charge(mu_squared=math.nextafter(releases / multiplier / multiplier * (1 + 1e-15), math.inf))


def laplace_multiplier(budget: Budget, releases: int, slack: Charge = Charge()) -> float:  # noqa: B008 (frozen)
    """scale / (1-norm sensitivity) of each of ``releases`` Laplace releases, rounded up: releases / epsilon.

    Raises
    ------
    BadInputError
        ``releases`` not a positive integer, or ``slack`` with a Gaussian part.
    RefusedError
        ``slack`` alone uses the budget up.
    """
    _check(releases)
    if slack.mu_squared:
        raise BadInputError("Laplace noise is calibrated for purely private runs: charge Gaussian releases apart")
    epsilon = (budget.epsilon - slack.epsilon) / MARGIN
    if not epsilon > 0 or not Charge(delta=slack.delta).within(budget):
        raise RefusedError(_used_up(budget, slack))
    multiplier = releases / epsilon * MARGIN
    if not (laplace_charge(multiplier, releases) + slack).within(budget):
        raise RefusedError(_used_up(budget, slack))
    return multiplier


def laplace_charge(multiplier: float, releases: int) -> Charge:
    """What ``releases`` Laplace releases with scale = multiplier * sensitivity cost, rounded up."""
    _check(releases)
    if not 0 < multiplier < math.inf:
        raise BadInputError(f"a multiplier of {multiplier!r} makes no sense: scale / sensitivity is positive")
    return Charge(epsilon=math.nextafter(releases / multiplier * (1 + 1e-15), math.inf))


def release_charge(epsilon: float, delta: float) -> Charge:
    """What a release costs that is (epsilon, delta)-DP, of whatever kind: ``delta_at(epsilon)`` of it is delta.

    Its outputs on two neighbours are made, by some randomised map, from one of four symbols with probabilities
    (delta, (1 - delta) q, (1 - delta) (1 - q), 0) and (0, (1 - delta) (1 - q), (1 - delta) q, delta), where q is
    e^epsilon / (1 + e^epsilon) (Kairouz, Oh and Viswanath 2015). Moving delta (1 - q) from the first symbol to the
    last, and back for the other, makes the two purely epsilon-DP: a total variation of delta / (1 + e^epsilon) each.
    """
    return Charge(epsilon=epsilon, delta=delta / (1 + math.exp(min(epsilon, 700.0))) * (1 + 1e-12))


def pure_as_gaussian(epsilon: float) -> Charge:
    """A purely epsilon-DP release as a Gaussian one: mu = sqrt(pi / 2) epsilon, which is less where many add up.

    It is mu-GDP for Phi(mu / 2) = 1 / (1 + e^-epsilon): both trade-off curves meet on the diagonal, and the straight
    pieces of the one are chords of the other (Dong, Roth and Su 2022). That mu is below sqrt(pi / 2) epsilon, its
    tangent at zero: Phi(sqrt(2 pi) x / 4) - 1 / (1 + e^-x) is 0 at both ends of x >= 0, rises, and then falls.
    """
    return Charge(mu_squared=math.pi / 2 * epsilon**2 * (1 + 1e-12))


def _affordable(epsilon: float, budget: Budget, slack: Charge) -> float:
    """mu^2 that is left for (epsilon, budget.delta) after ``slack``; not above 0 if nothing is."""
    taken = Charge(delta=slack.delta).delta_at(epsilon)
    left = (budget.delta - taken) * math.exp(-slack.epsilon / 2) * (1 - 1e-13)
    rest = (epsilon - slack.epsilon) * (1 - 1e-15)
    if not left > 0 or not rest >= 0:
        return 0.0
    return mu_for(rest, left) ** 2 * (1 - 1e-15) - slack.mu_squared


def _affordable_below(budget: Budget, slack: Charge) -> list[float]:
    """The same for smaller epsilons: (1 + e^epsilon) times the slack outgrows delta when epsilon is large."""
    smaller = [epsilon for epsilon in budget.smaller(slack.delta) if epsilon > slack.epsilon]
    return [_affordable(epsilon, budget, slack) for epsilon in smaller] or [0.0]


def _check(releases: int) -> None:
    if isinstance(releases, bool) or releases != int(releases) or releases < 1:
        raise BadInputError(f"releases = {releases!r} must be a positive whole number (max_steps of a private run)")


def _used_up(budget: Budget, slack: Charge) -> str:
    return (
        f"epsilon = {budget.epsilon:g}, delta = {budget.delta:g} leave nothing for noise: what else the run costs "
        f"(mu^2 = {slack.mu_squared:g}, epsilon = {slack.epsilon:g}, delta = {slack.delta:g}, counted 1 + e^epsilon "
        "times) uses the budget up; ask for a larger budget or for fewer releases"
    )
