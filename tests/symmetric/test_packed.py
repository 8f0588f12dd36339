"""Packed symmetric stores: what is written, kills, sources that are not symmetric, damage, doors that do not fit."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import npmdask
from npmdask.cli.main import main
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest
from npmdask.manage.status import inspect
from npmdask.symmetric.reader import TriangleReader, chunk_place, chunk_unit, triangle_number
from npmdask.symmetric.writer import PackedWriter, packed_bytes
from npmdask.synthetic import generate
from npmdask.writers import journal
from tests.conftest import unpacked


def symmetric(d: int, dtype: str = "f8", seed: int = 0) -> np.ndarray:
    a = np.random.default_rng(seed).standard_normal((d, d)) * 50
    return (a + a.T).astype(dtype)


def write(path: Path, a: np.ndarray, batch: int, side: int, **options: Any) -> Path:
    options = {"rows": len(a), "identity": {}, "chunks": (side, side)} | options
    writer = PackedWriter(path, columns=a.shape[1], dtype=a.dtype, **options)
    for start in range(writer.next_row, len(a), batch):
        writer.write(a[start : start + batch])
    writer.finish()
    return path


def tree(store: Path) -> dict[str, bytes]:
    return {str(f.relative_to(store)): f.read_bytes() for f in store.rglob("*") if f.is_file()}


@pytest.mark.slow
@given(n=st.integers(1, 60))
def test_positions_count_the_upper_chunks_row_by_row(n: int) -> None:
    places = [chunk_place(unit, n) for unit in range(triangle_number(n))]
    assert places == list(zip(*(part.tolist() for part in np.triu_indices(n)), strict=True))
    assert [chunk_unit(i, j, n) for i, j in places] == list(range(len(places)))


def test_positions_are_exact_in_large_grids() -> None:
    n = 10**9
    for i in (0, 1, n // 2, n - 2, n - 1):
        for j in {i, min(i + 1, n - 1), n - 1}:
            assert chunk_place(chunk_unit(i, j, n), n) == (i, j)


@pytest.mark.slow
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    d=st.integers(1, 70),
    side=st.integers(1, 80),
    batch=st.integers(1, 75),
    dtype=st.sampled_from(["f4", "f8", "i4", "u1"]),
    compress=st.sampled_from([None, True, False]),
    seed=st.integers(0, 99),
)
def test_what_is_stored_is_the_matrix(
    tmp_path_factory: Any, d: int, side: int, batch: int, dtype: str, compress: bool | None, seed: int
) -> None:
    folder, a = tmp_path_factory.mktemp("packed"), symmetric(d, dtype, seed)
    store = write(folder / "a", a, batch, side, compress=compress)
    group = zarr.open_group(store, mode="r")
    assert (unpacked(group) == a).all()
    record, exact = group.attrs["npmdask"], a.astype("f8")
    np.testing.assert_allclose(record["trace"], np.trace(exact), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(record["squared_frobenius"], (exact**2).sum(), rtol=1e-12)
    assert tree(store) == tree(write(folder / "b", a, 1000, side, compress=compress)), "batches change no byte"
    source = open_source(store)
    assert isinstance(source.reader, TriangleReader)
    assert (np.concatenate([source.reader.slab(i) for i in range(source.reader.grid[0])]) == a).all()
    assert source.trace == record["trace"] and source.squared_frobenius == record["squared_frobenius"]
    shutil.rmtree(folder)


@pytest.mark.slow
def test_the_full_layout_records_trace_and_norm_too(tmp_path: Path) -> None:
    a = symmetric(150, "f4")
    np.save(tmp_path / "a.npy", a)
    for layout in ("packed", "full"):
        ingest(tmp_path / "a.npy", tmp_path / layout, kind="symmetric", layout=layout, chunks=(64, 64))
        source = open_source(tmp_path / layout)
        assert source.mirrored
        np.testing.assert_allclose(source.trace, np.trace(a.astype("f8")), rtol=1e-12)
        np.testing.assert_allclose(source.squared_frobenius, (a.astype("f8") ** 2).sum(), rtol=1e-12)


def test_a_norm_that_float64_cannot_hold_is_left_out(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "a", np.full((5, 5), 1e200), 5, 2))
    assert source.squared_frobenius is None and source.trace == pytest.approx(5e200)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "i4"])
def test_an_interrupted_write_goes_on_to_the_same_bytes(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 1)
    a = symmetric(150, dtype)
    whole = tree(write(tmp_path / "whole", a, 7, 32))
    for last in (20, 70, 149, 150):
        writer = PackedWriter(tmp_path / "cut", columns=150, rows=150, dtype=a.dtype, identity={}, chunks=(32, 32))
        assert writer.next_row <= last
        writer.write(a[writer.next_row : last])
        del writer
        assert not (tmp_path / "cut").exists()
    again = PackedWriter(tmp_path / "cut", columns=150, rows=150, dtype=a.dtype, identity={}, chunks=(32, 32))
    assert again.next_row == 150, "it goes on, it does not start again"
    del again
    assert tree(write(tmp_path / "cut", a, 50, 32)) == whole


KILL = """
import os, signal, sys
from npmdask.formats import ingest
from npmdask.writers import journal
from npmdask.formats import common
journal.JOURNAL_BYTES, common.BATCH_BYTES = 1, 2000
def progress(done, rows, size):
    if done >= 100:
        os.kill(os.getpid(), signal.SIGKILL)
