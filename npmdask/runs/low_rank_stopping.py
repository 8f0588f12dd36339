"""Stop by what is left over, not by the components: where eigenvalues are close, the first is settled long before.

With no gap behind the k-th eigenvalue the components turn for hundreds of passes, while what k of them leave over is
soon as little as any k can leave (Balcan, Du, Wang and Yu 2016, Theorem 2.3: (1 + eps) sigma_{k+1} after
O(log(d / eps) / eps) steps, whatever the gap). The theorem has an unknown constant; the certificate of the
products already made has none, so that is what ends the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from npmdask.algorithms.stopping import Outcome, ResidualRule, StepView
from npmdask.errors import BadInputError, RefusedError
from npmdask.theory.certificates.bounds import Evidence, certify, rounding_of
from npmdask.theory.certificates.wording import tells

LOW_RANK = "low_rank"  # name of the outcome


def excess_of(evidence: Evidence, kind: str) -> float:
    """By how much more is left over, relatively, than the least that any k components leave; inf: not known.

    The certificate's bound of what is left, over the next Ritz value, which no eigenvalue k + 1 is below. In the units
    of ``kind``: of a matrix ||B - B V V^T||, of samples the variance in any direction, of a symmetric matrix
    ||A - V V^T A||.
    """
    if len(evidence.values) <= evidence.k:
        return math.inf
    certificate, singular = certify(evidence), kind in ("matrix", "sparse")
    if not tells(certificate, singular=singular):
        return math.inf
    least = abs(float(evidence.values[evidence.k])) - certificate.perturbation
    level = certificate.best
    left = level.spectral if kind == "symmetric" else level.left
    if least <= 0 or not math.isfinite(left):
        return math.inf
    ratio = max(left / least, 1.0)
    return (math.sqrt(ratio) if singular else ratio) - 1


@dataclass(frozen=True, kw_only=True)
class LowRankRule(ResidualRule):
    """Besides, stop as soon as the k components leave at most 1 + ``low_rank_tol`` times the least that any k leave."""

    low_rank_tol: float
    kind: str

    def __call__(self, history: list[StepView]) -> Outcome | None:
        """The outcome after the last step of ``history``, or None to go on."""
        outcome = super().__call__(history)
        if not history or (outcome is not None and outcome.converged) or not self._enough(history[-1]):
            return outcome
        return Outcome(name=LOW_RANK, sentence=self._captured(history[-1]))

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
            nonnegative=self.kind != "symmetric",
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

    def _enough(self, view: StepView) -> bool:
        return view.excess <= self.low_rank_tol

    def _captured(self, view: StepView) -> str:
        worst, k = float(self.relative(view).max(initial=0.0)), len(view.ritz_values)
        places = max(3, 1 - math.floor(math.log10(self.low_rank_tol)))
        times = f"{math.ceil((1 + view.excess) * 10**places) / 10**places:.{places}f}"  # a bound: rounded up
        return (
            f"stopped after {view.step} steps: what the {k} components leave over is at most {times} "
            f"times the least that any {k} leave (low_rank_tol {self.low_rank_tol:g}); the components may still "
            f"turn (worst relative residual {worst:.1e}): for them, `npmdask resume STORE --low-rank-tol 0`"
        )

    def _too_short(self, history: list[StepView]) -> str:
        excess = history[-1].excess
        known = f"{1 + excess:.3g} times the least is left over" if math.isfinite(excess) else "nothing is known of it"
        return f"{super()._too_short(history)} (for low_rank_tol = {self.low_rank_tol:g}: {known})"


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


def refuse_low_rank(low_rank_tol: float | None, why: str) -> None:
    """RefusedError where nothing could be compared, saying ``why``."""
    if low_rank_tol:
        raise RefusedError(
            f"low_rank_tol = {low_rank_tol} ends a run by what its certificate says: {why}; leave it out"
        )
