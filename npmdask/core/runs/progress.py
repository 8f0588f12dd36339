"""Progress of a run and the time left: on a terminal, in a notebook, or as lines.

:class:`Work` knows how far it is and writes no output. :class:`ProgressBar` is the observer that feeds it and shows it:
two lines that are redrawn on a terminal, a cell's output that is replaced in a notebook, and elsewhere a line every ten
seconds at most. Everything goes to stderr (or to the notebook), and nothing that goes wrong with it ends a run.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from npmdask.core.runs.observers import Observer, Observers

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

    from npmdask.core.execution.memory import MemoryPlan
    from npmdask.core.runs.problem import Problem
    from npmdask.core.runs.session import Session
    from npmdask.core.runs.solution import Step
    from npmdask.core.storage.readers.dense import ReadStats

LINE_SECONDS = 10.0  # between two lines where there is no terminal
PAGE_SECONDS = 0.5  # between two changes of a notebook's output, each of which is a message to the browser
DRAWN = 4  # times a second on a terminal
PASSES = 9  # the last ones, whose mean says how long a pass takes
ENOUGH, LEAST_SECONDS = 0.05, 2.0  # of the first pass, before the time left is shown
CALM = 0.2  # of the time left: how fast the time that is shown follows the measured one
RELEASE = "release"  # the unit of private runs, which show no size and no time
Given = TypeVar("Given", bound=Observer | None)
DUMB = ("dumb", "unknown")  # TERM of terminals that cannot go back to the start of a line above


class Work:
    """Progress of a job, by its events; what it says of itself is short enough for a line.

    Parameters
    ----------
    now : the clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.lock = RLock()  # the terminal is drawn by a thread of its own
        self.start = now()
        self.stage, self._stage_used, self._staged = "", False, False
        self.passes = self.bytes = 0  # of all stages, by this process
        self._open, self._seconds = False, list[float]()
        self._reset("pass", 0, None)

    def _reset(self, unit: str, done: int, expected: int | None, *, seconds: tuple[float, ...] = ()) -> None:
        self.unit, self.done, self.expected = unit, done, expected
        self._begun_at, self._first = self._now(), done
        self._seconds = list(seconds)  # of whole passes
        self._end: float | None = None  # when it will be done, as far as that was said
        self._said_at = self._begun_at
        self.label, self._open = "", False
        self._total = self._part_bytes = self._before = 0

    # What is heard.

    def begin(self, done: int, expected: int | None, unit: str) -> None:
        """Work of ``expected`` units (None: not known) begins, or goes on after ``done`` of them."""
        with self.lock:
            if expected is None and self._stage_used:
                self.stage = ""  # a pass of its own, after that stage
            seconds = () if self._stage_used or expected is None else tuple(self._seconds)
            self._stage_used = True
            self._reset(unit, done, expected, seconds=seconds)

    def begin_stage(self, label: str) -> None:
        """A part of a longer job begins, or goes on with its next pass: then its passes are one bar."""
        with self.lock:
            goes_on = bool(self.stage) and label.partition(":")[0] == self.stage.partition(":")[0]
            if goes_on and self._open:
                self.end_pass(self.done + 1)
            self._reset("pass", 0, None, seconds=tuple(self._seconds) if goes_on else ())
            self.stage, self._stage_used, self._staged = label, False, True

    def begin_pass(self, label: str, total: int) -> None:
        """A pass over ``total`` bytes begins (0: unknown)."""
        with self.lock:
            if self._open:
                self.end_pass(self.done + 1)
            self.label, self._open, self._total, self._part_bytes, self._before = label, True, total, 0, -1
            self._pass_at = self._now()
            self.passes += 1
            if self.expected is None:
                self._end = None  # what was said was of another pass

    def add(self, nbytes: int) -> None:
        """A part of the pass is done; the first one is what was done before this process began."""
        with self.lock:
            if self._before < 0:
                self._before = nbytes
            else:
                self.bytes += nbytes
            self._part_bytes += nbytes

    def end_pass(self, done: int) -> None:
        """The step of the pass is finished, ``done`` of them in all."""
        with self.lock:
            if self._open:
                read = 1.0 - (self._before / self._total if self._total and self._before > 0 else 0.0)
                if read > ENOUGH:
                    self._seconds = [*self._seconds, (self._now() - self._pass_at) / read][-PASSES:]
            self.done, self._open = done, False

    def reach(self, done: int, nbytes: int = 0) -> None:
        """So many units are done, of work that is not made of passes."""
        with self.lock:
            self.done, self.bytes = done, nbytes

    # What is known.

    @property
    def part(self) -> float:
        """Share of the pass under way that is done, 0 to 1."""
        if not self._open:
            return 0.0
        if self._total:
            return min(self._part_bytes / self._total, 1.0)
        per_pass = self._per_pass()
        return min((self._now() - self._pass_at) / per_pass, 0.99) if per_pass else 0.0

    @property
    def fraction(self) -> float | None:
        """Share of the whole that is done; None: unknown."""
        if not self.expected or self.done + (self._open and self.unit == "pass") > self.expected:
            return None
        return min((self.done + self.part) / self.expected, 1.0)

    def _per_pass(self) -> float | None:
        return sum(self._seconds) / len(self._seconds) if self._seconds else self._pass_seconds()

    def _pass_seconds(self) -> float | None:
        """Seconds of the whole pass that is under way, as far as it came by now."""
        if not self._open or not self._total:
            return None
        read, seconds = (self._part_bytes - max(self._before, 0)) / self._total, self._now() - self._pass_at
        return seconds / read if read >= ENOUGH and seconds >= LEAST_SECONDS else None

    def _measured_seconds_left(self) -> float | None:
        if self.unit == RELEASE:
            return None
        if self.unit == "pass" and self.expected is None:
            alone = self._pass_seconds()
            return None if alone is None else alone * (1.0 - self.part)
        if self.expected is None or self.fraction is None:
            return None
        if self.unit == "pass":
            per_pass = self._per_pass()
            return None if per_pass is None else per_pass * (self.expected - self.done - self.part)
        new, seconds = self.done - self._first, self._now() - self._begun_at
        known = seconds >= LEAST_SECONDS and new >= ENOUGH * (self.expected - self._first)
        return seconds / new * (self.expected - self.done) if known and new else None

    @property
    def seconds_left(self) -> float | None:
        """Until it is done, following what is measured slowly enough to be read; None: unknown."""
        measured, now = self._measured_seconds_left(), self._now()
        if measured is None:
            self._end = None
            return None
        if self._end is None:
            self._end = now + measured
        else:
            follow = -math.expm1(-(now - self._said_at) / (CALM * max(self._end - now, 1.0)))
            self._end += follow * (now + measured - self._end)
        self._said_at = now
        return max(self._end - now, 0.0)

    # The text of it.

    def head(self) -> str:
        """Say where the job is: ``pass 3 of about 7``."""
        short = f"{self.stage.partition(':')[0]}: " if self.stage else ""
        if self.unit not in ("pass", RELEASE):
            of = f" of {self.expected:,}" if self.expected else ""
            return f"{short}{self.done:,}{of} {self.unit}s"
        if self.expected is None and not self.label.startswith("step "):
            return self.stage or (f"one pass ({self.label})" if self.label else "preparing")
        number = self.done + (1 if self._open or not self.done else 0)
        if self.expected is None:
            return f"{short}{self.unit} {number}"
        if number > self.expected:
            return f"{short}{self.unit} {number}, {self.expected} were expected"
        sure = self.unit == RELEASE or self.expected == 1
        return f"{short}{self.unit} {number} of {'' if sure else 'about '}{self.expected}"

    def left(self) -> str:
        """Say how long it takes: ``about 2 min left``; "" where that is unknown."""
        seconds = self.seconds_left
        if seconds is None:
            return ""
        of = "" if self.unit != "pass" else " of this pass" if self.expected is None else " of this stage"
        return f"{approximate_time(seconds)} left{of if self.stage or self.expected is None else ''}"

    def detail(self) -> str:
        """The pass under way: ``41 % of this pass, 1.03 of 2.50 GB at 0.83 GB/s``; "" where there is nothing to say."""
        if self.unit not in ("pass", RELEASE) and self.bytes:
            return f"{self.bytes / 1e9:.2f} GB at {self.bytes / max(self._now() - self._begun_at, 1e-9) / 1e9:.2f} GB/s"
        if not self._open or not self._total or self.unit == RELEASE:
            return ""
        rate = (self._part_bytes - max(self._before, 0)) / max(self._now() - self._pass_at, 1e-9)
        scale, unit = (1e9, "GB") if self._total >= 1e8 else (1e6, "MB")
        read = f"{self._part_bytes / scale:.2f} of {self._total / scale:.2f} {unit} at {rate / 1e9:.2f} GB/s"
        return f"{math.floor(100 * self.part)} % of this pass, {read}"

    def line(self) -> str:
        """All of it in one line."""
        with self.lock:
            return "; ".join(said for said in (self.head(), self.detail(), self.left()) if said)

    def summary(self) -> str:
        """Say what was done, once it is."""
        if self.unit == RELEASE:
            return f"done: {self.done} {RELEASE}{'s'[: self.done != 1]}"
        return f"done in {self.cost()}"

    def cost(self) -> str:
        """The time since it began, and what was read."""
        took = duration(self._now() - self.start)
        if self.unit not in ("pass", RELEASE):
            return f"{took}: {self.done:,} {self.unit}{'s'[: self.done != 1]}"
        if self._staged:  # passes over the documents and over a tensor in memory do not add up to a number
            return f"{took}: {size_text(self.bytes)} read"
        return f"{took}: {passes_text(self.passes, self.bytes)}"


