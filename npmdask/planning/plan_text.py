"""A plan as lines for people."""

from __future__ import annotations

from npmdask.numerics.units import time_text
from npmdask.planning.plan import Plan
from npmdask.planning.tensor import TensorPlan

MIB = 2**20


def lines(plan: Plan | TensorPlan) -> list[str]:
    """One line for every thing that a person decides by."""
    if isinstance(plan, TensorPlan):
        return plan.lines()
    table = {
        "data": _data(plan),
        "passes": _passes(plan),
        "bytes": _bytes(plan),
        "seconds": _seconds(plan),
        "memory": _memory(plan),
        "runs as": _runs(plan),
        "reading": f"{plan.reading.how}: {plan.reading.why}",
        "chunks": _chunks(plan),
        "columns": _columns(plan),
        **({} if plan.outlook is None else plan.outlook.lines()),
    }
    return [f"{name:9} {said}" for name, said in table.items()]


def _data(plan: Plan) -> str:
    rows, columns = plan.shape
    return f"{plan.source}: {rows} x {columns} {plan.dtype}, kind {plan.kind}"


def _passes(plan: Plan) -> str:
    limit = f"at most {plan.max_steps + plan.other_passes} (max_steps = {plan.max_steps})"
    if plan.steps is None:
        return f"not known before the run; {limit}"
    assert plan.outlook is not None
    sample = plan.outlook.source
    more = f", {plan.other_passes} of them for column means or left vectors" if plan.other_passes else ""
    if not plan.outlook.reached:
        return f"the tolerance {plan.tol:.0e} will probably not be reached ({sample}); {limit}"
    return f"about {plan.passes} ({sample}{more}); {limit}"


def _bytes(plan: Plan) -> str:
    whole = "" if plan.total_bytes is None else f", about {_gb(plan.total_bytes)} in all"
    return f"{_gb(plan.pass_bytes)} a pass{whole}"


def _seconds(plan: Plan) -> str:
    whole = "" if plan.seconds is None else f", about {time_text(plan.seconds)} in all"
    where = "the data fit into the free memory of this machine" if plan.cached else "from disk in every pass"
    return (
        f"{time_text(plan.pass_seconds)} for the first pass, "
        f"{time_text(plan.later_pass_seconds)} for a later one ({where})"
        f"{whole}; measured here in {plan.measured_seconds:.1f} s"
    )


def _memory(plan: Plan) -> str:
    m = plan.memory
    limit = f"of {m.limit / MIB:.0f} MiB" if m.limit else "(no limit set)"
    return (
        f"predicted peak {m.predicted_peak / MIB:.0f} MiB {limit}: {m.base / MIB:.0f} for the processes, "
        f"{m.state / MIB:.0f} for the blocks of the algorithm, {m.task / MIB:.0f} for each of "
        f"{m.threads * max(1, m.workers)} tasks"
    )


def _runs(plan: Plan) -> str:
    m = plan.memory
    where = f"{m.workers} processes x {m.threads} threads" if m.workers else f"{m.threads} threads of one process"
    return f"{where}; a pass is {plan.runs} {'task' if plan.runs == 1 else 'tasks'}"


def _chunks(plan: Plan) -> str:
    if not plan.layout.reasons:
        return f"fine as they are ({plan.layout.chunk_bytes / MIB:.3g} MiB each)"
    shape = f", chunks of {plan.layout.chunks[0]} x {plan.layout.chunks[1]}" if plan.layout.chunks else ""
    return f"{'; '.join(plan.layout.reasons)}. Better{shape}: `{plan.layout.command}`"


def _columns(plan: Plan) -> str:
    now, free = f"iteration_rank = {plan.iteration_rank}", plan.free_rank
    if free <= plan.iteration_rank:
        return f"{now}; more would cost time: the arithmetic takes as long as the reading, or memory is short"
    costs = "the arithmetic takes no longer than the reading" if plan.cached else "costs no time here"
    said = f"{now}; up to p = {free} {costs}"
    if plan.free_rank_steps is None or plan.free_rank_seconds is None:
        return said
    passes, seconds = plan.free_rank_steps + plan.other_passes, time_text(plan.free_rank_seconds)
    return f"{said}: iteration_rank = {free} would need about {passes} passes, {seconds} in all"


def _gb(n: int) -> str:
    return f"{n / 1e9:.3g} GB" if n >= 1e8 else f"{n / 1e6:.3g} MB"
