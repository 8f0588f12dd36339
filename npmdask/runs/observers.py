"""What a person sees while it runs. Observers learn of it after the fact and can change nothing."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from rich.progress import Progress

    from npmdask.checkpoint.store import RunStore
    from npmdask.execution.memory import MemoryPlan
    from npmdask.runs.problem import Problem
    from npmdask.runs.session import Session
    from npmdask.runs.solution import Solution, Step
    from npmdask.storage.readers.dense import ReadStats
    from npmdask.streaming.metrics import Measurement
    from npmdask.streaming.solution import StreamSolution

QUIET_SECONDS = 10.0  # between two signs of life of a stream where there is no terminal


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

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        """A pass over the data begins."""

    def on_task(self, record: ReadStats) -> None:
        """A part of the pass is done."""

    def on_step(self, step: Step) -> None:
        """A step was committed: it survives whatever happens now."""

    def on_rows(self, rows: int, skipped: int, rate: float) -> None:
        """About once a second of a stream: rows taken and left out so far, and rows per second of this call."""

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


class ProgressBar(Observer):
    """A bar with pass, chunk, GB/s and time left on a terminal; a line a step elsewhere. Writes to stderr."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console  # only those who look at a terminal wait for it
        from rich.progress import TaskID

        self._console = Console(stderr=True, quiet=quiet)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._done = self._chunks = self._total_chunks = 0
        self._start = 0.0
        self._label = ""
        self._reads_nothing = False  # a stored Gram answers

    def on_ready(self, problem: Problem, session: Session) -> None:
        self._reads_nothing = problem.source.reader.layout == "gram"

    def on_plan(self, plan: MemoryPlan) -> None:
        limit = f"of {plan.limit / 2**20:.0f} MiB" if plan.limit else "(no limit set)"
        where = f"{plan.workers} processes x {plan.threads} threads" if plan.workers else f"{plan.threads} threads"
        self._console.print(
            f"plan: {where}, predicted peak {plan.predicted_peak / 2**20:.0f} MiB {limit}", soft_wrap=True
        )

    def on_stage(self, label: str) -> None:
        self._stop_bar()
        self._console.print(label, highlight=False, soft_wrap=True)

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        self._label, self._done, self._chunks, self._total_chunks = label, 0, 0, total_chunks
        self._start = time.perf_counter()
        if not self._console.is_terminal:
            return
        self._stop_bar()
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self._console, transient=True)
        _shown.add(self._bar)
        self._bar.start()
        self._task = self._bar.add_task(label, total=total_bytes or None, rate="")

    def on_task(self, record: ReadStats) -> None:
        self._done += record.bytes_read
        self._chunks += record.chunks
        if self._bar is not None:
            rate = f"chunk {self._chunks}/{self._total_chunks}, {self._rate():.2f} GB/s"
            self._bar.update(self._task, completed=self._done, rate=rate)

    def _rate(self) -> float:
        return self._done / max(time.perf_counter() - self._start, 1e-9) / 1e9

    def on_step(self, step: Step) -> None:
        self._stop_bar()
        if self._reads_nothing:
            said = f"step {step.number}: worst relative residual {step.worst_residual:.2e}, without a pass"
            self._console.print(said, highlight=False)
            return
        if not step.bytes_read:  # of a private run nothing else is known
            self._console.print(f"step {step.number}: released", highlight=False)
            return
        angle = f", max sin(theta) {step.max_sin_theta:.1e}" if step.max_sin_theta is not None else ""
        rate = step.bytes_read / max(step.seconds, 1e-9) / 1e9
        self._console.print(
            f"step {step.number}: worst relative residual {step.worst_residual:.2e}{angle}, "
            f"{step.chunks} chunks, {step.bytes_read / 1e9:.2f} GB at {rate:.2f} GB/s",
            highlight=False,
            soft_wrap=True,
        )

    def on_rows(self, rows: int, skipped: int, rate: float) -> None:
        left = f", {skipped} left out" if skipped else ""
        if self._console.is_terminal or time.perf_counter() - self._start > QUIET_SECONDS:
            self._start = time.perf_counter()
            self._console.print(f"{rows} rows{left}, {rate:.0f} rows/s", highlight=False)

    def on_measurement(self, measurement: Measurement) -> None:
        known = {
            "max sin(theta)": measurement.max_sin_theta,
            "suboptimality": measurement.suboptimality,
            "change": measurement.change,
        }
        said = "".join(f", {name} {value:.1e}" for name, value in known.items() if value is not None)
        self._console.print(f"{measurement.rows} rows: {measurement.size}{said}", highlight=False, soft_wrap=True)

    def on_end(self, solution: Solution) -> None:
        self._stop_bar()

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            _shown.discard(self._bar)
            self._bar = None


_shown: set[Progress] = set()


def stop_bars() -> None:
    """Take away bars that an error has left on the terminal, so that its sentence is the last line."""
    while _shown:
        _shown.pop().stop()


class IngestBar:
    """Progress of writing a data set: callable with rows (or ``each``) done, in all (or None), bytes done."""

    def __init__(self, what: str, *, quiet: bool = False, each: str = "row") -> None:
        self._what, self._quiet, self._each = what, quiet, each
        self._start = self._shown = time.perf_counter()

    def __call__(self, rows: int, total: int | None, nbytes: int) -> None:
        now = time.perf_counter()
        every = 0.2 if sys.stderr.isatty() else 5.0
        if self._quiet or (now - self._shown < every and rows != total):
            return
        self._shown = now
        seconds = now - self._start
        rate = nbytes / max(seconds, 1e-9) / 1e9
        left = f", {seconds * (total - rows) / max(rows, 1):.0f} s left" if total else ""
        of = f"/{total}" if total else ""
        end: dict[str, Any] = {"end": "\r"} if sys.stderr.isatty() and rows != total else {}
        print(
            f"{self._what}: {self._each} {rows}{of}, {nbytes / 1e9:.2f} GB at {rate:.2f} GB/s{left}",
            file=sys.stderr,
            flush=True,
            **end,
        )
