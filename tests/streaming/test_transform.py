"""Scores are X @ V, of every source and along the components of every store, written whole or not at all."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from scipy.sparse import csr_matrix, random_array

import npmdask
from npmdask.api import resume, top_k
from npmdask.cli.main import main
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import OPERATORS, register_operator
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.manage.report import export
from npmdask.manage.status import inspect
from npmdask.streaming import StreamingPCA, stream_pca
from npmdask.streaming.transform import transform
from npmdask.writers.dense import CHUNK_BYTES
from tests.conftest import write_zarr
from tests.core.runs.test_registered_operators import ROWS, of_rows
from tests.privacy.runs.conftest import make_world, records
from tests.streaming.test_report import D, K, rows_of

X = rows_of(300) + 7.0  # far from centred


def written(dest: Path) -> np.ndarray:
    return np.asarray(zarr.open_group(dest, mode="r")["data"][...])


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-11 * np.abs(wanted).max())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A centred stream of X."""
    stream_pca(iter([X]), K, batch_rows=50, center=True, store=tmp_path / "s")
    return tmp_path / "s"


def along(store: Path, rows: np.ndarray) -> np.ndarray:
    """Scores by hand."""
    model = StreamingPCA.load(store)
    return (rows - (0 if model.mean is None else model.mean)) @ model.basis


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zarr", "array", "file", "directory", "iterator", "callable"])
def test_every_source_gives_the_same_scores(kind: str, store: Path, tmp_path: Path) -> None:
    """Fails when rows are lost at the border of two batches, taken twice, or not in their order."""
    write_zarr(tmp_path / "x.zarr", X, (64, 5))
    (tmp_path / "in").mkdir()
    for i, part in enumerate(np.split(X, 3)):
        np.save(tmp_path / "in" / f"{i}.npy", part)
    np.save(tmp_path / "x.npy", X)
    sources: dict[str, Any] = {
        "zarr": tmp_path / "x.zarr",
        "array": X,
        "file": tmp_path / "x.npy",
        "directory": str(tmp_path / "in"),
        "iterator": iter([X[:31], X[31:]]),
        "callable": lambda: np.split(X, 10),
    }
    found = transform(store, sources[kind], tmp_path / "scores", batch_rows=47)
    close(written(tmp_path / "scores"), along(store, X))
    assert (found.rows, found.columns, found.skipped, found.centered, found.scaled) == (300, K, 0, True, False)
    assert found.dest == str(tmp_path / "scores") and found.rows_per_second > 0


@pytest.mark.slow
def test_the_scores_are_a_registered_data_set(store: Path, tmp_path: Path) -> None:
    """Fails when checksums, kind or where the scores come from are not recorded."""
    found = transform(store, X, tmp_path / "scores")
    facts = inspect(tmp_path / "scores")
    assert (facts["kind"], facts["rows"], facts["columns"], facts["dtype"]) == ("samples", 300, K, "float64")
    assert facts["checksums"] == "recorded" and facts["fingerprint"] == found.fingerprint
    record = dict(zarr.open_group(tmp_path / "scores", mode="r").attrs)["npmdask"]["scores"]
    assert record == {"store": str(store), "source": found.source, "skipped": 0}
    np.testing.assert_allclose(open_source(tmp_path / "scores").column_mean, along(store, X).mean(axis=0), atol=1e-10)
    assert {p.name for p in tmp_path.iterdir()} == {"s", "scores"}


@pytest.mark.slow
def test_standard_input_need_not_say_how_wide_it_is(store: Path, tmp_path: Path) -> None:
    code = "import sys; from npmdask.streaming.transform import transform; transform(*sys.argv[1:4], format='npy')"
    np.save(tmp_path / "x.npy", X)
    with open(tmp_path / "x.npy", "rb") as file:
        command = [sys.executable, "-c", code, str(store), "-", str(tmp_path / "scores")]
        subprocess.run(command, stdin=file, check=True, timeout=120)
    close(written(tmp_path / "scores"), along(store, X))


# Components


