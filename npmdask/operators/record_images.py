"""Images P A_i P w of the records of one batch, and what a mechanism of the stochastic room sums of them: one pass.

A pass reads only the rows of chunks that the batch lies in, whole (their checksums are over whole chunks), and forms
images of the rows of the batch. They are formed in strips that stay in cache, cut by the stored layout and the batch
alone: the same bits with any number of threads or processes, and after a resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, Protocol

import numpy as np

from npmdask.errors import BadInputError
from npmdask.linalg import Block
from npmdask.operators._protocol import Partial, least_run
from npmdask.operators.batch import OfRows
from npmdask.operators.clipped import gather
from npmdask.stochastic.images import images_of_matrices, images_of_rows
from npmdask.storage.dense import DenseReader, SlabRecord, scratch

IMAGE_STRIP_BYTES = 2**20  # of records in float64: measured best of 128 KiB to 4 MiB (d = 200 to 10,000)
STRIP_ARRAYS = 8  # of images, at once, in the work of a mechanism on a strip: measured 6


class Summing(Protocol):
    """What this room needs of a mechanism: what it sums of images (b x d), and whether sums of parts add up."""

    additive: ClassVar[bool]

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray: ...


def pack(vector: np.ndarray, centre: np.ndarray, found: Block) -> Block:
    """The block (d x (2 + j)) of a query: w, centre, U (d x j)."""
    return np.column_stack([vector, centre, found])


def unpack(block: Block) -> tuple[np.ndarray, np.ndarray, Block]:
    """The inverse of :func:`pack`; contiguous, since the last bits of products depend on strides."""
    vector, centre = np.ascontiguousarray(block[:, :2].T)
    return vector, centre, np.ascontiguousarray(block[:, 2:])


@dataclass(frozen=True, kw_only=True)
class RecordImages(OfRows):
    """``mechanism.summary`` of the images of a batch. Nothing here fails, or warns, because of a value.

    Parameters
    ----------
    reader : records x: A = x x^T; or, with ``side``, matrices A, flattened.
    side : d, where a row is a d x d matrix.
    rows : the batch, by index.
    mechanism : what is summed. None while that is not known: what it takes is then planned as for a sum of d numbers.

    Notes
    -----
    Summaries of an additive mechanism are added, in float64 or, where they are integers, exactly. Of another one, a
    part is its images (b x d), so that the whole batch is held: 8 d bytes for a record, three times.
    """

    reader: DenseReader
    rows: range
    mechanism: Summing | None = None
    side: int | None = None

    def __post_init__(self) -> None:
        self.require_batch()
        width = self.reader.shape[1]
        if self.side is not None and self.side**2 != width:
            raise BadInputError(
                f"rows of {self.reader.where} have {width} numbers: they are no {self.side} x {self.side} matrices"
            )

    @property
    def block_rows(self) -> int:
        return int(self.reader.shape[1]) if self.side is None else self.side

    @property
    def run_bytes(self) -> int:
        """The least that a run reads; what it returns is small, or as large as what it read."""
        return least_run(0)

    def prepare(self, block: Block) -> Block:
        """The block itself: images have no need of a grid, as mechanisms round them."""
        return block

    def partial(self, slabs: range, block: Block) -> Partial:
        """The summary of the rows of the batch in some units; or their images, of a mechanism that is not additive."""
        mechanism, record = self._known(), SlabRecord()
        vector, centre, found = unpack(block)
        images = self._images(slabs, vector, found, record)
        if mechanism.additive:
            product = reduce(np.add, (mechanism.summary(some, centre) for some in images))
        else:
            product = np.concatenate(list(images))
        return Partial([product], record)

    def join(self, left: Partial, right: Partial) -> Partial:
        products = left.products + right.products
        if self._known().additive:
            products = [left.products[0] + right.products[0]]
        return Partial(products, left.record.add(right.record))

    def finish(self, total: Partial, block: Block) -> np.ndarray:
        """The summary of the batch, as the mechanism wants it: integers for most."""
        mechanism, (product, *others) = self._known(), total.products
        if mechanism.additive:
            return product
        return mechanism.summary(np.concatenate(total.products) if others else product, unpack(block)[1])

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block."""
        width, height = self.reader.shape[1], self._height
        strip = height * 8 * (width + STRIP_ARRAYS * self.block_rows)
        kept = 0 if self._additive else 2 * max(len(self.stored_rows(run)) for run in runs)  # strips, then side by side
        return self.reader.buffer_bytes + strip + (kept + p + 4) * self.block_rows * 8

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of what waits to be joined: two summaries for each level of the tree, or the images three times."""
        d = self.block_rows
        if not self._additive:
            return 3 * len(self.rows) * d * 8
        none = np.zeros((0, d))
        each = 8 * d if self.mechanism is None else self.mechanism.summary(none, np.zeros(d)).nbytes
        return 2 * len(runs).bit_length() * each

    @property
    def _additive(self) -> bool:
        return self.mechanism is None or self.mechanism.additive

    def _known(self) -> Summing:
        if self.mechanism is None:
            raise BadInputError("nothing is summed of the images: give the mechanism of the query")
        return self.mechanism

    @property
    def _height(self) -> int:
        """Records of a strip: at least one, however wide."""
        return max(1, IMAGE_STRIP_BYTES // (8 * self.reader.shape[1]))

    def _images(self, units: range, vector: np.ndarray, found: Block, record: SlabRecord) -> Iterator[np.ndarray]:
        """Images (b x d) of strip after strip."""
        side = self.side
        for records in self._records(units, record):
            if side is None:
                yield images_of_rows(records, vector, found)
            else:
                yield images_of_matrices(records.reshape(-1, side, side), vector, found)

    def _records(self, units: range, record: SlabRecord) -> Iterator[np.ndarray]:
        """Strips of the records of the batch in float64; the memory of one is reused by the next."""
        held = scratch("records", (self._height, self.reader.shape[1]), np.float64)
        for slab in self.reader.ahead(self.slabs_of(units)):
            for rows, tile in self.reader.tiles(slab, record):
                first, last = max(rows.start, self.rows.start), min(rows.stop, self.rows.stop)
                for start in range(first, last, self._height):
                    part = slice(start - rows.start, min(start + self._height, last) - rows.start)
                    yield gather(tile, part, held[: part.stop - part.start])
