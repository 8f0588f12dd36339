"""``python -m benchmarks.two_fields_plot``: two fields with one series in common, to docs/howto/two-fields.svg.

The fields of docs/howto/two-fields.md. Above the first pattern of either, in the middle their scores, below covariances
beside those of 20 pairs of fields of which one has its rows in another order. About ten seconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import npmdask
from benchmarks.docs import ROOT
from npmdask.report.plots import BLUE, GREY, ORANGE, svg

PICTURE = ROOT / "docs" / "howto" / "two-fields.svg"
TIMES, K, ORDERS = 300, 5, 20
LAT, LON = np.linspace(-20, 20, 9), np.arange(160, 280, 8)


def fields() -> tuple[np.ndarray, np.ndarray]:
    """Sea-surface temperature and rain (times x grid points) that one slow series drives."""
    rng = np.random.default_rng(0)
    warm = np.exp(-((LAT[:, None] / 8) ** 2) - ((LON - 230) / 30.0) ** 2)
    wet = np.exp(-(((LAT[:, None] - 4) / 6) ** 2) - ((LON - 200) / 20.0) ** 2)
    index = np.cumsum(rng.standard_normal(TIMES)) / 8
    sst, rain = (
        (index[:, None, None] * one + 0.5 * rng.standard_normal((TIMES, *one.shape))).reshape(TIMES, -1)
        for one in (warm, wet)
    )
    return sst, rain


def draw() -> Any:
    """Patterns, scores, covariances."""
    from matplotlib.figure import Figure

    sst, rain = fields()
    modes = npmdask.mca(sst, rain, K)
    rng = np.random.default_rng(1)
    chance = [npmdask.mca(sst, rain[rng.permutation(TIMES)], K).values for _ in range(ORDERS)]
    figure = Figure(figsize=(8.0, 6.5), layout="constrained")
    grid = figure.add_gridspec(3, 2)
    sides = (("sea-surface temperature", modes.left), ("rain", modes.right))
    for place, (name, side) in enumerate(sides):
        axis = figure.add_subplot(grid[0, place])
        pattern = side.patterns[:, 0].reshape(len(LAT), len(LON))
        size = np.abs(pattern).max()
        axis.contourf(LON, LAT, pattern, levels=np.linspace(-size, size, 13), cmap="RdBu_r")
        axis.set(title=f"first pattern: {name}", xlabel="longitude", ylabel="latitude")
    axis = figure.add_subplot(grid[1, :])
    for rows, (name, side), color in zip((sst, rain), sides, (ORANGE, BLUE), strict=True):
        scores = side.scores(rows)[:, 0]
        axis.plot(scores / scores.std(), color=color, lw=1, label=name)
    axis.set(title=f"their scores: correlation {modes.correlations[0]:.2f}", xlabel="time")
    axis.legend(frameon=False, fontsize=8)
    axis = figure.add_subplot(grid[2, :])
    numbers = np.arange(1, K + 1)
    for number, values in enumerate(chance):
        axis.plot(numbers, values, ".", color=GREY, label="rows of rain in another order" if not number else None)
    axis.plot(numbers, modes.values, "o", color=ORANGE, label="as they are")
    axis.set(title="covariances", xlabel="mode", xticks=numbers, ylim=(0, None))
    axis.legend(frameon=False, fontsize=8)
    for axis in figure.axes[2:]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    return figure


def main() -> None:
    """Compute and draw."""
    PICTURE.write_text(svg(draw()) + "\n")


if __name__ == "__main__":
    main()
