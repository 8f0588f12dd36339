"""Power iterations of many columns at once: what a product says of each, where each goes next, which are the same."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npmdask.algorithms._tensor_fit import SAME
from npmdask.algorithms._tensors import scores_of, unit_columns
from npmdask.linalg import Block

STALLED = 8  # products without a residual that is smaller by a tenth: the column oscillates, and is shifted
MOST_SHIFT = 3.0  # times the score; p - 1 makes every step climb (Kolda and Mayo 2011, SS-HOPM)


class Sight(NamedTuple):
    """Of L columns u: the deflated products g (d x L), scores u^T g and residuals ||g - (u^T g) u||."""

    products: Block
    scores: np.ndarray
    residuals: np.ndarray

    @property
    def relative(self) -> np.ndarray:
        """Residual over |score|; infinite where the score is zero."""
        sizes = np.abs(self.scores)
        out = np.full(len(sizes), np.inf)
        np.divide(self.residuals, sizes, out=out, where=sizes > 0)
        return out


class Columns(NamedTuple):
    """L columns on their way: unit vectors (d x L), products since each start, least relative residual, when, shift."""

    block: Block
    ages: np.ndarray
    least: np.ndarray
    least_ages: np.ndarray
    shifts: np.ndarray


def fresh(block: Block) -> Columns:
    """Columns that have just started."""
    zeros = np.zeros(block.shape[1])
    return Columns(block, zeros, np.full(block.shape[1], np.inf), zeros, zeros)


def seen(products: Block, block: Block) -> Sight:
    """What the deflated ``products`` say of the unit columns of ``block``: score and residual of the same u."""
    scores = scores_of(products, block)
    return Sight(products, scores, np.linalg.norm(products - block * scores, axis=0))


def advanced(columns: Columns, sight: Sight, order: int, *, shifted: bool = True) -> Columns:
    """One power step: u <- g / ||g||, up to sign for an even order, with a shift where the column has stalled.

    A column whose product is zero stays. A shift adds ``shift |score| u`` before normalising; it begins at 1 when the
    residual has stalled, and grows to where no step can lower the score.
    """
    relative = sight.relative
    better = relative < 0.9 * columns.least
    least = np.where(better, relative, columns.least)
    least_ages = np.where(better, columns.ages, columns.least_ages)
    stalled = (columns.ages - least_ages >= STALLED) & shifted
    shifts = np.where(stalled, np.minimum(2 * columns.shifts + 1, MOST_SHIFT), columns.shifts)
    least_ages = np.where(stalled, columns.ages, least_ages)
    signs = np.where(sight.scores < 0, -1.0, 1.0) if order % 2 == 0 else 1.0
    block = stepped(columns.block, sight.products * signs + columns.block * (shifts * np.abs(sight.scores)))
    return Columns(block, columns.ages + 1, least, least_ages, shifts)


def stepped(block: Block, products: Block) -> Block:
    """The products over their norms; where a product is zero, the column of ``block``."""
    units = unit_columns(products)
    return np.where(np.abs(products).max(axis=0, initial=0.0) > 0, units, block)


def replaced(columns: Columns, which: np.ndarray, starts: Block) -> Columns:
    """Fresh ``starts`` (d x L) in place of the columns of the mask ``which``."""
    new = fresh(starts)
    return Columns(*(np.where(which, begun, old) for begun, old in zip(new, columns, strict=True)))


def nearest(block: Block, vectors: Block) -> np.ndarray:
    """For every column of ``block`` the number of the vector it coincides with, or -1."""
    if vectors.shape[1] == 0:
        return np.full(block.shape[1], -1)
    cosines = np.abs(vectors.T @ block)
    closest = cosines.argmax(axis=0)
    return np.where(cosines.max(axis=0) > SAME, closest, -1)


def distinct(block: Block, candidates: np.ndarray, against: Block, most: int) -> list[int]:
    """At most ``most`` of the ``candidates``, in their order, that coincide with no vector and not with each other."""
    taken: list[int] = []
    for number in candidates.tolist():
        if len(taken) == most:
            break
        known = np.concatenate([against, block[:, taken]], axis=1)
        if nearest(block[:, [number]], known)[0] < 0:
            taken.append(number)
    return taken
