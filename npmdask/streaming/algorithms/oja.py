"""Oja's method for k directions, a batch at a time: a step along the batch's second moment, then QR.

    U_t = orth(U_{t-1} + C_t U_{t-1} diag(eta_t)),   C_t = batch^T batch / n

* eta_t = eta0 / t (Arora and Marinov 2019, section 7), or eta0 / (shift + t) with the constants of a theorem
  (``Oja.theory``: Duengler and Sanyal 2025, Theorem 7, after Jain et al. 2016);
* step-free (Henriksen and Ward 2019, AdaOja): eta_t[j] = 1 / b_t[j], b_t[j]^2 = b_{t-1}[j]^2 + ||C_t u_j||^2.

With ``memory`` f < 1, t is the number of steps that are remembered, (1 - f^t) / (1 - f), and b^2 fades by f a step, so
that the step size does not fall to zero and the directions follow a stream that drifts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from npmdask.core.algorithms.base import (
    OfAnyBatch,
    StreamInfo,
    StreamResult,
    checked_batch,
    effective_steps,
    require_memory,
    require_rank,
    require_rows,
)
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, orth, random_orthonormal
from npmdask.errors import require
from npmdask.streaming.algorithms.low_rank_update import carried_moment, leading_eigenpairs
from npmdask.theory import oja_shift


@dataclass(frozen=True, kw_only=True)
class OjaState:
    """U_t (d x k), the squares of b_t (k), and the second moment of the rows along U_t (k x k)."""

    step: int
    rows: int
    basis: Block
    squares: np.ndarray
    moment: Block


@dataclass(frozen=True, kw_only=True)
class Oja(OfAnyBatch[OjaState]):
    """Block Oja for the ``target_rank`` (k) leading directions.

    Parameters
    ----------
    eta0 : the step is eta0 / (shift + t), in units of one over the mean square of the rows; None: step-free.
    shift : added to t.
    memory : what a step leaves of the weight of those before it.
    start : b_0 of the step-free rule, a guess of ||C u|| that is too small on purpose.

    Notes
    -----
    Neighbours: none, not private (private: npmdask.dp_pca.paper_oracles).
    Guarantee: with ``theory`` and k = 1, Theorem 7 of Duengler and Sanyal 2025; step-free, AdaOja's.
    Needs: finite rows, positive steps, k <= d; ``theory``: a gap, alpha > 1/2, a small first step; else BadInputError.
    Cost: O(d k) a row and O(d k^2) a batch; O(d k) memory.
    """

    name: ClassVar[str] = "oja"
    kept: ClassVar[type[OjaState]] = OjaState
    moment: ClassVar[int] = 2

    target_rank: int
    eta0: float | None = None
    shift: float = 0.0
    memory: float = 1.0
    start: float = 1e-5

    def __post_init__(self) -> None:
        require_memory(self.memory)
        sensible = (self.eta0 is None or self.eta0 > 0) and self.shift >= 0 and self.start > 0
        require(
            sensible, "eta0 and start are positive and shift is not negative: leave them out for the step-free rule"
        )

    @classmethod
    def theory(
        cls,
        *,
        target_rank: int,
        top: float,
        second: float,
        deviation: float,
        variance: float,
        alpha: float,
        delta: float,
    ) -> Oja:
        """The steps of Theorem 7: alpha / ((l1 - l2) (beta + t)), proved for k = 1.

        ``top``, ``second``: l1 > l2, the leading eigenvalues; ``deviation``: M', a bound of ||x x^T - C||;
        ``variance``: V', the bound of its variance plus l1^2; ``alpha`` > 1/2; ``delta``: probability of failure.
        Raises BadInputError where the theorem does not apply.
        """
        gap = top - second
        require(gap > 0 and alpha > 0.5 and 0 < delta < 1, "the theorem needs top > second, alpha > 1/2, 0 < delta < 1")
        beta = oja_shift(top, second, deviation, variance, alpha, delta).value
        rule = cls(target_rank=target_rank, eta0=alpha / gap, shift=beta)
        largest = alpha / (gap * (beta + 1))
        require(
            largest <= 1 / (4 * max(top, deviation)),
            f"a first step of {largest:.1e} is too large: deviation or variance is too small for top = {top}",
        )
        return rule

    def init(self, d: int, *, rng: np.random.Generator) -> OjaState:
        """U_0 random orthonormal."""
        k = self.target_rank
        require_rank(k, d)
        return OjaState(
            step=0,
            rows=0,
            basis=random_orthonormal(d, k, rng),
            squares=np.full(k, self.start**2),
            moment=np.zeros((k, k)),
        )

    def update(self, state: OjaState, batch: np.ndarray) -> tuple[OjaState, StreamInfo]:
        """One step along the mean of x x^T over the batch."""
        rows = checked_batch(batch, len(state.basis))
        images = rows @ state.basis
        gradient = rows.T @ images
        gradient /= len(rows)
        remembered = effective_steps(state.step + 1, self.memory)
        squares = self.memory * state.squares + np.einsum("ij,ij->j", gradient, gradient)
        steps = 1 / np.sqrt(squares) if self.eta0 is None else self.eta0 / (self.shift + remembered)
        gradient *= steps
        gradient += state.basis
        basis = orth(gradient, generator(0, "completion", state.step))
        after = OjaState(
            step=state.step + 1,
            rows=state.rows + len(rows),
            basis=basis,
            squares=squares,
            moment=carried_moment(state.moment, basis.T @ state.basis, images, 2 / (remembered + 1)),
        )
        size = float(np.max(steps))
        info = StreamInfo(rows=len(rows), rank=self.target_rank, steps=1, step_size=size, batch_rows=len(rows))
        return after, info

    def finalize(self, state: OjaState) -> StreamResult:
        """U_t turned to the eigenvectors of the moment along it. Raises BadInputError before the first row."""
        require_rows(state.rows)
        pairs = leading_eigenpairs(state.basis, state.moment, self.target_rank)
        return StreamResult(vectors=pairs.vectors, values=pairs.values, rows=state.rows)
