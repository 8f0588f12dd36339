"""Images P A_i P w of the records of one batch, and what a mechanism of stochastic PCA sums of them: one pass.

A pass reads only the rows of chunks that the batch lies in, whole (their checksums are over whole chunks), and forms
images of the rows of the batch. They are formed in strips that stay in cache, cut by the stored layout and the batch
alone: the same bits with any number of threads or processes, and after a resume.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Protocol

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import BlockQuery, BySamples, Partial, Sums, least_run, own_rows, pending_sums
from npmdask.core.operators.view import AS_STORED, View
from npmdask.core.storage.readers.dense import DenseReader, ReadStats, scratch
from npmdask.errors import BadInputError, require
from npmdask.privacy.clipped_rows import gather_rows, sum_in_one_order
from npmdask.privacy.exact_sums import round_to

IMAGE_STRIP_BYTES = 2**20  # of records in float64: measured best of 128 KiB to 4 MiB (d = 200 to 10,000)
STRIP_ARRAYS = 8  # of images, at once, in the work of a mechanism on a strip: measured 6
SLACK = 1.25  # of the norms of public vectors, squared: U is orthonormal to ORTHONORMAL, and rounded
ORTHONORMAL = 0.1
LEAST, LARGEST = 2.0**-500, 2.0**500  # of the largest entry of a record that is there: no square vanishes or overflows


class Summing(Protocol):
    """Part of a mechanism that a pass needs: what it sums of images (b x d), and whether sums of parts add up."""

    additive: ClassVar[bool]

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray: ...


class ImagesOf:
    """``P A_i P w`` of records, each a function of that record and the public w and U alone, bit for bit.

    A product of BLAS has other last bits at the end of a strip than in its middle, or with other strips and threads:
    one record more would move all that follow, and with them bins and clipped sums. Here no product rounds. Every
    record is rounded to a grid of its own, ``bits`` below its largest entry, w and U to public ones, so that no partial
    sum of their products needs more than 53 bits, in whatever order it is formed (docs/decisions/0021). What rounds is
    done entry by entry.

    Parameters
    ----------
    vector : w (d). found : U (d x j), orthonormal.

    Raises
    ------
    BadInputError
        U is not orthonormal.
    """

    def __init__(self, vector: np.ndarray, found: Block) -> None:
        d, j = found.shape
        exact = 53 - math.ceil(math.log2(SLACK * math.sqrt(d)))  # bits of a record and of what it is multiplied with
        self.bits, finer = exact // 2, exact - exact // 2
        self.found = round_to(np.array(found, np.float64, order="C"), 2.0**-finer)
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.linalg.norm(self.found.T @ self.found - np.eye(j)) <= ORTHONORMAL:
                raise BadInputError("the directions found must be orthonormal")
            projected = self._project(*self._round_to_grid(np.array(vector, np.float64)[None]))
        length = float(np.sqrt(sum_in_one_order(projected**2))[0])
        self.vector = round_to(projected[0], math.ldexp(1.0, math.frexp(length)[1] - finer))

    def rows(self, rows: np.ndarray) -> np.ndarray:
        """``P x (x^T P w)`` for records A_i = x x^T given by ``rows`` (b x d): b x d."""
        rows = np.asarray(rows, np.float64)
        _require(rows.ndim == 2 and rows.shape[1] == len(self.vector), "rows (b x d)", rows, self.vector)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded, shift = self._round_to_grid(rows)
            products = rounded @ self.vector
            images = self._project(rounded, shift)
            images *= products[:, None]
        return images

    def matrices(self, matrices: np.ndarray) -> np.ndarray:
        """``P A_i P w`` for ``matrices`` (b x d x d): b x d."""
        matrices, d = np.asarray(matrices, np.float64), len(self.vector)
        _require(matrices.ndim == 3 and matrices.shape[1:] == (d, d), "matrices (b x d x d)", matrices, self.vector)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded, _ = self._round_to_grid(matrices.reshape(len(matrices), d * d))
            return self._project(*self._round_to_grid((rounded.reshape(-1, d) @ self.vector).reshape(-1, d)))

    def _round_to_grid(self, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Records (rows) on their grids, and what is added to a number and taken off again to round it to them.

        Zeros for records that are not finite, or beyond 2^500 or below 2^-500 in their largest entry.
        """
        largest = np.maximum(records.max(axis=1, initial=0.0), -records.min(axis=1, initial=0.0))
        fits = (largest > LEAST) & (largest < LARGEST)
        shift = np.ldexp(1.5, np.frexp(np.where(fits, largest, 1.0))[1] + (52 - self.bits))[:, None]
        rounded = records + shift
        rounded -= shift
        if not fits.all():
            rounded[~fits] = 0.0
        return rounded, shift

    def _project(self, rounded: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """``P x`` of records on their grids, in place; the parts along U are rounded to the grid of the record."""
        if not self.found.shape[1]:
            return rounded
        parts = rounded @ self.found
        parts += shift
        parts -= shift
        rounded -= parts * self.found[:, 0] if self.found.shape[1] == 1 else parts @ self.found.T
        return rounded


def images_of_rows(rows: np.ndarray, vector: np.ndarray, found: Block) -> np.ndarray:
    """``P x (x^T P w)`` for records A_i = x x^T given by ``rows`` (b x d); d x j ``found``, orthonormal (b x d)."""
    return ImagesOf(vector, found).rows(rows)


def images_of_matrices(matrices: np.ndarray, vector: np.ndarray, found: Block) -> np.ndarray:
    """``P A_i P w`` for ``matrices`` (b x d x d): b x d."""
    return ImagesOf(vector, found).matrices(matrices)


def _require(fits: bool, wanted: str, records: np.ndarray, vector: np.ndarray) -> None:
    require(fits, f"records of shape {records.shape} do not fit a vector of {len(vector)}: give {wanted}")


def pack_query(vector: np.ndarray, centre: np.ndarray, found: Block) -> Block:
    """The block (d x (2 + j)) of a query: w, centre, U (d x j)."""
    return np.column_stack([vector, centre, found])


def unpack_query(block: Block) -> tuple[np.ndarray, np.ndarray, Block]:
    """The inverse of :func:`pack_query`; contiguous, since the last bits of products depend on strides."""
    vector, centre = np.ascontiguousarray(block[:, :2].T)
    return vector, centre, np.ascontiguousarray(block[:, 2:])


@dataclass(frozen=True, kw_only=True)
class RecordImages(BySamples):
    """``mechanism.summary`` of the images of a batch. Nothing here fails, or warns, because of a value.

    Parameters
    ----------
    reader : records x: A = x x^T; or, with ``side``, matrices A, flattened.
    side : d, where a row is a d x d matrix.
    rows : the batch, by index.
    mechanism : what is summed. None while that is not known: what it takes is then planned as for a sum of d numbers.
    view : public weights of the columns of records, whose entries are multiplied by their roots first.

    Notes
    -----
    Summaries of an additive mechanism are added, in float64 or, where they are integers, exactly. Of another one, a
    part is its images (b x d), so that the whole batch is held: 8 d bytes for a record, three times.
    """

    reader: DenseReader
    rows: range
    mechanism: Summing | None = None
    side: int | None = None
    view: View = AS_STORED

    def __post_init__(self) -> None:
        self.require_batch()
        if not self.view.of_stored_rows or self.view.scale is not None:
            raise BadInputError("images are of records as they are, but for weights of their columns")
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

    def asked(self, query: BlockQuery) -> RecordImages:
        """The images of the records that a query names; as many as there are is for the pass alone, and private."""
        if query.batch is None:
            return super().asked(query)
        return replace(self, rows=query.batch.indices(self.reader.shape[0]), mechanism=query.batch.mechanism)

    def partial(self, slabs: range, block: Block) -> Partial:
        """The summary of the rows of the batch in some units; or their images, of a mechanism that is not additive."""
        mechanism, record = self._require_mechanism(), ReadStats()
        vector, centre, found = unpack_query(block)
        images = self._images(slabs, vector, found, record)
        if mechanism.additive:
            return Partial({"product": reduce(np.add, (mechanism.summary(some, centre) for some in images))}, record)
        return Partial({own_rows(slabs): np.concatenate(list(images))}, record)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return {"product" if self._additive else own_rows(units): stacked}

    def finish(self, total: Partial, block: Block) -> np.ndarray:
        """The summary of the batch, as the mechanism wants it: integers for most."""
        mechanism, parts = self._require_mechanism(), list(total.sums.values())
        if mechanism.additive:
            return parts[0]
        return mechanism.summary(parts[0] if len(parts) == 1 else np.concatenate(parts), unpack_query(block)[1])

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block."""
        width, height = self.reader.shape[1], self._height
        strip = height * 8 * (width * (1 if self.side is None else 2) + STRIP_ARRAYS * self.block_rows)
        kept = 0 if self._additive else 2 * max(len(self.stored_rows(run)) for run in runs)  # strips, then side by side
        return self.reader.buffer_bytes + strip + (kept + 2 * p + 8) * self.block_rows * 8

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of what waits to be joined: two summaries for each level of the tree, or the images three times."""
        d = self.block_rows
        if not self._additive:
            return 3 * len(self.rows) * d * 8
        none = np.zeros((0, d))
        each = 8 * d if self.mechanism is None else self.mechanism.summary(none, np.zeros(d)).nbytes
        return pending_sums(1, each // 8, runs)

    @property
    def _additive(self) -> bool:
        return self.mechanism is None or self.mechanism.additive

    def _require_mechanism(self) -> Summing:
        if self.mechanism is None:
            raise BadInputError("nothing is summed of the images: give the mechanism of the query")
        return self.mechanism

    @property
    def _height(self) -> int:
        """Records of a strip: at least one, however wide."""
        return max(1, IMAGE_STRIP_BYTES // (8 * self.reader.shape[1]))

    def _images(self, units: range, vector: np.ndarray, found: Block, record: ReadStats) -> Iterator[np.ndarray]:
        """Images (b x d) of strip after strip."""
        side, images = self.side, ImagesOf(vector, found)
        for records in self._records(units, record):
            yield images.rows(records) if side is None else images.matrices(records.reshape(-1, side, side))

    def _records(self, units: range, record: ReadStats) -> Iterator[np.ndarray]:
        """Strips of the records of the batch in float64; the memory of one is reused by the next."""
        held = scratch("records", (self._height, self.reader.shape[1]), np.float64)
        for slab in self.reader.ahead(self.slabs_of(units)):
            for rows, tile in self.reader.tiles(slab, record):
                first, last = max(rows.start, self.rows.start), min(rows.stop, self.rows.stop)
                for start in range(first, last, self._height):
                    part = slice(start - rows.start, min(start + self._height, last) - rows.start)
                    records = gather_rows(tile, part, held[: part.stop - part.start])
                    if self.view.column_weight is not None:
                        records *= self.view.column_roots
                    yield records
