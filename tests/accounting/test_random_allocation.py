"""Random allocation and shuffling: bounds above the truth, by other means, and not far; refusals; the ways compared."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npmdask.accounting import (
    Budget,
    allocation_delta,
    allocation_stddev,
    amplification,
    delta_for,
    mean_stddev,
    shuffled_epsilon,
    shuffled_multiplier,
)
from npmdask.accounting.amplification import _add, _single, _Sum
from npmdask.errors import BadInputError, RefusedError

ONE = Budget(1.0, 1e-6)


@given(st.floats(0.3, 20.0), st.floats(0.0, 3.0))
@settings(deadline=None, max_examples=50)
def test_one_step_is_the_gaussian_mechanism(stddev: float, epsilon: float) -> None:
    """Exactly known: never below, and not far above. Fails where mass is moved to the nearest point, or a tail lost."""
    exact = delta_for(1 / stddev, epsilon)
    found = allocation_delta(stddev, 1, epsilon, 2000)
    assert exact * (1 - 1e-12) <= found
    if exact > 1e-8:
        assert found <= 1.01 * exact


def simulated(stddev: float, steps: int, epsilon: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Both directions, with the standard errors: from draws of P and of Q, not of Q alone."""
    draws = stddev * np.random.default_rng(0).standard_normal((200_000, steps))
    grown = math.exp(epsilon)
    ratio_q = np.exp(draws / stddev**2 - 0.5 / stddev**2).mean(axis=1)
    draws[:, 0] += 1
    ratio_p = np.exp(draws / stddev**2 - 0.5 / stddev**2).mean(axis=1)
    values = np.maximum(1 - grown / ratio_p, 0.0), np.maximum(1 - grown * ratio_q, 0.0)
    return tuple((float(v.mean()), float(v.std()) / math.sqrt(len(v))) for v in values)  # type: ignore[return-value]


@pytest.mark.slow
@pytest.mark.parametrize("stddev, steps, epsilon", [(1.0, 10, 1.0), (0.6, 10, 1.0), (0.6, 33, 0.5), (2.0, 3, 0.1)])
def test_random_allocation_by_simulation(stddev: float, steps: int, epsilon: float) -> None:
    """Within 4 %, and not below by more than chance. Fails with a step too few or the other direction alone."""
    more, less = simulated(stddev, steps, epsilon)
    wanted, error = max(more, less)
    found = allocation_delta(stddev, steps, epsilon)
    assert found > wanted - 4 * error
    assert found < 1.04 * wanted + 4 * error


