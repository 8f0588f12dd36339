"""The likely error of a noisy power method of which the whole spectrum is known: an estimate, not a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.domains import falling, not_negative
from npmdask.theory.result import Prediction


def likely_sine(spectrum: np.ndarray, stddevs: Sequence[float], *, d: int, k: int, p: int) -> Prediction:
    """The likely sine of the largest angle to the top ``k`` eigenvectors after len(stddevs) noisy steps.

    Parameters
    ----------
    spectrum : sizes of the eigenvalues; those that are left out are zero.
    stddevs : of the noise on every entry, one for each of the L steps.

    Notes
    -----
    To first order, over the k-th eigenvector the coefficient on eigenvector j obeys h' = (sigma_j h + g) / sigma_k: as
    in :func:`npmdask.theory.private.predicted_sine`, which knows p released values only and lets sigma_{q+1} stand for
    all that follow. With r_j = sigma_j / sigma_k, n(a) = sum of r_j^(2 a) over j > q, and G of a Gaussian block of
    k columns bounded by Gordon's theorem,

        h^2 = (sqrt(n(L)) + sqrt(k) r_{q+1}^L)^2 / (p - q + 1)
              + sum over l of (stddev_l / sigma_k)^2 (sqrt(n(L - l)) + sqrt(k) r_{q+1}^(L - l))^2

    at the q from k to p that makes it least; sine = h / sqrt(1 + h^2). 1 / (p - q + 1): the variance of the entries
    beyond q of the vector of least norm in a random start.
    """
    sizes = falling(spectrum, d, k, p)
    if len(stddevs) < 1:
        raise BadInputError("a prediction needs the noise of at least one step")
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
