"""What the parts of k-DP-PCA need (Duengler and Sanyal 2025): rates, groups, thresholds, the smallest batches.

Theorem 7 is that of Jain et al. 2016. ``flags`` say which conditions hold. Logarithms are natural.
"""

from __future__ import annotations

import math

from npmdask.errors import BadInputError
from npmdask.numerics.domains import counts, exponent, not_negative, positive, probability
from npmdask.theory.composition import Share, lemma16_split
from npmdask.theory.result import Prediction, Predictions

BEYOND = 500.0  # of a logarithm: such a bound says nothing, and floats still hold it


def oja_shift(
    top: float, second: float, deviation: float, variance: float, alpha: float, fail_prob: float
) -> Prediction:
    """beta of Theorem 7, of the rates alpha / ((l1 - l2) (beta + t)).

    20 max(M' alpha / (l1 - l2), V' alpha^2 / ((l1 - l2)^2 ln(1 + fail_prob / 100))). ``top``, ``second``: l1 > l2;
    ``deviation``: M' >= ||A_i - Sigma||; ``variance``: V' = that of A_i plus l1^2.
    ``flags["first_step_small_enough"]``: eta_1 <= 1 / (4 max(l1, M')).
    """
    gap = _conditions(top, second, alpha, fail_prob)
    positive(deviation=deviation, variance=variance)
    beta = 20 * max(deviation * alpha / gap, variance * alpha**2 / (gap**2 * math.log1p(fail_prob / 100)))
    small = alpha / (gap * (beta + 1)) <= 1 / (4 * max(top, deviation))
    return Prediction(beta, {}, {"first_step_small_enough": small})


def oja_rate(
    n: int,
    d: int,
    *,
    top: float,
    second: float,
    deviation: float,
    variance: float,
    alpha: float = 1.0,
    fail_prob: float = 0.1,
    constant: float = 1.0,
) -> Prediction:
    """sin^2 of the angle to the top eigenvector after Oja's n steps (Theorem 7), with probability 1 - fail_prob.

    constant ln(1/f) / f^2 (d (beta / n)^(2 alpha) + alpha^2 V / ((2 alpha - 1) (l1 - l2)^2 n)), f = fail_prob, beta of
    :func:`oja_shift`; ``variance`` is V, without the l1^2 that beta has in addition. At most 1.
    ``flags["enough_steps"]``: n > beta. sin^2, where the theorem after it prints the sine.
    """
    gap = _conditions(top, second, alpha, fail_prob)
    counts(n=n, d=d)
    not_negative(variance=variance)
    positive(constant=constant)
    shift = oja_shift(top, second, deviation, variance + top**2, alpha, fail_prob)
    spread = alpha**2 * variance / ((2 * alpha - 1) * gap**2 * n)
    start = math.exp(min(2 * alpha * math.log(shift.value / n), BEYOND))
    bound = constant * math.log(1 / fail_prob) / fail_prob / fail_prob * (d * start + spread)
    flags = {**shift.flags, "enough_steps": n > shift.value, "says_something": bound < 1}
    return Prediction(min(bound, 1.0), {"constant": constant, "beta": shift.value}, flags)


def hist_threshold(epsilon: float, delta: float) -> Prediction:
    """The noisy count below which a bin of a stability histogram is dropped: 1 + (2 / epsilon) ln(2 / delta).

    Duengler and Sanyal 2025, Appendix H.
    """
    _budget(epsilon, delta)
    return Prediction(1 + 2 / epsilon * math.log(2 / delta), {}, {})


def privrange_groups(epsilon: float, delta: float, tau: float, constant: float = 3.0) -> Prediction:
    """Groups of PrivRange (Algorithm 6): ceil(constant ln(1 / (delta tau)) / epsilon); its bracket is misprinted.

    ``flags["can_survive"]``: all of them in one bin exceed the threshold by what its noise, Laplace of scale
    2 / epsilon, falls below with probability tau. A batch must have two records per group at least.
    """
    _budget(epsilon, delta)
    probability(tau=tau)
    positive(constant=constant)
    groups = math.ceil(constant * math.log(1 / (delta * tau)) / epsilon)
    enough = groups - hist_threshold(epsilon, delta).value >= _slack(epsilon, 1, tau)
    return Prediction(groups, {"constant": constant}, {"can_survive": enough})


def privmean_histogram(epsilon: float, delta: float, d: int) -> Predictions[Share]:
    """The budget of the histogram of one of d coordinates (Algorithm 7): Lemma 16 at half of epsilon and delta.

    ``flags["epsilon_at_most_0.9"]``: where the lemma is proved, of the half.
    """
    _budget(epsilon, delta)
    return lemma16_split(epsilon / 2, delta / 2, d)


def privmean_min_batch(epsilon: float, delta: float, d: int, tau: float = 0.01, share: float = 1.0) -> Prediction:
    """The least batch with which PrivMean (Algorithm 7) locates all d coordinates, with probability 1 - tau.

    A bin with ``share`` of the batch must exceed the threshold of its histogram by what Laplace noise takes away. At
    d = 200 and (0.5, 0.005) the threshold alone is 10,490 counts, far beyond the sqrt(n) of the paper's experiments.
    """
    counts(d=d)
    probability(tau=tau)
    if not 0 < share <= 1:
        raise BadInputError(f"share = {share} must be a share of a batch, above 0 and at most 1")
    each = privmean_histogram(epsilon, delta, d).value
    value = (hist_threshold(*each).value + _slack(each.epsilon, d, tau)) / share
    return Prediction(float(math.ceil(value)), {"tau": tau, "share": share}, {"epsilon_below_0.9": epsilon < 0.9})


def _slack(epsilon: float, draws: int, tau: float) -> float:
    """How far below zero the least of ``draws`` Laplace numbers of scale 2 / epsilon is, but with probability tau."""
    return 2 / epsilon * math.log(max(draws / (2 * tau), 1.0))


def _conditions(top: float, second: float, alpha: float, fail_prob: float) -> float:
    """l1 - l2, of Theorem 7."""
    probability(fail_prob=fail_prob)
    positive(fail_prob=fail_prob)
    exponent(alpha=alpha)
    positive(top=top)
    if not top > second >= 0 or not alpha > 0.5:
        raise BadInputError("the theorem needs eigenvalues top > second >= 0 and alpha > 1/2")
    return top - second


def _budget(epsilon: float, delta: float) -> None:
    positive(epsilon=epsilon)
    probability(delta=delta)
