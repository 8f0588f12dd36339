"""Certificates hold what they claim: over thousands of random problems, whose answers are known."""

from __future__ import annotations

import math

from benchmarks.certificate_coverage import measure
from benchmarks.registry import Context, Measured, Row

RIGOROUS = ("always", "random start")
TIGHT = ("value", "angle", "low rank")
FIRST = 300_000  # seeds of problems by which no constant was chosen


def run(context: Context) -> Measured:
    tallies = measure(context.sized(150, 3000), FIRST)
    held = {
        f"{ground}: {claim}": f"{t.covered} of {t.claimed}, {t.overestimate:.3g} times"
        for (ground, claim), t in sorted(tallies.items())
    }
    rigorous = min(t.coverage for (ground, _), t in tallies.items() if ground in RIGOROUS)
    assumed = min(t.coverage for (ground, _), t in tallies.items() if ground == "none missed")
    overestimates = {claim: tallies["told", claim].overestimate for claim in TIGHT}
    told = min(t.coverage for (ground, _), t in tallies.items() if ground == "told")
    failures = [f"a bound without assumptions held in {rigorous:.2%} of the problems only"] if rigorous < 0.99 else []
    failures += [f"what a run says of itself held in {told:.2%} of the problems only"] if told < 0.99 else []
    return Measured(
        max(value for value in overestimates.values() if not math.isnan(value)),
        {
            "least coverage, rigorous": rigorous,
            "least coverage, none missed": assumed,
            "least coverage, told": told,
            **held,
        },
        failures=tuple(failures),
    )


ROWS = [
    Row(
        name="certificate-coverage",
        what="bound / actual error: the largest median, of values, angle and low-rank error",
        target=3.0,
        better="lower",
        run=run,
    )
]
