"""Copy a checkout without a feature, or some: what is left must stand by itself.

    python -m infra.rest FEATURE ... FOLDER

With the folder of a feature go those of all that need it, by ``needs`` of ``core/features.py``, and the folders of
``tests`` that are called as they are. Then goes, until nothing more does, what needs what is gone:

* a module of a test, flow, benchmark or program that names it, in a function too;
* a module of the package that imports it at once, if no table names its folder, or if it imports nothing else of the
  package;
* a page that is called as the feature, or has a program that imports what is gone.

Any other module of the package that imports at once what is gone is a fault: the table does not say that it needs it.
Such modules stay in the copy.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from infra.house_gates import Checkout, entries, goes_with, imported, needers, room_of

NAMED = re.compile(r"\bnpmdask(?:\.\w+)+")
IMPORTS = re.compile(r"(?m)^(?:>>> )?\s*(?:from|import) npmdask\b.*")
LISTED = re.compile(r'"(npmdask\.\w+)",? ?')


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What goes with a feature: features, files beside their folders; modules that stay and cannot be imported."""

    checkout: Checkout
    features: frozenset[str]
    files: frozenset[Path]
    faults: tuple[str, ...]

    def went(self, *folders: str) -> list[str]:
        """Return the names of files that go from these folders."""
        paths = (path.relative_to(self.checkout.root) for path in self.files)
        return sorted(str(path) for path in paths if any(path.is_relative_to(folder) for folder in folders))

    def copy(self, folder: Path) -> None:
        """Copy what git knows of the checkout, or would, and is left."""
        root, gone = self.checkout.root, folders_of(self.checkout, self.features)
        for path in known_files(root):
            if path not in self.files and not any(path.is_relative_to(each) for each in gone):
                to = folder / path.relative_to(root)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to, follow_symlinks=False)
        project = folder / "pyproject.toml"
        names = {f"npmdask.{name}" for name in self.features} | {module_of(path, root) for path in self.files}
        project.write_text(without(project.read_text(), names))


def rest_of(checkout: Checkout, *names: str) -> Rest:
    """Find what goes with features."""
    tables = entries(checkout)
    needs = needers(tables, ())
    features = {each for name in names for each in goes_with(name, needs)} & checkout.parts().keys()
    loose = {*checkout.folders()} - {folder for one in tables for folder in one.folders}
    folders = folders_of(checkout, features)
    left = {path: module_of(path, checkout.root) for path in known_files(checkout.root) if path.suffix == ".py"}
    modules = {*left.values()}
    gone = {left.pop(path) for path in [*left] if any(path.is_relative_to(folder) for folder in folders)}
    faults, going = set[Path](), set[Path]()
    while new := {path for path in left if not gone.isdisjoint(needed(path, checkout.root))}:
        for path in new:
            ours = {name for name in needed(path, checkout.root) if name.startswith("npmdask.")} & modules
            module = left.pop(path)
            if path.is_relative_to(checkout.package) and room_of(module) not in loose and not ours <= gone:
                faults.add(path)
            else:
                going.add(path)
                gone.add(module)
    pages = [path for path in known_files(checkout.root) if path.is_relative_to(checkout.root / "docs")]
    going |= {page for page in pages if page.suffix == ".md" and is_page_of(page, features, gone)}
    return Rest(
        checkout=checkout,
        features=frozenset(features),
        files=frozenset(going),
        faults=tuple(sorted(module_of(path, checkout.root) for path in faults)),
    )


@cache
def known_files(root: Path) -> tuple[Path, ...]:
    """List the files that git knows, or would."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    return tuple(path for name in names if name and (path := root / name).is_file())


def folders_of(checkout: Checkout, features: Iterable[str]) -> list[Path]:
    return [above / name for name in features for above in (checkout.package, checkout.root / "tests")]


def module_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def needed(path: Path, root: Path) -> frozenset[str]:
    """Return the names that a module needs: all that it imports and names, or of the package what it imports at once.

    The package may import in a function what is gone: the function then says which feature is not there.
    """
    package, found = path.is_relative_to(root / "npmdask"), set[str]()
    for node in nodes_of(ast.parse(path.read_text()), in_functions=not package):
        found.update(imported(node, path, root))
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        if not package and isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(prefixes(NAMED.findall(node.value)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "npmdask":
            found.add(f"npmdask.{node.attr}")
    return frozenset(found | {module for name, module in public(root).items() if name in found and not package})


@cache
def public(root: Path) -> dict[str, str]:
    """Return the full public names of ``npmdask``, each with the module that it is imported from."""
    for node in ast.parse((root / "npmdask" / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODULES":
            table: dict[str, str] = ast.literal_eval(node.value)
            return {f"npmdask.{name}": module for module, names in table.items() for name in names.split()}
    return {}


def nodes_of(tree: ast.AST, *, in_functions: bool) -> Iterator[ast.AST]:
    """Go through the nodes of a module, without docstrings and what only a type checker reads."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not in_functions:
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def prefixes(names: Iterable[str]) -> Iterator[str]:
    """Go through the modules that dotted names may be in."""
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:end]) for end in range(2, len(parts) + 1))


def is_page_of(page: Path, features: Iterable[str], gone: set[str]) -> bool:
    """Say whether a page is called as a feature, or has a program that imports what is gone."""
    lines = "\n".join(IMPORTS.findall(page.read_text()))
    return page.stem.replace("-", "_") in features or not gone.isdisjoint(prefixes(NAMED.findall(lines)))


def without(project: str, gone: Iterable[str]) -> str:
    """Take modules out of the contracts of a project, and tell mypy that a function may import what is not there."""
    names = {*gone}
    ours = [f"{name}{end}" for name in sorted(names) if name.startswith("npmdask.") for end in ("", ".*")]
    listed = LISTED.sub(lambda found: "" if found[1] in names else found[0], project)
    return f"{listed}\n[[tool.mypy.overrides]]\nmodule = {json.dumps(ours)}\nignore_missing_imports = true\n"


def main() -> int:
    """Make a copy of the checkout in the working folder. Returns the exit code."""
    *names, folder = sys.argv[1:]
    rest = rest_of(Checkout(root=Path.cwd()), *names)
    rest.copy(Path(folder))
    print("features:", *sorted(rest.features), "\nfiles:", *rest.went("."), "\nfaults:", *rest.faults)
    return 0


if __name__ == "__main__":
    sys.exit(main())
