"""A run whose store is a URL: it works in a local copy, and every commit is carried to the object store.

::

    URL/commit.json                     who writes (epoch, token, process), and the files of the last commit
    URL/files/000003-1f..-000017/...    the files that commit 17 of epoch 3 was the first to have

Files are written first, each under a name of its own, and never again; then the one object ``commit.json`` is replaced,
on condition that it is still what this process wrote last. So a reader sees whole commits only, and a process that was
taken for dead cannot change anything. Files that are in no commit any more go one commit later (docs/decisions/0031).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from npmdask.core.storage import paths
from npmdask.core.storage.bundle import write_file_atomically
from npmdask.core.storage.checksum import crc32c_bytes
from npmdask.core.storage.chunk_access import first_line
from npmdask.core.storage.paths import CACHE, NOTE, cache_folder, read_note, require_below, require_no_link
from npmdask.errors import (
    BadInputError,
    CommitError,
    FencedOutError,
    HeldError,
    Later,
    LostError,
    MissingExtraError,
    NpmdaskError,
    RefusedError,
    require,
)
from npmdask.remote.object_url import RETRIES, no_answer

# The objects of one run below a URL: written whole, and replaced only if they are still what was read.
#
# What a store of objects answers is one of four words, since what to say of it depends on who asks: ``missing``,
# ``denied`` (no access, no room, no such bucket to write to), ``lost`` (no answer; it may come back) and ``changed``.

obstore, stores = Later("obstore", "objects"), Later("obstore.store", "objects")
exceptions = Later("obstore.exceptions", "objects")
Kind = Literal["missing", "denied", "lost", "changed"]
Version = dict[str, Any]  # what a server calls the version of an object: entity tag, generation
PIECE = 4 * 2**20  # bytes of a large object, or of a file, at once
CONFLICT = re.compile(r"status code: 409")  # of two writers at once


class ObjectError(Exception):
    """An error with an object, as a kind and in the server's words."""

    def __init__(self, kind: Kind, said: str) -> None:
        super().__init__(said)
        self.kind: Kind = kind


class Objects:
    """Objects by their keys below ``url``. Every method raises ObjectError."""

    def __init__(self, url: str) -> None:
        try:
            self._store = stores.from_url(url, retry_config=RETRIES)
        except MissingExtraError:
            raise
        except (exceptions.BaseError, ValueError, TypeError) as error:
            raise ObjectError("denied", first_line(error)) from None

    def read(self, key: str) -> tuple[bytes, Version, datetime] | None:
        """Content, version and time of the last change by the server's clock; None if there is no such object."""
        with _suppressing("missing"), _object_errors():
            found = obstore.get(self._store, key)
            return bytes(found.bytes()), _version(found.meta), found.meta["last_modified"]
        return None

    def replace(self, key: str, data: bytes, before: Version | None) -> Version:
        """Write an object if it is still at the version ``before``, or is not there (None); the new version.

        ``data`` are bytes that no other process writes. Where these lie there although the server refuses, it has
        written them before: its answer was lost or an error, and the client sent the request again.
        """
        try:
            with _object_errors(writing=True):
                return _version(obstore.put(self._store, key, data, mode=before or "create", use_multipart=False))
        except ObjectError as error:
            found = self.read(key) if error.kind == "changed" else None
            if found is None or found[0] != data:
                raise
            return found[1]

    def put(self, key: str, data: bytes) -> None:
        """Write an object that no other process writes."""
        with _object_errors(writing=True):
            obstore.put(self._store, key, data, use_multipart=False)

    def put_file(self, key: str, path: Path) -> None:
        """The same with the content of a file, of which little is in memory at once."""
        with open(path, "rb") as file, _object_errors(writing=True):
            obstore.put(self._store, key, file, chunk_size=2 * PIECE, max_concurrency=2)

    def fetch(self, key: str, target: Path) -> tuple[int, int]:
        """Write an object to a file; its size and CRC-32C."""
        size = crc = 0
        with open(target, "wb") as file, _object_errors():
            for piece in obstore.get(self._store, key).stream(min_chunk_size=PIECE):
                data = bytes(piece)
                file.write(data)
                size, crc = size + len(data), crc32c_bytes(data, crc)
        return size, crc

    def delete(self, keys: list[str]) -> None:
        """Take objects away; some may be gone."""
        if keys:
            with _suppressing("missing"), _object_errors():
                obstore.delete(self._store, keys)

    def keys(self, prefix: str, before: datetime | None = None) -> list[str]:
        """The keys that begin with the folder ``prefix``, of objects written before a time."""
        with _object_errors():
            found = [meta for batch in obstore.list(self._store, prefix=prefix) for meta in batch]
        return [str(meta["path"]) for meta in found if before is None or meta["last_modified"] < before]

    def now(self, key: str) -> tuple[bool, datetime]:
        """Say whether the server keeps conditions, tried out on the object ``key``, and return its time."""
        first = self.replace(key, b"1", None)
        kept = not self._replaces(key, b"2", None) and self._replaces(key, b"3", first)
        kept = kept and not self._replaces(key, b"4", first)
        found = self.read(key)
        self.delete([key])
        if found is None:
            raise ObjectError("lost", "an object that was just written is not there")
        return kept, found[2]

    def _replaces(self, key: str, data: bytes, before: Version | None) -> bool:
        with _suppressing("changed"):
            self.replace(key, data, before)
            return True
        return False


