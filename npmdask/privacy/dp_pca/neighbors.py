"""Neighbours of a data set of records, and what one of them can move.

* ``record_replace``: one record is replaced by any other; the number of records is public;
* ``record_zero_out``: one record A_i is replaced by zeros, or zeros by a record; the number is public;
* ``record_add_remove``: one record more or less; the number is private, and what sums are divided by is a public guess.

The last is for oracles of which every release is of all records. Where batches are cut by the index of a record, one
record more shifts every later one into another batch, pair or group, so that all releases change and no theorem about
disjoint batches applies (Duengler and Sanyal 2025, Definition 2, claim it): refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from npmdask.accounting import Charge
from npmdask.errors import BadInputError, RefusedError, closest

Relation = Literal["record_replace", "record_zero_out", "record_add_remove"]
BY_INDEX: tuple[Relation, ...] = ("record_replace", "record_zero_out")
RELATIONS: tuple[Relation, ...] = (*BY_INDEX, "record_add_remove")


@dataclass(frozen=True)
class Promise:
    """What all releases of a run together promise; ``mu`` of Gaussian differential privacy if that is all there is.

    ``verified`` is False where the numbers are a paper's and exact accounting does not give them: ``remark`` says what
    it gives instead.
    """

    relation: Relation
    epsilon: float
    delta: float
    mu: float | None
    verified: bool
    remark: str


def require_relation(relation: str) -> Relation:
    """``relation`` if it is known: all are sound for releases of all records.

    Raises
    ------
    BadInputError
        Any other name.
    """
    for known in RELATIONS:
        if relation == known:
            return known
    raise BadInputError(f"unknown relation {relation!r}: {closest(relation, list(RELATIONS))}")


def require_by_index(relation: str) -> Relation:
    """``relation`` if batches by index are sound for it.

    Raises
    ------
    RefusedError
        Adding and removing records.
    BadInputError
        An unknown name.
    """
    if require_relation(relation) not in BY_INDEX:
        raise RefusedError(
            "batches are formed by the index of a record, so one more record would shift all that follow: use "
            "'record_replace' or 'record_zero_out', with a public number of records, or an oracle that uses all "
            "records in every step"
        )
    return require_relation(relation)


def moved_counts(relation: Relation) -> int:
    """How many counts of a histogram of records move by one: two if a record is replaced by any other.

    A record of zeros is in no bin, so one that is zeroed out leaves a bin and enters none, as one that is removed.
    """
    return 2 if relation == "record_replace" else 1


def sum_sensitivity(relation: Relation, radius: float) -> float:
    """How far (2-norm) one neighbour moves a sum of terms of norm at most ``radius``; the term of zeros is zero."""
    return 2 * radius if relation == "record_replace" else radius


def parallel(charges: Iterable[Charge]) -> Charge:
    """The cost of releases from disjoint batches, fixed by index: neighbours differ in one batch only.

    Each release may depend on those before it. The largest of each part is not below the cost of any one batch.
    """
    listed = list(charges)
    return Charge(
        mu_squared=max((charge.mu_squared for charge in listed), default=0.0),
        epsilon=max((charge.epsilon for charge in listed), default=0.0),
        delta=max((charge.delta for charge in listed), default=0.0),
    )


def promise_of(charge: Charge, relation: Relation, delta: float, remark: str = "") -> Promise:
    """``charge`` as (epsilon, delta) by exact accounting."""
    mu = charge.mu if charge.epsilon == charge.delta == 0 else None
    return Promise(relation, charge.epsilon_at(delta), delta, mu, True, remark)


def next_up(value: float) -> float:
    """Above what was rounded to ``value``."""
    return math.nextafter(value, math.inf)
