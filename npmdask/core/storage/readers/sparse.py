"""Reading a CSR matrix in AnnData's encoding, entry chunk by entry chunk: every chunk once a pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.core.storage.checksum import crc32c, digest_of
from npmdask.core.storage.chunk_access import (
    RESTORE,
    Access,
    Boxes,
    FillRows,
    access_of,
    ask_ahead,
    changed_content,
    corrupt,
    fetcher_of,
    location,
    missing_chunk,
    opened_rows,
    read_chunk,
    said_place,
    shard_bytes,
    stored_shape,
    unreadable,
)
from npmdask.core.storage.conventions import impute
from npmdask.core.storage.readers import ReadStats
from npmdask.errors import BadInputError, NpmdaskError, require

INDPTR_BATCH = 2**22


class Fragment(NamedTuple):
    """The part of one row that lies in one run of chunks: rows may be cut by the borders between runs.

    It is kept until the whole pass is joined, and so has arrays of its own: as views they would keep chunks alive.
    """

    row: int
    indices: np.ndarray
    data: np.ndarray


class _Files:
    """The files that chunks of entries lie in, of each array the one that was read last open: it may be a shard."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, FillRows, ExitStack]] = {}

    def opened(self, array: Any, access: Access, key: str) -> FillRows:
        """Return what fills entries of the file called ``key``."""
        held = self._held.get(array.path)
        if held is None or held[0] != key:
            self.close(array.path)
            stack = ExitStack()
            rows = opened_rows(array, access, key, some=True)
            self._held[array.path] = key, stack.enter_context(rows), stack
        return self._held[array.path][1]

    def close(self, path: str) -> None:
        if held := self._held.pop(path, None):
            held[2].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for path in list(self._held):
            self.close(path)


