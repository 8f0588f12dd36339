"""Warn of a private run before its budget is charged, from public numbers: a weak guarantee, or a result of noise.

The noise is that of the product's own calibration, at the public start block. What depends on the kind of release
comes from its recipe (:class:`npmdask.privacy.release.Recipe`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, Protocol

import numpy as np

from npmdask.accounting import Budget
from npmdask.errors import RefusedError
from npmdask.numerics.random import generator
from npmdask.privacy.neighbors import MatrixRelation, protected
from npmdask.storage.source import Source

WEAK_EPSILON = 10.0  # above it a promise is called weak
WEAK_DELTA = 1e-6  # the same where the number of records is private: data of a million are not rare


class Asked(Protocol):
    """What is read of the problem of a private run: public numbers, and those of the source that are public."""

    @property
    def recipe(self) -> Any: ...
    @property
    def source(self) -> Source: ...
    @property
    def algorithm(self) -> Any: ...
    @property
    def request(self) -> Any: ...
    @property
    def d(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class ReleaseNoise:
    """The noise of a run, from public numbers.

    ``later``: stddev of an entry of a release, given the start block; ``first``: of the first one, where images of
    records are clipped too. ``smallest``: the norm that the noise of a release hardly ever exceeds, in the units of the
    values that are released. Of oracles of records both are of images as long as clip_norm allows; None where even that
    follows from what is released. ``lasting``: what all releases together hardly leave below, where that is not the
    ``smallest`` of products with blocks: see :func:`_lasting_noise`.
    """

    first: float | None
    later: float | None
    smallest: float | None
    lasting: float | None = None


def first_query(problem: Asked) -> Any:
    """What the algorithm asks for first, at its public start."""
    return problem.algorithm.query(problem.algorithm.init(problem.d, rng=generator(problem.request.seed, "start")))


def concerns(problem: Asked) -> tuple[str, ...]:
    """List what makes the promise weak or the answer noise, a sentence each, before the budget is charged.

    All of it follows from public numbers, so it may be published with the answer. The number of records under
    record_add_remove is not one of them, and is not used. Of a centre it is what its nodes announced.
    """
    return tuple(said for said in (*problem.recipe.promise_concerns(problem.source), _of_noise(problem)) if said)


def concerns_of_node(problem: Asked) -> tuple[str, ...]:
    """List the same of what a node of a distributed run adds: the data of other nodes may outweigh its noise."""
    buried = _buried(problem)
    said = f"the noise buries the data of this node: {buried}; only those of further nodes can outweigh it"
    return (*problem.recipe.promise_concerns(problem.source), *([said] if buried else []))


def weak_promise(budget: Budget, relation: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    """List what makes a promise about data of this shape weak; rows are counted only where they are public."""
    return tuple(said for said in (of_epsilon(budget), _of_delta(budget, relation, shape)) if said)


def require_signal(problem: Asked) -> None:
    """Refuse a run whose noise buries every component that data within the public bounds can have.

    Raises
    ------
    RefusedError
        Nothing of the data could be seen in the answer.
    """
    buried = _buried(problem)
    if buried:
        raise RefusedError(
            f"the noise would bury everything: {buried}. Nothing was charged: use more records, a larger epsilon, or "
            "data with fewer columns"
        )


def _buried(problem: Asked) -> str:
    """By which numbers no data could be seen in the answer; nothing if some could."""
    most, norm = problem.recipe.largest(problem.source), _lasting_noise(problem)
    if most is None or norm is None or norm <= most:
        return ""
    return (
        f"all releases together leave one of norm {norm:.3g}, and no data within the public bounds have a component "
        f"above {most:.3g}"
    )


def of_epsilon(budget: Budget) -> str:
    if budget.epsilon <= WEAK_EPSILON:
        return ""
    return (
        f"epsilon = {budget.epsilon:g} hardly promises anything: what is released may be e^{budget.epsilon:g} = "
        f"{np.exp(min(budget.epsilon, 700.0)):.1e} times as likely with a person's data as without; 1 is usual, and "
        f"above {WEAK_EPSILON:g} others can often tell who took part"
    )


def _of_delta(budget: Budget, relation: Any, shape: tuple[int, ...]) -> str:
    """Of data whose number of records is private what can be said is for how many it holds."""
    if relation.public_rows:
        count = protected(relation.name, shape)
        return "" if count is None else budget.warning(count)
    if budget.delta <= WEAK_DELTA:
        return ""
    return (
        f"delta = {budget.delta:g} promises something for fewer than {1 / budget.delta:,.0f} records only: of more, "
        "publishing one as it is would satisfy the promise (how many there are is private, and was not looked at)"
    )


def _of_noise(problem: Asked) -> str:
    own: str | None = problem.recipe.noise_concern()
    if own is not None:
        return own
    most, norm = problem.recipe.largest(problem.source), _lasting_noise(problem)
    k = problem.algorithm.target_rank
    if most is None or norm is None or norm <= most / k:
        return ""
    return (
        f"the noise buries what is asked for: all releases together leave one of norm {norm:.3g}, and of {k} "
        f"components the least is at most {most / k:.3g} in data within the public bounds; use more records, a larger "
        "epsilon or fewer components"
    )


def largest_of(relation: Any, shape: tuple[int, ...]) -> float | None:
    """Of clipped data: of a matrix, or of A^T A of records."""
    if isinstance(relation, MatrixRelation):
        return float(relation.clip_norm * sqrt(shape[0] * shape[1]))
    return float(shape[0] * relation.clip_norm**2) if relation.public_rows else None


def _lasting_noise(problem: Asked) -> float | None:
    """What the noise of all releases together hardly leaves below: a larger value can exceed it at best.

    Of a matrix whose noise of stddev s is made symmetric that is s sqrt(d / 2) (Baik, Ben Arous and Peche 2005): of a
    product with p = d the norm of the noise over sqrt(8). L releases that all show the same divide it by sqrt(L).
    """
    noise, releases = problem.recipe.release_noise(problem), problem.recipe.releases
    if noise.lasting is not None:
        return noise.lasting
    norm = noise.smallest
    if norm is None or releases is None:
        return None
    return float(norm / (8 * releases) ** (0.25 if problem.source.kind == "sparse" else 0.5))  # values: roots of A^T A
