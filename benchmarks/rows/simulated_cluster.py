"""What the simulator predicts of a pass against that pass: threads, and worker processes that share the cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import dask

from benchmarks import cache
from benchmarks.products import one_pass, start_block
from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.execution.executor import Executor, Processes, Threads
from npmdask.planning.cluster_plan import works_of
from npmdask.planning.plan import widest
from npmdask.planning.simulated_cluster import ClusterModel, PassWork, simulate_pass
from npmdask.planning.throughput import measure_throughput
from npmdask.runs.build import make_problem
from npmdask.runs.problem import Problem, Request
from npmdask.runs.session import memory_for, needs_of
from npmdask.runs.solution import Resources
from npmdask.storage.source import open_source

WORKERS = {"small": (1, 2), "medium": (1, 2, 4, 8), "full": (1, 2, 4, 8)}
LOOPBACK = 1e9  # bytes a second between processes of one machine
IDLE = 0.015  # cores that a worker and its nanny take when they do nothing: heartbeats


def measure(context: Context) -> Measured:
    """Predict each configuration from what a plan measures, then run one after the other."""
    store = context.data["main"]
    cache.warm(store)
    problem = make_problem(open_source(store), Request(target_rank=10, algorithm="krylov"))
    threads, workers = range(1, context.cores + 1), WORKERS[context.scale]
    work, effective = _work(problem, context.cores, {*threads, *workers})
    models = {f"threads {n}": _threads(n, effective[n]) for n in threads}
    models |= {f"workers {n}": _workers(n, effective[n]) for n in workers}
    predicted = {name: simulate_pass(work, model).seconds for name, model in models.items()}
    operator: Any = problem.sides()[-1]
    block = start_block(operator.block_rows, problem.algorithm.iteration_rank, "f8")
    seconds = dict[str, list[float]]()
    for name, model in models.items():  # alone: idle workers of the others take a third of a core
        with _opened(model) as executor:
            one_pass(executor, operator, block)  # buffers and connections are made once a run
            ways = {name: partial(one_pass, executor, operator, block)}
            seconds |= interleaved(ways, context.rounds)
    middle = medians(seconds)
    errors = {name: predicted[name] / middle[name] - 1 for name in models}
    details = {
        "bytes": operator.pass_bytes,
        "p": problem.algorithm.iteration_rank,
        "core_seconds_per_gb": work.core_seconds * 1e9,
        "effective_cores": effective,
        "predicted": {name: round(value, 4) for name, value in predicted.items()},
        "seconds": rounded(seconds),
        "error": {name: round(value, 4) for name, value in errors.items()},
    }
    worst = max(errors, key=lambda name: abs(errors[name]))
    return Measured(
        abs(errors[worst]), details, f"{worst}: predicted {predicted[worst]:.3g} s, took {middle[worst]:.3g} s"
    )


def _work(problem: Problem, cores: int, counts: set[int]) -> tuple[PassWork, dict[int, float]]:
    """A pass at the speed of one thread alone, and as how many such threads all cores are to so many at once.

    Eight threads on two cores take an eighth more than two do: each finds the caches full of the others' data.
    """
    found = dict[int, PassWork]()
    for threads in sorted(counts):
        memory = memory_for(needs_of(problem), Resources(threads=threads))
        measured = measure_throughput(problem, memory, widest(problem, memory, memory.base))
        found[threads] = works_of(problem, measured, 1)[0][0]
    alone = found[1]
    effective = {n: min(n, cores) * alone.core_seconds / work.core_seconds for n, work in found.items()}
    bounded = {n: min(float(cores), max(value, 1.0)) for n, value in effective.items()}
    return replace(alone, step_seconds=0.0), bounded


def _threads(threads: int, effective: float) -> ClusterModel:
    return ClusterModel(workers=1, threads=threads, processes=False, shared_cores=effective)


def _workers(workers: int, effective: float) -> ClusterModel:
    return ClusterModel(workers=workers, shared_cores=effective - IDLE * workers, network=LOOPBACK)


@contextmanager
def _opened(model: ClusterModel) -> Iterator[Executor]:
    with TemporaryDirectory() as folder, dask.config.set({"temporary-directory": folder}):
        executor = Processes(model.workers, model.threads) if model.processes else Threads(model.threads)
        try:
            yield executor
        finally:
            executor.close()


ROWS = (
    Row(
        name="simulated-cluster",
        what="a pass as the simulator predicts it against that pass: largest relative error over threads and 1, 2, 4 "
        "and 8 worker processes of one machine",
        target=0.15,
        better="lower",
        run=measure,
        data=("main",),
    ),
)
