"""What people hold their numbers in: the answer is that of the plain array, and what cannot be read says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
import xarray as xr

import npmdask
from npmdask.containers.containers import values_of
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from tests.core.runs.test_loop import Stop, StopAfter

X = np.random.default_rng(0).standard_normal((300, 12)) * np.geomspace(9, 1, 12)
NAMES = [f"gene {i}" for i in range(12)]
THIN = np.where(np.abs(X) > 2, X, 0)


def annotated(values: Any) -> anndata.AnnData:
    return anndata.AnnData(values, obs=pd.DataFrame(index=[f"cell {i}" for i in range(len(X))]))


class Foreign:
    """An array of a library that is not known here, like a tensor of Torch on the CPU."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return X


def nullable() -> pd.DataFrame:
    return pd.DataFrame(X, columns=NAMES).astype("Float64")


DENSE = {
    "pandas": lambda: pd.DataFrame(X, columns=NAMES, index=[f"cell {i}" for i in range(300)]),
    "pandas, nullable": nullable,
    "pandas, Arrow": lambda: pd.DataFrame(X, columns=NAMES).astype("double[pyarrow]"),
    "pyarrow table": lambda: pa.table(dict(zip(NAMES, X.T, strict=True))),
    "pyarrow batch": lambda: pa.RecordBatch.from_pydict(dict(zip(NAMES, X.T, strict=True))),
    "xarray": lambda: xr.DataArray(X, dims=("time", "space")),
    "xarray dataset": lambda: xr.Dataset({"sst": (("time", "space"), X), "area": ("space", X[0])}),
    "polars": lambda: pl.DataFrame(X, schema=NAMES),
    "AnnData": lambda: annotated(X),
    "view of an AnnData": lambda: annotated(np.column_stack([X, X]))[:, : X.shape[1]],
    "anything with __array__": Foreign,
}
SPARSE = {
    "csr_matrix": sp.csr_matrix(THIN),
    "csr_array": sp.csr_array(THIN),
    "csc": sp.csc_matrix(THIN),
    "coo": sp.coo_array(THIN),
    "int32 pointers, f4": sp.csr_matrix(THIN.astype("f4")),
    "AnnData": annotated(sp.csr_matrix(THIN)),
    "view of an AnnData": annotated(sp.csr_matrix(np.column_stack([THIN, THIN])))[:, : THIN.shape[1]],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DENSE)
def test_the_answer_is_that_of_the_array(name: str) -> None:
    found, truth = npmdask.top_k(DENSE[name](), 3, center=True), npmdask.top_k(X, 3, center=True)
    np.testing.assert_array_equal(found.basis, truth.basis)
    np.testing.assert_array_equal(found.values, truth.values)


@pytest.mark.parametrize("name", ["pandas", "pyarrow table", "xarray"])
def test_estimators_take_them_too(name: str) -> None:
    learnt = npmdask.StreamingPCA(3).partial_fit(DENSE[name]())
    np.testing.assert_array_equal(learnt.transform(DENSE[name]()), npmdask.StreamingPCA(3).partial_fit(X).transform(X))


@pytest.mark.slow
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_matrices_in_memory(name: str) -> None:
    given = SPARSE[name]
    values = given.X if isinstance(given, anndata.AnnData) else given
    truth = np.linalg.svd(values.toarray().astype("f8"), compute_uv=False)[:3]
    found = npmdask.top_k(given, 3)
    np.testing.assert_allclose(found.values, truth, rtol=1e-5 if values.dtype == np.float32 else 1e-9)
    centred = values.toarray() - values.toarray().mean(axis=0)
    np.testing.assert_allclose(
        npmdask.top_k(given, 3, center=True).values, np.linalg.svd(centred, compute_uv=False)[:3], rtol=1e-5
    )


