"""The cross-covariance of two fields as a symmetric operator, from one reading of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import (
    BySlabs,
    Partial,
    Sums,
    add_back,
    require_finite,
    split_rows,
    strip_rows,
    tile_bytes,
    zeros_for_sum,
)
from npmdask.operators.view import AS_STORED, View
from npmdask.storage.readers.dense import ReadStats

Strip = list[tuple[slice, np.ndarray]]  # some rows, by columns


@dataclass(frozen=True, kw_only=True)
class CrossCovariance(BySlabs):
    """``[[0, C], [C^T, 0]]`` for ``C = weight * A^T B``, A and B the ``view`` of the first and of the other columns.

    Its product with ``[U; V]`` is ``[C V; C^T U]``: of every tile ``A U`` and ``B V`` are formed, and what they give
    for the columns of the other field. C, p x q, never is. Its eigenvalues are the singular values of C with both
    signs, and zeros (Golub and Van Loan, Matrix Computations, 8.6.1).

    Parameters
    ----------
    reader : of rows of p + q columns, like :class:`npmdask.storage.readers.side_by_side.SideBySide`.
    split : p.
    weight, view : as of :class:`npmdask.operators.Gram`, of all columns.
    reach : a bound of ``weight * ||A|| ||B||``, which products are rounded to, however small C is.
    moments : sum the second moments of the scores ``[A U, B V]`` (n x 2 m), too: ``finish`` gives p + q rows of the
        product over 4 m rows, the moments (2 m x 2 m), each of their rows in two halves.
    """

    reader: Any
    split: int
    weight: float = 1.0
    view: View = AS_STORED
    reach: float = 0.0
    moments: bool = False

    def partial(self, slabs: range, block: Block) -> Partial:
        record, block = ReadStats(), self.view.on_columns(block)
        product, m = zeros_for_sum(len(block), block), block.shape[1]
        moments = np.zeros((2 * m, 2 * m))
        for tile, of_left, of_right in self._images(slabs, block, record):
            for columns, values in tile:
                add_back(product[columns], values, of_right if columns.start < self.split else of_left)
            if self.moments:
                both = np.concatenate([of_left, of_right], axis=1)
                moments += both.T @ both
        sums = {"product": np.ascontiguousarray(product)}
        if self.moments:
            sums["moments"] = moments.reshape(4 * m, m)
        require_finite(sums, self.reader, slabs)
        return Partial(sums, record)

    def _images(self, slabs: range, block: Block, record: ReadStats) -> Iterator[tuple[Strip, Block, Block]]:
        """For each strip its values as the view has them, by columns, and ``A U`` and ``B V`` of its rows."""
        height = strip_rows(len(block), block.dtype)
        for slab in self.reader.ahead(slabs):
            for rows, raw in self.reader.tiles(slab, record):
                for start in range(rows.start, rows.stop, height):
                    here = slice(start, min(start + height, rows.stop))
                    part = slice(here.start - rows.start, here.stop - rows.start)
                    tile = [(c, self.view.tile(values[part], here, c, block.dtype)) for c, values in raw]
                    left = [(c, values) for c, values in tile if c.start < self.split]
                    yield tile, _times(left, block), _times(tile[len(left) :], block)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        if not self.moments:
            return super().unstacked(stacked, units)
        return split_rows(stacked, {"product": self.block_rows, "moments": 4 * stacked.shape[1]})

    def finish(self, total: Partial, block: Block) -> Block:
        product = self.view.on_columns(total.sums["product"] * self.weight)
        return np.concatenate([product, total.sums["moments"] * self.weight]) if self.moments else product

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return tile_bytes(self.reader, 2 * p) + 3 * self.block_rows * p * 8


def _times(tile: Strip, block: Block) -> Block:
    """Rows of a tile, in parts of their columns, times a block."""
    z = tile[0][1] @ block[tile[0][0]]
    for columns, values in tile[1:]:
        z += values @ block[columns]
    return np.asarray(z)
