"""Hardt and Price by numbers: starts, steps, noise; recursions that nothing exceeds and that worst cases attain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npmdask.errors import BadInputError
from npmdask.theory import (
    init_tan_bound,
    init_tan_quantile,
    npm_basin,
    npm_error_recursion,
    npm_iterations,
    npm_max_noise,
    npm_plateau,
)
from tests.theory.made import falling, start, tangent, worst_noise


def test_the_start_by_hand() -> None:
    found = init_tan_bound(100, 5, 9, tau=2.0)
    assert found.value == pytest.approx(2 * 10 / (3 - 2))
    assert found.constants == {"tau": 2.0, "c": 1.0, "fail_prob": pytest.approx(2.0**-5)} and found.valid
    assert init_tan_bound(100, 5, 5).value == pytest.approx(10 / (math.sqrt(5) - 2))
    assert not init_tan_bound(100, 5, 9).valid  # tau = 1: fails with probability 1
    assert init_tan_bound(100, 5, 9, 2.0, c=0.5).constants["fail_prob"] == pytest.approx(2.0**-2.5)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "k", "p"), [(30, 3, 3), (30, 3, 8), (9, 4, 7)])
def test_quantiles_are_those_of_random_starts(d: int, k: int, p: int) -> None:
    """Against 4000 bases: the share below is prob within 5 standard errors. Mutant: p - 1 degrees of freedom.

    (9, 4, 7): fewer dimensions are left than k, where there is no triangle.
    """
    rng, many = np.random.default_rng(5), 4000
    blocks = np.linalg.qr(rng.standard_normal((many, d, p)))[0][:, :k]
    smallest = np.linalg.svd(blocks, compute_uv=False)[:, -1]
    tangents = np.sqrt(1 - smallest**2) / smallest
    for prob in (0.1, 0.5, 0.9):
        found = init_tan_quantile(d, k, p, prob, draws=40_000, seed=1)
        assert found.valid and found.constants == {"draws": 40_000, "seed": 1}
        error = 5 * math.sqrt(prob * (1 - prob) * (1 / many + 1 / 40_000))
        assert abs(np.mean(tangents <= found.value) - prob) < error


@pytest.mark.slow
def test_the_law_of_random_starts_in_high_dimension() -> None:
    """Lemma 2.5: sqrt(d), and 1 / (sqrt(p) - sqrt(k-1)) up to a constant, at d = 10^8 in no time."""
    small, large = (init_tan_quantile(d, 5, 10, seed=3).value for d in (10**4, 10**8))
    assert large / small == pytest.approx(100, rel=0.01)
    ratios = [
        init_tan_quantile(10**6, k, p).value / init_tan_bound(10**6, k, p).value for k in (2, 20) for p in (2 * k,)
    ]
    assert all(0.7 < ratio < 2 for ratio in ratios)
    square = init_tan_quantile(10**6, 20, 20, 0.5).value / init_tan_bound(10**6, 20, 20).value
    assert 0.5 < square < 2  # p = k costs a factor k more, which the bound knows
    assert init_tan_quantile(7, 3, 7).value == 0 and not init_tan_quantile(7, 3, 4, 0.99, draws=100).valid


@pytest.mark.slow
@pytest.mark.parametrize(("k", "p"), [(2, 2), (2, 3), (1, 3)])
def test_the_probability_of_a_bad_start_falls_like_tau_to_minus_p_plus_1_minus_k(k: int, p: int) -> None:
    """Its exponent, c = 1: by quantiles at 1 in 30 and 1 in 3000 of 400,000 starts. Mutant: p - k."""
    near, far = (init_tan_quantile(10**6, k, p, 1 - miss, draws=400_000).value for miss in (1 / 30, 1 / 3000))
    assert math.log(100) / math.log(far / near) == pytest.approx(p + 1 - k, rel=0.12)
    probs = [init_tan_bound(10**6, k, p, tau).constants["fail_prob"] for tau in (2.0, 2.0 * far / near)]
    assert math.log(probs[0] / probs[1]) == pytest.approx(math.log(100), rel=0.12)


def test_steps_by_hand() -> None:
    assert npm_iterations(10, 0.01, 16, 1).value == math.ceil(math.log(1000) / math.log(2)) == 10
    assert npm_iterations(10, 0.1, 1.0, 0.0).value == 2  # c = acc: a step cannot be relied on for more
    assert npm_iterations(0.05, 0.1, 2, 1).value == npm_iterations(0.0, 0.1, 2, 1).value == 0
    assert npm_iterations(10, 0.1, 2, 2) == (math.inf, {}, {"accuracy_below_half": True, "gap": False})
    assert npm_iterations(10, 0.6, 2, 1).flags == {"accuracy_below_half": False, "gap": True}
    found = npm_max_noise(3, 1, 0.1, 0.25)
    assert found.value == (pytest.approx(0.04), pytest.approx(0.1)) and found.valid
    assert found.value.whole == found.value[0] and found.value.inside == found.value[1]
    assert not npm_max_noise(1, 1, 0.5, 0.25).valid


def test_a_step_and_its_fixed_points_by_hand() -> None:
    found = npm_error_recursion(0.75, 4, 2, 0.4, 0.8)
    assert found.value == pytest.approx((1.5 + 0.4 * 1.25) / (4 - 0.8 * 1.25)) and found.valid
    assert npm_error_recursion(3, 1, 0.5, 0, 1.0) == (math.inf, {}, {"noise_small_enough": False, "contracts": False})
    assert npm_plateau(4, 1, 1.8, 0).value == pytest.approx(0.75) and npm_basin(4, 1, 1.8, 0).value == math.inf
    assert npm_plateau(4, 1, 0, 0.3).value == 0
    assert npm_basin(4, 1, 0, 1.5).value == pytest.approx(math.sqrt(3))  # 3 / sqrt(1 + t^2) = 1.5
    for noise in ((3.0, 0.0), (0.0, 3.0), (1.5, 1.5)):
        assert npm_plateau(4, 1, *noise).value == math.inf and npm_basin(4, 1, *noise).value == 0
        assert not npm_plateau(4, 1, *noise).valid


def test_where_noise_leaves_no_fixed_point() -> None:
    """The largest g is (gap^(2/3) - g_u^(2/3))^(3/2), where both roots meet. Mutant: a top that is a little off."""
    gap, g_u = 3.0, 1.0
    most = (gap ** (2 / 3) - g_u ** (2 / 3)) ** 1.5
    assert npm_plateau(5, 2, 0.999999 * most, g_u).valid and not npm_plateau(5, 2, 1.000001 * most, g_u).valid
    roots = npm_plateau(5, 2, 0.999999 * most, g_u).value, npm_basin(5, 2, 0.999999 * most, g_u).value
    assert roots[0] < math.sqrt((gap / g_u) ** (2 / 3) - 1) < roots[1]


def test_steps_go_to_the_plateau_from_inside_the_basin_only() -> None:
    """Fails if the roots are exchanged, or are not those of the step."""
    args = (3.0, 2.0, 0.05, 0.02)
    low, high = npm_plateau(*args).value, npm_basin(*args).value
    for t in (low, high):
        assert npm_error_recursion(t, *args).value == pytest.approx(t, rel=1e-10)
    for first, end in ((0.0, low), (0.99 * high, low), (1.01 * high, math.inf)):
        t = first
        for _ in range(500):
            t = npm_error_recursion(t, *args).value if t < math.inf else t
        assert t == pytest.approx(end, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.0, 0.01, 0.2, 2.0])
def test_no_step_exceeds_the_recursion(size: float) -> None:
    """200 random matrices, 8 steps each, indefinite. Mutant: sqrt(1 + t^2) left out of either term."""
    rng, close = np.random.default_rng(11), 0
    for _ in range(200):
        d, k = int(rng.integers(5, 14)), int(rng.integers(1, 4))
        p = int(rng.integers(k, d))
        sizes = falling(d, rng)
        values = sizes * rng.choice([-1.0, 1.0], d)
        x = start(d, p, rng)
        for _ in range(8):
            noise = size * sizes[k - 1] * rng.standard_normal((d, p)) / math.sqrt(d)
            g, g_u = np.linalg.norm(noise[k:], 2), np.linalg.norm(noise[:k], 2)
            bound = npm_error_recursion(tangent(x, k), sizes[k - 1], sizes[k], g, g_u).value
            x = np.linalg.qr(values[:, None] * x + noise)[0]
            after = tangent(x, k)
            assert after <= bound * (1 + 1e-9)
            close += after > 0.8 * bound
    assert size > 0.2 or close > 10  # and it says something


def test_in_two_dimensions_the_recursion_is_what_happens() -> None:
    """k = p = 1, noise against U: equality, so that no smaller formula can be right."""
    args = 5.0, 2.0  # X = (0.6, 0.8)
    for g, g_u in ((0.0, 0.0), (0.3, 0.0), (0.0, 0.7), (0.3, 0.7)):
        y = np.array([[5 * 0.6 - g_u], [2 * 0.8 + g]])
        assert npm_error_recursion(4 / 3, *args, g, g_u).value == pytest.approx(tangent(y, 1), rel=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(("k", "p", "acc"), [(1, 1, 0.1), (2, 3, 0.1), (3, 6, 0.4), (3, 3, 0.02)])
def test_theorem_2_4_holds_at_the_noise_that_it_allows(k: int, p: int, acc: float) -> None:
    """The worst noise of each step, both norms at their limits, for all l >= L. Mutant: 50 times the noise, below."""
    d, sizes = 40, np.concatenate([np.linspace(2, 1, k), np.full(40 - k, 0.7)])
    for seed in range(5):
        x = first = start(d, p, np.random.default_rng(seed))
        tan0 = tangent(first, k)
        whole, inside = npm_max_noise(1.0, 0.7, acc, 1 / math.hypot(1, tan0)).value
        steps = int(npm_iterations(tan0, acc, 1.0, 0.7).value)
        for step in range(steps + 10):
            x = np.linalg.qr(sizes[:, None] * x + worst_noise(x, k, whole, min(whole, inside)))[0]
            assert step + 1 < steps or tangent(x, k) <= acc
        x = first
        for _ in range(steps + 10):
            x = np.linalg.qr(sizes[:, None] * x + worst_noise(x, k, 50 * whole, 0.0))[0]
        assert tangent(x, k) > acc


def test_impossible_numbers() -> None:
    for call in (
        lambda: init_tan_bound(5, 3, 2),
        lambda: init_tan_bound(5, 0, 2),
        lambda: init_tan_bound(5, 2, 6),
        lambda: init_tan_bound(5, 2, 3, tau=0.0),
        lambda: init_tan_quantile(5, 2, 3, prob=1.0),
        lambda: init_tan_quantile(5, 2, 3, draws=0),
        lambda: npm_iterations(1.0, 0.1, 1.0, 2.0),
        lambda: npm_iterations(1.0, 1.0, 2.0, 1.0),
        lambda: npm_iterations(-0.1, 0.1, 2.0, 1.0),
        lambda: npm_max_noise(2.0, 1.0, 0.1, 0.0),
        lambda: npm_max_noise(2.0, -1.0, 0.1, 0.5),
        lambda: npm_error_recursion(-1.0, 2.0, 1.0, 0.0, 0.0),
        lambda: npm_error_recursion(1.0, 2.0, 1.0, math.nan, 0.0),
        lambda: npm_plateau(2.0, 1.0, -0.1, 0.0),
        lambda: npm_plateau(0.0, 0.0, 0.1, 0.0),
    ):
        with pytest.raises(BadInputError):
            call()