def _version(meta: Any) -> Version:
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}


@contextmanager
def _suppressing(kind: Kind) -> Iterator[None]:
    """Inside, an error of this kind ends what is done, and no more."""
    try:
        yield
    except ObjectError as error:
        if error.kind != kind:
            raise


@contextmanager
def _object_errors(*, writing: bool = False) -> Iterator[None]:
    try:
        yield
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise ObjectError("changed", first_line(error)) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise ObjectError("denied", first_line(error)) from None
    except (FileNotFoundError, exceptions.NotFoundError) as error:
        no_bucket = writing or "NoSuchBucket" in str(error)
        raise ObjectError("denied" if no_bucket else "missing", first_line(error)) from None
    except exceptions.BaseError as error:
        if CONFLICT.search(str(error)):
            raise ObjectError("changed", first_line(error)) from None
        raise ObjectError("lost" if no_answer(error) else "denied", first_line(error)) from None


# The one object of a run that is ever replaced: who writes, and which files the last commit has.


POINTER, FILES = "commit.json", "files"


@dataclass(frozen=True)
class Carried:
    """A file as the object store has it: the commit that brought it there, its bytes, their CRC-32C."""

    commit: str
    size: int
    crc: int


@dataclass(frozen=True)
class Pointer:
    """The content of ``commit.json``.

    ``epoch``: how often the run was taken, ``token``: by whom, ``held``: whether it still is. ``commit``: the name of
    the last one, "" before the first; ``number``: which of those that the epoch tried. ``beats`` counts signs of life:
    it makes every version differ, which some servers know by their content.
    """

    epoch: int = 0
    token: str = ""
    held: bool = False
    holder: str = ""
    owner: str = ""
    beats: int = 0
    number: int = 0
    commit: str = ""
    files: dict[str, Carried] = field(default_factory=dict)

    def after(self, number: int, files: dict[str, Carried]) -> Pointer:
        """That of the commit ``number`` of this epoch."""
        return replace(self, number=number, beats=0, commit=self.commit_name(number), files=files)

    def commit_name(self, number: int) -> str:
        """Return the name of a commit of this epoch: no two that are tried have the same."""
        return f"{self.epoch:06d}-{self.token}-{number:06d}"

    @property
    def keys(self) -> set[str]:
        """Return the keys of the objects that the commit needs."""
        return {key_of(path, carried) for path, carried in self.files.items()}

    def encode(self) -> bytes:
        """As JSON, its checksum on a line of its own."""
        plain = {**self.__dict__, "files": {path: [f.commit, f.size, f.crc] for path, f in self.files.items()}}
        text = json.dumps({"format": 1, **plain}).encode()
        return text + b"\n" + f"{crc32c_bytes(text):08x}\n".encode()

    @classmethod
    def decode(cls, data: bytes, url: str) -> Pointer:
        """Raises BadInputError where it is damaged or of another format."""
        try:
            body, _, crc = data.rstrip(b"\n").rpartition(b"\n")
            if crc32c_bytes(body) != int(crc, 16):
                raise ValueError("its checksum is another")
            plain = json.loads(body)
            if plain.pop("format") != 1:
                raise ValueError("it is of another format")
            files = {require_below(path): _carried_entry(*entry) for path, entry in plain.pop("files").items()}
            return cls(**plain, files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInputError(
                f"{url}/{POINTER} is damaged ({error}), or of another version: restore it from a backup, or start "
                "again under another name"
            ) from error


def _carried_entry(commit: str, size: int, crc: int) -> Carried:
    if "/" in require_below(commit):
        raise ValueError(f"{commit!r} is not the name of a commit")
    return Carried(commit, size, crc)


def key_of(path: str, carried: Carried) -> str:
    """Return the key of the object that holds a file."""
    return f"{FILES}/{carried.commit}/{path}"


# Local copies of runs whose store is a URL: where they lie, which files count, and what the object store has of them.
#
# ::
#
#     CACHE/runs/<hash of URL>/NAME           the run's folder, as every other
#     CACHE/runs/<hash of URL>/carried.json   the URL, its last commit that is here, and what lay in it
#     CACHE/runs/<hash of URL>/alone          held while the folder is filled from the object store
#
# CACHE is ``$NPMDASK_CACHE``, or ``~/.cache/npmdask``; it is its owner's only (0700).

FRESH = 10**9  # nanoseconds: a file that was written so shortly before it was looked at may change unseen
NOT_CARRIED = ("lock", "lock.taking", "epoch", "entropy", "starts.json", "report.html")
UNFINISHED = (".partial", ".done", ".lock")

Signature = list[int] | None


class LocalCopy:
    """The local copy of the run at ``url``: in ``folder``, or where that lies by itself."""

    def __init__(self, url: str, folder: Path | None = None) -> None:
        self.url = url
        if folder is not None:
            self.home, self.folder = folder.parent, folder
            return
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
        """Say whether a process of this machine holds the run: its folder is then ahead of its commits."""
        with paths.unless_locked(self.folder / "lock") as free:
            return not free

    def files(self) -> dict[str, Path]:
        """All that counts of the run below its folder, by relative path. What is being written aside does not."""
        found = {}
        for base, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if _counts(name)]
            for name in filter(_counts, names):
                path = Path(base) / name
                found[path.relative_to(self.folder).as_posix()] = path
        return dict(sorted(found.items()))


