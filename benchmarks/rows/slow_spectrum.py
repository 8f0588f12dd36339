"""sigma_i = 1 / sqrt(i): passes of the accelerated algorithm against those of the plain power method."""

from __future__ import annotations

from typing import Any

import npmdask
from benchmarks.registry import Context, Measured, Row
from npmdask.core.checkpoint.store import RunStore

K = 20
GOAL = 1e-4  # max sin(theta) to the planted subspace
TOL = {"power": 1e-6, "krylov": 1e-6}  # far below the goal: the run must not stop before it
PLAIN = {"iteration_rank": K + 10}


def measure(context: Context) -> Measured:
    """Count the steps (one pass each) until the goal; both see the same data and the same start."""
    store = context.data["slow"]
    plain = _passes(context, store, "power", **PLAIN)
    fast = _passes(context, store, "krylov")
    wide = _passes(context, store, "power")
    details = {"goal": GOAL, "power, p = k + 10": plain, "krylov": fast, "power, its own p": wide}
    if plain["passes"] is None or fast["passes"] is None:
        return Measured(None, details, failures=(f"sin(theta) {GOAL:.0e} was not reached",))
    return Measured(fast["passes"] / plain["passes"], details, "passes of the first block are the same for both")


def _passes(context: Context, source: Any, algorithm: str, **options: Any) -> dict[str, Any]:
    """The first step at which the largest angle is small enough, from the history of the run."""
    run = context.folder / f"slow-{algorithm}-{options.get('iteration_rank', 'own')}"
    solution = npmdask.top_k(source, K, tol=TOL[algorithm], store=run, algorithm=algorithm, **options)
    last = RunStore(run).last_step()
    angles = [entry["max_sin_theta"] for entry in last[1]["history"]] if last else []
    reached = next((number for number, angle in enumerate(angles, 1) if angle <= GOAL), None)
    return {"passes": reached, "passes_in_all": solution.total_data_passes, "max_sin_theta": solution.max_sin_theta}


ROWS = (
    Row(
        name="slow-spectrum",
        what="passes to sin(theta) <= 1e-4, sigma_i = 1/sqrt(i), k = 20: krylov / power with p = k + 10",
        target=0.4,
        better="lower",
        run=measure,
        data=("slow",),
    ),
)
