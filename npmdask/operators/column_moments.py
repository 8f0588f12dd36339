"""Means and deviations of the columns, for a source that was never ingested."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import BySlabs, Partial, Sums, require_finite
from npmdask.storage.readers.dense import DenseReader, SlabRecord
from npmdask.storage.readers.sparse import CsrReader
from npmdask.storage.writers.dense import Moments


@dataclass(frozen=True, kw_only=True)
class ColumnMoments(BySlabs):
    """One pass for the column means and deviations of a source that was never ingested (Chan et al. 1983).

    The block is not used. ``finish`` gives 2 x d: mean and population standard deviation.
    """

    reader: DenseReader | CsrReader

    @property
    def block_rows(self) -> int:
        return self.reader.shape[1]

    def partial(self, slabs: range, block: Block) -> Partial:
        record, table = SlabRecord(), np.zeros((3, self.block_rows))
        if isinstance(self.reader, CsrReader):
            for piece in self.reader.blocks(slabs, record):
                values = piece.data.astype(np.float64)
                table[1] += np.bincount(piece.indices, values, self.block_rows)
                table[2] += np.bincount(piece.indices, values**2, self.block_rows)
        else:
            columns = [self.reader.slab_columns(c) for c in range(self.reader.grid[1])]
            parts = [Moments(c.stop - c.start) for c in columns]
            for slab in self.reader.ahead(slabs):
                for _, tile in self.reader.tiles(slab, record):
                    for part, (_, values) in zip(parts, tile, strict=True):
                        part.add(values)
            table = np.concatenate([part.table() for part in parts], axis=1)
        sums = self.unstacked(table, slabs)
        require_finite(sums, self.reader, slabs)
        return Partial(sums, record)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        """Of CSR plain sums of values and squares (their count is not used), of dense data means and deviations."""
        names = ("count", "total", "squares") if isinstance(self.reader, CsrReader) else ("count", "mean", "m2")
        return dict(zip(names, stacked, strict=True))

    def join(self, left: Partial, right: Partial) -> Partial:
        if isinstance(self.reader, CsrReader):
            return super().join(left, right)
        merged = Moments(self.block_rows)
        for count, mean, m2 in (left.sums.values(), right.sums.values()):
            merged.merge(int(count[0]), mean, m2)
        return Partial(self.unstacked(merged.table(), range(0)), left.record.add(right.record))

    def finish(self, total: Partial, block: Block) -> Block:
        _, mean, spread = total.sums.values()
        rows = self.reader.shape[0]
        if isinstance(self.reader, CsrReader):
            mean = mean / rows
            spread = np.maximum(spread - rows * mean**2, 0.0)
        return np.stack([mean, np.sqrt(spread / rows)])

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block."""
        return self.reader.buffer_bytes + 8 * self.block_rows * 8
