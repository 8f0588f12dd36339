"""Define an algorithm, over passes and (below) over batches of a stream.

Over passes: touch the data once, perturb the product, post-process, remember.
``query`` is the only method that sees the data; ``update`` sees only what a mechanism released, so everything
after the release is post-processing by construction. A ``State`` is arrays and numbers of constant shape: a
checkpoint is its list of fields. ``Info`` is not carried from step to step.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from npmdask.core.certificates.bounds import largest_missed
from npmdask.core.numerics.subspaces import Block, orth
from npmdask.errors import BadInputError, require


class Query(NamedTuple):
    """Query that an algorithm makes of the data in one step: ``A @ block``, in the arithmetic of ``block.dtype``.

    ``transposed``: ``A^T @ block`` instead, of a matrix that is neither symmetric nor multiplied by its transpose.
    ``image_norm``: of a sum over records a the images ``block^T a`` are clipped to this norm.
    ``batch``: a summary of the images of some records instead (npmdask.dp_pca), and what is released of it.

    Of a tensor T of order 3 column l of the answer is ``T(I, u_l, u_l)``, of order 4 ``T(I, u_l, u_l, u_l)``.
    ``whole``: A itself beside ``A @ block``, formed in this dtype: d x (d + p).
    ``scores``: of a tensor, the numbers ``T(u_l, ..., u_l)`` instead (1 x L).
    ``rounded``: A times a block of float32 numbers next to ``block``, multiplied in float32 and added up in float64,
    and beside the product what was multiplied: d x 2 p.
    ``of_rows``: of A = B^T B the other one, B B^T (m x m), in place of A: with ``whole`` itself, and its product with
    the block (m x p); without, B^T @ block (d x p) over B B^T @ block (m x p). So many parts a column of chunks has.
    ``noise``, ``held_out``: of a factor model whose loadings and mean are the block, the sums of a step of EM, without
    so large a share of the entries (:class:`npmdask.missing.factor_sums.FactorExpectations`).
    """

    block: Block
    transposed: bool = False
    image_norm: float | None = None
    batch: Any = None
    scores: bool = False
    whole: str | None = None
    rounded: bool = False
    of_rows: int | None = None
    noise: float | None = None
    held_out: float | None = None


@dataclass(frozen=True, kw_only=True)
class Info:
    """Findings of a step, in the units of the operator.

    ``finished``: there is nothing more to ask; ``settled``: and what was to be found is found, to its tolerance;
    ``said``: the same in a sentence. Only algorithms that know their own end say so.
    ``missed``: of a warm start, the largest eigenvalue that the columns known before may still hide (99 %); else 0.
    ``left``: of what converges to no eigenvalue, about how far each value still has to go, in terms of it.
    """

    ritz_values: np.ndarray
    residual_norms: np.ndarray
    asymmetry: float
    precision: str
    finished: bool = False
    settled: bool = True
    said: str = ""
    missed: float = 0.0
    left: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All Ritz pairs of the last space, wanted or not: what a certificate is made of (npmdask.core.certificates).

    ``values`` (m, by falling magnitude, the wanted ones first) and ``gram`` = R^T R (m x m), R = A V - V diag(values).
    ``degree``: the space holds every polynomial of this degree in A of a random start; None where there is no such
    start. ``powers``: it is A^degree of the start, and of a warm start's known columns, and nothing else. ``left_out``:
    norm of what these polynomials lack, as pairs that had converged were multiplied no further. ``missed``: see
    :class:`Info`. ``upper``: what the largest eigenvalues do not exceed (99 %), where the whole matrix was formed.
    ``away``: the pairs are those of a matrix that is at most so far from A.
    """

    values: np.ndarray
    gram: np.ndarray
    degree: int | None = None
    powers: bool = False
    left_out: float = 0.0
    missed: float = 0.0
    upper: np.ndarray | None = None
    away: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """Leading pairs of the operator: vectors (d x k, orthonormal), values, residual norms, products A @ vectors.

    Of a tensor: unit vectors that need not be orthogonal, their weights, ``T(I, v, v)`` of each. ``facts``: what else
    is known of the answer, as plain numbers and strings. ``seen``: what is known beyond the k pairs.
    """

    values: np.ndarray
    vectors: Block
    products: Block
    residual_norms: np.ndarray
    facts: dict[str, Any] = field(default_factory=dict)
    seen: Seen | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """Parameters that an algorithm is made for; all of them public.

    Parameters
    ----------
    d : rows of the blocks.
    target_rank, iteration_rank : k, and p columns iterated.
    tol : of the stopping rule, relative to each value.
    single : the data are float32.
    rounded : products of ``Query.rounded`` can be had.
    noise : products come with noise.
    random_columns : r, of the p columns of a warm start those that are random; 0 without one.
    seed : of the run.
    rows : m, of data that have rows; else 0.
    """

    d: int
    target_rank: int
    iteration_rank: int
    tol: float
    single: bool = False
    rounded: bool = False
    noise: bool = False
    random_columns: int = 0
    seed: int = 0
    rows: int = 0


S = TypeVar("S")


