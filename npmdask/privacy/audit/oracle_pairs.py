"""Neighbours for the releases of stochastic oracles: records A_i = t_i I, one of which changes.

The image of t I is t w for whatever public w an adaptive run has come to, so one pair attains the sensitivity in every
query: a record far out on one side against one far out on the other is clipped to opposite ends of the ball, and lies
in two bins of a histogram of distances if they are not equally far. ``rows`` are records x x^T, which cannot do that;
``not-finite`` changes a record that counts as zeros. What a pair attains is measured and reported, not assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmdask.privacy.dp_pca.neighbors import Relation

FAR = 1000.0  # a record that every radius clips
SPREAD = 1.2  # of the others: in the middle of a bin of distances, so that the centre may be wrong a little
LARGEST = 8.0  # public bound of distances: the topmost bin begins at LARGEST / sqrt(2)
OPPOSITE = -4.8  # outside every radius below LARGEST, and in another bin than FAR
HOSTILE = (np.nan, np.inf, -np.inf, 1e308, -1e200, 5e-324)  # entries that must not stop a release, or warn


@dataclass(frozen=True, kw_only=True)
class OraclePair:
    """Two data sets that differ in the record ``place``: n x d x d matrices, or n x d rows of records x x^T."""

    name: str
    relation: Relation
    here: np.ndarray
    there: np.ndarray
    place: int

    @property
    def dimension(self) -> int:
        return int(self.here.shape[1])

    def with_record(self, value: float) -> np.ndarray:
        """The data of ``here`` with a record whose entries are all ``value``."""
        records = self.here.copy()
        records[self.place] = value
        return records


def multiples(values: np.ndarray, dimension: int) -> np.ndarray:
    """Records t I for every t of ``values``: n x d x d."""
    return values[:, None, None] * np.eye(dimension)


def changed(
    name: str, relation: Relation, values: np.ndarray, place: int, ends: tuple[float, float], dimension: int
) -> OraclePair:
    """Records t I with the first of ``ends`` at ``place`` in the world ``here``; there with the second, or 0 where a
    record is zeroed out, or without it where one is removed."""
    here, other = values.astype(np.float64), values.astype(np.float64)
    here[place], other[place] = ends
    there = _neighbour(relation, other, place)
    worlds = {"here": multiples(here, dimension), "there": multiples(there, dimension)}
    return OraclePair(name=name, relation=relation, place=place, **worlds)


def _neighbour(relation: str, records: np.ndarray, place: int) -> np.ndarray:
    """``records``, of which the one that another is replaced by is at ``place``, under any of the relations."""
    if relation == "record_add_remove":
        return np.delete(records, place, axis=0)
    if relation == "record_zero_out":
        records[place] = 0.0
    return records


def whole_run(relation: Relation, records: int, dimension: int, *, place: int) -> tuple[OraclePair, ...]:
    """For oracles that clip: the pair that attains the sensitivity, rows of records, a record that is not finite."""
    values = np.where(np.arange(records) % 2, SPREAD, -SPREAD)
    attains = changed("attains", relation, values, place, (FAR, OPPOSITE), dimension)
    ruined = changed("not-finite", relation, values, place, (np.nan, FAR), dimension)
    return attains, _rows(relation, records, dimension, place), ruined


def _rows(relation: Relation, records: int, dimension: int, place: int) -> OraclePair:
    here = np.random.default_rng(0).standard_normal((records, dimension))
    other = here.copy()
    here[place], other[place] = FAR, FAR * np.where(np.arange(dimension) % 2, -1.0, 1.0)
    there = _neighbour(relation, other, place)
    return OraclePair(name="rows", relation=relation, here=here, there=there, place=place)


def tied_groups(relation: Relation, groups: int, dimension: int, *, name: str = "attains", lead: int = 0) -> OraclePair:
    """2 ``groups`` records, whose differences are 1 for half of the pairs and 2 for the others; the pair in the middle
    changes from 1 to 2, so that two bins are as full as each other but for this one (or the first leads by 2 ``lead``).

    The record that changes is on either side of its partner, so a mean that is clipped closely moves to the other end.
    """
    values = np.zeros(2 * groups)
    middle = groups // 2 + lead
    values[1 : 2 * middle : 2], values[2 * middle + 1 :: 2] = 1.0, 2.0
    if groups % 2 == 0:
        values[1] = 0.0  # one group of an even number is in no bin
    if relation == "record_zero_out":
        values[2 * middle] = 2.0  # 3 - 2 = 1, zeroed out 0 - 2
    ends = 3.0 if relation == "record_zero_out" else 1.0, -2.0
    return changed(name, relation, values, 2 * middle + 1, ends, dimension)


def lonely_group(relation: Relation, groups: int, dimension: int) -> OraclePair:
    """Differences of 1, but for one group of its own at 16: a bin that is empty in the other world."""
    values = np.where(np.arange(2 * groups) % 2, 1.0, 0.0)
    pair = changed("lonely", relation, values, 1, (1.0, 1.0), dimension)
    pair.here[1] = 16.0 * np.eye(dimension)
    return pair


def tied_bins(relation: Relation, values: tuple[float, float], each: int, name: str = "attains") -> OraclePair:
    """d = 1: ``each`` records at either value, and one that leaves the first for the second (or for zero)."""
    records = np.repeat([values[0], values[1]], each)
    return changed(name, relation, np.append(records, 0.0), 2 * each, values, 1)


def full_bin(relation: Relation, value: float, count: int) -> OraclePair:
    """d = 1: a bin with ``count`` records, of which one is zeroed out (or goes far away)."""
    return changed("attains", relation, np.full(count, value), count - 1, (value, FAR), 1)
