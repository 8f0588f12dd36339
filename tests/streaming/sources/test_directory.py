"""A directory that grows: every file once when it is whole, whatever arrives, is killed or taken away meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from npmdask.errors import BadInputError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.streaming.sources.directory import Directory, mark_of
from tests.conftest import write_zarr

ROWS = np.random.default_rng(0).standard_normal((300, 4))


def save(folder: Path, name: str, rows: np.ndarray) -> None:
    """As a careful writer does: under a temporary name, renamed when it is whole."""
    aside = folder / f".{name}.partial"
    suffix = name.rpartition(".")[2]
    if suffix == "npy":
        with open(aside, "wb") as file:
            np.save(file, rows)
    elif suffix == "csv":
        np.savetxt(aside, rows, delimiter=",", fmt="%.17g")
    elif suffix == "parquet":
        pa.parquet.write_table(pa.table({f"c{i}": rows[:, i] for i in range(rows.shape[1])}), aside, row_group_size=7)
    elif suffix == "npz":
        with open(aside, "wb") as file:
            sp.save_npz(file, sp.csr_matrix(rows))
    elif name.startswith("store"):
        np.save(folder / ".rows.npy", rows)
        ingest(folder / ".rows.npy", folder / ".store.zarr", chunks=(5, 4))
        os.rename(folder / ".store.zarr", aside)
    else:
        write_zarr(aside, rows, (6, 4))
    os.rename(aside, folder / name)


def everything(stream: Directory, sizes: list[int]) -> list[np.ndarray]:
    batches = []
    while (batch := stream.read(sizes[stream.rows_read % len(sizes)])) is not None:
        batches.append(batch)
    return batches


def reopened(stream: Directory, folder: Path, **options: object) -> Directory:
    """After a kill: another stream, sought to what a checkpoint would hold."""
    later = Directory(folder, **options)  # type: ignore[arg-type]
    later.seek(json.loads(json.dumps(stream.position)))
    return later


NAMES = ["a.npy", "b.csv", "c.parquet", "d.zarr", "e.npz", "store.zarr"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    for i, name in enumerate(NAMES):
        save(folder, name, ROWS[20 * i : 20 * i + 20])
    return folder


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 45), min_size=1, max_size=4),
    events=st.lists(st.sampled_from(["read", "read", "commit", "kill"]), max_size=20),
    full=st.booleans(),
)
def test_every_row_of_every_format_exactly_once(mixed: Path, sizes: list[int], events: list[str], full: bool) -> None:
    """Fails if a position is off by a row in any format, or if a file is used again after a kill."""
    stream, kept, loose = Directory(mixed, full_batches=full), list[np.ndarray](), list[np.ndarray]()
    committed = json.dumps(stream.position)
    for event in events:
        if event == "read":
            batch = stream.read(sizes[stream.rows_read % len(sizes)])
            loose += [] if batch is None else [batch]
        elif event == "commit":
            committed, kept, loose = json.dumps(stream.position), kept + loose, []
        else:
            stream, loose = Directory(mixed, full_batches=full), []
            stream.seek(json.loads(committed))
    got = np.concatenate([*kept, *loose, *everything(stream, sizes), np.empty((0, 4))])
    np.testing.assert_array_equal(got, ROWS[:120][: len(got)])
    assert stream.rows_read == len(got) and (len(got) == 120 or (full and 120 - len(got) < max(sizes)))


def test_new_files_are_found_and_unfinished_ones_left_alone(tmp_path: Path) -> None:
    """Fails if a temporary name is read, or if a file that arrives late with an early name is forgotten."""
    save(tmp_path, "b.npy", ROWS[:10])
    for name in (".hidden.npy", "c.npy.partial", "c.npy.tmp", "c.npy~"):
        (tmp_path / name).write_bytes(b"half of it")
    stream = Directory(tmp_path, "*")
    np.testing.assert_array_equal(stream.read(7), ROWS[:7])
    save(tmp_path, "c.csv", ROWS[10:15])
    np.testing.assert_array_equal(stream.read(6), ROWS[7:13])
    np.testing.assert_array_equal(stream.read(6), ROWS[13:15])
    assert stream.read(6) is None and stream.rows_read == 15
    save(tmp_path, "a.npy", ROWS[15:20])
    stream = reopened(stream, tmp_path)
    np.testing.assert_array_equal(stream.read(6), ROWS[15:20])
    assert stream.read(1) is None and list(stream.position["done"]) == ["b.npy", "c.csv", "a.npy"]


def test_parts_are_counted_and_an_earlier_stream_keeps_its_order(tmp_path: Path) -> None:
    """Fails if part.10 comes before part.2, or if a stream that began so is reordered where it goes on."""
    for i in range(12):
        save(tmp_path, f"part.{i}.npy", ROWS[10 * i : 10 * i + 10])
    stream = Directory(tmp_path)
    np.testing.assert_array_equal(stream.read(25), ROWS[:25])
    np.testing.assert_array_equal(reopened(stream, tmp_path).read(200), ROWS[25:120])
    old = {"part.0.npy": 0, "part.1.npy": 1, "part.10.npy": 10}
    known = [*old, "part.11.npy", *(f"part.{i}.npy" for i in range(2, 10))]
    marks = {name: list(mark_of(tmp_path / name) or ()) for name in old}
    position = stream.position | {"rows_read": 30, "done": marks, "file": None, "mark": [0, 0], "row": 0, "digest": 0}
    del position["numbered"]  # as before the numbers counted
    stream = Directory(tmp_path)
    stream.seek(position)
    np.testing.assert_array_equal(stream.read(200), ROWS[[*range(110, 120), *range(20, 100)]])
    assert list(stream.position["done"]) == known and "numbered" not in reopened(stream, tmp_path).position


def test_only_names_that_match_are_read(tmp_path: Path) -> None:
    save(tmp_path, "rows-1.npy", ROWS[:5])
    save(tmp_path, "other.npy", ROWS[5:9])
    np.testing.assert_array_equal(np.concatenate(everything(Directory(tmp_path, "rows-*.npy"), [9])), ROWS[:5])


def test_full_batches_do_not_depend_on_when_files_arrive(tmp_path: Path) -> None:
    """Fails if a short batch is given, or if holding it back loses its rows."""
    save(tmp_path, "0.npy", ROWS[:10])
    stream, got = Directory(tmp_path, full_batches=True), []
    for i in range(1, 6):
        got += everything(stream, [8])
        before = stream.position
        assert stream.read(8) is None and stream.position == before
        save(tmp_path, f"{i}.npy", ROWS[10 * i : 10 * i + 10])
    got += everything(stream, [8])
    assert [len(b) for b in got] == [8] * 7
    np.testing.assert_array_equal(np.concatenate([*got, stream.read(4)]), ROWS[:60])


def test_a_finished_file_may_be_taken_away(tmp_path: Path) -> None:
    """Also the moment after its last row was given: fails if that is noticed only by the next read."""
    for name in ("a.npy", "b.csv"):
        save(tmp_path, name, ROWS[:10])
        stream = Directory(tmp_path, columns=4)
        stream.read(10)
        (tmp_path / name).unlink()
        stream = reopened(stream, tmp_path, columns=4)
        assert stream.read(1) is None and stream.position["file"] is None


def rewritten(path: Path, rows: np.ndarray) -> None:
    time.sleep(0.02)  # coarse clocks of file systems
    np.save(path, rows)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda path: rewritten(path, ROWS[:5]), "shrank from .*restore these"),
        (lambda path: rewritten(path, ROWS[10:60]), "grew from .*restore these"),
        (lambda path: rewritten(path, ROWS[20:40]), "was written again .*restore these"),
        (lambda path: path.unlink(), "has vanished .*or start again"),
    ],
)
def test_a_file_that_changed_before_it_was_finished_is_refused(tmp_path: Path, change: object, word: str) -> None:
    """Fails if a row number is used in a file that is another one by now."""
    save(tmp_path, "a.npy", ROWS[:20])
    stream = Directory(tmp_path)
    stream.read(8)
    position = stream.position
    change(tmp_path / "a.npy")  # type: ignore[operator]
    later = Directory(tmp_path, columns=4)
    before = later.position
    with pytest.raises(RefusedError, match=f"a.npy {word}"):
        later.seek(position)
    assert later.position == before and stream.position == position


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.npy", "a.csv", "a.parquet", "a.npz", "plain.zarr"])
@pytest.mark.parametrize("size", [8, 3])
def test_a_bad_row_in_the_middle_of_a_file_can_be_corrected(tmp_path: Path, name: str, size: int) -> None:
    """Fails if the rows before it are lost or used twice, or if another file under its name would be taken for it."""
    bad = ROWS[:40].copy()
    bad[30] = np.inf
    others = ROWS[:40].copy()
    others[7, 2] += 1e-9
    save(tmp_path, name, bad)
    stream, batches = Directory(tmp_path), []
    with pytest.raises(BadInputError, match="row 30 of"):
        while True:
            batches.append(stream.read(size))
    position = json.loads(json.dumps(stream.position))
    for rows, good in ((others, False), (ROWS[:12], False), (ROWS[:45], True)):
        time.sleep(0.02)
        (shutil.rmtree if (tmp_path / name).is_dir() else os.unlink)(tmp_path / name)
        save(tmp_path, name, rows)
        later = Directory(tmp_path)
        if good:
            later.seek(position)
        else:
            with pytest.raises(RefusedError, match="restore these rows"):
                later.seek(position)
    np.testing.assert_array_equal(np.concatenate([*batches, *everything(later, [11])]), ROWS[:45])


def test_a_file_that_changes_while_it_is_read_is_noticed_at_its_end(tmp_path: Path) -> None:
    save(tmp_path, "a.npy", ROWS[:20])
    stream = Directory(tmp_path)
    stream.read(8)
    before = stream.position
    os.utime(tmp_path / "a.npy", ns=(1, 1))
    with pytest.raises(RefusedError, match=r"a\.npy was written again after its rows up to row 20"):
        stream.read(12)
    assert stream.position == before


def test_a_finished_file_that_gets_new_rows_is_refused(tmp_path: Path) -> None:
    """Fails if rows that are appended to a finished file are never used without a word."""
    save(tmp_path, "a.npy", ROWS[:20])
    stream = Directory(tmp_path)
    stream.read(20)
    position = stream.position
    rewritten(tmp_path / "a.npy", ROWS[:30])
    for look in (lambda: stream.read(1), lambda: stream.seek(position)):
        with pytest.raises(RefusedError, match=r"a\.npy grew .*file with a new name"):
            look()
    assert stream.position == position


def test_files_that_do_not_fit_cost_no_row(tmp_path: Path) -> None:
    """Wrong width, nothing inside, not finite, not a table: named, and when they are gone reading goes on."""
    save(tmp_path, "a.npy", ROWS[:10])
    stream = Directory(tmp_path)
    stream.read(4)
    before = stream.position
    bad = {
        "b.npy": (np.ones((3, 5)), "b.npy has 5 columns and the stream has 4"),
        "c.csv": (ROWS[:2] * np.inf, "row 0 of .*c.csv holds NaN"),
    }
    for name, (rows, word) in bad.items():
        save(tmp_path, name, rows)
        with pytest.raises(BadInputError, match=word):
            stream.read(9)
        assert stream.position == before
        (tmp_path / name).unlink()
    for name, content in (("d.npy", b"\x93NUMPY"), ("e.csv", b"a,b,c,d\n"), ("f.txt", b"words")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInputError, match=name):
            stream.read(9)
        assert stream.position == before
        (tmp_path / name).unlink()
    save(tmp_path, "g.npy", ROWS[10:20])
    np.testing.assert_array_equal(np.concatenate(everything(stream, [9])), ROWS[4:20])


def test_rows_that_are_skipped_are_counted_across_files(tmp_path: Path) -> None:
    rows = ROWS[:40].copy()
    rows[[0, 19, 20, 33]] = np.inf
    rows[[5, 25, 39], 1] = np.nan
    save(tmp_path, "a.npy", rows[:20])
    save(tmp_path, "b.csv", rows[20:30])
    values = {f"c{i}": pa.array(column, from_pandas=True) for i, column in enumerate(rows[30:].T)}  # NaN: missing
    pa.parquet.write_table(pa.table(values), tmp_path / "c.parquet")
    with pytest.raises(BadInputError, match="missing value at row 5"):
        everything(Directory(tmp_path, "b*"), [9])
    stream = Directory(tmp_path, non_finite="skip")
    first = stream.read(14)
    stream = reopened(stream, tmp_path, non_finite="skip")
    np.testing.assert_array_equal(
        np.concatenate([first, *everything(stream, [9])]), rows[np.isfinite(rows).all(axis=1)]
    )
    assert (stream.rows_read, stream.skipped) == (33, 7)


def test_the_width_has_to_come_from_somewhere(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="columns="):
        Directory(tmp_path)
    with pytest.raises(BadInputError, match="cannot be listed"):
        Directory(tmp_path / "nowhere")
    stream = Directory(tmp_path, columns=4)
    assert stream.read(3) is None
    with pytest.raises(RefusedError, match="columns = 5"):
        stream.seek({**stream.position, "columns": 5})
    for wrong in ({"done": 7}, {"done": {"../a": [1, 1]}}, {"file": 3}, {"mark": [1]}, {"row": -1}):
        with pytest.raises(BadInputError, match="position of the stream is damaged"):
            stream.seek({**stream.position, **wrong})


def test_temporary_files_go_with_the_stream(tmp_path: Path) -> None:
    """Fails if what is unpacked of a column-major archive stays behind."""
    folder, spool = tmp_path / "in", tmp_path / "spool"
    folder.mkdir()
    np.savez(folder / "a.npz", rows=np.asfortranarray(ROWS))
    stream = Directory(folder, spool=spool)
    np.testing.assert_array_equal(stream.read(10), ROWS[:10])
    assert list(spool.iterdir())
    stream.close()
    assert not list(spool.iterdir())
    np.testing.assert_array_equal(stream.read(290), ROWS[10:])
    assert not list(spool.iterdir())


WRITER = """
import os, sys, time
import numpy as np
folder = sys.argv[1]
rows = np.random.default_rng(0).standard_normal((300, 4))
for i in range(30):
    aside = os.path.join(folder, f"{i:03}.npy.partial")
    with open(aside, "wb") as file:
        np.save(file, rows[10 * i : 10 * i + 5])
        file.flush()
        time.sleep(0.005)
        file.seek(0)
        np.save(file, rows[10 * i : 10 * i + 10])
    os.rename(aside, aside.removesuffix(".partial"))