@pytest.mark.slow
def test_of_a_saved_model_and_of_a_stream_that_was_cut_short(tmp_path: Path) -> None:
    """Fails when a finished answer is asked for where a commit suffices."""

    def cut_short() -> Iterator[np.ndarray]:
        yield X
        raise OSError("the line is dead")

    with pytest.raises(BadInputError, match="the line is dead"):
        stream_pca(cut_short(), K, batch_rows=50, store=tmp_path / "s")
    StreamingPCA.load(tmp_path / "s").save(tmp_path / "model")
    for name in ("s", "model"):
        transform(tmp_path / name, X, tmp_path / f"scores-{name}")
        close(written(tmp_path / f"scores-{name}"), along(tmp_path / "s", X))


@pytest.mark.slow
@pytest.mark.parametrize("ingested", [False, True])
@pytest.mark.parametrize(("center", "scale"), [(False, False), (True, False), (False, True), (True, True)])
def test_of_a_finished_run(center: bool, scale: bool, ingested: bool, tmp_path: Path) -> None:
    """Fails when rows are not centred and scaled like those of the run, from its survey or from its source."""
    rows = X * np.arange(1, D + 1)
    rows[:, 3] = 4.0  # a constant column is not divided by the rounding of its deviation
    path = write_zarr(tmp_path / "x.zarr", rows, (64, D))
    if ingested:
        np.save(tmp_path / "x.npy", rows)
        path = tmp_path / "i.zarr"
        ingest(tmp_path / "x.npy", path, kind="samples")
    run = top_k(path, K, kind="samples", center=center, scale=scale, store=tmp_path / "run")
    new = rows_of(40, seed=9)
    found = transform(tmp_path / "run", new, tmp_path / "scores")
    assert (found.centered, found.scaled) == (center, scale)
    deviation = np.where(np.arange(D) == 3, 1.0, rows.std(axis=0)) if scale else 1.0
    close(written(tmp_path / "scores"), (new - (rows.mean(axis=0) if center else 0)) / deviation @ run.basis)


@pytest.mark.slow
def test_of_a_run_on_sparse_data(tmp_path: Path) -> None:
    """Fails when the rows of a CSR matrix, or the rule for its deviations, are another's."""
    x = csr_matrix(random_array((200, D), density=0.3, rng=np.random.default_rng(3)))
    group = zarr.create_group(tmp_path / "x.zarr")
    for name, array in (("data", x.data), ("indices", x.indices), ("indptr", x.indptr)):
        group.create_array(name, data=array)
    group.attrs.update({"encoding-type": "csr_matrix", "shape": list(x.shape)})
    run = top_k(tmp_path / "x.zarr", K, scale=True, center=True, store=tmp_path / "run")
    transform(tmp_path / "run", tmp_path / "x.zarr", tmp_path / "scores")
    dense = x.toarray()
    close(written(tmp_path / "scores"), (dense - dense.mean(axis=0)) / dense.std(axis=0) @ run.basis)


