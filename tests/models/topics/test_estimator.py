"""The estimator: parameters as scikit-learn's tools ask for them, and what a model answers."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from npmdask.errors import BadInputError
from npmdask.models.topics.estimator import Topics
from npmdask.models.topics.transform import shares_of
from tests.models.topics.made import a_model, documents_from

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
