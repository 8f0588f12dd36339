"""Small dense tensors: the multilinear form, symmetric parts, the incoherence of components."""

from __future__ import annotations

from itertools import pairwise, permutations
from math import factorial

import numpy as np

from npmdask.errors import BadInputError
from npmdask.linalg import Block


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


def symmetric_part(tensor: np.ndarray) -> np.ndarray:
    """The nearest symmetric tensor: the mean over all orders of the indices. The sides must be equal."""
    if len(set(tensor.shape)) != 1:
        raise BadInputError(f"a tensor of shape {tensor.shape} has no symmetric part: embed it (moments.embedded)")
    total = np.zeros(tensor.shape)
    for order in permutations(range(tensor.ndim)):
        total += tensor.transpose(order)
    return total / factorial(tensor.ndim)


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


def incoherence(vectors: Block) -> float:
    """``mu_0 = (d / k) max_i ||V^T e_i||^2`` of unit vectors V (d x k): 1 at best, d / k if V holds a unit vector.

    Wang and Anandkumar (2016), theorem 4.2: what private noise costs grows with it.
    """
    d, k = vectors.shape
    return float(d / k * (vectors**2).sum(axis=1).max())
