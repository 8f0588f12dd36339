"""Lines of JSON: of every door, for whoever reads logs with a program; of private runs nothing that is not public."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask import top_k
from npmdask.cli.main import main
from npmdask.core.checkpoint.logging import open_log, tell
from npmdask.core.checkpoint.store import RunStore
from npmdask.errors import BadInputError, NpmdaskError
from npmdask.privacy.mechanisms import PrivateGaussian
from tests.manage.common import OWNER, ROOT, hanging, let_age, make_data
from tests.manage.job import mixture, run, stream
from tests.privacy.runs.conftest import COLUMNS, STEPS, World, make_world, records
from tests.privacy.runs.test_taint import release_fixed

KEYS = {"time", "level", "run", "stage", "step", "event", "message", "process", "host", "owner"}
CONFIG = '[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 3\n[stop]\ntol = 1e-4\n'


@pytest.fixture(autouse=True)
def no_log_is_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("NPMDASK_LOG", raising=False)
    yield
    os.environ.pop("NPMDASK_LOG", None)  # a command has set it, to a file that goes with the test
    open_log()


def lines_of(file: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(set(line) >= KEYS for line in found)
    return found


@pytest.mark.slow
def test_a_run_by_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_data(tmp_path))
    Path("a.toml").write_text(CONFIG)
    before = time.time()
    assert main(["run", "a.toml", "--store", "runs/a", "--quiet", "--log", "log"]) == 0
    found = lines_of(tmp_path / "log")
    steps = [line for line in found if line["event"] == "step"]
    history = RunStore("runs/a").history()
    assert [line["step"] for line in steps] == [h["step"] for h in history]
    assert [line["residual"] for line in steps] == [h["worst_residual"] for h in history]
    assert {line["run"] for line in found} == {"a"} and {line["process"] for line in found} == {os.getpid()}
    assert [line["event"] for line in found if line["event"] not in ("pass", "step")] == ["plan", "end"]
    assert (found[-1]["event"], found[-1]["outcome"], found[-1]["level"]) == ("end", "converged", "INFO")
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in found)
    utc = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(before))
    assert found[0]["time"] >= utc and sorted(line["time"] for line in found) == [line["time"] for line in found]

    assert main(["run", "a.toml", "--store", "runs/b", "--quiet"]) == 0
    assert lines_of(tmp_path / "log") == found, "nobody asked for lines of this one"
    monkeypatch.setenv("NPMDASK_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("NPMDASK_OWNER", "nightly")
    assert main(["resume", "runs/b", "--quiet"]) == 0
    more = lines_of(tmp_path / "log")[len(found) :]
    assert {(line["run"], line["owner"]) for line in more} == {("b", "nightly")} and more[-1]["event"] == "end"


@pytest.mark.slow
def test_jobs_say_their_stages_and_streams_their_measurements(tmp_path: Path) -> None:
    make_data(tmp_path)
    open_log(str(tmp_path / "log"))
    mixture(tmp_path, tmp_path / "m")
    stream(tmp_path, tmp_path / "s")
    found = lines_of(tmp_path / "log")
    stages = {line["stage"] for line in found if line["run"] == "m"}
    assert {"whitening", "decomposition"} <= stages
    measured = [line for line in found if line["event"] == "measurement"]
    assert measured and {line["run"] for line in measured} == {"s"} and measured[-1]["rows"] == 600
    assert [line["rows"] for line in found if line["event"] == "end" and line["run"] == "s"] == [600]


@pytest.mark.slow
def test_what_goes_wrong_is_a_line(tmp_path: Path) -> None:
    make_data(tmp_path)
    open_log(str(tmp_path / "log"))
    first = RunStore(tmp_path / "a").open()
    program = "import sys; from npmdask.cli.main import main; sys.exit(main(sys.argv[1:]))"
    (tmp_path / "a.toml").write_text(CONFIG)
    command = [sys.executable, "-c", program, "run", "a.toml", "--store", "a", "--quiet", "--log", "log"]
    held = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True)
    assert held.returncode == 3
    first.close()
    (line,) = lines_of(tmp_path / "log")
    assert (line["event"], line["level"], line["run"]) == ("held", "WARNING", "a")
    assert f"held by process {os.getpid()}" in line["message"] and line["process"] != os.getpid()
    shutil.rmtree(tmp_path / "a")

    values = np.random.default_rng(0).standard_normal((60, 8))
    values[7, 3] = np.nan
    with pytest.raises(BadInputError) as caught:
        top_k(values, 2, store=tmp_path / "b")
    with pytest.raises(KeyboardInterrupt), RunStore(tmp_path / "c"):
        raise KeyboardInterrupt
    *_, error, interrupted = lines_of(tmp_path / "log")
    assert (error["event"], error["level"], error["kind"]) == ("error", "ERROR", "BadInputError")
    assert error["message"] == str(caught.value)
    assert (interrupted["event"], interrupted["run"]) == ("interrupted", "c")


@pytest.mark.slow
def test_of_processes_that_are_killed_and_of_those_that_take_over(tmp_path: Path, monkeypatch: Any) -> None:
    """Several processes write one file, and a kill leaves whole lines."""
    make_data(tmp_path)
    monkeypatch.setenv("NPMDASK_LOG", "json")
    with hanging("run", tmp_path, "pass", "6") as process:
        let_age(tmp_path / "run")
        open_log(str(tmp_path / "log"))
        run(tmp_path, tmp_path / "run")
        process.kill()
    found = lines_of(tmp_path / "log")
    (taken,) = [line for line in found if line["event"] == "taken"]
    assert f"process {process.pid}" in taken["message"] and OWNER in taken["message"]
    assert next(line["step"] for line in found if line["event"] == "step") == 6


@pytest.mark.slow
def test_many_processes_share_a_file(tmp_path: Path) -> None:
    program = """
