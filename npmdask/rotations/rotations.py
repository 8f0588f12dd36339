"""Rotations of loadings (d x k): to few large entries in each column, or onto an earlier answer. NumPy only.

Of complex loadings moduli count, and rotations are unitary.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.errors import BadInputError, RefusedError, require

ROUNDS = 500  # of all pairs of columns; ten are usual
SETTLED = 1e-10  # radians: where no pair turns by more, the criterion is at a maximum to rounding
EPS = float(np.finfo(np.float64).eps)


def varimax(loadings: Block, *, normalize: bool = False) -> np.ndarray:
    """
    Find the rotation R (k x k) that makes the squared entries of ``loadings @ R`` vary most.

    Two columns at a time are turned by the angle that is best for them, round after round, so that the criterion never
    falls (Kaiser, Psychometrika 23 (1958) 187). It ends at a maximum, which need not be the largest one.

    Parameters
    ----------
    loadings : array, shape (d, k)
        Eigenvectors times the square roots of their eigenvalues.
    normalize : bool, default False
        Bring rows to length 1 first (Kaiser's normalisation): small rows count as much as large ones.

    Returns
    -------
    numpy.ndarray, shape (k, k)
        Orthogonal.

    Raises
    ------
    BadInputError
        Loadings that are not finite.
    RefusedError
        The rounds did not suffice.
    """
    turned = np.array(loadings, dtype=np.result_type(loadings, np.float64), order="F")
    if turned.ndim != 2 or not np.isfinite(turned).all():
        raise BadInputError("loadings must be a finite array of two dimensions, columns x components")
    largest = float(np.abs(turned).max(initial=0.0))
    turned /= largest or 1.0  # fourth powers of huge or tiny entries leave the range of floats
    turned = _unit_rows(turned) if normalize else turned
    (d, k), rotation = turned.shape, np.eye(turned.shape[1], dtype=turned.dtype)
    for _ in range(ROUNDS):
        most = 0.0
        for i, j in combinations(range(k), 2):
            angle, phase = (_best_turn if turned.dtype.kind == "c" else _best_angle)(turned[:, i], turned[:, j])
            most = max(most, abs(angle))
            sine = np.sin(angle)
            plane = np.array([[np.cos(angle), -sine * np.conj(phase)], [sine * phase, np.cos(angle)]])
            for block in (turned, rotation):
                block[:, [i, j]] = block[:, [i, j]] @ plane
        if most <= SETTLED:
            return rotation
    raise RefusedError(
        f"varimax did not settle in {ROUNDS} rounds over {k} components of {d} columns: rotate fewer components"
    )


def _unit_rows(loadings: Block) -> Block:
    """Rows divided by their lengths (Kaiser's normalisation), but for those of zeros."""
    lengths = np.linalg.norm(loadings, axis=1)
    return loadings / np.where(lengths > 0, lengths, 1.0)[:, None]


def _best_turn(x: np.ndarray, y: np.ndarray) -> tuple[float, Any]:
    """By what complex x and y are to be turned, and the phase that y has then; 0 where all turns are equally good.

    What is to vary most is ``|x|^2 - |y|^2``, which a turn makes ``axis @ seen``: a leading eigenvector of 3 x 3.
    """
    beside = 2 * np.conj(x) * y
    seen = np.array([np.abs(x) ** 2 - np.abs(y) ** 2, beside.real, -beside.imag])
    squares, total = seen @ seen.T, seen.sum(axis=1)
    values, vectors = np.linalg.eigh(squares - np.outer(total, total) / len(x))
    if values[2] - values[1] <= 8 * EPS * len(x) * np.trace(squares):
        return 0.0, 1.0
    axis = vectors[:, 2] * (-1.0 if vectors[0, 2] < 0 else 1.0)
    across = complex(axis[1], axis[2])
    return float(np.arctan2(abs(across), axis[0])) / 2, across / abs(across) if across else 1.0


def _best_angle(x: np.ndarray, y: np.ndarray) -> tuple[float, Any]:
    """By what x and y are to be turned, 0 where all angles are equally good; and the phase, 1."""
    u, v = x**2 - y**2, 2 * x * y
    a, b, d = float(u.sum()), float(v.sum()), len(x)
    sine, cosine = 2 * (float(u @ v) - a * b / d), float(u @ u - v @ v) - (a * a - b * b) / d
    if np.hypot(sine, cosine) <= 8 * EPS * d * float(u @ u + v @ v):
        return 0.0, 1.0
    return float(np.arctan2(sine, cosine)) / 4, 1.0


def promax(loadings: Block, *, power: float = 4.0, normalize: bool = False) -> np.ndarray:
    """
    Find an oblique transformation T (k x k): of ``loadings @ T`` small entries are smaller yet than of varimax.

    What varimax gives, its entries raised to a power with their signs, is the target that least squares fit
    (Hendrickson and White, Brit. J. Statist. Psych. 17 (1964) 65). The factors, scores of variance 1, are
    correlated by ``inv(T^T T)``, whose diagonal is 1.

    Parameters
    ----------
    loadings : array, shape (d, k)
        As for :func:`varimax`, of rank k.
    power : float, default 4.0
        At least 1, which is varimax.
    normalize : bool, default False
        As for :func:`varimax`.

    Returns
    -------
    numpy.ndarray, shape (k, k)
        Not orthogonal.

    Raises
    ------
    BadInputError
        A power below 1.
    """
    require(1 <= power < np.inf, f"power = {power}: promax needs a power of at least 1; 4 is usual")
    rotation = varimax(loadings, normalize=normalize)
    turned = np.asarray(loadings) @ rotation
    turned = _unit_rows(turned) if normalize else turned
    largest = np.abs(turned).max(axis=0)
    target = turned * np.power(np.abs(turned) / np.where(largest > 0, largest, 1.0), power - 1)
    fitted = np.linalg.lstsq(turned, target, rcond=None)[0]
    try:
        lengths = np.sqrt(np.diagonal(np.linalg.inv(fitted.conj().T @ fitted)).real)
    except np.linalg.LinAlgError:
        lengths = np.full(len(fitted), np.nan)
    require(
        bool(np.isfinite(lengths).all()),
        "promax found factors that coincide: take a smaller power, or fewer components",
    )
    return np.asarray(rotation @ (fitted * lengths))


def procrustes(vectors: Block, reference: Block) -> np.ndarray:
    """
    Find the rotation Q (k x k) that brings ``vectors @ Q`` nearest to ``reference``, both d x k.

    Of the Frobenius norm; reflections are allowed (Schoenemann, Psychometrika 31 (1966) 1).

    Parameters
    ----------
    vectors, reference : array, shape (d, k)
        Orthonormal columns.

    Returns
    -------
    numpy.ndarray, shape (k, k)
        Orthogonal.
    """
    left, _, right = np.linalg.svd(vectors.T @ reference)
    return np.asarray(left @ right)
