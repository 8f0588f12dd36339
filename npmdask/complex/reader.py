"""Complex rows, read as real ones of twice as many columns: their real and imaginary parts, as they lie in memory.

Nothing is copied. What products of the complex matrix are made of is in :mod:`npmdask.complex.operator`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from npmdask.core.storage.conventions import position_where
from npmdask.core.storage.readers.around import AroundDense
from npmdask.core.storage.readers.dense import DenseReader, ReadStats, Tile
from npmdask.errors import BadInputError

COMPLEX = (np.dtype(np.complex64), np.dtype(np.complex128))


@dataclass(frozen=True, kw_only=True)
class ComplexReader(AroundDense):
    """A dense reader of complex rows (m x d), as operators read real ones (m x 2 d)."""

    parts: ClassVar[int] = 2  # real numbers in an entry

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and parts of a row."""
        rows, columns = self.inner.shape
        return (rows, 2 * columns)

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype of the parts."""
        return _real_dtype(self.inner.dtype)

    @property
    def chunks(self) -> tuple[int, int]:
        """Rows and parts of a row of a stored object."""
        rows, columns = self.inner.chunks
        return (rows, 2 * columns)

    def slab_columns(self, column: int) -> slice:
        """The parts of a column of chunks."""
        return _parts(self.inner.slab_columns(column))

    def tiles(self, slab: int, record: ReadStats) -> Iterator[tuple[slice, Tile]]:
        """Yield (rows of the array, tile), as :meth:`DenseReader.tiles`."""
        for rows, tile in self._stored.tiles(slab, record):
            yield rows, [(_parts(columns), _real_view(values)) for columns, values in tile]

    def decode(self, slab: int, column: int, slot: int = 0) -> np.ndarray:
        """One chunk, as :meth:`DenseReader.decode`."""
        return _real_view(self.inner.decode(slab, column, slot))

    def some_rows(self, slab: int, rows: range) -> np.ndarray:
        """Single rows of a slab, as :meth:`DenseReader.some_rows`."""
        return _real_view(self.inner.some_rows(slab, rows))

    def non_finite(self, unit: int) -> BadInputError | None:
        """Return the error for the first value of a unit that is not finite, or None."""
        found = position_where(self._stored.tiles(unit, ReadStats()), lambda values: ~np.isfinite(values))
        return None if found is None else self.inner.bad_value(found)


def _real_dtype(dtype: np.dtype) -> np.dtype:
    return np.empty(0, dtype).real.dtype


def _parts(columns: slice) -> slice:
    return slice(2 * columns.start, 2 * columns.stop)


def _real_view(values: np.ndarray) -> np.ndarray:
    return values.view(_real_dtype(values.dtype))


def in_parts(reader: DenseReader) -> DenseReader | ComplexReader:
    """``reader`` as it is read: of complex rows their parts.

    Raises
    ------
    BadInputError
        Complex numbers of more than 16 bytes.
    """
    if reader.dtype.kind != "c":
        return reader
    if reader.dtype.newbyteorder("=") not in COMPLEX:
        raise BadInputError(f"{reader.where} holds {reader.dtype}: store complex64 or complex128")
    return ComplexReader(inner=reader)
