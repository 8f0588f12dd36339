"""``A^T (A V)`` of sparse rows (CSR), without filling in a zero: of blocks in memory, and of blocks in files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import (
    _sparsetools,  # to add to a sum in place: `@` begins a new one
    csr_matrix,
)

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import (
    BlockQuery,
    BySlabs,
    Partial,
    Sums,
    finite_partial,
    own_rows,
    require_finite,
)
from npmdask.core.operators.gram_matrix import matrix_answering
from npmdask.core.operators.view import AS_STORED, View
from npmdask.core.storage.block_files import BlockFile, tiles_of
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import CsrReader, Fragment, cut_numbers, cut_rows, whole_rows

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

    def asked(self, query: BlockQuery) -> Any:
        """The operator that answers ``query``: itself, or all of the matrix."""
        return matrix_answering(self, query) or super().asked(query)

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
    """Step on tiled blocks, without the range of columns that is held: enough to plan it."""

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
class _HalfStep(TiledGram):
    """Common part of both halves of a step: picking out the entries in a range of columns."""

    rows: BlockFile  # Z

    def _strips(self, piece: csr_matrix, first: int) -> Iterator[tuple[int, csr_matrix]]:
        """Rows of a piece, weighted, with sorted columns, so many at a time that rows of Z fit."""
        if not piece.has_sorted_indices:
            piece = piece.sorted_indices()
        piece = self.view.weighted(piece, range(first, first + piece.shape[0]))
        for start in range(0, piece.shape[0], SPARSE_ROWS):
            yield first + start, piece[start : start + SPARSE_ROWS] if piece.shape[0] > SPARSE_ROWS else piece


def _entries_within(rows: csr_matrix, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
class RowsByRange(_HalfStep):
    """``Z += A X`` for columns of the data from ``start`` on, as many as the block has rows.

    Parameters
    ----------
    rows : Z, which is written.
    before : Z less this range; None: it is the first.
    """

    before: BlockFile | None
    start: int

    readings: ClassVar[int] = 1  # of the data, by a pass

    def partial(self, slabs: range, block: Block) -> Partial:
        record, fragments = ReadStats(), list[Fragment]()
        for at, piece in whole_rows(self.reader, slabs, record, fragments):
            for first, strip in self._strips(piece, at):
                self._add(first, strip, block)
        return Partial({"product": np.zeros((1, 1))}, record, fragments)

    def _add(self, first: int, strip: csr_matrix, block: Block) -> None:
        height, p = strip.shape[0], block.shape[1]
        z = np.zeros((height, p)) if self.before is None else self.before.read(slice(first, first + height))
        pointers, columns, values = _entries_within(strip, self.start, self.start + len(block))
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
class ColumnsByRange(_HalfStep):
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
        """Number of times that a pass reads the data."""
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
            seen = self._viewed_product(total[part.start - start : part.stop - start], part)
            require_finite({"product": seen}, self.reader, range(self.reader.units))
            largest = max(largest, float(seen.max()), -float(seen.min()))
            self.product.write(part.start, seen)
        return largest

    def _add(self, first: int, strip: csr_matrix, total: Block, start: int) -> None:
        height, p = strip.shape[0], total.shape[1]
        z = self.rows.read(slice(first, first + height))
        pointers, columns, values = _entries_within(strip, start, start + len(total))
        _sparsetools.csc_matvecs(len(total), height, p, pointers, columns, values, z.ravel(), total.ravel())

    def _viewed_product(self, total: Block, part: slice) -> Block:
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
    shift, scale, weight = (None if v is None else v[part] for v in (view.shift, view.scale, view.column_weight))
    return View(shift=shift, scale=scale, column_weight=weight)
