"""A symmetric matrix, read by its upper triangle: half the bytes, and each of them used twice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmdask.linalg import Block
from npmdask.operators._protocol import RUN_BYTES, Partial, as_dtype, require_finite
from npmdask.storage.dense import SlabRecord
from npmdask.storage.triangle import TriangleReader


@dataclass(frozen=True, kw_only=True)
class Triangle:
    """A symmetric d x d matrix: ``A @ X`` from the chunks on and above the diagonal.

    A tile C of an off-diagonal chunk acts where it lies (C @ X) and where its mirror image lies (C^T @ X). The
    products of a tile are formed in the dtype of the block and added in float64. Units are upper chunks.
    """

    reader: TriangleReader

    @property
    def block_rows(self) -> int:
        return self.reader.shape[0]

    @property
    def units(self) -> int:
        return self.reader.units

    @property
    def pass_bytes(self) -> int:
        return self.reader.nbytes

    @property
    def pass_chunks(self) -> int:
        return self.reader.units

    @property
    def run_bytes(self) -> int:
        """Least bytes of a run: each returns d x p sums (128 d bytes for p = 16), which must be little beside it."""
        return max(RUN_BYTES, 4096 * self.block_rows)

    def partial(self, slabs: range, block: Block) -> Partial:
        record, product = SlabRecord(), np.zeros(block.shape)
        for unit in slabs:
            i, j = self.reader.place(unit)
            for rows, ((columns, values),) in self.reader.tiles(unit, record):
                tile = as_dtype(values, block.dtype)
                product[rows] += tile @ block[columns]
                if i != j:
                    product[columns] += tile.T @ block[rows]
        require_finite(product, self.reader, slabs)
        return Partial([product], record)

    def join(self, left: Partial, right: Partial) -> Partial:
        return Partial([left.products[0] + right.products[0]], left.record.add(right.record))

    def finish(self, total: Partial, block: Block) -> Block:
        return total.products[0]

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block, with p columns."""
        tile, side = self.reader.tile_rows, self.reader.chunks[1]
        cast = tile * side * (8 + 4)  # float64, and what is left of float32 when it changes
        return self.reader.buffer_bytes + cast + 2 * side * p * 8 + 3 * self.block_rows * p * 8
