"""Whether a sum over records follows where they lie: one record more must move it by the term of that record alone.

Sensitivities count on it. A product of BLAS has other last bits in the last rows of a strip, and a record in front
moves all that follow to other rows. On arbitrary records nothing is seen of that: the difference is 1e-16, and sums are
rounded. So all records here are the same one, and what is summed of it lies on an edge: of a bin of distances, or
between two points of a grid. There every last bit counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial, reduce
from typing import Any

import numpy as np

from npmdask.numerics.subspaces import random_orthonormal
from npmdask.operators.exact_sums import RECORD_GRID, round_to, unit_of
from npmdask.privacy.dp_pca.base import BatchQuery
from npmdask.privacy.dp_pca.private_mean import ClippedMean, PlainMean
from npmdask.privacy.dp_pca.private_range import DistanceRange

COUNTS = range(29, 33)  # of records: with one more, strips end in another part of a kernel
SHAPES = ((20, 1), (37, 0))  # d of a record, and how many directions are found
Pass = Callable[[BatchQuery, np.ndarray], np.ndarray]  # what a pass over some records returns
Summing = Callable[[np.ndarray], np.ndarray]


def moves_others(sums: Summing, records: np.ndarray, record: np.ndarray, relation: str) -> bool:
    """Whether ``record`` in front of ``records``, or in place of the first, moves exact sums by more than its term."""
    if relation == "record_add_remove":
        moved, own = sums(np.concatenate([record[None], records])) - sums(records), sums(record[None])
    else:
        nothing = np.zeros_like(records[1:])  # so many that are not there
        moved = sums(np.concatenate([record[None], records[1:]])) - sums(records)
        own = sums(np.concatenate([record[None], nothing])) - sums(np.concatenate([records[:1], nothing]))
    return not np.array_equal(moved, own)


def follows_places(mechanism: Any, by_pass: Pass, relation: str) -> bool:
    """The same of the summaries of a mechanism of records, whose sums are exact integers."""
    for query, record in _on_edges(mechanism, by_pass):
        other = record if relation == "record_add_remove" else -2 * record
        for count in COUNTS:
            if moves_others(partial(by_pass, query), np.tile(record, (count, 1)), other, relation):
                return True
    return False


def _on_edges(mechanism: Any, by_pass: Pass) -> Iterator[tuple[BatchQuery, np.ndarray]]:
    """Queries with the mechanism on other public numbers, and the record whose image lies on an edge of them."""
    for d, j in SHAPES:
        rng = np.random.default_rng(d)
        record, vector = rng.standard_normal(d), random_orthonormal(d, 1, rng)[:, 0]
        found = random_orthonormal(d, j, rng) if j else np.zeros((d, 0))
        plain = BatchQuery(None, vector, found, np.zeros(d), PlainMean(count=1), 0)
        image = by_pass(plain, record[None])  # of one record: the sum is its image
        distance = float(np.linalg.norm(image))
        if isinstance(mechanism, ClippedMean):
            wide = replace(mechanism, radius=4 * distance)
            yield replace(plain, mechanism=wide, centre=image - wide.grid / 2), record
        elif isinstance(mechanism, DistanceRange):
            grid = RECORD_GRID * unit_of(2 * distance)
            between = round_to(image.copy(), grid) + grid / 2
            even = round_to(between.copy(), grid)
            for side in (1 - 2.0**-40, 1 + 2.0**-40):
                near = replace(mechanism, largest=2 * float(np.sqrt(even @ even)) * side)
                yield replace(plain, mechanism=near, centre=image - between), record


def sums_follow_places(operator_of: Callable[[np.ndarray], Any], relation: str) -> bool:
    """The same of the two limbs of the exact sum that the private power method forms. ``operator_of``: of records."""
    d, rng = SHAPES[0][0], np.random.default_rng(0)
    records, block = rng.standard_normal((max(COUNTS), d)), random_orthonormal(d, 3, rng)

    def sums(some: np.ndarray) -> np.ndarray:
        operator = operator_of(some)
        asked = operator.prepare(block)
        total = reduce(operator.join, (operator.partial(range(i, i + 1), asked) for i in range(operator.units)))
        upper, lower = total.sums["upper"], total.sums["lower"]
        return np.array([Fraction(a) + Fraction(b) for a, b in zip(upper.flat, lower.flat, strict=True)])

    record = rng.standard_normal(d)
    return any(moves_others(sums, records[:count], record, relation) for count in COUNTS)
