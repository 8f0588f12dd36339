"""Chunks that are fetched before they are read: the same bits, within the bound, whatever the server does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import scipy.sparse as sp
import zarr

import npmdask
from npmdask.api import solve
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.memory import plan_memory, tree_rss
from npmdask.core.execution.threads import Threads
from npmdask.core.operators import Gram, Operator, SparseGram
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.solution import Step
from npmdask.core.storage import chunk_access
from npmdask.core.storage.readers import dense
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, LostError
from npmdask.manage.kinds import network_text
from npmdask.planning.plan import plan_lines, plan_run
from npmdask.remote import object_url, prefetch
from npmdask.remote.prefetch import Link, Piece, Remote, fetched, link_of
from tests.conftest import often, same_bytes
from tests.core.operators.test_operators import write_csr
from tests.machines import ROOT
from tests.remote.conftest import FaultyBucket

CHUNKS, ROWS, COLUMNS = 48, 100, 80
CHUNK = ROWS * COLUMNS * 8  # bytes
URL = "s3://bucket/x.zarr"


@pytest.fixture(autouse=True)
def _quick_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is silent, too: how long that may last is shortened only where a server hangs on purpose."""
    prefetch._prefetcher().peak = 0
    monkeypatch.setattr(prefetch, "SILENCE", 120.0)
    monkeypatch.setattr(prefetch, "BACKOFF", 0.01)
    monkeypatch.setattr(object_url, "RETRIES", {**object_url.RETRIES, "max_retries": 3})


@pytest.fixture
def store(faulty: FaultyBucket) -> FaultyBucket:
    x = np.random.default_rng(0).standard_normal((CHUNKS * ROWS, COLUMNS)) * 0.8 ** np.arange(COLUMNS)
    zarr.create_array(faulty.folder / "x.zarr", data=x, chunks=(ROWS, COLUMNS), compressors=None)
    return faulty


class Fine(Gram):
    """A run for each chunk, so that threads and tree have much to do."""

    run_bytes = 1


def reader_of(source: Any) -> Any:
    return open_source(source, "samples").reader


def passed(source: Any, in_flight: int, threads: int = 2) -> tuple[np.ndarray, ReadStats]:
    """The product of one pass over ``source``, with so many bytes in flight."""
    operator: Operator = Fine(reader=reader_of(source))
    executor = Threads(threads, in_flight)
    try:
        return executor.run_pass(operator, np.eye(COLUMNS, 5), lambda record: None)
    finally:
        executor.close()


