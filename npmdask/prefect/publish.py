"""Publish a run in the Prefect UI: one artifact that is renewed while the run goes on, from plan to report.

A server that is gone costs the run only a warning. Pictures have no background, and colours that are seen on
white and on black, because Prefect's pages are either.
"""

import base64
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, cast
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import Artifact, create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.context import SettingsContext, get_settings_context
from prefect.runtime import flow_run
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, Settings

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.solution import Solution, Step
from npmdask.report.blocks import Text, table
from npmdask.report.plots import ALONE, COLOURS, LINES, axes, draw, svg
from npmdask.report.render import markdown
from npmdask.streaming import StreamSolution
from npmdask.streaming.metrics import Measurement
from npmdask.streaming.report import angles_plot, gap_plot
from npmdask.streaming.solution import stream_status

# The convergence of a run under way as a small SVG, written by hand.
#
# Matplotlib would be loaded for it beside every run, two seconds and 60 MB; the report, made after the run, has its
# own.


WIDTH, HEIGHT = 520, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 34, 42  # margins
LEAST = 1e-17  # what is smaller is drawn here
LABELS = 8  # along an axis, at most
INK = ALONE  # of text: seen on white and on black
TEXT = f'font-family="sans-serif" font-size="11" fill="{INK}"'


def convergence_svg(history: list[dict[str, Any]], tol: float) -> str:
    """Relative residual, and the angle to the truth where it is known, against the step; logarithmic."""
    residuals = [(h["step"], max(h["worst_residual"], LEAST)) for h in history]
    angles = [(h["step"], max(h["max_sin_theta"], LEAST)) for h in history if h["max_sin_theta"] is not None]
    heights = [y for _, y in (*residuals, *angles) if math.isfinite(y)] + ([tol] if tol > 0 else [])
    low, high = math.floor(math.log10(min(heights, default=1.0))), math.ceil(math.log10(max(heights, default=1.0)))
    first, last = history[0]["step"], history[-1]["step"]

    def at(step: float, y: float) -> tuple[float, float]:
        across = (step - first) / max(last - first, 1)
        up = (math.log10(y) - low) / max(high - low, 1)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [_text(WIDTH / 2, 16, "Convergence", "middle")]
    for decade in range(low, high + 1, _label_step(high - low)):
        x, y = at(first, 10.0**decade)
        parts += [_line(x, y, WIDTH - RIGHT, y, LINES + "55"), _text(x - 6, y + 4, f"1e{decade}", "end")]
    for step in range(first, last + 1, _label_step(last - first)):
        x, y = at(step, 10.0**low)
        parts.append(_text(x, y + 16, str(step), "middle"))
    parts.append(_text(WIDTH / 2, HEIGHT - 8, "step (one pass over the data each)", "middle"))
    if tol > 0:
        x, y = at(first, tol)
        parts += [
            _line(x, y, WIDTH - RIGHT, y, LINES, dashed=True),
            _text(x + 6, y - 4, f"tol {tol:.0e}", "start", LINES),
        ]
    series = [
        (residuals, COLOURS[0], "worst relative residual"),
        (angles, COLOURS[1], "max sin θ to the planted truth"),
    ]
    for place, (points, colour, said) in enumerate(one for one in series if one[0]):
        parts += [_curve([at(*p) for p in points if math.isfinite(p[1])], colour)]
        parts += [_text(WIDTH - RIGHT, TOP + 12 + 14 * place, said, "end", colour)]
    body = "".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">{body}</svg>'


def _label_step(span: int) -> int:
    """Between two labels."""
    return max(1, math.ceil(span / LABELS))


def _text(x: float, y: float, said: str, anchor: str, colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {TEXT.replace(INK, colour)}>{said}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, colour: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}"{dashes}/>'


def _curve(points: Sequence[tuple[float, float]], colour: str) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>{dots}'


PLOT_EVERY = 30.0  # seconds at least between two versions of the table and the plot
FIRST_PLOT = 5.0  # seconds from the start to the first of them
PROGRESS_EVERY = 2.0  # between two versions of how far it is
ROWS = 100  # of the history that are drawn
MUTE = 30.0  # seconds without another attempt after a failure


PLAN = "## Plan\n"
PARTS = ("report", "progress", "plan")  # of the artifact of a run, from above


@dataclass
class _Page:
    """The artifact of a run, as far as this process has written it."""

    parts: dict[str, str] = field(default_factory=dict)
    number: UUID | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_pages: dict[tuple[str | None, str], _Page] = {}


def show(name: str, part: str, text: str, said: str) -> None:
    """Put ``text`` in place of a part of the artifact of the run ``name``, which is described as ``said``.

    The first part makes it. A process that goes on with a run begins a new version of it, under the same key.
    """
    key = artifact_key(name)
    page = _pages.setdefault((flow_run.get_id(), key), _Page())
    with page.lock:
        if page.number is None and not page.parts:
            page.parts |= _previous_plan(key)
        page.parts[part] = text
        head = [] if "report" in page.parts else [f"# {name}"]
        whole = "\n\n".join([*head, *(page.parts[one].strip() for one in PARTS if one in page.parts)]) + "\n"
        if page.number is None:
            page.number = cast(UUID, create_markdown_artifact(whole, key=key, description=said))
        else:
            with get_client(sync_client=True) as client:
                client.update_artifact(page.number, ArtifactUpdate(data=whole, description=said))


