"""Composition, the parts of k-DP-PCA, and the convex relaxations: by hand, and where they must hold or fail."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npmdask.accounting import Budget, epsilon_for, gaussian_charge
from npmdask.core.numerics.subspaces import random_orthonormal
from npmdask.dp_pca.private_mean import PaperMean, PaperRange, StabilityHistogram
from npmdask.errors import BadInputError
from npmdask.privacy.neighbors import make_relation
from npmdask.streaming.algorithms.msg import MiniBatchRMSG
from npmdask.streaming.algorithms.oja import Oja
from npmdask.theory import (
    bernstein_batch,
    dp_tpm_min_eps,
    dp_tpm_nu,
    drv,
    gdp_delta,
    hist_threshold,
    input_perturbation_min_eps,
    lemma16_split,
    mbmsg_bound,
    mbmsg_params,
    mbrmsg_bound,
    mbrmsg_expected,
    mbrmsg_params,
    mu_for,
    oja_rate,
    oja_shift,
    online_tpm_samples,
    ppm_sigma,
    privmean_min_batch,
    privrange_groups,
    shuffle_eps,
    total_cost,
    tpm_iterations,
    tpm_max_noise,
    tpm_restarts,
    zcdp,
)


def test_sigma_of_the_private_power_method() -> None:
    found = ppm_sigma(0.5, 1e-6, 8, 20)
    assert found.value == pytest.approx(math.sqrt(4 * 8 * 20 * math.log(1e6)) / 0.5) and found.valid
    assert not ppm_sigma(8.5, 1e-6, 8, 20).valid and ppm_sigma(8.5, 1e-6, 8, 20, "entry").valid


@pytest.mark.parametrize(
    "relation", ["entry", "symmetric_entry", "spectral_norm", "record_add_remove", "record_replace"]
)
def test_the_exact_sigma_is_the_least_that_pays_for_every_block(relation: str) -> None:
    """Paid for at random and at the worst blocks, and reached there. Mutant: without sqrt(2) of a pair."""
    budget, p, L = Budget(1.0, 1e-6), 2, 7
    sigma = ppm_sigma(1.0, 1e-6, p, L, relation, "exact").value
    rows = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, -1.0], [1.0, -1.0]]) / 2
    blocks = [np.eye(4, 2), rows, random_orthonormal(9, 2, np.random.default_rng(0))]
    spent = []
    for block in blocks:
        scale = float(abs(block).max()) if relation in ("entry", "symmetric_entry") else 1.0
        sensitivity = make_relation(relation, clip_norm=1.0).sensitivity(block)
        spent.append(gaussian_charge(sigma * scale / sensitivity * (1 + 1e-8), L))
    assert all(charge.within(budget) for charge in spent)
    assert max(charge.mu_squared for charge in spent) == pytest.approx(mu_for(1.0, 1e-6) ** 2, rel=1e-6)


def test_composition_by_hand() -> None:
    assert zcdp(2.0, 4.0, 1e-6).value == pytest.approx(0.125 + 2 * math.sqrt(0.125 * math.log(1e6)))
    assert zcdp(1.0, 4.0, 1e-6).value > epsilon_for(1 / 4, 1e-6)  # exact accounting is never above
    found = drv(0.1, 1e-9, 100, 1e-6)
    assert found.value == (pytest.approx(math.sqrt(2 * math.log(1e6)) + 10 * math.expm1(0.1)), pytest.approx(1.1e-6))
    assert found.flags == {"better_than_basic": True, "delta_below_1": True}
    assert not drv(1.0, 0.0, 2, 1e-6).flags["better_than_basic"]
    split = lemma16_split(0.8, 1e-6, 100)
    assert split.value == (pytest.approx(0.8 / (2 * math.sqrt(200 * math.log(2e6)))), pytest.approx(5e-9))
    assert split.valid and not lemma16_split(1.0, 1e-6, 100).valid
    assert gdp_delta(1.0, 0.0) == pytest.approx(0.3829249, abs=1e-6)
    assert shuffle_eps(0.1, 10**6, 1e-6) < 0.01


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("releases", [1, 10, 1000])
def test_a_split_by_lemma_16_composes_to_no_more_than_the_whole(epsilon: float, releases: int) -> None:
    """By the composition theorem with slack delta / 2. Mutant: without the 2 in front of the root."""
    each = lemma16_split(epsilon, 1e-6, releases).value
    whole = drv(each.epsilon, each.delta, releases, 5e-7)
    assert whole.value.epsilon <= epsilon and whole.value.delta <= 1e-6 * (1 + 1e-12)
    assert drv(2 * each.epsilon, each.delta, releases, 5e-7).value.epsilon > epsilon


def test_noise_of_tensors() -> None:
    K = 3 * 20 * 11
    share = 1.0 / math.sqrt(K * (4 + math.log(2e6)))
    found = dp_tpm_nu(1.0, 1e-6, 3, 20, 10)
    assert found.value == pytest.approx(6 * math.sqrt(2 * math.log(2.5 * K / 1e-6)) / share)
    assert found.flags == {"private": True, "composes": False}
    exact = dp_tpm_nu(1.0, 1e-6, 3, 20, 10, "exact")
    assert exact.value == pytest.approx(6 * math.sqrt(K) / mu_for(1.0, 1e-6)) and 6 < found.value / exact.value < 8
    linear = [input_perturbation_min_eps(2.0, d, 1e-6).value for d in (100, 400)]
    assert linear == pytest.approx([6 * d / 2 * math.sqrt(2 * math.log(1.25e6)) for d in (100, 400)])
    assert not input_perturbation_min_eps(2.0, 100, 1e-6).valid
    honest = input_perturbation_min_eps(2.0, 100, 1e-6, mode="exact")
    assert honest.value == pytest.approx(epsilon_for(300.0, 1e-6)) and honest.value > linear[0]
    few = [dp_tpm_min_eps(1.0, 1.0, d=d, k=3, delta=1e-6, lambda_max=2.0, gap=0.1) for d in (100, 400)]
    assert few[1].value / few[0].value < 1.1 and few[0].value == pytest.approx(9 * math.log(2e8)) and few[0].valid
    assert not dp_tpm_min_eps(1.0, 40.0, d=100, k=3, delta=1e-6, lambda_max=2.0, gap=0.1).valid
    for gap in (None, 0.09):
        found = dp_tpm_min_eps(1.0, 1.0, d=100, k=3, delta=1e-6, lambda_max=2.0, gap=gap)
        assert found.flags == {"possible_incoherence": True, "gap_large_enough": False}
    assert tpm_restarts(3) == (4, {"K_0": 2.0, "constant": 1.0}, {}) and tpm_iterations(1.0, 100, 0.01).value == 10
    assert not tpm_iterations(1.0, 100, 0.6).valid
    assert tpm_max_noise("adversarial", 1.0, d=100, k=3).value == pytest.approx(0.01)
    assert online_tpm_samples(1.0, 1.0, 0.01, d=100, k=3).value == pytest.approx(1e6)


def test_parts_of_k_dp_pca_are_those_that_run() -> None:
    """The numbers of the page of k-DP-PCA: 25 counts, 10,490 counts; and what the oracles use is the same."""
    assert hist_threshold(0.5, 0.005).value == pytest.approx(1 + 4 * math.log(400)) == pytest.approx(24.97, abs=0.01)
    assert hist_threshold(0.5, 0.005).value == StabilityHistogram(epsilon=0.5, delta=0.005).threshold
    assert privrange_groups(0.5, 0.005, 0.01, 1.0) == (20, {"constant": 1.0}, {"can_survive": False})
    assert privrange_groups(0.5, 0.005, 0.01).value == 60 and privrange_groups(0.5, 0.005, 0.01).valid
    assert PaperRange(epsilon=0.5, delta=0.005, fail_prob=0.01).groups == 60
    mean = PaperMean(epsilon=0.5, delta=0.005, spread=1.0, count=100, fail_prob=0.01)
    assert mean.histogram(200).threshold == pytest.approx(10_490, abs=5)
    least = privmean_min_batch(0.5, 0.005, 200).value
    each = mean.histogram(200).epsilon
    assert least == math.ceil(mean.histogram(200).threshold + 2 / each * math.log(200 / 0.02))
    assert privmean_min_batch(0.5, 0.005, 200, share=0.5).value == pytest.approx(2 * least, abs=1)
    assert not privmean_min_batch(1.0, 0.005, 200).valid


def test_so_many_records_locate_every_coordinate_and_half_as_many_do_not() -> None:
    """The least of d Laplace numbers, 2000 times: it fails with probability tau = 0.1, at most. Mutant: d forgotten."""
    d, tau = 20, 0.1
    mean = PaperMean(epsilon=0.5, delta=0.005, spread=1.0, count=100, fail_prob=0.01).histogram(d)
    least = privmean_min_batch(0.5, 0.005, d, tau).value
    noise = np.random.default_rng(0).laplace(0, 2 / mean.epsilon, (2000, d))
    failed = np.mean((least + noise < mean.threshold).any(axis=1))
    assert 0.05 < failed <= tau + 5 * math.sqrt(tau / 2000)
    assert not (least / 2 + noise >= mean.threshold).all(axis=1).any()


def test_the_rate_of_oja() -> None:
    rule = Oja.theory(target_rank=1, top=1.0, second=0.5, deviation=2.0, variance=3.0, alpha=2.0, delta=0.1)
    shift = oja_shift(1.0, 0.5, 2.0, 3.0, 2.0, 0.1)
    assert rule.shift == shift.value == pytest.approx(20 * max(8, 48 / math.log(1.001))) and shift.valid
    assert not oja_shift(1.0, 0.5, 0.1, 1e-5, 2.0, 0.1).valid
    found = oja_rate(10**8, 10, top=1.0, second=0.5, deviation=2.0, variance=2.0, alpha=2.0)
    steps = 100 * math.log(10) * (10 * (shift.value / 1e8) ** 4 + 8 / (0.75 * 1e8))
    assert found.value == pytest.approx(steps) and found.valid and found.constants["beta"] == shift.value
    assert oja_rate(10**5, 10, top=1.0, second=0.5, deviation=2.0, variance=2.0).flags["enough_steps"] is False
    assert oja_rate(10**5, 10, top=1.0, second=0.5, deviation=2.0, variance=2.0).value == 1.0


@pytest.mark.slow
def test_the_rate_of_oja_is_not_exceeded() -> None:
    """x = +-e_1 or +-e_2, so that everything is known: 30 runs of 4 beta steps; C = 1, f = 0.5."""
    rng, runs, alpha, gap = np.random.default_rng(0), 30, 2.0, 0.6
    shift = oja_shift(0.8, 0.2, 0.8, 0.16 + 0.64, alpha, 0.5).value
    n = int(4 * shift)
    w = rng.standard_normal((runs, 2))
    which = rng.random((n, runs)) < 0.8
    for t in range(n):
        rate = alpha / (gap * (shift + t + 1))
        w[:, 0] *= np.where(which[t], 1 + rate, 1.0)
        w[:, 1] *= np.where(which[t], 1.0, 1 + rate)
        if t % 500 == 0:
            w /= np.linalg.norm(w, axis=1, keepdims=True)
    sines = w[:, 1] ** 2 / (w**2).sum(axis=1)
    bound = oja_rate(n, 2, top=0.8, second=0.2, deviation=0.8, variance=0.16, alpha=alpha, fail_prob=0.5)
    assert bound.valid and np.quantile(sines, 0.5) <= bound.value < 0.05


def test_schedules() -> None:
    """128 and 8 of Algorithm 2, and what runs has them from here."""
    found = mbrmsg_params(0.2, 3, 50, 1000, 0.1)
    e = math.e
    assert found.value.warm_rows == pytest.approx(math.log(30 * e * 50) * 128 * 3 * math.log(30 * e) / 0.2**5)
    assert found.value.batch_rows == pytest.approx(math.log(30 * e * 50 * 1000) * 8 * 16 / 0.04)
    assert found.value[2:] == (0.1, pytest.approx(128 * math.log(10) / 0.008)) and found.valid
    assert not mbrmsg_params(0.4, 3, 50, 1000, 0.1).valid  # Delta <= 1 / k for rows of norm 1
    runs = MiniBatchRMSG(target_rank=3, gap=0.2, failure=0.1, horizon=1000)
    assert runs.largest_batch(50) == math.ceil(found.value.batch_rows)
    assert runs.largest_start(50) == math.ceil(found.value.warm_rows)
    assert runs.step_size(7) == pytest.approx(1 / (0.1 * (7 + found.value.shift)))
    assert mbrmsg_bound(7, 0.2, 3, 0.1).value == pytest.approx(
        32 * math.log(30 * e) / (0.04 * (6 + 128 * math.log(10) / 0.008))
    )
    plain = mbmsg_params(0.2, 3, warm=2.0, batch=3.0, shift=4.0)
    assert plain.value == (pytest.approx(2 * 9 / 0.008), pytest.approx(3 * 27 / 0.04), 0.0, pytest.approx(4 * 9 / 0.04))
    expected = 81 * math.log(10) * math.log(100) ** 2 / math.sqrt(7 + (3 * math.log(10)) ** 2 / 0.04)
    assert mbmsg_bound(7, 0.2, 3, 100, 0.1).value == pytest.approx(expected)
    assert mbrmsg_expected(10, 0.2, 3, 50).value == pytest.approx((0.2 + 1 / 3) / 10)
    assert mbrmsg_expected(10, 0.01, 3, 50).value == pytest.approx((0.01 + 0.5 / 3) / 10)
    assert bernstein_batch(0.5, 0.1, 20, 10, 0.1).value == pytest.approx(2 * (0.5 + 0.1 / 3) * math.log(4000) / 0.01)


def test_mb_rmsg_keeps_below_its_bound() -> None:
    """Rows are e_1 or e_2, with the printed schedule, T = 20 steps: every iterate. delta = 0.1, of a loose bound."""
    gap, T, delta, rng = 0.6, 20, 0.1, np.random.default_rng(0)
    runs = MiniBatchRMSG(target_rank=1, gap=gap, failure=delta, horizon=T, optimistic=False)
    state, found = runs.init(2, rng=rng), []
    while len(found) <= T:
        rows = np.eye(2)[(rng.random(runs.query(state).rows or 1) > 0.8).astype(int)]
        state, info = runs.update(state, rows)
        if info.steps or found:
            found.append(0.6 * runs.finalize(state).vectors[1, 0] ** 2)
    assert all(lost <= mbrmsg_bound(t, gap, 1, delta).value for t, lost in enumerate(found, 1))


def test_impossible_numbers() -> None:
    for call in (
        lambda: ppm_sigma(1.0, 0.0, 2, 3),
        lambda: ppm_sigma(1.0, 1e-6, 0, 3),
        lambda: ppm_sigma(1.0, 1e-6, 2, 3, mode="exactly"),
        lambda: ppm_sigma(1.0, 1e-6, 2, 3, "edge"),
        lambda: zcdp(-1.0, 1.0, 1e-6),
        lambda: drv(0.1, 0.0, 0, 1e-6),
        lambda: drv(0.1, 0.0, 5, 0.0),
        lambda: lemma16_split(0.0, 1e-6, 5),
        lambda: dp_tpm_nu(1.0, 1e-6, 0, 1, 1),
        lambda: input_perturbation_min_eps(0.0, 5, 1e-6),
        lambda: hist_threshold(1.0, 1.0),
        lambda: privrange_groups(1.0, 0.1, 0.0),
        lambda: privmean_min_batch(1.0, 0.1, 5, share=0.0),
        lambda: oja_rate(10, 2, top=1.0, second=1.0, deviation=1.0, variance=1.0),
        lambda: oja_rate(10, 2, top=1.0, second=0.5, deviation=1.0, variance=1.0, alpha=0.5),
        lambda: mbmsg_params(0.0, 1),
        lambda: mbmsg_bound(11, 0.1, 1, 10, 0.1),
        lambda: mbrmsg_params(0.1, 1, 5, 10, 1.0),
        lambda: mbrmsg_bound(0, 0.1, 1, 0.1),
        lambda: bernstein_batch(0.5, 0.0, 5, 10, 0.1),
        lambda: total_cost("4.1", d=5, k=1, acc=0.1, gap=0.1),
    ):
        with pytest.raises(BadInputError):
            call()
