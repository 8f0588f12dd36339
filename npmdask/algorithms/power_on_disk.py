"""The power method of :mod:`npmdask.algorithms.power` with its blocks in files: for blocks that memory cannot hold.

The same start, steps and stopping rule, so that values agree with those of blocks in memory to rounding. Of a step the
state keeps which files its blocks lie in, their checksums, and what turns X_{l-1} into the Ritz vectors: these are
formed once, tile by tile, as the answer is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.algorithms.base import Info, Query, Result, Seen
from npmdask.algorithms.power import PowerMethod
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import (
    BASES,
    Block,
    KeptBlock,
    Places,
    TurnedBlock,
    tiled_orth,
    tiled_random,
    tiled_rayleigh_ritz,
)


@dataclass(frozen=True, kw_only=True)
class DiskPowerState:
    """Step l: X_l lies in the place of step l, X_{l-1} in that before it.

    ``checksums`` and ``previous_checksums``: of their tiles (empty before the first step). ``turn`` (p x k): X_{l-1}
    times it are the Ritz vectors. ``seen_values`` and ``seen_gram``: of all p Ritz pairs.
    """

    step: int
    columns: int  # d
    checksums: np.ndarray
    previous_checksums: np.ndarray
    ritz_values: np.ndarray
    residual_norms: np.ndarray
    turn: Block
    seen_values: np.ndarray
    seen_gram: np.ndarray


@dataclass(frozen=True, kw_only=True)
class PowerOnDisk(PowerMethod):
    """The power method with blocks in files.

    Parameters
    ----------
    workspace : where they lie, which a run says; without one, as in a rehearsal of few rows, blocks are in memory.

    Notes
    -----
    Needs: disk for three blocks; one data-independent start (no warm start, nothing locked), products without noise.
    Cost: besides the products, a step reads a block nine times and writes one.
    """

    workspace: Places | None = None

    def init(self, d: int, *, rng: np.random.Generator, **earlier: Any) -> Any:
        """Line 1: X_0 random and orthonormal."""
        if self.workspace is None:
            return super().init(d, rng=rng, **earlier)
        start = self._basis(0, d)
        self.workspace.reserve([self._basis(step, d) for step in range(BASES)])
        tiled_random(start, rng, self.workspace.threads)
        k, none = self.target_rank, np.zeros(0)
        return DiskPowerState(
            step=0,
            columns=d,
            checksums=start.sums(self.workspace.threads),
            previous_checksums=np.zeros(0, np.uint32),
            ritz_values=np.zeros(k),
            residual_norms=np.full(k, np.inf),
            turn=np.zeros((self.iteration_rank, k)),
            seen_values=none,
            seen_gram=np.zeros((0, 0)),
        )

    def query(self, state: Any) -> Query:
        """Line 2a: the product with X_{l-1}; always in float64."""
        if self.workspace is None:
            return super().query(state)
        asked: Any = self._basis(state.step, state.columns).known_by(state.checksums)
        return Query(asked)

    def update(self, state: Any, released: Any) -> tuple[Any, Info]:
        """Line 2b: Ritz pairs of range(X_{l-1}), and X_l in the place of the product."""
        if self.workspace is None:
            return super().update(state, released)
        basis: Any = self.query(state).block
        found = tiled_rayleigh_ritz(basis, released, self.target_rank, self.workspace.threads)
        values, residuals = found.values[: self.target_rank], np.sqrt(np.diagonal(found.gram)[: self.target_rank])
        info = Info(
            ritz_values=values, residual_norms=residuals, asymmetry=found.asymmetry, precision="float64", missed=0.0
        )
        self.workspace.note(state.step + 1, {})  # from here on the product is no longer what it was
        tiled_orth(released, found.scale, generator(0, "completion", state.step), self.workspace.threads)
        released.flush()
        after = DiskPowerState(
            step=state.step + 1,
            columns=state.columns,
            checksums=released.sums(self.workspace.threads),
            previous_checksums=state.checksums,
            ritz_values=values,
            residual_norms=residuals,
            turn=found.turn,
            seen_values=found.values,
            seen_gram=found.gram,
        )
        return after, info

    def finalize(self, state: Any) -> Result:
        """The leading pairs; vectors are formed as they are written."""
        if not isinstance(state, DiskPowerState):
            return super().finalize(state)
        vectors: Any = None  # of who only asks for values
        if self.workspace is not None:
            block = self._basis(state.step - 1, state.columns).known_by(state.previous_checksums)
            vectors = TurnedBlock(block, state.turn)
        seen = Seen(values=state.seen_values, gram=state.seen_gram, degree=state.step - 1, powers=True)
        return Result(
            values=state.ritz_values,
            vectors=vectors,
            products=vectors,  # of which no copy is kept: see docs/decisions/0057
            residual_norms=state.residual_norms,
            seen=seen,
        )

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> Any:
        """The state of a checkpoint."""
        return super().load(arrays, scalars) if self.workspace is None else DiskPowerState(**{**arrays, **scalars})

    def _basis(self, step: int, d: int) -> KeptBlock:
        assert self.workspace is not None
        return self.workspace.basis(step, (d, self.iteration_rank))
