"""Private products of a matrix whose entries are bounded: by rows, by one triangle, and transposed.

Neighbouring matrices differ by as much as their relation says; bounding entries elementwise brings them no further
apart. The product is a float sum, whose error is bounded by public numbers only (size, bound of the entries, block on
its grid) and told to the mechanism: docs/decisions/0021.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.core.numerics.random import Rounding
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import (
    BlockQuery,
    BySlabs,
    Partial,
    Sums,
    add_buffered,
    least_run,
    own_rows,
    pending_sums,
    strip_rows,
    strips,
    tile_bytes,
)
from npmdask.core.storage.readers.dense import DenseReader, ReadStats, Tile, scratch
from npmdask.errors import require
from npmdask.privacy.exact_sums import COLUMN_NORM, on_grid, require_prepared
from npmdask.symmetric.operator import Contraction, PackedTensor, Triangle, tensor_strip_rows
from npmdask.symmetric.reader import TensorReader, TriangleReader

MACHINE_EPS = 2.0**-53  # of one rounding to nearest
FINE_BITS = 20  # of the rounding of the whole product to the grid, below its typical sensitivity
JOINS = 64  # additions on the way of a term that joining the runs of a pass costs, and some
LEAST, LARGEST = 2.0**-200, 2.0**200


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """Base of bounded products.

    Parameters
    ----------
    clip_norm : public bound; entries beyond it become it, entries that are not finite become 0.
    change : how far apart neighbouring matrices may be (in an entry, or in norm); chooses the grid only.
    """

    reader: Any
    clip_norm: float
    change: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("clip_norm", self.clip_norm), ("change", self.change)):
            require(LEAST <= value <= LARGEST, f"{name} = {value} must be a positive number between 2^-200 and 2^200")

    @property
    def _rows(self) -> int:
        """Rows of the product."""
        return int(self.reader.shape[0])

    @property
    def _terms(self) -> int:
        """Terms of each of its entries: rows of the block."""
        return int(self.reader.shape[1])

    def prepare(self, block: Block) -> Block:
        """The block on the grid of private products: what is multiplied, released and told to the mechanism."""
        return on_grid(block)

    @property
    def _depth(self) -> int:
        """Roundings that a term meets on its way into an entry of the product, at most: by the stored layout."""
        return self.reader.chunks[1] + self.reader.grid[1] + JOINS  # pieces of one row of chunks, summed in turn

    @property
    def _grid(self) -> float:
        """So fine that it costs nothing, or as fine as 62 bits allow for the largest entry that there can be."""
        fine = math.log2(self.change) - math.log2(self._rows * self._terms) / 2 - FINE_BITS
        largest = math.log2(self.clip_norm * COLUMN_NORM) + math.log2(self._terms) / 2
        return math.ldexp(1.0, max(math.floor(fine), math.ceil(largest) - 62))

    def rounding(self, p: int) -> Rounding:
        """Bound what rounding adds to the sensitivity of A X, X prepared: both worlds err, in every row.

        A sum errs by at most n eps / (1 - n eps) sum |a| |x| if no term meets more than n roundings (Higham, Accuracy
        and Stability of Numerical Algorithms, 4.2), and sum |a| |x| <= clip_norm sqrt(terms) ||x||_2.
        """
        n, entries = self._depth, self._rows * p
        error = n * MACHINE_EPS / (1 - n * MACHINE_EPS) * self.clip_norm * math.sqrt(self._terms) * COLUMN_NORM
        entry = (2 * error + self._grid) * (1 + 2.0**-40)
        return Rounding(grid=self._grid, l2=entry * math.sqrt(entries), l1=entry * entries)

    def finish(self, total: Partial, block: Block) -> np.ndarray:
        """The product as int64 multiples of the grid of ``rounding``; raises BadInputError if X was not prepared."""
        require_prepared(block)
        product = np.concatenate(list(total.sums.values()))
        product /= self._grid
        return np.rint(product, out=product).astype(np.int64)

    def _bounded(self, values: np.ndarray) -> np.ndarray:
        """Entries as bounded finite float64, in a buffer of this thread that the next ones reuse."""
        rows, columns = values.shape
        held = scratch(("bounded", columns), (-(-rows // 64) * 64, columns), np.float64)[:rows]
        return self._bounded_in(held, values)

    def _bounded_in(self, held: np.ndarray, values: np.ndarray) -> np.ndarray:
        """``values`` as bounded finite float64 in ``held``, which has their shape."""
        np.copyto(held, values, casting="unsafe")
        if not np.isfinite(held.sum()):  # the sum of finite numbers may overflow: then this is needless, and harmless
            np.nan_to_num(held, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        return np.clip(held, -self.clip_norm, self.clip_norm, out=held)


@dataclass(frozen=True, kw_only=True)
class BoundedProduct(Bounded, BySlabs):
    """``A @ X`` (m rows), X with a row for each column of A; a row of chunks at a time."""

    reader: DenseReader

    def asked(self, query: BlockQuery) -> BoundedProduct | BoundedTransposed:  # type: ignore[override]
        """The product, or the other side of alternating products."""
        if query.transposed:
            return BoundedTransposed(reader=self.reader, clip_norm=self.clip_norm, change=self.change)
        return super().asked(query)

    @property
    def run_bytes(self) -> int:
        """The least that a run reads; what it returns are its own rows only."""
        return least_run(0)

    def partial(self, slabs: range, block: Block) -> Partial:
        record, first = ReadStats(), self.reader.slab_rows(slabs.start).start
        product = np.zeros((self.reader.slab_rows(slabs.stop - 1).stop - first, block.shape[1]))
        for rows, tile, part in _strips(self.reader, slabs, record):
            here = slice(rows.start - first + part.start, rows.start - first + part.stop)
            for columns, values in tile:
                add_buffered(product[here], self._bounded(values[part]), block[columns])
        return Partial({own_rows(slabs): product}, record)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return {own_rows(units): stacked}

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """The rows of the product, then put together."""
        return 3 * self._rows * p * 8

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return tile_bytes(self.reader, p)


class BoundedSymmetric(BoundedProduct):
    """The same of a symmetric d x d matrix that is read whole."""


@dataclass(frozen=True, kw_only=True)
class BoundedTransposed(Bounded, BySlabs):
    """``A^T @ U`` (d rows), U with a row for each row of A."""

    reader: DenseReader

    @property
    def block_rows(self) -> int:
        return int(self.reader.shape[0])

    @property
    def _rows(self) -> int:
        return int(self.reader.shape[1])

    @property
    def _terms(self) -> int:
        return int(self.reader.shape[0])

    @property
    def _depth(self) -> int:
        tile, strip = self.reader.tile_rows, strip_rows(self.reader.shape[1], np.float64)
        each = -(-self.reader.chunks[0] // tile) * -(-tile // strip)  # strips of a slab, summed one after the other
        return min(tile, strip) + self.reader.grid[0] * each + JOINS

    def partial(self, slabs: range, block: Block) -> Partial:
        record, product = ReadStats(), np.zeros((self._rows, block.shape[1]))
        for rows, tile, part in _strips(self.reader, slabs, record):
            some = block[rows.start + part.start : rows.start + part.stop]
            for columns, values in tile:
                add_buffered(product[columns], self._bounded(values[part]).T, some)
        return Partial({"product": product}, record)

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(self._rows, p, runs)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return tile_bytes(self.reader, p) + 3 * self._rows * p * 8


@dataclass(frozen=True, kw_only=True)
class BoundedTriangle(Bounded, Triangle):
    """``A @ X`` of a symmetric d x d matrix from the chunks on and above the diagonal."""

    reader: TriangleReader

    @property
    def _depth(self) -> int:
        side, tile, n = self.reader.chunks[0], self.reader.tile_rows, self.reader.grid[0]
        return side + n * (1 + -(-side // tile)) + JOINS  # a row is met by tiles where they lie, and mirrored

    def partial(self, slabs: range, block: Block) -> Partial:
        record = ReadStats()
        return Partial({"product": np.ascontiguousarray(self._sum(slabs, block, record))}, record)

    def _tile(self, values: np.ndarray, dtype: Any) -> np.ndarray:
        return self._bounded(values)


def _strips(reader: DenseReader, slabs: range, record: ReadStats) -> Iterator[tuple[slice, Tile, slice]]:
    """Each tile with each strip of its rows that stays in cache in float64."""
    for slab in reader.ahead(slabs):
        for rows, tile in reader.tiles(slab, record):
            for part in strips(rows.stop - rows.start, reader.shape[1], np.float64):
                yield rows, tile, part


# Private contractions of a symmetric tensor whose entries are bounded, from its unique blocks.
#
# As for matrices (above): bounding entries one by one brings neighbours no further apart, the float sum
# errs by no more than public numbers say (docs/decisions/0021), and what is handed on are integers on a public grid.


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

    def _rounding_depth(self, p: int) -> int:
        """Roundings that a term meets on its way into an entry, at most, of a block with p columns.

        It is multiplied twice, and summed within a strip (over both indices at once, or one after the other), over the
        strips of the blocks that its row meets, over runs, and of scores over all rows.
        """
        side, rows, n = self.reader.side, tensor_strip_rows(self.reader.side, p), self.reader.grid
        strips = -(-side // rows) * n * (n + 1) // 2
        within = max(side * max(rows, 2), 2 * side) + 3
        return within + ADDED * strips + JOINS + (self.reader.size + 1 if self.scores else 0)

    def rounding(self, p: int) -> Rounding:
        """Bound what rounding adds to the sensitivity of a single column of a prepared block with p columns.

        sum |t| |u| |u| <= clip_norm (sum |u|)^2 <= clip_norm d ||u||_2^2, and of scores clip_norm d^1.5 ||u||_2^3.
        """
        n, d = self._rounding_depth(p), self.reader.size
        share = n * MACHINE_EPS / (1 - n * MACHINE_EPS) * self.clip_norm
        size = d**1.5 * COLUMN_NORM**3 if self.scores else d * COLUMN_NORM**2
        entry = (2 * share * size + self._grid) * (1 + 2.0**-40)
        rows = 1 if self.scores else d
        return Rounding(grid=self._grid, l2=entry * math.sqrt(rows), l1=entry * rows)

    def partial(self, slabs: range, block: Block) -> Partial:
        record, contraction = ReadStats(), Contraction(block, self.reader.side)
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
