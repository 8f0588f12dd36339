"""View the stored data as centred, scaled, with weights of rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import as_dtype, like
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.errors import BadInputError

LEAST_SINGLE = 1e-12  # of a mean weight: of values within the range of the power method (1e-18) 7 digits are left


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """``A = diag(u)^(1/2) (X - 1 shift^T) diag(1 / scale) diag(v)^(1/2)`` of a stored m x d array X; never formed.

    Parameters
    ----------
    shift : taken off every row (d): the column means, weighted as the rows are.
    scale : what columns are divided by (d).
    row_weight, column_weight : u (m) and v (d), not negative: ``A^T A`` is the sum of ``u_i a_i a_i^T``, and the inner
        product of two rows that of their entries times v.
    to_centre : rows are less their mean, which :class:`npmdask.core.operators.GramMatrix` finds, and no other.
    scale_error : the largest relative error of what columns are divided by.

    Raises
    ------
    BadInputError
        Weights that are negative or not finite.
    """

    shift: np.ndarray | None = None
    scale: np.ndarray | None = None
    row_weight: np.ndarray | None = None
    column_weight: np.ndarray | None = None
    to_centre: bool = False
    scale_error: float = 0.0

    def __post_init__(self) -> None:
        for name in ("row_weight", "column_weight"):
            weights = getattr(self, name)
            if weights is not None and not (np.isfinite(weights) & (weights >= 0)).all():
                raise BadInputError(f"{name} must be finite and not negative: it multiplies squares")

    @classmethod
    def of_columns(cls, columns: ColumnStatistics | None, *, center: bool, scale: bool) -> View:
        """The view of centred and scaled columns, of these means and deviations (None: they are not known)."""
        if columns is None:
            return cls(to_centre=center)
        by, error = (columns.scale, columns.scale_error) if scale else (None, 0.0)
        return cls(shift=columns.mean if center else None, scale=by, scale_error=error)

    def weighing(self, rows: np.ndarray | None, columns: np.ndarray | None) -> View:
        """The same view, with these weights of rows (m) and of columns (d) times those that it has."""
        pairs = ((self.row_weight, rows), (self.column_weight, columns))
        u, v = (old if new is None else new if old is None else old * new for old, new in pairs)
        return replace(self, row_weight=u, column_weight=v)

    @property
    def weighs(self) -> bool:
        """Say whether rows or columns have weights."""
        return self.row_weight is not None or self.column_weight is not None

    @property
    def allow_rounding(self) -> bool:
        """Say whether products may be rounded as those of equal rows are: at random.

        Roots of weights of rows are rounded to the same side wherever the weights are the same. And the block that was
        multiplied cannot be told from its product with a column that weighs nothing.
        """
        return self.row_weight is None and (self.column_weight is None or bool((self.column_weight > 0).all()))

    def fits_single(self, rows: int) -> bool:
        """Say whether sums over rows that are multiplied by their weights stay in the range of float32.

        What they are divided by afterwards, the weight of all, tells nothing of it.
        """
        return bool(LEAST_SINGLE < self.weight_of_rows(rows) / rows < 1 / LEAST_SINGLE)

    def on_columns(self, block: Block) -> Block:
        """``diag(1 / scale) diag(v)^(1/2) block``: what X is multiplied by, and what sums over its rows are."""
        if self.scale is None and self.column_weight is None:
            return block
        if self.column_weight is not None:
            block = (block * np.sqrt(self.column_weight)[:, None]).astype(block.dtype, copy=False)
        return block if self.scale is None else (block / self.scale[:, None]).astype(block.dtype, copy=False)

    def off_columns(self, block: Block) -> Block:
        """The block that ``on_columns`` makes this one of: its inverse; 0 in columns that weigh nothing."""
        if self.scale is not None:
            block = block * self.scale[:, None]
        if self.column_weight is None:
            return block
        roots = np.sqrt(self.column_weight)[:, None]
        return np.divide(block, roots, out=np.zeros(block.shape), where=roots > 0)

    @property
    def centres(self) -> bool:
        """Say whether the mean of the rows is subtracted."""
        return self.to_centre or self.shift is not None

    @property
    def of_stored_rows(self) -> bool:
        """Say whether rows are seen as they are stored, but for what is done to columns."""
        return self.shift is None and self.row_weight is None

    @property
    def nbytes(self) -> int:
        """Memory of the weights, with the roots that are kept of those of rows."""
        held = (self.row_weight, self.row_weight, self.column_weight)
        return sum(weights.nbytes for weights in held if weights is not None)

    @cached_property
    def row_roots(self) -> np.ndarray:
        """Factors of the rows (m), where they are weighted."""
        assert self.row_weight is not None
        return np.sqrt(self.row_weight)

    @cached_property
    def column_roots(self) -> np.ndarray:
        """Factors of the columns (d), where they are weighted."""
        assert self.column_weight is not None
        return np.sqrt(self.column_weight)

    def tile(self, values: np.ndarray, rows: slice, columns: slice, dtype: Any) -> np.ndarray:
        """Entries of X in ``rows`` and ``columns``, centred, their rows weighted, in the dtype of the arithmetic.

        Themselves, where there is nothing to do; else a copy in this thread's reused buffer.
        """
        if self.of_stored_rows:
            return as_dtype(values, dtype, name=columns.start)
        out = like(values, dtype, columns.start)
        if self.shift is None:
            np.copyto(out, values, casting="unsafe")
        else:
            subtract(values, self.shift[columns], out)
        if self.row_weight is not None:
            np.multiply(out, self.row_roots[rows, None], out=out, casting="unsafe")
        return out

    def weighted(self, rows: csr_matrix, numbers: Sequence[int]) -> csr_matrix:
        """Rows of these ``numbers``, weighted; they are centred by algebra, in the product."""
        if self.row_weight is None:
            return rows
        roots = np.repeat(self.row_roots[np.asarray(numbers, np.int64)], np.diff(rows.indptr))
        return csr_matrix((rows.data * roots, rows.indices, rows.indptr), shape=rows.shape)

    def weight_of_rows(self, rows: int) -> float:
        """The weight of all ``rows`` rows together: their number, where they are not weighted."""
        return rows if self.row_weight is None else float(self.row_weight.sum())

    def trace(self, mean: np.ndarray, std: np.ndarray, rows: int) -> float:
        """The trace of ``A^T A``, from the (weighted) means and deviations of the columns of X."""
        second = std**2 if self.shift is not None else std**2 + mean**2
        second = second / (1.0 if self.scale is None else self.scale) ** 2
        if self.column_weight is not None:
            second = second * self.column_weight
        return float(second.sum() * self.weight_of_rows(rows))

    def require_unweighted(self, what: str) -> None:
        """Raise BadInputError where rows or columns are weighted, which is not defined for ``what``."""
        if self.weighs:
            raise BadInputError(f"{what} of weighted rows or columns is not defined: leave the weights out")


AS_STORED = View()


def subtract(values: np.ndarray, shift: np.ndarray, out: np.ndarray) -> None:
    """``out = values - shift``, rounded once; a ``shift`` for float32 is one that float32 holds."""
    if out.dtype == np.float32 and not np.can_cast(values.dtype, np.float32):
        np.subtract(values, shift, out=out, dtype=np.float64, casting="unsafe")
    elif values.dtype == out.dtype:
        np.subtract(values, shift.astype(out.dtype), out=out)
    else:
        out[:] = values  # converted before: a subtraction that converts takes three times as long
        out -= shift.astype(out.dtype)


def in_units_of_data(basis: Block, columns: np.ndarray | None) -> Block:
    """Vectors (d x k) of weighted columns without the weights; not a number where a column weighs nothing."""
    if columns is None:
        return basis
    roots = np.sqrt(columns)[:, None]
    return np.divide(basis, roots, out=np.full(basis.shape, np.nan, basis.dtype), where=roots > 0)
