"""A cluster that loses half of its workers in every pass; what scheduler and driver take for 100 TB."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from distributed import Client

import npmdask
from benchmarks import cache
from benchmarks.children import ChildFailedError, started
from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import clocked, interleaved, medians, rounded
from npmdask.cluster.workers import Processes
from npmdask.core.execution.reduction import runs_of
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Gram, Partial
from npmdask.core.runs.observers import Observer
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import open_source

WORKERS, K, P, STEPS = 8, 10, 512, 3  # wide, so that a pass is long beside the start of a worker
AT = 0.4  # share of a pass at which workers are killed


class Workers:
    """A scheduler and workers of one thread as processes, without a nanny: who is killed stays dead."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        self._folder, self._held = folder, held
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", self.address.rpartition(":")[2])
        self.pids = [self._worker() for _ in range(WORKERS)]
        end = time.monotonic() + 300
        while True:
            try:
                self.client = held.enter_context(Client(self.address, timeout="5s", set_as_default=False))
                break
            except OSError:
                if time.monotonic() > end:
                    raise ChildFailedError(f"the scheduler at {self.address} does not answer") from None
        self.client.wait_for_workers(WORKERS, timeout=300)

    def _start(self, *command: str) -> int:
        words = [sys.executable, "-m", "distributed.cli.dask_" + command[0], *command[1:], "--no-dashboard"]
        return self._held.enter_context(started(words, folder=self._folder)).pid

    def _worker(self) -> int:
        alone = ("--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--memory-limit", "0")
        return self._start("worker", self.address, *alone)

    def kill_half(self) -> None:
        """Kill half of the workers, the oldest, and start as many."""
        for pid in self.pids[: WORKERS // 2]:
            os.kill(pid, signal.SIGKILL)
        self.pids = self.pids[WORKERS // 2 :] + [self._worker() for _ in range(WORKERS // 2)]


class Killing(Observer):
    """Kills half of the workers once in every pass."""

    def __init__(self, workers: Workers) -> None:
        self._workers, self.kills = workers, 0
        self._left = 0.0

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        self._left = AT * total_bytes

    def on_task(self, record: ReadStats) -> None:
        before, self._left = self._left, self._left - record.bytes_read
        if before > 0 >= self._left:
            self._workers.kill_half()
            self.kills += 1


def spot_loss(context: Context) -> Measured:
    """The same run, disturbed and undisturbed, in turns."""
    source = context.data["main"]
    cache.warm(source)
    asked: dict[str, Any] = {"iteration_rank": context.sized(64, P), "algorithm": "power", "max_steps": STEPS}
    found: dict[str, Any] = {}
    kills: list[int] = []

    def run(name: str, workers: Workers, observer: Observer | None = None) -> None:
        workers.client.wait_for_workers(WORKERS, timeout=300)
        store = context.folder / f"spot-{name}-{len(kills)}"
        found[name] = npmdask.top_k(source, K, cluster=workers.address, store=store, observer=observer, **asked)

    def disturbed(workers: Workers) -> None:
        observer = Killing(workers)
        run("disturbed", workers, observer)
        kills.append(observer.kills)

    with ExitStack() as held:
        workers = Workers(context.folder, held)
        run("first", workers)  # until every worker has imported what it needs
        ways = {
            "undisturbed": lambda: run(f"undisturbed-{time.time()}", workers),
            "disturbed": lambda: disturbed(workers),
        }
        seconds = interleaved(ways, min(3, context.rounds))
    middle = medians(seconds)
    same = bool(np.array_equal(found["first"].basis, found["disturbed"].basis))
    passes = found["first"].total_data_passes
    details = {
        "workers": WORKERS,
        "cores": context.cores,
        "p": asked["iteration_rank"],
        "passes": passes,
        "kills_of_half": kills,
        "same_bits": same,
        "seconds": rounded(seconds),
    }
    failures = () if same else ("a run that lost workers gives other bits",)
    if min(kills) < passes:
        failures += (f"workers were killed in {min(kills)} of {passes} passes",)
    why = (
        f"{WORKERS} workers share {context.cores} cores, so that half of them is less than half of the speed; those "
        "that take their place import NumPy and Dask meanwhile"
    )
    return Measured(middle["disturbed"] / middle["undisturbed"], details, why, failures)


# 100 TB that are claimed: metadata of an array without a single chunk, and tasks that read nothing.

COLUMNS, CHUNK_ROWS, TERABYTE = 10_000, 1600, 10**12  # 128 MB a chunk
SLOTS = 256  # threads that the pass is cut for


@dataclass(frozen=True, kw_only=True)
class Claimed(Gram):
    """Returns sums of the right shape at once."""

    def partial(self, slabs: range, block: Block) -> Partial:
        read = ReadStats(bytes_read=self.reader.nbytes // self.units * len(slabs), chunks=len(slabs))
        return Partial({"product": np.zeros_like(block)}, read)


def overhead(context: Context) -> Measured:
    """A pass over more and more data that takes no time but that of scheduler, driver and messages."""
    found: dict[str, Any] = {}
    block = np.linalg.qr(np.random.default_rng(0).standard_normal((COLUMNS, 10)))[0]
    with _two_workers() as executor:
        for terabytes in (100,) if context.scale == "small" else (1, 10, 100):
            rows = terabytes * TERABYTE // 8 // COLUMNS
            path = context.folder / f"claimed-{terabytes}.zarr"
            zarr.create_array(path, shape=(rows, COLUMNS), chunks=(CHUNK_ROWS, COLUMNS), dtype="f8")
            operator = Claimed(reader=open_source(path, "samples").reader)
            times = [_timed(executor, operator, block) for _ in range(context.rounds)]
            seconds, tasks = [spent["wall_seconds"] for _, spent in times], times[0][0]
            found[f"{terabytes} TB"] = {
                "chunks": operator.pass_chunks,
                "runs": len(runs_of(operator)),
                "tasks": tasks,
                "seconds": [round(s, 3) for s in seconds],
                "cpu_seconds": [round(spent["cpu_seconds"], 3) for _, spent in times],
                "ms_per_task": round(1e3 * sorted(seconds)[len(seconds) // 2] / tasks, 2),
            }
    last = found["100 TB"]
    details = {"d": COLUMNS, "p": 10, "slots": SLOTS, **found}
    why = f"{last['tasks']} tasks of {last['ms_per_task']} ms, on {context.cores} cores that also run the workers"
    figure = sorted(last["seconds"])[len(last["seconds"]) // 2]
    failures = () if last["tasks"] <= 4096 else (f"{last['tasks']} tasks: they grow with the data",)
    return Measured(figure, details, why, failures)


def _timed(executor: Processes, operator: Claimed, block: Block) -> tuple[int, dict[str, float]]:
    """Tasks of a pass, its seconds, and the CPU seconds of this process: of the driver and of the scheduler."""
    told: list[ReadStats] = []
    _, spent = clocked(lambda: executor.run_pass(operator, block, told.append))
    return len(told), spent


@contextmanager
def _two_workers() -> Iterator[Processes]:
    executor = Processes(2, 1)
    try:
        executor._slots = SLOTS
        yield executor
    finally:
        executor.close()


ROWS = (
    Row(
        name="spot-loss",
        what="time of a run that loses half of its 8 workers in every pass / undisturbed",
        target=1.5,
        better="lower",
        run=spot_loss,
        data=("main",),
    ),
    Row(
        name="cluster-overhead",
        what="seconds of scheduler and driver for a pass over simulated 100 TB (8e5 chunks)",
        target=5.0,
        better="lower",
        run=overhead,
    ),
)
