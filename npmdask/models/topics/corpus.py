"""Texts as counts of words, and a corpus of real text that every machine with npmdask has: documentation."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.errors import BadInputError
from npmdask.models.topics.documents import document_frequencies, documents_of, kept_words

PACKAGES = ("numpy", "scipy", "matplotlib")  # needed by npmdask: there, and of the same version, wherever it is locked
LEAST_WORDS = 30  # of a docstring that is a document
NOT_PUBLISHED = {"tests", "test", "_vendor", "externals", "vendor"}

WORD = re.compile(r"[a-z]{3,}")
CODE = re.compile(r"(?m)^\s*(>>>|\.\.\. ).*$|`[^`\n]*`|https?://\S+|\.\. \w+::.*$|:[a-z-]+:|\\[A-Za-z]+")

# English words without a subject, and those that are in docstrings whatever these are about.
STOP_WORDS = frozenset(
    """
    about above added advance after again alias all already also and another any are arg args argument arguments
    array arrays attribute attributes available based because been before behavior behaviour being below between
    bool boolean both but call callable called calls can cannot case cases changed class classes code compute
    computed contain containing contains corresponding could default defaults defined deprecated describe
    description details dict did doc docs docstring docstrings documentation does doesn doing done down dtype
    during each either element elements else equivalent etc example examples false few float floats following
    for from function functions further get gets given gives had has have having here how however import include
    included includes including input inputs instance instead int integer integers into ints its itself just
    keyword keywords kwargs less like list lists make makes matplotlib may means method methods might module
    modules more most much must name names ndarray new non none nor not note notes now numpy object objects off
    once one only option optional options other otherwise our out output outputs over own parameter parameters
    pass passed possible provided raise raised raises ref reference references required return returned returns
    same scalar scipy see seen sequence set sets several shall shape should since some specified str string
    strings such take taken than that the their them then there therefore these they this those three through
    thus too true tuple two type types under until use used useful user uses using usually value values version
    very via warning warnings was way ways well were what when where whether which while who will with within
    without would yet you your
    """.split()
)


class Corpus(NamedTuple):
    """``counts`` (CSR, documents x words, int32), the words of the columns, and what each document is."""

    counts: csr_matrix
    vocabulary: tuple[str, ...]
    titles: tuple[str, ...]


def words_in(text: str) -> list[str]:
    """The words of a text: runs of three or more letters a to z, made small; no code, no links, no stop words."""
    return [word for word in WORD.findall(CODE.sub(" ", text).lower()) if word not in STOP_WORDS]


def count_texts(
    texts: Iterable[tuple[str, str]], *, min_df: int = 5, max_df: float = 0.2, least_words: int = LEAST_WORDS
) -> Corpus:
    """Counts of the words of ``texts`` (title, text), words and documents each in an order that the texts alone decide.

    Texts with fewer than ``least_words`` words, and texts of which an equal one came before, are left out; then words
    in fewer than ``min_df`` documents or in more than the share ``max_df`` of them.

    Raises
    ------
    BadInputError
        No text is left, or no word.
    """
    titles, found, before = [], [], set()
    for title, text in texts:
        words = words_in(text)
        if len(words) >= least_words and (whole := " ".join(words)) not in before:
            before.add(whole)
            titles.append(title)
            found.append(Counter(words))
    if not found:
        raise BadInputError(f"no text has {least_words} words: give more texts, or lower least_words")
    vocabulary = sorted(set().union(*found))
    counts = _matrix(found, vocabulary)
    kept = kept_words(*document_frequencies(documents_of(counts)), min_df=min_df, max_df=max_df)
    return Corpus(counts[:, kept], tuple(vocabulary[word] for word in kept), tuple(titles))


def _matrix(found: Sequence[Counter[str]], vocabulary: Sequence[str]) -> csr_matrix:
    place = {word: column for column, word in enumerate(vocabulary)}
    rows = [sorted((place[word], count) for word, count in counter.items()) for counter in found]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    indices, data = (np.array([pair[part] for row in rows for pair in row], np.int32) for part in (0, 1))
    return csr_matrix((data, indices, indptr), shape=(len(found), len(vocabulary)))


def documentation_corpus(
    packages: Sequence[str] = PACKAGES, *, min_df: int = 10, max_df: float = 0.2, least_words: int = LEAST_WORDS
) -> Corpus:
    """Every docstring of these packages as a document: real text without a network, the same wherever the versions are.

    The sources are parsed and not imported; what is not written in Python is not found.

    Raises
    ------
    BadInputError
        A package that is not there, or without text.
    """
    texts = (pair for package in packages for pair in _docstrings(package))
    return count_texts(texts, min_df=min_df, max_df=max_df, least_words=least_words)


def _docstrings(package: str) -> Iterator[tuple[str, str]]:
    """The docstrings of a package with their names, file by file in the order of their names."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise BadInputError(f"there is no package {package!r} here with sources: name one that is installed")
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if NOT_PUBLISHED & set(inside.parts):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that a later Python will refuse, in sources that are not ours
            tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in _statements(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                name = "" if isinstance(node, ast.Module) else f":{node.name}"
                yield f"{package}/{inside.as_posix()}{name}", text


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """The module and all statements in bodies below it, without the expressions, most of the tree."""
    found: list[ast.AST] = [tree]
    for node in found:
        found.extend(getattr(node, "body", ()))
    yield from found
