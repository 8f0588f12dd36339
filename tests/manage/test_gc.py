"""``npmdask gc``: what goes, what stays, and what a run still does afterwards."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
import npmdask.privacy.account as account
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.solution import Step
from npmdask.core.storage.paths import locked
from npmdask.errors import BadInputError, RefusedError
from npmdask.latent.answers import read_latent
from npmdask.manage.gc import GcReport, Retention, sweep
from npmdask.manage.report import export, write_report
from npmdask.manage.status import inspect
from tests.manage.common import content, hanging, make_data
from tests.manage.job import mixture, run, stream
from tests.privacy.runs.conftest import STEPS, World, world  # noqa: F401

OLD = Retention(seconds=30 * 86400)
ALL = Retention(seconds=30 * 86400, results=True, unfinished=True)


def let_everything_age(folder: Path, days: float = 40) -> None:
    """As if nobody had been here for so long."""
    then = time.time() - days * 86400
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            os.utime(path, (then, then))


def names(swept: GcReport, root: Path) -> set[str]:
    return {str(one.path.relative_to(root)) for one in swept.gone}


class Stops(Observer):
    def on_step(self, step: Step) -> None:
        if step.number == 3:
            raise KeyboardInterrupt


def unfinished(folder: Path, store: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(folder, store, observer=Stops())


def opened(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as held:
        return dict(held)


def same_arrays(left: Path, right: Path) -> bool:
    a, b = opened(left), opened(right)
    return a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)


@pytest.mark.slow
def test_a_finished_run_does_all_it_did_before(tmp_path: Path) -> None:
    """Report, inspect, export, resume that answers, deflate, warm start; what needs steps says so and loses nothing."""
    make_data(tmp_path)
    store = tmp_path / "runs" / "a"
    asked: dict[str, Any] = {"kind": "matrix", "iteration_rank": 8, "algorithm": "power", "tol": 1e-3}
    npmdask.top_k(tmp_path / "x.zarr", 3, store=store, **asked)
    facts, first = inspect(store), npmdask.resume(store)
    export(store, tmp_path / "before.npz")
    page = write_report(store).read_text()
    before = content(store)
    let_everything_age(store)
    said = sweep(tmp_path / "runs", OLD, dry=True)
    assert content(store) == before, "a dry run removes nothing"
    swept = sweep(tmp_path / "runs", OLD)
    assert names(swept, store) == names(said, store) == {"steps/000007", "steps/000008"}
    assert swept.bytes == said.bytes == sum(len(data) for name, data in before.items() if name[:6] == "steps/")
    kept = {name: data for name, data in before.items() if name[:6] != "steps/" and name != "epoch"}
    assert {name: data for name, data in content(store).items() if name != "epoch"} == kept
    assert inspect(store) == facts
    again = npmdask.resume(store)
    assert again.data_passes == 0 and again.steps == first.steps and (again.basis == first.basis).all()
    export(store, tmp_path / "after.npz")
    assert same_arrays(tmp_path / "before.npz", tmp_path / "after.npz")
    assert len(write_report(store).read_text()) >= 0.9 * len(page)
    assert npmdask.deflate(store, 1, store=tmp_path / "more").converged
    assert npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "warm", start=store, **asked).steps < first.steps
    with pytest.raises(RefusedError, match=r"cleared away \(`npmdask gc`\).*start = .*/runs/a"):
        npmdask.resume(store, tol=1e-6)
    assert npmdask.resume(store).data_passes == 0, "the answer was not lost to that"
    assert not sweep(tmp_path / "runs", OLD).gone


@pytest.mark.slow
def test_jobs_lose_the_steps_of_their_stages_and_streams_nothing(tmp_path: Path) -> None:
    make_data(tmp_path)
    runs = tmp_path / "runs"
    mixture(tmp_path, runs / "m")
    stream(tmp_path, runs / "s")
    before, weights = content(runs / "s"), read_latent(runs / "m").weights
    let_everything_age(runs)
    swept = sweep(runs, Retention(seconds=30 * 86400, unfinished=True))
    assert {"/".join(name.split("/")[:2]) for name in names(swept, runs)} == {
        "m/covariance",
        "m/decomposition",
        "m/whitening",
    }
    assert content(runs / "s") == before
    mixture(tmp_path, runs / "m")
    assert (read_latent(runs / "m").weights == weights).all()
    write_report(runs / "m")
    export(runs / "m", tmp_path / "m.npz")
    npmdask.resume(runs / "m")


@pytest.mark.slow
def test_whole_runs_go_only_if_asked_for(tmp_path: Path) -> None:
    make_data(tmp_path)
    runs = tmp_path / "runs"
    for name in ("a", "b", "c"):
        run(tmp_path, runs / name)
    mixture(tmp_path, runs / "m")
    stream(tmp_path, runs / "s")
    unfinished(tmp_path, runs / "u")
    (runs / "c" / "notes.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    run(tmp_path, tmp_path / "elsewhere" / "far")
    for link in ("link", ".npmdask-gc", "x.zarr.partial"):
        (runs / link).symlink_to(tmp_path / "elsewhere")
    (runs / "papers").mkdir()
    (runs / "papers" / "steps").write_text("of a proof")
    for folder in (runs, tmp_path / "elsewhere"):
        let_everything_age(folder)
    let_everything_age(runs / "b", days=1)
    far = content(tmp_path / "elsewhere")
    assert names(sweep(runs, Retention(seconds=30 * 86400, unfinished=True), dry=True), runs) >= {"u"}
    swept = sweep(runs, Retention(seconds=30 * 86400, results=True))
    assert {name.split("/")[0] for name in names(swept, runs)} == {"c"}, "nothing goes through a link"
    assert any(f"{runs}/.npmdask-gc is a symbolic link" in sentence for sentence in swept.left)
    (runs / ".npmdask-gc").unlink()
    swept = sweep(runs, Retention(seconds=30 * 86400, results=True))
    assert {name for name in names(swept, runs) if "/" not in name} == {"a", "m"}
    assert any("holds notes.txt, which does not belong to a run" in sentence for sentence in swept.left)
    assert sorted(p.name for p in runs.iterdir()) == ["b", "c", "link", "papers", "s", "u", "x.zarr.partial"]
    assert (runs / "c" / "notes.txt").read_text() == "mine" and inspect(runs / "c")["state"] == "finished"
    assert content(tmp_path / "elsewhere") == far and list((runs / "b" / "steps").iterdir())
    assert names(sweep(runs, ALL), runs) == {"u"}
    assert npmdask.resume(runs / "b").data_passes == 0


@pytest.mark.slow
def test_the_newest_are_kept_in_each_folder(tmp_path: Path) -> None:
    make_data(tmp_path)
    run(tmp_path, tmp_path / "first")
    for folder, count in (("one", 3), ("two", 1)):
        for number in range(count):
            store = tmp_path / "runs" / folder / f"{number:06d}"
            shutil.copytree(tmp_path / "first", store)
            let_everything_age(store, days=50 - number)
    sweep(tmp_path / "runs", Retention(seconds=86400, keep=2, results=True))
    left = {str(p.relative_to(tmp_path / "runs")) for p in (tmp_path / "runs").glob("*/*")}
    assert left == {"one/000001", "one/000002", "two/000000"}
    assert list((tmp_path / "runs" / "one" / "000001" / "steps").iterdir()), "nothing of them goes"


@pytest.mark.slow
def test_what_a_process_has_is_left_alone_also_where_it_hangs(tmp_path: Path) -> None:
    make_data(tmp_path)
    with hanging("run", tmp_path, "pass", "6") as hung:
        let_everything_age(tmp_path / "run")
        before = content(tmp_path / "run")
        for dry in (True, False):
            swept = sweep(tmp_path, ALL, dry=dry)
            assert not swept.gone and len(swept.left) == 1 and f" by process {hung.pid} " in swept.left[0]
        assert content(tmp_path / "run") == before
    run(tmp_path, tmp_path / "run")


@pytest.mark.slow
def test_of_a_private_run_only_checkpoints_go_and_never_its_key(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stop(BaseException):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(account, "destroy_key", stop)
        world.solve("closing")  # its answer is there, its key not destroyed yet
    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(RunStore, "write_part", stop)
        world.solve("begun")
    released = world.solve("done")
    page = write_report(world.folder / "done").read_text()
    key = (world.folder / "begun" / "entropy").read_bytes()
    let_everything_age(world.folder)
    ledger = (world.folder / "ledger.sqlite").read_bytes()
    swept = sweep(world.folder, ALL)
    assert {name.split("/")[0] for name in names(swept, world.folder)} == {"closing", "done"}
    assert all("/steps/" in name for name in names(swept, world.folder))
    assert (world.folder / "begun" / "entropy").read_bytes() == key and (world.folder / "closing" / "entropy").exists()
    assert (world.folder / "ledger.sqlite").read_bytes() == ledger
    for name in ("done", "closing"):
        assert inspect(world.folder / name)["released"] == f"{STEPS} of {STEPS}"
        assert (npmdask.resume(world.folder / name).values == released.values).all() == (name == "done")
    assert not (world.folder / "closing" / "entropy").exists()
    assert len(write_report(world.folder / "done").read_text()) == len(page)
    assert npmdask.resume(world.folder / "begun").answered


def begun_store(folder: Path, name: str) -> Path:
    """What an ingest that was killed leaves."""
    partial = folder / f"{name}.partial"
    (partial / "journal").mkdir(parents=True)
    (partial / "zarr.json").write_text("{}")
    let_everything_age(partial)
    return partial


def test_data_stores_that_nobody_writes_any_more(tmp_path: Path) -> None:
    gone, held, new = (begun_store(tmp_path, f"{name}.zarr") for name in ("gone", "held", "new"))
    let_everything_age(new, days=1)
    mine = tmp_path / "thesis.partial"
    mine.mkdir()
    (mine / "chapter").write_text("one")
    inside = begun_store(tmp_path / "run", "documents.zarr")
    RunStore(tmp_path / "other").open().close()
    for name in ("lock", "steps"):
        (tmp_path / "other" / name).rename(tmp_path / "run" / name)
    let_everything_age(mine)
    with locked(tmp_path / "held.zarr"):
        assert names(sweep(tmp_path, OLD, dry=True), tmp_path) == {"gone.zarr.partial"}
        swept = sweep(tmp_path, OLD)
    assert names(swept, tmp_path) == {"gone.zarr.partial"} and "another process" in swept.left[0]
    assert not gone.exists() and all(path.exists() for path in (held, new, mine, inside))


@pytest.mark.slow
def test_a_kill_in_the_middle_leaves_no_half_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_data(tmp_path)
    run(tmp_path, tmp_path / "runs" / "a")
    let_everything_age(tmp_path / "runs")
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("npmdask.manage.gc.shutil.rmtree", lambda *_, **__: 1 / 0)
        sweep(tmp_path / "runs", ALL)
    assert main(["status", str(tmp_path / "runs")]) == 0
    assert not (tmp_path / "runs" / "a").exists() and list((tmp_path / "runs" / ".npmdask-gc").iterdir())
    sweep(tmp_path / "runs", OLD)
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("folder", ["/", "~", "~/.."])
def test_a_home_is_no_folder_of_runs(folder: str, tmp_path: Path) -> None:
    place = Path(folder).expanduser()
    with pytest.raises(RefusedError, match="is / or contains your home"):
        sweep(place, OLD, dry=True)
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(RefusedError, match="is / or contains your home"):
        sweep(tmp_path / "link", OLD, dry=True)


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_data(tmp_path)
    run(tmp_path, tmp_path / "runs" / "a")
    let_everything_age(tmp_path / "runs")
    asked = ["gc", str(tmp_path / "runs"), "--older-than"]
    assert main([*asked, "soon"]) == BadInputError.exit_code
    assert "'soon' is not a time; write it like '30d'" in capsys.readouterr().err
    assert main([*asked, "30d", "--keep", "-1"]) == BadInputError.exit_code
    assert main([*asked, "60d"]) == 0 and capsys.readouterr().out == "freed 0 B\n"
    assert main([*asked, "30d", "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["dry_run"] and len(said["gone"]) == 2 and said["bytes"] == sum(one["bytes"] for one in said["gone"])
    assert main([*asked, "30d", "--results"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/runs/a  ") and not (tmp_path / "runs" / "a").exists()
