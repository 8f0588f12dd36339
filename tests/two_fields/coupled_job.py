"""A job on two fields that kills itself at a given place.

Arguments of ``main``: folder (holds ``a``, ``b`` and ``u.npy``), store, kind ("mca", "cca" or "pcs"), and where: the
label of a pass, of which one part has been kept; the number of a step that has just been committed; or "end", to live.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npmdask import cca, mca
from npmdask.core.operators import _protocol as protocol
from npmdask.core.operators import gram_matrix
from tests.weights.weighted_job import die_at


def main(folder: Path, store: str, kind: str, where: str) -> None:
    """The whole job, or what is left of it."""
    protocol.RUN_BYTES = protocol.COLUMN_BYTES = 1  # a part for each row of chunks
    gram_matrix.SUMS_READ = 0
    die_at(where)
    asked: dict[str, Any] = {"missing": "mean", "row_weights": folder / "u.npy", "tol": 1e-6, "threads": 1}
    asked |= {"store": folder / store, "commit_seconds": 0 if where != "end" else 30}
    if kind == "mca":
        mca(str(folder / "a"), str(folder / "b"), 2, scale=True, **asked)
    else:
        cca(str(folder / "a"), str(folder / "b"), 2, pcs=(4, 3) if kind == "pcs" else None, **asked)
