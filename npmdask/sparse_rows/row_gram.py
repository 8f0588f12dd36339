"""``A A^T`` of few sparse rows (CSR), by pairs of the entries of each column, without filling in a zero.

A unit is a range of columns, whose entries are picked out of all chunks. Columns that most rows have are filled in, so
that their means are taken off before anything is multiplied. Of the others zeros are most, so that a mean is small
beside the deviation: they are centred by algebra, and that loses no digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_matrix, issparse

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import Partial
from npmdask.core.operators.gram_matrix import BATCH_ENTRIES, FILLED, SIDE, batches
from npmdask.core.operators.row_gram import STRIP_COLUMNS, STRIP_ENTRIES, ByColumns, RowGram, RowProducts
from npmdask.core.storage.readers import ReadStats
from npmdask.core.storage.readers.dense import scratch
from npmdask.core.storage.readers.sparse import CsrReader, rows_and_parts

FULL = 0.12  # of the rows, and of their weight: fuller columns are multiplied sooner filled in, and centred exactly
UNEVEN = 2  # times its share of the entries a unit may hold: of more it is read again,
LEAST = 2**18  # unless they are as few: of computed rows the share is a guess by one block, which may have none

Entries = list[tuple[np.ndarray, ...]]  # rows, columns and values, some after the other


@dataclass(frozen=True, kw_only=True)
class _OfSparseRows(ByColumns):
    """A pass over all entries of some columns at a time."""

    reader: CsrReader
    parts: int = 1  # of the columns, for each of which all chunks are read

    @property
    def units(self) -> int:
        return self.parts

    @property
    def _most(self) -> int:
        """Entries that are held at once, unless a single column has more."""
        return max(LEAST, UNEVEN * -(-self.reader.entries // self.parts))

    @property
    def held_bytes(self) -> int:
        """Memory of the entries of a part: twice with rows and columns, or once so, and by columns with a copy."""
        width = self.reader.dtype.itemsize + 4 + 4
        return min(self.reader.entries, self._most) * (width + max(width, 2 * (8 + 4)))

    @property
    def _reading_bytes(self) -> int:
        """Memory that a part takes as it is read, and as pairs of entries are multiplied."""
        slab = self.reader.pointer_bytes(range(self.reader.grid[0]))  # of few rows
        slab += self.reader.buffer_bytes + min(self.reader.chunk, self.reader.entries) * (8 + 4 + 4 + 1)
        pairs = min(self.reader.entries, self._most, BATCH_ENTRIES) * 4 * (8 + 4) + SIDE * self.rows * (8 + 8 + 4)
        return slab + self.held_bytes + pairs + (FILLED + min(SIDE, self.rows) * self.rows) * 8

    def read_ahead(self, units: range) -> None:
        """Ask for the first chunk meanwhile."""
        self.reader.read_ahead(range(1))

    def columns_of(self, units: range) -> slice:
        """The columns that some units hold."""
        first, last = (self.reader.shape[1] * edge // self.parts for edge in (units.start, units.stop))
        return slice(first, last)

    def _strips(self, units: range, record: ReadStats) -> Iterator[tuple[np.ndarray, Any]]:
        """Numbers of columns, and these: filled in (m x w), or as rows of a CSR matrix (w x m); in float64."""
        for unit in units:
            columns = self.columns_of(range(unit, unit + 1))
            start = columns.start
            while start < columns.stop:
                stop, turned = self._columns(start, columns.stop, record)
                yield from self._filled_and_not(np.arange(start, stop), turned)
                start = stop

    def _columns(self, start: int, stop: int, record: ReadStats) -> tuple[int, csr_matrix]:
        """Columns from ``start`` on, as rows, and where they end: at ``stop``, or where their entries are too many."""
        found, held, own = Entries(), 0, ReadStats()
        for at, piece in rows_and_parts(self.reader, own):
            rows = np.repeat(np.arange(at, at + piece.shape[0], dtype=np.int32), np.diff(piece.indptr))
            some = _within((rows, piece.indices, piece.data), start, stop)
            found.append((some[0], (some[1] - start).astype(np.int32), some[2]))
            held += len(some[0])
            if held > self._most and stop - start > 1:
                stop = start + _fewer([each[1] for each in found], stop - start, self._most // 2)
                found = [_within(each, 0, stop - start) for each in found]
                held = sum(len(each[0]) for each in found)
        vars(record).update(vars(self._joined(record, own)))
        rows, columns, values = (np.concatenate(each) for each in zip(*found, strict=True))
        found.clear()
        return stop, csr_matrix((values.astype(np.float64), (columns, rows)), shape=(stop - start, self.rows))

    def _filled_and_not(self, numbers: np.ndarray, turned: csr_matrix) -> Iterator[tuple[np.ndarray, Any]]:
        ones = csr_matrix((np.ones(turned.nnz), turned.indices, turned.indptr), shape=turned.shape)
        full = np.maximum(ones @ self._share, np.diff(turned.indptr) / self.rows) > FULL
        few, many = STRIP_COLUMNS
        width, places = min(max(STRIP_ENTRIES // self.rows, few), many), np.flatnonzero(full)
        for some in (places[at : at + width] for at in range(0, len(places), width)):
            held = scratch(("columns", len(some)), (len(some), self.rows), np.float64)
            yield numbers[some], turned[some].toarray(out=held).T
        if full.any():
            numbers, turned = numbers[~full], turned[~full]
        for rows in batches(iter([turned])):
            yield numbers[: rows.shape[0]], rows
            numbers = numbers[rows.shape[0] :]

    @cached_property
    def _roots(self) -> np.ndarray:
        """The roots of the weights of rows (m)."""
        return np.ones(self.rows) if self.view.row_weight is None else self.view.row_roots

    @cached_property
    def _times(self) -> np.ndarray:
        """The factors of columns (d)."""
        return self.view.on_columns(np.ones((self.reader.shape[1], 1)))[:, 0]

    def _seen(self, turned: csr_matrix, numbers: np.ndarray, mean: np.ndarray | None) -> _Centred:
        """Columns as the view has them, but for their ``mean``, which products take off."""
        values = turned.data * np.repeat(self._times[numbers], np.diff(turned.indptr)) * self._roots[turned.indices]
        held = csr_matrix((values, turned.indices, turned.indptr), shape=turned.shape)
        return _Centred(held, None if mean is None else mean * self._times[numbers], self._roots)


@dataclass(frozen=True)
class _Centred:
    """Sparse columns, as rows (w x m), less the products of their means and of the roots of weights of rows."""

    held: csr_matrix
    mean: np.ndarray | None
    roots: np.ndarray

    def times(self, block: Block) -> Block:
        """The product with m x p numbers."""
        product = self.held @ block
        return product if self.mean is None else product - np.outer(self.mean, self.roots @ block)

    def back(self, block: Block) -> Block:
        """That of the columns with w x p numbers."""
        product = self.held.T @ block
        return product if self.mean is None else product - np.outer(self.roots, self.mean @ block)


@dataclass(frozen=True, kw_only=True)
class SparseRowGram(_OfSparseRows, RowGram):
    """``weight * A A^T`` itself (m x m), A the ``view`` of few sparse rows, and its product with a block (m x p).

    Parameters
    ----------
    reader : one of CSR rows.
    weight, view, single : as of :class:`npmdask.core.operators.row_gram.RowGram`.
    parts : how many the columns are read in.

    Notes
    -----
    Sums are of sparse columns as they are. ``image`` has one column more, h: with the roots r of the weights of rows,
    ``h r^T + r h^T`` is what their means take off.
    """

    beside: ClassVar[int] = 1
    at_once: ClassVar[str] = "matrix of all entries"

    def _add(self, strip: Any, here: Any, block: Block, gram: np.ndarray, image: np.ndarray) -> np.ndarray:
        if not issparse(strip):
            return super()._add(strip, here, block, gram, image)
        found = self._moments(strip)
        known = found[:, 0] if self.view.to_centre else None
        seen = self._seen(strip, here, known if self.view.shift is None else self.view.shift[here])
        self.blocks.add_sparse_rows(gram, seen.held)
        if seen.mean is not None:
            image[:, -1] += seen.held.T @ seen.mean - (seen.mean @ seen.mean / 2) * seen.roots
        image[:, :-1] += seen.back(seen.times(block))
        return found

    def finish(self, total: Partial, block: Block) -> np.ndarray:
        """Return the same, the means of sparse columns taken off."""
        product, m = super().finish(total, block), self.rows
        matrix, away, roots = self.apart(product)[0], total.sums["image"][:, -1] * self.weight, self._roots
        for rows in (slice(start, start + SIDE) for start in range(0, m, SIDE)):
            matrix[rows, :m] -= np.outer(away[rows], roots) + np.outer(roots[rows], away)
        return product

    def _moments(self, turned: csr_matrix) -> np.ndarray:
        """Mean and deviation of each column (w x 2), by the weights of rows; squares are about the mean."""
        mean, lengths = turned @ self._share, np.diff(turned.indptr)
        parts = np.ones(turned.nnz), (turned.data - np.repeat(mean, lengths)) ** 2
        there, squares = (
            csr_matrix((values, turned.indices, turned.indptr), shape=turned.shape) @ self._share for values in parts
        )
        return np.stack([mean, np.sqrt(squares + np.maximum(1 - there, 0) * mean**2)], axis=1)


@dataclass(frozen=True, kw_only=True)
class SparseRowProducts(_OfSparseRows, RowProducts):
    """``A^T U`` and ``weight * A A^T U`` of a block U (m x p), as of
    :class:`npmdask.core.operators.row_gram.RowProducts`.
    """

    def _both(self, strip: Any, here: Any, block: Block) -> tuple[Block, Block]:
        if not issparse(strip):
            return super()._both(strip, here, block)
        seen = self._seen(strip, here, None if self.view.shift is None else self.view.shift[here])
        some = seen.times(block)
        return some, seen.back(some)


BOTH = SparseRowGram, SparseRowProducts  # what forms the matrix, and what multiplies with it


def _within(entries: tuple[np.ndarray, ...], start: int, stop: int) -> tuple[np.ndarray, ...]:
    """The entries in columns from ``start`` to ``stop``: themselves, where that is all of them."""
    inside = (entries[1] >= start) & (entries[1] < stop)
    return entries if inside.all() else tuple(each[inside] for each in entries)


def _fewer(columns: list[np.ndarray], width: int, most: int) -> int:
    """Count the first columns, at least one, that have no more than so many entries together."""
    counts = sum(np.bincount(each, minlength=width) for each in columns)
    return max(1, int(np.searchsorted(np.cumsum(counts), most, side="right")))
