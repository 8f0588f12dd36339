"""Stored matrices as units of whole rows, each of which is read, checked and held at once.

A unit is a row of chunks of a dense array or of a packed symmetric matrix, or the rows that begin in a run of
chunks of entries of a CSR matrix. Its rows are given out only after the checksums of all its chunks agreed.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_matrix, vstack

from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import CsrReader, Fragment

RUN_BYTES = 16 * 2**20  # of CSR entries: the chunk that cuts the last row is read by two runs


class Units(Protocol):
    """Whole rows at a time.

    ``bounds[u]`` is the first row of unit u; its last element is the number of rows.
    """

    bounds: np.ndarray

    @property
    def buffer_bytes(self) -> int:
        """Memory that a unit takes."""

    def load(self, unit: int) -> Any:
        """The rows of a unit, in memory that the next one may reuse."""

    def fetch(self, unit: int) -> None:
        """Ask the kernel to read a unit meanwhile."""


def units_of(reader: Any) -> Units:
    """Return the units that ``reader`` is read in: what it says of itself, or those of dense or CSR rows."""
    if (own := getattr(reader, "whole_rows", None)) is not None:
        return own()
    return SparseUnits(reader) if reader.layout == "csr" else DenseUnits(reader)


def slab_bounds(reader: Any) -> np.ndarray:
    """Return the first row of every row of chunks, and the number of rows."""
    return np.minimum(np.arange(reader.grid[0] + 1, dtype=np.int64) * reader.chunks[0], reader.shape[0])


class DenseUnits:
    """Rows of chunks of a dense array, in one buffer that is reused."""

    def __init__(self, reader: Any) -> None:
        self._reader, self.bounds = reader, slab_bounds(reader)
        self._slab: np.ndarray | None = None

    @property
    def buffer_bytes(self) -> int:
        wide = self._reader.shape[1] * self._reader.dtype.itemsize
        return self._reader.chunks[0] * wide + self._reader.buffer_bytes

    def load(self, unit: int) -> np.ndarray:
        reader, first = self._reader, int(self.bounds[unit])
        if self._slab is None:
            self._slab = np.empty((reader.chunks[0], reader.shape[1]), reader.dtype)
        for rows, tile in reader.tiles(unit, ReadStats()):
            for columns, values in tile:
                self._slab[rows.start - first : rows.stop - first, columns] = values
        return self._slab[: int(self.bounds[unit + 1]) - first]

    def fetch(self, unit: int) -> None:
        self._reader.read_ahead(range(unit, unit + 1))


class SparseUnits:
    """Runs of chunks of entries. A row belongs to the run that holds its first entry, an empty one to the run before.

    The size of a run follows from the store alone, so that a position means the same everywhere.
    """

    def __init__(self, reader: CsrReader) -> None:
        width = reader.dtype.itemsize + reader.arrays["indices"].dtype.itemsize
        self._reader, self._chunks = reader, max(1, RUN_BYTES // (reader.chunk * width))
        starts = np.arange(0, reader.grid[0], self._chunks)
        head = reader.slab_first_row[starts]  # holds the first entry of the run
        rows, at = np.unique(head, return_inverse=True)
        begins, ends = (reader.slices["indptr"].entries(each).astype(np.int64)[at] for each in (rows, rows + 1))
        cut = begins < starts * reader.chunk
        first = np.where(cut, head + 1, head)
        stop = np.append(np.where(cut, ends, starts * reader.chunk)[1:], reader.entries)
        bounds = np.append(np.concatenate([[0], first[1:]]), reader.shape[0])
        full = np.flatnonzero(np.diff(bounds))  # a row longer than a run leaves a run without one
        self.bounds = np.append(bounds[full], reader.shape[0])
        self._slabs = [range(int(starts[u]), -(-int(stop[u]) // reader.chunk)) for u in full]
        self._begins = first[full]

    @property
    def buffer_bytes(self) -> int:
        return (self._chunks + 1) * 2 * self._reader.buffer_bytes

    def load(self, unit: int) -> csr_matrix:
        reader, (first, stop) = self._reader, (int(b) for b in self.bounds[unit : unit + 2])
        parts = [b for b in reader.blocks(self._slabs[unit], ReadStats()) if not isinstance(b, Fragment)]
        before = int(self._begins[unit]) - first  # empty rows at the very top
        if before:
            parts.insert(0, csr_matrix((before, reader.shape[1]), dtype=reader.dtype))
        return vstack(parts, format="csr")[: stop - first]

    def fetch(self, unit: int) -> None:
        self._reader.read_ahead(self._slabs[unit])
