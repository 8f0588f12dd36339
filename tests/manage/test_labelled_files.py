"""Answers in files of other tools: the same numbers, with the names that columns had where they came from."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr

import npmdask
from npmdask.cli.main import main
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, CommitError
from npmdask.formats.ingest import ingest
from npmdask.manage.report import export
from tests.core.runs.test_solution_outputs import rows

GENES = [f"gene,{i}" for i in range(24)]  # a comma is quoted
X = np.random.default_rng(5).standard_normal((300, 24)) * np.arange(24, 0, -1)


def grid() -> xr.DataArray:
    coords = {"lat": [10.0, 20.0, 30.0, 40.0], "day": pd.date_range("2020-01-01", periods=6)}
    return xr.DataArray(X.reshape(300, 4, 6), dims=("time", "lat", "day"), coords=coords)


@pytest.mark.slow
def test_a_table_by_name(tmp_path: Path) -> None:
    solution = npmdask.top_k(pd.DataFrame(X, columns=GENES), 3, store=tmp_path / "run")
    names = export(tmp_path / "run", tmp_path / "x.csv")
    assert (
        names
        == ["column", "component1", "component2", "component3"]
        == export(tmp_path / "run", tmp_path / "x.parquet")
    )
    for found in (
        pd.read_csv(tmp_path / "x.csv", float_precision="round_trip"),
        pd.read_parquet(tmp_path / "x.parquet"),
    ):
        assert found["column"].tolist() == GENES
        np.testing.assert_array_equal(found[names[1:]].to_numpy(), solution.basis)


@pytest.mark.slow
def test_a_grid(tmp_path: Path) -> None:
    solution = npmdask.top_k(grid(), 2, dim="time", center=True, store=tmp_path / "run")
    for name in ("x.nc", "x.csv", "x.parquet", "x.npz"):
        export(tmp_path / "run", tmp_path / name)
    with xr.open_dataset(tmp_path / "x.nc") as found:
        np.testing.assert_array_equal(found.components.values, solution.to_xarray().components.values)
        assert found.components.dims == ("mode", "lat", "day")
        np.testing.assert_array_equal(found.day.values, grid().day.values)
    table = pd.read_csv(tmp_path / "x.csv", parse_dates=["day"]).set_index(["lat", "day"])
    assert table.loc[(20.0, pd.Timestamp("2020-01-03")), "component2"] == pytest.approx(solution.basis[8, 1], rel=1e-15)
    assert pd.read_parquet(tmp_path / "x.parquet").loc[8, "lat"] == 20.0
    with np.load(tmp_path / "x.npz") as held:
        np.testing.assert_array_equal(held["columns.day"], grid().day.values)
        assert held["rows.time"].tolist() == list(range(300)) and held["left_basis"].shape == (300, 2)


@pytest.mark.slow
def test_netcdf_says_what_its_numbers_are(tmp_path: Path) -> None:
    """As xeofs and CF have it: one name of the dimension, shares, units, and what was done to the data."""
    solution = npmdask.top_k(grid(), 2, dim="time", center=True, kind="samples", store=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "x.nc")
    with xr.open_dataset(tmp_path / "x.nc") as found:
        assert set(found.dims) == {"mode", "lat", "day"} and found.mode.values.tolist() == [1, 2]
        np.testing.assert_allclose(found.explained_variance_ratio, solution.explained_variance_ratio)
        np.testing.assert_allclose(found.explained_variance, solution.explained_variance)
        assert found.attrs["explained_share_of_the_variance"] == solution.explained_share
        assert found.attrs["columns"] == "centred, not scaled, not weighted" and found.attrs["rows"] == 300
        assert found.attrs["Conventions"].startswith("CF-")
        assert all("long_name" in variable.attrs for variable in found.data_vars.values())
        assert found.explained_variance_ratio.units == "1"
        assert "n in the denominator" in found["values"].long_name
        assert found.lat.attrs == {"standard_name": "latitude", "units": "degrees_north"}
        in_memory = solution.to_xarray()
        assert in_memory.attrs["columns"] == found.attrs["columns"]
        assert in_memory["values"].attrs == found["values"].attrs


@pytest.mark.slow
def test_a_grid_without_land(tmp_path: Path) -> None:
    """Columns that were left out are NaN in their places."""
    field = grid().where(grid().lat != 30.0)
    how = {"dim": "time", "center": True, "missing": "drop-columns"}
    solution = npmdask.top_k(field, 2, store=tmp_path / "run", **how)  # type: ignore[arg-type]
    assert solution.basis.shape == (18, 2)
    export(tmp_path / "run", tmp_path / "x.nc")
    with xr.open_dataset(tmp_path / "x.nc") as found:
        assert found.components.dims == ("mode", "lat", "day") and found.lat.values.tolist() == [10, 20, 30, 40]
        land = np.isnan(found.components.values)
        assert land[:, 2].all() and land.sum() == 12
        np.testing.assert_array_equal(found.components.values[~land].reshape(2, 18), solution.basis.T)


@pytest.mark.slow
def test_a_grid_is_no_list_of_genes(tmp_path: Path) -> None:
    npmdask.top_k(grid(), 2, dim="time", store=tmp_path / "run")
    with pytest.raises(BadInputError, match=r"has names of genes, not a grid: export it as \.nc"):
        export(tmp_path / "run", tmp_path / "x.h5ad")


@pytest.mark.slow
def test_genes(tmp_path: Path) -> None:
    given = anndata.AnnData(sp.csr_matrix(np.abs(X).round()))
    given.var_names = GENES
    solution = npmdask.top_k(given, 2, store=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "x.h5ad")
    found = anndata.read_h5ad(tmp_path / "x.h5ad")
    assert found.var_names.tolist() == GENES
    np.testing.assert_array_equal(found.varm["PCs"], solution.basis)
    np.testing.assert_array_equal(found.uns["pca"]["values"], solution.values)
    assert not found.uns["pca"].keys() & {"explained_variance"}, "of data that were not centred"


def test_columns_without_names_are_numbered(tmp_path: Path) -> None:
    npmdask.top_k(X, 2, store=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "x.csv")
    assert pd.read_csv(tmp_path / "x.csv")["column"].tolist() == list(range(24))


def _csv(folder: Path) -> Path:
    pd.DataFrame(X, columns=GENES).to_csv(folder / "x.csv", index=False)
    return folder / "x.csv"


def _parquet(folder: Path) -> Path:
    pd.DataFrame(X, columns=GENES).to_parquet(folder / "x.parquet", index=False)
    return folder / "x.parquet"


def _annotated(folder: Path, name: str) -> Path:
    given = anndata.AnnData(np.abs(X).round() if "dense" in name else sp.csr_matrix(np.abs(X).round()))
    given.var_names = GENES
    with anndata.settings.override(allow_write_nullable_strings=True):
        (given.write_zarr if name.endswith("zarr") else given.write_h5ad)(folder / name)
    return folder / name


FILES: dict[str, Any] = {
    "CSV": _csv,
    "Parquet": _parquet,
    "h5ad": lambda folder: _annotated(folder, "x.h5ad"),
    "h5ad, dense": lambda folder: _annotated(folder, "dense.h5ad"),
    "AnnData in Zarr": lambda folder: _annotated(folder, "x.zarr"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Writing zarr v2")
@pytest.mark.parametrize("name", FILES)
def test_names_come_with_what_is_ingested(name: str, tmp_path: Path) -> None:
    source = FILES[name](tmp_path)
    ingest(source, tmp_path / "first.zarr")
    ingest(tmp_path / "first.zarr", tmp_path / "second.zarr")  # a copy has them, too
    for store in ("first.zarr", "second.zarr"):
        labels = open_source(tmp_path / store).labels
        assert labels is not None and labels.columns[0].values.tolist() == GENES  # type: ignore[union-attr]
    solution = npmdask.top_k(tmp_path / "second.zarr", 2, store=tmp_path / "run")
    assert solution.labels.columns[0].values.tolist() == GENES  # type: ignore[union-attr]


def test_a_table_without_a_header_has_no_names(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "x.csv", X, delimiter=",")
    ingest(tmp_path / "x.csv", tmp_path / "x.zarr")
    assert open_source(tmp_path / "x.zarr").labels is None
    assert "labels" not in zarr.open_group(tmp_path / "x.zarr", mode="r")


def test_names_that_are_damaged_are_noticed(tmp_path: Path) -> None:
    ingest(_csv(tmp_path), tmp_path / "x.zarr")
    chunk = next(p for p in (tmp_path / "x.zarr" / "labels").rglob("*") if p.is_file() and p.name != "zarr.json")
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(BadInputError, match=r"labels of .* is damaged or incomplete; ingest the source again"):
        open_source(tmp_path / "x.zarr")


@pytest.mark.slow
def test_what_has_no_components_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = np.random.default_rng(0).poisson(1.0, (200, 12))
    npmdask.Topics(2, store=tmp_path / "topics").fit(sp.csr_matrix(counts))
    assert main(["export", str(tmp_path / "topics"), str(tmp_path / "x.csv")]) == 2
    assert "has no components: export it as .npz" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["topics"]
    npmdask.top_k(X, 2, store=tmp_path / "run")
    with pytest.raises(CommitError, match=r"cannot write .*; the run itself is intact"):
        export(tmp_path / "run", "/proc/x.csv")


@pytest.mark.slow
def test_a_full_disk_leaves_no_part_of_an_export(tmp_path: Path) -> None:
    """Fails where an archive whose end cannot be written either stays, and its error hides the sentence."""
    npmdask.top_k(X, 8, store=tmp_path / "run")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(CommitError, match=r"cannot write .*; the run itself is intact"):
            export(tmp_path / "run", tmp_path / "x.npz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert "left_basis" in export(tmp_path / "run", tmp_path / "x.npz")


def test_an_export_goes_to_a_file_of_a_format_that_its_ending_names(tmp_path: Path) -> None:
    """``answer.xlsx`` was an archive of NumPy, and a folder that was not there an error of the system."""
    npmdask.top_k(X, 2, store=tmp_path / "run")
    for name in ("answer.xlsx", "answer.npy", "answer.txt"):
        with pytest.raises(BadInputError, match=r"written as \.npz .*give a name that ends so"):
            export(tmp_path / "run", tmp_path / name)
    with pytest.raises(BadInputError, match="is not a folder, so nothing can be exported to it; create it first"):
        export(tmp_path / "run", tmp_path / "none" / "answer.npz")
    with pytest.raises(BadInputError, match="is a folder: give the name of a file"):
        export(tmp_path / "run", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


@pytest.mark.parametrize("name", ["values", "mean", "mode", "components", "component1"])
def test_a_dimension_may_have_any_name(name: str, tmp_path: Path) -> None:
    table = pd.DataFrame(rows(), columns=pd.Index(GENES, name=name))
    found = npmdask.top_k(table, 2, center=True, kind="samples", store=tmp_path / "run")
    dataset = found.to_xarray()
    (dim,) = set(dataset.components.dims) - {"mode"}
    assert dataset[dim].values.tolist() == GENES and dataset["values"].shape == (2,)
    export(tmp_path / "run", tmp_path / "x.csv")
    written = pd.read_csv(tmp_path / "x.csv")
    assert written.iloc[:, 0].tolist() == GENES and written.shape == (24, 3)
    np.testing.assert_allclose(written["component1"], found.basis[:, 0])
