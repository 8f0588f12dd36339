"""Docstrings of what users import: numpydoc, complete, and their examples run."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from numpydoc.docscrape import ClassDoc
from numpydoc.validate import validate

import npmdask

ROOT = Path(__file__).resolve().parents[1]
FACES = tuple(
    "npmdask" + room for room in ("", ".accounting", ".anndata", ".experiments", ".prefect", ".theory", ".xarray")
)
# Where the quotes stand is a matter of style (GL01, GL02); an extended summary and "See Also" are written where they
# say something (ES01, SA01).
LEFT_OUT = {"ES01", "SA01", "GL01", "GL02"}
CLAUSE = re.compile(r"(What|Of|How|Whether|Where|With)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def public() -> Iterator[tuple[str, Any]]:
    """Functions, classes and their public methods and properties, each once."""
    for face in FACES:
        module = importlib.import_module(face)
        for name in module.__all__:
            thing = getattr(module, name)
            thing = getattr(thing, "fn", thing)  # of a flow or a task of Prefect: the function
            if not inspect.isfunction(thing) and not inspect.isclass(thing):
                continue
            yield f"{face}.{name}", thing
            for base in thing.__mro__ if inspect.isclass(thing) else ():  # what is inherited is met too
                for member, value in vars(base).items() if base.__module__.startswith("npmdask") else ():
                    if not member.startswith("_") and isinstance(value, FunctionType | classmethod | property):
                        yield f"{face}.{name}.{member}", value


NAMES = dict(public())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_is_numpydoc(name: str) -> None:
    thing, skipped = NAMES[name], set(LEFT_OUT)
    if name.rpartition(".")[0] not in FACES:
        skipped.add("EX01")  # a member: the example is that of the class
    if is_answer(thing):
        skipped.add("PR01")  # users do not construct it; its fields are attributes, below
    found = [f"{code} {sentence}" for code, sentence in validate(name)["errors"] if code not in skipped]
    assert not found, "\n".join(found)


def section(thing: Any, name: str) -> list[Any]:
    """What the docstring of a class says there."""
    return list(ClassDoc(thing, config={"show_class_members": False})[name])


def is_answer(thing: Any) -> bool:
    """A dataclass that documents its fields as attributes, and not as parameters of who makes one."""
    known = inspect.isclass(thing) and is_dataclass(thing)
    return known and bool(section(thing, "Attributes")) and not section(thing, "Parameters")


@pytest.mark.parametrize("name", [name for name, thing in NAMES.items() if is_answer(thing)])
def test_every_field_of_an_answer_is_explained(name: str) -> None:
    explained = section(NAMES[name], "Attributes")
    assert [a.name for a in explained] == [f.name for f in fields(NAMES[name])]
    assert all(a.type and a.desc for a in explained)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, thing in NAMES.items() if not isinstance(thing, property)])
def test_examples_run(name: str) -> None:
    finder = doctest.DocTestFinder(recurse=False)
    for example in finder.find(NAMES[name], name, module=False, globs={}):  # type: ignore[arg-type]
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(example)
        assert result.failed == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_pages_that_it_names_are_there(name: str) -> None:
    for page in re.findall(r"docs/[\w/-]+(?:\.md)?", NAMES[name].__doc__ or ""):
        assert list(ROOT.glob(page if page.endswith(".md") else f"{page}*")), page


def test_all_names_are_there() -> None:
    assert {f"npmdask.{name}" for name in npmdask.__all__} <= NAMES.keys()


def test_no_docstring_begins_with_a_clause() -> None:
    """Docstrings begin with a verb that says what a function does, or a noun that says what a class or module is."""
    files = (ROOT / "npmdask").rglob("*.py")
    nodes = ((file, node) for file in sorted(files) for node in ast.walk(ast.parse(file.read_text())))
    found = ((file, ast.get_docstring(node) or "") for file, node in nodes if isinstance(node, DOCUMENTED))
    assert not [f"{file.relative_to(ROOT)}: {text.splitlines()[0]}" for file, text in found if CLAUSE.match(text)]
