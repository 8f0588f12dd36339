"""Client, scheduler, workers and S3 server on hosts of their own: the same bits, cables that are pulled, islands.

Hosts are namespaces (:mod:`tests.hosts.network`). Only the client sees the folder of its run, and only the server
that of the data: what arrives elsewhere came through the network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import planted, same_bytes, write_zarr
from tests.hosts import network
from tests.hosts.network import Network

WHY_NOT = network.missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

BIN = Path(sys.executable).parent
SLOW, FAST = "20mbit", "1gbit"  # of the server: a pass takes three seconds while something happens to it
URL = "s3://bucket/x.zarr"
KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
# What is lost is noticed after 30 s unless this is said (at least 11); a test of what is noticed need not wait.
QUICK = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "6s", "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s"}


class Cluster:
    """A client, a scheduler, workers and an S3 server, which sends at ``rate``."""

    def __init__(self, net: Network, folder: Path, workers: int, rate: str = "", **timeouts: str) -> None:
        self.net, self.folder, self.log = net, folder, folder / "hosts.log"
        self.workers = [f"worker{number}" for number in range(1, workers + 1)]
        for host in ("client", "scheduler", "store", *self.workers):
            net.add(host)
        self.data = folder / "objects" / "bucket" / "x.zarr"
        x = planted(4000, 200, 1 / np.sqrt(np.arange(1, 61)))[0]
        write_zarr(self.data, x, (100, 200), compressors=None)
        at = net.addresses
        self.scheduler = f"tcp://{at['scheduler']}:8786"
        self.environment = {**KEYS, **timeouts, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        self.environment["AWS_ENDPOINT_URL"] = f"http://{at['store']}:9000"
        keys = ",".join(KEYS.values())
        self.started = {
            "store": self.start("store", BIN / "rclone", "serve", "s3", "--addr", f"{at['store']}:9000", "--auth-key",
                                keys, "--config", "/dev/null", folder / "objects"),
            "scheduler": self.start("scheduler", BIN / "dask", "scheduler", "--host", at["scheduler"], "--port", "8786",
                                    "--no-dashboard"),
        }  # fmt: skip
        for worker in self.workers:
            self.work(worker)
        if rate:
            net.rate("store", rate)

    def start(self, host: str, *command: str | Path) -> subprocess.Popen[str]:
        return self.net.start(host, *command, log=self.log, **self.environment)

    def work(self, worker: str, *more: str) -> None:
        """Start a worker; ``more`` instead of the address of its host."""
        command = [BIN / "dask", "worker", self.scheduler, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
        where = () if more else ("--host", self.net.addresses[worker])
        local = ("--local-directory", self.folder / worker, "--memory-limit", "0")
        self.started[worker] = self.start(worker, *command, *where, *more, *local)

    def wait_for(self, count: int) -> None:
        """Until the scheduler knows so many workers."""
        waiting = f"from distributed import Client; Client({self.scheduler!r}, timeout=200).wait_for_workers({count})"
        asking = self.start("client", sys.executable, "-c", waiting)
        assert asking.wait(timeout=300) == 0, self.log.read_text()[-3000:]

    def run(self, store: str) -> Run:
        """The run on the client's host, which is under way when this returns."""
        return Run(self.start("client", sys.executable, "-m", "tests.hosts.client", self.folder / store, URL,
                              self.scheduler), self.log)  # fmt: skip

    def local(self) -> Path:
        """The store of the same run without a cluster, from the disk of the server."""
        store = self.folder / "local"
        command = [sys.executable, "-m", "tests.hosts.client", store, self.data]
        subprocess.run([str(word) for word in command], check=True, cwd=network.ROOT, stdout=subprocess.DEVNULL)
        return store


