"""Oracles with exact Gaussian accounting: "tight", and the private power method with one column (further down).

"tight" releases distances, then a mean around a prediction. A step releases how far images are from what earlier
answers predict (:class:`DistanceRange`), then their mean, clipped to ``factor`` times that (:class:`ClippedMean`).
Predictions get better with every answer, so radius and noise shrink from the size of M w to the spread of the images
themselves: CoinPress (Biswas, Dong, Kamath and Ullman 2020) with a prediction for a centre, and measured radii for
those that a tail bound gives.

Within a round this is the noisy power method with one column (omega_t = P g_t, Oja's step of infinite size); a round
starts from what earlier rounds have shown. Nothing of this needs the eigenvalues, K or gamma.

``reuse = True``: every step uses all records, and the 2 k T releases share the budget (k T in the paper's terms: noise
grows with sqrt(k T), where disjoint batches pay k T). The records are then the same in all rounds: Theorem 2 of the
paper (fresh batches) does not apply; that of Jambulapati et al. (2024), for one fixed matrix, does, to the empirical
mean of the records. ``reuse = False``: disjoint batches, one pass, every batch with the whole budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npmdask.accounting import Budget, Charge, gaussian_charge, gaussian_multiplier
from npmdask.core.numerics.subspaces import Block, project_out, unit
from npmdask.dp_pca.base import (
    Answer,
    BatchQuery,
    Promise,
    Relation,
    number_of,
    parallel,
    promise_of,
    random_start,
    require_by_index,
    require_relation,
    spec_of,
    vector_of,
)
from npmdask.dp_pca.private_mean import ClippedMean, DistanceRange
from npmdask.errors import BadInputError, require

SAFELY = 1 + 1e-12  # more than what the rounding of shares can lose

# What released products tell of other products: public post-processing, no access to data.
#
# From answers ``G_s = M w_s + noise of stddev_s`` (M the mean of the records, d x d, never formed) the best linear
# guess of M, for entries that are independent N(0, size^2 / d) beforehand, is
#
#     M' = G (W^T W + d diag(stddev^2) / size^2)^-1 W^T
#
# so M' w predicts the next answer. Answers to w of earlier rounds stay true for later ones: P_j P_i = P_j for the
# nested projections of the deflation.


@dataclass(frozen=True)
class Answers:
    """The vectors asked for (``asked``, d x m), noisy products (``given``, d x m) and their noise (``stddevs``, m)."""

    asked: Block
    given: Block
    stddevs: np.ndarray
    size: float

    @classmethod
    def none(cls, dimension: int, size: float) -> Answers:
        """Before the first; ``size`` is a public guess of the largest eigenvalue."""
        return cls(np.zeros((dimension, 0)), np.zeros((dimension, 0)), np.zeros(0), size)

    def add(self, vector: np.ndarray, product: np.ndarray, stddev: float) -> Answers:
        return Answers(
            np.column_stack([self.asked, vector]),
            np.column_stack([self.given, product]),
            np.append(self.stddevs, stddev),
            self.size,
        )

    def predict(self, vectors: np.ndarray, found: Block) -> np.ndarray:
        """``P M' vectors`` (d or d x p)."""
        weights = np.linalg.lstsq(self._gram(), self.asked.T @ vectors, rcond=None)[0]
        return project_out((self.given @ weights).T, found).T

    def leading(self, found: Block) -> np.ndarray | None:
        """The direction that exceeds the noise most in the range of P: the top left singular vector of
        P G diag(1 / stddev), whose noise is alike in all columns. Where a round starts; None before any answer."""
        if not self.given.shape[1]:
            return None
        known = project_out((self.given / self.stddevs).T, found).T
        return np.linalg.svd(known, full_matrices=False)[0][:, 0]

    def _gram(self) -> np.ndarray:
        noise = len(self.asked) * (self.stddevs / self.size) ** 2
        return self.asked.T @ self.asked + np.diag(noise)


@dataclass(frozen=True)
class TightState:
    """Step of the run (1..k T), w, U, what was answered so far, and the radius of this step once it is released.

    ``fallback`` is the last radius: used where no bin rises above the noise.
    """

    step: int
    vector: np.ndarray
    found: Block
    answers: Answers
    fallback: float
    radius: float | None = None


