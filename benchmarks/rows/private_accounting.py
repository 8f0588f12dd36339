"""Noise for the same exact guarantee against Hardt and Price's formula, and our accounting against Google's."""

from __future__ import annotations

import itertools
import math
import time
from functools import partial

import dp_accounting
import mpmath
import numpy as np
from dp_accounting import pld

from benchmarks.registry import Context, Measured, Row
from npmdask.accounting import (
    Budget,
    epsilon_for,
    gaussian_charge,
    gaussian_multiplier,
    mu_for,
    paper_charge,
    paper_stddev,
)
from npmdask.core.numerics.subspaces import random_orthonormal
from npmdask.privacy.neighbors import make_relation

D, P, RELEASES = 1000, 10, 20
BUDGET = Budget(1.0, 1e-6)
GRID = {
    "small": ((0.3, 1.0, 4.0), (1e-3, 1e-6, 1e-9), (1, 100)),
    "full": ((0.1, 0.3, 1.0, 2.0, 4.0, 8.0), (1e-3, 1e-5, 1e-6, 1e-8, 1e-9), (1, 10, 100, 2000)),
}


def measure_noise(relation_name: str, context: Context) -> Measured:
    """The largest ratio of standard deviations over random orthonormal blocks, both (1, 1e-6)-private."""
    relation = make_relation(relation_name, clip_norm=1.0)
    multiplier = gaussian_multiplier(BUDGET, RELEASES)
    ratios = []
    for seed in range(context.sized(5, 50)):
        block = random_orthonormal(D, P, np.random.default_rng(seed))
        ratios.append(
            multiplier * relation.sensitivity(block) / paper_stddev(relation_name, block, P, RELEASES, BUDGET)
        )
    real = paper_charge(relation_name, P, RELEASES, BUDGET)
    details = {
        "epsilon": BUDGET.epsilon,
        "delta": BUDGET.delta,
        "d": D,
        "p": P,
        "blocks": len(ratios),
        "median_ratio": round(float(np.median(ratios)), 4),
        "from_exact_accounting": round(math.sqrt(real.mu_squared) / mu_for(BUDGET.epsilon, BUDGET.delta), 4),
        "epsilon_that_the_formula_spends_at_worst": round(real.epsilon_at(BUDGET.delta), 4),
    }
    within = gaussian_charge(multiplier, RELEASES).within(BUDGET)
    return Measured(max(ratios), details, failures=() if within else ("our noise exceeds the budget",))


def measure_accounting(context: Context) -> Measured:
    """Over a grid of (epsilon, delta, T): an epsilon below the exact one (60 digits) of T releases is a failure."""
    deviations, failures, seconds, theirs = {}, [], 0.0, 0.0
    for epsilon, delta, releases in itertools.product(*GRID["small" if context.scale == "small" else "full"]):
        stddev = math.sqrt(releases) / mu_for(epsilon, delta)
        start = time.perf_counter()
        ours = epsilon_for(math.sqrt(releases) / stddev, delta)
        seconds += time.perf_counter() - start
        start = time.perf_counter()
        accountant = pld.PLDAccountant()
        accountant.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(stddev), releases))
        reference = accountant.get_epsilon(delta)
        theirs += time.perf_counter() - start
        where = f"epsilon = {epsilon:g}, delta = {delta:g}, T = {releases}"
        deviations[where] = ours / reference - 1
        if _exact_delta(stddev, releases, ours) > delta:
            failures.append(f"{where}: {ours:.12g} is below the exact epsilon")
    details = {
        "points": len(deviations),
        "highest_above_theirs": max(deviations.values()),
        "lowest_below_theirs": min(deviations.values()),
        "milliseconds_each": round(1000 * seconds / len(deviations), 3),
        "their_milliseconds_each": round(1000 * theirs / len(deviations), 3),
        "note": "their value carries the error of a discretisation; ours is held to the exact one, with 60 digits",
    }
    return Measured(max(map(abs, deviations.values())), details, failures=tuple(failures))


def _exact_delta(stddev: float, releases: int, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        mu = mpmath.sqrt(releases) / mpmath.mpf(stddev)
        u = epsilon / mu - mu / 2
        return mpmath.ncdf(-u) - mpmath.exp(epsilon) * mpmath.ncdf(-u - mu)


ROWS = (
    Row(
        name="noise-entry",
        what="noise / Hardt and Price's for the same exact (1, 1e-6), one entry, d = 1000, p = 10",
        target=0.35,
        run=partial(measure_noise, "entry"),
        better="lower",
    ),
    Row(
        name="noise-symmetric-pair",
        what="`noise-entry` for a symmetric pair",
        target=0.5,
        run=partial(measure_noise, "symmetric_entry"),
        better="lower",
    ),
    Row(
        name="accounting-pld",
        what="largest relative difference of epsilon from dp-accounting's PLD; never below the exact one",
        target=1e-6,
        run=measure_accounting,
        better="lower",
    ),
)