class Run:
    """What a client says, line by line."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        assert process.stdout is not None
        self.process, self._lines, self._log = process, process.stdout, log
        self.said: list[str] = []

    def until(self, step: int, task: int) -> None:
        """Return in the middle of the pass after so many steps, when so many of its tasks are done."""
        while not (self.said.count("step") >= step and self.said[::-1].index("pass") >= task):
            line = self._lines.readline()
            assert line, (self.said[-3:], self._log.read_text()[-3000:])
            self.said.append(line.strip())

    def end(self) -> tuple[int, str]:
        """Exit code, and the last line."""
        self.said += self._lines.read().split("\n")[:-1]
        return self.process.wait(), self.said[-1]


@pytest.fixture
def net() -> Iterator[Network]:
    with Network() as made:
        yield made


def the_same(cluster: Cluster, store: str) -> None:
    same_bytes(cluster.local(), cluster.folder / store, parts=("steps", "result", "survey"))


def test_hosts_see_one_another_through_cables_only(net: Network, tmp_path: Path) -> None:
    """What all tests below stand on. Mutants: a cut that cuts nothing, hosts that share the loopback."""
    for host in ("one", "two", "three"):
        net.add(host)
    serving = ("-m", "http.server", "8000", "--directory", tmp_path)
    for where in (net.addresses["one"], "127.0.0.1"):
        net.start("one", sys.executable, *serving, "--bind", where, log=tmp_path / "log")

    def answers(host: str, where: str) -> bool:
        ask = f"import socket; socket.create_connection(({where!r}, 8000), 3)"
        return net.start(host, sys.executable, "-c", ask, log=tmp_path / "log").wait() == 0

    def comes_to_answer(host: str, where: str) -> bool:
        """A server takes a while to start, and so does a cable that is put back."""
        end = time.monotonic() + 120
        while not (there := answers(host, where)) and time.monotonic() < end:
            time.sleep(0.1)
        return there

    assert comes_to_answer("one", net.addresses["one"]) and comes_to_answer("one", "127.0.0.1")
    assert comes_to_answer("two", net.addresses["one"]) and not answers("two", "127.0.0.1")
    net.cut("one")
    assert not answers("two", net.addresses["one"])
    net.mend("one")
    assert comes_to_answer("two", net.addresses["one"])
    net.isolate("one", "two")
    assert not answers("two", net.addresses["one"]) and comes_to_answer("three", net.addresses["one"])
    net.end("one")
    assert not answers("three", net.addresses["one"])


def test_nothing_is_left_when_a_test_is_killed(tmp_path: Path) -> None:
    """Mutant: a network whose first process outlives us."""
    seconds = str(10**9 + os.getpid())  # no other run of the tests has a process that sleeps so long
    script = (
        "import time; from pathlib import Path; from tests.hosts.network import Network\n"
        "with Network() as net:\n"
        f"    net.add('lonely'); net.start('lonely', 'sleep', '{seconds}', log=Path({str(tmp_path / 'log')!r}))\n"
        "    print(net._first.pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=network.ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = int(process.stdout.readline())

    def sleeping() -> bool:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # of a process that has just ended
                if file.read_bytes() == f"sleep\0{seconds}\0".encode():
                    return True
        return False

    while not sleeping():
        time.sleep(0.05)
    process.kill()
    process.communicate()
    end = time.monotonic() + 120
    while time.monotonic() < end and (sleeping() or Path(f"/proc/{first}").exists()):
        time.sleep(0.1)
    assert not sleeping() and not Path(f"/proc/{first}").exists()
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert "lonely" not in names


@pytest.mark.parametrize("workers", [2, pytest.param(8, marks=pytest.mark.heavy)])
def test_hosts_of_a_network_give_the_bits_of_one_machine(net: Network, tmp_path: Path, workers: int) -> None:
    cluster = Cluster(net, tmp_path, workers)
    cluster.wait_for(workers)
    run = cluster.run("far")
    assert run.end() == (0, "converged")
    assert run.said[-2] == f"workers {workers}"
    the_same(cluster, "far")


@pytest.mark.heavy
def test_a_worker_whose_cable_is_pulled_for_a_moment_goes_on(net: Network, tmp_path: Path) -> None:
    cluster = Cluster(net, tmp_path, 8, rate=SLOW)
    cluster.wait_for(8)
    run = cluster.run("far")
    run.until(step=2, task=3)
    net.cut("worker1")
    time.sleep(2)
    net.mend("worker1")
    net.rate("store", FAST)
    assert run.end() == (0, "converged")
    assert run.said[-2] == "workers 8"
    the_same(cluster, "far")


@pytest.mark.heavy
@pytest.mark.parametrize("workers", [2, 8])
def test_a_worker_whose_cable_stays_out_costs_its_tasks(net: Network, tmp_path: Path, workers: int) -> None:
    """It is given up when it has been silent for the time-out of TCP, and the others do what it had."""
    cluster = Cluster(net, tmp_path, workers, rate=SLOW, **(QUICK if workers == 2 else {}))
    cluster.wait_for(workers)
    run = cluster.run("far")
    run.until(step=2, task=3)
    net.cut("worker1")
    net.rate("store", FAST)
    assert run.end() == (0, "converged")
    assert run.said[-2] == f"workers {workers - 1}"
    the_same(cluster, "far")


@pytest.mark.heavy
@pytest.mark.parametrize("timeouts", [QUICK, {}], ids=["quick", "default"])
def test_a_client_that_is_cut_off_ends_and_goes_on_later(
    net: Network, tmp_path: Path, timeouts: dict[str, str]
) -> None:
    cluster = Cluster(net, tmp_path, 2, rate=SLOW, **timeouts)
    cluster.wait_for(2)
    run = cluster.run("far")
    run.until(step=2, task=3)
    net.cut("client")
    code, said = run.end()
    assert code == 130
    assert said.startswith(f"LostError: the cluster at {cluster.scheduler} was lost during a pass"), said
    net.mend("client")
    net.rate("store", FAST)
    again = cluster.run("far")
    assert again.end() == (0, "converged")
    assert run.said.count("step") >= 2, "what was committed is not done again: the same steps below, and no more"
    the_same(cluster, "far")


@pytest.mark.heavy
def test_workers_that_do_not_reach_one_another_are_named(net: Network, tmp_path: Path) -> None:
    """They answer the scheduler, and would wait for each other's sums for ever."""
    cluster = Cluster(net, tmp_path, 3, **QUICK)
    cluster.wait_for(3)
    net.isolate("worker1", "worker3")
    code, said = cluster.run("far").end()
    assert code == 130
    at = {worker: re.escape(net.addresses[worker]) for worker in cluster.workers}
    one, other = at["worker1"], at["worker3"]
    ends = rf"(tcp://{one}:\d+ cannot reach worker tcp://{other}|tcp://{other}:\d+ cannot reach worker tcp://{one}):\d+"
    assert re.search(rf"^LostError: worker {ends} \(.+\), .* \(dask worker --host ADDRESS\)$", said), said


