"""NumPy files: ``.npy``, archives of ``numpy.savez``, and what ``scipy.sparse.save_npz`` writes."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np

from npmdask.core.storage.labels import Axis, Labels
from npmdask.errors import BadInputError, require
from npmdask.formats.common import (
    DenseSource,
    SparseSource,
    choose_array,
    column_major,
    is_gzip,
    open_binary,
    read_into,
    require_2d,
    require_numbers,
    require_size,
    row_major,
    spool_file,
    spool_write,
    truncated,
)
from npmdask.formats.compressed import Slices, compressed_source

Found = TypeVar("Found")


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


def npy_file(path: Path, checked: Callable[[tuple[int, ...], str], Found]) -> tuple[Found, bool, np.dtype, int]:
    """Return the result of ``checked`` for the shape, whether the array is column-major, its dtype and its offset."""
    with open(path, "rb") as file:
        shape, fortran, dtype = npy_header(file, str(path))
        offset = file.tell()
    found = checked(shape, str(path))
    require_size(path, offset, prod(shape) * dtype.itemsize)
    return found, fortran, dtype, offset


def open_npy(path: Path) -> DenseSource:
    (rows, columns), fortran, dtype, offset = npy_file(path, require_2d)

    def batches(start: int) -> Iterator[np.ndarray]:
        if fortran:
            return column_major(path, offset, (rows, columns), dtype, start)
        return row_major(path, lambda: open(path, "rb", buffering=0), offset, (rows, columns), dtype, start)

    return DenseSource(format="npy", rows=rows, columns=columns, dtype=dtype, batches=batches)


def open_npz(path: Path, dataset: str | None, spool: Path) -> DenseSource | SparseSource:
    """Open an array or a sparse matrix that ``scipy.sparse.save_npz`` or ``numpy.savez`` wrote."""
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    if dataset is None and {"format", "shape", "data"} <= set(names):
        return _open_npz_sparse(path, spool)
    shapes = {}
    for name in names:
        with zip_member(path, name + ".npy") as file:
            shapes[name] = raw_header(file)[0]  # an array that is not asked for may hold anything
    return open_npz_array(path, choose_array(path, dataset, shapes), spool)


def zip_member(path: Path, name: str) -> BinaryIO:
    """A member as a stream; closing it closes the archive (zipfile counts references)."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
        return cast(BinaryIO, _Member(archive.open(info), info))