@dataclass(frozen=True, kw_only=True)
class TightOracle:
    """See the module.

    Parameters
    ----------
    records : n; public: the number, or (record_add_remove) a guess that sums are divided by, of more than half of it.
    target_rank : k. steps : T of a round.
    budget : of the whole run. relation : see :mod:`npmdask.dp_pca.base`.
    largest : public bound of what |A_i w| usually is; longer images are clipped. Also the guess of lambda_1.
    reuse : all records in every step.
    range_share : part of mu^2 of a step that goes to the range.
    factor : radius of the mean, in units of the released distance.
    growth : a step gets this many times the mu^2 of the one before it in its round (with ``reuse``).
    seed : of the public random start.

    Notes
    -----
    Neighbours: record_replace, record_zero_out; with ``reuse`` record_add_remove too. Releases share the budget.
    Guarantee: private for all data; no theorem of its utility: measured (docs/papers/kdppca.md).
    Needs: a public bound of images, shares between 0 and 1, records enough for the steps; else BadInputError.
    Cost: two releases a step, of all records (2 k T passes) or of a batch each (2 in all); O(d k T) memory.
    """

    records: int
    target_rank: int
    steps: int
    budget: Budget
    largest: float
    relation: Relation = "record_replace"
    reuse: bool = True
    range_share: float = 0.1
    factor: float = 1.5
    growth: float = 1.0
    seed: int = 0
    multiplier: float = field(init=False)

    def __post_init__(self) -> None:
        (require_relation if self.reuse else require_by_index)(self.relation)
        whole = self.target_rank >= 1 and self.steps >= 1 and self.records >= self.target_rank * self.steps
        if not (whole and 0 < self.range_share < 1 and self.factor > 0 and self.growth > 0):
            raise BadInputError("a tight oracle needs target_rank, steps, factor, growth > 0, 0 < range_share < 1")
        object.__setattr__(self, "multiplier", gaussian_multiplier(self.budget, 1))

    @property
    def releases(self) -> int:
        return 2 * self.target_rank * self.steps

    def init(self, found: Block, earlier: TightState | None) -> TightState:
        if earlier is None:
            start, none = random_start(self.seed, found), Answers.none(len(found), self.largest)
            return TightState(1, start, found, none, self.largest)
        leading = earlier.answers.leading(found)
        start = random_start(self.seed, found) if leading is None else leading
        return replace(earlier, vector=start, found=found, fallback=self.largest, radius=None)

    def query(self, state: TightState) -> BatchQuery:
        """A range, or a mean with the radius that was released."""
        centre = state.answers.predict(state.vector, state.found)
        mechanism = self._range(state.step) if state.radius is None else self._mean(state.step, state.radius)
        return BatchQuery(self._rows(state.step), state.vector, state.found, centre, mechanism, 0)

    def update(self, state: TightState, answer: Answer) -> TightState:
        if state.radius is None:
            distance = number_of(answer)
            radius = state.fallback if distance is None else min(self.factor * distance, self.largest)
            return replace(state, radius=radius, fallback=radius)
        stddev = self._mean(state.step, state.radius).stddev
        answers = state.answers.add(state.vector, vector_of(answer), stddev)
        vector = unit(project_out(vector_of(answer), state.found))
        return replace(state, step=state.step + 1, vector=vector, answers=answers, radius=None)

    def direction(self, state: TightState) -> np.ndarray | None:
        over = state.step > (state.found.shape[1] + 1) * self.steps
        return state.vector if over and state.radius is None else None

    @property
    def remembered(self) -> int:
        """Number of questions and answers that are kept, of every step."""
        return 2 * self.target_rank * self.steps

    def widest_noise(self) -> float:
        """Return the largest noise: of images as long as ``largest`` allows, in the step with least of the budget."""
        return max(self._mean(step, self.largest).stddev for step in range(1, self.target_rank * self.steps + 1))

    def promise(self) -> Promise:
        return promise_of(self.charge(), self.relation, self.budget.delta)

    def charge(self) -> Charge:
        """Return the cost of the run, within the budget: the sum over steps that share records, else the largest."""
        each = [self._charge(step) for step in range(1, self.target_rank * self.steps + 1)]
        return sum(each, Charge()) if self.reuse else parallel(each)

    def spec(self) -> dict[str, Any]:
        return spec_of("tight", self)

    def _charge(self, step: int) -> Charge:
        multipliers = self._multiplier(step, self.range_share), self._multiplier(step, 1 - self.range_share)
        return gaussian_charge(multipliers[0], 1) + gaussian_charge(multipliers[1], 1)

    def _multiplier(self, step: int, share: float) -> float:
        """stddev / sensitivity of a release that gets ``share`` of the mu^2 of a step."""
        return self.multiplier * SAFELY / math.sqrt(share * self._part(step))

    def _part(self, step: int) -> float:
        """Return the part of the run's mu^2 that one step gets."""
        if not self.reuse:
            return 1.0
        weights = [self.growth**t for t in range(self.steps)]
        return weights[(step - 1) % self.steps] / sum(weights) / self.target_rank

    def _rows(self, step: int) -> range | None:
        if self.reuse:
            return None
        return range((step - 1) * self._count, step * self._count)

    @property
    def _count(self) -> int:
        """Records of a step."""
        return self.records if self.reuse else self.records // (self.target_rank * self.steps)

    def _range(self, step: int) -> DistanceRange:
        multiplier = self._multiplier(step, self.range_share)
        return DistanceRange(relation=self.relation, largest=self.largest, multiplier=multiplier)

    def _mean(self, step: int, radius: float) -> ClippedMean:
        multiplier = self._multiplier(step, 1 - self.range_share)
        return ClippedMean(relation=self.relation, radius=radius, count=self._count, multiplier=multiplier)


