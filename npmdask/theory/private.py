"""Predicted error of the private power method: explicit bounds, and an estimate from released values only.

The theorems (Hardt and Price 2014, Theorems 1.3 and 1.4; Balcan, Du, Wang and Yu 2016, Theorems 2.2 and 3.1) leave
their constants open (the functions ``..._rate`` have them as printed). Here the recursions behind them are evaluated
number by number instead, with norms of noise by :mod:`npmdask.theory.start` and the start of
:func:`npmdask.theory.start.init_tan_explicit`. The spectrum sigma_1 >= sigma_2 >= ... is private: of the functions
below, only :func:`predicted_sine` may be used on a private run, as it takes nothing but what was released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from npmdask.core.certificates.prediction import Prediction
from npmdask.core.certificates.recursions import sine_of
from npmdask.core.numerics.domains import (
    counts,
    falling,
    not_negative,
    one_of,
    positive,
    probability,
    ranks,
    spectrum_gap,
)
from npmdask.errors import BadInputError, closest, require
from npmdask.theory.start import init_tan_explicit, norm_of, start_factor, start_promised

# Errors of the private power method as the papers print them: up to a constant, which is an argument, 1 by default.
#
# Explicit bounds with all constants are the functions ``..._error`` below. Everything is for the number of steps L =
# O(s_k / (s_k - s_{k+1}) log d) that the theorems take, and for probability 9/10. ``flags["gap"]``: s_k > s_{k+1}; the
# value is inf otherwise. A sine above 1 says nothing (``flags["says_something"]``).


RELEASES = ("gaussian", "laplace")


def ppm_rate(
    s_k: float,
    s_k1: float,
    sigma: float,
    entry: float,
    *,
    d: int,
    k: int,
    p: int,
    releases: int,
    constant: float = 1.0,
) -> Prediction:
    """
    Compute the error of the private power method as printed.

    Sine of the angle after L = ``releases`` steps (Hardt and Price 2014, Theorem 1.3).

    constant sigma entry sqrt(d log L) / (s_k - s_{k+1}) sqrt(p) / (sqrt(p) - sqrt(k - 1)); ``entry``: the largest
    |X_ij| of all steps, ``sigma`` of :func:`npmdask.theory.ppm_sigma`.

    Parameters
    ----------
    s_k : float
        The k-th largest eigenvalue (its size); above 0.
    s_k1 : float
        The one after it, not negative and no larger than ``s_k``.
    sigma : float
        Noise multiplier of :func:`npmdask.theory.ppm_sigma`; not negative.
    entry : float
        The largest |X_ij| of all steps; not negative, and at most 1 of orthonormal columns.
    d : int
        Dimension: columns of the data, rows of a block.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; from ``k`` to ``d``.
    releases : int
        L, how many products are released; a single one is counted as two, as log 1 is 0.
    constant : float, default 1.0
        Constant that the theorem leaves open; above 0.

    Returns
    -------
    Prediction
        ``value``: the sine, inf without a gap; ``constants``: ``constant``; ``flags``: ``gap`` and ``says_something``
        (below 1).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> for gap in (500.0, 50.0):
    ...     rate = theory.ppm_rate(1000.0, 1000.0 - gap, 50.0, 0.1, d=1000, k=2, p=8, releases=5)
    ...     print(round(rate.value, 2), rate.flags["says_something"])
    0.62 True
    6.21 False
    """
    counts(d=d)
    not_negative(sigma=sigma, entry=entry)
    return _rate_of_sine(sigma * entry * math.sqrt(d * _log(releases)), s_k, s_k1, d, k, p, constant)


def ppm_rate_coherent(
    s_k: float,
    s_k1: float,
    sigma: float,
    coherence: float,
    *,
    d: int,
    k: int,
    p: int,
    releases: int,
    constant: float = 1.0,
) -> Prediction:
    """
    Compute the error of the private power method on incoherent eigenvectors as printed.

    :func:`ppm_rate` with sqrt(mu log d / d) for the largest entry, mu = ``coherence`` (Theorem 1.4).

    Parameters
    ----------
    s_k : float
        The k-th largest eigenvalue (its size); above 0.
    s_k1 : float
        The one after it, not negative and no larger than ``s_k``.
    sigma : float
        Noise multiplier of :func:`npmdask.theory.ppm_sigma`; not negative.
    coherence : float
        Coherence mu of the eigenvectors, from 1 to ``d``.
    d : int
        Dimension: columns of the data, rows of a block.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; from ``k`` to ``d``.
    releases : int
        L, how many products are released; a single one is counted as two, as log 1 is 0.
    constant : float, default 1.0
        Constant that the theorem leaves open; above 0.

    Returns
    -------
    Prediction
        ``value``: the sine, inf without a gap; ``constants``: ``constant``; ``flags``: ``gap`` and ``says_something``
        (below 1).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.ppm_rate_coherent(1000.0, 500.0, 100.0, 5.0, d=1000, k=2, p=8, releases=5).value, 2)
    2.31
    """
    return dist_rate(s_k, s_k1, sigma, coherence, 1, d=d, q=k, p=p, releases=releases, constant=constant)


def dist_rate(
    s_k: float,
    s_q1: float,
    nu: float,
    coherence: float,
    nodes: int,
    *,
    d: int,
    q: int,
    p: int,
    releases: int,
    constant: float = 1.0,
) -> Prediction:
    """
    Compute the error of the private power method of several nodes as printed.

    Sine of the angle with ``nodes`` that add noise of their own (Balcan, Du, Wang and Yu 2016, Theorem 3.1).

    constant nu sqrt(nodes mu log d log L) / (s_k - s_{q+1}) sqrt(p) / (sqrt(p) - sqrt(q - 1)); Corollary 3.1: one node.
    Confidence of the restored form: high up to logarithms; the last factor is a constant for 2 q <= p.

    Parameters
    ----------
    s_k : float
        The k-th largest eigenvalue (its size); above 0.
    s_q1 : float
        Eigenvalue number q + 1, not negative and no larger than ``s_k``.
    nu : float
        Noise multiplier of each node, as ``sigma`` of :func:`ppm_rate`; not negative.
    coherence : float
        Coherence mu of the eigenvectors, from 1 to ``d``.
    nodes : int
        How many nodes hold a part of the data.
    d : int
        Dimension: columns of the data, rows of a block.
    q : int
        Intermediate rank, from k to ``p``.
    p : int
        Columns that are iterated; from ``q`` to ``d``.
    releases : int
        L, how many products are released; a single one is counted as two, as log 1 is 0.
    constant : float, default 1.0
        Constant that the theorem leaves open; above 0.

    Returns
    -------
    Prediction
        ``value``: the sine, inf where s_{q+1} = s_k; ``constants``: ``constant``; ``flags``: ``gap`` (s_k > s_{q+1})
        and ``says_something`` (below 1).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> one, four = (
    ...     theory.dist_rate(1000.0, 500.0, 10.0, 5.0, nodes, d=1000, q=2, p=8, releases=5).value for nodes in (1, 4)
    ... )
    >>> round(one, 3), round(four, 3)
    (0.231, 0.461)
    """
    counts(d=d, nodes=nodes)
    not_negative(nu=nu)
    require(1 <= coherence <= d, f"coherence = {coherence:g} is impossible: it must be between 1 and the dimension {d}")
    louder = nu * math.sqrt(nodes * coherence * math.log(max(d, 2)) * _log(releases))
    return _rate_of_sine(louder, s_k, s_q1, d, q, p, constant)


def lowrank_rate(
    s_1: float,
    s_k: float,
    s_k1: float,
    *,
    d: int,
    k: int,
    epsilon: float,
    delta: float = 0.0,
    mechanism: str = "gaussian",
    constant: float = 1.0,
) -> Prediction:
    """
    Compute the error of a private low-rank approximation as printed.

    ||A - B|| of the private B of rank 2 k (Hardt and Price 2014), up to ``constant`` and what O~ hides.

    With g = 1 - s_{k+1} / s_k: s_{k+1} + constant s_1 sqrt((k / g) d log d log(1 / delta)) / (epsilon (s_k - s_{k+1}))
    (Corollaries 4.3 and 4.6, "gaussian"); s_{k+1} + constant s_1 k^1.5 d log d log(d / g) / (epsilon g (s_k - s_{k+1}))
    ("laplace": Corollary 4.7, whose promise is epsilon alone). O~ hides sqrt(log(log(d) / g)).

    Parameters
    ----------
    s_1 : float
        The largest eigenvalue (its size), no smaller than ``s_k``.
    s_k : float
        The k-th largest eigenvalue (its size); above 0.
    s_k1 : float
        The one after it, not negative and no larger than ``s_k``.
    d : int
        Dimension: columns of the data, rows of a block.
    k : int
        Half of the rank of B; for the corollaries at most d / 2.
    epsilon : float
        Of the promise (epsilon, delta); above 0.
    delta : float, default 0.0
        Of the promise (epsilon, delta): between 0 and 1 for "gaussian", which refuses the default; not used by
        "laplace".
    mechanism : {"gaussian", "laplace"}, default "gaussian"
        The law of the noise.
    constant : float, default 1.0
        Constant that the theorem leaves open; above 0.

    Returns
    -------
    Prediction
        ``value``: the spectral norm of A - B in the units of the eigenvalues, inf without a gap; ``constants``:
        ``constant``; ``flags``: ``gap`` and ``p_at_most_d`` (2 k <= d).

    Raises
    ------
    BadInputError
        A mechanism of another name, or numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.lowrank_rate(1e5, 1e5, 1e4, d=100, k=2, epsilon=1.0, delta=1e-6).value)  # s_{k+1} and 132 by noise
    10132
    """
    one_of(RELEASES, mechanism=mechanism)
    gap = spectrum_gap(s_k, s_k1)
    spectrum_gap(s_1, s_k)
    counts(d=d, k=k)
    positive(epsilon=epsilon, constant=constant)
    flags = {"gap": gap > 0, "p_at_most_d": 2 * k <= d}
    if mechanism == "gaussian":
        probability(delta=delta)
    if not gap:
        return Prediction(math.inf, {"constant": constant}, flags)
    g, log_d = gap / s_k, math.log(max(d, 2))
    if mechanism == "gaussian":
        noise = math.sqrt(k / g * d * log_d * math.log(1 / delta))
    else:
        noise = k**1.5 * d * log_d * math.log(max(d, 2) / g) / g
    return Prediction(s_k1 + constant * s_1 * noise / (epsilon * gap), {"constant": constant}, flags)


def _rate_of_sine(noise: float, s_k: float, s_next: float, d: int, q: int, p: int, constant: float) -> Prediction:
    gap = spectrum_gap(s_k, s_next)
    ranks(d, q, p)
    positive(constant=constant)
    value = constant * noise / gap * start_factor(p, q, p) if gap else math.inf
    return Prediction(value, {"constant": constant}, {"gap": gap > 0, "says_something": value < 1})


def _log(releases: int) -> float:
    """log L; of L = 1 that of 2, as a single release is not free of noise."""
    counts(releases=releases)
    return math.log(max(releases, 2))


START_SHARE = 0.8  # of fail_prob: a bad start costs more than loud noise, whose tail is Gaussian


def ppm_error(
    spectrum: np.ndarray,
    stddevs: Sequence[float],
    *,
    d: int,
    k: int,
    p: int,
    tau: float | None = None,
    fail_prob: float = 0.1,
    mechanism: str = "gaussian",
) -> Prediction:
    """
    Bound the error of the private power method with all constants.

    Bound of ||(I - X_L X_L^T) U_k||, the sine of the largest angle to the top ``k`` eigenvectors, after all steps.

    Parameters
    ----------
    spectrum : array_like, shape (m,)
        Sizes of the eigenvalues, at most ``d``; signs and order do not matter, and those that are left out are zero.
    stddevs : sequence of float
        Standard deviation of the noise on every entry, one for each of the L steps; not negative.
    d : int
        Dimension: columns of the data, rows of a block.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; from ``k`` to ``d``.
    tau : float, optional
        None: the bound holds but with probability ``fail_prob``, the random start included (:func:`init_tan_explicit`
        with 4/5 of it, the rest for the norms of noise, half each for G and for U_q^T G). Otherwise, above 0: tan
        theta_q(X_0) <= tau sqrt(d) / (sqrt(p) - sqrt(q - 1)) is taken for granted (Lemma 2.5, whose probability has an
        open constant, ``flags["start_promised"]``: tau > 1), and ``fail_prob`` is of the noise alone.
    fail_prob : float, default 0.1
        Probability with which the bound may fail; between 0 and 1.
    mechanism : {"gaussian", "laplace"}, default "gaussian"
        Law of the noise; of "laplace", too, the standard deviation is given.

    Returns
    -------
    Prediction
        ``value``: the bound of the sine, 1 where nothing is promised; ``constants``: ``fail_prob``, and ``tau`` where
        it is given; ``flags``: ``noise_small_enough``, and ``start_promised`` where ``tau`` is given.

    Raises
    ------
    BadInputError
        A mechanism of another name, or numbers outside of their ranges.

    Notes
    -----
    The best intermediate rank q from k to p is taken, which follows from the arguments alone, so that no union over q
    is needed. Two recursions are followed together (derived from Lemma 2.3 of Hardt and Price and Theorem 2.2 of Balcan
    et al., without constants), t for the tangent to the top q eigenvectors and h for a vector of range(X) over each of
    the top k:

        t' = (sigma_{q+1} t + ||G|| sqrt(1 + t^2)) / (sigma_q - ||U_q^T G|| sqrt(1 + t^2))
        h' = (sigma_{q+1} h + sqrt(1 + h^2) (||G|| + t' ||U_q^T G||)) / sigma_k

    ``flags["noise_small_enough"]``: the denominator stayed positive for some q. Otherwise the value is 1: nothing
    is promised. The truth is better: the recursion takes the worst case of every step, above all of the first, where
    a random start is far from everything; :func:`predicted_sine` is what is observed.

    Examples
    --------
    >>> from npmdask import theory
    >>> spectrum = [100.0, 90.0, 10.0, 5.0, 1.0]
    >>> for stddev in (0.01, 0.1, 1.0):
    ...     error = theory.ppm_error(spectrum, [stddev] * 10, d=50, k=2, p=4)
    ...     print(round(error.value, 4), error.flags["noise_small_enough"])
    0.0016 True
    0.0161 True
    1.0 False
    """
    sizes = falling(spectrum, d, k, p)
    probability(fail_prob=fail_prob)
    run = _Run(list(stddevs), d, k, p, tau, fail_prob, mechanism)
    h = min(_tangent(sizes, run, q) for q in range(k, p + 1))
    constants = {"fail_prob": fail_prob} if tau is None else {"tau": tau, "fail_prob": fail_prob}
    flags = {"noise_small_enough": h < math.inf} | ({} if tau is None else start_promised(tau))
    return Prediction(sine_of(h), constants, flags)


class _Run(NamedTuple):
    stddevs: list[float]
    d: int
    k: int
    p: int
    tau: float | None
    fail_prob: float
    mechanism: str

    def start(self, q: int) -> float:
        if self.tau is None:
            return init_tan_explicit(self.d, q, self.p, START_SHARE * self.fail_prob).value
        positive(tau=self.tau)
        return self.tau * start_factor(self.d, q, self.p)

    def norms(self, q: int) -> list[tuple[float, float]]:
        """Bound the norms of G and of U_q^T G, for every step."""
        norm, steps = norm_of(self.mechanism), len(self.stddevs)
        share = self.fail_prob * (1 - START_SHARE if self.tau is None else 1.0) / 2
        return [(norm(s, self.d, self.p, steps, share), norm(s, q, self.p, steps, share)) for s in self.stddevs]


def _tangent(sizes: np.ndarray, run: _Run, q: int) -> float:
    """h of :func:`ppm_error` with intermediate rank ``q``; inf if a denominator is not positive."""
    kth, qth, following = float(sizes[run.k - 1]), float(sizes[q - 1]), float(sizes[q])
    t = h = run.start(q)
    for whole, inside in run.norms(q):
        below = qth - (inside * math.hypot(1, t) if inside else 0.0)
        if below <= 0 or t == math.inf:
            return math.inf
        t = (following * t + whole * math.hypot(1, t)) / below
        h = t if q == run.k else (following * h + math.hypot(1, h) * (whole + t * inside)) / kth
    return h


def lowrank_error(
    spectrum: np.ndarray,
    stddevs: Sequence[float],
    *,
    d: int,
    k: int,
    p: int,
    tau: float | None = None,
    fail_prob: float = 0.1,
    mechanism: str = "gaussian",
) -> Prediction:
    """
    Bound the error of a private low-rank approximation with all constants.

    Bound of ||A - X_L Y^T||, Y = A X_L + G the last of L + 1 releases (Hardt and Price 2014, section 4.1).

    sigma_{k+1} + sin(theta_k) sigma_1 + ||G_{L+1}||, as in the proof of Corollary 4.3; 4.6 and 4.7 by ``stddevs`` and
    ``mechanism``. Half of ``fail_prob`` is for the angle, all else as in :func:`ppm_error`. ``stddevs``: L + 1 of them;
    the last belongs to Y.

    Parameters
    ----------
    spectrum : array_like, shape (m,)
        Sizes of the eigenvalues, at most ``d``; signs and order do not matter, and those that are left out are zero.
    stddevs : sequence of float
        Standard deviation of the noise on every entry, L + 1 of them and two at least: the last belongs to Y.
    d : int
        Dimension: columns of the data, rows of a block.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; from ``k`` to ``d``.
    tau : float, optional
        As for :func:`ppm_error`.
    fail_prob : float, default 0.1
        Probability with which the bound may fail; between 0 and 1.
    mechanism : {"gaussian", "laplace"}, default "gaussian"
        Law of the noise; of "laplace", too, the standard deviation is given.

    Returns
    -------
    Prediction
        ``value``: the bound of the spectral norm, in the units of the eigenvalues; ``constants`` and ``flags`` of
        :func:`ppm_error`, ``fail_prob`` as it was given.

    Raises
    ------
    BadInputError
        Fewer than two releases, a mechanism of another name, or numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> spectrum = [100.0, 90.0, 10.0, 5.0, 1.0]
    >>> round(theory.lowrank_error(spectrum, [0.01] * 11, d=50, k=2, p=4).value, 2)  # the least that rank 2 leaves: 10
    10.28
    """
    if len(stddevs) < 2:
        raise BadInputError("a low-rank release needs the noise of at least two releases: the steps and the factor Y")
    probability(fail_prob=fail_prob)
    angle = ppm_error(spectrum, stddevs[:-1], d=d, k=k, p=p, tau=tau, fail_prob=fail_prob / 2, mechanism=mechanism)
    sizes = falling(spectrum, d, k, p)
    last = norm_of(mechanism)(stddevs[-1], d, p, 1, fail_prob / 2)
    value = float(sizes[k] + angle.value * sizes[0] + last)
    return Prediction(value, angle.constants | {"fail_prob": fail_prob}, angle.flags)


def coherence_linf_bound(coherence: float, d: int, *, p: int = 1, releases: int = 1) -> Prediction:
    """
    Bound the entries of every block of the iteration by the coherence.

    4 sqrt(mu ln(d) / d), which no |X_ij| exceeds with probability 1 - 1 / d (proof of Theorem 4.9).

    Proved for noise whose size was fixed in advance, which is Gaussian: the cap of the relations ``entry`` and
    ``symmetric_entry``. ``flags["p_and_releases_at_most_d"]``: for so many columns and releases. ln(1) is read as
    ln(2): the only entry of a block with d = 1 is 1.

    Parameters
    ----------
    coherence : float
        Coherence mu of the eigenvectors, from 1 to ``d``.
    d : int
        Dimension: columns of the data, rows of a block.
    p : int, default 1
        Columns of a block.
    releases : int, default 1
        How many products are released.

    Returns
    -------
    Prediction
        ``value``: the bound, which says something below 1 only; ``flags``: ``p_and_releases_at_most_d``. No constant is
        open.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [round(theory.coherence_linf_bound(5.0, d).value, 2) for d in (100, 1000, 10_000)]
    [1.92, 0.74, 0.27]
    """
    counts(d=d, p=p, releases=releases)
    require(1 <= coherence <= d, f"coherence = {coherence:g} is impossible: it must be between 1 and the dimension {d}")
    value = 4 * math.sqrt(coherence * math.log(max(d, 2)) / d)
    return Prediction(value, {}, {"p_and_releases_at_most_d": max(p, releases) <= d})


def ppm_error_coherent(
    spectrum: np.ndarray,
    sigma: float,
    coherence: float,
    *,
    d: int,
    k: int,
    p: int,
    releases: int,
    tau: float | None = None,
    fail_prob: float = 0.1,
) -> Prediction:
    """
    Bound the error of the private power method on incoherent eigenvectors with all constants.

    :func:`ppm_error` with Hardt and Price's noise, stddev = ``sigma`` max |X_ij|, and its cap (Theorem 1.4).

    1 / d of ``fail_prob`` is for the cap of :func:`coherence_linf_bound`; where that is not below 1, or ``fail_prob``
    is no larger than 1 / d, 1 takes its place, which no entry exceeds.

    Parameters
    ----------
    spectrum : array_like, shape (m,)
        Sizes of the eigenvalues, at most ``d``; signs and order do not matter, and those that are left out are zero.
    sigma : float
        Standard deviation of the noise for a block whose largest entry is 1; not negative.
    coherence : float
        Coherence mu of the eigenvectors, from 1 to ``d``.
    d : int
        Dimension: columns of the data, rows of a block.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; from ``k`` to ``d``.
    releases : int
        L, how many products are released.
    tau : float, optional
        As for :func:`ppm_error`.
    fail_prob : float, default 0.1
        Probability with which the bound may fail; between 0 and 1.

    Returns
    -------
    Prediction
        ``value``: the bound of the sine, 1 where nothing is promised; ``constants``: ``fail_prob``, and ``tau`` where
        it is given; ``flags``: ``noise_small_enough`` and ``p_and_releases_at_most_d``, and ``start_promised`` where
        ``tau`` is given.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> spectrum = [100.0, 90.0, 10.0, 5.0, 1.0]
    >>> for coherence in (1.0, 5.0):
    ...     error = theory.ppm_error_coherent(spectrum, 0.02, coherence, d=1000, k=2, p=4, releases=10)
    ...     print(round(error.value, 4))
    0.0031
    0.0069
    """
    probability(fail_prob=fail_prob)
    cap = coherence_linf_bound(coherence, d, p=p, releases=releases)
    below_one = cap.value < 1 and fail_prob > 1 / d
    stddev, rest = (sigma * cap.value, fail_prob - 1 / d) if below_one else (sigma, fail_prob)
    found = ppm_error(spectrum, [stddev] * releases, d=d, k=k, p=p, tau=tau, fail_prob=rest)
    return Prediction(found.value, found.constants | {"fail_prob": fail_prob}, found.flags | cap.flags)


def dist_error(
    spectrum: np.ndarray,
    stddevs: Sequence[float],
    nodes: int,
    *,
    d: int,
    k: int,
    p: int,
    tau: float | None = None,
    fail_prob: float = 0.1,
) -> Prediction:
    """
    Bound the error of the private power method of several nodes with all constants.

    :func:`ppm_error` when each of ``nodes`` adds Gaussian noise of its own: sqrt(nodes) times as much in the sum.

    ``spectrum`` is that of the sum of the nodes' matrices (Balcan, Du, Wang and Yu 2016, Theorem 3.1; confidence of
    its restored form: high up to logarithms, and nothing of it but sqrt(nodes) is used here).

    Parameters
    ----------
    spectrum : array_like, shape (m,)
        Sizes of the eigenvalues of the sum of the nodes' matrices, at most ``d``; signs and order do not matter, and
        those that are left out are zero.
    stddevs : sequence of float
        Standard deviation of the noise of one node on every entry, one for each of the L steps; not negative.
    nodes : int
        How many nodes hold a part of the data.
    d : int
        Dimension: columns of the data, rows of a block.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; from ``k`` to ``d``.
    tau : float, optional
        As for :func:`ppm_error`.
    fail_prob : float, default 0.1
        Probability with which the bound may fail; between 0 and 1.

    Returns
    -------
    Prediction
        ``value``: the bound of the sine, 1 where nothing is promised; ``constants``: ``fail_prob``, and ``tau`` where
        it is given; ``flags``: ``noise_small_enough``, and ``start_promised`` where ``tau`` is given.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> spectrum = [100.0, 90.0, 10.0, 5.0, 1.0]
    >>> [round(theory.dist_error(spectrum, [0.01] * 10, nodes, d=50, k=2, p=4).value, 4) for nodes in (1, 4)]
    [0.0016, 0.0032]
    """
    counts(nodes=nodes)
    louder = [math.sqrt(nodes) * stddev for stddev in stddevs]
    return ppm_error(spectrum, louder, d=d, k=k, p=p, tau=tau, fail_prob=fail_prob)


def dist_comm(nodes: int, p: int, d: int, releases: int, model: str = "broadcast") -> Prediction:
    """
    Count the numbers that nodes send.

    Numbers that are sent: releases (nodes + 1) p d with a broadcast channel, 2 releases nodes p d point to point.

    Counted; Balcan, Du, Wang and Yu 2016, Theorem 3.1 and Corollary 3.2, have O(nodes p d L) (confidence: high).

    Parameters
    ----------
    nodes : int
        How many nodes hold a part of the data.
    p : int
        Columns that are iterated.
    d : int
        Dimension: columns of the data, rows of a block.
    releases : int
        How many products are released.
    model : {"broadcast", "point_to_point"}, default "broadcast"
        Whether the sum is sent to all nodes at once, or to one after the other.

    Returns
    -------
    Prediction
        ``value``: how many numbers are sent, by all together; ``flags``: ``exact``, always true.

    Raises
    ------
    BadInputError
        A model of another name, or numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [theory.dist_comm(4, p=8, d=1000, releases=5, model=model).value for model in ("broadcast", "point_to_point")]
    [200000.0, 320000.0]
    """
    counts(nodes=nodes, p=p, d=d, releases=releases)
    per_release = {"broadcast": nodes + 1, "point_to_point": 2 * nodes}
    if model not in per_release:
        raise BadInputError(f"unknown model {model!r} of communication: {closest(model, list(per_release))}")
    return Prediction(float(releases * per_release[model] * p * d), {}, {"exact": True})
