"""A schedule that really fires: the only test that catches a Prefect which starts, shows its UI and runs nothing."""

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest

from npmdask.checkpoint import RunStore
from tests.flows.conftest import ROOT, Shop, alive, wait_until

pytestmark = pytest.mark.slow


def _completed(base: Path) -> int:
    if not base.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{base}?mode=ro", uri=True)) as connection:
            (count,) = connection.execute("select count(*) from flow_run where state_type = 'COMPLETED'").fetchone()
            return int(count)
    except sqlite3.OperationalError:
        return 0  # being made


def test_a_schedule_fires_and_stops(shop: Shop, tmp_path: Path) -> None:
    config = shop.config("tick")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    process = shop.start(ROOT / "flows" / "deployments.py", config, "--every", "5", cwd=elsewhere)
    wait_until(lambda: _completed(shop.folder / "prefect" / "prefect.db") >= 2, 120, f"two runs: {shop.err}")
    url = shop.err.split("Prefect at ")[1].split(";")[0]
    with urlopen(url) as page:
        assert page.status == 200  # the UI
    children = shop.below(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(45) == 0, shop.err
    wait_until(lambda: not alive(children), 5, "no process left")
    ends = [t for t in RunStore(shop.folder / "runs" / "tick").telemetry() if t["event"] == "end"]
    passes = [t for t in RunStore(shop.folder / "runs" / "tick").telemetry() if t["event"] == "pass"]
    assert len(ends) >= 2  # every tick is the same run: the second one returned the answer
    assert len(passes) == len({t["label"] for t in passes})


def test_a_schedule_that_cannot_be(shop: Shop) -> None:
    config = shop.config("never")
    assert shop.run(ROOT / "flows" / "deployments.py", config, "--cron", "every night") == 2
    assert "schedule" in shop.err and "Traceback" not in shop.err
    assert json.dumps(shop.out) == '""'
