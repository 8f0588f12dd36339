"""Runs in worker processes."""

from __future__ import annotations

from pathlib import Path

import pytest

import npmdask
from tests.conftest import same_bytes
from tests.core.runs import test_loop as loop

source = loop.source  # a fixture


@pytest.mark.slow
def test_worker_processes_change_no_bit(tmp_path: Path, source: Path) -> None:
    npmdask.top_k(source, 5, kind="matrix", store=tmp_path / "threads", threads=2)
    npmdask.top_k(source, 5, kind="matrix", store=tmp_path / "workers", workers=2, threads=1)
    same_bytes(tmp_path / "threads", tmp_path / "workers")
