"""NetCDF files and Zarr groups of more than two dimensions, by path and ``dim``: as the array that xarray gives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import npmdask
from npmdask.cli.main import main
from npmdask.errors import BadInputError, RefusedError
from tests.conftest import often, same_bytes

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")


def field(n: int = 600, scale: float = 1.0) -> xr.DataArray:
    values = scale * np.random.default_rng(4).standard_normal((n, 12)) @ np.diag(np.arange(12, 0, -1.0))
    coords = {"time": pd.date_range("2001-01-01", periods=n), "lat": [-30.0, 0.0, 30.0]}
    return xr.DataArray(values.reshape(n, 3, 4), dims=("time", "lat", "lon"), coords=coords, name="t")


def packed(path: Path) -> Path:
    """As centres of weather write them: whole numbers with a factor."""
    encoding = {"t": {"dtype": "int16", "scale_factor": 0.01, "add_offset": 5.0, "_FillValue": -32768}}
    if path.suffix == ".nc":
        field().to_netcdf(path, engine="scipy", encoding=encoding)
    else:
        field().to_zarr(path, encoding={"t": {**encoding["t"], "chunks": (50, 3, 4)}})
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.nc", "x.zarr"])
def test_the_answer_is_that_of_the_array(name: str, tmp_path: Path) -> None:
    path = packed(tmp_path / name)
    with xr.open_dataset(path, engine="scipy" if name == "x.nc" else "zarr") as opened:
        truth = npmdask.top_k(opened["t"].load(), 3, dim="time", kind="samples", center=True)
    found = npmdask.top_k(path, 3, dim="time", kind="samples", center=True, store=tmp_path / "run")
    np.testing.assert_allclose(found.values, truth.values, rtol=1e-12)
    assert [axis.name for axis in found.labels.columns] == ["lat", "lon"]
    np.testing.assert_array_equal(found.labels.rows[0].values, field().time.values)  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        found.basis, npmdask.top_k(path / "t", 3, dim="time", center=True, kind="samples").basis
    )
    assert npmdask.resume(tmp_path / "run").data_passes == 0
    np.testing.assert_allclose(
        np.abs(found.scores(path, dim="time")).sum(), np.abs(truth.scores(field(), dim="time")).sum(), rtol=1e-3
    )


def later(path: Path, **changes: Any) -> Path:
    """The next file: other days, the same grid."""
    following = field(40, scale=2.0).assign_coords(time=pd.date_range("2003-01-01", periods=40))
    following = following.isel(**changes).transpose("time", ...)
    return _written(following, path)


def _written(array: xr.DataArray, path: Path) -> Path:
    array.to_netcdf(path, engine="scipy") if path.suffix == ".nc" else array.to_zarr(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.nc", "x.zarr"])
def test_the_next_file_is_scored_along_the_dimension_of_the_run(name: str, tmp_path: Path) -> None:
    run, (stem, suffix) = tmp_path / "run", name.split(".")
    path, following = _written(field(), tmp_path / name), later(tmp_path / f"{stem}2.{suffix}")
    asked = ["-k", "3", "--dim", "time", "--center", "--store", str(run), "--quiet"]
    assert main(["run", str(path), *asked]) == 0
    assert main(["transform", str(run), str(following), str(tmp_path / "one.zarr")]) == 0
    assert main(["transform", str(run), str(following / "t"), str(tmp_path / "two.zarr"), "--dim", "time"]) == 0
    rows = field(40, scale=2.0).values.reshape(40, -1)
    solution = npmdask.resume(run)
    for made in ("one.zarr", "two.zarr"):
        scores = zarr.open_group(tmp_path / made, mode="r")["data"][...]  # type: ignore[index]
        np.testing.assert_allclose(scores, solution.scores(rows), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_another_grid_of_as_many_cells_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cells in another order are put in order; rounded coordinates are the same places."""
    run = tmp_path / "run"
    asked = ["-k", "3", "--dim", "time", "--center", "--store", str(run), "--quiet"]
    assert main(["run", str(_written(field(), tmp_path / "x.nc")), *asked]) == 0
    moved = _written(field(40).assign_coords(lat=[-29.0, 1.0, 31.0]), tmp_path / "moved.nc")
    assert main(["transform", str(run), str(moved), str(tmp_path / "s.zarr")]) == 2
    assert "has no lat -30.0, which the run has; it has -29.0 instead" in " ".join(capsys.readouterr().err.split())
    turned = _written(field(40).rename(lat="level"), tmp_path / "turned.nc")
    assert main(["transform", str(run), str(turned), str(tmp_path / "s.zarr")]) == 2
    assert "has the dimensions (level, lon), and one of the run has (lat, lon)" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not (tmp_path / "s.zarr").exists()
    near = field(40).assign_coords(lat=np.array([-30.0, 0.0, 30.0]) + 1e-5)
    assert main(["transform", str(run), str(_written(near, tmp_path / "near.nc")), str(tmp_path / "s.zarr")]) == 0


