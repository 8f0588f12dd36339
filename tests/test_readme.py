"""What the README and the documents promise exists."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
import sysconfig
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


def test_at_most_five_pages_lie_at_the_root_of_docs() -> None:
    """A page lies in the folder where its reader looks."""
    assert len(list((ROOT / "docs").glob("*.md"))) <= 5


@pytest.mark.slow
def test_pages_and_pictures_that_files_name_exist() -> None:
    """Mutants: a page that moved, and a docstring, a message, a script or a comment with its old path."""
    folders = ("npmdask", "flows", "benchmarks", "infra", "tests", "docs", "data", ".ci", ".github")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")] + list(ROOT.glob("*"))
    gone, found = [], 0
    for path in files:
        if path.suffix not in (".py", ".md", ".toml", ".yaml", ".yml", ".sh", "") or not path.is_file():
            continue
        text = path.read_text()
        named = re.findall(r"(?<![\w/.-])docs/[\w./*-]*\w", text)
        joined = re.findall(r'"docs"(?: / "[\w.-]+")+', text) if path.suffix == ".py" else []
        named += [each.replace('"', "").replace(" / ", "/") for each in joined]
        found += len(named)
        gone += [f"{path}: {name}" for name in named if not any(ROOT.glob(f"{name}*")) and name not in NOT_KEPT]
    assert found > 200 and not gone, gone


NOT_KEPT = ("docs/NAME.md", "docs/gallery", "docs/sg_execution_times.rst")  # any page; what a build writes


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
    tour = (ROOT / "docs" / "tutorials" / "tour.md").read_text() + (ROOT / "docs" / "start.md").read_text()
    verbs = set(re.findall(r"^(?:.*; )?npmdask (\w+)", text + tour, re.M))
    assert len(verbs) > 15
    for verb in verbs:
        assert re.search(rf"^    {verb}\s", known, re.M), verb
    assert len(COMMANDS) == 29
    flows = re.findall(r"python -m flows\.(\w+)", tour)
    assert len(flows) > 2
    for flow in flows:
        assert (ROOT / "flows" / f"{flow}.py").exists()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.S)


def test_the_readme_is_one_screen_and_a_half() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 60 and len(text) < 4500
    beginning = text.partition("![")[0]
    assert "PCA" in beginning and "SVD" in beginning


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell in which nothing of npmdask is installed yet.

    What npmdask and its build need is that of this environment: downloading it would test the network.
    """
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, capture_output=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # pip too, which takes 4 s to install
    (folder / "venv" / "bin" / "pip").write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n')
    (folder / "venv" / "bin" / "pip").chmod(0o755)
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_IGNORE_INSTALLED": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "VIRTUAL_ENV"))}
    return kept | pip | {"PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}"}


@pytest.mark.slow
def test_the_first_blocks_run_as_they_are_printed(tmp_path: Path, installed: dict[str, str]) -> None:
    """By a shell beside the checkout, from installation to a page with plots; only the file of rows is made here."""
    shell, own = blocks("docs/start.md", "sh")
    python = blocks("docs/start.md", "python")[0]
    (tmp_path / "npmdask").symlink_to(ROOT)
    assert shell.startswith("pip install") and "npmdask report" in shell

    def run(*command: str | Path) -> None:
        done = subprocess.run(command, cwd=tmp_path, env=installed, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    run("sh", "-ec", shell)
    assert "<svg" in (tmp_path / "runs" / "samples" / "report.html").read_text()
    where = "\nassert 'site-packages' in npmdask.__file__ and 'venv' in npmdask.__file__, npmdask.__file__"
    checks = f"\nassert solution.converged and solution.basis.shape == (100, 10){where}\n"
    run("python", "-c", python + checks)
    told = shell.splitlines()[-1].partition("#")[2]
    with np.load(tmp_path / "answer.npz") as answer:
        assert set(answer.files) == set(re.findall(r"\w+", told.partition(";")[0]))
    rows = np.random.default_rng(0).standard_normal((300, 12)) * 0.7 ** np.arange(12)
    parquet.write_table(pa.table({f"column {i}": rows[:, i] for i in range(12)}), tmp_path / "samples.parquet")
    run("sh", "-ec", own)
    assert (tmp_path / "runs" / "first" / "result").is_dir()


def test_the_first_block_of_the_readme_is_what_a_fresh_machine_can_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a clone, targets that make finds; then Python with a mean, which prints what the page says."""
    page, clone = ROOT / "README.md", blocks("README.md", "sh")
    lines = [shlex.split(line, comments=True) for line in clone[0].splitlines()]
    assert len(clone) == 1 and [line[0] for line in lines] == ["make", "make"]
    for line in lines:
        subprocess.run([*line, "--dry-run"], cwd=ROOT, check=True, capture_output=True)
    text = page.read_text()
    assert text.index("```sh") < text.index("```python") < text.index("\n| |")
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testfile(str(page), False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert tried >= 5 and not failed


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/install.md", "docs/start.md"])
def test_the_first_line_says_that_no_index_has_the_package(page: str) -> None:
    """Until one has it; then line and test go, as CONTRIBUTING.md says."""
    line = (ROOT / page).read_text().split("\n\n")[1].splitlines()[0]
    assert "ot on a package index yet: " in line and "install" in line


@pytest.mark.slow
@pytest.mark.parametrize("page", ["howto/lazy.md", "tutorials/from-a-file.md"])
def test_a_page_that_sets_a_limit_of_memory_runs_as_it_is_written(page: str, tmp_path: Path) -> None:
    """In a process of its own: this one has grown with the tests before, and may hold servers."""
    options = ("ELLIPSIS", "NORMALIZE_WHITESPACE")
    command = [sys.executable, "-m", "doctest", *(f"--option={option}" for option in options)]
    done = subprocess.run([*command, ROOT / "docs" / page], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_python_examples_use_names_that_exist() -> None:
    for page in ("README.md", "docs/tutorials/tour.md", "docs/start.md"):
        text = "".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S))
        names = re.findall(r"npmdask\.(\w+)\(", text)
        assert names
        for name in names:
            assert hasattr(npmdask, name)
        for name in re.findall(r"solution\.(\w+)", text):
            assert hasattr(npmdask.Solution, name) or name in npmdask.Solution.__dataclass_fields__
