"""Hardt and Price 2014, Lemma 2.5: tan theta_k(U, X_0) of a random start, its quantiles and its tail."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from benchmarks.paper_figures import panels
from benchmarks.paper_page import Rows
from benchmarks.theory_runs import SHADES, axis_ticks, number, slope, tangent
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import random_orthonormal
from npmdask.report.plots import BLUE, GREY, ORANGE
from npmdask.theory import init_tan_bound, init_tan_quantile

LEVELS = (0.5, 0.9, 0.99)
LEVELS_OF_TAIL = np.geomspace(0.1, 1e-3, 9)  # probabilities between which the exponent of the tail is fitted


@dataclass(frozen=True)
class Scale:
    """``cases``: (d, k, p); ``tails``: (k, p); ``trials``: starts of this project; ``draws``: of their law."""

    cases: tuple[tuple[int, int, int], ...] = tuple(
        (d, k, p) for k in (1, 5, 20) for p in (k, k + 1, 2 * k) for d in (100, 400, 1600)
    )
    tails: tuple[tuple[int, int], ...] = ((5, 5), (5, 6), (5, 7), (5, 10))
    trials: int = 400
    draws: int = 100_000
    tail_d: int = 400


FULL = Scale()
SMALL = Scale(cases=((100, 3, 3), (100, 3, 6)), tails=((2, 2), (2, 3)), trials=200, draws=20_000, tail_d=100)


def measure(scale: Scale) -> dict[str, Any]:
    """Quantiles by (d, k, p), of starts as this project draws them and of their law; and tails."""
    return {
        "trials": scale.trials,
        "draws": scale.draws,
        "cases": [_quantiles(d, k, p, scale) for d, k, p in dict.fromkeys(scale.cases)],
        "tails": [_tail(k, p, scale) for k, p in scale.tails],
        "tail_d": scale.tail_d,
    }


def starts(d: int, k: int, p: int, trials: int) -> np.ndarray:
    """tan theta_k(U, X_0) of ``trials`` starts as PowerMethod.init draws them."""
    rngs = (generator(seed, "theory start", d, k, p) for seed in range(trials))
    return np.array([tangent(random_orthonormal(d, p, rng), k) for rng in rngs])


def _quantiles(d: int, k: int, p: int, scale: Scale) -> dict[str, Any]:
    tangents, bound = starts(d, k, p, scale.trials), init_tan_bound(d, k, p).value
    law = [init_tan_quantile(d, k, p, level, draws=scale.draws // 10).value for level in LEVELS]
    return {
        "d": d,
        "k": k,
        "p": p,
        "formula": bound,
        "quantiles": np.quantile(tangents, LEVELS).tolist(),
        "law": law,
        "tau": law[-1] / bound,
    }


def _tail(k: int, p: int, scale: Scale) -> dict[str, Any]:
    """tau = tan / formula that is exceeded with a probability of 0.1 ... 0.001, and the power of the tail."""
    bound = init_tan_bound(scale.tail_d, k, p).value
    taus = [
        init_tan_quantile(scale.tail_d, k, p, 1 - float(level), draws=scale.draws).value / bound
        for level in LEVELS_OF_TAIL
    ]
    return {
        "k": k,
        "p": p,
        "taus": taus,
        "probabilities": LEVELS_OF_TAIL.tolist(),
        "exponent": -slope(taus, LEVELS_OF_TAIL.tolist()),
        "end_exponent": -slope(taus[-4:], LEVELS_OF_TAIL[-4:].tolist()),
    }


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """Quantiles for the largest d, and powers of tails."""
    rows = [["k", "p", "formula, tau = 1", "median of starts", "99 % of the law", "tau there"]]
    largest = max(case["d"] for case in found["cases"])
    for case in (case for case in found["cases"] if case["d"] == largest):
        values = (case["formula"], case["quantiles"][0], case["law"][-1], case["tau"])
        rows.append([*(str(case[name]) for name in ("k", "p")), *(number(value) for value in values)])
    tails = [["k", "p", "p + 1 - k", "power of the tail"]]
    for tail in found["tails"]:
        tails.append([str(tail["k"]), str(tail["p"]), str(tail["p"] + 1 - tail["k"]), f"{tail['end_exponent']:.2f}"])
    return {"start": rows, "tail": tails}


def figure(found: dict[str, Any]) -> Any:
    """Quantiles against d; the tail."""
    drawn, axes = panels(1, 2, (9.6, 4.2), r"Random start: $\tan\theta_k(U, X_0)$")
    left, right = axes[0]
    k = sorted({case["k"] for case in found["cases"]})[len({case["k"] for case in found["cases"]}) // 2]
    for p, color in ((k, ORANGE), (2 * k, BLUE)):
        cases = [case for case in found["cases"] if (case["k"], case["p"]) == (k, p)]
        d = [case["d"] for case in cases]
        left.loglog(d, [case["quantiles"][0] for case in cases], "o-", color=color, ms=4, label=f"p = {p}, median")
        left.loglog(d, [case["quantiles"][2] for case in cases], "s--", color=color, ms=4, label=f"p = {p}, 99 %")
        formula = [case["formula"] for case in cases]
        left.loglog(d, formula, ":", color=color, lw=1.6, label=f"p = {p}: $\\sqrt{{d}}/(\\sqrt{{p}}-\\sqrt{{k-1}})$")
    left.set_ylim(None, 30 * left.get_ylim()[1])
    axis_ticks(left, d)
    left.set(title=f"k = {k}", xlabel="d", ylabel=r"$\tan\theta_k(U, X_0)$")
    for tail, color in zip(found["tails"], (ORANGE, *SHADES), strict=False):
        power = tail["p"] + 1 - tail["k"]
        right.loglog(tail["taus"], tail["probabilities"], "o-", ms=3.5, color=color,
                     label=f"k = {tail['k']}, p = {tail['p']}: power {tail['end_exponent']:.2f}")  # fmt: skip
        last = np.array(tail["taus"][-1]) * np.array([0.45, 1.0]) ** (1 / sqrt(power))
        right.loglog(last, tail["probabilities"][-1] * (last / last[-1]) ** -power, ":", color=GREY, lw=1.4)
    right.plot([], [], ":", color=GREY, label=r"$\tau^{-(p+1-k)}$")
    right.set(
        title=f"tail, d = {found['tail_d']}", xlabel=r"$\tau = \tan\theta_k\,/\,$formula", ylabel="probability beyond"
    )
    for axis in axes[0]:
        axis.title.set_fontsize(9.5)
        axis.legend(fontsize=7.5, frameon=False, ncols=2 if axis is left else 1)
    return drawn
