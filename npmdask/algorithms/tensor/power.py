"""The robust tensor power method (Wang and Anandkumar 2016, Algorithm 1): all restarts in one pass, early stops.

Algorithm 1 of the paper, line by line::

    1: Input: symmetric tensor T (d x d x d), number of components k, numbers of iterations L, R
    2: for i = 1 to k:                                              _tensor_rounds.Rounds, a round
    3:   Initialization: draw u_0 uniformly from the unit sphere    _tensors.random_units, L at once
    4:   Power iteration: u_t = T(I, u_{t-1}, u_{t-1}) / ||.||      TensorPower.query; _tensor_search.advanced
    5:   Boosting: of L such u_R the one of largest T(u, u, u),
         v_i = u, lambda_i = T(u, u, u)                             _tensor_rounds.Rounds
    6:   Deflation: T <- T - lambda_i v_i (x) v_i (x) v_i           _tensors.deflated, never carried out
    8: Output: {lambda_i, v_i}                                      TensorPower.finalize

The loop over products is the driver's. With ``iterations`` (R) given it is this and nothing else, k (R + 1) products,
and one more that measures the answer. Without, a round ends when its best column is a fixed point, and in the end all
components are improved together, each on the tensor without the others. ``harvest``: without waiting for the end of a
round every distinct fixed point that the columns have come near is taken, is improved from then on together with the
others, and columns that have run into one that is known start again, in the tensor without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from npmdask.algorithms.base import Info, Query, Result, laid_out, restored
from npmdask.algorithms.tensor.components import (
    MARGIN,
    ColumnScores,
    FoundComponents,
    TensorState,
    advanced,
    component_facts,
    deflated,
    ending_of,
    fitted,
    nearest,
    new_columns,
    no_components,
    random_units,
    seen,
    settled,
    sorted_by_weight,
    statuses,
    watched_columns,
    with_columns,
    with_scale,
)
from npmdask.algorithms.tensor.joint import CLEAR, PROBES, Harvest, Joint
from npmdask.errors import BadInputError
from npmdask.numerics.subspaces import Block

# Rounds of Algorithm 1 of Wang and Anandkumar (2016): L columns, the best of them, deflation, and again.


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
        columns = watched_columns(state.columns, sight)
        best = int(np.argmax(self.sizes(sight.scores)))
        if self._ends(state, sight, best):
            return self._boosted(replace(state, columns=columns), released, sight, best)
        nowhere = bool((sight.relative > CLEAR).all())
        if nowhere and self.iterations is None and self.silent(state, sight, parts.norms[:m]):
            return self.begun(state, block, sight)
        onward = advanced(columns, sight, self.order, shifted=self.iterations is None)
        return replace(state, iteration=state.iteration + 1, columns=onward)

    def _ends(self, state: TensorState, sight: ColumnScores, best: int) -> bool:
        if self.iterations is not None:
            return state.iteration == self.iterations
        near = sight.residuals[best] <= self.tol * abs(sight.scores[best])
        return bool(near) or state.iteration >= self.most_iterations

    def _boosted(self, state: TensorState, released: Block, sight: ColumnScores, best: int) -> TensorState:
        """Line 5: the column of largest score, with the score and the residual of that very column; a new round."""
        m, only = state.count, slice(best, best + 1)
        vector = state.columns.block[:, only]
        landed = int((nearest(state.columns.block, vector) >= 0).sum())
        part = FoundComponents(
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
            columns=new_columns(self.starts(state, m + 1)),
            components=with_columns(state.components, m, part),
            lost=state.lost + self.width - landed,
        )


SEARCHERS = 16  # columns of a harvest at least, where all components are held


def restarts_for(target_rank: int, *, harvest: bool) -> int:
    """The default of L: 10 in a round as others have it; 4 k + 20 to harvest k together (measured)."""
    return 4 * target_rank + 20 if harvest else max(10, target_rank)


@dataclass(frozen=True, kw_only=True)
class TensorPower:
    """Algorithm 1 for ``target_rank`` (k) components of a symmetric tensor of order 3 or 4.

    Parameters
    ----------
    target_rank : k, how many components are wanted; k <= d.
    restarts : L, columns of every product; the last product has k, so that less than k costs as much as k.
    seed : of the starts, which depend on nothing else.
    iterations : R of the paper, every round exactly so many and a product for the scores. None: until a fixed point.
    tol : of ||T_rest(I, v, v) - w v|| over |w|, T_rest the tensor without the other components; of early stops.
    harvest : take all fixed points that are found, not one a round.
    order : 3, or 4: then weights have both signs, and vectors are determined up to theirs.
    squared_norm : ||T||^2 where it is known; else it is estimated from products with random columns. What is left of
        it tells noise from components.
    most_iterations : after so many products without a fixed point the best column is taken as it is.
    margin : a weight up to so many times what noise alone would give is surplus; 0: only rounding is, where the number
        of components is known from elsewhere (in white coordinates, from the rank of the second moment).

    Notes
    -----
    Neighbours: none, not private.
    Guarantee: components within O(eps) if the noise is below npmdask.theory.tensor.tolerated_noise (Theorems 2.1
        and 2.2 of Wang and Anandkumar 2016, with the condition that the latter lacks); else residuals and a status.
    Needs: a symmetric tensor of order 3 or 4, k <= d; else BadInputError.
    Cost: k (R + 1) passes of L columns as printed, fewer as a harvest; O(d (L + k)) memory.
    """

    name: ClassVar[str] = "tensor-power"
    mixed_precision: ClassVar[bool] = False

    target_rank: int
    restarts: int
    seed: int
    iterations: int | None = None
    tol: float = 1e-9
    harvest: bool = False
    order: int = 3
    squared_norm: float | None = None
    most_iterations: int = 100
    margin: float = MARGIN

    def __post_init__(self) -> None:
        if self.harvest and self.iterations is not None:
            raise BadInputError(
                "iterations is the fixed length of the paper's rounds, which harvest does not have: leave one of "
                "them out"
            )
        if self.order not in (3, 4):
            raise BadInputError(f"order = {self.order}: use order 3 (moments) or 4 (independent components)")

    @property
    def iteration_rank(self) -> int:
        """Columns of every block: L, and room for k; and for some to search with in a harvest, or to measure ||T||."""
        besides = SEARCHERS if self.harvest else PROBES if self.squared_norm is None else 0
        return max(self.restarts, self.target_rank + besides)

    @property
    def state_blocks(self) -> int:
        """d x L blocks of float64 at once: columns, product, deflated, next, a copy; d x k ones in another five."""
        return 12

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> TensorState:
        """Line 3 of the first round; ``rng`` is not used. Locked components and starts are refused before."""
        assert locked is None and start is None
        if self.target_rank > d:
            raise BadInputError(f"{self.target_rank} components of a tensor of side {d}: ask for at most {d}")
        return self._state(d)

    def _state(self, d: int) -> TensorState:
        starts = random_units(d, self.iteration_rank, seed=self.seed, place=0)
        return TensorState(
            step=0,
            stage="search",
            count=0,
            iteration=0,
            columns=new_columns(starts),
            components=no_components(d, self.target_rank),
            lost=0,
            let_go=0,
            norm=0.0,
            left=0.0,
            scale=0.0,
            margin=self.margin,
            finished=False,
        )

    @property
    def _schedule(self) -> Rounds | Harvest:
        kind = Harvest if self.harvest else Rounds
        return kind(
            target_rank=self.target_rank,
            width=self.iteration_rank,
            seed=self.seed,
            iterations=self.iterations,
            tol=self.tol,
            order=self.order,
            squared_norm=self.squared_norm,
            most_iterations=self.most_iterations,
        )

    def _block(self, state: TensorState) -> Block:
        held = self._schedule.held(state)
        columns = state.columns.block[:, : self.iteration_rank - held]
        return np.concatenate([state.components.trial[:, :held], columns], axis=1)

    def query(self, state: TensorState) -> Query:
        """Line 4, the part that touches the data: one pass for the components that are held and the columns."""
        return Query(self._block(state))

    def update(self, state: TensorState, released: Block) -> tuple[TensorState, Info]:
        """Lines 4 to 6, from one product; what it says of the block that was asked for belongs to that block."""
        after = laid_out(self._schedule.absorbed(with_scale(state, released), self._block(state), released))
        surplus = np.array([word == "surplus" for word in statuses(after, self.tol, self.order)]) & after.finished
        return after, Info(
            ritz_values=after.components.weights,
            residual_norms=np.where(surplus, 0.0, after.components.norms),  # what is no component has none to reach
            asymmetry=0.0,
            precision="float64",
            finished=after.finished,
            settled=settled(after, self.tol, self.order),
            said=ending_of(after, self.tol, self.order, measured=self.squared_norm is not None),
        )

    def finalize(self, state: TensorState) -> Result:
        """Line 8: by falling |weight|, surplus last; residual_norms are of T without the *other* components."""
        numbers = sorted_by_weight(state, self.tol, self.order)
        parts = state.components
        return Result(
            values=parts.weights[numbers],
            vectors=np.ascontiguousarray(parts.vectors[:, numbers]),
            products=np.ascontiguousarray(parts.products[:, numbers]),
            residual_norms=parts.norms[numbers],
            facts=component_facts(state, numbers, self.tol, self.order),
        )

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> TensorState:
        """The state of a checkpoint."""
        state: TensorState = restored(self._state(1), arrays, scalars)
        return state
