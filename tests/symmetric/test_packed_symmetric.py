"""Reading one triangle: the product of the whole matrix, half of the chunks, the same bits, damage named."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import npmdask
import npmdask.core.operators._protocol as protocol
from npmdask.cluster.workers import Processes
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import runs_of
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest
from npmdask.symmetric import reader as packed_reader
from npmdask.symmetric.operator import Symmetric, Triangle
from npmdask.symmetric.reader import TriangleReader
from npmdask.symmetric.writer import PackedWriter
from tests.conftest import same_bytes, write_zarr
from tests.core.runs.test_loop import CountingStore, Stop, StopAfter


def ignore(record: object) -> None:
    """Nobody watches."""


def symmetric(d: int, dtype: str = "f8", seed: int = 0) -> np.ndarray:
    a = np.random.default_rng(seed).standard_normal((d, d)) * 50
    return (a + a.T).astype(dtype)


def falling(d: int, seed: int = 0) -> np.ndarray:
    """An indefinite matrix whose leading eigenvalues are well apart."""
    values = 0.7 ** np.arange(d) * np.where(np.arange(d) % 3 == 1, -1, 1)
    v = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]
    a = (v * values) @ v.T
    return (a + a.T) / 2


def pack(path: Path, a: np.ndarray, side: int, **options: Any) -> Path:
    writer = PackedWriter(path, columns=len(a), dtype=a.dtype, identity={}, chunks=(side, side), **options)
    writer.write(a)
    writer.finish()
    return path


def whole_reader(array: Any) -> TriangleReader:
    return TriangleReader(array=open_source(array).reader.array)


def opened(folder: Path, a: np.ndarray, side: int, layout: str, codec: Any) -> TriangleReader:
    if layout == "packed":
        reader = open_source(pack(folder / "a.zarr", a, side, compress=codec is not None)).reader
        assert isinstance(reader, TriangleReader)
        return reader
    options: dict[str, Any] = {"compressors": codec, "zarr_format": 2 if layout == "zarr 2" else 3}
    side = min(side, len(a))
    if layout == "sharded":
        options |= {"shards": (2 * side, 2 * side)}
    z = zarr.create_array(
        {} if layout == "memory" else folder / "a.zarr",
        shape=a.shape,
        dtype=a.dtype,
        chunks=(side, side),
        config={"write_empty_chunks": True},
        **options,
    )
    z[...] = a
    return whole_reader(z)


@pytest.mark.slow
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    d=st.integers(1, 70),
    side=st.integers(1, 80),
    p=st.integers(1, 5),
    dtype=st.sampled_from(["f4", "f8", "u1", "i2", ">f4"]),
    layout=st.sampled_from(["packed", "packed", "full", "memory", "zarr 2", "sharded"]),
    codec=st.sampled_from([None, "auto"]),
    run_bytes=st.sampled_from([1, 500, 10**9]),
    tile_bytes=st.sampled_from([1, 10**9]),
    seed=st.integers(0, 10**6),
)
def test_the_product_of_the_whole_matrix_from_half_of_it(
    tmp_path_factory: Any,
    d: int,
    side: int,
    p: int,
    dtype: str,
    layout: str,
    codec: Any,
    run_bytes: int,
    tile_bytes: int,
    seed: int,
) -> None:
    a = symmetric(d, dtype, seed)
    reader = opened(tmp_path_factory.mktemp("triangle"), a, side, layout, codec)
    operator, block = Triangle(reader=reader), np.random.default_rng(seed).standard_normal((d, p))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "RUN_BYTES", run_bytes)
        patch.setattr(protocol, "COLUMN_BYTES", 1)
        patch.setattr(packed_reader, "TILE_BYTES", tile_bytes)
        patch.setattr(packed_reader, "MIN_TILE_ROWS", 3)
        product, record = Threads(2).run_pass(operator, block, ignore)
    expected = a.astype("f8") @ block
    np.testing.assert_allclose(product, expected, atol=1e-12 * max(1, np.abs(expected).max()) * d)
    n = -(-d // reader.chunks[0])
    upper = [a[i * reader.chunks[0] :, j * reader.chunks[0] :] for i in range(n) for j in range(i, n)]
    logical = sum(part[: reader.chunks[0], : reader.chunks[0]].nbytes for part in upper)
    assert record.chunks == operator.pass_chunks == n * (n + 1) // 2
    assert record.bytes_read == operator.pass_bytes == reader.nbytes == logical


def test_float32_blocks_are_multiplied_in_float32_and_added_in_float64(tmp_path: Path) -> None:
    a = symmetric(300, "f4")
    block = np.random.default_rng(0).standard_normal((300, 4)).astype("f4")
    operator = Triangle(reader=open_source(pack(tmp_path / "a.zarr", a, 64)).reader)
    product, _ = Threads(1).run_pass(operator, block, ignore)
    assert product.dtype == np.float64
    error = np.abs(product - a.astype("f8") @ block.astype("f8")).max() / np.abs(product).max()
    assert 1e-9 < error < 1e-6


def test_only_the_upper_chunks_are_fetched_and_each_once_a_pass() -> None:
    a, store = symmetric(200), CountingStore(MemoryStore())
    z = zarr.create_array(store, shape=a.shape, dtype=a.dtype, chunks=(32, 32))
    z[...] = a
    store.fetched.clear()
    _, record = Threads(2).run_pass(Triangle(reader=whole_reader(z)), np.ones((200, 2)), ignore)
    names = {name.split("c/")[-1] for name in store.fetched}
    assert names == {f"{i}/{j}" for i in range(7) for j in range(i, 7)}
    assert set(store.fetched.values()) == {1}
    assert record.bytes_read < 0.6 * a.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_the_same_bits_with_any_number_of_threads(tmp_path: Path, dtype: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 2**16)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)
    a = symmetric(700, "f4")
    block = np.random.default_rng(1).standard_normal((700, 7)).astype(dtype)
    operator = Triangle(reader=open_source(pack(tmp_path / "a.zarr", a, 64)).reader)
    assert len(runs_of(operator)) > 10
    one = Threads(1).run_pass(operator, block, ignore)[0]
    for threads in (2, 5):
        assert (Threads(threads).run_pass(operator, block, ignore)[0] == one).all()


@pytest.mark.slow
def test_packed_and_full_stores_give_the_same_bits(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 2**14)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)
    a, block = symmetric(300), np.random.default_rng(1).standard_normal((300, 3))
    full = whole_reader(write_zarr(tmp_path / "full.zarr", a, (64, 64), compressors=None))
    coded = whole_reader(write_zarr(tmp_path / "coded.zarr", a, (64, 64)))
    packed = open_source(pack(tmp_path / "a.zarr", a, 64)).reader
    products = [Threads(2).run_pass(Triangle(reader=r), block, ignore)[0] for r in (full, coded, packed)]
    assert (products[0] == products[1]).all() and (products[0] == products[2]).all()


@pytest.mark.slow
def test_the_same_bits_in_worker_processes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 2**16)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)
    a, block = symmetric(700, "f4"), np.random.default_rng(1).standard_normal((700, 7))
    operator = Triangle(reader=open_source(pack(tmp_path / "a.zarr", a, 64)).reader)
    one = Threads(1).run_pass(operator, block, ignore)[0]
    executor = Processes(2, 1)
    try:
        assert (executor.run_pass(operator, block, ignore)[0] == one).all()
    finally:
        executor.close()


def test_a_reader_travels_without_data(tmp_path: Path) -> None:
    reader = open_source(pack(tmp_path / "a.zarr", symmetric(200), 64)).reader
    assert reader.dense is not None  # what is cached must travel too
    sent = pickle.dumps(reader)
    assert len(sent) < 10_000
    assert (pickle.loads(sent).slab(1) == symmetric(200)[64:128]).all()  # noqa: S301


def test_runs_are_large_beside_the_sum_that_each_returns(tmp_path: Path) -> None:
    operator = Triangle(reader=open_source(pack(tmp_path / "a.zarr", symmetric(100), 64)).reader)
    assert operator.run_bytes == 32 * 2**20
    z = zarr.create_array({}, shape=(10**6, 10**6), dtype="f4", chunks=(2048, 2048))
    assert Triangle(reader=TriangleReader(array=z)).run_bytes == 4096 * 10**6


# What can be wrong with a store


def damaged(tmp_path: Path, layout: str) -> tuple[Triangle, Path, str]:
    """An operator, the file of its chunk (1, 3), and the chunk's name."""
    a = symmetric(200)
    if layout.startswith("packed"):
        store = pack(tmp_path / "a.zarr", a, 64, compress=layout.endswith("compressed"))
        reader: Any = open_source(store).reader
        return Triangle(reader=reader), store / "data" / "c.6.0.0", r"c\.6\.0\.0"
    store = write_zarr(tmp_path / "a.zarr", a, (64, 64), compressors=None if layout == "full" else "auto")
    return Triangle(reader=whole_reader(store)), store / "c" / "1" / "3", "c/1/3"


