"""Means and deviations of the columns, for a source that was never ingested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import BySlabs, Partial, Sums, finite_partial
from npmdask.operators.view import AS_STORED, View
from npmdask.storage.readers.dense import ReadStats
from npmdask.storage.readers.gaps import COUNTED, GapReader
from npmdask.storage.readers.sparse import Fragment, add_by_column
from npmdask.storage.writers.dense import Moments, ObservedMoments

OF_GAPS = ("column_mean", "column_std", "column_fill", "column_missing", "column_observed", "rows_missing")


def filled_moments(sums: Sums, weight: float, dtype: Any) -> np.ndarray:
    """``OF_GAPS`` (6 x d) of columns whose gaps count as means, in the ``dtype`` of the data.

    ``sums``: of what is observed, by column (d): ``count``, ``mean``, ``m2`` (squares about it), ``absent``; and
    ``rows_with`` gaps, the same in every place. ``weight``: of all rows.
    """
    observed = np.where(sums["absent"] > 0, sums["count"] / weight, 1.0)
    fill = sums["mean"].astype(dtype).astype(np.float64)  # what a tile of the data can hold
    # Gaps hold that rounded number: mean and deviation of a filled column are beside those over what is observed.
    away = fill - sums["mean"]
    mean = sums["mean"] + (1 - observed) * away
    std = np.sqrt(sums["m2"] / weight + observed * (1 - observed) * away**2)
    return np.stack([mean, std, fill, sums["absent"], observed, sums["rows_with"]])


@dataclass(frozen=True, kw_only=True)
class ColumnMoments(BySlabs):
    """One pass for the column means and deviations of a source that was never ingested (Chan et al. 1983).

    The block is not used. ``finish`` gives 2 x d: mean and population standard deviation of the stored columns, with
    the weights that the ``view`` gives to rows. Where the ``reader`` has gaps, these are what it may be to
    fill them with: 6 x d, mean and deviation of the filled columns, what fills them, how many entries of each are
    missing, the share of the (weight of the) rows that have a value in it, and (in every column) how many rows have a
    gap.
    """

    reader: Any  # DenseReader or CsrReader
    view: View = AS_STORED

    @property
    def _of_csr(self) -> bool:
        return bool(self.reader.layout == "csr")

    @property
    def _with_gaps(self) -> bool:
        return isinstance(self.reader, GapReader) and self.reader.rule in COUNTED

    @property
    def sums_plain_rows(self) -> bool:
        """Whether rows are dense and without gaps."""
        return not (self._of_csr or self._with_gaps)

    @property
    def block_rows(self) -> int:
        return self.reader.shape[1]

    def partial(self, slabs: range, block: Block) -> Partial:
        record = ReadStats()
        of_dense = self._of_gappy_tiles if self._with_gaps else self._of_tiles
        table = (self._of_entries if self._of_csr else of_dense)(slabs, record)
        return finite_partial(self.unstacked(table, slabs), self.reader, slabs, record)

    def _of_tiles(self, slabs: range, record: ReadStats) -> np.ndarray:
        columns = [self.reader.slab_columns(c) for c in range(self.reader.grid[1])]
        parts, weights = [Moments(c.stop - c.start) for c in columns], self.view.row_weight
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                for part, (_, values) in zip(parts, tile, strict=True):
                    part.add(values, None if weights is None else weights[rows])
        return np.concatenate([part.table() for part in parts], axis=1)

    def _of_gappy_tiles(self, slabs: range, record: ReadStats) -> np.ndarray:
        columns = [self.reader.slab_columns(c) for c in range(self.reader.grid[1])]
        parts, rows_with = [ObservedMoments(c.stop - c.start) for c in columns], 0
        weights = self.view.row_weight
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                here = np.zeros(rows.stop - rows.start, bool)
                for part, (_, values) in zip(parts, tile, strict=True):
                    here |= part.add(values, None if weights is None else weights[rows])
                rows_with += int(here.sum())
        table = np.concatenate([part.table() for part in parts], axis=1)
        return np.concatenate([table, np.full((1, self.block_rows), float(rows_with))])

    def _of_entries(self, slabs: range, record: ReadStats) -> np.ndarray:
        table, weights, at = np.zeros((3, self.block_rows)), self.view.row_weight, self.reader.rows_of(slabs)[0]
        for piece in self.reader.blocks(slabs, record):
            values, lengths = piece.data.astype(np.float64), [len(piece.data)]
            if isinstance(piece, Fragment):
                numbers = range(piece.row, piece.row + 1)
            else:
                numbers, lengths = range(at, at + piece.shape[0]), np.diff(piece.indptr)
            at = numbers.stop
            of_entries = 1.0 if weights is None else np.repeat(weights[numbers.start : numbers.stop], lengths)
            add_by_column([table[1], table[2]], piece.indices, [values * of_entries, values**2 * of_entries])
        return table

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        """Of CSR plain sums of values and squares (their count is not used), of dense data means and deviations."""
        names = ["count", *(("total", "squares") if self._of_csr else ("mean", "m2"))]
        names += ["absent", "rows_with"] if self._with_gaps else []
        return dict(zip(names, stacked, strict=True))

    def join(self, left: Partial, right: Partial) -> Partial:
        if self._of_csr:
            return super().join(left, right)
        if self._with_gaps:
            return Partial(self._joined_with_gaps(left.sums, right.sums), left.record.add(right.record))
        merged = Moments(self.block_rows)
        for counts, mean, m2 in (left.sums.values(), right.sums.values()):
            merged.merge(float(counts[0]) if self.view.row_weight is not None else int(counts[0]), mean, m2)
        return Partial(self.unstacked(merged.table(), range(0)), left.record.add(right.record))

    def _joined_with_gaps(self, *both: Sums) -> Sums:
        merged = ObservedMoments(self.block_rows)
        for sums in both:
            merged.merge_observed(sums["count"], sums["mean"], sums["m2"], sums["absent"])
        rows_with = both[0]["rows_with"] + both[1]["rows_with"]
        return self.unstacked(np.concatenate([merged.table(), rows_with[None]]), range(0))

    def _finish_with_gaps(self, sums: Sums) -> Block:
        return filled_moments(sums, self.view.weight_of_rows(self.reader.shape[0]), self.reader.dtype)

    def finish(self, total: Partial, block: Block) -> Block:
        if self._with_gaps:
            return self._finish_with_gaps(total.sums)
        _, mean, spread = total.sums.values()
        rows = self.view.weight_of_rows(self.reader.shape[0])
        if self._of_csr:
            mean = mean / rows
            spread = np.maximum(spread - rows * mean**2, 0.0)
        return np.stack([mean, np.sqrt(spread / rows)])

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block."""
        return self.reader.buffer_bytes + 8 * self.block_rows * 8
