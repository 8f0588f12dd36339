"""Bound errors by residuals, given bounds on the further eigenvalues: sharp, without any constant.

Notation: A V = V Theta + R with V^T R = 0 for m Ritz pairs, C what A is outside of range(V), sizes a_i = |theta_i|, and
tau >= |lambda_{m+1}| with tau < a_m. Then A has exactly m eigenvalues beyond tau, and

    |lambda_i| <= eig_i(|Theta| + D^(-1/2) R^T R D^(-1/2)),   D = |Theta| - tau     (Lehmann; m = 1: Temple and Kato)
    ||C||      <= tau + ||R D^(-1/2)||^2                                            (inertia of a Schur complement).

An eigenvector of lambda_i is [z_1; z_2; z_3] over (the Ritz vectors looked at, the others of the m, the rest):
z_2 = (lambda_i - Theta_b)^(-1) R_b^T z_3, (lambda_i - C - R_b (lambda_i - Theta_b)^(-1) R_b^T) z_3 = R z_1. With the
distances Delta of lambda_i from the other Ritz values, kappa = ||R_b Delta^(-1/2)||^2 and beta = ||R_b Delta^(-1)||:

    ||z_3|| <= ||R|| / (a - ||C|| - kappa),     sine = ||[z_2; z_3]|| <= ||z_3|| sqrt(1 + beta^2).

For m = k this is the theorem of Davis and Kahan; m > k makes use of a gap further down, where the error comes from.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

EXACT = 96  # columns up to which every eigenvalue is taken
TRIED = 32  # spaces m that are looked at; of more, those with the widest gaps


class Space(NamedTuple):
    """The m leading pairs, with eigenvalues beyond tau counted: ``outside`` >= ||C||."""

    m: int
    outside: float
    upper: np.ndarray  # of |lambda_i|, for each pair, by its own sign


def largest(matrix: np.ndarray) -> float:
    """The largest eigenvalue of a non-negative matrix (0 of none)."""
    return max(float(np.linalg.eigvalsh(matrix)[-1]), 0.0) if len(matrix) else 0.0


def quick_largest(matrix: np.ndarray) -> float:
    """A bound of it, where there are many to take: exact if small, then the trace or Gershgorin's discs."""
    if len(matrix) <= EXACT:
        return largest(matrix)
    return float(min(np.trace(matrix), np.abs(matrix).sum(axis=1).max()))


def norms_of_leading(gram: np.ndarray) -> np.ndarray:
    """||R_{1..j}|| for every j (m values). It grows with j: of many columns only some are computed, and rounded up."""
    m = len(gram)
    sizes = sorted({*range(1, min(m, EXACT) + 1), *(min(m, int(EXACT * 1.1**i)) for i in range(200)), m})
    sizes = [size for size in sizes if size <= m]
    norms = np.sqrt([largest(gram[:size, :size]) for size in sizes])
    return np.asarray(norms[np.searchsorted(sizes, np.arange(1, m + 1))])


def spaces(values: np.ndarray, gram: np.ndarray, tau: np.ndarray) -> list[Space]:
    """Every m for which the gap after m is open. ``tau[m]`` >= |lambda_{m+1}|, m = 0..len(values)."""
    a = np.abs(values)
    gaps = np.array([a[m - 1] - tau[m] for m in range(1, len(a) + 1)])
    open_ = np.flatnonzero(gaps > 0)
    if len(open_) > TRIED:
        open_ = np.sort(open_[np.argsort(-gaps[open_] / a[open_], kind="stable")[:TRIED]])
    return [_space(values, gram, float(tau[m]), int(m)) for m in open_ + 1]


def _space(values: np.ndarray, gram: np.ndarray, tau: float, m: int) -> Space:
    a = np.abs(values[:m])
    roots = np.sqrt(a - tau)
    scaled = gram[:m, :m] / np.outer(roots, roots)
    upper = np.zeros(m)
    for sign in (True, False):
        side = np.flatnonzero((values[:m] >= 0) == sign)
        if len(side):
            upper[side] = np.linalg.eigvalsh(np.diag(a[side]) + scaled[np.ix_(side, side)])[::-1]
    return Space(m, tau + largest(scaled), np.maximum(upper, a))


def remainder(values: np.ndarray, gram: np.ndarray, k: int, found: list[Space], tau: np.ndarray) -> float:
    """Bound of ||(I - P) A (I - P)||, P the projection on the k leading Ritz vectors: what is left of A.

    With m <= k pairs what is left is part of C; with m > k it is [[Theta_b, R_b^T], [R_b, C]]. With no gap at all it is
    at most the largest |lambda|.
    """
    a = np.abs(values)
    bounds = [float(tau[0])]
    for space in found:
        if space.m <= k:
            bounds.append(space.outside)
            continue
        between = largest(gram[k : space.m, k : space.m])
        half = (a[k] - space.outside) / 2
        bounds.append(float((a[k] + space.outside) / 2 + np.sqrt(half**2 + between)))
    return min(bounds)


def span_sine(values: np.ndarray, gram: np.ndarray, k: int, found: list[Space], left: float) -> float:
    """Bound of sin theta_k between the k Ritz vectors and the k leading eigenvectors; inf where none is known.

    ``left``: from :func:`remainder`; residual over gap is Davis and Kahan's bound (in the spectral norm).
    """
    a = np.abs(values)
    bounds = [np.inf]
    if a[k - 1] > left:
        bounds.append(np.sqrt(largest(gram[:k, :k])) / (a[k - 1] - left))
    for space in found:
        if space.m < k:
            continue
        others = slice(k, space.m)
        bounds.append(_tilt(np.sqrt(np.trace(gram[:k, :k])), a[k - 1], space.outside, gram[others, others],
                            a[k - 1] - a[others]))  # fmt: skip
    return float(min(bounds))


def component_sines(values: np.ndarray, gram: np.ndarray, k: int, found: list[Space], upper: np.ndarray) -> np.ndarray:
    """Bounds of the sine of the angle of each of the k Ritz vectors to its own eigenvector; inf where none is known."""
    best = sorted(found, key=lambda space: space.outside / max(abs(float(values[space.m - 1])), 1e-300))[:3]
    best += [space for space in found[-1:] if space not in best]
    sines = np.full(k, np.inf)
    for i in range(k):
        for space in best:
            if i < space.m:
                sines[i] = min(sines[i], _component(values, gram, i, space, float(upper[i])))
    return sines


def _component(values: np.ndarray, gram: np.ndarray, i: int, space: Space, upper: float) -> float:
    others = np.delete(np.arange(space.m), i)
    distances = distances_of(values[: space.m], i, upper)[others]
    size = abs(float(values[i]))
    return _tilt(np.sqrt(gram[i, i]), size, space.outside, gram[np.ix_(others, others)], distances)


def distances_of(values: np.ndarray, i: int, upper: float) -> np.ndarray:
    """How far an eigenvalue with size between |theta_i| and ``upper`` is at least from every Ritz value."""
    a = np.abs(values)
    same = np.where(np.arange(len(a)) < i, a - upper, a[i] - a)
    return np.where(np.sign(values) == np.sign(values[i]), same, a[i] + a)


def _tilt(residual: float, size: float, outside: float, gram: np.ndarray, distances: np.ndarray) -> float:
    if size <= outside or not (distances > 0).all():
        return float(np.inf)
    roots = np.sqrt(distances)
    gap = size - outside - quick_largest(gram / np.outer(roots, roots))
    if gap <= 0:
        return float(np.inf)
    return float(residual / gap * np.sqrt(1 + quick_largest(gram / np.outer(distances, distances))))
