"""Intervals of the jackknife and the bootstrap over groups of a stored Gram, and counts of components."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import npmdask
from tests.theory.families.drawing import Rng, one_of, orthonormal, whole
from tests.theory.families.judging import Findings, Problem

GROUPED = ("unequal groups", "few groups", "offset")
COUNTED = ("noise", "planted", "noise in other units")


@dataclass(frozen=True)
class Sampled(Problem):
    x: np.ndarray
    groups: np.ndarray
    data: str
    variances: np.ndarray
    turn: np.ndarray  # their directions
    components: int  # that are there
    seed: int


def problem(rng: Rng) -> Sampled:
    data = one_of(rng, GROUPED + COUNTED)
    seed = whole(rng, 0, 10**6)
    if data in GROUPED:
        n, d = 600, 12
        variances, turn = np.append([21.0, 10.0, 5.0], np.ones(d - 3)), orthonormal(rng, d, d)
        x = (rng.standard_normal((n, d)) * np.sqrt(variances)) @ turn.T + (1e5 if data == "offset" else 0)
        count = 8 if data == "few groups" else 20
        sizes = rng.dirichlet(np.full(count, 1.0 if data == "unequal groups" else 50.0))
        groups = np.append(np.arange(count), rng.choice(count, size=n - count, p=sizes))
        return Sampled(x, groups, data, variances, turn, 3, seed)
    n, d = one_of(rng, (200, 1000)), 60
    x = rng.standard_normal((n, d))
    if data == "planted":
        x = x + (rng.standard_normal((n, 3)) * [4, 3, 2.5]) @ orthonormal(rng, d, 3).T
    elif data == "noise in other units":
        x = x * np.geomspace(1, 100, d)
    groups = np.arange(n) // (n // 10)
    return Sampled(x, groups, data, np.ones(d), np.eye(d), 3 if data == "planted" else 0, seed)


def check(problem: Sampled, folder: Path) -> Findings:
    found = Findings()
    gram = npmdask.gram(problem.x, str(folder / "gram"), kind="samples", groups=problem.groups)
    if problem.data in COUNTED:
        counts(found, gram, problem)
        return found
    covered(found, "jackknife: variance in its interval", gram.jackknife(3).value_intervals, problem.variances[:3])
    bootstrap = gram.bootstrap(3, seed=problem.seed)
    covered(found, "bootstrap: variance in its interval", bootstrap.value_intervals, problem.variances[:3])
    truth = problem.turn[:, :3]
    basis = np.asarray(npmdask.top_k(gram, 3, center=True).basis)
    truth = truth * np.sign((truth * basis).sum(axis=0))  # signs are as in the answer
    covered(found, "bootstrap: entry in its interval", bootstrap.vector_intervals, truth)
    # The middle of an interval is near the entry of the answer itself, whatever the truth is.
    low, high = np.asarray(bootstrap.vector_intervals)
    inside = ((basis >= low) & (basis <= high))[np.isfinite(low)]
    found.expect(inside.mean() >= 0.8, "entries of the answer outside of their own intervals:", 1 - inside.mean())
    return found


def covered(found: Findings, what: str, interval: Any, truth: np.ndarray) -> None:
    """95 % intervals; with eight unequal groups somewhat fewer are right: 93 to 94 % measured."""
    low, high = np.asarray(interval)
    for inside, known in zip(((truth >= low) & (truth <= high)).ravel(), np.isfinite(low).ravel(), strict=True):
        if known:
            found.claims.append((what, 0.92, bool(inside)))


def counts(found: Findings, gram: Any, problem: Sampled) -> None:
    """Of rules that have an error level: 5 % of noise gets a component too many."""
    for advice in gram.component_counts(scale=problem.data == "noise in other units"):
        if advice.components is not None and "Marchenko" in advice.criterion and problem.data != "planted":
            found.claims.append(("no component in noise (Marchenko-Pastur)", 0.9, advice.components == 0))
        if advice.components is not None and "parallel" in advice.criterion:
            found.claims.append(("components (parallel analysis)", 0.9, advice.components == problem.components))
