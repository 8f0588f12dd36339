"""The recursion with the actual noise of a run: it holds, and it says so where the noise is too large for it."""

from __future__ import annotations

import numpy as np
import pytest

from npmdask.core.algorithms import PowerMethod
from npmdask.core.certificates.bounds import Evidence, certify, noisy_recursion
from npmdask.core.numerics.random import generator
from npmdask.theory.diagnostics import max_sin_theta

D, P, K, STEPS = 30, 6, 2, 8
VALUES = np.concatenate([[10.0, 8.0], 1 / np.arange(1, D - 1)])


def run(stddev: float, seed: int) -> tuple[Evidence, float]:
    """A noisy run on a diagonal matrix: what it knows, and the sine of its last block to the two leading axes."""
    algorithm = PowerMethod(target_rank=K, iteration_rank=P)
    state = algorithm.init(D, rng=generator(seed, "start"))
    for step in range(STEPS):
        noise = stddev * generator(seed, "noise", step).standard_normal((D, P))
        state, _ = algorithm.update(state, VALUES[:, None] * algorithm.query(state).block + noise)
    seen = algorithm.finalize(state).seen
    assert seen is not None
    evidence = Evidence(values=seen.values, gram=seen.gram, k=K, d=D, nonnegative=True, stddev=stddev, iterated=P)
    return evidence, max_sin_theta(state.basis, np.eye(D, K))


@pytest.mark.slow
def test_the_recursion_holds_over_fifty_runs() -> None:
    """Its parts fail with probability 0.01 together; in none of these 50. Without the noise it is below the truth."""
    for seed in range(50):
        evidence, sine = run(1e-7, seed)
        bound = noisy_recursion(evidence, certify(evidence), STEPS)["sine"]
        assert bound is not None and sine <= bound <= 100 * sine


def test_noise_that_is_too_large_is_promised_nothing() -> None:
    evidence, _ = run(1.0, 0)
    assert noisy_recursion(evidence, certify(evidence), STEPS)["sine"] is None
