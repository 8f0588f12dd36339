"""The report of a stream: what was taken, how good the model is as far as that is known, and how fast it went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from math import sqrt
from typing import Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import bytes_text
from npmdask.core.storage.source import notes_in
from npmdask.errors import BadInputError
from npmdask.report import Plot, Report, Section, Table
from npmdask.report.blocks import (
    Text,
    parameters,
    section,
    series,
    spans_a_decade,
    spectrum_plot,
    table,
    tiles,
    warnings,
)
from npmdask.streaming.metrics import Measurement
from npmdask.streaming.solution import StreamStatus, stream_status
from npmdask.streaming.source import Reading

DRAWN = 8  # components whose values are drawn against the rows
ROUNDING = 1e-14  # the angle of a basis to itself, where no step was made between two measurements
TABLES = ("data", "algorithm", "run", "reading", "version", "environment")


def stream_report(store: RunStore) -> Report:
    """Report the stream in ``store`` as it was at its last commit, whether it is running, was killed, or ended.

    Raises
    ------
    BadInputError
        Nothing was committed yet.
    """
    found = stream_status(store)
    if found is None:
        raise BadInputError(f"there is no run with a committed step in {store.place}")
    history, centred = found.history, found.spec["data"]["center"]
    values = np.array(next((m.values for m in reversed(history) if m.values is not None), []))
    name = _value_name(found.moment, centred)
    called = name if found.moment == 3 else f"{name} of the rows along it"
    sizes = spectrum_plot(values, called) if len(values) else None
    head = section(
        "",
        *warnings(notes_in(found.spec)),
        _tiles(found, history, store.telemetry()),
        explained_plot(history),
        drift_plot(history, name),
        angles_plot(history),
        gap_plot(history),
        _steps_plot(history, _of_rank(found.moment)),
        sizes,
        _forgetting(found.spec["run"]["half_life"], found.rows),
    )
    components = _weights(values, found.facts) if found.moment == 3 else _components(values, name)
    return Report(
        title=store.path.name,
        outcome=found.sentence,
        good=found.current,
        error_statement=found.assurance,
        sections=(head, *components, parameters(_spec(found.spec), TABLES)),
    )


def _tiles(found: StreamStatus, history: tuple[Measurement, ...], telemetry: list[dict[str, Any]]) -> Table:
    last = history[-1] if history else None
    half_life = found.spec["run"]["half_life"]
    rate, peak, limit = _rate(telemetry), _peak(telemetry), _limit(telemetry)
    held = "not yet" if last is None else "no held-out rows"
    facts: list[tuple[str, str]] = [
        ("rows taken", f"{found.rows:,}"),
        ("rows left out (not finite)", f"{found.skipped:,}"),
        ("rows that wait for their step", f"{found.rows_waiting:,}"),
        ("steps", f"{found.steps:,}"),
        *([("half life, rows", f"{half_life:,.6g}")] if half_life else []),
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
        ]
        if last is not None and last.max_sin_theta is not None:  # of generated data
            facts.append(("max sin θ to the truth", f"{last.max_sin_theta:.1e}"))
    facts.append(("change, max sin θ", _number(last, "change", "not yet", ".1e")))
    files = found.files
    return tiles(facts if files is None else [*facts[:1], ("files done", f"{files[0]:,}"), *facts[1:]])


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


# Plots against the rows; None where there is nothing to draw


def gap_plot(history: tuple[Measurement, ...]) -> Plot | None:
    """Plot the suboptimality on the held-out rows against the rows taken."""
    lines = [("best rank k less what is captured", *_known_points(history, lambda m: m.suboptimality))]
    return _log_plot("Objective gap on the held-out rows", "suboptimality", lines)


def explained_plot(history: tuple[Measurement, ...]) -> Plot | None:
    """Plot the share of the held-out rows' variance that the components explain, against the rows taken."""
    rows, shares = _known_points(history, lambda m: m.explained)
    if not rows:
        return None
    drawn = series(rows, [100 * share for share in shares], style="thin")
    return Plot(
        title="Explained variance of the held-out rows",
        x="rows",
        y="% of it",
        series=(drawn,),
        bottom=0.0,
        top=100.0,
        x_is="count",
    )


