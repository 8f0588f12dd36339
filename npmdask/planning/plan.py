"""Plan a run before it starts: collect the facts, and choose what is "auto".

``make_plan`` is pure, ``plan_run`` measures for it; ``forms_sooner`` and ``free_columns`` measure for
:mod:`npmdask.core.runs.automatic`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from npmdask.core.algorithms import BlockKrylov, GramKrylov, PowerOnDisk
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.execution.memory import MemoryPlan, give_back, largest_rank, link_to, tree_rss
from npmdask.core.execution.reduction import runs_of
from npmdask.core.numerics.spectra import Spectrum
from npmdask.core.numerics.units import attributes, time_text
from npmdask.core.runs.automatic import FEW, FORMED, formed_one, with_options
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.checks import MOSTLY, mean_of_rows, mean_said
from npmdask.core.runs.disk_release import disk_said, readings_of
from npmdask.core.runs.forming import DECOMPOSING
from npmdask.core.runs.problem import DEFAULT_STEPS, Problem
from npmdask.core.runs.resources import Resources, memory_for, needs_of, require_device
from npmdask.errors import BadInputError, MemoryRefusedError
from npmdask.gpu.device_choice import OF_MATRIX, USUAL, DeviceChoice, choice_said, choose_device
from npmdask.planning.chunk_advice import ChunkReading, LayoutAdvice, advise_chunks, how_read
from npmdask.planning.forecast import Forecast, look_ahead, predict_steps
from npmdask.planning.predicted_steps import GRAM_FLOPS, MEMORY, PLACES, REHEARSAL_FLOPS, SIDE
from npmdask.planning.row_sample import SampleBudget, ShareError, sample_said, shares_said, why_too_small
from npmdask.planning.throughput import MOST_COLUMNS, Throughput, measure_on_disk, measure_throughput
from npmdask.tensors.power import TensorPower


@dataclass(frozen=True, kw_only=True)
class Route:
    """A way to the answer: ``passes`` over the data, of which all ``bytes`` are read, and what else it takes."""

    algorithm: str
    passes: int
    bytes: int
    seconds: float
    memory: int

    def __str__(self) -> str:
        passes = f"{self.passes} pass{'es' * (self.passes != 1)}"
        memory = f"{self.memory / MIB:.0f} MiB"
        return f"{self.algorithm}: {passes}, {_gb(self.bytes)}, about {time_text(self.seconds)}, {memory}"


@dataclass(frozen=True, kw_only=True)
class Network:
    """The way to an object store. ``rate``: bytes a second of the link, ``allowed``: with the memory that is granted.

    ``seconds``: of one request by itself. ``in_flight``, ``wanted``: bytes that a process may have on their way, and
    that all of the link takes; ``memory``: the limit that would grant them, where ``limit`` does not. ``least``: the
    link may be faster.
    """

    rate: float
    allowed: float
    seconds: float
    in_flight: int
    wanted: int
    memory: int
    limit: int | None
    least: bool = False

    def __str__(self) -> str:
        link = f"{'at least ' if self.least else ''}{self.rate / 1e9:.2g} GB/s"
        if self.allowed >= self.rate:
            way = f"{self.in_flight / MIB:.0f} MiB in flight, a request alone takes {time_text(self.seconds)}"
            return f"the store is read at {link} ({way})"
        held = "the memory that is free" if self.limit is None else f"{self.limit / MIB:.0f} MiB of memory"
        return (
            f"{held} bounds reading this store at {self.allowed / 1e9:.2g} GB/s; {self.memory / MIB:.0f} MiB would "
            f"reach the link ({link})"
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run that has not started. ``steps`` and ``outlook`` are None where there is no spectrum to tell them from.

    ``passes`` counts everything that reads the data: ``other_passes`` are the survey of the columns and the left
    singular vectors. Bytes are of the decoded data. ``free_rank``: up to there, columns cost no time here. ``routes``:
    by which the answer can be had, that of ``algorithm`` first, and ``why`` it is taken. ``shares``: what a run on some
    of the rows would be off by; empty where no sample says so. ``chooses``: the number of components is to be found by
    what is held out, and figures are of one. ``mean_cosine``: of component 1 and the mean of the columns, at least so
    large; None where the run centres, or too little is known. ``device``: what passes take on a GPU, where the run has
    one; all other seconds are of the processor.
    ``blocks``: where they lie, if that is not in memory.
    """

    source: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    target_rank: int
    iteration_rank: int
    tol: float
    max_steps: int
    steps: int | None
    other_passes: int
    sample_rows: int
    sample_places: int
    pass_bytes: int
    pass_seconds: float
    later_pass_seconds: float
    seconds: float | None
    measured_seconds: float
    read_rate: float
    cached: bool
    memory: MemoryPlan
    runs: int
    reading: ChunkReading
    layout: LayoutAdvice
    free_rank: int
    free_rank_steps: int | None
    free_rank_seconds: float | None
    outlook: Forecast | None
    algorithm: str = ""
    routes: tuple[Route, ...] = ()
    why: str = ""
    shares: tuple[ShareError, ...] = ()
    chooses: bool = False
    mean_cosine: float | None = None
    device: DeviceChoice | None = None
    device_said: str = ""
    blocks: str = ""
    network: Network | None = None

    @property
    def passes(self) -> int | None:
        return None if self.steps is None else self.steps + self.other_passes

    @property
    def total_bytes(self) -> int | None:
        return None if self.passes is None else self.passes * self.pass_bytes

    def facts(self) -> dict[str, Any]:
        """Everything as plain numbers and strings, for scripts."""
        memory = asdict(self.memory) | {"predicted_peak": self.memory.predicted_peak}
        more: dict[str, Any] = {"passes": self.passes, "total_bytes": self.total_bytes, "memory": memory}
        if self.device is not None:
            more["device"] = asdict(self.device) | {"seconds": self.device.seconds, "pays": self.device.pays}
        return asdict(self) | {"shape": list(self.shape)} | more


