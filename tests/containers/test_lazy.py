"""Rows that are computed or read when a pass asks for them: no copy, the same bits, and no lie becomes an answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr

import npmdask
from npmdask.containers import lazy
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.solution import Step
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from tests.conftest import often, write_zarr

RNG = np.random.default_rng(5)
X = RNG.standard_normal((640, 24)) * np.geomspace(6, 0.5, 24)
ROOT = Path(__file__).resolve().parents[2]


def graph(values: np.ndarray = X, rows: Any = 100, columns: Any = -1) -> Any:
    return da.from_array(values, chunks=(rows, columns))


def true_values(x: np.ndarray) -> np.ndarray:
    return np.linalg.svd(x, compute_uv=False)[:3]


def in_turn(block: np.ndarray, block_info: Any = None) -> np.ndarray:
    """Blocks in one byte order and the other."""
    return block.astype("<f8" if block_info[0]["chunk-location"][0] % 2 else ">f8")


LAZY: dict[str, Callable[[], Any]] = {
    "blocks of rows": lambda: graph(),
    "blocks of rows and columns": lambda: graph(columns=7),
    "blocks of any heights": lambda: graph(rows=(100, 1, 250, 9, 280)),
    "sparse blocks": lambda: graph().map_blocks(sp.csr_array),
    "sparse blocks in columns": lambda: graph(columns=10).map_blocks(sp.csr_matrix, dtype=float),
    "a wrong dtype said": lambda: graph().map_blocks(lambda b: b, dtype=np.float32),
    "other byte order": lambda: graph(X.astype(">f8")),
    "both byte orders": lambda: graph().map_blocks(in_turn, meta=np.empty((0, 0))),
    "sums over all rows": lambda: graph() - graph().mean(0) + X.mean(0),
    "other blocks": lambda: graph(rows=150).rechunk((40, 24)),
    "a transposed array": lambda: da.from_array(X.T.copy(), chunks=(24, 90)).T,
    "in the memory of Dask": lambda: graph().persist(scheduler="sync"),
    "a table": lambda: dd.from_pandas(pd.DataFrame(X, columns=[f"c{i}" for i in range(24)]), npartitions=5),
}


def test_what_blocks_take_on_the_way_is_in_the_plan() -> None:
    """Not only what they are: eight times that here."""
    x = da.zeros((40_000, 24), chunks=(10_000, 24)).map_blocks(lambda b: np.tile(b, (8, 1))[: len(b)])
    assert lazy.graph_rows(x, "x").needs - lazy.TILE_BYTES > 1.2 * 8 * 10_000 * 24 * 8
    assert open_source(x).reader.buffer_bytes > lazy.graph_rows(x, "x").needs


def test_a_sparse_block_may_have_twice_the_entries_of_the_one_that_was_looked_at() -> None:
    def block(block_info: Any = None) -> Any:
        rows, entries = 80_000, (10, 20)[block_info[None]["chunk-location"][0]]
        columns, ends = np.tile(np.arange(entries), rows), np.arange(rows + 1) * entries
        return sp.csr_matrix((np.ones(rows * entries), columns, ends), shape=(rows, 24))

    rows = lazy.graph_rows(da.map_blocks(block, chunks=((80_000,) * 2, (24,)), meta=sp.csr_matrix((0, 0))), "x")
    tracemalloc.start(1)
    try:
        rows.block(1)
        assert rows.needs > tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", LAZY)
def test_graphs_have_the_answer_of_their_values(name: str) -> None:
    found = npmdask.top_k(LAZY[name](), 3, threads=2)
    np.testing.assert_allclose(found.values, true_values(X), rtol=1e-12)
    assert found.outcome.converged and found.certificate is not None


@pytest.mark.slow
def test_the_bits_are_those_of_the_stored_rows_with_any_number_of_threads_and_processes(tmp_path: Path) -> None:
    stored = npmdask.top_k(write_zarr(tmp_path / "x.zarr", X, (640, 24)), 3, center=True, scale=True, threads=1)
    big = graph(rows=320)  # units of one block: 640 rows
    for options in ({"threads": 1}, {"threads": 3}, {"workers": 2, "threads": 1}):
        found = npmdask.top_k(big.map_blocks(lambda b: b + 0), 3, center=True, scale=True, **options)
        np.testing.assert_array_equal(found.basis, stored.basis)
        np.testing.assert_array_equal(found.values, stored.values)


def counted(monkeypatch: pytest.MonkeyPatch, unit: int = 1) -> list[int]:
    """Which blocks of rows are computed, in order; every block a unit of its own."""
    monkeypatch.setattr(lazy, "UNIT_BYTES", unit)
    seen: list[int] = []
    original = lazy.GraphRows.block

    def block(self: Any, number: int) -> Any:
        seen.append(number)
        return original(self, number)

    monkeypatch.setattr(lazy.GraphRows, "block", block)
    return seen


def test_every_pass_computes_every_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counted(monkeypatch)
    found = npmdask.top_k(graph(), 3, threads=1)
    assert seen[0] == 0  # looked at when it was opened
    times = Counter(seen[1:])
    assert sorted(times) == list(range(7)) and set(times.values()) <= {found.data_passes, found.data_passes + 1}
    assert sum(times.values()) <= 7 * found.data_passes + 1  # and one as a sample, of which the steps are predicted


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_a_matrix_that_is_formed_of_computed_rows_takes_one_pass(sparse: bool, tmp_path: Path) -> None:
    """Those that are read are multiplied in float32, which another pass mends. Mutant: computed ones are so, too."""
    x = np.random.default_rng(4).gamma(0.1, size=(2000, 600)).astype(np.float32)  # no value stands out
    blocks = da.from_array(x, chunks=(500, 600))
    computed = blocks.map_blocks(sp.csr_array) if sparse else blocks
    asked: dict[str, Any] = {"kind": "samples", "center": True, "algorithm": "gram", "tol": 1e-7}
    once = npmdask.top_k(computed, 5, **asked)
    often = npmdask.top_k(write_zarr(tmp_path / "x.zarr", x, (500, 600)), 5, **asked)
    assert once.converged and once.total_data_passes == 1 < often.total_data_passes
    np.testing.assert_allclose(once.values, often.values, rtol=1e-9)


def test_a_block_in_two_units_is_computed_once_by_the_task_that_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counted(monkeypatch)
    rows = lazy.graph_rows(graph(rows=(100, 30, 30, 400, 80)), "x")  # units of 400: blocks 0..3, and 3, 4
    seen.clear()
    np.testing.assert_array_equal(np.concatenate([t for u in range(2) for t in rows.tiles(u)]), X)
    assert seen == [0, 1, 2, 3, 4]


def test_a_block_that_no_other_unit_has_a_part_of_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "UNIT_BYTES", 1)
    made: list[Any] = []

    def block(b: np.ndarray) -> np.ndarray:
        made.append(weakref.ref(b := b + 0))
        return b

    rows = lazy.graph_rows(graph().map_blocks(block, meta=np.empty((0, 0))), "x")
    made.clear()
    assert sum(len(tile) for tile in rows.tiles(0)) == 100
    assert len(made) == 1 and made[0]() is None


def test_what_every_block_needs_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def read(block: np.ndarray) -> np.ndarray:
        calls.append(1)
        return block

    x = graph(rows=40).map_blocks(read, meta=np.empty((0, 0)))
    monkeypatch.setattr(lazy, "UNIT_BYTES", 1)
    rows = lazy.graph_rows(x - x.mean(0), "x")
    calls.clear()
    got = np.concatenate([t for u in range(16) for t in rows.tiles(u)])
    np.testing.assert_allclose(got, X - X.mean(0), atol=1e-12)
    assert len(calls) == 16


def test_what_every_block_needs_must_be_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "MOST_SHARED", 50_000)
    with pytest.raises(BadInputError, match=r"depend on each other: more than .* MiB.*to_zarr"):
        npmdask.top_k(da.from_array(X.T.copy(), chunks=(2, 640)).map_blocks(np.abs).T.rechunk((40, 24)), 3)


@pytest.mark.slow
def test_a_field_less_its_climatology_is_read_by_its_own_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants: neighbours are not joined; they are, however large that is."""
    stored = zarr.create_array(tmp_path / "x.zarr", shape=(96, 640), chunks=(24, 640), dtype="f8")
    stored[:] = values = np.abs(np.resize(X, (96, 640)))
    x, months = da.from_zarr(tmp_path / "x.zarr"), np.arange(96) % 12
    climatology = da.stack([x[months == month].mean(0) for month in range(12)]).rechunk((1, 640))
    one_by_one = da.concatenate([x[row : row + 1] - climatology[row % 12][None] for row in range(96)])
    monkeypatch.setattr(lazy, "MOST_SHARED", 24 * 640 * 8)  # a quarter of the field, twice the climatology
    rows = lazy.graph_rows(one_by_one, "x")
    assert rows.heights == (24,) * 4
    wanted = values - np.stack([values[months == month].mean(0) for month in range(12)])[months]
    np.testing.assert_allclose(np.concatenate([rows.block(i) for i in range(4)]), wanted, atol=1e-12)
    monkeypatch.setattr(lazy, "MOST_SHARED", 23 * 640 * 8)
    with pytest.raises(BadInputError, match="depend on each other"):
        lazy.graph_rows(one_by_one, "x")


