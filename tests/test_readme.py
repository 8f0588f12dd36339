"""What the README and the documents promise exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import npmdask
from npmdask.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    ROOT / "data" / "README.md",
    ROOT / "infra" / "README.md",
    *(ROOT / "docs").rglob("*.md"),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_commands_of_the_readme_exist(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"`?make (\w+)", text)) - {"and"}
    makefile = (ROOT / "Makefile").read_text()
    assert targets >= {"run", "test", "check"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target
    with pytest.raises(SystemExit):
        main(["--help"])
    known = capsys.readouterr().out
    for verb in set(re.findall(r"^npmdask (\w+)", text, re.M)):
        assert re.search(rf"^    {verb}\s", known, re.M), verb
    assert len(COMMANDS) == 23
    for script in re.findall(r"python (flows/\S+\.py)", text):
        assert (ROOT / script).exists()


def test_the_python_example_uses_names_that_exist() -> None:
    for name in re.findall(r"npmdask\.(\w+)\(", (ROOT / "README.md").read_text()):
        assert hasattr(npmdask, name)
    fields = re.findall(r"solution\.(\w+)", (ROOT / "README.md").read_text())
    assert set(fields) <= set(npmdask.Solution.__dataclass_fields__)
