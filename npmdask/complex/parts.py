"""Complex vectors as real ones of twice as many entries: real and imaginary parts take turns, as in memory.

Multiplication by i is then a real map J with J^2 = -1, which takes (a, b) to (-b, a). A Hermitian matrix is a real
symmetric one that commutes with J, so that each of its eigenvalues comes twice, with vectors v and J v. An algorithm
that knows nothing of this finds 2 k of them; here they are made k complex ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npmdask.core.numerics.subspaces import Block


def as_complex(block: Block) -> np.ndarray:
    """Complex columns (d x p) of real ones (2 d x p)."""
    return np.asarray(block[0::2] + 1j * block[1::2])


def as_real(block: np.ndarray) -> Block:
    """Real columns (2 d x p) of complex ones (d x p)."""
    out = np.empty((2 * len(block), block.shape[1]), block.real.dtype)
    out[0::2], out[1::2] = block.real, block.imag
    return out


def times_i(block: Block) -> Block:
    """J times a block of real columns (2 d x p): the same as complex ones, times i."""
    out = np.empty_like(block)
    np.negative(block[1::2], out=out[0::2])
    out[1::2] = block[0::2]
    return out


def beside_i(block: Block) -> Block:
    """A block and J times it, side by side (2 d x 2 p)."""
    return np.concatenate([block, times_i(block)], axis=1)


def folded(product: Block) -> Block:
    """``M V - J M J V`` (2 d x p), which commutes with J, from M [V, J V] side by side (2 d x 2 p)."""
    p = product.shape[1] // 2
    return np.asarray(product[:, :p] - times_i(product[:, p:]))


def interleaved(block: np.ndarray) -> Block:
    """Real columns (2 d x 2 k) v_1, J v_1, v_2, J v_2, ... of complex ones (d x k)."""
    out = np.empty((2 * len(block), 2 * block.shape[1]), block.real.dtype)
    out[:, 0::2], out[:, 1::2] = as_real(block), as_real(1j * block)
    return out


def moduli(parts: np.ndarray) -> np.ndarray:
    """The modulus of each entry of a row (d complex ones as 2 d real ones), for both of its parts (2 d)."""
    return np.repeat(np.hypot(parts[0::2], parts[1::2]), 2)


def fix_phases(vectors: np.ndarray) -> np.ndarray:
    """Phases (of modulus 1, one a column) that make the entry of largest modulus of every column real and positive."""
    sizes = np.abs(vectors)
    at = np.argmax(sizes >= sizes.max(axis=0) * (1 - 1e-12), axis=0)  # of several as large the first
    largest = vectors[at, np.arange(vectors.shape[1])]
    size = np.abs(largest)
    return np.where(size > 0, np.conj(largest) / np.where(size > 0, size, 1.0), 1.0)


class ComplexPairs(NamedTuple):
    """k pairs of a Hermitian matrix: values by falling magnitude, vectors and products (d x k), residual norms."""

    values: np.ndarray
    vectors: np.ndarray
    products: np.ndarray
    residual_norms: np.ndarray


def complex_pairs(vectors: Block, products: Block) -> ComplexPairs:
    """The k complex Ritz pairs of 2 k real orthonormal columns (2 d x 2 k) with their ``products``.

    With S the real space, S + J S is that of complex combinations, of up to 2 k complex dimensions. Where S is closed
    under J there are k of them, else some of an eigenvalue of which S holds a part only. The k leading left singular
    vectors of the complexified columns are taken: those are the eigenvectors of P_S + P_JS with the largest
    eigenvalues, so that the space is tilted against any space that is closed under J by no more than S is, as long as
    that is less than 45 degrees (Davis and Kahan's tan 2 theta theorem). Each pair that S holds whole has the largest
    eigenvalue there can be, 2; the k-th is at least 2 / (k + 1), as all add up to 2 k.
    """
    k = vectors.shape[1] // 2
    basis, images = as_complex(vectors), as_complex(products)
    squares, turn = np.linalg.eigh(basis.conj().T @ basis)
    turn = turn[:, : -k - 1 : -1] / np.sqrt(squares[: -k - 1 : -1])
    basis, images = basis @ turn, images @ turn
    again = np.linalg.inv(np.linalg.cholesky(basis.conj().T @ basis)).conj().T  # what squares lost of orthogonality
    basis, images = basis @ again, images @ again
    projected = basis.conj().T @ images
    theta, rotation = np.linalg.eigh((projected + projected.conj().T) / 2)
    order = np.argsort(-np.abs(theta), kind="stable")
    theta, rotation = theta[order], rotation[:, order]
    basis, images = basis @ rotation, images @ rotation
    phases = fix_phases(basis)
    basis, images = basis * phases, images * phases
    return ComplexPairs(theta, basis, images, np.linalg.norm(images - basis * theta, axis=0))
