"""What may be seen of a private run while it goes: that a step was released, and what was released. Nothing else.

Bytes, chunks, rates, sizes of tasks and the memory plan follow the number of rows, which may be what is protected.
Times do too: when a line was written, or how long a pass took, cannot be hidden from whoever watches the machine
(docs/private.md, what is not promised), but no time is written into what is shown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from npmdask.runs.observers import Observer
from npmdask.runs.solution import Solution, Step
from npmdask.storage.readers.dense import SlabRecord


class Discreet(Observer):
    """Stands before another observer and lets through what is public."""

    def __init__(self, member: Observer) -> None:
        self._member = member

    def on_stage(self, label: str) -> None:
        self._member.on_stage(label)

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        self._member.on_pass(label, 0, 0)

    def on_task(self, record: SlabRecord) -> None:
        """Not passed on: how many parts a pass has says how many rows there are."""

    def on_step(self, step: Step) -> None:
        self._member.on_step(step)

    def on_end(self, solution: Solution) -> None:
        self._member.on_end(solution)


def only_public(solution: Solution, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> Solution:
    """The solution of a private run, without everything that was not released."""
    statement = meta["statement"]
    return replace(
        solution,
        bytes_read=None,
        dataset_bytes=None,
        seconds=None,
        peak_rss_bytes=None,
        peak_rss_by_process=(),
        max_sin_theta=None,
        fingerprint=None,
        explained_share=None,
        warnings=(*solution.warnings, *statement["warnings"]),
        value_stddevs=arrays.get("value_stddevs"),
        statement=statement,
    )
