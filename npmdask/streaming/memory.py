"""Predict the memory of a stream, and refuse it before the first row if it is over the limit."""

from __future__ import annotations

from typing import Any

from npmdask.core.execution.memory import GROWTH, THREAD_BASE, MemoryPlan, tree_rss
from npmdask.core.runs.resources import Resources
from npmdask.errors import MemoryRefusedError
from npmdask.streaming.algorithms.frequent_directions import FrequentDirections
from npmdask.streaming.algorithms.model import IMPUTE, PIECE_BYTES, SCALE_FREE, Model
from npmdask.streaming.algorithms.msg import MSG, MiniBatchMSG
from npmdask.streaming.algorithms.power import StreamPower
from npmdask.streaming.algorithms.tensor_power import PIECE_ROWS, OnlineTensorPower
from npmdask.streaming.problem import StreamProblem

MIB = 2**20


def plan_stream(
    model: Model, batch_rows: int, buffer_bytes: int, *, limit: int | None, base: int, rank: int = 0
) -> MemoryPlan:
    """The memory of a stream of batches of ``batch_rows`` rows; ``buffer_bytes``: of its reading, and of held-out rows.

    ``base``: what the process holds already, which held-out rows are part of. ``rank``: of the iterate as it is, where
    the data decide that (MSG): planned again as it grows, so that a limit is refused before it is exceeded.

    Raises
    ------
    MemoryRefusedError
        More than ``limit``; the sentence says what would fit.
    """
    d, k, waits = model.d, model.algorithm.target_rank, isinstance(model.algorithm, MiniBatchMSG)
    longest = largest_batch(model.algorithm, d, batch_rows)
    copies = 2 if model.center or model.algorithm.name not in SCALE_FREE else 1  # less the mean, or in other units
    imputed = 1.25 * (model.missing == IMPUTE)  # the batch without gaps, and where they are
    # rows that wait for their step are joined with those that come
    rows = int(d * 8 * longest * (copies + waits + imputed))
    beside = (8 * PIECE_BYTES + d * 8 * (12 + 2 * k)) * (model.missing == IMPUTE)  # a piece of it, levels, directions
    plan = MemoryPlan(
        limit=limit,
        base=base + GROWTH + THREAD_BASE,
        state=d * 8 * (columns_held(model.algorithm, longest, rank) + 4 * k) + buffer_bytes + beside,
        task=rows,
        threads=1,
        workers=0,
    )
    if limit is not None and plan.predicted_peak > limit:
        raise MemoryRefusedError(_refusal_text(plan, longest if waits else None, rank if grows(model.algorithm) else 0))
    return plan


def largest_batch(algorithm: Any, d: int, batch_rows: int) -> int:
    """The most rows that an algorithm may want at once."""
    if isinstance(algorithm, MiniBatchMSG):
        return max(algorithm.largest_batch(d), algorithm.largest_start(d))
    return batch_rows


def grows(algorithm: Any) -> bool:
    """Say whether the rank of the iterate depends on the data."""
    return isinstance(algorithm, MSG)


def columns_held(algorithm: Any, batch_rows: int, rank: int) -> int:
    """Columns of length d that an update holds at its peak, beside the batch: measured, a little more than arrays."""
    k = algorithm.target_rank
    if isinstance(algorithm, StreamPower):
        return 6 * algorithm.iteration_rank
    if isinstance(algorithm, FrequentDirections):
        return 6 * algorithm.sketch_rows
    if isinstance(algorithm, OnlineTensorPower):
        return 6 * (k + algorithm.restarts) + 2 * PIECE_ROWS
    if isinstance(algorithm, MiniBatchMSG):
        return 8 * k
    if grows(algorithm):
        return 3 * max(4 * k, rank) + 5 * batch_rows
    return 8 * k


def _refusal_text(plan: MemoryPlan, longest: int | None, rank: int) -> str:
    """``longest``: rows of the longest step, of an algorithm that chooses that itself; ``rank``: if it grows."""
    remedies = [f"set memory to at least {-(-plan.predicted_peak // MIB)}MiB"]
    if longest is not None:
        remedies.append(
            f"or smaller options batch_rows and warm_rows (a step may want {longest} rows where its test never holds)"
        )
    elif plan.task > MIB:
        remedies.append("or a smaller batch_rows")
    if rank:
        remedies.append(f"or choose mb-msg, whose rank stays k (that of the model has grown to {rank})")
    return (
        f"memory = {(plan.limit or 0) // MIB}MiB is too small: the stream needs {-(-plan.predicted_peak // MIB)} MiB "
        f"({plan.base // MIB} for the process as it is, {plan.state // MIB} for the model and the chunk that is read, "
        f"{plan.task // MIB} for a batch); {', '.join(remedies)}"
    )


# What is known of a stream before its first row.


def stream_facts(problem: StreamProblem, resources: Resources) -> dict[str, Any]:
    """The model that would be made, and what it would need. Nothing is read.

    Raises
    ------
    MemoryRefusedError
        The memory that is allowed does not suffice.
    """
    model, opened, batch_rows = problem.model, problem.opened, problem.request.batch_rows
    held = problem.held_out.rows if problem.held_out else 0
    plan = plan_stream(model, batch_rows, problem.beside_bytes, limit=resources.memory, base=tree_rss())
    return {
        "source": opened.name,
        "rows": opened.rows,
        "columns": model.d,
        **{f"algorithm.{name}": value for name, value in model.facts()["algorithm"].items()},
        "batch_rows": batch_rows,
        "largest_batch": largest_batch(model.algorithm, model.d, batch_rows),
        "held_out_rows": held,
        "predicted_peak_bytes": plan.predicted_peak,
        "memory_limit_bytes": plan.limit,
    }