def _operator(problem: Problem) -> Any:
    """The operator of all steps but the first, with made-up column statistics: enough for its sizes."""
    return problem.sides()[-1]


def _locked(problem: Problem) -> int:
    return problem.locked.result.vectors.shape[1] if problem.locked else 0


def widest(problem: Problem, memory: MemoryPlan, base: int) -> int:
    """The most columns that the data and the memory limit allow, up to 128 or what is asked for."""
    p, locked = problem.algorithm.iteration_rank, _locked(problem)
    room = min(max(MOST_COLUMNS, p), problem.d - locked)
    return max(p, largest_rank(memory, _operator(problem), room, problem.algorithm.state_blocks, base, locked))


def plan_run(problem: Problem, resources: Resources, spectrum: Spectrum | None = None) -> Plan:
    """Measure this machine on the store for at most 5 seconds and say what a run would do. Nothing is written.

    ``spectrum``: given or guessed; if None, that of a sample of rows.

    Raises
    ------
    RefusedError
        The memory limit is too small, as for the run itself.
    """
    if problem.source.reader.layout == "gram":
        raise BadInputError(
            f"{problem.source.path} is a stored Gram: a run on it reads no data, so there is nothing to plan; start "
            "it with `npmdask run`"
        )
    require_device(needs_of(problem), resources)
    memory = memory_for(needs_of(problem), resources)
    base = tree_rss()
    wide = widest(problem, memory, base)
    others = _other_routes(problem, resources, base)
    forming = next((p for p in (problem, *others) if isinstance(p.algorithm, GramKrylov)), None)
    alone = not (problem.searches or problem.chooses) and problem.locked is None and problem.derived is None
    allowed = SampleBudget(judged=problem.algorithm.target_rank if alone and spectrum is None else 0)
    on_disk = isinstance(problem.algorithm, PowerOnDisk)
    if on_disk:
        measured = measure_on_disk(problem, memory, readings_of(problem, memory.held, memory.threads), allowed)
        wide, others = problem.algorithm.iteration_rank, []
    else:
        measured = measure_throughput(problem, memory, wide, forming=forming, allowed=allowed)
    with single_threaded_blas():  # small matrices
        plan = make_plan(problem, memory, measured, wide, spectrum)
        if on_disk:
            plan = replace(plan, blocks=disk_said(problem, memory.held, memory.threads))
        choice = choose_device(problem, resources, memory, plan.passes)
        plan = replace(plan, device=choice, device_said=choice_said(choice, problem, resources))
        if not others or plan.seconds is None:
            return plan
        further = [make_plan(p, memory_for(needs_of(p), resources, base), measured, wide, spectrum) for p in others]
        routes = tuple(_route_of(each) for each in (plan, *further) if each.seconds is not None)
        return replace(plan, routes=routes, why=_route_reason(routes, few=problem.source.reader.nbytes < FEW))


