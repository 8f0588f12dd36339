"""The loop over passes: query -> one pass -> release -> update -> commit -> show.

Figure 1 of Hardt and Price (2014), for every algorithm, kind of data and kind of release. It shows a step only after
its commit, so that nothing outside (progress, plots, Prefect, a crash) can see what was not remembered; and it holds
no data, but a release that is asked for products (:mod:`npmdask.privacy.release`).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from npmdask.core.algorithms import Algorithm, Result, state_fields
from npmdask.core.algorithms.stopping import Outcome, StepView, StoppingRule, remembered, view_of, views_of
from npmdask.core.certificates.statements import with_assurance
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.components import components_of_run, keep_statistics
from npmdask.core.runs.disk_release import require_disk
from npmdask.core.runs.left_vectors import left_is_whole
from npmdask.core.runs.plain_release import PlainRelease
from npmdask.core.runs.plain_route import PLAIN
from npmdask.core.runs.problem import Problem
from npmdask.core.runs.release import Release, Released
from npmdask.core.runs.restore import bind
from npmdask.core.runs.results import expected_steps, in_units, prediction_facts
from npmdask.core.runs.session import Session, needs_of
from npmdask.core.runs.solution import Analysed, Solution, Step


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the loop knows of the run: public parameters, and blocks of finished runs.

    Parameters
    ----------
    algorithm, rule : what is done in each step, and when that is enough.
    d : rows of the blocks.
    kind : of the data, for the units of their values.
    seed, stream : of the random start.
    start, locked : where an earlier run came to, and what is found already.
    """

    algorithm: Algorithm[Any]
    rule: StoppingRule
    d: int
    kind: str
    seed: int
    stream: tuple[str, ...]
    start: Block | None
    locked: Result | None


def _facts_of(problem: Problem) -> Facts:
    """Those of a problem."""
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


def power_loop(facts: Facts, release: Release, session: Session) -> None:
    """Go on until the stopping rule says why not, and commit the answer.

    Parameters
    ----------
    facts : the question.
    release : is asked for products of the data.
    session : commits and tells.
    """
    state, history = first_state(replace(facts, algorithm=session.here(facts.algorithm)), session)
    views = views_of(history)
    outcome = facts.rule(views)
    release.open(history)
    algorithm = session.here(facts.algorithm)  # again: a device may turn out to be missing
    session.observer.on_begin(len(history), *expected_of(facts, session))
    while outcome is None:
        query = algorithm.query(state)
        released = release.product(query, state.step + 1)
        with session.memory_of_device():
            state, info = algorithm.update(state, released.product)
        release.check(state.step, info.asymmetry)
        views.append(release.judged(view_of(state.step, info), views, state))
        outcome = facts.rule(views)
        history.append(line_of(views[-1], released, facts.rule, release.angle(getattr(state, "ritz_vectors", None))))
        arrays, scalars = state_fields(state)
        session.commit(state.step, arrays, {"state": scalars, "history": history})
        session.observer.on_step(step_of(history[-1], facts.kind, released.seconds))
    answer = release.answer(state, algorithm.finalize(state), views[-1], outcome, history)
    session.answer(answer.arrays, answer.meta)


def first_state(facts: Facts, session: Session) -> tuple[Any, list[dict[str, Any]]]:
    """The state after the last commit and its history, or the data-independent start (Figure 1, line 1)."""
    last = session.store.last_step()
    if last is None:
        rng = generator(facts.seed, *facts.stream)
        return facts.algorithm.init(facts.d, rng=rng, locked=facts.locked, start=facts.start), []
    arrays, meta = last
    return facts.algorithm.load(arrays, meta["state"]), meta["history"]


def expected_of(facts: Facts, session: Session) -> tuple[int | None, str]:
    """How many passes the run is expected to take in all, None where nothing was predicted; and what one is called."""
    if not facts.rule.tol:  # the number of steps was fixed in advance
        return facts.rule.max_steps, "pass" if session.disclosure.times else "release"
    steps = expected_steps(session.telemetry(), usual=getattr(facts.algorithm, "usual_steps", None))
    left = facts.kind == "matrix"  # one more pass makes the left singular vectors
    return None if steps is None else min(steps, facts.rule.max_steps) + left, "pass"


def line_of(view: StepView, released: Released, rule: StoppingRule, angle: float | None) -> dict[str, Any]:
    """Return the line of a step in the history of the run."""
    return {
        **released.said,
        **remembered(view),
        "worst_residual": float(rule.relative(view).max()),
        "max_sin_theta": angle,
        "bytes_read": released.bytes_read,
        "chunks": released.chunks,
    }


def step_of(line: dict[str, Any], kind: str, seconds: float) -> Step:
    """A line of the history as observers see it: values in the units of the question."""
    return Step(
        number=line["step"],
        values=in_units(kind, np.array(line["ritz_values"])).tolist(),
        residual_norms=line["residual_norms"],
        worst_residual=line["worst_residual"],
        max_sin_theta=line["max_sin_theta"],
        precision=line["precision"],
        bytes_read=line["bytes_read"],
        chunks=line["chunks"],
        seconds=seconds,
    )


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
            found = known or _answered(problem, release, session)
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


def _answered(problem: Problem, release: Release, session: Session) -> Any:
    """The answer, after all steps that are not done yet."""
    session.plan(needs_of(problem))  # before a state that may be larger than what is allowed
    require_disk(problem, session)
    power_loop(_facts_of(problem), release, session)
    session.stop()
    return session.store.read_part("result")


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
        analysed=_analysed(problem, session, arrays["basis"]),
    )
    return replace(solution, **release.shown(solution, arrays, meta))


def _analysed(problem: Problem, session: Session, basis: Block) -> Analysed:
    """What there is to know of the data without them; of a release only what everybody knows."""
    source, public, request, found = problem.source, problem.recipe is None, problem.request, None
    if source.kind not in ("tensor", "matrices") and len(basis) == source.shape[1]:
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
