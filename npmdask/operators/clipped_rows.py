"""Private products of records: the sum of a (a^T X) over clipped records a, exact in whatever order it is formed.

The sensitivity that a mechanism gets is that of the real code: a float sum depends, in its last bits, on what is
summed before, so that one record may change more than its own term. Here the sum is exact
(:mod:`npmdask.operators.exact_sums`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from npmdask.errors import BadInputError, RefusedError
from npmdask.numerics.random import Rounding
from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import BySlabs, Partial, Sums, split_rows, strip_rows, tile_bytes
from npmdask.operators.clipping import FAR_VALUES, Clipping, clip_records
from npmdask.operators.exact_sums import (
    CLIP_ERROR,
    IMAGE_COLUMNS,
    IMAGE_GRID,
    MAX_RECORDS,
    RELEASE_GRID,
    STRIP_ROWS,
    add_exactly,
    as_integers,
    carry,
    clip_images,
    prepare,
    require_prepared,
    round_to,
)
from npmdask.storage.readers.dense import DenseReader, SlabRecord, Tile, scratch

LIMBS = ("upper", "lower")  # of an exact sum: see exact_sums


@dataclass(frozen=True, kw_only=True)
class Records(BySlabs):
    """What products of dense and of sparse records share. Nothing in them fails, or warns, because of a value."""

    reader: Any
    clip_norm: float
    image_norm: float | None = None  # what images X^T a are clipped to, if they are: public
    answers: ClassVar[tuple[str, ...]] = ("image_norm",)

    def __post_init__(self) -> None:
        _ = self.clipping
        if self.image_norm is not None and not 0 < self.image_norm < math.inf:
            raise BadInputError(f"image_norm = {self.image_norm} must be a positive number: images are clipped to it")
        if self.reader.shape[0] > MAX_RECORDS:
            raise RefusedError(
                f"{self.reader.where} has more than 2^33 records: their exact sum needs more than 64 bits"
            )

    @cached_property
    def clipping(self) -> Clipping:
        return Clipping(self.clip_norm, self.block_rows)

    @property
    def block_rows(self) -> int:
        return int(self.reader.shape[1])

    def prepare(self, block: Block) -> Block:
        """The block on the grid of exact products (d x p): what is multiplied, released and told to the mechanism."""
        return prepare(block)

    def rounding(self, p: int) -> Rounding:
        """What rounding adds to the sensitivity of the sum of a a^T X over clipped records, X prepared.

        Neighbours may differ in two records (one taken out, one put in). Derived in docs/decisions/0021, and 0023 where
        images are clipped: they are rounded before and after, and the factor between is a float.

        Raises
        ------
        RefusedError
            Images of more columns than their squares are exact for are to be clipped.
        """
        if self.image_norm is not None and p > IMAGE_COLUMNS:
            raise RefusedError(
                f"images of {p} columns cannot be clipped: set clip_images = false, or iteration_rank lower"
            )
        d, unit = self.block_rows, self.clipping.unit
        rounded, relative = (1, 0.0) if self.image_norm is None else (2, CLIP_ERROR)
        image = 2 * self.clip_norm * rounded * (IMAGE_GRID * unit / 2)  # a record times the error of an entry of it
        grid = RELEASE_GRID * unit * unit
        up = 1 + 2.0**-40
        return Rounding(
            grid=grid,
            relative=relative,
            l2=up * (image * math.sqrt(p) + grid * math.sqrt(d * p)),
            l1=up * (image * p * math.sqrt(d) + grid * d * p),
        )

    def _images(self, images: np.ndarray) -> np.ndarray:
        """Images of records on their grid, and clipped, in place."""
        grid = IMAGE_GRID * self.clipping.unit
        round_to(images, grid)
        return images if self.image_norm is None else clip_images(images, self.image_norm, grid)

    def join(self, left: Partial, right: Partial) -> Partial:
        total = np.stack([left.sums[limb] + right.sums[limb] for limb in LIMBS])
        return Partial(self._carried(total), left.record.add(right.record), left.fragments + right.fragments)

    def _carried(self, total: np.ndarray) -> Sums:
        """An exact sum (2 x d x p), carried, as its two limbs by name."""
        return dict(zip(LIMBS, carry(total, self.clipping.unit), strict=True))

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return split_rows(stacked, dict.fromkeys(LIMBS, self.block_rows))

    def finish(self, total: Partial, block: Block) -> np.ndarray:
        """The sum as int64 multiples of the grid of ``rounding``; raises BadInputError if X was not prepared."""
        require_prepared(block)
        return as_integers(np.stack([total.sums[limb] for limb in LIMBS]), self.clipping.unit)

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return 2 * super().pending_bytes(p, runs)  # a sum has two limbs


@dataclass(frozen=True, kw_only=True)
class ClippedGram(Records):
    """``sum of a a^T X`` over the rows a of a dense array, each clipped to ``clip_norm``."""

    reader: DenseReader

    def partial(self, slabs: range, block: Block) -> Partial:
        record, total = SlabRecord(), np.zeros((2, *block.shape))
        unit = self.clipping.unit
        product = scratch(("product", len(block)), block.shape, np.float64)
        for records in self._records(slabs, record):
            images = self._images(records @ block)
            np.matmul(records.T, images, out=product)
            add_exactly(total, product, unit)
        return Partial(self._carried(total), record)

    def _records(self, slabs: range, record: SlabRecord) -> Iterator[np.ndarray]:
        """Strips of clipped records that stay in cache; the memory of one is reused by the next."""
        height = min(STRIP_ROWS, strip_rows(self.block_rows, np.float64))
        held = scratch("records", (height, self.block_rows), np.float64)
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                for start in range(0, rows.stop - rows.start, height):
                    part = slice(start, min(start + height, rows.stop - rows.start))
                    yield self._clipped(tile, part, held[: part.stop - part.start])

    def _clipped(self, tile: Tile, part: slice, records: np.ndarray) -> np.ndarray:
        """Some rows of a tile as clipped records, in the memory of ``records``."""
        gather(tile, part, records)
        round_to(records, self.clipping.grid)
        numbers = np.arange(part.start, part.stop)
        clip_records(records, self.clipping, lambda which: gather(tile, numbers[which], None))
        return records

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        far = 6 * 8 * max(FAR_VALUES, self.block_rows)
        return tile_bytes(self.reader, p) + far + 8 * self.block_rows * p * 8


def gather(tile: Tile, which: slice | np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Some rows of a tile, whole, in float64: the pieces that lie in its columns of chunks side by side."""
    if out is None:
        out = np.empty((len(tile[0][1][which]), tile[-1][0].stop))
    for columns, values in tile:
        np.copyto(out[:, columns], values[which], casting="unsafe")
    return out
