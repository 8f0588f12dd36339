"""Answers of jobs on samples, read from their stores; and going on with one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.certificates.wording import Assurance
from npmdask.core.checkpoint.store import RunStore, answer_of_job
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.latent.fit import (
    ANSWER,
    INDEPENDENT,
    MIXTURE,
    fit_independent_components,
    fit_mixture,
    refinement_sentence,
)
from npmdask.latent.statements import of_independent, of_mixture
from npmdask.manage.staged_job import TABLES, StagedJob, decomposition_history, job_report
from npmdask.report import Plot, Report
from npmdask.report.blocks import Section, Text, parameters, section, series, spectrum_plot, table, tiles, warnings


class Found(NamedTuple):
    """Differences between the jobs on samples, and the function that states how wrong an answer can be.

    ``fit`` runs a job; ``weights`` names the array of its weights, and ``weight_name`` says what one is called.
    ``assurance`` takes the parameters of a store, its arrays and what is known of them.
    """

    fit: Callable[..., Any]
    weights: str
    weight_name: str
    assurance: Callable[[Mapping[str, Any], Mapping[str, np.ndarray], Mapping[str, Any]], Assurance]


def _of_mixture(spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Assurance:
    n, d = spec["data"]["shape"]
    asked = int(spec["algorithm"]["components"])
    variances = arrays.get("variances", np.full(len(arrays["weights"]), float(meta["variance"])))
    return of_mixture(arrays["weights"], variances, (n, d), asked=asked, total=meta["facts"]["weights_sum"])


def _of_independent(spec: Mapping[str, Any], arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Assurance:
    asked = int(spec["algorithm"]["components"])
    return of_independent(arrays["kurtoses"], arrays["mixing"], spec["data"]["shape"][0], asked=asked)


FOUND = {
    MIXTURE: Found(fit_mixture, "weights", "weight", _of_mixture),
    INDEPENDENT: Found(fit_independent_components, "kurtoses", "excess kurtosis", _of_independent),
}


@dataclass(frozen=True, kw_only=True)
class LatentAnswer:
    """Answer found in samples: ``weights`` of a mixture, or the kurtoses of independent components.

    ``assurance``: how wrong it can be, in a sentence for everybody.
    """

    kind: str
    weights: np.ndarray
    store: str
    outcome: Outcome
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    assurance: str = ""

    @property
    def answered(self) -> bool:
        return self.outcome.converged

    @property
    def refinement(self) -> str:
        """Describe the changes by passes after the moments, in a sentence; empty where none were asked for."""
        return refinement_sentence(self.facts["refinement"]) if "refinement" in self.facts else ""

    @property
    def weight_name(self) -> str:
        return FOUND[self.kind].weight_name


def read_latent(store: str | Path) -> LatentAnswer:
    """The answer of a finished job.

    Raises
    ------
    BadInputError
        There is none yet.
    """
    held = RunStore(store)
    arrays, meta, spec = answer_of_job(held, ANSWER)
    kind = spec["data"]["kind"]
    facts = {name: value for name, value in meta["facts"].items() if name not in ("warnings", "outcome")}
    facts |= {"variance": meta["variance"]} if "variance" in meta else {}
    return LatentAnswer(
        kind=kind,
        weights=arrays[FOUND[kind].weights],
        store=held.place,
        outcome=Outcome(**meta["facts"]["outcome"]),
        warnings=tuple(meta["facts"]["warnings"]),
        facts=facts,
        assurance=FOUND[kind].assurance(spec, arrays, meta).sentence,
    )


def fit_latent(
    kind: str,
    source: Any,
    components: int,
    *,
    store: str | Path,
    resources: Resources,
    observer: Observer,
    **asked: Any,
) -> LatentAnswer:
    """Run a job of one kind, or go on with it."""
    FOUND[kind].fit(source, components, store=store, resources=resources, observer=observer, **asked)
    return read_latent(store)


def resume_latent(store: str | Path, resources: Resources, observer: Observer) -> LatentAnswer:
    """Go on with a job as it was asked for."""
    spec = RunStore(store).read_spec() or {}
    asked = {name: value for name, value in spec["algorithm"].items() if name not in ("name", "components")}
    kind, components = spec["data"]["kind"], spec["algorithm"]["components"]
    return fit_latent(kind, spec["source"], components, store=store, resources=resources, observer=observer, **asked)


JOB = StagedJob(
    LatentAnswer, resume_latent, read_latent, lambda answer: {"weights": answer.weights.tolist(), **answer.facts}
)

# The report of latent variables of samples: what was found, how the decomposition converged, and its spectrum.


NAMES = {  # of facts, on a page
    "condition": "condition number of the second moment",
    "weights_sum": "sum of the weights of the moments",
    "variance": "mean variance of a cloud",
    "largest_change": "largest change, in sampling errors",
    "left_to_go": "left to go, in sampling errors",
    "settled": "settled: less than a tenth is left to go",
    "log_likelihood_before": "log-likelihood of a row before",
    "log_likelihood_after": "log-likelihood of a row after, at least",
    "narrowest": "components of the least variance allowed",
    "single_rows": "components of less than two rows",
    "contrasts": "contrast of each source",
}
MOST_COLUMNS, MOST_COMPONENTS = 20, 10  # of the means on a page: `npmdask export` writes all of them
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
        tiles((NAMES.get(name, name), f"{value:.6g}") for name, value in numbers.items()),
        _convergence(decomposition_history(run)),
        spectrum_plot(np.array(answer.facts["spectrum"]), "eigenvalue of the second moment"),
    )
    components = section("Components", table(rows, ("component", answer.weight_name)))
    return job_report(run, answer, head, components, *_means(run), *_refined(answer), parameters(spec, TABLES))


def _means(run: RunStore) -> list[Section]:
    """The means of a mixture, column by column; of many columns those in which they differ most."""
    found = run.read_part(ANSWER)
    if found is None or "means" not in found[0] or not found[0]["means"].size:
        return []
    means, weights = found[0]["means"], found[0]["weights"]  # d x k, k
    (d, k), shown = means.shape, min(means.shape[1], MOST_COMPONENTS)
    columns = np.arange(d)
    if d > MOST_COLUMNS:
        apart = ((means - np.average(means, axis=1, weights=weights)[:, None]) ** 2) @ weights
        columns = np.sort(np.argsort(-apart, kind="stable")[:MOST_COLUMNS])
    left_out = [
        *([f"the {MOST_COLUMNS} of {d} columns in which they differ most"] if d > MOST_COLUMNS else []),
        *([f"the {shown} of {k} components with the largest weights"] if k > shown else []),
    ]
    said = f"Shown are {' and '.join(left_out)}; `npmdask export` writes all." if left_out else ""
    rows = ((int(j), *(f"{value:.6g}" for value in means[j, :shown])) for j in columns)
    head = ("column (the first is 0)", *(f"component {i}" for i in range(1, shown + 1)))
    return [section("Means", Text(text=said) if said else None, table(rows, head))]


def _refined(answer: LatentAnswer) -> list[Section]:
    facts = answer.facts.get("refinement")
    if facts is None:
        return []
    said = {float: lambda value: f"{value:.6g}", list: ", ".join, bool: lambda value: "yes" if value else "no"}
    rows = ((NAMES.get(name, name), said.get(type(value), str)(value)) for name, value in facts.items() if value != "")
    return [section("After the moments", Text(text=answer.refinement), table(rows, ("what", "value")))]


def _convergence(history: list[dict[str, Any]]) -> Plot:
    residuals = [max(step["worst_residual"], LEAST) for step in history]
    return Plot(
        title="Convergence of the tensor power method",
        x="product",
        y="worst relative residual",
        series=(series([step["step"] for step in history], residuals),),
        log=True,
    )
