"""What the simulator predicts of a pass against that pass: threads, and worker processes that share the cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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


def measure(context: Context) -> Measured:
    """Predict each configuration from what a plan measures, then run them in turns."""
    store = context.data["main"]
    cache.warm(store)
    problem = make_problem(open_source(store), Request(target_rank=10, algorithm="krylov"))
    work, effective = _work(problem, context.cores)
    threads = range(1, context.cores + 1)
    models = {f"threads {n}": _threads(n, effective) for n in threads}
    models |= {f"workers {n}": _workers(n, effective) for n in WORKERS[context.scale]}
    predicted = {name: simulate_pass(work, model).seconds for name, model in models.items()}
    operator: Any = problem.sides()[-1]
    block = start_block(operator.block_rows, problem.algorithm.iteration_rank, "f8")
    seconds = dict[str, list[float]]()
    with ExitStack() as stack:
        ways: dict[str, Callable[[], Any]] = {}
        for name, model in models.items():
            executor = stack.enter_context(_opened(model))
            one_pass(executor, operator, block)  # buffers and connections are made once a run
            ways[name] = partial(one_pass, executor, operator, block)
        seconds = interleaved(ways, context.rounds)
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


def _work(problem: Problem, cores: int) -> tuple[PassWork, float]:
    """A pass at the speed of one thread alone, and as how many such threads all cores together are."""
    works = list[PassWork]()
    for threads in (1, cores):
        memory = memory_for(needs_of(problem), Resources(threads=threads))
        measured = measure_throughput(problem, memory, widest(problem, memory, memory.base))
        works.append(works_of(problem, measured, 1)[0][0])
    alone, together = works
    effective = cores * alone.core_seconds / together.core_seconds
    return replace(alone, step_seconds=0.0), min(float(cores), max(effective, 1.0))


def _threads(threads: int, effective: float) -> ClusterModel:
    return ClusterModel(workers=1, threads=threads, processes=False, shared_cores=effective)


def _workers(workers: int, effective: float) -> ClusterModel:
    return ClusterModel(workers=workers, shared_cores=effective, network=LOOPBACK)


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
