"""PCA and TruncatedSVD beside scikit-learn's own: the same numbers, its checks, and data that are not in memory."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn.decomposition as theirs
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import npmdask
from npmdask.errors import BadInputError
from tests.conftest import write_zarr
from tests.core.operators.test_operators import write_csr

RNG = np.random.default_rng(3)
X = RNG.standard_normal((400, 15)) * np.geomspace(9, 0.3, 15) + 20
THIN = sp.csr_array(np.where(RNG.random((400, 15)) < 0.2, X, 0))
NAMES = [f"gene {i}" for i in range(15)]


def expected(estimator: Any) -> dict[str, str]:
    """As many components as rows, where these are fewer than columns: more of repeated rows, all without variance."""
    why = "min(n, d) of n repeated rows is another number"
    checks = ("dense", "sparse") if isinstance(estimator, npmdask.PCA) and estimator.n_components is None else ()
    return {f"check_sample_weight_equivalence_on_{layout}_data": why for layout in checks}


@pytest.mark.slow
@parametrize_with_checks(
    [npmdask.PCA(), npmdask.PCA(n_components=2), npmdask.TruncatedSVD()], expected_failed_checks=expected
)
@pytest.mark.filterwarnings("default")
def test_the_checks_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def same(ours: Any, other: Any, rows: Any, tol: float = 1e-8) -> None:
    for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(other, name), rtol=tol, atol=tol, err_msg=name)
    scores = ours.transform(rows)
    plain = rows.toarray() if sp.issparse(rows) else rows
    np.testing.assert_allclose(scores, other.transform(plain), rtol=tol, atol=tol * np.abs(scores).max())
    back = ours.inverse_transform(scores)
    np.testing.assert_allclose(back, other.inverse_transform(scores), rtol=tol, atol=tol * np.abs(back).max())


@pytest.mark.parametrize("asked", [None, 4, 15, 0.8, 0.999])
@pytest.mark.parametrize("whiten", [False, True])
def test_pca_is_that_of_scikit_learn(asked: Any, whiten: bool) -> None:
    ours = npmdask.PCA(asked, whiten=whiten).fit(X)
    other = theirs.PCA(asked, whiten=whiten, svd_solver="full").fit(X)
    same(ours, other, X)
    np.testing.assert_allclose(ours.mean_, other.mean_)
    assert (ours.n_components_, ours.n_samples_) == (other.n_components_, other.n_samples_)
    np.testing.assert_allclose(ours.noise_variance_, other.noise_variance_, rtol=1e-8)


def test_no_components_leave_the_mean_and_the_noise() -> None:
    ours, other = npmdask.PCA(0).fit(X), theirs.PCA(0).fit(X)
    assert ours.transform(X).shape == (400, 0) and ours.n_components_ == 0
    np.testing.assert_allclose(ours.inverse_transform(np.empty((2, 0))), [X.mean(axis=0)] * 2)
    np.testing.assert_allclose(ours.noise_variance_, other.noise_variance_)
    np.testing.assert_allclose(ours.get_precision(), other.get_precision())
    np.testing.assert_allclose(ours.score(X), other.score(X))


def test_what_says_nothing_is_no_attribute_to_who_compares_estimators() -> None:
    for ours, other in ((npmdask.PCA(2), theirs.PCA(2)), (npmdask.TruncatedSVD(2), theirs.TruncatedSVD(2))):
        names = [{n for n in dir(one.fit(X)) if n.endswith("_") and n[0] != "_"} for one in (ours, other)]
        assert names[0] == names[1] and ours.missing_ is None
    assert "missing_" in dir(npmdask.PCA(2, missing="mean").fit(X))


def test_fewer_rows_than_columns() -> None:
    ours, other = npmdask.PCA(5).fit(X[:9]), theirs.PCA(5, svd_solver="full").fit(X[:9])
    same(ours, other, X[:9])
    every = npmdask.PCA().fit(X[:9])  # the last has no variance
    np.testing.assert_allclose(every.explained_variance_[:8], theirs.PCA().fit(X[:9]).explained_variance_[:8])
    assert every.explained_variance_[8] < 1e-10 and every.components_.shape == (9, 15)


@pytest.mark.slow
def test_columns_without_variance_and_far_from_zero() -> None:
    constant = np.ones((30, 4)) * [1, 2, 3, 4]
    found = npmdask.PCA(2).fit(constant)
    assert np.abs(found.explained_variance_).max() < 1e-20 and np.isnan(found.explained_variance_ratio_).all()
    far = X + 1e6
    same(npmdask.PCA(4).fit(far), theirs.PCA(4, svd_solver="full").fit(far), far, 1e-5)
    with pytest.warns(RuntimeWarning, match="floor set by rounding"):  # products with A^T A hold half of the digits
        svd = npmdask.TruncatedSVD(3).fit(far)
    exact = theirs.TruncatedSVD(3, algorithm="arpack").fit(far)
    np.testing.assert_allclose(svd.explained_variance_ratio_.sum(), exact.explained_variance_ratio_.sum(), atol=1e-3)


@pytest.mark.parametrize("rows", [X, THIN], ids=["dense", "sparse"])
def test_truncated_svd_is_that_of_scikit_learn(rows: Any) -> None:
    same(npmdask.TruncatedSVD(4).fit(rows), theirs.TruncatedSVD(4, algorithm="arpack").fit(rows), rows, 1e-6)


def test_sparse_rows_are_centred_without_filling_them_in() -> None:
    same(npmdask.PCA(4).fit(THIN), theirs.PCA(4, svd_solver="full").fit(THIN.toarray()), THIN, 1e-6)


@pytest.mark.slow
def test_rows_that_are_not_in_memory(tmp_path: Path) -> None:
    stored = str(write_zarr(tmp_path / "x.zarr", X, (90, 15)))
    write_csr(tmp_path / "thin.zarr", sp.csr_matrix(THIN), 500)
    for estimator in (npmdask.PCA(3), npmdask.TruncatedSVD(3)):
        for dense in (da.from_array(X, chunks=(90, 15)), stored):
            ours, other = clone(estimator).fit(dense), clone(estimator).fit(X)
            np.testing.assert_allclose(ours.components_, other.components_, atol=1e-8)
            np.testing.assert_allclose(ours.explained_variance_ratio_, other.explained_variance_ratio_, rtol=1e-8)
            np.testing.assert_allclose(ours.transform(dense), other.transform(X), atol=1e-6)
            assert ours.n_features_in_ == 15
        for thin in (da.from_array(THIN.toarray(), chunks=(90, 15)).map_blocks(sp.csr_matrix), tmp_path / "thin.zarr"):
            ours, other = clone(estimator).fit(thin), clone(estimator).fit(THIN)
            np.testing.assert_allclose(ours.components_, other.components_, atol=1e-7)
            np.testing.assert_allclose(ours.explained_variance_ratio_, other.explained_variance_ratio_, rtol=1e-7)
            np.testing.assert_allclose(ours.transform(thin), other.transform(THIN), atol=1e-5)


@pytest.mark.slow
def test_in_the_company_of_scikit_learn() -> None:
    labels = X[:, 0] > 20
    search = GridSearchCV(
        make_pipeline(StandardScaler(), npmdask.PCA(), LogisticRegression()), {"pca__n_components": [1, 5]}, cv=3
    ).fit(X, labels)
    assert search.best_params_ == {"pca__n_components": 5}
    table = pd.DataFrame(X, columns=NAMES)
    columns = ColumnTransformer([("all", npmdask.PCA(2), NAMES[:6]), ("svd", npmdask.TruncatedSVD(1), NAMES[6:])])
    assert columns.fit_transform(table).shape == (400, 3)
    named = npmdask.PCA(2).set_output(transform="pandas").fit(table)
    assert list(named.transform(table).columns) == ["pca0", "pca1"] == list(named.get_feature_names_out())
    assert list(named.feature_names_in_) == NAMES
    again = pickle.loads(pickle.dumps(named))  # noqa: S301
    pd.testing.assert_frame_equal(again.transform(table), named.transform(table))
    state = np.random.RandomState(0)
    np.testing.assert_allclose(npmdask.PCA(2, random_state=state).fit(X).components_, named.components_, atol=1e-8)


@pytest.mark.slow
def test_a_fit_with_a_store_is_not_done_twice(tmp_path: Path) -> None:
    first = npmdask.PCA(3, store=tmp_path / "run").fit(X)
    np.testing.assert_array_equal(first.components_, npmdask.PCA(3, store=tmp_path / "run").fit(X).components_)
    with pytest.raises(npmdask.RefusedError, match="differ"):
        npmdask.PCA(4, store=tmp_path / "run").fit(X)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: npmdask.PCA("most").fit(X), "n_components = 'most': give a number"),
        (lambda: npmdask.PCA(16).fit(X), "between 0 and min"),
        (lambda: npmdask.PCA(-1).fit(X), "between 0 and min"),
        (lambda: npmdask.PCA(0, svd_solver="randomized").fit(X), "between 1 and min"),
        (lambda: npmdask.PCA(True).fit(X), "between 0 and min"),
        (lambda: npmdask.PCA(1.5).fit(X), "between 0 and min"),
        (lambda: npmdask.TruncatedSVD(0).fit(X), "between 1 and min"),
        (lambda: npmdask.TruncatedSVD(compute=False).fit(X), "compute = False: a fit computes its answer"),
        (lambda: npmdask.PCA(2).fit(X[:1]), "1 sample"),
        (lambda: npmdask.PCA(2).fit(da.from_array(X[:1])), "1 sample"),
        (lambda: npmdask.PCA(2).fit("nowhere.zarr"), "there is nothing at"),
        (lambda: npmdask.PCA(2).fit(X).transform(X[:, 1:]), "X has 14 features, but PCA is expecting 15"),
        (
            lambda: npmdask.PCA(2).fit(X).transform(da.from_array(X[:, 1:])),
            "X has 14 features, but PCA is expecting 15",
        ),
        (lambda: npmdask.PCA(2).fit(X).inverse_transform(X), "2 columns are needed"),
        (lambda: npmdask.PCA(2).fit(np.where(X > 30, np.nan, X)), "NaN"),
        (lambda: npmdask.PCA(2).fit(pd.DataFrame({"a": ["x", "y"]})), "convert|no real numbers"),
    ],
)
def test_what_is_refused(given: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        given()


def test_nothing_is_known_before_fit() -> None:
    with pytest.raises(NotFittedError):
        npmdask.PCA(2).transform(X)


WITHOUT = """
import sys
sys.modules["sklearn"] = None
import numpy as np, npmdask
x = np.random.default_rng(0).standard_normal((200, 6)) * np.arange(1, 7)
pca = npmdask.PCA(2, whiten=True)
try:
    pca.transform(x)
