"""Statistics of columns with missing values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npmdask
from tests.conftest import often
from tests.core.storage.test_column_statistics import covariance, exact


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i2"])
@pytest.mark.parametrize("seed", often(range(10), 0, 1))
def test_nothing_is_filled_where_pairs_are_looked_at(seed: int, dtype: str) -> None:
    """Before: deviations were those of columns filled with means as float16 holds them, 3e-3 off."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((400, 6)) * 3 + 3e3
    x[rng.random(x.shape) < 0.3] = np.nan
    asked: dict[str, Any] = {"kind": "samples", "center": True, "scale": True, "missing": "pairwise"}
    if dtype == "i2":
        x, asked["missing_values"] = np.where(np.isnan(x), -999, np.rint(x)), -999
    x = x.astype(dtype)
    found = npmdask.top_k(x, 2, **asked)
    true = np.linalg.eigvalsh(covariance(np.where(x == -999, np.nan, x.astype(float))))[::-1][:2]
    assert (np.abs(found.values - true) <= 1e-13 + np.array(found.certificate["levels"][0]["value_errors"])).all()
    np.testing.assert_allclose(found.values, true, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("seed", often(range(10), 0, 1))
def test_gaps_are_means_and_not_what_the_dtype_makes_of_them(seed: int, scale: bool, dtype: str) -> None:
    """Of float32 about 1e5 a gap was off by 4e-3; no bound knew of it. With EM the deviations are exact, too."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((400, 6)) * 3 + 3e3
    gaps = rng.random(x.shape) < 0.3
    x = np.where(gaps, np.nan, x).astype(dtype)
    mean, std = exact(x.astype(float), there=~gaps)
    filled = np.where(gaps, 0, x - mean) / (std if scale else 1)
    true = np.linalg.svd(filled.astype(float), compute_uv=False)[:2] ** 2 / 400
    asked: dict[str, Any] = {"kind": "samples", "center": True, "scale": scale}
    for algorithm in ("krylov", "gram"):
        found = npmdask.top_k(x, 2, missing="mean", algorithm=algorithm, **asked)
        told = np.array(found.certificate["levels"][0]["value_errors"])
        assert (np.abs(found.values - true) <= told).all() and (told <= 1e-11 * true).all()
        np.testing.assert_allclose(found.scores(x), filled @ found.basis, atol=1e-9)
    if scale:
        of_model = npmdask.top_k(x, 2, missing="em", **asked)
        np.testing.assert_allclose(of_model.patterns(), std.astype(float)[:, None] * of_model.basis, rtol=1e-11)


@pytest.mark.slow
def test_fields_with_gaps_are_filled_with_their_means() -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((300, 2))
    fields = [z @ rng.standard_normal((2, d)) + rng.standard_normal((300, d)) + 3e3 for d in (5, 4)]
    gaps = [rng.random(field.shape) < 0.2 for field in fields]
    stored = [np.where(gap, np.nan, field).astype("f4") for gap, field in zip(gaps, fields, strict=True)]
    away = [np.where(g, 0, x - exact(x, there=~g)[0]).astype(float) for g, x in zip(gaps, stored, strict=True)]
    true = np.linalg.svd(away[0].T @ away[1] / 300, compute_uv=False)[:2]
    found = npmdask.mca(*stored, 2, missing="mean")
    np.testing.assert_allclose(found.values, true, rtol=1e-11)
