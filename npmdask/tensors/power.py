"""The robust tensor power method (Wang and Anandkumar 2016, Algorithm 1): all restarts in one pass, early stops.

Algorithm 1 of the paper, line by line::

    1: Input: symmetric tensor T (d x d x d), number of components k, numbers of iterations L, R
    2: for i = 1 to k:                                              Rounds, a round
    3:   Initialization: draw u_0 uniformly from the unit sphere    random_units, L at once
    4:   Power iteration: u_t = T(I, u_{t-1}, u_{t-1}) / ||.||      TensorPower.query; advanced
    5:   Boosting: of L such u_R the one of largest T(u, u, u),
         v_i = u, lambda_i = T(u, u, u)                             Rounds
    6:   Deflation: T <- T - lambda_i v_i (x) v_i (x) v_i           deflated, never carried out
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

from npmdask.core.algorithms.base import Info, Query, Result, laid_out, restored
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.errors import BadInputError, require
from npmdask.tensors.components import (
    MARGIN,
    SHARP,
    UNRESOLVED,
    Columns,
    ColumnScores,
    Fit,
    FoundComponents,
    TensorState,
    advanced,
    component_facts,
    converged,
    copies,
    deflated,
    distinct,
    ending_of,
    errors_of,
    fitted,
    joined_columns,
    like_noise,
    nearest,
    new_columns,
    no_components,
    noise_score,
    norm_from,
    power_step,
    random_units,
    replaced,
    rounding,
    seen,
    selected_columns,
    settled,
    sorted_by_weight,
    statuses,
    unbiased,
    watched_columns,
    with_columns,
    with_scale,
)

# All components of a decomposition together: each a power step on the tensor without the others, and a measure.
#
# At its fixed points the sum of the components is a stationary point of ``||T - sum_i w_i v_i^p||``, so what one
# component lost to the deflation of another before it (Algorithm 1, line 6) is given back.

NEAR = 0.05  # relative residual of a column that has come near a fixed point
CLEAR = 1e-3  # relative residual that is not come near by chance
PATIENCE = 25  # products after which columns that show no more than noise will not: a signal escapes in fewer
PROBES = 8  # columns that are random in every product where ||T|| is not known, to measure what is left


@dataclass(frozen=True, kw_only=True)
class Joint:
    """The part that both schedules share; parameters as of ``TensorPower``, ``width`` columns a block."""

    target_rank: int
    width: int
    seed: int
    iterations: int | None
    tol: float
    order: int
    squared_norm: float | None
    most_iterations: int

    def sizes(self, scores: np.ndarray) -> np.ndarray:
        """Return the measure by which columns are compared: the score; its size where weights have both signs."""
        return np.abs(scores) if self.order == 4 else scores

    def noise(self, state: TensorState) -> float:
        """The score that noise as large as what is left would reach."""
        left = unbiased(state.left, state.count, state.d, self.order)
        return state.margin * noise_score(left, state.d, self.order)

    def silent(self, state: TensorState, sight: ColumnScores, norms: np.ndarray) -> bool:
        """Say whether the rest was searched long enough and shows no more than noise, or than rounding."""
        resolved = state.left > UNRESOLVED**0.5 * state.norm
        if state.iteration < (PATIENCE if resolved else 3):
            return False
        level = max(self.noise(state), errors_of(state, norms))
        return bool(np.abs(sight.scores).max(initial=0.0) <= level)

    def with_norms(self, state: TensorState, fit: Fit, random: Block) -> TensorState:
        """||T|| and what is left of it without the components: known, or from products with random columns."""
        if self.squared_norm is not None:
            left = max(self.squared_norm - fit.explained, 0.0) ** 0.5
            return replace(state, norm=self.squared_norm**0.5, left=left)
        if random.shape[1] < PROBES:
            return state
        left = norm_from(random, self.order)
        same = state.left / 2 < left and state.stage == "search" and state.iteration > 0
        if same:  # as before it: the mean of all
            left = float(np.sqrt(state.left**2 + (left**2 - state.left**2) / (state.iteration + 1)))
        return replace(state, norm=max(state.norm, left), left=left)

    def starts(self, state: TensorState, place: int | None = None) -> Block:
        """Random unit columns (d x W); those of the round ``place``, or of this step."""
        number = 1 + self.target_rank + state.step if place is None else place
        return random_units(state.d, self.width, seed=self.seed, place=number)

    def measured(self, state: TensorState, vectors: Block, products: Block, fit: Fit) -> TensorState:
        """The first components as measured by this product, and where they go next: on T without the others."""
        before, m, old = state.count, vectors.shape[1], state.components
        floor = np.maximum(rounding(state.d, state.scale), 1e-9 * np.abs(fit.weights))
        ratio = np.ones(m)
        known = (m == before) & (old.norms[:m] > floor)
        np.divide(fit.norms, old.norms[:m], out=ratio, where=known)
        signs = np.where(fit.weights < 0, -1.0, 1.0) if self.order == 4 else 1.0
        part = FoundComponents(
            vectors=vectors,
            products=products,
            trial=power_step(vectors, signs * (fit.rest + vectors * fit.weights)),
            **attributes(fit, "weights", "norms"),
            sharpest=np.minimum(ratio, old.sharpest[:m]),
            landed=old.landed[:m],
            found_at=np.where(np.arange(m) < before, old.found_at[:m], state.step),
        )
        return replace(state, count=m, components=with_columns(old, 0, part))

    def begun(self, state: TensorState, searched: Block, sight: ColumnScores) -> TensorState:
        """Nothing but noise is left: the columns of largest score are taken for the missing components."""
        m, k, old = state.count, self.target_rank, state.components
        falling = np.argsort(-np.abs(sight.scores), kind="stable")
        spare = distinct(searched, falling, old.trial[:, :m], k - m)
        spare = (spare + [number for number in falling.tolist() if number not in spare])[: k - m]
        trial = np.concatenate([old.trial[:, :m], searched[:, spare]], axis=1)
        return self._measure_rest(replace(state, stage="joint", iteration=0, components=replace(old, trial=trial)))

    def _measure_rest(self, state: TensorState) -> TensorState:
        """Continue with random columns, which only measure what is left of T."""
        return replace(state, columns=new_columns(self.starts(state)))

    def improved(self, state: TensorState, block: Block, released: Block) -> TensorState:
        """All components from one product of T itself: their residuals, and a power step of each without the others.

        The first is all there is where the rounds have a fixed length: it measures what they found.
        """
        after = self.joint_step(state, block, released)
        spare = self.spare(after)
        if spare.any():  # noise that was taken for components would draw others into a fit that means nothing
            order = np.argsort(spare, kind="stable")
            every = np.concatenate([order, np.arange(after.count, self.target_rank)])
            components = selected_columns(after.components, every)
            before = replace(state, count=state.count - int(spare.sum()), components=components)
            after = self.joint_step(before, *(_reordered(part, every) for part in (block, released)))
        m = after.count
        still = self.iterations is None and after.iteration < self.most_iterations
        done = bool(converged(after, self.tol)[:m].all()) or not still
        return self._measure_rest(replace(after, iteration=after.iteration + 1, finished=done))

    def spare(self, state: TensorState) -> np.ndarray:
        """Which of the m components are surplus, once all others are near their fixed points."""
        m, parts = state.count, state.components
        surplus = np.array([word == "surplus" for word in statuses(state, self.tol, self.order)[:m]], dtype=bool)
        near = parts.norms[:m] <= NEAR * np.abs(parts.weights[:m])
        return surplus & ((near | surplus).all() and self.iterations is None)

    def joint_step(self, state: TensorState, block: Block, released: Block) -> TensorState:
        m, k, parts = state.count, self.target_rank, state.components
        vectors, products = block[:, :m], released[:, :m]
        fit = fitted(vectors, products, self.order, None if self.iterations is None else parts.weights[:m])
        rest = seen(deflated(released[:, m:], block[:, m:], vectors, fit.weights, self.order), block[:, m:])
        state = self.with_norms(state, fit, rest.products[:, k - m :])
        state = self.measured(state, vectors, products, fit)
        spare = replace(
            selected_columns(state.components, slice(m, k)),
            vectors=block[:, m:k],
            products=released[:, m:k],
            trial=power_step(block[:, m:k], rest.products[:, : k - m]),
            weights=rest.scores[: k - m],
            norms=rest.residuals[: k - m],
        )
        return replace(state, components=with_columns(state.components, m, spare))


def _reordered(block: Block, every: np.ndarray) -> Block:
    """The first columns of ``block`` in the order ``every``; the others behind them as they are."""
    return np.concatenate([block[:, every], block[:, len(every) :]], axis=1)


# Harvest: every product serves the components that are known and columns that search the tensor without them.
#
# No round waits for its end: whatever fixed points the columns have come near are components from then on, as long as
# they behave like ones.


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
        if state.stage == "joint" and not self._is_reopened(state, block, released):
            return self.improved(state, block, released)
        state, block, released = self._return_to_search(state, block, released)
        m = state.count
        held, searching = block[:, :m], block[:, m:]
        fit = fitted(held, released[:, :m], self.order)
        sight = seen(deflated(released[:, m:], searching, held, fit.weights, self.order), searching)
        columns = selected_columns(state.columns, slice(0, searching.shape[1]))
        state = self.with_norms(state, fit, sight.products[:, columns.ages == 0])
        columns = watched_columns(columns, sight)
        taken = self._accepted_columns(state, columns, sight, (held, released[:, :m], fit), released[:, m:])
        restless = state.let_go >= MOST_LET_GO * self.target_rank
        if restless or (not taken and self.silent(state, sight, fit.norms)):
            return self.begun(self.measured(state, held, released[:, :m], fit), searching, sight)
        return self._continue_search(state, (block, released), columns, sight, taken)

    def _continue_search(
        self, state: TensorState, both: tuple[Block, Block], columns: Columns, sight: ColumnScores, taken: list[int]
    ) -> TensorState:
        """Keep as components those held and those ``taken``; the columns search on."""
        m, every = state.count, np.arange(both[0].shape[1])
        every = np.concatenate([every[:m], m + np.array(taken, dtype=int)])
        vectors, products = (np.ascontiguousarray(part[:, every]) for part in both)
        new = selected_columns(state.components, slice(m, m + len(taken)))
        new = replace(new, sharpest=columns.sharpest[taken])
        state = replace(state, components=with_columns(state.components, m, new))
        after = self.measured(state, vectors, products, fitted(vectors, products, self.order))
        return self._searching(after, columns, sight, vectors, len(taken))

    def _accepted_columns(
        self, state: TensorState, columns: Columns, sight: ColumnScores, held: tuple[Block, Block, Fit], products: Block
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
            taken = self._filter_columns(state, columns.block[:, taken], products[:, taken], scores, sure, taken, held)
        if not taken and state.iteration >= self.most_iterations:
            taken = distinct(columns.block, falling, held[0], 1)
        return taken

    def _filter_columns(
        self,
        state: TensorState,
        candidates: Block,
        products: Block,
        scores: np.ndarray,
        sure: np.ndarray,
        taken: list[int],
        held: tuple[Block, Block, Fit],
    ) -> list[int]:
        """Return the columns ``taken`` that still stand out once all are taken: no saddles between others, no noise."""
        m = held[0].shape[1]
        vectors = np.concatenate([held[0], candidates], axis=1)
        fit = fitted(vectors, np.concatenate([held[1], products], axis=1), self.order)
        kept = np.abs(fit.weights[m:]) >= 0.5 * scores[taken]
        left = max(state.left**2 - (fit.explained - held[2].explained), 0.0) ** 0.5
        doubtful = np.flatnonzero(~sure[taken])
        before = unbiased(left, vectors.shape[1], state.d, self.order)
        kept[doubtful] &= ~like_noise(scores[taken][doubtful], before, state.d, self.order, state.margin)
        return [number for number, keep in zip(taken, kept, strict=True) if keep]

    def _searching(
        self, state: TensorState, columns: Columns, sight: ColumnScores, vectors: Block, new: int
    ) -> TensorState:
        """One power step of the columns that search; those that have run into a component, or nowhere, start again."""
        into = nearest(columns.block, vectors)
        old = (into < 0) & (columns.ages >= MOST_AGES) & (sight.relative > CLEAR)
        probes = np.arange(len(into)) >= len(into) - (PROBES if self.squared_norm is None else 0)
        again = (into >= 0) | old | probes
        onward = replaced(advanced(columns, sight, self.order), again, self.starts(state)[:, : len(into)])
        # cut off as components join: what has just begun
        onward = selected_columns(onward, np.argsort(again, kind="stable"))
        if new:  # residuals of another tensor are not to be compared with the next
            onward = replace(onward, least=np.full(len(into), np.inf))
        landed = np.bincount(into[into >= 0], minlength=self.target_rank)
        return replace(
            state,
            stage="joint" if state.count == self.target_rank else "search",
            iteration=0 if new else state.iteration + 1,
            columns=with_columns(state.columns, 0, onward),
            components=replace(state.components, landed=state.components.landed + landed),
            lost=state.lost + int(old.sum()),
        )

    def _is_reopened(self, state: TensorState, block: Block, released: Block) -> bool:
        """Say whether the search goes on, because one of the k components was none."""
        full = state.count == self.target_rank
        return full and bool(self._rejected_components(state, block, released).any())

    def _rejected_components(self, state: TensorState, block: Block, released: Block) -> np.ndarray:
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

    def _return_to_search(self, state: TensorState, block: Block, released: Block) -> tuple[TensorState, Block, Block]:
        """Components that were none are columns that search again, in the block behind those that stay."""
        none, m = self._rejected_components(state, block, released), state.count
        if not none.any():
            return state, block, released
        kept, gone = np.flatnonzero(~none), np.flatnonzero(none)
        again = new_columns(block[:, gone])
        again = replace(again, ages=again.ages + 1)
        stay = selected_columns(state.components, kept)
        stay = replace(stay, norms=np.zeros(len(kept)))  # of another tensor: not to be compared with the next
        after = replace(
            state,
            stage="search",
            count=len(kept),
            let_go=state.let_go + len(gone),
            columns=selected_columns(joined_columns(again, state.columns), slice(0, self.width)),
            components=with_columns(no_components(state.d, self.target_rank), 0, stay),
        )
        every = np.concatenate([kept, gone, np.arange(m, block.shape[1])])
        return after, block[:, every], released[:, every]


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
        if self._is_round_over(state, sight, best):
            return self._boosted(replace(state, columns=columns), released, sight, best)
        nowhere = bool((sight.relative > CLEAR).all())
        if nowhere and self.iterations is None and self.silent(state, sight, parts.norms[:m]):
            return self.begun(state, block, sight)
        onward = advanced(columns, sight, self.order, shifted=self.iterations is None)
        return replace(state, iteration=state.iteration + 1, columns=onward)

    def _is_round_over(self, state: TensorState, sight: ColumnScores, best: int) -> bool:
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
        require(self.order in (3, 4), f"order = {self.order}: use order 3 (moments) or 4 (independent components)")

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
        require(self.target_rank <= d, f"{self.target_rank} components of a tensor of side {d}: ask for at most {d}")
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
        given = attributes(self, "target_rank", "seed", "iterations", "tol", "order", "squared_norm", "most_iterations")
        return kind(width=self.iteration_rank, **given)

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
        return restored(self._state(1), arrays, scalars)
