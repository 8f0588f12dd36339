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
    """
    Watch a run: the base of what prints, draws or publishes its events.

    Every method does nothing: override those that you need. They are called after the event and can change nothing. A
    private run reports only what is public: :meth:`on_stage`, :meth:`on_begin`, :meth:`on_pass`, :meth:`on_step` and
    :meth:`on_end`.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> class Steps(npmdask.Observer):
    ...     def __init__(self):
    ...         self.residuals = []
    ...     def on_step(self, step):
    ...         self.residuals.append(step.worst_residual)
    >>> observer = Steps()
    >>> rows = np.random.default_rng(0).standard_normal((500, 60)) * np.geomspace(8, 1, 60)
    >>> solution = npmdask.top_k(rows, 3, algorithm="krylov", observer=observer)
    >>> len(observer.residuals) == solution.steps, observer.residuals[-1] < 1e-9
    (True, True)
    """

    def on_plan(self, plan: MemoryPlan) -> None:
        """
        Report the memory that is planned, before the first pass.

        Parameters
        ----------
        plan : MemoryPlan
            What the run needs, in bytes, and its numbers of processes and threads.
        """

    def on_ready(self, problem: Problem, session: Session) -> None:
        """
        Report that a new run is bound to its store and planned, and that nothing is read yet.

        Parameters
        ----------
        problem : Problem
            Everything that determines the result.
        session : Session
            Store, memory and threads of the run.
        """

    def on_search(self, problem: Problem, stage: Problem, session: Session, store: RunStore) -> None:
        """
        Report the same of a stage of the search for a rank.

        Parameters
        ----------
        problem : Problem
            The search.
        stage : Problem
            The stage, which asks for a number of components.
        session : Session
            That of the stage.
        store : RunStore
            Store of the search.
        """

    def on_stage(self, label: str) -> None:
        """
        Report that a part of a longer job begins; the steps that follow are its own, counted from one.

        Parameters
        ----------
        label : str
            What the part does, as a phrase to show.
        """

    def on_begin(self, done: int, expected: int | None, unit: str) -> None:
        """
        Report that work begins, or goes on where it was.

        Parameters
        ----------
        done : int
            Units that are done already.
        expected : int or None
            Units in all; None where that is unknown.
        unit : str
            "pass", "release" (of a private run, whose number of them is public), or what is counted, such as "row".
        """

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        """
        Report that a pass over the data begins.

        Parameters
        ----------
        label : str
            What the pass is for.
        total_bytes : int
            Bytes that it reads, decoded; 0 in a private run.
        total_chunks : int
            Chunks that it reads; 0 in a private run.
        """

    def on_task(self, record: ReadStats) -> None:
        """
        Report that a part of the pass is done; first, what an interrupted pass had done.

        Parameters
        ----------
        record : ReadStats
            Bytes and chunks of this part, and their checksums.
        """

    def on_step(self, step: Step) -> None:
        """
        Report that a step was committed: it survives whatever happens now.

        Parameters
        ----------
        step : Step
            Its number, values, residuals and cost.
        """

    def on_rows(self, rows: int, skipped: int, rate: float) -> None:
        """
        Report how far a stream is, about once a second.

        Parameters
        ----------
        rows : int
            Rows taken so far.
        skipped : int
            Rows left out so far.
        rate : float
            Rows per second of this call; 0 where it was not measured.
        """

    def on_measurement(self, measurement: Any) -> None:
        """
        Report that the model of a stream was measured; this need not be committed yet.

        Parameters
        ----------
        measurement : Measurement
            How good the model is after so many rows.
        """

    def on_stream_end(self, solution: Any) -> None:
        """
        Report that all rows that there were are taken and committed.

        Parameters
        ----------
        solution : StreamSolution
            The components so far.
        """

    def on_end(self, solution: Solution) -> None:
        """
        Report that the run ended, in whatever way.

        Parameters
        ----------
        solution : Solution
            The answer, with its outcome.
        """


class Observers(Observer):
    """Several observers as one."""

    def __init__(self, *members: Observer) -> None:
        self._members = members


def _broadcast(event: str) -> Any:
    """The method of several observers that tells each of them of ``event``."""

    @wraps(getattr(Observer, event))
    def told(self: Observers, *said: Any, **named: Any) -> None:
        for member in self._members:
            getattr(member, event)(*said, **named)

    return told


for _event in filter(lambda name: name.startswith("on_"), vars(Observer)):
    setattr(Observers, _event, _broadcast(_event))


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
        self._log_event("plan", f"{where}, predicted peak {plan.predicted_peak / 2**20:.0f} MiB", limit=plan.limit)

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        self._log_event("pass", f"a pass begins: {label}", **({} if self._private else {"bytes": total_bytes}))

    def on_step(self, step: Step) -> None:
        if self._private:
            self._log_event("step", f"step {step.number} is released", step=step.number)
            return
        said = f"step {step.number} is committed: worst relative residual {step.worst_residual:.2e}"
        facts = {"residual": finite(step.worst_residual), "seconds": round(step.seconds, 4), "bytes": step.bytes_read}
        self._log_event("step", said, step=step.number, **facts)

    def on_measurement(self, measurement: Any) -> None:
        said = f"measured after {measurement.rows} rows: {measurement.size}"
        facts = {"rows": measurement.rows, "change": measurement.change, "explained": measurement.explained}
        self._log_event("measurement", said, step=measurement.steps, **{name: finite(x) for name, x in facts.items()})

    def on_stream_end(self, solution: Any) -> None:
        facts = {"outcome": solution.outcome.name, "rows": solution.rows, "new_rows": solution.new_rows}
        self._log_event("end", solution.outcome.sentence, step=solution.steps, **facts)

    def on_end(self, solution: Solution) -> None:
        self._log_event("end", solution.outcome.sentence, step=solution.steps, outcome=solution.outcome.name)

    def _log_event(self, event: str, message: str, **facts: Any) -> None:
        tell(event, message, run=self._run, stage=self._stage, timeless=self._private, **facts)


def finite(number: Any) -> Any:
    """A number as JSON knows it: null for one that is not finite."""
    return None if isinstance(number, float) and not math.isfinite(number) else number
