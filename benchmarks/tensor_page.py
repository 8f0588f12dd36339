"""docs/papers/tensors.md: its plots and tables, from what benchmarks/paper_tensor.py has kept; the words stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.docs import ROOT
from benchmarks.paper_figures import panels
from benchmarks.paper_page import Rows, save, write
from benchmarks.tensor_levels import Level, Slope, power_law
from benchmarks.tensor_online import state_bytes
from benchmarks.tensor_private import exact_epsilon, input_epsilon, printed_epsilon
from benchmarks.tensor_series import SERIES
from npmdask.report.plots import BLUE, GREY, ORANGE

PAGE = ROOT / "docs" / "papers" / "tensors.md"
MEMORY = (64, 256, 1024)  # d
WHITENED = ("power, round", "whitening, round", "power, weak", "whitening, weak")
CALIBRATIONS = {
    "private, exact": ("private", exact_epsilon, BLUE, "o-"),
    "private, as printed": ("private", printed_epsilon, BLUE, "s--"),
    "input perturbation, exact": ("input", input_epsilon, ORANGE, "o-"),
}
LOGARITHMIC = ("private, exact", "private, as printed")  # whose epsilon is claimed to grow with no power of d
Line = dict[str, Any]


def publish(found: dict[str, Any], page: Path = PAGE) -> None:
    """Plots beside the page, tables in it."""
    for figure, lines in found.items():
        save(DRAWN[figure](lines), page.parent / f"tensor-{figure}.svg")
    write(tables(found), page)


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """Of the figures that were measured."""
    made: dict[str, Rows] = {}
    for figure, lines in found.items():
        made |= TABLES[figure](lines)
    return made


def slope(line: Line, first: int = 0) -> Slope:
    """Of the points of a curve from x = ``first`` on, or of all where that leaves fewer than two."""
    chosen = [i for i, x in enumerate(line["x"]) if x >= first]
    chosen = chosen if len(chosen) > 1 else list(range(len(line["x"])))
    return power_law(*([line[key][i] for i in chosen] for key in ("x", "value", "stderr")))


def slopes(lines: dict[str, Line]) -> Rows:
    """Every curve with a claim: what was measured, and whether the claim lies in it."""
    rows = [["what", "against", "trials of a point", "measured power", "claimed", "holds"]]
    for name, line in lines.items():
        series = SERIES[name]
        if series.claimed is None or len(line["x"]) < 3:
            continue
        measured, claimed = slope(line, series.fit), series.claimed
        span = f"{series.vary} = {max(series.fit, line['x'][0]):,} to {line['x'][-1]:,}"
        holds = "yes" if measured.holds(claimed) else "no"
        rows.append([series.label, span, _count(line), str(measured), f"{claimed:+g}", holds])
    return rows


def _count(line: Line) -> str:
    least, most = min(line["trials"]), max(line["trials"])
    return str(most) if least == most else f"{most} ({least} at the largest)"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def noise_tables(lines: dict[str, Line]) -> dict[str, Rows]:
    own = {name: line for name, line in lines.items() if name not in WHITENED}
    return {"noise slopes": slopes(own), "whitening": whitening(lines)}


def whitening(lines: dict[str, Line]) -> Rows:
    """The largest noise of both methods and their ratio."""
    rows = [["noise", "d", "tensor power method", "whitening", "ratio"]]
    for model in ("round", "weak"):
        power, white = lines[f"power, {model}"], lines[f"whitening, {model}"]
        for i, d in enumerate(power["x"]):
            ratio = power["value"][i] / white["value"][i]
            stderr = float(np.hypot(power["stderr"][i], white["stderr"][i]))
            cells = [_with_band(line["value"][i], line["stderr"][i]) for line in (power, white)]
            rows.append([model, str(d), *cells, _with_band(ratio, stderr)])
    return rows


def _with_band(value: float, stderr: float) -> str:
    low, high = Level(value, stderr).band
    return f"{_number(value)} ({_number(low)} to {_number(high)})"


def online_tables(lines: dict[str, Line]) -> dict[str, Rows]:
    own = {name: line for name, line in lines.items() if SERIES[name].claimed is not None}
    rows = [["deflation line", "of 4 components found, mean"]]
    for name in ("printed line", "corrected line"):
        rows.append([name, f"{lines[name]['mean'][0]:.2f}"])
    memory = [["d", "bytes of the state per d"], *([f"{d:,}", f"{state_bytes(d) / d:.1f}"] for d in MEMORY)]
    return {"online slopes": slopes(own), "deflation": rows, "memory": memory}


def epsilons(lines: dict[str, Line]) -> dict[str, Line]:
    """The least epsilon of each way, from the largest noise it survives; errors go through the formula."""
    made: dict[str, Line] = {}
    for name, (series, formula, _, _) in CALIBRATIONS.items():
        line = lines[series]
        bounds = [_epsilon(formula, value, s) for value, s in zip(line["value"], line["stderr"], strict=True)]
        made[name] = {"x": line["x"], "value": [a for a, _ in bounds], "stderr": [b for _, b in bounds]}
        made[name]["trials"] = line["trials"]
    return made


def _epsilon(formula: Callable[[float], float], level: float, stderr: float) -> tuple[float, float]:
    low, high = formula(level * np.exp(stderr)), formula(level * np.exp(-stderr))
    return formula(level), float(np.log(high / low) / 2)


def private_tables(lines: dict[str, Line]) -> dict[str, Rows]:
    rows = [["what", "against", "trials of a point", "measured power", "claimed", "holds"]]
    found = epsilons(lines)
    values = [["d", *found]]
    for d in next(iter(found.values()))["x"]:
        values.append([f"{d:,}", *(_level_at(line, d) for line in found.values())])
    for name, line in found.items():
        logarithmic = name in LOGARITHMIC
        rows.append(_private_row(f"epsilon, {name}", line, None if logarithmic else 1.0))
        if logarithmic:
            rows.append(_private_row(f"epsilon / ln d, {name}", _over_logarithm(line), 0.0))
    return {"private slopes": rows, "private levels": values}


def _level_at(line: Line, d: int) -> str:
    if d not in line["x"]:
        return ""
    i = line["x"].index(d)
    return _with_band(line["value"][i], line["stderr"][i])


def _private_row(label: str, line: Line, claimed: float | None) -> list[str]:
    measured = slope(line)
    said = ["", ""] if claimed is None else [f"{claimed:+g}", "yes" if measured.holds(claimed) else "no"]
    return [label, f"d = {line['x'][0]:,} to {line['x'][-1]:,}", _count(line), str(measured), *said]


def _over_logarithm(line: Line) -> Line:
    """The claim is about powers of d; max |u_i|^2 of a random unit vector is about 2 ln d / d."""
    return line | {"value": [value / float(np.log(x)) for x, value in zip(line["x"], line["value"], strict=True)]}


def noise_figure(lines: dict[str, Line]) -> Any:
    """Largest noise against d, and against k."""
    figure, axes = panels(1, 2, (9.6, 4.2), "Largest noise (operator norm) that Algorithm 1 survives half of the time")
    left, right = axes[0]
    for name, color in (("adversarial", ORANGE), ("round", GREY), ("weak", BLUE)):
        _curve(left, lines[name], SERIES[name].label, color, "o-", SERIES[name].fit)
    d = np.array(lines["adversarial"]["x"], dtype=float)
    top = lines["adversarial"]["value"][0]
    left.loglog(d, top * d[0] / d, "k:", lw=1, label=r"$\propto 1/d$ (claimed for unstructured noise)")
    left.set(xlabel="d", ylabel=r"$\|\Delta\|_{op} / \lambda_{min}$")
    line = lines["weak over k"]
    _curve(right, line, SERIES["weak over k"].label, BLUE, "o-")
    k = np.array(line["x"], dtype=float)
    right.loglog(k, line["value"][0] / np.sqrt(k), "k:", lw=1, label=r"$\propto 1/\sqrt{k}$ (claimed)")
    right.set(xlabel="components k")
    return _finished(figure, (left, right))


def online_figure(lines: dict[str, Line]) -> Any:
    """Error against n and d; rows needed against d."""
    figure, axes = panels(1, 3, (11.4, 4.0), "Online tensor power method (Algorithm 2), k = 2, L = R = 10")
    for axis, name in zip(axes[0], ("error over n", "error over d"), strict=False):
        _curve(axis, lines[name], SERIES[name].label, BLUE, "o-")
        axis.set(xlabel="rows n of an iteration" if SERIES[name].vary == "n" else "d", ylabel="error")
    for name, color in (("samples", BLUE), ("found", ORANGE)):
        _curve(axes[0, 2], lines[name], SERIES[name].label, color, "o-", SERIES[name].fit)
    axes[0, 2].set(xlabel="d", ylabel="rows n of an iteration")
    return _finished(figure, axes[0])


def private_figure(lines: dict[str, Line]) -> Any:
    """The least epsilon against d."""
    figure, axes = panels(1, 1, (6.4, 4.4), "Least epsilon (delta = 1e-6) that recovers the first component")
    for name, line in epsilons(lines).items():
        _, _, color, style = CALIBRATIONS[name]
        _curve(axes[0, 0], line, name, color, style)
    axes[0, 0].set(xlabel="d", ylabel="epsilon")
    return _finished(figure, axes[0])


def _curve(axis: Any, line: Line, label: str, color: str, style: str, first: int = 0) -> None:
    """Points, their 95 % bands, and the power in the legend."""
    bands = np.array([Level(v, s).band for v, s in zip(line["value"], line["stderr"], strict=True)]).T
    axis.loglog(line["x"], line["value"], style, color=color, ms=4, lw=1.5, label=f"{label}: {slope(line, first)}")
    axis.fill_between(line["x"], *bands, color=color, alpha=0.2)


def _finished(figure: Any, axes: Any) -> Any:
    """Legends, and ticks where points are: logarithmic axes of less than a decade have none of their own."""
    for axis in axes:
        axis.minorticks_off()
        x = sorted({int(v) for line in axis.get_lines() for v in line.get_xdata()})
        axis.set_xticks(x, [f"{v:,}" for v in x], rotation=45)
        low, high = axis.get_ylim()
        y = [m * 10.0**e for e in range(-4, 6) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
        axis.set_yticks(y, [_number(v) for v in y])
        axis.legend(fontsize=7, frameon=False)
    return figure


TABLES = {"noise": noise_tables, "online": online_tables, "private": private_tables}
DRAWN = {"noise": noise_figure, "online": online_figure, "private": private_figure}
