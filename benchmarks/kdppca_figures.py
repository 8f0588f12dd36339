"""The plots of benchmarks/paper_kdppca.py: utility as the paper draws it, and zeta with its bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.paper_figures import panels
from npmdask.experiments.figures import DELTA, EPSILON, Method
from npmdask.theory import dppca_zeta, spiked_lower_bound

BARS = "3"  # the figure whose bars are standard deviations
LABELS = {"n": "matrices n", "d": "dimension d", "gap": "eigengap", "sigma": "sigma"}


def draw(points: Sequence[Any], title: str, known: Mapping[str, Method]) -> Any:
    """``points`` of one figure: a column for each k, utility above, zeta below."""
    ranks = list(dict.fromkeys(point.k for point in points))
    size = (max(6.4, 4.2 * len(ranks)), 9.0)
    figure, axes = panels(2, len(ranks), size, f"Figure {title}", height_ratios=(2, 3))
    for k, (utility, error) in zip(ranks, axes.T, strict=True):
        own = [point for point in points if point.k == k]
        for name in dict.fromkeys(point.method for point in own):
            line = [point for point in own if point.method == name]
            _line(utility, line, known[name], "utility")
            _line(error, line, known[name], "zeta")
        _bounds(error, [point for point in own if point.method == own[0].method])
        for axis in (utility, error):
            _ticks(axis, own)
        utility.ticklabel_format(axis="y", useOffset=False)
        utility.set(ylabel=r"utility $\langle UU^T,\Sigma\rangle/\langle V_kV_k^T,\Sigma\rangle$", title=f"k = {k}")
        error.set(yscale="log", ylabel=r"$\zeta$")
    figure.legend(
        *axes[1, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=8,
        handlelength=3.2,
    )
    return figure


def _ticks(axis: Any, points: Sequence[Any]) -> None:
    x = sorted({point.x for point in points})
    axis.set(xscale="log", xlabel=LABELS[points[0].vary])
    axis.minorticks_off()
    axis.set_xticks(x, [f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in x], rotation=30)


def _line(axis: Any, line: Sequence[Any], method: Method, what: str) -> None:
    x = [point.x for point in line]
    middle = np.array([getattr(point, what) for point in line])
    axis.plot(x, middle, method.style, color=method.color, label=method.label, ms=4, lw=1.5)
    if line[0].figure == BARS:
        spread = [getattr(point, f"{what}_stddev") for point in line]
        axis.errorbar(x, middle, yerr=np.where(np.isfinite(spread), spread, 0), fmt="none", ecolor=method.color)
        return
    low, high = (np.array([getattr(point, f"{what}_{side}") for point in line]) for side in ("low", "high"))
    if np.isfinite(low).all() and np.isfinite(high).all():
        axis.fill_between(
            x, np.maximum(low, middle / 10) if what == "zeta" else low, high, color=method.color, alpha=0.2
        )


def _bounds(axis: Any, line: Sequence[Any]) -> None:
    """With the constants that the paper leaves open at 1, and no logarithms: only their shape means something."""
    x, upper, lower = [], [], []
    for point in line:
        stream = point.setting.stream(0)  # for its model: no matrix is drawn
        promise = {"n": stream.n, "d": stream.d, "epsilon": EPSILON, "delta": DELTA}
        x.append(point.x)
        upper.append(dppca_zeta(stream.model, k=point.k, **promise).value)
        spikes = stream.values - stream.floor
        lower.append(spiked_lower_bound(spikes, float(np.sqrt(stream.floor)), **promise).value)
    axis.plot(x, upper, "k--", lw=0.9, label="upper bound of k-DP-PCA (Theorem 1, constant 1)")
    axis.plot(x, lower, "k-.", lw=0.9, label="lower bound, Gaussian records (Corollary 3, constant 1)")
