"""The audit is tested as a test is: by what it must reject."""

from __future__ import annotations

import pytest

from benchmarks.mutants import MUTANTS, Mutant


def kinds(problems: tuple[str, ...]) -> set[str]:
    return {problem.split(":")[0] for problem in problems}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_rejected_by_the_checks_that_should_see_it(mutant: Mutant) -> None:
    """Each attack rejects at 10^-6; the path-wise check has no sampling error at all."""
    finding = mutant.audited()
    assert not finding.passed and finding.verdict.startswith("REJECTED")
    assert kinds(finding.problems) == mutant.caught_by, finding.verdict
