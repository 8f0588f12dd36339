"""Move the files of npmdask/ and tests/ by ``infra/moves.toml``, and rewrite what names them.

``python -m infra.move FOLDER`` rewrites imports, dotted names and paths in the files of a checkout that git knows, and
moves what still lies where it lay; for code that imports npmdask from outside, the same rewrites its imports. What was
rewritten once is not changed again.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

TABLE = Path(__file__).with_name("moves.toml")
TEXTS = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".json", ".cfg", ".txt", ".service", ".cff", ""}
KEPT = ("tests/goldens/fixtures/", "tests/goldens/bits.json", "infra/moves.toml", "benchmarks/results/")
ABOVE = re.compile(r"(Path\(__file__\)(?:\.resolve\(\))?\.parents\[)(\d+)\]")


def climbing(text: str, deeper: int) -> str:
    """Let a file that lies deeper climb as much further to the root."""
    return ABOVE.sub(lambda found: f"{found[1]}{int(found[2]) + deeper}]", text) if deeper else text


def dotted(path: str) -> str:
    """Return the name of the module that lies at a path."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Moves:
    """Where each file and each module goes."""

    def __init__(self, table: dict[str, str]) -> None:
        self.files = table
        self.modules = {dotted(old): dotted(new) for old, new in table.items()}
        # A package whose __init__ stays is not in the table: its modules are, one by one.
        folders = {old.rpartition("/")[0] for old in table}
        self.folders = {
            folder: new.pop() for folder in folders if len(new := self._targets(folder)) == 1 and folder not in new
        }
        self._name = re.compile(r"(?<![\w./-])(npmdask|tests)((?:\.[A-Za-z_]\w*)+)")
        self._path = re.compile(r"(?<![\w-])(?<!\w/)((?:npmdask|tests)(?:/[\w-]+)+(?:\.py)?)(?![\w.-]*\.\w)")
        self._import = re.compile(
            r"from ((?:npmdask|tests)(?:\.\w+)*) import (\w+(?:, \w+)*)\b(?! as)(?!,)"
        )  # in strings
        self._within = re.compile(r"(?<![\w./-])([a-z_]+(?:/[\w-]+)+\.py)\b")  # paths as pages write them

    def _targets(self, folder: str) -> set[str]:
        return {new.rpartition("/")[0] for old, new in self.files.items() if old.rpartition("/")[0] == folder}

    def name(self, full: str) -> str:
        """Return what a dotted name is called now: its longest part that is a module is replaced."""
        parts = full.split(".")
        for end in range(len(parts), 1, -1):
            if (head := ".".join(parts[:end])) in self.modules:
                return ".".join([self.modules[head], *parts[end:]])
        return full

    def path(self, full: str) -> str:
        """Return where a file, a module without its suffix, or a folder of one target lies now."""
        for suffix in ("", ".py", "/__init__.py"):
            if full + suffix in self.files:
                return self.files[full + suffix].removesuffix(suffix)
        return self.folders.get(full, full)

    def text(self, text: str) -> str:
        """Rewrite dotted names and paths."""
        text = self._import.sub(lambda found: "; ".join(self.statements(found[1], found[2].split(", "))), text)
        text = self._name.sub(lambda found: self.name(found[0]), text)
        text = self._path.sub(lambda found: self.path(found[1]), text)
        return self._within.sub(lambda found: self.path(f"npmdask/{found[1]}").removeprefix("npmdask/"), text)

    def program(self, text: str) -> str:
        """Rewrite a module: its imports as statements, since a name that is imported may be a module, then the rest."""
        lines = text.splitlines(keepends=True)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and not node.level]
        for node in sorted(nodes, key=lambda node: -node.lineno):
            end, module = node.end_lineno or node.lineno, node.module or ""
            if module.partition(".")[0] not in ("npmdask", "tests"):
                continue
            names = [f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in node.names]
            if len(said := self.statements(module, names)) == 1 and said[0].split()[1] == module:
                continue
            indent = lines[node.lineno - 1][: node.col_offset]
            noted = re.search(r"#.*$", lines[end - 1].rstrip("\n"))
            tail = f"  {noted[0]}" if noted and end == node.lineno else ""
            lines[node.lineno - 1 : end] = [f"{indent}{statement}{tail}\n" for statement in said]
        return self.text("".join(lines))

    def statements(self, module: str, names: list[str]) -> list[str]:
        """Return the statements that import the same: names of a package may be modules, and lie apart now."""
        found: dict[str, list[str]] = {}
        for each in names:
            name, _, given = each.partition(" as ")
            moved = self.modules.get(f"{module}.{name}")
            package, _, now = moved.rpartition(".") if moved else (self.name(module), ".", name)
            given = given or name
            found.setdefault(package, []).append(now if now == given else f"{now} as {given}")
        return [f"from {package} import {', '.join(those)}" for package, those in found.items()]


def main(root: Path) -> None:
    """Rewrite and move."""
    moves = Moves(tomllib.loads(TABLE.read_text()))
    if not (root / ".git").exists():
        raise SystemExit(
            f"{root} is no checkout of git, whose files this rewrites: give the folder of one, or `git init` it"
        )
    known = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, known.split("\0")):
        path, new = root / name, moves.files.get(name, name)
        if name.startswith(KEPT) or path.suffix not in TEXTS or path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        changed = moves.program(text) if path.suffix == ".py" else moves.text(text)
        changed = climbing(changed, new.count("/") - name.count("/"))
        if changed != text:
            path.write_text(changed)
        if new != name:
            target = root / new
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():  # two packages become one: what says more stays
                text = max(target.read_text(), changed, key=len)
                subprocess.run(["git", "rm", "-qf", name], cwd=root, check=True)
                target.write_text(text)
            else:
                subprocess.run(["git", "mv", name, new], cwd=root, check=True)
    for folder in {Path(new).parent for new in moves.files.values()}:
        for each in (folder, *folder.parents):
            init = root / each / "__init__.py"
            if each.parts and (root / each).is_dir() and not init.exists():
                init.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
