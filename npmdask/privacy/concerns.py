"""Warn before a private run charges its budget: the guarantee is weak, or the result would be mostly noise.

Only public numbers are used. The noise is the noise that the mechanism is calibrated to at the public start block;
whatever depends on the kind of release comes from its recipe (:class:`npmdask.core.runs.release.Recipe`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, Protocol

import numpy as np

from npmdask.accounting import Budget
from npmdask.core.numerics.random import generator
from npmdask.core.storage.source import Source
from npmdask.errors import RefusedError
from npmdask.privacy.neighbors import MatrixRelation, protected

WEAK_EPSILON = 10.0  # above it a guarantee is called weak
WEAK_DELTA = 1e-6  # the same where the number of records is private: data sets of a million records are common


class Asked(Protocol):
    """The parts of a private problem that are read here: public numbers, its own and those of its source."""

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

    ``later``: standard deviation of an entry of a release, given the start block. ``first``: the same for the first
    release, which differs where images of records are clipped as well. ``smallest``: the norm that the noise of one
    release hardly ever exceeds, in the units of the released values. For oracles of records both assume images as long
    as clip_norm allows, and are None where even that depends on earlier releases. ``lasting``: the noise that remains
    after all releases together, where it does not follow from ``smallest``: see :func:`_lasting_noise`.
    """

    first: float | None
    later: float | None
    smallest: float | None
    lasting: float | None = None


def first_query(problem: Asked) -> Any:
    """The first query of the algorithm, at its public start."""
    return problem.algorithm.query(problem.algorithm.init(problem.d, rng=generator(problem.request.seed, "start")))


def concerns(problem: Asked) -> tuple[str, ...]:
    """List, before the budget is charged, why the guarantee is weak or the result mostly noise: one sentence each.

    Everything follows from public numbers, so it may be published with the result. Under record_add_remove the number
    of records is private and is not used. A coordinator uses what its nodes announced.
    """
    return tuple(said for said in (*problem.recipe.promise_concerns(problem.source), _of_noise(problem)) if said)


def concerns_of_node(problem: Asked) -> tuple[str, ...]:
    """List the same for one node of a federated run; the data of other nodes may still outweigh its noise."""
    buried = _buried_text(problem)
    said = f"the noise buries the data of this node: {buried}; only the data of further nodes can outweigh it"
    return (*problem.recipe.promise_concerns(problem.source), *([said] if buried else []))


def weak_promise(budget: Budget, relation: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    """List why a guarantee about data of this shape is weak; rows are counted only where their number is public."""
    return tuple(said for said in (of_epsilon(budget), _of_delta(budget, relation, shape)) if said)


def require_signal(problem: Asked) -> None:
    """Refuse a run whose noise buries every component that data within the public bounds can have.

    Raises
    ------
    RefusedError
        No component of the data could be seen in the result.
    """
    buried = _buried_text(problem)
    if buried:
        raise RefusedError(
            f"the noise would bury every component: {buried}. Nothing was charged; use more records, a larger epsilon "
            "or fewer columns"
        )


def _buried_text(problem: Asked) -> str:
    """Say why no component could be seen in the result; empty if some could."""
    most, norm = problem.recipe.largest(problem.source), _lasting_noise(problem)
    if most is None or norm is None or norm <= most:
        return ""
    return (
        f"after all releases noise of norm {norm:.3g} remains, and data within the public bounds have no component "
        f"above {most:.3g}"
    )


def of_epsilon(budget: Budget) -> str:
    if budget.epsilon <= WEAK_EPSILON:
        return ""
    return (
        f"epsilon = {budget.epsilon:g} is a very weak guarantee: a release may be e^{budget.epsilon:g} = "
        f"{np.exp(min(budget.epsilon, 700.0)):.1e} times as likely with a person's data as without; 1 is a usual "
        f"value, and above {WEAK_EPSILON:g} an attacker can often tell who took part"
    )


def _of_delta(budget: Budget, relation: Any, shape: tuple[int, ...]) -> str:
    """Return a warning where delta suits few records only, "" if none; a private number of records is not used."""
    if relation.public_rows:
        count = protected(relation.name, shape)
        return "" if count is None else budget.warning(count)
    if budget.delta <= WEAK_DELTA:
        return ""
    return (
        f"delta = {budget.delta:g} is a guarantee for fewer than {1 / budget.delta:,.0f} records only: with more, "
        "publishing one record in full would satisfy it (the number of records is private and was not used)"
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
        f"the noise buries the last component: after all releases noise of norm {norm:.3g} remains, and in data within "
        f"the public bounds the smallest of {k} components is at most {most / k:.3g}; use more records, a larger "
        "epsilon or fewer components"
    )


def largest_of(relation: Any, shape: tuple[int, ...]) -> float | None:
    """The largest value that clipped data can have: of a matrix, or of A^T A of records."""
    if isinstance(relation, MatrixRelation):
        return float(relation.clip_norm * sqrt(shape[0] * shape[1]))
    return float(shape[0] * relation.clip_norm**2) if relation.public_rows else None


def _lasting_noise(problem: Asked) -> float | None:
    """The noise that remains after all releases: only larger values can be distinguished from it.

    A d x d matrix whose noise of stddev s is made symmetric hides values below s sqrt(d / 2) (Baik, Ben Arous and Peche
    2005), which for a product with p = d is the norm of the noise over sqrt(8). L releases of the same product divide
    it by sqrt(L).
    """
    noise, releases = problem.recipe.release_noise(problem), problem.recipe.releases
    if noise.lasting is not None:
        return noise.lasting
    norm = noise.smallest
    if norm is None or releases is None:
        return None
    return float(norm / (8 * releases) ** (0.25 if problem.source.kind == "sparse" else 0.5))  # values: roots of A^T A
