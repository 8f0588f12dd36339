"""Worker processes that are killed before they work."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import zarr

from npmdask.cli.main import main
from npmdask.cluster.distributed_pass import DistributedPass
from npmdask.cluster.workers import Processes
from npmdask.core.execution.executor import Threads, single_threaded_blas
from npmdask.core.execution.reduction import (
    PassCheckpoint,
    TreeNode,
    compute_node,
    inside,
    runs_of,
)
from npmdask.core.operators import Gram, Partial
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import open_source
from npmdask.errors import LostError
from tests.conftest import same_bytes, write_zarr
from tests.core.execution.test_reduction import total
from tests.core.operators.test_operators import ignore

LEFT = ("__DASK_PARENT_PID", "PYTHONHASHSEED", "MALLOC_TRIM_THRESHOLD_")  # what distributed sets for workers, here too


def kill_the_first(over: threading.Event, killed: list[int]) -> None:
    """Kill the first process that this one starts for a worker, by its id, as the kernel does without memory."""
    me = psutil.Process()
    before = {child.pid for child in me.children()}
    while not over.is_set() and not killed:
        for child in me.children():
            if child.pid not in before and any("spawn_main" in word for word in child.cmdline()):
                child.kill()
                killed.append(child.pid)
                return
        over.wait(0.001)


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_zarr(tmp_path / "x.zarr", np.random.default_rng(0).standard_normal((400, 12)), (100, 12))
    command = ["run", "x.zarr", "-k", "2", "--set", "run.threads=1", "--quiet", "--set"]
    environment, over, killed = [os.environ.get(name) for name in LEFT], threading.Event(), list[int]()
    loops = {thread for thread in threading.enumerate() if thread.name == "IO loop"}  # of tests before
    killer = threading.Thread(target=kill_the_first, args=(over, killed))
    killer.start()
    try:
        assert main([*command, "run.workers=2"]) == LostError.exit_code
    finally:
        over.set()
        killer.join()
    said = capsys.readouterr().err
    assert killed and said.startswith("npmdask: the 2 worker processes could not be started (Nanny failed to start")
    assert said.endswith("run the same command again; everything committed is kept\n") and said.count("\n") == 1
    assert environment == [os.environ.get(name) for name in LEFT]
    assert loops >= {thread for thread in threading.enumerate() if thread.name == "IO loop"}
    assert main([*command, "run.workers=2"]) == 0
    assert main([*command, "run.workers=0", "--store", "alone"]) == 0
    same_bytes(tmp_path / "runs" / "x", tmp_path / "alone")


@pytest.mark.parametrize("slots", [1, 8, 256, 100_000])
@pytest.mark.parametrize("terabytes", [0.001, 1, 100, 10_000])
def test_the_tasks_of_a_pass_are_bounded_whatever_the_size_of_the_data(
    terabytes: float, slots: int, tmp_path: Path
) -> None:
    """An array of chunks of 128 MB, none of which is there. Mutants: no MOST_TASKS; no list of at most 4096 runs."""
    shape = (int(terabytes * 10**12) // 80_000, 10_000)
    zarr.create_array(tmp_path / "x.zarr", shape=shape, chunks=(1600, 10_000), dtype="f8")
    operator = Gram(reader=open_source(tmp_path / "x.zarr", "samples").reader)
    made = DistributedPass(None, operator, np.eye(1), runs_of(operator), PassCheckpoint(), slots)
    assert len(made.tasks) <= max(1024, min(4 * slots, 4096))
    assert made.joins <= len(made.tasks) / 3 + 2


@pytest.mark.slow
def test_one_two_and_four_worker_processes_give_the_same_bits_and_go_on_from_known_parts(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((400_000, 100))
    block = np.random.default_rng(1).standard_normal((100, 7))
    operator = Gram(reader=open_source(write_zarr(tmp_path / "x.zarr", x, (5000, 100), compressors=None)).reader)
    runs = runs_of(operator)
    assert len(runs) >= 8
    one, record = Threads(1).run_pass(operator, block, ignore)
    with single_threaded_blas():
        known = {node: compute_node(operator, runs, node, block) for node in (TreeNode(1, 1), TreeNode(0, 6))}
    before, commits = dict(os.environ), 0
    for workers in (1, 2, 4):
        executor = Processes(workers, 1)
        try:
            kept: list[dict[TreeNode, Partial]] = []
            keeper = PassCheckpoint(known, kept.append, seconds=0)
            told: list[ReadStats] = []
            product, other = executor.run_pass(operator, block, told.append, keeper)
        finally:
            executor.close()
        assert (product == one).all()
        assert other == record
        assert total(told) == record.bytes_read - keeper.record().bytes_read
        commits += len(kept)
        for parts in kept:  # none has to be whole: the pass does not wait for a commit
            runs_kept = [run for node in parts for run in node.runs(len(runs))]
            assert len(set(runs_kept)) == len(runs_kept)
            nbytes = x.nbytes * sum(len(runs[run]) for run in runs_kept) // operator.units
            assert keeper.record().bytes_read < PassCheckpoint(parts).record().bytes_read == nbytes
        assert all(not any(a != b and inside(a, b) for a in parts for b in parts) for parts in kept)
        lost = [node for parts in kept for node in known if not any(inside(node, other) for other in parts)]
        assert not lost, "what was known is in every commit, also before it reaches a worker"
    assert commits
    assert dict(os.environ) == before, "what workers are told is not left to us"
