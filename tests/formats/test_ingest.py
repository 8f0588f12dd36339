"""Ingest: every format equals what its own library reads, kills are harmless, errors name the place."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.io
import zarr
from scipy import sparse

import npmdask
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, CommitError, RefusedError
from npmdask.formats import common, compressed, tables
from npmdask.formats.ingest import IngestSummary, ingest
from npmdask.writers import journal
from npmdask.writers.layouts import storage_dtype
from npmdask.writers.sparse import SparseWriter
from tests.conftest import often, unpacked

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many batches, buckets and text blocks out of a few rows."""
    monkeypatch.setattr(common, "BATCH_BYTES", 2000)
    monkeypatch.setattr(common, "COLUMN_BATCH_BYTES", 4000)
    monkeypatch.setattr(common, "TEXT_BYTES", 2000)
    monkeypatch.setattr(compressed, "BATCH_ENTRIES", 70)
    monkeypatch.setattr(compressed, "BATCH_ROWS", 11)
    monkeypatch.setattr(compressed, "BUCKET_BYTES", 900)
    monkeypatch.setattr(compressed, "MAX_BUCKETS", 5)


def dense(rows: int = 203, columns: int = 17, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns))


def scattered(rows: int = 203, columns: int = 41, seed: int = 2) -> sparse.csr_matrix:
    return sparse.random(rows, columns, 0.1, "csr", rng=np.random.default_rng(seed))


def cubes(count: int = 61, side: int = 5, seed: int = 3) -> np.ndarray:
    """Square matrices, not symmetric."""
    return np.random.default_rng(seed).standard_normal((count, side, side))


def read(store: Path) -> Any:
    """The published values: an array, or a CSR matrix."""
    group = zarr.open_group(store, mode="r")
    if group.attrs["npmdask"].get("layout") == "packed":
        return unpacked(group)
    if "data" in group:
        return group["data"][...]
    parts = [group["X"][name][...] for name in ("data", "indices", "indptr")]
    return sparse.csr_matrix(tuple(parts), shape=group["X"].attrs["shape"])


def check_dense(tmp_path: Path, source: Path, expected: np.ndarray, **options: Any) -> IngestSummary:
    summary = ingest(source, tmp_path / "out.zarr", overwrite=True, **options)
    found = read(summary.dest)
    np.testing.assert_array_equal(found, expected)
    assert summary.shape == expected.shape and summary.dtype == found.dtype
    assert_clean(tmp_path)
    group = zarr.open_group(summary.dest, mode="r")
    if group.attrs["npmdask"].get("layout") != "packed":
        np.testing.assert_allclose(group["column_mean"], expected.mean(0, dtype=float), rtol=1e-10, atol=1e-12)
    return summary


def check_sparse(tmp_path: Path, source: Path, expected: Any, **options: Any) -> IngestSummary:
    summary = ingest(source, tmp_path / "out.zarr", overwrite=True, **options)
    expected = sparse.csr_matrix(expected)
    expected.sum_duplicates()
    found = read(summary.dest)
    assert found.shape == expected.shape and summary.kind == "sparse"
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert_clean(tmp_path)
    return summary


def assert_clean(folder: Path) -> None:
    """Nothing but sources and finished stores."""
    assert [path.name for path in folder.iterdir() if ".partial" in path.name or ".replaced" in path.name] == []


def refused(tmp_path: Path, source: Path, *words: str, **options: Any) -> str:
    with pytest.raises(BadInputError) as caught:
        ingest(source, tmp_path / "bad.zarr", **options)
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "bad.zarr").exists()
    assert_clean(tmp_path)
    return str(caught.value)


# NumPy


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "f4", ">f8", "f2", "i8", "u1", "?", ">i2"])
@pytest.mark.parametrize("order", "CF")
def test_npy(tmp_path: Path, small_batches: None, dtype: str, order: Any) -> None:
    rows = np.asarray(dense() * 10, order=order).astype(dtype if dtype != "u1" else "i4").astype(dtype)
    np.save(tmp_path / "a.npy", rows)
    calls: list[tuple[int, int | None, int]] = []
    summary = check_dense(tmp_path, tmp_path / "a.npy", rows, progress=lambda *call: calls.append(call))
    assert summary.dtype == storage_dtype(np.dtype(dtype)) and summary.kind == "samples"
    assert len(calls) > (rows.nbytes > 8000) and calls[-1] == (203, 203, 203 * 17 * summary.dtype.itemsize)
    assert summary.bytes >= sum(f.stat().st_size for f in summary.dest.rglob("c/*") if f.is_file())


def test_npy_errors(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(5.0))
    refused(tmp_path, tmp_path / "one.npy", "one.npy", "reshape")
    np.save(tmp_path / "three.npy", np.zeros((2, 3, 4)))
    refused(tmp_path, tmp_path / "three.npy", "(2, 3, 4)", "reshape")
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    refused(tmp_path, tmp_path / "empty.npy", "no data")
    np.save(tmp_path / "object.npy", np.array([["a", 1]], object), allow_pickle=True)
    refused(tmp_path, tmp_path / "object.npy", "unpickled")
    np.save(tmp_path / "complex.npy", np.ones((2, 2), complex))
    refused(tmp_path, tmp_path / "complex.npy", "complex.npy", "complex128")
    np.save(tmp_path / "a.npy", dense())
    whole = (tmp_path / "a.npy").read_bytes()
    for count in (0, 5, 40, len(whole) - 8):
        (tmp_path / "cut.npy").write_bytes(whole[:count])
        refused(tmp_path, tmp_path / "cut.npy", "cut.npy", "truncated")


