"""Values as plain bytes: rows out of streams and of column-major files, and temporary files of our own."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from npmdask.errors import CommitError, Later
from npmdask.storage.formats.common import truncated

pa = Later("pyarrow", "ingest")
pa_csv = Later("pyarrow.csv", "ingest")

BATCH_BYTES = 8 * 2**20
COLUMN_BATCH_BYTES = 64 * 2**20  # most for column-major files, whose reads become too short otherwise


def batch_rows(row_bytes: int) -> int:
    """How many rows of so many bytes make a batch."""
    return max(1, BATCH_BYTES // row_bytes)


def open_binary(path: Path) -> BinaryIO:
    """The file's bytes, decompressed if they begin like gzip."""
    return cast(BinaryIO, gzip.open(path, "rb")) if is_gzip(path) else open(path, "rb")


def is_gzip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def read_into(file: BinaryIO, array: np.ndarray) -> int:
    """Fill ``array`` (C order) from ``file``; how many bytes there were, fewer only at the end."""
    view, got = array.reshape(-1).view(np.uint8).data, 0
    while got < len(view):
        count = file.readinto(view[got:])  # type: ignore[attr-defined]
        if not count:
            break
        got += count
    return got


def require_size(path: Path, offset: int, expected: int) -> None:
    """Raise unless ``expected`` bytes lie behind ``offset``."""
    got = path.stat().st_size - offset
    if got != expected:
        raise truncated(path, f"its values take {got} bytes and its header says {expected}")


def row_major(
    path: Path,
    opener: Callable[[], BinaryIO],
    offset: int,
    shape: tuple[int, int],
    dtype: np.dtype,
    start: int,
) -> Iterator[np.ndarray]:
    """Rows of a C-order array that begins at byte ``offset`` of a plain, gzip or zip stream."""
    rows, columns = shape
    wide = columns * dtype.itemsize
    buffer = np.empty((min(rows, batch_rows(wide)), columns), dtype)
    with opener() as file:
        file.seek(offset + start * wide)
        for first in range(start, rows, len(buffer)):
            part = buffer[: rows - first]
            got = read_into(file, part)
            if got < part.nbytes:
                raise truncated(path, f"it ends in row {first + got // wide} of {rows}")
            yield part
        if file.read(1):  # this read also compares the checksum of gzip and zip
            raise truncated(path, f"there are more bytes than {rows} rows of {columns} take")


def column_major(path: Path, offset: int, shape: tuple[int, int], dtype: np.dtype, start: int) -> Iterator[np.ndarray]:
    """Rows of a Fortran-order array in a plain file: a piece of every column for each batch."""
    rows, columns = shape
    wide = columns * dtype.itemsize
    # Pieces below a page would read the file several times over, so wide matrices get larger batches.
    step = max(2 * BATCH_BYTES // wide, min(4096 // dtype.itemsize, COLUMN_BATCH_BYTES // wide), 1)
    buffer = np.empty((columns, min(step, rows)), dtype)
    with open(path, "rb", buffering=0) as file:
        for first in range(start, rows, step):
            count = min(step, rows - first)
            for column in range(columns):
                piece = buffer[column, :count]
                position = offset + (column * rows + first) * dtype.itemsize
                if os.preadv(file.fileno(), [piece.view(np.uint8).data], position) < piece.nbytes:
                    raise truncated(path, f"column {column} of {columns} is not all there")
            yield buffer[:, :count].T


# Temporary files


@contextmanager
def spooling(folder: Path) -> Iterator[None]:
    """Around writes to temporary files: a full disk is not the source's fault."""
    try:
        yield
    except OSError as error:
        raise CommitError(
            f"cannot write temporary files to {folder}: {error.strerror or error}. Free some space and run "
            "the same command again"
        ) from error


def spool_file(folder: Path, name: str) -> BinaryIO:
    """A new temporary file, unbuffered: nothing is left to fail when it is closed."""
    with spooling(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return cast(BinaryIO, open(folder / name, "wb", buffering=0))


def spool_write(file: BinaryIO, values: np.ndarray) -> None:
    """All of ``values`` (C order): of a disk that fills up, a raw file takes a part without complaint."""
    view = values.reshape(-1).view(np.uint8).data
    with spooling(Path(file.name).parent):
        while len(view):
            view = view[file.write(view) :]


# Numbers as text, blocks of lines at a time.

TEXT_BYTES = 4 * 2**20  # parsed, a block of lines takes several times as much


def text_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Blocks of whole lines."""
    rest = b""
    while block := file.read(TEXT_BYTES):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield rest + block[:cut]
            rest = block[cut:]
        else:
            rest += block
    if rest.strip():
        yield rest


def parse_lines(block: bytes, types: list[Any], path: Path) -> list[np.ndarray]:
    """The columns of a block of lines; a second try allows for tabs, runs of blanks and comments."""
    try:
        return _parse(block, types)
    except pa.ArrowInvalid:
        try:
            return _parse(_tidy(block), types)
        except pa.ArrowInvalid as error:
            raise truncated(path, f"lines of {len(types)} numbers are expected ({error})") from error


def _tidy(block: bytes) -> bytes:
    block = re.sub(rb"(?m)^[ \t]*%.*\n?", b"", block.replace(b"\r", b""))
    block = re.sub(rb"(?m)^ +| +$", b"", re.sub(rb"[ \t]+", b" ", block))
    return re.sub(rb"(?m)(^| )\+", rb"\1", block)


def _parse(block: bytes, types: list[Any]) -> list[np.ndarray]:
    names = [str(i) for i in range(len(types))]
    if not block.strip():
        return [np.empty(0, kind.to_pandas_dtype()) for kind in types]
    table = pa_csv.read_csv(
        pa.BufferReader(block),
        read_options=pa_csv.ReadOptions(column_names=names),
        parse_options=pa_csv.ParseOptions(delimiter=" ", quote_char=False),
        convert_options=pa_csv.ConvertOptions(column_types=dict(zip(names, types, strict=True)), null_values=[]),
    )
    return [column.to_numpy() for column in table.columns]
