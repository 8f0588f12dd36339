"""The loop over batches: what grows, what ends, what goes wrong in the middle, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs import observers
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, MemoryRefusedError, RefusedError
from npmdask.streaming import StreamSolution, resume_stream, stream_pca
from npmdask.streaming.loop import Stopwatch
from npmdask.streaming.sources.directory import Directory
from npmdask.streaming.sources.zarr_rows import ZarrRows
from tests.conftest import write_zarr
from tests.streaming.common import EXACT, OPTIONS, D, K, kept_state, rows_of, same_end, scatter

ROWS = rows_of(60)


def learn(source: Any, store: Path, **more: Any) -> StreamSolution:
    return stream_pca(source, K, store=store, **({"options": EXACT, "batch_rows": 8} | more))


def assert_learnt(store: Path, rows: np.ndarray) -> None:
    _, state = kept_state(store)
    assert state.rows == len(rows)
    np.testing.assert_allclose(scatter(state), rows.T @ rows, rtol=1e-10, atol=1e-12)


def files(folder: Path, **parts: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    for name, rows in parts.items():
        np.save(folder / f"{name}.npy", rows)
    return folder


@pytest.mark.slow
def test_a_directory_that_grows_between_calls(tmp_path: Path) -> None:
    """Fails if a file is read twice, or a call without news changes anything."""
    source, store = files(tmp_path / "in", a=ROWS[:20]), tmp_path / "s"
    first = learn(source, store)
    assert (first.outcome.name, first.rows, first.new_rows) == ("up_to_date", 20, 20)
    before = {p: p.stat().st_mtime_ns for p in store.rglob("*.npy")}
    again = learn(source, store)
    assert (again.new_rows, again.history) == (0, first.history)
    np.testing.assert_array_equal(again.basis, first.basis)
    assert before == {p: p.stat().st_mtime_ns for p in store.rglob("*.npy")}, "nothing new, nothing written"
    files(source, b=ROWS[20:33])
    (source / "a.npy").unlink()
    files(source, c=ROWS[33:])
    last = resume_stream(store)
    assert (last.rows, last.new_rows, last.rows_waiting) == (60, 40, 0)
    assert_learnt(store, ROWS)
    for path in source.iterdir():
        path.unlink()
    assert resume_stream(store).rows == 60, "the width is known, though no file says it any more"


class Grows(observers.Observer):
    """Puts a file into a directory while the rows before it are learnt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_measurement(self, measurement: Any) -> None:
        if measurement.rows == 16:
            files(self.folder, a=ROWS[40:])


def test_a_directory_that_grows_during_a_call(tmp_path: Path) -> None:
    source = files(tmp_path / "in", zz=ROWS[:40])
    solution = learn(source, tmp_path / "s", measure_rows=16, observer=Grows(source))
    assert solution.rows == 60
    assert_learnt(tmp_path / "s", ROWS)


def test_an_input_that_ended_is_followed_by_new_rows(tmp_path: Path) -> None:
    """Fails if the rows of the input before are sought in the new one."""
    for start in (0, 20, 40):
        solution = learn(iter([ROWS[start : start + 20]]), tmp_path / "s")
        assert (solution.rows, solution.new_rows, solution.outcome.name) == (start + 20, 20, "exhausted")
    assert_learnt(tmp_path / "s", ROWS)


@pytest.mark.slow
def test_rows_left_out_are_counted_over_all_inputs(tmp_path: Path) -> None:
    """Fails if the count begins anew with every input."""
    for turn in (1, 2, 3):
        solution = learn(iter([spoilt(3)[:8]]), tmp_path / "s", non_finite="skip")
        assert (solution.rows, solution.skipped) == (7 * turn, turn)
        kept = RunStore(tmp_path / "s").read_part("result")
        assert kept is not None and kept[1]["skipped"] == turn