def _other_routes(problem: Problem, resources: Resources, base: int) -> list[Problem]:
    """The same question by the other algorithms that answer it, as far as there is memory for them."""
    request, found = problem.request, list[Problem]()
    further = (problem.start, problem.locked, problem.derived)
    formed = formed_one(request, problem.source)
    if formed is None or any(one is not None for one in further):
        return found
    forms = isinstance(problem.algorithm, GramKrylov)  # either matrix: one of them is enough
    for name in ("krylov", "power") if forms else (formed, "krylov", "power"):
        if name == problem.algorithm.name:
            continue
        there = replace(request, algorithm=name, options=None)
        other = make_problem(problem.source, with_options(there, problem.source, resources, None))
        try:
            memory_for(needs_of(other), resources, base)
        except MemoryRefusedError:
            continue
        found.append(other)
    return found


def _route_reason(routes: tuple[Route, ...], *, few: bool) -> str:
    """Why the first of ``routes`` is taken, or what is faster, where it was asked for by name or by a rule.

    ``few``: the data are so small that no matrix is formed unless that is asked for.
    """
    first, rest = routes[0], [route for route in routes[1:] if route.algorithm != "power"]
    if not rest:
        return f"{first.algorithm}: nothing else fits into the memory"
    second = min(rest, key=lambda route: route.seconds)
    ratio = second.seconds / max(first.seconds, 1e-9)
    if ratio >= 1:
        return f"{first.algorithm}: {second.algorithm} is expected to take {ratio:.2g} times as long"
    said = f"{first.algorithm}, although {second.algorithm} is expected to take {ratio:.2g} of its time"
    if not few:
        return said
    return f"{said}: of less than {FEW // MIB} MiB auto forms no matrix, which would save about a second at most"


def _route_of(plan: Plan) -> Route:
    assert plan.passes is not None and plan.total_bytes is not None and plan.seconds is not None
    return Route(
        **attributes(plan, "algorithm", "passes", "seconds"),
        bytes=plan.total_bytes,
        memory=plan.memory.predicted_peak,
    )


def make_plan(
    problem: Problem, memory: MemoryPlan, measured: Throughput, wide: int, spectrum: Spectrum | None = None
) -> Plan:
    """Put the facts together. ``wide``: the most columns that fit (see :func:`widest`)."""
    source, algorithm, operator = problem.source, problem.algorithm, _operator(problem)
    values = _eigenvalues(problem, measured, spectrum)
    other = int(problem.needs_moments) + (problem.kind == "matrix")
    free = max(algorithm.iteration_rank, min(measured.free_columns, wide))
    nbytes = operator.pass_bytes * getattr(algorithm, "parts", 1)

    def seconds(steps: int | None, p: int) -> float | None:
        return _run_seconds(problem, measured, steps, other, p)

    outlook = None
    if values is not None:
        said = spectrum.said if spectrum else sample_said(measured.sample) if measured.sample else ""
        known = spectrum.known if spectrum else len(values)
        outlook = look_ahead(problem, values, said, known=known, wide=wide, seconds=seconds)
    steps = None if outlook is None else outlook.steps
    more = None if values is None else predict_steps(problem, values, free).steps
    return Plan(
        source=source.path,
        **attributes(source, "kind", "shape"),
        dtype=str(source.dtype),
        target_rank=problem.ranks[0],
        iteration_rank=problem.ranks[1],
        **attributes(problem.rule, "tol", "max_steps"),
        steps=steps,
        other_passes=other,
        sample_rows=measured.sample.rows if measured.sample else 0,
        sample_places=measured.sample.places if measured.sample else 0,
        pass_bytes=nbytes,
        pass_seconds=measured.late * nbytes,
        later_pass_seconds=measured.later(0) * nbytes,
        seconds=seconds(steps, algorithm.iteration_rank),
        measured_seconds=measured.seconds,
        read_rate=1 / measured.reading,
        cached=measured.cached,
        memory=memory,
        runs=len(runs_of(operator)),
        reading=how_read(source.reader),
        layout=advise_chunks(source),
        free_rank=free,
        free_rank_steps=more,
        free_rank_seconds=seconds(more, free),
        outlook=outlook,
        algorithm=algorithm.name,
        shares=measured.sample.errors if measured.sample else (),
        chooses=problem.chooses,
        network=_network(operator, memory),
        mean_cosine=None if values is None else _mean_cosine(problem, values),
    )


