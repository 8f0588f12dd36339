"""Documents, texts and their vocabulary: read from wherever they lie, every row in its place, what is wrong said."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from scipy.sparse import csr_matrix, save_npz, vstack

from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.topics import documents as module
from npmdask.topics.documents import (
    Corpus,
    Documents,
    count_texts,
    document_frequencies,
    documentation_corpus,
    documents_of,
    kept_words,
    read_vocabulary,
    with_words,
    words_in,
    write_documents,
)
from npmdask.writers.sparse import SparseWriter
from tests.topics.made import a_model, documents_from, words

EMPTY = csr_matrix((3, 60), dtype=np.int32)
COUNTS = vstack([EMPTY, documents_from(a_model(), 90, 8), EMPTY, documents_from(a_model(), 40, 8, 9), EMPTY], "csr")


def docword(path: Path, counts: csr_matrix) -> Path:
    """The file format of the UCI repository, packed."""
    entries = counts.tocoo()
    lines = [f"{d + 1} {w + 1} {c}\n" for d, w, c in zip(entries.row, entries.col, entries.data, strict=True)]
    with gzip.open(path, "wt") as file:
        file.writelines([*(f"{n}\n" for n in (*counts.shape, counts.nnz)), *lines])
    return path


def all_of(documents: Documents) -> np.ndarray:
    return vstack(list(documents.read())).toarray()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["matrix", "array", "docword", "npz", "store", "dense store", "written"])
def test_every_row_is_in_its_place(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when empty documents are lost, at the top too, or rows that the chunks of a store cut."""
    monkeypatch.setattr(SparseWriter, "CHUNK", 64)
    monkeypatch.setattr("npmdask.core.storage.readers.whole_rows.RUN_BYTES", 1)
    monkeypatch.setattr(module, "ROWS", 50)
    file = docword(tmp_path / "docword.txt.gz", COUNTS)
    source: Any = {"matrix": COUNTS, "array": COUNTS.toarray(), "docword": file}.get(where, tmp_path / "here.npz")
    if where == "npz":
        save_npz(source, COUNTS)
    elif where.endswith("store"):
        source = ingest(file, tmp_path / "x.zarr", kind="samples" if where.startswith("dense") else None).dest
    elif where == "written":
        source = tmp_path / "written.zarr"
        write_documents(documents_of(COUNTS), source, words(60))
        assert open_source(source).kind == "sparse"
    documents = documents_of(source)
    assert (documents.rows, documents.columns) == COUNTS.shape
    assert documents.vocabulary == (words(60) if where == "written" else None)
    for _ in range(2):
        np.testing.assert_array_equal(all_of(documents), COUNTS.toarray())
    assert max(batch.shape[0] for batch in documents.read()) <= 50


@pytest.mark.slow
def test_words_by_the_number_of_their_documents(tmp_path: Path) -> None:
    documents = documents_of(COUNTS)
    found, rows = document_frequencies(documents)
    wanted = (COUNTS.toarray() > 0).sum(axis=0)
    np.testing.assert_array_equal(found, wanted)
    assert rows == COUNTS.shape[0]
    kept = kept_words(found, rows, min_df=5, max_df=0.3)
    assert kept.tolist() == [w for w in range(60) if 5 <= wanted[w] <= 0.3 * rows] and 0 < len(kept) < 60
    write_documents(with_words(documents, kept), tmp_path / "kept.zarr", [f"w{w}" for w in kept])
    again = documents_of(tmp_path / "kept.zarr")
    assert again.vocabulary == tuple(f"w{w}" for w in kept) == with_words(again, np.arange(len(kept))).vocabulary
    np.testing.assert_array_equal(all_of(again), COUNTS.toarray()[:, kept])
    with pytest.raises(BadInputError, match="no word occurs in at least 500"):
        kept_words(found, rows, min_df=500)
    for wrong in ({"min_df": 0}, {"max_df": 0.0}, {"max_df": 20.0}):
        with pytest.raises(BadInputError, match="max_df a share"):
            kept_words(found, rows, **wrong)


