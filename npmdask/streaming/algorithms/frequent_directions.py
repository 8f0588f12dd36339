"""Frequent Directions (Liberty 2013; Ghashami, Liberty, Phillips and Woodruff 2016), by batches: a baseline.

The sketch B (at most 2 l rows) takes rows until it is full; then its l leading singular values are kept, each square
less delta = the (l + 1)-th. A^T A - B^T B lies between 0 and the sum of all delta, which is at most
||A - A_k||_F^2 / (l + 1 - k) for every k <= l: a guarantee for any rows in any order, where the other algorithms here
need rows that are drawn from one distribution. A batch of any size is taken at once and shrunk once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np

from npmdask.core.algorithms.base import (
    OfAnyBatch,
    StreamInfo,
    StreamResult,
    checked_batch,
    require_memory,
    require_rank,
    require_rows,
)
from npmdask.core.numerics.subspaces import Block, add_product, fix_signs
from npmdask.errors import require
from npmdask.streaming.algorithms.low_rank_update import completed_basis, gram_of_sides, updated_eigen


@dataclass(frozen=True, kw_only=True)
class SketchState:
    """B (m x d, m <= 2 l), what was shed (the sum of all delta), and the rows of B."""

    step: int
    rows: int
    weight: float
    shed: float
    sketch: Block


@dataclass(frozen=True, kw_only=True)
class FrequentDirections(OfAnyBatch[SketchState]):
    """Frequent Directions for the ``target_rank`` (k) leading directions.

    Parameters
    ----------
    target_rank : k.
    sketch_rows : l >= k, rows that survive a shrinking; the error falls as 1 / (l + 1 - k).
    memory : what a batch leaves of the weight of those before it.

    Notes
    -----
    Neighbours: none, not private.
    Guarantee: 0 <= A^T A - B^T B <= ||A - A_j||_F^2 / (l + 1 - j) for every j <= l, whatever the rows.
    Needs: k <= l, k <= d; else BadInputError.
    Cost: O(d l) a row on average; O(d l) memory.
    """

    name: ClassVar[str] = "frequent-directions"
    kept: ClassVar[type[SketchState]] = SketchState
    moment: ClassVar[int] = 2

    target_rank: int
    sketch_rows: int
    memory: float = 1.0

    def __post_init__(self) -> None:
        require_memory(self.memory)
        require(
            1 <= self.target_rank <= self.sketch_rows,
            f"sketch_rows = {self.sketch_rows} is less than target_rank = {self.target_rank}: four times that is good",
        )

    def init(self, d: int, *, rng: np.random.Generator) -> SketchState:
        """An empty sketch: nothing is random here."""
        require_rank(self.target_rank, d)
        return SketchState(step=0, rows=0, weight=0.0, shed=0.0, sketch=np.zeros((0, d)))

    def update(
        self, state: SketchState, batch: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[SketchState, StreamInfo]:
        """Append the rows, and shrink when there are more than 2 l.

        ``weights`` (n): how much each row counts, by whose root it is multiplied already.
        """
        rows = checked_batch(batch, state.sketch.shape[1])
        full = len(state.sketch) + len(rows) > 2 * self.sketch_rows
        sketch, delta = self._shrink(state.sketch, rows) if full else (self._append(state.sketch, rows), 0.0)
        after = SketchState(
            step=state.step + 1,
            rows=state.rows + len(rows),
            weight=self.memory * state.weight + (len(rows) if weights is None else float(weights.sum())),
            shed=self.memory * state.shed + delta,
            sketch=sketch,
        )
        return after, StreamInfo(rows=len(rows), rank=len(sketch), steps=int(full), batch_rows=len(rows))

    def _append(self, sketch: Block, rows: Block) -> Block:
        appended: Block = np.concatenate([sketch, rows])
        appended[: len(sketch)] *= sqrt(self.memory)
        return appended

    def _shrink(self, sketch: Block, rows: Block) -> tuple[Block, float]:
        """B' with B'^T B' = the part above delta of what the appended sketch represents, from the Gram matrix of its
        rows (they are not copied): its rounding is of the size eps ||B||^2, and so is what the guarantee is about."""
        faded, j = sqrt(self.memory), len(sketch)
        values, rotation = np.linalg.eigh(gram_of_sides(sketch.T, faded, rows, 1.0, rows @ sketch.T))
        values, rotation = np.maximum(values[::-1], 0.0), rotation[:, ::-1]
        delta = float(values[self.sketch_rows])
        kept = values[: self.sketch_rows] > delta
        lead = values[: self.sketch_rows][kept]
        turn = rotation[:, : self.sketch_rows][:, kept] * np.sqrt(1 - delta / lead)
        turned = (faded * turn[:j]).T @ sketch
        add_product(turned.T, rows.T, turn[j:])
        return turned, delta

    def finalize(self, state: SketchState) -> StreamResult:
        """The k leading right singular vectors of B. Raises BadInputError before the first row."""
        require_rows(state.rows)
        k, (j, d) = self.target_rank, state.sketch.shape
        found = updated_eigen(np.zeros((d, 0)), np.zeros(0), state.sketch, 1.0, np.zeros((j, 0)))
        count = min(k, len(found.values))
        values, vectors = np.zeros(k), found.leading(count)
        vectors *= fix_signs(vectors)
        values[:count] = found.values[:count] / state.weight
        vectors = completed_basis(vectors, k) if count < k else vectors
        return StreamResult(vectors=vectors, values=values, rows=state.rows)
