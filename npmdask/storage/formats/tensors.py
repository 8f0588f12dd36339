"""Tensors of order three: all d x d x d entries in ``.npy`` or Zarr, or an npmdask store, asked for in boxes.

What storing the unique blocks asks for is every box of the grid of blocks once, so of ``.npy`` every entry is read
once, in runs as long as a block is wide (where pages of 4096 bytes come from a disk, up to 1 + 4096 / (b itemsize)
times as many bytes come with them). Of Zarr a chunk is read as often as there are boxes that meet it: if that were
more than twice the bytes of the array, all chunks are read once into a temporary file first, which takes as much room
as the uncompressed array.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.errors import BadInputError
from npmdask.storage.chunk_access import stored_shape
from npmdask.storage.conventions import decoded, facts_of, refuse_marked
from npmdask.storage.formats.boxes import Box, PlainCube, SpooledCubes, moved
from npmdask.storage.formats.common import choose_array, require_numbers
from npmdask.storage.formats.compressed import array_shapes
from npmdask.storage.formats.numpy_files import npy_header
from npmdask.storage.formats.raw import require_size
from npmdask.storage.formats.zarr_stores import boxes_of
from npmdask.storage.kinds import TENSOR, require_cube
from npmdask.storage.readers.dense import SlabRecord
from npmdask.storage.readers.packed_tensor import Place, TensorReader, open_packed_tensor, unit_of
from npmdask.storage.safe_open import open_node

AMPLIFICATION = 2.0  # how often a chunk of a source is read on average, at most


@dataclass(frozen=True, kw_only=True)
class TensorSource:
    """What is known of a tensor at once: ``size`` (d), ``dtype`` of its entries.

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
    with open(path, "rb") as file:
        shape, fortran, dtype = npy_header(file, str(path))
        offset = file.tell()
    size = require_cube(shape, str(path))
    require_size(path, offset, size**3 * dtype.itemsize)

    @contextmanager
    def boxes(side: int) -> Iterator[Callable[[Place], np.ndarray]]:
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no more than is asked for
            cube = PlainCube(path=path, file=file.fileno(), offset=offset, shape=shape, dtype=dtype)

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
    node = open_node(path)
    if isinstance(node, zarr.Array):
        if dataset is not None:
            raise BadInputError(f"{path} is one array, not a group: leave out dataset={dataset!r}")
        return _chunked(path, decoded(node), missing, spool)
    record = node.attrs.get("npmdask")
    if record is not None and dataset is None:
        if record["kind"] != "tensor":
            raise BadInputError(f"{path} is a store of kind {record['kind']!r}: {TENSOR}; name another source")
        return _stored(
            open_packed_tensor(node["data"], int(record["shape"][0]), boxes_of(node["checksums"], "error")[...])
        )
    name = choose_array(path, dataset, array_shapes(dict(node.members(max_depth=None))), dimensions=3)
    return _chunked(path, decoded(node[name]), missing, spool)


def _chunked(path: Path, array: Any, missing: str, spool: Path) -> TensorSource:
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
        facts=facts_of(array),
        refuse_marked=lambda: refuse_marked(array),
        boxes=boxes,
    )


def _stored(reader: TensorReader) -> TensorSource:
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
        ((_, values),) = reader.blocks(range(unit, unit + 1), SlabRecord())
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
