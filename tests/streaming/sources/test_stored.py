"""Rows of a store: each exactly once an epoch and the same bits, wherever reading stopped and began again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npmdask.core.storage.readers import whole_rows
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.streaming.sources.zarr_rows import ZarrRows
from tests.conftest import write_zarr
from tests.core.operators.test_operators import write_csr

Made = dict[str, tuple[Source, np.ndarray]]
NAMES = ["plain", "columns", "zstd", "sharded", "zarr2", "ingested", "packed", "csr", "long rows"]


def sparse_rows(m: int, d: int, density: float) -> sp.csr_matrix:
    """Rows of very different length, some empty, also at both ends."""
    matrix = sp.random(m, d, density=density, format="lil", rng=np.random.default_rng(3))
    matrix[[0, 1, m // 2, m - 1]] = 0
    return matrix.tocsr()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The same few rows in every layout that a stream can be asked to read."""
    folder, rng = tmp_path_factory.mktemp("stores"), np.random.default_rng(0)
    rows = rng.standard_normal((53, 7)).astype(np.float32)
    square = rng.standard_normal((37, 37))
    square += square.T
    write_zarr(folder / "plain.zarr", rows, (10, 7), compressors=None)
    write_zarr(folder / "columns.zarr", rows, (9, 3), compressors=None)
    write_zarr(folder / "zstd.zarr", rows, (16, 4))
    write_zarr(folder / "sharded.zarr", rows, (5, 7), shards=(15, 7))
    write_zarr(folder / "zarr2.zarr", rows, (11, 7), zarr_format=2)
    np.save(folder / "rows.npy", rows)
    ingest(folder / "rows.npy", folder / "ingested.zarr", chunks=(12, 7))
    np.save(folder / "square.npy", square)
    ingest(folder / "square.npy", folder / "packed.zarr", kind="symmetric", chunks=(8, 8))
    short, long = sparse_rows(61, 9, 0.3), sparse_rows(40, 30, 0.9)
    held = {name: rows for name in NAMES} | {"packed": square, "csr": short.toarray(), "long rows": long.toarray()}
    write_csr(folder / "csr.zarr", short, 16)
    write_csr(folder / "long rows.zarr", long, 8)  # a row takes several chunks
    return {name: (open_source(folder / f"{name}.zarr"), held[name].astype(np.float64)) for name in NAMES}


@pytest.fixture(scope="module", autouse=True)
def small_runs() -> None:
    """Runs of two chunks of entries, so that there are many."""
    held, whole_rows.RUN_BYTES = whole_rows.RUN_BYTES, 400
    yield
    whole_rows.RUN_BYTES = held


def everything(stream: ZarrRows, sizes: list[int]) -> list[np.ndarray]:
    """Batches to the end; the size of each follows from the position, so that it is the same after a kill."""
    batches = []
    while (batch := stream.read(sizes[stream.rows_read % len(sizes)])) is not None:
        batches.append(batch)
    return batches


