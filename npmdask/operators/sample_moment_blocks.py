"""The third moment of samples, explicitly: some unique blocks of the d x d x d tensor from one pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from npmdask.numerics.moments.blocks import blocks_of
from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import STRIP_BYTES, Partial, least_run, pending_sums, require_finite
from npmdask.operators.gram import Gram
from npmdask.storage.readers.dense import SlabRecord, scratch


@dataclass(frozen=True, kw_only=True)
class SampleBlocks(Gram):
    """Blocks ``M3[I, J, K] = E[x_I (x) x_J (x) x_K]`` (I <= J <= K, of side b) in one pass; no vectors are used.

    ``finish`` gives (units b b) x b: the blocks one under the other, in lexicographic order, padded with zeros at the
    edge of the tensor. 2 n b^3 flops for each block, in one matrix product with the pairs of a strip.

    Parameters
    ----------
    reader, view : as of :class:`Gram`, of which only ``shift`` is used: without it rows are as they are.
    side : b.
    wanted : the blocks of this pass, places in :func:`npmdask.numerics.moments.unique_blocks`.
    """

    side: int
    wanted: range

    def __post_init__(self) -> None:
        self.view.require_unweighted("a third moment")
        blocks_of(self.wanted, self._grid)

    @property
    def block_rows(self) -> int:
        return self.side

    @property
    def run_bytes(self) -> int:
        return least_run(len(self.wanted) * self.side**3 // 32)

    @cached_property
    def _grid(self) -> int:
        return -(-int(self.reader.shape[1]) // self.side)

    @cached_property
    def _height(self) -> int:
        """Rows whose pairs stay in cache."""
        return max(32, STRIP_BYTES // (8 * self.side**2))

    def partial(self, slabs: range, block: Block) -> Partial:
        record, b, d = SlabRecord(), self.side, int(self.reader.shape[1])
        sums = np.zeros((len(self.wanted), b * b, b))
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                for first in range(0, rows.stop - rows.start, self._height):
                    part = slice(first, min(first + self._height, rows.stop - rows.start))
                    whole = scratch(("samples", d), (self._height, self._grid * b), np.float64)[
                        : part.stop - part.start
                    ]
                    whole[:, d:] = 0.0
                    for columns, values in tile:
                        whole[:, columns] = values[part]
                        if self.view.shift is not None:
                            whole[:, columns] -= self.view.shift[columns]
                    self._add(sums, whole)
        product = {"product": sums.reshape(-1, b)}
        require_finite(product, self.reader, slabs)
        return Partial(product, record)

    def _add(self, sums: np.ndarray, rows: np.ndarray) -> None:
        b, pairs, held = self.side, None, None
        for values, (i, j, k) in zip(sums, blocks_of(self.wanted, self._grid), strict=True):
            if held != (i, j):
                first, second = rows[:, i * b : (i + 1) * b], rows[:, j * b : (j + 1) * b]
                pairs, held = (first[:, :, None] * second[:, None, :]).reshape(len(rows), b * b), (i, j)
            assert pairs is not None
            values += pairs.T @ rows[:, k * b : (k + 1) * b]

    def finish(self, total: Partial, block: Block) -> Block:
        product: Block = total.sums["product"] / self.reader.shape[0]
        return product

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``); no block is used."""
        strip = self._height * (2 * self.side**2 + self._grid * self.side)
        return self.reader.buffer_bytes + 8 * (strip + 2 * len(self.wanted) * self.side**3)

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(len(self.wanted) * self.side**2, self.side, runs)
