"""The intermediate rank: its recursion holds without constants, its formulas are as restored, q is chosen sensibly."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from npmdask.errors import BadInputError
from npmdask.theory import (
    best_q,
    compare_forms,
    gapfree_iterations,
    gapfree_noise,
    gaussian_norm,
    improved_eps_range,
    improved_iterations,
    improved_max_noise,
    improved_plateau,
    improved_recursion,
    improved_residual,
    init_tan_bound,
    npm_iterations,
    npm_max_noise,
)
from tests.theory.made import falling, perturbation, start, tangent

POWER_LAW = np.arange(1, 301.0) ** -1.5


def test_formulas_by_hand() -> None:
    assert improved_iterations(4, 1, 100, 0.1).value == pytest.approx(4 / 3 * math.log(1000))
    assert improved_iterations(4, 1, 100, 0.1, tau=2, constant=3).value == pytest.approx(4 * math.log(2000))
    assert improved_iterations(4, 4, 100, 0.1) == (
        math.inf,
        {"constant": 1.0, "tau": 1.0},
        {"gap": False, "start_promised": False},
    )
    allowed = improved_max_noise(4, 1, 0.1, 100, 9, 5, tau=2.0)
    assert allowed.value == (pytest.approx(0.3), pytest.approx(0.3 * (3 - 2) / 20))
    assert allowed.flags == {"gap": True, "q_at_most_half_p": False, "start_promised": True}
    assert improved_max_noise(4, 1, 0.1, 100, 10, 5, tau=1.1).valid
    assert improved_eps_range(8, 4, 1, 1000).value == pytest.approx(0.5 / math.log(1000))
    assert improved_eps_range(1000, 1, 1, 10).value == pytest.approx(1e-3 / math.log(1000))
    assert improved_eps_range(4, 4, 1, 10).value == pytest.approx(1 / math.log(10))
    assert not improved_eps_range(4, 4, 0.01, 10).valid
    assert improved_recursion(0.75, 4, 2, 0.3, 0.5, 2.0).value == pytest.approx((1.5 + 1.25 * 1.3) / 4)
    assert improved_plateau(4, 1, 0.8, 0.5, 2.0).value == pytest.approx(0.75)
    assert not improved_plateau(4, 1, 2.0, 0.5, 2.0).valid
    assert improved_residual(0.5, 6, 4).value == pytest.approx(5)
    assert gapfree_iterations(0.1, 100, tau=3).value == pytest.approx(10 * math.log(3000))
    assert gapfree_noise(0.1, 2, 100, 5, 9).value == (pytest.approx(0.02), pytest.approx(0.002))
    assert gapfree_noise(0.1, 0, 100, 5, 9).flags["residual_left"] is False
    assert not gapfree_noise(1.5, 1, 100, 5, 9).valid and not gapfree_iterations(1.5, 100).valid


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.0, 0.003, 0.05])
def test_no_step_exceeds_the_recursion(size: float) -> None:
    """200 matrices, 8 steps: h, angle and residual. Mutants: t_q or sqrt(1 + h^2) left out, s_{q+1} for s_{q+2}."""
    rng, close = np.random.default_rng(12), 0
    for _ in range(200):
        d, k = int(rng.integers(7, 14)), int(rng.integers(1, 4))
        p = int(rng.integers(k, d - 1))
        q = int(rng.integers(k, p + 1))
        sizes = falling(d, rng)
        values = sizes * rng.choice([-1.0, 1.0], d)
        x = start(d, p, rng)
        for _ in range(8):
            noise = size * sizes[k - 1] * rng.standard_normal((d, p))
            y = values[:, None] * x + noise
            norms = np.linalg.norm(noise, 2), np.linalg.norm(noise[:q], 2)
            bound = improved_recursion(perturbation(x, k, q), sizes[k - 1], sizes[q], *norms, tangent(y, q)).value
            x = np.linalg.qr(y)[0]
            h = perturbation(x, k, q)
            assert h <= bound * (1 + 1e-9) + 1e-12
            assert tangent(x, k) <= h * (1 + 1e-9) + 1e-12
            left = np.linalg.norm(values[:, None] * np.eye(d) - x @ (x.T * values), 2)
            assert left <= improved_residual(h, sizes[0], sizes[k]).value * (1 + 1e-9)
            close += h > 0.8 * bound
    assert close > 10  # and it says something


def test_without_noise_it_contracts_by_exactly_the_ratio() -> None:
    sizes, h = np.array([4.0, 3.0, 2.0]), 5.0
    x = np.linalg.qr(np.array([[1.0, 0.0], [0.0, 1.0], [h, 0.0]]))[0]
    for _ in range(6):
        expected = improved_recursion(h, 4.0, 2.0, 0.0, 0.0, 7.0).value
        x = np.linalg.qr(sizes[:, None] * x)[0]
        h = perturbation(x, 1, 2)
        assert h == pytest.approx(expected, rel=1e-12)


def test_the_plateau_is_the_fixed_point_of_the_recursion() -> None:
    h = improved_plateau(5, 3, 0.2, 0.1, 4).value
    assert improved_recursion(h, 5, 3, 0.2, 0.1, 4).value == pytest.approx(h, rel=1e-12)


@pytest.mark.parametrize(("p", "taken"), [(10, 46), (11, 30), (15, 10), (20, 7), (30, 5), (40, 4)])
def test_a_power_law_takes_fewer_steps_with_more_columns(p: int, taken: int) -> None:
    """s_j = j^-1.5, k = 10: what the best q predicts is an upper bound of what happens, within a factor of 2.5."""
    predicted = best_q(POWER_LAW, 10, p)
    x = start(300, p, np.random.default_rng(0))
    steps = 0
    while tangent(x, 10) > 1e-3:
        x, steps = np.linalg.qr(POWER_LAW[:, None] * x)[0], steps + 1
    assert 0.6 * taken <= steps <= 1.4 * taken
    assert steps <= predicted.constants["steps"] + 1 <= 2.5 * steps
    assert 10 <= predicted.value <= p and predicted.flags == {"gap": True, "start_promised": False}


def test_q_is_a_compromise() -> None:
    """Few steps want a far eigenvalue, but q = p makes a bad start; random noise is heard in q directions."""
    assert best_q(POWER_LAW, 10, 40).value == 36 and best_q(POWER_LAW, 10, 10).value == 10
    by_noise = best_q(POWER_LAW, 10, 40, by="noise")
    rivals = [improved_max_noise(POWER_LAW[9], POWER_LAW[q], 1e-3, 300, 40, q).value for q in range(10, 41)]
    stddevs = [
        min(found.whole / gaussian_norm(1, 300, 40), found.inside / gaussian_norm(1, q, 40))
        for q, found in enumerate(rivals, 10)
    ]
    assert by_noise.constants["noise"] == pytest.approx(max(stddevs)) and by_noise.value == 10 + np.argmax(stddevs)
    assert by_noise.value < 36
    flat = best_q(np.ones(20), 3, 6)
    assert flat.value == 3 and flat.constants["steps"] == math.inf and not flat.valid
    assert best_q(np.array([3.0, 2.0]), 2, 4, d=50).constants["steps"] == 1.0  # what is left out is zero


def test_both_forms_side_by_side() -> None:
    """The gap of k alone in the first row, s_k - s_{q+1} in the others. Mutant: an acc in the first one's inside."""
    first, *others = compare_forms(POWER_LAW, 10, 20, acc=0.1, tau=2.0)
    tan0 = init_tan_bound(300, 10, 20, 2.0).value
    assert first.theorem == "gap-dependent" and first.q == 10
    assert first.steps == npm_iterations(tan0, 0.1, POWER_LAW[9], POWER_LAW[10]).value
    assert first.noise == npm_max_noise(POWER_LAW[9], POWER_LAW[10], 0.1, 1 / math.hypot(1, tan0)).value
    assert [row.q for row in others] == list(range(10, 21))
    assert [row.gap for row in others] == pytest.approx([POWER_LAW[9] - POWER_LAW[q] for q in range(10, 21)])
    assert others[0].gap == first.gap
    assert all(b.steps < a.steps and b.noise.whole > a.noise.whole for a, b in pairwise(others))
    ratios = [compare_forms(np.arange(1, 2001.0) ** -2.0, k, 4 * k)[1 + k].gap * k**2 for k in (8, 16, 32)]
    assert ratios == pytest.approx([ratios[0]] * 3, rel=0.1)  # ~ k^-alpha at q = 2 k, not k^(-alpha - 1)


