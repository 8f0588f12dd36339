"""Real processes, each with a Prefect home of its own on 127.0.0.1, all of them ended by pid."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import zarr

from npmdask.prefect.server import answers, free_port

ROOT = Path(__file__).resolve().parents[2]


class Shop:
    """A folder with data, a configuration, and whatever is started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}  # more of it, for everything that is started
        self.home = folder / "prefect"  # of the server that it uses
        self.door: Door | None = None  # a process that runs things, in place of one for each
        self.opened = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")  # a server may have heard of others before
        self.started: list[subprocess.Popen[str]] = []
        self.seen: set[psutil.Process] = set()

    def config(self, name: str, *, tol: float = 1e-8, max_steps: int = 200, rank: float = 5) -> Path:
        file = self.folder / f"{name}.toml"
        file.write_text(
            f'[source]\npath = "a.zarr"\nkind = "samples"\n[algorithm]\ntarget_rank = {rank}\n'
            f"max_steps = {max_steps}\n[stop]\ntol = {tol}\n"
        )
        return file

    def start(self, *arguments: str | Path, cwd: Path | None = None) -> "subprocess.Popen[str]":
        env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        env |= {"PREFECT_HOME": str(self.folder / "prefect"), "PYTHONWARNINGS": "default"} | self.environment
        with open(self.folder / "out", "w") as out, open(self.folder / "err", "w") as err:
            process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                env=env,
                cwd=cwd or self.folder,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def run(self, *arguments: str | Path) -> int:
        if self.door is not None:
            return self.door(self, *arguments)
        return self.start(*arguments).wait(300)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of the server's database; {since}: a condition for what it has heard of since the shop was opened."""
        with closing(sqlite3.connect(f"file:{self.home / 'prefect.db'}?mode=ro", uri=True)) as base:
            return list(base.execute(query.format(since=f"created >= '{self.opened}'")))

    def artifacts(self) -> dict[str, str]:
        """What the newest one of each key holds."""
        return {str(key): str(data) for key, data in self.ask("select key, data from artifact where {since}")}

    def states(self) -> Counter[str]:
        """How many flow runs are in each type of state."""
        return Counter(state for (state,) in self.ask("select state_type from flow_run where {since}"))

    def tasks(self, count: int) -> list[str]:
        """Names of tasks in their order, once ``count`` have ended: the server writes them down in the background."""
        query = "select name, state_type from task_run where {since} order by start_time"

        def ended() -> bool:
            states = [state for _, state in self.ask(query)]
            return len(states) >= count and set(states) <= {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}

        wait_until(ended, 120, f"{count} tasks have ended", lambda: str(self.ask(query)))
        return [name for name, _ in self.ask(query)]

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text(errors="replace")

    @property
    def tracebacks(self) -> list[str]:
        """Those on stderr; not of a process of a run that was being started, by spawning, when its schedule ended."""
        found = self.err.split("Traceback (most recent call last):\n")[1:]
        return [text for text in found if "multiprocessing/spawn.py" not in "\n".join(text.splitlines()[:3])]

    def below(self, process: "subprocess.Popen[str]") -> list[psutil.Process]:
        """Everything that the process started, remembered for the clean-up."""
        found = psutil.Process(process.pid).children(recursive=True)
        self.seen |= set(found)
        return found

    def clean(self) -> None:
        for process in self.started:
            if process.poll() is None:
                self.below(process)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for child in self.seen:
            if child.is_running():  # compares the start time too: never somebody else's process
                child.kill()


def wait_until(
    true: Callable[[], bool], seconds: float, what: str, said: Callable[[], str] = str, pause: float = 0.02
) -> None:
    """``said`` : what to show where it does not come about, as it is then. ``pause`` : seconds between two looks."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}: {said()}"
        time.sleep(pause)


def lives(process: psutil.Process) -> bool:
    """Whether it has not ended; it may do so while it is asked."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if lives(process)]


def command_of(process: psutil.Process) -> str:
    """Its command line; "" of one that has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie, too
        return ""


def committed(store: Path) -> dict[str, bytes]:
    """Every byte that is a function of data and parameters: steps and result."""
    parts = [store / "steps", store / "result"]
    return {str(f.relative_to(store)): f.read_bytes() for part in parts for f in sorted(part.rglob("*")) if f.is_file()}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4000, 300)) * np.arange(1, 301) ** -0.5
    zarr.create_array(folder / "a.zarr", data=values, chunks=(500, 300))
    return folder / "a.zarr"


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Prefect home with its database made: that takes seconds, copying it does not."""
    first = Shop(tmp_path_factory.mktemp("home"))
    assert first.run("-c", "from npmdask.prefect.server import local_server\nwith local_server(): pass") == 0, first.err
    return first.folder / "prefect"


@pytest.fixture
def shop(tmp_path: Path, data: Path, home: Path) -> Iterator[Shop]:
    (tmp_path / "a.zarr").symlink_to(data)
    shutil.copytree(home, tmp_path / "prefect")
    made = Shop(tmp_path)
    yield made
    made.clean()


@dataclass(frozen=True)
class Running:
    """A Prefect server that many tests of this process use: each start of one costs seconds."""

    url: str
    home: Path


def start_server(shop: Shop) -> str:
    """Start a Prefect server in a shop; the URL of its API. A port that is free may be another's a moment later."""
    for _ in range(5):
        port = free_port()
        url = f"http://127.0.0.1:{port}/api"
        process = shop.start("-m", "npmdask.prefect.server", str(port), str(os.getpid()))

        def is_up() -> bool:
            if process.poll() is not None:  # noqa: B023
                return True
            with suppress(psutil.NoSuchProcess):  # it has ended between the two
                opened = psutil.Process(process.pid).net_connections("inet")  # noqa: B023
                return any(one.laddr.port == port for one in opened) and answers(url)  # noqa: B023
            return False

        wait_until(is_up, 240, "a server", lambda: shop.err)
        if process.poll() is None:
            return url
    raise AssertionError(shop.err)


@pytest.fixture(scope="package")  # later tests count the memory of all processes below theirs
def running(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(home, folder / "prefect")
    one = Shop(folder)
    try:
        yield Running(start_server(one), folder / "prefect")
    finally:
        one.clean()


class Door:
    """A process of :mod:`tests.prefect.door`."""

    def __init__(self, running: Running) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        env |= {"PREFECT_HOME": str(running.home), "PREFECT_API_URL": running.url, "PYTHONWARNINGS": "default"}
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "tests.prefect.door"]
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, text=True)

    def __call__(self, shop: Shop, *arguments: str | Path) -> int:
        asked = {"folder": str(shop.folder), "arguments": list(map(str, arguments)), "environment": shop.environment}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        with self.process:  # closes the pipes, and waits
            self.process.terminate()


@pytest.fixture(scope="package")
def door(running: Running) -> Iterator[Door]:
    made = Door(running)
    yield made
    made.close()


@pytest.fixture
def client(shop: Shop, running: Running, door: Door) -> Shop:
    """A shop whose flows run in a process, and tell a server, that are there already."""
    shop.home, shop.door = running.home, door
    return shop
