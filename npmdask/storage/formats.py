"""Dense files that people have, as row batches: NumPy, CSV, Parquet, IDX, and the grids of HDF5 and Zarr.

A source knows its shape and dtype at once and gives its rows from any row on, a few MiB at a time, whatever
the size of the file. Nothing is memory-mapped (mapped pages count as memory of the process) and nothing is
ever unpickled.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import zarr

from npmdask.errors import BadInputError, CommitError, NpmdaskError, RefusedError
from npmdask.storage.dense import DenseReader, SlabRecord
from npmdask.storage.writer import storage_dtype

BATCH_BYTES = 8 * 2**20
COLUMN_BATCH_BYTES = 64 * 2**20  # most for column-major files, whose reads become too short otherwise
SLAB_BYTES = 256 * 2**20  # a row of chunks that decodes to more goes through a spool on disk

PAGES = 32  # columns of Parquet that are read at once in large row groups: a page of each is held

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class DenseSource:
    """``batches(start)`` yields rows (b x columns) from row ``start`` on; memory is reused by the next batch.

    ``rows`` is None where only reading to the end tells.
    """

    format: str
    rows: int | None
    columns: int
    dtype: np.dtype
    batches: Callable[[int], Iterator[np.ndarray]]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a library raises about a broken file into a sentence that names the file."""
    try:
        yield
    except NpmdaskError:
        raise
    except Exception as error:
        errno = getattr(error, "errno", None)
        if isinstance(error, OSError) and errno and not isinstance(error, FileNotFoundError):
            # The device or the network failed, not the content: what is written so far stays good.
            raise RefusedError(
                f"{path} cannot be read ({error.strerror or error}); when that is mended run the same "
                "command again: it goes on from what is written"
            ) from error
        known = (
            OSError,
            EOFError,
            ValueError,
            TypeError,
            LookupError,
            RuntimeError,
            OverflowError,
            SyntaxError,
        )
        if isinstance(error, (*known, zipfile.BadZipFile, zlib.error, struct.error, pa.ArrowException)):
            raise BadInputError(
                f"{path} cannot be read ({type(error).__name__}: {error}): it is truncated, corrupt or not "
                "what its name says; fetch or write it again, then ingest it again"
            ) from error
        raise


def guarded(path: Path, batches: Iterator[Item]) -> Generator[Item, None, None]:
    """The same batches, with errors of reading (not of the consumer) turned into sentences."""
    while True:
        with reading(path):
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield batch


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


def truncated(path: Path, detail: str) -> BadInputError:
    return BadInputError(f"{path} is truncated or corrupt: {detail}; fetch or write it again, then ingest it again")


def require_2d(shape: Sequence[int], where: str) -> tuple[int, int]:
    """Rows and columns of a matrix that has both."""
    if len(shape) != 2:
        raise BadInputError(
            f"{where} has shape {tuple(shape)}: rows and columns are needed; reshape it to two dimensions "
            "and save it again, for example with array.reshape(len(array), -1)"
        )
    if 0 in shape:
        raise BadInputError(f"{where} has shape {tuple(shape)}: there is nothing in it to analyse")
    return (int(shape[0]), int(shape[1]))


def require_numbers(dtype: np.dtype, where: str) -> np.dtype:
    """The dtype that values of ``dtype`` are stored in, or an error that names ``where`` they are."""
    if np.dtype(dtype).hasobject:
        raise BadInputError(
            f"{where} holds Python objects, which would have to be unpickled (that can run any code); "
            "convert it with array.astype(float) and save it again"
        )
    try:
        return storage_dtype(dtype)
    except BadInputError as error:
        raise BadInputError(f"{where}: {error}") from None


def open_binary(path: Path) -> BinaryIO:
    """The file's bytes, decompressed if they begin like gzip."""
    file = open(path, "rb")
    magic = file.read(2)
    if magic != b"\x1f\x8b":
        file.seek(0)
        return file
    file.close()
    return cast(BinaryIO, gzip.open(path, "rb"))


