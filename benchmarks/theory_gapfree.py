"""Balcan, Du, Wang and Yu 2016, Theorem 2.3: without a gap the residual converges, and the angle does not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.paper_figures import panels
from benchmarks.paper_page import Rows
from benchmarks.theory_runs import (
    axis_ticks,
    first_at_most,
    gaussian_noise,
    iterates,
    largest,
    number,
    sine,
    slope,
    towards_noise,
)
from npmdask.core.numerics.subspaces import Block
from npmdask.report.plots import BLUE, GREY, ORANGE
from npmdask.theory import gapfree_iterations, gapfree_noise

MULTIPLES = (1.1, 1.5, 2.0, 4.0)  # c: k - 1 values are 1 + c epsilon, all others 1; the worst of them counts


@dataclass(frozen=True)
class Scale:
    """``accs``: epsilon of the theorem; ``watched``: steps of the runs whose angle is watched."""

    d: int = 100
    k: int = 5
    accs: tuple[float, ...] = (0.025, 0.05, 0.1, 0.2, 0.4)
    watched: int = 100
    acc: float = 0.1
    seeds: int = 9
    noise_seeds: int = 3


FULL = Scale()
SMALL = Scale(d=40, k=3, accs=(0.1, 0.2, 0.4), watched=50, seeds=3, noise_seeds=1)


def tied(d: int, k: int) -> np.ndarray:
    """Falling from 2 to 1.2, then s_k = s_{k+1} = 1, 3 k times, then falling from 0.9 to 0.1."""
    return np.concatenate([np.linspace(2.0, 1.2, k - 1), np.ones(3 * k), np.linspace(0.9, 0.1, d - 4 * k + 1)])


def hard(d: int, k: int, acc: float, multiple: float) -> np.ndarray:
    """k - 1 values that lie just so much above all others that they are wanted: 1 + multiple acc."""
    return np.concatenate([np.full(k - 1, 1 + multiple * acc), np.ones(d - k + 1)])


def excess(spectrum: np.ndarray, basis: Block, k: int) -> float:
    """||(I - X X^T) A||_2 / s_{k+1} - 1; negative where more than k columns leave less than s_{k+1}."""
    values = basis * spectrum[:, None]
    gram = np.diag(spectrum**2) - values @ values.T
    return float(np.sqrt(max(np.linalg.eigvalsh(gram)[-1], 0.0)) / spectrum[k]) - 1


def measure(scale: Scale) -> dict[str, Any]:
    """Watched runs by p and noise; iterations by epsilon; noise by epsilon."""
    facts = {name: getattr(scale, name) for name in ("d", "k", "acc", "seeds", "watched")}
    return facts | {
        "runs": [_watched(p, noisy, scale) for p in (scale.k, 2 * scale.k) for noisy in (False, True)],
        "steps": [_steps(acc, scale) for acc in scale.accs],
        "noise": [_noise(acc, scale) for acc in scale.accs],
    }


def _watched(p: int, noisy: bool, scale: Scale) -> dict[str, Any]:
    """Excess and sine by step; noise of the size that the theorem allows with the constant 1."""
    spectrum, k = tied(scale.d, scale.k), scale.k
    allowed = gapfree_noise(scale.acc, 1.0, scale.d, k, p).value
    found = []
    for seed in range(scale.seeds):
        noise = gaussian_noise(allowed.whole, allowed.inside, k, seed) if noisy else None
        blocks = list(islice(iterates(spectrum, k, p, seed, noise), scale.watched + 1))
        found.append([[excess(spectrum, block, k) for block in blocks], [sine(block, k) for block in blocks]])
    residuals, sines = np.array(found).transpose(1, 0, 2)
    half = scale.watched // 2
    return {
        "p": p,
        "noise": allowed.whole if noisy else 0.0,
        "excess": np.median(residuals, axis=0).tolist(),
        "sine": np.median(sines, axis=0).tolist(),
        "worst_excess": float(residuals[:, half:].max()),
        "least_sine": float(sines[:, half:].min()),
        "needed": float(np.median([first_at_most(row, scale.acc) or np.inf for row in residuals])),
    }


def _steps(acc: float, scale: Scale) -> dict[str, Any]:
    """Median iterations until the residual is (1 + acc) s_{k+1}, p = k: of the hardest spectrum and of the tied one."""
    d, k = scale.d, scale.k
    counts = {c: _count(hard(d, k, acc, c), acc, scale) for c in MULTIPLES}
    hardest = max(counts, key=lambda c: counts[c])
    theory = gapfree_iterations(acc, d).value
    return {
        "acc": acc,
        "hard": counts[hardest],
        "multiple": hardest,
        "tied": _count(tied(d, k), acc, scale),
        "theory": theory,
    }


def _count(spectrum: np.ndarray, acc: float, scale: Scale) -> float:
    found = []
    for seed in range(scale.seeds):
        blocks = islice(iterates(spectrum, scale.k, scale.k, seed), int(40 / acc))
        found.append(next(step for step, b in enumerate(blocks) if excess(spectrum, b, scale.k) <= acc))
    return float(np.median(found))


def _noise(acc: float, scale: Scale) -> dict[str, Any]:
    """The largest ||G|| that keeps the residual at (1 + acc) s_{k+1}, p = k; of the hardest spectrum."""
    found: dict[str, float] = {}
    for kind, seeds in (("towards", 1), ("gaussian", scale.noise_seeds)):
        levels = [
            largest(partial(_keeps, hard(scale.d, scale.k, acc, c), acc, kind, seed, scale), 1e-5, acc, 0.03)
            for c in MULTIPLES
            for seed in range(seeds)
        ]
        found[kind] = min(levels)
    allowed = gapfree_noise(acc, 1.0, scale.d, scale.k, scale.k).value.whole
    return {"acc": acc, "allowed": allowed, **found}


def _keeps(spectrum: np.ndarray, acc: float, kind: str, seed: int, scale: Scale, g: float) -> bool:
    """Whether the residual is small at ten points of the second half of 8 / acc steps, from the leading vectors."""
    d, k = scale.d, scale.k
    noise = gaussian_noise(g, g, k, seed) if kind == "gaussian" else towards_noise(spectrum, g, 0.0, k - 1, d - 1)
    basis, count = np.eye(d, k), int(8 / acc)
    checked = set(np.linspace(count // 2, count, 10).astype(int).tolist())
    for step in range(1, count + 1):
        basis = np.linalg.qr(spectrum[:, None] * basis + noise(step, basis))[0]
        if step in checked and excess(spectrum, basis, k) > acc:
            return False
    return True


def powers(found: dict[str, Any]) -> dict[str, float]:
    """Of epsilon: in the steps of the hardest spectrum and of the theorem, and in the noise."""
    accs = [line["acc"] for line in found["steps"]]
    steps = {name: slope(accs, [line[name] for line in found["steps"]]) for name in ("hard", "theory")}
    return steps | {name: slope(accs, [line[name] for line in found["noise"]]) for name in ("towards", "gaussian")}


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """Steps and noise by epsilon."""
    rows = [["epsilon", "ln(d / epsilon) / epsilon", "steps, hardest spectrum", "noise: epsilon^2 s_(k+1)",
             "measured, pushed", "measured, Gaussian"]]  # fmt: skip
    for line, noise in zip(found["steps"], found["noise"], strict=True):
        sizes = (number(noise[name]) for name in ("allowed", "towards", "gaussian"))
        rows.append([number(line["acc"]), f"{line['theory']:.0f}", f"{line['hard']:.0f}", *sizes])
    power = powers(found)
    rows.append(["power of epsilon", f"{power['theory']:+.2f}", f"{power['hard']:+.2f}", "+2.00",
                 f"{power['towards']:+.2f}", f"{power['gaussian']:+.2f}"])  # fmt: skip
    return {"gapfree": rows}


def figure(found: dict[str, Any]) -> Any:
    """Residual and angle by step; iterations and noise by epsilon."""
    drawn, axes = panels(1, 3, (12.6, 4.2), f"No gap: $s_k = s_{{k+1}}$, d = {found['d']}, k = {found['k']}")
    left, middle, right = axes[0]
    for run in found["runs"]:
        color, style = (ORANGE if run["p"] == found["k"] else BLUE), "--" if run["noise"] else "-"
        label = f"p = {run['p']}, {'noise' if run['noise'] else 'no noise'}"
        left.semilogy(np.maximum(run["excess"], 1e-6), style, color=color, lw=1.5, label=label)
        middle.plot(run["sine"], style, color=color, lw=1.5, label=label)
    left.axhline(found["acc"], color=GREY, ls=":", label=f"epsilon = {found['acc']:g}")
    left.set(title="residual", xlabel="steps l", ylabel=r"$\|(I - XX^T)A\| / s_{k+1} - 1$", ylim=(1e-5, None))
    middle.set(title="angle", xlabel="steps l", ylabel=r"$\sin\theta_k(U, X_l)$", ylim=(0, 1.02))
    accs = [line["acc"] for line in found["noise"]]
    for name, label, style, color in (
        ("gaussian", "Gaussian, measured", "o-", BLUE),
        ("towards", "pushed, measured", "s-", ORANGE),
        ("allowed", r"$\epsilon^2 s_{k+1}$ (Theorem 2.3)", "-", GREY),
    ):
        right.loglog(accs, [line[name] for line in found["noise"]], style, color=color, ms=4, label=label)
    right.set(title="largest noise that is borne, hardest spectrum", xlabel=r"$\epsilon$", ylabel=r"$\|G\|$")
    axis_ticks(right, accs)
    for axis in axes[0]:
        axis.title.set_fontsize(9.5)
        axis.legend(fontsize=7.5, frameon=False)
    return drawn
