"""Means and deviations of the columns, for a source that was never ingested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import BySlabs, Partial, Sums, finite_partial
from npmdask.core.operators.view import AS_STORED, View
from npmdask.core.storage.column_statistics import MOMENTS, ColumnStatistics, ColumnSums, EntrySums, merged, of_moments
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import Fragment

OF_COLUMNS = ("column_mean", "column_std", "column_error")
OF_GAPS = (*OF_COLUMNS[:2], "column_fill", "column_missing", "column_observed", "rows_missing", "column_error")


def of_gaps(found: ColumnStatistics, sums: Sums) -> np.ndarray:
    """``OF_GAPS`` (6 x d) of columns whose gaps count as means. ``sums``: how many are ``absent`` of each, and how many
    ``rows_with`` gaps there are, the same in every place.
    """
    return np.stack([found.mean, found.std, found.mean, sums["absent"], found.observed, sums["rows_with"]])  # type: ignore[list-item]


@dataclass(frozen=True, kw_only=True)
class ColumnMoments(BySlabs):
    """One pass for the column means and deviations of a source that was never ingested.

    The block is not used. ``finish`` gives the ``OF_COLUMNS`` of the stored columns, with the weights that the ``view``
    gives to rows: without an error, where it is that of sums of their kind. Where the ``reader`` has gaps, it gives
    ``OF_GAPS``: mean and deviation of columns whose gaps are at the mean, what fills them, how many entries of each are
    missing, the share of the (weight of the) rows that have a value in it, and (in every column) how many rows have a
    gap.
    """

    reader: Any  # DenseReader or CsrReader
    view: View = AS_STORED

    arithmetic: ClassVar[str] = "with errors"  # before: without, and of entries about zero alone

    @property
    def _of_csr(self) -> bool:
        return bool(self.reader.layout == "csr")

    @property
    def _with_gaps(self) -> bool:
        return getattr(self.reader, "counts_gaps", False)

    @property
    def sums_plain_rows(self) -> bool:
        """Say whether rows are dense and without gaps."""
        return not (self._of_csr or self._with_gaps)

    def partial(self, slabs: range, block: Block) -> Partial:
        record = ReadStats()
        table = (self._of_entries if self._of_csr else self._of_tiles)(slabs, record)
        return finite_partial(self.unstacked(table, slabs), self.reader, slabs, record)

    def _of_tiles(self, slabs: range, record: ReadStats) -> np.ndarray:
        columns = [self.reader.slab_columns(c) for c in range(self.reader.grid[1])]
        parts, weights, rows_with = [ColumnSums(c.stop - c.start) for c in columns], self.view.row_weight, 0
        absent = np.zeros(self.block_rows)
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                own, here = None if weights is None else weights[rows], np.zeros(rows.stop - rows.start, bool)
                for part, (at, values) in zip(parts, tile, strict=True):
                    gaps = np.isnan(values) if self._with_gaps else None
                    part.add(values, own, gaps)
                    if gaps is not None:  # counted as entries, whatever their row weighs
                        here |= gaps.any(axis=1)
                        absent[at] += gaps.sum(axis=0)
                rows_with += int(here.sum())
        table = np.concatenate([part.table() for part in parts], axis=1)
        beside = [absent, np.full(self.block_rows, float(rows_with))]
        return np.concatenate([table, beside]) if self._with_gaps else table

    def _of_entries(self, slabs: range, record: ReadStats) -> np.ndarray:
        sums, weights, at = EntrySums(self.block_rows), self.view.row_weight, self.reader.rows_of(slabs)[0]
        for piece in self.reader.blocks(slabs, record):
            lengths: Any = [len(piece.data)]
            if isinstance(piece, Fragment):
                numbers = range(piece.row, piece.row + 1)
            else:
                numbers, lengths = range(at, at + piece.shape[0]), np.diff(piece.indptr)
            at = numbers.stop
            own = None if weights is None else np.repeat(weights[numbers.start : numbers.stop], lengths)
            sums.add(piece.indices, piece.data, own)
        return np.stack(list(sums.sums.values()))

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        names = EntrySums.NAMES if self._of_csr else (*MOMENTS, "absent", "rows_with")
        return dict(zip(names, stacked, strict=False))  # as many as there are

    def join(self, left: Partial, right: Partial) -> Partial:
        both: Any = [part.sums for part in (left, right)]
        if self.sums_plain_rows:  # of all columns alike
            number = int if self.view.row_weight is None else float
            both = [sums | {"count": number(sums["count"][0])} for sums in both]
        made = {name: both[0][name] + both[1][name] for name in both[0] if name not in MOMENTS}
        if "m2" in both[0]:
            made |= merged(*both)
            made["count"] = np.broadcast_to(np.float64(made["count"]), made["mean"].shape)
        return Partial({name: made[name] for name in both[0]}, left.record.add(right.record))

    def finish(self, total: Partial, block: Block) -> Block:
        sums, rows = total.sums, self.reader.shape[0]
        weight = self.view.weight_of_rows(rows)
        if self._of_csr:
            return np.stack(list(EntrySums(self.block_rows, sums).statistics(rows, weight).kept().values()))
        observed = np.where(sums["absent"] > 0, sums["count"] / weight, 1.0) if self._with_gaps else None
        found = of_moments(sums, rows, weight, observed)
        kept = list(found.kept().values())
        return np.stack([*of_gaps(found, sums), *kept[2:]] if self._with_gaps else kept)

    def named(self, found: np.ndarray) -> dict[str, np.ndarray]:
        """Return what ``finish`` has made, by name."""
        return dict(zip(OF_GAPS if self._with_gaps else OF_COLUMNS, found, strict=False))

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block."""
        return self.reader.buffer_bytes + (24 if self._of_csr else 8) * self.block_rows * 8