def _previous_plan(key: str) -> dict[str, str]:
    """The plan of the version before, which is at its end: a run that is begun is not planned again."""
    latest: Any = Artifact.get  # whose types know no caller that is not asynchronous
    before = latest(key, _sync=True)
    _, title, plan = str(before.data if before else "").rpartition(PLAN)
    return {"plan": f"{title}{plan}"} if title else {}


class LivePublisher(Observer):
    """Progress of a run on its artifact, with a plot and a table that are renewed now and then and at the end.

    In a thread of its own: the run does not wait for a server or for a plot. What the thread is too late for is left
    out; the end is waited for.
    """

    def __init__(self, name: str) -> None:
        self._name, self._log = name, get_run_logger()
        self._drawn = ""
        self._plotted, self._updated = time.monotonic() - PLOT_EVERY + FIRST_PLOT, -math.inf
        self._muted_until = -math.inf
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publisher")
        self._showing: Future[None] | None = None

    def _submit_if_due(self, show: Callable[..., None], *arguments: Any) -> None:
        """In the thread, if something is due and it is not busy: to wake it at every step would cost the steps time."""
        due = self._plot_is_due or time.monotonic() - self._updated > PROGRESS_EVERY
        if due and (self._showing is None or self._showing.done()):
            context = copy_context()  # Prefect keeps in it which flow run this is
            self._showing = self._thread.submit(context.run, show, *arguments)

    def _advance_if_due(self, said: str, percent: float) -> None:
        if time.monotonic() - self._updated > PROGRESS_EVERY:
            self._advance(said, percent)

    def _advance(self, said: str, percent: float) -> None:
        self._updated = time.monotonic()
        if self._updated < self._muted_until:  # after a failure nothing is tried for a while
            return
        text = progress_text(said, percent) + (f"\n\n{self._drawn}" if self._drawn else "")
        done, _ = try_to(partial(show, self._name, "progress", text, said.partition("\n")[0]))
        if not done:
            self._muted_until = time.monotonic() + MUTE

    @property
    def _plot_is_due(self) -> bool:
        return time.monotonic() - self._plotted > PLOT_EVERY

    def _show(self, said: str, percent: float, history: Any) -> None:
        if self._plot_is_due:
            self._plot(said, percent, history)
        else:
            self._advance_if_due(said, percent)

    def _plot(self, said: str, percent: float, history: Any) -> None:
        self._drawn = self._draw(history) if history else ""
        self._advance(said, percent)
        self._plotted = time.monotonic()

    def _draw(self, history: Any) -> str:
        """Return picture and table of what was measured."""
        raise NotImplementedError


class Publisher(LivePublisher):
    """Shows every step."""

    def __init__(self, name: str, store: str, tol: float) -> None:
        super().__init__(name)
        self._tol = tol
        last = RunStore(store).last_step()
        self._history: list[dict[str, Any]] = last[1]["history"] if last else []
        said = "starting" if last is None else f"going on after step {len(self._history)}"
        self._advance(said, progress_percent(self._history, tol))

    def on_stage(self, label: str) -> None:
        self._history = []
        self._log.info(label)
        self._advance(label, 0.0)

    def on_step(self, step: Step) -> None:
        self._history.append(asdict(step) | {"step": step.number})
        rate = step.bytes_read / max(step.seconds, 1e-9) / 1e9
        said = f"step {step.number}: residual {step.worst_residual:.2e} (tol {self._tol:.0e}), {rate:.2f} GB/s"
        self._log.info(said)
        self._submit_if_due(self._show, said, progress_percent(self._history, self._tol), list(self._history))

    def on_end(self, solution: Solution) -> None:
        self._thread.shutdown()
        percent = 100.0 if solution.answered else progress_percent(self._history, self._tol)
        self._plot(ending_text(solution.outcome.sentence, solution.assurance), percent, self._history)

    def _draw(self, history: Any) -> str:
        return f"{plot(history, self._tol)}\n\n{convergence_table(history)}"


def ending_text(sentence: str, assurance: str) -> str:
    """Format how a run ended and, below that, how wrong its answer can be, in Markdown: a store may say anything."""
    said, error = markdown(Text(text=sentence)), markdown(Text(text=assurance))
    return f"{said}\n\n**How wrong can it be?** {error}" if assurance else said


def try_to(publish: Callable[[], Any]) -> tuple[bool, Any]:
    """Call ``publish``; return whether it worked, and what it returned. A failure is logged: it is none of the run."""
    try:
        with _without_retries():  # not 70 s of them in the middle of a run
            return True, publish()
    except Exception as error:
        said = f"an artifact could not be published ({type(error).__name__}: {error}); the run goes on"
        get_run_logger().warning(said)
        print(f"npmdask: warning: {said}", file=sys.stderr, flush=True)  # the server that keeps the log may be gone
        return False, None


