"""Sparse files that people have, as CSR row batches, and the containers that may hold either kind.

Files that are not ordered by rows (COO, CSC, MatrixMarket) are sorted outside of memory: their entries are
dealt into temporary files by row ranges, and each range is sorted by itself. Where a row's entry occurs
twice the values are added, as SciPy and every MatrixMarket reader do.

Batches end at rows that depend on the file only, never on where reading began: the writer's column sums are
then formed in the same order after a kill.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import zarr
from scipy import sparse
from zarr.core.sync import sync

from npmdask.errors import BadInputError, closest
from npmdask.storage.formats import (
    BATCH_BYTES,
    DenseSource,
    column_major,
    hdf5_source,
    npy_header,
    open_binary,
    open_npz_array,
    raw_header,
    read_into,
    require_numbers,
    spooling,
    truncated,
    zarr_source,
    zip_member,
)

BATCH_ENTRIES = 2**19  # 6 MiB of float64 values and int32 indices
BATCH_ROWS = 2**16
TEXT_BYTES = 4 * 2**20  # parsed, a block of lines takes several times as much
BUCKET_BYTES = 16 * 2**20
BUCKET_ROWS = 2**22
MAX_BUCKETS = 256  # open files

Triplets = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows, columns, values
Slices = dict[str, Callable[[int, int], np.ndarray]]
OpenSlices = Callable[[], AbstractContextManager[Slices]]


@dataclass(frozen=True, kw_only=True)
class SparseSource:
    """``batches(start)`` yields canonical CSR matrices (b x columns) from row ``start`` on."""

    format: str
    rows: int
    columns: int
    dtype: np.dtype
    batches: Callable[[int], Iterator[sparse.csr_matrix]]


def canonical(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, columns: int, row: int, path: Path
) -> sparse.csr_matrix:
    """A CSR batch whose first row is ``row``: columns in range, ascending and different within a row."""
    wrong = (indices < 0) | (indices >= columns)
    if wrong.any():
        entry = int(np.argmax(wrong))
        row += int(np.searchsorted(indptr, entry, side="right")) - 1
        raise BadInputError(
            f"{path}: row {row} has an entry in column {indices[entry]}, outside 0 to {columns - 1}; the "
            "file is damaged or its shape is wrong: write it again"
        )
    batch = sparse.csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, columns))
    batch.sum_duplicates()
    return batch


def after_row(start: int, batches: Iterator[sparse.csr_matrix]) -> Iterator[sparse.csr_matrix]:
    """Those of ``batches`` (from row 0 on) that lie at ``start`` or behind it."""
    row = 0
    for batch in batches:
        if row + batch.shape[0] > start:
            yield batch[max(0, start - row) :]
        row += batch.shape[0]


# Compressed rows and columns


def csr_rows(
    slices: OpenSlices, shape: tuple[int, int], dtype: np.dtype, path: Path, start: int
) -> Iterator[sparse.csr_matrix]:
    """Row batches of CSR arrays that are read forward, a slice at a time."""
    for row, indptr, read in _pieces(slices, shape[0], path, start):
        first, last = int(indptr[0]), int(indptr[-1])
        indices, data = read["indices"](first, last), read["data"](first, last).astype(dtype, copy=False)
        yield canonical(indptr - first, indices, data, shape[1], row, path)


def csc_triplets(slices: OpenSlices, shape: tuple[int, int], path: Path) -> Iterator[Triplets]:
    """Entries of CSC arrays in the order of the file."""
    for column, indptr, read in _pieces(slices, shape[1], path, 0):
        first, last = int(indptr[0]), int(indptr[-1])
        columns = np.repeat(np.arange(column, column + len(indptr) - 1), np.diff(indptr))
        yield read["indices"](first, last), columns, read["data"](first, last)


def coo_triplets(slices: OpenSlices, count: int) -> Iterator[Triplets]:
    with slices() as read:
        for first in range(0, count, BATCH_ENTRIES):
            last = min(count, first + BATCH_ENTRIES)
            yield read["row"](first, last), read["col"](first, last), read["data"](first, last)


def _pieces(slices: OpenSlices, count: int, path: Path, start: int) -> Iterator[tuple[int, np.ndarray, Slices]]:
    """Yield (first, its piece of indptr, slices), about BATCH_ENTRIES entries each; ``start`` begins one.

    A row never ends up in two pieces; one that is longer comes by itself.
    """
    with slices() as read:
        held = np.empty(0, np.int64)  # indptr[start : start + len(held)]
        while start < count:
            have, want = start + len(held), min(count + 1, start + BATCH_ROWS + 1)
            if have < want:
                held = np.concatenate([held, read["indptr"](have, want).astype(np.int64)])
            if held[0] < 0 or (np.diff(held) < 0).any():
                raise truncated(path, f"indptr decreases after entry {start}")
            cut = int(np.searchsorted(held, held[0] + BATCH_ENTRIES, side="right")) - 1
            cut = min(max(1, cut), len(held) - 1)
            yield start, held[: cut + 1], read
            held, start = held[cut:], start + cut


# Sorting outside of memory


def sorted_rows(
    triplets: Iterator[Triplets],
    shape: tuple[int, int],
    dtype: np.dtype,
    count: int,
    spool: Path,
    path: Path,
    start: int,
) -> Iterator[sparse.csr_matrix]:
    """CSR batches from row ``start`` on of ``count`` entries (estimated) in any order."""
    wide = np.dtype(np.int32 if max(shape) < 2**31 else np.int64)
    record = np.dtype([("row", wide), ("column", wide), ("value", dtype)])
    checked = _checked_records(triplets, shape, record, path)
    size = count * record.itemsize
    for first, last, entries in _sorted_range(checked, (0, shape[0]), record, size, spool, start):
        place = (entries["row"] - first, entries["column"])
        # Through COO: SciPy adds duplicates and orders the columns.
        batch = sparse.coo_matrix((entries["value"], place), shape=(last - first, shape[1])).tocsr()
        batch.sum_duplicates()
        yield batch[max(0, start - first) :]


def _checked_records(
    triplets: Iterator[Triplets], shape: tuple[int, int], record: np.dtype, path: Path
) -> Iterator[np.ndarray]:
    seen = 0
    for rows, columns, values in triplets:
        wrong = (rows < 0) | (rows >= shape[0]) | (columns < 0) | (columns >= shape[1])
        if wrong.any():
            at = int(np.argmax(wrong))
            raise BadInputError(
                f"{path}: entry {seen + at} is at row {rows[at]}, column {columns[at]} (counted from 0), "
                f"outside of {shape[0]} x {shape[1]}; the file is damaged or its shape is wrong: write "
                "it again"
            )
        entries = np.empty(len(rows), record)
        entries["row"], entries["column"], entries["value"] = rows, columns, values
        seen += len(rows)
        yield entries


def _sorted_range(
    blocks: Iterator[np.ndarray], rows: tuple[int, int], record: np.dtype, size: int, spool: Path, start: int
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (first row, end row, entries) in order. A range that is too full is dealt out again.

    Ranges that end before ``start`` are left out; the others are cut as if it were 0.
    """
    first, last = rows
    buckets = max(-(-size // BUCKET_BYTES), -(-(last - first) // BUCKET_ROWS), 1)
    width = -(-(last - first) // min(buckets, MAX_BUCKETS, last - first))
    with spooling(spool):
        spool.mkdir(parents=True, exist_ok=True)
    _deal(blocks, rows, width, spool, start)
    for top in range(first, last, width):
        end, file = min(top + width, last), spool / str(top)
        if end <= start:
            continue
        held = file.stat().st_size
        if (held > 2 * BUCKET_BYTES or end - top > 2 * BUCKET_ROWS) and end - top > 1:
            inner = _read_blocks(file, record)
            yield from _sorted_range(inner, (top, end), record, held, spool / f"{top}-", start)
        else:
            yield top, end, np.fromfile(file, record)
        file.unlink()


def _deal(blocks: Iterator[np.ndarray], rows: tuple[int, int], width: int, spool: Path, start: int) -> None:
    """Append every entry to the file of its row range; the order of the source is kept within each."""
    with ExitStack() as stack:
        with spooling(spool):
            tops = range(rows[0], rows[1], width)
            files = [stack.enter_context(open(spool / str(top), "wb", buffering=0)) for top in tops]
        for entries in blocks:
            bucket = ((entries["row"] - rows[0]) // width).astype(np.uint16)
            order = np.argsort(bucket, kind="stable")
            bounds = np.searchsorted(bucket[order], np.arange(len(files) + 1))
            entries = entries[order]
            for file, top, a, b in zip(files, tops, bounds[:-1], bounds[1:], strict=True):
                if a < b and top + width > start:
                    with spooling(spool):
                        file.write(entries[a:b].tobytes())


def _read_blocks(file: Path, record: np.dtype) -> Iterator[np.ndarray]:
    with open(file, "rb", buffering=0) as opened:
        while len(block := np.fromfile(opened, record, BATCH_ENTRIES)):
            yield block


# Text


def text_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Blocks of whole lines."""
    rest = b""
    while block := file.read(TEXT_BYTES):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield rest + block[:cut]
            rest = block[cut:]
        else:
            rest += block
    if rest.strip():
        yield rest


def parse_lines(block: bytes, types: list[Any], path: Path) -> list[np.ndarray]:
    """The columns of a block of lines; a second try allows for tabs, runs of blanks and comments."""
    try:
        return _parse(block, types)
    except pa.ArrowInvalid:
        try:
            return _parse(_tidy(block), types)
        except pa.ArrowInvalid as error:
            raise truncated(path, f"lines of {len(types)} numbers are expected ({error})") from error


def _tidy(block: bytes) -> bytes:
    block = re.sub(rb"(?m)^[ \t]*%.*\n?", b"", block.replace(b"\r", b""))
    block = re.sub(rb"(?m)^ +| +$", b"", re.sub(rb"[ \t]+", b" ", block))
    return re.sub(rb"(?m)(^| )\+", rb"\1", block)


def _parse(block: bytes, types: list[Any]) -> list[np.ndarray]:
    names = [str(i) for i in range(len(types))]
    if not block.strip():
        return [np.empty(0, kind.to_pandas_dtype()) for kind in types]
    table = pa.csv.read_csv(
        pa.BufferReader(block),
        read_options=pa.csv.ReadOptions(column_names=names),
        parse_options=pa.csv.ParseOptions(delimiter=" ", quote_char=False),
        convert_options=pa.csv.ConvertOptions(column_types=dict(zip(names, types, strict=True)), null_values=[]),
    )
    return [column.to_numpy() for column in table.columns]


def open_docword(path: Path) -> SparseSource:
    """The UCI bag of words: documents, words and entries on three lines, then ``doc word count`` from 1."""
    with open_binary(path) as file:
        sizes = [int(file.readline()) for _ in range(3)]
        head = file.tell()
    documents, words, entries = sizes
    if min(documents, words, entries) < 1:
        raise BadInputError(f"{path} says {documents} documents, {words} words, {entries} entries: it is empty")

    def batches(start: int) -> Iterator[sparse.csr_matrix]:
        return after_row(start, _docword_rows(path, (documents, words), entries, head))

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
    factor = 1 if header.symmetry == "general" else 2

    def batches(start: int) -> Iterator[sparse.csr_matrix]:
        count = factor * header.sizes[2]
        return sorted_rows(_market_triplets(path, header), shape, header.dtype, count, spool, path, start)

    return SparseSource(format="mtx", rows=shape[0], columns=shape[1], dtype=header.dtype, batches=batches)


def _market_triplets(path: Path, header: MarketHeader) -> Iterator[Triplets]:
    """Entries in the order of the file, those off the diagonal of a symmetric one twice."""
    value = [] if header.field == "pattern" else [pa.int64() if header.dtype.kind == "i" else pa.float64()]
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
    flat, seen = spool / "columns", 0
    with spooling(spool):
        spool.mkdir(parents=True, exist_ok=True)
    kind = pa.int64() if header.dtype.kind == "i" else pa.float64()
    with open_binary(path) as file, open(flat, "wb") as out:
        file.seek(header.head)
        for block in text_blocks(file):
            (values,) = parse_lines(block, [kind], path)
            seen += len(values)
            with spooling(spool):
                out.write(values.tobytes())
    if seen != count:
        raise truncated(path, f"its header says {count} values and it has {seen}")
    return flat


def packed_rows(flat: Path, n: int, dtype: np.dtype, sign: int, start: int) -> Iterator[np.ndarray]:
    """Full rows of an n x n matrix of which only the lower triangle is stored, column after column.

    ``sign`` -1: skew-symmetric, stored without its diagonal.
    """
    strict = int(sign < 0)
    step = max(1, BATCH_BYTES // (n * dtype.itemsize))
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


# Containers that hold either kind


class _MemberSlices:
    """Forward slices of a 1-D array in a zip archive."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._file = zip_member(path, name + ".npy")
        shape, _, self.dtype = npy_header(self._file, f"array {name!r} of {path}")
        self.length, self._position = int(np.prod(shape, dtype=np.int64)), 0

    def __call__(self, first: int, last: int) -> np.ndarray:
        """Values ``first`` to ``last``; slices must ascend."""
        if last > self.length:
            raise truncated(self._path, f"array {self._name!r} has {self.length} values and {last} are needed")
        self._file.seek((first - self._position) * self.dtype.itemsize, 1)
        values = np.empty(last - first, self.dtype)
        if read_into(self._file, values) < values.nbytes:
            raise truncated(self._path, f"array {self._name!r} ends early")
        self._position = last
        if last == self.length:
            self._file.read(1)  # makes zipfile compare its checksum
        return values.astype(self.dtype.newbyteorder("="), copy=False)

    def close(self) -> None:
        self._file.close()


def _npz_slices(path: Path, names: list[str]) -> OpenSlices:
    @contextmanager
    def opened() -> Iterator[Slices]:
        with ExitStack() as stack:
            slices: Slices = {}
            for name in names:
                slices[name] = member = _MemberSlices(path, name)
                stack.callback(member.close)
            yield slices

    return opened


def open_npz(path: Path, dataset: str | None, spool: Path) -> DenseSource | SparseSource:
    """What ``scipy.sparse.save_npz`` or ``numpy.savez`` wrote."""
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    if dataset is None and {"format", "shape", "data"} <= set(names):
        return _open_npz_sparse(path, spool)
    shapes = {}
    for name in names:
        with zip_member(path, name + ".npy") as file:
            shapes[name] = raw_header(file)[0]  # an array that nobody asks for may hold anything
    return open_npz_array(path, choose_array(path, dataset, shapes), spool)


def choose_array(path: Path, dataset: str | None, shapes: dict[str, tuple[int, ...]]) -> str:
    """The array that is meant: ``dataset``, or the only one with two dimensions."""
    if dataset is not None:
        name = dataset.strip("/")
        if name not in shapes:
            raise BadInputError(f"{path} has no array {dataset!r}: {closest(name, list(shapes)) if shapes else 'none'}")
        return name
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
    if len(matrices) == 1:
        return matrices[0]
    shown = {name: shapes[name] for name in sorted(matrices or shapes)[:20]}
    listed = ", ".join(f"{name} {shape}" for name, shape in shown.items()) or "nothing"
    reason = "several 2-D arrays: choose one with dataset=" if matrices else "no 2-D array; there is"
    raise BadInputError(f"{path} has {reason} ({listed})")


def _open_npz_sparse(path: Path, spool: Path) -> SparseSource:
    with ExitStack() as stack:
        members = {}
        for name in ("shape", "data"):
            members[name] = _MemberSlices(path, name)
            stack.callback(members[name].close)
        rows, columns = (int(n) for n in members["shape"](0, 2))
        dtype, count = members["data"].dtype, members["data"].length
    layout = _npz_layout(path)
    dtype = require_numbers(dtype, f"{path}")
    names = {
        "csr": ["indptr", "indices", "data"],
        "csc": ["indptr", "indices", "data"],
        "coo": ["row", "col", "data"],
    }
    if layout not in names:
        raise BadInputError(f"{path} is stored as {layout}; save it with scipy.sparse.save_npz(path, matrix.tocsr())")
    slices = _npz_slices(path, names[layout])
    return compressed_source("npz", layout, slices, (rows, columns), dtype, count, spool, path)


def _npz_layout(path: Path) -> str:
    with zip_member(path, "format.npy") as file:
        _, _, dtype = raw_header(file)
        if dtype.kind not in "SU":
            raise BadInputError(f"{path}: its array 'format' is not text; save it with scipy.sparse.save_npz")
        return str(np.frombuffer(file.read(dtype.itemsize), dtype)[0].astype("U"))


def compressed_source(
    name: str,
    layout: str,
    slices: OpenSlices,
    shape: tuple[int, int],
    dtype: np.dtype,
    count: int,
    spool: Path,
    path: Path,
) -> SparseSource:
    """A source of CSR, CSC or COO arrays."""

    def batches(start: int) -> Iterator[sparse.csr_matrix]:
        if layout == "csr":
            return csr_rows(slices, shape, dtype, path, start)
        triplets = coo_triplets(slices, count) if layout == "coo" else csc_triplets(slices, shape, path)
        return sorted_rows(triplets, shape, dtype, count, spool, path, start)

    return SparseSource(format=name, rows=shape[0], columns=shape[1], dtype=dtype, batches=batches)


def _encoding(attributes: Any) -> str:
    """csr, csc or nothing: what AnnData says of a group."""
    text = str(attributes.get("encoding-type", attributes.get("h5sparse_format", "")))
    return {"csr_matrix": "csr", "csc_matrix": "csc"}.get(text, text if text in ("csr", "csc") else "")


def _group_shape(group: Any, where: str) -> tuple[int, int]:
    shape = group.attrs.get("shape", group.attrs.get("h5sparse_shape"))
    if shape is None or len(shape) != 2 or not all(name in group for name in ("data", "indices", "indptr")):
        raise BadInputError(f"group {where} says it is sparse but lacks shape, data, indices or indptr")
    return (int(shape[0]), int(shape[1]))


def open_hdf5(path: Path, dataset: str | None, spool: Path) -> DenseSource | SparseSource:
    """A 2-D dataset, or a sparse group as AnnData writes it; ``X`` of an AnnData file if nothing is named."""
    import h5py

    with h5py.File(path, "r") as file:
        shapes = _hdf5_shapes(file)
        if dataset is None and "X" in file and "encoding-type" in file["X"].attrs:
            dataset = "X"
        name = choose_array(path, dataset, shapes)
        node = file[name]
        if isinstance(node, h5py.Dataset):
            return hdf5_source(path, name, node, spool)
        shape, count = _group_shape(node, f"{name} of {path}"), len(node["data"])
        dtype, layout = require_numbers(node["data"].dtype, f"{name} of {path}"), _encoding(node.attrs)

    @contextmanager
    def slices() -> Iterator[Slices]:
        with h5py.File(path, "r") as opened:
            yield {part: _exact(opened[name][part], path) for part in ("data", "indices", "indptr")}

    return compressed_source("hdf5", layout, slices, shape, dtype, count, spool, path)


def _exact(array: Any, path: Path) -> Callable[[int, int], np.ndarray]:
    """Slices of a 1-D array; libraries would silently return fewer values than asked for."""

    def read(first: int, last: int) -> np.ndarray:
        if last > array.shape[0]:
            raise truncated(path, f"{array.name} has {array.shape[0]} values and {last} are needed")
        values = np.asarray(array[first:last])
        return values.astype(values.dtype.newbyteorder("="), copy=False)

    return read


def _hdf5_shapes(file: Any) -> dict[str, tuple[int, ...]]:
    """Every dataset that is not part of a sparse group, and every sparse group, with its shape."""
    shapes: dict[str, tuple[int, ...]] = {}

    def visit(name: str, node: Any) -> None:
        if _encoding(node.attrs) and hasattr(node, "keys"):
            shapes[name] = _group_shape(node, name)
        elif hasattr(node, "shape") and not _encoding(node.parent.attrs):
            shapes[name] = tuple(node.shape or ())

    file.visititems(visit)
    return shapes


def open_zarr(path: Path, dataset: str | None, missing: str, spool: Path) -> DenseSource | SparseSource:
    """A 2-D array (Zarr 2 or 3), an AnnData sparse group, or an npmdask store (checksums are compared)."""
    node = zarr.open(path, mode="r")
    if isinstance(node, zarr.Array):
        if dataset is not None:
            raise BadInputError(f"{path} is one array, not a group: leave out dataset={dataset!r}")
        return zarr_source(path, node, None, missing, spool)
    record = node.attrs.get("npmdask")
    if dataset is None and _encoding(node.attrs):
        return _zarr_sparse(path, node, missing, spool)
    if dataset is None and record is not None:
        dataset = "X" if "X" in node else "data"
    if dataset is None and "X" in node and "encoding-type" in node["X"].attrs:
        dataset = "X"
    shapes = _zarr_shapes(node)
    name = choose_array(path, dataset, shapes)
    if isinstance(node[name], zarr.Group):
        return _zarr_sparse(path, node[name], missing, spool)
    known = node["checksums"][...] if record is not None and name == "data" and "checksums" in node else None
    return zarr_source(path, node[name], known, missing, spool)


def _zarr_shapes(group: Any) -> dict[str, tuple[int, ...]]:
    members = dict(group.members(max_depth=None))
    sparse_groups = {name: node for name, node in members.items() if _encoding(node.attrs)}
    shapes = {name: _group_shape(node, name) for name, node in sparse_groups.items()}
    for name, node in members.items():
        if isinstance(node, zarr.Array) and name.rpartition("/")[0] not in sparse_groups:
            shapes[name] = tuple(node.shape)
    return shapes


def _zarr_sparse(path: Path, group: Any, missing: str, spool: Path) -> SparseSource:
    where = f"{group.path or '/'} of {path}"
    shape, data = _group_shape(group, where), group["data"]
    parts = {name: _present(group[name], path, missing) for name in ("data", "indices", "indptr")}
    dtype = require_numbers(data.dtype, where)
    layout = _encoding(group.attrs)
    return compressed_source("zarr", layout, lambda: nullcontext(parts), shape, dtype, data.shape[0], spool, path)


def _present(array: Any, path: Path, missing: str) -> Callable[[int, int], np.ndarray]:
    """Slices of a 1-D Zarr array; a chunk that is not there is an error, unless that may be filled."""
    read, chunk = _exact(array, path), int((getattr(array, "shards", None) or array.chunks)[0])

    def checked(first: int, last: int) -> np.ndarray:
        values = read(first, last)
        for index in range(first // chunk, -(-last // chunk)) if missing == "error" else ():
            part = values[max(0, index * chunk - first) : (index + 1) * chunk - first]
            # Only where all is fill value is it worth asking the store.
            if array.fill_value is not None and (part == array.fill_value).all():
                _require_chunk(array, path, str(array.metadata.encode_chunk_key((index,))))
        return values

    return checked


def _require_chunk(array: Any, path: Path, name: str) -> None:
    if not sync(array.store_path.store.exists(f"{array.path}/{name}".lstrip("/"))):
        raise BadInputError(
            f"chunk {name} of {array.path} in {path} is missing (Zarr would silently read it as "
            f"{array.fill_value}); restore it, or if it really is empty pass missing='fill' (--missing fill)"
        )
