"""``kill -9`` in the middle of a pass: how much of it is done again."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from benchmarks import cache
from benchmarks.children import ChildFailedError, last_json, solve_command, started
from benchmarks.registry import Context, Measured, Row
from npmdask.core.checkpoint.store import RunStore

K, P = 20, 128  # wide, so that a pass on this much data lasts long enough to be killed
STEP = 2  # of the kill
SHARES = (0.5, 0.8, 0.95)  # of the pass, at which it is killed
COMMITS = 25  # in a pass: as many as 30 s make in a pass of a quarter of an hour


def measure(context: Context) -> Measured:
    """The worst of three kills; the pass is timed first, undisturbed, to set the interval of commits."""
    source = context.data["main"]
    cache.warm(source)
    common: dict[str, Any] = {"source": str(source), "k": K, "iteration_rank": P, "max_steps": STEP, "threads": 1}
    store = context.folder / "killed-none"
    whole = last_json(solve_command(**common, store=str(store)), folder=context.folder)
    seconds = _passed(store)["seconds"]
    common["commit_seconds"] = max(0.02, seconds / COMMITS)
    kills = [killed_at(share, context, common) for share in SHARES]
    worst = max(kill["lost_share"] for kill in kills)
    details = {
        "pass_seconds": seconds,
        "commit_seconds": common["commit_seconds"],
        "kills": kills,
        "max_sin_theta": {"undisturbed": whole["max_sin_theta"]},
    }
    changed = any(kill["max_sin_theta"] != whole["max_sin_theta"] for kill in kills)
    why = f"{worst * seconds:.1f} s of a pass of {seconds:.1f} s are done again"
    return Measured(worst, details, why, ("a killed run ends in another answer",) if changed else ())


def killed_at(share: float, context: Context, common: dict[str, Any], step: int = STEP) -> dict[str, Any]:
    """Kill at a share of the pass of ``step``, run the same again, and compare what was done with what was taken over.

    The run is in ``store`` of what this returns.
    """
    store, progress = (context.folder / f"killed-{share}{end}" for end in ("", ".progress"))
    command = solve_command(**common, store=str(store), progress=str(progress))
    with open(context.folder / "killed.log", "wb") as said, started(command, folder=context.folder, said=said) as child:
        while (done := _done(progress, step))[0] < share:
            if child.poll() is not None:
                lines = (context.folder / "killed.log").read_text(errors="replace").strip().splitlines()
                raise ChildFailedError(f"ended before it was killed: {lines[-1][:300] if lines else 'said nothing'}")
            time.sleep(0.005)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    done = _done(progress, step)
    facts = last_json(solve_command(**common, store=str(store)), folder=context.folder)
    resumed = _passed(store, step).get("bytes_resumed", 0)
    return {
        "store": str(store),
        "killed_at_share": round(done[0], 4),
        "bytes_done": done[1],
        "bytes_resumed": resumed,
        "lost_share": max(0, done[1] - resumed) / done[2],
        "max_sin_theta": facts["max_sin_theta"],
    }


def _done(progress: Path, step: int) -> tuple[float, int, int]:
    """Share of the pass of ``step`` that is done, its bytes, and those of the whole pass."""
    label, done, total = "", 0, 1
    lines = progress.read_bytes().split(b"\n")[:-1] if progress.exists() else []
    for event in map(json.loads, lines):
        if "label" in event:
            label, done, total = event["label"], 0, event["total"]
        else:
            done += event["bytes"]
    return (done / total, done, total) if label == f"step {step}" else (0.0, 0, total)


def _passed(store: Path, step: int = STEP) -> dict[str, Any]:
    """The last telemetry line of the pass that was killed."""
    events = [e for e in RunStore(store).telemetry() if e["event"] == "passed" and e["label"] == f"step {step}"]
    return events[-1]


ROWS = (
    Row(
        name="kill-in-pass",
        what="share of a pass done again after `kill -9` inside it",
        target=0.10,
        better="lower",
        run=measure,
        data=("main",),
    ),
)
