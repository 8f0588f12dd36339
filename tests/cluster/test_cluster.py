"""The same run on a cluster given by address: same bits; a dead worker costs its tasks, a dead scheduler a resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client, Event

import npmdask
import npmdask.cluster.distributed_pass as distributed_pass
import npmdask.core.operators._protocol as protocol
from npmdask.cluster.workers import Cluster
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import TreeNode, runs_of
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Gram, Partial
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, LostError, RefusedError
from npmdask.planning import predicted_steps
from tests.conftest import planted, same_bytes, write_zarr
from tests.core.operators.test_operators import ignore
from tests.machines import ROOT, Machines

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Counted(Gram):
    """Writes down every run that is computed, wherever that is; slow enough to be killed in the middle.

    None comes to its end before each of so many workers has begun one (or two minutes went by).
    """

    folder: str
    pause: float
    workers: int

    def partial(self, slabs: range, block: Block) -> Partial:
        with open(f"{self.folder}/{os.getpid()}", "a") as file:
            file.write(f"{slabs.start}\n")
        end = time.monotonic() + 120
        while len(os.listdir(self.folder)) < self.workers and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(self.pause)
        return super().partial(slabs, block)


def data(folder: Path) -> Path:
    x = planted(60_000, 300, 1 / np.sqrt(np.arange(1, 61)))[0]
    return write_zarr(folder / "x.zarr", x, (2000, 300), compressors=None)


def config(folder: Path, store: str, algorithm: str = "auto", **run: object) -> Path:
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in run.items())
    (folder / f"{store}.toml").write_text(
        f'[source]\npath = "x.zarr"\nkind = "samples"\n[algorithm]\ntarget_rank = 5\niteration_rank = 8\n'
        f'name = "{algorithm}"\n'
        f'[run]\nstore = "{store}"\n{lines}\n'
    )
    return folder / f"{store}.toml"


# However fast it is, it is not at its end before the test has done what it does to it.
HELD = """
import sys
import npmdask.cli.main
from npmdask.core.checkpoint.store import RunStore
commit = RunStore.commit_step
def committed(self, number, *given, **more):
    commit(self, number, *given, **more)
    if number == 3:
        print("committed", flush=True)
        sys.stdin.readline()
