"""A symmetric tensor that is in memory as a whole, packed there as a store on disk would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

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
from npmdask.storage.tensor_symmetry import comparing


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
