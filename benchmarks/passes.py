"""What a pass and a commit cost, against their floors measured in the same run.

    python -m benchmarks.passes [--gib 2] [--folder DIR]

Floor of a pass: the fastest plain NumPy program for the same product on the same bytes (row slabs of a raw
file read into a reused buffer, two GEMMs each, as many threads as cores). Only the ratios are worth quoting.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from threadpoolctl import threadpool_limits

from npmdask.checkpoint import RunStore
from npmdask.chunked import Processes, Threads
from npmdask.environment import environment
from npmdask.memory_plan import usable_cores
from npmdask.operators import Gram
from npmdask.storage.layout import open_source

COLUMNS, P, SLAB = 2048, 20, 1024
RESULTS = Path(__file__).with_name("results")


def main() -> None:
    """Measure, print a table, keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    arguments = parser.parse_args()
    rows = int(arguments.gib * 2**30 / 4 / COLUMNS) // 2048 * 2048
    need = int(2.2 * rows * COLUMNS * 4)
    if shutil.disk_usage(arguments.folder).free < need + 2**30:
        raise SystemExit(f"{need / 2**30:.1f} GiB of free disk are needed in {arguments.folder}; use --gib or --folder")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        figures = measure(Path(folder), rows)
    RESULTS.mkdir(exist_ok=True)
    record = {"gib": arguments.gib, "cores": usable_cores(), "python": platform.python_version(), **environment()}
    (RESULTS / "passes.json").write_text(json.dumps({"machine": record, "figures": figures}, indent=1) + "\n")
    for name, value in figures.items():
        print(f"{name:48} {value}")


def measure(folder: Path, rows: int) -> dict[str, Any]:
    """All figures: GB/s of the stored bytes, warm page cache, medians of five interleaved rounds."""
    reader = open_source(make_data(folder, rows)).reader
    operator, cores = Gram(reader=reader), usable_cores()
    block = np.linalg.qr(np.random.default_rng(1).standard_normal((COLUMNS, P)))[0]
    single = block.astype(np.float32)
    threads, processes = Threads(cores), Processes(cores, 1)
    ways: dict[str, Callable[[], Any]] = {
        "floor: raw file, float32": lambda: floor(folder / "raw", rows, single, cores),
        "npmdask, threads, float32 arithmetic": lambda: threads.run_pass(operator, single, lambda r: None),
        "npmdask, threads, float64 arithmetic": lambda: threads.run_pass(operator, block, lambda r: None),
        "npmdask, processes, float32 arithmetic": lambda: processes.run_pass(operator, single, lambda r: None),
        "dask array, X.T @ (X @ V), float32": lambda: naive(folder / "x.zarr", single),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    processes.close()
    rates = {name: reader.nbytes / statistics.median(s) / 1e9 for name, s in seconds.items()}
    base = rates["floor: raw file, float32"]
    figures: dict[str, Any] = {
        f"{n} (GB/s, share of floor)": [round(r, 2), round(r / base, 2)] for n, r in rates.items()
    }
    return figures | {"commit of 25.6 MB (ms, median of 20)": round(commit_cost(folder), 1)}


def make_data(folder: Path, rows: int) -> Path:
    """The same float32 samples as a Zarr store and as a raw file."""
    z = zarr.create_array(
        folder / "x.zarr", shape=(rows, COLUMNS), dtype="f4", chunks=(2048, COLUMNS), compressors=None
    )
    rng = np.random.default_rng(0)
    with open(folder / "raw", "wb") as raw:
        for start in range(0, rows, 2048):
            part = rng.standard_normal((2048, COLUMNS), dtype=np.float32)
            z[start : start + 2048] = part
            raw.write(part.tobytes())
    return folder / "x.zarr"


def floor(path: Path, rows: int, block: np.ndarray, cores: int) -> np.ndarray:
    """The plain program: each thread reads its slabs into one buffer and multiplies twice."""
    products = np.zeros((cores, *block.shape), np.float32)

    def work(thread: int) -> None:
        buffer = np.empty((SLAB, COLUMNS), np.float32)
        file = os.open(path, os.O_RDONLY)
        for slab in range(thread, rows // SLAB, cores):
            os.preadv(file, [buffer.data.cast("B")], slab * buffer.nbytes)
            products[thread] += buffer.T @ (buffer @ block)
        os.close(file)

    with threadpool_limits(limits=1):
        workers = [threading.Thread(target=work, args=(i,)) for i in range(cores)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return products.sum(axis=0)


def naive(path: Path, block: np.ndarray) -> np.ndarray:
    """What a Dask user would write (the graph reads each chunk twice, or keeps the whole array)."""
    import dask.array as da

    x = da.from_zarr(path)
    y = (x @ block).compute(scheduler="threads")
    return (x.T @ y).compute(scheduler="threads")  # type: ignore[no-any-return]


def commit_cost(folder: Path) -> float:
    """Milliseconds of one commit of a state of 1e5 x 32 float64."""
    state, times = np.random.default_rng(0).standard_normal((100_000, 32)), []
    with RunStore(folder / "run") as store:
        for step in range(20):
            start = time.perf_counter()
            store.commit_step(step, {"basis": state}, {})
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


if __name__ == "__main__":
    main()
