"""How the last run of each schedule ended: a note beside the runs, for a night that failed before it had a store.

::

    RUNS/.schedules/HASH.json    written by the process of a scheduled run at its end

``npmdask status``, ``npmdask metrics`` and the page of ``npmdask serve`` read it. Of a private run there is neither a
sentence, which may quote the data, nor a time, which depends on how many rows there are.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from npmdask.numerics.units import time_text
from npmdask.storage.bundle import write_file_atomically

FOLDER = ".schedules"


@dataclass(frozen=True, kw_only=True)
class Night:
    """How the last run of a schedule ended.

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
            return "ended well" + _ago(self.ended)
        again = f", {self.failures} times in a row" if self.failures > 1 else ""
        last = f"; ended well{_ago(self.succeeded)}" if self.succeeded else ""
        return f"failed{_ago(self.ended)}{again}{last}{f': {self.error}' if self.error else ''}"


def note_end(runs: Path, schedule: str, error: str | None, *, private: bool) -> None:
    """Write down how a run of ``schedule`` ended; ``error``: None where it ended well.

    Raises
    ------
    OSError
        It cannot be written.
    """
    folder = runs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    before, now = _read(_file(folder, schedule)), None if private else time.time()
    succeeded = now if error is None else before.succeeded if before else None
    failures = 0 if error is None else 1 + (before.failures if before else 0)
    said = "" if private or error is None else error
    night = Night(schedule=schedule, failures=failures, ended=now, succeeded=succeeded, error=said)
    write_file_atomically(_file(folder, schedule), json.dumps(asdict(night)).encode() + b"\n")


def nights_of(runs: Path) -> list[Night]:
    """How the last run of every schedule ended that left a note beside ``runs``, by name."""
    notes = (_read(file) for file in (runs / FOLDER).glob("*.json"))
    return sorted((night for night in notes if night is not None), key=lambda night: night.schedule)


def _file(folder: Path, schedule: str) -> Path:
    return (
        folder / f"{sha256(schedule.encode()).hexdigest()[:16]}.json"
    )  # a name of a schedule may be no name of a file


def _read(file: Path) -> Night | None:
    try:
        return Night(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _ago(then: float | None) -> str:
    return "" if then is None else f" {time_text(max(time.time() - then, 0.0))} ago"