KILLED = """
import os, signal, sys, npmdask
from npmdask.core.runs.observers import Observer
class Die(Observer):
    def on_step(self, step):
        if step.number == 2: os.kill(os.getpid(), signal.SIGKILL)
asked = dict(dim="time", kind="samples", algorithm="power", iteration_rank=3, tol=1e-10)
npmdask.top_k(sys.argv[1], 3, **asked, store=sys.argv[2], observer=Die())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", often(["x.nc", "x.zarr"], 0))
def test_a_killed_run_is_resumed_from_its_store_alone(name: str, tmp_path: Path) -> None:
    path = packed(tmp_path / name)
    asked = {"dim": "time", "kind": "samples", "algorithm": "power", "iteration_rank": 3, "tol": 1e-10}
    npmdask.top_k(path, 3, **asked, store=tmp_path / "whole")  # type: ignore[arg-type]
    done = subprocess.run([sys.executable, "-c", KILLED, path, tmp_path / "run"], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    same_bytes(tmp_path / "whole", tmp_path / "run", ("steps", "result", "labels"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.nc", "x.zarr"])
def test_a_file_that_changed_is_refused(name: str, tmp_path: Path) -> None:
    path = packed(tmp_path / name)
    npmdask.top_k(path, 3, dim="time", max_steps=1, tol=1e-14, store=tmp_path / "run")
    with xr.open_dataset(path, engine="scipy" if name == "x.nc" else "zarr") as opened:
        changed = opened.load()
    changed["t"][500:] *= 2  # not in the first block
    if name == "x.nc":
        changed.to_netcdf(path, engine="scipy")
    else:
        changed.to_zarr(path, mode="w")
    with pytest.raises(RefusedError, match=r"data\.fingerprint"):
        npmdask.resume(tmp_path / "run", max_steps=20)


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    path, store = packed(tmp_path / "x.nc"), tmp_path / "run"
    assert main(["run", str(path), "-k", "2", "--dim", "time", "--center", "--store", str(store), "--quiet"]) == 0
    assert main(["export", str(store), str(tmp_path / "eof.nc")]) == 0
    with xr.open_dataset(tmp_path / "eof.nc", engine="scipy") as found:
        assert found.components.dims == ("mode", "lat", "lon")
    (tmp_path / "x.toml").write_text(
        '[source]\npath = "x.nc"\ndim = "time"\ncenter = true\n[algorithm]\ntarget_rank = 2\n[run]\nstore = "again"\n'
    )
    assert main(["run", str(tmp_path / "x.toml"), "--quiet"]) == 0
    same_bytes(store, tmp_path / "again", ("result", "labels"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.nc", "x.zarr"])
def test_a_report_of_an_array_given_by_its_path_draws_maps(name: str, tmp_path: Path) -> None:
    """Mutant: the coordinates of a grid that is opened by its path are not kept with the run."""
    grid = field().assign_coords(lon=[0.0, 90.0, 180.0, 270.0])
    grid.to_netcdf(tmp_path / name, engine="scipy") if name == "x.nc" else grid.to_zarr(tmp_path / name)
    store, page = str(tmp_path / "run"), tmp_path / "r.json"
    assert main(["run", str(tmp_path / name / "t"), "-k", "2", "--dim", "time", "--store", store, "--quiet"]) == 0
    assert main(["report", store, "-o", str(page)]) == 0
    assert "Components as maps" in page.read_text() and "270.0" in page.read_text()


@pytest.mark.parametrize("name", ["x.nc", "x.h5"])
def test_a_grid_without_dim_is_told_of_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    if name == "x.nc":
        field().to_netcdf(path, engine="scipy")
    else:
        with h5py.File(path, "w") as file:
            file["t"] = field().values
    for given in (path, path / "t"):
        assert main(["run", str(given), "-k", "2", "--store", str(tmp_path / "run"), "--quiet"]) == 2
        assert "--dim time" in capsys.readouterr().err


@pytest.mark.slow
def test_what_cannot_be_opened_says_so(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.nc")
    two = xr.Dataset({"t": field(), "u": field() * 2})
    two.to_zarr(tmp_path / "two.zarr")
    (tmp_path / "x.txt").write_text("no grid")
    for given, dim, said in (
        (path, "day", "0 variables along 'day'"),
        (tmp_path / "two.zarr", "time", r"2 variables along 'time' \(t, u\): .*of a file as FILE/NAME"),
        (tmp_path / "nothing.nc", "time", "there is no file and no Zarr group at"),
        (tmp_path / "x.txt", "time", r"xarray cannot open .*x\.txt"),
        (path / "v", "time", r"xarray cannot open .*KeyError"),
        ("s3://bucket/x.zarr", "time", "dim = 'time' applies only to arrays in memory"),
    ):
        with pytest.raises(BadInputError, match=said):
            npmdask.top_k(given, 2, dim=dim)
    gaps = field()
    gaps[300, 1, 2] = np.nan
    gaps.to_netcdf(tmp_path / "gaps.nc", engine="scipy")
    with pytest.raises(BadInputError, match="holds nan at row 300, column 6"):
        npmdask.top_k(tmp_path / "gaps.nc", 2, dim="time")


@pytest.mark.slow
def test_a_file_that_changes_between_passes_is_named(tmp_path: Path) -> None:
    """Its checksums are those of the first pass."""
    path = packed(tmp_path / "x.zarr")
    from npmdask.core.runs.observers import Observer
    from npmdask.core.runs.solution import Step

    class Change(Observer):
        def on_step(self, step: Step) -> None:
            if step.number == 1:
                chunk = path / "t" / "c" / "3" / "0" / "0"
                data = (path / "t" / "c" / "4" / "0" / "0").read_bytes()
                os.unlink(chunk)
                chunk.write_bytes(data)

    with pytest.raises(BadInputError, match="row"):
        npmdask.top_k(
            path, 3, dim="time", algorithm="power", iteration_rank=3, tol=1e-14, max_steps=6, observer=Change()
        )
