"""State how wrong a streaming model can be: from held-out rows, from a known truth, or from how it turns.

Rows that were never learnt from are a fair sample, so that a share of them comes with error bars (the delta method),
and what the best directions of these very rows capture is more than any directions do in the mean: both hold for any
algorithm, converged or not. Without such rows only a lower bound can be proved: of two answers that are an angle
apart one is at least half of it from the truth (angles between subspaces obey the triangle inequality). How fast an
answer turns says no more: mb-msg at 15 degrees from the truth was measured to turn by a hundredth of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from npmdask.core.certificates.wording import LOST, Assurance, at_most_percent, degrees, percent, the_components
from npmdask.streaming.metrics import Measurement

DEVIATIONS = 2.0  # of a share, on either side; a few rows know the deviation itself badly
FEW = 5.0
EMPTY = 1e-12  # of the largest value: a direction that captures no more captures rounding
ACROSS = 0.5  # deviation of (x^T v)^2 x^T u over that of (x^T v)^3: 0.45 for Gaussian rows, less where v is skewed
TOO_FEW = "fewer than two rows were held out, or they are all alike or zero"


def of_stream(
    spec: Mapping[str, Any], history: Sequence[Measurement], weights: Sequence[float], facts: Mapping[str, Any]
) -> Assurance:
    """State the error of the stream with these parameters.

    ``history``: its measurements, oldest first; ``weights`` and ``facts``: of the answer, where components of the third
    moment are found.
    """
    if history and history[-1].moment == 3:
        return of_third_moment(weights, facts, int(spec["data"]["columns"]), history[-1].max_sin_theta)
    return of_directions(history, spec["run"].get("half_life"), spec["run"].get("worth", 1.0))


def of_directions(history: Sequence[Measurement], half_life: float | None = None, worth: float = 1.0) -> Assurance:
    """State the error of principal directions of a stream, after its last measurement.

    Parameters
    ----------
    history : the measurements, oldest first; an answer has at least one.
    half_life : rows after which a row counts half; None: nothing is forgotten.
    worth : how many equal rows a row is worth on average, of weighted ones.
    """
    last = next((m for m in reversed(history) if m.values is not None), None)
    if last is None:
        return Assurance("", {})
    values = list(last.values or ())
    empty = sum(not value > EMPTY * max(values) for value in values)
    if values and empty == len(values):
        return Assurance(
            f"The result is not reliable: the {last.rows:,} rows so far have no variance, so directions are "
            "meaningless. Check that these are the intended rows.",
            {"empty": empty},
        )
    parts, numbers = [], {}
    if last.max_sin_theta is not None:
        parts.append(
            f"the true directions are known here, and {the_components(len(last.values or ()))} found are at most "
            f"{degrees(last.max_sin_theta)} from them"
        )
        numbers["sine"] = last.max_sin_theta
    if last.reach is not None and last.explained is not None:
        said, more = _held_out(last.explained, last.reach, len(last.values or ()))
    elif last.max_sin_theta is not None:
        said, more = "", {}
    else:
        said, more = _turn_statement(history, last, half_life, worth)
    parts += [said] if said else []
    if empty:
        parts.append(f"the last {empty} of {len(values)} found capture no variance and are meaningless")
    return Assurance(f"{_capitalised(parts)}.{_coverage_text(half_life)}", numbers | more)


def _held_out(share: float, reach: Mapping[str, float], k: int) -> tuple[str, dict[str, Any]]:
    """From rows that were not learnt from; 9 of 10 in the sentence, 19 of 20 meant for rows that are not wild."""
    off = (DEVIATIONS + FEW / reach["rows"]) * reach["stddev"]
    low, high, best = max(share - off, 0.0), min(share + off, 1.0), reach["best"]
    few = "the component captures" if k == 1 else f"the {k} components capture"
    any_ = "one direction captures" if k == 1 else f"{k} directions capture"
    said = (
        f"on {reach['rows']:,.0f} rows held out {few} {percent(share)} of the variance, which on other rows like "
        f"them is {percent(low)} to {percent(high)} in 9 of 10 cases; no {any_} more than {percent(best)} of those "
        f"rows, so at most about {at_most_percent(max(best - share, 0.0))} can still be gained"
    )
    if reach["sine"] < LOST:
        said += f", and the directions themselves are likely less than {degrees(reach['sine'])} off"
    else:
        said += "; the true directions cannot be determined, because others capture nearly as much"
    return said, {"share": share, "low": low, "high": high, "best": best, "sine_limit": reach["sine"]}


def _turn_statement(
    history: Sequence[Measurement], last: Measurement, half_life: float | None, worth: float
) -> tuple[str, dict[str, Any]]:
    """From the answers alone: a lower bound, what even a perfect method could not know, and the remedy."""
    rows = last.rows if half_life is None else min(float(last.rows), 2 * half_life / math.log(2))
    floor = 2 * math.sqrt(2 / max(rows * worth, 2.0))
    given = last.suboptimality is not None
    said = f"the error was not measured, because {TOO_FEW if given else 'no rows were held out'}"
    numbers: dict[str, Any] = {"floor": floor}
    turned = _last_turn(history)
    if turned is not None:
        before, after, sine = turned
        half = math.sin(math.asin(min(sine, 1.0)) / 2)
        said += (
            f"; from {before:,} to {after:,} rows the answer turned by {degrees(sine)}, so one of the two was off by "
            "at least half of that, possibly by much more"
        )
        numbers["at_least"] = half
    said += (
        "; with this many rows even a perfect method would know a variance only to about "
        f"+-{at_most_percent(min(floor, 1.0))} (for normally distributed rows); with "
        f"{'more' if given else 'held_out'} rows {'held out ' if given else ''}the error would be measured"
    )
    return said, numbers


def _last_turn(history: Sequence[Measurement]) -> tuple[int, int, float] | None:
    """The last two neighbouring measurements between which a step was made: their rows, and the sine between them.

    None where nothing turned, or where the measurements between were thinned out: then a change is to one that is gone.
    """
    if len(history) < 2:
        return None
    before, after = history[-2], history[-1]
    if after.change is None or after.steps == before.steps or before.values is None:
        return None
    return before.rows, after.rows, after.change


def _capitalised(parts: Sequence[str]) -> str:
    said = "; ".join(parts)
    return said[:1].upper() + said[1:]


def _coverage_text(half_life: float | None) -> str:
    drift = ""
    if half_life is not None:
        drift = f" Older rows fade (half_life {half_life:g}): this refers to the current directions."
    return f"{drift} Changes in the data are not covered."


def of_third_moment(
    weights: Sequence[float], facts: Mapping[str, Any], columns: int, truth: float | None = None
) -> Assurance:
    """State the error of components of the third moment of a stream.

    A component v is the mean over n rows of (x^T v)^2 x, whose deviation in each of the d - 1 directions across v is
    about ACROSS of that of (x^T v)^3 along it, so that the sine is about ``ACROSS sqrt(d - 1) error / weight``.

    Parameters
    ----------
    weights, facts : as the answer has them: ``status`` (of all k), ``standard_errors`` (of those found).
    columns : d. truth : sine of the largest angle to known components.
    """
    status, errors = list(facts.get("status", ())), list(facts.get("standard_errors", ()))
    sound = [
        (weight, error)
        for weight, error, word in zip(weights, errors, status, strict=False)
        if word == "found" and weight > 0
    ]
    if not sound:
        return Assurance(
            "Nothing is known about any component yet: no weight exceeds what noise alone would give. More "
            "rows are needed.",
            {"found": 0},
        )
    sine = min(max(ACROSS * math.sqrt(columns - 1) * error / weight for weight, error in sound), 1.0)
    off = max(2 * error / weight for weight, error in sound)
    parts = []
    if truth is not None:
        parts.append(f"the truth is known here: the farthest component is {degrees(truth)} from what was found")
    which = "the component found" if len(sound) == 1 else f"each of {len(sound)} components found"
    parts.append(f"the weight of {which} is likely accurate to +-{at_most_percent(off)}")
    if sine < LOST:
        parts.append(f"the direction to {degrees(sine)}")
    else:
        parts.append("the direction is hardly known yet; more rows are needed")
    others = len(status) - len(sound)
    if others:
        parts.append(f"nothing is known about the other {others} asked for")
    said = _capitalised(parts) + " (from the observed spread of the rows)."
    return Assurance(
        f"{said} Rows that are not sums of such components are not covered.",
        {"sine": sine, "weight": off, "found": len(sound), "truth": truth},
    )
