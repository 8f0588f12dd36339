"""IncrementalPCA beside scikit-learn's own and beside PCA: attributes, accuracy where the spectrum decays slowly."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn.decomposition as theirs
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from npmdask import BadInputError, IncrementalPCA
from npmdask.core.numerics.subspaces import max_sin_theta
from tests.conftest import write_zarr

RNG = np.random.default_rng(3)
X = RNG.standard_normal((400, 15)) * np.geomspace(9, 0.3, 15) + 20
D, K = 60, 5


def expected(estimator: Any) -> dict[str, str]:
    """As many components as rows of the first batch, of which repeated rows are more."""
    why = "min(n, d) of n repeated rows is another number"
    layouts = ("dense", "sparse") if estimator.n_components is None else ()
    return {f"check_sample_weight_equivalence_on_{layout}_data": why for layout in layouts}


@pytest.mark.slow
@parametrize_with_checks([IncrementalPCA(), IncrementalPCA(2, whiten=True)], expected_failed_checks=expected)
@pytest.mark.filterwarnings("default")
def test_the_checks_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def slowly_decaying(exponent: float, *, ordered: bool) -> np.ndarray:
    """Variances i^(-2 exponent), turned; ``ordered``: by the size of the rows, so that no batch is like the others."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((D, D)))[0]
    rows = rng.standard_normal((3000, D)) * np.arange(1, D + 1.0) ** -exponent @ turn
    return (rows[np.argsort(np.linalg.norm(rows, axis=1))] if ordered else rows) + 5


def lost(found: Any, best: Any, rows: np.ndarray) -> float:
    """Of the variance that the best k components capture, the share that these do not."""
    moved = rows - rows.mean(axis=0)
    return float(1 - np.square(moved @ found.components_.T).sum() / np.square(moved @ best.components_.T).sum())


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("size", [25, 200])
def test_it_is_more_accurate_than_that_of_scikit_learn(exponent: float, ordered: bool, size: int) -> None:
    """Fails with k directions held in place of 4 k, which is scikit-learn's."""
    rows = slowly_decaying(exponent, ordered=ordered)
    best = theirs.PCA(K, svd_solver="full").fit(rows)
    ours, other = (kind(K, batch_size=size).fit(rows) for kind in (IncrementalPCA, theirs.IncrementalPCA))
    assert lost(ours, best, rows) < lost(other, best, rows) / 5 and lost(ours, best, rows) < 5e-3
    assert max_sin_theta(ours.components_.T, best.components_.T) < 0.25
    np.testing.assert_allclose(ours.explained_variance_, best.explained_variance_, rtol=0.05)
    np.testing.assert_allclose(ours.explained_variance_ratio_, best.explained_variance_ratio_, rtol=0.05)
    np.testing.assert_allclose(ours.noise_variance_, best.noise_variance_, rtol=0.02)


@pytest.mark.parametrize("size", [20, 61, 400])
def test_with_all_directions_held_it_is_the_pca(size: int) -> None:
    ours, best = IncrementalPCA(4, batch_size=size).fit(X), theirs.PCA(4, svd_solver="full").fit(X)
    for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(best, name), rtol=1e-9, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(ours.noise_variance_, best.noise_variance_, rtol=1e-9)
    np.testing.assert_allclose(ours.transform(X), best.transform(X), atol=1e-8)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(X)), best.inverse_transform(best.transform(X)))


