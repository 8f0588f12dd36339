"""At no instant do a crash and a resume lead to a second noisy release of the same product.

A run is prepared up to its key, then copied with its ledger: the copy has the same key and the same name, so that an
undisturbed run of one must equal, bit for bit, a disturbed run of the other.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask.privacy.account as account
from npmdask.api import resume, solve
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.resources import Resources
from npmdask.errors import RefusedError
from npmdask.ledger import Ledger, open_ledger
from npmdask.privacy.mechanisms import Entropy, PrivateGaussian, SymmetricGaussian
from tests.conftest import often, same_bytes
from tests.privacy.runs.conftest import (
    OF_RECORDS,
    RANK,
    STEPS,
    World,
    make_world,
    of_records,
    of_tensor,
    planted,
    prepared,
    records,
    twin,
    with_rule,
)

pytestmark = pytest.mark.slow  # many whole runs: too long for `make check`
ROOT = Path(__file__).resolve().parents[3]


class Crash(BaseException):
    """What a kill is to the process: nothing catches it."""


def back(world: World, name: str) -> None:
    for what in ("run", "ledger.sqlite"):
        target = world.folder / what
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        (world.folder / f"{name}-{what}").rename(target)


@pytest.fixture
def undisturbed(world: World) -> World:
    return undisturbed_run(world)


def undisturbed_run(world: World) -> World:
    """The run, prepared; beside it `done`, where it went through undisturbed."""
    prepared(world)
    twin(world, "before")
    solve(world.problem(), world.folder / "run", Resources())
    (world.folder / "run").rename(world.folder / "done")
    (world.folder / "run").mkdir()
    back(world, "before")
    return world


def crash_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, *, after: bool) -> None:
    """Make the ``call``-th call of a method crash, before or after it did its work."""
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def crashing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise Crash
        made = real(*args, **kwargs)
        if calls == call:
            raise Crash
        return made

    monkeypatch.setattr(owner, name, crashing)


POINTS = [
    (owner, name, call)
    for owner, name, calls in (
        (Ledger, "reserve", 1),
        (Ledger, "begin", STEPS),
        (PrivateGaussian, "release", STEPS),
        (Ledger, "commit", STEPS),
        (RunStore, "commit_step", STEPS),
        (RunStore, "write_part", 1),
        (Ledger, "finish", 1),
        (account, "destroy_key", 1),
    )
    for call in range(1, calls + 1)
]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("owner", "name", "call"), POINTS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_a_crash_at_any_point_ends_in_the_same_release(
    undisturbed: World, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, after: bool
) -> None:
    world = undisturbed
    with monkeypatch.context() as patch:
        crash_at(patch, owner, name, call, after=after)
        with pytest.raises(Crash):
            world.solve("run")
    released = digests(world)
    again = resume(world.folder / "run")
    assert again.answered
    same_bytes(world.folder / "run", world.folder / "done", parts=("steps", "result"))
    (run,) = world.ledger.status("people").runs
    assert run.finished and set(run.committed) == set(range(1, again.steps + 1))
    assert all(run.committed[step] == digest for step, digest in released.items()), "a release was made twice"
    assert not (world.folder / "run" / "entropy").exists()


OF_RECORDS_POINTS = [point for point in POINTS if point[2] in (1, 3) and point[0] is not PrivateGaussian]


@pytest.mark.heavy
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("owner", "name", "call"), OF_RECORDS_POINTS, ids=lambda v: getattr(v, "__name__", str(v)))
@pytest.mark.parametrize("oracle", ["tight", "paper"])
def test_a_crash_of_a_run_of_records_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oracle: str, owner: Any, name: str, call: int, after: bool
) -> None:
    world = undisturbed_run(of_records(tmp_path, oracle))
    test_a_crash_at_any_point_ends_in_the_same_release(world, monkeypatch, owner, name, call, after)


COVARIANCE_POINTS = [
    (SymmetricGaussian if owner is PrivateGaussian else owner, name, call) for owner, name, call in POINTS if call == 1
]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("owner", "name", "call"), COVARIANCE_POINTS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_a_crash_of_a_run_that_releases_its_covariance_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, after: bool
) -> None:
    world = undisturbed_run(world_of("covariance", tmp_path))
    test_a_crash_at_any_point_ends_in_the_same_release(world, monkeypatch, owner, name, call, after)


RULE_POINTS = [(RunStore, "commit_step", 1), (PrivateGaussian, "release", 2), (Ledger, "finish", 1)]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("owner", "name", "call"), RULE_POINTS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_a_crash_of_a_run_with_gaps_and_weights_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, after: bool
) -> None:
    """What gaps count as, and the weights, are taken from the store."""
    world = undisturbed_run(with_rule(tmp_path))
    test_a_crash_at_any_point_ends_in_the_same_release(world, monkeypatch, owner, name, call, after)


@pytest.mark.heavy
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("owner", "name", "call"), POINTS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_a_crash_of_a_run_on_a_tensor_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, after: bool
) -> None:
    """PrivateGaussian is called for every column: the second call is in the middle of the first release."""
    world = undisturbed_run(of_tensor(tmp_path / "world", planted()))
    test_a_crash_at_any_point_ends_in_the_same_release(world, monkeypatch, owner, name, call, after)


@pytest.mark.parametrize("oracle", ["tensor", "tight", "paper"])
def test_a_run_that_crashes_before_and_after_every_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oracle: str
) -> None:
    """One run, again and again: at the first begin, at the first release of a column, ... of every call of resume."""
    world = undisturbed_run(world_of(oracle, tmp_path))
    names = [("reserve", Ledger), ("begin", Ledger), ("release", PrivateGaussian), ("commit", Ledger)]
    names += [("commit_step", RunStore), ("write_part", RunStore), ("finish", Ledger), ("destroy_key", account)]
    if oracle != "tensor":
        names.remove(("release", PrivateGaussian))  # of matrices: a run of records draws its noise by itself
    crashes = 0
    for name, owner in names:
        for after in (False, True):
            for _ in range(1 + STEPS * (name == "commit_step" and after)):
                with monkeypatch.context() as patch:
                    crash_at(patch, owner, name, 1, after=after)
                    with suppress(Crash):
                        resume(world.folder / "run")
                        crashes -= 1
                crashes += 1
    assert crashes == 2 * len(names) + STEPS, "no call went through undisturbed"
    assert resume(world.folder / "run").answered
    same_bytes(world.folder / "run", world.folder / "done", parts=("steps", "result"))
    (run,) = world.ledger.status("people").runs
    assert run.finished and set(run.committed) == set(range(1, len(run.committed) + 1))
    assert len(run.committed) == 6 or oracle != "tensor"


@pytest.mark.parametrize("oracle", ["tight", "paper"])
def test_a_crash_after_every_release_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oracle: str
) -> None:
    """Every step begins from its checkpoint, which tests/dp_pca/test_rounds.py looks into."""
    world = undisturbed_run(of_records(tmp_path, oracle))
    crashes = 0
    while not (world.folder / "run" / "result").exists():
        with monkeypatch.context() as patch:
            crash_at(patch, RunStore, "commit_step", 1, after=True)
            with suppress(Crash):
                resume(world.folder / "run")
                break
        crashes += 1
    assert crashes == len(world.ledger.status("people").runs[0].committed)
    same_bytes(world.folder / "run", world.folder / "done", parts=("steps", "result"))


def digests(world: World) -> dict[int, str]:
    return dict(world.ledger.status("people").runs[0].committed)


@pytest.mark.parametrize("point", [(Ledger, "begin", 1), (Ledger, "commit", 2), (RunStore, "commit_step", 2)])
def test_without_its_key_a_run_that_has_begun_is_refused(
    undisturbed: World, monkeypatch: pytest.MonkeyPatch, point: tuple[Any, str, int]
) -> None:
    world = undisturbed
    with monkeypatch.context() as patch:
        crash_at(patch, *point, after=True)
        with pytest.raises(Crash):
            world.solve("run")
    (world.folder / "run" / "entropy").unlink()
    before = world.ledger.status("people").spent
    with pytest.raises(RefusedError, match="is missing, and the run has begun"):
        resume(world.folder / "run")
    assert world.ledger.status("people").spent == before, "what was reserved stays spent"


def test_a_mutant_that_draws_fresh_noise_on_resume_is_caught(
    undisturbed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest in the ledger holds the second time to the first."""
    world = undisturbed
    with monkeypatch.context() as patch:
        crash_at(patch, Ledger, "commit", 2, after=True)
        with pytest.raises(Crash):
            world.solve("run")
    key = world.folder / "run" / "entropy"
    key.unlink()
    Entropy.create(key, bound_to=world.problem().source.fingerprint)
    with pytest.raises(RefusedError, match="twice"):
        resume(world.folder / "run")
    last = RunStore(world.folder / "run").last_step()
    assert last is not None and len(last[1]["history"]) == 1, "nothing of the second release was kept"


