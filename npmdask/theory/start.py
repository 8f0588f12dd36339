"""Bound how far a random start is from the leading eigenvectors (Hardt and Price 2014, Lemma 2.5).

U are the top k eigenvectors (d x k), X_0 a random block (d x p) with orthonormal columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaincinv, gammaln

from npmdask.core.certificates.prediction import Prediction
from npmdask.core.certificates.recursions import gaussian_norm
from npmdask.core.numerics.domains import counts, not_negative, one_of, positive, probability, ranks
from npmdask.errors import require

TAIL = 10  # draws beyond a quantile below which it is a guess
SHARE = 0.1  # of a fail_prob: for the part of X_0 outside U, whose tail costs next to nothing


def init_tan_bound(d: int, k: int, p: int, tau: float = 1.0, *, c: float = 1.0) -> Prediction:
    """
    Bound the tangent of a random start, up to an exponent.

    tan theta_k(U, X_0) of a random start (Lemma 2.5): tau sqrt(d) / (sqrt(p) - sqrt(k - 1)).

    It holds but with probability ``fail_prob`` = tau^(-c (p + 1 - k)) + e^(-c d), whose exponent ``c`` the paper leaves
    open; ``flags["says_something"]``: that is below 1. :func:`init_tan_explicit` has no open constant.

    Parameters
    ----------
    d : int
        Dimension: columns of the data, rows of a block.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; at most ``d``.
    tau : float, default 1.0
        How many times worse than a typical start the start may be; at 1 or less the bound promises nothing.
    c : float, default 1.0
        The exponent that the paper leaves open; above 0.

    Returns
    -------
    Prediction
        ``value``: the bound; ``constants``: ``tau``, ``c``, and ``fail_prob``, the probability with which it may fail;
        ``flags``: ``says_something``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.init_tan_bound(d=1000, k=5, p=10, tau=2.0).value, 1)
    54.4
    """
    ranks(d, k, p)
    positive(tau=tau, c=c)
    fail_prob = math.exp(min(-c * (p + 1 - k) * math.log(tau), 700.0)) + math.exp(-c * d)
    constants = {"tau": tau, "c": c, "fail_prob": fail_prob}
    return Prediction(tau * start_factor(d, k, p), constants, {"says_something": fail_prob < 1})


def init_tan_explicit(d: int, k: int, p: int, fail_prob: float = 0.1) -> Prediction:
    """
    Bound the tangent of a random start without an open constant.

    What tan theta_k(U, X_0) of a random start does not exceed but with probability ``fail_prob``; nothing is open.

    (sqrt(d - p) + sqrt(k) + sqrt(2 ln(10 / fail_prob))) / s: the numerator is what the norm of a Gaussian k x (d - p)
    block exceeds with 1/10 of ``fail_prob``, s what the smallest singular value of one of k x p falls below with 9/10;
    the law is that of :func:`init_tan_quantile`, whose quantiles are 1.1 to 1.8 times less where p is far below d, and
    up to 5 times where it is near. inf where floats do not hold s, 0 where p = d.

    Parameters
    ----------
    d : int
        Dimension: columns of the data, rows of a block.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; at most ``d``.
    fail_prob : float, default 0.1
        Probability with which the bound may fail; between 0 and 1.

    Returns
    -------
    Prediction
        ``value``: the bound of tan theta_k(U, X_0); ``constants``: ``fail_prob``; no flags.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [round(theory.init_tan_explicit(d=1000, k=5, p=p).value) for p in (5, 10, 20)]
    [870, 46, 19]
    """
    ranks(d, k, p)
    probability(fail_prob=fail_prob)
    if p == d:
        return Prediction(0.0, {"fail_prob": fail_prob}, {})
    across = math.sqrt(d - p) + math.sqrt(k) + math.sqrt(2 * math.log(1 / (SHARE * fail_prob)))
    least = _smallest_singular_value(k, p, (1 - SHARE) * fail_prob)
    return Prediction(across / least if least > 0 else math.inf, {"fail_prob": fail_prob}, {})


def _smallest_singular_value(k: int, p: int, fail_prob: float) -> float:
    """Bound the smallest singular value of a Gaussian k x p block from below, but with probability ``fail_prob``.

    The density of its square is at most C times that of chi-squared with r = p - k + 1 degrees of freedom,
    C = sqrt(pi) Gamma((p + 1) / 2) / (Gamma(k / 2) Gamma((r + 1) / 2)): equal for k = 1, and close for small squares
    (Edelman 1988, as in Chen and Dongarra 2005). For k far below p: sqrt(p) - sqrt(k) - sqrt(2 ln(1 / fail_prob))
    (Gordon, and concentration).
    """
    r = p - k + 1
    log_c = math.log(math.pi) / 2 + gammaln((p + 1) / 2) - gammaln(k / 2) - gammaln((r + 1) / 2)
    square = 2 * float(gammaincinv(r / 2, min(1.0, math.exp(math.log(fail_prob) - float(log_c)))))
    gordon = math.sqrt(p) - math.sqrt(k) - math.sqrt(2 * math.log(1 / fail_prob))
    return max(math.sqrt(square), gordon)


def init_tan_quantile(d: int, k: int, p: int, prob: float = 0.9, draws: int = 2000, seed: int = 0) -> Prediction:
    """
    Simulate a quantile of the tangent of a random start.

    The number that tan theta_k(U, X_0) of a random start does not exceed with probability ``prob``, by simulation.

    cos^2 of the angles are the eigenvalues of a matrix-variate beta law, so tan^2 theta_k is the largest eigenvalue of
    A^-1 B with Wishart matrices A (p degrees of freedom) and B (d - p), k x k both: a draw costs k^3 whatever d is.

    Parameters
    ----------
    d : int
        Dimension: columns of the data, rows of a block.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; at most ``d``.
    prob : float, default 0.9
        Probability with which a start is no worse than the answer; between 0 and 1.
    draws : int, default 2000
        Random starts that are simulated; at least 10 should lie on either side of the quantile.
    seed : int, default 0
        Of the simulation: a whole number from 0 on.

    Returns
    -------
    Prediction
        ``value``: the quantile, 0 where p = d; ``constants``: ``draws`` and ``seed``; ``flags["enough_draws"]``: at
        least 10 draws are expected on either side, without which it is a guess.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.init_tan_quantile(d=1000, k=5, p=10).value)
    36
    """
    ranks(d, k, p)
    probability(prob=prob)
    counts(draws=draws)
    require(isinstance(seed, int | np.integer) and seed >= 0, f"seed = {seed!r} must be a whole number from 0 on")
    if d == p:
        return Prediction(0.0, {"draws": draws, "seed": seed}, {"enough_draws": True})
    rng = np.random.default_rng(seed)
    above, below = (_wishart_factor(freedom, k, draws, rng) for freedom in (p, d - p))
    tangents = np.linalg.norm(np.linalg.solve(above, below), 2, axis=(1, 2))
    enough = draws * min(prob, 1 - prob) >= TAIL
    return Prediction(float(np.quantile(tangents, prob)), {"draws": draws, "seed": seed}, {"enough_draws": enough})


def _wishart_factor(freedom: int, k: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """draws x k x min(k, freedom): F with F F^T Wishart; Bartlett's triangle where it is not singular."""
    factor = rng.standard_normal((draws, k, min(k, freedom)))
    if freedom < k:
        return factor
    factor = np.tril(factor, -1)
    diagonal = np.arange(k)
    factor[:, diagonal, diagonal] = np.sqrt(rng.chisquare(freedom - diagonal, size=(draws, k)))
    return factor