RunStore.commit_step = committed
sys.exit(npmdask.cli.main.main())
"""


def npmdask_run(*arguments: str | Path, program: tuple[str, str] = ("-m", "npmdask.cli.main")) -> subprocess.Popen[str]:
    command = [sys.executable, *program, *map(str, arguments), "--quiet"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, text=True, **pipes)


def test_a_worker_killed_in_a_pass_costs_its_tasks_only(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 2**20)
    monkeypatch.setattr(distributed_pass, "TASKS_PER_SLOT", 16)  # a run a task
    machines.scheduler()
    for _ in range(3):
        machines.worker()
    (tmp_path / "counts").mkdir()
    source = open_source(data(tmp_path))
    operator = Counted(reader=source.reader, folder=str(tmp_path / "counts"), pause=0.05, workers=3)
    block = np.linalg.qr(np.random.default_rng(0).standard_normal((300, 6)))[0]
    expected, record = Threads(2).run_pass(Gram(reader=source.reader), block, ignore)
    executor = wait_for_workers(machines, source.path, 3)
    victim, client = machines.workers[0], executor._client
    address = next(where for where, pid in client.run(os.getpid).items() if pid == victim.pid)
    held: list[set[int]] = []

    def kill_one(_: object) -> None:
        time.sleep(0.3)  # so that the victim has sums to lose, unless it is starved
        if not held:
            os.kill(victim.pid, signal.SIGSTOP)
            held.append({run for node in nodes_held_by(client, address) for run in node.runs(30)})
            victim.kill()

    try:
        product, told = executor.run_pass(operator, block, kill_one)
    finally:
        executor.close()
    assert held, "the worker was killed in the middle of the pass"
    assert (product == expected).all()
    assert told == record
    done = sum(len(file.read_text().splitlines()) for file in (tmp_path / "counts").iterdir())
    assert len(runs_of(operator)) == 30
    # what was under way anywhere may be done again, once for the operator and once for the block: where the dead
    # worker alone had one of them, the scheduler begins every task again that waits for it
    print("again", done - 30, "held", len(held[0]))
    assert done - 30 <= len(held[0]) + 2 * 3, "only what the dead worker held was done again"


def nodes_held_by(client: Client, address: str) -> list[TreeNode]:
    """What a worker has that does nothing any more, once all that it has told the scheduler has arrived there."""
    before: list[object] = []
    for _ in range(100):
        time.sleep(0.2)
        found = sorted(client.has_what([address])[address], key=str)
        if found == before:
            break
        before = found
    return [TreeNode(*key[1:]) for key in found if isinstance(key, tuple)]


def wait_for_workers(machines: Machines, source: str, count: int) -> Cluster:
    for _ in range(1200):
        try:
            executor = Cluster(machines.address, source)
        except (LostError, RefusedError):  # no scheduler, or no worker, yet
            time.sleep(0.1)
            continue
        if len(executor._client.scheduler_info(n_workers=-1)["workers"]) == count:
            return executor
        executor.close()
        time.sleep(0.1)
    raise AssertionError((machines.folder / "machines.log").read_text()[-3000:])


def test_a_lost_scheduler_is_a_resume(tmp_path: Path, machines: Machines) -> None:
    data(tmp_path)
    asked: dict[str, Any] = {"iteration_rank": 8, "kind": "samples", "algorithm": "krylov"}  # of many passes
    npmdask.top_k(tmp_path / "x.zarr", 5, store=tmp_path / "local", **asked)
    machines.scheduler()
    machines.worker()
    wait_for_workers(machines, str(tmp_path / "x.zarr"), 1).close()
    run = npmdask_run(
        "run", config(tmp_path, "far", algorithm="krylov", cluster=machines.address), program=("-c", HELD)
    )
    assert run.stdout is not None and run.stdout.readline() == "committed\n", run.communicate()
    machines.end()
    _, said = run.communicate("go on\n", timeout=300)
    assert run.returncode == 130, said
    assert "was lost during a pass" in said and "resume" in said
    assert "Traceback" not in said
    machines.scheduler()
    machines.worker()
    machines.worker()
    wait_for_workers(machines, str(tmp_path / "x.zarr"), 2).close()
    run = npmdask_run("resume", tmp_path / "far")
    _, said = run.communicate(timeout=300)
    assert run.returncode == 0, said
    same_bytes(tmp_path / "local", tmp_path / "far", parts=("steps", "result", "survey"))


def test_what_is_wrong_with_a_cluster_is_said(tmp_path: Path, machines: Machines) -> None:
    path = str(data(tmp_path))
    with pytest.raises(LostError, match=r"no Dask scheduler answers at tcp://.*start one with `dask scheduler`"):
        Cluster(machines.address, path)
    with pytest.raises(BadInputError, match="no Dask scheduler answers at nonsense"):
        Cluster("nonsense", path)
    machines.scheduler()
    with pytest.raises(LostError, match="has no workers; add some with `dask worker`"):
        Cluster(machines.address, path)
    machines.worker()
    wait_for_workers(machines, path, 1).close()
    with pytest.raises(RefusedError, match=r"does not see .*nowhere.zarr: put it on a shared disk or an object store"):
        Cluster(machines.address, str(tmp_path / "nowhere.zarr"))
    machines.worker(memory="64MiB")
    wait_for_workers(machines, path, 2).close()
    with pytest.raises(RefusedError, match=r"may use 64 MiB and needs .* start it with a larger --memory-limit"):
        npmdask.top_k(path, 3, cluster=machines.address)
    with pytest.raises(BadInputError, match="either a cluster or workers"):
        npmdask.top_k(path, 3, cluster=machines.address, workers=2)


def test_a_cluster_that_is_busy_or_lost_delays_no_run(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's task holds the only thread; then the worker hangs. Kills: a wait without an end."""
    monkeypatch.setattr(predicted_steps, "AWAY", 0.5)
    path = write_zarr(tmp_path / "x.zarr", planted(2000, 50, 1 / np.arange(1, 51))[0], (250, 50))
    asked = Request(target_rank=5, iteration_rank=8)
    plan: Any = SimpleNamespace(limit=None, base=0)
    problem = make_problem(open_source(path, "samples"), asked)
    machines.scheduler()
    machines.worker()
    executor = wait_for_workers(machines, str(path), 1)
    (address,) = executor._client.scheduler_info()["workers"]
    told: list[dict[str, Any]] = []

    def until_told() -> None:
        Event("go on").wait()

    def log(event: str, **facts: Any) -> None:
        told.append(facts)

    def tell() -> dict[str, Any]:
        return predicted_steps.predicted(problem, plan, executor)

    def lose_all(*asked: Any, submit: Any = executor._client.submit, **more: Any) -> Any:
        future = submit(*asked, **more)
        machines.end()
        return future

    try:
        busy = executor._client.submit(until_told)
        while not executor._client.processing()[address]:
            time.sleep(0.02)
        predicted_steps.log_prediction(tell, [], log)
        Event("go on", client=executor._client).set()
        busy.result()
        monkeypatch.setattr(predicted_steps, "AWAY", 600.0)
        predicted_steps.log_prediction(tell, [], log)
        monkeypatch.setattr(predicted_steps, "AWAY", 0.5)
        machines.workers[0].send_signal(signal.SIGSTOP)
        predicted_steps.log_prediction(tell, [], log)
        monkeypatch.setattr(predicted_steps, "AWAY", 100.0)
        monkeypatch.setattr(executor._client, "submit", lose_all)
        predicted_steps.log_prediction(tell, [], log)
    finally:
        executor.close()
    hanging, well, stopped, gone = told
    assert hanging["why"] == stopped["why"] == "no sample came in 0.5 seconds"
    assert well["steps"] is not None
    assert gone["why"].startswith("no prediction could be made (") and "\n" not in gone["why"]
    assert max(line["seconds"] for line in (hanging, stopped, gone)) < 120, "half a second, on a busy machine"