def test_non_finite_values_are_named(tmp_path: Path, small_batches: None) -> None:
    rows = dense()
    rows[150, 3] = np.nan
    np.save(tmp_path / "a.npy", rows)
    refused(tmp_path, tmp_path / "a.npy", "nan at row 150, column 3")
    matrix = scattered()
    matrix.data[matrix.indptr[90]] = np.inf
    sparse.save_npz(tmp_path / "s.npz", matrix)
    refused(tmp_path, tmp_path / "s.npz", "row 90", "inf")


@pytest.mark.slow
def test_missing_values_are_kept_where_that_is_asked_for(tmp_path: Path, small_batches: None) -> None:
    """NaN and empty fields; the store says that there may be some, not whether there are, and knows no means."""
    x = np.random.default_rng(0).standard_normal((50, 4))
    gappy = x.copy()
    gappy[3, 1] = gappy[40, 2] = np.nan
    np.save(tmp_path / "x.npy", gappy)
    np.save(tmp_path / "whole.npy", x)
    lines = [",".join("" if np.isnan(v) else repr(float(v)) for v in row) for row in gappy]
    (tmp_path / "x.csv").write_text("a,b,c,d\n" + "\n".join(lines) + "\n")
    for name, wanted in (("x.npy", gappy), ("x.csv", gappy), ("whole.npy", x)):
        ingest(tmp_path / name, tmp_path / "out.zarr", non_finite="missing", overwrite=True)
        np.testing.assert_array_equal(zarr.open_group(tmp_path / "out.zarr", mode="r")["data"][...], wanted)
        source = open_source(tmp_path / "out.zarr")
        assert source.gaps and source.column_mean is None and source.digests is not None
    ingest(tmp_path / "whole.npy", tmp_path / "plain.zarr")
    plain = open_source(tmp_path / "plain.zarr")
    assert not plain.gaps and plain.column_mean is not None
    assert plain.fingerprint == source.fingerprint, "of the same content"
    gappy[7, 0] = np.inf
    np.save(tmp_path / "x.npy", gappy)
    with pytest.raises(BadInputError, match="inf at row 7, column 0"):
        ingest(tmp_path / "x.npy", tmp_path / "bad.zarr", non_finite="missing")
    np.save(tmp_path / "square.npy", np.eye(4))
    with pytest.raises(BadInputError, match="non_finite='missing' is for samples and dense matrices"):
        ingest(tmp_path / "square.npy", tmp_path / "bad.zarr", kind="symmetric", non_finite="missing")
    assert not (tmp_path / "bad.zarr").exists()


@pytest.mark.slow
def test_plain_runs_of_kept_gaps_need_a_rule(tmp_path: Path) -> None:
    """The same answers as of the array itself; a column with values is never left out, not even in later passes."""
    x = np.random.default_rng(0).standard_normal((90, 5))
    x[0, 3] = x[5, 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", non_finite="missing", chunks=(16, 5))
    with pytest.raises(BadInputError, match="holds nan at row 0, column 3"):
        npmdask.top_k(tmp_path / "x.zarr", 2)
    found = npmdask.top_k(tmp_path / "x.zarr", 2, center=True, missing="mean")
    wanted = npmdask.top_k(x, 2, kind="samples", center=True, missing="mean")
    np.testing.assert_allclose(found.values, wanted.values, rtol=1e-12)
    with pytest.raises(BadInputError, match=r"column 3 .* has no value in the first row but has one in row 1"):
        npmdask.top_k(tmp_path / "x.zarr", 2, missing="drop-columns")


def test_dtype_override(tmp_path: Path) -> None:
    rows = dense()
    np.save(tmp_path / "a.npy", rows)
    check_dense(tmp_path, tmp_path / "a.npy", rows.astype(np.float32), dtype="float32", rounding="nearest")
    refused(tmp_path, tmp_path / "a.npy", "row 0, column 0", "int16", dtype="int16")
    refused(tmp_path, tmp_path / "a.npy", "unknown dtype", dtype="flout32")
    rows[100, 2] = 1e300
    np.save(tmp_path / "a.npy", rows)
    refused(tmp_path, tmp_path / "a.npy", "1e+300 at row 100, column 2", dtype="float32", rounding="nearest")
    counts = np.arange(-3, 9).reshape(4, 3)
    np.save(tmp_path / "c.npy", counts)
    check_dense(tmp_path, tmp_path / "c.npy", counts.astype(np.int8), dtype="int8")
    refused(tmp_path, tmp_path / "c.npy", "-3 at row 0", dtype=np.uint64)


@pytest.mark.slow
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", "CF")
def test_npz_dense(tmp_path: Path, small_batches: None, save: Any, order: Any) -> None:
    rows = np.asarray(dense(), order=order)
    save(tmp_path / "a.npz", x=rows, labels=np.arange(3), odd=np.array([{}], object))
    check_dense(tmp_path, tmp_path / "a.npz", rows)
    save(tmp_path / "b.npz", x=rows, y=2 * rows)
    check_dense(tmp_path, tmp_path / "b.npz", 2 * rows, dataset="y")
    refused(tmp_path, tmp_path / "b.npz", "x (203, 17), y (203, 17)", "dataset=")
    refused(tmp_path, tmp_path / "b.npz", "no array 'z'", dataset="z")
    refused(tmp_path, tmp_path / "a.npz", "unpickled", dataset="odd")


def damage(path: Path, copy: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4] = bytes(255 - byte for byte in data[middle : middle + 4])
    copy.write_bytes(data)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_damage(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "a.npz", x=dense(2000))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-50])
    refused(tmp_path, tmp_path / "cut.npz", "cut.npz", "truncated")
    damage(tmp_path / "a.npz", tmp_path / "flipped.npz")
    refused(tmp_path, tmp_path / "flipped.npz", "flipped.npz", "corrupt")


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
@pytest.mark.parametrize("compressed", [True, False])
def test_npz_sparse(tmp_path: Path, small_batches: None, layout: str, dtype: str, compressed: bool) -> None:
    matrix = (scattered() * 100).astype(dtype)
    sparse.save_npz(tmp_path / "a.npz", matrix.asformat(layout), compressed=compressed)
    summary = check_sparse(tmp_path, tmp_path / "a.npz", matrix)
    assert summary.dtype == np.dtype(dtype)