ALL = ["packed", "packed compressed", "full", "full compressed"]


@pytest.mark.parametrize("layout", ALL)
def test_a_missing_chunk_is_an_error_not_zeros(tmp_path: Path, layout: str) -> None:
    operator, chunk, name = damaged(tmp_path, layout)
    chunk.unlink()
    with pytest.raises(BadInputError, match=rf"chunk {name} of .*a.zarr.* is missing.*restore it"):
        Threads(2).run_pass(operator, np.ones((200, 2)), ignore)


@pytest.mark.parametrize("layout", ALL)
def test_a_truncated_or_undecodable_chunk_is_named(tmp_path: Path, layout: str) -> None:
    operator, chunk, name = damaged(tmp_path, layout)
    chunk.write_bytes(chunk.read_bytes()[:-9])
    how = "cannot be decoded" if "compressed" in layout else "is truncated"
    with pytest.raises(BadInputError, match=rf"chunk {name} of .* {how}"):
        Threads(2).run_pass(operator, np.ones((200, 2)), ignore)


def test_a_rotten_chunk_of_a_packed_store_is_named(tmp_path: Path) -> None:
    operator, chunk, name = damaged(tmp_path, "packed")
    content = bytearray(chunk.read_bytes())
    content[9] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(BadInputError, match=rf"chunk {name} of .* is corrupt: its checksum is"):
        Threads(2).run_pass(operator, np.ones((200, 2)), ignore)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(70, 199), (130, 130)])
