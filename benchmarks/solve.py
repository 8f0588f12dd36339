"""``npmdask.top_k`` in a process of its own: arguments as one JSON object, the answer as one JSON line.

``python -m benchmarks.solve '{"source": ..., "k": ...}'``. ``truth`` (a .npy, d x k) is what the basis is held
to; ``progress`` names a file that gets a line for every pass and every task, for whoever wants to kill us.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

import npmdask
from npmdask.core.execution.memory import high_water
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.core.runs.observers import Observer
from npmdask.core.storage.readers.dense import ReadStats


class Progress(Observer):
    """Writes what is done to a file, unbuffered."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "ab", buffering=0)  # closed with the process, which may be killed

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        self._say(label=label, total=total_bytes)

    def on_task(self, record: ReadStats) -> None:
        self._say(bytes=record.bytes_read)

    def _say(self, **facts: Any) -> None:
        self._file.write(json.dumps({"time": time.time(), **facts}).encode() + b"\n")


def main(arguments: dict[str, Any]) -> None:
    """Solve, and say how well and at what cost."""
    truth, progress = arguments.pop("truth", None), arguments.pop("progress", None)
    observer = Progress(progress) if progress else None
    start = time.perf_counter()
    solution = npmdask.top_k(observer=observer, **arguments)
    seconds = time.perf_counter() - start
    angle = solution.max_sin_theta
    if truth is not None:
        angle = max_sin_theta(solution.basis, np.load(truth)[:, : solution.basis.shape[1]])
    facts = {
        "seconds": seconds,
        "max_sin_theta": angle,
        "converged": solution.converged,
        "steps": solution.steps,
        "passes": solution.total_data_passes,
        "peak_rss_bytes": max(solution.peak_rss_bytes, high_water()),
        "version": npmdask.__version__ if hasattr(npmdask, "__version__") else "",
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
