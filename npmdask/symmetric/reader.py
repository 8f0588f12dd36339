"""Reading symmetric matrices and tensors by their unique chunks, each of them once a pass.

Those of a matrix, on and above the diagonal, lie in a *packed* array, which holds no others, or in an ordinary one
whose chunks are square. A packed array has the shape (T, side, side): chunk t is block (i, j >= i) of the matrix,
T = n (n + 1) / 2 of them in row-major order of the upper triangle, those at the edge filled up with zeros.
:class:`PackedArray` shows it as the d x d array that it represents, so that chunks are opened, decoded, missed and
compared by :mod:`npmdask.core.storage.readers.dense`, in the same sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement, permutations
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np

from npmdask.core.storage.chunk_access import location, said_place, shard_bytes
from npmdask.core.storage.conventions import impute
from npmdask.core.storage.readers.dense import DenseReader, InTiles, ReadStats, Tile, scratch
from npmdask.core.storage.readers.whole_rows import slab_bounds
from npmdask.errors import BadInputError

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
class _PackedProxy:
    """Something of a packed array, seen as that of an array of another shape. All else is its own."""

    packed: Any  # zarr.Array, or its metadata

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "packed":  # while it is unpickled there is no array to ask yet
            raise AttributeError(name)
        return getattr(self.packed, name)


@dataclass(frozen=True)
class PackedArray(_PackedProxy):
    """A packed array (T, side, side) as the ``size`` x ``size`` array whose upper chunks it holds."""

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

    def __getitem__(self, region: tuple[slice, slice]) -> np.ndarray:
        """The values of one chunk on or above the diagonal."""
        (i, j), n = (part.start // self.chunks[0] for part in region), -(-self.size // self.chunks[0])
        height, width = (part.stop - part.start for part in region)
        return np.asarray(self.packed[chunk_unit(i, j, n), :height, :width])


@dataclass(frozen=True)
class _PackedMetadata(_PackedProxy):
    """The metadata of a packed array, in which chunk (i, j) has the name of its position."""

    n: int

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
        """Return the reader that opens, decodes and compares single chunks."""
        return DenseReader(array=self.array, checksums=self.checksums, digests=self.digests)

    @property
    def packed(self) -> bool:
        return isinstance(self.array, PackedArray)

    def whole_rows(self) -> PackedUnits:
        """Return units of whole rows."""
        return PackedUnits(self)

    shape = property(attrgetter("dense.shape"))
    dtype = property(attrgetter("dense.dtype"))
    chunks = property(attrgetter("dense.chunks"))
    grid = property(attrgetter("dense.grid"))  # down and across the matrix, chunks that are not read among them
    where = property(attrgetter("dense.where"))
    remote = property(attrgetter("dense.remote"))

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
        for rows, values in self._tiles_by_rows(i, j) if self.dense.access.by_rows else self._decoded_tiles(i, j):
            found.add(values)
            record.bytes_read += values.nbytes
            yield rows, [(columns, values)]
        self.dense.note(i, j, found, record)

    def recorded_digests(self, beside: dict[str, np.ndarray]) -> Any:
        """The SHA-256 of chunks that a store records, in the form that the reader takes; None without any."""
        table = beside.get("digests")
        return None if table is None else by_place(table, self.grid[0])

    def bad_value(self, position: str) -> BadInputError:
        """Return the error for a value that is not finite."""
        return self.dense.bad_value(position)

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
        block = np.array(self.dense.decode(i, j))
        self.dense.verify(i, j, block, ReadStats())
        return block

    def slab(self, i: int) -> np.ndarray:
        """The rows of one row of chunks across the whole matrix (rows x d), the left part from its mirror image."""
        return self.some_rows(i, slice(None))

    def some_rows(self, i: int, which: slice) -> np.ndarray:
        """``which`` rows of one row of chunks across the whole matrix; all chunks of that row are read."""
        parts = [self.chunk(i, j)[which] if j >= i else self.chunk(j, i)[:, which].T for j in range(self.grid[1])]
        return np.concatenate(parts, axis=1)


class PackedUnits:
    """Rows of a symmetric matrix of which the upper triangle is stored; most chunks serve two units."""

    def __init__(self, reader: TriangleReader) -> None:
        self._reader, self.bounds = reader, slab_bounds(reader)

    @property
    def buffer_bytes(self) -> int:
        return 2 * self._reader.chunks[0] * self._reader.shape[1] * self._reader.dtype.itemsize

    def load(self, unit: int) -> np.ndarray:
        return self._reader.slab(unit)

    def fetch(self, unit: int) -> None:
        """Nothing: the chunks lie all over the store."""


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
    """Arrange as an n x n table what is listed by position of the upper chunks."""
    table = np.zeros((n, n, *listed.shape[1:]), listed.dtype)
    table[np.triu_indices(n)] = listed  # row-major, as the chunks are
    return table


# Symmetric tensors of order three.
#
# Their blocks lie in a *packed* array of shape (T, b, b, b) with chunks (1, b, b, b): unit t is block (i <= j <= k) of
# the d x d x d tensor, T = n (n + 1) (n + 2) / 6 of them in lexicographic order, n = ceil(d / b), those at the edge
# filled up with zeros (blocked compact symmetric storage: Schatz, Low, van de Geijn and Kolda, SISC 36, 2014). With
# n = 10 that is 0.22 of the bytes of the whole, with n large 1/6. :class:`UnitRows` shows the array with two
# dimensions, so that chunks are opened, decoded, missed and compared by :mod:`npmdask.core.storage.readers.dense`, in
# the same sentences.

Place = tuple[int, int, int]
BLOCK_BYTES = 8 * 10**6  # of a block at most, where its side is chosen
GRID = 5  # blocks along a side at least: 0.28 of the bytes; fewer blocks repeat too much
LEAST_SIDE = 20  # unless the blocks would be shorter than this


def tetrahedral_number(n: int) -> int:
    """Blocks (i <= j <= k) of an n x n x n grid."""
    return n * (n + 1) * (n + 2) // 6


def unit_of(i: int, j: int, k: int, n: int) -> int:
    """Position of block (i <= j <= k) in lexicographic order."""
    return tetrahedral_number(n) - tetrahedral_number(n - i) + chunk_unit(j - i, k - i, n - i)


def place_of(unit: int, n: int) -> Place:
    """The block (i <= j <= k) at a position: counted from the end, first indices have 1, 3, 6, ... blocks."""
    left = tetrahedral_number(n) - 1 - unit
    last = max(0, int((6 * left) ** (1 / 3)) - 2)  # the cube root is off by rounding
    while tetrahedral_number(last + 1) <= left:
        last += 1
    i = n - 1 - last
    first = tetrahedral_number(n) - tetrahedral_number(n - i)
    j, k = chunk_place(unit - first, n - i)
    return i, i + j, i + k


def places(n: int) -> np.ndarray:
    """All blocks (T x 3, int32) in the order of their units."""
    listed = np.fromiter(combinations_with_replacement(range(n), 3), np.dtype((np.int32, 3)), tetrahedral_number(n))
    return np.asarray(listed)


def multiplicity(place: Place) -> int:
    """Count the blocks of the whole tensor that are this one with its indices permuted: 1, 3 or 6."""
    return len(set(permutations(place)))


def squares_of(values: np.ndarray, place: Place) -> float:
    """Compute the part of a block in the squared Frobenius norm of the whole tensor."""
    with np.errstate(over="ignore"):
        return multiplicity(place) * float(np.square(values, dtype=np.float64).sum())


def exact_sum(squares: np.ndarray) -> float | None:
    """The sum of what the blocks add, rounded once; None for what float64 cannot hold (JSON has no infinity)."""
    try:
        return math.fsum(squares) if np.isfinite(squares).all() else None
    except OverflowError:
        return None


def choose_side(size: int, itemsize: int) -> int:
    """Side of a block: at least 5 along the tensor where that leaves 20, at most 8 MB, nearly no filling up."""
    largest = 1
    while (largest + 1) ** 3 * itemsize <= BLOCK_BYTES:
        largest += 1
    blocks = max(-(-size // largest), min(GRID, -(-size // LEAST_SIDE)))
    return -(-size // blocks)


class UnitRows(_PackedProxy):
    """A packed array (T, b, b, b) as the (T b^2) x b array whose chunks, b^2 x b, are its blocks."""

    shards = None
    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        units, side = self.packed.shape[:2]
        return (int(units) * int(side) ** 2, int(side))

    @property
    def chunks(self) -> tuple[int, int]:
        return (self.shape[1] ** 2, self.shape[1])

    @property
    def metadata(self) -> _UnitMetadata:
        return _UnitMetadata(self.packed.metadata)

    def __getitem__(self, region: tuple[slice, slice]) -> np.ndarray:
        """The values of one block (b^2 x b)."""
        return np.asarray(self.packed[region[0].start // self.chunks[0]]).reshape(self.chunks)


class _UnitMetadata(_PackedProxy):
    """The metadata of a packed array, in which chunk (t, 0) has the name of block t."""

    def encode_chunk_key(self, place: tuple[int, int]) -> str:
        return str(self.packed.encode_chunk_key((place[0], 0, 0, 0)))


@dataclass(frozen=True, kw_only=True)
class TensorReader:
    """Block-wise reader of a symmetric ``size`` x ``size`` x ``size`` tensor; small and picklable (it holds no data).

    ``array`` is the packed Zarr array (T, b, b, b). ``checksums`` (T x 1, uint32, of whole blocks with what fills
    them up) are compared with what is read; None for what was never ingested. A *unit* is the position of a block.
    ``held`` are the blocks by the names of their chunks, where ``array`` lies in memory and is not encoded: zarr takes
    three times as long to hand one out as it takes to contract it with ten vectors (b = 40).
    """

    array: Any
    size: int
    checksums: np.ndarray | None = None
    digests: np.ndarray | None = None  # T x 1 x 32, as of DenseReader
    held: Mapping[str, Any] | None = None  # of zarr buffers

    layout: ClassVar[str] = "tensor"

    @cached_property
    def dense(self) -> DenseReader:
        """Return the reader that opens, decodes and compares single blocks."""
        return DenseReader(array=UnitRows(self.array), checksums=self.checksums, digests=self.digests)

    @property
    def shape(self) -> Place:
        """Return the shape of the tensor: (d, d, d)."""
        return (self.size, self.size, self.size)

    @property
    def dtype(self) -> np.dtype:
        return self.dense.dtype

    @cached_property  # looking the shape of a Zarr array up takes longer than it looks
    def side(self) -> int:
        """Side b of a block."""
        return int(self.array.shape[1])

    @property
    def grid(self) -> int:
        """Blocks along the tensor: n."""
        return -(-self.size // self.side)

    @property
    def units(self) -> int:
        """Blocks that are stored: n (n + 1) (n + 2) / 6."""
        return tetrahedral_number(self.grid)

    @property
    def chunks(self) -> Place:
        return (self.side, self.side, self.side)

    @property
    def nbytes(self) -> int:
        """Bytes that a pass reads: the decoded blocks, with what fills up those at the edge."""
        return self.units * self.block_bytes

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block, decoded."""
        return self.side**3 * self.dtype.itemsize

    @property
    def buffer_bytes(self) -> int:
        """Memory that reading one block takes: itself, or some of its size where it is decoded (see DenseReader)."""
        if self.held is not None:
            return 0
        return {"direct": 1, "decoded": 3, "zarr": 8}[self.dense.access.way] * self.block_bytes

    @property
    def where(self) -> str:
        return said_place(self.array)

    def place(self, unit: int) -> Place:
        """Block (i <= j <= k) of a unit."""
        return place_of(unit, self.grid)

    def span(self, i: int) -> slice:
        """Indices of the tensor that block row i covers."""
        return slice(i * self.side, min((i + 1) * self.side, self.size))

    def recorded_digests(self, beside: dict[str, np.ndarray]) -> Any:
        """The SHA-256 of chunks that a store records, in the form that the reader takes; None without any."""
        table = beside.get("digests")
        return None if table is None else table[:, None]

    def held_to(self, digests: Any) -> Self:
        """The same reader, every chunk compared with its SHA-256 as it is read."""
        return replace(self, digests=digests)

    def values(self, unit: int) -> Iterator[np.ndarray]:
        """All values of a unit."""
        for _, block in self.blocks(range(unit, unit + 1), ReadStats()):
            yield block

    def non_finite(self, unit: int) -> BadInputError | None:
        """Return the error for the first value of a unit that is not finite, or None."""
        for values in self.values(unit):
            for within in np.argwhere(~np.isfinite(values))[:1]:
                starts = (self.span(at).start for at in self.place(unit))
                entry = tuple(start + int(row) for start, row in zip(starts, within, strict=True))
                return impute(self.where, f"{values[tuple(within)]} at entry {entry}")
        return None

    @property
    def remote(self) -> Any:
        """Return what a pass fetches over a network; None for local files and for what zarr reads itself."""
        return None if self.held is not None else self.dense.remote

    def read_ahead(self, units: range) -> None:
        """Ask the kernel to fetch the blocks of ``units`` while something else is computed; local files only."""
        self.dense.read_ahead(units)

    def blocks(self, units: range, record: ReadStats) -> Iterator[tuple[Place, np.ndarray]]:
        """Yield ((i, j, k), values) of every unit: (b_i, b_j, b_k), without what fills up, in the stored dtype.

        The memory of the values is reused by the next block. The next one is asked for while one is worked on.

        Raises
        ------
        BadInputError
            A block is missing, truncated or corrupt; its chunk is named.
        """
        for unit in units:
            self.read_ahead(range(unit + 1, min(unit + 2, units.stop)))
            place = self.place(unit)
            whole = self._read_block(unit, record).reshape(self.chunks)
            yield place, whole[tuple(slice(span.stop - span.start) for span in map(self.span, place))]

    def _read_block(self, unit: int, record: ReadStats) -> np.ndarray:
        """One block (b^2 x b) as it is stored, compared with its checksum."""
        if self.held is not None:
            flat = self.held[self.dense.chunk_name(unit, 0)].as_numpy_array()
            values = flat.view(self.dtype).reshape(-1, self.side)
        else:
            values = self.dense.decode(unit, 0)
        self.dense.verify(unit, 0, values, record)
        return values


def open_packed_tensor(array: Any, size: int, checksums: np.ndarray | None = None) -> TensorReader:
    """The reader of a packed store of a ``size`` x ``size`` x ``size`` tensor; ``checksums`` has one for each unit.

    Raises
    ------
    BadInputError
        Array, size and checksums do not belong together: the record is damaged.
    """
    reader = TensorReader(array=array, size=size)
    fits = array.ndim == 4 and array.shape[1:] == reader.chunks and array.chunks == (1, *reader.chunks)
    if not fits or array.shape[0] != reader.units or (checksums is not None and checksums.shape != (reader.units,)):
        raise BadInputError(f"{location(array)} of shape {array.shape} does not hold a packed tensor of size {size}")
    return TensorReader(array=array, size=size, checksums=None if checksums is None else checksums[:, None])


def packed_tensor_bytes(size: int, side: int, itemsize: int) -> int:
    """Bytes of the packed array before compression, with what fills up the blocks at the edge."""
    return tetrahedral_number(-(-size // side)) * side**3 * itemsize
