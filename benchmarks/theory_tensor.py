"""Wang and Anandkumar 2016, Theorem 2.2: noise that keeps every printed condition and hides the component (ERR-24).

Levels where half of the trials succeed are measured already (benchmarks/paper_tensor.py, docs/papers/tensors.md) and
reused here; added is what happens at one fixed size of the noise as d grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from benchmarks.paper_figures import panels
from benchmarks.paper_page import Rows, kept
from benchmarks.tensor_levels import power_law
from benchmarks.tensor_noise import NEAR, components
from benchmarks.theory_runs import axis_ticks
from npmdask.report.plots import BLUE, GREY, ORANGE
from npmdask.theory.tensor import hiding_product, tolerated_noise


@dataclass(frozen=True)
class Scale:
    """``size``: of the noise, whatever d is; ``factor``: of 1 / sqrt(d) in the other runs."""

    widths: tuple[int, ...] = (100, 400, 1600, 6400, 16000)
    size: float = 0.1
    factor: float = 1.5
    restarts: int = 50
    seeds: int = 20


FULL = Scale()
SMALL = Scale(widths=(50, 8000), restarts=20, seeds=4)


def found_by(d: int, size: float, restarts: int, seed: int) -> bool:
    """Whether Algorithm 1 finds v with a cosine of NEAR, k = 1; lambda = 1, v and w the first two unit vectors."""
    v, w = np.eye(d, 2).T
    vectors = components(lambda block: hiding_product(block, v, w, size), d, 1, seed=seed, restarts=restarts)
    return bool(vectors[0, 0] >= NEAR)


def measure(scale: Scale) -> dict[str, Any]:
    """How many of the trials succeed, by d."""
    lines = []
    for d in scale.widths:
        small = scale.factor / sqrt(d)
        counts = [
            sum(found_by(d, size, scale.restarts, seed) for seed in range(scale.seeds)) for size in (scale.size, small)
        ]
        bound = tolerated_noise("weakly correlated", 1.0, d=d, k=1, constants=(1.0, scale.size, scale.factor))
        lines.append({"d": d, "fixed": counts[0], "falling": counts[1], "small": small, "sound": bound.value})
    return {name: getattr(scale, name) for name in ("size", "factor", "restarts", "seeds")} | {"lines": lines}


def levels() -> dict[str, list[float]]:
    """From docs/papers/tensors.md: the largest weakly correlated noise that half of the trials survive, by d; k = 1."""
    line: dict[str, list[float]] = kept("paper_tensor")["noise"]["weak"]
    return line


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """By d."""
    seeds = found["seeds"]
    rows = [["d", f"found at norm {found['size']:g}", f"found at norm {found['factor']:g} / sqrt(d)"]]
    for line in found["lines"]:
        rows.append([f"{line['d']:,}", f"{line['fixed']} of {seeds}", f"{line['falling']} of {seeds}"])
    return {"tensor": rows}


def figure(found: dict[str, Any]) -> Any:
    """Success against d; the levels that were measured before."""
    drawn, axes = panels(1, 2, (9.6, 4.2), "Noise that hides one component: $E(v, \\cdot, \\cdot) = 0$, k = 1")
    left, right = axes[0]
    d = [line["d"] for line in found["lines"]]
    for name, label, color, style in (
        ("fixed", f"$\\|E\\|$ = {found['size']:g}", ORANGE, "s-"),
        ("falling", f"$\\|E\\|$ = {found['factor']:g} / $\\sqrt{{d}}$", BLUE, "o-"),
    ):
        share = [line[name] / found["seeds"] for line in found["lines"]]
        left.semilogx(d, share, style, color=color, ms=4, label=label)
    left.set(xlabel="d", ylabel="share of trials that find v", ylim=(-0.04, 1.04))
    left.set_title(f"{found['restarts']} starts, {found['seeds']} trials", fontsize=9.5)
    axis_ticks(left, d)
    line = levels()
    power = power_law(line["x"], line["value"], line["stderr"])
    right.loglog(line["x"], line["value"], "o-", color=BLUE, ms=4, label=f"half of the trials: power {power}")
    right.axhline(line["value"][0], color=GREY, ls="--", label="claimed: whatever d is")
    x = np.array(line["x"])
    right.loglog(x, 0.8 * line["value"][0] * np.sqrt(x[0] / x), ":", color=GREY, label=r"$\propto d^{-1/2}$")
    right.set(xlabel="d", ylabel=r"largest $\|E\| / \lambda$")
    right.set_title("from docs/papers/tensors.md, 10 starts", fontsize=9.5)
    axis_ticks(right, line["x"])
    for axis in axes[0]:
        axis.legend(fontsize=7.5, frameon=False)
    return drawn
