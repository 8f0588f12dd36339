"""The lane of the peers' own tests: only imports change, and the table of what fails is held to from both sides."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sklearn.decomposition
import yaml

import npmdask
from infra import peer_suites
from infra.peer_suites import SUITES, Row, Table

ROOT = Path(__file__).resolve().parents[2]
NIGHT = ROOT / ".github" / "workflows" / "nightly.yml"
DOORS = SUITES["dask-ml"].doors


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("from dask_ml.decomposition import PCA", "from npmdask_for_dask_ml_decomposition import PCA"),
        ("    import dask_ml.decomposition as dd", "    import npmdask_for_dask_ml_decomposition as dd"),
        ("from dask_ml import decomposition", "import npmdask_for_dask_ml_decomposition as decomposition"),
        ("from dask_ml import decomposition as dd", "import npmdask_for_dask_ml_decomposition as dd"),
        ("from dask_ml.utils import svd_flip", "from dask_ml.utils import svd_flip"),
        ("from dask_ml.decomposition._x import y", "from dask_ml.decomposition._x import y"),
        ("x = 'dask_ml.decomposition'", "x = 'dask_ml.decomposition'"),
    ],
)
def test_only_imports_change(line: str, instead: str) -> None:
    assert peer_suites.with_doors(f"import a\n{line}\nb = 1\n", DOORS) == f"import a\n{instead}\nb = 1\n"


def test_behind_a_door_is_all_of_the_peer_but_what_npmdask_has() -> None:
    held: dict[str, Any] = {"__name__": "made"}
    exec(peer_suites.door_module("sklearn.decomposition", {"PCA": "npmdask:PCA", "NMF": "npmdask:No"}), held)
    assert held["PCA"] is npmdask.PCA and held["FastICA"] is sklearn.decomposition.FastICA
    assert "NMF" not in held  # what is not there yet is missing, and its tests are not the peer's own
    with pytest.raises(AttributeError):
        held["__getattr__"]("NMF")
    assert held["__getattr__"]("__all__") == sklearn.decomposition.__all__
    inside: dict[str, Any] = {"__name__": "made"}
    exec(peer_suites.door_module("sklearn", {"decomposition.PCA": "npmdask:PCA"}), inside)
    assert inside["decomposition"].PCA is npmdask.PCA is not sklearn.decomposition.PCA


def test_the_table_may_only_shrink() -> None:
    """Mutant: tests of the table that pass, or are not run, are no difference."""
    row = Row("1", 2, 0, {"whitening": ["a", "b", "c"], "answers": ["d"]})
    seen = {"a": "failed", "b": "passed", "d": "failed", "e": "failed", "f": "passed"}
    assert list(peer_suites.differences(row, seen)) == [
        "fails, and is not in the table: e",
        "passes, and is in the table (whitening): take it out: b",
        "is not run, and is in the table (whitening): take it out: c",
    ]
    assert not list(peer_suites.differences(row, {**seen, "b": "failed", "c": "failed", "e": "passed"}))
    assert row.counted(["answers"]) == 5
    assert list(peer_suites.differences(Row("1", 3), {"f": "passed", "g": "skipped"})) == [
        "1 tests passed, and 3 of the table: others are skipped, or not there"
    ]
    kept = peer_suites.written(row, SUITES["xeofs"], seen)
    assert (kept.passed, kept.fails) == (2, {"whitening": ["a"], "answers": ["d"], "to do": ["e"]})
    assert not list(peer_suites.differences(kept, seen))


def test_a_test_that_fails_once_has_failed() -> None:
    told = [("a", "call", "passed"), ("a", "teardown", "failed"), ("b", "setup", "skipped"), ("a", "call", "passed")]
    try:
        for test, when, outcome in told:
            peer_suites.pytest_runtest_logreport(SimpleNamespace(nodeid=test, when=when, outcome=outcome))
        assert peer_suites._seen == {"a": "failed", "b": "skipped"}
    finally:
        peer_suites._seen.clear()


def test_the_kept_table_is_that_of_the_page_and_of_the_pins() -> None:
    """Mutants: a number of the page that is another; a pin that moved, and the suite not run again."""
    table, page = Table.read(), (ROOT / "docs" / "project" / "peer-suites.md").read_text()
    assert peer_suites.TABLE.read_text() == table.text()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", page, re.M)]
    shown = {line[0]: line[1:] for line in lines[2:]}
    assert sorted(lines[0][1:]) == sorted(f"{name} {row.version}" for name, row in table.rows.items())
    for at, called in enumerate(lines[0][1:]):
        name = called.split()[0]
        row = table.rows[name]
        assert row.version == peer_suites.version_of(SUITES[name])
        assert set(row.fails) <= table.categories.keys() & shown.keys()
        assert len(row.known) == sum(map(len, row.fails.values()))  # each has one reason
        want = {category: len(row.fails.get(category, [])) for category in shown.keys() & table.categories.keys()}
        want |= {"passed": row.passed, "of": row.counted(table.uncounted)}
        assert {key: int(shown[key][at]) for key in want} == want
    assert len(page.split()) <= 250


def test_the_night_takes_the_tests_of_dask_ml_from_the_tag_of_the_pin() -> None:
    steps = yaml.safe_load(NIGHT.read_text())["jobs"]["peers"]["steps"]
    (taken,) = (step["with"] for step in steps if "repository" in step.get("with", {}))
    assert f"ref: {taken['ref']} # v{peer_suites.version_of(SUITES['dask-ml'])}\n" in NIGHT.read_text()
    assert f"DASK_ML={taken['path']}" in steps[-1]["run"]
