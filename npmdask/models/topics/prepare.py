"""From a corpus as users have it to stores of documents below a job: words that count, documents held out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError, RefusedError
from npmdask.models.topics.documents import (
    Documents,
    document_frequencies,
    documents_of,
    kept_words,
    require_bounds,
    with_words,
    write_documents,
)
from npmdask.models.topics.vocabulary import read_vocabulary, require_words
from npmdask.storage.checksum import crc32c
from npmdask.storage.object_url import is_remote
from npmdask.storage.paths import local_path

TRAINING, HELD_OUT, ORIGIN = "documents.zarr", "held-out.zarr", "origin"
CORPUS = "kept"  # the part that holds which columns of the corpus are words of the model


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What of a corpus is used.

    Parameters
    ----------
    held_out : share of the documents that topics are measured on and not found from (every so many-th); 0: none.
    min_df : words in fewer documents are left out; max_df : words in more than this share of them.
    """

    held_out: float = 0.1
    min_df: int = 1
    max_df: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.held_out <= 0.5:
            raise BadInputError(f"held_out = {self.held_out} is a share of the documents, from 0 to 0.5")
        require_bounds(self.min_df, self.max_df)

    @property
    def every(self) -> int:
        """One of so many documents is held out; 0: none."""
        return round(1 / self.held_out) if self.held_out else 0


def prepare(held: RunStore, source: Any, vocabulary: Any, cut: Cut) -> None:
    """Write ``documents.zarr`` (and ``held-out.zarr``) below the job, once; the corpus may be gone afterwards.

    Raises
    ------
    BadInputError
        No documents, no counts, a vocabulary of another length, or no word that is kept.
    RefusedError
        The store was made from something else.
    """
    asked = {"source": _identity(source), "vocabulary": _identity(vocabulary), **asdict(cut)}
    found = held.read_part(ORIGIN)
    if found is not None:
        _require_same(held, found[1], asked)
        return
    documents = documents_of(source)
    if documents.rows is not None and documents.rows < cut.every:
        raise BadInputError(
            f"held_out = {cut.held_out:g} is one document of {cut.every}, and {documents.name} has {documents.rows}: "
            "hold out none of them (0)"
        )
    words = _words(documents, vocabulary)
    kept = _kept(documents, cut)
    chosen = with_words(replace(documents, vocabulary=words), kept)
    assert chosen.vocabulary is not None
    parts = [(TRAINING, lambda row: not cut.every or row % cut.every != cut.every - 1)]
    if cut.every:
        parts.append((HELD_OUT, lambda row: row % cut.every == cut.every - 1))
    for name, takes in parts:
        held.require_turn()  # or these are the documents of the process that took the job over
        shutil.rmtree(held.path / name, ignore_errors=True)  # of a preparation that a kill ended
        write_documents(some_of(chosen, takes), held.path / name, chosen.vocabulary)
    held.write_part(ORIGIN, {CORPUS: kept}, asked | {"columns": documents.columns})


def some_of(documents: Documents, takes: Callable[[int], bool]) -> Documents:
    """The documents whose numbers (from 0) are taken."""

    def read() -> Any:
        row = 0
        for batch in documents.read():
            which = [number for number in range(batch.shape[0]) if takes(row + number)]
            row += batch.shape[0]
            if which:
                yield csr_matrix(batch[which])

    return replace(documents, read=read, rows=None)


def _words(documents: Documents, vocabulary: Any) -> tuple[str, ...]:
    if isinstance(vocabulary, str | Path):
        return read_vocabulary(vocabulary, documents.columns)
    if vocabulary is not None:
        return require_words(vocabulary, documents.columns, "the vocabulary")
    if documents.vocabulary is not None:
        return documents.vocabulary
    return tuple(f"word {column}" for column in range(1, documents.columns + 1))


def _kept(documents: Documents, cut: Cut) -> np.ndarray:
    if cut.min_df <= 1 and cut.max_df >= 1:
        return np.arange(documents.columns)
    return kept_words(*document_frequencies(documents), min_df=cut.min_df, max_df=cut.max_df)


def _identity(given: Any) -> Any:
    """What a corpus or a vocabulary is known by: path, size and time of a file; a checksum of what lies in memory."""
    if given is None:
        return None
    if isinstance(given, str | Path):
        if is_remote(given):
            return str(given)
        path = local_path(given, "a corpus or a vocabulary")
        return [str(path), path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else str(path)
    if isinstance(given, Documents):
        return given.name
    if isinstance(given, list | tuple):
        return f"{crc32c(np.frombuffer(chr(10).join(given).encode(), np.uint8)):08x}"
    matrix = csr_matrix(given)
    return [f"{crc32c(np.ascontiguousarray(part)):08x}" for part in (matrix.indptr, matrix.indices, matrix.data)]


def _require_same(held: RunStore, before: dict[str, Any], asked: dict[str, Any]) -> None:
    other = [name for name, value in asked.items() if before.get(name) != value]
    if other:
        said = ", ".join(f"{name} ({before.get(name)!r} then, {asked[name]!r} now)" for name in other)
        raise RefusedError(
            f"the store {held.path} was made from something else; these differ: {said}. Use another store"
        )
