"""MCA, CCA and rotated MCA of fields beside the formulas of xeofs' ``cross/cpcca.py`` in NumPy, with land and gaps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.stats import false_discovery_control, pearsonr

from npmdask.errors import BadInputError
from npmdask.xarray import CCA, EOF, MCA, MCARotator
from tests.estimators.test_rotated_fields import rotated_by_xeofs, same_up_to_phase

LAT = [-60.0, -20.0, 20.0, 60.0]


def pair(dtype: Any = np.float64, n: int = 80) -> tuple[xr.DataArray, xr.DataArray]:
    """Two fields with three modes in common; land in both, at other points."""
    rng = np.random.default_rng(5)
    shared = rng.standard_normal((n, 3)) * [2, 1.5, 1]
    fields = []
    for seed, points in ((6, 24), (7, 20)):
        own = np.random.default_rng(seed)
        shapes = np.kron(np.eye(3), np.ones((1, 8)))[:, :points] + 0.2 * own.standard_normal((3, points))
        fields.append(shared @ shapes + 0.5 * own.standard_normal((n, points)) + 3.0)
    fields[0][:, 4], fields[1][:, [0, 11]] = np.nan, np.nan
    coords = {"time": np.arange(n), "lat": LAT}
    X = xr.DataArray(fields[0].reshape(n, 4, 6), dims=("time", "lat", "lon"), coords=coords)
    Y = xr.DataArray(fields[1].reshape(n, 4, 5), dims=("time", "lat", "lon"), coords=coords)
    return X.astype(dtype), Y.astype(dtype)


def rows_of(X: xr.DataArray, *, weighted: bool) -> tuple[np.ndarray, np.ndarray]:
    """Centred rows of the sea, and where that is; standardized and weighted by areas."""
    rows = X.transpose("time", ...).values.astype(np.float64).reshape(X.sizes["time"], -1)
    sea = np.isfinite(rows).all(axis=0)
    rows = rows[:, sea] - rows[:, sea].mean(axis=0)
    if weighted:
        roots = np.sqrt(np.repeat(np.cos(np.deg2rad(LAT)), X.sizes["lon"]))[sea]
        rows = rows / rows.std(axis=0) * roots
    return rows, sea


def fraction(a: np.ndarray, b: np.ndarray, r: np.ndarray, s: np.ndarray, q: np.ndarray, t: np.ndarray) -> float:
    """The squared covariance fraction of one mode: scores r and s, patterns q and t."""
    left = (a - np.outer(r, q)).T @ (b - np.outer(s, t))
    return float(max(0.0, 1 - np.square(left).sum() / np.square(a.T @ b).sum()))


@pytest.mark.slow
@pytest.mark.parametrize("power", [1, 4])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rotated_mca_is_that_of_xeofs(dtype: Any, power: float, tmp_path: Path) -> None:
    """Mutants: fields rotated apart; values for their roots; order by one field; numbers of the model before."""
    X, Y = pair(dtype)
    tol, exact = (1e-5, 1e-9) if dtype is np.float64 else (5e-3, 1e-4)
    words = {"use_coslat": True, "standardize": True, "tol": 1e-11 if dtype is np.float64 else None}
    model = MCA(5, **words).fit(X.chunk({"time": 30}), Y, dim="time")  # type: ignore[arg-type]
    rotated = MCARotator(3, power=power).fit(model)
    (a, sea), (b, beach) = rows_of(X, weighted=True), rows_of(Y, weighted=True)
    u, s, vh = np.linalg.svd(a.T @ b / 79, full_matrices=False)
    np.testing.assert_allclose(model.singular_values(), s[:5], rtol=exact)
    np.testing.assert_allclose(model.covariance_fraction_CD95(), s[:5] / s[:5].sum(), rtol=exact)
    loadings, turn = rotated_by_xeofs(np.concatenate([u[:, :3], vh[:3].T]) * np.sqrt(s[:3]), power)
    parts = loadings[: a.shape[1]], loadings[a.shape[1] :]
    norms = [np.linalg.norm(one, axis=0) for one in parts]
    order = np.argsort(-(norms[0] * norms[1]))
    vectors = [(one / norm)[:, order] for one, norm in zip(parts, norms, strict=True)]
    back = np.linalg.inv(turn).T / np.sqrt(s[:3])[:, None]
    scores = [a @ u[:, :3] @ back * norms[0], b @ vh[:3].T @ back * norms[1]]
    scores = [one[:, order] for one in scores]
    maps, found = rotated.components(), rotated.scores()
    for i, there in enumerate((sea, beach)):
        held = maps[i].values.reshape(3, -1)
        assert np.isnan(held[:, ~there]).all()
        same_up_to_phase(held[:, there].T, vectors[i], tol)
        same_up_to_phase(found[i].values, scores[i], tol)
    np.testing.assert_allclose(rotated.data["squared_covariance"], (norms[0] * norms[1])[order] ** 2, rtol=tol)
    total = float(rotated.data["total_squared_covariance"])
    exactly = float(np.square(a.T @ b / 79).sum())
    error = model.modes_.squared_covariance_error
    assert error is not None and abs(total - exactly) < 5 * error * exactly  # it is estimated
    for i in range(3):
        wanted = fraction(a, b, scores[0][:, i], scores[1][:, i], vectors[0][:, i], vectors[1][:, i])
        assert abs(float(rotated.squared_covariance_fraction()[i]) * total / exactly - wanted) < tol
        explained = 1 - np.square(a - np.outer(scores[0][:, i], vectors[0][:, i])).sum() / np.square(a).sum()
        assert abs(float(rotated.fraction_variance_X_explained_by_X()[i]) - explained) < tol
        correlation = pearsonr(scores[0][:, i], scores[1][:, i])[0]
        assert abs(float(rotated.cross_correlation_coefficients()[i]) - correlation) < tol
    np.testing.assert_allclose([np.linalg.norm(one, axis=0) for one in rotated.scores(True)], 1.0, rtol=1e-6)
    np.testing.assert_allclose(rotated.transform(X), found[0], atol=1e-4)
    leading = model.inverse_transform(*(one.sel(mode=[1, 2, 3]) for one in model.scores()))
    for mine, theirs in zip(rotated.inverse_transform(*found), leading, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
    for number, one in enumerate((model, rotated)):
        one.save(tmp_path / str(number))
        again = type(one).load(tmp_path / str(number))
        assert again.get_params() == one.get_params()
        for mine, theirs in zip(again.transform(X, Y), one.transform(X, Y), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-9)
        for name, answer in one.data.items():
            xr.testing.assert_allclose(again.data[name], answer)
    with pytest.raises(BadInputError, match="no fields to correlate"):
        again.homogeneous_patterns()
    with pytest.raises(BadInputError, match="a MCARotator is not rotated"):
        MCARotator(2).fit(rotated)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MCA, CCA])
def test_correlations_with_the_data_and_their_chances(kind: Any) -> None:
    """Mutants: scores of the other field; n - 1 for n; modes are corrected together; land is counted."""
    X, Y = pair()
    X[:, 0, 0] = 7.0  # constant: correlated with nothing
    model = kind(2, use_coslat=True, tol=1e-11).fit(X.chunk({"time": 30}), Y, dim="time")
    scores = [one.values for one in model.scores()]
    for name, order in (("homogeneous_patterns", (0, 1)), ("heterogeneous_patterns", (1, 0))):
        (maps, plain), (_, fdr) = getattr(model, name)(), getattr(model, name)(correction="fdr_bh")
        _, summed = getattr(model, name)(correction="bonferroni")
        for side, rows in enumerate((X, Y)):
            points = rows.values.reshape(80, -1)
            varies = np.isfinite(points).all(axis=0) & (points.std(axis=0) > 0)
            for mode in range(2):
                wanted = [pearsonr(one, scores[order[side]][:, mode]) for one in points[:, varies].T]
                chances = np.array([each[1] for each in wanted])
                held = [one[side].values[mode].ravel() for one in (maps, plain, fdr, summed)]
                assert all(np.isnan(one[~varies]).all() for one in held)
                np.testing.assert_allclose(held[0][varies], [each[0] for each in wanted], atol=1e-8)
                np.testing.assert_allclose(held[1][varies], chances, rtol=1e-6, atol=1e-300)
                np.testing.assert_allclose(held[2][varies], false_discovery_control(chances), rtol=1e-6, atol=1e-300)
                np.testing.assert_allclose(held[3][varies], np.minimum(1, chances * varies.sum()), rtol=1e-6)
    with pytest.raises(BadInputError, match="correction"):
        model.homogeneous_patterns(correction="holm")


@pytest.mark.slow
def test_a_rotator_reads_the_fields_once() -> None:
    """Mutant: scores are computed for shares, and once more to be rotated."""
    X, Y = pair()
    seen: list[int] = []

    def counted(block: np.ndarray) -> np.ndarray:
        seen.append(len(block))
        return block

    lazy = X.chunk({"time": 40})
    lazy = lazy.copy(data=lazy.data.map_blocks(counted, dtype=X.dtype, meta=np.empty((0, 0, 0))))
    model = MCA(3).fit(lazy, Y, dim="time")
    seen.clear()
    MCARotator(2).fit(model)
    assert len(seen) <= 3  # one block is looked at when they are opened


@pytest.mark.slow
def test_weights_of_samples_are_taken_by_their_names() -> None:
    """Mutants: weights in the order in which they were given, or of dimensions; their text in what is saved."""
    X, Y = pair()
    weights = xr.DataArray(np.linspace(0.5, 2, 80), dims="time", coords={"time": X["time"]})
    wanted = MCA(2).fit(X, Y, sample_weights=weights.values)
    found = MCA(2).fit(X, Y, sample_weights=weights[::-1])
    for one in (found, MCA.deserialize(found.serialize())):
        np.testing.assert_allclose(one.predict(X), wanted.predict(X), atol=1e-9)
    dims = {"year": np.arange(8), "month": np.arange(10)}
    fields = [xr.DataArray(one.values.reshape(8, 10, -1), {**dims}, ("year", "month", "point")) for one in (X, Y)]
    both = xr.DataArray(weights.values.reshape(8, 10), dims).transpose("month", "year")
    for kind, given in ((MCA, fields), (EOF, fields[:1])):
        mine = kind(2).fit(*given, dim=("year", "month"), sample_weights=both[::-1])
        theirs = kind(2).fit(*given, dim=("year", "month"), sample_weights=weights.values)
        np.testing.assert_allclose(mine.singular_values(), theirs.singular_values(), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("words", [{"use_pca": False}, {"n_pca_modes": (5, 4)}])
def test_shares_and_predictions_of_cca(words: dict[str, Any]) -> None:
    """Mutants: covariances of whitened fields, or of data where components are asked for; the residual of one field."""
    X, Y = pair(n=120)
    model = CCA(3, tol=1e-12, **words).fit(X, Y, dim="time")
    (a, _), (b, _) = rows_of(X, weighted=False), rows_of(Y, weighted=False)
    if "n_pca_modes" in words:
        a, b = (
            (left[:, :k] * sizes[:k]) @ right[:k]
            for (left, sizes, right), k in ((np.linalg.svd(one, full_matrices=False), n) for one, n in ((a, 5), (b, 4)))
        )
    scores = [one.values for one in model.scores()]
    total = float(np.square(a.T @ b / 119).sum())
    assert float(model.data["total_squared_covariance"]) == pytest.approx(total, rel=1e-9)
    for i in range(3):
        r, s = scores[0][:, i], scores[1][:, i]
        wanted = fraction(a, b, r, s, a.T @ r / (r @ r), b.T @ s / (s @ s))
        assert float(model.squared_covariance_fraction()[i]) == pytest.approx(wanted, abs=1e-8)
    link = scores[0].T @ scores[1] / np.square(scores[0]).sum(axis=0)
    predicted = model.predict(X.isel(time=slice(7, 19)))
    np.testing.assert_allclose(predicted, scores[0][7:19] @ link, atol=1e-8)
    assert model.inverse_transform(Y=predicted).dims == Y.dims
    again = CCA.deserialize(model.serialize())
    np.testing.assert_allclose(again.predict(X), model.predict(X), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MCA, CCA])
def test_samples_that_one_field_lacks_are_left_out_of_both(kind: Any) -> None:
    """Mutants: land is what the first sample lacks; samples of one field alone are left out; scores at other times."""
    X, Y = pair()
    whole = X.copy(), Y.copy()
    X[0], X[41], Y[17] = np.nan, np.nan, np.nan
    areas = xr.ones_like(whole[1][5]).drop_vars("time").where(whole[1][5].notnull())
    there = np.setdiff1d(np.arange(80), [0, 17, 41])
    found = kind(2, tol=1e-11).fit(X, Y, dim="time", weights_Y=areas)
    wanted = kind(2, tol=1e-11).fit(*(one.isel(time=there) for one in whole), dim="time")
    for mine, theirs in zip(
        (*found.components(), *found.scores()), (*wanted.components(), *wanted.scores()), strict=True
    ):
        mine = mine.isel(time=there) if "time" in mine.dims else mine
        np.testing.assert_allclose(mine, theirs, atol=1e-9)
    assert np.isnan(found.scores()[0].values[[0, 41]]).all() and np.isnan(found.scores()[1].values[17]).all()
    np.testing.assert_allclose(found.homogeneous_patterns()[0][1], wanted.homogeneous_patterns()[0][1], atol=1e-9)
    with pytest.raises(BadInputError, match="samples without any value have weights"):
        kind(2).fit(X, Y, dim="time", sample_weights=np.ones(80))
    with pytest.raises(BadInputError, match="no sample has a value in both fields"):
        kind(2).fit(X.where(X["time"] < 40), Y.where(Y["time"] >= 40), dim="time")
    with pytest.raises(BadInputError, match="has no value in the first row but has one"):
        kind(2).fit(X.where(X["lat"] + X["time"] > -50), Y, dim="time")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MCA, CCA])
def test_a_refused_gap_names_what_pairs_take(kind: Any) -> None:
    """A model fitted with missing="mean" takes it. Mutant: the sentence of models of one field, with its word."""
    X, Y = pair()
    gap = X.where((X["time"] != 3) | (X["lon"] != 2))
    model = kind(2).fit(X, Y)
    rotated = [MCARotator(2).fit(model)] if kind is MCA else []
    for one in (model, *rotated):
        for ask in (
            partial(one.transform, X=gap),
            partial(one.transform, Y=Y.where(Y > 0), X=X),
            partial(one.predict, gap),
        ):
            with pytest.raises(BadInputError, match=r"row . .* not finite.*fitted with missing='mean'") as refused:
                ask()
            assert "least-squares" not in str(refused.value)
        assert np.isfinite(one.transform(X)).all()
    with pytest.raises(BadInputError, match="least-squares"):  # which models of one field take
        EOF(2).fit(X).transform(gap)
    assert np.isfinite(kind(2, missing="mean").fit(X, Y).transform(X=gap)).all()
