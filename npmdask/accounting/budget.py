"""What may be spent (:class:`Budget`) and what releases cost (:class:`Charge`), and when the one covers the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, Self

from npmdask.accounting.gdp import epsilon_for, log_delta
from npmdask.errors import BadInputError

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
