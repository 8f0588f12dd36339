"""The figures of Duengler and Sanyal 2025, one command each: error or utility against n, d, eigengap, sigma and k.

    python -m benchmarks.paper_kdppca --figure 1a|1b|1c|2a|2b|2c|3|4 [--quick] [--trials N] [--relation NAME]

Writes ``FOLDER/figure-1a.csv`` and ``.svg`` and prints, as a table, what the paper says must be seen and whether it is.
k = 2, d = 200, lambda_1 = 10, epsilon = 1, delta = 0.01 are the paper's; its grids, lambda_2 (5 here), the n of Figures
1c, 2a, 2b, 3 and 4 (100,000 here), the k and d of Figure 3 and the sigma of the Gaussian data (1 here) are not printed.
``--quick``: 5 trials on smaller grids, minutes on two cores; in full 50 trials up to n = 10^6, hours.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.docs import ROOT
from benchmarks.kdppca_claims import CLAIMS, Curve
from benchmarks.kdppca_figures import draw
from benchmarks.kdppca_methods import DELTA, EPSILON, Method, methods
from benchmarks.paper_page import message, save, table
from benchmarks.stochastic_data import Stream, gaussian, signal_and_noise, spiked
from npmdask.linalg import Block

LAMBDA_1 = 10.0
CONFIDENCE = 0.95
FULL_TRIALS, QUICK_TRIALS = 50, 5
FIRST_SEED = 7_000_000  # of the trials; nothing was chosen on these: that was done on small ones
BESIDE = ("exact", "oja", "tight")  # drawn into every figure
GAUSS_AND_POWER = ("dp-gauss-1", "dp-gauss-2", "dp-power", "dp-gauss-1-paper", "dp-gauss-2-paper", "dp-power-paper")
FOUR = ("k-dp-pca", "k-dp-pca-large", *GAUSS_AND_POWER)
FOUR_MATCHED = (*FOUR, "tight-matched")
FIVE = ("k-dp-ojas", "k-dp-ojas-paper", *FOUR)


@dataclass(frozen=True)
class Setting:
    """One point of a figure: its data. lambda_1 ... lambda_k fall evenly from 10 to ``gap``."""

    n: int = 100_000
    d: int = 200
    k: int = 2
    gap: float = 5.0
    sigma: float = 0.025
    data: str = "signal"

    def stream(self, seed: int) -> Stream:
        """With one vector the records are spiked, +-lambda_1 v + z; with more, the signal is not random."""
        lambdas = np.linspace(LAMBDA_1, self.gap, self.k)
        if self.data == "gaussian":
            return gaussian(self.n, self.d, lambdas, self.sigma, seed)
        if self.k == 1:
            return spiked(self.n, self.d, LAMBDA_1, self.sigma, seed)
        return signal_and_noise(self.n, self.d, lambdas, self.sigma, seed)


@dataclass(frozen=True)
class Figure:
    """What varies along x, over which grid (and a smaller one), in panels of different k."""

    title: str
    vary: str
    grid: tuple[float, ...]
    quick: tuple[float, ...]
    names: tuple[str, ...]
    base: Setting = Setting()
    quick_base: Setting = Setting(n=20_000)
    panels: tuple[int, ...] = (2,)


@dataclass(frozen=True)
class Point:
    """A line of the CSV: mean, 95 % band (of the mean) and standard deviation over the trials."""

    figure: str
    vary: str
    n: int
    d: int
    k: int
    gap: float
    sigma: float
    data: str
    method: str
    promise: str
    trials: int
    zeta: float
    zeta_low: float
    zeta_high: float
    zeta_stddev: float
    utility: float
    utility_low: float
    utility_high: float
    utility_stddev: float

    @property
    def x(self) -> float:
        return float(getattr(self, self.vary))

    @property
    def setting(self) -> Setting:
        return Setting(n=self.n, d=self.d, k=self.k, gap=self.gap, sigma=self.sigma, data=self.data)


N_GRID, N_QUICK = tuple(round(10**e) for e in np.arange(3, 6.01, 0.5)), (1000, 3162, 10_000, 31_623, 100_000)
D_GRID, D_QUICK = (50, 100, 200, 400, 800), (50, 100, 200)
GAPS, GAPS_QUICK = (0.1, 0.3, 1.0, 2.0, 4.0, 6.0, 8.0, 9.0), (0.3, 1.0, 4.0, 9.0)
SIGMAS, SIGMAS_QUICK = tuple(10**e for e in np.arange(-3, 0.01, 0.5)), (0.001, 0.01, 0.1, 1.0)
ROUND, ROUND_QUICK = Setting(data="gaussian", sigma=1.0), Setting(data="gaussian", sigma=1.0, n=20_000)
FIGURES: dict[str, Figure] = {
    "1a": Figure("1a: against n, sigma = 0.025", "n", N_GRID, N_QUICK, FOUR_MATCHED),
    "1b": Figure(
        "1b: against n, sigma = 0.001", "n", N_GRID, N_QUICK, FOUR_MATCHED, Setting(sigma=0.001), Setting(sigma=0.001)
    ),
    "1c": Figure("1c: against d", "d", D_GRID, D_QUICK, FOUR_MATCHED),
    "2a": Figure("2a: against the eigengap", "gap", GAPS, GAPS_QUICK, FIVE),
    "2b": Figure("2b: against sigma", "sigma", SIGMAS, SIGMAS_QUICK, FIVE),
    "2c": Figure("2c: against n, sigma = 0.025", "n", N_GRID, N_QUICK, FIVE),
    "3": Figure("3: against d, by k", "d", (50, 100, 200, 400), (50, 100), FIVE, panels=(1, 2, 4)),
    "4a": Figure("4a: Gaussian data against n", "n", N_GRID, N_QUICK, FIVE, ROUND, ROUND_QUICK),
    "4b": Figure("4b: Gaussian data against the eigengap", "gap", GAPS, GAPS_QUICK, FIVE, ROUND, ROUND_QUICK),
    "4c": Figure("4c: Gaussian data against d", "d", D_GRID, D_QUICK, FIVE, ROUND, ROUND_QUICK),
}


def measure(name: str, known: Mapping[str, Method], *, quick: bool, trials: int) -> Iterator[Point]:
    """The points of a figure; every method of it that is ``known`` gets the same matrices."""
    figure = FIGURES[name]
    wanted = {key: known[key] for key in (*figure.names, *BESIDE) if key in known}
    for k in figure.panels:
        for x in figure.quick if quick else figure.grid:
            varied: dict[str, Any] = {"k": k, figure.vary: x}
            setting = replace(figure.quick_base if quick else figure.base, **varied)
            message(f"{figure.title}: k = {k}, {figure.vary} = {x:g}")
            for key, zetas in errors(setting, wanted, trials).items():
                public: dict[str, Any] = {
                    "figure": name,
                    "vary": figure.vary,
                    "method": key,
                    "promise": wanted[key].promise,
                }
                yield Point(**public, **asdict(setting), **summary(zetas))


def errors(setting: Setting, wanted: Mapping[str, Method], trials: int) -> dict[str, list[float]]:
    """zeta of every trial, by method."""
    found: dict[str, list[float]] = {key: [] for key in wanted}
    for seed in range(FIRST_SEED, FIRST_SEED + trials):
        stream = setting.stream(seed)
        for key, method in wanted.items():
            basis: Block = method.run(stream, setting.k, EPSILON, DELTA, seed)
            found[key].append(stream.zeta(basis))
    return found


def summary(zetas: Sequence[float]) -> dict[str, Any]:
    """Mean and band of zeta, and of the utility <U U^T, Sigma> / <V_k V_k^T, Sigma> = 1 - zeta^2."""
    utilities = [1 - value**2 for value in zetas]
    (zeta, half), (utility, half_utility) = band(zetas), band(utilities)
    return {
        "trials": len(zetas),
        "zeta": zeta,
        "zeta_low": max(zeta - half, 0.0),
        "zeta_high": zeta + half,
        "zeta_stddev": _spread(zetas),
        "utility": utility,
        "utility_low": utility - half_utility,
        "utility_high": min(utility + half_utility, 1.0),
        "utility_stddev": _spread(utilities),
    }


def band(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % confidence interval (Student's t; nothing is known from one trial)."""
    if len(values) < 2:
        return values[0], math.inf
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return fmean(values), quantile * stdev(values) / math.sqrt(len(values))


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else math.inf