ingest.ingest(sys.argv[1], sys.argv[2], kind="symmetric", chunks=(32, 32), progress=progress)
"""


@pytest.mark.slow
def test_a_killed_ingest_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", symmetric(150))
    command = [sys.executable, "-c", KILL, str(tmp_path / "a.npy"), str(tmp_path / "cut")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "cut.partial").is_dir() and not (tmp_path / "cut").exists()
    done: list[int] = []
    options: dict[str, Any] = {"kind": "symmetric", "chunks": (32, 32)}
    ingest(tmp_path / "a.npy", tmp_path / "cut", progress=lambda rows, *_: done.append(rows), **options)
    ingest(tmp_path / "a.npy", tmp_path / "whole", **options)
    assert done[0] > 96, "it went on at the last whole slab"
    assert tree(tmp_path / "cut") == tree(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("place", [(7, 140), (3, 5), (100, 101), (149, 0)])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i2"])
def test_a_source_that_is_not_symmetric_is_refused_naming_the_entry(
    tmp_path: Path, dtype: str, place: tuple[int, int]
) -> None:
    a, (low, high) = symmetric(150, dtype), sorted(place)
    a[place] += 1
    np.save(tmp_path / "a.npy", a)
    said = rf"not symmetric: entry \({low}, {high}\) is {a[low, high]!s} and entry \({high}, {low}\) is .*kind='matrix'"
    with pytest.raises(BadInputError, match=said):
        ingest(tmp_path / "a.npy", tmp_path / "a.zarr", kind="symmetric", chunks=(64, 64))
    assert [p.name for p in tmp_path.iterdir()] == ["a.npy"]


def test_rounding_is_forgiven_and_the_upper_triangle_stays(tmp_path: Path) -> None:
    a = symmetric(150)
    b = a.copy()
    b[140, 7] *= 1 + np.finfo("f8").eps
    assert b[140, 7] != b[7, 140]
    assert (unpacked(zarr.open_group(write(tmp_path / "a", b, 20, 64), mode="r")) == a).all()


def test_non_finite_values_and_odd_shapes_are_refused(tmp_path: Path) -> None:
    a = symmetric(90)
    a[57, 21] = np.nan
    with pytest.raises(BadInputError, match="nan at row 57, column 21"):
        write(tmp_path / "a", a, 7, 32)
    short = symmetric(90)[:80]
    with pytest.raises(BadInputError, match="ended after 80 of 90 rows"):
        write(tmp_path / "b", short, 7, 32, rows=90)
    with pytest.raises(BadInputError, match="square; this one is 80 x 90"):
        write(tmp_path / "c", short, 7, 32, rows=None)
    with pytest.raises(BadInputError, match="square; this one is 93 x 90"):
        write(tmp_path / "d", np.vstack([symmetric(90), np.ones((3, 90))]), 7, 32, rows=None)
    with pytest.raises(BadInputError, match=r"not square.*--layout full"):
        PackedWriter(tmp_path / "e", columns=9, dtype=np.dtype("f8"), identity={}, chunks=(3, 4))


@pytest.mark.parametrize("kind", ["matrix", "samples", "sparse"])
def test_a_packed_store_is_nothing_but_symmetric(tmp_path: Path, kind: str) -> None:
    store = write(tmp_path / "a.zarr", symmetric(50), 7, 16)
    with pytest.raises(BadInputError, match=r"upper triangle of a symmetric matrix only.*--layout full"):
        npmdask.top_k(store, 3, kind=kind)


@pytest.mark.slow
def test_a_packed_store_can_be_stored_full_and_packed_again(tmp_path: Path) -> None:
    a = symmetric(50)
    packed = write(tmp_path / "a.zarr", a, 7, 16)
    full = ingest(packed, tmp_path / "full.zarr", kind="symmetric", layout="full").dest
    assert (zarr.open_group(full, mode="r")["data"][...] == a).all()
    again = ingest(full, tmp_path / "again.zarr", kind="symmetric", chunks=(16, 16))
    assert open_source(again.dest).fingerprint == open_source(packed).fingerprint


@pytest.mark.slow
def test_layout_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", symmetric(80))
    ingested = ["ingest", str(tmp_path / "a.npy"), str(tmp_path / "i"), "--kind", "symmetric", "--quiet"]
    generated = ["generate", "symmetric", str(tmp_path / "g"), "--columns", "80", "--quiet"]
    for command in (ingested, generated):
        for layout, stored in ((None, "the upper triangle"), ("full", "whole"), ("packed", "the upper triangle")):
            assert main([*command, "--overwrite", *(["--layout", layout] if layout else [])]) == 0
            facts = inspect(command[2])
            assert (facts["stored"], facts["kind"], facts["rows"]) == (stored, "symmetric", 80)
    capsys.readouterr()
    assert main(["ingest", str(tmp_path / "a.npy"), str(tmp_path / "m"), "--layout", "packed", "--quiet"]) == 2
    assert "layout='packed' is for kind='symmetric'" in capsys.readouterr().err


def test_a_damaged_record_is_said(tmp_path: Path) -> None:
    store = write(tmp_path / "a.zarr", symmetric(50), 7, 16)
    group = zarr.open_group(store, mode="a")
    record = dict(group.attrs["npmdask"])
    group.attrs["npmdask"] = record | {"shape": [70, 70]}
    with pytest.raises(BadInputError, match="does not hold a packed matrix of size 70"):
        open_source(store)
    group.attrs["npmdask"] = record | {"shape": [50, 49]}
    with pytest.raises(BadInputError, match=r"holds 50 x 50, its record says \(50, 49\)"):
        open_source(store)
    group.attrs["npmdask"] = record
    (store / "checksums" / "c" / "0").unlink()
    with pytest.raises(BadInputError, match=r"checksums of .* is damaged or incomplete"):
        open_source(store)


@pytest.mark.parametrize("d", [1, 64, 1000, 2048, 2049, 2100, 4097, 23_168, 100_000])
def test_chosen_chunks_are_filled_up_with_little(d: int) -> None:
    least = d * (d + 1) // 2 * 4
    diagonal = d * min(d, 2048) // 2 * 4  # the lower halves of the chunks on it
    assert packed_bytes(d, np.dtype("f4")) <= (least + diagonal) * (1 + 2 * 64 / min(d, 1024)) ** 2
    assert packed_bytes(d, np.dtype("f4")) <= 4 * d * d


@pytest.mark.slow
def test_generated_packed_stores_do_not_depend_on_workers(tmp_path: Path) -> None:
    stores = []
    for workers in (1, 3):
        store = tmp_path / str(workers)
        generate(store, problem="symmetric", columns=700, rank=4, length=20, chunks=(300, 300), workers=workers)
        stores.append(tree(store))
    assert stores[0] == stores[1]
