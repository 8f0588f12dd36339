"""What a search for a share of the variance is foretold: its stages and the run that answers, one after the other.

As a single run (:mod:`npmdask.planning.simulated_convergence`): algorithm, rule and columns of each, on the diagonal matrix of the sampled
eigenvalues. The variance itself is no estimate: the search knows it before its first stage.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from npmdask.algorithms import PowerMethod
from npmdask.execution.executor import Executor
from npmdask.execution.memory_plan import MemoryPlan
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block
from npmdask.planning.predicted_steps import LARGEST_SIDE, Log, sample_for, tell_once, too_large
from npmdask.planning.row_sample import why_too_small
from npmdask.planning.simulated_convergence import SPARE, TINY, Played, play, thinned
from npmdask.runs.build import default_rank, make_problem
from npmdask.runs.explained_variance import STAGE_STEPS, ShareRule, next_columns, smallest_rank
from npmdask.runs.problem import FIRST_STAGE, Problem
from npmdask.runs.warm_start import turned

FLOPS = 2e9  # of a rehearsal: of more than one run


@dataclass(frozen=True, kw_only=True)
class SearchRehearsal:
    """How many ``components`` reach the share, and ``steps`` of all stages and of the run that answers."""

    components: int
    steps: int
    reached: bool


def foresee_search(
    problem: Problem, stage: Problem, plan: MemoryPlan, executor: Executor, telemetry: list[dict[str, Any]], log: Log
) -> None:
    """Log what the search of ``problem`` will take, before its first ``stage``; or why nobody knows."""
    tell_once(lambda: _search_prediction(problem, stage, plan, executor), telemetry, log)


def _search_prediction(problem: Problem, stage: Problem, plan: MemoryPlan, executor: Executor) -> dict[str, Any]:
    why = too_large(stage.source.reader)
    if why:
        return {"steps": None, "why": why}
    sample = sample_for(stage, plan, executor, LARGEST_SIDE)
    if sample is None or not np.isfinite(sample.spectrum).all():
        return {"steps": None, "why": "no sample could be drawn"}
    assert isinstance(stage.rule, ShareRule)
    found = rehearse_search(problem, sample.eigenvalues, stage.rule.trace)
    if found is None:
        return {"steps": None, "why": f"a sample of {sample.rows} rows does not show how many components are needed"}
    why = why_too_small(sample, 2 * found.components, f"{found.components} components")
    if why:
        return {"steps": None, "why": why}
    return asdict(found) | {"residual": None, "how": "rehearsed", "rows": sample.rows, "places": sample.places}


def rehearse_search(
    problem: Problem, eigenvalues: np.ndarray, trace: float, *, flops: float = FLOPS
) -> SearchRehearsal | None:
    """The search of ``problem`` on an operator of these eigenvalues, falling; None: too dear, or out of reach.

    ``trace``: of the operator, in the units of the eigenvalues.
    """
    sizes = np.abs(eigenvalues)
    share, most = problem.share or 0.0, min(problem.source.shape)
    expected = smallest_rank(sizes, share * trace)
    if expected is None:
        return None
    largest = max(float(sizes[0]), TINY)
    values, counts = thinned(sizes / largest, max(FIRST_STAGE, expected))
    rule = ShareRule(tol=1.0, max_steps=STAGE_STEPS, d=len(values), share=share, trace=trace / largest, squared=False)
    columns, steps = min(FIRST_STAGE, most, len(values)), 0
    basis: Block = np.zeros((len(values), 0))
    while True:
        run = _stage(values, counts, columns, basis, rule, flops)
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
    return SearchRehearsal(components=rank, steps=steps + len(last.views), reached=last.converged)


def _stage(
    values: np.ndarray, counts: np.ndarray, columns: int, basis: Block, rule: ShareRule, flops: float
) -> Played | None:
    algorithm = PowerMethod(target_rank=columns, iteration_rank=columns)
    state = algorithm.init(len(values), rng=generator(0, "rehearsal"), start=_start(counts, columns, basis))
    return play(algorithm, state, values, rule, spare=rule, noise=np.zeros((len(values), 1)), flops=flops)


def _answer(
    problem: Problem, values: np.ndarray, counts: np.ndarray, rank: int, basis: Block, flops: float
) -> Played | None:
    """The run that answers, from where the last stage came to; as in every promise to a third of its tolerance."""
    columns = min(max(default_rank(rank, problem.d), basis.shape[1]), problem.d, len(values))
    final = make_problem(problem.source, replace(problem.request, target_rank=rank, iteration_rank=columns))
    algorithm, rule = final.algorithm, final.rule
    spare = replace(rule, tol=rule.tol / SPARE)  # type: ignore[type-var]
    state = algorithm.init(len(values), rng=generator(0, "rehearsal"), start=_start(counts, columns, basis))
    noise = np.zeros((len(values), 1))
    return play(algorithm, state, values, rule, spare=spare, noise=noise, flops=flops)  # type: ignore[arg-type]


def _start(counts: np.ndarray, columns: int, basis: Block) -> Block:
    """What is known, and random directions, each row with the weight of those that it stands for."""
    random = generator(0, "rehearsal", "start", columns).standard_normal((len(counts), columns))
    return np.concatenate([basis, random * np.sqrt(counts)[:, None]], axis=1)[:, :columns]


def _basis(state: Any) -> Block:
    arrays = {"locked_vectors": state.locked_vectors, "basis": state.basis, "ritz_vectors": state.ritz_vectors}
    return turned(arrays, PowerMethod.name)
