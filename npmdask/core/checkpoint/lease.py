"""Lease a run store to one process at a time, which shows that it is alive and is replaced when it hangs.

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
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import psutil

from npmdask.core import features
from npmdask.core.checkpoint.logging import tell
from npmdask.core.checkpoint.reader import NO_LINKS, REPLACED, SPEC, StoreReader
from npmdask.core.checkpoint.schema import is_public
from npmdask.core.storage.bundle import MANIFEST, write_file_atomically
from npmdask.core.storage.paths import (
    JSON_BYTES,
    is_url,
    open_plain,
    place_of_store,
    read_facts,
    read_plain,
    require_no_link,
    require_outside_data,
    url_of_copy,
)
from npmdask.errors import BadInputError, FencedOutError, HeldError, NpmdaskError, RefusedError

OWNER = "NPMDASK_OWNER"  # what a process was started for: a scheduler's name of the run
BEAT = 10.0  # seconds between two signs of life
STALE = 60.0  # seconds without one after which a process counts as hung
PATIENCE = 5.0  # seconds that a taker waits for a commit that is under way
LOCK, TAKING, EPOCH = "lock", "lock.taking", "epoch"
EPOCH_BYTES = 64
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
        """Say whether it was a process of this machine, and has ended."""
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
        """Say whether it has shown life lately.

        One of another machine may have been killed less than STALE seconds ago.
        """
        return self.age < STALE and not self.gone

    @property
    def hung(self) -> bool:
        """Say whether it shows no life; one of another machine may as well be gone."""
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
    """Ownership of the store in ``folder``, which exists.

    It lasts from ``take`` to ``release``, or until another process takes it.
    """

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
        """Say whether it was taken and not released; it may be lost nevertheless."""
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
            with self._exclusive(PATIENCE) as now:
                self._lock = self._acquire_lock(now, around, take_over)
                _say(self._lock)
        except OSError as error:
            self._close_lock()
            raise BadInputError(
                f"{self.folder} cannot be used as store: {error.strerror}; choose a folder that can be written"
            ) from error
        self.around, _held[self.folder] = around, self
        self._over.clear()
        self._beats = threading.Thread(target=self._keep_alive, args=(self._lock,), name="life", daemon=True)
        self._beats.start()

    def _acquire_lock(self, now: float, around: list[Ownership], take_over: bool) -> int:
        """A descriptor of ``lock``, with its flock, and the epoch counted up. Called by one process at a time."""
        # Close-on-exec (Python's default): a child that inherited the descriptor would keep the lock held.
        lock = open_plain(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        if not _try_flock(lock):
            age = now - os.fstat(lock).st_mtime
            holder = _read_holder(os.pread(lock, 4096, 0).decode(errors="replace"), age)
            os.close(lock)
            if not take_over or not (age >= STALE or _is_fenced(holder, around)):
                raise _held_error(self.folder, holder)
            self.taken_from = holder
            return self._replace_lock()
        self._increment_epoch()
        return lock

    def _replace_lock(self) -> int:
        """A lock file of our own in the place of one that another process does not release."""
        aside = self.folder / f".writing-{LOCK}-{os.getpid()}"
        lock = open_plain(aside, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._increment_epoch()  # first: a process that dies here leaves none that believes to have the store
        os.rename(aside, self.folder / LOCK)
        return lock

    def _increment_epoch(self) -> None:
        self._epoch = self._read_epoch() + 1
        write_file_atomically(self.folder / EPOCH, f"{self._epoch}\n".encode())

    def _read_epoch(self) -> int:
        try:
            return int(read_plain(self.folder / EPOCH, EPOCH_BYTES))
        except (FileNotFoundError, ValueError):
            return 0

    @contextmanager
    def _exclusive(self, patience: float | None) -> Iterator[float]:
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
        while not _try_flock(taking):
            if time.monotonic() > end:
                holder = holder_of(self.folder)
                hung = holder is not None and holder.hung
                raise _held_error(self.folder, holder, "; it stopped in the middle of a commit" if hung else "")
            time.sleep(0.02)

    @property
    def lost(self) -> bool:
        """Say whether another process has taken it since, or taken that of a job that this store is a stage of."""
        owned = [self, *(other for other in self.around if other.held)]
        return any(other._read_epoch() != other._epoch for other in owned)

    def require(self) -> None:
        """Raise FencedOutError if this process is not the owner (any more)."""
        if not self.held or self.lost:
            raise FencedOutError(
                f"run {self.folder} was taken over by another process; this one has written nothing since"
            )

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Around what changes the store: this process is the owner, and stays it until the end of the block.

        Short work only: no process can take the store over meanwhile. Not to be nested.
        """
        with self._exclusive(None):
            self.require()
            yield

    def _keep_alive(self, lock: int) -> None:
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
        self._close_lock()

    def _close_lock(self) -> None:
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


