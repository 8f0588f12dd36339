"""Fields that xeofs takes, beside NumPy's own decomposition: several dimensions of samples, several variables, answers
that come back as what was given, rotation, and files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import npmdask
from npmdask.errors import BadInputError
from npmdask.xarray import EOF, MCA, ComplexEOF, EOFRotator, HilbertEOF, MCARotator

LAT, LON = [-60.0, -20.0, 20.0, 60.0], [0.0, 90.0, 180.0]


def ensemble(dtype: Any = np.float64, seed: int = 1) -> xr.DataArray:
    """Members x latitudes x times x longitudes, with land at one point."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((15, 4)) @ rng.standard_normal((4, 12)) + 0.3 * rng.standard_normal((15, 12)) + 5.0
    values[:, 7] = np.nan
    coords = {"member": ["a", "b", "c"], "time": np.arange(5) * 10, "lat": LAT, "lon": LON}
    held = xr.DataArray(values.astype(dtype).reshape(5, 3, 4, 3), dims=("time", "member", "lat", "lon"), coords=coords)
    return held.transpose("member", "lat", "time", "lon").rename("t2m").assign_attrs(units="K")


def matrix(X: xr.DataArray, *samples: str) -> np.ndarray:
    rows = X.transpose(*samples, ...).values.astype(np.float64)
    return rows.reshape(int(np.prod(rows.shape[: len(samples)])), -1)


