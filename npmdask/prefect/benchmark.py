"""Rows of ``python -m benchmarks`` as a Prefect flow; also ``python -m flows.benchmark '{"rows": ["pass-warm"]}'``.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

from typing import Annotated, Any, Literal

from prefect import flow

from npmdask.prefect.flow_run import end_state, place_of, said_in_a_sentence
from npmdask.prefect.heartbeat import tended
from npmdask.prefect.measuring import choose, facts_of, measure, show
from npmdask.prefect.parameters import Folder, RunId, said


@flow(name="benchmark", persist_result=False)
@said_in_a_sentence
@tended
def benchmark(
    rows: Annotated[
        list[str] | None, said("names, as `python -m benchmarks --list` shows them; all if left out")
    ] = None,
    scale: Annotated[Literal["small", "medium", "full"], said("of the data; figures mean something at full")] = "small",
    run_id: RunId = "benchmark",
    folder: Folder = "runs",
) -> Any:
    """Figures beside their targets, row by row. The same run id again measures what it has not yet."""
    store = place_of(folder, run_id)
    names = choose(rows, scale, store)
    lines = []
    for name in names:
        lines.append(measure(name, scale, store))
        show(run_id, lines, len(names))
    return end_state(facts_of(lines, store))
