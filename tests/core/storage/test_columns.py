"""Columns of tables: names of rows, choices that a run keeps, lines of numbers that may be names, and orientation."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
import scipy.sparse as sp
import zarr

import npmdask
from npmdask.cli.main import main
from npmdask.core.storage.columns import addressed, at
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest
from npmdask.formats.tables import is_header
from tests.conftest import needs

pytestmark = pytest.mark.filterwarnings("ignore::npmdask.errors.DataWarning")  # which say what was left out
RNG = np.random.default_rng(7)
X = RNG.standard_normal((60, 4)) * [7, 5, 3, 2]
PLAIN = pd.DataFrame(X, columns=["a", "b", "c", "numeric"])
TABLE = PLAIN.assign(date="2020-01-01", **{"who, where": "x"})[["date", "a", "who, where", "b", "c", "numeric"]]
OUT = {"leave_out": ["date", "who, where"]}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPMDASK_CACHE", str(tmp_path / "cache"))


def right(rows: np.ndarray) -> np.ndarray:
    return np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:2] ** 2 / len(rows)


def pca(source: Any, **how: Any) -> npmdask.Solution:
    return npmdask.top_k(source, 2, kind="samples", center=True, **how)


# Choices


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["a", "b"], "?only=a,b"),
        ("numeric", "?only=numeric"),
        (["numeric"], "?only=%6Eumeric"),
        ({"leave_out": ["x,y", "50 %", "a/b?*"]}, "?leave_out=x%2Cy,50 %25,a%2Fb%3F%2A"),
        ({"only": "numeric", "leave_out": ["id"]}, "?only=numeric&leave_out=id"),
        ({"leave_out": [""]}, "?leave_out="),
    ],
)
def test_a_choice_is_part_of_an_address_and_comes_back(columns: Any, said: str) -> None:
    assert at("d/x.csv", columns) == f"d/x.csv{said}"
    place, choice = addressed(f"d/x.csv{said}")
    assert place == "d/x.csv" and choice == addressed("x.csv", columns)[1]


@needs("containers")
@pytest.mark.parametrize("columns", ["a", [], [1], {"without": ["a"]}, {"leave_out": "a"}, 3])
def test_what_is_no_choice_is_refused(columns: Any) -> None:
    with pytest.raises(BadInputError, match="give names in a list, 'numeric', or a mapping"):
        open_source(TABLE, columns=columns)


def of_anndata(table: pd.DataFrame) -> Any:
    numbers = table.select_dtypes("number")
    return anndata.AnnData(numbers.assign(date=0.0, **{"who, where": 0.0}).set_index(numbers.index.astype(str)))


CONTAINERS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda table: table,
    "Polars": pl.from_pandas,
    "PyArrow": pa.Table.from_pandas,
    "record batch": pa.RecordBatch.from_pandas,
    "dataset": lambda table: pa.dataset.dataset(pa.Table.from_pandas(table)),
    "Dask": lambda table: dd.from_pandas(table, npartitions=3),
    "AnnData": of_anndata,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONTAINERS)
def test_columns_of_what_lies_in_memory(kind: str) -> None:
    made = CONTAINERS[kind](TABLE)
    opened = open_source(made, columns=OUT)
    assert opened.labels is not None and list(opened.labels.columns[0].places) == list(PLAIN.columns)
    assert "2 columns were left out as chosen: date, who, where" in opened.notes
    np.testing.assert_allclose(pca(made, columns=OUT).values, right(X), rtol=1e-9)
    np.testing.assert_allclose(pca(made, columns=["c", "a"]).values, right(X[:, [2, 0]]), rtol=1e-9)
    with pytest.raises(BadInputError, match="has no column 'aa': did you mean 'a'"):
        open_source(made, columns=["aa"])
    if kind != "AnnData":
        np.testing.assert_allclose(pca(made, columns="numeric").values, right(X), rtol=1e-9)
        with pytest.raises(
            BadInputError, match=r"that are not real numbers \(date, who, where\): leave them out .*columns='numeric'"
        ):
            open_source(made)


@pytest.mark.slow
def test_patterns_and_datasets_are_sources(tmp_path: Path) -> None:
    for part in range(12):  # 10 comes after 9
        rows = TABLE[part * 5 : part * 5 + 5]
        rows.to_csv(tmp_path / f"part{part}.csv", index=False)
        rows.to_parquet(tmp_path / f"part{part}.parquet")
    for source in (tmp_path / "*.csv", str(tmp_path / "part*.parquet"), tmp_path):
        opened = open_source(source, "samples", columns="numeric")
        np.testing.assert_array_equal(np.concatenate(list(opened.reader.values(0))), X)
    files = pa.dataset.dataset([tmp_path / f"part{part}.parquet" for part in range(12)])
    np.testing.assert_allclose(pca(files, columns="numeric").values, right(X), rtol=1e-9)
    with pytest.raises(BadInputError, match=r"the dataset cannot be read by files .*filter"):
        open_source(files.filter(pa.dataset.field("a") > 0), columns="numeric")
    PLAIN.drop(columns="b").to_csv(tmp_path / "part3.csv", index=False)
    with pytest.raises(BadInputError, match="no column 'b'"):
        open_source(tmp_path / "*.csv", columns=["a", "b"])
    with pytest.raises(BadInputError, match=r"suffixes \.csv, \.parquet"):
        open_source(tmp_path / "part*")


@pytest.mark.slow
def test_an_index_is_names_of_rows(tmp_path: Path) -> None:
    named = PLAIN.set_index(pd.Index([f"cell {i}" for i in range(60)], name="cell"))
    named.to_parquet(tmp_path / "x.parquet")
    opened = open_source(tmp_path / "x.parquet")
    assert opened.shape == (60, 4) and opened.notes == ("columns taken for the names of rows, and not analysed: cell",)
    table = open_source(pa.Table.from_pandas(named))
    assert table.labels is not None and list(table.labels.rows[0].places[:2]) == ["cell 0", "cell 1"]
    assert table.shape == (60, 4) and table.notes == opened.notes
    dd.from_pandas(PLAIN, npartitions=2).to_parquet(tmp_path / "parts")
    assert open_source(tmp_path / "parts").shape == (60, 4)
    numbered = PLAIN.set_index(pd.Index(np.arange(60) * 3, name="id"))
    numbered.to_parquet(tmp_path / "y.parquet")
    assert open_source(tmp_path / "y.parquet", columns=["id", "a"]).shape == (60, 2)  # who names it, means it


# A first line of numbers


def asked(rows: np.ndarray) -> bool:
    text = io.StringIO()
    np.savetxt(text, rows, "%g", ",")
    lines = [line.split(",") for line in text.getvalue().splitlines()]
    try:
        assert not is_header(lines[0], "x", lines[1:65])
    except BadInputError as error:
        assert "header=True (--header) or header=False (--no-header)" in str(error)
        return True
    return False


def some(draw: Callable[[np.random.Generator, int, int], np.ndarray]) -> int:
    """How many of 200 tables are asked about."""
    rng, shapes = np.random.default_rng(1), np.random.default_rng(2).integers((2, 1), (60, 12), (200, 2))
    return sum(asked(draw(rng, int(rows), int(columns))) for rows, columns in shapes)


DATA: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "normal": lambda rng, m, d: rng.standard_normal((m, d)).round(2),
    "answers from 1 to 5": lambda rng, m, d: rng.integers(1, 6, (m, d)),
    "counts": lambda rng, m, d: rng.poisson(3, (m, d)),
    "grey values": lambda rng, m, d: rng.integers(0, 256, (m, 8 * d)),
    "arange": lambda rng, m, d: np.arange(m * d).reshape(m, d),
    "arange from 1": lambda rng, m, d: 1 + np.arange(m * d).reshape(m, d),
    "multiples": lambda rng, m, d: np.outer(np.arange(1, m + 1), np.arange(1, d + 1)),
    "sorted rows": lambda rng, m, d: np.sort(rng.standard_normal((m, d)), axis=1),
    "sums of rows": lambda rng, m, d: rng.random((m, d)).cumsum(axis=1),
    "times and values": lambda rng, m, d: np.column_stack([np.arange(m), rng.standard_normal((m, d))]),
    "walks from whole numbers": lambda rng, m, d: np.vstack(
        [at := rng.integers(-9, 9, (1, d)), at + rng.standard_normal((m, d)).cumsum(axis=0)]
    ),
    "distances": lambda rng, m, d: np.abs(np.subtract.outer(x := np.sort(rng.random(d + 2) * 50).round(1), x)),
    "identity": lambda rng, m, d: np.eye(d + 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA)
def test_headerless_data_are_not_asked_about(name: str) -> None:
    assert some(DATA[name]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("wide", [3, 4, 7, 50])
@pytest.mark.parametrize(
    "names",
    [
        lambda d: 1100 + 2 * np.arange(d),
        lambda d: 4000 - 2 * np.arange(d),
        lambda d: 400 + 0.5 * np.arange(d),
        lambda d: 2000 + np.arange(d),
        lambda d: np.arange(d),
        lambda d: 1 + np.arange(d),
        lambda d: np.random.default_rng(3).permutation(20000)[:d] + 100,
    ],
    ids=["waves", "wave numbers", "halves", "years", "from 0", "from 1", "genes"],
)
def test_names_that_are_numbers_are_asked_about(names: Callable[[int], np.ndarray], wide: int) -> None:
    rng = np.random.default_rng(wide)
    for values in (rng.random((20, wide)), 10 * rng.standard_normal((20, wide))):
        assert asked(np.vstack([names(wide), values.round(4)]))


# A column that counts


@pytest.mark.slow
def test_a_column_that_counts_or_holds_all_variance_is_named(tmp_path: Path) -> None:
    counted = PLAIN.assign(id=np.arange(60) * 10 + 7)
    said = "column 'id' counts the rows, in steps of 10: leave it out if it is their number"
    counted.to_csv(tmp_path / "x.csv", index=False)
    for source in (counted, tmp_path / "x.csv", dd.from_pandas(counted, npartitions=2)):
        warnings = pca(source).warnings
        assert said in warnings and any("column 'id' holds 99." in one for one in warnings)
    assert pca(counted, scale=True).warnings == (said,)
    assert pca(counted.assign(id=RNG.permutation(60))).warnings != pca(counted).warnings
    assert not any("counts" in one for one in pca(counted.assign(id=RNG.permutation(60))).warnings)
    assert pca(PLAIN).warnings == () and pca(X).warnings == ()


# Orientation that a format defines


def loom(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("matrix", data=X.T, chunks=(2, 16))
        file["row_attrs/Gene"] = list("abcd")
        file["col_attrs/CellID"] = [f"cell {i}" for i in range(60)]


def matlab(path: Path) -> None:
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("X", data=X.T).attrs["MATLAB_class"] = np.bytes_("double")
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512))


def of_10x(path: Path) -> None:
    cells = sp.csr_matrix(X)
    with h5py.File(path, "w") as file:
        for name in ("data", "indices", "indptr"):
            file[f"matrix/{name}"] = getattr(cells, name)
        file["matrix/shape"] = cells.shape[::-1]
        file["matrix/barcodes"] = np.array([f"cell {i}" for i in range(60)], "S")
        file["matrix/features/name"] = np.array(list("abcd"), "S")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "write"), [("x.loom", loom), ("x.mat", matlab), ("x.h5", of_10x)])
def test_rows_are_rows_in_formats_that_store_columns(name: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / name)
    opened = open_source(tmp_path / name)
    assert opened.shape == (60, 4) and any(
        "rows as columns: the array was read as 60 rows x 4" in n for n in opened.notes
    )
    if name != "x.mat":
        assert opened.labels is not None and list(opened.labels.columns[0].places) == list("abcd")
    summary = ingest(tmp_path / name, tmp_path / "x.zarr", kind="samples")
    np.testing.assert_array_equal(zarr.open(tmp_path / "x.zarr")["data"][:], X)  # type: ignore[index]
    assert summary.notes == opened.notes
    np.testing.assert_allclose(pca(tmp_path / "x.zarr").values, right(X), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of AnnData, on formats to come
def test_by_columns_and_genotypes_in_zarr_are_refused_by_name(tmp_path: Path) -> None:
    anndata.AnnData(sp.csc_matrix(X)).write_zarr(tmp_path / "x.zarr")
    with pytest.raises(BadInputError, match=r"sparse by columns \(CSC\).*npmdask ingest"):
        open_source(tmp_path / "x.zarr")
    ingest(tmp_path / "x.zarr", tmp_path / "rows.zarr", kind="samples")
    np.testing.assert_allclose(pca(tmp_path / "rows.zarr").values, right(X), rtol=1e-9)
    group = zarr.open_group(tmp_path / "vcf.zarr", mode="w")
    group.create_array(
        "call_genotype", data=RNG.integers(0, 2, (30, 8, 2)), dimension_names=["variants", "samples", "ploidy"]
    )
    group.create_array("call_genotype_phased", data=np.ones((30, 8)), dimension_names=["variants", "samples"])
    for refused in (
        lambda: open_source(tmp_path / "vcf.zarr"),
        lambda: open_source(tmp_path / "vcf.zarr", dim="variants"),
        lambda: open_source(tmp_path / "vcf.zarr/call_genotype", dim="variants"),
        lambda: ingest(tmp_path / "vcf.zarr", tmp_path / "out.zarr"),
    ):
        with pytest.raises(BadInputError, match=r"genotypes \(VCF Zarr\), whose alleles are no columns"):
            refused()


def test_no_name_at_all_is_no_choice_of_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    PLAIN.to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(BadInputError, match="give names in a list"):
        pca(tmp_path / "x.csv", columns=[])
    assert main(["run", str(tmp_path / "x.csv"), "-k", "1", "--store", str(tmp_path / "run"), "--only", ""]) == 2
    assert "give names in a list" in capsys.readouterr().err
    assert main(["ingest", str(tmp_path / "x.csv"), str(tmp_path / "x.zarr"), "--only", "a,b", "--quiet"]) == 0
