"""The deflation meta-algorithm (Duengler and Sanyal 2025, Algorithms 1 and 4): k rounds of a one-direction oracle.

    for i = 1..k:  u_i = oracle(P_{i-1});  P_i = P_{i-1} - u_i u_i^T

<U U^T, Sigma> >= (1 - zeta^2) (sum of the k largest eigenvalues) if every u_i is zeta-approximate for P Sigma P (their
Theorem 2). P is applied to vectors and never formed. There is no loop here: :class:`Deflation` is a state machine like
the oracles, for whatever loop feeds them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic

import numpy as np

from npmdask.core.algorithms import Info, Query, Result, restored
from npmdask.core.algorithms.base import laid_out
from npmdask.core.numerics.subspaces import Block, fix_signs, project_out, unit
from npmdask.dp_pca.base import Answer, BatchQuery, Oracle, Promise, State
from npmdask.dp_pca.record_images import pack_query
from npmdask.errors import BadInputError


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
        """Return the next question. Not after ``finished``."""
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
        """Return the promise of all rounds together."""
        return self.oracle.promise()


# A deflation as an algorithm of the driver: one query, one pass over the records of its batch, one release a step.
#
# The driver knows algorithms by four methods (npmdask.core.algorithms); an oracle inside :class:`.deflation.Deflation`
# asks for summaries of batches. The answers are all that comes back, so a checkpoint holds the public state alone.


@dataclass(frozen=True, kw_only=True)
class RoundsState:
    """State of the rounds: how many answers there were, the deflation, and the value of every direction as released.

    ``ritz_values`` (k): w^T g of the last mean g that was released for w in that round, an estimate of w^T M w;
    ``residual_norms`` (k): |g - w (w^T g)|, mostly noise once a round has settled.
    """

    step: int
    deflation: DeflationState[Any]
    ritz_values: np.ndarray
    residual_norms: np.ndarray


@dataclass(frozen=True, kw_only=True)
class DeflationRounds:
    """``oracle`` for its k rounds of deflation, in records of ``dimension`` d."""

    oracle: Oracle[Any]
    dimension: int
    name: str

    mixed_precision: ClassVar[bool] = False

    @property
    def target_rank(self) -> int:
        return self.oracle.target_rank

    @property
    def iteration_rank(self) -> int:
        """Columns of a block at most: w, what its image is expected to be, and the directions that are found."""
        return 2 + self.oracle.target_rank

    @property
    def state_blocks(self) -> int:
        """d x (k + 2) blocks of float64 held at once: w, U, an answer and copies; what is remembered, four times."""
        return 8 + 4 * -(-self.oracle.remembered // self.iteration_rank)

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> RoundsState:
        """Before the first query: a public random start from the seed of the oracle. Others are refused before."""
        assert locked is None and start is None and d == self.dimension
        zeros = np.zeros(self.target_rank)
        return RoundsState(step=0, deflation=self._deflation.init(d), ritz_values=zeros, residual_norms=zeros)

    @property
    def _deflation(self) -> Deflation[Any]:
        return Deflation(self.oracle)

    def query(self, state: RoundsState) -> Query:
        """Return the next question; the block is [w, centre, U] (d x (2 + j))."""
        asked = self._deflation.query(state.deflation)
        return Query(pack_query(asked.vector, asked.centre, asked.found), batch=asked)

    def update(self, state: RoundsState, released: np.ndarray) -> tuple[RoundsState, Info]:
        """``released``: a column (d x 1) where a mean was asked for, else the number of a range, or nothing."""
        answer = oracle_answer(released)
        values, residuals = state.ritz_values, state.residual_norms
        if isinstance(answer, np.ndarray):
            round_, w = state.deflation.found.shape[1], self._deflation.query(state.deflation).vector
            values, residuals = values.copy(), residuals.copy()
            values[round_] = float(w @ answer)
            residuals[round_] = float(np.linalg.norm(answer - w * values[round_]))
        deflation = self._deflation.update(state.deflation, answer)
        after = replace(state, step=state.step + 1, deflation=deflation, ritz_values=values, residual_norms=residuals)
        done = self._deflation.finished(deflation)
        return laid_out(after), Info(
            ritz_values=values, residual_norms=residuals, asymmetry=0.0, precision="float64", finished=done
        )

    def finalize(self, state: RoundsState) -> Result:
        """The directions by falling value as released; ``products`` are U diag(values): no product is remembered."""
        order = np.argsort(-state.ritz_values, kind="stable")
        found = state.deflation.found[:, order]
        vectors = np.ascontiguousarray(found * fix_signs(found))
        values = state.ritz_values[order]
        return Result(
            values=values, vectors=vectors, products=vectors * values, residual_norms=state.residual_norms[order]
        )

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> RoundsState:
        """The state of a checkpoint."""
        zeros = np.zeros(0)
        like = RoundsState(
            step=0, deflation=self._deflation.init(self.dimension), ritz_values=zeros, residual_norms=zeros
        )
        return restored(like, arrays, scalars)


def oracle_answer(released: np.ndarray) -> Answer:
    """Convert a release, as the driver has it, to the answer that an oracle takes."""
    if released.ndim == 2:
        return released[:, 0].copy()
    return float(released[0]) if len(released) else None


def as_released(answer: Answer) -> np.ndarray:
    """An answer as an array: a column (d x 1) for a mean, one number for a range, none where none was found."""
    if isinstance(answer, np.ndarray):
        return answer[:, None]
    return np.array([] if answer is None else [answer], np.float64)
