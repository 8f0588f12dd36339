"""Predictions that come true: steps, spectra that are given or guessed, private errors, and what reports say later.

Random cases have fixed numbers, and predictions draw from fixed seeds: nothing here can fail by chance.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import npmdask
from benchmarks.step_cases import compare, shares
from npmdask.cli.main import main
from npmdask.core.algorithms import BlockKrylov, PowerMethod
from npmdask.core.algorithms.stopping import ResidualRule
from npmdask.core.numerics.spectra import asked_spectrum, read_spectrum
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.storage.kinds import traits_of
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.planning.forecast import look_ahead, predict_steps, simulate_steps, thinned, unlucky_start
from npmdask.planning.row_sample import SampleBudget, draw_sample
from npmdask.privacy.plan import MEANINGLESS, USEFUL, private_outlook
from npmdask.theory.power import likely_sine, steps_by_rank
from tests.conftest import planted, write_zarr
from tests.privacy.runs.conftest import make_world, records

WITHIN, TOO_FEW = 0.95, 0.05  # shares of the cases


# The number of steps


@pytest.mark.slow
def test_steps_that_are_predicted_come_true() -> None:
    """Kills: tol not divided by SPARE (16 % too few), Chebyshev's formula in place of the rehearsal (krylov)."""
    found = shares([compare(number) for number in range(40)])
    assert found["within_factor"] >= WITHIN, found["missed"]
    assert found["promised_too_few"] <= TOO_FEW, found["too_few"]


@pytest.mark.heavy
def test_steps_that_are_predicted_come_true_in_200_problems() -> None:
    for rows in (None, 1200):
        found = shares([compare(number, rows=rows) for number in range(200)])
        assert found["within_factor"] >= WITHIN, found["missed"]
        assert found["promised_too_few"] <= TOO_FEW, found["too_few"]


RULE = ResidualRule(tol=1e-8, max_steps=200, d=500)


def test_a_rehearsal_knows_ranks_limits_and_signs() -> None:
    falling = 1 / np.arange(1.0, 501)
    power, krylov = (kind(target_rank=4, iteration_rank=8) for kind in (PowerMethod, BlockKrylov))
    few = simulate_steps(np.r_[falling[:8], np.zeros(400)], power, RULE)
    assert few is not None and (few.steps, few.reached) == (2, True), "p is the rank"
    assert simulate_steps(falling, power, RULE, flops=1e3) is None
    tied = simulate_steps(np.linspace(1, 0.999, 500), power, replace(RULE, max_steps=20))
    assert tied is not None and (tied.steps, tied.reached) == (20, False)
    some = [simulate_steps(falling * signs, krylov, RULE) for signs in (1.0, np.where(np.arange(500) % 2, -1.0, 1.0))]
    assert some[0] is not None and some[1] is not None and some[0].steps < some[1].steps
    assert simulate_steps(falling[::-1], krylov, RULE) == some[0], "in any order"


@pytest.mark.slow
def test_many_eigenvalues_are_thinned_without_changing_the_steps() -> None:
    """The largest of every cell, as often as it has members. Kills: weights left out of the start."""
    values = 1 / np.arange(1.0, 20_001) ** 0.6
    few, counts = thinned(values, 6)
    assert len(few) < 250 and counts.sum() == len(values) and (np.diff(few) < 0).all()
    heavy = np.linalg.norm(unlucky_start(np.r_[np.ones(200), np.full(200, 100.0)], 3, 6), axis=1)
    assert 8 < heavy[200:].mean() / heavy[:200].mean() < 12, "a row has the weight of those that it stands for"
    whole, start = thinned(values[:150], 6), unlucky_start(np.ones(150), 3, 6)
    assert whole[0] is not None and len(whole[0]) == 150 and start.shape == (150, 6)
    algorithm = PowerMethod(target_rank=3, iteration_rank=6, tol=1e-6)
    rng = np.random.default_rng(0)
    full, info, steps = algorithm.init(20_000, rng=rng), None, 0
    while info is None or (info.residual_norms > 1e-6 * info.ritz_values).any():
        full, info = algorithm.update(full, values[:, None] * full.basis)
        steps += 1
    found = simulate_steps(values, algorithm, replace(RULE, tol=1e-6, d=20_000))
    assert found is not None and steps <= found.steps <= 1.5 * steps


