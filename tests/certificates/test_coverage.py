"""Bounds hold, and are not much too large, over random problems: the real algorithms, answers known."""

from __future__ import annotations

import pytest

from benchmarks.certificate_coverage import Tally, as_markdown, measure


def held(tallies: dict[tuple[str, str], Tally]) -> None:
    """Nothing that claims no more than a theorem fails; what is said to a person fails rarely, and says enough."""
    for (ground, claim), tally in tallies.items():
        if ground in ("always", "random start"):
            assert tally.covered == tally.claimed, (ground, claim)
        else:
            assert tally.coverage >= 0.98, (ground, claim)
    for claim in ("value", "angle", "low rank"):
        assert tallies["told", claim].overestimate <= 3, claim
    assert tallies["told", "value"].claimed >= 0.85 * tallies["told", "value"].problems
    assert tallies["told", "angle"].claimed >= 0.45 * tallies["told", "angle"].problems


def test_coverage_over_a_hundred_and_fifty_problems() -> None:
    """Seeds are fixed. Mutants tried: no sqrt(d - q) in the tangents, degree one too many, SAFE = 0, D without tau."""
    tallies = measure(150)
    held(tallies)
    assert "| told | value |" in as_markdown(tallies)


@pytest.mark.heavy
def test_coverage_over_thousands() -> None:
    held(measure(2500))
