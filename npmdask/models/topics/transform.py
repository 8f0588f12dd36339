"""The shares of the topics in every document of a corpus, written out of core."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npmdask.errors import BadInputError
from npmdask.execution.executor import single_threaded_blas
from npmdask.models.topics.documents import Documents, documents_of, with_words
from npmdask.models.topics.inference import MAX_ITERATIONS, TOL, Shares, shares_of
from npmdask.models.topics.model import TopicModel
from npmdask.runs.observers import Observer
from npmdask.storage.paths import local_path
from npmdask.storage.writers.dense import DenseWriter
from npmdask.streaming.loop import TELL_SECONDS, Every
from npmdask.streaming.transform import writer_of_scores


@dataclass(frozen=True, kw_only=True)
class TopicScores:
    """What ``transform_documents`` wrote: ``rows`` x ``columns`` shares at ``dest``, rows sum to 1.

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
    """What was met on the way."""

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
    source : as for :func:`npmdask.models.topics.documents.documents_of`; columns as those that the topics were found
    of.
    dest : folder to create: a Zarr store with checksums that every command reads. It appears whole or not at all; after
        a kill the same call begins again.
    max_iterations, tol : of :func:`npmdask.models.topics.inference.shares_of`.
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
    dest = local_path(dest, "the store of the shares")
    start, model = time.perf_counter(), TopicModel.load(store)
    documents = for_model(documents_of(source), model)
    tally, where = _Tally(), {"store": str(Path(store).absolute()), "source": documents.name}
    with single_threaded_blas(), writer_of_scores(dest, model.k, overwrite) as writer:
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
    writer: DenseWriter,
    tally: _Tally,
    until: tuple[int, float],
    observer: Observer,
) -> None:
    tell = Every(TELL_SECONDS)
    for batch in documents.read():
        shares = shares_of(batch, model.topics, model.alpha, max_iterations=until[0], tol=until[1])
        writer.write(shares.shares)
        tally.add(shares)
        if tell.is_time():
            observer.on_rows(writer.next_row, tally.wordless, writer.next_row / tell.total)


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
    if found.vocabulary is not None and found.vocabulary != model.vocabulary:
        raise BadInputError(
            f"{documents.name} brings a vocabulary and it is not that of the topics: count the words of the documents "
            "with the vocabulary of the topics, in its order"
        )
    return found
