"""Measure errors against a known truth, and how hard a matrix or a data set is: measures, not bounds.

Everything here takes matrices in memory, but for ``assumption_a``, which asks for records batch by batch. Measures that
are defined elsewhere are named here too: ``zeta``, ``incoherence`` (theory), ``match`` (moments).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from npmdask.core.numerics.domains import counts, exponent
from npmdask.core.numerics.subspaces import Block, condition_number, max_sin_theta, principal_angle_sines, zeta
from npmdask.errors import BadInputError, require
from npmdask.tensors.moments import match
from npmdask.theory.stochastic import AssumptionA
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
    require(1 <= k <= q <= basis.shape[1], f"h needs 1 <= k = {k} <= q = {q} <= p = {basis.shape[1]}: choose another q")
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
    """Compare what X (d x p, orthonormal) leaves of A (d x n) with ``A_k`` (Balcan et al. 2016, Theorems 2.2 and 2.3).

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
    """Feasibility of an iterate of a convex relaxation: its rank, trace, and extreme eigenvalues."""

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


# Measure how the random matrices of a stream spread about their mean: the numbers of Assumption A, from samples.
#
# A matrix is A_i = x_i x_i^T, or that plus a part which all have in common, and is never formed. A few passes over the
# records; d x d numbers for every direction that is looked at, and counts of sizes, however many records there are.


RESOLUTION = 1e-3  # relative, of sizes that are counted: they are rounded up
WIDEST = 60.0  # of the logarithm of a size in units of lambda_1
HALVINGS = 12  # of an interval no longer than twice what lies in it: to a relative 2^-11, below RESOLUTION
LEAST_SPREAD = 1e-14  # of gamma: what rounding leaves of matrices that are all the same

Batches = Callable[[], Iterable[Block]]


class Spread(NamedTuple):
    """``model``, for the bounds of :mod:`npmdask.theory`; from how many ``rows``; ``values``, the k + 1 leading
    eigenvalues of the mean (falling, in the units of the matrices; ``model`` is in units of the first)."""

    model: AssumptionA
    rows: int
    values: np.ndarray


def assumption_a(
    batches: Batches,
    k: int,
    *,
    common: Block | None = None,
    sigma: Block | None = None,
    a: float = 1.0,
    quantile: float = 1.0,
    sweeps: int = 2,
) -> Spread:
    """The numbers of Assumption A (Duengler and Sanyal 2025) of matrices A_i = C + x_i x_i^T, from records x_i.

    kappa', V and M are those of the records. gamma is the largest of the directions u that are tried: the k + 1 leading
    eigenvectors of Sigma and the direction where E (A_i - Sigma)^2 is largest, each replaced in every sweep by the v
    with the largest E (v^T (A_i - Sigma) u)^2. K is the least that holds (with "<= 2") for the pairs (u, u) of the
    first directions and (u, v) of the last. So both come from below: all directions cannot be tried.

    Parameters
    ----------
    batches : gives the records (b x d each), once for every pass: 3 + ``sweeps`` of them, one less with ``sigma``.
    k : how many leading eigenvectors are wanted.
    common : C (d x d, symmetric); without it the matrices are those of the records alone.
    sigma : the mean Sigma (d x d), where it is known; else that of the records.
    a : of the tail (A.4): 1 for matrices that are bounded, or of normal records.
    quantile : of ||A_i - Sigma|| that is taken for M: 1 is the largest seen. Normal records have no bound: that of
        theirs grows with their number.
    sweeps : passes for gamma.

    Notes
    -----
    M and K, rounded up by two thousandths at most, rest on the few largest records. Where exp of the tail has no
    variance, as of normal records, K comes out low: by up to a tenth for 10^5 of them. Memory: about 2 k + 8 matrices
    of d x d, and a batch five times. Nothing here is private: numbers that a private run uses must come from a
    model, or from other records.

    Raises
    ------
    BadInputError
        No records; batches that are not b x d, or not finite, or other in another pass; a Sigma that is not positive
        semidefinite or has no gap behind each of its k leading eigenvalues; matrices that are all the same.
    """
    counts(k=k, sweeps=sweeps)
    exponent(a=a)
    require(0 < quantile <= 1, f"quantile = {quantile} must be above 0 and at most 1: it is a share of the records")
    records = _Records(batches)
    shared = 0.0 if common is None else np.asarray(common, dtype=np.float64)
    second = _mean(records) if sigma is None else np.asarray(sigma, dtype=np.float64) - shared
    values, vectors = _sorted_eigh(second + shared)
    kappa = condition_number(values, k)
    _require_semidefinite(second)
    second, records.unit = second / values[0], math.sqrt(values[0])
    square, distances = _square_and_distances(records, second)
    spread, widest = _sorted_eigh(square)
    starts = np.concatenate([vectors[:, : k + 1], widest[:, :1]], axis=1)
    left, right, gamma = _widest_pairs(records, second, starts, sweeps)
    pairs = np.concatenate([starts, left], axis=1), np.concatenate([starts, right], axis=1)
    K = max(sizes.tail(a) for sizes in _forms(records, second, *pairs)) / gamma
    model = AssumptionA(kappa=kappa, V=float(spread[0]), gamma=gamma, M=distances.quantile(quantile), K=K, a=a)
    return Spread(model, records.rows, values[: k + 1])


