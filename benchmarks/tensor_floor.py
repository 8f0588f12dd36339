"""The floor of a contraction from disk: read every unique block once, and do the same matrix products, nothing else.

Two products for a block of three different indices (values times vectors, vectors times values), one where an index is
repeated; no sums over pairs, no products of vectors, no checksums, no arithmetic to put the answer together.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

Program = Callable[[], float]


def block_files(store: Path, grid: int) -> list[tuple[Path, bool]]:
    """The files of the blocks (i <= j <= k) in their order, and whether three indices differ."""
    places = enumerate(combinations_with_replacement(range(grid), 3))
    return [(store / "data" / f"c.{unit}.0.0.0", len(set(place)) == 3) for unit, place in places]


def programs(files: list[tuple[Path, bool]], side: int, columns: int, threads: int) -> dict[str, Program]:
    """On one thread, on several with a BLAS thread each, and on one whose BLAS has several; each returns a checksum."""
    room = [_Room(side, columns) for _ in range(threads)]

    def share(number: int) -> float:
        return sum(room[number].contract(*file) for file in files[number::threads])

    def one(blas: int) -> float:
        with threadpool_limits(limits=blas):
            return sum(room[0].contract(*file) for file in files)

    def several() -> float:
        with threadpool_limits(limits=1), ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(share, range(threads)))

    return {
        "one thread": lambda: one(1),
        f"{threads} threads": several,
        f"BLAS on {threads} threads": lambda: one(threads),
    }


class _Room:
    """Memory of one thread: a block, its vectors, and what comes out."""

    def __init__(self, side: int, columns: int) -> None:
        rng = np.random.default_rng(0)
        self._values = np.empty((side * side, side))
        self._vectors = rng.standard_normal((columns, side))
        self._pairs = np.empty((columns, side * side))
        self._weights = rng.standard_normal((columns, side * side))
        self._sum = np.empty((columns, side))

    def contract(self, path: Path, distinct: bool) -> float:
        with open(path, "rb", buffering=0) as file:
            count = file.readinto(self._values.reshape(-1).view(np.uint8).data)
        if count != self._values.nbytes:
            raise ValueError(f"{path} holds {count} bytes, not {self._values.nbytes}: it is compressed or truncated")
        np.matmul(self._vectors, self._values.T, out=self._pairs)
        if distinct:
            np.matmul(self._weights, self._values, out=self._sum)
        return float(self._pairs[0, 0])
