"""What the README and the documents promise exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import npmdask
from npmdask.cli.main import COMMANDS, main

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


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_lines_of_a_table_have_the_cells_of_its_head(page: Path) -> None:
    """A line with more loses them without a word: a | in code is written as \\|, there too."""
    outside = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    for table in re.findall(r"(?:^\|.*\n)+", outside, re.M):
        lines = [(len(re.findall(r"(?<!\\)\|", line)), line) for line in table.splitlines()]
        assert not [line for count, line in lines if count != lines[0][0]]


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


@pytest.mark.slow
def test_the_first_commands_work_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the README, copied line by line: with a file of the name that it uses, and nothing filled in."""
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).standard_normal((300, 12)) * 0.7 ** np.arange(12)
    parquet.write_table(pa.table({f"column {i}": rows[:, i] for i in range(12)}), "samples.parquet")
    shell, python = re.findall(r"```(?:sh|python)\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1:3]
    commands = [shlex.split(line, comments=True) for line in shell.splitlines()]
    assert commands.pop(0) == [".", ".venv/bin/activate"]
    assert [command[1] for command in commands] == ["ingest", "init", "plan", "run", "report", "export"]
    for command in commands:
        assert command[0] == "npmdask"  # a process of its own: this one may have grown beyond the limit of the README
        subprocess.run([sys.executable, "-m", "npmdask.cli.main", *command[1:]], check=True, capture_output=True)
    told = shell.splitlines()[-1].partition("#")[2]
    with np.load("answer.npz") as answer:
        assert set(answer.files) == set(re.findall(r"\w+", told.partition(";")[0]))
    checks = "\nassert solution.converged and solution.basis.shape == (12, 10)\n"
    subprocess.run([sys.executable, "-c", python + checks], check=True, capture_output=True)


@pytest.mark.slow
def test_a_page_that_sets_a_limit_of_memory_runs_as_it_is_written(tmp_path: Path) -> None:
    """In a process of its own: this one has grown with the tests before, and may hold servers."""
    options = ("ELLIPSIS", "NORMALIZE_WHITESPACE")
    command = [sys.executable, "-m", "doctest", *(f"--option={option}" for option in options)]
    done = subprocess.run([*command, ROOT / "docs" / "tutorial.md"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_python_example_uses_names_that_exist() -> None:
    for name in re.findall(r"npmdask\.(\w+)\(", (ROOT / "README.md").read_text()):
        assert hasattr(npmdask, name)
    fields = re.findall(r"solution\.(\w+)", (ROOT / "README.md").read_text())
    assert set(fields) <= set(npmdask.Solution.__dataclass_fields__)
