"""Find out whether a GPU pays: it and the processor form the sums of a few parts of the data, a second each.

Both are timed through the operator's own ``partial``, with as many threads as the run will have. Nothing is written,
and no bit of a result follows from it but by ``device = "auto"``, which is settled once for a run.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import psutil

from npmdask.core.algorithms import GramKrylov
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.execution.memory import MemoryPlan, usable_cores
from npmdask.core.execution.reduction import runs_of
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.units import time_text
from npmdask.core.operators import Operator
from npmdask.core.runs.problem import Problem
from npmdask.core.runs.resources import Resources, device_for, memory_for, needs_of
from npmdask.gpu.devices import Device
from npmdask.gpu.on_device import STARTING, SUMS, USUAL_PASSES, OnDevice, on_device

SECONDS = 1.0  # for each of the two
LEAST_PART = 2 * 2**20  # bytes that are read at first by each thread; then three times as many, and so on
PINNING = 0.4 / 2**30  # seconds a byte of host memory that copies are made from
USUAL = USUAL_PASSES  # passes of block Krylov, where no sample says how many
OF_MATRIX = 2  # passes where the matrix is formed
PAIRS = 8e-11  # seconds a column cubed: eigenpairs of the formed matrix by one core (on a GPU a fortieth of that)


@dataclass(frozen=True, kw_only=True)
class PassRate:
    """Seconds a pass takes: the first one, with the eigenpairs of what it forms, and each later one."""

    first: float
    later: float

    def whole(self, passes: int) -> float:
        """Return the seconds of ``passes`` passes."""
        return self.first + (passes - 1) * self.later


@dataclass(frozen=True, kw_only=True)
class DeviceChoice:
    """Times of a run on a device and on the processor, to choose between them.

    Parameters
    ----------
    name : of the device.
    device, processor : of its passes.
    passes : how many there are.
    starting : seconds until the device is ready in a new process: libraries, context, pinned memory.
    asked : "cuda" or "auto".
    """

    name: str
    device: PassRate
    processor: PassRate
    passes: int
    starting: float
    asked: str

    @property
    def seconds(self) -> float:
        """Return the seconds of the run on the device."""
        return self.starting + self.device.whole(self.passes)

    @property
    def pays(self) -> bool:
        """Say whether the run ends sooner on the device."""
        return self.seconds < self.processor.whole(self.passes)

    @property
    def used(self) -> bool:
        """Say whether the run uses the device."""
        return self.pays or self.asked == "cuda"

    def __str__(self) -> str:
        by, here = time_text(self.seconds), time_text(self.processor.whole(self.passes))
        passes = f"{self.passes} pass{'es' * (self.passes != 1)}"
        start = time_text(self.starting)
        said = f"{self.name}: {passes} in about {by}, {start} of it to start; by the processor about {here}"
        if self.pays:
            return f"{said}. {ON_CPU}"
        remedy = 'set device = "cpu"' if self.asked == "cuda" else 'the processor is taken (device = "cuda" insists)'
        return f"{said}, so that it does not pay: {remedy}"


ON_CPU = "Left singular vectors and QR stay on the processor"


def choose_device(
    problem: Problem, resources: Resources, memory: MemoryPlan, passes: int | None = None
) -> DeviceChoice | None:
    """Measure both; None where the run has no device, or one of other processes, which this one cannot measure.

    Parameters
    ----------
    problem, resources, memory : of the run.
    passes : that are expected; by default as many as there usually are.

    Raises
    ------
    RefusedError
        There is no GPU, or too little memory of it.
    """
    needs, forms = needs_of(problem), isinstance(problem.algorithm, GramKrylov)
    device, need = device_for(needs, resources), needs[0 if forms else -1]
    moved = on_device(need.operator, device)
    if device is None or resources.workers or resources.cluster or not isinstance(moved, OnDevice):
        return None
    threads = min(memory.threads, moved.threads_that_fit(memory.threads, need.p + need.locked))
    each, beside = moved.device_bytes(need.p + need.locked)
    device.begin(each, beside, threads)
    try:
        with single_threaded_blas():
            by_device = _rate_on(device, moved, need.p, threads)
            processor = _rate(need.operator, need.p, resources.threads or usable_cores())
    finally:
        device.end()
    return DeviceChoice(
        name=device.backend.name,
        device=by_device,
        processor=PassRate(first=processor + (PAIRS * problem.d**3 if forms else 0.0), later=processor),
        passes=passes or (OF_MATRIX if forms else USUAL),
        starting=STARTING + PINNING * threads * moved.slots * moved.slot_bytes,
        asked=resources.device,
    )


def choice_said(choice: DeviceChoice | None, problem: Problem, resources: Resources) -> str:
    """Describe for a plan the device, and the parts that do not run on it; empty where none is asked for."""
    if choice is not None or resources.device == "cpu":
        return "" if choice is None else str(choice)
    if type(needs_of(problem)[0].operator) not in SUMS:
        return f"the processor: the sums of {type(needs_of(problem)[0].operator).__name__} are not formed on a GPU"
    if device_for(needs_of(problem), resources) is not None:
        return f"of each worker its own, which is not measured here. {ON_CPU}"
    return "the processor: there is no GPU, or the run would be done before one has started"


def settle_device(problem: Problem, held: RunStore, resources: Resources) -> Resources:
    """The same with ``device = "auto"`` settled, for a run that has not begun; one that has keeps its way."""
    if resources.device != "auto" or held.read_spec() is not None:
        return resources
    choice = choose_device(problem, resources, memory_for(needs_of(problem), resources))
    return resources if choice is None or choice.used else replace(resources, device="cpu", device_memory=None)


def _rate_on(device: Device, moved: OnDevice, p: int, threads: int) -> PassRate:
    first = _rate(moved, p, threads)
    if moved.staying_bytes > device.backend.room:
        return PassRate(first=first, later=first)
    return PassRate(first=first, later=_rate(replace(moved, token="measurement"), p, threads))


def _rate(operator: Operator, p: int, threads: int) -> float:
    """Seconds of a pass: of rounds in which each thread forms the sums of a part, of twice two sizes.

    What is read from a disk is read before the clock starts, if it will stay in the page cache, and so does not count.
    """
    block = generator(0, "measurement").standard_normal((operator.block_rows, p))
    cached = operator.pass_bytes < psutil.virtual_memory().available
    runs, until, size = runs_of(operator), time.perf_counter() + SECONDS, LEAST_PART
    rounds = list[tuple[int, float]]()
    with ThreadPoolExecutor(threads) as pool:
        while True:
            parts = _parts(operator, min(threads, len(runs)), size)
            last = len(parts[0]) >= len(runs[0])
            fresh, nbytes = _round(operator, block, pool, parts)
            again = _round(operator, block, pool, parts)[0] if cached else fresh
            rounds.append((nbytes, again))
            now = time.perf_counter()
            if last or (len(rounds) > 1 and now + 3 * (fresh + again) > until):
                break
            size *= 3
    (less, short), (more, long) = rounds[-2:] if len(rounds) > 1 else [(0, 0.0), *rounds]
    byte = max((long - short) / (more - less), 0.02 * long / more) if more > less else long / more
    fixed = max(long - byte * more, 0.0)
    return byte * operator.pass_bytes + fixed * -(-len(runs) // threads)


def _parts(operator: Operator, count: int, size: int) -> list[range]:
    """So many parts of about ``size`` bytes, one in each of as many equal stretches of the data."""
    stretch = operator.units // count
    units = max(1, min(stretch, operator.units * size // max(operator.pass_bytes, 1)))
    return [range(i * stretch, i * stretch + units) for i in range(count)]


def _round(operator: Operator, block: Any, pool: ThreadPoolExecutor, parts: list[range]) -> tuple[float, int]:
    begin, nbytes = time.perf_counter(), operator.pass_bytes * sum(map(len, parts)) // operator.units
    for _ in pool.map(lambda part: operator.partial(part, block).record, parts):
        pass
    return time.perf_counter() - begin, nbytes
