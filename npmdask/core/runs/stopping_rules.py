"""When a run stops whose question is not which components: by what is left over, or by a share of the variance.

By what is left over: where eigenvalues are close, the first is settled long before.

With no gap behind the k-th eigenvalue the components turn for hundreds of passes, while what k of them leave over is
soon as little as any k can leave (Balcan, Du, Wang and Yu 2016, Theorem 2.3: (1 + eps) sigma_{k+1} after
O(log(d / eps) / eps) steps, whatever the gap). The theorem has an unknown constant; the certificate of the
products already made has none, so that is what ends the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npmdask.core.algorithms import Result
from npmdask.core.algorithms.stopping import DOUBLE_EPS, Outcome, ResidualRule, StepView
from npmdask.core.certificates.bounds import Evidence, certify, rounding_of
from npmdask.core.certificates.wording import bounds_values
from npmdask.core.storage.kinds import traits_of
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError

# Stop by what is left over, not by the components: where eigenvalues are close, the first is settled long before.
#
# With no gap behind the k-th eigenvalue the components turn for hundreds of passes, while what k of them leave over is
# soon as little as any k can leave (Balcan, Du, Wang and Yu 2016, Theorem 2.3: (1 + eps) sigma_{k+1} after
# O(log(d / eps) / eps) steps, whatever the gap). The theorem has an unknown constant; the certificate of the
# products already made has none, so that is what ends the run.


LOW_RANK = "low_rank"  # name of the outcome


def excess_of(evidence: Evidence, kind: str) -> float:
    """By how much more is left over, relatively, than the least that any k components leave; inf: not known.

    The certificate's bound of what is left, over the next Ritz value, which no eigenvalue k + 1 is below. In the units
    of ``kind``: of a matrix ||B - B V V^T||, of samples the variance in any direction, of a symmetric matrix
    ||A - V V^T A||.
    """
    if len(evidence.values) <= evidence.k:
        return math.inf
    certificate, traits = certify(evidence), traits_of(kind)
    if not bounds_values(certificate, singular=traits.singular):
        return math.inf
    least = abs(float(evidence.values[evidence.k])) - certificate.perturbation
    level = certificate.best
    left = level.spectral if traits.square else level.left
    if least <= 0 or not math.isfinite(left):
        return math.inf
    ratio = max(left / least, 1.0)
    return (math.sqrt(ratio) if traits.singular else ratio) - 1


@dataclass(frozen=True, kw_only=True)
class LowRankRule(ResidualRule):
    """Besides, stop as soon as the k components leave at most 1 + ``low_rank_tol`` times the least that any k leave."""

    low_rank_tol: float
    kind: str

    def __call__(self, history: list[StepView]) -> Outcome | None:
        """The outcome after the last step of ``history``, or None to go on."""
        outcome = super().__call__(history)
        if not history or (outcome is not None and outcome.converged) or not self._is_excess_small(history[-1]):
            return outcome
        return Outcome(name=LOW_RANK, sentence=self._low_rank_text(history[-1]))

    def rehearsed(self, algorithm: Any, state: Any, view: StepView) -> StepView:
        """``view`` with what a run would know after this step of a rehearsal, of values up to 1."""
        result, p = algorithm.finalize(state), algorithm.iteration_rank
        seen, k = result.seen, len(result.values)
        random = not self.noise_stddev and not state.locked_vectors.shape[1]
        rounding = rounding_of(self.d, 1.0, single=view.precision == "float32")
        evidence = Evidence(
            values=seen.values,
            gram=seen.gram,
            k=k,
            d=self.d,
            nonnegative=not traits_of(self.kind).square,
            multiplied=view.step - 1,
            columns=p if random else 0,
            degree=seen.degree if random else None,
            powers=seen.powers,
            rounding=rounding,
            start_rounding=rounding + seen.left_out,
            stddev=self.noise_stddev,
            iterated=p,
            locked=state.locked_vectors.shape[1],
        )
        return replace(view, excess=excess_of(evidence, self.kind))

    def _is_excess_small(self, view: StepView) -> bool:
        return view.excess <= self.low_rank_tol

    def _low_rank_text(self, view: StepView) -> str:
        worst, k = float(self.relative(view).max(initial=0.0)), len(view.ritz_values)
        places = max(3, 1 - math.floor(math.log10(self.low_rank_tol)))
        times = f"{math.ceil((1 + view.excess) * 10**places) / 10**places:.{places}f}"  # a bound: rounded up
        return (
            f"stopped after {view.step} steps: what the {k} components leave over is at most {times} "
            f"times the least that any {k} leave (low_rank_tol {self.low_rank_tol:g}); the components may still "
            f"turn (worst relative residual {worst:.1e}): for them, `npmdask resume STORE --low-rank-tol 0`"
        )

    def _max_steps_text(self, history: list[StepView]) -> str:
        excess = history[-1].excess
        known = f"{1 + excess:.3g} times the least is left over" if math.isfinite(excess) else "nothing is known of it"
        return f"{super()._max_steps_text(history)} (for low_rank_tol = {self.low_rank_tol:g}: {known})"


def low_rank_rule(rule: ResidualRule, low_rank_tol: float | None, kind: str, k: int, p: int) -> ResidualRule:
    """``rule``, or one that stops by what is left over too, where ``low_rank_tol`` says so.

    Raises
    ------
    BadInputError
        Not a number from 0 on, or no column to compare with.
    """
    if not low_rank_tol:
        return rule
    if not 0 < low_rank_tol < math.inf:
        raise BadInputError(
            f"low_rank_tol = {low_rank_tol} must be positive: 0.1 is at most 10 % more than the least; 0 is none"
        )
    if p <= k:
        raise BadInputError(
            f"low_rank_tol compares with the next component, and iteration_rank = {p} leaves none behind "
            f"target_rank = {k}: use a larger iteration_rank, or leave low_rank_tol out"
        )
    return LowRankRule(**vars(rule), low_rank_tol=low_rank_tol, kind=kind)


def without_low_rank(low_rank_tol: float | None, why: str) -> str:
    """Return what to say of the tolerance where nothing could be compared, and ``why``; "" if there is none."""
    said = f"low_rank_tol = {low_rank_tol} ends a run by what its certificate says: {why}; leave it out"
    return said if low_rank_tol else ""


# What share of the variance some components explain, and how many explain the share that is asked for.
#
# The variance is the trace of the operator. It is known without a pass: from the column moments (recorded at
# ingest, or taken in a survey), or from the diagonal of a symmetric matrix. Ritz values never exceed the
# eigenvalues they approximate (Courant-Fischer, of a positive semidefinite operator), so a share that is reached by a
# sum of Ritz values is reached, converged or not.


STAGE_STEPS = 20  # of a stage of a search, at most
SLACK = 1e-12  # rounding of a trace and of a sum of Ritz values, relative


def trace_of(source: Source, operator: Any, *, whatever_it_takes: bool) -> float | None:
    """The trace of the operator, or None where it is not known.

    ``whatever_it_takes``: read the diagonal chunks of a symmetric matrix too, if its trace was not recorded.
    """
    if source.traits.square:
        return _diagonal(source.reader) if source.trace is None and whatever_it_takes else source.trace
    columns, gram = source.statistics, operator  # Gram and SparseGram: weight and view
    if columns is None:
        return None
    if gram.view.centres and not columns.varies.any():  # what is left is rounding
        return 0.0
    # Of complex data each eigenvalue of the operator comes twice.
    return source.parts * float(gram.view.trace(columns.mean, columns.std, source.shape[0]) * gram.weight)


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
    result = _leading_part(result, rank or len(result.values))
    explained = None
    if trace is not None and trace > 0 and not (result.values < -_rounding(result.values)).any():
        explained = float(np.maximum(result.values, 0.0).sum() / trace)
    if share is None or explained is None:
        return result, explained, outcome
    said = f"{len(result.values)} components explain {explained:.4%} of the variance (asked for: {100 * share:g}%)"
    if rank is None and outcome.converged:  # pairs that were found in the search have been missed
        return result, explained, Outcome(name="stagnated", sentence=f"not converged to the share: only {said}")
    return result, explained, replace(outcome, sentence=f"{outcome.sentence}; {said}")


def _leading_part(result: Result, rank: int) -> Result:
    return replace(
        result,
        values=result.values[:rank],
        vectors=result.vectors[:, :rank],
        products=result.products[:, :rank],
        residual_norms=result.residual_norms[:rank],
    )


def leading_view(view: StepView, rank: int) -> StepView:
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
        """Return how many of these Ritz values reach the share."""
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
        if rank is None and (given_up or self._is_out_of_reach(history)):
            part = float(now.ritz_values.sum() / self.trace)
            return Outcome(name="stagnated", sentence=f"{len(now.ritz_values)} components reach {part:.4f}")
        return None

    def _is_out_of_reach(self, history: list[StepView]) -> bool:
        """Say whether the sum, its gains falling as they do (by half, as long as that is not known), stays below."""
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
