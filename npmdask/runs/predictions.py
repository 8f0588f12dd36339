"""Read back what was predicted of a run before its first pass, beside what it took.

The predictions are made by :mod:`npmdask.planning.predicted_steps`; a run goes on without them.
"""

from __future__ import annotations

from typing import Any

NONE = "none: no number of steps was predicted before the first pass"
FORESEEN, HINDSIGHT, SEARCHED = "foreseen", "hindsight", "searched"  # events of the telemetry


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
    """What is compared: more words for the steps predicted, the steps that were taken, and more words for those."""
    if "components" in first:
        searches = [line for line in telemetry if line["event"] == SEARCHED]
        search: dict[str, Any] = searches[-1] if searches else {"steps": 0, "rank": "as many as are found"}
        predicted = f" with those of the search, for {first['components']} components"
        return predicted, steps + search["steps"], f", for {search['rank']}"
    if first.get("start") == "random":
        return " from a random start", steps, " from where an earlier run came to"
    return "", steps, ""


def prediction_facts(telemetry: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """``predicted_steps`` and ``hindsight_steps`` (None: unknown), and the ``prediction`` as a sentence."""
    first, back = logged_prediction(telemetry), [line for line in telemetry if line["event"] == HINDSIGHT]
    if first is None:
        why = next((line["why"] for line in telemetry if line["event"] == FORESEEN), "")
        return {"predicted_steps": None, "hindsight_steps": None, "prediction": f"none: {why}" if why else NONE}
    hindsight = back[-1]["steps"] if back else None
    of, taken, so = _compared(first, telemetry, steps)
    said = f"predicted {first['steps']} steps{of}, took {taken}{so}"
    if not first["reached"]:
        said = f"predicted not to reach the tolerance in {first['steps']} steps{of}, took {taken}{so}"
    said += "" if hindsight is None else f"; {hindsight} with the values that were found"
    return {"predicted_steps": first["steps"], "hindsight_steps": hindsight, "prediction": said}


def comparison(telemetry: list[dict[str, Any]], history: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Rows for a page: what, predicted before the first pass, in hindsight, measured; none if nothing was predicted."""
    first = logged_prediction(telemetry)
    if first is None:
        return []
    facts = prediction_facts(telemetry, len(history))
    predicted = f"{first['steps']}" if first["reached"] else f"more than {first['steps']}"
    hindsight = "-" if facts["hindsight_steps"] is None else f"{facts['hindsight_steps']}"
    of, taken, so = _compared(first, telemetry, len(history))
    what = f"steps (predicted{of}; taken{so})" if of else "steps"
    rows: list[tuple[str, ...]] = [(what, predicted, hindsight, f"{taken}")]
    if first.get("residual") is not None:
        plateau = min(step["worst_residual"] for step in history)
        rows.append(
            ("relative residual at the plateau of the noise", f"{first['residual']:.1e}", "-", f"{plateau:.1e}")
        )
    return rows
