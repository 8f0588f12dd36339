"""Predicted errors: bounds hold, estimates come true, counts are counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npmdask.core.numerics.subspaces import random_orthonormal
from npmdask.errors import BadInputError
from npmdask.theory import (
    coherence_linf_bound,
    dist_comm,
    dist_error,
    gaussian_norm,
    lowrank_error,
    ppm_error,
    ppm_error_coherent,
    predicted_sine,
)


def noisy_power(spectrum: np.ndarray, p: int, stddevs: list[float], seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """X_L, the Ritz values of the last release, and ||A - X_L Y^T|| with one release more, for A = diag(spectrum)."""
    rng = np.random.default_rng(seed)
    x, ritz = random_orthonormal(len(spectrum), p, rng), np.zeros(p)
    for stddev in stddevs:
        y = spectrum[:, None] * x + stddev * rng.standard_normal(x.shape)
        ritz = np.linalg.eigvalsh((x.T @ y + y.T @ x) / 2)
        x = np.linalg.qr(y)[0]
    y = spectrum[:, None] * x + stddevs[-1] * rng.standard_normal(x.shape)
    return x, ritz, float(np.linalg.norm(np.diag(spectrum) - x @ y.T, 2))


def sine(x: np.ndarray, k: int) -> float:
    """||(I - X X^T) U_k||, X with more columns than U_k."""
    top = np.eye(len(x), k)
    return float(np.linalg.norm(top - x @ (x.T @ top), 2))


STEP = np.concatenate([np.full(3, 100.0), np.full(117, 5.0)])
FALLING = 100 / np.arange(1, 121.0)
SLOW = np.concatenate([np.full(3, 100.0), np.full(117, 90.0)])


@pytest.mark.parametrize(
    ("spectrum", "k", "p", "stddev"), [(STEP, 3, 8, 0.15), (FALLING, 1, 4, 0.3), (STEP, 3, 3, 0.003)]
)
def test_the_bound_is_not_exceeded_and_says_something(spectrum: np.ndarray, k: int, p: int, stddev: float) -> None:
    """Mutant: ||G|| = stddev sqrt(d), or a spectrum that is off by one."""
    bound = ppm_error(spectrum, [stddev] * 12, d=120, k=k, p=p, tau=2.0)
    low = lowrank_error(spectrum, [stddev] * 13, d=120, k=k, p=p, tau=2.0)
    assert bound.valid and bound.value < 0.2
    assert bound.constants == low.constants == {"tau": 2.0, "fail_prob": 0.1}
    for seed in range(10):
        x, _, left = noisy_power(spectrum, p, [stddev] * 12, seed)
        assert sine(x, k) <= bound.value
        assert left <= low.value
    parts = spectrum[k] + bound.value * spectrum[0] + gaussian_norm(stddev, 120, p, 1, 0.05)
    assert parts <= low.value <= 1.2 * parts  # a share of fail_prob goes to the last block


def test_the_recursion_by_hand() -> None:
    """One step, k = p = q = 1: t' = (s_2 t + g sqrt(1 + t^2)) / (s_1 - u sqrt(1 + t^2))."""
    g, u = (s / 10 for s in (gaussian_norm(1.0, 4, 1, 1, 0.05), gaussian_norm(1.0, 1, 1, 1, 0.05)))
    t = (2 * 2 + g * math.sqrt(5)) / (10 - u * math.sqrt(5))
    found = ppm_error(np.array([10.0, 2.0]), [0.1], d=4, k=1, p=1, tau=1.0)
    assert found.flags == {"noise_small_enough": True, "start_promised": False}  # of tau = 1 nothing is known
    assert found.value == pytest.approx(t / math.sqrt(1 + t * t), rel=1e-12)


def test_the_intermediate_recursion_by_hand() -> None:
    """q = p = 2 > k = 1: h' = (s_3 h + sqrt(1 + h^2) (g + t' u)) / s_1; the noise is too large for q = 1."""
    g, u = (s / 20 for s in (gaussian_norm(1.0, 30, 2, 1, 0.05), gaussian_norm(1.0, 2, 2, 1, 0.05)))
    start = math.sqrt(30) / (math.sqrt(2) - 1)
    root = math.hypot(1, start)
    t = (0.5 * start + g * root) / (9.9 - u * root)
    h = (0.5 * start + root * (g + t * u)) / 10
    found = ppm_error(np.array([10.0, 9.9, 0.5]), [0.05], d=30, k=1, p=2, tau=1.0)
    assert h < t
    assert found.value == pytest.approx(h / math.hypot(1, h), rel=1e-12)


def test_noise_beyond_the_theorem_promises_nothing() -> None:
    found = ppm_error(STEP, [30.0] * 5, d=120, k=3, p=8)
    assert found.value == 1.0 and not found.valid
    assert predicted_sine(np.linspace(60, 30, 8), [30.0] * 5, d=120, k=3).value > 0.95


