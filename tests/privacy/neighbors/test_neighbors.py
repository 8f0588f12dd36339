"""Sensitivities: no neighbour moves the product further, and one moves it exactly as far."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npmdask.accounting import Budget, require_sound
from npmdask.core.numerics.subspaces import random_orthonormal
from npmdask.errors import BadInputError
from npmdask.privacy.neighbors import (
    REGISTRY,
    Entry,
    RecordAddRemove,
    Relation,
    SpectralNorm,
    SymmetricEntry,
    make_relation,
)

Block = np.ndarray
Differences = Callable[[Block, np.random.Generator], list[Block]]
BOUND, CHANGE = 1.7, 0.8


def relation_of(name: str) -> Relation:
    return make_relation(name, clip_norm=BOUND, change=1.0 if name.startswith("record") else CHANGE)


def pair(d: int, i: int, j: int, c: float, mirrored: bool) -> Block:
    a = np.zeros((d, d))
    a[i, j] = c
    if mirrored:
        a[j, i] = c
    return a


def some_entries(block: Block, rng: np.random.Generator, mirrored: bool) -> list[Block]:
    d = len(block)
    order = np.argsort(-np.linalg.norm(block, axis=1))
    random = [pair(d, *rng.integers(0, d, 2), CHANGE * rng.uniform(-1, 1), mirrored) for _ in range(5)]
    return (
        [*random, pair(d, order[-1], order[0], CHANGE, False)]
        if not mirrored
        else [
            *random,
            pair(d, order[0], order[min(1, d - 1)], -CHANGE, True),
            pair(d, order[0], order[0], CHANGE, True),
        ]
    )


def spectral(block: Block, rng: np.random.Generator) -> list[Block]:
    d = len(block)
    noise = rng.standard_normal((d, d))
    return [CHANGE * noise / np.linalg.norm(noise, 2), CHANGE * np.eye(d)]


def frobenius(block: Block, rng: np.random.Generator) -> list[Block]:
    noise = rng.standard_normal((len(block),) * 2)
    top = np.linalg.svd(block)[0][:, 0]
    return [CHANGE * noise / np.linalg.norm(noise), -CHANGE * np.outer(top, top)]


def records(block: Block, rng: np.random.Generator) -> list[Block]:
    a = rng.standard_normal(len(block))
    a *= BOUND / np.linalg.norm(a)
    top = BOUND * np.linalg.svd(block)[0][:, 0]
    return [np.outer(a, a), rng.uniform() * -np.outer(a, a), np.outer(top, top)]


def replaced(block: Block, rng: np.random.Generator) -> list[Block]:
    d = len(block)
    a, b = rng.standard_normal((2, d))
    a, b = BOUND * a / np.linalg.norm(a), BOUND * b / np.linalg.norm(b)
    vectors = BOUND * np.linalg.svd(block)[0]
    first, second = vectors[:, 0], vectors[:, min(1, d - 1)]
    return [np.outer(a, a) - np.outer(b, b), np.outer(first, first) - (d > 1) * np.outer(second, second)]


NEIGHBOURS: dict[str, Differences] = {
    "entry": lambda block, rng: some_entries(block, rng, False),
    "symmetric_entry": lambda block, rng: some_entries(block, rng, True),
    "spectral_norm": spectral,
    "frobenius_norm": frobenius,
    "record_add_remove": records,
    "record_zero_out": records,
    "record_replace": replaced,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTRY)
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 10**6), st.floats(0, 0.3), st.integers(-600, 500))
def test_no_neighbour_exceeds_the_sensitivity_and_one_attains_it(
    name: str, d: int, p: int, seed: int, rough: float, exponent: int
) -> None:
    """Orthonormal X and rough ones of any size. Mutants: no sqrt(2) for pairs, sqrt(p) max |X_ij|, no clip_norm^2."""
    rng, p = np.random.default_rng(seed), min(p, d)
    unscaled = random_orthonormal(d, p, rng) + rough * rng.standard_normal((d, p))
    block = np.ldexp(unscaled, exponent)
    relation = relation_of(name)
    l2, l1 = relation.sensitivity(block), relation.sensitivity(block, "l1")
    moved = [np.ldexp(c @ unscaled, exponent) for c in NEIGHBOURS[name](unscaled, rng)]
    sizes = np.array([math.hypot(*m.ravel()) for m in moved])
    assert (sizes <= l2 * (1 + 1e-13)).all()  # the product above has its own rounding
    assert sizes.max() >= l2 * (1 - 1e-9)
    assert max(np.abs(m).sum() for m in moved) <= l1 * (1 + 1e-13)


def test_numbers_on_an_orthonormal_block() -> None:
    block = random_orthonormal(40, 4, np.random.default_rng(0))
    rows = np.sort(np.linalg.norm(block, axis=1))[::-1]
    expected = {
        "entry": CHANGE * rows[0],
        "symmetric_entry": CHANGE * math.hypot(rows[0], rows[1]),
        "spectral_norm": CHANGE * 2,
        "frobenius_norm": CHANGE,
        "record_add_remove": BOUND**2,
        "record_zero_out": BOUND**2,
        "record_replace": math.sqrt(2) * BOUND**2,
    }
    for name, value in expected.items():
        found = relation_of(name).sensitivity(block)
        assert value * (1 - 1e-15) <= found <= value * (1 + 1e-11), name


@pytest.mark.parametrize("name", ["entry", "symmetric_entry", "spectral_norm"])
def test_rounded_outward(name: str) -> None:
    """In exact fractions. Mutant: no margin at all (there are two, of the norm and of the product with the unit)."""
    relation, rows = relation_of(name), {"entry": 1, "symmetric_entry": 2, "spectral_norm": 6}[name]
    for seed in range(50):
        block = np.random.default_rng(seed).standard_normal((6, 3))
        squares = sorted(sum(Fraction(float(x)) ** 2 for x in row) for row in block)
        assert Fraction(relation.sensitivity(block)) ** 2 >= Fraction(CHANGE) ** 2 * sum(squares[-rows:])
    assert Fraction(make_relation("record_replace", clip_norm=0.1).unit) >= Fraction(0.1) ** 2


def test_pure_sensitivities() -> None:
    """l1: attained for entries; the bound sqrt(rows p) times l2 for the others, here with rows of a wide matrix."""
    block = random_orthonormal(30, 3, np.random.default_rng(1))
    sums = np.sort(np.abs(block).sum(axis=1))[::-1]
    assert relation_of("entry").sensitivity(block, "l1") == pytest.approx(CHANGE * sums[0], rel=1e-12)
    assert relation_of("symmetric_entry").sensitivity(block, "l1") == pytest.approx(CHANGE * sums[:2].sum(), rel=1e-12)
    assert relation_of("spectral_norm").sensitivity(block, "l1") == pytest.approx(CHANGE * 3 * math.sqrt(30), rel=1e-9)
    wide = relation_of("frobenius_norm").sensitivity(block, "l1", rows=7)
    assert wide == pytest.approx(CHANGE * math.sqrt(7 * 3), rel=1e-9)


def test_coherence_caps_from_below() -> None:
    """ERR-2: noise of a size that does not depend on X while X stays below the cap. Mutant: cap ignored."""
    d, p, mu = 5000, 4, 1.5
    cap = 4 * math.sqrt(mu * math.log(d) / d)
    flat, rng = np.linalg.qr(np.sign(np.random.default_rng(0).standard_normal((d, p))))[0], np.random.default_rng(1)
    other = random_orthonormal(d, p, rng)
    spike = np.eye(d, p)
    for name, factor in (("entry", 1.0), ("symmetric_entry", math.sqrt(2))):
        capped, free = make_relation(name, clip_norm=1.0, coherence=mu), make_relation(name, clip_norm=1.0)
        assert capped.sensitivity(flat) == capped.sensitivity(other) == pytest.approx(factor * math.sqrt(p) * cap)
        assert capped.sensitivity(flat) > free.sensitivity(flat)
        assert capped.sensitivity(spike) == free.sensitivity(spike) == pytest.approx(factor)  # private beyond the cap
        linear = 1.0 if name == "entry" else 2.0
        assert capped.sensitivity(flat, "l1") == pytest.approx(linear * p * cap)
        assert make_relation(name, clip_norm=1.0, coherence=float(d)).sensitivity(flat) == pytest.approx(factor)


def test_two_clipped_entries_differ_by_at_most_twice_the_bound() -> None:
    block = random_orthonormal(9, 2, np.random.default_rng(0))
    clipped, plain = Entry(clip_norm=0.1, change=5.0), Entry(clip_norm=9.0, change=0.2)
    assert clipped.sensitivity(block) == plain.sensitivity(block)
    assert "changed by at most 0.2" in clipped.describe()


@pytest.mark.parametrize("name", REGISTRY)
def test_a_relation_says_what_it_is_and_comes_back(name: str) -> None:
    coherence = 2.0 if "entry" in name else None
    relation = make_relation(name, clip_norm=2.5, coherence=coherence)
    assert make_relation(**relation.spec()) == relation
    assert relation.spec()["name"] == name == relation.name
    assert len(relation.describe()) > 30
    require_sound(name, 3, 5, Budget(1.0, 1e-6))  # the papers' formulas know every relation


def test_what_a_relation_fits() -> None:
    assert not RecordAddRemove.public_rows and REGISTRY["record_replace"].public_rows
    assert Entry.kinds == ("matrix",)  # one entry of a symmetric matrix cannot change alone
    assert SymmetricEntry.kinds == ("symmetric",)
    assert RecordAddRemove.kinds == ("samples", "sparse", "matrices")
    assert "promise" in SpectralNorm(clip_norm=1.0).describe()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": None, "clip_norm": 1.0}, "say what is protected"),
        ({"name": "record", "clip_norm": 1.0}, "did you mean 'record_"),
        ({"name": "entry"}, "needs a clip_norm"),
        ({"name": "entry", "clip_norm": 0.0}, "without looking at the data"),
        ({"name": "entry", "clip_norm": "auto"}, "without looking at the data"),
        ({"name": "record_replace", "clip_norm": math.inf}, "without looking at the data"),
        ({"name": "entry", "clip_norm": 1.0, "change": -1.0}, "change of entry"),
        ({"name": "record_replace", "clip_norm": 1.0, "change": 2.0}, "change = 2.0 applies only to matrices"),
        ({"name": "frobenius_norm", "clip_norm": 1.0, "coherence": 2.0}, "leave it out"),
        ({"name": "entry", "clip_norm": 1.0, "coherence": 0.5}, "between 1 and the dimension"),
    ],
)
def test_relations_that_cannot_be(arguments: dict, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        make_relation(**arguments)


@pytest.mark.parametrize("block", [np.full((3, 1), np.nan), np.zeros((0, 2)), np.ones(4)])
def test_blocks_without_a_sensitivity(block: Block) -> None:
    with pytest.raises(BadInputError, match="finite block"):
        Entry(clip_norm=1.0).sensitivity(block)
    with pytest.raises(BadInputError, match="unknown norm"):
        Entry(clip_norm=1.0).sensitivity(np.eye(3), "linf")  # type: ignore[arg-type]
