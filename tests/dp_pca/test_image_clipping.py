"""Clipped images: exact as the rest, no neighbours further apart than their sensitivity says, and some as far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npmdask.core.operators._protocol as protocol
from npmdask.core.execution.executor import Threads
from npmdask.core.numerics.random import Rounding
from npmdask.errors import BadInputError, RefusedError
from npmdask.privacy import clipped_rows as clipped
from npmdask.privacy.clipped_rows import Records
from npmdask.privacy.exact_sums import IMAGE_GRID, clip_images, grid_unit, round_to
from npmdask.privacy.neighbors import RecordReplace, make_relation
from tests.privacy.test_clipped_rows import (
    KINDS,
    OPTIONS,
    adversarial,
    clipped_rows,
    dense,
    nearest,
    orthonormal,
    product,
    sparse,
    wild,
)

RECORDS = ["record_add_remove", "record_zero_out", "record_replace"]


def shortened(x: np.ndarray, longest: float) -> np.ndarray:
    """The nearest point of the ball."""
    size = float(np.linalg.norm(x))
    return x * (longest / size) if size > longest else x


# The sensitivity, for real numbers.


def term(a: np.ndarray, block: np.ndarray, longest: float) -> np.ndarray:
    return np.outer(a, shortened(block.T @ a, longest))


def farthest(block: np.ndarray, clip: float, longest: float, replaced: bool) -> float:
    """How far the pair of the proof moves the product (X orthonormal times a number, d > p >= 2)."""
    left, values, _ = np.linalg.svd(block, full_matrices=True)
    within, outside, share = left[:, :2], left[:, -1], min(longest / (clip * values[0]), 1.0)
    if not replaced:
        return float(np.linalg.norm(term(clip * within[:, 0], block, longest)))
    cosine = max(-1.0, -(1 - share**2) / (2 * share**2))
    other = cosine * within[:, 0] + math.sqrt(1 - cosine**2) * within[:, 1]
    pair = [clip * (share * u + math.sqrt(1 - share**2) * outside) for u in (within[:, 0], other)]
    return float(np.linalg.norm(term(pair[0], block, longest) - term(pair[1], block, longest)))


def require_right_sensitivity(relation: Any, d: int, p: int, share: float, seed: int, rough: float) -> None:
    rng, clip = np.random.default_rng(seed), relation.clip_norm
    block = 1.1 * orthonormal(d, p, seed)
    longest = share * clip
    replaced = relation.name == "record_replace"
    attained = farthest(block, clip, longest, replaced)
    bound = relation.sensitivity(block, image_norm=longest)
    assert attained <= bound * (1 + 1e-12) and attained >= bound * (1 - 1e-9)
    block = block + rough * rng.standard_normal((d, p))
    l2, l1 = (relation.sensitivity(block, norm, image_norm=longest) for norm in ("l2", "l1"))
    assert l2 <= relation.sensitivity(block) and l1 <= relation.sensitivity(block, "l1")
    for _ in range(10):
        a, b = rng.standard_normal((2, d))
        inside = block @ rng.standard_normal((p, 2)) * rng.uniform(0, 3)
        mirrored = a - 2 * block @ np.linalg.lstsq(block, a, rcond=None)[0]  # the opposite image
        for one, other in ((a, b), (a, mirrored), (a + inside[:, 0], inside[:, 1] - a), (inside[:, 0], inside[:, 1])):
            one, other = (clip * rng.uniform() ** 0.1 * v / np.linalg.norm(v) for v in (one, other))
            moved = term(one, block, longest) - (term(other, block, longest) if replaced else 0.0)
            assert np.linalg.norm(moved) <= l2 * (1 + 1e-12)
            assert np.abs(moved).sum() <= l1 * (1 + 1e-12)


SHARES = st.one_of(st.floats(0.01, 1.5), st.sampled_from([0.5, 3**-0.5, 0.6, 1.0, 1.1]))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
@settings(**OPTIONS, max_examples=40)
@given(
    d=st.integers(4, 12),
    p=st.integers(2, 3),
    share=SHARES,
    seed=st.integers(0, 10**6),
    rough=st.sampled_from([0.0, 1e-8, 0.3]),
)
def test_no_neighbours_are_further_apart_and_a_pair_is_as_far(
    name: str, d: int, p: int, share: float, seed: int, rough: float
) -> None:
    """X orthonormal, nearly so, or not at all. Mutants: below; and ``2 C B`` for replaced records (not attained)."""
    require_right_sensitivity(make_relation(name, clip_norm=1.7), d, p, share, seed, rough)


class CountedOnce(RecordReplace):
    """Two records differ and one is counted."""

    def _clipped(self, share: float, largest: float) -> float:
        return share


class RightAngle(RecordReplace):
    """The two terms taken to be at a right angle, as they are without clipping."""

    def _clipped(self, share: float, largest: float) -> float:
        return math.sqrt(2) * share


@pytest.mark.parametrize("mutant", [CountedOnce, RightAngle])
def test_a_replaced_record_counts_twice(mutant: type[RecordReplace]) -> None:
    with pytest.raises(AssertionError):
        require_right_sensitivity(mutant(clip_norm=1.7), 6, 2, 0.3, 0, 0.0)


def test_numbers() -> None:
    block = orthonormal(30, 4)
    one, two = (make_relation(name, clip_norm=3.0) for name in ("record_zero_out", "record_replace"))
    for longest, single, both in ((0.3, 0.9, 0.6 * math.sqrt(8.91)), (2.4, 7.2, (9 + 2.4**2) / math.sqrt(2))):
        assert one.sensitivity(block, image_norm=longest) == pytest.approx(single, rel=1e-9)
        assert two.sensitivity(block, image_norm=longest) == pytest.approx(both, rel=1e-9)
        assert two.sensitivity(block, "l1", image_norm=longest) == pytest.approx(both * math.sqrt(120), rel=1e-9)
    for longest in (3.1, 1e300):
        assert two.sensitivity(block, image_norm=longest) == two.sensitivity(block)
    assert 0 < two.sensitivity(block, image_norm=1e-300) < 1e-100
    for exponent in (-700, 400):  # squares would vanish or overflow
        scaled = two.sensitivity(np.ldexp(block, exponent), image_norm=math.ldexp(0.3, exponent))
        assert scaled == pytest.approx(math.ldexp(0.6 * math.sqrt(8.91), exponent), rel=1e-9)


@pytest.mark.parametrize("longest", [0.0, -1.0, math.nan, math.inf, True, "1"])
def test_norms_that_cannot_be(longest: Any) -> None:
    with pytest.raises(BadInputError, match="image_norm"):
        make_relation("record_replace", clip_norm=1.0).sensitivity(np.eye(3), image_norm=longest)
    if isinstance(longest, float):
        with pytest.raises(BadInputError, match="image_norm"):
            replace(dense(np.ones((4, 3)), 1.0), image_norm=longest)
    with pytest.raises(BadInputError, match="has no records"):
        make_relation("entry", clip_norm=1.0).sensitivity(np.eye(3), image_norm=1.0)


def test_more_columns_than_squares_are_exact_for_are_refused() -> None:
    operator = replace(dense(np.ones((4, 3)), 1.0), image_norm=0.5)
    operator.rounding(5000)
    with pytest.raises(RefusedError, match="clip_images = false"):
        operator.rounding(5001)


# Arithmetic against Python's integers.


def by_integers(x: np.ndarray, block: np.ndarray, clip_norm: float, image_norm: float) -> np.ndarray:
    """The sum over records that need no clipping, of which the images do, to the last bit."""
    unit = Fraction(grid_unit(clip_norm))
    record, image, release = unit / 2**24, unit / 2**20, unit**2 / 2**29
    columns = [[Fraction(nearest(Fraction(v) * 2**28), 2**28) for v in block[:, j]] for j in range(block.shape[1])]
    total = np.zeros(block.shape, object)
    for row in x:
        a = [nearest(Fraction(float(v)) / record) * record for v in row]
        z = [nearest(sum(u * v for u, v in zip(a, c, strict=True)) / image) * image for c in columns]
        square = float(sum(v * v for v in z))
        if square > image_norm * image_norm:
            factor = image_norm / math.sqrt(square)
            z = [nearest(Fraction(float(v) * factor) / image) * image for v in z]
        total += np.array([[u * w for w in z] for u in a], object)
    return np.array([[nearest(v / release) for v in row] for row in total], np.int64)


def require_integers(folder: Path | None, m: int, d: int, clip_norm: float, share: float, seed: int) -> None:
    x = np.random.default_rng(seed).uniform(-1, 1, (m, d)) * (clip_norm / math.sqrt(d) * 0.99)
    block, longest = orthonormal(d, min(d, 3), seed), share * clip_norm
    expected = by_integers(x, block, clip_norm, longest)
    operators: list[Any] = [dense(x, clip_norm, (5, 4))]
    if folder:
        operators.append(sparse(folder / "x.zarr", x, clip_norm, chunk=7))
    for operator in operators:
        np.testing.assert_array_equal(product(replace(operator, image_norm=longest), block), expected)


@pytest.mark.slow
@settings(**OPTIONS, max_examples=25)
@given(
    m=st.integers(1, 12),
    d=st.integers(1, 9),
    clip_norm=st.sampled_from([1.0, 0.3, 5.0, 2.0**-60, 1e20]),
    share=st.sampled_from([1e-7, 0.01, 0.2, 0.5, 0.9]),
    seed=st.integers(0, 10**6),
)
def test_the_sum_is_that_of_integers(
    tmp_path_factory: Any, m: int, d: int, clip_norm: float, share: float, seed: int
) -> None:
    require_integers(tmp_path_factory.mktemp("csr"), m, d, clip_norm, share, seed)


# Order cannot be seen.


def require_any_order_gives_the_same(x: np.ndarray, clip_norm: float, image_norm: float) -> None:
    def integers(rows: np.ndarray, chunks: tuple[int, int], executor: Any = None) -> np.ndarray:
        return product(replace(dense(rows, clip_norm, chunks), image_norm=image_norm), block, executor)

    block = orthonormal(x.shape[1], 4)
    expected = integers(x, (1000, 1000))
    for chunks in ((1, 100), (13, 7), (150, 17)):
        np.testing.assert_array_equal(integers(x, chunks, Threads(2)), expected)
    mixed = x[np.random.default_rng(0).permutation(len(x))]
    np.testing.assert_array_equal(integers(mixed, (37, 11)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("clip_norm", [1.0, 1.7, 0.01])
def test_rows_and_chunks_in_any_order_give_the_same_integers(clip_norm: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 100)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)
    require_any_order_gives_the_same(wild(200, 33), clip_norm, 0.3 * clip_norm)


@pytest.mark.slow
def test_sparse_and_dense_records_have_the_same_images(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 100)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)
    x = np.random.default_rng(3).standard_normal((200, 33)) * (np.random.default_rng(1).random((200, 33)) < 0.4)
    block, mixed = orthonormal(33, 3), x[::-1]
    expected = product(replace(dense(x, 2.0), image_norm=0.4), block)
    assert (expected != product(dense(x, 2.0), block)).any(), "some are clipped"
    for name, rows, chunk in (("a", x, 10_000), ("b", x, 3), ("c", mixed, 17)):
        again = replace(sparse(tmp_path / name, rows, 2.0, chunk), image_norm=0.4)
        np.testing.assert_array_equal(product(again, block, Threads(2)), expected)


# Neighbours of the real code are no further apart than the sensitivity and the rounding say.


def require_close(
    x: np.ndarray, place: int, other: np.ndarray | None, block: np.ndarray, clip_norm: float, image_norm: float,
    folder: Path | None = None,
) -> float:  # fmt: skip
    """Take out a record or put another in its place: what this changes, as a share of what it may change."""
    p, y = block.shape[1], np.delete(x, place, axis=0)
    if other is not None:
        y = np.concatenate([x[:place], [other], x[place + 1 :]])
    here = sparse(folder / "x", x, clip_norm, 70) if folder else dense(x, clip_norm, (50, x.shape[1]))
    there = sparse(folder / "y", y, clip_norm, 1000) if folder else dense(y, clip_norm, (17, 50))
    operators = [replace(operator, image_norm=image_norm) for operator in (here, there)]
    left, right = (product(operator, block) for operator in operators)
    rounding, held = operators[0].rounding(p), operators[0].prepare(block)
    difference = (left - right) * rounding.grid
    a = clipped_rows(x[place : place + 1], here.clipping)[0]
    ideal = term(a, held, image_norm)
    if other is not None:
        ideal = ideal - term(clipped_rows(other[None, :].astype(x.dtype), here.clipping)[0], held, image_norm)
    name = "record_add_remove" if other is None else "record_replace"
    bounds = require_within(difference, ideal, make_relation(name, clip_norm=clip_norm), rounding, held, image_norm)
    return float(np.linalg.norm(difference)) / bounds[0]


def require_within(
    difference: np.ndarray, ideal: np.ndarray, relation: Any, rounding: Rounding, block: np.ndarray, image_norm: float
) -> tuple[float, float]:
    slack, size = 1 + 1e-12, np.linalg.norm(ideal) * rounding.relative
    assert np.linalg.norm(difference - ideal) <= (rounding.l2 + size) * slack
    assert np.abs(difference - ideal).sum() <= (rounding.l1 + size * math.sqrt(block.size)) * slack
    l2, l1 = (
        relation.sensitivity(block, norm, image_norm=image_norm) * (1 + rounding.relative) + added
        for norm, added in (("l2", rounding.l2), ("l1", rounding.l1))
    )
    assert np.linalg.norm(difference) <= l2 and np.abs(difference).sum() <= l1
    return l2, l1


@pytest.mark.slow
@settings(**OPTIONS, max_examples=60)
@given(
    d=st.integers(4, 40),
    clip_norm=st.sampled_from([1.0, 0.7, 1.01, 300.0]),
    share=st.sampled_from([1e-7, 0.01, 0.3, 3**-0.5, 0.9, 1.2]),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from([*KINDS, "removed", "mirrored"])),
    place=st.integers(0, 59),
    seed=st.integers(0, 10**6),
)
def test_neighbours_are_no_further_apart_than_is_said(
    d: int, clip_norm: float, share: float, kinds: tuple[str, str], place: int, seed: int
) -> None:
    x, block = wild(60, d, seed) * min(clip_norm, 1.0), orthonormal(d, 3)
    x[place] = adversarial(d, clip_norm, kinds[0], seed)
    other = None if kinds[1] == "removed" else adversarial(d, clip_norm, kinds[1], seed + 1)
    if kinds[1] == "mirrored":
        with np.errstate(invalid="ignore", over="ignore"):
            other = x[place] - 2 * block @ (block.T @ x[place])
    require_close(x, place, other, block, clip_norm, share * clip_norm)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("reads", ["dense", "sparse"])
def test_the_sensitivity_is_attained(share: float, reads: str, tmp_path: Path) -> None:
    d, p = 50, 4
    folder = tmp_path if reads == "sparse" else None
    assert attained_share(share, d, p, None, folder) > 1 - 1e-4
    assert attained_share(share, d, p, "replaced", folder) > 1 - 1e-4


def attained_share(share: float, d: int, p: int, other: str | None, folder: Path | None = None) -> float:
    """Of what is allowed, by the pair of the proof, image a little too long."""
    block, x = orthonormal(d, p), wild(60, d)
    full = np.linalg.svd(block)[0]
    cosine = max(-1.0, -(1 - share**2) / (2 * share**2))
    directions = full[:, 0], cosine * full[:, 0] + math.sqrt(1 - cosine**2) * full[:, 1]
    inside = share * (1 + 1e-6)
    one, two = (1e9 * (inside * u + math.sqrt(1 - inside**2) * full[:, -1]) for u in directions)
    x[30] = one
    path = folder / (other or "removed") if folder else None
    if path:
        path.mkdir()
    return require_close(x, 30, two if other else None, block, 1.0, share, path)


def farthest_rounding() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of records next to each other, with images a little above 0.3 along (1, 1), the two whose images are rounded
    farthest to one side and to the other."""
    rng, block, longest = np.random.default_rng(5), orthonormal(3, 2), 0.3
    held, full = dense(np.ones((1, 3)), 1.0).prepare(block), np.linalg.svd(block)[0]
    near = block.sum(axis=1) * (0.3003 / math.sqrt(2)) + full[:, -1] * 0.95 + 1e-5 * rng.standard_normal((40_000, 3))
    rows = round_to(near, 2.0**-24)
    images = rows @ held
    found = clip_images(round_to(images.copy(), IMAGE_GRID), longest, IMAGE_GRID)
    errors = (found - images * (longest / np.linalg.norm(images, axis=1))[:, None]) @ np.array([1.0, -1.0])
    return rows[np.argmax(errors)], rows[np.argmin(errors)], block


