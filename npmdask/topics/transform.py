"""The shares of the topics in every document of a corpus, written out of core."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import psi

from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.observers import Observer
from npmdask.core.storage.labels import of_columns
from npmdask.core.storage.names import matched
from npmdask.core.storage.paths import local_path
from npmdask.errors import BadInputError
from npmdask.streaming.loop import TELL_SECONDS, Stopwatch
from npmdask.streaming.row_files import is_row_file
from npmdask.streaming.transform import writer_of_scores
from npmdask.topics.documents import Documents, documents_of, with_words
from npmdask.topics.model import TopicModel

# Which topics a document has, given the topics: the variational E-step, for many documents at once. Pure.


STRIP_BYTES = 4 * 2**20  # of the topics of the words of the documents that are worked on at once: in cache
STRIP_ROWS = 1024
LEAST = 1e-100  # a probability that is 0 by rounding: what is divided by it, times a share of 0, is 0
MAX_ITERATIONS, TOL = 1000, 1e-5  # measured on papers of 1,250 words: 99 of 100 shares are then within 0.0013 (L1)


class Shares(NamedTuple):
    """Shares of a batch of documents: ``shares`` (b x k), whose rows sum to 1.

    ``wordless`` (b): no word that the model knows; ``open`` (b): not converged; ``unknown``: occurrences of words that
    no topic has.
    """

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
    known = _known_counts(counts, topics)
    gamma = np.tile(alpha.astype(np.float64), (counts.shape[0], 1))
    left = np.zeros(counts.shape[0], bool)
    lengths = np.diff(known.indptr)
    for documents in _strips(lengths, len(alpha)):
        gamma[documents], left[documents] = _ascend(known, documents, topics, alpha, max_iterations, tol)
    shares = gamma / gamma.sum(axis=1, keepdims=True)
    return Shares(shares, lengths == 0, left, float(counts.data.sum() - known.data.sum()))


def _known_counts(counts: csr_matrix, topics: Block) -> csr_matrix:
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


@dataclass(frozen=True, kw_only=True)
class TopicScores:
    """Summary of ``transform_documents``: ``rows`` x ``columns`` shares at ``dest``, rows sum to 1.

    ``wordless`` documents have no word that the model knows: they got the shares of the prior. ``open`` documents had
    not converged. ``unknown_words``: occurrences of words that no topic has.
    """

    rows: int
    columns: int
    wordless: int
    open: int
    unknown_words: float
    seconds: float
    rows_per_second: float
    dest: str
    fingerprint: str
    source: str
    store: str


@dataclass
class _Tally:
    """Counts of documents without known words or not converged, and of unknown words."""

    wordless: int = 0
    open: int = 0
    unknown: float = 0.0

    def add(self, shares: Shares) -> None:
        self.wordless += int(shares.wordless.sum())
        self.open += int(shares.open.sum())
        self.unknown += shares.unknown


def transform_documents(
    store: str | Path,
    source: Any,
    dest: str | Path,
    *,
    max_iterations: int = MAX_ITERATIONS,
    tol: float = TOL,
    overwrite: bool = False,
    observer: Observer | None = None,
) -> TopicScores:
    """Write the shares (n x k, float64) of the topics in ``store`` in each document of ``source`` (n x V counts).

    Memory: the topics (V x k) and some batches of documents, whatever n. The shares of documents are data of these
    documents: no promise protects them.

    Parameters
    ----------
    store : of a finished run of topics, or what ``TopicModel.save`` wrote.
    source : as for :func:`npmdask.topics.documents.documents_of`; columns as those that the topics were found
    of.
    dest : what to create: a file that ends in .npy, .csv or .parquet (columns topic1, topic2, ...), or else a folder, a
        Zarr store with checksums that every command reads; its array is "data". It appears whole or not at all; after a
        kill the same call begins again.
    max_iterations, tol : of :func:`npmdask.topics.transform.shares_of`.
    overwrite : replace what is at ``dest``.

    Raises
    ------
    BadInputError
        No topics, documents of another width, counts that are none; a source that cannot be read.
    RefusedError
        ``dest`` exists, or another process is writing it.
    CommitError
        The disk is full; nothing is left behind.
    """
    dest = local_path(dest, "the shares")
    is_row_file(dest)  # refuses an ending that is not written, before anything is read
    start, model = time.perf_counter(), TopicModel.load(store)
    documents = for_model(documents_of(source), model)
    tally, where = _Tally(), {"store": str(Path(store).absolute()), "source": documents.name}
    names = [f"topic{i + 1}" for i in range(model.k)]
    with single_threaded_blas(), writer_of_scores(dest, names, overwrite, documents.mark) as writer:
        _write_all(documents, model, writer, tally, (max_iterations, tol), observer or Observer())
        fingerprint = writer.finish({"scores": {**where, "wordless": tally.wordless, "open": tally.open}})
    seconds, rows = time.perf_counter() - start, writer.next_row
    return TopicScores(
        rows=rows,
        columns=model.k,
        wordless=tally.wordless,
        open=tally.open,
        unknown_words=tally.unknown,
        seconds=round(seconds, 3),
        rows_per_second=round(rows / seconds, 1),
        dest=str(writer.dest),
        fingerprint=fingerprint,
        **where,
    )


def _write_all(
    documents: Documents,
    model: TopicModel,
    writer: Any,
    tally: _Tally,
    until: tuple[int, float],
    observer: Observer,
) -> None:
    tell = Stopwatch(TELL_SECONDS)
    observer.on_begin(0, documents.rows, "document")
    told = 0
    for batch in documents.read():
        shares = shares_of(batch, model.topics, model.alpha, max_iterations=until[0], tol=until[1])
        writer.write(shares.shares)
        tally.add(shares)
        if tell.is_time():
            told = writer.next_row
            observer.on_rows(told, 0, told / tell.total)
    if told != writer.next_row:
        observer.on_rows(writer.next_row, 0, writer.next_row / tell.total)


class DocumentShares:
    """Documents (a store of them, in the words of ``model``) and their topics, read once by :meth:`shares`.

    What is counted on the way is complete when all shares are read: ``lengths`` (n words of each document) and
    ``word_counts`` (V, of all documents), whole numbers.
    """

    def __init__(self, documents: Any, model: TopicModel) -> None:
        self._documents, self._model = for_model(documents_of(documents), model), model
        self._lengths: list[np.ndarray] = []
        self.word_counts = np.zeros(model.words, np.int64)

    @property
    def rows(self) -> int:
        """Documents."""
        assert self._documents.rows is not None  # of a store
        return self._documents.rows

    @property
    def lengths(self) -> np.ndarray:
        """Words of each document that was read."""
        return np.concatenate(self._lengths)

    @property
    def lengths_of_last(self) -> np.ndarray:
        """Words of each document of the batch whose shares were given last."""
        return self._lengths[-1]

    def shares(self) -> Iterator[Block]:
        """Yield the shares (b x k, rows sum to 1) of the topics, heaviest topic first, in batches of documents."""
        for batch in self._documents.read():
            counts = batch.data.astype(np.int64)
            whole = csr_matrix((counts, batch.indices, batch.indptr), shape=batch.shape)
            self._lengths.append(np.asarray(whole.sum(axis=1)).ravel())
            self.word_counts += np.asarray(whole.sum(axis=0)).ravel()
            with single_threaded_blas():
                found = shares_of(batch, self._model.topics, self._model.alpha).shares
            yield found[:, self._model.by_weight]


@dataclass(frozen=True, kw_only=True)
class StrongestDocuments:
    """Documents with the largest shares of each topic (k, heaviest first), n for each, the largest first.

    ``rows`` (k x n): their numbers, from 0; -1 where there are fewer. ``shares`` (k x n) of the topic in them, and
    ``lengths`` (k x n), their words.
    """

    rows: np.ndarray
    shares: np.ndarray
    lengths: np.ndarray

    def bundle(self, colour: str = "") -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays and facts, as a store keeps them; documents have no ``colour``."""
        return {"rows": self.rows, "shares": self.shares, "lengths": self.lengths}, {"colour": colour}

    @classmethod
    def of_bundle(cls, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> StrongestDocuments:
        """The inverse of :meth:`bundle`."""
        return cls(**arrays)


def strongest_documents(documents: DocumentShares, n: int) -> StrongestDocuments:
    """Find the documents in which each topic is strongest, in one pass; of equal shares the longer document is first.

    Memory: a batch of documents and its shares, whatever their number.
    """
    held, first = np.zeros((0, 3, 0)), 0  # shares, lengths and numbers of the best so far, for every topic
    for shares in documents.shares():
        lengths = documents.lengths_of_last
        size, k = shares.shape
        both = np.stack([shares.T, np.tile(lengths, (k, 1)), np.tile(np.arange(first, first + size), (k, 1))], axis=1)
        held = np.concatenate([held, both], axis=2) if first else both
        order = np.lexsort((held[:, 2], -held[:, 1], -held[:, 0]), axis=1)[:, None, :n]
        held = np.take_along_axis(held, order, axis=2)
        first += size
    rows = np.full((len(held), n), -1)
    found = [np.zeros((len(held), n)), np.zeros((len(held), n), np.int64)]
    rows[:, : held.shape[2]] = held[:, 2]
    for kept, part in zip(found, (0, 1), strict=True):
        kept[:, : held.shape[2]] = held[:, part]
    return StrongestDocuments(rows=rows, shares=found[0], lengths=found[1])


def for_model(documents: Documents, model: TopicModel) -> Documents:
    """The documents in the words of the model; those that were left out when it was found are left out again.

    Raises
    ------
    BadInputError
        They have another number of words, or other words.
    """
    columns = model.source_columns if model.kept is not None else model.words
    if documents.columns == model.words:
        found = documents  # the kept words only, already
    elif model.kept is not None and documents.columns == columns:
        found = with_words(documents, model.kept)
    else:
        raise BadInputError(
            f"{documents.name} has {documents.columns} columns and the topics were found in {columns}: count the words "
            "of the documents with the vocabulary of the topics, in its order"
        )
    if found.vocabulary is None:
        return found
    known, given = (of_columns(words).columns for words in (model.vocabulary, found.vocabulary))
    places = matched(known, given, documents.name, "the vocabulary of the topics").places
    return found if places is None else with_words(found, places)
