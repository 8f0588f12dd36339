"""Scores of rows with missing values: as the run read its own, or by least squares, beside NumPy's lstsq row by row.

Mutants that these tests kill: gaps as zeros (shrunken scores); the Gram of all columns instead of the observed; weights
or scales left out of the fit; whitened before the fit; a row without evidence scored all the same; an infinity taken
for a gap; rows of the source's width cut to the wrong columns; rows that are left out not counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import npmdask
import npmdask.missing.factor_model as incomplete
from npmdask.cli.main import main
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest
from npmdask.missing.factor_model import least_squares_scores
from npmdask.streaming.transform import transform
from tests.conftest import write_zarr

M, D, K = 300, 14, 3
pytestmark = pytest.mark.filterwarnings("ignore:.* as uncertain")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grams of a few rows and columns at a time, so that pieces are joined."""
    monkeypatch.setattr(incomplete, "AT_ONCE", 8 * K * K * 5)


def planted(noise: float = 0.1, seed: int = 0) -> np.ndarray:
    """Rows near a plane of K dimensions, far from centred, with columns of very different size."""
    rng = np.random.default_rng(seed)
    plane = np.linalg.qr(rng.standard_normal((D, K)))[0]
    rows = rng.standard_normal((M, K)) * [9, 5, 3] @ plane.T + noise * rng.standard_normal((M, D))
    return rows * np.geomspace(1, 10, D) + 50


def with_gaps(rows: np.ndarray, share: float = 0.3, seed: int = 1) -> np.ndarray:
    """Gaps at random; rows that would keep few values stay whole."""
    gaps = np.random.default_rng(seed).random(rows.shape) < share
    gaps[(~gaps).sum(axis=1) < 2 * K + 2] = False
    return np.where(gaps, np.nan, rows)


