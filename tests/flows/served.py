"""A running ``npmdask serve`` in a shop, and what is killed of it."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from flows.serve import runs_of
from flows.server import free_port
from tests.flows.conftest import Shop, alive, wait_until


class Served:
    """``npmdask serve schedules.toml`` in the folder of a shop."""

    def __init__(self, shop: Shop, schedules: str) -> None:
        self.shop, self.port = shop, free_port()
        (shop.folder / "schedules.toml").write_text(schedules)
        self.process = self.start()

    def start(self) -> "subprocess.Popen[str]":
        return self.shop.start("-m", "flows.serve", "schedules.toml", "--port", str(self.port))

    def runs(self) -> list[dict[str, Any]]:
        """All flow runs that were taken by a worker, the first one first."""
        found = runs_of(self.port, {"sort": "EXPECTED_START_TIME_ASC"})
        return [run for run in found if run["start_time"] is not None]

    def states(self) -> list[str]:
        return [f"{run['state_name']}: {run['state']['message'] or ''}" for run in self.runs()]

    def wait(self, true: Callable[[], bool], seconds: float, what: str) -> None:
        def said() -> str:
            log = self.shop.folder / "runs" / ".serve" / "worker.log"
            return f"{self.states()} {self.shop.err[-2000:]} {log.read_text()[-2000:] if log.exists() else ''}"

        wait_until(true, seconds, what, said)

    def ended(self, text: str) -> int:
        """Runs whose last state says so."""
        return sum(text in state for state in self.states())

    def stop(self) -> None:
        """As a person does; nothing is left."""
        children = self.shop.below(self.process)
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.shop.err
        wait_until(lambda: not alive(children), 10, "no process left")

    def service(self, name: str) -> int:
        state = json.loads((self.shop.folder / "runs" / ".serve" / "services.json").read_text())
        return int(state["services"][name]["pid"])

    # Who is killed.

    def flow(self, store: Path) -> None:
        os.kill(holder(store), signal.SIGKILL)

    def hang(self, store: Path) -> None:
        """The process of the run stops without a word; it is not gone."""
        os.kill(holder(store), signal.SIGSTOP)

    def server(self, store: Path) -> None:
        os.kill(self.service("prefect-server"), signal.SIGKILL)

    def worker(self, store: Path) -> None:
        os.kill(self.service("worker"), signal.SIGKILL)

    def keeper(self, store: Path) -> None:
        os.kill(self.service("keeper"), signal.SIGKILL)

    def machine(self, store: Path) -> None:
        """The flow and its worker at the same time: nobody is left who could say that it crashed."""
        process = holder(store)
        os.kill(self.service("worker"), signal.SIGSTOP)
        os.kill(process, signal.SIGKILL)
        self.worker(store)

    def power(self, store: Path) -> None:
        """Everything; and somebody starts it again."""
        everything = [self.process.pid, *(child.pid for child in self.shop.below(self.process))]
        for pid in everything:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in everything[1:]), 10, "all of it is gone")
        self.process = self.start()


def holder(store: Path) -> int:
    """The process that has a run."""
    return int((store / "lock").read_text().split()[1])
