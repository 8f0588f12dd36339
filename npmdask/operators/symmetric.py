"""A symmetric matrix, read whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import (
    BySlabs,
    Partial,
    add_product,
    as_dtype,
    least_run,
    require_finite,
    strips,
    tile_bytes,
)
from npmdask.storage.readers.dense import DenseReader, SlabRecord


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
        record = SlabRecord()
        first = self.reader.slab_rows(slabs.start).start
        last = self.reader.slab_rows(slabs.stop - 1).stop
        product = np.zeros((last - first, block.shape[1]))
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                for columns, values in tile:
                    for part in strips(len(values), values.shape[1], block.dtype):
                        here = slice(rows.start - first + part.start, rows.start - first + part.stop)
                        add_product(product[here], as_dtype(values[part], block.dtype), block[columns])
        require_finite(product, self.reader, slabs)
        return Partial([product], record)

    def join(self, left: Partial, right: Partial) -> Partial:
        return Partial(left.products + right.products, left.record.add(right.record))

    def finish(self, total: Partial, block: Block) -> Block:
        return np.concatenate(total.products)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return tile_bytes(self.reader, p)
