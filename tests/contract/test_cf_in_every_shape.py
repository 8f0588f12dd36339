"""What CF says of an array holds in every shape and through every door: fills, limits, dates, bounds, units, names."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from scipy.io import netcdf_file

import npmdask
from npmdask.cli.main import main
from npmdask.core.storage.conventions import DEFAULT_FILLS
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.xarray import EOF
from tests.conftest import often

N, DIMS, SIZES = 30, ("time", "lat", "lon"), (30, 3, 4)
ASKED: dict[str, Any] = {"kind": "samples", "center": True}


def numbers(dtype: str = "f8") -> np.ndarray:
    return np.random.default_rng(11).integers(1, 90, SIZES).astype(dtype)


def truth(x: np.ndarray) -> np.ndarray:
    flat = x.reshape(len(x), -1).astype(float)
    return np.linalg.svd(flat - flat.mean(0), compute_uv=False)[:2] ** 2 / (len(flat) - 1)


def with_gaps(x: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """The answer of the same numbers in memory, NaN where they are missing."""
    held = np.where(gaps, np.nan, x).reshape(N, -1)
    return np.asarray(npmdask.top_k(held, 2, missing="mean", **ASKED).explained_variance)


def classic(path: Path, values: np.ndarray, **attributes: Any) -> Path:
    with netcdf_file(path, "w") as file:
        for name, size in zip(DIMS, SIZES, strict=True):
            file.createDimension(name, size)
        variable = file.createVariable("tas", values.dtype, DIMS)
        variable[:] = values
        for name, value in attributes.items():
            setattr(variable, name, value)
    return path


def lazily(path: Path) -> Any:
    return xr.open_dataset(path, engine="scipy")["tas"]


FIELD_DOORS: dict[str, Callable[..., np.ndarray]] = {
    "path": lambda path, **more: npmdask.top_k(path / "tas", 2, dim="time", **ASKED, **more).explained_variance,
    "array": lambda path, **more: npmdask.top_k(lazily(path), 2, dim="time", **ASKED, **more).explained_variance,
    "in memory": lambda path, **more: (
        npmdask.top_k(lazily(path).load(), 2, dim="time", **ASKED, **more).explained_variance
    ),
    "chunks": lambda path, **more: (
        npmdask.top_k(lazily(path).chunk(time=7), 2, dim="time", **ASKED, **more).explained_variance
    ),
    "EOF": lambda path, **more: EOF(n_modes=2, **more).fit(lazily(path), dim="time").explained_variance().values,
}


@pytest.mark.slow
@pytest.mark.parametrize(("door", "dtype"), often(product(FIELD_DOORS, ("i2", "i4", "f4", "f8")), 0, 5, 10, 15, 16))
def test_what_was_never_written_is_missing(door: str, dtype: str, tmp_path: Path) -> None:
    """NetCDF fills it with a number of its own, where a variable has no fill value."""
    x, gaps = numbers(dtype), np.zeros(SIZES, bool)
    gaps[12:14, :, 2] = True
    ask = FIELD_DOORS[door]
    np.testing.assert_allclose(ask(classic(tmp_path / "whole.nc", x)), truth(x), rtol=1e-5)
    path = classic(tmp_path / "x.nc", np.where(gaps, DEFAULT_FILLS[dtype], x).astype(dtype))
    with pytest.raises(BadInputError, match="missing"):
        ask(path)
    np.testing.assert_allclose(ask(path, missing="mean"), with_gaps(x, gaps), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("door", "packed"), often(product(FIELD_DOORS, (False, True)), 0, 1, 3, 4, 9))
def test_values_outside_of_the_limits_are_missing_and_all_others_are_not(
    door: str, packed: bool, tmp_path: Path
) -> None:
    """Of packed values the limits are of what is stored."""
    x = numbers("i2" if packed else "f4")
    said: dict[str, Any] = {"valid_range": np.array([1, 90], x.dtype)}
    said |= {"scale_factor": -0.5, "add_offset": 3.0, "_FillValue": np.int16(-9)} if packed else {}
    meant = x * -0.5 + 3.0 if packed else x
    ask = FIELD_DOORS[door]
    np.testing.assert_allclose(ask(classic(tmp_path / "whole.nc", x, **said)), truth(meant), rtol=1e-5)
    gaps = x > 80
    path = classic(tmp_path / "x.nc", x, **{**said, "valid_range": np.array([1, 80], x.dtype)})
    with pytest.raises(BadInputError, match="missing"):
        ask(path)
    np.testing.assert_allclose(ask(path, missing="mean"), with_gaps(meant, gaps), rtol=1e-5)


def dated(path: Path) -> Path:
    array = zarr.create_array(path, shape=(30, 12), dtype="i8", attributes={"units": "days since 2000-01-01"})
    array[:] = np.arange(360).reshape(30, 12)
    return path


@pytest.mark.slow
def test_dates_are_no_numbers(tmp_path: Path) -> None:
    path = dated(tmp_path / "x.zarr")
    stored = np.asarray(zarr.open_array(path, mode="r")[...])
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = stored
        file["x"].attrs["units"] = "days since 2000-01-01"
    field = xr.DataArray(stored, dims=("a", "b"), attrs={"units": "days since 2000-01-01"})
    for given in (path, tmp_path / "x.h5", h5py.File(tmp_path / "x.h5")["x"], field, field.chunk()):
        with pytest.raises(BadInputError, match="holds dates"):
            npmdask.top_k(given, 1)
    days = field.assign_attrs(units="days")  # of a duration, say
    assert npmdask.top_k(days, 1).values[0] > 0


def beside(matrix: np.ndarray, cube: np.ndarray, path: Path) -> Path:
    """One matrix and one larger array, in one file or store."""
    if path.suffix == ".npz":
        np.savez(path, labels=matrix, images=cube)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["labels"], file["images"] = matrix, cube
    else:
        group = zarr.create_group(path)
        for name, values in (("labels", matrix), ("images", cube)):
            group.create_array(name, shape=values.shape, dtype=values.dtype)[...] = values
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.npz", "x.h5", "x.zarr", "dataset"])
def test_a_matrix_that_is_smaller_than_an_array_beside_it_is_asked_about(name: str, tmp_path: Path) -> None:
    matrix, cube = numbers()[:, 0], numbers()

    def given(matrix: np.ndarray, cube: np.ndarray, folder: str) -> Any:
        if name == "dataset":
            return xr.Dataset({"labels": (("n", "k"), matrix), "images": (("i", "j", "l"), cube)})
        (tmp_path / folder).mkdir()
        return beside(matrix, cube, tmp_path / folder / name)

    with pytest.raises(BadInputError, match="labels") as refused:
        npmdask.top_k(given(matrix, cube, "one"), 2, **ASKED)
    assert "images" in str(refused.value)
    found = npmdask.top_k(given(cube.reshape(N, -1), cube[:2, :2, :2], "two"), 2, **ASKED)
    np.testing.assert_allclose(found.explained_variance, truth(cube), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.zarr", "x.h5", "dataset"])
def test_bounds_are_never_the_data(name: str, tmp_path: Path) -> None:
    """Where they are the only matrix, they are asked about; beside another one, that is taken."""
    days = np.arange(float(N))
    bounds = xr.Dataset(
        {"time_bnds": (("time", "bnds"), np.stack([days, days + 1], 1))},
        coords={"time": ("time", days, {"bounds": "time_bnds"})},
    )
    both = bounds.assign(tas=(("time", "place"), numbers().reshape(N, -1)))

    def given(data: xr.Dataset, folder: str) -> Any:
        path = tmp_path / folder / name
        path.parent.mkdir()
        if name == "x.zarr":
            data.to_zarr(path, consolidated=False)
        elif name == "x.h5":
            with h5py.File(path, "w") as file:
                for key, variable in data.variables.items():
                    file[str(key)] = variable.values
                    file[str(key)].attrs.update(variable.attrs)
        return data if name == "dataset" else path

    with pytest.raises(BadInputError, match="time_bnds"):
        npmdask.top_k(given(bounds, "one"), 1, **ASKED)
    found = npmdask.top_k(given(both, "two"), 2, **ASKED)
    np.testing.assert_allclose(found.explained_variance, truth(numbers()), rtol=1e-9)


@pytest.mark.slow
def test_latitudes_in_radians_are_weighted_as_such(tmp_path: Path) -> None:
    degrees = np.array([-70.0, 0.0, 60.0])
    field = xr.DataArray(numbers(), dims=DIMS, coords={"lat": ("lat", np.deg2rad(degrees), {"units": "radian"})})
    right = truth(numbers() * np.sqrt(np.cos(np.deg2rad(degrees)))[:, None])
    found = EOF(n_modes=2, use_coslat=True).fit(field, dim="time").explained_variance().values
    np.testing.assert_allclose(found, right, rtol=1e-9)
    field.to_dataset(name="tas").to_zarr(tmp_path / "x.zarr", consolidated=False)
    for given in (field, tmp_path / "x.zarr" / "tas"):
        weighted = npmdask.top_k(given, 2, dim="time", column_weights="coslat", **ASKED)
        np.testing.assert_allclose(weighted.explained_variance, right, rtol=1e-9)


@pytest.mark.slow
def test_names_of_dimensions_of_zarr_3_are_names(tmp_path: Path) -> None:
    """Of an array that no group is around, too."""
    x, path = numbers(), tmp_path / "x.zarr"
    options: dict[str, Any] = {"shape": (3, N, 4), "dtype": "f8", "chunks": (3, 7, 2)}
    zarr.create_array(path, dimension_names=["lat", "time", "lon"], **options)[...] = x.transpose(1, 0, 2)
    found = npmdask.top_k(path, 2, dim="time", **ASKED)
    np.testing.assert_allclose(found.explained_variance, truth(x), rtol=1e-9)
    assert found.labels is not None
    assert [axis.name for axis in found.labels.columns] == ["lat", "lon"]
    asked = ["--dim", "time", "--center", "--store", str(tmp_path / "run"), "--quiet"]
    assert main(["run", str(path), "-k", "2", *asked]) == 0
    flat = zarr.create_array(tmp_path / "y.zarr", shape=(N, 12), dtype="f8", dimension_names=["cell", "gene"])
    flat[...] = x.reshape(N, -1)
    labels = open_source(tmp_path / "y.zarr").labels
    assert labels is not None
    assert (labels.rows[0].name, labels.columns[0].name) == ("cell", "gene")
    bare = zarr.create_array(tmp_path / "z.zarr", shape=(N, 12), dtype="f8")
    bare[...] = 1
    with pytest.raises(BadInputError, match="without named dimensions"):
        npmdask.top_k(tmp_path / "z.zarr", 2, dim="time")
