"""Bound mu and epsilon exactly from scores on two neighbouring data sets, for any attack.

An attack gives every run a score, high where the neighbour A' looks more likely. A threshold t that was fixed before
the runs makes a test of it, with FPR = P(score > t | A) and TPR = P(score > t | A'). Of a mu-GDP mechanism every test
has Phi^-1(TPR) - Phi^-1(FPR) <= mu (Dong, Roth and Su, Definition 2.6); of an (epsilon, delta)-DP one TPR <=
e^epsilon FPR + delta, and the same for the test turned around. FPR and TPR are bounded by Clopper and Pearson
(exact at every number of runs), the error alpha is divided evenly over all bounds that are used (Bonferroni). So the
lower bounds hold for any attack, clever or not; only the power depends on it. The upper end of the interval for mu says
what this attack leaves possible, if the trade-off curve of the pair is Gaussian: it is no upper bound on what another
attack would find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc
from scipy.stats import norm

from npmdask.accounting.budget import Budget
from npmdask.errors import BadInputError

Scores = NDArray[np.float64]
BISECTIONS = 40  # of a bound: to 1e-12 of the observed rate
LOG_ALPHA_FLOOR = -300.0  # p-values below 1e-300 are reported as 1e-300


@dataclass(frozen=True)
class Interval:
    """A confidence interval; ``high`` is inf where the data allow any value."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"[{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class Counts:
    """Counts of the ``runs`` scores of one attack above each threshold, in the world A and in the world A'."""

    false: tuple[int, ...]
    true: tuple[int, ...]
    runs: int

    def rates(self, alpha: float) -> list[tuple[Interval, Interval]]:
        """FPR and TPR of every threshold, each end of each interval wrong with probability ``alpha`` at most."""
        return [
            (self._rate(false, alpha), self._rate(true, alpha))
            for false, true in zip(self.false, self.true, strict=True)
        ]

    def _rate(self, successes: int, alpha: float) -> Interval:
        return Interval(at_least(successes, self.runs, alpha), at_most(successes, self.runs, alpha))


def count(scores: tuple[Scores, Scores], thresholds: Sequence[float]) -> Counts:
    """Exceedances of scores, one a run: of the world A, and of the world A'."""
    here, there = scores
    if len(here) != len(there) or not len(here) or not thresholds:
        raise BadInputError("an audit needs at least one threshold and as many runs of A as of its neighbour")
    if np.isnan(here).any() or np.isnan(there).any():
        raise BadInputError("a score is not a number: the release has overflowed, or no noise was added")
    false, true = ([int((world > t).sum()) for t in thresholds] for world in (here, there))
    return Counts(tuple(false), tuple(true), len(here))


def thresholds(norm: str, claimed: float) -> list[float]:
    """Return thresholds of the log-likelihood ratio. 0 is best for mu; the others lie where epsilon shows.

    Gaussian: the ratio is N(-+mu^2/2, mu^2), so a world is left by 2.5 standard deviations. Laplace: it never leaves
    [-epsilon, epsilon], and the ends have positive probability.
    """
    far = claimed * (2.5 - claimed / 2) if norm == "l2" else 0.999 * claimed
    return [0.0, far, -far]


def at_least(successes: int, runs: int, alpha: float) -> float:
    """Clopper and Pearson: the probability of a success is at least this, except with probability ``alpha``.

    The p at which so many successes or more have probability ``alpha`` (a regularised incomplete beta function),
    bisected from below, so that what is left of an error is on the safe side: the quantiles of SciPy give up at an
    alpha of 1e-100 and less.
    """
    low, high = 0.0, successes / runs
    for _ in range(BISECTIONS if successes else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if betainc(successes, runs - successes + 1, middle) <= alpha else (low, middle)
    return low


def at_most(successes: int, runs: int, alpha: float) -> float:
    """Clopper and Pearson: the probability of a success is at most this, except with probability ``alpha``."""
    return 1.0 - at_least(runs - successes, runs, alpha)


def mu_interval(attacks: Sequence[Counts], alpha: float) -> Interval:
    """Compute the interval of mu with confidence 1 - ``alpha``, according to the attack that shows most.

    Four bounds for each threshold of each attack; of each attack the best at either end.
    """
    each = alpha / (4 * _thresholds(attacks))
    return max((_mu_of(attack.rates(each)) for attack in attacks), key=lambda interval: interval.low)


def _mu_of(rates: list[tuple[Interval, Interval]]) -> Interval:
    low = max(_distance(tpr.low, fpr.high) for fpr, tpr in rates)
    high = min(_distance(tpr.high, fpr.low) for fpr, tpr in rates)
    return Interval(max(low, 0.0), max(high, 0.0))


def mu_lower_bound(attacks: Sequence[Counts], alpha: float) -> float:
    """mu is at least this, except with probability ``alpha``: two bounds for each threshold of each attack."""
    each = alpha / (2 * _thresholds(attacks))
    return max(_mu_of(attack.rates(each)).low for attack in attacks)


def epsilon_lower_bound(attacks: Sequence[Counts], delta: float, alpha: float) -> float:
    """epsilon at this ``delta`` is at least this, except with probability ``alpha``; nothing is assumed of the noise.

    N runs never show more than about ln(N / ln(2 / alpha)): no proof of a large epsilon comes from few runs.
    """
    each = alpha / (2 * _thresholds(attacks))
    return max(0.0, *(_epsilon_of(fpr, tpr, delta) for attack in attacks for fpr, tpr in attack.rates(each)))


def _epsilon_of(fpr: Interval, tpr: Interval, delta: float) -> float:
    """Bound epsilon from below by the test and by the test turned around; both use the same two ends."""
    return max(_log_ratio(tpr.low - delta, fpr.high), _log_ratio(1 - fpr.high - delta, 1 - tpr.low))


def _thresholds(attacks: Sequence[Counts]) -> int:
    return sum(len(attack.false) for attack in attacks)


def p_value(lower_bound: Callable[[float], float], claimed: float) -> float:
    """The smallest alpha at which ``lower_bound(alpha)`` still exceeds what is claimed (1 if it never does)."""
    if lower_bound(1.0) <= claimed:
        return 1.0
    low, high = LOG_ALPHA_FLOOR, 0.0
    if lower_bound(10.0**low) > claimed:
        return float(10.0**low)
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if lower_bound(10.0**middle) > claimed else (middle, high)
    return float(10.0**high)


def _distance(true_rate: float, false_rate: float) -> float:
    """Phi^-1(TPR) - Phi^-1(FPR); an end that says nothing (0 or 1) gives the infinity on the safe side."""
    return float(norm.ppf(true_rate) - norm.ppf(false_rate))


def _log_ratio(numerator: float, denominator: float) -> float:
    if numerator <= 0:
        return -np.inf
    return float(np.log(numerator / denominator)) if denominator > 0 else np.inf


# What an audit found, as a record, as lines of a table, and as a sentence that claims no more than was shown.


ALPHA = 1e-6  # chance that an audit of a correct mechanism rejects it
LIMITS = (
    "An audit gives lower bounds on what is lost between the neighbours that were tried, under the attacks that were "
    "tried. It can show that a mechanism is broken; it does not prove that one is private. The proof is the accounting "
    "of the exact sensitivity."
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The audit of one pair of neighbours.

    ``claimed`` : mu of Gaussian, epsilon of pure differential privacy. ``path_loss`` : the same as really spent in the
    worst run, from queries and noise scales, without sampling error. ``mu`` : interval with confidence 1 - ALPHA (None
    for pure epsilon). ``epsilon_at_least`` : lower bound at ``budget.delta`` with confidence 1 - ALPHA.
    ``p_value`` : of the hypothesis that the claim is right. ``problems`` : what was found, empty if nothing.
    """

    relation: str
    mechanism: str
    instance: str
    budget: Budget
    releases: int
    runs: int
    claimed: float
    path_loss: float
    mu: Interval | None
    epsilon_at_least: float
    p_value: float
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True if nothing was found."""
        return not self.problems

    @property
    def attained(self) -> float:
        """Share of the claimed loss that this pair of neighbours can show at all."""
        return self.path_loss / self.claimed

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.problems:
            return f"REJECTED: {'; '.join(self.problems)}"
        return f"nothing found; this pair can show {100 * self.attained:.0f} % of what is claimed"

    def facts(self) -> dict[str, Any]:
        """For JSON: an infinity becomes null."""
        facts = asdict(self) | {"passed": self.passed, "attained": self.attained, "verdict": self.verdict}
        facts["mu"] = None if self.mu is None else [self.mu.low, self.mu.high]
        return _finite(facts)


def findings_table(findings: Sequence[Finding]) -> list[str]:
    """Lines for people."""
    head = (
        "relation",
        "mechanism",
        "pair",
        "epsilon",
        "delta",
        "claimed",
        "spent",
        "mu interval",
        "epsilon >=",
        "runs",
    )
    rows = [head, *(_row(f) for f in findings)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    texts = [lines[0], *(f"{line}\n    {f.verdict}" for line, f in zip(lines[1:], findings, strict=True))]
    rejected = sum(not f.passed for f in findings)
    summary = f"{len(findings)} pairs, {rejected} rejected; chance to reject a correct mechanism: {ALPHA:.0e} each"
    return [*texts, "", summary, LIMITS]


def _row(f: Finding) -> tuple[str, ...]:
    name = "mu" if f.mu is not None else "eps"
    return (
        f.relation,
        f.mechanism,
        f.instance,
        f"{f.budget.epsilon:g}",
        f"{f.budget.delta:g}",
        f"{name} {f.claimed:.4f}",
        f"{f.path_loss:.4f}",
        "-" if f.mu is None else str(f.mu),
        f"{f.epsilon_at_least:.3f}",
        str(f.runs),
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
