"""A few problems of every family: nothing that is stated is wrong. `make certificates` tries thousands."""

from __future__ import annotations

import pytest

from tests.conftest import often
from tests.theory.families.catalogue import NIGHTLY, run_some
from tests.theory.families.report import statements

SEED = 58
SLOW = {"large": 1, "exports": 2, "latent": 2, "intervals": 3, "em": 3, "ties": 5}  # of a second or more for a few


@pytest.mark.slow
@pytest.mark.parametrize("part", often(range(4), 0))
@pytest.mark.parametrize("family", NIGHTLY)
def test_what_is_stated_is_so(family: str, part: int) -> None:
    count = SLOW.get(family, 8)
    cases = run_some(family, SEED, range(part * count, (part + 1) * count))
    assert not [(case.number, case.became, case.said) for case in cases if case.became in ("wrong", "crashed")]
    assert any(case.became in ("right", "refused") for case in cases)
    assert statements(cases)[1]
