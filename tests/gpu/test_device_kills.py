"""``kill -9`` of runs whose sums a device forms, inside passes and between steps: the same bits in the end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import often, same_bytes, write_zarr
from tests.weights.test_weighted_kills import LEFT, SURVEY

ROOT = Path(__file__).resolve().parents[2]


def job(*asked: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.gpu.kill_job", *map(str, asked)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def rows_in(folder: Path) -> None:
    x = np.random.default_rng(0).standard_normal((60, 12)) * np.geomspace(9, 3, 12) + np.arange(12)
    write_zarr(folder / "x", x, (17, 5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "places"),
    often([("krylov", (SURVEY, "step 1", "1", "step 3", LEFT)), ("gram", ("step 1", LEFT))], 1),
)
def test_killed_on_a_device_it_ends_in_the_same_bits(algorithm: str, places: tuple[str, ...], tmp_path: Path) -> None:
    rows_in(tmp_path)
    assert job(tmp_path, "whole", algorithm, "end", "cuda").returncode == 0
    for place in places:
        assert job(tmp_path, "run", algorithm, place, "cuda").returncode == -signal.SIGKILL, place
    ended = job(tmp_path, "run", algorithm, "end", "cuda")
    assert (ended.returncode, ended.stdout.strip()) == (0, ""), ended.stderr
    same_bytes(tmp_path / "whole", tmp_path / "run", ("steps", "result", "left.zarr"))


@pytest.mark.slow
def test_killed_on_a_device_it_goes_on_without_and_says_so(tmp_path: Path) -> None:
    """No part of a pass is taken over from the device; all of the next is the processor's."""
    rows_in(tmp_path)
    assert job(tmp_path, "run", "krylov", "step 2", "cuda").returncode == -signal.SIGKILL
    ended = job(tmp_path, "run", "krylov", "end", "cpu")
    assert ended.returncode == 0, ended.stderr
    assert "device was 'this processor by numpy' when this run began and is 'the processor' now" in ended.stdout
    assert job(tmp_path, "whole", "krylov", "end", "cpu").returncode == 0
    found, wanted = (np.load(tmp_path / name / "result" / "values.npy") for name in ("run", "whole"))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
