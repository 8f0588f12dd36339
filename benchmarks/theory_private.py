"""Hardt and Price 2014, Theorems 1.3 and 1.4: the error of the private power method against what its bound names."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, sqrt
from typing import Any

import numpy as np

from benchmarks.paper_figures import panels
from benchmarks.paper_page import Rows, message
from benchmarks.theory_private_runs import DELTA, RATIO, TOP, errors, matrix, mechanism_of, release
from benchmarks.theory_runs import axis_ticks, number, slope
from npmdask.report.plots import BLUE, GREY, ORANGE
from npmdask.theory import ppm_error

CALIBRATIONS = {"paper": "printed noise", "exact": "exact noise"}
BASES = {"identity": "unit vectors, mu = d", "hadamard": "Hadamard, mu = 1"}
CLAIMED = {"epsilon": -1.0, "L": 0.5, "p": 0.5, "mu": 0.5, "d": 0.5}  # d: of unit vectors; Hadamard's: only logarithms


@dataclass(frozen=True)
class Scale:
    """``base``: d, k, p, L and epsilon where they do not vary; ``vary``: the values where they do."""

    base: dict[str, Any] = field(default_factory=lambda: {"d": 256, "k": 2, "p": 4, "L": 8, "epsilon": 1.0})
    vary: dict[str, tuple[float, ...]] = field(
        default_factory=lambda: {
            "epsilon": (0.25, 0.5, 1, 2, 4, 8),
            "L": (8, 16, 32, 64),
            "p": (2, 3, 4, 8, 16, 32),
            "d": (64, 128, 256, 512, 1024),
            "mu": (1, 4, 16, 64, 256),
        }
    )
    seeds: int = 9


FULL = Scale()
SMALL = Scale(
    base={"d": 64, "k": 2, "p": 4, "L": 6, "epsilon": 1.0},
    vary={"epsilon": (0.5, 2, 8), "L": (6, 24), "p": (4, 16), "d": (32, 256), "mu": (1, 8, 64)},
    seeds=5,
)


def measure(scale: Scale) -> dict[str, Any]:
    """By what varies: a line for every basis and calibration."""
    found: dict[str, Any] = {}
    for name, values in scale.vary.items():
        bases = ("any",) if name == "mu" else tuple(BASES)
        found[name] = [
            _line(name, values, basis, calibration, scale) for basis in bases for calibration in CALIBRATIONS
        ]
        message(f"{name}: {[line['power'] for line in found[name]]}")
    return {"base": scale.base, "seeds": scale.seeds, "delta": DELTA, "top": TOP, "ratio": RATIO, "lines": found}


def _line(name: str, values: tuple[float, ...], basis: str, calibration: str, scale: Scale) -> dict[str, Any]:
    points = [_point(scale.base | {name: value}, basis, calibration, scale.seeds) for value in values]
    line = {key: [point[key] for point in points] for key in points[0]}
    return line | {
        "basis": basis,
        "calibration": calibration,
        "x": list(values),
        "power": slope(values, line["error"]),
        "formula_power": slope(values, line["formula"]),
    }


def _point(case: dict[str, Any], basis: str, calibration: str, seeds: int) -> dict[str, float]:
    """Medians over starts and noise."""
    d, k, p, releases = (int(case[name]) for name in ("d", "k", "p", "L"))
    spread = {"identity": 1, "hadamard": d}.get(basis) or int(d // case["mu"])
    given = matrix(d, k, spread)
    mechanism = mechanism_of(case["epsilon"], releases, (d, p), calibration=calibration)
    found = []
    for seed in range(seeds):
        released = release(given, k, p, mechanism, seed)
        found.append((*errors(given, k, released), released.largest_entry, max(released.stddevs)))
    last, answer, entry, stddev = np.median(found, axis=0)
    return {
        "error": float(last),
        "answer": float(answer),
        "entry": float(entry),
        "stddev": float(stddev),
        "bound": ppm_error(given.spectrum, [float(stddev)] * releases, d=d, k=k, p=p).value,
        "formula": theorem(case, given.spectrum, float(entry)),
        "coherent_formula": theorem(case, given.spectrum, sqrt(given.coherence * log(d) / d)),
    }


def theorem(case: dict[str, Any], spectrum: np.ndarray, entry: float) -> float:
    """Theorem 1.3 with the constant 1: sigma entry sqrt(d log L) / gap, times sqrt(p) / (sqrt(p) - sqrt(k - 1)).

    ``entry``: max |X_ij|; Theorem 1.4 has sqrt(mu log d / d) in its place.
    """
    d, k, p, releases = (int(case[name]) for name in ("d", "k", "p", "L"))
    sigma = sqrt(4 * p * releases * log(1 / DELTA)) / case["epsilon"]
    gap = float(spectrum[k - 1] - spectrum[k])
    return sigma * entry * sqrt(d * log(releases)) / gap * sqrt(p) / (sqrt(p) - sqrt(k - 1))


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """Powers, and errors beside the theorems."""
    powers = [["error against", "basis", "power, printed noise", "exact noise", "the bound's",
               "error / Theorem 1.3", "error / Theorem 1.4"]]  # fmt: skip
    for name, lines in found["lines"].items():
        for basis in dict.fromkeys(line["basis"] for line in lines):
            own = [line for line in lines if line["basis"] == basis]
            span = f"{name} = {number(own[0]['x'][0])} to {number(own[0]['x'][-1])}"
            measured = [f"{line['power']:+.2f}" for line in own]
            ratios = [
                _range(np.concatenate([np.divide(line["error"], line[key]) for line in own]))
                for key in ("formula", "coherent_formula")
            ]
            powers.append([span, BASES.get(basis, "varied"), *measured, f"{own[0]['formula_power']:+.2f}", *ratios])
    return {"private": powers}


def _range(values: np.ndarray) -> str:
    return f"{values.min():.2f} to {values.max():.2f}"


def figure(found: dict[str, Any]) -> Any:
    """A panel for everything that varies."""
    base = ", ".join(f"{name} = {value:g}" for name, value in found["base"].items())
    drawn, axes = panels(1, len(found["lines"]), (15.5, 4.4), f"Private power method: {base} where they do not vary")
    colors = {"identity": ORANGE, "hadamard": BLUE, "any": BLUE}
    for axis, (name, lines) in zip(axes[0], found["lines"].items(), strict=True):
        for line in lines:
            style = "o-" if line["calibration"] == "paper" else "s--"
            label = f"{BASES.get(line['basis'], 'mu varies')}, {CALIBRATIONS[line['calibration']]}"
            axis.loglog(line["x"], line["error"], style, color=colors[line["basis"]], ms=4, label=label)
        x, first = np.array(line["x"], dtype=float), max(line["error"][0] for line in lines)
        power = CLAIMED[name]
        axis.loglog(x, 1.5 * first * (x / x[0]) ** power, ":", color=GREY)
        axis.set(xlabel=name, title=f"against {name}; dotted: power {power:g}")
        axis.title.set_fontsize(9.5)
        axis_ticks(axis, line["x"])
    axes[0, 0].set_ylabel(r"$\|(I - X_L X_L^T) U_k\|$, median")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return drawn
