"""All components of a decomposition together: each a power step on the tensor without the others, and a measure.

At its fixed points the sum of the components is a stationary point of ``||T - sum_i w_i v_i^p||``, so what one
component lost to the deflation of another before it (Algorithm 1, line 6) is given back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npmdask.algorithms.tensor.components import Components, TensorState, converged, errors_of, rounding, statuses
from npmdask.algorithms.tensor.fit import UNRESOLVED, Fit, fitted, noise_score, norm_from, unbiased
from npmdask.algorithms.tensor.search import Sight, deflated, distinct, fresh, picked, put, random_units, seen, stepped
from npmdask.numerics.subspaces import Block

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
        """What the best column has most of: the score; its size where weights have both signs."""
        return np.abs(scores) if self.order == 4 else scores

    def noise(self, state: TensorState) -> float:
        """The score that noise as large as what is left would reach."""
        left = unbiased(state.left, state.count, state.d, self.order)
        return state.margin * noise_score(left, state.d, self.order)

    def silent(self, state: TensorState, sight: Sight, norms: np.ndarray) -> bool:
        """Whether what is left has been searched for long enough and shows no more than noise, or than rounding."""
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
        part = Components(
            vectors=vectors,
            products=products,
            trial=stepped(vectors, signs * (fit.rest + vectors * fit.weights)),
            weights=fit.weights,
            norms=fit.norms,
            sharpest=np.minimum(ratio, old.sharpest[:m]),
            landed=old.landed[:m],
            found_at=np.where(np.arange(m) < before, old.found_at[:m], state.step),
        )
        return replace(state, count=m, components=put(old, 0, part))

    def begun(self, state: TensorState, searched: Block, sight: Sight) -> TensorState:
        """Nothing but noise is left: the columns of largest score stand for the components that are not there."""
        m, k, old = state.count, self.target_rank, state.components
        falling = np.argsort(-np.abs(sight.scores), kind="stable")
        spare = distinct(searched, falling, old.trial[:, :m], k - m)
        spare = (spare + [number for number in falling.tolist() if number not in spare])[: k - m]
        trial = np.concatenate([old.trial[:, :m], searched[:, spare]], axis=1)
        return self._going_on(replace(state, stage="joint", iteration=0, components=replace(old, trial=trial)))

    def _going_on(self, state: TensorState) -> TensorState:
        """With random columns, which only measure what is left of T."""
        return replace(state, columns=fresh(self.starts(state)))

    def improved(self, state: TensorState, block: Block, released: Block) -> TensorState:
        """All components from one product of T itself: their residuals, and a power step of each without the others.

        The first is all there is where the rounds have a fixed length: it measures what they found.
        """
        after = self.joint_step(state, block, released)
        spare = self.spare(after)
        if spare.any():  # noise that was taken for components would draw others into a fit that means nothing
            order = np.argsort(spare, kind="stable")
            every = np.concatenate([order, np.arange(after.count, self.target_rank)])
            components = picked(after.components, every)
            before = replace(state, count=state.count - int(spare.sum()), components=components)
            after = self.joint_step(before, *(_reordered(part, every) for part in (block, released)))
        m = after.count
        still = self.iterations is None and after.iteration < self.most_iterations
        done = bool(converged(after, self.tol)[:m].all()) or not still
        return self._going_on(replace(after, iteration=after.iteration + 1, finished=done))

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
            picked(state.components, slice(m, k)),
            vectors=block[:, m:k],
            products=released[:, m:k],
            trial=stepped(block[:, m:k], rest.products[:, : k - m]),
            weights=rest.scores[: k - m],
            norms=rest.residuals[: k - m],
        )
        return replace(state, components=put(state.components, m, spare))


def _reordered(block: Block, every: np.ndarray) -> Block:
    """The first columns of ``block`` in the order ``every``; the others behind them as they are."""
    return np.concatenate([block[:, every], block[:, len(every) :]], axis=1)