# Each of these mutants has the mistake that one of the tests above is there for.


def not_clipped(images: np.ndarray, longest: float, grid: float) -> np.ndarray:
    return images


def by_position(images: np.ndarray, longest: float, grid: float) -> np.ndarray:
    norms = np.linalg.norm(images, axis=1) * (1 + 1e-4 * np.arange(len(images)))
    images *= np.minimum(1, longest / np.where(norms > 0, norms, 1))[:, None]
    return round_to(images, grid)


def by_the_whole_block(images: np.ndarray, longest: float, grid: float) -> np.ndarray:
    """One factor for all records of a strip, as if a block were clipped."""
    largest = float(np.linalg.norm(images, axis=1).max(initial=longest))
    images *= min(1.0, longest / largest)
    return round_to(images, grid)


def off_the_grid(images: np.ndarray, longest: float, grid: float) -> np.ndarray:
    norms = np.linalg.norm(images, axis=1)
    images *= np.minimum(1, longest / np.where(norms > 0, norms, 1))[:, None]
    return images


def many() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((300, 33))


def close() -> None:
    """A record inside the range of X, whose image is as long as itself."""
    x, block = wild(60, 33), orthonormal(33, 3)
    x[30] = 3 * block[:, 0]
    require_close(x, 30, None, block, 1.0, 0.3)


