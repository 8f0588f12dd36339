"""Means: sensitivities by brute force, exact sums, the paper's constants."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from npmdask.dp_pca.base import RELATIONS, SimulatedNoise, sum_sensitivity
from npmdask.dp_pca.private_mean import ClippedMean, PaperMean, histogram_epsilon, paper_mean_cost
from npmdask.errors import BadInputError

NOISE = SimulatedNoise(0)
RADIUS = 0.7


def clipped(relation: str = "record_replace", count: int = 3, multiplier: float = 2.0) -> ClippedMean:
    return ClippedMean(relation=relation, radius=RADIUS, count=count, multiplier=multiplier)


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_neighbour_moves_the_sum_by_more_than_is_said_and_one_by_as_much(relation: str) -> None:
    """All pairs of records, in integers: fails if a zeroed record counts as -centre, if a norm is above the radius by
    a rounding, or with radius for 2 radius."""
    rng = np.random.default_rng(0)
    directions = [rng.standard_normal(3) for _ in range(6)]
    records = [s * 10.0**e * v for v in directions for s in (1, -1) for e in (-12, -1, 0, 3, 160, 300)]
    no_other = {"record_zero_out": [np.zeros(3)], "record_add_remove": [np.zeros((0, 3))]}
    others = no_other.get(relation, [*records, np.zeros(3), np.full(3, np.nan)])
    allowed = sum_sensitivity(relation, RADIUS) / clipped(relation).grid
    worst = 0.0
    for centre in (np.zeros(3), 5 * directions[0], 0.1 * directions[1]):
        sums = {id(x): clipped(relation).summary(x.reshape(-1, 3), centre) for x in [*records, *others]}
        for a, b in product(records, others):
            square = sum(int(x) ** 2 for x in sums[id(a)] - sums[id(b)])
            worst = max(worst, square)
            assert square <= allowed**2
    assert math.sqrt(worst) > 0.99 * allowed


def test_sums_are_exact_in_any_order_and_in_parts() -> None:
    """Fails where anything is summed in floats that round."""
    images = np.random.default_rng(1).standard_normal((5000, 4)) * 10.0 ** np.arange(-3, 1)
    mechanism, centre = clipped(count=5000), np.array([0.3, 0.0, -0.1, 0.2])
    whole = mechanism.summary(images, centre)
    assert whole.dtype == np.int64
    np.testing.assert_array_equal(whole, mechanism.summary(images[::-1].copy(), centre))
    parts = [mechanism.summary(images[i : i + 7], centre) for i in range(0, 5000, 7)]
    np.testing.assert_array_equal(whole, np.sum(parts, axis=0))


def test_noise_has_the_stddev_that_is_said() -> None:
    """2 radius multiplier / count. Fails with 1.5 times as much, or a missing 2."""
    mechanism = clipped(count=50)
    assert mechanism.stddev == pytest.approx(2 * RADIUS * 2.0 / 50, rel=1e-5)
    assert mechanism.charge().mu == pytest.approx(0.5, rel=1e-12)
    zero, sums = np.zeros(500), np.zeros(500, np.int64)
    drawn = np.array([mechanism.release(sums, zero, NOISE, str(i)) for i in range(20)])
    assert 0.96 < drawn.std() / mechanism.stddev < 1.04


def test_a_mean_within_the_radius_is_the_mean() -> None:
    """Fails if the centre is not added back, or the divisor is another."""
    images = np.random.default_rng(2).uniform(-0.1, 0.1, (1000, 3)) + np.array([7.0, 0.0, -3.0])
    mechanism = ClippedMean(relation="record_replace", radius=1.0, count=1000, multiplier=1e-3)
    centre = np.array([7.1, 0.1, -3.1])
    mean = mechanism.release(mechanism.summary(images, centre), centre, NOISE, "m")
    np.testing.assert_allclose(mean, images.mean(axis=0), atol=2e-5)


def test_other_releases_get_other_noise_and_the_same_the_same() -> None:
    """Fails where the radius, the centre or the purpose is left out of what the noise depends on."""
    sums, zero = np.zeros(4, np.int64), np.zeros(4)
    first = clipped().release(sums, zero, NOISE, "a")
    np.testing.assert_array_equal(first, clipped().release(sums, zero, NOISE, "a"))
    wider = ClippedMean(relation="record_replace", radius=0.75, count=3, multiplier=2.0)
    others = [
        clipped().release(sums, zero, NOISE, "b"),
        clipped().release(sums, zero + 1, NOISE, "a") - 1,
        wider.release(sums, zero, NOISE, "a") * 0.7 / 0.75,
    ]
    for other in others:
        assert np.abs(other - first).min() > 1e-6


def paper(**given: float) -> PaperMean:
    return PaperMean(**{"epsilon": 0.5, "delta": 0.005, "spread": 2.0, "count": 4000, "fail_prob": 0.01, **given})


def test_the_papers_constants() -> None:
    """Algorithm 7 with log^a(25) (3.22, not the printed 10.36): fails with either erratum undone."""
    root = math.sqrt(2.0)
    assert paper().width == pytest.approx(2**0.25 * root * 3.2189, rel=1e-4)
    log = math.log(4000 * 200 / 0.01)
    assert paper().radius(200) == pytest.approx(3 * root * log)
    noise = 12 * root * log * math.sqrt(2 * 200 * math.log(2.5 / 0.005)) / (0.5 * 4000)
    assert paper().stddev(200) == pytest.approx(noise)


def test_the_papers_coordinates_need_ten_thousand_records_in_one_bin() -> None:
    """10,490 for d = 200 at (0.5, 0.005), whatever the batch: why its figures with B = sqrt(n) cannot be private."""
    assert 10_400 < paper().histogram(200).threshold < 10_600


def test_no_neighbour_moves_the_papers_sum_by_more_than_its_noise_pays_for() -> None:
    """2 radius in every coordinate, attained to a grid. The sum is seen through noise that is the same twice."""
    mechanism, d = paper(count=2), 3
    radius = mechanism.radius(d)
    images = np.full((2, d), 1e9)
    one, other = (mechanism.release(np.vstack([images[:1], s * images[1:]]), images[0], NOISE, "p") for s in (1, -1))
    moved = float(np.linalg.norm(one - other)) * mechanism.count
    assert moved <= 2 * radius * math.sqrt(d) * (1 + 1e-12)
    assert moved > 0.999 * 2 * radius * math.sqrt(d)
    multiplier = mechanism.stddev(d) * mechanism.count / (2 * radius * math.sqrt(d))
    assert multiplier == pytest.approx(2 * math.sqrt(2 * math.log(2.5 / 0.005)) / 0.5)


@pytest.mark.parametrize("epsilon, delta", [(1.0, 0.005), (0.05, 1e-6), (8.0, 0.01)])
def test_the_papers_mean_costs_what_its_parts_add_up_to_in_any_dimension(epsilon: float, delta: float) -> None:
    """Each part from its own parameters. Fails where the histograms or the Gaussian are left out, or grow with d."""
    cost, lone = paper_mean_cost(epsilon, delta)
    for d in (1, 30, 10**7):
        mechanism = paper(epsilon=epsilon, delta=delta)
        each, delta_each = mechanism.histogram(d).cost()
        gaussian = mechanism.stddev(d) * mechanism.count / (2 * mechanism.radius(d) * math.sqrt(d))
        mu_squared = d * math.pi / 2 * each**2 + gaussian**-2
        assert mu_squared <= cost.mu_squared < 1.05 * mu_squared
        assert d * delta_each == pytest.approx(lone, rel=1e-9)
        assert each == pytest.approx(histogram_epsilon(epsilon, delta, d), rel=0.05)


def test_a_mean_locates_coordinates_if_there_are_enough_records() -> None:
    """Fails where the centre is not used: without it 1000 would be clipped to the radius."""
    images = np.random.default_rng(3).standard_normal((4000, 2)) + np.array([1000.0, 0.0])
    mechanism = paper(spread=1.0, epsilon=1.0)
    mean = mechanism.release(mechanism.summary(images, np.zeros(2)), np.zeros(2), NOISE, "located")
    np.testing.assert_allclose(mean, images.mean(axis=0), atol=1.5)


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadInputError):
        clipped(count=0)
    with pytest.raises(BadInputError):
        paper(spread=0.0)
    with pytest.raises(BadInputError):
        ClippedMean(relation="record_replace", radius=0.0, count=1, multiplier=1.0)