def peak() -> int:
    """The most bytes that counted against the bound since the last call."""
    mine = prefetch._prefetcher()
    found, mine.peak = mine.peak, 0
    assert not mine.held and not mine._objects and not mine._feeds and not mine.bound, "something is left"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_many_are_in_flight_within_the_bound(store: FaultyBucket, threads: int) -> None:
    """Mutants: no bound; a bound that forgets what has arrived; objects that are fetched twice; none ahead."""
    local, _ = passed(store.folder / "x.zarr", 0)
    peak(), store.seen()
    alone, record = passed(URL, 0, threads)
    assert (alone == local).all() and record.requests == CHUNKS and record.fetched == CHUNKS * CHUNK
    one_by_one = max(flying for path, _, flying in store.seen() if "/c/" in path)
    assert one_by_one <= threads * CHUNK and peak() == 0
    bound = 6 * CHUNK + CHUNK // 2
    store.together("x.zarr/c/", 4 * CHUNK)
    ahead, record = passed(URL, bound, threads)
    assert (ahead == local).all(), "the order of arrival must not matter"
    assert record.requests == CHUNKS and record.fetched == CHUNKS * CHUNK
    chunks = [(path, flying) for path, _, flying in store.seen() if "/c/" in path]
    assert len({path for path, _ in chunks}) == len(chunks) == CHUNKS
    assert 4 * CHUNK <= max(flying for _, flying in chunks) <= bound + threads * CHUNK
    assert 5 * CHUNK <= peak() <= bound
    for small in (CHUNK // 2, CHUNK, 2 * CHUNK):  # threads come to objects before their turn
        few, record = passed(URL, small, threads)
        assert (few == local).all() and record.requests == CHUNKS
        requested = [path for path, _, _ in store.seen() if "/c/" in path]
        assert len(requested) == CHUNKS and peak() <= small


@pytest.mark.slow
def test_a_pass_that_fails_leaves_nothing_to_the_next(store: FaultyBucket) -> None:
    """Mutant: what was asked for and not taken is kept, and the next pass reads what the object was before."""
    operator: Operator = Fine(reader=reader_of(URL))
    executor, ignore = Threads(1, 8 * CHUNK), lambda record: None
    (store.folder / "x.zarr/c/20/0").rename(store.folder / "kept")
    with pytest.raises(BadInputError, match="missing"):
        executor.run_pass(operator, np.eye(COLUMNS, 5), ignore)
    mine = prefetch._prefetcher()
    assert mine.bound and not mine._objects and not mine.held and not mine._feeds
    (store.folder / "kept").rename(store.folder / "x.zarr/c/20/0")
    store.seen()
    found, record = executor.run_pass(operator, np.eye(COLUMNS, 5), ignore)
    executor.close()
    assert (found == passed(store.folder / "x.zarr", 0)[0]).all()
    asked = {path for path, _, _ in store.seen() if "/c/" in path}  # one of the pass before may come late
    assert record.requests == CHUNKS == len(asked)


@pytest.mark.slow
def test_sparse_entries_and_compressed_chunks_of_many_sizes(store: FaultyBucket) -> None:
    """Kills: a bound of decoded sizes only, an object larger than expected that waits for room for ever."""
    matrix = sp.random(3000, 60, density=0.3, format="csr", rng=np.random.default_rng(0))
    write_csr(store.folder / "s.zarr", matrix, 2000)
    found, expected = (
        Threads(2, bound).run_pass(
            SparseGram(reader=open_source(source).reader),  # type: ignore[arg-type]
            np.eye(60, 5),
            lambda record: None,
        )[0]
        for source, bound in (("s3://bucket/s.zarr", 10**5), (store.folder / "s.zarr", 0))
    )
    assert (found == expected).all()
    for name in [name for name in prefetch._prefetcher()._grants if name.startswith("pass ")]:
        prefetch.grant(name, 0)
    peak()
    rng = np.random.default_rng(1)
    x = np.zeros((CHUNKS * ROWS, COLUMNS))
    for i in range(CHUNKS):  # the later, the larger
        x[i * ROWS :][:ROWS, : 1 + i * COLUMNS // CHUNKS] = rng.standard_normal((ROWS, 1 + i * COLUMNS // CHUNKS))
    array = zarr.create_array(
        store.folder / "z.zarr",
        shape=x.shape,
        chunks=(ROWS, COLUMNS),
        dtype=x.dtype,
        compressors=zarr.codecs.ZstdCodec(),
    )
    array[...] = x
    bound = 3 * CHUNK
    assert (passed("s3://bucket/z.zarr", bound)[0] == passed(store.folder / "z.zarr", 0)[0]).all()
    assert 0 < peak() <= bound


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "refuse", "truncate"])
def test_what_fails_and_comes_after_all_changes_no_bit(
    store: FaultyBucket, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: no second try."""
    monkeypatch.setattr(prefetch, "SILENCE", 4.0 if fault == "hang" else 120.0)
    times = 1 if fault == "hang" else 2
    local, _ = passed(store.folder / "x.zarr", 0)
    store.faults((r"x.zarr/c/(3|17|40)/0", fault, times))
    found, record = passed(URL, 8 * CHUNK)
    assert (found == local).all()
    assert record.requests >= CHUNKS + (3 if fault == "hang" else 0)  # obstore sees the others, and goes on by itself
    peak()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("hang", r"no answer for 3 s, in 4 tries"),
        ("refuse", r"503"),
        ("truncate", r"broke off after \d+ of 64000 bytes, in 4 tries"),
    ],
)
def test_what_always_fails_is_named_and_stalls_nothing_else(
    store: FaultyBucket, fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "SILENCE", 3.0 if fault == "hang" else 120.0)
    store.faults((r"x.zarr/c/20/0", fault, -1))
    with pytest.raises(LostError, match=rf"chunk c/20/0 of s3://bucket/x.zarr cannot be fetched \(.*{said}"):
        passed(URL, 8 * CHUNK, threads=1)
    others = [path for path, _, _ in store.seen() if "/c/" in path and "c/20/0" not in path]
    assert len(others) >= 8, "others were fetched meanwhile"
    peak()
    store.faults()
    assert (passed(URL, 8 * CHUNK)[0] == passed(store.folder / "x.zarr", 0)[0]).all(), "nothing of it is left"


@pytest.mark.slow
def test_a_storm_of_refusals_passes(store: FaultyBucket) -> None:
    store.faults((r"/c/", "refuse", 2))
    assert (passed(URL, 8 * CHUNK)[0] == passed(store.folder / "x.zarr", 0)[0]).all()


@pytest.mark.slow
def test_a_missing_and_a_short_chunk_are_said_as_ever(store: FaultyBucket) -> None:
    (store.folder / "x.zarr/c/30/0").write_bytes(b"short")
    with pytest.raises(BadInputError, match=r"chunk c/30/0 of s3://bucket/x.zarr is truncated: it has 5 bytes, fewer"):
        passed(URL, 8 * CHUNK)
    (store.folder / "x.zarr/c/30/0").write_bytes(bytes(9 * CHUNK + 2**20))
    with pytest.raises(BadInputError, match=r"chunk c/30/0 .*far more than a chunk that decodes to 64000"):
        passed(URL, 8 * CHUNK)
    (store.folder / "x.zarr/c/30/0").unlink()
    with pytest.raises(BadInputError, match=r"chunk c/30/0 of s3://bucket/x.zarr is missing"):
        passed(URL, 8 * CHUNK)
    peak()


@pytest.mark.slow
def test_a_large_object_is_read_in_pieces_of_one_version(store: FaultyBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: pieces that are asked for without the version of the first one are of two objects."""
    monkeypatch.setattr(prefetch, "PIECE", 10_000)
    monkeypatch.setattr(prefetch, "LARGE", 20_000)
    local, _ = passed(store.folder / "x.zarr", 0)
    found, record = passed(URL, 4 * CHUNK)
    assert (found == local).all() and record.requests == CHUNKS * -(-CHUNK // 10_000)
    store.faults((r"x.zarr/c/(3|17)/0", "other range", -1))
    with pytest.raises(LostError, match=r"chunk c/(3|17)/0 of s3://bucket/x.zarr cannot be fetched"):
        passed(URL, 4 * CHUNK)
    store.faults((r"x.zarr/c/(3|17)/0", "whole", -1))
    assert (passed(URL, 4 * CHUNK)[0] == local).all()
    store.seen()
    store.faults((r"x.zarr/c/5/0", "replace", 1))
    array = reader_of(URL).array
    (data,) = fetched(array, [Piece("c/5/0", CHUNK)])
    assert data.tobytes() == (store.folder / "x.zarr/c/5/0").read_bytes()
    assert [span for _, span, _ in store.seen()].count("bytes=0-9999") == 2, "it began again"
    store.faults((r"x.zarr/c/5/0", "replace", -1))
    with pytest.raises(prefetch.NoAnswerError, match="replaced while it was read"):
        list(fetched(array, [Piece("c/5/0", CHUNK)]))


@pytest.mark.slow
def test_ranges_come_in_the_order_of_the_asking(store: FaultyBucket) -> None:
    """Also of a server that sends the whole object, whatever range is asked for."""
    array = reader_of(URL).array
    spans = [(f"c/{i % 7}/0", (i * 100, i * 100 + 50 + i)) for i in range(40)]
    for fault in ("", "whole"):
        store.faults(*([("/c/", "whole", -1)] if fault else []))
        with closing(Threads(1, 3000)):
            parts = list(fetched(array, [Piece(name, span[1] - span[0], span) for name, span in spans]))
        for (name, (first, stop)), part in zip(spans, parts, strict=True):
            assert part.tobytes() == (store.folder / "x.zarr" / name).read_bytes()[first:stop]
        assert 0 < peak() <= 3000
        with pytest.raises(ValueError, match=r"it is truncated: it has 64000 bytes"):
            list(fetched(array, [Piece("c/0/0", 10, (CHUNK - 5, CHUNK + 5))]))


INNER = 10  # rows


@pytest.fixture
def sharded(faulty: FaultyBucket, monkeypatch: pytest.MonkeyPatch) -> FaultyBucket:
    """The same numbers, in twelve shards of 40 inner chunks."""
    x = np.random.default_rng(0).standard_normal((CHUNKS * ROWS, COLUMNS)) * 0.8 ** np.arange(COLUMNS)
    zarr.create_array(
        faulty.folder / "x.zarr", data=x, chunks=(INNER, COLUMNS), shards=(4 * ROWS, COLUMNS), compressors=None
    )
    monkeypatch.setattr(chunk_access, "PIECE", CHUNK)
    monkeypatch.setattr(dense, "PIECE", CHUNK)
    return faulty


@pytest.mark.slow
def test_a_shard_is_fetched_in_part(sharded: FaultyBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: bands that are asked for again by the thread that reads them, shards as a whole, none ahead."""
    local, _ = passed(sharded.folder / "x.zarr", 0)
    shards, index = CHUNKS // 4, 16 * 4 * ROWS // INNER + 4
    for bound in (0, CHUNK, 3 * CHUNK, 9 * CHUNK):
        sharded.seen(), peak()
        found, record = passed(URL, bound, 1)
        assert (found == local).all() and record.requests == 5 * shards
        assert record.fetched == CHUNKS * CHUNK + shards * index
        spans = [(path, span) for path, span, _ in sharded.seen() if "/c/" in path]
        assert len(set(spans)) == len(spans) == 5 * shards
        assert peak() <= bound
    reader = reader_of(URL)
    monkeypatch.setattr(dense, "TILE_BYTES", 64 * COLUMNS * 8)
    monkeypatch.setattr(chunk_access, "GAP_FAR", 0)
    assert reader.buffer_bytes < 4 * CHUNK and reader.remote.nbytes == CHUNK
    low, _ = passed(sharded.folder / "x.zarr", 0)
    for bound, least, most in ((0, 1, 2), (9 * CHUNK, 4, 10)):  # chunks under way at once
        sharded.seen()
        sharded.together("x.zarr/c/", least * CHUNK)
        assert (passed(URL, bound, 1)[0] == low).all()
        assert least * CHUNK <= max(flying for path, _, flying in sharded.seen() if "/c/" in path) <= most * CHUNK


@pytest.fixture
def entries(faulty: FaultyBucket) -> FaultyBucket:
    """A sparse matrix of 100 chunks of 400 entries; 7 of them in a shard of ``data``, 10 in one of ``indices``."""
    matrix = sp.random(2000, 40, 0.5, "csr", rng=np.random.default_rng(0))
    group = zarr.create_group(faulty.folder / "s.zarr")
    group.attrs.update({"encoding-type": "csr_matrix", "shape": matrix.shape})
    for name, each in (("data", 7), ("indices", 10), ("indptr", 1)):
        values = getattr(matrix, name)
        group.create_array(name, data=values, chunks=(400,), shards=(400 * each,), compressors=None)
    return faulty


class FineEntries(SparseGram):
    """Runs of seven chunks or less, most of which begin and end inside of a shard."""

    run_bytes = 7 * 400 * 12


def entries_passed(source: Any, bound: int, threads: int) -> tuple[np.ndarray, ReadStats]:
    reader: Any = open_source(source).reader
    executor = Threads(threads, bound)
    try:
        return executor.run_pass(FineEntries(reader=reader), np.eye(40, 5), lambda record: None)
    finally:
        executor.close()


@pytest.mark.slow
@pytest.mark.parametrize("threads", often([1, 2], 1))
def test_entries_in_shards_are_fetched_chunk_by_chunk(entries: FaultyBucket, threads: int) -> None:
    """Mutants: through zarr (an index for each chunk), whole shards for each run, chunks fetched twice, none ahead."""
    local, _ = entries_passed(entries.folder / "s.zarr", 0, threads)
    reader: Any = open_source("s3://bucket/s.zarr").reader
    assert all(way.way == "decoded" and way.by_rows for way in reader.access.values()) and reader.remote.nbytes == 3200
    shards = [f"s.zarr/data/c/{i}" for i in range(15)] + [f"s.zarr/indices/c/{i}" for i in range(10)]
    for bound, most in ((0, None), (10**4, None), (10**5, len(shards)), (10**6, len(shards))):
        entries.seen(), peak()
        if bound == 10**5:
            entries.together("/(data|indices)/c/", 10 * 3200 + 1)
        found, _ = entries_passed("s3://bucket/s.zarr", bound, threads)
        assert (found == local).all() and peak() <= bound
        seen = [
            (path, span, flying) for path, span, flying in entries.seen() if "/data/c/" in path or "/indices/c/" in path
        ]
        indices = [path for path, span, _ in seen if span in (f"bytes=-{16 * 7 + 4}", f"bytes=-{16 * 10 + 4}")]
        chunks = [(path, span) for path, span, _ in seen if not span.startswith("bytes=-")]
        assert len(chunks) == len(set(chunks)) == 200 and len(indices) + len(chunks) == len(seen)
        assert set(indices) == set(shards) and (most is None or len(indices) == most), bound
        if bound == 10**5:
            assert max(flying for *_, flying in seen) > 10 * 3200


@pytest.mark.slow
@pytest.mark.parametrize("fault", often(["whole", "truncate", "refuse"], 0))
def test_entries_in_shards_and_a_server_that_fails(entries: FaultyBucket, fault: str) -> None:
    local, _ = entries_passed(entries.folder / "s.zarr", 0, 2)
    entries.faults((r"s.zarr/data/c/(3|7)", fault, -1 if fault == "whole" else 1))
    for bound in (0, 10**5):
        assert (entries_passed("s3://bucket/s.zarr", bound, 2)[0] == local).all()
    assert peak() <= 10**5


@pytest.mark.slow
def test_entries_of_a_shard_that_is_replaced_are_refused(entries: FaultyBucket) -> None:
    """Mutant: its chunks are taken of whatever lies there now."""
    entries.faults((r"s.zarr/data/c/7", "replace", 1))
    with pytest.raises(LostError, match=r"chunk c/7 of s3://bucket/s.zarr/data cannot be fetched \(it was replaced"):
        entries_passed("s3://bucket/s.zarr", 10**5, 1)
    peak()


@pytest.mark.slow
def test_an_index_that_fails_fails_for_each_thread_that_waits_and_is_fetched_again(entries: FaultyBucket) -> None:
    """In one pass. Mutant: an index that failed stays, and who asks for it later fails by it."""
    data: Any = open_source("s3://bucket/s.zarr").reader.arrays["data"]
    index = Piece("c/0", 3200, (-(16 * 7 + 4), 0), None, lambda came: [])
    entries.faults((r"s.zarr/data/c/0", "refuse", -1))
    with closing(Threads(1, 10**5)), prefetch.following(iter(()), lambda unit: None), ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(prefetch.take, data, index) for _ in range(2)]
        for each in waiting:
            with pytest.raises(obstore.exceptions.GenericError, match=r"(?s)data/c/0.*SlowDown"):
                each.result()
        entries.faults()
        assert len(prefetch.take(data, index)) == 16 * 7 + 4
    peak()


@pytest.mark.slow
def test_what_follows_from_an_index_under_way_has_its_room(entries: FaultyBucket) -> None:
    """Mutant: an index counts once, whatever follows from it, and the next shards take the room of the first one.

    Which one of many indices came first decided then which chunks filled the bound, and a pass took a third of a link.
    """
    reader: Any = open_source("s3://bucket/s.zarr").reader
    data, access = reader.arrays["data"], reader.access["data"]

    def ask(chunk: int) -> None:
        shard, first = divmod(chunk, 7)
        chunk_access.ask_ahead(data, access, f"c/{shard}", some=range(400 * first, 400 * (first + 1)))

    mine = prefetch._prefetcher()
    with closing(Threads(1, 5 * 3200)), prefetch.following(iter(range(21)), ask):
        until = time.monotonic() + 120
        while sum(each.task is not None and each.task.done() for each in list(mine._objects.values())) < 5:
            assert time.monotonic() < until, "an index, and the chunks that there is room for beside it"
            time.sleep(0.01)
        assert [path for path, _, _ in entries.seen() if "/data/c/" in path] == ["s.zarr/data/c/0"] * 5
    assert peak() <= 5 * 3200


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["whole", "truncate", "refuse"])
def test_parts_of_a_shard_and_a_server_that_fails(sharded: FaultyBucket, fault: str) -> None:
    """One that sends the whole shard, whatever is asked for, is believed."""
    local, _ = passed(sharded.folder / "x.zarr", 0)
    sharded.faults((r"x.zarr/c/(3|7)/0", fault, -1 if fault == "whole" else 1))
    assert (passed(URL, 9 * CHUNK)[0] == local).all()


@pytest.mark.slow
def test_a_shard_that_is_replaced_under_its_index_is_refused(sharded: FaultyBucket) -> None:
    """Mutant: its bands are taken of whatever lies there now."""
    sharded.faults((r"x.zarr/c/7/0", "replace", 1))
    with pytest.raises(LostError, match=r"chunk c/7/0 of s3://bucket/x.zarr cannot be fetched \(it was replaced while"):
        passed(URL, 9 * CHUNK)


@pytest.mark.slow
def test_the_end_of_a_shard_where_no_server_knows_ends(sharded: FaultyBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure refuses ranges that are counted from the end: the size is asked for first."""
    real = obstore.get_async

    async def get_async(store: Any, path: str, *, options: Any = None) -> Any:
        if options and isinstance(options.get("range"), dict):
            raise obstore.exceptions.NotSupportedError("Azure does not support suffix range requests")
        return await real(store, path, options=options)

    local, _ = passed(sharded.folder / "x.zarr", 0)
    monkeypatch.setattr(obstore, "get_async", get_async)
    assert (passed(URL, 9 * CHUNK)[0] == local).all()


class Replacing(Observer):
    """Replaces a chunk after the first step."""

    def __init__(self, chunk: Path) -> None:
        self.chunk = chunk

    def on_step(self, step: Step) -> None:
        if step.number == 1:
            data = np.frombuffer(self.chunk.read_bytes()) + 1e-9
            self.chunk.write_bytes(data.tobytes())


@pytest.mark.slow
def test_an_object_that_changes_between_passes_is_found(store: FaultyBucket, tmp_path: Path) -> None:
    """Mutant: objects that are kept from one pass to the next."""
    observer = Replacing(store.folder / "x.zarr/c/7/0")
    with pytest.raises(BadInputError, match=r"chunk c/7/0 of s3://bucket/x.zarr is corrupt: its checksum is"):
        npmdask.top_k(URL, 3, kind="samples", algorithm="power", store=tmp_path / "run", observer=observer)


RUN = """
import sys, npmdask
npmdask.top_k(sys.argv[1], 4, kind="samples", algorithm="power", store=sys.argv[2], threads=2, commit_seconds=0)
"""


@pytest.mark.slow
def test_killed_in_the_middle_of_a_pass_the_bits_are_the_same(store: FaultyBucket, tmp_path: Path) -> None:
    """And what was asked of the store is counted, with its cost."""
    whole = npmdask.top_k(URL, 4, kind="samples", algorithm="power", store=tmp_path / "whole", threads=1)
    assert whole.network is not None and whole.network.nbytes == whole.data_passes * CHUNKS * CHUNK
    assert whole.network.requests == whole.data_passes * CHUNKS and whole.network.cost is None
    store.faults((rf"x.zarr/c/{CHUNKS // 2}/0", "stop", 2))  # in the middle of the third pass
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = tmp_path / "killed"
    child = subprocess.Popen([sys.executable, "-c", RUN, URL, str(killed)], env=environment, cwd=tmp_path)
    while not (store.folder.parent.parent / "stopped").exists():
        assert child.poll() is None, "it ended before it was killed"
        time.sleep(0.02)
    child.kill()
    child.wait()
    store.faults()
    found = npmdask.resume(killed, threads=2)
    same_bytes(tmp_path / "whole", killed, parts=("steps", "result", "survey"))
    assert found.network is not None and found.network.requests < whole.network.requests


@pytest.mark.slow
def test_what_requests_cost_is_reported(store: FaultyBucket, tmp_path: Path) -> None:
    request = Request(target_rank=3, algorithm="power", max_steps=2)
    resources = Resources(request_price=0.5)
    found = solve(make_problem(open_source(URL, "samples"), request), str(tmp_path / "run"), resources)
    assert found.network is not None and found.network.cost == pytest.approx(found.network.requests / 2000)
    passes = [line for line in RunStore(tmp_path / "run").telemetry() if line["event"] == "passed"]
    assert sum(line["requests"] for line in passes) == found.network.requests > CHUNKS
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "run"), "-o", str(page)]) == 0
    assert "cost of requests" in page.read_text()
    assert f"{found.network.requests} requests, which cost {found.network.cost:.3g}; " in network_text(found.network)
    with pytest.raises(BadInputError, match="request_price = -1 must be at least 0"):
        replace(resources, request_price=-1).require_possible()