def drift_plot(history: tuple[Measurement, ...], name: str) -> Plot | None:
    """Plot the value of each component against the rows taken, of a few components; ``name``: what a value is."""
    known = [m for m in history if m.values]
    if len(known) < 2:
        return None
    shown = min(DRAWN, max(len(m.values or ()) for m in known))
    drawn = []
    for i in range(shown):
        points = [(m.rows, m.values[i]) for m in known if m.values is not None and len(m.values) > i]
        drawn.append(series([x for x, _ in points], [y for _, y in points], f"component {i + 1}", style="thin"))
    log = spans_a_decade([y for one in drawn for y in one.y])
    return Plot(
        title=f"{name[0].upper()}{name[1:]} along each component",
        x="rows",
        y=name,
        series=tuple(drawn),
        log=log,
        bottom=None if log else min(0.0, *(y for one in drawn for y in one.y)),
        x_is="count",
        about="A line that keeps on rising or falling shows drift.",
    )


def _forgetting(half_life: float | None, rows: int) -> Text:
    """Say how far back the model looks."""
    if half_life is None:
        return Text(text=f"All {rows:,} rows count alike: of data that drift the components are those of all times.")
    return Text(
        text=f"A row counts half after {half_life:,.6g} more rows, a quarter after twice as many: the components are "
        "those of the latest rows, and the angle between two measurements stays above 0 even where nothing drifts."
    )


def angles_plot(history: tuple[Measurement, ...]) -> Plot | None:
    """Plot the angles to the truth, and to the measurement before, against the rows taken."""
    components = any(m.moment == 3 for m in history)
    title = "Largest angle of a component" if components else "Largest principal angle"
    lines = [
        ("to the measurement before", *_known_points(history, lambda m: m.change, above=ROUNDING)),
        ("to the truth", *_known_points(history, lambda m: m.max_sin_theta)),
    ]
    return _log_plot(title, "max sin θ", lines)


def _known_points(
    history: tuple[Measurement, ...], what: Callable[[Measurement], float | None], above: float = 0.0
) -> tuple[list[int], list[float]]:
    """Rows and values where a measurement has one; zero has no place on a logarithmic axis."""
    points = [(m.rows, value) for m in history if (value := what(m) or 0.0) > above]
    return [rows for rows, _ in points], [value for _, value in points]


def _log_plot(title: str, y: str, lines: list[tuple[str, list[int], list[float]]]) -> Plot | None:
    drawn = tuple(series(rows, values, label, style="thin") for label, rows, values in lines if values)
    return Plot(title=title, x="rows", y=y, series=drawn, log=True, x_is="count") if drawn else None


def _steps_plot(history: tuple[Measurement, ...], name: str) -> Plot | None:
    """Rows of a step and rank of the iterate, where one of them changes: else the tiles say it all."""
    rows, sizes = _known_points(history, lambda m: m.batch_rows)
    ranks = [m.rank for m in history]
    if len(set(sizes)) < 2 and len(set(ranks)) < 2:
        return None
    log = spans_a_decade(sizes)
    return Plot(
        title="Steps",
        x="rows",
        y="rows of the last step",
        right=name,
        series=(
            series(rows, sizes, style="points"),
            series([m.rows for m in history], ranks, style="steps", right=True),
        ),
        log=log,
        bottom=None if log else 0.0,
        right_top=max(ranks) + 1,
        x_is="count",
    )


def _components(values: np.ndarray, name: str) -> list[Section]:
    if not len(values):
        return []
    rows = ((i, f"{value:.10g}", f"{sqrt(max(value, 0.0)):.6g}") for i, value in enumerate(values.tolist(), 1))
    return [section("Components", table(rows, ("component", f"{name} along it", "its root")))]


def _of_rank(moment: int) -> str:
    return "components found" if moment == 3 else "rank of the iterate"


def _value_name(moment: int, centred: bool) -> str:
    return "weight in the third moment" if moment == 3 else "variance" if centred else "mean square"


def _weights(weights: np.ndarray, facts: dict[str, Any]) -> list[Section]:
    """Components of the third moment, with what the last answer says of them; those that are open have no weight."""
    count = max(len(weights), len(facts.get("status", ())))
    if not count:
        return []
    columns = ([f"{w:.10g}" for w in weights.tolist()], [f"{e:.1e}" for e in facts.get("standard_errors", ())])
    shown = [[*column, *["-"] * (count - len(column))] for column in (*columns, list(facts.get("status", ())))]
    rows = zip(range(1, count + 1), *shown, strict=True)
    return [section("Components", table(rows, ("component", "weight", "standard error", "status")))]


def _spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters with how the source is read, as far as it was given."""
    plain = asdict(Reading())
    said = {name: value for name, value in spec["stream"]["reading"].items() if value != plain[name]}
    return spec | {"reading": said}
