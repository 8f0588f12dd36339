"""Predicted error of the private power method: explicit bounds, and an estimate from released values only.

The theorems (Hardt and Price 2014, Theorems 1.3 and 1.4; Balcan, Du, Wang and Yu 2016, Theorems 2.2 and 3.1) leave
their constants open. Here the recursions behind them are evaluated number by number instead, with the norm of a
Gaussian block as printed in :func:`gaussian_norm`. The spectrum sigma_1 >= sigma_2 >= ... is private: of the functions
below, only :func:`predicted_sine` may be used on a private run, as it takes nothing but what was released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from npmdask.errors import BadInputError, closest


class Prediction(NamedTuple):
    """A predicted ``value``, the ``constants`` that no paper gives and were assumed, whether its conditions hold."""

    value: float
    constants: dict[str, float]
    flags: dict[str, bool]

    @property
    def valid(self) -> bool:
        return all(self.flags.values())


Values = TypeVar("Values", bound=tuple[float, ...])


class Predictions(NamedTuple, Generic[Values]):
    """A :class:`Prediction` of several numbers: ``value`` is a named tuple."""

    value: Values
    constants: dict[str, float]
    flags: dict[str, bool]

    @property
    def valid(self) -> bool:
        return all(self.flags.values())


def gaussian_norm(stddev: float, rows: int, columns: int, releases: int = 1, fail_prob: float = 0.1) -> float:
    """Spectral norm that none of ``releases`` Gaussian blocks exceeds, except with probability ``fail_prob``.

    stddev (sqrt(rows) + sqrt(columns) + sqrt(2 ln(releases / fail_prob))): Gordon's bound of the mean, Gaussian
    concentration about it, union bound. Explicit where Lemma A.2 of Hardt and Price has a constant.
    """
    if not 0 < fail_prob < 1:
        raise BadInputError(f"fail_prob = {fail_prob} must lie between 0 and 1")
    return stddev * (math.sqrt(rows) + math.sqrt(columns) + math.sqrt(2 * math.log(releases / fail_prob)))


def ppm_error(
    spectrum: np.ndarray,
    stddevs: Sequence[float],
    *,
    d: int,
    k: int,
    p: int,
    tau: float = 1.0,
    fail_prob: float = 0.1,
) -> Prediction:
    """Bound of ||(I - X_L X_L^T) U_k||, the sine of the largest angle to the top ``k`` eigenvectors, after all steps.

    Parameters
    ----------
    spectrum : sizes of the eigenvalues, falling; those that are left out are zero.
    stddevs : of the noise on every entry, one for each of the L steps.
    tau : tan theta_q(X_0) <= tau sqrt(d) / (sqrt(p) - sqrt(q - 1)) (Lemma 2.5; its probability has an open constant).
    fail_prob : that a noise block is larger than assumed (half of it each for G and for U_q^T G).

    Notes
    -----
    The best intermediate rank q from k to p is taken. Two recursions are followed together (derived from Lemma 2.3
    of Hardt and Price and Theorem 2.2 of Balcan et al., without constants), t for the tangent to the top q
    eigenvectors and h for a vector of range(X) over each of the top k:

        t' = (sigma_{q+1} t + ||G|| sqrt(1 + t^2)) / (sigma_q - ||U_q^T G|| sqrt(1 + t^2))
        h' = (sigma_{q+1} h + sqrt(1 + h^2) (||G|| + t' ||U_q^T G||)) / sigma_k

    ``flags["noise_small_enough"]``: the denominator stayed positive for some q. Otherwise the value is 1: nothing
    is promised. The truth is better: the recursion takes the worst case of every step, above all of the first, where
    a random start is far from everything; :func:`predicted_sine` is what comes true.
    """
    sizes = _sizes(spectrum, d, k, p)
    bounds = [_error_at(sizes, stddevs, d, k, p, q, tau, fail_prob) for q in range(k, p + 1)]
    best = min(bounds)
    return Prediction(best, {"tau": tau, "fail_prob": fail_prob}, {"noise_small_enough": best < 1})


def _error_at(
    sizes: np.ndarray, stddevs: Sequence[float], d: int, k: int, p: int, q: int, tau: float, fail_prob: float
) -> float:
    """The bound of :func:`ppm_error` with intermediate rank ``q``; 1 if a denominator is not positive."""
    kth, qth, next_one = sizes[k - 1], sizes[q - 1], sizes[q]
    t = h = tau * math.sqrt(d) / (math.sqrt(p) - math.sqrt(q - 1))
    for stddev in stddevs:
        noise = gaussian_norm(stddev, d, p, len(stddevs), fail_prob / 2)
        inside = gaussian_norm(stddev, q, p, len(stddevs), fail_prob / 2)
        below = qth - inside * math.hypot(1, t)
        if below <= 0:
            return 1.0
        t = (next_one * t + noise * math.hypot(1, t)) / below
        h = t if q == k else (next_one * h + math.hypot(1, h) * (noise + t * inside)) / kth
    return float(h / math.hypot(1, h))


def lowrank_error(
    spectrum: np.ndarray,
    stddevs: Sequence[float],
    *,
    d: int,
    k: int,
    p: int,
    tau: float = 1.0,
    fail_prob: float = 0.1,
) -> Prediction:
    """Bound of ||A - X_L Y^T||, Y = A X_L + G the last of L + 1 releases (Hardt and Price 2014, Corollaries 4.3, 4.6).

    sigma_{k+1} + sin(theta_k) sigma_1 + ||G_{L+1}||. ``stddevs``: L + 1 of them; the last belongs to Y.
    """
    if len(stddevs) < 2:
        raise BadInputError("a low-rank release needs the noise of at least two releases: the steps and the factor Y")
    angle = ppm_error(spectrum, stddevs[:-1], d=d, k=k, p=p, tau=tau, fail_prob=fail_prob / 2)
    sizes = _sizes(spectrum, d, k, p)
    last = gaussian_norm(stddevs[-1], d, p, 1, fail_prob / 2)
    return Prediction(
        float(sizes[k] + angle.value * sizes[0] + last), {"tau": tau, "fail_prob": fail_prob}, angle.flags
    )


def coherence_linf_bound(coherence: float, d: int) -> float:
    """4 sqrt(mu ln(d) / d), which no |X_ij| exceeds with probability 1 - 1 / d (proof of Theorem 4.9, p, L <= d).

    Proved for noise whose size was fixed in advance: the cap of the relations ``entry`` and ``symmetric_entry``.
    """
    if not 1 <= coherence <= d:
        raise BadInputError(f"coherence = {coherence:g} is impossible: it lies between 1 and the dimension {d}")
    return 4 * math.sqrt(coherence * math.log(d) / d)


def ppm_error_coherent(
    spectrum: np.ndarray,
    sigma: float,
    coherence: float,
    *,
    d: int,
    k: int,
    p: int,
    releases: int,
    tau: float = 1.0,
    fail_prob: float = 0.1,
) -> Prediction:
    """:func:`ppm_error` with Hardt and Price's noise, stddev = ``sigma`` max |X_ij|, and its cap (Theorem 1.4)."""
    stddev = sigma * min(1.0, coherence_linf_bound(coherence, d))
    found = ppm_error(spectrum, [stddev] * releases, d=d, k=k, p=p, tau=tau, fail_prob=fail_prob)
    return found._replace(flags={**found.flags, "p_and_releases_at_most_d": max(p, releases) <= d})


