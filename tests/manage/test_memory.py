"""What a run took of memory, on its page."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from npmdask.manage.report import write_report
from npmdask.synthetic import generate
from tests.core.execution.test_memory import NPMDASK


@pytest.mark.slow
def test_worker_processes_are_in_the_facts_and_on_the_page(tmp_path: Path) -> None:
    generate(tmp_path / "x.zarr", problem="spectrum", rows=2000, columns=100, rank=3)
    (tmp_path / "c.toml").write_text(
        '[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 3\n[run]\nworkers = 2\nthreads = 1\nmemory = "2GiB"\n'
    )
    done = subprocess.run([*NPMDASK, "run", "c.toml", "--json", "-v"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    processes = facts["peak_rss_by_process"]
    assert [process["name"] for process in processes].count("driver") == 1
    assert [process["name"] for process in processes].count("worker") == 2
    largest = max(process["peak_rss_bytes"] for process in processes)
    together = sum(process["peak_rss_bytes"] for process in processes)
    assert largest <= facts["peak_rss_bytes"] <= 1.01 * together  # the kernel's counters run behind by some pages
    assert facts["peak_rss_bytes"] < facts["memory_limit_bytes"]
    page = write_report(tmp_path / "runs" / "c").read_text()
    for process in processes:
        assert f"{process['name']} (process {process['pid']})" in page
    assert "predicted before the first pass" in page