@pytest.mark.slow
def test_the_memory_plan_counts_what_is_in_flight(store: FaultyBucket) -> None:
    """Kills: bytes in flight beside the limit; any of local data; threads that are given up for them."""
    mib = 2**20
    local: Operator = Gram(reader=reader_of(store.folder / "x.zarr"))
    far: Operator = Gram(reader=reader_of(URL))

    def planned(operator: Operator, limit: int | None, **more: Any) -> Any:
        given: dict[str, Any] = {"base": 100 * mib, "threads": 2, "workers": 0} | more
        return plan_memory(operator, 10, 4, limit=limit, **given)

    free = planned(far, None)
    assert planned(local, None).in_flight == 0 and free.in_flight == CHUNKS * CHUNK
    assert free.predicted_peak == free.least + free.in_flight
    for spare in (0, CHUNK, CHUNKS * CHUNK, 2 * CHUNKS * CHUNK):
        plan = planned(far, free.least + spare)
        assert plan.threads == 2 and plan.in_flight == min(spare, CHUNKS * CHUNK)
        assert plan.predicted_peak <= free.least + spare
    both = planned(far, None, workers=2)
    assert both.in_flight == CHUNKS * CHUNK // 2 and both.predicted_peak == both.least + CHUNKS * CHUNK


def test_what_a_link_needs_and_what_memory_allows() -> None:
    link = Link(rate=1.25e9, seconds=0.2, nbytes=16 * 2**20)
    assert link.in_flight == prefetch.SLACK * 1.25e9 * 0.2
    assert link.bounded(link.in_flight, 1) == link.rate
    assert link.bounded(0, 2) == pytest.approx(2 * 16 * 2**20 / 0.2)
    slow = replace(link, nbytes=2**20, seconds=0.06)
    assert slow.bounded(2**20, 1) < slow.bounded(8 * 2**20, 1) < slow.rate


