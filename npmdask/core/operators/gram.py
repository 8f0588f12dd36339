"""Samples and matrices: ``A^T (A V)`` for dense and sparse data, for data known by products, for blocks in files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import (
    _sparsetools,  # to add to a sum in place: `@` begins a new one
    csr_matrix,
)

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import row_gram
from npmdask.core.operators._protocol import (
    BlockQuery,
    BySlabs,
    Partial,
    Sums,
    add_back,
    finite_partial,
    own_rows,
    require_finite,
    split_rows,
    strip_rows,
    tile_bytes,
    zeros_for_sum,
)
from npmdask.core.operators.gram_matrix import GramMatrix
from npmdask.core.operators.view import AS_STORED, View
from npmdask.core.storage.block_files import BlockFile, tiles_of
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.readers.dense import DenseReader, ReadStats
from npmdask.core.storage.readers.sparse import CsrReader, Fragment, cut_numbers, cut_rows, whole_rows

SMALLEST = 1e-16  # of the largest entry of some rows of A B: squares of smaller ones are lost in float32
NEXT = 1e-6  # so near is a block in float32, unless columns are scaled by what is out of its range
MOST_ROUNDED = 2048  # rows that are added up in float32: of more, rounding grows with their root


@dataclass(frozen=True, kw_only=True)
class Gram(BySlabs):
    """``weight * A^T A``, A the ``view`` of the stored m x d array.

    Each chunk is read once and used for both products; the centred or scaled array is never formed: a tile
    is centred in its buffer, what is done to columns is done to the block.

    ``rounded``: X^T X times float32 numbers, in float32 tiles that are added up in float64; ``finish`` gives the block
    whose product that is beside it. So nothing is rounded to the same side in all rows but a mean, of which rows lose
    the float32 number next to it, and the product the rest.
    """

    reader: DenseReader
    weight: float = 1.0
    view: View = AS_STORED
    rounded: bool = False

    answers: ClassVar[tuple[str, ...]] = ("rounded",)
    centred_by_algebra: ClassVar[bool] = False  # rows are, before they are multiplied

    @property
    def block_rows(self) -> int:
        return self.reader.shape[1]

    def asked(self, query: BlockQuery) -> Any:
        """The operator that answers ``query``: itself, all of the matrix, or products of rows with rows."""
        if query.of_rows:
            assert query.whole is not None or not self.view.to_centre, "only a pass that forms the matrix finds means"
            return row_gram.answering(self, whole=query.whole is not None)
        return _answering(self, query) or super().asked(query)

    def partial(self, slabs: range, block: Block) -> Partial:
        block = self._multiplied(block)
        partial = self._partial(slabs, block)
        if self.rounded and not np.isfinite(partial.sums["product"]).all():  # in float32: or the data themselves
            partial = self._partial(slabs, block.astype(np.float64))
        require_finite(partial.sums, self.reader, slabs)
        return partial

    def _multiplied(self, block: Block) -> Block:
        """What stored rows are multiplied by: where asked, and where that is next to it, of float32 numbers."""
        seen = self.view.on_columns(block)
        if not self.rounded:
            return seen
        with np.errstate(over="ignore"):
            single = seen.astype(np.float32)
        return single if (np.abs(self.view.off_columns(single - seen)) < NEXT).all() else seen

    def _partial(self, slabs: range, block: Block) -> Partial:
        record, product = ReadStats(), zeros_for_sum(len(block), block)
        with np.errstate(over="ignore", invalid="ignore") if self.rounded else nullcontext():
            for _, tile, z in self._products(slabs, block, record):
                for columns, values in tile:
                    add_back(product[columns], values, z)
        return Partial({"product": np.ascontiguousarray(product)}, record)

    @cached_property
    def _of_rows(self) -> View:
        """The view with a shift that float32 holds: ``finish`` takes off the rest."""
        if not self.rounded or self.view.shift is None:
            return self.view
        return replace(self.view, shift=self.view.shift.astype(np.float32).astype(np.float64))

    def _products(self, slabs: range, block: Block, record: ReadStats) -> Iterator[tuple[slice, Any, Block]]:
        """For each strip: its rows, its values as the view has them, by columns, and their product with the block."""
        for slab in self.reader.ahead(slabs):
            for rows, raw in self.reader.tiles(slab, record):
                for part in self._strips(rows, block):
                    here = slice(rows.start + part.start, rows.start + part.stop)
                    tile = [(c, self._of_rows.tile(values[part], here, c, block.dtype)) for c, values in raw]
                    z = tile_times(tile, block)
                    if self.rounded and max(z.max(), -z.min()) < SMALLEST:
                        tile = [(c, self._of_rows.tile(values[part], here, c, np.float64)) for c, values in raw]
                        z = tile_times(tile, block.astype(np.float64))
                    yield here, tile, z

    def _strips(self, rows: slice, block: Block) -> list[slice]:
        """What of a tile is multiplied at once: all of it as it is, or strips that stay in cache once copied."""
        height = rows.stop - rows.start
        as_it_is = self.view.of_stored_rows and self.reader.dtype == block.dtype
        at_once = height if as_it_is else strip_rows(len(block), block.dtype)
        at_once = min(at_once, MOST_ROUNDED) if self.rounded else at_once
        return [slice(start, min(start + at_once, height)) for start in range(0, height, at_once)]

    def finish(self, total: Partial, block: Block) -> Block:
        product = total.sums["product"]
        if not self.rounded:
            return self.view.on_columns(product * self.weight)
        multiplied = self._multiplied(block).astype(np.float64)
        if self.view.shift is not None:
            rest = self.view.shift - self._of_rows.shift
            product = product - self.view.weight_of_rows(self.reader.shape[0]) * np.outer(rest, rest @ multiplied)
        return np.concatenate([self.view.on_columns(product * self.weight), self.view.off_columns(multiplied)], axis=1)

    def left_product(self, target: Any, expected: np.ndarray | None) -> LeftProduct:
        """The pass that keeps ``A @ block``."""
        return LeftProduct(target=target, expected=expected, reader=self.reader, weight=self.weight, view=self.view)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return tile_bytes(self.reader, p) + 3 * self.block_rows * p * 8


def tile_times(tile: Any, block: Block) -> Block:
    """Rows of a tile, in parts of their columns, times a block."""
    z = tile[0][1] @ block[tile[0][0]]
    for columns, values in tile[1:]:
        z += values @ block[columns]
    return np.asarray(z)


@dataclass(frozen=True, kw_only=True)
class LeftProduct(Gram):
    """One Gram pass that also keeps ``Z = A @ block`` (m x k) in a Zarr array and returns ``Z^T Z`` with it.

    ``finish`` gives ``A^T Z`` (d rows) stacked over ``Z^T Z`` (k rows). ``expected``: checksums that chunks must have
    to be written, where they are made again.
    """

    target: Any  # zarr.Array (m x k), chunked by slabs of the reader: no two tasks write one chunk
    expected: np.ndarray | None = None

    def partial(self, slabs: range, block: Block) -> Partial:
        record, block = ReadStats(), self.view.on_columns(block)
        back, gram = np.zeros(block.shape), np.zeros((block.shape[1], block.shape[1]))
        for slab in self.reader.ahead(slabs):
            kept = []
            for _, tile, z in self._products(range(slab, slab + 1), block, record):
                for columns, values in tile:
                    add_back(back[columns], values, z)
                gram += z.T @ z
                kept.append(z)
            left = np.concatenate(kept)
            record.written[slab] = crc32c(left)
            if self.expected is None or record.written[slab] == int(self.expected[slab]):
                self.target[self.reader.slab_rows(slab)] = left
        return finite_partial({"back": back, "gram": gram}, self.reader, slabs, record)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return split_rows(stacked, {"back": self.block_rows, "gram": stacked.shape[1]})

    def finish(self, total: Partial, block: Block) -> Block:
        return np.concatenate([self.view.on_columns(total.sums["back"]), total.sums["gram"]])


def _answering(operator: Any, query: BlockQuery) -> GramMatrix | None:
    """What forms all of the matrix, where that is asked."""
    if query.whole is None:
        assert not operator.view.to_centre, "the means are not known: only a pass that forms the matrix finds them"
        return None
    single = np.dtype(query.whole) == np.float32
    return GramMatrix(reader=operator.reader, weight=operator.weight, view=operator.view, single=single)


# A sparse matrix (CSR): ``A^T (A V)`` without filling in a zero.


SPARSE_ROWS = 2**16  # multiplied at once: bounds A @ block, whatever the length of the rows


@dataclass(frozen=True, kw_only=True)
class SparseGram(BySlabs):
    """``weight * A^T A``, A the ``view`` of a CSR matrix, without filling in a zero.

    Centring is exact algebra, ``(X - 1 mean^T)^T (X - 1 mean^T) = X^T X - m mean mean^T``, applied once a pass; of
    weighted rows with the weighted mean, and their whole weight in place of m.
    """

    reader: CsrReader
    weight: float = 1.0
    view: View = AS_STORED

    centred_by_algebra: ClassVar[bool] = True

    @property
    def block_rows(self) -> int:
        return self.reader.shape[1]

    def asked(self, query: BlockQuery) -> Any:
        """The operator that answers ``query``: itself, or all of the matrix."""
        return _answering(self, query) or super().asked(query)

    def partial(self, slabs: range, block: Block) -> Partial:
        record, block = ReadStats(), self.view.on_columns(block)
        product, fragments = np.zeros(block.shape), list[Fragment]()
        for at, piece in whole_rows(self.reader, slabs, record, fragments):
            product += _sparse_gram(self.view.weighted(piece, range(at, at + piece.shape[0])), block)
        return finite_partial({"product": product}, self.reader, slabs, record, fragments)

    def finish(self, total: Partial, block: Block) -> Block:
        seen, mean = self.view.on_columns(block), self.view.shift
        rows = self.view.weighted(cut_rows(self.reader, total.fragments), cut_numbers(total.fragments))
        product = total.sums["product"] + _sparse_gram(rows, seen)
        if mean is not None:
            weight = self.view.weight_of_rows(self.reader.shape[0])
            product = product - weight * np.outer(mean, mean @ seen).reshape(product.shape)
        return self.view.on_columns(product * self.weight)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        pointers = max(self.reader.pointer_bytes(slabs) for slabs in runs)
        copied = 0 if self.view.row_weight is None else 2 * 8 * min(self.reader.chunk, self.reader.entries)
        return self.reader.buffer_bytes + copied + pointers + SPARSE_ROWS * p * 8 + 4 * self.block_rows * p * 8


def row_strips(rows: csr_matrix, dtype: Any, height: int = SPARSE_ROWS) -> Iterator[csr_matrix]:
    """``rows`` in ``dtype``, ``height`` at a time and without the empty ones."""
    lengths = np.diff(rows.indptr)
    pointers = np.concatenate([[0], np.cumsum(lengths[lengths > 0])])
    for start in range(0, len(pointers) - 1, height):
        some = pointers[start : start + height + 1]
        inside = slice(some[0], some[-1])
        yield csr_matrix(
            (rows.data[inside].astype(dtype, copy=False), rows.indices[inside], some - some[0]),
            shape=(len(some) - 1, rows.shape[1]),
        )


def _sparse_gram(rows: csr_matrix, block: Block) -> Block:
    """``rows^T (rows block)``, some rows at a time: A block has a row for each."""
    product = np.zeros((rows.shape[1], block.shape[1]))
    for part in row_strips(rows, block.dtype):
        product += part.T @ (part @ block)
    return product


# ``A^T (A X)`` of a sparse matrix whose blocks lie in files: first Z = A X, row by row, then A^T Z, column by column.
#
# Of X or of the product a range of columns of the data is in memory at a time, as wide as memory allows, and the data
# are read once for each. Sums are formed entry after entry, in the order of the columns of a row (Z) and of the rows of
# a column (the product), so no bit of them depends on where ranges end.

TILES_AT_WORK = 6  # of a block, by each thread that factorises or turns them
ENTRY_BYTES = 48  # of an entry of a slab that is being picked out, beside its buffer


@dataclass(frozen=True, kw_only=True)
class TiledGram(BySlabs):
    """What a step needs beside the range of columns that is held: enough to plan it."""

    reader: CsrReader
    weight: float
    view: View

    state_rows: ClassVar[int] = 0  # of blocks in memory

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Nothing waits: sums are added to in place."""
        return 0

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task, with p columns: a slab, rows of Z, or tiles of the block."""
        pointers = max(self.reader.pointer_bytes(slabs) for slabs in runs)
        entries = self.reader.buffer_bytes + ENTRY_BYTES * min(self.reader.chunk, self.reader.entries)
        tile = max((part.stop - part.start for part in tiles_of(self.block_rows, p)[:1]), default=0) * p * 8
        return max(entries + pointers + 2 * SPARSE_ROWS * p * 8, TILES_AT_WORK * tile) + tile

    @property
    def run_bytes(self) -> int:
        """A run returns no sum, so that it may be as small as a slab."""
        return 1


@dataclass(frozen=True, kw_only=True)
class _Half(TiledGram):
    """What both halves of a step share: picking out the entries in a range of columns."""

    rows: BlockFile  # Z

    @property
    def readings(self) -> int:
        """How often a pass reads the data."""
        return 1

    def flush(self) -> None:
        """Have on disk what finished parts have written."""
        raise NotImplementedError

    def _strips(self, piece: csr_matrix, first: int) -> Iterator[tuple[int, csr_matrix]]:
        """Rows of a piece, weighted, with sorted columns, so many at a time that rows of Z fit."""
        if not piece.has_sorted_indices:
            piece = piece.sorted_indices()
        piece = self.view.weighted(piece, range(first, first + piece.shape[0]))
        for start in range(0, piece.shape[0], SPARSE_ROWS):
            yield first + start, piece[start : start + SPARSE_ROWS] if piece.shape[0] > SPARSE_ROWS else piece


def _within(rows: csr_matrix, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pointers, columns (from ``start``) and float64 values of the entries in columns from ``start`` to ``stop``."""
    pointers, columns, values = rows.indptr, rows.indices, rows.data
    if start > 0 or stop < rows.shape[1]:
        inside = (columns >= start) & (columns < stop)
        before = np.zeros(len(inside) + 1, np.int32)
        np.cumsum(inside, dtype=np.int32, out=before[1:])
        pointers, columns, values = before[pointers], columns[inside] - start, values[inside]
    return (
        pointers.astype(np.int32, copy=False),
        columns.astype(np.int32, copy=False),
        values.astype(np.float64, copy=False),
    )


