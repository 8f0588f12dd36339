"""Three-dimensional arrays in files, asked for in boxes: tensors of order three, and square matrices, one a record.

Boxes of plain values are read run by run: nothing is mapped, nothing read twice.

A run is what lies together: a few entries of the last axis, or whole rows and planes where the box holds all of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.core.storage.chunk_access import stored_shape
from npmdask.core.storage.conventions import convention_facts, decoded, member, refuse_marked
from npmdask.core.storage.kinds import TENSOR, require_cube, require_square_matrices
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.safe_open import open_node
from npmdask.errors import BadInputError, require
from npmdask.formats.common import (
    DenseSource,
    choose_array,
    column_major,
    grid_rows,
    require_numbers,
    row_major,
    spool_file,
    spool_write,
    that_fit,
    truncated,
)
from npmdask.formats.compressed import array_shapes
from npmdask.formats.numpy_files import npy_file
from npmdask.formats.zarr_stores import boxes_of, dense_array, for_tensor
from npmdask.symmetric.reader import Place, TensorReader, open_packed_tensor, unit_of

# Boxes of three-dimensional arrays of plain values in files, read run by run: nothing is mapped, nothing read twice.
#
# A run is what lies together: a few entries of the last axis, or whole rows and planes where the box holds all of them.


Box = tuple[slice, ...]


@dataclass(frozen=True, kw_only=True)
class PlainCube:
    """An array of ``shape`` and ``dtype`` in C order, at byte ``offset`` of an open ``file`` called ``path``."""

    path: Path
    file: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self, box: Box, out: np.ndarray) -> None:
        """Fill ``out`` (C order) with the entries in ``box``."""
        rows, width = self._rows(box)
        view, size, wide = out.reshape(-1).view(np.uint8).data, self.dtype.itemsize, width * self.dtype.itemsize
        for number, first in enumerate(rows):
            part = view[number * wide : (number + 1) * wide]
            if os.preadv(self.file, [part], self.offset + first * size) < wide:
                raise truncated(self.path, f"it ends before entry {np.unravel_index(first, self.shape)}")

    def _rows(self, box: Box) -> tuple[Iterator[int], int]:
        """Return where the runs of a box begin, in entries and in order, and how many entries each has."""
        (_, d1, d2), (i, j, k) = self.shape, box
        if k.stop - k.start < d2:
            starts = ((a * d1 + b) * d2 + k.start for a in range(i.start, i.stop) for b in range(j.start, j.stop))
            return starts, k.stop - k.start
        return ((a * d1 + j.start) * d2 for a in range(i.start, i.stop)), (j.stop - j.start) * d2


class SpooledCubes:
    """The chunks of a three-dimensional array, uncompressed one after the other in a temporary file.

    For arrays whose chunks do not lie well to the boxes: every chunk is asked for once, in the order of the grid.
    """

    def __init__(self, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype, folder: Path) -> None:
        self._shape, self._chunks, self._dtype, self.path = shape, chunks, dtype, folder / "cubes"
        self._offsets: dict[tuple[int, ...], int] = {}

    def fill(self, chunk: Any) -> None:
        """Write all chunks; ``chunk(box)`` are the values in a box."""
        offset = 0
        with spool_file(self.path.parent, self.path.name) as file:
            for at in product(*(range(-(-n // c)) for n, c in zip(self._shape, self._chunks, strict=True))):
                values = np.ascontiguousarray(chunk(self._span(at)), self._dtype)
                spool_write(file, values)
                self._offsets[at] = offset
                offset += values.nbytes

    def read(self, file: int, box: Box) -> np.ndarray:
        """The entries in ``box``, from the file that was opened again."""
        whole = np.empty([b.stop - b.start for b in box], self._dtype)
        for at in product(*(range(b.start // c, -(-b.stop // c)) for b, c in zip(box, self._chunks, strict=True))):
            span = self._span(at)
            met = tuple(slice(max(b.start, s.start), min(b.stop, s.stop)) for b, s in zip(box, span, strict=True))
            part = np.empty([m.stop - m.start for m in met], self._dtype)
            shape = tuple(s.stop - s.start for s in span)
            cube = PlainCube(path=self.path, file=file, offset=self._offsets[at], shape=shape, dtype=self._dtype)
            cube.read(moved(met, [s.start for s in span]), part)
            whole[moved(met, [b.start for b in box])] = part
        return whole

    def _span(self, at: tuple[int, ...]) -> Box:
        return tuple(slice(i * c, min((i + 1) * c, n)) for i, c, n in zip(at, self._chunks, self._shape, strict=True))


def moved(box: Box, origin: list[int]) -> Box:
    """The box as seen from ``origin``."""
    return tuple(slice(b.start - o, b.stop - o) for b, o in zip(box, origin, strict=True))


# Square matrices, one for each record: a three-dimensional array (n x d x d) as rows of d^2 numbers.


def open_npy_matrices(path: Path) -> DenseSource:
    (n, d), fortran, dtype, offset = npy_file(path, require_square_matrices)

    def batches(start: int) -> Iterator[np.ndarray]:
        if not fortran:
            yield from row_major(path, lambda: open(path, "rb", buffering=0), offset, (n, d * d), dtype, start)
            return
        for rows in column_major(path, offset, (n, d * d), dtype, start):  # of A^T: the middle index runs faster
            yield rows.reshape(-1, d, d).transpose(0, 2, 1).reshape(-1, d * d)

    return DenseSource(format="npy", rows=n, columns=d * d, dtype=dtype, batches=batches)


def open_zarr_matrices(path: Path, dataset: str | None, missing: str, spool: Path, gaps: str = "refuse") -> DenseSource:
    """The array ``dataset``, or the only one with three dimensions; or a store of kind matrices, checked."""
    node = member(open_node(path))
    if isinstance(node, zarr.Array):
        require(dataset is None, f"{path} is one array, not a group: leave out dataset={dataset!r}")
        return _chunked_matrices(path, decoded(node, gaps), missing, spool)
    record = node.attrs.get("npmdask")
    if record is not None and dataset is None:
        if record["kind"] == "tensor":
            raise for_tensor(path)
        if "side" not in record:
            require_square_matrices(record["shape"], str(path))
        return dense_array(path, node["data"], boxes_of(node["checksums"], "error")[...], missing, spool)
    name = choose_array(path, dataset, array_shapes(dict(node.members(max_depth=None))), dimensions=3)
    return _chunked_matrices(path, decoded(node[name], gaps), missing, spool)


def _chunked_matrices(path: Path, array: Any, missing: str, spool: Path) -> DenseSource:
    where = f"array {array.path!r} of {path}"
    (n, d), dtype = require_square_matrices(array.shape, where), require_numbers(array.dtype, where)
    flat = _FlattenedMatrices(array, missing)

    def batches(start: int) -> Iterator[np.ndarray]:
        return grid_rows(lambda: nullcontext(flat), (n, d * d), flat.pieces(dtype), dtype, spool, start)

    return DenseSource(
        format="zarr",
        rows=n,
        columns=d * d,
        dtype=dtype,
        facts=convention_facts(array),
        refuse_marked=lambda: refuse_marked(array),
        batches=batches,
    )


class _FlattenedMatrices:
    """A Zarr array n x d x d that slices like an array n x d^2, columns by whole rows of the matrices."""

    def __init__(self, array: Any, missing: str) -> None:
        self._array, self._boxes, self._stored = array, boxes_of(array, missing), stored_shape(array)

    def pieces(self, dtype: np.dtype) -> tuple[int, int]:
        """Rows and columns to read at once: whole chunks, or some rows of matrices only where those are too large."""
        height, d = min(self._stored[0], self._array.shape[0]), self._array.shape[1]
        return height, d * min(self._stored[1], d, that_fit(height * d * dtype.itemsize))

    def __getitem__(self, which: slice | tuple[slice, slice]) -> np.ndarray:
        records, columns = which if isinstance(which, tuple) else (which, slice(0, None))
        n, d, _ = self._array.shape
        last = d if columns.stop is None else min(columns.stop // d, d)
        box = (slice(records.start, min(records.stop, n)), slice(columns.start // d, last), slice(0, d))
        values = self._boxes[box]
        return values.reshape(len(values), -1)


# Tensors of order three: all d x d x d entries in ``.npy`` or Zarr, or an npmdask store, asked for in boxes.
#
# What storing the unique blocks asks for is every box of the grid of blocks once, so of ``.npy`` every entry is read
# once, in runs as long as a block is wide (where pages of 4096 bytes come from a disk, up to 1 + 4096 / (b itemsize)
# times as many bytes come with them). Of Zarr a chunk is read as often as there are boxes that meet it: if that were
# more than twice the bytes of the array, all chunks are read once into a temporary file first, which takes as much room
# as the uncompressed array.


AMPLIFICATION = 2.0  # how often a chunk of a source is read on average, at most


@dataclass(frozen=True, kw_only=True)
class TensorSource:
    """Facts known of a tensor before its entries are read: ``size`` (d), ``dtype`` of its entries.

    ``boxes(side)`` is what gives the entries at a place of the grid of blocks of that side, as long as it is open.
    ``mirrored``: that the tensor is symmetric is known. ``facts``, ``refuse_marked``: as of ``Source``.
    """

    format: str
    size: int
    dtype: np.dtype
    boxes: Callable[[int], AbstractContextManager[Callable[[Place], np.ndarray]]]
    mirrored: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    refuse_marked: Callable[[], None] = lambda: None


def open_npy_tensor(path: Path) -> TensorSource:
    size, fortran, dtype, offset = npy_file(path, require_cube)

    @contextmanager
    def boxes(side: int) -> Iterator[Callable[[Place], np.ndarray]]:
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no more than is asked for
            cube = PlainCube(path=path, file=file.fileno(), offset=offset, shape=(size,) * 3, dtype=dtype)

            def box(place: Place) -> np.ndarray:
                at = box_at(place, side, size)
                turned = at[::-1] if fortran else at  # column-major is C order of the reversed axes
                values = np.empty([b.stop - b.start for b in turned], dtype)
                cube.read(turned, values)
                return values.T if fortran else values

            yield box

    return TensorSource(format="npy", size=size, dtype=require_numbers(dtype, str(path)), boxes=boxes)


def open_zarr_tensor(path: Path, dataset: str | None, missing: str, spool: Path) -> TensorSource:
    """The array ``dataset``, or the only one with three dimensions; or a store of kind tensor, checked."""
    node = member(open_node(path))
    if isinstance(node, zarr.Array):
        require(dataset is None, f"{path} is one array, not a group: leave out dataset={dataset!r}")
        return _chunked_tensor(path, decoded(node), missing, spool)
    record = node.attrs.get("npmdask")
    if record is not None and dataset is None:
        if record["kind"] != "tensor":
            raise BadInputError(f"{path} is a store of kind {record['kind']!r}: {TENSOR}; name another source")
        return _packed_source(
            open_packed_tensor(node["data"], int(record["shape"][0]), boxes_of(node["checksums"], "error")[...])
        )
    name = choose_array(path, dataset, array_shapes(dict(node.members(max_depth=None))), dimensions=3)
    return _chunked_tensor(path, decoded(node[name]), missing, spool)


def _chunked_tensor(path: Path, array: Any, missing: str, spool: Path) -> TensorSource:
    where = f"array {array.path!r} of {path}"
    size, dtype = require_cube(array.shape, where), require_numbers(array.dtype, where)
    stored = tuple(min(c, size) for c in stored_shape(array))

    parts = boxes_of(array, missing)

    @contextmanager
    def boxes(side: int) -> Iterator[Callable[[Place], np.ndarray]]:
        if amplification(size, side, stored) <= AMPLIFICATION:
            yield lambda place: parts[box_at(place, side, size)]
            return
        spooled = SpooledCubes(array.shape, stored, dtype, spool)
        spooled.fill(parts.__getitem__)
        with open(spooled.path, "rb", buffering=0) as file:
            yield lambda place: spooled.read(file.fileno(), box_at(place, side, size))

    return TensorSource(
        format="zarr",
        size=size,
        dtype=dtype,
        facts=convention_facts(array),
        refuse_marked=lambda: refuse_marked(array),
        boxes=boxes,
    )


def _packed_source(reader: TensorReader) -> TensorSource:
    """Blocks of another side out of a packed store; each of those that a box meets is read for it."""

    @contextmanager
    def boxes(side: int) -> Iterator[Callable[[Place], np.ndarray]]:
        yield lambda place: _assembled(reader, box_at(place, side, reader.size))

    return TensorSource(format="zarr", size=reader.size, dtype=reader.dtype, boxes=boxes, mirrored=True)


def _assembled(reader: TensorReader, box: Box) -> np.ndarray:
    whole = np.empty([b.stop - b.start for b in box], reader.dtype)
    for at in product(*(range(b.start // reader.side, -(-b.stop // reader.side)) for b in box)):
        order = np.argsort(at, kind="stable")  # the block that is stored has its indices in this order
        i, j, k = (at[axis] for axis in order)
        unit = unit_of(i, j, k, reader.grid)
        ((_, values),) = reader.blocks(range(unit, unit + 1), ReadStats())
        span = [reader.span(i) for i in at]
        met = tuple(slice(max(b.start, s.start), min(b.stop, s.stop)) for b, s in zip(box, span, strict=True))
        turned = values.transpose(np.argsort(order))
        whole[moved(met, [b.start for b in box])] = turned[moved(met, [s.start for s in span])]
    return whole


def box_at(place: Place, side: int, size: int) -> Box:
    """The entries that a place of the grid of blocks covers."""
    return tuple(slice(i * side, min((i + 1) * side, size)) for i in place)


def amplification(size: int, side: int, stored: tuple[int, ...]) -> float:
    """Entries of the chunks that all boxes meet, over those of the array: what is read of each axis multiplies."""
    starts = range(0, size, side)
    each = [sum(min(-(-min(s + side, size) // c) * c, size) - s // c * c for s in starts) / size for c in stored]
    return math.prod(each)
