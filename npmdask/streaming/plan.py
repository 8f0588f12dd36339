"""What is known of a stream before its first row."""

from __future__ import annotations

from typing import Any

from npmdask.execution.process_memory import tree_rss
from npmdask.runs.solution import Resources
from npmdask.streaming.memory import largest_batch, plan_stream
from npmdask.streaming.problem import StreamProblem


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
