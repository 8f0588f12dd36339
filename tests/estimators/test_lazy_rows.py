"""Lazy in, lazy out: scores of lazy rows, and rows of lazy scores, a block at a time, beside those in memory."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr

import npmdask
from npmdask.errors import BadInputError
from tests.conftest import write_zarr

X = np.random.default_rng(5).standard_normal((60, 5)) * [9, 5, 3, 2, 1] + 4
NAMES = list("abcde")
BLOCKS = (17, 17, 17, 9)
TABLE = pd.DataFrame(X, columns=NAMES, index=np.arange(60) * 0.5)


def refuse(*_: Any) -> Any:
    raise AssertionError("nothing is computed at the call")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
@pytest.mark.parametrize("kind", [npmdask.PCA, npmdask.TruncatedSVD, npmdask.IncrementalPCA])
def test_an_array_gives_an_array_with_the_same_blocks_of_rows(kind: Any, dtype: Any) -> None:
    rows = X.astype(dtype)
    found = kind(3).fit(rows)
    lazy = da.from_array(rows, chunks=(17, 2))  # blocks of columns, too
    with dask.config.set(scheduler=refuse):
        scores = found.transform(lazy)
        back = found.inverse_transform(scores)
    want = found.transform(rows)
    assert (type(scores), scores.chunks, scores.dtype) == (da.Array, (BLOCKS, (3,)), want.dtype)
    assert (back.chunks, back.dtype) == ((BLOCKS, (5,)), found.inverse_transform(want).dtype)
    mean = 0 if kind is npmdask.TruncatedSVD else found.mean_
    tol = 1e-4 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(scores.compute(), (rows - mean) @ found.components_.T, rtol=tol, atol=tol)
    np.testing.assert_allclose(back.compute(), want @ found.components_ + mean, rtol=tol, atol=tol)


@pytest.mark.slow
def test_blocks_of_unknown_height_and_without_rows() -> None:
    lazy = da.from_array(X, chunks=(17, 5))
    few = lazy[da.from_array(np.arange(60) >= 20, chunks=17)]  # of the first block no row is left
    found = npmdask.PCA(2, whiten=True).fit(few)
    np.testing.assert_allclose(found.components_, npmdask.PCA(2).fit(X[20:]).components_, atol=1e-9)
    assert found.n_samples_ == 40
    scores = found.transform(few)
    assert np.isnan(scores.shape[0]) and scores.shape[1] == 2
    np.testing.assert_allclose(scores.compute(), found.transform(X[20:]))
    np.testing.assert_allclose(found.inverse_transform(scores).compute(), found.inverse_transform(scores.compute()))


@pytest.mark.slow
def test_a_dataframe_gives_one_with_its_index_its_columns_matched_by_name() -> None:
    found = npmdask.PCA(2).fit(TABLE)
    want = found.transform(TABLE)
    lazy = dd.from_pandas(TABLE, npartitions=3)
    for given in (lazy, lazy[NAMES[::-1]], lazy.assign(more=1.0)):
        scores = found.transform(given)
        assert isinstance(scores, dd.DataFrame) and scores.divisions == lazy.divisions
        held = scores.compute()
        pd.testing.assert_frame_equal(held, pd.DataFrame(want, TABLE.index, ["pca0", "pca1"]))
        back = found.inverse_transform(scores)
        pd.testing.assert_frame_equal(back.compute(), pd.DataFrame(found.inverse_transform(want), TABLE.index, NAMES))
    np.testing.assert_allclose(found.transform(lazy.values).compute(), want)  # without names: by position
    with pytest.raises(BadInputError, match="X has no column 'c', which the fit has; it has 'z' instead"):
        found.transform(lazy.rename(columns={"c": "z"}))
    narrow = found.transform(dd.from_pandas(TABLE.astype(np.float32), npartitions=3))
    assert {dtype.name for dtype in narrow.dtypes} == {dtype.name for dtype in narrow.compute().dtypes} == {"float32"}


def test_a_chunked_dataarray_gives_one_with_its_coordinates() -> None:
    field = xr.DataArray(X, dims=("time", "gene"), coords={"time": np.arange(60), "gene": NAMES}).chunk(time=17)
    field = field.assign_coords(year=("time", np.arange(60) // 12))
    found = npmdask.PCA(2).fit(field)
    scores = found.transform(field)
    assert (scores.dims, scores.chunks, scores.name) == (("time", "mode"), (BLOCKS, (2,)), "scores")
    assert scores.year.equals(field.year.compute()) and scores.mode.values.tolist() == ["pca0", "pca1"]
    np.testing.assert_allclose(scores.values, found.transform(X))
    np.testing.assert_allclose(found.transform(field.isel(gene=[4, 2, 0, 1, 3])).values, scores.values)
    back = found.inverse_transform(scores)
    assert (back.dims, back.gene.values.tolist()) == (("time", "gene"), NAMES) and back.time.equals(field.time)
    np.testing.assert_allclose(back.values, found.inverse_transform(scores.values))
    limited = field.assign_attrs(valid_max=float(np.sort(X.ravel())[-2]))  # a limit that xarray does not apply
    with pytest.raises(BadInputError, match=r"block \d of the rows: .*NaN"):
        found.transform(limited).compute()


@pytest.mark.slow
def test_gaps_and_marks_of_blocks_are_those_of_rows_in_memory() -> None:
    rows = X.copy()
    rows[::7, 1] = np.nan
    rows[3, 4] = -99
    lazy = da.from_array(rows, chunks=(17, 5))
    for missing in ("mean", "em"):
        found = npmdask.PCA(2, missing=missing, missing_values=-99).fit(rows)
        np.testing.assert_allclose(found.transform(lazy).compute(), found.transform(rows), atol=1e-9)
    whole = npmdask.PCA(2).fit(X)
    fitted = whole.transform(lazy, missing="least-squares")
    np.testing.assert_allclose(fitted.compute(), whole.transform(rows, missing="least-squares"))
    with pytest.raises(BadInputError, match=r"block \d of the rows: .*NaN.*fill these values in"):
        whole.transform(lazy).compute()
    masked = da.from_array(X, chunks=(17, 5)).map_blocks(lambda block: np.ma.masked_equal(block, X[3, 4]))
    with pytest.raises(ValueError, match="1 masked values"):
        whole.transform(masked).compute()


def test_sparse_blocks() -> None:
    thin = sp.csr_matrix(np.where(X > 5, X, 0))
    lazy = da.from_array(thin.toarray(), chunks=(17, 5)).map_blocks(sp.coo_matrix, meta=sp.coo_matrix((0, 0)))
    for found in (npmdask.PCA(2).fit(thin), npmdask.TruncatedSVD(2).fit(thin)):
        np.testing.assert_allclose(found.transform(lazy).compute(), found.transform(thin))


def test_scores_are_of_the_components_when_they_were_asked_for() -> None:
    found = npmdask.IncrementalPCA(2).partial_fit(X[:30])
    lazy, want = found.transform(da.from_array(X, chunks=(17, 5))), found.transform(X)
    again = pickle.loads(pickle.dumps(lazy))  # noqa: S301
    found.partial_fit(X[30:] * [1, 9, 1, 1, 1])
    np.testing.assert_array_equal(lazy.compute(), again.compute())
    np.testing.assert_allclose(lazy.compute(), want)
    other = found.transform(da.from_array(X, chunks=(17, 5)))
    both = dask.compute(lazy, other)  # which Dask would take for the same if they had the same name
    np.testing.assert_allclose(both[0], want)
    np.testing.assert_allclose(both[1], found.transform(X))
    frame = dd.from_pandas(TABLE, npartitions=2)
    older, newer = npmdask.PCA(2).fit(TABLE), npmdask.PCA(2).fit(TABLE[::2])
    for one, table in zip((older, newer), dask.compute(older.transform(frame), newer.transform(frame)), strict=True):
        np.testing.assert_allclose(table, one.transform(TABLE))


def test_a_lost_chunk_is_an_error_and_not_its_fill_value(tmp_path: Path) -> None:
    found, stored = npmdask.PCA(2).fit(X), write_zarr(tmp_path / "x.zarr", X, (17, 5))
    lazy = da.from_zarr(str(stored))
    frame = dd.from_dask_array(lazy, columns=NAMES)
    scores, of_frame = found.transform(lazy), found.transform(frame)
    np.testing.assert_allclose(scores.compute(), found.transform(X))
    np.testing.assert_allclose(of_frame.compute(), found.transform(X))
    both = (scores.sum() + (lazy * 1.0).sum()).compute()  # tasks of both graphs, side by side
    assert both == pytest.approx(found.transform(X).sum() + X.sum())
    lost = next(one for one in stored.rglob("c/1/0"))
    lost.unlink()
    assert (lazy.compute()[17:34] == 0).all()
    for lazy_scores in (scores, of_frame):
        with pytest.raises(BadInputError, match="c/1/0"):
            lazy_scores.compute()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: da.zeros((9, 3), chunks=(3, 3)), "X has 3 features, but PCA is expecting 5 features"),
        (lambda: da.zeros(9, chunks=3), "1 dimensions; 2 are needed"),
        (lambda: dd.from_pandas(TABLE.assign(a="text"), npartitions=2), "columns that are not real numbers"),
    ],
)
def test_what_is_refused_at_the_call(given: Any, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        npmdask.PCA(2).fit(X).transform(given())


def test_scores_of_another_number_of_components() -> None:
    found = npmdask.PCA(2).fit(X)
    with pytest.raises(BadInputError, match="2 columns are needed"):
        found.inverse_transform(da.zeros((9, 3), chunks=(3, 3)))
    with pytest.raises(BadInputError, match="not fitted"):
        npmdask.PCA(2).transform(da.zeros((9, 3), chunks=(3, 3)))


def test_set_output_computes_them() -> None:
    lazy = da.from_array(X, chunks=(17, 5))
    found = npmdask.PCA(2).set_output(transform="pandas").fit(X)
    assert list(found.transform(lazy).columns) == ["pca0", "pca1"]
    pd.testing.assert_frame_equal(found.transform(lazy), found.transform(X))


def test_scores_in_another_order_are_put_in_order_by_name() -> None:
    """Mutant: by position, which gives rows of nothing."""
    found = npmdask.PCA(2).fit(TABLE)
    want = found.inverse_transform(found.transform(TABLE))
    table = found.transform(dd.from_pandas(TABLE, npartitions=3))
    array = found.transform(xr.DataArray(X, dims=("row", "column"), coords={"column": NAMES}).chunk({"row": 17}))
    for scores in (table, table[["pca1", "pca0"]], array, array.isel(mode=[1, 0])):
        back = found.inverse_transform(scores)
        np.testing.assert_allclose(np.asarray(back.compute()), want, atol=1e-9)
    renamed = table.rename(columns={"pca0": "one", "pca1": "two"})
    np.testing.assert_allclose(np.asarray(found.inverse_transform(renamed).compute()), want, atol=1e-9)


def test_tables_of_scores_keep_the_index() -> None:
    shuffled = TABLE.set_index(pd.Index([f"r{i:02d}" for i in range(60)]))
    found = npmdask.PCA(2).fit(shuffled).set_output(transform="pandas")
    table = found.transform(dd.from_pandas(shuffled, npartitions=3))
    assert list(table.index) == list(shuffled.index) and list(table.columns) == ["pca0", "pca1"]
    np.testing.assert_allclose(table, found.transform(shuffled), atol=1e-9)


def test_a_series_of_dask_is_a_table_of_one_column() -> None:
    found = npmdask.PCA(1).fit(dd.from_pandas(TABLE["a"], npartitions=3))
    np.testing.assert_allclose(found.explained_variance_, [X[:, 0].var(ddof=1)])


def test_masked_values_of_a_block_are_named() -> None:
    lazy = da.ma.masked_greater(da.from_array(X, chunks=(17, 5)), 20.0)
    with pytest.raises(BadInputError, match=r"block . of the rows: .* masked values"):
        npmdask.PCA(2).fit(X).transform(lazy).compute()