def claims(points: Sequence[Point]) -> list[list[str]]:
    """A table: what must be seen, whether it is, and why."""
    rows = [["figure", "k", "must be seen", "seen", "where, or why not"]]
    for figure in dict.fromkeys(point.figure for point in points):
        for k in dict.fromkeys(point.k for point in points if point.figure == figure):
            curves = curves_of([point for point in points if point.figure == figure and point.k == k])
            for claim in CLAIMS[figure]:
                rows.append([figure, str(k), claim.sentence, *claim.answer(curves)])
    return rows


def curves_of(points: Sequence[Point]) -> dict[str, Curve]:
    """By method, in the order of x."""
    names = dict.fromkeys(point.method for point in points)
    own = {name: [point for point in points if point.method == name] for name in names}
    return {
        name: Curve([p.x for p in line], [p.zeta for p in line], [p.utility for p in line])
        for name, line in own.items()
    }


def write_csv(points: Sequence[Point], path: Path) -> None:
    """One line for each method and x."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(points[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(point) for point in points)


def read_csv(path: Path) -> list[Point]:
    """What :func:`write_csv` wrote."""
    kinds: dict[str, Callable[[str], object]] = {"int": int, "float": float, "str": str}
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    types = Point.__annotations__
    return [Point(**{name: kinds[types[name]](text) for name, text in line.items()}) for line in lines]  # type: ignore[arg-type]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure (or read), write, draw, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_kdppca", description=__doc__)
    parser.add_argument("--figure", required=True, choices=(*FIGURES, "4", "all"), help="4: its three panels")
    parser.add_argument("--quick", action="store_true", help="5 trials on smaller grids: minutes")
    parser.add_argument("--trials", type=int, help="other than 50, or 5")
    parser.add_argument("--relation", default="record_replace", choices=("record_replace", "record_zero_out"))
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "kdppca", help="where the files go")
    parser.add_argument("--draw", action="store_true", help="from the CSV that is there, without measuring")
    asked = parser.parse_args(argv)
    names = [name for name in FIGURES if asked.figure in ("all", name, name[:1])]
    if asked.trials is not None and asked.trials < 1:
        parser.error(f"--trials {asked.trials}: at least one is needed, and two for a band")
    known = methods(asked.relation)
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = asked.folder / f"figure-{name}.csv"
        if not asked.draw:
            trials = asked.trials or (QUICK_TRIALS if asked.quick else FULL_TRIALS)
            write_csv(list(measure(name, known, quick=asked.quick, trials=trials)), path)
        if not path.exists():
            parser.error(f"there is no {path} to draw from: measure first, without --draw")
        points = read_csv(path)
        save(draw(points, FIGURES[name].title, known), path.with_suffix(".svg"))
        sys.stdout.write(table(claims(points)) + "\n\n")


if __name__ == "__main__":
    main()
