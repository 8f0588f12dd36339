"""Processes that hang, and what a folder holds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import psutil

from npmdask.core.checkpoint.lease import STALE
from npmdask.formats.ingest import ingest
from tests.conftest import planted
from tests.manage.job import hang
from tests.processes import started

ROOT = Path(__file__).resolve().parents[2]
OWNER = "flow-run-7"


def make_data(folder: Path, rows: int = 600) -> Path:
    """Samples (rows x 40) in ``folder/x.zarr``."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", planted(rows, 40, 1 / np.sqrt(np.arange(1, 41)))[0])
    ingest(folder / "x.npy", folder / "x.zarr", kind="samples", chunks=(100, 40))
    return folder


@dataclass(frozen=True)
class Hung:
    """A process that has stopped itself, and the file that it writes its errors to."""

    process: BaseProcess
    errors: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def there(self) -> bool:
        """Whether it has not ended."""
        return self.process.exitcode is None

    def kill(self) -> None:
        """End it (kill -9), and wait until it is gone."""
        self.process.kill()
        self.process.join()


@contextmanager
def hanging(kind: str, folder: Path, where: str, number: str) -> Iterator[Hung]:
    """A job (tests.manage.job) that has stopped itself; ended for good afterwards."""
    environment = dict(os.environ) | {"NPMDASK_OWNER": OWNER}
    with NamedTemporaryFile() as file:
        errors = Path(file.name)
        hung = Hung(started(hang, environment, errors, kind, folder, where, number), errors)
        try:
            seen = psutil.Process(hung.pid)
            end = time.monotonic() + 120
            while seen.status() != psutil.STATUS_STOPPED:
                assert hung.there and time.monotonic() < end, "it never came to where it should hang"
                time.sleep(0.01)
            yield hung
        finally:
            hung.kill()


def woken(hung: Hung) -> tuple[int | None, str]:
    """Exit code of a process that goes on, and what it says."""
    os.kill(hung.pid, signal.SIGCONT)
    hung.process.join(240)
    return hung.process.exitcode, hung.errors.read_text()


def let_age(store: Path, seconds: float = STALE + 15) -> None:
    """As if the last sign of life were so long ago."""
    then = time.time() - seconds
    os.utime(store / "lock", (then, then))


def content(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``, but the one that its owner holds for moments."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock.taking")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
