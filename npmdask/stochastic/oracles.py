"""Oracles that take Oja's steps over disjoint batches, one pass over all records in all rounds together.

    omega_t = normalise(P (omega_{t-1} + eta_t g_t)),   g_t released of batch t of the round;  k rounds of n / k records

``PlainOja`` (Duengler and Sanyal 2025, Algorithm 5) is not private. ``DPOjas`` (Algorithm 3) clips every image.
``ModifiedDPPCA`` (Algorithm 2) is the paper's: a range, then a mean.

A record is in one batch, fixed by its index, so a run costs what its most expensive batch costs (parallel composition).
Amplification by shuffling is left out: it needs a secret uniform permutation, which the listing lacks, and a local
epsilon below ln(n / (16 ln(2 / delta))), which the paper's own noise exceeds (62 against 4.8 at n = 10^4, epsilon = 1).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npmdask.accounting import Budget, Charge, gaussian_charge, gaussian_multiplier, release_charge
from npmdask.errors import BadInputError, RefusedError, closest
from npmdask.linalg import Block
from npmdask.stochastic._protocol import Answer, BatchQuery, Mechanism, number_of, random_start, spec_of, vector_of
from npmdask.stochastic.histogram import StabilityHistogram
from npmdask.stochastic.images import project_out, unit
from npmdask.stochastic.neighbours import Promise, Relation, promise_of, require_by_index
from npmdask.stochastic.private_mean import ClippedMean, PaperMean, PlainMean, paper_mean_cost
from npmdask.stochastic.private_range import PaperRange


@dataclass(frozen=True)
class OjaState:
    """Step t of the round (answers come after it), omega_{t-1}, U, and a range that was released for this step."""

    step: int
    vector: np.ndarray
    found: Block
    spread: float | None = None


@dataclass(frozen=True, kw_only=True)
class OjaOracle(ABC):
    """What the oracles of this module have in common.

    Parameters
    ----------
    records : n; public. target_rank : k; every round has floor(n / k) records.
    batch : B; every step has B of them.
    rates : (offset, slope) for every round: eta_t = 1 / (offset + slope t), t = 1, 2, ...; public.
    seed : of the public random starts.
    """

    records: int
    target_rank: int
    batch: int
    rates: tuple[tuple[float, float], ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if self.target_rank < 1 or not 1 <= self.batch <= self.records // self.target_rank:
            raise BadInputError(
                f"{self.records} records cannot give {self.target_rank} rounds a batch of {self.batch}: use fewer"
            )
        if len(self.rates) != self.target_rank or not all(a >= 0 and b >= 0 and a + b > 0 for a, b in self.rates):
            raise BadInputError("rates are one pair (offset, slope) for every round, not negative and not both zero")

    @property
    def steps(self) -> int:
        """T: of a round."""
        return self.records // self.target_rank // self.batch

    @property
    def releases(self) -> int:
        """The most that a run asks."""
        return self.target_rank * self.steps

    def init(self, found: Block, earlier: OjaState | None) -> OjaState:
        return OjaState(1, random_start(self.seed, found), found)

    def query(self, state: OjaState) -> BatchQuery:
        zero = np.zeros_like(state.vector)
        return BatchQuery(self._rows(state), state.vector, state.found, zero, self._mechanism(state), 0)

    def update(self, state: OjaState, answer: Answer) -> OjaState:
        """An Oja step."""
        offset, slope = self.rates[state.found.shape[1]]
        moved = state.vector + vector_of(answer) / (offset + slope * state.step)
        return OjaState(state.step + 1, unit(project_out(moved, state.found)), state.found)

    def direction(self, state: OjaState) -> np.ndarray | None:
        return state.vector if state.step > self.steps else None

    def _rows(self, state: OjaState) -> range:
        first = state.found.shape[1] * (self.records // self.target_rank) + (state.step - 1) * self.batch
        return range(first, first + self.batch)

    @abstractmethod
    def _mechanism(self, state: OjaState) -> Mechanism: ...


@dataclass(frozen=True, kw_only=True)
class PlainOja(OjaOracle):
    """Oja's method as it is. Not private."""

    def _mechanism(self, state: OjaState) -> Mechanism:
        return PlainMean(count=self.batch)

    def promise(self) -> Promise:
        return Promise("record_replace", math.inf, 0.0, None, True, "no noise: not private")

    def charge(self) -> Charge:
        raise RefusedError("not private: Oja's method as it is adds no noise, so no budget covers it; use DP-Ojas")

    def spec(self) -> dict[str, Any]:
        return spec_of("oja", self)