@pytest.mark.slow
def test_at_epsilon_zero_both_directions_are_the_total_variation() -> None:
    """Fails where terms of P are counted as terms of Q."""
    more, less = simulated(0.6, 10, 0.0)
    assert more[0] == pytest.approx(less[0], rel=0.02)
    assert allocation_delta(0.6, 10, 0.0) == pytest.approx(less[0], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("steps, known", [(10, 1.649), (100, 0.961), (1000, 0.696)])
def test_stddevs_that_were_found_by_another_convolution(steps: int, known: float) -> None:
    """At (1, 1e-6), within 4 %, and much below known batches (4.22)."""
    found = allocation_stddev(ONE, steps, 200)
    assert 0.96 * known < found < 1.04 * known
    assert allocation_delta(found, steps, 1.0, 200) <= 1e-6
    assert allocation_delta(found * 0.99, steps, 1.0, 200) > 1e-6


def test_a_coarser_grid_is_never_below_a_finer_one() -> None:
    """Convex order. Fails where values are rounded to the nearest point."""
    deltas = [allocation_delta(0.8, 37, 1.0, points) for points in (40, 80, 160, 640)]
    assert all(coarse > fine for coarse, fine in pairwise(deltas))


def test_sums_keep_mass_and_mean() -> None:
    """1 and t; what lies beyond the last point is in the excess. Fails where either is dropped."""
    one = _single(0.7, 300)
    two = _add(one, one)
    cut = _add(two, _Sum(np.array([0.0, 1.0, 5.0]), np.array([0.5, 0.5, 0.0]), 0.0))
    for total, mean in ((one, 1.0), (two, 2.0), (cut, 2.5)):
        assert total.masses.min() >= 0
        assert total.masses.sum() == pytest.approx(1.0, abs=1e-12)
        assert total.values @ total.masses + total.excess == pytest.approx(mean, rel=1e-11)


@pytest.mark.slow
def test_grids_that_end_too_early_are_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends at 1.5 standard deviations, and at 1 % of a sum. Fails where the excess of a term or of a sum is dropped."""
    fine = allocation_delta(0.7, 10, 1.0, 2000)
    monkeypatch.setattr(amplification, "TAIL", 0.01)
    two = _add(_single(0.7, 300), _single(0.7, 300))
    assert two.excess > 1e-3
    assert two.values @ two.masses + two.excess == pytest.approx(2.0, rel=1e-6)
    assert allocation_delta(0.7, 10, 1.0) > fine
    monkeypatch.setattr(amplification, "REACH", 1.5)
    for stddev in (0.5, 1.0):
        assert allocation_delta(stddev, 1, 2.0) > delta_for(1 / stddev, 2.0)


@pytest.mark.slow
def test_more_steps_hide_more_and_allocation_is_never_worse_than_known_batches() -> None:
    stddevs = [allocation_stddev(ONE, steps, 100) for steps in (1, 2, 8, 64)]
    assert stddevs[0] == pytest.approx(4.22468, rel=5e-3)
    assert all(more > fewer for more, fewer in pairwise(stddevs))


@pytest.mark.parametrize("records, known", [(1000, 4.19), (10_000, 1.89), (100_000, 1.25), (1_000_000, 0.950)])
def test_shuffled_multipliers(records: int, known: float) -> None:
    """At (1, 1e-6), found before by another program. Fails with the other half of delta, or without the cap (1000)."""
    assert shuffled_multiplier(ONE, records) == pytest.approx(known, rel=4e-3)


def test_the_formula_of_the_shuffle() -> None:
    """By hand: n = 10^4, delta = 1e-6, local epsilon 2."""
    clones = 8 * math.sqrt(math.e**2 * math.log(4e6) / 1e4) + 8 * math.e**2 / 1e4
    wanted = math.log(1 + (math.e**2 - 1) / (math.e**2 + 1) * clones)
    assert shuffled_epsilon(2.0, 10_000, 1e-6) == pytest.approx(wanted, rel=1e-9)


def test_a_shuffle_is_refused_where_its_theorem_says_nothing() -> None:
    """ln(10^4 / (16 ln(2e6))) = 3.76. Fails if the condition is left out: the formula would still give a number."""
    assert shuffled_epsilon(3.76, 10_000, 1e-6) > 1
    with pytest.raises(RefusedError, match="up to ln"):
        shuffled_epsilon(3.77, 10_000, 1e-6)
    with pytest.raises(RefusedError, match="gives no amplification"):
        shuffled_multiplier(ONE, 240)
    with pytest.raises(BadInputError, match="delta = 0"):
        shuffled_multiplier(Budget(1.0), 10_000)


@pytest.mark.slow
def test_the_ways_compared() -> None:
    """n = 10^4, T = 100, in units of 1 / n. Fails where the noise of a batch is that of a record, or T for its root."""
    found = {way: 1e4 * mean_stddev(way, ONE, 10_000, 100) for way in ("one-pass", "shuffle", "allocation", "reuse")}
    assert found["one-pass"] == pytest.approx(422.47, rel=1e-4)
    assert found["shuffle"] == pytest.approx(2 * 1.887 * 1000, rel=1e-3)
    assert found["allocation"] == pytest.approx(96, rel=0.02)
    assert found["reuse"] == pytest.approx(42.247, rel=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: allocation_delta(0.05, 10, 1.0),
        lambda: allocation_delta(1e7, 10, 1.0),
        lambda: allocation_delta(1.0, 0, 1.0),
        lambda: allocation_stddev(Budget(1.0, 1e-13), 10),
        lambda: mean_stddev("reuse", ONE, 10, 11),
        lambda: shuffled_epsilon(1.0, 0, 1e-6),
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(BadInputError):
        wrong()
