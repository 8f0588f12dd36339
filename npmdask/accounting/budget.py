"""What may be spent (:class:`Budget`) and what releases cost (:class:`Charge`), and when the one covers the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, Self

from npmdask.accounting.gdp import epsilon_for, log_delta, mu_for
from npmdask.errors import BadInputError, RefusedError

ATTEMPTS = 200
SHARES = 40  # candidates for the part of delta that goes to the samplers: 2^-1 ... 2^-40


@dataclass(frozen=True)
class Budget:
    """The promise (epsilon, delta): no event is more than e^epsilon times as likely, up to probability delta.

    ``delta = 0`` asks for pure epsilon: Laplace noise only.

    Raises
    ------
    BadInputError
        ``epsilon`` not positive and finite, or ``delta`` outside [0, 1).
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not _is_number(self.epsilon) or not 0 < self.epsilon < math.inf:
            raise BadInputError(f"epsilon = {self.epsilon!r} must be a positive number, for example 1.0")
        if not _is_number(self.delta) or not 0 <= self.delta < 1:
            raise BadInputError(
                f"delta = {self.delta!r} must be a number from 0 to below 1, and far below 1 / (number of records): "
                "for example 1e-9 for a million records"
            )
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))

    def warning(self, records: int) -> str:
        """A sentence if delta permits to publish some of ``records`` (a public number) whole; else nothing."""
        if self.delta * records < 1:
            return ""
        return (
            f"delta = {self.delta:g} is not below 1 / (number of records) = {1 / records:.1e}: publishing one record "
            f"of this data set as it is would satisfy the promise; choose delta <= {0.01 / records:.0e}"
        )

    def smaller(self, slack: float) -> list[float]:
        """Smaller epsilons, each of which is a stronger promise: a ``slack`` in delta is counted 1 + e^epsilon times.

        The first leaves half of delta, the next three quarters, and so on.
        """
        if slack == 0 or self.delta == 0:
            return []
        each = (math.log(self.delta) - math.log(slack) - share * math.log(2) for share in range(1, SHARES + 1))
        return [epsilon for epsilon in each if 0 < epsilon < self.epsilon]

    def as_dict(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        return cls(**_known(cls, content))


@dataclass(frozen=True)
class Charge:
    """What releases cost together: three numbers that add over releases, runs and interleaved processes.

    Parameters
    ----------
    mu_squared : sum of (sensitivity / stddev)^2 of the Gaussian releases.
    epsilon : sum of the epsilons of purely private releases (Laplace), and of the samplers' slack: 2 a when every
        probability that a sampler realises is within a factor e^(+-a) of the ideal one.
    delta : sum of the total variation distances between what samplers draw and what they should draw (apart from a).

    Notes
    -----
    Soundness. Let P and Q be the joint distributions of all releases on two neighbouring data sets, each release
    allowed to depend on those before it; E and d are what is promised, d(P, Q, E) = integral of (p - e^E q)_+.

    1. Gaussian releases whose shares mu_l^2 are fixed in advance, or whose adaptive sum is kept below a fixed
       number, are mu-GDP together with mu^2 = sum of mu_l^2 (Dong, Roth and Su 2022; filters: Smith and Thakurta
       2022): d(P, Q, E) <= delta(mu, E). Nothing is lost: equal for constant sensitivities.
    2. A release with p_2 <= e^e q_2 besides: p_1 p_2 - e^(E + e) q_1 q_2 <= (p_1 - e^E q_1) p_2, and p_2 integrates
       to 1 whatever it depends on. So E grows by e and d stays; in any order, as losses add.
    3. Realised probabilities within e^(+-a): (p' - e^E q')_+ <= e^a (p - e^(E - 2a) q)_+. So E grows by 2 a and d by
       the factor e^a. Both are covered for every mixture of pure releases and slack by the factor e^(epsilon / 2).
    4. Total variation t between the real and the ideal releases, on each of the two data sets (t adds over
       releases, by replacing one release after the other): P'(S) <= P(S) + t <= e^E Q(S) + d + t <=
       e^E Q'(S) + d + (1 + e^E) t.

    Together, for every E >= epsilon::

        delta_at(E) = e^(epsilon / 2) delta(mu, E - epsilon) + (1 + e^E) delta

    A release that is itself (epsilon, delta)-DP may be charged as such: it adds delta once, which is less than 4.
    """

    mu_squared: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not _is_number(value) or not value >= 0:
                raise BadInputError(f"a charge of {name} = {value!r} makes no sense: costs are numbers >= 0")
            object.__setattr__(self, name, float(value))

    def __add__(self, other: Charge) -> Charge:
        """The cost of both, rounded up."""
        return Charge(
            mu_squared=_sum_up(self.mu_squared, other.mu_squared),
            epsilon=_sum_up(self.epsilon, other.epsilon),
            delta=_sum_up(self.delta, other.delta),
        )

    def times(self, count: int) -> Charge:
        """The cost of ``count`` such charges, rounded up."""
        if count < 0 or count != int(count):
            raise BadInputError(f"a charge cannot be made {count!r} times")
        mu_squared, epsilon, delta = (_product_up(value, int(count)) for value in asdict(self).values())
        return Charge(mu_squared=mu_squared, epsilon=epsilon, delta=delta)

    @property
    def mu(self) -> float:
        """The Gaussian part as mu of Gaussian differential privacy, rounded up."""
        return math.nextafter(math.sqrt(self.mu_squared), math.inf) if self.mu_squared else 0.0

    def delta_at(self, epsilon: float) -> float:
        """The delta that is promised together with ``epsilon``, rounded up; the formula above, at most 1."""
        if not epsilon >= self.epsilon:
            return 1.0
        rest = max(math.nextafter(epsilon - self.epsilon, 0.0), 0.0) if self.epsilon else epsilon
        logarithm = log_delta(self.mu, rest) + self.epsilon / 2
        gaussian = 0.0 if logarithm == -math.inf else math.nextafter(math.exp(min(logarithm, 1.0)), math.inf)
        return min(1.0, _sum_up(gaussian, _slack(self.delta, epsilon)))

    def epsilon_at(self, delta: float) -> float:
        """The smallest epsilon that is promised together with ``delta``, rounded up; inf if none is.

        Without slack the answer is ``epsilon_for``. With slack the left side of ``delta_at(E) <= delta`` is convex
        in e^E; from below, E is raised until what the slack leaves of ``delta`` suffices.
        """
        if not 0 <= delta <= 1:
            raise BadInputError(f"delta = {delta!r} is not a probability")
        bound = self.epsilon
        for _ in range(ATTEMPTS):
            if self.delta_at(bound) <= delta:
                return bound
            left = (delta - _slack(self.delta, bound)) * math.exp(-self.epsilon / 2) * (1 - 1e-14)
            if not left > 0:
                return math.inf
            needed = self.epsilon + epsilon_for(self.mu, left)
            bound = max(needed, bound) * (1 + 1e-13)
        return math.inf

    def within(self, budget: Budget) -> bool:
        """Whether the promise ``budget`` holds for all that is charged here."""
        if any(self.delta_at(epsilon) <= budget.delta for epsilon in (budget.epsilon, *budget.smaller(self.delta))):
            return True
        return self.epsilon_at(budget.delta) <= budget.epsilon

    def as_dict(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        return cls(**_known(cls, content))


def _slack(delta: float, epsilon: float) -> float:
    """(1 + e^epsilon) delta, rounded up; inf beyond floats."""
    if delta == 0:
        return 0.0
    logarithm = math.log(delta) + max(epsilon, 0.0) + math.log1p(math.exp(-epsilon))
    return math.inf if logarithm > 700 else math.exp(logarithm) * (1 + 1e-12) + 5e-324


def _sum_up(a: float, b: float) -> float:
    """The smallest float that is not below a + b: four times 0.25 is 1."""
    total = a + b
    of_b = total - a
    lost = (a - (total - of_b)) + (b - of_b)  # TwoSum (Knuth): exact; NaN if the sum is infinite
    return math.nextafter(total, math.inf) if lost > 0 else total


def _product_up(a: float, count: int) -> float:
    """The smallest float that is not below a * count."""
    product = a * count
    if not math.isfinite(product):
        return product
    return math.nextafter(product, math.inf) if Fraction(product) < Fraction(a) * count else product


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _known(cls: type, content: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    if set(content) - names:
        raise BadInputError(f"unknown parts of a {cls.__name__.lower()}: {', '.join(sorted(set(content) - names))}")
    return dict(content)


# How much noise a budget asks for: multipliers of the sensitivity, the same for all releases of a run.
#
# Every Gaussian release l spends (sensitivity_l / stddev_l)^2 = mu^2 / L of the budget. The share is the same for all,
# so stddev_l = multiplier sensitivity_l, and the sensitivity may be that at the public block of this very step: the sum
# is fixed in advance although its parts are known only on the way, which composition with a filter permits at no loss.


MARGIN = 1 + 1e-12  # so that thousands of charges, each sum rounded up, still fit into what they were computed from


def gaussian_multiplier(budget: Budget, releases: int, slack: Charge = Charge()) -> float:
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


def laplace_multiplier(budget: Budget, releases: int, slack: Charge = Charge()) -> float:
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
