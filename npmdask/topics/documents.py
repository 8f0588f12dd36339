"""Documents as counts of words, batch by batch, wherever they lie: read as often as needed, never held whole.

And what the words are: a vocabulary beside the counts, or texts that are counted here.
"""

from __future__ import annotations

import ast
import re
import tempfile
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, issparse

from npmdask.core.storage.kinds import real_array
from npmdask.core.storage.labels import Axis
from npmdask.core.storage.paths import local_path, locked
from npmdask.core.storage.readers.whole_rows import units_of
from npmdask.core.storage.safe_open import carried
from npmdask.core.storage.source import Source, is_remote, open_source, schemes
from npmdask.errors import BadInputError, require
from npmdask.formats import open_file, tell_format
from npmdask.formats.common import SparseSource, guarded, open_binary
from npmdask.formats.ingest import discarded_if_bad
from npmdask.symmetric.reader import TensorReader
from npmdask.writers.sparse import SparseWriter

# The words that the columns of a matrix of counts mean: read from a file, checked, and kept beside arrays.


ONE_A_LINE = "a vocabulary file has one word on each line, that of column 1 first"


def read_vocabulary(path: str | Path, columns: int | None = None) -> tuple[str, ...]:
    """The words in a file (UTF-8, or packed with gzip), a word on each line; ``columns`` that there must be.

    Raises
    ------
    BadInputError
        No file, no text, a line without a word, a word that comes twice, or another number of words than ``columns``.
    """
    path = local_path(path, "a vocabulary")
    require(path.is_file(), f"there is no vocabulary file at {path}; {ONE_A_LINE}")
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
    require(bool(first), f"{where} holds no words; {ONE_A_LINE}")
    return tuple(words)


def words_to_array(words: Sequence[str]) -> np.ndarray:
    """The words as bytes of UTF-8, a line each: an array that needs no pickle."""
    return np.frombuffer("\n".join(words).encode(), np.uint8).copy()


def words_of_array(array: np.ndarray) -> tuple[str, ...]:
    """The inverse of :func:`words_to_array`."""
    return tuple(array.tobytes().decode().split("\n"))


ROWS = 2**14  # of a batch at most: bounds what is as long as a batch has documents, whatever their words


@dataclass(frozen=True, kw_only=True)
class Documents:
    """A corpus of ``columns`` words: ``read()`` begins at the first document and yields canonical CSR batches (float64,
    b x columns, b at most ROWS) in order; it can be called again.

    ``rows``: documents (None where only reading tells); ``vocabulary``: where the corpus brings one; ``names``: of the
    documents, likewise; ``mark``: that of data which have a budget.
    """

    columns: int
    read: Callable[[], Iterator[csr_matrix]]
    name: str
    rows: int | None = None
    vocabulary: tuple[str, ...] | None = None
    names: Axis | None = None
    mark: Any = None


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
        path = local_path(source, "a file of documents", schemes())
        return _documents_of_store(open_source(path)) if _is_store(path) else _documents_of_file(path)
    return _documents_of_store(source if isinstance(source, Source) else open_source(source))


def _is_store(path: Path) -> bool:
    return path.is_dir() or not path.exists()  # of what does not exist the store's reader says it best


def _of_matrix(matrix: Any) -> Documents:
    if len(matrix.shape) != 2 or 0 in matrix.shape:
        raise BadInputError(f"counts of shape {matrix.shape}: give documents x words, at least one of each")
    whole = csr_matrix(matrix)
    whole.sum_duplicates()
    return Documents(
        columns=whole.shape[1], rows=whole.shape[0], name="a matrix", read=lambda: _batches(iter([whole]), "the matrix")
    )


def _documents_of_file(path: Path) -> Documents:
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
                yield from _batches(batches, str(path))

    with tempfile.TemporaryDirectory(prefix="npmdask-") as folder:
        source = opened(folder)
    return Documents(columns=source.columns, rows=source.rows, name=str(path), read=read)


def _documents_of_store(source: Source) -> Documents:
    require(source.traits.of_rows, f"{source.path} is of kind {source.kind}: documents must be rows of word counts")

    def read() -> Iterator[csr_matrix]:
        assert not isinstance(source.reader, TensorReader)  # refused above
        units = units_of(source.reader)
        yield from _batches((csr_matrix(units.load(unit)) for unit in range(len(units.bounds) - 1)), source.path)

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
        mark=source.mark,
    )


def _batches(batches: Iterator[csr_matrix], name: str) -> Iterator[csr_matrix]:
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
    _refuse(wrong, part, row, name, "counts cannot be negative; correct the source")


def _refuse(wrong: np.ndarray, part: csr_matrix, row: int, name: str, why: str) -> None:
    """Raise BadInputError for the first of the entries that are ``wrong``."""
    if wrong.any():
        entry = int(np.argmax(wrong))
        document = row + int(np.searchsorted(part.indptr, entry, side="right"))
        raise BadInputError(
            f"{name}: document {document} has {part.data[entry]:g} as the count of the word in column "
            f"{part.indices[entry] + 1}: {why}"
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
    fresh = {"documents": uuid.uuid4().hex} | carried(documents.mark)  # not gone on with, whatever a kill left
    dtype = np.dtype(np.int32)
    with locked(target), discarded_if_bad(target):
        writer = SparseWriter(target, columns=documents.columns, dtype=dtype, identity=fresh, overwrite=overwrite)
        for batch in documents.read():
            require_whole(batch, row, documents.name)
            writer.write(batch.indptr, batch.indices, batch.data.astype(np.int32))
            row += batch.shape[0]
        return writer.finish(arrays={"words": words_to_array(words)})


def require_whole(batch: csr_matrix, row: int, name: str) -> None:
    """Refuse counts that are fractions, or too many for 32 bits; ``row`` is the number of the first document."""
    wrong = (batch.data != np.floor(batch.data)) | (batch.data > np.iinfo(np.int32).max)
    _refuse(wrong, batch, row, name, "give whole numbers, not shares or weights (tf-idf)")


# Texts as counts of words, and a corpus of real text that every machine with npmdask has: documentation.


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
    require(bool(found), f"no text has {least_words} words: give more texts, or lower least_words")
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
