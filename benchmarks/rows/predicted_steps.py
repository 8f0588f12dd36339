"""Steps that a plan promises against steps that the run needs, on random planted spectra."""

from __future__ import annotations

from functools import cache
from typing import Any

from benchmarks.registry import Context, Measured, Row
from benchmarks.step_cases import compare_samples, shares

CASES = 200
SAMPLES = (1200, 150)  # rows: those of a plan, and few
LAWS = ("gaussian", "heavy-tailed", "sorted", "drifting", "real")  # of the rows of samples and matrices


@cache
def _found(count: int) -> dict[str, Any]:
    found = {}
    for law in LAWS:
        samples = (None, *SAMPLES) if law == LAWS[0] else SAMPLES  # the spectrum itself knows no law of the rows
        compared = [compare_samples(number, samples, law) for number in range(count)]
        for rows, column in zip(samples, zip(*compared, strict=True), strict=True):
            found[_name(rows, law)] = shares(list(column))
    return found


def _name(rows: int | None, law: str) -> str:
    name = "spectrum given" if rows is None else f"sample of {rows} rows"
    return name + ("" if law == LAWS[0] else f", {law}")


def _measure(context: Context, figure: str) -> Measured:
    found = _found(context.sized(20, CASES))
    given = found["spectrum given"]
    missed = given["missed"] if figure == "within_factor" else given["too_few"]
    return Measured(given[figure], found, f"missed: {'; '.join(missed[:3])}")


def _of_samples(context: Context) -> Measured:
    """The least share over all laws of rows, where a sample of them is all that is known."""
    found = _found(context.sized(20, CASES))
    shares_of = {law: found[_name(SAMPLES[0], law)]["within_factor"] for law in LAWS}
    worst = min(shares_of, key=lambda law: shares_of[law])
    missed = "; ".join(found[_name(SAMPLES[0], worst)]["missed"][:3])
    few = {law: found[_name(SAMPLES[1], law)]["within_factor"] for law in LAWS}
    details = {f"sample of {rows} rows": held for rows, held in zip(SAMPLES, (shares_of, few), strict=True)}
    return Measured(shares_of[worst], details, f"the worst are {worst} rows; missed: {missed}")


ROWS = (
    Row(
        name="predicted-steps-sample",
        what=f"the same from {SAMPLES[0]} rows: the least of i.i.d., heavy-tailed, sorted, drifting and real rows",
        target=0.95,
        run=_of_samples,
    ),
    Row(
        name="predicted-steps",
        what="share of 200 random problems whose steps are predicted within a factor 1.5 from their spectrum",
        target=0.95,
        run=lambda context: _measure(context, "within_factor"),
    ),
    Row(
        name="predicted-steps-short",
        what="share of them that needed more steps than predicted",
        target=0.05,
        better="lower",
        run=lambda context: _measure(context, "promised_too_few"),
    ),
)
