"""Runs that stop by what is left over: no more than they say, long before components settle; and go on from there."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from benchmarks.low_rank_stops import as_markdown, measure, wrong
from npmdask.cli.main import main
from npmdask.core.certificates.bounds import Evidence, certify
from npmdask.core.runs.stopping_rules import excess_of
from npmdask.errors import BadInputError, RefusedError
from npmdask.formats.ingest import ingest
from tests.conftest import planted, same_bytes
from tests.theory.certificates.test_runs import put

K = 5
SLOW = np.arange(1, 121.0) ** -0.5


def matrix(kind: str) -> np.ndarray:
    """No gap worth speaking of behind the fifth of 120 values."""
    if kind != "symmetric":
        return planted(600, 120, SLOW)[0]
    turn = planted(600, 120, SLOW)[2]
    a = (turn * SLOW * (-1.0) ** np.arange(120)) @ turn.T
    return np.asarray((a + a.T) / 2)


def left_over(kind: str, a: np.ndarray, basis: np.ndarray) -> float:
    """1 + excess: what is left over, over the least that K components leave."""
    if kind == "symmetric":
        return float(np.linalg.norm(a - basis @ (basis.T @ a), 2) / SLOW[K])
    ratio = float(np.linalg.norm(a - (a @ basis) @ basis.T, 2) / SLOW[K])
    return ratio**2 if kind == "samples" else ratio


@pytest.mark.slow
def test_random_problems_leave_no_more_than_they_say() -> None:
    """Seeds are fixed. Mutants: ||R|| for what is left, the k-th Ritz value for the next, a perturbation left out."""
    stops = measure(60)
    assert len(stops) >= 30
    assert not wrong(stops)
    assert np.median([s.said / s.true for s in stops]) < 1.1
    foretold = [s for s in stops if s.foretold is not None]
    assert np.mean([s.foretold < s.steps for s in foretold if s.foretold]) <= 0.1
    assert np.median([s.steps for s in stops]) < np.median([s.settled for s in stops]) / 2
    assert "predicted too few" in as_markdown(stops)


@pytest.mark.heavy
def test_thousands_of_random_problems_leave_no_more_than_they_say() -> None:
    stops = measure(3000, 1000)
    assert wrong(stops) <= 0.01 * len(stops)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["power", "krylov"])
@pytest.mark.parametrize("kind", ["samples", "matrix", "sparse", "symmetric"])
def test_a_run_without_a_gap_stops_early_and_keeps_its_word(tmp_path: Path, kind: str, algorithm: str) -> None:
    """In the units of its kind: roots of a matrix, the square of samples. Mutant: no root, a root too many."""
    a = matrix(kind)
    asked: dict[str, Any] = {"algorithm": algorithm, "threads": 1}
    path = put(tmp_path, kind, a)
    solution = npmdask.top_k(path, K, low_rank_tol=0.1, **asked)
    said = float(solution.outcome.sentence.split("at most ")[1].split()[0])
    assert solution.outcome.name == "low_rank" and solution.answered and not solution.converged
    assert left_over(kind, a, solution.basis) <= said <= 1.1
    assert solution.certificate is not None
    told = next(v for v in solution.certificate["levels"] if v["ground"] == solution.certificate["ground"])
    unit = SLOW[K] ** 2 / len(a) if kind == "samples" else SLOW[K]
    assert told["low_rank_error"] / unit <= said + 1e-9  # the page and the sentence speak of the same bound
    settled = npmdask.top_k(path, K, **asked)
    assert settled.converged and settled.steps >= 1.5 * solution.steps


def test_units_of_what_is_left() -> None:
    """What is left over the next value: variances of samples, roots of them of a matrix."""
    known: dict[str, Any] = {"values": np.array([4.0, 2.0]), "gram": np.zeros((2, 2)), "d": 3, "trace": 10.0}
    evidence = Evidence(nonnegative=True, multiplied=0, k=1, **known)
    left = certify(evidence).best.left
    assert left == pytest.approx(8)  # 10 less 2: the start may have missed the largest value
    assert excess_of(evidence, "samples") == pytest.approx(3)
    assert excess_of(evidence, "matrix") == pytest.approx(1)
    assert excess_of(replace(evidence, k=2), "samples") == math.inf  # nothing to compare with
    assert excess_of(replace(evidence, trace=11.0), "samples") == math.inf  # values may be wrong by more than all


@pytest.mark.slow
def test_it_goes_on_to_settled_components_in_the_same_bits(tmp_path: Path) -> None:
    """Killed after two steps and gone on with, stopped by what is left over, and then by the components."""
    np.save(tmp_path / "a.npy", matrix("matrix"))
    ingest(tmp_path / "a.npy", tmp_path / "a.zarr")
    asked: dict[str, Any] = {"algorithm": "power", "threads": 1}
    early = npmdask.top_k(tmp_path / "a.zarr", K, store=tmp_path / "run", low_rank_tol=0.2, max_steps=2, **asked)
    assert early.outcome.name == "max_steps" and "for low_rank_tol = 0.2" in early.outcome.sentence
    again = npmdask.resume(tmp_path / "run", max_steps=200)
    whole = npmdask.top_k(tmp_path / "a.zarr", K, store=tmp_path / "whole", low_rank_tol=0.2, **asked)
    assert again.outcome == whole.outcome and whole.outcome.name == "low_rank"
    same_bytes(tmp_path / "run", tmp_path / "whole", ("steps",))
    with pytest.raises(RefusedError, match="did not converge"):
        npmdask.deflate(tmp_path / "whole", 2, store=tmp_path / "more")
    settled = npmdask.resume(tmp_path / "run", low_rank_tol=0)
    plain = npmdask.top_k(tmp_path / "a.zarr", K, store=tmp_path / "plain", **asked)
    assert settled.converged
    np.testing.assert_array_equal(settled.basis, plain.basis)


@pytest.mark.slow
def test_from_the_command_line_with_a_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0: it is what was asked for. Predicted before the first pass, and said on its page."""
    np.save(tmp_path / "a.npy", matrix("symmetric"))
    ingest(tmp_path / "a.npy", tmp_path / "a.zarr", kind="symmetric")
    config = f"""
    source.path = "{tmp_path / "a.zarr"}"
    algorithm = {{ target_rank = {K}, name = "power" }}
    stop.low_rank_tol = 0.1
    run = {{ store = "{tmp_path / "run"}", threads = 1 }}
    """
    (tmp_path / "c.toml").write_text(config)
    assert main(["run", str(tmp_path / "c.toml"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["outcome"] == "low_rank" and facts["answered"] and not facts["converged"]
    assert facts["steps"] <= facts["predicted_steps"] <= 1.5 * facts["steps"]
    assert main(["plan", str(tmp_path / "c.toml")]) == 0
    assert f"about {facts['predicted_steps']} " in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "times the least that any 5 leave" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"low_rank_tol": -0.1}, "must be positive"),
        ({"low_rank_tol": math.nan}, "must be positive"),
        ({"low_rank_tol": 0.1, "iteration_rank": K}, "leaves none behind target_rank = 5"),
        ({"low_rank_tol": 0.1, "k": 0.9}, "the stages of its search"),
    ],
)
def test_what_cannot_be_asked_gets_a_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises((BadInputError, RefusedError), match=said):
        npmdask.top_k(matrix("matrix"), **{"k": K, **options})
