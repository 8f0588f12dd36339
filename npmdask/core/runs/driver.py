"""Drive a problem to its end in a store, with what features add to a run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from npmdask.core import features
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.loop import solve_in
from npmdask.core.runs.observers import Observer, Observers
from npmdask.core.runs.problem import Problem
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.session import Session
from npmdask.core.runs.solution import Solution, TemporaryStore
from npmdask.errors import BadInputError


def solve(
    problem: Problem, store: str | Path | None, resources: Resources, observer: Observer | None = None
) -> Solution:
    """Run a problem to its end in ``store``; if None in a temporary folder, which is kept of a matrix as long as the
    solution is used: ``left_basis`` reads it.
    """
    if store is None and problem.private is not None:
        raise BadInputError(
            "a private run needs a store: the budget that it spends is gone for good, and only the store can resume it "
            "after a crash"
        )
    if store is None and problem.source.kind == "matrix":
        kept = TemporaryStore()  # the left singular vectors may be asked for
        return replace(_solve_in(kept.folder / "run", problem, resources, observer), temporary_store=kept)
    if store is None:
        with tempfile.TemporaryDirectory(prefix="npmdask-") as folder:
            return _solve_in(Path(folder) / "run", problem, resources, observer)
    with RunStore(store, private=problem.private is not None) as held:
        return drive(problem, held, resources, observer)


def _solve_in(folder: Path, problem: Problem, resources: Resources, observer: Observer | None) -> Solution:
    """Run a problem in a temporary folder, which only the observer watches."""
    with RunStore(folder) as held:
        return drive(problem, held, resources, observer, followed=observer is not None)


def drive(
    problem: Problem, held: RunStore, resources: Resources, observer: Observer | None, *, followed: bool = True
) -> Solution:
    """Run a problem to its end in a store that is held.

    Parameters
    ----------
    followed : a person may ask how far it is, by an observer or in the store: then a feature observes, too.
    """
    resources.require_possible()
    settle = features.found("choices", 'device = "auto"') if resources.device == "auto" else None
    resources = resources if settle is None else settle(problem, held, resources)
    told = with_features(observer) if followed else observer or Observer()
    session = Session(held, resources, told, problem.disclosure)
    presenter = None
    if problem.request.presentation is not None:
        presenter = features.required("presenters", "the [report] table")(problem, held)
    found = 'target_rank = "auto"' if problem.chooses else "a share of the variance"
    solve_it = features.required("searches", found) if problem.chooses or problem.searches else solve_in
    solution: Solution = solve_it(problem, session)
    return solution if presenter is None else presenter.present(held, solution)


def with_features(observer: Observer | None) -> Observer:
    """Return the observer of a run that a person may follow, after that of a feature."""
    first = features.found("observers", "a followed run")
    return Observers(*([first()] if first else []), observer or Observer())
