"""The figures of docs/papers/streams.md, from the kept means."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.paper_methods import METHODS
from npmdask.report.plots import BLUE, GREY, ORANGE

LINES = {
    "msg": ("MSG", BLUE, "-"),
    "rmsg": ("RMSG", ORANGE, "-"),
    "mb-msg": ("MB-MSG", BLUE, "--"),
    "mb-rmsg": ("MB-RMSG", ORANGE, "--"),
    "oja": ("Oja", GREY, "-"),
}
SHADES = ("#92c5de", "#4393c3", "#2166ac", "#053061")


def panels(rows: int, columns: int, size: tuple[float, float], title: str, **shared: Any) -> tuple[Any, Any]:
    """A figure and its axes (rows x columns), in the style of the reports' charts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for axis in axes.flat:
        axis.tick_params(labelsize=8.5)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    figure.suptitle(title, fontsize=11)
    return figure, axes


def methods_figure(found: dict[str, Any], title: str) -> Any:
    """Suboptimality against seconds and against iterations, and rank; a column for each k."""
    figure, axes = panels(3, len(found), (3.2 * len(found), 8.6), title)
    for column, (k, methods) in zip(axes.T, found.items(), strict=True):
        column[0].set_title(f"k = {k}", fontsize=10)
        for name in METHODS:
            label, color, style = LINES[name]
            points = methods[name]["points"]
            options = {"color": color, "ls": style, "lw": 1.6, "label": label}
            column[0].loglog(points["seconds"], points["suboptimality"], **options)
            column[1].loglog(points["step"], points["suboptimality"], **options)
            column[2].semilogx(points["step"], points["rank"], **options)
        for axis in column[:2]:
            axis.axhline(methods["exact"], color="k", lw=0.9, ls=":", label="exact PCA of the training rows")
        column[0].set_xlabel("processor seconds in updates")
        column[1].set_xlabel("iterations")
        column[2].set(xlabel="iterations", ylim=(0, None))
        for axis in column:
            axis.minorticks_off()
    for axis, label in zip(axes[:, 0], ("suboptimality on test rows",) * 2 + ("rank of the iterate",), strict=True):
        axis.set_ylabel(label)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def errors_figure(found: dict[str, Any]) -> Any:
    """The error of the streaming power method against n: by p, by L, by d."""
    title = "Streaming power method: sine of the largest angle against rows of the stream (medians)"
    figure, axes = panels(1, 3, (10.5, 3.9), title, sharey=True)
    for axis, (vary, lines) in zip(axes[0], found["lines"].items(), strict=True):
        for shade, line in zip(SHADES, lines, strict=False):
            n = np.array(line["n"]) / (line["d"] if vary == "d" else 1)
            label = f"{vary} = {line[vary]}, slope {line['slope']:.2f}"
            axis.loglog(n, line["error"], "o-", ms=3, lw=1.4, color=shade, label=label)
        if vary == "p":
            axis.loglog(line["n"], found["all_rows"], "s:", ms=3, color=ORANGE, label="exact PCA of all n rows")
        tail = n[-5:]
        axis.loglog(tail, 0.6 * line["error"][-1] * np.sqrt(tail[-1] / tail), "k--", lw=1, label=r"$\propto n^{-1/2}$")
        axis.legend(fontsize=7, frameon=False, loc="lower left")
        axis.set(xlabel="rows n / columns d" if vary == "d" else "rows n", title=_settings(vary, line))
        axis.title.set_fontsize(9)
    axes[0, 0].set_ylabel(r"$\sin\theta_k(U, X_L)$")
    return figure


def _settings(vary: str, line: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {line[name]}" for name in ("d", "k", "p", "L") if name != vary)


def gap_figure(found: dict[str, Any]) -> Any:
    """Iterations against p beside the theory's, and the error that noise leaves."""
    title = f"Power law $i^{{-{found['alpha']:g}}}$, d = {found['d']}, k = {found['k']}: more columns p than wanted"
    figure, axes = panels(1, 2, (9.6, 4.0), title)
    left, right = axes[0]
    ranks = [line["p"] for line in found["lines"]]
    for name, label, style, color in (
        ("theory_k", rf"theory, gap $s_k - s_{{k+1}}$, to {found['tol']:g}", ":", GREY),
        ("theory_q", rf"theory, gap $s_k - s_{{q+1}}$, best q, to {found['tol']:g}", "--", GREY),
        ("exact", f"no noise, to {found['tol']:g}", "o-", BLUE),
        ("noisy", f"Gaussian noise, to {found['noisy_tol']:g}", "s-", ORANGE),
        ("stream", f"stream of blocks, to {found['stream_tol']:g}", "^-", SHADES[0]),
    ):
        counts = [line[name] if line[name] is not None else np.nan for line in found["lines"]]
        left.loglog(ranks, counts, style, color=color, label=label, ms=4)
    left.set(ylabel="iterations L")
    for name, label, style, color in (
        ("towards", r"noise towards $u_{p+1}$", "o", BLUE),
        ("predicted", r"predicted: $\tan\theta = \|G\| / (s_k - s_{p+1})$", "--", GREY),
        ("gaussian", "Gaussian noise of the same norm", "s-", ORANGE),
    ):
        right.loglog(ranks, [line[name] for line in found["lines"]], style, color=color, label=label, ms=4)
    right.set(ylabel=r"$\sin\theta_k(U, X_L)$ that it ends at")
    for axis in (left, right):
        axis.minorticks_off()
        axis.set_xticks(ranks, [str(p) for p in ranks])
        axis.set_xlabel("columns iterated p")
        axis.legend(fontsize=7.5, frameon=False)
    left.set_ylim(None, 400)
    ticks = (0.05, 0.1, 0.2, 0.4)
    right.set_yticks(ticks, [str(tick) for tick in ticks])
    return figure
