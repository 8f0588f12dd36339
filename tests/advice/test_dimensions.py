"""Criteria for the number of components: where their theory holds, and where it does not."""

from __future__ import annotations

import numpy as np
import pytest

from npmdask.advice.dimensions import (
    broken_stick,
    leading,
    marchenko_pastur_edge,
    marchenko_pastur_median,
    noise_variance,
    optimal_threshold,
    parallel_analysis,
)
from npmdask.errors import BadInputError


def spectrum(x: np.ndarray) -> np.ndarray:
    values = np.linalg.eigvalsh(x.T @ x if len(x) >= x.shape[1] else x @ x.T)[::-1] / len(x)
    return np.concatenate([values, np.zeros(x.shape[1] - len(values))])


def spiked(n: int, d: int, spikes: list[float], seed: int, noise: float = 1.0) -> np.ndarray:
    """Rows with ``noise`` of its variance and orthogonal spikes of these variances beside it."""
    rng = np.random.default_rng(seed)
    v = np.linalg.qr(rng.standard_normal((d, len(spikes))))[0]
    return rng.standard_normal((n, d)) * noise**0.5 + (rng.standard_normal((n, len(spikes))) * np.sqrt(spikes)) @ v.T


def test_constants_are_the_published_ones() -> None:
    """Gavish and Donoho 2014: eq. 4, eq. 7, and eq. 5, which is within 0.02 of every factor of the median."""
    assert optimal_threshold(100, 100, 1.0) == pytest.approx(16 / 3)
    aspects = np.array([1, 0.5, 0.2, 0.05])
    omega = [np.sqrt(optimal_threshold(int(1000 * b), 1000, 1.0) / marchenko_pastur_median(b)) for b in aspects]
    np.testing.assert_allclose(omega, np.polyval([0.56, -0.95, 1.82, 1.43], aspects), atol=0.02)
    assert omega[0] == pytest.approx(2.8582, abs=1e-4)


@pytest.mark.slow
def test_the_edge_is_exceeded_as_often_as_it_says() -> None:
    """Of 400 matrices of noise 5 % above the margin, 17 % above the edge alone. Fails without the margin."""
    rng, n, d = np.random.default_rng(0), 200, 50
    largest = np.array([np.linalg.norm(rng.standard_normal((n, d)), 2) ** 2 / n for _ in range(400)])
    assert 0.02 < (largest > marchenko_pastur_edge(d, n, 1.0)).mean() < 0.085
    assert 0.1 < (largest > marchenko_pastur_edge(d, n, 1.0, margin=False)).mean() < 0.25


@pytest.mark.parametrize(("n", "d"), [(2000, 100), (300, 300), (100, 400)])
@pytest.mark.slow
def test_planted_spikes_above_the_edge_are_counted_and_those_below_are_not(n: int, d: int) -> None:
    gamma = d / n
    x = spiked(
        n, d, [20 * (1 + gamma), 8 * (1 + gamma**0.5), 6 * (1 + gamma**0.5), 0.2 * gamma**0.5], seed=n, noise=2.5
    )
    values = spectrum(x)
    noise = noise_variance(values, n)
    assert noise == pytest.approx(2.5, rel=0.03)
    assert leading(values, marchenko_pastur_edge(d, n, noise)) == 3


@pytest.mark.slow
def test_a_spike_between_both_thresholds_can_be_told_and_is_not_worth_keeping() -> None:
    n = d = 400
    values = spectrum(spiked(n, d, [30.0, 1.5], seed=1))
    noise = noise_variance(values, n)
    assert leading(values, marchenko_pastur_edge(d, n, noise)) == 2
    assert leading(values, optimal_threshold(d, n, noise)) == 1


@pytest.mark.slow
def test_keeping_what_the_threshold_says_denoises_best() -> None:
    """The error of every other number of components is larger."""
    rng, n, d = np.random.default_rng(5), 300, 200
    u, v = (np.linalg.qr(rng.standard_normal((size, 4)))[0] for size in (n, d))
    clean = u * (np.array([60, 50, 42, 24.0])) @ v.T
    x = clean + rng.standard_normal((n, d))
    left, s, right = np.linalg.svd(x, full_matrices=False)
    errors = [np.linalg.norm((left[:, :k] * s[:k]) @ right[:k] - clean) for k in range(8)]
    values = spectrum(x)
    assert leading(values, optimal_threshold(d, n, noise_variance(values, n))) == int(np.argmin(errors)) == 3


@pytest.mark.slow
def test_parallel_analysis_counts_spikes_and_nothing_in_unequal_noise() -> None:
    """Where columns of noise differ in variance the edge of equal noise finds components, and this does not."""
    n, d = 1000, 40
    values = spectrum(x := spiked(n, d, [9.0, 5.0, 3.0], seed=2))
    assert leading(values, parallel_analysis((x**2).mean(axis=0), n)) == 3
    unequal = np.random.default_rng(3).standard_normal((n, d)) * np.geomspace(4, 0.5, d)
    values = spectrum(unequal)
    assert leading(values, parallel_analysis((unequal**2).mean(axis=0), n)) == 0
    assert leading(values, marchenko_pastur_edge(d, n, noise_variance(values, n))) > 5


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d"), [(60, 30), (30, 30), (20, 30)])
def test_simulated_spectra_are_those_of_data(n: int, d: int) -> None:
    """Fails when Bartlett's factor has wrong degrees of freedom, or the quantile is of the wrong axis."""
    rng, scales = np.random.default_rng(4), np.geomspace(3, 1, d)
    direct = np.quantile([spectrum(rng.standard_normal((n, d)) * scales) for _ in range(600)], 0.5, axis=0)
    found = parallel_analysis(scales**2, n, replicates=600, quantile=0.5, seed=1)
    np.testing.assert_allclose(found, direct, atol=0.02 * direct[0])
    np.testing.assert_array_equal(found, parallel_analysis(scales**2, n, replicates=600, quantile=0.5, seed=1))


@pytest.mark.slow
def test_heavy_tails_and_correlated_noise_fool_the_edge() -> None:
    """The page says so; where it does not happen any more, the page is wrong."""
    rng, n, d = np.random.default_rng(6), 1000, 100
    heavy = spectrum(rng.standard_t(2.5, (n, d)))
    assert leading(heavy, marchenko_pastur_edge(d, n, noise_variance(heavy, n))) > 3
    steps = rng.standard_normal((n, d))
    for i in range(1, n):
        steps[i] += 0.8 * steps[i - 1]
    values = spectrum(steps)
    assert leading(values, marchenko_pastur_edge(d, n, noise_variance(values, n))) > 3
    assert leading(values, parallel_analysis((steps**2).mean(axis=0), n)) > 3


def test_a_broken_stick_is_whole() -> None:
    np.testing.assert_allclose(broken_stick(3), [11 / 18, 5 / 18, 2 / 18])
    assert broken_stick(500).sum() == pytest.approx(1)


def test_what_is_no_spectrum_is_refused() -> None:
    for values in ([1.0, np.nan], [1.0, 2.0], []):
        with pytest.raises(BadInputError, match="the largest first"):
            noise_variance(np.array(values), 10)
    with pytest.raises(BadInputError, match="no direction has any variance"):
        noise_variance(np.zeros(3), 10)
