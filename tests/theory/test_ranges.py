"""Every number of every function: what cannot be is refused with a sentence; nothing negative or undefined comes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from npmdask import theory
from npmdask.errors import BadInputError
from npmdask.theory import AssumptionA
from npmdask.theory.power import likely_sine

SIZES = np.array([3.0, 2.0, 1.0, 0.5, 0.2, 0.1])
GAP: dict[str, Any] = {"s_k": 1.0, "s_k1": 0.5}
Q_GAP: dict[str, Any] = {"s_k": 1.0, "s_q1": 0.5}
START: dict[str, Any] = {"d": 100, "k": 3, "p": 6}
NOISY: dict[str, Any] = {
    "spectrum": SIZES,
    "stddevs": [1e-3] * 5,
    "d": 50,
    "k": 2,
    "p": 4,
    "tau": 2.0,
    "fail_prob": 0.1,
}
ASKED: dict[str, Any] = {"n": 10**6, "d": 20, "k": 2, "epsilon": 0.5, "delta": 1e-7, "constant": 1.0}
BUDGET: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-6}
MODEL: dict[str, Any] = {"kappa": 2.0, "V": 3.0, "gamma": 1.0, "M": 1.0, "K": 1.0, "a": 1.0}
OJA: dict[str, Any] = {"top": 1.0, "second": 0.5, "deviation": 2.0, "variance": 3.0, "alpha": 2.0, "fail_prob": 0.1}
ROWS: dict[str, Any] = {"acc": 0.1, "d": 100, "p": 6, "B": 2.0, "constant": 1.0}
TIMES: dict[str, Any] = {"t": 5, "gap": 0.1, "k": 3, "delta": 0.1}
GIVEN: dict[str, dict[str, Any]] = {
    "init_tan_bound": START | {"tau": 2.0, "c": 1.0},
    "init_tan_explicit": START | {"fail_prob": 0.1},
    "init_tan_quantile": START | {"prob": 0.9, "draws": 50, "seed": 0},
    "npm_iterations": GAP | {"tan0": 20.0, "acc": 0.01},
    "momentum_beta": {"s_k": 1.0, "s_q1": 0.5},
    "momentum_iterations": {"s_k": 1.0, "s_q1": 0.5, "tan0": 20.0, "acc": 0.01, "beta": 0.05},
    "npm_max_noise": GAP | {"acc": 0.1, "cos0": 0.1},
    "npm_error_recursion": GAP | {"t": 5.0, "g": 0.02, "g_u": 0.02},
    "npm_plateau": GAP | {"g": 0.02, "g_u": 0.02},
    "npm_basin": GAP | {"g": 0.02, "g_u": 0.02},
    "improved_iterations": Q_GAP | {"d": 100, "acc": 0.1, "tau": 1.0, "constant": 1.0},
    "improved_max_noise": Q_GAP | {"acc": 0.1, "d": 100, "p": 8, "q": 4, "tau": 1.0, "constant": 1.0},
    "improved_eps_range": {"s_k": 1.0, "s_q": 0.5, "tau": 1.0, "d": 100, "constant": 1.0},
    "improved_recursion": Q_GAP | {"h": 5.0, "g": 0.02, "g_uq": 0.02, "t_q": 2.0},
    "improved_plateau": Q_GAP | {"g": 0.02, "g_uq": 0.02, "t_q": 2.0},
    "improved_residual": {"h": 0.1, "s_1": 1.0, "s_k1": 0.5},
    "gapfree_iterations": {"acc": 0.1, "d": 100, "tau": 1.0, "constant": 1.0},
    "gapfree_noise": START | {"acc": 0.1, "s_k1": 0.5, "tau": 1.0, "constant": 1.0},
    "compare_forms": {"spectrum": SIZES, "k": 2, "p": 4, "d": 50, "acc": 0.1, "tau": 1.0},
    "best_q": {"spectrum": SIZES, "k": 2, "p": 4, "d": 50, "acc": 0.1, "tau": 1.0},
    "roundness_spiked": {"lams": [2.0, 1.0], "sigma": 0.5, "d": 20, "scale": 2.0},
    "spm_block_noise": {"n": 1000, "d": 100, "p": 4, "B": 2.0, "constant": 1.0},
    "spm_samples": ROWS | GAP | {"k": 3},
    "spm_samples_improved": ROWS | Q_GAP | {"q": 3},
    "spm_samples_general": GAP | {"acc": 0.1, "d": 100, "k": 3, "constant": 1.0},
    "spm_samples_powerlaw": {"c": 1.5, "acc": 0.1, "d": 100, "k": 3, "constant": 1.0},
    "spm_samples_spiked": {"lams": [2.0, 1.0], "sigma": 0.5, "acc": 0.1, "d": 20, "constant": 1.0},
    "ppm_sigma": BUDGET | {"p": 8, "L": 20},
    "gaussian_norm": {"stddev": 1.0, "rows": 5, "columns": 3, "releases": 4, "fail_prob": 0.1},
    "laplace_norm": {"stddev": 1.0, "rows": 5, "columns": 3, "releases": 4, "fail_prob": 0.1},
    "ppm_error": NOISY,
    "lowrank_error": NOISY,
    "dist_error": NOISY | {"nodes": 3},
    "ppm_error_coherent": {n: v for n, v in NOISY.items() if n != "stddevs"}
    | {"sigma": 1e-3, "coherence": 2.0, "releases": 5},
    "dist_comm": {"nodes": 3, "p": 4, "d": 50, "releases": 5},
    "predicted_sine": {"ritz_values": SIZES[:4], "stddevs": [1e-3] * 5, "d": 50, "k": 2},
    "coherence_linf_bound": {"coherence": 2.0, "d": 50, "p": 3, "releases": 4},
    "ppm_rate": START | GAP | {"sigma": 0.1, "entry": 0.5, "releases": 9, "constant": 1.0},
    "ppm_rate_coherent": START | GAP | {"sigma": 0.1, "coherence": 2.0, "releases": 9, "constant": 1.0},
    "dist_rate": Q_GAP
    | {"nu": 0.1, "coherence": 2.0, "nodes": 3, "d": 100, "q": 3, "p": 6, "releases": 9, "constant": 1.0},
    "lowrank_rate": BUDGET | GAP | {"s_1": 2.0, "d": 100, "k": 3, "constant": 1.0},
    "condition_number": {"eigenvalues": SIZES[:3], "k": 2},
    "zeta_from_frobenius": {"distance": 0.5, "eigenvalues": SIZES[:3], "k": 2},
    "dppca_zeta": MODEL | ASKED | {"c_n": 1.0},
    "dpojas_zeta": MODEL | ASKED | {"c_epsilon": 1.0},
    "dppca_min_n": MODEL | {name: value for name, value in ASKED.items() if name != "n"},
    "spiked_lower_bound": {n: v for n, v in ASKED.items() if n != "k"}
    | {"values": np.array([2.0, 1.0]), "sigma": 0.5, "c0": 1.0, "c0_prime": 1.0},
    "top_lower_bound": {"lambda_1": 2.0, "lambda_2": 1.0, "n": 1000, "d": 20, "epsilon": 0.5, "constant": 1.0},
    "dppca_noise_beta": MODEL | BUDGET | {"lambda_1": 2.0, "n": 10**5, "batch": 1000, "d": 20, "tau": 0.01},
    "dppca_learning_rate": MODEL
    | BUDGET
    | {"t": 3, "lambda_1": 2.0, "gap": 1.0, "n": 10**5, "d": 20, "batch": 1000}
    | {"c": 1.0, "c2": 1.0, "tau": 0.01, "fail_prob": 0.01},
    "oja_shift": OJA,
    "oja_rate": OJA | {"n": 10**6, "d": 20, "constant": 1.0},
    "hist_threshold": BUDGET,
    "privrange_groups": BUDGET | {"tau": 0.01, "constant": 3.0},
    "privmean_histogram": BUDGET | {"d": 20},
    "privmean_min_batch": BUDGET | {"d": 20, "tau": 0.01, "share": 1.0},
    "mbmsg_params": {"gap": 0.1, "k": 3, "warm": 1.0, "batch": 1.0, "shift": 1.0},
    "mbmsg_bound": TIMES | {"T": 10, "constant": 1.0, "c_shift": 1.0},
    "mbrmsg_params": {"gap": 0.1, "k": 3, "d": 20, "T": 10, "delta": 0.1},
    "mbrmsg_bound": TIMES,
    "mbrmsg_expected": {"t": 5, "gap": 0.1, "k": 3, "d": 20, "constant": 1.0},
    "bernstein_batch": {"lambda_1": 0.5, "b": 0.1, "d": 20, "T": 10, "delta": 0.1},
    "total_cost": {"method": "4.3", "d": 20, "k": 3, "acc": 0.1, "gap": 0.1, "constant": 1.0},
    "zcdp": {"sensitivity": 1.0, "stddev": 2.0, "delta": 1e-6},
    "drv": {"epsilon": 0.1, "delta": 1e-8, "releases": 10, "slack": 1e-6},
    "lemma16_split": BUDGET | {"releases": 10},
    "dp_tpm_nu": BUDGET | {"k": 3, "restarts": 5, "iterations": 10},
    "input_perturbation_min_eps": {"lambda_min": 1.0, "d": 20, "delta": 1e-6, "change": 6.0, "constant": 1.0},
    "tpm_restarts": {"k": 3, "least": 2.0, "constant": 1.0},
    "tpm_iterations": {"lambda_max": 1.0, "d": 20, "epsilon": 0.1, "constant": 1.0},
    "tpm_max_noise": {"noise": "round", "lambda_min": 1.0, "d": 20, "k": 3, "constants": [1.0, 1.0, 1.0]},
    "online_tpm_samples": {"sigma": 1.0, "lambda_min": 1.0, "epsilon": 0.1, "d": 20, "k": 3, "constants": [1.0, 1.0]},
    "dp_tpm_min_eps": {"lambda_min": 1.0, "mu": 1.5, "d": 20, "k": 3, "delta": 1e-6, "lambda_max": 2.0}
    | {"gap": 0.5, "constant": 1.0, "c": 1.0},
    "likely_sine": {"spectrum": SIZES, "stddevs": [1e-3] * 5, "d": 50, "k": 2, "p": 4},
}
ELSEWHERE = {"gdp_delta", "mu_for", "shuffle_eps", "zeta"}  # of accounting; of a basis
WRONG = (0, -1, math.nan, math.inf, 1e300, 1e-300)


def called(name: str, given: dict[str, Any]) -> Any:
    """With a Model made of its parts where there is one."""
    function: Callable[..., Any] = likely_sine if name == "likely_sine" else getattr(theory, name)
    if "kappa" in given:
        model = AssumptionA(**{part: given[part] for part in MODEL})
        given = {part: value for part, value in given.items() if part not in MODEL} | {"model": model}
    return function(**given)


def numbers(found: Any) -> Iterator[float]:
    """All that a result says: its value or values, and what it assumed."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, tuple | list):
        for part in found:
            yield from numbers(part)
    elif not isinstance(found, str):
        yield float(found)


