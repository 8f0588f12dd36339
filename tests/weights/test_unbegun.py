"""Weights of a run that was not begun."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npmdask
from tests.conftest import same_bytes
from tests.core.runs import test_unbegun as runs
from tests.core.runs.test_unbegun import POWER, ROWS, Ends

folder = runs.folder  # a fixture


@pytest.mark.slow
def test_what_the_first_command_was_given_is_not_left_to_the_second(folder: Path) -> None:
    """Weights, a start, what was predicted: the store is that of a run that never knew of them."""
    npmdask.top_k("x.zarr", 2, store="earlier", **POWER)
    given = {"row_weights": np.linspace(1, 2, ROWS), "start": "earlier"}
    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k("x.zarr", 3, store="run", observer=Ends(), **given, **POWER)
    assert {"weights", "start"} <= {path.name for path in Path("run").iterdir()}
    npmdask.top_k("x.zarr", 3, store="run", **POWER)
    npmdask.top_k("x.zarr", 3, store="twin", **POWER)
    assert {path.name for path in Path("run").iterdir()} == {path.name for path in Path("twin").iterdir()}
    same_bytes(folder / "run", folder / "twin")
    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k("x.zarr", 3, store="other", observer=Ends(), **POWER)
    npmdask.top_k("x.zarr", 3, store="other", **given, **POWER)
    npmdask.top_k("x.zarr", 3, store="whole", **given, **POWER)
    same_bytes(folder / "other", folder / "whole", parts=("steps", "result", "weights", "start"))
