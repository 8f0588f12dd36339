"""Processes that hang, and what a folder holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from npmdask.checkpoint.lease import STALE
from npmdask.storage.ingest import ingest
from tests.conftest import planted

ROOT = Path(__file__).resolve().parents[2]
OWNER = "flow-run-7"


def make_data(folder: Path, rows: int = 600) -> Path:
    """Samples (rows x 40) in ``folder/x.zarr``."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", planted(rows, 40, 1 / np.sqrt(np.arange(1, 41)))[0])
    ingest(folder / "x.npy", folder / "x.zarr", kind="samples", chunks=(100, 40))
    return folder


@contextmanager
def hanging(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A job (tests.manage.job) that has stopped itself; ended for good afterwards."""
    environment = os.environ | {"NPMDASK_OWNER": OWNER}
    command = [sys.executable, "-m", "tests.manage.job", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        seen = psutil.Process(process.pid)
        end = time.monotonic() + 120
        while seen.status() != psutil.STATUS_STOPPED:
            assert process.poll() is None and time.monotonic() < end, "it never came to where it should hang"
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate()


def woken(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code of a process that goes on, and what it says."""
    process.send_signal(signal.SIGCONT)
    return process.wait(60), process.stderr.read() if process.stderr else ""


def let_age(store: Path, seconds: float = STALE + 15) -> None:
    """As if the last sign of life were so long ago."""
    then = time.time() - seconds
    os.utime(store / "lock", (then, then))


def content(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``, but the one that its owner holds for moments."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock.taking")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
