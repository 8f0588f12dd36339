"""Static pictures of a report: plots and maps as SVG that suits a light page and a dark one.

Text and axes take the colour of the page around them, series have colours that are seen on both, and what has no
value is transparent. They are drawn once, without a browser; a page makes them interactive (``page.js``).
"""

from __future__ import annotations

import base64
import io
import re
import struct
import zlib
from datetime import UTC, datetime
from html import escape
from math import pi, sqrt
from typing import Any

from npmdask.errors import extra
from npmdask.report.blocks import Map, Plot, Series, TopicMap

BLUE, ORANGE, GREY = "#2166ac", "#d6604d", "#777777"  # of pictures in the documentation
# Of the series of a plot, in order: each has a contrast of 3 and more to white and to the sheet of a dark page (WCAG
# 2.2, 1.4.11; a test computes it).
COLOURS = (
    "#2f7ec4",
    "#d0651e",
    "#2f9a55",
    "#9a62c8",
    "#d9485f",
    "#17938f",
    "#a2703f",
    "#cc5aa5",
    "#8a8a24",
    "#6f8199",
)
BELOW, ABOVE, AMOUNT = COLOURS[0], COLOURS[4], COLOURS[5]  # of maps, by sign
ABSENT = "#8888888c"  # a value that is not there
LINES = "#7f8895"  # axes and rules
INK = "#0a0b0c"  # in place of the colour of the text around a picture, until it is written
ALONE = "#717a86"  # that of a picture with nothing around it: seen on white and on black
MARKS = "os^Dv"
MESH: Any = {"shading": "nearest", "rasterized": True, "antialiased": False}  # of the cells of a map
MANY = 400  # points: they are drawn as an image inside of the SVG


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


def themed(figure: Any) -> str:
    """Write a figure likewise, without a background, its text as text and in the colour of what is around it."""
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_color(INK if text.get_color() == "black" else text.get_color())
    for axis in figure.findobj(Axes):
        axis.spines[:].set_color(LINES)
        axis.tick_params(which="both", color=LINES, labelcolor=INK)
        axis.patch.set_alpha(0)
    figure.patch.set_alpha(0)
    with rc_context({"svg.fonttype": "none"}):
        found = svg(figure)
    found = re.sub(r" *<metadata>.*?</metadata>\n", "", found, flags=re.DOTALL)
    found = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", found)
    return found.replace(INK, "currentColor")


def draw(block: Plot | Map) -> str:
    """Draw a plot or a map as an SVG element that goes with any background, its title in it."""
    return _drawn(block, block.title).replace("<svg", f'<svg color="{ALONE}"', 1)


def draw_for_page(block: Plot | Map) -> str:
    """Draw it in the colours of the page around it, which writes its title."""
    return _drawn(block, "")


def _drawn(block: Plot | Map, title: str) -> str:
    if isinstance(block, Map) and block.pixels:
        return _image(block, title)
    return themed(_map(block, title) if isinstance(block, Map) else _plot(block, title))


def _plot(plot: Plot, title: str) -> Any:
    """A plot as a figure."""
    figure, left = axes(title, plot.x, plot.y)
    right = left.twinx() if any(series.right for series in plot.series) else None
    named = []
    many = plot.x_is == "count" or sum(len(series.x) for series in plot.series) > MANY
    for number, series in enumerate(plot.series):
        line = _add(right if series.right else left, series, number, plot.x_is, many=many)
        named += [(line, series.name)] if series.name else []
    for rule in plot.rules:
        line = (left.axvline if rule.y is None else left.axhline)(
            rule.x if rule.y is None else rule.y, color=LINES, linestyle="--", linewidth=1
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
    finish_below(left, plot.x_is)
    return figure


def _add(axis: Any, series: Series, number: int, x_is: str, *, many: bool) -> Any:
    """Draw a series; returns its entry in the legend."""
    colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
    x, y = [datetime.fromtimestamp(at, UTC) for at in series.x] if x_is == "time" else list(series.x), list(series.y)
    match series.style:
        case "bars":
            return axis.bar(x, y, color=colour)
        case "steps":
            return axis.step(x, y, where="post", color=colour, linewidth=1)[0]
        case "points":
            mark = "." if many else "o"
            if series.spread is not None:
                return axis.errorbar(x, y, yerr=list(series.spread), fmt=mark, color=colour, capsize=3)
            return axis.plot(x, y, mark, color=colour, markersize=3 if many else 5, rasterized=many)[0]
        case "thin":
            return axis.plot(x, y, "-" if len(x) > MANY else ".-", color=colour, linewidth=1)[0]
        case "dashed":
            return axis.plot(x, y, f"{mark}--", color=colour)[0]
    return axis.plot(x, y, ".-" if series.right else f"{mark}-", color=colour)[0]


def _finish_right(axis: Any, plot: Plot) -> None:
    """Begin the axis on the right at 0, in the colour of its series; whole numbers where it has steps."""
    colour = next(COLOURS[i % len(COLOURS)] for i, one in enumerate(plot.series) if one.right)
    axis.set_ylabel(plot.right, color=colour)
    axis.set_ylim(0, plot.right_top)
    axis.spines["top"].set_visible(False)
    if any(series.right and series.style == "steps" for series in plot.series):
        axis.yaxis.get_major_locator().set_params(integer=True)


def finish_below(axis: Any, x_is: str) -> None:
    """Mark whole numbers, of many rows a few, as 20k or 3M; values and times as matplotlib does."""
    if x_is == "whole":
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # of one step, one mark
    elif x_is == "time":
        axis.tick_params(axis="x", rotation=30)
    elif x_is == "count":
        from matplotlib.ticker import EngFormatter, MaxNLocator

        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))