class _Records:
    """The records of a pass, divided by ``unit``; as many in each pass."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self.unit = 1.0
        self.rows = self.d = 0

    def __iter__(self) -> Iterator[Block]:
        rows = 0
        for batch in self.batches():
            found = np.asarray(batch, dtype=np.float64)
            d = self.d or (found.shape[1] if found.ndim == 2 else 0)
            if found.ndim != 2 or found.shape[1] != d or not np.isfinite(found).all():
                raise BadInputError(
                    f"a batch must be b records of {d} finite numbers: leave out records with other numbers"
                )
            self.d = d
            rows += len(found)
            yield found / self.unit
        if not rows or rows != (self.rows or rows):
            raise BadInputError(
                f"{rows} records in one pass, {self.rows} before: `batches` must return all records every time it is "
                "called"
            )
        self.rows = rows


class _Sizes:
    """Histogram of sizes to RESOLUTION: it takes as much memory for any number of them."""

    def __init__(self) -> None:
        self.counts = np.zeros(2 * round(WIDEST / RESOLUTION) + 1, dtype=np.int64)
        self.edges = np.exp(np.linspace(-WIDEST, WIDEST, len(self.counts)))

    def add(self, numbers: np.ndarray) -> None:
        logs = np.log(np.clip(numbers, self.edges[0], self.edges[-1]))
        places = np.ceil((logs + WIDEST) / RESOLUTION - 1e-6).astype(np.int64)
        self.counts += np.bincount(np.minimum(places, len(self.counts) - 1), minlength=len(self.counts))

    def quantile(self, share: float) -> float:
        """The least size that ``share`` of the numbers do not exceed."""
        reached = np.cumsum(self.counts)
        return float(self.edges[np.searchsorted(reached, share * reached[-1] * (1 - 1e-12))])

    def tail(self, a: float) -> float:
        """The least t with E exp((size / t)^(1 / a)) <= 2."""
        there = np.flatnonzero(self.counts)
        sizes, weights = self.edges[there], self.counts[there] / self.counts.sum()
        low, high = sizes[-1] / math.log(2 / weights[-1]) ** a, sizes[-1] / math.log(2) ** a
        while high > low * (1 + RESOLUTION / 10):
            t = math.sqrt(low * high)
            low, high = (low, t) if weights @ np.exp((sizes / t) ** (1 / a)) <= 2 else (t, high)
        return float(high)


def _sorted_eigh(matrix: Block) -> tuple[np.ndarray, Block]:
    """Eigenvalues and vectors of a symmetric matrix, the largest first."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return values[::-1], vectors[:, ::-1]


def _require_semidefinite(second: Block) -> None:
    values = np.linalg.eigvalsh(second)
    if values[0] < -1e-10 * abs(values[-1]):
        raise BadInputError(
            f"Sigma less what is common has an eigenvalue {values[0]:.3g}: it must be E x x^T, which has no negative "
            "eigenvalues"
        )


def _mean(records: _Records) -> Block:
    """E x x^T."""
    total: Block | float = 0.0
    for rows in records:
        total = total + rows.T @ rows
    return np.asarray(total) / records.rows


def _square_and_distances(records: _Records, second: Block) -> tuple[Block, _Sizes]:
    """E D^2 and the sizes ||D|| of D = x x^T - S."""
    total, plain, distances = np.zeros_like(second), np.zeros_like(second), _Sizes()
    values, vectors = _sorted_eigh(second)
    values = np.maximum(values, 0.0)
    for rows in records:
        plain += rows.T @ rows
        total += (rows.T * np.einsum("ij,ij->i", rows, rows)) @ rows
        distances.add(_distances((rows @ vectors) ** 2, values))
    cross = plain @ second / records.rows
    return total / records.rows - cross - cross.T + second @ second, distances


def _distances(squares: np.ndarray, values: np.ndarray) -> np.ndarray:
    """||x x^T - S|| of each of b records, by halving, from (v_i^T x)^2 (b x d) and the ``values`` of S (falling).

    t is large enough if neither t I + S - x x^T nor t I - S + x x^T has a negative eigenvalue. From the second value of
    S on, below which the norm cannot be (interlacing), each has one at most, and its determinant says so: both are a
    diagonal matrix and one of rank one.
    """
    low = np.full(len(squares), values[1])
    high = np.maximum(squares.sum(axis=1), values[0])
    for _ in range(HALVINGS):
        t = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            above = (squares / (t[:, None] + values)).sum(axis=1) <= 1
            rest = 1 + (squares[:, 1:] / (t[:, None] - values[1:])).sum(axis=1)
            below = (t >= values[0]) | (squares[:, 0] >= (values[0] - t) * rest)
        low, high = np.where(above & below, low, t), np.where(above & below, t, high)
    return high


def _widest_pairs(records: _Records, second: Block, starts: Block, sweeps: int) -> tuple[Block, Block, float]:
    """Pairs u, v (d x j each), v of the largest E (v^T D u)^2 for its u, and the root of the largest of all."""
    right = starts
    for _ in range(sweeps):
        left = right
        spreads = np.zeros((left.shape[1], *second.shape))
        for rows in records:
            for number, u in enumerate(left.T):
                images = rows * (rows @ u)[:, None] - second @ u
                spreads[number] += images.T @ images
        values, vectors = np.linalg.eigh(spreads / records.rows)
        right = vectors[:, :, -1].T
    gamma = math.sqrt(max(float(values[:, -1].max()), 0.0))
    if gamma <= LEAST_SPREAD:
        raise BadInputError("all matrices are the same: there is no spread to estimate; give records that differ")
    return left, right, gamma


def _forms(records: _Records, second: Block, left: Block, right: Block) -> list[_Sizes]:
    """The sizes |u^T D v| of every pair."""
    found = [_Sizes() for _ in left.T]
    means = np.einsum("ij,ij->j", left, second @ right)
    for rows in records:
        forms = np.abs((rows @ left) * (rows @ right) - means)
        for sizes, numbers in zip(found, forms.T, strict=True):
            sizes.add(numbers)
    return found