@pytest.mark.slow
def test_the_way_to_a_store_is_measured_by_a_few_requests(store: FaultyBucket) -> None:
    """Kills: a rate of nothing, a measurement without an end, one for every plan."""
    remote = reader_of(URL).remote
    assert isinstance(remote, Remote) and remote.nbytes == CHUNK
    link = link_of(remote, 2**30)
    assert 0 < len(store.seen()) <= 2 * prefetch.MOST // CHUNK and link.seconds > 0
    assert 0 < link.rate < 1e11 and link.nbytes == CHUNK
    assert link_of(remote, 2**30) is link and not store.seen()
    store.process.kill()
    store.process.wait()
    remote = replace(remote, array=zarr.open_array(store.folder / "x.zarr"))
    assert link_of(replace(remote, names=("nothing",)), 2**30).rate > 0


@pytest.mark.slow
def test_a_plan_says_what_memory_bounds(store: FaultyBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npmdask.core.execution.memory.UNMEASURED", 0)
    link = Link(rate=1.2e9, seconds=0.3, nbytes=CHUNK)
    monkeypatch.setattr("npmdask.remote.prefetch.link_of", lambda remote, room: link)
    problem = make_problem(open_source(URL, "samples"), Request(target_rank=3))
    free = plan_run(problem, Resources(memory=8 * 2**30))
    assert free.network is not None and free.network.allowed == free.network.rate
    assert "the store is read at 1.2 GB/s (1030 MiB in flight, a request alone takes" in "\n".join(plan_lines(free))
    assert free.memory.in_flight == link.in_flight and not free.cached
    limit = tree_rss() // 2**20 + 300
    tight = plan_run(problem, Resources(memory=limit * 2**20, threads=1))
    assert tight.network is not None and tight.network.allowed < 1.2e9
    assert tight.memory.predicted_peak <= limit * 2**20
    assert f"{limit} MiB of memory bounds reading this store at 0." in str(tight.network)
    assert "MiB would reach the link (1.2 GB/s)" in str(tight.network)
