"""Local copies of runs whose store is a URL: where they lie, which files count, and what the object store has of them.

::

    CACHE/runs/<hash of URL>/NAME           the run's folder, as every other
    CACHE/runs/<hash of URL>/carried.json   the URL, its last commit that is here, and what lay in it
    CACHE/runs/<hash of URL>/alone          held while the folder is filled from the object store

CACHE is ``$NPMDASK_CACHE``, or ``~/.cache/npmdask``; it is its owner's only (0700).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from npmdask.errors import BadInputError
from npmdask.storage.bundle import write_file_atomically
from npmdask.storage.checksum import crc32c_bytes
from npmdask.storage.object_url import require_no_credentials
from npmdask.storage.paths import is_url, local_path, require_no_link, require_path

CACHE = "NPMDASK_CACHE"
NOTE = "carried.json"
SCHEMES = ("s3", "gs", "az", "abfs")
PIECE = 4 * 2**20
FRESH = 10**9  # nanoseconds: a file that was written so shortly before it was looked at may change unseen
NOT_CARRIED = ("lock", "lock.taking", "epoch", "entropy", "starts.json", "report.html")
UNFINISHED = (".partial", ".done", ".lock")

Signature = list[int] | None


def place_of_store(store: str | Path, folder: Path | None = None) -> str:
    """What a store is known by: its URL, or its absolute path (relative ones are taken from ``folder``).

    Raises
    ------
    BadInputError
        A URL of another kind, without a name, or with credentials in it; a name that cannot be one.
    """
    require_path(store)
    if not is_url(store):
        return str((folder or Path.cwd()) / store)
    url = str(store).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or "://" not in url:
        require_no_credentials(url)
        return str(local_path(store, "the store of a run", SCHEMES))
    require_no_credentials(url)
    if not parts.netloc or {"", ".", ".."} & set(unquote(parts.path).removeprefix("/").split("/")):
        raise BadInputError(f"{url} names no place in a bucket: write {parts.scheme}://BUCKET/NAME")
    require_path(unquote(parts.path))
    return url


class Copy:
    """The local copy of the run at ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url
        cache = Path(os.environ.get(CACHE) or Path.home() / ".cache" / "npmdask")
        server = os.environ.get("AWS_ENDPOINT_URL", "")  # the same URL is another run on another server
        self.home = cache.absolute() / "runs" / hashlib.sha256(f"{server} {url}".encode()).hexdigest()[:16]
        self.folder = self.home / url.rpartition("/")[2]

    def make(self) -> None:
        """Make its folders. Raises BadInputError where that cannot be done."""
        require_no_link(self.home)
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.home.chmod(0o700)
        except OSError as error:
            raise BadInputError(
                f"{self.home} cannot be made for the local copy of {self.url} ({error.strerror or error}): set {CACHE} "
                "to a folder that can be written"
            ) from error

    def note(self) -> dict[str, Any]:
        """The URL, the last commit that is here (None: not known), the token of who wrote, and the files."""
        return read_note(self.home) or {"url": self.url, "commit": None, "token": "", "files": {}}

    def write_note(self, **facts: Any) -> None:
        """Replace it."""
        write_file_atomically(self.home / NOTE, json.dumps({"url": self.url, **facts}).encode())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While the folder is compared with the object store and filled: one process at a time."""
        self.make()
        descriptor = os.open(self.home / "alone", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def is_at_work(self) -> bool:
        """Whether a process of this machine holds the run: then its folder is further than what it has committed."""
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def files(self) -> dict[str, Path]:
        """All that counts of the run below its folder, by relative path. What is being written aside does not."""
        found = {}
        for base, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if _counts(name)]
            for name in filter(_counts, names):
                path = Path(base) / name
                found[path.relative_to(self.folder).as_posix()] = path
        return dict(sorted(found.items()))


def copy_at(folder: Path) -> Copy | None:
    """The copy that ``folder`` is; None for every other folder."""
    note = read_note(folder.parent)
    if note is None or str(note["url"]).rpartition("/")[2] != folder.name:
        return None
    copy = Copy(str(note["url"]))
    copy.home, copy.folder = folder.parent, folder
    return copy


def read_note(home: Path) -> dict[str, Any] | None:
    """The note of a copy, or None."""
    try:
        note = json.loads((home / NOTE).read_bytes())
        return note if {"url", "commit", "token", "files"} <= note.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def is_carried(path: str) -> bool:
    """Whether a file at ``path`` below the folder of a run is one that is carried."""
    return all(_counts(name) for name in path.split("/"))


def _counts(name: str) -> bool:
    return not (name.startswith(".writing-") or name.endswith(UNFINISHED) or name in NOT_CARRIED)


def signature_of(path: Path) -> Signature:
    """Changes whenever the file does; None while it is so new that it might change unseen."""
    stat = path.stat()
    if time.time_ns() - stat.st_mtime_ns < FRESH:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def checksum_of(path: Path) -> tuple[int, int]:
    """Size and CRC-32C of a file."""
    size = crc = 0
    with open(path, "rb") as file:
        while data := file.read(PIECE):
            size, crc = size + len(data), crc32c_bytes(data, crc)
    return size, crc
