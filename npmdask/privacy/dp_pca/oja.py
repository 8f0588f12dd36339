"""Oja's steps as an oracle: what those of :mod:`npmdask.privacy.dp_pca.paper_oracles` have in common.

omega_t = normalise(P (omega_{t-1} + eta_t g_t)),   g_t released of batch t of the round;  k rounds of n / k records
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.projections import project_out, unit
from npmdask.numerics.subspaces import Block
from npmdask.privacy.dp_pca.base import Answer, BatchQuery, Mechanism, random_start, vector_of


@dataclass(frozen=True)
class OjaState:
    """Step t of the round (answers come after it), omega_{t-1}, U, and a range that was released for this step."""

    step: int
    vector: np.ndarray
    found: Block
    spread: float | None = None


@dataclass(frozen=True, kw_only=True)
class OjaOracle(ABC):
    """See the module.

    Parameters
    ----------
    records : n; public. target_rank : k; every round has floor(n / k) records.
    batch : B; every step has B of them, T = floor(n / k / B).
    rates : (offset, slope) for every round: eta_t = 1 / (offset + slope t), t = 1, 2, ...; public.
    seed : of the public random starts.
    """

    records: int
    target_rank: int
    batch: int
    rates: tuple[tuple[float, float], ...]
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_batches()
        if len(self.rates) != self.target_rank or not all(a >= 0 and b >= 0 and a + b > 0 for a, b in self.rates):
            raise BadInputError("rates are one pair (offset, slope) for every round, not negative and not both zero")

    def _check_batches(self) -> None:
        if self.target_rank < 1 or not 1 <= self.batch <= self.records // self.target_rank:
            raise BadInputError(
                f"{self.records} records cannot give {self.target_rank} rounds a batch of {self.batch}: use fewer"
            )

    @property
    def steps(self) -> int:
        """T: of a round."""
        return self.records // self.target_rank // self.batch

    @property
    def releases(self) -> int:
        """The most that a run asks."""
        return self.target_rank * self.steps

    @property
    def remembered(self) -> int:
        return 0

    def init(self, found: Block, earlier: OjaState | None) -> OjaState:
        return OjaState(1, random_start(self.seed, found), found)

    def query(self, state: OjaState) -> BatchQuery:
        zero = np.zeros_like(state.vector)
        return BatchQuery(self._rows(state), state.vector, state.found, zero, self._mechanism(state), 0)

    def update(self, state: OjaState, answer: Answer) -> OjaState:
        """An Oja step."""
        offset, slope = self.rates[state.found.shape[1]]
        moved = state.vector + vector_of(answer) / (offset + slope * state.step)
        return OjaState(state.step + 1, unit(project_out(moved, state.found)), state.found)

    def direction(self, state: OjaState) -> np.ndarray | None:
        return state.vector if state.step > self.steps else None

    def _rows(self, state: OjaState) -> range | None:
        return self._batch(state)

    def _batch(self, state: OjaState) -> range:
        first = state.found.shape[1] * (self.records // self.target_rank) + (state.step - 1) * self.batch
        return range(first, first + self.batch)

    @abstractmethod
    def _mechanism(self, state: OjaState) -> Mechanism: ...