@pytest.mark.slow
def test_of_a_private_release(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", records(400))
    basis = world.solve("run").basis
    transform(world.folder / "run", X, tmp_path / "scores")
    close(written(tmp_path / "scores"), X @ basis)


@pytest.mark.slow
def test_an_ingested_file_that_is_rewritten_takes_no_answer_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Old nights of a schedule keep their scores, their rotations and their answer. Fails when rows are centred by the
    means of another data set; of a run that keeps none, as those of before, a sentence says what is missing.
    """
    np.save(tmp_path / "x.npy", X)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="samples")
    run = top_k(tmp_path / "x.zarr", K, center=True, store=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "before.npz", rotate="varimax")
    np.save(tmp_path / "x.npy", X + 1)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="samples", overwrite=True)
    transform(tmp_path / "run", X, tmp_path / "scores.npy")
    close(np.load(tmp_path / "scores.npy"), (X - X.mean(axis=0)) @ run.basis)
    export(tmp_path / "run", tmp_path / "after.npz", rotate="varimax")
    with np.load(tmp_path / "before.npz") as before, np.load(tmp_path / "after.npz") as after:
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[name], after[name]) for name in before)
    again = resume(tmp_path / "run")
    assert isinstance(again, Solution) and again.store == run.store
    np.testing.assert_array_equal(again.basis, run.basis)
    assert "x.zarr has changed since: this is the answer of the run as it was stored" in again.warnings[-1]
    shutil.rmtree(tmp_path / "run" / "columns")
    with pytest.raises(BadInputError, match="changed since: put it back"):
        transform(tmp_path / "run", X, tmp_path / "scores")
    capsys.readouterr()
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "old.npz"), "--rotate", "varimax"]) == 0
    assert "exported without score_weights and mean" in capsys.readouterr().err
    with np.load(tmp_path / "after.npz") as after, np.load(tmp_path / "old.npz") as old:
        assert np.array_equal(after["basis"], old["basis"]) and after.keys() - old.keys() == {"score_weights", "mean"}
    (tmp_path / "x.zarr").rename(tmp_path / "elsewhere.zarr")
    with pytest.raises(BadInputError, match=r"are stored with its source: there is nothing at .*x\.zarr"):
        transform(tmp_path / "run", X, tmp_path / "scores")
    again = resume(tmp_path / "run")
    assert isinstance(again, Solution) and "there is nothing at" in again.warnings[-1]


# Files


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_the_ending_says_which_file_is_written(
    suffix: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when a folder is called scores.npy, as it was, or a batch of rows is lost."""
    np.save(tmp_path / "x.npy", X)
    dest = tmp_path / f"scores{suffix}"
    command = ["transform", str(store), str(tmp_path / "x.npy"), str(dest), "--batch-rows", "47"]
    assert main(command) == 0
    read = {".npy": np.load, ".csv": pd.read_csv, ".parquet": pd.read_parquet}[suffix]
    assert f"{read.__name__}({str(dest)!r})" in capsys.readouterr().out, "how it is opened is said"
    found = read(dest)
    if suffix != ".npy":
        assert list(found.columns) == [f"component{i + 1}" for i in range(K)]
    np.testing.assert_array_equal(np.asarray(found, np.float64).shape, (300, K))
    close(np.asarray(found, np.float64), along(store, X))
    before = dest.read_bytes()
    assert main(command) == RefusedError.exit_code and "--overwrite" in capsys.readouterr().err
    assert dest.read_bytes() == before
    assert main([*command, "--overwrite"]) == 0
    np.testing.assert_array_equal(np.asarray(read(dest)), np.asarray(found))  # Parquet has the time of writing in it
    assert {path.name for path in tmp_path.iterdir()} == {"s", "x.npy", dest.name}


def test_of_a_file_nothing_is_left_where_a_row_is_refused(store: Path, tmp_path: Path) -> None:
    rows = X.copy()
    rows[250, 1] = np.nan
    with pytest.raises(BadInputError, match="row 250"):
        transform(store, rows, tmp_path / "scores.npy", batch_rows=20)
    assert {path.name for path in tmp_path.iterdir()} == {"s"}
    (tmp_path / "scores.npy").mkdir()
    with pytest.raises(RefusedError, match="is a folder; choose another name"):
        transform(store, X, tmp_path / "scores.npy", overwrite=True)


def test_endings_of_other_files_are_no_folders(store: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"not written as \.nc: give a name that ends in \.npy, \.csv or"):
        transform(store, X, tmp_path / "scores.nc")
    assert {path.name for path in tmp_path.iterdir()} == {"s"}


# What is refused


@pytest.mark.slow
def test_a_place_that_is_taken_stays_as_it_is(store: Path, tmp_path: Path) -> None:
    transform(store, X, tmp_path / "scores")
    with pytest.raises(RefusedError, match="exists already"):
        transform(store, X[:9], tmp_path / "scores")
    assert len(written(tmp_path / "scores")) == 300
    transform(store, X[:9], tmp_path / "scores", overwrite=True)
    close(written(tmp_path / "scores"), along(store, X[:9]))


def test_rows_that_do_not_fit_leave_nothing_behind(store: Path, tmp_path: Path) -> None:
    """Fails when a data set of some of the rows appears, or is left aside."""
    bad = X.copy()
    bad[200, 4] = np.nan
    before = set(tmp_path.iterdir())
    for rows, said in (
        (bad, "row 200 of .* holds NaN"),
        (X[:, :-1], f"11 columns and the components in .* have {D}"),
        (iter([X, X[:, :-1]]), "every batch needs the same columns"),
    ):
        with pytest.raises(BadInputError, match=said):
            transform(store, rows, tmp_path / "scores", batch_rows=50)
        assert set(tmp_path.iterdir()) == before
    with pytest.raises(BadInputError, match="no rows to transform"):
        transform(store, np.full((3, D), np.nan), tmp_path / "scores", non_finite="skip")
    with pytest.raises(KeyboardInterrupt):
        transform(store, interrupted(), tmp_path / "scores", batch_rows=50)
    with pytest.raises(BadInputError, match="must be on this machine"):
        transform(store, X, "s3://bucket/scores")
    assert set(tmp_path.iterdir()) == before


def interrupted() -> Iterator[np.ndarray]:
    yield X
    raise KeyboardInterrupt


@pytest.mark.slow
def test_rows_that_are_not_finite_are_left_out_and_counted(store: Path, tmp_path: Path) -> None:
    bad = X.copy()
    bad[[5, 200], 4] = np.inf
    found = transform(store, bad, tmp_path / "scores", non_finite="skip", batch_rows=50)
    assert (found.rows, found.skipped) == (298, 2)
    close(written(tmp_path / "scores"), along(store, np.delete(X, [5, 200], axis=0)))


def test_what_holds_no_components_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="does not hold a streaming model"):
        transform(tmp_path / "nothing", X, tmp_path / "scores")
    top_k(X, K, kind="samples", store=tmp_path / "run")
    (tmp_path / "run" / "result").rename(tmp_path / "gone")
    with pytest.raises(BadInputError, match="holds no finished run; `npmdask resume"):
        transform(tmp_path / "run", X, tmp_path / "scores")


