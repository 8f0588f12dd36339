"""Rows of 2-D arrays that are stored in chunks (HDF5, Zarr), every chunk decoded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.storage.formats.raw import batch_rows, spooling
from npmdask.storage.readers.dense import DenseReader, ReadStats

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
            reader = spool_grid(_block_of(array, chunks), shape, chunks, dtype, spool)
        yield from tile_rows(reader, start)
        return
    step = _grid_step(shape, chunks[0], dtype)
    with opener() as array:
        while start < shape[0]:
            stop = min(shape[0], (start // step + 1) * step)
            yield np.asarray(array[start:stop])
            start = stop


def too_wide(shape: tuple[int, int], chunks: tuple[int, int], dtype: np.dtype) -> bool:
    """Whether the array is cut into columns and a row of its chunks, decoded, takes too much memory."""
    return chunks[1] < shape[1] and min(chunks[0], shape[0]) * shape[1] * dtype.itemsize > SLAB_BYTES


def that_fit(size: int) -> int:
    """How many pieces of ``size`` bytes may be in memory at once: at least one."""
    return max(1, SLAB_BYTES // size)


def _grid_step(shape: tuple[int, int], height: int, dtype: np.dtype) -> int:
    """Rows of a batch: whole chunks (of ``height`` rows) if they fit into memory."""
    wide = shape[1] * dtype.itemsize
    if height * wide > SLAB_BYTES:
        height = 1
    return max(height, batch_rows(wide) // height * height)


def _block_of(array: Any, chunks: tuple[int, int]) -> Callable[[int, int], np.ndarray]:
    def block(slab: int, column: int) -> np.ndarray:
        top, left = slab * chunks[0], column * chunks[1]
        return np.asarray(array[top : top + chunks[0], left : left + chunks[1]])

    return block


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