def any_order() -> None:
    require_any_order_gives_the_same(many(), 1.0, 0.3)


def integers() -> None:
    require_integers(None, 12, 9, 5.0, 0.2, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "check"),
    [(not_clipped, close), (by_position, any_order), (by_the_whole_block, any_order), (off_the_grid, integers)],
)
def test_mutants_are_caught(mutant: Any, check: Callable[[], object], monkeypatch: Any) -> None:
    check()
    monkeypatch.setattr(clipped, "clip_images", mutant)
    with pytest.raises(AssertionError):
        check()


def test_a_mutant_that_clips_before_the_first_rounding_is_caught(monkeypatch: Any) -> None:
    """Its squares are not exact, so that the factor is a function of more than the record."""

    def once(self: Records, images: np.ndarray) -> np.ndarray:
        assert self.image_norm is not None
        clip_images(images, self.image_norm, IMAGE_GRID * self.clipping.unit)
        return round_to(images, IMAGE_GRID * self.clipping.unit)

    integers()
    monkeypatch.setattr(Records, "_images", once)
    with pytest.raises(AssertionError):
        integers()


def test_a_mutant_that_counts_one_rounding_is_caught(monkeypatch: Any) -> None:
    """Images of 40,000 records next to each other: one rounded up twice is put in the place of one rounded down."""
    up, down, block = farthest_rounding()
    x = np.stack([up, np.zeros(3)])
    require_close(x, 0, down, block, 1.0, 0.3)
    real = Records.rounding

    def once(self: Records, p: int) -> Rounding:
        return real(replace(self, image_norm=None), p)

    monkeypatch.setattr(Records, "rounding", once)
    with pytest.raises(AssertionError):
        require_close(x, 0, down, block, 1.0, 0.3)
