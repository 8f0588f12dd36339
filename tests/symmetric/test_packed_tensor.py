"""Contractions of a symmetric tensor from its unique blocks: equal to the dense ones, the same bits, damage named."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from itertools import combinations_with_replacement, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import npmdask.symmetric.operator as tensor_module
from npmdask.cluster.workers import Processes
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import PassCheckpoint, compute_node, pack, root, runs_of, tasks_of, unpack
from npmdask.core.numerics.subspaces import symmetric_part
from npmdask.core.operators import Operator
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.symmetric import operator as strips_module
from npmdask.symmetric.operator import Contraction, PackedMultilinear, PackedTensor
from npmdask.symmetric.reader import Place, TensorReader, open_packed_tensor, tetrahedral_number


def ignore(record: object) -> None:
    """Nobody watches."""


def symmetric(d: int, dtype: str = "f8", seed: int = 0) -> np.ndarray:
    return symmetric_part(np.random.default_rng(seed).standard_normal((d, d, d))).astype(dtype)


def dense_contraction(tensor: np.ndarray, block: np.ndarray) -> np.ndarray:
    """T(I, u, u) as it is written."""
    product: np.ndarray = np.einsum("ijk,jl,kl->il", tensor, block, block, optimize=True)
    return product


def blocks_of(tensor: np.ndarray, side: int) -> Iterator[tuple[Place, np.ndarray]]:
    for place in combinations_with_replacement(range(-(-len(tensor) // side)), 3):
        yield place, tensor[tuple(slice(at * side, (at + 1) * side) for at in place)]


def only_class(tensor: np.ndarray, side: int, equal: tuple[bool, bool]) -> np.ndarray:
    """The tensor with zeros wherever the block indices, sorted, are not equal in this way."""
    at = np.arange(len(tensor)) // side
    low, mid, high = np.sort(np.stack(np.broadcast_arrays(*np.ix_(at, at, at))), axis=0)
    return tensor * (((low == mid) == equal[0]) & ((mid == high) == equal[1]))


def stored(target: Any, tensor: np.ndarray, side: int, **options: Any) -> TensorReader:
    """A packed array of the unique blocks, written block by block."""
    units = tetrahedral_number(-(-len(tensor) // side))
    options = {"compressors": None, "config": {"write_empty_chunks": True}} | options
    array = zarr.create_array(target, shape=(units, side, side, side), chunks=(1, side, side, side),
                              dtype=tensor.dtype, **options)  # fmt: skip
    for unit, (_, values) in enumerate(blocks_of(tensor, side)):
        filled = np.zeros((side, side, side), tensor.dtype)
        filled[tuple(slice(size) for size in values.shape)] = values
        array[unit] = filled
    return open_packed_tensor(array, len(tensor))


def contracted(tensor: np.ndarray, side: int, block: np.ndarray) -> np.ndarray:
    contraction = Contraction(block, side)
    for place, values in blocks_of(tensor, side):
        contraction.add(place, values)
    return contraction.product


def strips_of(patch: Any, rows: int) -> None:
    """At most so many rows of a block at once, whatever its side."""
    patch.setattr(strips_module, "MIN_STRIP_ROWS", rows)
    patch.setattr(strips_module, "STRIP_BYTES", 1)


def assert_close(found: np.ndarray, known: np.ndarray, digits: float = 1e-13) -> None:
    assert found.shape == known.shape
    assert found.dtype == np.float64
    assert np.abs(found - known).max() <= digits * max(1.0, np.abs(known).max())


@pytest.mark.slow
@pytest.mark.parametrize("equal", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("d", "side", "count"), [(60, 20, 8), (61, 20, 1), (31, 7, 3), (9, 1, 2)])
@pytest.mark.parametrize("rows", [None, 3])
def test_every_class_of_blocks_alone(
    monkeypatch: Any, equal: tuple[bool, bool], d: int, side: int, count: int, rows: int | None
) -> None:
    if rows is not None:
        strips_of(monkeypatch, rows)
    tensor, block = only_class(symmetric(d), side, equal), np.random.default_rng(1).standard_normal((d, count))
    assert tensor.any()
    assert_close(contracted(tensor, side, block), dense_contraction(tensor, block))


def test_classes_are_all_there_is() -> None:
    tensor = symmetric(23)
    parts = [only_class(tensor, 5, (a, b)) for a in (False, True) for b in (False, True)]
    assert (sum(parts) == tensor).all()


@pytest.mark.parametrize(("d", "side"), [(13, 13), (13, 40), (1, 1), (2, 1), (61, 60), (5, 2)])
def test_one_block_few_entries_and_edges(d: int, side: int) -> None:
    tensor, block = symmetric(d), np.random.default_rng(1).standard_normal((d, 4))
    assert_close(contracted(tensor, side, block), dense_contraction(tensor, block))


LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "blosc": {"compressors": [zarr.codecs.BloscCodec()]},
    "gzip": {"compressors": [zarr.codecs.GzipCodec()]},
}


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    d=st.integers(1, 61),
    side=st.integers(1, 30),
    count=st.integers(1, 9),
    dtype=st.sampled_from(["f4", "f8", ">f8", "i4"]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    threads=st.sampled_from([1, 2, 3]),
    single=st.booleans(),
    rows=st.sampled_from([1, 3, 100]),
    seed=st.integers(0, 10**6),
)
def test_any_tensor_any_layout_any_number_of_threads(
    d: int, side: int, count: int, dtype: str, layout: str, threads: int, single: bool, rows: int, seed: int
) -> None:
    side = max(side, -(-d // 7))  # 84 blocks at most
    tensor = (symmetric(d, seed=seed) * 20).astype(dtype)
    block = np.random.default_rng(seed).standard_normal((d, count)).astype("f4" if single else "f8")
    with pytest.MonkeyPatch.context() as patch:
        strips_of(patch, rows)
        patch.setattr(tensor_module, "RUN_BYTES", 4)
        operator = PackedTensor(reader=stored(MemoryStore(), tensor, min(side, d), **LAYOUTS[layout]))
        product, record = Threads(threads).run_pass(operator, block, ignore)
    known = dense_contraction(tensor.astype("f8"), block.astype("f8"))
    assert_close(product, known, digits=1e-5 * d if single else 1e-12)
    assert (record.bytes_read, record.chunks) == (operator.pass_bytes, operator.pass_chunks)


@pytest.fixture
def many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_module, "RUN_BYTES", 4)


def both(reader: TensorReader) -> dict[str, Operator]:
    return {"contraction": PackedTensor(reader=reader), "multilinear": PackedMultilinear(reader=reader)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["contraction", "multilinear"])
def test_the_same_bits_with_any_threads_and_from_any_known_parts(tmp_path: Path, many_runs: None, name: str) -> None:
    """Every task cut, every set of finished nodes, through a checkpoint and back."""
    tensor, block = symmetric(33, "f4"), np.random.default_rng(1).standard_normal((33, 3))
    operator = both(stored(tmp_path / "t", tensor, 5))[name]
    runs = runs_of(operator)
    assert len(runs) > 60
    whole, record = Threads(1).run_pass(operator, block, ignore)
    form = np.einsum("ijk,ia,jb,kc->abc", tensor.astype("f8"), block, block, block, optimize=True)
    assert_close(whole, dense_contraction(tensor, block) if name == "contraction" else form.reshape(3, 9), 1e-12)
    rng = np.random.default_rng(2)
    for threads, level in ((2, 0), (3, 1), (1, 2), (2, 9)):
        nodes = tasks_of(root(len(runs)), len(runs), [], level)
        done = {node: compute_node(operator, runs, node, block) for node in nodes if rng.random() < 0.6}
        known = PassCheckpoint(unpack(operator, *pack(operator, done)))
        told: list[ReadStats] = []
        product, other = Threads(threads).run_pass(operator, block, told.append, known)
        assert product.tobytes() == whole.tobytes()
        assert other == record
        assert sum(each.bytes_read for each in told) == record.bytes_read - known.record().bytes_read


@pytest.mark.slow
def test_the_same_bits_in_other_processes(tmp_path: Path, many_runs: None) -> None:
    operator = PackedTensor(reader=stored(tmp_path / "t", symmetric(33), 5))
    block = np.random.default_rng(1).standard_normal((33, 3))
    whole, record = Threads(2).run_pass(operator, block, ignore)
    processes = Processes(2, 1)
    try:
        product, other = processes.run_pass(operator, block, ignore)
    finally:
        processes.close()
    assert product.tobytes() == whole.tobytes()
    assert other == record


@pytest.mark.slow
def test_where_the_bytes_lie_does_not_change_a_bit(tmp_path: Path) -> None:
    """Stored as plain files, packed, or in memory; float32 that is multiplied in float64 as if it were stored so."""
    tensor, block = symmetric(47, "f4"), np.random.default_rng(1).standard_normal((47, 6))
    readers = [stored(tmp_path / name, tensor, 10, **options) for name, options in LAYOUTS.items()]
    readers += [stored(MemoryStore(), tensor, 10), stored(tmp_path / "wide", tensor.astype("f8"), 10)]
    assert len({reader.dense.access.way for reader in readers}) == 3
    products = [Threads(1).run_pass(PackedTensor(reader=reader), block, ignore)[0] for reader in readers]
    assert len({product.tobytes() for product in products}) == 1


@pytest.mark.parametrize("dtype", ["f4", "f8", ">f8", "i2"])
def test_a_tensor_in_memory_gives_the_bits_of_its_store(tmp_path: Path, dtype: str) -> None:
    tensor, block = (symmetric(47) * 50).astype(dtype), np.random.default_rng(1).standard_normal((47, 6))
    held = open_source(tensor, kind="tensor").reader
    assert held.held
    product, record = Threads(2).run_pass(PackedTensor(reader=held), block, ignore)
    on_disk = stored(tmp_path / "t", tensor.astype(held.dtype), held.side)
    assert on_disk.grid > 2
    known = Threads(1).run_pass(PackedTensor(reader=on_disk), block, ignore)
    assert (product.tobytes(), record) == (known[0].tobytes(), known[1])
    assert_close(product, dense_contraction(tensor, block), 1e-12)


def test_scores_are_one_row() -> None:
    tensor, block = symmetric(17), np.random.default_rng(1).standard_normal((17, 5))
    operator = PackedTensor(reader=stored(MemoryStore(), tensor, 4), scores=True)
    scores, _ = Threads(1).run_pass(operator, block, ignore)
    assert_close(scores, np.einsum("ijk,il,jl,kl->l", tensor, block, block, block)[None], 1e-12)


def test_each_distinct_block_takes_two_matrix_products_and_the_others_one(monkeypatch: Any) -> None:
    """4 b^3 L flop where no index is repeated and 2 b^3 L where one is, beside sums of order b^2 L."""
    flop, matmul = [0], np.matmul

    def counting(left: np.ndarray, right: np.ndarray, **options: Any) -> np.ndarray:
        if left.ndim == right.ndim == 2:
            flop[0] += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        result: np.ndarray = matmul(left, right, **options)
        return result

    monkeypatch.setattr(np, "matmul", counting)
    for place, times in {(0, 1, 2): 4, (0, 0, 1): 2, (0, 1, 1): 2, (1, 1, 1): 2}.items():
        flop[0] = 0
        Contraction(np.ones((30, 4)), 10).add(place, np.ones((10, 10, 10)))
        assert flop[0] == times * 10**3 * 4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["contraction", "multilinear"])
def test_what_is_not_finite_is_named(tmp_path: Path, bad: float, name: str) -> None:
    tensor = symmetric(11)
    for entry in permutations((2, 7, 10)):
        tensor[entry] = bad
    operator = both(stored(tmp_path / "t", tensor, 4))[name]
    with pytest.raises(BadInputError, match=rf"holds {bad} at entry \(2, 7, 10\): remove or impute"):
        Threads(2).run_pass(operator, np.zeros((11, 2)), ignore)


def test_what_overflows_is_told_from_it(tmp_path: Path) -> None:
    reader = stored(tmp_path / "t", symmetric(11) * 1e300, 4)
    with pytest.raises(BadInputError, match="overflows although the data are finite: divide the data"):
        Threads(2).run_pass(PackedTensor(reader=reader), np.full((11, 2), 1e10), ignore)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "side"), [(23, 5), (20, 5), (7, 7), (6, 1)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_multilinear_forms(d: int, side: int, dtype: str) -> None:
    tensor, block = symmetric(d, dtype), np.random.default_rng(1).standard_normal((d, 6))
    reader = stored(MemoryStore(), tensor, side)
    whole, _ = Threads(2).run_pass(PackedMultilinear(reader=reader), block, ignore)
    known = np.einsum("ijk,ia,jb,kc->abc", tensor.astype("f8"), block, block, block, optimize=True)
    assert_close(whole, known.reshape(6, 36), 1e-12)
    form, _ = Threads(1).run_pass(PackedMultilinear(reader=reader, widths=(1, 2, 3)), block, ignore)
    assert_close(form, known[:1, 1:3, 3:].reshape(1, 6), 1e-12)
    with pytest.raises(BadInputError, match="do not add up to the 6 columns"):
        Threads(1).run_pass(PackedMultilinear(reader=reader, widths=(1, 2, 4)), block, ignore)


def task_peak(operator: Operator, block: np.ndarray) -> int:
    """Peak of what NumPy allocates in a thread that begins with no buffer, over the largest run."""
    run = max(runs_of(operator), key=len)
    tracemalloc.start()
    try:
        thread = threading.Thread(target=lambda: operator.partial(run, block))
        thread.start()
        thread.join()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["contraction", "multilinear"])
@pytest.mark.parametrize(
    ("d", "side", "dtype", "count", "single"),
    [
        (110, 30, "f4", 40, False),
        (110, 30, "f8", 40, True),
        (160, 80, "f8", 10, False),
        (101, 100, "f4", 64, False),
        (300, 100, "f4", 2, False),
        (60, 6, "f8", 100, False),
    ],
)
def test_a_task_stays_within_what_it_says(
    tmp_path: Path, name: str, d: int, side: int, dtype: str, count: int, single: bool
) -> None:
    units = tetrahedral_number(-(-d // side))
    array = zarr.create_array(tmp_path / "t", shape=(units, side, side, side), chunks=(1, side, side, side),
                              dtype=dtype, compressors=None)  # fmt: skip
    array[...] = 1.0
    operator = both(open_packed_tensor(array, d))[name]
    block = np.random.default_rng(1).standard_normal((d, count)).astype("f4" if single else "f8")
    said, peak = operator.task_bytes(count, runs_of(operator)), task_peak(operator, block)
    print(f"{name} {d}: peak {peak / 2**20:.1f}, said {said / 2**20:.1f} MiB")
    assert said / 4 < peak < said + 2**18  # beside arrays: what Python holds


def test_what_waits_is_two_sums_a_level() -> None:
    reader = stored(MemoryStore(), symmetric(12), 4)
    runs = [range(i, i + 1) for i in range(8)]
    assert PackedTensor(reader=reader).pending_bytes(3, runs) == 2 * 3 * 12 * 3 * 8
    assert PackedMultilinear(reader=reader).pending_bytes(3, runs) == (2 * 3 + 4) * 27 * 8


@given(d=st.integers(1, 9), seed=st.integers(0, 10**6), dtype=st.sampled_from(["f4", "f8", "i4"]))
@settings(deadline=None, max_examples=30)
def test_the_symmetric_part_is_the_mean_and_symmetric_bit_for_bit(d: int, seed: int, dtype: str) -> None:
    tensor = (np.random.default_rng(seed).standard_normal((d, d, d)) * 1e3).astype(dtype)
    part = symmetric_part(tensor)
    mean = sum(tensor.astype("f8").transpose(order) for order in permutations(range(3))) / 6
    assert_close(part, mean, 1e-14)
    assert all((part == part.transpose(order)).all() for order in permutations(range(3)))
    assert_close(symmetric_part(part), part, 1e-15)
