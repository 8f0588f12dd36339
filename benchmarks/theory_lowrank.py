"""Hardt and Price 2014, Corollaries 4.3 and 4.6: what the error of the private factors B = X_L Y^T is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.paper_figures import panels
from benchmarks.paper_page import Rows
from benchmarks.theory_private_runs import DELTA, Matrix, Released, matrix, mechanism_of, release
from benchmarks.theory_runs import axis_ticks, number
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.report.plots import BLUE, GREY, ORANGE
from npmdask.theory import lowrank_error

TAILS = ("falling", "flat")
CURVES = (
    ("error", r"$\|A - X_L Y^T\|$", "o-", BLUE),
    ("residual", r"$\|(I - XX^T)A\|$", "s:", "#92c5de"),
    ("noise", r"$\|G_{L+1}\|$", "^:", "#f4a582"),
    ("rank_k", "symmetric, rank k", "v-", ORANGE),
)


@dataclass(frozen=True)
class Scale:
    """``steps``: L; one release more makes Y."""

    d: int = 256
    k: int = 2
    steps: int = 8
    epsilons: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4)
    seeds: int = 9

    @property
    def p(self) -> int:
        return 2 * self.k


FULL = Scale()
SHOWN = 2  # every second epsilon is in the table, all are in the figure
SMALL = Scale(d=64, steps=6, epsilons=(0.05, 0.5, 4), seeds=4)


def measure(scale: Scale) -> dict[str, Any]:
    """By spectrum and epsilon: means over starts and noise of every part, in units of s_{k+1}."""
    facts = {name: getattr(scale, name) for name in ("d", "k", "p", "steps", "seeds")}
    lines = [
        {"tail": tail} | _line(matrix(scale.d, scale.k, scale.d, tail), epsilon, scale)
        for tail in TAILS
        for epsilon in scale.epsilons
    ]
    return facts | {"delta": DELTA, "lines": lines}


def _line(given: Matrix, epsilon: float, scale: Scale) -> dict[str, float]:
    mechanism = mechanism_of(epsilon, scale.steps + 1, (scale.d, scale.p), calibration="exact")
    found, stddevs = [], []
    for seed in range(scale.seeds):
        released = release(given, scale.k, scale.p, mechanism, seed)
        found.append(parts(given, scale.k, released))
        stddevs.append(released.stddevs)
    means = {name: float(np.mean([part[name] for part in found])) for name in found[0]}
    largest = np.max(stddevs, axis=0).tolist()
    bound = lowrank_error(given.spectrum, largest, d=scale.d, k=scale.k, p=scale.p)
    return means | {
        "epsilon": epsilon,
        "bound": bound.value / given.spectrum[scale.k],
        "bound_holds_anything": bool(bound.valid),
        "used": max(part["error"] / float(np.hypot(part["residual"], part["noise"])) for part in found),
        "used_of_three": max(part["residual"] / (1 + part["turned"]) for part in found),
    }


def parts(given: Matrix, k: int, released: Released) -> dict[str, float]:
    """||A - B||, ||(I - X X^T) A||, ||G_{L+1}||, alpha s_1 (eq. 3), all over s_{k+1}; B of rank k and symmetric too.

    A - B = (I - X X^T) A - X G^T, whose parts have orthogonal ranges: ||A - B||^2 <= ||(I - X X^T) A||^2 + ||G||^2,
    where the paper adds the norms.
    """
    basis, product, unit = released.blocks[-2], released.products[-1], given.spectrum[k]
    noise = product - given.dense @ basis
    residual = given.dense - basis @ (basis.T @ given.dense)
    symmetric = symmetrised(basis, product, k)
    alpha = max_sin_theta(basis, given.basis[:, :k])
    return {
        "error": _norm(given.dense - basis @ product.T) / unit,
        "residual": _norm(residual) / unit,
        "noise": _norm(noise) / unit,
        "turned": alpha * float(given.spectrum[0]) / unit,
        "rank_k": _norm(given.dense - symmetric) / unit,
    }


def symmetrised(basis: np.ndarray, product: np.ndarray, k: int) -> np.ndarray:
    """X (X^T Y + Y^T X) X^T / 2 with its k values of largest size: made of what was released, at no cost."""
    inner = basis.T @ product
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    kept = np.argsort(-np.abs(values))[:k]
    leading = basis @ vectors[:, kept]
    return np.asarray(leading * values[kept] @ leading.T)


def _norm(matrix_: np.ndarray) -> float:
    return float(np.linalg.norm(matrix_, 2))


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """The parts of the error for some epsilon."""
    rows = [["tail", "epsilon", "error of B", "residual", "last noise", "root of their squares", "eq. 3 and noise",
             "B of rank k"]]  # fmt: skip
    for line in found["lines"][::SHOWN]:
        error, residual, noise = line["error"], line["residual"], line["noise"]
        values = (error, residual, noise, float(np.hypot(residual, noise)), 1 + line["turned"] + noise, line["rank_k"])
        rows.append([line["tail"], number(line["epsilon"]), *(f"{value:.3f}" for value in values)])
    return {"lowrank": rows}


def figure(found: dict[str, Any]) -> Any:
    """Parts against epsilon, of both spectra."""
    title = f"Private low-rank factors, d = {found['d']}, k = {found['k']}, p = 2k: means, in units of $s_{{k+1}}$"
    drawn, axes = panels(1, 2, (9.6, 4.4), title)
    for axis, tail in zip(axes[0], TAILS, strict=True):
        lines = [line for line in found["lines"] if line["tail"] == tail]
        epsilons = [line["epsilon"] for line in lines]
        roots = [float(np.hypot(line["residual"], line["noise"])) for line in lines]
        three = [1 + line["turned"] + line["noise"] for line in lines]
        axis.loglog(epsilons, three, "-", color=GREY, label=r"eq. 3: $s_{k+1} + \alpha s_1 + \|G_{L+1}\|$")
        axis.loglog(epsilons, roots, "--", color="black", label=r"root of squares of residual and noise")
        for name, label, style, color in CURVES:
            axis.loglog(epsilons, [line[name] for line in lines], style, color=color, ms=4, lw=1.5, label=label)
        axis.set(xlabel="epsilon", ylabel=r"norm / $s_{k+1}$", title=f"{tail} tail")
    for axis in axes[0]:
        axis_ticks(axis, epsilons)
        axis.title.set_fontsize(9.5)
        axis.legend(fontsize=7.5, frameon=False)
    return drawn