@pytest.mark.parametrize("codec", [None, "auto"])
def test_non_finite_values_are_found_and_their_place_named(
    tmp_path: Path, bad: float, place: tuple[int, int], codec: Any
) -> None:
    a = symmetric(200)
    a[place] = a[place[::-1]] = bad
    operator = Triangle(reader=whole_reader(write_zarr(tmp_path / "a.zarr", a, (64, 64), compressors=codec)))
    with pytest.raises(BadInputError, match=f"holds {bad} at row {place[0]}, column {place[1]}"):
        Threads(2).run_pass(operator, np.ones((200, 2)), ignore)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_overflow_is_not_blamed_on_the_data(tmp_path: Path) -> None:
    operator = Triangle(reader=open_source(pack(tmp_path / "a.zarr", np.full((10, 10), 1e308), 4)).reader)
    with pytest.raises(BadInputError, match="overflows although the data are finite"):
        Threads(1).run_pass(operator, np.full((10, 1), 10.0), ignore)


# From the question to the answer


def stored(folder: Path, a: np.ndarray, how: str) -> Path:
    if how == "plain":
        return write_zarr(folder / "plain.zarr", a, (64, 64))
    np.save(folder / "a.npy", a)
    return ingest(folder / "a.npy", folder / f"{how}.zarr", kind="symmetric", layout=how, chunks=(64, 64)).dest


@pytest.mark.slow
@pytest.mark.parametrize("how", ["packed", "full", "plain"])
def test_top_k_of_an_indefinite_matrix(tmp_path: Path, how: str) -> None:
    a = falling(200)
    solution = npmdask.top_k(stored(tmp_path, a, how), 6, kind="symmetric", threads=2)
    eigenvalues = np.linalg.eigvalsh(a)
    expected = eigenvalues[np.argsort(-np.abs(eigenvalues))][:6]
    assert solution.converged and (expected < 0).any()
    np.testing.assert_allclose(solution.values, expected, rtol=1e-10)
    np.testing.assert_allclose(a @ solution.basis, solution.basis * solution.values, atol=1e-8)
    triangle_bytes = sum(a[i : i + 64, i:].nbytes for i in range(0, 200, 64))
    extra = a.nbytes - triangle_bytes if how == "plain" else 0  # the first pass shows that it is symmetric
    assert solution.bytes_read == solution.steps * triangle_bytes + extra


