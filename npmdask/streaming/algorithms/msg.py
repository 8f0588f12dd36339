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

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from npmdask.core.algorithms.base import (
    OfAnyBatch,
    OfOneState,
    RowsQuery,
    StreamInfo,
    StreamResult,
    checked_batch,
    effective_steps,
    require_memory,
    require_rank,
    require_rows,
)
from npmdask.core.numerics.subspaces import Block
from npmdask.errors import BadInputError, require
from npmdask.streaming.algorithms.low_rank_update import (
    SumEigen,
    carried_moment,
    leading_eigenpairs,
    leading_of_sum,
    orthonormalized,
    scatter_spectrum,
    updated_eigen,
)
from npmdask.theory.convex import Schedule, mbrmsg_params

# Projection of a spectrum onto {0 <= s <= 1, sum s = k}, or sum s <= k: all that is left of the projection of a
# symmetric matrix onto {0 <= P <= I, tr P = k} (Arora and Marinov 2019, Problem 2) once its eigenvectors are known.
#
# The nearest point is ``clip(mu + shift, 0, 1)`` for one shift, the root of a sum that is piecewise linear and never
# falls; its corners are ``-mu_i`` and ``1 - mu_i``. The corners are sorted and bisected, every sum is formed again
# from clipped values (no prefix sums, in which large eigenvalues would drown the small), and the shift is exact on
# its piece: O(r log r). For sum <= k the shift is never positive, so that eigenvalues that are zero stay zero; with
# the printed equality one batch of small trace lifts all d of them.


Spectrum = np.ndarray


class Projected(NamedTuple):
    """The nearest spectrum, what the repeated eigenvalue ``rest`` became, and the shift that did it."""

    values: Spectrum
    rest: float
    shift: float


def project_spectrum(
    mu: Spectrum, total: float, *, exactly: bool = False, rest: float = 0.0, multiplicity: int = 0
) -> Projected:
    """The point of {0 <= s <= 1, sum s <= total} nearest to the eigenvalues ``mu`` (r, in any order).

    ``exactly``: of {sum s = total}. ``rest``: a further eigenvalue, ``multiplicity`` times (those of a d x d matrix
    that are not listed). Raises BadInputError where ``exactly`` asks for more than there are eigenvalues.
    """
    points = np.append(np.asarray(mu, dtype=np.float64), rest)
    weights = np.append(np.ones(len(points) - 1), float(multiplicity))
    if not np.isfinite(points).all() or total < 0:
        raise BadInputError(
            f"the spectrum to project must be finite, and its sum {total} not negative: check the step size"
        )
    if exactly and total > weights.sum():
        raise BadInputError(
            f"{weights.sum():.0f} eigenvalues of at most 1 cannot sum to {total}: choose a smaller rank"
        )
    fits = weights @ np.clip(points, 0.0, 1.0) <= total
    shift = 0.0 if fits and not exactly else _shift(points, weights, total)
    moved = np.clip(points + shift, 0.0, 1.0)
    return Projected(moved[:-1], float(moved[-1]), shift)


def _shift(points: Spectrum, weights: Spectrum, total: float) -> float:
    """The shift at which the clipped sum is ``total``: bisection over the corners, then linear."""
    counted = points[weights > 0]
    corners = np.unique(np.concatenate([-counted, 1 - counted]))
    low, high = 0, len(corners) - 1  # the sum is 0 at the first corner and complete at the last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _sum(points, weights, corners[middle]) < total else (low, middle)
    missing = total - _sum(points, weights, corners[low])
    inside = points + (corners[low] + corners[high]) / 2
    free = weights @ ((inside > 0) & (inside < 1))
    return float(np.clip(corners[low] + missing / free, corners[low], corners[high])) if free else float(corners[high])


def _sum(points: Spectrum, weights: Spectrum, shift: float) -> float:
    return float(weights @ np.clip(points + shift, 0.0, 1.0))


def stays_rank(mu: Spectrum, k: int) -> bool:
    """Say whether eigenvalues ``mu`` >= 0 project to exactly the projector on the k leading: mu_k - mu_{k+1} >= 1.

    Necessary and sufficient, for sum = k and for sum <= k (there too the shift that is wanted is not positive).
    """
    falling = np.sort(np.concatenate([mu, np.zeros(max(k + 1 - len(mu), 0))]))[::-1]
    return bool(falling[k - 1] - falling[k] >= 1)


