"""``npmdask serve``: what is killed comes back, what was running goes on by itself, once, to the same bits; seen from
outside meanwhile: by Prometheus, in the log, on the page that Prefect links.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil
import pytest

from flows.server import free_port
from npmdask.checkpoint import RunStore
from npmdask.storage.generate import generate
from tests.flows.conftest import Shop, committed, wait_until

pytestmark = pytest.mark.slow

CONFIG = """
[source]
path = "b.zarr"
kind = "samples"
[algorithm]
name = "power"
target_rank = 5
iteration_rank = 5
max_steps = 300
[stop]
tol = 1e-12
"""
SCHEDULES = """
[[schedule]]
name = "slow"
flow = "npm"
config = "slow.toml"
every = 3600
"""


class Served:
    """A running ``npmdask serve`` in a shop."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.port, self.metrics = shop, free_port(), free_port()
        shop.environment["NPMDASK_LOG"] = str(shop.folder / "log")
        self.process = self.start()

    def start(self) -> "subprocess.Popen[str]":
        ports = ("--port", str(self.port), "--metrics-port", str(self.metrics))
        return self.shop.start("-m", "flows.serve", "schedules.toml", *ports)

    def metric(self, name: str) -> float:
        """Of the only run."""
        with urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        (line,) = [line for line in lines if line.startswith(f"npmdask_run_{name}")]
        return float(line.split()[-1])

    def report(self) -> str:
        """What is at the address that the artifact of the report links."""
        artifacts = self.api("artifacts/filter", {"artifacts": {"key": {"like_": "slow-report"}}})
        (link,) = {found for one in artifacts for found in re.findall(r"\]\((http://[^)]*)\)", one["data"])}
        with urlopen(link, timeout=20) as answer:
            return str(answer.read().decode())

    def api(self, path: str, query: dict[str, Any]) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/{path}"
        with urlopen(
            Request(url, json.dumps(query).encode(), {"Content-Type": "application/json"}), timeout=20
        ) as answer:
            return json.loads(answer.read())

    def runs(self) -> list[dict[str, Any]]:
        """All flow runs that were taken by a worker."""
        with suppress(OSError):
            found: list[dict[str, Any]] = self.api("flow_runs/filter", {"sort": "EXPECTED_START_TIME_ASC"})
            return [run for run in found if run["state_name"] not in ("Scheduled", "Late")]
        return []

    def states(self) -> list[str]:
        return [run["state_name"] for run in self.runs()]

    def service(self, name: str) -> int:
        state = json.loads((self.shop.folder / "runs" / ".serve" / "services.json").read_text())
        return int(state["services"][name]["pid"])

    def wait(self, true: Callable[[], bool], seconds: float, what: str) -> None:
        wait_until(true, seconds, f"{what}: {self.states()} {self.shop.err[-2000:]}")


def steps(store: Path) -> int:
    found = [int(path.name) for path in (store / "steps").glob("[0-9]*") if path.name.isdigit()]
    return max(found, default=0)


@pytest.fixture
def served(shop: Shop) -> Iterator[Served]:
    generate(
        shop.folder / "b.zarr",
        problem="spectrum",
        spectrum="harmonic",
        kind="samples",
        rows=32768,
        columns=512,
        rank=10,
    )
    (shop.folder / "slow.toml").write_text(CONFIG)
    (shop.folder / "schedules.toml").write_text(SCHEDULES)
    one = Served(shop)
    yield one
    if one.process.poll() is None:
        shop.below(one.process)
        one.process.send_signal(signal.SIGTERM)
        one.process.wait(60)


def holder(store: Path) -> int:
    return int((store / "lock").read_text().split()[1])


class Killed:
    """Who is killed, each time once the run has gone on since the last time."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.store = served.shop.folder / "runs" / "slow"

    def flow(self) -> None:
        os.kill(holder(self.store), signal.SIGKILL)

    def server(self) -> None:
        os.kill(self.served.service("prefect-server"), signal.SIGKILL)

    def worker(self) -> None:
        os.kill(self.served.service("worker"), signal.SIGKILL)

    def keeper(self) -> None:
        os.kill(self.served.service("keeper"), signal.SIGKILL)

    def machine(self) -> None:
        """The flow and its worker at the same time: nobody is left who could say that it crashed."""
        process = holder(self.store)
        os.kill(self.served.service("worker"), signal.SIGSTOP)
        os.kill(process, signal.SIGKILL)
        self.worker()

    def power(self) -> None:
        """Everything; and somebody starts it again."""
        everything = [self.served.process.pid, *(child.pid for child in self.served.shop.below(self.served.process))]
        for pid in everything:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.served.process.wait(10)
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in everything[1:]), 10, "all of it is gone")
        self.served.process = self.served.start()


@pytest.mark.parametrize(
    "victims",
    [
        ["server", "flow"],
        pytest.param(["keeper", "worker", "machine", "flow", "power"], marks=pytest.mark.heavy),
    ],
)
def test_what_dies_comes_back_and_the_run_ends_in_the_same_bits(served: Served, victims: list[str]) -> None:
    killed = Killed(served)
    store, seen = killed.store, 0
    for victim in victims:
        served.wait(lambda: steps(store) >= seen + 3, 150, f"it goes on before {victim} is killed")  # noqa: B023
        assert not (store / "result").exists(), "killed too late: the test shows nothing"
        assert served.metric('state{run="slow",state="running"') == 1 and served.metric("step") >= seen
        getattr(killed, victim)()
        seen = steps(store)
    served.wait(lambda: served.states() == ["Completed"], 240, "it is finished")
    (run,) = served.runs()
    assert run["run_count"] >= 2
    assert served.metric('state{run="slow",state="finished"') == 1 and served.metric("step") == steps(store)
    assert served.report() == (store / "report.html").read_text()
    lines = [json.loads(line) for line in (served.shop.folder / "log").read_text().splitlines()]
    mine = [line for line in lines if line["run"] == "slow" and line["event"] == "step"]
    assert {line["step"] for line in mine} >= set(range(1, steps(store)))
    assert {line["owner"] for line in mine} == {run["id"]}
    assert any("it is started again in" in line["message"] for line in lines if line["event"] == "service")
    alone = served.shop.folder / "alone"
    assert served.shop.run("-m", "npmdask.cli", "run", "slow.toml", "--store", alone, "--quiet") == 0, served.shop.err
    assert committed(alone) == committed(store)
    taken = [line["label"] for line in RunStore(store).telemetry() if line["event"] == "pass"]
    assert len(taken) - len(set(taken)) <= len(victims), "a kill costs the pass that it hits"
