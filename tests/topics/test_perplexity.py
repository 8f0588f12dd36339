"""Held-out perplexity: per word, of words that were not looked at, beside the unigram model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix, vstack

from npmdask.core.numerics.random import generator
from npmdask.errors import BadInputError
from npmdask.topics import documents as module
from npmdask.topics.documents import documents_of
from npmdask.topics.quality import Perplexity, held_out_perplexity, word_counts
from npmdask.topics.transform import shares_of
from tests.topics.made import a_model, documents_from

MODEL = a_model(v=100, k=5)
TRAIN, HELD = documents_from(MODEL, 500, 60, seed=1), documents_from(MODEL, 200, 60, seed=2)
BACKGROUND = word_counts(documents_of(TRAIN))


def of(model: object = MODEL, counts: object = HELD, **options: object) -> Perplexity:
    return held_out_perplexity(model, documents_of(counts), BACKGROUND, **options)  # type: ignore[arg-type]


def test_the_true_model_is_below_the_unigram_and_a_wrong_one_is_not() -> None:
    """Fails when the words that are scored are not those of the document, or the topics are mixed up."""
    true = of()
    assert true.model < 0.75 * true.unigram < 75  # of 100 words that are not equally frequent
    turned = replace(MODEL, topics=np.roll(MODEL.topics, 17, axis=0))
    assert of(turned).model > 1.5 * true.unigram and of(turned).unigram == true.unigram


def test_it_is_the_mean_per_word_by_hand() -> None:
    """Fails when it is divided by documents, by entries, or by the words that the shares were found of."""
    first = generator(4, "completion").binomial(HELD.data, 0.5)
    seen = csr_matrix((first, HELD.indices, HELD.indptr), shape=HELD.shape).toarray()
    rest = HELD.toarray() - seen
    shares = shares_of(csr_matrix(seen), MODEL.topics, MODEL.alpha).shares
    unigram = (TRAIN.toarray().sum(axis=0) + 1) / (TRAIN.sum() + 100)
    likely = 0.95 * shares @ MODEL.topics.T + 0.05 * unigram
    found = of(seed=4, background_share=0.05)
    assert found.model == pytest.approx(np.exp(-(rest * np.log(likely)).sum() / rest.sum()), rel=1e-6)
    assert found.unigram == pytest.approx(np.exp(-(rest * np.log(unigram)).sum() / rest.sum()))
    assert found.words == rest.sum() and found.documents == (rest.sum(axis=1) > 0).sum()


def test_two_of_every_document_are_as_hard_as_one() -> None:
    """scikit-learn's grew with the number of documents (#20032)."""
    twice = csr_matrix(np.vstack([HELD.toarray()] * 2))
    assert of(counts=twice).model == pytest.approx(of().model, rel=0.03)


def test_the_halves_do_not_depend_on_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of()
    monkeypatch.setattr(module, "ROWS", 7)
    assert of().model == pytest.approx(whole.model, rel=1e-9) and of().unigram == pytest.approx(whole.unigram)
    assert of(seed=1).model != whole.model


def test_a_word_that_no_topic_has() -> None:
    """Fails when the unigram model is not mixed in; without it the answer is honest, too: infinite."""
    topics = MODEL.topics.copy()
    topics[HELD.toarray().sum(axis=0).argmax()] = 0
    without = replace(MODEL, topics=topics / topics.sum(axis=0))
    assert np.isfinite(of(without).model) and of(without, background_share=0).model == np.inf


@pytest.mark.parametrize(
    ("counts", "options", "said"),
    [
        (vstack([HELD[:3], HELD[3:] * 0.5], "csr"), {}, "document 4 has .* as the count of .*: give whole numbers"),
        (HELD, {"background_share": 1.5}, "from 0 to 1"),
        (HELD[:, :50], {}, "50 columns, 100 counts in the background, and 100 words"),
        (csr_matrix((3, 100)), {}, "holds no word to score"),
    ],
)
def test_refusals(counts: csr_matrix, options: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 1)
    with pytest.raises(BadInputError, match=said):
        of(counts=counts, **options)
