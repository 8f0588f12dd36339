"""What the Prefect UI shows of a stream: rows, rows a second, and the measurements as a table and plots."""

import math
import time

from npmdask.checkpoint.store import RunStore
from npmdask.prefect.publish import LivePublisher, image, said_of
from npmdask.report.blocks import table
from npmdask.report.plots import axes, draw, svg
from npmdask.report.render import markdown
from npmdask.streaming import StreamSolution
from npmdask.streaming.metrics import Measurement
from npmdask.streaming.report import angles_plot, gap_plot
from npmdask.streaming.status import standing

ROWS = 50  # of the history that are drawn: there are two plots
COLUMNS = {"suboptimality": "suboptimality", "change": "change, max sin θ", "max_sin_theta": "max sin θ to the truth"}


class StreamPublisher(LivePublisher):
    """Shows every measurement, and every second how many rows were taken. ``total``: how many there are, if known."""

    def __init__(self, name: str, store: str, total: int | None) -> None:
        super().__init__(name)
        found = standing(RunStore(store))
        self._history = found.history if found else ()
        self._rows = found.rows if found else 0
        self._total, self._new = total, False
        self._plotted = time.monotonic()  # the first plot of a short tick is that of its end
        svg(axes("", "rows", "")[0])  # now: matplotlib's memory must be there when the memory of the stream is planned
        self._advance(f"looking for what is new after {self._rows} rows", self._percent())

    def on_rows(self, rows: int, skipped: int, rate: float) -> None:
        self._rows = rows
        left = f", {skipped} left out" if skipped else ""
        self._later(self._advance_now_and_then, f"{rows} rows{left}, {rate:.0f} rows/s", self._percent())

    def on_measurement(self, measurement: Measurement) -> None:
        self._history, self._rows, self._new = (*self._history, measurement), measurement.rows, True
        said = sentence(measurement)
        self._log.info(said)
        self._later(self._show, said, self._history)

    def _show(self, said: str, history: tuple[Measurement, ...]) -> None:
        self._advance_now_and_then(said, self._percent())
        if self._plot_is_due:
            self._plot(said, history)

    def on_stream_end(self, solution: StreamSolution) -> None:
        self._thread.shutdown()
        self._advance(solution.outcome.sentence, 100.0)
        if self._new:  # a tick that finds nothing draws nothing
            self._plot(said_of(solution.outcome.sentence, solution.assurance), self._history)

    def _plot(self, said: str, history: tuple[Measurement, ...]) -> None:
        self._show_page(said, pictures(history), measurements_table(history))

    def _percent(self) -> float:
        """Of what is there in all; of a source whose end is not known nothing can be said before it."""
        return min(99.0, 100 * self._rows / self._total) if self._total else 0.0


def sentence(measured: Measurement) -> str:
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
    thinned = history[:: math.ceil(len(history) / ROWS)]
    return "\n\n".join(image(draw(plot)) for plot in (gap_plot(thinned), angles_plot(thinned)) if plot)
