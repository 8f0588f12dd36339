"""The power method with momentum, for products as they are (arXiv 2602.03682; Xu et al. 2018).

::

    Y_l = A X_{l-1} - beta X_{l-2} R_{l-1}^-1,    X_l R_l = Y_l

Values up to 2 sqrt(beta) are damped alike: where they fall slowly, the square root of the steps is enough
(:func:`npmdask.theory.momentum_iterations`). Block Krylov takes fewer still, and keeps all its blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from npmdask.core.algorithms.base import Info, Question, Result
from npmdask.core.algorithms.power import PowerMethod, PowerState
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import options_from
from npmdask.privacy.noisy_products import AUTO, LEAST, momentum_of, require_momentum


@dataclass(frozen=True, kw_only=True)
class MomentumOptions:
    """``algorithm.options`` of "power": a share of the k-th value, or "auto"."""

    momentum: float | str = AUTO

    def __post_init__(self) -> None:
        require_momentum(self.momentum)


@dataclass(frozen=True, kw_only=True)
class MomentumState(PowerState):
    """``past``: X_{l-1} R_l^-1, of which beta times is taken from the next product."""

    past: Block


@dataclass(frozen=True, kw_only=True)
class MomentumPower(PowerMethod):
    """The power method, with what it damps chosen in each step by the Ritz values before.

    Parameters
    ----------
    momentum : a share of the k-th value, or "auto" (:func:`npmdask.privacy.noisy_products.momentum_of`).

    Notes
    -----
    Needs: a random start; no warm start, nothing locked.
    Cost: as the power method, and one block more. Of eigenvalues that the start may have missed no bound is given.
    """

    powers_only: ClassVar[bool] = False

    momentum: float | str = AUTO

    @classmethod
    def make(cls, question: Question, options: Mapping[str, Any]) -> MomentumPower:
        """In float64, so that what is taken back is as exact as the product."""
        asked = options_from("power", MomentumOptions, options)
        return cls(
            target_rank=question.target_rank,
            iteration_rank=question.iteration_rank,
            tol=question.tol,
            momentum=asked.momentum,
        )

    @property
    def state_blocks(self) -> int:
        """Besides those of the power method what is taken back, and the product without it."""
        return super().state_blocks + 3

    def init(self, d: int, *, rng: np.random.Generator, **earlier: Any) -> MomentumState:
        """Line 1: X_0, before which there is nothing."""
        state = super().init(d, rng=rng, **earlier)
        return MomentumState(**vars(state), past=np.zeros_like(state.basis))

    def following(self, state: PowerState, released: Block) -> Block:
        """The product, less what is taken back."""
        assert isinstance(state, MomentumState)
        return released - momentum_of(state.basis, released, self.target_rank, self.momentum) * state.past

    def update(self, state: PowerState, released: Block) -> tuple[PowerState, Info]:
        """Line 2b, and what the next step takes back."""
        after, info = super().update(state, released)
        triangle = after.basis.T @ self.following(state, released)
        return replace(after, past=state.basis @ np.linalg.pinv(triangle, rcond=LEAST)), info  # type: ignore[call-arg]

    def finalize(self, state: PowerState) -> Result:
        """The leading pairs. The block is no power of A times the start, of which a bound could be made."""
        result = super().finalize(state)
        return replace(result, seen=None if result.seen is None else replace(result.seen, degree=None, powers=False))

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> PowerState:
        """The state of a checkpoint."""
        fields: dict[str, Any] = {**arrays, **scalars}
        return MomentumState(**fields)
