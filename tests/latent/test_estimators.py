"""Mixtures and independent components as estimators."""

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
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from npmdask.errors import BadInputError
from npmdask.latent.estimators import ICA, Mixture
from tests.conftest import write_zarr


@pytest.mark.slow
def test_a_mixture_predicts_what_each_row_came_from() -> None:
    rng = np.random.default_rng(0)
    means = 4 * rng.standard_normal((3, 8))
    from_which = rng.choice(3, 6000, p=[0.5, 0.3, 0.2])
    rows = means[from_which] + rng.standard_normal((6000, 8))
    model = Mixture(3).fit(rows)
    nearest = ((model.means_[:, None] - means[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert sorted(nearest) == [0, 1, 2] and model.weights_.sum() == pytest.approx(1)
    np.testing.assert_allclose(model.weights_, np.array([0.5, 0.3, 0.2])[nearest], atol=0.05)
    assert (nearest[model.predict(rows)] == from_which).mean() > 0.99
    np.testing.assert_allclose(model.predict_proba(rows[:9]).sum(axis=1), 1)


@pytest.mark.slow
def test_independent_components_are_told_apart_up_to_sign_and_order() -> None:
    rng = np.random.default_rng(1)
    sources = np.stack([rng.uniform(-1, 1, 9000), rng.laplace(size=9000), np.sign(rng.standard_normal(9000))], axis=1)
    rows = sources @ rng.standard_normal((3, 5)) + 2
    model = ICA(3)
    found = model.fit_transform(rows)
    alike = np.abs(np.corrcoef(found.T, sources.T)[:3, 3:])
    assert sorted(alike.argmax(axis=1)) == [0, 1, 2] and alike.max(axis=1).min() > 0.99
    np.testing.assert_allclose(model.components_ @ model.mixing_, np.eye(3), atol=1e-8)


def test_parameters_and_what_is_not_known_yet() -> None:
    model = Mixture(4, random_state=3)
    asked = {"n_components": 4, "memory": None, "store": None, "random_state": 3, "refine": None, "progress": False}
    assert model.get_params() == asked
    assert model.set_params(n_components=2).n_components == 2
    with pytest.raises(BadInputError, match=r"Mixture has no parameter 'components'.*n_components"):
        model.set_params(components=2)
    with pytest.raises(BadInputError, match="Mixture is not fitted yet: call fit first"):
        model.predict(np.ones((2, 3)))
    with pytest.raises(BadInputError, match="ICA is not fitted yet"):
        ICA().transform(np.ones((2, 3)))


TWO_COLUMNS = "its rows have two columns, and two components need three"
TOO_FEW = """
check_estimators_overwrite_params check_estimators_fit_returns_self check_readonly_memmap_input check_fit_idempotent
check_fit_check_is_fitted check_n_features_in
"""


@pytest.mark.slow
@parametrize_with_checks(
    [Mixture(), ICA()],
    expected_failed_checks=lambda estimator: (
        dict.fromkeys(TOO_FEW.split(), TWO_COLUMNS) if isinstance(estimator, Mixture) else {}
    ),
)
@pytest.mark.filterwarnings("default")
def test_the_checks_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.heavy
@parametrize_with_checks([Mixture(1), ICA(1)])
@pytest.mark.filterwarnings("default")
def test_the_same_checks_of_one_component(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def two_clouds() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    means = np.array([[6.0, 0, 0, 0], [0, 6.0, 0, 0]])
    which = rng.integers(2, size=2000)
    return means[which] + rng.standard_normal((2000, 4)), which


@pytest.mark.slow
def test_the_score_of_a_mixture_is_its_mean_log_likelihood() -> None:
    rows, _ = two_clouds()
    model = Mixture(2).fit(rows)
    parts = zip(model.weights_, model.means_, model.variances_, strict=True)
    density = sum(w * multivariate_normal(m, v * np.eye(4)).pdf(rows) for w, m, v in parts)
    assert model.score(rows) == pytest.approx(np.log(density).mean(), rel=1e-12)
    assert GridSearchCV(Mixture(), {"n_components": [1, 2]}, cv=2).fit(rows).best_params_ == {"n_components": 2}


@pytest.mark.slow
def test_in_the_company_of_scikit_learn(tmp_path: Path) -> None:
    rows, which = two_clouds()
    assert make_pipeline(ICA(2), LogisticRegression()).fit(rows, which).score(rows, which) > 0.95
    table = pd.DataFrame(rows, columns=list("abcd"))
    named = ICA(2, random_state=np.random.RandomState(0)).set_output(transform="pandas").fit(table)
    assert list(named.transform(table).columns) == ["ica0", "ica1"]
    again = pickle.loads(pickle.dumps(named))  # noqa: S301
    pd.testing.assert_frame_equal(again.transform(table), named.transform(table))
    stored = str(write_zarr(tmp_path / "x.zarr", rows, (300, 4)))
    for estimator, answer in ((ICA(2), "transform"), (Mixture(2), "predict_proba"), (Mixture(2), "predict")):
        expected = getattr(clone(estimator).fit(rows), answer)(rows)
        for given in (da.from_array(rows, chunks=(300, 4)), stored):
            found = clone(estimator).fit(given)
            np.testing.assert_allclose(getattr(found, answer)(given), expected, atol=1e-7)
            assert found.n_features_in_ == 4
    for kind in (ICA, Mixture):
        with pytest.raises(BadInputError, match=r"sparse matrix.*X.toarray\(\)"):
            kind(2).fit(sp.csr_array(rows))
        with pytest.raises(BadInputError, match="random_state = 'a'"):
            kind(2, random_state="a").fit(rows)