def test_an_unlucky_start_is_one_in_ten() -> None:
    held = []
    for seed in range(400):
        block = np.linalg.qr(np.random.default_rng(seed).standard_normal((60, 5)))[0]
        held.append(np.linalg.svd(block[:4], compute_uv=False)[-1])
    own = np.linalg.svd(unlucky_start(np.ones(60), 4, 5)[:4], compute_uv=False)[-1]
    assert 0.02 < np.mean(np.array(held) < own) < 0.25


@pytest.mark.slow
def test_a_plan_of_a_noisy_run_knows_its_plateau() -> None:
    data = np.random.default_rng(1).standard_normal((2000, 100)) / np.arange(1, 101)
    solution = npmdask.top_k(data, 4, kind="samples", mechanism="gaussian", stddev=1e-3)
    request = Request(target_rank=4, mechanism="gaussian", stddev=1e-3)
    told = predict_steps(
        make_problem(open_source(data, "samples"), request), np.linalg.eigvalsh(data.T @ data / 2000), 14
    )
    assert not told.reached and told.residual is not None
    worst = float((solution.residual_norms / solution.values).max())
    assert worst / 2 < told.residual < 2 * worst
    assert solution.steps / 2 <= told.steps <= 2 * solution.steps


def test_the_sample_of_a_symmetric_matrix_knows_its_signs_and_its_scale() -> None:
    """Kills: all eigenvalues positive, and the factor sqrt(d) left out."""
    v = np.linalg.qr(np.random.default_rng(0).standard_normal((300, 300)))[0]
    sizes = 50 / np.arange(1.0, 301)
    for negative, share in ((0, 1.0), (3, 2 / 3), (1, 0.0)):
        signs = np.where(np.arange(300) % negative == 0, -1.0, 1.0) if negative else np.ones(300)
        problem = make_problem(open_source((v * (sizes * signs)) @ v.T, "symmetric"), Request(target_rank=3))
        plan: Any = SimpleNamespace(limit=None, base=0)
        sample = draw_sample(problem, plan, lambda: False, SampleBudget(side=150))
        assert sample is not None and len(sample.eigenvalues) == 300
        np.testing.assert_allclose(np.abs(sample.eigenvalues[:5]), sizes[:5], rtol=0.35)
        weights = np.abs(sample.eigenvalues)
        assert weights[sample.eigenvalues > 0].sum() / weights.sum() == pytest.approx(share, abs=0.25)


@pytest.mark.parametrize("scale", [False, True])
def test_a_sample_is_centred_and_scaled_as_the_run_is(scale: bool) -> None:
    """Whatever the means are. Kills: columns of sparse limits called constant, centring by products of the sample."""
    few = np.random.default_rng(0).standard_normal((300, 12)) * 0.8 ** np.arange(12)
    plain: Any = SimpleNamespace(limit=None, base=0)
    found = []
    for mean in (0.0, 1e8):
        problem = make_problem(open_source(few + mean), Request(target_rank=3, center=True, scale=scale))
        sample = draw_sample(problem, plain, lambda: False)
        assert sample is not None
        found.append(sample.spectrum)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


# Spectra that are given or guessed


def test_a_spectrum_from_a_file(tmp_path: Path) -> None:
    values = np.array([3.0, -5.0, 1.0])
    np.save(tmp_path / "s.npy", values)
    (tmp_path / "s.txt").write_text("3, -5\n1")
    for name in ("s.npy", "s.txt"):
        found = read_spectrum(str(tmp_path / name), 5)
        np.testing.assert_allclose(found.values, [-5, 3, 1, 1, 0.5])
        assert (found.known, found.scaled) == (3, True)
    np.testing.assert_allclose(found.eigenvalues(singular=True), found.values**2)
    assert found.eigenvalues(singular=False) is found.values


