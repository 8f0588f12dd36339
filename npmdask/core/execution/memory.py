"""Predict the memory of a run, say what would fit where it does not, and measure what it took."""

from __future__ import annotations

import ctypes
import os
import threading
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import psutil

from npmdask.core.execution.reduction import runs_of
from npmdask.core.operators import Operator
from npmdask.core.storage.readers.dense import MIN_TILE_ROWS, DenseReader
from npmdask.errors import MemoryRefusedError

# How much memory this run really took: this process and everything below it, from the kernel's own figures.


INTERVAL = 0.05  # seconds

# What is in the command line of a process below this one, and what a person calls it. The first that fits.
ROLES = (
    ("multiprocessing.resource_tracker", "resource tracker"),
    ("multiprocessing.forkserver", "fork server"),
    ("--multiprocessing-fork", "worker"),
    ("multiprocessing.spawn", "worker"),
    ("prefect.server", "prefect server"),
    ("prefect server", "prefect server"),
    ("prefect", "prefect"),
)


@dataclass(frozen=True, kw_only=True)
class ProcessPeak:
    """The largest resident memory of one process of the run; ``name`` is its role (driver, worker, ...)."""

    pid: int
    name: str
    peak_rss_bytes: int


def tree_rss() -> int:
    """Resident bytes of this process and of all processes below it (worker processes, a Prefect server)."""
    total = int(psutil.Process().memory_info().rss)
    for child in below():
        with suppress(psutil.Error):  # it ended between the two calls
            total += int(child.memory_info().rss)
    return total


def below() -> list[psutil.Process]:
    """Every process below this one. psutil asks all processes of the machine for their parents: 2 to 3 ms a time."""
    found, open_ = [], [os.getpid()]
    while open_:
        for pid in _children(open_.pop()):
            open_.append(pid)
            with suppress(psutil.Error):  # it ended between the two calls
                found.append(psutil.Process(pid))
    return found


def _children(pid: int) -> list[int]:
    """List the children of a process as the kernel does, by each of its threads; none of one that has ended."""
    listed: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                listed += map(int, file.read().split())
    except FileNotFoundError:
        if pid == os.getpid() and not os.path.exists(f"/proc/{pid}/task/{pid}/children"):
            return [child.pid for child in psutil.Process().children()]  # a kernel without these lists
    except ProcessLookupError:
        return listed
    return listed


class PeakMeter:
    """Samples the resident memory of the process tree in the background, process by process.

    The kernel keeps a high-water mark of every process, so that no short peak of one is missed: of this process
    since ``__enter__``, of a process that was started later since its start. A process that was there before
    (a Prefect server) has a past that is not this run's: of that one, what the samples saw.
    """

    def __init__(self) -> None:
        self._peak = 0
        self._before: set[int] = set()  # not by their times: those of the kernel are off by up to a second
        self._seen: dict[int, ProcessPeak] = {}
        self._forked: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-meter", daemon=True)

    def __enter__(self) -> Self:
        _reset_high_water()
        self._before = {child.pid for child in below()}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._sample()
            if self._stop.wait(INTERVAL):
                return

    def _sample(self) -> None:
        total = int(psutil.Process().memory_info().rss)
        for child in below():
            with suppress(psutil.Error, OSError):  # it ended between the two calls
                rss = int(child.memory_info().rss)
                mark = 0 if child.pid in self._before else high_water(child.pid)
                if self._keep(child, max(rss, mark), whole=mark > 0):
                    total += rss
        self._peak = max(self._peak, total)

    def _keep(self, child: psutil.Process, rss: int, *, whole: bool) -> bool:
        """Record a child and say whether it counts.

        Between fork and exec a child has the pages of its parent, which are counted there.

        ``whole``: a high-water mark, which holds all that was before, and never falls but at an exec.
        """
        held = self._seen.get(child.pid)
        if held is None and self._is_fresh_fork(child):
            return False
        if held is None or whole or rss > held.peak_rss_bytes:
            # Name and mark are taken again: between fork and exec a child still has those of its parent.
            self._seen[child.pid] = ProcessPeak(pid=child.pid, name=role_of(child), peak_rss_bytes=rss)
        return True

    def _is_fresh_fork(self, child: psutil.Process) -> bool:
        """It has the command line of its parent, and has it for the first time: an exec may be about to follow."""
        if child.pid in self._forked:
            return False
        parent = child.parent()
        if parent is None or parent.cmdline() != child.cmdline():
            return False
        self._forked.add(child.pid)
        return True

    @property
    def peak(self) -> int:
        """Bytes of all processes together, so far."""
        return max(self._peak, high_water())

    @property
    def by_process(self) -> tuple[ProcessPeak, ...]:
        """Every process that was seen, this one (the driver) first, then the largest."""
        mine = ProcessPeak(pid=psutil.Process().pid, name="driver", peak_rss_bytes=high_water())
        return (mine, *sorted(list(self._seen.values()), key=lambda seen: (-seen.peak_rss_bytes, seen.pid)))


