"""Coherence is what its formulas say, pair by pair, and what gensim says."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from npmdask.errors import BadInputError
from npmdask.topics.documents import documents_of
from npmdask.topics.quality import NEVER, Coherence, coherence_of, cooccurrence, topic_coherence
from tests.topics.made import a_model, documents_from

# What benchmarks/peer_scripts/topic_coherence.py prints (gensim 4.4.0).
GENSIM = {
    "u_mass": [-13.81391286249376, -4.294547843113456, -6.378697499509052],
    "c_npmi": [-0.41029164353241276, 0.02314317203895388, -0.004584163714550088],
}


def corpus() -> tuple[np.ndarray, np.ndarray]:
    """As in benchmarks/peer_scripts/topic_coherence.py."""
    rng = np.random.default_rng(7)
    rates = rng.gamma(0.4, 1.0, (60, 3)) @ rng.gamma(0.3, 1.0, (3, 12))
    counts = rng.poisson(rates)
    counts[counts.sum(axis=1) == 0, 0] = 1
    return counts, np.array([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [11, 3, 7, 1, 10]])


def of(counts: np.ndarray, tops: np.ndarray) -> Coherence:
    return coherence_of(tops, cooccurrence(documents_of(counts).read(), tops))


def test_coherence_is_that_of_gensim() -> None:
    """Fails when the condition is the other word, pairs are counted otherwise, or words instead of documents are."""
    found = of(*corpus())
    np.testing.assert_allclose(found.u_mass, GENSIM["u_mass"], rtol=1e-12)
    np.testing.assert_allclose(found.c_npmi, GENSIM["c_npmi"], rtol=1e-10)
    assert found.means == (pytest.approx(np.mean(GENSIM["u_mass"])), pytest.approx(np.mean(GENSIM["c_npmi"])))


def test_coherence_pair_by_pair() -> None:
    counts, tops = corpus()
    held = [set(np.flatnonzero(row)) for row in counts]
    documents, found = len(held), of(counts, tops)
    for topic, top in enumerate(tops):
        u_mass, npmi = [], []
        for i, w in enumerate(top):
            for v in top[:i]:
                both, of_w, of_v = (sum(need <= words for words in held) for need in ({w, v}, {w}, {v}))
                u_mass.append(log((both / documents + NEVER) / (of_v / documents)))
                pmi = log((both / documents + NEVER) / (of_w * of_v / documents**2))
                npmi.append(pmi / -log(both / documents + NEVER))
        assert found.u_mass[topic] == pytest.approx(np.mean(u_mass))
        assert found.c_npmi[topic] == pytest.approx(np.mean(npmi))


def test_documents_without_words_do_not_count() -> None:
    """Fails when they are windows: every word would be rarer, and every pair more telling."""
    counts, tops = corpus()
    with_empty = np.vstack([counts, np.zeros((40, 12), int)])
    np.testing.assert_array_equal(of(with_empty, tops).c_npmi, of(counts, tops).c_npmi)
    assert of(with_empty, tops).documents == 60


def test_pairs_that_are_never_and_always_together() -> None:
    counts = np.array([[1, 1, 2, 0, 0], [1, 3, 0, 1, 0]])
    never, always, unheard = of(counts, np.array([[2, 3], [0, 1], [0, 4]])).c_npmi
    assert never == pytest.approx(log(4e-12) / -log(1e-12)) and always == 0.0
    assert -1 <= unheard < -0.9 and np.isfinite(of(counts, np.array([[0, 4], [4, 0]])).u_mass).all()


def test_words_of_one_topic_cohere_and_random_words_do_not() -> None:
    """Fails when top words are taken from the rows of other topics."""
    model = a_model(v=200, k=5)
    documents = documents_of(documents_from(model, 600, 40))
    true = topic_coherence(model, documents).c_npmi
    rng = np.random.default_rng(0)
    tops = np.array([rng.choice(200, 10, replace=False) for _ in range(5)])
    assert true.min() > coherence_of(tops, cooccurrence(documents.read(), tops)).c_npmi.max()


def test_refusals() -> None:
    counts, _ = corpus()
    with pytest.raises(BadInputError, match="at least two words a topic"):
        of(counts, np.array([[1], [2]]))
    with pytest.raises(BadInputError, match="no document contains a word"):
        cooccurrence([csr_matrix((3, 4))], np.arange(2))
