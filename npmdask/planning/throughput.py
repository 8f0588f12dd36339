"""A few seconds of this machine on the store that is to be analysed: how fast it is read, multiplied, and a sample.

The chunks are read through the operator's own ``partial``, with as many threads as the run will have, so that
what is measured is what a pass does. Nothing is written. What is found here decides no bit of a result, with two
exceptions that are written down once: ``algorithm = "auto"`` and ``iteration_rank = "auto"`` (see
:mod:`npmdask.planning.plan`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from npmdask.core.algorithms import RowGramKrylov
from npmdask.core.algorithms.gram import PROBES
from npmdask.core.execution.executor import Threads, single_threaded_blas
from npmdask.core.execution.memory import MemoryPlan
from npmdask.core.execution.reduction import fed, runs_of
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import orth, rayleigh_ritz
from npmdask.core.operators import Operator
from npmdask.core.operators.row_gram import STRIP_COLUMNS, RowGram
from npmdask.core.operators.tiled_gram import RowsByRange
from npmdask.core.operators.view import AS_STORED
from npmdask.core.runs.forming import pairs_seconds
from npmdask.core.runs.problem import Problem
from npmdask.core.storage.block_files import BlockFile
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.planning.row_sample import Sample, SampleBudget, draw_sample

SECONDS = 5.0  # for everything
FRESH, WARM, SAMPLE = 0.2, 0.4, 0.2  # shares of it; the rest is for what cannot be cut short
MOST_COLUMNS = 128
FORMED = 64 * 2**20  # bytes of chunks at most, or one, whose matrix is formed and added up, as that of a run is
LEAST_FORMED = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Measured rates in seconds of wall clock a byte of decoded data, with ``threads`` threads.

    ``early``, ``late``: chunks as they were found (in the page cache or not), multiplied by p columns in the dtype
    of the early and of the late steps. ``again``, ``late_again``: the same chunks once more, so from the page cache.
    ``column``: what one more column costs. ``reading``: reading alone, without a column, as the passes of the run will
    find the chunks: from the page cache if ``cached`` (the store fits into the free memory of the machine).
    ``formed``: of a pass that forms the matrix, where one can; else None.
    ``step_seconds``: of a step outside its pass (QR, Rayleigh-Ritz). ``sample`` is None if none could be drawn.
    """

    seconds: float
    threads: int
    bytes_read: int
    early: float
    late: float
    again: float
    late_again: float
    column: float
    reading: float
    cached: bool
    step_seconds: float
    sample: Sample | None
    formed: float | None = None

    def later(self, more: int, *, fine: bool = False) -> float:
        """Seconds a byte of a pass that is not the first, with so many more columns than were measured.

        ``fine``: in the dtype of the late steps. From the page cache arithmetic comes on top of reading; from a disk
        it happens meanwhile.
        """
        arithmetic = (self.late_again if fine else self.again) + self.column * more
        return arithmetic if self.cached else max(self.late if fine else self.early, arithmetic)

    @property
    def free_columns(self) -> int:
        """Columns whose arithmetic takes as long as the reading, in fours: up to there it hides behind it."""
        return int(min(self.reading / self.column, MOST_COLUMNS)) // 4 * 4


def measure_throughput(
    problem: Problem,
    plan: MemoryPlan,
    wide: int,
    *,
    forming: Problem | None = None,
    budget: float = SECONDS,
    allowed: SampleBudget | None = None,
) -> Throughput:
    """Measure for at most ``budget`` seconds (more only if a single chunk takes longer).

    ``wide``: the largest number of columns that ``plan`` leaves memory for. ``forming``: the same question where the
    matrix is formed, for which there is memory for one thread at least. ``allowed``: what the sample may cost.

    Raises
    ------
    BadInputError
        A chunk that was read is missing, corrupt or not finite.
    """
    start = time.perf_counter()
    until = start + (FRESH + WARM + SAMPLE) * budget
    problem, nothing = _filled(problem), np.zeros(problem.d)
    operator = problem.operator(ColumnStatistics(mean=nothing, std=nothing + 1, rows=1))
    workers = max(1, plan.workers)
    threads = min(plan.threads * workers, len(runs_of(operator)))
    flying = closing(Threads(threads, plan.in_flight))  # what they read next may be on its way, as in a run
    with flying, single_threaded_blas(), ThreadPoolExecutor(threads) as pool:
        stopwatch = _Stopwatch(operator, pool, threads)
        rates = _rates(problem, stopwatch, wide, start, budget)
        # With one thread, for which there is memory: two form twice as much in the same time.
        formed = None if forming is None else pool.submit(_forming, _filled(forming).sides()[0]).result() / threads
        if formed is not None and forming is not None and isinstance(forming.algorithm, RowGramKrylov):
            formed = formed + rates["reading"]  # of arithmetic alone
        until = max(until, time.perf_counter() + SAMPLE * budget)  # what came before may have taken longer
        # In a thread of the pool: its buffers are given back when the pool ends.
        sample = pool.submit(draw_sample, problem, plan, lambda: time.perf_counter() > until, allowed).result()
        step = _step_seconds(problem)
    return Throughput(
        seconds=time.perf_counter() - start,
        threads=threads,
        bytes_read=stopwatch.bytes_read,
        sample=sample,
        step_seconds=step,
        formed=formed,
        **rates,
    )