def sweep_copies(broom: Any) -> None:
    """Let ``npmdask gc --cache`` take the copies that no process uses. One that was not carried yet stays."""
    for folder in sorted((cache_folder() / "runs").glob("*/*")):
        if (url := paths.url_of_copy(folder)) is None:
            continue
        copy = LocalCopy(url, folder)
        note = copy.note()
        with paths.unless_locked(copy.home / "alone", copy.folder / "lock") as free:
            if free and note["commit"] is not None and not copy.files().keys() - note["files"].keys():
                broom.remove(copy.folder, f"a copy of {copy.url}")
                if not broom.dry:
                    (copy.home / NOTE).unlink()
            else:
                broom.left.append(f"{copy.folder} is in use, or not all of it is at {copy.url} (`npmdask resume`)")


def is_carried(path: str) -> bool:
    """Say whether a file at ``path`` below the folder of a run is carried."""
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
        require(is_carried(path), f"{copy.url} names {path!r}, which is not a file of a run: do not trust the bucket")
    here = copy.files()
    for path in here.keys() - pointer.files.keys():
        here.pop(path).unlink()
    wanted = {p: f for p, f in pointer.files.items() if p not in here or checksum_of(here[p]) != (f.size, f.crc)}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda item: _fetch(copy, objects, *item), wanted.items()))
    _drop_empty(copy.folder)
    (copy.folder / "steps").mkdir(parents=True, exist_ok=True)
    # the store, and those of its stages: folders with a lock are no strangers'
    for path in ("run.json", *pointer.files):
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
            elif not self._has_commit(found[0]):
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
            if self._has_commit(pointer):
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

    def _has_commit(self, pointer: Pointer) -> bool:
        """Say whether a commit or a later one is here; not so where files were removed."""
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
            raise _store_error(error, self.copy, committing) from None


