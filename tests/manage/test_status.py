"""``npmdask status``: every state of every kind of run, seen without a lock."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
import npmdask.core.checkpoint.lease as ownership
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import time_text
from npmdask.core.operators import _protocol
from npmdask.core.runs.observers import Observer
from npmdask.errors import BadInputError, RefusedError
from npmdask.manage.status import RunStatus, inspect, runs_as_lines, status_below
from npmdask.planning.forecast import seconds_left, steps_to
from npmdask.streaming import stream_pca
from tests.manage.common import OWNER, ROOT, content, hanging, let_age, make_data
from tests.manage.job import mixture, run, stream
from tests.privacy.runs.conftest import STEPS, World, world  # noqa: F401


def states(folder: Path) -> dict[str, RunStatus]:
    return {status.name: status for status in status_below(folder)}


@pytest.mark.slow
def test_finished_runs_of_every_kind(tmp_path: Path) -> None:
    make_data(tmp_path)
    runs = tmp_path / "runs"
    run(tmp_path, runs / "a")
    mixture(tmp_path, runs / "deeper" / "m")
    stream(tmp_path, runs / "s")
    files = tmp_path / "in"
    files.mkdir()
    np.save(files / "1.npy", np.load(tmp_path / "x.npy"))
    stream_pca(files, 3, store=runs / "w")
    (runs / "notes").mkdir()
    (runs / "loop").symlink_to(runs)
    found = states(runs)
    assert list(found) == ["a", "deeper/m", "s", "w"]
    assert {name: (s.what, s.state) for name, s in found.items()} == {
        "a": ("power", "finished"),
        "deeper/m": ("mixture", "finished"),
        "s": ("stream, spm", "finished"),
        "w": ("stream, spm", "waiting"),
    }
    a = found["a"]
    assert (a.step, a.max_steps, a.crashes, a.error, a.holder, a.seconds_left) == (8, 200, 0, "", None, None)
    assert a.residual is not None and a.residual <= 1e-3
    assert a.seconds_since_commit is not None and 0 <= a.seconds_since_commit < 3600
    assert a.bytes == sum(p.stat().st_size for p in (runs / "a").rglob("*") if p.is_file())
    assert json.loads(json.dumps(a.facts())) == a.facts()
    assert states(runs / "a")["a"].state == "finished", "a store may be named itself"


@pytest.mark.slow
def test_a_run_that_runs_hangs_and_is_killed(tmp_path: Path) -> None:
    """Nothing in the folder changes for being looked at."""
    make_data(tmp_path)
    runs = tmp_path
    with hanging("run", tmp_path, "pass", "6") as process:
        before = content(runs / "run")
        s = states(runs)["run"]
        assert (s.state, s.step, s.max_steps) == ("running", 5, 200)
        assert s.holder is not None and s.holder["pid"] == process.pid and s.holder["owner"] == OWNER
        assert s.seconds_left is None or 0 < s.seconds_left < 3600
        let_age(runs / "run")
        s = states(runs)["run"]
        assert s.state == "hung" and s.holder is not None and ownership.STALE + 15 <= s.holder["silent_seconds"] < 3600
        said = "\n".join(runs_as_lines([s]))
        silent = time_text(s.holder["silent_seconds"])
        assert f"process {process.pid} on" in said and f", for {OWNER}; last heartbeat {silent} ago" in said
        assert content(runs / "run") == before
        process.kill()
    s = states(runs)["run"]
    assert (s.state, s.holder, s.crashes) == ("unfinished", None, 0), "it had come further than its start"
    program = f"""