class _Member(io.RawIOBase):
    """A member that is read forward, its CRC-32 compared at the end.

    From Python 3.12 on, zipfile no longer compares that of a stored member once it was sought in.
    """

    def __init__(self, file: Any, info: zipfile.ZipInfo) -> None:
        self._file, self._info, self._at, self._crc = file, info, 0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = int(self._file.readinto(buffer))
        self._crc, self._at = zlib.crc32(memoryview(buffer)[:count], self._crc), self._at + count
        if not count and len(buffer) and (self._at, self._crc) != (self._info.file_size, self._info.CRC):
            raise zipfile.BadZipFile(f"the checksum of {self._info.filename} does not match")
        return count

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go forward, by reading."""
        left = offset - (self._at if whence == io.SEEK_SET else 0)
        if left < 0 or whence == io.SEEK_END:
            raise io.UnsupportedOperation("a member of an archive is read forward")
        while left > 0 and (part := self.read(min(left, 2**20))):
            left -= len(part)
        return self._at

    def close(self) -> None:
        self._file.close()
        super().close()


def open_npz_array(path: Path, name: str, spool: Path) -> DenseSource:
    """One 2-D array of a NumPy archive. Fortran order is unpacked to a file first: a zip cannot be sought."""
    where, member = f"array {name!r} of {path}", name + ".npy"

    def opener() -> BinaryIO:
        return zip_member(path, member)

    with opener() as file:
        shape, fortran, dtype = npy_header(file, where)
        offset = file.tell()
    rows, columns = require_2d(shape, where)

    def batches(start: int) -> Iterator[np.ndarray]:
        if not fortran:
            yield from row_major(path, opener, offset, (rows, columns), dtype, start)
            return
        with spool_file(spool, "columns") as flat:
            for part in row_major(path, opener, offset, (columns, rows), dtype, 0):
                spool_write(flat, part)
        yield from column_major(spool / "columns", 0, (rows, columns), dtype, start)

    return DenseSource(format="npz", rows=rows, columns=columns, dtype=dtype, batches=batches)


def _open_npz_sparse(path: Path, spool: Path) -> SparseSource:
    with closing(_MemberSlices(path, "shape")) as shape, closing(_MemberSlices(path, "data")) as data:
        rows, columns = (int(n) for n in shape(0, 2))
        dtype, count = data.dtype, data.length
    layout = _npz_layout(path)
    dtype = require_numbers(dtype, str(path))
    compressed = ["indptr", "indices", "data"]
    names = {"csr": compressed, "csc": compressed, "coo": ["row", "col", "data"]}
    require(layout in names, f"{path} is stored as {layout}; save it with scipy.sparse.save_npz(path, matrix.tocsr())")
    slices = partial(_npz_slices, path, names[layout])
    return compressed_source("npz", layout, slices, (rows, columns), dtype, count, spool, path)


def _npz_layout(path: Path) -> str:
    with zip_member(path, "format.npy") as file:
        _, _, dtype = raw_header(file)
        require(dtype.kind in "SU", f"{path}: its array 'format' is not text; save it with scipy.sparse.save_npz")
        text = str(np.frombuffer(file.read(dtype.itemsize), dtype)[0].astype("U"))
        file.read(1)  # compares the checksum
        return text


class _MemberSlices:
    """Forward slices of a 1-D array in a zip archive."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._file = zip_member(path, name + ".npy")
        try:
            shape, _, self.dtype = npy_header(self._file, f"array {name!r} of {path}")
        except BaseException:
            self.close()
            raise
        self.length, self._position = int(np.prod(shape, dtype=np.int64)), 0

    def __call__(self, first: int, last: int) -> np.ndarray:
        """Values ``first`` to ``last``; slices must ascend."""
        if last > self.length:
            raise truncated(self._path, f"array {self._name!r} has {self.length} values and {last} are needed")
        self._file.seek((first - self._position) * self.dtype.itemsize, 1)
        values = np.empty(last - first, self.dtype)
        if read_into(self._file, values) < values.nbytes:
            raise truncated(self._path, f"array {self._name!r} ends early")
        self._position = last
        if last == self.length:
            self._file.read(1)  # compares the checksum
        return values.astype(self.dtype.newbyteorder("="), copy=False)

    def close(self) -> None:
        self._file.close()


@contextmanager
def _npz_slices(path: Path, names: list[str]) -> Iterator[Slices]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(closing(_MemberSlices(path, name))) for name in names}


# IDX, the format of MNIST.

IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def open_idx(path: Path) -> DenseSource:
    """The first dimension is the rows, the others are flattened; big-endian. Of three, columns are pixels of images."""
    with open_binary(path) as file:
        zero, code, dimensions = struct.unpack(">HBB", file.read(4))
        if zero or code not in IDX_TYPES or not dimensions:
            raise BadInputError(f"{path} is not an IDX file: it begins with {zero:04x} {code:02x} {dimensions:02x}")
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
    rows, columns = require_2d((shape[0], int(np.prod(shape[1:], dtype=np.int64))), str(path))
    dtype, offset = np.dtype(IDX_TYPES[code]), 4 + 4 * dimensions
    if not is_gzip(path):
        require_size(path, offset, rows * columns * dtype.itemsize)

    def batches(start: int) -> Iterator[np.ndarray]:
        return row_major(path, lambda: open_binary(path), offset, (rows, columns), dtype, start)

    pixels = (Axis("row", shape[1]), Axis("column", shape[2])) if len(shape) == 3 else ()
    labels = Labels(columns=pixels) if pixels else None
    return DenseSource(format="idx", rows=rows, columns=columns, dtype=dtype, labels=labels, batches=batches)