@pytest.mark.slow
def test_an_input_that_failed_is_sent_again_from_its_first_row(tmp_path: Path) -> None:
    """Fails if an input that broke off counts as one that ended, also the second one."""

    def broken(rows: np.ndarray) -> Any:
        yield rows[:13]
        raise OSError("the other side is gone")

    learn(iter([ROWS[:30]]), tmp_path / "s")
    for _ in range(2):
        with pytest.raises(BadInputError, match=r"the other side is gone.*from its first row"):
            learn(broken(ROWS[30:]), tmp_path / "s")
        assert kept_state(tmp_path / "s")[1].rows == 38, "the batches before were taken and are kept"
    with pytest.raises(RefusedError, match=r"the iterator has shrunk: it ends after 4 rows"):
        learn(iter([ROWS[30:34]]), tmp_path / "s")
    assert learn(iter([ROWS[30:]]), tmp_path / "s").rows == 60
    assert_learnt(tmp_path / "s", ROWS)


def spoilt(*where: int) -> np.ndarray:
    rows = ROWS.copy()
    rows[list(where), 1] = np.nan
    return rows


@pytest.mark.slow
def test_rows_that_are_refused_can_be_corrected_or_skipped(tmp_path: Path) -> None:
    """Fails if the store does not let anybody do what the sentence advises."""
    source, store = files(tmp_path / "in", a=ROWS[:16], b=spoilt(20)[16:40], c=ROWS[40:]), tmp_path / "s"
    with pytest.raises(BadInputError, match=r"row 4 of .*b.npy holds NaN.*non_finite='skip'"):
        learn(source, store)
    assert kept_state(store)[1].rows == 16
    files(source, b=ROWS[16:40])
    assert learn(source, store).rows == 60
    assert_learnt(store, ROWS)

    source, store = write_zarr(tmp_path / "z.zarr", spoilt(20, 59), (7, D)), tmp_path / "t"
    with pytest.raises(BadInputError, match=r"row 20 of .*z.zarr holds NaN"):
        learn(source, store)
    solution = learn(source, store, non_finite="skip")
    assert (solution.rows, solution.skipped) == (58, 2) and "2 were left out" in solution.outcome.sentence
    assert_learnt(store, np.delete(ROWS, [20, 59], axis=0))


@pytest.mark.slow
def test_the_first_batch_refused_leaves_the_store_free(tmp_path: Path) -> None:
    """Fails if a store is bound to parameters with which nothing was ever learnt."""
    with pytest.raises(BadInputError, match=r"holds NaN"):
        learn(spoilt(0), tmp_path / "s")
    with pytest.raises(MemoryRefusedError, match=r"set memory to at least .*MiB"):
        learn(ROWS, tmp_path / "s", memory=2**20)
    with pytest.raises(BadInputError, match=r"are kept in"):
        stream_pca(ROWS[:3], K, algorithm="mb-msg", options=OPTIONS["mb-msg"], store=tmp_path / "m")
    assert learn(ROWS, tmp_path / "s", batch_rows=5).rows == 60
    with pytest.raises(RefusedError, match=r"run.batch_rows \(5 in the checkpoint, 6 now\)"):
        learn(ROWS, tmp_path / "s", batch_rows=6)


@pytest.mark.slow
def test_rows_skipped_at_the_very_end_are_counted_once(tmp_path: Path) -> None:
    """Fails if a call that only skips forgets that: its file may be gone at the next one."""
    source, store = files(tmp_path / "in", a=ROWS[:16]), tmp_path / "s"
    learn(source, store, non_finite="skip")
    files(source, b=spoilt(20, 21)[20:22])
    for _ in range(2):
        assert learn(source, store, non_finite="skip").skipped == 2
        (source / "b.npy").unlink(missing_ok=True)
    kept = RunStore(store).read_part("result")
    assert kept is not None and kept[1]["skipped"] == 2 and kept[1]["rows"] == 16


def test_a_file_that_was_written_again_is_refused(tmp_path: Path) -> None:
    source, store = files(tmp_path / "in", a=ROWS[:20]), tmp_path / "s"
    learn(source, store)
    files(source, a=ROWS[:30])
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"a.npy grew from .* new rows in it would never be used"):
            learn(source, store)
    assert_learnt(store, ROWS[:20])


