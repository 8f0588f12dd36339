"""Modes of gridded data: beside the packages of that community, on a real field of sea-surface temperatures."""

from __future__ import annotations

import pickle
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from eofs.standard import Eof
from sklearn.preprocessing import StandardScaler

from npmdask.errors import BadInputError, RefusedError
from npmdask.manage.kinds import PageOptions
from npmdask.manage.report import report_of
from npmdask.xarray import EOF, MCA, HilbertEOF


def sst() -> xr.DataArray:
    """November to March means of sea-surface temperatures in the central Pacific, 50 years; NaN over land."""
    path = next(p for p in Path(str(files("eofs"))).rglob("*.nc") if "sst" in p.name)
    with xr.open_dataset(path) as found:
        return found["sst"].load()


def field(n: int = 120, seed: int = 2) -> xr.DataArray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n, 30)) @ rng.standard_normal((30, 30)) + 280.0
    coords = {"time": pd.date_range("2001-01-01", periods=n), "lat": [-75.0, -40.0, 0.0, 40.0, 75.0]}
    return xr.DataArray(values.reshape(n, 5, 6), dims=("time", "lat", "lon"), coords=coords)


def agree(found: Any, wanted: np.ndarray, axis: tuple[int, ...]) -> None:
    """Up to the sign of each mode."""
    values = np.asarray(found)
    signs = np.sign(np.nansum(values * wanted, axis=axis, keepdims=True))
    np.testing.assert_allclose(values * signs, wanted, rtol=0, atol=1e-7 * np.nanmax(np.abs(wanted)), equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True])
def test_the_same_modes_as_eofs_of_a_real_field_with_land(lazy: bool) -> None:
    data = sst()
    weights = np.sqrt(np.cos(np.deg2rad(data.latitude.values.astype("f8"))).clip(0, 1))[:, None]
    oracle = Eof(np.ma.masked_invalid(data.values.astype("f8")), weights=weights)
    given = data.chunk({"time": 7, "latitude": 5, "longitude": 11}) if lazy else data
    model = EOF(5, use_coslat=True, tol=1e-11).fit(given, dim="time")
    maps = model.components()
    assert maps.dims == ("mode", "latitude", "longitude")
    np.testing.assert_array_equal(maps.latitude, data.latitude)
    agree(maps, np.ma.filled(oracle.eofs(neofs=5), np.nan), (1, 2))
    agree(model.scores(), oracle.pcs(npcs=5), (0,))
    np.testing.assert_allclose(model.explained_variance(), oracle.eigenvalues(neigs=5), rtol=1e-8)
    np.testing.assert_allclose(model.explained_variance_ratio(), oracle.varianceFraction(neigs=5), rtol=1e-8)
    np.testing.assert_array_equal(model.scores().time, data.time)
    assert np.isnan(maps.values).any() and np.isfinite(maps.values).any()


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["drop-columns", "mean"])
def test_few_times_of_many_points_take_two_passes_where_that_is_asked(missing: str) -> None:
    """With land and weights. Mutant: the word is not handed on."""
    few, many = (EOF(3, use_coslat=True, missing=missing, algorithm=name).fit(sst()) for name in ("row-gram", "krylov"))
    assert few.solution_.total_data_passes == 2 < many.solution_.total_data_passes
    agree(few.components(), many.components().values, (1, 2))
    with pytest.raises(BadInputError, match=r"row-gam.*row-gram"):
        EOF(3, algorithm="row-gam").fit(sst())


@pytest.mark.slow
def test_standardised_and_weighted_as_two_other_packages_do_it() -> None:
    """A real field, standardised by scikit-learn, then weighted and decomposed by eofs."""
    data = sst().astype("f8")
    flat = data.values.reshape(len(data), -1)
    sea = np.isfinite(flat).all(axis=0)
    standardised = np.full(flat.shape, np.nan)
    standardised[:, sea] = StandardScaler().fit_transform(flat[:, sea])
    weights = np.sqrt(np.cos(np.deg2rad(data.latitude.values.astype("f8"))).clip(0, 1))[:, None]
    oracle = Eof(np.ma.masked_invalid(standardised.reshape(data.shape)), weights=weights)
    for given in (data, data.chunk({"time": 7, "latitude": 5, "longitude": 11})):
        model = EOF(5, use_coslat=True, standardize=True, tol=1e-11).fit(given, dim="time")
        agree(model.components(), np.ma.filled(oracle.eofs(neofs=5), np.nan), (1, 2))
        agree(model.scores(), oracle.pcs(npcs=5), (0,))
        np.testing.assert_allclose(model.explained_variance(), oracle.eigenvalues(neigs=5), rtol=1e-8)
        np.testing.assert_allclose(model.explained_variance_ratio(), oracle.varianceFraction(neigs=5), rtol=1e-8)


