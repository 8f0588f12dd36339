"""Reading a dense Zarr array in tiles: every chunk once a pass, its checksum taken on the way.

A *slab* is one row of chunks. A *tile* is a few of its rows across all columns, the unit of a GEMM. How a
slab is cut into tiles depends on the array's shape and chunks only, never on memory, threads or codec, so
that sums are formed in the same order everywhere.

Chunks are read straight into a reused buffer, or decoded into one, of shards the inner chunks that a tile needs, or
through zarr-python: :mod:`npmdask.core.storage.chunk_access` says which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from typing import Any, ClassVar, Self

import numpy as np

from npmdask.core.storage.checksum import ChunkSums, crc32c
from npmdask.core.storage.chunk_access import (
    PIECE,
    Access,
    FillRows,
    access_of,
    ask_ahead,
    changed_content,
    corrupt,
    fetcher_of,
    looked_at,
    lost_file,
    missing_chunk,
    opened_rows,
    read_chunk,
    said_place,
    scratch,
    shard_bytes,
    stored_shape,
    unreadable,
)
from npmdask.core.storage.conventions import impute, position_where, refuse_gap, refuse_marked
from npmdask.core.storage.readers import ReadStats
from npmdask.errors import BadInputError, NpmdaskError

MISSING = "restore it, or if it really is empty write it with `npmdask ingest SRC DEST --missing fill`"
TILE_BYTES = 8 * 2**20
MIN_TILE_ROWS = 64

Tile = list[tuple[slice, np.ndarray]]  # (columns, rows x columns) for each chunk column
Room = Callable[[int], np.ndarray]  # memory for up to so many whole rows, at least one, of the stored dtype


class InTiles:
    """Common part of readers whose units are tiles of values: dense arrays and packed triangles."""

    tiles: Any
    bad_value: Any

    def held_to(self, digests: Any) -> Self:
        """The same reader, every chunk compared with its SHA-256 as it is read."""
        return replace(self, digests=digests)  # type: ignore[type-var]

    def values(self, unit: int) -> Iterator[np.ndarray]:
        """All values of a unit, some at a time."""
        for _, tile in self.tiles(unit, ReadStats()):
            yield from (values for _, values in tile)

    def non_finite(self, unit: int) -> BadInputError | None:
        """Return the error for the first value of a unit that is not finite, if there is one."""
        position = position_where(self.tiles(unit, ReadStats()), lambda values: ~np.isfinite(values))
        return None if position is None else self.bad_value(position)


@dataclass(frozen=True, kw_only=True)
class DenseReader(InTiles):
    """Slab-wise reader of a 2-D Zarr array; small and picklable (it holds no data).

    ``checksums`` (chunk grid, uint32) are compared with what is read; None for an array that was never
    ingested. ``digests`` (chunk grid x 32, uint8: SHA-256) too, where they are given: they are of private runs.
    """

    array: Any
    checksums: np.ndarray | None = None
    digests: np.ndarray | None = None

    layout: ClassVar[str] = "dense"

    # Looking them up in a Zarr array takes longer than it looks, and a run asks a thousand times.

    @cached_property
    def shape(self) -> tuple[int, int]:
        return (int(self.array.shape[0]), int(self.array.shape[1]))

    @cached_property
    def chunks(self) -> tuple[int, int]:
        """Rows and columns of a stored object: the shard where there are shards, else the chunk."""
        rows, columns = self.whole
        return (min(rows, self.shape[0]), min(columns, self.shape[1]))

    @cached_property
    def whole(self) -> tuple[int, int]:
        """Rows and columns of a stored object as it is decoded: one at the edge is stored whole."""
        rows, columns = stored_shape(self.array)
        return (rows, columns)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.array.dtype)

    @property
    def grid(self) -> tuple[int, int]:
        return (-(-self.shape[0] // self.chunks[0]), -(-self.shape[1] // self.chunks[1]))

    @property
    def units(self) -> int:
        """Number of units that a pass can be cut into: slabs."""
        return self.grid[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded array."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    @property
    def tile_rows(self) -> int:
        wide = self.shape[1] * self.dtype.itemsize
        return min(self.chunks[0], max(MIN_TILE_ROWS, TILE_BYTES // max(wide, 1)))

    @cached_property
    def access(self) -> Access:
        """Way in which the chunks are read: directly, decoded here, or through zarr, and why."""
        return access_of(self.array)

    @cached_property
    def _checked_array(self) -> Any:
        """The array as zarr reads it, its chunks looked at."""
        return looked_at(self.array, lost_file)

    @property
    def together(self) -> int:
        """Rows read together: one of plain local files, a row of inner chunks of other shards, else a row of chunks."""
        if not self.access.by_rows:
            return self.chunks[0]
        shard, local = self.access.shard, self.access.folder is not None
        return 1 if shard is None or (shard.plain and local) else min(shard.inner[0], self.chunks[0])

    @property
    def buffer_bytes(self) -> int:
        """Memory that reading one slab takes: a tile if chunks can be read in part, else all of its chunks.

        Decoded here: the chunks and one of them compressed (perhaps a little larger), twice more over the network.
        Through zarr: seven times a chunk, measured up to 6.5, for the codec's and zarr's own copies and threads.
        """
        if self.access.by_rows:
            tile = self.tile_rows * self.grid[1] * self.chunks[1] * self.dtype.itemsize
            return tile + shard_bytes(self.access, self.whole, self.dtype, self.grid[1])
        return self.grid[1] * self._chunk_bytes + self._beside_chunk

    @property
    def _chunk_bytes(self) -> int:
        return math.prod(self.whole) * self.dtype.itemsize

    @property
    def _beside_chunk(self) -> int:
        """Memory that decoding takes beside what is decoded."""
        return self._chunk_bytes * (7 if self.access.way == "zarr" else 2 if self.access.folder is not None else 4)

    @property
    def chunk_bytes(self) -> int:
        """Memory that ``column_chunks`` takes."""
        shard = shard_bytes(self.access, self.whole, self.dtype, 1) if self.access.by_rows else 0
        return self._chunk_bytes + self._beside_chunk + shard

    def read_ahead(self, slabs: range) -> None:
        """Ask for the chunks of ``slabs`` while something else is computed: of the kernel, or of an object store."""
        for slab, column in product(slabs, range(self.grid[1])):
            self.read_chunk_ahead(slab, column)

    def read_chunk_ahead(self, slab: int, column: int) -> None:
        """Ask for one chunk of the kernel, or of an object store."""
        if self.access.folder is not None or self.access.decode is not None:
            columns = self.slab_columns(column)
            ask_ahead(self.array, self.access, self.chunk_name(slab, column), columns.stop - columns.start)

    @cached_property
    def remote(self) -> Any:
        """Objects that a pass fetches over a network; None of local files, and of what zarr reads itself."""
        far = None if self.access.decode is None else fetcher_of(self.array)
        nbytes = math.prod(self.whole) * self.dtype.itemsize
        nbytes = min(nbytes, PIECE) if self.access.by_rows else nbytes
        return None if far is None else far.remote(self.array, self._some_names, nbytes)

    def _some_names(self, most: int) -> tuple[str, ...]:
        return tuple(self.chunk_name(*at) for at in islice(np.ndindex(self.grid), most))

    def ahead(self, slabs: range) -> Iterator[int]:
        """The slabs, one by one, the next one asked for while one is worked on."""
        for slab in slabs:
            self.read_ahead(range(slab + 1, min(slab + 2, slabs.stop)))
            yield slab

    def slab_rows(self, slab: int) -> slice:
        return slice(slab * self.chunks[0], min((slab + 1) * self.chunks[0], self.shape[0]))

    def slab_columns(self, column: int) -> slice:
        return slice(column * self.chunks[1], min((column + 1) * self.chunks[1], self.shape[1]))

    @property
    def fills_rows(self) -> bool:
        """Say whether whole rows are read, or decoded, straight into any memory."""
        return self.access.by_rows and self.whole[1] == self.shape[1]

    def tiles(self, slab: int, record: ReadStats, room: Room | None = None) -> Iterator[tuple[slice, Tile]]:
        """Yield (rows of the array, tile). A tile's memory is reused by the next one, unless it was given by ``room``,
        which is asked where the reader ``fills_rows``.
        """
        sums = [self.sums() for _ in range(self.grid[1])]
        blocks = self._tiles_by_rows(slab, room) if self.access.by_rows else self._decoded_tiles(slab)
        for rows, tile in blocks:
            for column, (_, values) in enumerate(tile):
                sums[column].add(values)
                record.bytes_read += values.nbytes
            yield rows, tile
        for column, found in enumerate(sums):
            self.note(slab, column, found, record)

    def recorded_digests(self, beside: dict[str, np.ndarray]) -> Any:
        """The SHA-256 of chunks that a store records, in the form that the reader takes; None without any."""
        return beside.get("digests")

    def bad_value(self, position: str) -> BadInputError:
        """Return the error for a value that is not finite; raise one where NaN marks missing values."""
        refuse_marked(self.array)
        return impute(self.where, position, self)

    def _tiles_by_rows(self, slab: int, room: Room | None) -> Iterator[tuple[slice, Tile]]:
        rows, width = self.slab_rows(slab), self.whole[1]  # an edge chunk is stored whole
        with ExitStack() as stack:
            files = [stack.enter_context(self.opened(slab, column)) for column in range(self.grid[1])]
            start = rows.start
            while start < rows.stop:
                left = rows.stop - start
                if room is None:
                    held = [scratch(("tile", c), (self.tile_rows, width), self.dtype) for c in range(len(files))]
                else:  # as much as there is room for, at once: threads that read wait for each other at every call
                    held = [room(left)]
                parts, tile = [buffer[:left] for buffer in held], list[tuple[slice, np.ndarray]]()
                for column, (fill, part) in enumerate(zip(files, parts, strict=True)):
                    fill(part, start - rows.start)
                    columns = self.slab_columns(column)
                    tile.append((columns, part[:, : columns.stop - columns.start]))
                start += len(parts[0])
                yield slice(start - len(parts[0]), start), tile

    @contextmanager
    def opened(self, slab: int, column: int, *, some: bool = False) -> Iterator[FillRows]:
        """The file of a chunk or shard, as what fills rows (n x the width of a whole chunk) from one of its rows on.

        ``some``: a few of them are taken, and not all in turn.

        Raises
        ------
        BadInputError
            It is missing, no plain file, or of another size; or it cannot be read or decoded.
        """
        name, columns = self.chunk_name(slab, column), self.slab_columns(column)
        with ExitStack() as stack:
            with self._reading(name):
                rows = opened_rows(self.array, self.access, name, columns.stop - columns.start, some=some)
                fill = stack.enter_context(rows)

            def filled(part: np.ndarray, first: int) -> None:
                with self._reading(name):
                    fill(part, first)

            yield filled

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Around reading the chunk ``name``: errors name it."""
        try:
            yield
        except FileNotFoundError:
            refuse_gap(self.array)
            raise missing_chunk(name, self.array, MISSING) from None
        except NpmdaskError:
            raise
        except Exception as error:  # whatever a codec raises
            raise unreadable(name, self.where, error) from error

    def some_rows(self, slab: int, rows: range) -> np.ndarray:
        """Single rows of a slab, numbered in it, and nothing else of its chunks, which are not checked: for a sample.

        Only where the ``access`` is ``by_rows``.
        """
        taken, whole = np.empty((len(rows), self.shape[1]), self.dtype), np.empty((1, self.whole[1]), self.dtype)
        for column in range(self.grid[1]):
            columns = self.slab_columns(column)
            with self.opened(slab, column, some=True) as fill:
                for i, row in enumerate(rows):
                    fill(whole, row)
                    taken[i, columns] = whole[0, : columns.stop - columns.start]
        return taken

    def _decoded_tiles(self, slab: int) -> Iterator[tuple[slice, Tile]]:
        rows = self.slab_rows(slab)
        blocks = [(self.slab_columns(c), self.decode(slab, c, c)) for c in range(self.grid[1])]
        for start in range(rows.start, rows.stop, self.tile_rows):
            stop = min(start + self.tile_rows, rows.stop)
            inside = slice(start - rows.start, stop - rows.start)
            yield slice(start, stop), [(columns, block[inside]) for columns, block in blocks]

    def decode(self, slab: int, column: int, slot: int = 0) -> np.ndarray:
        """One chunk in memory that the next one in the same ``slot`` reuses; its checksum is not compared."""
        name, rows, columns = self.chunk_name(slab, column), self.slab_rows(slab), self.slab_columns(column)
        if self.access.way == "zarr":
            with self._reading(name):
                return np.ascontiguousarray(self._checked_array[rows, columns])
        whole = scratch(("chunk", slot), self.whole, self.dtype)
        if self.access.by_rows:
            with self.opened(slab, column) as fill:
                fill(whole[: rows.stop - rows.start], 0)
        else:
            with self._reading(name):
                read_chunk(self.array, self.access, name, whole)
        return whole[: rows.stop - rows.start, : columns.stop - columns.start]

    def part_columns(self, unit: int, parts: int) -> slice:
        """The columns of a unit, where each column of chunks is cut into so many parts."""
        column, part = divmod(unit, parts)
        columns = self.slab_columns(column)
        first, last = ((columns.stop - columns.start) * edge // parts for edge in (part, part + 1))
        return slice(columns.start + first, columns.start + last)

    def column_chunks(self, unit: int, parts: int, record: ReadStats) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield rows and their ``part_columns``, in memory that the next ones reuse; chunks are checked whole."""
        column, columns = unit // parts, self.part_columns(unit, parts)
        first = self.slab_columns(column).start
        for slab in range(self.grid[0]):
            block = self.decode(slab, column)
            self.verify(slab, column, block, record)
            yield self.slab_rows(slab), block[:, columns.start - first : columns.stop - first]

    def chunk_name(self, slab: int, column: int) -> str:
        return str(self.array.metadata.encode_chunk_key((slab, column)))

    @property
    def where(self) -> str:
        return said_place(self.array)

    def sums(self) -> ChunkSums:
        """Return the checksums that are taken of a chunk on the way."""
        return ChunkSums(hashed=self.digests is not None)

    def verify(self, slab: int, column: int, block: np.ndarray, record: ReadStats) -> None:
        """Compare a whole chunk with what is known of it, and count it. Raises BadInputError if it is another one."""
        found = self.sums()
        found.add(block)
        record.bytes_read += block.nbytes
        self.note(slab, column, found, record)

    def note(self, slab: int, column: int, found: ChunkSums, record: ReadStats) -> None:
        """Compare the sums of a whole chunk with what is known of it, and count it: as ``verify``."""
        self._verify(slab, column, found)
        record.checksums[slab, column] = found.crc
        record.chunks += 1

    def _verify(self, slab: int, column: int, found: ChunkSums) -> None:
        if self.checksums is not None and int(self.checksums[slab, column]) != found.crc:
            known = int(self.checksums[slab, column])
            again = lambda: crc32c(np.ascontiguousarray(self.decode(slab, column)))  # noqa: E731
            raise corrupt(self.chunk_name(slab, column), self.array, self.where, known, again)
        if self.digests is not None and found.differ_from(self.digests[slab, column]):
            raise changed_content(self.chunk_name(slab, column), self.where)
