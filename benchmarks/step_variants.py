"""The random planted problems of :mod:`benchmarks.step_cases` after deflation, from a warm start, and by a share.

``python -m benchmarks.step_variants [CASES]`` prints the figures of docs/explanation/planning.md.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import npmdask
from benchmarks.step_cases import Comparison, StepCase, played, shares, step_case
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.random import generator
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Locked, Start
from npmdask.core.runs.results import FORESEEN, SEARCHED
from npmdask.errors import RefusedError
from npmdask.planning.forecast import StepPrediction, locked_values, predict_steps
from npmdask.planning.predicted_steps import GRAM_FLOPS, LARGEST_SIDE, MEMORY, SIDE, with_locked
from npmdask.planning.row_sample import SampleBudget, draw_sample

FEW = 150  # rows: fewer than most of these problems have columns
SAMPLES = {"spectrum given": 0, "a run's own sample": SIDE, f"sample of {FEW} rows": FEW}


def deflated_within(number: int) -> StepCase | None:
    """Case ``number``, some of whose k leading pairs were found before: the gap is where it was planted."""
    case = step_case(number)
    j = int(generator(number, "deflation").integers(1, max(case.k, 2)))
    return None if j >= case.k else _deflated(case, j, case.k - j, case.p - j)


def deflated_behind(number: int) -> StepCase | None:
    """Case ``number``, before which 1 to 10 pairs were found: k further ones, where mostly no gap was planted."""
    case = step_case(number)
    return _deflated(case, int(generator(number, "deflation").integers(1, 11)), case.k, case.p)


def _deflated(case: StepCase, j: int, k: int, p: int) -> StepCase | None:
    """None if there are not so many pairs, or the run that was to find the first ``j`` did not converge."""
    problem = case.problem
    if j + p > min(problem.source.shape):
        return None
    base = make_problem(problem.source, replace(problem.request, target_rank=j, iteration_rank=j + 10))
    state, _, outcome = played(base)
    if outcome != "converged":
        return None
    locked = Locked(result=base.algorithm.finalize(state), identity="")
    asked = replace(problem.request, target_rank=k, iteration_rank=p)
    return replace(case, k=k, p=p, problem=make_problem(problem.source, asked, locked))


def warm(number: int) -> StepCase:
    """Case ``number``, begun where a run came to that was content with a hundred times its tolerance."""
    case = step_case(number)
    problem = case.problem
    coarse = replace(problem.request, tol=min(100 * case.tol, 0.1), seed=number + 1000)
    state, _, _ = played(make_problem(problem.source, coarse))
    start = Start(basis=problem.algorithm.finalize(state).vectors, identity="")
    return replace(case, problem=make_problem(problem.source, problem.request, start=start))


def compare_variant(case: StepCase, rows: int, measured: tuple[int, str]) -> Comparison | None:
    """Steps predicted from the spectrum (no ``rows``) or from a sample, and counted; None: a run would not predict."""
    values = _sampled(case, rows) if rows else case.eigenvalues
    if values is None:
        return None
    predicted = predict_steps(case.problem, with_locked(case.problem, values), case.p)
    return Comparison(case=case, predicted=predicted, measured=measured[0], outcome=measured[1])


def _sampled(case: StepCase, rows: int) -> np.ndarray | None:
    plan: Any = SimpleNamespace(limit=None, base=0)
    columns = 4 * (case.p + len(locked_values(case.problem)))
    if rows == SIDE and columns > LARGEST_SIDE:
        return None
    own = SampleBudget(side=max(SIDE, columns), nbytes=MEMORY, flops=GRAM_FLOPS)
    sample = draw_sample(case.problem, plan, lambda: False, own if rows == SIDE else SampleBudget(side=rows, flops=0))
    assert sample is not None
    return sample.eigenvalues


def search(number: int, folder: Path) -> tuple[Comparison, float] | None:
    """Case ``number`` as a search for a random share, a run as anybody's; and predicted over found components."""
    case = step_case(number)
    problem, share = case.problem, float(generator(number, "share").uniform(0.3, 0.95))
    if case.kind == "indefinite":
        return None
    data: Any = problem.source.reader.array[...]  # type: ignore[union-attr]
    store = folder / str(number)
    try:
        solution = npmdask.top_k(data, share, kind=case.kind, tol=case.tol, store=store, max_steps=400, seed=number)
    except RefusedError:
        return None
    lines = {line["event"]: line for line in RunStore(store).telemetry()}
    told, found = lines[FORESEEN], lines[SEARCHED]
    if told["steps"] is None:
        return None
    predicted = StepPrediction(steps=told["steps"], reached=told["reached"], residual=None, how=told["how"])
    taken = found["steps"] + solution.steps
    compared = Comparison(case=case, predicted=predicted, measured=taken, outcome=solution.outcome.name)
    return compared, told["components"] / found["rank"]


def report(title: str, found: list[Comparison]) -> None:
    """Print the figures and the cases that missed."""
    print(title, flush=True)
    for name, value in shares(found).items():
        print(f"    {name}:", value if not isinstance(value, list) or "ratio" in name else "; ".join(value) or "none")


def main(count: int = 200) -> None:
    """Print what became of the predictions of ``count`` cases."""
    kinds: dict[str, Callable[[int], StepCase | None]] = {
        "deflated, the gap behind them": deflated_within,
        "deflated, no gap planted": deflated_behind,
        "warm": warm,
    }
    for name, make in kinds.items():
        cases = [case for case in map(make, range(count)) if case is not None]
        measured = [played(case.problem)[1:] for case in cases]
        for title, rows in SAMPLES.items():
            pairs = zip(cases, measured, strict=True)
            found = [compare_variant(case, rows, taken) for case, taken in pairs]
            report(f"{name}: {title}", [one for one in found if one is not None])
    with tempfile.TemporaryDirectory() as folder:
        searches = [found for number in range(count) if (found := search(number, Path(folder))) is not None]
    report("share: a run's own sample", [compared for compared, _ in searches])
    ratios = np.array([ratio for _, ratio in searches])
    print("    components within a factor 1.5:", float(np.mean((ratios <= 1.5) & (ratios >= 1 / 1.5))))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
