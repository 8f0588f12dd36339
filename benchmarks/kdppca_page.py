"""docs/papers/kdppca.md: figures and tables, from the CSV of benchmarks/paper_kdppca.py; the words around them stay.

python -m benchmarks.kdppca_page
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

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
    "tight": "tight (ours)",
    "tight-matched": "the same at the epsilon of k-DP-PCA",
    "k-dp-pca": "k-DP-PCA as printed",
    "k-dp-pca-large": "k-DP-PCA, batches n / 20",
    "k-dp-ojas": "k-DP-Ojas, sound",
    "k-dp-ojas-paper": "k-DP-Ojas as printed, NOT private",
    "dp-gauss-1": "DP-Gauss-1",
    "dp-gauss-2": "DP-Gauss-2",
    "dp-power": "DP-Power",
    "exact": "exact, not private",
}


def kept() -> dict[str, list[Point]]:
    """By figure, in the order of the figures."""
    paths = {name: KEPT / f"figure-{name}.csv" for name in FIGURES}
    return {name: read_csv(path) for name, path in paths.items() if path.exists()}


def tables(found: dict[str, list[Point]]) -> dict[str, Rows]:
    """zeta of every figure, what DP-Ojas may do for its noise, and all claims."""
    own: dict[str, Rows] = {f"figure {name}": errors(points) for name, points in found.items()}
    own |= kdppca_allocation.tables(kept_json(kdppca_allocation.NAME))
    every = [point for points in found.values() for point in points]
    return own | {"target": target(every), "claims": claims(every)}


def target(points: Sequence[Point]) -> Rows:
    """Ours beside k-DP-PCA at the same true (epsilon, delta), with 95 % bands, in the figures that draw both."""
    names = {"ours": "tight-matched", **{COLUMNS[name]: name for name in ("k-dp-pca", "k-dp-pca-large")}}
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


def errors(points: Sequence[Point]) -> Rows:
    """Mean zeta of the sound methods, and of what is possible without privacy."""
    names = [name for name in COLUMNS if any(point.method == name for point in points)]
    rows = [["k", points[0].vary, "trials", *(COLUMNS[name] for name in names)]]
    for k in dict.fromkeys(point.k for point in points):
        own = [point for point in points if point.k == k]
        curves = curves_of(own)
        for i, x in enumerate(curves["tight"].x):
            zetas = [f"{curves[name].zeta[i]:.2g}" for name in names]
            trials = _trials(point for point in own if point.x == x and point.method in names)
            rows.append([str(k), _number(x), trials, *zetas])
    return rows


def plots(found: dict[str, list[Point]], folder: Path) -> None:
    """``kdppca-1a.svg`` and so on."""
    for name in DRAWN:
        save(draw(found[name], FIGURES[name].title, methods(RELATION)), folder / f"kdppca-{name}.svg")


if __name__ == "__main__":
    plots(kept(), PAGE.parent)
    write(tables(kept()), PAGE)
