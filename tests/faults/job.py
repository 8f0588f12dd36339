"""The job that the kill test kills: ingest a file, run to the end. Run again, it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npmdask import top_k
from npmdask.core.operators import gram_matrix
from npmdask.formats.ingest import ingest
from npmdask.writers import journal


def main(folder: Path, threads: int, algorithm: str) -> None:
    """Everything that there is to kill: ingest with its journal, passes, commits, the final pass.

    ``folder`` holds ``x.npy``.
    """
    journal.JOURNAL_BYTES = 8 * 2**20  # so that an ingest of 64 MB has some places to go on from
    if not (folder / "x.zarr").exists():
        ingest(folder / "x.npy", folder / "x.zarr", kind="matrix", chunks=(400, 1000))
    asked: dict[str, Any] = {"iteration_rank": 12, "tol": 1e-10, "max_steps": 400, "algorithm": algorithm}
    if algorithm in ("gram", "row-gram"):  # one pass or two are all there is to kill: they are kept in parts
        asked |= {"commit_seconds": 0.02}
        gram_matrix.SUMS_READ = 0
    top_k(folder / "x.zarr", 6, store=folder / "run", threads=threads, **asked)
