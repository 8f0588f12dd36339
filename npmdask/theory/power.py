"""The noisy power method by numbers (Hardt and Price 2014, section 2): its start, its steps, the noise that it bears.

sigma_k > sigma_{k+1} are sizes of eigenvalues, U the top k eigenvectors (d x k), V the others, X a block (d x p) with
orthonormal columns, t = tan theta_k(U, X), G the noise of a step. :func:`npm_iterations` and :func:`npm_max_noise` are
Theorem 2.4 with its own constants; :func:`npm_error_recursion` is one step without any (derived from the proof of
Lemma 2.3), which is never exceeded and much nearer to what happens.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from npmdask.errors import BadInputError
from npmdask.theory.private import Prediction, Predictions

MOST_ACCURATE = 0.5  # Theorem 2.4 asks for epsilon < 1/2
EXACTLY = 1 - 1e-12  # so that a whole number of steps is not rounded up to the next
TAIL = 10  # draws beyond a quantile below which it is a guess


class Noise(NamedTuple):
    """Spectral norms: ``whole`` of G (d x p), ``inside`` of its part in the leading eigenspace, U^T G."""

    whole: float
    inside: float


NoisePrediction = Predictions[Noise]


def init_tan_bound(d: int, k: int, p: int, tau: float = 1.0, *, c: float = 1.0) -> Prediction:
    """tan theta_k(U, X_0) of a random start (Lemma 2.5): tau sqrt(d) / (sqrt(p) - sqrt(k - 1)).

    It holds but with probability ``fail_prob`` = tau^(-c (p + 1 - k)) + e^(-c d), whose exponent ``c`` the paper leaves
    open; ``flags["says_something"]``: that is below 1. :func:`init_tan_quantile` has no open constant.
    """
    ranks(d, k, p)
    positive(tau=tau, c=c)
    fail_prob = tau ** (-c * (p + 1 - k)) + math.exp(-c * d)
    constants = {"tau": tau, "c": c, "fail_prob": fail_prob}
    return Prediction(tau * start_factor(d, k, p), constants, {"says_something": fail_prob < 1})


def init_tan_quantile(d: int, k: int, p: int, prob: float = 0.9, draws: int = 2000, seed: int = 0) -> Prediction:
    """The number that tan theta_k(U, X_0) of a random start does not exceed with probability ``prob``, by simulation.

    cos^2 of the angles are the eigenvalues of a matrix-variate beta law, so tan^2 theta_k is the largest eigenvalue of
    A^-1 B with Wishart matrices A (p degrees of freedom) and B (d - p), k x k both: a draw costs k^3 whatever d is.
    """
    ranks(d, k, p)
    if not 0 < prob < 1 or draws < 1:
        raise BadInputError(f"a quantile needs 0 < prob < 1 and a draw at least, not prob = {prob}, draws = {draws}")
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


def npm_iterations(tan0: float, acc: float, s_k: float, s_k1: float) -> Prediction:
    """L of Theorem 2.4: ceil(ln(tan0 / acc) / -ln max(acc, (s_k1 / s_k)^(1/4))); inf without a gap.

    From then on tan theta_k stays below ``acc`` if the noise keeps to :func:`npm_max_noise`.
    """
    flags = _theorem(acc, s_k, s_k1)
    positive(tan0=tan0)
    if tan0 <= acc:
        return Prediction(0.0, {}, flags)
    rate = -math.log(max(acc, (s_k1 / s_k) ** 0.25))
    steps = math.ceil(math.log(tan0 / acc) / rate * EXACTLY) if rate > 0 else math.inf
    return Prediction(steps, {}, flags)


def npm_max_noise(s_k: float, s_k1: float, acc: float, cos0: float) -> NoisePrediction:
    """Noise that Theorem 2.4 allows in every step: ||G|| <= acc gap / 5, ||U^T G|| <= gap cos theta_k(U, X_0) / 5."""
    flags = _theorem(acc, s_k, s_k1)
    if not 0 < cos0 <= 1:
        raise BadInputError(f"cos0 = {cos0} must be a cosine above 0: the start must not be orthogonal to U")
    gap = s_k - s_k1
    return NoisePrediction(Noise(acc * gap / 5, gap * cos0 / 5), {}, flags)


def npm_error_recursion(t: float, s_k: float, s_k1: float, g: float, g_u: float) -> Prediction:
    """Bound of tan theta_k(U, A X + G) from ``t`` = tan theta_k(U, X): exact in its constants.

    (s_k1 t + g sqrt(1 + t^2)) / (s_k - g_u sqrt(1 + t^2)), g >= ||V^T G||, g_u >= ||U^T G||; inf where the denominator
    is not positive (``flags["noise_small_enough"]``). ``flags["contracts"]``: it is below ``t``.
    """
    spectrum_gap(s_k, s_k1)
    _noises(t=t, g=g, g_u=g_u)
    root = math.hypot(1, t)
    below = s_k - g_u * root
    value = (s_k1 * t + g * root) / below if below > 0 else math.inf
    return Prediction(value, {}, {"noise_small_enough": below > 0, "contracts": value < t})


def npm_plateau(s_k: float, s_k1: float, g: float, g_u: float) -> Prediction:
    """Where :func:`npm_error_recursion` ends with noise of the same size in every step: its lower fixed point.

    It is approached from any start below :func:`npm_basin`. inf, and a False flag, if the noise leaves no fixed point.
    """
    low, _, flags = _fixed_points(s_k, s_k1, g, g_u)
    return Prediction(low, {}, flags)


def npm_basin(s_k: float, s_k1: float, g: float, g_u: float) -> Prediction:
    """The upper fixed point: starts with a smaller tangent come to :func:`npm_plateau`; 0 if there is none."""
    _, high, flags = _fixed_points(s_k, s_k1, g, g_u)
    return Prediction(high, {}, flags)


def _fixed_points(s_k: float, s_k1: float, g: float, g_u: float) -> tuple[float, float, dict[str, bool]]:
    """Both roots of gap t / sqrt(1 + t^2) = g + g_u t, a concave function and a line, and whether there are any."""
    gap = spectrum_gap(s_k, s_k1)
    _noises(g=g, g_u=g_u)
    if g_u == 0:
        low = g / math.sqrt(gap**2 - g**2) if g < gap else math.inf
        return low, math.inf if g < gap else 0.0, {"noise_small_enough": g < gap}

    def over(t: float) -> float:
        return gap * t / math.hypot(1, t) - g - g_u * t

    top = math.sqrt((gap / g_u) ** (2 / 3) - 1) if g_u < gap else 0.0
    if over(top) <= 0:
        return math.inf, 0.0, {"noise_small_enough": False}
    low = float(brentq(over, 0.0, top, xtol=1e-300, rtol=1e-14)) if g > 0 else 0.0
    high = float(brentq(over, top, gap / g_u + 1, rtol=1e-14))
    return low, high, {"noise_small_enough": True}


def start_factor(d: int, k: int, p: int) -> float:
    """sqrt(d) / (sqrt(p) - sqrt(k - 1)), of every random start."""
    return math.sqrt(d) / (math.sqrt(p) - math.sqrt(k - 1))


def ranks(d: int, k: int, p: int) -> None:
    """Refuse impossible ranks."""
    if not 1 <= k <= p <= d:
        raise BadInputError(f"1 <= k = {k} <= p = {p} <= d = {d} must hold")


def positive(**numbers: float) -> None:
    """Refuse what is not a positive number."""
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise BadInputError(f"{name} = {number} must be a positive number")


def spectrum_gap(larger: float, smaller: float) -> float:
    """larger - smaller of two sizes of eigenvalues, which must fall; ties are 0."""
    if not 0 <= smaller <= larger < math.inf or larger == 0:
        raise BadInputError(
            f"sizes of eigenvalues fall and are not negative, but {larger} is followed by {smaller}: give sizes, sorted"
        )
    return larger - smaller


def _noises(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= 0:
            raise BadInputError(f"{name} = {number} must not be negative: it is the size of something")


def _theorem(acc: float, s_k: float, s_k1: float) -> dict[str, bool]:
    """Conditions of Theorem 2.4."""
    if not 0 < acc < 1:
        raise BadInputError(f"acc = {acc} must lie between 0 and 1: it is the tangent that is wanted")
    return {"accuracy_below_half": acc < MOST_ACCURATE, "gap": spectrum_gap(s_k, s_k1) > 0}
