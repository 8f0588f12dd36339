"""Symmetric tensors: whether one is its own mirror image in all six orders of its indices, and packed in memory.

Whether a tensor is its own mirror image in all six orders of its indices: one tolerance and one sentence.

The tensor comes in boxes. A unique block needs the boxes at all orders of its place, and a box at only one unique
block: going through the blocks asks for every entry of the whole tensor once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations_with_replacement, permutations
from typing import Any

import numpy as np
import zarr

from npmdask.errors import BadInputError
from npmdask.storage.kinds import require_cube, storage_dtype
from npmdask.storage.readers.packed_tensor import (
    Place,
    TensorReader,
    choose_side,
    exact_sum,
    place_of,
    squares_of,
    tetrahedral_number,
)

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
        block = _exchanged(block, 0)
    if place[1] == place[2]:
        block = _exchanged(block, 1)
    if place[0] == place[2]:
        block = _exchanged(block, 0)
    return block


def _exchanged(block: np.ndarray, axis: int) -> np.ndarray:
    """Entries whose index on ``axis`` is larger than on the next axis, replaced by those with the two exchanged."""
    upper = np.triu(np.ones(block.shape[axis : axis + 2], bool))
    return np.where(upper[..., None] if axis == 0 else upper, block, np.swapaxes(block, axis, axis + 1))


def _images(box: Box, place: Place, side: int) -> Iterator[tuple[Order, np.ndarray]]:
    """Every order of the indices with the entries there, turned so that they lie as in the block itself."""
    held: tuple[Place, np.ndarray] | None = None
    for order in sorted(ORDERS, key=lambda order: _at(place, order)):  # the block's own place is the least of them
        at = _at(place, order)
        if held is None or held[0] != at:
            held = at, _finite(box(at), at, side)
        yield order, held[1].transpose(np.argsort(order))


def _at(place: Place, order: Order) -> Place:
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
    options: dict[str, Any] = {"compressors": None, "config": {"write_empty_chunks": True}}
    held = zarr.create_array(store, shape=(units, *cube), chunks=(1, *cube), dtype=dtype, **options)

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
