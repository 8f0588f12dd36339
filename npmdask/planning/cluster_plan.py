"""Plan a run for a cluster that does not exist yet: seconds, bytes, requests, money, memory, and how many workers pay.

Arithmetic is measured on this machine (:mod:`npmdask.planning.throughput`), the cluster is simulated
(:mod:`npmdask.planning.simulated_cluster`), and what is neither given nor measured is assumed, and listed. The range is
that of assumptions twice as good and twice as bad: a plan is as good as what is known of the cluster.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from npmdask.algorithms import GramKrylov
from npmdask.errors import BadInputError, MemoryRefusedError, closest
from npmdask.execution.memory import WORKER_BASE, MemoryPlan, usable_cores
from npmdask.execution.reduction import runs_of
from npmdask.numerics.units import from_table, parse_memory, time_text
from npmdask.operators import Operator
from npmdask.planning.simulated_cluster import (
    HANDLING_SECONDS,
    TASK_SECONDS,
    ClusterModel,
    PassWork,
    simulate_pass,
    task_level,
)
from npmdask.planning.throughput import Throughput
from npmdask.runs.problem import Problem
from npmdask.storage.object_url import is_remote

MIB, GB = 2**20, 1e9
# Where nothing is known, and shown as assumed: round figures of a large object store, none of them measured here. Of
# scheduler, driver and workers: see simulated_cluster.
COORDINATION = {"task_seconds": TASK_SECONDS, "handling_seconds": HANDLING_SECONDS}
LINKS = {"worker_rate": 1.25e9, "network": 1e9}
REMOTE = {"latency": 0.05, "connection": 80e6, "request_rate": 5500.0} | LINKS | COORDINATION
SHARED = {"latency": 0.002, "store_rate": 2e9} | LINKS | COORDINATION  # a disk that all workers see
COSTS = ("latency", *COORDINATION)  # of which less is better
RATES = ("connection", "in_flight", "worker_rate", "store_rate", "network")  # which may be sizes, a second
FIXED = ("workers", "threads", "processes", "joined", "keeps_committed")  # given otherwise, or what npmdask does
MAY_ASSUME = tuple(f.name for f in fields(ClusterModel) if f.name not in FIXED)
DECODING = 1e-9  # seconds of a core for a byte from an object store, where fetching hides what decoding takes
ERROR = 0.15  # of what is measured: the target of the benchmark simulated-cluster
DOUBT = 2.0  # factor of what is assumed
SEEDS = 3  # of losses, at each end of the range
MOST_WORKERS = 4096
WORTH = 0.25  # of the time that more workers have to save
BUSY = 2.0  # processes that want a core, of which this one is one
COUNTS = 0.05  # of the time that relief has to save to be named
FINER = 8  # parts of a run, to see what the cut costs


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What a cluster and its store cost.

    Parameters
    ----------
    worker_hour : of a worker, by the hour.
    thousand_requests : of 1,000 requests to the store.
    gigabyte_out : of 1e9 bytes that leave the store; often nothing within one region.
    currency : in which.
    """

    worker_hour: float = 0.0
    thousand_requests: float = 0.0
    gigabyte_out: float = 0.0
    currency: str = ""

    def __post_init__(self) -> None:
        for name in ("worker_hour", "thousand_requests", "gigabyte_out"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: give a price of 0 or more")


@dataclass(frozen=True, kw_only=True)
class PlannedCluster:
    """A cluster that does not exist yet.

    Parameters
    ----------
    workers, threads : how many, and threads of each.
    memory : bytes of each worker; None: whatever it needs.
    known : of cluster and store, fields of :class:`~npmdask.planning.simulated_cluster.ClusterModel` by name.
    prices : of workers and store; None: no money is planned.
    """

    workers: int
    threads: int = 1
    memory: int | None = None
    known: Mapping[str, Any] | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        for name in self.known or {}:
            if name not in MAY_ASSUME:
                raise BadInputError(f"a cluster has no {name!r}: {closest(name, list(MAY_ASSUME))}")
        ClusterModel(workers=self.workers, threads=self.threads, **(self.known or {}))  # refuses what cannot be

    def model(self, *, remote: bool) -> tuple[ClusterModel, dict[str, float]]:
        """The cluster to simulate, and which of its figures are assumed."""
        known = dict(self.known or {})
        assumed: dict[str, Any] = {
            name: value for name, value in (REMOTE if remote else SHARED).items() if name not in known
        }
        return ClusterModel(workers=self.workers, threads=self.threads, **assumed, **known), assumed


def read_cluster(
    workers: int, threads: int = 1, memory: str | int | None = None, file: str | Path | None = None
) -> PlannedCluster:
    """A planned cluster, with what a TOML file knows of it: tables ``[cluster]`` and ``[prices]``.

    Raises
    ------
    BadInputError
        No such file, or something in it that is no figure of a cluster.
    """
    content: dict[str, Any] = {}
    if file is not None:
        try:
            content = tomllib.loads(Path(file).read_text())
        except OSError as error:
            raise BadInputError(
                f"{file} cannot be read ({error.strerror}): it should hold [cluster] and [prices]"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadInputError(f"{file} is not a TOML file ({error}): write tables [cluster] and [prices]") from None
    for name, table in content.items():
        if name not in ("cluster", "prices") or not isinstance(table, dict):
            raise BadInputError(f"{file}: {name} is neither the table [cluster] nor [prices]; leave it out")
    known = {name: _figure(file, name, value) for name, value in content.get("cluster", {}).items()}
    prices, names = content.get("prices"), [f.name for f in fields(Prices)]
    for name in prices or {}:
        if name not in names:
            raise BadInputError(f"{file}: there is no price {name!r}: {closest(name, names)}")
    return PlannedCluster(
        workers=workers,
        threads=threads,
        memory=parse_memory(memory),
        known=known,
        prices=None if prices is None else from_table(f"{file} [prices]", Prices, prices),
    )


def _figure(file: Any, name: str, value: Any) -> float:
    if isinstance(value, str) and name in RATES:
        return float(parse_memory(value) or 0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInputError(f"{file}: {name} = {value!r} is not a number; rates may be sizes a second, like '80MB'")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """What a run would take on a cluster.

    Attributes
    ----------
    workers, threads : of the cluster.
    passes : that are counted; ``whole`` is False where their number is not known, and all figures are of one.
    seconds, least_seconds, most_seconds : expected, and the range of what is assumed.
    nbytes, requests : from the store.
    tasks : of a pass.
    binding : what the time depends on, and the share that would be saved without it.
    enough : workers, beyond which no number saves more than a quarter of the time, with their ``enough_seconds`` and
        ``enough_binding``.
    by_workers : seconds by the number of workers.
    worker_memory, driver_memory : bytes that each worker needs, and the driver for one commit inside a pass.
    money : by what it is spent on, or None.
    measured, assumed, given : figures by name.
    """

    workers: int
    threads: int
    passes: int
    whole: bool
    seconds: float
    least_seconds: float
    most_seconds: float
    nbytes: float
    redone: float
    requests: float
    tasks: int
    binding: tuple[tuple[str, float], ...]
    enough: int
    enough_seconds: float
    enough_binding: tuple[tuple[str, float], ...]
    by_workers: tuple[tuple[int, float], ...]
    worker_memory: int
    driver_memory: float
    memory: int | None
    money: dict[str, float] | None
    currency: str
    measured: dict[str, float]
    assumed: dict[str, float]
    given: dict[str, float]

    def lines(self) -> dict[str, str]:
        """Return the lines for people, by name."""
        table = {
            "cluster": self._time(),
            "store": f"{_size(self.nbytes)} in {self.requests:.3g} requests{self._again()}",
            "binding": _binding_said(self.binding),
            "workers": self._enough_said(),
            "worker": self._memory_said(),
            "measured": _figures(self.measured) + self._busy(),
            "given": _figures(self.given) or "nothing but the number of workers",
            "assumed": f"{_figures(self.assumed)}; each core as fast as one here",
        }
        if self.money is not None:
            table["money"] = self._money_said(self.money)
        return table

    def _money_said(self, money: dict[str, float]) -> str:
        whole, parts = sum(money.values()), ", ".join(f"{value:.2f} {name}" for name, value in money.items())
        longer = money["for workers"] * (self.most_seconds / self.seconds - 1) if self.seconds < math.inf else math.inf
        return f"{whole:.2f} {self.currency} ({parts}); {whole + longer:.2f} at the end of the range".replace("  ", " ")

    def _time(self) -> str:
        least, most = (_time(seconds) for seconds in (self.least_seconds, self.most_seconds))
        passes = (
            f"{self.passes} pass{'es' * (self.passes != 1)}" if self.whole else "one pass (their number is unknown)"
        )
        said = f"{self.workers} workers x {self.threads} threads: about {_time(self.seconds)} for {passes}"
        tasks = f"{self.tasks} task{'s' * (self.tasks != 1)} each"
        return f"{said}, {tasks}; {least} to {most} if assumptions are off by a factor {DOUBT:.2g}"

    def _busy(self) -> str:
        if self.measured["load_per_core"] < BUSY:
            return ""
        return ". This machine is busy: cores that have nothing else to do take less, so plan again when it is idle"

    def _again(self) -> str:
        return f", {_size(self.redone)} of it again after losses" if self.redone else ""

    def _enough_said(self) -> str:
        pay = "1 worker pays off" if self.enough == 1 else f"up to {self.enough} workers pay off"
        said = f"{pay}: {_time(self.enough_seconds)}; more save less than {WORTH:.0%}"
        return f"{said}, because of {_binding_said(self.enough_binding)}"

    def _memory_said(self) -> str:
        limit = "" if self.memory is None else f" of {self.memory / MIB:.0f} MiB"
        said = f"needs {self.worker_memory / MIB:.0f} MiB{limit}"
        more = f"; a commit inside a pass brings up to {_size(self.driver_memory)} to the driver at once"
        return said + (more if self.driver_memory else "")


def plan_cluster(
    problem: Problem,
    memory: MemoryPlan,
    measured: Throughput,
    cluster: PlannedCluster,
    passes: int | None,
    decomposing: float = 0.0,
) -> ClusterPlan:
    """Simulate the passes of a run on a cluster.

    Parameters
    ----------
    problem, memory, measured : of the run, as it is planned here.
    cluster : the one that is asked about.
    passes : of the whole run; None if their number is not known.
    decomposing : seconds of the driver after the matrix is formed, where one is.

    Raises
    ------
    RefusedError
        The memory of a worker does not suffice.
    """
    remote = is_remote(problem.source.path)
    model, assumed = cluster.model(remote=remote)
    needed = WORKER_BASE + memory.state + memory.task * cluster.threads + int(model.in_flight)
    if cluster.memory is not None and needed > cluster.memory:
        fit = (cluster.memory - WORKER_BASE - memory.state - int(model.in_flight)) // memory.task
        fewer = f" or at most {fit} threads" if fit > 0 else ""
        raise MemoryRefusedError(
            f"a worker with {cluster.threads} threads needs {-(-needed // MIB)} MiB and would have "
            f"{cluster.memory // MIB}: give --worker-memory {-(-needed // MIB)}MiB{fewer}"
        )
    works, figures = works_of(problem, measured, passes or 1, decomposing, remote=remote)
    whole = sum(work.count for work in works)
    runs = [simulate_run(works, model, seed) for seed in range(SEEDS)]
    seconds = sum(run.seconds for run in runs) / SEEDS
    by_workers = _by_workers(works, model)
    best = min(value for _, value in by_workers)
    enough = next(count for count, value in by_workers if value * (1 - WORTH) <= best)
    nbytes = sum(run.nbytes for run in runs) / SEEDS
    requests = nbytes / works[-1].chunk
    return ClusterPlan(
        workers=cluster.workers,
        threads=cluster.threads,
        passes=whole,
        whole=passes is not None,
        seconds=seconds,
        least_seconds=end_of_range(works, model, assumed, better=True),
        most_seconds=end_of_range(works, model, assumed, better=False),
        nbytes=nbytes,
        redone=sum(run.redone for run in runs) / SEEDS,
        requests=requests,
        tasks=runs[0].tasks,
        binding=binding(works, model),
        enough=enough,
        enough_seconds=dict(by_workers)[enough],
        enough_binding=binding(works, replace(model, workers=enough)),
        by_workers=by_workers,
        worker_memory=needed,
        driver_memory=max(run.gathered for run in runs),
        memory=cluster.memory,
        money=None if cluster.prices is None else _money(cluster, seconds, nbytes, requests),
        currency=cluster.prices.currency if cluster.prices else "",
        measured=figures,
        assumed=assumed | ({"decoding": DECODING} if remote else {}),
        given=dict(cluster.known or {}),
    )


def _money(cluster: PlannedCluster, seconds: float, nbytes: float, requests: float) -> dict[str, float]:
    assert cluster.prices is not None
    return {
        "for workers": cluster.prices.worker_hour * cluster.workers * seconds / 3600,
        "for requests": cluster.prices.thousand_requests * requests / 1000,
        "for bytes": cluster.prices.gigabyte_out * nbytes / GB,
    }


# What the passes have to do.


def works_of(
    problem: Problem, measured: Throughput, passes: int, decomposing: float = 0.0, *, remote: bool = False
) -> tuple[list[PassWork], dict[str, float]]:
    """The passes of a run as they can be simulated, and the figures that they were made of."""
    cores = min(measured.threads, usable_cores())  # of which all threads together had no more
    if remote:  # what chunks wait for here is not what workers wait for
        later = measured.column * cores * problem.algorithm.iteration_rank + DECODING
    else:
        later = measured.late_again * cores
    ratio = _stored_share(problem.source.reader)
    figures = {"core_seconds_per_gb": later * GB, "step_seconds": measured.step_seconds, "stored_share": ratio}
    figures["load_per_core"] = os.getloadavg()[0] / usable_cores()
    sides, p = problem.sides(), problem.algorithm.iteration_rank
    if isinstance(problem.algorithm, GramKrylov) and measured.formed is not None:
        forming = measured.formed * cores
        figures["forming_core_seconds_per_gb"] = forming * GB
        works = [work_of(sides[0], p, forming, ratio, step_seconds=decomposing, count=1)]
        if passes > 1:
            works.append(work_of(sides[-1], p, later, ratio, step_seconds=measured.step_seconds, count=passes - 1))
        return works, figures
    return [work_of(sides[-1], p, later, ratio, step_seconds=measured.step_seconds, count=passes)], figures


def work_of(
    operator: Operator, p: int, core_seconds: float, ratio: float = 1.0, *, step_seconds: float = 0.0, count: int = 1
) -> PassWork:
    """A pass of an operator, by its own cut.

    Parameters
    ----------
    operator, p : what is applied, and to how many columns.
    core_seconds : of one core, for a decoded byte.
    ratio : bytes in the store for a decoded byte.
    step_seconds, count : see :class:`~npmdask.planning.simulated_cluster.PassWork`.
    """
    runs = runs_of(operator)
    each = operator.pass_bytes * ratio / operator.units
    return PassWork(
        runs=tuple(len(run) * each for run in runs),
        chunk=max(operator.pass_bytes * ratio / operator.pass_chunks, 1.0),
        core_seconds=core_seconds / ratio,
        # What waits to be joined is two sums for each level of the tree.
        sum_bytes=operator.pending_bytes(p, runs) / (2 * len(runs).bit_length()),
        block_bytes=operator.block_rows * p * 8,
        step_seconds=step_seconds,
        count=count,
        decoded=float(operator.pass_bytes),
    )


def _stored_share(reader: Any) -> float:
    """Bytes on disk for a decoded byte, of some chunks; 1 where they cannot be looked at."""
    access = getattr(reader, "access", None)
    folder = getattr(access, "folder", None)
    if folder is None or not hasattr(reader, "chunk_name"):
        return 1.0
    whole = reader.chunks[0] * reader.chunks[1] * reader.dtype.itemsize
    slabs = range(0, max(int(reader.grid[0]) - 1, 1), max(int(reader.grid[0]) // 32, 1))  # the last may be shorter
    sizes = [file.stat().st_size for slab in slabs if (file := folder / reader.chunk_name(slab, 0)).is_file()]
    return min(1.0, sum(sizes) / (len(sizes) * whole)) if sizes and sum(sizes) else 1.0


# What follows from simulating them.


@dataclass(frozen=True)
class SimulatedRun:
    """All passes of a run. ``gathered``: bytes that a commit inside a pass holds on the driver."""

    seconds: float
    nbytes: float
    redone: float
    tasks: int
    gathered: float


def simulate_run(works: list[PassWork], model: ClusterModel, seed: int = 0) -> SimulatedRun:
    """All passes; those that are alike are simulated once."""
    passes = [(work.count, simulate_pass(work, model, seed)) for work in works]
    return SimulatedRun(
        seconds=sum(count * one.seconds for count, one in passes),
        nbytes=sum(count * one.nbytes for count, one in passes),
        redone=sum(count * one.redone for count, one in passes),
        tasks=passes[-1][1].tasks,
        gathered=max(one.gathered for _, one in passes),
    )


def end_of_range(works: list[PassWork], model: ClusterModel, assumed: Mapping[str, float], *, better: bool) -> float:
    """One end of the range: what is assumed is so many times as good or bad, what is measured is off by its error."""
    factor, error = (DOUBT, 1 - ERROR) if better else (1 / DOUBT, 1 + ERROR)
    changed: dict[str, Any] = {
        name: value / factor if name in COSTS else value * factor for name, value in assumed.items()
    }
    off = [
        replace(work, core_seconds=work.core_seconds * error, step_seconds=work.step_seconds * error) for work in works
    ]
    ends = [simulate_run(off, replace(model, **changed), seed).seconds for seed in range(SEEDS)]
    return min(ends) if better else max(ends)


def _by_workers(works: list[PassWork], model: ClusterModel) -> tuple[tuple[int, float], ...]:
    """Seconds by the number of workers, doubled until there is a thread for every run, and no further than that."""
    useful = 2 * max(len(work.runs) for work in works) / model.threads
    counts, count = {model.workers} if model.workers <= max(useful, 1) else set[int](), 1
    while count <= min(MOST_WORKERS, max(useful, 1)):
        counts.add(count)
        count *= 2
    return tuple((count, simulate_run(works, replace(model, workers=count)).seconds) for count in sorted(counts))


def binding(works: list[PassWork], model: ClusterModel) -> tuple[tuple[str, float], ...]:
    """What the time depends on: the share of it that would be saved if each cost nothing, largest first.

    Shares need not sum to 1: what overlaps hides behind each other, and what is in a row adds up.
    """
    now = simulate_run(works, model).seconds
    if not 0 < now < math.inf:
        return ()
    free: dict[str, Any] = {"task_seconds": 0.0, "handling_seconds": 0.0}
    largest = max(works, key=lambda work: len(work.runs))  # the scheduler is to cost what it costs now
    now_tasks, then = (len(each.runs) >> task_level(each, model) for each in (largest, _finer(largest)))
    more = then / max(now_tasks, 1)
    finer: dict[str, Any] = {
        "task_seconds": model.task_seconds / more,
        "handling_seconds": model.handling_seconds / more,
    }
    relieved = {
        "the store's bandwidth": (works, replace(model, store_rate=math.inf, request_rate=math.inf)),
        "the wait for single requests (raise in_flight)": (works, replace(model, latency=0.0, connection=math.inf)),
        "the network of each worker": (works, replace(model, worker_rate=math.inf)),
        "arithmetic": ([replace(work, core_seconds=0.0) for work in works], model),
        "the scheduler": (works, replace(model, **free)),
        "partial sums on their way": ([replace(work, sum_bytes=0.0, block_bytes=0.0) for work in works], model),
        "serial steps between passes": ([replace(work, step_seconds=0.0) for work in works], model),
        "the cut into few runs": ([_finer(work) for work in works], replace(model, **finer)),
        "lost and slow workers": (works, replace(model, losses_per_hour=0.0, slow_share=0.0)),
    }
    saved = {name: 1 - simulate_run(*there).seconds / now for name, there in relieved.items()}
    return tuple((n, s) for n, s in sorted(saved.items(), key=lambda item: -item[1]) if s >= COUNTS)


def _finer(work: PassWork) -> PassWork:
    runs = tuple(nbytes / FINER for nbytes in work.runs for _ in range(FINER))
    return replace(work, runs=runs, sum_bytes=work.sum_bytes / FINER)


# In words.


def _binding_said(found: tuple[tuple[str, float], ...]) -> str:
    return ", ".join(f"{name} (without it {share:.0%} less)" for name, share in found) or "nothing alone"


def _time(seconds: float) -> str:
    return "never" if seconds == math.inf else time_text(seconds)


def _figures(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in figures.items())


def _size(nbytes: float) -> str:
    for unit, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes / 1e6:.3g} MB"


def facts_of(plan: ClusterPlan) -> dict[str, Any]:
    """Everything as plain numbers and strings, for scripts; what never ends has null seconds."""
    facts = asdict(plan)
    return {name: None if value == math.inf else value for name, value in facts.items()}
