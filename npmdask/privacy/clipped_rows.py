"""Private products of records: the sum of a (a^T X) over clipped records a, exact in whatever order it is formed.

The sensitivity that a mechanism gets is that of the real code: a float sum depends, in its last bits, on what is
summed before, so that one record may change more than its own term. Here the sum is exact
(:mod:`npmdask.privacy.exact_sums`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.core.numerics.random import Rounding
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import (
    FEW_RUNS,
    SUMS_READ,
    BySlabs,
    Partial,
    Sums,
    least_run,
    split_rows,
    strip_rows,
    tile_bytes,
)
from npmdask.core.operators.sparse_gram import row_strips
from npmdask.core.operators.view import AS_STORED, View
from npmdask.core.storage.readers.dense import DenseReader, ReadStats, Tile, scratch
from npmdask.core.storage.readers.sparse import CsrReader, Fragment, cut_numbers, cut_rows, whole_rows
from npmdask.errors import BadInputError, RefusedError, require
from npmdask.privacy.exact_sums import (
    CLIP_ERROR,
    COARSE_GRID,
    IMAGE_COLUMNS,
    IMAGE_GRID,
    IMAGE_SPLIT,
    MAX_RECORDS,
    RECORD_GRID,
    RELEASE_GRID,
    SPLIT_ROWS,
    STRIP_ROWS,
    add_exactly,
    as_integers,
    carry,
    clip_images,
    grid_unit,
    on_grid,
    require_prepared,
    round_to,
)

# Records of bounded norm, on a grid: a function of each record alone, wherever and beside whatever it is stored.
#
# A record is one row. One that is not finite becomes a record of zeros; one that is longer than ``clip_norm`` is
# shortened to it; all are rounded to a grid. The norm after that is at most ``clip_norm`` exactly, not up to rounding.


FAR_VALUES = 2**17  # of records far too long that are shortened at once: bounds their copies
LEAST_NORM, LARGEST_NORM = 2.0**-200, 2.0**200


@dataclass(frozen=True)
class Clipping:
    """The public numbers of clipping records with ``columns`` entries to ``clip_norm``, in units of ``record_grid``."""

    clip_norm: float
    columns: int
    record_grid: float = RECORD_GRID

    def __post_init__(self) -> None:
        if not LEAST_NORM <= self.clip_norm <= LARGEST_NORM:
            raise BadInputError(f"clip_norm = {self.clip_norm} must be a positive number between 2^-200 and 2^200")

    @property
    def unit(self) -> float:
        return grid_unit(self.clip_norm)

    @property
    def grid(self) -> float:
        return self.record_grid * self.unit

    @property
    def largest_square(self) -> float:
        """The largest float64 that is not above the square of ``clip_norm``."""
        square = self.clip_norm * self.clip_norm
        above = Fraction(square) > Fraction(self.clip_norm) ** 2
        return math.nextafter(square, 0.0) if above else square

    @property
    def exact_below(self) -> float:
        """Sums of squares on the grid are exact in any order below this: 2^53 grid^2 of the finest grid."""
        return 32.0 * self.unit * self.unit

    @property
    def target(self) -> float:
        """Norm that long records are shortened to: so far below ``clip_norm`` that rounding cannot lead above it."""
        lost = self.grid / 2 * math.sqrt(self.columns) * (1 + 2.0**-40)
        return self.clip_norm * (1 - 2.0**-44) - lost


def clip_records(rounded: np.ndarray, clipping: Clipping, raw: Callable[[np.ndarray], np.ndarray]) -> None:
    """Make records (rows of ``rounded``, on the grid already) at most ``clip_norm`` long, in place.

    ``raw(which)`` gives a float64 copy of some records as they are stored: for those whose squares overflow the
    exact range, or are not finite.
    """
    squares = np.vecdot(rounded, rounded)
    fits = squares <= clipping.largest_square
    if fits.all():
        return
    exact = squares < clipping.exact_below  # False for NaN
    far = np.flatnonzero(~exact)
    step = max(1, FAR_VALUES // rounded.shape[1])
    for start in range(0, len(far), step):
        which = far[start : start + step]
        rounded[which] = shortened(raw(which), clipping)
    near = exact & ~fits
    if near.any():
        rounded *= factors(squares, near, clipping)[:, None]
        round_to(rounded, clipping.grid)


def factors(squares: np.ndarray, near: np.ndarray, clipping: Clipping) -> np.ndarray:
    """Compute the factors that shorten the records ``near`` (by exact squares) to the target; 1 for the others."""
    return np.divide(clipping.target, np.sqrt(squares), out=np.ones(len(squares)), where=near)


def shortened(raw: np.ndarray, clipping: Clipping) -> np.ndarray:
    """Records of any finite length (rows of ``raw``, overwritten) shortened to the target; zeros if not finite."""
    raw[~np.isfinite(raw).all(axis=1)] = 0.0
    _, exponents = np.frexp(np.abs(raw).max(axis=1, initial=0.0))
    np.ldexp(raw, -exponents[:, None], out=raw)  # entries of at most 1: no square overflows
    norms = np.sqrt(sum_in_one_order(raw * raw))
    raw *= np.divide(clipping.target, norms, out=np.zeros(len(raw)), where=norms > 0)[:, None]
    return round_to(raw, clipping.grid)


def sum_in_one_order(values: np.ndarray) -> np.ndarray:
    """Sums along rows, by halves: their order depends on the width only. ``np.sum`` makes no such promise."""
    width = values.shape[1]
    while width > 1:
        half = width // 2
        values[:, :half] += values[:, width - half : width]
        width -= half
    return values[:, 0]


LIMBS = ("upper", "lower")  # of an exact sum: see exact_sums


@dataclass(frozen=True, kw_only=True)
class Records(BySlabs):
    """Base of products of dense and of sparse records. Nothing in them fails, or warns, because of a value.

    ``image_norm``: what images X^T a are clipped to, if they are: public. ``whole``: X is the identity, and the sum of
    a a^T is formed of records on a grid so coarse that it is exact: its neighbours are as far apart as theory says.
    ``view``: public weights of rows and columns. Entries are multiplied by their roots one by one, before the record is
    clipped: what is summed is still a function of that record, and where rows are weighted of its place, alone.
    """

    reader: Any
    clip_norm: float
    image_norm: float | None = None
    whole: bool = False
    view: View = AS_STORED
    answers: ClassVar[tuple[str, ...]] = ("image_norm",)

    def __post_init__(self) -> None:
        _ = self.clipping
        if self.whole and self.image_norm is not None:
            raise BadInputError("images are clipped of products with a block, not of the whole matrix")
        if self.image_norm is not None and not 0 < self.image_norm < math.inf:
            raise BadInputError(f"image_norm = {self.image_norm} must be a positive number: images are clipped to it")
        require(
            not self.view.centres and self.view.scale is None,
            "private records are not centred or scaled, because means and deviations reveal information about the data",
        )
        if self.reader.shape[0] > MAX_RECORDS:
            raise RefusedError(
                f"{self.reader.where} has more than 2^33 records: their exact sum needs more than 64 bits"
            )

    @cached_property
    def clipping(self) -> Clipping:
        return Clipping(self.clip_norm, self.block_rows, COARSE_GRID if self.whole else RECORD_GRID)

    @property
    def block_rows(self) -> int:
        return int(self.reader.shape[1])

    def prepare(self, block: Block) -> Block:
        """The block on the grid of exact products (d x p): what is multiplied, released and told to the mechanism."""
        return on_grid(block)

    def rounding(self, p: int) -> Rounding:
        """Bound what rounding adds to the sensitivity of the sum of a a^T X over clipped records, X prepared.

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
        if self.whole:  # nothing is rounded but the sum, to integers, in both worlds
            return Rounding(grid=grid, l2=up * grid * d, l1=up * grid * d * d)
        return Rounding(
            grid=grid,
            relative=relative,
            l2=up * (image * math.sqrt(p) + grid * math.sqrt(d * p)),
            l1=up * (image * p * math.sqrt(d) + grid * d * p),
        )

    @property
    def run_bytes(self) -> int:
        """The least that a run reads; of a whole matrix many times the sum that it returns, or a share of all."""
        least = least_run(self.block_rows)
        return (
            max(least, min(SUMS_READ * 16 * self.block_rows**2, self.pass_bytes // FEW_RUNS)) if self.whole else least
        )

    def _images(self, images: np.ndarray) -> np.ndarray:
        """Images of records on their grid, and clipped, in place."""
        grid = IMAGE_GRID * self.clipping.unit
        round_to(images, grid)
        return images if self.image_norm is None else clip_images(images, self.image_norm, grid)

    def _add_square(self, total: np.ndarray, records: np.ndarray) -> None:
        """Add the exact sum of a a^T over at most ``STRIP_ROWS`` clipped records."""
        product = scratch(("product", records.shape[1]), (records.shape[1],) * 2, np.float64)
        add_exactly(total, np.matmul(records.T, records, out=product), self.clipping.unit)

    def join(self, left: Partial, right: Partial) -> Partial:
        total = np.stack([left.sums[limb] + right.sums[limb] for limb in LIMBS])
        return Partial(self._carried_limbs(total), left.record.add(right.record), left.fragments + right.fragments)

    def _carried_limbs(self, total: np.ndarray) -> Sums:
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
        record, total = ReadStats(), np.zeros((2, *block.shape))
        unit = self.clipping.unit
        product = scratch(("product", len(block)), block.shape, np.float64)
        for records in self._records(slabs, record):
            if self.whole:
                self._add_square(total, records)
                continue
            images = self._images(records @ block)
            np.matmul(records.T, images, out=product)
            add_exactly(total, product, unit)
        return Partial(self._carried_limbs(total), record)

    def _records(self, slabs: range, record: ReadStats) -> Iterator[np.ndarray]:
        """Strips of clipped records that stay in cache; the memory of one is reused by the next."""
        height = min(STRIP_ROWS, strip_rows(self.block_rows, np.float64))
        held = scratch("records", (height, self.block_rows), np.float64)
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                for start in range(0, rows.stop - rows.start, height):
                    part = slice(start, min(start + height, rows.stop - rows.start))
                    yield self._clipped(tile, rows.start, part, held[: part.stop - part.start])

    def _clipped(self, tile: Tile, first: int, part: slice, records: np.ndarray) -> np.ndarray:
        """Some rows of a tile, which begins with row ``first``, as clipped records, in the memory of ``records``."""
        numbers = np.arange(part.start, part.stop)

        def stored(which: np.ndarray) -> np.ndarray:
            return self._weighted(gather_rows(tile, numbers[which], None), first + numbers[which])

        self._weighted(gather_rows(tile, part, records), first + numbers)
        round_to(records, self.clipping.grid)
        clip_records(records, self.clipping, stored)
        return records

    def _weighted(self, records: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Records (b x d), which are the rows of these ``numbers``, times the roots of their weights, in place."""
        if self.view.column_weight is not None:
            records *= self.view.column_roots
        if self.view.row_weight is not None:
            records *= self.view.row_roots[numbers, None]
        return records

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        far = 6 * 8 * max(FAR_VALUES, self.block_rows)
        return tile_bytes(self.reader, p) + far + 8 * self.block_rows * p * 8


def gather_rows(tile: Tile, which: slice | np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Some rows of a tile, whole, in float64: the pieces that lie in its columns of chunks side by side."""
    if out is None:
        out = np.empty((len(tile[0][1][which]), tile[-1][0].stop))
    for columns, values in tile:
        np.copyto(out[:, columns], values[which], casting="unsafe")
    return out


# Private products of sparse records (rows of a CSR matrix), as exact as those of dense ones.


@dataclass(frozen=True, kw_only=True)
class ClippedSparseGram(Records):
    """``sum of a a^T X`` over the rows a of a CSR matrix, each clipped to ``clip_norm``.

    Entries of one row in the same column are added first: they are one entry of the record.
    """

    reader: CsrReader

    def partial(self, slabs: range, block: Block) -> Partial:
        record, fragments, total = ReadStats(), list[Fragment](), np.zeros((2, *block.shape))
        for at, piece in whole_rows(self.reader, slabs, record, fragments):
            self._add(total, piece, block, np.arange(at, at + piece.shape[0]))
        return Partial(self._carried_limbs(total), record, fragments)

    def finish(self, total: Partial, block: Block) -> np.ndarray:
        held = np.stack([total.sums[limb] for limb in LIMBS])
        with np.errstate(over="ignore", invalid="ignore"):
            cut = np.asarray(cut_numbers(total.fragments), np.int64)
            self._add(held, cut_rows(self.reader, total.fragments), block, cut)
        return super().finish(Partial(self._carried_limbs(held), total.record), block)

    def _add(self, total: np.ndarray, rows: csr_matrix, block: Block, numbers: np.ndarray) -> None:
        """Add the products of whole rows, of these ``numbers``, some at a time and without the empty ones."""
        numbers = numbers[np.diff(rows.indptr) > 0]
        height = STRIP_ROWS if self.whole else SPLIT_ROWS
        for at, strip in enumerate(row_strips(rows, np.float64, height)):
            part = strip.copy()  # of what was read, which stays as it is
            part.sum_duplicates()
            self._weight(part, numbers[at * height : (at + 1) * height])
            clip_rows(part, self.clipping)
            if self.whole:
                self._add_square(total, part.toarray())
            else:
                self._add_part(total, part, block)

    def _weight(self, part: csr_matrix, numbers: np.ndarray) -> None:
        """Multiply the entries of rows of these ``numbers`` by the roots of their weights, in place."""
        if self.view.column_weight is not None:
            part.data *= self.view.column_roots[part.indices]
        if self.view.row_weight is not None:
            part.data *= np.repeat(self.view.row_roots[numbers], np.diff(part.indptr))

    def _add_part(self, total: np.ndarray, part: csr_matrix, block: Block) -> None:
        """``part^T (part block)``: images in two parts, so that the sums over many rows are exact."""
        unit, p = self.clipping.unit, block.shape[1]
        images = self._images(part @ block)
        upper = round_to(images.copy(), IMAGE_SPLIT * unit)
        products = part.T @ np.concatenate([upper, images - upper], axis=1)
        add_exactly(total, products[:, :p].copy(), unit)
        add_exactly(total, products[:, p:].copy(), unit)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        pointers = max(self.reader.pointer_bytes(slabs) for slabs in runs)
        entries = self.reader.chunk * (2 * 8 + 8 + 8)  # rounded and as they are, their columns, their squares
        rows = (STRIP_ROWS if self.whole else SPLIT_ROWS * 6) * p * 8
        far = 6 * 8 * max(FAR_VALUES, self.block_rows)
        return self.reader.buffer_bytes + pointers + entries + rows + far + 10 * self.block_rows * p * 8


def clip_rows(part: csr_matrix, clipping: Clipping) -> None:
    """Round the rows of ``part`` (float64, none without entries) to the grid and clip them, in place."""
    raw, starts = part.data, part.indptr[:-1]
    part.data = rounded = round_to(raw.copy(), clipping.grid)
    squares = np.add.reduceat(rounded * rounded, starts)
    fits = squares <= clipping.largest_square
    if fits.all():
        return
    exact = squares < clipping.exact_below
    lengths = np.diff(part.indptr)
    for length in np.unique(lengths[~exact]):
        _clip_far(rounded, raw, starts[~exact & (lengths == length)], int(length), clipping)
    near = exact & ~fits
    if near.any():
        rounded *= np.repeat(factors(squares, near, clipping), lengths)
        round_to(rounded, clipping.grid)


def _clip_far(rounded: np.ndarray, raw: np.ndarray, starts: np.ndarray, length: int, clipping: Clipping) -> None:
    """Shorten rows of one length that are far too long, or not finite, as the dense records that they are."""
    step = max(1, FAR_VALUES // length)
    for first in range(0, len(starts), step):
        places = starts[first : first + step, None] + np.arange(length)
        rounded[places] = shortened(raw[places], clipping)