@pytest.mark.slow
def test_a_store_of_a_matrix_that_is_called_symmetric_is_read_whole_once(tmp_path: Path) -> None:
    """Ingested as a matrix, nobody compared it with its mirror image: its checksums do not say that it is one."""
    a = falling(200)
    for entry, refused in ((a[190, 3], False), (a[190, 3] + 1, True)):
        a[190, 3] = entry
        np.save(tmp_path / "a.npy", a)
        store = ingest(tmp_path / "a.npy", tmp_path / "a", kind="matrix", chunks=(64, 64), overwrite=True).dest
        if refused:
            with pytest.raises(BadInputError, match="is called symmetric but is not"):
                npmdask.top_k(store, 3, kind="symmetric")
        else:
            assert npmdask.top_k(store, 3, kind="symmetric", max_steps=2).bytes_read > a.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("how", ["packed", "full", "plain", "matrix"])
@pytest.mark.parametrize("stop", [1, 2, 5])
def test_resumed_in_the_same_bits(tmp_path: Path, how: str, stop: int) -> None:
    a = falling(200)
    if how == "matrix":
        np.save(tmp_path / "a.npy", a)
        source = ingest(tmp_path / "a.npy", tmp_path / "m.zarr", kind="matrix", chunks=(64, 64)).dest
    else:
        source = stored(tmp_path, a, how)
    asked: dict[str, Any] = {"k": 6, "kind": "symmetric", "iteration_rank": 8}
    whole = npmdask.top_k(source, **asked, store=tmp_path / "whole", threads=1)
    with pytest.raises(Stop):
        npmdask.top_k(source, **asked, store=tmp_path / "cut", threads=2, observer=StopAfter(stop))
    resumed = npmdask.resume(tmp_path / "cut", threads=2)
    same_bytes(tmp_path / "whole", tmp_path / "cut")
    assert resumed.data_passes == whole.data_passes - stop


@pytest.mark.slow
def test_a_kill_between_the_survey_and_the_first_commit_changes_no_bit(tmp_path: Path) -> None:
    source = stored(tmp_path, falling(200), "plain")
    asked: dict[str, Any] = {"k": 6, "kind": "symmetric"}
    npmdask.top_k(source, **asked, store=tmp_path / "whole")
    with pytest.raises(Stop):
        npmdask.top_k(source, **asked, store=tmp_path / "cut", observer=StopAfter(1))
    assert (tmp_path / "cut" / "survey").is_dir()
    for step in (tmp_path / "cut" / "steps").iterdir():
        for file in step.iterdir():
            file.unlink()
        step.rmdir()
    resumed = npmdask.resume(tmp_path / "cut")
    assert resumed.data_passes == resumed.steps, "the first step is taken again, whole"
    same_bytes(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
def test_chunks_that_are_not_square_are_read_whole(tmp_path: Path) -> None:
    a = falling(200)
    path = write_zarr(tmp_path / "a.zarr", a, (64, 50))
    problem = make_problem(open_source(path, "symmetric"), Request(target_rank=3))
    assert isinstance(problem.operator(), Symmetric)
    solution = npmdask.top_k(path, 3, kind="symmetric")
    assert solution.bytes_read == solution.steps * a.nbytes


@pytest.mark.slow
def test_a_packed_store_stays_within_its_memory_plan(tmp_path: Path) -> None:
    source = stored(tmp_path, falling(200), "packed")
    solution = npmdask.top_k(source, 6, memory="6GiB", threads=2)
    assert solution.converged and solution.peak_rss_bytes < 6 * 2**30


@pytest.mark.slow
def test_more_components_of_a_packed_store(tmp_path: Path) -> None:
    a = falling(200)
    npmdask.top_k(stored(tmp_path, a, "packed"), 3, store=tmp_path / "run")
    more = npmdask.deflate(tmp_path / "run", 2, store=tmp_path / "more")
    eigenvalues = np.linalg.eigvalsh(a)
    np.testing.assert_allclose(more.values, eigenvalues[np.argsort(-np.abs(eigenvalues))][:5], rtol=1e-9)
