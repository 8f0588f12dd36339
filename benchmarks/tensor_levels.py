"""Where a trial succeeds half of the time, and power laws through such levels, both with standard errors.

A staircase asks where it pays: after a success the next trial is harder, after a failure easier, by a factor of 2 at
first and less after every turn, so that it comes to stay where half of the trials succeed. All of its trials are then
fitted by a logistic curve (the mean of the posterior on a grid, which is finite also where no trial is out of order).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

FIRST, LEAST = 1.0, 0.125  # steps of a staircase, in powers of 2
WIDTHS = np.geomspace(0.02, 1.5, 30)  # of the logistic curve, in powers of 2


class Level(NamedTuple):
    """Half of the trials succeed at ``value``; ``stderr`` is of its natural logarithm."""

    value: float
    stderr: float

    @property
    def band(self) -> tuple[float, float]:
        """95 %."""
        return self.value * float(np.exp(-1.96 * self.stderr)), self.value * float(np.exp(1.96 * self.stderr))


class Slope(NamedTuple):
    """y ~ x^value."""

    value: float
    stderr: float

    def __str__(self) -> str:
        return f"{self.value:+.2f} ± {self.stderr:.2f}"

    def holds(self, claimed: float) -> bool:
        """Whether the claim lies within two standard errors, or 0.1."""
        return abs(self.value - claimed) <= max(0.1, 2 * self.stderr)


def next_level(guess: float, outcomes: Sequence[tuple[float, bool]], harder: int) -> float:
    """The level of the next trial, as a power of 2; ``harder`` is 1 where a higher level is harder, or -1."""
    if not outcomes:
        return guess
    level, won = outcomes[-1]
    turns = sum(a != b for (_, a), (_, b) in pairwise(outcomes))
    return level + harder * (1 if won else -1) * max(FIRST / 2**turns, LEAST)


def half_level(outcomes: Sequence[tuple[float, bool]], harder: int) -> Level:
    """From all trials of a staircase: pairs of a level (a power of 2) and whether the trial succeeded."""
    levels = np.array([level for level, _ in outcomes])
    signs = harder * np.where([won for _, won in outcomes], 1.0, -1.0)
    middles = np.linspace(levels.min() - 1, levels.max() + 1, 801)
    # the log likelihood of a curve with its middle at m: a success is likelier where it is easier
    distance = signs * (middles[:, None] - levels)
    likelihood = -np.logaddexp(0, -distance[:, None] / WIDTHS[None, :, None]).sum(axis=2)
    weight = np.exp(likelihood - likelihood.max()).sum(axis=1)
    weight /= weight.sum()
    mean = float(weight @ middles)
    spread = float(np.sqrt(weight @ (middles - mean) ** 2))
    return Level(float(2.0**mean), spread * float(np.log(2)))


def power_law(x: Sequence[float], y: Sequence[float], stderr: Sequence[float]) -> Slope:
    """The slope of ln y over ln x, each point weighted by ``stderr`` (of ln y).

    Its standard error grows with the scatter of the points about the line where that exceeds their own errors.
    """
    a, b, w = np.log(x), np.log(y), 1 / np.maximum(np.asarray(stderr), 1e-3) ** 2
    centre = w @ a / w.sum()
    square = w @ (a - centre) ** 2
    value = w @ ((a - centre) * b) / square
    left = b - w @ b / w.sum() - value * (a - centre)
    scatter = max(1.0, w @ left**2 / max(len(a) - 2, 1))
    return Slope(float(value), float(np.sqrt(scatter / square)))
