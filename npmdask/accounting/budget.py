"""Compare what may be spent (:class:`Budget`) with what releases cost (:class:`Charge`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, Self

from npmdask.accounting.gdp import epsilon_for, log_delta, mu_for
from npmdask.errors import BadInputError, RefusedError, require

ATTEMPTS = 200
SHARES = 40  # candidates for the part of delta that goes to the samplers: 2^-1 ... 2^-40


@dataclass(frozen=True)
class Budget:
    """
    The promise (epsilon, delta): no event is more than e^epsilon times as likely, up to probability delta.

    It is about two neighbouring data sets; which are neighbours follows from the relation.

    Parameters
    ----------
    epsilon : float
        Positive and finite; kept as a float. Smaller is more private.
    delta : float, default 0.0
        From 0 to below 1, and far below 1 / (number of records). 0 asks for pure epsilon: Laplace noise only.

    Raises
    ------
    BadInputError
        ``epsilon`` not positive and finite, or ``delta`` outside [0, 1).

    Examples
    --------
    >>> from npmdask.accounting import Budget
    >>> Budget(1, 1e-9)
    Budget(epsilon=1.0, delta=1e-09)
    >>> print(Budget(1.0, 1e-3).warning(records=100_000))
    delta = 0.001 is not below 1 / (number of records) = 1.0e-05: publishing one record in full ...
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
        """
        Warn if delta is so large that publishing a whole record would satisfy the guarantee.

        Parameters
        ----------
        records : int
            Number of records of the data set; must be public.

        Returns
        -------
        str
            A sentence that suggests a smaller delta if ``delta * records >= 1``; otherwise "".
        """
        if self.delta * records < 1:
            return ""
        return (
            f"delta = {self.delta:g} is not below 1 / (number of records) = {1 / records:.1e}: publishing one record "
            f"in full would satisfy the guarantee; choose delta <= {0.01 / records:.0e}"
        )

    def smaller(self, slack: float) -> list[float]:
        """
        List smaller epsilons, each of which, with the same delta, is a stronger promise.

        Worth a look because a slack in delta is counted 1 + e^epsilon times.

        Parameters
        ----------
        slack : float
            A delta that is spent already (total variation), not negative.

        Returns
        -------
        list of float
            Falling, below ``epsilon``: at the first, e^epsilon times the slack leaves half of delta, at the next three
            quarters, and so on. Empty without slack or without delta.
        """
        if slack == 0 or self.delta == 0:
            return []
        each = (math.log(self.delta) - math.log(slack) - share * math.log(2) for share in range(1, SHARES + 1))
        return [epsilon for epsilon in each if 0 < epsilon < self.epsilon]

    def as_dict(self) -> dict[str, float]:
        """
        Give the promise as JSON takes it.

        Returns
        -------
        dict of str to float
            "epsilon" and "delta".
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """
        Read what :meth:`as_dict` gave.

        Parameters
        ----------
        content : mapping of str to float
            "epsilon" and, optionally, "delta".

        Returns
        -------
        Budget
            The same promise.

        Raises
        ------
        BadInputError
            Other keys, or numbers that are no promise.
        """
        return cls(**_require_known_parts(cls, content))


@dataclass(frozen=True)
class Charge:
    """
    Cost of releases together: three numbers that add over releases, runs and interleaved processes.

    Parameters
    ----------
    mu_squared : float, default 0.0
        Sum of (sensitivity / stddev)^2 of the Gaussian releases.
    epsilon : float, default 0.0
        Sum of the epsilons of purely private releases (Laplace), and of the samplers' slack: 2 a when every probability
        that a sampler realises is within a factor e^(+-a) of the ideal one.
    delta : float, default 0.0
        Sum of the total variation distances between what samplers draw and what they should draw (apart from a).

    Raises
    ------
    BadInputError
        A cost that is negative or not a number.

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

    Examples
    --------
    Sixteen releases cost 1.77, not 16 times the 0.4 of one: it is mu^2 that adds, not epsilon.

    >>> from npmdask.accounting import gaussian_charge
    >>> one = gaussian_charge(10.0, 1)
    >>> round(one.epsilon_at(1e-6), 2), round(one.times(16).epsilon_at(1e-6), 2)
    (0.4, 1.77)

    Costs of different kinds add too:

    >>> from npmdask.accounting import Budget, laplace_charge
    >>> both = one + laplace_charge(10.0, 1)
    >>> round(both.epsilon_at(1e-6), 2), both.within(Budget(0.5, 1e-6))
    (0.5, True)
    """

    mu_squared: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not _is_number(value) or not value >= 0:
                raise BadInputError(f"a charge of {name} = {value!r} is invalid: costs must be at least 0")
            object.__setattr__(self, name, float(value))

    def __add__(self, other: Charge) -> Charge:
        """The cost of both, rounded up."""
        return Charge(
            mu_squared=_sum_rounded_up(self.mu_squared, other.mu_squared),
            epsilon=_sum_rounded_up(self.epsilon, other.epsilon),
            delta=_sum_rounded_up(self.delta, other.delta),
        )

    def times(self, count: int) -> Charge:
        """
        Compute the cost of several such charges.

        Parameters
        ----------
        count : int
            How many, not negative.

        Returns
        -------
        Charge
            The sum, rounded up.

        Raises
        ------
        BadInputError
            ``count`` negative or not whole.
        """
        if count < 0 or count != int(count):
            raise BadInputError(f"a charge cannot be made {count!r} times")
        mu_squared, epsilon, delta = (_product_up(value, int(count)) for value in asdict(self).values())
        return Charge(mu_squared=mu_squared, epsilon=epsilon, delta=delta)

    @property
    def mu(self) -> float:
        """Give the Gaussian part as mu of Gaussian differential privacy, rounded up."""
        return math.nextafter(math.sqrt(self.mu_squared), math.inf) if self.mu_squared else 0.0

    def delta_at(self, epsilon: float) -> float:
        """
        Compute the delta that is promised together with an epsilon, by the formula above.

        Parameters
        ----------
        epsilon : float
            Of the promise; below that of the charge nothing is promised.

        Returns
        -------
        float
            The delta, rounded up; at most 1, and 1 if nothing is promised.
        """
        if not epsilon >= self.epsilon:
            return 1.0
        rest = max(math.nextafter(epsilon - self.epsilon, 0.0), 0.0) if self.epsilon else epsilon
        logarithm = log_delta(self.mu, rest) + self.epsilon / 2
        gaussian = 0.0 if logarithm == -math.inf else math.nextafter(math.exp(min(logarithm, 1.0)), math.inf)
        return min(1.0, _sum_rounded_up(gaussian, _slack(self.delta, epsilon)))

    def epsilon_at(self, delta: float) -> float:
        """
        Compute the smallest epsilon that is promised together with a delta.

        Without slack the answer is ``epsilon_for``. With slack the left side of ``delta_at(E) <= delta`` is convex
        in e^E; from below, E is raised until what the slack leaves of ``delta`` suffices.

        Parameters
        ----------
        delta : float
            Of the promise, from 0 to 1.

        Returns
        -------
        float
            The epsilon, rounded up; inf if none is promised.

        Raises
        ------
        BadInputError
            ``delta`` outside [0, 1].
        """
        require(0 <= delta <= 1, f"delta = {delta!r} is not a probability")
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
        """
        Say whether a promise holds for all that is charged here.

        Parameters
        ----------
        budget : Budget
            The promise.

        Returns
        -------
        bool
            True if it holds for any mechanism with this cost.
        """
        if any(self.delta_at(epsilon) <= budget.delta for epsilon in (budget.epsilon, *budget.smaller(self.delta))):
            return True
        return self.epsilon_at(budget.delta) <= budget.epsilon

    def as_dict(self) -> dict[str, float]:
        """
        Give the cost as JSON takes it.

        Returns
        -------
        dict of str to float
            "mu_squared", "epsilon" and "delta".
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """
        Read what :meth:`as_dict` gave.

        Parameters
        ----------
        content : mapping of str to float
            Any of "mu_squared", "epsilon" and "delta"; what is missing is 0.

        Returns
        -------
        Charge
            The same cost.

        Raises
        ------
        BadInputError
            Other keys, or numbers that are no cost.
        """
        return cls(**_require_known_parts(cls, content))


