"""Measure a streaming model while it runs: on held-out rows, against the truth, and against itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from npmdask.core.algorithms import StreamInfo
from npmdask.core.numerics.subspaces import Block, max_sin_theta
from npmdask.core.numerics.units import attributes
from npmdask.errors import BadInputError
from npmdask.streaming.algorithms.model import Model, ModelState

MOST = 256  # measurements that are kept: then every second one goes, and they are made half as often
FIRST_BATCHES = 16  # between the first measurements


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A model after so many rows.

    ``rank``: of the iterate. ``batch_rows``, ``step_size``, ``condition`` (whether the rank test held): of the last
    step; ``mean_batch_rows``: rows a step, over all steps. ``values``: mean squares along the basis. ``explained``:
    share of the held-out variance; ``suboptimality``: ``<P* - P, C>`` on the held-out rows, P* the best of rank k.
    ``max_sin_theta``: to the truth; ``change``: to the basis of the measurement before. ``reach``: what the held-out
    rows tell of others (:meth:`HeldOut.reach`). None: not known.

    Of components of the third ``moment`` ``rank`` is how many are found, ``values`` are weights, and an angle is that
    of the true (earlier) component that is farthest from all that are found; held-out rows say nothing.
    """

    rows: int
    batches: int
    steps: int
    rows_used: int
    rank: int
    batch_rows: int | None
    mean_batch_rows: float | None
    step_size: float | None
    condition: bool | None
    values: list[float] | None
    explained: float | None = None
    suboptimality: float | None = None
    max_sin_theta: float | None = None
    change: float | None = None
    moment: int = 2
    reach: dict[str, float] | None = None

    @property
    def size(self) -> str:
        """Size of the model, in words."""
        return f"{self.rank} found" if self.moment == 3 else f"rank {self.rank}"


