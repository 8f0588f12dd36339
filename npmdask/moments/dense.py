"""Small dense tensors: the multilinear form, its norm, and the symmetric tensor that holds any other."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block


def multilinear(tensor: np.ndarray, *maps: Block | None) -> np.ndarray:
    """``T(A_1, ..., A_q)``: mode j (d_j) is mapped by A_j (d_j x m_j); None leaves it as it is.

    ``T(A, B, C)_abc = sum_ijk T_ijk A_ia B_jb C_kc``: the maps have the shapes that Wang and Anandkumar (2016) print,
    not the order of indices that they print.
    """
    if len(maps) != tensor.ndim:
        raise BadInputError(f"a tensor of order {tensor.ndim} takes as many maps, not {len(maps)}")
    for mode, matrix in enumerate(maps):
        if matrix is not None:
            if len(matrix) != tensor.shape[mode]:
                raise BadInputError(f"mode {mode} has {tensor.shape[mode]} entries and its map {len(matrix)} rows")
            tensor = np.moveaxis(np.tensordot(tensor, matrix, axes=(mode, 0)), -1, mode)
    return tensor


def embedded(tensor: np.ndarray) -> np.ndarray:
    """A symmetric tensor of side ``n_1 + ... + n_q`` that holds any tensor and its transposes as blocks.

    Block symmetrisation (Ragnarsson and Van Loan 2013): with z = (u_1, ..., u_q) stacked,
    ``S(z, ..., z) = q! T(u_1, ..., u_q)``, so that a singular tuple of T is an eigenvector of S.
    """
    edges = np.concatenate([[0], np.cumsum(tensor.shape)])
    places = [slice(int(a), int(b)) for a, b in pairwise(edges)]
    whole = np.zeros((int(edges[-1]),) * tensor.ndim)
    for order in permutations(range(tensor.ndim)):
        whole[tuple(places[mode] for mode in order)] = tensor.transpose(order)
    return whole


def largest_form(tensor: np.ndarray, *, starts: int = 20, steps: int = 200, seed: int = 0) -> float:
    """The operator norm max |T(u, u, u)| over unit u of a symmetric tensor (d x d x d), from below.

    The shifted power iteration (Kolda and Mayo 2011), u <- T(I, u, u) + 2 ||T||_F u at length 1, whose T(u, u, u) never
    falls, from random starts and the leading direction of the unfolding. Local maxima may hide the largest: a lower
    bound, and never above the norm. Signs do not matter for odd order.
    """
    d = len(tensor)
    if tensor.shape != (d, d, d) or not np.isfinite(tensor).all():
        raise BadInputError(f"a finite symmetric tensor d x d x d has an operator norm, not one of {tensor.shape}")
    unfolded, shift = tensor.reshape(d, d * d), 2 * float(np.linalg.norm(tensor))
    leading = np.linalg.eigh(unfolded @ unfolded.T)[1][:, -1:]
    block = np.concatenate([generator(seed, "form").standard_normal((d, starts)), leading], axis=1)
    block /= np.linalg.norm(block, axis=0)
    for _ in range(steps if shift else 0):
        block = np.einsum("ijk,jl,kl->il", tensor, block, block, optimize=True) + shift * block
        block /= np.linalg.norm(block, axis=0)
    return float(np.abs(np.einsum("ijk,il,jl,kl->l", tensor, block, block, block, optimize=True)).max())
