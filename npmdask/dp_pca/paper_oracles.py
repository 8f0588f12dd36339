"""Oracles that take Oja's steps, most in one pass over all records in all rounds.

``PlainOja`` (Duengler and Sanyal 2025, Algorithm 5) is not private. ``DPOjas`` (Algorithm 3) clips every image.
``ModifiedDPPCA`` (Algorithm 2) is the paper's: a range, then a mean.

Where a record is in one batch, fixed by its index, a run costs what its most expensive batch costs (parallel
composition). What else DP-Ojas may do is compared in :mod:`npmdask.accounting.amplification`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npmdask.accounting import Budget, Charge, gaussian_charge, gaussian_multiplier, release_charge, shuffled_multiplier
from npmdask.core.numerics.subspaces import Block, project_out, unit
from npmdask.dp_pca.base import (
    Answer,
    BatchMechanism,
    BatchQuery,
    Promise,
    Relation,
    number_of,
    promise_of,
    random_start,
    require_by_index,
    require_relation,
    spec_of,
    sum_sensitivity,
    vector_of,
)
from npmdask.dp_pca.private_mean import (
    ClippedMean,
    PaperMean,
    PaperRange,
    PlainMean,
    StabilityHistogram,
    paper_mean_cost,
)
from npmdask.errors import BadInputError, RefusedError, require, require_known

# Oja's steps as an oracle: what those of :mod:`npmdask.dp_pca.paper_oracles` have in common.
#
# omega_t = normalise(P (omega_{t-1} + eta_t g_t)),   g_t released of batch t of the round;  k rounds of n / k records


@dataclass(frozen=True)
class OjaRoundState:
    """Step t of the round (answers come after it), omega_{t-1}, U, and a range that was released for this step."""

    step: int
    vector: np.ndarray
    found: Block
    spread: float | None = None


@dataclass(frozen=True, kw_only=True)
class OjaOracle(ABC):
    """See the module.

    Parameters
    ----------
    records : n; public. target_rank : k; every round has floor(n / k) records.
    batch : B; every step has B of them, T = floor(n / k / B).
    rates : (offset, slope) for every round: eta_t = 1 / (offset + slope t), t = 1, 2, ...; public.
    seed : of the public random starts.
    """

    records: int
    target_rank: int
    batch: int
    rates: tuple[tuple[float, float], ...]
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_batches()
        if len(self.rates) != self.target_rank or not all(a >= 0 and b >= 0 and a + b > 0 for a, b in self.rates):
            raise BadInputError("rates are one pair (offset, slope) for every round, not negative and not both zero")

    def _check_batches(self) -> None:
        if self.target_rank < 1 or not 1 <= self.batch <= self.records // self.target_rank:
            raise BadInputError(
                f"{self.records} records are too few for {self.target_rank} rounds with batches of {self.batch}: use "
                "fewer rounds or smaller batches"
            )

    @property
    def steps(self) -> int:
        """T: of a round."""
        return self.records // self.target_rank // self.batch

    @property
    def releases(self) -> int:
        """The most that a run asks."""
        return self.target_rank * self.steps

    @property
    def remembered(self) -> int:
        return 0

    def init(self, found: Block, earlier: OjaRoundState | None) -> OjaRoundState:
        return OjaRoundState(1, random_start(self.seed, found), found)

    def query(self, state: OjaRoundState) -> BatchQuery:
        zero = np.zeros_like(state.vector)
        return BatchQuery(self._rows(state), state.vector, state.found, zero, self._mechanism(state), 0)

    def update(self, state: OjaRoundState, answer: Answer) -> OjaRoundState:
        """An Oja step."""
        offset, slope = self.rates[state.found.shape[1]]
        moved = state.vector + vector_of(answer) / (offset + slope * state.step)
        return OjaRoundState(state.step + 1, unit(project_out(moved, state.found)), state.found)

    def direction(self, state: OjaRoundState) -> np.ndarray | None:
        return state.vector if state.step > self.steps else None

    def _rows(self, state: OjaRoundState) -> range | None:
        return self._batch(state)

    def _batch(self, state: OjaRoundState) -> range:
        first = state.found.shape[1] * (self.records // self.target_rank) + (state.step - 1) * self.batch
        return range(first, first + self.batch)

    @abstractmethod
    def _mechanism(self, state: OjaRoundState) -> BatchMechanism: ...


NOISES = ("sound", "reuse", "shuffle", "paper")


@dataclass(frozen=True, kw_only=True)
class PlainOja(OjaOracle):
    """Oja's method as it is. Not private.

    Notes
    -----
    Neighbours: none, not private: it refuses to be charged.
    Guarantee: Theorem 7 of Duengler and Sanyal 2025 for rates as in ``oja.Oja.theory`` of streams.
    Needs: rates for every round, batches that fit into a round; else BadInputError.
    Cost: every record once, O(d k); O(d k) memory.
    """

    def _mechanism(self, state: OjaRoundState) -> BatchMechanism:
        return PlainMean(count=self.batch)

    def widest_noise(self) -> float:
        return 0.0

    def promise(self) -> Promise:
        return Promise("record_replace", math.inf, 0.0, None, True, "no noise: not private")

    def charge(self) -> Charge:
        raise RefusedError("Oja's method adds no noise and is not private: use DP-Ojas")

    def spec(self) -> dict[str, Any]:
        return spec_of("oja", self)


@dataclass(frozen=True, kw_only=True)
class DPOjas(OjaOracle):
    """DP-Ojas. Parameters of :class:`~npmdask.dp_pca.paper_oracles.OjaOracle`, and:

    radius : beta, what images are clipped to in 2-norm; public.
    budget : of the whole run. relation : see :mod:`npmdask.dp_pca.base`.
    noise : "sound": alpha = 1 / mu(epsilon, delta), exact for one pass over disjoint batches at any epsilon.
        "reuse": every step has all records (no ``batch``), ``full_steps`` a round; k T releases share the budget.
        "shuffle": amplified (:mod:`npmdask.accounting.amplification`) where that gives less than "sound"; only for
        records in a secret order, and of which no one sees the parts: ``shuffled`` promises that.
        "paper": alpha = C' ln(n / delta) / (epsilon sqrt(n)) with C' = 1 and n the records of a round. Its theorem
        needs epsilon = O(sqrt(ln(n / delta) / n)) and a shuffle; beyond, ``promise`` says what it really gives.

    Notes
    -----
    Neighbours: record_replace, record_zero_out; with "reuse" record_add_remove too.
    Guarantee: (1 / alpha)-GDP in one pass; utility as of Theorem 3 of the paper (npmdask.theory.dpojas_zeta).
    Needs: a public radius; for "shuffle" the promise of a secret order; else BadInputError or RefusedError.
    Cost: every record once (reuse: ``full_steps`` times k), O(d k); O(d k) memory.

    Algorithm 3 has B = 1; noise of a batch's mean is B times smaller. Replacing a record moves the sum by 2 beta, so
    "2 beta alpha" is (1 / alpha)-GDP.
    """

    batch: int = 0
    radius: float
    budget: Budget
    relation: Relation = "record_replace"
    noise: str = "sound"
    full_steps: int = 0
    shuffled: bool = False
    alpha: float = field(init=False)

    def __post_init__(self) -> None:
        require_known(self.noise, NOISES, "unknown noise")
        super().__post_init__()
        (require_relation if self.noise == "reuse" else require_by_index)(self.relation)
        object.__setattr__(self, "alpha", self._alpha())

    def _check_batches(self) -> None:
        if self.noise != "reuse":
            super()._check_batches()
        elif self.target_rank < 1 or self.records < 1 or self.batch:
            raise BadInputError("with noise = 'reuse' a step uses all records (at least one): leave batch out")
        if (self.full_steps >= 1) != (self.noise == "reuse"):
            raise BadInputError(
                "full_steps is the number of steps of a round, at least 1, and applies only to noise = 'reuse'"
            )

    @property
    def steps(self) -> int:
        return self.full_steps or super().steps

    def _alpha(self) -> float:
        """stddev / sensitivity of a release."""
        if self.noise in ("sound", "reuse"):
            return gaussian_multiplier(self.budget, self.releases if self.noise == "reuse" else 1)
        if self.noise == "shuffle":
            return min(self._amplified(), gaussian_multiplier(self.budget, 1))
        require(self.budget.delta != 0, "the paper's noise needs delta > 0")
        n = self.records // self.target_rank
        return math.log(n / self.budget.delta) / (self.budget.epsilon * math.sqrt(n))

    def _amplified(self) -> float:
        """alpha with a shuffle: every record has its part of the noise of its batch, and any two are 2 beta apart."""
        if not self.shuffled:
            raise RefusedError(
                "a shuffle amplifies only if the records are in a uniform random order that is kept secret, which "
                "cannot be checked here: shuffle them, delete the order, and set shuffled = True; or use noise = "
                "'reuse'"
            )
        each = shuffled_multiplier(self.budget, self.records) * math.sqrt(self.batch)
        return each * 2 / sum_sensitivity(self.relation, 1.0)

    def _rows(self, state: OjaRoundState) -> range | None:
        return None if self.noise == "reuse" else super()._rows(state)

    def _mechanism(self, state: OjaRoundState) -> BatchMechanism:
        return self._mean

    @property
    def _mean(self) -> ClippedMean:
        count = self.records if self.noise == "reuse" else self.batch
        return ClippedMean(relation=self.relation, radius=self.radius, count=count, multiplier=self.alpha)

    def widest_noise(self) -> float:
        """The same in every step."""
        return self._mean.stddev

    def promise(self) -> Promise:
        exact = promise_of(self.charge(), self.relation, self.budget.delta)
        remarks = {
            "shuffle": "only if the records are in a secret uniform random order, as the caller promised",
            "paper": f"the paper claims epsilon = {self.budget.epsilon:g}; one pass without a shuffle gives what is "
            "said here",
        }
        verified = self.charge().within(self.budget)
        return replace(exact, verified=verified, remark=remarks.get(self.noise, ""))

    def charge(self) -> Charge:
        """Return the cost of the run: all releases of all records, the dearest batch, or a shuffle of all."""
        if self.noise == "reuse":
            return gaussian_charge(self.alpha, self.releases)
        if self.noise == "shuffle" and self.alpha < gaussian_multiplier(self.budget, 1):
            return release_charge(self.budget.epsilon, self.budget.delta * (1 - 1e-9))  # of 1 - 1e-8 that is used
        return gaussian_charge(self.alpha, 1)

    def spec(self) -> dict[str, Any]:
        return spec_of("dp-ojas", self)


@dataclass(frozen=True, kw_only=True)
class ModifiedDPPCA(OjaOracle):
    """ModifiedDP-PCA with the paper's PrivRange and PrivMean. Parameters of :class:`OjaOracle`, and:

    budget : of every batch, and so of the run. fail_prob : tau. tail : K and a.
    halves : "same": as printed, half of a batch is used for both, with half of the budget each, the other half is
        not used. "disjoint": one half for each, with the whole budget each: what the paper seems to mean. "whole": all
        of a batch for both, with half of the budget each.
    constant : C_1 of PrivRange.

    Notes
    -----
    Neighbours: record_replace, record_zero_out; a record more or less is refused.
    Guarantee: the budget, by parallel composition over batches; utility as of Theorem 9 (npmdask.theory.dppca_zeta).
    Needs: batches of two records or more, delta > 0; else BadInputError. Large batches, too (docs/papers/kdppca.md).
    Cost: every record once or twice, O(d k); O(B d) memory.

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
        if self.halves not in ("same", "disjoint", "whole") or self.batch < 2 or self.budget.delta == 0:
            raise BadInputError(
                "halves is 'same', 'disjoint' or 'whole', a batch has two records or more, delta is positive"
            )

    def update(self, state: OjaRoundState, answer: Answer) -> OjaRoundState:
        """After a range, a mean of the same step; after no range, the next step; after a mean, an Oja step."""
        if state.spread is not None:
            return super().update(state, answer)
        spread = number_of(answer)
        return replace(state, step=state.step + 1) if spread is None else replace(state, spread=spread)

    @property
    def releases(self) -> int:
        return 2 * super().releases

    def widest_noise(self) -> None:
        """It follows the ranges that are released."""

    def promise(self) -> Promise:
        """Sound for the relations that are offered here, not for adding and removing records, as the paper claims."""
        exact = promise_of(self.charge(), self.relation, self.budget.delta)
        holds = self.charge().within(self.budget)
        remark = "the paper's claim, checked" if holds else "exact composition gives more than the paper claims"
        return replace(exact, verified=holds, remark=remark)

    def charge(self) -> Charge:
        """At the delta of the budget. Parallel over batches, all alike; two calls on the same records add up."""
        epsilon, delta = self._share
        spread, lone = StabilityHistogram(epsilon=epsilon, delta=delta).cost()
        mean, rest = paper_mean_cost(epsilon, delta)
        whole = self.budget.delta * (1 - 1e-9)  # what is rounded up afterwards
        if self.halves != "disjoint":
            return release_charge(spread + mean.epsilon_at(whole - lone - rest), whole)
        return release_charge(max(spread, mean.epsilon_at(whole - rest)), whole)

    def spec(self) -> dict[str, Any]:
        return spec_of("k-dp-pca", self)

    @property
    def _share(self) -> tuple[float, float]:
        """Budget (epsilon, delta) of each of the two calls."""
        share = 1.0 if self.halves == "disjoint" else 0.5
        return share * self.budget.epsilon, share * self.budget.delta

    def _rows(self, state: OjaRoundState) -> range:
        rows, half = self._batch(state), self._count
        second = self.halves == "disjoint" and state.spread is not None
        return rows[half : 2 * half] if second else rows[:half]

    @property
    def _count(self) -> int:
        """Records of a call."""
        return self.batch if self.halves == "whole" else self.batch // 2

    def _mechanism(self, state: OjaRoundState) -> BatchMechanism:
        epsilon, delta = self._share
        fail_prob = self.fail_prob / (2 * self.steps)
        if state.spread is None:
            return PaperRange(epsilon=epsilon, delta=delta, fail_prob=fail_prob, constant=self.constant)
        return PaperMean(
            epsilon=epsilon,
            delta=delta,
            spread=state.spread,
            count=self._count,
            fail_prob=fail_prob,
            tail=self.tail,
        )
