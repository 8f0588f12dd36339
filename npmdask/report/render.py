"""The three forms of a report: one self-contained HTML page, Markdown, and JSON.

All text is escaped by the form, never by who builds a report: names of files, labels and words may hold anything.

A page holds a still picture of every plot and map, and their numbers as data. Its one script (``page.js`` over uPlot,
docs/decisions/0050-report-page.md) makes them interactive; without it, the pictures stay.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from npmdask.errors import Later, extra
from npmdask.report.blocks import Bars, Block, Cell, Image, Map, Plot, Report, Section, Table, Text, TopicMap
from npmdask.report.plots import ALONE, draw, draw_for_page, draw_topics, largest_magnitude

HERE = Path(__file__).parent
TEMPLATE, SCRIPTS = "page.html", ("page.js", "topics.js")
SIDE_BY_SIDE = {
    Plot: "plots",
    Map: "plots",
    Image: "plots",
    Bars: "cards",
    TopicMap: "topics",
}  # blocks that share a row
markupsafe = Later("markupsafe", "report")  # of Jinja2
MOST_ROWS = 200  # of numbers behind a picture
QUESTION = "How wrong can it be?"
SIGNS = ":/?#@!$&*+,;=%~"  # that stay as they are in an address


def as_html(report: Report, links: Mapping[str, str | Path] | None = None, folder: Path | None = None) -> str:
    """Write a report as one page that needs no other file.

    Parameters
    ----------
    report : what is shown.
    links : other pages to name at the end, by title; relative to ``folder``, so that both can be moved.
    folder : where the page will lie.

    Raises
    ------
    RefusedError
        Jinja2 is not installed.
    """
    here = folder or Path()
    others = {title: quote(os.path.relpath(path, here)) for title, path in (links or {}).items()}
    how: dict[str, Any] = {"groups": _groups, "picture": _picture, "caption": _caption, "behind": behind, "live": _json}
    how |= {"topic_map": _topic_map, "topic_words": _topic_words}
    return _template().render(report=report, question=QUESTION, links=others, style=_style(), script=_script(), **how)


def script_policy() -> str:
    """Return what a Content-Security-Policy must allow, so that pages run the script that they are written with, and
    no other: its digest.
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()}'"


def as_markdown(report: Report) -> str:
    """Write a report as Markdown, its plots as pictures inside of the text."""
    parts = [f"# {_escape(report.title)}", *([_escape(report.about)] if report.about else []), _escape(report.outcome)]
    if report.error_statement:
        parts.append(f"**{QUESTION}** {_escape(report.error_statement)}")
    return "\n\n".join([*parts, *(part for section in report.sections for part in _section(section))]) + "\n"


def as_json(report: Report) -> dict[str, Any]:
    """Turn a report into plain values for ``json.dumps``; every block says in ``block`` what it is."""
    sections = [{"title": s.title, "blocks": [_block_fields(block) for block in s.blocks]} for s in report.sections]
    facts = {"title": report.title, "outcome": report.outcome, "good": report.good}
    return {**facts, "about": report.about, "error_statement": report.error_statement, "sections": sections}


@lru_cache
def _template() -> Any:
    """The page; loaded once."""
    with extra("report"):
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    loader = FileSystemLoader(HERE)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(TEMPLATE)


@lru_cache
def _script() -> Any:
    """The script of a page: uPlot with its licence, and what uses it."""
    licence = (HERE / "uplot" / "LICENSE").read_text()
    parts = ((HERE / "uplot" / "uPlot.iife.min.js").read_text(), *((HERE / name).read_text() for name in SCRIPTS))
    return markupsafe.Markup("\n".join((f"/* uPlot\n{licence}*/", *parts)))


@lru_cache
def _style() -> Any:
    return markupsafe.Markup((HERE / "uplot" / "uPlot.min.css").read_text() + (HERE / "page.css").read_text())


def _groups(section: Section) -> Iterator[tuple[str, list[Block]]]:
    """Neighbouring blocks that share a row or a list, and what their group is called."""
    for name, blocks in groupby(section.blocks, _group):
        yield name, list(blocks)


def _group(block: Block) -> str:
    """Return the part of the template that shows a block."""
    match block:
        case Text():
            return block.style
        case Table():
            return block.style
        case Map(pixels=True):
            return "pixels"
    return SIDE_BY_SIDE[type(block)]


def _caption(block: Plot | Map | Image) -> str:
    return block.about if isinstance(block, Image) else block.title


def described(block: Plot | Map) -> str:
    """Say in words what a picture shows: its title, its axes, and the note of its author."""
    if isinstance(block, Map):
        rows, columns = len(block.y), len(block.x)
        drawn = f"image of {rows} by {columns}" if block.pixels else f"map, {block.x_name} by {block.y_name}"
    else:
        names = ", ".join(one.name for one in block.series if one.name)
        drawn = f"plot of {block.y or 'values'} by {block.x or 'number'}" + (f": {names}" if names else "")
    return f"{block.title}, {drawn}" + (f". {block.about}" if block.about else "")


def behind(block: Block) -> Table | None:
    """Return the numbers of a plot as a table; None of what is no plot, or of more than MOST_ROWS points."""
    if not isinstance(block, Plot) or not block.series:
        return None
    places = sorted({x for one in block.series for x in one.x})
    if len(places) > MOST_ROWS or any(len(set(one.x)) < len(one.x) for one in block.series):
        return None
    columns = [dict(zip(one.x, one.y, strict=True)) for one in block.series]
    names = [one.name or (block.right if one.right else block.y) or "value" for one in block.series]
    said = _time_text if block.x_is == "time" else _number
    rows = tuple((said(x), *(_number(column.get(x)) for column in columns)) for x in places)
    return Table(rows=rows, head=(block.x or "number", *names))


