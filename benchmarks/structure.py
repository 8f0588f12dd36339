"""How large the house is, and how far a step walks in it: `python -m benchmarks.structure` prints a table.

The rows are those by which the layout is judged (docs/architecture.md). All are counts but the last two, which are
times and depend on the machine; nothing is run twice.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tempfile
import threading
import time
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import npmdask
from npmdask.accounting import Budget
from npmdask.api import solve
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.formats.ingest import ingest
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from npmdask.privacy.request import Privacy

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "npmdask"
# Metaphors and vague subjects that readers of the pages should not meet; names in code are counted too.
VAGUE = r"\b(nobody|whoever|somebody|stands?|lens(es)?|(is|are) (said|told)|custody|anew|foret(old|ell)|doors?)\b"
FACE = 60  # lines: a file below is a face (an ``__init__``), or should not be a file
GUARDS = {
    "private": r"\b(private|protected|recipe|nodes)\b is (not )?None|\bif .*\.(private|protected|distributed)\b",
    "kind": r"\bkind (==|!=|in|not in)\b|\.name (==|!=) \"",
    "reader class": r"isinstance\([^)]*(Reader|TriangleReader|TensorReader|CsrReader|DenseReader)|\.layout (==|!=)",
    "shape of a spec": r"in spec\b|spec\.get\(|spec\[\"",
}


class Steps(Observer):
    """What is executed between the first and the second commit: functions, lines and files of npmdask."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str, int]] = set()
        self.counting = False

    def on_step(self, step: Any) -> None:
        self.counting = step.number == 1

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Called by the interpreter for every call of a function."""
        code = frame.f_code
        if self.counting and event == "call" and code.co_filename.startswith(str(PACKAGE)):
            self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))

    def counts(self) -> tuple[int, int, int]:
        """Functions, source lines of them, files."""
        lines = 0
        for name, _, first in self.functions:
            nodes = (n for n in ast.walk(ast.parse(Path(name).read_text())) if hasattr(n, "end_lineno"))
            ends = [n.end_lineno for n in nodes if isinstance(n, ast.FunctionDef) and _first(n) == first]
            lines += (ends[0] - first + 1) if ends else 1
        return len(self.functions), lines, len({name for name, _, _ in self.functions})


def _first(function: ast.FunctionDef) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def step_of(run: Callable[[Observer], Any]) -> tuple[int, int, int]:
    """Of a run in this thread."""
    steps = Steps()
    threading.setprofile(steps.profile)
    sys.setprofile(steps.profile)
    try:
        run(steps)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return steps.counts()


def walks() -> dict[str, tuple[int, int, int]]:
    """Functions, lines and files between two commits: small ingested samples, block power, plain and private."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows = np.random.default_rng(0).standard_normal((4000, 32)) * np.arange(1, 33) ** -0.5
        np.save(folder / "x.npy", rows)
        ingest(folder / "x.npy", folder / "x.zarr", kind="samples", chunks=(500, 32))
        source = open_source(folder / "x.zarr")
        plain = make_problem(source, Request(target_rank=3, algorithm="power", iteration_rank=8, max_steps=4))
        privacy = Privacy(
            epsilon=5.0,
            delta=1e-6,
            neighboring_relation="record_replace",
            clip_norm=3.0,
            ledger=str(folder / "ledger.sqlite"),
            dataset="people",
        )
        _grant(folder)
        ask = Request(target_rank=3, iteration_rank=8, max_steps=4, privacy=privacy)
        private = make_problem(source, ask)
        made: dict[str, tuple[int, int, int]] = {}
        for name, problem in (("plain", plain), ("private", private)):
            store, resources = folder / name, Resources(threads=1)
            made[name] = step_of(lambda o, p=problem, s=store, r=resources: solve(p, s, r, o))  # type: ignore[misc]
        return made


def _grant(folder: Path) -> None:
    grant_source(
        open_ledger(folder / "ledger.sqlite"),
        "people",
        folder / "x.zarr",
        relation="record_replace",
        clip_norm=3.0,
        change=1.0,
        budget=Budget(20.0, 1e-5),
    )


def files() -> list[Path]:
    """Every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def code_lines(path: Path) -> int:
    """Lines with code: no docstring, blank or comment."""
    text = path.read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    with_code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            with_code |= set(range(token.start[0], token.end[0] + 1))
    return len(with_code - documented)


def rooms() -> Counter[str]:
    """Lines of every room."""
    sizes: Counter[str] = Counter()
    for path in files():
        parts = path.relative_to(PACKAGE).parts
        sizes[parts[0] if len(parts) > 1 else "(faces)"] += len(path.read_text().splitlines())
    return sizes


def guards() -> dict[str, int]:
    """Lines that ask what kind of run, reader or spec this is."""
    texts = [p.read_text() for p in files()]
    return {name: sum(len(re.findall(p, t)) for t in texts) for name, p in GUARDS.items()}


def defined_twice() -> list[str]:
    """Public names of classes and functions that several modules define."""
    places: dict[str, set[Path]] = defaultdict(set)
    for path in files():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                places[node.name].add(path)
    return sorted(name for name, where in places.items() if len(where) > 1)


def vague_words() -> int:
    """In the package, the flows and the pages, without the decisions (a record of their time)."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts]
    texts = [*files(), *(ROOT / "flows").glob("*"), *pages, *ROOT.glob("*.md")]
    return sum(len(re.findall(VAGUE, p.read_text(), re.IGNORECASE)) for p in texts if p.is_file())


def seconds_of(*command: str) -> float:
    """The fastest of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def rows() -> Iterator[tuple[str, str]]:
    """What, and how much."""
    for name, counts in walks().items():
        yield f"functions / lines / files between two commits, {name} run", " / ".join(map(str, counts))
    yield "code lines of npmdask", f"{sum(map(code_lines, files())):,}"
    small = [p for p in files() if p.name != "__init__.py" and len(p.read_text().splitlines()) < FACE]
    yield f"files; below {FACE} lines and no face", f"{len(files())}; {len(small)}"
    loose = [p.stem for p in PACKAGE.glob("*.py") if p.name != "__init__.py"]
    sizes = rooms()
    largest, lines = sizes.most_common(1)[0]
    yield (
        "loose modules; rooms; largest room",
        (f"{len(loose)} ({', '.join(loose)}); {len(sizes) - 1}; {largest} {lines / sum(sizes.values()):.0%}"),
    )
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    yield "imports that go up", str(sum(len(c.get("ignore_imports", [])) for c in linter["contracts"]))
    found = guards()
    yield "guards", f"{sum(found.values())} ({', '.join(f'{n} {c}' for n, c in found.items())})"
    yield "public names defined in several modules", str(len(defined_twice()))
    yield "words that users should not meet", str(vague_words())
    yield "import of npmdask, seconds", f"{seconds_of('-c', 'import npmdask'):.2f}"
    yield "npmdask --help, seconds", f"{seconds_of('-m', 'npmdask.cli.main', '--help'):.2f}"


def main() -> None:
    """Print the table."""
    print(f"npmdask {getattr(npmdask, '__version__', '')}".strip())
    for name, value in rows():
        print(f"| {name} | {value} |", flush=True)


if __name__ == "__main__":
    main()
