"""Drive a problem to its end in a store, from wherever the store is, and return the answer."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core import features
from npmdask.core.algorithms import PowerOnDisk
from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.certificates.statements import with_assurance
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.components import components_of_run, keep_statistics
from npmdask.core.runs.left_vectors import left_is_whole
from npmdask.core.runs.loop import Facts, power_loop
from npmdask.core.runs.observers import Observer, Observers
from npmdask.core.runs.plain_release import PlainRelease
from npmdask.core.runs.plain_route import PLAIN
from npmdask.core.runs.problem import Problem
from npmdask.core.runs.release import Release
from npmdask.core.runs.resources import Resources, needs_of
from npmdask.core.runs.restore import bind
from npmdask.core.runs.results import prediction_facts
from npmdask.core.runs.session import Session
from npmdask.core.runs.solution import Analysed, Solution, TemporaryStore
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
    if store is None:
        with TemporaryStore() as kept, RunStore(kept.folder / "run") as held:  # which only the observer watches
            found = drive(problem, held, resources, observer, followed=observer is not None)
        return replace(found, temporary_store=kept) if problem.source.traits.left else found  # for left vectors
    with RunStore(store, private=problem.private is not None) as held:
        return drive(problem, held, resources, observer)


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


def solve_in(problem: Problem, session: Session) -> Solution:
    """Run one problem in the store of a session, from wherever the store is, and return the answer.

    Raises
    ------
    RefusedError
        The store belongs to other data, parameters or version; or memory does not suffice.
    BadInputError
        The data turn out to be missing, corrupt, not finite or not symmetric.
    CommitError
        A checkpoint cannot be written; the last one is intact.
    """
    held = session.store
    with session:
        session.warnings += [problem.start.warning] if problem.start and problem.start.warning else []
        session.warnings += bind(problem, held, session.resources)
        release: Any = (problem.route or PLAIN).release(problem, session)
        with closing(release):
            known = held.read_part("result")
            found = known or _run_steps(problem, release, session)
            if "left_rotation" in found[0] and not left_is_whole(held.path, found[0]):
                _rebuild_left(problem, release, session, *found)
            release.settle()
        if problem.recipe is None:
            keep_statistics(held, problem.spec(), problem.source)
        if problem.private is not None:  # a release may answer more than it was asked for at first
            found = problem.private.answer_for(problem, *found)
        solution = _solution(problem, session, release, *found)
        facts: dict[str, Any] = {"outcome": solution.outcome.name, "seconds": solution.seconds}
        if known is None:
            processes = [asdict(process) for process in solution.peak_rss_by_process]
            facts |= {} if solution.device is None else {"device": asdict(solution.device)}
            session.log("end", **facts, peak_rss=solution.peak_rss_bytes, processes=processes)
        else:  # what a process that only reads the answer takes says nothing of the run
            session.log("answered", **facts)
        session.observer.on_end(solution)
    return solution


def _run_steps(problem: Problem, release: Release, session: Session) -> Any:
    """The answer, after all steps that are not done yet."""
    session.plan(needs_of(problem))  # before a state that may be larger than what is allowed
    if isinstance(problem.algorithm, PowerOnDisk):
        from npmdask.core.runs.disk_release import require_disk  # which most runs do not need

        require_disk(problem, session)
    power_loop(_facts_of(problem), release, session)
    session.stop()
    return session.store.read_part("result")


def _facts_of(problem: Problem) -> Facts:
    """Everything that the loop knows of a problem."""
    return Facts(
        algorithm=problem.algorithm,
        rule=problem.rule,
        d=problem.d,
        kind=problem.kind,
        seed=problem.request.seed,
        stream=problem.start_stream,
        start=problem.start.basis if problem.start else None,
        locked=problem.locked.result if problem.locked else None,
    )


def _rebuild_left(
    problem: Problem, release: PlainRelease, session: Session, arrays: dict[str, np.ndarray], meta: dict[str, Any]
) -> None:
    session.plan(needs_of(problem))
    session.start(problem.source.path)
    release.rebuild_left(arrays, len(meta["history"]))
    session.stop()
    session.answer(arrays, meta)  # it is there: only carried on to an object store


def _solution(
    problem: Problem, session: Session, release: Release, arrays: dict[str, np.ndarray], meta: dict[str, Any]
) -> Solution:
    once = problem.source.unchecked if meta["total_data_passes"] == 1 else ()
    solution = Solution(
        basis=arrays["basis"],
        values=arrays["values"],
        residual_norms=arrays["residual_norms"],
        outcome=Outcome(**meta["outcome"]),
        steps=len(meta["history"]),
        data_passes=session.passes,
        total_data_passes=meta["total_data_passes"],
        bytes_read=session.bytes_read,
        dataset_bytes=problem.source.reader.nbytes,
        seconds=session.seconds,
        peak_rss_bytes=session.peak,
        memory_limit_bytes=session.resources.memory,
        max_sin_theta=release.angle(arrays["basis"]),
        store=session.store.place,
        fingerprint=problem.source.fingerprint,
        warnings=(*session.warnings, *meta.get("notes", ()), *once),
        device=session.device,
        network=session.network,
        peak_rss_by_process=session.peak_by_process,
        target_rank=len(arrays["values"]),
        explained_share=meta.get("explained_share"),
        facts=meta.get("facts", {}),
        assurance=with_assurance(problem.kind, arrays, meta)["assurance"],
        certificate=meta.get("certificate"),
        prediction=prediction_facts(session.telemetry(), len(meta["history"])),
        analysed=_describe_data(problem, session, arrays["basis"]),
    )
    return replace(solution, **release.shown(solution, arrays, meta))


def _describe_data(problem: Problem, session: Session, basis: Block) -> Analysed:
    """Describe the data as far as a reader without them needs; of a release only what everybody knows."""
    source, public, request, found = problem.source, problem.recipe is None, problem.request, None
    if not source.traits.without_rows and len(basis) == source.shape[1]:
        found = components_of_run(session.store, problem.spec(), basis, source, request.aspects)
    weight = request.seen(source).row_weight
    return Analysed(
        kind=source.kind,
        rows=source.shape[0] if public else None,
        row_weight=None if weight is None else float(weight.sum()),
        centred=request.center,
        components=found,
        labels=source.labels if public else None,
        missing=found.missing if public and found is not None else None,
    )
