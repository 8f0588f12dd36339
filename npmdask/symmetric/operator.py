"""Symmetric matrices and tensors of order three, read by their unique entries: fewer bytes, used several times each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npmdask.core.numerics.subspaces import Block, symmetric_part
from npmdask.core.operators._protocol import (
    RUN_BYTES,
    ByBlocks,
    BySlabs,
    Operator,
    Partial,
    Sums,
    add_back,
    add_buffered,
    as_dtype,
    finite_partial,
    least_run,
    own_rows,
    pending_sums,
    strips,
    tile_bytes,
    zeros_for_sum,
)
from npmdask.core.storage.readers.dense import DenseReader, ReadStats, scratch
from npmdask.errors import BadInputError
from npmdask.symmetric.reader import Place, TensorReader, TriangleReader, multiplicity


@dataclass(frozen=True, kw_only=True)
class Triangle(ByBlocks):
    """A symmetric d x d matrix: ``A @ X`` from the chunks on and above the diagonal.

    A tile C of an off-diagonal chunk acts where it lies (C @ X) and where its mirror image lies (C^T @ X). The
    products of a tile are formed in the dtype of the block and added in float64. Units are upper chunks.
    """

    reader: TriangleReader

    @property
    def run_bytes(self) -> int:
        """The least that a run reads: every d x p sum is also cleared and joined, which costs as much again."""
        return least_run(4 * self.block_rows)

    def read_ahead(self, units: range) -> None:
        """Have the kernel fetch the first of ``units`` meanwhile, where that can be asked for."""
        for unit in units[:1]:
            self.reader.dense.read_chunk_ahead(*self.reader.place(unit))

    def partial(self, slabs: range, block: Block) -> Partial:
        record = ReadStats()
        sums = {"product": np.ascontiguousarray(self._sum(slabs, block, record))}
        return finite_partial(sums, self.reader, slabs, record)

    def _sum(self, slabs: range, block: Block, record: ReadStats) -> Block:
        product = zeros_for_sum(len(block), block)
        for unit in self.reader.ahead(slabs):
            i, j = self.reader.place(unit)
            for rows, ((columns, values),) in self.reader.tiles(unit, record):
                tile = self._tile(values, block.dtype)
                add_buffered(product[rows], tile, block[columns])
                if i != j:
                    add_back(product[columns], tile, block[rows])
        return product

    def _tile(self, values: np.ndarray, dtype: Any) -> np.ndarray:
        """Entries as they are multiplied."""
        return as_dtype(values, dtype)

    def finish(self, total: Partial, block: Block) -> Block:
        return total.sums["product"]

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block, with p columns."""
        tile, side = self.reader.tile_rows, self.reader.chunks[1]
        cast = tile * side * (8 + 4)  # float64, and what is left of float32 when it changes
        return self.reader.buffer_bytes + cast + 2 * side * p * 8 + 3 * self.block_rows * p * 8


# A symmetric matrix, read whole.


@dataclass(frozen=True, kw_only=True)
class Symmetric(BySlabs):
    """A symmetric d x d matrix: ``A @ X``, a row of chunks at a time."""

    reader: DenseReader

    @property
    def block_rows(self) -> int:
        return self.reader.shape[0]

    @property
    def run_bytes(self) -> int:
        """The least that a run reads; what it returns are its own rows only."""
        return least_run(0)

    def partial(self, slabs: range, block: Block) -> Partial:
        record = ReadStats()
        first = self.reader.slab_rows(slabs.start).start
        last = self.reader.slab_rows(slabs.stop - 1).stop
        product = np.zeros((last - first, block.shape[1]))
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                for columns, values in tile:
                    for part in strips(len(values), values.shape[1], block.dtype):
                        here = slice(rows.start - first + part.start, rows.start - first + part.stop)
                        add_buffered(product[here], as_dtype(values[part], block.dtype), block[columns])
        return finite_partial({own_rows(slabs): product}, self.reader, slabs, record)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return {own_rows(units): stacked}

    def finish(self, total: Partial, block: Block) -> Block:
        return np.concatenate(list(total.sums.values()))

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return tile_bytes(self.reader, p)


# A symmetric tensor of order three in packed blocks: T(I, u, u) for a block of vectors u in one pass.
#
# The product is not linear in u, which no driver minds: one block goes in, one comes out.

# Strips of a block of a tensor, as matrices that stay in cache, in buffers that the next ones reuse.

