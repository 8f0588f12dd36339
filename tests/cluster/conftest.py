"""Real schedulers, workers and an S3 server as processes on loopback, all of them ended by pid."""

from __future__ import annotations

import json
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

ROOT = Path(__file__).resolve().parents[2]
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


class Bucket:
    """An S3 server (rclone) over a folder: ``folder/x.zarr`` is ``s3://bucket/x.zarr``."""

    def __init__(self, machines: Machines) -> None:
        self._machines, self.port = machines, free_port()
        self.folder = machines.folder / "objects" / "bucket"
        self.folder.mkdir(parents=True)
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }
        self.process = self.serve()

    def serve(self) -> subprocess.Popen[bytes]:
        keys = f"{self.environment['AWS_ACCESS_KEY_ID']},{self.environment['AWS_SECRET_ACCESS_KEY']}"
        where = ["--addr", f"127.0.0.1:{self.port}", "--auth-key", keys, "--config", "/dev/null"]
        process = self._machines.start(BIN / "rclone", "serve", "s3", *where, self.folder.parent)
        self._machines.others.append(process)
        wait_for(self.port, process)
        return process


class Honest(Bucket):
    """The same behind a door that honours conditions on writes. ``away`` and ``back``: of the whole server."""

    def __init__(self, machines: Machines) -> None:
        super().__init__(machines)
        self.rclone, self.door_port = self.process, free_port()
        self.environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{self.door_port}"
        self.process = self.open_door()

    def open_door(self) -> subprocess.Popen[bytes]:
        where = [str(self.door_port), str(self.port), self.folder.parent]
        process = self._machines.start(sys.executable, "-m", "tests.cluster.conditional", *where)
        self._machines.others.append(process)
        wait_for(self.door_port, process)
        return process

    def away(self) -> None:
        for process in (self.process, self.rclone):
            process.kill()
            process.wait()

    def back(self) -> None:
        self.rclone, self.process = self.serve(), self.open_door()

    def fault(self, what: str) -> None:
        """From now on: see :mod:`tests.cluster.conditional`; "" for none."""
        (self.folder.parent.parent / "faults").write_text(what)


@pytest.fixture
def honest(machines: Machines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Honest:
    made = Honest(machines)
    for name, value in {**made.environment, "NPMDASK_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    return made


class FaultyBucket(Bucket):
    """One whose server errs on purpose, and writes down what it was asked (:mod:`tests.cluster.faulty`)."""

    def serve(self) -> subprocess.Popen[bytes]:
        process = self._machines.start(sys.executable, "-m", "tests.cluster.faulty", str(self.port), self.folder.parent)
        self._machines.others.append(process)
        wait_for(self.port, process)
        return process

    def faults(self, *faults: tuple[str, str, int]) -> None:
        """From now on: pattern of the path, fault, times for each object."""
        (self.folder.parent.parent / "faults").write_text(json.dumps(faults))

    def together(self, pattern: str, nbytes: int) -> None:
        """From now on no object whose path matches is sent whole until so many bytes are under way at once.

        Where they never come it goes on after a while, for the test to see that.
        """
        place = self.folder.parent.parent
        (place / "together.new").write_text(json.dumps([pattern, nbytes]))
        (place / "together.new").rename(place / "together")

    def seen(self) -> list[tuple[str, str | None, int]]:
        """Path and range of every body that was sent since the last call, and the bytes under way when it began."""
        record = self.folder.parent.parent / "seen"
        lines = record.read_text().splitlines() if record.exists() else []
        record.unlink(missing_ok=True)
        return [(path.removeprefix("/bucket/"), span, flying) for path, span, flying in map(json.loads, lines)]


@pytest.fixture
def faulty(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> FaultyBucket:
    made = FaultyBucket(machines)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def bucket(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    made = Bucket(machines)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made
