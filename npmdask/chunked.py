"""The only room that knows Dask: one data pass as a graph, and the memory plan that it keeps to.

How a pass is cut and in which order its parts are summed is :mod:`npmdask.passes`' business; here the parts
become tasks of Dask's threads, of worker processes of this machine, or of a cluster given by address. BLAS is
pinned to one thread inside a task, so the product has the same bits everywhere.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import dask
from dask.callbacks import Callback
from threadpoolctl import threadpool_limits

from npmdask.environment import environment
from npmdask.errors import BadInputError, LostError, MemoryRefusedError, RefusedError
from npmdask.linalg import Block
from npmdask.operators import Operator, Partial
from npmdask.passes import Keeper, Node, compute_node, compute_run, inside, root, runs_of, tasks_of
from npmdask.storage.dense import MIN_TILE_ROWS, AsIfChunked, DenseReader, SlabRecord
from npmdask.storage.remote import is_remote

OnTask = Callable[[SlabRecord], None]


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """BLAS on one thread: its blocking, and so the last bits of QR, depend on the number of threads."""
    with threadpool_limits(limits=1):
        yield


class Threads:
    """Runs passes on threads of this process."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def run_pass(
        self, operator: Operator, block: Block, on_task: OnTask, keeper: Keeper | None = None
    ) -> tuple[Block, SlabRecord]:
        """``A @ block`` in one pass, and what the reading cost.

        ``on_task`` is told of every finished run; what ``keeper`` knows of the pass is not computed again.
        """
        runs, keeper = runs_of(operator), keeper or Keeper()
        whole = dask.delayed(operator, name="operator", traverse=False)
        held = dask.delayed(block, name="block", traverse=False)
        task, join = dask.delayed(_run, pure=False), dask.delayed(_join, pure=False)

        def build(node: Node) -> Any:
            if node in keeper.parts:
                return dask.delayed(keeper.parts[node], name=_key("known", node), traverse=False)
            halves = node.children(len(runs))
            if halves:
                return join(whole, *(build(half) for half in halves), dask_key_name=_key("join", node))
            ahead = runs[node.place + self.threads] if node.place + self.threads < len(runs) else range(0)
            return task(whole, runs[node.place], held, ahead, dask_key_name=_key("run", node))

        with single_threaded_blas(), _Watch(len(runs), on_task, keeper):
            (total,) = dask.compute(
                build(root(len(runs))), scheduler="threads", num_workers=self.threads, optimize_graph=False
            )
        return operator.finish(total, block), total.record

    def close(self) -> None:
        """Nothing is held between passes."""


def _key(what: str, node: Node) -> str:
    return f"{what}-{node.level}-{node.place}"


def _run(operator: Operator, slabs: range, block: Block, ahead: range) -> Partial:
    operator.read_ahead(ahead)
    return compute_run(operator, slabs, block)


def _join(operator: Operator, left: Partial, right: Partial) -> Partial:
    return operator.join(left, right)


class _Watch(Callback):
    """Sees every part that the threaded scheduler finishes: tells of it, and commits from time to time."""

    def __init__(self, count: int, on_task: OnTask, keeper: Keeper) -> None:
        self._count, self._on_task, self._keeper = count, on_task, keeper
        self._parts = dict(keeper.parts)
        super().__init__(posttask=self._done)

    def _done(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        what, _, name = str(key).partition("-")
        if what not in ("run", "join"):
            return
        node = Node(*map(int, name.split("-")))
        for half in node.children(self._count):
            self._parts.pop(half, None)
        self._parts[node] = result
        if what == "run":
            self._on_task(result.record)
        if self._keeper.due:
            self._keeper.commit(self._parts)


TASKS_PER_SLOT = 8  # of a distributed pass: few, as each costs the scheduler 2 ms, but enough to share the work evenly


class Distributed:
    """Runs passes on the workers of a ``distributed`` client."""

    def __init__(self, client: Any, slots: int) -> None:
        self._client, self._slots = client, slots

    def run_pass(
        self, operator: Operator, block: Block, on_task: OnTask, keeper: Keeper | None = None
    ) -> tuple[Block, SlabRecord]:
        """``A @ block`` in one pass, and what the reading cost.

        ``on_task`` is told of every finished task; what ``keeper`` knows of the pass is not computed again. Only
        blocks of p columns travel. A worker that dies costs its tasks.
        """
        from distributed import as_completed

        runs, keeper = runs_of(operator), keeper or Keeper()
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):  # the block is in there
            graph = _Futures(self._client, operator, block, runs, keeper, self._slots)
            graph.submit(root(len(runs)))
        for _, found in as_completed(graph.marks, with_results=True, loop=self._client.loop):
            # A mark may be lost with its worker when what it marks is forgotten already: only the progress bar
            # misses it. If the scheduler is gone, so is the sum itself, below.
            if isinstance(found, BaseException):
                continue
            node, record = found
            graph.forget_below(node)
            if record is not None:
                on_task(record)
            if keeper.due:
                keeper.commit(graph.gather())
        total = graph.futures[root(len(runs))].result()
        return operator.finish(total, block), total.record