def _try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_fenced(holder: Holder | None, around: list[Ownership]) -> bool:
    """Say whether the store around this one was taken from the same process, which then has lost this one as well."""
    taken = [other.taken_from for other in around if other.taken_from]
    return holder is not None and any((h.pid, h.host) == (holder.pid, holder.host) for h in taken)


def _held_error(folder: Path, holder: Holder | None, why: str = "") -> HeldError:
    if holder is None:
        return HeldError(f"run {folder} is held by another process{why}; wait for it, or stop it first")
    seen = f"its last sign of life was {holder.age:.0f} s ago"
    remedy = f"end it (kill -9 {holder.pid})" if why else "wait for it, or stop it first"
    stuck = bool(why) and holder.host == socket.gethostname()
    said = f"run {folder} is held by {holder}; {seen}{why}; {remedy}"
    return HeldError(said, holder.owner, holder.pid, stuck=stuck)


# Who has a run store: from ``open`` to ``close`` one process, which carries what it commits and says how it ended.


# How often in a row a run was started and died without getting any further: STORE/starts.json.
#
# What a run gets further by is what it commits: a step, a part, a kept piece of a pass; of a job also in its stages. So
# nothing is counted at commits: a start is compared with the one before it by the names of all bundles that there are.

STARTS = "starts.json"


def count_start(folder: Path) -> None:
    """A process begins, or goes on with, the run in ``folder``."""
    _write(folder, _starts_since_commit(folder) + 1)


def count_end(folder: Path, *, finished: bool) -> None:
    """It did not die: it came to its end (``finished``) or said why it does not go on."""
    found = 0 if finished else _starts_since_commit(folder) - 1  # 0 too where something was committed meanwhile
    if found > 0:
        _write(folder, found)
    else:
        (folder / STARTS).unlink(missing_ok=True)


def deaths(folder: Path, *, held: bool) -> tuple[int, str]:
    """Count the starts in a row that died without a commit, and say where ("step 13"). ``held``: the last one lives."""
    found = _starts_since_commit(folder) - held
    return (found, place_of_death(folder)) if found > 0 else (0, "")


def _starts_since_commit(folder: Path) -> int:
    """Starts since the last commit."""
    try:
        found: Any = read_facts(folder / STARTS)
        return int(found["starts"]) if found["mark"] == _mark(folder) else 0
    except (OSError, ValueError, BadInputError, TypeError):
        return 0


def _write(folder: Path, starts: int) -> None:
    """Without a flush: a count that is lost with the power is begun again."""
    aside = folder / f".writing-{STARTS}-{os.getpid()}"
    with open(aside, "w", opener=open_plain) as file:
        file.write(json.dumps({"starts": starts, "mark": _mark(folder)}) + "\n")
    os.replace(aside, folder / STARTS)


