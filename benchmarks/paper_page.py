"""What was measured for docs/papers/streams.md: kept as JSON, laid into its tables; the words around them stay."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.docs import RESULTS, ROOT
from benchmarks.machine import describe
from benchmarks.paper_methods import METHODS
from npmdask.report.plots import svg

PAGE = ROOT / "docs" / "papers" / "streams.md"
Rows = list[list[str]]


def message(sentence: str) -> None:
    """Say how far it is."""
    sys.stderr.write(sentence + "\n")


def keep(name: str, found: dict[str, Any]) -> None:
    """Keep what was measured; parts not measured stay as they were."""
    path = RESULTS.with_name(f"{name}.json")
    before = kept(name) if path.exists() else {}
    path.write_text(json.dumps(_short(before | found | {"machine": describe()}), indent=0) + "\n")


def kept(name: str) -> dict[str, Any]:
    """What is kept."""
    found: dict[str, Any] = json.loads(RESULTS.with_name(f"{name}.json").read_text())
    return found


def _short(value: Any) -> Any:
    """Five digits are more than a figure shows."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def save(figure: Any, path: Path) -> None:
    """The figure as a small file: hundredths of a point will do, comments, indentation and names of groups are lost."""
    text = re.sub(r"(?<![\d.])([1-9]\d*\.\d\d)\d+", r"\1", svg(figure))
    text = re.sub(r"<!--.*?-->", "", text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    path.write_text(re.sub(r"\n\s+", "\n", text))


def table(rows: Rows) -> str:
    """Markdown; the first row is the head, and no first cell is empty."""
    head, *body = rows
    return "\n".join(
        [" | ".join(head).rstrip(), "|".join(["---"] * len(head)), *(" | ".join(r).rstrip() for r in body)]
    )


def write(tables: dict[str, Rows], page: Path = PAGE) -> None:
    """Lay the tables between their marks in the page."""
    text = page.read_text()
    for name, rows in tables.items():
        marks = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = marks.subn(lambda found, rows=rows: f"{found[1]}{table(rows)}\n{found[2]}", text)
        if count != 1:
            raise LookupError(f"{page} has {count} places <!-- {name} --> ... <!-- end -->: exactly one is wanted")
    page.write_text(text)


def msg_tables(found: dict[str, Any]) -> dict[str, Rows]:
    """Tables of the parts that were measured."""
    tables = {part: _methods(found[part]) for part in ("figure1", "mnist") if part in found}
    return tables | ({"table1": _table1(found["table"])} if "table" in found else {})


def _table1(lines: list[dict[str, Any]]) -> Rows:
    head = [
        "method",
        "k",
        "printed",
        "log-spaced steps (least to most)",
        "the same, our warm start",
        "all steps",
        "all steps, our warm start and exact test",
    ]
    body = [
        [
            line["method"].upper(), str(line["k"]), f"{line['printed']:.2f}",
            f"{line['logged']:.2f} ({line['least']:.2f} to {line['most']:.2f})", f"{line['own']:.2f}",
            f"{line['all']:.2f}", f"{line['exact']:.2f}",
        ]
        for line in lines
    ]  # fmt: skip
    return [head, *body]


def _methods(found: dict[str, Any]) -> Rows:
    head = [
        "k (gap)", "method", "rows", "suboptimality", "after one pass of rows", "rank, mean (most)",
        "rows of a step, mean", "rank Π(P + ηC), most",
    ]  # fmt: skip
    rows = [head]
    for k, methods in found.items():
        for name in METHODS:
            rows.append(
                [f"{k} ({methods['gap']:.2f})", name.upper() if name != "oja" else "Oja", *_line(methods[name])]
            )
    return rows


def _line(run: dict[str, Any]) -> list[str]:
    points, means = run["points"], run["means"]
    error, seen, steps = points["suboptimality"], points["rows"], points["step"]
    within = [i for i, rows in enumerate(seen) if rows <= steps[-1]]
    return [
        f"{seen[-1]:,.0f}", f"{error[-1]:.1e}", f"{error[within[-1]]:.1e}" if within else "still warming up",
        f"{means['rank']:.1f} ({run['largest_rank']:.0f})", f"{means['batch']:.1f}",
        f"{max(points['projected_rank']):.3g}" if "projected_rank" in points else "",
    ]  # fmt: skip


def stream_tables(found: dict[str, Any]) -> dict[str, Rows]:
    """Tables of the parts that were measured."""
    tables: dict[str, Rows] = {}
    if "error" in found:
        tables["error"] = _errors(found["error"])
    if "qgap" in found:
        tables["qgap"] = _gaps(found["qgap"])
    return tables


def _errors(found: dict[str, Any]) -> Rows:
    lines = {tuple(line[name] for name in "dpL"): line for lines in found["lines"].values() for line in lines}
    body = [[*map(str, sizes), f"{line['error'][-1]:.4f}", f"{line['slope']:.2f}"] for sizes, line in lines.items()]
    return [["d", "p", "L", "error", "slope of the last points"], *body]


def _gaps(found: dict[str, Any]) -> Rows:
    head = [
        "p", "s_(p+1) / s_k", f"no noise, to {found['tol']:g}", "theory, best q", "theory, q = k",
        "Gaussian noise ends at", "noise towards u_(p+1) ends at", "predicted",
        f"blocks of a stream, to {found['stream_tol']:g}",
    ]  # fmt: skip
    body = [
        [
            str(line["p"]), f"{line['ratio']:.3f}", _count(line["exact"]), f"{line['theory_q']:.0f}",
            f"{line['theory_k']:.0f}", f"{line['gaussian']:.3f}", f"{line['towards']:.3f}",
            f"{line['predicted']:.3f}", _count(line["stream"]),
        ]
        for line in found["lines"]
    ]  # fmt: skip
    return [head, *body]


def _count(steps: float | None) -> str:
    return "never" if steps is None else f"{steps:.0f}"
