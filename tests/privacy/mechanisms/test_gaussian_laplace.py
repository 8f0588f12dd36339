"""Private releases: on the grid, within the budget, the same again bit for bit, and refused before noise is drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
from scipy import stats

from npmdask.accounting import Budget, delta_for
from npmdask.core.execution.executor import Threads
from npmdask.core.numerics.random import Rounding
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.privacy.clipped_rows import ClippedGram
from npmdask.privacy.mechanisms import Entropy, PrivateGaussian, PrivateLaplace
from npmdask.privacy.neighbors import REGISTRY, Entry, Norm, Relation, make_relation

GRID = 2.0**-30
BOTH = [PrivateGaussian, PrivateLaplace]
Make = Callable[..., Any]


@pytest.fixture
def entropy(tmp_path: Path) -> Entropy:
    """The same key in every run of the tests."""
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_bytes(bytes(range(1, 33)))
    return Entropy.open(path)


def mechanism(kind: Make = PrivateGaussian, **change: Any) -> Any:
    fields: dict[str, Any] = {
        "relation": make_relation("entry", clip_norm=1.0),
        "budget": Budget(1.0, 1e-6),
        "releases": 10,
        "rounding": Rounding(grid=GRID),
    }
    return kind(**(fields | change))


def orthonormal(d: int, p: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, p)))[0]


def relation_of(name: str) -> Relation:
    return make_relation(name, clip_norm=1.5)


@pytest.mark.parametrize("kind", BOTH)
def test_released_is_a_point_of_the_grid_whatever_the_data(kind: Make, entropy: Entropy) -> None:
    """The attack on low bits (P[last 4 mantissa bits 0 | |y| < 0.5] tells f = 0 from f = 1) finds nothing here.

    Mutants: noise added as float64; the product scaled before noise is added.
    """

    def share(values: np.ndarray) -> float:
        near = values[np.abs(values) < 0.5]
        return float((near.view(np.int64) & 15 == 0).mean())

    block = orthonormal(20, 2)
    private = mechanism(kind, budget=Budget(4.0, 1e-6), releases=2)
    found = []
    for step, query in enumerate((0.0, 1.0), start=1):
        product = np.full((20000, 2), round(query / GRID), dtype=np.int64)
        released = private.release(product, block=block, entropy=entropy, step=step)
        assert np.array_equal(np.rint(released / GRID) * GRID, released) and released.dtype == np.float64
        found.append(share(released.ravel()))
    assert found == [1.0, 1.0]
    rng = np.random.default_rng(0)
    naive = [share(query + rng.standard_normal(200_000)) for query in (0.0, 1.0)]
    assert naive[1] > 3 * naive[0]  # the attack works on what it was made for


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOTH)
def test_noise_has_the_distribution_that_is_announced(kind: Make, entropy: Entropy) -> None:
    """Mutants: scale off by 5 %, scale in place of stddev for Laplace, the grid applied twice."""
    block, private = orthonormal(50, 4), mechanism(kind, rounding=Rounding(grid=2.0**-24, l2=0.5, l1=0.5))
    product = np.random.default_rng(0).integers(-(1 << 40), 1 << 40, (50_000, 4))
    released = private.release(product, block=block, entropy=entropy, step=3)
    noise = (released - product * 2.0**-24).ravel() / private.noise_stddev(block, rows=50_000)
    law = stats.norm if kind is PrivateGaussian else stats.laplace(scale=1 / math.sqrt(2))
    assert stats.kstest(noise, law.cdf).pvalue > 1e-6
    assert stats.kstest(1.05 * noise, law.cdf).pvalue < 1e-6
    assert stats.kstest(0.95 * noise, law.cdf).pvalue < 1e-6


@pytest.mark.parametrize("kind", BOTH)
def test_the_same_release_again_is_the_same_bits_and_no_other_is(kind: Make, entropy: Entropy) -> None:
    """What a replay after a crash gives, and what it never gives. Mutants: any part left out of the purpose."""
    block, product = orthonormal(300, 5), np.zeros((300, 5), dtype=np.int64)
    private = mechanism(kind, budget=Budget(1.0, 1e-6))

    def released(
        private: Any = private, block: np.ndarray = block, key: Entropy = entropy, step: int = 1
    ) -> np.ndarray:
        return private.release(product[: len(product)], block=block, entropy=key, step=step)

    first = released()
    again = released(replace(private), np.asfortranarray(block), Entropy.open(entropy.path))
    assert first.tobytes() == again.tobytes()
    other_data = private.release(product + 7, block=block, entropy=entropy, step=1)
    assert np.allclose(other_data - first, 7 * GRID, atol=0, rtol=1e-6)  # why a key serves one data set only: bound_to

    nudged = block.copy()
    nudged[17, 3] = np.nextafter(nudged[17, 3], 0)  # neither the sensitivity nor the scale need to change
    others = [
        released(step=2),
        released(block=nudged),
        released(block=-block),
        released(key=Entropy.open(entropy.path, bound_to="other data")),
        released(replace(private, budget=Budget(1.5, 1e-6))),
        released(replace(private, budget=Budget(1.0, 1e-6), releases=11)),
        released(replace(private, rounding=Rounding(grid=GRID, relative=1e-9))),
        released(replace(private, rounding=Rounding(grid=GRID / 2))),
        released(replace(private, calibration="paper")),
        released(replace(private, relation=make_relation("entry", clip_norm=2.0))),
        released(mechanism(PrivateLaplace if kind is PrivateGaussian else PrivateGaussian)),
        private.release(np.zeros((5, 300), dtype=np.int64), block=block, entropy=entropy, step=1).reshape(300, 5),
    ]
    for i, other in enumerate(others):
        for earlier in [first, *others[:i]]:
            assert not (other == earlier).any(), i
            assert abs(stats.spearmanr(other.ravel(), earlier.ravel()).statistic) < 0.13, i  # 5 / sqrt(1500)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("calibration", ["exact", "paper"])
@pytest.mark.parametrize("name", REGISTRY)
def test_the_charge_is_within_the_budget_and_exact_spends_all_of_it(kind: Make, calibration: str, name: str) -> None:
    """Mutants: sqrt(T - 1) in place of sqrt(T), a multiplier rounded down, the paper's sigma charged as if exact."""
    for epsilon, delta in [(0.1, 1e-9), (1.0, 1e-6), (4.0, 1e-5)]:
        for releases in (1, 7, 2000):
            budget = Budget(epsilon, delta)
            private = mechanism(
                kind, relation=relation_of(name), budget=budget, releases=releases, calibration=calibration
            )
            assert private.charge().within(budget)
            if calibration == "exact":
                assert not private.charge().within(Budget(epsilon * (1 - 1e-8), delta))


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("calibration", ["exact", "paper"])
@pytest.mark.parametrize("name", REGISTRY)
def test_noise_is_never_below_what_was_charged_for(kind: Make, calibration: str, name: str) -> None:
    """In rational arithmetic. Mutants: floor in place of ceil; ``relative``, ``l2`` or ``l1`` left out; the paper's
    stddev taken as it is where X is only nearly orthonormal."""
    rounding = Rounding(grid=2.0**-20, relative=0.01, l2=0.3, l1=0.4)
    private = mechanism(kind, relation=relation_of(name), rounding=rounding, calibration=calibration)
    added = {"l2": rounding.l2, "l1": rounding.l1}[private.norm]
    for block in (orthonormal(40, 3), np.eye(40, 3), 1.001 * orthonormal(3, 3), np.full((2, 1), 0.5**0.5)):
        exact = private.relation.sensitivity(block, private.norm)
        least = Fraction(exact) * (1 + Fraction(rounding.relative)) + Fraction(added)
        assert least <= Fraction(private.sensitivity(block)) < least * (1 + Fraction(1, 10**12))
        scale = Fraction(private._grid_scale(block, None)) * Fraction(rounding.grid)
        spent = Fraction(private.sensitivity(block)) / scale
        charge = private.charge()
        if kind is PrivateGaussian:
            assert 10 * spent**2 <= Fraction(charge.mu_squared)
        else:
            assert 10 * spent <= Fraction(charge.epsilon)
        if calibration == "exact":
            assert private.noise_stddev(block) <= private.stddev * private.sensitivity(block) * 1.001


