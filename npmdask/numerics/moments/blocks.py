"""Which unique blocks of a symmetric tensor are formed together: as many in one pass as the memory holds."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import combinations_with_replacement, pairwise, permutations

import numpy as np

from npmdask.errors import BadInputError, MemoryRefusedError
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block

HELD = 12  # times that the sums of a group are held at once: those that wait to be joined, one task's, the answer's


@lru_cache(maxsize=8)
def unique_blocks(grid: int) -> tuple[tuple[int, int, int], ...]:
    """The blocks (i, j, k), i <= j <= k < ``grid``, in lexicographic order: unit t is entry t."""
    return tuple(combinations_with_replacement(range(grid), 3))


def blocks_of(wanted: range, grid: int) -> tuple[tuple[int, int, int], ...]:
    """The blocks of the units ``wanted``. Raises BadInputError if there are no such units."""
    count = len(unique_blocks(grid))
    if not (0 <= wanted.start < wanted.stop <= count and wanted.step == 1):
        raise BadInputError(f"the tensor has blocks 0 to {count - 1}: {wanted} is not a range of them")
    return unique_blocks(grid)[wanted.start : wanted.stop]


def group_bytes(d: int, side: int, units: int) -> int:
    """Memory of the sums of ``units`` blocks at most: their entries, and two pairs of words for their block rows."""
    grid = -(-d // side)
    return 8 * (units * side**3 + 2 * min(2 * units, grid) * side**2 * grid)


def unit_groups(d: int, side: int, memory: int) -> list[range]:
    """The units of a d x d x d tensor in blocks of ``side``, cut into groups of one pass each.

    Raises
    ------
    MemoryRefusedError
        Not even the sums of one block fit in ``memory`` bytes.
    """
    count = len(unique_blocks(-(-d // side)))
    each = bisect_right(range(count + 1), memory, key=lambda units: HELD * group_bytes(d, side, units)) - 1
    if each < 1:
        least = HELD * group_bytes(d, side, 1)
        raise MemoryRefusedError(
            f"one block of side {side} needs {-(-least // 2**20)} MiB, but {memory // 2**20} are allowed; use "
            "smaller blocks, or allow more memory"
        )
    return [range(first, min(first + each, count)) for first in range(0, count, each)]


# Small dense tensors: the multilinear form, its norm, and the symmetric tensor that holds any other.


def multilinear(tensor: np.ndarray, *maps: Block | None) -> np.ndarray:
    """``T(A_1, ..., A_q)``: mode j (d_j) is mapped by A_j (d_j x m_j); None leaves it as it is.

    ``T(A, B, C)_abc = sum_ijk T_ijk A_ia B_jb C_kc``: the maps have the shapes that Wang and Anandkumar (2016) print,
    not the order of indices that they print.
    """
    if len(maps) != tensor.ndim:
        raise BadInputError(f"a tensor of order {tensor.ndim} needs as many maps, not {len(maps)}")
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
