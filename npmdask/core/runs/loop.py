"""The loop over passes: query -> one pass -> release -> update -> commit -> show.

Figure 1 of Hardt and Price (2014), for every algorithm, kind of data and kind of release. It shows a step only after
its commit, so that nothing outside (progress, plots, Prefect, a crash) can see what was not remembered; and it holds
no data, but a release that is asked for products (:mod:`npmdask.core.runs.release`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npmdask.core.algorithms import Algorithm, Result, state_fields
from npmdask.core.algorithms.stopping import StepView, StoppingRule, remembered, view_of, views_of
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.release import Release, Released
from npmdask.core.runs.results import expected_steps, in_units
from npmdask.core.runs.session import Session
from npmdask.core.runs.solution import Step
from npmdask.core.storage.kinds import traits_of


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
    """Return how many passes the run is expected to take, None where nothing was predicted; and what one is called."""
    if not facts.rule.tol:  # the number of steps was fixed in advance
        return facts.rule.max_steps, "pass" if session.disclosure.times else "release"
    steps = expected_steps(session.telemetry(), usual=getattr(facts.algorithm, "usual_steps", None))
    left = traits_of(facts.kind).left  # one more pass makes the left singular vectors
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
