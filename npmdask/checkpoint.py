"""The store of a run: what must survive a kill, and who may write it.

::

    STORE/run.json           what is computed: parameters, fingerprint of the data, versions
    STORE/steps/000012/      one bundle a step (arrays + history), written aside and renamed; the last two stay
    STORE/pass/000003/       the finished parts of the pass under way, for its owner's eyes only; gone at the commit
    STORE/survey/            checksums (and column statistics) of a source that was never ingested
    STORE/result/            the answer, once there is one
    STORE/locked/, start/    what the run took over from an earlier one (deflation, warm start)
    STORE/left.zarr          A @ V, for the left singular vectors of a matrix
    STORE/telemetry.jsonl    when, how fast, how much memory: for people, never read back into a result
    STORE/entropy            of a private run (folder 0700): the key of its noise, 0600, destroyed at its end
    STORE/lock, epoch        one writer at a time; a process that lost its turn cannot commit

A store may be a URL (``s3://bucket/name``): then the folder is a local copy, and what is committed there is carried to
the object store before anybody is told of it (:mod:`npmdask.carrier`).

Everything under steps, survey and result is a function of data and parameters only: two doors that run the
same thing leave the same bytes.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

from npmdask.carrier import Carrier
from npmdask.errors import BadInputError, FencedOutError, HeldError, RefusedError
from npmdask.storage.bundle import Arrays, read_bundle, write_bundle, write_file_atomically
from npmdask.storage.copies import Copy, copy_at, is_url, place_of_store

KEPT_STEPS = 2
REPLACED = ".replaced"  # a step of which a newer version is being written
OWNER = "NPMDASK_OWNER"  # what a process was started for: a scheduler's name of the run
OWNED = ", for "
PRIVATE = (
    "{} cannot be the store of a private run: with the key of its noise whoever may read the bucket could take the "
    "noise off again, and without the key no other machine could go on; use a folder of this machine as store"
)
SPEC_TABLES = ("data", "algorithm", "mechanism", "stop", "run", "version")


class RunStore:
    """The folder of one run, held by this process from ``open`` to ``close`` (or until it dies).

    ``path`` may be a URL: then what it holds is brought down first, unless a process of this machine is at work on it.
    ``place`` is what a person calls the store, a URL or the path.
    """

    def __init__(self, path: Path | str, *, private: bool = False, stage_of: RunStore | None = None) -> None:
        self.place = place_of_store(path)
        self._stage_of = stage_of
        self._carrier = None if stage_of else carrier_of(self.place)
        if self._carrier is not None and private:
            raise RefusedError(PRIVATE.format(self.place))
        if self._carrier is not None and is_url(self.place):
            self._carrier.refresh()
        self.path = Path(self.place) if self._carrier is None else self._carrier.copy.folder
        if self._carrier is not None:
            self.place = self._carrier.url
        self._mode = 0o700 if private else 0o777
        self._lock: int | None = None
        self._epoch = 0

    def open(self) -> RunStore:
        """Take the run over; only one process can.

        Raises
        ------
        RefusedError
            Another process holds it; the sentence says which.
        BadInputError
            The folder holds something else.
        """
        try:
            self._make_folder()
            # Close-on-exec (Python's default): a child that inherited the descriptor would keep the lock held.
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadInputError(
                f"{self.path} cannot be used as store: {error.strerror}; choose a folder that can be written"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._lock, 4096, 0).decode(errors="replace").strip()
            os.close(self._lock)
            self._lock = None
            owner = holder.rpartition(OWNED)[2] if OWNED in holder else ""
            raise HeldError(
                f"run {self.path} is held by {holder or 'another process'}; wait for it, or stop it first", owner
            ) from None
        self._begin_epoch()
        for left in self.path.glob("**/.writing-*"):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        for before in (self.path / "steps").glob(f"*{REPLACED}"):
            after = before.with_name(before.name.removesuffix(REPLACED))
            shutil.rmtree(before, ignore_errors=True) if after.exists() else before.rename(after)
        self._claim()
        return self

    def stage(self, name: str) -> RunStore:
        """The store of a stage of this run, in a folder below it: what is committed there is carried with it."""
        return RunStore(self.path / name, stage_of=self)

    def _claim(self) -> None:
        """Of a URL: become its only writer, have what it has, and carry what a kill kept from being carried."""
        if self._carrier is not None:
            try:
                self._carrier.claim()
                self._carrier.carry()
            except BaseException:
                self.close()
                raise

    def _carry(self) -> None:
        """After every change: of a URL, it is committed now, or an error says that it is not."""
        self._require_turn()
        if self._stage_of is not None:
            self._stage_of._carry()
        elif self._carrier is not None:
            self._carrier.carry()

    def _make_folder(self) -> None:
        if self._carrier is not None:
            self._carrier.copy.make()
        if self.path.exists() and not self.path.is_dir():
            raise BadInputError(f"{self.path} is a file; a run store is a folder")
        # A kill may have come between making the folder and its lock: a lone `steps` is ours.
        names = {p.name for p in self.path.iterdir()} if self.path.is_dir() else set()
        if names - {"steps"} and "lock" not in names:
            raise BadInputError(f"{self.path} is a folder with other things in it; choose an empty one as store")
        self.path.mkdir(mode=self._mode, parents=True, exist_ok=True)
        if self._mode == 0o700:
            self.path.chmod(0o700)  # whatever made it: the key of the noise is to lie in it
        (self.path / "steps").mkdir(exist_ok=True)

    def _begin_epoch(self) -> None:
        assert self._lock is not None
        owner = os.environ.get(OWNER)
        line = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
        line += f"{OWNED}{owner}\n" if owner else "\n"
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, line.encode(), 0)
        self._epoch = self._read_epoch() + 1
        write_file_atomically(self.path / "epoch", f"{self._epoch}\n".encode())

    def _read_epoch(self) -> int:
        try:
            return int((self.path / "epoch").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _require_turn(self) -> None:
        """A process that was stopped, declared dead and woke up again must not write over its successor."""
        if self._lock is None or self._read_epoch() != self._epoch:
            raise FencedOutError(f"run {self.path} was taken over by another process; this one wrote nothing since")

    def close(self) -> None:
        """Let others have the run."""
        if self._carrier is not None:
            self._carrier.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunStore:
        return self if self._lock is not None else self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    # What is computed

    def read_spec(self) -> dict[str, Any] | None:
        """The parameters of the run, or None for a new one."""
        try:
            spec = json.loads((self.path / "run.json").read_text())
            if not isinstance(spec, dict) or not all(isinstance(spec.get(table), dict) for table in SPEC_TABLES):
                raise ValueError("tables are missing")
            return spec
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise BadInputError(f"{self.path / 'run.json'} is damaged ({error}); start again in a new store") from error

    def write_spec(self, spec: dict[str, Any]) -> None:
        """Replace the parameters."""
        self._require_turn()
        write_file_atomically(self.path / "run.json", json.dumps(spec, indent=1, sort_keys=True).encode() + b"\n")
        self._carry()

    def drop_spec(self) -> None:
        """Forget the parameters of a run that never began: the store may be bound again."""
        self._require_turn()
        (self.path / "run.json").unlink(missing_ok=True)
        self._carry()

    # Steps

    def commit_step(self, step: int, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Remember a step: after this returns it survives a power cut, and before it the last one does."""
        self._require_turn()
        path = self.path / "steps" / f"{step:06d}"
        # There already if it was damaged (see last_step), or if a stream has ended there meanwhile.
        before = path.with_name(f"{path.name}{REPLACED}")
        if path.exists():
            shutil.rmtree(before, ignore_errors=True)
            path.rename(before)
        write_bundle(path, arrays, meta, inline=True)
        shutil.rmtree(before, ignore_errors=True)
        self._forget_pass()
        for older in self._steps()[:-KEPT_STEPS]:
            shutil.rmtree(older, ignore_errors=True)
        self._carry()

    def _steps(self) -> list[Path]:
        """Oldest first; what a step has replaced comes before it."""
        found = (self.path / "steps").glob("[0-9]*")
        return sorted(found, key=lambda path: (int(path.name.removesuffix(REPLACED)), -len(path.name)))

    def last_step(self) -> tuple[Arrays, dict[str, Any]] | None:
        """The newest whole step, or None. One that rotted on disk is passed over for the one before it."""
        for path in reversed(self._steps()):
            try:
                return read_bundle(path)
            except BadInputError:
                continue
        return None

    # The pass under way

    def keep_pass(self, key: dict[str, Any], arrays: Arrays, facts: list[dict[str, Any]]) -> None:
        """Remember the finished parts of the pass that ``key`` describes; what was kept of it before goes.

        They are sums over the data before any noise: readable by their owner only.
        """
        self._require_turn()
        kept = self._kept_parts()
        number = int(kept[-1].name) + 1 if kept else 0
        write_bundle(self.path / "pass" / f"{number:06d}", arrays, {"key": key, "parts": facts}, private=True)
        for older in kept:
            shutil.rmtree(older, ignore_errors=True)
        self._carry()

    def read_pass(self, key: dict[str, Any]) -> tuple[Arrays, list[dict[str, Any]]] | None:
        """What was kept of the pass that ``key`` describes, or None. Parts of another pass are of no use."""
        for path in reversed(self._kept_parts()):
            try:
                arrays, meta = read_bundle(path)
            except BadInputError:
                continue
            if meta["key"] == key:
                return arrays, meta["parts"]
        return None

    def _kept_parts(self) -> list[Path]:
        return sorted((self.path / "pass").glob("[0-9]*"))

    def _forget_pass(self) -> None:
        shutil.rmtree(self.path / "pass", ignore_errors=True)

    # Survey and result

    def write_part(self, name: str, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Write the bundle ``name`` (survey or result) once."""
        self._require_turn()
        if not (self.path / name).exists():
            write_bundle(self.path / name, arrays, meta)
        if name != "survey":  # the step under way is not committed yet
            self._forget_pass()
        self._carry()

    def read_part(self, name: str) -> tuple[Arrays, dict[str, Any]] | None:
        """The bundle ``name``, or None."""
        return read_bundle(self.path / name) if (self.path / name).exists() else None

    def drop_result(self) -> None:
        """Forget the answer (not the steps): the run goes on under a new stopping rule."""
        self.drop_part("result")

    def drop_part(self, name: str) -> None:
        """Forget the bundle ``name``, at once: a kill leaves all of it or nothing."""
        self._require_turn()
        aside = self.path / f".writing-{name}-dropped"  # a name that ``open`` clears away
        try:
            os.rename(self.path / name, aside)
        except FileNotFoundError:
            return
        shutil.rmtree(aside, ignore_errors=True)
        self._carry()

    # For people

    def log(self, event: str, **facts: Any) -> None:
        """Append one line to the telemetry. Losing the last line in a crash is harmless."""
        line = json.dumps({"time": round(time.time(), 3), "pid": os.getpid(), "event": event, **facts})
        with open(self.path / "telemetry.jsonl", "a") as file:
            file.write(line + "\n")

    def telemetry(self) -> list[dict[str, Any]]:
        """All telemetry lines that are whole."""
        lines = []
        try:
            for line in (self.path / "telemetry.jsonl").read_text(errors="replace").splitlines():
                try:
                    lines.append(dict(json.loads(line)))
                except ValueError:
                    continue  # the line that a kill cut
        except FileNotFoundError:
            return []
        return lines


def carrier_of(place: str) -> Carrier | None:
    """What carries the store at ``place``, a URL or the local copy of one; None for a folder."""
    copy = Copy(place) if is_url(place) else copy_at(Path(place))
    return None if copy is None else Carrier(copy)


def folder_of(store: str | Path) -> Path:
    """The folder of a store: itself, or the local copy of a URL, as new as what the object store has.

    Raises
    ------
    BadInputError
        A URL that is none of a store, or that cannot be reached with what the environment says.
    LostError
        The object store does not answer.
    """
    return RunStore(store).path if is_url(store) else Path(store).absolute()
