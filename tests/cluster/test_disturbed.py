"""A pass on a cluster whose workers die, hang, are slow, come and go, or that is cut off: same bits, no stuck run."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster

import npmdask.cluster.distributed_pass as distributed_pass
import npmdask.cluster.workers as workers_module
import npmdask.core.operators._protocol as protocol
from infra.proxy import Proxy
from npmdask.cluster.workers import Cluster
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import PassCheckpoint, TreeNode, runs_of
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Gram, Partial
from npmdask.core.storage.source import open_source
from npmdask.errors import LostError
from tests.cluster.test_cluster import wait_for_workers
from tests.conftest import planted, write_zarr
from tests.core.operators.test_operators import ignore
from tests.machines import Machines

# Heavy: two minutes in all, on a busy machine more.
pytestmark = [pytest.mark.slow, pytest.mark.heavy]

RUNS = 32
GATE = 16  # runs from here on wait until the test lets them go on
AGAIN = 5.0  # seconds
STUCK = 300.0  # seconds after which a pass counts as stuck; an undisturbed one takes two


@dataclass(frozen=True, kw_only=True)
class Gated(Gram):
    """Writes down every run that is computed; waits at the gate, and for ever on a worker that is slow.

    What has been committed takes ``AGAIN`` seconds, as a task does that reads as much as tasks may: when a worker with
    a join is gone, the scheduler begins to compute what that was made of, until the pass tells it not to.
    """

    folder: str

    def partial(self, slabs: range, block: Block) -> Partial:
        with open(f"{self.folder}/{os.getpid()}", "a") as file:
            file.write(f"{slabs.start}\n")
        if os.path.exists(f"{self.folder}/../committed-{slabs.start}"):
            time.sleep(AGAIN)
        while slabs.start >= GATE and not os.path.exists(f"{self.folder}/../open"):
            time.sleep(0.02)
        while "SLOW_WORKER" in os.environ and not os.path.exists(f"{self.folder}/../over"):
            time.sleep(0.02)
        return super().partial(slabs, block)


class Pass:
    """A pass on workers that is disturbed when it has reached the gate."""

    def __init__(self, folder: Path) -> None:
        (folder / "counts").mkdir()
        self.folder = folder
        rows = planted(100 * RUNS, 300, 1 / np.sqrt(np.arange(1, 61)))[0]
        source = open_source(write_zarr(folder / "x.zarr", rows, (100, 300), compressors=None))
        self.path = source.path
        self.operator = Gated(reader=source.reader, folder=str(folder / "counts"))
        assert [len(run) for run in runs_of(self.operator)] == [1] * RUNS
        self.block = np.linalg.qr(np.random.default_rng(0).standard_normal((300, 6)))[0]
        self.expected, self.record = Threads(1).run_pass(Gram(reader=source.reader), self.block, ignore)
        self.kept: dict[TreeNode, Partial] = {}
        self.read = 0

    def run(self, executor: Cluster, disturb: Callable[[], None], known: Any = None) -> None:
        """Make the pass, and disturb it at the gate.

        Raises
        ------
        AssertionError
            It is stuck, or there are other bits than without a cluster.
        """
        raised: list[BaseException] = []
        keeper = PassCheckpoint(known, self.kept.update, seconds=0.0)
        self.read = keeper.record().bytes_read

        def count(record: Any) -> None:
            self.read += record.bytes_read

        def work() -> None:
            try:
                product, record = executor.run_pass(self.operator, self.block, count, keeper)
                assert (product == self.expected).all()
                assert (record, self.read) == (self.record, self.record.bytes_read)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.wait(lambda: bool(raised) or len([run for run in self.counted() if run >= GATE]) >= 2)
        if not raised:
            self.wait(lambda: bool(raised) or covers(keeper.known, GATE // 2))
            self.committed, self.before = {run for node in keeper.known for run in node.runs(RUNS)}, self.counted()
            for run in self.committed:
                (self.folder / f"committed-{run}").touch()
            disturb()
            (self.folder / "open").touch()
        thread.join(STUCK)
        assert not thread.is_alive(), f"stuck; {sorted(self.counted().items())}"
        self.keeper = keeper
        if raised:
            raise raised[0]

    def wait(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + STUCK
        while not true():
            assert time.monotonic() < end
            time.sleep(0.02)

    def counted(self) -> Counter[int]:
        """How often each run was computed."""
        files = (self.folder / "counts").iterdir()
        return Counter(int(line) for file in files for line in file.read_text().splitlines())

    def by(self, pid: int) -> int:
        file = self.folder / "counts" / str(pid)
        return len(file.read_text().splitlines()) if file.exists() else 0

    def again(self, begun: int = 0) -> Counter[int]:
        """How often runs were computed once more; of those that had been committed, at most ``begun`` were."""
        now = self.counted()
        assert sum(now[run] - self.before[run] for run in self.committed) <= begun, "what was committed was computed"
        return Counter({run: times - 1 for run, times in now.items() if times > 1})


def covers(parts: dict[TreeNode, Partial], count: int) -> bool:
    return len({run for node in parts for run in node.runs(RUNS)}) >= count


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pass]:
    for name, value in {"RUN_BYTES": 1, "COLUMN_BYTES": 1}.items():
        monkeypatch.setattr(protocol, name, value)
    monkeypatch.setattr("npmdask.core.execution.reduction.FEW_RUNS", 4 * RUNS)
    for name, value in {"TASKS_PER_SLOT": RUNS, "LOOK": 0.3, "SILENT": 60.0, "LEAST": 0.5}.items():
        monkeypatch.setattr(distributed_pass, name, value)
    yield Pass(tmp_path)
    (tmp_path / "over").touch()


def cluster_of(machines: Machines, made: Pass, workers: int) -> Cluster:
    machines.scheduler()
    for _ in range(workers):
        machines.worker()
    return wait_for_workers(machines, made.path, workers)


def test_half_of_the_workers_killed(made: Pass, machines: Machines) -> None:
    """Their sums are gone; of those, what was committed is sent again. Mutant: it is computed again."""
    executor = cluster_of(machines, made, 4)

    def kill_half() -> None:
        for process in machines.workers[:2]:
            process.kill()
        machines.worker()  # one of them is replaced

    made.run(executor, kill_half)
    executor.close()
    assert sum(made.again(begun=3).values()) <= RUNS - GATE + 3


def test_workers_come_and_go_in_order(made: Pass) -> None:
    """Down to one, which takes over what the others had, and up again; each may begin something for one that leaves."""
    with LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1") as cluster:
        executor = Cluster(workers_module.SchedulerAddress(cluster.scheduler_address), made.path)
        pids: list[int] = []

        def scale() -> None:
            cluster.scale(1)
            made.wait(lambda: len(cluster.scheduler.workers) == 1)
            cluster.scale(3)
            made.wait(lambda: len(cluster.scheduler.workers) == 3)
            pids.extend(executor._client.run(os.getpid).values())

        made.run(executor, scale)
        executor.close()
    assert sum(made.by(pid) > 0 for pid in pids) >= 2, "those that came take part"
    made.again(begun=2 * 3)


def test_a_worker_that_hangs(made: Pass, machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers nothing, and its connections stay open. Mutants: none is ever silent; its sums count as there."""
    monkeypatch.setattr(distributed_pass, "SILENT", 10.0)
    executor = cluster_of(machines, made, 3)
    made.run(executor, lambda: machines.workers[0].send_signal(signal.SIGSTOP))
    made.again()
    monkeypatch.setattr(workers_module, "PEAK_SECONDS", 20.0)
    assert len(executor.peaks()) == 2
    executor.close()
    monkeypatch.setattr(workers_module, "ANSWER", 20.0)
    with pytest.raises(LostError, match=r"the workers tcp://127.0.0.1:\d+ have not answered for 20 s: end them"):
        Cluster(machines.address, made.path)