def _mark(folder: Path) -> str:
    """Digest the names of everything that is committed."""
    names = sorted(str(path.relative_to(folder)) for path, files in folders_of(folder) if MANIFEST in files)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def folders_of(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """All folders of a store but those of its arrays, with the names of their files."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if ".zarr" not in name and not name.startswith(".writing-")]
        yield Path(place), files


def place_of_death(folder: Path) -> str:
    """Say what comes next in the run; of a job, in the stage that was opened last."""
    stores = [path for path, files in folders_of(folder) if EPOCH in files]
    last = max(stores, key=lambda path: (path / EPOCH).stat().st_mtime, default=folder)
    stage = "" if last == folder else f"{last.relative_to(folder)}, "
    if (last / "result").is_dir():
        return f"{stage}its end" if last == folder else f"after {last.relative_to(folder)}"
    steps = [int(path.name) for path in (last / "steps").glob("[0-9]*") if path.name.isdigit()]
    return f"{stage}step {max(steps) + 1}" if steps else f"{stage}its beginning"


PRIVATE = (
    "{} cannot be the store of a private run: with the key of its noise anyone who may read the bucket could take the "
    "noise off again, and without the key no other machine could go on; use a folder of this machine as store"
)


@dataclass(frozen=True, kw_only=True)
class _PriorState:
    """State in which a command finds a finished run, and which it changes before it knows whether it is refused.

    Not of a stream, which has an answer while it goes on: why it stopped is for its status.
    """

    files: dict[str, bytes | None]
    telemetry: int | None  # bytes of it: lines are only added
    mark: str

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Read it; None of a run without an answer."""
        log = folder / "telemetry.jsonl"
        try:
            if not (folder / "result").is_dir() or read_facts(folder / SPEC)["data"]["kind"] == "stream":
                return None
            files = {
                name: read_plain(folder / name, JSON_BYTES) if (folder / name).is_file() else None
                for name in (EPOCH, SPEC, STARTS)
            }
            return cls(files=files, telemetry=log.stat().st_size if log.is_file() else None, mark=_mark(folder))
        except (OSError, ValueError, BadInputError, TypeError):
            return None

    def put_back(self, folder: Path) -> None:
        """Make all of it as it was; the epoch last, with which this process loses the store.

        No living process has that number: the one that had it let go of the lock.
        """
        log = folder / "telemetry.jsonl"
        if self.telemetry is None:
            log.unlink(missing_ok=True)
        elif log.stat().st_size != self.telemetry:
            os.truncate(log, self.telemetry)
        for name in (SPEC, STARTS, EPOCH):
            held, path = self.files[name], folder / name
            if held is None:
                path.unlink(missing_ok=True)
            elif not path.is_file() or path.read_bytes() != held:
                write_file_atomically(path, held)


class HeldStore(StoreReader):
    """A store that this process can take, have and let go of; what is committed to it is for :class:`RunStore`."""

    def __init__(self, path: Path | str, *, private: bool = False, stage_of: Self | None = None) -> None:
        self.place = place_of_store(path)
        self._stage_of: Self | None = stage_of
        self._carrier = None if stage_of else carrier_of(self.place)
        if self._carrier is not None and private:
            raise RefusedError(PRIVATE.format(self.place))
        if self._carrier is not None and is_url(self.place):
            self._carrier.refresh()
        self.path = Path(self.place) if self._carrier is None else self._carrier.copy.folder
        if self._carrier is not None:
            self.place = self._carrier.url
        self._private = private
        self._turn = Ownership(self.path)
        self._before: _PriorState | None = None

    def open(self, *, take_over: bool = True) -> Self:
        """Take the run over; only one process can. ``take_over``: also from one that hangs
        (npmdask/core/checkpoint/lease.py).

        Raises
        ------
        HeldError
            Another process holds it; the sentence says which.
        BadInputError
            The folder holds something else, or is a symbolic link, or something in it is that it writes to.
        """
        try:
            self._make_folder()
        except OSError as error:
            raise BadInputError(
                f"{self.path} cannot be used as store: {error.strerror}; choose a folder that can be written"
            ) from error
        before = _PriorState.of(self.path) if self._stage_of is None and self._carrier is None else None
        try:
            self._turn.take(take_over=take_over)
        except HeldError as error:
            self._log_event("held", str(error), kind="HeldError")
            raise
        self._before = before if self._turn.taken_from is None else None  # its epoch is not to be given twice
        try:
            self._begin()
            self._claim()
        except BaseException:
            self._leave()
            raise
        return self

    def stage(self, name: str) -> Self:
        """The store of a stage of this run, in a folder below it: what is committed there is carried with it."""
        return type(self)(self.path / name, stage_of=self)

    def _claim(self) -> None:
        """Become the only writer of a URL, have what it has, and carry what a kill kept from being carried."""
        if self._carrier is not None:
            self._carrier.claim()
            self._carrier.carry()

    def _leave(self) -> None:
        """Carry what is left to tell to a URL, unless the run was lost; then let go."""
        if self._carrier is not None:
            self._carrier.abandon() if self._turn.held and self._turn.lost else self._carrier.close()
        self._turn.release()

    def _carry(self) -> None:
        """After every change: of a URL, it is committed now, or an error says that it is not."""
        self.require_turn()
        if self._stage_of is not None:
            self._stage_of._carry()
        elif self._carrier is not None:
            self._carrier.carry()

    def _begin(self) -> None:
        self._remove_leftovers()
        with suppress(OSError):  # a full disk: the run itself says so, if it has something to write
            if not self._turn.around:
                count_start(self.path)
            if self._turn.taken_from and self._may_log_details:
                self.log("taken", holder=str(self._turn.taken_from), silent=round(self._turn.taken_from.age))
                self._log_event("taken", f"taken over from a process that hangs: {self._turn.taken_from}")

    def _make_folder(self) -> None:
        if self._carrier is not None:
            self._carrier.copy.make()
        require_no_link(self.path)
        require_no_link(self.path, NO_LINKS)
        if self.path.exists() and not self.path.is_dir():
            raise BadInputError(f"{self.path} is a file; a run store is a folder")
        if self._carrier is None and self._stage_of is None and not (self.path / SPEC).exists():
            require_outside_data(self.path)
        # A kill may have come between making the folder and its lock: a lone `steps` is ours.
        names = {p.name for p in self.path.iterdir()} if self.path.is_dir() else set()
        if names - {"steps", "lock.taking"} and "lock" not in names:
            raise BadInputError(f"{self.path} is a folder with other files in it; choose an empty one as store")
        mode = 0o700 if self._private else 0o777
        self.path.mkdir(mode=mode, parents=True, exist_ok=True)
        if self._private:
            self.path.chmod(0o700)  # whatever made it: the key of the noise is to lie in it
        (self.path / "steps").mkdir(exist_ok=True)

    def _remove_leftovers(self) -> None:
        """Clear up what a process that died, or hangs, has left half done."""
        found = list(self.path.glob("**/.writing-*"))  # not our own, nor of anybody who comes after us
        with self._turn.publishing():
            for left in found:
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
            for before in (self.path / "steps").glob(f"*{REPLACED}"):
                after = before.with_name(before.name.removesuffix(REPLACED))
                shutil.rmtree(before, ignore_errors=True) if after.exists() else before.rename(after)

    def require_turn(self) -> None:
        """A process that was stopped, declared dead and woke up again must not write over its successor.

        Raises
        ------
        FencedOutError
            The run was taken over.
        """
        self._turn.require()

    def close(self) -> None:
        """Let others have the run."""
        with suppress(OSError):
            if self._turn.held and not self._turn.around and not self._turn.lost:
                count_end(self.path, finished=True)
        self._leave()

    def __enter__(self) -> Self:
        return self if self._turn.held else self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        lost = self._turn.held and self._turn.lost
        if self._turn.held and not lost and not self._turn.around:
            self._note(error, quietly=self._is_refused(error))
        self._leave()
        if lost and isinstance(error, Exception) and not isinstance(error, FencedOutError):
            # Whatever it was: two worked in one folder, and this one was to stop.
            raise FencedOutError(f"run {self.path} was taken over by another process; this one leaves it") from error

    def _is_refused(self, error: BaseException) -> bool:
        """Say whether a command was refused on a finished run and has committed nothing."""
        refused = isinstance(error, BadInputError | RefusedError) and not isinstance(error, FencedOutError)
        return refused and self._before is not None and self._before.mark == _mark(self.path)

    def _note(self, error: BaseException, *, quietly: bool = False) -> None:
        """Log what ended the run, for people; and note that it did not die, where it says itself why it ends.

        ``quietly``: the store is put back as it was. A finished run has its answer, of which a refusal says nothing.
        """
        kind = type(error).__name__
        said = str(error) if isinstance(error, NpmdaskError) else f"{kind}: {error}"
        if isinstance(error, Exception):
            self._log_event("error", said, level=logging.ERROR, kind=kind)
        else:
            self._log_event("interrupted", "interrupted; everything committed is kept", kind=kind)
        if quietly and self._before is not None:
            with suppress(OSError), self._turn.publishing():
                self._before.put_back(self.path)
            return
        with suppress(OSError, NpmdaskError):  # whatever lies in the place of a file: the store is let go of
            if isinstance(error, Exception) and self._may_log_details:
                self.log("error", kind=kind, sentence=said)
            if isinstance(error, NpmdaskError | KeyboardInterrupt | SystemExit):
                count_end(self.path, finished=False)

    def _log_event(self, event: str, said: str, *, level: int = logging.WARNING, **facts: Any) -> None:
        """A line of the log; of a run whose errors may quote data, only the kind of what happened."""
        if not self._may_log_details:
            said = f"{facts.get('kind', event)}: what it says may tell of the data"
        run, stage = self.names
        tell(event, said, run=run, stage=stage, level=level, timeless=not self._may_log_details, **facts)

    @property
    def is_stage(self) -> bool:
        """Say whether this is the store of a stage of a longer job."""
        return self._stage_of is not None

    @property
    def names(self) -> tuple[str, str]:
        """Names of the run and of the stage of it that this store is ("": the whole), as log lines call them.

        The run is called by its folder, with the one above it where that numbers releases.
        """
        if self._stage_of is not None:
            run, stage = self._stage_of.names
            return run, "/".join(filter(None, [stage, str(self.path.relative_to(self._stage_of.path))]))
        name, above = Path(self.place).name, Path(self.place).parent.name
        return f"{above}/{name}" if name.isdigit() else name, ""

    @property
    def _may_log_details(self) -> bool:
        """Say whether telemetry may say what went wrong."""
        try:
            return not self._private and is_public(self.read_spec() or {})
        except NpmdaskError:
            return False

    def crashes(self) -> tuple[int, str]:
        """Count the starts in a row that died without committing anything, and say where ("step 13"); (0, "") if none.

        A start that ends with an error of this package, or is interrupted, has not died. Also of a store that is held:
        the process that has it now is not counted.
        """
        holder = holder_of(self.path)
        return deaths(self.path, held=self._turn.held or (holder is not None and not holder.gone))

    def log(self, event: str, **facts: Any) -> None:
        """Append one line to the telemetry. Losing the last line in a crash is harmless."""
        self.require_turn()
        line = json.dumps({"time": round(time.time(), 3), "pid": os.getpid(), "event": event, **facts})
        with open(self.path / "telemetry.jsonl", "a", opener=open_plain) as file:
            file.write(line + "\n")


class Carrier(Protocol):
    """Carrier of a store whose place is a URL, from and to a local ``copy`` (``folder``, ``make``)."""

    url: str
    copy: Any

    def refresh(self) -> None: ...
    def claim(self) -> None: ...
    def carry(self) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


def carrier_of(place: str) -> Carrier | None:
    """Return what carries the store at ``place``, a URL or the local copy of one; None for a folder.

    Raises
    ------
    RefusedError
        The feature for stores of this kind is gone.
    """
    url = place if is_url(place) else url_of_copy(Path(place))
    if url is None:
        return None
    return features.required("stores", url.partition("://")[0])(url, None if url == place else Path(place))
