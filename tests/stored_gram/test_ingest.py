"""A Gram that is formed while its rows are ingested has the bits of one that is formed of them afterwards."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import npmdask
from npmdask.cli.main import main
from npmdask.core.operators import _protocol, gram_matrix
from npmdask.core.runs.observers import Observer
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.stored_gram import ingest as gram_ingest
from npmdask.stored_gram.ingest import Follower, ingest_with_gram
from npmdask.writers import journal


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many runs, of which a pass has as many parts."""
    monkeypatch.setattr(gram_matrix, "SUMS_READ", 0)
    monkeypatch.setattr(_protocol, "RUN_BYTES", 30_000)
    monkeypatch.setattr(_protocol, "COLUMN_BYTES", 1)


def same_sums(one: Path, other: Path) -> None:
    """Every file of every part, and nothing else."""
    parts = [sorted(path.relative_to(store) for path in store.glob("part-*/**/*")) for store in (one, other)]
    assert parts[0] == parts[1] and parts[0]
    for name in parts[0]:
        assert (one / name).is_dir() or (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype, shape, chunks",
    [
        ("f8", (3030, 20), (100, 20)),
        ("f4", (1700, 30), (100, 11)),
        ("i2", (2100, 10), (70, 10)),
        ("f8", (90, 8), (100, 8)),
        ("f8", (2900, 20), (100, 20)),
    ],
)
def test_it_has_the_bits_of_one_that_is_formed_afterwards(
    dtype: str, shape: tuple[int, int], chunks: tuple[int, int], tmp_path: Path
) -> None:
    """And only what is no full row of chunks is read again. Mutants: parts joined as they come, another probe."""
    x = (np.random.default_rng(0).standard_normal(shape) * 50 + 7).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    _, store = ingest_with_gram(tmp_path / "x.npy", tmp_path / "x.zarr", tmp_path / "G", chunks=chunks)
    assert store.bytes_read == shape[0] % min(chunks[0], shape[0]) * shape[1] * x.itemsize
    npmdask.gram(tmp_path / "x.zarr", tmp_path / "after")
    same_sums(tmp_path / "G", tmp_path / "after")
    again = npmdask.gram(tmp_path / "x.zarr", tmp_path / "G")
    assert (again.rows_read, again.bytes_read) == (0, 0)


class Killed(Exception):
    """In place of a kill."""


@pytest.mark.slow
def test_sums_that_take_longer_than_writing_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is renamed when it is whole. Sums are held back until they are waited for, or until it is. Mutant: no
    waiting; a chunk is not found any more.
    """
    add, wait, waiting = Follower._add, gram_ingest.wait, Event()

    def late(self: Follower, number: int) -> None:
        while not (waiting.is_set() or (tmp_path / "x.zarr").exists()):
            time.sleep(0.01)
        add(self, number)

    def waited(futures: Any) -> Any:
        waiting.set()
        return wait(futures)

    monkeypatch.setattr(Follower, "_add", late)
    monkeypatch.setattr(gram_ingest, "wait", waited)
    x = np.random.default_rng(0).standard_normal((530, 20))
    np.save(tmp_path / "x.npy", x)
    _, store = ingest_with_gram(tmp_path / "x.npy", tmp_path / "x.zarr", tmp_path / "G", chunks=(100, 20))
    np.testing.assert_allclose(
        npmdask.top_k(str(store.store), 3).values, np.linalg.eigvalsh(x.T @ x / 530)[:-4:-1], rtol=1e-12
    )


def test_what_goes_wrong_with_sums_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the pass that comes last would sum all again. Mutant: results of the thread are not asked for."""

    def failing(*_: Any) -> Any:
        raise ArithmeticError("of the sums")

    monkeypatch.setattr(gram_ingest, "compute_run", failing)
    np.save(tmp_path / "x.npy", np.ones((500, 20)))
    with pytest.raises(ArithmeticError, match="of the sums"):
        ingest_with_gram(tmp_path / "x.npy", tmp_path / "x.zarr", tmp_path / "G", chunks=(100, 20))


