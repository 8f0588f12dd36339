"""Private products of sparse records (rows of a CSR matrix), as exact as those of dense ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import Partial
from npmdask.operators.clipped_rows import LIMBS, Records
from npmdask.operators.clipping import FAR_VALUES, Clipping, factors, shortened
from npmdask.operators.exact_sums import (
    IMAGE_SPLIT,
    SPLIT_ROWS,
    add_exactly,
    round_to,
)
from npmdask.operators.sparse import cut_rows
from npmdask.storage.readers.dense import SlabRecord
from npmdask.storage.readers.sparse import CsrReader, Fragment


@dataclass(frozen=True, kw_only=True)
class ClippedSparseGram(Records):
    """``sum of a a^T X`` over the rows a of a CSR matrix, each clipped to ``clip_norm``.

    Entries of one row in the same column are added first: they are one entry of the record.
    """

    reader: CsrReader

    def partial(self, slabs: range, block: Block) -> Partial:
        record, fragments = SlabRecord(), list[Fragment]()
        total = np.zeros((2, *block.shape))
        for piece in self.reader.blocks(slabs, record):
            if isinstance(piece, Fragment):
                fragments.append(piece)
            else:
                self._add(total, piece, block)
        return Partial(self._carried(total), record, fragments)

    def finish(self, total: Partial, block: Block) -> np.ndarray:
        held = np.stack([total.sums[limb] for limb in LIMBS])
        with np.errstate(over="ignore", invalid="ignore"):
            self._add(held, cut_rows(self.reader, total.fragments), block)
        return super().finish(Partial(self._carried(held), total.record), block)

    def _add(self, total: np.ndarray, rows: csr_matrix, block: Block) -> None:
        """Add the products of whole rows, some at a time and without the empty ones."""
        lengths = np.diff(rows.indptr)
        pointers = np.concatenate([[0], np.cumsum(lengths[lengths > 0])])
        for start in range(0, len(pointers) - 1, SPLIT_ROWS):
            some = pointers[start : start + SPLIT_ROWS + 1]
            inside = slice(some[0], some[-1])
            shape = (len(some) - 1, rows.shape[1])
            values = rows.data[inside].astype(np.float64)
            part = csr_matrix((values, rows.indices[inside].copy(), some - some[0]), shape=shape)
            part.sum_duplicates()
            clip_rows(part, self.clipping)
            self._add_part(total, part, block)

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
        rows = SPLIT_ROWS * p * 8 * 6
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
