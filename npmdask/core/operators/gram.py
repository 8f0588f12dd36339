"""Samples and matrices of dense rows: ``A^T (A V)``, ``z = tile @ V; product += tile.T @ z`` for each tile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import (
    BlockQuery,
    BySlabs,
    Partial,
    Sums,
    add_back,
    finite_partial,
    require_finite,
    split_rows,
    strip_rows,
    tile_bytes,
    zeros_for_sum,
)
from npmdask.core.operators.gram_matrix import matrix_answering
from npmdask.core.operators.view import AS_STORED, View
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.readers.dense import DenseReader, ReadStats

SMALLEST = 1e-16  # of the largest entry of some rows of A B: squares of smaller ones are lost in float32
NEXT = 1e-6  # so near is a block in float32, unless columns are scaled by what is out of its range
MOST_ROUNDED = 2048  # rows that are added up in float32: of more, rounding grows with their root


@dataclass(frozen=True, kw_only=True)
class Gram(BySlabs):
    """``weight * A^T A``, A the ``view`` of the stored m x d array.

    Each chunk is read once and used for both products; the centred or scaled array is never formed: a tile
    is centred in its buffer, what is done to columns is done to the block.

    ``rounded``: X^T X times float32 numbers, in float32 tiles that are added up in float64; ``finish`` gives the block
    whose product that is beside it. So nothing is rounded to the same side in all rows but a mean, of which rows lose
    the float32 number next to it, and the product the rest.
    """

    reader: DenseReader
    weight: float = 1.0
    view: View = AS_STORED
    rounded: bool = False

    answers: ClassVar[tuple[str, ...]] = ("rounded",)
    centred_by_algebra: ClassVar[bool] = False  # rows are, before they are multiplied

    def asked(self, query: BlockQuery) -> Any:
        """The operator that answers ``query``: itself, all of the matrix, or products of rows with rows."""
        return matrix_answering(self, query) or super().asked(query)

    def partial(self, slabs: range, block: Block) -> Partial:
        block = self._multiplied(block)
        partial = self._partial(slabs, block)
        if self.rounded and not np.isfinite(partial.sums["product"]).all():  # in float32: or the data themselves
            partial = self._partial(slabs, block.astype(np.float64))
        require_finite(partial.sums, self.reader, slabs)
        return partial

    def _multiplied(self, block: Block) -> Block:
        """Return what stored rows are multiplied by: ``block`` as seen, in float32 where asked and next to it."""
        seen = self.view.on_columns(block)
        if not self.rounded:
            return seen
        with np.errstate(over="ignore"):
            single = seen.astype(np.float32)
        return single if (np.abs(self.view.off_columns(single - seen)) < NEXT).all() else seen

    def _partial(self, slabs: range, block: Block) -> Partial:
        record, product = ReadStats(), zeros_for_sum(len(block), block)
        with np.errstate(over="ignore", invalid="ignore") if self.rounded else nullcontext():
            for _, tile, z in self._products(slabs, block, record):
                for columns, values in tile:
                    add_back(product[columns], values, z)
        return Partial({"product": np.ascontiguousarray(product)}, record)

    @cached_property
    def _of_rows(self) -> View:
        """The view with a shift that float32 holds: ``finish`` takes off the rest."""
        if not self.rounded or self.view.shift is None:
            return self.view
        return replace(self.view, shift=self.view.shift.astype(np.float32).astype(np.float64))

    def _products(self, slabs: range, block: Block, record: ReadStats) -> Iterator[tuple[slice, Any, Block]]:
        """For each strip: its rows, its values as the view has them, by columns, and their product with the block."""
        for slab in self.reader.ahead(slabs):
            for rows, raw in self.reader.tiles(slab, record):
                for part in self._strips(rows, block):
                    here = slice(rows.start + part.start, rows.start + part.stop)
                    tile = [(c, self._of_rows.tile(values[part], here, c, block.dtype)) for c, values in raw]
                    z = tile_times(tile, block)
                    if self.rounded and max(z.max(), -z.min()) < SMALLEST:
                        tile = [(c, self._of_rows.tile(values[part], here, c, np.float64)) for c, values in raw]
                        z = tile_times(tile, block.astype(np.float64))
                    yield here, tile, z

    def _strips(self, rows: slice, block: Block) -> list[slice]:
        """Split a tile into what is multiplied at once: all of it as it is, or strips that stay in cache if copied."""
        height = rows.stop - rows.start
        as_it_is = self.view.of_stored_rows and self.reader.dtype == block.dtype
        at_once = height if as_it_is else strip_rows(len(block), block.dtype)
        at_once = min(at_once, MOST_ROUNDED) if self.rounded else at_once
        return [slice(start, min(start + at_once, height)) for start in range(0, height, at_once)]

    def finish(self, total: Partial, block: Block) -> Block:
        product = total.sums["product"]
        if not self.rounded:
            return self.view.on_columns(product * self.weight)
        multiplied = self._multiplied(block).astype(np.float64)
        if self.view.shift is not None:
            rest = self.view.shift - self._of_rows.shift
            product = product - self.view.weight_of_rows(self.reader.shape[0]) * np.outer(rest, rest @ multiplied)
        return np.concatenate([self.view.on_columns(product * self.weight), self.view.off_columns(multiplied)], axis=1)

    def left_product(self, target: Any, expected: np.ndarray | None) -> LeftProduct:
        """The pass that keeps ``A @ block``."""
        return LeftProduct(target=target, expected=expected, reader=self.reader, weight=self.weight, view=self.view)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return tile_bytes(self.reader, p) + 3 * self.block_rows * p * 8


def tile_times(tile: Any, block: Block) -> Block:
    """Rows of a tile, in parts of their columns, times a block."""
    z = tile[0][1] @ block[tile[0][0]]
    for columns, values in tile[1:]:
        z += values @ block[columns]
    return np.asarray(z)


@dataclass(frozen=True, kw_only=True)
class LeftProduct(Gram):
    """One Gram pass that also keeps ``Z = A @ block`` (m x k) in a Zarr array and returns ``Z^T Z`` with it.

    ``finish`` gives ``A^T Z`` (d rows) stacked over ``Z^T Z`` (k rows). ``expected``: checksums that chunks must have
    to be written, where they are made again.
    """

    target: Any  # zarr.Array (m x k), chunked by slabs of the reader: no two tasks write one chunk
    expected: np.ndarray | None = None

    def partial(self, slabs: range, block: Block) -> Partial:
        record, block = ReadStats(), self.view.on_columns(block)
        back, gram = np.zeros(block.shape), np.zeros((block.shape[1], block.shape[1]))
        for slab in self.reader.ahead(slabs):
            kept = []
            for _, tile, z in self._products(range(slab, slab + 1), block, record):
                for columns, values in tile:
                    add_back(back[columns], values, z)
                gram += z.T @ z
                kept.append(z)
            left = np.concatenate(kept)
            record.written[slab] = crc32c(left)
            if self.expected is None or record.written[slab] == int(self.expected[slab]):
                self.target[self.reader.slab_rows(slab)] = left
        return finite_partial({"back": back, "gram": gram}, self.reader, slabs, record)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return split_rows(stacked, {"back": self.block_rows, "gram": stacked.shape[1]})

    def finish(self, total: Partial, block: Block) -> Block:
        return np.concatenate([self.view.on_columns(total.sums["back"]), total.sums["gram"]])