@pytest.mark.slow
def test_the_field_with_land_straight_to_maps_beside_eofs_and_numpy() -> None:
    """17 % of the grid is land: nothing is dropped by hand, and maps differ by 1e-6 at most."""
    data = sst()
    land = np.isnan(data.values).all(axis=0)
    assert 0.15 < land.mean() < 0.2
    model = EOF(5, tol=1e-9).fit(data)
    oracle = Eof(np.ma.masked_invalid(data.values.astype("f8")))
    wanted = np.ma.filled(oracle.eofs(neofs=5), np.nan)
    maps = model.components().values
    np.testing.assert_array_equal(np.isnan(maps), np.broadcast_to(land, maps.shape))
    signs = np.sign(np.nansum(maps * wanted, axis=(1, 2), keepdims=True))
    assert np.nanmax(np.abs(maps * signs - wanted)) <= 1e-6
    found = model.solution_.missing
    assert found is not None and found.entries == np.isnan(data.values).sum()
    assert len(model.solution_.basis) == (~land).sum()


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["drop-columns", "mean"])
def test_weights_may_be_missing_over_land_only(missing: str) -> None:
    data = field()
    data[:, 4, 2] = np.nan
    weights = np.sqrt(np.cos(np.deg2rad(data.lat))) * xr.ones_like(data[0])
    wanted = EOF(3, missing=missing, tol=1e-11).fit(data, weights=weights.drop_vars("time", errors="ignore"))
    weights = weights.where(np.isfinite(data[0]))
    if missing == "mean":  # the point may have data at other times: it is not left out without a word
        with pytest.raises(BadInputError, match="column_weights: 1 of 30 are negative, missing or infinite"):
            EOF(3, missing=missing).fit(data, weights=weights)
        return
    model = EOF(3, tol=1e-11).fit(data, weights=weights)
    np.testing.assert_allclose(model.components(), wanted.components(), atol=1e-12)
    assert np.isnan(model.patterns()[:, 4, 2]).all() and np.isfinite(model.patterns()).sum() == 3 * 29
    weights[1, 1] = np.nan
    with pytest.raises(BadInputError, match="column_weights: 1 of 30 are negative, missing or infinite"):
        EOF(3).fit(data, weights=weights)


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("use_coslat", [False, True])
def test_points_with_data_at_some_times_only(lazy: bool, use_coslat: bool) -> None:
    """As filling every point with its mean over time first; land stays land."""
    data = field()
    data[:, 4, 2] = np.nan
    data[::9, 2, 3] = np.nan
    data[0, 1, 1] = np.nan
    given = data.chunk({"time": 50, "lat": 2}) if lazy else data
    with pytest.raises(BadInputError, match="has no value in the first row"):
        EOF(3, use_coslat=use_coslat, standardize=True).fit(given)
    model = EOF(3, use_coslat=use_coslat, standardize=True, missing="mean", tol=1e-11).fit(given)
    flat = data.values.reshape(120, -1)
    sea = ~np.isnan(flat).all(axis=0)
    seen = (flat[:, sea] - np.nanmean(flat[:, sea], axis=0)) / np.nanstd(flat[:, sea], axis=0)
    roots = np.sqrt(np.cos(np.deg2rad(np.repeat(data.lat.values, 6))))[sea] if use_coslat else 1.0
    left, sizes, right = np.linalg.svd(np.where(np.isnan(seen), 0.0, seen) * roots, full_matrices=False)
    np.testing.assert_allclose(model.singular_values(), sizes[:3], rtol=1e-9)
    maps = np.full((3, 30), np.nan)
    maps[:, sea] = right[:3]
    agree(model.components(), maps.reshape(3, 5, 6), (1, 2))
    agree(model.scores(), left[:, :3] * sizes[:3], (0,))
    agree(model.transform(data), left[:, :3] * sizes[:3], (0,))


