"""Texts become counts in an order that the texts alone decide; every machine has a corpus of real text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from npmdask.errors import BadInputError
from npmdask.models.topics.documents import Corpus, count_texts, documentation_corpus, words_in

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
        cwd=Path(__file__).parents[3],
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
