"""Whether a sample is enough: how often what a plan promises of runs on a share of the rows holds."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache

from benchmarks.registry import Context, Measured, Row
from benchmarks.sample_cases import MISSED, Coverage, measure

PROBLEMS = 40  # of each family


@cache
def _found(count: int) -> dict[str, Coverage]:
    return measure(count)


def _measure(context: Context, which: str) -> Measured:
    found = _found(context.sized(2, PROBLEMS))
    details = {family: asdict(one) for family, one in found.items()}
    return Measured(getattr(found[f"all but {MISSED}"], which), details)


ROWS = (
    Row(
        name="sample-error-angle",
        what="share of promised angles that held, from samples of 150 to 1200 rows of eight kinds",
        target=0.9,
        run=lambda context: _measure(context, "angles_held"),
    ),
    Row(
        name="sample-error-loss",
        what="the same of promised losses of variance",
        target=0.9,
        run=lambda context: _measure(context, "losses_held"),
    ),
)
