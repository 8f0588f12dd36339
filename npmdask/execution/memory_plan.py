"""How much memory a run will need, before it starts; and what would fit where it does not."""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any

from npmdask.errors import MemoryRefusedError
from npmdask.execution.reduction import runs_of
from npmdask.operators import Operator
from npmdask.storage.readers.dense import MIN_TILE_ROWS, AsIfChunked, DenseReader


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


# Measured on the layouts of tests/execution/test_memory.py, beyond what the arrays explain.
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
    locked: int = 0,
    columns: str = "an iteration_rank",
) -> MemoryPlan:
    """Choose the number of threads that fits the limit (the result has the same bits with any number).

    ``state_blocks``: how many d x (p + locked) blocks of float64 the algorithm and its checkpoint hold at once.
    ``columns``: what a person calls p, in a sentence.

    Raises
    ------
    RefusedError
        Not even one thread fits; the sentence says what would.
    """
    for count in range(threads or usable_cores(), 0, -1):
        plan = _needed(operator, p + locked, state_blocks, limit, base, count, workers)
        if limit is None or plan.predicted_peak <= limit:
            return plan
    raise MemoryRefusedError(_too_little(plan, operator, p, state_blocks, base, locked, columns))


def _needed(
    operator: Operator, columns: int, state_blocks: int, limit: int | None, base: int, threads: int, workers: int
) -> MemoryPlan:
    """What a run with so many columns and threads takes."""
    block, runs = operator.block_rows * columns * 8, runs_of(operator)
    pending = operator.pending_bytes(columns, runs)
    return MemoryPlan(
        limit=limit,
        base=base + GROWTH + workers * (WORKER_BASE + block),
        state=state_blocks * block + pending,
        # A task of a worker sums some runs: it holds a sum for each level of the tree below it.
        task=operator.task_bytes(columns, runs) + THREAD_BASE + (pending // 2 if workers else 0),
        threads=threads,
        workers=workers,
    )


def largest_rank(plan: MemoryPlan, operator: Operator, p: int, state_blocks: int, base: int, locked: int = 0) -> int:
    """The largest iteration_rank up to ``p`` that fits the limit with the threads of ``plan``; 0 if none does."""

    def fits(columns: int) -> bool:
        needed = _needed(operator, columns + locked, state_blocks, plan.limit, base, plan.threads, plan.workers)
        return plan.limit is None or needed.predicted_peak <= plan.limit

    return bisect_left(range(1, p + 1), True, key=lambda columns: not fits(columns))


def _too_little(
    plan: MemoryPlan, operator: Operator, p: int, state_blocks: int, base: int, locked: int, columns: str
) -> str:
    """What does not fit, and everything that would: memory, ranks, chunks, processes."""
    mib, limit = 2**20, plan.limit or 0
    remedies = [f"set memory to at least {-(-plan.predicted_peak // mib)}MiB (one thread)"]
    rank = largest_rank(plan, operator, p, state_blocks, base, locked)
    if rank:
        # As posing.default_rank chooses p when it is left out: max(k + 10, min(2 k, 64)).
        default = rank - 10 if rank >= 64 else min(rank // 2, rank - 10)
        room = f"target_rank up to {default} if it is left out, " if default > 0 else ""
        room = f" ({room}up to {rank} if it is given)" if columns == "an iteration_rank" else ""
        remedies.append(f"or {columns} of at most {rank}{room}")
    rows = _chunk_rows_that_fit(plan, operator, p + locked, state_blocks, base)
    if rows:
        remedies.append(f"or chunks of at most {rows} rows (`npmdask ingest SRC DEST --chunks {rows} COLUMNS`)")
    if plan.workers:
        alone = _needed(operator, p + locked, state_blocks, limit, base, 1, 0).predicted_peak
        enough = "" if alone <= limit else f", which needs {-(-alone // mib)} MiB"
        remedies.append(f"or run in one process (workers = 0){enough}")
    if len(remedies) == 1:
        cause = "the processes alone take more" if plan.base > limit else "one change alone does not suffice"
        remedies.append(f"no smaller rank or chunk would fit ({cause})")
    return (
        f"memory = {limit // mib}MiB is too small: one thread needs {plan.predicted_peak // mib} MiB "
        f"({plan.base // mib} for the processes as they are, {plan.state // mib} for the blocks of the algorithm, "
        f"{plan.task // mib} for a task); {', '.join(remedies)}"
    )


def _chunk_rows_that_fit(plan: MemoryPlan, operator: Operator, columns: int, state_blocks: int, base: int) -> int:
    """Rows of the largest chunk (halving what is stored) with which one thread fits; 0 if that does not help."""
    reader: Any = operator.reader
    if type(reader) is not DenseReader:
        return 0
    rows = reader.chunks[0] // 2
    while rows >= MIN_TILE_ROWS:
        as_if: Any = replace(operator, reader=AsIfChunked(array=reader.array, rows=rows))  # type: ignore[type-var]
        needed = _needed(as_if, columns, state_blocks, plan.limit, base, 1, plan.workers)
        if needed.predicted_peak <= (plan.limit or 0):
            return int(rows)
        rows //= 2
    return 0


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