@pytest.mark.slow
def test_npz_sparse_odd(tmp_path: Path, small_batches: None) -> None:
    duplicates = sparse.coo_array(([1.0, 2.0, 4.0], ([3, 0, 3], [1, 2, 1])), shape=(6, 4))
    sparse.save_npz(tmp_path / "a.npz", duplicates)
    check_sparse(tmp_path, tmp_path / "a.npz", duplicates)
    crowded = sparse.coo_matrix((np.arange(900.0), (np.arange(900) % 3 + 100, np.arange(900) % 299)))
    sparse.save_npz(tmp_path / "b.npz", crowded)  # everything in three rows: buckets are dealt out again
    check_sparse(tmp_path, tmp_path / "b.npz", crowded)
    sparse.save_npz(tmp_path / "c.npz", sparse.bsr_matrix(np.eye(4)))
    refused(tmp_path, tmp_path / "c.npz", "bsr", "tocsr")
    damage(tmp_path / "b.npz", tmp_path / "d.npz")
    refused(tmp_path, tmp_path / "d.npz", "d.npz", "corrupt")
    np.savez(tmp_path / "e.npz", format="csr", shape=(2, 3), data=np.ones(2), indices=[0, 9], indptr=[0, 1, 2])
    refused(tmp_path, tmp_path / "e.npz", "row 1", "column 9")
    refused(tmp_path, tmp_path / "b.npz", "chunks", chunks=(3, 4))


@pytest.mark.slow
def test_sparse_becomes_dense_and_back(tmp_path: Path, small_batches: None) -> None:
    matrix = scattered()
    sparse.save_npz(tmp_path / "a.npz", matrix)
    check_dense(tmp_path, tmp_path / "a.npz", matrix.toarray(), kind="samples")
    np.save(tmp_path / "a.npy", matrix.toarray())
    check_sparse(tmp_path, tmp_path / "a.npy", matrix, kind="sparse")
    np.save(tmp_path / "big-endian.npy", matrix.toarray().astype(">f8"))
    check_sparse(tmp_path, tmp_path / "big-endian.npy", matrix, kind="sparse")


# Tables


@pytest.mark.slow
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv", "a.CSV"])
def test_csv(tmp_path: Path, header: bool, name: str) -> None:
    rows, delimiter = dense(5000, 6), "\t" if "tsv" in name else ","
    top = delimiter.join(["one", '"t,wo"', "third", "four", "", "six"]) if header else ""
    np.savetxt(tmp_path / name, rows, "%.17g", delimiter, header=top, comments="")
    if not header:
        np.savetxt(tmp_path / name, rows, "%.17g", delimiter)
    check_dense(tmp_path, tmp_path / name, rows)


@pytest.mark.slow
def test_csv_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for text, words in {
        "a,b\n1,2\n3,x\n": ("line 3", "'b'", "'x'"),
        "a,b\n1,2\n\n3,\n": ("missing value at row 1", "'b'"),
        "1,2\n3,nan\n": ("missing value at row 1", "'1'"),
        "1,2\n3,inf\n": ("inf at row 1, column 1",),
        "1,2\n3\n": ("2 columns",),
        "a,b\n": ("a.csv",),
        "": ("empty",),
        "a\n1\n\n3\n": ("missing value at row 1", "'a'"),
    }.items():
        path.write_text(text)
        refused(tmp_path, path, *words)
    for text, expected in {
        "1;2\n3;4": [[1, 2], [3, 4]],
        "a\n1\n2\n": [[1], [2]],
        "\ufeffa,b\r\n1,2\r\n": [[1, 2]],
    }.items():
        path.write_text(text)
        check_dense(tmp_path, path, np.array(expected, float))
    np.savetxt(tmp_path / "b.csv.gz", dense(500), delimiter=",")
    (tmp_path / "c.csv.gz").write_bytes((tmp_path / "b.csv.gz").read_bytes()[:-300])
    refused(tmp_path, tmp_path / "c.csv.gz", "c.csv.gz", "truncated")


