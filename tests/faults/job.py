"""The job that the kill test kills: ingest a file, run to the end. Run again, it goes on.

Arguments: folder (holds ``x.npy``), number of threads.
"""

from __future__ import annotations

import sys
from pathlib import Path

import npmdask
from npmdask.storage.ingest import ingest
from npmdask.storage.writers import journal


def main(folder: Path, threads: int) -> None:
    """Everything that there is to kill: ingest with its journal, passes, commits, the final pass."""
    journal.JOURNAL_BYTES = 8 * 2**20  # so that an ingest of 100 MB has a dozen places to go on from
    if not (folder / "x.zarr").exists():
        ingest(folder / "x.npy", folder / "x.zarr", kind="matrix", chunks=(400, 1000))
    npmdask.top_k(
        folder / "x.zarr", 6, iteration_rank=12, tol=1e-10, max_steps=400, store=folder / "run", threads=threads
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
