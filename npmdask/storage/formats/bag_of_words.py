"""The UCI bag of words (``docword``): sparse counts as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy import sparse

from npmdask.errors import BadInputError
from npmdask.storage.formats.common import SparseSource, after, require_rows, truncated
from npmdask.storage.formats.compressed import canonical
from npmdask.storage.formats.raw import open_binary, parse_lines, text_blocks


def open_docword(path: Path) -> SparseSource:
    """The UCI bag of words: documents, words and entries on three lines, then ``doc word count`` from 1."""
    with open_binary(path) as file:
        sizes = [int(file.readline()) for _ in range(3)]
        head = file.tell()
    documents, words, entries = sizes
    if min(documents, words, entries) < 1:
        raise BadInputError(f"{path} says {documents} documents, {words} words, {entries} entries: it is empty")

    require_rows(path, documents, entries)

    def batches(start: int) -> Iterator[sparse.csr_matrix]:
        return after(start, _docword_rows(path, (documents, words), entries, head))

    return SparseSource(format="docword", rows=documents, columns=words, dtype=np.dtype(np.int32), batches=batches)


def _docword_rows(path: Path, shape: tuple[int, int], entries: int, head: int) -> Iterator[sparse.csr_matrix]:
    held = [np.empty(0, np.int64) for _ in range(3)]  # of the last document, which may go on in the next block
    row = seen = 0
    with open_binary(path) as file:
        file.seek(head)
        for block in text_blocks(file):
            lines = parse_lines(block, [pa.int64()] * 3, path)
            lines[0], lines[1] = lines[0] - 1, lines[1] - 1
            seen += len(lines[0])
            held = [np.concatenate(pair) for pair in zip(held, lines, strict=True)]
            if not len(held[0]):
                continue
            _check_docword(held, shape[0], path)
            end = int(held[0][-1])
            if end > row:
                cut = int(np.searchsorted(held[0], end))
                yield _docword_batch([part[:cut] for part in held], (row, end), shape[1], path)
                held, row = [part[cut:] for part in held], end
    if seen != entries:
        raise truncated(path, f"its header says {entries} entries and it has {seen}")
    yield _docword_batch(held, (row, shape[0]), shape[1], path)


def _check_docword(held: list[np.ndarray], documents: int, path: Path) -> None:
    document, _, count = held
    if (np.diff(document) < 0).any():
        late = document[1:][np.diff(document) < 0][0] + 1
        raise BadInputError(f"{path}: document {late} comes late; sort the lines by document (sort -n -s -k1,1)")
    if document[0] < 0 or document[-1] >= documents:
        wrong = (document[0] if document[0] < 0 else document[-1]) + 1
        raise BadInputError(f"{path}: document {wrong} is outside 1 to {documents}; its header is wrong: correct it")
    if count.max() > np.iinfo(np.int32).max or count.min() < np.iinfo(np.int32).min:
        raise BadInputError(f"{path}: a count does not fit into 32 bits; correct the file")


def _docword_batch(held: list[np.ndarray], rows: tuple[int, int], words: int, path: Path) -> sparse.csr_matrix:
    indptr = np.searchsorted(held[0], np.arange(rows[0], rows[1] + 1))
    return canonical(indptr, held[1], held[2].astype(np.int32), words, rows[0], path)
