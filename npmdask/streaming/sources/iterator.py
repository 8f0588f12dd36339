"""Rows out of a Python iterator: batches of any and of varying size, forwards only."""

from __future__ import annotations

import csv
import io
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, cast

import numpy as np
from scipy.sparse import issparse

from npmdask.containers.containers import labels_of, values_of
from npmdask.core.storage.checksum import fingerprint
from npmdask.core.storage.columns import names_of_rows
from npmdask.core.storage.kinds import real_array
from npmdask.core.storage.labels import of_columns
from npmdask.errors import BadInputError, Later, NpmdaskError, RefusedError, require, require_known
from npmdask.formats.numpy_files import npy_header
from npmdask.formats.tables import is_header
from npmdask.streaming.sources import BatchedStream, Position, RowBlock, count_of, require_count, require_same

pa = Later("pyarrow", "ingest")
pa_csv = Later("pyarrow.csv", "ingest")

_AT_ONCE = (0, 0, 0)  # array that is pending, row of it, rows that this read has taken


class Drawn:
    """Arrays out of an iterator, each checked. After a failure every further draw fails in the same way.

    A generator that has raised looks afterwards like one that has ended: rows would be missing unnoticed.
    """

    def __init__(self, iterator: Iterator[Any], name: str, places: Callable[[Any, str], np.ndarray | None]) -> None:
        self._iterator, self._name, self._places = iterator, name, places
        self._rows = 0
        self._failure: NpmdaskError | None = None

    def draw(self, columns: int | None) -> Any | None:
        """The next array, or None at the end."""
        if self._failure is not None:
            raise self._failure
        self._failure = BadInputError(f"{self._position} was interrupted: {self._remedy}")  # unless this goes well
        try:
            values = next(self._iterator, None)
            if values is not None:
                given, values = values, _checked(values_of(values), columns, self._position)
                places = self._places(given, self._position)
                values = values if places is None else values[:, places]
                self._rows += values.shape[0]
        except NpmdaskError as error:
            self._failure = error
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            self._failure = BadInputError(f"{self._position} failed ({said}): correct it; {self._remedy}")
            raise self._failure from error
        self._failure = None
        return values

    def drop(self, rows: int, columns: int) -> list[Any]:
        """Pass over ``rows`` rows; what is left of the last array."""
        while rows:
            values = self.draw(columns)
            if values is None:
                raise RefusedError(
                    f"{self._name} has shrunk: it ends after {self._rows} rows, but the position is after "
                    f"{self._rows + rows}; give the same rows again from the first on, or start again"
                )
            if values.shape[0] > rows:
                return [values[rows:]]
            rows -= values.shape[0]
        return []

    @property
    def _position(self) -> str:
        return f"{self._name}, after row {self._rows}," if self._rows else f"{self._name}, at its first rows,"

    @property
    def _remedy(self) -> str:
        return "start it again from its first row and seek to the last position"


