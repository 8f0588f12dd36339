"""Measure how well the house stands: what a plain ``npmdask.top_k`` loads, and what the core knows of features.

    python -m infra.house_gates [--table] [FOLDER=NEEDER,NEEDER ...]

Measures the checkout in the working folder, and prints one JSON object; with ``--table``, the same beside the limits of
``infra/house_limits.toml``, and fails where one is passed. Nothing but the standard library is imported, so that the
file also measures a checkout that does not have it.

Keys of the object:

loaded : code lines and files that ``npmdask.top_k`` of a 500 x 20 array imports.
core : code lines and files of ``npmdask/core``.
reaches, first : in the core, imports of a feature (a folder beside the core), in functions too, and strings that name
    one of its modules outside ``core/features.py``; how many, and five of them.
folders, deletable, not : folders beside the core; those without which a plain ``top_k`` still runs, which is tried on a
    copy; and those without which it does not. With each goes what needs it: by ``needs`` of ``core/features.py``, and
    as given in arguments.
all, sizes, largest : code lines of the package, of each folder beside the core, and of the four largest.
words : of ``docs/**/*.md``.
names, named : lines of the core that know a feature by name, for each feature of ``core/features.py`` (None without
    it), and five of them: identifiers that its modules export, and strings equal to a key of its tables. What a module
    exports is its ``__all__``, else its public classes and functions; a name that the core gives itself is its own.
eight, eight_lines : lines of the eight files that a run is read in, and their sum; None for a file that is gone.

Code lines are those that are not blank, not a comment and not in a docstring.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

LIMITS = Path("infra", "house_limits.toml")
FACES = ("cli", "runs", "storage")  # the command line; public names where they were before files moved
PLAIN = """
import numpy as np, npmdask
npmdask.top_k(np.random.default_rng(0).standard_normal((500, 20)), 3, kind="samples", center=True)
"""
LISTED = """
import json, sys
ours = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "npmdask"]
print(json.dumps(sorted({module.__file__ for module in ours if getattr(module, "__file__", None)})))
"""
# One run, read from top to bottom.
EIGHT = (
    "api.py",
    "core/runs/build.py",
    "core/runs/loop.py",
    "core/runs/plain_release.py",
    "core/runs/session.py",
    "core/execution/reduction.py",
    "core/operators/gram.py",
    "core/storage/readers/dense.py",
)
MODULE = re.compile(r"npmdask(\.\w+)+(:\w+)?")


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A checkout of npmdask."""

    root: Path

    @property
    def package(self) -> Path:
        return self.root / "npmdask"

    @property
    def core(self) -> Path:
        return self.package / "core"

    @property
    def features(self) -> Path:
        return self.core / "features.py"

    def folders(self) -> list[str]:
        """Return the names of the folders beside the core that hold a program."""
        beside = (each for each in sorted(self.package.iterdir()) if each.is_dir())
        return [each.name for each in beside if each.name not in ("core", *FACES) and any(each.rglob("*.py"))]

    def parts(self) -> dict[str, list[Path]]:
        """Return what can be deleted, with its files."""
        return {name: sorted((self.package / name).rglob("*.py")) for name in self.folders()}

    def core_files(self) -> list[Path]:
        return sorted(self.core.rglob("*.py")) if self.core.is_dir() else []


# Lines.


@cache
def code_lines(path: Path) -> int:
    """Count the lines of a module that are not blank, not a comment and not in a docstring."""
    text = path.read_text()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            if ast.get_docstring(node, clean=False) is not None:
                docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate((line.strip() for line in text.split("\n")), 1)
    return sum(1 for number, line in lines if line and not line.startswith("#") and number not in docstrings)


def lines_of(paths: Iterable[Path]) -> int:
    return sum(map(code_lines, paths))


def eight_files(checkout: Checkout) -> dict[str, int | None]:
    """Count the lines of each of the files that a run is read in."""
    paths = {name: checkout.package / name for name in EIGHT}
    return {name: len(path.read_text().splitlines()) if path.is_file() else None for name, path in paths.items()}