def _network(operator: Any, memory: MemoryPlan) -> Network | None:
    """The way to the data; None of local files, and of few data, whose way was not measured."""
    link, processes = link_to(operator, memory), max(1, memory.workers)
    if link is None:
        return None
    return Network(
        **attributes(link, "rate", "seconds"),
        **attributes(memory, "in_flight", "limit"),
        allowed=link.bounded(memory.in_flight * processes, memory.threads * processes),
        wanted=link.in_flight,
        memory=memory.least + link.in_flight,
        least=not link.full,
    )


def _mean_cosine(problem: Problem, values: np.ndarray) -> float | None:
    """The least cosine of component 1 and the mean of the columns that these eigenvalues allow.

    The mean's own direction has a Rayleigh quotient of at least ``n ||m||^2``; what that falls short of the first value
    bounds its angle to the first vector, by the gap to the second.
    """
    source, mean = problem.source, None
    if source.column_mean is not None:
        mean = mean_of_rows(problem, problem.operator(source.statistics), source.column_mean)
    if mean is None or not len(values) or not values[0] > 0 or problem.locked is not None:
        return None
    first, second = float(values[0]), float(values[1]) if len(values) > 1 else 0.0
    short = max(0.0, first - float(mean @ mean))  # a sample errs
    return math.sqrt(max(0.0, 1 - short / (first - second))) if first > second else 0.0


def _eigenvalues(problem: Problem, measured: Throughput, spectrum: Spectrum | None) -> np.ndarray | None:
    """Return eigenvalues of the operator, given, guessed or sampled, without those already found; None: not known."""
    if problem.derived is not None or not problem.certified:
        return None  # a sample of the data says nothing of another operator
    if spectrum is not None:
        return spectrum.eigenvalues(singular=problem.source.traits.singular)[_locked(problem) :]
    return None if measured.sample is None else measured.sample.eigenvalues[_locked(problem) :]


def _run_seconds(problem: Problem, measured: Throughput, steps: int | None, other: int, p: int) -> float | None:
    """Predict the seconds of a run with p columns: the first pass with chunks as found, others as they will be.

    With float32 data the last steps are in float64 (of block Krylov one, of the power method as many as it takes from
    10 tol to tol), and so are all of a run that gets stuck. What a commit costs is not known here: nothing is written.
    Fewer columns than were measured are a guess along a line, which may not end below zero.
    """
    if steps is None:
        return None
    now = problem.algorithm.iteration_rank
    if isinstance(problem.algorithm, GramKrylov) and measured.formed is not None:
        nbytes = _operator(problem).pass_bytes
        more = (steps + other - 1) * measured.later(0, fine=True)
        decomposing = DECOMPOSING * getattr(problem.algorithm, "rows", problem.d) ** 3
        again = steps * (getattr(problem.algorithm, "parts", 1) - 1) * measured.reading
        return (measured.formed + more + again) * nbytes + decomposing
    last = 1 if isinstance(problem.algorithm, BlockKrylov) else 2 + steps // 6
    fine = steps if steps >= problem.rule.max_steps else min(steps, last) + other
    first = measured.late + measured.column * (p - now)
    coarse = max(0, steps + other - 1 - fine)
    passes = first + coarse * measured.later(p - now) + fine * measured.later(p - now, fine=True)
    return max(0.0, passes) * _operator(problem).pass_bytes + steps * measured.step_seconds * p / now


TIMING = 0.5  # seconds that it may take to measure which is sooner


def free_columns(problem: Problem, resources: Resources) -> int:
    """Measure how many columns cost no time: no more than 128, and than the memory limit allows."""
    memory = memory_for(needs_of(problem), resources)
    measured = measure_throughput(problem, memory, widest(problem, memory, tree_rss()))
    return min(measured.free_columns, widest(problem, memory, tree_rss()))  # what is held now, after measuring