def _slack(delta: float, epsilon: float) -> float:
    """(1 + e^epsilon) delta, rounded up; inf beyond floats."""
    if delta == 0:
        return 0.0
    logarithm = math.log(delta) + max(epsilon, 0.0) + math.log1p(math.exp(-epsilon))
    return math.inf if logarithm > 700 else math.exp(logarithm) * (1 + 1e-12) + 5e-324


def _sum_rounded_up(a: float, b: float) -> float:
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


def _require_known_parts(cls: type, content: Mapping[str, Any]) -> dict[str, Any]:
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
    """
    Compute the Gaussian noise that a budget asks for, in units of the sensitivity.

    ``gaussian_charge(multiplier, releases) + slack`` is within the budget, by exact Gaussian accounting. Every release
    gets the same share, (sensitivity / stddev)^2 = mu^2 / releases; its sensitivity may be that at its public block.

    Parameters
    ----------
    budget : Budget
        The promise for the whole run; delta > 0.
    releases : int
        How many there are, a positive number fixed in advance.
    slack : Charge, default Charge()
        What else the run costs (samplers, other releases).

    Returns
    -------
    float
        Quotient stddev / sensitivity (2-norm) of each release, rounded up.

    Raises
    ------
    BadInputError
        ``releases`` not a positive integer, or delta = 0.
    RefusedError
        ``slack`` alone uses the budget up.

    Examples
    --------
    Sixteen times the releases ask for four times the noise:

    >>> from npmdask.accounting import Budget, gaussian_charge, gaussian_multiplier
    >>> budget = Budget(1.0, 1e-6)
    >>> [round(gaussian_multiplier(budget, releases), 2) for releases in (1, 16)]
    [4.22, 16.9]
    >>> round(gaussian_charge(16.9, 16).epsilon_at(1e-6), 2)
    1.0
    """
    _check(releases)
    if budget.delta == 0:
        raise BadInputError(
            "Gaussian noise cannot give delta = 0: choose a delta far below 1 / (number of records), or Laplace noise"
        )
    mu_squared = max(_affordable_mu_squared(budget.epsilon, budget, slack), *_affordable_below(budget, slack))
    if not mu_squared > 0:
        raise RefusedError(_used_up(budget, slack))
    return math.sqrt(releases / mu_squared) * MARGIN