def is_gzip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def read_into(file: BinaryIO, array: np.ndarray) -> int:
    """Fill ``array`` (C order) from ``file``; how many bytes there were, fewer only at the end."""
    view, got = memoryview(array.reshape(-1).view(np.uint8)), 0
    while got < len(view):
        count = file.readinto(view[got:])  # type: ignore[attr-defined]
        if not count:
            break
        got += count
    return got


# Raw bytes: row-major (streams) and column-major (positioned reads)


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
    buffer = np.empty((min(rows, max(1, BATCH_BYTES // wide)), columns), dtype)
    with opener() as file:
        file.seek(offset + start * wide)
        for first in range(start, rows, len(buffer)):
            part = buffer[: rows - first]
            got = read_into(file, part)
            if got < part.nbytes:
                raise truncated(path, f"it ends in row {first + got // wide} of {rows}")
            yield part
        if file.read(1):  # this read also makes gzip and zip compare their checksum
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
                if os.preadv(file.fileno(), [piece.view(np.uint8)], position) < piece.nbytes:
                    raise truncated(path, f"column {column} of {columns} is not all there")
            yield buffer[:, :count].T


def raw_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, Fortran order and dtype of an ``.npy`` stream, which is left at the first value."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def npy_header(file: BinaryIO, where: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The same, of numbers only."""
    shape, fortran, dtype = raw_header(file)
    require_numbers(dtype, where)
    return shape, fortran, dtype


def open_npy(path: Path) -> DenseSource:
    with open(path, "rb") as file:
        shape, fortran, dtype = npy_header(file, str(path))
        offset = file.tell()
    rows, columns = require_2d(shape, str(path))
    _require_size(path, path.stat().st_size - offset, rows * columns * dtype.itemsize)

    def batches(start: int) -> Iterator[np.ndarray]:
        if fortran:
            return column_major(path, offset, (rows, columns), dtype, start)
        return row_major(path, lambda: open(path, "rb", buffering=0), offset, (rows, columns), dtype, start)

    return DenseSource(format="npy", rows=rows, columns=columns, dtype=dtype, batches=batches)


def _require_size(path: Path, got: int, expected: int) -> None:
    if got != expected:
        raise truncated(path, f"its values take {got} bytes and its header says {expected}")


def zip_member(path: Path, name: str) -> BinaryIO:
    """A member as a stream; closing it closes the archive (zipfile counts references)."""
    with zipfile.ZipFile(path) as archive:
        return cast(BinaryIO, archive.open(name))


def open_npz_array(path: Path, name: str, spool: Path) -> DenseSource:
    """One 2-D array of a NumPy archive. Fortran order is unpacked to a file first: a zip cannot be sought."""
    where, member = f"array {name!r} of {path}", name + ".npy"
    with zip_member(path, member) as file:
        shape, fortran, dtype = npy_header(file, where)
        offset = file.tell()
    rows, columns = require_2d(shape, where)

    def batches(start: int) -> Iterator[np.ndarray]:
        if not fortran:
            yield from row_major(path, lambda: zip_member(path, member), offset, (rows, columns), dtype, start)
            return
        with spooling(spool):
            spool.mkdir(exist_ok=True)
            flat = open(spool / "columns", "wb")
        with flat:
            opener, swapped = (lambda: zip_member(path, member)), (columns, rows)
            for part in row_major(path, opener, offset, swapped, dtype, 0):
                with spooling(spool):
                    flat.write(part)
        yield from column_major(spool / "columns", 0, (rows, columns), dtype, start)

    return DenseSource(format="npz", rows=rows, columns=columns, dtype=dtype, batches=batches)


IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def open_idx(path: Path) -> DenseSource:
    """MNIST's format: the first dimension is the rows, the others are flattened; big-endian."""
    with open_binary(path) as file:
        zero, code, dimensions = struct.unpack(">HBB", file.read(4))
        if zero or code not in IDX_TYPES or not dimensions:
            raise BadInputError(f"{path} is not an IDX file: it begins with {zero:04x} {code:02x} {dimensions:02x}")
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
    rows, columns = require_2d((shape[0], int(np.prod(shape[1:], dtype=np.int64))), str(path))
    dtype, offset = np.dtype(IDX_TYPES[code]), 4 + 4 * dimensions
    if not is_gzip(path):
        _require_size(path, path.stat().st_size - offset, rows * columns * dtype.itemsize)

    def batches(start: int) -> Iterator[np.ndarray]:
        return row_major(path, lambda: open_binary(path), offset, (rows, columns), dtype, start)

    return DenseSource(format="idx", rows=rows, columns=columns, dtype=dtype, batches=batches)


# Tables


def table_rows(batch: Any, names: Sequence[str], dtype: np.dtype, row: int, path: Path) -> np.ndarray:
    """A record batch whose first row is ``row`` as an array (b x columns)."""
    rows = np.empty((len(names), batch.num_rows), dtype)
    for index, (name, column) in enumerate(zip(names, batch.columns, strict=True)):
        if column.null_count:
            missing = row + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise BadInputError(
                f"{path}: missing value at row {missing}, column {name!r}; impute it or drop the row or the "
                "column, then ingest again (rows count from 0, without a header)"
            )
        rows[index] = column.to_numpy(zero_copy_only=False)
    return rows.T


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _csv_layout(path: Path, header: bool | None, delimiter: str | None) -> tuple[str, bool, list[str], int]:
    """Delimiter, whether there is a header, column names and the bytes of the first line."""
    with open_binary(path) as file:
        line = file.readline(64 * 2**20)
    text = line.decode("utf-8-sig")
    delimiter = delimiter or next((d for d in ",;\t" if d in text), ",")
    fields = [field.strip() for field in next(csv.reader([text], delimiter=delimiter), [])]
    if not fields:
        raise BadInputError(f"{path} is empty: there is nothing in it to analyse")
    counted = [str(i) for i in range(len(fields))]
    if header is None and fields == counted and len(fields) > 2:
        # What pandas writes above nameless columns; taking it for data would go unnoticed.
        raise BadInputError(
            f"{path} begins with 0, 1, 2 to {len(fields) - 1}, which may be column names or data: say which "
            "with header=True or header=False"
        )
    named = any(field and not _is_number(field) for field in fields) if header is None else header
    return delimiter, named, fields if named else counted, len(line)


def open_csv(path: Path, header: bool | None = None, delimiter: str | None = None) -> DenseSource:
    """A table of numbers as text. The first row is a header if any field of it is not a number."""
    delimiter, named, names, line = _csv_layout(path, header, delimiter)
    places = [f"c{i}" for i in range(len(names))]  # names in the file may repeat
    dtype = np.dtype(np.float64)

    def batches(start: int) -> Iterator[np.ndarray]:
        row = start
        try:
            # Opened by Python, so that a failing disk is told from a broken file; one thread, so that Arrow
            # names the line of a bad value.
            with (
                open_binary(path) as file,
                pa.csv.open_csv(
                    file,
                    read_options=pa.csv.ReadOptions(
                        column_names=places,
                        skip_rows_after_names=int(named) + start,
                        block_size=min(2**30, max(2**20, 4 * line)),
                        use_threads=False,
                    ),
                    parse_options=pa.csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=len(names) > 1),
                    convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(places, pa.float64())),
                ) as reader,
            ):
                for batch in reader:
                    if batch.num_rows:
                        yield table_rows(batch, names, dtype, row, path)
                        row += batch.num_rows
        except pa.ArrowInvalid as error:
            raise _csv_error(path, names, str(error)) from error

    return DenseSource(format="csv", rows=None, columns=len(names), dtype=dtype, batches=batches)


def _csv_error(path: Path, names: list[str], message: str) -> BadInputError:
    found = re.search(r"column #(\d+): (?:Row #(\d+): )?.*invalid value '(.*)'", message)
    if found:
        line = f"line {found[2]}, " if found[2] else ""
        return BadInputError(
            f"{path}: {line}column {names[int(found[1])]!r}: {found[3]!r} is not a number; drop or encode "
            "that column, then ingest again"
        )
    return BadInputError(f"{path} is not a table of numbers with {len(names)} columns ({message}); correct it first")


def open_parquet(path: Path, spool: Path) -> DenseSource:
    """A Parquet file, or a folder of parts in the order of their names; numeric columns only.

    Index columns that pandas wrote by itself (``__index_level_0__``) are left out.
    """
    parts = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    names, dtype, counts = _parquet_schema(parts)
    step = max(1, BATCH_BYTES // (len(names) * dtype.itemsize))
    # Without a buffer size Arrow would hold whole row groups, which have no limit.
    buffer = max(4096, BATCH_BYTES // len(names))

    def batches(start: int) -> Iterator[np.ndarray]:
        row = 0
        for part, groups in zip(parts, counts, strict=True):
            if row + sum(groups) <= start:
                row += sum(groups)
                continue
            with pa.parquet.ParquetFile(part, buffer_size=buffer, pre_buffer=False) as file:
                for group, count in enumerate(groups):
                    if row + count > start:
                        if len(names) > PAGES and count * len(names) * dtype.itemsize > 2 * PAGES * 2**20:
                            yield from _parquet_spooled(file, group, count, names, dtype, (row, start), part, spool)
                            row += count
                            continue
                        options = {"batch_size": step, "row_groups": [group], "columns": names}
                        yield from after(start, row, _parquet_rows(file, options, dtype, row, part))
                    row += count

    return DenseSource(format="parquet", rows=sum(map(sum, counts)), columns=len(names), dtype=dtype, batches=batches)


def after(start: int, row: int, batches: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Those of ``batches``, whose first row is ``row``, that lie at ``start`` or behind it."""
    for rows in batches:
        if row + len(rows) > start:
            yield rows[max(0, start - row) :]
        row += len(rows)


def _parquet_rows(file: Any, options: dict[str, Any], dtype: np.dtype, row: int, part: Path) -> Iterator[np.ndarray]:
    for batch in file.iter_batches(**options):
        yield table_rows(batch, options["columns"], dtype, row, part)
        row += batch.num_rows


def _parquet_spooled(
    file: Any,
    group: int,
    count: int,
    names: list[str],
    dtype: np.dtype,
    rows: tuple[int, int],
    part: Path,
    spool: Path,
) -> Iterator[np.ndarray]:
    """A row group by way of a temporary column-major file, a few columns at a time.

    Arrow holds a page of each column that is read, packed and unpacked: 1 GiB for 500 columns at once.
    ``rows`` is the first row of the group and the row to begin at.
    """
    first, start = rows
    with spooling(spool):
        spool.mkdir(parents=True, exist_ok=True)
        flat = open(spool / "group", "wb", buffering=0)
    with flat:
        for left in range(0, len(names), PAGES):
            some, top = names[left : left + PAGES], 0
            options = {"batch_size": 2**14, "row_groups": [group], "columns": some}
            for values in _parquet_rows(file, options, dtype, first, part):
                for column, piece in enumerate(values.T, left):
                    with spooling(spool):
                        os.pwrite(flat.fileno(), piece.view(np.uint8), (column * count + top) * dtype.itemsize)
                top += len(values)
    yield from column_major(spool / "group", 0, (count, len(names)), dtype, max(0, start - first))


def _parquet_schema(parts: list[Path]) -> tuple[list[str], np.dtype, list[list[int]]]:
    """Column names and common dtype of all parts, and the rows of each of their row groups."""
    names: list[str] = []
    dtypes: list[np.dtype] = []
    counts = []
    for part in parts:
        with pa.parquet.ParquetFile(part) as file:
            schema, meta = file.schema_arrow, file.metadata
            counts.append([meta.row_group(g).num_rows for g in range(meta.num_row_groups)])
        fields = [field for field in schema if not field.name.startswith("__index_level_")]
        here = [field.name for field in fields]
        names = names or here
        if here != names:
            raise BadInputError(f"{part} has columns {here} and {parts[0]} has {names}: write them alike first")
        dtypes += [_parquet_dtype(field, part) for field in fields]
    if not names or not sum(map(sum, counts)):
        raise BadInputError(f"{parts[0]} has no numeric rows: there is nothing in it to analyse")
    return names, np.result_type(*dtypes), counts


def _parquet_dtype(field: Any, part: Path) -> np.dtype:
    kinds = pa.types
    if not (kinds.is_integer(field.type) or kinds.is_floating(field.type) or kinds.is_boolean(field.type)):
        raise BadInputError(
            f"{part}: column {field.name!r} is of type {field.type}, not a number; drop or encode it, then "
        )
    return storage_dtype(np.dtype(field.type.to_pandas_dtype()))


# Grids of chunks (HDF5, Zarr)


def grid_rows(shape: tuple[int, int], step: int, opener: Callable[[], Any], start: int) -> Iterator[np.ndarray]:
    """Rows of anything that slices like an array, cut at multiples of ``step``."""
    with opener() as array:
        while start < shape[0]:
            stop = min(shape[0], (start // step + 1) * step)
            yield np.asarray(array[start:stop])
            start = stop


def grid_step(shape: tuple[int, int], height: int, dtype: np.dtype) -> int:
    """Rows of a batch: whole chunks (of ``height`` rows) if they fit into memory."""
    if height * shape[1] * dtype.itemsize > SLAB_BYTES:
        height = 1
    step = max(1, BATCH_BYTES // (shape[1] * dtype.itemsize))
    return max(height, step // height * height)


def slab_bytes(shape: tuple[int, int], chunks: tuple[int, int], dtype: np.dtype) -> int:
    """Memory of one row of chunks, decoded."""
    return min(chunks[0], shape[0]) * shape[1] * dtype.itemsize


def tile_rows(reader: DenseReader, start: int) -> Iterator[np.ndarray]:
    """Rows of a Zarr array, every chunk read once, checksums compared where there are any."""
    buffer = np.empty((reader.tile_rows, reader.shape[1]), reader.dtype)
    for slab in range(start // reader.chunks[0], reader.grid[0]):
        for rows, tile in reader.tiles(slab, SlabRecord()):
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


def hdf5_source(path: Path, name: str, array: Any, spool: Path) -> DenseSource:
    """A 2-D HDF5 dataset (``array`` tells shape and chunks; the file is opened again to read)."""
    import h5py

    shape = require_2d(array.shape, f"dataset {name!r} of {path}")
    dtype = require_numbers(array.dtype, f"dataset {name!r} of {path}")
    chunks = array.chunks or (1, shape[1])
    columnwise = chunks[1] < shape[1] and slab_bytes(shape, chunks, dtype) > SLAB_BYTES

    @contextmanager
    def opened() -> Iterator[Any]:
        with h5py.File(path, "r") as file:
            yield file[name]

    def batches(start: int) -> Iterator[np.ndarray]:
        if not columnwise:
            yield from grid_rows(shape, grid_step(shape, chunks[0], dtype), opened, start)
            return
        with opened() as dataset:
            reader = spool_grid(_block_of(dataset, chunks), shape, chunks, dtype, spool)
        yield from tile_rows(reader, start)

    return DenseSource(format="hdf5", rows=shape[0], columns=shape[1], dtype=dtype, batches=batches)


def _block_of(array: Any, chunks: tuple[int, int]) -> Callable[[int, int], np.ndarray]:
    def block(slab: int, column: int) -> np.ndarray:
        top, left = slab * chunks[0], column * chunks[1]
        return np.asarray(array[top : top + chunks[0], left : left + chunks[1]])

    return block


def zarr_source(path: Path, array: Any, checksums: np.ndarray | None, missing: str, spool: Path) -> DenseSource:
    """A 2-D Zarr array (format 2 or 3). A missing chunk is an error unless ``missing`` is "fill"."""
    shape = require_2d(array.shape, f"array {array.path!r} of {path}")
    dtype = require_numbers(array.dtype, f"array {array.path!r} of {path}")
    reader = DenseReader(array=array, checksums=checksums)
    decoded = missing == "fill" or not reader.direct
    columnwise = decoded and reader.grid[1] > 1 and slab_bytes(shape, reader.chunks, dtype) > SLAB_BYTES

    def batches(start: int) -> Iterator[np.ndarray]:
        if columnwise:
            block = _block_of(array, reader.chunks) if missing == "fill" else reader._decode
            yield from tile_rows(spool_grid(block, shape, reader.chunks, dtype, spool), start)
        elif missing == "fill":
            step = grid_step(shape, reader.chunks[0], dtype)
            yield from grid_rows(shape, step, lambda: nullcontext(array), start)
        else:
            yield from tile_rows(reader, start)

    return DenseSource(format="zarr", rows=shape[0], columns=shape[1], dtype=dtype, batches=batches)
