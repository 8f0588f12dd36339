"""Scores of rows of which some entries are missing (NaN), along orthonormal directions.

Of a row z = V t + e (V: d x k) the entries O are observed. Its least squares scores

    t = (V_O^T V_O)^-1 V_O^T z_O

are those of the point of the model's plane that is nearest in what is observed: "projection to the model plane" of
Nelson, Taylor and MacGregor, Chemometrics and Intelligent Laboratory Systems 35 (1996) 45, section 4. A gap that counts
as 0 (the mean) gives V_O^T z_O instead, which is V_O^T V_O times that: too small. Where e has equal variance everywhere
their covariance is that variance times (V_O^T V_O)^-1, so that scores of few entries are as uncertain as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from npmdask.numerics.subspaces import Block

AT_ONCE = 4 * 2**20  # bytes of small matrices, and of products of pairs of directions
LEAST = 1e-8  # eigenvalue of V_O^T V_O: below, noise of the entries is in a score more than 10,000 times


class FittedScores(NamedTuple):
    """Scores (n x k), NaN in rows that do not determine them, and how many times the deviation of noise in the worst
    direction is that in a complete row (n): 1 where nothing is missing, infinite where scores are not determined.
    """

    scores: Block
    amplified: np.ndarray


def least_squares_scores(rows: Block, basis: Block) -> FittedScores:
    """Scores of rows (n x d, NaN where entries are missing) along a ``basis`` (d x k) of orthonormal columns.

    Rows without gaps have the scores ``rows @ basis``; an infinity is no gap, and leaves scores that are not finite.
    """
    gaps = np.isnan(rows)
    whole = np.where(gaps, 0.0, rows)
    with np.errstate(invalid="ignore"):
        scores, amplified = whole @ basis, np.ones(len(rows))
    where = np.flatnonzero(gaps.any(axis=1) & ~np.isinf(rows).any(axis=1))
    for some, grams in grams_of_observed(gaps, where, basis):
        sizes, turn = np.linalg.eigh(grams)
        known = sizes[:, 0] > LEAST
        sizes[~known] = 1.0
        turned = np.einsum("nji,nj->ni", turn, scores[some]) / sizes
        scores[some] = np.where(known[:, None], np.einsum("nij,nj->ni", turn, turned), np.nan)
        amplified[some] = np.where(known, np.maximum(sizes[:, 0], LEAST) ** -0.5, np.inf)
    return FittedScores(scores, amplified)


def grams_of_observed(gaps: np.ndarray, where: np.ndarray, basis: Block) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (numbers of rows, ``V_O^T V_O`` (n x k x k) of each), some of the rows ``where`` at a time."""
    d, k = basis.shape
    rows_at_once = columns_at_once = max(1, AT_ONCE // (8 * k * k))
    for first in range(0, len(where), rows_at_once):
        some = where[first : first + rows_at_once]
        seen, grams = ~gaps[some], np.zeros((len(some), k * k))
        for start in range(0, d, columns_at_once):
            part = basis[start : start + columns_at_once]
            pairs = (part[:, :, None] * part[:, None, :]).reshape(len(part), k * k)
            grams += seen[:, start : start + columns_at_once] @ pairs
        yield some, grams.reshape(-1, k, k)
