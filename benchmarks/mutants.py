"""Broken private releases, as somebody might really write them: the audit must reject each.

Every mutant is the real release path with one part replaced by an implementation of its own, a class that overrides
what the mistake would change. None is an option of the product's code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npmdask.accounting.budget import Budget, Charge, gaussian_charge, gaussian_multiplier, laplace_multiplier
from npmdask.audit import Finding, Instance, Publication, ReleasePath, examine, instances, operator_of, without_noise
from npmdask.audit.attacks import Values
from npmdask.audit.audit import whole_operator_of
from npmdask.audit.release_path import WholePath
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Partial
from npmdask.core.storage.readers.dense import Tile
from npmdask.privacy.clipped_rows import ClippedGram, gather_rows
from npmdask.privacy.mechanisms.gaussian_laplace import (
    PrivateGaussian,
    PrivateLaplace,
    SymmetricGaussian,
    sampler_slack,
)
from npmdask.privacy.mechanisms.noise_key import Entropy, Keystream
from npmdask.privacy.mechanisms.sampler import rounded_gaussian
from npmdask.privacy.neighbors import RecordReplace, SpectralNorm, SymmetricEntry, make_relation, singular_values
from npmdask.privacy.public_rule import PublicRule

GAUSSIAN, PURE = Budget(8.0, 1e-6), Budget(1.0)


# Relations whose sensitivity is too small.
class OneOfTwoRows(SymmetricEntry):
    """A symmetric pair counted as one entry: no sqrt(2)."""

    entries = 1


class NoRank(SpectralNorm):
    """||X||_2 instead of ||X||_F: no sqrt(p)."""

    def _l2(self, block: Block, exponent: int) -> float:
        return singular_values(block)[0]


class ReplacedIsRemoved(RecordReplace):
    """A replaced record counted as a removed one: no sqrt(2)."""

    def _l2(self, block: Block, exponent: int) -> float:
        return singular_values(block)[0]


class OneImage(RecordReplace):
    """The clipped term of one record counted, where two differ."""

    def _clipped(self, share: float, largest: float) -> float:
        return share


# Mechanisms that do not do what their accounting says.
class OneReleaseFewer(PrivateGaussian):
    """Calibrated for the steps that give a basis; the last product is released for free."""

    def _exact_multiplier(self) -> float:
        return gaussian_multiplier(self.budget, self.releases - 1, sampler_slack())


class OneLaplaceFewer(PrivateLaplace):
    """The same with Laplace noise."""

    def _exact_multiplier(self) -> float:
        return laplace_multiplier(self.budget, self.releases - 1, sampler_slack())


class ChargedForOneFewer(PrivateGaussian):
    """Noise for all releases; the ledger learns of one fewer, so that budget is left that is spent."""

    def _charge(self) -> Charge:
        return gaussian_charge(self.multiplier, self.releases - 1)


class OneStream(PrivateGaussian):
    """The key stream is named by the run only: every step gets the same noise."""

    def _purpose(self, *public: Any) -> tuple[str | int | bytes, ...]:
        return ("noise",)


class SaysMoreThanItDraws(PrivateGaussian):
    """Variance and standard deviation confused by a factor of two: the event says stddev, stddev / sqrt(2) is drawn."""

    def _draw(self, scale: int, shape: tuple[int, ...], stream: Keystream) -> np.ndarray:
        return rounded_gaussian(round(scale / math.sqrt(2)), shape, stream)


class FloatNoise(PrivateGaussian):
    """Floating-point noise of the right size on a floating-point product."""

    def release(self, product: np.ndarray, *, block: Block, entropy: Entropy, step: int) -> Block:
        seed = entropy.keystream("float", step).words(2)
        noise = np.random.default_rng(seed).standard_normal(product.shape)
        return product * float(self.rounding.grid) + self.noise_stddev(block) * noise


class OffDiagonalOfHalf(SymmetricGaussian):
    """Both of A_ij and A_ji are counted as noised, though only one is drawn: s / 2 off the diagonal."""

    def _off_diagonal(self, scale: int) -> int:
        return -(-scale // 2)


class BothSides(SymmetricGaussian):
    """Noise of the right size on every entry, drawn on both sides of the diagonal: their mean has less of it."""

    def release(self, product: np.ndarray, *, block: Block, entropy: Entropy, step: int) -> Block:
        other = Entropy.open(entropy.path, bound_to="below the diagonal")
        upper, lower = (
            super(BothSides, self).release(product, block=block, entropy=e, step=step) for e in (entropy, other)
        )
        return np.triu(upper) + np.tril(lower, -1)


class WholeWithLessNoise(SymmetricGaussian):
    """As above, of a whole matrix: stddev / sqrt(2) is drawn."""

    def _draw(self, scale: int, shape: tuple[int, ...], stream: Keystream) -> np.ndarray:
        return rounded_gaussian(round(scale / math.sqrt(2)), shape, stream)


# What public rules must not be.
def filled_by_the_mean(instance: Instance, data: Any) -> Any:
    """Gaps filled with the mean of what the data themselves have in the column."""
    rule = replace(instance.public_rule, fill=np.nanmean(data, axis=0))
    return operator_of(replace(instance, public_rule=rule), data)


class ClippedFirst(ClippedGram):
    """Records clipped as they are stored: gaps are filled, and weights multiplied, in what was clipped already."""

    gaps: float = 0.0

    def _clipped(self, tile: Tile, first: int, part: slice, records: np.ndarray) -> np.ndarray:
        absent = np.isnan(gather_rows(tile, part, records))
        records[absent] = 0.0
        norms = np.linalg.norm(records, axis=1, keepdims=True)
        records *= np.minimum(1.0, self.clip_norm / np.maximum(norms, self.clip_norm / 2**20))
        records[absent] = self.gaps
        weighted: np.ndarray = self._weighted(records, first + np.arange(part.start, part.stop))
        return weighted


@dataclass(frozen=True, kw_only=True)
class FilledAfterClipping(ClippedFirst):
    """The constant of the public rule comes too late to be clipped."""

    gaps: float


def clipped_before_filling(instance: Instance, data: Any) -> Any:
    """The operator of records without a rule for gaps, which it fills itself."""
    right = operator_of(replace(instance, public_rule=PublicRule()), data)
    gaps = float(instance.public_rule.fill)  # type: ignore[arg-type]
    return FilledAfterClipping(reader=right.reader, clip_norm=right.clip_norm, gaps=gaps)


def clipped_before_weighting(instance: Instance, data: Any) -> Any:
    """Weights that are multiplied after clipping, as those of a plain run are at any time."""
    right = operator_of(instance, data)
    return ClippedFirst(reader=right.reader, clip_norm=right.clip_norm, view=right.view)


class CountsGaps(ReleasePath):
    """A report that says how many values are missing, as that of a plain run does."""

    def step(self, world: str, blocks: Values, keys: Sequence[Entropy], step: int, together: bool) -> list[Publication]:
        published = super().step(world, blocks, keys, step, together)
        here, there = (
            np.full(len(blocks), float(np.isnan(data).sum())) for data in (self.instance.here, self.instance.there)
        )
        return [*published, without_noise(step, here if world == "here" else there, here, there)]


# Operators and loops.
class ClippedTooLate(ClippedGram):
    """Records clipped to four times the norm that sensitivity and noise are computed from."""

    def finish(self, total: Partial, block: Block) -> np.ndarray:
        return super().finish(total, block) * 16  # the grid of this clipping norm is 16 times the other


def images_not_clipped(instance: Instance, data: Any) -> Any:
    """The operator of records without the clipping of images that the noise counts on."""
    return replace(operator_of(instance, data), image_norm=None)


class FreshNoiseOnResume(ReleasePath):
    """Killed after the last release and resumed with a new key: the same product again, other noise."""

    def step(self, world: str, blocks: Values, keys: Sequence[Entropy], step: int, together: bool) -> list[Publication]:
        published = super().step(world, blocks, keys, step, together)
        if step == self.steps:
            new = [Entropy.open(keys[0].path, bound_to=f"resumed {number}") for number in range(len(keys))]
            published += super().step(world, blocks, new, step, together)
        return published


class LeakedRayleighQuotient(ReleasePath):
    """A progress line with the trace of X^T A X to two decimals, without noise."""

    def step(self, world: str, blocks: Values, keys: Sequence[Entropy], step: int, together: bool) -> list[Publication]:
        published = super().step(world, blocks, keys, step, together)
        queries = published[0].here, published[0].there
        here, there = (np.round((blocks * query).sum(axis=(1, 2)), 2) for query in queries)
        return [*published, without_noise(step, here if world == "here" else there, here, there)]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A mistake, where it is looked for, and which of the two checks must see it."""

    name: str
    relation: str
    mechanism: type[PrivateGaussian] | type[PrivateLaplace] = PrivateGaussian
    path: type[ReleasePath] = ReleasePath
    broken_relation: type | None = None
    operator: Callable[[Instance, Any], Any] = operator_of
    pair: str = "attains"
    steps: int = 2
    caught_by: frozenset[str] = frozenset({"path-wise check", "attack"})
    runs: int = 4000

    @property
    def budget(self) -> Budget:
        return GAUSSIAN if self.mechanism.norm == "l2" else PURE

    def release_path(self, pair: str | None = None) -> ReleasePath:
        """The broken release path, on the pair of neighbours of this name."""
        records = self.relation.startswith("record")
        relation = make_relation(self.relation, clip_norm=1.0 if records else 4096.0)
        instance = next(i for i in instances(relation, self.mechanism.norm) if i.name == (pair or self.pair))
        rounding = operator_of(instance, instance.here).rounding(instance.p)
        if self.broken_relation:
            relation = self.broken_relation(**{k: v for k, v in relation.spec().items() if k != "name"})
        mechanism = self.mechanism(
            relation=relation,
            budget=self.budget,
            releases=self.steps,
            rounding=rounding,
            image_norm=instance.image_norm,
        )
        return self.path(replace(instance, relation=relation), mechanism, steps=self.steps, operator_of=self.operator)

    def audited(self, *, pair: str | None = None, runs: int | None = None) -> Finding:
        """What the audit says of it."""
        return examine(self.release_path(pair), self.budget, runs=runs or self.runs)


