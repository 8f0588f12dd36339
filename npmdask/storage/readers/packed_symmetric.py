"""Reading one triangle of a symmetric matrix: the chunks on and above the diagonal, each of them once a pass.

They lie in a *packed* array, which holds no others, or in an ordinary one whose chunks are square. A packed
array has the shape (T, side, side): chunk t is block (i, j >= i) of the matrix, T = n (n + 1) / 2 of them in
row-major order of the upper triangle, those at the edge filled up with zeros. :class:`PackedArray` shows it as
the d x d array that it represents, so that chunks are opened, decoded, missed and compared by
:mod:`npmdask.storage.readers.dense`, in the same sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from npmdask.errors import BadInputError
from npmdask.storage.chunk_access import location, shard_bytes
from npmdask.storage.prefetch import Remote
from npmdask.storage.readers.dense import DenseReader, InTiles, ReadStats, Tile, scratch

TILE_BYTES = 2 * 2**20  # half a chunk's width is used twice: what is read once must still be in cache then
MIN_TILE_ROWS = 64


def triangle_number(n: int) -> int:
    """Chunks on and above the diagonal of an n x n grid."""
    return n * (n + 1) // 2


def chunk_unit(i: int, j: int, n: int) -> int:
    """Position of chunk (i, j >= i) in row-major order of the upper triangle."""
    return i * n - i * (i - 1) // 2 + j - i


def chunk_place(unit: int, n: int) -> tuple[int, int]:
    """The chunk (i, j >= i) at a position: counted from the end, rows have 1, 2, 3, ... chunks."""
    left = triangle_number(n) - 1 - unit
    row = (math.isqrt(8 * left + 1) - 1) // 2
    return n - 1 - row, n - 1 - (left - triangle_number(row))


@dataclass(frozen=True)
class PackedArray:
    """A packed array (T, side, side) as the ``size`` x ``size`` array whose upper chunks it holds.

    Everything that is not about the shape is the packed array's own.
    """

    packed: Any  # zarr.Array
    size: int

    shards = None
    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        return (self.size, self.size)

    @property
    def chunks(self) -> tuple[int, int]:
        return (int(self.packed.shape[1]), int(self.packed.shape[2]))

    @property
    def metadata(self) -> _PackedMetadata:
        return _PackedMetadata(self.packed.metadata, -(-self.size // self.chunks[0]))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "packed":  # while it is unpickled there is no array to ask yet
            raise AttributeError(name)
        return getattr(self.packed, name)

    def __getitem__(self, region: tuple[slice, slice]) -> np.ndarray:
        """The values of one chunk on or above the diagonal."""
        (i, j), n = (part.start // self.chunks[0] for part in region), -(-self.size // self.chunks[0])
        height, width = (part.stop - part.start for part in region)
        return np.asarray(self.packed[chunk_unit(i, j, n), :height, :width])


@dataclass(frozen=True)
class _PackedMetadata:
    """The metadata of a packed array, in which chunk (i, j) has the name of its position."""

    packed: Any
    n: int

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "packed":
            raise AttributeError(name)
        return getattr(self.packed, name)

    def encode_chunk_key(self, place: tuple[int, int]) -> str:
        i, j = place
        if j < i:
            raise ValueError(f"chunk {place} is below the diagonal: a packed array has its mirror image only")
        return str(self.packed.encode_chunk_key((chunk_unit(i, j, self.n), 0, 0)))


@dataclass(frozen=True, kw_only=True)
class TriangleReader(InTiles):
    """Chunk-wise reader of the upper triangle; small and picklable (it holds no data).

    ``array`` is a ``PackedArray``, or a d x d Zarr array with square chunks. ``checksums`` (chunk grid, uint32;
    read on and above the diagonal only) are compared with what is read; None for what was never ingested. ``digests``
    (chunk grid x 32, uint8) as of ``DenseReader``.
    A *unit* is the position of an upper chunk.
    """

    array: Any
    checksums: np.ndarray | None = None
    digests: np.ndarray | None = None

    layout: ClassVar[str] = "triangle"

    @cached_property
    def dense(self) -> DenseReader:
        """What opens, decodes and compares single chunks."""
        return DenseReader(array=self.array, checksums=self.checksums, digests=self.digests)

    @property
    def packed(self) -> bool:
        return isinstance(self.array, PackedArray)

    @property
    def shape(self) -> tuple[int, int]:
        return self.dense.shape

    @property
    def dtype(self) -> np.dtype:
        return self.dense.dtype

    @property
    def chunks(self) -> tuple[int, int]:
        return self.dense.chunks

    @property
    def grid(self) -> tuple[int, int]:
        """Chunks down and across the matrix, those that are not read among them."""
        return self.dense.grid

    @property
    def where(self) -> str:
        return self.dense.where

    @property
    def units(self) -> int:
        return triangle_number(self.grid[0])

    @property
    def nbytes(self) -> int:
        """Bytes that a pass reads: the decoded upper chunks, without what fills up those at the edge."""
        (d, _), side = self.shape, self.chunks[0]
        edge = d - side * (self.grid[0] - 1)
        diagonal = (self.grid[0] - 1) * side**2 + edge**2
        return (d * d + diagonal) // 2 * self.dtype.itemsize

    @property
    def tile_rows(self) -> int:
        return min(self.chunks[0], max(MIN_TILE_ROWS, TILE_BYTES // (self.chunks[1] * self.dtype.itemsize)))

    @property
    def buffer_bytes(self) -> int:
        """Memory that reading one chunk takes: a tile, or some chunks where they are decoded (see ``DenseReader``)."""
        access, wide = self.dense.access, self.chunks[1] * self.dtype.itemsize
        if access.by_rows:
            return self.tile_rows * wide + shard_bytes(access, self.dense.whole, self.dtype, 1)
        return {"decoded": 3, "zarr": 8}[access.way] * self.chunks[0] * wide

    @property
    def remote(self) -> Remote | None:
        """What a pass fetches over a network; None of local files, and of what zarr reads itself."""
        return self.dense.remote

    def ahead(self, units: range) -> Iterator[int]:
        """The units, one by one, the next one asked for while one is worked on."""
        for unit in units:
            if unit + 1 < units.stop:
                self.dense.read_chunk_ahead(*self.place(unit + 1))
            yield unit

    def place(self, unit: int) -> tuple[int, int]:
        """Row and column, in chunks, of a unit."""
        return chunk_place(unit, self.grid[0])

    def tiles(self, unit: int, record: ReadStats) -> Iterator[tuple[slice, Tile]]:
        """Yield (rows of the matrix, tile of one column of chunks). A tile's memory is reused by the next one."""
        (i, j), found = self.place(unit), self.dense.sums()
        columns = self.dense.slab_columns(j)
        for rows, values in self._chunk_tiles(i, j):
            found.add(values)
            record.bytes_read += values.nbytes
            yield rows, [(columns, values)]
        self.dense._verify(i, j, found)
        record.checksums[i, j] = found.crc
        record.chunks += 1

    def recorded_digests(self, beside: dict[str, np.ndarray]) -> Any:
        """The SHA-256 of chunks that a store records, in the form that the reader takes; None without any."""
        table = beside.get("digests")
        return None if table is None else by_place(table, self.grid[0])

    def bad_value(self, position: str) -> BadInputError:
        """What to say of a value that is not finite."""
        return self.dense.bad_value(position)

    def _chunk_tiles(self, i: int, j: int) -> Iterator[tuple[slice, np.ndarray]]:
        return self._tiles_by_rows(i, j) if self.dense.access.by_rows else self._decoded_tiles(i, j)

    def _tiles_by_rows(self, i: int, j: int) -> Iterator[tuple[slice, np.ndarray]]:
        dense, width = self.dense, self.dense.whole[1]  # an edge chunk is stored whole
        rows, columns = dense.slab_rows(i), dense.slab_columns(j)
        buffer = scratch("triangle tile", (self.tile_rows, width), self.dtype)
        with dense.opened(i, j) as fill:
            for start in range(rows.start, rows.stop, self.tile_rows):
                stop = min(start + self.tile_rows, rows.stop)
                part = buffer[: stop - start]
                fill(part, start - rows.start)
                yield slice(start, stop), part[:, : columns.stop - columns.start]

    def _decoded_tiles(self, i: int, j: int) -> Iterator[tuple[slice, np.ndarray]]:
        rows, block = self.dense.slab_rows(i), self.dense.decode(i, j)
        for start in range(rows.start, rows.stop, self.tile_rows):
            stop = min(start + self.tile_rows, rows.stop)
            yield slice(start, stop), block[start - rows.start : stop - rows.start]

    def chunk(self, i: int, j: int) -> np.ndarray:
        """One whole upper chunk in memory of its own, its checksum compared."""
        block, found = np.array(self.dense.decode(i, j)), self.dense.sums()
        found.add(block)
        self.dense._verify(i, j, found)
        return block

    def slab(self, i: int) -> np.ndarray:
        """The rows of one row of chunks across the whole matrix (rows x d), the left part from its mirror image."""
        return self.some_rows(i, slice(None))

    def some_rows(self, i: int, which: slice) -> np.ndarray:
        """``which`` rows of one row of chunks across the whole matrix; all chunks of that row are read."""
        parts = [self.chunk(i, j)[which] if j >= i else self.chunk(j, i)[:, which].T for j in range(self.grid[1])]
        return np.concatenate(parts, axis=1)


def open_packed(array: Any, size: int, checksums: np.ndarray) -> TriangleReader:
    """The reader of a packed store of a ``size`` x ``size`` matrix; ``checksums`` has one for each position.

    Raises
    ------
    BadInputError
        Array, size and checksums do not belong together: the record is damaged.
    """
    units, side = int(array.shape[0]), int(array.shape[1])
    n = -(-size // side)
    if array.shape[1:] != (side, side) or units != triangle_number(n) or checksums.shape != (units,):
        raise BadInputError(f"{location(array)} of shape {array.shape} does not hold a packed matrix of size {size}")
    return TriangleReader(array=PackedArray(array, size), checksums=by_place(checksums, n))


def by_place(listed: np.ndarray, n: int) -> np.ndarray:
    """What is listed by position of the upper chunks, as an n x n table."""
    table = np.zeros((n, n, *listed.shape[1:]), listed.dtype)
    table[np.triu_indices(n)] = listed  # row-major, as the chunks are
    return table
