"""Observe a run. Observers learn of events afterwards and can change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from npmdask.checkpoint.store import RunStore
    from npmdask.execution.memory import MemoryPlan
    from npmdask.runs.problem import Problem
    from npmdask.runs.session import Session
    from npmdask.runs.solution import Solution, Step
    from npmdask.storage.readers.dense import ReadStats
    from npmdask.streaming.metrics import Measurement
    from npmdask.streaming.solution import StreamSolution


class Observer:
    """Told of everything; does nothing. Base of what prints, draws or publishes."""

    def on_plan(self, plan: MemoryPlan) -> None:
        """Before the first pass."""

    def on_ready(self, problem: Problem, session: Session) -> None:
        """All is bound and planned of a new run, and nothing is read yet. Private runs do not call this."""

    def on_search(self, problem: Problem, stage: Problem, session: Session, store: RunStore) -> None:
        """The same of a ``stage`` of the search for a rank, which ``problem`` asks for in ``store``."""

    def on_answer(self, problem: Problem, values: np.ndarray, session: Session) -> None:
        """The run has its answer: ``values`` of the operator. Private runs do not call this."""

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

    def on_measurement(self, measurement: Measurement) -> None:
        """The model of a stream was measured; nothing says that this is committed yet."""

    def on_stream_end(self, solution: StreamSolution) -> None:
        """All rows that there were are taken and committed."""

    def on_end(self, solution: Solution) -> None:
        """The run ended, in whatever way."""


class Observers(Observer):
    """Several observers as one."""

    def __init__(self, *members: Observer) -> None:
        self._members = members

    def on_plan(self, plan: MemoryPlan) -> None:
        for member in self._members:
            member.on_plan(plan)

    def on_ready(self, problem: Problem, session: Session) -> None:
        for member in self._members:
            member.on_ready(problem, session)

    def on_search(self, problem: Problem, stage: Problem, session: Session, store: RunStore) -> None:
        for member in self._members:
            member.on_search(problem, stage, session, store)

    def on_answer(self, problem: Problem, values: np.ndarray, session: Session) -> None:
        for member in self._members:
            member.on_answer(problem, values, session)

    def on_stage(self, label: str) -> None:
        for member in self._members:
            member.on_stage(label)

    def on_begin(self, done: int, expected: int | None, unit: str) -> None:
        for member in self._members:
            member.on_begin(done, expected, unit)

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        for member in self._members:
            member.on_pass(label, total_bytes, total_chunks)

    def on_task(self, record: ReadStats) -> None:
        for member in self._members:
            member.on_task(record)

    def on_step(self, step: Step) -> None:
        for member in self._members:
            member.on_step(step)

    def on_rows(self, rows: int, skipped: int, rate: float) -> None:
        for member in self._members:
            member.on_rows(rows, skipped, rate)

    def on_measurement(self, measurement: Measurement) -> None:
        for member in self._members:
            member.on_measurement(measurement)

    def on_stream_end(self, solution: StreamSolution) -> None:
        for member in self._members:
            member.on_stream_end(solution)

    def on_end(self, solution: Solution) -> None:
        for member in self._members:
            member.on_end(solution)


class StageObserver(Observers):
    """Tells of everything but the end: a stage is not the job, whose end comes once."""

    def on_end(self, solution: Solution) -> None:
        """Not passed on."""
