"""Operators of the core in worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.cluster.workers import Processes
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import runs_of
from npmdask.core.operators import Gram, GramMatrix, View
from npmdask.core.storage.source import open_source
from tests.conftest import write_zarr
from tests.core.operators.test_operators import ignore


@pytest.mark.slow
def test_a_gram_matrix_has_the_same_bits_in_worker_processes(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((60_000, 80))
    reader: Any = open_source(write_zarr(tmp_path / "x", x, (1000, 80))).reader
    operator, block = GramMatrix(reader=reader, view=View(to_centre=True)), np.eye(80)[:, :3]
    here = Threads(2).run_pass(operator, block, ignore)[0]
    with_workers = Processes(2, 1)
    try:
        there = with_workers.run_pass(operator, block, ignore)[0]
    finally:
        with_workers.close()
    assert here.tobytes() == there.tobytes()


@pytest.mark.slow
def test_the_same_bits_in_worker_processes(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((150_000, 100))
    block = np.random.default_rng(1).standard_normal((100, 7))
    operator = Gram(reader=open_source(write_zarr(tmp_path / "x.zarr", x, (5000, 100), compressors=None)).reader)
    assert len(runs_of(operator)) > 2
    one, record = Threads(1).run_pass(operator, block, ignore)
    told: list[int] = []
    executor = Processes(2, 1)
    try:
        two, other = executor.run_pass(operator, block, lambda r: told.append(r.bytes_read))
    finally:
        executor.close()
    assert (one == two).all()
    assert record == other
    assert sum(told) == x.nbytes