@pytest.mark.slow
def test_entries_that_are_given_twice_are_summed_and_the_matrix_is_left_as_it_is() -> None:
    given = sp.csr_matrix((np.ones(6), np.array([1, 1, 0, 2, 2, 1]), np.array([0, 2, 4, 6])), shape=(3, 3))
    before = given.data.copy(), given.indices.copy()
    truth = np.linalg.svd(given.toarray(), compute_uv=False)[:2]
    np.testing.assert_allclose(npmdask.top_k(given, 2).values, truth, rtol=1e-9)
    scaled, dense = (npmdask.top_k(x, 2, center=True, scale=True) for x in (given, given.toarray()))
    np.testing.assert_allclose(scaled.values, dense.values, rtol=1e-6)  # squares of entries, not of their parts
    np.testing.assert_array_equal(given.data, before[0])
    np.testing.assert_array_equal(given.indices, before[1])


@pytest.mark.slow
def test_a_matrix_whose_arrays_were_changed_is_looked_at_again() -> None:
    """SciPy remembers that no entry was given twice: a column that was renamed would count twice in the deviations."""
    given = sp.csr_matrix(THIN)
    assert given.has_canonical_format
    row = int(np.argmax(np.diff(given.indptr) > 1))
    given.indices[given.indptr[row] + 1] = given.indices[given.indptr[row]]
    found, truth = (npmdask.top_k(x, 3, center=True, scale=True).values for x in (given, given.toarray()))
    np.testing.assert_allclose(found, truth, rtol=1e-6)


@pytest.mark.slow
def test_columns_of_several_types_are_one_matrix() -> None:
    columns = {"a": X[:, 0], "b": X[:, 1] > 0, "c": np.arange(300)}
    truth = npmdask.top_k(np.column_stack(list(columns.values())), 2).values
    np.testing.assert_array_equal(npmdask.top_k(pd.DataFrame(columns), 2).values, truth)
    np.testing.assert_array_equal(npmdask.top_k(pa.table(columns), 2).values, truth)


@pytest.mark.parametrize("given", [X, sp.csr_matrix(THIN), pd.DataFrame(X)], ids=["array", "sparse", "table"])
def test_no_private_release_of_what_lies_in_memory(given: Any, tmp_path: Path) -> None:
    """It has no SHA-256 that binds a key and a budget to it."""
    privacy = npmdask.Privacy(
        epsilon=1.0,
        delta=1e-6,
        neighboring_relation="record_replace",
        clip_norm=1.0,
        ledger=str(tmp_path / "ledger.sqlite"),
        dataset="a",
    )
    kind = "sparse" if sp.issparse(given) else "samples"
    with pytest.raises((BadInputError, RefusedError), match="ingest"):
        npmdask.top_k(given, 2, kind=kind, algorithm="power", max_steps=2, privacy=privacy, store=tmp_path / "run")


@pytest.mark.slow
def test_what_they_are_is_their_content(tmp_path: Path) -> None:
    """A store is for the same numbers only, whatever they lie in."""
    given = sp.csr_matrix(THIN)
    npmdask.top_k(given, 2, store=tmp_path / "run")
    assert open_source(given).fingerprint == open_source(sp.coo_matrix(THIN)).fingerprint
    other = given.copy()
    other.data[7] += 1
    with pytest.raises(RefusedError, match="belongs to"):
        npmdask.top_k(other, 2, store=tmp_path / "run")
    ones = sp.csr_matrix(np.repeat([[1.0] * 6 + [0.0] * 6], 4, axis=0))
    elsewhere = sp.csr_matrix((ones.data, ones.indices + 1, ones.indptr), shape=ones.shape)
    below = sp.csr_matrix((np.ones(24), np.tile(np.arange(6), 4), [0, 6, 12, 18, 24, 24]), shape=(5, 12))
    above = sp.csr_matrix((np.ones(24), np.tile(np.arange(6), 4), [0, 0, 6, 12, 18, 24]), shape=(5, 12))
    assert open_source(elsewhere).fingerprint != open_source(ones).fingerprint
    assert open_source(above).fingerprint != open_source(below).fingerprint
    wider = sp.csr_matrix((given.data, given.indices, given.indptr), shape=(300, 13))
    assert open_source(wider).fingerprint != open_source(given).fingerprint


