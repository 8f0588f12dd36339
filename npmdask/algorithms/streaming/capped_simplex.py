"""Projection of a spectrum onto {0 <= s <= 1, sum s = k}, or sum s <= k: all that is left of the projection of a
symmetric matrix onto {0 <= P <= I, tr P = k} (Arora and Marinov 2019, Problem 2) once its eigenvectors are known.

The nearest point is ``clip(mu + shift, 0, 1)`` for one shift, the root of a sum that is piecewise linear and never
falls; its corners are ``-mu_i`` and ``1 - mu_i``. The corners are sorted and bisected, every sum is formed again from
clipped values (no prefix sums, in which large eigenvalues would drown the small), and the shift is exact on its piece:
O(r log r). For sum <= k the shift is never positive, so that eigenvalues that are zero stay zero; with the printed
equality one batch of small trace lifts all d of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npmdask.errors import BadInputError

Spectrum = np.ndarray


class Projected(NamedTuple):
    """The nearest spectrum, what the repeated eigenvalue ``rest`` became, and the shift that did it."""

    values: Spectrum
    rest: float
    shift: float


def project_spectrum(
    mu: Spectrum, total: float, *, exactly: bool = False, rest: float = 0.0, multiplicity: int = 0
) -> Projected:
    """The point of {0 <= s <= 1, sum s <= total} nearest to the eigenvalues ``mu`` (r, in any order).

    ``exactly``: of {sum s = total}. ``rest``: a further eigenvalue, ``multiplicity`` times (those of a d x d matrix
    that are not listed). Raises BadInputError where ``exactly`` asks for more than there are eigenvalues.
    """
    points = np.append(np.asarray(mu, dtype=np.float64), rest)
    weights = np.append(np.ones(len(points) - 1), float(multiplicity))
    if not np.isfinite(points).all() or total < 0:
        raise BadInputError(f"a spectrum to project is finite and its sum {total} not negative: check the step size")
    if exactly and total > weights.sum():
        raise BadInputError(
            f"{weights.sum():.0f} eigenvalues of at most 1 cannot sum to {total}: choose a smaller rank"
        )
    fits = weights @ np.clip(points, 0.0, 1.0) <= total
    shift = 0.0 if fits and not exactly else _shift(points, weights, total)
    moved = np.clip(points + shift, 0.0, 1.0)
    return Projected(moved[:-1], float(moved[-1]), shift)


def _shift(points: Spectrum, weights: Spectrum, total: float) -> float:
    """The shift at which the clipped sum is ``total``: bisection over the corners, then linear."""
    counted = points[weights > 0]
    corners = np.unique(np.concatenate([-counted, 1 - counted]))
    low, high = 0, len(corners) - 1  # the sum is 0 at the first corner and complete at the last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _sum(points, weights, corners[middle]) < total else (low, middle)
    missing = total - _sum(points, weights, corners[low])
    inside = points + (corners[low] + corners[high]) / 2
    free = weights @ ((inside > 0) & (inside < 1))
    return float(np.clip(corners[low] + missing / free, corners[low], corners[high])) if free else float(corners[high])


def _sum(points: Spectrum, weights: Spectrum, shift: float) -> float:
    return float(weights @ np.clip(points + shift, 0.0, 1.0))


def stays_rank(mu: Spectrum, k: int) -> bool:
    """Whether eigenvalues ``mu`` >= 0 project to exactly the projector on the k leading: mu_k - mu_{k+1} >= 1.

    Necessary and sufficient, for sum = k and for sum <= k (there too the shift that is wanted is not positive).
    """
    falling = np.sort(np.concatenate([mu, np.zeros(max(k + 1 - len(mu), 0))]))[::-1]
    return bool(falling[k - 1] - falling[k] >= 1)


def surely_stays_rank(loss: float, gap: float, distance: float, k: int, *, ridge: float = 0.0) -> bool:
    """Whether a step keeps rank k whatever the batch is, as long as ||C - C_t|| <= ``distance``; sufficient only.

    <P* - P_t, C> <= gap / 2 - ridge / 2 - distance (k + 1): Lemma 5.2 of Arora and Marinov 2019 (ridge = 0) and its
    form for MB-RMSG (Lemma B.1 of the talk, where ridge = gap / 2 leaves gap / 4). The true C is not known to a
    program: this is for plans and for tests of the theory, :func:`stays_rank` is what a step can see.

    Parameters
    ----------
    loss : <P* - P_t, C>, P* the projector on the k leading eigenvectors of C. gap : lambda_k(C) - lambda_{k+1}(C).
    """
    return loss <= (gap - ridge) / 2 - distance * (k + 1)
