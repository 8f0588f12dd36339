"""One row of data, in features: a sentence that says why there is no answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.errors import BadInputError
from npmdask.xarray import EOF, MCA
from tests.core.runs.test_one_row import DOORS, FIELD, SAID, X


@pytest.mark.parametrize(
    "asked",
    [
        lambda: EOF(1).fit(FIELD).explained_variance(),
        lambda: MCA(1).fit(FIELD, FIELD).singular_values(),
        lambda: EOF(1).fit(FIELD).solution_.rotated(),
    ],
    ids=["EOF", "MCA", "rotation"],
)
def test_what_needs_a_second_row(asked: Callable[[], Any]) -> None:
    with pytest.raises(BadInputError, match=SAID):
        asked()


@pytest.mark.slow
def test_streams_and_exports_have_no_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for center, value in ((False, (X**2).sum()), (True, 0.0)):
        np.testing.assert_allclose(npmdask.stream_pca(X, 1, center=center).values, value)
    np.save("x.npy", X)
    assert main(["run", "x.npy", "-k", "1", "--center", "--store", "run", "--quiet"]) == 0
    assert main(["export", "run", "x.npz"]) == 0
    with np.load("x.npz") as exported:
        assert "explained_variance" not in exported and np.isfinite(exported["basis"]).all()


@pytest.mark.parametrize("held", ["dense", "dask"])
def test_of_a_row_that_weighs_two_a_variance_is_claimed(held: str) -> None:
    twice = npmdask.top_k(DOORS[held], 1, center=True, row_weights=[2.0])
    assert twice.explained_variance == 0 == twice.to_xarray()["explained_variance"]
