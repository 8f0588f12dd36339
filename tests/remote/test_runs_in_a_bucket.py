"""Runs whose store is a URL: the same bits as in a folder, whatever is lost, and one writer at a time."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import npmdask
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore, carrier_of, folder_of
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.solution import Step
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.errors import BadInputError, CommitError, HeldError, LostError, RefusedError
from npmdask.latent.answers import fit_latent
from npmdask.manage.gc import sweep_cache
from npmdask.remote import run_store as remote
from npmdask.remote.run_store import SMALL, LocalCopy, ObjectError, Objects, Pointer
from npmdask.topics.run import CorpusFilter, read_topics, run_topics
from tests.conftest import often, planted, same_bytes, write_zarr
from tests.machines import ROOT
from tests.remote.conftest import Bucket, Honest

pytestmark = pytest.mark.slow

URL = "s3://bucket/runs/x"
PARTS = ("steps", "result", "survey")
# After the step HOLD_AT it waits for the file HOLD_UNTIL: however fast it is, it is not at its end. KILL_AFTER: so many
# seconds after its first commit it is killed, by the kernel.
IN_A_PROCESS = """
import os, pathlib, signal, sys, time
import npmdask.remote.run_store, npmdask.cli.main
from npmdask.core.checkpoint.store import RunStore
npmdask.remote.run_store.SILENCE = float(sys.argv.pop(1))
commit, kill_after = RunStore.commit_step, os.environ.pop("KILL_AFTER", "")
def committed(self, number, *given, **more):
    global kill_after
    if kill_after:
        signal.setitimer(signal.ITIMER_REAL, float(kill_after))
        kill_after = ""
    commit(self, number, *given, **more)
    while os.environ.get("HOLD_AT") == str(number) and not pathlib.Path(os.environ["HOLD_UNTIL"]).exists():
        time.sleep(0.01)
