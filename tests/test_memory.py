"""The memory contract: the peak of a real process stays under the limit, whatever the layout of the data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from npmdask.memory import PeakMeter, high_water
from npmdask.storage.sparse_writer import SparseWriter

LIMIT = 260 * 2**20
NPMDASK = [sys.executable, "-m", "npmdask.cli"]


def big_array(path: Path, shape: tuple[int, int], chunks: tuple[int, int], dtype: str, compressors: object) -> None:
    """More bytes than the limit, written a row of chunks at a time, its top four directions planted."""
    z = zarr.create_array(path, shape=shape, dtype=dtype, chunks=chunks, compressors=compressors)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((4, shape[1]))
    for start in range(0, shape[0], chunks[0]):
        rows = min(chunks[0], shape[0] - start)
        signal = rng.standard_normal((rows, 4)) * [40, 30, 20, 10] @ directions
        z[start : start + rows] = (signal + rng.standard_normal((rows, shape[1]))).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "chunks", "dtype", "compressors", "extra"),
    [
        ((200_000, 1000), (4000, 1000), "f4", None, ""),
        ((200_000, 1000), (2000, 250), "f4", "auto", ""),
        ((30_000, 3000), (1000, 1000), "f8", None, ""),
        ((150_000, 1000), (8000, 1000), "f4", "auto", "large decoded chunks"),
        ((100_000, 1000), (4000, 1000), "f8", None, "workers = 1\n"),
    ],
)
def test_peak_memory_stays_under_the_limit(
    tmp_path: Path, shape: tuple[int, int], chunks: tuple[int, int], dtype: str, compressors: object, extra: str
) -> None:
    big_array(tmp_path / "x.zarr", shape, chunks, dtype, compressors)
    limit = LIMIT + (250 * 2**20 if extra else 0)
    extra = extra if "=" in extra else ""
    (tmp_path / "c.toml").write_text(
        '[source]\npath = "x.zarr"\nkind = "samples"\ncenter = true\n[algorithm]\ntarget_rank = 4\n[stop]\ntol = 1e-4\n'
        f'[run]\nmemory = "{limit}"\nthreads = 2\n{extra}'
    )
    done = subprocess.run([*NPMDASK, "run", "c.toml", "--json"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["dataset_bytes"] > 2 * LIMIT
    print(f"peak {facts['peak_rss_bytes'] / 2**20:.0f} of {limit / 2**20:.0f} MiB; {done.stderr.splitlines()[0]}")
    predicted = int(done.stderr.split("predicted peak ")[1].split()[0]) * 2**20
    assert facts["peak_rss_bytes"] < predicted <= limit


def test_the_meter_sees_a_short_peak_and_forgets_an_old_one() -> None:
    ballast = np.ones(40 * 2**20, np.uint8)
    del ballast
    with PeakMeter() as meter:
        before = high_water()  # of this process alone: workers of an earlier test may still be going
        short = np.ones(60 * 2**20, np.uint8)
        del short
    assert high_water() - before > 50 * 2**20
    assert meter.peak >= high_water()
    assert meter.peak >= before > 0


@pytest.mark.slow
def test_many_short_and_empty_rows_stay_under_the_limit(tmp_path: Path) -> None:
    """A @ block has a row for every row of the data: it must never be formed whole."""
    rng = np.random.default_rng(0)
    writer = SparseWriter(tmp_path / "x.zarr", columns=200, dtype=np.dtype("f8"), identity={})
    for _ in range(10):
        lengths = (rng.random(500_000) < 0.04).astype(int)
        entries = int(lengths.sum())
        pointers = np.concatenate([[0], np.cumsum(lengths)])
        writer.write(pointers, rng.integers(0, 200, entries).astype("i4"), rng.random(entries))
    writer.finish()
    (tmp_path / "c.toml").write_text(
        '[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 10\nmax_steps = 3\n'
        '[run]\nmemory = "600MiB"\nthreads = 2\n'
    )
    done = subprocess.run([*NPMDASK, "run", "c.toml", "--json"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode in (0, 4), done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    predicted = int(done.stderr.split("predicted peak ")[1].split()[0]) * 2**20
    assert facts["peak_rss_bytes"] < predicted <= 600 * 2**20
