"""Rows out of a Python iterator: batches of any and of varying size, forwards only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from scipy.sparse import issparse

from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from npmdask.storage.checksum import fingerprint
from npmdask.storage.kinds import real_array
from npmdask.storage.streams.base import Position, count_of, require_count, require_same
from npmdask.storage.streams.batches import BatchedStream, Piece

_AT_ONCE = (0, 0, 0)  # array that is pending, row of it, rows that this read has taken


class Drawn:
    """Arrays out of an iterator, each checked. After a failure every further draw fails in the same way.

    A generator that has raised looks afterwards like one that has ended: rows would be missing unnoticed.
    """

    def __init__(self, iterator: Iterator[Any], name: str) -> None:
        self._iterator, self._name = iterator, name
        self._rows = 0
        self._failure: NpmdaskError | None = None

    def draw(self, columns: int | None) -> Any | None:
        """The next array, or None at the end."""
        if self._failure is not None:
            raise self._failure
        self._failure = BadInputError(f"{self._where} was interrupted: {self._again}")  # unless this goes well
        try:
            values = next(self._iterator, None)
            if values is not None:
                values = _checked(values, columns, self._where)
                self._rows += values.shape[0]
        except NpmdaskError as error:
            self._failure = error
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            self._failure = BadInputError(f"{self._where} failed ({said}): correct it; {self._again}")
            raise self._failure from error
        self._failure = None
        return values

    def drop(self, rows: int, columns: int) -> list[Any]:
        """Pass over ``rows`` rows; what is left of the last array."""
        while rows:
            values = self.draw(columns)
            if values is None:
                raise RefusedError(
                    f"{self._name} has shrunk: it ends after {self._rows} rows and the position is behind "
                    f"{self._rows + rows}; give it the same rows again from the first on, or start anew"
                )
            if values.shape[0] > rows:
                return [values[rows:]]
            rows -= values.shape[0]
        return []

    @property
    def _where(self) -> str:
        return f"{self._name}, after row {self._rows}," if self._rows else f"{self._name}, at its first rows,"

    @property
    def _again(self) -> str:
        return "start it again from its first row and seek to the last position"


class Rows(BatchedStream):
    """A stream out of ``source``: an iterator of arrays (n x d, also sparse), or a callable that starts one anew.

    ``columns`` is the width d; without it the first array is drawn at once to see it. An array is copied before
    the next one is drawn if it is still needed, so that an iterator may use its memory again.

    The position is the number of rows. ``seek`` accepts the one that the stream is at; from a *fresh* iterator,
    which gives the same rows as the first one from the first row on, it passes over the rows before the
    position; a callable is called again for every other position.
    """

    def __init__(
        self,
        source: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        columns: int | None = None,
        non_finite: str = "refuse",
        name: str = "the iterator",
    ) -> None:
        self._source, self._name = source, name
        self._drawn, self._pending = self._start(), list[Any]()
        columns = None if columns is None else require_count(columns, "columns")
        if columns is None:
            first = self._drawn.draw(None)
            if first is None:
                raise BadInputError(f"{name} holds no rows: there is nothing in it to analyse")
            columns, self._pending = int(first.shape[1]), [first]
        super().__init__(columns, non_finite)
        self._cursor = _AT_ONCE

    def _start(self) -> Drawn:
        source = self._source() if callable(self._source) else self._source
        try:
            return Drawn(iter(source), self._name)
        except TypeError:
            raise BadInputError(
                f"{self._name} is a {type(source).__name__}: pass an iterable of arrays (rows x columns), or a "
                "callable that returns one"
            ) from None

    @property
    def fingerprint(self) -> str:
        """Of the width: what an iterator will give cannot be known."""
        facts = {"stream": "iterator", "columns": self._columns}
        return fingerprint(facts, [])

    @property
    def position(self) -> Position:
        """How many rows were given and left out."""
        return {"rows_read": self._rows_read, "skipped": self._skipped, "columns": self._columns}

    def seek(self, position: Position) -> None:
        """Go to ``position``, forwards from a fresh iterator.

        Raises
        ------
        RefusedError
            The iterator was read from already, or it ends before the position.
        """
        require_same(position, {"columns": self._columns}, self._name)
        given, skipped = count_of(position, "rows_read"), count_of(position, "skipped")
        if (given, skipped) == (self._rows_read, self._skipped):
            return
        if self._rows_read + self._skipped == 0:
            self._pending = self._pass_over(given + skipped)
        elif callable(self._source):
            drawn = self._start()
            self._pending = drawn.drop(given + skipped, self._columns)
            self._drawn = drawn
        else:
            raise RefusedError(
                f"{self._name} is at row {self._rows_read + self._skipped} and cannot go to row {given + skipped}: "
                "only a fresh one can, started from its first row; or pass a callable that starts it anew"
            )
        self._cursor, self._rows_read, self._skipped = _AT_ONCE, given, skipped

    def _pass_over(self, rows: int) -> list[Any]:
        held, self._pending = self._pending, []
        for values in held:  # at most one, drawn to see the width
            if values.shape[0] > rows:
                return [values[rows:]]
            rows -= values.shape[0]
        return self._drawn.drop(rows, self._columns)

    def _take(self, limit: int) -> Piece | None:
        index, row, taken = self._cursor
        if index == len(self._pending):
            if self._pending:
                self._pending[-1] = self._pending[-1].copy()  # the iterator may use its memory again
            values = self._drawn.draw(self._columns)
            if values is None:
                return None
            self._pending.append(values)
        values = self._pending[index]
        stop = min(row + limit, values.shape[0])
        place = (index, stop) if stop < values.shape[0] else (index + 1, 0)
        self._cursor = (*place, taken + stop - row)
        first = self._rows_read + self._skipped + taken
        return Piece(values[row:stop], lambda i: f"row {first + i} of {self._name}")

    def _settle(self) -> None:
        """Let go of what was given."""
        index, row, _ = self._cursor
        self._pending = [self._pending[index][row:]] if index < len(self._pending) else []
        self._cursor = _AT_ONCE


def _checked(values: Any, columns: int | None, where: str) -> Any:
    """``values`` as an array or CSR matrix of real numbers with at least one row and ``columns`` columns."""
    values = values.tocsr() if issparse(values) else real_array(values, f"{where} gave values")
    if values.ndim != 2:
        raise BadInputError(
            f"{where} gave an array of shape {values.shape}: give rows x columns, a single row as row.reshape(1, -1)"
        )
    if 0 in values.shape:
        raise BadInputError(f"{where} gave an empty batch of shape {values.shape}: leave empty batches out")
    if values.dtype.kind not in "iufb":
        raise BadInputError(f"{where} gave values of type {values.dtype}: give real numbers, as batch.astype(float)")
    if columns is not None and values.shape[1] != columns:
        raise BadInputError(
            f"{where} gave rows of {values.shape[1]} numbers and {columns} are expected: every batch needs the same "
            "columns"
        )
    return values