def _rates(problem: Problem, stopwatch: _Stopwatch, wide: int, start: float, budget: float) -> dict[str, Any]:
    """Reading and multiplying, separated: the same chunks with few and with many columns, first and again."""
    p = problem.algorithm.iteration_rank
    early_dtype = np.float32 if problem.algorithm.mixed_precision else np.float64
    far = getattr(stopwatch.operator.reader, "remote", None) is not None  # of which no page cache keeps anything
    cached = not far and stopwatch.operator.pass_bytes < psutil.virtual_memory().available
    units = stopwatch.warm_up(spread_positions(stopwatch.operator.units), p)
    late, used = stopwatch.run(units, p, np.float64, start + FRESH / 2 * budget)
    if time.perf_counter() - start > FRESH * budget:  # one chunk takes so long that nothing more can be afforded
        rates = {"early": late, "again": late, "late_again": late, "column": late / (2 * p), "reading": late / 2}
        return {**rates, "late": late, "cached": cached}
    fresh = units[used:]
    early, _ = stopwatch.run(fresh, p, early_dtype, start + FRESH * budget) if fresh else (late, 0)
    again, column = _rerun(stopwatch, units[:used], p, wide, early_dtype, WARM / 4 * budget)
    late_again = again
    if early_dtype is not np.float64:
        late_again, _ = stopwatch.run(units[:used], p, np.float64, time.perf_counter() + WARM / 4 * budget)
    early = early if fresh else again
    reading = max((again if cached else max(early, again)) - column * p, 0.05 * again)
    rates = {"early": early, "late": late, "again": again, "late_again": late_again}
    return {**rates, "column": column, "reading": reading, "cached": cached}


