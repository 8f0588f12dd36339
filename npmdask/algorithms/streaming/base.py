"""Define a streaming algorithm: ask for rows, take one batch, remember, give components at any time.

``update`` is pure: its only randomness is named by the step, it keeps no reference to the batch (a stream may reuse its
buffer), and a batch that it refuses leaves the state as it was. A ``State`` is arrays and plain numbers, so that a
checkpoint is its list of fields; unlike in passes over stored data, shapes may change from step to step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from npmdask.errors import BadInputError, require
from npmdask.numerics.subspaces import Block


class RowsQuery(NamedTuple):
    """How many rows the next update wants; None: whatever batch the stream was asked for."""

    rows: int | None


@dataclass(frozen=True, kw_only=True)
class StreamInfo:
    """What an update found out.

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


S = TypeVar("S")


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
    if not len(rows):
        raise BadInputError("an empty batch: leave it out, or wait until the source has rows")
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
