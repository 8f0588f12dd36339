"""A scheduled run that fails before it has a store is seen: in status, in metrics, on the page of all runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from npmdask.cli.main import main
from npmdask.manage.prometheus import Exporter
from npmdask.manage.status import nights_of, note_end
from npmdask.prefect.programs import BELOW
from npmdask.prefect.reports import runs_report
from npmdask.report import as_json
from tests.manage.common import ROOT, make_data

NIGHT = """
import sys
from npmdask.config import config_of_source
from npmdask.prefect.heartbeat import tended

@tended
def night(config, run_id):
    return config.solve()

night(config_of_source(sys.argv[1], store=sys.argv[2], changes={"algorithm.target_rank": 3}), run_id="nightly")
"""


def tick(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """One run as a worker starts it."""
    (folder / "prefect").mkdir(exist_ok=True)
    there = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_HOME": str(folder / "prefect")}
    there |= {"PREFECT__FLOW_RUN_ID": "b9b3dbd0-3a53-4b5c-8a35-3f5c7b1e7f6e", BELOW: str(folder / "runs")}
    command = [sys.executable, "-c", NIGHT, str(folder / source), str(folder / "runs" / "nightly")]
    return subprocess.run(command, cwd=ROOT, env=os.environ | there, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_night_that_fails_before_it_begins_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails where only runs that have a store are looked at: this one has none."""
    (tmp_path / "runs").mkdir()
    make_data(tmp_path)
    for _ in range(2):
        assert "there is nothing at" in tick(tmp_path, "gone.zarr").stderr
    assert not (tmp_path / "runs" / "nightly").exists()
    assert main(["status", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "schedule nightly: the last run failed" in said and "2 times in a row" in said
    assert "there is nothing at" in said and "gone.zarr" in said
    assert main(["status", str(tmp_path / "runs"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schedules"][0]["failures"] == 2
    assert 'npmdask_schedule_failures{schedule="nightly"} 2.0' in Exporter(tmp_path / "runs").text()
    page = json.dumps(as_json(runs_report(tmp_path / "runs", [], [], "")))
    assert "Prefect does not answer" in page and "nightly: failed" in page and "there is nothing at" in page

    done = tick(tmp_path, "x.zarr")
    assert done.returncode == 0, done.stderr
    (night,) = nights_of(tmp_path / "runs")
    assert night.failures == 0 and night.succeeded is not None and not night.error
    text = Exporter(tmp_path / "runs").text()
    assert 'npmdask_schedule_failures{schedule="nightly"} 0.0' in text
    assert "npmdask_schedule_last_success_timestamp_seconds" in text


def test_of_a_private_night_neither_sentence_nor_time_is_kept(tmp_path: Path) -> None:
    """The sentence may quote the data, and how long a run takes depends on how many rows there are."""
    note_end(tmp_path, "release/daily", "row 7 holds 3.5", private=True)
    (night,) = nights_of(tmp_path)
    assert (night.failures, night.error, night.ended, night.succeeded) == (1, "", None, None)
    assert "3.5" not in "".join(path.read_text() for path in (tmp_path / ".schedules").iterdir())
    (tmp_path / ".schedules" / "torn.json").write_text('{"schedule": ')
    assert nights_of(tmp_path) == [night]