def role_of(process: psutil.Process) -> str:
    """Say what a process below this one does here, as far as its command line tells."""
    line = " ".join(process.cmdline())
    return next((name for mark, name in ROLES if mark in line), str(process.name()))


def give_back() -> None:
    """Return what was freed to the system, where the allocator of C can be asked to: glibc keeps hundreds of MiB.

    What measures, and what is finished, would else count against the limit of whatever comes next in this process.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def high_water(pid: int | None = None) -> int:
    """The kernel's high-water mark of a process (this one if None), bytes; 0 if it has none (it just ended)."""
    with open(f"/proc/{pid or 'self'}/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _reset_high_water() -> None:
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return  # not permitted here: the mark of the whole process life is used, which is never too small


# How much memory a run will need, before it starts; and what would fit where it does not.


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Memory that a run will need, before it starts. All in bytes.

    ``base`` is what the processes hold already (interpreter, libraries, a Prefect server below this one),
    ``state`` the blocks of the algorithm, ``task`` one running task. ``device_state`` and ``device_task``: the same of
    the memory of a device, for each process; ``device_data`` what of the data stays there if it fits. ``held``: of
    blocks that lie on disk, what is in memory at a time. ``in_flight``: what each process may have on its way from an
    object store, or there and waiting for its turn.
    """

    limit: int | None
    base: int
    state: int
    task: int
    threads: int
    workers: int
    device_state: int = 0
    device_task: int = 0
    device_data: int = 0
    held: int = 0
    in_flight: int = 0

    @property
    def predicted_peak(self) -> int:
        return self.least + self.in_flight * max(1, self.workers)

    @property
    def least(self) -> int:
        """The same if nothing is fetched before it is needed."""
        return self.base + self.state + self.held + self.task * self.threads * max(1, self.workers)

    @property
    def device_peak(self) -> int:
        """Peak of the memory of a process's device, beside the data that stay on it; 0: there is none."""
        return self.device_state + self.device_task * self.threads


# Measured on the layouts of tests/core/execution/test_memory.py, beyond what the arrays explain.
THREAD_BASE = 24 * 2**20  # packing buffers of BLAS and an arena of malloc, for each running task
GROWTH = 24 * 2**20  # modules loaded and freed memory not given back after the plan was made
WORKER_BASE = 190 * 2**20  # measured: a distributed worker process with its nanny, NumPy, SciPy and zarr loaded
DEVICE_BASE = 2**30  # of a worker process with a GPU: CuPy or PyTorch, the context of CUDA and cuBLAS


AVAILABLE = 4  # a share of what is free that may be in flight where no limit is set
UNMEASURED = 64 * 2**20  # bytes of data that are read in less time than it takes to measure the way to them


class Chosen(NamedTuple):
    """Option that decides the columns of a block: ``each`` for one unit of it, and ``beside`` for all."""

    name: str
    each: int = 1
    beside: int = 0


ITERATION_RANK = Chosen("an iteration_rank")


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
    chosen: Chosen | None = ITERATION_RANK,
) -> MemoryPlan:
    """Choose the number of threads that fits the limit (the result has the same bits with any number).

    ``state_blocks``: how many d x (p + locked) blocks of float64 the algorithm and its checkpoint hold at once.
    ``chosen``: what p follows from; None: it is not chosen.

    Raises
    ------
    RefusedError
        Not even one thread fits; the sentence says what would.
    """
    for count in range(threads or usable_cores(), 0, -1):
        plan = _plan_for(operator, p + locked, state_blocks, limit, base, count, workers)
        if limit is None or plan.predicted_peak <= limit:
            return replace(plan, in_flight=_in_flight(operator, plan))
    raise MemoryRefusedError(_refusal_text(plan, operator, p, state_blocks, base, locked, chosen), plan.predicted_peak)


def _in_flight(operator: Operator, plan: MemoryPlan) -> int:
    """Return the bytes that each process may have on its way: what the link asks for, as far as the limit has room."""
    if getattr(operator.reader, "remote", None) is None:
        return 0
    link = link_to(operator, plan)
    wanted = int(operator.reader.nbytes) if link is None else link.in_flight
    return min(wanted, _room(plan)) // max(1, plan.workers)


def _room(plan: MemoryPlan) -> int:
    return psutil.virtual_memory().available // AVAILABLE if plan.limit is None else plan.limit - plan.least


def link_to(operator: Operator, plan: MemoryPlan) -> Any:
    """The way to what ``operator`` reads, measured once; None of local files, and of data that are few."""
    remote = getattr(operator.reader, "remote", None)
    if remote is None or operator.reader.nbytes <= UNMEASURED:
        return None
    return remote.link(_room(plan))


