"""The noisy power method by numbers (Hardt and Price 2014, section 2): its steps, the noise that it bears.

sigma_k > sigma_{k+1} are sizes of eigenvalues, U the top k eigenvectors (d x k), V the others, X a block (d x p) with
orthonormal columns, t = tan theta_k(U, X), G the noise of a step. :func:`npm_iterations` and :func:`npm_max_noise` are
Theorem 2.4 with its own constants; :func:`npm_error_recursion` is one step without any (derived from the proof of
Lemma 2.3), which is never exceeded and much nearer to what happens.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scipy.optimize import brentq

from npmdask.errors import BadInputError
from npmdask.numerics.domains import accuracy, not_negative, spectrum_gap
from npmdask.theory.result import Prediction, Predictions

MOST_ACCURATE = 0.5  # Theorem 2.4 asks for epsilon < 1/2
EXACTLY = 1 - 1e-12  # so that a whole number of steps is not rounded up to the next


class Noise(NamedTuple):
    """Spectral norms: ``whole`` of G (d x p), ``inside`` of its part in the leading eigenspace, U^T G."""

    whole: float
    inside: float


NoisePrediction = Predictions[Noise]


def npm_iterations(tan0: float, acc: float, s_k: float, s_k1: float) -> Prediction:
    """L of Theorem 2.4: ceil(ln(tan0 / acc) / -ln max(acc, (s_k1 / s_k)^(1/4))); inf without a gap.

    From then on tan theta_k stays below ``acc`` if the noise keeps to :func:`npm_max_noise`.
    """
    flags = _theorem(acc, s_k, s_k1)
    not_negative(tan0=tan0)
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
    not_negative(t=t, g=g, g_u=g_u)
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
    not_negative(g=g, g_u=g_u)
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


def _theorem(acc: float, s_k: float, s_k1: float) -> dict[str, bool]:
    """Conditions of Theorem 2.4."""
    accuracy(acc)
    return {"accuracy_below_half": acc < MOST_ACCURATE, "gap": spectrum_gap(s_k, s_k1) > 0}