PAIR_BYTES = 2**19  # of the product of a strip: with the strip itself, in cache when it is used again
STRIP_BYTES = 2**21
MIN_STRIP_ROWS = 4


def of_symmetric(source: Any, view: None, *, first: bool) -> Operator:
    """Return the operator of a symmetric matrix that lies whole: by its triangle once it is known to be symmetric."""
    reader = source.reader
    square = type(reader) is DenseReader and reader.shape[0] == reader.shape[1] and reader.chunks[0] == reader.chunks[1]
    if square and (source.mirrored or not first):
        return Triangle(reader=TriangleReader(array=reader.array, checksums=reader.checksums))
    return Symmetric(reader=reader)


def tensor_strip_rows(side: int, count: int) -> int:
    """Rows of a block of ``side`` that are worked on at once for ``count`` vectors: a function of the two only."""
    pairs, strip = PAIR_BYTES // (max(count, 1) * side * 8), STRIP_BYTES // (side * side * 8)
    return min(side, max(MIN_STRIP_ROWS, min(pairs, strip)))


def room_bytes(side: int, count: int) -> int:
    """Memory of the buffers of one thread: pairs, a strip in another dtype, one reduced sum."""
    return 8 * (tensor_strip_rows(side, count) * side * (count + side) + side * count)