def test_a_mutant_that_commits_before_it_writes_the_digest_would_be_seen(undisturbed: World) -> None:
    """Order of a step: the ledger knows of a release before the store does, never after."""
    world = undisturbed
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (Ledger, "begin"),
            (PrivateGaussian, "release"),
            (Ledger, "commit"),
            (RunStore, "commit_step"),
        ):
            patch.setattr(owner, name, noting(seen, name, getattr(owner, name)))
        world.solve("run")
    assert seen == ["begin", "release", "commit", "commit_step"] * STEPS


def noting(seen: list[str], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        seen.append(name)
        return real(*args, **kwargs)

    return call


def test_nothing_before_the_noise_is_ever_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept pass holds sums before any noise: not of a private run, whatever commit_seconds says."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a sum before the noise went to disk")

    monkeypatch.setattr(RunStore, "keep_pass", refuse)
    solve(world.problem(), world.folder / "run", Resources(commit_seconds=0.0))


def test_a_second_run_on_a_copy_of_the_folder_releases_the_same(undisturbed: World) -> None:
    """A folder that was copied with its key is the same run: one reservation, one release."""
    world = undisturbed
    shutil.copytree(world.folder / "run", world.folder / "copy")
    first, second = world.solve("run"), world.solve("copy")
    assert (first.basis == second.basis).all() and len(world.ledger.status("people").runs) == 1
    same_bytes(world.folder / "run", world.folder / "copy", parts=("steps", "result"))


