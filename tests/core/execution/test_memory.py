"""The memory contract: the peak of a real process stays under the limit, whatever the layout of the data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import zarr

from npmdask.core.execution.memory import PeakMeter, ProcessPeak, below, high_water, role_of, tree_rss
from npmdask.writers.sparse import SparseWriter
from tests.conftest import needs, often

LIMIT = 260 * 2**20
NPMDASK = [sys.executable, "-m", "npmdask.cli.main"]


def big_array(path: Path, shape: tuple[int, int], chunks: tuple[int, int], dtype: str, compressors: object) -> None:
    """More bytes than the limit, written a row of chunks at a time, its top four directions planted."""
    z = zarr.create_array(path, shape=shape, dtype=dtype, chunks=chunks, compressors=compressors)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((4, shape[1]))
    for start in range(0, shape[0], chunks[0]):
        rows = min(chunks[0], shape[0] - start)
        signal = rng.standard_normal((rows, 4)) * [40, 30, 20, 10] @ directions
        z[start : start + rows] = (signal + rng.standard_normal((rows, shape[1]))).astype(dtype)


LAYOUTS: list[tuple[Any, ...]] = [
    ((200_000, 1000), (4000, 1000), "f4", None, ""),
    ((200_000, 1000), (2000, 250), "f4", "auto", ""),
    ((30_000, 3000), (1000, 1000), "f8", None, ""),
    ((150_000, 1000), (8000, 1000), "f4", "auto", "large decoded chunks"),
    ((100_000, 1000), (4000, 1000), "f8", None, "workers = 1\n"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "chunks", "dtype", "compressors", "extra", "algorithm"),
    often([(*layout, algorithm) for layout in LAYOUTS for algorithm in ("krylov", "gram")], 9),
)
def test_peak_memory_stays_under_the_limit(
    tmp_path: Path,
    shape: tuple[int, int],
    chunks: tuple[int, int],
    dtype: str,
    compressors: object,
    extra: str,
    algorithm: str,
) -> None:
    big_array(tmp_path / "x.zarr", shape, chunks, dtype, compressors)
    formed = 9 * 8 * shape[1] ** 2 + 12 * 2**20 if algorithm == "gram" else 0  # sums, and what is made of them
    limit = LIMIT + (250 * 2**20 if extra else 0) + 2 * formed
    extra = extra if "=" in extra else ""
    (tmp_path / "c.toml").write_text(
        '[source]\npath = "x.zarr"\nkind = "samples"\ncenter = true\n[algorithm]\ntarget_rank = 4\nmax_steps = 2\n'
        f'name = "{algorithm}"\n'
        f'[run]\nmemory = "{limit}"\nthreads = 2\n{extra}'
    )
    done = subprocess.run([*NPMDASK, "run", "c.toml", "--json", "-v"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode in (0, 4), done.stderr  # two passes: the second holds all that a later one does
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["dataset_bytes"] > 2 * LIMIT
    print(f"peak {facts['peak_rss_bytes'] / 2**20:.0f} of {limit / 2**20:.0f} MiB; {done.stderr.splitlines()[0]}")
    predicted = int(done.stderr.split("predicted peak ")[1].split()[0]) * 2**20
    assert facts["peak_rss_bytes"] < predicted <= limit


# Memory that was freed before, of which a process that has run many tests has plenty, would hide what is new.
SHORT_PEAK = """
import numpy as np
from npmdask.core.execution.memory import PeakMeter, high_water

ballast = np.ones(40 * 2**20, np.uint8)
del ballast
with PeakMeter() as meter:
    before = high_water()
    short = np.ones(60 * 2**20, np.uint8)
    del short
after = high_water()
assert 50 * 2**20 < after - before < 70 * 2**20, (before, after)
assert meter.peak >= after > before > 0
"""


@pytest.mark.slow
def test_the_meter_sees_a_short_peak_and_forgets_an_old_one() -> None:
    done = subprocess.run([sys.executable, "-c", SHORT_PEAK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Its peak is over before it says that it is there: only the kernel's mark of that process still shows it.
CHILD = "import sys; a = bytearray(60 * 2**20); del a; b = bytearray(5 * 2**20); print(flush=True); sys.stdin.read()"


HOLDS = "import sys; a = bytearray(60 * 2**20); print(flush=True); sys.stdin.read()"


@contextmanager
def child_process(*arguments: str, code: str = CHILD) -> Iterator[int]:
    """A process below this one that has said that it is there; it ends with the block."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, *arguments], **pipes) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid


def peak_of(meter: PeakMeter, pid: int, least: int = 0, most: int = 2**60) -> ProcessPeak:
    """What the meter has seen of a process, once it has seen so many bytes (or two minutes went by).

    ``most``: what a look between fork and exec saw was the memory of its parent, until the next look.
    """
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        seen = [p for p in meter.by_process if p.pid == pid and least < p.peak_rss_bytes < most]
        if seen:
            break
        time.sleep(0.05)
    return next(p for p in meter.by_process if p.pid == pid)


