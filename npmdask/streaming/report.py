"""The page of a stream: what was taken, how good the model is as far as that is known, and how fast it went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from html import escape
from math import sqrt
from typing import Any

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError
from npmdask.privacy.request import unprotected
from npmdask.report.html import bytes_text, heading, page, parameters, spectrum_svg, table, tiles
from npmdask.report.plots import BLUE, ORANGE, axes, svg
from npmdask.streaming.metrics import Measurement
from npmdask.streaming.source import Reading
from npmdask.streaming.status import Standing, standing

ROUNDING = 1e-14  # the angle of a basis to itself, where no step was made between two measurements
TABLES = ("data", "algorithm", "run", "reading", "version", "environment")


def stream_page(store: RunStore) -> str:
    """The page of the stream in ``store`` as it was at its last commit, whether it is running, was killed, or ended.

    Raises
    ------
    BadInputError
        Nothing was committed yet.
    """
    found = standing(store)
    if found is None:
        raise BadInputError(f"there is no stream with a commit in {store.path}: wait for the first, or run it again")
    history, centred = found.history, found.spec["data"]["center"]
    values = np.array(next((m.values for m in reversed(history) if m.values is not None), []))
    name = _of_values(found.moment, centred)
    drawn = [gap_svg(history), angles_svg(history), _steps_svg(history, _of_rank(found.moment))]
    drawn += (
        [spectrum_svg(values, name if found.moment == 3 else f"{name} of the rows along it")] if len(values) else []
    )
    sections = [
        *heading(store.path.name, found.sentence, good=found.current, assurance=found.assurance),
        *(f'<p class="outcome bad">{escape(text)}</p>' for text in unprotected(found.spec.get("budget"))),
        tiles(_tiles(found, history, store.telemetry())),
        f'<div class="plots">{"".join(drawn)}</div>',
        *(_weights(values, found.facts) if found.moment == 3 else _components(values, name)),
        "<h2>Parameters</h2>",
        parameters(_spec(found.spec), TABLES),
    ]
    return page(store.path.name, sections)


def _tiles(found: Standing, history: tuple[Measurement, ...], telemetry: list[dict[str, Any]]) -> list[tuple[str, str]]:
    last = history[-1] if history else None
    rate, peak, limit = _rate(telemetry), _peak(telemetry), _limit(telemetry)
    unknown, held = "not yet" if last is None else "truth unknown", "not yet" if last is None else "no held-out rows"
    facts = [
        ("rows taken", f"{found.rows:,}"),
        ("rows left out (not finite)", f"{found.skipped:,}"),
        ("rows that wait for their step", f"{found.rows_waiting:,}"),
        ("steps", f"{found.steps:,}"),
        ("rows a step", _number(last, "mean_batch_rows", "not yet", ",.1f")),
        (_of_rank(found.moment), _number(last, "rank", "not yet", "d")),
        ("rows a second, last call", "not kept" if rate is None else f"{rate:,.0f}"),
        ("peak memory", "not kept" if peak is None else bytes_text(peak)),
        ("peak memory, predicted", _predicted(telemetry)),
        ("memory limit", bytes_text(limit) if limit else "none"),
    ]
    if found.moment == 2:
        facts += [
            ("explained, held-out rows", _number(last, "explained", held, ".2%")),
            ("suboptimality, held-out rows", _number(last, "suboptimality", held, ".2e")),
            ("max sin θ to the truth", _number(last, "max_sin_theta", unknown, ".1e")),
        ]
    facts.append(("change, max sin θ", _number(last, "change", "not yet", ".1e")))
    files = found.files
    return facts if files is None else [*facts[:1], ("files done", f"{files[0]:,}"), *facts[1:]]


def _number(last: Measurement | None, name: str, otherwise: str, form: str) -> str:
    value = None if last is None else getattr(last, name)
    return otherwise if value is None else format(value, form)


def _rate(telemetry: list[dict[str, Any]]) -> float | None:
    """Rows a second of the last call that took some: of all of it, or up to its last measurement if that is all."""
    begun, rate = None, None
    for line in telemetry:
        if line["event"] == "plan":
            begun = line["time"]
        elif line["event"] in ("measured", "end") and line.get("new_rows") and begun is not None:
            seconds = line["seconds"] if line["event"] == "end" else line["time"] - begun
            rate = line["new_rows"] / max(seconds, 1e-3)  # times are kept in milliseconds
    return rate


def _peak(telemetry: list[dict[str, Any]]) -> int | None:
    peaks = [line[name] for line in telemetry for name in ("rss", "peak_rss") if name in line]
    return max(peaks, default=None)


def _predicted(telemetry: list[dict[str, Any]]) -> str:
    """The peak that the last call was planned with, before its first row."""
    plans = [line["predicted_peak"] for line in telemetry if line["event"] == "plan" and "predicted_peak" in line]
    return bytes_text(plans[-1]) if plans else "not kept"


def _limit(telemetry: list[dict[str, Any]]) -> int | None:
    plans = [line for line in telemetry if line["event"] == "plan"]
    return plans[-1]["limit"] if plans else None


# Plots against the rows; an empty string where there is nothing to draw


def gap_svg(history: tuple[Measurement, ...]) -> str:
    """Suboptimality on the held-out rows against the rows taken."""
    lines = [("best rank k less what is captured", *_known(history, lambda m: m.suboptimality))]
    return _falling_svg("Objective gap on the held-out rows", "suboptimality", lines)


def angles_svg(history: tuple[Measurement, ...]) -> str:
    """Angles to the truth, and to the measurement before, against the rows taken."""
    components = any(m.moment == 3 for m in history)
    title = "Largest angle of a component" if components else "Largest principal angle"
    lines = [
        ("to the measurement before", *_known(history, lambda m: m.change, above=ROUNDING)),
        ("to the truth", *_known(history, lambda m: m.max_sin_theta)),
    ]
    return _falling_svg(title, "max sin θ", lines)


def _known(
    history: tuple[Measurement, ...], what: Callable[[Measurement], float | None], above: float = 0.0
) -> tuple[list[int], list[float]]:
    """Rows and values where a measurement has one; zero has no place on a logarithmic axis."""
    points = [(m.rows, value) for m in history if (value := what(m) or 0.0) > above]
    return [rows for rows, _ in points], [value for _, value in points]


def _falling_svg(title: str, y: str, lines: list[tuple[str, list[int], list[float]]]) -> str:
    drawn = [line for line in lines if line[1]]
    if not drawn:
        return ""
    figure, axis = _against_rows(title, y)
    axis.set_yscale("log")
    for (label, rows, values), color in zip(drawn, (BLUE, ORANGE), strict=False):
        axis.plot(rows, values, ".-", color=color, label=label, linewidth=1)
    axis.legend(frameon=False, fontsize=8)
    return svg(figure)


def _against_rows(title: str, y: str) -> tuple[Any, Any]:
    """Axes with few ticks along the rows: 20k, 3M."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure, axis = axes(title, "rows", y)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure, axis