except npmdask.BadInputError as error:
    assert "call fit first" in str(error)
scores = pca.fit_transform(x)
assert np.allclose(np.cov(scores.T), np.eye(2)), np.cov(scores.T)
assert list(pca.get_feature_names_out()) == ["pca0", "pca1"] and pca.get_params()["n_components"] == 2
assert npmdask.TruncatedSVD(2).set_params(n_components=3).fit_transform(x.tolist()).shape == (200, 3)
try:
    npmdask.PCA(2).fit(np.where(x > 3, np.nan, x))
except npmdask.BadInputError as error:
    assert "nan" in str(error)
"""


@pytest.mark.slow
def test_scikit_learn_is_no_dependency() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_a_run_that_did_not_converge_is_said() -> None:
    flat = np.random.default_rng(0).standard_normal((3000, 200))
    with pytest.warns(RuntimeWarning, match="not converged|gave up|tol"):
        npmdask.PCA(2, tol=1e-15).fit(flat)
    with pytest.raises(BadInputError, match="tol"):
        npmdask.PCA(2, tol=-1).fit(X)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_weighted_rows_and_columns_are_scored_and_given_back_in_units_of_the_data(sparse: bool) -> None:
    rng = np.random.default_rng(5)
    rows: Any = THIN.toarray() if sparse else X
    u, v = rng.uniform(0, 3, 400), rng.uniform(0.1, 4, 15)
    u[:90] = 0
    mean = u @ rows / u.sum()
    a = (rows - mean) * np.sqrt(v)
    values, vectors = np.linalg.eigh((a.T * u) @ a)
    pca = npmdask.PCA(15, column_weights=v, tol=1e-12).fit(THIN if sparse else rows, sample_weight=u)
    np.testing.assert_allclose(pca.mean_, mean)
    np.testing.assert_allclose(pca.explained_variance_, values[::-1] / (u.sum() - 1), rtol=1e-8)
    np.testing.assert_allclose(pca.explained_variance_ratio_, values[::-1] / values.sum(), rtol=1e-8)
    np.testing.assert_allclose(pca.singular_values_, np.sqrt(values[::-1]), rtol=1e-8)
    np.testing.assert_allclose(np.abs(pca.components_), np.abs(vectors.T[::-1]), atol=1e-6)
    scores = pca.transform(THIN if sparse else rows)
    np.testing.assert_allclose(scores, a @ pca.components_.T, atol=1e-8)
    np.testing.assert_allclose(pca.inverse_transform(scores), rows, atol=1e-7)
    plain = pca.set_params(column_weights=None).fit(rows)
    np.testing.assert_allclose(plain.inverse_transform(plain.transform(rows)), rows, atol=1e-7)
    few = npmdask.PCA(3).fit(rows)
    np.testing.assert_allclose(plain.explained_variance_[:3], few.explained_variance_, rtol=1e-8)
    with pytest.raises(BadInputError, match="row weights add up to 1, and variances"):
        npmdask.PCA(2).fit(rows, sample_weight=u / u.sum())


@pytest.mark.parametrize("shape", [(9, 19), (40, 6), (12, 12)])
def test_the_noise_of_weighted_rows_is_that_of_rows_that_are_repeated(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(3).standard_normal(shape)
    weights = np.resize([0, 1, 2, 3, 1], shape[0])
    found = npmdask.PCA(2).fit(rows, sample_weight=weights)
    again = theirs.PCA(2, svd_solver="full").fit(np.repeat(rows, weights, axis=0))
    np.testing.assert_allclose(found.noise_variance_, again.noise_variance_, rtol=1e-9)
