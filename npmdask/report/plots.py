"""Plots of the reports: a figure with the house's axes, its SVG, and the plots that are data drawn on them."""

from __future__ import annotations

import io
from typing import Any

from npmdask.errors import extra
from npmdask.report.blocks import Map, Plot, Series

BLUE, ORANGE, GREY = "#2166ac", "#d6604d", "#777777"
COLOURS = (BLUE, ORANGE)  # of the series of a plot, in order


def axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    """Make a figure and its axes."""
    with extra("report"):
        from matplotlib.figure import Figure  # not pyplot: no global state, no display
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    drawn = figure.add_subplot()
    drawn.set(title=title, xlabel=x, ylabel=y)
    drawn.spines[["top", "right"]].set_visible(False)
    drawn.grid(alpha=0.25)
    return figure, drawn


def svg(figure: Any) -> str:
    """Write a figure as an SVG element, the same bytes for the same figure."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "npmdask"}):  # names of elements: by default drawn at random
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def draw(plot: Plot) -> str:
    """Draw a plot as an SVG element."""
    figure, left = axes(plot.title, plot.x, plot.y)
    right = left.twinx() if any(series.right for series in plot.series) else None
    named = []
    for number, series in enumerate(plot.series):
        line = _add(right if series.right else left, series, number, many=plot.counts)
        named += [(line, series.name)] if series.name else []
    for rule in plot.rules:
        line = (left.axvline if rule.y is None else left.axhline)(
            rule.x if rule.y is None else rule.y, color=GREY, linestyle="--", linewidth=1
        )
        named += [(line, rule.name)] if rule.name else []
    if plot.log:
        left.set_yscale("log")
    elif plot.bottom is not None or plot.top is not None:
        left.set_ylim(plot.bottom, plot.top)
    if right is not None:
        _finish_right(right, plot)
    if named:
        left.legend(*zip(*named, strict=True), frameon=False, fontsize=8)
    finish_below(left, counts=plot.counts)
    return svg(figure)


def _add(axis: Any, series: Series, number: int, *, many: bool) -> Any:
    """Draw a series; returns its entry in the legend."""
    colour, mark = COLOURS[number % len(COLOURS)], "os"[number % 2]
    x, y = list(series.x), list(series.y)
    match series.style:
        case "bars":
            return axis.bar(x, y, color=colour)
        case "steps":
            return axis.step(x, y, where="post", color=colour, linewidth=1)[0]
        case "points":
            mark = "." if many else "o"
            if series.spread is not None:
                return axis.errorbar(x, y, yerr=list(series.spread), fmt=mark, color=colour, capsize=3)
            return axis.plot(x, y, mark, color=colour)[0]
        case "thin":
            return axis.plot(x, y, ".-", color=colour, linewidth=1)[0]
        case "dashed":
            return axis.plot(x, y, f"{mark}--", color=colour)[0]
    return axis.plot(x, y, ".-" if series.right else f"{mark}-", color=colour)[0]


def _finish_right(axis: Any, plot: Plot) -> None:
    """Begin the axis on the right at 0, in the colour of its series; whole numbers where it has steps."""
    axis.set_ylabel(plot.right, color=next(COLOURS[i % 2] for i, one in enumerate(plot.series) if one.right))
    axis.set_ylim(0, plot.right_top)
    axis.spines["top"].set_visible(False)
    if any(series.right and series.style == "steps" for series in plot.series):
        axis.yaxis.get_major_locator().set_params(integer=True)


def finish_below(axis: Any, *, counts: bool) -> None:
    """Mark whole numbers, or of many rows a few, as 20k or 3M."""
    if not counts:
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # of one step, one mark
        return
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))


def draw_map(field: Map) -> str:
    """Draw a map as an SVG element, blue below 0 and red above it."""
    import numpy as np

    figure, axis = axes(field.title, field.x_name, field.y_name)
    values = np.array([[np.nan if value is None else value for value in row] for row in field.values], dtype=float)
    most = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    drawn = axis.pcolormesh(
        field.x, field.y, values, cmap="RdBu_r", vmin=-most, vmax=most, shading="nearest", rasterized=True
    )
    axis.grid(False)
    figure.colorbar(drawn, ax=axis)
    return svg(figure)