"""


@pytest.mark.slow
def test_a_directory_that_another_process_fills_while_it_is_read(tmp_path: Path) -> None:
    """With a new stream after every few reads, as if it had been killed."""
    stream, got = Directory(tmp_path, columns=4), list[np.ndarray]()
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) as writer:
        deadline = time.monotonic() + 120
        while stream.rows_read < 300 and time.monotonic() < deadline:
            batch = stream.read(1 + stream.rows_read % 13)
            got += [] if batch is None else [batch]
            if stream.rows_read % 3 == 0:
                stream = reopened(stream, tmp_path, columns=4)
    assert writer.returncode == 0 and stream.read(1) is None
    np.testing.assert_array_equal(np.concatenate(got), ROWS)


def test_positions_move_with_the_directory(tmp_path: Path) -> None:
    """A copy that keeps its times is the same source."""
    folder, copy = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    for name in ("a.npy", "b.zarr", "c.csv"):
        save(folder, name, ROWS[:20])
    stream = Directory(folder)
    stream.read(25)
    shutil.copytree(folder, copy)
    later = reopened(stream, copy)
    np.testing.assert_array_equal(np.concatenate(everything(later, [9])), np.tile(ROWS[:20], (3, 1))[25:])
    assert later.fingerprint == stream.fingerprint != Directory(folder, full_batches=True).fingerprint