class HeldOut:
    """Rows (n x d) that are never learnt from; what their best k directions capture is worked out once.

    Raises
    ------
    BadInputError
        Rows of another width, none, or rows that are not finite.
    """

    def __init__(self, rows: np.ndarray, k: int, d: int, *, center: bool) -> None:
        held = np.asarray(rows, dtype=np.float64)
        if held.ndim != 2 or held.shape[1] != d or not len(held) or not np.isfinite(held).all():
            raise BadInputError(
                f"held-out rows of shape {held.shape} do not fit: finite rows of {d} columns, at least one, are needed"
            )
        self._rows, self._k = held - held.mean(axis=0) if center else held, k

    @property
    def rows(self) -> int:
        """Number of held-out rows."""
        return len(self._rows)

    @property
    def working_bytes(self) -> int:
        """Memory beside the rows that the best k directions take: a Gram matrix, and what its eigenvalues need."""
        return 2 * 8 * min(self._rows.shape) ** 2

    @cached_property
    def _values(self) -> np.ndarray:
        """Mean squares along the best directions, falling. Not before the first measurement: a configuration is also
        opened to be checked."""
        tall = len(self._rows) >= self._rows.shape[1]
        small = self._rows.T @ self._rows if tall else self._rows @ self._rows.T
        return np.maximum(np.linalg.eigvalsh(small)[::-1], 0.0) / len(self._rows)

    @property
    def _best_and_trace(self) -> tuple[float, float]:
        return float(self._values[: self._k].sum()), float(self._values.sum())

    def measure(self, basis: Block) -> tuple[float | None, float]:
        """The explained share (None of rows that are all zero) and the suboptimality."""
        best, trace = self._best_and_trace
        captured = float(np.linalg.norm(self._rows @ basis) ** 2 / len(self._rows))
        return (captured / trace if trace else None), max(best - captured, 0.0)

    def reach(self, basis: Block) -> dict[str, float] | None:
        """Estimate how these rows carry over to others like them; None of fewer than two, or where all are zero.

        ``rows``; ``stddev``: of the explained share, a ratio of sums over rows, to first order (the delta method);
        ``best``: the share that no k directions exceed here; ``gap``: lambda_k - lambda_{k+1} here; ``sine``: that of
        the largest angle to the true directions at most, about, from ``<P* - P, C> >= gap sin^2`` (the sum of
        (lambda_i - lambda_j) over all turned pairs); 1 where no gap is seen.
        """
        (best, trace), count = self._best_and_trace, len(self._rows)
        if count < 2 or not trace:
            return None
        inside = np.einsum("nk,nk->n", *[self._rows @ basis] * 2)
        share = float(inside.mean()) / trace
        off = inside - share * np.einsum("nd,nd->n", self._rows, self._rows)
        following = float(self._values[self._k]) if self._k < len(self._values) else 0.0
        gap, lost = float(self._values[self._k - 1]) - following, max(best - share * trace, 0.0)
        return {
            "rows": count,
            "stddev": float(np.sqrt((off @ off) / (count - 1) / count)) / trace,
            "best": best / trace,
            "gap": gap,
            "sine": float(np.sqrt(min(lost / gap, 1.0))) if gap > 0 else 1.0,
        }


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The measurements so far, when the next one is due, and the basis of the last. Nothing here depends on a clock."""

    every: int
    due: int
    history: tuple[Measurement, ...]
    basis: Block | None = None

    @classmethod
    def begin(cls, every: int) -> Measures:
        """Before the first row."""
        return cls(every=every, due=every, history=())

    def add(self, measurement: Measurement, basis: Block | None) -> Measures:
        """Return the measures with one more, thinned out where they become many; the last one always stays.

        They become many without being due too: a directory is measured at the end of every call.
        """
        every, history = self.every, (*self.history, measurement)
        if len(history) >= MOST:
            history = history[1::2]
            every *= 2 if measurement.rows > every * len(history) else 1
        due = (measurement.rows // every + 1) * every
        return Measures(every=every, due=due, history=history, basis=basis)

    def saved(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and plain numbers for a checkpoint."""
        arrays = {} if self.basis is None else {"measured_basis": self.basis}
        return arrays, {"every": self.every, "due": self.due, "history": [asdict(m) for m in self.history]}

    @classmethod
    def load(cls, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> Measures:
        """Load what ``saved`` gave."""
        history = tuple(Measurement(**m) for m in facts["history"])
        return cls(every=facts["every"], due=facts["due"], history=history, basis=arrays.get("measured_basis"))


def angle(basis: Block, reference: Block, moment: int) -> float:
    """Sine of the largest angle between two bases; of components, of the column of ``reference`` that is farthest from
    the nearest of ``basis``."""
    if moment == 2:
        return max_sin_theta(basis, reference)
    nearest = basis[:, np.abs(basis.T @ reference).argmax(axis=0)]
    rest = reference - nearest * np.einsum("ij,ij->j", nearest, reference)
    return float(np.linalg.norm(rest, axis=0).max())


def require_directions(moment: int, held_out: Any) -> None:
    """Refuse held-out rows where no directions are found that could capture their variance."""
    if held_out is not None and moment != 2:
        raise BadInputError(
            "held_out rows measure captured variance, which does not apply to components of the third moment: leave "
            "held_out out; the standard errors of the weights show their accuracy"
        )


def last_step(before: StreamInfo, info: StreamInfo) -> StreamInfo:
    """``info``, with what is known of the last step taken from ``before`` where it made none."""
    if info.steps:
        return info
    return replace(info, **attributes(before, "batch_rows", "step_size", "condition"))


def measure_model(
    model: Model,
    state: ModelState,
    info: StreamInfo,
    *,
    before: Block | None,
    truth: Block | None,
    held_out: HeldOut | None,
) -> tuple[Measurement, Block | None]:
    """The measurement of ``state``, and its basis (None where there are too few rows for one)."""
    moment = model.algorithm.moment
    require_directions(moment, held_out)
    bare = Measurement(
        **attributes(state, "rows", "batches", "steps", "rows_used"),
        **attributes(info, "rank", "batch_rows", "step_size", "condition"),
        mean_batch_rows=state.rows_used / state.steps if state.steps else None,
        values=None,
        moment=moment,
    )
    try:
        result = model.answer(state)
    except BadInputError:
        return bare, None
    basis = result.vectors
    explained, suboptimality = held_out.measure(basis) if held_out else (None, None)
    full = replace(
        bare,
        values=result.values.tolist(),
        explained=explained,
        suboptimality=suboptimality,
        reach=held_out.reach(basis) if held_out else None,
        max_sin_theta=None if truth is None else angle(basis, truth, moment),
        change=None if before is None else angle(basis, before, moment),
    )
    return full, basis
