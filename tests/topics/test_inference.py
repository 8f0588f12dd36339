"""The shares of topics in documents are those of a plain loop and of scikit-learn, whatever the documents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix, vstack
from scipy.special import psi
from sklearn.decomposition import LatentDirichletAllocation

from npmdask.topics import transform
from npmdask.topics.transform import shares_of
from tests.topics.made import a_model, documents_from

TIGHT = {"max_iterations": 20_000, "tol": 1e-12}
MODEL = a_model()
DOCUMENTS = vstack([documents_from(MODEL, 150, 6), csr_matrix((1, 60)), documents_from(MODEL, 20, 200)], format="csr")


def by_hand(counts: np.ndarray, topics: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Blei, Ng and Jordan (2003), figure 6, a word at a time."""
    gamma = np.ones(len(alpha))
    for _ in range(5000):
        phi = topics * np.exp(psi(gamma))
        total = phi.sum(axis=1, keepdims=True)
        phi = np.divide(phi, total, out=np.zeros_like(phi), where=total > 0)
        gamma = alpha + counts @ phi
    return gamma / gamma.sum()


@pytest.mark.slow
def test_the_shares_are_those_of_the_paper() -> None:
    """Fails when a document gets the words of another, a prior is left out, or one alpha is taken for all."""
    found = shares_of(DOCUMENTS, MODEL.topics, MODEL.alpha, **TIGHT)
    some = [0, 3, 77, 149, 150, 151, 170]
    wanted = [by_hand(DOCUMENTS[d].toarray()[0], MODEL.topics, MODEL.alpha) for d in some]
    np.testing.assert_allclose(found.shares[some], wanted, atol=1e-8)
    np.testing.assert_allclose(found.shares.sum(axis=1), 1, rtol=1e-13)
    assert not found.open.any()


def test_the_shares_are_those_of_scikit_learn() -> None:
    """Fails on another fixed point than everybody else's."""
    peer = LatentDirichletAllocation(4, max_doc_update_iter=20_000, mean_change_tol=1e-12)
    peer.components_ = peer.exp_dirichlet_component_ = np.ascontiguousarray(MODEL.topics.T)
    peer.doc_topic_prior_, peer.n_features_in_ = 0.25, 60
    found = shares_of(DOCUMENTS, MODEL.topics, np.full(4, 0.25), **TIGHT)
    np.testing.assert_allclose(found.shares, peer.transform(DOCUMENTS.astype(float)), atol=1e-7)


def test_documents_without_a_known_word_get_the_prior_and_are_counted() -> None:
    topics = MODEL.topics.copy()
    topics[7] = 0
    topics /= topics.sum(axis=0)
    counts = csr_matrix(([0, 3, 1, 2], [5, 7, 0, 7], [0, 1, 2, 4]), shape=(3, 60))  # the first: word 5 no times
    found = shares_of(counts, topics, MODEL.alpha)
    assert found.wordless.tolist() == [True, True, False] and found.unknown == 5
    np.testing.assert_allclose(found.shares[:2], [MODEL.weights, MODEL.weights], rtol=1e-13)
    np.testing.assert_allclose(found.shares[2], by_hand(counts[2].toarray()[0], topics, MODEL.alpha), atol=1e-3)


@pytest.mark.slow
def test_how_documents_are_put_together_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the padding of short documents counts for something."""
    whole = shares_of(DOCUMENTS, MODEL.topics, MODEL.alpha, **TIGHT)
    monkeypatch.setattr(transform, "STRIP_BYTES", 1)  # each by itself
    np.testing.assert_allclose(
        shares_of(DOCUMENTS, MODEL.topics, MODEL.alpha, **TIGHT).shares, whole.shares, atol=1e-11
    )
    again = shares_of(DOCUMENTS[:50], MODEL.topics, MODEL.alpha, **TIGHT)
    np.testing.assert_allclose(again.shares, whole.shares[:50], atol=1e-11)


def test_a_tiny_alpha_gives_numbers() -> None:
    """Fails where exp(psi(alpha)), which is 0 in floating point, makes 0 / 0."""
    tiny = replace(MODEL, alpha=np.full(4, 1e-5))
    found = shares_of(DOCUMENTS, tiny.topics, tiny.alpha)
    assert np.isfinite(found.shares).all() and found.shares.min() >= 0
    np.testing.assert_allclose(found.shares.sum(axis=1), 1, rtol=1e-12)


def test_two_thousand_topics_do_not_lose_a_word() -> None:
    """A word that a thousand of them share: fails where exp(psi(1 / 1000)), which is 0 in floating point, is taken."""
    topics = np.zeros((2, 2000))
    topics[0, :1000] = topics[1, 1000:] = 1
    found = shares_of(csr_matrix([[1, 0]]), topics, np.full(2000, 1e-4)).shares[0]
    np.testing.assert_allclose(found, np.repeat([1.1e-3, 1e-4], 1000) / 1.2, rtol=1e-3)


def test_documents_that_have_not_settled_are_said_so() -> None:
    found = shares_of(DOCUMENTS, MODEL.topics, MODEL.alpha, max_iterations=2, tol=1e-9)
    assert found.open.sum() > 100 and not found.open[150]  # the empty one


def test_true_shares_are_found_in_long_documents() -> None:
    """Of 2,000 words: fails when the shares are of the wrong topics, by any mistake of the formulas."""
    rng = np.random.default_rng(3)
    true = rng.dirichlet(np.ones(4), 40)
    counts = csr_matrix(rng.multinomial(2000, true @ MODEL.topics.T))
    found = shares_of(counts, MODEL.topics, np.ones(4)).shares
    assert np.abs(found - true).sum(axis=1).mean() < 0.05