def _time_text(seconds: float) -> str:
    """A time, as a date where it is the start of a day."""
    said = datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
    return said.removesuffix(" 00:00:00")


def _number(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6g}"


def _picture(block: Plot | Map | Image) -> Any:
    """Markup of a picture: an SVG that is drawn here, or an image whose content is in its address."""
    if isinstance(block, Image):
        return markupsafe.Markup('<img alt="{}" src="{}">').format(block.about, _address(block))
    named = f'<svg role="img" aria-label="{markupsafe.escape(described(block))}"'
    return markupsafe.Markup(draw_for_page(block).replace("<svg", named, 1))


def _json(block: Plot | Map | Image) -> Any:
    """The numbers of a picture for the script, as JSON that ends no tag; "" of an image, which has none."""
    if isinstance(block, Image) or (isinstance(block, Plot) and not any(one.x for one in block.series)):
        return ""
    facts = {"block": type(block).__name__.lower()} | asdict(block)
    for name in ("title", "about"):
        del facts[name]
    if isinstance(block, Map):
        facts |= {"cells": _cells(block), "most": largest_magnitude(block)}
        del facts["values"]
    else:
        facts["series"] = [
            {name: _rounded(held, whole=name == "x") for name, held in one.items() if held not in (None, (), "", False)}
            for one in facts["series"]
        ]
    return markupsafe.Markup(json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c"))


def _topic_map(block: TopicMap) -> Any:
    return markupsafe.Markup(draw_topics(block))


def _topic_words(block: TopicMap) -> Any:
    return markupsafe.Markup(topic_numbers(block))


def topic_numbers(block: TopicMap) -> str:
    """Write the numbers of a map of topics for the script, as JSON that ends no tag."""
    facts = {
        "topics": [[name, _six_digits(share)] for name, _, _, share in block.topics],
        "words": [[word, _six_digits(share), [[t, _six_digits(p)] for t, p in of]] for word, share, of in block.words],
    }
    return json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c")


def _six_digits(number: float) -> float:
    return float(f"{number:.6g}")


def _rounded(held: Any, *, whole: bool) -> Any:
    """Numbers with six digits, instants with all of theirs."""
    if not isinstance(held, tuple) or not held or isinstance(held[0], str):
        return held
    digits = 10 if whole and abs(held[-1]) > 1e6 else 6
    return [None if not math.isfinite(one) else float(f"{one:.{digits}g}") for one in held]


def _cells(field: Map) -> str:
    """All values of a map, as float32 in base64; NaN where there is none."""
    values = [math.nan if value is None else value for row in field.values for value in row]
    return base64.b64encode(array("f", values).tobytes()).decode()


def _address(image: Image) -> str:
    return f"data:image/{image.kind};base64,{base64.b64encode(image.content).decode()}"


def _section(section: Section) -> Iterator[str]:
    """Every group of blocks as a part of its own."""
    if section.title:
        yield f"## {_escape(section.title)}"
    for name, blocks in _groups(section):
        yield ("\n" if name == "item" else "\n\n").join(markdown(block) for block in blocks)


def markdown(block: Block) -> str:
    """Write one block as Markdown."""
    match block:
        case Text(text=text, style="code"):
            return "\n".join(f"    {line}" for line in text.split("\n"))
        case Text(text=text, style="plain", address=address):
            return f"[{_escape(text)}](<{quote(address, safe=SIGNS)}>)" if address else _escape(text)
        case Text(text=text, style=style):
            return f"{'-' if style == 'item' else '>'} {_escape(text)}"
        case Table():
            return _markdown_table(block)
        case Bars():
            words = ", ".join(f"{name} {share:.4f}" for name, share in block.bars)
            return _escape(f"{block.title}: {' · '.join((*block.notes, words))}")
        case Plot() | Map():
            return _image_markdown(Image(content=draw(block).encode(), kind="svg+xml", about=described(block)))
        case TopicMap():
            return _image_markdown(Image(content=draw_topics(block, ALONE).encode(), kind="svg+xml", about=block.title))
    return _image_markdown(block)


def _image_markdown(image: Image) -> str:
    return f"![{_escape(image.about)}]({_address(image)})"


def _markdown_table(table: Table) -> str:
    width = max((len(row) for row in (*table.rows, table.head)), default=0)
    head = table.head or ("",) * width
    lines = [head, *table.rows]
    rows = ["| " + " | ".join(_cell_markdown(cell).replace("|", "&#124;") for cell in line) + " |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * width, *rows[1:]])


def _cell_markdown(cell: Cell) -> str:
    if isinstance(cell, Text):
        return markdown(Text(text=cell.text, address=cell.address))
    return _escape(str(cell))


def _escape(text: str) -> str:
    """``text`` on one line, where nothing in it is a tag, a link or a picture; what is in backquotes stays code."""
    line = " ".join(text.split())
    for sign, written in (("&", "&amp;"), ("<", "&lt;"), ("[", "\\[")):
        line = line.replace(sign, written)
    return re.sub(r"^([#>]|[+*-](?= ))", r"\\\1", line)


def _block_fields(block: Block) -> dict[str, Any]:
    """The fields of a block, its kind first, bytes as text."""
    facts = asdict(block)
    if isinstance(block, Image):
        facts["content"] = base64.b64encode(block.content).decode()
    return {"block": type(block).__name__.lower(), **facts}
