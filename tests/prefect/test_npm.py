"""The flow is another door to the same driver: same bytes, resumable, no server to set up."""

import json
import os
import signal
from collections import Counter

import numpy as np
import pytest

from npmdask import top_k
from npmdask.cli.main import main as npmdask
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.storage.safe_open import mark_data
from npmdask.formats.ingest import ingest
from tests.prefect.conftest import ROOT, Shop, alive, committed, wait_until

pytestmark = pytest.mark.slow

CALL = """
import sys
from npmdask.prefect.power_method import npm
from npmdask.config import load_config
facts = npm(load_config("same.toml", store="by-call"), run_id="by-call")
sys.exit(not facts["converged"])
"""


@pytest.mark.heavy
def test_all_doors_leave_the_same_bytes(client: Shop) -> None:
    config = client.config("same")
    assert client.run("-m", "flows.npm", config, "--json", "--set", "run.memory=3GiB") == 0, client.err
    facts = json.loads(client.out.splitlines()[-1])
    assert facts["memory_limit_bytes"] == 3 * 2**30
    assert facts["converged"] and facts["data_passes"] == facts["steps"]

    assert client.run("-c", CALL) == 0, client.err
    assert npmdask(["run", str(config), "--store", str(client.folder / "by-cli"), "--quiet"]) == 0
    top_k(client.folder / "a.zarr", 5, kind="samples", tol=1e-8, store=client.folder / "by-python")

    same = committed(client.folder / "runs" / "same")
    assert len(same) > 4
    for other in ("by-call", "by-cli", "by-python"):
        assert committed(client.folder / other) == same, other

    assert (client.folder / "runs" / "same" / "report.html").exists()
    artifacts = client.artifacts()
    assert "same" in artifacts and not [key for key in artifacts if key.startswith("same-")], "one for a run"
    text = artifacts["same"]
    assert text.index("# same") < text.index("## Progress") < text.index("image/svg") < text.index("## Plan")
    assert max(map(len, artifacts.values())) < 100_000
    tasks = Counter(name.partition(":")[0] for name in client.tasks(8))
    assert tasks == {"validate": 2, "plan": 2, "iterate": 2, "report": 2}
    assert client.states() == {"COMPLETED": 2}

    drawn = "select count(*) from artifact where key = 'same' and {since}"
    before = client.ask(drawn)
    assert client.run("-m", "flows.npm", config, "--json") == 0, client.err
    again = json.loads(client.out.splitlines()[-1])
    assert (again["data_passes"], again["values"]) == (0, facts["values"])
    assert client.ask(drawn) == [(before[0][0] + 1,)], "one more for each flow run, however often it is renewed"

    assert client.run("-m", "flows.npm", config) == 0, client.err
    longest = max(len(line) for line in client.out.splitlines())
    assert "certificate.ground" in client.out and longest < 400, "bounds of every component are for the page and --json"


NIGHTS = """
import sys
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from npmdask.prefect import tasks
from npmdask.prefect.power_method import npm
from npmdask.config import load_config
from npmdask.errors import CommitError
stores, states = [], []
for tol in (1e-6, 1e-7, 1e-7):  # another question, and the same one of the same data
    asked = {"changes": {"stop.tol": tol}, "fresh": True, "align_to": "previous", "rotate": "varimax"}
    state = npm(load_config("nights.toml"), **asked, run_id="nights", return_state=True)
    states.append(state.name)
    facts = state.result()
    stores.append(facts["store"][-6:])
shown = facts["facts"]["presentation"]
assert stores == ["000001", "000002", "000002"], stores
assert states == ["Completed", "Completed", "Skipped"], states
assert "the data have not changed since" in state.message and "000002" in state.message, state.message
assert shown["align_to"].endswith("000001") and max(shown["degrees"]) < 1e-3, shown
write_report = tasks.write_report
def full(*_):
    tasks.write_report = write_report
    raise CommitError("the disk is full")
tasks.write_report = full
asked = {"config": load_config("nights.toml"), "fresh": True, "run_id": "full", "store": "runs/full"}
waits = npm.with_options(retries=1)(**asked, return_state=True)
with get_client(sync_client=True) as client:
    again = client.read_flow_run(waits.state_details.flow_run_id)
state = run_flow(npm, flow_run=again, parameters=asked, return_type="state")
assert (waits.name, state.name, state.result()["store"][-6:]) == ("AwaitingRetry", "Completed", "000001"), state
sys.exit(tasks.write_report is not write_report)
"""


def test_a_nightly_run_is_reported_in_the_order_of_the_night_before(client: Shop) -> None:
    """Fails also where a night that is started again, as its page could not be written, is Skipped."""
    client.config("nights")
    assert client.run("-c", NIGHTS) == 0, client.err
    page = (client.folder / "runs" / "nights" / "000002" / "report.html").read_text()
    assert "Components after varimax" in page and "Turned since the earlier run" in page
    nights = client.folder / "runs" / "nights"
    assert not (nights / "000003").exists(), "of data that have not changed the answer is given again"
    named = json.loads((nights / "latest.json").read_text())
    assert (named["run"], named["store"]) == ("000002", str(nights / "000002"))
    assert npmdask(["export", str(nights / "latest"), str(client.folder / "latest.npz")]) == 0


