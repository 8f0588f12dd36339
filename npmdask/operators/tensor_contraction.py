"""T(I, u, u) of a symmetric third order tensor from blocks T[i, j, k] with i <= j <= k, for many vectors u at once.

A stored block stands for itself and for its mirror images, one for each distinct permutation of (i, j, k). With
pairs(x, y) = sum over the third index of a block times u, what a block adds is (each sum counted with the number of
permutations that begin with that index)::

    i < j < k    to i: 2 sum_jk,   to j: 2 sum_ik,   to k: 2 sum_ij
    i = j < k    to i: 2 sum_jk,                     to k: 1 sum_ij
    i < j = k    to i: 1 sum_jk,   to j: 2 sum_ik
    i = j = k    to i: 1 sum_jk

The first two sums of a block share one matrix product (2 b^3 L flop); the third needs another one, unless an index is
repeated: then one of the equal indices is contracted first. Together 2/3 d^3 L instead of 2 d^3 L for the whole tensor
(Schatz, Low, van de Geijn and Kolda, SIAM J. Sci. Comput. 36 (2014) C453, blocked compact symmetric storage).
"""

from __future__ import annotations

import numpy as np

from npmdask.numerics.subspaces import Block
from npmdask.operators.block_strips import Strips
from npmdask.storage.readers.packed_tensor import Place

Factors = tuple[int, int, int]

# How often the sum over the pairs of a block counts for the outer and the inner of their two indices, and for the
# index that was contracted, by (i = j, j = k). Where only i = j it is the first index that is contracted.
FACTORS = {
    (False, False): (2, 2, 2),
    (True, False): (2, 1, 0),
    (False, True): (1, 2, 0),
    (True, True): (1, 0, 0),
}


class Contraction:
    """The sum T(I, u_l, u_l) of the blocks added so far.

    Vectors lie in rows here (L x d): then sums over pairs are products of a matrix and a vector for each l, which
    OpenBLAS forms twice as fast as ``np.einsum`` and six times as fast as products that are summed (b = 100).

    Parameters
    ----------
    block : the vectors u_l (d x L); its dtype is that of the matrix products, the sums are float64.
    side : rows of a block that is not at the edge.
    """

    def __init__(self, block: Block, side: int) -> None:
        self._rows = np.ascontiguousarray(block.T)
        self._scaled = {1: self._rows, 2: 2 * self._rows}
        self._side, self._strips = side, Strips(side, block.shape[1], block.dtype)
        self._sum = np.zeros(self._rows.shape)

    @property
    def product(self) -> Block:
        """d x L, float64."""
        return np.ascontiguousarray(self._sum.T)

    def add(self, place: Place, values: np.ndarray) -> None:
        """Add what block ``place`` (i <= j <= k) with these ``values`` (b_i x b_j x b_k) gives."""
        i, j, k = (slice(at * self._side, at * self._side + size) for at, size in zip(place, values.shape, strict=True))
        factors = FACTORS[place[0] == place[1], place[1] == place[2]]
        if factors == FACTORS[True, False]:
            self._contract_first(values, i, j, k, factors)
        else:
            self._contract_last(values, i, j, k, factors)

    def _contract_first(self, values: np.ndarray, i: slice, j: slice, k: slice, factors: Factors) -> None:
        for part, strip in self._strips.cut(values, 1):
            depth, height, width = strip.shape
            matrix = self._strips.matrix(strip, (depth, height * width))
            pairs = self._strips.room("pairs", (len(self._rows), height, width))
            np.matmul(self._rows[:, i], matrix, out=pairs.reshape(len(pairs), -1))
            self._reduce(pairs, _within(j, part), k, factors)

    def _contract_last(self, values: np.ndarray, i: slice, j: slice, k: slice, factors: Factors) -> None:
        for part, strip in self._strips.cut(values, 0):
            height, width, depth = strip.shape
            matrix, outer = self._strips.matrix(strip, (height * width, depth)), _within(i, part)
            pairs = self._strips.room("pairs", (len(self._rows), height, width))
            np.matmul(self._rows[:, k], matrix.T, out=pairs.reshape(len(pairs), -1))
            self._reduce(pairs, outer, j, factors)
            if factors[2]:
                np.multiply(self._scaled[factors[2]][:, outer, None], self._rows[:, None, j], out=pairs)
                by_pairs = self._strips.room("sum", (len(pairs), depth))
                self._sum[:, k] += np.matmul(pairs.reshape(len(pairs), -1), matrix, out=by_pairs)

    def _reduce(self, pairs: np.ndarray, outer: slice, inner: slice, factors: Factors) -> None:
        """Add the sums of ``pairs`` (L x outer x inner) over either index, times u, to where the other one points."""
        count, height, width = pairs.shape
        by_inner = self._strips.room("sum", (count, height, 1))
        np.matmul(pairs, self._scaled[factors[0]][:, inner, None], out=by_inner)
        self._sum[:, outer] += by_inner[:, :, 0]
        if factors[1]:
            by_outer = self._strips.room("sum", (count, 1, width))
            np.matmul(self._scaled[factors[1]][:, None, outer], pairs, out=by_outer)
            self._sum[:, inner] += by_outer[:, 0]


def _within(span: slice, part: slice) -> slice:
    """The rows ``part`` of the rows ``span``."""
    return slice(span.start + part.start, span.start + part.stop)
