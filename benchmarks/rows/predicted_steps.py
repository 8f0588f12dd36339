"""Steps that a plan promises against steps that the run needs, on random planted spectra."""

from __future__ import annotations

from functools import cache
from typing import Any

from benchmarks.registry import Context, Measured, Row
from benchmarks.step_cases import compare, shares

CASES = 200
SAMPLES = (1200, 150)  # rows: those of a plan, and few
LAWS = ("gaussian", "heavy-tailed", "sorted")  # of the rows of samples and matrices


@cache
def _found(count: int) -> dict[str, Any]:
    given = shares([compare(number) for number in range(count)])
    sampled = {
        f"sample of {rows} rows" + ("" if law == "gaussian" else f", {law}"): shares(
            [compare(number, rows=rows, law=law) for number in range(count)]
        )
        for law in LAWS
        for rows in SAMPLES
    }
    return {"spectrum given": given} | sampled


def _measure(context: Context, figure: str) -> Measured:
    found = _found(context.sized(20, CASES))
    given = found["spectrum given"]
    missed = given["missed"] if figure == "within_factor" else given["too_few"]
    return Measured(given[figure], found, f"missed: {'; '.join(missed[:3])}")


ROWS = (
    Row(
        name="predicted-steps",
        what="share of 200 random planted problems (power, krylov; samples, matrices, symmetric; p = k..4k; tol 1e-3.."
        "1e-10) whose steps are predicted within a factor 1.5 from their spectrum",
        target=0.95,
        run=lambda context: _measure(context, "within_factor"),
    ),
    Row(
        name="predicted-steps-short",
        what="share of the same problems that needed more steps than were predicted",
        target=0.05,
        better="lower",
        run=lambda context: _measure(context, "promised_too_few"),
    ),
)
