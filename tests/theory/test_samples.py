"""Rows that the streaming power method needs: formulas, what they become for models, and draws that are round."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2

from npmdask.errors import BadInputError
from npmdask.theory import (
    roundness_spiked,
    spm_block_noise,
    spm_samples,
    spm_samples_general,
    spm_samples_improved,
    spm_samples_powerlaw,
    spm_samples_spiked,
)
from tests.theory.made import start


def spiked(lams: list[float], sigma: float, d: int, n: int, seed: int, scale: float = 2.0) -> np.ndarray:
    """n rows of the model, divided by the root of D = scale (d sigma^2 + sum lams^2); spikes along the first axes."""
    rng = np.random.default_rng(seed)
    rows = sigma * rng.standard_normal((n, d))
    rows[:, : len(lams)] += rng.standard_normal((n, len(lams))) * lams
    return rows / math.sqrt(scale * (d * sigma**2 + sum(np.square(lams))))


def test_formulas_by_hand() -> None:
    log2 = math.log(100) ** 2
    found = spm_samples(0.5, 0.3, 0.1, d=100, k=5, p=9, B=2.0)
    assert found.value == pytest.approx(18 * 0.5 * max(100, 18 / (3 - 2) ** 2) * log2 / (0.008 * 100)) and found.valid
    coarse = spm_samples(0.5, 0.3, 0.4, d=100, k=5, p=9, B=2.0)
    assert coarse.value == pytest.approx(18 * 0.5 * 18 * log2 / (0.008 * 100))
    derived = spm_samples_improved(0.5, 0.3, 0.1, d=100, q=5, p=9, B=2.0)
    assert derived.value == pytest.approx(18 * found.value) and derived.value > found.value
    assert spm_samples(0.5, 0.5, 0.1, d=100, k=5, p=9, B=2.0).value == math.inf
    assert not spm_samples(0.5, 0.3, 0.6, d=100, k=5, p=9, B=2.0).valid
    general = spm_samples_general(0.5, 0.3, 0.1, d=100, k=5)
    assert general.value == pytest.approx(0.5 * 100 / (0.01 * 5 * 0.008))
    assert spm_samples_powerlaw(1.5, 0.1, d=100, k=2).value == pytest.approx(2**5 * 100 / 0.01)
    assert not spm_samples_powerlaw(0.5, 0.1, d=100, k=2).valid
    assert roundness_spiked([1.0, 2.0], 0.5, 20).value == pytest.approx(4.25 / (5 / 20 + 0.25))
    noise = spm_block_noise(1000, 100, 4, 2.0)
    assert noise.value.whole == pytest.approx(math.sqrt(0.08 * math.log(1000) ** 4 * math.log(100) / 1000) + 1e-6)
    assert noise.value.inside == pytest.approx((noise.value.whole - 1e-6) * math.sqrt(0.08) + 1e-6)
    assert not spm_block_noise(3, 100, 4, 2.0).valid


@pytest.mark.parametrize(("lams", "sigma", "d"), [([1.0], 1.0, 50), ([3.0, 2.0, 1.5], 0.2, 80)])
def test_the_spiked_corollary_is_the_theorem_with_its_roundness(lams: list[float], sigma: float, d: int) -> None:
    """B^2 s_k k / (acc^2 gap^3 d) exactly. Mutant: the B of the paper's proof, which lacks a factor d (ERR-4)."""
    B, k, total = roundness_spiked(lams, sigma, d).value, len(lams), d * sigma**2 + sum(np.square(lams))
    kth, gap = (lams[-1] ** 2 + sigma**2) / total, lams[-1] ** 2 / total
    theorem = B**2 * kth * k / (0.01 * gap**3 * d)
    assert spm_samples_spiked(lams, sigma, 0.1, d=d).value == pytest.approx(theorem, rel=1e-12)
    large = [spm_samples_spiked([1.0], s, 0.1, d=d).value for s in (10.0, 20.0)]
    assert large[1] / large[0] == pytest.approx(64, rel=0.05)  # sigma^6 + 1