@pytest.mark.slow
def test_csv_header_that_looks_like_data(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0,1,2\n5,6,7\n")
    refused(tmp_path, tmp_path / "a.csv", "header=True")
    check_dense(tmp_path, tmp_path / "a.csv", np.array([[5.0, 6, 7]]), header=True)
    check_dense(tmp_path, tmp_path / "a.csv", np.array([[0.0, 1, 2], [5, 6, 7]]), header=False)


@pytest.mark.slow
def test_parquet_of_many_columns(tmp_path: Path, small_batches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dense(40000, 20)
    table = pa.table({f"c{i}": rows[:, i] for i in range(20)})
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=17000)
    monkeypatch.setattr(common, "BATCH_BYTES", 200_000)
    monkeypatch.setattr(tables, "PAGES", 1)
    check_dense(tmp_path, tmp_path / "a.parquet", rows)


@pytest.mark.slow
def test_parquet(tmp_path: Path, small_batches: None) -> None:
    rows = dense()
    columns = {f"c{i}": rows[:, i] for i in range(17)}
    table = pa.table(columns)
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    check_dense(tmp_path, tmp_path / "a.parquet", rows)
    (tmp_path / "parts").mkdir()
    for part, first in enumerate(range(0, 203, 60)):
        pa.parquet.write_table(table.slice(first, 60), tmp_path / "parts" / f"part-{part}.parquet")
    check_dense(tmp_path, tmp_path / "parts", rows)
    mixed = pa.table({"i": pa.array([1, 2], pa.int32()), "f": pa.array([0.5, 1], pa.float32()), "b": [True, False]})
    pa.parquet.write_table(mixed, tmp_path / "m.parquet")
    check_dense(tmp_path, tmp_path / "m.parquet", np.array([[1, 0.5, 1], [2, 1, 0]]))
    pa.parquet.write_table(table.rename_columns([*"abcdefghijklmnopq"]), tmp_path / "parts" / "part-9.parquet")
    refused(tmp_path, tmp_path / "parts", "part-9.parquet")
    pa.parquet.write_table(pa.table({"x": [1.0, 2.0], "name": ["a", "b"]}), tmp_path / "t.parquet")
    refused(tmp_path, tmp_path / "t.parquet", "'name'", "string")
    pa.parquet.write_table(pa.table({"x": [1.0, 2.0, None]}), tmp_path / "n.parquet")
    refused(tmp_path, tmp_path / "n.parquet", "missing value at row 2", "'x'")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    refused(tmp_path, tmp_path / "cut.parquet", "cut.parquet", "truncated")


# HDF5 and Zarr


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [None, (7, 17), (40, 3), (203, 1)])
@pytest.mark.parametrize("spooled", [True, False])
def test_hdf5(tmp_path: Path, small_batches: None, monkeypatch: pytest.MonkeyPatch, chunks: Any, spooled: bool) -> None:
    monkeypatch.setattr(common, "SLAB_BYTES", 1000 if spooled else 2**28)
    rows = dense()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        compression = "gzip" if chunks else None
        file.create_dataset("deep/x", data=rows, chunks=chunks, compression=compression)
        file["labels"] = np.arange(203)
    check_dense(tmp_path, tmp_path / "a.h5", rows)
    check_dense(tmp_path, tmp_path / "a.h5", rows, dataset="/deep/x")


def write_anndata(group: Any, matrix: Any, layout: str) -> None:
    group.attrs["encoding-type"] = f"{layout}_matrix"
    group.attrs["shape"] = [int(n) for n in matrix.shape]
    for name in ("data", "indices", "indptr"):
        values = getattr(matrix.asformat(layout), name)
        if isinstance(group, h5py.Group):
            group[name] = values
        else:
            group.create_array(name, data=values, chunks=(50,))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_anndata(tmp_path: Path, small_batches: None, layout: str) -> None:
    matrix = scattered()
    with h5py.File(tmp_path / "a.h5ad", "w") as file:
        write_anndata(file.create_group("X"), matrix, layout)
        file["obsm/pca"] = dense(203, 3)
    check_sparse(tmp_path, tmp_path / "a.h5ad", matrix)
    check_dense(tmp_path, tmp_path / "a.h5ad", dense(203, 3), dataset="obsm/pca")
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    write_anndata(group.create_group("X"), matrix, layout)
    check_sparse(tmp_path, tmp_path / "a.zarr", matrix)
    check_sparse(tmp_path, tmp_path / "a.zarr" / "X", matrix)
    (tmp_path / "a.zarr" / "X" / "data" / "c" / "3").unlink()
    refused(tmp_path, tmp_path / "a.zarr", "c/3", "missing")


