"""Hardt and Price 2014, Theorem 3.2: what docs/papers/streams.md leaves open of the streaming power method.

That the error falls as n^(-1/2), with L, is measured there (benchmarks/paper_stream.py). Here: rows in proportion to d
at a fixed error, and p = k against p = 2 k, down to where streams fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from benchmarks.paper_figures import panels
from benchmarks.paper_page import Rows
from benchmarks.paper_stream import stream_errors
from benchmarks.theory_runs import axis_ticks, number, slope
from npmdask.report.plots import BLUE, GREY, ORANGE


@dataclass(frozen=True)
class Scale:
    """``rows``: n where d varies; ``totals``: n where it is asked how many rows are needed for ``tol``, at ``d``."""

    k: int = 5
    blocks: int = 14
    widths: tuple[int, ...] = (50, 100, 200, 400, 800)
    rows: int = 2**17
    d: int = 200
    totals: tuple[int, ...] = tuple(2**i for i in range(11, 18))
    tol: float = 0.3
    seeds: int = 9


FULL = Scale()
SMALL = Scale(k=2, blocks=10, widths=(20, 40, 80), rows=2**14, d=40, totals=tuple(2**i for i in range(9, 15)), seeds=5)


def ranks(k: int) -> tuple[int, int]:
    return k, 2 * k


def measure(scale: Scale) -> dict[str, Any]:
    """Errors by p: against d at a fixed n, against n at a fixed d."""
    k, blocks = scale.k, scale.blocks
    lines = []
    for p in ranks(k):
        wide = [np.median(errors((d, k, p, blocks), (scale.rows,), scale.seeds)) for d in scale.widths]
        over_n = errors((scale.d, k, p, blocks), scale.totals, scale.seeds)
        lines.append({
            "p": p,
            "widths": [float(error) for error in wide],
            "power": 2 * slope(scale.widths, wide),
            "errors": np.median(over_n, axis=0).tolist(),
            "worst": np.max(over_n, axis=0).tolist(),
            "rows_needed": rows_needed(scale.totals, np.median(over_n, axis=0), scale.tol),
            "factor": p / (sqrt(p) - sqrt(k - 1)) ** 2,
        })  # fmt: skip
    names = ("k", "blocks", "widths", "rows", "d", "totals", "tol", "seeds")
    return {name: getattr(scale, name) for name in names} | {"lines": lines}


def errors(case: tuple[int, int, int, int], totals: tuple[int, ...], seeds: int) -> np.ndarray:
    """sin theta_k(U, X_L): seeds x totals, of the spiked model of docs/papers/streams.md."""
    return np.array([stream_errors(case, totals, seed) for seed in range(seeds)])


def rows_needed(totals: tuple[int, ...], errors: np.ndarray, tol: float) -> float | None:
    """Where the errors come below ``tol`` for good, between two points on logarithmic axes; None if they do not."""
    above = np.flatnonzero(errors > tol)
    if not len(above) or above[-1] == len(errors) - 1:
        return None
    i = int(above[-1])
    share = np.log(errors[i] / tol) / np.log(errors[i] / errors[i + 1])
    return float(totals[i] * (totals[i + 1] / totals[i]) ** share)


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """The power of d, and p = k beside p = 2 k."""
    rows = [["p", "power of d in error^2", "claimed", f"rows for {found['tol']:g}", "p / (sqrt(p) - sqrt(k - 1))^2"]]
    for line in found["lines"]:
        rows.append([str(line["p"]), f"{line['power']:.2f}", "1", number(line["rows_needed"]), number(line["factor"])])
    return {"streaming": rows}


def figure(found: dict[str, Any]) -> Any:
    """Against d, and against n."""
    title = f"Streaming power method, spiked model, k = {found['k']}, L = {found['blocks']}"
    drawn, axes = panels(1, 2, (9.6, 4.2), title)
    left, right = axes[0]
    for line, color in zip(found["lines"], (ORANGE, BLUE), strict=True):
        label = f"p = {line['p']}: error² against d has power {line['power']:.2f}"
        left.loglog(found["widths"], line["widths"], "o-", color=color, ms=4, label=label)
        right.loglog(found["totals"], line["errors"], "o-", color=color, ms=4, label=f"p = {line['p']}, median")
        right.loglog(found["totals"], line["worst"], ":", color=color, lw=1.6, label=f"p = {line['p']}, worst")
    d = np.array(found["widths"])
    left.loglog(d, 0.8 * line["widths"][0] * np.sqrt(d / d[0]), "--", color=GREY, label=r"$\propto d^{1/2}$ (claimed)")
    left.set(title=f"n = {found['rows']:,}", xlabel="d", ylabel=r"$\sin\theta_k(U, X_L)$")
    n = np.array(found["totals"][-4:])
    tail = 0.8 * line["errors"][-1] * np.sqrt(n[-1] / n)
    right.loglog(n, tail, "--", color=GREY, label=r"$\propto n^{-1/2}$ (claimed)")
    right.set(title=f"d = {found['d']}", xlabel="rows n", ylabel=r"$\sin\theta_k(U, X_L)$")
    axis_ticks(left, found["widths"])
    axis_ticks(right, found["totals"][::2])
    for axis in axes[0]:
        axis.title.set_fontsize(9.5)
        axis.legend(fontsize=7.5, frameon=False)
    return drawn
