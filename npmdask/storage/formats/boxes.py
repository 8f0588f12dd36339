"""Boxes of three-dimensional arrays of plain values in files, read run by run: nothing is mapped, nothing read twice.

A run is what lies together: a few entries of the last axis, or whole rows and planes where the box holds all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.storage.formats.common import truncated
from npmdask.storage.formats.raw import spool_file, spool_write

Box = tuple[slice, ...]


@dataclass(frozen=True, kw_only=True)
class PlainCube:
    """An array of ``shape`` and ``dtype`` in C order, at byte ``offset`` of an open ``file`` called ``path``."""

    path: Path
    file: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self, box: Box, out: np.ndarray) -> None:
        """Fill ``out`` (C order) with the entries in ``box``."""
        rows, width = self._rows(box)
        view, size, wide = out.reshape(-1).view(np.uint8).data, self.dtype.itemsize, width * self.dtype.itemsize
        for number, first in enumerate(rows):
            part = view[number * wide : (number + 1) * wide]
            if os.preadv(self.file, [part], self.offset + first * size) < wide:
                raise truncated(self.path, f"it ends before entry {np.unravel_index(first, self.shape)}")

    def _rows(self, box: Box) -> tuple[Iterator[int], int]:
        """Where the runs of a box begin, in entries, in their order, and how many entries each has."""
        (_, d1, d2), (i, j, k) = self.shape, box
        if k.stop - k.start < d2:
            starts = ((a * d1 + b) * d2 + k.start for a in range(i.start, i.stop) for b in range(j.start, j.stop))
            return starts, k.stop - k.start
        return ((a * d1 + j.start) * d2 for a in range(i.start, i.stop)), (j.stop - j.start) * d2


class SpooledCubes:
    """The chunks of a three-dimensional array, uncompressed one after the other in a temporary file.

    For arrays whose chunks do not lie well to the boxes: every chunk is asked for once, in the order of the grid.
    """

    def __init__(self, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype, folder: Path) -> None:
        self._shape, self._chunks, self._dtype, self.path = shape, chunks, dtype, folder / "cubes"
        self._offsets: dict[tuple[int, ...], int] = {}

    def fill(self, chunk: Any) -> None:
        """Write all chunks; ``chunk(box)`` are the values in a box."""
        offset = 0
        with spool_file(self.path.parent, self.path.name) as file:
            for at in product(*(range(-(-n // c)) for n, c in zip(self._shape, self._chunks, strict=True))):
                values = np.ascontiguousarray(chunk(self._span(at)), self._dtype)
                spool_write(file, values)
                self._offsets[at] = offset
                offset += values.nbytes

    def read(self, file: int, box: Box) -> np.ndarray:
        """The entries in ``box``, from the file that was opened again."""
        whole = np.empty([b.stop - b.start for b in box], self._dtype)
        for at in product(*(range(b.start // c, -(-b.stop // c)) for b, c in zip(box, self._chunks, strict=True))):
            span = self._span(at)
            met = tuple(slice(max(b.start, s.start), min(b.stop, s.stop)) for b, s in zip(box, span, strict=True))
            part = np.empty([m.stop - m.start for m in met], self._dtype)
            shape = tuple(s.stop - s.start for s in span)
            cube = PlainCube(path=self.path, file=file, offset=self._offsets[at], shape=shape, dtype=self._dtype)
            cube.read(moved(met, [s.start for s in span]), part)
            whole[moved(met, [b.start for b in box])] = part
        return whole

    def _span(self, at: tuple[int, ...]) -> Box:
        return tuple(slice(i * c, min((i + 1) * c, n)) for i, c, n in zip(at, self._chunks, self._shape, strict=True))


def moved(box: Box, origin: list[int]) -> Box:
    """The box as seen from ``origin``."""
    return tuple(slice(b.start - o, b.stop - o) for b, o in zip(box, origin, strict=True))
