"""The page of a private run: what was released, what is promised, what it cost, and what is not promised.

Made of the release bundle alone (result, or the history of the steps so far): everything on it is post-processing.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.report.html import heading, table, tiles
from npmdask.report.plots import BLUE, ORANGE, axes, svg
from npmdask.theory.start import gaussian_norm

LIMITS = (
    "Promised is what an observer of everything that was released can learn about one neighbouring change of the "
    "data. Several records of one person count one by one: for j of them epsilon grows j-fold.",
    "Not protected: that the run took place, when, and how long it took; the columns of the data; what is true of "
    "everybody and not only of one person.",
    "The bound holds for the noise as drawn (rounded to a grid; the error budget of the sampler is part of epsilon and "
    "delta), as long as the key of the noise is secret until it is destroyed at the end of the run, and the data "
    "themselves are read by nobody else.",
    "Clipping, the number of releases and all other parameters are taken as public. If they were chosen by looking at "
    "the data, that look is not accounted for.",
)


def flat(facts: dict[str, Any]) -> list[tuple[str, Any]]:
    """Facts without nesting, for people: ``statement.mechanism.budget.epsilon``."""
    rows: list[tuple[str, Any]] = []
    for name, value in facts.items():
        rows += [(f"{name}.{inner}", v) for inner, v in flat(value)] if isinstance(value, dict) else [(name, value)]
    return rows


def name_of(store: Path) -> str:
    """What a run is called: its folder; with the one above it where that numbers its releases."""
    return f"{store.parent.name}, release {int(store.name)}" if store.name.isdigit() else store.name


def private_page(
    name: str, spec: dict[str, Any], history: list[dict[str, Any]], result: Any, left: str, assurance: str = ""
) -> list[str]:
    """The sections of the page. ``left``: what is left of the budget, in a sentence of the ledger; ``assurance``: how
    wrong the answer can be."""
    if result is None:
        done = f"{len(history)} of {spec['stop']['max_steps']} releases are made; go on with `npmdask resume`"
        head = [f"<h1>{html.escape(name)}</h1>", f'<p class="outcome bad">{done}</p>']
        return [*head, "<h2>Releases</h2>", _releases(history), *_limits()]
    arrays, meta = result
    statement = meta["statement"]
    return [
        *heading(name, meta["outcome"]["sentence"], good=True, assurance=assurance),
        *_warnings(statement["warnings"]),
        _tiles(statement),
        '<div class="plots">',
        _values_svg(arrays, statement),
        _noise_svg(history, statement),
        "</div>",
        "<h2>Components</h2>",
        _about_values(arrays, statement),
        _components(arrays),
        "<h2>Releases</h2>",
        _releases(history),
        "<h2>What was promised</h2>",
        _facts(statement, left),
        *_limits(),
    ]


def _warnings(said: list[str]) -> list[str]:
    return [f'<p class="outcome bad">{html.escape(warning)}</p>' for warning in said]


def _about_values(arrays: dict[str, np.ndarray], statement: dict[str, Any]) -> str:
    said = f"<p>Values are {html.escape(statement['values_are'])}"
    if "value_stddevs" not in arrays:
        return f"{said}.</p>"
    return (
        f"{said}; ± is what the noise of the last release does (one standard deviation, the vectors held fixed). Where "
        "it is not small, vectors follow the noise, and values lie too high.</p>"
    )


def nodes_section(statement: dict[str, Any]) -> list[str]:
    """Of a distributed run: what each node promises, and what crossed between the centre and its nodes."""
    head = ("node", "rows", "protected", "epsilon", "delta", "mu", "releases")
    lines = [
        (n["url"], n["rows"], n["protects"], n.get("epsilon"), n.get("delta"), n.get("mu"), n.get("releases"))
        for n in statement["nodes"]
    ]
    rows = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in line)}</tr>" for line in lines)
    crossed = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in statement["communication"].items())
    return [
        "<h2>Nodes</h2>",
        *_warnings(statement.get("warnings", [])),
        f"<p>Values are {html.escape(statement['values_are'])}. What each node adds to a product is its own, and "
        "everything that was sent is public.</p>",
        f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{rows}</table>",
        "<h2>What crossed between the centre and its nodes</h2>",
        f"<table>{crossed}</table>",
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "not said"
    return f"{value:g}" if isinstance(value, float) else html.escape(str(value))


def _limits() -> list[str]:
    return ["<h2>Scope and limits</h2>", "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in LIMITS) + "</ul>"]


def _tiles(statement: dict[str, Any]) -> str:
    noise = statement["noise_stddev"]
    facts = [
        ("epsilon", f"{statement['epsilon']:g}"),
        ("delta", f"{statement['delta']:g}"),
        ("mu (Gaussian DP)", f"{statement['mu']:.5g}" if statement["mu"] else "none: pure epsilon"),
        ("releases", str(statement["releases"])),
        ("noise of an entry", f"{max(noise):.4g}" if noise else "see below"),
    ]
    ratio = statement["noise_to_paper"]
    return tiles(facts if ratio is None else [*facts, ("noise against the paper's formula", f"{ratio:.2f} of it")])


def _error(sine: float | None) -> str:
    if sine is None:
        return "no formula of theory; how wrong it can be is said above"
    return f"sin(angle) to the true components about {sine:.2g} (an estimate from what was released, not a bound)"


def _norms(statement: dict[str, Any]) -> str:
    return ", ".join("not clipped" if norm is None else f"{norm:.4g}" for norm in statement["image_norms"])


def _values_svg(arrays: dict[str, np.ndarray], statement: dict[str, Any]) -> str:
    figure, axis = axes("Released values", "component", "value")
    numbers, spread = np.arange(1, len(arrays["values"]) + 1), arrays.get("value_stddevs")
    axis.errorbar(numbers, arrays["values"], yerr=spread, fmt="o", color=BLUE, capsize=3)
    axis.set_ylim(bottom=min(0.0, float(np.min(arrays["values"]))))
    axis.xaxis.get_major_locator().set_params(integer=True)
    return svg(figure)


def _noise_svg(history: list[dict[str, Any]], statement: dict[str, Any]) -> str:
    figure, axis = axes("What was released, step by step", "release", "largest value, noise of a block")
    history = [h for h in history if not _counts(h)]
    steps = [h["step"] for h in history]
    axis.semilogy(
        steps, [max(abs(h["ritz_values"][0]), 1e-300) for h in history], "o-", color=BLUE, label="largest value"
    )
    if statement["noise_stddev"]:
        d, p = statement["columns"], statement["iteration_rank"]
        norms = [_norm(h, d, p) for h in history]
        axis.semilogy(steps, norms, "s--", color=ORANGE, label="norm of the noise, predicted")
    axis.legend(frameon=False, fontsize=8)
    axis.xaxis.get_major_locator().set_params(integer=True)
    return svg(figure)


def _norm(released: dict[str, Any], d: int, p: int) -> float:
    """Of the noise: as a matrix, or of a tensor, where every column is for itself, of one column or score."""
    rows, columns = {"contraction": (d, 1), "scores": (1, 1)}.get(str(released["release"]), (d, p))
    return gaussian_norm(released["noise_stddev"], rows, columns)


def _components(arrays: dict[str, np.ndarray]) -> str:
    values, spread = arrays["values"], arrays.get("value_stddevs", np.full(len(arrays["values"]), np.nan))
    rows = "".join(
        f"<tr><td>{i}</td><td>{v:.6g}</td><td>{'' if np.isnan(s) else f'± {s:.2g}'}</td></tr>"
        for i, (v, s) in enumerate(zip(values, spread, strict=True), 1)
    )
    return f"<table><tr><th>component</th><th>value</th><th>noise</th></tr>{rows}</table>"


def _releases(history: list[dict[str, Any]]) -> str:
    """A line for each product that was released; the digest is the one that the ledger holds the run to."""
    rows = "".join(
        f"<tr><td>{h['step']}</td><td>{h['release']}</td><td>{_noise(h)}</td>"
        f"<td>{_clipped(h.get('image_norm'))}</td>"
        f"<td>{h['ritz_values'][0]:.6g}</td><td>{h['digest'][:16]}</td></tr>"
        for h in history
    )
    heads = (
        "release",
        "of a",
        "noise of an entry",
        "images clipped to",
        "largest value",
        "SHA-256 in the ledger",
    )
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{rows}</table>"


def _counts(released: dict[str, Any]) -> bool:
    """Whether a release is of a histogram: its noise is on counts."""
    return str(released["release"]).startswith("range")


def _noise(released: dict[str, Any]) -> str:
    return f"{released['noise_stddev']:.4g}{' records on a count' if _counts(released) else ''}"


def _clipped(image_norm: float | None) -> str:
    return "not clipped" if image_norm is None else f"{image_norm:.4g}"


def _facts(statement: dict[str, Any], left: str) -> str:
    charge, event = statement["charge"], statement["mechanism"]
    facts = [
        ("protected (unit)", statement["protects"]),
        ("promise", f"epsilon = {statement['epsilon']:g}, delta = {statement['delta']:g}"),
        ("spent, exactly", f"epsilon = {statement['epsilon_spent']:.6g} at that delta"),
        ("of which: Gaussian", f"mu = {statement['mu']:.6g}"),
        ("of which: pure, and the sampler's error", f"epsilon {charge['epsilon']:.3g}, delta {charge['delta']:.3g}"),
        *([("rests on", statement["rests_on"])] if statement.get("rests_on") else []),
        ("predicted (from released values)", _error(statement["predicted_error"])),
        ("images clipped to, step by step", _norms(statement)),
        ("left in the ledger", left),
        *((f"mechanism.{name}", value) for name, value in flat(event)),
    ]
    return table(facts)
