"""A run with its blocks on disk that is killed inside of a write, or may write no large file.

``python -m tests.faults.disk_job DATA FOLDER COUNT`` kills it at ``COUNT`` writes of blocks spread over the run,
resumes it, and prints one JSON object: where each was killed, whether the answer has the bytes of an undisturbed run,
and how much of what was left had to be done again. The processes are forked from one that has imported everything and
has no threads.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import npmdask
from npmdask.core.runs import disk_release
from npmdask.core.storage import block_files
from npmdask.core.storage.block_files import BlockFile
from npmdask.errors import CommitError
from tests.faults.crash_points import forked

NEVER = 10**9


def run(data: str, store: Path, kill_at: int = NEVER, largest_file: int = 0) -> None:
    """Make or resume the run; how many writes there were goes into a file beside the store."""
    block_files.TILE_BYTES = 2**15
    disk_release.tiles_held = lambda problem, held, threads=1: 3  # type: ignore[assignment]
    original, count = BlockFile.write, 0

    def write(self: BlockFile, start: int, values: Any) -> None:
        nonlocal count
        count += 1
        if count == kill_at:
            original(self, start, values[: len(values) // 2])  # half of it is there
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, start, values)

    BlockFile.write = write  # type: ignore[method-assign]
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    asked: dict[str, Any] = {"algorithm": "power", "options": {"blocks": "disk"}, "max_steps": 2, "threads": 1}
    try:
        npmdask.top_k(data, 4, kind="sparse", store=store, commit_seconds=0, **asked)
    except CommitError as error:
        store.with_suffix(".error").write_text(str(error))
        raise
    store.with_suffix(".count").write_text(str(count))


def answer(store: Path) -> dict[str, bytes]:
    """The bytes of the answer."""
    return {path.name: path.read_bytes() for path in (store / "result").iterdir()}


def main(data: str, folder: Path, count: int) -> dict[str, Any]:
    """All of it."""
    whole = folder / "whole"
    assert forked(lambda: run(data, whole)) == 0
    every = int(whole.with_suffix(".count").read_text())
    found: dict[str, Any] = {"writes": every, "kills": []}
    for number in range(count):
        at, store = 1 + (every - 1) * number // (count - 1), folder / f"killed-{number}"
        killed = forked(lambda at=at, store=store: run(data, store, at)) == -signal.SIGKILL  # type: ignore[misc]
        resumed = forked(lambda store=store: run(data, store)) == 0  # type: ignore[misc]
        again = int(store.with_suffix(".count").read_text()) if resumed else NEVER
        same = killed and resumed and answer(store) == answer(whole)
        found["kills"].append({"at": at, "same": same, "again": again - (every - at + 1)})
    full = folder / "full"
    refused = forked(lambda: run(data, full, largest_file=100_000)) != 0  # a block has 336,000 bytes
    found["full"] = {
        "refused": refused,
        "said": full.with_suffix(".error").read_text(),
        "left": (full / "blocks").exists(),
        "same": forked(lambda: run(data, full)) == 0 and answer(full) == answer(whole),
    }
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