def test_gaussian_norms_are_not_exceeded_and_tight() -> None:
    rng = np.random.default_rng(0)
    norms = [np.linalg.norm(2.0 * rng.standard_normal((200, 5)), 2) for _ in range(300)]
    assert 0.75 < max(norms) / gaussian_norm(2.0, 200, 5, 300, 0.1) <= 1
    assert np.mean(norms) > 2.0 * math.sqrt(200)  # the mutant sqrt(rows) alone is exceeded by the mean


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spectrum", "k", "p", "stddev", "steps"),
    [
        (STEP, 3, 8, 1.0, 15),
        (STEP, 3, 8, 4.0, 15),
        (FALLING, 4, 8, 0.1, 30),
        (FALLING, 4, 8, 1.0, 30),
        (STEP, 3, 8, 1.0, 1),
        (SLOW, 3, 8, 0.3, 80),
    ],
)
def test_what_released_values_predict_comes_true(
    spectrum: np.ndarray, k: int, p: int, stddev: float, steps: int
) -> None:
    """Within a factor of 1.6 on average; mutants: sqrt(d) forgotten, noise of one step where it accumulates."""
    pairs = []
    for seed in range(12):
        x, ritz, _ = noisy_power(spectrum, p, [stddev] * steps, seed)
        pairs.append((sine(x, k), predicted_sine(ritz, [stddev] * steps, d=120, k=k).value))
    actual, predicted = np.mean(pairs, axis=0)
    assert 0.8 < predicted / actual < 1.6


def test_without_a_value_after_the_kth_the_gap_is_not_seen() -> None:
    found = predicted_sine(np.array([10.0, 9.0]), [0.1] * 4, d=50, k=2)
    assert found.flags == {"gap_seen": False} and found.value > 0.9
    assert predicted_sine(np.zeros(3), [0.1], d=50, k=2).value == 1.0


def test_coherence() -> None:
    """Hardt and Price, proof of Theorem 4.9: not exceeded by noise of a fixed size, A diagonal in a flat basis."""
    d = 128
    cap = coherence_linf_bound(2.0, d)
    assert cap == (pytest.approx(4 * math.sqrt(2 * math.log(d) / d)), {}, {"p_and_releases_at_most_d": True})
    assert not coherence_linf_bound(2.0, d, p=129).valid and not coherence_linf_bound(2.0, d, releases=129).valid
    assert coherence_linf_bound(1.0, 1).value >= 1  # the only entry of a block with d = 1
    large, sigma = {"d": 10**6, "k": 3, "p": 8}, 1e-3
    incoherent = ppm_error_coherent(STEP, sigma, 1.0, **large, releases=10)
    loud = ppm_error(STEP, [sigma] * 10, **large)
    assert incoherent.valid and incoherent.value < 0.1 * loud.value
    stddev = sigma * coherence_linf_bound(1.0, 10**6).value
    assert incoherent.value == ppm_error(STEP, [stddev] * 10, **large, fail_prob=0.1 - 1e-6).value
    small = ppm_error_coherent(STEP, 1e-3, 1.0, d=120, k=3, p=8, releases=5, fail_prob=1 / 121)
    assert small.value == ppm_error(STEP, [1e-3] * 5, d=120, k=3, p=8, fail_prob=1 / 121).value  # no room for a cap
    assert ppm_error_coherent(np.ones(1), 1e9, 1.0, d=1, k=1, p=1, releases=1).value == 1
    assert not ppm_error_coherent(STEP, 0.1, 1.0, d=120, k=3, p=8, releases=121).flags["p_and_releases_at_most_d"]
    for wrong in (0.5, 129.0):
        with pytest.raises(BadInputError, match="between 1 and the dimension"):
            coherence_linf_bound(wrong, d)


def test_many_nodes() -> None:
    one = ppm_error(STEP, [0.1] * 5, d=120, k=3, p=8)
    assert dist_error(STEP, [0.05] * 5, 4, d=120, k=3, p=8) == one
    assert dist_comm(4, 8, 120, 5).value == 5 * 5 * 8 * 120
    assert dist_comm(4, 8, 120, 5, "point_to_point").value == 2 * 5 * 4 * 8 * 120


def test_wrong_ranges() -> None:
    for call in (
        lambda: ppm_error(STEP, [0.1], d=120, k=9, p=8),
        lambda: ppm_error(STEP, [0.1], d=100, k=1, p=8),
        lambda: ppm_error(STEP, [0.1], d=120, k=1, p=8, fail_prob=2.5),
        lambda: lowrank_error(STEP, [0.1], d=120, k=1, p=8),
        lambda: dist_error(STEP, [0.1], 0, d=120, k=1, p=8),
        lambda: dist_comm(2, 8, 120, 5, "broadcasts"),
        lambda: predicted_sine(np.array([math.nan]), [0.1], d=5, k=1),
    ):
        with pytest.raises(BadInputError):
            call()
