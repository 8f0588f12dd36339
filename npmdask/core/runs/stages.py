"""Moments of data, seen as a matrix or a tensor that is never formed, and stages: runs in a folder of a longer job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npmdask.core.checkpoint.store import CHECKPOINT_FORMAT
from npmdask.core.operators import Operator
from npmdask.core.runs.driver import solve_in
from npmdask.core.runs.problem import Problem
from npmdask.core.runs.session import Session
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.source import Source
from npmdask.errors import package_version

Facts = dict[str, Any]


def job_spec(data: Facts, algorithm: Facts, stop: Facts, seed: int) -> dict[str, Any]:
    """The parameters of a job without noise, by name."""
    return {
        "data": data,
        "algorithm": algorithm,
        "mechanism": {"mechanism": "none"},
        "stop": stop,
        "run": {"seed": seed},
        "version": {"npmdask": package_version(), "checkpoint_format": CHECKPOINT_FORMAT},
    }


# Moments: the data of a source seen as a matrix or a tensor that is never formed.


@dataclass(frozen=True, kw_only=True)
class MomentOperator:
    """A moment of the data, by an operator that needs more than their reader.

    Parameters
    ----------
    kind : "symmetric" for second moments, "tensor" for third and fourth.
    name : of the moment, with everything that it depends on besides the data and ``arrays`` in ``facts``.
    side : of the vectors that are looked for.
    made : the operator of a reader.
    arrays : what earlier passes found and the operator needs; known by their checksums.
    """

    kind: str
    name: str
    side: int
    made: Callable[[Any], Operator]
    facts: dict[str, Any]
    arrays: tuple[np.ndarray, ...] = ()

    certified: ClassVar[bool] = False  # moments are estimates: how far from the model's is another question

    def dimension(self, source: Source) -> int:
        return self.side

    def operator(self, source: Source) -> Operator:
        return self.made(source.reader)

    def spec(self) -> dict[str, Any]:
        """Its name, its parameters, and checksums of what it was made from."""
        sums = [f"{crc32c(np.ascontiguousarray(array)):08x}" for array in self.arrays]
        return {"moment": self.name, **self.facts, "made_from": sums}


def run_stage(session: Session, name: str, said: str, problem: Problem) -> Solution:
    """Solve a problem in the folder ``name`` below the store of a job, or go on there; ``said``: what observers see."""
    session.told.on_stage(said)
    with session.stage(name) as stage:
        return solve_in(problem, stage)