def in_order(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.T)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sequential_rows_are_the_rows_of_the_store(stores: Made, name: str) -> None:
    """Fails if a unit begins or ends at a wrong row, e.g. if empty rows at the top of a CSR matrix are forgotten."""
    source, rows = stores[name]
    stream = ZarrRows(source, epochs=2)
    batches = everything(stream, [7])
    assert all(b.dtype == np.float64 and b.flags.c_contiguous for b in batches)
    np.testing.assert_array_equal(np.concatenate(batches), np.concatenate([rows, rows]))
    assert [len(b) for b in batches[: -(-len(rows) // 7)]] == [7] * (len(rows) // 7) + [len(rows) % 7] * (
        len(rows) % 7 > 0
    )
    assert stream.rows_read == 2 * len(rows) and stream.read(1) is None and stream.rows_left == 0


KILLS = {
    "name": st.sampled_from(NAMES),
    "order": st.sampled_from(["sequential", "shuffled"]),
    "seed": st.integers(0, 2**40),
    "epochs": st.integers(1, 3),
    "sizes": st.lists(st.integers(1, 70), min_size=1, max_size=5),
    "events": st.lists(st.sampled_from(["read", "read", "read", "commit", "kill"]), max_size=60),
}


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(**KILLS)
def test_every_row_exactly_once_whatever_is_killed(stores: Made, **case: Any) -> None:
    read_and_kill(stores, **case)


@pytest.mark.heavy
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(**KILLS)
def test_every_row_exactly_once_in_many_cases(stores: Made, **case: Any) -> None:
    read_and_kill(stores, **case)


def read_and_kill(
    stores: Made, name: str, order: str, seed: int, epochs: int, sizes: list[int], events: list[str]
) -> None:
    """Fails if a position is off by a row, if a permutation depends on where reading began, if batches cross epochs."""
    source, rows = stores[name]

    def fresh() -> ZarrRows:
        return ZarrRows(source, order=order, seed=seed, epochs=epochs)

    expected = everything(fresh(), sizes)
    assert sum(map(len, expected)) == epochs * len(rows)
    stream, kept, loose = fresh(), list[np.ndarray](), list[np.ndarray]()
    committed = json.dumps(stream.position)
    for event in [*events, "commit", "read", "kill"]:  # a kill after a commit in every case, wherever that is
        if event == "read":
            batch = stream.read(sizes[stream.rows_read % len(sizes)])
            loose += [] if batch is None else [batch]
        elif event == "commit":
            committed, kept, loose = json.dumps(stream.position), kept + loose, []
        else:
            stream, loose = fresh(), []
            stream.seek(json.loads(committed))
    got = kept + loose + everything(stream, sizes)
    assert len(got) == len(expected)
    for left, right in zip(got, expected, strict=True):
        assert left.tobytes() == right.tobytes()
    given_rows, edges = np.concatenate(got), np.cumsum([len(b) for b in got])
    for epoch in range(epochs):
        np.testing.assert_array_equal(in_order(given_rows[epoch * len(rows) :][: len(rows)]), in_order(rows))
        assert (epoch + 1) * len(rows) in edges, "a batch crosses the border between two epochs"
    assert stream.rows_read == epochs * len(rows)


def test_shuffling_is_of_chunks_and_of_rows_and_of_another_kind_each_epoch(stores: Made) -> None:
    """Fails if the permutation forgets the epoch, the chunk or the seed."""
    source, rows = stores["plain"]
    stream = ZarrRows(source, order="shuffled", seed=5, epochs=2)
    first, second = (np.concatenate([stream.read(20) for _ in range(3)]) for _ in range(2))
    assert not np.array_equal(first, second)
    other = np.concatenate(everything(ZarrRows(source, order="shuffled", seed=6), [53]))
    assert not np.array_equal(first, other)
    inside, among = [], []
    for epoch in (first, second):
        where = np.array([int(np.flatnonzero((rows == row).all(axis=1))[0]) for row in epoch])
        places = [np.flatnonzero(where // 10 == chunk) for chunk in range(6)]
        assert all(np.ptp(place) == len(place) - 1 for place in places), "rows of a chunk stay together"
        inside += [tuple(where[place] % 10) for place in places if len(place) == 10]
        among.append([int(place[0]) for place in places])
    assert len(set(inside)) == 10 and among[0] != among[1]


def test_epochs_of_one_chunk_differ_too(tmp_path: Path) -> None:
    """Fails if the chunk that is held keeps the permutation of the epoch before."""
    source = open_source(write_zarr(tmp_path / "one.zarr", np.arange(40.0).reshape(20, 2)))
    stream = ZarrRows(source, order="shuffled", epochs=2)
    first, position, second = stream.read(20), stream.position, stream.read(20)
    assert not np.array_equal(first, second)
    later = ZarrRows(source, order="shuffled", epochs=2)
    later.seek(position)
    np.testing.assert_array_equal(later.read(20), second)


def test_large_numbers_and_large_batches(tmp_path: Path) -> None:
    """Fails if a sum that overflows passes for a row that is not finite, or if room is made for rows that are not."""
    rows = np.full((9, 3), 1.7e308)
    stream = ZarrRows(open_source(write_zarr(tmp_path / "large.zarr", rows, (4, 3))))
    np.testing.assert_array_equal(stream.read(10**15), rows)


def test_seeking_reads_one_chunk_only(stores: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if seeking replays what came before."""
    stream = ZarrRows(stores["plain"][0], order="shuffled", seed=1)
    for _ in range(9):
        stream.read(5)
    position, loaded = stream.position, []
    later = ZarrRows(stores["plain"][0], order="shuffled", seed=1)
    load = later._units.load
    monkeypatch.setattr(later._units, "load", lambda unit: loaded.append(unit) or load(unit))
    later.seek(position)
    np.testing.assert_array_equal(later.read(3), stream.read(3))
    assert len(loaded) == 1


def broken_rows(tmp_path: Path) -> tuple[Source, np.ndarray]:
    rows = np.random.default_rng(1).standard_normal((30, 4))
    rows[[3, 17, 18, 29], [0, 1, 2, 3]] = [np.nan, np.inf, -np.inf, np.nan]
    rows[5] = 1.7e308  # finite, though the sum is not
    return open_source(write_zarr(tmp_path / "broken.zarr", rows, (8, 4))), rows


def test_a_row_that_is_not_finite_is_named_and_the_position_stays(tmp_path: Path) -> None:
    """Fails if the cursor has moved when the refusal comes: the rows before the bad one would be lost."""
    source, rows = broken_rows(tmp_path)
    stream = ZarrRows(source)
    stream.read(2)
    before = stream.position
    for _ in range(2):
        with pytest.raises(BadInputError, match=r"row 3 of .*broken.zarr holds NaN or infinity; .*non_finite='skip'"):
            stream.read(20)
        assert stream.position == before and stream.rows_read == 2
    np.testing.assert_array_equal(stream.read(1), rows[2:3])
    named = set()
    for seed in range(9):
        with pytest.raises(BadInputError, match="holds NaN") as refused:
            ZarrRows(source, order="shuffled", seed=seed).read(30)
        named.add(int(str(refused.value).split()[1]))
    assert named <= {3, 17, 18, 29} and len(named) > 1


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
@pytest.mark.parametrize("size", [1, 4, 30])
def test_rows_that_are_not_finite_are_skipped_and_counted(tmp_path: Path, order: str, size: int) -> None:
    """Fails if the counter does not come back with the position, or if an epoch of skipped rows ends the stream."""
    source, rows = broken_rows(tmp_path)
    stream = ZarrRows(source, order=order, epochs=2, non_finite="skip")
    first = stream.read(size)
    again = ZarrRows(source, order=order, epochs=2, non_finite="skip")
    again.seek(json.loads(json.dumps(stream.position)))
    given_rows = np.concatenate([first, *everything(again, [size])])
    good = rows[np.isfinite(rows).all(axis=1)]
    assert (again.rows_read, again.skipped) == (2 * len(good), 8)
    for epoch in (0, 1):
        np.testing.assert_array_equal(in_order(given_rows[epoch * 26 :][:26]), in_order(good))


def test_an_epoch_whose_rest_is_skipped_leads_to_the_next(tmp_path: Path) -> None:
    rows = np.ones((6, 2))
    rows[4:] = np.nan
    stream = ZarrRows(open_source(write_zarr(tmp_path / "a.zarr", rows, (3, 2))), epochs=3, non_finite="skip")
    assert [len(b) for b in everything(stream, [4])] == [4, 4, 4]
    assert (stream.rows_read, stream.skipped, stream.position["epoch"]) == (12, 6, 3)


def test_a_corrupt_chunk_is_found_before_any_of_its_rows_is_given(tmp_path: Path) -> None:
    """Fails if rows are given out tile by tile, before the checksum of their chunk is known."""
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).standard_normal((40, 3)))
    ingest(tmp_path / "rows.npy", tmp_path / "s.zarr", chunks=(10, 3))
    stream = ZarrRows(open_source(tmp_path / "s.zarr"))
    stream.read(8)
    before = stream.position
    chunk = next(p for p in (tmp_path / "s.zarr" / "data").rglob("1/0"))
    good = chunk.read_bytes()
    chunk.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(BadInputError, match=r"corrupt|cannot be decoded"):
        stream.read(3)
    assert stream.position == before
    chunk.write_bytes(good)
    np.testing.assert_array_equal(stream.read(3), np.load(tmp_path / "rows.npy")[8:11])


def test_positions_that_do_not_fit_are_refused(stores: Made, tmp_path: Path) -> None:
    """Each sentence says the remedy, and nothing moves."""
    rows = stores["plain"][1]
    stream = ZarrRows(stores["plain"][0], order="shuffled", seed=2, epochs=2)
    stream.read(13)
    position = stream.position
    for count, word in ((40, "shrank from 53 to 40 rows.*restore"), (60, "grew from 53 to 60 rows.*start again")):
        other = np.resize(rows, (count, 7))
        smaller = open_source(write_zarr(tmp_path / f"{count}.zarr", other, (10, 7)))
        with pytest.raises(RefusedError, match=word):
            ZarrRows(smaller, order="shuffled", seed=2).seek(position)
    for options in ({}, {"order": "shuffled", "seed": 3}):
        with pytest.raises(RefusedError, match=r"would give other rows: open the stream with"):
            ZarrRows(stores["plain"][0], **options).seek(position)
    damaged = [{**position, "row": 9}, {**position, "unit": 6}, {**position, "rows_read": -1}, {**position, "epoch": 2}]
    for wrong in [*damaged, {}, {**position, "epoch": True}, {**position, "skipped": 1}, None]:
        with pytest.raises(BadInputError, match=r"use the|ask for more"):
            stream.seek(wrong)
    assert stream.position == position


def test_an_end_that_was_reached_can_be_extended(stores: Made) -> None:
    source, rows = stores["plain"]
    stream = ZarrRows(source)
    everything(stream, [53])
    longer = ZarrRows(source, epochs=2)
    longer.seek(stream.position)
    np.testing.assert_array_equal(longer.read(53), rows)
    with pytest.raises(BadInputError, match="ask for more"):
        stream.seek(longer.position)


def test_what_cannot_be_asked(stores: Made) -> None:
    source = stores["plain"][0]
    wrong = [
        {"order": "shufled"}, {"seed": -1}, {"seed": 0.5}, {"epochs": 0}, {"epochs": True}, {"non_finite": "ignore"},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(BadInputError):
            ZarrRows(source, **options)
    for size in (0, -1, 1.5, True):
        with pytest.raises(BadInputError, match="rows is"):
            ZarrRows(source).read(size)
    with pytest.raises(BadInputError, match="read fewer rows at once"):
        ZarrRows(open_source(np.ones((2, 2))))._assemble(2**60)


def test_fingerprints_tell_streams_apart_that_give_other_rows(stores: Made) -> None:
    source = stores["plain"][0]
    options: list[dict[str, Any]] = [{}, {"order": "shuffled"}, {"order": "shuffled", "seed": 1}]
    prints = {ZarrRows(source, **o).fingerprint for o in options} | {ZarrRows(stores["zstd"][0]).fingerprint}
    assert len(prints) == 4
    assert ZarrRows(source, seed=4, epochs=2, non_finite="skip").fingerprint == ZarrRows(source).fingerprint


CONSUMER = """
import json, os, signal, sys
from npmdask.core.storage.source import open_source
from npmdask.streaming.sources.zarr_rows import ZarrRows

store, log, commit, dies_after = sys.argv[1:]
stream = ZarrRows(open_source(store), order="shuffled", seed=11, epochs=2)
with open(log, "ab") as file:
    if os.path.exists(commit):
        state = json.load(open(commit))
        stream.seek(state["position"])
        file.truncate(state["bytes"])
    signal.setitimer(signal.ITIMER_PROF, float(dies_after))  # of work: the kernel kills it, on a slow machine later
    while (batch := stream.read(1 + stream.rows_read % 97)) is not None:
        file.write(batch.tobytes())
        if stream.rows_read % 3 == 0:
            file.flush()
            with open(commit + ".new", "w") as aside:
                json.dump({"position": stream.position, "bytes": file.tell()}, aside)
            os.replace(commit + ".new", commit)
"""


@pytest.mark.slow
def test_real_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """A process that reads and commits is killed at random instants until it gets to the end."""
    rows = np.random.default_rng(0).standard_normal((60_000, 3))
    write_zarr(tmp_path / "s.zarr", rows, (1000, 3))
    source, rng, kills = open_source(tmp_path / "s.zarr"), np.random.default_rng(8), 0
    command = [sys.executable, "-c", CONSUMER, *(str(tmp_path / name) for name in ("s.zarr", "log", "commit"))]
    for _ in range(6):
        dies_after = str(rng.uniform(0.001, 0.08))
        kills += subprocess.run([*command, dies_after]).returncode == -signal.SIGPROF
    assert subprocess.run([*command, "0"]).returncode == 0
    stream = ZarrRows(source, order="shuffled", seed=11, epochs=2)
    expected = []
    while (batch := stream.read(1 + stream.rows_read % 97)) is not None:
        expected.append(batch.tobytes())
    assert kills > 0 and (tmp_path / "log").read_bytes() == b"".join(expected)
    given_rows = np.frombuffer(b"".join(expected)).reshape(2, -1, 3)
    assert zarr.open(tmp_path / "s.zarr").shape == rows.shape
    for epoch in given_rows:
        np.testing.assert_array_equal(in_order(epoch), in_order(rows))
