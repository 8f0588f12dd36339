"""Writing symmetric matrices and tensors by their unique chunks only, once they are found to be symmetric.

The rows of a matrix arrive whole. Of each slab the part at and right of the diagonal is stored; the part left of it
must be the mirror image of chunks that are stored already, and is compared with them. For the layout of the array see
:mod:`npmdask.symmetric.reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations_with_replacement, permutations
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.core.storage.checksum import DIGEST_BYTES, crc32c, digest_of, fingerprint
from npmdask.core.storage.chunk_access import PLAIN
from npmdask.core.storage.kinds import require_cube
from npmdask.core.storage.source import Asked, Source, content_of
from npmdask.errors import BadInputError, require
from npmdask.symmetric.reader import (
    PackedArray,
    Place,
    TensorReader,
    TriangleReader,
    choose_side,
    chunk_unit,
    exact_sum,
    place_of,
    places,
    squares_of,
    tetrahedral_number,
    triangle_number,
)
from npmdask.writers.dense import SlabWriter, choose_chunks
from npmdask.writers.journal import JournalledWriter
from npmdask.writers.layouts import choose_layout, not_square, size_of_matrix, storage_dtype


def packed_bytes(columns: int, dtype: np.dtype, chunks: tuple[int, int] | None = None) -> int:
    """Bytes of the packed array before compression, with what fills up the chunks at the edge."""
    side = _chunk_side(columns, dtype, chunks)
    return triangle_number(-(-columns // side)) * side**2 * dtype.itemsize


def _chunk_side(columns: int, dtype: np.dtype, chunks: tuple[int, int] | None) -> int:
    """The side of a chunk; where it is chosen, the last one of a row is hardly shorter: it is stored filled up."""
    if chunks is not None:
        return min(chunks[0], columns)
    side = choose_chunks(columns, dtype.itemsize, "symmetric")[0]
    even = -(-columns // -(-columns // side))
    return min(-(-even // 64) * 64, columns)


class PackedWriter(SlabWriter):
    """Writes a symmetric matrix in packed layout.

    Parameters
    ----------
    dest : folder to create.
    columns, dtype : of the matrix, which has as many rows.
    identity : facts of the source that must be the same for a killed write to be continued.
    rows : number of rows if known.
    chunks : rows and columns of a chunk, two equal numbers; chosen if None.
    compress : LZ4 with bitshuffle; for integers unless told.
    mirrored : what is left of the diagonal is its mirror image by construction and not looked at.
    """

    def __init__(
        self,
        dest: Path | str,
        *,
        columns: int,
        dtype: np.dtype,
        identity: dict[str, Any],
        rows: int | None = None,
        chunks: tuple[int, int] | None = None,
        compress: bool | None = None,
        mirrored: bool = False,
        overwrite: bool = False,
    ) -> None:
        choose_layout("symmetric", "packed", chunks)
        self.dtype, self.columns, self._expected = storage_dtype(dtype), columns, rows
        self.compress = self.dtype.kind in "iu" if compress is None else compress
        side = _chunk_side(columns, self.dtype, chunks)
        self.chunks, self._n, self._mirrored = (side, side), -(-columns // side), mirrored
        facts = {"columns": columns, "dtype": self.dtype.str, "chunks": self.chunks, "rows": rows, "layout": "packed"}
        super().__init__(dest, "symmetric", {**facts, "compress": self.compress, **identity}, overwrite)
        self._checksums = np.zeros((self._n, self._n), np.uint32)
        self._digests = np.zeros((self._n, self._n, DIGEST_BYTES), np.uint8)
        self._trace = self._squares = 0.0
        self._excess = 0  # rows that a square has no room for: counted for the sentence
        found = self._begin(lambda: self._create_packed(triangle_number(self._n), self.chunks))
        self._gather(0 if found is None else found[1]["rows"])
        if found is not None:
            arrays, meta = found
            self._checksums, self._digests = arrays["checksums"], arrays["digests"]
            self._trace, self._squares = meta["trace"], meta["squares"]

    @property
    def next_row(self) -> int:
        """The first row that is not written yet; a continued write must go on exactly here."""
        return super().next_row + self._excess

    def write(self, rows: np.ndarray) -> None:
        """Append rows (b x columns).

        Raises
        ------
        BadInputError
            A NaN or infinity, or an entry that is not its mirror image; row and column are named.
        """
        room = self.columns - self._rows - self._filled
        super().write(rows[:room])
        self._excess += len(rows[room:])
        if self._filled and self._rows + self._filled == self.columns:
            self._flush()

    def _flush(self) -> None:
        i, slab = self._rows // self.chunks[0], self._buffer[: self._filled]
        if not self._mirrored:
            self._require_mirrored(i, slab)
        with self._reporting_errors():
            for j, values in self._upper(i, slab):
                unit, padded = chunk_unit(i, j, self._n), np.zeros((1, *self.chunks), self.dtype)
                padded[0, : values.shape[0], : values.shape[1]] = values
                self._array[unit : unit + 1] = padded
                self._sync_chunk(self._array, (unit, 0, 0))
                self._checksums[i, j], self._digests[i, j] = crc32c(values), digest_of(values)
                self._add_size(values, i == j)
                self._since_log += values.nbytes
        self._rows, self._filled = self._rows + self._filled, 0
        if self._is_entry_due(self._since_log):
            self._checkpoint()

    def _upper(self, i: int, slab: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The chunks of slab ``i`` on and right of the diagonal, by their column."""
        side = self.chunks[0]
        for j in range(i, self._n):
            values = slab[:, j * side : (j + 1) * side]
            yield j, np.triu(values) + np.triu(values, 1).T if self._mirrored and i == j else values

    def _require_mirrored(self, i: int, slab: np.ndarray) -> None:
        side = self.chunks[0]
        stored = TriangleReader(array=PackedArray(self._array, self.columns), checksums=self._checksums)
        for j in range(i + 1):
            mirror = slab[:, j * side : (j + 1) * side].T
            require_mirrored(mirror.T if i == j else stored.chunk(j, i), mirror, j * side, i * side)

    def _add_size(self, values: np.ndarray, diagonal: bool) -> None:
        """Trace and squared Frobenius norm, a chunk at a time and in float64; off the diagonal a chunk counts twice."""
        with np.errstate(over="ignore"):
            squares = float(np.square(values, dtype=np.float64).sum())
        self._squares += squares if diagonal else 2 * squares
        self._trace += float(np.trace(values, dtype=np.float64)) if diagonal else 0.0

    def _checkpoint(self) -> None:
        meta = {"rows": self._rows, "trace": self._trace, "squares": self._squares}
        self._log(self._rows, {"checksums": self._checksums, "digests": self._digests}, meta)
        self._since_log = 0

    def finish(self, extra: dict[str, Any] | None = None, arrays: dict[str, np.ndarray] | None = None) -> str:
        """Write the record and make ``DEST`` appear. Returns the fingerprint.

        ``extra`` goes into the record (attributes), ``arrays`` (names may contain ``/``) beside the data.
        """
        require(self.next_row != 0, f"no rows in the source of {self.dest}")
        self._require_all(self.next_row, self._expected or 0, "rows")
        if self.next_row != self.columns:
            raise not_square(self.next_row, self.columns)
        d, upper = self.columns, np.triu_indices(self._n)
        tables: dict[str, np.ndarray] = {"checksums": self._checksums[upper], "digests": self._digests[upper]}
        facts = {"shape": [d, d], "dtype": self.dtype.str, "chunks": list(self.chunks), "layout": "packed"}
        extra = {**(extra or {}), **size_of_matrix(self._trace, self._squares)}
        return self._finish(facts, "packed", [tables["digests"]], {**tables, **(arrays or {})}, extra)


