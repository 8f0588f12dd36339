"""The words that the columns of a matrix of counts mean: read from a file, checked, and kept beside arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from npmdask.errors import BadInputError
from npmdask.storage.formats.common import open_binary
from npmdask.storage.paths import local_path

ONE_A_LINE = "a vocabulary file has one word on each line, that of column 1 first"


def read_vocabulary(path: str | Path, columns: int | None = None) -> tuple[str, ...]:
    """The words in a file (UTF-8, or packed with gzip), a word on each line; ``columns`` that there must be.

    Raises
    ------
    BadInputError
        No file, no text, a line without a word, a word that comes twice, or another number of words than ``columns``.
    """
    path = local_path(path, "a vocabulary")
    if not path.is_file():
        raise BadInputError(f"there is no vocabulary file at {path}; {ONE_A_LINE}")
    with open_binary(path) as file:
        data = file.read()
    try:
        words = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); convert it") from None
    return require_words([word.strip() for word in words], columns, str(path))


def require_words(words: Sequence[str], columns: int | None, where: str) -> tuple[str, ...]:
    """``words`` as a tuple, if they can be a vocabulary; ``where`` they come from is named in what is wrong.

    Raises
    ------
    BadInputError
        As :func:`read_vocabulary`.
    """
    if columns is not None and len(words) != columns:
        raise BadInputError(
            f"{where} has {len(words)} words and the documents have {columns} columns: give the vocabulary that the "
            f"documents were counted with ({ONE_A_LINE})"
        )
    first: dict[str, int] = {}
    for line, word in enumerate(words, 1):
        if not isinstance(word, str) or not word or len(word.splitlines()) != 1:
            raise BadInputError(f"line {line} of {where} does not contain a word ({word!r}): correct it; {ONE_A_LINE}")
        if first.setdefault(word, line) != line:
            raise BadInputError(
                f"{where} has the word {word!r} twice, on lines {first[word]} and {line}: give every column its own "
                "word (if two columns count the same word, add them up first)"
            )
    if not first:
        raise BadInputError(f"{where} holds no words; {ONE_A_LINE}")
    return tuple(words)


def words_to_array(words: Sequence[str]) -> np.ndarray:
    """The words as bytes of UTF-8, a line each: an array that needs no pickle."""
    return np.frombuffer("\n".join(words).encode(), np.uint8).copy()


def words_of_array(array: np.ndarray) -> tuple[str, ...]:
    """The inverse of :func:`words_to_array`."""
    return tuple(array.tobytes().decode().split("\n"))
