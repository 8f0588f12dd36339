"""A running ``npmdask serve`` in a shop, and what is killed of it."""

import base64
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil

from npmdask.prefect.programs import AUTH, read_auth_string
from npmdask.prefect.server import ask, free_port
from tests.prefect.conftest import Shop, alive, lives, wait_until


class Served:
    """``npmdask serve schedules.toml`` in the folder of a shop."""

    def __init__(self, shop: Shop, schedules: str) -> None:
        self.shop, self.port, self.metrics = shop, free_port(), free_port()
        shop.environment["NPMDASK_LOG"] = str(shop.folder / "log")
        (shop.folder / "schedules.toml").write_text(schedules)
        self.process = self.start()

    def start(self) -> "subprocess.Popen[str]":
        ports = ("--port", str(self.port), "--metrics-port", str(self.metrics))
        return self.shop.start("-m", "npmdask.prefect.serve", "schedules.toml", *ports)

    def runs(self) -> list[dict[str, Any]]:
        """All flow runs that were taken by a worker, the first one first."""
        query = {"sort": "EXPECTED_START_TIME_ASC"}
        try:
            auth = read_auth_string(self.shop.home / AUTH)
            found = ask(f"http://127.0.0.1:{self.port}/api", "/flow_runs/filter", query, auth=auth)
        except OSError:  # it does not answer, or has not begun
            return []
        return [run for run in found if run["start_time"] is not None]

    def states(self) -> list[str]:
        return [f"{run['state_name']}: {run['state']['message'] or ''}" for run in self.runs()]

    def wait(self, true: Callable[[], bool], seconds: float, what: str, pause: float = 0.02) -> None:
        def said() -> str:
            log = self.shop.folder / "runs" / ".serve" / "worker.log"
            return f"{self.states()} {self.shop.err[-2000:]} {log.read_text()[-2000:] if log.exists() else ''}"

        wait_until(true, seconds, what, said, pause)

    def ended(self, text: str) -> int:
        """Runs whose last state says so."""
        return sum(text in state for state in self.states())

    def metric(self, name: str) -> float:
        """Of the only run."""
        with urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=120) as answer:
            lines = answer.read().decode().splitlines()
        (line,) = [line for line in lines if line.startswith(f"npmdask_run_{name}")]
        return float(line.split()[-1])

    def report(self, run: str) -> str:
        """What is at the address that the artifact of the report links."""
        (text,) = self.shop.ask(f"select data from artifact where key = '{run}' order by created desc limit 1")
        (link,) = set(re.findall(r"\]\(<(http://[^>]*\.html)>\)", text[0]))  # beside it the page of all runs is linked
        with suppress(HTTPError):
            urlopen(link, timeout=120)
            raise AssertionError("anyone who asks gets the page")
        login = base64.b64encode(read_auth_string(self.shop.home / AUTH).encode()).decode()
        with urlopen(Request(link, headers={"Authorization": f"Basic {login}"}), timeout=120) as answer:
            return str(answer.read().decode())

    def stop(self) -> None:
        """As a person does; nothing is left."""
        children = self.shop.below(self.process)
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(240) == 0, self.shop.err
        wait_until(lambda: not alive(children), 120, "no process left")

    def service(self, name: str) -> int:
        """The process of a service; of one that was just killed the next."""
        wait_until(lambda: self._lives(name), 240, f"{name} is there again")
        return self._pid(name)

    def _lives(self, name: str) -> bool:
        try:
            return lives(psutil.Process(self._pid(name)))
        except psutil.NoSuchProcess:
            return False

    def _pid(self, name: str) -> int:
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
        self.process.wait(120)
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in everything[1:]), 120, "all of it is gone")
        self.process = self.start()


def holder(store: Path) -> int:
    """The process that has a run."""
    return int((store / "lock").read_text().split()[1])
