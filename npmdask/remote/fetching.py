"""Data in object stores and in snapshots of icechunk: as sources, and how their chunks are fetched."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.core.sync import sync

from npmdask.core.storage import chunk_access
from npmdask.core.storage.chunk_access import RESTORE, Access, FillRows, first_line, rows_of, stored_shape, within
from npmdask.core.storage.source import IN_MEMORY, Asked, Source, open_stored, require_stored
from npmdask.errors import BadInputError, LostError, NpmdaskError
from npmdask.remote import on_the_way, snapshots
from npmdask.remote.object_url import objects, of_an_object_store, open_remote
from npmdask.remote.prefetch import (
    SAMPLED,
    Came,
    NoAnswerError,
    Piece,
    Remote,
    fetches_ahead,
    prefetch_piece,
    take,
    take_all,
)

TOLD = ("size", "mtime", "LastModified", "ETag", "updated", "etag")  # of files and objects, by those who list them


def open_url(url: str, asked: Asked) -> Source:
    """Open what lies at a URL."""
    return open_stored(open_remote(url), url, asked)


def open_in_repository(source: str | Path, path: Path, asked: Asked) -> Source | None:
    """Open what a path into a repository of icechunk leads to; None of everything else."""
    if (inside := snapshots.in_repository(path)) is None:
        return None
    require_stored(source, asked)
    return open_stored(*snapshots.open_repository(*inside), asked)


# How chunks are fetched: :class:`npmdask.core.storage.chunk_access.Fetcher`.


class OfStore:
    """Access to arrays of a zarr store that is neither a folder nor memory."""

    of_a_program = False

    def location(self, node: Any) -> str:
        store, name = node.store_path.store, node.path
        if not isinstance(store, zarr.storage.ObjectStore):
            return str(node.store_path).removeprefix("file://")
        inner = store.store
        bucket = getattr(inner, "config", {}).get("bucket", "")
        return "/".join(part for part in (f"s3://{bucket}", str(inner.prefix or ""), name) if part)

    def seen(self, node: Any) -> dict[str, Any]:
        """Names, sizes, times or tags of the objects."""
        held = node.store_path.store
        if isinstance(held, zarr.storage.ObjectStore):
            return {"objects": objects(node)}
        if not isinstance(held, zarr.storage.FsspecStore):
            return {}
        # As Dask opens a path.
        found = sync(held.fs._find("/".join(part for part in (held.path, node.path) if part), detail=True))
        return {"objects": sorted((name, *map(str, map(about.get, TOLD))) for name, about in found.items())}

    def named(self, group: Any, names: str, path: str) -> tuple[str, str]:
        return names, f"{path}/NAME"

    def taken(self, array: Any, name: str) -> np.ndarray:
        return take(array, _piece_of(array, name))

    def rows(self, array: Any, access: Access, name: str, columns: int | None, *, some: bool) -> FillRows:
        return FetchedShard(array, access, name, columns, some=some)

    def ask_ahead(self, array: Any, access: Access, name: str, columns: int | None, some: range | None) -> None:
        index = access.by_rows
        prefetch_piece(array, _index_piece(array, access, name, columns, some) if index else _piece_of(array, name))

    def remote(self, array: Any, names: Callable[[int], tuple[str, ...]], nbytes: int) -> Remote | None:
        return Remote(array, names(SAMPLED), nbytes) if fetches_ahead(array) else None

    def refused(self, said: str, error: Exception) -> NpmdaskError | None:
        if not of_an_object_store(error) and not isinstance(error, NoAnswerError):
            return None
        return LostError(
            f"{said} cannot be fetched ({first_line(error)}): check the network, the "
            "credentials and AWS_ENDPOINT_URL, then resume; everything committed is kept"
        )

    def unchecked(self, source: Any) -> tuple[str, ...]:
        return on_the_way.unchecked(source)

    def corrupt(self, said: str, array: Any, known: int, again: Callable[[], int]) -> NpmdaskError | None:
        """Return the error for a chunk that may have been damaged on its way: it is read ``again``, twice."""
        if not fetches_ahead(array):
            return None
        sums, remedy = {again(), again()}, RESTORE
        if known in sums:
            return LostError(
                f"{said} came damaged on its way: run the same command again; everything committed is kept"
            )
        if len(sums) == 1:
            twice = "read twice more it is the same, so that one came damaged on its way, or the data have changed"
            remedy = f"{twice}: if they are right, start again in a new store (--store), else {RESTORE}"
        return BadInputError(f"{said} is corrupt: its checksum is not that of its first reading; {remedy}")


class OfSnapshot(OfStore):
    """Access to arrays of an icechunk snapshot."""

    of_a_program = True
    node_of = staticmethod(snapshots.node_of)
    inside = staticmethod(snapshots.in_repository)
    opened = staticmethod(snapshots.open_repository)

    def location(self, node: Any) -> str:
        shown = f"icechunk snapshot {snapshots.snapshot_of(node.store_path.store)}"
        return f"{shown}/{node.path}" if node.path else shown

    def seen(self, node: Any) -> dict[str, Any]:
        """Its id, and the place in it."""
        return {"snapshot": snapshots.snapshot_of(node.store_path.store), "place": node.path}

    def named(self, group: Any, names: str, path: str) -> tuple[str, str]:
        session = "zarr.open_array(session.store, path='NAME', mode='r')"
        name = session if path.startswith(IN_MEMORY) else f"{path}/NAME"
        return names if names != "none" else f"none; further down {snapshots.arrays_in(group)}", name

    def refused(self, said: str, error: Exception) -> NpmdaskError | None:
        if not snapshots.is_of_icechunk(error):
            return None
        if "authorize" in str(error):
            return BadInputError(
                f"{said} is a virtual one, in a file that this repository was not allowed to read: open "
                "it in Python by icechunk.Repository.open(..., authorize_virtual_chunk_access={PREFIX: None}), and "
                "give its readonly_session('main')"
            )
        gone = "not found" in str(error)  # and will be so the next time
        return (BadInputError if gone else LostError)(
            f"{said} cannot be fetched ({snapshots.reason_of(error)}): check the storage of the repository, "
            "then resume; everything committed is kept"
        )


STORE, SNAPSHOT = OfStore(), OfSnapshot()


class FetchedShard:
    """Fills rows of a shard of an object store, of which some bands (:meth:`ShardRows.bands`) are in memory at a time.

    First the index is fetched, of the shard's end mostly, then the bands, of the version that the index is of. As soon
    as an index has come that was asked for early, its bands are asked for.
    """

    def __init__(self, array: Any, access: Access, name: str, columns: int | None, *, some: bool) -> None:
        self._array, self._name = array, name
        index = _index_piece(array, access, name, columns)
        came = take_all(array, [index._replace(then=lambda _: []) if some else index])[0]
        self._tag = came.tag
        first = access.shard is not None and access.shard.at_start
        self._held = {(0 if first or _is_whole(came) else came.size - len(came.data)): came.data}
        self._rows = rows_of(array, access, self._read, came.size, columns)
        self._bands = [] if _is_whole(came) else self._rows.bands(0 if some else chunk_access.PIECE)
        if self._bands:
            self._held.clear()

    def __call__(self, part: np.ndarray, first: int) -> None:
        """Fill ``part`` (n x the width of the shard) with the rows from ``first`` on."""
        spans = {span for band in within(self._bands, first, first + len(part)) for span in band.spans}
        if self._bands:
            self._held = {at: data for at, data in self._held.items() if (at, at + len(data)) in spans}
        new = sorted(span for span in spans if span[0] not in self._held)
        for span, came in zip(
            new, take_all(self._array, [_part(self._name, self._tag, span) for span in new]), strict=True
        ):
            self._held[span[0]] = came.data
        self._rows(part, first)

    def _read(self, part: np.ndarray, offset: int) -> None:
        """Copy the bytes held into ``part``; the others lie between inner chunks, and nothing looks at them."""
        stop = offset + len(part)
        for at, data in self._held.items():
            begin, end = max(at, offset), min(at + len(data), stop)
            if begin < end:
                part[begin - offset : end - offset] = data[begin - at : end - at]


def _part(name: str, tag: str | None, span: tuple[int, int]) -> Piece:
    return Piece(name, span[1] - span[0], span, tag)


def _index_piece(array: Any, access: Access, name: str, columns: int | None, some: range | None = None) -> Piece:
    """The index of a shard, which all bands of it follow, or those of ``some`` rows."""
    shard, shape = access.shard, stored_shape(array)
    assert shard is not None
    counts = tuple(n // inner for n, inner in zip(shape, shard.inner, strict=True))
    nbytes = shard.index_bytes(counts)

    def follow(came: Came) -> list[Piece]:
        try:
            if _is_whole(came):
                return []
            table = rows_of(array, access, partial(_copy_into, came.data), came.size, columns)
        except ValueError:  # which the thread that takes the index will raise
            return []
        bands = table.bands(chunk_access.PIECE) if some is None else within(table.bands(0), some.start, some.stop)
        return [_part(name, came.tag, span) for band in bands for span in band.spans]

    rows = shape[0] if some is None else len(some)
    held = min(rows * math.prod(shape[1:]) * np.dtype(array.dtype).itemsize, 2 * chunk_access.PIECE)
    return Piece(name, held, (0, nbytes) if shard.at_start else (-nbytes, 0), None, follow)


def _copy_into(data: np.ndarray, part: np.ndarray, _: int) -> None:
    part[:] = data


def _is_whole(came: Came) -> bool:
    """Say whether all of a shard came where its index was asked for: its server sends no parts."""
    return len(came.data) == came.size


def _piece_of(array: Any, name: str) -> Piece:
    size = 2**62 if array.dtype.hasobject else math.prod(stored_shape(array)) * array.dtype.itemsize  # of text: any
    return Piece(name, size)
