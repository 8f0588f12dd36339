"""State a certificate, and the health of a run, in one sentence for non-specialists; and the table of how numbers read.

What results without a certificate say is in :mod:`npmdask.core.certificates.statements`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from npmdask.core.certificates.bounds import SEEN, START, Certificate, Level

LOST = 0.8  # the sine of 53 degrees: a direction that far off says as little of the true one as many others would


class Assurance(NamedTuple):
    """Statement of how wrong an answer can be: a sentence for everybody, and the numbers that it is made of.

    ``numbers`` are fractions (shares, sines, relative errors) or in the units of the answer, as their names say.
    """

    sentence: str
    numbers: dict[str, Any]


def degrees(sine: float, *, least: float = 0.01) -> str:
    """The angle with this ``sine`` (0 to 1), rounded up; at least ``least``, which is 0 for bounds only."""
    angle = math.degrees(math.asin(min(max(sine, 0.0), 1.0)))
    return f"{max(_round_up(angle), least):g} degrees"


def percent(share: float) -> str:
    """A share (0.123) as a percentage of three digits: 12.3 %."""
    return f"{100 * share:.3g} %"


def at_most_percent(share: float) -> str:
    """The same, rounded up to two digits."""
    return f"{_round_up(100 * share):g} %"


def number(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}"


def spread(value: float) -> str:
    """Format what is added to or taken from a number: two digits, rounded up."""
    return f"{_round_up(value):g}"


def the_components(count: int) -> str:
    """So many of them, with their article."""
    return "the component" if count == 1 else f"the {count} components"


def _round_up(value: float) -> float:
    """``value`` of two significant digits, never less than it is."""
    if not value or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.2g}")


WINDOW = 5  # last steps in which a residual must fall
FALL = 0.9  # by so much at least


class Health(NamedTuple):
    """``word``: good, short, collapsed or stagnating."""

    word: str
    sentence: str


def sentence(certificate: Certificate, *, singular: bool = False) -> str:
    """Say how wrong the answer can be, in one sentence.

    ``singular``: the values are roots of those of the certificate.

    It speaks of the data as they are: rows drawn again from where they come from would have another answer.
    """
    level, k = certificate.best, len(certificate.values)
    noise = ", including the noise of the run" if certificate.noisy else ""
    if not bounds_values(certificate, singular=singular):
        return _residuals_only_text(certificate, noise, singular=singular)
    if not _is_significant(certificate).any():
        subject = "the value" if k == 1 else f"the {k} values"
        return f"For these data {subject} cannot be distinguished from zero: other components are equally good{noise}."
    values = _values(certificate, level, singular=singular)
    parts = _components(certificate, level, k)
    return f"{values}, {parts}{_condition(level.ground, certificate.confidence)}{noise}."


def bounds_values(certificate: Certificate, *, singular: bool = False) -> bool:
    """Say whether the sentence bounds the values: not where an error may be as large as its value."""
    errors = relative_errors(certificate, certificate.best, singular=singular)
    finite = np.isfinite(certificate.best.upper).all()
    return bool(finite and not (errors[_is_significant(certificate)] > 1).any())


def _residuals_only_text(certificate: Certificate, noise: str, *, singular: bool) -> str:
    """Nothing is known of which eigenvalues were found: the residuals alone speak."""
    k, sizes = len(certificate.values), np.abs(certificate.values)
    within = float((certificate.nearest / np.where(sizes > 0, sizes, np.inf)).max())
    noun = "the value given is" if k == 1 else f"each of the {k} values given is"
    near = f"{noun} within {at_most_percent(within / (2 if singular and within < 0.1 else 1))} of a true one"
    return f"The error of the answer cannot be bounded: {near}, but not necessarily of one of the largest{noise}."


def _values(certificate: Certificate, level: Level, *, singular: bool) -> str:
    k = len(certificate.values)
    told = _is_significant(certificate)
    subject = "For these data the value is" if k == 1 else f"For these data the {k} values are"
    error = relative_errors(certificate, level, singular=singular)[told].max()
    said = f"{subject} {_accuracy(float(error))}"
    zeros = int(k - told.sum())
    return said if not zeros else f"{said} (but {zeros} of them cannot be distinguished from zero)"


def _is_significant(certificate: Certificate) -> np.ndarray:
    """The values that are more than rounding and noise; of the others it is known that they are (nearly) zero."""
    return np.asarray(np.abs(certificate.values) > 10 * certificate.perturbation)


def relative_errors(certificate: Certificate, level: Level, *, singular: bool) -> np.ndarray:
    """Compute the error of each value, relative to the value: k numbers (nan for a value that is zero)."""
    lower, sizes, upper = level.lower, np.abs(certificate.values), level.upper
    if singular:
        lower, sizes, upper = np.sqrt(lower), np.sqrt(sizes), np.sqrt(upper)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.maximum(upper - sizes, sizes - lower) / sizes)


def _accuracy(error: float) -> str:
    if error > 0.05:
        return f"at most {at_most_percent(error)} off"
    return f"accurate to {min(15, math.floor(-math.log10(max(error, 1e-300))))} digits".replace(" 1 digits", " 1 digit")


def _components(certificate: Certificate, level: Level, k: int) -> str:
    if math.isfinite(level.sine):
        what = "the component" if k == 1 else f"the subspace of the {k} components"
        return f"and {what} is off by at most {degrees(level.sine, least=0)}"
    sizes = np.abs(certificate.values)
    least = float(sizes.sum() / (sizes.sum() + level.lost)) if sizes.sum() + level.lost > 0 else 1.0
    what = "component itself" if k == 1 else "components themselves"
    return (
        f"but the {what} cannot be distinguished from equally good ones, because the {_ordinal(k + 1)} value may be as "
        f"large as the {_ordinal(k)}: what they capture is at least {_floor_percent(least)} of the most that {k} can"
    )


def _condition(ground: str, confidence: float, noun: str = "value") -> str:
    if ground == START:
        chance = at_most_percent(1 - confidence)
        return f", assuming the random start missed no direction (probability of a miss below {chance})"
    if ground == SEEN:
        return f", assuming no larger {noun} was missed (none was detected, but this run cannot rule it out)"
    return ""


def _floor_percent(share: float) -> str:
    """Format a lower bound as a percentage: never rounded up to what it does not reach."""
    missing = 1 - share
    if missing <= 0:
        return "100 %"
    places = max(0, min(12, math.ceil(-math.log10(missing)) - 1))
    return f"{math.floor(100 * share * 10**places) / 10**places:.{places}f} %"


def _ordinal(n: int) -> str:
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


# Of two fields: the certificate of the dilation of their cross-covariance, as numbers.


def of_coupled(certificate: Mapping[str, Any] | None, lead: np.ndarray, values: np.ndarray) -> Assurance:
    """Say how wrong an answer of maximum covariance analysis can be.

    Parameters
    ----------
    certificate : of the run on ``[[0, C], [C^T, 0]]``, as numbers (:func:`npmdask.core.runs.results.as_numbers`).
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
    return Assurance(
        ", and ".join(parts) + _condition(certificate["ground"], certificate["confidence"], "covariance") + ".", numbers
    )