def forms_sooner(formed: Problem, blocks: Problem, resources: Resources) -> bool:
    """Say whether forming the matrix is faster than multiplying blocks of columns as often as needed."""
    p = blocks.algorithm.iteration_rank
    memory = memory_for(needs_of(blocks), resources)
    allowed = SampleBudget(side=max(SIDE, 4 * p), places=PLACES, nbytes=MEMORY, flops=GRAM_FLOPS)
    measured = measure_throughput(blocks, memory, p, forming=formed, budget=TIMING, allowed=allowed)
    give_back()
    steps = USUAL
    with single_threaded_blas():
        sample = measured.sample
        if sample is not None and np.isfinite(sample.spectrum).all() and not why_too_small(sample, 4 * p, ""):
            steps = predict_steps(blocks, sample.eigenvalues, p, flops=REHEARSAL_FLOPS).steps
    other = int(blocks.kind == "matrix")
    by_device = choose_device(blocks, resources, memory, steps + other)
    if by_device is not None:
        at_once_there = choose_device(formed, resources, memory_for(needs_of(formed), resources), OF_MATRIX + other)
        if at_once_there is not None:
            return at_once_there.seconds <= by_device.seconds
    by_blocks = _run_seconds(blocks, measured, steps, other + int(blocks.needs_moments), p)
    once = predict_steps(formed, np.zeros(0), p).steps
    at_once = _run_seconds(formed, measured, once, other + int(formed.needs_moments), p)
    assert by_blocks is not None and at_once is not None
    return at_once <= by_blocks


# What the decomposition of a stored tensor will read and need, said before it starts; nothing is measured.


MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class TensorPlan:
    """A run that has not started. ``products``: full reads of the unique blocks, where their number is fixed."""

    source: str
    side: int
    block: int
    dtype: str
    target_rank: int
    restarts: int
    harvest: bool
    products: int | None
    pass_bytes: int
    dense_bytes: int
    pass_gflop: float
    memory: MemoryPlan
    runs: int

    def facts(self) -> dict[str, Any]:
        """Everything as plain numbers and strings, for scripts."""
        return asdict(self) | {"memory": asdict(self.memory) | {"predicted_peak": self.memory.predicted_peak}}

    def lines(self) -> list[str]:
        """Return the plan as lines for people."""
        about = "1 to 2" if self.harvest else "5 to 30"  # measured without and with noise, d = 100
        limit = "none" if self.memory.limit is None else f"{self.memory.limit / MIB:.0f} MiB"
        table = {
            "data": f"{self.source}: {self.side} x {self.side} x {self.side} {self.dtype}, blocks of {self.block}",
            "products": f"depends on the data: {about} per component"
            if self.products is None
            else f"{self.products}: k (R + 1) and one to measure the result",
            "bytes": f"{self.pass_bytes / 1e9:.3g} GB per product, {self.pass_bytes / self.dense_bytes:.2f} of dense",
            "work": f"{self.pass_gflop:.3g} Gflop per product, {self.restarts} restarts at once",
            "memory": f"{self.memory.predicted_peak / MIB:.0f} MiB in {self.memory.threads} threads; limit {limit}",
            "tasks": f"{self.runs} task{'s' * (self.runs != 1)} per product",
        }
        return [f"{name:9} {said}" for name, said in table.items()]


def plan_tensor(problem: Problem, resources: Resources) -> TensorPlan:
    """The plan of a run of ``problem``, whose source is a tensor.

    Raises
    ------
    RefusedError
        The memory limit is too small, as for the run itself.
    """
    algorithm, operator = problem.algorithm, problem.operator()
    assert isinstance(algorithm, TensorPower)
    reader: Any = operator.reader
    k, width, d = algorithm.target_rank, algorithm.iteration_rank, problem.d
    return TensorPlan(
        source=problem.source.path,
        side=d,
        block=reader.side,
        dtype=str(reader.dtype),
        target_rank=k,
        restarts=width,
        harvest=algorithm.harvest,
        products=None if algorithm.iterations is None else k * (algorithm.iterations + 1) + 1,
        pass_bytes=operator.pass_bytes,
        dense_bytes=d**3 * reader.dtype.itemsize,
        pass_gflop=2 / 3 * d**3 * width / 1e9,
        memory=memory_for(needs_of(problem), resources),
        runs=len(runs_of(operator)),
    )


# A plan as lines for people.


def plan_lines(plan: Plan | TensorPlan) -> list[str]:
    """Return the plan as lines for people."""
    if isinstance(plan, TensorPlan):
        return plan.lines()
    table = {
        "data": _data(plan),
        "passes": _passes(plan),
        "bytes": _bytes(plan),
        "seconds": _seconds(plan),
        "memory": _memory(plan),
        **({"blocks": plan.blocks} if plan.blocks else {}),
        **({"device": plan.device_said} if plan.device_said else {}),
        **({} if plan.network is None else {"network": str(plan.network)}),
        "tasks": _runs(plan),
        "reading": f"{plan.reading.how}: {plan.reading.why}",
        "chunks": _chunks(plan),
        "columns": _columns(plan),
        **({"routes": "; ".join(map(str, plan.routes))} if plan.routes else {}),
        **({"method": plan.why} if plan.why else {}),
        **({"mean": _mean_text(plan.mean_cosine)} if _mean_text(plan.mean_cosine) else {}),
        **({} if plan.outlook is None else plan.outlook.lines()),
        **({"sampling": shares_said(plan.shares, plan.target_rank)} if plan.shares else {}),
    }
    return [f"{name:9} {said}" for name, said in table.items()]