def by_hand(gappy: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Row by row: the least squares solution over what is observed."""
    found = np.empty((len(gappy), basis.shape[1]))
    for i, row in enumerate(gappy):
        seen = ~np.isnan(row)
        found[i] = np.linalg.lstsq(basis[seen], row[seen], rcond=None)[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"scale": True}, {"center": False}, {"weighted": True}, {"drop": True}])
def test_least_squares_is_that_of_numpy_row_by_row(how: dict[str, Any], tmp_path: Path) -> None:
    rows, asked = planted(), {"kind": "samples", "center": True, **how}
    kept, weight = np.arange(D), np.ones(D)
    if asked.pop("weighted", False):
        weight = np.where(np.arange(D) == 4, 0.0, np.geomspace(0.1, 4, D))
        asked["column_weights"] = weight
    if asked.pop("drop", False):
        rows[:, [0, 6]] = np.nan
        kept = np.setdiff1d(kept, [0, 6])
        asked["missing"] = "drop-columns"
    found = npmdask.top_k(rows, K, store=tmp_path / "run", **asked)
    gappy = with_gaps(rows)
    seen = gappy[:, kept] - (0 if found.mean is None else found.mean)
    seen = seen / (rows.std(axis=0) if asked.get("scale") else 1) * np.sqrt(weight[kept])
    wanted = by_hand(seen[:, weight[kept] > 0], found.basis[weight[kept] > 0])
    np.testing.assert_allclose(found.scores(gappy, missing="least-squares"), wanted, atol=1e-8)
    np.testing.assert_allclose(found.transform(gappy[:, kept], missing="least-squares"), wanted, atol=1e-8)
    told = transform(tmp_path / "run", gappy, tmp_path / "scores", missing="least-squares", batch_rows=41)
    np.testing.assert_allclose(zarr.open_group(tmp_path / "scores")["data"][...], wanted, atol=1e-8)
    assert (told.rows, told.skipped, told.rows_with_gaps) == (M, 0, np.isnan(gappy[:, kept]).any(axis=1).sum())


def test_scores_are_not_shrunk_and_those_of_means_are() -> None:
    """Without noise the scores of the complete rows come back exactly; means shrink them by what is missing."""
    rows = planted(noise=0.0)
    found = npmdask.top_k(rows, K, kind="samples", center=True, missing="mean")
    gappy, full = with_gaps(rows), found.scores(rows)
    np.testing.assert_allclose(found.scores(gappy, missing="least-squares"), full, atol=1e-6)
    filled = found.scores(gappy)
    slopes = (filled * full).sum(axis=0) / (full**2).sum(axis=0)
    assert (slopes < 0.85).all()


@pytest.mark.slow
def test_a_run_of_means_keeps_its_own_scores(tmp_path: Path) -> None:
    """By default ``scores`` and ``transform`` read the rows of a run as it did: u s, to rounding."""
    gappy, store = with_gaps(planted(), 0.1), tmp_path / "run"
    source = write_zarr(tmp_path / "x", gappy, (17, 5))
    found = npmdask.top_k(source, K, center=True, missing="mean", store=store)
    own = found.left_basis() * found.values
    np.testing.assert_allclose(found.scores(source), own, atol=1e-7)
    told = transform(store, source, tmp_path / "scores", batch_rows=41)
    np.testing.assert_allclose(zarr.open_group(tmp_path / "scores")["data"][...], own, atol=1e-7)
    assert "least-squares" in told.warnings[0] and told.rows_with_gaps == np.isnan(gappy).any(axis=1).sum()
    transform(store, planted(), tmp_path / "whole")
    assert "missing" not in zarr.open_group(tmp_path / "whole").attrs["npmdask"]["scores"]


@pytest.mark.slow
def test_rows_without_evidence_are_nan_or_left_out(tmp_path: Path) -> None:
    """No value, fewer than k, and k values of columns in which a component is nothing: no score is invented."""
    rng = np.random.default_rng(0)
    plane = np.zeros((D, K))
    plane[:5, 0], plane[5:9, 1], plane[9:, 2] = 5**-0.5, 0.5, 5**-0.5
    rows = rng.standard_normal((M, K)) * [9, 5, 3] @ plane.T
    found = npmdask.top_k(rows, K, kind="samples", center=True, store=tmp_path / "run")
    gappy = rows.copy()
    gappy[3] = np.nan
    gappy[8, K - 1 :] = np.nan
    gappy[11, 9:] = np.nan  # nine values, and none of the third component
    gappy[12, 10:] = np.nan  # one of each is enough
    with pytest.warns(RuntimeWarning, match=r"3 of 300 rows \(the first is row 3, from 0\)"):
        scores = found.scores(gappy, missing="least-squares")
    assert np.flatnonzero(np.isnan(scores).any(axis=1)).tolist() == [3, 8, 11]
    with pytest.raises(BadInputError, match=r"row 3 of .* lacks too many values to determine its scores"):
        transform(tmp_path / "run", gappy, tmp_path / "scores", missing="least-squares", batch_rows=7)
    assert not (tmp_path / "scores").exists()
    told = transform(
        tmp_path / "run", gappy, tmp_path / "scores", missing="least-squares", batch_rows=7, non_finite="skip"
    )
    assert (told.rows, told.skipped, told.rows_with_gaps) == (M - 3, 3, 1)
    np.testing.assert_allclose(
        zarr.open_group(tmp_path / "scores")["data"][...], np.delete(scores, [3, 8, 11], axis=0), atol=1e-9
    )


@pytest.mark.slow
def test_uncertain_scores_are_warned_of(tmp_path: Path) -> None:
    """Two columns that almost lie along each other determine two scores, badly: so much is said, and true."""
    basis = np.linalg.qr(np.array([[1.0, 1.0], [1.0, 1.02], [1.0, -1.0], [1.0, -1.0]]))[0]
    row = np.array([[1.0, 1.0, np.nan, np.nan]])
    amplified = float(least_squares_scores(row, basis).amplified[0])
    assert amplified == pytest.approx(1 / np.linalg.svd(basis[:2], compute_uv=False)[-1])
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((M, 2)) * [9, 5] @ basis.T + 1e-3 * rng.standard_normal((M, 4))
    found = npmdask.top_k(rows, 2, kind="samples", center=True, store=tmp_path / "run")
    rows[7, 2:] = np.nan
    with pytest.warns(RuntimeWarning, match=r"1 of 300 rows have so few values"):
        found.scores(rows, missing="least-squares")
    told = transform(tmp_path / "run", rows, tmp_path / "scores", missing="least-squares")
    assert "as uncertain as those of complete rows" in told.warnings[0]


@pytest.mark.slow
def test_infinities_are_no_gaps_and_other_rules_are_none(tmp_path: Path) -> None:
    rows = planted()
    found = npmdask.top_k(rows, K, kind="samples", center=True, store=tmp_path / "run")
    gappy = with_gaps(rows)
    gappy[9] = np.nan
    gappy[9, 3] = np.inf
    with pytest.raises(BadInputError, match=r"row 9 .*not finite"):
        found.scores(gappy, missing="least-squares")
    with pytest.raises(BadInputError, match=r"row 9 of .* holds infinity"):
        transform(tmp_path / "run", gappy, tmp_path / "scores", missing="least-squares")
    with pytest.raises(BadInputError, match=r"not finite.*missing='least-squares'"):
        found.scores(with_gaps(rows))
    with pytest.raises(BadInputError, match="holds NaN"):
        transform(tmp_path / "run", with_gaps(rows), tmp_path / "scores")
    for refused in (
        lambda: found.scores(rows, missing="mean"),
        lambda: npmdask.PCA(2).fit(rows).transform(rows, missing="x"),
    ):
        with pytest.raises(BadInputError, match="as-run"):
            refused()


@pytest.mark.slow
@pytest.mark.parametrize("center", [True, False])
def test_transform_of_a_run_that_left_columns_out(tmp_path: Path, center: bool) -> None:
    """Rows may have the width of the source or of the components; gaps elsewhere are refused or left out."""
    rows = planted()
    rows[:, [2, 9]] = np.nan
    source = write_zarr(tmp_path / "x", rows, (17, 5))
    kept = np.setdiff1d(np.arange(D), [2, 9])
    found = npmdask.top_k(source, K, kind="samples", center=center, missing="drop-columns", store=tmp_path / "run")
    for given in (source, rows[:, kept]):
        told = transform(tmp_path / "run", given, tmp_path / "s", batch_rows=41, overwrite=True)
        np.testing.assert_allclose(zarr.open_group(tmp_path / "s")["data"][...], found.scores(source), atol=1e-9)
        assert (told.rows_with_gaps, told.warnings) == (0, ())
    rows[7, 0] = np.nan
    with pytest.raises(BadInputError, match=r"row 7 of .* has missing values"):
        transform(tmp_path / "run", rows, tmp_path / "s", batch_rows=3, overwrite=True)
    assert transform(tmp_path / "run", rows, tmp_path / "s", non_finite="skip", overwrite=True).skipped == 1
    with pytest.raises(BadInputError, match="11 columns"):
        transform(tmp_path / "run", rows[:, kept[1:]], tmp_path / "s", overwrite=True)


@pytest.mark.slow
def test_the_command_line_and_files_of_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = planted()
    found = npmdask.top_k(rows, K, kind="samples", center=True, store=tmp_path / "run")
    gappy = with_gaps(rows)
    text = "\n".join(",".join("" if np.isnan(x) else repr(float(x)) for x in row) for row in gappy)
    (tmp_path / "rows.csv").write_text(text + "\n")
    command = ["transform", str(tmp_path / "run"), str(tmp_path / "rows.csv"), str(tmp_path / "scores"), "--no-header"]
    assert main([*command, "--quiet"]) != 0
    capsys.readouterr()
    assert main([*command, "--quiet", "--missing", "least-squares"]) == 0
    assert f"rows with gaps {np.isnan(gappy).any(axis=1).sum()}" in capsys.readouterr().out
    wanted = found.scores(gappy, missing="least-squares")
    np.testing.assert_allclose(zarr.open_group(tmp_path / "scores")["data"][...], wanted, rtol=1e-12)


@pytest.mark.slow
def test_estimators_fit_scores_and_whiten_after() -> None:
    rows = planted()
    gappy = with_gaps(rows)
    plain, whitened = (npmdask.PCA(K, whiten=whiten).fit(rows) for whiten in (False, True))
    wanted = by_hand(gappy - plain.mean_, plain.components_.T)
    np.testing.assert_allclose(plain.transform(gappy, missing="least-squares"), wanted, atol=1e-8)
    np.testing.assert_allclose(
        whitened.transform(gappy, missing="least-squares"), wanted / np.sqrt(plain.explained_variance_), atol=1e-8
    )
    svd = npmdask.TruncatedSVD(K).fit(rows)
    np.testing.assert_allclose(
        svd.transform(gappy, missing="least-squares"), by_hand(gappy, svd.components_.T), atol=1e-7
    )
    with pytest.raises(BadInputError, match="NaN"):
        plain.transform(gappy)


def test_fields_with_land_and_gaps() -> None:
    xr = pytest.importorskip("xarray")
    from npmdask.xarray import EOF

    values = planted()[:, :12].reshape(M, 3, 4).copy()
    values[:, 1, 2] = np.nan
    field = xr.DataArray(values, dims=("time", "lat", "lon"), coords={"lat": [-60.0, 0.0, 60.0]})
    model = EOF(n_modes=2, use_coslat=True).fit(field, dim="time")
    later = field.copy(data=np.where(np.random.default_rng(2).random(values.shape) < 0.2, np.nan, values))
    later[5] = np.nan
    later[5, 0, 1] = 1.0  # one value does not determine two scores
    with pytest.warns(RuntimeWarning, match="1 of 300 rows"):
        scores = model.transform(later, missing="least-squares")
    roots = np.sqrt(np.cos(np.deg2rad(np.repeat(field.lat.values, 4))))
    seen = np.delete(np.arange(12), 6)
    flat = (later.values.reshape(M, 12) - values.reshape(M, 12).mean(axis=0))[:, seen] * roots[seen]
    wanted = by_hand(np.delete(flat, 5, axis=0), model.components().values.reshape(2, 12)[:, seen].T)
    np.testing.assert_allclose(np.delete(scores.values, 5, axis=0), wanted, atol=1e-8)
    assert np.isnan(scores.values[5]).all()
    np.testing.assert_allclose(model.scores(missing="least-squares"), model.scores(), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["mean", None])
def test_damage_of_an_ingested_store_is_seen_by_scores_of_rows_with_gaps(missing: str | None, tmp_path: Path) -> None:
    """Fails when the checksums that were recorded are not held to where gaps are read."""
    np.save(tmp_path / "x.npy", with_gaps(planted()))
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", chunks=(17, 5), non_finite="missing")
    how: dict[str, Any] = {} if missing is None else {"missing": missing}
    found = npmdask.top_k(with_gaps(planted()) if missing else planted(), K, kind="samples", center=True, **how)
    assert found.scores(tmp_path / "x.zarr", missing="least-squares").shape == (M, K)
    chunk = min((tmp_path / "x.zarr" / "data" / "c" / "1").iterdir())
    content = bytearray(chunk.read_bytes())
    content[11] ^= 1
    chunk.write_bytes(content)
    for rule in ("least-squares", "as-run")[: 1 + bool(missing)]:
        with pytest.raises(BadInputError, match="corrupt"):
            found.scores(tmp_path / "x.zarr", missing=rule)
