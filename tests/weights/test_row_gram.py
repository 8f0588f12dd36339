"""The small Gram matrix of rows that have weights."""

from __future__ import annotations

import pytest

from tests.core.algorithms.test_row_gram import wrong


@pytest.mark.slow
def test_no_random_problem_is_wrong_and_called_converged() -> None:
    found = [said for seed in range(70) if (said := wrong(seed, weighted=True))]
    assert not found, found


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(10))
def test_none_of_thousands_is(part: int) -> None:
    found = [said for seed in range(300 * part, 300 * part + 300) if (said := wrong(seed, weighted=True))]
    assert not found, found