@dataclass(frozen=True, kw_only=True)
class Whole(Mutant):
    """The same of a covariance that is released once, whole."""

    mechanism: type[SymmetricGaussian] = SymmetricGaussian
    path: type[WholePath] = WholePath
    operator: Callable[[Instance, Any], Any] = whole_operator_of
    steps: int = 1
    runs: int = 2000


def clipped_too_late(instance: Instance, data: Any) -> Any:
    """The operator of records with a clipping norm of its own."""
    right = operator_of(instance, data)
    return ClippedTooLate(reader=right.reader, clip_norm=4 * right.clip_norm)


DETERMINISTIC = frozenset({"path-wise check"})
MUTANTS = (
    Mutant(name="symmetric pair without sqrt(2)", relation="symmetric_entry", broken_relation=OneOfTwoRows),
    Mutant(name="replaced record without sqrt(2)", relation="record_replace", broken_relation=ReplacedIsRemoved),
    Mutant(name="spectral norm without sqrt(p)", relation="spectral_norm", broken_relation=NoRank),
    Mutant(name="calibrated for one release fewer", relation="entry", mechanism=OneReleaseFewer),
    Mutant(name="the same, Laplace", relation="record_add_remove", mechanism=OneLaplaceFewer),
    Mutant(name="one release is not charged", relation="entry", mechanism=ChargedForOneFewer, caught_by=DETERMINISTIC),
    Mutant(name="fresh noise on resume", relation="frobenius_norm", path=FreshNoiseOnResume, runs=6000),
    Mutant(name="the same noise in two steps", relation="symmetric_entry", mechanism=OneStream, runs=500),
    Mutant(
        name="leaked Rayleigh quotient", relation="symmetric_entry", path=LeakedRayleighQuotient, pair="wide", runs=500
    ),
    Mutant(name="records clipped too late", relation="record_add_remove", operator=clipped_too_late, runs=500),
    Mutant(
        name="noise for clipped images that are not clipped",
        relation="record_zero_out",
        operator=images_not_clipped,
        pair="images",
        runs=500,
    ),
    Mutant(
        name="images of a replaced record counted once",
        relation="record_replace",
        broken_relation=OneImage,
        pair="images",
        runs=1000,
    ),
    Mutant(name="floating-point noise", relation="entry", mechanism=FloatNoise, caught_by=DETERMINISTIC, runs=500),
    Mutant(
        name="less noise than claimed",
        relation="record_zero_out",
        mechanism=SaysMoreThanItDraws,
        caught_by=frozenset({"attack"}),
    ),
    Mutant(
        name="gaps filled with the mean of the data",
        relation="record_replace",
        operator=filled_by_the_mean,
        pair="gaps",
        runs=500,
    ),
    Mutant(
        name="records clipped before their gaps are filled",
        relation="record_zero_out",
        operator=clipped_before_filling,
        pair="gaps",
        runs=500,
    ),
    Mutant(
        name="records clipped before they are weighted",
        relation="record_replace",
        operator=clipped_before_weighting,
        pair="weighted",
        runs=500,
    ),
    Mutant(name="gaps are counted in a report", relation="record_replace", path=CountsGaps, pair="gaps", runs=500),
    Whole(
        name="covariance: replaced record without sqrt(2)", relation="record_replace", broken_relation=ReplacedIsRemoved
    ),
    Whole(name="covariance: off the diagonal half of it", relation="symmetric_entry", mechanism=OffDiagonalOfHalf),
    Whole(name="covariance: both sides drawn", relation="symmetric_entry", mechanism=BothSides),
    Whole(
        name="covariance: less noise than claimed",
        relation="record_add_remove",
        mechanism=WholeWithLessNoise,
        caught_by=frozenset({"attack"}),
    ),
)
