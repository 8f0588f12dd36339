"""What can be applied to a block of p vectors in ONE pass over the stored bytes.

An operator is public configuration plus a reader. It says how a run of slabs acts on a block (``partial``),
how two neighbouring partial products join (``join``) and how the last one becomes ``A @ block`` (``finish``).
Who calls that, in which process, is not its business (see :mod:`npmdask.chunked`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.errors import BadInputError
from npmdask.linalg import Block
from npmdask.storage.checksum import crc32c
from npmdask.storage.dense import DenseReader, SlabRecord, scratch
from npmdask.storage.moments import Moments
from npmdask.storage.sparse import CsrReader, Fragment

SPARSE_ROWS = 2**16  # multiplied at once: bounds A @ block, whatever the length of the rows


@dataclass
class Partial:
    """The product of a run of slabs: row blocks to stack or one sum, cut rows, and what the reading cost."""

    products: list[Block]
    record: SlabRecord
    fragments: list[Fragment] = field(default_factory=list)


class Operator(Protocol):
    """A linear map applied to blocks (d x p), one pass over the data each time."""

    @property
    def reader(self) -> Any: ...
    @property
    def block_rows(self) -> int: ...
    def partial(self, slabs: range, block: Block) -> Partial: ...
    def join(self, left: Partial, right: Partial) -> Partial: ...
    def finish(self, total: Partial, block: Block) -> Block: ...
    def task_bytes(self, p: int, runs: list[range]) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Symmetric:
    """A symmetric d x d matrix: ``A @ X``, a row of chunks at a time."""

    reader: DenseReader

    @property
    def block_rows(self) -> int:
        return self.reader.shape[0]

    def partial(self, slabs: range, block: Block) -> Partial:
        record = SlabRecord()
        first = self.reader.slab_rows(slabs.start).start
        last = self.reader.slab_rows(slabs.stop - 1).stop
        product = np.zeros((last - first, block.shape[1]))
        for slab in slabs:
            for rows, tile in self.reader.tiles(slab, record):
                for columns, values in tile:
                    product[rows.start - first : rows.stop - first] += as_dtype(values, block.dtype) @ block[columns]
        _require_finite(product, self.reader, slabs)
        return Partial([product], record)

    def join(self, left: Partial, right: Partial) -> Partial:
        return Partial(left.products + right.products, left.record.add(right.record))

    def finish(self, total: Partial, block: Block) -> Block:
        return np.concatenate(total.products)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return _tile_bytes(self.reader, p)


@dataclass(frozen=True, kw_only=True)
class Gram:
    """``weight * A^T A`` with ``A = (X - 1 mean^T) diag(1 / scale)``, X the stored m x d array.

    Each chunk is read once and used for both products; the centred or scaled array is never formed: a tile
    is centred in its buffer, the scaling is applied to the block.
    """

    reader: DenseReader
    weight: float = 1.0
    mean: np.ndarray | None = None
    scale: np.ndarray | None = None

    @property
    def block_rows(self) -> int:
        return self.reader.shape[1]

    def partial(self, slabs: range, block: Block) -> Partial:
        record, block = SlabRecord(), _divided(block, self.scale)
        product = np.zeros(block.shape)
        for _, tile, z in self._products(slabs, block, record):
            for columns, values in tile:
                product[columns] += values.T @ z
        _require_finite(product, self.reader, slabs)
        return Partial([product], record)

    def _products(self, slabs: range, block: Block, record: SlabRecord) -> Iterator[tuple[slice, Any, Block]]:
        """For each tile: its rows, its centred values by columns, and their product with the block."""
        for slab in slabs:
            for rows, raw in self.reader.tiles(slab, record):
                tile = [(columns, self._centred(columns, values, block.dtype)) for columns, values in raw]
                z = tile[0][1] @ block[tile[0][0]]
                for columns, values in tile[1:]:
                    z += values @ block[columns]
                yield rows, tile, z

    def _centred(self, columns: slice, values: np.ndarray, dtype: Any) -> np.ndarray:
        if self.mean is None:
            return as_dtype(values, dtype, name=columns.start)
        return np.subtract(
            values, self.mean[columns], out=_like(values, dtype, columns.start), dtype=dtype, casting="unsafe"
        )

    def join(self, left: Partial, right: Partial) -> Partial:
        return Partial([left.products[0] + right.products[0]], left.record.add(right.record))

    def finish(self, total: Partial, block: Block) -> Block:
        return _divided(total.products[0] * self.weight, self.scale)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return _tile_bytes(self.reader, p) + 3 * self.block_rows * p * 8


@dataclass(frozen=True, kw_only=True)
class LeftProduct(Gram):
    """One Gram pass that also keeps ``Z = A @ block`` (m x k) in a Zarr array and returns ``Z^T Z`` with it.

    ``finish`` gives ``A^T Z`` (d rows) stacked over ``Z^T Z`` (k rows).
    """

    target: Any  # zarr.Array (m x k), chunked by slabs of the reader: no two tasks write one chunk

    def partial(self, slabs: range, block: Block) -> Partial:
        record, block = SlabRecord(), _divided(block, self.scale)
        product = np.zeros((block.shape[0] + block.shape[1], block.shape[1]))
        for slab in slabs:
            kept = []
            for _, tile, z in self._products(range(slab, slab + 1), block, record):
                for columns, values in tile:
                    product[columns] += values.T @ z
                product[block.shape[0] :] += z.T @ z
                kept.append(z)
            left = np.concatenate(kept)
            self.target[self.reader.slab_rows(slab)] = left
            record.written[slab] = crc32c(left)
        _require_finite(product, self.reader, slabs)
        return Partial([product], record)

    def finish(self, total: Partial, block: Block) -> Block:
        product = total.products[0]
        d = block.shape[0]
        return np.concatenate([_divided(product[:d], self.scale), product[d:]])


@dataclass(frozen=True, kw_only=True)
class SparseGram:
    """``weight * A^T A`` of a CSR matrix, centred and scaled without filling in a zero.

    Centring is exact algebra, ``(X - 1 mean^T)^T (X - 1 mean^T) = X^T X - m mean mean^T``, applied once a pass.
    """

    reader: CsrReader
    weight: float = 1.0
    mean: np.ndarray | None = None
    scale: np.ndarray | None = None

    @property
    def block_rows(self) -> int:
        return self.reader.shape[1]

    def partial(self, slabs: range, block: Block) -> Partial:
        record, block = SlabRecord(), _divided(block, self.scale)
        product, fragments = np.zeros(block.shape), []
        for piece in self.reader.blocks(slabs, record):
            if isinstance(piece, Fragment):
                fragments.append(piece)
            else:
                product += _sparse_gram(piece, block)
        _require_finite(product, self.reader, slabs)
        return Partial([product], record, fragments)

    def join(self, left: Partial, right: Partial) -> Partial:
        joined = left.products[0] + right.products[0]
        return Partial([joined], left.record.add(right.record), left.fragments + right.fragments)

    def finish(self, total: Partial, block: Block) -> Block:
        scaled = _divided(block, self.scale)
        product = total.products[0] + _sparse_gram(self._cut_rows(total.fragments), scaled)
        if self.mean is not None:
            product = product - self.reader.shape[0] * np.outer(self.mean, self.mean @ scaled).reshape(product.shape)
        return _divided(product * self.weight, self.scale)

    def _cut_rows(self, fragments: list[Fragment]) -> csr_matrix:
        """The rows that the borders between runs cut, put together again (fragments come in order)."""
        rows = [f.row for f in fragments]
        numbers = {row: i for i, row in enumerate(dict.fromkeys(rows))}
        lengths = np.zeros(len(numbers) + 1, np.int64)
        for fragment in fragments:
            lengths[numbers[fragment.row] + 1] += len(fragment.data)
        empty = [np.empty(0, self.reader.dtype)]
        return csr_matrix(
            (
                np.concatenate([f.data for f in fragments] + empty),
                np.concatenate([f.indices for f in fragments] + [np.empty(0, np.int64)]),
                np.cumsum(lengths),
            ),
            shape=(len(numbers), self.reader.shape[1]),
        )

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        pointers = max(self.reader.pointer_bytes(slabs) for slabs in runs)
        return self.reader.buffer_bytes + pointers + SPARSE_ROWS * p * 8 + 4 * self.block_rows * p * 8


def _sparse_gram(rows: csr_matrix, block: Block) -> Block:
    """``rows^T (rows block)``, some rows at a time and without the empty ones: A block has a row for each."""
    lengths = np.diff(rows.indptr)
    pointers = np.concatenate([[0], np.cumsum(lengths[lengths > 0])])
    product = np.zeros((rows.shape[1], block.shape[1]))
    for start in range(0, len(pointers) - 1, SPARSE_ROWS):
        some = pointers[start : start + SPARSE_ROWS + 1]
        inside = slice(some[0], some[-1])
        part = csr_matrix(
            (rows.data[inside].astype(block.dtype, copy=False), rows.indices[inside], some - some[0]),
            shape=(len(some) - 1, rows.shape[1]),
        )
        product += part.T @ (part @ block)
    return product


def _divided(block: Block, scale: np.ndarray | None) -> Block:
    return block if scale is None else (block / scale[:, None]).astype(block.dtype, copy=False)


def as_dtype(values: np.ndarray, dtype: Any, name: Any = 0) -> np.ndarray:
    """``values`` in the dtype of the arithmetic: themselves, or a copy in this thread's reused buffer."""
    if values.dtype == dtype:
        return values
    out = _like(values, dtype, name)
    np.copyto(out, values, casting="unsafe")
    return out


