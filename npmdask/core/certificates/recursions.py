"""One noisy step by numbers: what bounds its error without an open constant, of everything in :mod:`npmdask.theory`.

sigma_k > sigma_{k+1} are sizes of eigenvalues, U the top k eigenvectors (d x k), X a block (d x p) with orthonormal
columns, G the noise of a step. A certificate is made of these; what the papers say beside them is in the theory, which
has them under its own names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from npmdask.core.certificates.prediction import Prediction
from npmdask.core.numerics.domains import counts, falling, not_negative, probability, spectrum_gap
from npmdask.errors import require


def gaussian_norm(stddev: float, rows: int, columns: int, releases: int = 1, fail_prob: float = 0.1) -> float:
    """
    Bound the spectral norm of blocks of Gaussian noise.

    Spectral norm that none of ``releases`` Gaussian blocks exceeds, except with probability ``fail_prob``.

    stddev (sqrt(rows) + sqrt(columns) + sqrt(2 ln(releases / fail_prob))): Gordon's bound of the mean, Gaussian
    concentration about it, union bound. Explicit where Lemma A.2 of Hardt and Price has a constant.

    Parameters
    ----------
    stddev : float
        Standard deviation of every entry; not negative.
    rows : int
        Rows of a block.
    columns : int
        Columns of a block.
    releases : int, default 1
        How many blocks the bound is to hold for at once.
    fail_prob : float, default 0.1
        Probability with which one of the blocks may exceed the bound; between 0 and 1.

    Returns
    -------
    float
        The bound, in the units of ``stddev``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.gaussian_norm(0.1, rows=1000, columns=10), 2)
    3.69
    """
    not_negative(stddev=stddev)
    counts(rows=rows, columns=columns, releases=releases)
    probability(fail_prob=fail_prob)
    return stddev * (math.sqrt(rows) + math.sqrt(columns) + math.sqrt(2 * math.log(releases / fail_prob)))


def npm_error_recursion(t: float, s_k: float, s_k1: float, g: float, g_u: float) -> Prediction:
    """
    Bound the tangent after one noisy step.

    Bound of tan theta_k(U, A X + G) from ``t`` = tan theta_k(U, X): exact in its constants.

    (s_k1 t + g sqrt(1 + t^2)) / (s_k - g_u sqrt(1 + t^2)), g >= ||V^T G||, g_u >= ||U^T G||; inf where the denominator
    is not positive (``flags["noise_small_enough"]``). ``flags["contracts"]``: it is below ``t``.

    Parameters
    ----------
    t : float
        The tangent tan theta_k(U, X) before the step; not negative.
    s_k : float
        The k-th largest eigenvalue (its size).
    s_k1 : float
        The one after it, no larger than ``s_k``.
    g : float
        Bound of ||V^T G||, for which one of ||G|| will do; in the units of the eigenvalues.
    g_u : float
        Bound of the norm of its part in the leading eigenspace, U^T G.

    Returns
    -------
    Prediction
        ``value``: the bound; ``flags``: ``noise_small_enough`` and ``contracts``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.npm_error_recursion(t=2.0, s_k=1.0, s_k1=0.5, g=0.01, g_u=0.01).value
    1.0457442316658287
    >>> theory.npm_error_recursion(t=2.0, s_k=1.0, s_k1=0.5, g=0.0, g_u=0.0).value  # without noise: s_k1 / s_k
    1.0
    """
    spectrum_gap(s_k, s_k1)
    not_negative(t=t, g=g, g_u=g_u)
    root = math.hypot(1, t)
    below = s_k - g_u * root
    value = (s_k1 * t + g * root) / below if below > 0 else math.inf
    return Prediction(value, {}, {"noise_small_enough": below > 0, "contracts": value < t})


def improved_recursion(h: float, s_k: float, s_q1: float, g: float, g_uq: float, t_q: float) -> Prediction:
    """
    Bound the perturbation after one noisy step with an intermediate rank.

    Bound of the next h from ``h``, without constants: (s_{q+1} h + sqrt(1 + h^2) (g + t_q g_uq)) / s_k.

    ``g`` >= ||G||, ``g_uq`` >= ||U_q^T G||, ``t_q`` = ||U_{d-q}^T Y (U_q^T Y)^+|| of the product Y = A X + G, the
    tangent to all q. Derived here; Lemma 2.1 of the paper (confidence of its restored form: med) follows. Without
    noise it contracts by s_{q+1} / s_k exactly.

    Parameters
    ----------
    h : float
        Rank-k perturbation on the top q eigenvectors U_q, the norm of H where range(X) contains U_k + U_{d-q} H; at
        least the sine of the largest angle to U_k. Not negative.
    s_k : float
        The k-th largest eigenvalue (its size).
    s_q1 : float
        The eigenvalue number q + 1, no larger than ``s_k``.
    g : float
        Bound of the spectral norm of the noise, in the units of the eigenvalues.
    g_uq : float
        Bound of the norm of its part in the leading q eigenvectors, U_q^T G.
    t_q : float
        Tangent of the angle between the product Y and all q leading eigenvectors; not negative.

    Returns
    -------
    Prediction
        ``value``: the bound of the next h; ``flags["contracts"]``: it is below ``h``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.improved_recursion(h=3.0, s_k=1.0, s_q1=0.5, g=0.0, g_uq=0.0, t_q=1.0).value
    1.5
    """
    spectrum_gap(s_k, s_q1)
    not_negative(h=h, g=g, g_uq=g_uq, t_q=t_q)
    value = (s_q1 * h + math.hypot(1, h) * (g + t_q * g_uq)) / s_k
    return Prediction(value, {}, {"contracts": value < h})


def predicted_sine(ritz_values: np.ndarray, stddevs: Sequence[float], *, d: int, k: int) -> Prediction:
    """
    Estimate the error of the private power method from released values only.

    The likely sine of the largest angle to the top ``k`` eigenvectors, estimated from RELEASED values only.

    An estimate and not a bound: the released Ritz values are taken for eigenvalues.

    Parameters
    ----------
    ritz_values : array_like, shape (p,)
        All p released Ritz values, of the last release; signs and order do not matter.
    stddevs : sequence of float
        Standard deviation of the noise of each of the L releases (public), one at least; not negative.
    d : int
        Dimension: columns of the data, at least p.
    k : int
        Leading vectors that are wanted; at most p.

    Returns
    -------
    Prediction
        ``value``: the likely sine, at most 1; ``flags``: ``gap_seen`` (p > k). No constant is assumed.

    Raises
    ------
    BadInputError
        No release, or numbers outside of their ranges.

    Notes
    -----
    To first order, over the k-th eigenvector the coefficient on eigenvector j obeys h' = (sigma_j h + g) / sigma_k.
    So with rho = theta_{q+1} / theta_k, which represents all j > q,

        h^2 = (rho^L sqrt(d) / (sqrt(p) - sqrt(q - 1)))^2
              + (sqrt(d - q) + sqrt(k))^2 / theta_k^2  sum over l of stddev_l^2 rho^(2 (L - l)),

    at the q from k to p - 1 that makes it least; sine = h / sqrt(1 + h^2). Values of the size of the noise make it
    1, as they should. With p = k nothing is known of sigma_{k+1} and rho = 1 (``flags["gap_seen"]`` is False).

    Examples
    --------
    >>> from npmdask import theory
    >>> ritz_values, stddevs = [100.0, 90.0, 10.0, 5.0], [0.1] * 10
    >>> round(theory.predicted_sine(ritz_values, stddevs, d=50, k=2).value, 4)
    0.0092
    >>> round(theory.ppm_error(ritz_values, stddevs, d=50, k=2, p=4).value, 4)  # the bound, of a known spectrum
    0.0161
    """
    p = len(ritz_values)
    require(len(stddevs) >= 1, "a prediction needs the noise of at least one release")
    theta = falling(ritz_values, d, k, p)[:p]
    for stddev in stddevs:
        not_negative(stddev=stddev)
    candidates = [(q, theta[q]) for q in range(k, p)] or [(k, theta[k - 1])]
    h = min(_likely_tangent(theta[k - 1], following, stddevs, d, k, p, q) for q, following in candidates)
    return Prediction(float(sine_of(h)), {}, {"gap_seen": p > k})


def _likely_tangent(kth: float, following: float, stddevs: Sequence[float], d: int, k: int, p: int, q: int) -> float:
    """h of :func:`predicted_sine` for one intermediate rank."""
    if kth == 0:
        return math.inf
    rho = following / kth
    ages = np.arange(len(stddevs))[::-1]
    sum_of_squares = float(np.sum(np.square(stddevs) * rho ** (2.0 * ages)))
    noise = (math.sqrt(d - q) + math.sqrt(k)) * math.sqrt(sum_of_squares) / kth
    start = rho ** len(stddevs) * math.sqrt(d) / (math.sqrt(p) - math.sqrt(q - 1))
    return math.hypot(noise, start)


def sine_of(tangent: float) -> float:
    return 1.0 if tangent == math.inf else tangent / math.hypot(1, tangent)
