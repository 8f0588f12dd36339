"""Rotated EOFs, real, complex and of Hilbert, beside the formulas of xeofs (linalg/_numpy/_rotation.py) in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from npmdask.errors import BadInputError
from npmdask.xarray import EOF, ComplexEOFRotator, EOFRotator, HilbertEOF, HilbertEOFRotator
from tests.estimators.test_fields import LAT, ensemble
from tests.estimators.test_hilbert_eof import field, signals


def rotated_by_xeofs(loadings: np.ndarray, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Rotated loadings, and what they were multiplied by; signs, phases and order are open."""

    def unit(held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.sqrt((held * held.conj()).sum(axis=1))
        return held / lengths[:, None], lengths

    rows, _ = unit(loadings)
    turn = np.eye(loadings.shape[1])
    for _ in range(20_000):
        turned = rows @ turn
        squares = turned * turned.conj()
        left, _, right = np.linalg.svd(rows.conj().T @ (turned * (squares - squares.sum(axis=0) / len(rows))))
        turn, before = left @ right, turn
        if np.abs(turn - before).max() < 1e-15:
            break
    rows, lengths = unit(loadings @ turn)
    scaled = rows / np.abs(rows).max(axis=0)
    fitted = np.linalg.inv(rows.conj().T @ rows) @ rows.conj().T @ (scaled * np.abs(scaled) ** (power - 1))
    fitted = fitted @ np.sqrt(np.diag(np.diag(np.linalg.inv(fitted.conj().T @ fitted))))
    return lengths[:, None] * (rows @ fitted), turn @ fitted


def simple(n: int = 80, seed: int = 3) -> np.ndarray:
    """Rows of three overlapping structures of other sizes, in 24 columns of other variances."""
    rng = np.random.default_rng(seed)
    shapes = np.kron(np.eye(3), np.ones((1, 8))) * rng.uniform(0.3, 3, 24) + 0.2 * rng.standard_normal((3, 24))
    return np.asarray(rng.standard_normal((n, 3)) * [3, 2, 1] @ shapes + 0.1 * rng.standard_normal((n, 24)) + 5.0)


def same_up_to_phase(found: np.ndarray, wanted: np.ndarray, tol: float) -> None:
    """Compare columns times numbers of modulus 1."""
    overlap = (wanted.conj() * found).sum(axis=0)
    np.testing.assert_allclose(found, wanted * overlap / np.abs(overlap), atol=tol * np.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.parametrize("power", [1, 4])
@pytest.mark.parametrize("kind", ["float64", "float32 and land", "complex"])
def test_rotators_are_those_of_xeofs(kind: str, power: float) -> None:
    """Mutants: rows of loadings that are not brought to length 1, before varimax or before promax; T for T^H; scores as
    long as before.
    """
    values = simple()
    if kind == "complex":
        values = values + 1j * np.roll(simple(seed=4), 4, axis=1)
    X = xr.DataArray(values.reshape(80, 4, 6), dims=("time", "lat", "lon"), coords={"lat": LAT})
    if kind != "complex":
        X = X.astype(kind.split()[0])
    if "land" in kind:
        X[:, 1, 2] = np.nan
    model = EOF(4, use_coslat=True, tol=1e-11 if X.dtype.itemsize > 4 else None).fit(X.chunk({"time": 30}), dim="time")
    rotated = (ComplexEOFRotator if kind == "complex" else EOFRotator)(3, power=power).fit(model)
    sea = np.isfinite(X.values[0].ravel())
    rows = (X.values.reshape(80, -1) * np.sqrt(np.repeat(np.cos(np.deg2rad(LAT)), 6)))[:, sea].astype(values.dtype)
    rows = rows - rows.mean(axis=0)
    u, s, vh = np.linalg.svd(rows, full_matrices=False)
    loadings, turn = rotated_by_xeofs(vh[:3].conj().T * s[:3] / np.sqrt(79), power)
    variances = (np.abs(loadings) ** 2).sum(axis=0)
    order, tol = np.argsort(-variances), 1e-6 if X.dtype.itemsize > 4 else 2e-3
    np.testing.assert_allclose(rotated.explained_variance(), variances[order], rtol=tol)
    share = variances[order] / (s**2).sum() * 79
    np.testing.assert_allclose(rotated.explained_variance_ratio(), share, rtol=tol)
    np.testing.assert_allclose(rotated.singular_values(), np.sqrt(variances[order] * 79), rtol=tol)
    maps = rotated.components().values.reshape(3, -1)
    assert np.isnan(maps[:, ~sea]).all()
    same_up_to_phase(maps[:, sea].T, (loadings / np.sqrt(variances))[:, order], tol)
    scores = u[:, :3] @ np.linalg.inv(turn).conj().T * np.sqrt(variances * 79)
    same_up_to_phase(rotated.scores().values, scores[:, order], tol)
    phi = rotated.data["phi_matrix"].values
    np.testing.assert_allclose(np.diag(phi), 1.0, atol=1e-9)
    assert (np.abs(phi - np.eye(3)).max() > 1e-3) == (power > 1)
    np.testing.assert_array_equal(rotated.model_data["components"], model.components())
    leading = model.inverse_transform(model.scores().sel(mode=[1, 2, 3]))
    xr.testing.assert_allclose(rotated.inverse_transform(rotated.scores()), leading)
    again = type(rotated)(3, power=power).fit(EOF.deserialize(model.serialize()))  # a model that was loaded
    xr.testing.assert_allclose(again.scores(), rotated.scores())
    xr.testing.assert_allclose(again.components(), rotated.components())


@pytest.mark.slow
@pytest.mark.parametrize("standardize", [False, True])
def test_waves_become_a_field(standardize: bool, tmp_path: Path) -> None:
    """Mutants: the mean is not added; amplitudes for real parts; scale or weights are forgotten; conjugates."""
    X = field().astype(np.float32)
    X[:, 2, 3:] = np.nan
    X = X.rename("sst").assign_attrs(units="K")
    model = HilbertEOF(3, use_coslat=True, standardize=standardize, tol=1e-7).fit(X.chunk({"lat": 2}), dim="time")
    rows = X.values.reshape(61, -1).astype(np.float64)
    sea = np.isfinite(rows[0])
    scale = (rows.std(axis=0) if standardize else np.ones(30))[sea]
    roots = np.sqrt(np.repeat(np.cos(np.deg2rad(X.lat.values)), 6))[sea]
    z = signals(rows[:, sea] / scale * roots, "exp")
    u, s, vh = np.linalg.svd(z, full_matrices=False)
    wanted = ((u[:, :3] * s[:3]) @ vh[:3]).real / roots * scale + rows[:, sea].mean(axis=0)
    back = model.inverse_transform(model.scores())
    assert back.dims == X.dims and back.dtype == X.dtype and back.attrs == X.attrs and back.name == "sst"
    np.testing.assert_allclose(back.values.reshape(61, -1)[:, sea], wanted, atol=2e-3)
    assert np.isnan(back.values.reshape(61, -1)[:, ~sea]).all()
    model.save(tmp_path / "model")
    again = HilbertEOF.load(tmp_path / "model")
    for name in ("scores_phase", "components_amplitude", "explained_variance_ratio"):
        xr.testing.assert_allclose(getattr(again, name)(), getattr(model, name)())
    xr.testing.assert_allclose(again.inverse_transform(again.scores()), back)
    rotated = HilbertEOFRotator(3, power=2).fit(again)
    loadings, _ = rotated_by_xeofs(vh[:3].conj().T * s[:3] / np.sqrt(60), 2)
    variances = np.sort((np.abs(loadings) ** 2).sum(axis=0))[::-1]
    np.testing.assert_allclose(rotated.explained_variance(), variances, rtol=1e-3)
    np.testing.assert_allclose(rotated.inverse_transform(rotated.scores()), back, atol=1e-3)
    assert rotated.components_phase().dims == ("mode", "lat", "lon") and rotated.scores_amplitude().min() >= 0
    for one in (model, rotated):
        with pytest.raises(NotImplementedError, match="all times"):
            one.transform(X)
    with pytest.raises(BadInputError, match="give a fitted HilbertEOF"):
        HilbertEOFRotator(2).fit(EOF(2).fit(X))


def test_a_rotated_model_is_not_rotated() -> None:
    X: Any = ensemble().isel(member=0, drop=True)
    model = EOF(3).fit(X)
    with pytest.raises(BadInputError, match="a EOFRotator is not rotated"):
        EOFRotator(2).fit(EOFRotator(2).fit(model))
    with pytest.raises(BadInputError, match="not centred"):
        EOFRotator(2).fit(EOF(2, center=False).fit(X))
