"""The deflation meta-algorithm (Duengler and Sanyal 2025, Algorithms 1 and 4): k rounds of a one-direction oracle.

    for i = 1..k:  u_i = oracle(P_{i-1});  P_i = P_{i-1} - u_i u_i^T

<U U^T, Sigma> >= (1 - zeta^2) (sum of the k largest eigenvalues) if every u_i is zeta-approximate for P Sigma P (their
Theorem 2). P is applied to vectors and never formed. There is no loop here: :class:`Deflation` is a state machine like
the oracles, for whatever loop feeds them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.projections import project_out, unit
from npmdask.numerics.subspaces import Block
from npmdask.privacy.dp_pca.base import Answer, BatchQuery, Oracle, State
from npmdask.privacy.dp_pca.neighbors import Promise


@dataclass(frozen=True)
class DeflationState(Generic[State]):
    """U so far (d x j), the state of the round's oracle, and how many answers there were. Public."""

    found: Block
    inner: State
    answers: int


@dataclass(frozen=True)
class Deflation(Generic[State]):
    """``oracle`` for its ``target_rank`` rounds."""

    oracle: Oracle[State]

    def init(self, dimension: int) -> DeflationState[State]:
        """The state before the first query; ``dimension`` d >= target_rank."""
        if not 1 <= self.oracle.target_rank <= dimension:
            raise BadInputError(f"{self.oracle.target_rank} directions do not fit into {dimension} dimensions")
        found = np.zeros((dimension, 0))
        return DeflationState(found, self.oracle.init(found, None), 0)

    def query(self, state: DeflationState[State]) -> BatchQuery:
        """What is asked next. Not after ``finished``."""
        return replace(self.oracle.query(state.inner), number=state.answers)

    def update(self, state: DeflationState[State], answer: Answer) -> DeflationState[State]:
        """The state after an answer; it begins the next round where a direction is found. Pure."""
        inner, answers = self.oracle.update(state.inner, answer), state.answers + 1
        direction = self.oracle.direction(inner)
        if direction is None:
            return DeflationState(state.found, inner, answers)
        found = np.column_stack([state.found, unit(project_out(direction, state.found))])
        if found.shape[1] < self.oracle.target_rank:
            inner = self.oracle.init(found, inner)
        return DeflationState(found, inner, answers)

    def finished(self, state: DeflationState[State]) -> bool:
        return state.found.shape[1] == self.oracle.target_rank

    def promise(self) -> Promise:
        """Of all rounds together."""
        return self.oracle.promise()
