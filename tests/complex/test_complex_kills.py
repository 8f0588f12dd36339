"""``kill -9`` of runs on complex rows, in the survey, inside passes, between steps: the same bits in the end."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.complex.complex_job import main
from tests.conftest import often, same_bytes, write_zarr
from tests.processes import exit_status

SURVEY, LEFT = "survey of the columns", "left singular vectors"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "places"),
    often([("gram", ("step 1", LEFT)), ("power", (SURVEY, "step 1", "1", LEFT)), ("krylov", ("step 1", "1"))], 0),
)
def test_killed_on_complex_rows_it_ends_in_the_same_bits(
    algorithm: str, places: tuple[str, ...], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((60, 8)) + 1j * rng.standard_normal((60, 8))) * np.geomspace(9, 3, 8) + np.arange(8)
    write_zarr(tmp_path / "x", rows, (17, 5))
    assert exit_status(main, tmp_path, "whole", algorithm, "end") == 0
    for place in places:
        assert exit_status(main, tmp_path, "run", algorithm, place) == -signal.SIGKILL, place
    assert exit_status(main, tmp_path, "run", algorithm, "end") == 0
    same_bytes(tmp_path / "whole", tmp_path / "run", ("steps", "result", "survey", "left.zarr"))
