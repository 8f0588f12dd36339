"""Rounds of Algorithm 1 of Wang and Anandkumar (2016): L columns, the best of them, deflation, and again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npmdask.algorithms.tensor.components import Components, TensorState
from npmdask.algorithms.tensor.fit import fitted
from npmdask.algorithms.tensor.joint import CLEAR, Joint
from npmdask.algorithms.tensor.search import Sight, advanced, deflated, fresh, nearest, put, seen, watched
from npmdask.numerics.subspaces import Block


@dataclass(frozen=True, kw_only=True)
class Rounds(Joint):
    """One component a round: after ``iterations`` power steps, or once the best column is a fixed point."""

    def held(self, state: TensorState) -> int:
        """Components in the block, before the columns: none, until all of them are."""
        return self.target_rank if state.stage == "joint" else 0

    def absorbed(self, state: TensorState, block: Block, released: Block) -> TensorState:
        """Line 4 for all columns, on T without the components of the rounds before; line 5 where the round ends."""
        if state.stage == "joint":
            return self.improved(state, block, released)
        m, parts = state.count, state.components
        vectors, weights = parts.vectors[:, :m], parts.weights[:m]
        fit = fitted(vectors, parts.products[:, :m], self.order, weights)
        sight = seen(deflated(released, block, vectors, weights, self.order), block)
        state = self.with_norms(state, fit, sight.products[:, state.columns.ages == 0])
        columns = watched(state.columns, sight)
        best = int(np.argmax(self.sizes(sight.scores)))
        if self._ends(state, sight, best):
            return self._boosted(replace(state, columns=columns), released, sight, best)
        nowhere = bool((sight.relative > CLEAR).all())
        if nowhere and self.iterations is None and self.silent(state, sight, parts.norms[:m]):
            return self.begun(state, block, sight)
        onward = advanced(columns, sight, self.order, shifted=self.iterations is None)
        return replace(state, iteration=state.iteration + 1, columns=onward)

    def _ends(self, state: TensorState, sight: Sight, best: int) -> bool:
        if self.iterations is not None:
            return state.iteration == self.iterations
        near = sight.residuals[best] <= self.tol * abs(sight.scores[best])
        return bool(near) or state.iteration >= self.most_iterations

    def _boosted(self, state: TensorState, released: Block, sight: Sight, best: int) -> TensorState:
        """Line 5: the column of largest score, with the score and the residual of that very column; a new round."""
        m, only = state.count, slice(best, best + 1)
        vector = state.columns.block[:, only]
        landed = int((nearest(state.columns.block, vector) >= 0).sum())
        part = Components(
            vectors=vector,
            products=released[:, only],
            trial=vector,
            weights=sight.scores[only],
            norms=sight.residuals[only],
            sharpest=state.columns.sharpest[only],
            landed=np.array([float(landed)]),
            found_at=np.array([float(state.step)]),
        )
        return replace(
            state,
            stage="search" if m + 1 < self.target_rank else "joint",
            count=m + 1,
            iteration=0,
            columns=fresh(self.starts(state, m + 1)),
            components=put(state.components, m, part),
            lost=state.lost + self.width - landed,
        )
