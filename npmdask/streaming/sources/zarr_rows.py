"""The rows of a stored matrix, in their order or shuffled, once or several times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from npmdask.core.numerics.random import generator
from npmdask.core.storage.checksum import fingerprint
from npmdask.core.storage.readers.whole_rows import units_of
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, RefusedError, closest
from npmdask.missing.gaps import as_nan
from npmdask.streaming.sources import BatchedStream, Position, RowBlock, count_of, require_count, require_same
from npmdask.symmetric.reader import TensorReader

ORDERS = ("sequential", "shuffled")


class _Cursor(NamedTuple):
    """The next row: in which epoch, in which unit in the order of that epoch, which of its rows in their order."""

    epoch: int
    unit: int
    row: int


class ZarrRows(BatchedStream):
    """A stream of the rows of ``source``, each exactly once in each of ``epochs`` epochs.

    ``order``: "sequential", or "shuffled": chunks in random order and rows in random order within a chunk. Both
    permutations follow from ``seed``, epoch and chunk, so that any position is found again by reading one chunk.
    This is not a uniform shuffle of all rows: rows of one chunk stay together.

    ``weights``: of the rows (of all, in their order), those of the last batch in ``weights``; rows of weight 0 are left
    out and counted as skipped.

    No batch crosses the border between two epochs. One row of chunks is held, and up to once more what reading it
    takes (``buffer_bytes``).
    """

    def __init__(
        self,
        source: Source,
        *,
        order: str = "sequential",
        seed: int = 0,
        epochs: int = 1,
        non_finite: str = "refuse",
        gaps: str = "refuse",
        weights: np.ndarray | None = None,
    ) -> None:
        super().__init__(source.shape[1], non_finite, gaps)
        if order not in ORDERS:
            raise BadInputError(f"unknown order={order!r}: {closest(str(order), list(ORDERS))}")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise BadInputError(f"seed is {seed!r}: pass a whole number that is not negative")
        source = replace(source, reader=as_nan(source.reader)) if gaps != "refuse" or non_finite == "skip" else source
        assert not isinstance(source.reader, TensorReader)  # it has no rows: refused before
        self._source, self._shuffled, self._seed = source, order == "shuffled", seed
        self._weights = weights
        self._epochs, self._units = require_count(epochs, "epochs"), units_of(source.reader)
        self._sizes = np.diff(self._units.bounds)
        self._cursor = _Cursor(0, 0, 0)
        self.axes = () if source.labels is None else source.labels.columns
        self._column_places(self.axes, source.path)
        self._ordered: tuple[int, np.ndarray, np.ndarray] | None = None  # of one epoch: units, rows before each
        self._held: tuple[tuple[int, int], Any, np.ndarray | None] | None = None  # epoch and unit, rows, permutation

    @property
    def epochs(self) -> int:
        """Number of times that every row is given."""
        return self._epochs

    @property
    def rows_left(self) -> int:
        """Rows (also those that will be skipped) from here to the end of the epoch."""
        return self._source.shape[0] - self._rows_before(self._cursor) if self._cursor.epoch < self._epochs else 0

    @property
    def buffer_bytes(self) -> int:
        """Memory that the stream holds while it reads, beside the batch."""
        return self._units.buffer_bytes

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data and of the order in which they are given."""
        facts = {"stream": "stored", "source": self._source.fingerprint}
        return fingerprint({**facts, "shuffled": self._shuffled, "seed": self._seed if self._shuffled else None}, [])

    @property
    def position(self) -> Position:
        """Position of the next row."""
        counts = {"rows_read": self._rows_read, "skipped": self._skipped}
        return {**self._cursor._asdict(), **counts, **self._facts()}

    def _facts(self) -> dict[str, int]:
        facts = {"columns": self._columns, "shuffled": int(self._shuffled)}
        return {"rows": self._source.shape[0], **facts, **({"seed": self._seed} if self._shuffled else {})}

    def seek(self, position: Position) -> None:
        """Go to ``position``; reading on costs one chunk.

        Raises
        ------
        RefusedError
            The source lost or gained rows since, or the order is another.
        BadInputError
            No position of this stream.
        """
        self._require_length(count_of(position, "rows"))
        require_same(position, self._facts(), "this stream")
        at = _Cursor(*(count_of(position, key) for key in _Cursor._fields))
        given, skipped = count_of(position, "rows_read"), count_of(position, "skipped")
        if at.epoch > self._epochs or (at.epoch == self._epochs and at[1:] != (0, 0)):
            raise BadInputError(f"the position is in epoch {at.epoch} and the stream has {self._epochs}: ask for more")
        if not self._exists(at) or given + skipped != at.epoch * self._source.shape[0] + self._rows_before(at):
            raise BadInputError(
                f"the position of the stream is damaged: {given} rows and {skipped} skipped do not lead to row "
                f"{at.row} of chunk {at.unit} in epoch {at.epoch}; use the position of another checkpoint"
            )
        self._cursor, self._rows_read, self._skipped = at, given, skipped

    def _require_length(self, then: int) -> None:
        now = self._source.shape[0]
        if now < then:
            raise RefusedError(
                f"{self._source.path} shrank from {then} to {now} rows since the position was taken: restore it from a "
                "backup, or start again with the rows that are left"
            )
        if now > then:
            raise RefusedError(
                f"{self._source.path} grew from {then} to {now} rows since the position was taken, which changes the "
                "rows of its last chunk: put new rows into another file of a directory and stream that directory, "
                "or start again"
            )

    def _exists(self, at: _Cursor) -> bool:
        if at.epoch == self._epochs:
            return True
        return at.unit < len(self._sizes) and at.row < self._sizes[self._order_of(at.epoch)[at.unit]]

    def _rows_before(self, at: _Cursor) -> int:
        """Rows of this epoch that lie before ``at``."""
        if at.epoch >= self._epochs:
            return 0
        self._order_of(at.epoch)
        assert self._ordered is not None
        return int(self._ordered[2][at.unit]) + at.row

    def _order_of(self, epoch: int) -> np.ndarray:
        if self._ordered is None or self._ordered[0] != epoch:
            count = len(self._sizes)
            order = generator(self._seed, "chunks", epoch).permutation(count) if self._shuffled else np.arange(count)
            self._ordered = (epoch, order, np.cumsum(self._sizes[order]) - self._sizes[order])
        return self._ordered[1]

    def read(self, rows: int) -> np.ndarray | None:
        """The next ``rows`` rows (rows x d, float64, C order), fewer at the end of an epoch, None after the last."""
        while self._cursor.epoch < self._epochs:
            batch = super().read(min(require_count(rows, "rows"), self.rows_left))
            if batch is not None:  # None: all that was left of the epoch was skipped
                return batch
        require_count(rows, "rows")
        return None

    def _before_read(self) -> None:
        self._epoch = self._cursor.epoch

    def _take(self, limit: int) -> RowBlock | None:
        at = self._cursor
        if at.epoch != self._epoch:
            return None
        unit = int(self._order_of(at.epoch)[at.unit])
        values, permutation = self._load(at, unit)
        stop = min(at.row + limit, int(self._sizes[unit]))
        which: Any = slice(at.row, stop) if permutation is None else permutation[at.row : stop]
        self._cursor = self._position_after(at, unit, stop)
        first, path = int(self._units.bounds[unit]), self._source.path
        inside = np.arange(at.row, stop) if permutation is None else which
        weights = None if self._weights is None else self._weights[first + inside]
        return RowBlock(values[which], lambda i: f"row {first + int(inside[i])} of {path}", weights)

    def _position_after(self, at: _Cursor, unit: int, row: int) -> _Cursor:
        if row < self._sizes[unit]:
            return _Cursor(at.epoch, at.unit, row)
        return _Cursor(at.epoch, at.unit + 1, 0) if at.unit + 1 < len(self._sizes) else _Cursor(at.epoch + 1, 0, 0)

    def _load(self, at: _Cursor, unit: int) -> tuple[Any, np.ndarray | None]:
        """The rows of a unit and the order they are given in, the next unit asked for meanwhile."""
        if self._held is None or self._held[0] != (at.epoch, unit):
            self._held = None  # a unit that cannot be read has spoilt the buffer
            order = self._order_of(at.epoch)
            for following in order[at.unit + 1 : at.unit + 2]:
                self._units.fetch(int(following))
            values, permutation, path = self._units.load(unit), None, self._source.path
            places = self._column_places(self.axes, path)
            values = values if places is None else values[:, places]
            if self._shuffled:
                permutation = generator(self._seed, "rows", at.epoch, unit).permutation(int(self._sizes[unit]))
            self._held = ((at.epoch, unit), values, permutation)
        return self._held[1], self._held[2]
