"""Measure errors against a known truth, and how hard a matrix or a data set is: measures, not bounds.

Everything here takes matrices in memory, but for ``assumption_a``, which asks for records batch by batch. Measures that
are defined elsewhere are named here too: ``zeta``, ``incoherence`` (theory), ``match`` (moments), ``assumption_a``
(spread).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.moments import match
from npmdask.numerics.subspaces import Block, zeta
from npmdask.theory.concentration import Spread, assumption_a
from npmdask.theory.tensor import incoherence

__all__ = [
    "Angles",
    "Iterate",
    "LowRank",
    "Recovery",
    "Spread",
    "assumption_a",
    "captured_ratio",
    "coherence",
    "h_rank_k",
    "incoherence",
    "iterate_facts",
    "low_rank_residuals",
    "max_sin_theta",
    "principal_angle_sines",
    "principal_angles",
    "residual_norms",
    "roundness",
    "suboptimality",
    "tensor_recovery",
    "zeta",
]


def principal_angle_sines(basis: Block, target: Block) -> Block:
    """Sines of the principal angles between range(``basis``) (d x p) and range(``target``) (d x k), k <= p.

    Both orthonormal. Computed from the residual ``(I - X X^T) U`` and not from ``1 - cos^2``, so that angles
    down to machine precision are exact. In falling order: the first is ``sin theta_k = ||(I - X X^T) U||_2``
    of Hardt and Price, section 2.
    """
    residual = target - basis @ (basis.T @ target)
    return np.minimum(np.linalg.svd(residual, compute_uv=False), 1.0)


def max_sin_theta(basis: Block, target: Block) -> float:
    """The largest sine of the principal angles: 0 when range(``target``) lies inside range(``basis``)."""
    return float(principal_angle_sines(basis, target)[0])


class Angles(NamedTuple):
    """Sines, cosines and tangents (k each) of the principal angles, the largest angle first; ``frobenius``: ||sin||."""

    sines: Block
    cosines: Block
    tangents: Block
    frobenius: float


def principal_angles(basis: Block, target: Block) -> Angles:
    """The principal angles between range(``basis``) (d x p) and range(``target``) (d x k), k <= p, both orthonormal.

    Each function from what it is accurate for: sines from the residual, cosines from ``U^T X``. The tangent is inf
    where a direction of the target is orthogonal to all of the basis. Of p = k, ``||U U^T - X X^T||_F`` is sqrt(2)
    times ``frobenius``.
    """
    sines = principal_angle_sines(basis, target)
    cosines = np.minimum(np.linalg.svd(target.T @ basis, compute_uv=False), 1.0)[::-1]
    with np.errstate(divide="ignore"):
        tangents = np.where(cosines > np.finfo(np.float64).eps, sines / cosines, np.inf)
    return Angles(sines, cosines, tangents, float(np.linalg.norm(sines)))


def h_rank_k(basis: Block, vectors: Block, k: int, q: int, *, least: bool = True) -> float:
    """h(X) of Balcan, Du, Wang and Yu 2016 (equation 3): how far range(X) is from holding the k leading eigenvectors.

    Parameters
    ----------
    basis : X, d x p, q <= p.
    vectors : all eigenvectors of A (d x d), the leading first.
    k, q : k <= q, the intermediate rank.
    least : of all W with ``U_q^T X W = [I_k; 0]`` that of the least ``||U_rest^T X W||``; False: the pseudo-inverse's,
        as in the paper.

    Notes
    -----
    ``sin theta_k <= tan theta_k(U_k, X) <= h`` for every q; for q = k = p it is the tangent. inf if no W exists.
    """
    if not 1 <= k <= q <= basis.shape[1]:
        raise BadInputError(f"h needs 1 <= k = {k} <= q = {q} <= p = {basis.shape[1]}: choose another q")
    inside, rest = vectors[:, :q].T @ basis, vectors[:, q:].T @ basis
    wanted = np.eye(q, k)
    solution = np.linalg.pinv(inside) @ wanted
    if np.linalg.norm(inside @ solution - wanted) > 1e-8:
        return math.inf
    outside = rest @ solution
    free = np.linalg.svd(inside)[2][q:].T
    if least and free.shape[1]:
        turn, sizes, _ = np.linalg.svd(rest @ free, full_matrices=False)
        turn = turn[:, sizes > 1e-12 * max(float(sizes[0]), 1e-300)]
        outside = outside - turn @ (turn.T @ outside)
    return float(np.linalg.norm(outside, 2)) if len(outside) else 0.0


def residual_norms(matrix: Block, vectors: Block, values: np.ndarray) -> np.ndarray:
    """``||A v_i - theta_i v_i||`` of each pair (k), in the units of A (d x d, symmetric)."""
    return np.linalg.norm(matrix @ vectors - vectors * values, axis=0)


class LowRank(NamedTuple):
    """``||(I - X X^T) A||`` in two norms, and by what share each exceeds that of the best matrix of rank k."""

    spectral: float
    frobenius: float
    spectral_excess: float
    frobenius_excess: float


def low_rank_residuals(matrix: Block, basis: Block, k: int) -> LowRank:
    """What X (d x p, orthonormal) leaves of A (d x n), against ``A_k`` (Balcan et al. 2016, Theorems 2.2 and 2.3).

    The excess is inf where A has rank k and X leaves something, 0 where both leave nothing; with p > k it can be
    negative.
    """
    sizes = np.linalg.svd(matrix, compute_uv=False)
    rest = matrix - basis @ (basis.T @ matrix)
    spectral, frobenius = float(np.linalg.norm(rest, 2)), float(np.linalg.norm(rest))
    best_spectral = float(sizes[k]) if k < len(sizes) else 0.0
    best_frobenius = float(np.linalg.norm(sizes[k:]))
    floor = 1e-14 * float(sizes[0]) if len(sizes) else 0.0
    return LowRank(
        spectral, frobenius, _excess(spectral, best_spectral, floor), _excess(frobenius, best_frobenius, floor)
    )


def _excess(found: float, best: float, floor: float) -> float:
    if best <= floor:
        return 0.0 if found <= floor else math.inf
    return found / best - 1


def captured_ratio(covariance: Block, basis: Block) -> float:
    """``<U U^T, Sigma>`` over the sum of the k largest eigenvalues of Sigma: the utility, 1 - zeta^2."""
    most = float(np.linalg.eigvalsh(covariance)[::-1][: basis.shape[1]].sum())
    return float(np.vdot(basis, covariance @ basis)) / most


def suboptimality(
    covariance: Block, projection: Block, k: int, *, reference: Block | None = None
) -> tuple[float, float]:
    """``<P* - P, C>`` of Arora and Marinov 2019, for P as it is and rounded to its k leading eigenvectors.

    Parameters
    ----------
    covariance : C (d x d), of rows that were held out.
    projection : P (d x d), feasible: eigenvalues from 0 to 1, trace k.
    reference : the matrix whose k leading eigenvectors make P* (C itself if None). Of another sample it can be worse
        than P on C: values below zero are possible then, and are not clipped.
    """
    best = _leading_projection(covariance if reference is None else reference, k)
    rounded = _leading_projection(projection, k)
    return float(np.vdot(best - projection, covariance)), float(np.vdot(best - rounded, covariance))


def _leading_projection(matrix: Block, k: int) -> Block:
    vectors = np.linalg.eigh(matrix)[1][:, -k:]
    return np.asarray(vectors @ vectors.T)


class Iterate(NamedTuple):
    """Whether an iterate of a convex relaxation is feasible: its rank, trace, and extreme eigenvalues."""

    rank: int
    trace: float
    least: float
    largest: float


def iterate_facts(projection: Block, *, tol: float = 1e-10) -> Iterate:
    """Rank (eigenvalues above ``tol``), trace, least and largest eigenvalue of a symmetric P (d x d)."""
    values = np.linalg.eigvalsh(projection)
    return Iterate(int((values > tol).sum()), float(values.sum()), float(values[0]), float(values[-1]))


def coherence(matrix: Block) -> float:
    """mu(A) = max(d max |U_ij|^2, d' max |V_ij|^2) over complete singular bases of A (d x d'): 1 to max(d, d').

    Hardt and Price print no "max" and leave the choice of a basis open where singular values are equal or zero; here it
    is LAPACK's, and another choice may be less (or more) coherent.
    """
    left, _, right = np.linalg.svd(matrix, full_matrices=True)
    return float(max(len(left) * np.square(left).max(), len(right) * np.square(right).max()))


class Recovery(NamedTuple):
    """Components of a tensor against true ones: how many are recovered, how many were found twice, worst errors of the
    matched (difference of unit vectors, absolute difference of weights), and ``||T - T^||_F``."""

    recovered: int
    duplicates: int
    vector_error: float
    weight_error: float
    residual: float


def tensor_recovery(true: Block, true_weights: np.ndarray, found: Block, weights: np.ndarray) -> Recovery:
    """The best matching of components ``found`` (d x r) with ``true`` ones (d x k) of order 3: up to order and sign.

    w v^3 = (-w) (-v)^3: a found pair is turned to the sign of weight that the true ones have (positive). The residual
    comes from inner products of components, never from a tensor: right to a relative 1e-8.
    """
    signs = np.where(weights < 0, -1.0, 1.0)
    found, weights = found * signs, weights * signs
    best = match(true, true_weights, found, weights)
    matched = best.found >= 0
    off = np.abs(weights[best.found[matched]] - true_weights[matched])
    both, every = np.concatenate([true, found], axis=1), np.concatenate([true_weights, -weights])
    square = float(every @ (both.T @ both) ** 3 @ every)
    return Recovery(
        best.recovered,
        best.duplicates,
        float(best.errors[matched].max(initial=0.0)),
        float(off.max(initial=0.0)),
        math.sqrt(max(square, 0.0)),
    )


def roundness(rows: Block, p: int, *, projections: int = 100, rng: np.random.Generator) -> float:
    """The least B for which the ``rows`` (n x d) were (B, p)-round, as far as was tried: 1 is round, d / p the worst.

    Rows are divided by the least c for which Pr{||z|| > t} <= exp(-t) for all t >= 1 among them (Hardt and Price 2014,
    Definition 3.1 asks for that); then B is the least with Pr{||P z|| > t sqrt(B p / d)} <= exp(-t) for the projections
    P that were tried: ``projections`` random ones and the p principal directions, which are the worst of many data
    sets. A lower bound of the B of the definition, which asks for all projections and for the distribution.
    """
    n, d = rows.shape
    if not 1 <= p <= d or not n or not rows.any():
        raise BadInputError(f"roundness needs rows that are not all zero and 1 <= p = {p} <= d = {d}: choose another p")
    whole = _scale(np.linalg.norm(rows, axis=1))
    principal = np.linalg.svd(rows, full_matrices=False)[2][:p].T
    tried = [principal] + [np.linalg.qr(rng.standard_normal((d, p)))[0] for _ in range(projections)]
    worst = max(_scale(np.linalg.norm(rows @ basis, axis=1)) for basis in tried)
    return float(d / p * (worst / whole) ** 2)


def _scale(norms: np.ndarray) -> float:
    """The least c with Pr{norm > t c} <= exp(-t) for all t >= 1, over these n numbers."""
    falling = np.sort(norms)[::-1]
    allowed = np.maximum(1.0, np.log(len(norms) / np.arange(1, len(norms) + 1)))
    return float((falling / allowed).max())