# What a plain run loads, and what can be deleted.


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program with the npmdask that lies in ``folder``."""
    command = (sys.executable, "-W", "ignore", "-c", code)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    elsewhere = tempfile.gettempdir()  # a package in the working folder would come first
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=elsewhere, env=environment)


def loaded_files(checkout: Checkout) -> list[Path]:
    """Find the modules of npmdask that a plain ``top_k`` imports."""
    done = run(PLAIN + LISTED, checkout.root)
    if done.returncode:
        raise SystemExit(f"a plain npmdask.top_k fails in {checkout.root}:\n{done.stderr}")
    return [Path(name) for name in json.loads(done.stdout.splitlines()[-1]) if name.endswith(".py")]


def goes_with(folder: str, needs: Mapping[str, Sequence[str]]) -> set[str]:
    """Return a folder and all that cannot be without it."""
    gone, waiting = set[str](), [folder]
    while waiting:
        each = waiting.pop()
        if each not in gone:
            gone.add(each)
            waiting += needs.get(each, ())
    return gone


def kept_by_trial(checkout: Checkout, needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Find the parts without which a plain ``top_k`` fails: each is deleted in a copy."""
    kept, parts = [], checkout.parts()
    for name in sorted(parts):
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(checkout.package, Path(copy, "npmdask"), ignore=shutil.ignore_patterns("__pycache__"))
            delete(Path(copy), checkout, goes_with(name, needs) & parts.keys())
            if run(PLAIN, Path(copy)).returncode:
                kept.append(name)
    return kept


def delete(copy: Path, checkout: Checkout, gone: Iterable[str]) -> None:
    """Delete parts in a copy."""
    for name in gone:
        shutil.rmtree(copy / checkout.package.relative_to(checkout.root) / name)


