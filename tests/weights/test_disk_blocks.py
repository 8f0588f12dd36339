"""Blocks on disk, where rows or columns have weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.core.runs import test_disk_blocks as blocks
from tests.core.runs.test_disk_blocks import COLUMNS, ROWS, answers_are_the_same, ranges_of

matrix, small_tiles = blocks.matrix, blocks.small_tiles  # fixtures


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "sparse", "center": True, "row_weights": np.linspace(0, 2, ROWS)},
        {"kind": "sparse", "column_weights": np.linspace(0, 3, COLUMNS)},
    ],
    ids=["weighted rows", "weighted columns"],
)
def test_answer_is_that_of_blocks_in_memory(
    matrix: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    ranges_of(monkeypatch, 7)
    answers_are_the_same(matrix, tmp_path / "run", asked)
