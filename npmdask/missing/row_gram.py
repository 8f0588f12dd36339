"""``A A^T`` of rows with gaps at the means of their columns, found in the same pass: a strip has all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import Partial
from npmdask.core.operators.column_moments import OF_GAPS
from npmdask.core.operators.row_gram import RowGram
from npmdask.core.storage.column_statistics import ColumnSums, of_moments


@dataclass(frozen=True, kw_only=True)
class IncompleteRowGram(RowGram):
    """``weight * A A^T`` of rows whose gaps (NaN) are at the means of what their columns have.

    Notes
    -----
    ``image`` has one column more: how many gaps each row has.
    """

    found: ClassVar[tuple[str, ...]] = OF_GAPS[:6]
    beside: ClassVar[int] = 1

    def _centre(self, strip: np.ndarray, columns: slice, moments: np.ndarray, beside: np.ndarray) -> None:
        gaps = np.isnan(strip)
        sums, lacking, weight = ColumnSums(strip.shape[1]), gaps.sum(axis=0), self.view.weight_of_rows(self.rows)
        sums.add(strip, self.view.row_weight, gaps)
        observed = np.where(lacking > 0, sums.count / weight, 1.0)
        known = of_moments(vars(sums), self.rows, weight, observed)
        moments[:, :5] = np.stack([known.mean, known.std, known.mean, lacking, observed], axis=1)
        strip -= known.mean
        strip[gaps] = 0.0
        if self.view.shift is not None:
            strip += known.mean - self.view.shift[columns]
        beside[:, 0] += gaps.sum(axis=1)

    def finish(self, total: Partial, block: Block) -> np.ndarray:
        """Return the same, and how many rows have a gap as a moment of each column."""
        product = super().finish(total, block)
        product[-self.state_rows :] = np.count_nonzero(total.sums["image"][:, -1])
        return product