def kept_by_imports(checkout: Checkout, loaded: Iterable[Path], needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Find the parts of which a plain ``top_k`` loads a module.

    They are all that :func:`kept_by_trial` finds, in a second instead of half a minute, and more only where an import
    is guarded: what is not loaded cannot be missed.
    """
    parts, there = checkout.parts(), {path for path in loaded if path.name != "__init__.py"}
    used = {name for name, paths in parts.items() if there & {*paths}}
    return [name for name in sorted(parts) if goes_with(name, needs) & used]


# What the core knows of features.


def imported(node: ast.AST, path: Path, root: Path) -> list[str]:
    """Return the full names of the modules that a statement imports; none if it imports nothing."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    above = path.relative_to(root).with_suffix("").parts[: -node.level] if node.level else ()
    module = ".".join((*above, *([node.module] if node.module else [])))
    inside = module == "npmdask" or not node.module  # what is imported may be modules
    return [f"{module}.{alias.name}" for alias in node.names] if inside else [module]


def reaches(checkout: Checkout) -> list[str]:
    """List the imports of features in the core, and the strings that name a module of one, with their places."""
    folders, found = checkout.folders(), []
    for path in checkout.core_files():
        for node in ast.walk(ast.parse(path.read_text())):
            names = imported(node, path, checkout.root)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and path != checkout.features:
                names = [node.value] if MODULE.fullmatch(node.value) else []
            place = f"{path.relative_to(checkout.root)}:{getattr(node, 'lineno', 0)}"
            found += [f"{place} {name}" for name in names if room_of(name) in folders]
    return found


def room_of(name: str) -> str:
    """Return the folder or module of npmdask that a full name leads into; "" for other packages."""
    parts = re.split(r"[.:]", name)
    return parts[1] if len(parts) > 1 and parts[0] == "npmdask" else ""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A ``Feature(...)`` of the tables: its name, its folders, the keys of its tables, the features that it needs."""

    name: str
    folders: frozenset[str]
    keys: frozenset[str]
    needs: tuple[str, ...]


def entries(checkout: Checkout) -> list[Entry]:
    """Read the features from ``core/features.py`` without importing it; none if there is no such file."""
    if not checkout.features.is_file():
        return []
    tree = ast.parse(checkout.features.read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called(node) == "Feature"]
    return [entry(call, fields_of(tree), checkout.folders()) for call in calls]


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def fields_of(tree: ast.Module) -> list[str]:
    """Return the names of the fields of the class Feature, in their order."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "Feature"]
    fields = [each.target for one in classes for each in one.body if isinstance(each, ast.AnnAssign)]
    return [target.id for target in fields if isinstance(target, ast.Name)]


def entry(call: ast.Call, fields: Sequence[str], folders: Sequence[str]) -> Entry:
    values = dict(zip(fields, call.args, strict=False)) | {each.arg: each.value for each in call.keywords if each.arg}
    needs, (name, *_) = texts(values.pop("needs", None)), (*texts(values.pop("name", None)), "")
    inside = [node for value in values.values() for node in ast.walk(value)]
    keys = [text for node in inside if isinstance(node, ast.Dict) for key in node.keys for text in texts(key)]
    calls = [node for node in inside if isinstance(node, ast.Call)]
    keys += [each.arg for node in calls for each in node.keywords if each.arg]  # dict(...)
    keys += [text for node in calls if called(node) == "fromkeys" for text in texts(node.args[0])]
    rooms = {room_of(text) for value in values.values() for text in texts(value) if MODULE.fullmatch(text)}
    own = {re.sub(r"\W", "_", name)} & {*folders}
    return Entry(
        name=name,
        folders=frozenset(own or rooms & {*folders}),
        keys=frozenset(keys),
        needs=tuple(needs),
    )


def texts(node: ast.AST | None) -> list[str]:
    """Return all strings in an expression, in their order."""
    found = [] if node is None else [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return [each.value for each in found if isinstance(each.value, str)]


def needers(features: Sequence[Entry], given: Sequence[str]) -> dict[str, list[str]]:
    """Return what goes with a folder, by the tables and by arguments ``folder=needer,needer``."""
    found: dict[str, list[str]] = {}
    for one in features:
        for other in features:
            if other.name in one.needs:
                for folder in other.folders - one.folders:
                    found.setdefault(folder, []).extend(sorted(one.folders - {folder}))
    for argument in given:
        folder, _, names = argument.partition("=")
        found.setdefault(folder, []).extend(filter(None, names.split(",")))
    return found


def bound(tree: ast.Module) -> set[str]:
    """Return the public classes and functions of a module."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")}


def given_names(tree: ast.Module) -> set[str]:
    """Return all names that a module gives to something: what it defines, assigns and takes, at any depth."""
    found = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                found.add(node.attr)
            case ast.arg():
                found.add(node.arg)
    return found


def exported(path: Path) -> set[str]:
    """Return the names that a module exports: its ``__all__``, else its public classes and functions."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return {*texts(getattr(node, "value", None))}
    return bound(tree)


def words_of(node: ast.AST) -> tuple[list[str], list[str]]:
    """Return the identifiers and the strings of a node, without those of the nodes in it."""
    match node:
        case ast.Name():
            return [node.id], []
        case ast.Attribute():
            return [node.attr], []
        case ast.arg() | ast.keyword():
            return [node.arg or ""], []
        case ast.alias():
            return [*node.name.split("."), node.asname or ""], []
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name], []
        case ast.Constant() if isinstance(node.value, str):
            return [], [node.value]
    return [], []


def names(checkout: Checkout, features: Sequence[Entry]) -> dict[str, list[str]]:
    """List, for each feature, the lines of the core that know it by name."""
    trees = {path: ast.parse(path.read_text()) for path in checkout.core_files() if path != checkout.features}
    own = {name for tree in trees.values() for name in given_names(tree)} | {*dir(str), *dir(dict)}
    exports = {
        one.name: {
            name for f in one.folders for path in (checkout.package / f).rglob("*.py") for name in exported(path)
        }
        for one in features
    }
    found: dict[str, list[str]] = {one.name: [] for one in features}
    for path, tree in trees.items():
        for one in features:
            lines = set()
            for node in ast.walk(tree):
                identifiers, strings = words_of(node)
                if {*identifiers} & (exports[one.name] - own) or {*strings} & one.keys:
                    lines.add(getattr(node, "lineno", 0))
            found[one.name] += [f"{path.relative_to(checkout.root)}:{line}" for line in sorted(lines)]
    return found


# The gates.


def measured(root: Path, given: Sequence[str] = (), *, trial: bool = True) -> dict[str, Any]:
    """Measure all gates of a checkout; without ``trial``, ``not`` is what a run loads."""
    checkout = Checkout(root=root.resolve())
    features, reached, folders = entries(checkout), reaches(checkout), checkout.folders()
    needs = needers(features, given)
    loaded, core, parts = loaded_files(checkout), checkout.core_files(), checkout.parts()
    kept = kept_by_trial(checkout, needs) if trial else kept_by_imports(checkout, loaded, needs)
    sizes = {folder: lines_of((checkout.package / folder).rglob("*.py")) for folder in folders}
    known = names(checkout, features) if checkout.features.is_file() else None
    eight = eight_files(checkout)
    return {
        "loaded": [lines_of(loaded), len(loaded)],
        "core": [lines_of(core), len(core)],
        "reaches": len(reached),
        "first": reached[:5],
        "folders": len(parts),
        "deletable": len(parts) - len(kept),
        "not": kept,
        "all": lines_of(checkout.package.rglob("*.py")),
        "largest": sorted(((size, folder) for folder, size in sizes.items()), reverse=True)[:4],
        "words": sum(len(page.read_text().split()) for page in (checkout.root / "docs").rglob("*.md")),
        "sizes": sizes,
        "names": None if known is None else {name: len(lines) for name, lines in known.items()},
        "named": [f"{name}: {line}" for name, lines in (known or {}).items() for line in lines][:5],
        "eight": eight,
        "eight_lines": None if None in eight.values() else sum(filter(None, eight.values())),
    }


@dataclass(frozen=True, kw_only=True)
class Row:
    """A gate beside its limit. ``worse``: the limit is passed; ``better``: it can be tightened; ``more``: a remark."""

    gate: str
    now: str
    limit: str = ""
    worse: bool = False
    better: bool = False
    more: str = ""

    def __str__(self) -> str:
        remark = "WORSE" if self.worse else f"tighten to {self.now}" if self.better else ""
        return f"{self.gate:40} {self.now:>8} {self.limit:>8}  {' '.join(filter(None, (remark, self.more)))}".rstrip()


def at_most(gate: str, now: int, limit: int, *, ratchet: bool = True) -> Row:
    """Hold a number that may not grow; with ``ratchet``, its limit follows it down."""
    return Row(gate=gate, now=f"{now:,}", limit=f"{limit:,}", worse=now > limit, better=ratchet and now < limit)


def judged(found: Mapping[str, Any], limits: Mapping[str, Any]) -> list[Row]:
    """Hold what was measured to the limits.

    Lines of the package and words of the documentation have a limit for each issue, below which they come and go; every
    other limit follows a number that became better.
    """
    lines, files = found["loaded"]
    new, gone = {*found["not"]} - {*limits["not"]}, {*limits["not"]} - {*found["not"]}
    large = {
        name: size for name, size in found["sizes"].items() if size > limits["folder"] or name in limits["largest"]
    }
    rows = [
        at_most("code lines that a plain top_k loads", lines, limits["loaded_lines"]),
        at_most("files that it loads", files, limits["loaded_files"]),
        Row(
            gate="folders without which it fails",
            now=f"{len(found['not'])}",
            limit=f"{len(limits['not'])}",
            worse=bool(new),
            better=bool(gone),
            more=f"by {', '.join(sorted(new or gone))}" if new or gone else "",
        ),
        Row(
            gate=f"folders of {found['folders']} that can be deleted",
            now=f"{found['deletable']}",
            limit=f"{limits['deletable']}",
            worse=found["deletable"] < limits["deletable"],
            better=found["deletable"] > limits["deletable"],
        ),
        *(
            at_most(f"code lines of {name}/", size, limits["largest"].get(name, limits["folder"]))
            for name, size in large.items()
        ),
        at_most("code lines of npmdask", found["all"], limits["all"], ratchet=False),
        at_most("words of docs", found["words"], limits["words"], ratchet=False),
        Row(gate="code lines of the core", now=f"{found['core'][0]:,}"),
    ]
    if found["core"][1]:  # a core has a limit of its reaches from its first day
        rows.append(at_most("places where it reaches into features", found["reaches"], limits.get("reaches", 0)))
    for name, count in (found["names"] or {}).items():
        rows.append(Row(gate=f"lines of it that name {name}", now=f"{count}"))
    whole = found["eight_lines"]
    return [*rows, Row(gate="lines of the eight files", now="one gone" if whole is None else f"{whole:,}")]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the gates of the checkout in the working folder. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("needs", nargs="*", help="a folder, and folders that go with it: FOLDER=NEEDER,NEEDER")
    parser.add_argument("--table", action="store_true", help="print a table, with the limits")
    a = parser.parse_args(argv)
    found = measured(Path.cwd(), a.needs)
    if not a.table:
        print(json.dumps(found))
        return 0
    rows = judged(found, tomllib.loads(LIMITS.read_text()))
    print(f"{'gate':40} {'now':>8} {'limit':>8}", *rows, sep="\n")
    for place in (*found["first"], *found["named"]):
        print(f"  {place}")
    return 1 if any(row.worse for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
