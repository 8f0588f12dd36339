"""Measure how well components were recovered, regardless of order, number or (in even orders) signs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmdask.numerics.subspaces import Block


@dataclass(frozen=True, kw_only=True)
class Match:
    """Found components against true ones.

    Attributes
    ----------
    found : for each true component the index of the one matched with it; -1 if there was none left.
    errors : norm of the difference, of each true component; infinite if it has no match.
    weight_errors : relative, of each true component; infinite if it has no match.
    duplicates : found components that are as near as ``within`` to a true one that another one is matched with.
    within : how near a component must be to count as recovered.
    """

    found: np.ndarray
    errors: np.ndarray
    weight_errors: np.ndarray
    duplicates: int
    within: float

    @property
    def recovered(self) -> int:
        """True components with a match as near as ``within``."""
        return int((self.errors <= self.within).sum())


def match(
    true: Block,
    true_weights: np.ndarray,
    found: Block,
    weights: np.ndarray,
    *,
    norm: int = 2,
    either_sign: bool = False,
    within: float = 0.1,
) -> Match:
    """The matching of least total distance (Hungarian method) between true (d x k) and found (d x r) components.

    Parameters
    ----------
    norm : 2, or 1 for distributions (0 to 2 for topics).
    either_sign : of v and -v, the nearer one counts: moments of even order.
    """
    from scipy.optimize import linear_sum_assignment  # a tenth of a second, that only this needs

    distances = _distances(true, found, norm)
    if either_sign:
        distances = np.minimum(distances, _distances(true, -found, norm))
    rows, columns = linear_sum_assignment(distances)
    k = true.shape[1]
    matched, errors, off = np.full(k, -1), np.full(k, np.inf), np.full(k, np.inf)
    matched[rows], errors[rows] = columns, distances[rows, columns]
    off[rows] = np.abs(weights[columns] - true_weights[rows]) / np.abs(true_weights[rows])
    others = np.setdiff1d(np.arange(found.shape[1]), columns)
    duplicates = int((distances[:, others] <= within).any(axis=0).sum())
    return Match(found=matched, errors=errors, weight_errors=off, duplicates=duplicates, within=within)


def _distances(true: Block, found: Block, norm: int) -> np.ndarray:
    """k x r, a true component at a time: never d x k x r."""
    rows = [np.linalg.norm(found - column[:, None], ord=norm, axis=0) for column in true.T]
    return np.stack(rows).reshape(true.shape[1], found.shape[1])


# Topics are distributions: the nearest point of the simplex, and how far away it was.


def on_simplex(columns: Block) -> tuple[Block, np.ndarray]:
    """Every column (d x k) moved to the nearest point of the probability simplex, and its negative mass (k).

    The negative mass is the share of the absolute values that lay below zero: the sampling error of a topic, seen
    without knowing the truth. Projection: Duchi, Shalev-Shwartz, Singer and Chandra (2008), O(d log d) a column;
    clipping and dividing instead would move mass to words that have none.
    """
    columns = np.asarray(columns, np.float64)
    negative = -np.minimum(columns, 0.0).sum(axis=0)
    mass = np.abs(columns).sum(axis=0)
    falling = -np.sort(-columns, axis=0)
    shifts = (np.cumsum(falling, axis=0) - 1.0) / np.arange(1, len(columns) + 1)[:, None]
    last = np.maximum((falling > shifts).sum(axis=0) - 1, 0)
    shift = np.take_along_axis(shifts, last[None], axis=0)
    projected: Block = np.maximum(columns - shift, 0.0)
    return projected, negative / np.where(mass > 0, mass, 1.0)
