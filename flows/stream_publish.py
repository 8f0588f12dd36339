"""What the Prefect UI shows of a stream: rows, rows a second, and the measurements as a table and a plot."""

import time
from dataclasses import asdict
from typing import Any

from flows.publish import LivePublisher, image, thinned
from npmdask.charts import BLUE, GREY, ORANGE, axes, svg
from npmdask.checkpoint import RunStore
from npmdask.streaming import StreamSolution
from npmdask.streaming.measures import Measurement

CURVES = (("suboptimality", ORANGE), ("change", GREY), ("max_sin_theta", BLUE))
LABELS = {"suboptimality": "suboptimality", "change": "change, max sin θ", "max_sin_theta": "max sin θ to the truth"}


class StreamPublisher(LivePublisher):
    """Shows every measurement, and every second how many rows were taken. ``total``: how many there are, if known."""

    def __init__(self, name: str, store: str, total: int | None) -> None:
        super().__init__(name)
        last = RunStore(store).last_step()
        self._history: list[dict[str, Any]] = list(last[1]["measures"]["history"]) if last else []
        self._total, self._new = total, False
        self._plotted = time.monotonic()  # the first plot of a short tick is that of its end
        self._rows = self._history[-1]["rows"] if self._history else 0
        measurements_svg([])  # now: matplotlib's memory must be there when the memory of the stream is planned
        self._advance(f"looking for new rows after {self._rows}" if last else "starting", self._percent())

    def on_rows(self, rows: int, skipped: int, rate: float) -> None:
        self._rows = rows
        left = f", {skipped} left out" if skipped else ""
        self._later(self._advance_now_and_then, f"{rows} rows{left}, {rate:.0f} rows/s", self._percent())

    def on_measurement(self, measurement: Measurement) -> None:
        self._history.append(asdict(measurement))
        self._rows, self._new = measurement.rows, True
        said = sentence(self._history[-1])
        self._log.info(said)
        self._later(self._show, said, list(self._history))

    def _show(self, said: str, history: list[dict[str, Any]]) -> None:
        self._advance_now_and_then(said, self._percent())
        if self._plot_is_due:
            self._plot(said, history)

    def on_stream_end(self, solution: StreamSolution) -> None:
        self._thread.shutdown()
        self._advance(solution.outcome.sentence, 100.0)
        if self._new:  # a tick that finds nothing draws nothing
            self._plot(solution.outcome.sentence, self._history)

    def _plot(self, said: str, history: list[dict[str, Any]]) -> None:
        self._show_page(said, image(measurements_svg(thinned(history))), measurements_table(history))

    def _percent(self) -> float:
        """Of what is there in all; of a source whose end is not known nothing can be said before it."""
        return min(99.0, 100 * self._rows / self._total) if self._total else 0.0


def sentence(measured: dict[str, Any]) -> str:
    """A measurement in a line."""
    known = [f"{LABELS[name]} {measured[name]:.2e}" for name, _ in CURVES if measured[name] is not None]
    return ", ".join([f"{measured['rows']} rows: rank {measured['rank']}", *known])


def measurements_table(history: list[dict[str, Any]]) -> str:
    """The last measurements as a Markdown table."""
    lines = ["| rows | rank | " + " | ".join(LABELS.values()) + " |", "|---|---|---|---|---|"]
    for h in history[-20:]:
        values = ("" if h[name] is None else f"{h[name]:.2e}" for name in LABELS)
        lines.append(f"| {h['rows']} | {h['rank']} | {' | '.join(values)} |")
    return "\n".join(lines)


def measurements_svg(history: list[dict[str, Any]]) -> str:
    """What is known of a model against the rows that it had; zero has no place on the logarithmic axis."""
    figure, axis = axes("The model as rows come", "rows", "")
    axis.set_yscale("log")
    for name, color in CURVES:
        points = [(h["rows"], h[name]) for h in history if h[name]]
        if points:
            axis.plot(*zip(*points, strict=True), ".-", color=color, label=LABELS[name], linewidth=1)
    if axis.lines:
        axis.legend(frameon=False, fontsize=8)
    return svg(figure)