import os, npmdask
from npmdask.core.execution.threads import Threads
Threads.run_pass = lambda *_: os.kill(os.getpid(), 9)
npmdask.resume({str(runs / "run")!r})
"""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], cwd=ROOT)
    s = states(runs)["run"]
    assert (s.state, s.crashes, s.crashed_at) == ("crashed", 2, "step 6")
    (said,) = [line for line in runs_as_lines([s]) if "times in a row" in line]
    assert "ended 2 times in a row without saying so and without a commit, at step 6" in said
    assert "look at the memory and the disk" in said and "run the same command again" in said
    assert "(committed: 5 steps" in said


@pytest.mark.slow
def test_one_kill_is_called_that_and_the_share_of_the_pass_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share is what the next process does not read again."""
    make_data(tmp_path)
    program = f"""
import os, npmdask
from npmdask.core.operators import _protocol
from npmdask.core.runs.observers import Observer
_protocol.RUN_BYTES = _protocol.COLUMN_BYTES = 1
class Dies(Observer):
    tasks = 0
    def on_pass(self, label, nbytes, chunks): self.label = label
    def on_task(self, record):
        self.tasks += self.label == "step 3"
        if self.tasks == 4: os.kill(os.getpid(), 9)
npmdask.top_k({str(tmp_path / "x.zarr")!r}, 3, iteration_rank=8, algorithm="power", tol=1e-3, threads=1,
    store={str(tmp_path / "run")!r}, commit_seconds=0, observer=Dies())
"""
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == -9
    s = states(tmp_path)["run"]
    assert (s.state, s.killed, s.crashes, s.step, s.error) == ("unfinished", True, 0, 2, "")
    assert s.pass_committed is not None and 0 < s.pass_committed < 1
    _, row, *notes = runs_as_lines([s])
    assert "2 of at most 200" in row
    assert s.converged is None, "there is no answer yet"
    copied = shutil.copytree(tmp_path / "run" / "pass", tmp_path / "parts of step 3")
    share = f"{100 * s.pass_committed:.0f} % of the next pass"
    assert (
        "    its process ended without saying so, most likely killed; run the same command again and it goes on "
        f"(committed: 2 steps and {share})" in notes
    )
    for name in ("RUN_BYTES", "COLUMN_BYTES"):
        monkeypatch.setattr(_protocol, name, 1)  # so that a pass over small data has many parts
    whole = RunStore(tmp_path / "run").history()[-1]["bytes_read"]
    with pytest.raises(KeyboardInterrupt):
        npmdask.resume(tmp_path / "run", observer=_EndsInPass())
    resumed = [line["bytes_resumed"] for line in RunStore(tmp_path / "run").telemetry() if line["event"] == "pass"][-1]
    assert resumed == s.pass_committed * whole
    s = states(tmp_path)["run"]
    assert not s.killed and "killed" not in "\n".join(runs_as_lines([s])), "it said why it ended"
    with pytest.raises(KeyboardInterrupt):
        npmdask.resume(tmp_path / "run", observer=_EndsAfterStep())
    shutil.copytree(copied, tmp_path / "run" / "pass")  # as a kill right after the commit leaves them
    s = states(tmp_path)["run"]
    assert (s.step, s.pass_committed) == (3, None), "the parts are of a step that is committed"
    npmdask.resume(tmp_path / "run")
    s = states(tmp_path)["run"]
    assert (s.state, s.killed, s.pass_committed) == ("finished", False, None) and len(runs_as_lines([s])) == 2
    assert s.converged is True


@pytest.mark.slow
def test_a_start_that_died_before_any_commit_has_not_crashed_yet(tmp_path: Path) -> None:
    make_data(tmp_path)
    with hanging("run", tmp_path, "pass", "1") as process:
        process.kill()
    s = states(tmp_path)["run"]
    assert (s.state, s.crashes, s.killed) == ("unfinished", 1, True)
    assert any("most likely killed" in note and "(committed: nothing yet)" in note for note in runs_as_lines([s]))


@pytest.mark.slow
def test_an_answer_that_did_not_converge_is_called_that_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_data(tmp_path))
    asked = ["run", "x.zarr", "-k", "3", "--algorithm", "power", "--tol", "1e-3", "--quiet"]
    assert main([*asked, "--store", "runs/short", "--set", "algorithm.max_steps=2"]) == 4
    assert "outcome    finished, not converged: max_steps = 2 reached" in capsys.readouterr().out
    assert main([*asked, "--store", "runs/long"]) == 0
    assert "not converged" not in capsys.readouterr().out
    fields = ["mca", "x.npy", "x.npy", "-k", "2", "--store", "runs/fields", "--quiet", "--tol", "1e-12"]
    assert main([*fields, "--max-steps", "1"]) == 4
    assert "outcome    finished, not converged: " in capsys.readouterr().out
    found = states(tmp_path / "runs")
    assert {name: (s.state, s.converged, s.outcome[:13]) for name, s in found.items()} == {
        "fields": ("finished", False, "not converged"),
        "long": ("finished", True, ""),
        "short": ("finished", False, "not converged"),
    }
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("short")).split()[2:5] == ["finished,", "not", "converged"]
    assert "    " + found["short"].outcome in lines
    assert inspect("runs/short")["answered"] is False and inspect("runs/long")["answered"] is True
    assert main(["resume", "runs/short", "--max-steps", "100", "--quiet"]) == 0
    assert states(tmp_path / "runs")["short"].converged


class _EndsAfterStep(Observer):
    def on_step(self, step: Any) -> None:
        raise KeyboardInterrupt


class _EndsInPass(Observer):
    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_what_ended_a_run_is_said_until_it_goes_on(tmp_path: Path) -> None:
    make_data(tmp_path)
    with pytest.raises(RefusedError) as refused:
        run(tmp_path, tmp_path / "run", memory="32MiB")
    s = states(tmp_path)["run"]
    assert (s.state, s.error) == ("unfinished", str(refused.value)) and "memory = 32MiB is too small" in s.error
    run(tmp_path, tmp_path / "run", memory="8GiB")
    assert states(tmp_path)["run"].error == ""


