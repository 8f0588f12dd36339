"""From what a person asks of a tensor to the algorithm and the rule of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npmdask.core.algorithms.stopping import UntilSettled, default_tol
from npmdask.core.numerics.units import options_from
from npmdask.core.runs.problem import Earlier, Method, Problem, Request, Route
from npmdask.core.runs.session import Session
from npmdask.core.runs.stopping_rules import without_low_rank
from npmdask.core.storage.kinds import require_rows
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, first_of, require
from npmdask.tensors.power import TensorPower, restarts_for
from npmdask.tensors.recovery import TensorRelease

TENSOR = "tensor-power"
MOST = 10**9  # restarts, iterations: more are a slip of the pen
MOST_STEPS = 2000  # products: k (R + 1) of them, where the paper's R is asked for


@dataclass(frozen=True, kw_only=True)
class TensorOptions:
    """``algorithm.options`` of a tensor: L, R and how rounds end (:mod:`npmdask.tensors.power`).

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
    """The question: k components of a tensor of ``side`` d, of order 3 or 4, whose squared norm may be known."""

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


class TensorRoute(Route):
    """Components of a symmetric tensor, by the robust tensor power method."""

    algorithms = (TENSOR,)

    def takes(self, request: Request, source: Source, earlier: Earlier) -> str:
        """Return what is for matrices only; "" where nothing is."""
        refused = {
            f"target_rank = {request.target_rank} is a share of the variance, and a tensor has none: give a whole "
            "number (components that do not exist are reported as surplus)": isinstance(request.target_rank, float),
            without_low_rank(request.low_rank_tol, "a tensor has none"): True,
            f"mechanism = {request.mechanism!r} is for matrices: leave it out for a tensor": (
                request.mechanism != "none"
            ),
            f"{source.path} is a tensor, whose runs start from their seed: warm starts and deflation of finished runs "
            "are for matrices; ask for more components in a new run": any(earlier),
        }
        return first_of(refused)

    def problem(self, request: Request, source: Source, earlier: Earlier) -> Problem:
        """Return the problem. Raises BadInputError for another algorithm, and for columns of a block."""
        require_tensor_algorithm(source, request)
        require(
            request.iteration_rank is None,
            "iteration_rank is for matrices: leave it out; for a tensor set options = { restarts = ... }",
        )
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

    def release(self, problem: Problem, session: Session) -> TensorRelease:
        """Return products as they are."""
        return TensorRelease(problem, session)


def require_tensor_algorithm(source: Source, request: Request) -> None:
    """Raise BadInputError for another algorithm than that of tensors."""
    if request.algorithm not in ("auto", TENSOR):
        require_rows(source.kind, source.path)


def _other_data_error(source: Source) -> BadInputError | None:
    """Say that this algorithm has no other data."""
    if source.kind == "tensor":
        return None
    return BadInputError(
        f"{TENSOR} is for symmetric tensors, and {source.path} is of kind {source.kind}: store one with `npmdask "
        "ingest SRC DEST --kind tensor`, or find topics of documents with `npmdask topics`"
    )


METHOD = Method(refusal=_other_data_error)
OF_TENSOR = TensorRoute()
