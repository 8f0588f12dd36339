"""Random streams that can be found again: a stream is a seed plus the purpose it serves, never a position."""

from __future__ import annotations

from zlib import crc32

import numpy as np


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """The stream of ``seed`` for one purpose, e.g. ``generator(7, "noise", step)``.

    Streams of different purposes are independent, and a resumed run finds its own without replaying
    anything, because the position is part of the name.
    """
    key = tuple(crc32(part.encode()) if isinstance(part, str) else part for part in purpose)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
