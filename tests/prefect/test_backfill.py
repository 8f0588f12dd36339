"""`npmdask backfill` on a Prefect server beside which no keeper runs."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from npmdask.core.checkpoint.store import RunStore
from npmdask.prefect.programs import AUTH, read_auth_string
from tests.prefect.conftest import ROOT, Running, Shop, wait_until
from tests.prefect.served import holder

pytestmark = pytest.mark.slow
CONFIG = """
[source]
path = "{date}.npy"
kind = "samples"
[algorithm]
name = "power"
target_rank = 3
max_steps = 5000
[stop]
tol = 1e-10
"""
SCHEDULES = """
[[schedule]]
name = "days"
flow = "npm"
config = "daily.toml"
store = "days"
cron = "0 2 1 1 *"
parameters = { date = "yesterday" }
"""
MAKE_KNOWN = """
from prefect.client.orchestration import get_client
from npmdask.prefect import keeper
with get_client(sync_client=True) as client:
    keeper.apply(client, keeper.read_schedules("schedules.toml"))
"""
DAYS = ("2026-11-01", "2026-11-02")


@pytest.mark.parametrize("dead", ["run", pytest.param("run and worker", marks=pytest.mark.heavy)])
def test_a_run_that_crashes_without_a_keeper_goes_on(shop: Shop, running: Running, dead: str) -> None:
    """Fails where a backfill waits for another program to start a crashed run again, or, where its worker is gone too,
    to see that it is silent. The second day is not killed."""
    there = {"PREFECT_HOME": str(running.home), "PREFECT_API_URL": running.url, "PYTHONPATH": str(ROOT)}
    shop.environment = there | {"PREFECT_API_AUTH_STRING": read_auth_string(running.home / AUTH)}
    for number, day in enumerate(DAYS):  # values that are close: hundreds of steps
        rows = np.random.default_rng(number).standard_normal((2000, 60)) * 0.98 ** np.arange(60)
        np.save(shop.folder / f"{day}.npy", rows)
    (shop.folder / "daily.toml").write_text(CONFIG)
    (shop.folder / "schedules.toml").write_text(SCHEDULES)
    assert shop.run("-c", MAKE_KNOWN) == 0, shop.err
    process = shop.start("-m", "npmdask.prefect.backfill", "days", "--from", DAYS[0], "--to", DAYS[1])
    first = shop.folder / "days" / DAYS[0] / "000001"
    late = "no worker has taken its run yet"
    wait_until(lambda: late in shop.err, 240, "a run that waits is said to wait", lambda: shop.err)
    aside, start = Shop(shop.folder / "worker"), ("-m", "prefect", "worker", "start", "--pool", "npmdask")
    aside.folder.mkdir()
    aside.environment = shop.environment
    try:
        worker = aside.start(*start, "--type", "process")
        wait_until((first / "steps").exists, 240, "a step of the first day", lambda: shop.err + aside.err)
        if dead != "run":
            aside.below(worker)  # for the clean-up
            worker.send_signal(signal.SIGSTOP)  # it cannot say that the run crashed
        os.kill(holder(first), signal.SIGKILL)
        if dead != "run":
            worker.kill()
            aside.start(*start, "--type", "process")
        assert RunStore(first).part_meta("result") is None, "killed too late: there has to be something left to do"
        assert process.wait(300) == 0, shop.err + aside.err
    finally:
        aside.clean()
    assert all(f"{day}: done" in shop.err for day in DAYS) and "goes on from its last commit" in shop.err
    assert ("no sign of life" in shop.err) == (dead != "run"), shop.err
    for day in DAYS:
        (store,) = sorted((shop.folder / "days" / day).glob("0*"))
        assert RunStore(store).part_meta("result") is not None
    assert (shop.folder / "days" / "latest").resolve() == shop.folder / "days" / DAYS[1] / "000001"
