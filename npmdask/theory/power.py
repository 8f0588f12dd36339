"""The noisy power method by numbers (Hardt and Price 2014, section 2): its steps, the noise that it bears.

sigma_k > sigma_{k+1} are sizes of eigenvalues, U the top k eigenvectors (d x k), V the others, X a block (d x p) with
orthonormal columns, t = tan theta_k(U, X), G the noise of a step. :func:`npm_iterations` and :func:`npm_max_noise` are
Theorem 2.4 with its own constants; :func:`npm_error_recursion` is one step without any (derived from the proof of
Lemma 2.3), which is never exceeded and much nearer to what happens.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from npmdask.core.certificates.prediction import Prediction, Predictions
from npmdask.core.numerics.domains import accuracy, falling, not_negative, spectrum_gap
from npmdask.errors import require

MOST_ACCURATE = 0.5  # Theorem 2.4 asks for epsilon < 1/2
EXACTLY = 1 - 1e-12  # so that a whole number of steps is not rounded up to the next


class NoiseBound(NamedTuple):
    """
    Norms of the noise that a step bears.

    Parameters
    ----------
    whole : float
        Spectral norm of G (d x p).
    inside : float
        That of its part in the leading eigenspace, U^T G.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.npm_max_noise(s_k=1.0, s_k1=0.5, acc=0.01, cos0=0.1).value.whole
    0.001
    """

    whole: float
    inside: float


NoisePrediction = Predictions[NoiseBound]


def npm_iterations(tan0: float, acc: float, s_k: float, s_k1: float) -> Prediction:
    """
    Compute how many steps the noisy power method takes to an accuracy.

    L of Theorem 2.4: ceil(ln(tan0 / acc) / -ln max(acc, (s_k1 / s_k)^(1/4))); inf without a gap.

    From then on tan theta_k stays below ``acc`` if the noise keeps to :func:`npm_max_noise`.

    Parameters
    ----------
    tan0 : float
        The tangent tan theta_k(U, X_0) of the start; not negative.
    acc : float
        The tangent to be reached; above 0 and below 1, for the theorem below 1/2.
    s_k : float
        The k-th largest eigenvalue (its size).
    s_k1 : float
        The one after it, no larger than ``s_k``.

    Returns
    -------
    Prediction
        ``value``: L, a whole number or inf, 0 where the start is good enough; ``flags``: ``accuracy_below_half`` and
        ``gap``, the conditions of the theorem.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.npm_iterations(tan0=30.0, acc=0.01, s_k=1.0, s_k1=0.5).value
    47
    """
    flags = _theorem(acc, s_k, s_k1)
    not_negative(tan0=tan0)
    if tan0 <= acc:
        return Prediction(0.0, {}, flags)
    rate = -math.log(max(acc, (s_k1 / s_k) ** 0.25))
    steps = math.ceil(math.log(tan0 / acc) / rate * EXACTLY) if rate > 0 else math.inf
    return Prediction(steps, {}, flags)


def momentum_beta(s_k: float, s_q1: float) -> Prediction:
    """
    Compute the momentum with which the power method takes fewest steps.

    beta = (s_q1 / 2)^2, at which all smaller values are damped alike (Xu 2023; arXiv 2602.03682).

    Parameters
    ----------
    s_k : float
        The k-th largest eigenvalue (its size).
    s_q1 : float
        Eigenvalue number q + 1, k <= q <= p, no larger than ``s_k``.

    Returns
    -------
    Prediction
        ``value``: beta; ``flags``: ``gap``. A larger one is admissible below (s_k / 2)^2, a smaller one always.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.momentum_beta(s_k=1.0, s_q1=0.5).value
    0.0625
    """
    gap = spectrum_gap(s_k, s_q1)
    return Prediction(s_q1**2 / 4, {}, {"gap": gap > 0})


def momentum_iterations(tan0: float, acc: float, s_k: float, s_q1: float, beta: float | None = None) -> Prediction:
    """
    Bound how many steps the power method with momentum takes to an accuracy, without noise.

    The least L with C_L(s_q1) tan0 <= acc C_L(s_k), C_L(s) = U_L(max(1, s / (2 sqrt(beta)))), U_L the Chebyshev
    polynomials of the second kind: about sqrt(s_k / (s_k - s_q1)) log(tan0 / acc), where the power method has no root.

    Parameters
    ----------
    tan0 : float
        The tangent tan theta_q(U, X_0) of the start; not negative.
    acc : float
        The tangent to be reached; above 0 and below 1.
    s_k : float
        The k-th largest eigenvalue (its size).
    s_q1 : float
        Eigenvalue number q + 1, k <= q <= p, no larger than ``s_k``.
    beta : float, optional
        The same in all steps; by default :func:`momentum_beta`.

    Returns
    -------
    Prediction
        ``value``: L, a whole number or inf; ``flags``: ``gap``, and ``admissible`` (beta < (s_k / 2)^2).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [theory.momentum_iterations(30.0, 1e-3, 1.0, 0.95, beta).value for beta in (0.0, 0.95**2 / 4)]
    [201, 42]
    """
    not_negative(tan0=tan0)
    flags = {"gap": spectrum_gap(s_k, s_q1, acc) > 0}
    if beta is not None:
        not_negative(beta=beta)
    width = s_q1 if beta is None else 2 * math.sqrt(beta)
    flags["admissible"] = width < s_k
    if tan0 <= acc or not all(flags.values()):
        return Prediction(0.0 if tan0 <= acc else math.inf, {}, flags)

    def reached(steps: int) -> bool:
        if not width:
            return tan0 * (s_q1 / s_k) ** steps <= acc / EXACTLY
        loss = _log_second_kind(s_q1 / width, steps) - _log_second_kind(s_k / width, steps)
        return math.log(tan0 / acc) + loss <= 1 - EXACTLY

    most = 1
    while not reached(most):
        most *= 2
    return Prediction(bisect_left(range(1, most), True, key=reached) + 1, {}, flags)


def _log_second_kind(at: float, degree: int) -> float:
    """log U_degree(at), of the second kind; of at < 1 its largest value there, U(1)."""
    if at <= 1:
        return math.log(degree + 1)
    phi = math.acosh(at)
    return degree * phi + math.log(math.expm1(-2 * (degree + 1) * phi) / math.expm1(-2 * phi))


def npm_max_noise(s_k: float, s_k1: float, acc: float, cos0: float) -> NoisePrediction:
    """
    Compute the noise that the noisy power method bears in every step.

    Noise that Theorem 2.4 allows in every step: ||G|| <= acc gap / 5, ||U^T G|| <= gap cos theta_k(U, X_0) / 5.

    Parameters
    ----------
    s_k : float
        The k-th largest eigenvalue (its size).
    s_k1 : float
        The one after it, no larger than ``s_k``.
    acc : float
        The tangent that is asked for; above 0 and below 1, for the theorem below 1/2.
    cos0 : float
        The cosine cos theta_k(U, X_0) of the start; above 0, at most 1.

    Returns
    -------
    Predictions
        ``value``: a :class:`NoiseBound`, in the units of the eigenvalues; ``flags``: ``accuracy_below_half`` and
        ``gap``, the conditions of the theorem.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.npm_max_noise(s_k=1.0, s_k1=0.5, acc=0.01, cos0=0.1).value
    NoiseBound(whole=0.001, inside=0.01)
    """
    flags = _theorem(acc, s_k, s_k1)
    require(0 < cos0 <= 1, f"cos0 = {cos0} must be a cosine above 0: the start must not be orthogonal to U")
    gap = s_k - s_k1
    return NoisePrediction(NoiseBound(acc * gap / 5, gap * cos0 / 5), {}, flags)


def npm_plateau(s_k: float, s_k1: float, g: float, g_u: float) -> Prediction:
    """
    Compute the tangent at which noise of constant size stops the iteration.

    Where :func:`npm_error_recursion` ends with noise of the same size in every step: its lower fixed point.

    It is approached from any start below :func:`npm_basin`. inf, and a False flag, if the noise leaves no fixed point.

    Parameters
    ----------
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
        ``value``: the lower fixed point, a tangent; ``flags``: ``noise_small_enough``, that there is one.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.npm_plateau(s_k=1.0, s_k1=0.5, g=0.01, g_u=0.001).value, 4)
    0.02
    """
    low, _, flags = _fixed_points(s_k, s_k1, g, g_u)
    return Prediction(low, {}, flags)


def npm_basin(s_k: float, s_k1: float, g: float, g_u: float) -> Prediction:
    """
    Compute how bad a start may be so that the iteration still converges.

    The upper fixed point: starts with a smaller tangent come to :func:`npm_plateau`; 0 if there is none, inf where
    ``g_u`` is 0 and ``g`` is below the gap.

    Parameters
    ----------
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
        ``value``: the upper fixed point, a tangent; ``flags``: ``noise_small_enough``, that there is one.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.npm_basin(s_k=1.0, s_k1=0.5, g=0.01, g_u=0.001).value, 1)
    490.0
    """
    _, high, flags = _fixed_points(s_k, s_k1, g, g_u)
    return Prediction(high, {}, flags)


def _fixed_points(s_k: float, s_k1: float, g: float, g_u: float) -> tuple[float, float, dict[str, bool]]:
    """Both roots of gap t / sqrt(1 + t^2) = g + g_u t, a concave function and a line, and whether there are any."""
    gap = spectrum_gap(s_k, s_k1)
    not_negative(g=g, g_u=g_u)
    if g_u == 0:
        low = g / math.sqrt(gap**2 - g**2) if g < gap else math.inf
        return low, math.inf if g < gap else 0.0, {"noise_small_enough": g < gap}

    def over(t: float) -> float:
        return gap * t / math.hypot(1, t) - g - g_u * t

    top = math.sqrt((gap / g_u) ** (2 / 3) - 1) if g_u < gap else 0.0
    if over(top) <= 0:
        return math.inf, 0.0, {"noise_small_enough": False}
    from scipy.optimize import brentq  # a fifth of a second, which no run needs

    low = float(brentq(over, 0.0, top, xtol=1e-300, rtol=1e-14)) if g > 0 else 0.0
    high = float(brentq(over, top, gap / g_u + 1, rtol=1e-14))
    return low, high, {"noise_small_enough": True}


def _theorem(acc: float, s_k: float, s_k1: float) -> dict[str, bool]:
    """Conditions of Theorem 2.4."""
    accuracy(acc)
    return {"accuracy_below_half": acc < MOST_ACCURATE, "gap": spectrum_gap(s_k, s_k1) > 0}


# The likely error of a noisy power method of which the whole spectrum is known: an estimate, not a bound.


def likely_sine(spectrum: np.ndarray, stddevs: Sequence[float], *, d: int, k: int, p: int) -> Prediction:
    """The likely sine of the largest angle to the top ``k`` eigenvectors after len(stddevs) noisy steps.

    Parameters
    ----------
    spectrum : sizes of the eigenvalues; those that are left out are zero.
    stddevs : of the noise on every entry, one for each of the L steps.

    Notes
    -----
    To first order, over the k-th eigenvector the coefficient on eigenvector j obeys h' = (sigma_j h + g) / sigma_k: as
    in :func:`predicted_sine`, which knows p released values only and takes sigma_{q+1} for
    all that follow. With r_j = sigma_j / sigma_k, n(a) = sum of r_j^(2 a) over j > q, and G of a Gaussian block of
    k columns bounded by Gordon's theorem,

        h^2 = (sqrt(n(L)) + sqrt(k) r_{q+1}^L)^2 / (p - q + 1)
              + sum over l of (stddev_l / sigma_k)^2 (sqrt(n(L - l)) + sqrt(k) r_{q+1}^(L - l))^2

    at the q from k to p that makes it least; sine = h / sqrt(1 + h^2). 1 / (p - q + 1): the variance of the entries
    beyond q of the vector of least norm in a random start.
    """
    sizes = falling(spectrum, d, k, p)
    require(len(stddevs) >= 1, "a prediction needs the noise of at least one step")
    for stddev in stddevs:
        not_negative(stddev=stddev)
    if sizes[k - 1] == 0:
        return Prediction(1.0, {}, {"k_values": False})
    h = math.sqrt(min(_square(sizes, stddevs, d, k, p, q) for q in range(k, p + 1)))
    return Prediction(h / math.hypot(1, h), {}, {"k_values": True})


def _square(sizes: np.ndarray, stddevs: Sequence[float], d: int, k: int, p: int, q: int) -> float:
    """h^2 of :func:`likely_sine` for one intermediate rank."""
    ratios = sizes[q:] / sizes[k - 1]
    steps, missing = len(stddevs), d - q - len(ratios)  # eigenvalues that are zero: only the last noise is seen there

    def grown(age: int) -> float:
        count = float(np.sum(ratios ** (2 * age))) + (missing if age == 0 else 0)
        return (math.sqrt(max(count, 0.0)) + math.sqrt(k) * float(ratios[0]) ** age) ** 2

    noise = sum(stddev**2 * grown(steps - 1 - i) for i, stddev in enumerate(stddevs))
    return grown(steps) / (p - q + 1) + noise / float(sizes[k - 1]) ** 2


# How many steps an algorithm will need, from a spectrum: formulas only, no data and no clock.


MOST = 10**6  # steps beyond any patience
ZERO = 1e-15  # of the largest eigenvalue of A^T A: rounding


def predict_passes(
    spectrum: np.ndarray, k: int, p: int, tol: float, algorithm: str = "power", *, definite: bool = True
) -> int:
    """Steps until the relative residual of the k-th pair falls to ``tol``; ``MOST`` if it never does.

    ``spectrum``: sizes of the eigenvalues of the operator, falling. ``algorithm``: power or krylov. ``definite``:
    no eigenvalue is negative (``A^T A``); it only matters to krylov.

    In the coordinates of the eigenvectors a Gaussian start of p columns holds, for every intermediate rank
    q (k <= q <= p), a vector e_k + h with h_j = 0 for j <= q, j != k, and entries beyond q of about
    1 / sqrt(p - q + 1) (least norm; the rank q is that of Balcan, Du, Wang and Yu 2016, Theorem 2.2). A step
    multiplies h_j by f(lambda_j) / f(lambda_k), with f the power x^l, or for krylov at best the Chebyshev
    polynomial of degree l of the unwanted interval. Step l + 1 sees the residual of l multiplications:

        residual^2 = sum_{j > q} (f_l(lambda_j) / f_l(lambda_k) (1 - lambda_j / lambda_k))^2 / (p - q + 1)
    """
    return min(steps_by_rank(spectrum, k, p, tol, algorithm, definite=definite))


def steps_by_rank(
    spectrum: np.ndarray, k: int, p: int, tol: float, algorithm: str = "power", *, definite: bool = True
) -> list[int]:
    """The formula of :func:`predict_passes` for every intermediate rank q from k (the gap at k decides) to p."""
    size = np.sort(np.abs(np.asarray(spectrum, np.float64)))[::-1]
    size = size[size > ZERO * size.max(initial=0.0)]
    k = min(k, len(size))
    if k == 0 or p >= len(size):
        return [2]
    return [min(MOST, 1 + _multiplications(size, k, q, p, tol, algorithm, definite)) for q in range(k, p + 1)]


def _multiplications(size: np.ndarray, k: int, q: int, p: int, tol: float, algorithm: str, definite: bool) -> int:
    """The smallest l whose residual is below ``tol``, found by doubling and halving."""
    if size[q] >= size[k - 1]:
        return MOST
    high = 1
    while _log_residual(size, k, q, p, high, algorithm, definite) > np.log(tol):
        if high >= MOST:
            return MOST
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        small = _log_residual(size, k, q, p, middle, algorithm, definite) <= np.log(tol)
        low, high = (low, middle) if small else (middle, high)
    return high


def _log_residual(size: np.ndarray, k: int, q: int, p: int, steps: int, algorithm: str, definite: bool) -> float:
    """Logarithm of the formula of :func:`predict_passes`: its terms leave float64."""
    ratio = size[q:] / size[k - 1]
    if algorithm == "krylov":
        factors = np.full(len(ratio), -_log_chebyshev(steps, size[k - 1], size[q], definite))
    elif algorithm == "power":
        factors = steps * np.log(ratio)
    else:
        raise ValueError(f"no prediction for algorithm {algorithm!r}")
    with np.errstate(divide="ignore"):
        terms = 2 * (factors + np.log1p(-np.minimum(ratio, 1.0)))
    return float(np.logaddexp.reduce(terms) - np.log(p - q + 1)) / 2


def _log_chebyshev(steps: int, wanted: float, unwanted: float, definite: bool) -> float:
    """log T_l at ``wanted``, T_l bounded by 1 on [0, unwanted], or on [-unwanted, unwanted] if not definite."""
    gap = (wanted - unwanted) / unwanted / (1 if definite else 2)
    growth = np.arccosh(1 + 2 * gap)
    return float(steps * growth + np.log1p(np.exp(-2 * steps * growth)) - np.log(2))
