"""Two dense sources of the same rows, read as one: the columns of the first, then those of the second.

Each is read as it is chunked, so that nothing is copied to bring them together: tiles of both are cut where either
ends. A unit is some rows that begin at a chunk of both; where chunks of different heights rarely begin together, it is
a few of the higher ones, and a chunk of the other that lies across an edge is read for both units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from npmdask.containers.computed import COMPUTED
from npmdask.core.storage.chunk_access import Access, scratch_space
from npmdask.core.storage.readers.dense import DenseReader, ReadStats, Room, Tile
from npmdask.errors import BadInputError, NpmdaskError

READ_TWICE = 4  # a unit has so many chunks of the lower ones at least: at most a quarter of them is read twice
BESIDE = Access("beside", "two arrays, each read as it is stored")


@dataclass(frozen=True, kw_only=True)
class SideBySide(DenseReader):
    """Rows of ``left`` (n x p) and ``right`` (n x q) as rows of p + q columns.

    ``checksums``: those of ``left`` over those of ``right``, filled up with zeros to one width; None until both are
    known.
    """

    array: Any = None
    left: DenseReader
    right: DenseReader

    @classmethod
    def of(cls, left: DenseReader, right: DenseReader) -> SideBySide:
        """Both, with the checksums that they bring along."""
        made = cls(left=left, right=right)
        tables = (left.checksums, right.checksums)
        if any(table is None for table in tables):
            return made
        width = max(table.shape[1] for table in tables if table is not None)
        filled = [np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in tables if table is not None]
        return replace(made, checksums=np.concatenate(filled))

    @property
    def shape(self) -> tuple[int, int]:
        return (self.left.shape[0], self.left.shape[1] + self.right.shape[1])

    @property
    def dtype(self) -> np.dtype:
        return np.result_type(self.left.dtype, self.right.dtype)

    @property
    def whole(self) -> tuple[int, int]:
        """Rows of a unit, and all columns."""
        low, high = sorted((self.left.chunks[0], self.right.chunks[0]))
        both = math.lcm(low, high)
        few = high * -(-READ_TWICE * low // high)
        return (both if both <= few else few, self.shape[1])

    @property
    def grid(self) -> tuple[int, int]:
        return (-(-self.shape[0] // self.chunks[0]), self.left.grid[1] + self.right.grid[1])

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    @property
    def tile_rows(self) -> int:
        return min(self.left.tile_rows, self.right.tile_rows)

    @property
    def buffer_bytes(self) -> int:
        return self.left.buffer_bytes + self.right.buffer_bytes

    @property
    def access(self) -> Access:
        computed = COMPUTED in (self.left.access, self.right.access)
        return COMPUTED if computed else BESIDE

    @property
    def where(self) -> str:
        p = self.left.shape[1]
        return f"{self.left.where} (columns 0 to {p - 1}) beside {self.right.where} (columns from {p} on)"

    def recorded_digests(self, beside: dict[str, np.ndarray]) -> None:
        """None: each of the two has its own."""

    def slab_columns(self, column: int) -> slice:
        if column < self.left.grid[1]:
            return self.left.slab_columns(column)
        return _shifted(self.right.slab_columns(column - self.left.grid[1]), self.left.shape[1])

    @property
    def remote(self) -> Any:
        """Return what a pass fetches over a network, of the first of the two that fetches anything."""
        return self.left.remote or self.right.remote

    def read_ahead(self, slabs: range) -> None:
        """Ask the kernel to fetch the first chunks of both for ``slabs``."""
        for slab in slabs:
            for part in (self.left, self.right):
                part.read_ahead(_slabs_of(part, self.slab_rows(slab))[:1])

    @property
    def fills_rows(self) -> bool:
        """Rows of both lie apart."""
        return False

    def tiles(self, slab: int, record: ReadStats, room: Room | None = None) -> Iterator[tuple[slice, Tile]]:
        """Yield (rows of both, tile); it is as high as the lower of the two tiles that lie there."""
        rows, (first, second) = self.slab_rows(slab), self._checked_readers
        stats = ReadStats(), ReadStats()
        streams = [_Rows(part, rows, name, own) for part, name, own in zip((first, second), "ab", stats, strict=True)]
        start, p = rows.start, self.left.shape[1]
        while start < rows.stop:
            tiles = [stream.at(start) for stream in streams]
            stop = min(held.stop for held, _ in tiles)
            left, right = (
                [(columns, values[start - held.start : stop - held.start]) for columns, values in tile]
                for held, tile in tiles
            )
            yield slice(start, stop), [*left, *((_shifted(columns, p), values) for columns, values in right)]
            start = stop
        for stream in streams:
            stream.finish()  # checksums are compared at the end of a chunk
        record.bytes_read += sum(own.bytes_read for own in stats)
        record.chunks += sum(own.chunks for own in stats)
        record.checksums |= stats[0].checksums
        record.checksums |= {(first.grid[0] + s, column): crc for (s, column), crc in stats[1].checksums.items()}

    def non_finite(self, unit: int) -> BadInputError | None:
        """Return the error for the first value of a unit that is not finite, by its place in its own array."""
        for part in (self.left, self.right):
            for slab in _slabs_of(part, self.slab_rows(unit)):
                with suppress(NpmdaskError):  # of a damaged chunk the pass itself has told
                    if (found := part.non_finite(slab)) is not None:
                        return found
        return None

    def bad_value(self, position: str) -> BadInputError:
        """Return the error for a value that is not finite, where only its place among all columns is known."""
        return BadInputError(f"{self.where} holds {position}: remove or impute the non-finite values")

    @cached_property
    def _checked_readers(self) -> tuple[DenseReader, DenseReader]:
        """Both, held to the checksums that are known."""
        if self.checksums is None:
            return self.left, self.right
        (rows, columns), more = self.left.grid, self.right.grid[1]
        return (
            replace(self.left, checksums=self.checksums[:rows, :columns]),
            replace(self.right, checksums=self.checksums[rows:, :more]),
        )


class _Rows:
    """Some rows of one of the two, tile by tile, in buffers of its own: both come in one thread."""

    def __init__(self, part: DenseReader, rows: slice, name: str, record: ReadStats) -> None:
        self._name, self._rows = name, rows
        self._tiles = (tile for slab in part.ahead(_slabs_of(part, rows)) for tile in part.tiles(slab, record))
        self._held: tuple[slice, Tile] = (slice(0, 0), [])

    def at(self, row: int) -> tuple[slice, Tile]:
        """The tile that ``row`` lies in; rows before it are passed over."""
        while self._held[0].stop <= row:
            with scratch_space(self._name):
                self._held = next(self._tiles)
        return self._held

    def finish(self) -> None:
        """Read what is left of the last chunk."""
        with scratch_space(self._name):
            for _ in self._tiles:
                pass


def _slabs_of(part: DenseReader, rows: slice) -> range:
    """The slabs that hold some rows."""
    height = part.chunks[0]
    return range(rows.start // height, -(-rows.stop // height))


def _shifted(columns: slice, by: int) -> slice:
    return slice(columns.start + by, columns.stop + by)
