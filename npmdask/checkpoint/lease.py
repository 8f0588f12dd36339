"""Who has a run store: one process at a time, seen to be alive, replaced when it hangs.

::

    STORE/lock           held (flock) by the owner of the store; a line says who; its time is a sign of life
    STORE/lock.taking    held for moments: by a process that takes the store, and by its owner while it publishes
    STORE/epoch          how often the store was taken: a process that finds another number than its own has lost it

A process that is killed lets go of its locks. One that hangs (stopped, swapped out) does not, and shows no life either:
after STALE seconds another one puts a lock file of its own in the place of ``lock`` and counts the epoch up. What wakes
up then finds the epoch changed whenever it wants to publish, and leaves (docs/decisions/0030-ownership.md).
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from npmdask.errors import BadInputError, FencedOutError, HeldError
from npmdask.storage.bundle import write_file_atomically
from npmdask.storage.paths import open_plain

OWNER = "NPMDASK_OWNER"  # what a process was started for: a scheduler's name of the run
BEAT = 10.0  # seconds between two signs of life
STALE = 60.0  # seconds without one after which a process counts as hung
PATIENCE = 5.0  # seconds that a taker waits for a commit that is under way
LOCK, TAKING, EPOCH = "lock", "lock.taking", "epoch"
LINE = re.compile(r"process (\d+) on (\S+), since ([^,]*)(?:, for (.*))?")

SINCE = "%Y-%m-%d %H:%M:%S %z"

_held: dict[Path, Ownership] = {}  # by this process


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who a lock file says has the store. ``age``: seconds since its last sign of life; ``owner``: see OWNER, or ""."""

    pid: int
    host: str
    since: str
    owner: str
    age: float

    def __str__(self) -> str:
        named = f", for {self.owner}" if self.owner else ""
        return f"process {self.pid} on {self.host}, since {self.since}{named}"

    @property
    def gone(self) -> bool:
        """Whether it was a process of this machine, and is none any more."""
        if self.host != socket.gethostname():
            return False
        try:
            # One that was made later: its number was given again.
            return psutil.Process(self.pid).create_time() > datetime.strptime(self.since, SINCE).timestamp() + 1
        except psutil.NoSuchProcess:
            return True
        except (psutil.Error, ValueError):
            return False

    @property
    def alive(self) -> bool:
        """Whether it has shown life lately. Of another machine: it may have been killed less than STALE seconds ago."""
        return self.age < STALE and not self.gone

    @property
    def hung(self) -> bool:
        """Whether it shows no life; of another machine it may as well be gone."""
        return self.age >= STALE and not self.gone


def holder_of(folder: Path) -> Holder | None:
    """Who has the store, without touching a lock; None: it was closed in order (or never opened)."""
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(lock, errors="replace") as file:
        return _read_holder(file.read(4096), time.time() - os.fstat(file.fileno()).st_mtime)


def _read_holder(line: str, age: float) -> Holder | None:
    found = LINE.fullmatch(line.strip())
    if found is None:
        return None
    pid, host, since, owner = found.groups()
    return Holder(pid=int(pid), host=host, since=since, owner=owner or "", age=max(age, 0.0))