class _Futures:
    """The futures of a pass by node. Those of a node's halves are given up when it is done."""

    def __init__(
        self, client: Any, operator: Operator, block: Block, runs: list[range], keeper: Keeper, slots: int
    ) -> None:
        self._client, self._runs, self._known = client, runs, keeper.parts
        self._whole, self._held = self._send(operator), self._send(block)
        level = max(0, (len(runs) // (TASKS_PER_SLOT * slots)).bit_length() - 1)
        self._tasks = set(tasks_of(root(len(runs)), len(runs), keeper.parts, level))
        self.futures: dict[Node, Any] = {}
        self.marks: list[Any] = []

    def _send(self, value: Any) -> Any:
        """A value as the result of a task: scattered data are lost with the one worker that is left with a copy."""
        return self._client.submit(_same, value, pure=False)

    def submit(self, node: Node) -> Any:
        """Submit a node and everything below it; joins go before tasks, so that few sums are held."""
        submit = self._client.submit
        if node in self._known:
            future = self._send(self._known[node])
        elif node in self._tasks:
            future = submit(compute_node, self._whole, self._runs, node, self._held, pure=False)
            self.marks.append(submit(_mark, node, future, True, pure=False, priority=100))
        else:
            halves = [self.submit(half) for half in node.children(len(self._runs))]
            future = submit(_join, self._whole, *halves, pure=False, priority=10 + node.level)
            self.marks.append(submit(_mark, node, future, False, pure=False, priority=100))
        self.futures[node] = future
        return future

    def forget_below(self, node: Node) -> None:
        """A finished node stands for all that it was made of."""
        if node not in self._tasks:
            for half in node.children(len(self._runs)):
                self.futures.pop(half, None)

    def gather(self) -> dict[Node, Partial]:
        """The finished nodes, brought here."""
        done = {node: future for node, future in self.futures.items() if future.status == "finished"}
        held = [n for n in done if not any(n != other and inside(n, other) for other in done)]
        return dict(zip(held, self._client.gather([done[n] for n in held]), strict=True))


def _same(value: Any) -> Any:
    return value


def _mark(node: Node, part: Partial, task: bool) -> tuple[Node, SlabRecord | None]:
    return node, part.record if task else None


class Processes(Distributed):
    """Runs passes on worker processes of this machine (dask.distributed, loopback only)."""

    def __init__(self, workers: int, threads: int) -> None:
        from distributed import Client, LocalCluster

        self.threads = threads
        with dask.config.set({"distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT}):
            self._cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=threads,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",  # of the HTTP server; 8787 may be taken
                memory_limit=0,  # the plan below is the limit; distributed would pause or kill a worker instead
                silence_logs=40,
            )
        super().__init__(Client(self._cluster, set_as_default=False), workers * threads)

    def close(self) -> None:
        """Stop the worker processes."""
        self._client.close()
        self._cluster.close()


def _pin_blas() -> None:
    """Keep BLAS on one thread in a worker for as long as it lives."""
    threadpool_limits(limits=1)


class Cluster(Distributed):
    """Runs passes on the workers of a ``distributed`` cluster that is given by the address of its scheduler.

    The workers need this version of npmdask and NumPy, and to see the data under the same path or URL.
    """

    def __init__(self, address: str, source: str) -> None:
        from distributed import Client

        for name in list(logging.root.manager.loggerDict):
            if name.split(".")[0] == "distributed":  # what it would print, with traceback, is said in a sentence
                logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            client = Client(address, timeout="10s", set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise BadInputError(
                f"no Dask scheduler answers at {address} ({error}); start one with `dask scheduler` and workers with "
                f"`dask worker {address}`, or leave out cluster"
            ) from error
        self.address, self.warnings = address, list[str]()
        super().__init__(client, 1)
        try:
            self._require_workers(source)
        except BaseException:
            client.close()
            raise

    def _require_workers(self, source: str) -> None:
        """Workers there are, of the same versions, that see the data; their BLAS pinned."""
        if not self._client.scheduler_info(n_workers=-1)["workers"]:
            raise RefusedError(f"the cluster at {self.address} has no workers; add some with `dask worker`")
        try:
            self._client.register_worker_callbacks(_pin_blas)  # of those that join later, too
            there = self._client.run(_facts, source)
        except Exception as error:  # whatever a foreign Python raises when npmdask cannot be imported in it
            raise RefusedError(
                f"the workers at {self.address} cannot run npmdask ({type(error).__name__}: {error}): install the same "
                "version there as here"
            ) from error
        here = _facts(source)
        for worker, facts in there.items():
            differing = [f"{n} {facts[n]} (here {v})" for n, v in here.items() if facts[n] != v]
            if not facts["sees the data"]:
                raise RefusedError(f"worker {worker} does not see {source}: put it on a shared disk or an object store")
            if facts["npmdask"] != here["npmdask"] or facts["numpy"] != here["numpy"]:
                raise RefusedError(f"worker {worker} has {', '.join(differing)}: install the same versions everywhere")
            if differing:
                self.warnings.append(
                    f"worker {worker} has {', '.join(differing)}: the result is as accurate, but its last bits depend "
                    "on which worker does what"
                )

    def run_pass(
        self, operator: Operator, block: Block, on_task: OnTask, keeper: Keeper | None = None
    ) -> tuple[Block, SlabRecord]:
        """As above; raises LostError if the scheduler is gone, or tasks kill one worker after the other."""
        from distributed import KilledWorker

        self._slots = sum(w["nthreads"] for w in self._client.scheduler_info(n_workers=-1)["workers"].values()) or 1
        try:
            return super().run_pass(operator, block, on_task, keeper)
        except (CancelledError, OSError, KilledWorker) as error:
            raise LostError(
                f"the cluster at {self.address} was lost in the middle of a pass ({type(error).__name__}: "
                f"{str(error).splitlines()[0]}); everything committed is kept: bring it up again and resume"
            ) from error

    def close(self) -> None:
        """Leave the cluster; it goes on without us."""
        self._client.close()


def _facts(source: str) -> dict[str, Any]:
    """What must be the same on every worker."""
    sees = is_remote(source) or source.startswith("memory") or os.path.exists(source)
    return {"npmdask": version("npmdask"), "sees the data": sees, **environment()}


# Left at distributed's 64 KiB, every buffer would be given back and faulted in again; and glibc, once it is told the
# one threshold, no longer adapts the other, so that every product would be mapped and unmapped.
WORKER_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

Executor = Threads | Processes | Cluster


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
    locked: int = 0,
) -> MemoryPlan:
    """Choose the number of threads that fits the limit (the result has the same bits with any number).

    ``state_blocks``: how many d x (p + locked) blocks of float64 the algorithm and its checkpoint hold at once.

    Raises
    ------
    RefusedError
        Not even one thread fits; the sentence says what would.
    """
    for count in range(threads or usable_cores(), 0, -1):
        plan = _needed(operator, p + locked, state_blocks, limit, base, count, workers)
        if limit is None or plan.predicted_peak <= limit:
            return plan
    raise MemoryRefusedError(_too_little(plan, operator, p, state_blocks, base, locked))


def _needed(
    operator: Operator, columns: int, state_blocks: int, limit: int | None, base: int, threads: int, workers: int
) -> MemoryPlan:
    """What a run with so many columns and threads takes."""
    block, runs = operator.block_rows * columns * 8, runs_of(operator)
    pending = 2 * len(runs).bit_length() * block
    return MemoryPlan(
        limit=limit,
        base=base + GROWTH + workers * (WORKER_BASE + block),
        state=state_blocks * block + pending,
        task=operator.task_bytes(columns, runs) + THREAD_BASE,
        threads=threads,
        workers=workers,
    )


def largest_rank(plan: MemoryPlan, operator: Operator, p: int, state_blocks: int, base: int, locked: int = 0) -> int:
    """The largest iteration_rank up to ``p`` that fits the limit with the threads of ``plan``; 0 if none does."""

    def fits(columns: int) -> bool:
        needed = _needed(operator, columns + locked, state_blocks, plan.limit, base, plan.threads, plan.workers)
        return plan.limit is None or needed.predicted_peak <= plan.limit

    return bisect_left(range(1, p + 1), True, key=lambda columns: not fits(columns))


def _too_little(plan: MemoryPlan, operator: Operator, p: int, state_blocks: int, base: int, locked: int) -> str:
    """What does not fit, and everything that would: memory, ranks, chunks, processes."""
    mib, limit = 2**20, plan.limit or 0
    remedies = [f"set memory to at least {-(-plan.predicted_peak // mib)}MiB (one thread)"]
    rank = largest_rank(plan, operator, p, state_blocks, base, locked)
    if rank:
        # As problem._ranks chooses p when it is left out: max(2 k, k + 10).
        default = min(rank // 2, rank - 10)
        room = f"target_rank up to {default} if it is left out, " if default > 0 else ""
        remedies.append(f"or an iteration_rank of at most {rank} ({room}up to {rank} if it is given)")
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


def make_executor(plan: MemoryPlan, cluster: str | None, source: str) -> Executor:
    """The executor of a plan; close it after use. ``source``: path or URL of the data, which workers must see."""
    if cluster is not None:
        return Cluster(cluster, source)
    return Processes(plan.workers, plan.threads) if plan.workers else Threads(plan.threads)
