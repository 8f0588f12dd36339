"""The upper triangle of a symmetric matrix in square blocks, and what is added to it: products of rows, outer products.

Blocks of 512 columns are added up inside the cache, and half of the multiplications are saved. A block on the diagonal
is whole, and symmetric to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from npmdask.numerics.subspaces import Block
from npmdask.storage.readers.dense import scratch

SPLITTER = 2.0**27 + 1  # halves the digits of a float64
FULL = 0.2  # of the rows: a column with more entries is multiplied sooner as a dense one
FEWEST = 16  # such columns: to put aside fewer takes as long as it saves
FILLED = 2**20  # numbers of such columns, at most


@dataclass(frozen=True)
class UpperBlocks:
    """How the upper triangle of a d x d matrix is cut into blocks of at most ``side`` columns."""

    d: int
    side: int

    @cached_property
    def edges(self) -> list[slice]:
        """The columns of each block."""
        return [slice(start, min(start + self.side, self.d)) for start in range(0, self.d, self.side)]

    @cached_property
    def pairs(self) -> list[tuple[slice, slice]]:
        """Rows and columns of the blocks."""
        return list(combinations_with_replacement(self.edges, 2))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the array that holds the blocks one after the other."""
        side = min(self.side, self.d)
        return (len(self.pairs), side, side)

    def each(self, held: np.ndarray) -> Iterator[tuple[np.ndarray, slice, slice]]:
        """Views of the blocks, with their rows and columns."""
        for block, (left, right) in zip(held, self.pairs, strict=True):
            yield block[: left.stop - left.start, : right.stop - right.start], left, right

    def add_rows(self, held: np.ndarray, rows: np.ndarray) -> None:
        """``+= rows^T rows``, multiplied in the dtype of ``rows`` and added up in float64."""
        for block, left, right in self.each(held):
            out = scratch(("block", block.shape), block.shape, rows.dtype)
            block += np.matmul(rows[:, left].T, rows[:, right], out=out)

    def add_sparse_rows(self, held: np.ndarray, rows: csr_matrix) -> None:
        """``+= rows^T rows`` of float64 entries, from the pairs of entries of each row (Gustavson 1978).

        Columns that most rows have, as some genes and words are, make most of the pairs: they are filled in and
        multiplied as dense ones, with each other and with the entries of the others.
        """
        columns, blocks = rows.tocsc(), self.each(held)
        full = _fullest(columns, min(self.side, FILLED // max(rows.shape[0], 1)))
        if len(full):
            filled = columns[:, full].toarray()
            columns = _without(columns, full)
            beside = columns.T @ filled  # d x full: products of every column with a filled one
            beside[full] = filled.T @ filled
        for left in self.edges:
            found = columns[:, left].T @ columns[:, left.start :].tocsr()
            room = scratch("pairs", (self.side * self.d,), np.float64)
            dense = found.toarray(out=room[: np.prod(found.shape)].reshape(found.shape))
            del found  # as large as dense, and the next one would lie beside it
            if len(full):
                after, inside = full >= left.start, (full >= left.start) & (full < left.stop)
                dense[:, full[after] - left.start] = beside[left][:, after]
                dense[full[inside] - left.start] = beside[left.start :, inside].T
            for _ in range(self.edges.index(left), len(self.edges)):
                block, _, right = next(blocks)
                block += dense[:, right.start - left.start : right.stop - left.start]

    def add_outer(self, held: np.ndarray, vector: np.ndarray, times: float) -> None:
        """``+= times vector vector^T``."""
        for (block, left, right), outer in zip(self.each(held), self._outer(vector, times), strict=True):
            block += outer[: left.stop - left.start, : right.stop - right.start]

    def joined(self, first: np.ndarray, second: np.ndarray, vector: np.ndarray, times: float) -> np.ndarray:
        """``first + second + times vector vector^T``, block by block, while each is in the cache."""
        made = np.empty(self.shape)
        for part, a, b, outer in zip(made, first, second, self._outer(vector, times), strict=True):
            np.add(a, b, out=part)
            part[: outer.shape[0], : outer.shape[1]] += outer
        return made

    def _outer(self, vector: np.ndarray, times: float) -> Iterator[np.ndarray]:
        """Blocks of ``times vector vector^T``, each in the memory of the one before."""
        root = np.sqrt(abs(times)) * vector  # on both sides, so that what is added is symmetric to the last bit
        for left, right in self.pairs:
            held = scratch("outer", self.shape[1:], np.float64)[: left.stop - left.start, : right.stop - right.start]
            np.multiply(root[left, None], root[None, right], out=held)
            if times < 0:
                np.negative(held, out=held)
            yield held

    def times(self, held: np.ndarray, columns: Block) -> Block:
        """The product of the whole matrix with d x p numbers."""
        product = np.zeros((self.d, columns.shape[1]))
        for block, left, right in self.each(held):
            product[left] += block @ columns[right]
            if left != right:
                product[right] += block.T @ columns[left]
        return product

    def centred(self, held: np.ndarray, total: np.ndarray, count: float) -> np.ndarray:
        """Blocks less ``total total^T / count``, rounded once, of integers of which float64 holds each."""
        made = np.zeros(self.shape)
        for block, (found, left, right) in zip(held, self.each(made), strict=True):
            inside = block[: found.shape[0], : found.shape[1]]
            found[:] = less_mean(inside, total[left, None], total[None, right], count)
        return made

    def whole(self, held: np.ndarray, out: np.ndarray) -> None:
        """Write the whole matrix to ``out`` (d x d)."""
        for block, left, right in self.each(held):
            out[left, right], out[right, left] = block, block.T


def _fullest(columns: csc_matrix, most: int) -> np.ndarray:
    """The columns, ``most`` at most, that are multiplied sooner filled in than by pairs of their entries; ascending."""
    lengths = np.diff(columns.indptr)
    fullest = np.argsort(-lengths, kind="stable")[:most]
    chosen = fullest[lengths[fullest] > FULL * columns.shape[0]]
    return np.sort(chosen) if len(chosen) >= FEWEST else chosen[:0]


def _without(columns: csc_matrix, emptied: np.ndarray) -> csc_matrix:
    """The same with these columns empty."""
    lengths = np.diff(columns.indptr)
    kept = np.ones(len(lengths), bool)
    kept[emptied] = False
    entries = np.repeat(kept, lengths)
    starts = np.concatenate([[0], np.cumsum(np.where(kept, lengths, 0))])
    return csc_matrix((columns.data[entries], columns.indices[entries], starts), shape=columns.shape)


def less_mean(products: np.ndarray, left: np.ndarray, right: np.ndarray, count: float) -> np.ndarray:
    """``products - left right / count`` of integers below 2^53, nearly as if it were rounded once.

    However much of it cancels, and with the same bits on every machine: sums and products of float64 make twice as many
    digits.

    Parameters
    ----------
    products, left, right : arrays that are broadcast against each other: sums of x_i x_j, of x_i, and of x_j.
    count : of the rows that were summed.

    Returns
    -------
    ndarray
        The sums of products of x_i and x_j less their means.

    Notes
    -----
    Products: Dekker, Numerische Mathematik 18 (1971) 224; sums: Knuth, The Art of Computer Programming 2, 4.2.2.
    """
    high, low = _product(products, np.array(count))
    taken, little = _product(left, right)
    less = high - taken
    back = less - high
    lost = (high - (less - back)) - (taken + back)
    return np.asarray((less + (lost + (low - little))) / count)


def _product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product of float64 numbers as a sum of two of them."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    big = SPLITTER * a
    high = big - (big - a)
    return high, a - high
