"""Private products: exact in any order, no further apart than their sensitivity says, no value refused."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import npmdask.core.operators._protocol as protocol
from npmdask.cluster.workers import Processes
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import compute_run, runs_of
from npmdask.core.operators import PrivateOperator
from npmdask.core.operators.view import View
from npmdask.core.storage.readers.sparse import CsrReader
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.missing.gaps import with_missing
from npmdask.privacy import clipped_rows as clipped
from npmdask.privacy import clipped_rows as clipped_sparse_rows
from npmdask.privacy import clipped_rows as clipping
from npmdask.privacy.clipped_rows import ClippedGram, ClippedSparseGram, Clipping, clip_records
from npmdask.privacy.exact_sums import grid_unit, round_to
from tests.conftest import often, write_zarr

OPTIONS: Any = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


def ignore(record: object) -> None:
    """Nobody watches."""


def orthonormal(d: int, p: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, p)))[0]


def dense(x: np.ndarray, clip_norm: float, chunks: tuple[int, int] | None = None) -> ClippedGram:
    shape = tuple(min(c, n) for c, n in zip(chunks or x.shape, x.shape, strict=True))
    z = zarr.create_array({}, shape=x.shape, dtype=x.dtype, chunks=shape, config={"write_empty_chunks": True})
    z[...] = x
    reader: Any = open_source(z).reader
    return ClippedGram(reader=reader, clip_norm=clip_norm)


def sparse(folder: Path, x: np.ndarray | sp.csr_matrix, clip_norm: float, chunk: int = 50) -> ClippedSparseGram:
    """As AnnData writes it: values that an ingest would refuse among the rest."""
    rows, group = sp.csr_matrix(x), zarr.open_group(folder, mode="w")
    options: Any = {"chunks": (min(chunk, rows.nnz),), "config": {"write_empty_chunks": True}}
    for name in ("data", "indices", "indptr"):
        values = getattr(rows, name)
        group.create_array(name, shape=values.shape, dtype=values.dtype, **options)[...] = values
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(rows.shape)})
    reader: Any = open_source(folder).reader
    assert isinstance(reader, CsrReader)
    return ClippedSparseGram(reader=reader, clip_norm=clip_norm)


def product(operator: PrivateOperator, block: np.ndarray, executor: Any = None) -> np.ndarray:
    return (executor or Threads(1)).run_pass(operator, operator.prepare(block), ignore)[0]


def wild(m: int, d: int, seed: int = 0) -> np.ndarray:
    """Records of all lengths: far below and above 1, huge, tiny, denormal, not finite, zero."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, d)) / math.sqrt(d) * np.exp(rng.uniform(-3, 5, (m, 1)))
    x[1] *= 1e300
    x[2] *= 1e-310
    x[3, d // 2], x[4, 0], x[5, -1], x[6] = np.nan, np.inf, -np.inf, 0.0
    x[7] *= 1e30
    x[8, 0] = 1e308
    return x


# Arithmetic against Python's integers.


def nearest(value: Fraction) -> int:
    """The nearest integer, halves to the even one."""
    return round(value)


def by_integers(x: np.ndarray, block: np.ndarray, clip_norm: float) -> np.ndarray:
    """What the sum over records that need no clipping must be, to the last bit."""
    unit = Fraction(grid_unit(clip_norm))
    grids = [unit / 2**24, unit / 2**20, unit**2 / 2**29]
    columns = [[nearest(Fraction(v) * 2**28) for v in block[:, j]] for j in range(block.shape[1])]
    total = np.zeros(block.shape, object)
    for row in x:
        a = [nearest(Fraction(float(v)) / grids[0]) for v in row]
        images = [Fraction(sum(u * v for u, v in zip(a, c, strict=True)), 2**28) * grids[0] for c in columns]
        z = [nearest(image / grids[1]) for image in images]
        total += np.array([[u * w for w in z] for u in a], object)
    ratio = grids[0] * grids[1] / grids[2]
    return np.array([[nearest(v * ratio) for v in row] for row in total], np.int64)


@pytest.mark.slow
@settings(**OPTIONS, max_examples=25)
@given(
    m=st.integers(1, 12),
    d=st.integers(1, 9),
    clip_norm=st.sampled_from([1.0, 0.3, 5.0, 2.0**-60, 1e20]),
    dtype=st.sampled_from(["f4", "f8"]),
    seed=st.integers(0, 10**6),
)
def test_the_sum_is_that_of_integers(
    tmp_path_factory: Any, m: int, d: int, clip_norm: float, dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.uniform(-1, 1, (m, d)) * (clip_norm / math.sqrt(d) * 0.99)).astype(dtype)
    block = orthonormal(d, min(d, 3), seed)
    expected = by_integers(x, block, clip_norm)
    np.testing.assert_array_equal(product(dense(x, clip_norm, (5, 4)), block), expected)
    operator = sparse(tmp_path_factory.mktemp("csr") / "x.zarr", x, clip_norm, chunk=7)
    np.testing.assert_array_equal(product(operator, block), expected)


# Order cannot be seen.


def require_any_order_gives_the_same(x: np.ndarray, clip_norm: float) -> None:
    block = orthonormal(x.shape[1], 4)
    expected = product(dense(x, clip_norm), block)
    for chunks in ((1, 100), (13, 7), (100, 1), (150, 17)):
        np.testing.assert_array_equal(product(dense(x, clip_norm, chunks), block, Threads(2)), expected)
    mixed = x[np.random.default_rng(0).permutation(len(x))]
    np.testing.assert_array_equal(product(dense(mixed, clip_norm, (37, 11)), block), expected)


@pytest.mark.slow
@pytest.mark.parametrize("clip_norm", [1.0, 1.7, 0.01])
def test_rows_and_chunks_in_any_order_give_the_same_integers(clip_norm: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 100)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)
    require_any_order_gives_the_same(wild(300, 33), clip_norm)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f4", "i2", "u1"])
