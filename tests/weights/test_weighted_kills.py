"""``kill -9`` of runs with weights and gaps, in the survey, inside passes, between steps: the same bits in the end."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from tests.conftest import needs, same_bytes, write_zarr
from tests.core.operators.test_operators import write_csr
from tests.processes import exit_status
from tests.weights.weighted_job import main

SURVEY, LEFT = "survey of the columns", "left singular vectors"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "missing", "places"),
    [
        ("power", "mean", (SURVEY, "step 1", "1", "step 2", "2", LEFT)),
        ("gram", "mean", (SURVEY, "step 1", LEFT)),
        ("row-gram", "mean", ("step 1", "1", "step 2", LEFT)),
        ("row-gram", "drop-columns", ("step 1", "1", "step 2", LEFT)),
        pytest.param("row-gram", "sparse", ("step 1", "1", "step 2"), marks=needs("sparse_rows")),
    ],
)
def test_killed_with_weights_and_gaps_it_ends_in_the_same_bits(
    algorithm: str, missing: str, places: tuple[str, ...], tmp_path: Path
) -> None:
    """Mutants, of columns of chunks in two parts: their means, or their right vectors, are lost with the process."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 12)) * np.geomspace(9, 3, 12) + np.arange(12)
    few = algorithm == "row-gram"
    if missing == "mean":
        rows[rng.random(rows.shape) < 0.1] = np.nan
    elif missing == "drop-columns":
        rows[::4] = np.nan  # few rows are written transposed: columns without a value
    else:
        rows[rng.random(rows.shape) < 0.7] = 0.0
    stored = np.ascontiguousarray(rows.T) if few else rows
    if missing == "sparse":
        write_csr(tmp_path / "x", sp.csr_matrix(stored), 40)
    else:
        write_zarr(tmp_path / "x", stored, (5, 17) if few else (17, 5))
    u, v = ("v", "u") if few else ("u", "v")
    np.save(tmp_path / f"{u}.npy", np.linspace(0.0, 3.0, 60))
    np.save(tmp_path / f"{v}.npy", np.linspace(2.0, 0.5, 12))
    assert exit_status(main, tmp_path, "whole", algorithm, "end", missing) == 0
    for place in places:
        assert exit_status(main, tmp_path, "run", algorithm, place, missing) == -signal.SIGKILL, place
    assert exit_status(main, tmp_path, "run", algorithm, "end", missing) == 0
    parts = ("steps", "result", "survey", "missing", "weights", "left.zarr")
    same_bytes(tmp_path / "whole", tmp_path / "run", parts)
