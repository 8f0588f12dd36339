"""What a solution gives back: variances, scores and rows as scikit-learn has them; names of rows and columns."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import anndata
import dask.array as da
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.preprocessing import StandardScaler

import npmdask
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.storage.labels import LONGEST, Labels, axis_of
from npmdask.errors import BadInputError, MissingExtraError
from tests.conftest import needs, write_zarr

GENES = [f"gene{i}" for i in range(24)]


def rows(n: int = 400, d: int = 24) -> np.ndarray:
    """Correlated columns of different sizes, far from zero: what is not centred or scaled shows."""
    rng = np.random.default_rng(3)
    return rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) * np.arange(1, d + 1) + 40.0


def counts(n: int = 400, d: int = 24) -> sp.csr_matrix:
    return sp.csr_matrix(np.random.default_rng(4).poisson(0.4, (n, d)).astype(np.float64) * np.arange(1, d + 1))


def agree(found: np.ndarray, wanted: np.ndarray, axis: int = 0) -> None:
    """Up to the sign of each component."""
    signs = np.sign(np.sum(found * wanted, axis=axis, keepdims=True))
    np.testing.assert_allclose(found * signs, wanted, rtol=0, atol=1e-7 * np.abs(wanted).max())


@pytest.mark.slow
@needs("containers")
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("held", ["samples", "matrix", "lazy", "stored", "sparse"])
def test_the_same_numbers_as_scikit_learn(held: str, scale: bool, tmp_path: Path) -> None:
    plain = counts().toarray() if held == "sparse" else rows()
    given: Any = {
        "samples": plain,
        "matrix": plain,
        "lazy": da.from_array(plain, chunks=(77, 24)),
        "stored": tmp_path / "x.zarr",
        "sparse": counts(),
    }[held]
    write_zarr(tmp_path / "x.zarr", plain, (64, 24))
    kind = "samples" if held == "samples" else None
    solution = npmdask.top_k(given, 3, kind=kind, center=True, scale=scale, tol=1e-11)
    scaler = StandardScaler(with_mean=False, with_std=scale).fit(plain)
    pca = PCA(3, svd_solver="full").fit(scaler.transform(plain))
    agree(solution.components, pca.components_, axis=1)
    agree(solution.scores(given), pca.transform(scaler.transform(plain)))
    np.testing.assert_allclose(solution.explained_variance, pca.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(solution.explained_variance_ratio, pca.explained_variance_ratio_, rtol=1e-7)
    np.testing.assert_allclose(solution.singular_values, pca.singular_values_, rtol=1e-9)
    back = scaler.inverse_transform(pca.inverse_transform(pca.transform(scaler.transform(plain))))
    np.testing.assert_allclose(solution.inverse_transform(solution.transform(given)), back, atol=1e-6)
    np.testing.assert_allclose(solution.mean, plain.mean(axis=0))  # type: ignore[arg-type]


@pytest.mark.slow
@needs("containers")
def test_what_was_not_centred_is_an_svd(tmp_path: Path) -> None:
    held = counts()
    solution = npmdask.top_k(held, 3, tol=1e-11)
    svd = TruncatedSVD(3, algorithm="arpack").fit(held)
    agree(solution.components, svd.components_, axis=1)
    np.testing.assert_allclose(solution.singular_values, svd.singular_values_, rtol=1e-9)
    agree(solution.scores(held), svd.transform(held))
    assert solution.mean is None
    with pytest.raises(BadInputError, match="not centred, so these values are not variances: run with center=True"):
        _ = solution.explained_variance
    samples = npmdask.top_k(held.toarray(), 3, kind="samples", tol=1e-11)
    np.testing.assert_allclose(samples.singular_values, svd.singular_values_, rtol=1e-9)


@pytest.mark.slow
@needs("containers")
def test_a_wide_row_is_cut_by_chunks_and_scored_whole(tmp_path: Path) -> None:
    """Chunks of entries that end in the middle of rows, empty rows at both ends."""
    held = counts()
    held = sp.vstack([sp.csr_matrix((5, 24)), held, sp.csr_matrix((3, 24))]).tocsr()
    group = zarr.create_group(tmp_path / "x.zarr")
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(held.shape)})
    for name in ("data", "indices", "indptr"):
        part = getattr(held, name)
        group.create_array(name, shape=part.shape, dtype=part.dtype, chunks=(97,))[...] = part
    solution = npmdask.top_k(held, 2)
    np.testing.assert_array_equal(solution.scores(tmp_path / "x.zarr"), solution.scores(held))


@needs("containers")
def test_rows_that_cannot_be_scored() -> None:
    solution = npmdask.top_k(rows(), 2, kind="samples", center=True)
    with pytest.raises(BadInputError, match="has 23 columns and the components have 24"):
        solution.scores(rows()[:, 1:])
    bad = rows()
    bad[7, 3] = np.nan
    with pytest.raises(BadInputError, match=r"row 7 of .* not finite"):
        solution.scores(bad)
    with pytest.raises(BadInputError, match=r"coordinates of shape \(5, 3\): 2 columns are needed"):
        solution.inverse_transform(np.zeros((5, 3)))
    with pytest.raises(BadInputError, match="the scores"):
        solution.inverse_transform("abc")
    with pytest.raises(BadInputError, match="1 masked values"):
        solution.scores(np.ma.masked_less_equal(rows(), rows().min()))


@needs("containers")
def test_a_solution_needs_no_store() -> None:
    """It was given none, and it is sent elsewhere."""
    frame = pd.DataFrame(rows(), columns=GENES)
    solution = npmdask.top_k(frame, 2, kind="samples", center=True)
    assert not Path(solution.store).exists()
    sent = pickle.loads(pickle.dumps(solution))  # noqa: S301
    np.testing.assert_array_equal(sent.scores(frame), solution.scores(frame))
    assert sent.to_xarray().identical(solution.to_xarray())


@pytest.mark.slow
@needs("containers", "symmetric")
def test_what_the_values_are_is_said_of_rows_that_are_not_centred() -> None:
    """Mutants: said of centred rows, or of a matrix that has no rows but columns."""
    x = rows()
    for kind, said in (("matrix", "singular values"), ("samples", "mean squares")):
        assert npmdask.top_k(x, 2, kind=kind).values_are == f"{said} of rows that are not centred"
        assert npmdask.top_k(x, 2, kind=kind, center=True).values_are == "values"
    assert npmdask.top_k(sp.csr_matrix(x), 2).values_are == "singular values of rows that are not centred"
    assert npmdask.top_k(x.T @ x, 2, kind="symmetric").values_are == "values"


def frame() -> pd.DataFrame:
    return pd.DataFrame(rows(), columns=GENES, index=[f"cell{i}" for i in range(400)])


def grid() -> xr.DataArray:
    """Time, a dimension with coordinates, and one without."""
    times = pd.date_range("2001-03-01", periods=400, freq="6h")
    values = rows().reshape(400, 4, 6)
    return xr.DataArray(values, dims=("time", "lat", "lon"), coords={"time": times, "lat": [-30.0, -10, 10, 30]})


def annotated() -> Any:
    found = anndata.AnnData(counts())
    found.obs_names, found.var_names = [f"cell{i}" for i in range(400)], GENES
    return found


NAMED = {
    "pandas": (frame, None, "row", ["column"]),
    "polars": (lambda: pl.DataFrame(rows(), schema=GENES), None, None, ["column"]),
    "arrow": (lambda: pa.table(dict(zip(GENES, rows().T, strict=True))), None, None, ["column"]),
    "xarray": (grid, "time", "time", ["lat", "lon"]),
    "lazy xarray": (lambda: grid().chunk({"time": 90}), "time", "time", ["lat", "lon"]),
    "dataset": (lambda: grid().to_dataset(name="t"), "time", "time", ["lat", "lon"]),
    "anndata": (annotated, None, "obs", ["var"]),
    "view of anndata": (lambda: annotated()[:, :], None, "obs", ["var"]),
}


@pytest.mark.slow
@needs("containers", "formats")
@pytest.mark.parametrize("name", NAMED)
def test_names_of_rows_and_columns(name: str, tmp_path: Path) -> None:
    make, dim, row, columns = NAMED[name]
    given = make()
    store = tmp_path / "run"
    solution = npmdask.top_k(given, 2, dim=dim, center=True, store=store)
    stored = Labels.of_bundle(*RunStore(store).read_part("labels"))  # type: ignore[misc]
    again = npmdask.top_k(given, 2, dim=dim, center=True, store=store)
    for labels in (solution.labels, stored, again.labels):
        assert [axis.name for axis in labels.columns] == columns
        assert [axis.name for axis in labels.rows] == ([] if row is None else [row])
        if columns == ["lat", "lon"]:
            np.testing.assert_array_equal(labels.columns[0].values, [-30.0, -10, 10, 30])
            assert labels.columns[1].values is None and labels.columns[1].size == 6
            np.testing.assert_array_equal(labels.rows[0].values, grid().time.values)
        else:
            assert labels.columns[0].values.tolist() == GENES  # type: ignore[union-attr]
        if row in ("row", "obs"):
            assert labels.rows[0].values[[0, 399]].tolist() == ["cell0", "cell399"]  # type: ignore[index]
    found = solution.to_xarray()
    assert found.components.dims == ("mode", *columns)
    np.testing.assert_array_equal(found.components.values.reshape(2, -1), solution.components)
    found.to_netcdf(tmp_path / "eof.nc", engine="h5netcdf" if "h5netcdf" in sys.modules else None)


@pytest.mark.slow
@needs("containers", "formats")
def test_names_change_no_bit(tmp_path: Path) -> None:
    named, bare = (npmdask.top_k(given, 3, center=True) for given in (frame(), rows()))
    np.testing.assert_array_equal(named.basis, bare.basis)
    assert named.fingerprint == bare.fingerprint
    npmdask.top_k(rows(), 3, store=tmp_path / "bare")
    assert not (tmp_path / "bare" / "labels").exists()


@pytest.mark.slow
@needs("containers")
def test_names_that_are_not_text() -> None:
    table = pd.DataFrame(rows()[:, :4], columns=pd.MultiIndex.from_product([["a", "b"], [1, 2]]))
    assert npmdask.top_k(table, 1).labels.columns[0].values.tolist() == [  # type: ignore[union-attr]
        "('a', 1)", "('a', 2)", "('b', 1)", "('b', 2)",
    ]  # fmt: skip
    long = pd.DataFrame(rows()[:, :2], columns=["x" * 10**6, "y"])
    assert [len(v) for v in npmdask.top_k(long, 1).labels.columns[0].values] == [LONGEST, 1]  # type: ignore[union-attr]
    years = pd.DataFrame(rows()[:, :3], columns=[2001, 2002, 2003])
    assert npmdask.top_k(years, 1).labels.columns[0].values.tolist() == [2001, 2002, 2003]  # type: ignore[union-attr]


@needs("containers")
def test_times_of_a_table_are_times() -> None:
    times = pd.date_range("2001-01-01", periods=400, freq="D", name="day")
    labels = npmdask.top_k(pd.DataFrame(rows(), index=times), 1, center=True).labels
    assert labels.rows[0].name == "day"
    np.testing.assert_array_equal(labels.rows[0].values, times.to_numpy())  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [["a", "é\n\0b", ""], [1.5, np.nan], np.array(["2001-01", "NaT"], "M8[s]"), [3, 4]])
def test_labels_are_kept_as_they_are(values: Any) -> None:
    before = Labels(columns=(axis_of("x", values), axis_of("y", None, 7)))
    for after in (Labels.of_bundle(*before.bundle()), Labels.of_array(before.array())):
        assert after.columns[0].values.dtype == before.columns[0].values.dtype  # type: ignore[union-attr]
        np.testing.assert_array_equal(after.columns[0].values, before.columns[0].values)  # type: ignore[arg-type]
        assert (after.columns[1].name, after.columns[1].size, after.columns[1].values) == ("y", 7, None)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    solution = npmdask.top_k(np.diag([2.0, 1.0]), 1)
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(MissingExtraError, match=r"xarray is not installed, which this needs: pip install xarray$"):
        solution.to_xarray()
