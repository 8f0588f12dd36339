"""Rows centred on the way: the scatter is exactly that about the final mean, however the rows were cut."""

from __future__ import annotations

from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npmdask.streaming.algorithms.model import RunningMean, centred

D = 3


def nothing(d: int = D) -> RunningMean:
    return RunningMean(np.zeros(d), np.zeros(d), 0.0)


def summed(rows: np.ndarray, sizes: list[int]) -> tuple[np.ndarray, RunningMean]:
    scatter, running, start, turn = np.zeros((rows.shape[1],) * 2), nothing(rows.shape[1]), 0, 0
    while start < len(rows):
        size = sizes[turn % len(sizes)]
        turned, running = centred(rows[start : start + size], running)
        scatter += turned.T @ turned
        start, turn = start + size, turn + 1
    return scatter, running


def exactly(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scatter about the mean, and the mean, in extended precision."""
    wide = rows.astype(np.longdouble)
    mean = wide.mean(axis=0)
    return np.asarray((wide - mean).T @ (wide - mean), dtype=np.float64), np.asarray(mean, dtype=np.float64)


@pytest.mark.parametrize("mean", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_the_scatter_is_exact(mean: float, size: int) -> None:
    """Fails on a wrong weight or reflection, and at 1e6 if a mean is rounded like the rows and not like deviations."""
    rows = np.random.default_rng(0).standard_normal((300, D)) + mean * np.array([1, -1, 0.5])
    scatter, running = summed(rows, [size])
    expected, center = exactly(rows)
    np.testing.assert_allclose(scatter, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    np.testing.assert_allclose(running.mean, center, rtol=1e-15, atol=1e-15)
    assert running.weight == 300


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    scale=st.sampled_from([1e-100, 1e-3, 1.0, 1e90]),
    offset=st.sampled_from([0.0, 1e3, -1e6]),
    seed=st.integers(0, 10**6),
)
def test_the_scatter_is_exact_for_any_cutting(sizes: list[int], scale: float, offset: float, seed: int) -> None:
    rows = scale * (np.random.default_rng(seed).standard_normal((90, 2)) * [1, 0.01] + offset)
    scatter, _ = summed(rows, sizes)
    expected, _ = exactly(rows)
    np.testing.assert_allclose(scatter, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_equal_rows_have_no_scatter_and_batches_keep_their_size() -> None:
    """Fails if rounding of a mean of 0.1 (no float) makes a variance out of nothing."""
    turned, running = centred(np.full((7, D), 0.1), nothing())
    assert turned.shape == (7, D) and np.abs(turned).max() < 1e-17
    np.testing.assert_array_equal(running.mean, np.full(D, 0.1))


def test_the_rows_given_are_not_changed() -> None:
    rows = np.random.default_rng(0).standard_normal((5, D))
    given_in = rows.copy()
    centred(rows, nothing())
    np.testing.assert_array_equal(rows, given_in)


@pytest.mark.parametrize("size", [1, 3, 10])
def test_a_fading_mean_is_that_of_explicit_weights(size: int) -> None:
    """Fails if a batch fades itself, or the rows before it by one row and not by its rows."""
    rows, fade = np.random.default_rng(1).standard_normal((30, 1)) + 5, 0.9
    running, scatter = nothing(1), 0.0
    for start in range(0, 30, size):
        turned, running = centred(rows[start : start + size], running, fade)
        scatter = scatter * fade**size + float(turned[:, 0] @ turned[:, 0])
    weights = np.repeat(fade ** np.arange(30 - size, -1, -size, dtype=float), size)
    mean = fsum(weights * rows[:, 0]) / fsum(weights)
    np.testing.assert_allclose(running.weight, fsum(weights), rtol=1e-13)
    np.testing.assert_allclose(running.mean, [mean], rtol=1e-13)
    np.testing.assert_allclose(scatter, fsum(weights * (rows[:, 0] - mean) ** 2), rtol=1e-12)
