"""Streams in stores that have one already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import npmdask
from npmdask.errors import RefusedError
from tests.core.runs import test_unbegun as runs
from tests.core.runs.test_unbegun import COLUMNS, ROWS

folder = runs.folder  # a fixture


@pytest.mark.slow
def test_a_stream_that_was_refused_is_resumed_with_more_memory_or_bound_again(folder: Path) -> None:
    asked: dict[str, Any] = {"memory": "16MiB", "store": "s"}
    with pytest.raises(RefusedError, match="too small"):
        npmdask.stream_pca("x.zarr", 3, **asked)
    assert npmdask.resume("s", memory="4GiB").rows == ROWS
    with pytest.raises(RefusedError, match="too small"):
        npmdask.stream_pca("x.zarr", 3, **asked | {"store": "t"})
    assert npmdask.stream_pca("x.zarr", 4, store="t").basis.shape == (COLUMNS, 4)