# A symmetric tensor of order three, unique block after unique block.


class TensorWriter(JournalledWriter):
    """Writes the blocks (i <= j <= k) of a ``size`` x ``size`` x ``size`` tensor in packed layout.

    Parameters
    ----------
    dest : folder to create.
    size, dtype : of the tensor.
    identity : facts of the source that must be the same for a killed write to be continued.
    side : of a block, at most ``size``; chosen if None.
    compress : LZ4 with bitshuffle; for integers unless told.
    """

    def __init__(
        self,
        dest: Path | str,
        *,
        size: int,
        dtype: np.dtype,
        identity: dict[str, Any],
        side: int | None = None,
        compress: bool | None = None,
        overwrite: bool = False,
    ) -> None:
        self.dtype, self.size = storage_dtype(dtype), size
        self.compress = self.dtype.kind in "iu" if compress is None else compress
        self.side = min(side or choose_side(size, self.dtype.itemsize), size)
        self.grid = -(-size // self.side)
        self.units = tetrahedral_number(self.grid)
        facts = {"size": size, "dtype": self.dtype.str, "side": self.side, "compress": self.compress}
        super().__init__(dest, "tensor", {**facts, **identity}, overwrite)
        self._checksums, self._squares = np.zeros(self.units, np.uint32), np.zeros(self.units)
        self._digests = np.zeros((self.units, DIGEST_BYTES), np.uint8)
        found = self._begin(lambda: self._create_packed(self.units, (self.side,) * 3))
        self._since_log, self.next_unit = 0, 0 if found is None else found[1]["units"]
        if found is not None:
            held = found[0]
            self._checksums, self._squares = held["checksums"].copy(), held["squares"].copy()
            self._digests = held["digests"].copy()

    def write(self, values: np.ndarray) -> None:
        """Write the block of ``next_unit``, (b_i, b_j, b_k) finite numbers; a continued write goes on exactly here."""
        place, whole = place_of(self.next_unit, self.grid), np.zeros((1, self.side, self.side, self.side), self.dtype)
        b = values.shape
        whole[0, : b[0], : b[1], : b[2]] = values
        with self._reporting_errors():
            self._array[self.next_unit : self.next_unit + 1] = whole
            self._sync_chunk(self._array, (self.next_unit, 0, 0, 0))
        self._checksums[self.next_unit], self._digests[self.next_unit] = crc32c(whole), digest_of(whole)
        self._squares[self.next_unit] = squares_of(whole, place)
        self.next_unit += 1
        self._since_log += whole.nbytes
        if self._is_entry_due(self._since_log):
            self._checkpoint()

    def commit(self) -> None:
        """Make what is written durable now: a write that is killed later goes on here."""
        self._checkpoint()

    @property
    def checksums(self) -> np.ndarray:
        """Return the checksums of the blocks (T), 0 of those not written yet; equal blocks have equal ones."""
        return self._checksums.copy()

    def _tables(self) -> dict[str, np.ndarray]:
        return {"checksums": self._checksums, "digests": self._digests}

    def _checkpoint(self) -> None:
        arrays = self._tables() | {"squares": self._squares}
        self._log(self.next_unit, arrays, {"units": self.next_unit})
        self._since_log = 0

    def finish(self, extra: dict[str, Any] | None = None, arrays: dict[str, np.ndarray] | None = None) -> str:
        """Write the record and make ``DEST`` appear. Returns the fingerprint.

        ``extra`` goes into the record (attributes), ``arrays`` (names may contain ``/``) beside the data.
        """
        self._require_all(self.next_unit, self.units, "blocks")
        d, side = self.size, self.side
        facts = {"shape": [d, d, d], "dtype": self.dtype.str, "chunks": [side, side, side], "layout": "packed"}
        extra = {**(extra or {}), "squared_frobenius": exact_sum(self._squares)}
        beside = {**self._tables(), "blocks": places(self.grid), **(arrays or {})}
        return self._finish(facts, "packed", [self._digests], beside, extra)


# Whether a tensor is its own mirror image in all six orders of its indices: one tolerance and one sentence.
#
# The tensor comes in boxes. A unique block needs the boxes at all orders of its place, and a box at only one unique
# block: going through the blocks asks for every entry of the whole tensor once.

Box = Callable[[Place], np.ndarray]  # entries at a place of the grid of blocks, shorter at the edge
Order = tuple[int, ...]
ORDERS: tuple[Order, ...] = tuple(permutations(range(3)))
ROUNDING = 64  # in machine_eps of the largest entry: what sums of products that were formed in other orders differ by


def comparing(box: Box, side: int, grid: int) -> Callable[[Place], np.ndarray]:
    """:func:`mirrored_block` of a place, the largest entry being looked for once, and only where it is needed."""

    @cache
    def largest() -> float:
        places = combinations_with_replacement(range(grid), 3)
        return max(float(np.abs(box(place)).max()) for place in places)

    return lambda place: mirrored_block(box, place, side, largest)


def mirrored_block(box: Box, place: Place, side: int, largest: Callable[[], float]) -> np.ndarray:
    """The block at ``place`` (i <= j <= k) after every entry is compared with all its mirror images.

    Entries that differ by rounding only are forgiven: the one whose indices do not fall is kept, so that what comes
    out is symmetric bit for bit.

    Raises
    ------
    BadInputError
        A NaN or infinity, or an entry that differs from a mirror image by more than 64 machine_eps of the largest
        one of the tensor (integers: at all); it is named. Rounding is in proportion to the terms of a sum, not to
        the sum, which may be as small as it likes: an entry is no measure for its own error.
    """
    images = _images(box, place, side)
    _, block = next(images)
    for order, image in images:
        if not np.array_equal(block, image):
            _require_close(block, image, order, tuple(i * side for i in place), largest)
    return in_order(block, place)


def mean_block(box: Box, place: Place, side: int) -> np.ndarray:
    """The block at ``place`` of the mean over the six orders of the indices, in float64.

    Raises
    ------
    BadInputError
        A NaN or infinity, in the tensor or in the sum of six entries; the place is named.
    """
    images = _images(box, place, side)
    with np.errstate(over="ignore"):
        total = np.array(next(images)[1], dtype=np.float64)
        for _, image in images:
            total += image
    if not np.isfinite(total).all():
        raise BadInputError(
            f"the mean over the orders of the indices overflows in block {place}: divide the tensor by a constant"
        )
    return in_order(total / len(ORDERS), place)


def in_order(block: np.ndarray, place: Place) -> np.ndarray:
    """The block with every entry that has mirror images inside it replaced by the one whose indices do not fall.

    Where two indices of the place are equal their entries are exchanged into order; three of them by exchanging the
    first two, the last two and the first two again.
    """
    if place[0] == place[1]:
        block = _swap_lower(block, 0)
    if place[1] == place[2]:
        block = _swap_lower(block, 1)
    if place[0] == place[2]:
        block = _swap_lower(block, 0)
    return block


def _swap_lower(block: np.ndarray, axis: int) -> np.ndarray:
    """Entries whose index on ``axis`` is larger than on the next axis, replaced by those with the two exchanged."""
    upper = np.triu(np.ones(block.shape[axis : axis + 2], bool))
    return np.where(upper[..., None] if axis == 0 else upper, block, np.swapaxes(block, axis, axis + 1))


def _images(box: Box, place: Place, side: int) -> Iterator[tuple[Order, np.ndarray]]:
    """Every order of the indices with the entries there, turned so that they lie as in the block itself."""
    held: tuple[Place, np.ndarray] | None = None
    for order in sorted(ORDERS, key=lambda order: _permute(place, order)):  # the block's own place is the least of them
        at = _permute(place, order)
        if held is None or held[0] != at:
            held = at, _finite(box(at), at, side)
        yield order, held[1].transpose(np.argsort(order))


def _permute(place: Place, order: Order) -> Place:
    i, j, k = (place[axis] for axis in order)
    return i, j, k


def _finite(values: np.ndarray, at: Place, side: int) -> np.ndarray:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        inside = tuple(int(n) for n in np.argwhere(~np.isfinite(values))[0])
        entry = tuple(i * side + n for i, n in zip(at, inside, strict=True))
        raise BadInputError(
            f"{values[inside]} at entry {entry}: remove or impute the non-finite values of the source first"
        )
    return values


def _require_close(
    block: np.ndarray, image: np.ndarray, order: Order, first: tuple[int, ...], largest: Callable[[], float]
) -> None:
    wrong = block != image
    if block.dtype.kind == "f":
        with np.errstate(over="ignore"):
            machine_eps = max(np.finfo(block.dtype).eps, np.finfo(np.float64).eps)  # longdouble is stored as float64
            apart, rounding = np.abs(block - image), ROUNDING * float(machine_eps)
        wrong = apart > rounding * float(np.abs(block).max())  # which is no more than the largest of all
        if wrong.any():
            wrong = apart > rounding * largest()
    if wrong.any():
        inside = tuple(int(n) for n in np.argwhere(wrong)[0])
        entry = tuple(start + n for start, n in zip(first, inside, strict=True))
        raise BadInputError(
            f"not symmetric: entry {entry} is {block[inside]!s} and entry {tuple(entry[a] for a in order)} is "
            f"{image[inside]!s}; take the mean over the six orders of the indices, which `npmdask ingest "
            "--symmetrise` (symmetrise=True) stores"
        )


# A symmetric tensor that is in memory as a whole, packed there as a store on disk would be.


def packed_in_memory(array: np.ndarray) -> tuple[TensorReader, float | None]:
    """The reader of ``array`` (d x d x d), and its squared Frobenius norm (None if float64 cannot hold it).

    Raises
    ------
    BadInputError
        Not a cube, no real numbers, not finite or not symmetric; the entry is named.
    """
    size, dtype = require_cube(array.shape, "the array"), storage_dtype(array.dtype)
    side = choose_side(size, dtype.itemsize)
    grid = -(-size // side)
    units, cube = tetrahedral_number(grid), (side, side, side)
    chunks: dict[str, Any] = {}
    store = zarr.storage.MemoryStore(chunks)
    held = zarr.create_array(store, shape=(units, *cube), chunks=(1, *cube), dtype=dtype, **PLAIN)

    def box(place: Place) -> np.ndarray:
        i, j, k = (slice(n * side, (n + 1) * side) for n in place)
        return array[i, j, k]

    squares, compared = np.zeros(units), comparing(box, side, grid)
    for unit in range(units):
        place = place_of(unit, grid)
        block = compared(place).astype(dtype)
        held[unit, : block.shape[0], : block.shape[1], : block.shape[2]] = block
        squares[unit] = squares_of(block, place)
    return TensorReader(array=held, size=size, held=chunks), exact_sum(squares)


def open_cube(array: np.ndarray, asked: Asked) -> Source:
    """Open a tensor that lies in memory, which is checked to be symmetric."""
    reader, squared = packed_in_memory(array)
    path = content_of(array)
    print_ = fingerprint({"shape": reader.shape, "dtype": reader.dtype.str, "where": path}, [])
    held = {"kind": "tensor", "reader": reader, "squared_frobenius": squared, "mirrored": True}
    return Source(path=path, fingerprint=print_, registered=False, **held)  # type: ignore[arg-type]


def require_symmetric(array: Any) -> None:
    """Compare block (i, j) with block (j, i) transposed, a pair at a time (A = A^T up to rounding).

    Raises
    ------
    BadInputError
        Not square, or an entry differs from its mirror image by more than 4 machine_eps of the larger one.
    """
    n, side = array.shape[0], array.chunks[0]
    if array.shape != (n, n):
        raise not_square(array.shape[0], array.shape[1])
    for top in range(0, n, side):
        for left in range(top, n, side):
            rows, columns = slice(top, min(n, top + side)), slice(left, min(n, left + side))
            block = np.asarray(array[rows, columns])
            mirror = block.T if top == left else np.asarray(array[columns, rows]).T
            require_mirrored(block, mirror, top, left)


def require_mirrored(block: np.ndarray, mirror: np.ndarray, top: int, left: int) -> None:
    """``block``, whose first entry is (top, left), against the transpose ``mirror`` of the block opposite.

    Raises
    ------
    BadInputError
        An entry differs by more than 4 machine_eps of the larger one (integers: at all); it is named.
    """
    wrong = block != mirror
    if block.dtype.kind == "f" and wrong.any():
        tolerance = 4 * np.finfo(block.dtype).eps
        with np.errstate(over="ignore"):
            wrong = np.abs(block - mirror) > tolerance * np.maximum(np.abs(block), np.abs(mirror))
    if wrong.any():
        i, j = (int(n) for n in np.argwhere(wrong)[0])
        raise BadInputError(
            f"not symmetric: entry ({top + i}, {left + j}) is {block[i, j]!s} and entry ({left + j}, "
            f"{top + i}) is {mirror[i, j]!s}; pass kind='matrix', or symmetrise with (A + A.T)/2"
        )
