"""Numbers that mark missing values, and columns that lack too many, in PCA and EOF: beside the same data without them.

Mutants that these tests kill: components of the columns that were kept in the places of others; weights of all columns
for those that were kept; maps of points that were left out; marks that are taken for land only at other times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

import npmdask
from npmdask.errors import BadInputError
from npmdask.xarray import EOF

RNG = np.random.default_rng(8)
N, D, K, MARK = 120, 8, 2, -9999.0
ROWS = RNG.standard_normal((N, K)) * [6, 4] @ RNG.standard_normal((K, D)) + RNG.standard_normal((N, D)) + 30
GAPPY = ROWS.copy()
GAPPY[RNG.random(ROWS.shape) < 0.05] = np.nan
GAPPY[: N // 2, [1, 5]] = np.nan
KEPT = [0, 2, 3, 4, 6, 7]
MARKED = np.where(np.isnan(GAPPY), MARK, GAPPY)
GAPS: dict[str, Any] = {"missing": "mean", "missing_values": MARK, "missing_limit": 0.3}


@pytest.mark.slow
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_pca_of_the_columns_that_are_left(whiten: bool, weighted: bool) -> None:
    weights = np.arange(1.0, D + 1) if weighted else None
    found = npmdask.PCA(K, whiten=whiten, column_weights=weights, **GAPS).fit(MARKED)
    fewer = None if weights is None else weights[KEPT]
    wanted = npmdask.PCA(K, whiten=whiten, column_weights=fewer, missing="mean").fit(GAPPY[:, KEPT])
    np.testing.assert_allclose(found.components_[:, KEPT], wanted.components_, atol=1e-8)
    assert found.components_.shape == (K, D) and not found.components_[:, [1, 5]].any()
    np.testing.assert_allclose(found.mean_[KEPT], wanted.mean_)
    assert np.isnan(found.mean_[[1, 5]]).all()
    for name in ("explained_variance_", "explained_variance_ratio_", "noise_variance_", "singular_values_"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-9, err_msg=name)
    np.testing.assert_allclose(found.transform(MARKED), wanted.transform(GAPPY[:, KEPT]), atol=1e-7)
    np.testing.assert_allclose(
        found.transform(MARKED, missing="least-squares"),
        wanted.transform(GAPPY[:, KEPT], missing="least-squares"),
        atol=1e-7,
    )
    back = found.inverse_transform(found.transform(MARKED))
    np.testing.assert_allclose(back[:, KEPT], wanted.inverse_transform(wanted.transform(GAPPY[:, KEPT])), atol=1e-7)
    assert np.isnan(back[:, [1, 5]]).all() and back.shape == MARKED.shape
    again = found.set_params(missing_limit=None).fit(MARKED)
    assert again.components_[:, [1, 5]].all() and np.isfinite(again.mean_).all()


@pytest.mark.slow
@pytest.mark.parametrize("use_coslat", [False, True])
def test_maps_of_the_points_that_are_left(use_coslat: bool) -> None:
    coords = {"lat": [-60.0, -20, 20, 60], "lon": [0, 90]}
    field, marked = (
        xr.DataArray(values.reshape(N, 4, 2), dims=("time", "lat", "lon"), coords=coords) for values in (GAPPY, MARKED)
    )
    found = EOF(K, use_coslat=use_coslat, **GAPS).fit(marked)
    holes = xr.where(np.isin(np.arange(D).reshape(4, 2), KEPT), field, np.nan).transpose(*field.dims)
    wanted = EOF(K, use_coslat=use_coslat, missing="mean").fit(holes)
    for name in ("components", "patterns", "scores"):
        np.testing.assert_allclose(getattr(found, name)(), getattr(wanted, name)(), atol=1e-7, err_msg=name)
    assert np.isnan(found.components().values.reshape(K, D)[:, [1, 5]]).all()
    np.testing.assert_allclose(found.transform(marked), wanted.transform(holes), atol=1e-7)


def test_marked_land_is_land() -> None:
    """With the default rule, and weights that are missing there."""
    land = np.where(np.arange(D) % 4 == 1, MARK, ROWS).reshape(N, 4, 2)
    dims = ("time", "lat", "lon")
    weights = xr.DataArray(np.where(land[0] == MARK, np.nan, 2.0), dims=dims[1:])
    found = EOF(K, missing_values=MARK).fit(xr.DataArray(land, dims=dims), weights=weights)
    wanted = EOF(K).fit(xr.DataArray(np.where(land == MARK, np.nan, land), dims=dims), weights=weights)
    np.testing.assert_array_equal(found.components(), wanted.components())


def test_a_limit_needs_a_rule_that_fills() -> None:
    with pytest.raises(BadInputError, match="missing_limit"):
        npmdask.PCA(K, missing="em", missing_limit=0.3).fit(GAPPY)
    with pytest.raises(BadInputError, match="missing_values"):
        npmdask.PCA(K, missing_values=MARK).fit(MARKED)
