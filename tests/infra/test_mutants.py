"""The mutants beside the private ones: the table fits the code, and what does not fail is said to survive."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.mutant_table import KINDS, MUTANTS, Mutant, sources_of
from infra.mutants import ROOT, copied, main, run, verdict_on

SOURCES = sources_of(ROOT / "npmdask")


def test_there_are_forty_of_eight_kinds() -> None:
    counts = Counter(mutant.kind for mutant in MUTANTS)
    assert set(counts) == set(KINDS) and len(KINDS) == 8
    assert len(MUTANTS) >= 40 and min(counts.values()) >= 4
    assert len({mutant.name for mutant in MUTANTS}) == len({mutant.mistake for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.tests and mutant.found != mutant.instead for mutant in MUTANTS)


@pytest.mark.slow
def test_each_fits_the_code_and_names_only_what_there_is(tmp_path: Path) -> None:
    """Its piece is there once. A mistake that cannot be compiled, or names nothing, would fail every test."""
    for number, mutant in enumerate(MUTANTS):
        (tmp_path / f"mutant_{number}.py").write_text(mutant.made(SOURCES)[1])
    command = (sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,F823,E9", str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_every_test_that_is_named_exists_and_is_not_heavy() -> None:
    named = sorted({test for mutant in MUTANTS for test in mutant.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-m", "not heavy", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *named], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    found = {line for line in done.stdout.splitlines() if "::" in line}
    assert not [test for test in named if test not in found | {line.partition("[")[0] for line in found}]


def test_a_piece_that_is_gone_or_there_twice_is_an_error_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    first = MUTANTS[0]
    with pytest.raises(LookupError, match=f"mutant {first.name}: .* exactly once, and is nowhere"):
        replace(first, found="no such thing").made(SOURCES)
    with pytest.raises(LookupError, match=r"exactly once, and is \d+ times in .*errors\.py"):
        replace(first, found="NpmdaskError):").made(SOURCES)
    with pytest.raises(SyntaxError):
        replace(first, instead="(").made(SOURCES)
    with pytest.raises(SystemExit):
        main(["no such mutant"])
    assert "no such mutant or kind" in capsys.readouterr().err


CODE = "def doubled(x):\n    return 2 * x\n"
TESTS = """
import os
import pytest
from npmdask import doubled

def test_twice():
    assert doubled(2) == 4

def test_of_sums():
    assert doubled(3) == 6

def test_blind():
    assert doubled(0) == 0

def test_in_another_process():
    import subprocess, sys
    code = "from npmdask import doubled; raise SystemExit(doubled(2) != 4)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

def test_hangs():
    import time
    time.sleep(0 if doubled(2) == 4 else 600)

@pytest.fixture
def four():
    assert doubled(2) == 4

def test_of_a_fixture(four):
    pass
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A package of one function, which is called npmdask as ours is, and its tests."""
    root = tmp_path_factory.mktemp("project")
    for name in ("npmdask", "tests", "benchmarks", "flows", "infra"):
        (root / name).mkdir()
    (root / "npmdask" / "__init__.py").write_text(CODE)
    (root / "tests" / "__init__.py").write_text("")
    (root / "tests" / "test_it.py").write_text(TESTS)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["heavy"]\n')
    yield copied(tmp_path_factory.mktemp("copy").resolve() / "base", root)


IT = "tests/test_it.py::"


def squared(*tests: str, instead: str = "x * x", **more: bool) -> Mutant:
    """The mutant of it: right of 0 and 2 only."""
    found = tuple(f"{IT}{test}" for test in tests)
    return Mutant(name="squared", kind="names", mistake="Squared.", found="2 * x", instead=instead, tests=found, **more)


@pytest.mark.slow
def test_killed_is_what_fails_each_test_that_it_names(project: Path) -> None:
    assert verdict_on(squared("test_of_sums"), project).killed
    both = verdict_on(squared("test_of_sums", "test_twice"), project)
    assert not both.killed and both.others == {f"{IT}test_twice": "passed"}
    unchanged = verdict_on(squared("test_of_sums", "test_twice", instead="x * 2"), project)
    assert not unchanged.killed and set(unchanged.others.values()) == {"passed"} and not unchanged.failed


@pytest.mark.slow
def test_other_processes_of_a_test_import_the_copy(project: Path) -> None:
    assert verdict_on(squared("test_twice", "test_in_another_process", instead="3 * x"), project).killed


@pytest.mark.slow
def test_what_keeps_a_test_from_being_run_is_no_failure_of_it(project: Path) -> None:
    """A fixture that fails, a module that cannot be imported, a test that is not there, and one that never ends."""
    verdict = verdict_on(squared("test_of_a_fixture", "test_twice", instead="3 * x"), project)
    assert not verdict.killed and verdict.others == {f"{IT}test_of_a_fixture": "error"}
    assert set(verdict_on(squared("test_twice", instead="x\n\nimport nowhere\n"), project).others.values()) != {
        "passed"
    }
    assert not verdict_on(squared("test_twice", instead="x\n\nimport nowhere\n"), project).killed
    assert not verdict_on(squared("test_nowhere", instead="3 * x"), project).killed
    assert verdict_on(squared("test_hangs", instead="3 * x"), project, 2.0).others == {f"{IT}test_hangs": "hung"}
    assert verdict_on(squared("test_hangs", instead="3 * x", hangs=True), project, 2.0).killed


@pytest.mark.slow
def test_one_is_really_killed_and_one_that_changes_nothing_survives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line on, of npmdask itself: the exit code is of the worst."""
    killed = next(mutant for mutant in MUTANTS if mutant.name == "half of the residual")
    same = replace(killed, name="nothing", instead=f"{killed.found}  # as before")
    monkeypatch.setattr("infra.mutants.MUTANTS", (killed, same))
    assert main(["bounds"]) == 1
    said = capsys.readouterr().out
    assert "1 of 2 mutants killed by the tests that they name" in said
    assert re.search(r"killed +bounds +half of the residual:", said) and re.search(r"SURVIVED +bounds +nothing:", said)
    assert f"{killed.tests[0]}: passed" in said


@pytest.mark.slow
def test_a_test_that_fails_anyway_shows_nothing(project: Path) -> None:
    with pytest.raises(RuntimeError, match="do not pass without any mistake, so that they show nothing"):
        run([squared("test_nowhere")], project)
    assert [verdict.killed for verdict in run([squared("test_of_sums")], project)] == [True]
