"""A symmetric matrix, read whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmdask.linalg import Block
from npmdask.operators._protocol import BySlabs, Partial, as_dtype, require_finite, tile_bytes
from npmdask.storage.dense import DenseReader, SlabRecord


@dataclass(frozen=True, kw_only=True)
class Symmetric(BySlabs):
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
        require_finite(product, self.reader, slabs)
        return Partial([product], record)

    def join(self, left: Partial, right: Partial) -> Partial:
        return Partial(left.products + right.products, left.record.add(right.record))

    def finish(self, total: Partial, block: Block) -> Block:
        return np.concatenate(total.products)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return tile_bytes(self.reader, p)
