"""The three forms of a report: one self-contained HTML page, Markdown, and JSON.

All text is escaped by the form, never by who builds a report: names of files, labels and words may hold anything.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from npmdask.errors import extra
from npmdask.report.blocks import Bars, Block, Image, Map, Plot, Report, Section, Table, Text
from npmdask.report.plots import draw, draw_map

TEMPLATE = "page.html"
SIDE_BY_SIDE = {Plot: "plots", Map: "plots", Image: "plots", Bars: "cards"}  # blocks that share a row
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
    return _template().render(report=report, question=QUESTION, links=others, groups=_groups, picture=_picture)


def as_markdown(report: Report) -> str:
    """Write a report as Markdown, its plots as pictures inside of the text."""
    parts = [f"# {_marked(report.title)}", _marked(report.outcome)]
    if report.error_statement:
        parts.append(f"**{QUESTION}** {_marked(report.error_statement)}")
    return "\n\n".join([*parts, *(part for section in report.sections for part in _section(section))]) + "\n"


def as_json(report: Report) -> dict[str, Any]:
    """Turn a report into plain values for ``json.dumps``; every block says in ``block`` what it is."""
    sections = [{"title": s.title, "blocks": [_plain(block) for block in s.blocks]} for s in report.sections]
    facts = {"title": report.title, "outcome": report.outcome, "good": report.good}
    return {**facts, "error_statement": report.error_statement, "sections": sections}


@lru_cache
def _template() -> Any:
    """The page; loaded once."""
    with extra("report"):
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(TEMPLATE)


def _groups(section: Section) -> Iterator[tuple[str, list[Block]]]:
    """Neighbouring blocks that share a row or a list, and what their group is called."""
    for name, blocks in groupby(section.blocks, _group):
        yield name, list(blocks)


def _group(block: Block) -> str:
    """What a block is shown as: the name of a part of the template."""
    match block:
        case Text():
            return block.style
        case Table():
            return block.style
    return SIDE_BY_SIDE[type(block)]


def _picture(block: Plot | Map | Image) -> Any:
    """Markup of a picture: an SVG that is drawn here, or an image whose content is in its address."""
    from markupsafe import Markup  # of Jinja2

    match block:
        case Plot():
            return Markup('<figure class="plot">{}</figure>').format(Markup(draw(block)))
        case Map():
            return Markup("<figure>{}</figure>").format(Markup(draw_map(block)))
    return Markup('<figure><img alt="{}" src="{}"></figure>').format(block.about, _address(block))


def _address(image: Image) -> str:
    return f"data:image/{image.kind};base64,{base64.b64encode(image.content).decode()}"


def _section(section: Section) -> Iterator[str]:
    """Every group of blocks as a part of its own."""
    if section.title:
        yield f"## {_marked(section.title)}"
    for name, blocks in _groups(section):
        yield ("\n" if name == "item" else "\n\n").join(markdown(block) for block in blocks)


def markdown(block: Block) -> str:
    """Write one block as Markdown."""
    match block:
        case Text(text=text, style="code"):
            return "\n".join(f"    {line}" for line in text.split("\n"))
        case Text(text=text, style="plain", address=address):
            return f"[{_marked(text)}](<{quote(address, safe=SIGNS)}>)" if address else _marked(text)
        case Text(text=text, style=style):
            return f"{'-' if style == 'item' else '>'} {_marked(text)}"
        case Table():
            return _markdown_table(block)
        case Bars():
            words = ", ".join(f"{name} {share:.4f}" for name, share in block.bars)
            return _marked(f"{block.title}: {' · '.join((*block.notes, words))}")
        case Plot():
            return _embedded(Image(content=draw(block).encode(), kind="svg+xml", about=block.title))
        case Map():
            return _embedded(Image(content=draw_map(block).encode(), kind="svg+xml", about=block.title))
    return _embedded(block)


def _embedded(image: Image) -> str:
    return f"![{_marked(image.about)}]({_address(image)})"


def _markdown_table(table: Table) -> str:
    width = max((len(row) for row in (*table.rows, table.head)), default=0)
    head = table.head or ("",) * width
    lines = [head, *table.rows]
    rows = ["| " + " | ".join(_marked(str(cell)).replace("|", "&#124;") for cell in line) + " |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * width, *rows[1:]])


def _marked(text: str) -> str:
    """``text`` on one line, where nothing in it is a tag, a link or a picture; what is in backquotes stays code."""
    line = " ".join(text.split())
    for sign, written in (("&", "&amp;"), ("<", "&lt;"), ("[", "\\[")):
        line = line.replace(sign, written)
    return re.sub(r"^([#>]|[+*-](?= ))", r"\\\1", line)


def _plain(block: Block) -> dict[str, Any]:
    """The fields of a block, its kind first, bytes as text."""
    facts = asdict(block)
    if isinstance(block, Image):
        facts["content"] = base64.b64encode(block.content).decode()
    return {"block": type(block).__name__.lower(), **facts}
