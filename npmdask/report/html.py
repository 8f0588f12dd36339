"""What every page about a run is built of: one self-contained HTML file of tiles, plots and tables, text escaped."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from npmdask.report.plots import BLUE, axes, svg


def page(title: str, sections: Sequence[str]) -> str:
    """The whole page; ``sections`` are HTML already."""
    return _HEAD.format(title=html.escape(title)) + "\n".join(sections) + "</main></body></html>\n"


def linked(text: str, links: Mapping[str, str | Path], folder: Path) -> str:
    """A page with links to others, by their titles; relative to its own ``folder``, so that both can be moved."""
    if not links:
        return text
    items = (
        f'<li><a href="{html.escape(quote(os.path.relpath(path, folder)))}">{html.escape(title)}</a></li>'
        for title, path in links.items()
    )
    return text.replace("</main>", f"<h2>See also</h2><ul>{''.join(items)}</ul></main>")


def heading(title: str, sentence: str, *, good: bool, assurance: str = "") -> list[str]:
    """The name of a run, how it stands, and (``assurance``) how wrong its answer can be: a sentence each."""
    said = f'<p class="outcome {"good" if good else "bad"}">{html.escape(sentence)}</p>'
    return [f"<h1>{html.escape(title)}</h1>", said, *assured(assurance)]


def assured(assurance: str) -> list[str]:
    """The sentence that says how wrong an answer can be; nothing where there is no answer yet."""
    return [f'<p class="assurance"><b>How wrong can it be?</b> {html.escape(assurance)}</p>'] if assurance else []


def tiles(facts: Iterable[tuple[str, str]]) -> str:
    """Names and values as a grid of tiles."""
    cells = "".join(f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>" for name, value in facts)
    return f'<div class="tiles">{cells}</div>'


def table(rows: Iterable[Iterable[Any]], head: Sequence[str] = ()) -> str:
    """A table, a line for each of ``rows``."""
    first = f"<tr>{''.join(f'<th>{html.escape(name)}</th>' for name in head)}</tr>" if head else ""
    lines = (f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{first}{''.join(lines)}</table>"


def parameters(spec: dict[str, Any], tables: Sequence[str]) -> str:
    """The source and everything in these tables of ``spec``, by name."""
    facts = [("source", spec.get("source", ""))]
    for name in tables:
        facts += [(f"{name}.{field}", value) for field, value in spec.get(name, {}).items()]
    return table(facts)


def spectrum_svg(values: np.ndarray, name: str) -> str:
    """The sizes of the values, the largest first; on a logarithmic axis where they span a decade and none is zero."""
    figure, axis = axes("Spectrum", "component", name)
    size = np.abs(values)
    axis.plot(np.arange(1, len(size) + 1), size, "o-", color=BLUE)
    if size.min() > 0 and size.max() >= 10 * size.min():
        axis.set_yscale("log")
    else:
        axis.set_ylim(0, 1.05 * size.max() or 1)
    axis.xaxis.get_major_locator().set_params(integer=True)
    return svg(figure)


def bytes_text(n: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.3g} {unit}"
        n /= 1024
    return f"{n:.3g} TiB"


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title} · npmdask</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; background: #f6f7f9; margin: 0 }}
main {{ max-width: 1120px; margin: 0 auto; padding: 24px }}
h1 {{ margin: 0 0 8px }} h2 {{ margin: 28px 0 8px; font-size: 18px }}
.outcome {{ padding: 10px 14px; border-left: 5px solid; background: #fff; overflow-wrap: anywhere }}
.assurance {{ padding: 10px 14px; border-left: 5px solid #2166ac; background: #fff; overflow-wrap: anywhere }}
.good {{ border-color: #1b7837 }} .bad {{ border-color: #b2182b }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(190px, 45%), 1fr)) }}
.tiles {{ gap: 10px; margin: 16px 0 }}
.tiles div {{ background: #fff; padding: 10px 14px; border-radius: 6px }}
.tiles b {{ display: block; font-size: 19px }} .tiles span {{ color: #666; font-size: 12px }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(330px, 100%), 1fr)); gap: 10px }}
.plots svg {{ background: #fff; border-radius: 6px; width: 100%; max-width: 560px; height: auto }}
table {{ display: block; width: fit-content; max-width: 100%; overflow-x: auto }}
table {{ border-collapse: collapse; background: #fff }}
td, th {{ padding: 3px 14px 3px 8px; border-bottom: 1px solid #eee; text-align: left }}
</style></head><body><main>
"""
