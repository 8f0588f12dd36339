"""Balcan, Du, Wang and Yu 2016, Theorem 2.2: a power law, more columns than wanted, and the intermediate rank q.

benchmarks/paper_stream.py has the iterations of five starts, noise and streams by p; here are many starts beside
``best_q``, the claim that the gain is a factor of k, and the noise that is borne beside both theorems.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import hypot
from typing import Any

import numpy as np

from benchmarks.paper_figures import panels
from benchmarks.paper_page import Rows
from benchmarks.theory_runs import (
    axis_ticks,
    gaussian_noise,
    iterates,
    largest,
    number,
    sine,
    slope,
    towards_noise,
)
from npmdask.report.plots import BLUE, GREY, ORANGE
from npmdask.theory import best_q, improved_max_noise, init_tan_bound, npm_iterations, npm_max_noise

MOST = 2000  # steps


@dataclass(frozen=True)
class Scale:
    """A = diag(i^-alpha). ``grown``: k where p = k is compared with 2 k; ``acc``: sine where noise is looked for."""

    d: int = 300
    k: int = 10
    alpha: float = 1.5
    tol: float = 1e-3
    ranks: tuple[int, ...] = (10, 11, 15, 20, 30, 40)
    starts: int = 50
    grown: tuple[int, ...] = (5, 10, 20, 40)
    grown_starts: int = 9
    acc: float = 0.1
    noise_seeds: int = 3


FULL = Scale()
SMALL = Scale(d=100, k=5, ranks=(5, 6, 10, 20), starts=9, grown=(3, 12), grown_starts=5, noise_seeds=1)


def power_law(d: int, alpha: float) -> np.ndarray:
    return np.arange(1, d + 1) ** -alpha


def measure(scale: Scale) -> dict[str, Any]:
    """By p; by k; and noise by p."""
    facts = {name: getattr(scale, name) for name in ("d", "k", "alpha", "tol", "starts", "acc")}
    return facts | {
        "ranks": [_by_rank(p, scale) for p in scale.ranks],
        "grown": [_grown(k, scale) for k in scale.grown],
        "noise": [_noise(p, scale) for p in scale.ranks],
    }


def steps_needed(spectrum: np.ndarray, k: int, p: int, tol: float, seed: int) -> int:
    """Iterations until sin theta_k <= tol, without noise."""
    for step, block in enumerate(islice(iterates(spectrum, k, p, seed), MOST)):
        if sine(block, k) <= tol:
            return step
    return MOST


def _by_rank(p: int, scale: Scale) -> dict[str, Any]:
    spectrum, k = power_law(scale.d, scale.alpha), scale.k
    counts = [steps_needed(spectrum, k, p, scale.tol, seed) for seed in range(scale.starts)]
    best = best_q(spectrum, k, p, acc=scale.tol)
    start = init_tan_bound(scale.d, k, p).value
    return {
        "p": p,
        "median": float(np.median(counts)),
        "least": min(counts),
        "most": max(counts),
        "q": best.value,
        "predicted": float(np.ceil(best.constants["steps"])),
        "printed": npm_iterations(start, scale.tol, spectrum[k - 1], spectrum[k]).value,
    }


def _grown(k: int, scale: Scale) -> dict[str, Any]:
    """Iterations of p = k and of p = 2 k: medians."""
    spectrum = power_law(scale.d, scale.alpha)
    found = {
        p: float(np.median([steps_needed(spectrum, k, p, scale.tol, seed) for seed in range(scale.grown_starts)]))
        for p in (k, 2 * k)
    }
    return {"k": k, "tight": found[k], "wide": found[2 * k]}


def _noise(p: int, scale: Scale) -> dict[str, Any]:
    """The largest ||G|| with sin theta_k <= acc in the end, beside what both theorems allow after the start."""
    spectrum, k = power_law(scale.d, scale.alpha), scale.k
    measured = {
        name: float(
            np.median([largest(partial(_borne, spectrum, p, kind, seed, scale), 1e-6, 1e-3, 0.02) for seed in seeds])
        )
        for name, kind, seeds in (("towards", "towards", (0,)), ("gaussian", "gaussian", range(scale.noise_seeds)))
    }
    s_k, tangent = float(spectrum[k - 1]), scale.acc / hypot(1, scale.acc)
    q = max(k, p // 2)
    return measured | {
        "p": p,
        "q": q,
        "gap": s_k - float(spectrum[p]),
        "dependent": npm_max_noise(s_k, float(spectrum[k]), tangent, 1.0).value.whole,
        "improved": improved_max_noise(s_k, float(spectrum[q]), scale.acc, scale.d, p, q).value.whole,
        "sharp": scale.acc * (s_k - float(spectrum[p])),
    }


def _borne(spectrum: np.ndarray, p: int, kind: str, seed: int, scale: Scale, g: float) -> bool:
    """Whether sin theta_k <= acc in the last 20 of 120 steps, from the p leading directions."""
    k = scale.k
    noise = gaussian_noise(g, g, k, seed) if kind == "gaussian" else towards_noise(spectrum, g, 0.0, k, p)
    basis = np.eye(len(spectrum), p)
    for step in range(1, 121):
        basis = np.linalg.qr(spectrum[:, None] * basis + noise(step, basis))[0]
        if step > 100 and sine(basis, k) > scale.acc:
            return False
    return True


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """Steps and noise by p."""
    rows = [["p", "steps, median (least to most)", "best q predicts (q)", "Theorem 2.4", "noise: Theorem 2.4 allows",
             "Theorem 2.2", "towards u_(p+1), measured", "Gaussian, measured"]]  # fmt: skip
    for line, noise in zip(found["ranks"], found["noise"], strict=True):
        measured = f"{line['median']:.0f} ({line['least']} to {line['most']})"
        predicted = [f"{line['predicted']:.0f} ({line['q']:.0f})", f"{line['printed']:.0f}"]
        sizes = [number(noise[name]) for name in ("dependent", "improved", "towards", "gaussian")]
        rows.append([str(line["p"]), measured, *predicted, *sizes])
    return {"powerlaw": rows}


def powers(found: dict[str, Any]) -> tuple[float, float]:
    """Of k in the iterations of p = k and of p = 2 k."""
    k = [line["k"] for line in found["grown"]]
    return slope(k, [line["tight"] for line in found["grown"]]), slope(k, [line["wide"] for line in found["grown"]])


def figure(found: dict[str, Any]) -> Any:
    """Iterations against p, against k; noise against p."""
    title = f"Power law $i^{{-{found['alpha']:g}}}$, d = {found['d']}"
    drawn, axes = panels(1, 3, (12.6, 4.2), title)
    left, middle, right = axes[0]
    p = [line["p"] for line in found["ranks"]]
    left.loglog(p, [line["printed"] for line in found["ranks"]], "-", color=GREY, label="Theorem 2.4")
    left.loglog(
        p, [line["predicted"] for line in found["ranks"]], "--", color="black", label="best q, without constants"
    )
    left.loglog(p, [line["median"] for line in found["ranks"]], "o-", color=BLUE, ms=4, label="measured, median")
    left.fill_between(
        p, *([line[name] for line in found["ranks"]] for name in ("least", "most")), color=BLUE, alpha=0.2
    )
    left.set(title=f"k = {found['k']}, to {found['tol']:g}", xlabel="columns p", ylabel="iterations L")
    k = [line["k"] for line in found["grown"]]
    for name, label, color, power in zip(
        ("tight", "wide"), ("p = k", "p = 2k"), (ORANGE, BLUE), powers(found), strict=True
    ):
        values = [line[name] for line in found["grown"]]
        middle.loglog(k, values, "o-", color=color, ms=4, label=f"{label}: power {power:.2f}")
    middle.loglog(
        k,
        0.8 * found["grown"][0]["tight"] * np.array(k) / k[0],
        ":",
        color=GREY,
        label=r"$\propto k$ (claimed for p = k)",
    )
    middle.set(title=f"to {found['tol']:g}", xlabel="k", ylabel="iterations L")
    for name, label, style, color in (
        ("gaussian", "Gaussian, measured", "o-", BLUE),
        ("towards", r"towards $u_{p+1}$, measured", "s-", ORANGE),
        ("improved", "Theorem 2.2, q = max(k, p/2), constant 1", "--", "black"),
        ("dependent", "Theorem 2.4", "-", GREY),
    ):
        right.loglog(p, [line[name] for line in found["noise"]], style, color=color, ms=4, label=label)
    right.set(title=f"largest noise for a sine of {found['acc']:g}", xlabel="columns p", ylabel=r"$\|G\|$")
    axis_ticks(left, p)
    axis_ticks(middle, k)
    axis_ticks(right, p)
    low, high = right.get_ylim()
    right.set_ylim(low / 8, high)
    for axis in axes[0]:
        axis.title.set_fontsize(9.5)
        axis.legend(fontsize=7.5, frameon=False, loc="lower right" if axis is right else "best")
    return drawn
