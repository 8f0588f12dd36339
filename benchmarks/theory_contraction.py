"""Hardt and Price 2014, Theorem 2.4: tan theta_k step by step, its plateau under noise, and the noise that is borne."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import hypot, inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from benchmarks.paper_figures import panels
from benchmarks.paper_page import Rows
from benchmarks.theory_runs import (
    Noise,
    axis_ticks,
    first_at_most,
    gaussian_noise,
    iterates,
    largest,
    number,
    tangent,
    towards_noise,
)
from npmdask.report.plots import BLUE, GREY, ORANGE
from npmdask.theory import npm_error_recursion, npm_iterations, npm_max_noise, npm_plateau

TIMES = 5  # as many steps as the theorem needs are watched: it speaks of all l >= L
KINDS = ("none", "Gaussian", "towards u_(p+1)")
SHAPES = ("step", "falling")


@dataclass(frozen=True)
class Scale:
    """``ratio``: s_{k+1} / s_k. ``acc``: tan theta_k wanted; ``accs``: the same where the largest noise is asked."""

    d: int = 200
    k: int = 5
    ratio: float = 0.8
    acc: float = 0.1
    seeds: int = 20
    accs: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4)
    tolerance_seeds: int = 5


FULL = Scale()
SMALL = Scale(d=30, k=2, ratio=0.6, seeds=2, accs=(0.1, 0.2), tolerance_seeds=1)


def spectrum_of(scale: Scale, shape: str = "step") -> np.ndarray:
    """``step``: 1, k times, then ratio, the hardest for its gap; ``falling``: from 1.5 to 1, then from ratio to 0.1."""
    first, last = (1.0, scale.ratio) if shape == "step" else (1.5, 0.1)
    return np.concatenate([np.linspace(first, 1.0, scale.k), np.linspace(scale.ratio, last, scale.d - scale.k)])


def measure(scale: Scale) -> dict[str, Any]:
    """Runs by spectrum, p and kind of noise; and the largest noise of every kind."""
    cases = [(shape, p, kind) for shape in SHAPES for p in (scale.k, 2 * scale.k) for kind in KINDS]
    facts = {name: getattr(scale, name) for name in ("d", "k", "ratio", "acc", "seeds")}
    return facts | {
        "runs": [_runs(scale, *case) for case in cases],
        "tolerance": tolerances(scale),
        "start": start_tolerances(scale),
    }


def noise_of(spectrum: np.ndarray, kind: str, g: float, g_u: float, k: int, p: int, seed: int) -> Noise | None:
    """Noise with ||G|| <= ``g`` and ||U^T G|| <= ``g_u``."""
    if kind == "none":
        return None
    if kind == "Gaussian":
        return gaussian_noise(g, g_u, k, seed)
    inside = min(g, g_u) / sqrt(2)
    return towards_noise(spectrum, sqrt(g * g - inside * inside), inside, k, p)


def allowed(scale: Scale, tan0: float) -> tuple[float, float, int]:
    """||G||, ||U^T G|| and L of the theorem from this start."""
    noise = npm_max_noise(1.0, scale.ratio, scale.acc, 1 / hypot(1, tan0)).value
    return noise.whole, noise.inside, int(npm_iterations(tan0, scale.acc, 1.0, scale.ratio).value)


class Run(NamedTuple):
    """tan theta_k and the constant-free bound after 0, 1, ... steps, and L of the theorem."""

    tangents: np.ndarray
    bounds: np.ndarray
    steps: int


def _run(scale: Scale, shape: str, p: int, kind: str, seed: int) -> Run:
    """TIMES L steps from a random start, with as much noise as the theorem allows from it."""
    spectrum, k = spectrum_of(scale, shape), scale.k
    tan0 = tangent(next(iterates(spectrum, k, p, seed)), k)
    g, g_u, steps = allowed(scale, tan0)
    noise = noise_of(spectrum, kind, g, g_u, k, p, seed)
    blocks = islice(iterates(spectrum, k, p, seed, noise), TIMES * steps + 1)
    tangents = np.array([tangent(block, k) for block in blocks])
    g, g_u = (0.0, 0.0) if noise is None else (g, g_u)
    return Run(tangents, recursion(tan0, 1.0, scale.ratio, g, g_u, len(tangents)), steps)


def _runs(scale: Scale, shape: str, p: int, kind: str) -> dict[str, Any]:
    """Medians over starts, and how near any of them came to what the theorem and the recursion promise."""
    runs = [_run(scale, shape, p, kind, seed) for seed in range(scale.seeds)]
    after = [float(run.tangents[run.steps :].max()) for run in runs]
    theorems = [theorem(run.tangents[0], scale.ratio, scale.acc, len(run.tangents)) for run in runs]
    shown = min(int(1.6 * max(run.steps for run in runs)), *(len(run.tangents) for run in runs))
    curves = {
        "median": [run.tangents for run in runs],
        "recursion": [run.bounds for run in runs],
        "theorem": theorems,
    }
    return {
        "spectrum": shape,
        "p": p,
        "noise": kind,
        "steps": [min(run.steps for run in runs), max(run.steps for run in runs)],
        "needed": float(np.median([first_at_most(run.tangents.tolist(), scale.acc) for run in runs])),
        "worst_after": max(after),
        "plateau": float(np.median(after)),
        "recursion_plateau": float(np.median([run.bounds[-1] for run in runs])),
        "over_recursion": max(_most(run.tangents, run.bounds) for run in runs),
        "over_theorem": max(_most(run.tangents, bound) for run, bound in zip(runs, theorems, strict=True)),
        "rate": rate(runs[0].tangents) if kind == "none" else None,
    } | {name: np.median([line[:shown] for line in lines], axis=0).tolist() for name, lines in curves.items()}


def _most(tangents: np.ndarray, bounds: np.ndarray) -> float:
    """The largest share of a bound that a step uses; where the bound is below 1e-10 rounding is seen."""
    seen = bounds[1:] > 1e-10
    return float((tangents[1:][seen] / bounds[1:][seen]).max())


def recursion(tan0: float, s_k: float, s_k1: float, g: float, g_u: float, count: int) -> np.ndarray:
    """The constant-free bound after 0, 1, ... steps."""
    bounds = [tan0]
    for _ in range(count - 1):
        bounds.append(npm_error_recursion(bounds[-1], s_k, s_k1, g, g_u).value if bounds[-1] < inf else inf)
    return np.array(bounds)


def theorem(tan0: float, ratio: float, acc: float, count: int) -> np.ndarray:
    """max(acc, c^l tan0), c = max(acc, ratio^(1/4)): Lemma 2.3 applied l times."""
    return np.maximum(acc, max(acc, ratio**0.25) ** np.arange(count) * tan0)


def rate(tangents: np.ndarray) -> float:
    """The factor of a step where it has settled and rounding is not reached: the geometric mean over half the way."""
    open_ = tangents[tangents > 1e-10]
    half = open_[len(open_) // 2 :]
    return float((half[-1] / half[0]) ** (1 / (len(half) - 1)))


def tolerances(scale: Scale) -> list[dict[str, Any]]:
    """By acc: the largest ||G|| with tan theta_k <= acc at the end, from a start that is near; over what is allowed.

    The start is X = U, p = k: only the noise of all later steps is asked about. The theorem allows acc gap / 5.
    """
    spectrum, lines = spectrum_of(scale), []
    for acc in scale.accs:
        allowed_ = npm_max_noise(1.0, scale.ratio, acc, 1.0).value.whole
        line: dict[str, Any] = {"acc": acc, "allowed": allowed_, "recursion": _recursion_tolerance(acc, scale)}
        for name, kind in (("gaussian", "Gaussian"), ("towards", KINDS[2])):
            found = [
                largest(partial(_stays, spectrum, scale, kind, acc, seed), 1e-4, 1.0)
                for seed in range(scale.tolerance_seeds)
            ]
            line[name] = float(np.median(found))
        lines.append(line)
    return lines


def _stays(spectrum: np.ndarray, scale: Scale, kind: str, acc: float, seed: int, g: float) -> bool:
    """Whether tan theta_k <= acc in every one of 150 steps, with ||G|| <= g, all of it outside of U where it pushes."""
    k = scale.k
    noise = gaussian_noise(g, g, k, seed) if kind == "Gaussian" else towards_noise(spectrum, g, 0.0, k, k)
    basis, values = np.eye(scale.d, scale.k), spectrum[:, None]
    for step in range(1, 151):
        basis = np.linalg.qr(values * basis + noise(step, basis))[0]
        if tangent(basis, scale.k) > acc:
            return False
    return True


def _recursion_tolerance(acc: float, scale: Scale) -> float:
    """The largest ||V^T G|| whose fixed point of the recursion is at most acc, with nothing inside of U."""
    return largest(lambda g: npm_plateau(1.0, scale.ratio, g, 0.0).value <= acc, 1e-6, 1e-2, 1e-4)


def start_tolerances(scale: Scale) -> list[dict[str, Any]]:
    """By p: the largest ||U^T G|| from which a random start still converges, over gap cos theta_k(U, X_0).

    The noise takes away from the direction that the start has least of; the theorem allows a fifth of gap cos theta_0.
    """
    spectrum, gap, lines = spectrum_of(scale), 1.0 - scale.ratio, []
    for p in (scale.k, 2 * scale.k):
        ratios = []
        for seed in range(scale.tolerance_seeds):
            tan0 = tangent(next(iterates(spectrum, scale.k, p, seed)), scale.k)
            borne = largest(partial(_recovers, spectrum, scale, p, seed), 1e-6, gap)
            ratios.append(borne / (gap / hypot(1, tan0)))
        lines.append({"p": p, "least": min(ratios), "median": float(np.median(ratios)), "allowed": 0.2})
    return lines


def _recovers(spectrum: np.ndarray, scale: Scale, p: int, seed: int, g_u: float) -> bool:
    """Whether tan theta_k <= 1 is reached within 150 steps, with noise inside of U only."""
    blocks = islice(iterates(spectrum, scale.k, p, seed, towards_noise(spectrum, 0.0, g_u, scale.k, p)), 151)
    return any(tangent(block, scale.k) <= 1 for block in blocks)


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """The worst of all kinds of noise for each spectrum and p; what is tolerated at the end."""
    rows = [["spectrum", "p", "L of the theorem", "steps measured", f"largest tan for L <= l <= {TIMES} L",
             "largest measured / recursion", "measured / theorem", "factor of a step"]]  # fmt: skip
    for spectrum, p in dict.fromkeys((run["spectrum"], run["p"]) for run in found["runs"]):
        own = [run for run in found["runs"] if (run["spectrum"], run["p"]) == (spectrum, p)]
        low, high = own[0]["steps"]
        needed = [run["needed"] for run in own]
        worst = [max(run[name] for run in own) for name in ("worst_after", "over_recursion", "over_theorem")]
        factor = next(f"{run['rate']:.3f}" for run in own if run["rate"] is not None)
        facts = [spectrum, str(p), f"{low} to {high}", f"{min(needed):.0f} to {max(needed):.0f}"]
        rows.append([*facts, f"{worst[0]:.4f}", f"{worst[1]:.3f}", f"{worst[2]:.3f}", factor])
    borne = [["tan theta_k wanted", "theorem allows", "recursion allows", "pushed, measured", "Gaussian, measured"]]
    for line in found["tolerance"]:
        borne.append([number(line[name]) for name in ("acc", "allowed", "recursion", "towards", "gaussian")])
    return {"contraction": rows, "noise borne": borne}


def _tan(value: float) -> str:
    return f"{value:.1e}" if value < 1e-3 else f"{value:.4f}"


def figure(found: dict[str, Any]) -> Any:
    """tan theta_k against steps: without noise, with noise; and the noise that is borne."""
    title = f"Noisy power method, d = {found['d']}, k = {found['k']}, $s_{{k+1}}/s_k$ = {found['ratio']:g}: medians"
    drawn, axes = panels(1, 3, (12.6, 4.2), title)
    left, middle, right = axes[0]
    runs = {(run["p"], run["noise"]): run for run in found["runs"] if run["spectrum"] == "step"}
    k = found["k"]
    one = runs[k, "none"]
    left.semilogy(one["theorem"], "-", color=GREY, lw=1.4, label="Theorem 2.4, exponent 1/4")
    left.semilogy(one["recursion"], "k--", lw=1.2, label=r"recursion: $s_{k+1}/s_k$ a step")
    left.semilogy(one["median"], color=BLUE, lw=1.8, label="measured, p = k")
    left.semilogy(runs[2 * k, "none"]["median"], color=ORANGE, lw=1.8, label="measured, p = 2k")
    left.set(title="no noise", ylabel=r"$\tan\theta_k(U, X_l)$", ylim=(1e-8, None))
    run, gaussian = runs[k, KINDS[2]], runs[k, "Gaussian"]
    middle.semilogy(run["theorem"], "-", color=GREY, lw=1.4, label="Theorem 2.4")
    middle.semilogy(run["recursion"], "k--", lw=1.2, label="recursion")
    middle.semilogy(run["median"], color=ORANGE, lw=1.8, label=r"noise towards $u_{p+1}$")
    middle.semilogy(gaussian["median"], color=BLUE, lw=1.8, label="Gaussian noise")
    middle.set(title=f"p = k, as much noise as the theorem allows for {found['acc']:g}")
    accs = [line["acc"] for line in found["tolerance"]]
    for name, label, style, color in (
        ("gaussian", "Gaussian", "o-", BLUE),
        ("towards", r"towards $u_{p+1}$", "s-", ORANGE),
        ("recursion", "recursion", "--", "black"),
        ("allowed", "Theorem 2.4 allows", "-", GREY),
    ):
        right.loglog(accs, [line[name] for line in found["tolerance"]], style, color=color, ms=4, label=label)
    right.set(title="largest noise that keeps the angle", xlabel=r"$\tan\theta_k$ wanted", ylabel=r"$\|G\|$")
    for axis in (left, middle):
        axis.set(xlabel="steps l", xlim=(0, None))
    axis_ticks(right, accs)
    for axis in axes[0]:
        axis.title.set_fontsize(9.5)
        axis.legend(fontsize=7.5, frameon=False)
    return drawn
