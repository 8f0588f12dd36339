"""The audit is tested as a test is: by what it must reject."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mutants import MUTANTS, Mutant
from tests.conftest import often

pytestmark = pytest.mark.slow  # many whole runs: too long for `make check`

PAGE = Path(__file__).resolve().parents[2] / "docs" / "papers" / "audit.md"


def kinds(problems: tuple[str, ...]) -> set[str]:
    return {problem.split(":")[0] for problem in problems}


@pytest.mark.parametrize("mutant", often(MUTANTS, 0, 4, 6, 8, 9, 10, 12, 13), ids=lambda mutant: mutant.name)
def test_every_mutant_is_rejected_by_the_checks_that_should_see_it(mutant: Mutant) -> None:
    """Each attack rejects at 10^-6; the path-wise check has no sampling error at all."""
    finding = mutant.audited()
    assert not finding.passed and finding.verdict.startswith("REJECTED")
    assert kinds(finding.problems) == mutant.caught_by, finding.verdict


def test_a_leaked_trace_is_not_seen_by_the_pair_that_attains_the_sensitivity() -> None:
    """Why there is a second pair: with d = p this mutant passes."""
    leaked = next(mutant for mutant in MUTANTS if "Rayleigh" in mutant.name)
    assert leaked.audited(pair="attains").passed and not leaked.audited(pair="wide").passed


def test_without_what_it_breaks_a_mutant_passes() -> None:
    """The audit rejects the mistake, not the way in which mutants are made."""
    assert Mutant(name="none", relation="symmetric_entry").audited().passed


def test_the_page_lists_the_mutants_as_they_are() -> None:
    page = PAGE.read_text()
    for mutant in MUTANTS:
        seen = ["yes" if check in mutant.caught_by else "no" for check in ("path-wise check", "attack")]
        assert f"\n{mutant.name} | {mutant.pair} | {' | '.join(seen)}\n" in page, mutant.name
