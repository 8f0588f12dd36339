"""The supervisor: real processes in order, started again when they die, gone at the end or when it is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from npmdask.errors import RefusedError
from npmdask.prefect.processes import STATE, Service, Supervisor
from tests.prefect.conftest import command_of, lives, wait_until

SLEEP = "import time\nopen('{0}', 'a').write('up')\ntime.sleep(600)"


def sleeper(folder: Path, name: str, **more: object) -> Service:
    mark = folder / f"{name}.up"
    command = (sys.executable, "-c", SLEEP.format(mark))
    return Service(name=name, command=command, ready=mark.exists, **more)  # type: ignore[arg-type]


def gone(pid: int) -> bool:
    try:
        return not lives(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
def test_what_dies_is_started_again_and_nothing_is_left_at_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    with Supervisor(tmp_path, [sleeper(tmp_path, "one"), sleeper(tmp_path, "two")], said.append) as supervisor:
        first, other = supervisor.pid("one"), supervisor.pid("two")
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 120
        supervisor.watch(lambda: supervisor.pid("one") != first or time.monotonic() > deadline, 0.05)
        again = supervisor.pid("one")
        assert again != first and supervisor.pid("two") == other
        state = json.loads((tmp_path / STATE).read_text())
        assert state["supervisor"] == os.getpid()
        assert (state["services"]["one"]["pid"], state["services"]["one"]["restarts"]) == (again, 1)
        assert said == ["one ended with status -9; it is started again in 1 s"]
    assert gone(again) and gone(other) and not (tmp_path / STATE).exists()


@pytest.mark.slow
@pytest.mark.parametrize(("status", "lost"), [(76, True), (1, False)])
def test_what_another_one_has_lost_ends_with_it_and_waits_for_it(tmp_path: Path, status: int, lost: bool) -> None:
    """Its second start answers when it is allowed to; before that the other one is not started."""
    up, go, allowed = (tmp_path / name for name in ("one.up", "go", "allowed"))
    code = f"""
import os, time
while not os.path.exists({str(allowed)!r}): time.sleep(0.01)
open({str(up)!r}, "w").close()
while not os.path.exists({str(go)!r}): time.sleep(0.01)
os.remove({str(up)!r}); os.remove({str(go)!r}); os.remove({str(allowed)!r})
os._exit({status})
"""
    allowed.touch()
    one = Service(name="one", command=(sys.executable, "-c", code), ready=up.exists)
    two = sleeper(tmp_path, "two", lost_with=("one", 76))
    with Supervisor(tmp_path, [one, two], print) as supervisor:
        before = supervisor.pid("one"), supervisor.pid("two")
        go.touch()
        watched(supervisor, lambda: supervisor.pid("one") != before[0])
        assert gone(before[1]) == lost
        pause = time.monotonic() + 2.0  # longer than it would take to be started again
        watched(supervisor, lambda: time.monotonic() > pause)
        assert supervisor.pid("two") == before[1]
        allowed.touch()
        watched(supervisor, lambda: up.exists() and (not lost or supervisor.pid("two") != before[1]))
        assert not gone(supervisor.pid("two"))


def watched(supervisor: Supervisor, over: Callable[[], bool]) -> None:
    """Watch until ``over``, which has to come about."""
    deadline = time.monotonic() + 120
    supervisor.watch(lambda: over() or time.monotonic() > deadline, 0.05)
    assert over()


@pytest.mark.slow
def test_what_no_start_mends_ends_all_with_its_last_line(tmp_path: Path) -> None:
    """Status 76 above is one that a start mends."""
    up = tmp_path / "one.up"
    code = f"open({str(up)!r}, 'w').close(); import time; time.sleep(1); print('the file is cut'); exit(77)"
    one = Service(name="one", command=(sys.executable, "-c", code), ready=up.exists, final=77)
    deadline = time.monotonic() + 30
    with pytest.raises(RefusedError, match=r"one ended with status 77: the file is cut \(see .*one.log\)"):
        with Supervisor(tmp_path, [sleeper(tmp_path, "other"), one], print) as supervisor:
            other = supervisor.pid("other")
            supervisor.watch(lambda: time.monotonic() > deadline, 0.05)
    assert gone(other)


@pytest.mark.slow
def test_the_next_waits_for_the_one_before(tmp_path: Path) -> None:
    """The second command fails unless the first has written its file."""
    late = Service(
        name="late",
        command=(sys.executable, "-c", f"import time; time.sleep(1); open('{tmp_path}/late', 'w'); time.sleep(600)"),
        ready=(tmp_path / "late").exists,
    )
    needs = Service(
        name="needs",
        command=(
            sys.executable,
            "-c",
            f"import time; open('{tmp_path}/late'); open('{tmp_path}/ok', 'w'); time.sleep(600)",
        ),
        ready=(tmp_path / "ok").exists,
    )
    with Supervisor(tmp_path / "logs", [late, needs], print):
        assert (tmp_path / "ok").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "patience", "said"),
    [
        ("import sys; print('no such thing'); sys.exit(3)", 240.0, r"bad ended with status 3: no such thing \(see "),
        ("import time; time.sleep(600)", 0.5, r"bad does not answer \(0.5 s\): it said nothing"),
    ],
)
def test_one_that_does_not_come_up_is_a_sentence_and_the_others_are_ended(
    tmp_path: Path, code: str, patience: float, said: str
) -> None:
    bad = Service(name="bad", command=(sys.executable, "-c", code), ready=lambda: False, patience=patience)
    supervisor = Supervisor(tmp_path, [sleeper(tmp_path, "good"), bad], print)
    with pytest.raises(RefusedError, match=said):
        supervisor.start()
    assert not [child for child in psutil.Process().children() if str(tmp_path) in command_of(child)]


@pytest.mark.slow
def test_when_the_supervisor_is_killed_the_kernel_ends_its_processes(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tests.prefect.test_processes import sleeper
from npmdask.prefect.processes import Supervisor
with Supervisor(Path({str(tmp_path)!r}), [sleeper(Path({str(tmp_path)!r}), "one")], print) as supervisor:
    supervisor.watch(lambda: False)
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).resolve().parents[2]) as parent:
        wait_until((tmp_path / STATE).exists, 240, "it is up")
        wait_until((tmp_path / "one.up").exists, 240, "its process is up")
        child = json.loads((tmp_path / STATE).read_text())["services"]["one"]["pid"]
        assert not gone(child)
        parent.kill()
    wait_until(lambda: gone(child), 120, "the child is gone")
