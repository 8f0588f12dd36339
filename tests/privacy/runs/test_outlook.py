"""What a plan says of a private run by a spectrum, against private runs: a simulation with the noise in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.core.numerics.spectra import read_spectrum
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Problem, Request
from npmdask.core.storage.source import open_source
from npmdask.formats.ingest import ingest
from npmdask.privacy.plan import MEANINGLESS, private_outlook
from npmdask.privacy.request import Privacy
from tests.conftest import often
from tests.privacy.runs.conftest import sine_of_run

RUNS = 9


def posed(folder: Path, x: np.ndarray, epsilon: float, **asked: Any) -> tuple[Problem, np.ndarray, str]:
    """A private problem on ``x``, its true vectors, and its spectrum in a file."""
    clip = float(np.linalg.norm(x, axis=1).max())
    data = folder / "x.zarr"
    if not data.exists():
        np.save(folder / "x.npy", x)
        ingest(folder / "x.npy", data)
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    np.save(folder / "values.npy", values[::-1])
    promise: Any = {"delta": 1e-6, "neighboring_relation": "record_replace", "ledger": str(folder / "ledger.sqlite")}
    privacy = Privacy(epsilon=epsilon, clip_norm=clip, **promise)
    problem = make_problem(open_source(data, exact=False), Request(privacy=privacy, **asked))
    return problem, vectors[:, ::-1][:, : asked["target_rank"]], str(folder / "values.npy")


def gaussian(n: int, stddevs: np.ndarray) -> np.ndarray:
    """Rows with these deviations along random directions, none longer than nine of ten of them are."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, len(stddevs))) * stddevs @ np.linalg.qr(rng.standard_normal((len(stddevs),) * 2))[0]
    norms = np.linalg.norm(x, axis=1)
    return np.asarray(x * np.minimum(1, np.quantile(norms, 0.9) / norms)[:, None])


@pytest.mark.slow
@pytest.mark.parametrize("d, n, k", often([(12, 4000, 2), (40, 10_000, 3)], 0))
def test_what_is_likely_is_what_happens_from_k_columns_to_all(tmp_path: Path, d: int, n: int, k: int) -> None:
    """Median against median, within a factor 1.6 where runs find something. Fails by the formula that drops all noise
    with p = d."""
    x = gaussian(n, np.r_[np.full(k, 2.5), np.ones(d - k)])
    for p, releases in ((k + 2, 3), (d // 2, 2), (d, 1), (d, 2)):
        for epsilon in (1.0, 4.0):
            asked = {"target_rank": k, "iteration_rank": p, "max_steps": releases}
            problem, truth, values = posed(tmp_path, x, epsilon, **asked)
            told = private_outlook(problem, read_spectrum(values, problem.most_values)).likely
            found = float(np.median([sine_of_run(problem, truth, seed) for seed in range(RUNS)]))
            assert found / 1.6 < told < 1.6 * found, (p, releases, epsilon, told, found)


@pytest.mark.slow
def test_the_covariance_is_suggested_where_nothing_else_does(tmp_path: Path) -> None:
    """And a run of what is suggested keeps it. Mutant: half of the noise on a covariance that is simulated."""
    x = gaussian(10_000, np.r_[np.full(2, 1.15), np.linspace(1, 0.9, 18)])
    problem, truth, values = posed(tmp_path, x, 0.7, target_rank=2, iteration_rank=4, max_steps=3)
    told = private_outlook(problem, read_spectrum(values, problem.most_values))
    assert told.likely > MEANINGLESS > told.best_sine
    assert told.best_algorithm == "covariance" in told.lines()["advice"]
    better = make_problem(
        problem.source, replace(problem.request, algorithm="covariance", iteration_rank=None, max_steps=None)
    )
    found = np.median([sine_of_run(better, truth, seed) for seed in range(RUNS)])
    assert found / 1.6 < told.best_sine < 1.6 * found
    again = private_outlook(better, read_spectrum(values, problem.most_values))
    assert again.likely == again.best_sine == told.best_sine, "the plan of what is suggested says the same"
    assert told.best_sine <= again.bound <= 1


@pytest.mark.slow
def test_a_plan_says_the_same_every_time(tmp_path: Path) -> None:
    x = gaussian(2000, np.r_[3.0, np.ones(11)])
    problem, _, values = posed(tmp_path, x, 1.0, target_rank=1, iteration_rank=4, max_steps=3)
    spectrum = read_spectrum(values, problem.most_values)
    assert private_outlook(problem, spectrum) == private_outlook(problem, spectrum)


@pytest.mark.slow
def test_where_runs_are_too_large_to_simulate_the_formula_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of p = d it is that of half of the columns: it would drop all noise."""
    x = gaussian(4000, np.r_[np.full(2, 2.5), np.ones(10)])
    problem, _, values = posed(tmp_path, x, 1.0, target_rank=2, iteration_rank=12, max_steps=2)
    spectrum = read_spectrum(values, problem.most_values)
    simulated = private_outlook(problem, spectrum).likely
    monkeypatch.setattr("npmdask.privacy.plan.MOST_FLOPS", 0.0)
    assert simulated / 3 < private_outlook(problem, spectrum).likely < 3 * simulated
