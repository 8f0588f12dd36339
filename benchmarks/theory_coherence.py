"""Hardt and Price 2014, Theorem 4.9: iterates of an incoherent matrix have small entries; and where its proof breaks.

The proof turns A by O = V diag(signs) V^T, which leaves A as it is, and needs X_l to turn with it. With noise of a size
that was fixed in advance it does; with the printed size, which follows max |X_ij|, it does not (errata, ERR-2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.paper_figures import panels
from benchmarks.paper_page import Rows
from benchmarks.theory_private_runs import Matrix, matrix, mechanism_of
from benchmarks.theory_runs import axis_ticks, number
from npmdask.core.algorithms import PowerMethod
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, max_sin_theta
from npmdask.core.runs.mechanisms import SimulatedGaussian
from npmdask.report.plots import BLUE, GREY, ORANGE
from npmdask.theory import coherence_linf_bound

LEVELS = {"little": 1e-4, "much": 0.1, "as printed": 0.5}  # stddev / s_k; the last times max |X_ij|, whatever that is
RULES = {
    "fixed in advance": "the worst case of all X",
    "printed": "by the largest entry of X",
    "exact sensitivity": "by the two largest row norms",
    "exact, public cap": "the same, at least that of the theorem's cap (`coherence`)",
}
COLORS = (GREY, ORANGE, "#f4a582", BLUE)
Level = Callable[[Block], float]  # the standard deviation of the noise at this X


@dataclass(frozen=True)
class Scale:
    """``turned_d``: where A is turned; ``epsilon``: of the private rules."""

    widths: tuple[int, ...] = (64, 256, 1024)
    coherences: tuple[int, ...] = (1, 4, 16)
    k: int = 2
    p: int = 4
    steps: int = 10
    seeds: int = 40
    turned_d: int = 1024
    turns: int = 5
    epsilon: float = 0.1


FULL = Scale()
SMALL = Scale(widths=(32, 128), coherences=(1, 4), seeds=10, turned_d=256, turns=2, p=2, k=1)


def measure(scale: Scale) -> dict[str, Any]:
    """Largest entries, and turned runs."""
    entries = [
        _entries(d, mu, name, scale) for name in LEVELS for mu in scale.coherences for d in scale.widths if mu < d
    ]
    facts = {name: getattr(scale, name) for name in ("k", "p", "steps", "seeds", "turned_d", "turns", "epsilon")}
    return facts | {"entries": entries, "turned": [_turned(rule, scale) for rule in RULES]}


def blocks_of(given: Matrix, k: int, start: Block, noise: list[Block], level: Level) -> tuple[list[Block], list[float]]:
    """X_0, X_1, ... and the noise levels: step l adds level(X_{l-1}) noise[l - 1]."""
    method, stddevs = PowerMethod(target_rank=k, iteration_rank=start.shape[1]), []
    state = method.init(len(start), rng=generator(0), start=start)
    blocks = [start]
    for drawn in noise:
        stddevs.append(level(blocks[-1]))
        state, _ = method.update(state, given.dense @ blocks[-1] + stddevs[-1] * drawn)
        blocks.append(state.basis)
    return blocks, stddevs


def start_of(d: int, k: int, p: int, seed: int) -> Block:
    """X_0, random orthonormal."""
    return PowerMethod(target_rank=k, iteration_rank=p).init(d, rng=generator(seed, "start")).basis


def _entries(d: int, mu: int, name: str, scale: Scale) -> dict[str, Any]:
    """max over l of max |X_ij| of every run, and how many runs exceed the bound."""
    given = matrix(d, scale.k, d // mu)
    noise = SimulatedGaussian(stddev=LEVELS[name] * given.spectrum[scale.k - 1])
    level: Level = _largest_entry if name == "as printed" else _one
    found = []
    for seed in range(scale.seeds):
        start, zero = start_of(d, scale.k, scale.p, seed), np.zeros((d, scale.p))
        drawn = [noise.release(zero, block=zero, entropy=seed, step=step) for step in range(scale.steps)]
        blocks, _ = blocks_of(given, scale.k, start, drawn, level)
        found.append(max(_largest_entry(block) for block in blocks[1:]))
    bound = coherence_linf_bound(mu, d).value
    return {
        "d": d,
        "mu": mu,
        "noise": name,
        "bound": bound,
        "median": float(np.median(found)),
        "most": max(found),
        "exceeded": sum(entry > bound for entry in found),
    }


def _largest_entry(block: Block) -> float:
    return float(np.abs(block).max())


def _one(block: Block) -> float:
    return 1.0


def level_of(rule: str, scale: Scale, mu: float) -> Level:
    """The size of the noise at X: of this project's mechanism, or the largest that it can ask for at any X."""
    options: dict[str, dict[str, Any]] = {
        "fixed in advance": {"calibration": "exact", "coherence": float(scale.turned_d)},
        "printed": {"calibration": "paper"},
        "exact sensitivity": {"calibration": "exact"},
        "exact, public cap": {"calibration": "exact", "coherence": mu},
    }
    return mechanism_of(scale.epsilon, scale.steps, (scale.turned_d, scale.p), **options[rule]).noise_stddev