def spoiled(given: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for name, value in given.items():
        if isinstance(value, str):
            continue
        many = isinstance(value, list | np.ndarray)
        for wrong in (*WRONG, *(() if many or isinstance(value, float) else (1.5,))):
            worse = np.append(value[:-1], wrong) if many else wrong
            yield name, wrong, given | {name: list(worse) if isinstance(value, list) else worse}


def test_every_function_is_in_the_list() -> None:
    functions = {name for name in theory.__all__ if inspect.isfunction(getattr(theory, name))}
    assert functions | {"likely_sine"} == set(GIVEN) | ELSEWHERE


@pytest.mark.parametrize("name", GIVEN)
def test_impossible_numbers_are_refused_and_possible_ones_give_possible_ones(name: str) -> None:
    """One argument after the other is 0, -1, nan, inf, 1e300, 1e-300 or 1.5 of a whole number.

    Each is refused as bad input or gives numbers that are not negative; nan, inf and what is counted in halves are
    refused always. Fails for a check that is missing, or that comes after the arithmetic.
    """
    assert all(number >= 0 for number in numbers(called(name, GIVEN[name])))
    for argument, wrong, given in spoiled(GIVEN[name]):
        try:
            found = called(name, given)
        except BadInputError:
            continue
        assert math.isfinite(wrong) and wrong != 1.5, argument
        assert all(number >= 0 for number in numbers(found)), (argument, wrong, found)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("dppca_zeta", {"kappa": 0.5}),
        ("dppca_learning_rate", {"gap": 2.5}),
        ("tpm_max_noise", {"k": 21}),
        ("dp_tpm_min_eps", {"lambda_max": 0.5}),
        ("dp_tpm_min_eps", {"delta": 2.0}),
        ("condition_number", {"eigenvalues": np.array([1.0, -5.0]), "k": 1}),
        ("zeta_from_frobenius", {"eigenvalues": SIZES[::-1]}),
        ("lowrank_rate", {"mechanism": "laplacian"}),
        ("ppm_error", {"fail_prob": 7.0, "stddevs": []}),
    ],
)
def test_impossible_combinations_are_refused(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        called(name, GIVEN[name] | wrong)


def test_zero_noise_and_a_start_that_is_there_are_possible() -> None:
    assert theory.npm_iterations(0.0, 0.1, 2.0, 1.0).value == 0
    assert theory.online_tpm_samples(0.0, 1.0, 0.1, d=20, k=3).value == 0
    assert theory.zcdp(0.0, 1.0, 1e-6).value == 0