def largest_magnitude(field: Map) -> float:
    """Compute the size of the largest value of a map; 1 where there is none."""
    return max((abs(value) for row in field.values for value in row if value is not None), default=0.0) or 1.0


def _image(field: Map, title: str) -> str:
    """An image as an SVG element of square pixels, without a figure around it: a page has a dozen."""
    rows, columns, most = len(field.y), len(field.x), largest_magnitude(field)
    absent = bytes.fromhex(ABSENT[1:])
    sides = [bytes.fromhex(colour[1:]) for colour in (BELOW, ABOVE)]
    lines = b"".join(
        b"\0" + b"".join(absent if v is None else sides[v > 0] + bytes([round(255 * abs(v) / most)]) for v in row)
        for row in field.values
    )
    chunks = (
        (b"IHDR", struct.pack(">2I5B", columns, rows, 8, 6, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    )
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    top = 20 * rows / 200 if title else 0.0
    said = f'<text x="0" y="{0.7 * top:g}" font-size="{0.7 * top:g}" fill="currentColor">{escape(title)}</text>' * bool(
        title
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns} {rows + top:g}">{said}<image y="{top:g}" '
        f'width="{columns}" height="{rows}" style="image-rendering: pixelated" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{base64.b64encode(png).decode()}"/></svg>'
    )


def _map(field: Map, title: str) -> Any:
    """A map as a figure: blue below 0 and red above it, or one colour that grows with the amount; a line around what
    has no value.
    """
    import numpy as np

    figure, axis = axes(title, field.x_name, field.y_name)
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize

    values = np.array([[np.nan if value is None else value for value in row] for row in field.values], dtype=float)
    most = largest_magnitude(field)
    if field.colours == "signed":
        ends, norm = [BELOW, f"{BELOW}00", f"{ABOVE}00", ABOVE], Normalize(-most, most)
        steps: list[float] = [0, 0.5, 0.5, 1]
    else:
        ends, steps = [f"{AMOUNT}30", AMOUNT], [0, 1]
        norm, values = LogNorm(1, max(most, 2)), np.where(values > 0, values, np.nan)
    shades: Any = LinearSegmentedColormap.from_list("shades", list(zip(steps, ends, strict=True)))
    shades = shades.with_extremes(bad=ABSENT if field.colours == "signed" else "#00000000")
    drawn = axis.pcolormesh(field.x, field.y, np.ma.masked_invalid(values), cmap=shades, norm=norm, **MESH)
    absent = np.isnan(values)
    if field.colours == "signed" and absent.any() and min(absent.shape) > 1:  # land has a coast
        axis.contour(field.x, field.y, absent, [0.5], colors=INK, linewidths=0.7)
    axis.grid(False)
    figure.colorbar(drawn, ax=axis)
    return figure


# The map of topics: circles, whose words the script of a page shows.

WIDTH, HEIGHT = 560, 460
COVERED = 0.14  # of the map, by all circles together
LEAST_RADIUS = 7.0  # so that a pointer finds it
NAMED = 4  # words of a topic, where the pointer rests on its circle


def draw_topics(block: TopicMap, colour: str = "") -> str:
    """Draw the map as an SVG element; ``colour`` of its text, by default that of the page around it."""
    described = f"{block.title}, map of {len(block.topics)} topics. {block.about}"
    words = _first_words(block)
    circles = []
    # The largest first: a small circle stays in front, and can be chosen.
    for number, (name, x, y, share) in sorted(enumerate(_place_topics(block)), key=lambda one: -one[1][3]):
        said = f"{name}: {100 * share:.3g} % of all words: {', '.join(words[number])}"
        circles.append(
            f'<g data-topic="{number}"><title>{escape(said)}</title><circle cx="{x:.1f}" cy="{y:.1f}" '
            f'r="{_radius(share):.1f}" fill="{COLOURS[0]}" fill-opacity="0.3" stroke="{COLOURS[0]}"/>'
            f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" fill="currentColor" font-size="13" '
            f'font-family="system-ui, sans-serif">{escape(name)}</text></g>'
        )
    inked = f' color="{colour}"' if colour else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(described)}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}"{inked}>{"".join(circles)}</svg>'
    )


def _radius(share: float) -> float:
    return max(LEAST_RADIUS, sqrt(share * COVERED * WIDTH * HEIGHT / pi))


def _place_topics(block: TopicMap) -> list[tuple[str, float, float, float]]:
    """The topics at places of the picture: one scale for both axes, every circle inside."""
    room = max((_radius(share) for *_, share in block.topics), default=0.0) + 2
    across, up = [x for _, x, _, _ in block.topics], [y for _, _, y, _ in block.topics]
    scale = min(
        (size - 2 * room) / (max(at) - min(at)) if max(at) > min(at) else float("inf")
        for size, at in ((WIDTH, across), (HEIGHT, up))
    )
    scale = scale if scale < float("inf") else 0.0  # all at one place
    middle = [(max(at) + min(at)) / 2 for at in (across, up)]
    return [
        (name, WIDTH / 2 + scale * (x - middle[0]), HEIGHT / 2 - scale * (y - middle[1]), share)
        for name, x, y, share in block.topics
    ]


def _first_words(block: TopicMap) -> list[list[str]]:
    """The likeliest words of every topic."""
    found: list[list[tuple[float, str]]] = [[] for _ in block.topics]
    for word, _, of in block.words:
        for topic, probability in of:
            found[topic].append((-probability, word))
    return [[word for _, word in sorted(words)[:NAMED]] for words in found]