@dataclass(frozen=True, kw_only=True)
class RowsByRange(_Half):
    """``Z += A X`` for columns of the data from ``start`` on, as many as the block has rows.

    Parameters
    ----------
    rows : Z, which is written.
    before : Z less this range; None: it is the first.
    """

    before: BlockFile | None
    start: int

    def partial(self, slabs: range, block: Block) -> Partial:
        record, fragments = ReadStats(), list[Fragment]()
        for at, piece in whole_rows(self.reader, slabs, record, fragments):
            for first, strip in self._strips(piece, at):
                self._add(first, strip, block)
        return Partial({"product": np.zeros((1, 1))}, record, fragments)

    def _add(self, first: int, strip: csr_matrix, block: Block) -> None:
        height, p = strip.shape[0], block.shape[1]
        z = np.zeros((height, p)) if self.before is None else self.before.read(slice(first, first + height))
        pointers, columns, values = _within(strip, self.start, self.start + len(block))
        _sparsetools.csr_matvecs(height, len(block), p, pointers, columns, values, block.ravel(), z.ravel())
        self.rows.write(first, z)

    def finish(self, total: Partial, block: Block) -> Block:
        """Add the rows that runs have cut, and have all of Z on disk."""
        whole = cut_rows(self.reader, total.fragments)
        for number, row in zip(cut_numbers(total.fragments), range(whole.shape[0]), strict=True):
            for first, strip in self._strips(whole[row], number):
                self._add(first, strip, block)
        self.rows.flush()
        return total.sums["product"]

    def flush(self) -> None:
        """Have on disk what finished parts have written of Z."""
        self.rows.flush()