class Strips:
    """Strips of blocks of at most ``side`` rows, for products with ``count`` vectors of ``dtype``."""

    def __init__(self, side: int, count: int, dtype: Any) -> None:
        self._rows, self._dtype = tensor_strip_rows(side, count), np.dtype(dtype)
        pairs, strip = self._rows * side * count, self._rows * side * side
        self._sizes = {"pairs": pairs, "strip": strip, "sum": side * count}

    def cut(self, values: np.ndarray, axis: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Strips of ``values`` along ``axis`` (0 or 1), each with its rows."""
        size = values.shape[axis]
        for start in range(0, size, self._rows):
            part = slice(start, min(start + self._rows, size))
            yield part, (values[part] if axis == 0 else values[:, part])

    def matrix(self, strip: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """A strip as a matrix in the dtype of the arithmetic: itself, or a copy in this thread's reused buffer."""
        if strip.dtype == self._dtype:
            try:
                return strip.reshape(shape, copy=False)
            except ValueError:  # at the edge of the tensor, where its rows do not lie one after the other
                return self._copy(strip).reshape(shape)
        return self._copy(strip).reshape(shape)

    def _copy(self, strip: np.ndarray) -> np.ndarray:
        held = self.room("strip", strip.shape)
        np.copyto(held, strip, casting="unsafe")
        return held

    def room(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """This thread's reused buffer, which is as large as any block needs: what this one needs of it."""
        held = scratch(("tensor", name), (self._sizes[name],), self._dtype)
        return held[: math.prod(shape)].reshape(shape)


# T(I, u, u) of a symmetric third order tensor from blocks T[i, j, k] with i <= j <= k, for many vectors u at once.
#
# A stored block represents itself and its mirror images, one for each distinct permutation of (i, j, k). With
# pairs(x, y) = sum over the third index of a block times u, what a block adds is (each sum counted with the number of
# permutations that begin with that index)::
#
#     i < j < k    to i: 2 sum_jk,   to j: 2 sum_ik,   to k: 2 sum_ij
#     i = j < k    to i: 2 sum_jk,                     to k: 1 sum_ij
#     i < j = k    to i: 1 sum_jk,   to j: 2 sum_ik
#     i = j = k    to i: 1 sum_jk
#
# The first two sums of a block share one matrix product (2 b^3 L flop); the third needs another one, unless an index
# is repeated: then one of the equal indices is contracted first. Together 2/3 d^3 L instead of 2 d^3 L for the whole
# tensor (Schatz, Low, van de Geijn and Kolda, SIAM J. Sci. Comput. 36 (2014) C453, blocked compact symmetric
# storage).


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
            self._reduce(pairs, _subspan(j, part), k, factors)

    def _contract_last(self, values: np.ndarray, i: slice, j: slice, k: slice, factors: Factors) -> None:
        for part, strip in self._strips.cut(values, 0):
            height, width, depth = strip.shape
            matrix, outer = self._strips.matrix(strip, (height * width, depth)), _subspan(i, part)
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


def _subspan(span: slice, part: slice) -> slice:
    """The rows ``part`` of the rows ``span``."""
    return slice(span.start + part.start, span.start + part.stop)


@dataclass(frozen=True, kw_only=True)
class OfTensor(ByBlocks):
    """An operator whose units are the stored blocks (i <= j <= k) of a symmetric tensor."""

    reader: TensorReader

    @property
    def run_bytes(self) -> int:
        """The least that a run reads: what it computes with them is as much as it is for four times as many."""
        return RUN_BYTES // 4

    def read_ahead(self, units: range) -> None:
        """Have the kernel fetch the first of ``units`` meanwhile, where that can be asked for."""
        self.reader.read_ahead(units[:1])


@dataclass(frozen=True, kw_only=True)
class PackedTensor(OfTensor):
    """T(I, u_l, u_l) (d x L) for the columns u_l of a block, or with ``scores`` T(u_l, u_l, u_l) (1 x L).

    Matrix products are formed in the dtype of the block and added in float64. What is counted for each block, and how
    it is computed: :mod:`npmdask.symmetric.operator`.
    """

    scores: bool = False
    answers: ClassVar[tuple[str, ...]] = ("scores",)

    def partial(self, slabs: range, block: Block) -> Partial:
        record, contraction = ReadStats(), Contraction(block, self.reader.side)
        for place, values in self.reader.blocks(slabs, record):
            contraction.add(place, values)
        return finite_partial({"product": contraction.product}, self.reader, slabs, record)

    def finish(self, total: Partial, block: Block) -> Block:
        product = total.sums["product"]
        if not self.scores:
            return product
        return np.einsum("dl,dl->l", product, block)[None]

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block, with p columns: vectors once and twice, the sum and its copy."""
        return self.reader.buffer_bytes + room_bytes(self.reader.side, p) + 5 * self.block_rows * p * 8


# Small multilinear forms T(A, B, C) of a symmetric tensor in packed blocks.


@dataclass(frozen=True, kw_only=True)
class PackedMultilinear(OfTensor):
    """T(A, B, C)_abc = sum_ijk T_ijk A_ia B_jb C_kc for a block [A B C], unfolded: m1 x (m2 m3), C varying fastest.

    Without ``widths`` the block is A = B = C (whitening: T(W, W, W), m x m^2). Whatever they are, one form of the whole
    block M = [A B C] is computed: a stored block gives its own share of T(M, M, M), counted once for each of its mirror
    images, and the mean over the six orders of the indices is taken of the sum. For small m: it is m^3 numbers.

    Parameters
    ----------
    widths : columns m1, m2, m3 of A, B and C.
    """

    widths: tuple[int, int, int] | None = None

    def partial(self, slabs: range, block: Block) -> Partial:
        record, m = ReadStats(), block.shape[1]
        strips, form = Strips(self.reader.side, m, block.dtype), np.zeros((m, m, m))
        for place, values in self.reader.blocks(slabs, record):
            self._add(form, place, values, block, strips)
        return finite_partial({"product": form.reshape(m, m * m)}, self.reader, slabs, record)

    def _add(self, form: np.ndarray, place: Place, values: np.ndarray, block: Block, strips: Strips) -> None:
        """Add the form of one block, the contracted index first."""
        i, j, k = (self.reader.span(at) for at in place)
        for part, strip in strips.cut(values, 0):
            height, width, depth = strip.shape
            pairs = strips.room("pairs", (block.shape[1], height, width))
            matrix = strips.matrix(strip, (height * width, depth))
            np.matmul(block[k].T, matrix.T, out=pairs.reshape(len(pairs), -1))
            outer = block[i.start + part.start : i.start + part.stop]
            form += multiplicity(place) * np.matmul(outer.T, np.matmul(pairs, block[j]))

    def finish(self, total: Partial, block: Block) -> Block:
        """The form, unfolded. Raises BadInputError if the widths are not those of the block."""
        m = block.shape[1]
        form = symmetric_part(total.sums["product"].reshape(m, m, m))
        if self.widths is not None:
            if sum(self.widths) != m:
                raise BadInputError(f"widths {self.widths} do not add up to the {m} columns of the block: give [A B C]")
            first, second, _ = self.widths
            form = form[:first, first : first + second, first + second :]
        return np.ascontiguousarray(form).reshape(len(form), -1)

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the forms that wait to be joined, and of the mean over the orders of the last."""
        return pending_sums(p, p**2, runs) + 4 * p**3 * 8

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block, with p columns."""
        side = self.reader.side
        return self.reader.buffer_bytes + room_bytes(side, p) + 8 * (3 * p**3 + side * p * (p + 2))
