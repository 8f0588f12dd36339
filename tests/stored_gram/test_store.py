"""A stored Gram: formed in one pass, the same after a kill, added to, merged, reduced, and asked without a row."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from scipy.sparse.linalg import aslinearoperator
from threadpoolctl import threadpool_info, threadpool_limits

import npmdask
from npmdask import GramStore
from npmdask.core.execution.memory import tree_rss
from npmdask.core.operators import _protocol
from npmdask.errors import BadInputError, MemoryRefusedError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.stored_gram import parts as gram_parts
from tests.conftest import write_zarr

CHUNK = 64


def some(rows: int = 300, columns: int = 12, seed: int = 0, shift: float = 3.0) -> np.ndarray:
    """Rows about ``shift`` whose columns have variances of their own."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, columns)) * np.geomspace(8, 1, columns) + shift


def plain(folder: Path, rows: np.ndarray, name: str = "x.zarr") -> Path:
    return write_zarr(folder / name, rows, (CHUNK, rows.shape[1]))


def append(path: Path, rows: np.ndarray) -> None:
    zarr.open_array(path, mode="a").append(rows)


def require_gram_of(store: GramStore, rows: np.ndarray, rtol: float = 1e-13) -> None:
    """The sums are those of ``rows``."""
    a = rows - rows.mean(axis=0)
    assert store.rows == len(rows)
    np.testing.assert_allclose(store.mean, rows.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(store.matrix(), a.T @ a, rtol=0, atol=rtol * np.linalg.norm(a) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "matrix", "sparse"])
@pytest.mark.parametrize("rows", [5 * CHUNK, 5 * CHUNK + 7])
def test_it_answers_as_the_rows_do(kind: str, rows: int, tmp_path: Path) -> None:
    """Any k, centred or not, scaled or not: the values and vectors of a run on the rows, and their statistics."""
    x = some(rows)
    given: Any = sp.csr_matrix(x) if kind == "sparse" else plain(tmp_path, x)
    store = npmdask.gram(given, tmp_path / "G", kind=kind)
    for k, center, scale in ((3, True, False), (5, False, False), (2, True, True), (12, False, True)):
        found = npmdask.top_k(tmp_path / "G", k, center=center, scale=scale)
        other = npmdask.top_k(given, k, kind=kind, center=center, scale=scale, algorithm="gram")
        assert found.converged and found.data_passes == found.total_data_passes == found.bytes_read == 0
        np.testing.assert_allclose(found.values, other.values, rtol=1e-12)
        np.testing.assert_allclose(found.basis, other.basis, atol=1e-10)
        np.testing.assert_allclose(found.scores(x), other.scores(x), atol=1e-8)
        assert np.isclose(found.explained_share or 0, other.explained_share or 0, rtol=1e-12)
        if center:
            np.testing.assert_allclose(found.explained_variance, other.explained_variance, rtol=1e-12)
        if kind != "sparse" and rows == 5 * CHUNK and not scale:
            assert found.values.tobytes() == other.values.tobytes() or kind == "matrix", "one part: the same path"
    assert store.rows_read == rows and store.fingerprint == GramStore(tmp_path / "G").fingerprint


@pytest.mark.slow
def test_float32_rows_are_summed_as_the_run_sums_them(tmp_path: Path) -> None:
    x = some(4 * CHUNK).astype(np.float32)
    npmdask.gram(plain(tmp_path, x), tmp_path / "G", kind="samples")
    found = npmdask.top_k(tmp_path / "G", 3, center=True)
    other = npmdask.top_k(tmp_path / "x.zarr", 3, kind="samples", center=True, algorithm="gram")
    assert found.values.tobytes() == other.values.tobytes() and found.basis.tobytes() == other.basis.tobytes()
    assert "tol 1.0e-06" in found.outcome.sentence


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["u1", "i2", "i8", "f4"])
def test_integers_are_centred_by_the_rows_of_their_part(dtype: str, tmp_path: Path) -> None:
    """Whole numbers, in parts of very different sizes: each has a number of rows of its own."""
    x = np.random.default_rng(0).integers(0, 200, (3 * CHUNK + 5, 8)).astype(dtype)
    path = plain(tmp_path, x[: 2 * CHUNK + 1])
    npmdask.gram(path, tmp_path / "G", kind="samples")
    append(path, x[2 * CHUNK + 1 :])
    require_gram_of(npmdask.gram(path, tmp_path / "G", kind="samples"), x.astype(float))
    found = npmdask.top_k(tmp_path / "G", 2, center=True)
    other = npmdask.top_k(x.astype(float), 2, kind="samples", center=True)
    np.testing.assert_allclose(found.values, other.values, rtol=1e-12)
    left = x[CHUNK : 2 * CHUNK]
    npmdask.gram(plain(tmp_path, left, "part.zarr"), tmp_path / "P", kind="samples")
    rest = GramStore(tmp_path / "G").remove(tmp_path / "P", tmp_path / "R")
    require_gram_of(rest, np.concatenate([x[:CHUNK], x[2 * CHUNK :]]).astype(float))