def _steps_svg(history: tuple[Measurement, ...], name: str) -> str:
    """Rows of a step and rank of the iterate, where one of them changes: else the tiles say it all."""
    rows, sizes = _known(history, lambda m: m.batch_rows)
    ranks = [m.rank for m in history]
    if len(set(sizes)) < 2 and len(set(ranks)) < 2:
        return ""
    figure, axis = _against_rows("Steps", "rows of the last step")
    axis.plot(rows, sizes, ".", color=BLUE)
    axis.yaxis.label.set_color(BLUE)
    if sizes and max(sizes) >= 10 * min(sizes):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    other = axis.twinx()
    other.step([m.rows for m in history], ranks, color=ORANGE, where="post", linewidth=1)
    other.set_ylabel(name, color=ORANGE)
    other.set_ylim(0, max(ranks) + 1)
    other.yaxis.get_major_locator().set_params(integer=True)
    return svg(figure)


def _components(values: np.ndarray, name: str) -> list[str]:
    if not len(values):
        return []
    rows = ((i, f"{value:.10g}", f"{sqrt(max(value, 0.0)):.6g}") for i, value in enumerate(values.tolist(), 1))
    return ["<h2>Components</h2>", table(rows, ("component", f"{name} along it", "its root"))]


def _of_rank(moment: int) -> str:
    """What the rank of a measurement is called."""
    return "components found" if moment == 3 else "rank of the iterate"


def _of_values(moment: int, centred: bool) -> str:
    """What a value is called."""
    return "weight in the third moment" if moment == 3 else "variance" if centred else "mean square"


def _weights(weights: np.ndarray, facts: dict[str, Any]) -> list[str]:
    """Components of the third moment, with what the last answer says of them; those that are open have no weight."""
    count = max(len(weights), len(facts.get("status", ())))
    if not count:
        return []
    columns = ([f"{w:.10g}" for w in weights.tolist()], [f"{e:.1e}" for e in facts.get("standard_errors", ())])
    shown = [[*column, *["-"] * (count - len(column))] for column in (*columns, list(facts.get("status", ())))]
    rows = zip(range(1, count + 1), *shown, strict=True)
    return ["<h2>Components</h2>", table(rows, ("component", "weight", "standard error", "status"))]


def _spec(spec: dict[str, Any]) -> dict[str, Any]:
    """With how the source is read, as far as somebody said so."""
    plain = asdict(Reading())
    said = {name: value for name, value in spec["stream"]["reading"].items() if value != plain[name]}
    return spec | {"reading": said}
