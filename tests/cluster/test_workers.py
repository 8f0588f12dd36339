"""Worker processes that are killed before they work."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from npmdask.cli.main import main
from npmdask.errors import LostError
from tests.conftest import same_bytes, write_zarr

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