def test_a_slow_worker(made: Pass, machines: Machines) -> None:
    """It never comes to an end, and shows that it lives; the others compute its tasks, too. Mutant: no copies."""
    machines.scheduler()
    machines.worker()
    machines.worker()
    machines.worker(SLOW_WORKER="1")
    executor = wait_for_workers(machines, made.path, 3)
    made.run(executor, lambda: None)
    executor.close()
    assert 1 <= made.by(machines.workers[2].pid) <= 2
    assert set(made.again().values()) == {1}


def test_a_connection_that_comes_back(made: Pass, machines: Machines) -> None:
    """Mutant: what was committed is not taken along."""
    cluster_of(machines, made, 2).close()
    proxy = Proxy(machines.port)
    executor = Cluster(proxy.address, made.path)

    def cut() -> None:
        proxy.cut()
        threading.Timer(1.0, proxy.join).start()

    made.run(executor, cut)
    made.again()
    executor.close()
    proxy.close()


@pytest.mark.parametrize("how", ["hold", "cut"])
def test_a_connection_that_does_not_come_back(
    made: Pass, machines: Machines, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The run ends with a sentence, and goes on later. Mutant: an answer is waited for without end."""
    cluster_of(machines, made, 2).close()
    proxy = Proxy(machines.port)
    executor = Cluster(proxy.address, made.path)
    with monkeypatch.context() as patch:

        def part() -> None:
            patch.setattr(distributed_pass, "ANSWER", 3.0)
            patch.setattr(workers_module, "ANSWER", 3.0)
            patch.setattr(workers_module, "RECONNECT", 3.0)
            patch.setattr(workers_module, "CONNECT", 3.0)
            getattr(proxy, how)()

        with pytest.raises(LostError, match=r"was lost during a pass .* everything committed is kept: start it again"):
            made.run(executor, part)
    executor.close()
    proxy.join()
    again = Cluster(proxy.address, made.path)
    made.run(again, lambda: None, made.keeper.known)
    made.again()
    again.close()
    proxy.close()


def test_no_workers_any_more(made: Pass, machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = cluster_of(machines, made, 2)

    def kill_all() -> None:
        for process in machines.workers:
            process.kill()

    with monkeypatch.context() as patch:
        patch.setattr(distributed_pass, "ABSENT", 3.0)
        with pytest.raises(LostError, match=r"there have been no workers for 3 s; everything committed is kept"):
            made.run(executor, kill_all)
    machines.worker()
    made.run(executor, lambda: None, made.keeper.known)
    made.again()
    executor.close()