@pytest.mark.slow
def test_a_run_on_it_is_a_run(tmp_path: Path) -> None:
    """It is resumed, deflated and reported; its rows are scored without the Gram; of another Gram it is refused."""
    x = some()
    path = plain(tmp_path, x)
    npmdask.gram(path, tmp_path / "G", kind="samples")
    first = npmdask.top_k(tmp_path / "G", 2, center=True, store=tmp_path / "run")
    again = npmdask.resume(tmp_path / "run")
    assert isinstance(again, npmdask.Solution) and again.values.tobytes() == first.values.tobytes()
    more = npmdask.deflate(tmp_path / "run", 3, store=tmp_path / "more")
    assert more.converged and len(more.values) == 5 and more.data_passes == 0
    assert "prediction" in first.prediction and "stored" in first.prediction["prediction"]
    append(path, some(50, seed=1))
    npmdask.gram(path, tmp_path / "G", kind="samples")
    with pytest.raises(RefusedError, match=r"^use another store for the data as they are now, or put back"):
        npmdask.top_k(tmp_path / "G", 2, center=True, store=tmp_path / "run")


def test_left_vectors_need_rows(tmp_path: Path) -> None:
    x = some()
    npmdask.gram(x, tmp_path / "G")
    found = npmdask.top_k(tmp_path / "G", 2, store=tmp_path / "run")
    np.testing.assert_allclose(found.values, np.linalg.svd(x, compute_uv=False)[:2], rtol=1e-12)
    with pytest.raises(BadInputError, match="was formed of a stored Gram, without rows"):
        found.left_basis()


@pytest.mark.slow
def test_a_share_of_the_variance_is_counted_on_the_spectrum(tmp_path: Path) -> None:
    x = some(columns=15)
    store = npmdask.gram(x, tmp_path / "G", kind="samples")
    values = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    shares = np.cumsum(values) / values.sum()
    np.testing.assert_allclose(store.spectrum(center=True) * 300 / 299, values, rtol=1e-12)
    for share in (0.3, 0.9, 0.95, 0.999):
        wanted = int(np.argmax(shares >= share)) + 1
        found = npmdask.top_k(tmp_path / "G", share, center=True, store=tmp_path / f"run-{share}")
        assert found.target_rank == wanted == store.components_for(share) and found.converged
        assert f"(asked for: {100 * share:g}%)" in found.outcome.sentence
        assert npmdask.resume(tmp_path / f"run-{share}").outcome == found.outcome
    with pytest.raises(BadInputError, match="strictly between 0 and 1"):
        store.components_for(1.0)