def gaussian_charge(multiplier: float, releases: int) -> Charge:
    """
    Compute what releases cost whose Gaussian noise is a multiple of their sensitivity.

    Parameters
    ----------
    multiplier : float
        Quotient stddev / sensitivity (2-norm) of every release, positive and finite.
    releases : int
        How many there are, at least 1; each may depend on those before it.

    Returns
    -------
    Charge
        ``mu_squared = releases / multiplier^2``, rounded up (Gaussian composition: Dong, Roth and Su 2022).

    Raises
    ------
    BadInputError
        ``releases`` not a positive integer, or ``multiplier`` not positive and finite.

    Examples
    --------
    >>> from npmdask.accounting import gaussian_charge
    >>> cost = gaussian_charge(5.0, 4)
    >>> round(cost.mu, 6), round(cost.epsilon_at(1e-6), 2), round(cost.epsilon_at(1e-9), 2)
    (0.4, 1.77, 2.29)
    """
    _check(releases)
    if not 0 < multiplier < math.inf:
        raise BadInputError(f"a multiplier of {multiplier!r} is invalid: stddev / sensitivity must be positive")
    return Charge(mu_squared=math.nextafter(releases / multiplier / multiplier * (1 + 1e-15), math.inf))


def laplace_multiplier(budget: Budget, releases: int, slack: Charge = Charge()) -> float:
    """
    Compute the Laplace noise that a budget asks for, in units of the sensitivity: releases / epsilon.

    Pure epsilon adds over releases, so the noise of each grows with their number; that of :func:`gaussian_multiplier`
    grows with its root.

    Parameters
    ----------
    budget : Budget
        The promise for the whole run; its delta is needed only for slack.
    releases : int
        How many there are, a positive number fixed in advance.
    slack : Charge, default Charge()
        What else the run costs (samplers), without a Gaussian part.

    Returns
    -------
    float
        Quotient scale / (1-norm sensitivity) of each release, rounded up; the standard deviation is sqrt(2) times the
        scale.

    Raises
    ------
    BadInputError
        ``releases`` not a positive integer, or ``slack`` with a Gaussian part.
    RefusedError
        ``slack`` alone uses the budget up.

    Examples
    --------
    >>> from npmdask.accounting import Budget, laplace_multiplier
    >>> [round(laplace_multiplier(Budget(0.5), releases), 6) for releases in (1, 16)]
    [2.0, 32.0]
    """
    _check(releases)
    if slack.mu_squared:
        raise BadInputError(
            "Laplace noise is calibrated for pure epsilon-differential privacy: charge Gaussian releases separately"
        )
    epsilon = (budget.epsilon - slack.epsilon) / MARGIN
    if not epsilon > 0 or not Charge(delta=slack.delta).within(budget):
        raise RefusedError(_used_up(budget, slack))
    multiplier = releases / epsilon * MARGIN
    if not (laplace_charge(multiplier, releases) + slack).within(budget):
        raise RefusedError(_used_up(budget, slack))
    return multiplier


