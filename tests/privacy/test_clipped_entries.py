"""Private products of matrices with bounded entries: the error is what is said, from public numbers only."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import npmdask.core.operators._protocol as protocol
from npmdask.core.algorithms import Query
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import runs_of
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.privacy import clipped_entries
from npmdask.privacy.clipped_entries import BoundedProduct, BoundedSymmetric, BoundedTransposed, BoundedTriangle
from npmdask.privacy.clipped_rows import ClippedGram
from npmdask.symmetric.reader import TriangleReader
from npmdask.symmetric.writer import PackedWriter
from tests.privacy.test_clipped_rows import OPTIONS, ignore, orthonormal, product

FORMS = ["product", "transposed", "symmetric", "triangle"]


def operator_of(a: np.ndarray, form: str, clip_norm: float, side: tuple[int, int], change: float = 1.0) -> Any:
    shape = tuple(min(c, n) for c, n in zip(side, a.shape, strict=True))
    if form == "triangle":
        shape = (shape[0], shape[0])
    z = zarr.create_array({}, shape=a.shape, dtype=a.dtype, chunks=shape, config={"write_empty_chunks": True})
    z[...] = a
    reader: Any = open_source(z).reader
    numbers: Any = {"clip_norm": clip_norm, "change": change}
    if form == "triangle":
        return BoundedTriangle(reader=TriangleReader(array=reader.array), **numbers)
    classes = {"product": BoundedProduct, "transposed": BoundedTransposed, "symmetric": BoundedSymmetric}
    return classes[form](reader=reader, **numbers)


def matrix(form: str, m: int, d: int, seed: int = 0) -> np.ndarray:
    a = np.random.default_rng(seed).standard_normal((m, d)) * 2
    return a + a.T if form in ("symmetric", "triangle") else a


def bounded_entries(a: np.ndarray, clip_norm: float) -> np.ndarray:
    return np.clip(np.where(np.isfinite(a), a, 0.0).astype(np.float64), -clip_norm, clip_norm)


def exactly(a: np.ndarray, block: np.ndarray) -> np.ndarray:
    """``a @ block`` in fractions."""
    columns = [[Fraction(v) for v in column] for column in block.T]
    rows = [[Fraction(float(v)) for v in row] for row in a]
    return np.array([[sum(u * v for u, v in zip(r, c, strict=True)) for c in columns] for r in rows], object)


@pytest.mark.slow
@settings(**OPTIONS, max_examples=60)
@given(
    form=st.sampled_from(FORMS),
    m=st.integers(1, 14),
    d=st.integers(2, 14),
    side=st.tuples(st.integers(1, 15), st.integers(1, 15)),
    clip_norm=st.sampled_from([1.0, 0.3, 1000.0, 1e-20]),
    dtype=st.sampled_from(["f4", "f8", "i2"]),
    run_bytes=st.sampled_from([1, 10**9]),
    seed=st.integers(0, 10**6),
)
def test_the_product_errs_no_more_than_is_said(
    form: str, m: int, d: int, side: tuple[int, int], clip_norm: float, dtype: str, run_bytes: int, seed: int
) -> None:
    m = d if form in ("symmetric", "triangle") else m
    a = matrix(form, m, d, seed).astype(dtype)
    operator = operator_of(a, form, clip_norm, side)
    block = orthonormal(m if form == "transposed" else d, 1 if m < 3 else 2, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "RUN_BYTES", run_bytes)
        patch.setattr(protocol, "COLUMN_BYTES", 1)
        found, rounding = product(operator, block), operator.rounding(block.shape[1])
    assert found.dtype == np.int64
    b = bounded_entries(a, clip_norm)
    exact = exactly(b.T if form == "transposed" else b, operator.prepare(block))
    errors = [abs(Fraction(int(n)) * Fraction(rounding.grid) - e) for n, e in zip(found.flat, exact.flat, strict=True)]
    assert 2 * math.sqrt(sum(e * e for e in errors)) <= rounding.l2
    assert 2 * sum(errors) <= rounding.l1


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_neighbours_are_no_further_apart_than_is_said_and_attain_it(form: str, monkeypatch: Any) -> None:
    """One entry, and its mirror image, from one bound to the other or by far more: clipping brings it back."""
    d, p, clip_norm = 60, 4, 1.0
    a, here = matrix(form, d, d), orthonormal(d, p)

    def distance(old: float, new: float) -> tuple[float, float]:
        both = []
        for value in (old, new):
            b = a.copy()
            b[3, 40] = value
            if form in ("symmetric", "triangle"):
                b[40, 3] = value
            operator = operator_of(b, form, clip_norm, (20, 30), change=2.0)
            both.append(product(operator, here))
        rounding, held = operator.rounding(p), operator.prepare(here)
        rows = {"product": [40], "transposed": [3]}.get(form, [3, 40])
        sensitivity = 2 * math.sqrt(sum(float(held[i] @ held[i]) for i in rows))
        assert rounding.l2 < 1e-5 * sensitivity, "what arithmetic adds is nothing beside it"
        difference = (both[0] - both[1]) * rounding.grid
        return float(np.linalg.norm(difference)), sensitivity + rounding.l2

    for old, new in ((-1.0, 1.0), (-1e300, 1e300), (-5.0, 1.0), (np.nan, 1.0), (np.inf, np.nan), (5e-324, 0.0)):
        found, allowed = distance(old, new)
        assert found <= allowed
        if np.isfinite([old, new]).all() and abs(new) >= 1:
            assert found >= (1 - 1e-5) * allowed, "attained"
    monkeypatch.setattr(
        clipped_entries.np, "clip", lambda values, low, high, out: values
    )  # the mutant that does not clip
    found, allowed = distance(-5.0, 1.0)
    assert found > allowed


def test_no_value_is_refused() -> None:
    for form in FORMS:
        a = np.full((20, 20), np.nan)
        a[0, 0], a[1, 1], a[2, 2] = np.inf, -np.inf, np.finfo(np.float64).max
        operator = operator_of(a, form, 3.0, (7, 7))
        found = product(operator, np.eye(20)) * operator.rounding(20).grid
        expected = np.zeros((20, 20))
        expected[2, 2] = 3.0
        np.testing.assert_allclose(found, expected, atol=1e-8)


def test_large_entries_never_overflow_the_integers() -> None:
    """With a change far below the bound the grid is as coarse as 62 bits ask for."""
    for form in FORMS:
        a = np.full((30, 30), 1e6)
        operator = operator_of(a, form, 1e6, (9, 9), change=1e-9)
        found = product(operator, np.full((30, 1), 30**-0.5))
        assert 2**59 < found.min() <= found.max() < 2**62
        np.testing.assert_allclose(found * operator.rounding(1).grid, 1e6 * math.sqrt(30), rtol=1e-7)


def test_a_packed_matrix_and_the_whole_give_the_same(tmp_path: Path) -> None:
    a = matrix("symmetric", 50, 50).astype("f4")
    writer = PackedWriter(tmp_path / "a.zarr", columns=50, dtype=a.dtype, identity={}, chunks=(16, 16))
    writer.write(a)
    writer.finish()
    reader: Any = open_source(tmp_path / "a.zarr").reader
    packed, whole = BoundedTriangle(reader=reader, clip_norm=2.0), operator_of(a, "symmetric", 2.0, (16, 16))
    block, rounding = orthonormal(50, 3), whole.rounding(3)
    found, other = product(packed, block), product(whole, block)
    assert packed.rounding(3).grid == rounding.grid
    assert np.linalg.norm(found - other) * rounding.grid <= rounding.l2 + packed.rounding(3).l2
    reference = bounded_entries(a, 2.0) @ block
    assert np.linalg.norm(found * rounding.grid - reference) < 1e-7 * np.linalg.norm(reference)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_same_bits_with_any_number_of_threads(form: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 1000)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)
    operator = operator_of(matrix(form, 200, 200), form, 1.0, (16, 40))
    assert len(runs_of(operator)) > 5
    one, two = (product(operator, orthonormal(200, 3), Threads(n)) for n in (1, 3))
    np.testing.assert_array_equal(one, two)


def test_grids_depend_on_public_numbers_only() -> None:
    left, right = (operator_of(np.full((9, 5), v), "product", 1.0, (3, 3)) for v in (1e-300, np.nan))
    assert left.rounding(2) == right.rounding(2)
    assert math.log2(left.rounding(2).grid) == int(math.log2(left.rounding(2).grid))


def test_bad_numbers_are_refused() -> None:
    for clip_norm, change, name in ((0.0, 1.0, "clip_norm"), (math.nan, 1.0, "clip_norm"), (1.0, -1.0, "change")):
        with pytest.raises(BadInputError, match=name):
            operator_of(np.ones((3, 3)), "product", clip_norm, (3, 3), change)
    with pytest.raises(BadInputError, match="prepare"):
        Threads(1).run_pass(operator_of(np.ones((9, 9)), "triangle", 1.0, (3, 3)), orthonormal(9, 2), ignore)


def test_what_a_query_asks_for_is_answered_by_the_operator_that_lists_it() -> None:
    x = np.arange(12.0).reshape(4, 3)
    reader: Any = open_source(x).reader
    assert ClippedGram(reader=reader, clip_norm=1.0).asked(Query(block=x, image_norm=2.0)).image_norm == 2.0
    other = BoundedProduct(reader=reader, clip_norm=100.0).asked(Query(block=x, transposed=True))
    block = other.prepare(np.full((4, 1), 0.25))
    product, _ = Threads(1).run_pass(other, block, ignore)
    np.testing.assert_allclose(product * other.rounding(1).grid, x.T @ block)
