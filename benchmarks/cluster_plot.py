"""``python -m benchmarks.cluster_plot``: hours and money of large runs, simulated.

Drawn to docs/cluster-predictions.svg, and a table in docs/howto/laptop-to-cluster.md. Arithmetic is what
``pass-warm-float64`` measured (kept in benchmarks/results), the cut is that of an array which has its shape and chunks
but no data, and the cluster and its store are assumed, as ``npmdask plan --cluster-of`` assumes them.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.docs import ROOT, read_results
from benchmarks.paper_page import save, write
from npmdask.numerics.units import time_text
from npmdask.planning.cluster_plan import DECODING, REMOTE, binding, end_of_range, simulate_run, work_of
from npmdask.planning.simulated_cluster import ClusterModel, PassWork
from npmdask.report.plots import BLUE, GREY, ORANGE
from npmdask.runs.build import make_problem
from npmdask.runs.problem import Request
from npmdask.storage.source import open_source

PICTURE = ROOT / "docs" / "cluster-predictions.svg"
PAGE = ROOT / "docs" / "howto" / "laptop-to-cluster.md"
TERABYTES, WORKERS, THREADS = (1, 10, 100), (10, 100, 1000), 4
COLUMNS, CHUNK_ROWS = 20_000, 200  # float32: chunks of 16 MB
RANK, PASSES = 10, 8
PRICE = 0.2  # of a worker-hour, of whatever currency
AHEAD = {"one chunk at a time": 0.0, "1 GiB in flight in each worker": 2.0**30}


def work(terabytes: float, core_seconds: float) -> PassWork:
    """A pass over an array that is described and not stored."""
    with tempfile.TemporaryDirectory() as folder:
        rows = int(terabytes * 1e12) // (COLUMNS * 4)
        path = Path(folder) / "x.zarr"
        zarr.create_array(path, shape=(rows, COLUMNS), chunks=(CHUNK_ROWS, COLUMNS), dtype="f4", compressors=None)
        problem = make_problem(open_source(path, "samples"), Request(target_rank=RANK))
        operator: Any = problem.sides()[-1]
        found = work_of(operator, problem.algorithm.iteration_rank, core_seconds)
    return replace(found, count=PASSES, step_seconds=0.1)


def core_seconds() -> float:
    """Of one core for a byte: measured from the page cache, and decoding, which is assumed."""
    details = read_results()["pass-warm-float64"]
    seconds = float(np.median(details["details"]["seconds"]["npmdask, float64"]))
    return seconds * details["machine"]["cores"] / details["details"]["bytes"] + DECODING


def model(workers: int, in_flight: float) -> ClusterModel:
    """The cluster of the page."""
    return ClusterModel(workers=workers, threads=THREADS, in_flight=in_flight, **REMOTE)


def draw(works: dict[int, PassWork]) -> None:
    """Hours against workers, with the range of the assumptions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    counts = [int(count) for count in np.unique(np.round(10 ** np.linspace(1, 3.3, 8)))]
    for axis, (title, ahead) in zip(figure.subplots(1, 2, sharey=True), AHEAD.items(), strict=True):
        for (size, of), color in zip(works.items(), (GREY, BLUE, ORANGE), strict=True):
            clusters = [model(count, ahead) for count in counts]
            hours = [simulate_run([of], cluster).seconds / 3600 for cluster in clusters]
            ends = [
                [end_of_range([of], cluster, REMOTE, better=better) / 3600 for cluster in clusters]
                for better in (True, False)
            ]
            axis.fill_between(counts, *ends, color=color, alpha=0.2, linewidth=0)
            axis.loglog(counts, hours, "o-", color=color, markersize=3, label=f"{size} TB")
        axis.set(xlabel=f"workers of {THREADS} threads", title=title)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if not ahead:
            axis.set_ylabel(f"hours of {PASSES} passes")
            axis.legend(frameon=False)
    save(figure, PICTURE)


def table(works: dict[int, PassWork]) -> list[list[str]]:
    """A row for each size and number of workers."""
    rows = [
        ["data", "workers", "time", "range", "workers cost", "what the time depends on (and how much less without it)"]
    ]
    for size, of in works.items():
        for count in WORKERS:
            cluster = model(count, AHEAD["1 GiB in flight in each worker"])
            seconds = simulate_run([of], cluster).seconds
            ends = [time_text(end_of_range([of], cluster, REMOTE, better=better)) for better in (True, False)]
            binds = ", ".join(f"{name} ({share:.0%})" for name, share in binding([of], cluster)[:2])
            cost = f"{math.ceil(PRICE * count * seconds / 3600)}"
            rows.append(
                [f"{size} TB", f"{count:,}", time_text(seconds), " to ".join(ends), cost, binds or "nothing alone"]
            )
    return rows


def main() -> None:
    each = core_seconds()
    works = {size: work(size, each) for size in TERABYTES}
    print(f"{each * 1e9:.3g} core-seconds for each GB")
    draw(works)
    write({"predictions": table(works)}, PAGE)


if __name__ == "__main__":
    main()