def _like(values: np.ndarray, dtype: Any, name: Any) -> np.ndarray:
    """A reused buffer of the shape of ``values``; oversized in rows so that short last tiles reuse it too."""
    rows, columns = values.shape
    held = scratch(("cast", name, columns), (-(-rows // 64) * 64, columns), dtype)
    return held[:rows]


def _tile_bytes(reader: DenseReader, p: int) -> int:
    cast = reader.tile_rows * reader.shape[1] * (8 + 4)  # float64, and what is left of float32 when it changes
    return reader.buffer_bytes + cast + 2 * reader.chunks[0] * p * 8


def _require_finite(product: Block, reader: DenseReader | CsrReader, slabs: range) -> None:
    """One look at the product finds any NaN or infinity of the data; only then is it searched for."""
    if np.isfinite(product).all():
        return
    for slab in slabs:
        position = _find_non_finite(reader, slab)
        if position:
            raise BadInputError(
                f"{reader.where} holds {position}: remove or impute the non-finite values and ingest it again"
            )
    raise BadInputError(
        f"a product with {reader.where} overflows although the data are finite: divide the data by a constant"
    )


def _find_non_finite(reader: DenseReader | CsrReader, slab: int) -> str | None:
    if isinstance(reader, CsrReader):
        for piece in reader.blocks(range(slab, slab + 1), SlabRecord()):
            if not np.isfinite(piece.data).all():
                return f"a non-finite value in chunk {slab}"
        return None
    for rows, tile in reader.tiles(slab, SlabRecord()):
        for columns, values in tile:
            bad = np.argwhere(~np.isfinite(values))
            if len(bad):
                row, column = (int(i) for i in bad[0])
                return f"{values[row, column]} at row {rows.start + row}, column {columns.start + column}"
    return None


@dataclass(frozen=True, kw_only=True)
class ColumnMoments:
    """One pass for the column means and deviations of a source that was never ingested (Chan et al. 1983).

    The block is not used. ``finish`` gives 2 x d: mean and population standard deviation.
    """

    reader: DenseReader | CsrReader

    @property
    def block_rows(self) -> int:
        return self.reader.shape[1]

    def partial(self, slabs: range, block: Block) -> Partial:
        record, total = SlabRecord(), np.zeros((3, self.block_rows))
        if isinstance(self.reader, CsrReader):
            for piece in self.reader.blocks(slabs, record):
                values = piece.data.astype(np.float64)
                total[1] += np.bincount(piece.indices, values, self.block_rows)
                total[2] += np.bincount(piece.indices, values**2, self.block_rows)
        else:
            columns = [self.reader.slab_columns(c) for c in range(self.reader.grid[1])]
            parts = [Moments(c.stop - c.start) for c in columns]
            for slab in slabs:
                for _, tile in self.reader.tiles(slab, record):
                    for part, (_, values) in zip(parts, tile, strict=True):
                        part.add(values)
            total = np.concatenate([part.table() for part in parts], axis=1)
        _require_finite(total, self.reader, slabs)
        return Partial([total], record)

    def join(self, left: Partial, right: Partial) -> Partial:
        if isinstance(self.reader, CsrReader):
            total = left.products[0] + right.products[0]
        else:
            merged, (count, mean, m2) = Moments(self.block_rows), left.products[0]
            merged.merge(int(count[0]), mean, m2)
            count, mean, m2 = right.products[0]
            merged.merge(int(count[0]), mean, m2)
            total = merged.table()
        return Partial([total], left.record.add(right.record))

    def finish(self, total: Partial, block: Block) -> Block:
        _, mean, spread = total.products[0]
        rows = self.reader.shape[0]
        if isinstance(self.reader, CsrReader):
            mean = mean / rows
            spread = np.maximum(spread - rows * mean**2, 0.0)
        return np.stack([mean, np.sqrt(spread / rows)])

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block."""
        return self.reader.buffer_bytes + 8 * self.block_rows * 8
