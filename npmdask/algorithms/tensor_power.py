"""The robust tensor power method (Wang and Anandkumar 2016, Algorithm 1): all restarts in one pass, early stops.

Algorithm 1 of the paper, line by line::

    1: Input: symmetric tensor T (d x d x d), number of components k, numbers of iterations L, R
    2: for i = 1 to k:                                              TensorPower.update, a round
    3:   Initialization: draw u_0 uniformly from the unit sphere    _tensors.random_units, L at once
    4:   Power iteration: u_t = T(I, u_{t-1}, u_{t-1}) / ||.||      TensorPower.query; _tensor_search.advanced
    5:   Boosting: of L such u_R the one of largest T(u, u, u),
         v_i = u, lambda_i = T(u, u, u)                             TensorPower._boosted
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

from npmdask.algorithms._protocol import Info, Query, Result, restored, state_fields
from npmdask.algorithms._tensor_fit import MARGIN, UNRESOLVED, Fit, fitted, noise_score, norm_from
from npmdask.algorithms._tensor_report import (
    TensorState,
    converged,
    facts_of,
    rounding,
    said_of,
    settled,
    sorted_by_weight,
)
from npmdask.algorithms._tensor_search import (
    Columns,
    Sight,
    advanced,
    distinct,
    fresh,
    nearest,
    replaced,
    seen,
    stepped,
)
from npmdask.algorithms._tensors import deflated, random_units
from npmdask.errors import BadInputError
from npmdask.linalg import Block

CLEAR = 1e-3  # and of one that may be weaker than noise: there a fixed point is not come near by chance
NEAR = 0.1  # relative residual of a column that has come near a fixed point that is not noise
PATIENCE = 25  # products after which columns that show no more than noise will not: a signal escapes in fewer
MOST_AGES = 30  # products after which a harvest gives a column up
PROBES = 4  # columns that are random in every product where ||T|| is not known, to measure what is left


def restarts_for(target_rank: int, *, harvest: bool) -> int:
    """L where nothing is said: 10 in a round as others have it; 4 k + 20 to harvest k components together (measured)."""
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

    def __post_init__(self) -> None:
        if self.harvest and self.iterations is not None:
            raise BadInputError(
                "iterations is the fixed length of the paper's rounds, and harvest has none: leave one of them out"
            )
        if self.order not in (3, 4):
            raise BadInputError(f"order = {self.order}: tensors have order 3 (moments) or 4 (independent components)")

    @property
    def iteration_rank(self) -> int:
        """Columns of every block: L, and not fewer than k (and some to search with, where all are held)."""
        return max(self.restarts, self.target_rank + (8 if self.harvest else 0))

    @property
    def state_blocks(self) -> int:
        """d x L blocks of float64 held at once: columns, product, deflated, next, a copy; d x k ones in another five."""
        return 12

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> TensorState:
        """Line 3 of the first round; ``rng`` is not used. Locked components and starts are refused before."""
        assert locked is None and start is None
        if self.target_rank > d:
            raise BadInputError(f"{self.target_rank} components of a tensor of side {d}: ask for at most {d}")
        width, k = self.iteration_rank, self.target_rank
        zeros = np.zeros(width)
        return TensorState(
            step=0,
            stage="search",
            count=0,
            iteration=0,
            columns=random_units(d, width, seed=self.seed, place=0),
            ages=zeros,
            least=np.full(width, np.inf),
            least_ages=zeros,
            shifts=zeros,
            trial=np.zeros((d, k)),
            ritz_vectors=np.zeros((d, k)),
            ritz_values=np.zeros(k),
            products=np.zeros((d, k)),
            residual_norms=np.zeros(k),
            landed=np.zeros(k),
            found_at=np.zeros(k),
            contraction=np.zeros(k),
            lost=0,
            norm=float("nan"),
            left=float("nan"),
            scale=0.0,
            finished=False,
        )

    def query(self, state: TensorState) -> Query:
        """Line 4, the part that touches the data: one pass for the components that are held and the columns."""
        return Query(self._block(state))

    def update(self, state: TensorState, released: Block) -> tuple[TensorState, Info]:
        """Lines 4 to 6, from one product; what it says of the block that was asked for belongs to that block."""
        block = self._block(state)
        largest = float(np.linalg.norm(released, axis=0).max(initial=0.0))
        state = replace(state, step=state.step + 1, scale=max(state.scale, largest))
        if state.stage == "joint":
            after = self._improved(state, block, released)
        elif self.harvest:
            after = self._harvested(state, block, released)
        else:
            after = self._iterated(state, block, released)
        return laid_out(after), self._info(after)

    def finalize(self, state: TensorState) -> Result:
        """Line 8: by falling |weight|, surplus last; residual_norms are of T without the *other* components."""
        numbers = sorted_by_weight(state, self.tol, self.order)
        return Result(
            values=state.ritz_values[numbers],
            vectors=np.ascontiguousarray(state.ritz_vectors[:, numbers]),
            products=np.ascontiguousarray(state.products[:, numbers]),
            residual_norms=state.residual_norms[numbers],
            facts=facts_of(state, numbers, self.tol, self.order),
        )

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> TensorState:
        """The state of a checkpoint."""
        return TensorState(**arrays, **scalars)

    def _info(self, state: TensorState) -> Info:
        return Info(
            ritz_values=state.ritz_values,
            residual_norms=state.residual_norms,
            asymmetry=0.0,
            precision="float64",
            finished=state.finished,
            settled=settled(state, self.tol, self.order),
            said=said_of(state, self.tol, self.order),
        )

    def _held(self, state: TensorState) -> int:
        """How many components are in the block, before the columns that search."""
        if state.stage == "joint":
            return self.target_rank
        return state.count if self.harvest else 0

    def _block(self, state: TensorState) -> Block:
        held = self._held(state)
        columns = state.columns[:, : self.iteration_rank - held]
        return np.ascontiguousarray(np.concatenate([state.trial[:, :held], columns], axis=1))

    def _iterated(self, state: TensorState, block: Block, released: Block) -> TensorState:
        """Line 4 for all columns, on T without the components of the rounds before; line 5 where the round ends."""
        m = state.count
        vectors = state.ritz_vectors[:, :m]
        fit = fitted(vectors, state.products[:, :m], self.order, state.ritz_values[:m])
        sight = seen(deflated(released, block, vectors, state.ritz_values[:m], self.order), block)
        state = self._with_norms(state, fit, sight.products[:, state.ages[: block.shape[1]] == 0])
        if self._round_ends(state, sight):
            return self._boosted(state, block, released, sight)
        if self.iterations is None and self._silent(state, sight, state.residual_norms[:m]):
            return self._begun_jointly(state, block, sight)
        columns = advanced(_columns(state), sight, self.order, shifted=self.iterations is None)
        return replace(_with_columns(state, columns), iteration=state.iteration + 1)

    def _round_ends(self, state: TensorState, sight: Sight) -> bool:
        if self.iterations is not None:
            return state.iteration == self.iterations
        best = int(np.argmax(self._signed(sight.scores)))
        near = sight.residuals[best] <= self.tol * abs(sight.scores[best])
        return bool(near) or state.iteration >= self.most_iterations

    def _signed(self, scores: np.ndarray) -> np.ndarray:
        """What the best column has most of: the score; its size where weights have both signs."""
        return np.abs(scores) if self.order == 4 else scores

    def _boosted(self, state: TensorState, block: Block, released: Block, sight: Sight) -> TensorState:
        """Line 5: the column of largest score, with the score and the residual of that very column; a new round."""
        best, m = int(np.argmax(self._signed(sight.scores))), state.count
        landed = int((nearest(block, block[:, [best]]) >= 0).sum())
        ratio = sight.relative[best] / state.least[best] if np.isfinite(sight.relative[best]) else 1.0
        after = replace(
            state,
            count=m + 1,
            iteration=0,
            ritz_vectors=_put(state.ritz_vectors, m, block[:, best]),
            products=_put(state.products, m, released[:, best]),
            ritz_values=_put(state.ritz_values, m, sight.scores[best]),
            residual_norms=_put(state.residual_norms, m, sight.residuals[best]),
            landed=_put(state.landed, m, landed),
            found_at=_put(state.found_at, m, state.step),
            contraction=_put(state.contraction, m, ratio),
            lost=state.lost + block.shape[1] - landed,
        )
        starts = random_units(len(block), self.iteration_rank, seed=self.seed, place=m + 1)
        after = _with_columns(after, fresh(starts))
        return after if m + 1 < self.target_rank else replace(after, stage="joint", trial=after.ritz_vectors)

    def _harvested(self, state: TensorState, block: Block, released: Block) -> TensorState:
        """One product for the components that are held and for columns that search T without them."""
        m, order = state.count, self.order
        held, searching = block[:, :m], block[:, m:]
        fit = fitted(held, released[:, :m], order)
        sight = seen(deflated(released[:, m:], searching, held, fit.weights, order), searching)
        columns = _columns(state, searching.shape[1])
        state = self._with_norms(state, fit, sight.products[:, columns.ages == 0])
        taken = self._ready(state, sight, held, searching, fit)
        if not taken and self._silent(state, sight, fit.norms):
            state = self._measured(state, held, released[:, :m], fit)
            return self._begun_jointly(state, searching, sight)
        vectors = np.ascontiguousarray(np.concatenate([held, searching[:, taken]], axis=1))
        products = np.concatenate([released[:, :m], released[:, m:][:, taken]], axis=1)
        after = self._measured(state, vectors, products, fitted(vectors, products, order) if taken else fit)
        return self._searching_on(after, columns, sight, vectors, len(taken))

    def _ready(self, state: TensorState, sight: Sight, held: Block, searching: Block, fit: Fit) -> list[int]:
        """Columns that have come near a fixed point of their own which is neither noise nor an error of what is held.

        Where none has for too long, the one of largest score: the boosting of line 5.
        """
        scores = self._signed(sight.scores)
        falling = np.argsort(-scores, kind="stable")
        sure = np.where(scores > self._noise(state), NEAR, CLEAR)
        ready = (sight.relative <= sure) & (scores > self._errors(state, fit.norms))
        most = self.target_rank - state.count
        taken = distinct(searching, falling[ready[falling]], held, most)
        if not taken and state.iteration >= self.most_iterations:
            taken = distinct(searching, falling, held, 1)
        return taken

    def _noise(self, state: TensorState) -> float:
        return MARGIN * noise_score(state.left, len(state.columns), self.order)

    def _errors(self, state: TensorState, norms: np.ndarray) -> float:
        """What errors of components with residuals ``norms`` can pretend to be, and rounding.

        An error e of a component w v leaves 3 w sym(v v e), whose largest score is 2 / sqrt(3) times w |e|.
        """
        return max(3 * float(norms.max(initial=0.0)), rounding(len(state.columns), state.scale))

    def _silent(self, state: TensorState, sight: Sight, norms: np.ndarray) -> bool:
        """Whether what is left has been searched for long enough and shows no more than noise, or than rounding."""
        resolved = state.left > UNRESOLVED**0.5 * state.norm
        if state.iteration < (PATIENCE if resolved else 3):
            return False
        level = max(self._noise(state), self._errors(state, norms))
        return bool(np.abs(sight.scores).max(initial=0.0) <= level)

    def _with_norms(self, state: TensorState, fit: Fit, random: Block) -> TensorState:
        """||T|| and what is left of it without the components: known, or from products with random columns."""
        if self.squared_norm is not None:
            left = max(self.squared_norm - fit.explained, 0.0) ** 0.5
            return replace(state, norm=self.squared_norm**0.5, left=left)
        left = norm_from(random, self.order) if random.shape[1] >= PROBES else state.left
        return replace(state, norm=max(state.norm, left), left=left)

    def _measured(self, state: TensorState, vectors: Block, products: Block, fit: Fit) -> TensorState:
        """The first components as measured by this product, and where they go next: on T without the others."""
        before, m = state.count, vectors.shape[1]
        norms, sizes = state.residual_norms[:before], np.abs(fit.weights[:before])
        seen_before = norms > np.maximum(rounding(len(vectors), state.scale), 1e-9 * sizes)
        ratio = np.ones(m)
        ratio[:before] = np.where(seen_before, fit.norms[:before] / np.where(seen_before, norms, 1.0), 1.0)
        least = np.concatenate([state.contraction[:before], np.ones(m - before)])
        signs = np.where(fit.weights < 0, -1.0, 1.0) if self.order == 4 else 1.0
        return replace(
            state,
            count=m,
            trial=_put(state.trial, slice(0, m), stepped(vectors, signs * (fit.rest + vectors * fit.weights))),
            ritz_vectors=_put(state.ritz_vectors, slice(0, m), vectors),
            products=_put(state.products, slice(0, m), products),
            ritz_values=_put(state.ritz_values, slice(0, m), fit.weights),
            residual_norms=_put(state.residual_norms, slice(0, m), fit.norms),
            contraction=_put(state.contraction, slice(0, m), np.minimum(ratio, least)),
            found_at=_put(state.found_at, slice(before, m), state.step),
        )

    def _searching_on(
        self, state: TensorState, columns: Columns, sight: Sight, vectors: Block, new: int
    ) -> TensorState:
        """One power step of the columns that search; those that have run into a component, or nowhere, start again."""
        into = nearest(columns.block, vectors)
        old = (into < 0) & (columns.ages >= MOST_AGES)
        probes = np.arange(len(into)) >= len(into) - (PROBES if self.squared_norm is None else 0)
        again = (into >= 0) | old | probes
        place = 1 + self.target_rank + state.step
        starts = random_units(len(vectors), self.iteration_rank, seed=self.seed, place=place)
        after = replaced(advanced(columns, sight, self.order), again, starts[:, : len(into)])
        order = np.argsort(again, kind="stable")  # what is cut off as components join is what has just begun
        after = Columns(*(part[..., order] for part in after))
        full = state.count == self.target_rank
        return replace(
            _with_columns(state, after),
            stage="joint" if full else "search",
            iteration=0 if new else state.iteration + 1,
            landed=state.landed + np.bincount(into[into >= 0], minlength=self.target_rank),
            lost=state.lost + int(old.sum()),
        )

    def _begun_jointly(self, state: TensorState, searched: Block, sight: Sight) -> TensorState:
        """Nothing but noise is left: the columns of largest score stand for the components that are not there."""
        m, k = state.count, self.target_rank
        held = state.trial[:, :m] if self.harvest else state.ritz_vectors[:, :m]
        falling = np.argsort(-np.abs(sight.scores), kind="stable")
        spare = distinct(searched, falling, held, k - m)
        spare = (spare + [number for number in falling.tolist() if number not in spare])[: k - m]
        trial = np.concatenate([held, searched[:, spare]], axis=1)
        return self._restarted(replace(state, stage="joint", iteration=0, trial=trial))

    def _restarted(self, state: TensorState) -> TensorState:
        """Random columns, which only measure what is left of T."""
        place = 1 + self.target_rank + state.step
        starts = random_units(len(state.columns), self.iteration_rank, seed=self.seed, place=place)
        return _with_columns(state, fresh(starts))

    def _improved(self, state: TensorState, block: Block, released: Block) -> TensorState:
        """All components from one product of T itself: their residuals, and a power step of each without the others.

        The first is all there is where the rounds have a fixed length: it measures what they found.
        """
        m, k, order = state.count, self.target_rank, self.order
        vectors, products = block[:, :m], released[:, :m]
        fit = fitted(vectors, products, order, None if self.iterations is None else state.ritz_values[:m])
        rest = seen(deflated(released[:, m:], block[:, m:], vectors, fit.weights, order), block[:, m:])
        random = np.arange(m, block.shape[1]) >= k
        state = self._with_norms(state, fit, rest.products[:, random])
        state = self._measured(state, vectors, products, fit)
        spare = slice(m, k)
        state = replace(
            state,
            ritz_vectors=_put(state.ritz_vectors, spare, block[:, spare]),
            products=_put(state.products, spare, released[:, spare]),
            ritz_values=_put(state.ritz_values, spare, rest.scores[: k - m]),
            residual_norms=_put(state.residual_norms, spare, rest.residuals[: k - m]),
            trial=_put(state.trial, spare, stepped(block[:, spare], rest.products[:, : k - m])),
        )
        near = converged(state, self.tol)[:m].all()
        over = self.iterations is not None or state.iteration >= self.most_iterations
        return self._restarted(replace(state, iteration=state.iteration + 1, finished=bool(near or over)))


def laid_out(state: TensorState) -> TensorState:
    """The state with every array as a checkpoint gives it back: the last bits of products depend on strides."""
    arrays, scalars = state_fields(state)
    same: TensorState = restored(state, {name: np.ascontiguousarray(a) for name, a in arrays.items()}, scalars)
    return same


def _put(array: np.ndarray, where: int | slice, values: Any) -> np.ndarray:
    """A copy of ``array`` with ``values`` in its columns (or entries) ``where``."""
    out = array.copy()
    out[..., where] = values
    return out


def _columns(state: TensorState, count: int | None = None) -> Columns:
    """The first ``count`` columns that search."""
    every = (state.columns, state.ages, state.least, state.least_ages, state.shifts)
    return Columns(*(part[..., :count] for part in every))


def _with_columns(state: TensorState, columns: Columns) -> TensorState:
    """The state with these columns for its first ones; as many as ever."""
    count = columns.block.shape[1]
    return replace(
        state,
        columns=_put(state.columns, slice(0, count), columns.block),
        ages=_put(state.ages, slice(0, count), columns.ages),
        least=_put(state.least, slice(0, count), columns.least),
        least_ages=_put(state.least_ages, slice(0, count), columns.least_ages),
        shifts=_put(state.shifts, slice(0, count), columns.shifts),
    )
