"""``npmdask serve``: what is killed comes back, what was running goes on by itself, once, to the same bits; seen from
outside meanwhile: by Prometheus, in the log, on the page that Prefect links.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from npmdask.core.checkpoint.store import RunStore
from npmdask.synthetic import generate
from tests.prefect.conftest import Shop, committed
from tests.prefect.served import Served
from tests.security.looking import listening, open_to_others

pytestmark = pytest.mark.heavy

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
    one = Served(shop, SCHEDULES)
    yield one
    if one.process.poll() is None:
        shop.below(one.process)
        one.process.send_signal(signal.SIGTERM)
        one.process.wait(60)


def closed_to_others(served: Served) -> None:
    """Server, keeper, worker and the flow run listen on this machine only; what they log is their owner's."""
    assert {ip for ip, _ in listening(psutil.Process(served.process.pid))} == {"127.0.0.1"}
    folder = served.shop.folder / "runs" / ".serve"
    assert not list(open_to_others(folder)) and {f.stat().st_mode & 0o777 for f in folder.glob("*.log")} == {0o600}


@pytest.mark.parametrize(
    "victims",
    [["server", "flow", "hang"], ["keeper", "worker", "machine", "power"]],
)
def test_what_dies_comes_back_and_the_run_ends_in_the_same_bits(served: Served, victims: list[str]) -> None:
    store, seen = served.shop.folder / "runs" / "slow", 0
    for victim in victims:
        served.wait(lambda: steps(store) >= seen + 3, 180, f"it goes on before {victim} is killed")  # noqa: B023
        assert not (store / "result").exists(), "killed too late: the test shows nothing"
        closed_to_others(served)
        assert served.metric('state{run="slow",state="running"') == 1 and served.metric("step") >= seen
        getattr(served, victim)(store)
        seen = steps(store)
    served.wait(lambda: served.ended("Completed") == 1, 240, "it is finished")
    (run,) = served.runs()
    assert run["run_count"] >= 2
    assert served.metric('state{run="slow",state="finished"') == 1 and served.metric("step") == steps(store)
    assert served.report("slow") == (store / "report.html").read_text()
    lines = [json.loads(line) for line in (served.shop.folder / "log").read_text().splitlines()]
    mine = [line for line in lines if line["run"] == "slow" and line["event"] == "step"]
    unsaid = set(range(1, steps(store))) - {line["step"] for line in mine}
    assert len(unsaid) <= len(victims), f"a kill may come between a commit and its line: {unsaid}"
    assert {line["owner"] for line in mine} == {run["id"]}
    assert any("it is started again in" in line["message"] for line in lines if line["event"] == "service")
    alone = served.shop.folder / "alone"
    assert served.shop.run("-m", "npmdask.cli.main", "run", "slow.toml", "--store", alone, "--quiet") == 0, (
        served.shop.err
    )
    assert committed(alone) == committed(store)
    taken = [line["label"] for line in RunStore(store).telemetry() if line["event"] == "pass"]
    assert len(taken) - len(set(taken)) <= len(victims), "a kill costs the pass that it hits"
