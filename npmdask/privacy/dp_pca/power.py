"""The private power method with one column, as an oracle: all records in every step, images clipped around zero.

    w <- normalise(mean of clip(P A_i P w, radius) + noise),   T steps in each of k rounds

Hardt and Price 2014, Figure 3, with p = 1 and records for neighbours; the deflation around it is that of Jambulapati
et al. 2024, whose theorem is for one fixed matrix, here the mean of the records. The k T releases share the budget by
exact Gaussian composition, so noise grows with sqrt(k T). It is what
:class:`~npmdask.privacy.dp_pca.exact_oracle.TightOracle` is without ranges and predictions; a step is one pass, not
two.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npmdask.accounting import Budget, Charge, gaussian_charge, gaussian_multiplier
from npmdask.errors import BadInputError
from npmdask.numerics.subspaces import Block, project_out, unit
from npmdask.privacy.dp_pca.base import Answer, BatchQuery, random_start, spec_of, vector_of
from npmdask.privacy.dp_pca.neighbors import Promise, Relation, promise_of, require_relation
from npmdask.privacy.dp_pca.private_mean import ClippedMean


@dataclass(frozen=True)
class PowerRoundState:
    """Step t of the round (1..T; its answer comes next), w and U."""

    step: int
    vector: np.ndarray
    found: Block


@dataclass(frozen=True, kw_only=True)
class PowerOracle:
    """See the module.

    Parameters
    ----------
    records : n; public: the number, or (record_add_remove) a guess that sums are divided by, which cancels.
    target_rank : k. steps : T of a round.
    radius : what images are clipped to in 2-norm; public.
    budget : of the whole run. relation : see :mod:`npmdask.privacy.dp_pca.neighbors`.
    seed : of the public random starts.

    Notes
    -----
    Neighbours: record_replace, record_zero_out, record_add_remove; k T releases share the budget.
    Guarantee: private for all data; error as of the private power method with one column (npmdask.theory.ppm_error).
    Needs: a public radius, T >= 1; else BadInputError.
    Cost: k T passes over all records, O(d k) each; O(d k) memory.
    """

    records: int
    target_rank: int
    steps: int
    radius: float
    budget: Budget
    relation: Relation = "record_replace"
    seed: int = 0
    multiplier: float = field(init=False)

    def __post_init__(self) -> None:
        require_relation(self.relation)
        if self.target_rank < 1 or self.steps < 1:
            raise BadInputError("a power oracle needs target_rank and steps of at least 1")
        object.__setattr__(self, "multiplier", gaussian_multiplier(self.budget, self.releases))
        self._mean()  # the range of its numbers

    @property
    def releases(self) -> int:
        return self.target_rank * self.steps

    @property
    def remembered(self) -> int:
        return 0

    def widest_noise(self) -> float:
        """The same in every step."""
        return self._mean().stddev

    def init(self, found: Block, earlier: PowerRoundState | None) -> PowerRoundState:
        return PowerRoundState(1, random_start(self.seed, found), found)

    def query(self, state: PowerRoundState) -> BatchQuery:
        zero = np.zeros_like(state.vector)
        return BatchQuery(None, state.vector, state.found, zero, self._mean(), 0)

    def update(self, state: PowerRoundState, answer: Answer) -> PowerRoundState:
        """The answer, at length 1."""
        return replace(state, step=state.step + 1, vector=unit(project_out(vector_of(answer), state.found)))

    def direction(self, state: PowerRoundState) -> np.ndarray | None:
        return state.vector if state.step > self.steps else None

    def promise(self) -> Promise:
        return promise_of(self.charge(), self.relation, self.budget.delta)

    def charge(self) -> Charge:
        return gaussian_charge(self.multiplier, self.releases)

    def spec(self) -> dict[str, Any]:
        return spec_of("power", self)

    def _mean(self) -> ClippedMean:
        return ClippedMean(relation=self.relation, radius=self.radius, count=self.records, multiplier=self.multiplier)
