"""The judge finds what is wrong: of an answer that is right, each number is moved by more than its bound."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import npmdask
from tests.theory.families.catalogue import Case
from tests.theory.families.judging import EPS, Findings, Question, judge, prepared
from tests.theory.families.report import report

ROWS = np.random.default_rng(0).standard_normal((60, 8)) * np.geomspace(1, 0.1, 8) + 3


def faults(solution: Any) -> list[str]:
    truth, found = prepared(ROWS, center=True), Findings()
    judge(found, solution, Question(truth.matrix, "samples", truth.weight))
    assert len(found.bounds) == 1
    return found.faults


@pytest.fixture(scope="module")
def answer() -> Any:
    return npmdask.top_k(ROWS, 3, kind="samples", center=True)


@pytest.mark.slow
def test_a_right_answer_has_no_fault(answer: Any) -> None:
    assert answer.converged and not faults(answer)


@pytest.mark.slow
def test_values_and_vectors_that_are_moved(answer: Any) -> None:
    assert any(
        "error of value 1" in fault for fault in faults(replace(answer, values=answer.values * [1, 1 + 1e-11, 1]))
    )
    turned = np.linalg.qr(answer.basis + 1e-9 * np.ones(answer.basis.shape))[0]
    assert any("sine" in fault for fault in faults(replace(answer, basis=turned)))
    assert any("orthonormal" in fault for fault in faults(replace(answer, basis=answer.basis * 1.001)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "moved", "said"),
    [
        ("upper", lambda v: [v[0], v[1], v[2] * (1 - 1e-9)], "above its upper bound"),
        ("lower", lambda v: [v[0] * (1 + 1e-9), v[1], v[2]], "above the true one"),
        ("following", lambda v: v * (1 - 1e-9), "the value after the last"),
        ("low_rank_error", lambda v: v * (1 - 1e-6), "error of the low rank"),
    ],
)
def test_bounds_that_are_moved(answer: Any, name: str, moved: Any, said: str) -> None:
    certificate = copy.deepcopy(answer.certificate)
    for level in certificate["levels"]:
        level[name] = moved(level[name])
    assert any(said in fault for fault in faults(replace(answer, certificate=certificate)))


def test_gaps_are_at_the_mean_of_what_is_observed() -> None:
    x = np.array([[1000.0, 1], [1002.0, 5], [np.nan, 0]])
    truth = prepared(x, center=True, scale=True, rows=np.array([1, 3, 1]), observed=~np.isnan(x))
    assert truth.mean == pytest.approx([1001.5, 16 / 5], rel=4 * EPS)
    assert truth.deviation[0] == pytest.approx(np.sqrt(3) / 2, rel=1e-12)
    assert truth.matrix[2, 0] == 0 and truth.weight == 5


def test_a_report_names_the_smallest_problem_and_counts_what_is_likely() -> None:
    def case(number: int, became: str, entries: int, **more: Any) -> Case:
        return Case("ties", number, became, "", entries, findings=Findings(**more))

    right = [case(i, "right", 9, bounds=[(4e-12, 1e-12)], claims=[("likely", 0.9, True)]) for i in range(60)]
    text, faultless = report(right, 5)
    assert faultless and "| ties | 60 | 60 | 0 | 0 | 0 | 0 | 60 | 100.0% | 4 | 4 (60) |" in text
    text, faultless = report([*right, case(60, "wrong", 50), case(61, "crashed", 8)], 5)
    assert not faultless and "SEED=5 python -m tests.theory.families ties --case 61" in text and "--case 60" not in text
    text, faultless = report([case(i, "right", 9, claims=[("likely", 0.9, i % 2 == 0)]) for i in range(60)], 5)
    assert not faultless and "FAILED: likely, 30 of 60, at least 0.9" in text
    text, faultless = report([case(i, "right", 9, claims=[("rarely not", 0.9999, i != 7)]) for i in range(60)], 5)
    assert faultless and "held: rarely not, 59 of 60, at least 0.9999; not ties 7" in text
