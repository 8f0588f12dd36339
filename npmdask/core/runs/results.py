"""From the eigenpairs of an operator to the answer that was asked for: units, left singular vectors.

And what was predicted of the steps to it, beside what it took.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.algorithms import Result
from npmdask.core.algorithms.stopping import DOUBLE_EPS, Outcome, StepView
from npmdask.core.certificates.bounds import (
    Certificate,
    Evidence,
    Level,
    certify,
    noisy_recursion,
    of_scale,
    rounding_of,
)
from npmdask.core.certificates.wording import health, sentence
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Gram, Operator, View
from npmdask.core.runs.left_vectors import refine_with_left
from npmdask.core.runs.problem import Problem, arrays_of_operator, representation_of
from npmdask.core.runs.stopping_rules import LowRankRule, excess_of
from npmdask.core.storage.column_statistics import relative
from npmdask.core.storage.kinds import traits_of
from npmdask.core.storage.readers.dense import ReadStats


def in_units(kind: str, theta: np.ndarray) -> np.ndarray:
    """Eigenvalues of the operator as the values of the question: singular values of a matrix are their roots."""
    if (traits := traits_of(kind)).mirrored:
        return theta
    theta = np.maximum(theta, 0.0)  # A^T A has no negative eigenvalues; rounding has
    return np.sqrt(theta) if traits.singular else theta


def answer_arrays(
    kind: str,
    result: Result,
    operator: Operator,
    folder: Path,
    final_pass: Callable[[Operator], tuple[Block, ReadStats]],
) -> dict[str, np.ndarray]:
    """All arrays of a finished run, by name.

    ``basis`` (d x k), ``values``, ``residual_norms`` in the units of the question; ``operator_*`` as the
    algorithm found them (deflation goes on from these); ``left_rotation`` for a matrix, after one more pass.
    """
    values, vectors, residuals = in_units(kind, result.values), result.vectors, result.residual_norms
    left = {}
    if (own := representation_of(operator.reader)) is not None:
        values, vectors, residuals = own.answer(values, vectors, residuals)
    if traits_of(kind).left and isinstance(operator, Gram):  # of a stored Gram there are no rows to make them of
        refined = refine_with_left(operator, result, folder, final_pass)
        values, vectors, residuals = refined.values, refined.vectors, refined.residual_norms
        left = {"left_rotation": refined.rotation, "left_checksums": refined.checksums}
    elif traits_of(kind).singular:
        residuals = residuals / np.where(values > 0, values, np.inf)  # ||A^T u - sigma v||, u = A v / sigma
    return {
        "basis": vectors,
        "values": values,
        "residual_norms": residuals,
        **arrays_of_operator(result),
        **left,
    }


# The certificate of a run: from what it holds at its end, in the units of the question. No pass, no product.


MORE = 64


@dataclass(frozen=True, kw_only=True)
class ErrorStatement:
    """Statement that a result keeps: the sentence, and the numbers as plain JSON (None where nothing is claimed)."""

    assurance: str
    certificate: dict[str, Any]


def assure(
    problem: Problem,
    result: Result,
    history: list[dict[str, Any]],
    trace: float | None,
    operator: Operator,
    constant: int = 0,
    found: Result | None = None,
) -> ErrorStatement | None:
    """The certificate of ``result``; None where there is none to make: tensors, moments, no step.

    ``constant``: columns that counted as constant where columns were to be scaled. ``found``: of complex data the
    closed pairs that ``result`` was made.
    """
    if not problem.certified or not history or not len(result.values):
        return None
    evidence = evidence_of(problem, result, [str(step["precision"]) for step in history], trace, operator)
    certificate = certify(evidence)
    if found is not None:
        certificate = problem.representation.certificate(evidence, certificate, found)
    singular = problem.traits.singular
    residuals = [float(step["worst_residual"]) for step in history]
    state = health(
        certificate, residuals, problem.rule.tol, rate=_rate(evidence, problem), rows=operator.pass_bytes > 0
    )
    numbers = as_numbers(certificate, problem.kind) | {"health": state._asdict()}
    if evidence.stddev:
        numbers["recursion"] = noisy_recursion(evidence, certificate, len(history))
    said = sentence(certificate, singular=singular)
    if constant:
        noun = (
            "One column that counts as constant was"
            if constant == 1
            else f"{constant} columns that count as constant were"
        )
        said += f" {noun} {'left out' if problem.request.center else 'not scaled'}."
    said += getattr(operator.reader, "stated", "")
    return ErrorStatement(assurance=said, certificate=numbers)


def outcome_facts(outcome: Outcome, assured: ErrorStatement | None) -> dict[str, Any]:
    """List what a result keeps of both, by name.

    The advice to go on is taken out of ``outcome`` where the residual had stopped falling: at a floor of rounding,
    which centring a sparse matrix raises above that of the stopping rule, or with a gap too small for so few columns.
    """
    if assured is None:
        return {"outcome": asdict(outcome)}
    if outcome.name == "max_steps" and assured.certificate["health"]["word"] == "stagnating":
        said = outcome.sentence.partition("; continue with")[0]
        said += (
            "; the residual no longer falls, and more steps will not help: raise iteration_rank, or tol if rounding "
        )
        said += "has set a floor (of a sparse matrix with large column means, centring does)"
        outcome = replace(outcome, sentence=said)
    return {"outcome": asdict(outcome), **asdict(assured)}


def with_excess(
    problem: Problem, view: StepView, before: list[StepView], state: Any, trace: float | None, operator: Operator
) -> StepView:
    """``view`` of a step, with what the certificate says is left over after it, if that is what ends the run."""
    if not isinstance(problem.rule, LowRankRule):
        return view
    precisions = [step.precision for step in (*before, view)]
    evidence = evidence_of(problem, problem.algorithm.finalize(state), precisions, trace, operator)
    return replace(view, excess=excess_of(evidence, problem.kind))


def evidence_of(
    problem: Problem, result: Result, precisions: list[str], trace: float | None, operator: Operator
) -> Evidence:
    """Collect what the run knows after steps of these ``precisions``, in the units of the operator."""
    seen, p = result.seen, problem.algorithm.iteration_rank
    values, gram = (seen.values, seen.gram) if seen is not None else (result.values, _gram(result))
    kept = max(p, len(result.values) + MORE)  # beyond them Ritz pairs say little, and there may be thousands
    values, gram = values[:kept], gram[:kept, :kept]
    stddev = float(getattr(problem.mechanism, "stddev", 0.0))
    beside = int(getattr(problem.algorithm, "random_columns", 0))  # of a warm start; one without shows nothing else
    columns = beside if problem.start is not None else p
    random = seen is not None and problem.locked is None and not stddev
    size = max(float(np.abs(result.values).max()), float(getattr(operator, "reach", 0.0)))
    return Evidence(
        values=values,
        gram=gram,
        k=len(result.values),
        d=problem.d,
        nonnegative=problem.traits.of_rows,
        trace=trace,
        multiplied=len(precisions) - 1 if columns else 0,
        columns=columns if random else 0,
        known=problem.start is not None,
        missed=seen.missed if seen is not None else 0.0,
        formed=seen.upper if seen is not None else None,
        degree=seen.degree if seen is not None and random else None,
        powers=seen is not None and seen.powers,
        rounding=_rounding(precisions[-1:], problem.d, size, operator) + (seen.away if seen is not None else 0.0),
        start_rounding=_rounding(precisions, problem.d, size, operator) + (seen.left_out if seen is not None else 0.0),
        stddev=stddev,
        iterated=p,
        locked=0 if problem.locked is None else len(problem.locked.result.values),
    )


def _gram(result: Result) -> np.ndarray:
    """R^T R of the k pairs, where the algorithm tells nothing of the others (a checkpoint of an earlier version)."""
    residuals = result.products - result.vectors * result.values
    return np.asarray(residuals.T @ residuals)


def _rounding(precisions: list[str], d: int, size: float, operator: Any) -> float:
    """Absolute error that arithmetic can make in an eigenvalue: of the products, and of centring."""
    single = "float32" in precisions
    view, moved = getattr(operator, "view", View()), 0.0
    if view.shift is not None:
        moved = math.sqrt(operator.weight * view.weight_of_rows(operator.reader.shape[0]))
        moved *= float(np.linalg.norm(view.on_columns(view.shift[:, None])))
    # A sparse matrix is centred by taking n m m^T off its product; a dense one row by row, before it is multiplied.
    by_algebra = getattr(operator, "centred_by_algebra", False)
    from_centring = moved**2 if by_algebra else moved * math.sqrt(size)
    rounding = rounding_of(d, size, single=single) + 8 * DOUBLE_EPS * from_centring
    if by_algebra:  # at least that of sums over all rows: measured, up to 58 eps of 10,000
        rounding = max(rounding, 2 * relative(operator.reader.shape[0]) * moved**2)
    return rounding + of_scale(view.scale_error, size)


def _rate(evidence: Evidence, problem: Problem) -> float | None:
    """sigma_{p+1} / sigma_k of the power method, as far as Ritz values tell: the last one over the k-th."""
    sizes = np.abs(evidence.values)
    if not getattr(problem.algorithm, "powers_only", False) or len(sizes) <= evidence.k or sizes[evidence.k - 1] == 0:
        return None
    return float(sizes[-1] / sizes[evidence.k - 1])


def as_numbers(certificate: Certificate, kind: str) -> dict[str, Any]:
    """The certificate as plain numbers, in the units of the values of a ``kind``; None: nothing is claimed."""
    return {
        "ground": certificate.best.ground,
        "confidence": certificate.confidence,
        "nearest": _list(_nearest(certificate, kind)),
        "levels": [_level(certificate, level, kind) for level in certificate.levels],
    }


def _nearest(certificate: Certificate, kind: str) -> np.ndarray:
    """Return the bounds of singular values: |s^2 - sigma^2| <= r means |s - sigma| <= r / s, and <= sqrt(r)."""
    if not traits_of(kind).singular:
        return certificate.nearest
    roots = np.sqrt(np.abs(certificate.values))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.fmin(certificate.nearest / roots, np.sqrt(certificate.nearest)))


def _level(certificate: Certificate, level: Level, kind: str) -> dict[str, Any]:
    traits = traits_of(kind)
    lower, upper, size = level.lower, level.upper, np.abs(certificate.values)
    following, low_rank = level.following, level.spectral if traits.square else level.left
    if traits.singular:
        lower, upper, size = np.sqrt(lower), np.sqrt(upper), np.sqrt(size)
        following, low_rank = math.sqrt(following), math.sqrt(low_rank)
    captured = float(np.abs(certificate.values).sum())
    whole = captured + level.lost
    return {
        "ground": level.ground,
        "lower": _list(lower),
        "upper": _list(upper),
        "value_errors": _list(np.maximum(upper - size, size - lower)),
        "following": _number(following),
        "low_rank_error": _number(low_rank),
        "sine": _number(level.sine),
        "component_sines": _list(level.component_sines),
        "captured_of_best": captured / whole if math.isfinite(whole) and whole > 0 else None,
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _list(values: np.ndarray) -> list[float | None]:
    return [_number(float(value)) for value in values]


# What was predicted of a run before its first pass, read back beside what it took. The predictions are made by
# npmdask/planning/predicted_steps.py; a run goes on without them.


NONE = "none: no number of steps was predicted before the first pass"
FORESEEN, SEARCHED = "foreseen", "searched"  # events of the telemetry


def logged_prediction(telemetry: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first prediction; one of None steps says only why there is none."""
    found = [line for line in telemetry if line["event"] == FORESEEN]
    return found[0] if found and found[0]["steps"] is not None else None


