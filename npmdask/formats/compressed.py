"""CSR row batches out of the arrays of a CSR, CSC or COO matrix, wherever these lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from npmdask.errors import BadInputError
from npmdask.formats.common import SparseSource, spool_file, spool_write, truncated

# Sorting outside of memory, for files that are not ordered by rows (COO, CSC, MatrixMarket).
#
# Entries are dealt into temporary files by row ranges, and each range is sorted by itself. Where a row's entry
# occurs twice the values are added, as SciPy and every MatrixMarket reader do.


BATCH_ENTRIES = 2**19  # 6 MiB of float64 values and int32 indices
BUCKET_BYTES = 16 * 2**20
BUCKET_ROWS = 2**22
MAX_BUCKETS = 256  # open files

Triplets = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows, columns, values


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
                f"{path}: entry {seen + at} is at row {rows[at]}, column {columns[at]} (counted from 0), outside of "
                f"{shape[0]} x {shape[1]}; the file is damaged or its shape is wrong: write it again"
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
    _distribute(blocks, rows, width, spool, start)
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


def _distribute(blocks: Iterator[np.ndarray], rows: tuple[int, int], width: int, spool: Path, start: int) -> None:
    """Append every entry to the file of its row range; the order of the source is kept within each."""
    with ExitStack() as stack:
        tops = range(rows[0], rows[1], width)
        files = [stack.enter_context(spool_file(spool, str(top))) for top in tops]
        for entries in blocks:
            bucket = ((entries["row"] - rows[0]) // width).astype(np.uint16)
            order = np.argsort(bucket, kind="stable")
            bounds = np.searchsorted(bucket[order], np.arange(len(files) + 1))
            entries = entries[order]
            for file, top, a, b in zip(files, tops, bounds[:-1], bounds[1:], strict=True):
                if a < b and top + width > start:
                    spool_write(file, entries[a:b])


def _read_blocks(file: Path, record: np.dtype) -> Iterator[np.ndarray]:
    with open(file, "rb", buffering=0) as opened:
        while len(block := np.fromfile(opened, record, BATCH_ENTRIES)):
            yield block


BATCH_ROWS = 2**16

Slices = dict[str, Callable[[int, int], np.ndarray]]
OpenSlices = Callable[[], AbstractContextManager[Slices]]


def canonical_rows(
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


def csr_rows(
    slices: OpenSlices, shape: tuple[int, int], dtype: np.dtype, path: Path, start: int
) -> Iterator[sparse.csr_matrix]:
    """Row batches of CSR arrays that are read forward, a slice at a time."""
    for row, indptr, read in _pieces(slices, shape[0], path, start):
        first, last = int(indptr[0]), int(indptr[-1])
        indices, data = read["indices"](first, last), read["data"](first, last).astype(dtype, copy=False)
        yield canonical_rows(indptr - first, indices, data, shape[1], row, path)


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


# How AnnData lays a sparse matrix into a group of arrays, the same in HDF5 and in Zarr.

PARTS = ("data", "indices", "indptr")


def is_10x(node: Any) -> bool:
    """Say whether a group is as 10x Genomics writes it: genes x cells by columns, and the shape in an array."""
    return {"shape", "barcodes", *PARTS} <= set(node) and not node.attrs.get("encoding-type")


def is_loom(root: Any) -> bool:
    """Say whether this is a loom file, of genes x cells."""
    return {"matrix", "row_attrs", "col_attrs"} <= set(root)


def encoding(node: Any) -> str:
    """csr, csc or nothing: what AnnData says of a group, or as 10x Genomics has cells x genes."""
    if is_10x(node):
        return "csr"
    text = str(node.attrs.get("encoding-type", node.attrs.get("h5sparse_format", "")))
    return {"csr_matrix": "csr", "csc_matrix": "csc"}.get(text, text if text in ("csr", "csc") else "")


def group_shape(group: Any, where: str) -> tuple[int, int]:
    shape = group.attrs.get("shape", group.attrs.get("h5sparse_shape"))
    shape = group["shape"][...][::-1] if is_10x(group) else shape
    if shape is None or len(shape) != 2 or not all(name in group for name in PARTS):
        raise BadInputError(f"group {where} is marked as sparse but lacks shape, data, indices or indptr")
    return (int(shape[0]), int(shape[1]))


def main_array(root: Any) -> str | None:
    """``X`` of an AnnData file, or ``matrix`` of loom."""
    if is_loom(root):
        return "matrix"
    return "X" if "X" in root and "encoding-type" in root["X"].attrs else None


def array_shapes(nodes: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of every sparse group, and of every array that is not part of one; ``nodes`` by path."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, node in nodes.items():
        group = nodes.get(name.rpartition("/")[0])
        if hasattr(node, "keys") and encoding(node):
            shapes[name] = group_shape(node, name)
        elif hasattr(node, "shape") and (group is None or not encoding(group)):
            shapes[name] = tuple(node.shape or ())
    return shapes


def exact_slice(array: Any, path: Path, first: int, last: int) -> np.ndarray:
    """A slice of a 1-D array; libraries would silently return fewer values than asked for."""
    if last > array.shape[0]:
        raise truncated(path, f"{array.name} has {array.shape[0]} values and {last} are needed")
    values = np.asarray(array[first:last])
    return values.astype(values.dtype.newbyteorder("="), copy=False)
