"""Parts of a report: sections of typed blocks, as data; their look is up to :mod:`npmdask.report.render`.

A report knows no run and no file. Whatever has something to show (a run, a stream, topics, a plug-in) builds the same
few blocks, and each of the three forms (HTML, Markdown, JSON) is written once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Number = int | float


@dataclass(frozen=True, kw_only=True)
class Text:
    """A paragraph of plain text; its line breaks are kept where ``style`` is "code".

    ``style``: "warning" is loud; "item" is a line of a list; "code" is a command to copy. ``address``: where a plain
    one leads, if anywhere.
    """

    text: str
    style: Literal["plain", "warning", "item", "code"] = "plain"
    address: str = ""


@dataclass(frozen=True, kw_only=True)
class Marks:
    """A small mark for each of a row of things, in a cell of a table: whether it is good, bad or neither, and its name.

    Marks differ in height too, for who does not see colours.
    """

    marks: tuple[tuple[bool | None, str], ...]

    def __str__(self) -> str:
        return "".join({True: "✓", False: "✗", None: "–"}[good] for good, _ in self.marks)


Cell = str | int | float | Text | Marks | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells below a head; with JavaScript a click on a name in the head sorts them.

    ``style``: "tiles" shows two columns, names and values, as a grid; "list" keeps its order, and each of its rows is a
    paragraph where the page is narrow. A text in a cell is a link where it has an address.
    """

    rows: tuple[tuple[Cell, ...], ...]
    head: tuple[str, ...] = ()
    style: Literal["table", "tiles", "list"] = "table"


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of a plot, by ``x``. ``spread``: one standard deviation up and down; ``right``: to the axis on the right.

    ``style``: "line" has a mark at every point; "dashed" likewise; "thin" is for many points; "steps" stay until the
    next one. ``labels``: what the points are called, for who hovers over them.
    """

    x: tuple[Number, ...]
    y: tuple[Number, ...]
    name: str = ""
    style: Literal["line", "dashed", "thin", "points", "bars", "steps"] = "line"
    spread: tuple[Number, ...] | None = None
    right: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A straight line across a plot at ``y``, or at ``x``."""

    y: float | None = None
    x: float | None = None
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Series against one another.

    ``log``: the axis on the left is logarithmic, else ``bottom`` and ``top`` are its ends where they are given. The
    axis on the right begins at 0 and ends at ``right_top``. ``x_is``: "whole" numbers like components; "count": many
    rows (20k, 3M); "value": any numbers; "time": seconds since 1970, UTC. ``about``: what the plot shows, in a
    sentence, for who does not see it.
    """

    title: str
    series: tuple[Series, ...]
    x: str = ""
    y: str = ""
    right: str = ""
    log: bool = False
    bottom: float | None = None
    top: float | None = None
    right_top: float | None = None
    rules: tuple[Rule, ...] = ()
    x_is: Literal["whole", "count", "value", "time"] = "whole"
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """A few named numbers as bars, like the words of a topic; ``most`` is the size that fills the width.

    Where one is negative, bars begin in the middle.
    """

    title: str
    notes: tuple[str, ...]
    bars: tuple[tuple[str, float], ...]
    most: float

    @property
    def signed(self) -> bool:
        """Say whether some are negative."""
        return any(value < 0 for _, value in self.bars)


@dataclass(frozen=True, kw_only=True)
class Image:
    """A picture, whole: ``content`` in the format ``kind``; ``about`` is what it shows, in words."""

    content: bytes
    kind: Literal["svg+xml", "png"]
    about: str


@dataclass(frozen=True, kw_only=True)
class Map:
    """Values on a grid, by rows from the first ``y`` on: a component over latitude and longitude, a density of rows.

    A value that is not there (land, say) is None, and drawn grey. ``colours``: "signed" are symmetric about 0;
    "amount" grow from 0, as the logarithm. ``pixels``: square cells without axes, the first row on top, as an image
    has them. ``about``: as of a :class:`Plot`.
    """

    title: str
    values: tuple[tuple[float | None, ...], ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    x_name: str = ""
    y_name: str = ""
    colours: Literal["signed", "amount"] = "signed"
    pixels: bool = False
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class TopicMap:
    """Topics as circles on a map, and with JavaScript the words of the topic that a reader chooses.

    ``topics``: name, x, y and share of all words of each. ``words``: each with its share of all words and its
    probability in topics, by their numbers from 0; a topic has the words that list it. ``about``: what the map shows,
    in sentences.
    """

    title: str
    topics: tuple[tuple[str, float, float, float], ...]
    words: tuple[tuple[str, float, tuple[tuple[int, float], ...]], ...]
    about: str = ""


Block = Text | Table | Plot | Bars | Image | Map | TopicMap


@dataclass(frozen=True, kw_only=True)
class Section:
    """Blocks under a title, which may be empty."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that is to be said of one run.

    Parameters
    ----------
    title : what was asked of which data, or what the run is called.
    about : more of the same in a sentence: sizes, units, what was done to the data first.
    outcome : the status, in a sentence.
    good : whether it has an answer.
    error_statement : how wrong the answer can be, in a sentence; "" where there is no answer yet.
    sections : what else there is to say, in order.

    Examples
    --------
    >>> from npmdask.report import Report, Section, Table, Text, as_markdown
    >>> numbers = Section(title="Numbers", blocks=(Text(text="Two of them."), Table(rows=((1, 2),), head=("a", "b"))))
    >>> print(as_markdown(Report(title="example", outcome="done", good=True, sections=(numbers,))))
    # example
    <BLANKLINE>
    done
    <BLANKLINE>
    ## Numbers
    <BLANKLINE>
    Two of them.
    <BLANKLINE>
    | a | b |
    |---|---|
    | 1 | 2 |
    <BLANKLINE>
    """

    title: str
    outcome: str
    good: bool
    sections: tuple[Section, ...]
    error_statement: str = ""
    about: str = ""


def section(title: str, *blocks: Block | None) -> Section:
    """Make a section of those ``blocks`` that there are."""
    return Section(title=title, blocks=tuple(block for block in blocks if block is not None))


def tiles(facts: Iterable[tuple[str, str]]) -> Table:
    """Make a grid of tiles from names and values."""
    return Table(rows=tuple(facts), style="tiles")


def table(rows: Iterable[Iterable[Any]], head: Sequence[str] = (), style: Literal["table", "list"] = "table") -> Table:
    """Make a table of ``rows``; what is no number is shown as text."""
    return Table(rows=tuple(tuple(_cell(cell) for cell in row) for row in rows), head=tuple(head), style=style)


def parameters(spec: Mapping[str, Any], tables: Sequence[str]) -> Section:
    """List the source of a run, and everything in these tables of its ``spec``, by name."""
    facts = [("source", spec.get("source", ""))]
    for name in tables:
        facts += [(f"{name}.{field}", value) for field, value in spec.get(name, {}).items()]
    return section("Parameters", table(facts))


def warnings(said: Iterable[str]) -> tuple[Text, ...]:
    """Make a warning of every sentence."""
    return tuple(Text(text=text, style="warning") for text in said)


def series(x: Iterable[Any], y: Iterable[Any], name: str = "", **more: Any) -> Series:
    """Make a series of plain numbers, whatever they were."""
    spread = more.pop("spread", None)
    plain = None if spread is None else tuple(map(float, spread))
    return Series(x=tuple(map(float, x)), y=tuple(map(float, y)), name=name, spread=plain, **more)


def spectrum_plot(
    values: Iterable[Any], name: str, *, errors: Iterable[Any] | None = None, mixed: Iterable[int] = ()
) -> Plot:
    """Plot the sizes of values, the largest first; on a logarithmic axis where they span a decade and none is zero.

    ``errors``: standard errors of them; ``mixed``: numbers from 0 of those that such errors mix.
    """
    sizes = [abs(float(value)) for value in values]
    spread = None if errors is None else [float(error) for error in errors]
    drawn: tuple[Series, ...] = (series(range(1, len(sizes) + 1), sizes),)
    if spread is not None:
        together = set(mixed)
        single = [i for i in range(len(sizes)) if i not in together]
        drawn = tuple(
            series(
                [i + 1 for i in some], [sizes[i] for i in some], what, style="points", spread=[spread[i] for i in some]
            )
            for what, some in (("± standard error", single), ("mixed with a neighbour", sorted(together)))
            if some
        )
    if spans_a_decade([*sizes, *(size - error for size, error in zip(sizes, spread or [], strict=False))]):
        return Plot(title="Spectrum", x="component", y=name, series=drawn, log=True)
    most = max(size + error for size, error in zip(sizes, spread or [0.0] * len(sizes), strict=True))
    return Plot(title="Spectrum", x="component", y=name, series=drawn, bottom=0.0, top=1.05 * most or 1.0)


def spans_a_decade(sizes: Sequence[float]) -> bool:
    """Say whether ``sizes`` are for a logarithmic axis."""
    return len(sizes) > 0 and min(sizes) > 0 and max(sizes) >= 10 * min(sizes)


def _cell(value: Any) -> Cell:
    """A number of Python as it is; all else as it prints, NumPy's numbers too."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    return (
        int(value) if type(value) is int else value if value is None or isinstance(value, Text | Marks) else str(value)
    )