def _bound(value: float | None) -> float:
    return math.inf if value is None else float(value)


def health(
    certificate: Certificate, residuals: Sequence[float], tol: float, *, rate: float | None, rows: bool = True
) -> Health:
    """The health of the iteration.

    Parameters
    ----------
    residuals : the worst relative residual of every step.
    tol : the tolerance that was asked for.
    rate : what the Ritz values promise a residual to fall by in a step; None: not known.
    rows : whether there are rows for another step.
    """
    sizes, k = np.abs(certificate.values), len(certificate.values)
    rank = int((sizes > certificate.perturbation).sum())
    if rank < k:
        some = f"only {rank} of {k} components are nonzero: the others cannot be distinguished from zero"
        return Health("collapsed", some if rank else "no component is nonzero: everything is zero or rounding")
    if not residuals or residuals[-1] <= tol:
        return Health("good", "every residual has reached the tolerance")
    if not rows:
        return Health("short", "the stored Gram matrix cannot give more accuracy: a pass over the rows can")
    window = list(residuals[-WINDOW - 1 :])
    if len(window) > WINDOW and min(window[1:]) > FALL * window[0]:
        promised = "" if rate is None else f" (the values predict a factor of {rate:.2g} a step)"
        return Health(
            "stagnating", f"the residual has not fallen in {WINDOW} steps{promised}: more steps will not help"
        )
    return Health("short", "the residual was still falling when the run ended: more steps will help")
