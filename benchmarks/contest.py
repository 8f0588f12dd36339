"""A contest: contestants in processes of their own, a verdict for each, then the fastest right ones again in turns.

Direct methods and iterations count alike. A contestant that is not right, fails or is too slow has no time to beat.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.children import ChildFailedError, TooSlowError, last_json, own_command, peer_command
from benchmarks.registry import Context

OURS = "npmdask"  # and what begins with it: a contestant of the environment of this project
FINALISTS = 3
Found = dict[str, dict[str, Any]]


def run_contestant(context: Context, script: str, name: str, job: dict[str, Any], *, seconds: float) -> dict[str, Any]:
    """The facts that a contestant's process says; ``name`` decides whose environment it is."""
    command = own_command if name.startswith(OURS) else peer_command
    return last_json(command(script, job), folder=context.folder, seconds=seconds)


def attempted(name: str, attempt: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a contestant did, with a verdict also where it did not end."""
    start = time.perf_counter()
    try:
        facts = attempt()
    except TooSlowError as slow:
        facts = {"verdict": f"too slow: {slow}"}
    except ChildFailedError as failure:
        facts = {"verdict": f"fails: {failure}"}
    print(f"  {name}: {facts['verdict']}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return facts


def judged(facts: dict[str, Any], measure: str, goal: float) -> dict[str, Any]:
    """With a verdict: right where ``measure`` is at most ``goal``."""
    error = facts[measure]
    return facts | {"verdict": "right" if error <= goal else f"wrong: {error:.1e}"}


def is_right(facts: Mapping[str, Any]) -> bool:
    return bool(facts["verdict"] == "right")


def peers(found: Found) -> Found:
    """Without ours."""
    return {name: facts for name, facts in found.items() if not name.startswith(OURS)}


def finals(found: Found, again: Callable[[str], dict[str, Any]], rounds: int) -> None:
    """Ours and the fastest right ones once more in every further round, to and fro; seconds are medians of all."""
    fastest = sorted((n for n, facts in peers(found).items() if is_right(facts)), key=lambda n: found[n]["seconds"])
    chosen = [n for n in found if n.startswith(OURS) and is_right(found[n])] + fastest[:FINALISTS]
    seconds = {name: [found[name]["seconds"]] for name in chosen}
    for number in range(1, rounds):
        for name in chosen[:: -1 if number % 2 else 1]:
            seconds[name].append(again(name)["seconds"])
    for name, values in seconds.items():
        found[name] |= {"seconds": statistics.median(values), "rounds": [round(value, 3) for value in values]}


def best_peer(found: Found) -> str | None:
    """The fastest of the right ones that are not ours."""
    right = [name for name, facts in peers(found).items() if is_right(facts)]
    return min(right, key=lambda name: found[name]["seconds"], default=None)


def failures(found: Found, known_wrong: Iterable[str] = ()) -> tuple[str, ...]:
    """Ours if it is not right; of the others who breaks, or is wrong and not known to be."""
    said = []
    for name, facts in found.items():
        verdict, ours = facts["verdict"], name.startswith(OURS)
        unexpected = verdict.startswith("fail") or (verdict.startswith("wrong") and name not in known_wrong)
        said += [f"{name}: {verdict}"] if unexpected or (ours and not is_right(facts)) else []
    return tuple(said)
