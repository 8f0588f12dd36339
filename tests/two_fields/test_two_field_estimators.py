"""MCA and CCA as estimators, beside scikit-learn's PLSSVD and CCA."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from sklearn import cross_decomposition
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import npmdask
from npmdask.errors import BadInputError, MemoryRefusedError, RefusedError
from tests.conftest import write_zarr
from tests.two_fields.test_two_fields import fields


@pytest.mark.slow
@pytest.mark.parametrize("scale", [False, True])
def test_weights_and_scores_of_plssvd_up_to_sign(scale: bool) -> None:
    """Mutants: weights of the right field for the left, scores that are not divided, means that are not taken off."""
    a, b = fields()
    found, oracle = npmdask.MCA(2, scale=scale).fit(a, b), cross_decomposition.PLSSVD(2, scale=scale).fit(a, b)
    sign = np.sign((found.x_weights_ * oracle.x_weights_).sum(axis=0))
    np.testing.assert_allclose(found.x_weights_ * sign, oracle.x_weights_, atol=1e-7)
    np.testing.assert_allclose(found.y_weights_ * sign, oracle.y_weights_, atol=1e-7)
    unit = np.sqrt(150 / 149) if scale else 1.0  # scikit-learn divides by deviations with n - 1
    for ours, theirs in zip(found.transform(a, b), oracle.transform(a, b), strict=True):
        np.testing.assert_allclose(ours * sign, theirs * unit, atol=1e-6)
    np.testing.assert_allclose(found.x_mean_, a.mean(axis=0))
    np.testing.assert_allclose(found.y_std_, b.std(axis=0) if scale else 1.0)
    assert found.n_features_in_ == 20 and found.x_std_.shape == (20,) and found.y_mean_.shape == (12,)
    left, right = found.transform(a, b)
    np.testing.assert_allclose((left * right).mean(axis=0), found.covariances_, rtol=1e-7)


def test_canonical_correlations_of_scikit_learn() -> None:
    a, b = fields()
    found = npmdask.CCA(3)
    scores = found.fit_transform(a, b)
    oracle = cross_decomposition.CCA(3, max_iter=10_000, tol=1e-14)
    theirs = oracle.fit(a, b).transform(a, b)
    for i in range(3):
        assert abs(np.corrcoef(theirs[0][:, i], theirs[1][:, i])[0, 1] - found.correlations_[i]) < 1e-9
        assert abs(np.corrcoef(scores[0][:, i], scores[1][:, i])[0, 1] - found.correlations_[i]) < 1e-9
        assert abs(np.corrcoef(theirs[0][:, i], scores[0][:, i])[0, 1]) > 1 - 1e-9
    np.testing.assert_allclose(scores[0].std(axis=0), 1.0)


@pytest.mark.slow
def test_options_are_those_of_the_functions() -> None:
    """Mutants: one of them that is not handed on."""
    a, b = fields()
    u = np.random.default_rng(2).random(150)
    for options in ({"pcs": (4, 3)}, {"ridge": 0.3}, {"pcs": 4, "ridge": 0.1, "scale": True}):
        expected = npmdask.cca(a, b, 2, row_weights=u, **options)  # type: ignore[arg-type]
        found = npmdask.CCA(2, **options).fit(a, b, u)  # type: ignore[arg-type]
        assert np.array_equal(found.correlations_, expected.correlations)
        assert np.array_equal(found.transform(a, b)[1], expected.right.scores(b))
    b[5:30, 2] = np.nan
    with pytest.raises(BadInputError, match="NaN"):
        npmdask.MCA(2).fit(b, a)
    with pytest.raises(BadInputError, match="row 5, column 2"):
        npmdask.MCA(2).fit(a, b)
    filled = np.where(np.isnan(b), np.nanmean(b, axis=0), b)
    found = npmdask.MCA(2, missing="mean").fit(b, a)
    np.testing.assert_allclose(found.covariances_, npmdask.MCA(2).fit(filled, a).covariances_)
    np.testing.assert_allclose(found.transform(b), found.transform(filled), atol=1e-12)
    with pytest.raises(BadInputError, match="missing = 'drop-columns': "):
        npmdask.MCA(2, missing="drop-columns").fit(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("made", [npmdask.MCA(3, scale=True), npmdask.CCA(3, pcs=(5, 4), ridge=0.1)])
def test_parameters_copies_and_pickles(made: Any) -> None:
    a, b = fields()
    assert clone(made).get_params() == made.get_params()
    assert made.set_params(n_components=2).n_components == 2
    with pytest.raises(BadInputError, match=r"has no parameter 'n_modes'"):
        made.set_params(n_modes=2)
    with pytest.raises(BadInputError, match=r"is not fitted yet: call fit first"):
        clone(made).transform(a)
    assert not hasattr(clone(made), "x_weights_")
    found = clone(made).fit(a, b)
    again = pickle.loads(pickle.dumps(found))  # noqa: S301
    assert np.array_equal(again.transform(a), found.transform(a)) and again.get_params() == found.get_params()
    with pytest.raises(BadInputError, match=r"X has 12 features, but .* is expecting 20 features"):
        found.transform(b)
    with pytest.raises(BadInputError, match="has 20 columns and the components have 12"):
        found.transform(a, a)


@pytest.mark.slow
def test_tables_pipelines_and_data_elsewhere(tmp_path: Path) -> None:
    a, b = fields()
    table = pd.DataFrame(a, columns=[f"c{i}" for i in range(20)])
    named = npmdask.MCA(2).set_output(transform="pandas").fit(table, b)
    scores, _ = named.transform(table, b)
    assert list(scores.columns) == ["mca0", "mca1"] and named.feature_names_in_[1] == "c1"
    piped = make_pipeline(StandardScaler(), npmdask.MCA(2)).fit(a, b)
    scaled = npmdask.MCA(2).fit((a - a.mean(axis=0)) / a.std(axis=0), b)
    np.testing.assert_allclose(piped.transform(a), scaled.transform((a - a.mean(axis=0)) / a.std(axis=0)), atol=1e-9)
    stored = [str(write_zarr(tmp_path / f"{i}.zarr", field, (40, 7))) for i, field in enumerate((a, b))]
    lazy = [da.from_array(field, chunks=(40, 7)) for field in (a, b)]
    for given in (stored, lazy):
        found = npmdask.MCA(2).fit(*given)
        assert found.n_features_in_ == 20
        for ours, in_memory in zip(found.transform(*given), named.transform(table, b), strict=True):
            np.testing.assert_allclose(np.abs(ours), np.abs(np.asarray(in_memory)), atol=1e-7)


def test_rows_of_other_names_are_refused() -> None:
    """Mutant: the bare numbers of labelled fields, of which nobody knows that they are of other times."""
    a, b = (xr.DataArray(field, dims=("time", "at"), coords={"time": np.arange(150)}) for field in fields())
    npmdask.CCA(1).fit(a, b)
    with pytest.raises(BadInputError, match="time"):
        npmdask.CCA(1).fit(a, b.assign_coords(time=np.arange(150)[::-1]))


@pytest.mark.slow
def test_a_store_is_gone_on_with_and_a_run_that_did_not_converge_warns(tmp_path: Path) -> None:
    a, b = fields()
    kept = npmdask.MCA(2, store=tmp_path / "run", memory="4GiB", random_state=3).fit(a, b)
    again = npmdask.MCA(2, store=tmp_path / "run", memory="4GiB", random_state=3).fit(a, b)
    assert np.array_equal(kept.x_weights_, again.x_weights_) and again.model_.store == str(tmp_path / "run")
    with pytest.raises(RefusedError, match="seed"):
        npmdask.MCA(2, store=tmp_path / "run", random_state=4).fit(a, b)
    with pytest.raises(MemoryRefusedError, match="memory = 1MiB is too small"):
        npmdask.MCA(2, memory="1MiB").fit(a, b)
    with pytest.warns(RuntimeWarning, match="not converged"):
        npmdask.MCA(2, tol=1e-30).fit(a, b)
