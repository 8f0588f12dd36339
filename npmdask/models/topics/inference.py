"""Which topics a document has, given the topics: the variational E-step, for many documents at once. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import psi

from npmdask.numerics.subspaces import Block

STRIP_BYTES = 4 * 2**20  # of the topics of the words of the documents that are worked on at once: in cache
STRIP_ROWS = 1024
LEAST = 1e-100  # a probability that is 0 by rounding: what is divided by it, times a share of 0, is 0
MAX_ITERATIONS, TOL = 1000, 1e-5  # measured on papers of 1,250 words: 99 of 100 shares are then within 0.0013 (L1)


class Shares(NamedTuple):
    """Of a batch of documents: ``shares`` (b x k, rows sum to 1), ``wordless`` (b): no word that the model knows,
    ``open`` (b): not converged, ``unknown``: occurrences of words that no topic has."""

    shares: Block
    wordless: np.ndarray
    open: np.ndarray
    unknown: float


def shares_of(
    counts: csr_matrix, topics: Block, alpha: np.ndarray, *, max_iterations: int = MAX_ITERATIONS, tol: float = TOL
) -> Shares:
    """The expected shares of the topics in each document (b x V counts, V x k topics), under q = Dirichlet(gamma).

    Coordinate ascent of Blei, Ng and Jordan (2003), figure 6, which is the E-step of Hoffman, Blei and Bach (2010),
    Algorithm 1: ``gamma = alpha + theta * B^T (c / B theta)``, ``theta = exp(psi(gamma) - psi(sum gamma))``, B the rows
    of ``topics`` of the document's words and c their counts; from gamma = 1, until a step moves less than ``tol`` of
    the document's words from topic to topic (sum of the changes of gamma over its sum). A word of probability 0 in
    every topic says nothing and is left out; a document without any other has the shares of the prior, alpha / alpha0.
    """
    topics = np.ascontiguousarray(topics, dtype=np.float64)
    known = _of_known_words(counts, topics)
    gamma = np.tile(alpha.astype(np.float64), (counts.shape[0], 1))
    left = np.zeros(counts.shape[0], bool)
    lengths = np.diff(known.indptr)
    for documents in _strips(lengths, len(alpha)):
        gamma[documents], left[documents] = _ascend(known, documents, topics, alpha, max_iterations, tol)
    shares = gamma / gamma.sum(axis=1, keepdims=True)
    return Shares(shares, lengths == 0, left, float(counts.data.sum() - known.data.sum()))


def _of_known_words(counts: csr_matrix, topics: Block) -> csr_matrix:
    """The counts without zeros and without words that no topic has."""
    kept = (counts.data > 0) & (topics.max(axis=1) > 0)[counts.indices]
    before = np.concatenate([[0], np.cumsum(kept)])
    indptr = before[counts.indptr]
    return csr_matrix((counts.data[kept].astype(np.float64), counts.indices[kept], indptr), shape=counts.shape)


def _strips(lengths: np.ndarray, k: int) -> Iterator[np.ndarray]:
    """Documents of like length together, none without words: few enough that their words' topics fit into a cache."""
    order = np.argsort(lengths, kind="stable")
    end = len(order)
    first = int(np.searchsorted(lengths[order], 1))
    while end > first:
        longest = int(lengths[order[end - 1]])
        start = max(first, end - max(1, min(STRIP_ROWS, STRIP_BYTES // (8 * k * longest))))
        yield order[start:end]
        end = start


def _ascend(
    known: csr_matrix, documents: np.ndarray, topics: Block, alpha: np.ndarray, max_iterations: int, tol: float
) -> tuple[Block, np.ndarray]:
    """gamma of ``documents``, and which of them had not settled after ``max_iterations``."""
    counts, words = _padded(known, documents)
    of_words = topics[words]  # b x longest x k
    gamma, going = np.ones((len(documents), len(alpha))), np.arange(len(documents))
    for _ in range(max_iterations):
        theta = _expected(gamma[going])
        likely = np.maximum(np.matmul(of_words, theta[:, :, None])[:, :, 0], LEAST)
        moved = alpha + theta * np.matmul((counts / likely)[:, None, :], of_words)[:, 0, :]
        more = np.abs(moved - gamma[going]).sum(axis=1) >= tol * moved.sum(axis=1)
        gamma[going] = moved
        if not more.all():
            going, counts, of_words = going[more], counts[more], of_words[more]
        if not len(going):
            break
    return gamma, np.isin(np.arange(len(documents)), going)


def _padded(known: csr_matrix, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts and words of ``documents``, b x the longest: where a document is shorter, word 0 no times."""
    starts, ends = known.indptr[documents], known.indptr[documents + 1]
    places = starts[:, None] + np.arange(int((ends - starts).max()))
    inside = places < ends[:, None]
    places = np.where(inside, places, 0)
    return np.where(inside, known.data[places], 0.0), np.where(inside, known.indices[places], 0)


def _expected(gamma: Block) -> Block:
    """exp(E[log theta]) under Dirichlet(gamma), each row divided by its largest: the step does not change by a factor,
    and no row falls below the smallest number where alpha is small."""
    logarithms = psi(gamma)
    return np.asarray(np.exp(logarithms - logarithms.max(axis=1, keepdims=True)))
