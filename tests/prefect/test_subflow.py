"""Prefect as people have it: a flow of a user, in a file of its own, on a server and work pool that are not ours."""

import ast
import json
import re
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from npmdask.cli.main import main as npmdask
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.latent.answers import fit_latent
from npmdask.prefect.server import answers, free_port
from npmdask.synthetic import generate
from npmdask.topics.run import read_topics, run_topics
from tests.prefect.conftest import ROOT, Shop, committed, wait_until
from tests.tensors.tensor_jobs import make

pytestmark = pytest.mark.slow

# So that there is time for a kill: block Krylov would need a handful of passes.
SLOWLY = 'center=True, algorithm="power", tol=1e-10, changes={"algorithm.max_steps": 900},'
# Of the program: its first process is killed when it has committed a step, however fast it is.
KILLED_ONCE = """
import os, signal
from pathlib import Path
from npmdask.core.checkpoint.store import RunStore

commit_step, mark = RunStore.commit_step, Path(__file__).with_name("killed")

def killed_once(self, *step):
    commit_step(self, *step)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

RunStore.commit_step = killed_once

"""
SAME = ("algorithm.name=power", "stop.tol=1e-10", "algorithm.max_steps=900", "source.center=true", "run.memory=8GiB")
PREFECT = ("-m", "prefect")


def recipe(name: str) -> str:
    """The program of that name, as docs/howto/flows.md shows it."""
    (text,) = re.findall(rf"```py\n(# {name}\n.*?)```", (ROOT / "docs" / "howto" / "flows.md").read_text(), re.DOTALL)
    return str(text)


class Theirs(Shop):
    """A machine with Prefect on it: a server, a profile that names it, a work pool; nothing of ours is set."""

    def __init__(self, folder: Path, home: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        shutil.copytree(home, folder / "prefect", ignore=shutil.ignore_patterns("auth"))
        profile = f'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "http://127.0.0.1:{self.port}/api"\n'
        (folder / "prefect" / "profiles.toml").write_text(profile)
        self.environment = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}

    def begin(self) -> None:
        """A server as Prefect starts it."""
        there = dict(self.environment)
        self.environment |= {"PREFECT_UI_ENABLED": "false"}
        self.start(*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(self.port))
        self.environment = there
        wait_until(lambda: answers(f"http://127.0.0.1:{self.port}/api"), 240, "a server", lambda: self.err)

    def do(self, *arguments: str | Path) -> str:
        """Run one command to its end; its output."""
        assert self.start(*arguments).wait(300) == 0, self.out + self.err
        return self.out

    def runs(self) -> dict[str, tuple[str, int]]:
        """State and count of starts of each flow run, by name, the newest of each name last."""
        found = self.ask("select name, state_type, run_count from flow_run where {since} order by created")
        return {name: (state, count) for name, state, count in found}


@pytest.fixture
def theirs(tmp_path: Path, home: Path) -> Any:
    made = Theirs(tmp_path, home)
    data = tmp_path / "samples.zarr"
    generate(data, problem="spectrum", spectrum="harmonic", kind="samples", rows=16384, columns=384)
    yield made
    made.clean()


