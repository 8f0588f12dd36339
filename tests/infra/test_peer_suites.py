"""The lane of the peers' own tests: only imports change, and the table of what fails is held to from both sides."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn.decomposition
import yaml

import npmdask
from infra import peer_suites, scanpy_tests
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


@pytest.mark.slow
def test_cells_are_made_of_the_shape_that_scanpy_downloads() -> None:
    """Mutants: fewer genes; no kinds of cells; numbers that are no counts; cells in any order; other ones each time."""
    made = scanpy_tests.pbmc3k()
    x = made.X
    assert made.shape == (2700, 32738) and made.var_names.is_unique and x.has_canonical_format
    assert (x.data == np.round(x.data)).all() and 500 < x.nnz / 2700 < 1500
    assert 0.4 < (x.getnnz(axis=0) > 0).mean() < 0.6  # of 32,738 genes 16,634 are seen there
    deep = np.asarray(x.sum(axis=1)).ravel()
    assert deep[:200].min() > deep[-200:].max()
    rows = np.log1p(x[:, np.argsort(-x.getnnz(axis=0))[:300]].toarray())
    values = np.linalg.eigvalsh(np.cov(rows.T))[::-1]
    assert values[scanpy_tests.KINDS - 1] > 2 * values[scanpy_tests.KINDS]  # kinds, and depths
    assert (scanpy_tests.counts() != x).nnz == 0


@pytest.mark.slow
def test_what_scanpy_lacks_is_put_in_its_place_after_its_plugin_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plugin refuses an earlier import. Mutants: an import at the top; a name that is there is taken away."""
    assert SUITES["scanpy"].options == ("-p", "testing.scanpy._pytest", "-p", "infra.scanpy_tests")
    alone = "import sys, infra.scanpy_tests; sys.exit('scanpy' in sys.modules or 'anndata' in sys.modules)"
    assert subprocess.run((sys.executable, "-c", alone), cwd=ROOT).returncode == 0
    scanpy, helpers = (SimpleNamespace(datasets=SimpleNamespace()), SimpleNamespace(as_sparse_dask_matrix=len))
    monkeypatch.setitem(sys.modules, "scanpy", scanpy)
    monkeypatch.setitem(sys.modules, "anndata.tests", SimpleNamespace(helpers=helpers))
    scanpy_tests.pytest_configure()
    assert scanpy.datasets.pbmc3k is scanpy_tests.pbmc3k and helpers.as_sparse_dask_array is len
    helpers.as_sparse_dask_array = max
    scanpy_tests.pytest_configure()
    assert helpers.as_sparse_dask_array is max


def test_the_night_takes_the_tests_of_dask_ml_from_the_tag_of_the_pin() -> None:
    steps = yaml.safe_load(NIGHT.read_text())["jobs"]["peers"]["steps"]
    (taken,) = (step["with"] for step in steps if "repository" in step.get("with", {}))
    assert f"ref: {taken['ref']} # v{peer_suites.version_of(SUITES['dask-ml'])}\n" in NIGHT.read_text()
    assert f"DASK_ML={taken['path']}" in steps[-1]["run"]
