"""Metrics, scraped for real: of runs that run, hang, are killed; of private ones; of budgets; without the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from npmdask.cli.main import main
from npmdask.errors import BadInputError, RefusedError
from npmdask.ledger import Ledger
from npmdask.manage.prometheus import STATES, Exporter
from npmdask.manage.status import status_below
from tests.manage.common import ROOT, hanging, let_age, make_data
from tests.manage.job import run
from tests.privacy.runs.conftest import STEPS, World, world  # noqa: F401

DIES = """
import os, npmdask
from npmdask.core.execution.threads import Threads
Threads.run_pass = lambda *_: os.kill(os.getpid(), 9)
npmdask.resume({!r})
"""


def numbers(text: str) -> dict[str, float]:
    """Every sample of a scrape."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def state(found: dict[str, float], name: str) -> str:
    (one,) = [s for s in STATES for k, v in found.items() if v and f'run="{name}",state="{s}"' in k]
    return one


@contextmanager
def exporter(folder: Path) -> Iterator[str]:
    """``npmdask metrics`` in a process of its own; the address that it says."""
    command = [sys.executable, "-m", "npmdask.cli.main", "metrics", str(folder), "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/metrics", process.stderr.readline())
        assert found
        yield found[0]
        process.terminate()
        assert process.wait(120) == 0 and process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def scraped(url: str) -> dict[str, float]:
    with urlopen(url, timeout=120) as answer:
        return numbers(answer.read().decode())


@pytest.mark.slow
def test_a_run_that_runs_hangs_is_killed_and_crashes(tmp_path: Path) -> None:
    make_data(tmp_path)
    of = '{run="run",what="power"}'
    with exporter(tmp_path) as url:
        with hanging("run", tmp_path, "pass", "6") as process:
            found = scraped(url)
            assert state(found, "run") == "running" and found[f"npmdask_run_step{of}"] == 5
            assert found[f"npmdask_run_max_steps{of}"] == 200 and 0 < found[f"npmdask_run_residual{of}"] < 1
            committed = max(path.stat().st_mtime for path in (tmp_path / "run").rglob("manifest.json"))
            assert found[f"npmdask_run_last_commit_timestamp_seconds{of}"] == pytest.approx(committed, abs=1)
            let_age(tmp_path / "run")
            assert state(scraped(url), "run") == "hung"
            process.kill()
        assert state(scraped(url), "run") == "unfinished"
        for _ in range(2):
            subprocess.run([sys.executable, "-c", DIES.format(str(tmp_path / "run"))], cwd=ROOT)
        found = scraped(url)
        assert state(found, "run") == "crashed" and found[f"npmdask_run_crashes{of}"] == 2
        run(tmp_path, tmp_path / "run")
        found = scraped(url)
        assert state(found, "run") == "finished" and found[f"npmdask_run_crashes{of}"] == 0
        assert found[f"npmdask_run_disk_bytes{of}"] == status_below(tmp_path)[0].bytes


@pytest.mark.slow
def test_a_file_for_node_exporter_and_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NPMDASK_LEDGER", raising=False)
    make_data(tmp_path)
    run(tmp_path, tmp_path / "runs" / "deep" / 'a "b"')
    assert main(["metrics", str(tmp_path / "runs"), "--textfile", str(tmp_path / "npmdask.prom")]) == 0
    found = numbers((tmp_path / "npmdask.prom").read_text())
    assert found['npmdask_run_step{run="deep/a \\"b\\"",what="power"}'] == 8 and found["npmdask_up"] == 1
    assert main(["metrics", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert numbers(said) == found and "# TYPE npmdask_run_step gauge" in said
    assert not any(name.startswith("npmdask_ledger") for name in found)
    assert numbers(Exporter(tmp_path / "nowhere").text()) == {"npmdask_up": 0}


@pytest.mark.slow
def test_a_private_run_and_its_budget(world: World, tmp_path: Path) -> None:  # noqa: F811
    """What status shows of it: no time of a commit, no residual."""
    world.solve("run")
    found = numbers(Exporter(world.folder, world.ledger).text())
    mine = {
        name.partition("{")[0]: value for name, value in found.items() if 'run="run"' in name and "state" not in name
    }
    assert mine.keys() == {
        "npmdask_run_step",
        "npmdask_run_max_steps",
        "npmdask_run_crashes",
        "npmdask_run_disk_bytes",
    }
    assert mine["npmdask_run_step"] == STEPS and state(found, "run") == "finished"
    (account,) = world.ledger.statuses()
    of = f'{{dataset="{account.dataset}"}}'
    assert found[f"npmdask_ledger_epsilon_granted{of}"] == account.grant.budget.epsilon
    assert found[f"npmdask_ledger_epsilon_left{of}"] == pytest.approx(account.left_epsilon)
    assert account.left_epsilon < account.grant.budget.epsilon and found["npmdask_ledger_up"] == 1


def test_a_ledger_that_cannot_be_read_costs_its_own_numbers_only(tmp_path: Path) -> None:
    from npmdask.ledger import open_ledger

    (tmp_path / "ledger.sqlite").write_bytes(b"no database, but long enough to be looked at" * 100)
    broken: Ledger = open_ledger(tmp_path / "ledger.sqlite")
    assert numbers(Exporter(tmp_path, broken).text()) == {"npmdask_up": 1, "npmdask_ledger_up": 0}


@pytest.mark.slow
def test_without_the_package_a_sentence(tmp_path: Path) -> None:
    hidden = (
        "import sys; sys.modules['prometheus_client'] = None; from npmdask.cli.main import main; sys.exit(main({}))"
    )
    code = hidden.format(["metrics", str(tmp_path)])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == BadInputError.exit_code
    assert "pip install 'prometheus-client>=0.20'" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_port_that_somebody_has(tmp_path: Path) -> None:
    server, thread = Exporter(tmp_path).serve(0)
    try:
        with pytest.raises(RefusedError, match=r"cannot be had .*; choose another"):
            Exporter(tmp_path).serve(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert os.listdir(tmp_path) == []
