"""Plots of the reports: a figure with the house's axes, and its SVG."""

from __future__ import annotations

import io
from typing import Any

BLUE, ORANGE, GREY = "#2166ac", "#d6604d", "#777777"


def axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    """A figure and its axes."""
    from matplotlib.figure import Figure  # not pyplot: no global state, no display

    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    drawn = figure.add_subplot()
    drawn.set(title=title, xlabel=x, ylabel=y)
    drawn.spines[["top", "right"]].set_visible(False)
    drawn.grid(alpha=0.25)
    return figure, drawn


def svg(figure: Any) -> str:
    """The figure as an SVG element, the same bytes for the same figure."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "npmdask"}):  # names of elements: by default drawn at random
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
