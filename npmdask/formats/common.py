"""Share what every format needs: the two kinds of source, their error messages, the shapes that are accepted, values as
plain bytes and as text, temporary files, and rows of arrays that are stored in chunks.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
import zarr
from scipy import sparse

from npmdask.core.storage.columns import genotypes
from npmdask.core.storage.conventions import ALONG, the_only
from npmdask.core.storage.labels import Axis, Labels
from npmdask.core.storage.readers.dense import DenseReader, ReadStats
from npmdask.errors import BadInputError, CommitError, Later, NpmdaskError, RefusedError, closest, require
from npmdask.writers.layouts import storage_dtype

pa = Later("pyarrow", "ingest")
pa_csv = Later("pyarrow.csv", "ingest")

MOST_EMPTY_ROWS = 10**8

Item = TypeVar("Item")
Rows = TypeVar("Rows", np.ndarray, sparse.csr_matrix)


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """Facts known of a file before its values are read; ``rows`` is None where only reading to the end tells.

    ``facts``: what decided how its values are read, beside the options (attributes that decode them); ``header``: the
    line of text that was taken for the names of the columns; ``labels``: what they are called; ``notes``: what was
    decided that their owner may not expect; ``row_names`` reads what the rows of a table are called. ``refuse_marked``
    is called when a value is not finite: it raises where the file says that this means "missing".
    """

    format: str
    rows: int | None
    columns: int
    dtype: np.dtype
    facts: dict[str, Any] = field(default_factory=dict)
    header: tuple[str, ...] | None = None
    labels: Labels | None = None
    notes: tuple[str, ...] = ()
    row_names: Callable[[], Axis | None] = lambda: None
    refuse_marked: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class DenseSource(FileSource):
    """``batches(start)`` yields rows (b x columns) from row ``start`` on; memory is reused by the next batch.

    ``keys(names)`` yields Arrow tables of columns of any type, for all rows in their order; None: there are no names.
    """

    batches: Callable[[int], Iterator[np.ndarray]]
    keys: Callable[[Sequence[str]], Iterator[Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class SparseSource(FileSource):
    """``batches(start)`` yields canonical CSR matrices (b x columns) from row ``start`` on.

    Batches end at rows that depend on the file only, never on where reading began: the writer's column sums
    are then formed in the same order after a kill.
    """

    batches: Callable[[int], Iterator[sparse.csr_matrix]]


def after(start: int, batches: Iterator[Rows], row: int = 0) -> Iterator[Rows]:
    """Those of ``batches``, whose first row is ``row``, that lie at ``start`` or behind it."""
    for batch in batches:
        if row + batch.shape[0] > start:
            yield batch[max(0, start - row) :]
        row += batch.shape[0]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a library raises about a broken file into a sentence that names the file.

    That is any exception: tokenisers, decompressors and parsers have families of their own.
    """
    try:
        yield
    except NpmdaskError:
        raise
    except Exception as error:
        errno = getattr(error, "errno", None)
        if isinstance(error, OSError) and errno and not isinstance(error, FileNotFoundError):
            # The device or the network failed, not the content: what is written so far stays good.
            raise RefusedError(
                f"{path} cannot be read ({error.strerror or error}); once that is fixed, run the same "
                "command again: it continues from what is written"
            ) from error
        raise BadInputError(
            f"{path} cannot be read ({type(error).__name__}: {error}): it is truncated, corrupt or not "
            "what its name says; fetch or write it again, then ingest it again"
        ) from error


def require_regular_file(path: Path) -> None:
    """Raise BadInputError for a FIFO or a device: it would be waited for, and ends when it likes, if ever."""
    if path.exists() and not path.is_file():
        raise BadInputError(
            f"{path} is a FIFO or a device, but a source is read more than once: write it to a file first, or pipe "
            "the rows into `npmdask stream -`"
        )


def require_rows(path: Path, rows: int, entries: int) -> None:
    """Raise BadInputError for a size line by which nearly all of very many rows would be empty: nothing would end."""
    if rows > MOST_EMPTY_ROWS and rows > 100 * entries:
        raise BadInputError(
            f"{path} declares {rows} rows and {entries} entries, so most rows would be empty: correct its size line, "
            "or leave out the empty rows"
        )


def guarded(path: Path, batches: Iterator[Item]) -> Generator[Item, None, None]:
    """The same batches, with errors of reading (not of the consumer) turned into sentences."""
    while True:
        with reading(path):
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield batch


def truncated(path: Path, detail: str) -> BadInputError:
    return BadInputError(f"{path} is truncated or corrupt: {detail}; fetch or write it again, then ingest it again")


def require_2d(shape: Sequence[int], where: str) -> tuple[int, int]:
    """Rows and columns of a matrix that has both."""
    if len(shape) != 2:
        more = "; or pass kind='matrices' if it holds a square matrix for each record" if len(shape) == 3 else ""
        more += ", or kind='tensor' for a symmetric tensor" if len(shape) == 3 and len(set(shape)) == 1 else ""
        more += f"; {ALONG}" if len(shape) > 2 else ""
        raise BadInputError(
            f"{where} has shape {tuple(shape)}: rows and columns are needed; reshape it to two dimensions "
            f"and save it again, for example with array.reshape(len(array), -1){more}"
        )
    require(0 not in shape, f"{where} has shape {tuple(shape)}: it has no data to analyse")
    return (int(shape[0]), int(shape[1]))


