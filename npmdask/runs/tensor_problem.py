"""From what a person asks of a tensor to the algorithm and the rule of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npmdask.algorithms import TensorPower, restarts_for
from npmdask.algorithms.stopping import UntilSettled
from npmdask.errors import BadInputError, closest
from npmdask.numerics.units import built

NAME = "tensor-power"
NAMES = ("auto", NAME)
JOBS = ("topics", "mixture", "ica")  # kinds of longer jobs, whose stages are runs in folders below theirs
MOST = 10**9  # restarts, iterations: more are a slip of the pen
MOST_STEPS = 2000  # products: k (R + 1) of them, where the paper's R is asked for


@dataclass(frozen=True, kw_only=True)
class TensorOptions:
    """``algorithm.options`` of a tensor: L, R and how rounds end; see :class:`npmdask.algorithms.TensorPower`.

    ``harvest``: all distinct fixed points of a round at once; left out, wherever ``iterations`` is left out.
    ``margin``: weights up to so many times what noise would give are surplus.
    """

    restarts: int | None = None
    iterations: int | None = None
    harvest: bool | None = None
    most_iterations: int = 100
    margin: float | None = None

    def __post_init__(self) -> None:
        if self.margin is not None and not 0 <= self.margin < float("inf"):
            raise ValueError(f"margin = {self.margin} must be a number from 0 on")
        for name in ("restarts", "iterations", "most_iterations"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST:
                raise ValueError(f"{name} = {value} must be from 1 to {MOST}")

    @property
    def harvests(self) -> bool:
        return self.iterations is None if self.harvest is None else self.harvest


@dataclass(frozen=True, kw_only=True)
class TensorQuestion:
    """What is asked: k components of a tensor of ``side`` d, of order 3 or 4, whose squared norm may be known."""

    target_rank: int
    side: int
    tol: float
    seed: int
    order: int = 3
    squared_norm: float | None = None
    max_steps: int | None = None


def pose_tensor(
    question: TensorQuestion, options: Mapping[str, Any] | None, where: str
) -> tuple[TensorPower, UntilSettled]:
    """The algorithm and the rule; ``where`` names the data in an error.

    Raises
    ------
    BadInputError
        More components than the tensor has rows, or an option that is unknown or out of range.
    """
    asked: TensorOptions = built(NAME, TensorOptions, _known(options or {}))
    k, d = question.target_rank, question.side
    if not 1 <= k <= d:
        raise BadInputError(
            f"target_rank = {k} is not possible: {where} is {d} x {d} x {d}, so at most {d} orthogonal components exist"
        )
    algorithm = TensorPower(
        target_rank=k,
        restarts=asked.restarts or restarts_for(k, harvest=asked.harvests),
        iterations=asked.iterations,
        harvest=asked.harvests,
        most_iterations=asked.most_iterations,
        order=question.order,
        seed=question.seed,
        tol=question.tol,
        squared_norm=question.squared_norm,
        **({} if asked.margin is None else {"margin": asked.margin}),
    )
    return algorithm, UntilSettled(tol=question.tol, max_steps=question.max_steps or MOST_STEPS)


def _known(options: Mapping[str, Any]) -> Mapping[str, Any]:
    known = list(TensorOptions.__dataclass_fields__)
    for name in options:
        if name not in known:
            raise BadInputError(f"unknown option {name!r} of {NAME}: {closest(name, known)}")
    return options