class IteratorRows(BatchedStream):
    """A stream out of ``source``: an iterator of arrays (n x d, also sparse), or a callable that starts a fresh one.

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
        gaps: str = "refuse",
        name: str = "the iterator",
    ) -> None:
        self._source, self._name = source, name
        self._drawn, self._pending = self._start(), list[Any]()
        columns = None if columns is None else require_count(columns, "columns")
        if columns is None:
            first = self._drawn.draw(None)
            if first is None:
                raise BadInputError(f"{name} holds no rows: it has no data to analyse")
            columns, self._pending = int(first.shape[1]), [first]
        super().__init__(columns, non_finite, gaps)
        self._cursor = _AT_ONCE

    def _start(self) -> Drawn:
        source = self._source() if callable(self._source) else self._source
        try:
            return Drawn(iter(source), self._name, self._places_of)
        except TypeError:
            raise BadInputError(
                f"{self._name} is a {type(source).__name__}: pass an iterable of arrays (rows x columns), or a "
                "callable that returns one"
            ) from None

    def follow(self, compare: Callable[[Any, str], Any]) -> None:
        """Also of the array that was drawn to see the width."""
        super().follow(compare)
        places = self._column_places(self.axes, self._name) if self._pending else None
        self._pending = [values if places is None else values[:, places] for values in self._pending]

    def _places_of(self, given: Any, where: str) -> np.ndarray | None:
        labels = labels_of(given) if self.header is None else of_columns(self.header)
        return self._column_places(() if labels is None else labels.columns, where)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the width: what an iterator will give cannot be known."""
        return fingerprint({"stream": "iterator", "columns": self._columns}, [])

    @property
    def position(self) -> Position:
        """Number of rows that were given, and of those left out."""
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
            self._pending = self._skip_rows(given + skipped)
        elif callable(self._source):
            drawn = self._start()
            self._pending = drawn.drop(given + skipped, self._columns)
            self._drawn = drawn
        else:
            raise RefusedError(
                f"{self._name} is at row {self._rows_read + self._skipped} and cannot go to row {given + skipped}: "
                "pass a new one that starts at its first row, or a callable that returns one"
            )
        self._cursor, self._rows_read, self._skipped = _AT_ONCE, given, skipped

    def _skip_rows(self, rows: int) -> list[Any]:
        held, self._pending = self._pending, []
        for values in held:  # at most one, drawn to see the width
            if values.shape[0] > rows:
                return [values[rows:]]
            rows -= values.shape[0]
        return self._drawn.drop(rows, self._columns)

    def _take(self, limit: int) -> RowBlock | None:
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
        return RowBlock(values[row:stop], lambda i: f"row {first + i} of {self._name}")

    def _after_read(self) -> None:
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
    require(0 not in values.shape, f"{where} gave an empty batch of shape {values.shape}: leave empty batches out")
    if values.dtype.kind not in "iufb":
        raise BadInputError(f"{where} gave values of type {values.dtype}: give real numbers, as batch.astype(float)")
    if columns is not None and values.shape[1] != columns:
        raise BadInputError(
            f"{where} gave rows of {values.shape[1]} numbers and {columns} are expected: every batch needs the same "
            "columns"
        )
    return values


# Rows from standard input: what another program writes, as soon as it is there.


BLOCK_BYTES = 2**20
GATHER_SECONDS = 0.002  # a pipe holds 64 KiB: lines parsed in such pieces take up to 9 times as long
NAME = "standard input"


def standard_input(
    format: str,
    *,
    columns: int,
    file: Any = None,
    header: bool | None = None,
    non_finite: str = "refuse",
    gaps: str = "refuse",
) -> IteratorRows:
    """A stream of the rows (``columns`` numbers each) that arrive on standard input, or on a binary ``file``.

    ``format``: "csv" (commas; ``header``: whether the first line holds names, None: if any field of it is not a
    number), "npy" (one or more arrays as ``numpy.save`` writes them, one behind the other) or "float32" (plain
    values, little-endian).

    The position is the number of rows. After a kill the same rows have to be sent again from the first one on;
    ``seek`` passes over those that were used.
    """
    columns = require_count(columns, "columns")
    source = sys.stdin.buffer if file is None else file

    def named(names: tuple[str, ...]) -> None:
        rows.header = names

    openers: dict[str, Callable[[], Iterator[np.ndarray]]] = {
        "csv": lambda: _csv(source, columns, header, named),
        "npy": lambda: _npy(source, columns),
        "float32": lambda: _float32_rows(source, columns),
    }
    require_known(format, openers, "unknown format")
    rows = IteratorRows(openers[format](), columns=columns, non_finite=non_finite, gaps=gaps, name=NAME)
    return rows


def _available_blocks(file: Any) -> Iterator[bytes]:
    """Yield what is there, up to a block: a full block is never waited for, only its first byte."""
    while block := _read_available(file, BLOCK_BYTES):
        parts, size = [block], len(block)
        while size < BLOCK_BYTES and _is_readable_soon(file) and (block := _read_available(file, BLOCK_BYTES - size)):
            parts.append(block)
            size += len(block)
        yield b"".join(parts)


def _read_available(file: Any, size: int) -> bytes:
    """At least one byte; nothing at the end."""
    while (block := file.read1(size)) is None:  # a descriptor that was set not to block
        select.select([file], [], [])
    return bytes(block)


def _is_readable_soon(file: Any) -> bool:
    """Say whether more comes in a moment. A block read by ``read1`` leaves nothing in the buffer of ``file``."""
    try:
        return bool(select.select([file], [], [], GATHER_SECONDS)[0])
    except (io.UnsupportedOperation, TypeError, ValueError):
        return True  # not a file of the operating system: it has all it will ever have


