"""Measure the quality of topics: coherence of their top words, and perplexity of held-out words.

A bag of words has no order, so that words occur together when they are in one document: that is what is called a window
of the length of the document elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.errors import BadInputError, require
from npmdask.topics.documents import Documents, require_whole
from npmdask.topics.model import TopicModel
from npmdask.topics.transform import shares_of

NEVER = 1e-12  # the share of documents that two words which never meet are counted in: gensim's EPSILON
BACKGROUND_SHARE = 0.01  # of the unigram model in what a document's words are predicted by


# Coherence


@dataclass(frozen=True, kw_only=True)
class Cooccurrence:
    """Counts of ``documents`` with at least one word that hold both words i and j of ``words`` (u, rising; u x u)."""

    documents: int
    words: np.ndarray
    together: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Coherence:
    """Coherence of each topic (k), higher is better.

    ``u_mass`` is at most 0 but for rounding, ``c_npmi`` from -1 to 1.
    """

    u_mass: np.ndarray
    c_npmi: np.ndarray
    top: int
    documents: int

    @property
    def means(self) -> tuple[float, float]:
        """Return the means over all topics: u_mass, c_npmi."""
        return float(self.u_mass.mean()), float(self.c_npmi.mean())


def cooccurrence(batches: Iterable[csr_matrix], words: np.ndarray) -> Cooccurrence:
    """Count, in one pass over the documents, in how many of them each two of ``words`` (columns) occur; memory u^2."""
    which = np.unique(words)
    together, documents = np.zeros((len(which), len(which)), np.int64), 0
    for batch in batches:
        present = _with_counts(batch, (batch.data > 0).astype(np.int32))
        documents += int((np.diff(present.indptr) > 0).sum())
        some = present[:, which]
        together += (some.T @ some).toarray()
    require(documents > 0, "no document contains a word: coherence needs documents with words")
    return Cooccurrence(documents=documents, words=which, together=together)


def coherence_of(top: np.ndarray, counted: Cooccurrence) -> Coherence:
    """Coherence of topics of which ``top`` (k x n, most probable first) are the top words.

    With D documents, D(w) that hold w and D(w, v) that hold both, ``e`` = NEVER:

    u_mass : mean over the pairs of a word w and a more probable one v of ``log((D(w, v) / D + e) / (D(v) / D))``
        (Mimno et al. 2011, equation 1, who add 1 to D(w, v) instead and sum). Gensim's "u_mass".
    c_npmi : mean over the pairs of ``log((D(w, v) / D + e) / (D(w) D(v) / D^2)) / -log(D(w, v) / D + e)`` (Bouma 2009;
        Roeder, Both and Hinneburg 2015). Gensim's "c_npmi" with windows as long as the documents.

    A word that no document holds is counted in one, alone; two words that every document holds tell nothing: 0.

    Raises
    ------
    BadInputError
        Fewer than two words a topic.
    """
    if top.ndim != 2 or top.shape[1] < 2:
        raise BadInputError(f"top words of shape {top.shape}: coherence needs at least two words a topic")
    places = np.searchsorted(counted.words, top)
    alone = np.maximum(np.diagonal(counted.together), 1) / counted.documents
    pairs = [_of_topic(counted.together[np.ix_(at, at)] / counted.documents, alone[at]) for at in places]
    u_mass, c_npmi = np.array(pairs).T
    return Coherence(u_mass=u_mass, c_npmi=c_npmi, top=top.shape[1], documents=counted.documents)


def _of_topic(both: np.ndarray, alone: np.ndarray) -> tuple[float, float]:
    """u_mass and c_npmi of n words, given the shares of documents with both (n x n) and with each (n)."""
    later, earlier = np.tril_indices(len(alone), -1)
    met = both[later, earlier] + NEVER
    u_mass = np.log(met / alone[earlier])
    surprise = -np.log(met)
    always = both[later, earlier] == 1
    npmi = np.log(met / (alone[later] * alone[earlier])) / np.where(always, 1.0, surprise)
    return float(u_mass.mean()), float(np.where(always, 0.0, npmi).mean())


def topic_coherence(model: TopicModel, documents: Documents, n: int = 10) -> Coherence:
    """Coherence of the ``n`` top words of each topic in ``documents`` (of the words of the model): one pass."""
    top = model.top_indices(min(n, model.words))
    return coherence_of(top, cooccurrence(documents.read(), top))


# Perplexity


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """Perplexity of ``words`` held-out words in ``documents`` documents.

    ``model``: by the topics; ``unigram``: of the same words without topics. As many equally probable words would be as
    hard to guess; a model that learnt something is below the unigram.
    """

    model: float
    unigram: float
    words: int
    documents: int
    background_share: float


def held_out_perplexity(
    model: TopicModel,
    documents: Documents,
    background: np.ndarray,
    *,
    background_share: float = BACKGROUND_SHARE,
    seed: int = 0,
) -> Perplexity:
    """Perplexity by document completion (Wallach et al. 2009, section 5; Rosen-Zvi et al. 2004): one pass.

    Every occurrence of a word goes into one of two halves by a fair coin. The shares of the document's topics are found
    of the first; of the second, ``exp(-sum log p(w | d) / number of its words)`` over all documents, per word and
    never per document or per entry (scikit-learn issue #20032). ``p(w | d) = (1 - s) topics_w . shares_d + s b_w`` with
    s = ``background_share`` and b the unigram model: without it one word that no topic has makes it infinite.

    Parameters
    ----------
    documents : that the topics were not found of, in the words of the model (whole counts).
    background : (V) counts of the words in the documents that the topics were found of; b is (counts + 1) / sum.
    seed : of the halves; they do not depend on how the documents are read.

    Raises
    ------
    BadInputError
        Counts that are not whole, a share outside 0 to 1, a background of another length, or no word to score.
    """
    require(0 <= background_share <= 1, f"background_share = {background_share}: it is a share, from 0 to 1")
    if np.shape(background) != (model.words,) or documents.columns != model.words:
        raise BadInputError(
            f"{documents.columns} columns, {np.size(background)} counts in the background, and {model.words} words in "
            "the model: give documents in the words of the model, and a count for each"
        )
    unigram = (np.asarray(background, np.float64) + 1) / (np.sum(background) + model.words)
    rng, total, count, rows, row = generator(seed, "completion"), np.zeros(2), 0, 0, 0
    for batch in documents.read():
        require_whole(batch, row, documents.name)
        seen, scored = _halves(batch, rng)
        total += _log_likelihoods(model, seen, scored, unigram, background_share)
        count += int(scored.data.sum())
        rows += int((np.diff(scored.indptr) > 0).sum())
        row += batch.shape[0]
    require(count > 0, f"{documents.name} holds no word to score: give documents of at least two words")
    with np.errstate(over="ignore"):
        of_model, of_unigram = np.exp(-total / count)
    return Perplexity(
        model=float(of_model), unigram=float(of_unigram), words=count, documents=rows, background_share=background_share
    )


def _halves(batch: csr_matrix, rng: np.random.Generator) -> tuple[csr_matrix, csr_matrix]:
    """Each occurrence of a word in one of two matrices, drawn in the order of the entries."""
    first = rng.binomial(batch.data.astype(np.int64), 0.5).astype(np.float64)
    return _with_counts(batch, first), _with_counts(batch, batch.data - first)


def _with_counts(batch: csr_matrix, counts: np.ndarray) -> csr_matrix:
    """The places of ``batch`` with other counts, without those that are zero."""
    part = csr_matrix((counts, batch.indices, batch.indptr), shape=batch.shape, copy=True)
    part.eliminate_zeros()
    return part


def _log_likelihoods(
    model: TopicModel, seen: csr_matrix, scored: csr_matrix, unigram: np.ndarray, background_share: float
) -> np.ndarray:
    """Compute log-likelihoods of the words in ``scored``: by topics, with shares from ``seen``, and by unigrams (2)."""
    shares = shares_of(seen, model.topics, model.alpha).shares
    by_topics = np.empty(len(scored.data))
    for row in range(scored.shape[0]):
        inside = slice(scored.indptr[row], scored.indptr[row + 1])
        by_topics[inside] = model.topics[scored.indices[inside]] @ shares[row]
    alone = unigram[scored.indices]
    with np.errstate(divide="ignore"):
        mixed = np.log((1 - background_share) * by_topics + background_share * alone)
    return np.array([scored.data @ mixed, scored.data @ np.log(alone)])


def word_counts(documents: Documents) -> Block:
    """(V) How often each word occurs in all documents: the background of a perplexity; one pass."""
    total = np.zeros(documents.columns)
    for batch in documents.read():
        total += np.bincount(batch.indices, batch.data, documents.columns)
    return total