RunStore.commit_step = committed
sys.exit(npmdask.cli.main.main())
"""


def data(folder: Path) -> Path:
    return write_zarr(folder / "x.zarr", planted(4000, 60, 1 / np.sqrt(np.arange(1, 41)))[0], (500, 60))


def config(folder: Path, steps: int = 30) -> Path:
    """A run in URL of so many short steps, which do not suffice."""
    data(folder)
    (folder / "x.toml").write_text(
        '[source]\npath = "x.zarr"\nkind = "matrix"\n[algorithm]\nname = "power"\ntarget_rank = 4\n'
        f'iteration_rank = 5\nmax_steps = {steps}\n[stop]\ntol = 1e-12\n[run]\nstore = "{URL}"\nthreads = 1\n'
    )
    return folder / "x.toml"


def start(*arguments: object, silence: float = 60.0, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", IN_A_PROCESS, str(silence), *map(str, arguments), "--quiet"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def pointer(bucket: Bucket, name: str = "runs/x") -> Pointer | None:
    try:
        return Pointer.decode((bucket.folder / name / "commit.json").read_bytes(), name)
    except (FileNotFoundError, BadInputError):  # rclone is writing it
        return None


def wait_for_commit(bucket: Bucket, process: subprocess.Popen[str], number: int) -> None:
    """Until the run has come to its step ``number``."""
    while process.poll() is None:
        found = pointer(bucket)
        if found and any(path.startswith(f"steps/{number:06d}/") for path in found.files):
            return
        time.sleep(0.01)
    raise AssertionError(process.communicate())


def require_tidy(bucket: Bucket, name: str = "runs/x") -> None:
    """The pointer is let go of, and the bucket holds what it names and nothing else."""
    found, place = pointer(bucket, name), bucket.folder / name
    assert found is not None and not found.held
    there = {p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file()}
    assert there == found.keys | {"commit.json"}


def lose_machine(honest: Honest) -> None:
    shutil.rmtree(os.environ["NPMDASK_CACHE"], ignore_errors=True)


def test_the_same_bytes_as_in_a_folder(tmp_path: Path, honest: Honest) -> None:
    data(tmp_path)
    npmdask.top_k(tmp_path / "x.zarr", 4, store=tmp_path / "disk")
    carried = npmdask.top_k(tmp_path / "x.zarr", 4, store=f"{URL}/")
    assert (carried.store, carried.converged) == (URL, True)
    copy = folder_of(URL)
    same_bytes(tmp_path / "disk", copy)
    assert copy.name == "x" and (copy.parent.stat().st_mode & 0o777) == 0o700
    require_tidy(honest)
    lose_machine(honest)
    answered = npmdask.resume(URL)
    assert answered.data_passes == 0 and answered.left_basis().shape == (4000, 4)
    same_bytes(tmp_path / "disk", copy)
    require_tidy(honest)


def test_every_door_takes_a_url(
    tmp_path: Path, honest: Honest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = str(config(tmp_path, steps=5))
    assert main(["run", file, "--quiet", "--store", f"file://{tmp_path}/disk"]) in (0, 4)
    assert main(["run", file, "--quiet", "--json"]) in (0, 4)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["store"] == URL
    same_bytes(tmp_path / "disk", folder_of(URL))
    lose_machine(honest)
    assert main(["report", URL, "-o", "x.html"]) == 0
    assert main(["inspect", URL, "--json"]) == 0
    assert main(["export", URL, "x.npz"]) == 0
    assert "Convergence" in (tmp_path / "x.html").read_text()
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        assert arrays["left_basis"].shape == (4000, 4)
    assert main(["resume", URL, "--max-steps", "500", "--tol", "1e-3", "--quiet"]) == 0
    assert main(["deflate", URL, "2", "--store", "s3://bucket/runs/more", "--quiet"]) == 0
    assert main(["run", file, "--store", "s3://bucket/runs/warm", "--start", URL, "--quiet"]) in (0, 4)
    assert main(["transform", "s3://bucket/runs/more", "x.zarr", "scores.zarr", "--quiet"]) == 0
    for name in ("runs/x", "runs/more", "runs/warm"):
        require_tidy(honest, name)
    assert main(["resume", "s3://bucket/runs/nothing"]) == 2
    assert "there is no run in s3://bucket/runs/nothing" in capsys.readouterr().err
    assert not (tmp_path / "s3:").exists()


def test_a_store_in_the_data_of_a_bucket_is_refused(tmp_path: Path, honest: Honest) -> None:
    """Its objects would be among those that are read; beside them it is answered, twice."""
    shutil.copytree(data(tmp_path), honest.folder / "data" / "x.zarr")
    before = {path for path in honest.folder.rglob("*") if path.is_file()}
    with pytest.raises(BadInputError, match=r"data/x.zarr/runs/1 lies in s3://bucket/data/x.zarr, which holds data"):
        npmdask.top_k("s3://bucket/data/x.zarr", 2, store="s3://bucket/data/x.zarr/runs/1")
    assert {path for path in honest.folder.rglob("*") if path.is_file()} == before
    for _ in range(2):
        npmdask.top_k("s3://bucket/data/x.zarr", 2, store="s3://bucket/data/run")


def test_gc_deletes_copies_of_what_is_in_the_bucket(tmp_path: Path, honest: Honest) -> None:
    """Not of a run that a process has, nor one that holds what was not carried; the next command brings it back."""
    npmdask.top_k(data(tmp_path), 4, store=URL)
    copy = folder_of(URL)
    with RunStore(URL):
        assert "is in use, or not all of it is at" in sweep_cache().left[0] and copy.exists()
    (copy / "steps" / "000099").mkdir()
    (copy / "steps" / "000099" / "manifest.json").write_text("{}")  # as where the bucket refused a commit
    assert "is in use, or not all of it is at" in sweep_cache().left[0] and copy.exists()
    shutil.rmtree(copy / "steps" / "000099")
    for dry in (True, False):
        (gone,) = sweep_cache(dry=dry).gone
        assert (gone.path, gone.why, copy.exists()) == (copy, f"a copy of {URL}", dry)
    assert not sweep_cache().gone
    answered = npmdask.resume(URL)
    assert answered.data_passes == 0 and answered.left_basis().shape == (4000, 4)


def test_killed_at_any_instant_and_the_machine_lost(tmp_path: Path, honest: Honest) -> None:
    file, rng = config(tmp_path, steps=40), random.Random(7)
    main(["run", str(file), "--quiet", "--store", str(tmp_path / "disk")])
    for killed in range(3):
        # Within a few commits, on a fast machine too: it makes forty.
        more = {"KILL_AFTER": str(rng.uniform(0.01, 0.15))} if killed < 2 else {}
        process = start("run", file, silence=0.0, **more)
        said = process.communicate(timeout=300)
        assert process.returncode == (-signal.SIGALRM if killed < 2 else 4), said
        if killed < 2:
            lose_machine(honest)
    same_bytes(tmp_path / "disk", folder_of(URL), PARTS)
    require_tidy(honest)
    found = pointer(honest)
    assert found is not None and found.epoch == killed + 1


def test_who_reads_meanwhile_sees_whole_commits(tmp_path: Path, honest: Honest) -> None:
    """However fast the writer is beside the reader: it has more steps than are read."""
    process, seen = start("run", config(tmp_path, steps=1000), NPMDASK_CACHE=str(tmp_path / "writer")), [0]
    try:
        wait_for_commit(honest, process, 1)
        while process.poll() is None and len(set(seen)) < 6:
            lose_machine(honest)
            last = RunStore(URL).last_step()
            assert last is not None
            seen.append(len(last[1]["history"]))
    finally:
        process.kill()
        process.communicate()
    assert seen == sorted(seen) and len(set(seen)) > 2


def test_a_reader_that_loses_every_race_goes_on_while_the_run_does(
    tmp_path: Path, honest: Honest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were named a moment ago are gone, again and again; files that are lost are another matter.

    The writer has more steps than are waited for, however fast it is beside the reader.
    """
    process = start("run", config(tmp_path, steps=1000), NPMDASK_CACHE=str(tmp_path / "writer"))
    fetch, lost, races = remote.fetch_files, [0], [1]

    def lose(copy: LocalCopy, objects: Objects, found: Pointer) -> Any:
        last = max(path for path in found.files if path.startswith("steps/")).split("/")[1]
        if lost[0] < races[0]:
            lost[0] += 1
            wait_for_commit(honest, process, int(last) + 3)
        return fetch(copy, objects, found)

    try:
        wait_for_commit(honest, process, 1)
        monkeypatch.setattr(remote, "fetch_files", lose)
        monkeypatch.setattr(remote, "PATIENCE", -1.0)
        with pytest.raises(LostError, match="commits faster than its files can be downloaded here"):
            RunStore(URL)
        monkeypatch.setattr(remote, "PATIENCE", 60.0)
        lost[0], races[0] = 0, remote.TRIES + 1  # more than it once gave up after
        last = RunStore(URL).last_step()
        assert last is not None and len(last[1]["history"]) > 3 * races[0] and lost[0] == races[0]
    finally:
        process.kill()
        process.communicate()


