"""Streams are killed at random instants and started again; then everything is held against an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.children import ROOT, ChildFailedError
from benchmarks.stream_cases import KINDS, SCATTER_TOLERANCE, Case, make_rows, reading, scatter_error, write_sources
from npmdask.core.checkpoint.store import RunStore

AT_ANY_TIME = 0.2  # of the kills: also while Python starts; the others come while there are rows
SHARE = 3  # of an undisturbed stream: the longest wait for a kill, so that a stream is killed half a dozen times


@dataclass(frozen=True)
class Kill:
    """``pid`` was killed, ``committed`` rows were on disk, ``under_way``: rows had been taken, and no answer was."""

    pid: int
    committed: int
    under_way: bool


class Place:
    """The folder of one stream: its store, and what its processes said."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.store, self.said, self.errors = folder / "run", folder / "said", folder / "errors"
        self.said.touch()

    def told(self) -> dict[int, list[int]]:
        """Rows after every batch, for every process."""
        lines: dict[int, list[int]] = {}
        for line in self.said.read_text().rpartition("\n")[0].splitlines():
            pid, rows = map(int, line.split())
            lines.setdefault(pid, []).append(rows)
        return lines

    def committed(self) -> int:
        """Rows of the last commit."""
        last = RunStore(self.store).last_step()
        return 0 if last is None else int(last[1]["state"]["rows"])

    def has_ended(self) -> bool:
        """Whether the rows were taken to their end."""
        last = RunStore(self.store).last_step()
        return last is not None and bool(last[1]["ended"])

    def killed(self, pid: int) -> Kill:
        """What a kill found."""
        under_way = pid in self.told() and not (self.store / "result").exists()
        return Kill(pid, self.committed(), under_way)