def test_other_data_on_the_grid_are_scored_as_the_first() -> None:
    data = field()
    model = EOF(3, standardize=True).fit(data)
    agree(model.transform(data), model.scores().values, (0,))
    one = model.transform(data.transpose("lon", "time", "lat").isel(time=slice(4, 9)))
    np.testing.assert_allclose(one.values, model.scores().values[4:9], atol=1e-9)
    flat = data.values.reshape(120, -1)
    left, sizes, _ = np.linalg.svd((flat - flat.mean(axis=0)) / flat.std(axis=0), full_matrices=False)
    np.testing.assert_allclose(model.singular_values(), sizes[:3], rtol=1e-9)
    agree(model.scores(), left[:, :3] * sizes[:3], (0,))


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True])
def test_standardised_first_and_weighted_then(lazy: bool) -> None:
    """The other way round the deviations would take the weights out again."""
    data = field() * np.geomspace(1e-3, 1e3, 30).reshape(5, 6)  # in units as different as those of rain and pressure
    data[:, 1, 1] = 7.0  # constant: its deviation is 0, or rounding
    data[:, 4, 2] = np.nan  # land
    given = data.chunk({"time": 50, "lat": 2}) if lazy else data
    model = EOF(3, use_coslat=True, standardize=True, tol=1e-11).fit(given, dim="time")
    flat = data.values.reshape(120, -1) - data.values.reshape(120, -1).mean(axis=0)
    deviations = np.where(np.arange(30) == 7, 1.0, flat.std(axis=0))
    roots = np.sqrt(np.cos(np.deg2rad(np.repeat(data.lat.values, 6))))
    sea = np.arange(30) != 26
    left, sizes, right = np.linalg.svd((flat / deviations * roots)[:, sea], full_matrices=False)
    np.testing.assert_allclose(model.singular_values(), sizes[:3], rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio(), sizes[:3] ** 2 / (sizes**2).sum(), rtol=1e-9)
    maps = np.full((3, 30), np.nan)
    maps[:, sea] = right[:3]
    agree(model.components(), maps.reshape(3, 5, 6), (1, 2))
    agree(model.scores(), left[:, :3] * sizes[:3], (0,))
    later = data.isel(time=slice(30, 60))  # by the deviations of the first data, not by its own
    np.testing.assert_allclose(model.transform(later), model.scores()[30:60], atol=1e-8)
    one = EOF(3, use_coslat=True, tol=1e-11).fit(given)
    assert not np.allclose(one.explained_variance_ratio(), model.explained_variance_ratio(), rtol=0.1)


@pytest.mark.slow
def test_both_find_values_that_are_missing_once() -> None:
    for when, said in ((7, "column 15 of .*lacks 1 of"), (0, "column 15 .*has no value in the first row")):
        data = field()
        data[when, 2, 3] = np.nan
        for given in (data, data.chunk({"time": 50, "lat": 2})):
            with pytest.raises(BadInputError, match=said):
                EOF(2, use_coslat=True, standardize=True).fit(given)


