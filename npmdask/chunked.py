"""The only room that knows Dask: one data pass as a graph, and the memory plan that it keeps to.

The graph of a pass is a row of ``partial`` tasks, one for each run of slabs, joined pairwise in a fixed
tree. The runs and the tree depend on the layout of the data only: the same sums are formed in the same
order with any number of threads or processes, and BLAS is pinned to one thread inside a task, so the
product has the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import dask
import numpy as np
from dask.callbacks import Callback
from threadpoolctl import threadpool_limits

from npmdask.errors import MemoryRefusedError
from npmdask.linalg import Block
from npmdask.operators import RUN_BYTES, Operator, Partial
from npmdask.storage.dense import SlabRecord

MAX_RUNS = 256

OnTask = Callable[[SlabRecord], None]


def runs_of(operator: Operator) -> list[range]:
    """The runs of slabs that the tasks of a pass work on: a function of the stored layout only."""
    count = max(1, min(operator.units, MAX_RUNS, operator.pass_bytes // RUN_BYTES))
    edges = [operator.units * i // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def _partial(operator: Operator, slabs: range, block: Block) -> Partial:
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found in the product, and said
        return operator.partial(slabs, block)


def _join(operator: Operator, left: Partial, right: Partial) -> Partial:
    return operator.join(left, right)


def _tree(operator: Any, parts: list[Any]) -> Any:
    """Join neighbours, pairwise, until one is left."""
    join = dask.delayed(_join, pure=False)
    while len(parts) > 1:
        parts = [join(operator, *parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """BLAS on one thread: its blocking, and so the last bits of QR, depend on the number of threads."""
    with threadpool_limits(limits=1):
        yield


class Threads:
    """Runs passes on threads of this process."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def run_pass(self, operator: Operator, block: Block, on_task: OnTask) -> tuple[Block, SlabRecord]:
        """``A @ block`` in one pass, and what the reading cost. ``on_task`` is told of every finished task."""
        held = dask.delayed(block, name="block", traverse=False)
        whole = dask.delayed(operator, name="operator", traverse=False)
        parts = [dask.delayed(_partial, pure=False)(whole, slabs, held) for slabs in runs_of(operator)]
        with single_threaded_blas(), _Watch(on_task):
            (total,) = dask.compute(
                _tree(whole, parts), scheduler="threads", num_workers=self.threads, optimize_graph=False
            )
        return operator.finish(total, block), total.record

    def close(self) -> None:
        """Nothing is held between passes."""


class _Watch(Callback):
    """Tells ``on_task`` of every partial product that the threaded scheduler finishes."""

    def __init__(self, on_task: OnTask) -> None:
        self._on_task = on_task
        super().__init__(posttask=self._done)

    def _done(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        if str(key).startswith("_partial"):
            self._on_task(result.record)


class Processes:
    """Runs passes on worker processes of this machine (dask.distributed, loopback only)."""

    def __init__(self, workers: int, threads: int) -> None:
        from distributed import Client, LocalCluster

        self.threads = threads
        # Left at distributed's default of 64 KiB, every buffer would be given back and faulted in again.
        environment = {
            "MALLOC_TRIM_THRESHOLD_": str(2**30),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        with dask.config.set({"distributed.nanny.pre-spawn-environ": environment}):
            self._cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=threads,
                processes=True,
                host="127.0.0.1",
                dashboard_address=None,
                memory_limit=0,  # the plan below is the limit; distributed would pause or kill a worker instead
                silence_logs=40,
            )
        self._client = Client(self._cluster, set_as_default=False)

    def run_pass(self, operator: Operator, block: Block, on_task: OnTask) -> tuple[Block, SlabRecord]:
        """``A @ block`` in one pass, and what the reading cost. ``on_task`` is told of every finished task."""
        client = self._client
        held, whole = client.scatter([block, operator], broadcast=True, hash=False)
        parts = [client.submit(_partial, whole, slabs, held, pure=False) for slabs in runs_of(operator)]
        records = [client.submit(_record_of, part, pure=False) for part in parts]
        while len(parts) > 1:
            parts = [
                client.submit(_join, whole, *parts[i : i + 2], pure=False) if i + 1 < len(parts) else parts[i]
                for i in range(0, len(parts), 2)
            ]
        from distributed import as_completed

        for _, record in as_completed(records, with_results=True, loop=client.loop):
            on_task(record)
        total = parts[0].result()
        return operator.finish(total, block), total.record

    def close(self) -> None:
        """Stop the worker processes."""
        self._client.close()
        self._cluster.close()


def _record_of(partial: Partial) -> SlabRecord:
    return partial.record


Executor = Threads | Processes


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """What a run will need, before it starts. All in bytes.

    ``base`` is what the processes hold already (interpreter, libraries, a Prefect server below this one),
    ``state`` the blocks of the algorithm, ``task`` one running task.
    """

    limit: int | None
    base: int
    state: int
    task: int
    threads: int
    workers: int

    @property
    def predicted_peak(self) -> int:
        return self.base + self.state + self.task * self.threads * max(1, self.workers)


# Measured on the layouts of tests/test_memory.py, beyond what the arrays explain.
THREAD_BASE = 24 * 2**20  # packing buffers of BLAS and an arena of malloc, for each running task
GROWTH = 24 * 2**20  # modules loaded and freed memory not given back after the plan was made
WORKER_BASE = 190 * 2**20  # measured: a distributed worker process with its nanny, NumPy, SciPy and zarr loaded


def plan_memory(
    operator: Operator,
    p: int,
    state_blocks: int,
    *,
    limit: int | None,
    base: int,
    threads: int | None,
    workers: int,
) -> MemoryPlan:
    """Choose the number of threads that fits the limit (the result has the same bits with any number).

    ``state_blocks``: how many d x p blocks of float64 the algorithm and its checkpoint hold at once.

    Raises
    ------
    RefusedError
        Not even one thread fits; the sentence says what would.
    """
    state = state_blocks * operator.block_rows * p * 8
    pending = 2 * len(runs_of(operator)).bit_length() * operator.block_rows * p * 8
    base = base + GROWTH + workers * (WORKER_BASE + operator.block_rows * p * 8)
    task = operator.task_bytes(p, runs_of(operator)) + THREAD_BASE
    wanted = threads or usable_cores()
    for count in range(wanted, 0, -1):
        plan = MemoryPlan(
            limit=limit,
            base=base,
            state=state + pending,
            task=task,
            threads=count,
            workers=workers,
        )
        if limit is None or plan.predicted_peak <= limit:
            return plan
    raise MemoryRefusedError(_too_little(plan, operator))


def _too_little(plan: MemoryPlan, operator: Operator) -> str:
    mib = 2**20
    remedies = [f"set memory to at least {-(-plan.predicted_peak // mib)}MiB"]
    if plan.workers:
        remedies.append("or run in one process (workers = 0)")
    if plan.task > plan.state:
        remedies.append("or ingest the data with smaller chunks (a task holds one row of chunks)")
    else:
        remedies.append("or ask for a smaller target_rank or iteration_rank")
    return (
        f"memory = {(plan.limit or 0) // mib}MiB is too small: one thread needs {plan.predicted_peak // mib} MiB "
        f"({plan.base // mib} for the processes as they are, {plan.state // mib} for the blocks of the algorithm, "
        f"{plan.task // mib} for a task); {', '.join(remedies)}"
    )


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def make_executor(plan: MemoryPlan) -> Executor:
    """The executor of a plan; close it after use."""
    return Processes(plan.workers, plan.threads) if plan.workers else Threads(plan.threads)
