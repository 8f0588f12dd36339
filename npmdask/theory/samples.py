"""Count the rows that the streaming power method needs (Hardt and Price 2014, section 3; Balcan et al. 2016, 4).

A distribution of rows z in R^d is (B, p)-round if Pr{||z|| > t} <= e^-t and Pr{||P z|| > t sqrt(B p / d)} <= e^-t for
every projection P to p dimensions and all t >= 1. Eigenvalues sigma_1 >= sigma_2 >= ... are those of E z z^T, n counts
all rows of a run unless said otherwise; ``constant`` is what O~ hides, logarithms of n and 1 / acc included.

Hardt and Price print "n <=" for what is meant to be n >=, and drop a factor d in the proof of Corollary 3.3, which is
itself right: it is Theorem 3.2 with the B of :func:`roundness_spiked`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from npmdask.core.certificates.prediction import Prediction
from npmdask.core.numerics.domains import accuracy, counts, exponent, not_negative, positive, ranks, spectrum_gap
from npmdask.errors import require
from npmdask.theory.power import NoiseBound, NoisePrediction

PROVED_SCALE = 2.0  # of D: the largest quantiles of sums of squares are then those of one square


def roundness_spiked(lams: Sequence[float], sigma: float, d: int, *, scale: float = 2.0) -> Prediction:
    """
    Compute the roundness of Gaussian rows with spikes.

    B of N(0, (U diag(lams)^2 U^T + sigma^2 I) / D), D = scale (d sigma^2 + sum lams^2) (Lemma 3.6), for every p.

    (lam_1^2 + sigma^2) / (sum lams^2 / d + sigma^2); the lemma prints tr(Lambda) for the sum of squares, which is not
    free of units. No constant is open with scale = 2 (``flags["proved"]``): no Gaussian z with E ||z||^2 = 1/2 has a
    larger Pr{||z||^2 > t^2} than one in a single dimension (Szekely and Bakirov 2003), at t >= 1 at most
    2 Phi(-sqrt(2) t) < e^-t. With scale = 1 the first condition fails: E ||z||^2 = 1 in three dimensions gives 0.39.

    Parameters
    ----------
    lams : sequence of float
        Strengths lam_i of the spikes in any order, above 0; 1 to ``d`` of them.
    sigma : float
        Standard deviation of the noise on each coordinate of a row; not negative.
    d : int
        Dimension: columns of the data.
    scale : float, default 2.0
        Factor of D, by which the covariance is divided; above 0, and 2 or more for what is proved.

    Returns
    -------
    Prediction
        ``value``: B, for every p, free of units; ``constants``: ``scale``; ``flags``: ``proved`` (scale >= 2).

    Raises
    ------
    BadInputError
        No spike or more than ``d``, or numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [round(theory.roundness_spiked([2.0, 1.0], sigma, 100).value, 2) for sigma in (0.0, 1.0, 10.0)]
    [80.0, 4.76, 1.04]
    """
    strengths = sorted(map(float, lams), reverse=True)
    counts(d=d)
    positive(scale=scale)
    not_negative(sigma=sigma)
    require(1 <= len(strengths) <= d, f"a spiked model has 1 to d = {d} positive strengths")
    for strength in strengths:
        positive(strength=strength)
    squares = sum(strength**2 for strength in strengths)
    value = (strengths[0] ** 2 + sigma**2) / (squares / d + sigma**2)
    return Prediction(value, {"scale": scale}, {"proved": scale >= PROVED_SCALE})


def spm_block_noise(n: int, d: int, p: int, B: float, *, constant: float = 1.0) -> NoisePrediction:
    """
    Bound the sampling noise of a block of rows.

    Norms of G = (A_l - A) X and of U^T G for a block of ``n`` rows (Lemma 3.5), but with probability O(1 / n^2).

    constant sqrt(B p ln^4 n ln d / (d n)) + 1 / n^2, and the same with B p / d once more under the root.
    ``flags["averaged"]``: n >= p rows in a block, as no fewer can span p columns. ``flags["logarithms"]``: d > 1, where
    ln d is not 0, and n >= e^4, beyond which ln^4 n / n falls as noise does.

    Parameters
    ----------
    n : int
        Rows of the block, from 1.
    d : int
        Dimension: columns of the data.
    p : int
        Columns that are iterated; at most ``d``.
    B : float
        Roundness of the rows, above 0: Pr{||z|| > t} <= e^-t and Pr{||P z|| > t sqrt(B p / d)} <= e^-t for every
        projection P to p dimensions and all t >= 1; see :func:`roundness_spiked`.
    constant : float, default 1.0
        Constant that the lemma leaves open; above 0.

    Returns
    -------
    Predictions
        ``value``: a :class:`NoiseBound`, ``whole`` of G and ``inside`` of U^T G; ``constants``: ``constant``;
        ``flags``: ``averaged`` and ``logarithms``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> noise = theory.spm_block_noise(10**6, 100, 5, 2.0).value
    >>> round(noise.whole, 3), round(noise.inside, 3)
    (0.13, 0.041)
    """
    ranks(d, 1, p)
    counts(n=n)
    positive(B=B, constant=constant)
    share, rate = B * p / d, math.log(n) ** 4 * math.log(d) / n
    whole, inside = (constant * math.sqrt(factor * rate) + 1 / n**2 for factor in (share, share**2))
    return NoisePrediction(
        NoiseBound(whole, inside),
        {"constant": constant},
        {"averaged": n >= p, "logarithms": d > 1 and n >= math.exp(4)},
    )


def spm_samples(
    s_k: float, s_k1: float, acc: float, *, d: int, k: int, p: int, B: float, constant: float = 1.0
) -> Prediction:
    """
    Compute how many rows the streaming power method needs.

    n of Theorem 3.2: constant B p s_k max(1 / acc^2, B p / (sqrt p - sqrt(k-1))^2) ln^2 d / ((s_k - s_{k+1})^3 d).

    For tan theta_k <= acc with probability 0.9; inf without a gap.

    Parameters
    ----------
    s_k : float
        The k-th largest eigenvalue of E z z^T; above 0.
    s_k1 : float
        The one after it, not negative and no larger than ``s_k``.
    acc : float
        The tangent tan theta_k that is asked for; above 0 and below 1, for the theorem below 1/2.
    d : int
        Dimension: columns of the data.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; from ``k`` to ``d``.
    B : float
        Roundness of the rows, above 0: Pr{||z|| > t} <= e^-t and Pr{||P z|| > t sqrt(B p / d)} <= e^-t for every
        projection P to p dimensions and all t >= 1; see :func:`roundness_spiked`.
    constant : float, default 1.0
        What O~ hides, logarithms of n and 1 / acc included; above 0.

    Returns
    -------
    Prediction
        ``value``: n, all rows of a run, not rounded, inf without a gap; ``constants``: ``constant``; ``flags``:
        ``gap``, ``accuracy_below_half`` and ``logarithms`` (d > 1, where ln d is not 0).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [round(theory.spm_samples(1.0, 0.5, acc, d=100, k=2, p=4, B=2.0).value) for acc in (0.1, 0.01)]
    [1357, 135729]
    >>> theory.spm_samples(1.0, 1.0, 0.1, d=100, k=2, p=4, B=2.0).value
    inf
    """
    gap = spectrum_gap(s_k, s_k1, acc)
    ranks(d, k, p)
    positive(B=B, constant=constant)
    larger = max(1 / acc**2, B * p / (math.sqrt(p) - math.sqrt(k - 1)) ** 2)
    return _rows(B * p * s_k * larger, gap, d, constant, acc)


def spm_samples_improved(
    s_k: float, s_q1: float, acc: float, *, d: int, q: int, p: int, B: float, constant: float = 1.0
) -> Prediction:
    """
    Compute how many rows are needed with an intermediate rank.

    n with an intermediate rank q (Balcan et al., Theorem 4.2), rows being round for q dimensions, too.

    constant B p s_k max(1, B p / (sqrt p - sqrt(q-1))^2) ln^2 d / (acc^2 (s_k - s_{q+1})^3 d): derived here from
    Lemma 3.5 and the noise of Theorem 2.2, whose second condition has acc in it. The paper's own form was not legible
    (confidence that it is the smaller max(1 / acc^2, ...) of Hardt and Price: med).

    Parameters
    ----------
    s_k : float
        The k-th largest eigenvalue of E z z^T; above 0.
    s_q1 : float
        Eigenvalue number q + 1, not negative and no larger than ``s_k``.
    acc : float
        The tangent tan theta_k that is asked for; above 0 and below 1, for the theorem below 1/2.
    d : int
        Dimension: columns of the data.
    q : int
        Intermediate rank, from k to ``p``.
    p : int
        Columns that are iterated; from ``q`` to ``d``.
    B : float
        Roundness of the rows, above 0: Pr{||z|| > t} <= e^-t and Pr{||P z|| > t sqrt(B p / d)} <= e^-t for every
        projection P to p dimensions and all t >= 1; see :func:`roundness_spiked`.
    constant : float, default 1.0
        What O~ hides, logarithms of n and 1 / acc included; above 0.

    Returns
    -------
    Prediction
        ``value``: n, all rows of a run, not rounded, inf where s_{q+1} = s_k; ``constants``: ``constant``; ``flags``:
        ``gap`` (s_k > s_{q+1}), ``accuracy_below_half`` and ``logarithms`` (d > 1, where ln d is not 0).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.spm_samples_improved(1.0, 0.9, 0.1, d=100, q=2, p=6, B=2.0).value)  # the small gap after k = 2
    1453529
    >>> round(theory.spm_samples_improved(1.0, 0.2, 0.1, d=100, q=3, p=6, B=2.0).value)  # a large one after q = 3
    5565
    """
    gap = spectrum_gap(s_k, s_q1, acc)
    ranks(d, q, p)
    positive(B=B, constant=constant)
    larger = max(1.0, B * p / (math.sqrt(p) - math.sqrt(q - 1)) ** 2) / acc**2
    return _rows(B * p * s_k * larger, gap, d, constant, acc)


def spm_samples_general(s_k: float, s_k1: float, acc: float, *, d: int, k: int, constant: float = 1.0) -> Prediction:
    """
    Compute how many rows are needed for any distribution with light tails.

    Any distribution with Pr{||z|| > t} <= e^-t for all t >= 1, p = 2 k (Corollary 3.4):
    constant s_k d / (acc^2 k (s_k - s_{k+1})^3).

    Parameters
    ----------
    s_k : float
        The k-th largest eigenvalue of E z z^T; above 0.
    s_k1 : float
        The one after it, not negative and no larger than ``s_k``.
    acc : float
        The tangent tan theta_k that is asked for; above 0 and below 1, for the theorem below 1/2.
    d : int
        Dimension: columns of the data.
    k : int
        Leading vectors that are wanted; at most ``d``, for the corollary d / 2.
    constant : float, default 1.0
        What O~ hides, logarithms of n and 1 / acc included; above 0.

    Returns
    -------
    Prediction
        ``value``: n, all rows of a run, not rounded, inf without a gap; ``constants``: ``constant``; ``flags``:
        ``gap``, ``accuracy_below_half`` and ``p_at_most_d`` (2 k <= d).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.spm_samples_general(1.0, 0.5, 0.1, d=100, k=2).value)  # 1,357 by Theorem 3.2 where B = 2 and p = 4
    40000
    """
    gap = spectrum_gap(s_k, s_k1, acc)
    ranks(d, k, min(2 * k, d))
    positive(constant=constant)
    value = constant * s_k * d / (acc**2 * k * gap**3) if gap else math.inf
    flags = {"gap": gap > 0, "accuracy_below_half": acc < 0.5, "p_at_most_d": 2 * k <= d}
    return Prediction(value, {"constant": constant}, flags)


def spm_samples_powerlaw(c: float, acc: float, *, d: int, k: int, constant: float = 1.0) -> Prediction:
    """
    Compute how many rows are needed for eigenvalues that fall as a power.

    :func:`spm_samples_general` with sigma_j = j^-c (Corollary 3.4): constant k^(2 c + 2) d / acc^2, c > 1/2.

    Parameters
    ----------
    c : float
        Exponent of the eigenvalues; above 0 and at most 100, for the corollary above 1/2.
    acc : float
        The tangent tan theta_k that is asked for; above 0 and below 1, for the theorem below 1/2.
    d : int
        Dimension: columns of the data.
    k : int
        Leading vectors that are wanted; at most ``d``, for the corollary d / 2.
    constant : float, default 1.0
        What O~ hides, logarithms of n and 1 / acc included; above 0.

    Returns
    -------
    Prediction
        ``value``: n, all rows of a run, not rounded; ``constants``: ``constant``; ``flags``: ``falls_fast_enough`` (c >
        1/2), ``accuracy_below_half`` and ``p_at_most_d`` (2 k <= d).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [round(theory.spm_samples_powerlaw(1.0, 0.1, d=100, k=k).value) for k in (1, 2, 4)]  # k^4 where c = 1
    [10000, 160000, 2560000]
    """
    exponent(c=c)
    positive(constant=constant)
    ranks(d, k, min(2 * k, d))
    accuracy(acc)
    flags = {"falls_fast_enough": c > 0.5, "accuracy_below_half": acc < 0.5, "p_at_most_d": 2 * k <= d}
    return Prediction(constant * k ** (2 * c + 2) * d / acc**2, {"constant": constant}, flags)


def spm_samples_spiked(lams: Sequence[float], sigma: float, acc: float, *, d: int, constant: float = 1.0) -> Prediction:
    """
    Compute how many rows are needed in the spiked model.

    The spiked model with p = 2 k (Corollary 3.3).

    constant (lam_1^2 + sigma^2)^2 (lam_k^2 + sigma^2) d k / (acc^2 lam_k^6), k = len(lams): what Theorem 3.2 gives for
    p = k + Theta(k), B^2 s_k k / (acc^2 (s_k - s_{k+1})^3 d), with the B of :func:`roundness_spiked`.

    Parameters
    ----------
    lams : sequence of float
        Strengths lam_i of the spikes in any order, above 0; 1 to ``d`` of them. Their number is k.
    sigma : float
        Standard deviation of the noise on each coordinate of a row; not negative.
    acc : float
        The tangent tan theta_k that is asked for; above 0 and below 1, for the theorem below 1/2.
    d : int
        Dimension: columns of the data.
    constant : float, default 1.0
        What O~ hides, logarithms of n and 1 / acc included; above 0.

    Returns
    -------
    Prediction
        ``value``: n, all rows of a run, not rounded; ``constants``: ``constant``; ``flags``: ``accuracy_below_half``
        and ``p_at_most_d`` (2 k <= d).

    Raises
    ------
    BadInputError
        No spike or more than ``d``, or numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [f"{theory.spm_samples_spiked([2.0, weakest], 1.0, 0.1, d=100).value:.1e}" for weakest in (2.0, 1.0, 0.5)]
    ['3.9e+04', '1.0e+06', '4.0e+07']
    """
    roundness_spiked(lams, sigma, d)
    accuracy(acc)
    positive(constant=constant)
    first, last, k = max(lams) ** 2, min(lams) ** 2, len(lams)
    value = constant * (first + sigma**2) ** 2 * (last + sigma**2) * d * k / (acc**2 * last**3)
    return Prediction(value, {"constant": constant}, {"accuracy_below_half": acc < 0.5, "p_at_most_d": 2 * k <= d})


def _rows(numerator: float, gap: float, d: int, constant: float, acc: float) -> Prediction:
    value = constant * numerator * math.log(d) ** 2 / (gap**3 * d) if gap else math.inf
    flags = {"gap": gap > 0, "accuracy_below_half": acc < 0.5, "logarithms": d > 1}
    return Prediction(value, {"constant": constant}, flags)