@dataclass(frozen=True, kw_only=True)
class Wider(Entry):
    """The same relation by name, as another version of this package might measure it."""

    wider: ClassVar[float] = 1.0

    def sensitivity(
        self, block: np.ndarray, norm: Norm = "l2", *, rows: int | None = None, image_norm: float | None = None
    ) -> float:
        return self.wider * super().sensitivity(block, norm, rows=rows, image_norm=image_norm)


@pytest.mark.parametrize("kind", BOTH)
def test_another_scale_is_other_noise_and_the_last_bits_of_a_norm_do_not_change_it(
    kind: Make, entropy: Entropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise of two scales from one stream would tell it. Mutants: the scale left out of the purpose; ceil alone."""
    private, block = (
        mechanism(kind, relation=Wider(clip_norm=1.0), rounding=Rounding(grid=2.0**-44)),
        orthonormal(300, 5),
    )

    def released(wider: float) -> np.ndarray:
        monkeypatch.setattr(Wider, "wider", wider)
        return private.release(np.zeros((300, 5), dtype=np.int64), block=block, entropy=entropy, step=1)

    first = released(1.0)
    assert np.array_equal(first, released(1 + 1e-12)) and np.array_equal(first, released(1 - 1e-12))
    other = released(1.001)
    assert not (first == other).any() and abs(stats.spearmanr(first.ravel(), other.ravel()).statistic) < 0.13


def test_less_noise_than_the_paper_for_the_same_guarantee() -> None:
    """epsilon = 1, delta = 1e-6, d = 1000, p = 10: the ratio that was asked for."""
    block = orthonormal(1000, 10)
    for name, most in (("entry", 0.35), ("symmetric_entry", 0.5)):
        exact, paper = (mechanism(relation=relation_of(name), calibration=c) for c in ("exact", "paper"))
        assert exact.noise_stddev(block) <= most * paper.noise_stddev(block)
        assert paper.noise_stddev(block) == pytest.approx(
            math.sqrt(400 * math.log(1e6)) * np.abs(block).max(), rel=1e-3
        )


def test_the_paper_is_refused_where_it_is_unsound() -> None:
    with pytest.raises(RefusedError, match=r"10\.35"):
        mechanism(relation=relation_of("symmetric_entry"), budget=Budget(10.0, 1e-6), calibration="paper")
    assert mechanism(budget=Budget(10.0, 1e-6), calibration="paper").charge().epsilon_at(1e-6) == pytest.approx(
        6.873, abs=1e-3
    )


def test_exact_gaussian_composition_is_what_is_charged() -> None:
    charge = mechanism().charge()
    assert charge.mu == pytest.approx(0.236704, abs=1e-6) and delta_for(charge.mu, 1.0) <= 1e-6
    assert mechanism(PrivateLaplace, budget=Budget(2.0)).charge().epsilon == pytest.approx(2.0)


@pytest.mark.parametrize("kind", BOTH)
def test_what_may_not_be_released_is_refused_before_noise_is_drawn(kind: Make, entropy: Entropy) -> None:
    """With a destroyed key any draw would be refused with another sentence. Mutants: a guard after the draw."""
    block, private = orthonormal(20, 2), mechanism(kind)
    product = np.zeros((20, 2), dtype=np.int64)
    entropy.destroy()
    huge = product.copy()
    huge[3, 1] = -(1 << 63)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"product": huge}, RefusedError, "64 bits"),
        ({"product": -(huge + 1)}, RefusedError, "64 bits"),
        ({"product": product.astype(float)}, BadInputError, "int64.*float64"),
        ({"product": product.astype(np.int32)}, BadInputError, "int64.*int32"),
        ({"product": product[:, 0]}, BadInputError, "int64"),
        ({"product": product[:0]}, BadInputError, "int64"),
        ({"product": [[1]]}, BadInputError, "int64.*list"),
        ({"block": block * np.nan}, BadInputError, "finite"),
        ({"step": 0}, RefusedError, "were charged"),
        ({"step": 11}, RefusedError, "were charged"),
        ({"step": True}, RefusedError, "were charged"),
        ({"entropy": 7}, BadInputError, "secret key"),
        ({}, RefusedError, "was destroyed"),
    ]
    for change, error, words in cases:
        arguments = {"product": product, "block": block, "entropy": entropy, "step": 1} | change
        with pytest.raises(error, match=words) as caught:
            private.release(arguments.pop("product"), **arguments)
        assert str(1 << 63) not in str(caught.value)  # how large the product is stays private
    for grid, words in ((2.0**-60, "coarser"), (0.5, "finer")):
        with pytest.raises(RefusedError, match=words):
            replace(private, rounding=Rounding(grid=grid)).release(product, block=block, entropy=entropy, step=1)


@pytest.mark.parametrize("kind", BOTH)
def test_configurations_that_make_no_sense_are_refused(kind: Make) -> None:
    for change, words in [
        ({"rounding": Rounding(grid=3e-9)}, "power of two"),
        ({"rounding": Rounding(grid=0.0)}, "power of two"),
        ({"rounding": Rounding(grid=math.inf)}, "power of two"),
        ({"rounding": Rounding(grid=GRID, l2=-1.0)}, "rounding.l2"),
        ({"rounding": Rounding(grid=GRID, relative=math.nan)}, "rounding.relative"),
        ({"calibration": "exakt"}, "did you mean 'exact'"),
        ({"releases": 0}, "releases"),
    ]:
        with pytest.raises(BadInputError, match=words):
            mechanism(kind, **change)
    with pytest.raises(BadInputError, match="delta = 0"):
        mechanism(PrivateGaussian, budget=Budget(1.0))


@pytest.mark.parametrize("kind", BOTH)
def test_an_event_is_public_json(kind: Make, entropy: Entropy) -> None:
    event = mechanism(kind, releases=np.int64(3), rounding=Rounding(grid=GRID, l2=np.float64(0.25))).event()
    assert json.loads(json.dumps(event)) == event and event["private"] is True and event["rounding"]["l2"] == 0.25
    assert make_relation(**event["relation"]) == make_relation("entry", clip_norm=1.0)


@pytest.mark.parametrize("kind", BOTH)
def test_a_product_of_clipped_records_is_released_as_the_operator_made_it(kind: Make, entropy: Entropy) -> None:
    """The whole way: records, integers, noise. Mutant: a grid of the operator that the mechanism does not use."""
    records = np.random.default_rng(0).standard_normal((500, 20)) * np.linspace(3, 0.1, 20)
    stored = zarr.create_array(
        {}, shape=records.shape, dtype="f8", chunks=(100, 20), config={"write_empty_chunks": True}
    )
    stored[...] = records
    operator: Any = ClippedGram(reader=open_source(stored).reader, clip_norm=2.0)  # type: ignore[arg-type]
    block = operator.prepare(orthonormal(20, 3))
    product = Threads(1).run_pass(operator, block, lambda record: None)[0]
    private = mechanism(
        kind,
        relation=make_relation("record_replace", clip_norm=2.0),
        rounding=operator.rounding(3),
        budget=Budget(1e4, 1e-6),  # so little noise that the product is seen through it
        releases=1,
    )
    released = private.release(product, block=block, entropy=entropy, step=1)
    clipped = records * np.minimum(1, 2 / np.linalg.norm(records, axis=1))[:, None]
    noise = (released - clipped.T @ (clipped @ block)) / private.noise_stddev(block)
    assert 0 < private.noise_stddev(block) < 1 and 0.7 < noise.std() < 1.4