def _plan_for(
    operator: Operator, columns: int, state_blocks: int, limit: int | None, base: int, threads: int, workers: int
) -> MemoryPlan:
    """Plan the memory of a run with so many columns and threads."""
    on_device: Any = operator if hasattr(operator, "device_bytes") else None
    device_task, device_state = (0, 0) if on_device is None else on_device.device_bytes(columns)
    of_worker = WORKER_BASE + (DEVICE_BASE if device_task else 0)
    block, runs = getattr(operator, "state_rows", operator.block_rows) * columns * 8, runs_of(operator)
    pending, weights = operator.pending_bytes(columns, runs), getattr(getattr(operator, "view", None), "nbytes", 0)
    return MemoryPlan(
        limit=limit,
        base=base + GROWTH + weights + workers * (of_worker + block + weights),
        state=state_blocks * block + pending,
        # A task of a worker sums some runs: it holds a sum for each level of the tree below it.
        task=operator.task_bytes(columns, runs) + THREAD_BASE + (pending // 2 if workers else 0),
        threads=threads,
        workers=workers,
        device_state=device_state,
        device_task=device_task,
        device_data=0 if on_device is None else on_device.staying_bytes // max(1, workers),
    )


def largest_rank(plan: MemoryPlan, operator: Operator, p: int, state_blocks: int, base: int, locked: int = 0) -> int:
    """The largest iteration_rank up to ``p`` that fits the limit with the threads of ``plan``; 0 if none does."""

    def fits(columns: int) -> bool:
        needed = _plan_for(operator, columns + locked, state_blocks, plan.limit, base, plan.threads, plan.workers)
        return plan.limit is None or needed.predicted_peak <= plan.limit

    return bisect_left(range(1, p + 1), True, key=lambda columns: not fits(columns))


def _refusal_text(
    plan: MemoryPlan, operator: Operator, p: int, state_blocks: int, base: int, locked: int, chosen: Chosen | None
) -> str:
    """Say what does not fit, and everything that would: memory, ranks, chunks, processes."""
    mib, limit = 2**20, plan.limit or 0
    remedies = [f"set memory to at least {-(-plan.predicted_peak // mib)}MiB (one thread)"]
    if hasattr(operator, "device_bytes"):
        remedies.append('or device = "cpu", whose tasks take less')
        moved: Any = operator
        operator = moved.inner
    formed = getattr(operator, "forms", "")
    if (fewer := getattr(operator, "fewer", None)) is not None:
        share = (limit - plan.base - plan.threads * THREAD_BASE) / max(plan.predicted_peak - plan.base, 1)
        remedies += fewer(max(share, 0.0))
    elif formed:
        remedies.append(f'or algorithm = "krylov", which forms no matrix of {formed}')
    rank = 0 if formed or chosen is None else largest_rank(plan, operator, p, state_blocks, base, locked)
    if chosen is not None and (number := (rank - chosen.beside) // chosen.each) > 0:
        # As problem.default_rank chooses p when it is left out: max(k + 10, min(2 k, 64)).
        default = rank - 10 if rank >= 64 else min(rank // 2, rank - 10)
        room = f"target_rank up to {default} if it is left out, " if default > 0 else ""
        room = f" ({room}up to {rank} if it is given)" if chosen == ITERATION_RANK else ""
        remedies.append(f"or {chosen.name} of at most {number}{room}")
    rows = 0 if formed else _chunk_rows_that_fit(plan, operator, p + locked, state_blocks, base)
    if rows:
        remedies.append(f"or chunks of at most {rows} rows (`npmdask ingest SRC DEST --chunks {rows} COLUMNS`)")
    if plan.workers:
        alone = _plan_for(operator, p + locked, state_blocks, limit, base, 1, 0).predicted_peak
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


@dataclass(frozen=True, kw_only=True)
class AsIfChunked(DenseReader):
    """A reader that says what it would need if a chunk had ``rows`` rows. For planning: it is never read from."""

    rows: int

    @property
    def whole(self) -> tuple[int, int]:
        return (min(self.rows, self.shape[0]), super().whole[1])


def _chunk_rows_that_fit(plan: MemoryPlan, operator: Operator, columns: int, state_blocks: int, base: int) -> int:
    """Rows of the largest chunk (halving what is stored) with which one thread fits; 0 if that does not help."""
    reader: Any = operator.reader
    if type(reader) is not DenseReader:
        return 0
    rows = reader.chunks[0] // 2
    while rows >= MIN_TILE_ROWS:
        as_if: Any = replace(operator, reader=AsIfChunked(array=reader.array, rows=rows))  # type: ignore[type-var]
        needed = _plan_for(as_if, columns, state_blocks, plan.limit, base, 1, plan.workers)
        if needed.predicted_peak <= (plan.limit or 0):
            return int(rows)
        rows //= 2
    return 0


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
