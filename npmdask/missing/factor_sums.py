"""The sums over rows with gaps that a step of EM for a factor model is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import (
    FEW_RUNS,
    SUMS_READ,
    BySlabs,
    Partial,
    Sums,
    finite_partial,
    least_run,
    pending_sums,
    strip_bytes,
    strip_rows,
    strips,
)
from npmdask.core.operators.view import View
from npmdask.core.storage.readers.dense import ReadStats, scratch
from npmdask.missing.factor_model import FactorModel, ModelSums, expectations, held_out


@dataclass(frozen=True, kw_only=True)
class FactorExpectations(BySlabs):
    """The sums of a step of EM for a factor model of rows with missing entries (NaN).

    The block (d x (k + 1)) holds the loadings and, last, the mean about ``shift``, both of columns as the view has
    them. ``finish`` gives the table of :class:`npmdask.missing.factor_model.ModelSums` (d + 2 rows).

    Parameters
    ----------
    reader, view : as of :class:`Gram`, with a ``shift``; columns of weight 0 count as never observed.
    noise : s2.
    held_out : share of the entries that are left out, and predicted instead.
    seed : of which these are.
    """

    reader: Any
    view: View
    weight: float = 1.0
    noise: float = 1.0
    held_out: float = 0.0
    seed: int = 0

    answers: ClassVar[tuple[str, ...]] = ("noise", "held_out")

    @property
    def run_bytes(self) -> int:
        """The least that a run reads: wide sums of many columns are not added up more often than that pays."""
        return max(least_run(self.block_rows), min(SUMS_READ * 8 * self.block_rows, self.pass_bytes // FEW_RUNS))

    def partial(self, slabs: range, block: Block) -> Partial:
        record, layout = ReadStats(), ModelSums(block.shape[1] - 1)
        loadings = np.ascontiguousarray(block[:, :-1], np.float64)
        model = FactorModel(
            axes=loadings, lengths=np.ones(layout.rank), mean=block[:, -1].astype(np.float64), noise=self.noise
        )
        table = np.zeros((self.block_rows + 2, layout.width))
        times = self.view.on_columns(np.ones((self.block_rows, 1)))[:, 0]
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                for part in strips(rows.stop - rows.start, self._numbers_per_row(layout), np.float64):
                    here = slice(rows.start + part.start, rows.start + part.stop)
                    self._add(model, here, [(c, values[part]) for c, values in tile], times, table)
        return finite_partial({"table": table}, self.reader, slabs, record)

    def _add(self, model: FactorModel, rows: slice, tile: Any, times: np.ndarray, table: np.ndarray) -> None:
        assert self.view.shift is not None
        height = strip_rows(self._numbers_per_row(ModelSums(model.rank)), np.float64)
        values = scratch("observed", (height, self.block_rows), np.float64)[: rows.stop - rows.start]
        for columns, part in tile:
            np.subtract(part, self.view.shift[columns], out=values[:, columns], dtype=np.float64, casting="unsafe")
        values *= times
        there = ~np.isnan(values) & (times > 0)
        held = None
        if self.held_out:
            drawn = held_out(rows, self.block_rows, self.held_out, self.seed)
            held, there = there & drawn, there & ~drawn
        weights = None if self.view.row_weight is None else self.view.row_weight[rows]
        expectations(model, values, there, held, weights, table, [columns for columns, _ in tile])

    def _numbers_per_row(self, layout: ModelSums) -> int:
        """Numbers beside each row of a strip: entries, which of them are there, and what is made of them."""
        return 6 * self.block_rows + 3 * (layout.width + layout.rank**2)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return {"table": stacked}

    def finish(self, total: Partial, block: Block) -> Block:
        return total.sums["table"]

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        layout = ModelSums(p - 1)
        sums = 2 * (self.block_rows + 2) * layout.width * 8
        return self.reader.buffer_bytes + strip_bytes(0, self._numbers_per_row(layout)) + sums

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(self.block_rows + 2, ModelSums(p - 1).width, runs)