@pytest.mark.slow
def test_hdf5_errors(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"], file["text"] = dense(), dense(), [["a", "b"]]
    refused(tmp_path, tmp_path / "a.h5", "x (203, 17), y (203, 17)", "dataset=")
    refused(tmp_path, tmp_path / "a.h5", "did you mean 'text'", dataset="tex")
    refused(tmp_path, tmp_path / "a.h5", "text", "objects", dataset="text")
    (tmp_path / "cut.h5").write_bytes((tmp_path / "a.h5").read_bytes()[:9000])
    refused(tmp_path, tmp_path / "cut.h5", "cut.h5", "truncated", dataset="x")


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("compressors", ["auto", None])
@pytest.mark.parametrize("chunks", [(30, 17), (50, 4), (203, 1)])
@pytest.mark.parametrize("spooled", [True, False])
def test_zarr(
    tmp_path: Path,
    small_batches: None,
    monkeypatch: pytest.MonkeyPatch,
    version: Any,
    compressors: Any,
    chunks: Any,
    spooled: bool,
) -> None:
    monkeypatch.setattr(common, "SLAB_BYTES", 1000 if spooled else 2**28)
    rows, path = dense(), tmp_path / "in.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=version)
    group.create_array("deep/x", shape=rows.shape, dtype=rows.dtype, chunks=chunks, compressors=compressors)[...] = rows
    check_dense(tmp_path, path, rows)
    check_dense(tmp_path, path, rows, dataset="deep/x", missing="fill")
    check_dense(tmp_path, path / "deep" / "x", rows)
    name = "1/0" if version == 3 else "1.0"
    chunk = next(iter((path / "deep" / "x").rglob("c/1/0" if version == 3 else "1.0")), None)
    if chunk is None:
        return
    chunk.unlink()
    refused(tmp_path, path, name, "missing", "fill")
    rows[chunks[0] : 2 * chunks[0], : chunks[1]] = 0
    check_dense(tmp_path, path, rows, missing="fill")


@pytest.mark.slow
def test_npmdask_store_is_copied(tmp_path: Path, small_batches: None) -> None:
    np.save(tmp_path / "a.npy", dense())
    first = ingest(tmp_path / "a.npy", tmp_path / "a.zarr", chunks=(20, 17))
    again = check_dense(tmp_path, tmp_path / "a.zarr", dense(), chunks=(64, 5))
    assert zarr.open_array(again.dest / "data").chunks == (64, 5)
    assert check_dense(tmp_path, tmp_path / "a.zarr", dense(), chunks=(20, 17)).fingerprint == first.fingerprint
    chunk = tmp_path / "a.zarr" / "data" / "c" / "2" / "0"
    chunk.write_bytes(chunk.read_bytes()[::-1])
    refused(tmp_path, tmp_path / "a.zarr", "c/2/0", "corrupt")
    sparse.save_npz(tmp_path / "s.npz", scattered())
    ingest(tmp_path / "s.npz", tmp_path / "s.zarr")
    check_sparse(tmp_path, tmp_path / "s.zarr", scattered())


def test_zarr_errors(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    refused(tmp_path, tmp_path / "folder", "neither Zarr nor Parquet")
    group = zarr.open_group(tmp_path / "in.zarr", mode="w")
    refused(tmp_path, tmp_path / "in.zarr", "no 2-D array")
    group["x"], group["y"] = dense(), dense()
    refused(tmp_path, tmp_path / "in.zarr", "x (203, 17), y (203, 17)")
    (tmp_path / "in.zarr" / "x" / "zarr.json").write_text("{")
    refused(tmp_path, tmp_path / "in.zarr", "in.zarr", dataset="x")
    refused(tmp_path, tmp_path / "in.zarr" / "y", "leave out dataset", dataset="x")


# MatrixMarket, IDX, bag of words


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.mtx", "a.mtx.gz"])
@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
def test_mtx_coordinate(tmp_path: Path, small_batches: None, name: str, field: str, symmetry: str) -> None:
    matrix = (scattered(90, 90) * (100 if field == "integer" else 1)).astype(int if field == "integer" else float)
    if symmetry != "general":
        matrix = matrix + (matrix.T if symmetry == "symmetric" else -matrix.T)
    if field == "pattern" and symmetry == "skew-symmetric":
        return
    matrix.eliminate_zeros()
    with (gzip.open if name.endswith("gz") else open)(tmp_path / name, "wb") as file:
        scipy.io.mmwrite(file, matrix.tocsc(), field=field, symmetry=symmetry, comment="a\ncomment", precision=17)
    with (gzip.open if name.endswith("gz") else open)(tmp_path / name, "rb") as file:
        expected = scipy.io.mmread(file)
    summary = check_sparse(tmp_path, tmp_path / name, expected)
    assert summary.dtype == (np.int64 if field == "integer" else np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("dtype", [float, int])
def test_mtx_array(tmp_path: Path, small_batches: None, symmetry: str, dtype: Any) -> None:
    matrix = (dense(60, 60) * 100).astype(dtype)
    if symmetry != "general":
        matrix = matrix + (matrix.T if symmetry == "symmetric" else -matrix.T)
    scipy.io.mmwrite(tmp_path / "a.mtx", matrix, symmetry=symmetry, precision=17)
    kind = "symmetric" if symmetry == "symmetric" else "matrix"
    check_dense(tmp_path, tmp_path / "a.mtx", np.asarray(scipy.io.mmread(tmp_path / "a.mtx")), kind=kind)


@pytest.mark.slow
def test_mtx_odd_text(tmp_path: Path) -> None:
    head = "%%MatrixMarket matrix coordinate real general\n% comment\n\n3 4 4\n"
    (tmp_path / "a.mtx").write_text(head + "  1\t 2   +1.5 \n3 1 2e-3\r\n\n 2 2 7\n1 2 1")
    check_sparse(tmp_path, tmp_path / "a.mtx", [[0, 2.5, 0, 0], [0, 7, 0, 0], [0.002, 0, 0, 0]])
    for body, words in {
        "1 2 3\n": ("4 entries and it has 1",),
        "1 2 3\n1 3\n2 2 2\n3 3 3\n": ("a.mtx", "3 numbers"),
        "1 2 3\n1 2 x\n2 2 2\n3 3 3\n": ("a.mtx", "'x'"),
        "1 2 3\n1 2 3\n2 5 2\n3 3 3\n": ("entry 2", "column 4", "3 x 4"),
    }.items():
        (tmp_path / "a.mtx").write_text(head + body)
        refused(tmp_path, tmp_path / "a.mtx", *words)
    (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 1\n")
    refused(tmp_path, tmp_path / "a.mtx", "complex")
    (tmp_path / "a.mtx").write_text("hello\n")
    refused(tmp_path, tmp_path / "a.mtx", "not MatrixMarket")
    (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n")
    refused(tmp_path, tmp_path / "a.mtx", "4 values and it has 3")


def write_idx(path: Path, values: np.ndarray, code: int) -> None:
    head = struct.pack(f">HBB{values.ndim}I", 0, code, values.ndim, *values.shape)
    data = head + values.astype(values.dtype.newbyteorder(">")).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t10k-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz", "a.idx"])
@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "f4", "f8"])
def test_idx(tmp_path: Path, small_batches: None, name: str, dtype: str) -> None:
    values = (dense(210, 12) * 20 + 100).astype(dtype).reshape(210, 3, 4)
    code = {"u1": 8, "i2": 11, "i4": 12, "f4": 13, "f8": 14}[dtype]
    write_idx(tmp_path / name, values, code)
    check_dense(tmp_path, tmp_path / name, values.reshape(210, 12))
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-20])
    refused(tmp_path, tmp_path / name, name, "truncated")


def write_docword(path: Path, matrix: sparse.csr_matrix) -> None:
    coo = matrix.tocoo()
    lines = [*map(str, (*matrix.shape, matrix.nnz))]
    lines += [f"{i + 1} {j + 1} {v}" for i, j, v in zip(coo.row, coo.col, coo.data, strict=True)]
    with gzip.open(path, "wt") if path.suffix == ".gz" else open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["docword.tiny.txt", "docword.tiny.txt.gz", "words"])
