"""Sorting outside of memory, for files that are not ordered by rows (COO, CSC, MatrixMarket).

Entries are dealt into temporary files by row ranges, and each range is sorted by itself. Where a row's entry
occurs twice the values are added, as SciPy and every MatrixMarket reader do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from scipy import sparse

from npmdask.errors import BadInputError
from npmdask.storage.formats.raw import spool_file, spool_write

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
