"""The streaming power method (Hardt and Price 2014, Figure 2; Balcan et al. 2016, Algorithm 3), with a memory.

Figure 2 of the paper, line by line (T = floor(n / L): ``n`` where the paper prints ``m``)::

    Input: stream z_1, z_2, ..., number of blocks L, dimension p
    1. Choose X_0, a random d x p matrix with orthonormal columns        StreamPower.init
    2. For l = 1 to L:
       (a) Y_l = sum of z z^T X_{l-1} over the T rows of block l         StreamPower._absorb
       (b) Let Y_l = X_l R_l be a QR-factorisation of Y_l                StreamPower._close
    Output: X_L                                                          StreamPower.finalize

The sum is over exactly T rows whatever batches they come in, and rows of a block that is not complete count for
nothing. The intermediate rank q (k <= q <= p) of Balcan et al. is in the theorem, not in the algorithm: with p > k the
error falls by s_{q+1} / s_k.

With ``memory`` f > 0 the blocks before count too: Y_l = (M_l) X_{l-1}, M_l = block sum + f M_{l-1}, where M_{l-1} is
held as X C X^T, the Nystrom approximation by what was last multiplied (f = 1 is history PCA of Yang, Hsieh and Wang
2018, whose error falls with all rows and not with those of the last block).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from npmdask.core.algorithms.base import (
    OfAnyBatch,
    StreamInfo,
    StreamResult,
    checked_batch,
    require_memory,
    require_rank,
)
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, add_product, orth, random_orthonormal
from npmdask.errors import BadInputError, require
from npmdask.streaming.algorithms.low_rank_update import leading_eigenpairs


@dataclass(frozen=True, kw_only=True)
class StreamPowerState:
    """X_l (d x p), C with M_l ~ X_l C X_l^T (p x p) and the rows of M_l, or what they weigh together; the block under
    way (its sum is d x p, 0 x p before its first row)."""

    step: int  # blocks that are complete
    rows: int  # rows of these
    filled: int  # rows in the block under way
    weight: float
    basis: Block
    core: Block
    partial: Block
    filled_weight: float | None = None  # of the rows in it, once a row was weighted


@dataclass(frozen=True, kw_only=True)
class StreamPower(OfAnyBatch[StreamPowerState]):
    """The streaming power method for the ``target_rank`` (k) leading directions.

    Parameters
    ----------
    target_rank : k, how many directions are wanted.
    iteration_rank : p >= k, columns iterated; p = 2 k makes a random start good (Hardt and Price, Lemma 2.5).
    block_rows : T, rows of a block. Many rows make little noise, many blocks make many iterations: floor(n / L).
    memory : what one block leaves of the weight of those before it: 0 as printed, 1 forgets nothing, between them
        old data fade (a stream that drifts).

    Notes
    -----
    Neighbours: none, not private.
    Guarantee: sine <= eps for n rows as of Theorem 3.2 (Hardt and Price; with q, Theorem 4.2 of Balcan et al.): it
        falls as n^(-1/2).
    Needs: independent rows of finite variance, p >= k, at least one complete block; else BadInputError.
    Cost: every row once, O(d p) for it; O(d p^2) a block; O(d p) memory.
    """

    name: ClassVar[str] = "spm"
    kept: ClassVar[type[StreamPowerState]] = StreamPowerState
    moment: ClassVar[int] = 2

    target_rank: int
    iteration_rank: int
    block_rows: int
    memory: float = 0.0

    def __post_init__(self) -> None:
        require_memory(self.memory, least_open=False)
        require(self.block_rows >= 1, f"block_rows = {self.block_rows}: a block has at least one row")
        require(
            1 <= self.target_rank <= self.iteration_rank,
            f"iteration_rank = {self.iteration_rank} is less than target_rank = {self.target_rank}: twice that is good",
        )

    def init(self, d: int, *, rng: np.random.Generator) -> StreamPowerState:
        """Line 1: X_0 random orthonormal."""
        p = self.iteration_rank
        require_rank(p, d, "iteration_rank")
        return StreamPowerState(
            step=0,
            rows=0,
            filled=0,
            weight=0.0,
            basis=random_orthonormal(d, p, rng),
            core=np.zeros((p, p)),
            partial=np.zeros((0, p)),
        )

    def update(
        self, state: StreamPowerState, batch: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[StreamPowerState, StreamInfo]:
        """Line 2 for all rows of the batch.

        ``weights`` (n): how much each row counts, by whose root it is multiplied already.
        """
        rows = checked_batch(batch, len(state.basis))
        before, start = state.step, 0
        while start < len(rows):
            here = slice(start, min(start + self.block_rows - state.filled, len(rows)))
            weight = None if weights is None else float(weights[here].sum())
            state = self._absorb(state, rows[here], weight)
            start = here.stop
        info = StreamInfo(
            rows=len(rows),
            rank=self.iteration_rank,
            steps=state.step - before,
            batch_rows=self.block_rows if state.step > before else None,
        )
        return state, info

    def _absorb(self, state: StreamPowerState, part: Block, weight: float | None) -> StreamPowerState:
        """Line 2a for rows of one block, of this weight together."""
        if weight is not None or state.filled_weight is not None:
            before = float(state.filled) if state.filled_weight is None else state.filled_weight
            state = replace(state, filled_weight=before + (len(part) if weight is None else weight))
        partial = part.T @ (part @ state.basis)
        if state.filled:
            partial += state.partial
        state = replace(state, partial=partial, filled=state.filled + len(part))
        return self._close(state) if state.filled == self.block_rows else state

    def _close(self, state: StreamPowerState) -> StreamPowerState:
        """Line 2b: QR; and the Nystrom approximation Y H^+ Y^T, H = X^T Y, of what was multiplied, as X_l C X_l^T."""
        product = state.partial  # fresh from _absorb, shared with no one: changed in place
        if self.memory:
            add_product(product, state.basis, self.memory * state.core)
        basis = orth(product, generator(0, "completion", state.step))
        inner = state.basis.T @ product
        values, rotation = np.linalg.eigh((inner + inner.T) / 2)
        kept = values > 8 * len(product) * np.finfo(np.float64).eps * max(values[-1], 0.0)
        half = (basis.T @ product) @ (rotation[:, kept] / np.sqrt(values[kept]))
        return StreamPowerState(
            step=state.step + 1,
            rows=state.rows + self.block_rows,
            filled=0,
            weight=self.memory * state.weight
            + (self.block_rows if state.filled_weight is None else state.filled_weight),
            filled_weight=None if state.filled_weight is None else 0.0,
            basis=basis,
            core=half @ half.T,
            partial=np.zeros((0, self.iteration_rank)),
        )

    def finalize(self, state: StreamPowerState) -> StreamResult:
        """The k leading pairs of X C X^T. Raises BadInputError before the first block is complete."""
        if not state.step:
            raise BadInputError(
                f"{state.filled} rows are too few for a block of {self.block_rows}: stream more, or choose fewer "
                "block_rows"
            )
        pairs = leading_eigenpairs(state.basis, state.core / state.weight, self.target_rank)
        return StreamResult(vectors=pairs.vectors, values=pairs.values, rows=state.rows)
