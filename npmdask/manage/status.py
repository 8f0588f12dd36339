"""Show the status of every run below a folder, in use or not, without taking a lock or reading an array.

And how the last run of each schedule ended: a note beside the runs, for a night that failed before it had a store::

    RUNS/.schedules/HASH.json    written by the process of a scheduled run at its end

``npmdask status``, ``npmdask metrics`` and the page of ``npmdask serve`` read it. Of a private run there is neither a
sentence, which may quote the data, nor a time, which depends on how many rows there are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from npmdask.core import features
from npmdask.core.checkpoint.lease import Holder, holder_of
from npmdask.core.checkpoint.reader import is_store, size_of, stores_below
from npmdask.core.checkpoint.store import RunStore, folder_of, no_run, runs_near
from npmdask.core.execution.reduction import TreeNode
from npmdask.core.numerics.units import bytes_text, time_text
from npmdask.core.runs.results import prediction_facts
from npmdask.core.storage.bundle import write_file_atomically
from npmdask.core.storage.paths import local_path, read_facts
from npmdask.core.storage.source import OF_URL, Source, is_registered, is_remote, open_source
from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from npmdask.manage.kinds import Spec, kind_of, last_error

NOTES = ".schedules"  # the folder of how schedules ended


@dataclass(frozen=True, kw_only=True)
class Night:
    """The end of the last run of a schedule.

    ``failures``: in a row, 0 where it ended well. ``ended``, ``succeeded``: Unix times of the last run, and of the last
    that ended well; None where there is none, or it is not told. ``error``: of the last run.
    """

    schedule: str
    failures: int = 0
    ended: float | None = None
    succeeded: float | None = None
    error: str = ""

    @property
    def said(self) -> str:
        """The same in a line."""
        if not self.failures:
            return "ended well" + _ago_text(self.ended)
        again = f", {self.failures} times in a row" if self.failures > 1 else ""
        last = f"; ended well{_ago_text(self.succeeded)}" if self.succeeded else ""
        return f"failed{_ago_text(self.ended)}{again}{last}{f': {self.error}' if self.error else ''}"


def note_end(runs: Path, schedule: str, error: str | None, *, private: bool) -> None:
    """Write down how a run of ``schedule`` ended; ``error``: None where it ended well.

    Raises
    ------
    OSError
        It cannot be written.
    """
    folder = runs / NOTES
    folder.mkdir(parents=True, exist_ok=True)
    before, now = _read(_file(folder, schedule)), None if private else time.time()
    succeeded = now if error is None else before.succeeded if before else None
    failures = 0 if error is None else 1 + (before.failures if before else 0)
    said = "" if private or error is None else error
    night = Night(schedule=schedule, failures=failures, ended=now, succeeded=succeeded, error=said)
    write_file_atomically(_file(folder, schedule), json.dumps(asdict(night)).encode() + b"\n")


def nights_of(runs: Path) -> list[Night]:
    """Read how the last run of every schedule ended that left a note beside ``runs``, by name."""
    notes = (_read(file) for file in (runs / NOTES).glob("*.json"))
    return sorted((night for night in notes if night is not None), key=lambda night: night.schedule)


def _file(folder: Path, schedule: str) -> Path:
    # a name of a schedule may be no name of a file
    return folder / f"{sha256(schedule.encode()).hexdigest()[:16]}.json"


def _read(file: Path) -> Night | None:
    try:
        return Night(**read_facts(file))
    except (OSError, ValueError, TypeError, BadInputError):
        return None


def _ago_text(then: float | None) -> str:
    return "" if then is None else f" {time_text(max(time.time() - then, 0.0))} ago"


# What a folder holds, said without reading the data.


def inspect(path: str | Path) -> dict[str, Any]:
    """Return facts of a data store or of a run store (in use by a process or not).

    Raises
    ------
    BadInputError
        Neither of them.
    """
    if is_registered(path) or _is_data_in_bucket(str(path)):
        return _inspect_data(path)
    folder = folder_of(path)
    if (folder / "run.json").exists():
        run = RunStore(folder)
        spec = run.read_spec() or {}
        return kind_of(spec).inspect(run, spec)
    if (folder / "steps").is_dir():
        raise BadInputError(f"{folder} is a run that was killed before its first step; run the same command again")
    try:
        return _inspect_data(folder)
    except BadInputError:
        if any(map(is_store, folder.parents)) or runs_near(folder):
            raise no_run(path) from None
        raise


def _is_data_in_bucket(place: str) -> bool:
    """Say whether a place is the URL of an object store, and no run lies there."""
    stored = features.found("stores", place.partition(OF_URL)[0]) if is_remote(place) else None
    return is_remote(place) and not (stored and stored.holds_run(place))


def _inspect_data(path: str | Path) -> dict[str, Any]:
    source = open_source(path, of_complex=True, exact=False)
    reader: Any = source.reader
    return {
        "kind": source.kind,
        **_extent(source),
        "dtype": str(source.dtype),
        "bytes": reader.nbytes,
        "chunk_grid": [reader.grid] * 3 if reader.layout == "tensor" else list(reader.grid),
        "stored": _storage_text(reader),
        "fingerprint": source.fingerprint,
        "checksums": "recorded" if source.registered else "none (a plain store: computed in the first pass of a run)",
        "truth_rank": source.truth.basis.shape[1] if source.truth else None,
        **({} if source.budget is None else {"privacy budget": f"{source.budget!r} in the ledger"}),
    }


def _extent(source: Source) -> dict[str, Any]:
    """Describe the size of the data, in the terms of their kind."""
    n, d = source.shape[0], source.dimension // source.parts
    if source.reader.layout == "tensor":
        tensor: Any = source.reader
        return {"order": len(source.shape), "dimension": d, "block": tensor.side}
    return {"rows": n, "columns": d} if source.side is None else {"matrices": n, "side": d}


def _storage_text(reader: Any) -> str:
    if reader.layout == "tensor":
        return f"the {reader.units} unique blocks of {reader.grid**3}"
    return "the upper triangle" if reader.layout == "triangle" else "whole"


HEAD = ("run", "what", "state", "step", "residual", "time left", "last commit", "on disk")
NOTHING = "-"


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The status of one run.

    ``state``: "finished", "running", "hung" (its process shows no life), "waiting" (a stream that has taken all there
    is), "crashed" (two or more starts in a row died without a commit: ``crashes`` of them, at ``crashed_at``),
    "unfinished" or "damaged". ``killed``: its last process is gone and did not say why. ``pass_committed``: the share
    of the pass under way that is committed, from 0 to 1; None where none of it is, or that is not told.
    ``residual``: worst relative one of the last step. ``predicted_steps``: before the first pass, by a sample; None if
    there is none, or only one for a random start that the run had not. ``seconds_left``, ``seconds_since_commit``,
    ``last_commit`` (Unix time): None if not known; of a private run not shown, as they depend on its rows.
    ``converged``: whether the answer of a finished run did, None before there is one; if not, ``outcome`` says why.
    ``bytes``: on disk.
    ``error``: what ended the last process that worked on it, or what is wrong with the store.
    ``assurance``: how wrong the answer can be, where there is one.
    """

    path: str
    name: str
    what: str
    state: str
    step: int | None = None
    max_steps: int | None = None
    stage: str = ""
    residual: float | None = None
    predicted_steps: int | None = None
    seconds_left: float | None = None
    seconds_since_commit: float | None = None
    last_commit: float | None = None
    bytes: int = 0
    crashes: int = 0
    crashed_at: str = ""
    killed: bool = False
    pass_committed: float | None = None
    error: str = ""
    holder: dict[str, Any] | None = None
    assurance: str = ""
    converged: bool | None = None
    outcome: str = ""

    @property
    def shown_state(self) -> str:
        """Return the state as it is shown to users, which includes whether the answer converged."""
        return self.state if self.converged is not False else f"{self.state}, not converged"

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def status_below(folder: str | Path) -> list[RunStatus]:
    """Return the status of every run store in ``folder`` or below it.

    Raises
    ------
    BadInputError
        There is no such folder.
    """
    root = local_path(folder, "the folder of the runs")
    return [status_of(path, str(path.relative_to(root)) if path != root else path.name) for path in stores_below(root)]