def surely_stays_rank(loss: float, gap: float, distance: float, k: int, *, ridge: float = 0.0) -> bool:
    """Say whether a step keeps rank k for any batch, as long as ||C - C_t|| <= ``distance``; sufficient only.

    <P* - P_t, C> <= gap / 2 - ridge / 2 - distance (k + 1): Lemma 5.2 of Arora and Marinov 2019 (ridge = 0) and its
    form for MB-RMSG (Lemma B.1 of the talk, where ridge = gap / 2 leaves gap / 4). The true C is not known to a
    program: this is for plans and for tests of the theory, :func:`stays_rank` is what a step can see.

    Parameters
    ----------
    loss : <P* - P_t, C>, P* the projector on the k leading eigenvectors of C. gap : lambda_k(C) - lambda_{k+1}(C).
    """
    return loss <= (gap - ridge) / 2 - distance * (k + 1)


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
class MSG(OfAnyBatch[ConvexState]):
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
    kept: ClassVar[type[ConvexState]] = ConvexState
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
            vectors = orthonormalized(vectors)
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
        require_rows(state.rows)
        k = self.target_rank
        pairs = leading_eigenpairs(state.vectors[:, :k], state.moment[:k, :k], k)
        return StreamResult(vectors=pairs.vectors, values=pairs.values, rows=state.rows)


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


# Mini-batched MSG and RMSG, whose iterates are projectors of rank k (Arora and Marinov 2019, Algorithms 1 and 2).
#
# Where the projection of a step is known to return a projector, the step is (section 6)::
#
#     U_{t+1} = Top-k([sqrt(1 - ridge eta_t) U_t, sqrt(eta_t / n) batch^T])        leading_eigen
#
# which is the exact projected step if and only if the eigenvalues of that factor have mu_k - mu_{k+1} >= 1. Elsewhere
# it still returns rank k, but is no projected gradient step. The optimistic mini-batch begins with k + 1 rows and
# doubles until a test holds, or until the batch of the theorem is reached; stopping where the data say so makes the
# last C_t a biased estimate. Tests, given P = U_t U_t^T, C = batch^T batch / n, and lambda its eigenvalues:
#
# * ``exact``: mu_k - mu_{k+1} >= 1.
# * ``lemma``: <P, C> + lambda_k(U^T C U) >= lambda_1 + ... + lambda_{k+1} + ridge (Lemma 5.1; sufficient; the authors'
#   programs use it, without the ridge).
# * ``sound``: <P* - P, C> <= gap / 2 - ridge / 2, gap = lambda_k - lambda_{k+1}, P* the projector on the top of C.
# * ``printed``: <P* - P, C> <= gap / 4 (equation 6), right only for ridge <= gap / 2.
#
# The batches of the theorems are smaller than its own concentration needs, by 5 to 15 times: trust the test, not them.
# The warm start doubles likewise: the top k of the earlier half must pass the test on the later half.


class RankTest(NamedTuple):
    """Values that the tests compare, of one batch and one iterate."""

    images: Block  # batch @ U
    values: np.ndarray  # lambda, falling
    mixed: np.ndarray  # mu, falling
    k: int
    ridge: float

    def holds(self, test: str) -> bool:
        """Say whether the projection is (exactly, or for sure) of rank k, by one of the four tests."""
        if test == "exact":
            return stays_rank(self.mixed, self.k)
        top = float(self.values[: self.k].sum())
        kth, following = np.append(self.values, np.zeros(self.k + 1))[self.k - 1 : self.k + 1]
        inner = np.linalg.svd(self.images, compute_uv=False) ** 2 / len(self.images)
        explained = float(inner.sum())
        if test == "lemma":
            least = inner[self.k - 1] if len(inner) >= self.k else 0.0
            return bool(explained + least >= top + following + self.ridge)
        allowed = (kth - following) / 4 if test == "printed" else (kth - following - self.ridge) / 2
        return bool(top - explained <= allowed)


@dataclass(frozen=True, kw_only=True)
class BatchState:
    """U_t (d x k), the moment of the rows along it (k x k), and the rows that wait for their step (m x d)."""

    step: int  # 0 before the warm start is made, then t
    rows: int  # rows that made steps
    wanted: int  # rows that must wait before the next test
    vectors: Block
    moment: Block
    pending: Block