def test_so_they_do_in_other_types(dtype: str) -> None:
    x = (np.random.default_rng(0).standard_normal((300, 20)) * 30).astype(dtype)
    require_any_order_gives_the_same(x, 100.0)


@pytest.mark.slow
def test_sparse_records_in_any_order_give_the_same_integers(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 100)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)
    x = np.where(np.random.default_rng(1).random((400, 20)) < 0.3, wild(400, 20), 0.0)
    block, mixed = orthonormal(20, 3), x[np.random.default_rng(0).permutation(400)]
    expected = product(sparse(tmp_path / "a", x, 1.0, chunk=10_000), block)
    for name, rows, chunk in (("b", x, 3), ("c", mixed, 17), ("d", mixed, 100)):
        again = sparse(tmp_path / name, rows, 1.0, chunk)
        assert name == "d" or len(runs_of(again)) > 20, "many runs, which cut many records"
        np.testing.assert_array_equal(product(again, block, Threads(2)), expected)


@pytest.mark.slow
def test_sparse_and_dense_records_are_the_same_records(tmp_path: Path) -> None:
    x = mild() * (np.random.default_rng(1).random((300, 33)) < 0.4)
    expected = product(dense(x, 2.0), orthonormal(33, 3))
    np.testing.assert_array_equal(product(sparse(tmp_path / "x", x, 2.0), orthonormal(33, 3)), expected)


def test_a_pass_in_parts_that_were_kept_gives_the_same_integers() -> None:
    x, block = wild(200, 12), orthonormal(12, 3)
    operator = dense(x, 1.0, (10, 12))
    held = operator.prepare(block)
    parts = [compute_run(operator, range(2 * i, 2 * i + 2), held) for i in range(10)]
    kept = [replace(part, sums=operator.unstacked(operator.stacked(part.sums), range(0))) for part in parts]
    total = kept[-1]
    for part in kept[-2::-1]:
        total = operator.join(part, total)
    np.testing.assert_array_equal(operator.finish(total, held), product(operator, block))


@pytest.mark.slow
def test_worker_processes_give_the_same_integers(tmp_path: Path) -> None:
    with np.errstate(over="ignore"):
        x, block = wild(30_000, 100).astype("f4"), orthonormal(100, 5)
    one: Any = open_source(write_zarr(tmp_path / "x.zarr", x, (300, 100), compressors=None)).reader
    two: Any = open_source(write_zarr(tmp_path / "y.zarr", x[::-1], (701, 40))).reader
    expected = product(ClippedGram(reader=one, clip_norm=1.5), block)
    executor = Processes(2, 1)
    try:
        for reader in (one, two):
            found = product(ClippedGram(reader=reader, clip_norm=1.5), block, executor)
            np.testing.assert_array_equal(found, expected)
    finally:
        executor.close()


# A clipped record is a function of the record alone, and never too long.