@pytest.mark.parametrize(
    ("guess", "expected", "scaled"),
    [
        ("power:2", [1, 1 / 4, 1 / 9, 1 / 16], False),
        ("exponential:0.5,largest=8", [8, 4, 2, 1], True),
        ("spiked:2,3", [1, 1, 1 / 3, 1 / 6], False),
        ("flat", [1, 5 / 6, 4 / 6, 1 / 2], False),
        ("flat,largest=6", [6, 5, 4, 3], True),
    ],
)
def test_a_spectrum_in_words(guess: str, expected: list[float], scaled: bool) -> None:
    found = read_spectrum(guess, 4)
    np.testing.assert_allclose(found.values, expected)
    assert found.scaled == scaled and guess in found.said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("power", "is not a valid guess"),
        ("power:1,2", "is not a valid guess"),
        ("power:x", "is not a valid guess"),
        ("flat,largest=", "is not a valid guess"),
        ("exponential:1.5", "does not decrease"),
        ("spiked:2,0.5", "does not decrease"),
        ("expnential:0.5", "exponential"),
        ("nothing.npy", "neither a file"),
        ("spiked:inf,3", "is not a valid guess"),
        ("power:1,largest=inf", "is not a valid guess"),
        ("power:1,largest=0", "is not a valid guess"),
        ("power:1,largest=1e300", "bring it near 1"),
        ("power:1,largest=1e-320", "bring it near 1"),
        ("exponential:1e300", "does not decrease"),
        ("spiked:11,3", "whole number of values, and the data have at most 10"),
        ("spiked:1.5,3", "whole number"),
    ],
)
def test_no_spectrum(text: str, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        read_spectrum(text, 10)


def test_numbers_that_are_no_spectrum(tmp_path: Path) -> None:
    for number, content in enumerate(("1 2 x", "", "nan 1", "0 0", "1 " * 11, "1e-200 1e-201", "1e200 1")):
        path = tmp_path / f"{number}.txt"
        path.write_text(content)
        with pytest.raises(BadInputError):
            read_spectrum(str(path), 10)
    np.save(tmp_path / "c.npy", np.array([1 + 1j]))
    with pytest.raises(BadInputError, match="complex"):
        read_spectrum(str(tmp_path / "c.npy"), 10)


def test_only_eigenvalues_of_a_symmetric_matrix_are_negative(tmp_path: Path) -> None:
    for name, values in (("s.npy", [3.0, -5.0]), ("zero.npy", [5.0, -1e-16])):
        np.save(tmp_path / name, np.array(values))
    for kind in ("matrix", "samples", "sparse"):
        signed = traits_of(kind).square
        with pytest.raises(BadInputError, match="give their sizes"):
            asked_spectrum(str(tmp_path / "s.npy"), 5, signed=signed)
        assert asked_spectrum(str(tmp_path / "zero.npy"), 5, signed=signed) is not None
    assert asked_spectrum(str(tmp_path / "s.npy"), 5, signed=traits_of("symmetric").square) is not None


@pytest.mark.slow
def test_values_whose_squares_are_nothing_are_zeros(tmp_path: Path) -> None:
    """A likely error divides by the square of the k-th. Mutant: values as they are (a division by zero)."""
    world = make_world(tmp_path, records(4507))
    problem = world.problem()
    told = private_outlook(problem, read_spectrum("exponential:1e-120", problem.most_values))
    assert told.likely == 1 and told.bound == 1


@pytest.mark.slow
def test_a_plan_by_a_given_spectrum_says_what_the_run_takes(tmp_path: Path, capsys: Any) -> None:
    """And the two forms of theory side by side, the noise it could bear, and better parameters."""
    spectrum = np.r_[10.0, 9.0, 8.0, np.linspace(3, 0.1, 77)]
    write_zarr(tmp_path / "x.zarr", planted(600, 80, spectrum)[0])
    np.save(tmp_path / "s.npy", spectrum)
    config = tmp_path / "c.toml"
    asked = 'name = "power"\ntarget_rank = 4\niteration_rank = 8\n[stop]\ntol = 1e-4\n'
    config.write_text(f'[source]\npath = "x.zarr"\n[algorithm]\n{asked}')
    assert main(["plan", str(config), "--spectrum", str(tmp_path / "s.npy"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    solution = npmdask.top_k(tmp_path / "x.zarr", 4, iteration_rank=8, algorithm="power", tol=1e-4)
    assert solution.steps <= plan["steps"] <= 1.5 * solution.steps
    told = plan["outlook"]
    assert (told["better_rank"], told["how"], told["largest"]) == (3, "rehearsed", pytest.approx(100.0))
    assert told["rank_steps"] == min(steps_by_rank(spectrum**2, 4, 8, 1e-4)) < told["gap_steps"]
    assert 0 < told["noise_gap"] < told["noise_rank"] < 0.1
    assert told["noise_tol"] == pytest.approx(told["noise_rank"] * 1e-3)  # both are proportional to the accuracy
    assert main(["plan", str(config), "--spectrum", "flat"]) == 0
    said = capsys.readouterr().out
    assert "flat, guessed" in said and "noise     tolerance: stddev" in said and "advice    target_rank = 4" in said


@pytest.mark.slow
def test_cheaper_columns_are_suggested() -> None:
    data = planted(400, 120, 1 / np.arange(1, 121))[0]
    problem = make_problem(open_source(data), Request(target_rank=5, iteration_rank=5))
    told = look_ahead(
        problem, 1 / np.arange(1.0, 121) ** 2, "", known=120, wide=60, seconds=lambda steps, p: float(steps or 0)
    )
    assert told.better_columns is not None and told.better_columns > 5
    assert told.better_steps is not None and told.better_steps < told.steps
    dear = look_ahead(
        problem, 1 / np.arange(1.0, 121) ** 2, "", known=120, wide=60, seconds=lambda steps, p: 1e9**p + (steps or 0)
    )
    assert dear.better_columns is None


def test_what_is_suggested_at_another_rank_is_foretold_for_that_rank() -> None:
    """And can be run, in so many steps. Mutant: columns and steps of the rank that was asked for."""
    values = np.r_[20.0, 19, 18, 17, 16, 15, 1, 0.9, 0.8, 0.7]
    data = planted(60, 10, values)[0]
    problem = make_problem(open_source(data), Request(target_rank=3, iteration_rank=3))

    def tell(values: np.ndarray, wide: int = 10) -> Any:
        return look_ahead(problem, values**2, "", known=10, wide=wide, seconds=lambda steps, p: float(steps or 0))

    told = tell(values)
    assert told.better_rank == 6 <= told.better_columns
    assert f"iteration_rank = {told.better_columns}" in told.lines()["advice"]
    solution = npmdask.top_k(data, told.better_rank, iteration_rank=told.better_columns)
    assert solution.converged and solution.steps <= told.better_steps
    assert tell(values, wide=5).better_rank is None, "columns for it would not fit"


def test_of_a_share_no_rank_is_suggested() -> None:
    values = np.r_[np.full(20, 20.0), np.linspace(0.1, 0.01, 40)]
    problem = make_problem(open_source(planted(200, 60, values)[0]), Request(target_rank=0.95))
    told = look_ahead(problem, values**2, "", known=60, wide=60, seconds=lambda steps, p: float(steps or 0))
    assert told.better_rank is None and told.lines()["advice"].startswith("target_rank = 0.95: a fraction")


def test_why_no_noise_is_told_of() -> None:
    """Mutant: always that there is no gap."""
    problem = make_problem(open_source(np.eye(20)), Request(target_rank=3, iteration_rank=5))
    for values, why in (
        (np.ones(20), "no gap from k to p"),
        (np.r_[2.0, 1.0, np.zeros(18)], "value 3 of the spectrum is zero"),
        (np.array([3.0, 2, 1]), "every direction is iterated"),
    ):
        told = look_ahead(problem, values, "", known=len(values), wide=20, seconds=lambda steps, p: None)
        assert why in told.lines()["noise"]


# Private runs


def test_the_likely_sine_is_what_happens() -> None:
    """By simulation. Kills: noise without its growth, q = k only, the start without its 1 / (p - q + 1)."""
    rng = np.random.default_rng(0)
    for lam, k, p, steps, stddev in (
        (1 / np.arange(1.0, 101), 3, 6, 4, 1e-3),
        (1 / np.arange(1.0, 101), 3, 13, 5, 3e-3),
        (np.r_[np.ones(3), np.linspace(0.5, 0.3, 97)], 3, 12, 5, 1e-6),
        (np.r_[np.ones(3), 0.2 * np.linspace(1, 0, 97)], 3, 6, 4, 1e-2),
    ):
        sines = []
        for _ in range(60):
            x = np.linalg.qr(rng.standard_normal((100, p)))[0]
            for _ in range(steps):
                x = np.linalg.qr(lam[:, None] * x + stddev * rng.standard_normal((100, p)))[0]
            sines.append(np.linalg.norm(np.eye(100)[:, :k] - x @ x[:k].T, 2))
        found = likely_sine(lam, [stddev] * steps, d=100, k=k, p=p).value
        assert 0.8 * np.median(sines) < found < 1.5 * np.quantile(sines, 0.95)
    assert likely_sine(np.zeros(5), [1.0], d=5, k=2, p=3).value == 1
    with pytest.raises(BadInputError):
        likely_sine(np.ones(5), [], d=5, k=2, p=3)


@pytest.mark.slow
def test_a_private_plan_by_a_guess(tmp_path: Path) -> None:
    """The two epsilons are where the likely sine is what they say, with the calibration of the product itself."""
    world = make_world(tmp_path, records(4507))
    problem = world.problem()
    told = private_outlook(problem, read_spectrum("exponential:0.3", problem.most_values))
    assert 0 < told.likely <= told.bound
    assert told.meaningless_epsilon is not None and told.useful_epsilon is not None
    assert problem.private is not None
    for epsilon, sine in ((told.meaningless_epsilon, MEANINGLESS), (told.useful_epsilon, USEFUL)):
        privacy = replace(problem.private.privacy, epsilon=epsilon)
        other = make_problem(problem.source, replace(problem.request, privacy=privacy))
        again = private_outlook(other, read_spectrum("exponential:0.3", problem.most_values))
        assert again.likely == pytest.approx(sine, rel=2e-2)
    assert told.best_sine <= told.likely
    clip = problem.private.relation.clip_norm  # type: ignore[union-attr]
    largest = clip**2 / np.sum(0.3 ** np.arange(problem.d))  # the mean square of records as long as they may be
    scaled = private_outlook(problem, read_spectrum(f"exponential:0.3,largest={largest:.17g}", problem.most_values))
    assert scaled.likely == pytest.approx(told.likely, rel=1e-9)
    lost = private_outlook(problem, read_spectrum("exponential:0.3,largest=1e-9", problem.most_values))
    assert lost.meaningless_epsilon is None and lost.likely > 0.9 and lost.bound == 1
    assert "meaningless at any epsilon" in lost.lines()["epsilon"]
    assert "max_steps" in told.lines()["advice"] and "a larger epsilon" in lost.lines()["advice"]


@pytest.mark.slow
def test_the_scale_of_a_private_sum_must_be_known(tmp_path: Path) -> None:
    world = make_world(tmp_path, records(4507))
    privacy = replace(world.problem().private.privacy, neighboring_relation="record_add_remove")  # type: ignore[union-attr]
    problem = make_problem(world.problem().source, replace(world.problem().request, privacy=privacy))
    with pytest.raises(BadInputError, match="largest=X"):
        private_outlook(problem, read_spectrum("power:1", problem.most_values))
    assert private_outlook(problem, read_spectrum("power:1,largest=5000", problem.most_values)).likely < 1


def test_what_is_measured_is_no_spectrum_of_a_private_run() -> None:
    assert asked_spectrum("measured", 5) is None and asked_spectrum(None, 5, private=True) is None
    with pytest.raises(RefusedError, match="must be charged as a release"):
        asked_spectrum("measured", 5, private=True)
