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
    STORE/lock, lock.taking, epoch    one writer at a time; one that lost its turn cannot commit (npmdask/ownership.py)
    STORE/starts.json        how often in a row it was started and died without getting further (npmdask/starts.py)

A store may be a URL (``s3://bucket/name``): then the folder is a local copy, and what is committed there is carried to
the object store before anybody is told of it (:mod:`npmdask.carrier`).

Everything under steps, survey and result is a function of data and parameters only: two doors that run the
same thing leave the same bytes.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from npmdask.carrier import Carrier
from npmdask.errors import BadInputError, CommitError, FencedOutError, HeldError, NpmdaskError, RefusedError
from npmdask.log_lines import tell
from npmdask.ownership import Ownership, holder_of
from npmdask.starts import count_end, count_start, deaths
from npmdask.storage.bundle import Arrays, read_bundle, read_meta, write_bundle, write_file_atomically
from npmdask.storage.copies import Copy, copy_at, is_url, place_of_store

CHECKPOINT_FORMAT = 2
KEPT_STEPS = 2
REPLACED = ".replaced"  # a step of which a newer version is being written
PRIVATE = (
    "{} cannot be the store of a private run: with the key of its noise whoever may read the bucket could take the "
    "noise off again, and without the key no other machine could go on; use a folder of this machine as store"
)
SPEC_TABLES = ("data", "algorithm", "mechanism", "stop", "run", "version")
UNTOLD = ("privacy", "nodes")  # in the parameters: what goes wrong may quote data that are not to be told of


class RunStore:
    """The folder of one run, held by this process from ``open`` to ``close`` (or until it dies).

    ``path`` may be a URL: then what it holds is brought down first, unless a process of this machine is at work on it.
    ``place`` is what a person calls the store, a URL or the path.
    """

    def __init__(self, path: Path | str, *, private: bool = False, stage_of: RunStore | None = None) -> None:
        self.place = place_of_store(path)
        self._stage_of: RunStore | None = stage_of
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

    def open(self, *, take_over: bool = True) -> RunStore:
        """Take the run over; only one process can. ``take_over``: also from one that hangs (npmdask/ownership.py).

        Raises
        ------
        HeldError
            Another process holds it; the sentence says which.
        BadInputError
            The folder holds something else.
        """
        try:
            self._make_folder()
        except OSError as error:
            raise BadInputError(
                f"{self.path} cannot be used as store: {error.strerror}; choose a folder that can be written"
            ) from error
        try:
            self._turn.take(take_over=take_over)
        except HeldError as error:
            self._tell("held", str(error), kind="HeldError")
            raise
        try:
            self._begin()
            self._claim()
        except BaseException:
            self._leave()
            raise
        return self

    def stage(self, name: str) -> RunStore:
        """The store of a stage of this run, in a folder below it: what is committed there is carried with it."""
        return RunStore(self.path / name, stage_of=self)

    def _claim(self) -> None:
        """Of a URL: become its only writer, have what it has, and carry what a kill kept from being carried."""
        if self._carrier is not None:
            self._carrier.claim()
            self._carrier.carry()

    def _leave(self) -> None:
        """Of a URL: carry what is left to tell, unless the run was lost; then let go."""
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
        self._clear_up()
        with suppress(OSError):  # a full disk: the run itself says so, if it has something to write
            if not self._turn.around:
                count_start(self.path)
            if self._turn.taken_from and self._tells:
                self.log("taken", holder=str(self._turn.taken_from), silent=round(self._turn.taken_from.age))
                self._tell("taken", f"taken over from a process that hangs: {self._turn.taken_from}")

    def _make_folder(self) -> None:
        if self._carrier is not None:
            self._carrier.copy.make()
        if self.path.exists() and not self.path.is_dir():
            raise BadInputError(f"{self.path} is a file; a run store is a folder")
        # A kill may have come between making the folder and its lock: a lone `steps` is ours.
        names = {p.name for p in self.path.iterdir()} if self.path.is_dir() else set()
        if names - {"steps", "lock.taking"} and "lock" not in names:
            raise BadInputError(f"{self.path} is a folder with other things in it; choose an empty one as store")
        mode = 0o700 if self._private else 0o777
        self.path.mkdir(mode=mode, parents=True, exist_ok=True)
        if self._private:
            self.path.chmod(0o700)  # whatever made it: the key of the noise is to lie in it
        (self.path / "steps").mkdir(exist_ok=True)

    def _clear_up(self) -> None:
        """What a process that died, or hangs, has left half done."""
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

    def __enter__(self) -> RunStore:
        return self if self._turn.held else self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        lost = self._turn.held and self._turn.lost
        if self._turn.held and not lost and not self._turn.around:
            self._note(error)
        self._leave()
        if lost and isinstance(error, Exception) and not isinstance(error, FencedOutError):
            # Whatever it was: two worked in one folder, and this one was to stop.
            raise FencedOutError(f"run {self.path} was taken over by another process; this one leaves it") from error

    def _note(self, error: BaseException) -> None:
        """What ended the run, for people; and that it did not die, where it says itself why it ends."""
        kind = type(error).__name__
        said = str(error) if isinstance(error, NpmdaskError) else f"{kind}: {error}"
        if isinstance(error, Exception):
            self._tell("error", said, level=logging.ERROR, kind=kind)
        else:
            self._tell("interrupted", "interrupted; everything committed is kept", kind=kind)
        with suppress(OSError):
            if isinstance(error, Exception) and self._tells:
                self.log("error", kind=kind, sentence=said)
            if isinstance(error, NpmdaskError | KeyboardInterrupt | SystemExit):
                count_end(self.path, finished=False)

    def _tell(self, event: str, said: str, *, level: int = logging.WARNING, **facts: Any) -> None:
        """A line of the log; of a run whose errors may quote data, only the kind of what happened."""
        if not self._tells:
            said = f"{facts.get('kind', event)}: what it says may tell of the data"
        run, stage = self.names
        tell(event, said, run=run, stage=stage, level=level, timeless=not self._tells, **facts)

    @property
    def names(self) -> tuple[str, str]:
        """What log lines call the run (its folder, with the one above it where that numbers releases), and the stage
        of it that this store is ("": the whole)."""
        if self._stage_of is not None:
            run, stage = self._stage_of.names
            return run, "/".join(filter(None, [stage, str(self.path.relative_to(self._stage_of.path))]))
        name, above = Path(self.place).name, Path(self.place).parent.name
        return f"{above}/{name}" if name.isdigit() else name, ""

    @property
    def _tells(self) -> bool:
        """Whether telemetry may say what went wrong."""
        try:
            return not self._private and not any(name in (self.read_spec() or {}) for name in UNTOLD)
        except NpmdaskError:
            return False

    def crashes(self) -> tuple[int, str]:
        """How many starts in a row died without committing anything, and where ("step 13"); (0, "") if none.

        A start that ends with an error of this package, or is interrupted, has not died. Also of a store that is held:
        the process that has it now is not counted.
        """
        holder = holder_of(self.path)
        return deaths(self.path, held=self._turn.held or (holder is not None and not holder.gone))

    # What is computed

    def read_spec(self) -> dict[str, Any] | None:
        """The parameters of the run, or None for a new one."""
        try:
            spec = json.loads((self.path / "run.json").read_text())
            if not isinstance(spec, dict) or not all(isinstance(spec.get(table), dict) for table in SPEC_TABLES):
                raise ValueError("tables are missing")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise BadInputError(f"{self.path / 'run.json'} is damaged ({error}); start again in a new store") from error
        _require_format(self.path, spec["version"])
        return spec

    def write_spec(self, spec: dict[str, Any]) -> None:
        """Replace the parameters."""
        with self._turn.publishing():
            write_file_atomically(self.path / "run.json", json.dumps(spec, indent=1, sort_keys=True).encode() + b"\n")
        self._carry()

    def drop_spec(self) -> None:
        """Forget the parameters of a run that never began: the store may be bound again."""
        with self._turn.publishing():
            (self.path / "run.json").unlink(missing_ok=True)
        self._carry()

    # Steps

    def commit_step(self, step: int, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Remember a step: after this returns it survives a power cut, and before it the last one does."""
        path = self.path / "steps" / f"{step:06d}"
        self._write(path, arrays, meta, inline=True, publishing=self._replacing(path))
        self._carry()

    @contextmanager
    def _replacing(self, path: Path) -> Iterator[None]:
        """Around the instant at which a step appears: what it takes the place of, and what goes with it."""
        # There already if it was damaged (see last_step), or if a stream has ended there meanwhile.
        before = path.with_name(f"{path.name}{REPLACED}")
        with self._turn.publishing():
            if path.exists():
                shutil.rmtree(before, ignore_errors=True)
                path.rename(before)
            yield
            shutil.rmtree(before, ignore_errors=True)
            self._forget_pass()
            for older in self._steps()[:-KEPT_STEPS]:
                shutil.rmtree(older, ignore_errors=True)

    def _write(self, path: Path, arrays: Arrays, meta: dict[str, Any], **how: Any) -> None:
        """A bundle, unless the run was taken over: then also what else goes wrong comes of that."""
        self.require_turn()
        try:
            write_bundle(path, arrays, meta, **how)
        except CommitError:
            self.require_turn()
            raise

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

    def last_meta(self) -> dict[str, Any] | None:
        """What :meth:`last_step` says beside its arrays, which are not read (and not checked)."""
        for path in reversed(self._steps()):
            with suppress(BadInputError):
                return read_meta(path)
        return None

    def history(self) -> list[dict[str, Any]]:
        """The steps of a run, as its last one tells; of a finished run whose steps were cleared away, as its answer."""
        found = self.last_meta() or self.part_meta("result") or {}
        return list(found.get("history", []))

    # The pass under way

    def keep_pass(self, key: dict[str, Any], arrays: Arrays, facts: list[dict[str, Any]]) -> None:
        """Remember the finished parts of the pass that ``key`` describes; what was kept of it before goes.

        They are sums over the data before any noise: readable by their owner only.
        """
        kept = self._kept_parts()
        path = self.path / "pass" / f"{int(kept[-1].name) + 1 if kept else 0:06d}"
        self._write(path, arrays, {"key": key, "parts": facts}, private=True, publishing=self._instead_of(kept))
        self._carry()

    @contextmanager
    def _instead_of(self, kept: list[Path]) -> Iterator[None]:
        with self._turn.publishing():
            yield
            for older in kept:
                shutil.rmtree(older, ignore_errors=True)

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
        self.require_turn()
        if not (self.path / name).exists():
            self._write(self.path / name, arrays, meta, publishing=self._turn.publishing())
        if name != "survey":  # the step under way is not committed yet
            with self._turn.publishing():
                self._forget_pass()
        self._carry()

    def read_part(self, name: str) -> tuple[Arrays, dict[str, Any]] | None:
        """The bundle ``name``, or None."""
        return read_bundle(self.path / name) if (self.path / name).exists() else None

    def part_meta(self, name: str) -> dict[str, Any] | None:
        """What the bundle ``name`` says beside its arrays, which are not read; or None."""
        return read_meta(self.path / name) if (self.path / name).exists() else None

    def drop_result(self) -> None:
        """Forget the answer (not the steps): the run goes on under a new stopping rule."""
        self.drop_part("result")

    def drop_part(self, name: str) -> None:
        """Forget the bundle ``name``, at once: a kill leaves all of it or nothing."""
        aside = self.path / f".writing-{name}-dropped"  # a name that ``open`` clears away
        with self._turn.publishing():
            try:
                os.rename(self.path / name, aside)
            except FileNotFoundError:
                return
            shutil.rmtree(aside, ignore_errors=True)
        self._carry()

    # For people

    def log(self, event: str, **facts: Any) -> None:
        """Append one line to the telemetry. Losing the last line in a crash is harmless."""
        self.require_turn()
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


def _require_format(path: Path, version: dict[str, Any]) -> None:
    """Raise RefusedError for a store that another npmdask wrote in a form that this one does not know."""
    found = version.get("checkpoint_format", CHECKPOINT_FORMAT)  # a noisy copy under way names none
    if found != CHECKPOINT_FORMAT:
        which = "an older" if isinstance(found, int) and found < CHECKPOINT_FORMAT else "a newer"
        named = version.get("npmdask", "?")
        raise RefusedError(
            f"{path} was written by {which} npmdask ({named}), in checkpoint format {found}; this one reads format "
            f"{CHECKPOINT_FORMAT} only: use npmdask {named} for this store, or start again in a new one"
        )


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
