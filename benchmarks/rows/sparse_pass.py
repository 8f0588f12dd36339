"""A pass over CSR on disk against SciPy with the whole matrix in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks import cache
from benchmarks.products import one_pass, operator_of, relative_error, start_block
from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.core.execution.executor import Threads

P = 20
THREADS = 2


def measure(context: Context) -> Measured:
    """``m.T @ (m @ X)`` as a user of SciPy writes it is the floor; the one split over threads is beside it."""
    store = context.data["sparse"]
    cache.warm(store)
    operator = operator_of(store)
    matrix = _in_memory(operator.reader.group, operator.reader.shape)
    block = start_block(operator.block_rows, P, "f8")
    threads = Threads(THREADS)
    halves = [matrix[i * matrix.shape[0] // THREADS : (i + 1) * matrix.shape[0] // THREADS] for i in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        ways = {
            "scipy": lambda: matrix.T @ (matrix @ block),
            "scipy, rows on two threads": lambda: sum(pool.map(lambda half: half.T @ (half @ block), halves)),
            "npmdask": lambda: one_pass(threads, operator, block)[0],
        }
        reference = ways["scipy"]()
        errors = {name: relative_error(way(), reference) for name, way in ways.items()}
        seconds = interleaved(ways, min(3, context.rounds))
    middle = medians(seconds)
    details = {
        "entries": int(matrix.nnz),
        "p": P,
        "threads": THREADS,
        "relative_error": errors,
        "share_of_scipy_on_two_threads": round(middle["scipy, rows on two threads"] / middle["npmdask"], 3),
        "seconds": rounded(seconds),
    }
    wrong = tuple(f"{name} is wrong by {error:.1e}" for name, error in errors.items() if error > 1e-10)
    why = "entries come from disk chunk by chunk, with checksums and columns checked; SciPy has them in memory"
    return Measured(middle["scipy"] / middle["npmdask"], details, why, wrong)


def _in_memory(group: Any, shape: tuple[int, int]) -> csr_matrix:
    return csr_matrix(tuple(np.asarray(group[name][...]) for name in ("data", "indices", "indptr")), shape=shape)


ROWS = (
    Row(
        name="sparse",
        what="SciPy's `m.T @ (m @ X)` in memory / our pass from disk, CSR, 10^8 entries, 1 %",
        target=0.6,
        run=measure,
        data=("sparse",),
    ),
)
