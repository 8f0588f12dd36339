"""Exact Gaussian differential privacy: delta(mu, epsilon) and its two inverses, rounded to the safe side.

A mechanism is mu-GDP when telling two neighbouring data sets apart is no easier than telling N(0, 1) from N(mu, 1)
(Dong, Roth and Su 2022). It is (epsilon, delta)-DP exactly for

    delta(mu, epsilon) = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2)

(their Corollary 2.13; Balle and Wang 2018, Theorem 8). Both terms underflow for small delta and cancel for small
mu, so it is computed as follows. With u = epsilon / mu - mu / 2, phi the normal density and the Mills ratio
M(z) = Phi(-z) / phi(z), the identity phi(u) = e^epsilon phi(u + mu) gives

    delta = phi(u) (M(u) - M(u + mu)) = phi(u) integral from u to u + mu of (1 - z M(z)) dz,

whose integrand is positive and smooth: nothing cancels, and phi(u) stays a logarithm. A bound of the rounding error is
added, so what is returned is never below the truth; tests compare it with 60 digits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
from scipy.special import erfcx, ndtr

from npmdask.errors import BadInputError, require

MACHINE_EPS = sys.float_info.epsilon
ROUNDING = 1e-12  # relative, of the bracket; measured: 3e-15 beyond the part that grows with u, which log_delta adds
SERIES = 15.0  # from here 1 - z M(z) is its asymptotic series, whose 16th term is below 1e-18
FAR = 1e30  # of u: beyond it only the exponent -u^2 / 2 can be seen in a float
LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
DOUBLE_FACTORIALS = np.cumprod(np.arange(1.0, 33.0, 2.0))  # 1, 1 3, 1 3 5, ...


def log_delta(mu: float, epsilon: float) -> float:
    """
    Compute the logarithm of the smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    Where delta itself would underflow. By the formula of Dong, Roth and Su 2022 (Corollary 2.13; Balle and Wang 2018,
    Theorem 8), evaluated so that nothing cancels.

    Parameters
    ----------
    mu : float
        Of Gaussian differential privacy: sensitivity / stddev of one Gaussian release; not negative, inf allowed.
    epsilon : float
        Of the promise, not negative; inf allowed.

    Returns
    -------
    float
        Natural logarithm of delta, never below the truth; -inf where delta is 0, at most 0.

    Raises
    ------
    BadInputError
        ``mu`` or ``epsilon`` negative or not a number.

    Examples
    --------
    >>> from npmdask.accounting import log_delta
    >>> round(log_delta(1.0, 1.0), 3), round(log_delta(1.0, 50.0), 3)
    (-2.064, -1233.869)
    """
    mu, epsilon = _not_negative("mu", mu), _not_negative("epsilon", epsilon)
    if mu == 0:
        return -math.inf
    if mu == math.inf:
        return 0.0
    if epsilon == math.inf:
        return -math.inf
    near, far = epsilon / mu, mu / 2
    u = near - far
    if u > FAR:  # M(u) <= 1 / u
        return max(-0.5 * u * u * (1 - 8 * MACHINE_EPS), -sys.float_info.max)
    exact = _log_delta_small_mu(u, mu) if mu <= 1 + max(u, 0.0) / 4 else _log_delta_large_mu(u, mu)
    rounding = ROUNDING + 4 * MACHINE_EPS * abs(u) * (abs(u) + near + far)
    return min(exact + rounding, 0.0)


def _log_delta_small_mu(u: float, mu: float) -> float:
    """log delta by quadrature of 1 - z M(z): mu is smaller than the distance over which it changes, u >= -1/2."""
    z = u + mu * (NODES + 1) / 2
    mean = float(WEIGHTS @ _slope(z)) / 2
    return -0.5 * u * u - LOG_ROOT_TWO_PI + math.log(mu) + math.log(mean)


def _log_delta_large_mu(u: float, mu: float) -> float:
    """log delta as a difference, of which a fifth at least remains."""
    if u >= 0:
        return -0.5 * u * u - LOG_ROOT_TWO_PI + math.log(_mills_ratio(u) - _mills_ratio(u + mu))
    other = math.exp(-0.5 * u * u - LOG_ROOT_TWO_PI) * _mills_ratio(u + mu)
    return math.log(float(ndtr(-u)) - other)


def _mills_ratio(z: float) -> float:
    return math.sqrt(math.pi / 2) * float(erfcx(z / math.sqrt(2)))


def _slope(z: np.ndarray) -> np.ndarray:
    """1 - z M(z), which is minus the derivative of M: positive, falling, 1 / z^2 far out."""
    direct = 1 - z * math.sqrt(math.pi / 2) * erfcx(z / math.sqrt(2))
    if z[-1] <= SERIES:
        return direct
    inverse = 1 / np.maximum(z, SERIES) ** 2
    signs = (-1.0) ** np.arange(len(DOUBLE_FACTORIALS))
    series = inverse * np.polynomial.polynomial.polyval(inverse, signs * DOUBLE_FACTORIALS)
    return np.where(z <= SERIES, direct, series)


def delta_for(mu: float, epsilon: float) -> float:
    """
    Compute the smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    delta = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2): Dong, Roth and Su 2022, Corollary 2.13
    (Balle and Wang 2018, Theorem 8).

    Parameters
    ----------
    mu : float
        Of Gaussian differential privacy: sensitivity / stddev of one Gaussian release; not negative.
    epsilon : float
        Of the promise, not negative.

    Returns
    -------
    float
        The delta, rounded up, from 0 to 1.

    Raises
    ------
    BadInputError
        ``mu`` or ``epsilon`` negative or not a number.

    Examples
    --------
    Noise of one, two and four times the sensitivity, at epsilon = 1:

    >>> from npmdask.accounting import delta_for
    >>> [f"{delta_for(1 / stddev, 1.0):.1e}" for stddev in (1, 2, 4)]
    ['1.3e-01', '6.8e-03', '2.9e-06']
    """
    logarithm = log_delta(mu, epsilon)
    if logarithm == -math.inf:
        return 0.0
    return min(1.0, math.nextafter(math.exp(logarithm) * (1 + 2 * MACHINE_EPS), 1.0))


def epsilon_for(mu: float, delta: float) -> float:
    """
    Compute the smallest epsilon for which mu-GDP implies (epsilon, delta)-DP.

    The inverse of :func:`delta_for`.

    Parameters
    ----------
    mu : float
        Of Gaussian differential privacy: sensitivity / stddev of one Gaussian release; not negative.
    delta : float
        Of the promise, from 0 to 1.

    Returns
    -------
    float
        The epsilon, never below the truth; inf if there is none, as for delta = 0 and mu > 0.

    Raises
    ------
    BadInputError
        ``mu`` negative or not a number, or ``delta`` outside [0, 1].

    Examples
    --------
    >>> from npmdask.accounting import epsilon_for
    >>> [round(epsilon_for(1.0, delta), 2) for delta in (1e-3, 1e-6, 1e-9, 0.0)]
    [3.14, 4.89, 6.17, inf]
    """
    mu, target = _not_negative("mu", mu), _log_of(delta)
    if mu == 0 or target == 0:
        return 0.0
    if target == -math.inf or mu == math.inf:
        return math.inf
    if log_delta(mu, 0.0) <= target:
        return 0.0
    high = mu * (mu / 2 + math.sqrt(-2 * target))  # delta <= Phi(-u) <= exp(-u^2 / 2)
    while high < math.inf and log_delta(mu, high) > target:
        high *= 1 + 1e-6
    if high == math.inf:
        return math.inf
    return _bisect(lambda epsilon: log_delta(mu, epsilon) <= target, good=high, bad=0.0)


def mu_for(epsilon: float, delta: float) -> float:
    """
    Compute the largest mu for which mu-GDP implies (epsilon, delta)-DP.

    ``delta_for(mu, epsilon) <= delta``. Noise of standard deviation sensitivity / mu keeps the promise for one Gaussian
    release.

    Parameters
    ----------
    epsilon : float
        Of the promise, finite and not negative.
    delta : float
        Of the promise, from 0 to below 1.

    Returns
    -------
    float
        The mu, never above the truth; 0 for delta = 0, as a Gaussian is never purely epsilon-DP.

    Raises
    ------
    BadInputError
        ``epsilon`` negative or infinite, or ``delta`` outside [0, 1).

    Examples
    --------
    Standard deviations for a sensitivity of 1:

    >>> from npmdask.accounting import mu_for
    >>> [round(1 / mu_for(epsilon, 1e-6), 2) for epsilon in (0.1, 1.0, 8.0)]
    [36.3, 4.22, 0.65]
    """
    epsilon, target = _not_negative("epsilon", epsilon), _log_of(delta)
    if epsilon == math.inf or target == 0:
        raise BadInputError(
            f"no amount of noise satisfies epsilon = {epsilon:g}, delta = {delta:g}: ask for a finite epsilon and "
            "delta < 1"
        )
    if target == -math.inf:
        return 0.0  # a Gaussian is never purely epsilon-DP
    tail = math.sqrt(-2 * target)
    low = max(2 * epsilon / (math.sqrt(tail * tail + 2 * epsilon) + tail), math.sqrt(2 * math.pi) * delta)
    while log_delta(low, epsilon) > target:
        low *= 1 - 1e-6
    high = 2 * low
    while log_delta(high, epsilon) <= target:
        low, high = high, 2 * high
    return _bisect(lambda mu: log_delta(mu, epsilon) <= target, good=low, bad=high)


def _bisect(holds: Callable[[float], bool], *, good: float, bad: float) -> float:
    """Halve the interval until floats end; what is returned was tested and holds."""
    while abs(good - bad) > 4 * MACHINE_EPS * good:
        middle = good + (bad - good) / 2
        if middle in (good, bad):
            break
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def _log_of(delta: float) -> float:
    """log(delta), rounded down."""
    require(0 <= delta <= 1, f"delta = {delta} is not a probability: choose one far below 1 / (number of records)")
    if delta in (0, 1):
        return 0.0 if delta else -math.inf
    return math.nextafter(math.nextafter(math.log(delta), -math.inf), -math.inf)


def _not_negative(name: str, value: float) -> float:
    require(value >= 0, f"{name} = {value} must be a number that is not negative")
    return float(value)
