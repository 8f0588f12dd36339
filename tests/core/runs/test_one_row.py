"""One row of data: an answer that is right, or a sentence that says why there is none; never a silent NaN."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr

import npmdask
from npmdask.errors import BadInputError
from tests.conftest import needs

X = np.random.default_rng(0).standard_normal((1, 6))
FIELD = xr.DataArray(X.reshape(1, 2, 3), dims=("time", "lat", "lon"))
SAID = "one row is its own mean, and variances are over the number of rows less 1: give at least two rows"

DOORS: dict[str, Any] = {"dense": X, "sparse": sp.csr_matrix(X), "dask": da.from_array(X)}


@needs("containers")
@pytest.mark.parametrize("algorithm", ["krylov", "power", "gram"])
@pytest.mark.parametrize("held", DOORS)
def test_about_zero_it_is_its_own_component(held: str, algorithm: str) -> None:
    found = npmdask.top_k(DOORS[held], 1, algorithm=algorithm)
    np.testing.assert_allclose(found.singular_values, np.linalg.norm(X))
    np.testing.assert_allclose(np.abs(found.basis[:, 0]), np.abs(X[0]) / np.linalg.norm(X), rtol=1e-9)
    assert not found.warnings  # centring, of which a note would speak, leaves nothing


@needs("containers")
@pytest.mark.parametrize("held", ["dense", "dask"])
def test_centred_nothing_is_left_and_no_variance_is_claimed(held: str) -> None:
    found = npmdask.top_k(DOORS[held], 1, center=True)
    assert found.values == 0 and "numerical rank 0" in found.outcome.sentence
    with pytest.raises(BadInputError, match=SAID):
        _ = found.explained_variance
    assert "explained_variance" not in found.to_xarray()


@needs("containers")
def test_what_needs_a_second_row() -> None:
    with pytest.raises(BadInputError, match=SAID):
        npmdask.top_k(DOORS["sparse"], 1, center=True)
