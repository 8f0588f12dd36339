"""The dilation of a rectangular matrix, which is stored or the cross-covariance of two fields: symmetric, with the
singular values of the matrix and their negatives.

``D = [[0, B], [B^T, 0]]`` for B (m x n) has d = m + n, the eigenvalues +-sigma_i with the eigenvectors (u_i; +-v_i) /
sqrt(2), and m + n - 2 rank(B) zeros (Golub and Van Loan, Matrix Computations, 8.6.1; Hardt and Price 2014, appendix B).
Unlike those of ``B^T B``, small singular values are not squared away. D itself is never formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import (
    BySlabs,
    Partial,
    Sums,
    add_back,
    add_buffered,
    as_dtype,
    finite_partial,
    own_rows,
    pending_sums,
    split_rows,
    strip_rows,
    strips,
    tile_bytes,
    zeros_for_sum,
)
from npmdask.core.operators.gram import tile_times
from npmdask.core.operators.view import AS_STORED, View
from npmdask.core.storage.readers.dense import DenseReader, ReadStats
from npmdask.core.storage.readers.sparse import CsrReader, Fragment, cut_numbers, cut_rows, whole_rows


@dataclass(frozen=True, kw_only=True)
class Dilated(BySlabs):
    """Base of both dilated operators.

    A run gives the sum ``back``, ``B^T X_1`` (n rows) over its own rows, and these rows of ``B X_2``.
    """

    reader: Any

    @property
    def block_rows(self) -> int:
        return int(sum(self.reader.shape))

    def _halves(self, block: Block) -> tuple[Block, Block]:
        """X_1 (m rows) and X_2 (n rows)."""
        m = self.reader.shape[0]
        return block[:m], block[m:]

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return split_rows(stacked, {"back": self.reader.shape[1], own_rows(units): 0})

    def finish(self, total: Partial, block: Block) -> Block:
        back, *rows = total.sums.values()
        return np.concatenate([*rows, back])

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Sums that wait to be joined; the rows of the product, then put together (measured: five blocks)."""
        return pending_sums(self.reader.shape[1], p, runs) + 5 * self.block_rows * p * 8


@dataclass(frozen=True, kw_only=True)
class Dilation(Dilated):
    """``[B X_2; B^T X_1]`` of a stored dense m x n array B; each chunk is read once and used for both."""

    reader: DenseReader

    def partial(self, slabs: range, block: Block) -> Partial:
        record, (left, right) = ReadStats(), self._halves(block)
        first, last = self.reader.slab_rows(slabs.start).start, self.reader.slab_rows(slabs.stop - 1).stop
        product, back = np.zeros((last - first, block.shape[1])), zeros_for_sum(len(right), block)
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                for columns, values in tile:
                    for part in strips(len(values), values.shape[1], block.dtype):
                        some = as_dtype(values[part], block.dtype)
                        here = slice(rows.start + part.start, rows.start + part.stop)
                        add_buffered(product[here.start - first : here.stop - first], some, right[columns])
                        add_back(back[columns], some, left[here])
        sums = {"back": np.ascontiguousarray(back), own_rows(slabs): product}
        return finite_partial(sums, self.reader, slabs, record)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        rows = max(self.reader.slab_rows(run.stop - 1).stop - self.reader.slab_rows(run.start).start for run in runs)
        return tile_bytes(self.reader, p) + (3 * self.reader.shape[1] + rows) * p * 8


@dataclass(frozen=True, kw_only=True)
class SparseDilation(Dilated):
    """The same of a CSR matrix, without filling in a zero."""

    reader: CsrReader

    def partial(self, slabs: range, block: Block) -> Partial:
        record, (left, right), rows = ReadStats(), self._halves(block), self._rows(slabs)
        product, back = np.zeros((len(rows), block.shape[1])), np.zeros(right.shape)
        fragments = list[Fragment]()
        for at, piece in whole_rows(self.reader, slabs, record, fragments):
            some, here = piece.astype(block.dtype, copy=False), slice(at, at + piece.shape[0])
            product[here.start - rows.start : here.stop - rows.start] = some @ right
            back += some.T @ left[here]
        return finite_partial({"back": back, own_rows(slabs): product}, self.reader, slabs, record, fragments)

    def _rows(self, slabs: range) -> range:
        """The rows that a run represents: to that which the next run begins in, itself left out."""
        first = self.reader.slab_first_row
        last = slabs.stop == self.units
        return range(
            int(first[slabs.start]) if slabs.start else 0, self.reader.shape[0] if last else int(first[slabs.stop])
        )

    def finish(self, total: Partial, block: Block) -> Block:
        left, right = self._halves(block)
        product = super().finish(total, block)
        above, below = self._halves(product)
        cut, rows = cut_rows(self.reader, total.fragments), cut_numbers(total.fragments)
        above[rows] += cut @ right
        below += cut.T @ left[rows]
        return product

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        pointers = max(self.reader.pointer_bytes(slabs) for slabs in runs)
        rows = max(len(self._rows(slabs)) for slabs in runs)
        return self.reader.buffer_bytes + pointers + (3 * rows + 4 * self.reader.shape[1]) * p * 8


# The dilation of the cross-covariance of two fields, from one reading of both.

Strip = list[tuple[slice, np.ndarray]]  # some rows, by columns


@dataclass(frozen=True, kw_only=True)
class CrossCovariance(BySlabs):
    """``[[0, C], [C^T, 0]]`` for ``C = weight * A^T B``, A and B the ``view`` of the first and of the other columns.

    Its product with ``[U; V]`` is ``[C V; C^T U]``: of every tile ``A U`` and ``B V`` are formed, and what they give
    for the columns of the other field. C, p x q, never is. Its eigenvalues are the singular values of C with both
    signs, and zeros (Golub and Van Loan, Matrix Computations, 8.6.1).

    Parameters
    ----------
    reader : of rows of p + q columns, like :class:`npmdask.two_fields.side_by_side.SideBySide`.
    split : p.
    weight, view : as of :class:`npmdask.core.operators.Gram`, of all columns.
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
        return finite_partial(sums, self.reader, slabs, record)

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
                    yield tile, tile_times(left, block), tile_times(tile[len(left) :], block)

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
