"""A directory that grows: every file in it once, in the order of the numbers in their names, when it is complete."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npmdask.core.storage.checksum import crc32c, fingerprint
from npmdask.core.storage.columns import Choice, at
from npmdask.core.storage.paths import in_order, inside_data
from npmdask.errors import BadInputError, RefusedError, require
from npmdask.formats import open_file
from npmdask.formats.common import DenseSource, SparseSource, guarded, reading
from npmdask.streaming.row_files import joined_keys
from npmdask.streaming.sources import BatchedStream, Position, RowBlock, count_of, dense, require_count, require_same

# What lies in a directory that others write to: which entries are complete, and whether one is still the same.

Mark = tuple[int, int]  # bytes, and time of the last change in ns; of a folder: of all that is in it
UNFINISHED = (".partial", ".part", ".tmp", ".temp", ".crdownload", ".swp", "~")


def complete_names(folder: Path, pattern: str) -> list[str]:
    """Names of the entries that match ``pattern`` and are not still being written, in the order of their numbers.

    A file is written under another name and renamed when it is whole: hidden names and those that end like
    ``UNFINISHED`` are left alone.
    """
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise BadInputError(f"{folder} cannot be listed ({error.strerror}): name a directory that exists") from error
    return sorted((name for name in names if is_complete(name) and fnmatchcase(name, pattern)), key=in_order)


def is_complete(name: str) -> bool:
    """Say whether a writer that renames what it finished could have given this name."""
    return bool(name) and not name.startswith(".") and not name.lower().endswith(UNFINISHED)


def mark_of(path: Path) -> Mark | None:
    """Size and time of the last change of a file or of all files in a folder; None if there is nothing."""
    try:
        if not path.is_dir():
            return _sum([path])
        return _sum(Path(base) / name for base, _, names in os.walk(path) for name in names)
    except FileNotFoundError:
        return None


def _sum(files: Iterable[Path]) -> Mark:
    stats = [file.stat() for file in files]
    return sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)


def difference(then: Mark, now: Mark | None) -> str:
    """Say what happened to a file between two marks, as the end of a sentence; empty if nothing."""
    if now is None:
        return "has vanished"
    if now[0] != then[0]:
        return f"{'shrank' if now[0] < then[0] else 'grew'} from {then[0]} to {now[0]} bytes"
    return "was written again" if now != then else ""


class _Cursor(NamedTuple):
    """Position in a directory: how many files are done, and the file and row that come next; no file: none is begun.

    ``digest``: CRC-32C of the rows of that file before the next one.
    """

    done: int
    file: str | None = None
    mark: Mark = (0, 0)
    row: int = 0
    digest: int = 0


class Directory(BatchedStream):
    """A stream of the rows of all files in ``path`` whose names match ``pattern``.

    Files (every format that can be ingested) are taken in the order of the numbers in their names; one that arrives
    while others are read is found when those are used up, whatever its name. A file counts as complete if it has not a
    hidden or temporary name (``folder.UNFINISHED``): write under such a name and rename. ``read`` returns None when
    there is nothing new *now*; batches cross the borders between files.

    A batch is shorter at the end of what is there now, so that its size depends on when files arrive. With
    ``full_batches`` such a rest is left for later and the batches are a function of the files alone.

    ``columns``: width of the rows; without it the first file says so. ``header``: of CSV files, as for ingest.
    ``choice``: of the columns of tables.
    ``spool``: where temporary files may go (column-major or packed formats); by default the system's folder.
    A finished file may be taken away but not be written again: its new rows would never be used. One that was begun
    may change behind the rows that were used: where one of those that follow could not be, it can be corrected.
    """

    keep: tuple[str, ...] = ()  # columns that are given beside the rows, as ``keys``

    def __init__(
        self,
        path: str | Path,
        pattern: str = "*",
        *,
        columns: int | None = None,
        full_batches: bool = False,
        header: bool | None = None,
        non_finite: str = "refuse",
        gaps: str = "refuse",
        spool: str | Path | None = None,
        choice: Choice | None = None,
    ) -> None:
        self._path, self._pattern, self._header, self._choice = Path(path), pattern, header, choice
        self.notes: tuple[str, ...] = ()
        self._full = full_batches
        self._spool = Path(spool or tempfile.gettempdir()) / f"npmdask-stream-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._clean = weakref.finalize(self, shutil.rmtree, self._spool, ignore_errors=True)
        self._done: dict[str, Mark] = {}
        self._numbered = True  # a stream of an earlier version goes on in the order of the names as text
        self._waiting: deque[str] = deque()
        self._keys: _Keys | None = None  # of the file that is open
        self._open: tuple[str, int, Generator[Any], Any] | None = None  # file, next row, batches, rest of one
        columns = self._first_width() if columns is None else require_count(columns, "columns")
        super().__init__(columns, non_finite, gaps)
        self._cursor = _Cursor(0)

    def close(self) -> None:
        """Remove temporary files; the position stays."""
        self._close_file()

    def require_outside(self, store: Path) -> None:
        """Raise BadInputError for a store that would be taken for one of the files."""
        folder, place = (Path(os.path.realpath(path)) for path in (self._path, store))
        name = place.relative_to(folder).parts[:1] if place.is_relative_to(folder) else ("",)
        if not name or (is_complete(name[0]) and fnmatchcase(name[0], self._pattern)):
            raise inside_data(store, self._path)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of width and pattern; which files were used, and how they were, is in the position."""
        facts: dict[str, Any] = {"stream": "directory", "columns": self._columns}
        facts |= {} if self._choice is None else {"choice": self._choice.at("")}
        return fingerprint({**facts, "pattern": self._pattern, "full": self._full}, [])

    @property
    def position(self) -> Position:
        """The files that are done (size, time of change), the one that is begun, its next row and what was before."""
        at, counts = self._cursor, {"rows_read": self._rows_read, "skipped": self._skipped}
        done = {name: list(mark) for name, mark in self._done.items()}
        begun = {"file": at.file, "mark": list(at.mark), "row": at.row, "digest": at.digest}
        numbered = {"numbered": True} if self._numbered else {}
        return {**counts, "columns": self._columns, "done": done, **begun, **numbered}

    def seek(self, position: Position) -> None:
        """Go to ``position``.

        Raises
        ------
        RefusedError
            The file that was begun has vanished since, or rows of it that were used or a finished file have changed.
        BadInputError
            The file that was begun has changed, and cannot be read any more.
        """
        require_same(position, {"columns": self._columns}, str(self._path))
        counts = count_of(position, "rows_read"), count_of(position, "skipped")
        done, at = _parsed(position)
        for name, mark in done.items():
            self._require_unchanged(name, mark)
        at = self._revalidated_cursor(at)
        self._close_file()
        self._done, self._cursor = done, at
        self._rows_read, self._skipped = counts
        self._numbered = bool(position.get("numbered"))

    def _take(self, limit: int) -> RowBlock | None:
        while True:
            if self._cursor.file is None and not self._advance_to_next_file():
                return None
            rest = self._remaining_rows()
            if rest is not None:
                break
            self._finish()
        assert self._open is not None and self._cursor.file is not None
        name, row, batches, _ = self._open
        piece = rest[:limit]
        self._open = (name, row + piece.shape[0], batches, rest[limit:] if rest.shape[0] > limit else None)
        self._cursor = self._cursor._replace(row=row + piece.shape[0])
        path = self._path / name
        keys = None if self._keys is None else self._keys.take(piece.shape[0], path)
        return RowBlock(piece, lambda i: f"row {row + i} of {path}", keys=keys)

    def _after_piece(self, part: np.ndarray) -> None:
        self._cursor = self._cursor._replace(digest=crc32c(part, self._cursor.digest))

    def _after_read(self) -> None:
        """A file whose last row was given is done now, not at the next read: it may be gone by then."""
        if self._cursor.file is not None and self._remaining_rows() is None:
            self._finish()

    def _defers_partial_batch(self) -> bool:
        return self._full

    def _restore(self, cursor: _Cursor) -> None:
        self._close_file()
        while len(self._done) > cursor.done:
            self._done.popitem()
        self._cursor = cursor

    # Files

    def _advance_to_next_file(self) -> bool:
        """Set the cursor on the next complete file, looking for new ones when no more are known."""
        while True:
            if not self._waiting and not self._find_new_files():
                return False
            name = self._waiting.popleft()
            mark = mark_of(self._path / name)
            if mark is not None:  # taken away before it was begun: none of our business
                self._cursor = _Cursor(len(self._done), name, mark, 0)
                return True

    def _find_new_files(self) -> bool:
        names = complete_names(self._path, self._pattern)
        names = names if self._numbered else sorted(names)
        for name in names:
            if name in self._done:
                self._require_unchanged(name, self._done[name])
        self._waiting.extend(name for name in names if name not in self._done)
        return bool(self._waiting)

    def _require_unchanged(self, name: str, mark: Mark) -> None:
        now = mark_of(self._path / name)
        if now is not None and (what := difference(mark, now)):
            raise RefusedError(
                f"{self._path / name} {what} after all its rows were used, so new rows in it would never be used: "
                "write them to a file with a new name, and restore the old file with its times (cp -p) or remove it"
            )

    def _revalidated_cursor(self, at: _Cursor) -> _Cursor:
        """The cursor in the file as it is now, where the rows that were used are what they were."""
        if at.file is None:
            return at
        path = self._path / at.file
        now = mark_of(path)
        what = difference(at.mark, now)
        if what and (now is None or not self._begins_with(path, at)):
            raise _used_file_error(path, at.row, what)
        return at._replace(mark=now or at.mark)

    def _begins_with(self, path: Path, at: _Cursor) -> bool:
        digest, left = 0, at.row
        with closing(self._batches(path, 0)) as batches:
            while left and (values := next(batches, None)) is not None:
                used = dense(values[:left])
                digest, left = crc32c(used, digest), left - len(used)
        return digest == at.digest

    def _remaining_rows(self) -> Any | None:
        """Rows of the current file from the cursor on, as many as are at hand; None at its end."""
        at = self._cursor
        if self._open is None or self._open[:2] != (at.file, at.row):
            self._close_file(keep_names=True)
            self._open = (at.file, at.row, self._batches(self._path / at.file, at.row), None)
        name, row, batches, rest = self._open
        while rest is None or not rest.shape[0]:
            rest = next(batches, None)
            if rest is None:
                return None
        self._open = (name, row, batches, rest)
        return rest

    def _batches(self, path: Path, row: int) -> Generator[Any]:
        with reading(path):
            # A missing value is a row that is not finite where those are skipped.
            missing = "nan" if self._gaps != "refuse" or self._non_finite == "skip" else "error"
            source = self._source_of_file(path, missing)
        if source.columns != self._columns:
            raise BadInputError(
                f"{path} has {source.columns} columns and the stream has {self._columns}: move it out of the "
                "directory, or stream it separately"
            )
        if self.keep:
            keys = source.keys if isinstance(source, DenseSource) else None
            if keys is None:
                raise BadInputError(f"{path} has no names of columns, of which {', '.join(self.keep)} could be kept")
            self._keys = _Keys(keys(self.keep), row)
        places = self._column_places(() if source.labels is None else source.labels.columns, str(path))
        rows = source.batches(row) if places is None else (batch[:, places] for batch in source.batches(row))
        return guarded(path, iter(rows))

    def _source_of_file(self, path: Path, missing: str) -> DenseSource | SparseSource:
        source = open_file(Path(at(path, self._choice)), None, missing, self._header, self._spool)
        self.header, self.notes = self.header or source.header, self.notes or source.notes
        return source

    def _finish(self) -> None:
        at = self._cursor
        assert at.file is not None
        path = self._path / at.file
        require(at.row != 0, f"{path} holds no rows: move it out of the directory")
        now = mark_of(path)
        if now is not None and (what := difference(at.mark, now)):
            raise _used_file_error(path, at.row, what)
        self._close_file(keep_names=True)
        self._done[at.file] = at.mark
        self._cursor = _Cursor(len(self._done))

    def _close_file(self, keep_names: bool = False) -> None:
        """Let go of the open file and of what was unpacked of it."""
        if self._open is not None:
            self._open[2].close()
        self._open = None
        shutil.rmtree(self._spool, ignore_errors=True)
        if not keep_names:
            self._waiting.clear()

    def _first_width(self) -> int:
        for name in complete_names(self._path, self._pattern):
            with reading(self._path / name):
                first = self._source_of_file(self._path / name, "error")
                self._column_places(() if first.labels is None else first.labels.columns, str(self._path / name))
                return first.columns
        raise BadInputError(
            f"{self._path} holds no complete file {self._pattern!r} yet: say how wide the rows will be with columns="
        )


