"""The report of latent variables of samples: what was found, how the decomposition converged, and its spectrum."""

from __future__ import annotations

from typing import Any

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.models.latent.answers import read_latent
from npmdask.models.latent.common import decomposition_history
from npmdask.report import Plot, Report
from npmdask.report.blocks import parameters, section, series, spectrum, table, tiles, warnings

TABLES = ("data", "algorithm", "stop", "run", "version", "environment")
LEAST = 1e-17  # what is smaller is drawn here: zero has no place on a logarithmic axis


def latent_report(run: RunStore, spec: dict[str, Any]) -> Report:
    """Report a finished job.

    Raises
    ------
    BadInputError
        It is not finished.
    """
    answer = read_latent(run.path)
    numbers = {name: value for name, value in answer.facts.items() if isinstance(value, float | int)}
    rows = ((i, f"{weight:.6g}") for i, weight in enumerate(answer.weights, 1))
    head = section(
        "",
        *warnings(answer.warnings),
        tiles((name, f"{value:.6g}") for name, value in numbers.items()),
        _convergence(decomposition_history(run)),
        spectrum(np.array(answer.facts["spectrum"]), "eigenvalue of the second moment"),
    )
    return Report(
        title=run.path.name,
        outcome=answer.outcome.sentence,
        good=answer.answered,
        error_statement=answer.assurance,
        sections=(
            head,
            section("Components", table(rows, ("component", answer.weight_name))),
            parameters(spec, TABLES),
        ),
    )


def _convergence(history: list[dict[str, Any]]) -> Plot:
    residuals = [max(step["worst_residual"], LEAST) for step in history]
    return Plot(
        title="Convergence of the tensor power method",
        x="product",
        y="worst relative residual",
        series=(series([step["step"] for step in history], residuals),),
        log=True,
    )
