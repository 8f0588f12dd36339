"""Images of the records of a batch in one pass: those of the formula, whatever the layout, the bounds, who reads."""

from __future__ import annotations

import subprocess
import sys
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import npmdask.core.operators._protocol as protocol
from npmdask.cluster.workers import Processes
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import PassCheckpoint, compute_node, root, runs_of, tasks_of
from npmdask.core.execution.reduction import pack as pack_parts
from npmdask.core.execution.reduction import unpack as unpack_parts
from npmdask.core.numerics.subspaces import present
from npmdask.core.operators.view import View
from npmdask.core.storage.source import open_source
from npmdask.dp_pca.private_mean import ClippedMean, DistanceRange, PaperMean, PaperRange, PlainMean
from npmdask.dp_pca.record_images import RecordImages, images_of_matrices, images_of_rows, pack_query, unpack_query
from npmdask.errors import BadInputError
from npmdask.missing.gaps import with_missing
from tests.conftest import often, write_zarr

OPTIONS: Any = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}
HADAMARD = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]).T / 2  # products with it are exact


def ignore(record: object) -> None:
    """Nobody watches."""


def mechanisms(count: int, radius: float = 1000.0) -> dict[str, Any]:
    return {
        "distances": DistanceRange(relation="record_replace", largest=2 * radius, multiplier=1.0),
        "clipped": ClippedMean(relation="record_zero_out", radius=radius, count=count, multiplier=1.0),
        "plain": PlainMean(count=count),
        "paper range": PaperRange(epsilon=1.0, delta=1e-3, fail_prob=0.1),
        "paper mean": PaperMean(epsilon=1.0, delta=1e-3, fail_prob=0.1, spread=1.0, count=count),
    }


def stored(x: np.ndarray, chunks: tuple[int, int], **options: Any) -> Any:
    chunks = (min(chunks[0], x.shape[0]), min(chunks[1], x.shape[1]))
    options = {"config": {"write_empty_chunks": True}} | options
    z = zarr.create_array(options.pop("store", {}), shape=x.shape, dtype=x.dtype, chunks=chunks, **options)
    z[...] = x
    return open_source(z).reader


def summary(operator: RecordImages, block: np.ndarray, executor: Any = None, keeper: Any = None) -> np.ndarray:
    return (executor or Threads(2)).run_pass(operator, operator.prepare(block), ignore, keeper)[0]


def wanted(records: np.ndarray, rows: range, block: np.ndarray, mechanism: Any) -> np.ndarray:
    """The summary of the whole batch at once, in memory; ``records``: n x d, or n x d x d."""
    form = images_of_rows if records.ndim == 2 else images_of_matrices
    w, centre, found = unpack_query(block)
    with np.errstate(invalid="ignore"):
        return mechanism.summary(form(records[rows.start : rows.stop], w, found), centre)


