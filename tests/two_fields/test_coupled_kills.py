"""``kill -9`` of jobs on two fields, in every pass and between steps: the same bits in the end."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import often, same_bytes, write_zarr
from tests.processes import exit_status
from tests.two_fields.coupled_job import main

JOBS = [
    ("mca", ("moments", "step 1", "1", "measured"), ("result", "moments", "measured", "pairs/steps", "pairs/result")),
    ("pcs", ("moments", "step 1", "scores"), ("result", "moments", "scores", "left/result", "right/result")),
    ("cca", ("moments", "gram"), ("result", "moments", "gram")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "places", "parts"), often(JOBS, 0))
def test_a_killed_job_ends_in_the_same_bits(
    kind: str, places: tuple[str, ...], parts: tuple[str, ...], tmp_path: Path
) -> None:
    """Chunks of different heights, gaps and weights. Mutant: a view that is not made again as it was."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((90, 11)) + np.arange(11), rng.standard_normal((90, 7)).astype("f4")
    b[:, 0] += 2 * a[:, 3]
    b[rng.random(b.shape) < 0.1] = np.nan
    write_zarr(tmp_path / "a", a, (10, 5))
    write_zarr(tmp_path / "b", b, (20, 4))
    np.save(tmp_path / "u.npy", np.linspace(0.0, 3.0, 90))
    assert exit_status(main, tmp_path, "whole", kind, "end") == 0
    for place in places:
        assert exit_status(main, tmp_path, "run", kind, place) == -signal.SIGKILL, place
    assert exit_status(main, tmp_path, "run", kind, "end") == 0
    same_bytes(tmp_path / "whole", tmp_path / "run", parts)
