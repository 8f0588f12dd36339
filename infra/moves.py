"""Move modules and rewrite every mention of them: ``python infra/moves.py [--to FOLDER]``; safe to run again.

``infra/moves.txt`` has a line for every file that moves, ``old -> new``. The new file is the old one with other names
in its imports; a mention is a dotted name (in code, in a string, on a page) or a path. A branch that was begun before a
move is taken up with ``git cherry-pick``, where git follows the renames, and with this script, which mends what the
branch added.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parent
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".cfg", ".service", ".example", ".sh", ""}
NEVER = {"infra/moves.txt", "infra/moves.py", "CHANGELOG.md"}  # a change log says what was true
DOTTED = re.compile(r"(?<![\w/.])(?:npmdask|tests)(?:\.[A-Za-z_]\w*)+")
PATH = re.compile(r"(?<!\w)(?<!\w/)(?:npmdask|tests)/[\w/]+\.py")
LEVELS = re.compile(r"(Path\(__file__\)(?:\.resolve\(\))?\.parents\[)(\d+)\]")
FUNCTIONS = {"npmdask.cli.main"}  # of the old module; the new one has its name
DONE = "\0"  # in a name of an import that is rewritten: no second time


def module(path: str) -> str:
    """The dotted name of a file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Moves:
    """What goes where, and how mentions of it are rewritten."""

    def __init__(self, files: dict[str, str], stays: set[str]) -> None:
        self.files = files
        self.stays = {module(old) for old in stays}
        self.modules = {module(old): module(new) for old, new in files.items()}
        self.new = set(self.modules.values())
        self.packages = {name.rpartition(".")[0] for name in self.new | set(self.modules)}

    def dotted(self, name: str) -> str:
        """Rewrite a dotted name, whatever follows the module in it.

        What names a new module already stays: it may lie in a package that has the name of an old module.
        """
        parts = name.split(".")
        for length in range(len(parts), 1, -1):
            head = ".".join(parts[:length])
            if head in self.stays or (length > 2 and head in self.new):
                return name
            if head in self.modules:
                return ".".join([self.modules[head], *parts[length:]])
        return name

    def prose(self, text: str) -> str:
        """Rewrite a page, or what no syntax shows of a module."""
        text = DOTTED.sub(lambda found: self.dotted(found[0]), text)
        return PATH.sub(lambda found: self.files.get(found[0], found[0]), text)

    def code(self, text: str) -> str:
        """Rewrite a module: imports of modules from their packages, and the names that they bind, first."""
        if not any(f"from {package} import" in text for package in self.packages):
            return self.prose(text)
        tree, lines, renamed = ast.parse(text), text.split("\n"), {}
        taken = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {
            n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)
        }
        edits: list[tuple[int, int, int, int, str]] = []
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            full = {a.name: f"{node.module}.{a.name}" for a in node.names}
            goes = {name: x if x in self.new - FUNCTIONS else self.modules.get(x) for name, x in full.items()}
            if not any(goes.values()):
                continue
            instead = []
            if kept := [a for a in node.names if not goes[a.name]]:
                instead.append(ast.unparse(ast.ImportFrom(node.module, kept, 0)))
            for a in node.names:
                if to := goes[a.name]:
                    package, _, name = to.rpartition(".")
                    bound = a.asname or (a.name if name in taken and name != a.name else name)
                    if not a.asname and bound != a.name:
                        renamed[a.name] = bound
                    instead.append(
                        f"from {package.replace('.', DONE + '.')} import {name}"
                        + (f" as {bound}" if bound != name else "")
                    )
            glue = "\n" + " " * node.col_offset
            edits.append(
                (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0, glue.join(instead))
            )
        edits += [
            (n.lineno, n.col_offset, n.lineno, n.col_offset + len(n.id), renamed[n.id])
            for n in ast.walk(tree)
            if isinstance(n, ast.Name) and n.id in renamed
        ]
        for first, start, last, end, instead_text in sorted(edits, reverse=True):
            head = lines[first - 1].encode()[:start].decode()
            tail = lines[last - 1].encode()[end:].decode()
            lines[first - 1 : last] = [head + instead_text + tail]
        return self.prose("\n".join(lines)).replace(DONE, "")


def move(old: str, new: str) -> None:
    """Move one file; its package gets an ``__init__``, and paths that it counts from its own place follow."""
    place = TREE / new
    place.parent.mkdir(parents=True, exist_ok=True)
    for folder in [place.parent, *place.parent.parents]:
        if folder == TREE:
            break
        if not (folder / "__init__.py").exists() and place.name != "__init__.py":
            (folder / "__init__.py").touch()
            subprocess.run(["git", "add", folder / "__init__.py"], cwd=TREE, check=True)
    subprocess.run(["git", "mv", "-f", old, new], cwd=TREE, check=True)
    if deeper := new.count("/") - old.count("/"):
        text = place.read_text()
        place.write_text(LEVELS.sub(lambda found: f"{found[1]}{int(found[2]) + deeper}]", text))


def main() -> None:
    """Move what is left to move below a folder, then rewrite every file of the tree that names it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--to", default="", help="only what goes below this folder, such as npmdask/numerics/")
    wanted = parser.parse_args().to
    lines = (HERE / "moves.txt").read_text().splitlines()
    files = dict(line.split(" -> ") for line in lines if f" -> {wanted}" in line)
    moves = Moves(files, {line.split(" ")[0] for line in lines} - set(files))
    for old, new in moves.files.items():
        if (TREE / old).exists() and not (old in moves.files.values() and (TREE / new).exists()):
            move(old, new)
    listed = subprocess.run(["git", "ls-files"], cwd=TREE, check=True, capture_output=True, text=True)
    for name in listed.stdout.split("\n"):
        path = TREE / name
        if name in NEVER or name.endswith(".lock") or path.suffix not in TEXT or not path.is_file():
            continue
        before = path.read_text()
        after = moves.code(before) if path.suffix == ".py" else moves.prose(before)
        if after != before:
            path.write_text(after)


if __name__ == "__main__":
    main()