def clipped_rows(x: np.ndarray, clipping_: Clipping) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = round_to(x.astype(np.float64), clipping_.grid)
        clip_records(rounded, clipping_, lambda which: x[which].astype(np.float64))
    return rounded


def require_clipped(rows: np.ndarray, clip_norm: float) -> None:
    for row in rows:
        assert sum(Fraction(v) ** 2 for v in row) <= Fraction(clip_norm) ** 2


@pytest.mark.slow
@settings(**OPTIONS, max_examples=60)
@given(
    d=st.integers(1, 200),
    clip_norm=st.sampled_from([1.0, 0.7, 3.0, 1e-9]),
    length=st.one_of(
        st.floats(0, 10),
        st.sampled_from([1.0, 1 - 2**-30, 1 + 2**-50, 5.65, 5.66, 1e10, 1e200, 5e-324, np.nan, np.inf]),
    ),
    offset=st.integers(0, 7),
    seed=st.integers(0, 10**6),
)
def test_clipping_is_a_function_of_the_record_and_never_leaves_it_too_long(
    d: int, clip_norm: float, length: float, offset: int, seed: int
) -> None:
    rng, numbers = np.random.default_rng(seed), Clipping(clip_norm, d)
    record = rng.standard_normal(d)
    with np.errstate(all="ignore"):
        record *= length * clip_norm / np.linalg.norm(record)
        others = rng.standard_normal((5, d)) * rng.choice([1e-3, 1.0, 1e5, np.nan], (5, 1)) * clip_norm
    alone = clipped_rows(record[None, :], numbers)[0]
    memory = np.empty(6 * d + 8)[offset : offset + 6 * d].reshape(6, d)  # aligned to 8 bytes only
    memory[:] = np.insert(others, 3, record, axis=0)
    assert np.isfinite(alone).all()
    np.testing.assert_array_equal(clipped_rows(memory, numbers)[3], alone)
    require_clipped(clipped_rows(memory, numbers), clip_norm)
    if not np.isfinite(record).all():
        assert not alone.any()
    elif length > 1.001:
        assert np.linalg.norm(alone) >= clip_norm * (1 - 1e-6), "no shorter than it need be"
        record /= np.abs(record).max()
        np.testing.assert_allclose(alone, record * (clip_norm / np.linalg.norm(record)), atol=2e-6 * clip_norm)


# Neighbours are no further apart than the sensitivity says.


def require_close(
    x: np.ndarray, place: int, other: np.ndarray | None, clip_norm: float, p: int, folder: Path | None = None
) -> float:
    """Take out a record or put another in its place: what this changes, as a share of what it may change.

    The records are read as sparse ones where a folder is given.
    """
    block, y = orthonormal(x.shape[1], p), np.delete(x, place, axis=0)
    if other is not None:
        y = np.concatenate([x[:place], [other], x[place + 1 :]])
    operator = sparse(folder / "x", x, clip_norm, 70) if folder else dense(x, clip_norm, (50, x.shape[1]))
    neighbour = sparse(folder / "y", y, clip_norm, 1000) if folder else dense(y, clip_norm, (17, 50))
    left, right = product(operator, block), product(neighbour, block)
    rounding, held = operator.rounding(p), operator.prepare(block)
    difference = (left - right) * rounding.grid
    a = clipped_rows(x[place : place + 1], operator.clipping)[0]
    b = np.zeros_like(a) if other is None else clipped_rows(other[None, :].astype(x.dtype), operator.clipping)[0]
    ideal = np.outer(a, a @ held) - np.outer(b, b @ held)
    slack = 1 + 1e-12
    assert np.linalg.norm(difference - ideal) <= rounding.l2 * slack
    assert np.abs(difference - ideal).sum() <= rounding.l1 * slack
    sensitivity = clip_norm**2 * np.linalg.norm(held, 2) * (1.0 if other is None else math.sqrt(2))
    bound = sensitivity * (1 + rounding.relative) + rounding.l2
    assert np.linalg.norm(difference) <= bound * slack
    return float(np.linalg.norm(difference) / bound)


