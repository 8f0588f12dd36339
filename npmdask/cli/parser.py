"""Arguments of commands: mistakes as one sentence with the closest name that exists, colours on request, completion.

The parser is argparse's. Its own messages are matched by what they say, for there is no other way to tell them apart; a
test makes each of them with the Python that runs it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from npmdask.errors import BadInputError, closest

SCHEMA = Path(__file__).parents[1] / "config.schema.json"  # of configurations: `npmdask schema` prints the same
SCHEDULES_SCHEMA = SCHEMA.with_name("schedules.schema.json")  # of npmdask.prefect.schedules
SHELLS = ("bash", "zsh", "fish")
NEEDS = {"int": "a whole number", "float": "a number", "port": "a number from 0 to 65535"}  # types of arguments


def port(text: str) -> int:
    """The number of a port. Raises ValueError, of which argparse makes a message with the name of this function."""
    if not 0 <= (number := int(text)) < 65536:
        raise ValueError
    return number


def names(text: str) -> list[str]:
    """Names that commas separate, with quotation marks around one that has a comma."""
    return next(csv.reader([text], skipinitialspace=True), [])


def add_columns(p: Any) -> None:
    """Add the options that choose columns of a table."""
    p.add_argument(
        "--only", type=names, metavar="a,b", help="columns of a table to analyse, by name; or numeric: numbers only"
    )
    p.add_argument("--leave-out", type=names, metavar="a,b", help="columns of a table to leave out, by name")


def add_header(p: Any) -> None:
    """Add the option that says what the first line is."""
    said = "whether the first line of a CSV file holds names"
    p.add_argument("--header", action=argparse.BooleanOptionalAction, help=said)


def add_device(p: Any, default_said: str = "", *, default: str | None = None) -> None:
    """Add the options that choose what forms sums."""
    said = f"what forms the sums over the rows; cuda: an NVIDIA GPU{default_said}"
    p.add_argument("--device", choices=["cpu", "auto", "cuda"], default=default, help=said)
    p.add_argument("--device-memory", help="limit for the memory of the GPU, for each process, e.g. 20GiB")


def columns_of(a: argparse.Namespace) -> dict[str, Any] | None:
    """Return the columns that the options of a command choose; None: all columns."""
    only = "numeric" if a.only == ["numeric"] else a.only
    return {"only": only, "leave_out": a.leave_out} if a.only is not None or a.leave_out else None


class NoColor(argparse.Action):
    """Set NO_COLOR, which Rich and the programs that are started read."""

    def __call__(self, *_: Any) -> None:
        os.environ["NO_COLOR"] = "1"


class Parser(argparse.ArgumentParser):
    """A parser of arguments, and of those of its commands, which are of the same class."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("type", "port", port)  # for commands of features, which know no parser
        self.elsewhere: dict[str, str] = {}  # options that belong to another command, and what to do instead
        self.add_argument(
            "--no-color", action=NoColor, nargs=0, default=argparse.SUPPRESS, help="print no colors, as NO_COLOR does"
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but refuse what this command does not know, before the one above it does."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            self.error(self._unknown_text(left))
        return found, left

    def error(self, message: str) -> Any:
        """Print one sentence to stderr and exit with 2."""
        command = self.prog.removeprefix("npmdask").strip()
        said = self._rephrase(message)
        where = f"{command}: " if command else ""
        self.exit(BadInputError.exit_code, f"npmdask: {where}{said} (`{self.prog} --help` lists what there is)\n")

    def _unknown_text(self, left: Sequence[str]) -> str:
        flag = next((one for one in left if one.startswith("-") and one != "-"), None)
        if flag is not None:
            name = flag.partition("=")[0]
            if name in self.elsewhere:
                return f"there is no option {name}: {self.elsewhere[name]}"
            known = [option for action in self._actions for option in action.option_strings]
            return f"there is no option {name}: {closest(name, known)}"
        names = " ".join(_name(action) for action in self._actions if not action.option_strings)
        return f"{left[0]!r} is one argument too many: {f'only {names} is expected' if names else 'none is expected'}"

    def _rephrase(self, message: str) -> str:
        for pattern, say in MESSAGES:
            if (found := re.fullmatch(pattern, message, re.S)) is not None:
                return say(self, *found.groups())
        return message

    def _help_of(self, name: str) -> str:
        text = next((action.help for action in self._actions if _name(action) == name and action.help), None)
        return "" if text is None else f" ({text.replace('%%', '%')})"

    def missing(self, names: str) -> str:
        first, *rest = names.split(", ")
        said = f"{first.split('/')[-1]} is missing{self._help_of(first)}"
        return f"{said}, and so {'is' if len(rest) == 1 else 'are'} {', '.join(rest)}" if rest else said


def _name(action: argparse.Action) -> str:
    """As argparse calls it in messages."""
    if action.option_strings:
        return "/".join(action.option_strings)
    return str(action.metavar or action.dest)


def _flag(name: str) -> str:
    """``--output`` of ``-o/--output``; a positional argument as it is."""
    return next((part for part in name.split("/") if part.startswith("--")), name)


def _choice(_: Parser, name: str, given: str, known: str) -> str:
    names = [one.strip("'\"") for one in known.split(", ")]
    if name == "COMMAND":
        return f"there is no command {given}: {closest(given, names)}"
    return f"{_flag(name)} {given}: {closest(given, names)}"


def _wrong_value(_: Parser, name: str, kind: str, given: str) -> str:
    return f"{_flag(name)} {given}: {NEEDS.get(kind, kind)} is needed"


Say = Callable[..., str]
MESSAGES: tuple[tuple[str, Say], ...] = (
    (r"argument (.+?): invalid choice: '?(.*?)'? \(choose from (.+)\)", _choice),
    (r"argument (.+?): invalid '?(\w+)'? value: '(.*)'", _wrong_value),
    (r"argument (.+?): expected (?:one argument|at least one argument)", lambda _, a: f"{_flag(a)} needs a value"),
    (r"argument (.+?): expected (\d+) arguments", lambda _, a, n: f"{_flag(a)} needs {n} values"),
    (
        r"argument (.+?): ignored explicit argument '(.*)'",
        lambda _, a, value: f"{_flag(a)} takes no value: leave ={value} out",
    ),
    (
        r"argument (.+?): not allowed with argument (.+)",
        lambda _, a, b: f"{_flag(a)} and {_flag(b)} exclude each other: leave one out",
    ),
    (
        r"ambiguous option: (.+?) could match (.+)",
        lambda _, given, known: f"{given.partition('=')[0]} may mean {', '.join(known.split(', '))}: write it out",
    ),
    (r"one of the arguments (.+) is required", lambda _, names: f"one of {', '.join(names.split())} is needed"),
    (r"the following arguments are required: (.+)", Parser.missing),
)


# What a shell offers when the Tab key is pressed: argcomplete asks this program, whose parser knows the answers.


def add_completion(commands: Any) -> None:
    """``npmdask completion``."""
    p = commands.add_parser(
        "completion",
        help="print the lines that make a shell complete npmdask: commands, options, values, keys",
        description='Print what a shell has to read once. bash: `eval "$(npmdask completion bash)"` in ~/.bashrc. zsh: '
        "the same in ~/.zshrc, after compinit. fish: `npmdask completion fish | source` in "
        "~/.config/fish/config.fish.",
    )
    p.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    p.set_defaults(command=_completion)


def _completion(a: argparse.Namespace) -> int:
    import argcomplete

    print(argcomplete.shellcode(["npmdask"], shell=a.shell), end="")
    return 0


def complete(parser: Parser, short: dict[str, str]) -> None:
    """Answer a shell that asks what may follow, and exit; return at once where none does.

    ``short`` : options that are keys of a configuration, by their names; their values are those of the key.
    """
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    for one in _all_parsers(parser):
        for action in one._actions:
            if "--set" in action.option_strings:
                action.completer = complete_set  # type: ignore[attr-defined]
            elif (values := choices_of(short.get(action.dest, ""))) and action.option_strings and not action.choices:
                action.completer = partial(_offer, values)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options="long")


