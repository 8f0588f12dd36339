"""Rows from standard input: what another program writes, as soon as it is there."""

from __future__ import annotations

import csv
import io
import select
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv

from npmdask.errors import BadInputError, closest
from npmdask.storage.formats.numpy_files import npy_header
from npmdask.storage.formats.tables import is_header
from npmdask.storage.streams.base import require_count
from npmdask.storage.streams.iterator import Rows

BLOCK_BYTES = 2**20
GATHER_SECONDS = 0.002  # a pipe holds 64 KiB: lines parsed in such pieces take up to 9 times as long
NAME = "standard input"


def standard_input(
    format: str, *, columns: int, file: Any = None, header: bool | None = None, non_finite: str = "refuse"
) -> Rows:
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
        "float32": lambda: _raw(source, columns),
    }
    if format not in openers:
        raise BadInputError(f"unknown format {format!r}: {closest(str(format), list(openers))}")
    rows = Rows(openers[format](), columns=columns, non_finite=non_finite, name=NAME)
    return rows


def _arriving(file: Any) -> Iterator[bytes]:
    """What is there, up to a block: a full block is never waited for, only its first byte."""
    while block := _some(file, BLOCK_BYTES):
        parts, size = [block], len(block)
        while size < BLOCK_BYTES and _more_waits(file) and (block := _some(file, BLOCK_BYTES - size)):
            parts.append(block)
            size += len(block)
        yield b"".join(parts)


def _some(file: Any, size: int) -> bytes:
    """At least one byte; nothing at the end."""
    while (block := file.read1(size)) is None:  # a descriptor that was set not to block
        select.select([file], [], [])
    return bytes(block)


def _more_waits(file: Any) -> bool:
    """Whether there is more now or in a moment. A block read by ``read1`` leaves nothing in the buffer of ``file``."""
    try:
        return bool(select.select([file], [], [], GATHER_SECONDS)[0])
    except (io.UnsupportedOperation, TypeError, ValueError):
        return True  # not a file of the operating system: it has all it will ever have


def _raw(file: Any, columns: int) -> Iterator[np.ndarray]:
    wide, rest, rows = 4 * columns, b"", 0
    for block in _arriving(file):
        rest += block
        whole = len(rest) // wide
        if whole:
            yield np.frombuffer(rest, "<f4", whole * columns).reshape(whole, columns)
            rest, rows = rest[whole * wide :], rows + whole
    if rest:
        raise BadInputError(
            f"{NAME} ends in row {rows}, after {len(rest)} of its {wide} bytes: the program that writes it was cut "
            f"off, or its rows have not {columns} float32 values"
        )


def _npy(file: Any, columns: int) -> Iterator[np.ndarray]:
    arrays = 0
    while head := file.read(1):
        where = f"array {arrays} of {NAME}"
        try:
            shape, fortran, dtype = npy_header(cast(BinaryIO, _Resumed(head, file)), where)
        except (ValueError, EOFError) as error:
            if isinstance(error, BadInputError):
                raise
            raise BadInputError(f"{where} is not what numpy.save writes ({error}): write it with that") from error
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


class _Resumed:
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
                named(tuple(name.strip() for name in names))
                block, line = block[after:], 2
        if block.strip():
            yield _parse(block, columns, line)
        line += block.count(b"\n")


def _whole_lines(file: Any) -> Iterator[bytes]:
    parts: list[bytes] = []
    for block in _arriving(file):
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
        table = pa.csv.read_csv(
            pa.BufferReader(block),
            read_options=pa.csv.ReadOptions(column_names=names, use_threads=False),
            convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float64()), null_values=[]),
        )
    except pa.ArrowInvalid as error:
        last = line + block.count(b"\n") - 1
        raise BadInputError(
            f"{NAME}: lines {line} to {last} are not all {columns} numbers with commas between them ({error}); correct "
            "what is sent"
        ) from error
    return np.stack([column.to_numpy() for column in table.columns]).T