def test_the_meter_knows_every_process_and_its_peak() -> None:
    with PeakMeter() as meter, child_process() as pid:
        seen = peak_of(meter, pid, 60 * 2**20, 200 * 2**20)
    driver, *below = meter.by_process
    assert (driver.pid, driver.name) == (os.getpid(), "driver")
    assert driver.peak_rss_bytes <= meter.peak
    assert seen.name.startswith("python")
    assert 60 * 2**20 < seen.peak_rss_bytes < 200 * 2**20
    assert sorted(below, key=lambda process: -process.peak_rss_bytes) == below


def test_processes_below_count_where_memory_is_planned_and_where_it_is_measured() -> None:
    """Mutants: either of them the memory of this process alone, and workers are beyond every limit."""
    alone = tree_rss()
    with child_process(code=HOLDS) as pid:
        assert tree_rss() - psutil.Process().memory_info().rss > 60 * 2**20
        with PeakMeter() as meter:
            peak_of(meter, pid, 60 * 2**20)
        assert meter.peak > alone + 50 * 2**20


def test_what_a_child_shares_before_its_exec_is_not_its_own() -> None:
    """A mark that falls is that of another program: the one that the child became."""
    meter, child = PeakMeter(), psutil.Process()
    for rss, whole, kept in ((900, True, 900), (70, True, 70), (60, False, 70), (80, False, 80)):
        meter._keep(child, rss, whole=whole)
        assert meter.by_process[1].peak_rss_bytes == kept


@pytest.mark.slow
def test_what_is_below_is_what_psutil_finds(tmp_path: Path) -> None:
    """Children of children too, and of a thread; nothing of one that ended."""
    nested = f"import subprocess as s, sys; s.run([sys.executable, '-c', {CHILD!r}])"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(target=lambda: started.append(subprocess.Popen([sys.executable, "-c", nested], **pipes)))
    thread.start()
    thread.join()
    with started[0] as outer:
        assert outer.stdout is not None
        outer.stdout.readline()
        known = {child.pid for child in psutil.Process(outer.pid).children(recursive=True)}
        found = {child.pid for child in below()}
        assert known and known | {outer.pid} <= found
    assert not {child.pid for child in below()} & (known | {outer.pid})


FORKER = "import os, sys; print(os.fork() or '', flush=True); sys.stdin.read()"


def test_a_child_between_fork_and_exec_is_nobody_yet() -> None:
    """It has the name of its parent: a worker that starts a program would be counted twice."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", FORKER], **pipes) as parent:
        assert parent.stdout is not None
        forked = next(int(line) for line in parent.stdout if line.strip())
        meter = PeakMeter()
        for looks in (0, 1, 2):
            seen = [process.pid for process in meter.by_process]
            assert (parent.pid in seen, forked in seen) == (looks > 0, looks > 1), "one that goes on with it counts"
            meter._sample()


def test_a_process_that_was_there_before_answers_for_now_only() -> None:
    with child_process() as pid, PeakMeter() as meter:
        assert peak_of(meter, pid).peak_rss_bytes < 60 * 2**20 < high_water(pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "line"),
    [
        ("worker", "from multiprocessing.spawn import spawn_main; spawn_main() --multiprocessing-fork"),
        ("resource tracker", "from multiprocessing.resource_tracker import main;main(9)"),
        ("prefect server", "uvicorn --factory prefect.server.api.server:create_app"),
    ],
)
def test_roles_are_told_from_command_lines(role: str, line: str) -> None:
    with child_process(line) as pid:
        assert role_of(psutil.Process(pid)) == role


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
    done = subprocess.run([*NPMDASK, "run", "c.toml", "--json", "-v"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode in (0, 4), done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    predicted = int(done.stderr.split("predicted peak ")[1].split()[0]) * 2**20
    assert facts["peak_rss_bytes"] < predicted <= 600 * 2**20


@pytest.mark.slow
@needs("cluster")
def test_workers_without_cryptography_say_what_to_install(tmp_path: Path) -> None:
    """The core install has none; it was a bare ImportError of distributed."""
    code = (
        "import sys; sys.modules['cryptography'] = sys.modules['cryptography.x509'] = None\n"
        "import numpy as np, npmdask\n"
        "if __name__ == '__main__':\n"
        "    try: npmdask.top_k(np.eye(300), 2, workers=2)\n"
        "    except npmdask.BadInputError as error: print(error)\n"
    )
    (tmp_path / "program.py").write_text(code)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "is not installed, which this needs: pip install cryptography" in done.stdout, done.stdout + done.stderr
