"""Pages made from the program: the command line from argparse, the configuration from pydantic, the map of files."""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


def cell(text: str) -> str:
    """Escape what would end a cell of a table, or be taken for markup."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def subparsers(parser: argparse.ArgumentParser) -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """Commands of a parser in their order, each with its one line of help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {one.dest: one.help or "" for one in action._choices_actions}
            return {name: (sub, told[name]) for name, sub in action.choices.items() if name in told}
    return {}


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Rows of the table of one command."""
    formatter = parser._get_formatter()
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        if action.option_strings:
            value = "" if action.nargs == 0 else " " + formatter._format_args(action, action.dest.upper())
            name = ", ".join(action.option_strings) + value
        else:
            name = formatter._format_args(action, formatter._get_default_metavar_for_positional(action))
        told = formatter._expand_help(action) if action.help else ""
        yield f"| {code(name)} | {cell(told)} |"


def command_pages(parser: argparse.ArgumentParser, name: str, told: str, level: int) -> Iterator[str]:
    inner = subparsers(parser)
    yield f"{'#' * level} {name}\n"
    if told:
        yield f"{cell(told[0].upper() + told[1:])}.\n"
    if inner:
        for word, (sub, help_of_sub) in inner.items():
            yield from command_pages(sub, f"{name} {word}", help_of_sub, level + 1)
        return
    usage = re.sub(r"^usage: ", "", parser.format_usage())
    yield f"```text\n{usage.strip()}\n```\n"
    rows = list(options(parser))
    if rows:
        yield "\n".join(["| argument | meaning |", "|---|---|", *rows]) + "\n"


def command_line() -> str:
    """Every command with its arguments, as ``npmdask COMMAND --help`` says them."""
    from npmdask.cli.main import _parser

    commands = subparsers(_parser())
    table = ["| command | what it does |", "|---|---|"]
    table += [f"| [`{name}`](#npmdask-{name}) | {cell(told)} |" for name, (_, told) in commands.items()]
    pages = [
        line for name, (sub, told) in commands.items() for line in command_pages(sub, f"npmdask {name}", told, level=2)
    ]
    return "\n".join([*table, "", *pages])


def type_name(kind: Any) -> str:
    """A type as people write it in a file: ``"a", "b"``, ``whole number``, ``text``."""
    words = {str: "text", int: "whole number", float: "number", bool: "true, false", dict: "table", Any: "anything"}
    origin = get_origin(kind)
    if origin is Annotated:
        return type_name(get_args(kind)[0])
    if origin is Literal:
        return ", ".join(code(json.dumps(value)) for value in get_args(kind))
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_name(one) for one in get_args(kind) if one is not type(None)))
    if origin is list:
        return f"list of {type_name(get_args(kind)[0])}"
    if origin is dict:
        return "table"
    return words.get(kind, getattr(kind, "__name__", str(kind)))


def default_of(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None or value == "":
        return ""
    return code(json.dumps(value))


def configuration() -> str:
    """Every table of a configuration file with its keys."""
    from npmdask.config import RunConfig, table_of

    lines: list[str] = []
    for name, field in RunConfig.model_fields.items():
        table = table_of(field.annotation)
        if not (isinstance(table, type) and issubclass(table, BaseModel)):
            continue
        told = field.description or ""
        lines += [f"## \\[{name}\\]", "", f"{cell(told[:1].upper() + told[1:])}.".replace("..", "."), ""]
        lines += ["| key | meaning | type | default |", "|---|---|---|---|"]
        for key, one in table.model_fields.items():
            kind = type_name(one.rebuild_annotation())
            lines.append(f"| `{key}` | {cell(one.description or '')} | {kind} | {default_of(one)} |")
        lines.append("")
    return "\n".join(lines)


def house_map() -> str:
    """Every folder of npmdask, what its docstring says that it is, and its files."""
    package, rows = Path(__file__).parents[1] / "npmdask", []
    for init in sorted(package.rglob("*/__init__.py")):
        folder, what = init.parent, ast.get_docstring(ast.parse(init.read_text())) or ""
        files = sorted(path.name for path in folder.glob("*.py") if path != init)
        said = cell(re.sub(r":\w+:`~?([^`]+)`", r"`\1`", " ".join(what.partition("\n\n")[0].split())))
        rows.append(f"| {code(str(folder.relative_to(package)))} | {said} | {', '.join(map(code, files))} |")
    return "\n".join(["| folder | what it is | files |", "|---|---|---|", *rows]) + "\n"


def bench_history() -> str:
    """CPU seconds of others / ours, of every commit that ``make bench-quick KEEP=1`` was run on: a plot and a table."""
    from benchmarks.quick import HISTORY, WHAT
    from npmdask.report import Plot, Series
    from npmdask.report.render import markdown

    lines = [json.loads(line) for line in HISTORY.read_text().splitlines()]
    found = {row: [(i, line["ratios"].get(row)) for i, line in enumerate(lines, 1)] for row in WHAT}
    known = {
        row: [(i, ratio) for i, ratio in values if ratio] for row, values in found.items() if any(r for _, r in values)
    }
    drawn = tuple(
        Series(x=tuple(i for i, _ in values), y=tuple(y for _, y in values), name=row) for row, values in known.items()
    )
    title = "CPU seconds of other programs / ours"
    rows = ["| row | what | " + " | ".join(f"`{line['commit']}`" for line in lines[-5:]) + " |"]
    rows.append("|---|---|" + "---|" * len(lines[-5:]))
    for row, what in WHAT.items():
        ratios = (line["ratios"].get(row, "") for line in lines[-5:])
        shown_ratios = ("none" if r is None else r and f"{r:.3g}" for r in ratios)
        rows.append(f"| {code(row)} | {cell(what)} | " + " | ".join(shown_ratios) + " |")
    last = lines[-1]
    said = f"Last on {last['date']}: {last['machine']['cores']} cores, {last['machine']['cpu']}; {last['note']}".strip(
        "; "
    )
    how = "`make bench-quick` repeats them. Ratios are of the least CPU seconds of both, in turns; none: not accurate."
    drawing = markdown(Plot(title=title, series=drawn, x="commit", y="ratio", log=True)) if lines[1:] else ""
    shown = re.sub(
        r"!\[(.*)\]\((data:.*)\)", r'```{raw} html\n<img alt="\1" src="\2">\n```', drawing
    )  # no link to MyST
    return "\n".join([f"{how} {said}.", "", shown, "", *rows]) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "command_line": command_line,
    "configuration": configuration,
    "house_map": house_map,
    "bench_history": bench_history,
}