def test_after_a_kill_the_same_machine_goes_on_at_once(tmp_path: Path, honest: Honest) -> None:
    file = config(tmp_path)
    process = start("run", file, HOLD_AT="3", HOLD_UNTIL=str(tmp_path / "never"))
    wait_for_commit(honest, process, 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    with pytest.raises(HeldError, match=r"is held by process \d+ on .*, last heard of \d+ s ago; wait for it"):
        os.environ["NPMDASK_CACHE"], before = str(tmp_path / "elsewhere"), os.environ["NPMDASK_CACHE"]
        try:
            npmdask.resume(URL)
        finally:
            os.environ["NPMDASK_CACHE"] = before
    assert npmdask.resume(URL).steps == 30  # type: ignore[union-attr]
    require_tidy(honest)


def test_who_was_declared_dead_changes_nothing(tmp_path: Path, honest: Honest) -> None:
    file = config(tmp_path)
    main(["run", str(file), "--quiet", "--store", str(tmp_path / "disk")])
    process = start("run", file, HOLD_AT="3", HOLD_UNTIL=str(tmp_path / "go on"))
    wait_for_commit(honest, process, 3)
    os.kill(process.pid, signal.SIGSTOP)
    second = start("resume", URL, silence=0.0, NPMDASK_CACHE=str(tmp_path / "elsewhere"))
    said = second.communicate(timeout=300)
    assert second.returncode == 4, said
    after = {p: p.read_bytes() for p in honest.folder.rglob("*") if p.is_file()}
    (tmp_path / "go on").touch()
    os.kill(process.pid, signal.SIGCONT)
    assert (
        "was taken over by another process; this one has written nothing since" in process.communicate(timeout=300)[1]
    )
    assert process.returncode == RefusedError.exit_code
    left = {p: p.read_bytes() for p in honest.folder.rglob("*") if p.is_file()}
    assert {p: left[p] for p in after} == after
    same_bytes(tmp_path / "disk", folder_of(URL), PARTS)  # its copy is made what the object store has
    npmdask.resume(URL)
    require_tidy(honest)  # also of what it was about to commit


def test_of_many_who_take_a_run_at_once_one_has_it(tmp_path: Path, honest: Honest) -> None:
    file = config(tmp_path, steps=3)
    many = [start("run", file, NPMDASK_CACHE=str(tmp_path / f"cache{i}")) for i in range(3)]
    said = [process.communicate(timeout=300)[1] for process in many]
    codes = sorted(process.returncode for process in many)
    assert codes.count(4) >= 1 and set(codes) <= {3, 4}, said  # a late one finds it finished
    assert all(
        "held by" in text or "taken over" in text for text, p in zip(said, many, strict=True) if p.returncode == 3
    )
    require_tidy(honest)


class At(Observer):
    """Does something after a step."""

    def __init__(self, step: int, what: object) -> None:
        self.step, self.what = step, what

    def on_step(self, step: Step) -> None:
        if step.number == self.step:
            self.what()  # type: ignore[operator]


def test_a_server_that_goes_away_is_a_resume(tmp_path: Path, honest: Honest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npmdask.remote.run_store.RETRIES", {"max_retries": 1})
    data(tmp_path)
    npmdask.top_k(tmp_path / "x.zarr", 4, store=tmp_path / "disk")
    with pytest.raises(LostError, match=r"s3://bucket/runs/x does not answer .*everything committed is kept"):
        npmdask.top_k(tmp_path / "x.zarr", 4, store=URL, observer=At(2, honest.away))
    with pytest.raises(LostError, match="does not answer"):
        npmdask.resume(URL)
    honest.back()
    resumed = npmdask.resume(URL)
    assert resumed.data_passes < resumed.total_data_passes  # type: ignore[union-attr]
    same_bytes(tmp_path / "disk", folder_of(URL))
    require_tidy(honest)


@pytest.mark.parametrize("status", [403, 507])
def test_a_server_that_refuses_costs_nothing(tmp_path: Path, honest: Honest, status: int) -> None:
    data(tmp_path)
    npmdask.top_k(tmp_path / "x.zarr", 4, store=tmp_path / "disk")
    with pytest.raises(CommitError, match=r"cannot write to s3://bucket/runs/x .*What was committed before is intact"):
        npmdask.top_k(tmp_path / "x.zarr", 4, store=URL, observer=At(2, lambda: honest.fault(f"STATUS {status}")))
    found = pointer(honest)
    assert found is not None and "steps/000002/manifest.json" in found.files
    assert LocalCopy(URL).folder.joinpath("steps", "000003").is_dir(), "what could not be carried is here"
    honest.fault("")
    resumed = npmdask.resume(URL)
    assert resumed.data_passes == resumed.total_data_passes - 3  # type: ignore[union-attr]
    same_bytes(tmp_path / "disk", folder_of(URL))
    require_tidy(honest)


def test_answers_that_are_lost_on_the_way(tmp_path: Path, honest: Honest) -> None:
    """What was written although nobody said so is found to be ours."""
    data(tmp_path)
    npmdask.top_k(tmp_path / "x.zarr", 4, store=tmp_path / "disk")
    honest.fault("LOSE 5")
    for _ in range(40):
        try:
            npmdask.top_k(tmp_path / "x.zarr", 4, store=URL)
            break
        except (LostError, BadInputError):
            continue
    honest.fault("")
    npmdask.resume(URL)
    same_bytes(tmp_path / "disk", folder_of(URL))
    require_tidy(honest)


@pytest.mark.parametrize("status", often([503, 500], 0))
def test_writes_that_are_done_and_answered_by_an_error(tmp_path: Path, honest: Honest, status: int) -> None:
    """The client sends them again and is refused, as what it wrote is there: no sign of a server without conditions."""
    data(tmp_path)
    npmdask.top_k(tmp_path / "x.zarr", 4, store=tmp_path / "disk")
    honest.fault(f"AFTER {status} 2")
    npmdask.top_k(tmp_path / "x.zarr", 4, store=URL)
    honest.fault("")
    same_bytes(tmp_path / "disk", folder_of(URL))
    require_tidy(honest)


def test_of_many_who_write_one_object_at_once_one_has_written_it(honest: Honest) -> None:
    """Although every second write is done and answered by an error, and every refusal looked into."""
    honest.fault("AFTER 503 2")
    objects = [Objects(URL) for _ in range(4)]

    def write(number: int, key: str, turn: int, before: Any) -> Any:
        try:
            return objects[number].replace(key, f"{key} by {number}, {turn}".encode(), before)
        except ObjectError as error:
            assert error.kind == "changed"
            return None

    with ThreadPoolExecutor(len(objects)) as pool:
        for key in map(str, range(8)):
            before: Any = None
            for turn in range(2):  # of an object that is not there, and of one that is
                made = list(pool.map(partial(write, key=key, turn=turn, before=before), range(len(objects))))
                ((winner, before),) = [(number, version) for number, version in enumerate(made) if version is not None]
                found = objects[0].read(key)
                assert found is not None and found[:2] == (f"{key} by {winner}, {turn}".encode(), before)


def test_what_cannot_be_used_is_said(tmp_path: Path, honest: Honest, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInputError, match=r"NoSuchBucket|cannot be used as store"):
        npmdask.top_k(np.eye(4), 1, store="s3://no-such-bucket/x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something-quite-different")
    with pytest.raises(BadInputError, match=r"cannot be used as store .*AWS_SECRET_ACCESS_KEY") as caught:
        npmdask.top_k(np.eye(4), 1, store=URL)
    assert "something-quite-different" not in str(caught.value)


def test_a_server_without_conditions_is_refused(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPMDASK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(RefusedError, match=r"ignores conditional writes .*two processes could write to one run"):
        npmdask.top_k(np.eye(4), 1, store=URL)
    assert not [p for p in bucket.folder.rglob("*") if p.is_file()]


def test_no_credentials_in_any_file(tmp_path: Path, honest: Honest, capsys: pytest.CaptureFixture[str]) -> None:
    file = config(tmp_path, steps=3)
    main(["run", str(file)])
    main(["report", URL])
    honest.fault("STATUS 403")
    main(["resume", URL, "--max-steps", "5"])
    said = "".join(capsys.readouterr())
    secrets = [honest.environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    files = [p for p in [*LocalCopy(URL).home.rglob("*"), *honest.folder.rglob("*")] if p.is_file()]
    assert len(files) > 20
    for secret in secrets:
        assert secret not in said
        assert not [p for p in files if secret.encode() in p.read_bytes()]


def test_what_was_taken_away_or_damaged(tmp_path: Path, honest: Honest) -> None:
    data(tmp_path)
    npmdask.top_k(tmp_path / "x.zarr", 4, store=URL)
    lose_machine(honest)
    found = pointer(honest)
    assert found is not None
    key = next(key for key in found.keys if key.endswith("result/values.npy"))
    whole = (honest.folder / "runs/x" / key).read_bytes()
    (honest.folder / "runs/x" / key).write_bytes(whole[:-1] + b"\x00")
    with pytest.raises(BadInputError, match=r"values.npy is damaged \(its checksum does not match\)"):
        npmdask.resume(URL)
    (honest.folder / "runs/x" / key).write_bytes(whole)
    assert npmdask.resume(URL).data_passes == 0  # type: ignore[union-attr]
    objects = Objects(URL)
    objects.delete(["commit.json", *objects.keys("files")])
    with pytest.raises(RefusedError, match=r"no longer a run at s3://bucket/runs/x, but its local copy"):
        npmdask.top_k(tmp_path / "x.zarr", 4, store=URL)
    LocalCopy(URL).home.joinpath("carried.json").unlink()
    assert npmdask.resume(LocalCopy(URL).folder).data_passes == 0  # type: ignore[union-attr]
    assert npmdask.resume(URL).data_passes == 0  # type: ignore[union-attr]


def test_a_search_and_jobs_of_stages(tmp_path: Path, honest: Honest) -> None:
    data(tmp_path)
    share = npmdask.top_k(tmp_path / "x.zarr", 0.5, store=tmp_path / "share")
    told = Carried(honest, "search/0016/steps/000001/manifest.json")
    assert npmdask.top_k(tmp_path / "x.zarr", 0.5, store=URL, observer=told).target_rank == share.target_rank
    assert told.steps[0] is True, "a step of a stage is in the bucket before anybody is told of it"
    same_bytes(tmp_path / "share", folder_of(URL), (*PARTS, "search/0016/steps", "search/0016/result"))
    found = pointer(honest)
    assert found is not None and any(path.startswith("search/0016/steps/") for path in found.files)
    rng = np.random.default_rng(0)
    counts = sp.csr_matrix(rng.poisson(rng.gamma(0.3, 4.0, (300, 3)) @ rng.dirichlet(np.full(40, 0.1), 3) * 8))
    cut = CorpusFilter(held_out=0.1)
    run_topics(counts, 3, store=tmp_path / "topics", cut=cut)
    with pytest.raises(KeyboardInterrupt):
        run_topics(counts, 3, store="s3://bucket/runs/t", cut=cut, observer=Interrupting("decomposition"))
    lose_machine(honest)
    resumed = npmdask.resume("s3://bucket/runs/t")
    assert resumed.store == "s3://bucket/runs/t"  # type: ignore[union-attr]
    copy = folder_of("s3://bucket/runs/t")
    for part in ("totals", "whitening", "decomposition", "topics", "quality", "moments.zarr"):
        names = sorted(p.relative_to(copy) for p in (copy / part).rglob("*.np?") if p.is_file())
        assert names or part == "moments.zarr"
        for name in names:
            assert (copy / name).read_bytes() == (tmp_path / "topics" / name).read_bytes(), name
    lose_machine(honest)
    assert read_topics("s3://bucket/runs/t").model.k == 3
    assert main(["report", "s3://bucket/runs/t", "-o", str(tmp_path / "t.html")]) == 0
    require_tidy(honest, "runs/t")


class Carried(Observer):
    """Whether a file was in the last commit when it was told of each step, and of the end."""

    def __init__(self, bucket: Bucket, path: str) -> None:
        self.bucket, self.path = bucket, path
        self.steps: list[bool] = []

    def is_there(self) -> bool:
        found = pointer(self.bucket)
        return found is not None and self.path in found.files

    def on_step(self, step: Step) -> None:
        self.steps.append(self.is_there())

    def on_end(self, solution: object) -> None:
        self.at_end = self.is_there()


def test_an_answer_that_could_not_be_carried_is_before_it_is_given(tmp_path: Path, honest: Honest) -> None:
    data(tmp_path)
    asked: dict[str, object] = {"max_steps": 3, "tol": 1e-15, "algorithm": "power"}
    with pytest.raises(CommitError):
        refusing = At(3, lambda: honest.fault("STATUS 403"))
        npmdask.top_k(tmp_path / "x.zarr", 4, store=URL, observer=refusing, **asked)  # type: ignore[arg-type]
    honest.fault("")
    told = Carried(honest, "result/manifest.json")
    assert LocalCopy(URL).folder.joinpath("result").is_dir() and not told.is_there()
    assert npmdask.resume(URL, observer=told).data_passes == 0  # type: ignore[union-attr]
    assert told.at_end is True


class Interrupting(Observer):
    """Stands for whoever presses a key when a stage begins."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def on_stage(self, label: str) -> None:
        if label.startswith(self.stage):
            raise KeyboardInterrupt


def test_a_mixture(tmp_path: Path, honest: Honest) -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.standard_normal((2000, 8)) + 6 * np.eye(8)[i] for i in range(3)])
    path = write_zarr(tmp_path / "m.zarr", rows, (1000, 8))
    there = fit_latent("mixture", str(path), 3, store=URL, resources=Resources(), observer=Observer())
    here = fit_latent("mixture", str(path), 3, store=tmp_path / "m", resources=Resources(), observer=Observer())
    assert there.store == URL and there.weights.tolist() == here.weights.tolist()
    require_tidy(honest)


def test_a_stream_goes_on_elsewhere(tmp_path: Path, honest: Honest) -> None:
    rows = np.random.default_rng(0).standard_normal((4000, 20)) * np.linspace(3, 1, 20)
    (tmp_path / "in").mkdir()
    for i in range(2):
        np.save(tmp_path / "in" / f"{i}.npy", rows[2000 * i : 2000 * (i + 1)])
    asked = {"k": 3, "commit_seconds": 0.0, "batch_rows": 250}
    npmdask.stream_pca(tmp_path / "in", store=tmp_path / "disk", **asked)  # type: ignore[arg-type]
    (tmp_path / "in" / "1.npy").rename(tmp_path / "1.npy")
    first = npmdask.stream_pca(tmp_path / "in", store=URL, **asked)  # type: ignore[arg-type]
    assert (first.rows, first.store) == (2000, URL)
    lose_machine(honest)
    (tmp_path / "1.npy").rename(tmp_path / "in" / "1.npy")
    second = npmdask.resume(URL)
    assert second.new_rows == 2000  # type: ignore[union-attr]
    copy = folder_of(URL)
    with RunStore(tmp_path / "disk") as there:
        last = there.last_step()
    found = RunStore(copy).last_step()
    assert last is not None and found is not None and last[1]["state"] == found[1]["state"]
    for name, array in last[0].items():
        np.testing.assert_array_equal(array, found[0][name])
    require_tidy(honest)


def test_what_was_taken_away_here_is_brought_again(tmp_path: Path, honest: Honest) -> None:
    data(tmp_path)
    npmdask.top_k(tmp_path / "x.zarr", 4, store=URL)
    before, copy = pointer(honest), folder_of(URL)
    for gone in (copy, copy / "steps"):
        shutil.rmtree(gone)
        assert npmdask.resume(URL).data_passes == 0  # type: ignore[union-attr]
    after = pointer(honest)
    assert before is not None and after is not None
    differ = {path for path, file in before.files.items() if after.files.get(path) != file}
    assert differ == {"telemetry.jsonl"}


def test_a_folder_that_is_not_whole_is_not_carried(tmp_path: Path, honest: Honest) -> None:
    """Filling the local copy fails after the run was taken: what is there must stay there."""
    data(tmp_path)
    npmdask.top_k(tmp_path / "x.zarr", 4, store=URL)
    lose_machine(honest)
    before = pointer(honest)
    assert before is not None
    key = honest.folder / "runs/x" / next(key for key in before.keys if key.endswith("result/values.npy"))
    whole = key.read_bytes()
    key.write_bytes(whole[:-1] + b"\x00")
    carrier = carrier_of(URL)
    assert carrier is not None
    with pytest.raises(BadInputError, match=r"is damaged"):
        carrier.claim()
    carrier.close()
    after = pointer(honest)
    assert after is not None and (after.epoch, after.files) == (before.epoch + 1, before.files)
    key.write_bytes(whole)
    assert npmdask.resume(URL).data_passes == 0  # type: ignore[union-attr]


def test_signs_of_life_during_a_long_commit(tmp_path: Path, honest: Honest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npmdask.remote.run_store.BEAT", 0.05)
    beats: list[int] = []

    def slow(self: Objects, key: str, data: bytes) -> None:
        found = pointer(honest)
        while found is None or not (key.endswith("run.json") or found.beats > 1):
            time.sleep(0.01)
            found = pointer(honest)
        beats.append(found.beats)
        put(self, key, data)

    put = Objects.put
    monkeypatch.setattr(Objects, "put", slow)
    with RunStore(URL) as held:
        held.write_spec({"data": {}})
        held.write_part("survey", {"a": np.zeros(3)}, {})
    assert max(beats) > 1
    require_tidy(honest)


class InPass(Observer):
    """Stands for a machine that is lost in the middle of a pass, after some of its parts were committed."""

    def __init__(self, label: str, tasks: int) -> None:
        self.label, self.left, self.now = label, tasks, ""

    def on_pass(self, label: str, nbytes: int, chunks: int) -> None:
        self.now = label

    def on_task(self, record: ReadStats) -> None:
        if self.now == self.label and record.bytes_read:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt


@pytest.mark.parametrize("label", ["step 3", "left singular vectors"])
def test_a_machine_lost_inside_a_pass(
    tmp_path: Path, honest: Honest, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    """What the pass had finished is in the bucket, with the rows of A V that go with it."""
    monkeypatch.setattr("npmdask.core.operators._protocol.RUN_BYTES", 2**19)
    data(tmp_path)
    asked: dict[str, object] = {"threads": 1, "commit_seconds": 0.0, "tol": 1e-3}
    npmdask.top_k(tmp_path / "x.zarr", 4, store=tmp_path / "disk", **asked)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k(tmp_path / "x.zarr", 4, store=URL, observer=InPass(label, 2), **asked)  # type: ignore[arg-type]
    lose_machine(honest)
    npmdask.resume(URL)
    passed = [e for e in RunStore(URL).telemetry() if e["event"] == "passed" and e["label"] == label]
    assert passed[-1]["bytes_resumed"] > 0
    same_bytes(tmp_path / "disk", folder_of(URL))
    require_tidy(honest)


def test_what_a_server_did_not_take_away_is_gone_at_the_end(
    tmp_path: Path, honest: Honest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete that is answered and not carried out. Mutant: only what went with the last commit is taken away."""
    data(tmp_path)
    taken_away, lost = Objects.delete, list[str]()

    def forgets_the_first(self: Objects, keys: list[str]) -> None:
        if not lost and any(key.startswith("files/") for key in keys):
            lost.extend(keys)
            return
        taken_away(self, keys)

    monkeypatch.setattr(Objects, "delete", forgets_the_first)
    npmdask.top_k(tmp_path / "x.zarr", 4, store=URL)
    assert lost
    require_tidy(honest)


def test_a_large_array_goes_in_pieces(honest: Honest) -> None:
    large = np.random.default_rng(0).standard_normal((20_000, 60))
    with RunStore(URL) as held:
        held.write_part("start", {"basis": large}, {})
    assert large.nbytes > 2 * SMALL
    lose_machine(honest)
    found = RunStore(URL).read_part("start")
    assert found is not None
    np.testing.assert_array_equal(found[0]["basis"], large)
    require_tidy(honest)


def test_a_gram_in_a_bucket_is_added_to_and_answers(tmp_path: Path, honest: Honest) -> None:
    """Its parts are carried before its list, and what no list names any more is removed there, too."""
    rows = planted(3000, 20, 1 / np.sqrt(np.arange(1, 21)))[0]
    path = write_zarr(tmp_path / "x.zarr", rows[:2200], (500, 20))
    npmdask.gram(path, URL, kind="samples")
    write_zarr(tmp_path / "y.zarr", rows, (500, 20))
    shutil.rmtree(path)
    (tmp_path / "y.zarr").rename(path)
    shutil.rmtree(folder_of(URL))
    store = npmdask.gram(path, URL, kind="samples")
    assert (store.rows, store.rows_read, store.store) == (3000, 1000, URL)
    found = npmdask.top_k(npmdask.GramStore(URL), 3, center=True)
    other = npmdask.top_k(rows, 3, kind="samples", center=True)
    assert found.converged
    np.testing.assert_allclose(found.values, other.values, rtol=1e-11)
