"""Square matrices, one for each record: a three-dimensional array (n x d x d) as rows of d^2 numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.errors import BadInputError
from npmdask.storage.chunk_access import stored_shape
from npmdask.storage.conventions import decoded, facts_of, refuse_marked
from npmdask.storage.formats.common import DenseSource, choose_array, require_numbers
from npmdask.storage.formats.compressed import array_shapes
from npmdask.storage.formats.grids import grid_rows, that_fit
from npmdask.storage.formats.numpy_files import npy_header
from npmdask.storage.formats.raw import column_major, require_size, row_major
from npmdask.storage.formats.zarr_stores import boxes_of, dense_array, for_tensor
from npmdask.storage.kinds import require_square_matrices
from npmdask.storage.safe_open import open_node


def open_npy_matrices(path: Path) -> DenseSource:
    with open(path, "rb") as file:
        shape, fortran, dtype = npy_header(file, str(path))
        offset = file.tell()
    n, d = require_square_matrices(shape, str(path))
    require_size(path, offset, n * d * d * dtype.itemsize)

    def batches(start: int) -> Iterator[np.ndarray]:
        if not fortran:
            yield from row_major(path, lambda: open(path, "rb", buffering=0), offset, (n, d * d), dtype, start)
            return
        for rows in column_major(path, offset, (n, d * d), dtype, start):  # of A^T: the middle index runs faster
            yield rows.reshape(-1, d, d).transpose(0, 2, 1).reshape(-1, d * d)

    return DenseSource(format="npy", rows=n, columns=d * d, dtype=dtype, batches=batches)


def open_zarr_matrices(path: Path, dataset: str | None, missing: str, spool: Path, gaps: str = "refuse") -> DenseSource:
    """The array ``dataset``, or the only one with three dimensions; or a store of kind matrices, checked."""
    node = open_node(path)
    if isinstance(node, zarr.Array):
        if dataset is not None:
            raise BadInputError(f"{path} is one array, not a group: leave out dataset={dataset!r}")
        return _chunked(path, decoded(node, gaps), missing, spool)
    record = node.attrs.get("npmdask")
    if record is not None and dataset is None:
        if record["kind"] == "tensor":
            raise for_tensor(path)
        if "side" not in record:
            require_square_matrices(record["shape"], str(path))
        return dense_array(path, node["data"], boxes_of(node["checksums"], "error")[...], missing, spool)
    name = choose_array(path, dataset, array_shapes(dict(node.members(max_depth=None))), dimensions=3)
    return _chunked(path, decoded(node[name], gaps), missing, spool)


def _chunked(path: Path, array: Any, missing: str, spool: Path) -> DenseSource:
    where = f"array {array.path!r} of {path}"
    (n, d), dtype = require_square_matrices(array.shape, where), require_numbers(array.dtype, where)
    flat = _Flat(array, missing)

    def batches(start: int) -> Iterator[np.ndarray]:
        return grid_rows(lambda: nullcontext(flat), (n, d * d), flat.pieces(dtype), dtype, spool, start)

    return DenseSource(
        format="zarr",
        rows=n,
        columns=d * d,
        dtype=dtype,
        facts=facts_of(array),
        refuse_marked=lambda: refuse_marked(array),
        batches=batches,
    )


class _Flat:
    """A Zarr array n x d x d that slices like an array n x d^2, columns by whole rows of the matrices."""

    def __init__(self, array: Any, missing: str) -> None:
        self._array, self._boxes, self._stored = array, boxes_of(array, missing), stored_shape(array)

    def pieces(self, dtype: np.dtype) -> tuple[int, int]:
        """Rows and columns to read at once: whole chunks, or some rows of matrices only where those are too large."""
        height, d = min(self._stored[0], self._array.shape[0]), self._array.shape[1]
        return height, d * min(self._stored[1], d, that_fit(height * d * dtype.itemsize))

    def __getitem__(self, which: slice | tuple[slice, slice]) -> np.ndarray:
        records, columns = which if isinstance(which, tuple) else (which, slice(0, None))
        n, d, _ = self._array.shape
        last = d if columns.stop is None else min(columns.stop // d, d)
        box = (slice(records.start, min(records.stop, n)), slice(columns.start // d, last), slice(0, d))
        values = self._boxes[box]
        return values.reshape(len(values), -1)
