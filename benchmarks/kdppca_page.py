"""docs/kdppca.md: its figures and tables, from the kept CSV of benchmarks/paper_kdppca.py; the words around them stay.

python -m benchmarks.kdppca_page
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.docs import RESULTS, ROOT
from benchmarks.kdppca_claims import Curve
from benchmarks.kdppca_figures import draw
from benchmarks.kdppca_methods import methods
from benchmarks.kdppca_settings import FIGURES
from benchmarks.paper_kdppca import Point, claims, curves_of, read_csv
from benchmarks.paper_page import Rows, save, write

PAGE = ROOT / "docs" / "kdppca.md"
KEPT = RESULTS.with_name("kdppca")
RELATION = "record_replace"  # of what is kept
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
    """zeta of every figure, and all claims."""
    own: dict[str, Rows] = {f"figure {name}": errors(points) for name, points in found.items()}
    return own | {"claims": claims([point for points in found.values() for point in points])}


def errors(points: Sequence[Point]) -> Rows:
    """Mean zeta of the sound methods, and of what is possible without privacy."""
    names = [name for name in COLUMNS if any(point.method == name for point in points)]
    rows = [["k", points[0].vary, *(COLUMNS[name] for name in names), "k-DP-PCA / ours"]]
    for k in dict.fromkeys(point.k for point in points):
        curves = curves_of([point for point in points if point.k == k])
        for i, x in enumerate(curves["tight"].x):
            zetas = [f"{curves[name].zeta[i]:.2g}" for name in names]
            rows.append([str(k), f"{x:,g}", *zetas, f"{_ratio(curves, i):.2g}"])
    return rows


def _ratio(curves: dict[str, Curve], i: int) -> float:
    """At the same true epsilon where that was measured."""
    ours = curves.get("tight-matched", curves["tight"])
    return curves["k-dp-pca"].zeta[i] / ours.zeta[i]


def plots(found: dict[str, list[Point]], folder: Path) -> None:
    """``kdppca-1a.svg`` and so on."""
    for name in DRAWN:
        save(draw(found[name], FIGURES[name].title, methods(RELATION)), folder / f"kdppca-{name}.svg")


if __name__ == "__main__":
    plots(kept(), PAGE.parent)
    write(tables(kept()), PAGE)