@pytest.mark.slow
def test_stores_that_are_damaged_or_were_hardly_begun(tmp_path: Path) -> None:
    make_data(tmp_path)
    for name in ("good", "torn", "emptied", "rotten", "foreign"):
        run(tmp_path, tmp_path / name) if name == "good" else shutil.copytree(tmp_path / "good", tmp_path / name)
    (tmp_path / "torn" / "run.json").write_text('{"data": ')
    (tmp_path / "emptied" / "run.json").unlink()
    (tmp_path / "rotten" / "result" / "manifest.json").write_bytes(b"\0" * 100)
    (tmp_path / "foreign" / "run.json").write_text(
        json.dumps({t: {} for t in ("data", "algorithm", "mechanism", "stop", "run", "version")})
    )
    RunStore(tmp_path / "begun").open().close()
    found = states(tmp_path)
    assert {name: s.state for name, s in found.items()} == {
        "begun": "unfinished",
        "emptied": "unfinished",
        "foreign": "damaged",
        "good": "finished",
        "rotten": "damaged",
        "torn": "damaged",
    }
    assert "run.json is damaged" in found["torn"].error and "missing or corrupt" in found["rotten"].error
    assert len(runs_as_lines(list(found.values()))) == 1 + 6 + 3  # damage is said below


@pytest.mark.slow
def test_a_private_run_tells_of_its_releases_only(world: World) -> None:  # noqa: F811
    """Times and sizes of passes follow the rows."""
    world.solve("run")
    s = states(world.folder)["run"]
    assert (s.state, s.step, s.max_steps) == ("finished", STEPS, STEPS)
    assert (s.seconds_since_commit, s.seconds_left, s.residual, s.error) == (None, None, None, "")


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(make_data(tmp_path))
    assert main(["status"]) == BadInputError.exit_code and "there is no folder" in capsys.readouterr().err
    Path("runs").mkdir()
    assert main(["status"]) == 0 and capsys.readouterr().out == "no runs below runs\n"
    run(tmp_path, tmp_path / "runs" / "a")
    assert main(["status"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["run", "what", "state", "step"]
    assert row.split()[:4] == ["a", "power", "finished", "8"]
    assert "200" not in row, "a limit says nothing of a run that is over"
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["state"] == "finished"


def falling(rate: float, steps: int, first: float = 1.0) -> list[float]:
    return [first * rate**i for i in range(steps)]


@pytest.mark.parametrize(
    ("residuals", "tol", "steps"),
    [
        (falling(0.5, 6), 1e-3, 5),
        (falling(0.5, 3), 1e-3, None),  # too few to say
        ([*falling(0.5, 4), 0.125, 0.125, 0.125, 0.13], 1e-3, None),  # it stagnates
        ([1.0, 0.99, 0.98, 0.5, 0.2, 0.05], 1e-3, None),  # it has only begun
        (falling(0.9, 6, 1e-4), 1e-3, 0),
        (falling(0.5, 6), 0.0, None),
    ],
)
def test_steps_that_are_left(residuals: list[float], tol: float, steps: int | None) -> None:
    assert steps_to(residuals, tol) == steps


def test_time_that_is_left() -> None:
    passed = [{"event": "passed", "label": f"step {i}", "seconds": 10.0} for i in range(6)]
    spec: dict[str, Any] = {"algorithm": {"name": "power"}, "stop": {"tol": 1e-3, "max_steps": 200}}
    history = [{"worst_residual": r} for r in falling(0.5, 6)]
    assert seconds_left(spec, history, passed) == 50
    assert seconds_left(spec | {"stop": {"tol": 1e-3, "max_steps": 8}}, history, passed) == 20
    assert seconds_left(spec | {"stop": {"tol": None, "max_steps": 10}}, history, passed) == 40
    assert seconds_left(spec | {"algorithm": {"name": "tensor-power"}}, history, passed) is None
    assert seconds_left(spec, history, []) is None


def test_a_process_of_another_machine_may_be_gone(tmp_path: Path) -> None:
    RunStore(tmp_path / "run").open().close()
    lock = tmp_path / "run" / "lock"
    lock.write_text(f"process {os.getpid()} on elsewhere, since 2026-01-01 00:00:00 +0000, for flow, 7\n")
    holder = ownership.holder_of(tmp_path / "run")
    assert holder is not None and (holder.alive, holder.owner) == (True, "flow, 7")
    assert states(tmp_path)["run"].state == "running"
    then = time.time() - 100
    os.utime(lock, (then, then))
    assert states(tmp_path)["run"].state == "hung"
