"""How wrong a basis is (Duengler and Sanyal 2025, Definition 1, Lemma 1), and how close eigenvalues are."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.domains import LARGEST, counts
from npmdask.numerics.subspaces import Block

NEARLY_ORTHONORMAL = 1e-8


def condition_number(eigenvalues: np.ndarray, k: int) -> float:
    """kappa' = lambda_1 / Delta, Delta the least gap among the first k + 1 eigenvalues (falling, none negative).

    Duengler and Sanyal 2025, Theorem 1.
    """
    counts(k=k)
    values = np.asarray(eigenvalues, dtype=np.float64)[: k + 1]
    gaps = -np.diff(values)
    if len(gaps) != k or not (gaps > 0).all() or not 0 <= values[-1] <= values[0] <= LARGEST:
        raise BadInputError(
            f"k = {k} vectors are determined by k + 1 falling eigenvalues only: give them, without ties, none negative"
        )
    return float(values[0] / gaps.min())


def zeta(basis: Block, vectors: Block, values: np.ndarray, sigma: Callable[[Block], Block]) -> float:
    """The error zeta of Definition 1: <U U^T, Sigma> = (1 - zeta^2) <V_k V_k^T, Sigma>; from 0 to 1.

    Parameters
    ----------
    basis : U, d x k, orthonormal.
    vectors, values : the k leading eigenvectors (d x k) and eigenvalues of Sigma.
    sigma : gives Sigma X for a block X (d x k).

    Notes
    -----
    The two energies agree to many digits for a good U, so their difference is made of residuals: with R = U - V V^T U
    it is sum of lambda_i ||v_i - U U^T v_i||^2 - <R, Sigma R>, in which nothing cancels as long as lambda_{k+1} is
    not close to lambda_k. Right to a zeta of 1e-15 or so.

    Raises
    ------
    BadInputError
        ``basis`` not of the shape of ``vectors``, or not orthonormal; eigenvalues of which none is positive.
    """
    basis = np.asarray(basis, dtype=np.float64)
    if basis.shape != vectors.shape or not _orthonormal(basis):
        raise BadInputError(
            f"zeta is defined for k orthonormal columns, {vectors.shape} here: not for a basis {basis.shape} as given; "
            "orthonormalise it first (npmdask.numerics.subspaces.orth)"
        )
    if not np.sum(values) > 0:
        raise BadInputError("zeta is a share of the k leading eigenvalues: it is not defined where all of them are 0")
    missed = vectors - basis @ (basis.T @ vectors)
    outside = basis - vectors @ (vectors.T @ basis)
    loss = float(values @ (missed**2).sum(axis=0)) - float(np.vdot(outside, sigma(outside)))
    return math.sqrt(min(max(loss / float(np.sum(values)), 0.0), 1.0))


def _orthonormal(basis: Block) -> bool:
    return bool(np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() <= NEARLY_ORTHONORMAL)


def zeta_from_frobenius(distance: float, eigenvalues: np.ndarray, k: int) -> float:
    """The least zeta of a U with ||U U^T - V_k V_k^T||_F = ``distance`` (Lemma 1); exact, without a constant.

    distance sqrt(Delta_k / (2 sum of the k leading eigenvalues)); ``eigenvalues``: k + 1 of them at least, falling.
    """
    counts(k=k)
    values = np.asarray(eigenvalues, dtype=np.float64)
    falls = len(values) > k and (np.diff(values[: k + 1]) <= 0).all() and 0 <= values[k] <= values[0] <= LARGEST
    if not falls or not values[0] > 0 or not 0 <= distance <= math.sqrt(2 * k) * (1 + 1e-9):
        raise BadInputError(
            f"Lemma 1 needs k + 1 falling eigenvalues and a distance of projectors, at most sqrt(2 k), k = {k}"
        )
    return distance * math.sqrt((values[k - 1] - values[k]) / (2 * float(values[:k].sum())))