def adversarial(d: int, clip_norm: float, kind: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    record = rng.standard_normal(d)
    record *= clip_norm / np.linalg.norm(record)
    if kind == "entry":
        record = np.eye(d)[seed % d] * clip_norm
    lengths = {"huge": 1e300, "long": 3.0, "far": 1e4, "tiny": 1e-9, "denormal": 1e-310, "just over": 1 + 2**-52}
    record = record * lengths.get(kind, 1.0)
    if kind in ("nan", "inf"):
        record[seed % d] = float(kind)
    return record


KINDS = ["entry", "huge", "long", "far", "tiny", "denormal", "just over", "nan", "inf", "plain"]


@pytest.mark.slow
@settings(**OPTIONS, max_examples=60)
@given(
    d=st.integers(4, 40),
    clip_norm=st.sampled_from([1.0, 0.7, 1.01, 300.0]),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from([*KINDS, "removed"])),
    place=st.integers(0, 59),
    seed=st.integers(0, 10**6),
)
def test_neighbours_are_no_further_apart_than_is_said(
    d: int, clip_norm: float, kinds: tuple[str, str], place: int, seed: int
) -> None:
    x = wild(60, d, seed) * min(clip_norm, 1.0)
    x[place] = adversarial(d, clip_norm, kinds[0], seed)
    other = None if kinds[1] == "removed" else adversarial(d, clip_norm, kinds[1], seed + 1)
    require_close(x, place, other, clip_norm, p=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sparse_neighbours_are_no_further_apart_than_is_said(kind: str, tmp_path: Path) -> None:
    x = wild(60, 12)
    x[30] = adversarial(12, 1.0, kind, 0)
    require_close(x, 30, None, 1.0, 3, tmp_path)
    require_close(x, 30, adversarial(12, 1.0, "plain", 1), 1.0, 3, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1.0, 3.0, 1e200])
def test_the_sensitivity_is_attained(length: float) -> None:
    d, p = 200, 5
    x, block = wild(150, d), orthonormal(d, p)
    x[100] = block[:, 0] * length
    assert 1 - 1e-5 <= require_close(x, 100, None, 1.0, p) <= 1
    assert 1 - 1e-5 <= require_close(x, 100, block[:, 1] * length, 1.0, p) <= 1


# Each of these mutants has the mistake that one of the tests above is there for.


def float32_sum(total: np.ndarray, product: np.ndarray, unit: float) -> None:
    total[0] = (total[0].astype(np.float32) + product.astype(np.float32)).astype(np.float64)


def no_clipping(records: np.ndarray, numbers: Clipping, raw: object) -> None:
    records[~np.isfinite(records).all(axis=1)] = 0


def by_position(records: np.ndarray, numbers: Clipping, raw: object) -> None:
    no_clipping(records, numbers, raw)
    norms = np.linalg.norm(records, axis=1)
    records *= np.minimum(1, (1 - 1e-9 * np.arange(len(norms))) / np.where(norms > 0, norms, 1))[:, None]


def mild(m: int = 300, d: int = 33) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((m, d))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mutant", "check"),
    [
        ("add_exactly", float32_sum, lambda: require_close(mild(3000), 3, adversarial(33, 1.0, "plain", 0), 1.0, 3)),
        ("add_exactly", float32_sum, lambda: require_any_order_gives_the_same(mild(), 1.0)),
        ("clip_records", no_clipping, lambda: require_close(mild(), 3, None, 1.0, 3)),
        ("clip_records", by_position, lambda: require_any_order_gives_the_same(mild(), 1.0)),
    ],
)
def test_mutants_are_caught(name: str, mutant: Any, check: Callable[[], object], monkeypatch: Any) -> None:
    check()
    monkeypatch.setattr(clipped, name, mutant)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.slow
def test_a_mutant_that_does_not_clip_sparse_records_is_caught(tmp_path: Path, monkeypatch: Any) -> None:
    def round_only(part: sp.csr_matrix, numbers: Clipping) -> None:
        round_to(part.data, numbers.grid)

    require_close(mild(), 3, None, 1.0, 3, tmp_path)
    monkeypatch.setattr(clipped_sparse_rows, "clip_rows", round_only)
    with pytest.raises(AssertionError):
        require_close(mild(), 3, None, 1.0, 3, tmp_path)


@pytest.mark.slow
def test_a_mutant_that_clips_to_the_norm_before_rounding_is_caught(monkeypatch: Any) -> None:
    x = np.random.default_rng(0).standard_normal((200, 500))
    require_clipped(clipped_rows(x, Clipping(1.0, 500)), 1.0)
    monkeypatch.setattr(Clipping, "target", 1.0)
    with pytest.raises(AssertionError):
        require_clipped(clipped_rows(x, Clipping(1.0, 500)), 1.0)