@dataclass(frozen=True, kw_only=True)
class CsrReader:
    """Reader of a CSR group; a *slab* is one chunk of ``data`` and ``indices``. Picklable; holds no entries.

    ``arrays``: data, indices and indptr, whose metadata the group would read from the store each time that it is asked.
    ``slab_first_row[s]`` is the row that holds the first entry of slab s. ``digests`` (chunks x 32, uint8, by array):
    SHA-256, compared with what is read by private runs.
    """

    group: Any
    shape: tuple[int, int]
    arrays: dict[str, Any] = field(default_factory=dict)
    checksums: dict[str, np.ndarray] | None = None
    digests: dict[str, np.ndarray] | None = None
    slab_first_row: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    layout: ClassVar[str] = "csr"

    @cached_property
    def slices(self) -> dict[str, Boxes]:
        """The same arrays, any part of which can be read: every chunk that it meets is looked at first."""
        return {name: Boxes(array, remedy=RESTORE) for name, array in self.arrays.items()}

    @property
    def chunk(self) -> int:
        return int(self.arrays["data"].chunks[0])

    @property
    def units(self) -> int:
        """Number of units that a pass can be cut into: chunks of entries."""
        return self.grid[0]

    @property
    def entries(self) -> int:
        return int(self.arrays["data"].shape[0])

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.arrays["data"].dtype)

    @property
    def grid(self) -> tuple[int, int]:
        """Slabs, and chunks in each: one of ``data`` and one of ``indices``."""
        return (-(-self.entries // self.chunk), 2)

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded entries and row pointers."""
        width = self.dtype.itemsize + self.arrays["indices"].dtype.itemsize
        return self.entries * width + (self.shape[0] + 1) * self.arrays["indptr"].dtype.itemsize

    @property
    def buffer_bytes(self) -> int:
        """Memory of one slab: entries as stored, as float64, and the row pointers of short rows; what shards take."""
        shards = sum(shard_bytes(self.access[n], stored_shape(a), a.dtype, 1) for n, a in self._entry_arrays.items())
        return self.chunk * (2 * self.dtype.itemsize + 2 * 8 + 2 * 8) + shards

    @property
    def where(self) -> str:
        return said_place(self.group)

    def read_ahead(self, slabs: range) -> None:
        """Ask for the chunks of ``slabs`` meanwhile: of the kernel, or of an object store."""
        for name in ("indices", "data"):
            each, array, access = self._slabs_per_file[name], self.arrays[name], self.access[name]
            for number in range(slabs.start // each, -(-slabs.stop // each)):
                some = range((slabs.start - number * each) * self.chunk, (slabs.stop - number * each) * self.chunk)
                ask_ahead(array, access, self._file_name(name, number), some=some)

    @cached_property
    def remote(self) -> Any:
        """Objects that a pass fetches over a network; None of local files, and of what zarr reads itself."""
        far = None if self.access["data"].decode is None else fetcher_of(self.arrays["data"])
        return (
            None if far is None else far.remote(self.arrays["data"], self._some_names, self.chunk * self.dtype.itemsize)
        )

    def _some_names(self, most: int) -> tuple[str, ...]:
        files = -(-self.units // self._slabs_per_file["data"])
        return tuple(self._file_name("data", number) for number in range(min(files, most)))

    @cached_property
    def _entry_arrays(self) -> dict[str, Any]:
        return {name: self.arrays[name] for name in ("indices", "data")}

    @cached_property
    def access(self) -> dict[str, Access]:
        """Ways in which data and indices are read."""
        return {name: access_of(array) for name, array in self._entry_arrays.items()}

    @cached_property
    def _slabs_per_file(self) -> dict[str, int]:
        """Slabs in a file of ``data`` and of ``indices``: more than one in a shard."""
        return {name: stored_shape(array)[0] // self.chunk for name, array in self._entry_arrays.items()}

    def chunk_name(self, slab: int, column: int) -> str:
        """The file of a chunk of indices (0) or data (1), in the group."""
        name = ("indices", "data")[column]
        return f"{name}/{self._file_name(name, slab // self._slabs_per_file[name])}"

    def _file_name(self, name: str, number: int) -> str:
        return str(self.arrays[name].metadata.encode_chunk_key((number,)))

    def pointer_bytes(self, slabs: range) -> int:
        """Memory of the row pointers of a run of slabs (as stored, as int64, and of a block)."""
        first, last = self.rows_of(slabs)
        whole = 0 if self.digests is None else 2 * int(self.arrays["indptr"].chunks[0])  # at both ends
        return 3 * 8 * (last - first + 2 + whole)

    def rows_of(self, slabs: range) -> tuple[int, int]:
        """First and last row with an entry in the slabs (both may be cut)."""
        last_slab = slabs.stop == self.grid[0]
        first = int(self.slab_first_row[slabs.start])
        last = self.shape[0] - 1 if last_slab else int(self.slab_first_row[slabs.stop])
        return first, last

    def blocks(self, slabs: range, record: ReadStats) -> Iterator[csr_matrix | Fragment]:
        """The rows of a run of slabs as CSR blocks of whole rows, and the cut rows at both ends as fragments."""
        with _Files() as files:
            yield from self._blocks(slabs, record, files)

    def _blocks(self, slabs: range, record: ReadStats, files: _Files) -> Iterator[csr_matrix | Fragment]:
        first, last = self.rows_of(slabs)
        pointers = self._pointers(first, last + 2, record)
        start, stop = slabs.start * self.chunk, min(slabs.stop * self.chunk, self.entries)
        held = _PendingEntries(start, np.empty(0, np.int64), np.empty(0, self.dtype))
        at = 0  # index into `pointers` of the row where `held` begins
        if pointers[0] < start:
            at = 1
        for slab in slabs:
            held = held.extend(*self._read(slab, record, files))
            if at == 1 and held.start < pointers[1]:  # the head row began in an earlier run
                if held.stop < min(pointers[1], stop):
                    continue
                cut = int(min(pointers[1], stop))
                indices, data = held.slice(held.start, cut)
                yield Fragment(first, indices.copy(), data.copy())
                held = held.drop(cut)
            whole = int(np.searchsorted(pointers, held.stop, side="right")) - 1
            if whole > at:
                indices, data = held.slice(held.start, int(pointers[whole]))
                yield csr_matrix(
                    (data, indices, pointers[at : whole + 1] - held.start), shape=(whole - at, self.shape[1])
                )
                held, at = held.drop(int(pointers[whole])), whole
        if held.stop > held.start:
            yield Fragment(first + at, held.indices.copy(), held.data.copy())

    def recorded_digests(self, beside: dict[str, np.ndarray]) -> Any:
        """The SHA-256 of chunks that a store records, by array; None without any."""
        found = {name.removeprefix("digests/"): table for name, table in beside.items() if name.startswith("digests/")}
        return found or None

    def held_to(self, digests: Any) -> CsrReader:
        """The same reader, every chunk compared with its SHA-256 as it is read; its row pointers are, at once."""
        return open_csr(self.group, self.shape, self.checksums, digests)

    def values(self, unit: int) -> Iterator[np.ndarray]:
        """All values of a unit, some at a time."""
        for piece in self.blocks(range(unit, unit + 1), ReadStats()):
            yield piece.data

    def non_finite(self, unit: int) -> BadInputError | None:
        """Return the error for a unit that holds values that are not finite, or None."""
        if all(np.isfinite(values).all() for values in self.values(unit)):
            return None
        return impute(self.where, f"a non-finite value in chunk {unit}")

    def _pointers(self, start: int, stop: int, record: ReadStats) -> np.ndarray:
        if self.digests is not None:
            return self._certain_pointers(start, stop, record)
        pointers = self.slices["indptr"][start:stop].astype(np.int64)
        record.bytes_read += pointers.nbytes
        return pointers

    def _certain_pointers(self, start: int, stop: int, record: ReadStats) -> np.ndarray:
        """The same from whole chunks, each compared with its SHA-256: which row an entry belongs to is data, too."""
        assert self.digests is not None
        array, chunk = self.arrays["indptr"], int(self.arrays["indptr"].chunks[0])
        first = start // chunk * chunk
        stored = self.slices["indptr"][first : min(-(-stop // chunk) * chunk, int(array.shape[0]))]
        _require_digests(self, first, stored, self.digests["indptr"])
        record.bytes_read += stored.nbytes
        return stored[start - first : stop - first].astype(np.int64)

    def _read(self, slab: int, record: ReadStats, files: _Files) -> tuple[np.ndarray, np.ndarray]:
        span = slice(slab * self.chunk, min((slab + 1) * self.chunk, self.entries))
        indices, data = (self._read_chunk(name, slab, span, record, files) for name in ("indices", "data"))
        record.chunks += 2
        if _has_column_outside(indices, self.shape[1]):
            raise BadInputError(f"{self.where}: a column index in chunk {slab} is outside 0..{self.shape[1] - 1}")
        return indices, data

    def _values(self, name: str, slab: int, span: slice, files: _Files) -> np.ndarray:
        """The values of a chunk, straight from its file where that is understood."""
        array, access = self.arrays[name], self.access[name]
        if access.way == "zarr":
            return self.slices[name][span]
        number, place = divmod(slab, self._slabs_per_file[name])
        key, whole = self._file_name(name, number), np.empty(array.chunks, array.dtype)
        try:
            if access.by_rows:
                files.opened(array, access, key)(whole[:, None], place * self.chunk)
            else:
                read_chunk(array, access, key, whole)
        except FileNotFoundError:
            raise missing_chunk(key, array, RESTORE) from None
        except NpmdaskError:
            raise
        except Exception as error:  # whatever a codec raises
            raise unreadable(key, location(array), error) from error
        return whole[: span.stop - span.start]

    def _read_chunk(self, name: str, slab: int, span: slice, record: ReadStats, files: _Files) -> np.ndarray:
        values = self._values(name, slab, span, files)
        crc = crc32c(values)
        if self.checksums is not None and int(self.checksums[name][slab]) != crc:
            key = self._file_name(name, slab // self._slabs_per_file[name])
            again = lambda: crc32c(self._values(name, slab, span, files))  # noqa: E731
            known = int(self.checksums[name][slab])
            raise corrupt(key, self.arrays[name], f"{self.where}/{name}", known, again)
        if self.digests is not None and (digest_of(values) != self.digests[name][slab]).any():
            raise changed_content(str(slab), f"{self.where}/{name}")
        record.checksums[slab, int(name == "data")] = crc
        record.bytes_read += values.nbytes
        return values


def _has_column_outside(indices: np.ndarray, columns: int) -> bool:
    """Say whether a column index is negative or too large, in one comparison: unsigned, negative ones are large."""
    return bool(len(indices)) and int(indices.view(f"u{indices.dtype.itemsize}").max()) >= columns


class _PendingEntries(NamedTuple):
    """Entries read but not yet handed on; ``start`` is the position of the first in the whole matrix."""

    start: int
    indices: np.ndarray
    data: np.ndarray

    @property
    def stop(self) -> int:
        return self.start + len(self.data)

    def extend(self, indices: np.ndarray, data: np.ndarray) -> _PendingEntries:
        if not len(self.data):
            return _PendingEntries(self.start, indices, data)
        return _PendingEntries(self.start, np.concatenate([self.indices, indices]), np.concatenate([self.data, data]))

    def slice(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        return self.indices[start - self.start : stop - self.start], self.data[start - self.start : stop - self.start]

    def drop(self, until: int) -> _PendingEntries:
        return _PendingEntries(until, self.indices[until - self.start :], self.data[until - self.start :])


def _verify_pointers(reader: CsrReader, begin: int, pointers: np.ndarray, table: np.ndarray) -> None:
    chunk = int(reader.arrays["indptr"].chunks[0])
    for start in range(0, len(pointers), chunk):
        if crc32c(pointers[start : start + chunk]) != int(table[(begin + start) // chunk]):
            raise BadInputError(
                f"chunk {(begin + start) // chunk} of {reader.where}/indptr is corrupt or missing; restore it from a "
                "backup or ingest the source again"
            )


def _require_digests(reader: CsrReader, begin: int, pointers: np.ndarray, table: np.ndarray) -> None:
    chunk = int(reader.arrays["indptr"].chunks[0])
    for start in range(0, len(pointers), chunk):
        at = (begin + start) // chunk
        if (digest_of(pointers[start : start + chunk]) != table[at]).any():
            raise changed_content(str(at), f"{reader.where}/indptr")


def open_csr(
    group: Any,
    shape: tuple[int, int],
    checksums: dict[str, np.ndarray] | None,
    digests: dict[str, np.ndarray] | None = None,
) -> CsrReader:
    """A reader, after one look at the row pointers (m + 1 integers, in batches).

    Raises
    ------
    BadInputError
        Row pointers that fall, do not start at 0 or do not end at the number of entries.
    """
    arrays = {name: group[name] for name in ("data", "indices", "indptr")}
    reader = CsrReader(group=group, arrays=arrays, shape=shape, checksums=checksums, digests=digests)
    require(reader.entries != 0, f"{reader.where} holds no entries: a matrix of zeros has no components")
    if arrays["indices"].chunks != arrays["data"].chunks or arrays["indices"].shape != arrays["data"].shape:
        raise BadInputError(f"{reader.where}: data and indices need the same length and chunks; ingest it again")
    if arrays["indptr"].shape != (shape[0] + 1,):
        raise BadInputError(f"{reader.where}: indptr has {arrays['indptr'].shape[0]} entries, needs {shape[0] + 1}")
    starts = np.arange(reader.grid[0], dtype=np.int64) * reader.chunk
    first_row, previous = np.zeros(len(starts), np.int64), 0
    chunk = int(arrays["indptr"].chunks[0])
    batch = chunk * max(1, INDPTR_BATCH // chunk)
    for begin in range(0, shape[0] + 1, batch):
        stored = reader.slices["indptr"][begin : begin + batch]
        pointers = stored.astype(np.int64)
        if digests is not None:
            _require_digests(reader, begin, stored, digests["indptr"])
        if checksums is not None:
            _verify_pointers(reader, begin, stored, checksums["indptr"])
        if pointers[0] < previous or (np.diff(pointers) < 0).any() or (begin == 0 and pointers[0] != 0):
            raise BadInputError(
                f"{reader.where}/indptr does not increase from 0: the store is corrupt; ingest the source again"
            )
        inside = (starts >= previous) & (starts < pointers[-1]) if begin else starts < pointers[-1]
        first_row[inside] = begin + np.searchsorted(pointers, starts[inside], side="right") - 1
        previous = int(pointers[-1])
    if previous != reader.entries:
        raise BadInputError(f"{reader.where}/indptr ends at {previous}, but there are {reader.entries} entries")
    return replace(reader, slab_first_row=first_row)


def cut_numbers(fragments: list[Fragment]) -> list[int]:
    """The numbers of the rows that the borders between runs cut, each once."""
    return list(dict.fromkeys(fragment.row for fragment in fragments))


def whole_rows(
    reader: CsrReader, slabs: range, record: ReadStats, fragments: list[Fragment]
) -> Iterator[tuple[int, csr_matrix]]:
    """The number of a row, and whole rows from there on; parts of rows that a border cuts go to ``fragments``."""
    at = reader.rows_of(slabs)[0]  # the row that comes next; rows before it are empty
    for piece in reader.blocks(slabs, record):
        if isinstance(piece, Fragment):
            fragments.append(piece)
            at = piece.row + 1
        else:
            yield at, piece
            at += piece.shape[0]


def rows_and_parts(reader: CsrReader, record: ReadStats) -> Iterator[tuple[int, csr_matrix]]:
    """All rows, chunk by chunk, so that little is held: the number of a row, and rows or a part of one from there."""
    for slab in range(reader.grid[0]):
        reader.read_ahead(range(slab + 1, min(slab + 2, reader.grid[0])))
        at = reader.rows_of(range(slab, slab + 1))[0]
        for piece in reader.blocks(range(slab, slab + 1), record):
            at = piece.row if isinstance(piece, Fragment) else at
            here = cut_rows(reader, [piece]) if isinstance(piece, Fragment) else piece
            yield at, here
            at += here.shape[0]


def cut_rows(reader: CsrReader, fragments: list[Fragment]) -> csr_matrix:
    """The rows that the borders between runs cut, put together again (fragments come in order)."""
    numbers = {row: i for i, row in enumerate(cut_numbers(fragments))}
    lengths = np.zeros(len(numbers) + 1, np.int64)
    for fragment in fragments:
        lengths[numbers[fragment.row] + 1] += len(fragment.data)
    empty = [np.empty(0, reader.dtype)]
    return csr_matrix(
        (
            np.concatenate([f.data for f in fragments] + empty),
            np.concatenate([f.indices for f in fragments] + [np.empty(0, np.int64)]),
            np.cumsum(lengths),
        ),
        shape=(len(numbers), reader.shape[1]),
    )
