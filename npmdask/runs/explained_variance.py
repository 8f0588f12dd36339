"""What share of the variance some components explain, and how many explain the share that is asked for.

The variance is the trace of the operator. It is known without a pass: from the column moments (recorded at
ingest, or taken in a survey), or from the diagonal of a symmetric matrix. Ritz values never exceed the
eigenvalues they stand for (Courant-Fischer, of a positive semidefinite operator), so a share that is reached by a
sum of Ritz values is reached, converged or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npmdask.algorithms import Result
from npmdask.algorithms.stopping import DOUBLE_EPS, Outcome, ResidualRule, StepView
from npmdask.errors import BadInputError
from npmdask.operators import Operator
from npmdask.storage.source import Source

STAGE_STEPS = 20  # of a stage of a search, at most
SLACK = 1e-12  # rounding of a trace and of a sum of Ritz values, relative


def trace_of(source: Source, operator: Operator, *, whatever_it_takes: bool) -> float | None:
    """The trace of the operator, or None where it is not known.

    ``whatever_it_takes``: read the diagonal chunks of a symmetric matrix too, if its trace was not recorded.
    """
    if source.kind == "symmetric":
        return _diagonal(source.reader) if source.trace is None and whatever_it_takes else source.trace
    mean, std = source.column_mean, source.column_std
    if mean is None or std is None:
        return None
    gram: Any = operator  # Gram and SparseGram: weight and view
    return float(gram.view.trace(mean, std, source.shape[0]) * gram.weight)


def _diagonal(reader: Any) -> float:
    """The sum of the diagonal of a square array, one chunk at a time; only chunks on it are read."""
    total = 0.0
    for slab in range(reader.grid[0]):
        rows = reader.slab_rows(slab)
        for column in range(rows.start // reader.chunks[1], (rows.stop - 1) // reader.chunks[1] + 1):
            first = reader.slab_columns(column).start
            total += float(np.trace(reader.decode(slab, column), offset=rows.start - first, dtype=np.float64))
    return total


def smallest_rank(values: np.ndarray, needed: float) -> int | None:
    """The smallest number of leading values whose sum reaches ``needed``; None if all of them do not."""
    sums = np.cumsum(np.maximum(values, 0.0))
    reached = np.flatnonzero(sums >= needed * (1 - SLACK))
    return int(reached[0]) + 1 if len(reached) else None


def settle(
    result: Result, outcome: Outcome, trace: float | None, share: float | None
) -> tuple[Result, float | None, Outcome]:
    """The leading components that reach ``share`` (all, without one), their part of the trace, and what to say."""
    rank = None if share is None or trace is None else smallest_rank(result.values, share * trace)
    result = _first(result, rank or len(result.values))
    explained = None
    if trace is not None and trace > 0 and not (result.values < -_rounding(result.values)).any():
        explained = float(np.maximum(result.values, 0.0).sum() / trace)
    if share is None or explained is None:
        return result, explained, outcome
    said = f"{len(result.values)} components explain {explained:.4%} of the variance (asked for: {100 * share:g}%)"
    if rank is None and outcome.converged:  # pairs that were found in the search have been missed
        return result, explained, Outcome(name="stagnated", sentence=f"not converged to the share: only {said}")
    return result, explained, replace(outcome, sentence=f"{outcome.sentence}; {said}")


def _first(result: Result, rank: int) -> Result:
    return replace(
        result,
        values=result.values[:rank],
        vectors=result.vectors[:, :rank],
        products=result.products[:, :rank],
        residual_norms=result.residual_norms[:rank],
    )


def leading(view: StepView, rank: int) -> StepView:
    """A step as if only its ``rank`` leading pairs had been asked for."""
    return replace(view, ritz_values=view.ritz_values[:rank], residual_norms=view.residual_norms[:rank])


def _rounding(values: np.ndarray) -> float:
    return float(1e4 * DOUBLE_EPS * np.abs(values).max(initial=0.0))


def next_columns(values: np.ndarray, needed: float) -> int:
    """Columns of the next stage: twice as many, or more if the share is out of reach of that.

    The values that are missing are no larger than the last one that is settled (of the leading half, Ritz values
    of a few steps are good): so many more at least are needed, and a quarter for their Ritz values to settle.
    """
    half = max(1, len(values) // 2)
    last = float(values[half - 1])
    least = half + math.ceil(min((needed - float(values[:half].sum())) / last, 1e9)) if last > 0 else 0
    return max(2 * len(values), 16 * math.ceil(1.25 * least / 16))


@dataclass(frozen=True, kw_only=True)
class ShareRule(ResidualRule):
    """Ends a stage of a search: when the share is reached by about the same number of components twice, or when the
    growth of the Ritz sum shows that it will not be.

    A wrong forecast costs columns, never the answer: the next stage has more of them.
    """

    share: float
    trace: float

    @property
    def until_share(self) -> float | None:
        return self.share

    def rank(self, values: np.ndarray) -> int | None:
        """How many of these Ritz values reach the share."""
        return smallest_rank(values, self.share * self.trace)

    def __call__(self, history: list[StepView]) -> Outcome | None:
        """The outcome after the last step of ``history``, or None to go on."""
        if not history:
            return None
        now, rank = history[-1], self.rank(history[-1].ritz_values)
        _require_no_negative(now.ritz_values)
        before = self.rank(history[-2].ritz_values) if len(history) > 1 else None
        given_up = now.step >= self.max_steps
        if rank is not None and (given_up or (before is not None and before - rank <= rank // 20)):
            return Outcome(name="converged", sentence=f"{rank} components reach {self.share:g} of the variance")
        if rank is None and (given_up or self._hopeless(history)):
            part = float(now.ritz_values.sum() / self.trace)
            return Outcome(name="stagnated", sentence=f"{len(now.ritz_values)} components reach {part:.4f}")
        return None

    def _hopeless(self, history: list[StepView]) -> bool:
        """Whether the sum, its gains falling as they do (by half, as long as that is not known), stays below."""
        sums = [float(view.ritz_values.sum()) for view in history[-3:]]
        if len(sums) < 2:
            return False
        gain = sums[-1] - sums[-2]
        before = sums[-2] - sums[-3] if len(sums) > 2 else 2 * gain
        falling = min(gain / before, 0.9) if before > 0 else 0.0
        return sums[-1] + gain * falling / (1 - falling) < self.share * self.trace


def _require_no_negative(values: np.ndarray) -> None:
    if (values < -_rounding(values)).any():
        raise BadInputError(
            f"the symmetric matrix has a negative eigenvalue (at most {values.min():.3g}): a share of its variance has "
            "no meaning; give target_rank as a whole number"
        )
