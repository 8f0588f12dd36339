"""The measure zeta is exact, and the bounds have the limits, directions and units that they must have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from npmdask.core.numerics.subspaces import orth, random_orthonormal
from npmdask.errors import BadInputError
from npmdask.experiments.matrix_streams import MatrixStream, gaussian, signal_and_noise
from npmdask.theory import (
    AssumptionA,
    condition_number,
    dpojas_zeta,
    dppca_learning_rate,
    dppca_min_n,
    dppca_noise_beta,
    dppca_zeta,
    spiked_lower_bound,
    top_lower_bound,
    zeta,
    zeta_from_frobenius,
)

AT: dict[str, Any] = {"n": 100_000, "d": 200, "k": 2, "epsilon": 1.0, "delta": 0.01}
MODEL = AssumptionA(kappa=2.0, V=0.5, gamma=0.1, M=3.0)


def stream(seed: int = 0) -> MatrixStream:
    return signal_and_noise(10, 12, np.array([10.0, 5.0, 2.0]), 0.5, seed)


def test_zeta_is_definition_1() -> None:
    """Mutant: a forgotten part of Sigma (the floor), or the energy of one eigenvalue more."""
    data = stream()
    full = data.sigma(np.eye(12))
    best = np.sort(np.linalg.eigvalsh(full))[-3:].sum()
    for seed in range(20):
        u = random_orthonormal(12, 3, np.random.default_rng(seed))
        assert data.zeta(u) == pytest.approx(math.sqrt(1 - np.trace(u.T @ full @ u) / best), rel=1e-10)


@pytest.mark.parametrize("sine", [1e-3, 1e-9, 1e-13])
def test_zeta_sees_tiny_angles(sine: float) -> None:
    """Mutant: 1 - ratio, which is 0 or noise below a sine of 1e-8."""
    data = stream()
    outside = orth(np.ones((12, 1)), np.random.default_rng(0), against=data.vectors)[:, 0]
    u = data.vectors.copy()
    u[:, 0] = math.sqrt(1 - sine**2) * u[:, 0] + sine * outside
    expected = sine * math.sqrt((data.values[0] - data.floor) / data.values.sum())
    assert data.zeta(u) == pytest.approx(expected, rel=1e-3 if sine > 1e-13 else 0.05)
    assert data.zeta(data.vectors) < 1e-15


@pytest.mark.parametrize("columns", [2, 4])
def test_zeta_needs_k_orthonormal_columns(columns: int) -> None:
    data = stream()
    for basis in (random_orthonormal(12, columns, np.random.default_rng(0)), 1.001 * data.vectors):
        with pytest.raises(BadInputError, match="orthonormal columns"):
            data.zeta(basis)
    nan = np.full((12, 3), np.nan)
    with pytest.raises(BadInputError):
        zeta(nan, data.vectors, data.values, data.sigma)


def test_lemma_1_holds_and_is_attained() -> None:
    """Mutant: a missing factor 2, or the gap before the k-th."""
    data = stream()
    target = data.vectors @ data.vectors.T
    for seed in range(20):
        u = random_orthonormal(12, 3, np.random.default_rng(seed))
        distance = float(np.linalg.norm(u @ u.T - target))
        assert data.zeta(u) >= zeta_from_frobenius(distance, data.eigenvalues, 3)
    outside = orth(np.ones((12, 1)), np.random.default_rng(0), against=data.vectors)[:, 0]
    u = data.vectors.copy()
    u[:, 2] = 0.6 * u[:, 2] + 0.8 * outside
    distance = float(np.linalg.norm(u @ u.T - target))
    assert data.zeta(u) == pytest.approx(zeta_from_frobenius(distance, data.eigenvalues, 3))
    with pytest.raises(BadInputError):
        zeta_from_frobenius(distance, data.eigenvalues[:3], 3)


def test_without_privacy_the_statistical_error_is_left() -> None:
    """Mutant: a cost of privacy that does not fall with epsilon."""
    free = AT | {"epsilon": 1e12}
    left = 2.0 * math.sqrt(0.5 * 2 / AT["n"])
    assert dppca_zeta(MODEL, **free).value == pytest.approx(left)
    assert dpojas_zeta(MODEL, **free).value == pytest.approx(left)


def test_adaptive_noise_vanishes_with_the_spread_of_the_data_and_that_of_ojas_does_not() -> None:
    """Mutant: (gamma + 1) in place of gamma, or the other way round."""
    still = AssumptionA(kappa=2.0, V=0.0, gamma=0.0)
    assert dppca_zeta(still, **AT).value == 0
    assert dpojas_zeta(still, **AT).value == pytest.approx(2 * 200 * 2 * math.log(100) / 1e5)


@pytest.mark.parametrize("bound", [dppca_zeta, dpojas_zeta])
def test_bounds_move_in_the_right_direction(bound: Any) -> None:
    here = bound(MODEL, **AT).value
    assert 0 < here < 1
    for change, sign in (
        ({"n": 10**6}, -1),
        ({"d": 400}, 1),
        ({"k": 4}, 1),
        ({"epsilon": 2.0}, -1),
        ({"delta": 1e-6}, 1),
    ):
        assert sign * (bound(MODEL, **(AT | change)).value - here) > 0, change
    doubled = bound(MODEL, **AT, constant=2.0)
    assert doubled.value == pytest.approx(2 * here) and doubled.constants["constant"] == 2.0
    large = bound(MODEL, **(AT | {"n": 10}))
    assert large.value == 1 and not large.flags["says_something"]


def test_the_papers_own_experiments_are_outside_its_theorems() -> None:
    """epsilon = 1 is not below 0.9, delta = 0.01 not below 1 / n, and no shuffling allows so large an epsilon."""
    flags = dpojas_zeta(MODEL, **AT).flags
    assert not any(flags[name] for name in ("epsilon_below_0.9", "delta_at_most_1/n"))
    assert not flags["epsilon_small_enough_for_shuffling"]
    assert dppca_zeta(MODEL, **(AT | {"epsilon": 0.5, "delta": 1e-6})).valid
    assert not dppca_zeta(MODEL, **(AT | {"n": 60, "delta": 1e-6, "epsilon": 0.5})).flags["n_large_enough"]


def test_min_n_is_the_largest_of_three_and_free_of_units() -> None:
    """ERR-16. Mutant: kappa^2 for kappa^4, which needs lambda_1^2 to balance its unit."""
    common = {"d": 200, "k": 2, "epsilon": 1.0, "delta": 0.01}
    assert dppca_min_n(AssumptionA(3.0, 1e6, 0.0), **common).value == pytest.approx(81 * 8 * 1e6)
    log = math.sqrt(math.log(100))
    assert dppca_min_n(AssumptionA(3.0, 0.0, 1e6), **common).value == pytest.approx(9 * 1e6 * 4 * 200 * log)
    alone = math.exp(4) + 200 * 2 * 0.1 * log + math.sqrt(200) * log**3 + 2 * 3 + 4 * 1e-9
    one = dppca_min_n(AssumptionA(2.0, 1e-9, 0.1, 3.0), **(common | {"k": 1}))
    assert one.value == pytest.approx(alone)
    assert dppca_min_n(AssumptionA(100.0, 0.0, 0.0), **common).value == math.inf
    units = [signal_and_noise(10, 12, np.array([10.0, 5.0]) * c, 0.3 * math.sqrt(c), 0).model for c in (1, 1e4)]
    assert dppca_min_n(units[0], **common).value == pytest.approx(dppca_min_n(units[1], **common).value)


def test_the_lower_bound_lies_below_the_upper_one_and_has_no_unit() -> None:
    for n in (10**3, 10**5, 10**7):
        at = AT | {"n": n}
        promise = {name: at[name] for name in ("n", "d", "epsilon", "delta")}
        lambdas, sigma = np.array([10.0, 8.0]), 0.1
        low = spiked_lower_bound(lambdas, sigma, **promise)
        assert low.value <= dppca_zeta(gaussian(10, 200, lambdas, sigma, 0).model, **at).value
        assert spiked_lower_bound(lambdas * 9, sigma * 3, **promise).value == pytest.approx(low.value)
    by_hand = 0.1 * math.sqrt(10.01) / 18.02 * (math.sqrt(400 / 1e7) + 400 / 1e7)
    assert low.value == pytest.approx(by_hand)
    assert spiked_lower_bound(lambdas, 100.0, **(promise | {"n": 1}), constant=0.3).value == 0.3
    assert not low.valid and spiked_lower_bound(lambdas, 0.1, **promise, c0=1e-9).valid


def test_the_lower_bound_for_one_vector() -> None:
    """Mutant: no sqrt(lambda_2 / lambda_1), by which a spectrum without noise costs nothing."""
    at = {"n": 10_000, "d": 100, "epsilon": 0.5}
    rate = math.sqrt(0.01) + 100 / 5000
    assert top_lower_bound(4.0, 1.0, **at).value == pytest.approx(4 / 3 * rate * 0.5)
    assert top_lower_bound(4.0, 0.0, **at).value == 0
    assert top_lower_bound(1.0, 0.9999, **at, constant=0.1).value == 0.1
    with pytest.raises(BadInputError, match="without ties"):
        condition_number(np.array([4.0, 4.0]), 1)


def test_the_learning_rate_of_theorem_9() -> None:
    """Mutants: xi without the factor 20, ln(1 + zeta) for ln(1 + zeta / 100), beta with B for B d."""
    at: dict[str, Any] = {"n": 10**6, "d": 200, "batch": 1000, "epsilon": 0.5, "delta": 1e-7}
    beta = dppca_noise_beta(MODEL, 10.0, n=10**6, batch=1000, d=200, epsilon=0.5, delta=1e-7).value
    assert beta == pytest.approx(16 * 0.1 * 10 * math.log(2e7) * math.sqrt(400 * math.log(2.5e7)) / 500)
    first, later = (dppca_learning_rate(t, MODEL, 10.0, 5.0, **at) for t in (1, 1000))
    alpha, log_d = math.log(1e6), math.log(2e7)
    bound = 30 * log_d / 1000 + 10 * math.sqrt(0.5 * log_d / 1000) + beta * (math.sqrt(200) + math.sqrt(math.log(1e5)))
    variance = 0.5 * 100 / 1000 + beta**2 * 200
    xi = 20 * max(bound * alpha / 5, (variance + 100) * alpha**2 / (25 * math.log(1.0001)))
    assert first.constants["xi"] == pytest.approx(xi)
    assert first.value == pytest.approx(alpha / (5 * (xi + 1))) and later.value < first.value
    assert not first.flags["more_steps_than_xi"]
    scaled = dppca_learning_rate(1, MODEL, 70.0, 35.0, **at)
    assert scaled.value == pytest.approx(first.value / 7)
    with pytest.raises(BadInputError, match="1 to"):
        dppca_learning_rate(1001, MODEL, 10.0, 5.0, **at)


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"delta": 1.0}, {"k": 300}, {"n": 0}])
def test_impossible_promises_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        dppca_zeta(MODEL, **(AT | wrong))
