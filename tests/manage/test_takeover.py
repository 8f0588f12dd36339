"""A process that hangs in the middle of a run: another one takes over, and what wakes up changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import npmdask.core.checkpoint.lease as ownership
from npmdask.api import resume
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.solution import Step
from npmdask.errors import FencedOutError, HeldError
from npmdask.ledger import export_lines
from npmdask.manage.status import inspect, status_of
from tests.conftest import same_bytes
from tests.manage.common import OWNER, ROOT, Hung, content, hanging, let_age, make_data, woken
from tests.manage.job import mixture, run, stream
from tests.privacy.runs.conftest import World, prepared, twin, world  # noqa: F401

TAKEN = "was taken over by another process"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["pass", "written"])
def test_a_hung_run_is_taken_over_and_its_waking_changes_nothing(tmp_path: Path, where: str) -> None:
    make_data(tmp_path)
    run(tmp_path, tmp_path / "whole")
    with hanging("run", tmp_path, where, "3") as hung:
        with pytest.raises(
            HeldError, match=rf"held by process {hung.pid} on .*, for {OWNER}; its last sign"
        ) as refused:
            run(tmp_path, tmp_path / "run")
        assert (refused.value.pid, refused.value.owner) == (hung.pid, OWNER)
        let_age(tmp_path / "run")
        run(tmp_path, tmp_path / "run")
        same_bytes(tmp_path / "whole", tmp_path / "run")
        before = content(tmp_path / "run")
        code, said = woken(hung)
        assert code == FencedOutError.exit_code and "FencedOutError" in said and TAKEN in said
        assert content(tmp_path / "run") == before
    taken = [t for t in RunStore(tmp_path / "run").telemetry() if t["event"] == "taken"]
    assert len(taken) == 1 and f"process {hung.pid} " in taken[0]["holder"] and taken[0]["silent"] >= 60
    assert RunStore(tmp_path / "run").crashes() == (0, "")


class Wakes(Observer):
    """Lets the first process go on when the second is in the middle of its work."""

    def __init__(self, hung: Hung) -> None:
        self.hung = hung
        self.ended: tuple[int | None, str] = (0, "")

    def on_step(self, step: Step) -> None:
        if step.number == 6:
            self.ended = woken(self.hung)


@pytest.mark.slow
def test_what_wakes_up_while_its_successor_works_disturbs_nothing(tmp_path: Path) -> None:
    make_data(tmp_path)
    run(tmp_path, tmp_path / "whole")
    with hanging("run", tmp_path, "written", "4") as hung:
        let_age(tmp_path / "run")
        wakes = Wakes(hung)
        run(tmp_path, tmp_path / "run", observer=wakes)
    assert wakes.ended[0] == FencedOutError.exit_code and TAKEN in wakes.ended[1]
    same_bytes(tmp_path / "whole", tmp_path / "run")
    assert not list((tmp_path / "run").rglob(".writing-*"))


@pytest.mark.slow
def test_a_process_that_hangs_while_it_publishes_has_to_be_ended_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the check of the turn and the rename are two things between which the turn can change."""
    make_data(tmp_path)
    run(tmp_path, tmp_path / "whole")
    monkeypatch.setattr(ownership, "PATIENCE", 0.2)
    with hanging("run", tmp_path, "publishing", "3") as hung:
        let_age(tmp_path / "run")
        with pytest.raises(HeldError, match=rf"stopped in the middle of a commit; end it \(kill -9 {hung.pid}\)"):
            run(tmp_path, tmp_path / "run")
        hung.kill()
        run(tmp_path, tmp_path / "run")
    same_bytes(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("number", ["3", "6"])  # a step; the last one, which is written again at the end
def test_no_row_of_a_stream_is_lost_or_used_twice(tmp_path: Path, number: str) -> None:
    make_data(tmp_path)
    stream(tmp_path, tmp_path / "whole")
    with hanging("stream", tmp_path, "written", number) as hung:
        let_age(tmp_path / "run")
        stream(tmp_path, tmp_path / "run")
        before = content(tmp_path / "run")
        code, said = woken(hung)
        assert code == FencedOutError.exit_code and TAKEN in said
        assert content(tmp_path / "run") == before
    same_bytes(tmp_path / "whole", tmp_path / "run", ("steps", "result"))
    assert inspect(tmp_path / "run")["rows"] == 600


@pytest.mark.slow
def test_a_stage_is_taken_with_its_job(tmp_path: Path) -> None:
    """Also where the stage still looks alive; and its first owner loses it with the job, not when it is opened."""
    make_data(tmp_path)
    mixture(tmp_path, tmp_path / "whole")
    with hanging("mixture", tmp_path, "pass", "2") as hung:
        assert (tmp_path / "run" / "covariance").is_dir()
        with pytest.raises(HeldError):
            mixture(tmp_path, tmp_path / "run")
        seen = status_of(tmp_path / "run", "run")
        assert (seen.what, seen.state, seen.stage, seen.step) == ("mixture", "running", "covariance", 1)
        let_age(tmp_path / "run")
        mixture(tmp_path, tmp_path / "run")
        before = content(tmp_path / "run")
        code, said = woken(hung)
        assert code == FencedOutError.exit_code and TAKEN in said
        assert content(tmp_path / "run") == before
    same_bytes(
        tmp_path / "whole", tmp_path / "run", ("result", "covariance/steps", "whitening/steps", "decomposition/result")
    )


WITHOUT_WAITING = os.WEXITED | os.WNOHANG | os.WNOWAIT


def takes(store: Path, at: float, enough: Path) -> int:
    """A forked process that tries to take the store at an instant, and keeps it until there is a file: its id."""
    if pid := os.fork():
        return pid
    time.sleep(max(0.0, at - time.time()))
    try:
        RunStore(store).open()
        until(enough.exists)
        os._exit(0)
    except HeldError as error:
        os._exit(error.exit_code)
    except BaseException:
        os._exit(1)


@pytest.mark.slow
def test_of_many_takers_one_wins(tmp_path: Path) -> None:
    make_data(tmp_path)
    with hanging("run", tmp_path, "pass", "2"):
        let_age(tmp_path / "run")
        at = time.time() + 0.5
        takers = [takes(tmp_path / "run", at, tmp_path / "enough") for _ in range(8)]
        until(lambda: [os.waitid(os.P_PID, pid, WITHOUT_WAITING) for pid in takers].count(None) <= 1)
        (tmp_path / "enough").touch()
        codes = sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in takers)
    assert codes == [0] + 7 * [HeldError.exit_code]
    assert (tmp_path / "run" / "epoch").read_text() == "2\n"


