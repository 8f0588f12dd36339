"""Sums of rows that A^T A follows from: how many, their mean, their Gram about it; joined, and taken off again.

Kept about the mean, as sums of squares about zero lose what varies where means are large. Two parts are joined as
variances are (Chan, Golub and LeVeque, Amer. Statist. 37 (1983) 242, eq. 2.1), and one is taken off by the same
equation solved for the other. Beside each Gram lies its product with columns that depend on nothing but d and a seed,
formed apart from it: what the two differ by bounds the error of the Gram, also of one that was joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from npmdask.errors import RefusedError
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block, starting_block

PROBES = 16  # columns; as many as a run that forms the matrix multiplies beside it
EPS = float(np.finfo(np.float64).eps)
NO_DIGIT = 0.1  # of the largest diagonal entry: where the bound is more, nothing of what is left is right


def probes_of(columns: int, seed: int) -> Block:
    """Orthonormal random columns (d x 16, or d x d), a function of d and the seed alone."""
    return starting_block(columns, min(PROBES, columns), generator(seed, "probes of a Gram"))


@dataclass(frozen=True, kw_only=True, eq=False)
class GramSums:
    """Sums of some rows x: their ``count``, ``mean`` (d), ``matrix`` sum (x - mean)(x - mean)^T (d x d).

    ``image``: the matrix times the probes (d x r), formed by itself in float64. ``slack``: a bound of the 2-norm of
    what the matrix and its image may both be off.
    """

    count: int
    mean: np.ndarray
    matrix: np.ndarray
    image: Block
    slack: float = 0.0

    @cached_property
    def deviation(self) -> np.ndarray:
        """Standard deviations of the columns, of the population."""
        return np.asarray(np.sqrt(np.maximum(np.diagonal(self.matrix), 0.0) / self.count))

    def joined(self, other: GramSums, probes: Block) -> GramSums:
        """The sums of both."""
        count = self.count + other.count
        share = other.count / count
        away, times = other.mean - self.mean, self.count * share
        slack = self.slack + other.slack + _of_difference(away, times, self.mean, other.mean)
        return GramSums(
            count=count,
            mean=self.mean + share * away,
            matrix=_with_outer(self.matrix + other.matrix, away, times),
            image=self.image + other.image + np.outer(times * away, away @ probes),
            slack=slack,
        )

    def without(self, other: GramSums, probes: Block) -> GramSums:
        """The sums of those rows that are not among ``other``'s, all of which are in here.

        Digits are lost where few are left: ``slack`` says how many.

        Raises
        ------
        RefusedError
            No row is left, or no digit of what they sum to.
        """
        count = self.count - other.count
        if count < 1:
            raise RefusedError(
                f"{other.count} of {self.count} rows are to be removed, which leaves none: keep at least one"
            )
        mean = self.mean + other.count / count * (self.mean - other.mean)
        away, times = other.mean - mean, count * other.count / self.count
        matrix = _with_outer(self.matrix - other.matrix, away, -times)
        sizes = np.linalg.norm(self.matrix) + np.linalg.norm(other.matrix) + times * float(away @ away)
        slack = self.slack + other.slack + 8 * EPS * float(sizes)
        # The mean of what is left is a difference, too: of n of N rows it has N / n times the rounding of theirs.
        slack += self.count / count * _of_difference(away, times, self.mean, other.mean)
        if slack >= NO_DIGIT * max(float(np.diagonal(matrix).max()), 0.0):
            raise RefusedError(
                f"{count} of {self.count} rows would remain, but their variance is lost in the rounding of all rows: "
                "form the Gram of the remaining rows instead"
            )
        image = self.image - other.image - np.outer(times * away, away @ probes)
        return GramSums(count=count, mean=mean, matrix=matrix, image=image, slack=slack)


def _with_outer(matrix: np.ndarray, vector: np.ndarray, times: float) -> np.ndarray:
    """``matrix + times vector vector^T``, in place, and symmetric to the last bit."""
    root = np.sqrt(abs(times)) * vector
    for entry, row in zip(root, matrix, strict=True):  # no second d x d array
        row += np.sign(times) * (entry * root)
    return matrix


def _of_difference(away: np.ndarray, times: float, *means: np.ndarray) -> float:
    """What the rounding of ``means`` makes of ``times`` away away^T: neither the matrix nor its image knows of it."""
    off = 2 * EPS * sum(float(np.linalg.norm(mean)) for mean in means)
    return times * off * (2 * float(np.linalg.norm(away)) + off)


def packed(matrix: np.ndarray) -> np.ndarray:
    """The upper triangle of a symmetric matrix, row after row."""
    d = len(matrix)
    out, at = np.empty(d * (d + 1) // 2), 0
    for i in range(d):
        out[at : at + d - i] = matrix[i, i:]
        at += d - i
    return out


def unpacked(triangle: np.ndarray, columns: int) -> np.ndarray:
    """The inverse of :func:`packed`."""
    out, at = np.empty((columns, columns)), 0
    for i in range(columns):
        out[i, i:] = out[i:, i] = triangle[at : at + columns - i]
        at += columns - i
    return out
