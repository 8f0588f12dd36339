"""A run whose sums a device forms, NumPy's, that kills itself at a given place.

Arguments: folder (holds ``x``), store, algorithm, where (as of :mod:`tests.weights.weighted_job`), and the device.
"""

from __future__ import annotations

import sys
from pathlib import Path

import npmdask
import npmdask.gpu.devices as devices
from npmdask.core.operators import _protocol as protocol
from npmdask.core.operators import gram_matrix
from npmdask.gpu import on_device as on
from tests.weights.weighted_job import die_at


def main(folder: Path, store: str, algorithm: str, where: str, device: str) -> None:
    """The whole run, or what is left of it."""
    protocol.RUN_BYTES = protocol.COLUMN_BYTES = 1  # a part for each row of chunks
    gram_matrix.SUMS_READ = 0
    on.STRIP, on.FEWEST = 2**10, 5
    devices.LIBRARIES = ("numpy",)
    die_at(where)
    seconds = 0 if where != "end" else 30
    asked = {"center": True, "algorithm": algorithm, "iteration_rank": 4, "device": device, "commit_seconds": seconds}
    found = npmdask.top_k(folder / "x", 2, store=folder / store, threads=1, max_steps=4, kind="matrix", **asked)
    print(*found.warnings, sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