@pytest.mark.slow
@pytest.mark.parametrize("at", [0.3, 0.95])
def test_a_killed_ingest_goes_on(at: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were written before are summed too. Mutant: those of the later call alone."""
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 50_000)
    x = np.random.default_rng(0).standard_normal((3030, 20))
    np.save(tmp_path / "x.npy", x)
    asked: dict[str, Any] = {"chunks": (100, 20)}
    paths = (tmp_path / "x.npy", tmp_path / "x.zarr", tmp_path / "G")
    follow = Follower.__call__

    def killing(self: Follower, array: Any, slabs: int) -> None:
        if slabs > at * 30:
            raise Killed
        follow(self, array, slabs)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Follower, "__call__", killing)
        ingest_with_gram(*paths, **asked)
    assert not paths[1].exists() and not paths[2].exists()
    _, store = ingest_with_gram(*paths, **asked)
    assert store.bytes_read == 30 * 20 * 8
    npmdask.gram(tmp_path / "x.zarr", tmp_path / "after")
    same_sums(tmp_path / "G", tmp_path / "after")


def test_a_kill_between_the_two_stores_says_how_to_go_on(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((30, 4)))
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    with pytest.raises(RefusedError, match=r"form its Gram with `npmdask gram .*x.zarr .*G`"):
        ingest_with_gram(tmp_path / "x.npy", tmp_path / "x.zarr", tmp_path / "G")
    npmdask.gram(tmp_path / "x.zarr", tmp_path / "G")
    with pytest.raises(RefusedError, match="G exists already: give the Gram of the new store another name"):
        ingest_with_gram(tmp_path / "x.npy", tmp_path / "y.zarr", tmp_path / "G")
    assert not (tmp_path / "y.zarr").exists()


@pytest.mark.slow
def test_other_chunks_than_were_summed_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk has not kept what was written, the reader of the new store says so. Mutant: sums are trusted."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((1000, 20)))
    asked = (tmp_path / "x.npy", tmp_path / "x.zarr", tmp_path / "G")
    add = Follower._add

    def rotting(self: Follower, number: int) -> None:
        add(self, number)
        for part in self._parts.values():
            part.record.checksums = {place: 1 for place in part.record.checksums}

    monkeypatch.setattr(Follower, "_add", rotting)
    _, store = ingest_with_gram(*asked, chunks=(100, 20))
    assert store.bytes_read == 1000 * 20 * 8


@pytest.mark.slow
def test_text_and_sparse_rows_are_read_once_more(tmp_path: Path) -> None:
    """The number of rows, which decides how a pass is cut, is known at their end only. Observers are told of it."""
    passes: list[int] = []

    class Watching(Observer):
        def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
            passes.append(total_bytes)

    x = np.random.default_rng(0).standard_normal((400, 5)).round(3)
    np.savetxt(tmp_path / "x.csv", x, delimiter=",")
    _, store = ingest_with_gram(tmp_path / "x.csv", tmp_path / "x.zarr", tmp_path / "G", observer=Watching())
    assert store.bytes_read == 400 * 5 * 8 == passes[0]
    np.testing.assert_allclose(store.matrix(), 399 * np.cov(x.T), rtol=1e-12)
    sp.save_npz(tmp_path / "s.npz", sp.random(300, 20, 0.1, "csr", random_state=0))
    _, store = ingest_with_gram(tmp_path / "s.npz", tmp_path / "s.zarr", tmp_path / "S")
    assert store.kind == "sparse" and store.rows == 300


def test_what_has_no_gram_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.eye(300))
    asked = (tmp_path / "x.npy", tmp_path / "x.zarr", tmp_path / "G")
    with pytest.raises(BadInputError, match="not of kind symmetric"):
        ingest_with_gram(*asked, kind="symmetric")
    with pytest.raises(BadInputError, match="rows without gaps"):
        ingest_with_gram(*asked, non_finite="missing")
    monkeypatch.setattr(gram_ingest, "free_memory", lambda: 0)
    with pytest.raises(RefusedError, match="too small"):
        ingest_with_gram(*asked)
    assert not (tmp_path / "x.zarr").exists() and not (tmp_path / "G").exists()


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((500, 6)))
    store = str(tmp_path / "G")
    assert main(["ingest", str(tmp_path / "x.npy"), str(tmp_path / "x.zarr"), "--gram", store, "--quiet"]) == 0
    assert "<GramStore: 500 rows of 6 columns, kind samples" in capsys.readouterr().out
    assert npmdask.top_k(store, 2, center=True).data_passes == 0


@pytest.mark.slow
def test_the_gram_of_shards_is_formed_while_they_are_written(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((900, 20)))
    said = [str(tmp_path / name) for name in ("x.npy", "s.zarr")]
    assert main(["ingest", *said, "--shards", "32KiB", "--gram", str(tmp_path / "g"), "--quiet"]) == 0
    assert open_source(said[1]).reader.grid == (5, 1)  # type: ignore[union-attr]
    npmdask.gram(said[1], tmp_path / "h")
    same_sums(tmp_path / "g", tmp_path / "h")