def test_values_of_anything_else_is_what_was_given() -> None:
    for given in (X, X.tolist(), "x.zarr", None, sp.csr_matrix(THIN)):
        assert values_of(given) is given


@pytest.mark.parametrize(
    "made, said",
    [
        (lambda: pd.DataFrame({"a": [1.0, 2], "b": ["x", "y"]}), r"1 columns that are not real numbers \(b\)"),
        (lambda: pd.DataFrame({"a": [1.0, np.nan], "b": [1.0, 2]}), r"1 missing values in 1 columns \(a\).*df.dropna"),
        (lambda: pd.DataFrame({"a": [1, None], "b": [1, 2]}, dtype="Int64"), r"1 missing values in 1 columns \(a\)"),
        (lambda: pa.table({"a": [1.0, None], "b": [1.0, 2.0]}), r"1 missing values in 1 columns \(a\).*drop_null"),
        (lambda: pa.table({"a": ["x"], "b": [1.0]}), r"1 columns that are not real numbers \(a\)"),
        (lambda: pa.table({}), "no columns"),
        (lambda: xr.Dataset({"u": (("a", "b"), X), "v": (("a", "b"), X)}), r"2 variables of two dimensions \(u, v\)"),
        (lambda: xr.DataArray(X, dims=("a", "b"), attrs={"scale_factor": 0.1}), "scale_factor = 0.1.*not decoded"),
        (lambda: xr.DataArray(X.astype("i2"), dims=("a", "b"), attrs={"_FillValue": 3}), "_FillValue = 3"),
        (lambda: anndata.AnnData(obs=pd.DataFrame(index=["a"])), "has no X"),
        (lambda: sp.csr_matrix(THIN + 0j), "complex128; real numbers"),
        (lambda: sp.coo_array(np.ones(4)), "1 dimensions; 2 are needed"),
        (lambda: sp.csr_matrix((5, 3)), "no entries"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(made: Any, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        npmdask.top_k(made(), 1)


@pytest.mark.parametrize("name", ["pandas", "xarray"])
def test_a_stream_takes_every_row_of_a_table_once(name: str) -> None:
    asked: dict[str, Any] = {"algorithm": "spm", "batch_rows": 50}
    found, truth = npmdask.stream_pca(DENSE[name](), 2, **asked), npmdask.stream_pca(X, 2, **asked)
    assert found.rows == truth.rows == 300
    np.testing.assert_array_equal(found.basis, truth.basis)


def test_a_stream_of_a_sparse_matrix_is_that_of_its_rows() -> None:
    asked: dict[str, Any] = {"algorithm": "spm", "batch_rows": 50}
    found, truth = npmdask.stream_pca(sp.coo_matrix(THIN), 2, **asked), npmdask.stream_pca(THIN, 2, **asked)
    np.testing.assert_allclose(np.abs(found.basis), np.abs(truth.basis), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("given", [X, sp.csr_matrix(THIN), pd.DataFrame(X)], ids=["array", "sparse", "table"])
def test_who_resumes_is_sent_to_the_program_that_has_the_data(given: Any, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"algorithm": "power", "iteration_rank": 4, "max_steps": 5, "store": tmp_path / "run"}
    with pytest.raises(Stop):
        npmdask.top_k(given, 2, observer=StopAfter(2), **asked)
    with pytest.raises(BadInputError, match=r"were in the memory of a program .* the same data and store"):
        npmdask.resume(tmp_path / "run")
    whole = npmdask.top_k(given, 2, **{**asked, "store": tmp_path / "whole"})
    np.testing.assert_array_equal(npmdask.top_k(given, 2, **asked).basis, whole.basis)
    npmdask.stream_pca(given, 2, batch_rows=50, store=tmp_path / "stream")
    with pytest.raises(RefusedError, match="only the program that started it can provide"):
        npmdask.resume(tmp_path / "stream")
