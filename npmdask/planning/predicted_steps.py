"""Predict the steps of a run before its first pass.

A few rows of the data are read (of chunks that cannot be read in part at most ``READ`` bytes; for half a second, or
for two from an object store or by a worker of a cluster), and the run is rehearsed on their spectrum. It decides
nothing: no bit of a result, nothing that binds a store. It is no pass and is not counted as one. The prediction goes
into the telemetry, once in the life of a store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from functools import partial
from threading import Thread
from typing import Any

import numpy as np

from npmdask.core.algorithms import GramKrylov, PowerMethod
from npmdask.core.algorithms.stopping import ResidualRule
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.executor import Executor
from npmdask.core.execution.memory import MemoryPlan
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import FIRST_STAGE, Problem, Request, default_rank
from npmdask.core.runs.results import FORESEEN
from npmdask.core.runs.session import Session
from npmdask.core.runs.stopping_rules import STAGE_STEPS, LowRankRule, ShareRule, next_columns, smallest_rank
from npmdask.core.storage.chunk_access import first_line
from npmdask.core.storage.source import Source, is_remote
from npmdask.planning.forecast import SPARE, TINY, Simulation, locked_values, play, predict_steps, thinned
from npmdask.planning.row_sample import Sample, SampleBudget, draw_sample, in_part, places_of, sample_of, why_too_small
from npmdask.tensors.power import TensorPower

SECONDS = 0.5
AWAY = 2.0  # of data that come from elsewhere: at half of it no further row of chunks is begun
READ = 16 * 2**20  # bytes of chunks, decoded: of one row of chunks that cannot be read in part, up to twice as many
PLACES = 8  # rows of chunks; where they cannot be read in part, a quarter of all of them, and one at least
SIDE = 256  # rows of the sample; four times p (and what is locked), if that is more, up to
LARGEST_SIDE = 512
MEMORY = 8 * 2**20  # of the sample
GRAM_FLOPS = 3e8
REHEARSAL_FLOPS = 1e9  # a tenth of a second or two

Log = Callable[..., None]


class Predictor(Observer):
    """Predict the steps of a run before its first pass.

    A run does not know of it: it is an entry of the table ``observers``. Private runs do not call the
    methods that this one needs, so no sample is drawn.
    """

    def on_ready(self, problem: Problem, session: Session) -> None:
        tell = partial(predicted, problem, session.memory, session.executor)
        log_prediction(tell, session.telemetry(), session.log)

    def on_search(self, problem: Problem, stage: Problem, session: Session, store: RunStore) -> None:
        tell = partial(search_prediction, problem, stage, session.memory, session.executor)
        log_prediction(tell, store.telemetry(), store.log)


def log_prediction(tell: Callable[[], dict[str, Any]], telemetry: list[dict[str, Any]], log: Log) -> None:
    """Log what ``tell`` says, or why it cannot; nothing if that has been done in the life of the store."""
    if any(line["event"] == FORESEEN for line in telemetry):
        return
    begin = time.perf_counter()
    try:
        told = tell()
    except TimeoutError:
        told = {"steps": None, "why": f"no sample came in {AWAY:g} seconds"}
    except Exception as error:  # nothing that a prediction stumbles over may end a run, which will say it itself
        told = {"steps": None, "why": f"no prediction could be made ({type(error).__name__}: {first_line(error)})"}
    log(FORESEEN, **told, seconds=round(time.perf_counter() - begin, 3))


def predicted(problem: Problem, plan: MemoryPlan, executor: Executor) -> dict[str, Any]:
    """Say how many steps ``problem`` will need, or why that is not known."""
    if isinstance(problem.algorithm, TensorPower):
        return _of_tensor(problem.algorithm)
    if why := _why_not(problem):
        return {"steps": None, "why": why}
    sample = sample_for(problem, plan, executor, max(SIDE, 4 * _columns(problem)))
    if sample is None or not np.isfinite(sample.spectrum).all():
        return {"steps": None, "why": "no sample could be drawn"}
    if why := why_too_small(sample, 4 * _columns(problem), f"{_columns(problem)} columns"):
        return {"steps": None, "why": why}
    values = with_locked(problem, sample.eigenvalues)
    found = predict_steps(problem, values, problem.algorithm.iteration_rank, flops=REHEARSAL_FLOPS)
    return {
        **attributes(found, "steps", "reached", "residual", "how"),
        **attributes(sample, "rows", "places"),
        "start": "random" if problem.start is not None else "its own",
        "spectrum": [float(f"{value:.4g}") for value in values[:LARGEST_SIDE]],
    }


def _of_tensor(algorithm: TensorPower) -> dict[str, Any]:
    if algorithm.iterations is None:
        return {"steps": None, "why": "a tensor is decomposed in as many products as it takes"}
    return {"steps": algorithm.target_rank * (algorithm.iterations + 1) + 1, "reached": True, "how": "counted"}


def _columns(problem: Problem) -> int:
    """Return the dimension of the space in which the run looks: columns of its block, and those that are locked."""
    return problem.algorithm.iteration_rank + len(locked_values(problem))


def with_locked(problem: Problem, sampled: np.ndarray) -> np.ndarray:
    """Eigenvalues of a sample, but those that are known because they are locked.

    As many of the sample's are left out, the largest: which they are is known by their number.
    """
    locked = locked_values(problem)
    return wanted_first(locked, sampled) if len(locked) else sampled


def wanted_first(found: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """Values that were ``found``, and the other sampled ones as far below the last of them as they are in the sample.

    A sample spreads eigenvalues apart: left as they are, they would open or close a gap behind those that were found.
    """
    last = sampled[len(found) - 1] if len(found) <= len(sampled) else 0.0
    scale = 0.0 if last == 0 else np.abs(found[-1] / last)
    return np.concatenate([found, sampled[len(found) :] * scale])


def _why_not(problem: Problem) -> str:
    """A reason not to predict anything, or nothing."""
    source = problem.source
    if problem.nodes is not None:
        return "the data lie with the nodes"
    if source.reader.layout == "matrix-free":
        return "a linear operator has no rows to draw a sample of"
    if problem.derived is not None and problem.derived.certified:
        return "the operator is the dilation of the data, of which no sample is drawn"
    if problem.derived is not None:
        return "the operator is made of moments, of which there is no sample"
    if source.reader.layout == "gram":
        return "the matrix is stored, so no step reads data"
    if isinstance(problem.algorithm, GramKrylov):
        return "one pass forms the matrix, whatever its spectrum"
    played = getattr(problem.algorithm, "can_be_played", False)
    if type(problem.rule) not in (ResidualRule, LowRankRule) or not played:
        return "it stops by more criteria than residuals"
    if 4 * _columns(problem) > LARGEST_SIDE:
        return f"{_columns(problem)} columns need a larger sample than is drawn for a prediction"
    return too_large(source.reader)


def too_large(reader: Any) -> str:
    """Why no sample can be drawn, or nothing."""
    size = _place_bytes(reader)
    return f"a row of chunks is {size / 2**20:.0f} MiB, too much to read for a prediction" if size > 2 * READ else ""


def _place_bytes(reader: Any) -> int:
    """Bytes that rows from one place take to read: all of it, unless chunks can be read in part."""
    return 1 if in_part(reader) else max(1, int(reader.nbytes / places_of(reader)))


def sample_for(problem: Problem, plan: MemoryPlan, executor: Executor, side: int) -> Sample | None:
    """At least ``side`` rows, if there are so many and time suffices, drawn where the run reads its data."""
    reader: Any = problem.source.reader
    allowed = SampleBudget(
        side=side,
        places=max(1, min(PLACES, READ // _place_bytes(reader), places_of(reader) // 4)),
        nbytes=MEMORY,
        flops=GRAM_FLOPS,
    )
    if executor.elsewhere:  # its workers see the data, and what they read need not travel
        far: Any = executor
        return far.anywhere(_draw_on_worker, *_sample_inputs(problem), AWAY / 2, allowed, seconds=AWAY)
    if is_remote(problem.source.path):
        return _run_in_thread(lambda: _drawn(problem, plan, AWAY / 2, allowed), AWAY)
    return _run_in_thread(lambda: _drawn(problem, plan, SECONDS, allowed), None)


def _run_in_thread(draw: Callable[[], Sample | None], seconds: float | None) -> Sample | None:
    """Call ``draw`` in a thread of its own, with which its buffers are given back.

    After ``seconds`` it is left behind (TimeoutError): it ends with the row of chunks that it waits for.
    """
    answer: Future[Sample | None] = Future()

    def work() -> None:
        try:
            answer.set_result(draw())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=work, daemon=True, name="npmdask-foresight").start()
    return answer.result(seconds)


def _drawn(problem: Problem, plan: MemoryPlan, seconds: float, allowed: SampleBudget) -> Sample | None:
    until = time.perf_counter() + seconds
    with np.errstate(all="ignore"):  # squares of huge entries: what the run says of them counts
        return draw_sample(problem, plan, lambda: time.perf_counter() > until, allowed)


def _draw_on_worker(source: Source, request: Request, seconds: float, allowed: SampleBudget) -> Sample | None:
    """The same by a worker of a cluster."""
    until = time.perf_counter() + seconds
    with np.errstate(all="ignore"):
        return sample_of(source, request, lambda: time.perf_counter() > until, allowed)


def _sample_inputs(problem: Problem) -> tuple[Source, Request]:
    """Return only the parts of a problem that a sample needs, to be sent."""
    source, asked = problem.source, problem.request.center or problem.request.scale
    known = source.statistics if asked else None
    return replace(source, truth=None, words=None, statistics=known), problem.request


# The prediction for a search for a share of the variance: its stages and the run that answers, one after the other.
#
# As a single run (:mod:`npmdask.planning.forecast`): algorithm, rule and columns of each, on the diagonal
# matrix of the sampled eigenvalues. The variance itself is no estimate: the search knows it before its first stage.

FLOPS = 2e9  # of a rehearsal: of more than one run


@dataclass(frozen=True, kw_only=True)
class SimulatedSearch:
    """Result of a simulated search: ``components`` that reach the share, ``steps`` of all stages and the final run."""

    components: int
    steps: int
    reached: bool


def search_prediction(problem: Problem, stage: Problem, plan: MemoryPlan, executor: Executor) -> dict[str, Any]:
    """Say what the search of ``problem`` will take, before its first ``stage``; or why that is not known."""
    if why := too_large(stage.source.reader):
        return {"steps": None, "why": why}
    sample = sample_for(stage, plan, executor, LARGEST_SIDE)
    if sample is None or not np.isfinite(sample.spectrum).all():
        return {"steps": None, "why": "no sample could be drawn"}
    assert isinstance(stage.rule, ShareRule)
    found = rehearse_search(problem, sample.eigenvalues, stage.rule.trace)
    if found is None:
        return {"steps": None, "why": f"a sample of {sample.rows} rows does not show how many components are needed"}
    if why := why_too_small(sample, 2 * found.components, f"{found.components} components"):
        return {"steps": None, "why": why}
    return asdict(found) | {"residual": None, "how": "rehearsed", "rows": sample.rows, "places": sample.places}


def rehearse_search(
    problem: Problem, eigenvalues: np.ndarray, trace: float, *, flops: float = FLOPS
) -> SimulatedSearch | None:
    """The search of ``problem`` on an operator of these eigenvalues, falling; None: too dear, or out of reach.

    ``trace``: of the operator, in the units of the eigenvalues.
    """
    sizes = np.abs(eigenvalues)
    share, most = float(problem.share or 0.0), min(problem.source.shape)
    expected = smallest_rank(sizes, share * trace)
    if expected is None:
        return None
    largest = max(float(sizes[0]), TINY)
    values, counts = thinned(sizes / largest, max(FIRST_STAGE, expected))
    rule = ShareRule(tol=1.0, max_steps=STAGE_STEPS, d=len(values), share=share, trace=trace / largest, squared=False)
    columns, steps = min(FIRST_STAGE, most, len(values)), 0
    basis: Block = np.zeros((len(values), 0))
    while True:
        algorithm = PowerMethod(target_rank=columns, iteration_rank=columns)
        state = algorithm.init(len(values), rng=generator(0, "rehearsal"), start=_start(counts, columns, basis))
        run = play(algorithm, state, values, rule, spare=rule, noise=np.zeros((len(values), 1)), flops=flops)
        if run is None:
            return None
        flops, steps, basis = run.flops, steps + len(run.views), _basis(run.state)
        rank = rule.rank(run.views[-1].ritz_values)
        if rank is not None:
            break
        if columns >= min(most, len(values)):
            return None
        columns = min(next_columns(run.views[-1].ritz_values, share * rule.trace), most, len(values))
    last = _answer(problem, values, counts, rank, basis, flops)
    if last is None:
        return None
    return SimulatedSearch(components=rank, steps=steps + len(last.views), reached=last.converged)


def _answer(
    problem: Problem, values: np.ndarray, counts: np.ndarray, rank: int, basis: Block, flops: float
) -> Simulation | None:
    """The run that answers, from where the last stage came to; as in every promise to a third of its tolerance."""
    columns = min(max(default_rank(rank, problem.d), basis.shape[1]), problem.d, len(values))
    final = make_problem(problem.source, replace(problem.request, target_rank=rank, iteration_rank=columns))
    algorithm, rule = final.algorithm, final.rule
    spare = replace(rule, tol=rule.tol / SPARE)  # type: ignore[type-var]
    state = algorithm.init(len(values), rng=generator(0, "rehearsal"), start=_start(counts, columns, basis))
    noise = np.zeros((len(values), 1))
    return play(algorithm, state, values, rule, spare=spare, noise=noise, flops=flops)  # type: ignore[arg-type]


def _start(counts: np.ndarray, columns: int, basis: Block) -> Block:
    """Return a start of what is known and random directions, each row scaled by the rows that it represents."""
    random = generator(0, "rehearsal", "start", columns).standard_normal((len(counts), columns))
    return np.concatenate([basis, random * np.sqrt(counts)[:, None]], axis=1)[:, :columns]


def _basis(state: Any) -> Block:
    arrays = {"locked_vectors": state.locked_vectors, "basis": state.basis, "ritz_vectors": state.ritz_vectors}
    return PowerMethod.start_block(arrays)