def _rerun(stopwatch: _Stopwatch, known: list[int], p: int, wide: int, dtype: Any, share: float) -> tuple[float, float]:
    """Chunks that were read already are in the page cache: what they cost there, and what a column adds."""
    few, many = (p, wide) if wide > p else (max(1, p // 4), p)
    at = {p: stopwatch.run(known, p, dtype, time.perf_counter() + share)[0]}
    for columns in {few, many} - {p}:
        at[columns] = stopwatch.run(known, columns, dtype, time.perf_counter() + share)[0]
    slope = (at[many] - at[few]) / max(many - few, 1)
    return at[p], max(slope, 0.02 * at[many] / many)  # never nothing: noise of the clock must not make it free


def _filled(problem: Problem) -> Problem:
    """Return the same, gaps read as zeros: until a survey knows what fills them they are NaN, and so are all sums."""
    reading, nothing = problem.request.reading, np.zeros(problem.d)
    made_up = {"column_fill": nothing, "column_observed": nothing + 1}
    return problem if reading is None else replace(problem, source=reading.surveyed(problem.source, made_up))


def _forming(operator: Operator) -> float:
    """Seconds a byte of one thread of a pass that forms the matrix: of two parts the faster, since the first makes its
    buffers, and either may be disturbed by what else runs on the machine.
    """
    block = generator(0, "measurement").standard_normal((operator.block_rows, PROBES))
    if isinstance(operator, RowGram) and operator.reader.layout == "csr":
        return pairs_seconds(operator.reader) / operator.reader.nbytes
    if isinstance(operator, RowGram):  # a column of chunks may take long to read: arithmetic alone
        return min(_strip_seconds(operator, block) for _ in range(2))
    few = max(LEAST_FORMED, min(FORMED, operator.pass_bytes // 64))
    units = max(1, operator.units * few // max(operator.pass_bytes, few))
    rates = []
    for part in (range(units // 2), range(units // 2, units)):
        begin = time.perf_counter()
        if part:
            nbytes = operator.partial(part, block).record.bytes_read
            rates.append((time.perf_counter() - begin) / max(nbytes, 1))
    return min(rates)


def _strip_seconds(operator: RowGram, block: np.ndarray) -> float:
    """Seconds a byte of one thread that multiplies some columns by each other, as a pass does."""
    gram, strip = np.zeros(operator.blocks.shape), np.zeros((operator.rows, STRIP_COLUMNS[0]))
    begin = time.perf_counter()
    operator.blocks.add_rows(gram, strip.T)
    block[:] = strip @ (strip.T @ block)
    return (time.perf_counter() - begin) / (strip.size * operator.reader.dtype.itemsize)


class _Stopwatch:
    """Times ``partial`` on single units, a few at a time."""

    def __init__(
        self, operator: Operator, pool: ThreadPoolExecutor, threads: int, block: np.ndarray | None = None
    ) -> None:
        self.operator, self._pool, self._threads, self._block = operator, pool, threads, block
        self.bytes_read = 0

    def run(self, units: list[int], p: int, dtype: Any, until: float) -> tuple[float, int]:
        """Seconds a byte, and how many of ``units`` were done before the clock said ``until`` (at least one)."""
        block = self._block
        if block is None:
            block = generator(0, "measurement").standard_normal((self.operator.block_rows, p)).astype(dtype)
        begin, nbytes, done = time.perf_counter(), 0, 0
        with fed(self.operator, [range(unit, unit + 1) for unit in units], 1):
            while done < len(units) and (done == 0 or time.perf_counter() < until):
                group, following = units[done : done + self._threads], units[done + self._threads :][: self._threads]
                for unit in following:  # as in a pass
                    self.operator.read_ahead(range(unit, unit + 1))
                for part in self._pool.map(self._unit_reader(block), group):
                    nbytes += part
                done += len(group)
        self.bytes_read += nbytes
        return (time.perf_counter() - begin) / max(nbytes, 1), done

    def warm_up(self, units: list[int], p: int) -> list[int]:
        """Buffers and threads are made once a run, not once a chunk: the units that are left to be timed."""
        if len(units) < 4 * self._threads:
            return units
        self.run(units[: self._threads], p, np.float64, 0.0)
        return units[self._threads :]

    def _unit_reader(self, block: np.ndarray) -> Callable[[int], int]:
        def read(unit: int) -> int:
            return int(self.operator.partial(range(unit, unit + 1), block).record.bytes_read)

        return read


LARGEST_RANGE = 2**30  # bytes of a block that is held meanwhile: touching more takes seconds
BLOCK_READINGS = 10  # of a block that lies on disk, by a step beside its products
DISK_RATE = 1e9  # bytes a second of such reading: assumed, as nothing is written here
DISK_STEP = 3  # times the arithmetic of QR and Rayleigh-Ritz in memory: tiles are factorised twice


def measure_on_disk(
    problem: Problem, plan: MemoryPlan, readings: int, allowed: SampleBudget | None = None, budget: float = SECONDS
) -> Throughput:
    """The same for a run whose blocks lie on disk and whose steps read the data ``readings`` times.

    Timed is the first half of a step, with as much of a block as memory holds.
    """
    start, operator, p = time.perf_counter(), problem.sides()[0], problem.algorithm.iteration_rank
    columns = max(1, min(problem.d, min(plan.held, LARGEST_RANGE) // (8 * p)))
    half = RowsByRange(
        reader=operator.reader, weight=1.0, view=AS_STORED, rows=_DiscardingFile(Path(), (0, p)), before=None, start=0
    )
    threads = min(plan.threads, len(runs_of(operator)))
    with single_threaded_blas(), ThreadPoolExecutor(threads) as pool:
        watch = _Stopwatch(half, pool, threads, np.ones((columns, p)))
        units = spread_positions(operator.units)
        late, used = watch.run(units, p, np.float64, time.perf_counter() + FRESH * budget)
        again, _ = watch.run(units[:used], p, np.float64, time.perf_counter() + WARM / 2 * budget)
        until = time.perf_counter() + SAMPLE * budget
        sample = pool.submit(draw_sample, problem, plan, lambda: time.perf_counter() > until, allowed).result()
        step = DISK_STEP * _step_seconds(problem) + BLOCK_READINGS * 8 * problem.d * p / DISK_RATE
    return Throughput(
        seconds=time.perf_counter() - start,
        threads=threads,
        bytes_read=watch.bytes_read,
        early=readings * late,
        late=readings * late,
        again=readings * again,
        late_again=readings * again,
        column=readings * again / p,
        reading=late,
        cached=operator.pass_bytes < psutil.virtual_memory().available,
        sample=sample,
        step_seconds=step,
    )


class _DiscardingFile(BlockFile):
    """A file that discards what is written to it, for a run that is only planned."""

    def write(self, start: int, values: np.ndarray) -> None:
        """Nothing."""


def spread_positions(count: int) -> list[int]:
    """Up to 4096 of ``count`` positions, each far from the ones before it (van der Corput's order)."""
    bits = max(count - 1, 1).bit_length()
    order: Iterator[int] = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(2**bits))
    return list(islice((i for i in order if i < count), 4096))


def _step_seconds(problem: Problem) -> float:
    """QR and Rayleigh-Ritz of a block, from at most 200,000 of its rows."""
    rows, p = min(problem.d, 200_000), problem.algorithm.iteration_rank
    rng = generator(0, "measurement")
    block = rng.standard_normal((rows, min(p, rows)))
    begin = time.perf_counter()
    basis = orth(block, rng)
    rayleigh_ritz(basis, block, min(problem.algorithm.target_rank, rows))
    return (time.perf_counter() - begin) * problem.d / rows
