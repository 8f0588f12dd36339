"""Randomness has names: what is drawn for the start, for noise and for a completion is never one stream."""

from __future__ import annotations

import numpy as np
import pytest

import npmdask
from npmdask.core.algorithms import PowerMethod
from npmdask.core.numerics.random import generator
from npmdask.core.runs.mechanisms import SimulatedGaussian
from tests.conftest import planted


def test_streams_are_found_again_and_share_nothing() -> None:
    """Any two of 30 streams, over seeds, purposes and steps: 1000 numbers each, no number twice, correlations below
    0.2 (6.3 standard deviations). Mutants: a purpose that is left out of the name, or a step; seed + step."""
    names = [(seed, purpose, step) for seed in (0, 1, 2) for purpose in ("start", "noise") for step in range(5)]
    drawn = np.array([generator(*name).standard_normal(1000) for name in names])
    again = np.array([generator(*name).standard_normal(1000) for name in names[::-1]])[::-1]
    np.testing.assert_array_equal(drawn, again)
    assert len(np.unique(drawn)) == drawn.size
    assert np.abs(np.corrcoef(drawn) - np.eye(len(names))).max() < 0.2


@pytest.mark.slow
def test_noise_and_start_are_drawn_apart_and_nothing_else_is_touched() -> None:
    """Another seed is another start and other noise; the same again is the same; NumPy's own state stays."""
    a = planted(200, 30, np.linspace(3, 1, 30))[0]
    np.random.seed(0)  # noqa: NPY002  the global state is what is watched
    before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    runs = [
        npmdask.top_k(a, 2, kind="samples", mechanism="gaussian", stddev=1e-3, max_steps=3, seed=seed)
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # type: ignore[index]  # noqa: NPY002
    np.testing.assert_array_equal(runs[0].basis, runs[1].basis)
    assert np.abs(runs[0].basis - runs[2].basis).max() > 1e-6
    method, noise = PowerMethod(target_rank=2, iteration_rank=4), SimulatedGaussian(stddev=1.0)
    start = method.init(30, rng=generator(1, "start")).basis
    drawn = noise.release(np.zeros((30, 4)), block=start, entropy=1, step=1)
    assert abs(np.corrcoef(drawn.ravel(), start.ravel())[0, 1]) < 0.5
    other = noise.release(np.zeros((30, 4)), block=start, entropy=2, step=1)
    np.testing.assert_array_equal(method.init(30, rng=generator(1, "start")).basis, start)
    assert not np.isin(other, drawn).any()
