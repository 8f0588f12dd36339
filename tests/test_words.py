"""The words that users meet: no metaphor of the house, and help that starts with a verb.

``BANNED`` says what to write instead. It holds for help, descriptions, messages, docstrings and pages; for names in the
code it does not. A word is added here once no text has it.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npmdask.cli.main import _parser
from npmdask.config import RunConfig, table_of

ROOT = Path(__file__).resolve().parents[1]
BANNED = {  # a word, and what to write instead
    r"nobody": "no one, or who does what",
    r"whoever": "the user, the owner, any reader",
    r"somebody": "the reader, the operator",
    r"anew": "again",
    r"fore(told|tell\w*)": "predict",
    r"(is|are) (told|said) (to|of|for)": "say it directly",
    r"stands?(?! (out|for|in for)\b)": "is",
    r"lens(es)?": "operator of moments",
    r"custody": "release session, ledger and key",
    r"(front|back|side)? ?doors?": "entry point, way to call it",
    r"stops to": "stops being, no longer",
    r"bears? noise": "noise tolerance",
    r"(no|without a) look at": "without reading",
    r"hardly promises": "is a weak guarantee",
    r"fool(s|ed)?": "mislead",
    r"c(a|o)mes? true(?! of\b)": "what was predicted and what was measured",
    r"take it away first": "remove it first",
}
WORDS = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)
# Decisions are a record of what was thought when; papers and theorems have words of their own.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
PAGES += sorted(p for p in (ROOT / "docs").rglob("*.md") if "decisions" not in p.parts)
MODULES = sorted([*(ROOT / "npmdask").rglob("*.py"), *(ROOT / "flows").rglob("*.py")])


def parsers() -> Iterator[argparse.ArgumentParser]:
    """Of every command, and of the commands below it."""
    waiting = [_parser()]
    while waiting:
        parser = waiting.pop()
        yield parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()


def commands() -> dict[str, str]:
    """The line of help of every command."""
    found = {}
    for parser in parsers():
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                found |= {f"{parser.prog} {one.dest}": str(one.help) for one in action._choices_actions}
    return found


def texts(module: Path) -> Iterator[tuple[int, str]]:
    """Sentences in the code of a module: its docstrings, and strings with a space in them."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def without_code(page: str) -> str:
    """The prose of a page: links keep their text, addresses and code are left out."""
    page = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)", " ", page)


TOPICS = re.compile(r"PCA|SVD|topic|singular v|principal", re.IGNORECASE)
# Pages about the project, made by programs, of names, or for one machine: without the words of the subject
OF_PROJECT = re.compile(
    r"docs/(start|architecture|papers/benchmarks|explanation/errors)\.md|docs/(project|reference/api)/.*|[A-Z]+\.md"
    r"|docs/reference/(cli|configuration)\.md|.*index\.md"
    r"|docs/howto/(climate|cluster|deployment|gpu|nightly-schedule|object-store)\.md"
)


def first_paragraph(page: str) -> str:
    """What follows the title."""
    return next(part for part in page.partition("\n")[2].split("\n\n") if part.strip())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_first_paragraph_says_pca_svd_or_topics(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    assert OF_PROJECT.fullmatch(name) or TOPICS.search(first_paragraph(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_a_banned_word(page: Path) -> None:
    found = [m.group() for m in WORDS.finditer(without_code(page.read_text()))]
    assert not found, f"{page}: {found}; tests/test_words.py says what to write instead"


def test_no_text_of_the_code_has_a_banned_word() -> None:
    found = [
        f"{module.relative_to(ROOT)}:{line}: {match.group()}"
        for module in MODULES
        for line, text in texts(module)
        for match in WORDS.finditer(without_code(text))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("command", commands())
def test_the_help_of_a_command_starts_with_a_verb(command: str) -> None:
    verbs = {"attack", "compute", "convert", "delete", "export", "fit", "form", "generate", "grant", "print", "resume"}
    verbs |= {"run", "serve", "show", "write"}
    assert commands()[command].split()[0].strip(",") in verbs, commands()[command]


def test_every_option_has_help() -> None:
    found = [f"{p.prog} {a.option_strings or a.dest}" for p in parsers() for a in p._actions if not a.help and a.dest]
    allowed = {"npmdask ['name']", "npmdask name", "npmdask ledger action", "npmdask serve arguments"}
    assert not set(found) - allowed


def options() -> dict[str, Any]:
    """Every key of a configuration, with its field."""
    return {f"{t}.{n}": option for t, field in RunConfig.model_fields.items()
            for n, option in table_of(field.annotation).model_fields.items()}  # fmt: skip


def test_every_key_of_a_configuration_is_described_without_a_dangling_of() -> None:
    """A description says what the value is; it does not begin with the case that it is for."""
    found = {key: option.description for key, option in options().items()}
    assert not {key: text for key, text in found.items() if not text or re.match(r"(of|that|by how|how)\b", text)}