def test_noise_at_a_fifth_of_what_is_allowed_is_borne() -> None:
    """Theorem 2.2 with constant 0.2 for the noise and 1 for the steps, both norms at their limits; 50 times it is not.

    A power law with 2 q <= p, where the gap of k alone would allow 2.6 times less.
    """
    d, k, p, q, acc = 200, 4, 16, 8, 0.05
    sizes = np.arange(1, d + 1.0) ** -1.2
    steps = math.ceil(improved_iterations(sizes[k - 1], sizes[q], d, acc).value)
    allowed = improved_max_noise(sizes[k - 1], sizes[q], acc, d, p, q, constant=0.2)
    assert allowed.flags["q_at_most_half_p"] and allowed.value.whole > 2.5 * 0.2 * acc * (sizes[k - 1] - sizes[k])
    worst = {}
    for factor in (1, 50):
        angles = []
        for seed in range(10):
            rng = np.random.default_rng(seed)
            x = start(d, p, rng)
            for _ in range(steps):
                noise = rng.standard_normal((d, p))
                noise[:q] *= factor * allowed.value.inside / np.linalg.norm(noise[:q], 2)
                rest = math.sqrt(allowed.value.whole**2 - allowed.value.inside**2)
                noise[q:] *= factor * rest / np.linalg.norm(noise[q:], 2)
                x = np.linalg.qr(sizes[:, None] * x + noise)[0]
            angles.append(float(np.linalg.norm(np.eye(d, k) - x @ x[:k].T, 2)))
        worst[factor] = max(angles)
    assert worst[1] <= acc < worst[50]