def status_of(path: Path, name: str) -> RunStatus:
    """Return the status of one run store, damaged or not."""
    holder, size = holder_of(path), size_of(path)
    common: dict[str, Any] = {"path": str(path), "name": name, "bytes": size.bytes}
    if holder is not None and not holder.gone:
        told = {"pid": holder.pid, "host": holder.host, "since": holder.since, "owner": holder.owner}
        common["holder"] = told | {"silent_seconds": round(holder.age, 1)}
    for last in (not (holder and holder.alive), True):  # what lives may replace something while it is read
        try:
            found = _stored_facts(RunStore(path), holder)
            committed = None if found.pop("timeless") else size.committed
            since = None if committed is None else time.time() - committed
            return RunStatus(**common, **found, seconds_since_commit=since, last_commit=committed)
        except Exception as error:
            if last:
                said = str(error) if isinstance(error, NpmdaskError) else f"{type(error).__name__}: {error}"
                return RunStatus(**common, what="?", state="damaged", error=said)
    raise AssertionError


def _stored_facts(store: RunStore, holder: Holder | None) -> dict[str, Any]:
    """Everything but names and sizes."""
    spec, crashes = store.read_spec(), store.crashes()
    begun: dict[str, Any] = {"crashes": crashes[0], "crashed_at": crashes[1], "timeless": False}
    begun["killed"] = holder is not None and holder.gone  # one that ends in order says so in the lock
    state = _state_of(holder, crashes[0])
    if spec is None:
        built = "moments" if store.path.name.endswith(".partial.passes") else "?"  # npmdask moments
        return begun | {"what": built, "state": state, "error": last_error(store)}
    try:
        found = begun | kind_of(spec).status(store, spec, state)
    except (BadInputError, RefusedError) as error:  # nothing is wrong with the store of what is not here
        if not (what := spec["data"].get("kind")):
            raise
        state = "finished" if store.part_meta("result") is not None else state
        return begun | {"what": what, "state": state, "error": str(error)}
    if "error" not in found:
        found["error"] = "" if found["state"] in ("finished", "running") else last_error(store)
    return found


