"""``python -m benchmarks.drift_plot``: a stream that drifts, with and without forgetting.

Drawn to docs/tutorials/streaming-drift.svg.

40 days of 2,000 rows of 100 columns. From day 11 to day 25 the second of two directions turns by 5 degrees a day, then
it stands still where it came to. Models of several half lives (the streaming power method, centred) take each day once.
About ten seconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.docs import ROOT
from npmdask import StreamingPCA
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.report.plots import BLUE, GREY, ORANGE, svg

PICTURE = ROOT / "docs" / "tutorials" / "streaming-drift.svg"
DAYS, ROWS, COLUMNS, BATCH = 40, 2000, 100, 200
BEGINS, ENDS, DEGREES = 11, 25, 5.0
HALF_LIVES: dict[float | None, tuple[str, str]] = {  # in days
    None: (GREY, "s--"),
    4.0: (ORANGE, "^:"),
    1.0: (BLUE, "o-"),
    0.1: ("#4d9221", "v-."),
}


def truth_of(day: int) -> np.ndarray:
    """The plane of a day, COLUMNS x 2."""
    turn = np.deg2rad(DEGREES) * (min(max(day, BEGINS - 1), ENDS) - (BEGINS - 1))
    basis = np.zeros((COLUMNS, 2))
    basis[0, 0], basis[1, 1], basis[2, 1] = 1.0, np.cos(turn), np.sin(turn)
    return basis


def rows_of(day: int) -> np.ndarray:
    """The rows of a day: standard deviations 3 and 2 in the plane, 1/2 in every direction, about a mean of ones."""
    rng = np.random.default_rng(day)
    inside = rng.standard_normal((ROWS, 2)) * [3.0, 2.0]
    return inside @ truth_of(day).T + 0.5 * rng.standard_normal((ROWS, COLUMNS)) + 1.0


def follow(half_life: float | None) -> tuple[list[float], list[float]]:
    """The angle to the truth of the day, and to the basis of the day before (from the second day on), in degrees."""
    model = StreamingPCA(2, center=True, half_life=half_life and half_life * ROWS)
    angles, changes, before = [], [], None
    for day in range(1, DAYS + 1):
        rows = rows_of(day)
        for start in range(0, ROWS, BATCH):
            model.partial_fit(rows[start : start + BATCH])
        angles.append(max_sin_theta(model.basis, truth_of(day)))
        if before is not None:
            changes.append(max_sin_theta(model.basis, before))
        before = model.basis
    return _degrees(angles), _degrees(changes)


def _degrees(sines: list[float]) -> list[float]:
    return np.rad2deg(np.arcsin(sines)).tolist()


def draw() -> Any:
    """Angle to the truth above, change below."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(8.0, 6.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for half_life, (color, style) in HALF_LIVES.items():
        angles, changes = follow(half_life)
        label = "nothing is forgotten" if half_life is None else f"half life in days: {half_life:g}"
        above.semilogy(range(1, DAYS + 1), angles, style, color=color, label=label, ms=4)
        below.plot(range(2, DAYS + 1), changes, style, color=color, ms=4)
    above.set(ylabel="to the truth of the day, degrees", title="Angles of a plane that turns by 5 degrees a day")
    above.set_yticks([1, 2, 5, 10, 20, 50], labels=["1", "2", "5", "10", "20", "50"])
    above.yaxis.set_minor_locator(NullLocator())
    below.set(ylabel="to the day before, degrees", xlabel="day", ylim=(0, None))
    above.legend(frameon=False, fontsize=8, ncols=2)
    for axis in (above, below):
        axis.axvspan(BEGINS - 0.5, ENDS + 0.5, color=GREY, alpha=0.12, lw=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    below.text(BEGINS, 10.6, "it turns", fontsize=8, color=GREY)
    return figure


def main() -> None:
    """Measure and draw."""
    PICTURE.write_text(svg(draw()) + "\n")


if __name__ == "__main__":
    main()
