"""The simulations of Wang and Anandkumar 2016 (Appendix A, whose parameters are not printed), one command each.

    python -m benchmarks.paper_tensor --figure noise|online|private|all [--trials N] [--jobs N]

Minutes each. Every trial is a line of ``FOLDER/trials.csv`` as soon as it is made: a run that was stopped goes on from
there, and ``--trials`` adds to it. Levels and their standard errors are kept in results/paper_tensor.json; plots go to
docs/papers/tensor-*.svg, tables to docs/papers/tensors.md (``--draw``: from what is kept).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.docs import ROOT
from benchmarks.paper_page import keep, kept, message, table
from benchmarks.tensor_levels import half_level, next_level
from benchmarks.tensor_page import publish, tables
from benchmarks.tensor_series import SERIES, Series

NAME = "paper_tensor"
TRIALS = {"noise": 45, "online": 24, "private": 45}
FIGURES = tuple(TRIALS)
Outcome = tuple[float, float]  # level, as a power of 2, and 1 or 0; or 0 and what was measured
Point = tuple[str, int]  # of a series, at an x


class Trials:
    """What was measured at every point, in the order of the seeds, and kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.of: dict[Point, list[Outcome]] = {}
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:  # what a kill leaves: a line that lacks its end
            os.truncate(path, len(whole))
        for line in whole.decode().splitlines():
            name, x, level, found = line.rsplit(";", 3)
            self.of.setdefault((name, int(x)), []).append((float(level), float(found)))

    def add(self, point: Point, outcome: Outcome) -> None:
        """Remember, and write at once."""
        self.of.setdefault(point, []).append(outcome)
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{point[0]};{point[1]};{outcome[0]!r};{outcome[1]!r}\n".encode())


def one(point: Point, level: float, seed: int) -> Outcome:
    """A trial. ``level``: as a power of 2."""
    with threadpool_limits(limits=1):
        return level, float(SERIES[point[0]].run(point[1], 2.0**level, seed))


def level_of(point: Point, outcomes: Sequence[Outcome]) -> float:
    """Where the next trial of a point is made."""
    series = SERIES[point[0]]
    if series.guess is None:
        return 0.0
    return next_level(float(np.log2(series.guess(point[1]))), [(a, bool(b)) for a, b in outcomes], series.harder)


def measure(figure: str, trials: Trials, count: int, jobs: int) -> None:
    """Make what is missing: trials of a point one after the other, points beside each other."""
    points = [(name, x) for name, series in SERIES.items() if series.figure == figure for x in series.x]
    open_ = {p: count - len(trials.of.get(p, [])) for p in points}
    open_ = {p: left for p, left in open_.items() if left > 0}
    message(f"{figure}: {sum(open_.values())} trials to make at {len(open_)} points")
    for point, outcome in done(open_, trials, jobs):
        trials.add(point, outcome)
        open_[point] -= 1
        if not open_[point]:
            message(f"{point[0]}, {SERIES[point[0]].vary} = {point[1]}: {summary(point, trials.of[point])}")


def done(left: dict[Point, int], trials: Trials, jobs: int) -> Iterator[tuple[Point, Outcome]]:
    """Outcomes as they come, until ``left`` (which who takes them counts down) is used up."""
    if jobs == 1:
        for point in left:
            while left[point]:
                yield point, one(*_next(point, trials))
        return
    with ProcessPoolExecutor(jobs) as pool:
        waiting: dict[Future[Outcome], Point] = {pool.submit(one, *_next(p, trials)): p for p in left}
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                point = waiting.pop(future)
                yield point, future.result()
                if left[point]:
                    waiting[pool.submit(one, *_next(point, trials))] = point


def _next(point: Point, trials: Trials) -> tuple[Point, float, int]:
    before = trials.of.get(point, [])
    return point, level_of(point, before), len(before)


def summary(point: Point, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """``value``, ``stderr`` of its logarithm, ``trials``; and of numbers their mean."""
    series = SERIES[point[0]]
    if series.guess is not None:
        level = half_level([(a, bool(b)) for a, b in outcomes], series.harder)
        return {"value": level.value, "stderr": level.stderr, "trials": len(outcomes)}
    numbers = np.array([found for _, found in outcomes])
    logs = np.log(np.maximum(numbers, 1e-300))
    spread = float(logs.std(ddof=1) / np.sqrt(len(logs))) if len(logs) > 1 else 0.0
    return {
        "value": float(np.exp(logs.mean())),
        "stderr": spread,
        "mean": float(numbers.mean()),
        "trials": len(numbers),
    }


def found_of(figure: str, trials: Trials) -> dict[str, Any]:
    """By series: x and, at each, the summary."""
    return {name: _line(name, series, trials) for name, series in SERIES.items() if series.figure == figure}


def _line(name: str, series: Series, trials: Trials) -> dict[str, Any]:
    measured = [(x, summary((name, x), trials.of[name, x])) for x in series.x if (name, x) in trials.of]
    names = measured[0][1] if measured else {}
    return {"x": [x for x, _ in measured]} | {key: [line[key] for _, line in measured] for key in names}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, keep, and publish; print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_tensor", description=__doc__)
    parser.add_argument("--figure", required=True, choices=(*FIGURES, "all"))
    parser.add_argument("--trials", type=int, help="of every point; otherwise 45, and 24 online")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "tensor", help="where trials are kept")
    parser.add_argument("--draw", action="store_true", help="from what is kept, without measuring")
    asked = parser.parse_args(argv)
    if asked.trials is not None and asked.trials < 3:
        parser.error(f"--trials {asked.trials}: at least three are needed for a standard error")
    if asked.jobs < 1:
        parser.error(f"--jobs {asked.jobs}: at least one process is needed")
    figures = FIGURES if asked.figure == "all" else (asked.figure,)
    if not asked.draw:
        asked.folder.mkdir(parents=True, exist_ok=True)
        trials = Trials(asked.folder / "trials.csv")
        for figure in figures:
            measure(figure, trials, asked.trials or TRIALS[figure], asked.jobs)
            keep(NAME, {figure: found_of(figure, trials)})
    found = kept(NAME)
    found = {figure: found[figure] for figure in figures}
    publish(found)
    for rows in tables(found).values():
        sys.stdout.write(table(rows) + "\n\n")


if __name__ == "__main__":
    main()
