"""Real schedulers and workers as processes on loopback, all of them ended by pid."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent


def free_port() -> int:
    """A port of loopback that nothing takes by chance until a server opens it, or opens it again.

    Below those that the kernel gives to connections: one to a port that is not open yet may be given that very port,
    and is then connected with itself. Processes that test at once look in different orders.
    """
    ports = range(12_000, 32_000)
    for port in random.Random(os.urandom(8)).sample(ports, len(ports)):
        with suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 180
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10):
            return
        assert process.poll() is None, "it ended at once"
        time.sleep(0.05)
    raise AssertionError("it did not open its port in 180 s")


class Machines:
    """A scheduler and workers without a nanny, so that a killed worker stays dead."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.tls: list[str | Path] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.others: list[subprocess.Popen[bytes]] = []

    def secure(self, certificates: Path) -> None:
        """All that is started from now on speaks TLS, with what is in this folder."""
        self.address = f"tls://127.0.0.1:{self.port}"
        files = {"--tls-ca-file": "ca.pem", "--tls-cert": "cert.pem", "--tls-key": "key.pem"}
        self.tls = [word for option, file in files.items() for word in (option, certificates / file)]

    def start(self, *command: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "machines.log", "ab") as log:
            return subprocess.Popen(
                [str(part) for part in command],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            )

    def scheduler(self) -> None:
        command = [BIN / "dask", "scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard"]
        process = self.start(*command, *self.tls)
        self.others.append(process)
        wait_for(self.port, process)

    def worker(self, memory: str = "0", **environment: str) -> None:
        command = [BIN / "dask", "worker", self.address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny"]
        local = ["--local-directory", self.folder / f"worker{len(self.workers)}", "--no-dashboard"]
        local += ["--memory-limit", memory]
        self.workers.append(self.start(*command, *local, *self.tls, **environment))

    def end(self) -> None:
        for process in [*self.workers, *self.others]:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.workers, self.others = [], []


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        made.end()
