"""How long a run will still take, told from its history; or nothing, where that says too little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

MONOTONE = ("power", "krylov")  # algorithms whose residuals fall from step to step
SEEN = 6  # last steps that the rate is taken of
FEWEST = 4
UNLIKE = 3.0  # rates of two halves that differ by more: it is no rate


def steps_to(residuals: Sequence[float], tol: float) -> int | None:
    """Steps until the worst relative residual is ``tol``, if it goes on as in the last steps; None: nobody knows.

    The rates of an earlier and of a later half must agree: a run that stagnates, or has only begun, has none.
    """
    last = np.array(residuals[-SEEN:])
    if len(last) < FEWEST or not tol > 0 or not ((last > 0) & np.isfinite(last)).all():
        return None
    logs, half = np.log(last), len(last) // 2
    slope, early, late = _slope(logs), _slope(logs[: half + 1]), _slope(logs[half:])
    if max(early, late) >= 0 or not 1 / UNLIKE <= early / late <= UNLIKE:
        return None
    return max(0, math.ceil((math.log(tol) - logs[-1]) / slope))


def _slope(logs: np.ndarray) -> float:
    return float(np.polyfit(np.arange(len(logs)), logs, 1)[0])


def seconds_left(spec: dict[str, Any], history: list[dict[str, Any]], telemetry: list[dict[str, Any]]) -> float | None:
    """Of a run with these parameters, from the times of its last passes; None: unknown.

    At most until ``max_steps``. Of algorithms that do not converge step by step (tensors) nothing is said.
    """
    passes = [t["seconds"] for t in telemetry if t["event"] == "passed" and str(t["label"]).startswith("step ")]
    if not passes or spec["algorithm"].get("name") not in MONOTONE:
        return None
    stop, left = spec["stop"], spec["stop"]["max_steps"] - len(history)
    if stop.get("low_rank_tol"):
        soon = steps_to([step.get("excess", math.inf) for step in history], stop["low_rank_tol"])
        if soon is None:
            return None
        left = min(left, soon)
    elif stop.get("tol"):
        needed = steps_to([step["worst_residual"] for step in history], stop["tol"])
        if needed is None:
            return None
        left = min(left, needed)
    return median(passes[-SEEN:]) * max(left, 0)
