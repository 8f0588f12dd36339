"""Errors of the private power method as the papers print them: up to a constant, which is an argument, 1 by default.

Explicit bounds with all constants are in :mod:`npmdask.theory.private`. Everything is for the number of steps L =
O(s_k / (s_k - s_{k+1}) log d) that the theorems take, and for probability 9/10. ``flags["gap"]``: s_k > s_{k+1}; the
value is inf otherwise. A sine above 1 says nothing (``flags["says_something"]``).
"""

from __future__ import annotations

import math

from npmdask.errors import BadInputError, closest
from npmdask.numerics.domains import counts, not_negative, positive, probability, ranks, spectrum_gap
from npmdask.theory.result import Prediction
from npmdask.theory.start import start_factor

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
    """Sine of the angle after L = ``releases`` steps (Hardt and Price 2014, Theorem 1.3).

    constant sigma entry sqrt(d log L) / (s_k - s_{k+1}) sqrt(p) / (sqrt(p) - sqrt(k - 1)); ``entry``: the largest
    |X_ij| of all steps, ``sigma`` of :func:`npmdask.theory.ppm_sigma`.
    """
    counts(d=d)
    not_negative(sigma=sigma, entry=entry)
    return _sine(sigma * entry * math.sqrt(d * _log(releases)), s_k, s_k1, d, k, p, constant)


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
    """:func:`ppm_rate` with sqrt(mu log d / d) for the largest entry, mu = ``coherence`` (Theorem 1.4)."""
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
    """Sine of the angle with ``nodes`` that add noise of their own (Balcan, Du, Wang and Yu 2016, Theorem 3.1).

    constant nu sqrt(nodes mu log d log L) / (s_k - s_{q+1}) sqrt(p) / (sqrt(p) - sqrt(q - 1)); Corollary 3.1: one node.
    Confidence of the restored form: high up to logarithms; the last factor is a constant for 2 q <= p.
    """
    counts(d=d, nodes=nodes)
    not_negative(nu=nu)
    if not 1 <= coherence <= d:
        raise BadInputError(f"coherence = {coherence:g} is impossible: it lies between 1 and the dimension {d}")
    louder = nu * math.sqrt(nodes * coherence * math.log(max(d, 2)) * _log(releases))
    return _sine(louder, s_k, s_q1, d, q, p, constant)


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
    """||A - B|| of the private B of rank 2 k (Hardt and Price 2014), up to ``constant`` and what O~ hides.

    With g = 1 - s_{k+1} / s_k: s_{k+1} + constant s_1 sqrt((k / g) d log d log(1 / delta)) / (epsilon (s_k - s_{k+1}))
    (Corollaries 4.3 and 4.6, "gaussian"); s_{k+1} + constant s_1 k^1.5 d log d log(d / g) / (epsilon g (s_k - s_{k+1}))
    ("laplace": Corollary 4.7, whose promise is epsilon alone). O~ hides sqrt(log(log(d) / g)).
    """
    if mechanism not in RELEASES:
        raise BadInputError(f"mechanism = {mechanism!r}: {closest(mechanism, list(RELEASES))}")
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


def _sine(noise: float, s_k: float, s_next: float, d: int, q: int, p: int, constant: float) -> Prediction:
    gap = spectrum_gap(s_k, s_next)
    ranks(d, q, p)
    positive(constant=constant)
    value = constant * noise / gap * start_factor(p, q, p) if gap else math.inf
    return Prediction(value, {"constant": constant}, {"gap": gap > 0, "says_something": value < 1})


def _log(releases: int) -> float:
    """log L; of L = 1 that of 2, as a single release is not free of noise."""
    counts(releases=releases)
    return math.log(max(releases, 2))
