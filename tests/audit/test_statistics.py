"""The statistics of the audit, on exact Gaussians whose mu is known: they cover, they reject, they never flatter."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, norm

from npmdask.audit import statistics as s
from npmdask.errors import BadInputError

ALPHA = 1e-6


def gaussian_counts(mu: float, runs: int, seed: int, thresholds: tuple[float, ...] = (0.0,)) -> list[s.Counts]:
    """Log-likelihood ratios of an exactly mu-GDP pair."""
    rng = np.random.default_rng(seed)
    here, there = (rng.normal(sign * mu**2 / 2, mu, runs) for sign in (-1, 1))
    return [s.count((here, there), thresholds)]


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.1, 0.2367, 1.0, 2.5])
def test_the_interval_covers_the_mu_of_exact_gaussians(mu: float) -> None:
    """Fails if alpha is not divided (coverage at 90 % would fall below its binomial limit) or a tail is mistaken."""
    thresholds = (0.0, mu * (2 - mu / 2), -mu * (2 - mu / 2))
    for alpha in (0.1, 1e-3):
        inside = sum(mu in s.mu_interval(gaussian_counts(mu, 500, seed, thresholds), alpha) for seed in range(200))
        assert inside >= binom.ppf(1e-6, 200, 1 - alpha), (alpha, inside)


def test_the_interval_is_not_too_wide_to_be_of_use() -> None:
    """Each rate has standard error 1.25 / sqrt(N) on the scale of mu; fails if Bonferroni or the tails are overdone."""
    interval = s.mu_interval(gaussian_counts(0.2367, 300_000, 0), 0.05)
    assert interval.high - interval.low <= 2 * 2.3 * 2.51 / 300_000**0.5
    assert 0.2367 in interval


@pytest.mark.slow
@pytest.mark.parametrize(("claimed", "runs"), [(0.2367, 60_000), (1.0, 4000), (1.53, 3000)])
def test_a_factor_of_1_4_is_rejected_at_one_in_a_million_and_the_truth_is_not(claimed: float, runs: int) -> None:
    for seed in range(20):
        honest, broken = (gaussian_counts(mu, runs, seed) for mu in (claimed, 1.4 * claimed))
        assert s.p_value(lambda alpha, c=broken: s.mu_lower_bound(c, alpha), claimed) < ALPHA
        assert s.p_value(lambda alpha, c=honest: s.mu_lower_bound(c, alpha), claimed) > ALPHA


@pytest.mark.slow
def test_p_values_of_the_truth_are_not_small_too_often() -> None:
    """P(p <= u) <= u. Fails if one of the two bounds gets all of alpha: the p-values halve."""
    counts = [gaussian_counts(1.0, 1000, seed) for seed in range(300)]
    values = [s.p_value(lambda alpha, c=c: s.mu_lower_bound(c, alpha), 1.0) for c in counts]
    for u in (0.3, 0.1, 0.02):
        assert np.sum(np.array(values) <= u) <= binom.ppf(1 - 1e-6, 300, u)


def test_clopper_pearson_against_the_binomial_tails() -> None:
    """The definition itself: at the lower bound, seeing so many successes or more has probability alpha."""
    for successes, runs in [(1, 10), (7, 10), (250, 10_000)]:
        low, high = s.at_least(successes, runs, 0.01), s.at_most(successes, runs, 0.01)
        assert binom.sf(successes - 1, runs, low) == pytest.approx(0.01)
        assert binom.cdf(successes, runs, high) == pytest.approx(0.01)
    assert (s.at_least(0, 10, 0.01), s.at_most(10, 10, 0.01)) == (0.0, 1.0)


def test_epsilon_of_randomised_response_is_found_and_not_exceeded() -> None:
    """Pure epsilon = 2: fails if delta is not subtracted, or the ratio is of estimates instead of bounds."""
    rng, keep = np.random.default_rng(3), np.exp(2.0) / (1 + np.exp(2.0))
    here, there = (np.where(rng.random(50_000) < p, 1.0, -1.0) for p in (1 - keep, keep))
    found = s.epsilon_lower_bound([s.count((here, there), (0.0,))], 0.0, ALPHA)
    assert 1.85 < found < 2.0
    assert s.epsilon_lower_bound([s.count((here, there), (0.0,))], 0.5, ALPHA) < np.log((keep - 0.5) / (1 - keep))


def test_few_runs_never_show_a_large_epsilon_and_a_perfect_attack_says_infinity_is_possible() -> None:
    zeros, ones = np.zeros(200), np.ones(200)
    counts = [s.count((zeros, ones), (0.5,))]
    assert s.epsilon_lower_bound(counts, 0.0, 0.05) <= np.log(200 / np.log(2 / 0.05)) + 1e-9
    interval = s.mu_interval(counts, 0.05)
    assert interval.high == np.inf and 3 < interval.low < 2 * norm.ppf(1 - 1 / 200)


def test_nonsense_is_a_sentence() -> None:
    with pytest.raises(BadInputError, match="as many runs"):
        s.count((np.zeros(3), np.zeros(4)), (0.0,))
    with pytest.raises(BadInputError, match="not a number"):
        s.count((np.zeros(3), np.full(3, np.nan)), (0.0,))


def test_the_interval_is_that_of_the_attack_that_shows_most() -> None:
    """A useless second attack must not pull the upper end below the lower one, and costs its share of alpha."""
    useful, useless = gaussian_counts(1.0, 4000, 0)[0], gaussian_counts(0.01, 4000, 1)[0]
    alone, both = s.mu_interval([useful], ALPHA), s.mu_interval([useless, useful], ALPHA)
    assert 1.0 in both and both.low < alone.low and both.high > alone.high > both.low
    assert s.mu_lower_bound([useless, useful], ALPHA) > s.mu_lower_bound([useless], ALPHA)