def expected_steps(telemetry: list[dict[str, Any]], usual: int | None = None) -> int | None:
    """Steps that the run under way is expected to take, from what was predicted before its first pass; None: unknown.

    Of the run that answers a search what the search took is no part of it. What was predicted of a random start says
    nothing of a run that begins elsewhere. ``usual``: steps of an algorithm that takes as many whatever the data.
    """
    first = logged_prediction(telemetry)
    if first is None or first.get("start") == "random":
        return usual
    searched = sum(line["steps"] for line in telemetry if line["event"] == SEARCHED) if "components" in first else 0
    return max(int(first["steps"]) - searched, 1)


def _compared(first: dict[str, Any], telemetry: list[dict[str, Any]], steps: int) -> tuple[str, int, str]:
    """Return what is compared: words on the predicted steps, the steps that were taken, and words on those."""
    if "components" in first:
        searches = [line for line in telemetry if line["event"] == SEARCHED]
        search: dict[str, Any] = searches[-1] if searches else {"steps": 0, "rank": "as many as are found"}
        predicted = f" with those of the search, for {first['components']} components"
        return predicted, steps + search["steps"], f", for {search['rank']}"
    if first.get("start") == "random":
        return " from a random start", steps, " from where an earlier run came to"
    return "", steps, ""


