"""A stream that dies before one of the operations that change its store, one after the other until it needs no more.

``python -m tests.faults.crash_points KIND FOLDER STRIDE``: tries every ``STRIDE``-th point; prints how many there are,
and where what the stream goes on to differs from an undisturbed run. The processes are forked from one that has
imported everything. What is killed is the second of two calls, so that there is an older answer that must not survive.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore
from npmdask.streaming import stream_pca

ROWS, COLUMNS, BATCH = 16, 5, 8  # of one call: two batches, a commit after each
OPERATIONS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")


def stream(kind: str, folder: Path, store: Path, call: int) -> None:
    """The rows of call 0 or 1 out of a pipe or file, or those of the files that are there."""
    asked: dict[str, Any] = {"source": str(folder / f"files-{call}")}
    if kind == "piped":
        os.dup2(os.open(folder / "files-1" / f"{call}.npy", os.O_RDONLY), 0)
        asked = {"source": "-", "format": "npy", "columns": COLUMNS}
    options = {"iteration_rank": COLUMNS}
    stream_pca(**asked, k=2, options=options, batch_rows=BATCH, commit_seconds=0, measure_rows=BATCH, store=store)


def forked(work: Callable[[], None]) -> int:
    """Exit status of ``work`` in a process of its own: negative of a signal."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def dies_before(operation: int, store: Path) -> None:
    """Kill this process before its ``operation``-th change to what lies in ``store``."""
    left = operation

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        named = args and str(args[0]).startswith(str(store))
        changes = event in OPERATIONS and (named or event in ("os.remove", "os.rmdir"))  # rmtree says no folder
        if changes or (event == "open" and named and args[2] & (os.O_WRONLY | os.O_RDWR)):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def kept(store: Path) -> dict[str, Any]:
    """Bytes of the answer and of the last checkpoint."""
    steps = [path for path in (store / "steps").iterdir() if path.name.isdigit()]  # not one that was replaced
    last = max(steps, key=lambda path: int(path.name))
    return {f"{folder.name}/{p.name}": p.read_bytes() for folder in (store / "result", last) for p in folder.iterdir()}


def has_ended(store: Path) -> bool:
    """Whether the rows of both calls were taken to their end."""
    last = RunStore(store).last_step()
    return last is not None and last[1]["ended"] and last[1]["state"]["rows"] == 2 * ROWS


def crash_everywhere(kind: str, folder: Path, stride: int) -> tuple[int, list[str]]:
    """How many points there are, and what went wrong."""
    whole, before, store, found = folder / "whole", folder / "before", folder / "run", list[str]()
    for call in (0, 1):
        assert forked(lambda call=call: stream(kind, folder, whole, call)) == 0
        if not call:
            shutil.copytree(whole, before)
    for point in range(0, 10_000, stride):
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(before, store)
        code = forked(lambda point=point: (dies_before(point, store), stream(kind, folder, store, 1)))
        if code not in (0, -signal.SIGKILL):
            found.append(f"point {point}: exit status {code}")
        if code == 0:
            return point, found
        # Whoever feeds a pipe sends the same rows again, unless the store says that they were taken to their end.
        if not (kind == "piped" and has_ended(store)) and forked(lambda: stream(kind, folder, store, 1)):
            found.append(f"point {point}: it does not go on")
        elif kept(store) != kept(whole):
            found.append(f"point {point}: other bytes")
    raise AssertionError("it never ended")


def main(kind: str, folder: Path, stride: int) -> None:
    early, late = folder / "files-0", folder / "files-1"  # the directory before and after a file came
    early.mkdir()
    late.mkdir()
    for number, rows in enumerate(np.random.default_rng(0).standard_normal((2, ROWS, COLUMNS))):
        np.save(late / f"{number}.npy", rows)
    os.link(late / "0.npy", early / "0.npy")
    print(json.dumps(crash_everywhere(kind, folder, stride)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
