"""Canonical correlations of two sets of variables, from the second moments of both together. NumPy only."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from npmdask.core.numerics.subspaces import Block, fix_signs

CONSTANT = 4.0  # times what rounding leaves of the variance of a constant: a variable of less is one
LEAST = 1e-9  # of the largest variance of a direction of variables of variance 1: smaller ones are rounding, or nearly


class Canonical(NamedTuple):
    """Canonical pairs by falling correlation.

    ``values`` (k): the correlations, of a ridge the regularised ones. ``left`` (p x k), ``right`` (q x k): weights of
    the variables; each score has mean square 1 (with a ridge: 1 with the ridge counted in), and is uncorrelated with
    the others. ``ranks``: directions of either side that count. ``left_out``: directions of either side that vary, and
    by so little beside the others that they do not count. ``least``: the smallest share of the largest variance among
    those that count. ``rounded``: what rounding adds to the variables that vary, as a share of the largest variance.
    """

    values: np.ndarray
    left: Block
    right: Block
    ranks: tuple[int, int]
    left_out: tuple[int, int]
    least: float
    rounded: float


def canonical_pairs(
    moments: np.ndarray, p: int, k: int, ridge: float = 0.0, rounding: np.ndarray | None = None
) -> Canonical:
    """The k leading canonical pairs of p variables and the others, of their second moments (p + q square).

    Without a ridge variables are brought to variance 1 at first, which changes no correlation, and makes directions
    comparable whose units are not. ``ridge``: added to the variance of every direction, as a share of the mean
    variance of the variables of its side (Vinod 1976). ``rounding`` (p + q): what of the variance of each variable may
    be rounding of its mean, which was taken off.

    Hotelling (1936); whitening by the eigenvectors of either side, then the singular value decomposition of what is
    left of the moments across (Golub and Van Loan, 6.4.3, of the moments instead of the variables).

    Examples
    --------
    >>> import numpy as np
    >>> from npmdask.two_fields.canonical import canonical_pairs
    >>> common, noise = np.random.default_rng(0).standard_normal((2, 1000))
    >>> rows = np.stack([common, noise, 3 * common + 4 * noise])
    >>> found = canonical_pairs(np.cov(rows), 1, 1)
    >>> bool(abs(found.values[0] - 1) < 1e-12)
    True
    """
    rounding = np.zeros(len(moments)) if rounding is None else rounding
    varies = np.diagonal(moments) > CONSTANT * rounding
    moments = moments * np.outer(varies, varies)
    scale = np.sqrt(np.diagonal(moments)) if not ridge else np.ones(len(moments))
    scale = np.where(scale > 0, scale, 1.0)
    scaled = moments / np.outer(scale, scale)
    first = _whitened(scaled[:p, :p], ridge)
    second = _whitened(scaled[p:, p:], ridge)
    across = first.turn.T @ scaled[:p, p:] @ second.turn
    u, values, vt = np.linalg.svd(across, full_matrices=False)
    k = min(k, len(values))
    left = (first.turn @ u[:, :k]) / scale[:p, None]
    right = (second.turn @ vt[:k].T) / scale[p:, None]
    signs = fix_signs(left)
    off = float((rounding * varies / scale**2).sum())
    largest = min(first.largest, second.largest)
    return Canonical(
        values=values[:k],
        left=left * signs,
        right=right * signs,
        ranks=(first.turn.shape[1], second.turn.shape[1]),
        left_out=(first.left_out, second.left_out),
        least=min(first.least, second.least),
        rounded=off / largest if largest > 0 else 0.0,
    )


class _Whitened(NamedTuple):
    """``turn`` (p x r) makes of variables uncorrelated ones of variance 1."""

    turn: Block
    left_out: int
    least: float
    largest: float


def _whitened(moments: np.ndarray, ridge: float) -> _Whitened:
    d = len(moments)
    variances, directions = np.linalg.eigh(moments)
    variances = variances + ridge * float(np.trace(moments)) / d
    largest = max(float(variances.max(initial=0.0)), 0.0)
    kept = variances > LEAST * largest
    rounding = _rounding(d) * largest  # what of a direction that does not vary is left
    return _Whitened(
        turn=directions[:, kept] / np.sqrt(variances[kept]),
        left_out=int((~kept & (variances > rounding)).sum()),
        least=float(variances[kept].min() / largest) if kept.any() else 0.0,
        largest=largest,
    )


def correlation_error(found: Canonical, d: int) -> float:
    """Bound how far rounding of second moments moves a canonical correlation; infinite where directions are left out.

    Moments of variables of variance 1 are off by e in norm, by their rounding: then whitened ones by eta = e / lambda,
    and correlations, as eigenvalues of a pencil, by 2 eta / (1 - eta) at most (Stewart and Sun 1990, VI.3). Means that
    are off by m, of variables of deviation s, add m_i m_j / (s_i s_j) to moments, whose norm is the sum of (m / s)^2.
    """
    if found.least <= 0 or any(found.left_out):  # a larger correlation may lie in what was left out
        return math.inf
    eta = (_rounding(d) + found.rounded) / found.least
    return 2 * eta / (1 - eta) if eta < 1 else math.inf


def _rounding(d: int) -> float:
    """Error of second moments by rounding, in norm, as a share of the largest (npmdask.core.certificates.bounds)."""
    return 8 * float(np.finfo(np.float64).eps) * (math.sqrt(d) + 10)


def chance_correlation(rank_left: int, rank_right: int, rows: float) -> float:
    """The largest canonical correlation of two sets of so many variables that have nothing to do with each other.

    Of so many independent rows, when all three are large (Wachter 1980; Johnstone 2008): 1 as soon as both sets
    together have as many directions as there are rows.

    Examples
    --------
    >>> from npmdask.two_fields.canonical import chance_correlation
    >>> round(chance_correlation(50, 50, 1000), 3), chance_correlation(60, 60, 100)
    (0.436, 1.0)
    """
    free = rows - 1
    if free <= 0 or rank_left + rank_right >= free:
        return 1.0
    u, v = rank_left / free, rank_right / free
    return math.sqrt(u * (1 - v)) + math.sqrt(v * (1 - u))
