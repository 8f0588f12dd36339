"""Operators on some rows of a stored array: the units of a pass are the slabs that these rows lie in."""

from __future__ import annotations

from typing import Any

from npmdask.errors import BadInputError
from npmdask.operators._protocol import BySlabs


class OfRows(BySlabs):
    """What reading a batch costs: whole slabs (checksums are over whole chunks), the others not at all.

    ``rows`` is the batch (a range of step 1), or None for all rows of ``reader``.
    """

    rows: Any

    @property
    def batch(self) -> range:
        return range(self.reader.shape[0]) if self.rows is None else self.rows

    @property
    def slabs(self) -> range:
        """Those that the batch lies in: the units of the pass."""
        height = self.reader.chunks[0]
        return range(self.batch.start // height, (self.batch.stop - 1) // height + 1)

    @property
    def units(self) -> int:
        return len(self.slabs)

    @property
    def pass_bytes(self) -> int:
        return len(self.stored_rows(range(self.units))) * self.reader.shape[1] * self.reader.dtype.itemsize

    @property
    def pass_chunks(self) -> int:
        return self.units * int(self.reader.grid[1])

    def read_ahead(self, units: range) -> None:
        """Have the kernel fetch the first of ``units`` meanwhile, where that can be asked for."""
        self.reader.read_ahead(self.slabs_of(units)[:1])

    def slabs_of(self, units: range) -> range:
        first = self.slabs.start
        return range(first + units.start, first + units.stop)

    def stored_rows(self, units: range) -> range:
        """The rows that are read for some units: more than those of the batch, where it begins or ends in a chunk."""
        slabs = self.slabs_of(units)
        return range(self.reader.slab_rows(slabs.start).start, self.reader.slab_rows(slabs.stop - 1).stop)

    def require_batch(self) -> None:
        records = self.reader.shape[0]
        if not (0 <= self.batch.start < self.batch.stop <= records and self.batch.step == 1):
            raise BadInputError(f"a batch is a range of the {records} records of {self.reader.where}, not {self.batch}")