def approximate_time(seconds: float) -> str:
    """A time that is an estimate, as coarse as it is uncertain: ``a few seconds``, ``about 40 s``, ``about 2 h``."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 55:
        return f"about {10 * round(seconds / 10)} s"
    if seconds < 3570:
        return f"about {max(round(seconds / 60), 1)} min"
    hours, minutes = divmod(10 * round(seconds / 600), 60)
    if hours >= 10:
        return f"about {round(seconds / 3600)} h"
    return f"about {hours} h {minutes} min" if minutes else f"about {hours} h"


def passes_text(passes: int, nbytes: int) -> str:
    """``7 passes, 2.50 GB read``."""
    return f"{passes} pass{'es'[: 2 * (passes != 1)]}, {size_text(nbytes)} read"


def size_text(nbytes: int) -> str:
    """``2.50 GB``, in the units that the rates are in."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """A time that was measured: ``3.2 s``, ``4 min 10 s``, ``2 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


# Where it is shown.


class _Display(Protocol):
    def changed(self, work: Work) -> None:
        """Something happened."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """Nothing more comes; may be called twice."""


class _Lines:
    """Output without a terminal: a line now and then, and no control characters."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._last = now, now()

    def changed(self, work: Work) -> None:
        if self._now() - self._last >= LINE_SECONDS:
            self._last = self._now()
            self.say(work.line())

    def say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the reader has closed the other end
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class _Bars:
    """The two lines of each job of this process, below everything else on the terminal.

    One for all threads: two that moved the same cursor would write into each other. The cursor stays visible, so that
    a process that is killed leaves a terminal that works.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._shown: dict[int, Work] = {}
        self._live: Live | None = None
        self._console: Console | None = None

    def show(self, work: Work) -> None:
        with self._lock:
            self._shown[id(work)] = work
            if self._live is None:
                from rich.console import Console  # only those who look at a terminal wait for it
                from rich.live import Live

                self._console = Console(file=sys.stderr, force_terminal=True)
                self._live = Live(
                    self,
                    console=self._console,
                    refresh_per_second=DRAWN,
                    transient=True,
                    redirect_stdout=sys.stdout.isatty(),  # what is piped elsewhere must get there
                )
                self._live.start(refresh=True)
                self._console.show_cursor(True)

    def hide(self, work: Work) -> None:
        with self._lock:
            self._shown.pop(id(work), None)
            if not self._shown:
                self._stop()

    def hide_all(self) -> None:
        with self._lock:
            self._shown.clear()
            self._stop()

    def say(self, text: str) -> None:
        if self._console is not None and self._live is not None:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for work in list(self._shown.values()):
            for line, style in _drawn(work, options.max_width, ascii_only=options.ascii_only):
                yield Text(line, style=style, no_wrap=True, overflow="ellipsis")


def _drawn(work: Work, width: int, *, ascii_only: bool = False) -> list[tuple[str, str]]:
    """The lines of a job with their styles, no wider than ``width``."""
    with work.lock:
        parts = [(work.head(), work.fraction, work.left(), "cyan")]
        if detail := work.detail():
            parts.append((f"  {detail}", work.part if work.unit == "pass" else None, "", "dim"))
    return [(_line(head, share, tail, width, ascii_only=ascii_only), style) for head, share, tail, style in parts]


def _line(head: str, share: float | None, tail: str, width: int, *, ascii_only: bool) -> str:
    """Write a line: what it is, a bar in the room that is left (none in too little), and how long it takes."""
    room = min(width - len(head) - len(tail) - 3, 30)
    full, rest = ("=", "-") if ascii_only else ("━", "─")
    bar = "" if share is None or room < 8 else full * round(share * room) + rest * (room - round(share * room))
    said = "  ".join(part for part in (head, bar, tail) if part)
    return said if len(said) < width else said[: max(width - 1, 1)]


_bars = _Bars()


class _Terminal:
    """A terminal: drawn a few times a second by a thread, whatever happens how often."""

    def __init__(self, work: Work) -> None:
        self._work, self._on = work, False

    def changed(self, work: Work) -> None:
        if not self._on:
            self._on = True
            with suppress(OSError, ValueError):
                _bars.show(work)

    def say(self, text: str) -> None:
        with suppress(OSError, ValueError):
            _bars.say(text)

    def close(self) -> None:
        with suppress(OSError, ValueError):
            _bars.hide(self._work)
        self._on = False


class _Page:
    """A notebook: one output, which is replaced."""

    def __init__(self, work: Work) -> None:
        self._work, self._last = work, -math.inf
        self._handle: Any = None

    def changed(self, work: Work) -> None:
        if time.monotonic() - self._last >= PAGE_SECONDS:
            self._last = time.monotonic()
            self._update_display(work.line(), work.fraction)

    def say(self, text: str) -> None:
        self._update_display(text, 1.0 if text.startswith("done") else self._work.fraction)

    def close(self) -> None:
        pass

    def _update_display(self, text: str, share: float | None) -> None:
        display = sys.modules["IPython"].display.display  # there, or this would be no notebook

        value = "" if share is None else f" value='{share:.3f}'"
        shown = {
            "text/plain": text,
            "text/html": f"<div><progress max='1'{value} style='width: 12em'></progress> {escape(text)}</div>",
        }
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def in_notebook() -> bool:
    """Say whether this process runs in a notebook: IPython with a kernel, not in a terminal."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def on_terminal() -> bool:
    """Say whether stderr is a terminal on which lines can be redrawn."""
    try:
        return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in DUMB
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def stop_bars() -> None:
    """Take away bars that an error has left on the terminal, so that its sentence is the last line."""
    with suppress(OSError, ValueError):
        _bars.hide_all()


