"""What the convex relaxations cost on the clock of the experiments, which hides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from benchmarks import paper_methods
from benchmarks.paper_data import synthetic
from benchmarks.paper_methods import Judge, follow, theirs


@dataclass(frozen=True)
class Clocked:
    """An algorithm each of whose updates takes a second of a clock that stands still otherwise."""

    inner: Any
    clock: list[float]

    @property
    def target_rank(self) -> int:
        return int(self.inner.target_rank)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def update(self, state: Any, rows: np.ndarray) -> Any:
        self.clock[0] += 1.0
        return self.inner.update(state, rows)


def test_seconds_are_of_all_updates_and_of_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm start and doublings included, judging not: the authors' programs time the last update before each look and
    leave the selection of mini-batches out (ERR-22). Mutants: either of these, or the clock running while it judges."""
    clock, updates = [0.0], []
    monkeypatch.setattr(paper_methods, "process_time", lambda: clock[0])
    look = Judge.look

    def slow(self: Judge, *given: Any) -> Any:
        clock[0] += 1000.0
        return look(self, *given)

    monkeypatch.setattr(Judge, "look", slow)
    data = synthetic(2, d=30, rows=400, seed=0)
    algorithm = Clocked(theirs("mb-msg", 2, gap=data.gap), clock)
    draw = paper_methods._draws(algorithm, data, np.random.default_rng(0))
    monkeypatch.setattr(paper_methods, "_draws", lambda *given: lambda state: updates.append(1) or draw(state))
    points = follow(algorithm, data, steps=20, seed=0)["points"]
    assert points["seconds"][-1] == len(updates) > 21, "more than a step each: warm start and doublings"
    assert np.all(np.diff(points["seconds"]) >= 1)
