"""Sparse numbers as text, an entry a line: the UCI bag of words, and MatrixMarket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from npmdask.errors import BadInputError, Later
from npmdask.formats.common import (
    DenseSource,
    SparseSource,
    after,
    batch_rows,
    column_major,
    open_binary,
    parse_lines,
    require_rows,
    spool_file,
    spool_write,
    text_blocks,
    truncated,
)
from npmdask.formats.compressed import Triplets, canonical_rows, sorted_rows

pa = Later("pyarrow", "ingest")

# The UCI bag of words (``docword``): sparse counts as text.


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
        raise BadInputError(f"{path}: document {late} is out of order; sort the lines by document (sort -n -s -k1,1)")
    if document[0] < 0 or document[-1] >= documents:
        wrong = (document[0] if document[0] < 0 else document[-1]) + 1
        raise BadInputError(f"{path}: document {wrong} is outside 1 to {documents}; its header is wrong: correct it")
    if count.max() > np.iinfo(np.int32).max or count.min() < np.iinfo(np.int32).min:
        raise BadInputError(f"{path}: a count does not fit into 32 bits; correct the file")


def _docword_batch(held: list[np.ndarray], rows: tuple[int, int], words: int, path: Path) -> sparse.csr_matrix:
    indptr = np.searchsorted(held[0], np.arange(rows[0], rows[1] + 1))
    return canonical_rows(indptr, held[1], held[2].astype(np.int32), words, rows[0], path)


# MatrixMarket, coordinate (sparse) and array (dense).


@dataclass(frozen=True, kw_only=True)
class MarketHeader:
    """The first lines of a MatrixMarket file; ``head`` is where its entries begin."""

    layout: str
    field: str
    symmetry: str
    sizes: tuple[int, ...]
    head: int

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.int64 if self.field in ("integer", "unsigned-integer") else np.float64)

    @property
    def arrow(self) -> Any:
        return pa.from_numpy_dtype(self.dtype)

    @property
    def sign(self) -> int:
        return -1 if self.symmetry == "skew-symmetric" else 1


def _market_header(path: Path) -> MarketHeader:
    with open_binary(path) as file:
        words = file.readline().decode("ascii", "replace").lower().split()
        if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"] or words[2] not in ("coordinate", "array"):
            raise BadInputError(f"{path} is not MatrixMarket: it begins with {' '.join(words)[:60]!r}")
        layout, field, symmetry = words[2:]
        if field not in ("real", "double", "integer", "unsigned-integer", "pattern"):
            raise BadInputError(f"{path} holds {field} values; real numbers are needed: save real or imaginary part")
        if symmetry not in ("general", "symmetric", "skew-symmetric", "hermitian"):
            raise BadInputError(f"{path}: unknown symmetry {symmetry!r}")
        line = file.readline()
        while line and (line.startswith(b"%") or not line.strip()):
            line = file.readline()
        sizes = tuple(int(word) for word in line.split())
        if len(sizes) != (3 if layout == "coordinate" else 2) or min(sizes[:2]) < 1:
            raise truncated(path, f"its size line is {line.decode('ascii', 'replace').strip()!r}")
        if symmetry != "general" and sizes[0] != sizes[1]:
            raise BadInputError(f"{path} says {symmetry} and has shape {sizes[:2]}: correct its first line")
        symmetry = "symmetric" if symmetry == "hermitian" else symmetry  # the same for real numbers
        return MarketHeader(layout=layout, field=field, symmetry=symmetry, sizes=sizes, head=file.tell())


def open_market(path: Path, spool: Path) -> DenseSource | SparseSource:
    """MatrixMarket, coordinate (sparse) or array (dense); symmetric files are written out in full."""
    header = _market_header(path)
    shape = (header.sizes[0], header.sizes[1])
    if header.layout == "array":
        return _open_market_array(path, header, shape, spool)
    require_rows(path, header.sizes[0], header.sizes[2])
    factor = 1 if header.symmetry == "general" else 2

    def batches(start: int) -> Iterator[sparse.csr_matrix]:
        count = factor * header.sizes[2]
        return sorted_rows(_market_triplets(path, header), shape, header.dtype, count, spool, path, start)

    return SparseSource(format="mtx", rows=shape[0], columns=shape[1], dtype=header.dtype, batches=batches)


def _market_triplets(path: Path, header: MarketHeader) -> Iterator[Triplets]:
    """Entries in the order of the file, those off the diagonal of a symmetric one twice."""
    value = [] if header.field == "pattern" else [header.arrow]
    seen = 0
    with open_binary(path) as file:
        file.seek(header.head)
        for block in text_blocks(file):
            rows, columns, *values = parse_lines(block, [pa.int64(), pa.int64(), *value], path)
            rows, columns = rows - 1, columns - 1
            data = values[0] if values else np.ones(len(rows))
            seen += len(rows)
            yield rows, columns, data
            if header.symmetry != "general":
                off = rows != columns
                yield columns[off], rows[off], header.sign * data[off]
    if seen != header.sizes[2]:
        raise truncated(path, f"its header says {header.sizes[2]} entries and it has {seen}")


def _open_market_array(path: Path, header: MarketHeader, shape: tuple[int, int], spool: Path) -> DenseSource:
    strict = header.symmetry == "skew-symmetric"
    packed = header.symmetry != "general"
    rows, columns = shape
    count = rows * (rows + (-1 if strict else 1)) // 2 if packed else rows * columns

    def batches(start: int) -> Iterator[np.ndarray]:
        flat = _unpack_text(path, header, count, spool)
        if packed:
            return packed_rows(flat, rows, header.dtype, header.sign, start)
        return column_major(flat, 0, shape, header.dtype, start)

    return DenseSource(format="mtx", rows=rows, columns=columns, dtype=header.dtype, batches=batches)


def _unpack_text(path: Path, header: MarketHeader, count: int, spool: Path) -> Path:
    """The values as binary numbers in a temporary file: text cannot be sought, and goes column by column."""
    seen = 0
    with open_binary(path) as file, spool_file(spool, "columns") as flat:
        file.seek(header.head)
        for block in text_blocks(file):
            (values,) = parse_lines(block, [header.arrow], path)
            seen += len(values)
            spool_write(flat, values)
    if seen != count:
        raise truncated(path, f"its header says {count} values and it has {seen}")
    return spool / "columns"


def packed_rows(flat: Path, n: int, dtype: np.dtype, sign: int, start: int) -> Iterator[np.ndarray]:
    """Full rows of an n x n matrix of which only the lower triangle is stored, column after column.

    ``sign`` -1: skew-symmetric, stored without its diagonal.
    """
    strict = int(sign < 0)
    step = batch_rows(n * dtype.itemsize)
    with open(flat, "rb") as file:

        def column(j: int, first: int, last: int) -> np.ndarray:
            file.seek((j * (n - strict) - j * (j - 1) // 2 + first - j - strict) * dtype.itemsize)
            return np.fromfile(file, dtype, last - first)

        for top in range(start, n, step):
            end = min(top + step, n)
            rows = np.zeros((end - top, n), dtype)
            for j in range(end):
                first = max(j + strict, top)
                rows[first - top :, j] = column(j, first, end) if first < end else 0
            for i in range(top, end):
                first = i + strict
                rows[i - top, first:] = sign * column(i, first, n)
            yield rows