class Algorithm(Protocol[S]):
    """Frozen public configuration and what is done with it.

    A class that is registered (:func:`npmdask.register_algorithm`) is made by ``make(question, options)``, a class
    method; ``options`` are those of the request, and what it does not know it refuses. Facts of the class, each False
    where it is left out:

    ``takes_noise``: products may come with noise; ``residuals_decrease``: from step to step, so that a rate tells how
    long a run still takes; ``powers_only``: the block is a power of the operator times its start; ``can_be_played``: a
    run on the diagonal matrix of its eigenvalues takes as many steps. ``start_block(arrays)``, a static method, says
    what of a checkpoint another run may begin with; without it no run begins with one of this algorithm.
    """

    @property
    def name(self) -> str: ...
    @property
    def target_rank(self) -> int: ...
    @property
    def iteration_rank(self) -> int: ...
    @property
    def mixed_precision(self) -> bool: ...
    @property
    def state_blocks(self) -> int: ...
    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> S: ...
    def query(self, state: S) -> Query: ...
    def update(self, state: S, released: Block) -> tuple[S, Info]: ...
    def finalize(self, state: S) -> Result: ...
    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> S: ...


class OfOneState(Generic[S]):
    """An algorithm whose state is ``kept``, a dataclass of which checkpoints hold the fields."""

    kept: ClassVar[type[Any]]

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> S:
        """The state of a checkpoint."""
        held: dict[str, Any] = {**arrays, **scalars}
        return self.kept(**held)


class OfAnyBatch(OfOneState[S]):
    """One that takes batches of any size."""

    def query(self, state: S) -> RowsQuery:
        """Any batch."""
        return RowsQuery(None)


def require_rows(rows: int) -> None:
    """Raise BadInputError before the first row."""
    require(rows > 0, "no rows were streamed yet, so there is no result: give rows first")


