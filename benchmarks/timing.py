"""Interleaved rounds and medians: on a shared machine only ratios from the same minutes mean anything."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def interleaved(
    ways: Mapping[str, Callable[[], Any]], rounds: int, before: Callable[[], Any] | None = None
) -> dict[str, list[float]]:
    """Seconds of every way in every round; ``before`` (not timed) comes before each. Every other round goes
    backwards, so that no way always has the same neighbour."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            if before is not None:
                before()
            start = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def medians(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def rounded(seconds: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """All rounds, for the record."""
    return {name: [round(value, 4) for value in values] for name, values in seconds.items()}


def clocked(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What a call returns, and its CPU seconds (all threads, user and system) and seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = call()
    return found, {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - wall}