# What is asked for, and what is refused: by public facts only.


@pytest.mark.slow
@pytest.mark.parametrize("clip_norm", [0.5, 1.0, 40.0])
def test_the_product_is_accurate(tmp_path: Path, clip_norm: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3000, 60)) / 8 * np.exp(rng.standard_normal((3000, 1))) * (rng.random((3000, 60)) < 0.5)
    block, norms = orthonormal(60, 6), np.linalg.norm(x, axis=1, keepdims=True)
    a = x * np.minimum(1, clip_norm / np.maximum(norms, 1e-9))
    for operator in (dense(x, clip_norm, (1000, 60)), sparse(tmp_path / "x", x, clip_norm, chunk=3000)):
        found = product(operator, block) * operator.rounding(6).grid
        error = np.linalg.norm(found - a.T @ (a @ block), 2) / np.linalg.norm(a.T @ a, 2)
        assert error < 1e-5 * max(1.0, (clip_norm / np.median(norms)))


def test_entries_of_one_place_in_a_sparse_row_are_one_entry_of_the_record(tmp_path: Path) -> None:
    """Twice 0.6 in one column is a record of length 1.2, although its stored squares sum to 0.72."""
    twice = sp.csr_matrix((np.array([0.6, 0.6, 0.1]), np.array([2, 2, 1]), np.array([0, 2, 3])), shape=(2, 4))
    operator = sparse(tmp_path / "x.zarr", twice, 1.0, chunk=3)
    found = product(operator, np.eye(4)) * operator.rounding(4).grid
    np.testing.assert_allclose(found, np.diag([0, 0.01, 1, 0]), atol=1e-6)


def test_no_value_is_refused_and_none_is_told_of() -> None:
    x = np.full((20, 6), np.nan)
    assert not product(dense(x, 1.0), np.eye(6)).any()
    x[0] = np.finfo(np.float64).max
    assert product(dense(x, 1.0), np.eye(6)).any()


def test_bad_numbers_are_refused() -> None:
    x = np.ones((4, 3))
    for clip_norm in (0.0, -1.0, math.nan, math.inf, 1e300):
        with pytest.raises(BadInputError, match="clip_norm"):
            dense(x, clip_norm)
    with pytest.raises(BadInputError, match="orthonormal block"):
        dense(x, 1.0).prepare(np.full((3, 1), 0.8))
    with pytest.raises(BadInputError, match="orthonormal block"):
        dense(x, 1.0).prepare(np.full((3, 1), np.nan))
    with pytest.raises(BadInputError, match="prepare"):
        Threads(1).run_pass(dense(x, 1.0), orthonormal(3, 2), ignore)
    many = zarr.create_array({}, shape=(2**33 + 1, 1), dtype="u1", chunks=(2**30, 1))
    with pytest.raises(RefusedError, match="64 bits"):
        ClippedGram(reader=open_source(many).reader, clip_norm=1.0)  # type: ignore[arg-type]


def test_units_are_the_next_power_of_two() -> None:
    assert [grid_unit(c) for c in (1.0, 0.5, 0.7, 1.0000001, 3.0, 4.0)] == [1.0, 0.5, 1.0, 2.0, 4.0, 4.0]
    assert clipping.Clipping(0.1, 3).largest_square <= Fraction(0.1) ** 2