def _last_step(files: Iterable[str]) -> int:
    """The highest number of a step; -1: there is none."""
    steps = (path.split("/")[1] for path in files if path.startswith("steps/"))
    return max((int(name.partition(".")[0]) for name in steps), default=-1)


def _store_error(error: ObjectError, copy: LocalCopy, committing: bool) -> NpmdaskError:
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


# The process that writes the run: it claims the pointer, carries commits, and gives a sign of life.

TRIALS = "trials"  # objects that conditions are tried out on
BEAT = 15.0  # seconds between two signs of life
SILENCE = 60.0  # seconds without one, by the server's clock: dead


class CommitPublisher(Fetcher):
    """Between the local copy of a run and the object store. ``claim`` before anything is carried, ``close`` at last."""

    def __init__(self, url: str, folder: Path | None = None) -> None:
        super().__init__(LocalCopy(url, folder))
        self._mine: Pointer | None = None
        self._version: Version | None = None
        self._turn = threading.Lock()  # of the two threads that write the pointer
        self._over = threading.Event()
        self._ready = self._fenced = False
        self._tried = 0  # commits of this epoch
        self._gone: set[str] = set()  # objects that the last commit has and this one does not
        self._workers = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="carrier")

    @staticmethod
    def holds_run(url: str) -> bool:
        """Say whether there is a run at a URL, as far as can be told."""
        try:
            return Objects(url).read(POINTER) is not None
        except ObjectError:
            return False

    def claim(self) -> None:
        """Become the only one who writes, and have what the object store has in the local folder.

        Raises
        ------
        HeldError
            Another process has the run, and was heard of in the last SILENCE seconds.
        RefusedError
            The object store does not honour conditions; the run was there and is gone.
        BadInputError, LostError
            As ``refresh``.
        """
        token = secrets.token_hex(4)
        self._workers = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="carrier")
        self._over, self._ready, self._fenced = threading.Event(), False, False
        self._tried, self._gone = 0, set()
        with self._in_sentences(), self.copy.alone():
            kept, now = self._objects.now(f"{TRIALS}/{token}")
            if not kept:
                raise RefusedError(
                    f"the server of {self.url} ignores conditional writes (If-None-Match, If-Match), so two "
                    "processes could write to one run: use a server that honours them (infra/README.md names some), "
                    "or a folder"
                )
            before = self._take(token, now)
            threading.Thread(target=self._send_beats, args=(self._over,), name="carrier", daemon=True).start()
            try:
                if before.commit:
                    self._bring(before)
                self._write_note(before, token)
                self._delete_strays(before.epoch + 1)
                self._delete(set(self._objects.keys(TRIALS, before=now - timedelta(hours=1))))
            except BaseException:
                self._release_hold()
                raise
            self._ready = True

    def _take(self, token: str, now: datetime) -> Pointer:
        """Put this process into the pointer; what it said before."""
        for _ in range(TRIES):
            found = self._read()
            before, version = (found[0], found[1]) if found else (Pointer(), None)
            if found:
                self._require_free(before, (now - found[2]).total_seconds())
            if not before.commit:
                self._require_never_carried()
                self._require_outside_data()
            named = replace(before, token=token, holder=_holder_text(), owner=os.environ.get("NPMDASK_OWNER", ""))
            with suppress(ChangedError):
                self._point(replace(named, epoch=before.epoch + 1, held=True, beats=0, number=0), version)
                return before
        raise HeldError(f"run {self.url} is being taken over by another process; try again")

    def _require_outside_data(self) -> None:
        """Raise where a new run would lie inside data: its objects would be among those of an array or group."""
        above = self.copy.url.rpartition("/")[0]
        while not above.endswith("/"):
            with suppress(ObjectError):  # its rights may end below
                if any(Objects(above).read(name) for name in paths.ZARR):
                    raise paths.inside_data(self.copy.url, above)
            above = above.rpartition("/")[0]

    def _require_free(self, found: Pointer, silent: float) -> None:
        """A holder that had this very copy is dead: its lock on the copy is ours."""
        if not found.held or found.token == self.copy.note()["token"] or silent >= SILENCE:
            return
        raise HeldError(
            f"run {self.url} is held by {found.holder}, last heard of {max(silent, 0.0):.0f} s ago; wait for it, or "
            f"stop it first (if its machine is gone: try again when it has been silent for {SILENCE:.0f} s)",
            found.owner,
        )

    def carry(self) -> None:
        """Commit what lies in the local folder, as one.

        Raises
        ------
        FencedOutError
            Another process took the run over; nothing of this was committed.
        CommitError
            The object store refuses (rights, room); the local copy has it all.
        LostError
            It does not answer; the local copy has it all.
        """
        with self._in_sentences(committing=True):
            before = self._require_mine()
            self._tried += 1
            try:
                commit = before.commit_name(self._tried)
                files, signatures = send_files(
                    self._workers, self.copy, self._objects, before, self._signatures, commit
                )
                if files == before.files:
                    return
                with self._turn:
                    after = self._require_mine().after(self._tried, files)
                    self._point(after, self._version)
            except (ObjectError, ChangedError) as error:
                self._ready, self._fenced = False, isinstance(error, ChangedError)
                raise
            self._ready, self._signatures = True, signatures
            self._write_note(after, after.token)
            # One commit late: another process may be reading. This one does not wait.
            self._workers.submit(self._delete, self._gone)
            self._gone = before.keys - after.keys

    def _delete(self, keys: set[str]) -> None:
        with suppress(ObjectError):  # the next owner of the run clears them away
            self._objects.delete(sorted(keys))

    def _require_mine(self) -> Pointer:
        if self._mine is None or self._fenced:
            raise ChangedError
        return self._mine

    def _point(self, pointer: Pointer, before: Version | None) -> None:
        """Replace the pointer. Raises ChangedError where it is another's."""
        data = pointer.encode()
        for _ in range(TRIES):
            try:
                before = self._objects.replace(POINTER, data, before)
                break
            except ObjectError as error:
                if error.kind != "changed":
                    raise
            found = self._read()  # perhaps what we wrote before, which was late
            if found is None or found[0].token != pointer.token:
                raise ChangedError
            before = found[1]
        else:
            raise ObjectError("lost", "it contradicts itself")
        self._mine, self._version = pointer, before

    def _send_beats(self, over: threading.Event) -> None:
        """Signs of life, until the run is closed or another's."""
        while not over.wait(BEAT):
            with self._turn:
                if over.is_set() or self._mine is None:
                    return
                try:
                    self._point(replace(self._mine, beats=self._mine.beats + 1), self._version)
                except ChangedError:
                    self._fenced = True
                    return
                except (ObjectError, NpmdaskError):
                    continue  # the next commit says so, unless it is over by then

    def close(self) -> None:
        """Carry what is left to tell, and let others have the run. Where the last request failed they have to wait, and
        nothing is carried of a folder that is not known to be whole.
        """
        if self._ready:
            with suppress(NpmdaskError):
                self.carry()
        self._workers.shutdown()
        if self._ready:
            with suppress(ObjectError, ChangedError):  # also what a server did not take away when it was asked to
                self._delete_strays(self._require_mine().epoch + 1)
            self._release_hold()
        self._over.set()
        self._mine, self._ready = None, False

    def abandon(self) -> None:
        """Write nothing more: another process has the local copy now, and the run with it."""
        self._ready = False
        self.close()

    def _release_hold(self) -> None:
        self._over.set()
        with self._turn, suppress(ObjectError, NpmdaskError, ChangedError):
            if self._mine is not None:
                self._point(replace(self._mine, held=False, beats=self._mine.beats + 1), self._version)
        self._mine = None

    def _delete_strays(self, epoch: int) -> None:
        """Delete what epochs before this one left and no commit has: what a killed or fenced process was about to
        commit, what a server did not take away at once. Not of later ones: if we hang, another has the run by then.
        """
        kept, end = self._require_mine().keys, f"{FILES}/{epoch:06d}-"
        self._delete({key for key in self._objects.keys(FILES) if key < end and key not in kept})


def _holder_text() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