def test_docword(tmp_path: Path, small_batches: None, name: str) -> None:
    full = (scattered(300, 50) * 1000).astype(np.int32).toarray()
    full[[0, 5, 6, 299]] = 0  # empty documents, also the last
    full[100:103] = 123456789  # longer than a block
    counts = sparse.csr_matrix(full)
    write_docword(tmp_path / name, counts)
    assert check_sparse(tmp_path, tmp_path / name, counts).dtype == np.int32
    if name == "docword.tiny.txt":
        lines = (tmp_path / name).read_text().splitlines()
        (tmp_path / name).write_text("\n".join(lines[:-1]))
        refused(tmp_path, tmp_path / name, f"{counts.nnz} entries and it has {counts.nnz - 1}")
        (tmp_path / name).write_text("\n".join([*lines[:3], *lines[:2:-1]]))
        refused(tmp_path, tmp_path / name, "is out of order", "sort")
        (tmp_path / name).write_text("\n".join(["5", *lines[1:]]))
        refused(tmp_path, tmp_path / name, "outside 1 to 5")
    elif name.endswith("gz"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-30])
        refused(tmp_path, tmp_path / name, name, "truncated")


@pytest.mark.slow
def test_real_mnist(tmp_path: Path) -> None:
    path = SHARED / "mnist-10k-images-idx3-ubyte.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    expected = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=16).reshape(10000, 784)
    check_dense(tmp_path, path, expected)
    check_dense(tmp_path, path, expected.astype(np.float32), dtype="float32")


@pytest.mark.slow
def test_real_docword(tmp_path: Path) -> None:
    path = SHARED / "nips-docword.txt.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with gzip.open(path, "rt") as file:
        documents, words, _ = (int(file.readline()) for _ in range(3))
        doc, word, count = np.loadtxt(file, dtype=np.int32).T
    check_sparse(tmp_path, path, sparse.coo_matrix((count, (doc - 1, word - 1)), shape=(documents, words)))


