"""State how wrong the patterns of two fields can be, from the dilation of their cross-covariance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from npmdask.theory.certificates.bounds import SEEN, START
from npmdask.theory.certificates.wording import Assurance, at_most_percent, degrees

LARGE = 0.05  # of a value: a larger error is said as a percentage, not as digits


def of_coupled(certificate: Mapping[str, Any] | None, lead: np.ndarray, values: np.ndarray) -> Assurance:
    """Of maximum covariance analysis.

    Parameters
    ----------
    certificate : of the run on ``[[0, C], [C^T, 0]]``, as numbers (:func:`npmdask.runs.results.as_numbers`).
    lead : which of its 2 k eigenvalues, of both signs, are those of the modes.
    values : covariances of the modes (k), as they are given: 0 where they cannot be distinguished from zero.
    """
    k, noun = len(values), "covariance" if len(values) == 1 else f"{len(values)} covariances"
    if certificate is None:
        return Assurance("", {})
    if not (values > 0).any():
        said = (
            f"For these data the {noun} cannot be distinguished from zero: up to rounding, the fields do not vary "
            "together."
        )
        return Assurance(said, {"ground": certificate["ground"], "value_errors": [], "sine": None})
    level = next(level for level in certificate["levels"] if level["ground"] == certificate["ground"])
    errors = np.array([_bound(level["value_errors"][i]) for i in lead])
    nearest = np.array([_bound(certificate["nearest"][i]) for i in lead])
    sine = _bound(level["sine"])
    numbers = {
        "ground": certificate["ground"],
        "confidence": certificate["confidence"],
        "value_errors": [None if math.isinf(error) else float(error) for error in errors],
        "nearest": [None if math.isinf(error) else float(error) for error in nearest],
        "sine": None if math.isinf(sine) else sine,
    }
    told = (values > 0) & (errors < values)
    if not told.any() or not np.isfinite(errors).all() or (errors[values > 0] > values[values > 0]).any():
        within = float((nearest[values > 0] / values[values > 0]).max())
        near = f"each of the {noun} given is within {at_most_percent(within)} of a true one"
        return Assurance(
            f"The error of the answer cannot be bounded: {near}, but not necessarily of one of the largest.",
            numbers,
        )
    worst = float((errors[told] / values[told]).max())
    zeros = k - int((values > 0).sum())
    parts = [f"For these data the {noun} {'is' if k == 1 else 'are'} {_accuracy(worst)}"]
    if zeros:
        parts[0] += f" (but {zeros} of them cannot be distinguished from zero)"
    if math.isfinite(sine):
        spaces = "the pattern of either field is" if k == 1 else f"the subspace of the {k} patterns of either field is"
        parts.append(f"{spaces} off by at most {degrees(min(1.0, sine), least=0)}")
    else:
        parts.append("the patterns themselves cannot be distinguished from equally good ones")
    return Assurance(", and ".join(parts) + _condition(certificate) + ".", numbers)


def _bound(value: float | None) -> float:
    return math.inf if value is None else float(value)


def _accuracy(error: float) -> str:
    if error > LARGE:
        return f"at most {at_most_percent(error)} off"
    digits = min(15, math.floor(-math.log10(max(error, 1e-300))))
    return f"accurate to {digits} digit{'s' * (digits != 1)}"


def _condition(certificate: Mapping[str, Any]) -> str:
    if certificate["ground"] == START:
        chance = at_most_percent(1 - certificate["confidence"])
        return f", assuming the random start missed no direction (probability of a miss below {chance})"
    if certificate["ground"] == SEEN:
        return ", assuming no larger covariance was missed (none was detected, but this run cannot rule it out)"
    return ""
