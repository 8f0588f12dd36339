"""Private contractions of a symmetric tensor whose entries are bounded, from its unique blocks.

As for matrices (operators/bounded.py): bounding entries one by one brings neighbours no further apart, the float sum
errs by no more than public numbers say (docs/decisions/0021), and what is handed on are integers on a public grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from npmdask.numerics.random import Rounding
from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import Partial
from npmdask.operators.block_strips import strip_rows
from npmdask.operators.clipped_entries import JOINS, MACHINE_EPS, Bounded
from npmdask.operators.exact_sums import COLUMN_NORM, require_prepared
from npmdask.operators.packed_tensor import PackedTensor
from npmdask.operators.tensor_contraction import Contraction
from npmdask.storage.readers.dense import SlabRecord, scratch
from npmdask.storage.readers.packed_tensor import TensorReader

GRID_BITS = 14  # of the rounding of a column to the grid, below its least sensitivity: a 10^-4 of it
ADDED = 3  # sums of a strip that go to one row, at most


@dataclass(frozen=True, kw_only=True)
class BoundedTensor(Bounded, PackedTensor):
    """``T(I, u, u)`` (d x L), or with ``scores`` ``T(u, u, u)`` (1 x L), as int64 multiples of a public grid.

    Entries beyond ``clip_norm`` become it, those that are not finite become 0. ``change``: by how much an entry of
    neighbours may differ; it chooses the grid only. The grid is the same for both.
    """

    reader: TensorReader

    @property
    def _grid(self) -> float:
        """A unit vector moves T(I, u, u) by at least about change / d (where it is flat): sqrt(d) roundings are less.

        Or as fine as 62 bits allow for the largest score that there can be.
        """
        d = self.reader.size
        fine = math.log2(self.change) - 1.5 * math.log2(d) - GRID_BITS
        largest = math.log2(self.clip_norm * COLUMN_NORM**3) + 1.5 * math.log2(d)
        return math.ldexp(1.0, max(math.floor(fine), math.ceil(largest) - 62))

    def _depth_with(self, p: int) -> int:
        """Roundings that a term meets on its way into an entry, at most, of a block with p columns.

        It is multiplied twice, and summed within a strip (over both indices at once, or one after the other), over the
        strips of the blocks that its row meets, over runs, and of scores over all rows.
        """
        side, rows, n = self.reader.side, strip_rows(self.reader.side, p), self.reader.grid
        strips = -(-side // rows) * n * (n + 1) // 2
        within = max(side * max(rows, 2), 2 * side) + 3
        return within + ADDED * strips + JOINS + (self.reader.size + 1 if self.scores else 0)

    def rounding(self, p: int) -> Rounding:
        """What rounding adds to the sensitivity of a single column of a prepared block with p columns.

        sum |t| |u| |u| <= clip_norm (sum |u|)^2 <= clip_norm d ||u||_2^2, and of scores clip_norm d^1.5 ||u||_2^3.
        """
        n, d = self._depth_with(p), self.reader.size
        share = n * MACHINE_EPS / (1 - n * MACHINE_EPS) * self.clip_norm
        size = d**1.5 * COLUMN_NORM**3 if self.scores else d * COLUMN_NORM**2
        entry = (2 * share * size + self._grid) * (1 + 2.0**-40)
        rows = 1 if self.scores else d
        return Rounding(grid=self._grid, l2=entry * math.sqrt(rows), l1=entry * rows)

    def partial(self, slabs: range, block: Block) -> Partial:
        record, contraction = SlabRecord(), Contraction(block, self.reader.side)
        for place, values in self.reader.blocks(slabs, record):
            held = scratch("bounded tensor block", (self.reader.side**3,), np.float64)[: values.size]
            contraction.add(place, self._bounded_in(held.reshape(values.shape), values))
        return Partial({"product": contraction.product}, record)

    def finish(self, total: Partial, block: Block) -> np.ndarray:
        """Multiples of the grid of ``rounding``; raises BadInputError if the block was not prepared."""
        require_prepared(block)
        product = PackedTensor.finish(self, total, block) / self._grid
        return np.rint(product, out=product).astype(np.int64)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block, with p columns: that of the plain one and a bounded block."""
        return PackedTensor.task_bytes(self, p, runs) + 8 * self.reader.side**3