def _mean_text(cosine: float | None) -> str:
    if cosine is None or cosine**2 < MOSTLY:
        return ""
    return mean_said("component 1 will be nearly", cosine)


def _data(plan: Plan) -> str:
    rows, columns = plan.shape
    return f"{plan.source}: {rows} x {columns} {plan.dtype}, kind {plan.kind}"


def _passes(plan: Plan) -> str:
    limit = f"at most {plan.max_steps + plan.other_passes} (max_steps = {plan.max_steps})"
    if plan.chooses:
        return (
            f"not known before the run: 1, 2, 4, ... components are tried, at most {DEFAULT_STEPS + plan.other_passes} "
            "passes each, before the run that answers; the figures here are for one component"
        )
    if plan.steps is None:
        return f"unknown before the run; {limit}"
    assert plan.outlook is not None
    sample = plan.outlook.source
    more = f", {plan.other_passes} of them for column means or left vectors" if plan.other_passes else ""
    if not plan.outlook.reached:
        return f"the tolerance {plan.tol:.0e} will probably not be reached ({sample}); {limit}"
    return f"about {plan.passes} ({sample}{more}); {limit}"


def _bytes(plan: Plan) -> str:
    whole = "" if plan.total_bytes is None else f", about {_gb(plan.total_bytes)} in total"
    return f"{_gb(plan.pass_bytes)} per pass{whole}"


def _seconds(plan: Plan) -> str:
    whole = "" if plan.seconds is None else f", about {time_text(plan.seconds)} in total"
    disk = "from the object store in every pass" if plan.network else "from disk in every pass"
    where = "the data fit into the free memory of this machine" if plan.cached else disk
    return (
        f"{time_text(plan.pass_seconds)} for the first pass, {time_text(plan.later_pass_seconds)} for each later one "
        f"({where}){whole}; measured here in {plan.measured_seconds:.1f} s"
    )


def _memory(plan: Plan) -> str:
    m = plan.memory
    limit = f"of {m.limit / MIB:.0f} MiB" if m.limit else "(no limit set)"
    return (
        f"predicted peak {m.predicted_peak / MIB:.0f} MiB {limit}: {m.base / MIB:.0f} for the processes, "
        f"{(m.state + m.held) / MIB:.0f} for the algorithm, {m.task / MIB:.0f} for each of "
        f"{m.threads * max(1, m.workers)} tasks"
    )


def _runs(plan: Plan) -> str:
    m = plan.memory
    where = f"{m.workers} processes x {m.threads} threads" if m.workers else f"{m.threads} threads of one process"
    return f"{where}; {plan.runs} {'task' if plan.runs == 1 else 'tasks'} per pass"


def _chunks(plan: Plan) -> str:
    if not plan.layout.reasons:
        return f"no change needed ({plan.layout.chunk_bytes / MIB:.3g} MiB each)"
    shape = f", chunks of {plan.layout.chunks[0]} x {plan.layout.chunks[1]}" if plan.layout.chunks else ""
    return f"{'; '.join(plan.layout.reasons)}. Better{shape}: `{plan.layout.command}`"


def _columns(plan: Plan) -> str:
    now, free = f"iteration_rank = {plan.iteration_rank}", plan.free_rank
    if plan.algorithm in FORMED:
        return f"{now}; the number of passes does not depend on it, because the matrix is formed"
    if free <= plan.iteration_rank:
        return f"{now}; more would take longer: arithmetic takes as long as reading, or memory is short"
    costs = "arithmetic takes no longer than reading" if plan.cached else "takes no extra time here"
    said = f"{now}; up to p = {free} {costs}"
    if plan.free_rank_steps is None or plan.free_rank_seconds is None:
        return said
    passes, seconds = plan.free_rank_steps + plan.other_passes, time_text(plan.free_rank_seconds)
    return f"{said}: iteration_rank = {free} would need about {passes} passes, {seconds} in total"


def _gb(n: int) -> str:
    return f"{n / 1e9:.3g} GB" if n >= 1e8 else f"{n / 1e6:.3g} MB"
