"""Grams of ``A A^T``: few rows with many columns, stored as the Gram of the transposed array, which is read as it lies.

Mutants that these tests kill: a jackknife that always centres; blocks of columns that are put together
in another order; a merge that takes the same columns twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

import npmdask
from npmdask.errors import BadInputError, RefusedError
from tests.conftest import needs, write_zarr

MARK, FEW, MANY = -9, 30, 6000
pytestmark = needs("containers")


def genotypes() -> np.ndarray:
    """Individuals of three populations (rows), of which 2 % of the calls are missing."""
    rng = np.random.default_rng(0)
    shares = np.clip(rng.uniform(0.1, 0.6, MANY) + 0.1 * rng.standard_normal((3, MANY)), 0.02, 0.98)
    x = rng.binomial(2, shares[np.arange(FEW) % 3]).astype("i1")
    x[rng.random(x.shape) < 0.02] = MARK
    return x


def standardized(columns: np.ndarray) -> np.ndarray:
    """A row for each column of the data: about its mean over what is there, in units of Patterson, gaps at 0."""
    there = columns != MARK
    mean = np.where(there, columns, 0).sum(axis=1, keepdims=True) / there.sum(axis=1, keepdims=True)
    return np.where(there, (columns - mean) / np.sqrt(np.maximum(mean / 2 * (1 - mean / 2), 1e-3)), 0.0)


def turned(folder: Path, x: np.ndarray) -> Any:
    """Rows and columns of chunks, several of each: individuals are put together before a column is standardized."""
    path = write_zarr(folder / "x.zarr", x, (12, 250))
    return da.from_zarr(path).T.rechunk({1: -1}).map_blocks(standardized, dtype="f8")


@pytest.mark.slow
def test_groups_of_columns_are_left_out_drawn_again_and_merged(tmp_path: Path) -> None:
    """Individuals have components and intervals; columns have scores. Nothing is read for an answer."""
    x = genotypes()
    rows, a = turned(tmp_path, x), standardized(x.T).T  # individuals x columns
    labels = np.arange(MANY) // 300
    store = npmdask.gram(rows, tmp_path / "G", kind="samples", groups=labels)
    np.testing.assert_allclose(store.matrix(center=False), a @ a.T, atol=1e-9 * MANY)
    u, s, _ = np.linalg.svd(a, full_matrices=False)
    found = npmdask.top_k(store, 2)
    assert found.converged and found.data_passes == 0
    np.testing.assert_allclose(found.values, s[:2] ** 2 / MANY, rtol=1e-12)
    np.testing.assert_allclose(np.abs((found.basis * u[:, :2]).sum(axis=0)), 1.0, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(found.scores(rows), axis=0), s[:2], rtol=1e-12)
    left = store.jackknife(2, center=False)
    for group in (0, 7, 19):
        others = a[:, labels != group]
        values = np.linalg.eigvalsh(others @ others.T)[:-3:-1] / others.shape[1]
        np.testing.assert_allclose(left.left_out[group], values, rtol=1e-11)
    drawn = store.bootstrap(2, center=False)
    assert drawn.groups == 20 and drawn.vector_intervals.shape == (2, FEW, 2)
    np.testing.assert_allclose(drawn.value_errors, left.standard_errors, rtol=0.3)
    first, second = (
        npmdask.gram(part, tmp_path / name, kind="samples") for name, part in (("A", rows[:2000]), ("B", rows[2000:]))
    )
    both = npmdask.GramStore.merge([first, second], tmp_path / "both")
    np.testing.assert_allclose(both.matrix(center=False), a @ a.T, atol=1e-9 * MANY)
    rest = both.remove(first, tmp_path / "rest")
    np.testing.assert_allclose(rest.matrix(center=False), a[:, 2000:] @ a[:, 2000:].T, atol=1e-9 * MANY)
    with pytest.raises(RefusedError, match="the same checksums"):
        npmdask.GramStore.merge([first, npmdask.gram(rows[:2000], tmp_path / "C", kind="samples")], tmp_path / "twice")


@pytest.mark.slow
def test_complete_columns_are_summed_exactly_and_a_gap_is_refused(tmp_path: Path) -> None:
    """Whole numbers as they lie; ``center`` is of what a row of the data has over all columns."""
    x = np.abs(genotypes())
    path = write_zarr(tmp_path / "x.zarr", x, (12, 500))
    whole = x.astype(float)
    store = npmdask.gram(da.from_zarr(path).T, tmp_path / "G", kind="matrix")
    np.testing.assert_allclose(npmdask.top_k(store, 3).values, np.linalg.svd(whole)[1][:3], rtol=1e-13)
    about = whole - whole.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(store.matrix(), about @ about.T, atol=1e-9)
    with pytest.raises(BadInputError, match="nan at row"):
        npmdask.gram(da.from_zarr(path).T.map_blocks(lambda b: np.where(b == 9, np.nan, b)), tmp_path / "H")


KILLED = """
import os, sys
import dask.array as da
import npmdask
from npmdask.core.operators import _protocol
from npmdask.core.runs.observers import Observer

_protocol.RUN_BYTES = _protocol.COLUMN_BYTES = 1

class Killer(Observer):
    tasks = 0
    def on_task(self, record):
        self.tasks += bool(record.bytes_read)
        if self.tasks == int(sys.argv[3]):
            os.kill(os.getpid(), 9)

def prepared(columns):
    return columns - columns.mean(axis=1, keepdims=True)

rows = da.from_zarr(sys.argv[1]).T.map_blocks(prepared, dtype="f8")
made = npmdask.gram(rows, sys.argv[2], kind="samples", threads=1, commit_seconds=0, observer=Killer())
print(made.bytes_read)
"""


@pytest.mark.slow
def test_killed_inside_its_pass_it_goes_on_where_the_same_call_is_made_again(tmp_path: Path) -> None:
    """Another process knows the graph again. Mutant: the identity of rows has a word of each opening."""
    path = write_zarr(tmp_path / "x.zarr", np.random.default_rng(0).standard_normal((40, 60_000)), (40, 5000))

    def run(store: str, tasks: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(path), str(tmp_path / store), str(tasks)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    whole, killed, again = run("whole", -1), run("killed", 2), run("killed", -1)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert 0 < int(again.stdout) < int(whole.stdout), "what was committed is not read again"
    names = [part.name for part in npmdask.GramStore(tmp_path / "whole").parts]
    for name in names:
        for file in os.listdir(tmp_path / "whole" / name):
            assert (tmp_path / "whole" / name / file).read_bytes() == (tmp_path / "killed" / name / file).read_bytes()
