"""Peak memory of every streaming algorithm, in a process of its own, in units of one d x k block of float64.

``python -m benchmarks.rows.stream_memory '{"name": ..., "d": ..., "k": ..., "batch": ...}'`` is that process.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from benchmarks.children import as_child, in_child
from benchmarks.registry import Context, Measured, Row
from npmdask.core.algorithms.base import StreamResult
from npmdask.core.execution.memory import PeakMeter, tree_rss
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.streaming.algorithms.frequent_directions import FrequentDirections
from npmdask.streaming.algorithms.msg import MSG, RMSG, MiniBatchMSG, MiniBatchRMSG
from npmdask.streaming.algorithms.oja import Oja
from npmdask.streaming.algorithms.power import StreamPower

D, K, BATCH = 100_000, 20, 256
SIGNAL = 0.8  # the share of the rows' mean square norm of 1 that lies in the k directions
WORST_ANGLE = 0.5  # after so few rows; a random start has 1
FIT = ("spm", "oja", "mb-msg", "mb-rmsg")  # those whose state is of rank k or p whatever the batch

# Every one with the batches of the stream; MSG also with small ones, because its rank grows by a batch in every step.
CASES: dict[str, dict[str, Any]] = {
    "spm": {"name": "spm"},
    "spm, no memory": {"name": "spm", "memory": 0.0},
    "spm, blocks of 100 rows": {"name": "spm", "block_rows": 100},
    "oja": {"name": "oja"},
    "mb-msg": {"name": "mb-msg"},
    "mb-rmsg": {"name": "mb-rmsg"},
    "msg": {"name": "msg", "rows": 768},
    "msg, batches of 32 rows": {"name": "msg", "batch": 32, "rows": 768},
    "rmsg": {"name": "rmsg", "rows": 768},
    "rmsg, batches of 32 rows": {"name": "rmsg", "batch": 32, "rows": 768},
    "frequent-directions": {"name": "frequent-directions"},
}


def algorithm(name: str, k: int, **options: Any) -> Any:
    """What the tutorial would choose for rows of norm about 1 (p = 2 k, l = 2 k)."""
    gap = SIGNAL / k
    batches = {"target_rank": k, "gap": gap, "batch_rows": 128, "warm_rows": 128}
    made: dict[str, Any] = {
        "spm": lambda: StreamPower(
            **{"target_rank": k, "iteration_rank": 2 * k, "block_rows": 1024, "memory": 1.0} | options
        ),
        "oja": lambda: Oja(target_rank=k),
        "mb-msg": lambda: MiniBatchMSG(shift=10.0, eta0=5.0, **batches),
        "mb-rmsg": lambda: MiniBatchRMSG(shift=10.0, **batches),
        "msg": lambda: MSG(target_rank=k, eta0=2.0 * k),  # less would not use up the trace, and keep all rows
        "rmsg": lambda: RMSG(target_rank=k, ridge=gap / 2),
        "frequent-directions": lambda: FrequentDirections(target_rank=k, sketch_rows=2 * k),
    }
    return made[name]()


def fill(batch: np.ndarray, k: int, rng: np.random.Generator) -> None:
    """Rows of mean square norm 1, most of it in the first k coordinates, in the memory that is there."""
    d = batch.shape[1]
    rng.standard_normal(out=batch)
    batch[:, :k] *= np.sqrt(SIGNAL / k)
    batch[:, k:] *= np.sqrt((1 - SIGNAL) / (d - k))


def stream(method: Any, d: int, rows: int, size: int) -> tuple[StreamResult, int]:
    """The answer after ``rows`` rows in one buffer of ``size`` rows, and the steps made."""
    rng = np.random.default_rng(0)
    batch = np.empty((size, d))  # resident where it was filled: an algorithm that asks for few rows gets few
    state, k, seen, steps = method.init(d, rng=generator(0, "start")), method.target_rank, 0, 0
    while seen < rows:
        part = batch[: method.query(state).rows]  # at most one buffer: the rest is asked for again
        fill(part, k, rng)
        state, info = method.update(state, part)
        seen, steps = seen + len(part), steps + info.steps
    return method.finalize(state), steps


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The peak above what the process had before. The libraries are loaded by a small stream, which is not counted."""
    d, k, size, rows = (job.pop(name) for name in ("d", "k", "batch", "rows"))
    method = algorithm(job.pop("name"), k, **job)
    stream(method, 4 * k + 500, 1200, 50)
    before = tree_rss()
    with PeakMeter() as meter:
        result, steps = stream(method, d, rows, size)
        added = meter.peak - before
    block = 8 * d * k
    return {
        "batch_rows": size,
        "blocks": round((added - 8 * size * d) / block, 2),
        "peak_bytes": added,
        "steps": steps,
        "max_sin_theta": max_sin_theta(result.vectors, np.eye(d, k)),
    }


def measure(context: Context) -> Measured:
    """Every case in a process of its own; the figure is the largest of the algorithms whose state has a fixed rank."""
    d, k, size = context.sized(20_000, D), context.sized(5, K), context.sized(64, BATCH)
    found = {}
    for case, options in CASES.items():
        job = {"d": d, "k": k, "batch": size, "rows": 2304, **options}
        found[case] = in_child("benchmarks.rows.stream_memory", job, folder=context.folder)
    wrong = [case for case, facts in found.items() if not facts["steps"] or facts["max_sin_theta"] > WORST_ANGLE]
    figure = max(found[case]["blocks"] for case in FIT)
    details = {"d": d, "k": k, "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "all"), "peaks": found}
    return Measured(figure, details, "", tuple(f"{case}: no answer of this stream" for case in wrong))


ROWS = (
    Row(
        name="stream-memory",
        what="peak memory of a stream in d x k blocks, d = 10^5, k = 20: the largest of four algorithms",
        target=10.0,
        better="lower",
        run=measure,
    ),
)


if __name__ == "__main__":
    as_child(main)