def state_fields(state: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the plain numbers of a state: all that a checkpoint holds of it.

    Fields of a state inside a state are called ``outer.inner``.
    """
    arrays: dict[str, np.ndarray] = {}
    scalars: dict[str, Any] = {}
    for f in fields(state):
        value = getattr(state, f.name)
        if isinstance(value, np.ndarray):
            arrays[f.name] = value
        elif is_dataclass(value):
            inner = state_fields(value)
            arrays |= {f"{f.name}.{name}": array for name, array in inner[0].items()}
            scalars |= {f"{f.name}.{name}": number for name, number in inner[1].items()}
        else:
            scalars[f.name] = value
    return arrays, scalars


def restored(like: Any, arrays: dict[str, np.ndarray], scalars: dict[str, Any], prefix: str = "") -> Any:
    """The inverse of :func:`state_fields`; ``like`` is any state of the same kinds, inner ones included."""
    held = {**arrays, **scalars}
    values = {}
    for f in fields(like):
        inner, name = getattr(like, f.name), prefix + f.name
        values[f.name] = restored(inner, arrays, scalars, f"{name}.") if is_dataclass(inner) else held[name]
    return replace(like, **values)


def laid_out(state: S) -> S:
    """The state with every array as a checkpoint gives it back: the last bits of products depend on strides."""
    arrays, scalars = state_fields(state)
    return restored(state, {name: np.ascontiguousarray(a) for name, a in arrays.items()}, scalars)


# Random columns beside known ones: what a warm start cannot have missed
# (npmdask.core.certificates.bounds.largest_missed).
#
# Known columns W (of an earlier run) may be orthogonal to an eigenvector of these data, and stay so for ever. So the
# last r columns of a block that starts from W are random, Omega, and they are multiplied by A in every step. Y_l G_l
# is then A^l Omega without what W, and pairs that are settled, hold of it: Y (d x r) is orthonormal, and G (r x r),
# the product of the R factors, says what became of the amplitude of every direction.


MISSED = 0.01  # share of starts of which less is true
OUTSIDE = 0.1  # a direction of Y of which no more than this is outside of the pairs found says nothing of others
Growth = tuple[np.ndarray, float]  # G is the first times exp(the second): in a few hundred steps it leaves float64


def empty_growth() -> np.ndarray:
    """Return the growth of a run without a warm start."""
    return np.zeros((0, 0))


def started(start: Block, p: int, r: int, rng: np.random.Generator, against: Block | None) -> tuple[Block, Growth]:
    """The orthonormal block that ``start`` (at most p - r columns) begins, its last columns random, and their growth.

    A start of p columns has brought its own random ones.
    """
    more = rng.standard_normal((len(start), p - start.shape[1]))
    whole = np.concatenate([start, more], axis=1)
    block = orth(whole, rng, against=against)
    return block, scaled(block[:, p - r :].T @ whole[:, p - r :], 0.0)


def scaled(growth: np.ndarray, log: float) -> Growth:
    """``growth`` exp(``log``) with entries of moderate size."""
    size = float(np.abs(growth).max(initial=0.0))
    return (growth / size, log + math.log(size)) if size > 0 else (growth, log)


def missed(chain: Block, image: Block, vectors: Block, products: Block, growth: Growth, degree: int) -> float:
    """Bound of |mu| of every eigenvector that neither W nor the pairs found (``vectors``, ``products``) hold.

    ``image``: A Y, without what W holds of it. Of Y counts what is outside of the pairs found, as they may have come
    from Y themselves.
    """
    inside = vectors.T @ chain
    squares, turn = np.linalg.eigh(np.eye(chain.shape[1]) - inside.T @ inside)
    turn = turn[:, squares > OUTSIDE**2] / np.sqrt(squares[squares > OUTSIDE**2])
    if not turn.shape[1]:
        return sys.float_info.max  # plain JSON knows no infinity
    inside = inside @ turn
    q, aq = chain @ turn - vectors @ inside, image @ turn - products @ inside
    aq -= vectors @ (vectors.T @ aq)
    square = q.T @ aq
    theta, rotation = np.linalg.eigh((square + square.T) / 2)
    residual = aq @ rotation - (q @ rotation) * theta
    with np.errstate(divide="ignore"):
        held = np.log(np.linalg.svd(np.linalg.pinv(growth[0]) @ turn, compute_uv=False)) - growth[1]
    return largest_missed(theta, residual.T @ residual, held, degree, MISSED)


# Over batches of a stream: ask for rows, take one batch, remember, give components at any time.
#
# ``update`` is pure: its only randomness is named by the step, it keeps no reference to the batch (a stream may reuse
# its buffer), and a batch that it refuses leaves the state as it was. A ``State`` is arrays and plain numbers, so that
# a checkpoint is its list of fields; unlike in passes over stored data, shapes may change from step to step.


class RowsQuery(NamedTuple):
    """Number of rows that the next update wants; None: whatever batch the stream was asked for."""

    rows: int | None


@dataclass(frozen=True, kw_only=True)
class StreamInfo:
    """Findings of an update.

    ``rows``: rows of the batch, all of them used. ``rank``: of the iterate. ``steps``: how many steps the algorithm
    made (none while it collects rows, several where a batch holds several blocks). ``step_size``, ``batch_rows``: of
    the last of these; ``condition``: whether the rank test held there (None: not tested).
    """

    rows: int
    rank: int
    steps: int
    step_size: float | None = None
    batch_rows: int | None = None
    condition: bool | None = None


@dataclass(frozen=True, kw_only=True)
class StreamResult:
    """Leading directions: vectors (d x k, orthonormal) and the mean square of the rows along each, falling.

    Of the third moment: components (d x j, j <= k, unit vectors that need not be orthogonal) and their weights,
    falling. ``facts``: what else is known, as plain numbers and strings; ``said``: what of it belongs into a sentence.
    """

    vectors: Block
    values: np.ndarray
    rows: int
    facts: dict[str, Any] = field(default_factory=dict)
    said: str = ""


class StreamAlgorithm(Protocol[S]):
    """Frozen public configuration and five methods.

    ``moment``: whose components it finds: 2, principal directions; 3, components of the third moment.
    """

    name: ClassVar[str]
    moment: ClassVar[int]

    @property
    def target_rank(self) -> int: ...
    def init(self, d: int, *, rng: np.random.Generator) -> S: ...
    def query(self, state: S) -> RowsQuery: ...
    def update(self, state: S, batch: np.ndarray) -> tuple[S, StreamInfo]: ...
    def finalize(self, state: S) -> StreamResult: ...
    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> S: ...


def checked_batch(batch: np.ndarray, d: int) -> Block:
    """The batch as float64 (n x d, n >= 1, finite). Raises BadInputError otherwise."""
    rows = np.asarray(batch, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != d:
        raise BadInputError(
            f"a batch of shape {rows.shape} does not fit the model, which has {d} columns: select the columns that "
            "the model started with, or start a new model"
        )
    require(len(rows) > 0, "an empty batch: leave it out, or wait until the source has rows")
    if not _surely_finite(rows) and not np.isfinite(rows).all():
        bad = int((~np.isfinite(rows).all(axis=1)).sum())
        raise BadInputError(
            f"{bad} of the {len(rows)} rows of the batch hold NaN or infinite values: fill in or remove these rows "
            "first"
        )
    return rows


def _surely_finite(rows: Block) -> bool:
    """One product with BLAS; a sum of squares that overflows is looked at entry by entry."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.vdot(rows, rows)))


def require_rank(k: int, d: int, name: str = "target_rank") -> None:
    """1 <= k <= d, or BadInputError."""
    require(1 <= k <= d, f"{name} = {k} does not fit rows with {d} columns: choose it between 1 and {d}")


def require_memory(memory: float, *, least_open: bool = True) -> None:
    """``memory`` in (0, 1], or [0, 1], or BadInputError."""
    inside = 0 < memory <= 1 or (memory == 0 and not least_open)
    require(inside, f"memory = {memory} is no share: 1 keeps all that was seen, 0.99 fades it by 1 % a step")


def effective_steps(t: int, memory: float) -> float:
    """Sum of ``memory^j`` over the last t steps: t where nothing is forgotten, at most 1 / (1 - memory) else."""
    return float(t) if memory == 1 else float((1 - memory**t) / (1 - memory))