@pytest.mark.slow
def test_a_store_that_shrank_is_refused(tmp_path: Path) -> None:
    """Of an array whose name stays, another length is other data: the fingerprint says so first."""
    learn(write_zarr(tmp_path / "a.zarr", ROWS, (7, D)), tmp_path / "s")
    with pytest.raises(RefusedError, match=r"data.fingerprint"):
        learn(write_zarr(tmp_path / "b.zarr", ROWS[:50], (7, D)), tmp_path / "s")
    assert_learnt(tmp_path / "s", ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("other", [
    {"seed": 1}, {"center": True}, {"half_life": 50.0, "options": {"iteration_rank": D}}, {"batch_rows": 9},
    {"unit": 2.0}, {"measure_rows": 3}, {"held_out": ROWS}, {"order": "shuffled"}, {"algorithm": "oja", "options": {}},
])  # fmt: skip
def test_other_parameters_are_refused(other: dict[str, Any], tmp_path: Path) -> None:
    learn(ROWS, tmp_path / "s")
    before = sorted((tmp_path / "s").rglob("*.npy")), (tmp_path / "s" / "run.json").read_bytes()
    with pytest.raises(RefusedError, match=r"belongs to another run; these differ: "):
        learn(ROWS, tmp_path / "s", **other)
    assert before == (sorted((tmp_path / "s").rglob("*.npy")), (tmp_path / "s" / "run.json").read_bytes())


@pytest.mark.slow
def test_more_epochs_go_on(tmp_path: Path) -> None:
    """Fails if rows of an epoch are counted like those of the array."""
    path = write_zarr(tmp_path / "a.zarr", ROWS, (7, D))
    assert learn(path, tmp_path / "s", order="shuffled").rows == 60
    more = learn(path, tmp_path / "s", order="shuffled", epochs=3)
    assert (more.rows, more.new_rows) == (180, 120)
    learn(path, tmp_path / "t", order="shuffled", epochs=3)
    np.testing.assert_allclose(scatter(kept_state(tmp_path / "s")[1]), 3 * ROWS.T @ ROWS, rtol=1e-10)
    np.testing.assert_array_equal(*(scatter(kept_state(tmp_path / name)[1]) for name in "st"))


def test_a_store_that_is_held_is_refused(tmp_path: Path) -> None:
    learn(ROWS, tmp_path / "s")
    with RunStore(tmp_path / "s"), pytest.raises(RefusedError, match=r"is held by process"):
        learn(ROWS, tmp_path / "s")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mb-msg", "mb-rmsg"])
def test_too_few_rows_for_a_warm_start_are_kept(name: str, tmp_path: Path) -> None:
    """Fails if an input without an answer has to be sent again, or its rows are used twice."""
    options = {"algorithm": name, "options": OPTIONS[name], "store": tmp_path / "s", "unit": 2.0}
    with pytest.raises(
        BadInputError, match=r"3 rows are too few for the warm start, which needs.*; the 3 rows so far are kept"
    ):
        stream_pca(iter([ROWS[:3]]), K, **options)
    parts = stream_pca(iter([ROWS[3:]]), K, **options)
    whole = stream_pca(ROWS, K, **(options | {"store": None}))
    np.testing.assert_array_equal(parts.basis, whole.basis)
    assert (parts.rows, parts.rows_waiting) == (60, whole.rows_waiting)


def test_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    source = files(tmp_path / "in", a=ROWS[:10], b=ROWS[10:, :-1])
    with pytest.raises(BadInputError, match=r"b.npy has 5 columns and the stream has 6"):
        learn(source, tmp_path / "s")
    assert_learnt(tmp_path / "s", ROWS[:8])
    files(source, b=ROWS[10:])
    assert learn(source, tmp_path / "s").rows == 60
    with pytest.raises(RefusedError, match=r"data.columns \(6 in the checkpoint, 5 now\)"):
        learn(ROWS[:, :-1], tmp_path / "s", options={})


@pytest.mark.slow
def test_rows_that_the_model_refuses_are_a_sentence(tmp_path: Path) -> None:
    """Fails on an assertion: rows were read that the model did not take."""
    rows = ROWS.copy()
    rows[30] = 1e170
    for _ in range(2):
        with pytest.raises(BadInputError, match=r"squares are too large.*divide all rows"):
            learn(iter([rows]), tmp_path / "s", commit_seconds=0.0)
    assert kept_state(tmp_path / "s")[1].rows == 24
    assert learn(iter([ROWS]), tmp_path / "s").rows == 60
    assert_learnt(tmp_path / "s", ROWS)


def test_an_open_stream_must_be_at_its_beginning(tmp_path: Path) -> None:
    """Fails if rows that somebody else has read are missing from the model without a word."""
    stream = Directory(files(tmp_path / "in", a=ROWS))
    stream.read(5)
    with pytest.raises(BadInputError, match=r"Directory has already been read from.*open it again"):
        learn(stream, tmp_path / "s")
    fresh = ZarrRows(open_source(ROWS))
    assert learn(fresh, tmp_path / "t").rows == 60 and learn(fresh, tmp_path / "t").new_rows == 0
    with pytest.raises(RefusedError, match=r"which only the program that started it can provide"):
        resume_stream(tmp_path / "t")


@pytest.mark.slow
def test_when_a_commit_was_made_leaves_no_trace(tmp_path: Path) -> None:
    """Fails if a clock reaches the bits: a commit after every batch, and one at the end."""
    path = write_zarr(tmp_path / "a.zarr", ROWS, (7, D))
    for name, seconds in (("s", 0.0), ("t", 1e9)):
        learn(path, tmp_path / name, commit_seconds=seconds, center=True, held_out=ROWS[:9], measure_rows=5)
    same_end(tmp_path / "s", tmp_path / "t")


@pytest.mark.slow
def test_what_cannot_be_resumed_is_said(tmp_path: Path) -> None:
    learn(ROWS, tmp_path / "array")
    learn(iter([ROWS]), tmp_path / "iterator")
    path = write_zarr(tmp_path / "a.zarr", ROWS, (7, D))
    learn(path, tmp_path / "held", held_out=ROWS[:4])
    for name, sentence in (
        ("array", "only the program that started it"),
        ("iterator", "an iterator"),
        ("held", "as an array"),
    ):
        with pytest.raises(RefusedError, match=sentence):
            resume_stream(tmp_path / name)
    (tmp_path / "folder").mkdir()
    for name in ("folder", "nothing"):
        with pytest.raises(BadInputError, match=r"is not the store of a stream: name the folder"):
            resume_stream(tmp_path / name)
    learn(path, tmp_path / "good", held_out=path)
    assert resume_stream(tmp_path / "good").last.suboptimality is not None


@pytest.mark.parametrize(("held_out", "sentence"), [
    (ROWS[:, :-1], "held-out rows of shape"), (ROWS.astype(str), "held-out rows of type <U"),
    ([[1.0] * D], "held_out is a list: give an array of rows, or a Zarr store"), ("nowhere", "there is nothing at"),
])  # fmt: skip
def test_held_out_rows_that_do_not_fit(held_out: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=sentence):
        learn(ROWS, tmp_path / "s", held_out=held_out)
    assert not (tmp_path / "s").exists()


def test_resources_that_a_stream_cannot_use(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"commit_seconds = -1 must be at least 0"):
        learn(ROWS, tmp_path / "s", commit_seconds=-1)


def test_the_clock_of_commits() -> None:
    times = iter([0.0, 1.0, 5.0, 5.0, 6.0, 11.0, 11.0])
    clock = Stopwatch(5.0, lambda: next(times))
    assert [clock.is_time() for _ in range(4)] == [False, True, False, True]
