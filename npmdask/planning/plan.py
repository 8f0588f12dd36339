"""What a run will do and need, said before it starts: facts put together, and the choice of iteration_rank = "auto".

``make_plan`` is pure. ``plan_run`` measures for it, ``resolve_rank`` chooses p once: what a store's run.json
holds is kept, whatever a later measurement says, because p decides the bits of the result.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.execution.executor import single_threaded_blas
from npmdask.execution.memory_plan import MemoryPlan, largest_rank
from npmdask.execution.process_memory import tree_rss
from npmdask.execution.reduction import runs_of
from npmdask.numerics.spectra import Spectrum
from npmdask.planning.forecast import Outlook, look_ahead, predict_steps
from npmdask.planning.row_sample import sample_said
from npmdask.planning.throughput import MOST_COLUMNS, Measurement, measure
from npmdask.runs.build import default_rank, make_problem
from npmdask.runs.problem import Problem, Request
from npmdask.runs.session import memory_for, needs_of
from npmdask.runs.solution import Resources
from npmdask.storage.chunk_advice import LayoutAdvice, Reading, advise, how_read
from npmdask.storage.source import Source


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run that has not started. ``steps`` and ``outlook`` are None where there is no spectrum to tell them from.

    ``passes`` counts everything that reads the data: ``other_passes`` are the survey of the columns and the left
    singular vectors. Bytes are of the decoded data. ``free_rank``: up to there, columns cost no time here.
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
    reading: Reading
    layout: LayoutAdvice
    free_rank: int
    free_rank_steps: int | None
    free_rank_seconds: float | None
    outlook: Outlook | None

    @property
    def passes(self) -> int | None:
        return None if self.steps is None else self.steps + self.other_passes

    @property
    def total_bytes(self) -> int | None:
        return None if self.passes is None else self.passes * self.pass_bytes

    def facts(self) -> dict[str, Any]:
        """Everything as plain numbers and strings, for scripts."""
        memory = asdict(self.memory) | {"predicted_peak": self.memory.predicted_peak}
        more = {"passes": self.passes, "total_bytes": self.total_bytes, "memory": memory}
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
    base = tree_rss()
    memory = memory_for(needs_of(problem), resources, base)
    wide = widest(problem, memory, base)
    measured = measure(problem, memory, wide)
    with single_threaded_blas():  # small matrices
        return make_plan(problem, memory, measured, wide, spectrum)


def make_plan(
    problem: Problem, memory: MemoryPlan, measured: Measurement, wide: int, spectrum: Spectrum | None = None
) -> Plan:
    """Put the facts together. ``wide``: the most columns that fit (see :func:`widest`)."""
    source, algorithm, operator = problem.source, problem.algorithm, _operator(problem)
    values = _eigenvalues(problem, measured, spectrum)
    other = int(problem.needs_moments) + (source.kind == "matrix")
    free = max(algorithm.iteration_rank, min(measured.free_columns, wide))
    nbytes = operator.pass_bytes

    def seconds(steps: int | None, p: int) -> float | None:
        return _all_seconds(problem, measured, steps, other, p)

    outlook = None
    if values is not None:
        said = spectrum.said if spectrum else sample_said(measured.sample) if measured.sample else ""
        known = spectrum.known if spectrum else len(values)
        outlook = look_ahead(problem, values, said, known=known, wide=wide, seconds=seconds)
    steps = None if outlook is None else outlook.steps
    more = None if values is None else predict_steps(problem, values, free).steps
    return Plan(
        source=source.path,
        kind=source.kind,
        shape=source.shape,
        dtype=str(source.reader.dtype),
        target_rank=algorithm.target_rank,
        iteration_rank=algorithm.iteration_rank,
        tol=problem.rule.tol,
        max_steps=problem.rule.max_steps,
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
        layout=advise(source),
        free_rank=free,
        free_rank_steps=more,
        free_rank_seconds=seconds(more, free),
        outlook=outlook,
    )


def _eigenvalues(problem: Problem, measured: Measurement, spectrum: Spectrum | None) -> np.ndarray | None:
    """Of the operator, without those that are found already: given, guessed, or of the sample."""
    if spectrum is not None:
        return spectrum.eigenvalues(problem.source.kind)[_locked(problem) :]
    return None if measured.sample is None else measured.sample.eigenvalues[_locked(problem) :]


def _all_seconds(problem: Problem, measured: Measurement, steps: int | None, other: int, p: int) -> float | None:
    """Of a whole run with p columns: the first pass as the chunks were found, the others as they will be.

    With float32 data the last steps (as many as it takes from 10 tol to tol) are in float64, and so are all of a
    run that gets stuck. What a commit costs is not known here: nothing is written. Fewer columns than were measured are
    a guess along a line, which may not end below zero.
    """
    if steps is None:
        return None
    now = problem.algorithm.iteration_rank
    fine = steps if steps >= problem.rule.max_steps else min(steps, 2 + steps // 6) + other
    first = measured.late + measured.column * (p - now)
    coarse = max(0, steps + other - 1 - fine)
    passes = first + coarse * measured.later(p - now) + fine * measured.later(p - now, fine=True)
    return max(0.0, passes) * _operator(problem).pass_bytes + steps * measured.step_seconds * p / now


def resolve_rank(request: Request, source: Source, resources: Resources, store: str | Path | None) -> Request:
    """``iteration_rank = "auto"`` as a number; any other request as it is.

    A store that has a run keeps its p. A new run gets as many columns as cost no time: the arithmetic takes as
    long as the reading, on this machine and store, now. Never fewer than the default, at most 128, and no more
    than the memory limit allows. More columns widen the gap sigma_k - sigma_{p+1} that decides the number of
    passes (Balcan, Du, Wang and Yu 2016, Theorem 2.2, with q near p).
    """
    if request.iteration_rank != "auto" or request.privacy is not None or source.kind == "tensor":
        return request  # of a private run nothing is measured: make_problem says why "auto" is refused
    if isinstance(request.target_rank, float):
        return replace(request, iteration_rank=None)  # a share: the search decides
    held = _held_rank(store)
    if held is not None:
        return replace(request, iteration_rank=held if held >= request.target_rank else None)
    problem = make_problem(source, replace(request, iteration_rank=None))
    base = tree_rss()
    memory = memory_for(needs_of(problem), resources, base)
    measured = measure(problem, memory, widest(problem, memory, base))
    chosen = min(measured.free_columns, widest(problem, memory, tree_rss()))  # what is held now, after measuring
    return replace(request, iteration_rank=max(chosen, default_rank(int(request.target_rank), source.shape[1])))


def _held_rank(store: str | Path | None) -> int | None:
    """p of the run in ``store``, if there is one."""
    spec = RunStore(store).read_spec() if store is not None else None
    return None if spec is None else int(spec["algorithm"]["iteration_rank"])