def start_factor(d: int, k: int, p: int) -> float:
    """sqrt(d) / (sqrt(p) - sqrt(k - 1)), of every random start."""
    return math.sqrt(d) / (math.sqrt(p) - math.sqrt(k - 1))


def start_promised(tau: float) -> dict[str, bool]:
    """Flag whether Lemma 2.5 says anything at ``tau``: at 1 or less its probability is 1, and starts often miss it."""
    return {"start_promised": tau > 1}


# Spectral norms that blocks of noise do not exceed: Lemmas A.2 and A.3 of Hardt and Price 2014, with constants.

Norm = Callable[[float, int, int, int, float], float]


def laplace_norm(stddev: float, rows: int, columns: int, releases: int = 1, fail_prob: float = 0.1) -> float:
    """
    Bound the spectral norm of blocks of Laplace noise.

    :func:`gaussian_norm` of independent Laplace numbers, whose tails are longer (in place of Lemma A.3).

    b (l + sqrt(l^2 + 4 max(rows, columns) l)) with l = ln((rows + columns) releases / fail_prob) and the scale
    b = stddev / sqrt(2): matrix Bernstein for subexponential entries (Tropp 2012, Theorem 6.2, applied to the
    dilation), as E |g|^m = m! b^m; union bound. It holds for U^T G, too, with ``rows`` orthonormal columns of U,
    which is not made of Laplace numbers. The lemma's own sqrt(rows columns) ln(...) with an open constant is larger
    for wide blocks; the variance of its proof is half of the true 2 b^2.

    Parameters
    ----------
    stddev : float
        Standard deviation of every entry (not the scale b); not negative.
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
    >>> round(theory.laplace_norm(0.1, rows=1000, columns=10), 2)
    14.25
    """
    not_negative(stddev=stddev)
    counts(rows=rows, columns=columns, releases=releases)
    probability(fail_prob=fail_prob)
    log = math.log((rows + columns) * releases / fail_prob)
    return stddev / math.sqrt(2) * (log + math.sqrt(log**2 + 4 * max(rows, columns) * log))


NORMS: dict[str, Norm] = {"gaussian": gaussian_norm, "laplace": laplace_norm}


def norm_of(mechanism: str) -> Norm:
    """:func:`gaussian_norm` or :func:`laplace_norm`, by the name of the mechanism."""
    one_of(NORMS, mechanism=mechanism)
    return NORMS[mechanism]