# The private power method with one column, as an oracle: all records in every step, images clipped around zero.
#
#     w <- normalise(mean of clip(P A_i P w, radius) + noise),   T steps in each of k rounds
#
# Hardt and Price 2014, Figure 3, with p = 1 and records for neighbours; the deflation around it is that of Jambulapati
# et al. 2024, whose theorem is for one fixed matrix, here the mean of the records. The k T releases share the budget by
# exact Gaussian composition, so noise grows with sqrt(k T). It is what TightOracle is without ranges and predictions; a
# step is one pass, not two.


@dataclass(frozen=True)
class PowerRoundState:
    """Step t of the round (1..T; its answer comes next), w and U."""

    step: int
    vector: np.ndarray
    found: Block


@dataclass(frozen=True, kw_only=True)
class PowerOracle:
    """See above.

    Parameters
    ----------
    records : n; public: the number, or (record_add_remove) a guess that sums are divided by, which cancels.
    target_rank : k. steps : T of a round.
    radius : what images are clipped to in 2-norm; public.
    budget : of the whole run. relation : see :mod:`npmdask.dp_pca.base`.
    seed : of the public random starts.

    Notes
    -----
    Neighbours: record_replace, record_zero_out, record_add_remove; k T releases share the budget.
    Guarantee: private for all data; error as of the private power method with one column (npmdask.theory.ppm_error).
    Needs: a public radius, T >= 1; else BadInputError.
    Cost: k T passes over all records, O(d k) each; O(d k) memory.
    """

    records: int
    target_rank: int
    steps: int
    radius: float
    budget: Budget
    relation: Relation = "record_replace"
    seed: int = 0
    multiplier: float = field(init=False)

    def __post_init__(self) -> None:
        require_relation(self.relation)
        require(self.target_rank >= 1 and self.steps >= 1, "a power oracle needs target_rank and steps of at least 1")
        object.__setattr__(self, "multiplier", gaussian_multiplier(self.budget, self.releases))
        self._mean()  # the range of its numbers

    @property
    def releases(self) -> int:
        return self.target_rank * self.steps

    @property
    def remembered(self) -> int:
        return 0

    def widest_noise(self) -> float:
        """The same in every step."""
        return self._mean().stddev

    def init(self, found: Block, earlier: PowerRoundState | None) -> PowerRoundState:
        return PowerRoundState(1, random_start(self.seed, found), found)

    def query(self, state: PowerRoundState) -> BatchQuery:
        zero = np.zeros_like(state.vector)
        return BatchQuery(None, state.vector, state.found, zero, self._mean(), 0)

    def update(self, state: PowerRoundState, answer: Answer) -> PowerRoundState:
        """The answer, at length 1."""
        return replace(state, step=state.step + 1, vector=unit(project_out(vector_of(answer), state.found)))

    def direction(self, state: PowerRoundState) -> np.ndarray | None:
        return state.vector if state.step > self.steps else None

    def promise(self) -> Promise:
        return promise_of(self.charge(), self.relation, self.budget.delta)

    def charge(self) -> Charge:
        return gaussian_charge(self.multiplier, self.releases)

    def spec(self) -> dict[str, Any]:
        return spec_of("power", self)

    def _mean(self) -> ClippedMean:
        return ClippedMean(relation=self.relation, radius=self.radius, count=self.records, multiplier=self.multiplier)
