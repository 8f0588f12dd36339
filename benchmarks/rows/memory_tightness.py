"""How much more memory is predicted before a run than it takes: the peak of a process of its own, over small problems.

That a prediction is enough is a promise and has tests. How tight it is depends on the BLAS kernel, the allocator and
the number of threads, so it is measured here. ``python -m benchmarks.rows.memory_tightness '{"run": ..., ...}'`` is
the process of one case.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import zarr

import npmdask
from benchmarks.children import as_child, in_child
from benchmarks.registry import Context, Measured, Row
from npmdask import singular_triplets
from npmdask.core.runs.observers import Observer
from npmdask.streaming import stream_pca
from npmdask.writers.sparse import SparseWriter

MB = {"gap": 0.05, "batch_rows": 64, "warm_rows": 64, "optimistic": False}
TRIPLETS: dict[str, Any] = {"run": "dilation", "k": 5, "iteration_rank": 20, "max_steps": 3, "threads": 2}
CASES: dict[str, dict[str, Any]] = {
    "samples": {"run": "top_k", "data": "tall", "k": 4, "max_steps": 3, "kind": "samples", "threads": 2},
    "matrix with left vectors": {"run": "top_k", "data": "tall", "k": 4, "max_steps": 3, "threads": 2},
    "dilation, dense": TRIPLETS | {"data": "narrow"},
    "dilation, sparse": TRIPLETS | {"data": "sparse"},
    "stream, spm": {"run": "stream", "data": "wide", "k": 4, "batch_rows": 64, "center": True},
    "stream, oja": {"run": "stream", "data": "wide", "k": 4, "batch_rows": 64, "algorithm": "oja"},
    "stream, mb-rmsg": {"run": "stream", "data": "wide", "k": 4, "algorithm": "mb-rmsg", "options": MB},
    "stream, frequent-directions": {"run": "stream", "data": "wide", "k": 4, "algorithm": "frequent-directions"},
}
SHAPES = {  # rows, columns, rows of a chunk: small, full
    "tall": ((20_000, 500, 4000), (200_000, 1000, 4000)),
    "narrow": ((20_000, 40, 4000), (80_000, 40, 4000)),
    "sparse": ((20_000, 500, 2**14), (80_000, 500, 2**16)),
    "wide": ((128, 30_000, 32), (256, 120_000, 32)),
}


class Watch(Observer):
    """Keeps the memory plan of a run."""

    predicted = 0

    def on_plan(self, plan: Any) -> None:
        self.predicted = plan.predicted_peak


def make(path: Path, name: str, size: tuple[int, int, int]) -> None:
    """Random data, a chunk at a time."""
    (rows, columns, height), rng = size, np.random.default_rng(0)
    if name == "sparse":
        writer = SparseWriter(path, columns=columns, dtype=np.dtype("f8"), identity={})
        matrix = sp.random(rows, columns, density=0.01, format="csr", rng=rng)
        writer.write(matrix.indptr.astype("i8"), matrix.indices.astype("i4"), matrix.data)
        writer.finish()
        return
    dtype = "f8" if name == "narrow" else "f4"
    z = zarr.create_array(path, shape=(rows, columns), dtype=dtype, chunks=(height, columns), compressors=None)
    for start in range(0, rows, height):
        z[start : start + height] = rng.standard_normal((min(height, rows - start), columns))


def main(job: dict[str, Any]) -> dict[str, Any]:
    """One run; what was predicted and what it took."""
    watch, run, source, k = Watch(), job.pop("run"), job.pop("data"), job.pop("k")
    if run == "dilation":
        peak = singular_triplets(source, k, observer=watch, **job).solution.peak_rss_bytes
    elif run == "stream":
        peak = stream_pca(source, k, observer=watch, commit_seconds=0.2, **job).peak_rss_bytes
    else:
        peak = npmdask.top_k(source, k, observer=watch, **job).peak_rss_bytes
    return {"predicted_bytes": watch.predicted, "peak_bytes": peak}


def measure(context: Context) -> Measured:
    """The largest ratio of all cases; one that took more than was predicted is a broken promise."""
    found = {}
    for case, job in CASES.items():
        path = context.folder / job["data"]
        if not path.exists():
            make(path, job["data"], SHAPES[job["data"]][context.scale != "small"])
        facts = in_child("benchmarks.rows.memory_tightness", job | {"data": str(path)}, folder=context.folder)
        found[case] = facts | {"ratio": round(facts["predicted_bytes"] / facts["peak_bytes"], 3)}
    worst = max(found, key=lambda case: found[case]["ratio"])
    short = tuple(f"{case}: took more than was predicted" for case, facts in found.items() if facts["ratio"] < 1)
    return Measured(found[worst]["ratio"], found, f"worst: {worst}", short)


ROWS = (
    Row(
        name="memory-tightness",
        what="memory predicted / peak: the largest of two runs, two dilations, four streams",
        target=1.75,
        better="lower",
        run=measure,
    ),
)


if __name__ == "__main__":
    as_child(main)