@pytest.mark.slow
def test_a_file_that_is_opened_is_not_loaded(tmp_path: Path) -> None:
    field().to_netcdf(tmp_path / "x.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "x.nc", engine="scipy") as opened:
        array = next(iter(opened.data_vars.values()))
        model = EOF(2, use_coslat=True).fit(array)
        assert not array.variable._in_memory
    np.testing.assert_allclose(
        model.singular_values(), EOF(2, use_coslat=True).fit(field()).singular_values(), rtol=1e-9
    )


@pytest.mark.slow
def test_a_store_answers_again_and_knows_other_data(tmp_path: Path) -> None:
    first = EOF(2, store=tmp_path / "run").fit(field())
    again = EOF(2, store=tmp_path / "run").fit(field())
    assert again.solution_.data_passes == 0
    np.testing.assert_array_equal(first.components(), again.components())
    assert [axis.name for axis in first.solution_.labels.columns] == ["lat", "lon"]
    with pytest.raises(RefusedError, match="belongs to another run"):
        EOF(2, store=tmp_path / "run").fit(field(seed=3))


@pytest.mark.slow
def test_a_value_that_is_missing_once_is_refused() -> None:
    """Land is missing always: taking it for land would drop a grid point that has data."""
    data = field()
    data[7, 2, 3] = np.nan
    with pytest.raises(BadInputError, match=r"column 15 of .*lacks 1 of the 120"):
        EOF(2).fit(data)
    data[:, 2, 3] = np.nan
    assert EOF(2).fit(data).components().isnull().sum() == 2
    for when in (7, 119):  # missing at first, it has a value later: in the first block, and in the last
        gappy = data.copy()
        gappy[when, 2, 3] = 280.0
        for given in (gappy, gappy.chunk({"time": 50, "lat": 2})):
            with pytest.raises(
                BadInputError, match=f"column 15 of .* has no value in the first row but has one in row {when}"
            ):
                EOF(2).fit(given)
    model = EOF(2).fit(field())
    with pytest.raises(BadInputError, match=r"holds nan at row|not finite"):
        model.transform(data)


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        (lambda: EOF(2).fit(field().values), "a DataArray of xarray is needed, not a ndarray"),
        (lambda: EOF(2).fit("sst"), "give one, as ds"),
        (lambda: EOF(2).fit(field(), dim="day"), "the DataArray has time, lat, lon"),
        (lambda: EOF(2, use_coslat=True).fit(field().rename(lat="y")), "there are .*name it so"),
        (lambda: EOF(2).fit(field() * np.nan), "no column of .* has a value in the first row"),
        (lambda: EOF(2).components(), "call fit first"),
        (lambda: EOF(2).fit(field()[:0]), "length 0 along 'time'"),
        (lambda: EOF(2).scores(), "call fit first"),
        (lambda: EOF(2).fit(field()).transform(field()[:, :3]), "has 18 columns and the components have 30"),
    ],
)
def test_what_is_refused(fit: Any, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        fit()


def weighted_rows(flat: np.ndarray, weights: np.ndarray, samples: np.ndarray, scale: bool) -> np.ndarray:
    mean = samples @ flat / samples.sum()
    deviations = np.sqrt(samples @ (flat - mean) ** 2 / samples.sum()) if scale else 1.0
    return np.asarray((flat - mean) / deviations * weights * np.sqrt(samples)[:, None])


@pytest.mark.slow
def test_weights_as_eofs_has_them_of_a_real_field_with_land() -> None:
    """What values are multiplied by, given over one dimension, over both, and beside the cosines of latitudes."""
    data = sst()
    roots = np.sqrt(np.cos(np.deg2rad(data.latitude.astype("f8"))))
    other = xr.DataArray(np.random.default_rng(0).uniform(0.2, 2, data.shape[1:]), dims=("latitude", "longitude"))
    given = {"one": (roots, False), "turned": (other.T, False), "both": (other, True)}
    for weights, coslat in given.values():
        times = (weights * xr.ones_like(other)).transpose("latitude", "longitude").values
        times = times * roots.values[:, None] if coslat else times
        oracle = Eof(np.ma.masked_invalid(data.values.astype("f8")), weights=times)
        model = EOF(4, use_coslat=coslat, tol=1e-11).fit(data, weights=weights)
        agree(model.components(), np.ma.filled(oracle.eofs(neofs=4), np.nan), (1, 2))
        agree(model.scores(), oracle.pcs(npcs=4), (0,))
        np.testing.assert_allclose(model.explained_variance(), oracle.eigenvalues(neigs=4), rtol=1e-8)
        agree(model.patterns(), np.ma.filled(oracle.eofs(neofs=4), np.nan) / times, (1, 2))
    field_of_modes = data.mean("time") + (model.scores().rename(mode="m") @ model.patterns().rename(mode="m"))
    reconstructed = oracle.reconstructedField(4) + data.values.mean(axis=0)
    np.testing.assert_allclose(
        field_of_modes.transpose("time", "latitude", "longitude"), np.ma.filled(reconstructed, np.nan), atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True])
def test_samples_of_unequal_worth(lazy: bool) -> None:
    data, samples = field(), np.random.default_rng(7).uniform(0, 2, 120)
    samples[:50] = 0
    given = data.chunk({"time": 50, "lat": 2}) if lazy else data
    model = EOF(3, use_coslat=True, standardize=True, tol=1e-11).fit(given, sample_weights=samples)
    roots = np.sqrt(np.cos(np.deg2rad(np.repeat(data.lat.values, 6))))
    a = weighted_rows(data.values.reshape(120, -1), roots, samples, scale=True)
    sizes = np.linalg.svd(a, compute_uv=False)
    np.testing.assert_allclose(model.singular_values(), sizes[:3], rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance(), sizes[:3] ** 2 / (samples.sum() - 1), rtol=1e-9)
    scores = model.scores().values
    np.testing.assert_allclose(
        scores.T @ (samples[:, None] * scores), np.diag(sizes[:3] ** 2), atol=1e-7 * sizes[0] ** 2
    )
    np.testing.assert_allclose(model.transform(data.isel(time=slice(3, 60))), scores[3:60], atol=1e-9)