# Symmetry


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["packed", "full"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
def test_symmetric(tmp_path: Path, dtype: str, layout: str) -> None:
    square = dense(150, 150) * 100
    square = (square + square.T).astype(dtype)
    if dtype != "i4":
        square[140, 7] *= 1 + np.finfo(dtype).eps  # rounding is forgiven
    np.save(tmp_path / "a.npy", square)
    options: dict[str, Any] = {"kind": "symmetric", "layout": layout, "chunks": (64, 64)}
    stored = square if layout == "full" else np.triu(square) + np.triu(square, 1).T
    summary = check_dense(tmp_path, tmp_path / "a.npy", stored, **options)
    assert summary.kind == "symmetric"
    square[140, 7] += 1
    np.save(tmp_path / "a.npy", square)
    said = refused(tmp_path, tmp_path / "a.npy", "(7, 140)", "(140, 7)", **options)
    assert str(square[140, 7]) in said and str(square[7, 140]) in said and "kind='matrix'" in said
    check_dense(tmp_path, tmp_path / "a.npy", square, kind="matrix")


def test_symmetric_must_be_square(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", dense())
    refused(tmp_path, tmp_path / "a.npy", "203 x 17", "square", kind="symmetric")
    np.savetxt(tmp_path / "a.csv", dense(), delimiter=",")
    refused(tmp_path, tmp_path / "a.csv", "203 x 17", "square", kind="symmetric", layout="full")
    refused(tmp_path, tmp_path / "a.csv", "not symmetric", "kind='matrix'", kind="symmetric")
    np.savetxt(tmp_path / "a.csv", np.ones((203, 17)), delimiter=",")
    refused(tmp_path, tmp_path / "a.csv", "203 x 17", "square", kind="symmetric")
    np.savetxt(tmp_path / "a.csv", np.ones((16, 17)), delimiter=",")
    refused(tmp_path, tmp_path / "a.csv", "16 x 17", "square", kind="symmetric")


# Arguments, locks, full disks


def test_bad_arguments(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", dense())
    refused(tmp_path, tmp_path / "b.npy", "nothing at")
    refused(tmp_path, tmp_path / "a.npy", "did you mean 'sparse'", kind="sparce")
    refused(tmp_path, tmp_path / "a.npy", "missing=", missing="zero")
    refused(tmp_path, tmp_path / "a.npy", "leave out dataset", dataset="x")
    refused(tmp_path, tmp_path / "a.npy", "at least 1", chunks=(0, 3))
    (tmp_path / "a.xyz").write_text("hello")
    refused(tmp_path, tmp_path / "a.xyz", "has no known format", ".parquet")
    (tmp_path / "a").write_bytes(b"")
    refused(tmp_path, tmp_path / "a", "has no known format")
    shutil.copy(tmp_path / "a.npy", tmp_path / "nameless")
    check_dense(tmp_path, tmp_path / "nameless", dense())
    with pytest.raises(RefusedError, match="overwrite"):
        ingest(tmp_path / "a.npy", tmp_path / "out.zarr")
    with pytest.raises(BadInputError, match="both"):
        ingest(tmp_path / "out.zarr", tmp_path / "out.zarr", overwrite=True)


@pytest.mark.slow
def test_a_second_ingest_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", dense())
    script = f"""
import sys, time
from npmdask.formats.ingest import ingest
def hold(*_):
    print("held", flush=True)
    sys.stdin.read()
ingest({str(tmp_path / "a.npy")!r}, {str(tmp_path / "out.zarr")!r}, progress=hold)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(RefusedError, match=f"pid {other.pid}"):
            ingest(tmp_path / "a.npy", tmp_path / "out.zarr")
        other.communicate()
        assert other.returncode == 0
    np.testing.assert_array_equal(read(tmp_path / "out.zarr"), dense())
    assert_clean(tmp_path)


def test_a_stale_lock_is_no_lock(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", dense())
    (tmp_path / "out.zarr.partial.lock").write_text("1\n")
    check_dense(tmp_path, tmp_path / "a.npy", dense())
    with open(tmp_path / "bad.zarr.partial.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RefusedError, match="unknown"):
            ingest(tmp_path / "a.npy", tmp_path / "bad.zarr")


def test_a_temporary_file_gets_all_of_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Filling(io.FileIO):
        """A disk that takes 1000 bytes at a time, as one that fills up may."""

        def write(self, data: Any) -> int:
            return super().write(data[:1000])

    monkeypatch.setattr(common, "open", lambda path, *_, **__: Filling(path, "w"), raising=False)
    with common.spool_file(tmp_path / "spool", "x") as file:
        common.spool_write(file, dense())
    np.testing.assert_array_equal(np.fromfile(tmp_path / "spool" / "x"), dense().ravel())


@pytest.mark.slow
def test_a_full_disk_is_not_the_sources_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse.save_npz(tmp_path / "a.npz", scattered().tocoo())

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        Path, "mkdir", lambda self, **_: full() if "scratch" in self.name else os.makedirs(self, exist_ok=True)
    )
    with pytest.raises(CommitError, match="No space left"):
        ingest(tmp_path / "a.npz", tmp_path / "out.zarr")
    monkeypatch.undo()
    check_sparse(tmp_path, tmp_path / "a.npz", scattered())


@pytest.mark.slow
def test_a_failing_disk_keeps_what_is_written(
    tmp_path: Path, small_batches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "a.npy", dense(3000))
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 10000)
    calls: list[int] = []

    def read_into(file: Any, array: np.ndarray) -> int:
        calls.append(len(array))
        if len(calls) == 150:
            raise OSError(5, "Input/output error")
        return whole(file, array)

    whole = common.read_into
    monkeypatch.setattr(common, "read_into", read_into)
    with pytest.raises(RefusedError, match=r"a\.npy.*Input/output error.*continues"):
        ingest(tmp_path / "a.npy", tmp_path / "out.zarr", chunks=(64, 17))
    calls.extend([0] * 1000)
    done: list[int] = []
    ingest(tmp_path / "a.npy", tmp_path / "out.zarr", chunks=(64, 17), progress=lambda *call: done.append(call[0]))
    assert done[0] > 1500
    np.testing.assert_array_equal(read(tmp_path / "out.zarr"), dense(3000))


def test_what_a_killed_overwrite_left_is_no_obstacle(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", dense())
    check_dense(tmp_path, tmp_path / "a.npy", dense())
    (tmp_path / "out.zarr.replaced" / "data").mkdir(parents=True)
    check_dense(tmp_path, tmp_path / "a.npy", dense())


# Kills


KILL = """
import json, os, signal, sys
from importlib import import_module
from npmdask.formats import ingest
from npmdask.writers import sparse
source, dest, options, constants = json.loads(sys.argv[1])
for module, name, value in constants:
    setattr(import_module(module), name, value)
sparse.SparseWriter.CHUNK = 1000
def progress(done, total, size):
    if done >= 2000:
        os.kill(os.getpid(), signal.SIGKILL)
ingest.ingest(source, dest, progress=progress, **options)
"""
SMALL = [
    ("npmdask.writers.journal", "JOURNAL_BYTES", 16384),
    ("npmdask.formats.common", "BATCH_BYTES", 30000),
    ("npmdask.formats.common", "TEXT_BYTES", 30000),
    ("npmdask.formats.compressed", "BATCH_ENTRIES", 500),
    ("npmdask.formats.compressed", "BUCKET_BYTES", 20000),
    ("npmdask.formats.compressed", "MAX_BUCKETS", 4),
]


def run_killed(source: Path, dest: Path, options: dict[str, Any]) -> None:
    arguments = json.dumps([str(source), str(dest), options, SMALL])
    done = subprocess.run([sys.executable, "-c", KILL, arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def write_source(folder: Path, name: str) -> Path:
    rows, matrix, path = dense(3000, 20), scattered(3000, 60), folder / name
    if name == "matrices.npy":
        np.save(path, cubes(3000, 4))
    elif name == "matrices.zarr":
        zarr.create_array(path, data=cubes(3000, 4), chunks=(70, 3, 2))
    elif name.endswith("npy"):
        np.save(path, rows)
    elif name.endswith("csv"):
        np.savetxt(path, rows, delimiter=",", header="a" + 19 * ",b", comments="")
    elif name.endswith("parquet"):
        pa.parquet.write_table(pa.table({str(i): rows[:, i] for i in range(20)}), path, row_group_size=700)
    elif name.endswith("h5"):
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=rows, chunks=(90, 20), compression="lzf")
    elif name.endswith("csr.npz"):
        sparse.save_npz(path, matrix)
    elif name.endswith("npz"):
        np.savez_compressed(path, x=rows)
    elif name.endswith("mtx"):
        scipy.io.mmwrite(path, matrix.tocsc())
    elif name.endswith("zarr"):
        zarr.open_group(path, mode="w").create_array("x", data=rows, chunks=(70, 6))
    elif name.startswith("docword"):
        write_docword(path, sparse.csr_matrix((matrix * 100).astype(np.int32) + (matrix > 0)))
    else:
        write_idx(path, (rows * 9 + 100).astype(np.int32), 12)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "name,options",
    often(
        [
            ("a.npy", {"chunks": [64, 20]}),
            ("a.npy", {"chunks": [16, 10], "shards": 10240}),
            ("a.npy", {"kind": "sparse"}),
            ("a.csv", {"chunks": [64, 8]}),
            ("a.parquet", {"chunks": [64, 20]}),
            ("a.h5", {"chunks": [64, 20]}),
            ("a.npz", {"chunks": [64, 20]}),
            ("a.zarr", {"chunks": [64, 20]}),
            ("a-idx2-int.gz", {"chunks": [64, 20]}),
            ("a.csr.npz", {}),
            ("a.csr.npz", {"shards": 24000}),
            ("a.csr.npz", {"kind": "samples", "chunks": [64, 60]}),
            ("a.mtx", {}),
            ("docword.txt.gz", {}),
            ("matrices.npy", {"kind": "matrices", "chunks": [64, 16]}),
            ("matrices.zarr", {"kind": "matrices", "chunks": [64, 16]}),
        ],
        *(0, 1, 3, 9, 13, 15),
    ),
    ids=lambda value: value if isinstance(value, str) else value.get("kind", ""),
)
def test_a_kill_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    for module, constant, value in SMALL:
        monkeypatch.setattr(f"{module}.{constant}", value)
    monkeypatch.setattr(SparseWriter, "CHUNK", 1000)
    source = write_source(tmp_path, name)
    ingest(source, tmp_path / "calm.zarr", **options)
    run_killed(source, tmp_path / "killed.zarr", options)
    assert not (tmp_path / "killed.zarr").exists()
    done: list[int] = []
    ingest(source, tmp_path / "killed.zarr", progress=lambda *call: done.append(call[0]), **options)
    assert done[0] > 700  # it went on, and did not begin again
    assert tree(tmp_path / "killed.zarr") == tree(tmp_path / "calm.zarr")
    assert_clean(tmp_path)


# Memory


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    script = """
import re, sys
from npmdask.formats import ingest
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
before = peak()
ingest.ingest(sys.argv[1], sys.argv[2])
print(peak() - before)
"""
    size = 400 * 2**20
    array = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float64, (size // 8 // 1000, 1000))
    array[::50, ::7] = 1.5
    del array
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.npy"), str(tmp_path / "out.zarr")],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert int(done.stdout) < 150
    shutil.rmtree(tmp_path / "out.zarr")
    (tmp_path / "a.npy").unlink()