def prediction_facts(telemetry: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Return ``predicted_steps`` (None: unknown), and the ``prediction`` as a sentence."""
    first = logged_prediction(telemetry)
    if first is None:
        why = next((line["why"] for line in telemetry if line["event"] == FORESEEN), "")
        return {"predicted_steps": None, "prediction": f"none: {why}" if why else NONE}
    of, taken, so = _compared(first, telemetry, steps)
    said = f"predicted {first['steps']} steps{of}, took {taken}{so}"
    if not first["reached"]:
        said = f"predicted not to reach the tolerance in {first['steps']} steps{of}, took {taken}{so}"
    return {"predicted_steps": first["steps"], "prediction": said}


def comparison(telemetry: list[dict[str, Any]], history: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return rows for a page: what, predicted before the first pass, measured; none if nothing was predicted."""
    first = logged_prediction(telemetry)
    if first is None:
        return []
    predicted = f"{first['steps']}" if first["reached"] else f"more than {first['steps']}"
    of, taken, so = _compared(first, telemetry, len(history))
    what = f"steps (predicted{of}; taken{so})" if of else "steps"
    rows: list[tuple[str, ...]] = [(what, predicted, f"{taken}")]
    if first.get("residual") is not None:
        plateau = min(step["worst_residual"] for step in history)
        rows.append(("relative residual at the plateau of the noise", f"{first['residual']:.1e}", f"{plateau:.1e}"))
    return rows
