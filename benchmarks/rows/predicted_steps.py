"""Steps that a plan promises against steps that the run needs, on random planted spectra."""

from __future__ import annotations

from functools import cache
from typing import Any

from benchmarks.registry import Context, Measured, Row
from benchmarks.step_cases import compare_samples, shares

CASES = 200
SAMPLES = (1200, 150)  # rows: those of a plan, and few
LAWS = ("gaussian", "heavy-tailed", "sorted")  # of the rows of samples and matrices


@cache
def _found(count: int) -> dict[str, Any]:
    found = {}
    for law in LAWS:
        samples = (None, *SAMPLES) if law == LAWS[0] else SAMPLES  # the spectrum itself knows no law of the rows
        compared = [compare_samples(number, samples, law) for number in range(count)]
        for rows, column in zip(samples, zip(*compared, strict=True), strict=True):
            name = "spectrum given" if rows is None else f"sample of {rows} rows"
            found[name + ("" if law == LAWS[0] else f", {law}")] = shares(list(column))
    return found


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
