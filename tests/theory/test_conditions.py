"""Conditions of theorems are said where they fail; rates that are printed up to a constant, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from npmdask.theory import (
    AssumptionA,
    compare_forms,
    dist_rate,
    dppca_learning_rate,
    dppca_min_n,
    dppca_noise_beta,
    dppca_zeta,
    lowrank_rate,
    mbmsg_bound,
    ppm_rate,
    ppm_rate_coherent,
    ppm_sigma,
    privmean_histogram,
    spiked_lower_bound,
    spm_block_noise,
    spm_samples,
    spm_samples_general,
    spm_samples_powerlaw,
)
from npmdask.theory.private import ppm_error

MODEL = AssumptionA(2.0, 3.0, 1.0, 2.0)


def test_the_conditions_of_theorem_1_are_those_of_its_number_of_matrices_too() -> None:
    """epsilon = 5 and delta = 0.5 are far outside. Mutant: only "finite"."""
    flags = dppca_min_n(MODEL, d=20, k=2, epsilon=5.0, delta=0.5).flags
    assert flags == {"finite": True, "k_below_d": True, "epsilon_below_0.9": False, "delta_at_most_1/n": False}
    many = dppca_min_n(MODEL, d=20, k=2, epsilon=0.5, delta=1e-7)
    assert many.valid and not dppca_min_n(MODEL, d=20, k=2, epsilon=0.5, delta=1e-3).valid
    assert dppca_min_n(MODEL, d=20, k=20, epsilon=0.5, delta=1e-9).flags["k_below_d"] is False
    assert dppca_zeta(MODEL, n=10**9, d=3, k=3, epsilon=0.5, delta=1e-9).flags["k_below_d"] is False


def test_delta_is_compared_with_all_matrices_and_not_with_a_batch() -> None:
    at: dict[str, Any] = {"n": 10**6, "batch": 1000, "d": 20, "epsilon": 0.5, "delta": 5e-4}
    beta, rate = dppca_noise_beta(MODEL, 1.0, **at), dppca_learning_rate(1, MODEL, 1.0, 0.5, **at)
    assert beta.flags == {"epsilon_below_0.9": True, "delta_at_most_1/n": False}
    assert not rate.flags["delta_at_most_1/n"]


def test_forms_and_splits_carry_their_flags() -> None:
    tied, *_ = compare_forms(np.ones(20), 3, 6)
    assert tied.steps == math.inf and tied.flags["gap"] is False and not tied.valid
    steep = compare_forms(np.arange(1, 21.0) ** -2.0, 2, 6, tau=2.0)
    assert [form.valid for form in steep] == [True, True, True, False, False, False]  # 2 q > p from q = 4 on
    assert not any(form.valid for form in compare_forms(np.arange(1, 21.0) ** -2.0, 2, 6))  # tau = 1
    assert not privmean_histogram(5.0, 1e-6, 20).valid and privmean_histogram(0.5, 1e-6, 20).valid
    assert privmean_histogram(0.5, 1e-6, 20).value.delta == pytest.approx(0.5e-6 / 40)


def test_limits_where_a_formula_degenerates_are_flagged() -> None:
    """ln 1 = 0 makes nothing of a bound; ln^4 n / n rises up to n = 54."""
    assert not mbmsg_bound(1, 0.1, 3, 1, 0.1).valid and mbmsg_bound(1, 0.1, 3, 2, 0.1).valid
    assert not spm_samples(0.5, 0.3, 0.1, d=1, k=1, p=1, B=1.0).valid
    assert not spm_block_noise(1000, 1, 1, 1.0).valid and not spm_block_noise(54, 9, 2, 1.0).valid
    few, more, many = (spm_block_noise(n, 9, 2, 1.0).value.whole for n in (20, 55, 56))
    assert few < more > many and spm_block_noise(55, 9, 2, 1.0).valid


def test_more_columns_than_dimensions_are_flagged() -> None:
    for d, fits in ((4, False), (6, True)):
        assert spm_samples_general(0.5, 0.3, 0.1, d=d, k=3).valid is fits
        assert spm_samples_powerlaw(1.5, 0.1, d=d, k=3).valid is fits


def test_spikes_of_the_lower_bound_may_come_in_any_order_and_must_be_comparable() -> None:
    at: dict[str, Any] = {"n": 1000, "d": 20, "epsilon": 0.5, "delta": 1e-300, "c0": 1e-6}
    up, down = (spiked_lower_bound(np.array(values), 0.5, **at) for values in ([1.0, 9.0], [9.0, 1.0]))
    assert up == down and up.valid
    assert spiked_lower_bound(np.array([1e6, 1.0]), 0.5, **at).flags == {
        "delta_small_enough": True,
        "comparable_spikes": False,
    }


def test_rates_by_hand() -> None:
    """Mutants: sqrt(d) twice in the coherent one, nodes for their root, epsilon without the gap, no 1 / g."""
    start = math.sqrt(6) / (math.sqrt(6) - math.sqrt(2))
    at: dict[str, Any] = {"d": 100, "k": 3, "p": 6, "releases": 10}
    found = ppm_rate(4.0, 1.0, 0.01, 0.5, **at)
    assert found.value == pytest.approx(0.01 * 0.5 * math.sqrt(100 * math.log(10)) / 3 * start) and found.valid
    flat = ppm_rate_coherent(4.0, 1.0, 0.01, 2.0, **at)
    assert flat.value == pytest.approx(ppm_rate(4.0, 1.0, 0.01, math.sqrt(2 * math.log(100) / 100), **at).value)
    nodes: dict[str, Any] = {"d": 100, "q": 3, "p": 6, "releases": 10}
    assert dist_rate(4.0, 1.0, 0.01, 2.0, 9, **nodes).value == pytest.approx(3 * flat.value)
    assert dist_rate(4.0, 1.0, 0.01, 2.0, 1, **nodes) == flat
    gaussian = lowrank_rate(8.0, 4.0, 1.0, d=100, k=3, epsilon=0.5, delta=1e-6)
    root = math.sqrt(3 / 0.75 * 100 * math.log(100) * math.log(1e6))
    assert gaussian.value == pytest.approx(1 + 8 * root / (0.5 * 3)) and gaussian.valid
    pure = lowrank_rate(8.0, 4.0, 1.0, d=100, k=3, epsilon=0.5, mechanism="laplace", constant=2.0)
    assert pure.value == pytest.approx(1 + 16 * 3**1.5 * 100 * math.log(100) * math.log(100 / 0.75) / (0.5 * 0.75 * 3))
    for tied in (ppm_rate(1.0, 1.0, 0.01, 0.5, **at), lowrank_rate(2.0, 1.0, 1.0, d=9, k=2, epsilon=1.0, delta=0.1)):
        assert tied.value == math.inf and tied.flags["gap"] is False
    assert not ppm_rate(4.0, 1.0, 10.0, 0.5, **at).valid  # a sine above 1


def test_rates_have_the_powers_of_the_explicit_bound() -> None:
    """Half of epsilon is twice the error in both, where noise is small; the explicit one is at most 100 times that."""
    at: dict[str, Any] = {"d": 400, "k": 2, "p": 8}
    spectrum = np.concatenate([np.full(2, 1e6), np.full(398, 1e5)])
    explicit, rates = [], []
    for epsilon in (0.5, 1.0):
        sigma = ppm_sigma(epsilon, 1e-6, 8, 12).value
        explicit.append(ppm_error(spectrum, [sigma] * 12, **at).value)
        rates.append(ppm_rate(1e6, 1e5, sigma, 1.0, **at, releases=12).value)
    assert rates[0] / rates[1] == pytest.approx(2)
    assert explicit[0] / explicit[1] == pytest.approx(2, rel=0.1) and explicit[1] < 100 * rates[1]
