"""The stream that is killed: ``python -m benchmarks.stream_job JSON``; started again, it goes on.

The object holds the arguments of ``npmdask.streaming.stream_pca``, and ``said``: a file that gets a line for every
batch as soon as the model has taken it, whether that is committed or not.
"""

from __future__ import annotations

import json
import os
import sys

from npmdask.core.runs.observers import Observer
from npmdask.streaming import loop, stream_pca


class Said(Observer):
    """Writes down its process and the rows taken so far."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def on_rows(self, rows: int, skipped: int, rate: float) -> None:
        os.write(self._file, f"{os.getpid()} {rows}\n".encode())


def main(argument: str) -> None:
    asked = json.loads(argument)
    loop.TELL_SECONDS = 0.0  # of every batch
    stream_pca(observer=Said(asked.pop("said")), **asked)


if __name__ == "__main__":
    main(sys.argv[1])