@contextmanager
def started(asked: dict[str, Any], place: Place, piped: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """The job in a process group of its own; the bytes of ``piped`` are sent to it through a pipe."""
    asked = asked | {"store": str(place.store), "said": str(place.said)}
    command = [sys.executable, "-m", "benchmarks.stream_job", json.dumps(asked)]
    with open(place.errors, "wb") as errors, ExitStack() as stack:
        source: Any = subprocess.DEVNULL
        if piped is not None:
            source = stack.enter_context(subprocess.Popen(["cat", str(piped)], stdout=subprocess.PIPE)).stdout
        child = subprocess.Popen(command, cwd=ROOT, stdin=source, stderr=errors, start_new_session=True)
        if piped is not None:
            source.close()  # the child's alone: the sender ends when it does
        try:
            yield child
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


class Streams:
    """``case`` over ``rows`` rows in every kind of source, killed ``kills`` times in all."""

    def __init__(self, case: Case, folder: Path, *, rows: int, kills: int, seed: int = 0) -> None:
        self._case, self._folder, self._count = case, folder, kills
        self._rng = random.Random(seed)
        self._rows = make_rows(rows, case.columns, seed)
        write_sources(folder, self._rows)

    def run(self, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
        """What was found; ``violations`` is a list of sentences, empty if all is well."""
        begun, violations, kills = time.monotonic(), [], list[Kill]()
        whole = {kind: self._undisturbed(kind) for kind in kinds}
        jobs = again = 0
        each = -(-self._count // len(kinds))  # at most in one job, so that every kind gets its share
        for kind in cycle(kinds):
            place = Place(self._folder / f"job{jobs}-{kind}")
            found = self._until_done(place, kind, *whole[kind][1:], most=min(each, self._count - len(kills)))
            said = differences(whole[kind][0], place, found, self._rows)
            violations += [f"{kind}, job {jobs}: {sentence}" for sentence in said]
            again += sum(map(len, place.told().values())) - len(_only(whole[kind][0]))
            shutil.rmtree(place.store.parent)
            jobs, kills = jobs + 1, kills + found
            if len(kills) >= self._count or violations:
                break
        return {
            "violations": violations,
            "kills": len(kills),
            "under_way": sum(kill.under_way for kill in kills),
            "batches_again": again,
            "jobs": jobs,
            "seconds": round(time.monotonic() - begun, 1),
        }

    def _undisturbed(self, kind: str) -> tuple[Place, float, float]:
        """A run that nobody kills; the seconds until its first batch, and from there to its last."""
        place, begun = Place(self._folder / f"whole-{kind}"), time.monotonic()
        with self._started(place, kind) as child:
            _await_first_batch(place, child, said=0)
            first = time.monotonic()
            if child.wait(600):
                raise ChildFailedError(_last_words(place))
        return place, first - begun, time.monotonic() - first

    def _until_done(self, place: Place, kind: str, start: float, stream: float, *, most: int) -> list[Kill]:
        """Kill and start again, at most ``most`` times, until a process ends by itself."""
        kills: list[Kill] = []
        while True:
            with self._started(place, kind) as child:
                if len(kills) == most:
                    child.wait(600)
                elif self._rng.random() < AT_ANY_TIME:
                    _wait(child, self._rng.uniform(0, start))
                else:
                    _await_first_batch(place, child, place.said.stat().st_size)
                    _wait(child, self._rng.uniform(0, stream / SHARE))
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
                    kills.append(place.killed(child.pid))
                    if kind == "piped" and place.has_ended():
                        return kills  # killed on its way out: what is sent now counts as new rows
                    continue
            if child.returncode:
                raise ChildFailedError(_last_words(place))
            return kills

    @contextmanager
    def _started(self, place: Place, kind: str) -> Iterator[subprocess.Popen[bytes]]:
        asked = self._case.asked() | reading(self._folder, kind, self._case.columns)
        with started(asked, place, self._folder / "piped.npy" if kind == "piped" else None) as child:
            yield child


def differences(whole: Place, place: Place, kills: list[Kill], rows: np.ndarray) -> list[str]:
    """Sentences about all in which a stream that was killed differs from the one that was not."""
    found = repetitions(_only(whole), place.told(), kills)
    mine, other = (_kept(p.store) for p in (place, whole))
    found += [f"{name} has other bytes" for name in sorted(mine | other) if mine.get(name) != other.get(name)]
    last = RunStore(place.store).last_step()
    if last is None:
        return [*found, "there is no checkpoint"]
    taken, error = last[1]["state"]["rows"], scatter_error(*last, rows)
    if taken != len(rows):
        found.append(f"{taken} rows were counted and not {len(rows)}")
    if error is not None and error > SCATTER_TOLERANCE:
        found.append(f"the scatter is not that of every row once: {error:.1e}")
    return found


def repetitions(whole: list[int], told: dict[int, list[int]], kills: list[Kill]) -> list[str]:
    """Every process must take exactly the batches that follow the last commit before it: none again, none left out.

    ``whole``: rows after every batch of an undisturbed stream; ``told``: of every process that took one.
    """
    committed = {kill.pid: kill.committed for kill in kills}
    found, behind, last = [], 0, 0
    for pid in [*committed, *(pid for pid in told if pid not in committed)]:
        begin = whole.index(behind) + 1 if behind in whole else 0
        own = told.get(pid, [])
        if own != whole[begin : begin + len(own)] or (behind and not begin):
            found.append(f"a process began with {own[:2]} rows where {behind} were committed")
        last = own[-1] if own else behind
        behind = committed.get(pid, last)
    return found if last == whole[-1] else [*found, f"the last rows were {last} and not {whole[-1]}"]


def _kept(store: Path) -> dict[str, bytes]:
    """The answer and the last checkpoint, byte for byte. How many came before it is a matter of time."""
    steps = [path for path in (store / "steps").iterdir() if path.name.isdigit()]  # not one that was replaced
    last = max(steps, key=lambda path: int(path.name))
    return {
        str(path.relative_to(store)): path.read_bytes()
        for folder in (store / "result", last)
        for path in folder.iterdir()
    }


def _only(whole: Place) -> list[int]:
    [batches] = whole.told().values()
    return batches


def _wait(child: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _await_first_batch(place: Place, child: subprocess.Popen[bytes], said: int) -> None:
    """Until more than ``said`` bytes were said, or the process has ended."""
    while place.said.stat().st_size == said and child.poll() is None:
        time.sleep(0.002)


def _last_words(place: Place) -> str:
    return (place.errors.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