def dist_error(
    spectrum: np.ndarray,
    stddevs: Sequence[float],
    nodes: int,
    *,
    d: int,
    k: int,
    p: int,
    tau: float = 1.0,
    fail_prob: float = 0.1,
) -> Prediction:
    """:func:`ppm_error` when each of ``nodes`` adds noise of its own: sqrt(nodes) times as much in the sum.

    ``spectrum`` is that of the sum of the nodes' matrices (Balcan, Du, Wang and Yu 2016, Theorem 3.1).
    """
    if nodes < 1:
        raise BadInputError(f"nodes = {nodes} must be positive")
    louder = [math.sqrt(nodes) * stddev for stddev in stddevs]
    return ppm_error(spectrum, louder, d=d, k=k, p=p, tau=tau, fail_prob=fail_prob)


def dist_comm(nodes: int, p: int, d: int, releases: int, model: str = "broadcast") -> Prediction:
    """Numbers that are sent: releases (nodes + 1) p d with a broadcast channel, 2 releases nodes p d point to point."""
    counts = {"broadcast": nodes + 1, "point_to_point": 2 * nodes}
    if model not in counts:
        raise BadInputError(f"unknown model {model!r} of communication: {closest(model, list(counts))}")
    return Prediction(float(releases * counts[model] * p * d), {}, {"exact": True})


def predicted_sine(ritz_values: np.ndarray, stddevs: Sequence[float], *, d: int, k: int) -> Prediction:
    """The likely sine of the largest angle to the top ``k`` eigenvectors, estimated from RELEASED values only.

    An estimate and not a bound: the released Ritz values stand for eigenvalues.

    Parameters
    ----------
    ritz_values : all p released Ritz values, of the last release.
    stddevs : of the noise of each of the L releases (public).

    Notes
    -----
    To first order, over the k-th eigenvector the coefficient on eigenvector j obeys h' = (sigma_j h + g) / sigma_k.
    So with rho = theta_{q+1} / theta_k, which stands for all j > q,

        h^2 = (rho^L sqrt(d) / (sqrt(p) - sqrt(q - 1)))^2
              + (sqrt(d - q) + sqrt(k))^2 / theta_k^2  sum over l of stddev_l^2 rho^(2 (L - l)),

    at the q from k to p - 1 that makes it least; sine = h / sqrt(1 + h^2). Values of the size of the noise make it
    1, as they should. With p = k nothing is known of sigma_{k+1} and rho = 1 (``flags["gap_seen"]`` is False).
    """
    theta = np.sort(np.abs(np.asarray(ritz_values, dtype=np.float64)))[::-1]
    p, steps = len(theta), len(stddevs)
    if not 1 <= k <= p <= d or not steps or not np.isfinite(theta).all():
        raise BadInputError(f"predicting k = {k} vectors needs k to d = {d} finite Ritz values and at least one step")
    candidates = [(q, theta[q]) for q in range(k, p)] or [(k, theta[k - 1])]
    h = min(_likely_tangent(theta[k - 1], following, stddevs, d, k, p, q) for q, following in candidates)
    sine = 1.0 if h == math.inf else h / math.hypot(1, h)
    return Prediction(float(sine), {}, {"gap_seen": p > k})


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


def _sizes(spectrum: np.ndarray, d: int, k: int, p: int) -> np.ndarray:
    """The spectrum, falling, with zeros up to index p."""
    sizes = np.sort(np.abs(np.asarray(spectrum, dtype=np.float64)))[::-1]
    if not 1 <= k <= p <= d or len(sizes) > d:
        raise BadInputError(f"k = {k} <= p = {p} <= d = {d} must hold, and the spectrum has at most d values")
    return np.concatenate([sizes, np.zeros(p + 1)])
