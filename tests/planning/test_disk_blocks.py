"""A plan says where blocks lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from npmdask.cli.main import main
from tests.core.runs import test_disk_blocks as blocks

matrix, stored, small_tiles = blocks.matrix, blocks.stored, blocks.small_tiles  # fixtures


@pytest.mark.slow
def test_plan_says_where_blocks_lie(stored: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text(
        f'[source]\npath = "{stored}"\nkind = "sparse"\n[algorithm]\nname = "power"\ntarget_rank = 4\n'
        f'options = {{ blocks = "disk" }}\n[run]\nstore = "{tmp_path / "run"}"\nmemory = "2GiB"\nthreads = 1\n'
    )
    assert main(["plan", str(tmp_path / "run.toml")]) == 0
    said = capsys.readouterr().out
    assert "blocks    on disk: 3 of" in said and "a step reads the data 2 times" in said