class _Keys:
    """Columns of a file that are given beside its rows, from a row on."""

    def __init__(self, tables: Iterator[Any], row: int) -> None:
        self._tables, self._held, self._ahead = tables, list[Any](), row

    def take(self, rows: int, path: Path) -> Any:
        """The next rows of them, an Arrow table."""
        with reading(path):
            while sum(table.num_rows for table in self._held) < rows + self._ahead:
                self._held.append(next(self._tables))
        table = joined_keys(self._held)
        self._held, start = [table.slice(self._ahead + rows)], self._ahead
        self._ahead = 0
        return table.slice(start, rows)


def _used_file_error(path: Path, row: int, what: str) -> RefusedError:
    return RefusedError(
        f"{path} {what} after its rows up to row {row} were used: restore these rows as they were (later rows may "
        "change), or start again"
    )


def _parsed(position: Position) -> tuple[dict[str, Mark], _Cursor]:
    """The files that are done and the cursor of a position that may come from anywhere."""
    try:
        done = {str(name): (int(size), int(time)) for name, (size, time) in position["done"].items()}
        file, (size, time) = position["file"], position["mark"]
        if not (file is None or isinstance(file, str)) or file in done or any("/" in n for n in [*done, file or ""]):
            raise ValueError("its names are not of files in the directory")
        row, digest = count_of(position, "row"), count_of(position, "digest")
        return done, _Cursor(len(done), file, (int(size), int(time)), row, digest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInputError(
            f"the position of the stream is damaged ({error}): use the `position` of a stream or of a checkpoint as it "
            "was given"
        ) from error
