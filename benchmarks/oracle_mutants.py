"""Broken releases of stochastic oracles, as somebody might really write them: the audit must reject each.

Every mutant is a real path with one part replaced: a mechanism in all queries, the oracle, or how a query is named.
None is an option of the product's code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from npmdask.accounting.budget import Budget, Charge
from npmdask.audit import Finding, OraclePath, examine_oracle, oracle_paths
from npmdask.audit.oracle_paths import whole_run
from npmdask.core.numerics.subspaces import present, project_out
from npmdask.dp_pca.base import BatchQuery, Noise, Relation, parallel, purpose_of, whole_scale
from npmdask.dp_pca.exact_oracles import TightOracle
from npmdask.dp_pca.paper_oracles import DPOjas, ModifiedDPPCA, OjaRoundState
from npmdask.dp_pca.private_mean import ClippedMean, DistanceRange, PaperRange

BUDGET = Budget(8.0, 1e-6)
DETERMINISTIC, STATISTICAL = frozenset({"path-wise check"}), frozenset({"attack"})
BOTH = DETERMINISTIC | STATISTICAL


# Means.
class ReplacedCountsOnce(ClippedMean):
    """The sensitivity of a replaced record is one radius: no factor 2."""

    @property
    def units(self) -> int:
        return whole_scale(self.multiplier * self.radius / self.grid)


class NotClipped(ClippedMean):
    """Differences are summed as they are."""

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray:
        images, there = present(images)
        differences = np.where(there[:, None], images - centre, 0.0)
        return np.rint(differences / self.grid).astype(np.int64).sum(axis=0)


class ZerosAreRecords(ClippedMean):
    """A record of zeros has the term clip(0 - centre), so zeroing one out moves the sum by up to two radii."""

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray:
        nearly = np.where(present(images)[1][:, None], images, np.finfo(np.float64).tiny)
        return super().summary(nearly, centre)


class HalfTheNoise(ClippedMean):
    """The standard deviation that is said, and half of it drawn."""

    def release(self, summary: np.ndarray, centre: np.ndarray, noise: Noise, purpose: str) -> np.ndarray:
        drawn = noise.gaussian(self.units // 2, summary.shape, purpose_of({**self.spec(), "of": purpose}, centre))
        return centre + (summary + drawn) * self.grid / self.count


class FloatSum(ClippedMean):
    """Clipped differences added up in floats that round: the sum depends on order and chunks."""

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray:
        images, there = present(images)
        differences = np.where(there[:, None], images - centre, 0.0)
        lengths = np.maximum(np.linalg.norm(differences, axis=1) / self.radius, 1.0)
        return np.asarray((differences / lengths[:, None]).sum(axis=0) / self.grid)


# Ranges.
class TwoBins(DistanceRange):
    """Every record is counted in two bins, so that four counts move."""

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray:
        counts = super().summary(images, centre)
        return counts + np.roll(counts, 5)


class NoNoiseOnCounts(DistanceRange):
    """The heaviest bin, as it is: only a bin comes out, after all."""

    def release(self, summary: np.ndarray, centre: np.ndarray, noise: Noise, purpose: str) -> float | None:
        return float(self.largest * 2.0 ** (-int(np.argmax(summary)) / 2))


class HalfTheLaplaceNoise(PaperRange):
    """Counts with noise of scale 1 / epsilon: one count moves, after all."""

    def release(self, summary: np.ndarray, centre: np.ndarray, noise: Noise, purpose: str) -> float | None:
        loud = PaperRange(**{**_given(self), "epsilon": 2 * self.epsilon, "constant": 2 * self.constant})
        return loud.release(summary, centre, noise, purpose)


# Oracles.
class FreeReuse(TightOracle):
    """All records in every step, every step with the whole budget, as if batches were disjoint."""

    def _part(self, step: int) -> float:
        return 1.0

    def charge(self) -> Charge:
        return parallel(self._charge(step) for step in range(1, self.target_rank * self.steps + 1))


class OneRoundPaid(TightOracle):
    """The budget is divided over the steps of a round, and there are k rounds."""

    def _part(self, step: int) -> float:
        return super()._part(step) * self.target_rank


class SameHalfTwice(ModifiedDPPCA):
    """Range and mean from the same half, with the whole budget each."""

    def _rows(self, state: OjaRoundState) -> range:
        return super()._rows(replace(state, spread=None))


# Paths: what a mutant changes of a query.
class WithMechanism(OraclePath):
    """Every query with a mechanism of a broken kind in the place of the sound one."""

    broken: type

    def asked(self, query: BatchQuery) -> BatchQuery:
        sound = query.mechanism
        return (
            replace(query, mechanism=self.broken(**_given(sound)))
            if isinstance(sound, self.broken.__mro__[1])
            else query
        )


@dataclass(frozen=True)
class Unnamed(BatchQuery):
    """Its noise is named by w and U, without the batch and the number of the release."""

    @property
    def purpose(self) -> str:
        return purpose_of({}, self.vector, self.found)


class WithoutBatch(OraclePath):
    def asked(self, query: BatchQuery) -> BatchQuery:
        return Unnamed(**vars(query))


class FloatImages(OraclePath):
    """Images as BLAS rounds them, strip by strip: their last bits follow the place of a record in its strip."""

    def by_pass(self, query: BatchQuery, records: np.ndarray) -> np.ndarray:
        if records.ndim == 3:
            return super().by_pass(query, records)
        vector, found = project_out(query.vector, query.found), query.found
        with np.errstate(over="ignore", invalid="ignore"):
            images = project_out(records * (records @ vector)[:, None], found)
            return np.asarray(query.mechanism.summary(images, query.centre))


class Checked(OraclePath):
    """Bad records are an error of the pass, with their number: no mechanism sees them, as their images are zeros."""

    def by_pass(self, query: BatchQuery, records: np.ndarray) -> np.ndarray:
        bad = ~np.isfinite(records.reshape(len(records), -1)).all(axis=1)
        if bad.any():
            raise ValueError(f"{np.sum(bad)} records are not finite")
        return super().by_pass(query, records)


def checked(path: OraclePath) -> OraclePath:
    return _as(Checked, path)


def float_images(path: OraclePath) -> OraclePath:
    return _as(FloatImages, path)


def mechanism(broken: type) -> Callable[[OraclePath], OraclePath]:
    """The path with ``broken`` in the place of the mechanism that it was derived from."""

    def changed(path: OraclePath) -> OraclePath:
        found = _as(WithMechanism, path)
        found.broken = broken
        return found

    return changed


def oracle(broken: type, **other: Any) -> Callable[[OraclePath], OraclePath]:
    """The path with an oracle of another kind, or with other parameters."""
    return lambda path: _as(OraclePath, path, broken(**{**_given(path.oracle), **other}))


def one_noise(path: OraclePath) -> OraclePath:
    """Steps so short that w stays as it is, to the last bit, and names of noise that say w only."""
    return _as(WithoutBatch, path, replace(path.oracle, rates=((1e30, 0.0),) * path.oracle.target_rank))


def paper_noise(path: OraclePath) -> OraclePath:
    """DP-Ojas with the paper's noise, n = 10^5, at its word: epsilon = 1. One batch, for speed: noise knows n only."""
    n, budget, relation = 100_000, Budget(1.0, path.budget.delta), path.pair.relation
    made = DPOjas(
        records=n,
        target_rank=1,
        batch=n,
        rates=((1.0, 1.0),),
        radius=1.0,
        budget=budget,
        relation=relation,
        noise="paper",
    )
    pair = whole_run(relation, n, 2, place=n // 2)[0]
    return OraclePath("k-dp-ojas", made, pair, budget, gaussian=True)


def _as(kind: type, path: OraclePath, oracle: Any = None) -> Any:
    return kind(path.name, oracle or path.oracle, path.pair, path.budget, gaussian=path.gaussian)


def _given(made: Any) -> dict[str, Any]:
    return {field.name: getattr(made, field.name) for field in fields(made) if field.init}


@dataclass(frozen=True, kw_only=True)
class OracleMutant:
    """A mistake, where it is looked for, and which of the two checks must see it."""

    name: str
    path: str
    change: Callable[[OraclePath], OraclePath]
    relation: Relation = "record_replace"
    pair: str = "attains"
    steps: int = 2
    caught_by: frozenset[str] = BOTH
    runs: int = 300
    budget: Budget = BUDGET

    def broken_path(self) -> OraclePath:
        sound = oracle_paths(self.path, self.relation, self.budget, self.steps)
        return self.change(next(path for path in sound if path.pair.name == self.pair))

    def audited(self, *, runs: int | None = None) -> Finding:
        """What the audit says of it."""
        return examine_oracle(self.broken_path(), runs=runs or self.runs)


ORACLE_MUTANTS = (
    OracleMutant(name="a replaced record counted once", path="clipped-mean", change=mechanism(ReplacedCountsOnce)),
    OracleMutant(name="the same, in a whole run", path="k-dp-pca", change=mechanism(ReplacedCountsOnce), steps=1),
    OracleMutant(name="images not clipped", path="k-dp-ojas", change=mechanism(NotClipped)),
    OracleMutant(
        name="zeros clipped to minus the centre",
        path="clipped-mean",
        change=mechanism(ZerosAreRecords),
        relation="record_zero_out",
    ),
    OracleMutant(
        name="half of the claimed noise", path="k-dp-ojas", change=mechanism(HalfTheNoise), caught_by=STATISTICAL
    ),
    OracleMutant(name="noise named without the batch", path="k-dp-ojas", change=one_noise, steps=4, runs=100),
    OracleMutant(
        name="a record in two bins", path="distance-range", change=mechanism(TwoBins), caught_by=DETERMINISTIC, runs=100
    ),
    OracleMutant(
        name="a range without noise", path="distance-range", change=mechanism(NoNoiseOnCounts), caught_by=STATISTICAL
    ),
    OracleMutant(
        name="half of the Laplace noise",
        path="paper-range",
        change=mechanism(HalfTheLaplaceNoise),
        pair="behind",
        budget=Budget(2.0, 1e-6),
        caught_by=STATISTICAL,
        runs=5000,
    ),
    OracleMutant(name="all records in every step for free", path="k-dp-pca", change=oracle(FreeReuse), runs=250),
    OracleMutant(
        name="one round of k is paid", path="k-dp-pca", change=oracle(OneRoundPaid), caught_by=DETERMINISTIC, runs=100
    ),
    OracleMutant(
        name="one half twice, whole budget each",
        path="k-dp-pca-paper-disjoint",
        change=oracle(SameHalfTwice),
        caught_by=DETERMINISTIC,
        runs=100,
    ),
    OracleMutant(name="the paper's noise of DP-Ojas", path="k-dp-ojas", change=paper_noise),
    OracleMutant(
        name="sums that depend on chunks",
        path="k-dp-pca",
        change=mechanism(FloatSum),
        pair="rows",
        steps=1,
        caught_by=DETERMINISTIC,
        runs=100,
    ),
    OracleMutant(
        name="images that follow their places",
        path="k-dp-pca",
        change=float_images,
        relation="record_add_remove",
        steps=1,
        caught_by=DETERMINISTIC,
        runs=100,
    ),
    OracleMutant(name="an error about a record", path="k-dp-ojas", change=checked, caught_by=DETERMINISTIC, runs=100),
)
