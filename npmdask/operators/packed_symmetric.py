"""A symmetric matrix, read by its upper triangle: half the bytes, and each of them used twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import (
    ByBlocks,
    BySlabs,
    Partial,
    Sums,
    add_back,
    add_buffered,
    as_dtype,
    least_run,
    own_rows,
    require_finite,
    strips,
    tile_bytes,
    zeros_for_sum,
)
from npmdask.storage.readers.dense import DenseReader, ReadStats
from npmdask.storage.readers.packed_symmetric import TriangleReader


@dataclass(frozen=True, kw_only=True)
class Triangle(ByBlocks):
    """A symmetric d x d matrix: ``A @ X`` from the chunks on and above the diagonal.

    A tile C of an off-diagonal chunk acts where it lies (C @ X) and where its mirror image lies (C^T @ X). The
    products of a tile are formed in the dtype of the block and added in float64. Units are upper chunks.
    """

    reader: TriangleReader

    @property
    def run_bytes(self) -> int:
        """The least that a run reads: every d x p sum is also cleared and joined, which costs as much again."""
        return least_run(4 * self.block_rows)

    def read_ahead(self, units: range) -> None:
        """Have the kernel fetch the first of ``units`` meanwhile, where that can be asked for."""
        for unit in units[:1]:
            self.reader.dense.read_chunk_ahead(*self.reader.place(unit))

    def partial(self, slabs: range, block: Block) -> Partial:
        record = ReadStats()
        sums = {"product": np.ascontiguousarray(self._sum(slabs, block, record))}
        require_finite(sums, self.reader, slabs)
        return Partial(sums, record)

    def _sum(self, slabs: range, block: Block, record: ReadStats) -> Block:
        product = zeros_for_sum(len(block), block)
        for unit in self.reader.ahead(slabs):
            i, j = self.reader.place(unit)
            for rows, ((columns, values),) in self.reader.tiles(unit, record):
                tile = self._tile(values, block.dtype)
                add_buffered(product[rows], tile, block[columns])
                if i != j:
                    add_back(product[columns], tile, block[rows])
        return product

    def _tile(self, values: np.ndarray, dtype: Any) -> np.ndarray:
        """Entries as they are multiplied."""
        return as_dtype(values, dtype)

    def finish(self, total: Partial, block: Block) -> Block:
        return total.sums["product"]

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block, with p columns."""
        tile, side = self.reader.tile_rows, self.reader.chunks[1]
        cast = tile * side * (8 + 4)  # float64, and what is left of float32 when it changes
        return self.reader.buffer_bytes + cast + 2 * side * p * 8 + 3 * self.block_rows * p * 8


# A symmetric matrix, read whole.


@dataclass(frozen=True, kw_only=True)
class Symmetric(BySlabs):
    """A symmetric d x d matrix: ``A @ X``, a row of chunks at a time."""

    reader: DenseReader

    @property
    def block_rows(self) -> int:
        return self.reader.shape[0]

    @property
    def run_bytes(self) -> int:
        """The least that a run reads; what it returns are its own rows only."""
        return least_run(0)

    def partial(self, slabs: range, block: Block) -> Partial:
        record = ReadStats()
        first = self.reader.slab_rows(slabs.start).start
        last = self.reader.slab_rows(slabs.stop - 1).stop
        product = np.zeros((last - first, block.shape[1]))
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                for columns, values in tile:
                    for part in strips(len(values), values.shape[1], block.dtype):
                        here = slice(rows.start - first + part.start, rows.start - first + part.stop)
                        add_buffered(product[here], as_dtype(values[part], block.dtype), block[columns])
        sums = {own_rows(slabs): product}
        require_finite(sums, self.reader, slabs)
        return Partial(sums, record)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return {own_rows(units): stacked}

    def finish(self, total: Partial, block: Block) -> Block:
        return np.concatenate(list(total.sums.values()))

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return tile_bytes(self.reader, p)
