"""The third moment of words in white coordinates, held: ``M3(W, W, W)``, m x m x m, from one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.numerics.moments import lda
from npmdask.numerics.moments.whitening import require_rows
from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import Partial, Sums, least_run, pending_sums, split_rows
from npmdask.operators.sparse import row_strips
from npmdask.operators.word_moments import (
    ByDocuments,
    WordSums,
    over_words,
    require_alpha0,
    strip_height,
    words_of,
)
from npmdask.storage.readers.sparse import CsrReader

COLUMNS = 32  # a run reads four times a sum with so many columns: see operators._protocol.COLUMN_BYTES


@dataclass(frozen=True, kw_only=True)
class WhitenedTriples(ByDocuments):
    """``M3(W, W, W)`` as its (m m) x m matrix; the block is not used. O(nnz m + n m^3 / 3 + d m^3) flops.

    Of the terms with a repeated word only ``G = C^T (w3 C W)`` (d x m) is summed over the documents: they are
    ``sum_i W_i (x) W_i (x) G_i`` in its three orders, formed once, at the end. No d x m^2 is held, nor anything of m^2
    for each document: the sum is of m^2 + m + d rows and m columns.

    Parameters
    ----------
    sums : of :class:`WordTotals`.
    whitening : W (d x m).
    alpha0 : of LDA; 0 for a single topic.
    """

    reader: CsrReader
    sums: WordSums
    whitening: Block
    alpha0: float = 0.0

    def __post_init__(self) -> None:
        require_alpha0(self.alpha0)
        require_rows(self.whitening, self.reader.shape[1])

    @property
    def side(self) -> int:
        """m."""
        return int(self.whitening.shape[1])

    @property
    def block_rows(self) -> int:
        return self.side

    @property
    def run_bytes(self) -> int:
        return least_run(self._rows * -(-self.side // COLUMNS))

    def finish(self, total: Partial, block: Block) -> Block:
        m, white, sums = self.side, self.whitening, self.sums
        whole = {name: values / sums.total for name, values in self._whole(total, block).items()}
        different = _mirrored(whole["cubes"])
        second = whole["pairs"] - white.T @ (sums.second[:, None] * white)
        repeated = _weighted_cube(white, whole["repeated"] - 2 / 3 * sums.third[:, None] * white)
        third = different - lda.in_three_orders(repeated)
        return lda.cube(third, second, white.T @ sums.mean, self.alpha0).reshape(m * m, m)

    @property
    def _rows(self) -> int:
        return self.side**2 + self.side + int(self.reader.shape[1])

    def _nothing(self, block: Block) -> Sums:
        m = self.side
        return {"cubes": np.zeros((m, m, m)), "pairs": np.zeros((m, m)), "repeated": np.zeros(self.whitening.shape)}

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        m = self.side
        sums = split_rows(stacked, {"cubes": m * m, "pairs": m, "repeated": len(self.whitening)})
        return sums | {"cubes": sums["cubes"].reshape(m, m, m)}

    def _add(self, sums: Sums, documents: csr_matrix, block: Block) -> None:
        m = self.side
        cubes = sums["cubes"]
        for part in row_strips(documents, np.float64, strip_height(len(self.whitening), 3 * m)):
            lengths, images = words_of(part), part @ self.whitening
            weighted = over_words(lengths, 3, self.sums.half_length)[:, None] * images
            for a in range(m):  # entries a <= b, c: the others are the same
                cubes[a, a:, a:] += (weighted[:, a : a + 1] * images[:, a:]).T @ images[:, a:]
            sums["pairs"] += images.T @ (over_words(lengths, 2, self.sums.half_length)[:, None] * images)
            sums["repeated"] += part.T @ weighted

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``); no block is used."""
        m, d = self.side, len(self.whitening)
        return self._task_bytes(runs, strip_height(d, 3 * m) * (3 * m + 4) + d * m, 2 * self._rows * m)

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(self._rows, self.side, runs)


def _mirrored(cube: np.ndarray) -> np.ndarray:
    """A symmetric m x m x m of which the entries with a first index that is the least are given."""
    whole = np.empty_like(cube)
    for a in range(len(cube)):
        part = cube[a, a:, a:]
        part = (part + part.T) / 2  # equal but for rounding
        whole[a, a:, a:] = whole[a:, a, a:] = whole[a:, a:, a] = part
    return whole


def _weighted_cube(white: Block, weights: Block) -> np.ndarray:
    """``sum_i W_i (x) W_i (x) G_i`` (m x m x m) of the rows of two d x m matrices, without a d x m^2."""
    return np.stack([(white[:, a : a + 1] * white).T @ weights for a in range(white.shape[1])])