# What feeds it.


class ProgressBar(Observer):
    """Shows a person how far a run is.

    Parameters
    ----------
    quiet : show nothing.
    verbose : also a line for the plan, each stage, step and measurement, which stays.
    headline : a line that comes first, once there is something to show; "" for none.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False, headline: str = "") -> None:
        self.work = Work()
        self._headline = headline
        self._verbose, self._quiet = verbose and not quiet, quiet
        self._display: _Display | None = None
        self._reads_nothing = False  # a stored Gram answers

    def changed(self) -> None:
        """Show what ``work`` says now."""
        if self._quiet:
            return
        if self._display is None:
            self._display = _Page(self.work) if in_notebook() else _Terminal(self.work) if on_terminal() else _Lines()
            if self._headline:
                self._display.say(self._headline)
        self._display.changed(self.work)

    def _say(self, text: str) -> None:
        if self._verbose:
            self.changed()
            assert self._display is not None
            self._display.say(text)

    def on_ready(self, problem: Problem, session: Session) -> None:
        self._reads_nothing = problem.source.reader.layout == "gram"

    def on_plan(self, plan: MemoryPlan) -> None:
        limit = f"of {plan.limit / 2**20:.0f} MiB" if plan.limit else "(no limit set)"
        where = f"{plan.workers} processes x {plan.threads} threads" if plan.workers else f"{plan.threads} threads"
        self._say(f"plan: {where}, predicted peak {plan.predicted_peak / 2**20:.0f} MiB {limit}")

    def on_begin(self, done: int, expected: int | None, unit: str) -> None:
        self.work.begin(done, expected, unit)
        self.changed()

    def on_stage(self, label: str) -> None:
        self.work.begin_stage(label)
        self.changed()
        self._say(label)

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        self.work.begin_pass(label, total_bytes)
        self.changed()

    def on_task(self, record: ReadStats) -> None:
        self.work.add(record.bytes_read)
        self.changed()

    def on_step(self, step: Step) -> None:
        self.work.end_pass(step.number)
        self.changed()
        if self._verbose:
            self._say(self._step_line(step))

    def _step_line(self, step: Step) -> str:
        if self._reads_nothing:
            return f"step {step.number}: worst relative residual {step.worst_residual:.2e}, without a pass"
        if not step.bytes_read:  # of a private run nothing else is known
            return f"step {step.number}: released"
        angle = f", max sin(theta) {step.max_sin_theta:.1e}" if step.max_sin_theta is not None else ""
        rate = step.bytes_read / max(step.seconds, 1e-9) / 1e9
        return (
            f"step {step.number}: worst relative residual {step.worst_residual:.2e}{angle}, "
            f"{step.chunks} chunks, {step.bytes_read / 1e9:.2f} GB at {rate:.2f} GB/s"
        )

    def on_rows(self, rows: int, skipped: int, rate: float) -> None:
        self.work.reach(rows + skipped)
        self.changed()

    def on_measurement(self, measurement: Any) -> None:
        known = {
            "max sin(theta)": measurement.max_sin_theta,
            "suboptimality": measurement.suboptimality,
            "change": measurement.change,
        }
        said = "".join(f", {name} {value:.1e}" for name, value in known.items() if value is not None)
        self._say(f"{measurement.rows} rows: {measurement.size}{said}")

    def on_end(self, solution: Any) -> None:
        self.close()

    def on_stream_end(self, solution: Any) -> None:
        self.work.reach(solution.rows + solution.skipped)
        self.close()

    def close(self, said: str = "") -> None:
        """Take it from the terminal; ``said``: the line that stays."""
        if self._display is not None:
            self._display.close()
            if said:
                self._display.say(said)


@contextmanager
def with_progress(observer: Given, progress: bool) -> Iterator[Given | Observer]:
    """The observer of a call; with ``progress`` also a bar, which is gone when the call ends, in whatever way."""
    if not progress:
        yield observer
        return
    bar = ProgressBar()
    try:
        yield Observers(Observer() if observer is None else observer, bar)
    except BaseException as error:
        bar.close(f"stopped at {bar.work.head()} ({type(error).__name__})" if in_notebook() else "")
        raise
    bar.close(bar.work.summary())


class IngestBar:
    """Progress of writing a data set: callable with rows (or ``each``) done, in all (or None), bytes done."""

    def __init__(self, what: str, *, quiet: bool = False, each: str = "row") -> None:
        self._what, self._each, self._bar = what, each, ProgressBar(quiet=quiet)

    def __call__(self, rows: int, total: int | None, nbytes: int) -> None:
        work = self._bar.work
        if work.unit != self._each:
            self._bar.on_stage(self._what)
            self._bar.on_begin(rows, total, self._each)
        work.reach(rows, nbytes)
        self._bar.changed()
        if rows == total:
            self._bar.close()
