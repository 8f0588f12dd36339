"""One row of data: an answer that is right, or a sentence that says why there is none; never a silent NaN."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr

import npmdask
from npmdask.cli.main import main
from npmdask.errors import BadInputError
from npmdask.xarray import EOF, MCA

X = np.random.default_rng(0).standard_normal((1, 6))
FIELD = xr.DataArray(X.reshape(1, 2, 3), dims=("time", "lat", "lon"))
SAID = "one row is its own mean, and variances are over the number of rows less 1: give at least two rows"

DOORS: dict[str, Any] = {"dense": X, "sparse": sp.csr_matrix(X), "dask": da.from_array(X)}


@pytest.mark.parametrize("algorithm", ["krylov", "power", "gram"])
@pytest.mark.parametrize("held", DOORS)
def test_about_zero_it_is_its_own_component(held: str, algorithm: str) -> None:
    found = npmdask.top_k(DOORS[held], 1, algorithm=algorithm)
    np.testing.assert_allclose(found.singular_values, np.linalg.norm(X))
    np.testing.assert_allclose(np.abs(found.basis[:, 0]), np.abs(X[0]) / np.linalg.norm(X), rtol=1e-9)
    assert not found.warnings  # centring, of which a note would speak, leaves nothing


@pytest.mark.parametrize("held", ["dense", "dask"])
def test_centred_nothing_is_left_and_no_variance_is_claimed(held: str) -> None:
    found = npmdask.top_k(DOORS[held], 1, center=True)
    assert found.values == 0 and "numerical rank 0" in found.outcome.sentence
    with pytest.raises(BadInputError, match=SAID):
        _ = found.explained_variance
    assert "explained_variance" not in found.to_xarray()
    twice = npmdask.top_k(DOORS[held], 1, center=True, row_weights=[2.0])
    assert twice.explained_variance == 0 == twice.to_xarray()["explained_variance"]


@pytest.mark.parametrize(
    "asked",
    [
        lambda: npmdask.top_k(DOORS["sparse"], 1, center=True),
        lambda: EOF(1).fit(FIELD).explained_variance(),
        lambda: MCA(1).fit(FIELD, FIELD).singular_values(),
        lambda: EOF(1).fit(FIELD).solution_.rotated(),
    ],
    ids=["sparse", "EOF", "MCA", "rotation"],
)
def test_what_needs_a_second_row(asked: Callable[[], Any]) -> None:
    with pytest.raises(BadInputError, match=SAID):
        asked()


def test_streams_and_exports_have_no_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for center, value in ((False, (X**2).sum()), (True, 0.0)):
        np.testing.assert_allclose(npmdask.stream_pca(X, 1, center=center).values, value)
    np.save("x.npy", X)
    assert main(["run", "x.npy", "-k", "1", "--center", "--store", "run", "--quiet"]) == 0
    assert main(["export", "run", "x.npz"]) == 0
    with np.load("x.npz") as exported:
        assert "explained_variance" not in exported and np.isfinite(exported["basis"]).all()
