"""S3 servers as processes on loopback, honest and not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machines import BIN, Machines, free_port, machines, wait_for

__all__ = ["machines"]  # a fixture


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
        process = self._machines.start(sys.executable, "-m", "tests.remote.conditional", *where)
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
        """From now on: see :mod:`tests.remote.conditional`; "" for none."""
        (self.folder.parent.parent / "faults").write_text(what)


@pytest.fixture
def honest(machines: Machines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Honest:
    made = Honest(machines)
    for name, value in {**made.environment, "NPMDASK_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    return made


class FaultyBucket(Bucket):
    """One whose server errs on purpose, and writes down what it was asked (:mod:`tests.remote.faulty`)."""

    def serve(self) -> subprocess.Popen[bytes]:
        process = self._machines.start(sys.executable, "-m", "tests.remote.faulty", str(self.port), self.folder.parent)
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