def _float32_rows(file: Any, columns: int) -> Iterator[np.ndarray]:
    wide, rest, rows = 4 * columns, b"", 0
    for block in _available_blocks(file):
        rest += block
        whole = len(rest) // wide
        if whole:
            yield np.frombuffer(rest, "<f4", whole * columns).reshape(whole, columns)
            rest, rows = rest[whole * wide :], rows + whole
    if rest:
        raise BadInputError(
            f"{NAME} ends in row {rows}, after {len(rest)} of its {wide} bytes: the program that writes it was cut "
            f"off, or its rows do not have {columns} float32 values"
        )


def _npy(file: Any, columns: int) -> Iterator[np.ndarray]:
    arrays = 0
    while head := file.read(1):
        where = f"array {arrays} of {NAME}"
        try:
            shape, fortran, dtype = npy_header(cast(BinaryIO, _PrefixedFile(head, file)), where)
        except (ValueError, EOFError) as error:
            if isinstance(error, BadInputError):
                raise
            raise BadInputError(
                f"{where} is not in the format of numpy.save ({error}): write it with numpy.save"
            ) from error
        if len(shape) != 2 or shape[1] != columns or (fortran and min(shape) > 1):
            order = "column-major " if fortran else ""
            raise BadInputError(
                f"{where} is a {order}array of shape {shape}: rows of {columns} numbers in C order are expected; write "
                "numpy.ascontiguousarray(batch)"
            )
        yield from _npy_rows(file, shape, dtype, where)
        arrays += 1


def _npy_rows(file: Any, shape: tuple[int, ...], dtype: np.dtype, where: str) -> Iterator[np.ndarray]:
    rows, columns = shape
    step = max(1, BLOCK_BYTES // max(1, columns * dtype.itemsize))
    for first in range(0, rows, step):
        count = min(step, rows - first)
        data = file.read(count * columns * dtype.itemsize)
        if len(data) < count * columns * dtype.itemsize:
            raise BadInputError(f"{where} ends before its {rows} rows: the program that writes it was cut off")
        yield np.frombuffer(data, dtype).reshape(count, columns)


class _PrefixedFile:
    """A file whose first byte was read already, to see whether there is one."""

    def __init__(self, head: bytes, file: Any) -> None:
        self._head, self._file = head, file

    def read(self, size: int) -> bytes:
        head, self._head = self._head[:size], self._head[size:]
        return head + (self._file.read(size - len(head)) if size > len(head) else b"")


def _csv(
    file: Any, columns: int, header: bool | None, named: Callable[[tuple[str, ...]], None]
) -> Iterator[np.ndarray]:
    first, line = True, 1
    for block in _whole_lines(file):
        if first:
            first, after = False, block.index(b"\n") + 1
            names = _fields(block[:after])
            if header or (header is None and is_header(names, NAME)):
                if names_of_rows([name.strip() for name in names]):
                    raise BadInputError(f"{NAME}: the first column has no name, as names of rows have: leave it out")
                named(tuple(name.strip() for name in names))
                block, line = block[after:], 2
        if block.strip():
            yield _parse(block, columns, line)
        line += block.count(b"\n")


def _whole_lines(file: Any) -> Iterator[bytes]:
    parts: list[bytes] = []
    for block in _available_blocks(file):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join([*parts, block[:cut]])
            parts = []
        parts.append(block[cut:])
    if last := b"".join(parts):
        yield last + b"\n"


def _fields(line: bytes) -> list[str]:
    return next(csv.reader([line.decode("utf-8-sig", "replace")]), [])


def _parse(block: bytes, columns: int, line: int) -> np.ndarray:
    names = [str(i) for i in range(columns)]
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(block),
            read_options=pa_csv.ReadOptions(column_names=names, use_threads=False),
            convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float64()), null_values=[]),
        )
    except pa.ArrowInvalid as error:
        last = line + block.count(b"\n") - 1
        raise BadInputError(
            f"{NAME}: lines {line} to {last} do not all have {columns} comma-separated numbers ({error}); correct "
            "the input"
        ) from error
    return np.stack([column.to_numpy() for column in table.columns]).T