PEAK = """
import sys, numpy as np
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.memory import high_water, tree_rss
from npmdask.core.execution.memory import plan_memory
from npmdask.privacy.clipped_entries import *
from npmdask.privacy.clipped_rows import *
from npmdask.missing.gaps import with_missing
from npmdask.core.storage.source import open_source
from npmdask.symmetric.reader import TriangleReader
name, path, p, clip_norm = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
reader = open_source(path).reader
if name == "BoundedTriangle":
    reader = TriangleReader(array=reader.array)
operator = globals()[name](reader=reader, clip_norm=clip_norm)
plan = plan_memory(operator, p, 3, limit=None, base=tree_rss(), threads=2, workers=0)
block = operator.prepare(np.eye(operator.block_rows, p))
product, _ = Threads(2).run_pass(operator, block, lambda record: None)
print(high_water(), plan.predicted_peak, plan.base)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "chunks", "p", "clip_norm"),
    often(
        [
            ("ClippedGram", (50_000, 1000), (4000, 1000), 20, 1e3),
            ("ClippedGram", (50_000, 1000), (4000, 300), 20, 1.0),  # every record is far too long
            ("ClippedGram", (1000, 60_000), (100, 20_000), 20, 100.0),
            ("ClippedSparseGram", (500_000, 20_000), (2**18, 0), 20, 1.0),
            ("BoundedProduct", (300_000, 100), (5000, 100), 20, 1.0),
            ("BoundedTransposed", (300_000, 100), (5000, 100), 20, 1.0),
            ("BoundedTriangle", (10_000, 10_000), (2000, 2000), 50, 1.0),
        ],
        3,
        4,
    ),
)
def test_a_pass_stays_within_its_plan(
    tmp_path: Path, name: str, shape: tuple[int, int], chunks: tuple[int, int], p: int, clip_norm: float
) -> None:
    if name == "ClippedSparseGram":
        entries = sp.random(*shape, density=5e-4, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
        sparse(tmp_path / "x.zarr", entries, 1.0, chunks[0])
    else:
        z = zarr.create_array(tmp_path / "x.zarr", shape=shape, dtype="f4", chunks=chunks, compressors=None)
        for start in range(0, shape[0], chunks[0]):
            z[start : start + chunks[0]] = np.random.default_rng(start).standard_normal((chunks[0], shape[1]))
    command = [sys.executable, "-c", PEAK, name, str(tmp_path / "x.zarr"), str(p), str(clip_norm)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, predicted, base = (int(word) / 2**20 for word in done.stdout.split())
    print(f"{name} {shape}: peak {peak:.0f}, predicted {predicted:.0f}, of it {base:.0f} before")
    assert peak < predicted


def weights_of(m: int, d: int) -> View:
    """Weights of all sizes, and none of a row and of a column."""
    rng = np.random.default_rng(4)
    rows, columns = np.exp(rng.uniform(-3, 3, m)), np.exp(rng.uniform(-3, 3, d))
    rows[-1] = columns[-1] = 0.0
    return View(row_weight=rows, column_weight=columns)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("chunks", [(9, 4), (64, 12)])
def test_records_are_weighted_and_then_clipped(chunks: tuple[int, int], whole: bool, tmp_path: Path) -> None:
    """The same bits as of the weighted records themselves, however they are cut, dense and sparse."""
    x, view = wild(61, 12), weights_of(61, 12)
    with np.errstate(over="ignore", invalid="ignore"):
        weighted = x * np.sqrt(view.column_weight) * np.sqrt(view.row_weight)[:, None]
    block = np.eye(12) if whole else orthonormal(12, 3)
    wanted = product(replace(dense(weighted, 0.8), whole=whole), block)
    np.testing.assert_array_equal(product(replace(dense(x, 0.8, chunks), whole=whole, view=view), block), wanted)
    late = product(replace(dense(x, 0.8), whole=whole), block)
    assert (late != wanted).any(), "weights change the sum"
    thin = sp.csr_matrix(np.where(np.random.default_rng(0).random(x.shape) < 0.6, x, 0.0))
    with np.errstate(over="ignore", invalid="ignore"):
        heavy = thin.multiply(np.sqrt(view.column_weight)).multiply(np.sqrt(view.row_weight)[:, None]).tocsr()
    found = product(replace(sparse(tmp_path / "x", thin, 0.8, 37), whole=whole, view=view), block)
    np.testing.assert_array_equal(found, product(replace(sparse(tmp_path / "y", heavy, 0.8), whole=whole), block))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gaps_are_filled_before_records_are_clipped(dtype: Any) -> None:
    """The same bits as of the filled records, of clipped products and of images; an infinity is no gap."""
    x = wild(61, 12).clip(-1e30, 1e30).astype(dtype)
    x[np.random.default_rng(0).random(x.shape) < 0.2] = np.nan
    x[4] = 0.0
    x[4, 0] = np.inf
    fill = np.linspace(-3, 3, 12)
    filled = np.where(np.isnan(x), fill.astype(dtype), x)
    source = open_source(x, "samples")
    reader: Any = with_missing(source, "fill", fill).reader
    for whole in (False, True):
        given, block = {"clip_norm": 1.5, "whole": whole}, np.eye(12) if whole else orthonormal(12, 3)
        wanted = product(replace(dense(filled, 1.5), whole=whole), block)
        np.testing.assert_array_equal(product(ClippedGram(reader=reader, **given), block), wanted)
        assert (product(replace(dense(x, 1.5), whole=whole), block) != wanted).any(), "gaps are not zeros"
