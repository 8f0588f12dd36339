"""Jobs of SLURM as workers, by dask-jobqueue, with stand-ins for SLURM's commands that run the real job scripts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
import npmdask.core.operators._protocol as protocol
from npmdask.core.runs.observers import Observer
from tests.conftest import planted, same_bytes, write_zarr
from tests.machines import ROOT

jobqueue = pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed: SLURM is not tested")
pytestmark = pytest.mark.slow

# A job is a process group: its number is that of its leader. Its script is copied: the file is gone when sbatch ends.
SBATCH = """#!/bin/sh
cp "$1" "$JOBS/script-$$"
setsid sh "$JOBS/script-$$" > "$JOBS/log-$$" 2>&1 &
echo $! >> "$JOBS/numbers"
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/sh
echo "$1" >> "$JOBS/cancelled"
kill -TERM -- "-$1"
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a SLURM: numbers of its jobs, of those that were cancelled, and what they printed."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "scancel": SCANCEL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("JOBS", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield folder
    for number in numbers(folder / "numbers"):
        with suppress(ProcessLookupError):
            os.killpg(number, signal.SIGKILL)


def numbers(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def slurm(**more: Any) -> Any:
    scheduler = {"dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    settings = {"cores": 1, "processes": 1, "memory": "2GiB", "walltime": "01:00:00"}
    return jobqueue.SLURMCluster(**settings, scheduler_options=scheduler, worker_extra_args=["--no-dashboard"], **more)


def test_jobs_give_the_same_bits_and_one_that_ends_in_the_middle_costs_its_tasks(
    tmp_path: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 2**18)
    rows = write_zarr(tmp_path / "x.zarr", planted(4000, 50, 1 / np.sqrt(np.arange(1, 51)))[0], (500, 50))
    npmdask.top_k(rows, 3, kind="samples", store=tmp_path / "local")
    ended: list[int] = []

    class Walltime(Observer):
        def on_step(self, step: Any) -> None:
            if not ended:
                ended.append(numbers(jobs / "numbers")[0])
                os.killpg(ended[0], signal.SIGKILL)

    with slurm(local_directory=str(tmp_path)) as cluster:
        assert "-t 01:00:00" in cluster.job_script()
        cluster.scale(jobs=2)
        cluster.wait_for_workers(2, timeout=300)
        asked = {"kind": "samples", "cluster": cluster}
        found = npmdask.top_k(rows, 3, store=tmp_path / "jobs", observer=Walltime(), **asked)
        assert found.converged and ended
        same_bytes(tmp_path / "local", tmp_path / "jobs", parts=("steps", "result", "survey"))
        assert not (jobs / "cancelled").exists(), "npmdask ends nothing of the user's"
        assert npmdask.resume(tmp_path / "jobs", cluster=cluster).converged
    assert len(numbers(jobs / "cancelled")) >= 1
