"""Blocks (d x p float64) that lie in files: written and read a tile of rows at a time, never mapped into memory.

A mapped file counts as memory of the process as far as it was touched, so that a limit could not be kept. Tiles are a
function of the shape alone: sums over them are formed in one order, whatever the memory and the number of threads.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.numerics.subspaces import BASES, over_tiles
from npmdask.core.storage.bundle import fsync, fsync_folder, uncommitted, write_file_atomically
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.paths import read_facts
from npmdask.errors import BadInputError, CommitError

TILE_BYTES = 8 * 2**20
FOLDER = "blocks"
PROGRESS = "progress.json"


def tiles_of(rows: int, columns: int) -> list[slice]:
    """The rows of each tile of a block of this shape: about TILE_BYTES, and at least 8 times as high as wide."""
    count = max(1, rows // max(TILE_BYTES // (8 * columns), 8 * columns))
    ends = [rows * number // count for number in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


class BlockFile:
    """A block in a file of its numbers alone, row by row.

    Parameters
    ----------
    path : of the file; it need not exist before something is written.
    shape : d rows of p float64.
    checksums : CRC-32C of each tile, which tiles are compared with when they are read; None: not known.
    """

    dtype = np.dtype(np.float64)

    def __init__(self, path: Path, shape: tuple[int, int], checksums: np.ndarray | None = None) -> None:
        self.path, self.shape, self.checksums = path, shape, checksums
        self.tiles = tiles_of(*shape)

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * 8

    def known_by(self, checksums: np.ndarray) -> BlockFile:
        """The same file, each tile compared with its checksum as it is read."""
        return BlockFile(self.path, self.shape, checksums)

    def reserve(self) -> None:
        """Take the room on the disk, so that a disk that is full is found at once.

        Raises
        ------
        CommitError
            There is not so much.
        """
        with self._open_descriptor(os.O_RDWR | os.O_CREAT) as file:
            os.ftruncate(file, self.nbytes)
            os.posix_fallocate(file, 0, self.nbytes)

    def read(self, rows: slice) -> np.ndarray:
        """Some rows, as an array of their own; rows that were never written are zero."""
        values = np.zeros((rows.stop - rows.start, self.shape[1]))
        with self._open_descriptor(os.O_RDONLY) as file:
            left, at = values.reshape(-1).view(np.uint8).data, rows.start * self.shape[1] * 8
            while len(left):
                count = os.preadv(file, [left[: 2**30]], at)
                if not count:
                    break
                left, at = left[count:], at + count
        return values

    def tile(self, number: int) -> np.ndarray:
        """A tile.

        Raises
        ------
        BadInputError
            It is not what was written.
        """
        values = self.read(self.tiles[number])
        if self.checksums is not None and crc32c(values) != int(self.checksums[number]):
            raise BadInputError(
                f"{self.path} is corrupt: tile {number} is not what was written; delete the store and run again"
            )
        return values

    def write(self, start: int, values: np.ndarray) -> None:
        """Replace the rows from ``start`` on.

        Raises
        ------
        CommitError
            The disk is full or the file system failed.
        """
        held = np.ascontiguousarray(values, np.float64)
        with self._open_descriptor(os.O_WRONLY | os.O_CREAT) as file:
            left, at = held.reshape(-1).view(np.uint8).data, start * self.shape[1] * 8
            while len(left):
                count = os.pwrite(file, left[: 2**30], at)
                left, at = left[count:], at + count

    def sums(self, threads: int) -> np.ndarray:
        """The CRC-32C of each tile as it is now."""
        return np.array(list(over_tiles(lambda number: crc32c(self.tile(number)), self, threads)), np.uint32)

    def flush(self) -> None:
        """Have everything on disk that was written."""
        with self._reporting_errors():
            fsync(self.path)
            fsync_folder(self.path.parent)

    @contextmanager
    def _open_descriptor(self, flags: int) -> Iterator[int]:
        with self._reporting_errors():
            file = os.open(self.path, flags | os.O_NOFOLLOW, 0o600)
            try:
                yield file
            finally:
                os.close(file)

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise BadInputError(f"{self.path} is gone, which the run goes on with; run again in a new store") from error
        except OSError as error:
            raise uncommitted(f"write {self.path}", error) from error


class Workspace:
    """The folder of the blocks of a run, and what is done of a step that is not committed.

    Parameters
    ----------
    folder : of the run.
    threads : tiles that are worked on at once.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder, self.threads = folder / FOLDER, threads

    def basis(self, step: int, shape: tuple[int, int]) -> BlockFile:
        """The block X_l of a step, in the place of the one of three steps before."""
        return BlockFile(self.folder / f"basis-{step % BASES}", shape)

    def rows(self, number: int, shape: tuple[int, int]) -> BlockFile:
        """A product with rows of the data, which takes turns with the one before it."""
        return BlockFile(self.folder / f"rows-{number % 2}", shape)

    def reserve(self, files: list[BlockFile]) -> None:
        """Make the folder, and take the room that ``files`` need.

        Raises
        ------
        CommitError
            The disk is too small; nothing is left behind.
        """
        new = not self.folder.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for file in files:
                file.reserve()
        except CommitError:
            if new:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def progress(self, step: int) -> dict[str, Any]:
        """Return what is done of ``step``; nothing, where that is of another or was cut."""
        try:
            found = read_facts(self.folder / PROGRESS)
        except (OSError, ValueError):
            return {}
        return dict(found["done"]) if found.get("step") == step else {}

    def note(self, step: int, done: dict[str, Any]) -> None:
        """Remember what is done of ``step``, in files that were flushed."""
        write_file_atomically(self.folder / PROGRESS, json.dumps({"step": step, "done": done}).encode())
