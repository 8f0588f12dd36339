"""What scores in two worlds prove: exact bounds on mu and on epsilon, whatever the attack was.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm

from npmdask.errors import BadInputError

Scores = NDArray[np.float64]
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
    """How many of ``runs`` scores exceeded each threshold, in the world A and in the world A'.

    Several attacks on the same runs are joined with ``+``: Bonferroni then goes over all their thresholds.
    """

    false: tuple[int, ...]
    true: tuple[int, ...]
    runs: int

    def __add__(self, other: Counts) -> Counts:
        if other.runs != self.runs:
            raise BadInputError("attacks can only be joined on the same runs; score every run with each of them")
        return Counts(self.false + other.false, self.true + other.true, self.runs)


def count(here: Scores, there: Scores, thresholds: Sequence[float]) -> Counts:
    """Exceedances of scores (one a run) in the world A (``here``) and in the world A' (``there``)."""
    if len(here) != len(there) or not len(here) or not thresholds:
        raise BadInputError("an audit needs at least one threshold and as many runs of A as of its neighbour")
    if np.isnan(here).any() or np.isnan(there).any():
        raise BadInputError("a score is not a number; the release has overflowed or was never noised")
    false, true = ([int((scores > t).sum()) for t in thresholds] for scores in (here, there))
    return Counts(tuple(false), tuple(true), len(here))


def at_least(successes: int, runs: int, alpha: float) -> float:
    """Clopper and Pearson: the probability of a success is at least this, except with probability ``alpha``."""
    return 0.0 if successes == 0 else float(beta.ppf(alpha, successes, runs - successes + 1))


def at_most(successes: int, runs: int, alpha: float) -> float:
    """Clopper and Pearson: the probability of a success is at most this, except with probability ``alpha``."""
    return 1.0 if successes == runs else float(beta.isf(alpha, successes + 1, runs - successes))


def mu_interval(counts: Counts, alpha: float) -> Interval:
    """Where mu lies with confidence 1 - ``alpha``: four bounds a threshold, the best of them at each end."""
    each = alpha / (4 * len(counts.false))
    pairs = list(zip(counts.false, counts.true, strict=True))
    low = max(_distance(at_least(t, counts.runs, each), at_most(f, counts.runs, each)) for f, t in pairs)
    high = min(_distance(at_most(t, counts.runs, each), at_least(f, counts.runs, each)) for f, t in pairs)
    return Interval(max(low, 0.0), max(high, 0.0))


def mu_lower_bound(counts: Counts, alpha: float) -> float:
    """mu is at least this, except with probability ``alpha``: two bounds a threshold."""
    each = alpha / (2 * len(counts.false))
    pairs = zip(counts.false, counts.true, strict=True)
    return max(0.0, *(_distance(at_least(t, counts.runs, each), at_most(f, counts.runs, each)) for f, t in pairs))


def epsilon_lower_bound(counts: Counts, delta: float, alpha: float) -> float:
    """epsilon at this ``delta`` is at least this, except with probability ``alpha``; nothing is assumed of the noise.

    N runs never show more than about ln(N / (2 ln(1 / alpha))): no proof of a large epsilon comes from few runs.
    """
    each = alpha / (2 * len(counts.false))
    best = 0.0
    for false, true in zip(counts.false, counts.true, strict=True):
        tpr, fpr = at_least(true, counts.runs, each), at_most(false, counts.runs, each)
        best = max(best, _log_ratio(tpr - delta, fpr), _log_ratio(1 - fpr - delta, 1 - tpr))
    return best


def p_value(lower_bound: Callable[[float], float], claimed: float) -> float:
    """The smallest alpha at which ``lower_bound(alpha)`` still exceeds what is claimed (1 if it never does)."""
    if lower_bound(1.0) <= claimed:
        return 1.0
    low, high = LOG_ALPHA_FLOOR, 0.0
    if lower_bound(10.0**low) > claimed:
        return float(10.0**low)
    while high - low > 1e-3:
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