def test_what_a_mean_is_made_of_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "MOST_SHARED", 50_000)  # bytes; the rows are 122,880
    x, truth = graph().map_blocks(np.abs), np.abs(X)
    found = npmdask.top_k(x - x.mean(0), 3)
    np.testing.assert_allclose(found.values, true_values(truth - truth.mean(0)), rtol=1e-10)


class Interrupted(Observer):
    def on_step(self, step: Step) -> None:
        if step.number == 2:
            raise KeyboardInterrupt


POWER: dict[str, Any] = {"algorithm": "power", "iteration_rank": 4}


def test_a_graph_that_gives_other_numbers_is_named_with_the_rows() -> None:
    state = {"calls": 0}

    def noisy(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        state["calls"] += 1
        return block + (state["calls"] > 30) * 1e-12

    x = graph(rows=320).map_blocks(noisy, meta=np.empty((0, 0)))
    with pytest.raises(BadInputError, match=r"unit \d of the Dask array .* \(rows \d+ to \d+\) has changed"):
        npmdask.top_k(x, 3, tol=1e-15, max_steps=80, **POWER)


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_graph_only(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k(graph() * 2, 3, store=tmp_path / "run", observer=Interrupted(), **POWER)
    with pytest.raises(RefusedError, match=r"data\.fingerprint"):
        npmdask.top_k(graph() * 3, 3, store=tmp_path / "run", **POWER)
    with pytest.raises(BadInputError, match="that program must call the same function again"):
        npmdask.resume(tmp_path / "run")
    resumed = npmdask.top_k(graph() * 2, 3, store=tmp_path / "run", **POWER)
    whole = npmdask.top_k(graph() * 2, 3, **POWER)
    assert resumed.steps == whole.steps > 2
    np.testing.assert_array_equal(resumed.basis, whole.basis)
    assert npmdask.top_k(graph() * 2, 3, store=tmp_path / "run", **POWER).data_passes == 0


@pytest.mark.slow
def test_files_behind_a_graph_that_changed_are_another_source(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "x.zarr", X, (100, 24))
    npmdask.top_k(da.from_zarr(str(path)), 3, store=tmp_path / "run")
    shutil.rmtree(path)
    write_zarr(path, X[::-1].copy(), (100, 24))
    with pytest.raises(RefusedError, match=r"data\.fingerprint"):
        npmdask.top_k(da.from_zarr(str(path)), 3, store=tmp_path / "run")


@pytest.mark.parametrize("row", [0, 300])
@pytest.mark.parametrize("made", [np.asarray, sp.csr_matrix])
def test_other_numbers_in_the_first_block_are_another_source(made: Any, row: int) -> None:
    """What a function reads may change behind the name of its graph; every row of the first block is looked at."""
    held = X.copy()

    def read(block_info: Any = None) -> Any:
        first, last = block_info[None]["array-location"][0]
        return made(held[first:last])

    def printed() -> str:
        x = da.map_blocks(read, chunks=((320, 320), (24,)), dtype=float, name="the same", meta=np.empty((0, 0)))
        return open_source(x).fingerprint

    before = printed()
    assert printed() == before
    held[row, 5] += 1
    assert printed() != before


def test_blocks_of_other_heights_are_another_source() -> None:
    """A function may give other numbers when it is asked for other rows at once."""

    def block(block_info: Any = None) -> np.ndarray:
        return np.full(block_info[None]["chunk-shape"], 1.0 + block_info[None]["chunk-location"][0])

    def printed(*heights: int) -> str:
        x = da.map_blocks(block, chunks=(heights, (24,)), dtype=float, name="the same", meta=np.empty((0, 0)))
        return open_source(x).fingerprint

    assert printed(300, 40, 300) == printed(300, 40, 300) != printed(300, 300, 40)


def grid_of(values: np.ndarray) -> xr.DataArray:
    return xr.DataArray(values.reshape(640, 4, 6), dims=("time", "lat", "lon"), name="sst")


def store_grid(path: Path, values: np.ndarray, **options: Any) -> None:
    grid_of(values).to_dataset().to_zarr(path, zarr_format=2, encoding={"sst": {"chunks": (100, 4, 6)}}, **options)


@pytest.mark.slow
@pytest.mark.parametrize("door", ["dask", "dask, inline", "xarray", "xarray, derived", "xarray, not read"])
def test_a_change_in_any_chunk_behind_a_graph_is_another_source(tmp_path: Path, door: str) -> None:
    """The graph has the same name, and its first block is the same: the store must not answer for the old numbers."""
    path = tmp_path / "g.zarr"
    store_grid(path, X)

    def opened() -> Any:
        grid = xr.open_zarr(path).sst
        return {
            "dask": lambda: da.from_zarr(str(path / "sst")),
            "dask, inline": lambda: da.from_zarr(str(path / "sst"), inline_array=True) * 2,
            "xarray": lambda: grid.data,
            "xarray, derived": lambda: ((grid - 1) * 2).transpose("time", "lon", "lat").data,
            "xarray, not read": lambda: xr.open_dataset(path, engine="zarr").sst.chunk(time=100).data,
        }[door]()

    asked: dict[str, Any] = {"dim": 0, "store": tmp_path / "run"}
    first = npmdask.top_k(opened(), 3, **asked)
    assert npmdask.top_k(opened(), 3, **asked).data_passes == 0
    changed = X.copy()
    changed[-1] *= 3
    zarr.open(path)["sst"][600:] = changed[600:].reshape(40, 4, 6)  # in place
    with pytest.raises(RefusedError, match=r"data\.fingerprint"):
        npmdask.top_k(opened(), 3, **asked)
    assert abs(npmdask.top_k(opened(), 3, dim=0).values - first.values).max() > 1e-3


@pytest.mark.slow
def test_spilled_rows_of_an_earlier_run_are_no_data_of_the_next(tmp_path: Path) -> None:
    """What a function reads may change behind the name of its graph: a first pass always computes."""
    held = {"values": X}

    def read(block_info: Any = None) -> np.ndarray:
        first, last = block_info[None]["array-location"][0]
        return held["values"][first:last]

    x = da.map_blocks(read, chunks=((80,) * 8, (24,)), dtype=float, name="the same", meta=np.empty((0, 0)))
    for sparse in (False, True):
        given = x.map_blocks(sp.csr_matrix, meta=sp.csr_matrix((0, 0)), name="also the same") if sparse else x
        for values in (X, np.concatenate([X[:600], 3 * X[600:]])):
            held["values"] = values
            found = npmdask.top_k(given, 3, spill=tmp_path / "spill")
            np.testing.assert_allclose(found.values, true_values(values), rtol=1e-10)


def test_a_block_that_an_earlier_run_left_is_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "UNIT_BYTES", 1)
    held = {"values": X}
    x = graph(rows=(100, 30, 30, 400, 80)).map_blocks(lambda b: b * held.get("factor", 1.0), name="the same")
    list(lazy.graph_rows(x, "x").tiles(0))  # ends inside of block 3
    held["factor"] = 2.0
    rows = lazy.graph_rows(x, "x")
    np.testing.assert_array_equal(np.concatenate(list(rows.tiles(1))), 2 * X[400:])
    other = lazy.graph_rows(x, "x")
    list(rows.tiles(0))
    held["factor"] = 3.0
    np.testing.assert_array_equal(np.concatenate(list(other.tiles(1))), 3 * X[400:])


KILLED = """
import sys, time
import dask.array as da, numpy as np, npmdask

def block(block_info=None):
    number = block_info[None]["chunk-location"][0]
    time.sleep({pause})
    return np.random.default_rng(number).standard_normal((2000, 30)) * 0.8 ** np.arange(30)

x = da.map_blocks(block, chunks=((2000,) * 12, (30,)), dtype=float)
x = da.log1p(abs(x)) - x.mean(0)
found = npmdask.top_k(x, 3, store=sys.argv[1], threads=2, commit_seconds=0.0, spill=sys.argv[2] or None,
                      algorithm="power", iteration_rank=6, tol=1e-6)
np.save(sys.argv[1] + ".npy", found.basis)
"""


@pytest.mark.slow
@pytest.mark.parametrize("spilled", often([False, True], 1))
def test_a_killed_program_goes_on_to_the_same_bits(tmp_path: Path, spilled: bool) -> None:
    def begun(name: str, pause: float) -> subprocess.Popen:
        (tmp_path / "job.py").write_text(KILLED.replace("{pause}", "0"))
        code = KILLED.replace("{pause}", f"0 if not {pause} else {pause}")
        spill = str(tmp_path / f"spill of {name}") if spilled else ""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen([sys.executable, "-c", code, str(tmp_path / name), spill], env=environment)

    assert begun("whole", 0).wait(600) == 0  # a busy machine takes minutes to start it
    for _ in range(3):
        process = begun("run", 0)
        deadline = time.monotonic() + 60
        seen = set((tmp_path / "run").rglob("*"))
        while process.poll() is None and time.monotonic() < deadline:
            if set((tmp_path / "run").rglob("*")) - seen:
                time.sleep(0.15)
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert begun("run", 0).wait(600) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "run.npy"), np.load(tmp_path / "whole.npy"))


