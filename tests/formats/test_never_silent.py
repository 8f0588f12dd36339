"""What ingest used to do in silence: drop a first row, round, read what is gone as zeros."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.io
import scipy.sparse
import zarr

from npmdask.cli.main import main
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest

ROWS = np.random.default_rng(0).standard_normal((30, 4))


def stored(path: Path) -> np.ndarray:
    group = zarr.open_group(path, mode="r")
    if "X" in group:
        parts = tuple(group["X"][name][...] for name in ("data", "indices", "indptr"))  # type: ignore[index]
        return scipy.sparse.csr_matrix(parts, shape=group.attrs["npmdask"]["shape"]).toarray()  # type: ignore[index, call-overload]
    return np.asarray(group["data"][...])  # type: ignore[index]


# The first line of CSV

DATA = "1,2,3\n4,5,6\n"
DROPPED = {
    "NA": "NA,2,3\n", "a gap": ",2,3\n", "all NA": "NA,nan,NULL\n", "#N/A": "1,#N/A,3\n",
}  # fmt: skip
HALF = {
    "a typo": "1,2..5,3\n", "decimal commas": "1,5;2,5;3,5\n", "a unit": "1,2 m,3\n", "years": "country,1990,1991\n",
    "a letter O": "1O,2,3\n",
}  # fmt: skip


def refused_by_ingest(path: Path, text: str, words: str) -> None:
    for name, data in (("a.csv", text.encode()), ("a.csv.gz", gzip.compress(text.encode()))):
        (path / name).write_bytes(data)
        with pytest.raises(BadInputError, match=words):
            ingest(path / name, path / "a.zarr")
        assert not (path / "a.zarr").exists()


@pytest.mark.parametrize("line", DROPPED.values(), ids=DROPPED)
def test_a_first_row_with_a_missing_value_is_a_row(tmp_path: Path, line: str) -> None:
    refused_by_ingest(tmp_path, line + DATA, "missing value at row 0, column")


@pytest.mark.parametrize("first", ["1.2.3", "1,5", "-3x", ".5.", "12O"])
def test_a_broken_number_alone_is_no_name(tmp_path: Path, first: str) -> None:
    refused_by_ingest(tmp_path, f'"{first}"\n1\n2\n', "its first line has 0 numbers and 1 other words")


@pytest.mark.slow
def test_what_was_taken_for_names_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"c{i}" for i in range(12)]
    (tmp_path / "a.csv").write_text(",".join(names) + "\n" + ",".join(["1"] * 12) + "\n")
    summary = ingest(tmp_path / "a.csv", tmp_path / "a.zarr")
    assert summary.header == tuple(names) and summary.shape == (1, 12)
    assert main(["ingest", str(tmp_path / "a.csv"), str(tmp_path / "b.zarr"), "--quiet"]) == 0
    said = "the first line was taken for the names of the columns, not for data: c0, c1, c2, c3, c4, c5, c6, c7, ..."
    assert f"{said} (12 names)" in capsys.readouterr().out
    (tmp_path / "n.csv").write_text(DATA)
    assert ingest(tmp_path / "n.csv", tmp_path / "n.zarr").header is None


@pytest.mark.slow
def test_the_user_may_say_what_the_first_line_is(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("country,1990,1991\n" + DATA)
    assert main(["ingest", str(tmp_path / "a.csv"), str(tmp_path / "a.zarr"), "--quiet", "--header"]) == 0
    np.testing.assert_array_equal(stored(tmp_path / "a.zarr"), [[1, 2, 3], [4, 5, 6]])
    (tmp_path / "b.csv").write_text("0,1,2\n" + DATA)
    assert main(["ingest", str(tmp_path / "b.csv"), str(tmp_path / "b.zarr"), "--quiet", "--no-header"]) == 0
    np.testing.assert_array_equal(stored(tmp_path / "b.zarr"), [[0, 1, 2], [1, 2, 3], [4, 5, 6]])


# --dtype


def as_npy(folder: Path, values: np.ndarray) -> Path:
    np.save(folder / "a.npy", values)
    return folder / "a.npy"


def as_npz(folder: Path, values: np.ndarray) -> Path:
    np.savez(folder / "a.npz", a=values)
    return folder / "a.npz"


def as_sparse(folder: Path, values: np.ndarray) -> Path:
    scipy.sparse.save_npz(folder / "s.npz", scipy.sparse.csr_matrix(values))
    return folder / "s.npz"


def as_market(folder: Path, values: np.ndarray) -> Path:
    scipy.io.mmwrite(folder / "a.mtx", scipy.sparse.coo_matrix(values), precision=17)
    return folder / "a.mtx"


def as_csv(folder: Path, values: np.ndarray) -> Path:
    np.savetxt(folder / "a.csv", values, "%.17g", ",")
    return folder / "a.csv"


def as_parquet(folder: Path, values: np.ndarray) -> Path:
    pa.parquet.write_table(pa.table({str(i): column for i, column in enumerate(values.T)}), folder / "a.parquet")
    return folder / "a.parquet"


def as_hdf5(folder: Path, values: np.ndarray) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        file["a"] = values
    return folder / "a.h5"


def as_zarr(folder: Path, values: np.ndarray) -> Path:
    zarr.create_array(folder / "z", data=values, chunks=(7, 3))
    return folder / "z"


FORMATS: list[Callable[[Path, np.ndarray], Path]] = [
    as_npy, as_npz, as_sparse, as_market, as_csv, as_parquet, as_hdf5, as_zarr,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__)
def test_rounding_is_an_error_unless_it_is_asked_for(tmp_path: Path, write: Callable[[Path, np.ndarray], Path]) -> None:
    values = np.round(ROWS * 1024) / 1024  # which float32 holds
    path = write(tmp_path, values)
    ingest(path, tmp_path / "exact.zarr", dtype="float32")
    np.testing.assert_array_equal(stored(tmp_path / "exact.zarr"), values)
    values[9, 2] = 0.1
    path = write(tmp_path / "", values) if write is not as_zarr else path
    if write is as_zarr:
        zarr.open_array(path, mode="r+")[9, 2] = 0.1
    with pytest.raises(BadInputError, match=r"0\.1 at row 9, column 2 cannot be stored as float32.*rounding='nearest'"):
        ingest(path, tmp_path / "a.zarr", dtype="float32")
    words = ["ingest", str(path), str(tmp_path / "a.zarr"), "--dtype", "float32", "--quiet"]
    assert main(words) == 2
    assert main([*words, "--rounding", "nearest"]) == 0
    np.testing.assert_array_equal(stored(tmp_path / "a.zarr"), values.astype(np.float32))


BIG = [
    (np.int64, 2**53 + 1, "float64"), (np.uint64, 2**64 - 1, "float64"), (np.int64, 2**63 - 1, "float64"),
    (np.int32, 2**24 + 1, "float32"), (np.float64, 2.0**60, "int64"), (np.float64, 0.5, "int16"),
    (np.int16, 300, "uint8"), (np.int64, -1, "uint64"), (np.float64, 1e300, "float32"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "value", "dtype"), BIG)
def test_a_value_that_the_dtype_does_not_have_is_named(tmp_path: Path, kind: Any, value: Any, dtype: str) -> None:
    values = np.ones((6, 3), kind)
    values[4, 1] = value
    for path in (as_npy(tmp_path, values), as_sparse(tmp_path, values)):
        with pytest.raises(BadInputError, match=r"at row 4, column 1 cannot be stored as " + dtype):
            ingest(path, tmp_path / "a.zarr", dtype=dtype)


def test_tensors_are_not_rounded_either(tmp_path: Path) -> None:
    cube = np.zeros((3, 3, 3))
    cube[2, 2, 2] = 0.1
    path = as_npy(tmp_path, cube)
    with pytest.raises(BadInputError, match=r"0\.1 at entry \(2, 2, 2\) cannot be stored as float32"):
        ingest(path, tmp_path / "a.zarr", kind="tensor", dtype="float32")
    ingest(path, tmp_path / "a.zarr", kind="tensor", dtype="float32", rounding="nearest")


def test_integers_beside_floats_in_parquet(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([1, 2**53 + 1], pa.int64()), "b": pa.array([0.5, 0.25])})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(BadInputError, match="9007199254740993 at row 1, column 'a' cannot be stored as float64"):
        ingest(tmp_path / "a.parquet", tmp_path / "a.zarr")


# HDF5 that keeps its values elsewhere


def parts(folder: Path) -> None:
    for number, rows in enumerate((ROWS[:15], ROWS[15:])):
        with h5py.File(folder / f"part{number}.h5", "w") as file:
            file["d"] = rows


def virtual(folder: Path, name: str = "all.h5", height: int = 15, part: str = "part{}.h5", where: str = "d") -> Path:
    layout = h5py.VirtualLayout(shape=(30, 4), dtype="f8")
    for number in range(2):
        source = h5py.VirtualSource(part.format(number), where, shape=(15, 4))
        layout[15 * number : 15 * number + height] = source[:height]
    with h5py.File(folder / name, "w") as file:
        file.create_virtual_dataset("a", layout)
    return folder / name


def refused(path: Path, words: str, **options: Any) -> None:
    with pytest.raises(BadInputError, match=words):
        ingest(path, path.with_name("out.zarr"), **options)
    assert not path.with_name("out.zarr").exists()


@pytest.mark.slow
def test_virtual_datasets(tmp_path: Path) -> None:
    parts(tmp_path)
    path = virtual(tmp_path)
    ingest(path, tmp_path / "a.zarr")
    np.testing.assert_array_equal(stored(tmp_path / "a.zarr"), ROWS)
    refused(virtual(tmp_path, "half.h5", height=14), "has 8 values that none of its sources provide")
    with h5py.File(tmp_path / "part1.h5", "w") as file:
        file["d"] = ROWS[:9]
    refused(path, r"takes values up to \(15, 4\) from 'd' of part1.h5, which has shape \(9, 4\)")
    with h5py.File(tmp_path / "part1.h5", "w") as file:
        file["e"] = ROWS[:9]
    refused(path, "takes values from 'd' of part1.h5, a file in which there is no such dataset")
    (tmp_path / "part1.h5").write_bytes(b"no HDF5 at all")
    refused(path, "takes values from 'd' of part1.h5, which cannot be opened")
    os.unlink(tmp_path / "part1.h5")
    refused(path, r"takes values from 'd' of part1.h5, which is not there .HDF5 would silently read fill values")
    refused(path, "which is not there", missing="fill")


@pytest.mark.slow
def test_virtual_datasets_of_virtual_datasets(tmp_path: Path) -> None:
    parts(tmp_path)
    virtual(tmp_path)
    layout = h5py.VirtualLayout(shape=(30, 4), dtype="f8")
    layout[...] = h5py.VirtualSource("all.h5", "a", shape=(30, 4))
    with h5py.File(tmp_path / "outer.h5", "w") as file:
        file.create_virtual_dataset("b", layout)
    ingest(tmp_path / "outer.h5", tmp_path / "a.zarr")
    np.testing.assert_array_equal(stored(tmp_path / "a.zarr"), ROWS)
    os.unlink(tmp_path / "part0.h5")
    refused(tmp_path / "outer.h5", "takes values from 'd' of part0.h5, which is not there")


@pytest.mark.slow
def test_virtual_datasets_of_the_same_file(tmp_path: Path) -> None:
    layout = h5py.VirtualLayout(shape=(30, 2), dtype="f8")
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file["deep/d"] = ROWS
        layout[...] = h5py.VirtualSource(file["deep/d"])[:, ::2]
        file.create_virtual_dataset("a", layout)
    ingest(tmp_path / "a.h5", tmp_path / "a.zarr", dataset="a")
    np.testing.assert_array_equal(stored(tmp_path / "a.zarr"), ROWS[:, ::2])
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file["deep/d"]
    refused(tmp_path / "a.h5", "takes values from '/deep/d' of the same file, which is not there", dataset="a")


@pytest.mark.slow
def test_virtual_datasets_whose_parts_are_not_counted(tmp_path: Path) -> None:
    parts(tmp_path)
    space = h5py.h5s.create_simple((30, 4), (h5py.h5s.UNLIMITED, 4))
    space.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (15, 4), (15, 4))
    source = h5py.h5s.create_simple((15, 4), (15, 4))
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_virtual(space, b"part%b.h5", b"d", source)
    with h5py.File(tmp_path / "many.h5", "w", libver="latest") as file:
        h5py.h5d.create(file.id, b"a", h5py.h5t.IEEE_F64LE, space, plist)
    refused(tmp_path / "many.h5", "without saying of how many parts: a part that is gone cannot be noticed")


@pytest.mark.slow
def test_links(tmp_path: Path) -> None:
    parts(tmp_path)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["far"] = h5py.ExternalLink("part0.h5", "d")
    ingest(tmp_path / "a.h5", tmp_path / "a.zarr")
    np.testing.assert_array_equal(stored(tmp_path / "a.zarr"), ROWS[:15])
    os.unlink(tmp_path / "part0.h5")
    refused(tmp_path / "a.h5", "'far' of .* is a link to d in part0.h5, which is not there")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["near"] = ROWS
        file["soft"] = h5py.SoftLink("/nowhere")
    refused(tmp_path / "a.h5", "is a link to", dataset="soft")
    refused(tmp_path / "a.h5", "is a link to")
    ingest(tmp_path / "a.h5", tmp_path / "b.zarr", dataset="near")


@pytest.mark.slow
def test_external_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").write_bytes(b"head" + ROWS.tobytes())
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", (30, 4), "f8", external=[("raw", 4, h5py.h5f.UNLIMITED)])
    ingest(tmp_path / "a.h5", tmp_path / "a.zarr")
    np.testing.assert_array_equal(stored(tmp_path / "a.zarr"), ROWS)
    os.truncate(tmp_path / "raw", 500)
    refused(tmp_path / "a.h5", "keeps its values in raw, which has 500 bytes of 964")
    os.unlink(tmp_path / "raw")
    refused(tmp_path / "a.h5", "keeps its values in raw, which is not there")


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"chunks": (10, 4)}, {"chunks": (10, 4), "compression": "gzip"}, {}], ids=str)
def test_what_was_never_written(tmp_path: Path, layout: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        array = file.create_dataset("a", (30, 4), "f8", fillvalue=0.5, **layout)
        if layout:
            array[:20] = ROWS[:20]
    said = "1 of its 3 chunks are not there, the first at .20, 0." if layout else "960 of its 960 bytes are not there"
    refused(tmp_path / "a.h5", rf"was not written completely: {said} \(HDF5 would silently read them as 0.5\)")
    ingest(tmp_path / "a.h5", tmp_path / "f.zarr", missing="fill")
    np.testing.assert_array_equal(stored(tmp_path / "f.zarr")[20:], 0.5)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["a"][...] = ROWS
    ingest(tmp_path / "a.h5", tmp_path / "w.zarr")
    np.testing.assert_array_equal(stored(tmp_path / "w.zarr"), ROWS)
