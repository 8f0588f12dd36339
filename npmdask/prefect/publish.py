"""What the Prefect UI shows of a run: live artifacts. A server that is gone costs the run a warning, nothing else."""

import base64
import math
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import asdict
from functools import partial
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.context import SettingsContext, get_settings_context
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, Settings

from npmdask.checkpoint.store import RunStore
from npmdask.prefect.live_plot import convergence_svg
from npmdask.report.blocks import table
from npmdask.report.render import markdown
from npmdask.runs.observers import Observer
from npmdask.runs.solution import Solution, Step

PLOT_EVERY = 30.0  # seconds at least between two versions of the table and the plot
FIRST_PLOT = 5.0  # seconds from the start to the first of them
PROGRESS_EVERY = 2.0  # between two versions of how far it is
ROWS = 100  # of the history that are drawn
MUTE = 30.0  # seconds without another attempt after a failure


class LivePublisher(Observer):
    """A progress artifact, and a page with a table and a plot that is renewed now and then and at the end.

    In a thread of its own: the run does not wait for a server or for a plot. What the thread is too late for is left
    out; the end is waited for.
    """

    def __init__(self, name: str) -> None:
        self._key, self._log = artifact_key(name), get_run_logger()
        self._progress: UUID | None = None
        self._plotted, self._updated = time.monotonic() - PLOT_EVERY + FIRST_PLOT, -math.inf
        self._muted_until = -math.inf
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publisher")
        self._showing: Future[None] | None = None

    def _later(self, show: Callable[..., None], *arguments: Any) -> None:
        """In the thread, if something is due and it is not busy: to wake it at every step would cost the steps time."""
        due = self._plot_is_due or time.monotonic() - self._updated > PROGRESS_EVERY
        if due and (self._showing is None or self._showing.done()):
            context = copy_context()  # Prefect keeps in it which flow run this is
            self._showing = self._thread.submit(context.run, show, *arguments)

    def _advance_now_and_then(self, said: str, percent: float) -> None:
        if time.monotonic() - self._updated > PROGRESS_EVERY:
            self._advance(said, percent)

    def _advance(self, said: str, percent: float) -> None:
        self._updated = time.monotonic()
        if self._progress is None:
            create = partial(create_progress_artifact, percent, key=f"{self._key}-progress", description=said)
            self._progress = self._publish(create)
        else:
            self._publish(partial(update_progress_artifact, self._progress, progress=percent, description=said))

    @property
    def _plot_is_due(self) -> bool:
        return time.monotonic() - self._plotted > PLOT_EVERY

    def _show_page(self, said: str, picture: str, table: str) -> None:
        text = f"{said}\n\n{picture}\n\n{table}\n"
        self._publish(partial(create_markdown_artifact, text, key=f"{self._key}-convergence", description=said))
        self._plotted = time.monotonic()

    def _publish(self, publish: Callable[[], Any]) -> Any:
        """After a failure nothing is tried for a while."""
        if time.monotonic() < self._muted_until:
            return None
        done, made = try_to(publish)
        if not done:
            self._muted_until = time.monotonic() + MUTE
        return made


class Publisher(LivePublisher):
    """Shows every step."""

    def __init__(self, name: str, store: str, tol: float) -> None:
        super().__init__(name)
        self._tol, self._reached, self._new = tol, False, False
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
        self._new = True
        rate = step.bytes_read / max(step.seconds, 1e-9) / 1e9
        said = f"step {step.number}: residual {step.worst_residual:.2e} (tol {self._tol:.0e}), {rate:.2f} GB/s"
        self._log.info(said)
        self._later(self._show, said, list(self._history))

    def _show(self, said: str, history: list[dict[str, Any]]) -> None:
        self._advance_now_and_then(said, progress_percent(history, self._tol))
        if self._plot_is_due:
            self._plot(said, history)

    def on_end(self, solution: Solution) -> None:
        self._thread.shutdown()
        self._reached = solution.answered
        self._advance(solution.outcome.sentence, 100.0)
        if self._new:  # a tick that finds its answer draws nothing
            self._plot(said_of(solution.outcome.sentence, solution.assurance), self._history)

    def _plot(self, said: str, history: list[dict[str, Any]]) -> None:
        far = f"{bar(100.0 if self._reached else progress_percent(history, self._tol))}\n\n"
        self._show_page(said, far + plot(history, self._tol), convergence_table(history))


def said_of(sentence: str, assurance: str) -> str:
    """How a run ended and, below that, how wrong its answer can be."""
    return f"{sentence}\n\n**How wrong can it be?** {assurance}" if assurance else sentence


def try_to(publish: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether ``publish`` worked, and what it returned. A failure is logged: it is none of the run."""
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
    """How far the residual has come from its first value to ``tol``, on a logarithmic scale."""
    if not history:
        return 0.0
    first, now = (max(history[i]["worst_residual"], 1e-17) for i in (0, -1))
    whole = math.log(first / tol)
    return 99.0 if whole <= 0 else min(99.0, max(0.0, 100 * math.log(first / now) / whole))


def bar(percent: float) -> str:
    """How far a run is, in the Markdown of the page that has its plot and table."""
    full = round(percent / 5)
    return f"`{'█' * full}{'░' * (20 - full)}` {percent:.0f} % of the way to the tolerance"


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