@pytest.mark.parametrize(
    ("value", "said"), [(-1.0, "document 2 has -1 as the count of the word in column 3"), (np.nan, "nan as the count")]
)
def test_what_is_no_count(value: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a document is numbered by its place in a batch."""
    monkeypatch.setattr(module, "ROWS", 1)
    with pytest.raises(BadInputError, match=said):
        all_of(documents_of(np.array([[1.0, 0, 0], [0, 2.0, value]])))


@pytest.mark.slow
def test_other_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInputError, match="there is nothing at"):
        documents_of(tmp_path / "nowhere")
    np.save(tmp_path / "x.npy", np.eye(3))
    with pytest.raises(BadInputError, match="holds dense rows"):
        documents_of(tmp_path / "x.npy")
    with pytest.raises(BadInputError, match="give documents x words"):
        documents_of(np.ones(3))
    monkeypatch.setattr(module, "ROWS", 1)
    with pytest.raises(BadInputError, match=r"document 2 has 0\.5 as the count .* not shares or weights"):
        write_documents(documents_of(np.array([[1.0], [0.5]])), tmp_path / "half", ["w"])
    assert not (tmp_path / "half.partial").exists() and not (tmp_path / "half").exists()
    with pytest.raises(BadInputError, match="has 2 words and the documents have 60 columns"):
        write_documents(documents_of(COUNTS), tmp_path / "short", ["a", "b"])
    write_documents(documents_of(COUNTS), tmp_path / "there", words(60))
    with pytest.raises(RefusedError, match="exists already"):
        write_documents(documents_of(COUNTS), tmp_path / "there", words(60))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nb\n", "has 2 words and the documents have 3 columns: give the vocabulary"),
        ("a\n\nb\n", r"line 2 of .* does not contain a word"),
        ("a\nb\na\n", "the word 'a' twice, on lines 1 and 3"),
    ],
)
def test_vocabularies_that_do_not_fit(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(text)
    with pytest.raises(BadInputError, match=said):
        read_vocabulary(tmp_path / "vocab.txt", 3)


def test_vocabulary_files(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes("naïve\r\nbayes \r\ngraph".encode())
    (tmp_path / "packed").write_bytes(gzip.compress(b"\xef\xbb\xbfone\ntwo\n"))
    assert read_vocabulary(tmp_path / "plain", 3) == ("naïve", "bayes", "graph")
    assert read_vocabulary(tmp_path / "packed") == ("one", "two")
    (tmp_path / "latin").write_bytes("naïve".encode("latin-1"))
    (tmp_path / "empty").write_bytes(b"")
    for name, said in (("latin", "not UTF-8 text"), ("empty", "holds no words"), ("gone", "no vocabulary file")):
        with pytest.raises(BadInputError, match=said):
            read_vocabulary(tmp_path / name)


TEXTS = [
    ("one", "The matrix and its rows: a Matrix is sparse."),
    ("two", "Sparse rows of a matrix; a window of a signal."),
    ("again", "The matrix and its rows: a matrix is sparse!"),
    ("short", "A signal."),
    ("three", "A signal in a window, a window in a signal."),
]


def test_words_of_a_text() -> None:
    text = """
    Find the eigenvalues of `a`, see https://example.org/eigen and :func:`numpy.linalg.eigh`.
    .. math:: \\frac{x}{lambda}
    >>> import hidden
    ... hidden.too()
    Eigenvalues rise.
    """
    assert words_in(text) == ["find", "eigenvalues", "eigenvalues", "rise"]


def test_counts_by_hand() -> None:
    """Fails when a text that came before is counted twice, or a bound is off by one."""
    found = count_texts(TEXTS, min_df=2, max_df=2 / 3, least_words=3)
    assert found.titles == ("one", "two", "three")
    assert found.vocabulary == ("matrix", "rows", "signal", "sparse", "window")
    assert found.counts.toarray().tolist() == [[2, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 2, 0, 2]]
    assert count_texts(TEXTS, min_df=1, max_df=1.0, least_words=1).titles == ("one", "two", "short", "three")
    with pytest.raises(BadInputError, match="no text has 50 words"):
        count_texts(TEXTS, least_words=50)


def small_corpus() -> Corpus:
    return documentation_corpus(["zarr"], min_df=3)


def number_of(found: Corpus) -> int:
    """Of all that is in it."""
    parts = (found.counts.data, found.counts.indices, found.counts.indptr)
    return crc32(repr(found[1:]).encode() + b"".join(part.tobytes() for part in parts))


@pytest.mark.slow
def test_the_corpus_is_the_same_in_every_process() -> None:
    """Fails when anything goes by the order of a set, which the seed of the hashes decides."""
    said = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import *; print(number_of(small_corpus()))"],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
        text=True,
    )
    assert int(said.stdout) == number_of(small_corpus())


@pytest.mark.slow
def test_documentation_is_real_text() -> None:
    found = small_corpus()
    documents, words = found.counts.shape
    assert documents > 50 and words > 100 and len(found.vocabulary) == words and len(found.titles) == documents
    assert {"codec", "buffers", "metadata"} <= set(found.vocabulary)
    assert found.counts.dtype == np.int32 and np.diff(found.counts.indptr).mean() > 5
    assert all(title.startswith("zarr/") and "tests/" not in title for title in found.titles)
    with pytest.raises(BadInputError, match="no package 'not_there'"):
        documentation_corpus(["not_there"])
