"""``python -m benchmarks.missing_plot``: three rules for missing values, drawn to docs/howto/missing-rules.svg.

2,000 rows of 40 columns, three components with deviations of 6, 4 and 3 and noise of 1, with gaps at random. The sine
of the largest angle to the truth, of four data sets the root mean square. About a minute.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import npmdask
from benchmarks.docs import ROOT
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.report.plots import BLUE, GREY, ORANGE, svg

PICTURE = ROOT / "docs" / "howto" / "missing-rules.svg"
ROWS, COLUMNS, DEVIATIONS = 2000, 40, (6.0, 4.0, 3.0)
SHARES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.7)
SEEDS = range(4)
STYLES = {"mean": (ORANGE, "^:"), "pairwise": (GREY, "s--"), "em": (BLUE, "o-")}


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Complete rows, numbers from 0 to 1 below which an entry is missing, and the directions."""
    rng = np.random.default_rng(seed)
    truth = np.linalg.qr(rng.standard_normal((COLUMNS, len(DEVIATIONS))))[0]
    rows = rng.standard_normal((ROWS, len(DEVIATIONS))) * DEVIATIONS @ truth.T + rng.standard_normal((ROWS, COLUMNS))
    return rows + 3.0, rng.random(rows.shape), truth


def sine(rule: str, share: float, seed: int) -> float:
    """Of the largest angle to the truth."""
    rows, numbers, truth = drawn(seed)
    rows[numbers < share] = np.nan
    found = npmdask.top_k(rows, len(DEVIATIONS), kind="samples", center=True, missing=rule)
    return max_sin_theta(found.basis, truth)


def draw() -> Any:
    """A line for each rule."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(8.0, 4.0), layout="constrained")
    axis = figure.subplots()
    for rule, (color, style) in STYLES.items():
        sines = [np.sqrt(np.mean([sine(rule, share, seed) ** 2 for seed in SEEDS])) for share in SHARES]
        axis.semilogy([100 * share for share in SHARES], sines, style, color=color, label=f'missing = "{rule}"', ms=5)
    axis.set(xlabel="missing, % of all values", ylabel="sine of the largest angle to the truth")
    axis.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5, 1.0], labels=["0.02", "0.05", "0.1", "0.2", "0.5", "1"])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    return figure


def main() -> None:
    """Measure and draw."""
    PICTURE.write_text(svg(draw()) + "\n")


if __name__ == "__main__":
    main()