import sys
from npmdask.core.checkpoint.logging import open_log, tell
open_log(sys.argv[1])
for i in range(300):
    tell("step", "x" * 500, run=sys.argv[2], step=i)
"""
    log = tmp_path / "log"
    command = [sys.executable, "-c", program, str(log)]
    many = [subprocess.Popen([*command, str(i)], cwd=ROOT) for i in range(2)]
    assert [one.wait(240) for one in many] == [0] * 2
    found = lines_of(log)
    assert len(found) == 600
    for i in range(2):
        assert [line["step"] for line in found if line["run"] == str(i)] == list(range(300))


def test_a_log_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.toml").write_text(CONFIG)
    assert main(["run", str(tmp_path / "a.toml"), "--log", str(tmp_path / "no" / "log")]) == 2
    assert "No such file or directory; name a writable file (--log, NPMDASK_LOG)" in capsys.readouterr().err
    open_log("/dev/full")
    tell("step", "a")
    tell("step", "b")
    assert capsys.readouterr().err.count("lines are missing in the log /dev/full") == 1, "the run goes on"


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    open_log(str(tmp_path / "log"))
    tell("step", "before")
    (tmp_path / "log").rename(tmp_path / "log.1")
    tell("step", "after")
    assert [lines_of(tmp_path / name)[0]["message"] for name in ("log.1", "log")] == ["before", "after"]


@pytest.mark.slow
def test_without_a_log_nothing_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = (
        "from npmdask.core.checkpoint.logging import tell; import logging; tell('error', 'loud', level=logging.ERROR)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def worlds(tmp_path: Path) -> tuple[World, World]:
    """The same promise over data that have nothing in common; of one the passes take longer."""
    values = 50 * np.random.default_rng(9).standard_normal((9000, COLUMNS))
    relation = {"neighboring_relation": "record_add_remove"}
    one, two = tmp_path / "one", tmp_path / "two"
    return make_world(one, records(4000), **relation), make_world(two, values, **relation)


def logged(world: World, *, fail: bool = False) -> str:
    """All lines of a private run, without the folder that it lies in."""
    log = world.folder / "log"
    open_log(str(log))
    if fail:
        with pytest.raises(NpmdaskError):
            world.solve("run", world.problem({"epsilon": 1e-9, "delta": 0.0, "mechanism": "laplace"}))
    else:
        world.solve("run")
    return log.read_text().replace(str(world.folder), "")


@pytest.mark.slow
def test_lines_of_a_private_run_follow_from_the_releases(
    worlds: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrivateGaussian, "release", release_fixed)
    one, two = (logged(world) for world in worlds)
    found = [json.loads(line) for line in one.splitlines()]
    assert one == two, "no time, no size, no number of tasks"
    assert [line["step"] for line in found if line["event"] == "step"] == list(range(1, STEPS + 1))
    assert all(line["time"] is None and not {"bytes", "seconds", "residual"} & set(line) for line in found)


@pytest.mark.slow
def test_an_error_of_a_private_run_is_told_by_its_kind(worlds: tuple[World, World]) -> None:
    one, two = (logged(world, fail=True) for world in worlds)
    assert one == two
    last = json.loads(one.splitlines()[-1])
    assert (last["event"], last["time"]) == ("error", None) and re.fullmatch(
        r"\w+: what it says may tell of the data", last["message"]
    )
