"""The private tensor power method (Wang and Anandkumar 2016, Algorithm 3): every number used was released with noise.

For each of k components: L restarts from the public seed, R times

    Y = T(I, u, u) + G        released, one pass for all L columns
    u = (Y - sum_r w_r (v_r^T u)^2 v_r) / norm

then one release of the L scores T(u, u, u) + g, whose largest (less what was found before) is the weight, and its u the
component. Deflation, the choice among restarts and the division by the norm see released numbers only: post-processing.
No early stop and no harvest of other columns: how many releases there are, k (R + 1), would follow from the data.
The scores are released by themselves, although u^T Y is known: its noise is larger by 1 / max |u_i|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from npmdask.core.algorithms.base import Info, OfOneState, Query, Result
from npmdask.core.numerics.subspaces import Block
from npmdask.tensors.components import deflated, random_units, scores_of, unit_columns

FAR = 0.5  # sine of an angle: beyond it a vector is no component any more
CLEAR = 4.0  # standard deviations of a score: the largest of 20 scores of pure noise exceeds it once in 1600 times
LEFT = 2 / math.sqrt(3)  # the steepest slope of cos^3


class ColumnNoise(Protocol):
    """Public view of a mechanism: standard deviations of the noise by column, and their ratio to the paper's.

    ``stddevs``: of an entry, or the score, of each column (L). ``to_paper``: the largest noise of a column over that of
    the paper's formula.
    """

    def stddevs(self, block: Block, *, scores: bool) -> np.ndarray: ...
    def to_paper(self, block: Block, *, scores: bool) -> float: ...


@dataclass(frozen=True, kw_only=True)
class PrivateTensorState:
    """The L columns of this round, and what was found in the rounds before; zero where nothing is yet."""

    step: int
    block: Block  # u, d x L
    asked: Block  # the u of the last contraction
    product: Block  # the last contraction as it was released, deflated
    vectors: Block  # d x k
    weights: np.ndarray  # k
    residuals: np.ndarray  # k
    stddevs: np.ndarray  # of the noise in each weight, k
    noise_norms: np.ndarray  # of the noise in the last contraction before each vector, about; k
    to_paper: float  # the largest noise of a column so far, over that of the paper's formula


@dataclass(frozen=True, kw_only=True)
class PrivateTensorPower(OfOneState[PrivateTensorState]):
    """The private tensor power method for ``target_rank`` (k) components.

    Parameters
    ----------
    target_rank : k, rounds of deflation.
    restarts : L, columns iterated together. They share a pass, but each is a release: noise grows as sqrt(k L (R + 1)).
    iterations : R, in each round; fixed in advance.
    noise : tells how much noise a column carries (the mechanism).
    seed : of the starts, public.

    Notes
    -----
    Neighbours: tensor_entry or tensor_orbit; all k L (R + 1) releases together keep the mechanism's budget.
    Guarantee: private for all data. The first pair is within O(1 / sqrt(d)) at the epsilon of Theorem 4.2 (Wang and
        Anandkumar 2016), of the others the paper promises nothing.
    Needs: components spread over many coordinates, R and L fixed in advance, k <= d; else refused where it is posed.
    Cost: k (R + 1) passes of L columns; O(d (L + k)) memory.
    """

    name: ClassVar[str] = "tensor-power"
    kept: ClassVar[type[PrivateTensorState]] = PrivateTensorState
    mixed_precision: ClassVar[bool] = False

    target_rank: int
    restarts: int
    iterations: int
    noise: ColumnNoise
    seed: int = 0

    @property
    def iteration_rank(self) -> int:
        return self.restarts

    @property
    def releases(self) -> int:
        """Blocks that a run asks for: k (R + 1)."""
        return self.target_rank * (self.iterations + 1)

    @property
    def state_blocks(self) -> int:
        """d x L blocks of float64 held at once: three of a state, twice, a copy being written, and the vectors."""
        return 9 + 3 * -(-self.target_rank // self.restarts)

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> PrivateTensorState:
        """L directions, from the public seed alone. ``locked`` and ``start`` are refused before (posing)."""
        assert locked is None and start is None
        nothing, k = np.zeros((d, self.restarts)), self.target_rank
        return PrivateTensorState(
            step=0,
            block=random_units(d, self.restarts, seed=self.seed, place=0),
            asked=nothing,
            product=nothing,
            vectors=np.zeros((d, k)),
            weights=np.zeros(k),
            residuals=np.zeros(k),
            stddevs=np.zeros(k),
            noise_norms=np.zeros(k),
            to_paper=0.0,
        )

    def query(self, state: PrivateTensorState) -> Query:
        """T(I, u, u) of every column, or its score after R of them: one pass."""
        return Query(state.block, scores=self._scores(state))

    def _scores(self, state: PrivateTensorState) -> bool:
        return state.step % (self.iterations + 1) == self.iterations

    def update(self, state: PrivateTensorState, released: Block) -> tuple[PrivateTensorState, Info]:
        """``released``, d x L or scores (1 x L), is all there is of the data from here on."""
        scores = self._scores(state)
        ratio = self.noise.to_paper(state.block, scores=scores)
        after, info = self._choose(state, released) if scores else self._iterate(state, released)
        return replace(after, to_paper=max(state.to_paper, ratio)), info

    def _iterate(self, state: PrivateTensorState, released: Block) -> tuple[PrivateTensorState, Info]:
        done = state.step // (self.iterations + 1)
        product = deflated(released, state.block, state.vectors[:, :done], state.weights[:done])
        values = scores_of(product, state.block)
        info = _info(values, np.linalg.norm(product - state.block * values, axis=0))
        block = unit_columns(product, instead=state.block)  # released values lie on a grid: all may be zero
        after = replace(state, step=state.step + 1, block=block, asked=state.block, product=product)
        return after, info

    def _choose(self, state: PrivateTensorState, released: Block) -> tuple[PrivateTensorState, Info]:
        done = state.step // (self.iterations + 1)
        cosines = state.vectors[:, :done].T @ state.block
        scores = released[0] - state.weights[:done] @ cosines**3
        residuals = np.linalg.norm(state.product - state.asked * scores, axis=0)
        best = int(np.argmax(scores))
        vectors, weights = state.vectors.copy(), state.weights.copy()
        left, stddevs, norms = state.residuals.copy(), state.stddevs.copy(), state.noise_norms.copy()
        vectors[:, done], weights[done], left[done] = state.block[:, best], scores[best], residuals[best]
        stddevs[done] = self.noise.stddevs(state.block, scores=True)[best]
        norms[done] = self.noise.stddevs(state.asked, scores=False)[best] * math.sqrt(len(vectors))
        after = replace(
            state,
            step=state.step + 1,
            block=random_units(len(vectors), self.restarts, seed=self.seed, place=done + 1),
            vectors=vectors,
            weights=weights,
            residuals=left,
            stddevs=stddevs,
            noise_norms=norms,
        )
        return after, _info(scores, residuals)

    def finalize(self, state: PrivateTensorState) -> Result:
        """Return the components that were found, the largest weight first.

        ``residual_norms`` are ||Y - w u|| of the last contraction before the component: mostly noise. ``products`` are
        w v, as T(I, v, v) itself was never released. ``facts["errors"]``: the likely sine of the angle to the true
        vector, the norm of the noise in that contraction over the weight (earlier noise counts by its square only), and
        the square of what else the last iteration turned it by: a power step squares the error that it meets.
        ``facts["status"]``: "found"; "open" where that sine is above FAR; "surplus" where even the weight is within
        CLEAR standard deviations of the noise on it and what the deflation of the components before may have left.
        """
        order = np.argsort(-state.weights, kind="stable")
        vectors, weights = np.ascontiguousarray(state.vectors[:, order]), state.weights[order]
        stddevs, turned = state.stddevs[order], np.minimum(_estimated_errors(state), 1.0)
        clear = (state.weights > CLEAR * state.stddevs + _left_by_deflation(state.weights, turned))[order]
        errors = np.where(clear, turned[order], 1.0)
        status = np.where(clear, np.where(errors > FAR, "open", "found"), "surplus")
        return Result(
            values=weights,
            vectors=vectors,
            products=vectors * weights,
            residual_norms=state.residuals[order],
            facts={"status": status.tolist(), "errors": errors.tolist(), "value_stddevs": stddevs.tolist()},
        )


def _estimated_errors(state: PrivateTensorState) -> np.ndarray:
    """Estimate how far off each vector is: by its noise, and by iterations that had not come to rest (k)."""
    weights = np.where(state.weights > 0, state.weights, np.inf)
    noise, moved = state.noise_norms / weights, state.residuals / weights
    return noise + np.maximum(moved**2 - noise**2, 0.0)


def _left_by_deflation(weights: np.ndarray, sines: np.ndarray) -> np.ndarray:
    """The largest score that the components before each may have left in the tensor (k).

    w v v v - w v' v' v' at a unit u is w (cos^3 a - cos^3 b), at most LEFT w sin(v, v'); of orthogonal components
    u meets one at a time, so it is the largest and not the sum.
    """
    each = LEFT * np.maximum(weights, 0.0) * sines
    return np.maximum.accumulate(np.concatenate([[0.0], each[:-1]]))


def _info(values: np.ndarray, residuals: np.ndarray) -> Info:
    """The columns of a step, the largest value first; all of it from what was released."""
    order = np.argsort(-values, kind="stable")
    return Info(ritz_values=values[order], residual_norms=residuals[order], asymmetry=0.0, precision="float64")
