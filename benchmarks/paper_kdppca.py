"""The figures of Duengler and Sanyal 2025, one command each: error or utility against n, d, eigengap, sigma and k.

    python -m benchmarks.paper_kdppca --figure 1a|1b|1c|2a|2b|2c|3|4|all [--quick] [--trials N] [--jobs N]
        [--methods NAME ...]

Writes ``FOLDER/figure-1a.csv`` and ``.svg`` and prints, as a table, what the paper says must be seen and whether it is.
Every trial is a line of ``FOLDER/trials.csv`` as soon as it is made: a run that was stopped goes on from there.
k = 2, d = 200, lambda_1 = 10, epsilon = 1, delta = 0.01 are the paper's; its grids, lambda_2 (5 here), the n of Figures
1c, 2a, 2b, 3 and 4 (100,000 here), the k and d of Figure 3 and the sigma of the Gaussian data (1 here) are not printed.
``--quick``: 5 trials on smaller grids, minutes on two cores; in full 50 trials up to n = 10^6 (2 GB a process), hours.
``--methods``: these alone, whose lines then replace those of the CSV that is there.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

from benchmarks.docs import ROOT
from benchmarks.kdppca_claims import CLAIMS, Curve
from benchmarks.kdppca_figures import draw
from benchmarks.kdppca_trials import Trials, done
from benchmarks.paper_page import message, save, table
from npmdask.experiments.figures import FIGURES, Setting, methods

CONFIDENCE = 0.95
FULL_TRIALS, QUICK_TRIALS = 50, 5


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


def measure(
    name: str, trials: Trials, relation: str, *, quick: bool, count: int, jobs: int, most: int, chosen: Sequence[str]
) -> None:
    """Make the trials of a figure that are not there yet: ``count`` of every point of at most ``most`` matrices."""
    figure = FIGURES[name]
    settings = [setting for setting in figure.settings(quick) if setting.n <= most]
    work = [one for setting in settings for one in trials.missing(relation, setting, chosen, count)]
    message(f"{figure.title}: {len(work)} trials to make")
    for i, (one, found) in enumerate(done(work, jobs), 1):
        trials.add(one, found)
        message(f"{i} of {len(work)}: {figure.vary} = {getattr(one.setting, figure.vary):g}, k = {one.setting.k}")


def points_of(
    name: str, trials: Trials, relation: str, *, quick: bool, chosen: Sequence[str] | None = None
) -> Iterator[Point]:
    """The points of a figure that have trials, however many; of all its methods or those of ``chosen``."""
    figure, known = FIGURES[name], methods(relation)
    for setting in figure.settings(quick):
        for method, zetas in trials.of(relation, setting, chosen or figure.methods).items():
            promise = known[method].promise
            public: dict[str, Any] = {"figure": name, "vary": figure.vary, "method": method, "promise": promise}
            yield Point(**public, **asdict(setting), **summary(zetas))


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


def laid_in(points: Sequence[Point], kept: Sequence[Point]) -> list[Point]:
    """``points`` in the place of those of ``kept`` that have their methods, each beside the others of its setting."""
    new, names = {point.method for point in points}, FIGURES[points[0].figure].methods
    settings = list(dict.fromkeys(point.setting for point in (*kept, *points)))
    both = [*points, *(point for point in kept if point.method not in new)]
    return sorted(both, key=lambda point: (settings.index(point.setting), names.index(point.method)))


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
    parser.add_argument("--trials", type=int, help="other than 50, or 5; points that have more keep them")
    parser.add_argument("--largest", type=int, default=sys.maxsize, help="make no trial of more matrices than this")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--methods", nargs="+", choices=tuple(methods("record_replace")), help="measure these alone")
    parser.add_argument("--relation", default="record_replace", choices=("record_replace", "record_zero_out"))
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "kdppca", help="where the files go")
    parser.add_argument("--draw", action="store_true", help="from the CSV that is there, without measuring")
    asked = parser.parse_args(argv)
    if asked.trials is not None and asked.trials < 1:
        parser.error(f"--trials {asked.trials}: at least one is needed, and two for a band")
    if asked.jobs < 1:
        parser.error(f"--jobs {asked.jobs}: at least one process is needed")
    asked.folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in FIGURES if asked.figure in ("all", name, name[:1])]
    if not asked.draw:
        make(names, asked)
    for name in names:
        path = _csv(asked, name)
        if not path.exists():
            parser.error(f"there is no {path} to draw from: measure first, without --draw")
        points = read_csv(path)
        save(draw(points, FIGURES[name].title, methods(asked.relation)), path.with_suffix(".svg"))
        sys.stdout.write(table(claims(points)) + "\n\n")


def make(names: Sequence[str], asked: argparse.Namespace) -> None:
    """The trials of figures, then their CSV."""
    count = asked.trials or (QUICK_TRIALS if asked.quick else FULL_TRIALS)
    trials = Trials(asked.folder / "trials.csv")
    how: dict[str, Any] = {"quick": asked.quick, "count": count, "jobs": asked.jobs, "most": asked.largest}
    for name in names:
        chosen = [one for one in FIGURES[name].methods if one in (asked.methods or FIGURES[name].methods)]
        measure(name, trials, asked.relation, chosen=chosen, **how)
        points, path = (
            list(points_of(name, trials, asked.relation, quick=asked.quick, chosen=chosen)),
            _csv(asked, name),
        )
        write_csv(laid_in(points, read_csv(path)) if asked.methods and path.exists() else points, path)


def _csv(asked: argparse.Namespace, name: str) -> Path:
    path: Path = asked.folder / f"figure-{name}.csv"
    return path


if __name__ == "__main__":
    main()