def broken(fault: str) -> Any:
    def block(b: np.ndarray, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"][0] != 2:
            return b
        if fault == "raises":
            raise OSError("the disk is gone")
        if fault == "nan":
            return np.where(b == b[3, 4], np.nan, b)
        return {
            "short": b[1:],
            "narrow": b[:, 1:],
            "float32": b.astype(np.float32),
            "masked": np.ma.masked_less(b, 0),
            "complex": b + 1j,
        }[fault]

    return graph(rows=100).map_blocks(block, meta=np.empty((0, 0)))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raises", r"OSError: the disk is gone.*x\.blocks\[0\]\.compute"),
        ("nan", "nan at row 203, column 4"),
        ("short", "block 2 has shape"),
        ("narrow", "block 2 has shape"),
        ("float32", "float32"),
        ("masked", r"masked values.*fill them in"),
        ("complex", "complex128"),
    ],
)
def test_blocks_that_are_not_what_was_said(fault: str, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        npmdask.top_k(broken(fault), 3)


@pytest.mark.parametrize("made", [np.asarray, sp.csr_matrix])
def test_blocks_of_other_shapes_are_not_stretched(made: Any) -> None:
    """NumPy would fill eight columns with one, and six rows of the map with four columns, without a word."""

    def one_column(b: np.ndarray, block_info: Any = None) -> Any:
        return made(b[:, :1] if block_info[0]["chunk-location"][1] == 1 else b)

    def one_row(b: np.ndarray, block_info: Any = None) -> Any:
        return made(b[:1] if block_info[0]["chunk-location"] == (2, 1) else b)

    for wrong in (one_column, one_row):
        with pytest.raises(BadInputError, match=r"block .* has shape"):
            npmdask.top_k(graph(columns=8).map_blocks(wrong, meta=np.empty((0, 0))), 3)


@pytest.mark.parametrize("columns", [(4, 6), (2, 3)])
def test_blocks_whose_other_dimensions_are_exchanged(columns: tuple[int, int]) -> None:
    cube = da.from_array(X.reshape(640, 4, 6), chunks=(100, *columns))
    with pytest.raises(BadInputError, match="has shape"):
        npmdask.top_k(cube.map_blocks(lambda b: b.transpose(0, 2, 1), meta=np.empty((0, 0, 0))), 3, dim=0)


@pytest.mark.parametrize("columns", [24, 7])
def test_blocks_of_unknown_height_are_counted(columns: int, tmp_path: Path) -> None:
    """One of them has no rows; a run that was interrupted knows them again."""
    kept = (np.arange(640) < 200) | (np.arange(640) >= 330)  # nothing of block 2
    kept[7::10] = False
    few = graph(columns=columns)[da.from_array(kept, chunks=100)]
    rows = lazy.graph_rows(few, "x")
    assert rows.shape == (kept.sum(), 24) and sum(rows.heights) == kept.sum() and min(rows.heights) > 0
    units = range(-(-rows.shape[0] // rows.unit_rows))
    np.testing.assert_array_equal(np.concatenate([tile.copy() for u in units for tile in rows.tiles(u)]), X[kept])
    np.testing.assert_allclose(npmdask.top_k(few, 3, store=tmp_path / "run").values, true_values(X[kept]))
    assert npmdask.top_k(few, 3, store=tmp_path / "run").data_passes == 0


@pytest.mark.parametrize(
    ("given", "asked", "said"),
    [
        (lambda: graph()[:, graph()[0] > 0], {}, r"columns of unknown number: call x.compute_chunk_sizes\(\)"),
        (lambda: graph()[graph()[:, 0] > 1e9], {}, r"shape \(0, 24\)"),
        (lambda: graph()[graph()[:, 0] / (1 // da.zeros(1)) > 0], {}, "block 0 of the Dask array cannot be computed"),
        (lambda: graph()[:, 0], {}, "1 dimensions; 2 are needed"),
        (lambda: graph()[:0], {}, r"shape \(0, 24\)"),
        (lambda: graph().reshape(640, 4, 6), {}, "dim=0"),
        (lambda: graph(), {"dim": 2}, "dimensions of the Dask array are 0 to 1"),
        (lambda: graph(), {"dim": "time"}, "dimensions of the Dask array are 0 to 1"),
        (lambda: graph(), {"dim": True}, "dim = True: the dimensions of the Dask array are 0 to 1"),
        (lambda: dask.delayed(X), {}, r"Dask Delayed has no shape and no dtype.*from_delayed"),
        (lambda: graph(X + 1j).map_blocks(sp.csr_matrix), {}, "complex128; real numbers are needed"),
        (lambda: graph(), {"kind": "sparse"}, "kind = 'sparse' does not fit the Dask array"),
        (lambda: graph(), {"kind": "symmetric"}, "a symmetric matrix is square"),
        (lambda: graph().map_blocks(lambda b: 1 // 0, meta=np.empty((0, 0))), {}, r"first rows .*ZeroDivisionError"),
        (lambda: pd.DataFrame(X), {"dim": 0}, "dim = 0 applies only to arrays"),
        (lambda: "x.zarr", {"dim": "time"}, "there is no file and no Zarr group at"),
        (lambda: X, {"spill": "there"}, "spill applies only to rows that are computed"),
        (lambda: xr.DataArray(X.reshape(640, 4, 6), dims=("t", "y", "x")), {}, "dim='t'"),
        (lambda: xr.DataArray(X, dims=("t", "x")), {"dim": "time"}, "the dimensions of the DataArray are t, x"),
        (lambda: xr.Dataset({"a": ("t", X[:, 0]), "b": ("x", X[0])}), {}, "0 variables of two dimensions"),
        (lambda: xr.DataArray(np.where(X > 9, np.nan, X)).chunk(), {}, "nan at row"),
    ],
)
def test_what_is_refused(given: Callable[[], Any], asked: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        npmdask.top_k(given(), 3, **asked)


def test_no_private_release_of_what_is_computed(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.sqlite")
    asked = {"neighboring_relation": "record_replace", "clip_norm": 1.0, "ledger": ledger, "dataset": "a"}
    privacy = npmdask.Privacy(epsilon=1.0, delta=1e-6, **asked)
    for given, kind in ((graph(), "samples"), (thin_graph(), "sparse")):
        with pytest.raises((BadInputError, RefusedError), match="ingest"):
            npmdask.top_k(given, 2, kind=kind, algorithm="power", max_steps=2, privacy=privacy, store=tmp_path / kind)


@pytest.mark.slow
def test_an_array_in_the_memory_of_a_cluster_is_refused() -> None:
    from distributed import Client

    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None):
        held = graph().persist()
        with pytest.raises(BadInputError, match=r"persisted in the memory of a cluster.*before persist"):
            npmdask.top_k(held, 3)


@pytest.mark.slow
def test_dimensions_of_an_array_without_names() -> None:
    cube = X.reshape(640, 4, 6)
    for given in (cube, da.from_array(cube, chunks=(100, 2, 3)), cube.transpose(1, 0, 2)):
        dim = 0 if given.shape[0] == 640 else 1
        np.testing.assert_allclose(npmdask.top_k(given, 3, dim=dim).values, true_values(X), rtol=1e-12)


@pytest.mark.slow
def test_labelled_arrays_in_memory_lazy_and_in_files(tmp_path: Path) -> None:
    """Anomalies on a grid, as climate data are analysed; stored as packed int16 by the CF conventions."""
    grid = xr.DataArray(
        np.round(X.reshape(640, 4, 6), 2),
        dims=("time", "lat", "lon"),
        coords={"lat": [0.0, 30.0, 60.0, 80.0], "lon": np.arange(6) * 60.0},
        name="sst",
    )
    packing = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -32768}
    grid.to_dataset().to_zarr(tmp_path / "g.zarr", zarr_format=2, encoding={"sst": {**packing, "chunks": (100, 4, 3)}})
    opened = xr.open_zarr(tmp_path / "g.zarr")
    weights = np.sqrt(np.cos(np.deg2rad(grid.lat)))
    truth = true_values(((grid - grid.mean("time")) * weights).values.reshape(640, -1))
    whole = xr.open_dataset(tmp_path / "g.zarr", engine="zarr")
    assert whole.sst.chunks is None and not whole.sst.variable._in_memory
    for given in (grid, opened.sst, opened.sst.transpose("lat", "time", "lon"), grid.chunk(time=70, lat=2)):
        found = npmdask.top_k((given - given.mean("time")) * weights, 3, dim="time")
        np.testing.assert_allclose(found.values, truth, rtol=1e-9)
    for plain in (opened, whole, whole.sst):  # the only variable along time; a file that was opened, read in blocks
        found = npmdask.top_k(plain, 3, dim="time", center=True)
        np.testing.assert_allclose(found.values, true_values((grid - grid.mean("time")).values.reshape(640, -1)))
    assert not whole.sst.variable._in_memory


@pytest.mark.slow
def test_spilled_rows_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = npmdask.top_k(graph() * 2, 3, threads=1)
    seen = counted(monkeypatch)
    found = npmdask.top_k(graph() * 2, 3, threads=1, spill=tmp_path / "spill")
    assert seen[:1] == [0] and sorted(set(seen)) == list(range(7)) and len(seen) < 2 * 7 < 7 * found.data_passes
    del seen[:]
    again = npmdask.top_k(graph() * 2, 3, threads=1, spill=tmp_path / "spill")
    assert set(seen) == set(range(7)) and len(seen) < 2 * 7 < 7 * again.data_passes  # by its own first pass
    np.testing.assert_array_equal(found.basis, again.basis)
    np.testing.assert_allclose(found.values, plain.values, rtol=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
def test_spilled_rows_are_computed_once_by_a_pass_that_reads_them_in_parts(
    sparse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once more to see what they are. Mutant: they are computed for each part."""
    monkeypatch.setattr(lazy, "UNIT_BYTES", 1)
    asked: dict[str, Any] = {"algorithm": "row-gram", "options": {"parts": 5}, "threads": 1}
    seen = list[int]()

    def made(block: np.ndarray, block_info: Any = None) -> Any:
        seen.append(block_info[0]["chunk-location"][0])
        return sp.csr_matrix(block) if sparse else block

    x = np.where(np.abs(X[:48]) > 1, X[:48], 0) if sparse else X[:48]
    rows = graph(x, 12).map_blocks(made, dtype=float, meta=sp.csr_matrix((0, 0)) if sparse else np.empty((0, 0)))
    found = npmdask.top_k(rows, 3, spill=tmp_path / "spill", **asked)
    assert sorted(set(seen)) == [0, 1, 2, 3] and len(seen) <= 5 and found.total_data_passes >= 2
    np.testing.assert_allclose(found.values, true_values(x), rtol=1e-10)


@pytest.mark.slow
def test_spilled_rows_that_are_damaged_or_do_not_fit(tmp_path: Path) -> None:
    store = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k(graph(), 3, store=store, spill=tmp_path / "spill", observer=Interrupted(), **POWER)
    (file,) = (tmp_path / "spill").rglob("*.blosc")
    held = file.read_bytes()
    other = lazy.Blosc("lz4", clevel=1, shuffle=1).encode(X[::-1].copy())
    other = len(other).to_bytes(8, "little") + other
    for damaged, said in (
        (held[:100], "is damaged .*delete it"),
        (other, "has changed: its checksum is not that of the first pass, a"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(BadInputError, match=said):
            npmdask.top_k(graph(), 3, store=store, spill=tmp_path / "spill", **POWER)
    file.write_bytes(held)
    assert npmdask.top_k(graph(), 3, store=store, spill=tmp_path / "spill", **POWER).outcome.converged
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match=r"cannot hold the computed rows.*leave spill out"):
        npmdask.top_k(graph(), 3, spill=tmp_path / "file")


@pytest.mark.slow
def test_sources_that_share_a_folder_of_spilled_rows_keep_apart(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"spill": tmp_path / "spill", **POWER}
    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k(thin_graph(), 3, store=tmp_path / "run", observer=Interrupted(), **asked)
    npmdask.top_k(graph(3 * THIN).map_blocks(sp.csr_matrix, meta=sp.csr_matrix((0, 0))), 3, **asked)
    npmdask.top_k(thin_graph(), 3, kind="samples", **asked)  # the same numbers, as dense rows
    assert npmdask.top_k(thin_graph(), 3, store=tmp_path / "run", **asked).outcome.converged


# Sparse blocks: products without filling in a zero, as of a stored CSR matrix.

THIN = np.where(np.abs(X) > 4, np.round(X, 1), 0)


def thin_graph(rows: int = 100, made: Any = sp.csr_matrix) -> Any:
    return graph(THIN, rows=rows).map_blocks(made, meta=sp.csr_matrix((0, 0)))


def twice(block: np.ndarray) -> sp.csr_matrix:
    """A matrix that gives its entries in two halves and out of order, as if it were canonical."""
    plain = sp.csr_matrix(block)
    rows = np.repeat(np.arange(len(block)), np.diff(plain.indptr))
    both = [np.concatenate([a, a])[::-1] for a in (plain.data / 2, rows, plain.indices)]
    order = np.argsort(both[1], kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(block)) * 2)])
    made = sp.csr_matrix((both[0][order], both[2][order], indptr), shape=block.shape)
    made.has_canonical_format = True
    return made


@pytest.mark.slow
@pytest.mark.parametrize("made", [sp.csr_matrix, sp.csr_array, sp.coo_array, sp.csc_matrix, twice])
@pytest.mark.parametrize("options", [{}, {"center": True, "scale": True}])
def test_sparse_blocks_have_the_answer_of_the_stored_matrix(made: Any, options: dict[str, Any]) -> None:
    found = npmdask.top_k(thin_graph(made=made), 3, **options)
    stored = npmdask.top_k(sp.csr_matrix(THIN), 3, **options)
    assert open_source(thin_graph(made=made)).reader.layout == "csr"
    np.testing.assert_allclose(found.values, stored.values, rtol=1e-10)
    np.testing.assert_allclose(found.basis, stored.basis, atol=1e-8)
    dense = npmdask.top_k(thin_graph(made=made), 3, kind="samples", **options)  # asked for as dense rows
    np.testing.assert_allclose(dense.values * 640, stored.values**2, rtol=1e-9)


def test_the_last_unit_of_sparse_blocks_may_be_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "UNIT_BYTES", 1)
    found = npmdask.top_k(thin_graph(), 3)
    np.testing.assert_allclose(found.values, true_values(THIN), rtol=1e-10)


@pytest.mark.slow
def test_sparse_blocks_have_the_same_bits_on_threads_on_processes_and_spilled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy, "UNIT_BYTES", 4000)
    first = npmdask.top_k(thin_graph(30), 3, threads=1, scale=True)
    for options in ({"threads": 3}, {"workers": 2, "threads": 1}, {"spill": tmp_path}, {"spill": tmp_path}):
        found = npmdask.top_k(thin_graph(30), 3, scale=True, **options)
        np.testing.assert_array_equal(found.basis, first.basis)
        np.testing.assert_array_equal(found.values, first.values)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("dense", "a block is a ndarray, and the first one is sparse"),
        ("other dtype", "values of type float32, but the first block has float64"),
        ("outside", "indices"),
        ("nan", "non-finite value"),
        ("narrow", "block 2 has shape"),
        ("fails", "ZeroDivisionError"),
        ("changes", r"unit 2 of the Dask array .* \(rows 200 to 299\) has changed: its checksum is not that"),
        ("moves down", r"unit \d of the Dask array .*has changed"),
        ("moves aside", r"unit \d of the Dask array .*has changed"),
    ],
)
def test_sparse_blocks_that_are_not_what_was_said(fault: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def block(b: np.ndarray, block_info: Any = None) -> Any:
        plain = sp.csr_matrix(b)
        if block_info[0]["chunk-location"][0] != 2:
            return plain
        calls.append(1)
        if fault.startswith("moves"):  # the same entries, in other rows or columns
            axis = int(fault == "moves aside")
            b = np.concatenate([b[:-1, :-1], np.zeros((1, 23))])
            b = np.concatenate([b, np.zeros((100, 1))], axis=1)
            plain = sp.csr_matrix(np.roll(b, int(len(calls) > 3), axis))
        if fault == "outside":
            plain.indices[3] = 24
        if fault == "nan":
            plain.data[5] = np.nan
        if fault == "changes" and len(calls) > 3:
            plain.data[5] += 1
        if fault == "fails":
            return 1 // 0
        return {"dense": b, "other dtype": plain.astype("f4"), "narrow": plain[:, 1:]}.get(fault, plain)

    monkeypatch.setattr(lazy, "UNIT_BYTES", 1)
    with pytest.raises(BadInputError, match=said):
        npmdask.top_k(graph(THIN).map_blocks(block, meta=sp.csr_matrix((0, 0))), 3, algorithm="power", tol=1e-14)


def test_a_stream_of_sparse_blocks_is_that_of_their_rows() -> None:
    asked: dict[str, Any] = {"algorithm": "spm", "batch_rows": 50}
    found, truth = npmdask.stream_pca(thin_graph(), 2, **asked), npmdask.stream_pca(THIN, 2, **asked)
    assert found.rows == truth.rows == 640
    np.testing.assert_allclose(np.abs(found.basis), np.abs(truth.basis), atol=1e-9)


# Arrays in files that a program has opened.


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_memory_maps(tmp_path: Path, mode: Any) -> None:
    np.save(tmp_path / "x.npy", X)
    x = np.load(tmp_path / "x.npy", mmap_mode=mode)
    if mode != "r":
        x[5] = 7
    views = (x, x[100:500:2, ::-1], x[:, 3:20], x.T[4:20].T)
    if mode == "r":
        views += (np.memmap(tmp_path / "x.npy", np.float64, "r", 128, (640, 24), order="F"),)
    for view in views:
        np.testing.assert_allclose(npmdask.top_k(view, 3).values, true_values(np.array(view)), rtol=1e-12)
    kinds = {type(open_source(view).reader).__name__ for view in views}
    assert kinds == ({"DenseReader"} if mode == "c" else {"RowsReader"})  # changes that no file has are copied
    prints = [open_source(view).fingerprint for view in views]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<i4"])
@pytest.mark.parametrize("offset", [0, 8, 5000, 20_000])
def test_a_memory_map_with_an_offset_is_read_from_there(tmp_path: Path, offset: int, dtype: str) -> None:
    """Here and in another process, which opens the file again; pages of 4096 bytes are what is mapped."""
    (tmp_path / "x").write_bytes(bytes(offset) + np.round(9 * X).astype(dtype).tobytes())
    for order in ("C", "F"):
        x = np.memmap(tmp_path / "x", dtype, "r", offset, X.shape, order)
        for view in (x, x[100:500:2, ::-1], x[7:, 3:20]):
            rows = lazy.mapped_rows(view)
            for held in (rows, copy(rows)):  # without the map
                np.testing.assert_array_equal(np.concatenate(list(held.tiles(0))), np.array(view))
            assert copy(rows).array is None


def test_another_place_order_or_type_in_the_same_file_is_another_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first block is the same, and so is the file."""
    monkeypatch.setattr(lazy, "UNIT_BYTES", 1000)
    values = np.zeros(641 * 24)
    values[9000:9003] = 1, 2, 3
    values.tofile(tmp_path / "x")
    maps = [
        np.memmap(tmp_path / "x", dtype, "r", offset, (640, 24), order)
        for dtype, offset, order in [("<f8", 0, "C"), ("<f8", 24 * 8, "C"), ("<f8", 0, "F"), (">f8", 0, "C")]
    ]
    assert len({lazy.mapped_rows(x).first for x in maps}) == 1
    assert len({open_source(x).fingerprint for x in maps}) == 4


@pytest.mark.slow
def test_a_memory_map_of_more_dimensions_stays_where_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.reshape(640, 4, 6))
    cube = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert type(open_source(cube, dim=0).reader).__name__ == "RowsReader"
    for given, dim in ((cube, 0), (cube.transpose(1, 0, 2), 1)):
        np.testing.assert_allclose(npmdask.top_k(given, 3, dim=dim).values, true_values(X), rtol=1e-12)


@pytest.mark.slow
def test_what_lies_in_files_is_opened_again_by_other_processes(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(50, 24), compression="gzip")
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")[10:500, ::-1]
    with h5py.File(tmp_path / "x.h5") as file:
        for given in (mapped, file["x"]):
            here, there = npmdask.top_k(given, 3), npmdask.top_k(given, 3, workers=2, threads=1)
            np.testing.assert_array_equal(here.basis, there.basis)
            np.testing.assert_allclose(here.values, true_values(np.array(given)), rtol=1e-12)


def write_csr(group: Any, x: Any, encoding: str = "csr_matrix") -> None:
    group.attrs.update({"encoding-type": encoding, "encoding-version": "0.1.0", "shape": x.shape})
    for name in ("data", "indices", "indptr"):
        group.create_dataset(name, data=getattr(x, name))


@pytest.mark.slow
def test_matrices_in_hdf5_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "UNIT_BYTES", 1000)
    thin = sp.random_array((640, 24), density=0.2, rng=np.random.default_rng(1), format="csr")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["long"] = X, X[:, 0]
        write_csr(file.create_group("csr"), thin)
        write_csr(file.create_group("csc"), thin.tocsc(), "csc_matrix")
        wrong = thin.copy()
        wrong.indices[3] = 99
        write_csr(file.create_group("wrong"), wrong)
    with h5py.File(tmp_path / "x.h5") as file:
        np.testing.assert_allclose(npmdask.top_k(file["x"], 3).values, true_values(X), rtol=1e-12)
        np.testing.assert_allclose(npmdask.top_k(file["csr"], 3).values, true_values(thin.toarray()), rtol=1e-12)
        for name, said in {
            "csc": r"is a group \(data, indices, indptr\): give one of its datasets",
            "/": "is a group .*csc, csr",
            "long": r"shape \(640,\)",
            "wrong": "indices",
        }.items():
            with pytest.raises(BadInputError, match=said):
                npmdask.top_k(file[name], 3)


def test_row_pointers_and_indices_of_a_file_are_looked_at(tmp_path: Path) -> None:
    """Entries before the first row, after the last and in none would be left out without a word; an index outside would
    be a number of the next row.
    """
    thin = sp.random_array((640, 24), density=0.2, rng=np.random.default_rng(1), format="csr")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in ("before", "after", "more data", "index"):
            wrong = thin.copy()
            write_csr(file.create_group(name), wrong)
        file["before/indptr"][0] = 1
        file["after/indptr"][-1] -= 1
        del file["more data/data"]
        file["more data/data"] = np.append(thin.data, 1.0)
        file["index/indices"][thin.indptr[11] - 1] = 24  # of row 10
        for kind in ("sparse", "samples"):
            for name in ("before", "after", "more data"):
                with pytest.raises(BadInputError, match="row pointers do not cover its entries"):
                    npmdask.top_k(file[name], 3, kind=kind)
            with pytest.raises(BadInputError, match="indices"):
                npmdask.top_k(file["index"], 3, kind=kind)


@pytest.mark.slow
def test_what_the_attributes_of_a_file_say_is_not_overlooked(tmp_path: Path) -> None:
    """Packed numbers and marks of missing values, as NetCDF 4 has them, are decoded or refused."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, attributes in {
            "packed": {"scale_factor": 0.1, "add_offset": 3.0},
            "marked": {"_FillValue": X[3, 4]},
            "named": {"units": "K"},
        }.items():
            file[name] = X
            file[name].attrs.update(attributes)
        thin = sp.random_array((640, 24), density=0.2, rng=np.random.default_rng(1), format="csr")
        write_csr(file.create_group("csr"), thin)
        write_csr(file.create_group("short"), thin)
        file["short"].attrs["shape"] = (600, 24)
        write_csr(file.create_group("scaled"), thin)
        file["scaled/data"].attrs["scale_factor"] = 2.0
        for name, said in {"marked": "holds nan at row 3, column 4", "scaled": "scale_factor.*not decoded"}.items():
            with pytest.raises(BadInputError, match=said):
                npmdask.top_k(file[name], 3)
        np.testing.assert_allclose(npmdask.top_k(file["packed"], 3).values, true_values(X * 0.1 + 3), rtol=1e-12)
        with pytest.raises(BadInputError, match=r"641 row pointers.* 600"):
            npmdask.top_k(file["short"], 3)
        npmdask.top_k(file["named"], 3)


def test_a_file_that_was_written_again_is_another_source(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k(
            np.load(tmp_path / "x.npy", mmap_mode="r"), 3, store=tmp_path / "run", observer=Interrupted(), **POWER
        )
    np.save(tmp_path / "x.npy", X[::-1])
    with pytest.raises(RefusedError, match=r"data\.fingerprint"):
        npmdask.top_k(np.load(tmp_path / "x.npy", mmap_mode="r"), 3, store=tmp_path / "run", **POWER)


def test_a_change_in_any_block_of_a_file_is_another_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block, the size and the place are the same."""
    monkeypatch.setattr(lazy, "UNIT_BYTES", 1000)
    found: dict[str, list[str]] = {"x.npy": [], "x.h5": []}
    for number, values in enumerate((X, X, np.concatenate([X[:600], 3 * X[600:]]))):
        if number != 1:
            np.save(tmp_path / "x.npy", values)
            with h5py.File(tmp_path / "x.h5", "w") as file:
                file["x"] = values
            for name in found:
                os.utime(tmp_path / name, ns=(0, 10**9 * (number + 1)))
        found["x.npy"].append(open_source(np.load(tmp_path / "x.npy", mmap_mode="r")).fingerprint)
        with h5py.File(tmp_path / "x.h5") as file:
            found["x.h5"].append(open_source(file["x"]).fingerprint)
    for first, again, changed in found.values():
        assert first == again != changed


@pytest.mark.slow
@pytest.mark.parametrize("made", [graph, thin_graph])
def test_small_singular_values_of_lazy_rows(made: Any) -> None:
    found = npmdask.singular_triplets(made(), 3)
    truth = np.linalg.svd(X if made is graph else THIN, full_matrices=False)
    np.testing.assert_allclose(found.values, truth[1][:3], rtol=1e-9)
    np.testing.assert_allclose(np.abs(found.left.T @ truth[0][:, :3]), np.eye(3), atol=1e-6)
    cube = da.from_array(X.reshape(640, 4, 6), chunks=(100, 2, 3))
    np.testing.assert_allclose(npmdask.singular_triplets(cube, 3, dim=0).values, true_values(X), rtol=1e-9)


@pytest.mark.slow
def test_streams_of_a_grid_are_those_of_its_rows() -> None:
    grid = xr.DataArray(X.reshape(640, 4, 6), dims=("time", "lat", "lon"))
    for given in (grid.transpose("lat", "time", "lon"), grid.chunk(time=90)):
        found = npmdask.stream_pca(given, 2, dim="time", batch_rows=50)
        truth = npmdask.stream_pca(X, 2, batch_rows=50)
        np.testing.assert_allclose(np.abs(found.basis), np.abs(truth.basis), atol=1e-9)


def test_streams_of_lazy_rows() -> None:
    asked = {"k": 3, "algorithm": "frequent-directions"}
    found = npmdask.stream_pca(graph(rows=(300, 300, 40)), **asked)
    stored = npmdask.stream_pca(X, **asked)
    np.testing.assert_allclose(np.abs(found.basis.T @ stored.basis), np.eye(3), atol=1e-8)


MEMORY = """
import json, sys
import dask.array as da, numpy as np, npmdask

def block(block_info=None):
    number = block_info[None]["chunk-location"][0]
    return np.random.default_rng(number).standard_normal((4000, 500)) * 0.99 ** np.arange(500)

x = da.map_blocks(block, chunks=((4000,) * 60, (500,)), dtype=float)
x = da.log1p(abs(x)) * 2 - 1
found = npmdask.top_k(x, 5, memory="600MiB", threads=2, max_steps=3, kind="samples")
print(json.dumps({"peak": found.peak_rss_bytes, "data": x.nbytes}))
"""


@pytest.mark.slow
def test_memory_is_that_of_a_few_blocks() -> None:
    """960 MB, every block of which takes four times its size on the way."""
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["peak"] <= 600 * 2**20 < found["data"]


def test_a_limit_that_no_block_fits_into_is_refused() -> None:
    with pytest.raises(npmdask.RefusedError, match="memory"):
        npmdask.top_k(partial(graph)(), 3, memory="1MiB")


@pytest.mark.parametrize("kind", ["samples", "matrix"])
@pytest.mark.parametrize("algorithm", ["gram", "krylov"])
def test_what_a_graph_draws_at_random_is_no_data(kind: str, algorithm: str) -> None:
    """One pass over other numbers than those seen at opening, which nobody can read again, was certified."""

    def drawn(block: np.ndarray) -> np.ndarray:
        return RNG.standard_normal(block.shape)

    empty = da.zeros((90, 7), chunks=(30, 7))
    with pytest.raises(BadInputError, match="others than when it was opened"):
        npmdask.top_k(da.map_blocks(drawn, empty, dtype=float), 2, kind=kind, algorithm=algorithm)
    kept = da.random.default_rng(3).standard_normal((90, 7), chunks=(30, 7))
    found = npmdask.top_k(kept, 2, kind=kind, algorithm=algorithm)
    assert found.converged and found.assurance.startswith("For these data")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_wider_numbers_than_a_store_holds_are_read_as_float64(dtype: Any) -> None:
    rows = RNG.standard_normal((30, 5)) * 0.5 ** np.arange(5)
    wide = rows.astype(dtype) * (1 if dtype is np.longdouble else 1j)
    found, plain = npmdask.top_k(wide, 2), npmdask.top_k(rows * (1 if dtype is np.longdouble else 1j), 2)
    np.testing.assert_array_equal(found.values, plain.values)