@pytest.mark.slow
def test_columns_are_chosen_by_name_and_by_number(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    x = some(columns=5)
    store = npmdask.gram(pd.DataFrame(x, columns=list("abcde")), tmp_path / "G", kind="samples")
    for chosen, places in ((["d", "a", "c"], [3, 0, 2]), ([4, 1], [4, 1])):
        part = GramStore(tmp_path / "G").select(chosen)
        found = npmdask.top_k(part, 2, center=True)
        other = npmdask.top_k(x[:, places], 2, kind="samples", center=True)
        np.testing.assert_allclose(found.values, other.values, rtol=1e-12)
        np.testing.assert_allclose(found.basis, other.basis, atol=1e-10)
        assert part.labels.columns[0].places.tolist() == ["abcde"[i] for i in places]
    again = store.select(["d", "a", "c"]).select(["c", "d"])
    np.testing.assert_array_equal(again.mean, store.mean[[2, 3]])
    for wrong, said in ((["z"], "no column 'z'"), ([5], "no column 5"), (["a", 0], "once each"), ([], "once each")):
        with pytest.raises(BadInputError, match=said):
            store.select(wrong)


@pytest.mark.slow
def test_float32_columns_that_are_chosen(tmp_path: Path) -> None:
    """Those that vary most, whose errors are the largest: fails when the bound is that of other columns."""
    x = np.random.default_rng(0).standard_normal((2000, 20)).astype(np.float32) * np.logspace(-3, 3, 20)
    store = npmdask.gram(x, tmp_path / "G", kind="samples", precision="float32")
    part, last = store.select(list(range(15, 20))), x[:, 15:] - x[:, 15:].mean(axis=0)
    found = npmdask.top_k(part, 2, center=True)
    error = np.linalg.norm(part.matrix() - last.T @ last, 2) / 2000
    assert error <= found.residual_norms.min() and not found.converged
    assert npmdask.top_k(part, 2, center=True, tol=1e-4).converged


KILLED = """
import os, sys
import npmdask
from npmdask.core.operators import _protocol
from npmdask.core.runs.observers import Observer

_protocol.RUN_BYTES = 2**20

class Killer(Observer):
    tasks = 0
    def on_task(self, record):
        self.tasks += bool(record.bytes_read)
        if self.tasks == int(sys.argv[3]):
            os.kill(os.getpid(), 9)

npmdask.gram(sys.argv[1], sys.argv[2], kind="samples", observer=Killer(), commit_seconds=0.0, threads=1)
"""


@pytest.mark.slow
def test_killed_inside_its_pass_it_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill -9 after each of some tasks: nothing that was committed is read again."""
    monkeypatch.setattr(_protocol, "RUN_BYTES", 2**20)
    x = np.random.default_rng(0).standard_normal((10_000, 256)).astype(np.float32)
    path = write_zarr(tmp_path / "x.zarr", x, (1000, 256))
    append(path, x[:300])
    whole = npmdask.gram(path, tmp_path / "whole", kind="samples")
    for after in (3, 6, 10):
        store = tmp_path / f"killed-{after}"
        done = subprocess.run([sys.executable, "-c", KILLED, path, store, str(after)], capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        again = npmdask.gram(path, store, kind="samples")
        assert 0 < again.bytes_read < whole.bytes_read, "parts that were committed are kept"
        assert again.fingerprint == whole.fingerprint
        for part in whole.parts:
            for file in (tmp_path / "whole" / part.name).iterdir():
                assert file.read_bytes() == (store / part.name / file.name).read_bytes(), file.name


def test_a_kill_between_its_parts_and_the_list_costs_no_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plain(tmp_path, some())

    def gone(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("npmdask.stored_gram.parts.list_parts", gone)
        with pytest.raises(KeyboardInterrupt):
            npmdask.gram(path, tmp_path / "G", kind="samples")
    with pytest.raises(BadInputError, match="is not finished: go on with `npmdask resume"):
        npmdask.top_k(tmp_path / "G", 2)
    assert npmdask.resume(tmp_path / "G").bytes_read == 0
    require_gram_of(GramStore(tmp_path / "G"), some())


@pytest.mark.slow
def test_threads_processes_and_graphs_sum_the_same_bits(tmp_path: Path) -> None:
    da = pytest.importorskip("dask.array")
    x = some(8 * CHUNK, 40)
    path = plain(tmp_path, x)
    one = npmdask.gram(path, tmp_path / "one", kind="samples", threads=1)
    for name, more in (("threads", {"threads": 2}), ("workers", {"workers": 2, "threads": 1})):
        assert npmdask.gram(path, tmp_path / name, kind="samples", **more).fingerprint == one.fingerprint
    lazy = da.from_array(x, chunks=(CHUNK, 40))
    require_gram_of(npmdask.gram(lazy, tmp_path / "lazy", kind="samples"), x)


# New rows, changed rows.


@pytest.mark.slow
@pytest.mark.parametrize("by_chunks", [None, 2])
def test_appended_rows_are_read_and_no_others(tmp_path: Path, by_chunks: int | None) -> None:
    """Also where they fill up the last chunk, which is read again as the part that it is."""
    x = some(1000, 8)
    path = plain(tmp_path, x[:200])
    assert npmdask.gram(path, tmp_path / "G", kind="samples", by_chunks=by_chunks).rows_read == 200
    for start, stop, read in ((200, 250, 250 - 192), (250, 256, 256 - 192), (256, 640, 384), (640, 1000, 360)):
        append(path, x[start:stop])
        found = npmdask.gram(path, tmp_path / "G", kind="samples", by_chunks=by_chunks)
        begun = 64 if by_chunks and start in (200, 250) else 0
        assert found.rows_read == read + begun and found.bytes_read == found.rows_read * 8 * 8, (start, found.rows_read)
        require_gram_of(found, x[:stop])
        assert len(found.parts) <= 2 or by_chunks
    assert npmdask.gram(path, tmp_path / "G", kind="samples", by_chunks=by_chunks).rows_read == 0
    assert len(list((tmp_path / "G").glob("part-*"))) == len(found.parts), "what no list names is removed"


@pytest.mark.slow
def test_of_an_ingested_store_the_recorded_checksums_tell(tmp_path: Path) -> None:
    x = some(300, 8)
    for rows, read in ((200, 200), (300, 108), (300, 0)):
        np.save(tmp_path / "x.npy", x[:rows])
        ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="samples", chunks=(CHUNK, 4), overwrite=True)
        found = npmdask.gram(tmp_path / "x.zarr", tmp_path / "G")
        assert found.rows_read == read and found.bytes_read == read * 64
        require_gram_of(found, x[:rows])


def test_rows_of_a_program_are_compared(tmp_path: Path) -> None:
    """There are neither checksums nor files: what it has is read again, and that is said."""
    x = some(2500, 6)
    npmdask.gram(x[:2100], tmp_path / "G", kind="samples")
    found = npmdask.gram(x, tmp_path / "G", kind="samples")
    assert found.rows_read == 2500 - 2048 and found.bytes_read == 2500 * 48
    require_gram_of(found, x)


def changed_in_the_middle(x: np.ndarray) -> np.ndarray:
    x[70, 2] += 1e-9
    return x


@pytest.mark.parametrize("stored", ["plain", "ingested", "memory"])
@pytest.mark.parametrize(
    "change, said",
    [
        (changed_in_the_middle, "rows 64 to 127"),
        (lambda x: np.concatenate([x[CHUNK : 2 * CHUNK], x[:CHUNK], x[2 * CHUNK :]]), "rows 0 to 63"),
        (lambda x: x[:100], "rows 64 to 127"),
        (lambda x: x[:128], "rows 128 to 191"),
    ],
)
def test_rows_that_changed_are_refused(tmp_path: Path, stored: str, change: Any, said: str) -> None:
    """A chunk of which one value changed, whole chunks in another order, fewer rows: nothing is added to them."""
    x = some(250, 6)

    def given(rows: np.ndarray) -> Any:
        if stored == "ingested":
            np.save(tmp_path / "x.npy", rows)
            ingest(tmp_path / "x.npy", tmp_path / "y.zarr", kind="samples", chunks=(CHUNK, 6), overwrite=True)
            return tmp_path / "y.zarr"
        if stored == "plain":
            return plain(tmp_path, rows)
        held = zarr.create_array({}, shape=rows.shape, dtype=rows.dtype, chunks=(CHUNK, 6))
        held[...] = rows
        return held

    before = npmdask.gram(given(x), tmp_path / "G", kind="samples")
    if stored == "plain":
        os.rename(tmp_path / "x.zarr", tmp_path / "old.zarr")
    with pytest.raises(RefusedError, match=f"{said} of .* are not those that"):
        npmdask.gram(given(change(x.copy())), tmp_path / "G", kind="samples")
    assert GramStore(tmp_path / "G").fingerprint == before.fingerprint


def test_a_sparse_matrix_that_grew_is_read_again(tmp_path: Path) -> None:
    x = sp.csr_matrix(np.where(some(400, 10, shift=0) > 4, 1.0, 0.0))
    npmdask.gram(x[:300], tmp_path / "G")
    found = npmdask.gram(x, tmp_path / "G")
    assert found.rows_read == 400
    require_gram_of(found, x.toarray())


# Merging and removing.


def three(folder: Path, rows: np.ndarray, **asked: Any) -> list[Path]:
    """Grams of thirds of the rows, of very different sizes."""
    edges = [0, 40, len(rows) - 3, len(rows)]
    for i in range(3):
        name = f"day-{i}"
        npmdask.gram(
            plain(folder, rows[edges[i] : edges[i + 1]], f"{name}.zarr"), folder / name, kind="samples", **asked
        )
    return [folder / f"day-{i}" for i in range(3)]


@pytest.mark.slow
def test_a_merge_is_the_gram_of_all_rows_in_any_order(tmp_path: Path) -> None:
    """Its bits do not depend on the order; the parts have means and scales of their own."""
    x = some(400)
    x[40:] = 1e5 + 50 * x[40:]
    days = three(tmp_path, x)
    found = [
        GramStore.merge([days[i] for i in order], tmp_path / f"M{number}")
        for number, order in enumerate(([0, 1, 2], [2, 0, 1], [1, 2, 0]))
    ]
    assert len({store.fingerprint for store in found}) == len({store.matrix().tobytes() for store in found}) == 1
    require_gram_of(found[0], x)
    assert set(found[0].groups) == {"day-0", "day-1", "day-2"}
    solutions = [npmdask.top_k(tmp_path / f"M{i}", 3, center=True) for i in range(3)]
    assert solutions[0].converged and len({one.basis.tobytes() for one in solutions}) == 1
    np.testing.assert_allclose(solutions[0].values, np.linalg.eigvalsh(np.cov(x.T, bias=True))[:-4:-1], rtol=1e-10)
    nested = GramStore.merge([GramStore.merge(days[:2], tmp_path / "N1"), days[2]], tmp_path / "N")
    assert nested.matrix().tobytes() == found[0].matrix().tobytes(), "also of merges that are merged"
    again = GramStore.merge(days, tmp_path / "M0")
    assert again.fingerprint == found[0].fingerprint, "the same merge again is done already"
    with pytest.raises(RefusedError, match="belongs to another run"):
        GramStore.merge(days[:2], tmp_path / "M0")


@pytest.mark.slow
def test_what_was_merged_is_removed_exactly(tmp_path: Path) -> None:
    x = some(400) * 1e-6
    x[40:] += 1e6
    days = three(tmp_path, x)
    merged = GramStore.merge(days, tmp_path / "M")
    left = merged.remove(days[1], tmp_path / "left")
    other = GramStore.merge([days[0], days[2]], tmp_path / "other")
    assert left.matrix().tobytes() == other.matrix().tobytes()
    with pytest.raises(RefusedError, match=r"has all rows of .*: none would be left"):
        left.remove(tmp_path / "other", tmp_path / "nothing")


@pytest.mark.slow
def test_what_is_part_of_a_group_is_subtracted_and_the_loss_counts(tmp_path: Path) -> None:
    """Fails when what a subtraction loses is not in the bound, or when nothing is left of it and that is not said."""
    x = some(4 * CHUNK, 10)
    path = plain(tmp_path, x)
    whole = npmdask.gram(path, tmp_path / "G", kind="samples")
    npmdask.gram(plain(tmp_path, x[:CHUNK], "a.zarr"), tmp_path / "A", kind="samples")
    left = whole.remove(tmp_path / "A", tmp_path / "left")
    require_gram_of(left, x[CHUNK:])
    assert npmdask.top_k(left, 3, center=True).converged
    with pytest.raises(RefusedError, match=r"1 of 1 rows of chunks of .* are not in"):
        left.remove(tmp_path / "A", tmp_path / "twice")
    small = x.copy()
    small[CHUNK:] *= 1e-5
    small[:CHUNK] *= 1e4
    whole = npmdask.gram(plain(tmp_path, small, "s.zarr"), tmp_path / "S", kind="samples")
    npmdask.gram(plain(tmp_path, small[:CHUNK], "t.zarr"), tmp_path / "T", kind="samples")
    with pytest.raises(RefusedError, match="192 of 256 rows would remain, but their variance is lost"):
        whole.remove(tmp_path / "T", tmp_path / "lost")
    half = x.copy()
    half[CHUNK:] *= 1e-4
    whole = npmdask.gram(plain(tmp_path, half, "h.zarr"), tmp_path / "H", kind="samples")
    npmdask.gram(plain(tmp_path, half[:CHUNK], "i.zarr"), tmp_path / "I", kind="samples")
    kept = whole.remove(tmp_path / "I", tmp_path / "few")
    for tol, converged in ((1e-3, True), (1e-9, False)):
        found = npmdask.top_k(kept, 3, center=True, tol=tol)
        assert found.converged == converged
    assert found.outcome.name == "max_steps" and "pass over the rows" in found.outcome.sentence
    certificate: Any = found.certificate
    best = np.linalg.eigvalsh(np.cov(half[CHUNK:].T, bias=True))[:-4:-1]
    for level in certificate["levels"]:
        assert (np.abs(found.values - best) <= [np.inf if e is None else e for e in level["value_errors"]]).all()


@pytest.mark.slow
def test_one_row_that_is_left(tmp_path: Path) -> None:
    """Removed exactly it varies by nothing, and nothing is claimed of it; subtracted it is refused."""
    x = some(CHUNK + 1, 6)
    parts = [npmdask.gram(plain(tmp_path, rows, f"{i}.zarr"), tmp_path / f"{i}", kind="samples")
             for i, rows in enumerate((x[:CHUNK], x[CHUNK:]))]  # fmt: skip
    left = GramStore.merge(parts, tmp_path / "M").remove(parts[0], tmp_path / "left")
    assert left.rows == 1 and not left.matrix().any()
    np.testing.assert_array_equal(left.mean, x[CHUNK])
    whole = npmdask.gram(plain(tmp_path, x), tmp_path / "W", kind="samples")
    assert len(whole.parts) == 2
    joined = npmdask.gram(write_zarr(tmp_path / "j.zarr", x, (1, 6)), tmp_path / "J", kind="samples")
    ones = npmdask.gram(write_zarr(tmp_path / "o.zarr", x[:CHUNK], (1, 6)), tmp_path / "O", kind="samples")
    with pytest.raises(RefusedError, match="1 of 65 rows would remain, but their variance is lost"):
        joined.remove(ones, tmp_path / "one")


@pytest.mark.slow
def test_rows_that_two_have_are_not_merged(tmp_path: Path) -> None:
    x = some(300)
    path = plain(tmp_path, x[:200])
    npmdask.gram(path, tmp_path / "monday", kind="samples")
    append(path, x[200:])
    npmdask.gram(path, tmp_path / "tuesday", kind="samples")
    npmdask.gram(plain(tmp_path, x[CHUNK : 2 * CHUNK], "copy.zarr"), tmp_path / "copy", kind="samples")
    for both in (["monday", "tuesday"], ["copy", "monday"], ["copy", "copy"]):
        with pytest.raises(RefusedError, match=r"their rows would count twice. Leave one of them out"):
            GramStore.merge([tmp_path / name for name in both], tmp_path / "M")
        assert not (tmp_path / "M").exists()
    npmdask.gram(plain(tmp_path, x[CHUNK : 2 * CHUNK], "other.zarr"), tmp_path / "other", kind="samples")
    merged = GramStore.merge([tmp_path / "copy", tmp_path / "other"], tmp_path / "M", distinct=True)
    require_gram_of(merged, np.concatenate([x[CHUNK : 2 * CHUNK]] * 2))


@pytest.mark.slow
def test_grams_whose_sums_do_not_add_up_are_not_merged(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    x, y = some(100, 3), some(100, 3, seed=1)

    def named(rows: np.ndarray, names: str, folder: str, **asked: Any) -> GramStore:
        table = pd.DataFrame(rows, columns=list(names))
        return npmdask.gram(table, tmp_path / folder, **{"kind": "samples", **asked})

    first = named(x, "abc", "first")
    others = {
        "has no column 'c', which .* has; it has 'd' instead": named(y, "abd", "names"),
        "have 3 and 2 columns": named(y[:, :2], "ab", "fewer"),
        "of kind 'samples' and 'matrix'": named(y, "abc", "kind", kind="matrix"),
        "probes of seeds 0 and 1": named(y, "abc", "seed", seed=1),
        "a choice of columns": named(y, "abc", "choice").select([2, 1, 0]),
    }
    for said, other in others.items():
        with pytest.raises(RefusedError, match=said):
            GramStore.merge([first, other], tmp_path / "M")
        with pytest.raises(RefusedError, match=said):
            first.remove(other, tmp_path / "R")
    with pytest.raises(BadInputError, match="two Grams or more"):
        GramStore.merge([first], tmp_path / "M")
    merged = GramStore.merge([first, named(y, "abc", "good")], tmp_path / "M")
    with pytest.raises(RefusedError, match="is a Gram that was merged from others"):
        npmdask.gram(x, tmp_path / "M", kind="samples")
    assert merged.labels.columns[0].places.tolist() == list("abc")


@pytest.mark.slow
def test_the_jackknife_leaves_out_each_group(tmp_path: Path) -> None:
    """By brute force; of equal groups it is (g - 1) / g times the sum of squares."""
    x = some(5 * CHUNK, 6)
    store = npmdask.gram(plain(tmp_path, x), tmp_path / "G", kind="samples", by_chunks=1)
    found = store.jackknife(2)
    left = [np.delete(x, np.s_[i * CHUNK : (i + 1) * CHUNK], axis=0) for i in range(5)]
    values = np.array([np.linalg.eigvalsh(np.cov(rows.T, bias=True))[:-3:-1] for rows in left])
    np.testing.assert_allclose(found.left_out, values, rtol=1e-12)
    errors = np.sqrt(4 / 5 * np.square(values - values.mean(axis=0)).sum(axis=0))
    np.testing.assert_allclose(found.standard_errors, errors, rtol=1e-9)
    np.testing.assert_allclose(found.bias, 4 * (values.mean(axis=0) - found.values), rtol=1e-6)
    assert found.groups[0] == "rows 0 to 63" and store.group("rows 0 to 63").rows == CHUNK
    require_gram_of(store.group(*found.groups[1:]), x[CHUNK:])
    with pytest.raises(BadInputError, match="one group of rows, and a jackknife leaves out one"):
        store.group("rows 0 to 63").jackknife(1)
    with pytest.raises(BadInputError, match="no group 'x'"):
        store.group("x")
    with pytest.raises(BadInputError, match="k = 7"):
        store.jackknife(7)


@pytest.mark.slow
def test_the_jackknife_decomposes_on_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bits are those of any number of cores, and threads do not wait for each other where others work."""
    store = npmdask.gram(plain(tmp_path, some(3 * CHUNK)), tmp_path / "G", kind="samples", by_chunks=1)
    leading, seen = GramStore._leading, set[int]()

    def watched(*args: Any, **asked: Any) -> np.ndarray:
        seen.update(pool["num_threads"] for pool in threadpool_info())
        return leading(*args, **asked)

    monkeypatch.setattr(GramStore, "_leading", watched)
    with threadpool_limits(2):
        store.jackknife(2)
    assert seen == {1}


@pytest.mark.slow
def test_the_jackknife_of_unequal_groups(tmp_path: Path) -> None:
    """Of a mean of squares, which is linear, Busing's variance is 1/g sum (t_j - t)^2 / (n / m_j - 1)."""
    x = some(400, 1)
    found = GramStore.merge(three(tmp_path, x), tmp_path / "M").jackknife(1, center=False)
    groups = [np.square(rows).mean() for rows in np.split(x, [40, 397])]
    sizes = np.array([40, 357, 3])
    wanted = np.mean(np.square(groups - np.square(x).mean()) / (400 / sizes - 1))
    np.testing.assert_allclose(found.standard_errors, np.sqrt(wanted), rtol=1e-10)
    np.testing.assert_allclose(found.bias, 0, atol=1e-10 * found.values[0])


# Bad input.


@pytest.mark.slow
def test_what_has_no_gram(tmp_path: Path) -> None:
    x = some(50, 6)
    with pytest.raises(BadInputError, match="of kind symmetric: a Gram is formed of rows"):
        npmdask.gram(x[:6] + x[:6].T, tmp_path / "G", kind="symmetric")
    with pytest.raises(BadInputError, match="holds nan at row 3, column 1"):
        bad = x.copy()
        bad[3, 1] = np.nan
        npmdask.gram(bad, tmp_path / "nan", kind="samples")
    with np.errstate(over="ignore"), pytest.raises(BadInputError, match="overflows although the data are finite"):
        npmdask.gram(x * 1e200, tmp_path / "large", kind="samples")
    with pytest.raises(BadInputError, match="is a stored Gram already: run it, or merge it"):
        npmdask.gram(npmdask.gram(x, tmp_path / "G2", kind="samples"), tmp_path / "of a Gram")
    for wrong, said in (
        ({"by_chunks": 0}, "by_chunks = 0"),
        ({"precision": "half"}, "precision"),
        ({"seed": -1}, "seed"),
    ):
        with pytest.raises(BadInputError, match=said):
            npmdask.gram(x, tmp_path / "H", kind="samples", **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="there is no Gram in"):
        GramStore(tmp_path / "nothing")
    with pytest.raises(RefusedError, match="run: form the Gram of these rows in a store of its own"):
        npmdask.top_k(x, 2, store=tmp_path / "run")
        npmdask.gram(x, tmp_path / "run")


def test_a_matrix_that_does_not_fit_is_refused_with_what_would(tmp_path: Path) -> None:
    wide = zarr.create_array({}, shape=(2000, 9000), chunks=(500, 9000), dtype="f4")
    said = r"memory = \d+MiB is too small: one thread needs \d+ MiB .*set memory to at least \d+MiB .*, or about \d+ "
    limit = tree_rss() + 500 * 2**20  # the process of all tests may hold a gigabyte already
    with pytest.raises(MemoryRefusedError, match=said + "columns"):
        npmdask.gram(wide, tmp_path / "G", kind="samples", memory=limit)


@pytest.mark.parametrize(
    "asked, said",
    [
        ({"algorithm": "krylov"}, "is decomposed and not multiplied"),
        ({"low_rank_tol": 0.1}, "low_rank_tol is for rows"),
        ({"mechanism": "gaussian", "stddev": 0.1}, "mechanism is for rows"),
        ({"k": 7}, "at most 6 components exist"),
        ({"kind": "sparse"}, "the Gram of rows of kind samples or matrix"),
    ],
)
def test_what_a_gram_does_not_answer(tmp_path: Path, asked: dict[str, Any], said: str) -> None:
    npmdask.gram(some(50, 6), tmp_path / "G", kind="samples")
    with pytest.raises((BadInputError, RefusedError), match=said):
        npmdask.top_k(tmp_path / "G", **{"k": 2, **asked})


@pytest.mark.slow
def test_what_needs_rows_says_so(tmp_path: Path) -> None:
    """A Gram is opened wherever data are; what would read its rows gets a sentence, and no traceback."""
    x = some(50, 6)
    npmdask.gram(x, tmp_path / "G", kind="samples")
    found = npmdask.top_k(tmp_path / "G", 2, center=True, store=tmp_path / "run")
    with pytest.raises(BadInputError, match="a stored Gram has no rows, but rows are needed here"):
        found.scores(tmp_path / "G")
    with pytest.raises(BadInputError, match="a stored matrix with rows and columns"):
        npmdask.singular_triplets(tmp_path / "G", 2)
    with pytest.raises(RefusedError, match="is a stored Gram, which has no components yet"):
        npmdask.top_k(x, 2, kind="samples", start=tmp_path / "G")
    again = npmdask.top_k(x, 2, kind="samples", center=True, start=tmp_path / "run", tol=1e-12)
    assert again.converged and again.total_data_passes > 0, "the pass over the rows that an answer can be verified with"
    np.testing.assert_allclose(again.values, found.values, rtol=1e-12)
    pca, other = npmdask.PCA(2).fit(str(tmp_path / "G")), npmdask.PCA(2).fit(x)
    np.testing.assert_allclose(pca.components_, other.components_, atol=1e-10)
    assert pca.n_samples_ == 50


@pytest.mark.slow
def test_constant_and_equal_columns_and_means_of_a_million_deviations(tmp_path: Path) -> None:
    """Centred the answer is as sure as that of the rows; about zero it is not, and that is said."""
    x = np.random.default_rng(0).standard_normal((2000, 8)) * np.geomspace(1, 0.1, 8)
    x[:, 5] = x[:, 4]
    x[:, 6] = 0.0
    moved = x + 1e6
    store = npmdask.gram(plain(tmp_path, moved), tmp_path / "G", kind="samples")
    true = moved.astype(np.longdouble)
    best = np.linalg.eigvalsh(np.asarray(np.cov((true - true.mean(axis=0)).astype(float).T, bias=True)))[::-1]
    found = npmdask.top_k(store, 3, center=True)
    assert found.converged
    np.testing.assert_allclose(found.values, best[:3], rtol=1e-9)
    assert np.abs(store.spectrum(center=True)[-2:]).max() < 1e-9, "constant, and twice the same"
    scaled = npmdask.top_k(store, 2, center=True, scale=True)
    assert any("counts as constant" in said for said in scaled.warnings) == (store.deviation[6] > 0)
    about_zero = npmdask.top_k(store, 3)
    assert not about_zero.converged and "pass over the rows" in about_zero.outcome.sentence


@pytest.mark.slow
def test_nothing_is_left_of_constant_columns(tmp_path: Path) -> None:
    """Centred, a single row or constant columns are zero: of numerical rank 0, as it is said of the rows."""
    for name, x in (("constant", np.full((50, 6), 7.0)), ("one row", some(1, 6))):
        npmdask.gram(x, tmp_path / name, kind="samples")
        found = npmdask.top_k(tmp_path / name, 1, center=True)
        assert found.converged and "numerical rank 0" in found.outcome.sentence
    npmdask.gram(some(50, 6) * 1e-200, tmp_path / "tiny", kind="samples")
    with pytest.raises(BadInputError, match="whose squares float64 cannot hold"):
        npmdask.top_k(tmp_path / "tiny", 1, center=True)


def test_a_merge_of_one_and_of_an_operator(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="give a list of their stores"):
        GramStore.merge(str(tmp_path / "G"), tmp_path / "H")
    with pytest.raises(RefusedError, match="has products only, and a Gram is formed of rows"):
        npmdask.gram(aslinearoperator(some(50, 6)), tmp_path / "G")


def test_damage_is_found(tmp_path: Path) -> None:
    """A byte of a part, or a list of another store."""
    npmdask.gram(some(100, 6), tmp_path / "G", kind="samples")
    file = next((tmp_path / "G").glob("part-*/gram.npy"))
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(BadInputError, match="is corrupt: its checksum does not match"):
        npmdask.top_k(tmp_path / "G", 2)


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gram_parts, "FORMAT", 2)
    npmdask.gram(some(100, 6), tmp_path / "G", kind="samples")
    monkeypatch.undo()
    with pytest.raises(RefusedError, match="of format 2; this version reads format 1"):
        GramStore(tmp_path / "G")
