"""PCA as a convex problem, by stochastic gradients: MSG and its regularised form RMSG (Arora and Marinov 2019,
equations 3 and 5, after Arora, Cotter and Srebro 2013 and Mianjy and Arora 2018).

    P_{t+1} = Pi((1 - ridge eta_t) P_t + eta_t C_t),   C_t the second moment of one batch (of one row in the papers)

Pi projects onto {0 <= P <= I, tr P <= k}. The papers print tr P = k; there a batch of small trace makes the shift of
the projection positive, which lifts all d zero eigenvalues: the iterate has rank d at once. The optimum is the same,
because C >= 0, and so are the shifts from when the trace is used up. ``trace = "exactly"`` is as printed.

P is held as level I + U diag(s - level) U^T (level > 0 only for "exactly"), so that nothing is d x d: a step is an
update of these eigenpairs by the n rows of the batch (``updated_eigen``) and a projection of the spectrum. Rows inside
of span(U) add no vector, and eigenvalues that are projected to zero take theirs with them: the rank adapts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Literal

import numpy as np

from npmdask.algorithms.streaming.base import (
    RowsQuery,
    StreamInfo,
    StreamResult,
    checked_batch,
    effective_steps,
    require,
    require_memory,
    require_rank,
)
from npmdask.algorithms.streaming.capped_simplex import project_spectrum
from npmdask.algorithms.streaming.low_rank_update import carried_moment, leading_pairs, straightened, updated_eigen
from npmdask.errors import BadInputError
from npmdask.numerics.subspaces import Block

STRAIGHTENED_EVERY = 128  # steps, by their number: each adds about 1e-16 to the error of U^T U, which adds up


@dataclass(frozen=True, kw_only=True)
class ConvexState:
    """P_t: vectors U (d x r), weights s (r, falling), the level of all other directions; the moment along U (r x r)."""

    step: int
    rows: int
    level: float
    vectors: Block
    weights: np.ndarray
    moment: Block


@dataclass(frozen=True, kw_only=True)
class MSG:
    """Matrix stochastic gradient for the ``target_rank`` (k) leading directions, eta_t = eta0 / sqrt(t).

    Parameters
    ----------
    target_rank : k.
    eta0 : the first step, in units of one over the mean square norm of the rows (the papers assume norms of at most 1).
    memory : what a step leaves of the weight of those before it; below 1 the step size does not fall to zero.
    trace : "at_most" k, or "exactly" k as printed.

    Notes
    -----
    Neighbours: none, not private.
    Guarantee: suboptimality eps after O(k / eps^2) steps on average, RMSG after O(k / (ridge^2 eps)).
    Needs: rows of mean square norm about 1, eta0 > 0, k <= d, and ridge >= 0; else BadInputError.
    Cost: O(d (r^2 + n^2) + (r + n)^3) a batch of n rows, r the rank of the iterate, which the data decide; of one row
    O(d r^2 + r^3). O(d (r + n)) memory.
    """

    name: ClassVar[str] = "msg"
    moment: ClassVar[int] = 2

    target_rank: int
    eta0: float = 0.5
    memory: float = 1.0
    trace: Literal["at_most", "exactly"] = "at_most"

    def __post_init__(self) -> None:
        require_memory(self.memory)
        require(self.eta0 > 0, f"eta0 = {self.eta0}: a step is positive; 0.5 suits rows of norm about 1")
        require(self.trace in ("at_most", "exactly"), f"trace = {self.trace!r}: it is 'at_most' or 'exactly'")

    @property
    def shrinkage(self) -> float:
        """The ridge of the objective; none in MSG."""
        return 0.0

    def step_size(self, t: int) -> float:
        """eta_t, t = 1, 2, ..."""
        return self.eta0 / sqrt(effective_steps(t, self.memory))

    def init(self, d: int, *, rng: np.random.Generator) -> ConvexState:
        """P_0 = 0, which favours no direction: ``rng`` is not needed."""
        require_rank(self.target_rank, d)
        return ConvexState(
            step=0, rows=0, level=0.0, vectors=np.zeros((d, 0)), weights=np.zeros(0), moment=np.zeros((0, 0))
        )

    def query(self, state: ConvexState) -> RowsQuery:
        """Any batch; one batch is one step."""
        return RowsQuery(None)

    def update(self, state: ConvexState, batch: np.ndarray) -> tuple[ConvexState, StreamInfo]:
        """One gradient step and its projection."""
        rows = checked_batch(batch, len(state.vectors))
        eta = self.step_size(state.step + 1)
        keep = 1 - eta * self.shrinkage
        above = keep * np.maximum(state.weights - state.level, 0.0)
        images = rows @ state.vectors
        moved = updated_eigen(state.vectors, above, rows, eta / len(rows), images)
        level = keep * state.level
        found = project_spectrum(
            level + moved.values,
            self.target_rank,
            exactly=self.trace == "exactly",
            rest=level,
            multiplicity=len(rows.T) - len(moved.values),
        )
        count = int(np.count_nonzero(found.values > found.rest))  # the first ones: a projection keeps the order
        vectors = moved.leading(count)
        if (state.step + 1) % STRAIGHTENED_EVERY == 0:
            vectors = straightened(vectors)
        weight = 2 / (effective_steps(state.step + 1, self.memory) + 1)
        after = ConvexState(
            step=state.step + 1,
            rows=state.rows + len(rows),
            level=found.rest,
            vectors=vectors,
            weights=found.values[:count],
            moment=carried_moment(state.moment, moved.turn(count), images, weight),
        )
        rank = len(vectors) if found.rest > 0 else vectors.shape[1]
        return after, StreamInfo(rows=len(rows), rank=rank, steps=1, step_size=eta, batch_rows=len(rows))

    def finalize(self, state: ConvexState) -> StreamResult:
        """The k leading eigenvectors of P_t. Raises BadInputError before the first row."""
        if not state.rows:
            raise BadInputError("no rows were streamed: there is nothing to answer with yet")
        k = self.target_rank
        pairs = leading_pairs(state.vectors[:, :k], state.moment[:k, :k], k)
        return StreamResult(vectors=pairs.vectors, values=pairs.values, rows=state.rows)

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> ConvexState:
        """The state of a checkpoint."""
        fields: dict[str, Any] = {**arrays, **scalars}
        return ConvexState(**fields)


@dataclass(frozen=True, kw_only=True)
class RMSG(MSG):
    """MSG with (ridge / 2) ||P||_F^2 taken from the objective, eta_t = eta0 / (ridge t) (eta0 <= 1).

    ``ridge`` below the gap lambda_k - lambda_{k+1} leaves the optimum where it is (half of it is recommended) and
    needs O(k / (ridge^2 eps)) steps where MSG needs O(k / eps^2). Zero is MSG, with the steps of MSG.
    """

    name: ClassVar[str] = "rmsg"

    ridge: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.ridge >= 0, f"ridge = {self.ridge}: half the gap of the eigenvalues is recommended, 0 is MSG")
        require(not self.ridge or self.eta0 <= 1, f"eta0 = {self.eta0}: beyond 1 the ridge would turn P negative")

    @property
    def shrinkage(self) -> float:
        return self.ridge

    def step_size(self, t: int) -> float:
        """eta_t, t = 1, 2, ..."""
        return self.eta0 / (self.ridge * effective_steps(t, self.memory)) if self.ridge else super().step_size(t)
