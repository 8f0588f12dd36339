"""docs/papers/kdppca.md: figures and tables, from the CSV of benchmarks/paper_kdppca.py; the words around them stay.

python -m benchmarks.kdppca_page
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from benchmarks import kdppca_allocation
from benchmarks.docs import RESULTS, ROOT
from benchmarks.kdppca_figures import draw
from benchmarks.paper_kdppca import Point, claims, curves_of, read_csv
from benchmarks.paper_page import Rows, save, write
from benchmarks.paper_page import kept as kept_json
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import random_orthonormal
from npmdask.experiments.figures import FIGURES, Setting, methods

PAGE = ROOT / "docs" / "papers" / "kdppca.md"
KEPT = RESULTS.with_name("kdppca")
RELATION = "record_replace"  # of what is kept
RANDOM_BASES = 50
DRAWN = ("1a", "1b", "1c")  # as plots too
COLUMNS = {
    "tight": "ours",
    "k-dp-pca": "k-DP-PCA as printed",
    "k-dp-pca-large": "batches n / 20",
    "k-dp-ojas": "k-DP-Ojas, sound",
    "k-dp-ojas-paper": "as printed, NOT private",
    "dp-gauss-1": "DP-Gauss-1",
    "dp-gauss-2": "DP-Gauss-2",
    "dp-power": "DP-Power",
    "exact": "exact, not private",
}
T = TypeVar("T")


def kept() -> dict[str, list[Point]]:
    """By figure, in the order of the figures."""
    paths = {name: KEPT / f"figure-{name}.csv" for name in FIGURES}
    return {name: read_csv(path) for name, path in paths.items() if path.exists()}


def tables(found: dict[str, list[Point]]) -> dict[str, Rows]:
    """zeta of every figure, what DP-Ojas may do for its noise, and all claims."""
    own: dict[str, Rows] = kdppca_allocation.tables(kept_json(kdppca_allocation.NAME))
    every = [point for points in found.values() for point in points]
    head, *rows = target(every)
    bounded = [row for _, lines in groupby(rows, key=itemgetter(0)) for row in chosen(list(lines))]
    return own | {"figures": errors(found), "target": [head, *bounded], "claims": by_claim(claims(every))}


def chosen(x: Sequence[T]) -> list[T]:
    """The first and the last of the points of a figure, and the middle one of five and more; the CSV has all."""
    places = (0, len(x) // 2, -1) if len(x) > 4 else (0, -1)
    return [x[place] for place in places]


def target(points: Sequence[Point]) -> Rows:
    """Ours beside k-DP-PCA at the same true (epsilon, delta), with 95 % bands, in the figures that draw both."""
    names = {"ours": "tight-matched", "k-DP-PCA as printed": "k-dp-pca", "k-DP-PCA, batches n / 20": "k-dp-pca-large"}
    rows = [["figure", "x", "trials", *names, "a random basis", "k-DP-PCA as printed / ours, by their bands"]]
    for ours in (point for point in points if point.method == "tight-matched"):
        beside = {p.method: p for p in points if (p.figure, p.setting) == (ours.figure, ours.setting)}
        public = [ours.figure, f"{ours.vary} = {_number(ours.x)}", _trials(beside[name] for name in names.values())]
        least = f"{beside['k-dp-pca'].zeta_low / ours.zeta_high:.2g} or more"
        rows.append([*public, *(_with_band(beside[name]) for name in names.values()), _random(ours.setting), least])
    return rows


def _trials(points: Iterable[Point]) -> str:
    """How many the columns of a line have: the least and the most."""
    counts = sorted({point.trials for point in points})
    return "-".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))


def _number(x: float) -> str:
    return f"{x:,.0f}" if x >= 1000 else f"{x:g}"


def _with_band(point: Point) -> str:
    return f"{point.zeta:.3g} ({point.zeta_low:.3g} to {min(point.zeta_high, 1.0):.3g})"


def _random(setting: Setting) -> str:
    """Mean zeta of bases that have not seen the data."""
    stream = replace(setting, n=setting.k).stream(0)
    bases = [random_orthonormal(setting.d, setting.k, generator(seed, "random basis")) for seed in range(RANDOM_BASES)]
    return f"{fmean(stream.zeta(basis) for basis in bases):.3f}"


def errors(found: dict[str, list[Point]]) -> Rows:
    """Mean zeta of all methods at some points of every figure but 1a, which is 2c with fewer methods."""
    rows = [["figure", "k", "x", *COLUMNS.values()]]
    for figure, points in (one for one in found.items() if one[0] != "1a"):
        for k in dict.fromkeys(point.k for point in points):
            curves = curves_of([point for point in points if point.k == k])
            for i in chosen(range(len(curves["tight"].x))):
                zetas = [f"{curves[name].zeta[i]:.2g}" if name in curves else "" for name in COLUMNS]
                rows.append([figure, str(k), f"{points[0].vary} = {_number(curves['tight'].x[i])}", *zetas])
    return rows


def by_claim(found: Rows) -> Rows:
    """Every claim once: the figures where it is seen for all k, and the others."""
    figures: dict[str, dict[str, bool]] = {}
    for figure, _, claim, seen, _ in found[1:]:
        own = figures.setdefault(claim, {})
        own[figure] = own.get(figure, True) and seen == "yes"
    lists = {
        c: [[f for f, holds in own.items() if holds == yes] for yes in (True, False)] for c, own in figures.items()
    }
    rows = [[claim, *(", ".join(names) or "-" for names in two)] for claim, two in lists.items()]
    return [["must be seen", "seen in", "not seen in"], *rows]


def plots(found: dict[str, list[Point]], folder: Path) -> None:
    """``kdppca-1a.svg`` and so on."""
    for name in DRAWN:
        save(draw(found[name], FIGURES[name].title, methods(RELATION)), folder / f"kdppca-{name}.svg")


if __name__ == "__main__":
    plots(kept(), PAGE.parent)
    write(tables(kept()), PAGE)
