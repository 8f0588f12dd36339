"""What a step costs besides its pass: driver, checkpoint, Prefect."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cache
from benchmarks.children import last_json
from benchmarks.registry import Context, Measured, Row
from npmdask.core.checkpoint.store import RunStore

K = 10


def measure(context: Context) -> Measured:
    """A run through the Prefect flow in a process of its own; the times are those of its telemetry."""
    source, store = context.data["main"], context.folder / "overhead"
    cache.warm(source)
    config = context.folder / "overhead.toml"
    lines = ["[source]", f'path = "{source}"', "[algorithm]", 'name = "krylov"', f"target_rank = {K}"]
    lines += ["[stop]", "tol = 1e-6"]
    config.write_text("\n".join([*lines, "[run]", 'memory = "1GiB"', ""]))
    command = [sys.executable, "-m", "flows.npm", str(config), "--store", str(store), "--json"]
    facts = last_json(command, folder=context.folder)
    passes, between = _times(RunStore(store).telemetry())
    share = sum(between) / sum(passes[1:])
    details = {
        "steps": len(passes),
        "median_pass_seconds": round(statistics.median(passes), 4),
        "median_between_seconds": round(statistics.median(between), 4),
        "longest_between_seconds": round(max(between), 4),
        "share_by_medians": round(statistics.median(between) / statistics.median(passes), 4),
        "max_sin_theta": {"npmdask": facts["max_sin_theta"]},
        "commit_of_25_6_mb_ms": round(_commit_cost(context.folder), 1),
    }
    why = f"{1e3 * statistics.mean(between):.0f} ms a step beside warm passes of {statistics.mean(passes):.2f} s"
    return Measured(share, details, why, () if facts["converged"] else ("the run did not converge",))


def _times(telemetry: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Seconds of every step's pass, and from the end of one to the start of the next."""
    steps = [event for event in telemetry if str(event.get("label", "")).startswith("step")]
    begun = [event["time"] for event in steps if event["event"] == "pass"]
    ended = [event["time"] for event in steps if event["event"] == "passed"]
    passes = [end - start for start, end in zip(begun, ended, strict=True)]
    return passes, [later - end for end, later in zip(ended[:-1], begun[1:], strict=True)]


def _commit_cost(folder: Path) -> float:
    """Milliseconds of one commit of a state of 1e5 x 32 float64, the median of 20."""
    state, times = np.random.default_rng(0).standard_normal((100_000, 32)), []
    with RunStore(folder / "commits") as store:
        for step in range(20):
            start = time.perf_counter()
            store.commit_step(step, {"basis": state}, {})
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


ROWS = (
    Row(
        name="step-overhead",
        what="time between passes (driver, checkpoint, Prefect) / time of passes, 4 GiB",
        target=0.02,
        better="lower",
        run=measure,
        data=("main",),
    ),
)
