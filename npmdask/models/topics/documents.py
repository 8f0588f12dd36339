"""Documents as counts of words, batch by batch, wherever they lie: read as often as needed, never held whole."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from npmdask.errors import BadInputError
from npmdask.models.topics.vocabulary import require_words, words_of_array, words_to_array
from npmdask.storage.formats import open_file, tell_format
from npmdask.storage.formats.common import SparseSource, guarded
from npmdask.storage.ingest import discarded_if_bad
from npmdask.storage.kinds import real_array
from npmdask.storage.labels import Axis
from npmdask.storage.object_url import SCHEMES, is_remote
from npmdask.storage.paths import local_path, locked
from npmdask.storage.readers.packed import TensorReader
from npmdask.storage.safe_open import note
from npmdask.storage.source import BUDGET_MARK, Source, open_source
from npmdask.storage.streams.zarr_rows import units_of
from npmdask.storage.writers.sparse import SparseWriter

ROWS = 2**14  # of a batch at most: bounds what is as long as a batch has documents, whatever their words


@dataclass(frozen=True, kw_only=True)
class Documents:
    """A corpus of ``columns`` words: ``read()`` begins at the first document and yields canonical CSR batches (float64,
    b x columns, b at most ROWS) in order; it can be called again.

    ``rows``: documents (None where only reading tells); ``vocabulary``: where the corpus brings one; ``names``: of the
    documents, likewise; ``budget``: the name in the ledger of data that have one.
    """

    columns: int
    read: Callable[[], Iterator[csr_matrix]]
    name: str
    rows: int | None = None
    vocabulary: tuple[str, ...] | None = None
    names: Axis | None = None
    budget: str | None = None


def documents_of(source: Any) -> Documents:
    """The documents in a store (path, URL, an open ``Source``), a file (UCI bag of words, .mtx, .npz), or a matrix.

    Raises
    ------
    BadInputError
        Nothing there, or not a matrix; when read: negative or non-finite counts, a file that is broken.
    """
    if isinstance(source, Documents):
        return source
    if issparse(source) or isinstance(source, np.ndarray):
        return _of_matrix(source if issparse(source) else real_array(source, "the counts"))
    if isinstance(source, str | Path) and not is_remote(source):
        path = local_path(source, "a file of documents", SCHEMES)
        return _of_store(open_source(path)) if _is_store(path) else _of_file(path)
    return _of_store(source if isinstance(source, Source) else open_source(source))


def _is_store(path: Path) -> bool:
    return path.is_dir() or not path.exists()  # of what does not exist the store's reader says it best


def _of_matrix(matrix: Any) -> Documents:
    if len(matrix.shape) != 2 or 0 in matrix.shape:
        raise BadInputError(f"counts of shape {matrix.shape}: give documents x words, at least one of each")
    whole = csr_matrix(matrix)
    whole.sum_duplicates()
    return Documents(
        columns=whole.shape[1], rows=whole.shape[0], name="a matrix", read=lambda: _cut(iter([whole]), "the matrix")
    )


def _of_file(path: Path) -> Documents:
    def opened(folder: str) -> SparseSource:
        source = open_file(path, None, "error", None, Path(folder))
        if not isinstance(source, SparseSource):
            raise BadInputError(
                f"{path} ({tell_format(path)}) holds dense rows, but word counts must be sparse: give a UCI bag of "
                "words, .mtx or a sparse .npz, or ingest it first with `npmdask ingest --kind sparse`"
            )
        return source

    def read() -> Iterator[csr_matrix]:
        with tempfile.TemporaryDirectory(prefix="npmdask-") as folder:
            with closing(guarded(path, opened(folder).batches(0))) as batches:
                yield from _cut(batches, str(path))

    with tempfile.TemporaryDirectory(prefix="npmdask-") as folder:
        source = opened(folder)
    return Documents(columns=source.columns, rows=source.rows, name=str(path), read=read)


def _of_store(source: Source) -> Documents:
    if source.kind not in ("sparse", "matrix", "samples"):
        raise BadInputError(f"{source.path} is of kind {source.kind}: documents must be rows of word counts")

    def read() -> Iterator[csr_matrix]:
        assert not isinstance(source.reader, TensorReader)  # refused above
        units = units_of(source.reader)
        yield from _cut((csr_matrix(units.load(unit)) for unit in range(len(units.bounds) - 1)), source.path)

    words = None if source.words is None else words_of_array(source.words)
    rows, columns = source.shape
    called = () if source.labels is None else source.labels.rows
    return Documents(
        columns=columns,
        rows=rows,
        name=source.path,
        read=read,
        vocabulary=words,
        names=called[0] if len(called) == 1 and called[0].values is not None else None,
        budget=source.budget,
    )


def _cut(batches: Iterator[csr_matrix], name: str) -> Iterator[csr_matrix]:
    """The same rows, as float64, a limited number at a time, every count checked."""
    row = 0
    for batch in batches:
        for first in range(0, batch.shape[0], ROWS):
            part = batch[first : first + ROWS].astype(np.float64)
            _require_counts(part, row, name)
            yield part
            row += part.shape[0]


def _require_counts(part: csr_matrix, row: int, name: str) -> None:
    wrong = ~(np.isfinite(part.data) & (part.data >= 0))
    if wrong.any():
        entry = int(np.argmax(wrong))
        document = row + int(np.searchsorted(part.indptr, entry, side="right"))
        raise BadInputError(
            f"{name}: document {document} has {part.data[entry]:g} as the count of the word in column "
            f"{part.indices[entry] + 1}: counts cannot be negative; correct the source"
        )


# Which words are kept


def document_frequencies(documents: Documents) -> tuple[np.ndarray, int]:
    """In how many documents each word occurs (V), and how many documents there are; one pass."""
    found, rows = np.zeros(documents.columns, np.int64), 0
    for batch in documents.read():
        found += np.bincount(batch.indices[batch.data > 0], minlength=documents.columns)
        rows += batch.shape[0]
    return found, rows


def require_bounds(min_df: int, max_df: float) -> None:
    """Raise BadInputError for bounds of :func:`kept_words` that cannot be."""
    if min_df < 1 or not 0 < max_df <= 1:
        raise BadInputError(
            f"min_df = {min_df}, max_df = {max_df}: min_df is a number of documents (1 or more), max_df a share of "
            "them (above 0, at most 1)"
        )


def kept_words(frequencies: np.ndarray, rows: int, *, min_df: int = 1, max_df: float = 1.0) -> np.ndarray:
    """The columns (rising) of words that are in at least ``min_df`` documents and at most the share ``max_df`` of them.

    Raises
    ------
    BadInputError
        Bounds that cannot be, or that no word is within.
    """
    require_bounds(min_df, max_df)
    kept = np.flatnonzero((frequencies >= min_df) & (frequencies <= max_df * rows))
    if not len(kept):
        raise BadInputError(
            f"no word occurs in at least {min_df} and at most {max_df:.0%} of the {rows} documents: lower min_df or "
            "raise max_df"
        )
    return kept


def with_words(documents: Documents, kept: np.ndarray) -> Documents:
    """The same documents, of the columns ``kept`` (rising) only: what else they held is not counted."""
    words = None if documents.vocabulary is None else tuple(documents.vocabulary[column] for column in kept)
    return replace(
        documents,
        columns=len(kept),
        vocabulary=words,
        read=lambda: (batch[:, kept] for batch in documents.read()),
    )


def write_documents(
    documents: Documents, dest: str | Path, vocabulary: Sequence[str], *, overwrite: bool = False
) -> str:
    """Write counts (float64 of whole numbers become int32) and their words as a store of kind sparse: its fingerprint.

    Of data with a privacy budget the store says that it has one, as they do.

    Raises
    ------
    BadInputError
        A vocabulary of another length, counts that are no counts, or no entry at all: nothing is left behind.
    RefusedError
        ``dest`` exists, or another process is writing it.
    """
    words, row, target = require_words(vocabulary, documents.columns, "the vocabulary"), 0, Path(dest).absolute()
    fresh = {"documents": uuid.uuid4().hex}  # not gone on with, whatever a kill left
    dtype = np.dtype(np.int32)
    with locked(target), discarded_if_bad(target):
        writer = SparseWriter(target, columns=documents.columns, dtype=dtype, identity=fresh, overwrite=overwrite)
        for batch in documents.read():
            require_whole(batch, row, documents.name)
            writer.write(batch.indptr, batch.indices, batch.data.astype(np.int32))
            row += batch.shape[0]
        printed = writer.finish(arrays={"words": words_to_array(words)})
        if documents.budget is not None:
            note(target, BUDGET_MARK, documents.budget)
        return printed


def require_whole(batch: csr_matrix, row: int, name: str) -> None:
    """Refuse counts that are fractions, or too many for 32 bits; ``row`` is the number of the first document."""
    wrong = (batch.data != np.floor(batch.data)) | (batch.data > np.iinfo(np.int32).max)
    if wrong.any():
        entry = int(np.argmax(wrong))
        document = row + int(np.searchsorted(batch.indptr, entry, side="right"))
        raise BadInputError(
            f"{name}: document {document} has {batch.data[entry]:g} as the count of the word in column "
            f"{batch.indices[entry] + 1}: give whole numbers, not shares or weights (tf-idf)"
        )
