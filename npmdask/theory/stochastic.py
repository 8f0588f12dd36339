"""Private stochastic PCA (Duengler and Sanyal 2025): bounds of its error zeta, and the theorem's learning rate.

Every bound of the paper is up to a constant and logarithms that it leaves open: ``constant`` and its like replace
them, 1 unless said otherwise, and are named in the result. ``flags`` say which of its conditions hold; a bound whose
conditions fail is still computed. Everything is free of units: eigenvalues may be given in any.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from npmdask.core.certificates.prediction import Prediction, Predictions
from npmdask.core.numerics.domains import counts, exponent, not_negative, positive, probability
from npmdask.core.numerics.subspaces import condition_number
from npmdask.errors import require
from npmdask.theory.composition import Share, lemma16_split

# What the parts of k-DP-PCA need (Duengler and Sanyal 2025): rates, groups, thresholds, the smallest batches.
#
# Theorem 7 is that of Jain et al. 2016. ``flags`` say which conditions hold. Logarithms are natural.


BEYOND = 500.0  # of a logarithm: such a bound says nothing, and floats still hold it


def oja_shift(
    top: float, second: float, deviation: float, variance: float, alpha: float, fail_prob: float
) -> Prediction:
    """
    Compute the shift of the step sizes of Oja's algorithm.

    beta of Theorem 7, of the rates alpha / ((l1 - l2) (beta + t)).

    20 max(M' alpha / (l1 - l2), V' alpha^2 / ((l1 - l2)^2 ln(1 + fail_prob / 100))). ``top``, ``second``: l1 > l2;
    ``deviation``: M' >= ||A_i - Sigma||; ``variance``: V' = that of A_i plus l1^2.
    ``flags["first_step_small_enough"]``: eta_1 <= 1 / (4 max(l1, M')).

    Parameters
    ----------
    top : float
        The largest eigenvalue l1; above 0.
    second : float
        The next, l2; not negative and below ``top``.
    deviation : float
        M' >= ||A_i - Sigma||, for all i; above 0.
    variance : float
        V', the variance of A_i plus l1^2; above 0.
    alpha : float
        Factor of the step size; above 1/2 and at most 100.
    fail_prob : float
        Probability with which the theorem may fail; between 0 and 1.

    Returns
    -------
    Prediction
        ``value``: beta, a number of steps; ``flags``: ``first_step_small_enough``. No constant is open.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> for second in (0.5, 0.9):  # the shift grows as 1 / gap^2
    ...     beta = theory.oja_shift(1.0, second, deviation=2.0, variance=2.0, alpha=1.0, fail_prob=0.1).value
    ...     print(f"{beta:.2g}")
    1.6e+05
    4e+06
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
    """
    Bound the error of Oja's algorithm.

    sin^2 of the angle to the top eigenvector after Oja's n steps (Theorem 7), with probability 1 - fail_prob.

    constant ln(1/f) / f^2 (d (beta / n)^(2 alpha) + alpha^2 V / ((2 alpha - 1) (l1 - l2)^2 n)), f = fail_prob, beta of
    :func:`oja_shift`; ``variance`` is V, without the l1^2 that beta has in addition. At most 1.
    ``flags["enough_steps"]``: n > beta. sin^2, where the theorem after it prints the sine.

    Parameters
    ----------
    n : int
        Steps, one for each matrix.
    d : int
        Dimension: rows of a matrix.
    top : float
        The largest eigenvalue l1; above 0.
    second : float
        The next, l2; not negative and below ``top``.
    deviation : float
        M >= ||A_i - Sigma||, for all i; above 0.
    variance : float
        V, the variance of A_i; not negative.
    alpha : float, default 1.0
        Factor of the step size; above 1/2 and at most 100.
    fail_prob : float, default 0.1
        Probability with which the theorem may fail; between 0 and 1.
    constant : float, default 1.0
        Constant that the theorem leaves open; above 0.

    Returns
    -------
    Prediction
        ``value``: the bound of sin^2, at most 1; ``constants``: ``constant`` and ``beta``, the shift; ``flags``:
        ``first_step_small_enough``, ``enough_steps`` and ``says_something`` (below 1).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> for n in (10**6, 10**7, 10**8):
    ...     rate = theory.oja_rate(n, 10, top=1.0, second=0.5, deviation=2.0, variance=1.0)
    ...     print(round(rate.value, 3), rate.flags["says_something"])
    1.0 False
    0.59 True
    0.006 True
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
    """
    Compute the noisy count below which a bin of a histogram is dropped.

    The noisy count below which a bin of a stability histogram is dropped: 1 + (2 / epsilon) ln(2 / delta).

    Duengler and Sanyal 2025, Appendix H.

    Parameters
    ----------
    epsilon : float
        Of the promise (epsilon, delta); above 0.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.

    Returns
    -------
    Prediction
        ``value``: the count, not rounded; no constants and no flags.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.hist_threshold(1.0, 1e-6).value, 1)
    30.0
    """
    _budget(epsilon, delta)
    return Prediction(1 + 2 / epsilon * math.log(2 / delta), {}, {})


def privrange_groups(epsilon: float, delta: float, tau: float, constant: float = 3.0) -> Prediction:
    """
    Compute how many groups PrivRange forms.

    Groups of PrivRange (Algorithm 6): ceil(constant ln(1 / (delta tau)) / epsilon); its bracket is misprinted.

    ``flags["can_survive"]``: all of them in one bin exceed the threshold by what its noise, Laplace of scale
    2 / epsilon, falls below with probability tau. A batch must have two records per group at least.

    Parameters
    ----------
    epsilon : float
        Of the promise (epsilon, delta); above 0.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.
    tau : float
        Probability with which it may fail; between 0 and 1.
    constant : float, default 3.0
        Constant in place of the misprinted bracket; above 0.

    Returns
    -------
    Prediction
        ``value``: the number of groups, a whole number; ``constants``: ``constant``; ``flags``: ``can_survive``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> for constant in (1.0, 3.0):
    ...     groups = theory.privrange_groups(1.0, 1e-6, tau=0.01, constant=constant)
    ...     print(groups.value, groups.flags["can_survive"])
    19 False
    56 True
    """
    _budget(epsilon, delta)
    probability(tau=tau)
    positive(constant=constant)
    groups = math.ceil(constant * math.log(1 / (delta * tau)) / epsilon)
    enough = groups - hist_threshold(epsilon, delta).value >= _slack(epsilon, 1, tau)
    return Prediction(groups, {"constant": constant}, {"can_survive": enough})


def privmean_histogram(epsilon: float, delta: float, d: int) -> Predictions[Share]:
    """
    Compute the budget of the histogram of one coordinate in PrivMean.

    The budget of the histogram of one of d coordinates (Algorithm 7): Lemma 16 at half of epsilon and delta.

    ``flags["epsilon_at_most_0.9"]``: where the lemma is proved, of the half.

    Parameters
    ----------
    epsilon : float
        Of the promise (epsilon, delta) of the whole mean; above 0.
    delta : float
        Of the promise (epsilon, delta) of the whole mean; between 0 and 1.
    d : int
        Coordinates of the mean.

    Returns
    -------
    Predictions
        ``value``: a :class:`Share`, what the histogram of each coordinate may spend; ``flags``:
        ``epsilon_at_most_0.9``, of half of epsilon.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.privmean_histogram(1.0, 1e-6, d=10).value.epsilon, 3)
    0.014
    """
    _budget(epsilon, delta)
    return lemma16_split(epsilon / 2, delta / 2, d)


def privmean_min_batch(epsilon: float, delta: float, d: int, tau: float = 0.01, share: float = 1.0) -> Prediction:
    """
    Compute the least batch with which PrivMean locates all coordinates.

    The least batch with which PrivMean (Algorithm 7) locates all d coordinates, with probability 1 - tau.

    A bin with ``share`` of the batch must exceed the threshold of its histogram by what Laplace noise takes away. At
    d = 200 and (0.5, 0.005) the threshold alone is about 10,490 counts, far beyond the sqrt(n) of the paper's
    experiments.

    Parameters
    ----------
    epsilon : float
        Of the promise (epsilon, delta) of the whole mean; above 0.
    delta : float
        Of the promise (epsilon, delta) of the whole mean; between 0 and 1.
    d : int
        Coordinates of the mean.
    tau : float, default 0.01
        Probability with which one of them may be missed; between 0 and 1.
    share : float, default 1.0
        Share of the batch that lies in the bin that is to be found; above 0, at most 1.

    Returns
    -------
    Prediction
        ``value``: the number of records, a whole number; ``constants``: ``tau`` and ``share``; ``flags``:
        ``epsilon_below_0.9``, of the whole epsilon.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [theory.privmean_min_batch(0.5, 0.005, d=d).value for d in (2, 20, 200)]
    [1050.0, 4523.0, 18109.0]
    """
    counts(d=d)
    probability(tau=tau)
    require(0 < share <= 1, f"share = {share} must be a share of a batch, above 0 and at most 1")
    each = privmean_histogram(epsilon, delta, d).value
    value = (hist_threshold(*each).value + _slack(each.epsilon, d, tau)) / share
    return Prediction(float(math.ceil(value)), {"tau": tau, "share": share}, {"epsilon_below_0.9": epsilon < 0.9})


def _slack(epsilon: float, draws: int, tau: float) -> float:
    """Bound how far below 0 the least of ``draws`` Laplace(2 / epsilon) numbers is, but with probability tau."""
    return 2 / epsilon * math.log(max(draws / (2 * tau), 1.0))


def _conditions(top: float, second: float, alpha: float, fail_prob: float) -> float:
    """l1 - l2, of Theorem 7."""
    probability(fail_prob=fail_prob)
    positive(fail_prob=fail_prob)
    exponent(alpha=alpha)
    positive(top=top)
    require(top > second >= 0 and alpha > 0.5, "the theorem needs eigenvalues top > second >= 0 and alpha > 1/2")
    return top - second


def _budget(epsilon: float, delta: float) -> None:
    positive(epsilon=epsilon)
    probability(delta=delta)


LARGEST_EPSILON = 0.9  # of Theorems 1 and 9; the paper's own experiments have epsilon = 1


class AssumptionA(NamedTuple):
    """
    Spread of random matrices A_i about their mean Sigma (Assumption A), in units of lambda_1 = ||Sigma||.

    Parameters
    ----------
    kappa : float
        The ratio kappa' = lambda_1 / min over i <= k of (lambda_i - lambda_{i+1}); at least 1.
    V : float
        Variance: ||E (A_i - Sigma)^2|| <= lambda_1^2 V; not negative.
    gamma : float
        Its square is the max over unit u of ||E (A_i - Sigma) u u^T (A_i - Sigma)|| / lambda_1^2; not negative.
    M : float
        Largest deviation: ||A_i - Sigma|| <= lambda_1 M; not negative.
    K : float
        Scale of the tail of u^T (A_i - Sigma) v, above 0: E exp((|.|^2 / (K gamma lambda_1)^2)^(1 / (2 a))) <= 2
        (printed "<= 1", which no random number fulfils).
    a : float
        Exponent of the same tail; above 0 and at most 100.

    Examples
    --------
    >>> from npmdask import theory
    >>> kappa = theory.condition_number([4.0, 3.0, 1.0], 2)
    >>> theory.AssumptionA(kappa=kappa, V=1.0, gamma=1.0)
    AssumptionA(kappa=4.0, V=1.0, gamma=1.0, M=0.0, K=1.0, a=1.0)
    """

    kappa: float
    V: float
    gamma: float
    M: float = 0.0
    K: float = 1.0
    a: float = 1.0


def dppca_zeta(
    model: AssumptionA, *, n: int, d: int, k: int, epsilon: float, delta: float, constant: float = 1.0, c_n: float = 1.0
) -> Prediction:
    """
    Bound the error of k-DP-PCA.

    zeta of k-DP-PCA (Theorem 1): constant kappa' (sqrt(V k / n) + gamma d k sqrt(ln(1/delta)) / (epsilon n)).

    Parameters
    ----------
    model : AssumptionA
        How the matrices are spread; impossible numbers are refused here.
    n : int
        How many matrices there are.
    d : int
        Dimension: rows of a matrix.
    k : int
        Leading vectors that are wanted; at most ``d``, and fewer for the theorem.
    epsilon : float
        Of the promise (epsilon, delta); above 0.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.
    constant : float, default 1.0
        Constant of the O~, logarithms of n, d, 1 / epsilon, 1 / delta and powers of K included; above 0.
    c_n : float, default 1.0
        C of the condition on n, above 0; see :func:`dppca_min_n`.

    Returns
    -------
    Prediction
        ``value``: the bound of zeta, at most 1; ``constants``: ``constant`` and ``c_n``; ``flags``: ``says_something``
        (below 1), ``n_large_enough``, ``k_below_d``, ``epsilon_below_0.9`` and ``delta_at_most_1/n``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> model = theory.AssumptionA(kappa=2.0, V=1.0, gamma=1.0)
    >>> for n in (1000, 10**6):
    ...     zeta = theory.dppca_zeta(model, n=n, d=10, k=2, epsilon=0.5, delta=1e-7)
    ...     print(round(zeta.value, 4), zeta.flags["n_large_enough"])
    0.4106 False
    0.0031 True
    """
    _public(n, d, k, epsilon, delta)
    _require_possible(model)
    positive(constant=constant)
    privacy = model.gamma * d * k * math.sqrt(math.log(1 / delta)) / (epsilon * n)
    enough = n >= dppca_min_n(model, d=d, k=k, epsilon=epsilon, delta=delta, constant=c_n).value
    flags = {"n_large_enough": enough, "k_below_d": k < d, **_promise_flags(epsilon, delta, n)}
    return _zeta_bound(model, n, k, privacy, {"constant": constant, "c_n": c_n}, flags)


def dpojas_zeta(
    model: AssumptionA,
    *,
    n: int,
    d: int,
    k: int,
    epsilon: float,
    delta: float,
    constant: float = 1.0,
    c_epsilon: float = 1.0,
) -> Prediction:
    """
    Bound the error of k-DP-Ojas.

    zeta of k-DP-Ojas (Corollary 4): constant kappa' (sqrt(V k / n) + (gamma + 1) d k ln(1/delta) / (epsilon n)).

    Theorem 3 prints sqrt(ln(1/delta)), Theorem 10, from which it follows, ln(1/delta). Its privacy asks for
    epsilon <= c_epsilon sqrt(ln(n/delta) / n) and records that were shuffled, which the algorithm does not do.

    Parameters
    ----------
    model : AssumptionA
        How the matrices are spread; impossible numbers are refused here.
    n : int
        How many matrices there are.
    d : int
        Dimension: rows of a matrix.
    k : int
        Leading vectors that are wanted; at most ``d``, and fewer for the theorem.
    epsilon : float
        Of the promise (epsilon, delta); above 0.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.
    constant : float, default 1.0
        Constant that the theorem leaves open; above 0.
    c_epsilon : float, default 1.0
        Constant of the condition on epsilon; above 0.

    Returns
    -------
    Prediction
        ``value``: the bound of zeta, at most 1; ``constants``: ``constant`` and ``c_epsilon``; ``flags``:
        ``says_something`` (below 1), ``epsilon_small_enough_for_shuffling``, ``k_below_d``, ``epsilon_below_0.9`` and
        ``delta_at_most_1/n``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> model = theory.AssumptionA(kappa=2.0, V=1.0, gamma=1.0)
    >>> for epsilon in (0.005, 0.5):
    ...     zeta = theory.dpojas_zeta(model, n=10**6, d=10, k=2, epsilon=epsilon, delta=1e-7)
    ...     print(round(zeta.value, 4), zeta.flags["epsilon_small_enough_for_shuffling"])
    0.2607 True
    0.0054 False
    """
    _public(n, d, k, epsilon, delta)
    _require_possible(model)
    positive(constant=constant, c_epsilon=c_epsilon)
    privacy = (model.gamma + 1) * d * k * math.log(1 / delta) / (epsilon * n)
    small = epsilon <= c_epsilon * math.sqrt(math.log(n / delta) / n)
    flags = {"epsilon_small_enough_for_shuffling": small, "k_below_d": k < d, **_promise_flags(epsilon, delta, n)}
    return _zeta_bound(model, n, k, privacy, {"constant": constant, "c_epsilon": c_epsilon}, flags)


def dppca_min_n(
    model: AssumptionA, *, d: int, k: int, epsilon: float, delta: float, constant: float = 1.0
) -> Prediction:
    """
    Compute how many matrices k-DP-PCA needs.

    How many matrices Theorem 1 asks for, ``constant`` (its C) times the largest of three::

        e^(kappa'^2) + (d kappa' gamma sqrt(l) + sqrt(d) l^1.5) / epsilon + kappa' M + kappa'^2 V,      l = ln(1/delta)
        kappa'^4 k^3 V
        kappa'^2 gamma k^2 d sqrt(l) / epsilon

    The second is printed lambda_1^2 kappa'^2 k^3 V, which would depend on the unit of the data; its Lemma 23 gives
    kappa'^4. inf where e^(kappa'^2) is beyond floats. The theorem is for k < d, epsilon < 0.9 and delta <= 1 / n, here
    with n the value itself.

    Parameters
    ----------
    model : AssumptionA
        How the matrices are spread; impossible numbers are refused here.
    d : int
        Dimension: rows of a matrix.
    k : int
        Leading vectors that are wanted; at most ``d``, and fewer for the theorem.
    epsilon : float
        Of the promise (epsilon, delta); above 0.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.
    constant : float, default 1.0
        C of the theorem, which it leaves open; above 0.

    Returns
    -------
    Prediction
        ``value``: the number of matrices, not rounded, inf where it is beyond floats; ``constants``: ``constant``;
        ``flags``: ``finite``, ``k_below_d``, ``epsilon_below_0.9`` and ``delta_at_most_1/n``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> for kappa in (2.0, 3.0, 4.0):  # e^(kappa^2) takes over
    ...     model = theory.AssumptionA(kappa=kappa, V=1.0, gamma=1.0)
    ...     print(round(theory.dppca_min_n(model, d=10, k=2, epsilon=0.5, delta=1e-7).value))
    1285
    8762
    8886857
    """
    _public(1, d, k, epsilon, delta)
    _require_possible(model)
    positive(constant=constant)
    kappa, log_delta = model.kappa, math.log(1 / delta)
    private = (d * kappa * model.gamma * math.sqrt(log_delta) + math.sqrt(d) * log_delta**1.5) / epsilon
    starting = math.exp(kappa**2) if kappa**2 < 700 else math.inf
    steps = starting + private + kappa * model.M + kappa**2 * model.V
    rounds = kappa**4 * k**3 * model.V
    projections = kappa**2 * model.gamma * k**2 * d * math.sqrt(log_delta) / epsilon
    value = constant * max(steps, rounds, projections)
    flags = {"finite": starting < math.inf, "k_below_d": k < d, **_promise_flags(epsilon, delta, value)}
    return Prediction(value, {"constant": constant}, flags)


def spiked_lower_bound(
    values: np.ndarray,
    sigma: float,
    *,
    n: int,
    d: int,
    epsilon: float,
    delta: float,
    constant: float = 1.0,
    c0: float = 1.0,
    c0_prime: float = 1.0,
) -> Prediction:
    """
    Bound from below the error of every private method on spiked Gaussian records.

    E zeta that no private method falls below on N(0, V diag(values) V^T + sigma^2 I) (Corollary 3).

    constant min(sigma sqrt(lambda_1 + sigma^2) / sum of (lambda_i + sigma^2) (sqrt(d k / n) + d k / (n epsilon)), 1),
    ``values``: the k spikes lambda_i, without sigma^2, of one order of magnitude (``flags["comparable_spikes"]``: the
    largest is at most 10 times the least, where the paper has constants that it leaves open).

    Of these Gaussian records only: for matrices whose signal is not random (section 5 of the paper) it says nothing.
    Its condition is printed for lambda, which has a unit, and with e epsilon; it is read for delta, and stricter:
    delta <= c0' exp(epsilon - c0 (epsilon sqrt(n d k) + d k)). Lemma 1 and the bound for the Frobenius norm would
    give sqrt(k) more than is printed.

    Parameters
    ----------
    values : array_like, shape (k,)
        The k spikes lambda_i in any order, without sigma^2; above 0, at most ``d`` of them.
    sigma : float
        Standard deviation of the noise on each coordinate; not negative.
    n : int
        How many records there are.
    d : int
        Dimension: columns of the records.
    epsilon : float
        Of the promise (epsilon, delta); above 0.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.
    constant : float, default 1.0
        Constant that the corollary leaves open; above 0.
    c0 : float, default 1.0
        Constant in the exponent of the condition on delta; above 0.
    c0_prime : float, default 1.0
        Factor of the condition on delta, c0'; above 0.

    Returns
    -------
    Prediction
        ``value``: what E zeta is at least, no more than ``constant``; ``constants``: ``constant``, ``c0`` and
        ``c0_prime``; ``flags``: ``delta_small_enough`` and ``comparable_spikes``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> for n in (10, 10**4):
    ...     bound = theory.spiked_lower_bound([2.0], 1.0, n=n, d=20, epsilon=0.5, delta=1e-12)
    ...     print(round(bound.value, 3), bound.flags["delta_small_enough"])
    1.0 True
    0.028 False
    """
    values, k = np.sort(np.asarray(values, dtype=np.float64))[::-1], len(values)
    _public(n, d, k, epsilon, delta)
    not_negative(sigma=sigma)
    positive(constant=constant, c0=c0, c0_prime=c0_prime)
    for value in values:
        positive(value=value)
    share = sigma * math.sqrt(values[0] + sigma**2) / float(np.sum(values + sigma**2))
    rate = math.sqrt(d * k / n) + d * k / (n * epsilon)
    small = math.log(delta) <= math.log(c0_prime) + epsilon - c0 * (epsilon * math.sqrt(n * d * k) + d * k)
    constants = {"constant": constant, "c0": c0, "c0_prime": c0_prime}
    flags = {"delta_small_enough": small, "comparable_spikes": bool(values[0] <= 10 * values[-1])}
    return Prediction(constant * min(share * rate, 1.0), constants, flags)


def top_lower_bound(
    lambda_1: float, lambda_2: float, *, n: int, d: int, epsilon: float, constant: float = 1.0
) -> Prediction:
    """
    Bound from below the error of every pure private method for the top eigenvector.

    The sine of the angle to v_1 that no epsilon-DP method falls below on Gaussian records (Theorem 11, k = 1).

    constant min(kappa (sqrt(d / n) + d / (epsilon n)) sqrt(lambda_2 / lambda_1), 1), kappa = lambda_1 / (lambda_1 -
    lambda_2). The only bound here that is for pure epsilon (delta = 0).

    Parameters
    ----------
    lambda_1 : float
        The largest eigenvalue.
    lambda_2 : float
        The second eigenvalue; not negative and below ``lambda_1``.
    n : int
        How many records there are.
    d : int
        Dimension: columns of the records.
    epsilon : float
        Of the promise (epsilon, 0); above 0.
    constant : float, default 1.0
        Constant that the theorem leaves open; above 0.

    Returns
    -------
    Prediction
        ``value``: what the sine is at least, no more than ``constant``; ``constants``: ``constant``; ``flags``:
        ``pure_epsilon``, always true.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> for epsilon in (0.05, 0.5, 5.0):  # above sqrt(d / n) = 0.1 most of it is sampling
    ...     print(round(theory.top_lower_bound(1.0, 0.5, n=10**4, d=100, epsilon=epsilon).value, 3))
    0.424
    0.17
    0.144
    """
    _public(n, d, 1, epsilon, 0.5)
    positive(constant=constant)
    kappa = condition_number(np.array([lambda_1, lambda_2]), 1)
    rate = kappa * (math.sqrt(d / n) + d / (epsilon * n)) * math.sqrt(lambda_2 / lambda_1)
    return Prediction(constant * min(rate, 1.0), {"constant": constant}, {"pure_epsilon": True})


def dppca_noise_beta(
    model: AssumptionA, lambda_1: float, *, n: int, batch: int, d: int, epsilon: float, delta: float, tau: float = 0.01
) -> Prediction:
    """
    Bound the noise on each coordinate of a private mean of a batch.

    beta, a bound of the noise per coordinate of a private mean of ``batch`` images (proof of Theorem 9).

    16 K gamma lambda_1 ln^a(B d / tau) sqrt(2 d ln(2.5/delta)) / (epsilon B), in units of lambda_1. The algorithm
    itself has 12 where the proof has 16, and halves epsilon, delta and the batch, of which the proof knows nothing.
    ``n``: all matrices, for the condition delta <= 1 / n alone.

    Parameters
    ----------
    model : AssumptionA
        How the matrices are spread; impossible numbers are refused here.
    lambda_1 : float
        The largest eigenvalue; above 0.
    n : int
        How many matrices there are, for the condition delta <= 1 / n alone.
    batch : int
        B, the matrices of a batch.
    d : int
        Dimension: rows of a matrix.
    epsilon : float
        Of the promise (epsilon, delta); above 0.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.
    tau : float, default 0.01
        Probability with which a mean may fail; between 0 and 1.

    Returns
    -------
    Prediction
        ``value``: beta, in the units of ``lambda_1``; ``constants``: ``tau``; ``flags``: ``epsilon_below_0.9`` and
        ``delta_at_most_1/n``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> model = theory.AssumptionA(kappa=2.0, V=1.0, gamma=1.0)
    >>> for batch in (1000, 10_000):
    ...     noise = theory.dppca_noise_beta(model, 1.0, n=10**6, batch=batch, d=10, epsilon=0.5, delta=1e-7)
    ...     print(round(noise.value, 2))
    8.16
    0.95
    """
    _public(batch, d, 1, epsilon, delta)
    _require_possible(model)
    counts(n=n)
    positive(lambda_1=lambda_1)
    probability(tau=tau)
    spread = model.K * model.gamma * lambda_1 * math.log(batch * d / tau) ** model.a
    value = 16 * spread * math.sqrt(2 * d * math.log(2.5 / delta)) / (epsilon * batch)
    return Prediction(value, {"tau": tau}, _promise_flags(epsilon, delta, n))


def dppca_learning_rate(
    t: int,
    model: AssumptionA,
    lambda_1: float,
    gap: float,
    *,
    n: int,
    d: int,
    batch: int,
    epsilon: float,
    delta: float,
    c: float = 1.0,
    c2: float = 1.0,
    tau: float = 0.01,
    fail_prob: float = 0.01,
) -> Prediction:
    """
    Compute the step size of k-DP-PCA.

    eta_t of step t = 1 ... T = floor(n / batch) (Theorem 9): alpha / (gap (xi + t)), in units of 1 / lambda_1.

    Parameters
    ----------
    t : int
        The step, from 1 to floor(n / batch).
    model : AssumptionA
        How the matrices are spread; impossible numbers are refused here.
    lambda_1 : float
        The largest eigenvalue; above 0.
    gap : float
        The gap lambda_1 - lambda_2 of P Sigma P; above 0 and no larger than ``lambda_1``.
    n : int
        How many matrices there are.
    d : int
        Dimension: rows of a matrix.
    batch : int
        Matrices of a batch.
    epsilon : float
        Of the promise (epsilon, delta); above 0.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.
    c : float, default 1.0
        Constant of alpha = c ln n; above 0.
    c2 : float, default 1.0
        Constant of the norm of the noise, ||E G G^T|| <= c2 d; above 0.
    tau : float, default 0.01
        Probability with which a mean may fail; between 0 and 1.
    fail_prob : float, default 0.01
        Probability with which the theorem may fail; between 0 and 1.

    Returns
    -------
    Prediction
        ``value``: eta_t, in units of 1 / lambda_1; ``constants``: ``c``, ``c2``, ``tau``, ``fail_prob`` and ``xi``, the
        shift; ``flags``: ``more_steps_than_xi``, ``epsilon_below_0.9`` and ``delta_at_most_1/n``.

    Raises
    ------
    BadInputError
        A step beyond the last, a gap above ``lambda_1``, or numbers outside of their ranges.

    Notes
    -----
    xi = 20 max(M~ alpha / gap, (V~ + lambda_1^2) alpha^2 / (gap^2 ln(1 + fail_prob / 100))) with M~ and V~ of a noisy
    mean of a batch. With fail_prob = 0.01 the last logarithm is 1e-4: xi is 200,000 (alpha lambda_1 / gap)^2 or more.
    ``flags["more_steps_than_xi"]``, T >= xi as the proof asks, never holds at the sizes of the paper's experiments,
    which take another rate.

    Examples
    --------
    >>> from npmdask import theory
    >>> model = theory.AssumptionA(kappa=2.0, V=1.0, gamma=1.0)
    >>> rate = theory.dppca_learning_rate(1, model, 1.0, 0.5, n=10**6, d=10, batch=1000, epsilon=0.5, delta=1e-7)
    >>> f"{rate.value:.1e}", rate.flags["more_steps_than_xi"]
    ('2.7e-10', False)
    """
    counts(t=t, n=n, batch=batch)
    positive(c=c, c2=c2, gap=gap)
    probability(fail_prob=fail_prob)
    require(not gap > lambda_1, f"gap = {gap} is lambda_1 - lambda_2: it is no larger than lambda_1 = {lambda_1}")
    alpha, steps = c * math.log(n), n // batch
    require(1 <= t <= steps, f"step {t} is not one of 1 to floor(n / batch) = {steps}")
    beta = dppca_noise_beta(model, lambda_1, n=n, batch=batch, d=d, epsilon=epsilon, delta=delta, tau=tau)
    log_d = math.log(d * steps / tau)
    bound = model.M * lambda_1 * log_d / batch + lambda_1 * math.sqrt(model.V * log_d / batch)
    bound += beta.value * (math.sqrt(d) + math.sqrt(math.log(steps / tau)))
    variance = model.V * lambda_1**2 / batch + c2 * beta.value**2 * d
    second = (variance + lambda_1**2) * alpha**2 / (gap**2 * math.log1p(fail_prob / 100))
    xi = 20 * max(bound * alpha / gap, second)
    constants = {"c": c, "c2": c2, "tau": tau, "fail_prob": fail_prob, "xi": xi}
    return Prediction(
        alpha / (gap * (xi + t)), constants, {"more_steps_than_xi": steps >= xi, **_promise_flags(epsilon, delta, n)}
    )


def _zeta_bound(
    model: AssumptionA, n: int, k: int, privacy: float, constants: dict[str, float], flags: dict[str, bool]
) -> Prediction:
    """No zeta is above 1: a bound that is says nothing."""
    value = constants["constant"] * model.kappa * (math.sqrt(model.V * k / n) + privacy)
    return Prediction(min(value, 1.0), constants, {"says_something": value < 1, **flags})


def _promise_flags(epsilon: float, delta: float, n: float) -> dict[str, bool]:
    """The theorems' own conditions on the promise; the paper's experiments (epsilon = 1, delta = 0.01) miss both."""
    return {"epsilon_below_0.9": epsilon < LARGEST_EPSILON, "delta_at_most_1/n": delta <= 1 / n}


def _public(n: int, d: int, k: int, epsilon: float, delta: float) -> None:
    counts(n=n, d=d, k=k)
    positive(epsilon=epsilon)
    probability(delta=delta)
    require(k <= d, f"k = {k} vectors are wanted in d = {d} dimensions: ask for fewer")


def _require_possible(model: AssumptionA) -> None:
    """Refuse what no random matrices have: kappa' is lambda_1 over a gap of eigenvalues, the others are sizes."""
    positive(kappa=model.kappa, K=model.K)
    not_negative(V=model.V, gamma=model.gamma, M=model.M)
    exponent(a=model.a)
    require(model.kappa >= 1, f"kappa = {model.kappa} is lambda_1 over a gap of eigenvalues: it is at least 1")
