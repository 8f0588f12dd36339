"""The online robust tensor power method (Wang and Anandkumar 2016, Algorithm 2): each row once, memory O(d (k + L)).

It finds the components of the third moment of the rows, ``E x (x) x (x) x = sum_i weight_i v_i (x) v_i (x) v_i``,
which is never formed. Algorithm 2 of the paper, line by line (n: ``block_rows``, R: ``iterations``, L: ``restarts``)::

    2.  for i = 1 to k:
    3.      draw u_0 of all L restarts, uniform on the sphere           OnlineTensorPower._draw_starts
    4.      for t = 0 to R - 1:
    6.          sum (x^T u_t)^2 x / n over the next n rows              OnlineTensorPower._add_rows
    7.          less sum_j weight_j (v_j^T u_t)^2 v_j, j < i            npmdask.tensors.components.deflated
    8.          over its norm                                           OnlineTensorPower._finish_block
    10.     the restart of the largest score T(u, u, u) is v_i          OnlineTensorPower._add_component

Where this differs from what is printed:

* Line 7 prints v_j^T u~_{t+1}, the sum itself, which is not of norm 1: its squares take away far too little, and with
  weights (.4, .3, .2, .1) the first component is found four times. The current iterate u_t is what the tensor less
  ``weight_j v_j (x) v_j (x) v_j`` asks for. (Line 6 prints x_i for x_l, and Theorem 3.1 min for max.)
* The printed score belongs to u_{R-1} and is of the rows that made u_R. Here one more block of n rows scores u_R, the
  vector that is returned: k (R + 1) n rows find k components, and a score is not flattered by its own rows.
* Every component goes on being refined by all rows after those that found it, while others are searched and after
  the last (``refine``): it is the mean of T(I, v, v), less those before, over all these blocks. v moves meanwhile; but
  where the v_i are orthonormal, T(I, v, v) does not change to first order with v, so the error falls with all rows
  and not with the n of one block. What is taken away in line 7 is right from block to block: as printed, the error of
  a weight that n rows scored stays in the tensor, and is found as a component where it is larger than the next.

The theorem is for orthonormal v_i. Other rows are whitened first: with the k leading pairs (U, S) of their second
moment, each row x becomes S^(-1/2) U^T x (rows of k numbers), and v_i is the direction U S^(1/2) v_i; the
second moment must be known from other rows, for example from an earlier stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log
from typing import ClassVar

import numpy as np

from npmdask.core.algorithms.base import OfAnyBatch, StreamInfo, StreamResult, checked_batch, require_rank
from npmdask.core.numerics.subspaces import Block
from npmdask.errors import BadInputError, require
from npmdask.tensors.components import deflated, random_units, scores_of, unit_columns

LARGEST_SQUARE = 1e90  # of the norms of a batch: sixth powers stay far from overflow
PIECE_ROWS = 64  # sums are cut here, whatever the batches: these rows wait at most
ITERATIONS = 10


def default_restarts(k: int) -> int:
    """Return L = Theta(k log k), and at least 10."""
    return max(10, ceil(2 * k * log(k)) + 10)


@dataclass(frozen=True, kw_only=True)
class OnlineTensorState:
    """State of the method: the block that is multiplied, the sums over the block under way, and the components.

    Multiplied are the components found so far and, up to the last, L iterates (d x (j + L)). Sums over the block under
    way are of (x^T u)^2 x (the same shape) and of (x^T u)^6; rows wait for a whole piece (m x d). Of the components:
    vectors and means of T(I, v, v) less those before (d x j), means and mean squares of the blocks' scores, the
    variances of (x^T v)^3 within a block (j).
    """

    key: int  # of the random starts
    step: int  # blocks that are complete
    rows: int  # rows of these
    filled: int  # rows summed of the block under way
    block: Block
    sums: Block
    sixths: np.ndarray
    pending: Block
    vectors: Block
    weights: np.ndarray
    squares: np.ndarray
    variances: np.ndarray
    images: Block


@dataclass(frozen=True, kw_only=True)
class OnlineTensorPower(OfAnyBatch[OnlineTensorState]):
    """The online tensor power method for ``target_rank`` (k) components of the third moment of the rows.

    Parameters
    ----------
    target_rank : k, how many components are wanted.
    block_rows : n, rows of an iteration, at least 2. Few rows lose weak components in the noise: the theorem asks for
        max(sigma^2 d / error^2, sigma^2 d^2 / weight_k^2) up to logarithms.
    restarts : L, random starts that share the rows of an iteration: they cost time and d numbers each, but no rows.
    iterations : R, at least 1; log(weight_1 d / error) up to a constant.
    refine : whether rows go on refining what was found; False: as printed, and rows after the last search change
        nothing.

    The same rows give the same bits, whatever batches they come in. Signs are those of positive weights.
    Neighbours: none, not private.
    Guarantee: O(eps) from n rows an iteration as of Theorem 3.1 (Wang and Anandkumar 2016; max for its min).
    Needs: independent components of positive third moment, k <= d, n >= 2; else BadInputError.
    Cost: k (R + 1) n rows, O(d (L + k)) for each; O(d (L + k)) memory.
    """

    name: ClassVar[str] = "online-tensor-power"
    kept: ClassVar[type[OnlineTensorState]] = OnlineTensorState
    moment: ClassVar[int] = 3

    target_rank: int
    block_rows: int
    restarts: int
    iterations: int = ITERATIONS
    refine: bool = True

    def __post_init__(self) -> None:
        require(
            self.block_rows >= 2,
            f"block_rows = {self.block_rows}: an iteration takes at least two rows, and thousands to be of use",
        )
        require(
            self.restarts >= 1, f"restarts = {self.restarts}: at least one start is needed, 10 for a few components"
        )
        require(self.iterations >= 1, f"iterations = {self.iterations}: at least one is needed, {ITERATIONS} are good")

    @property
    def search_rows(self) -> int:
        """k (R + 1) n: rows until the last component is found."""
        return self.target_rank * (self.iterations + 1) * self.block_rows

    def init(self, d: int, *, rng: np.random.Generator) -> OnlineTensorState:
        """Before the first row, with the starts of the first component."""
        require_rank(self.target_rank, d)
        nothing = np.zeros((d, 0))
        state = OnlineTensorState(
            key=int(rng.integers(2**62)),
            step=0,
            rows=0,
            filled=0,
            block=nothing,
            sums=nothing,
            sixths=np.zeros(0),
            pending=np.zeros((0, d)),
            vectors=nothing,
            weights=np.zeros(0),
            squares=np.zeros(0),
            variances=np.zeros(0),
            images=nothing,
        )
        return self._draw_starts(state)

    def update(self, state: OnlineTensorState, batch: np.ndarray) -> tuple[OnlineTensorState, StreamInfo]:
        """Lines 2 to 10 for all rows of the batch; rows that make no whole piece wait."""
        rows = _require_moderate(checked_batch(batch, len(state.block)))
        before, start = state.step, 0
        while start < len(rows):
            whole = min(PIECE_ROWS, self.block_rows - state.filled)
            part = rows[start : start + whole - len(state.pending)]
            start += len(part)
            piece = np.concatenate([state.pending, part])  # a copy: the same layout, whatever the batch was
            state = self._add_rows(state, piece) if len(piece) == whole else replace(state, pending=piece)
        info = StreamInfo(
            rows=len(rows),
            rank=len(state.weights),
            steps=state.step - before,
            batch_rows=self.block_rows if state.step > before else None,
        )
        return state, info

    def _add_rows(self, state: OnlineTensorState, piece: Block) -> OnlineTensorState:
        """Line 6 for the rows of a piece, all restarts at once."""
        along = piece @ state.block
        squares = along * along
        sums = piece.T @ squares
        sums += state.sums
        squares *= along
        state = replace(
            state,
            filled=state.filled + len(piece),
            pending=np.zeros((0, piece.shape[1])),
            sums=sums,
            sixths=state.sixths + np.einsum("nl,nl->l", squares, squares),
        )
        return self._finish_block(state) if state.filled == self.block_rows else state

    def _finish_block(self, state: OnlineTensorState) -> OnlineTensorState:
        """Lines 7 to 10 of a block that is complete; what was found before is refined by the same rows."""
        found, product = len(state.weights), state.sums / self.block_rows
        variances = np.maximum(state.sixths / self.block_rows - scores_of(product, state.block) ** 2, 0.0)
        starts = state.block[:, found:]
        searched = deflated(product[:, found:], starts, state.vectors, state.weights)
        state = self._refined(state, product[:, :found], variances[:found]) if found and self.refine else state
        if found < self.target_rank and state.step % (self.iterations + 1) == self.iterations:
            state = self._add_component(state, starts, searched, variances[found:])
        else:  # after the last there are no starts
            state = self._next_block(state, unit_columns(searched, instead=starts))
        return replace(state, step=state.step + 1, rows=state.rows + self.block_rows)

    def _add_component(
        self, state: OnlineTensorState, starts: Block, product: Block, variances: np.ndarray
    ) -> OnlineTensorState:
        """Line 10: the restart that scores best on rows that none of them was made of; and line 3 of the next."""
        scores = scores_of(product, starts)
        best = int(np.argmax(scores))
        column = slice(best, best + 1)
        state = replace(
            state,
            vectors=np.hstack([state.vectors, starts[:, column]]),
            weights=np.append(state.weights, scores[column]),
            squares=np.append(state.squares, scores[column] ** 2),
            variances=np.append(state.variances, variances[column]),
            images=np.hstack([state.images, product[:, column]]),
        )
        return self._draw_starts(state)

    def _draw_starts(self, state: OnlineTensorState) -> OnlineTensorState:
        """Line 3, of as many starts as are wanted now."""
        d, found = len(state.vectors), len(state.weights)
        count = self.restarts if found < self.target_rank else 0
        return self._next_block(state, random_units(d, count, seed=state.key, place=found))

    def _next_block(self, state: OnlineTensorState, starts: Block) -> OnlineTensorState:
        """Ready for the next block."""
        block = np.hstack([state.vectors, starts])
        return replace(state, block=block, filled=0, sums=np.zeros_like(block), sixths=np.zeros(block.shape[1]))

    def _refined(self, state: OnlineTensorState, product: Block, variances: np.ndarray) -> OnlineTensorState:
        """Every component by the mean of T(I, v, v) less those before it, over all blocks since it was found.

        Less those after it, too, the error of a weight would hold itself up: it is found as a component of its own,
        and each of the two takes away what the other is too large.
        """
        shares = state.weights[:, None] * (state.vectors.T @ state.vectors) ** 2
        image = product - state.vectors @ np.triu(shares, 1)
        share = 1 / self._blocks(state.step + 1, len(state.weights))
        images, scores = state.images + share * (image - state.images), scores_of(image, state.vectors)
        return replace(
            state,
            images=images,
            vectors=unit_columns(images, instead=state.vectors),
            weights=state.weights + share * (scores - state.weights),
            squares=state.squares + share * (scores**2 - state.squares),
            variances=state.variances + share * (variances - state.variances),
        )

    def _blocks(self, step: int, found: int) -> np.ndarray:
        """Blocks that each of the components was scored by, after ``step`` of them."""
        return step + 1 - (self.iterations + 1) * np.arange(1, found + 1)

    def finalize(self, state: OnlineTensorState) -> StreamResult:
        """The components found so far, the heaviest first, and what is known of each.

        ``facts``: ``status`` of all k, "found", "surplus" (a weight that noise would have, too) or "open" (not searched
        to the end), and the ``standard_errors`` of the weights. Raises BadInputError before the first is found.
        """
        found = len(state.weights)
        each = (self.iterations + 1) * self.block_rows
        if not found:
            raise BadInputError(
                f"{state.rows + state.filled + len(state.pending)} rows find no component, the first takes {each}: "
                "stream more, or choose fewer block_rows or iterations"
            )
        errors = self._standard_errors(state)
        order = np.argsort(-state.weights, kind="stable")
        doubtful = self._is_doubtful(state, errors)[order]
        status = ["surplus" if doubt else "found" for doubt in doubtful] + ["open"] * (self.target_rank - found)
        return StreamResult(
            vectors=np.ascontiguousarray(state.vectors[:, order]),
            values=state.weights[order],
            rows=state.rows,
            facts={"status": status, "standard_errors": errors[order].tolist()},
            said=_outcome_text(status, each),
        )

    def _standard_errors(self, state: OnlineTensorState) -> np.ndarray:
        """Compute the standard errors of the weights.

        They follow from the variance within the blocks, or, if that is larger, from that between them, which shows what
        is not settled yet.
        """
        blocks = self._block_counts(state)
        within = state.variances / (self.block_rows - 1) / blocks
        between = np.maximum(state.squares - state.weights**2, 0.0) / np.maximum(blocks - 1, 1)
        return np.sqrt(np.maximum(within, between))

    def _is_doubtful(self, state: OnlineTensorState, errors: np.ndarray) -> np.ndarray:
        """Weights within three standard errors of zero, and what the largest of L scores of noise, which the first
        block's is, adds to a mean."""
        return state.weights <= (3 + np.sqrt(2 * log(self.restarts) / self._block_counts(state))) * errors

    def _block_counts(self, state: OnlineTensorState) -> np.ndarray:
        """Blocks that the weight of each component is the mean of."""
        found = len(state.weights)
        return self._blocks(state.step, found) if self.refine else np.ones(found, dtype=int)


def _require_moderate(rows: Block) -> Block:
    """The rows, if sixth powers of their size can be added up. Raises BadInputError."""
    require(
        float(np.vdot(rows, rows)) <= LARGEST_SQUARE,
        f"rows of values up to {np.abs(rows).max():.0e}: their third moment is too large to be added up; divide all "
        "rows by the same number, or leave out those that are wrong",
    )
    return rows


def _outcome_text(status: list[str], each: int) -> str:
    """Say in words what differs from what users may expect."""
    k, found, surplus = len(status), status.count("found"), status.count("surplus")
    said = [f"{found} of {k} components are found"]
    if surplus:
        said.append(f"{surplus} {'has' if surplus == 1 else 'have'} a weight that noise would have, too")
    if "open" in status:
        said.append(f"{status.count('open')} still open: each takes {each} rows")
    return ", ".join(said)
