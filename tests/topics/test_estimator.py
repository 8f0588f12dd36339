"""The estimator: parameters as scikit-learn's tools ask for them, and what a model answers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array, issparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from npmdask.errors import BadInputError
from npmdask.topics.estimator import Topics
from npmdask.topics.transform import shares_of
from tests.topics.made import a_model, documents_from

MODEL = a_model()
COUNTS = documents_from(MODEL, 80, 9)


def fitted() -> Topics:
    found = Topics(4, doc_update_tol=1e-7)
    found.model_ = MODEL
    return found


def test_parameters() -> None:
    found = clone(Topics(7, alpha0=0.5, random_state=3).set_params(max_df=0.5))
    assert found.get_params() == {
        "n_components": 7,
        "alpha0": 0.5,
        "half_length": 100.0,
        "min_df": 1,
        "max_df": 0.5,
        "memory": None,
        "store": None,
        "max_doc_update_iter": 1000,
        "doc_update_tol": 1e-5,
        "random_state": 3,
        "progress": False,
    }
    with pytest.raises(BadInputError, match="did you mean 'max_df'"):
        found.set_params(max_fd=1)
    with pytest.raises(BadInputError, match="call fit first"):
        found.transform(COUNTS)


def test_answers() -> None:
    found = fitted()
    np.testing.assert_array_equal(
        found.transform(COUNTS), shares_of(COUNTS, MODEL.topics, MODEL.alpha, tol=1e-7).shares
    )
    assert found.components_.shape == (4, 60) and found.components_.sum(axis=1) == pytest.approx(np.ones(4))
    assert found.vocabulary_ == MODEL.vocabulary and found.alpha_ is MODEL.alpha
    assert found.top_words(2) == MODEL.top_words(2)
    assert found.coherence(COUNTS, n=5).documents == (COUNTS.sum(axis=1) > 0).sum()
    judged = found.perplexity(documents_from(MODEL, 80, 9, seed=5), COUNTS)
    assert judged.model < judged.unigram


def test_vocabularies_that_do_not_fit_are_refused_before_the_fit() -> None:
    for words in ([f"w{i}" for i in range(59)], ["w"] * 60):
        with pytest.raises(BadInputError, match=r"59 words|twice"):
            Topics(4).fit(COUNTS, vocabulary=words)


class Rounded(Topics):
    """Topics of the numbers that the checks make, rounded up: they know nothing of counts."""

    def _checked_input(self, X: Any, **how: Any) -> Any:
        held = super()._checked_input(np.array(X) if isinstance(X, np.memmap) else X, **how)
        if not issparse(held):
            return np.ceil(10 * held.astype(float))
        held = csr_array(held).astype(float)
        held.data = np.ceil(10 * held.data)
        return held


FRACTIONS = "it fits fractions, and counts are whole numbers: see Rounded, which passes"
OF_FRACTIONS = """
check_fit_score_takes_y check_estimators_overwrite_params check_dont_overwrite_parameters
check_estimators_fit_returns_self check_readonly_memmap_input check_n_features_in_after_fitting check_estimators_dtypes
check_dtype_object check_pipeline_consistency check_estimators_nan_inf check_estimator_sparse_tag
check_estimator_sparse_array check_estimator_sparse_matrix check_estimators_pickle check_f_contiguous_array_estimator
check_transformer_data_not_an_array check_transformer_general check_transformer_preserve_dtypes
check_methods_sample_order_invariance check_methods_subset_invariance check_fit2d_1sample check_dict_unchanged
check_fit_idempotent check_fit_check_is_fitted check_n_features_in check_fit2d_predict1d
"""
ALWAYS = {
    "check_positive_only_tag_during_fit": "it wants other words: we name the document and the column",
    "check_fit2d_1feature": "it wants other words: one word is too few for coherence, which is said",
}


@pytest.mark.slow
@parametrize_with_checks(
    [Topics(), Rounded(1)],
    expected_failed_checks=lambda estimator: (
        ALWAYS if isinstance(estimator, Rounded) else ALWAYS | dict.fromkeys(OF_FRACTIONS.split(), FRACTIONS)
    ),
)
@pytest.mark.filterwarnings("default")
def test_the_checks_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def two_topics() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    topics = np.array([[0.45, 0.45, 0.05, 0.05], [0.05, 0.05, 0.45, 0.45]])
    shares = rng.dirichlet([0.2, 0.2], size=600)
    return np.array([rng.multinomial(100, p) for p in shares @ topics]), shares[:, 0] > 0.5


@pytest.mark.slow
def test_in_the_company_of_scikit_learn() -> None:
    counts, label = two_topics()
    search = GridSearchCV(
        make_pipeline(Topics(2, alpha0=0.4), LogisticRegression()), {"topics__random_state": [0, 1]}, cv=2
    ).fit(counts, label)
    assert search.best_score_ > 0.95
    words = ["cat", "dog", "tax", "law"]
    table = pd.DataFrame(counts, columns=words)
    named = Topics(2, alpha0=0.4).set_output(transform="pandas").fit(table, vocabulary=words)
    assert list(named.transform(table).columns) == ["topics0", "topics1"]
    again = pickle.loads(pickle.dumps(named))  # noqa: S301
    pd.testing.assert_frame_equal(again.transform(table), named.transform(table))
    for given in (da.from_array(counts, chunks=(100, 4)), csr_array(counts), counts.tolist()):
        found = Topics(2, alpha0=0.4, random_state=np.random.RandomState(0)).fit(given)
        np.testing.assert_allclose(np.sort(found.components_, axis=0), np.sort(named.components_, axis=0), atol=5e-3)
        assert found.transform(given).shape == (600, 2)
    with pytest.raises(BadInputError, match="3 features, but Topics is expecting 4"):
        found.transform(counts[:, 1:])


@pytest.mark.slow
def test_counts_of_the_kept_words_alone_are_taken() -> None:
    counts, _ = two_topics()
    wide = np.concatenate([counts, np.eye(600, 1, dtype=int)], axis=1)
    found = Topics(2, alpha0=0.4, min_df=5).fit(wide)
    assert found.n_features_in_ == 5 and len(found.vocabulary_) == 4
    np.testing.assert_array_equal(found.transform(wide), found.transform(counts))
