"""Counts that are normalised, logged, centred and scaled on the way, against the same written first and then read."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import npmdask
from benchmarks import cache
from benchmarks.cell_counts import ENTRY, write_cells
from benchmarks.children import as_child, in_child
from benchmarks.data import require_disk
from benchmarks.registry import Context, Measured, Row
from npmdask.core.execution.memory import high_water
from npmdask.core.numerics.subspaces import max_sin_theta

K, MEMORY, GENES, MOLECULES = 50, 2 * 2**30, 2000, 330.0  # one of ten entries is not zero
CELLS = 2_600_000  # 4 GiB of values and columns
BLOCK = 20_000
WAYS = ("lazy", "written first")
WORST = 1e-6


def _normalised(block: Any) -> Any:
    """log1p of counts per cell, zeros left out."""
    totals = np.maximum(np.asarray(block.sum(axis=1)).ravel(), 1)
    logs = block.copy()
    logs.data = np.log1p(block.data * np.repeat(MOLECULES / totals, np.diff(block.indptr))).astype("f4")
    return logs


def main(job: dict[str, Any]) -> dict[str, Any]:
    """One way, in this process: from opened counts to scaled components."""
    import anndata
    import h5py
    import zarr

    with h5py.File(job["path"]) as file, tempfile.TemporaryDirectory(dir=job["folder"]) as folder:
        began = time.perf_counter()
        counts = anndata.experimental.read_elem_lazy(file["X"], chunks=(BLOCK, -1))
        rows: Any = counts.map_blocks(_normalised, dtype="f4", meta=counts._meta)
        if job["way"] == "written first":
            group = zarr.open_group(Path(folder) / "logs.zarr", mode="w")
            anndata.io.write_elem(group, "X", rows)
            rows = group["X"]
        written = time.perf_counter() - began
        found = npmdask.top_k(rows, K, kind="sparse", center=True, scale=True, memory=MEMORY)
        seconds = time.perf_counter() - began
    np.save(job["out"], found.basis)
    facts = {"seconds": seconds, "of_it_writing": round(written, 2), "passes": found.total_data_passes}
    return facts | {"peak_rss_bytes": max(found.peak_rss_bytes or 0, high_water()), "converged": found.converged}


def measure(context: Context) -> Measured:
    """Both in turns, each in a process of its own; seconds are medians."""
    cells, genes = context.sized(6000, CELLS), context.sized(300, GENES)
    require_disk(int(2 * ENTRY * cells * MOLECULES * genes / GENES), context.folder)
    path = context.folder / "counts.h5ad"
    entries = write_cells(path, cells, genes, MOLECULES * genes / GENES, logs=False)
    cache.warm(path)
    outs = {way: context.folder / f"{way}.npy" for way in WAYS}
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(min(3, context.rounds)):
        for way in WAYS[:: -1 if number % 2 else 1]:
            job = {"way": way, "path": str(path), "out": str(outs[way]), "folder": str(context.folder)}
            runs[way].append(in_child(__name__, job, folder=context.folder))
    details: dict[str, Any] = {"cells": cells, "genes": genes, "bytes": entries * ENTRY, "memory_bytes": MEMORY}
    for way, found in runs.items():
        details[way] = found[-1] | {"seconds": statistics.median(run["seconds"] for run in found)}
    apart = max_sin_theta(np.load(outs[WAYS[0]])[:, :10], np.load(outs[WAYS[1]])[:, :10])
    details["max_sin_theta"] = apart
    failures = [f"the answers are {apart:.1e} apart"] if apart > WORST else []
    for way in WAYS:
        peak = max(run["peak_rss_bytes"] for run in runs[way])
        failures += [f"{way}: {peak / 2**30:.2f} GiB, and 2 were allowed"] if way == "lazy" and peak > MEMORY else []
        failures += [f"{way}: not converged"] if not all(run["converged"] for run in runs[way]) else []
    why = f"every pass computes the blocks once more; {details[WAYS[0]]['passes']} passes"
    return Measured(details[WAYS[0]]["seconds"] / details[WAYS[1]]["seconds"], details, why, tuple(failures))


ROWS = (
    Row(
        name="lazy-counts",
        what="50 components of lazy Dask blocks (4 GiB of sparse counts) / writing them first, within 2 GiB",
        target=1.0,
        better="lower",
        run=measure,
    ),
)

if __name__ == "__main__":
    as_child(main)
