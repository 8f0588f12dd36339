"""Files of other formats as sources: read once into a store of their own, which every later run takes.

::

    CACHE/files/<hash of path, array and kind>/data.zarr     the store, as ``npmdask ingest`` makes it
    CACHE/files/<hash of path, array and kind>/copied.json   the path, and what its file looked like then

CACHE is ``$NPMDASK_CACHE``, or ``~/.cache/npmdask``, its owner's only (0700). A run is bound to the content, whose
fingerprint is that of the store: a copy may be deleted at any time, and is made again where it is needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from npmdask.errors import BadInputError, RefusedError, package_version
from npmdask.storage.bundle import write_file_atomically
from npmdask.storage.ingest import ingest
from npmdask.storage.kinds import KEPT
from npmdask.storage.paths import cache_folder, require_no_link

TELLS = "npmdask.files"  # the logger; the command line shows what it says
NOTE, DATA = "copied.json", "data.zarr"
FRESH = 2 * 10**9  # nanoseconds: a file that was written so shortly before may change once more unseen


def file_of(path: Path) -> tuple[Path, str | None] | None:
    """The file at ``path`` and the array in it, as ``FILE/NAME``; None where there is neither: a store, or nothing.

    A folder of Parquet files is a file, too.
    """
    if path.is_dir():
        parts = not (path / "zarr.json").exists() and not (path / ".zgroup").exists() and any(path.glob("*.parquet"))
        return (path, None) if parts else None
    for file in (path, *path.parents):
        if file.is_file():
            return file, path.relative_to(file).as_posix() if file != path else None
        if file.exists():
            break
    return None


def copy_of(file: Path, array: str | None, kind: str | None, *, gaps: bool = False) -> Path:
    """The store with the rows of a file, which is read if there is none, or if it has changed since. ``gaps``: its
    missing values are kept, as NaN.

    Raises
    ------
    BadInputError
        The file cannot be read or not be analysed: the place is named.
    RefusedError
        It changed while it was read, or the disk is too small for the copy.
    """
    asked: dict[str, Any] = {"path": str(file.absolute()), "array": array, "kind": kind, "npmdask": package_version()}
    asked |= {"gaps": True} if gaps else {}
    folder = cache_folder() / "files" / hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    with _alone(folder):
        seen, settled = look_of(file), _is_settled(file)
        if settled and _noted(folder) == {**asked, "look": seen} and (folder / DATA).is_dir():
            return folder / DATA
        (folder / NOTE).unlink(missing_ok=True)
        logging.getLogger(TELLS).warning(
            "%s is read into a store first, %s; later runs of it take that. `npmdask ingest` puts it where you want it",
            file,
            folder / DATA,
        )
        try:
            ingest(
                file, folder / DATA, kind=kind, dataset=array, overwrite=True, non_finite="missing" if gaps else "error"
            )
        except BadInputError as error:
            said = str(error).replace(KEPT, "; plain runs take missing values with missing = 'mean' (--missing mean)")
            said = said if said.startswith(str(file)) or str(file) in said else f"{file}: {said}"
            said = said.replace("choose one with dataset=", f"choose one as {file}/NAME")
            said = said.replace("non_finite='missing'", "a rule for missing values")
            said += "; `npmdask ingest` takes these options" if " (--" in said.replace("(--missing mean)", "") else ""
            raise BadInputError(said) from error
        if look_of(file) != seen:
            raise RefusedError(f"{file} changed while it was being read: run again once it is written completely")
        if settled:
            write_file_atomically(folder / NOTE, json.dumps({**asked, "look": seen}).encode(), 0o600)
    return folder / DATA


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time makes a copy; the others wait for it, and take it."""
    try:
        for one in (folder.parent.parent, folder.parent, folder):
            require_no_link(one)
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        descriptor = os.open(folder / "alone", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BadInputError(
            f"{folder} cannot be created for a copy ({error.strerror or error}): set NPMDASK_CACHE to a folder that "
            "can be written, or make a store with `npmdask ingest`"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def look_of(file: Path) -> list[list[Any]]:
    """Changes whenever the file does, or one of a folder of Parquet files."""
    stats = [(path.name, path.stat()) for path in _parts_of(file)]
    return [[name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for name, s in stats]


def _parts_of(file: Path) -> list[Path]:
    return sorted(file.glob("*.parquet")) if file.is_dir() else [file]


def _is_settled(file: Path) -> bool:
    """Whether it is so old that it cannot change once more unseen."""
    return all(time.time_ns() - part.stat().st_mtime_ns >= FRESH for part in _parts_of(file))


def _noted(folder: Path) -> Any:
    try:
        return json.loads((folder / NOTE).read_bytes())
    except (OSError, ValueError):
        return None
