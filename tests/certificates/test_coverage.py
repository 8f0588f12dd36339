"""Bounds hold, and are not much too large, over random problems: the real algorithms, answers known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.certificate_cases import draw, solve
from benchmarks.certificate_coverage import Tally, as_markdown, measure
from npmdask.certificates import certify
from npmdask.certificates.words import tells


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


def test_coverage_over_two_hundred_problems() -> None:
    """Seeds are fixed. Mutants tried: no sqrt(d - q) in the tangents, degree one too many, t^2 = 0, D without tau."""
    tallies = measure(220)
    held(tallies)
    assert "| told | value |" in as_markdown(tallies)


@pytest.mark.heavy
def test_coverage_over_thousands() -> None:
    held(measure(3000))


@pytest.mark.parametrize("p", [1, 2, 4, 11])
def test_one_value_above_a_flat_bulk_is_not_passed_over_when_a_run_is_stopped(p: int) -> None:
    """Residuals are small, as nearly all values are alike. With tau = theta + 2 ||R||, a third of these are wrong."""
    told = wrong = 0
    for seed in range(14):
        rng = np.random.default_rng([17, seed])
        values = np.append(rng.uniform(1.05, 1.5), np.linspace(1, 0.95, 119))
        turn = np.linalg.qr(rng.standard_normal((120, 120)))[0]
        problem = replace(draw(0), matrix=(turn * values) @ turn.T, eigenvalues=values, vectors=turn, spectrum="", k=1)
        problem = replace(problem, p=p, steps=int(rng.integers(2, 12)), algorithm="power", stddev=0.0, single=False)
        _, evidence, _ = solve(problem, seed)
        certificate = certify(evidence)
        if tells(certificate):
            told += 1
            wrong += certificate.best.upper[0] < values[0]
    assert not wrong
    assert told >= (3 if p == 1 else 7)
