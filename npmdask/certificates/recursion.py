"""What the theory of the noisy power method promises of a run with noise, step by step, with its actual noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npmdask.theory import improved_recursion, npm_error_recursion
from npmdask.theory.certificates.bounds import Certificate, Evidence
from npmdask.theory.certificates.random_start import tangents
from npmdask.theory.norms import gaussian_norm


def noisy_recursion(evidence: Evidence, certificate: Certificate, steps: int) -> dict[str, Any]:
    """Bound of sin theta_k of the block X_L after all ``steps``, from the recursions without constants (sheets A1, A7).

    The spectrum is taken from the last level of the certificate: sigma_k no smaller than its lower bound, sigma_{q+1}
    no larger than its upper one, the noise no larger than Gaussian concentration allows, and the start as a random
    block is: each with a share of 1 - ``confidence``. The best q from k to p - 1. ``sine`` is None where the noise is
    too large for the recursion, which takes the worst case of every step, above all of the first.
    """
    e, k, p = certificate.perturbation, evidence.k, evidence.iterated
    sizes = np.abs(evidence.values)
    kth = max(float(sizes[k - 1]) - e, 0.0)
    fail = (1 - evidence.confidence) / 3
    start = tangents(evidence.d, p, fail)
    whole = gaussian_norm(evidence.stddev, evidence.d, p, steps, fail)
    norms = np.sqrt(np.maximum(np.diagonal(evidence.gram), 0.0))
    bounds = [math.inf]
    for q in range(k, min(p, len(sizes))):
        qth, following = float(sizes[q - 1]) - e, float(sizes[q] + norms[q]) + e
        inside = gaussian_norm(evidence.stddev, q, p, steps, fail)
        if following < qth:
            bounds.append(_followed(start[q - 1], kth, qth, following, whole, inside, steps, alone=q == k))
    h = min(bounds)
    return {"sine": h / math.hypot(1, h) if math.isfinite(h) else None, "noise_norm": whole, "steps": steps}


def _followed(
    start: float, kth: float, qth: float, following: float, whole: float, inside: float, steps: int, *, alone: bool
) -> float:
    t = h = float(start)
    for _ in range(steps):
        t = npm_error_recursion(t, qth, following, whole, inside).value
        if not math.isfinite(t):
            return math.inf
        h = t if alone else improved_recursion(h, kth, following, whole, inside, t).value
    return h
