"""The density that principal components are the parameters of, beside scikit-learn's; and its words for solvers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.decomposition import PCA as Theirs
from sklearn.decomposition import TruncatedSVD as TheirSVD
from sklearn.model_selection import GridSearchCV

import npmdask
from npmdask.errors import BadInputError
from tests.conftest import write_zarr

RNG = np.random.default_rng(3)
X = RNG.standard_normal((300, 3)) @ (3 * RNG.standard_normal((3, 8))) + 0.3 * RNG.standard_normal((300, 8)) + 20


@pytest.mark.parametrize("asked", [{"n_components": 3}, {"n_components": 1}, {"n_components": 8}, {}])
def test_the_model_is_that_of_scikit_learn(asked: dict[str, Any]) -> None:
    ours, theirs = npmdask.PCA(**asked).fit(X), Theirs(**asked).fit(X)
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.get_precision(), theirs.get_precision(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), rtol=1e-9)
    assert ours.score(X) == pytest.approx(theirs.score(X), rel=1e-10)
    white = npmdask.PCA(**asked, whiten=True).fit(X)  # of scores, and not of the rows
    np.testing.assert_array_equal(white.get_covariance(), ours.get_covariance())


def test_densities_are_those_of_a_gaussian_in_units_of_weighted_columns(tmp_path: Path) -> None:
    """Also of a store, which is read in batches. Mutant: the weights are left out."""
    weights = np.linspace(0.5, 3, 8)
    model = npmdask.PCA(3, column_weights=weights).fit(X)
    law = multivariate_normal(model.mean_, model.get_covariance())
    np.testing.assert_allclose(model.score_samples(X), law.logpdf(X), rtol=1e-9)
    np.testing.assert_allclose(model.get_precision() @ model.get_covariance(), np.eye(8), atol=1e-9)
    stored = model.score_samples(write_zarr(tmp_path / "x.zarr", X, (100, 8)))
    np.testing.assert_allclose(stored, law.logpdf(X), rtol=1e-9)


def test_fewer_rows_than_columns_have_a_density_along_their_components() -> None:
    """Where scikit-learn's is of a matrix that has no inverse."""
    model = npmdask.PCA().fit(X[:6])
    scores = model.transform(X[:6])[:, :5]
    law = multivariate_normal(np.zeros(5), np.diag(model.explained_variance_[:5]))
    np.testing.assert_allclose(npmdask.PCA(5).fit(X[:6]).score_samples(X[:6]), law.logpdf(scores), rtol=1e-6)
    assert np.isfinite(model.get_precision()).all()


def test_columns_without_a_density_are_refused() -> None:
    model = npmdask.PCA(2, column_weights=np.r_[0.0, np.ones(7)]).fit(X)
    with pytest.raises(BadInputError, match="leave these columns out of X"):
        model.score(X)


@pytest.mark.parametrize("seed", range(4))
def test_the_most_likely_number_is_that_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((200, 3 + seed)) @ rng.standard_normal((3 + seed, 12)) + 0.4 * rng.standard_normal(
        (200, 12)
    )
    ours, theirs = npmdask.PCA("mle").fit(x), Theirs("mle").fit(x)
    assert ours.n_components_ == theirs.n_components_ == len(ours.components_)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-9)
    assert ours.noise_variance_ == pytest.approx(theirs.noise_variance_, rel=1e-8)
    with pytest.raises(BadInputError, match="is only supported if n_samples >= n_features"):
        npmdask.PCA("mle").fit(x[:5])


@pytest.mark.slow
def test_a_search_finds_the_number_of_components() -> None:
    """As it does with scikit-learn's: by ``score``."""
    found = [GridSearchCV(kind(), {"n_components": [1, 2, 3, 4]}).fit(X).best_params_ for kind in (npmdask.PCA, Theirs)]
    assert found[0] == found[1]


@pytest.mark.parametrize("solver", ["auto", "full", "covariance_eigh", "arpack", "randomized"])
def test_words_for_solvers_are_taken(solver: str) -> None:
    words: dict[str, Any] = {"svd_solver": solver, "tol": 0.0, "copy": False, "iterated_power": 7, "random_state": 0}
    ours, theirs = (clone(kind(2, n_oversamples=5, **words)).fit(X.copy()) for kind in (npmdask.PCA, Theirs))
    np.testing.assert_allclose(np.abs(ours.components_), np.abs(theirs.components_), rtol=1e-6)
    svd: dict[str, Any] = {"algorithm": "arpack", "n_iter": 3, "power_iteration_normalizer": "LU", "tol": 0.0}
    np.testing.assert_allclose(
        npmdask.TruncatedSVD(2, **svd).fit(X).singular_values_, TheirSVD(2, **svd).fit(X).singular_values_, rtol=1e-9
    )


@pytest.mark.parametrize(
    "asked",
    [{"svd_solver": "exact"}, {"iterated_power": -1}, {"n_oversamples": 0}, {"power_iteration_normalizer": "qr"}],
)
def test_words_that_scikit_learn_does_not_know_are_refused(asked: dict[str, Any]) -> None:
    for kind in (npmdask.PCA, Theirs):
        with pytest.raises(ValueError, match=f"The '{next(iter(asked))}' parameter of PCA must be"):
            kind(2, **asked).fit(X)


@pytest.mark.parametrize("kind", [npmdask.PCA, npmdask.TruncatedSVD])
def test_float32_in_is_float32_out(kind: Any) -> None:
    narrow, wide = kind(2).fit(X.astype(np.float32)), kind(2).fit(X)
    assert narrow.components_.dtype == narrow.transform(X.astype(np.float32)).dtype == np.float32
    assert narrow.inverse_transform(narrow.transform(X.astype(np.float32))).dtype == np.float32
    assert (
        wide.components_.dtype == wide.transform(X).dtype == kind(2).fit(X.astype("i2")).components_.dtype == np.float64
    )
    np.testing.assert_allclose(narrow.transform(X), wide.transform(X), rtol=1e-4, atol=1e-3)


def test_marks_are_no_values_of_a_density() -> None:
    """Mutant: a row with -9999 has a density."""
    x = X.copy()
    x[3, 2] = -9999
    model = npmdask.PCA(2, missing="mean", missing_values=[-9999]).fit(x)
    assert np.isfinite(model.score(np.delete(x, 3, axis=0)))
    with pytest.raises(BadInputError, match="leave out rows with gaps"):
        model.score_samples(x)


def test_float32_far_from_zero_loses_no_variance() -> None:
    """Mutants: variances from components in float32; a distance whose squares cancel."""
    far = (X / 30 + 5000).astype(np.float32)
    ours, theirs = npmdask.TruncatedSVD(3).fit(far), TheirSVD(3, algorithm="arpack").fit(far.astype(np.float64))
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=2e-3, atol=1e-5)
    narrow = (X * np.geomspace(100, 0.1, 8)).astype(np.float32)
    wide = npmdask.PCA(5).fit(narrow.astype(np.float64)).score_samples(narrow)
    assert np.abs(npmdask.PCA(5, tol=1e-7).fit(narrow).score_samples(narrow) - wide).max() < 0.1


@pytest.mark.parametrize("x", [np.ones((9, 1)) * np.arange(9)[:, None], np.ones((9, 4))], ids=["a column", "constant"])
def test_there_is_one_most_likely_component_at_least(x: np.ndarray) -> None:
    assert npmdask.PCA("mle").fit(x).n_components_ == 1
