"""Hilbert EOFs against SciPy's analytic signal and NumPy's SVD, and against xeofs' padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.signal import hilbert

from npmdask.errors import BadInputError
from npmdask.estimators.eof import analytic
from npmdask.xarray import HilbertEOF
from tests.conftest import often


def field(n: int = 61, seed: int = 0) -> xr.DataArray:
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((n, 30)) @ rng.standard_normal((30, 30))).reshape(n, 5, 6)
    values = values + 0.05 * np.arange(n)[:, None, None] + 280.0
    return xr.DataArray(
        values, dims=("time", "lat", "lon"), coords={"lat": [-75.0, -40.0, 0.0, 40.0, 75.0], "time": np.arange(n)}
    )


def continued(y: np.ndarray, decay: float) -> np.ndarray:
    """The padding of xeofs 3 (utils/hilbert_transform.py), one series (n) at a time."""
    n = len(y)
    x, wide = np.arange(n), np.arange(-n, 2 * n)
    line = np.polynomial.polynomial.polyfit(x, y, 1)
    rest = y - np.polynomial.polynomial.polyval(x, line)
    fading = np.exp(-x / n / decay)
    whole = np.concatenate([rest[0] * fading[::-1], rest, rest[-1] * fading])
    return whole + np.polynomial.polynomial.polyval(wide, line)


def signals(values: np.ndarray, padding: str, decay: float = 0.2) -> np.ndarray:
    """Times x points, as xeofs makes them."""
    x = values - values.mean(axis=0)
    if padding == "exp":
        n = len(x)
        z = np.stack([hilbert(continued(column, decay))[n : 2 * n] for column in x.T], axis=1)
    else:
        z = hilbert(x, axis=0)
    return np.asarray(z - z.mean(axis=0))


@pytest.mark.parametrize("n", [60, 61])
@pytest.mark.parametrize("padding", ["exp", "none"])
def test_analytic_signals_are_those_of_scipy(n: int, padding: str) -> None:
    values = field(n).values.reshape(n, -1)
    found = analytic(values.T, padding=padding, decay=0.1, scale=False)
    np.testing.assert_allclose(found.T, signals(values, padding, 0.1), atol=1e-10)
    assert analytic(values.T.astype(np.float32), padding=padding, decay=0.1, scale=False).dtype == np.complex64


CASES = [("exp", True, False), ("none", False, True), ("exp", False, False), ("none", True, False)]


@pytest.mark.slow
@pytest.mark.parametrize(("padding", "coslat", "standardize"), often(CASES, 0, 1))
def test_modes_are_those_of_an_svd(padding: str, coslat: bool, standardize: bool) -> None:
    x = field()
    model = HilbertEOF(3, padding=padding, use_coslat=coslat, standardize=standardize, tol=1e-12).fit(x, dim="time")
    values = x.values.reshape(61, -1)
    values = values / values.std(axis=0) if standardize else values
    areas = np.repeat(np.cos(np.deg2rad(x.lat.values)), 6) if coslat else np.ones(30)
    z = signals(values * np.sqrt(areas), padding)
    u, s, vh = np.linalg.svd(z, full_matrices=False)
    np.testing.assert_allclose(model.singular_values(), s[:3], rtol=1e-10)
    np.testing.assert_allclose(model.explained_variance(), s[:3] ** 2 / 60, rtol=1e-10)
    np.testing.assert_allclose(model.explained_variance_ratio(), s[:3] ** 2 / (s**2).sum(), rtol=1e-10)
    np.testing.assert_allclose(model.components_amplitude().values.reshape(3, -1), np.abs(vh[:3]), atol=1e-9)
    np.testing.assert_allclose(model.scores_amplitude(), np.abs(u[:, :3]), atol=1e-9)
    np.testing.assert_allclose(model.scores_amplitude(normalized=False), np.abs(u[:, :3] * s[:3]), atol=1e-7)
    components, scores = model.components().values.reshape(3, -1), model.scores().values
    leading = (u[:, :3] * s[:3]) @ vh[:3]
    np.testing.assert_allclose(scores @ components.conj(), leading, atol=1e-7)  # phases of both belong together
    np.testing.assert_allclose(
        np.exp(1j * model.components_phase().values.reshape(3, -1)) * np.abs(components), components
    )
    np.testing.assert_allclose(np.exp(1j * model.scores_phase().values) * np.abs(scores), scores)
    assert model.components_phase().dims == ("mode", "lat", "lon") and model.scores_phase().dims == ("time", "mode")


@pytest.mark.slow
def test_lazy_fields_and_land_give_the_same_modes() -> None:
    x = field()
    x[:, 2, 3:] = np.nan
    whole = HilbertEOF(2).fit(x, dim="time")
    maps = whole.components()
    assert np.isnan(maps.values[:, 2, 3:]).all() and np.isfinite(maps.values[:, :2]).all()
    assert np.isnan(whole.components_phase().values[:, 2, 3:]).all()
    lazy = HilbertEOF(2).fit(x.chunk({"time": -1, "lat": 2}), dim="time")
    np.testing.assert_allclose(lazy.components(), maps, atol=1e-10)
    by_time = HilbertEOF(2).fit(x.transpose("lon", "time", "lat").chunk({"time": 20}), dim="time")
    np.testing.assert_allclose(by_time.components().transpose(*maps.dims), maps, atol=1e-10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"padding": "mirror"}, "padding"),
        ({"decay_factor": 0.0}, "decay_factor"),
        ({"x": field() * 1j}, "complex"),
        ({"x": field().where(field().time != 3)}, "at some times only"),
        ({"x": field().isel(time=slice(2))}, "three real numbers"),
        ({"x": field().values}, "DataArray"),
        ({"dim": "day"}, "day"),
    ],
)  # fmt: skip
def test_what_has_no_analytic_signal_is_refused(change: dict[str, Any], said: str) -> None:
    x, dim = change.pop("x", field()), change.pop("dim", "time")
    with pytest.raises(BadInputError, match=said):
        HilbertEOF(2, **change).fit(x, dim=dim)


def test_it_must_be_fitted_first() -> None:
    with pytest.raises(BadInputError, match="call fit first"):
        HilbertEOF(2).scores()
