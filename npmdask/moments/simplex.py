"""Topics are distributions: the nearest point of the simplex, and how far away it was."""

from __future__ import annotations

import numpy as np

from npmdask.numerics.subspaces import Block


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
