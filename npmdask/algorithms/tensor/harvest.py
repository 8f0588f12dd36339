"""Harvest: every product serves the components that are known and columns that search the tensor without them.

No round waits for its end: whatever fixed points the columns have come near are components from then on, as long as
they behave like ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npmdask.algorithms.tensor.components import SHARP, TensorState, errors_of, no_components
from npmdask.algorithms.tensor.fit import Fit, fitted, like_noise, unbiased
from npmdask.algorithms.tensor.joint import CLEAR, NEAR, PROBES, Joint
from npmdask.algorithms.tensor.search import (
    Columns,
    Sight,
    advanced,
    copies,
    deflated,
    distinct,
    fresh,
    joined,
    nearest,
    picked,
    put,
    replaced,
    seen,
    watched,
)
from npmdask.numerics.subspaces import Block

MOST_AGES = 30  # products after which a column that is not clear is given up
MOST_LET_GO = 2  # times k components that turn out to be none, and the search is over


@dataclass(frozen=True, kw_only=True)
class Harvest(Joint):
    """All distinct fixed points as soon as a column comes near them."""

    def held(self, state: TensorState) -> int:
        """Components in the block, before the columns."""
        return self.target_rank if state.stage == "joint" else state.count

    def absorbed(self, state: TensorState, block: Block, released: Block) -> TensorState:
        """One product for the components that are held and for columns that search T without them."""
        if state.stage == "joint" and not self._reopened(state, block, released):
            return self.improved(state, block, released)
        state, block, released = self._let_go(state, block, released)
        m = state.count
        held, searching = block[:, :m], block[:, m:]
        fit = fitted(held, released[:, :m], self.order)
        sight = seen(deflated(released[:, m:], searching, held, fit.weights, self.order), searching)
        columns = picked(state.columns, slice(0, searching.shape[1]))
        state = self.with_norms(state, fit, sight.products[:, columns.ages == 0])
        columns = watched(columns, sight)
        taken = self._taken(state, columns, sight, (held, released[:, :m], fit), released[:, m:])
        restless = state.let_go >= MOST_LET_GO * self.target_rank
        if restless or (not taken and self.silent(state, sight, fit.norms)):
            return self.begun(self.measured(state, held, released[:, :m], fit), searching, sight)
        return self._going(state, (block, released), columns, sight, taken)

    def _going(
        self, state: TensorState, both: tuple[Block, Block], columns: Columns, sight: Sight, taken: list[int]
    ) -> TensorState:
        """What was held and what is ``taken`` are components; the columns search on."""
        m, every = state.count, np.arange(both[0].shape[1])
        every = np.concatenate([every[:m], m + np.array(taken, dtype=int)])
        vectors, products = (np.ascontiguousarray(part[:, every]) for part in both)
        new = picked(state.components, slice(m, m + len(taken)))
        new = replace(new, sharpest=columns.sharpest[taken])
        state = replace(state, components=put(state.components, m, new))
        after = self.measured(state, vectors, products, fitted(vectors, products, self.order))
        return self._searching(after, columns, sight, vectors, len(taken))

    def _taken(
        self, state: TensorState, columns: Columns, sight: Sight, held: tuple[Block, Block, Fit], products: Block
    ) -> list[int]:
        """Columns that have come near a fixed point of their own which is neither noise nor an error of what is held.

        A score that noise as large as what is left could reach is no noise where the column converged too sharply, or
        where nothing as large is left once all columns at such points are taken together. Where nothing was taken for
        too long, the column of largest score is: line 5 of Algorithm 1.
        """
        scores, relative = self.sizes(sight.scores), sight.relative
        sure = (scores > self.noise(state)) | (columns.sharpest <= SHARP)
        ready = (relative <= np.where(sure, NEAR, CLEAR)) & (scores > errors_of(state, held[2].norms))
        falling, most = np.argsort(-scores, kind="stable"), self.target_rank - state.count
        taken = distinct(columns.block, falling[ready[falling]], held[0], most)
        if taken:
            taken = self._sifted(state, columns.block[:, taken], products[:, taken], scores, sure, taken, held)
        if not taken and state.iteration >= self.most_iterations:
            taken = distinct(columns.block, falling, held[0], 1)
        return taken

    def _sifted(
        self,
        state: TensorState,
        candidates: Block,
        products: Block,
        scores: np.ndarray,
        sure: np.ndarray,
        taken: list[int],
        held: tuple[Block, Block, Fit],
    ) -> list[int]:
        """Of the columns ``taken`` those that are still something once all are: no saddle between others, no noise."""
        m = held[0].shape[1]
        vectors = np.concatenate([held[0], candidates], axis=1)
        fit = fitted(vectors, np.concatenate([held[1], products], axis=1), self.order)
        kept = np.abs(fit.weights[m:]) >= 0.5 * scores[taken]
        left = max(state.left**2 - (fit.explained - held[2].explained), 0.0) ** 0.5
        doubtful = np.flatnonzero(~sure[taken])
        before = unbiased(left, vectors.shape[1], state.d, self.order)
        kept[doubtful] &= ~like_noise(scores[taken][doubtful], before, state.d, self.order, state.margin)
        return [number for number, keep in zip(taken, kept, strict=True) if keep]

    def _searching(self, state: TensorState, columns: Columns, sight: Sight, vectors: Block, new: int) -> TensorState:
        """One power step of the columns that search; those that have run into a component, or nowhere, start again."""
        into = nearest(columns.block, vectors)
        old = (into < 0) & (columns.ages >= MOST_AGES) & (sight.relative > CLEAR)
        probes = np.arange(len(into)) >= len(into) - (PROBES if self.squared_norm is None else 0)
        again = (into >= 0) | old | probes
        onward = replaced(advanced(columns, sight, self.order), again, self.starts(state)[:, : len(into)])
        onward = picked(onward, np.argsort(again, kind="stable"))  # cut off as components join: what has just begun
        if new:  # residuals of another tensor are not to be compared with the next
            onward = replace(onward, least=np.full(len(into), np.inf))
        landed = np.bincount(into[into >= 0], minlength=self.target_rank)
        return replace(
            state,
            stage="joint" if state.count == self.target_rank else "search",
            iteration=0 if new else state.iteration + 1,
            columns=put(state.columns, 0, onward),
            components=replace(state.components, landed=state.components.landed + landed),
            lost=state.lost + int(old.sum()),
        )

    def _reopened(self, state: TensorState, block: Block, released: Block) -> bool:
        """Whether the search goes on, because one of the k components was none."""
        full = state.count == self.target_rank
        return full and bool(self._none(state, block, released).any())

    def _none(self, state: TensorState, block: Block, released: Block) -> np.ndarray:
        """Which components were none: saddles between two, errors of one that was not yet exact, copies of another.

        The residual of a saddle and of an error falls at first, and then grows; a copy comes to lie on its original;
        and in the end all of them have no weight of their own.
        """
        m = state.count
        fit = fitted(block[:, :m], released[:, :m], self.order)
        grown = (fit.norms > state.components.norms[:m]) & (fit.norms > CLEAR * np.abs(fit.weights))
        none: np.ndarray = grown | copies(block[:, :m], fit.weights)
        if state.stage == "joint":
            none = none | self.spare(self.joint_step(state, block, released))
        return none

    def _let_go(self, state: TensorState, block: Block, released: Block) -> tuple[TensorState, Block, Block]:
        """Components that were none are columns that search again, in the block behind those that stay."""
        none, m = self._none(state, block, released), state.count
        if not none.any():
            return state, block, released
        kept, gone = np.flatnonzero(~none), np.flatnonzero(none)
        again = fresh(block[:, gone])
        again = replace(again, ages=again.ages + 1)
        stay = picked(state.components, kept)
        stay = replace(stay, norms=np.zeros(len(kept)))  # of another tensor: not to be compared with the next
        after = replace(
            state,
            stage="search",
            count=len(kept),
            let_go=state.let_go + len(gone),
            columns=picked(joined(again, state.columns), slice(0, self.width)),
            components=put(no_components(state.d, self.target_rank), 0, stay),
        )
        every = np.concatenate([kept, gone, np.arange(m, block.shape[1])])
        return after, block[:, every], released[:, every]