def test_a_sub_flow_that_is_killed_goes_on_and_steps_run_one_by_one(theirs: Theirs) -> None:
    """Fails where the sub-flow needs a server, a keeper or settings of ours, or loses what it had committed."""
    program, store = theirs.folder / "nightly.py", theirs.folder / "runs" / "first"
    slowly, cron = recipe("nightly.py").replace("center=True,", SLOWLY), '"0 2 * * *"'
    assert SLOWLY in slowly and cron in slowly
    slowly = slowly.replace(cron, f'"0 {(datetime.now(UTC).hour + 12) % 24} * * *"')  # no tick comes between
    program.write_text(KILLED_ONCE + slowly)
    theirs.begin()
    theirs.do(*PREFECT, "work-pool", "create", "mine", "--type", "process")
    theirs.do(program)
    theirs.start(*PREFECT, "worker", "start", "--pool", "mine", "--name", "here")
    theirs.do(*PREFECT, "deployment", "run", "nightly/every-night")

    wait_until((theirs.folder / "killed").exists, 240, "a step", lambda: str(theirs.runs()))
    assert not (store / "result").exists()
    started = "select id, state_type from flow_run where deployment_id is not null and not auto_scheduled and {since}"

    def has_become(state: str) -> bool:
        return [now for _, now in theirs.ask(started)] == [state]

    def lasts(ended: tuple[str, ...], seconds: float = 5.0) -> bool:
        """Whether the run is in one of these states, and stays there."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not any(map(has_become, ended)):
                return False
            time.sleep(0.5)
        return True

    wait_until(lambda: has_become("CRASHED"), 240, "the worker says so", lambda: str(theirs.runs()))
    ((run, _),) = theirs.ask(started)
    # The worker may report the crash late, over a retry that is under way: what counts is a state that lasts.
    for _ in range(3):
        if theirs.start(*PREFECT, "flow-run", "retry", run).wait(300) == 0:
            wait_until(lambda: not has_become("SCHEDULED"), 240, "it is taken", lambda: str(theirs.runs()))
        wait_until(lambda: lasts(("COMPLETED", "CRASHED", "FAILED")), 240, "the rerun", lambda: str(theirs.runs()))
        if not has_become("CRASHED"):
            break
    assert has_become("COMPLETED"), theirs.runs()
    assert [
        state[0] for name, state in theirs.runs().items() if name.startswith("PCA of samples.zarr, k = 10, 20")
    ] == ["COMPLETED"]

    ours = ["run", str(theirs.folder / "samples.zarr"), "-k", "10", "--quiet", "--store", str(theirs.folder / "alone")]
    assert npmdask([*ours, *(word for change in SAME for word in ("--set", change))]) == 0
    assert committed(store) == committed(theirs.folder / "alone")
    events = [json.loads(line) for line in (store / "telemetry.jsonl").read_text().splitlines()]
    assert 2 <= len({event["pid"] for event in events}) <= 4, "the one that was killed, and the reruns above"

    (theirs.folder / "steps.py").write_text(recipe("steps.py"))
    theirs.do(theirs.folder / "steps.py")
    assert len(json.loads(theirs.out.splitlines()[-1])) == 10
    wanted = {f"{step}: PCA of samples.zarr, k = 10" for step in ("validate", "plan", "iterate")}
    wanted |= {"report: steps", "report: first"}

    def tasks() -> set[str]:
        return {name for (name,) in theirs.ask("select name from task_run where {since}")}

    wait_until(lambda: wanted <= tasks(), 120, "the server has written down the tasks", lambda: str(tasks()))
    ours = [
        "run",
        str(theirs.folder / "samples.zarr"),
        "-k",
        "10",
        "--center",
        "--memory",
        "8GiB",
        "--quiet",
    ]  # this process holds all tests
    assert npmdask([*ours, "--store", str(theirs.folder / "plain")]) == 0
    assert committed(theirs.folder / "runs" / "steps") == committed(theirs.folder / "plain")
    kept = theirs.folder / "prefect" / "storage"
    assert not kept.exists() or not [f for f in kept.rglob("*") if f.is_file()], "no result is pickled"


@pytest.mark.heavy
def test_the_stages_of_topics_and_mixtures_are_tasks_of_any_flow(theirs: Theirs) -> None:
    """Called one by one, by a program of its own: the bytes of the same jobs in Python, and again without a pass."""
    for kind in ("topics-held", "mixture"):
        make(kind, theirs.folder)
    (theirs.folder / "x.zarr").rename(theirs.folder / "points.zarr")
    program = theirs.folder / "stages.py"
    program.write_text(recipe("stages.py"))
    theirs.begin()
    theirs.do(program)
    stores = ast.literal_eval(theirs.out.splitlines()[-1])
    assert [Path(store) for store in stores] == [theirs.folder / "runs" / name for name in ("news", "groups")]
    named = theirs.tasks(5)
    begun = [name.partition("-")[0].partition(":")[0] for name in named]
    assert begun == ["look", "find_topics", "report", "find_components", "report"], named
    states = {state for (state,) in theirs.ask("select state_type from task_run where {since}")}
    assert states == {"COMPLETED"} and theirs.ask("select count(*) from flow_run where {since}") == [(1,)]

    documents, words = theirs.folder / "docword.txt", theirs.folder / "vocab.txt"
    run_topics(documents, 4, words, store=theirs.folder / "topics")
    found = [read_topics(theirs.folder / place).model.topics for place in ("runs/news", "topics")]
    assert found[0].tobytes() == found[1].tobytes()
    alone: dict[str, Any] = {"resources": Resources(), "observer": Observer()}
    fit_latent("mixture", theirs.folder / "points.zarr", 4, store=theirs.folder / "mixture", **alone)
    assert committed(theirs.folder / "runs" / "groups") == committed(theirs.folder / "mixture")
    assert all((Path(store) / "report.html").exists() for store in stores)

    before = [(Path(store) / "telemetry.jsonl").read_text() for store in stores]
    theirs.do(program)
    assert [(Path(store) / "telemetry.jsonl").read_text() for store in stores] == before, "finished: no pass"
    program.write_text(recipe("stages.py").replace("most: int = 10_000_000", "most: int = 1"))
    assert theirs.start(program).wait(300) != 0 and "too many documents for tonight" in theirs.err
