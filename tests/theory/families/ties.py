"""Near-ties of more values than a block has columns, values hidden by a flat bulk, both signs; stopped early or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import npmdask
from tests.theory.families.drawing import Rng, chance, one_of, orthonormal, power_of_ten, whole
from tests.theory.families.judging import Findings, Problem, Question, judge


@dataclass(frozen=True)
class Tied(Problem):
    x: np.ndarray
    k: int
    spectrum: str
    how: dict[str, Any]


def problem(rng: Rng) -> Tied:
    d, k = one_of(rng, (40, 80, 150)), one_of(rng, (1, 2, 3, 5))
    p = k + one_of(rng, (0, 1, 2, 5, 10))
    tied = int(rng.integers(k + 1, min(d - 2, p + 25)))
    width = power_of_ten(rng, -14, -1)
    spectrum = one_of(rng, ("largest", "second", "both signs", "hidden", "flat"))
    near = 1 + width * rng.random(tied)
    values = {
        "largest": np.append(near, np.full(d - tied, 0.9)),
        "second": np.concatenate([[3], near, 0.5 * rng.random(d - tied - 1)]),
        "both signs": np.append(near * rng.choice([1, -1], tied), np.full(d - tied, 0.7)),
        "hidden": np.append(1 + width, np.ones(d - 1)),
        "flat": 1 + width * rng.random(d),
    }[spectrum]
    kind = "symmetric" if spectrum == "both signs" else one_of(rng, ("symmetric", "matrix", "samples"))
    if kind == "symmetric":
        turn = orthonormal(rng, d, d) if chance(rng, 0.8) else np.eye(d)[rng.permutation(d)]
        x = (turn * values) @ turn.T
    else:
        x = (orthonormal(rng, 2 * d, d) * np.sqrt(values)) @ orthonormal(rng, d, d).T
    if chance(rng, 0.3):
        x = x.astype(np.float32)
    if kind == "symmetric":
        x = (x + x.T) / 2
    how = {"kind": kind, "iteration_rank": p, "seed": whole(rng, 0, 10**6)}
    how["algorithm"] = one_of(rng, ("auto", "power", "krylov"))
    if chance(rng, 0.5):
        how["tol"] = power_of_ten(rng, -10, -2)
    if chance(rng, 0.4):
        how["max_steps"] = whole(rng, 1, 11)
    return Tied(x, k, spectrum, how)


def check(problem: Tied, folder: Path) -> Findings:
    found = Findings()
    solution = npmdask.top_k(problem.x, problem.k, **problem.how)
    judge(found, solution, Question(problem.x.astype(float), problem.how["kind"], weight=len(problem.x)))
    return found
