"""Observe a run. Observers learn of events afterwards and can change nothing.

One of them writes what it learns as lines of the log (:mod:`npmdask.core.checkpoint.logging`).
"""

from __future__ import annotations

import math
from functools import wraps
from typing import TYPE_CHECKING, Any

from npmdask.core.checkpoint.logging import tell

if TYPE_CHECKING:
    from npmdask.core.checkpoint.store import RunStore
    from npmdask.core.execution.memory import MemoryPlan
    from npmdask.core.runs.problem import Problem
    from npmdask.core.runs.session import Session
    from npmdask.core.runs.solution import Solution, Step
    from npmdask.core.storage.readers.dense import ReadStats


class Observer:
    """Told of everything; does nothing. Base of what prints, draws or publishes."""

    def on_plan(self, plan: MemoryPlan) -> None:
        """Before the first pass."""

    def on_ready(self, problem: Problem, session: Session) -> None:
        """All is bound and planned of a new run, and nothing is read yet. Private runs do not call this."""

    def on_search(self, problem: Problem, stage: Problem, session: Session, store: RunStore) -> None:
        """The same of a ``stage`` of the search for a rank, which ``problem`` asks for in ``store``."""

    def on_stage(self, label: str) -> None:
        """A part of a longer job begins: the steps that follow are its own, counted from one."""

    def on_begin(self, done: int, expected: int | None, unit: str) -> None:
        """Work of ``expected`` units (None: unknown) begins, or goes on after ``done`` of them.

        ``unit``: "pass", "release" (of a private run, whose number of them is public), or what is counted, like "row".
        """

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        """A pass over the data begins."""

    def on_task(self, record: ReadStats) -> None:
        """A part of the pass is done."""

    def on_step(self, step: Step) -> None:
        """A step was committed: it survives whatever happens now."""

    def on_rows(self, rows: int, skipped: int, rate: float) -> None:
        """About once a second of a stream: rows taken and left out so far, and rows per second of this call.

        ``rate`` is 0 where it was not measured.
        """

    def on_measurement(self, measurement: Any) -> None:
        """The model of a stream was measured; nothing says that this is committed yet."""

    def on_stream_end(self, solution: Any) -> None:
        """All rows that there were are taken and committed."""

    def on_end(self, solution: Solution) -> None:
        """The run ended, in whatever way."""


class Observers(Observer):
    """Several observers as one."""

    def __init__(self, *members: Observer) -> None:
        self._members = members


def _to_each(event: str) -> Any:
    """The method of several observers that tells each of them of ``event``."""

    @wraps(getattr(Observer, event))
    def told(self: Observers, *said: Any, **named: Any) -> None:
        for member in self._members:
            getattr(member, event)(*said, **named)

    return told


for _event in filter(lambda name: name.startswith("on_"), vars(Observer)):
    setattr(Observers, _event, _to_each(_event))


class StageObserver(Observers):
    """Tells of everything but the end: a stage is not the job, whose end comes once."""

    def on_end(self, solution: Solution) -> None:
        """Not passed on."""


def watched(observer: Observer, store: RunStore, *, private: bool = False) -> Observer:
    """The observer of a run and its log together; ``private``: both see what is public."""
    both = Observers(observer, LogObserver(store, private=private))
    return RedactingObserver(both) if private else both


class RedactingObserver(Observer):
    """Pass on to another observer what is public: that a step was released, and what was released."""

    def __init__(self, member: Observer) -> None:
        self._member = member

    def on_stage(self, label: str) -> None:
        self._member.on_stage(label)

    def on_begin(self, done: int, expected: int | None, unit: str) -> None:
        self._member.on_begin(done, expected, unit)

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        self._member.on_pass(label, 0, 0)

    def on_task(self, record: ReadStats) -> None:
        """Not passed on: how many parts a pass has says how many rows there are."""

    def on_step(self, step: Step) -> None:
        self._member.on_step(step)

    def on_end(self, solution: Solution) -> None:
        self._member.on_end(solution)


class LogObserver(Observer):
    """A line for each pass, step, measurement and end. Values of components are in the store, not in the log."""

    def __init__(self, store: RunStore, *, private: bool) -> None:
        (self._run, self._stage), self._private = store.names, private

    def on_plan(self, plan: MemoryPlan) -> None:
        where = f"{plan.workers} processes x {plan.threads} threads" if plan.workers else f"{plan.threads} threads"
        self._tell("plan", f"{where}, predicted peak {plan.predicted_peak / 2**20:.0f} MiB", limit=plan.limit)

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        self._tell("pass", f"a pass begins: {label}", **({} if self._private else {"bytes": total_bytes}))

    def on_step(self, step: Step) -> None:
        if self._private:
            self._tell("step", f"step {step.number} is released", step=step.number)
            return
        said = f"step {step.number} is committed: worst relative residual {step.worst_residual:.2e}"
        facts = {"residual": finite(step.worst_residual), "seconds": round(step.seconds, 4), "bytes": step.bytes_read}
        self._tell("step", said, step=step.number, **facts)

    def on_measurement(self, measurement: Any) -> None:
        said = f"measured after {measurement.rows} rows: {measurement.size}"
        facts = {"rows": measurement.rows, "change": measurement.change, "explained": measurement.explained}
        self._tell("measurement", said, step=measurement.steps, **{name: finite(x) for name, x in facts.items()})

    def on_stream_end(self, solution: Any) -> None:
        facts = {"outcome": solution.outcome.name, "rows": solution.rows, "new_rows": solution.new_rows}
        self._tell("end", solution.outcome.sentence, step=solution.steps, **facts)

    def on_end(self, solution: Solution) -> None:
        self._tell("end", solution.outcome.sentence, step=solution.steps, outcome=solution.outcome.name)

    def _tell(self, event: str, message: str, **facts: Any) -> None:
        tell(event, message, run=self._run, stage=self._stage, timeless=self._private, **facts)


def finite(number: Any) -> Any:
    """A number as JSON knows it: null for one that is not finite."""
    return None if isinstance(number, float) and not math.isfinite(number) else number