_hasty: dict[int, tuple[Settings, Settings]] = {}  # settings in force, and the same without retries


def _without_retries() -> SettingsContext:
    """As Prefect's ``temporary_settings``, which takes a tenth of a second to make them every time."""
    now = get_settings_context()
    if id(now.settings) not in _hasty:
        _hasty.clear()
        _hasty[id(now.settings)] = now.settings, now.settings.copy_with_update({PREFECT_CLIENT_MAX_RETRIES: 0})
    return SettingsContext(profile=now.profile, settings=_hasty[id(now.settings)][1])


def artifact_key(name: str) -> str:
    """A key that Prefect takes: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "npm"


def progress_percent(history: list[dict[str, Any]], tol: float) -> float:
    """Compute how far the residual has come from its first value to ``tol``, on a logarithmic scale."""
    if not history:
        return 0.0
    first, now = (max(history[i]["worst_residual"], 1e-17) for i in (0, -1))
    whole = math.log(first / tol)
    return 99.0 if whole <= 0 else min(99.0, max(0.0, 100 * math.log(first / now) / whole))


def progress_text(said: str, percent: float) -> str:
    """Format how far a run is, in Markdown."""
    full = round(percent / 5)
    return f"## Progress\n\n{said}\n\n`{'█' * full}{'░' * (20 - full)}` {percent:.0f} %"


def convergence_table(history: list[dict[str, Any]]) -> str:
    """The last steps as a Markdown table."""
    known = ((h["step"], h["worst_residual"], h["max_sin_theta"]) for h in history[-20:])
    rows = ((step, f"{residual:.2e}", "" if sine is None else f"{sine:.2e}") for step, residual, sine in known)
    return markdown(table(rows, ("step", "worst relative residual", "max sin θ to the truth")))


def plot(history: list[dict[str, Any]], tol: float) -> str:
    """The convergence as an image for Markdown."""
    return image(convergence_svg(history[:: math.ceil(len(history) / ROWS)], tol))


def image(svg: str) -> str:
    """A figure inside the Markdown: the UI strips a bare <svg>, and has no file server."""
    return f"![convergence](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


# What the Prefect UI shows of a stream: rows, rows a second, and the measurements as a table and plots.


STREAM_ROWS = 50  # of the history that are drawn: there are two plots
COLUMNS = {"suboptimality": "suboptimality", "change": "change, max sin θ", "max_sin_theta": "max sin θ to the truth"}


class StreamPublisher(LivePublisher):
    """Shows every measurement, and every second how many rows were taken. ``total``: how many there are, if known."""

    def __init__(self, name: str, store: str, total: int | None) -> None:
        super().__init__(name)
        found = stream_status(RunStore(store))
        self._history = found.history if found else ()
        self._rows = found.rows if found else 0
        self._total = total
        self._plotted = time.monotonic()  # the first plot of a short tick is that of its end
        svg(axes("", "rows", "")[0])  # now: matplotlib's memory must be there when the memory of the stream is planned
        self._advance(f"looking for what is new after {self._rows} rows", self._percent())

    def on_rows(self, rows: int, skipped: int, rate: float) -> None:
        self._rows = rows
        left = f", {skipped} left out" if skipped else ""
        self._submit_if_due(self._advance_if_due, f"{rows} rows{left}, {rate:.0f} rows/s", self._percent())

    def on_measurement(self, measurement: Measurement) -> None:
        self._history, self._rows = (*self._history, measurement), measurement.rows
        said = measurement_line(measurement)
        self._log.info(said)
        self._submit_if_due(self._show, said, self._percent(), self._history)

    def on_stream_end(self, solution: StreamSolution) -> None:
        self._thread.shutdown()
        self._plot(ending_text(solution.outcome.sentence, solution.assurance), 100.0, self._history)

    def _draw(self, history: Any) -> str:
        return f"{pictures(history)}\n\n{measurements_table(history)}"

    def _percent(self) -> float:
        """Compute the percentage of all rows that are done; 0 of a source whose end is not known."""
        return min(99.0, 100 * self._rows / self._total) if self._total else 0.0


def measurement_line(measured: Measurement) -> str:
    """A measurement in a line."""
    values = {name: getattr(measured, key) for key, name in COLUMNS.items()}
    known = [f"{name} {value:.2e}" for name, value in values.items() if value is not None]
    return ", ".join([f"{measured.rows} rows: {measured.size}", *known])


def measurements_table(history: tuple[Measurement, ...]) -> str:
    """The last measurements as a Markdown table."""
    values = ((m.rows, m.rank, *(getattr(m, key) for key in COLUMNS)) for m in history[-20:])
    rows = ((*found[:2], *("" if value is None else f"{value:.2e}" for value in found[2:])) for found in values)
    return markdown(table(rows, ("rows", "rank", *COLUMNS.values())))


def pictures(history: tuple[Measurement, ...]) -> str:
    """The gap and the angles against the rows, for Markdown."""
    thinned = history[:: math.ceil(len(history) / STREAM_ROWS)]
    return "\n\n".join(image(draw(plot)) for plot in (gap_plot(thinned), angles_plot(thinned)) if plot)