def _state_of(holder: Holder | None, crashes: int) -> str:
    if holder is not None and not holder.gone:
        return "running" if holder.alive else "hung"
    return "crashed" if crashes > 1 else "unfinished"


def runs_as_lines(found: Sequence[RunStatus]) -> list[str]:
    """Return the status as a table for people, with notes below a run."""
    rows = [HEAD, *map(_row, found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    said = table[:1]
    for row, status in zip(table[1:], found, strict=True):
        said += [row, *(f"    {note}" for note in _notes(status))]
    return said


def _row(s: RunStatus) -> tuple[str, ...]:
    step = NOTHING if s.step is None else f"{s.step}"
    if s.max_steps is not None and s.state != "finished":
        step = f"{step} of at most {s.max_steps}"
    residual = NOTHING if s.residual is None else f"{s.residual:.1e}"
    known = NOTHING if s.state != "running" else "unknown" if s.seconds_left is None else time_text(s.seconds_left)
    ago = NOTHING if s.seconds_since_commit is None else f"{time_text(s.seconds_since_commit)} ago"
    step = f"{s.stage}: {step}" if s.stage else step
    return s.name, s.what, s.shown_state, step, residual, known, ago, bytes_text(s.bytes)


def _notes(s: RunStatus) -> list[str]:
    notes = []
    if s.holder:
        named = f", for {s.holder['owner']}" if s.holder["owner"] else ""
        seen = time_text(s.holder["silent_seconds"])
        notes.append(
            f"process {s.holder['pid']} on {s.holder['host']} since {s.holder['since']}{named}; last heartbeat {seen} "
            "ago"
        )
    if s.state in ("unfinished", "crashed") and not s.error:
        notes += [said] if (said := ended_text(s)) else []
    if s.predicted_steps is not None and s.state in ("running", "unfinished"):
        notes.append(f"predicted before the first pass: {s.predicted_steps} steps")
    if s.converged is False:
        notes.append(s.outcome)
    return [*notes, *([s.error] if s.error else [])]


def ended_text(s: RunStatus) -> str:
    """Say what ended a process that did not finish the run, and what is committed to continue from."""
    steps = f"{s.step} step{'s'[: s.step != 1]}" if s.step else ""
    share = "" if s.pass_committed is None else f"{100 * s.pass_committed:.0f} % of the next pass"
    kept = " and ".join(part for part in (steps, share) if part)
    again = f"run the same command again and it goes on (committed: {kept or 'nothing yet'})"
    if s.crashes > 1:
        return (
            f"ended {s.crashes} times in a row without saying so and without a commit, at {s.crashed_at}, most likely "
            f"killed: look at the memory and the disk of the machine; then {again}"
        )
    if s.killed:
        return f"its process ended without saying so, most likely killed; {again}"
    return again if kept else ""


# How far a run came, as its store tells.


def progress(run: RunStore, spec: Spec, state: str, folders: tuple[str, ...]) -> dict[str, Any]:
    """Say how far a run came; of one with stages that is not finished, how far the stage under way."""
    inner, running = None if state == "finished" else under_way(run.path, folders), state == "running"
    if inner is not None:
        name, run = str(inner.relative_to(run.path)), RunStore(inner)
        spec = run.read_spec() or spec
    history, telemetry = run.history(), run.telemetry()
    left = features.found("managed", "time left") if running and inner is None else None
    predicted = prediction_facts(telemetry, len(history))["predicted_steps"]
    return {
        "step": len(history),
        "predicted_steps": None if spec["run"].get("starts_from") else predicted,
        "max_steps": spec["stop"].get("max_steps"),
        "residual": history[-1]["worst_residual"] if history else None,
        "pass_committed": None if state == "finished" else pass_committed(run, len(history)),
        "stage": name if inner is not None else "",
        "seconds_left": None if left is None else left(dict(spec), history, telemetry),
    }


def pass_committed(run: RunStore, steps: int) -> float | None:
    """The share of the pass under way whose parts are committed; None where none of them is.

    A kill between the commit of a step and the end of its pass leaves the parts behind: ``steps`` are done.
    """
    found = run.pass_meta()
    count = 0 if found is None else int(found["key"].get("runs", 0))
    if found is None or not count or found["key"].get("label") == f"step {steps}":
        return None
    return sum(len(TreeNode(*part["node"]).runs(count)) for part in found["parts"]) / count


def under_way(folder: Path, folders: tuple[str, ...] = ()) -> Path | None:
    """Find the stage that was opened last, if it is not finished."""
    inside = [path for name in folders for path in (folder / name).glob("*")]
    stages = [path for path in (*folder.iterdir(), *inside) if is_store(path)]
    # Of stages opened in the same instant, as those of an archive: the unfinished one, however a folder is listed.
    opened = lambda path: ((path / "epoch").stat().st_mtime_ns, not (path / "result").is_dir(), path.name)  # noqa: E731
    last = max(stages, key=opened, default=None)
    return None if last is None or (last / "result").is_dir() or not (last / "run.json").exists() else last