@pytest.mark.parametrize("whiten", [False, True])
def test_its_attributes_are_those_of_scikit_learn(whiten: bool) -> None:
    """Where nothing is lost by either: all directions are wanted."""
    ours, other = (kind(whiten=whiten, batch_size=100).fit(X) for kind in (IncrementalPCA, theirs.IncrementalPCA))
    names = {name for name in vars(other) if name.endswith("_")}
    assert names <= {name for name in vars(ours) if name.endswith("_")}
    for name in names:
        np.testing.assert_allclose(getattr(ours, name), getattr(other, name), rtol=1e-8, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(ours.transform(X), other.transform(X), atol=1e-7)
    assert ours.batch_size_ == 100 and IncrementalPCA(2).fit(X).batch_size_ == 75


def test_batches_by_hand_are_those_of_fit() -> None:
    by_hand = IncrementalPCA(3)
    for start in range(0, 400, 50):
        assert by_hand.partial_fit(X[start : start + 50]).n_samples_seen_ == start + 50
    whole = IncrementalPCA(3, batch_size=50).fit(X)
    np.testing.assert_array_equal(by_hand.components_, whole.components_)
    again = pickle.loads(pickle.dumps(by_hand))  # noqa: S301
    for start in (0, 7):
        by_hand.partial_fit(X[start : start + 1])
        again.partial_fit(X[start : start + 1])
    np.testing.assert_array_equal(by_hand.components_, again.components_)
    np.testing.assert_array_equal(by_hand.fit(X).components_, IncrementalPCA(3).fit(X).components_)


def test_rows_that_are_not_in_memory(tmp_path: Path) -> None:
    stored = str(write_zarr(tmp_path / "x.zarr", X, (90, 15)))
    expected = IncrementalPCA(3, batch_size=64).fit(X)
    for given in (stored, da.from_array(X, chunks=(90, 15)), sp.csr_array(X), pd.DataFrame(X)):
        found = IncrementalPCA(3, batch_size=64).fit(given)
        np.testing.assert_allclose(found.components_, expected.components_, atol=1e-12)
        np.testing.assert_allclose(found.transform(given), expected.transform(X), atol=1e-9)


def test_in_the_company_of_scikit_learn() -> None:
    search = GridSearchCV(
        make_pipeline(IncrementalPCA(), LogisticRegression()), {"incrementalpca__n_components": [1, 5]}, cv=3
    ).fit(X, X[:, 0] > 20)
    assert search.best_params_ == {"incrementalpca__n_components": 5}
    named = IncrementalPCA(2).set_output(transform="pandas").fit(pd.DataFrame(X, columns=[f"g{i}" for i in range(15)]))
    assert list(named.transform(pd.DataFrame(X, columns=named.feature_names_in_))) == [
        "incrementalpca0",
        "incrementalpca1",
    ]


def test_rows_of_too_small_a_rank_are_completed() -> None:
    flat = np.outer(np.arange(9.0), [1, 2, 3])
    found = IncrementalPCA().fit(flat)
    np.testing.assert_allclose(found.components_ @ found.components_.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(found.explained_variance_, [flat.var(axis=0, ddof=1).sum(), 0, 0], atol=1e-12)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: IncrementalPCA(16).fit(X), "from 1 to 15"),
        (lambda: IncrementalPCA(0.5).fit(X), "from 1 to 15"),  # type: ignore[arg-type]
        (lambda: IncrementalPCA(5, batch_size=4).fit(X), "batch_size = 4.*at least 2 and n_components"),
        (lambda: IncrementalPCA(5).partial_fit(X[:4]), "less or equal to the batch number of samples 4"),
        (lambda: IncrementalPCA(5).fit(X[:4]), "less or equal to the batch number of samples 4"),
        (lambda: IncrementalPCA(2, svd_solver="svd").fit(X), "'svd_solver' parameter of IncrementalPCA must be"),
        (lambda: IncrementalPCA().partial_fit(X[:1]), "minimum of 2"),
        (lambda: IncrementalPCA().fit(da.from_array(X[:1])), "at least 2 rows"),
        (lambda: IncrementalPCA(2).fit(X).partial_fit(X[:, 1:]), "14 features.*expecting 15"),
        (lambda: IncrementalPCA(2).partial_fit(np.full((3, 3), 1e160)), "squares are too large"),
        (lambda: IncrementalPCA(2).partial_fit(np.where(X > 30, np.nan, X)), "NaN"),
    ],
)
def test_what_is_refused(given: Callable[[], Any], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        given()


def test_another_number_of_components_than_before() -> None:
    model = IncrementalPCA(3).fit(X)
    for other in (2, 4):
        model.set_params(n_components=other)
        with pytest.raises(
            BadInputError, match=f"was 3 for the rows so far, and is {other} now: set it to what it was"
        ):
            model.partial_fit(X)
    untouched = IncrementalPCA(3).fit(X).partial_fit(X)
    np.testing.assert_array_equal(model.set_params(n_components=3).partial_fit(X).components_, untouched.components_)
    assert model.set_params(n_components=2).fit(X).components_.shape == (2, 15)


@pytest.mark.parametrize("missing", ["refuse", "impute"])
def test_a_lazy_batch_is_one_batch(missing: str) -> None:
    rows = np.where(X > 30, np.nan, X) if missing == "impute" else X
    lazy = da.from_array(rows, chunks=(70, 15))
    few = lazy[da.from_array(np.arange(len(X)) % 2 == 0, chunks=70)]  # blocks of unknown height
    ours, other = IncrementalPCA(3, missing=missing), IncrementalPCA(3, missing=missing)
    for batch, plain in ((lazy, rows), (few, rows[::2])):
        found = ours.partial_fit(batch).components_
        np.testing.assert_array_equal(found, other.partial_fit(plain).components_)


def test_a_refused_batch_changes_nothing() -> None:
    model, untouched = IncrementalPCA(2).fit(X), IncrementalPCA(2).fit(X)
    for bad in (X[:, 1:], np.full((1, 15), np.inf), X[:0]):
        with pytest.raises(BadInputError):
            model.partial_fit(bad)
    np.testing.assert_array_equal(model.partial_fit(X).components_, untouched.partial_fit(X).components_)
    first = IncrementalPCA(2)
    with pytest.raises(BadInputError):
        first.partial_fit(np.full((3, 4), np.nan))
    assert first.partial_fit(X).n_features_in_ == 15
    with pytest.raises(NotFittedError):
        IncrementalPCA(2).transform(X)


def test_missing_values_are_imputed_by_the_components_so_far() -> None:
    """Fails when gaps count as means, or when a late column keeps the mean of before, or an empty row is taken."""
    rng = np.random.default_rng(0)
    plane = np.linalg.qr(rng.standard_normal((12, 2)))[0]
    rows = rng.standard_normal((2000, 2)) * [5, 3] @ plane.T + 0.3 * rng.standard_normal((2000, 12)) + 100
    gappy = np.where(rng.random(rows.shape) < 0.2, np.nan, rows)
    gappy[:300, 4] = np.nan
    gappy[7] = np.nan
    full = IncrementalPCA(2).fit(rows)
    found = IncrementalPCA(2, missing="impute", batch_size=100).fit(gappy)
    filled = IncrementalPCA(2).fit(np.where(np.isnan(gappy), np.nanmean(gappy, axis=0), gappy))
    np.testing.assert_allclose(found.explained_variance_, full.explained_variance_, rtol=0.13)
    assert (filled.explained_variance_ < 0.85 * full.explained_variance_).all()
    np.testing.assert_allclose(found.mean_, full.mean_, atol=0.3)
    assert np.linalg.norm(found.components_ @ (np.eye(12) - plane @ plane.T), 2) < 0.1
    by_batch = IncrementalPCA(2, missing="impute")
    kept = gappy[~np.isnan(gappy).all(axis=1)]
    for start in range(0, len(kept), 100):
        by_batch.partial_fit(kept[start : start + 100])
    by_batch.partial_fit(np.full((2, 12), np.nan))
    np.testing.assert_array_equal(by_batch.components_, found.components_)
    assert by_batch.n_samples_seen_ == found.n_samples_seen_ == 1999
    whole = IncrementalPCA(2, missing="impute").fit(rows)
    np.testing.assert_array_equal(whole.components_, full.components_)
    with pytest.raises(BadInputError, match="NaN"):
        IncrementalPCA(2).fit(gappy)
    with pytest.raises(BadInputError, match="missing = 'mean'"):
        IncrementalPCA(2, missing="mean").fit(gappy)