def require_same(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def exact_block(d: int, j: int, rng: np.random.Generator) -> np.ndarray:
    found = np.zeros((d, j))
    found[:4] = HADAMARD[:, :j]
    return pack_query(rng.integers(-3, 4, d) / 4, rng.integers(-9, 9, d) / 2, found)


@pytest.mark.slow
@settings(**OPTIONS, max_examples=80)
@given(
    n=st.integers(1, 60),
    d=st.integers(4, 9),
    j=st.integers(0, 4),
    chunks=st.tuples(st.integers(1, 30), st.integers(1, 90)),
    bounds=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    dtype=st.sampled_from(["f4", "f8", "u1", "i2", ">f4"]),
    compressed=st.booleans(),
    matrices=st.booleans(),
    name=st.sampled_from(["distances", "clipped", "plain", "paper range", "paper mean"]),
    strip=st.sampled_from([1, 300, 2**20]),
    seed=st.integers(0, 10**6),
)
def test_a_pass_gives_the_summary_of_the_batch(
    n: int,
    d: int,
    j: int,
    chunks: tuple[int, int],
    bounds: tuple[float, float],
    dtype: str,
    compressed: bool,
    matrices: bool,
    name: str,
    strip: int,
    seed: int,
) -> None:
    """To the last bit: every product of these numbers is exact."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 9, (n, d, d) if matrices else (n, d)).astype(dtype)
    block, mechanism = exact_block(d, j, rng), mechanisms(n, 40.0)[name]
    start = min(int(bounds[0] * n), n - 1)
    rows = range(start, start + 1 + int(bounds[1] * (n - start - 1)))
    reader = stored(x.reshape(n, -1), chunks, compressors="auto" if compressed else None)
    operator = RecordImages(reader=reader, rows=rows, mechanism=mechanism, side=d if matrices else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "RUN_BYTES", 200)
        patch.setattr("npmdask.dp_pca.record_images.IMAGE_STRIP_BYTES", strip)
        found = summary(operator, block)
    require_same(found, wanted(x, rows, block, mechanism))


def gaussian(n: int, d: int, j: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, d))
    return x, pack_query(rng.standard_normal(d), rng.standard_normal(d), np.linalg.qr(rng.standard_normal((d, j)))[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["distances", "clipped"])
def test_releases_do_not_see_the_layout(name: str, tmp_path: Path) -> None:
    """Last bits of images depend on the strips; the grid and the bins of these figures do not show it."""
    x, block = gaussian(4000, 33, 3)
    mechanism, rows = mechanisms(4000, 20.0)[name], range(11, 3987)
    expected = wanted(x, rows, block, mechanism)
    assert expected.any()
    for i, chunks in enumerate([(4000, 33), (701, 33), (64, 33), (250, 10), (4000, 1)]):
        reader = stored(x, chunks, store=tmp_path / str(i), compressors=None)
        require_same(summary(RecordImages(reader=reader, rows=rows, mechanism=mechanism), block), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clipped", "plain", "paper range"])
def test_any_number_of_threads_and_any_known_parts_give_the_same_bits(name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 5000)
    x, block = gaussian(2000, 20, 2)
    operator = RecordImages(reader=stored(x, (37, 20)), rows=range(100, 1900), mechanism=mechanisms(1800)[name])
    runs, rng = runs_of(operator), np.random.default_rng(0)
    assert len(runs) > 12
    expected = summary(operator, block, Threads(1))
    for threads in (2, 5):
        require_same(summary(operator, block, Threads(threads)), expected)
    for level in (0, 1, 3):
        nodes = tasks_of(root(len(runs)), len(runs), [], level)
        done = {node: compute_node(operator, runs, node, block) for node in nodes if rng.random() < 0.6}
        require_same(
            summary(operator, block, keeper=PassCheckpoint(unpack_parts(operator, *pack_parts(operator, done)))),
            expected,
        )


@pytest.mark.slow
def test_worker_processes_give_the_same_bits(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 20_000)
    x, block = gaussian(3000, 40, 2)
    reader: Any = open_source(write_zarr(tmp_path / "x", x, (100, 40), compressors=None)).reader
    executor = Processes(2, 1)
    try:
        for mechanism in mechanisms(2900).values():
            operator = RecordImages(reader=reader, rows=range(50, 2950), mechanism=mechanism)
            require_same(summary(operator, block, executor), summary(operator, block, Threads(1)))
    finally:
        executor.close()


@pytest.mark.slow
@pytest.mark.parametrize("matrices", [False, True])
def test_a_record_that_is_not_finite_counts_as_zeros(matrices: bool) -> None:
    """It is not there, its neighbours are, and nothing is said of it."""
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (50, 5, 5) if matrices else (50, 5)).astype(np.float64)
    bad = x.copy()
    bad[3, 1], bad[17], bad[30, 4], bad[44] = np.nan, np.inf, -np.inf, 1e300
    x[[3, 17, 30, 44]] = 0.0
    block, rows, side = exact_block(5, 2, rng), range(2, 49), 5 if matrices else None
    for name, mechanism in mechanisms(47, 40.0).items():
        if name != "plain":
            operator = RecordImages(
                reader=stored(bad.reshape(50, -1), (7, 3)), rows=rows, mechanism=mechanism, side=side
            )
            expected = wanted(bad, rows, block, mechanism)
            require_same(summary(operator, block), expected)
            if not matrices:  # of a finite matrix with large entries the image is finite
                require_same(expected, wanted(x, rows, block, mechanism))


def test_images_are_those_of_the_whole_batch_in_order() -> None:
    x, block = gaussian(200, 6, 2)
    mechanism = mechanisms(120)["paper mean"]
    operator = RecordImages(reader=stored(x, (32, 6)), rows=range(50, 170), mechanism=mechanism)
    w, _, found = unpack_query(block)
    images = present(images_of_rows(x[50:170], w, found))[0]
    np.testing.assert_allclose(summary(operator, block), images, rtol=0, atol=1e-13)


def test_only_the_rows_of_chunks_of_the_batch_are_read(monkeypatch: Any) -> None:
    """Whole, as their checksums are; the cost that was planned is the cost."""
    monkeypatch.setattr(protocol, "RUN_BYTES", 300)
    x, block = gaussian(95, 10, 1)
    reader = stored(x, (10, 4))
    for rows, slabs in ((range(20, 30), {2}), (range(19, 31), {1, 2, 3}), (range(88, 95), {8, 9}), (range(1), {0})):
        operator = RecordImages(reader=reader, rows=rows, mechanism=mechanisms(len(rows))["clipped"])
        told: list[Any] = []
        _, record = Threads(1).run_pass(operator, block, told.append)
        assert record.bytes_read == operator.pass_bytes == sum(x[10 * s : 10 * s + 10].nbytes for s in slabs)
        assert record.chunks == operator.pass_chunks == 3 * len(slabs)
        assert {slab for slab, _ in record.checksums} == slabs
        assert len(told) == len(runs_of(operator)) == len(slabs)


def test_a_corrupt_chunk_is_found_although_its_bad_row_is_in_no_batch(tmp_path: Path) -> None:
    x, block = gaussian(40, 5, 1)
    source = open_source(write_zarr(tmp_path / "x", x, (20, 5), compressors=None))
    operator = RecordImages(reader=source.reader, rows=range(3, 9), mechanism=mechanisms(6)["clipped"])  # type: ignore[arg-type]
    checksums = np.zeros((2, 1), np.uint32)
    for at, crc in Threads(1).run_pass(operator, block, ignore)[1].checksums.items():
        checksums[at] = crc
    held = replace(operator, reader=replace(operator.reader, checksums=checksums))
    assert summary(held, block).any()
    zarr.open_array(tmp_path / "x")[15] = 0.0
    with pytest.raises(BadInputError, match="corrupt"):
        summary(held, block)


def task_peak(operator: RecordImages, block: np.ndarray) -> int:
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
@pytest.mark.parametrize("name", ["distances", "clipped", "plain", "paper mean"])
@pytest.mark.parametrize(
    ("shape", "chunks", "side", "dtype"),
    [
        ((20_000, 100), (5000, 100), None, "f4"),
        ((400, 10_000), (200, 10_000), None, "f4"),
        ((400, 10_000), (200, 3000), None, "f8"),
        ((1000, 2500), (200, 2500), 50, "f4"),
        ((8, 250_000), (4, 250_000), 500, "f8"),
    ],
)
def test_a_task_stays_within_what_it_says(
    tmp_path: Path, name: str, shape: tuple[int, int], chunks: tuple[int, int], side: int | None, dtype: str
) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) * 30).astype(dtype)  # images are far longer than the radius
    reader: Any = open_source(write_zarr(tmp_path / "x", x, chunks, compressors=None)).reader
    operator = RecordImages(
        reader=reader, rows=range(1, shape[0]), mechanism=mechanisms(shape[0], 1.0)[name], side=side
    )
    d = operator.block_rows
    block = pack_query(np.ones(d) / d, np.ones(d), np.eye(d, 3))
    said, peak = operator.task_bytes(5, runs_of(operator)), task_peak(operator, block)
    print(f"{name} {shape}: peak {peak / 2**20:.1f}, said {said / 2**20:.1f} MiB")
    assert said / 4 < peak < said < 2**26 + (2 * x.size * 8 if name == "paper mean" and not side else 0)


def test_what_waits_is_two_sums_a_level_or_the_whole_batch() -> None:
    reader = stored(np.ones((100, 7), np.float32), (10, 7))
    runs = [range(i, i + 1) for i in range(8)]
    for name, each in {"clipped": 7, "plain": 7, "distances": 80}.items():
        operator = RecordImages(reader=reader, rows=range(80), mechanism=mechanisms(80)[name])
        assert operator.pending_bytes(3, runs) == 2 * 3 * each * 8
    whole = RecordImages(reader=reader, rows=range(80), mechanism=mechanisms(80)["paper mean"])
    assert whole.pending_bytes(3, runs) == 3 * 80 * 7 * 8
    assert replace(whole, mechanism=None).pending_bytes(3, runs) == 2 * 3 * 7 * 8


PEAK = """
import sys, numpy as np
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.memory import high_water, tree_rss
from npmdask.core.execution.memory import plan_memory
from npmdask.dp_pca.record_images import RecordImages
from npmdask.dp_pca.record_images import pack_query
from npmdask.core.operators.view import View
from npmdask.missing.gaps import with_missing
from npmdask.core.storage.source import open_source
from npmdask.dp_pca.private_mean import ClippedMean, PaperMean
path, name, side = sys.argv[1], sys.argv[2], int(sys.argv[3]) or None
reader = open_source(path).reader
n = reader.shape[0]
if name == "clipped":
    mechanism = ClippedMean(relation="record_replace", radius=1.0, count=n, multiplier=1.0)
else:
    mechanism = PaperMean(epsilon=1.0, delta=1e-3, fail_prob=0.1, spread=1.0, count=n)
operator = RecordImages(reader=reader, rows=range(n), mechanism=mechanism, side=side)
d = operator.block_rows
block = pack_query(np.ones(d), np.ones(d), np.eye(d, 5))
plan = plan_memory(operator, block.shape[1], 3, limit=None, base=tree_rss(), threads=2, workers=0)
Threads(2).run_pass(operator, block, lambda record: None)
print(high_water(), plan.predicted_peak, plan.base)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "chunks", "side", "name"),
    often(
        [
            ((20_000, 10_000), (1000, 10_000), 0, "clipped"),
            ((20_000, 10_000), (1000, 3000), 0, "clipped"),
            ((200, 1_000_000), (4, 1_000_000), 1000, "clipped"),
            ((300_000, 100), (20_000, 100), 0, "paper"),
        ],
        3,
    ),
)
def test_a_pass_stays_within_its_plan(
    tmp_path: Path, shape: tuple[int, int], chunks: tuple[int, int], side: int, name: str
) -> None:
    z = zarr.create_array(tmp_path / "x.zarr", shape=shape, dtype="f4", chunks=chunks, compressors=None)
    for start in range(0, shape[0], chunks[0]):
        rows = min(chunks[0], shape[0] - start)
        z[start : start + rows] = np.random.default_rng(start).standard_normal((rows, shape[1]), np.float32)
    command = [sys.executable, "-c", PEAK, str(tmp_path / "x.zarr"), name, str(side)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, predicted, base = (int(word) / 2**20 for word in done.stdout.split())
    print(f"{name} {shape}: peak {peak:.0f}, predicted {predicted:.0f}, of it {base:.0f} before")
    assert peak < predicted
    assert name == "paper" or predicted < 512


@pytest.mark.parametrize("rows", [range(0), range(5, 5), range(-1, 3), range(5, 11), range(0, 8, 2)])
def test_a_batch_that_is_none_is_refused(rows: range) -> None:
    with pytest.raises(BadInputError, match="a batch is a range of the 10 records"):
        RecordImages(reader=stored(np.ones((10, 4)), (5, 4)), rows=rows)


def test_rows_that_are_no_matrices_are_refused_and_so_is_a_pass_for_nothing() -> None:
    reader = stored(np.ones((10, 12)), (5, 12))
    with pytest.raises(BadInputError, match="no 3 x 3 matrices"):
        RecordImages(reader=reader, rows=range(10), side=3)
    with pytest.raises(BadInputError, match="give the mechanism"):
        summary(RecordImages(reader=reader, rows=range(10)), np.zeros((12, 2)))


def test_images_are_of_records_whose_gaps_are_filled_and_whose_columns_are_weighted() -> None:
    """The same bits as of the records that a public rule makes of them: what is proved of those holds."""
    rng = np.random.default_rng(0)
    x, fill, weights = rng.standard_normal((61, 12)), np.linspace(-3, 3, 12), np.exp(rng.uniform(-3, 3, 12))
    x[rng.random(x.shape) < 0.2] = np.nan
    made = np.where(np.isnan(x), fill, x) * np.sqrt(weights)
    block = pack_query(np.full(12, 12**-0.5), np.zeros(12), np.zeros((12, 0)))
    reader: Any = with_missing(open_source(x, "samples"), "fill", fill).reader
    for mechanism in mechanisms(61, 5.0).values():
        ruled = RecordImages(reader=reader, rows=range(61), mechanism=mechanism, view=View(column_weight=weights))
        plain = RecordImages(reader=stored(made, (61, 12)), rows=range(61), mechanism=mechanism)
        np.testing.assert_array_equal(summary(ruled, block), summary(plain, block))
    with pytest.raises(BadInputError, match="weights of their columns"):
        RecordImages(reader=reader, rows=range(61), view=View(row_weight=np.ones(61)))
