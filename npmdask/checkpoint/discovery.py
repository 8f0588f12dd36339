"""Run stores below a folder: which there are, and how large. Nothing is locked or written, and no link followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npmdask.errors import BadInputError
from npmdask.storage.bundle import MANIFEST

OWN = (
    "run.json",
    "ledger.json",
    "lock",
    "lock.taking",
    "epoch",
    "starts.json",
    "telemetry.jsonl",
    "report.html",
    "steps",
    "pass",
)
GOING = ".npmdask-gc"  # where whole runs are moved before they are removed: a kill leaves no half of one


def is_store(folder: Path) -> bool:
    """Whether a folder is the store of a run (or what a kill left of one)."""
    return (folder / "lock").is_file() and (folder / "steps").is_dir() and not folder.is_symlink()


def stores_below(folder: Path) -> list[Path]:
    """Every run store in ``folder`` or below it, by name; not the stages inside of a store.

    Raises
    ------
    BadInputError
        There is no such folder.
    """
    if not folder.is_dir():
        raise BadInputError(f"there is no folder {folder}; name the one that your runs lie in")
    return sorted(path for path in folders_below(folder) if is_store(path))


def folders_below(folder: Path) -> Iterator[Path]:
    """The folder and those below it: not what lies in a run store or in an array, nor what is being removed."""
    yield folder
    if is_store(folder):
        return
    for place, folders, _ in os.walk(folder):  # which follows no links
        here = [Path(place) / name for name in folders if not os.path.islink(os.path.join(place, name))]
        yield from here
        folders[:] = [path.name for path in here if not (is_store(path) or _is_data(path) or path.name == GOING)]


def _is_data(folder: Path) -> bool:
    """Arrays have a folder for every row of chunks."""
    return (folder / "zarr.json").exists()


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of all files below a folder. ``committed``: time (Unix) of the newest bundle, None if there is none."""

    bytes: int
    committed: float | None
    changed: float


def size_of(folder: Path) -> Size:
    """Sizes and times of what lies in a folder, or of one file; what goes away meanwhile is not counted."""
    nbytes, committed, changed = 0, 0.0, 0.0
    for place, name in _files(folder):
        try:
            found = os.lstat(os.path.join(place, name))
        except OSError:
            continue
        nbytes += found.st_size
        changed = max(changed, found.st_mtime)
        if name == MANIFEST:
            committed = max(committed, found.st_mtime)
    return Size(bytes=nbytes, committed=committed or None, changed=changed)


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    if not folder.is_dir() or folder.is_symlink():
        yield str(folder.parent), folder.name
        return
    for place, _, files in os.walk(folder):
        yield from ((place, name) for name in files)
