"""Bounds hold, and are not much too large, over random problems: the real algorithms, answers known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import npmdask
from benchmarks.certificate_cases import draw, draw_mixed, draw_ties, solve
from benchmarks.certificate_coverage import Tally, as_markdown, measure
from npmdask.core.certificates.bounds import certify
from npmdask.core.certificates.wording import bounds_values
from tests.conftest import often


def held(tallies: dict[tuple[str, str], Tally]) -> None:
    """Nothing that claims no more than a theorem fails; what is said to a person fails rarely, and says enough."""
    for (ground, claim), tally in tallies.items():
        if ground in ("always", "random start"):
            assert tally.covered == tally.claimed, (ground, claim)
        else:
            assert tally.coverage >= 0.98, (ground, claim)
    for claim in ("value", "angle", "low rank"):
        assert tallies["told", claim].overestimate <= 3, claim
    assert tallies["told", "value"].claimed >= 0.85 * tallies["told", "value"].problems
    assert tallies["told", "angle"].claimed >= 0.45 * tallies["told", "angle"].problems


@pytest.mark.slow
def test_coverage_over_two_hundred_problems() -> None:
    """Seeds are fixed. Mutants tried: no sqrt(d - q) in the tangents, degree one too many, t^2 = 0, D without tau."""
    tallies = measure(220)
    held(tallies)
    value = tallies["told", "value"]
    (line,) = [line for line in as_markdown(tallies).splitlines() if line.startswith("| value |")]
    assert f"| {value.covered} / {value.claimed}, {value.overestimate:.1f} |" in line


@pytest.mark.heavy
def test_coverage_over_thousands() -> None:
    held(measure(3000))


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2, 4, 11])
def test_one_value_above_a_flat_bulk_is_not_passed_over_when_a_run_is_stopped(p: int) -> None:
    """Residuals are small, as nearly all values are alike. With tau = theta + 2 ||R||, a third of these are wrong."""
    told = wrong = 0
    for seed in range(14):
        rng = np.random.default_rng([17, seed])
        values = np.append(rng.uniform(1.05, 1.5), np.linspace(1, 0.95, 119))
        turn = np.linalg.qr(rng.standard_normal((120, 120)))[0]
        problem = replace(draw(0), matrix=(turn * values) @ turn.T, eigenvalues=values, vectors=turn, spectrum="", k=1)
        problem = replace(problem, p=p, steps=int(rng.integers(2, 12)), algorithm="power", stddev=0.0, single=False)
        _, evidence, _ = solve(problem, seed)
        certificate = certify(evidence)
        if bounds_values(certificate):
            told += 1
            wrong += certificate.best.upper[0] < values[0]
    assert not wrong
    assert told >= (3 if p == 1 else 7)


def held_of_ties(tallies: dict[tuple[str, str], Tally]) -> None:
    """A random start has its 1 % (of few claims: one); most angles cannot be told, and some can."""
    for (ground, claim), tally in tallies.items():
        allowed = 0 if ground == "always" else max(1, 0.01 * tally.claimed)
        assert tally.claimed - tally.covered <= allowed, (ground, claim)
    assert tallies["told", "low rank"].overestimate <= 1.1
    assert tallies["told", "value"].claimed >= 0.8 * tallies["told", "value"].problems
    assert tallies["told", "angle"].claimed >= 0.1 * tallies["told", "angle"].problems


@pytest.mark.slow
def test_near_ties_of_more_values_than_columns() -> None:
    """Seeds are fixed. Before pairs in a row were compared, 24 % of the angles and 9 % of the values were wrong."""
    held_of_ties(measure(110, 40_000, draw_ties))


@pytest.mark.heavy
def test_near_ties_by_the_thousand() -> None:
    held_of_ties(measure(2000, 50_000, draw_ties))


def held_in_float32(tallies: dict[tuple[str, str], Tally]) -> None:
    """As of near-ties, which half of these are; what a random start shows is blurred by 16 roundings of float32."""
    for (ground, claim), tally in tallies.items():
        allowed = 0 if ground == "always" else max(1, 0.01 * tally.claimed)
        assert tally.claimed - tally.covered <= allowed, (ground, claim)
    for claim in ("following", "value"):
        assert tallies["random start", claim].claimed >= 0.5 * tallies["random start", claim].problems


@pytest.mark.slow
def test_runs_that_begin_in_float32() -> None:
    held_in_float32(measure(40, 60_000, draw_mixed))


@pytest.mark.heavy
def test_runs_that_begin_in_float32_by_the_thousand() -> None:
    held_in_float32(measure(1000, 61_000, draw_mixed))


def clustered(kind: str, width: float, many: int, seed: int, dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A matrix of this kind whose largest ``many`` of 100 values are so close; its own values and vectors."""
    rng = np.random.default_rng([18, seed])
    turn = np.linalg.qr(rng.standard_normal((100, 100)))[0]
    sizes = np.append(1 + width * np.sort(rng.random(many))[::-1], np.full(100 - many, 0.8))
    if kind == "symmetric":
        a = ((turn * sizes) @ turn.T).astype(dtype)
        a = (a + a.T) / 2
        values, vectors = np.linalg.eigh(a.astype(float))
        return a, values[::-1], vectors[:, ::-1]
    a = ((np.linalg.qr(rng.standard_normal((200, 100)))[0] * sizes) @ turn.T).astype(dtype)
    values, vectors = np.linalg.svd(a.astype(float))[1:]
    return a, values**2 / 200 if kind == "samples" else values, vectors.T


@pytest.mark.slow
@pytest.mark.parametrize("dtype", often([np.float64, np.float32], 0))
@pytest.mark.parametrize(
    "k, p, many, tol", [(3, None, 15, None), (3, 4, 15, 1e-4), (5, None, 40, 1e-6), (3, 3, 15, None)]
)
@pytest.mark.parametrize("kind", ["symmetric", "matrix", "samples"])
def test_runs_on_a_cluster_that_no_block_holds(
    kind: str, k: int, p: int | None, many: int, tol: float | None, dtype: Any
) -> None:
    """Some claimed angles of 0.002 degrees where the truth is 24 to 90, and 12 digits of values where 8 are right."""
    for seed, width in enumerate((0, 1e-10, 1e-7, 1e-4)):
        a, values, turn = clustered(kind, width, many, seed, dtype)
        run = npmdask.top_k(a, k, kind=kind, iteration_rank=p, seed=seed, tol=tol, threads=1)
        certificate: Any = run.certificate
        told = next(v for v in certificate["levels"] if v["ground"] == certificate["ground"])
        assert (np.abs(run.values - values[:k]) <= np.array(told["value_errors"]) + 1e-14).all(), width
        assert told["following"] >= values[k] - 1e-14
        true = np.linalg.norm(turn[:, :k] - run.basis @ (run.basis.T @ turn[:, :k]), 2)
        assert told["sine"] is None or (p != k and told["sine"] >= true - 1e-14 / (values[k - 1] - values[k])), width
        assert told["sine"] is None or width >= 1e-7
        assert ("cannot be distinguished from equally good ones" in run.assurance) == (told["sine"] is None)
