"""A few problems of every family: nothing that is stated is wrong. `make certificates` tries thousands."""

from __future__ import annotations

import pytest

from tests.conftest import often
from tests.theory.families.catalogue import NIGHTLY, run_some, seed_of_today
from tests.theory.families.report import report

SEED = 58
SLOW = {"large": 1, "exports": 2, "latent": 2, "intervals": 3, "em": 3, "ties": 5}  # of a second or more for a few


@pytest.mark.slow
@pytest.mark.parametrize("part", often(range(4), 0))
@pytest.mark.parametrize("family", NIGHTLY)
def test_what_is_stated_is_so(family: str, part: int) -> None:
    count = SLOW.get(family, 8)
    holds(family, SEED, range(part * count, (part + 1) * count))


@pytest.mark.slow
@pytest.mark.parametrize("family", NIGHTLY)
def test_what_is_stated_today_is_so(family: str) -> None:
    """Two other problems every day; where one fails, the message is the call that repeats it."""
    holds(family, seed_of_today(), range(2 if family not in SLOW else 1))


def holds(family: str, seed: int, numbers: range) -> None:
    cases = run_some(family, seed, numbers)
    text, faultless = report(cases, seed)
    assert faultless, text
    assert len(numbers) < 3 or any(case.became in ("right", "refused") for case in cases)