def laplace_charge(multiplier: float, releases: int) -> Charge:
    """
    Compute what releases cost whose Laplace noise is a multiple of their sensitivity.

    Parameters
    ----------
    multiplier : float
        Quotient scale / (1-norm sensitivity) of every release, positive and finite.
    releases : int
        How many there are, at least 1; each may depend on those before it.

    Returns
    -------
    Charge
        ``epsilon = releases / multiplier``, rounded up: pure, without delta.

    Raises
    ------
    BadInputError
        ``releases`` not a positive integer, or ``multiplier`` not positive and finite.

    Examples
    --------
    >>> from npmdask.accounting import laplace_charge
    >>> cost = laplace_charge(10.0, 4)
    >>> round(cost.epsilon, 6), round(cost.epsilon_at(0.0), 6)
    (0.4, 0.4)
    """
    _check(releases)
    if not 0 < multiplier < math.inf:
        raise BadInputError(f"a multiplier of {multiplier!r} is invalid: scale / sensitivity must be positive")
    return Charge(epsilon=math.nextafter(releases / multiplier * (1 + 1e-15), math.inf))


def release_charge(epsilon: float, delta: float) -> Charge:
    """
    Compute what a release costs that is (epsilon, delta)-DP, of whatever kind.

    Its ``delta_at(epsilon)`` is delta.

    Parameters
    ----------
    epsilon : float
        Of the release, not negative.
    delta : float
        Of the release, not negative.

    Returns
    -------
    Charge
        ``epsilon``, and delta / (1 + e^epsilon) as a total variation, rounded up.

    Raises
    ------
    BadInputError
        A negative number, or none.

    Notes
    -----
    Its outputs on two neighbours are made, by some randomised map, from one of four symbols with probabilities
    (delta, (1 - delta) q, (1 - delta) (1 - q), 0) and (0, (1 - delta) (1 - q), (1 - delta) q, delta), where q is
    e^epsilon / (1 + e^epsilon) (Kairouz, Oh and Viswanath 2015). Moving delta (1 - q) from the first symbol to the
    last, and back for the other, makes the two purely epsilon-DP: a total variation of delta / (1 + e^epsilon) each.

    Examples
    --------
    Two of them promise 2 epsilon with more than 2 delta, as what each adds to delta is counted at the epsilon of both:

    >>> from npmdask.accounting import release_charge
    >>> cost = release_charge(1.0, 1e-6)
    >>> f"{cost.delta_at(1.0):.2e}", f"{cost.times(2).delta_at(2.0):.2e}"
    ('1.00e-06', '4.51e-06')
    """
    return Charge(epsilon=epsilon, delta=delta / (1 + math.exp(min(epsilon, 700.0))) * (1 + 1e-12))


def pure_as_gaussian(epsilon: float) -> Charge:
    """
    Compute the cost of a purely epsilon-DP release as if it were a Gaussian one, which is less where many add up.

    Parameters
    ----------
    epsilon : float
        Of the release, not negative.

    Returns
    -------
    Charge
        ``mu_squared = pi / 2 epsilon^2``, rounded up: mu = sqrt(pi / 2) epsilon.

    Notes
    -----
    It is mu-GDP for Phi(mu / 2) = 1 / (1 + e^-epsilon): both trade-off curves meet on the diagonal, and the straight
    pieces of the one are chords of the other (Dong, Roth and Su 2022). That mu is below sqrt(pi / 2) epsilon, its
    tangent at zero: Phi(sqrt(2 pi) x / 4) - 1 / (1 + e^-x) is 0 at both ends of x >= 0, rises, and then falls.

    Examples
    --------
    A hundred releases of epsilon = 0.1, and a single one, which it makes dearer:

    >>> from npmdask.accounting import Charge, pure_as_gaussian
    >>> as_gaussian, pure = pure_as_gaussian(0.1), Charge(epsilon=0.1)
    >>> [round(cost.times(100).epsilon_at(1e-6), 2) for cost in (as_gaussian, pure)]
    [6.33, 10.0]
    >>> [round(cost.epsilon_at(1e-6), 2) for cost in (as_gaussian, pure)]
    [0.51, 0.1]
    """
    require(epsilon >= 0, f"epsilon = {epsilon} must not be negative")
    return Charge(mu_squared=math.pi / 2 * epsilon**2 * (1 + 1e-12))


def _affordable_mu_squared(epsilon: float, budget: Budget, slack: Charge) -> float:
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
    return [_affordable_mu_squared(epsilon, budget, slack) for epsilon in smaller] or [0.0]


def _check(releases: int) -> None:
    if isinstance(releases, bool) or releases != int(releases) or releases < 1:
        raise BadInputError(f"releases = {releases!r} must be a positive whole number (max_steps of a private run)")


def _used_up(budget: Budget, slack: Charge) -> str:
    return (
        f"epsilon = {budget.epsilon:g}, delta = {budget.delta:g} leave nothing for noise: what else the run costs "
        f"(mu^2 = {slack.mu_squared:g}, epsilon = {slack.epsilon:g}, delta = {slack.delta:g}, counted 1 + e^epsilon "
        "times) uses the budget up; ask for a larger budget or for fewer releases"
    )