def test_an_owner_shows_life_until_it_closes_or_loses_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "BEAT", 0.02)
    held = RunStore(tmp_path / "run").open()
    let_age(tmp_path / "run")
    until(lambda: ownership.holder_of(tmp_path / "run").age < 5)  # type: ignore[union-attr]
    (tmp_path / "run" / "epoch").write_text("7\n")
    until(lambda: not held._turn._beats.is_alive())  # type: ignore[union-attr]
    let_age(tmp_path / "run")
    time.sleep(0.1)
    assert ownership.holder_of(tmp_path / "run").hung  # type: ignore[union-attr]
    with pytest.raises(FencedOutError, match=TAKEN):
        held.log("nothing")
    held.close()
    assert RunStore(tmp_path / "run").open()._turn.taken_from is None


@pytest.mark.parametrize(("silent", "taken"), [(0.9, False), (1.1, True)])
def test_a_store_is_taken_after_so_much_silence_and_not_before(tmp_path: Path, silent: float, taken: bool) -> None:
    """Mutant: after one sign of life that is late, which a busy machine makes of every run."""
    first, second = RunStore(tmp_path / "run").open(), RunStore(tmp_path / "run")
    let_age(tmp_path / "run", silent * ownership.STALE)
    if not taken:
        with pytest.raises(HeldError, match=f"held by process {os.getpid()} on .* its last sign of life was 5"):
            second.open()
        first.require_turn()
    else:
        second.open()
        with pytest.raises(FencedOutError, match=TAKEN):
            first.require_turn()
        second.close()
    first.close()


def until(true: object) -> None:
    end = time.monotonic() + 120
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_whoever_lost_a_store_hears_of_that_and_of_nothing_else(tmp_path: Path) -> None:
    """What goes wrong when two work in one folder is not told as an error of its own."""
    with pytest.raises(FencedOutError, match=TAKEN), RunStore(tmp_path / "run"):
        (tmp_path / "run" / "epoch").write_text("7\n")
        raise FileNotFoundError("the folder of a bundle")


@pytest.mark.slow
def test_a_closed_store_has_no_holder_and_a_killed_one_is_free(tmp_path: Path) -> None:
    store = tmp_path / "run"
    with RunStore(store):
        assert ownership.holder_of(store).alive  # type: ignore[union-attr]
    assert ownership.holder_of(store) is None
    program = (
        f"import os; from npmdask.core.checkpoint.store import RunStore; RunStore({str(store)!r}).open(); "
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == -signal.SIGKILL
    killed = ownership.holder_of(store)
    assert killed is not None and killed.gone and not killed.alive and not killed.hung
    with RunStore(store) as held:
        assert held._turn.taken_from is None


@pytest.mark.slow
@pytest.mark.parametrize(("where", "number"), [("pass", "2"), ("written", "1")])
def test_a_private_run_is_released_once_and_charged_once(world: World, where: str, number: str) -> None:  # noqa: F811
    """What wakes up draws no noise, writes nothing into the ledger, and needs no key that its successor destroyed."""
    prepared(world)
    twin(world, "twin")
    with hanging("private", world.folder, where, number) as hung:
        let_age(world.folder / "run")
        found = resume(world.folder / "run")
        ledger, before = list(export_lines(world.ledger)), content(world.folder / "run")
        code, said = woken(hung)
        assert code == FencedOutError.exit_code and TAKEN in said
        assert content(world.folder / "run") == before and list(export_lines(world.ledger)) == ledger
        assert "entropy" not in before and "telemetry.jsonl" not in before
    (world.folder / "ledger.sqlite").unlink()
    (world.folder / "twin-ledger.sqlite").rename(world.folder / "ledger.sqlite")
    undisturbed = resume(world.folder / "twin-run")
    assert (undisturbed.basis == found.basis).all() and (undisturbed.values == found.values).all()


def test_a_stage_is_lost_with_its_job(tmp_path: Path) -> None:
    """Before whoever took the job has come to the stage."""
    with RunStore(tmp_path / "run") as job, RunStore(tmp_path / "run" / "stage") as stage:
        stage.require_turn()
        (tmp_path / "run" / "epoch").write_text("7\n")
        with pytest.raises(FencedOutError, match="stage was taken over"):
            stage.require_turn()
        (tmp_path / "run" / "epoch").write_text("1\n")
        job.require_turn()


@pytest.mark.slow
def test_a_commit_that_takes_long_is_waited_for_and_then_told_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told to kill a process that lives."""
    monkeypatch.setattr(ownership, "PATIENCE", 0.2)
    with RunStore(tmp_path / "run") as held, held._turn.publishing():
        with pytest.raises(HeldError, match=r"s ago; wait for it, or stop it first$"):
            RunStore(tmp_path / "run").open()
