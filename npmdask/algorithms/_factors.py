"""Symmetric matrices of low rank held as factors F F^T (F is d x m): their leading eigenpairs, never d x d for m < d;
and second moments along a basis that moves."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import numpy as np

from npmdask.linalg import Block, add_product, fix_signs, orth, tall_qr
from npmdask.randomness import generator


class ThinEigen(NamedTuple):
    """Eigenvalues by falling size and the vectors (d x r, orthonormal) of the first r of them."""

    values: np.ndarray
    vectors: Block


class SumEigen(NamedTuple):
    """The k + 1 leading eigenvalues, falling, and what forms k eigenvectors (d x k): many a test fails without them."""

    values: np.ndarray
    vectors: Callable[[], Block]


class FactorEigen(NamedTuple):
    """All eigenvalues by falling size, and vectors that are not formed before it is known how many are wanted."""

    values: np.ndarray
    q: Block
    rotation: Block

    def leading(self, count: int) -> Block:
        """The first ``count`` eigenvectors (d x count)."""
        vectors: Block = self.q @ self.rotation[:, :count]
        if count:
            vectors *= fix_signs(vectors)
        return vectors


def factor_eigen(factor: Block) -> FactorEigen:
    """All eigenpairs of F F^T above rounding (r <= min(d, m)): QR, then the SVD of the small factor. O(d m^2).

    F may be overwritten. No Gram matrix: small eigenvalues count as much as large ones where a projection keeps them
    all.
    """
    q, r = tall_qr(factor)
    rotation, sizes, _ = np.linalg.svd(r)
    kept = int(np.sum(sizes > 8 * max(r.shape) * np.finfo(np.float64).eps * sizes.max(initial=0.0)))
    return FactorEigen(sizes[:kept] ** 2, q, rotation[:, :kept])


def spectrum(rows: Block) -> np.ndarray:
    """The eigenvalues of ``rows^T rows`` by falling size, min(n, d) of them, from the smaller Gram matrix."""
    gram = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
    return np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)


def leading_of_sum(vectors: Block, keep: float, rows: Block, weight: float, images: Block, k: int) -> SumEigen:
    """The k + 1 leading eigenvalues of keep U U^T + weight rows^T rows and k eigenvectors.

    U: d x j, ``rows``: n x d, ``images``: rows U.

    From the Gram matrix of [sqrt(keep) U, sqrt(weight) rows^T], formed by blocks so that no row is copied (with more
    columns than d from the matrix itself, which is then smaller than the rows). A Gram matrix squares the condition
    number, so that the vectors are orthonormalised once more; they are good to rounding where the k leading
    eigenvalues are of one size, as a projector's are.
    """
    a, c, j = sqrt(keep), sqrt(weight), vectors.shape[1]
    if j + len(rows) > len(vectors):
        values, rotation = _top(keep * (vectors @ vectors.T) + weight * (rows.T @ rows), k + 1)
        return SumEigen(np.maximum(values, 0.0), lambda: completed(rotation[:, :k], k))
    values, rotation = _top(gram_of_sides(vectors, a, rows, c, images), k + 1)

    def formed() -> Block:
        lead: Block = rows.T @ (c * rotation[j:, :k])
        add_product(lead, vectors, a * rotation[:j, :k])
        return completed(lead, k)

    return SumEigen(np.maximum(values, 0.0), formed)


def completed(vectors: Block, k: int) -> Block:
    """Orthonormal vectors (d x k) whose first columns span ``vectors`` (d x r, r <= k); missing ones are drawn."""
    missing = k - vectors.shape[1]
    whole = np.concatenate([vectors, np.zeros((len(vectors), missing))], axis=1) if missing else vectors
    return orth(whole, generator(0, "completion", k))


def _top(matrix: Block, count: int) -> tuple[np.ndarray, Block]:
    """The ``count`` leading eigenpairs (or all there are), falling: 2 to 3 times as fast as all of them."""
    n = len(matrix)
    from scipy.linalg import eigh  # a tenth of a second that runs without streams do not need

    values, vectors = eigh(matrix, subset_by_index=(max(n - count, 0), n - 1), check_finite=False)
    return values[::-1], vectors[:, ::-1]


def gram_of_sides(vectors: Block, a: float, rows: Block, c: float, images: Block) -> Block:
    """F^T F of F = [a U, c rows^T] (U: d x j, rows: n x d, images: rows U), which is not formed."""
    j = vectors.shape[1]
    gram = np.empty((j + len(rows), j + len(rows)))
    np.multiply(vectors.T @ vectors, a**2, out=gram[:j, :j])
    np.multiply(rows @ rows.T, c**2, out=gram[j:, j:])
    np.multiply(images, a * c, out=gram[j:, :j])
    gram[:j, j:] = gram[j:, :j].T
    return gram


def carried_moment(moment: Block, before: Block, after: Block, images: Block, weight: float) -> Block:
    """The second moment of the rows along ``after`` (r' x r'), from that along ``before`` (r x r) and one batch.

    ``images``: rows @ before (n x r), seen before the rows changed the basis, so that the average is out of sample.
    What lies outside of ``before`` is not known and counts as zero.
    """
    mixed = (1 - weight) * moment + (weight / len(images)) * (images.T @ images)
    turn = after.T @ before
    turned: Block = turn @ mixed @ turn.T
    return turned


def leading_pairs(basis: Block, moment: Block, k: int) -> ThinEigen:
    """The basis (d x r) turned to the eigenvectors of its moment: k pairs; missing columns are drawn, of value 0."""
    values, rotation = np.linalg.eigh((moment + moment.T) / 2)
    levels = np.zeros(k)
    count = min(k, len(values))
    levels[:count] = np.maximum(values[::-1][:count], 0.0)
    vectors = completed(basis @ rotation[:, ::-1][:, :count], k)
    vectors *= fix_signs(vectors)
    return ThinEigen(levels, vectors)