def require_numbers(dtype: np.dtype, where: str) -> np.dtype:
    """The dtype that values of ``dtype`` are stored in, or an error that names ``where`` they are."""
    if np.dtype(dtype).hasobject:
        raise BadInputError(
            f"{where} holds Python objects, which would have to be unpickled (and unpickling can run any code); "
            "convert it with array.astype(float) and save it again"
        )
    try:
        return storage_dtype(dtype)
    except BadInputError as error:
        raise BadInputError(f"{where}: {error}") from None


def choose_array(
    path: Path,
    dataset: str | None,
    shapes: dict[str, tuple[int, ...]],
    dimensions: int = 2,
    nodes: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """The array that is meant: ``dataset``, or the only one with so many dimensions (:func:`the_only`)."""
    if dataset is not None:
        name = dataset.strip("/")
        if name not in shapes:
            raise BadInputError(f"{path} has no array {dataset!r}: {closest(name, list(shapes)) if shapes else 'none'}")
        return name
    if "call_genotype" in shapes:
        raise genotypes(str(path))
    only, found = the_only(shapes, dimensions, nodes)
    if only is not None:
        return only
    shown = {name: shapes[name] for name in sorted(found or shapes)[:20]}
    listed = ", ".join(f"{name} {shape}" for name, shape in shown.items()) or "nothing"
    alike = len(found) > 1 and all(len(shapes[name]) == dimensions for name in found)
    several = f"several {dimensions}-D arrays" if alike else "an array that belongs to another, or to a larger one"
    reason = f"{several}: choose one with dataset=" if found else f"no {dimensions}-D array; there is"
    remedy = f"; {ALONG}" if any(len(shape) > dimensions for shape in shown.values()) else ""
    raise BadInputError(f"{path} has {reason} ({listed}){remedy}")


# Values as plain bytes: rows out of streams and of column-major files, and temporary files of our own.

BATCH_BYTES = 8 * 2**20
COLUMN_BATCH_BYTES = 64 * 2**20  # most for column-major files, whose reads become too short otherwise


def batch_rows(row_bytes: int) -> int:
    """Return how many rows of ``row_bytes`` bytes make a batch."""
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


# Rows of 2-D arrays that are stored in chunks (HDF5, Zarr), every chunk decoded once.

SLAB_BYTES = 256 * 2**20  # a row of chunks that decodes to more goes through a spool on disk


def grid_rows(
    opener: Callable[[], AbstractContextManager[Any]],
    shape: tuple[int, int],
    chunks: tuple[int, int],
    dtype: np.dtype,
    spool: Path,
    start: int,
) -> Iterator[np.ndarray]:
    """Rows of anything that slices like an array."""
    if too_wide(shape, chunks, dtype):
        with opener() as array:
            reader = spool_grid(partial(_block_of, array, chunks), shape, chunks, dtype, spool)
        yield from tile_rows(reader, start)
        return
    wide = shape[1] * dtype.itemsize
    height = chunks[0] if chunks[0] * wide <= SLAB_BYTES else 1
    step = max(height, batch_rows(wide) // height * height)  # whole chunks if they fit into memory
    with opener() as array:
        while start < shape[0]:
            stop = min(shape[0], (start // step + 1) * step)
            yield np.asarray(array[start:stop])
            start = stop


def too_wide(shape: tuple[int, int], chunks: tuple[int, int], dtype: np.dtype) -> bool:
    """Say whether the array is cut into columns and a row of its chunks, decoded, takes too much memory."""
    return chunks[1] < shape[1] and min(chunks[0], shape[0]) * shape[1] * dtype.itemsize > SLAB_BYTES


def that_fit(size: int) -> int:
    """Return how many pieces of ``size`` bytes may be in memory at once: at least one."""
    return max(1, SLAB_BYTES // size)


def _block_of(array: Any, chunks: tuple[int, int], slab: int, column: int) -> np.ndarray:
    top, left = slab * chunks[0], column * chunks[1]
    return np.asarray(array[top : top + chunks[0], left : left + chunks[1]])


def tile_rows(reader: DenseReader, start: int) -> Iterator[np.ndarray]:
    """Rows of a Zarr array, every chunk read once, checksums compared where there are any."""
    buffer = np.empty((reader.tile_rows, reader.shape[1]), reader.dtype)
    for slab in range(start // reader.chunks[0], reader.grid[0]):
        for rows, tile in reader.tiles(slab, ReadStats()):
            if rows.stop <= start:
                continue
            whole = buffer[: rows.stop - rows.start]
            for columns, values in tile:
                whole[:, columns] = values
            yield whole[max(0, start - rows.start) :]


def spool_grid(
    block: Callable[[int, int], np.ndarray],
    shape: tuple[int, int],
    chunks: tuple[int, int],
    dtype: np.dtype,
    spool: Path,
) -> DenseReader:
    """The same chunks uncompressed in a temporary array, where a part of a chunk can be read.

    For arrays cut into columns, of which every row batch would otherwise decode every chunk.
    """
    chunks = (min(chunks[0], shape[0]), min(chunks[1], shape[1]))
    with spooling(spool):
        array = zarr.create_array(spool / "grid", shape=shape, chunks=chunks, dtype=dtype, compressors=None,
                                  config={"write_empty_chunks": True}, overwrite=True)  # fmt: skip
    reader = DenseReader(array=array)
    for slab in range(reader.grid[0]):
        for column in range(reader.grid[1]):
            values = block(slab, column)
            with spooling(spool):
                array[reader.slab_rows(slab), reader.slab_columns(column)] = values
    return reader