def decomposed(rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, singular values and vectors of rows less their means; the largest entry of each vector is positive."""
    left, sizes, right = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    signs = np.sign(np.take_along_axis(right, np.abs(right).argmax(axis=1)[:, None], axis=1))[:k, 0]
    return left[:, :k] * sizes[:k] * signs, sizes[:k], right[:k] * signs[:, None]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("lazy", [False, True])
def test_times_of_members_are_samples(dtype: Any, lazy: bool, tmp_path: Path) -> None:
    """Mutants: scores in the order of the data; coordinates of another dimension; the store is not handed on."""
    X = ensemble(dtype)
    given = X.chunk({"member": 2, "time": 2, "lat": 3}) if lazy else X
    rows, near = matrix(X, "time", "member"), 1e-8 if dtype == np.float64 else 1e-4
    sea = np.isfinite(rows[0])
    scores, sizes, vectors = decomposed(rows[:, sea], 3)
    for fresh in (True, False):
        model = EOF(3, tol=1e-11 if dtype == np.float64 else 1e-6, store=tmp_path / "run")
        model.fit(given, dim=("time", "member"))
        assert (model.solution_.data_passes > 0) == fresh
        found = model.scores()
        assert found.dims == ("time", "member", "mode") and list(found["member"].values) == ["a", "b", "c"]
        np.testing.assert_allclose(found.values.reshape(15, 3), scores, atol=near * sizes[0])
        np.testing.assert_allclose(model.singular_values(), sizes, rtol=near)
        np.testing.assert_allclose(model.explained_variance(), sizes**2 / 14, rtol=2 * near)
        maps = model.components()
        assert maps.dims == ("mode", "lat", "lon") and np.isnan(maps.values[:, 2, 1]).all()
        np.testing.assert_allclose(maps.values.reshape(3, 12)[:, sea], vectors, atol=near * 10)
    one = model.transform(given.isel(member=[1], time=slice(1, 4)).transpose("lon", ...))
    np.testing.assert_allclose(one.values[:, 0], found.values[1:4, 1], atol=near * sizes[0])
    back = model.inverse_transform(found)
    assert back.dims == X.dims and back.name == "t2m" and back.attrs == X.attrs and back.dtype == dtype
    wanted = rows.mean(axis=0)[sea] + scores @ vectors
    np.testing.assert_allclose(matrix(back, "time", "member")[:, sea], wanted, atol=near * sizes[0])


def parts() -> dict[str, xr.DataArray]:
    whole = ensemble().isel(member=0, drop=True)
    heat, rain = ensemble(seed=2).isel(member=0, drop=True) * 3, whole.isel(lon=0, drop=True).rename(lat="station")
    return {"t2m": heat.transpose("lon", "time", "lat"), "rain": rain.drop_vars("station")}


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True])
def test_several_variables_are_columns_beside_each_other(lazy: bool) -> None:
    """Mutants: weights of the first for all; parts in another order; names that are not compared."""
    held = {name: one.chunk({"time": 2}) if lazy else one for name, one in parts().items()}
    several, weights = [*held.values()], [None, xr.DataArray([1.0, 2, 3, 4], dims="station")]
    rows = np.hstack([matrix(one, "time") for one in held.values()])
    sea = np.isfinite(rows[0])
    scores, sizes, vectors = decomposed(rows[:, sea], 2)
    for given in (several, xr.Dataset(held)):
        model = EOF(2, tol=1e-11).fit(given)
        np.testing.assert_allclose(model.scores(), scores, atol=1e-8 * sizes[0])
        maps, back = model.components(), model.inverse_transform(model.scores().sel(mode=[2]))
        assert type(maps) is type(back) is type(given)
        first, second = maps if isinstance(maps, list) else maps.data_vars.values()
        assert (first.dims, second.dims) == (("mode", "lon", "lat"), ("mode", "station"))
        beside = np.hstack([first.values.reshape(2, -1), second.values])
        np.testing.assert_allclose(beside[:, sea], vectors, atol=1e-8)
        again = back[0] if isinstance(back, list) else back["t2m"]
        wanted = rows.mean(axis=0) + scores[:, 1:] * np.where(sea, np.nan, np.nan)
        wanted[:, sea] = rows[:, sea].mean(axis=0) + scores[:, 1:] * vectors[1]
        assert again.dims == ("lon", "time", "lat")
        np.testing.assert_allclose(again.transpose("time", ...).values.reshape(5, -1), wanted[:, :12], atol=1e-7)
    turned = [several[0].isel(lat=slice(None, None, -1)), several[1]]
    listed = EOF(2, tol=1e-11).fit(several)
    np.testing.assert_allclose(listed.transform(turned), scores, atol=1e-8 * sizes[0])
    with pytest.raises(BadInputError, match=r"the field 0 has no lat -60\.0, which the field 0 that was fitted has"):
        listed.transform([several[0].assign_coords(lat=[-50.0, -20.0, 20.0, 60.0]), several[1]])
    for wrong in (several[:1], several[0], xr.Dataset(held)):
        with pytest.raises(BadInputError, match=r"was given where a list \(0, 1\) was fitted: give the same parts"):
            listed.transform(wrong)
    with pytest.raises(BadInputError, match="part 1 has no time 0"):
        EOF(2).fit([several[0], several[1].assign_coords(time=np.arange(5) + 1)])
    with pytest.raises(BadInputError, match="weights have other parts"):
        EOF(2).fit(several, weights=weights[1:])
    ones = xr.ones_like(several[0][:, 0].compute()).fillna(1.0).drop_vars("time")
    model = EOF(2, tol=1e-11).fit(several, weights=[ones, weights[1]])
    roots = np.concatenate([np.ones(12), [1, 2, 3, 4]])
    np.testing.assert_allclose(model.singular_values(), decomposed((rows * roots)[:, sea], 2)[1], rtol=1e-9)


@pytest.mark.slow
def test_samples_without_any_value_have_no_scores() -> None:
    """Land, where points are samples. Mutants: they count; their scores are 0; a gap counts as such a sample."""
    X = ensemble().isel(member=0, drop=True)
    model = EOF(2, tol=1e-11).fit(X, dim=("lat", "lon"))
    rows = matrix(X, "lat", "lon")
    there = np.isfinite(rows[:, 0])
    scores, sizes, _ = decomposed(rows[there], 2)
    assert there.sum() == 11 and model.scores().dims == ("lat", "lon", "mode")
    np.testing.assert_allclose(model.scores().values.reshape(12, 2)[there], scores, atol=1e-8 * sizes[0])
    assert np.isnan(model.scores().values[2, 1]).all() and np.isnan(model.transform(X).values[2, 1]).all()
    np.testing.assert_allclose(model.explained_variance(), sizes**2 / 10, rtol=1e-9)
    gappy = X.copy()
    gappy[{"lat": 0, "time": 1, "lon": 0}] = np.nan
    with pytest.raises(BadInputError, match=r"lacks 1 of|has no value in the first row"):
        EOF(2).fit(gappy, dim=("lat", "lon"))
    with pytest.raises(BadInputError, match="samples without any value have weights"):
        EOF(2).fit(X, dim=("lat", "lon"), sample_weights=np.ones(12))


def test_scores_of_chosen_modes_make_a_field_when_it_is_asked_for() -> None:
    """Mutants: all modes are summed up; normalized scores are taken as they are; a lazy field is computed."""
    X = ensemble().isel(member=0, drop=True)
    model = EOF(3, standardize=True, use_coslat=True).fit(X)
    one, unit = model.scores().sel(mode=2), model.scores(normalized=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=0), 1.0, rtol=1e-9)
    wanted = X.mean("time") + one * model.patterns().sel(mode=2)
    found = model.inverse_transform(one)
    assert found.dims == X.dims and "mode" not in found.coords
    np.testing.assert_allclose(found, wanted.transpose(*X.dims), atol=1e-9)
    np.testing.assert_allclose(model.inverse_transform(unit.sel(mode=[2]), normalized=True), found, atol=1e-9)
    np.testing.assert_allclose(
        model.components(normalized=False)[0], model.components()[0] * model.singular_values()[0]
    )
    np.testing.assert_array_equal(model.fit_transform(X, "time"), model.scores())
    np.testing.assert_array_equal(model.data["norms"], model.singular_values())
    lazy = model.inverse_transform(model.scores().chunk({"time": 2}))
    assert lazy.chunks is not None and lazy.chunks[X.dims.index("time")] == (2, 2, 1)
    with pytest.raises(BadInputError, match="there is no mode"):
        model.inverse_transform(model.scores().assign_coords(mode=[2, 3, 4]))
    with pytest.raises(BadInputError, match="scores are a DataArray with `mode`"):
        model.inverse_transform(model.scores().values)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["zarr", "scipy"])
def test_a_model_is_written_and_read(engine: str, tmp_path: Path) -> None:
    """Mutants: coordinates that are not written; means that are not taken off; grid points that are not compared."""
    X = ensemble()
    for given, dim in ((X, ("time", "member")), ([*parts().values()], "time"), (xr.Dataset(parts()), "time")):
        model = EOF(2, use_coslat=False, standardize=True, tol=1e-11).fit(given, dim=dim)
        for one in (model, EOFRotator(2).fit(model)):
            path = tmp_path / f"{type(given).__name__}-{type(one).__name__}"
            one.save(path, engine=engine)
            again = type(one).load(path, engine=engine)
            assert again.get_params() == one.get_params()
            xr.testing.assert_allclose(again.scores(), one.scores())
            np.testing.assert_allclose(again.transform(given), one.transform(given), atol=1e-9)
            pairs = [
                (again.components(), one.components()),
                (again.explained_variance_ratio(), one.explained_variance_ratio()),
            ]
            pairs.append((again.inverse_transform(again.scores()), one.inverse_transform(one.scores())))
            for found, wanted in pairs:
                for mine, theirs in zip(
                    *(each if isinstance(each, list) else [each] for each in (found, wanted)), strict=True
                ):
                    xr.testing.assert_allclose(mine, theirs)
            with pytest.raises(BadInputError, match="overwrite=True"):
                one.save(path, engine=engine)
    last = again.transform(given.isel(lat=slice(None, None, -1)))
    np.testing.assert_allclose(last, one.transform(given), atol=1e-9)
    with pytest.raises(BadInputError, match="has no lat"):
        again.transform(given.assign_coords(lat=[-60.0, -20.0, 20.0, 50.0]))
    with pytest.raises(BadInputError, match="there is no model of npmdask"):
        EOF.deserialize(xr.DataTree())
    with pytest.raises(BadInputError, match="missing = 'mean' needs the run"):
        EOF(2, missing="mean").fit(X.where(X["time"] != 10), dim=("time", "member")).serialize()


@pytest.mark.slow
@pytest.mark.parametrize("power", [1, 4])
def test_rotated_modes_stand_for_the_same_field(power: float) -> None:
    """Mutants: scores that are not turned; shares of the modes alone; the first modes are not chosen."""
    X = ensemble()
    model = EOF(4, use_coslat=True, standardize=True, tol=1e-11).fit(X, dim=("time", "member"))
    rotated = EOFRotator(3, power=power).fit(model)
    leading = model.scores().sel(mode=[1, 2, 3])
    assert rotated.components().dims == ("mode", "lat", "lon") and np.isnan(rotated.components()[0, 2, 1])
    np.testing.assert_allclose(np.linalg.norm(rotated.components().fillna(0).values.reshape(3, -1), axis=1), 1.0)
    xr.testing.assert_allclose(rotated.inverse_transform(rotated.scores()), model.inverse_transform(leading))
    for name in ("explained_variance", "explained_variance_ratio"):
        before, after = (getattr(one, name)().values for one in (model, rotated))
        assert np.isclose(after.sum(), before[:3].sum(), rtol=1e-9) == (power == 1)  # else scores are correlated
        assert (np.diff(after) <= 0).all()
    np.testing.assert_allclose(np.linalg.norm(rotated.scores(normalized=True).values.reshape(15, 3), axis=0), 1.0)
    np.testing.assert_allclose(rotated.transform(X), rotated.scores(), atol=1e-9)
    turn = rotated.data["rotation_matrix"].values
    assert np.allclose(turn.T @ turn, np.eye(3), atol=1e-9) == (power == 1)
    loadings = model.components().sel(mode=[1, 2, 3]) * np.sqrt(model.explained_variance().sel(mode=[1, 2, 3]))
    flat = loadings.fillna(0).values.reshape(3, -1).T @ turn
    found = rotated.components().fillna(0).values.reshape(3, -1).T
    np.testing.assert_allclose(found, flat / np.linalg.norm(flat, axis=0), atol=1e-9)
    assert EOFRotator(9).fit(model).components().sizes["mode"] == 4  # as xeofs: there are no more
    with pytest.raises(BadInputError, match="call fit first"):
        EOFRotator(2).fit(EOF(2))


def test_words_of_xeofs() -> None:
    """Mutants: the mean is taken off in any case; words of a solver are believed."""
    X = ensemble().isel(member=0, drop=True).fillna(1.0)
    model = EOF(2, center=False, check_nans=False, random_state=None, solver="full", sample_name="s", compute=False)
    rows = matrix(X, "time")
    sizes = np.linalg.svd(rows, compute_uv=False)
    model.fit(X, "time")
    np.testing.assert_allclose(model.singular_values(), sizes[:2], rtol=1e-7)
    np.testing.assert_allclose(model.explained_variance(), sizes[:2] ** 2 / 4, rtol=1e-7)
    for refused in (model.explained_variance_ratio, lambda: EOFRotator(2).fit(model)):
        with pytest.raises(BadInputError, match="not centred"):
            refused()
    np.testing.assert_allclose(model.inverse_transform(model.scores()).mean(), X.mean(), rtol=0.1)
    assert model.get_params()["sample_name"] == "s" and EOF(2).get_params()["solver_kwargs"] == {}
    with pytest.raises(BadInputError, match="solver"):
        EOF(2, solver="fast").fit(X)
    with pytest.raises(BadInputError, match="nan"):
        EOF(2, check_nans=False).fit(X.where(X["lat"] > 0))


def test_complex_fields() -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_normal((9, 4, 3)) + 1j * rng.standard_normal((9, 4, 3))
    X = xr.DataArray(values, dims=("time", "lat", "lon"))
    model = ComplexEOF(8, tol=1e-11).fit(X)
    sizes = np.linalg.svd((values - values.mean(axis=0)).reshape(9, 12), compute_uv=False)
    np.testing.assert_allclose(model.singular_values(), sizes[:8], rtol=1e-9)
    xr.testing.assert_allclose(model.inverse_transform(model.scores()), X)


@pytest.mark.slow
def test_two_fields_of_several_parts() -> None:
    """Mutants: samples of the parts are not compared with those of the other field."""
    X, Y = ensemble(), ensemble(seed=2)
    model = MCA(2, tol=1e-11).fit(X, [Y, 2 * Y], dim=("time", "member"))
    a, b = matrix(X, "time", "member"), matrix(Y, "time", "member")
    sea = np.isfinite(a[0])
    a, b = (rows[:, sea] - rows[:, sea].mean(axis=0) for rows in (a, b))
    left, sizes, _ = np.linalg.svd(a.T @ np.hstack([b, 2 * b]) / 14)
    np.testing.assert_allclose(model.singular_values(), sizes[:2], rtol=1e-8)
    first, (second, twice) = model.components()
    np.testing.assert_allclose(abs(first.values.reshape(2, 12)[:, sea]), abs(left[:, :2].T), atol=1e-7)
    np.testing.assert_allclose(twice, 2 * second, atol=1e-9)
    scores, others = model.scores()
    assert scores.dims == others.dims == ("time", "member", "mode")
    back, (one, other) = model.inverse_transform(scores, others.sel(mode=[1]))
    assert back.dims == X.dims and one.attrs == Y.attrs and other.dims == Y.dims
    wanted = a @ left[:, :2] @ left[:, :2].T + matrix(X, "time", "member")[:, sea].mean(axis=0)
    np.testing.assert_allclose(matrix(back, "time", "member")[:, sea], wanted, atol=1e-7)
    assert isinstance(model.transform(X, [Y, 2 * Y]), list)
    for moved in (Y.assign_coords(time=Y["time"] + 1), Y.isel(time=slice(None, None, -1))):
        with pytest.raises(BadInputError, match="sample"):
            MCA(2).fit(X.isel(member=0), [moved.isel(member=0)], dim="time")


@pytest.mark.slow
def test_waves_in_two_variables() -> None:
    X = ensemble().isel(member=0, drop=True).fillna(0.0)
    whole, cut = HilbertEOF(2, use_coslat=True).fit(X), HilbertEOF(2, use_coslat=True)
    west, east = cut.fit([X.isel(lon=[0]), X.isel(lon=[1, 2])]).components()
    np.testing.assert_allclose(xr.concat([west, east], "lon"), whole.components(), atol=1e-7)
    np.testing.assert_allclose(cut.scores(), whole.scores(), atol=1e-6)
    both = HilbertEOF(1).fit(ensemble().fillna(0.0), dim=("time", "member"))
    assert both.scores().dims == ("time", "member", "mode") and both.components().dims == ("mode", "lat", "lon")


@pytest.mark.slow
@pytest.mark.parametrize("words", [{"use_coslat": True}, {"standardize": True, "use_coslat": True}])
def test_gaps_are_fitted_alike_by_a_model_that_was_loaded(words: dict[str, Any]) -> None:
    """Mutants: what scores rows is kept as one matrix; the scale or the weights of columns are not kept."""
    X = ensemble().isel(member=0, drop=True)
    model, gappy = EOF(2, **words).fit(X), X.where(X["lon"] != 90.0)
    wanted = model.transform(gappy, missing="least-squares")
    assert np.isfinite(wanted).all() and not np.allclose(wanted, model.scores(), atol=1e-3)
    again = EOF.deserialize(model.serialize())
    np.testing.assert_allclose(again.transform(gappy, missing="least-squares"), wanted, atol=1e-10)


def test_marks_of_missing_values_are_saved() -> None:
    """Mutant: a loaded model, or a rotated one, takes the mark for a number."""
    X = ensemble().isel(member=0, drop=True).fillna(-999.0)
    model = EOF(2, missing_values=-999.0).fit(X)
    marked = X.copy()
    marked[{"time": 1, "lat": 0, "lon": 0}] = -999.0
    for one in (model, EOFRotator(2).fit(model)):
        again = type(one).deserialize(type(one).deserialize(one.serialize()).serialize())
        np.testing.assert_allclose(again.transform(X), one.scores(), atol=1e-10)
        for each in (one, again):
            with pytest.raises(BadInputError, match=r"row 1 .* not finite"):
                each.transform(marked)
        wanted, found = (each.transform(marked, missing="least-squares") for each in (one, again))
        np.testing.assert_allclose(found, wanted, atol=1e-10)
        assert abs(found).max() < 100


@pytest.mark.slow
@pytest.mark.parametrize("power", [1, 4])
def test_rotated_scores_of_samples_with_gaps_stand_for_the_same_field(power: float) -> None:
    """Mutants: they are fitted along what turns rows into scores; along the rotated modes only."""
    X = ensemble().isel(member=0, drop=True)
    model, gappy = EOF(3, use_coslat=True, standardize=True).fit(X), X.where(X["lon"] != 90.0)
    fitted = model.transform(gappy, missing="least-squares")
    for k in (2, 3):
        rotated = EOFRotator(k, power=power).fit(model)
        wanted = model.inverse_transform(fitted.isel(mode=slice(k)))
        for one in (rotated, EOFRotator.deserialize(rotated.serialize())):
            np.testing.assert_array_equal(one.data["rotation_matrix"], rotated.data["rotation_matrix"])
            found = one.inverse_transform(one.transform(gappy, missing="least-squares"))
            np.testing.assert_allclose(found, wanted, atol=1e-8)


@pytest.mark.slow
def test_weights_are_missing_over_land_only() -> None:
    """Mutant: the first sample says where land is, though it has no value at all."""
    X = ensemble().isel(member=0, drop=True)
    late, weights = X.where(X["time"] > 0), X.isel(time=0, drop=True) * 0 + 1.0
    for given in (late, [late]):
        np.testing.assert_allclose(
            EOF(2).fit(given, weights=weights).singular_values(), EOF(2).fit(given).singular_values(), rtol=1e-9
        )
        with pytest.raises(BadInputError, match="column_weights: 3 of 12 are negative, missing or infinite"):
            EOF(2).fit(given, weights=weights.where(weights["lat"] > -60.0))


def test_variables_are_compared_by_their_names() -> None:
    """Mutant: samples without a value are looked for along the dimensions of another variable."""
    X = xr.Dataset(parts()).drop_vars("lat")
    model = EOF(2).fit(X)
    np.testing.assert_allclose(model.transform(X[["rain", "t2m"]]), model.scores(), atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["zarr", "scipy"])
def test_coordinates_of_any_name_are_saved(engine: str, tmp_path: Path) -> None:
    """Mutants: names are cut by the length of another prefix; the values share their names with coordinates."""
    heights = {
        "height": 2.0,
        "number": 0,
        "values": 1,
        "kvalues": 3,
        "scores": 4,
        "grid0": 5,
        "lonely": ("lon", [1, 2, 3]),
    }
    X = ensemble().isel(member=0, drop=True).assign_coords(heights).assign_coords(month=("time", np.arange(5)))
    for i, given in enumerate((X, X.rename("lat"), [X, X], xr.Dataset({"a": X, "scores_a": X}))):
        model = EOF(2).fit(given)
        model.save(tmp_path / f"{i}", engine=engine)
        again = EOF.load(tmp_path / f"{i}", engine=engine)
        xr.testing.assert_allclose(again.scores(), model.scores())
        xr.testing.assert_allclose(again.transform(given), model.scores())
        first, wanted = (one.components() for one in (again, model))
        for mine, theirs in zip(*(each if i == 2 else [each] for each in (first, wanted)), strict=True):
            xr.testing.assert_allclose(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["zarr", "scipy"])
def test_dimensions_that_are_several_are_written_and_read(engine: str, tmp_path: Path) -> None:
    """Of samples, of the grid, and of both fields of a pair; a model of plain dimensions is the same beside it.

    Mutants: they are not taken apart (NotImplementedError of xarray); not put together again; each by the names of
    another; those of one level become plain ones; text is written as the type that it was read of, which no Zarr reads.
    """
    X = ensemble().fillna(5.0)
    times, points = X.stack(sample=("time", "member")), X.isel(member=0, drop=True).stack(point=("lat", "lon"))
    several, single = times.stack(point=("lat", "lon")), X.isel(member=0, lon=0, drop=True).stack(point=("lat",))
    for i, (given, dim) in enumerate(
        [(times, "sample"), (points, "time"), (several, "sample"), (X, ("time", "member")), (single, "time")]
    ):
        held = list(given.indexes["sample"].names) if i in (0, 2) else []
        one = EOF(2).fit(given, dim=dim)
        one.save(tmp_path / f"{i}", engine=engine)
        EOF.load(tmp_path / f"{i}", engine=engine).save(tmp_path / f"{i} again", engine=engine)
        again = EOF.load(tmp_path / f"{i} again", engine=engine)
        xr.testing.assert_allclose(again.scores(), one.scores())
        xr.testing.assert_allclose(again.components(), one.components())
        xr.testing.assert_allclose(again.transform(given), one.scores())
        assert [*again.scores().indexes.get("sample", [])] == [*one.scores().indexes.get("sample", [])]
        assert not held or again.scores().sel(sample=(10, "b")).sizes == {"mode": 2}
        with pytest.raises(BadInputError, match="give the same ones"):
            again.transform(given.drop_isel({"point" if "point" in given.dims else "lat": [0]}))
    pair = MCA(2).fit(several, times, dim="sample")
    for one in (pair, MCARotator(2).fit(pair)):
        again = type(one).deserialize(type(one).deserialize(one.serialize()).serialize())
        for found, wanted in zip(again.scores(), pair.scores() if one is pair else one.scores(), strict=True):
            xr.testing.assert_allclose(found, wanted)
        assert again.components()[0].indexes["point"].names == ["lat", "lon"]


def test_what_is_no_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Mutants: the class is not compared; what xarray raises comes through; any kind of field is believed."""
    model = EOF(2).fit(ensemble().isel(member=0, drop=True))
    rotated, tree = EOFRotator(2).fit(model), model.serialize()
    for one, other in ((model, EOFRotator), (rotated, EOF)):
        with pytest.raises(BadInputError, match=f"this is a model of '{type(one).__name__}'"):
            other.deserialize(one.serialize())
    (tmp_path / "junk").write_text("junk")
    for path, engine in (
        ("none", "zarr"),
        ("junk", "zarr"),
        ("none", "scipy"),
        ("junk", "scipy"),
        ("junk", "telepathy"),
    ):
        with pytest.raises(BadInputError, match=f"{path} by {engine}"):
            EOF.load(tmp_path / path, engine=engine)
    with pytest.raises(BadInputError, match="cannot be written by telepathy"):
        model.save(tmp_path / "new", engine="telepathy")
    about = json.loads(tree.attrs["npmdask"])
    wrong = [{**about, **more} for more in ({"kind": "weird"}, {"parts": ["a", "b"]}, {"params": {"zzz": 1}})]
    texts = ["{", "[]", "{}", *map(json.dumps, wrong)]
    for tampered in (None, 3, tree.to_dataset().drop_vars("patterns"), *texts):
        given = xr.DataTree(tree.to_dataset().assign_attrs(npmdask=tampered)) if isinstance(tampered, str) else tampered
        with pytest.raises(BadInputError, match=r"there is no model of npmdask|kind"):
            EOF.deserialize(xr.DataTree(given) if isinstance(given, xr.Dataset) else given)
    assert [one.name for one in tmp_path.iterdir()] == ["junk"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["zarr", "scipy"])
def test_a_model_is_replaced_only_by_a_whole_one(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: the old one is removed before the new one is written; any folder is removed."""
    X, path = ensemble().isel(member=0, drop=True), tmp_path / "model"
    one, other = EOF(2).fit(X), EOF(3).fit(X)
    one.save(path, engine=engine)
    write = "to_zarr" if engine == "zarr" else "to_netcdf"
    with monkeypatch.context() as patched:
        written = getattr(xr.Dataset, write)

        def partly(whole: xr.Dataset, to: Any, **how: Any) -> None:
            written(whole[["mean"]], to, **how)
            raise OSError(28, "No space left on device")

        patched.setattr(xr.Dataset, write, partly)
        with pytest.raises(BadInputError, match="No space left on device"):
            other.save(path, engine=engine, overwrite=True)
    assert EOF.load(path, engine=engine).n_modes == 2
    other.save(path, engine=engine, overwrite=True)
    assert EOF.load(path, engine=engine).n_modes == 3
    assert [each.name for each in tmp_path.iterdir()] == ["model"]
    for name, said in (
        ("mine", "holds no model of npmdask"),
        ("beside", r"holds \['letter.txt'\], which is of no model"),
    ):
        mine = tmp_path / name
        one.save(mine) if name == "beside" else mine.mkdir()
        (mine / "letter.txt").write_text("dear")
        with pytest.raises(BadInputError, match=said):
            one.save(mine, engine=engine, overwrite=True)
        assert (mine / "letter.txt").read_text() == "dear"


def test_small_things_that_xeofs_users_give(tmp_path: Path) -> None:
    """Mutants: a seed or a mark of NumPy is not written; other models are rotated; scores are used unseen."""
    X = ensemble().isel(member=0, drop=True)
    model = EOF(2, random_state=np.int64(3), missing_values=np.array([-9.0]), store=tmp_path / "run").fit(X)
    again = EOF.deserialize(model.serialize()).get_params()
    assert again["random_state"] == 3 and again["missing_values"] == [-9.0]
    assert HilbertEOF(1, random_state=np.int64(3), store=tmp_path / "waves").fit(X).solution_ is not None
    for other in (MCA(), HilbertEOF(1), EOFRotator(2), None):
        with pytest.raises(BadInputError, match="is not rotated: give a fitted EOF"):
            EOFRotator(2).fit(other)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="scores are a DataArray with `mode`"):
        model.inverse_transform(model.scores().values, normalized=True)


def test_samples_that_all_lack_any_value_have_no_scores() -> None:
    """Mutants: they are refused; the fit of nothing is not."""
    X = ensemble().isel(member=0, drop=True)
    nothing = X.where(X["time"] < 0)
    model = EOF(2).fit(X)
    found = model.transform(nothing)
    assert found.shape == (5, 2) and np.isnan(found).all()
    xr.testing.assert_equal(found, model.transform(xr.concat([nothing, X], "time")).isel(time=slice(5)))
    for given in (nothing, [nothing]):
        with pytest.raises(BadInputError, match="there are no data"):
            EOF(2).fit(given)


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True])
def test_a_solution_of_a_field_with_land_is_a_grid(lazy: bool) -> None:
    """Mutants: columns that were read are in the first places; land is 0; the mean stays a row."""
    X = ensemble().isel(member=0, drop=True).transpose("time", "lat", "lon").drop_vars("lon")
    found = npmdask.top_k(
        X.chunk({"time": 2}) if lazy else X, 2, kind="samples", center=True, dim="time", missing="drop-columns"
    )
    answer = found.to_xarray()
    np.testing.assert_allclose(answer["mean"], X.mean("time"), atol=1e-12)
    assert answer["components"].dims == ("mode", "lat", "lon") and answer["lat"].values.tolist() == LAT
    np.testing.assert_array_equal(answer["components"].values.reshape(2, -1)[:, found.missing.kept], found.basis.T)
    assert np.isnan(answer["components"].values[:, 2, 1]).all()
