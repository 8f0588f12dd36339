"""Nothing is written through a symbolic link that somebody put where a store is."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core.checkpoint.lease import STALE, count_start, holder_of
from npmdask.core.checkpoint.reader import NO_LINKS
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.storage.paths import locked
from npmdask.errors import BadInputError, NpmdaskError
from npmdask.formats.ingest import ingest
from npmdask.manage.gc import Retention, sweep
from npmdask.manage.status import status_below
from npmdask.prefect.parameters import next_store
from npmdask.remote.run_store import LocalCopy

ALL = Retention(seconds=0, results=True, unfinished=True)
LINK = "is a symbolic link, and npmdask does not write through links"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """What a link points at: a folder of somebody, with something of every name that a run has."""
    folder = tmp_path / "victim"
    for name in (*NO_LINKS, "000001", "000002", "000003", ".writing-x"):
        (folder / name).mkdir(parents=True)
        (folder / name / "thesis").write_text("one copy only")
    (folder / "file").write_text("process 1 on nowhere, since ever\n")
    folder.chmod(0o755)
    return folder


def content(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.stat().st_mode,
            path.is_file() and path.read_bytes(),
        )
        for path in (folder, *sorted(folder.rglob("*")))
    }


def solve(store: Path) -> Any:
    return npmdask.top_k(np.diag(np.arange(1.0, 9.0)), 2, kind="symmetric", store=store)


@pytest.mark.slow
def test_a_run_folder_that_is_a_link_is_refused_and_left_alone(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "run").symlink_to(victim)
    before = content(victim)
    for open_it in (
        lambda: solve(tmp_path / "run"),
        lambda: RunStore(tmp_path / "run", private=True).open(),
        lambda: RunStore(tmp_path / "run").open(take_over=False),
        lambda: RunStore(tmp_path).stage("run").open(),
        lambda: next_store(tmp_path / "run"),
    ):
        with pytest.raises(BadInputError, match=f"{LINK}: name {victim} itself"):
            open_it()
    assert content(victim) == before
    solve(tmp_path / "good")
    (tmp_path / "also").symlink_to(tmp_path / "good")
    with pytest.raises(BadInputError, match=f"name {tmp_path}/good itself"):
        npmdask.resume(tmp_path / "also")
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    assert solve(tmp_path / "runs" / "a").converged, "a folder above may be a link"
    assert (tmp_path / "disk" / "a" / "result").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("name", NO_LINKS)
def test_no_part_of_a_run_may_be_a_link(name: str, tmp_path: Path, victim: Path) -> None:
    """Neither opened, taken over, looked at nor cleared away: the sentence names it, what it points at stays."""
    store = tmp_path / "runs" / "a"
    RunStore(store).open().close()
    shutil.rmtree(store / name) if (store / name).is_dir() else (store / name).unlink(missing_ok=True)
    (store / name).symlink_to(victim / ("file" if name in ("lock", "epoch", "lock.taking") else name))
    before = content(victim)
    doors: list[Callable[[], Any]] = [lambda: solve(store), RunStore(store).open, RunStore(store).read_spec]
    for door in doors:
        with pytest.raises(BadInputError, match=f"{store / name} {LINK}: take it away"):
            door()
    assert main(["status", str(tmp_path / "runs")]) == 0
    for status in status_below(tmp_path / "runs"):
        assert status.state == "damaged" and f"{name} is a symbolic link" in status.error
    for dry in (True, False):
        assert not sweep(tmp_path / "runs", ALL, dry=dry).gone
    assert (store / name).is_symlink() and content(victim) == before


def test_a_lock_that_becomes_a_link_is_no_sign_of_life_and_is_not_taken_over(tmp_path: Path, victim: Path) -> None:
    """Between the look and the opening: the system call itself follows none."""
    store = RunStore(tmp_path / "a").open()
    store.close()
    for name in ("lock", "lock.taking"):
        (tmp_path / "a" / name).unlink(missing_ok=True)
        (tmp_path / "a" / name).symlink_to(victim / "file")
        os.utime(victim / "file", (time.time() - 2 * STALE,) * 2)
        before = content(victim)
        with pytest.raises(BadInputError, match=LINK):
            store._turn.take()
        assert holder_of(tmp_path / "a") is None and content(victim) == before
        (tmp_path / "a" / name).unlink()
    os.mkfifo(tmp_path / "a" / "lock")
    assert holder_of(tmp_path / "a") is None, "without waiting for somebody to write into it"


def test_what_is_written_while_a_run_goes_on_follows_no_link(tmp_path: Path, victim: Path) -> None:
    store = RunStore(tmp_path / "a").open()
    (tmp_path / "a" / "telemetry.jsonl").symlink_to(victim / "file")
    before = content(victim)
    with pytest.raises(BadInputError, match=LINK):
        store.log("step", number=1)
    (tmp_path / "a" / "telemetry.jsonl").unlink()
    (tmp_path / "a" / f".writing-starts.json-{os.getpid()}").symlink_to(victim / "file")
    with pytest.raises(BadInputError, match=LINK):
        count_start(tmp_path / "a")
    store.close()
    assert content(victim) == before


@pytest.mark.parametrize("name", ["x.zarr", "x.zarr.partial", "x.zarr.partial.lock", "x.zarr.partial.scratch"])
def test_data_are_not_written_through_a_link(name: str, tmp_path: Path, victim: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((20, 4)))
    (tmp_path / name).symlink_to(victim / "file" if name.endswith("lock") else victim)
    before = content(victim)
    with pytest.raises(NpmdaskError, match=LINK):
        ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="samples", overwrite=True)
    assert content(victim) == before and (tmp_path / name).is_symlink()
    with pytest.raises(BadInputError, match=LINK) if name.endswith("lock") else locked(tmp_path / "y"):
        locked(tmp_path / "x.zarr").__enter__()


def test_gc_follows_no_link_and_waits_for_no_pipe(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "runs" / "x.zarr.partial" / "journal").mkdir(parents=True)
    lock, before = tmp_path / "runs" / "x.zarr.partial.lock", content(victim)
    os.mkfifo(lock)
    assert len(sweep(tmp_path / "runs", ALL, dry=True).gone) == 1
    lock.unlink()
    lock.symlink_to(victim / "file")
    assert not sweep(tmp_path / "runs", ALL, dry=True).gone, "somebody may have it"
    swept = sweep(tmp_path / "runs", ALL)
    assert not swept.gone and "is a symbolic link" in swept.left[0] and content(victim) == before


@pytest.mark.slow
def test_data_may_be_read_through_a_link(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((50, 6)))
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="samples")
    (tmp_path / "y.zarr").symlink_to(tmp_path / "x.zarr")
    there, here = (npmdask.top_k(tmp_path / name, 2).values for name in ("x.zarr", "y.zarr"))
    np.testing.assert_array_equal(there, here)


def test_the_local_copy_of_a_url_is_no_link(tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPMDASK_CACHE", str(tmp_path))
    copy = LocalCopy("s3://bucket/run")
    copy.home.parent.mkdir(parents=True)
    copy.home.symlink_to(victim)
    before = content(victim)
    with pytest.raises(BadInputError, match=LINK):
        copy.make()
    assert content(victim) == before
