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
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from npmdask.checkpoint.remote.objects import POINTER, Carried, ObjectError, Objects, Pointer, Version, key_of
from npmdask.errors import BadInputError, CommitError, FencedOutError, LostError, NpmdaskError, RefusedError
from npmdask.storage.bundle import write_file_atomically
from npmdask.storage.checksum import crc32c_bytes
from npmdask.storage.object_url import require_no_credentials
from npmdask.storage.paths import CACHE, cache_folder, is_url, local_path, require_no_link, require_path

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
        raise BadInputError(f"{url} does not name a place in a bucket: write {parts.scheme}://BUCKET/NAME")
    require_path(unquote(parts.path))
    return url


class LocalCopy:
    """The local copy of the run at ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url
        server = os.environ.get("AWS_ENDPOINT_URL", "")  # the same URL is another run on another server
        self.home = cache_folder() / "runs" / hashlib.sha256(f"{server} {url}".encode()).hexdigest()[:16]
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


def copy_at(folder: Path) -> LocalCopy | None:
    """The copy that ``folder`` is; None for every other folder."""
    note = read_note(folder.parent)
    if note is None or str(note["url"]).rpartition("/")[2] != folder.name:
        return None
    copy = LocalCopy(str(note["url"]))
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


# Files of a run between its local copy and an object store: what differs goes, and nothing else.


AT_ONCE = 8  # small objects under way
SMALL = 2**22  # bytes of a file that is read whole

Signatures = dict[str, Signature]


def fetch_files(copy: LocalCopy, objects: Objects, pointer: Pointer) -> Signatures:
    """Make the folder of a copy what a commit has: whatever else counted in it goes.

    Raises
    ------
    ObjectError
        An object is not there (a newer commit was made meanwhile), or cannot be had.
    BadInputError
        One is damaged, or is none that is ever carried: a lock, a key.
    """
    for path in pointer.files:
        if not is_carried(path):
            raise BadInputError(f"{copy.url} names {path!r}, which is not a file of a run: do not trust the bucket")
    here = copy.files()
    for path in here.keys() - pointer.files.keys():
        here.pop(path).unlink()
    wanted = {p: f for p, f in pointer.files.items() if p not in here or checksum_of(here[p]) != (f.size, f.crc)}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda item: _fetch(copy, objects, *item), wanted.items()))
    _drop_empty(copy.folder)
    (copy.folder / "steps").mkdir(parents=True, exist_ok=True)
    for path in (
        "run.json",
        *pointer.files,
    ):  # the store, and those of its stages: folders with a lock are no strangers'
        if path.rpartition("/")[2] == "run.json":
            (copy.folder / path).with_name("lock").touch()
    return {path: signature_of(copy.folder / path) for path in pointer.files}


def _fetch(copy: LocalCopy, objects: Objects, path: str, carried: Carried) -> None:
    target, key = copy.folder / path, key_of(path, carried)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".writing-{target.name}-{os.getpid()}")
    try:
        if objects.fetch(key, aside) != (carried.size, carried.crc):
            raise BadInputError(f"{copy.url}/{key} is damaged (its checksum does not match); restore it from a backup")
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def _drop_empty(folder: Path) -> None:
    """A bundle is never empty: its folder would be taken for one."""
    for base, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # it is not empty
            Path(base).rmdir()


def send_files(
    workers: ThreadPoolExecutor, copy: LocalCopy, objects: Objects, before: Pointer, signatures: Signatures, commit: str
) -> tuple[dict[str, Carried], Signatures]:
    """The files of a copy as the next ``commit`` will have them, those that are new or changed written.

    Raises ObjectError where that is refused, or no server answers.
    """
    files: dict[str, Carried] = {}
    seen: Signatures = {}
    changed: dict[str, Path] = {}
    for path, place in copy.files().items():
        held, seen[path] = before.files.get(path), signature_of(place)
        if held is not None and seen[path] is not None and seen[path] == signatures.get(path):
            files[path] = held
            continue
        size, crc = checksum_of(place)
        files[path] = Carried(commit, size, crc)
        if held is not None and (held.size, held.crc) == (size, crc):
            files[path] = held
        else:
            changed[path] = place
    small = [path for path in changed if files[path].size <= SMALL]
    sent = workers.map(lambda path: _send(objects, path, changed[path], commit), small)
    files |= dict(zip(small, sent, strict=True))
    for path in changed.keys() - set(small):  # one after the other: each has pieces of its own under way
        objects.put_file(key_of(path, files[path]), changed[path])
    return files, seen


def _send(objects: Objects, path: str, place: Path, commit: str) -> Carried:
    data = place.read_bytes()
    carried = Carried(commit, len(data), crc32c_bytes(data))
    objects.put(key_of(path, carried), data)
    return carried


# The run at a URL, brought down into its local copy; and what to say where that cannot be done.


TRIES = 5
PATIENCE = 60.0  # seconds in which a reader runs after a run that commits faster than its files can be fetched


class ChangedError(Exception):
    """The pointer is not what this process wrote last."""


class Fetcher:
    """Fills the local copy of a run from the object store."""

    def __init__(self, copy: LocalCopy) -> None:
        self.copy, self.url = copy, copy.url
        with self._in_sentences():
            self._objects = Objects(self.url)
        self._signatures: Signatures = {}  # of the files of the commit that is here

    def refresh(self) -> None:
        """Make the local copy what the object store has, unless a process of this machine is at work on it.

        Raises
        ------
        BadInputError
            No such bucket, no access, or what is there is damaged.
        RefusedError
            The run was there and is gone.
        LostError
            The object store does not answer.
        """
        with self._in_sentences():
            found = self._read()
            if found is None or not found[0].commit:
                self._require_never_carried()
            elif not self._has(found[0]):
                with self.copy.alone():
                    if not self.copy.is_at_work():
                        self._bring(found[0])

    def _read(self) -> tuple[Pointer, Version, datetime] | None:
        found = self._objects.read(POINTER)
        return None if found is None else (Pointer.decode(found[0], self.url), *found[1:])

    def _require_never_carried(self) -> None:
        if self.copy.note()["commit"]:
            raise RefusedError(
                f"there is no longer a run at {self.url}, but its local copy {self.copy.folder} still exists: to "
                f"start again, delete {self.copy.home}; to continue from the copy, delete only "
                f"{self.copy.home / NOTE}"
            )

    def _bring(self, pointer: Pointer) -> None:
        """The files of a commit into the local folder, unless that has them, or is further."""
        until = time.monotonic() + PATIENCE
        while True:
            note = self.copy.note()
            if self._has(pointer):
                self._signatures = note["files"]
                return
            self.copy.write_note(commit=None, token=note["token"], files={})  # a kill from here on: all is compared
            try:
                self._signatures = fetch_files(self.copy, self._objects, pointer)
            except ObjectError as error:  # a commit may have been made meanwhile, and what it replaced be gone
                found = self._read() if error.kind == "missing" else None
                if found is None or found[0].commit == pointer.commit:
                    raise
                if time.monotonic() > until:
                    raise LostError(
                        f"{self.url} commits faster than its files can be downloaded here ({PATIENCE:.0f} s of "
                        "trying): try again when the run has ended, or from a machine closer to the bucket"
                    ) from None
                pointer = found[0]
                continue
            self._write_note(pointer, note["token"])
            return

    def _has(self, pointer: Pointer) -> bool:
        """Whether a commit is here, or what comes after it; not so where files were taken away."""
        here = self.copy.files()
        whole = "run.json" in here or "run.json" not in pointer.files
        return whole and self.copy.note()["commit"] == pointer.commit and _last_step(here) >= _last_step(pointer.files)

    def _write_note(self, pointer: Pointer, token: str) -> None:
        files = {path: self._signatures.get(path) for path in pointer.files}
        self.copy.write_note(commit=pointer.commit or None, token=token, files=files)

    @contextmanager
    def _in_sentences(self, *, committing: bool = False) -> Iterator[None]:
        try:
            yield
        except ChangedError:
            raise FencedOutError(
                f"run {self.url} was taken over by another process; this one has written nothing since"
            ) from None
        except ObjectError as error:
            raise _said(error, self.copy, committing) from None


def _last_step(files: Iterable[str]) -> int:
    """The highest number of a step; -1: there is none."""
    steps = (path.split("/")[1] for path in files if path.startswith("steps/"))
    return max((int(name.partition(".")[0]) for name in steps), default=-1)


def _said(error: ObjectError, copy: LocalCopy, committing: bool) -> NpmdaskError:
    if error.kind in ("lost", "changed"):
        return LostError(
            f"{copy.url} does not answer ({error}): check the network and AWS_ENDPOINT_URL, then run the same "
            "command or resume; everything committed is kept"
        )
    if committing:
        return CommitError(
            f"cannot write to {copy.url} ({error}). What was committed before is intact, and {copy.folder} has "
            "everything done since: check permissions and free space, and resume"
        )
    return BadInputError(
        f"{copy.url} cannot be used as store ({error}): check that the bucket exists, the credentials in the "
        "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and, for an S3-compatible server, AWS_ENDPOINT_URL"
    )


def holds_run(url: str) -> bool:
    """Whether there is a run at a URL, as far as can be told."""
    try:
        return url.partition("://")[0] in SCHEMES and Objects(url).read(POINTER) is not None
    except ObjectError:
        return False
