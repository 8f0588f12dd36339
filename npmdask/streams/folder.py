"""What lies in a directory that others write to: which entries are complete, and whether one is still the same."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from npmdask.errors import BadInputError

Mark = tuple[int, int]  # bytes, and time of the last change in ns; of a folder: of all that is in it
UNFINISHED = (".partial", ".part", ".tmp", ".temp", ".crdownload", ".swp", "~")


def complete_names(folder: Path, pattern: str) -> list[str]:
    """Names of the entries that match ``pattern`` and are not still being written, in order.

    A file is written under another name and renamed when it is whole: hidden names and those that end like
    ``UNFINISHED`` are left alone.
    """
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise BadInputError(f"{folder} cannot be listed ({error.strerror}): name a directory that exists") from error
    return sorted(name for name in names if is_complete(name) and fnmatchcase(name, pattern))


def is_complete(name: str) -> bool:
    """Whether a writer that renames what it finished could have given this name."""
    return not name.startswith(".") and not name.lower().endswith(UNFINISHED)


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
    """What happened to a file between two marks, as the end of a sentence; empty if nothing."""
    if now is None:
        return "has vanished"
    if now[0] != then[0]:
        return f"{'shrank' if now[0] < then[0] else 'grew'} from {then[0]} to {now[0]} bytes"
    return "was written again" if now != then else ""