KILLED = """
import os, sys
import numpy as np
from npmdask.writers import dense, journal
from npmdask.streaming.transform import transform

def rows():
    yield np.load("x.npy", allow_pickle=False)
    os.kill(os.getpid(), 9)

dense.CHUNK_BYTES, journal.JOURNAL_BYTES = 160, 0
transform(sys.argv[1], rows(), "scores", batch_rows=50)
"""


@pytest.mark.slow
def test_what_a_kill_has_left_is_not_gone_on_with(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a killed call leaves a data set, or its rows are taken for those of the next call."""
    np.save(tmp_path / "x.npy", -X)
    done = subprocess.run([sys.executable, "-c", KILLED, str(store)], cwd=tmp_path, timeout=120)
    assert done.returncode == -signal.SIGKILL and not (tmp_path / "scores").exists()
    assert list((tmp_path / "scores.partial" / "journal").iterdir())
    monkeypatch.setattr("npmdask.writers.dense.CHUNK_BYTES", 160)  # the same chunks
    transform(store, X, tmp_path / "scores")
    close(written(tmp_path / "scores"), along(store, X))
    assert not list(tmp_path.glob("scores.partial*"))


# Cost


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """Fails when scores or rows are gathered: 64 MB of rows and 32 of scores pass through a chunk and its copy."""
    n, part = 2 * 10**6, np.random.default_rng(0).standard_normal((10**5, 4))
    array = zarr.create_array(tmp_path / "x.zarr", shape=(n, 4), dtype="float64", chunks=(20000, 4))
    for start in range(0, n, len(part)):
        array[start : start + len(part)] = part
    stream_pca(iter([part[:600]]), K, store=tmp_path / "s")
    tracemalloc.start()
    try:
        transform(tmp_path / "s", tmp_path / "x.zarr", tmp_path / "scores", batch_rows=5000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * CHUNK_BYTES + 8 * 2**20
    assert written(tmp_path / "scores").shape == (n, K)


@pytest.mark.slow
def test_progress_is_told(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a long call gives no sign of life; the clock of signs is turned to always."""
    told: list[tuple[int, int]] = []

    class Listener(Observer):
        def on_rows(self, rows: int, skipped: int, rate: float) -> None:
            told.append((rows, skipped))

    monkeypatch.setattr("npmdask.streaming.transform.TELL_SECONDS", 0.0)
    transform(store, X, tmp_path / "scores", batch_rows=100, observer=Listener())
    assert told == [(100, 0), (200, 0), (300, 0)]


@pytest.mark.slow
def test_scores_are_of_columns(tmp_path: Path) -> None:
    """The eigenvectors of an operator on rows are no directions of the columns."""
    register_operator("of rows", of_rows)
    try:
        run, source = tmp_path / "run", write_zarr(tmp_path / "x.zarr", ROWS, (64, 12))
        assert npmdask.top_k(source, 1, operator="of rows", store=run).basis.shape == (300, 1)
        with pytest.raises(BadInputError, match="'of rows', which does not act on columns"):
            transform(run, source, tmp_path / "scores.npy")
    finally:
        del OPERATORS["of rows"]