def _offer(values: list[str], **_: Any) -> list[str]:
    return values


def _all_parsers(parser: argparse.ArgumentParser) -> Iterable[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _all_parsers(below)


def complete_set(prefix: str, **_: Any) -> list[str]:
    """Return ``TABLE.KEY=`` of every key, or once it is written its values, where they are known.

    Examples
    --------
    >>> complete_set("run.mem")
    ['run.memory=']
    >>> complete_set("source.kind=sp")
    ['source.kind=sparse']
    """
    key, equals, _given = prefix.partition("=")
    offered = [f"{key}={value}" for value in choices_of(key)] if equals else [f"{name}=" for name in _keys()]
    return [one for one in offered if one.startswith(prefix)]


def choices_of(key: str) -> list[str]:
    """Return the values that a dotted key may have, where they are known.

    Examples
    --------
    >>> choices_of("report.rotate")
    ['varimax', 'promax', 'procrustes']
    """
    field = _keys().get(key, {})
    if field.get("type") == "boolean":
        return ["true", "false"]
    found = [one.get("enum", [one["const"]] if "const" in one else []) for one in (field, *field.get("anyOf", ()))]
    return [str(value) for values in found for value in values]


@cache
def _keys() -> dict[str, dict[str, Any]]:
    """The schema of each key, by its dotted name: read from a file, which takes no import of the configuration."""
    schema = json.loads(SCHEMA.read_text())
    found: dict[str, dict[str, Any]] = {}
    for table, field in schema["properties"].items():
        model = next(one["$ref"] for one in (field, *field.get("anyOf", ())) if "$ref" in one).rpartition("/")[2]
        found |= {f"{table}.{key}": said for key, said in schema["$defs"][model]["properties"].items()}
    return found


# The schema itself, for editors.


def add_schema(commands: Any) -> None:
    """``npmdask schema``."""
    p = commands.add_parser("schema", help="print the JSON schema of configurations, by which editors complete them")
    p.add_argument("--schedules", action="store_true", help="print the schema of files of schedules instead")
    p.set_defaults(command=_schema)


def _schema(a: argparse.Namespace) -> int:
    from npmdask.config import schema_text

    print(SCHEDULES_SCHEMA.read_text() if a.schedules else schema_text(), end="", file=sys.stdout)
    return 0