def test_any_distribution_is_the_theorem_with_b_of_d_over_p() -> None:
    """Corollary 3.4, and the power law, up to constants: ratios do not depend on d, k or acc. Mutant: k for 1 / k."""
    ratios = set()
    for d, k, acc in ((100, 2, 0.1), (400, 2, 0.1), (100, 8, 0.1), (100, 2, 0.01)):
        full = spm_samples_general(0.5, 0.4, acc, d=d, k=k).value
        B = d / (2 * k)
        ratios.add(round(B**2 * 0.5 * k / (acc**2 * 0.001 * d) / full, 9))
    assert ratios == {0.25}
    law = [
        spm_samples_general(k**-1.5, (k + 1) ** -1.5, 0.1, d=100, k=k).value
        / spm_samples_powerlaw(1.5, 0.1, d=100, k=k).value
        for k in (20, 40, 80)
    ]
    assert law == pytest.approx([1.5**-3] * 3, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(("lams", "sigma", "d"), [([1.0], 0.05, 20), ([2.0, 1.0], 0.5, 30), ([1.0], 1.0, 40)])
def test_spiked_rows_are_round(lams: list[float], sigma: float, d: int) -> None:
    """Both conditions at the worst projection, for which the law is known; 10^5 draws agree with it.

    By chance no more than 5 standard errors above e^-t, where the truth is far below. Mutant: the scale 1/2 of D.
    """
    B, n = roundness_spiked(lams, sigma, d).value, 100_000
    rows = spiked(lams, sigma, d, n, seed=2)
    for p in (1, 2, 5):
        worst = np.linalg.norm(rows[:, :p], axis=1) / math.sqrt(B * p / d)
        for t in (1.0, 1.3, 2.0, 3.0):
            room = math.exp(-t) + 5 * math.sqrt(math.exp(-t) / n)
            assert np.mean(np.linalg.norm(rows, axis=1) > t) <= room
            assert np.mean(worst > t) <= room
            assert chi2.sf(2 * p * t**2, p) <= math.exp(
                -t
            )  # P z of variance (lam_1^2 + sigma^2) / D in all p directions
    assert chi2.sf(3, 3) > math.exp(-1)  # E ||z||^2 = 1 in three dimensions: what D = d sigma^2 + sum lam^2 may give
    quarter = spiked(lams, sigma, d, n, seed=2, scale=0.5)
    assert np.mean(np.linalg.norm(quarter, axis=1) > 1) > math.exp(-1) + 0.05
    assert not roundness_spiked(lams, sigma, d, scale=0.5).valid


@pytest.mark.slow
def test_noise_of_a_block_is_below_its_bound_and_falls_with_the_root_of_n() -> None:
    """50 blocks of each size, constant 1. Mutants: the sum for the average, B p / d once for the part inside."""
    lams, sigma, d, p = [1.0, 0.8], 0.3, 40, 4
    B, x = roundness_spiked(lams, sigma, d).value, start(40, 4, np.random.default_rng(0))
    x[:2] *= 3
    x = np.linalg.qr(x)[0]
    truth = np.diag(np.append(np.square(lams), np.zeros(d - 2)) + sigma**2) / (2 * (d * sigma**2 + 1.64))
    norms = []
    for n in (400, 6400):
        bound = spm_block_noise(n, d, p, B).value
        found = []
        for seed in range(50):
            rows = spiked(lams, sigma, d, n, seed)
            noise = (rows.T @ (rows @ x)) / n - truth @ x
            found.append((np.linalg.norm(noise, 2), np.linalg.norm(noise[:2], 2)))
        assert (np.max(found, axis=0) <= bound).all()
        norms.append(np.mean(found, axis=0))
    assert norms[0] / norms[1] == pytest.approx([4, 4], rel=0.15)


def test_impossible_numbers() -> None:
    for call in (
        lambda: roundness_spiked([], 1.0, 5),
        lambda: roundness_spiked([1.0, 0.0], 1.0, 5),
        lambda: roundness_spiked([1.0] * 6, 1.0, 5),
        lambda: roundness_spiked([1.0], -1.0, 5),
        lambda: spm_samples(0.3, 0.5, 0.1, d=100, k=5, p=9, B=2.0),
        lambda: spm_samples(0.5, 0.3, 0.0, d=100, k=5, p=9, B=2.0),
        lambda: spm_samples(0.5, 0.3, 0.1, d=100, k=9, p=5, B=2.0),
        lambda: spm_samples(0.5, 0.3, 0.1, d=100, k=5, p=9, B=-2.0),
        lambda: spm_samples_improved(0.5, 0.3, 0.1, d=100, q=10, p=9, B=2.0),
        lambda: spm_samples_general(0.5, 0.3, 2.0, d=100, k=5),
        lambda: spm_samples_powerlaw(-1.0, 0.1, d=100, k=5),
        lambda: spm_samples_spiked([1.0], 0.1, 1.0, d=5),
        lambda: spm_block_noise(0, 5, 2, 1.0),
    ):
        with pytest.raises(BadInputError):
            call()
