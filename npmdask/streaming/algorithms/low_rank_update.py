"""Symmetric matrices of low rank, held by their eigenpairs or as factors: what a few more rows make of the eigenpairs,
never d x d for less than d of them; and second moments along a basis that moves."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import numpy as np

from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, add_product, fix_signs, orth, tall_qr

TURNED_AT_ONCE = 1024  # rows of [U, Q] that are put side by side, in cache, to be turned
# Singular values that are less than this times the longer side of the matrix below the largest one are rounding.
ROUNDING = 8 * float(np.finfo(np.float64).eps)
HALF_THE_DIGITS = 1e-8  # an overlap whose square is rounding: what is left without it is orthonormal as it is
PASSES = 2  # of orthogonalisation after the first: one is not enough where rows are of very different sizes


class ThinEigen(NamedTuple):
    """Eigenvalues by falling size and the vectors (d x r, orthonormal) of the first r of them."""

    values: np.ndarray
    vectors: Block


class SumEigen(NamedTuple):
    """The k + 1 leading eigenvalues, falling, and what forms k eigenvectors (d x k): many a test fails without them."""

    values: np.ndarray
    vectors: Callable[[], Block]


class UpdatedEigen(NamedTuple):
    """Eigenvalues by falling size; their vectors are not formed before it is known how many are wanted.

    They are [U, Q - U overlap] rotation, U the ``basis`` (d x r) before the update and Q the directions (d x m) that
    are ``fresh`` in it.
    """

    values: np.ndarray
    basis: Block
    fresh: Block
    overlap: Block
    rotation: Block

    def leading(self, count: int) -> Block:
        """The first ``count`` eigenvectors (d x count), by blocks of rows: [U, Q] is never whole."""
        j = self.basis.shape[1]
        rotation = self.rotation[:, :count].copy()
        rotation[:j] -= self.overlap @ rotation[j:]
        vectors = np.empty((len(self.basis), count))
        for start in range(0, len(vectors), TURNED_AT_ONCE):
            part = slice(start, start + TURNED_AT_ONCE)
            np.matmul(np.concatenate([self.basis[part], self.fresh[part]], axis=1), rotation, out=vectors[part])
        return vectors

    def turn(self, count: int) -> Block:
        """leading(count)^T U (count x r), for the price of reading it off."""
        return self.rotation[: self.basis.shape[1], :count].T


class _Split(NamedTuple):
    """Columns as U inside + (Q - U overlap) outside, [U, Q - U overlap] orthonormal to rounding."""

    inside: Block
    fresh: Block
    outside: Block
    overlap: Block


def updated_eigen(basis: Block, values: np.ndarray, rows: Block, weight: float, images: Block) -> UpdatedEigen:
    """All eigenpairs above rounding of U diag(values) U^T + weight rows^T rows: O(d (r + n) n + (r + n)^3).

    U (``basis``): d x r, orthonormal; ``values`` >= 0; ``rows``: n x d; ``images``: rows U.

    Only what the rows have outside of span(U) is orthonormalised; the rest is the SVD of the small factor
    [[sqrt(values), inside], [0, outside]] (Brand 2006, Linear Algebra and its Applications 415). No Gram matrix: small
    eigenvalues count as much as large ones where a projection keeps them all.
    """
    scale, sizes = sqrt(weight), np.sqrt(values)
    split = _split(basis, np.multiply(rows.T, scale), scale * images.T, sizes.max(initial=0.0))
    j, (m, n) = len(sizes), split.outside.shape
    core = np.zeros((j + m, j + n))
    np.fill_diagonal(core[:j], sizes)
    core[:j, j:] = split.inside
    core[j:, j:] = split.outside
    rotation, found, _ = np.linalg.svd(core, full_matrices=False)
    kept = int(np.count_nonzero(found > ROUNDING * max(core.shape) * found.max(initial=0.0)))
    return UpdatedEigen(found[:kept] ** 2, basis, split.fresh, split.overlap, rotation[:, :kept])


def _split(basis: Block, columns: Block, inside: Block, largest: float) -> _Split:
    """``columns`` (d x n, overwritten) with ``inside`` = U^T columns taken out; ``largest``: of all there is beside.

    A second look tells whether once was enough: it is unless columns lie in span(U), or in that of the others, to half
    the digits. Then again, with the directions sorted by what the columns have of them: what is rounding is dropped and
    spoils no other one (QR would mix them).
    """
    (d, n), j = columns.shape, len(inside)
    if j + n >= d:  # all directions there are: no rank to be found out
        fresh = np.linalg.qr(basis, mode="complete")[0][:, j:]
        return _Split(inside, fresh, fresh.T @ columns, np.zeros((j, d - j)))
    add_product(columns, basis, -inside)
    fresh, outside = tall_qr(columns)
    overlap = basis.T @ fresh
    least = ROUNDING * (j + n) * max(largest, _largest(inside), _largest(outside))
    for _ in range(PASSES):
        if np.linalg.norm(overlap) <= HALF_THE_DIGITS:
            break
        fresh, turn = tall_qr(fresh - basis @ overlap)
        left, sizes, right = np.linalg.svd(turn @ outside, full_matrices=False)
        kept = sizes > least
        fresh, outside = fresh @ left[:, kept], sizes[kept, None] * right[kept]
        overlap = basis.T @ fresh
    return _Split(inside, fresh, outside, overlap)


def orthonormalized(vectors: Block) -> Block:
    """The orthonormal basis nearest to ``vectors`` (d x r, changed in place), which are E from orthonormal, E small.

    One step of Newton's for the polar factor: 3/4 E^2 is left. Two products, no other basis of the space.
    """
    excess = vectors.T @ vectors
    np.fill_diagonal(excess, excess.diagonal() - 1)
    add_product(vectors, vectors, excess / -2)
    return vectors


def _largest(matrix: Block) -> float:
    return float(np.abs(matrix).max(initial=0.0))


def scatter_spectrum(rows: Block) -> np.ndarray:
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
        values, rotation = _leading_eigenpairs(keep * (vectors @ vectors.T) + weight * (rows.T @ rows), k + 1)
        return SumEigen(np.maximum(values, 0.0), lambda: completed_basis(rotation[:, :k], k))
    values, rotation = _leading_eigenpairs(gram_of_sides(vectors, a, rows, c, images), k + 1)

    def formed() -> Block:
        lead: Block = rows.T @ (c * rotation[j:, :k])
        add_product(lead, vectors, a * rotation[:j, :k])
        return completed_basis(lead, k)

    return SumEigen(np.maximum(values, 0.0), formed)


def completed_basis(vectors: Block, k: int) -> Block:
    """Orthonormal vectors (d x k) whose first columns span ``vectors`` (d x r, r <= k); missing ones are drawn."""
    missing = k - vectors.shape[1]
    whole = np.concatenate([vectors, np.zeros((len(vectors), missing))], axis=1) if missing else vectors
    return orth(whole, generator(0, "completion", k))


def _leading_eigenpairs(matrix: Block, count: int) -> tuple[np.ndarray, Block]:
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


def carried_moment(moment: Block, turn: Block, images: Block, weight: float) -> Block:
    """The second moment of the rows along a new basis (r' x r'), from that along the old one (r x r) and one batch.

    ``turn``: new^T old. ``images``: rows @ old (n x r), seen before the rows changed the basis, so that the average is
    out of sample. What lies outside of the old basis is not known and counts as zero.
    """
    mixed = (1 - weight) * moment + (weight / len(images)) * (images.T @ images)
    return turn @ mixed @ turn.T


def leading_eigenpairs(basis: Block, moment: Block, k: int) -> ThinEigen:
    """The basis (d x r) turned to the eigenvectors of its moment: k pairs; missing columns are drawn, of value 0."""
    values, rotation = np.linalg.eigh((moment + moment.T) / 2)
    levels = np.zeros(k)
    count = min(k, len(values))
    levels[:count] = np.maximum(values[::-1][:count], 0.0)
    vectors = completed_basis(basis @ rotation[:, ::-1][:, :count], k)
    vectors *= fix_signs(vectors)
    return ThinEigen(levels, vectors)
