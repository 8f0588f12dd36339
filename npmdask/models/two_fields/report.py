"""The report of what two fields have in common, and its lines on a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.models.two_fields.answers import CoupledModes, read_coupled
from npmdask.report import Report
from npmdask.report.blocks import Text, parameters, section, spectrum_plot, table, tiles, warnings

TABLES = ("data", "algorithm", "stop", "run", "version", "environment")
VALUES = {"mca": "covariance", "cca": "canonical correlation"}


def lines_of(answer: CoupledModes) -> str:
    """A head, and a line for each mode."""
    head, rows = _table(answer)
    return "\n".join("  ".join(f"{cell:>22}" for cell in row) for row in (head, *rows))


def _table(answer: CoupledModes) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What there is to say of every mode, and what it is called."""
    columns: list[tuple[str, list[str]]] = [
        ("mode", [str(i) for i in range(1, len(answer.values) + 1)]),
        (VALUES[answer.kind], [f"{value:.6g}" for value in answer.values]),
        ("correlation of scores", ["-" if np.isnan(r) else f"{r:.4f}" for r in answer.correlations]),
    ]
    if answer.squared_covariance_fraction is not None:
        shares = [f"{100 * share:.3g} %" for share in answer.squared_covariance_fraction]
        columns.insert(2, ("squared covariance", shares))
    for name, side in (("left", answer.left), ("right", answer.right)):
        columns.append((f"{name} variance", [f"{100 * share:.3g} %" for share in side.explained_variance_ratio]))
    head, cells = zip(*columns, strict=True)
    return head, [tuple(row) for row in zip(*cells, strict=True)]


def coupled_report(run: RunStore, spec: dict[str, Any]) -> Report:
    """Report a finished job.

    Raises
    ------
    BadInputError
        It is not finished.
    """
    answer = read_coupled(run.path)
    head, rows = _table(answer)
    facts = [("passes over the data", str(answer.data_passes))]
    said = ""
    if answer.squared_covariance_error is not None:
        said = (
            "Shares of the squared covariance are of an estimate of all of it, whose standard error is "
            f"{100 * answer.squared_covariance_error:.2g} %. Fields without any relation have a largest covariance, "
            "too: compare with one of them in another order of its rows."
        )
    if answer.chance is not None:
        facts.append(("largest correlation by chance", f"{answer.chance:.3f}"))
        said = "The largest correlation by chance is that of independent rows of fields without any relation."
    right = Text(text=f"Right field: {spec['other_source']}") if "other_source" in spec else None
    return Report(
        title=run.path.name,
        outcome=answer.outcome.sentence,
        good=answer.answered,
        error_statement=answer.assurance,
        sections=(
            section(
                "",
                *warnings(answer.warnings),
                right,
                tiles(facts),
                replace(spectrum_plot(answer.values, VALUES[answer.kind]), x="mode"),
            ),
            section("Modes", table(rows, head), Text(text=said)),
            parameters(spec, TABLES),
        ),
    )
