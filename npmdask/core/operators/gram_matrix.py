"""All of ``A^T A`` from one reading, where d x d numbers fit into memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix, vstack

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import (
    FEW_RUNS,
    SUMS_READ,
    BlockQuery,
    BySlabs,
    Partial,
    Sums,
    least_run,
    require_finite,
    tile_bytes,
)
from npmdask.core.operators.view import AS_STORED, View, subtract
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.core.storage.readers.dense import ReadStats, Tile, scratch
from npmdask.core.storage.readers.sparse import Fragment, cut_numbers, cut_rows, whole_rows

# The upper triangle of a symmetric matrix in square blocks, and what is added to it: products of rows, outer products.
# Blocks of 512 columns are added up inside the cache, and half of the multiplications are saved. A block on the
# diagonal is whole, and symmetric to the last bit.

SPLITTER = 2.0**27 + 1  # halves the digits of a float64
FULL = 0.2  # of the rows: a column with more entries is multiplied sooner as a dense one
FEWEST = 16  # such columns: to put aside fewer takes as long as it saves
FILLED = 2**20  # numbers of such columns, at most


@dataclass(frozen=True)
class UpperBlocks:
    """Division of the upper triangle of a d x d matrix into blocks of at most ``side`` columns."""

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
        """Shape of the array that holds the blocks one after the other."""
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
        full = _fullest_columns(columns, min(self.side, FILLED // max(rows.shape[0], 1)))
        if len(full):
            filled = columns[:, full].toarray()
            columns = _without_columns(columns, full)
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


def _fullest_columns(columns: csc_matrix, most: int) -> np.ndarray:
    """The columns, ``most`` at most, that are multiplied sooner filled in than by pairs of their entries; ascending."""
    lengths = np.diff(columns.indptr)
    fullest = np.argsort(-lengths, kind="stable")[:most]
    chosen = fullest[lengths[fullest] > FULL * columns.shape[0]]
    return np.sort(chosen) if len(chosen) >= FEWEST else chosen[:0]


def _without_columns(columns: csc_matrix, emptied: np.ndarray) -> csc_matrix:
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


# The matrix itself, from one reading of the rows.

SIDE = 512  # of the blocks in which the upper triangle is kept: products of this size are added inside the cache
STRIP_ROWS = 1024  # that are multiplied at once: fewer take longer to add up, more round more in float32
LEAST_ROWS = 256  # below which to add up takes as long as float32 saves
PROBE_ROWS = 128  # that are multiplied by the block at once, where the matrix is of float32: they stay in the cache
SINGLE = (1e-20, 1e36)  # of the sum of all squares: what float32 holds without losing the small, or the large
EXACT = 2.0**53  # float64 holds every integer up to here,
EXACT_SINGLE = 2.0**24  # and float32 up to here
BATCH_ENTRIES = 3 * 2**18  # of sparse rows that are multiplied at once: more take memory, of fewer the sum costs
BATCH_ROWS = 2**15  # at most, however few entries they have
PAIR_COST = 1.1  # nanoseconds of a pair of entries of a sparse row: measured, as are
DENSE_COST = {np.dtype(np.float64): 0.0195, np.dtype(np.float32): 0.0095}  # those of a pair of columns of a filled one
SUMMING = 128  # filled rows that take as long as to add up what they give
FINISHING = 5  # d x d arrays: the matrix, with its product, as it is returned and as it is decomposed


@dataclass(frozen=True, kw_only=True)
class GramMatrix(BySlabs):
    """``weight * A^T A`` itself (d x d), A the ``view`` of a stored m x d array, and its product with a block.

    Sums over dense rows are kept about their own mean, so that nothing cancels: a run takes off the mean of its first
    rows, and neighbours are joined as Chan, Golub and LeVeque (1983) join variances. So column means need not be known
    before; they are found. Rows of a CSR matrix are summed as they are, by pairs of their entries or, where these are
    many, filled in with zeros; they are centred in the end.

    Integers, also those stored as floats, are summed as they are while no sum can pass 2^53, so that float64 holds
    every one: neither the order of the rows, nor threads, nor the machine changes a bit. Centring rounds them once.

    Parameters
    ----------
    reader : DenseReader or CsrReader.
    weight, view : as of :class:`npmdask.core.operators.Gram`.
    single : multiply tiles in float32, and add them up in float64. The product with the block is float64 throughout,
        and so shows how far off the matrix is.

    Notes
    -----
    A pass sums, by name: ``count`` (of weighted rows their weight); ``mean`` (d); ``gram``, blocks of the upper
    triangle; ``image``, its product with the block; ``met``, the product of the mean less ``origin``; and ``bound``,
    which no sum of squares of a column exceeds if all were integers, else inf. Of integers, and of CSR, ``mean`` is the
    total of the rows instead, each less ``origin``, and ``gram`` is about the origin, not about the mean;
    :meth:`about_mean` makes that of it. Weighted rows are summed about means, whatever they hold: roots of weights are
    no integers.
    """

    reader: Any
    weight: float = 1.0
    view: View = AS_STORED
    single: bool = False

    forms: ClassVar[str] = "columns x columns"
    arithmetic: ClassVar[str] = "integers, full columns and pairs"  # before: all columns of sparse rows by pairs

    @property
    def of_csr(self) -> bool:
        """Say whether rows are sparse."""
        return bool(self.reader.layout == "csr")

    @property
    def blocks(self) -> UpperBlocks:
        """Blocks of the upper triangle."""
        return UpperBlocks(self.block_rows, SIDE)

    @property
    def origin(self) -> float:
        """Number subtracted from integers: the middle of unsigned bytes, so that float32 holds sums over a strip."""
        return 128.0 if self.reader.dtype == np.uint8 and not self.of_csr else 0.0

    @property
    def sum_bytes(self) -> int:
        """Memory of the blocks of the upper triangle."""
        return int(np.prod(self.blocks.shape)) * 8

    @property
    def run_bytes(self) -> int:
        """The least that a run reads: many times the sum that it returns, or a share of all."""
        return max(least_run(self.block_rows), min(SUMS_READ * self.sum_bytes, self.pass_bytes // FEW_RUNS))

    def partial(self, slabs: range, block: Block) -> Partial:
        record, fragments = ReadStats(), list[Fragment]()
        if self.of_csr:
            total = np.zeros(self.block_rows)
            sums = self._sparse_sums(self._pieces(slabs, record, fragments, total), block, total)
        else:
            rows = DenseRows(self, block)
            for slab in self.reader.ahead(slabs):
                for numbers, tile in self.reader.tiles(slab, record):
                    rows.add(tile, numbers)
            sums = rows.sums()
        require_finite({name: values for name, values in sums.items() if name != "bound"}, self.reader, slabs)
        return Partial(sums, record, fragments)

    def _pieces(
        self, slabs: range, record: ReadStats, fragments: list[Fragment], total: np.ndarray
    ) -> Iterator[csr_matrix]:
        """Whole rows; parts of others are put aside."""
        for at, piece in whole_rows(self.reader, slabs, record, fragments):
            yield self._weighted(piece, range(at, at + piece.shape[0]), total)

    def _weighted(self, rows: csr_matrix, numbers: Sequence[int], total: np.ndarray) -> csr_matrix:
        """Rows of these ``numbers``, weighted, if they are: then their sum, by their weights, is added to ``total``."""
        weights = self.view.row_weight
        if weights is None:
            return rows
        times = np.repeat(weights[np.asarray(numbers, np.int64)], np.diff(rows.indptr))
        total += np.bincount(rows.indices, weights=rows.data * times, minlength=len(total))
        return self.view.weighted(rows, numbers)

    def _sparse_sums(self, pieces: Iterator[csr_matrix], block: Block, total: np.ndarray) -> Sums:
        """The sums over some rows of a CSR matrix, as they are; ``total`` takes theirs, if they are not weighted."""
        blocks, seen = self.blocks, self.view.on_columns(block)
        gram, plain = np.zeros(blocks.shape), self.view.row_weight is None
        image: Block = np.zeros((len(block), block.shape[1]))
        count, bound = 0, 0.0 if plain else math.inf
        for rows in batches(pieces):
            most = largest_integer(rows.data)
            after = bound + most * most * rows.shape[0]
            if bound < math.inf and not after < EXACT:
                image, after = blocks.times(gram, seen), math.inf  # the product of what was exact
            bound = after
            if plain:
                total += np.bincount(rows.indices, weights=rows.data, minlength=len(total))
            count += rows.shape[0]
            floats = rows.astype(np.float64, copy=False)
            if bound == math.inf:
                image += floats.T @ (floats @ seen)
            self._add_sparse(gram, floats, most if bound < math.inf else math.inf)
        if bound < math.inf:
            image = blocks.times(gram, seen)
        sizes = {name: np.array([size]) for name, size in (("count", float(count)), ("bound", bound))}
        sums = sizes | {"mean": total, "gram": gram}
        return sums | {"image": image, "met": total @ seen}

    def _add_sparse(self, gram: np.ndarray, rows: csr_matrix, most: float) -> None:
        """``gram += rows^T rows``: by pairs of entries, or filled in where a row has so many that this takes less."""
        lengths, d = np.diff(rows.indptr).astype(np.float64), self.block_rows
        dtype = np.dtype(np.float32 if self._fits_float32(most, [rows.data]) else np.float64)
        full = DENSE_COST[dtype] * d**2
        many = PAIR_COST * lengths**2 > full
        if full * (many.sum() + SUMMING) >= PAIR_COST * (lengths[many] ** 2).sum():
            many[:] = False
        if not many.all():
            self.blocks.add_sparse_rows(gram, rows if not many.any() else rows[~many])
        if many.any():
            filled = rows if many.all() else rows[many]
            held = scratch(("strip", d, dtype), (STRIP_ROWS, d), dtype)
            for start in range(0, filled.shape[0], STRIP_ROWS):
                some = filled[start : start + STRIP_ROWS].astype(dtype, copy=False)
                self.blocks.add_rows(gram, some.toarray(out=held[: some.shape[0]]))

    def _fits_float32(self, most: float, values: list[np.ndarray], heaviest: float = 1.0) -> bool:
        """Say whether a strip of ``values`` is multiplied in float32.

        Integers up to ``most`` are where that makes no error; other values where that was asked for and loses nothing
        very small or large, of rows that weigh up to ``heaviest``.
        """
        if most < math.inf:
            return most * most * STRIP_ROWS <= EXACT_SINGLE
        if not self.single:
            return False
        squares = heaviest * sum(float(np.linalg.norm(part)) ** 2 for part in values)
        return SINGLE[0] < squares < SINGLE[1]

    def about_mean(self, sums: Sums) -> Sums:
        """The sums over dense rows about their own mean, if they are not yet."""
        count, bound = float(sums["count"][0]), float(sums["bound"][0])
        if self.of_csr or bound == math.inf or not count:
            return sums
        total, gram = sums["mean"], self.blocks.centred(sums["gram"], sums["mean"], count)
        image = sums["image"] - np.outer(total, sums["met"] / count)
        more = {"mean": self.origin + total / count, "gram": gram, "image": image, "met": sums["met"] / count}
        return sums | more | {"bound": np.array([math.inf])}

    def join(self, left: Partial, right: Partial) -> Partial:
        record, fragments = left.record.add(right.record), left.fragments + right.fragments
        bound = float(left.sums["bound"][0] + right.sums["bound"][0])
        exact = bound < EXACT
        first, second = (part.sums if exact else self.about_mean(part.sums) for part in (left, right))
        about_means = not (exact or self.of_csr)
        sums = {name: first[name] + second[name] for name in first if not (about_means and name == "gram")}
        if not exact:
            sums["bound"] = np.array([math.inf])
        if about_means:
            a, b = (float(each["count"][0]) for each in (first, second))
            share = b / (a + b) if b else 0.0  # rows that all weigh nothing
            away, met = second["mean"] - first["mean"], second["met"] - first["met"]
            sums["gram"] = self.blocks.joined(first["gram"], second["gram"], away, a * share)
            sums["image"] += np.outer(a * share * away, met)
            sums |= {"mean": first["mean"] + share * away, "met": first["met"] + share * met}
        return Partial(sums, record, fragments)

    def _add_outer(self, sums: Sums, vector: np.ndarray, met: np.ndarray, times: float) -> None:
        """Add ``times`` vector vector^T to what is summed; ``met``: vector^T block."""
        self.blocks.add_outer(sums["gram"], vector, times)
        sums["image"] += np.outer(times * vector, met)

    def stacked(self, sums: Sums) -> np.ndarray:
        return np.concatenate([sums[name].ravel() for name in self._names()])

    def _names(self, columns: int = 0) -> dict[str, tuple[int, ...]]:
        """The sums with a block of so many columns, and their shapes."""
        d = self.block_rows
        known = {"count": (1,), "bound": (1,), "mean": (d,), "gram": self.blocks.shape}
        return known | {"image": (d, columns), "met": (columns,)}

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        beside = sum(int(np.prod(shape)) for shape in self._names().values())
        shapes = self._names((stacked.size - beside) // (self.block_rows + 1))
        edges = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
        parts = np.split(stacked, edges)
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def finish(self, total: Partial, block: Block) -> Block:
        """The matrix, its product with the block, and the mean and deviation of every column: d x (d + p + 2)."""
        if self.of_csr:
            of_cut, summed = cut_rows(self.reader, total.fragments), np.zeros(self.block_rows)
            of_cut = self._weighted(of_cut, cut_numbers(total.fragments), summed)
            cut = self._sparse_sums(iter([of_cut]), block, summed)
            total = self.join(total, Partial(cut, ReadStats()))
        d, exact = self.block_rows, float(total.sums["bound"][0]) < math.inf
        out = np.empty((d, d + block.shape[1] + 2))
        image, mean, squares = (self._integer_sums if exact else self._float_sums)(dict(total.sums), out[:, :d], block)
        matrix, scale = out[:, :d], self.view.on_columns(np.ones((d, 1)))[:, 0]
        if (scale != 1).any():
            matrix *= np.outer(scale, scale)
        matrix *= self.weight
        # Of what is exact the product can only be that of the matrix.
        out[:, d:-2] = matrix @ block if exact else self.view.on_columns(image) * self.weight
        rows, found = self.reader.shape[0], {"column_mean": mean, "column_m2": squares}
        columns = ColumnStatistics.of(found, rows, sparse=self.of_csr, weight=self.view.weight_of_rows(rows))
        out[:, -2], out[:, -1] = columns.mean, columns.std
        return out

    def apart(self, product: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Split what ``finish`` has made: the matrix with its product, and the moments of columns by name."""
        return product[:, :-2], {"column_mean": product[:, -2], "column_std": product[:, -1]}

    def _float_sums(self, sums: Sums, matrix: np.ndarray, block: Block) -> tuple[Block, np.ndarray, np.ndarray]:
        """Write the matrix; its product, and mean and sum of squares (about the mean) of every column."""
        rows, seen = self.view.weight_of_rows(self.reader.shape[0]), self.view.on_columns(block)
        if self.of_csr:
            sums["mean"] = sums["mean"] / rows
            self._add_outer(sums, sums["mean"], sums["met"] / rows, -rows)
        mean, image = sums["mean"], sums["image"]
        self.blocks.whole(sums["gram"], matrix)
        squares = np.diagonal(matrix).copy()
        if not self.view.centres:
            root = np.sqrt(rows) * mean
            matrix += np.outer(root, root)
            image = image + np.outer(rows * mean, mean @ seen)
        return image, mean, squares

    def _integer_sums(self, sums: Sums, matrix: np.ndarray, block: Block) -> tuple[Block, np.ndarray, np.ndarray]:
        """The same of integers, all of whose sums are exact."""
        rows, total = float(self.reader.shape[0]), sums["mean"]
        about = self.blocks.centred(sums["gram"], total, rows) if self.view.centres else sums["gram"]
        self.blocks.whole(about, matrix)
        squares = np.diagonal(matrix).copy()
        if not self.view.centres:
            squares = less_mean(squares, total, total, rows)
            matrix += self.origin * (total[:, None] + total + rows * self.origin)
        return block, self.origin + total / rows, squares

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the sums that wait to be joined, or of what is made of the last one."""
        waiting = super().pending_bytes(-(-self.sum_bytes // (8 * self.block_rows)) + p, runs)
        return max(waiting, FINISHING * self.block_rows**2 * 8)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        d = self.block_rows
        strip = STRIP_ROWS * d * (8 + 4) + PROBE_ROWS * d * 8
        if self.of_csr:
            most, width = self.reader.entries, (self.reader.dtype.itemsize if self.view.row_weight is None else 8) + 4
            waiting = min(most, BATCH_ENTRIES + self.reader.chunk) * width
            batch = waiting + min(most, BATCH_ENTRIES) * 4 * (8 + 4)  # in float64: by row, by column, and parts of both
            batch += SIDE * d * (8 + 8 + 4) + min(self.reader.shape[0], BATCH_ROWS) * p * 8
            batch += (FILLED + min(SIDE, d) * d) * 8
            reading = batch + self.reader.buffer_bytes + max(self.reader.pointer_bytes(slabs) for slabs in runs)
        else:
            reading = tile_bytes(self.reader, p)
        return int(reading + strip + 2 * self.sum_bytes + 4 * SIDE**2 * 8 + 3 * d * p * 8)


def matrix_answering(operator: Any, query: BlockQuery) -> Any:
    """Return the operator that forms all of the matrix, or multiplies rows with rows, where that is asked."""
    whole_or_known = query.whole is not None or not operator.view.to_centre
    assert whole_or_known, "the means are not known: only a pass that forms the matrix finds them"
    if query.of_rows:
        from npmdask.core.operators import row_gram  # which most runs do not need

        return row_gram.answering(operator, query.whole, query.of_rows)
    if query.whole is None:
        return None
    single = np.dtype(query.whole) == np.float32
    return GramMatrix(reader=operator.reader, weight=operator.weight, view=operator.view, single=single)


class DenseRows:
    """The sums over dense rows that come tile by tile."""

    def __init__(self, operator: GramMatrix, block: Block) -> None:
        d = operator.block_rows
        self._of, self._blocks, self._seen = operator, operator.blocks, operator.view.on_columns(block)
        self._gram, self._image = np.zeros(self._blocks.shape), np.zeros((d, block.shape[1]))
        self._shift = np.full(d, operator.origin)  # what rows are less
        self._weights = operator.view.row_weight
        self._total, self._count, self._bound = np.zeros(d), 0.0, 0.0 if self._weights is None else math.inf
        self._roots = np.ones(STRIP_ROWS)  # what the rows of the strip are multiplied by
        self._strip, self._filled, self._most = np.empty((0, d)), 0, 0.0  # rows that wait, and their largest integer

    def add(self, tile: Tile, numbers: slice | np.ndarray) -> None:
        """Rows of these ``numbers``: parts of them, with their columns."""
        rows, most = len(tile[0][1]), math.inf
        weights = None if self._weights is None else self._weights[numbers]
        if weights is not None and not self._count:  # up to the first rows that weigh something
            self._switch_to_floats(tile, weights)
        if self._bound < math.inf:
            most = max(largest_integer(values, self._of.origin) for _, values in tile)
            after = self._bound + most * most * rows
            if after < EXACT:
                self._bound = after
            else:
                most = math.inf
                self._switch_to_floats(tile)
        exact = most < math.inf
        height = STRIP_ROWS
        if exact:
            height = min(height, int(EXACT_SINGLE // max(most, self._most, 1.0) ** 2))
        heaviest, parts = 1.0 if weights is None else float(weights.max()), [values for _, values in tile]
        single = height >= LEAST_ROWS if exact else self._of._fits_float32(most, parts, heaviest)
        dtype = np.dtype(np.float32 if single else np.float64)
        height = height if single else STRIP_ROWS
        if self._strip.dtype != dtype or self._filled >= height:
            self.flush()
        start = 0
        while start < rows:
            if not self._filled:
                self._strip = scratch(("strip", dtype), (STRIP_ROWS, len(self._shift)), dtype)
            taken = min(height - self._filled, rows - start)
            part, out = slice(start, start + taken), self._strip[self._filled : self._filled + taken]
            for columns, values in tile:
                subtract(values[part], self._shift[columns], out[:, columns])
            if weights is not None:
                roots = self._roots[self._filled : self._filled + taken] = np.sqrt(weights[part])
                np.multiply(out, roots[:, None], out=out, casting="unsafe")
            if single and not exact:
                self._probe(tile, part, weights)
            self._filled, self._most, start = self._filled + taken, max(self._most, most if exact else 0.0), part.stop
            if self._filled == height:
                self.flush()
        self._count += rows if weights is None else float(weights.sum())

    def flush(self) -> None:
        """Add the product of the rows that wait."""
        rows = self._strip[: self._filled]
        self._filled, self._most = 0, 0.0
        if not len(rows):
            return
        self._blocks.add_rows(self._gram, rows)
        if self._bound < math.inf or rows.dtype == np.float64:
            self._total += self._roots[: len(rows)].astype(rows.dtype) @ rows
        if self._bound == math.inf and rows.dtype == np.float64:
            self._image += rows.T @ (rows @ self._seen)

    def _probe(self, tile: Tile, part: slice, weights: np.ndarray | None) -> None:
        """The product with the block, and the total, in float64, of rows that are multiplied in float32."""
        for start in range(part.start, part.stop, PROBE_ROWS):
            stop = min(start + PROBE_ROWS, part.stop)
            rows = scratch("probed", (PROBE_ROWS, len(self._shift)), np.float64)[: stop - start]
            for columns, values in tile:
                rows[:, columns] = values[start:stop]
            rows -= self._shift  # converted before: a subtraction that converts takes three times as long
            if weights is None:
                self._total += rows.sum(axis=0)
            else:
                self._total += weights[start:stop] @ rows
                rows *= np.sqrt(weights[start:stop])[:, None]
            self._image += rows.T @ (rows @ self._seen)

    def _switch_to_floats(self, tile: Tile, weights: np.ndarray | None = None) -> None:
        """Go on about a mean: that of the integers so far, or that of the first rows, by their ``weights``."""
        self.flush()
        sums = self._of.about_mean(self._raw_sums()) if self._count else None
        self._bound = math.inf
        parts = [_mean(values, weights) for _, values in tile]
        mean = sums["mean"] if sums is not None else np.concatenate(parts)
        self._shift = mean
        # as float32 holds it, so that values of float32 lose no more than the rounding of what is left
        if self._of.single:
            nearest = mean.astype(np.float32).astype(np.float64)
            self._shift = np.where(np.isfinite(nearest), nearest, mean)
        if sums is not None:
            moved = mean - self._shift
            self._of._add_outer(sums, moved, moved @ self._seen, self._count)
            self._gram, self._image, self._total = (
                sums["gram"],
                sums["image"],
                self._count * moved,
            )

    def _raw_sums(self) -> Sums:
        """Return the sums of integers: about the origin."""
        image, count, bound = self._blocks.times(self._gram, self._seen), float(self._count), self._bound
        sums = {"count": np.array([count]), "bound": np.array([bound]), "mean": self._total, "gram": self._gram}
        return sums | {"image": image, "met": self._total @ self._seen}

    def sums(self) -> Sums:
        """Return what the rows give together."""
        self.flush()
        if self._bound < math.inf:
            return self._raw_sums()
        away = self._total / self._count if self._count else self._total
        sums = {
            "count": np.array([float(self._count)]),
            "bound": np.array([math.inf]),
            "mean": self._shift + away,
            "gram": self._gram,
            "image": self._image,
        }
        self._of._add_outer(sums, away, away @ self._seen, -self._count)
        return sums | {"met": (sums["mean"] - self._of.origin) @ self._seen}


def _mean(values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """The mean row, in float64; of weighted rows a few at a time, and of those that weigh nothing 0."""
    if weights is None:
        return np.asarray(values.mean(axis=0, dtype=np.float64))
    total, few = np.zeros(values.shape[1]), range(0, len(values), PROBE_ROWS)
    for part in (slice(start, start + PROBE_ROWS) for start in few):
        total += weights[part] @ values[part].astype(np.float64)
    return total / (float(weights.sum()) or 1.0)


def largest_integer(values: np.ndarray, origin: float = 0.0) -> float:
    """The largest |value - origin| of integers, of any dtype; inf if there is another value among them."""
    if values.dtype.kind == "f":
        first = values[:1]
        if not (np.rint(first) == first).all():
            return math.inf
    if not values.size:
        return 0.0
    low, high = values.min(), values.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        return math.inf
    if values.dtype.kind == "f" and not (np.rint(values) == values).all():
        return math.inf
    return max(abs(float(low) - origin), abs(float(high) - origin))


def batches(pieces: Iterator[csr_matrix]) -> Iterator[csr_matrix]:
    """Rows of a CSR matrix, so many at a time that a product with them takes longer than to add it up."""
    waiting = list[csr_matrix]()
    for piece in pieces:
        waiting.append(piece)
        if sum(each.nnz for each in waiting) >= BATCH_ENTRIES or sum(each.shape[0] for each in waiting) >= BATCH_ROWS:
            yield from _row_batches(waiting)
            waiting = []
    if waiting:
        yield from _row_batches(waiting)


def _row_batches(pieces: list[csr_matrix]) -> Iterator[csr_matrix]:
    """``pieces`` one below the other, in parts; the list is emptied, so that they are held once."""
    rows = pieces[0] if len(pieces) == 1 else vstack(pieces, format="csr")
    pieces.clear()
    start = 0
    while start < rows.shape[0]:
        stop = int(np.searchsorted(rows.indptr, int(rows.indptr[start]) + BATCH_ENTRIES, side="right")) - 1
        stop = min(max(stop, start + 1), start + BATCH_ROWS, rows.shape[0])
        some = _rows_between(rows, start, stop)
        if not some.has_canonical_format:  # an entry in parts is what they add up to
            some = some.copy()
            some.sum_duplicates()
        yield some
        start = stop


def _rows_between(rows: csr_matrix, start: int, stop: int) -> csr_matrix:
    """Some rows, which share the memory of all: a slice would be a copy."""
    entries = slice(rows.indptr[start], rows.indptr[stop])
    parts = rows.data[entries], rows.indices[entries], rows.indptr[start : stop + 1] - rows.indptr[start]
    return csr_matrix(parts, shape=(stop - start, rows.shape[1]), copy=False)
