"""The report of a private run: what was released, what is promised, what it cost, and what is not promised.

Made of the release bundle alone (result, or the history of the steps so far): everything on it is post-processing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from npmdask.privacy.account import budget_left
from npmdask.report import Plot, Report, Section, Table, Text
from npmdask.report.blocks import section, series, table, tiles, warnings
from npmdask.theory.certificates.statements import assurance_of
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


def private_report(store: Path, spec: dict[str, Any], history: list[dict[str, Any]], result: Any) -> Report:
    """Report the private run in ``store`` from its releases so far, and from its ``result`` where it has one."""
    name = name_of(store)
    if result is None:
        done = f"{len(history)} of {spec['stop']['max_steps']} releases are made; go on with `npmdask resume`"
        made = section("Releases", _releases(history))
        return Report(title=name, outcome=done, good=False, sections=(made, _limits()))
    arrays, meta = result
    statement = meta["statement"]
    head = section(
        "", *warnings(statement["warnings"]), _tiles(statement), _values(arrays), _noise_plot(history, statement)
    )
    left = budget_left(spec["privacy"], spec["source"])
    return Report(
        title=name,
        outcome=meta["outcome"]["sentence"],
        good=True,
        error_statement=assurance_of(spec, result),
        sections=(
            head,
            section("Components", _about_values(arrays, statement), _components(arrays)),
            section("Releases", _releases(history)),
            section("What was promised", _facts(statement, left)),
            _limits(),
        ),
    )


def _about_values(arrays: dict[str, np.ndarray], statement: dict[str, Any]) -> Text:
    said = f"Values are {statement['values_are']}"
    if "value_stddevs" not in arrays:
        return Text(text=f"{said}.")
    return Text(
        text=f"{said}; ± is what the noise of the last release does (one standard deviation, the vectors held fixed). "
        "Where it is not small, vectors follow the noise, and values lie too high."
    )


def nodes_sections(statement: dict[str, Any]) -> list[Section]:
    """Say of a distributed run what each node promises, and what crossed between the centre and its nodes."""
    names = ("url", "rows", "protects", "epsilon", "delta", "mu", "releases")
    rows = ([_said(node.get(name)) for name in names] for node in statement["nodes"])
    about = Text(
        text=f"Values are {statement['values_are']}. What each node adds to a product is its own, and everything that "
        "was sent is public."
    )
    head = ("node", "rows", "protected", "epsilon", "delta", "mu", "releases")
    return [
        section("Nodes", *warnings(statement.get("warnings", [])), about, table(rows, head)),
        section("What crossed between the centre and its nodes", table(statement["communication"].items())),
    ]


def _said(value: Any) -> str:
    if value is None:
        return "not said"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _limits() -> Section:
    return section("Scope and limits", *(Text(text=line, style="item") for line in LIMITS))


def _tiles(statement: dict[str, Any]) -> Table:
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
    return ", ".join(_clipped(norm) for norm in statement["image_norms"])


def _values(arrays: dict[str, np.ndarray]) -> Plot:
    values = arrays["values"]
    drawn = series(range(1, len(values) + 1), values, style="points", spread=arrays.get("value_stddevs"))
    bottom = min(0.0, float(np.min(values)))
    return Plot(title="Released values", x="component", y="value", series=(drawn,), bottom=bottom)


def _noise_plot(history: list[dict[str, Any]], statement: dict[str, Any]) -> Plot:
    history = [h for h in history if not _counts(h)]
    steps = [h["step"] for h in history]
    drawn = [series(steps, [max(abs(h["ritz_values"][0]), 1e-300) for h in history], "largest value")]
    if statement["noise_stddev"]:
        norms = [_norm(h, statement["columns"], statement["iteration_rank"]) for h in history]
        drawn.append(series(steps, norms, "norm of the noise, predicted", style="dashed"))
    return Plot(
        title="What was released, step by step",
        x="release",
        y="largest value, noise of a block",
        series=tuple(drawn),
        log=True,
    )


def _norm(released: dict[str, Any], d: int, p: int) -> float:
    """Of the noise: as a matrix, or of a tensor, where every column is for itself, of one column or score."""
    rows, columns = {"contraction": (d, 1), "scores": (1, 1)}.get(str(released["release"]), (d, p))
    return gaussian_norm(released["noise_stddev"], rows, columns)


def _components(arrays: dict[str, np.ndarray]) -> Table:
    values, spread = arrays["values"], arrays.get("value_stddevs", np.full(len(arrays["values"]), np.nan))
    pairs = enumerate(zip(values, spread, strict=True), 1)
    rows = ((i, f"{v:.6g}", "" if np.isnan(s) else f"± {s:.2g}") for i, (v, s) in pairs)
    return table(rows, ("component", "value", "noise"))


def _releases(history: list[dict[str, Any]]) -> Table:
    """A line for each product that was released; the digest is the one that the ledger holds the run to."""
    head = (
        "release",
        "of a",
        "noise of an entry",
        "images clipped to",
        "largest value",
        "SHA-256 in the ledger",
    )
    rows = (
        (
            h["step"],
            h["release"],
            _noise(h),
            _clipped(h.get("image_norm")),
            f"{h['ritz_values'][0]:.6g}",
            h["digest"][:16],
        )
        for h in history
    )
    return table(rows, head)


def _counts(released: dict[str, Any]) -> bool:
    """Whether a release is of a histogram: its noise is on counts."""
    return str(released["release"]).startswith("range")


def _noise(released: dict[str, Any]) -> str:
    return f"{released['noise_stddev']:.4g}{' records on a count' if _counts(released) else ''}"


def _clipped(image_norm: float | None) -> str:
    return "not clipped" if image_norm is None else f"{image_norm:.4g}"


def _facts(statement: dict[str, Any], left: str) -> Table:
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