def _turned(rule: str, scale: Scale) -> dict[str, Any]:
    """How far the run from O X_0 with noise O N_l is from O X_l, the largest entry by l; and what the rule costs."""
    given = matrix(scale.turned_d, scale.k, scale.turned_d)
    level = level_of(rule, scale, given.coherence)
    deviations, errors, stddevs = np.zeros(scale.steps + 1), [], []
    for seed in range(scale.turns):
        off, error, used = turned_run(given, scale, level, seed)
        deviations = np.maximum(deviations, off)
        errors.append(error)
        stddevs += used
    return {
        "rule": rule,
        "deviations": deviations.tolist(),
        "deviation": float(deviations.max()),
        "stddev": float(np.mean(stddevs)),
        "spread": float(max(stddevs) / min(stddevs)),
        "error": float(np.median(errors)),
    }


def turned_run(given: Matrix, scale: Scale, level: Level, seed: int) -> tuple[np.ndarray, float, list[float]]:
    """Deviations by l, the error of X_L, and the noise levels of the run that is not turned."""
    d, k, p = len(given.dense), scale.k, scale.p
    rng = generator(seed, "theory turned")
    turn = given.basis * rng.choice([-1.0, 1.0], d) @ given.basis.T
    noise: list[Block] = [rng.standard_normal((d, p)) for _ in range(scale.steps)]
    start = start_of(d, k, p, seed)
    plain, stddevs = blocks_of(given, k, start, noise, level)
    other, _ = blocks_of(given, k, turn @ start, [turn @ drawn for drawn in noise], level)
    off = [float(np.abs(a - turn @ b).max()) for a, b in zip(other, plain, strict=True)]
    return np.array(off), max_sin_theta(plain[-1], given.basis[:, :k]), stddevs


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """The largest entries over their bound; turned runs."""
    marks = dict.fromkeys(line["mu"] for line in found["entries"])
    rows = [["noise", *(f"mu = {mu}" for mu in marks), "runs beyond the bound"]]
    for noise in dict.fromkeys(line["noise"] for line in found["entries"]):
        own = [line for line in found["entries"] if line["noise"] == noise]
        shares = [max(line["most"] / line["bound"] for line in own if line["mu"] == mu) for mu in marks]
        count = f"{sum(line['exceeded'] for line in own)} of {found['seeds'] * len(own)}"
        rows.append([noise, *(f"{share:.2f}" for share in shares), count])
    turned = [["size of the noise", "which", "deviation", "noise, mean stddev", "error of X_L, median"]]
    for line in found["turned"]:
        values = [f"{line['deviation']:.0e}", number(line["stddev"]), number(line["error"])]
        turned.append([line["rule"], RULES[line["rule"]], *values])
    return {"coherence": rows, "equivariance": turned}


def figure(found: dict[str, Any]) -> Any:
    """Entries against d; deviations against l."""
    drawn, axes = panels(1, 2, (9.6, 4.2), f"Coherence: p = {found['p']}, k = {found['k']}, L = {found['steps']}")
    left, right = axes[0]
    marks = {"little": "o-", "as printed": "s--"}
    shades = dict(
        zip(sorted({line["mu"] for line in found["entries"]}), ("#92c5de", "#4393c3", "#053061"), strict=False)
    )
    for mu, color in shades.items():
        for name, style in marks.items():
            lines = [line for line in found["entries"] if (line["mu"], line["noise"]) == (mu, name)]
            d = [line["d"] for line in lines]
            left.loglog(
                d, [line["most"] for line in lines], style, color=color, ms=4, label=f"mu = {mu}, noise: {name}"
            )
        left.loglog(d, [line["bound"] for line in lines], ":", color=color, lw=1.6)
    left.plot([], [], ":", color=GREY, label=r"bound $4\sqrt{\mu \ln d / d}$")
    left.set_ylim(None, 8 * left.get_ylim()[1])
    axis_ticks(left, sorted({line["d"] for line in found["entries"]}))
    left.set(title=f"largest of {found['seeds']} runs", xlabel="d", ylabel=r"$\max_l \|X_l\|_{max}$")
    for line, color, style in zip(found["turned"], COLORS, ("o-", "s-", "^-", "v--"), strict=True):
        values = np.maximum(line["deviations"], 1e-17)
        right.semilogy(values, style, color=color, ms=4, label=line["rule"])
    right.set(title=f"A turned onto itself, d = {found['turned_d']:,}", xlabel="l", ylabel=r"$\|X'_l - O X_l\|_{max}$")
    for axis in axes[0]:
        axis.title.set_fontsize(9.5)
        axis.legend(fontsize=7.5, frameon=False, ncols=2 if axis is left else 1)
    return drawn
