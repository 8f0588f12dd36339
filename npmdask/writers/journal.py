"""Writing a data set out of core so that a kill never leaves a store that looks whole.

Everything goes to ``DEST.partial``; a journal beside the data says how far it is durable; ``finish`` writes
the record (kind, fingerprint, checksums, column statistics) and renames the folder to ``DEST``. A writer
opened again with the same identity goes on at ``next_row``. A mark in the identity is one of what is written.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec
from zarr.core.sync import sync

from npmdask.core.storage.bundle import fsync, fsync_folder, read_bundle, write_bundle
from npmdask.core.storage.checksum import crc32c, fingerprint
from npmdask.core.storage.chunk_access import PLAIN
from npmdask.core.storage.paths import require_no_link, require_path
from npmdask.core.storage.safe_open import BUDGET_MARK, carried
from npmdask.errors import BadInputError, CommitError, RefusedError

FORMAT = 1
JOURNAL_BYTES = 128 * 2**20  # redone at most, after a kill


class JournalledWriter:
    """The part that dense and sparse writers share: the folder aside, its lock-step journal, the last rename."""

    dtype: np.dtype
    compress: bool

    def __init__(self, dest: Path | str, kind: str, identity: dict[str, Any], overwrite: bool) -> None:
        self.kind = kind
        require_path(dest)
        self.dest = Path(dest).absolute()
        self.partial = self.dest.with_name(self.dest.name + ".partial")
        self._journal = self.partial / "journal"
        require_no_link(self.dest)
        require_no_link(self.partial)
        facts = {"format": FORMAT, "kind": kind, "digests": "sha256", **identity}  # begun without them: begin again
        self.identity = json.loads(json.dumps(facts, default=str))
        # After a kill between the two renames of an overwrite, the old store is put back, or cleared away.
        if self._replaced_path.exists() and not self.dest.exists():
            os.rename(self._replaced_path, self.dest)
        shutil.rmtree(self._replaced_path, ignore_errors=True)
        if self.dest.exists() and not overwrite:
            raise RefusedError(f"{self.dest} exists already; choose another name or pass --overwrite")
        self._overwrite = overwrite

    @property
    def _replaced_path(self) -> Path:
        return self.dest.with_name(self.dest.name + ".replaced")

    def _resume(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """The last durable journal entry, or None after clearing the way for a fresh start."""
        entries = sorted(self._journal.glob("[0-9]*")) if self._journal.is_dir() else []
        for entry in reversed(entries):
            try:
                arrays, meta = read_bundle(entry)
            except BadInputError:
                continue
            if meta["identity"] == self.identity:
                for left in self.partial.rglob("*.partial"):  # zarr writes each chunk aside under such a name
                    left.unlink()
                return arrays, meta
        shutil.rmtree(self.partial, ignore_errors=True)
        with self._reporting_errors():
            self.partial.mkdir(parents=True)
            self._journal.mkdir()
        return None

    def _begin(self, create: Callable[[], Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Create the array, or open it as a kill has left it: then what the journal knows of it."""
        found = self._resume()
        if found is None:
            with self._reporting_errors():
                self._array = create()
        else:
            self._array = reopen(zarr.open_array(self.partial / "data", mode="r+"))
        return found

    def _require_all(self, written: int, expected: int, what: str) -> None:
        if written < expected:
            raise BadInputError(
                f"the source of {self.dest} ended after {written} of {expected} {what}: it is truncated; nothing was "
                "published"
            )

    def _is_entry_due(self, written: int) -> bool:
        """Say whether ``written`` bytes since the last entry call for another."""
        return written >= JOURNAL_BYTES

    def _log(self, position: int, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        entry = self._journal / f"{position:015d}"
        if entry.exists():
            return
        write_bundle(entry, arrays, {"identity": self.identity, **meta})
        for older in sorted(self._journal.glob("[0-9]*"))[:-1]:
            shutil.rmtree(older, ignore_errors=True)

    def _sync_chunk(self, array: Any, position: tuple[int, ...]) -> None:
        fsync(self.partial / "data" / array.metadata.encode_chunk_key(position))

    def _codecs(self, compress: bool) -> list[Any] | None:
        return [BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=self.dtype.itemsize)] if compress else None

    def _create_packed(self, count: int, shape: tuple[int, ...]) -> Any:
        """The array of ``count`` blocks of a ``shape``, a chunk each."""
        return zarr.open_group(self.partial, mode="a").create_array(
            "data",
            shape=(count, *shape),
            dtype=self.dtype,
            chunks=(1, *shape),
            compressors=self._codecs(self.compress),
            chunk_key_encoding={"name": "default", "separator": "."},  # one folder, not two or three for each chunk
            config={"write_empty_chunks": True},  # a chunk that is not there is an error, not zeros
        )

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        """Around writes to the folder: a full disk is named as such."""
        try:
            yield
        except OSError as error:
            # zarr writes several files at once and raises when the first fails. The others end before we say what is
            # kept: afterwards nothing writes to the folder any longer.
            sync(_wait_for_zarr_tasks())
            raise CommitError(
                f"cannot write {self.partial}: {error.strerror or error}. Free some space and run the same command "
                "again: it continues from what is already written"
            ) from error

    def _finish(
        self,
        facts: dict[str, Any],
        layout: str,
        digests: list[np.ndarray],
        beside: dict[str, np.ndarray],
        extra: dict[str, Any] | None,
    ) -> str:
        """Write the arrays ``beside`` the data and the record, make ``DEST`` appear; returns the fingerprint."""
        printed = fingerprint({**facts, "layout": layout}, digests)
        record = {"format": FORMAT, "kind": self.kind, "fingerprint": printed, **facts, **(extra or {})}
        record["beside"] = {name: crc32c(array) for name, array in beside.items()}
        with self._reporting_errors():
            group = zarr.open_group(self.partial, mode="a")
            for name, array in beside.items():
                _write_array(group, name, array)
            group.attrs.update({"npmdask": record} | carried(self.identity.get(BUDGET_MARK)))
            self._publish()
        return printed

    def _publish(self) -> None:
        sync_tree(self.partial)
        shutil.rmtree(self._journal)
        if self._overwrite and self.dest.exists():
            shutil.rmtree(self._replaced_path, ignore_errors=True)  # a kill between the renames may have left one
            os.rename(self.dest, self._replaced_path)
            os.rename(self.partial, self.dest)
            shutil.rmtree(self._replaced_path)
        else:
            os.rename(self.partial, self.dest)
        fsync_folder(self.dest.parent)


async def _wait_for_zarr_tasks() -> None:
    """Wait until the tasks that zarr has begun are done, whatever becomes of them."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


def sync_tree(root: Path) -> None:
    """Flush every file and folder below ``root``."""
    for folder, _, files in os.walk(root):
        for name in files:
            fsync(Path(folder, name))
        fsync_folder(Path(folder))


def reopen(array: Any) -> Any:
    """An opened array that writes chunks of zeros too: that setting is not stored with the array."""
    return array.with_config({"write_empty_chunks": True})


def _write_array(group: Any, name: str, array: np.ndarray) -> None:
    """One small or medium array beside the data, whole, replacing what a killed run may have left."""
    chunks = tuple(max(1, min(n, 2**20)) for n in array.shape)
    options: dict[str, Any] = {"chunks": chunks, "overwrite": True, **PLAIN}
    group.create_array(name, shape=array.shape, dtype=array.dtype, **options)[...] = array
