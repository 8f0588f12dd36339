"""What a random start cannot miss: the probabilities against simulation, the losses against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npmdask.core.certificates.bounds import (
    loss_of_chebyshev,
    loss_of_powers,
    smallest_singular_value,
    tangents,
    upper_values,
)


@pytest.mark.parametrize(("q", "p"), [(1, 1), (1, 6), (2, 2), (5, 5), (5, 8), (4, 20)])
def test_smallest_singular_values_are_not_below_what_is_said(q: int, p: int) -> None:
    """4,000 draws; with probability 0.05 each is allowed to be below: more than 6 % of them has a chance below 0.002.

    Without the factor sqrt(2 pi w), or with p in place of w, the bound is exceeded for (5, 8).
    """
    rng = np.random.default_rng(q * 100 + p)
    drawn = np.linalg.svd(rng.standard_normal((4000, q, p)), compute_uv=False)[:, -1]
    assert (drawn < smallest_singular_value(q, p, 0.05)).mean() <= 0.06


def test_the_smallest_singular_value_of_a_number_is_exact() -> None:
    """|N(0, 1)| <= y has probability y sqrt(2 / pi) at most; and nearly so for small y."""
    y = smallest_singular_value(1, 1, 0.01)
    assert math.erf(y / math.sqrt(2)) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.slow
def test_tangents_of_all_q_at_once() -> None:
    """2,000 starts: all of ||Omega_2 Omega_1^+|| below their bounds except with probability 0.1 (and never far off)."""
    d, p, rng = 12, 4, np.random.default_rng(3)
    bounds, missed = tangents(d, p, 0.1), 0
    for _ in range(2000):
        omega = rng.standard_normal((d, p))
        found = [np.linalg.norm(omega[q:] @ np.linalg.pinv(omega[:q]), 2) for q in range(1, p + 1)]
        missed += bool((np.array(found) > bounds).any())
    assert missed <= 0.1 * 2000
    assert tangents(4, 4, 0.1)[-1] == 0.0  # nothing is left of the start


def test_the_loss_of_powers_is_the_maximum() -> None:
    s = np.linspace(0, 1, 200_001)
    for t, steps, most in [(10, 3, 1.0), (1e4, 12, 1.0), (100, 5, 0.4), (3, 1, 0.9)]:
        inside = s[s <= most]
        y = (t * inside**steps) ** 2
        exact = ((1 - inside) * y / (1 + y)).max()
        assert exact <= loss_of_powers(t, steps, most, 0.0) <= 1.05 * exact


def test_chebyshev_beats_powers_and_uses_a_gap() -> None:
    assert loss_of_chebyshev(1e4, 12, 1.0, 0.0) < 0.5 * loss_of_powers(1e4, 12, 1.0, 0.0)
    y = (100 / (4 * 5**3 - 3 * 5)) ** 2  # T_3(x) = 4 x^3 - 3 x at x = 2 / (1 / 3) - 1
    assert loss_of_chebyshev(100, 3, 1 / 3, 0.0) == pytest.approx(y / (1 + y))
    assert loss_of_chebyshev(100, 0, 0.5, 0.0) == 1.0


def test_rounding_is_carried_into_the_loss() -> None:
    assert loss_of_powers(100, 50, 0.1, 0.0) < 1e-80
    assert loss_of_powers(100, 50, 0.1, 1e-3) == pytest.approx(1e-6, rel=0.2)


def test_a_gap_makes_the_bound_sharp() -> None:
    """Ritz values 1, 0.9, 0.1, ...: after 12 multiplications lambda_2 is known to 1e-9, and the last one hardly."""
    sizes = np.array([1.0, 0.9, 0.1, 0.01, 0.001, 0.0001])
    upper = upper_values(sizes, 500, 6, 12, powers=True, square=False, rounding=0.0, fail_prob=0.01)
    assert upper[0] - 1 < 1e-9 and upper[1] - 0.9 < 1e-9 and upper[5] > 0.0001
    assert (np.diff(upper) <= 0).all() and (upper >= sizes).all()


def test_nothing_is_known_before_the_first_multiplication() -> None:
    sizes = np.array([1.0, 0.1])
    upper = upper_values(sizes, 500, 2, 0, powers=True, square=False, rounding=0.0, fail_prob=0.01)
    assert (upper > 100).all()