@dataclass(frozen=True, kw_only=True)
class MiniBatchMSG(OfOneState[BatchState]):
    """MB-MSG (Algorithm 1): eta_t = eta0 / sqrt(t + shift), t the steps that are remembered.

    Parameters
    ----------
    target_rank : k.
    gap : Delta = lambda_k - lambda_{k+1} for rows of norm at most 1: a hyper-parameter, to be tuned on a grid.
    eta0 : the constant of the step.
    shift : None: k^2 / Delta^2 as printed (the authors' programs have k^6 / Delta^2).
    batch_rows : the largest mini-batch; None: batch_constant k^3 / Delta^2.
    warm_rows : the largest warm start; None: warm_constant k^2 / Delta^3.
    optimistic : double from k + 1 rows; False: always the largest.
    test : which of the four tests ends the doubling.
    memory : what a step leaves of the weight of those before it; below 1 the step size does not fall to zero.
    Neighbours: none, not private.
    Guarantee: every iterate is a projector of rank k; suboptimality as of Theorems 4.1 (MB-RMSG: 4.2 and 4.3).
    Needs: a gap > 0, k <= d, rows enough for the warm start; else BadInputError.
    Cost: O(d (k + n)^2) a step of n rows, n up to ``largest_batch``; O(d (k + n)) memory.
    """

    name: ClassVar[str] = "mb-msg"
    kept: ClassVar[type[BatchState]] = BatchState
    moment: ClassVar[int] = 2

    target_rank: int
    gap: float
    eta0: float = 0.5
    shift: float | None = None
    batch_rows: int | None = None
    warm_rows: int | None = None
    batch_constant: float = 1.0
    warm_constant: float = 1.0
    optimistic: bool = True
    test: Literal["exact", "lemma", "sound", "printed"] = "exact"
    memory: float = 1.0

    def __post_init__(self) -> None:
        require_memory(self.memory)
        require(self.gap > 0, f"gap = {self.gap}: the difference of two eigenvalues that is positive, tuned on a grid")
        require(self.eta0 > 0, f"eta0 = {self.eta0}: a step is positive; 0.5 suits rows of norm about 1")
        known = ("exact", "lemma", "sound", "printed")
        require(self.test in known, f"test = {self.test!r}: it is one of {', '.join(known)}")

    @property
    def shrinkage(self) -> float:
        """The ridge of the objective; none in MB-MSG."""
        return 0.0

    def step_size(self, t: int) -> float:
        """eta_t, t = 1, 2, ..."""
        shift = self.target_rank**2 / self.gap**2 if self.shift is None else self.shift
        return self.eta0 / sqrt(effective_steps(t, self.memory) + shift)

    def largest_batch(self, d: int) -> int:
        """Rows at which doubling ends: at least k + 2, because k + 1 rows are the first try."""
        return self._rows_at_least(self.batch_rows, self.batch_constant * self.target_rank**3 / self.gap**2)

    def largest_start(self, d: int) -> int:
        """Rows of the longest warm start."""
        return self._rows_at_least(self.warm_rows, self.warm_constant * self.target_rank**2 / self.gap**3)

    def _rows_at_least(self, chosen: int | None, formula: float) -> int:
        return max(chosen if chosen is not None else ceil(formula), self.target_rank + 2)

    def init(self, d: int, *, rng: np.random.Generator) -> BatchState:
        """Nothing is known before the warm start: ``rng`` is not needed."""
        k = self.target_rank
        require_rank(k, d)
        largest = self.largest_start(d)
        return BatchState(
            step=0,
            rows=0,
            wanted=min(2 * (k + 1), largest) if self.optimistic else largest,
            vectors=np.zeros((d, 0)),
            moment=np.zeros((0, 0)),
            pending=np.zeros((0, d)),
        )

    def query(self, state: BatchState) -> RowsQuery:
        """Exactly the rows that are missing for the next test."""
        return RowsQuery(state.wanted - len(state.pending))

    def update(self, state: BatchState, batch: np.ndarray) -> tuple[BatchState, StreamInfo]:
        """The rows wait; when there are enough of them, a test; when it holds or there are too many, a step."""
        fresh = checked_batch(batch, state.pending.shape[1])
        waiting = np.concatenate([state.pending, fresh]) if len(state.pending) else fresh
        if len(waiting) < state.wanted:
            return _waiting_state(state, waiting, state.wanted), StreamInfo(
                rows=len(fresh), rank=state.vectors.shape[1], steps=0
            )
        after, condition = self._warm_start(state, waiting) if not state.step else self._advance(state, waiting)
        done = after.step - state.step
        info = StreamInfo(
            rows=len(fresh),
            rank=after.vectors.shape[1],
            steps=done,
            step_size=self.step_size(state.step) if done and state.step else None,
            batch_rows=len(waiting) if done else None,
            condition=condition,
        )
        return after, info

    def _warm_start(self, state: BatchState, waiting: Block) -> tuple[BatchState, bool | None]:
        """The warm start: Top-k of what waits, when the Top-k of its earlier half passes the test on the later."""
        k, d = self.target_rank, waiting.shape[1]
        half = len(waiting) // 2
        condition = None
        if self.optimistic:
            vectors = _top_of(waiting[:half], k)
            condition = self._try_update(vectors, waiting[half:], 1)[1]
        if not condition and len(waiting) < self.largest_start(d):
            return self._wait_for(state, waiting, self.largest_start(d)), condition
        vectors = _top_of(waiting, k)
        images = waiting @ vectors
        return self._state_after(state, waiting, vectors, images.T @ images / len(images)), condition

    def _advance(self, state: BatchState, waiting: Block) -> tuple[BatchState, bool]:
        """One step of the algorithm, unless more rows are wanted for it."""
        largest = self.largest_batch(waiting.shape[1])
        mixed, condition, images = self._try_update(state.vectors, waiting, state.step)
        if self.optimistic and not condition and len(waiting) < largest:
            return self._wait_for(state, waiting, largest), condition
        weight = 2 / (effective_steps(state.step + 1, self.memory) + 1)
        vectors = mixed.vectors()
        moment = carried_moment(state.moment, vectors.T @ state.vectors, images, weight)
        return self._state_after(state, waiting, vectors, moment), condition

    def _try_update(self, vectors: Block, rows: Block, t: int) -> tuple[SumEigen, bool, Block]:
        """Return what ``rows`` make of ``vectors``, whether the test holds, and rows @ vectors."""
        k, eta, n = self.target_rank, self.step_size(t), len(rows)
        images = rows @ vectors
        mixed = leading_of_sum(vectors, max(1 - self.shrinkage * eta, 0.0), rows, eta / n, images, k)
        values = scatter_spectrum(rows) / n if self.test != "exact" else np.zeros(0)
        holds = RankTest(images, values, mixed.values, k, self.shrinkage).holds(self.test)
        return mixed, holds, images

    def _wait_for(self, state: BatchState, waiting: Block, largest: int) -> BatchState:
        return _waiting_state(state, waiting, min(2 * len(waiting), largest))

    def _state_after(self, state: BatchState, used: Block, vectors: Block, moment: Block) -> BatchState:
        largest = self.largest_batch(used.shape[1])
        return BatchState(
            step=state.step + 1,
            rows=state.rows + len(used),
            wanted=min(self.target_rank + 1, largest) if self.optimistic else largest,
            vectors=vectors,
            moment=moment,
            pending=used[:0].copy(),
        )

    def finalize(self, state: BatchState) -> StreamResult:
        """U_t; rows that still wait for their step count for nothing. Raises BadInputError before the warm start."""
        if not state.step:
            raise BadInputError(
                f"{len(state.pending)} rows are too few for the warm start, which needs {state.wanted} for its next "
                "test: stream more rows, or choose a smaller warm_rows"
            )
        pairs = leading_eigenpairs(state.vectors, state.moment, self.target_rank)
        return StreamResult(vectors=pairs.vectors, values=pairs.values, rows=state.rows)