@dataclass(frozen=True, kw_only=True)
class DPOjas(OjaOracle):
    """DP-Ojas. Parameters of :class:`OjaOracle`, and:

    radius : beta, what images are clipped to in 2-norm; public.
    budget : of the whole run. relation : see :mod:`npmdask.stochastic.neighbours`.
    noise : "sound": alpha = 1 / mu(epsilon, delta), exact for one pass over disjoint batches at any epsilon.
        "paper": alpha = C' ln(n / delta) / (epsilon sqrt(n)) with C' = 1 and n the records of a round. Its theorem
        needs epsilon = O(sqrt(ln(n / delta) / n)) and a shuffle; beyond, ``promise`` says what it really gives.

    Notes
    -----
    Algorithm 3 has B = 1; noise of a batch's mean is B times smaller. Replacing a record moves the sum by 2 beta, so
    "2 beta alpha" is (1 / alpha)-GDP.
    """

    radius: float
    budget: Budget
    relation: Relation = "record_replace"
    noise: str = "sound"
    alpha: float = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_by_index(self.relation)
        if self.noise not in ("sound", "paper"):
            raise BadInputError(f"unknown noise {self.noise!r}: {closest(self.noise, ['sound', 'paper'])}")
        object.__setattr__(self, "alpha", self._alpha())

    def _alpha(self) -> float:
        if self.noise == "sound":
            return gaussian_multiplier(self.budget, 1)
        if self.budget.delta == 0:
            raise BadInputError("the paper's noise needs delta > 0")
        n = self.records // self.target_rank
        return math.log(n / self.budget.delta) / (self.budget.epsilon * math.sqrt(n))

    def _mechanism(self, state: OjaState) -> Mechanism:
        return ClippedMean(relation=self.relation, radius=self.radius, count=self.batch, multiplier=self.alpha)

    def promise(self) -> Promise:
        exact = promise_of(self.charge(), self.relation, self.budget.delta)
        if self.noise == "sound":
            return exact
        remark = (
            f"the paper claims epsilon = {self.budget.epsilon:g}; one pass without a shuffle gives what is said here"
        )
        return replace(exact, verified=exact.epsilon <= self.budget.epsilon, remark=remark)

    def charge(self) -> Charge:
        """Of the dearest batch, and so of the run."""
        return gaussian_charge(self.alpha, 1)

    def spec(self) -> dict[str, Any]:
        return spec_of("dp-ojas", self)


@dataclass(frozen=True, kw_only=True)
class ModifiedDPPCA(OjaOracle):
    """ModifiedDP-PCA with the paper's PrivRange and PrivMean. Parameters of :class:`OjaOracle`, and:

    budget : of every batch, and so of the run. fail_prob : tau. tail : K and a.
    halves : "same": as printed, half of a batch is used for both, with half of the budget each, the other half is
        not used. "disjoint": one half for each, with the whole budget each: what the paper seems to mean.
    constant : C_1 of PrivRange.

    Notes
    -----
    Where PrivRange finds nothing, the direction stays as it is (the paper does not say what to do).
    """

    budget: Budget
    relation: Relation = "record_replace"
    fail_prob: float = 0.01
    tail: tuple[float, float] = (1.0, 1.0)
    halves: str = "same"
    constant: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_by_index(self.relation)
        if self.halves not in ("same", "disjoint") or self.batch < 2 or self.budget.delta == 0:
            raise BadInputError("halves is 'same' or 'disjoint', a batch has two records or more, delta is positive")

    def update(self, state: OjaState, answer: Answer) -> OjaState:
        """After a range, a mean of the same step; after no range, the next step; after a mean, an Oja step."""
        if state.spread is not None:
            return super().update(state, answer)
        spread = number_of(answer)
        return replace(state, step=state.step + 1) if spread is None else replace(state, spread=spread)

    @property
    def releases(self) -> int:
        return 2 * super().releases

    def promise(self) -> Promise:
        """Sound for the relations that are offered here, not for adding and removing records, as the paper claims."""
        exact = promise_of(self.charge(), self.relation, self.budget.delta)
        holds = exact.epsilon <= self.budget.epsilon
        remark = "the paper's claim, checked" if holds else "exact composition gives more than the paper claims"
        return replace(exact, verified=holds, remark=remark)

    def charge(self) -> Charge:
        """At the delta of the budget. Parallel over batches, all alike; the two calls on one half add up."""
        epsilon, delta = self._share
        spread, lone = StabilityHistogram(epsilon=epsilon, delta=delta).cost()
        mean, rest = paper_mean_cost(epsilon, delta)
        whole = self.budget.delta * (1 - 1e-9)  # what is rounded up afterwards
        if self.halves == "same":
            return release_charge(spread + mean.epsilon_at(whole - lone - rest), whole)
        return release_charge(max(spread, mean.epsilon_at(whole - rest)), whole)

    def spec(self) -> dict[str, Any]:
        return spec_of("k-dp-pca", self)

    @property
    def _share(self) -> tuple[float, float]:
        """Of the budget, for each of the two calls."""
        share = 0.5 if self.halves == "same" else 1.0
        return share * self.budget.epsilon, share * self.budget.delta

    def _rows(self, state: OjaState) -> range:
        rows, half = super()._rows(state), self.batch // 2
        second = self.halves == "disjoint" and state.spread is not None
        return rows[half : 2 * half] if second else rows[:half]

    def _mechanism(self, state: OjaState) -> Mechanism:
        epsilon, delta = self._share
        fail_prob = self.fail_prob / (2 * self.steps)
        if state.spread is None:
            return PaperRange(epsilon=epsilon, delta=delta, fail_prob=fail_prob, constant=self.constant)
        return PaperMean(
            epsilon=epsilon,
            delta=delta,
            spread=state.spread,
            count=self.batch // 2,
            fail_prob=fail_prob,
            tail=self.tail,
        )
