"""Deaths in a row without a commit are counted; ends that say why are not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import npmdask
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.threads import Threads
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.solution import Step
from npmdask.errors import BadInputError
from tests.manage.common import content, make_data
from tests.manage.job import mixture, run

STEP = {"x": np.zeros(3)}


def dies(store: Path, *names: str) -> None:
    """A process commits these parts and is killed while it holds the store."""
    if pid := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        return
    held = RunStore(store).open()
    for name in names:
        if name.isdigit():
            held.commit_step(int(name), STEP, {"history": []})
        elif name == "pass":
            held.keep_pass({"label": "step"}, STEP, [])
        else:
            held.write_part(name, STEP, {})
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_only_deaths_without_a_commit_count(tmp_path: Path) -> None:
    store = tmp_path / "run"
    assert RunStore(store).crashes() == (0, "")
    dies(store)
    assert RunStore(store).crashes() == (1, "its beginning")
    dies(store)
    assert RunStore(store).crashes() == (2, "its beginning")
    dies(store, "1", "2")
    assert RunStore(store).crashes() == (0, "")
    for times in (1, 2, 3):
        dies(store)
        assert RunStore(store).crashes() == (times, "step 3")
    with RunStore(store) as held:
        assert held.crashes() == RunStore(store).crashes() == (3, "step 3"), "the one that lives has not died"
    assert RunStore(store).crashes() == (0, "") and not (store / "starts.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("progress", ["3", "pass", "survey"])
def test_every_kind_of_commit_is_progress(tmp_path: Path, progress: str) -> None:
    dies(tmp_path / "run", "1", "2")
    dies(tmp_path / "run")
    dies(tmp_path / "run", progress)
    assert RunStore(tmp_path / "run").crashes() == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "times"), [(BadInputError("the data"), 1), (KeyboardInterrupt(), 1), (MemoryError(), 2)]
)
def test_an_end_that_says_why_is_no_death(tmp_path: Path, error: BaseException, times: int) -> None:
    """And it does not forget the deaths before it."""
    dies(tmp_path / "run")
    with pytest.raises(type(error)), RunStore(tmp_path / "run"):
        raise error
    assert RunStore(tmp_path / "run").crashes()[0] == times


@pytest.mark.slow
def test_a_damaged_count_is_none(tmp_path: Path) -> None:
    dies(tmp_path / "run")
    (tmp_path / "run" / "starts.json").write_text('{"starts": "many"')
    assert RunStore(tmp_path / "run").crashes() == (0, "")
    dies(tmp_path / "run")
    assert RunStore(tmp_path / "run").crashes()[0] == 1


class Crash(BaseException):
    """What nothing handles."""


@pytest.mark.slow
def test_a_job_dies_in_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_data(tmp_path)
    real = Threads.run_pass

    def crash_in_second_pass(self: Threads, *args: object) -> object:
        if (tmp_path / "run" / "covariance" / "steps" / "000001").exists():
            raise Crash
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Threads, "run_pass", crash_in_second_pass)
    for times in (0, 1, 2):  # the first start came further
        with pytest.raises(Crash):
            mixture(tmp_path, tmp_path / "run")
        assert RunStore(tmp_path / "run").crashes() == (times, "covariance, step 2" if times else "")
    assert not list((tmp_path / "run" / "covariance").glob("starts.json"))


class Dies(Observer):
    def on_step(self, step: Step) -> None:
        if step.number == 3:
            raise Crash


@pytest.mark.slow
def test_what_is_committed_does_not_tell_of_deaths(tmp_path: Path) -> None:
    """Fails if a count stays behind, or the time of a start is in a file that is compared or published."""
    make_data(tmp_path)
    run(tmp_path, tmp_path / "whole")
    with pytest.raises(Crash):
        run(tmp_path, tmp_path / "run", observer=Dies())
    before = content(tmp_path / "run")["starts.json"]
    assert before.startswith(b'{"starts": 1, "mark": "')
    npmdask.resume(tmp_path / "run")
    whole, found = content(tmp_path / "whole"), content(tmp_path / "run")
    assert whole.keys() == found.keys()
    others = {name for name in whole if whole[name] != found[name]}
    assert others <= {"lock", "epoch", "run.json", "telemetry.jsonl"}