LATEST = 1.0  # seconds
JOB = """
import sys
from pathlib import Path
from npmdask.privacy.clipped_entries import BoundedTensor
from npmdask.privacy.clipped_rows import ClippedGram
from npmdask.dp_pca.record_images import RecordImages
import time
import npmdask.core.runs.loop, npmdask.ledger
for operator in (BoundedTensor, ClippedGram, RecordImages):
    def slowly(self, slabs, block, partial=operator.partial):
        time.sleep(WAIT)
        return partial(self, slabs, block)
    operator.partial = slowly
from npmdask.api import resume
print(flush=True)
resume(Path(sys.argv[1]))
"""


def world_of(oracle: str, folder: Path) -> World:
    if oracle == "tensor":
        return of_tensor(folder / "world", planted())
    if oracle == "covariance":
        asked = {"target_rank": RANK, "algorithm": "covariance"}
        return replace(make_world(folder / "world", records(4000)), asked=asked)
    if oracle == "public rule":
        return with_rule(folder)
    return make_world(folder / "world", records(4000)) if oracle == "private power" else of_records(folder, oracle)


ORACLES = ("private power", "covariance", "tight", "public rule", *(o for o in (*OF_RECORDS, "tensor") if o != "tight"))


@pytest.mark.slow
@pytest.mark.parametrize(("oracle", "most"), often([(oracle, most) for most in (3, 8) for oracle in ORACLES], 0, 2))
def test_kill_9_at_random_instants(tmp_path: Path, oracle: str, most: int) -> None:
    """Real processes, killed at random: the same bits as undisturbed, every release once, one reservation.

    The instants are counted from where everything is imported, which takes a machine as long as it takes, and at most
    ``LATEST`` seconds: a pass lasts longer, and a run of several at least twice as long.
    """
    world = world_of(oracle, tmp_path)
    wait = {"private power": 0.8, "covariance": 1.1}.get(oracle) or 4 / world.problem().private.releases
    job = JOB.replace("WAIT", str(wait))
    prepared(world)
    twin(world, "before")
    solve(world.problem(), world.folder / "run", Resources())
    (world.folder / "run").rename(world.folder / "done")
    (world.folder / "run").mkdir()
    rng = random.Random(5)
    for _ in range(10):
        back(world, "before")
        twin(world, "before")
        if (kills := killed_and_ended(job, world.folder / "run", most, rng)) >= 2:
            break  # else the run was over before, while this process was kept waiting
    assert kills >= 2
    same_bytes(world.folder / "run", world.folder / "done", parts=("steps", "result"))
    (run,) = open_ledger(world.folder / "ledger.sqlite").status("people").runs
    assert run.finished and set(run.committed) == set(range(1, len(run.committed) + 1))
    assert len(run.committed) == STEPS or oracle not in ("private power", "public rule")


def killed_and_ended(job: str, run: Path, most: int, rng: random.Random) -> int:
    """End a run under at most so many kills at random instants; how many there were."""
    kills = 0
    while not (run / "result").exists() or (run / "entropy").exists():
        child = subprocess.Popen(
            [sys.executable, "-c", job, str(run)], cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE
        )
        assert child.stdout is not None and child.stdout.readline(), "it has begun"
        try:
            child.wait(rng.uniform(0.0, LATEST) if kills < most else 300)
            assert child.returncode == 0
        except subprocess.TimeoutExpired:
            assert kills < most, "it does not end"
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            kills += 1
        finally:
            child.stdout.close()
    return kills


def test_the_key_is_made_after_the_reservation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(Ledger, "reserve", noting(seen, "reserve", Ledger.reserve))
    real = account.Entropy.create
    monkeypatch.setattr(account.Entropy, "create", lambda *a, **k: (seen.append("create"), real(*a, **k))[1])
    world.solve("run")
    assert seen == ["reserve", "create"]


def test_a_release_does_not_depend_on_threads(world: World) -> None:
    prepared(world)
    twin(world, "before")
    first = solve(world.problem(), world.folder / "run", Resources(threads=1))
    back(world, "before")
    second = solve(world.problem(), world.folder / "run", Resources(threads=3))
    assert (first.basis == second.basis).all() and np.array_equal(first.values, second.values)
