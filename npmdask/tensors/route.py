"""From what a person asks of a tensor to the algorithm and the rule of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npmdask.core.algorithms.stopping import UntilSettled, default_tol
from npmdask.core.numerics.units import options_from
from npmdask.core.runs.problem import Method, Problem, Request
from npmdask.core.runs.stopping_rules import refuse_low_rank
from npmdask.core.storage.kinds import for_tensors_only
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, RefusedError
from npmdask.tensors.power import TensorPower, restarts_for

TENSOR = "tensor-power"
MOST = 10**9  # restarts, iterations: more are a slip of the pen
MOST_STEPS = 2000  # products: k (R + 1) of them, where the paper's R is asked for


@dataclass(frozen=True, kw_only=True)
class TensorOptions:
    """``algorithm.options`` of a tensor: L, R and how rounds end (``algorithms.tensor.power``).

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
    asked: TensorOptions = options_from(TENSOR, TensorOptions, options)
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


def problem_of(source: Source, request: Request, earlier: object) -> Problem:
    """The problem of a symmetric tensor: its components, by the robust tensor power method."""
    require_tensor_algorithm(source, request)
    _require_tensor_options(source, request, earlier)
    question = TensorQuestion(
        target_rank=int(request.target_rank),
        side=source.dimension,
        tol=default_tol(source.reader.dtype) if request.tol is None else request.tol,
        seed=request.seed,
        squared_norm=source.squared_frobenius,
        max_steps=request.max_steps,
    )
    algorithm, rule = pose_tensor(question, request.options, source.path)
    return Problem(source=source, request=request, algorithm=algorithm, rule=rule)


def require_tensor_algorithm(source: Source, request: Request) -> None:
    """A tensor has an algorithm of its own."""
    if request.algorithm not in ("auto", TENSOR):
        raise for_tensors_only(source.path)


def _require_tensor_options(source: Source, request: Request, earlier: object) -> None:
    """Options of matrices only."""
    if isinstance(request.target_rank, float):
        raise RefusedError(
            f"target_rank = {request.target_rank} is a share of the variance, and a tensor has none: give a whole "
            "number (components that do not exist are reported as surplus)"
        )
    if request.iteration_rank is not None:
        raise BadInputError(
            "iteration_rank is for matrices: leave it out; for a tensor set options = { restarts = ... }"
        )
    refuse_low_rank(request.low_rank_tol, "a tensor has none")
    if request.mechanism != "none":
        raise RefusedError(f"mechanism = {request.mechanism!r} is for matrices: leave it out for a tensor")
    if earlier is not None:
        raise RefusedError(
            f"{source.path} is a tensor, whose runs start from their seed: warm starts and deflation of finished runs "
            "are for matrices; ask for more components in a new run"
        )


def _of_other_data(source: Source) -> BadInputError | None:
    """Say that this algorithm has no other data."""
    if source.kind == "tensor":
        return None
    return BadInputError(
        f"{TENSOR} is for symmetric tensors, and {source.path} is of kind {source.kind}: store one with `npmdask "
        "ingest SRC DEST --kind tensor`, or find topics of documents with `npmdask topics`"
    )


METHOD = Method(refusal=_of_other_data)
