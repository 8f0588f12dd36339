"""Errata 21, 22, 25 and 26; 20, 23, 24 and the rest of 25: beside the algorithms (docs/reference/theory.md)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from npmdask.theory import (
    bernstein_batch,
    dp_tpm_nu,
    drv,
    gdp_delta,
    mbrmsg_params,
    online_tpm_samples,
    total_cost,
)


def test_err_21_what_the_relaxation_costs_beside_oja() -> None:
    """k^2 / Delta^2 times as much by Theorem 4.2 (printed k^2 Delta^4); 1 / (k d Delta) less by 4.3 (1 / Delta)."""
    d, acc = 1000, 0.01
    for k, gap in ((1, 0.5), (3, 0.1), (7, 1e-5)):
        oja, first, second = (total_cost(name, d=d, k=k, acc=acc, gap=gap).value for name in ("oja", "4.2", "4.3"))
        assert oja == pytest.approx(d * k / (acc * gap**2)) and first == pytest.approx(d * k**3 / (acc * gap**4))
        assert first / oja == pytest.approx(k**2 / gap**2) != pytest.approx(k**2 * gap**4)
        assert second / oja == pytest.approx(k * min(d * gap, 1))
        if k * d * gap < 1:
            assert oja / second == pytest.approx(1 / (k * d * gap)) != pytest.approx(1 / gap)
    assert not total_cost("oja", d=d, k=3, acc=acc, gap=0.5).valid


@pytest.mark.parametrize("gap", [0.05, 0.2])
def test_err_22_the_printed_batch_misses_its_own_event(gap: float) -> None:
    """x = e_1 or e_2, k = 1, T = 10: ||C_t - C|| is a binomial deviation, so its probability is exact.

    As printed the event of Theorem 4.3 fails with more than delta = 0.1; with :func:`bernstein_batch` with less.
    """
    T, delta, b, q = 10, 0.1, gap / 16, (1 + gap) / 2
    failures = {}
    for name, rows in (
        ("printed", mbrmsg_params(gap, 1, 2, T, delta).value.batch_rows),
        ("ours", bernstein_batch(q, b, 2, T, delta).value),
    ):
        n = math.ceil(rows)
        within = binom.cdf(math.floor(n * (q + b)), n, q) - binom.cdf(math.ceil(n * (q - b)) - 1, n, q)
        failures[name] = 1 - within**T
    assert failures["ours"] <= delta < 3 * delta < failures["printed"]


def test_err_25_both_terms_of_theorem_3_1_are_needed() -> None:
    """With the smaller of them (as printed) noise of sigma / sqrt(n) an entry moves T(I, v, v) by 30 epsilon."""
    d, sigma, lambda_min, epsilon = 200, 1.0, 1.0, 0.002
    printed = min(sigma**2 * d / epsilon**2, sigma**2 * d**2 / lambda_min**2)
    ours = online_tpm_samples(sigma, lambda_min, epsilon, d=d, k=1, constants=(2.0, 1.0)).value
    direction = np.random.default_rng(0).standard_normal(d)
    errors = [np.linalg.norm(sigma / math.sqrt(n) * direction) for n in (printed, ours)]  # E(I, v, v) of Gaussian E
    assert errors[0] > 30 * epsilon and errors[1] <= epsilon


@pytest.mark.parametrize(
    ("epsilon", "delta", "composes"), [(0.01, 0.05, True), (0.01, 0.03, False), (1.0, 1e-6, False)]
)
def test_err_26_the_share_does_not_compose_where_delta_is_small(epsilon: float, delta: float, composes: bool) -> None:
    """epsilon' adds up to more than epsilon from ln(2 / delta) = 4 (delta = 0.0366) on; the noise is private still."""
    k, restarts, iterations = 3, 40, 30
    K = k * restarts * (iterations + 1)
    share = epsilon / math.sqrt(K * (4 + math.log(2 / delta)))
    total = drv(share, delta / (2 * K), K, delta / 2).value
    assert (total.epsilon <= epsilon) == composes
    found = dp_tpm_nu(epsilon, delta, k, restarts, iterations)
    assert found.flags == {"private": True, "composes": composes}
    assert gdp_delta(6 * math.sqrt(K) / found.value, epsilon) < 1e-3 * delta
    exact = dp_tpm_nu(epsilon, delta, k, restarts, iterations, "exact").value
    assert gdp_delta(6 * math.sqrt(K) / exact, epsilon) == pytest.approx(delta, rel=1e-6)