def test_without_a_gap_the_residual_is_small_and_the_angle_is_not() -> None:
    """Theorem 2.3, constants 1, noise at its limits in both norms: s_k = s_{k+1}. Mutant: 100 times the noise."""
    d, k, p, acc = 60, 3, 6, 0.2
    sizes = np.concatenate([[2.0, 1.5], np.ones(6), np.linspace(0.9, 0.1, d - 8)])
    steps = math.ceil(gapfree_iterations(acc, d).value)
    allowed = gapfree_noise(acc, sizes[k], d, k, p).value
    found = {}
    for factor in (1, 100):
        rng, left, angles = np.random.default_rng(4), [], []
        for _ in range(5):
            x = start(d, p, rng)
            for _ in range(steps):
                noise = rng.standard_normal((d, p))
                noise[:k] *= factor * allowed.inside / np.linalg.norm(noise[:k], 2)
                noise[k:] *= factor * math.sqrt(allowed.whole**2 - allowed.inside**2) / np.linalg.norm(noise[k:], 2)
                x = np.linalg.qr(sizes[:, None] * x + noise)[0]
            left.append(np.linalg.norm(np.diag(sizes) - x @ (x.T * sizes), 2))
            angles.append(np.linalg.norm(np.eye(d, k) - x @ x[:k].T, 2))
        found[factor] = max(left), np.median(angles)
    assert found[1][0] <= (1 + acc) * sizes[k] < found[100][0]
    assert found[1][1] > acc


def test_impossible_numbers() -> None:
    for call in (
        lambda: improved_iterations(1, 2, 10, 0.1),
        lambda: improved_iterations(2, 1, 10, 1.0),
        lambda: improved_max_noise(2, 1, 0.1, 10, 3, 4),
        lambda: improved_eps_range(2, 0.0, 1, 10),
        lambda: improved_eps_range(2, 3.0, 1, 10),
        lambda: improved_recursion(-1, 2, 1, 0, 0, 0),
        lambda: improved_residual(-1, 2, 1),
        lambda: gapfree_noise(0.1, -1.0, 10, 2, 3),
        lambda: gapfree_iterations(0.0, 10),
        lambda: best_q(POWER_LAW, 3, 2),
        lambda: best_q(POWER_LAW, 3, 5, by="step"),
        lambda: best_q(POWER_LAW, 3, 5, d=20),
        lambda: best_q(np.array([1.0, 0.0, 0.0]), 2, 3),
    ):
        with pytest.raises(BadInputError):
            call()
