"""Blocks of finished runs are cleared away."""

from __future__ import annotations

from pathlib import Path

import pytest

import npmdask
from npmdask.cli.main import main
from tests.core.runs import test_disk_blocks as blocks
from tests.core.runs.test_disk_blocks import ON_DISK

matrix, stored, small_tiles = blocks.matrix, blocks.stored, blocks.small_tiles  # fixtures


@pytest.mark.slow
def test_blocks_of_finished_runs_are_cleared_away(stored: str, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    npmdask.top_k(stored, 2, kind="sparse", store=run, max_steps=1, algorithm="power", options=ON_DISK, tol=0.9)
    assert (run / "blocks").is_dir() and (run / "blocks").stat().st_mode & 0o777 == 0o700
    assert main(["gc", str(tmp_path / "runs"), "--older-than", "0s"]) == 0
    assert not (run / "blocks").exists() and npmdask.resume(run).steps == 1