def test_a_share_of_the_variance_through_the_flow(client: Shop) -> None:
    config = client.config("share", rank=0.5)
    assert client.run("-m", "flows.npm", config, "--json") == 0, client.err
    facts = json.loads(client.out.splitlines()[-1])
    assert facts["explained_share"] >= 0.5 and len(facts["values"]) == facts["target_rank"]
    assert npmdask(["run", str(config), "--store", str(client.folder / "by-cli"), "--quiet"]) == 0
    assert committed(client.folder / "runs" / "share") == committed(client.folder / "by-cli")


# The flow of the command, which stays where it has committed a step: its run does not end before it is ended.
STAYS = """
import runpy, sys, time
from npmdask.core.checkpoint.store import RunStore

commit_step, last = RunStore.commit_step, int(sys.argv.pop(1))

def committed_and_stayed(self, step, *rest):
    commit_step(self, step, *rest)
    if step == last:
        time.sleep(600)

RunStore.commit_step = committed_and_stayed
runpy.run_module("flows.npm", run_name="__main__", alter_sys=True)
"""


def test_a_killed_run_goes_on(shop: Shop) -> None:
    config = shop.config("kill", tol=1e-15, max_steps=150, rank=20)
    store = shop.folder / "runs" / "kill"
    assert npmdask(["run", str(config), "--store", str(shop.folder / "whole"), "--quiet"]) in (0, 4)

    shop.environment["PYTHONPATH"] = str(ROOT)
    process = shop.start("-c", STAYS, "5", config)
    wait_until(lambda: (store / "steps" / "000005").exists(), 240, "step 5", lambda: shop.err)
    children = shop.below(process)
    assert any("npmdask.prefect.server" in child.cmdline() for child in children)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (store / "result").exists()
    wait_until(lambda: not alive(children), 120, "no process left")  # the server dies with us, however we die

    assert shop.run("-m", "flows.npm", config) in (0, 4), shop.err
    assert committed(store) == committed(shop.folder / "whole")
    passes = Counter(t["label"] for t in RunStore(store).telemetry() if t["event"] == "pass")
    assert len({t["pid"] for t in RunStore(store).telemetry()}) == 2
    assert sum(count - 1 for count in passes.values()) <= 1, passes


@pytest.mark.heavy
def test_sigterm_is_an_interruption(shop: Shop) -> None:
    config = shop.config("term", tol=1e-15, max_steps=400, rank=20)
    shop.environment["PYTHONPATH"] = str(ROOT)
    process = shop.start("-c", STAYS, "3", config)
    step = shop.folder / "runs" / "term" / "steps" / "000003"
    wait_until(step.exists, 240, "step 3", lambda: shop.err)
    children = shop.below(process)
    process.terminate()
    assert process.wait(240) == 130, shop.err
    assert "interrupted" in shop.err
    assert not alive(children)


def test_what_is_wrong_is_said_in_a_sentence(shop: Shop) -> None:
    config = shop.config("wrong")
    config.write_text(config.read_text().replace("target_rank", "target_rnk"))
    assert shop.run("-m", "flows.npm", config) == 2
    assert "did you mean 'target_rank'" in shop.err and "Traceback" not in shop.err
    assert "Prefect at" not in shop.err  # said before a server was started


def test_a_refusal_inside_the_flow_is_its_state(client: Shop) -> None:
    config = client.config("little")
    config.write_text(config.read_text() + '[run]\nmemory = "100MiB"\n')
    assert client.run("-m", "flows.npm", config) == 3
    assert "is too small" in client.err and "Traceback" not in client.err
    ((state, message),) = client.ask(
        "select s.type, s.message from (select * from flow_run where {since}) f "
        "join flow_run_state s on f.state_id = s.id"
    )
    assert state == "FAILED" and "is too small" in message


def test_not_converged_is_red_and_still_says_its_figures(client: Shop) -> None:
    config = client.config("short", tol=1e-12, max_steps=2)
    assert client.run("-m", "flows.npm", config, "--json") == 4, client.err
    facts = json.loads(client.out.splitlines()[-1])
    assert (facts["converged"], facts["steps"]) == (False, 2)
    assert "not converged: max_steps = 2" in client.err
    assert client.states() == {"FAILED": 1}


def test_warnings_about_data_are_in_the_log_of_the_flow(client: Shop) -> None:
    """Mutant: they go to stderr only, which nobody sees of a schedule."""
    np.save(client.folder / "p.npy", np.random.default_rng(0).standard_normal((300, 8)))
    ingest(client.folder / "p.npy", client.folder / "p.zarr")
    mark_data(client.folder / "p.zarr", {"dataset": "people"})
    config = client.config("marked", rank=2)
    config.write_text(config.read_text().replace("a.zarr", "p.zarr"))
    assert client.run("-m", "flows.npm", config) == 0, client.err
    query = "select message from log where level = 30 and {since}"
    wait_until(lambda: any("have a privacy budget (as 'people'" in text for (text,) in client.ask(query)), 60, "a line")
