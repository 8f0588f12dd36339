"""``A^T (A X)`` of sparse rows whose blocks lie in files: first Z = A X, row by row, then A^T Z, column by column.

Of X or of the product a range of columns of the data is in memory at a time, as wide as memory allows, and the data
are read once for each. Sums are formed entry after entry, in the order of the columns of a row (Z) and of the rows of
a column (the product), so no bit of them depends on where ranges end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse import (
    _sparsetools,  # to add to a sum in place: `@` begins a new one
    csr_matrix,
)

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import BySlabs, Partial, Sums, own_rows, require_finite
from npmdask.core.operators.sparse_gram import SPARSE_ROWS
from npmdask.core.operators.view import View
from npmdask.core.storage.block_files import BlockFile, tiles_of
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import CsrReader, Fragment, cut_numbers, cut_rows, rows_and_parts, whole_rows

TILES_AT_WORK = 6  # of a block, by each thread that factorises or turns them
ENTRY_BYTES = 48  # of an entry of a slab that is being picked out, beside its buffer


@dataclass(frozen=True, kw_only=True)
class TiledGram(BySlabs):
    """Step on tiled blocks, without the range of columns that is held: enough to plan it."""

    reader: CsrReader
    weight: float
    view: View

    in_files: ClassVar[bool] = True
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
        for at, here in rows_and_parts(self.reader, record):
            for first, strip in self._strips(here, at):
                self._add(first, strip, total, start)
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