class Ownership:
    """Of the store in ``folder``, which exists: from ``take`` to ``release``, or until another process takes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken_from: Holder | None = None  # the process that hung, if there was one
        self.around: list[Ownership] = []  # of the jobs that this store is a stage of
        self._lock: int | None = None
        self._epoch = 0
        self._over = threading.Event()
        self._beats: threading.Thread | None = None

    @property
    def held(self) -> bool:
        """Whether it was taken and not released; it may be lost nevertheless."""
        return self._lock is not None

    def take(self, *, take_over: bool = True) -> None:
        """Make this process the owner. ``take_over``: also where the owner shows no life any more.

        Raises
        ------
        HeldError
            Another process has the store, and lives.
        BadInputError
            The folder cannot be written to, or its file system knows no flock.
        """
        self.taken_from = None
        around = [_held[parent] for parent in self.folder.parents if parent in _held]
        try:
            with self._alone(PATIENCE) as now:
                self._lock = self._acquired(now, around, take_over)
                _say(self._lock)
        except OSError as error:
            self._let_go()
            raise BadInputError(
                f"{self.folder} cannot be used as store: {error.strerror}; choose a folder that can be written"
            ) from error
        self.around, _held[self.folder] = around, self
        self._over.clear()
        self._beats = threading.Thread(target=self._beat, args=(self._lock,), name="life", daemon=True)
        self._beats.start()

    def _acquired(self, now: float, around: list[Ownership], take_over: bool) -> int:
        """A descriptor of ``lock``, with its flock, and the epoch counted up. Called by one process at a time."""
        # Close-on-exec (Python's default): a child that inherited the descriptor would keep the lock held.
        lock = open_plain(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        if not _flocked(lock):
            age = now - os.fstat(lock).st_mtime
            holder = _read_holder(os.pread(lock, 4096, 0).decode(errors="replace"), age)
            os.close(lock)
            if not take_over or not (age >= STALE or _fenced(holder, around)):
                raise _refused(self.folder, holder)
            self.taken_from = holder
            return self._replaced()
        self._count_up()
        return lock

    def _replaced(self) -> int:
        """A lock file of our own in the place of one that another process does not release."""
        aside = self.folder / f".writing-{LOCK}-{os.getpid()}"
        lock = open_plain(aside, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._count_up()  # first: a process that dies here leaves none that believes to have the store
        os.rename(aside, self.folder / LOCK)
        return lock

    def _count_up(self) -> None:
        self._epoch = self._read_epoch() + 1
        write_file_atomically(self.folder / EPOCH, f"{self._epoch}\n".encode())

    def _read_epoch(self) -> int:
        try:
            return int((self.folder / EPOCH).read_text())
        except (FileNotFoundError, ValueError):
            return 0

    @contextmanager
    def _alone(self, patience: float | None) -> Iterator[float]:
        """No other process takes the store or publishes in it meanwhile. Gives the file system's time."""
        taking = open_plain(self.folder / TAKING, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if patience is None:
                fcntl.flock(taking, fcntl.LOCK_EX)
            else:
                self._await(taking, patience)
            os.utime(taking)
            yield os.fstat(taking).st_mtime
        finally:
            os.close(taking)

    def _await(self, taking: int, patience: float) -> None:
        end = time.monotonic() + patience
        while not _flocked(taking):
            if time.monotonic() > end:
                holder = holder_of(self.folder)
                hung = holder is not None and holder.hung
                raise _refused(self.folder, holder, "; it stopped in the middle of a commit" if hung else "")
            time.sleep(0.02)

    @property
    def lost(self) -> bool:
        """Whether it was taken by another process since; or that of a job that this store is a stage of."""
        owned = [self, *(other for other in self.around if other.held)]
        return any(other._read_epoch() != other._epoch for other in owned)

    def require(self) -> None:
        """Raise FencedOutError if this process is not the owner (any more)."""
        if not self.held or self.lost:
            raise FencedOutError(f"run {self.folder} was taken over by another process; this one wrote nothing since")

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Around what changes the store: this process is the owner, and stays it until the end of the block.

        Short work only: no process can take the store over meanwhile. Not to be nested.
        """
        with self._alone(None):
            self.require()
            yield

    def _beat(self, lock: int) -> None:
        while not self._over.wait(BEAT):
            try:
                if self.lost:
                    return
                os.utime(lock)
            except OSError:  # a file system that is away for a while
                continue

    def release(self) -> None:
        """Let others have the store; nothing if it is not held."""
        if self._lock is None:
            return
        self._over.set()
        if self._beats is not None:
            self._beats.join()
        if _held.get(self.folder) is self:
            del _held[self.folder]
        with suppress(OSError):
            os.ftruncate(self._lock, 0)  # no process has it; of a file that was replaced, none reads that
        self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _say(lock: int) -> None:
    """Write into the lock file who has it."""
    since = datetime.now().astimezone().strftime(SINCE)
    owner = " ".join(os.environ.get(OWNER, "").split())  # a line is one line
    line = f"{Holder(pid=os.getpid(), host=socket.gethostname(), since=since, owner=owner, age=0.0)}\n"
    os.ftruncate(lock, 0)
    os.pwrite(lock, line.encode(), 0)


def _flocked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fenced(holder: Holder | None, around: list[Ownership]) -> bool:
    """Whether the store around this one was taken from the same process: then it has lost this one as well."""
    taken = [other.taken_from for other in around if other.taken_from]
    return holder is not None and any((h.pid, h.host) == (holder.pid, holder.host) for h in taken)


def _refused(folder: Path, holder: Holder | None, why: str = "") -> HeldError:
    if holder is None:
        return HeldError(f"run {folder} is held by another process{why}; wait for it, or stop it first")
    seen = f"its last sign of life was {holder.age:.0f} s ago"
    remedy = f"end it (kill -9 {holder.pid})" if why else "wait for it, or stop it first"
    stuck = bool(why) and holder.host == socket.gethostname()
    said = f"run {folder} is held by {holder}; {seen}{why}; {remedy}"
    return HeldError(said, holder.owner, holder.pid, stuck=stuck)
