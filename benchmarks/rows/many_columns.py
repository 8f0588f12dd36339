"""10^8 columns in 8 GiB: one block of 20 columns is 16 GB, so that blocks lie on disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.children import last_json, solve_command
from benchmarks.registry import CannotRunError, Context, Measured, Row

COLUMNS, ENTRIES = 10**8, 10**9
SMALL = 600_000  # columns, of which eight blocks do not fit beside the interpreter in
LEAST = 420 * 2**20
K, P = 8, 20
TOL = 1e-3
SECONDS = 24 * 3600.0
AT_ONCE = 2**22  # entries that are made at a time
CHUNK = 2**20


def measure(context: Context) -> Measured:
    """A run to its end in a process of its own: its peak over the limit."""
    columns = context.sized(SMALL, COLUMNS)
    entries = columns * ENTRIES // COLUMNS // (1 if context.scale != "small" else 4)
    memory = max(LEAST, 8 * 2**30 * columns // COLUMNS)
    rows, store, run = columns // 10, context.folder / "columns.zarr", context.folder / "columns-run"
    disk = 8 * entries + 8 * (3 * columns * P + 2 * rows * P + columns * K)
    free = shutil.disk_usage(context.folder).free
    if free < 1.05 * disk:
        raise CannotRunError(f"data and blocks take {disk / 1e9:.0f} GB and {free / 1e9:.0f} GB are free")
    try:
        write_communities(store, rows, columns, entries)
        facts = last_json(
            solve_command(
                source=str(store), k=K, kind="sparse", iteration_rank=P, memory=memory, tol=TOL, store=str(run)
            ),
            folder=context.folder,
            seconds=SECONDS,
        )
        on_disk = (run / "blocks").is_dir()
    finally:
        shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(run, ignore_errors=True)
    details: dict[str, Any] = {"columns": columns, "entries": entries, "memory_bytes": memory, "npmdask": facts}
    wrong = () if facts["converged"] and on_disk else ("it did not converge, or its blocks were in memory",)
    return Measured(facts["peak_rss_bytes"] / memory, details, "the plan of the memory is too small", wrong)


def write_communities(path: Path, rows: int, columns: int, entries: int) -> None:
    """A CSR matrix of K groups of rows, each with columns of its own, those in front more often than the others."""
    rng, each = np.random.default_rng(0), entries // rows
    group, strengths, own = zarr.open_group(path, mode="w"), np.geomspace(4, 1, K), columns // K
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [rows, columns]})
    shapes: dict[str, tuple[int, Any]] = {
        "data": (rows * each, np.float32),
        "indices": (rows * each, np.int32),
        "indptr": (rows + 1, np.int64),
    }
    arrays = {
        name: group.create_array(name, shape=(length,), chunks=(CHUNK,), dtype=dtype, compressors=None)
        for name, (length, dtype) in shapes.items()
    }
    arrays["indptr"][:] = np.arange(rows + 1) * each
    for first in range(0, rows, max(1, AT_ONCE // each)):
        kinds = rng.integers(0, K, min(max(1, AT_ONCE // each), rows - first))
        drawn = np.sort((rng.random((len(kinds), each)) ** 3 * (own - each)).astype(np.int64), axis=1)
        drawn = np.maximum.accumulate(drawn - np.arange(each), axis=1) + np.arange(each)  # no column twice
        part = slice(first * each, (first + len(kinds)) * each)
        arrays["indices"][part] = (drawn * K + kinds[:, None]).astype(np.int32).ravel()
        arrays["data"][part] = (strengths[kinds, None] * rng.uniform(0.9, 1.1, drawn.shape)).ravel()


ROWS = (
    Row(
        name="many-columns",
        what="peak memory / limit of 8 GiB: 10^8 columns, 10^9 entries, p = 20, blocks on disk",
        target=1.0,
        better="lower",
        run=measure,
    ),
)
