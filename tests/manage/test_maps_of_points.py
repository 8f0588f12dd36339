"""Maps of columns that are places in any order: a stacked grid, a mesh, stations; with and without ``dim``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

import npmdask
from npmdask.core.storage.labels import Labels, axis_of
from npmdask.formats.ingest import ingest
from npmdask.manage.data_report import Drawing
from npmdask.manage.report import report_of
from npmdask.report import Report

ROWS = 50


def maps(report: Report) -> list[Any]:
    return [block for one in report.sections if one.title == "Components as maps" for block in one.blocks]


def field(lat: np.ndarray, lon: np.ndarray, names: tuple[str, str] = ("lat", "lon"), **attrs: str) -> xr.DataArray:
    """Rows over places; the second dimension is of ``cell``."""
    values = np.random.default_rng(0).standard_normal((ROWS, len(lat)))
    coords: Any = {
        names[0]: ("cell", lat, {"units": "degrees_north"}),
        names[1]: ("cell", lon, {"units": "degree_east"}),
    }
    return xr.DataArray(values, dims=("time", "cell"), coords=coords, name="t", attrs=attrs)


def netcdf(data: xr.DataArray, file: Path) -> None:
    """Write it as NetCDF 4 does: dimensions are scales, and coordinates lie beside the variable."""
    with h5py.File(file, "w") as made:
        for name, size in data.sizes.items():
            made.create_dataset(str(name), data=np.arange(size, dtype=np.float32)).make_scale(str(name))
        arrays = {str(data.name): data} | {str(name): one for name, one in data.coords.items()}
        for name, one in arrays.items():
            node = made.create_dataset(name, data=one.values)
            node.attrs.update(one.attrs)
            for number, dim in enumerate(one.dims):
                node.dims[number].attach_scale(made[str(dim)])


def stacked() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A grid of 4 x 5 without its land, in an order of its own: latitudes, longitudes, and the places in the grid."""
    sea = np.random.default_rng(1).permutation(np.setdiff1d(np.arange(20), [3, 7, 8]))
    lines = np.array([-30.0, -10.0, 10.0, 30.0]), np.array([0.0, 90.0, 180.0, 270.0, 300.0])
    return lines[0][sea // 5], lines[1][sea % 5], sea


@pytest.mark.slow
@pytest.mark.parametrize("how", ["netcdf", "ingested", "names of my own", "array", "dropped", "with dim"])
def test_a_stacked_grid_is_drawn_on_its_grid(how: str, tmp_path: Path) -> None:
    """Mutants: latitudes for longitudes; the order of the file for that of the grid; columns that were left out."""
    lat, lon, sea = stacked()
    names = ("phi", "lambda") if how == "names of my own" else ("lat", "lon")
    data, kept, more = field(lat, lon, names), np.arange(len(sea)), {}
    if how == "dropped":
        data[:, 4] = np.nan
        kept, more = np.delete(kept, 4), {"missing": "drop-columns"}
    netcdf(data, tmp_path / "x.nc")
    given: Any = tmp_path / "x.nc"
    if how == "ingested":
        ingest(given, tmp_path / "x.zarr")
        given = tmp_path / "x.zarr"
    elif how == "array":
        given = data
    elif how == "with dim":
        more = {"dim": "time"}
        data.to_netcdf(given := tmp_path / "classic.nc", engine="scipy")
    found = npmdask.top_k(given, 2, kind="samples", center=True, store=tmp_path / "run", **more)
    said, first, second = maps(report_of(tmp_path / "run"))
    assert first.y == (-30.0, -10.0, 10.0, 30.0) and first.x == (0.0, 90.0, 180.0, 270.0, 300.0)
    assert (first.x_name, first.y_name) == (names[1], names[0]) and "Grey: left out" in said.text
    shown = np.array(second.values, float).ravel()
    np.testing.assert_allclose(shown[sea[kept]], found.basis[:, 1], atol=1e-3)
    assert np.isnan(np.delete(shown, sea[kept])).all()


@pytest.mark.slow
def test_a_mesh_shows_the_nearest_point(tmp_path: Path) -> None:
    """Mutants: a radius that leaves holes, or fills the sea between stations; another point than the nearest."""
    rng = np.random.default_rng(2)
    steps = np.stack(np.meshgrid(np.arange(30), np.arange(40), indexing="ij"), -1).reshape(-1, 2)
    lat, lon = (2.0 * (steps + rng.uniform(-0.3, 0.3, steps.shape))).T
    netcdf(field(lat, lon), tmp_path / "x.nc")
    found = npmdask.top_k(tmp_path / "x.nc", 1, kind="samples", center=True, store=tmp_path / "run")
    said, drawn = maps(report_of(tmp_path / "run"))
    assert "nearest of 1,200 points" in said.text
    values = np.array(drawn.values, float)
    assert values.size <= 10_000 and np.isfinite(values).mean() > 0.97
    for i, j in rng.integers(0, min(values.shape), (40, 2)):
        nearest = np.argmin((lat - drawn.y[i]) ** 2 + (lon - drawn.x[j]) ** 2)
        assert np.isnan(values[i, j]) or values[i, j] == pytest.approx(found.basis[nearest, 0], abs=1e-3)
    few = Labels(points=(axis_of("lat", 60 * rng.random(9)), axis_of("lon", 90 * rng.random(9))))
    cells = Drawing.of(few, 9, None).cells
    assert set(cells) == {-1, *range(9)} and 0.5 < (cells < 0).mean() < 0.99


@pytest.mark.slow
def test_columns_without_both_coordinates_stay_a_list(tmp_path: Path) -> None:
    """Fails when half a place is taken for one, or coordinates of the rows for those of the columns."""
    square = xr.DataArray(
        np.random.default_rng(0).standard_normal((20, 20)),
        dims=("cell", "level"),
        coords={"lat": ("cell", np.arange(20.0)), "lon": ("cell", np.arange(20.0) ** 2)},
        name="t",
    )
    lat, lon, _ = stacked()
    for name, data in (("square", square), ("half", field(lat, lon).drop_vars("lon"))):
        netcdf(data, tmp_path / f"{name}.nc")
        npmdask.top_k(tmp_path / f"{name}.nc", 1, kind="samples", center=True, store=tmp_path / name)
        assert not maps(report_of(tmp_path / name))
