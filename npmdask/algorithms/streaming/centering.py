"""Rows less a mean that is not known yet, so that their scatter is exactly that of the rows less the final mean.

The scatter of two groups is the sum of theirs plus n m / (n + m) delta delta^T, delta the difference of their means
(Chan, Golub and LeVeque 1979). A batch of n centred rows has rank n - 1: a Householder reflection turns them into
n - 1 rows with the same scatter, and the n-th carries delta. Batches keep their size, algorithms know nothing of it,
and the sum over all rows of x x^T is n times the covariance (population convention), whatever the batches were.

Rounding is of the size of the deviations, not of the mean, as in a corrected two-pass variance: what the mean of a
batch misses is subtracted once more, and the running mean is held as a sum of two.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np

from npmdask.numerics.subspaces import Block


class RunningMean(NamedTuple):
    """The mean of the rows so far (d), what it misses by rounding (d), and how many rows it stands for."""

    mean: np.ndarray
    rest: np.ndarray
    weight: float


def centred(rows: Block, before: RunningMean, fade: float = 1.0) -> tuple[Block, RunningMean]:
    """Rows (n x d, fresh) whose scatter is what ``rows`` add to the centred scatter, and the new mean.

    ``fade``: what one row leaves of the weight of those before it.
    """
    n, weight = len(rows), before.weight * fade ** len(rows)
    mean = rows.mean(axis=0)
    turned = rows - mean
    missed = turned.mean(axis=0)
    turned -= missed
    if n > 1:
        turned[1:] += turned[0] / (sqrt(n) - 1)
    delta = (mean - before.mean) + (missed - before.rest)
    turned[0] = sqrt(weight * n / (weight + n)) * delta
    if not weight:
        before, delta = RunningMean(mean, missed, 0.0), np.zeros_like(mean)
    return turned, _moved(before, (n / (weight + n)) * delta, weight + n)


def _moved(before: RunningMean, by: np.ndarray, weight: float) -> RunningMean:
    """The mean moved by ``by``; what is lost of it (Knuth's TwoSum, exact for any two numbers) is the new rest."""
    small = before.rest + by
    mean = before.mean + small
    part = mean - before.mean
    return RunningMean(mean, (before.mean - (mean - part)) + (small - part), weight)
