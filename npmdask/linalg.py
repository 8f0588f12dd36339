"""Dense linear algebra on blocks (d x p, p small). NumPy only; deterministic with BLAS pinned to one thread."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.floating]


def orth(block: Block, completion: np.random.Generator, *, against: Block | None = None) -> Block:
    """Orthonormal basis of the range of ``block`` (d x p -> d x p, float64).

    QR with the diagonal of R made positive: what Gram-Schmidt gives in Hardt and Price, Definition 4.10, and
    what makes the result independent of the sign choices of LAPACK. Columns that are zero to rounding
    (a rank-deficient product) are replaced by random directions orthogonal to the rest, drawn from
    ``completion``, so that the basis always has p columns and the iteration can still find new directions.
    ``against`` (d x j, orthonormal) is a subspace that the result must be orthogonal to (deflation).
    """
    block = _project_out(np.asarray(block, dtype=np.float64), against)
    block = block / _positive(np.abs(block).max(axis=0))  # first: the norm of huge or tiny entries overflows
    block = block / _positive(np.linalg.norm(block, axis=0))
    q, r = np.linalg.qr(block)
    del block  # the work space of orth is counted in every memory plan
    diagonal = np.diagonal(r).copy()
    lost = np.abs(diagonal) <= 8 * q.shape[0] ** 0.5 * np.finfo(np.float64).eps
    q *= np.where(diagonal < 0, -1.0, 1.0)
    if lost.any() or against is not None:
        q = _complete(q, lost, completion, against)
    return q


def _positive(scale: Block) -> Block:
    return np.where(scale > 0, scale, 1.0)


def _project_out(block: Block, against: Block | None) -> Block:
    return block if against is None else block - against @ (against.T @ block)


def _complete(q: Block, lost: NDArray[np.bool_], completion: np.random.Generator, against: Block | None) -> Block:
    """Replace the lost columns by random ones, keep the others, orthonormalise twice ("twice is enough"), in place."""
    q[:, lost] = completion.standard_normal((q.shape[0], int(lost.sum())))
    order = np.argsort(lost, kind="stable")  # kept columns first: QR leaves them as they are
    for _ in range(2):
        basis, r = np.linalg.qr(_project_out(q[:, order], against))
        basis *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
        q[:, order] = basis
        del basis
    return q


def random_orthonormal(d: int, p: int, rng: np.random.Generator, *, against: Block | None = None) -> Block:
    """A d x p orthonormal block, Haar distributed (in the complement of ``against``)."""
    return orth(rng.standard_normal((d, p)), rng, against=against)


def starting_block(
    d: int, p: int, rng: np.random.Generator, *, against: Block | None = None, start: Block | None = None
) -> Block:
    """The d x p orthonormal block that an iteration begins with: random, or ``start`` filled up with random columns.

    Of a ``start`` (d x j, leading columns first) with more than p columns the first p are used.
    """
    if start is None:
        return random_orthonormal(d, p, rng, against=against)
    kept = start[:, :p]
    more = rng.standard_normal((d, p - kept.shape[1]))
    return orth(np.concatenate([kept, more], axis=1), rng, against=against)


class RitzPairs(NamedTuple):
    """Ritz values by falling magnitude, their vectors (d x k), products A @ vectors and residual norms."""

    values: Block
    vectors: Block
    products: Block
    residual_norms: Block


def rayleigh_ritz(basis: Block, product: Block, k: int) -> RitzPairs:
    """The k leading Ritz pairs of A on range(``basis``), given ``product`` = A @ ``basis``: no access to A.

    ``residual_norms[i] = ||A v_i - theta_i v_i||_2`` in the units of A.
    """
    h = basis.T @ product
    theta, rotation = np.linalg.eigh((h + h.T) / 2)
    lead = np.argsort(-np.abs(theta), kind="stable")[:k]
    theta, rotation = theta[lead], rotation[:, lead]
    vectors, products = basis @ rotation, product @ rotation
    signs = fix_signs(vectors)
    vectors, products = vectors * signs, products * signs
    return RitzPairs(theta, vectors, products, np.linalg.norm(products - vectors * theta, axis=0))


def fix_signs(vectors: Block) -> Block:
    """Signs (+1 or -1 a column) that make the entry of largest magnitude of every column positive."""
    largest = np.argmax(np.abs(vectors), axis=0)
    return np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)


def asymmetry(basis: Block, product: Block) -> tuple[float, float]:
    """How far ``basis^T A basis`` is from symmetric: (norm of the antisymmetric part, norm of the product)."""
    h = basis.T @ product
    return float(np.linalg.norm(h - h.T) / 2), float(np.linalg.norm(product))
