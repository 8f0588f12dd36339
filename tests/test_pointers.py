"""Comments and docstrings point at what there is: a file, a name, a name of a module or class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOREIGN = {"coding/variables.py"}  # of xarray
ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):`~?([\w.]+)`")
FILE = re.compile(r"(?<![\w/.~*{-])([\w./-]*\w\.py)\b(?![\w(])")
DOTTED = re.compile(r"(?<![\w.`/])(\w+)\.(\w+)(?![\w./-])")


def prose_and_code(text: str) -> tuple[str, str]:
    """Return what a module says in comments and docstrings, and the rest of it."""
    said, done, inside = [], [], False
    for line in text.split("\n"):
        code, mark, comment = line.partition("# ")
        docstring, inside = (inside or '"""' in line) and ">>> " not in line, inside ^ (line.count('"""') % 2 == 1)
        said.append(line if docstring else mark + comment)
        done.append("" if docstring else code)
    return "\n".join(said), "\n".join(done)


def stale(files: dict[str, str]) -> Iterator[str]:
    """Yield each pointer of ``files``, texts by path, that leads nowhere."""
    parts = {path: prose_and_code(text) for path, text in files.items()}
    words = {word for _, code in parts.values() for word in re.findall(r"\w+", code)}
    defined = {name for _, code in parts.values() for name in re.findall(r"(?:def|class) (\w+)", code)}
    folders = {name for path in files for name in path.removesuffix(".py").split("/")}
    for path, (said, _) in parts.items():
        for role in ROLE.findall(said):
            if role.rpartition(".")[2] not in words | folders:
                yield f"{path}: {role}"
        for file in {*FILE.findall(said)} - FOREIGN:
            if not any(f"/{other}".endswith(f"/{file.lstrip('./')}") for other in files):
                yield f"{path}: {file}"
        for first, last in DOTTED.findall(said):
            gone = first in defined and first[0].isupper() and last not in words
            if gone or (last in defined and first.islower() and first not in words | folders):
                yield f"{path}: {first}.{last}"


@pytest.mark.slow  # and so not in `make delete`, after which comments still name the feature that is gone
def test_no_pointer_of_a_comment_or_docstring_is_stale() -> None:
    """Mutants: the comment of ``core/execution/memory.py`` that names ``posing.default_rank``, as it did before."""
    paths = [path for folder in ("npmdask", "benchmarks", "flows", "infra") for path in (ROOT / folder).rglob("*.py")]
    files = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    tests = {str(path.relative_to(ROOT)): "" for path in (ROOT / "tests").rglob("*.py")}
    assert list(stale({**tests, **files})) == []
    old = "def default_rank(): ...\nclass A: ...\n# As posing.default_rank, A.gone, low_rank.py and :func:`was`\n"
    assert [found.partition(": ")[2] for found in stale({"npmdask/new.py": old})] == [
        "was",
        "low_rank.py",
        "posing.default_rank",
        "A.gone",
    ]
