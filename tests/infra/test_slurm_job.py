"""infra/slurm.sh, with a stand-in for scontrol; `make deployments` submits it to a real SLURM."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import planted, same_bytes, write_zarr

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).resolve().parents[2] / "infra" / "slurm.sh"


def config(folder: Path, store: str) -> Path:
    file = folder / f"{store}.toml"
    file.write_text(
        '[source]\npath = "x.zarr"\nkind = "samples"\n[algorithm]\nname = "power"\ntarget_rank = 4\n'
        f'iteration_rank = 5\nmax_steps = 2000\n[stop]\ntol = 1e-9\n[run]\nstore = "{store}"\nthreads = 1\n'
    )
    return file


def submit(folder: Path, file: Path) -> subprocess.Popen[str]:
    """The script as slurmd starts it."""
    (folder / "scontrol").write_text('#!/bin/sh\necho "$@" >> requeued\n')
    (folder / "scontrol").chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["sh", str(SCRIPT), str(file)], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "PATH": path, "SLURM_JOB_ID": "7"}, start_new_session=True,
    )  # fmt: skip


def wait_for(file: Path) -> None:
    end = time.monotonic() + 240
    while not file.exists():
        assert time.monotonic() < end, f"no {file} in four minutes"
        time.sleep(0.02)


def warned(folder: Path, file: Path) -> subprocess.Popen[str]:
    """A job whose time is over in the middle of its run, when it is queued again."""
    for _ in range(10):
        job = submit(folder, file)
        wait_for(folder / "job" / "steps" / "000002")
        job.send_signal(signal.SIGUSR1)  # of --signal=B:USR1@120: to the script alone
        while job.poll() is None:
            if (folder / "requeued").exists() and (folder / "requeued").read_text().endswith("\n"):
                return job
            time.sleep(0.02)
        job.communicate()
        shutil.rmtree(folder / "job")  # the run was over before the signal
    raise AssertionError("no job is queued again")


def test_a_job_whose_time_is_over_is_queued_again_and_one_that_is_cancelled_is_not(tmp_path: Path) -> None:
    """Mutants: a scancel that is answered by scontrol requeue (as it was), a warning that ends nothing."""
    write_zarr(tmp_path / "x.zarr", planted(20_000, 200, 1 / np.arange(1, 101) ** 0.2)[0], (1000, 200))
    job = warned(tmp_path, config(tmp_path, "job"))
    os.killpg(job.pid, signal.SIGKILL)
    assert "interrupted, everything committed is kept" in job.communicate()[0]
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"

    (tmp_path / "requeued").unlink()
    at = max(int(one.name) for one in (tmp_path / "job" / "steps").iterdir() if one.name.isdigit())
    job = submit(tmp_path, tmp_path / "job.toml")
    wait_for(tmp_path / "job" / "steps" / f"{at + 2:06d}")
    os.killpg(job.pid, signal.SIGTERM)  # scancel: to all of it
    job.communicate(timeout=300)
    assert not (tmp_path / "requeued").exists()

    job = submit(tmp_path, tmp_path / "job.toml")
    said = job.communicate(timeout=300)[0]
    assert job.returncode == 0, said
    assert not (tmp_path / "requeued").exists()
    whole = submit(tmp_path, config(tmp_path, "whole"))
    said = whole.communicate(timeout=300)[0]
    assert whole.returncode == 0, said
    same_bytes(tmp_path / "whole", tmp_path / "job", parts=("steps", "result", "survey"))
