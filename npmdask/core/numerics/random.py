"""Random streams that can be found again: a stream is a seed plus the purpose it serves, never a position."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """The stream of ``seed`` for one purpose, e.g. ``generator(7, "noise", step)``.

    Streams of different purposes are independent, and a resumed run finds its own without replaying
    anything, because the position is part of the name.
    """
    key = tuple(crc32(part.encode()) if isinstance(part, str) else part for part in purpose)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


# What finite arithmetic adds to the sensitivity of a product, in public numbers only.
#
# An operator for private use returns its product as integers on a public grid. What it rounded on the way (records,
# intermediate products, the sum) can move the results of two neighbouring data sets further apart than the exact
# product would: by a factor, and by an amount. A mechanism adds both before it draws noise.


@dataclass(frozen=True)
class Rounding:
    """Sensitivity of what is released, against that of the exact product: ``S * (1 + relative) + (l2 or l1)``.

    Parameters
    ----------
    grid : what an integer of the product is worth.
    relative : share by which arithmetic can increase the sensitivity S, in either norm.
    l2, l1 : amount that it can add on top, in the units of the product (of ``grid``, not of integers).
    """

    grid: float
    relative: float = 0.0
    l2: float = 0.0
    l1: float = 0.0
