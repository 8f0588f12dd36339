"""A run of weighted rows with gaps that kills itself at a given place.

Arguments of ``main``: folder (holds ``x``, ``u.npy``, ``v.npy``), store, algorithm, where, and the rule for gaps, or
"sparse". Where is the label of a pass, of which one part has been kept; the number of a step that has just been
committed; or "end", to live.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from npmdask import top_k
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.operators import _protocol as protocol
from npmdask.core.operators import gram_matrix, row_gram


def die_at(where: str) -> None:
    """Let this process be killed as soon as the store holds what ``where`` says."""
    keep, commit = RunStore.keep_pass, RunStore.commit_step

    def kept(self: RunStore, key: dict[str, Any], *given: Any) -> None:
        keep(self, key, *given)
        if key["label"] == where:
            os.kill(os.getpid(), signal.SIGKILL)

    def committed(self: RunStore, number: int, *given: Any, **more: Any) -> None:
        commit(self, number, *given, **more)
        if str(number) == where:
            os.kill(os.getpid(), signal.SIGKILL)

    RunStore.keep_pass, RunStore.commit_step = kept, committed  # type: ignore[method-assign]


def main(folder: Path, store: str, algorithm: str, where: str, missing: str) -> None:
    """The whole run, or what is left of it."""
    protocol.RUN_BYTES = protocol.COLUMN_BYTES = 1  # a part for each row of chunks
    gram_matrix.SUMS_READ = row_gram.SUMS_READ = 0
    row_gram.RUN_BYTES = 1
    die_at(where)
    asked: dict[str, Any] = {"center": True, "scale": True, "missing": missing, "tol": 1e-2, "iteration_rank": 4}
    asked |= {"row_weights": folder / "u.npy", "column_weights": folder / "v.npy", "algorithm": algorithm}
    if algorithm == "row-gram":  # scaled, a survey would find what its first pass finds
        asked |= {"scale": False, "options": {"parts": 2}}
    if missing == "sparse":
        asked |= {"missing": "refuse"}
    top_k(folder / "x", 2, store=folder / store, threads=1, commit_seconds=0 if where != "end" else 30, **asked)
