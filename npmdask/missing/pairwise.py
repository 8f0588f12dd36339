"""Covariances of rows with missing entries, each over the rows that have both columns, and the nearest that can be."""

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
    split_rows,
    strip_rows,
)
from npmdask.core.operators.column_moments import OF_GAPS, of_gaps
from npmdask.core.operators.view import View
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.column_statistics import ColumnStatistics, relative
from npmdask.core.storage.readers.dense import ReadStats, scratch
from npmdask.errors import BadInputError
from npmdask.missing.gaps import nothing_there

LEAST_PAIRS = 2  # rows that a covariance is of, at least: a single one has none
SUMS = ("products", "totals", "counts")
GAPPY = "rows_with"  # how many rows have a gap: one more row of the sums
FINISHING = 5  # d x d arrays beside the sums: means, the matrix, its vectors, what is made of them
FACTS = ("clipped", "most_negative", "trace", "least_pairs")  # a number each, in rows of one column of the product
ROUNDING = 1e-14  # of the largest eigenvalue: a negative one so near to 0 is none


@dataclass(frozen=True, kw_only=True)
class PairwiseGram(BySlabs):
    """The positive semidefinite matrix nearest to the pairwise covariances of the columns, in one pass.

    Covariance (i, j) is over the rows that have both, about their own means over these rows, with their number in the
    denominator. Such a matrix can have negative eigenvalues. ``finish`` gives its product with the block, after these
    are set to 0; where the ``whole`` is asked for also the matrix before it, and behind it a column of ``FACTS`` (how
    much was taken off: the sum and the largest negative eigenvalue; the trace; the least number of rows of a pair) and
    the moments of the columns and their error: d x (d + p + 8).

    Parameters
    ----------
    reader, view : as of :class:`npmdask.core.operators.Gram`, with a ``shift`` near the means (sums far from zero have
        few digits) and no weights of rows. Columns of weight 0 are not looked at.
    scaled : columns are divided by their deviations over what is observed, as the sums have them; a ``scale`` of the
        view is not looked at.

    Notes
    -----
    Nearest in the Frobenius norm: Higham, Linear Algebra and its Applications 103 (1988) 103, theorem 2.1.
    """

    reader: Any
    view: View
    scaled: bool = False
    weight: float = 1.0
    whole: str | None = None

    def fewer(self, share: float) -> list[str]:
        """Say what would fit where this does not."""
        return ['or missing = "em" or "mean", which sum no pairs of columns']

    answers: ClassVar[tuple[str, ...]] = ("whole",)

    @property
    def arithmetic(self) -> str:  # type: ignore[override]  # read alike of a class and of an instance
        """Return a checksum of the shift of the sums, as parts of a pass must share it."""
        return f"about {crc32c(np.asarray(self.view.shift, np.float64)):08x}"

    @property
    def run_bytes(self) -> int:
        """The least that a run reads: many times the sums that it returns, or a share of all."""
        sums = len(SUMS) * self.block_rows**2 * 8
        return max(least_run(self.block_rows), min(SUMS_READ * sums, self.pass_bytes // FEW_RUNS))

    def partial(self, slabs: range, block: Block) -> Partial:
        record, d = ReadStats(), self.block_rows
        sums = {name: np.zeros((d, d)) for name in SUMS} | {GAPPY: np.zeros((1, d))}
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                height, count = strip_rows(2 * d, np.float64), rows.stop - rows.start
                for start in range(0, count, height):
                    self._add(sums, tile, slice(start, min(start + height, count)), height)
        return finite_partial(sums, self.reader, slabs, record)

    def _add(self, sums: Sums, tile: Any, part: slice, height: int) -> None:
        assert self.view.shift is not None
        d, rows = self.block_rows, part.stop - part.start
        values, there = (scratch(name, (height, d), np.float64)[:rows] for name in ("of pairs", "there"))
        for columns, stored in tile:
            np.subtract(
                stored[part], self.view.shift[columns], out=values[:, columns], dtype=np.float64, casting="unsafe"
            )
        gaps = np.isnan(values)
        sums[GAPPY] += int(gaps.any(axis=1).sum())
        values[gaps] = 0.0
        np.copyto(there, ~gaps)
        product = scratch("pairs", (d, d), np.float64)
        for name, left, right in (("products", values, values), ("totals", values, there), ("counts", there, there)):
            sums[name] += np.matmul(left.T, right, out=product)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return split_rows(stacked, dict.fromkeys(SUMS, self.block_rows) | {GAPPY: 1})

    def finish(self, total: Partial, block: Block) -> Block:
        products, totals, counts = (total.sums[name] for name in SUMS)
        columns, used = self._columns(total.sums), np.ones(self.block_rows)
        if self.view.column_weight is not None:
            used = np.sqrt(self.view.column_weight)
        if self.scaled:
            used = used / columns.scale
        used = np.where(np.diagonal(counts) > 0, used, 0.0)  # a column without any value counts as constant
        if not used.any():
            raise nothing_there(self.reader.where)
        least = self._require_pairs(counts, used > 0)
        counts = np.maximum(counts, 1.0)
        means = totals / counts
        matrix = products / counts - means * means.T
        matrix *= np.outer(used, used)
        matrix = (matrix + matrix.T) / 2
        values, vectors = np.linalg.eigh(matrix)
        negative = np.maximum(-values, 0.0)
        if negative[0] > ROUNDING * len(values) * abs(values[-1]):
            matrix = (vectors * np.maximum(values, 0.0)) @ vectors.T
            matrix = (matrix + matrix.T) / 2
        image = matrix @ block
        if self.whole is None:
            return image
        facts = np.zeros(self.block_rows)
        facts[: len(FACTS)] = [negative.sum(), negative[0], np.trace(matrix), least][: len(facts)]
        absent = {"absent": self.reader.shape[0] - np.diagonal(total.sums["counts"]), "rows_with": total.sums[GAPPY][0]}
        moments = [
            *of_gaps(columns, absent),
            np.broadcast_to(-1.0 if columns.error is None else columns.error, len(used)),
        ]
        return np.concatenate([matrix, image, facts[:, None], np.transpose(moments)], axis=1)

    def _columns(self, sums: Sums) -> ColumnStatistics:
        """Compute the statistics of columns from the sums of each column with itself."""
        assert self.view.shift is not None
        (squares, totals, counts), rows = (np.diagonal(sums[name]) for name in SUMS), self.reader.shape[0]
        away = totals / np.maximum(counts, 1.0)
        found = {"column_mean": self.view.shift + away, "column_m2": squares - totals * away}
        found["column_observed"] = np.where(counts < rows, counts / rows, 1.0)
        return ColumnStatistics.of(found, rows, sparse=False, lost=relative(rows) * counts * away**2)

    def apart(self, product: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The matrix, its product and the column of facts; and the moments of columns by name."""
        moments = dict(zip(OF_GAPS, product[:, -len(OF_GAPS) :].T.copy(), strict=True))
        known = {name: values for name, values in moments.items() if name != "column_error" or values[0] >= 0}
        return product[:, : -len(OF_GAPS)], known

    def _require_pairs(self, counts: np.ndarray, used: np.ndarray) -> int:
        """The least number of rows of a pair of columns; raises BadInputError where that is none."""
        seen = np.where(np.outer(used, used), counts, np.inf)
        at = int(np.argmin(seen))
        i, j = divmod(at, len(seen))
        least = int(seen[i, j])
        if least >= LEAST_PAIRS:
            return least
        pairs = int((np.triu(seen) < LEAST_PAIRS)[np.triu_indices(len(seen))].sum())
        rows = "no row has" if least == 0 else "one row alone has"
        both = f"column {i}" if i == j else f"both column {i} and column {j}"
        raise BadInputError(
            f"{rows} a value in {both} of {self.reader.where} (counted from 0; {pairs} such "
            f"pair{'s' * (pairs != 1)}), so their covariance is unknown: leave columns out, or use missing = 'em', "
            "whose model needs no row that has both"
        )

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block, and of what is made of the sums."""
        d = self.block_rows
        strip = 3 * strip_rows(2 * d, np.float64) * d * 8
        return int(self.reader.buffer_bytes) + strip + (2 * len(SUMS) + FINISHING) * d * d * 8

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(len(SUMS) * self.block_rows, self.block_rows, runs)
