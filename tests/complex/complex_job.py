"""A run of complex rows that kills itself at a given place (see :func:`tests.weights.weighted_job.die_at`).

Arguments of ``main``: folder (holds ``x``), store, algorithm, and where.
"""

from __future__ import annotations

from pathlib import Path

from npmdask import top_k
from npmdask.core.operators import _protocol as protocol
from npmdask.core.operators import gram_matrix
from tests.weights.weighted_job import die_at


def main(folder: Path, store: str, algorithm: str, where: str) -> None:
    """The whole run, or what is left of it."""
    protocol.RUN_BYTES = protocol.COLUMN_BYTES = 1  # a part for each row of chunks
    gram_matrix.SUMS_READ = 0
    die_at(where)
    top_k(
        folder / "x",
        2,
        center=True,
        scale=True,
        tol=1e-2,
        iteration_rank=3,
        algorithm=algorithm,
        store=folder / store,
        threads=1,
        commit_seconds=0 if where != "end" else 30,
    )