@pytest.mark.heavy
def test_a_worker_that_announces_an_address_of_nobody_is_said(net: Network, tmp_path: Path) -> None:
    """As that of a container, or of a second network card."""
    cluster = Cluster(net, tmp_path, 1, **QUICK)
    net.end("worker1")
    cluster.work("worker1", "--listen-address", "tcp://0.0.0.0:8788", "--contact-address", "tcp://172.17.0.2:8788")
    cluster.wait_for(1)
    code, said = cluster.run("far").end()
    assert code == 130
    assert said.startswith(f"LostError: the scheduler at {cluster.scheduler} knows workers that it cannot reach"), said
    assert "172.17.0.2" in said and said.endswith("(dask worker --host ADDRESS)")


def test_a_scheduler_out_of_reach_is_said(net: Network, tmp_path: Path) -> None:
    cluster = Cluster(net, tmp_path, 0, **QUICK)
    net.isolate("client", "scheduler")
    code, said = cluster.run("far").end()
    assert code == 130
    assert said.startswith(f"LostError: no Dask scheduler answers at {cluster.scheduler}"), said


@pytest.mark.heavy
def test_data_that_a_worker_cannot_fetch_are_said(net: Network, tmp_path: Path) -> None:
    """The client reaches the server, and the worker does not."""
    cluster = Cluster(net, tmp_path, 1, **QUICK)
    cluster.wait_for(1)
    net.isolate("worker1", "store")
    code, said = cluster.run("far").end()
    assert code == 130
    assert said.startswith("LostError: ") and URL in said, said
