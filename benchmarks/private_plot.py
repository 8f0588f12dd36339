"""``python -m benchmarks.private_plot [--draw]``: variance captured by n, to docs/explanation/private-captured.svg.

Analyze Gauss beside the private power method, with images of records clipped (the default) and without. About ten
minutes; the measured means are kept in results/private_captured.json, from which ``--draw`` draws again.

Memory is not in the picture: with d = 100,000 Analyze Gauss holds d^2 numbers, 75 GiB, the private power method all its
blocks, 2 d p L numbers: 153 MiB with p = 20 and L = 5 (and a few copies of them).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.docs import RESULTS, ROOT
from benchmarks.private_cases import BUDGET, STEPS, K, make_case
from npmdask.report.plots import ALONE, COLOURS, themed

KEPT = RESULTS.with_name("private_captured.json")
PICTURE = ROOT / "docs" / "explanation" / "private-captured.svg"
COLUMNS, SEEDS, RELATION = 500, 3, "record_replace"
MIDDLE = {"1/i": 9_000, "i^-0.5": 30_000, "10 spikes": 4_600, "0.8^i": 4_000}  # where Analyze Gauss captures 90 %
STEPS_OF_N = (0.25, 0.4, 0.6, 0.8, 1.0, 1.5, 2.2, 3.5, 6.0, 10.0)
LINES = {
    "analyze_gauss": ("Analyze Gauss (d² numbers in memory)", COLOURS[9], "s--"),
    "clipped": ("private power method (2 d p L numbers)", COLOURS[0], "o-"),
    "plain": ("the same, images of records not clipped", COLOURS[1], "^:"),
}


def measure() -> dict[str, list[dict[str, float]]]:
    """Means over seeds, by spectrum and n."""
    found: dict[str, list[dict[str, float]]] = {}
    for spectrum, middle in MIDDLE.items():
        found[spectrum] = []
        for factor in STEPS_OF_N:
            point = _point(spectrum, round(middle * factor))
            found[spectrum].append(point)
            print(spectrum, point, file=sys.stderr, flush=True)
    return found


def _point(spectrum: str, rows: int) -> dict[str, float]:
    seen: dict[str, list[float]] = {name: [] for name in LINES}
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            case = make_case(Path(folder), spectrum, rows, COLUMNS, seed)
            seen["analyze_gauss"].append(case.analyze_gauss(RELATION))
            seen["clipped"].append(case.power_method(RELATION))
            seen["plain"].append(case.power_method(RELATION, clip_images=False))
    return {"n": rows} | {name: round(fmean(values), 4) for name, values in seen.items()}


def draw(found: dict[str, list[dict[str, float]]]) -> Any:
    """Four spectra, one line for each method."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = Figure(figsize=(9.0, 6.4), layout="constrained")
    for axis, (spectrum, points) in zip(figure.subplots(2, 2, sharey=True).flat, found.items(), strict=True):
        for name, (label, color, style) in LINES.items():
            axis.semilogx([p["n"] for p in points], [p[name] for p in points], style, color=color, label=label, ms=4)
        axis.set(title=f"spectrum {spectrum}", ylim=(0, 1.03), xlabel="records n")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, which="both")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    for axis in figure.axes[::2]:
        axis.set_ylabel("captured variance")
    figure.axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    promise = f"epsilon = {BUDGET.epsilon:g}, delta = {BUDGET.delta:g}, one record replaced"
    figure.suptitle(
        f"Captured variance of {K} private components over that of the exact ones\n"
        f"{promise}; d = {COLUMNS}, p = {K + 10}, {STEPS} releases, mean of {SEEDS} runs",
        fontsize=11,
    )
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Measure unless only a drawing is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.private_plot", description=__doc__)
    parser.add_argument("--draw", action="store_true", help="from the kept means, without measuring")
    if not parser.parse_args(argv).draw:
        KEPT.write_text(json.dumps(measure(), indent=1) + "\n")
    picture = themed(draw(json.loads(KEPT.read_text())))  # without a background: seen on a light page and a dark one
    PICTURE.write_text(picture.replace("<svg", f'<svg color="{ALONE}"', 1))


if __name__ == "__main__":
    main()