def _top_of(rows: Block, k: int) -> Block:
    """The k leading eigenvectors of the second moment of ``rows``."""
    n, d = rows.shape
    return leading_of_sum(np.zeros((d, 0)), 0.0, rows, 1.0, np.zeros((n, 0)), k).vectors()


def _waiting_state(state: BatchState, waiting: Block, wanted: int) -> BatchState:
    """The state with rows of its own: ``waiting`` may be the batch itself, which is the caller's."""
    return replace(state, pending=waiting if len(state.pending) else waiting.copy(), wanted=wanted)


@dataclass(frozen=True, kw_only=True)
class MiniBatchRMSG(MiniBatchMSG):
    """MB-RMSG (Algorithm 2): ridge = Delta / 2 and eta_t = eta0 / (ridge (t + shift)), t as in MB-MSG.

    As printed: eta0 = 1, shift 128 ln(1/delta) / Delta^3, mini-batches of ln(3 e d T / delta) 8 (k + 1)^2 / Delta^2
    rows, a warm start of ln(3 e d / delta) 128 k ln(3 e / delta) / Delta^5. ``failure`` is the delta, ``horizon`` the T
    of the theorem. ``shrinks = False`` leaves out the factor 1 - ridge eta, and the ridge of the tests, as the authors'
    programs do.
    """

    name: ClassVar[str] = "mb-rmsg"

    eta0: float = 1.0
    failure: float = 0.1
    horizon: int = 1000
    shrinks: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.failure < 1, f"failure = {self.failure}: a probability between 0 and 1")
        require(self.eta0 <= 1 + (self.shift or 0), f"eta0 = {self.eta0}: beyond 1 the ridge would turn P negative")

    @property
    def shrinkage(self) -> float:
        return self.gap / 2 if self.shrinks else 0.0

    def step_size(self, t: int) -> float:
        """eta_t, t = 1, 2, ..."""
        shift = self._printed(1).shift if self.shift is None else self.shift
        return self.eta0 / (self.gap / 2 * (effective_steps(t, self.memory) + shift))

    def largest_batch(self, d: int) -> int:
        """Line 3 of Algorithm 2 (the text says line 5)."""
        return self._rows_at_least(self.batch_rows, self.batch_constant * self._printed(d).batch_rows)

    def largest_start(self, d: int) -> int:
        """Line 1 of Algorithm 2."""
        return self._rows_at_least(self.warm_rows, self.warm_constant * self._printed(d).warm_rows)

    def _printed(self, d: int) -> Schedule:
        return mbrmsg_params(self.gap, self.target_rank, d, self.horizon, self.failure).value
