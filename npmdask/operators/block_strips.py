"""Strips of a block of a tensor, as matrices that stay in cache, in buffers that the next ones reuse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from npmdask.storage.readers.dense import scratch

PAIR_BYTES = 2**19  # of the product of a strip: with the strip itself, in cache when it is used again
STRIP_BYTES = 2**21
MIN_STRIP_ROWS = 4


def strip_rows(side: int, count: int) -> int:
    """Rows of a block of ``side`` that are worked on at once for ``count`` vectors: a function of the two only."""
    pairs, strip = PAIR_BYTES // (max(count, 1) * side * 8), STRIP_BYTES // (side * side * 8)
    return min(side, max(MIN_STRIP_ROWS, min(pairs, strip)))


def room_bytes(side: int, count: int) -> int:
    """Memory of the buffers of one thread: pairs, a strip in another dtype, one reduced sum."""
    return 8 * (strip_rows(side, count) * side * (count + side) + side * count)


class Strips:
    """How blocks of at most ``side`` rows are cut for products with ``count`` vectors of ``dtype``."""

    def __init__(self, side: int, count: int, dtype: Any) -> None:
        self._rows, self._dtype = strip_rows(side, count), np.dtype(dtype)
        pairs, strip = self._rows * side * count, self._rows * side * side
        self._sizes = {"pairs": pairs, "strip": strip, "sum": side * count}

    def cut(self, values: np.ndarray, axis: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Strips of ``values`` along ``axis`` (0 or 1), each with its rows."""
        size = values.shape[axis]
        for start in range(0, size, self._rows):
            part = slice(start, min(start + self._rows, size))
            yield part, (values[part] if axis == 0 else values[:, part])

    def matrix(self, strip: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """A strip as a matrix in the dtype of the arithmetic: itself, or a copy in this thread's reused buffer."""
        if strip.dtype == self._dtype:
            try:
                return strip.reshape(shape, copy=False)
            except ValueError:  # at the edge of the tensor, where its rows do not lie one after the other
                return self._copy(strip).reshape(shape)
        return self._copy(strip).reshape(shape)

    def _copy(self, strip: np.ndarray) -> np.ndarray:
        held = self.room("strip", strip.shape)
        np.copyto(held, strip, casting="unsafe")
        return held

    def room(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """This thread's reused buffer, which is as large as any block needs: what this one needs of it."""
        held = scratch(("tensor", name), (self._sizes[name],), self._dtype)
        return held[: math.prod(shape)].reshape(shape)