def test_weights_of_a_grid_that_are_none_are_refused() -> None:
    data = field()
    for weights, said in (
        (np.ones(5), "weights are a DataArray over dimensions of the grid, not a ndarray"),
        (
            xr.DataArray(np.ones(4), dims="lat"),
            r"weights lie along lat \(4\) and the data along lat \(5\), lon \(6\)",
        ),
        (xr.DataArray([1.0, 1, -1, 1, 1], dims="lat"), "6 of 30 are negative"),
        (xr.DataArray(np.ones(5), coords={"lat": data.lat + 1}), "weights has no lat .*, which the data has"),
        (xr.DataArray([1.0, 1, np.nan, 1, 1], dims="lat"), "6 of 30 are negative, missing"),
    ):
        with pytest.raises(BadInputError, match=said):
            EOF(2).fit(data, weights=weights)
    data[:, 2] = np.nan  # land, where weights may be missing, too
    assert np.isfinite(
        EOF(2).fit(data, weights=xr.DataArray([1.0, 1, np.nan, 1, 1], dims="lat")).singular_values()
    ).all()


@pytest.mark.slow
@pytest.mark.parametrize("model", [EOF, HilbertEOF])
def test_a_field_that_has_modes_of_its_own(model: Any) -> None:
    """Principal components are fields, too, of earlier modes: what the data call so is called mode_ in the answers."""
    scores = field(40).isel(lat=0, drop=True).rename(lon="mode").assign_coords(mode=np.arange(1, 7))
    same = scores.rename(mode="place")
    found, wanted = (model(2, tol=1e-11).fit(given, dim="time") for given in (scores, same))
    assert (found.components().dims, wanted.components().dims) == (("mode", "mode_"), ("mode", "place"))
    np.testing.assert_array_equal(found.components().values, wanted.components().values)
    np.testing.assert_array_equal(found.components()["mode_"], scores["mode"])
    across = model(2).fit(scores.T, dim="mode").scores()
    assert across.dims == ("mode_", "mode") and list(across["mode_"]) == list(range(1, 7))
    one = model(2).fit(field(40).assign_coords(mode=3), dim="time")  # as pcs.sel(mode=3) leaves it
    assert one.components()["mode_"] == 3 and one.scores().sizes == {"time": 40, "mode": 2}


@pytest.mark.slow
def test_coupled_patterns_of_principal_components() -> None:
    scores = field(40).isel(lat=0, drop=True).rename(lon="mode")
    left, right = MCA(2).fit(scores, field(40, seed=5), dim="time").components()
    assert (left.dims, right.dims) == (("mode", "mode_"), ("mode", "lat", "lon"))


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [False, True])
def test_a_report_of_a_field_in_memory_draws_time_series(gaps: bool, tmp_path: Path) -> None:
    """Of the rows that the model read; without them the page says what to give. Times without any value have no point.

    Mutants: rows of other chunks than those that were read, which are no data of the run; all times.
    """
    X = field().where(field()["time"].dt.day != 3) if gaps else field()
    store = tmp_path / "run"
    model = EOF(2, use_coslat=True, store=store, tol=1e-10).fit(X)
    (text,) = next(one for one in report_of(store).sections if one.title == "Scores of rows").blocks
    assert "data=model.rows_" in text.text
    with pytest.raises(BadInputError, match="not what the run was made of"):
        report_of(store, PageOptions(data=(X + 1).chunk(time=60)))
    for again in (report_of(store, PageOptions(data=model.rows_)), report_of(store)):
        first, second = next(one for one in again.sections if one.title == "Scores over time").blocks[1:]
        scores = model.scores().dropna("time")
        assert len(first.series[0].x) == len(scores) == (116 if gaps else 120)
        for one, wanted in ((first, scores[:, 0]), (second, scores[:, 1])):
            np.testing.assert_allclose(one.series[0].y, wanted, atol=1e-3 * float(abs(wanted).max()))


def test_a_pickle_of_a_model_holds_the_field_once() -> None:
    """Mutant: rows are kept beside the field, in blocks of Dask, which are copies."""
    model = EOF(2).fit(field(500))
    assert len(pickle.dumps(model)) < 1.6 * field(500).nbytes