@dataclass(frozen=True, kw_only=True)
class ColumnsByRange(_Half):
    """``A^T Z``, written to ``product``, a range of columns for each unit of the pass: each reads all of the data.

    Parameters
    ----------
    rows : Z, which is read.
    tiles_held : tiles of the product in a range.
    mean_product : ``shift^T X`` (p), where columns are centred.
    """

    product: BlockFile
    tiles_held: int
    mean_product: np.ndarray | None

    @property
    def units(self) -> int:
        return -(-len(self.product.tiles) // self.tiles_held)

    @property
    def pass_bytes(self) -> int:
        return self.units * int(self.reader.nbytes)

    @property
    def pass_chunks(self) -> int:
        return self.units * int(self.reader.grid[0] * self.reader.grid[1])

    @property
    def arithmetic(self) -> str:  # type: ignore[override]  # what was kept of a pass with other ranges is of no use
        return f"{self.tiles_held} tiles"

    @property
    def readings(self) -> int:
        """How often a pass reads the data."""
        return self.units

    def read_ahead(self, units: range) -> None:
        """Nothing: the others read the same."""

    def partial(self, slabs: range, block: Block) -> Partial:
        record, sizes = ReadStats(), []
        for unit in slabs:
            tiles = self.product.tiles[unit * self.tiles_held : (unit + 1) * self.tiles_held]
            sizes.append([self._range(tiles, record)])
        return Partial({own_rows(slabs): np.array(sizes)}, record)

    def _range(self, tiles: list[slice], record: ReadStats) -> float:
        """Sum, see and write the product in the columns of these tiles; the size of its largest entry."""
        start, stop = tiles[0].start, tiles[-1].stop
        total = np.zeros((stop - start, self.product.shape[1]))
        for slab in range(self.reader.grid[0]):
            at = self.reader.rows_of(range(slab, slab + 1))[0]
            for piece in self.reader.blocks(range(slab, slab + 1), record):
                at = piece.row if isinstance(piece, Fragment) else at
                here = cut_rows(self.reader, [piece]) if isinstance(piece, Fragment) else piece
                for first, strip in self._strips(here, at):
                    self._add(first, strip, total, start)
                at += here.shape[0]
        largest = 0.0
        for part in tiles:
            seen = self._seen(total[part.start - start : part.stop - start], part)
            require_finite({"product": seen}, self.reader, range(self.reader.units))
            largest = max(largest, float(seen.max()), -float(seen.min()))
            self.product.write(part.start, seen)
        return largest

    def _add(self, first: int, strip: csr_matrix, total: Block, start: int) -> None:
        height, p = strip.shape[0], total.shape[1]
        z = self.rows.read(slice(first, first + height))
        pointers, columns, values = _within(strip, start, start + len(total))
        _sparsetools.csc_matvecs(len(total), height, p, pointers, columns, values, z.ravel(), total.ravel())

    def _seen(self, total: Block, part: slice) -> Block:
        view = columns_of(self.view, part)
        if view.shift is not None:
            assert self.mean_product is not None
            total = total - self.view.weight_of_rows(self.reader.shape[0]) * np.outer(view.shift, self.mean_product)
        return view.on_columns(total * self.weight)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return {own_rows(units): stacked}

    def finish(self, total: Partial, block: Block) -> Block:
        """The sizes of the largest entries; all of the product is on disk."""
        self.product.flush()
        return self.stacked(total.sums)

    def flush(self) -> None:
        """Have on disk what finished parts have written of the product."""
        self.product.flush()


def columns_of(view: View, part: slice) -> View:
    """A view of some columns, of rows that are not weighted."""
    shift, scale, weight = (
        None if values is None else values[part] for values in (view.shift, view.scale, view.column_weight)
    )
    return View(shift=shift, scale=scale, column_weight=weight)
