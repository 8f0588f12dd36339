"""Files as sources without an ingest of their own: the same answer, one copy, and never an old one."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from gc import collect
from pathlib import Path
from typing import Any

import anndata
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp
import zarr

import npmdask
import npmdask.formats.ingest as module
from npmdask.cli.main import main
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.privacy.perturb import perturb

X = np.random.default_rng(6).standard_normal((300, 8)) * np.arange(8, 0, -1)
THIN = sp.csr_matrix(np.where(np.abs(X) > 4, X, 0))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own; files count as settled at once."""
    monkeypatch.setenv("NPMDASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "FRESH", 0)
    yield tmp_path / "cache"


def _h5ad(path: Path) -> None:
    with anndata.settings.override(allow_write_nullable_strings=True):
        anndata.AnnData(THIN).write_h5ad(path)


def _h5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["group/values"] = X
        file["group/other"] = X[:5]


MADE: dict[str, Any] = {
    "x.npy": lambda path: np.save(path, X),
    "x.csv": lambda path: pd.DataFrame(X).to_csv(path, index=False, header=[f"c{i}" for i in range(8)]),
    "x.parquet": lambda path: pd.DataFrame(X, columns=list("abcdefgh")).to_parquet(path),
    "x.h5/group/values": lambda path: _h5(path.parents[1]),
    "thin.mtx": lambda path: scipy.io.mmwrite(path, THIN, precision=17),
    "thin.h5ad": _h5ad,
    "thin.npz": lambda path: sp.save_npz(path, THIN),
}


def copies(cache: Path) -> list[Path]:
    return sorted((cache / "files").glob("*/data.zarr"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_the_answer_is_that_of_the_ingested_store(name: str, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / name
    MADE[name](path)
    file, array = (tmp_path / "x.h5", "group/values") if name.startswith("x.h5") else (path, None)
    ingest(file, tmp_path / "own.zarr", dataset=array)
    truth = npmdask.top_k(tmp_path / "own.zarr", 3, center=True)
    found = npmdask.top_k(path, 3, center=True, store=tmp_path / "run")
    np.testing.assert_array_equal(found.basis, truth.basis)
    assert found.fingerprint == truth.fingerprint
    assert npmdask.resume(tmp_path / "run").data_passes == 0
    assert npmdask.top_k(path, 2).values.shape == (2,) and len(copies(cache)) == 1
    np.testing.assert_allclose(found.scores(path), truth.scores(tmp_path / "own.zarr"))
    kind = "sparse" if name.startswith("thin") else "samples"
    assert open_source(path).kind == kind and open_source(path, kind).kind == kind and len(copies(cache)) == 1


@pytest.mark.slow
def test_the_command_line_and_estimators_take_files(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MADE["x.csv"](tmp_path / "x.csv")
    store = str(tmp_path / "run")
    assert main(["run", str(tmp_path / "x.csv"), "-k", "3", "--center", "--store", store]) == 0
    assert f"npmdask: {tmp_path / 'x.csv'} is read into a store first" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "x.csv"), "-k", "3"]) == 0
    assert main(["export", store, str(tmp_path / "out.csv")]) == 0
    assert pd.read_csv(tmp_path / "out.csv")["column"].tolist() == [f"c{i}" for i in range(8)]
    pca = npmdask.PCA(3).fit(tmp_path / "x.csv")
    np.testing.assert_allclose(pca.transform(tmp_path / "x.csv"), pca.transform(X))
    assert len(copies(cache)) == 1


@pytest.mark.slow
def test_a_file_that_changed_is_read_again(tmp_path: Path, cache: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    first = npmdask.top_k(tmp_path / "x.npy", 2, store=tmp_path / "run")
    before = os.stat(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", X[::-1] * 2)  # of the same size, and of the same time
    os.utime(tmp_path / "x.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    np.testing.assert_allclose(npmdask.top_k(tmp_path / "x.npy", 2).values, 4 * first.values)
    assert len(copies(cache)) == 1
    with pytest.raises(RefusedError, match=r"^use another store for the data as they are now, or put back"):
        npmdask.top_k(tmp_path / "x.npy", 2, store=tmp_path / "run")
    stored = npmdask.resume(tmp_path / "run")  # of a finished run: its answer, which says of which data it is
    assert stored.basis.tobytes() == first.basis.tobytes() and "has changed since" in stored.warnings[-1]


@pytest.mark.slow
def test_a_file_that_may_still_be_written_is_not_remembered(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH", 60 * 10**9)
    np.save(tmp_path / "x.npy", X)
    npmdask.top_k(tmp_path / "x.npy", 2)
    before = copies(cache)[0].stat().st_ino
    npmdask.top_k(tmp_path / "x.npy", 2)
    assert copies(cache)[0].stat().st_ino != before


@pytest.mark.slow
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", X)

    def meanwhile(*arguments: Any, **named: Any) -> Any:
        found = ingest(*arguments, **named)
        np.save(tmp_path / "x.npy", X + 1)
        return found

    monkeypatch.setattr(module, "ingest", meanwhile)
    with pytest.raises(RefusedError, match="changed while it was being read"):
        npmdask.top_k(tmp_path / "x.npy", 2)
    monkeypatch.undo()
    monkeypatch.setenv("NPMDASK_CACHE", str(cache))
    np.testing.assert_allclose(
        npmdask.top_k(tmp_path / "x.npy", 2).values, npmdask.top_k(X + 1, 2, kind="samples").values
    )


@pytest.mark.slow
def test_a_copy_that_was_deleted_is_made_again(tmp_path: Path, cache: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    first = npmdask.top_k(tmp_path / "x.npy", 2, max_steps=1, tol=1e-15, store=tmp_path / "run")
    shutil.rmtree(cache)
    again = npmdask.resume(tmp_path / "run", max_steps=3)
    assert again.fingerprint == first.fingerprint  # type: ignore[union-attr]


@pytest.mark.slow
def test_it_is_said_and_kept_to_its_owner(tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(tmp_path / "x.npy", X)
    with caplog.at_level(logging.WARNING, "npmdask"):
        npmdask.top_k(tmp_path / "x.npy", 2)
        npmdask.top_k(tmp_path / "x.npy", 2)
    assert [r.getMessage().count("is read into a store first") for r in caplog.records] == [1]
    assert "`npmdask gc --cache` deletes it" in caplog.text and str(copies(cache)[0]) in caplog.text
    modes = {stat.S_IMODE(p.stat().st_mode) for p in cache.rglob("*") if p.is_file()}
    assert modes == {0o600}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (cache, *cache.rglob("*")) if p.is_dir()} == {0o700}


@pytest.mark.slow
def test_the_cache_is_bounded_and_what_is_used_stays(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy that was not used for the longest time goes first, and none that something reads."""
    monkeypatch.setenv("NPMDASK_CACHE_LIMIT", "80KiB")  # of three copies, not of four

    def used(name: str, days: int) -> Source:
        np.save(tmp_path / f"{name}.npy", X)
        opened = open_source(tmp_path / f"{name}.npy")
        folder = Path(opened.reader.array.store_path.store.root).parent  # type: ignore[union-attr]
        os.utime(folder / "used", (time.time() - 86400 * days,) * 2)
        return opened

    reading = used("oldest", 9)
    for name, days in (("old", 8), ("new", 1), ("newest", 0)):
        used(name, days)
        collect()
    assert {Path(file).stem for _, file in module.copies()} == {"oldest", "new", "newest"}
    np.testing.assert_array_equal(reading.reader.array[:], X)  # type: ignore[union-attr]
    del reading
    used("last", 0)
    collect()
    assert {Path(file).stem for _, file in module.copies()} == {"new", "newest", "last"}
    assert not [folder for folder in (cache / "files").iterdir() if "-" in folder.name]
    monkeypatch.setenv("NPMDASK_CACHE_LIMIT", "much")
    with pytest.raises(BadInputError, match="NPMDASK_CACHE_LIMIT = 'much' is not a size"):
        used("more", 0)


@pytest.mark.slow
def test_gc_deletes_the_copies_that_nothing_reads(tmp_path: Path, cache: Path, capsys: Any) -> None:
    for name in ("free.npy", "used.npy"):
        np.save(tmp_path / name, X)
    npmdask.top_k(tmp_path / "free.npy", 2)
    reading = open_source(tmp_path / "used.npy")
    collect()
    for more in (["--dry-run"], []):
        assert main(["gc", "--cache", "--json", *more]) == 0
        said = json.loads(capsys.readouterr().out)
        (gone,), (left,) = said["gone"], said["left"]
        assert gone["why"] == f"a copy of {tmp_path / 'free.npy'}" and gone["bytes"] == said["bytes"] > X.nbytes / 2
        assert f"is in use, a copy of {tmp_path / 'used.npy'}" in left and Path(gone["path"]).exists() == bool(more)
    np.testing.assert_array_equal(reading.reader.array[:], X)  # type: ignore[union-attr]
    del reading
    collect()
    assert main(["gc", "--cache"]) == 0 and not list((cache / "files").iterdir())
    assert main(["gc", "--cache", "--results"]) == BadInputError.exit_code
    np.testing.assert_array_equal(open_source(tmp_path / "used.npy").reader.array[:], X)  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_copy_that_goes_while_another_process_waits_for_it(tmp_path: Path, cache: Path) -> None:
    """The lock that it waited for is of a folder that is gone: it waits for who makes the copy again."""
    np.save(tmp_path / "x.npy", X)
    with ThreadPoolExecutor(1) as pool, ExitStack() as again:
        with module.copy_of(tmp_path / "x.npy", None, None) as copy:
            waiting = pool.submit(open_source, tmp_path / "x.npy")
            time.sleep(0.1)
            copy.parent.rename(copy.parent.with_name("aside"))
            again.enter_context(module._process_lock(copy.parent))
        time.sleep(0.3)
        assert not waiting.done() and not copy.exists()
        again.close()
        np.testing.assert_array_equal(waiting.result().reader.array[:], X)  # type: ignore[union-attr]


KILLED = """
import sys, npmdask
from npmdask.writers.dense import DenseWriter
write = DenseWriter.write
def slow(self, rows):
    write(self, rows)
    print("written", flush=True)
    sys.stdin.read()
DenseWriter.write = slow
npmdask.top_k(sys.argv[1], 2)
"""


@pytest.mark.slow
def test_a_kill_leaves_no_half_copy(tmp_path: Path, cache: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "x.npy")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "written\n"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert not copies(cache)
    np.testing.assert_array_equal(
        npmdask.top_k(tmp_path / "x.npy", 2).values, npmdask.top_k(X, 2, kind="samples").values
    )


@pytest.mark.slow
def test_many_at_once_make_one_copy(tmp_path: Path, cache: Path) -> None:
    np.save(tmp_path / "x.npy", np.tile(X, (2000, 1)))
    time.sleep(0.01)
    code = (
        "import logging, sys, npmdask.formats.ingest as f; f.FRESH = 0; import npmdask\n"
        "logging.getLogger(f.TELLS).addHandler(logging.StreamHandler())\n"
        "print(npmdask.top_k(sys.argv[1], 1).values[0])"
    )
    many = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "x.npy")], stdout=-1, stderr=-1, text=True)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=120) for process in many]
    assert len({out for out, _ in said}) == 1 and all(process.returncode == 0 for process in many), said
    assert sum("is read into a store first" in error for _, error in said) == 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", b"a,b\n1,x\n", "is not a number"),
        ("x.h5", b"\x89HDF\r\n\x1a\nnothing", "cannot be read"),
        ("x.jpg", b"\xff\xd8\xff", "format|supported|known"),
        ("x.npy", b"", "empty|truncated|cannot be read|corrupt"),
    ],
)
def test_files_that_cannot_be_read(name: str, content: bytes, said: str, tmp_path: Path, cache: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInputError, match=said):
        npmdask.top_k(tmp_path / name, 1)
    assert not copies(cache)


@pytest.mark.slow
def test_several_arrays_in_a_file(tmp_path: Path) -> None:
    _h5(tmp_path / "x.h5")
    with pytest.raises(BadInputError, match=r"choose one as .*x\.h5/NAME \(group/other \(5, 8\), group/values"):
        npmdask.top_k(tmp_path / "x.h5", 2)
    with pytest.raises(BadInputError, match="has no array 'group/valeus'"):
        npmdask.top_k(tmp_path / "x.h5/group/valeus", 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:zarr v3 autosharding", "ignore:Consolidated metadata")
def test_a_folder_of_parquet_and_an_annotated_zarr(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for i in range(3):
        pd.DataFrame(X[i * 100 : i * 100 + 100], columns=list("abcdefgh")).to_parquet(tmp_path / f"parts/{i}.parquet")
    truth = npmdask.top_k(X, 2, kind="samples")
    np.testing.assert_allclose(npmdask.top_k(tmp_path / "parts", 2).values, truth.values)
    given = anndata.AnnData(THIN)
    with anndata.settings.override(allow_write_nullable_strings=True, zarr_write_format=3):
        given.write_zarr(tmp_path / "x.zarr")
    found = npmdask.top_k(tmp_path / "x.zarr", 2)
    np.testing.assert_allclose(found.values, npmdask.top_k(THIN, 2).values)
    assert found.labels.columns[0].values.tolist() == [str(i) for i in range(8)]  # type: ignore[union-attr]


@pytest.mark.slow
def test_parts_that_dask_wrote_are_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an ingest by another order was killed: it begins again, and does not go on in the middle."""
    table = pd.DataFrame(X[:240], columns=list("abcdefgh"))
    dd.from_pandas(table, npartitions=12).to_parquet(tmp_path / "parts", write_index=False)
    assert (tmp_path / "parts/part.11.parquet").exists()

    def killed(done: int, *_: object) -> None:
        if done >= 100:
            raise KeyboardInterrupt

    monkeypatch.setattr("npmdask.writers.journal.JOURNAL_BYTES", 0)
    with monkeypatch.context() as before, pytest.raises(KeyboardInterrupt):
        before.setattr("npmdask.core.storage.paths.in_order", str)
        ingest(tmp_path / "parts", tmp_path / "x.zarr", chunks=(20, 8), progress=killed)
    assert list((tmp_path / "x.zarr.partial/journal").iterdir())
    ingest(tmp_path / "parts", tmp_path / "x.zarr", chunks=(20, 8))
    np.testing.assert_array_equal(zarr.open(tmp_path / "x.zarr")["data"][:], X[:240])
    np.testing.assert_array_equal(zarr.open(open_source(tmp_path / "parts").reader.array.store_path)[:], X[:240])


def test_a_private_run_asks_for_a_store(tmp_path: Path, cache: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    privacy = npmdask.Privacy(
        epsilon=1.0,
        delta=1e-6,
        neighboring_relation="record_replace",
        clip_norm=1.0,
        ledger=str(tmp_path / "ledger.sqlite"),
        dataset="a",
    )
    for asked in (
        lambda: npmdask.top_k(tmp_path / "x.npy", 2, algorithm="power", privacy=privacy, store=tmp_path / "run"),
        lambda: main(
            f"ledger grant a {tmp_path}/x.npy --epsilon 1 --delta 1e-6 --relation record_replace --clip-norm 1 "
            f"--ledger {tmp_path}/l.sqlite".split()
        ),
        lambda: perturb(tmp_path / "x.npy", tmp_path / "y.zarr", privacy),
    ):
        try:
            assert asked() == RefusedError.exit_code
        except RefusedError as error:
            assert "was never ingested and was not read" in str(error)
    assert not cache.exists()  # no copy is made of what has a budget, or is to have one


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NPMDASK_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(BadInputError, match="set NPMDASK_CACHE to a folder that can be written"):
        npmdask.top_k(tmp_path / "x.npy", 2)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("NPMDASK_CACHE", str(tmp_path / "link"))
    with pytest.raises(BadInputError, match="is a symbolic link"):
        npmdask.top_k(tmp_path / "x.npy", 2)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "parquet", "h5", "npy"])
def test_files_with_missing_values_are_taken_where_a_rule_for_them_is_given(suffix: str, tmp_path: Path) -> None:
    """Fails when a gap is refused, when moments with gaps are used, or when a copy with gaps serves a run without."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((80, 5)) * [5, 4, 3, 2, 1] + 7
    rows[rng.random(rows.shape) < 0.1] = np.nan
    path = tmp_path / f"x.{suffix}"
    if suffix == "npy":
        np.save(path, rows)
    elif suffix == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["x"] = rows
    else:
        table = pytest.importorskip("pandas").DataFrame(rows, columns=list("abcde"))
        table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    how: dict[str, Any] = {"kind": "samples", "center": True, "tol": 1e-10}
    with pytest.raises(BadInputError):
        npmdask.top_k(path, 2, **how)
    found = npmdask.top_k(path, 2, missing="mean", store=tmp_path / "run", **how)
    truth = npmdask.top_k(rows, 2, missing="mean", **how)
    np.testing.assert_allclose(found.values, truth.values, rtol=1e-9)
    assert found.missing is not None and found.missing.entries == np.isnan(rows).sum()
    np.testing.assert_allclose(found.scores(path), truth.scores(rows), atol=1e-6)
    assert npmdask.resume(tmp_path / "run").data_passes == 0
    options = ["--kind", "samples", "--center", "--missing", "mean", "--quiet", "--store", str(tmp_path / "cli")]
    assert main(["run", str(path), "-k", "2", *options]) == 0
    np.testing.assert_allclose(npmdask.resume(tmp_path / "cli").values, truth.values, rtol=1e-6)
    with pytest.raises(BadInputError):
        npmdask.top_k(path, 2, **how)
