"""Measure how the random matrices of a stream spread about their mean: the numbers of Assumption A, from samples.

A matrix is A_i = x_i x_i^T, or that plus a part which all have in common, and is never formed. A few passes over the
records; d x d numbers for every direction that is looked at, and counts of sizes, however many records there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.domains import counts, exponent
from npmdask.numerics.subspaces import Block, condition_number
from npmdask.theory.stochastic import AssumptionA

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
    if not 0 < quantile <= 1:
        raise BadInputError(f"quantile = {quantile} must be above 0 and at most 1: it is a share of the records")
    records = _Records(batches)
    shared = 0.0 if common is None else np.asarray(common, dtype=np.float64)
    second = _mean(records) if sigma is None else np.asarray(sigma, dtype=np.float64) - shared
    values, vectors = _falling(second + shared)
    kappa = condition_number(values, k)
    _require_semidefinite(second)
    second, records.unit = second / values[0], math.sqrt(values[0])
    square, distances = _square_and_distances(records, second)
    spread, widest = _falling(square)
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
    """How many numbers were of which size, to RESOLUTION: as much memory for any number of them."""

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


def _falling(matrix: Block) -> tuple[np.ndarray, Block]:
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
    values, vectors = _falling(second)
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
