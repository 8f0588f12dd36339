"""Layouts of stored values: their types, and whole or packed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npmdask.core.storage.kinds import traits_of
from npmdask.errors import BadInputError, closest, require

# How data with missing values are stored. Where a run reads them by itself, the rule of the run is what helps.
KEPT = ", or keep them as missing values with non_finite='missing' (--non-finite missing)"
LAYOUTS = ("packed", "full")  # of a symmetric matrix: its upper triangle, or all of it


def storage_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype that a source is stored in: float32 and float64 kept, small integers kept, no complex.

    Raises
    ------
    BadInputError
        Complex, text or object data.
    """
    dtype = np.dtype(dtype).newbyteorder("=")
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind in "iu" or dtype in (np.float32, np.float64):
        return dtype
    if dtype == np.float16:
        return np.dtype(np.float32)
    if dtype.kind == "f":
        return np.dtype(np.float64)
    if dtype.kind == "c":
        raise BadInputError(
            f"data of type {dtype} cannot be stored here: npmdask.top_k and `npmdask run` read complex rows directly "
            "from a Zarr array or an .npy file; everything else needs real numbers (float32, float64, integers)"
        )
    raise BadInputError(f"data of type {dtype} cannot be analysed: store real numbers (float32, float64, integers)")


def require_cubic(chunks: Sequence[int]) -> int:
    """The side of the blocks of a tensor.

    Raises
    ------
    BadInputError
        Not three equal numbers of at least 1.
    """
    if len(chunks) != 3 or len(set(chunks)) != 1 or chunks[0] < 1:
        side = max(1, max(chunks, default=1))
        raise BadInputError(
            f"chunks={tuple(chunks)} are not cubes, and the blocks of a tensor are: pass three equal numbers, for "
            f"example {side} {side} {side}, or leave chunks out"
        )
    return int(chunks[0])


def choose_layout(kind: str, layout: str | None, chunks: Sequence[int] | None) -> str:
    """The layout to store ``kind`` in: packed for a symmetric matrix unless another is asked for.

    Raises
    ------
    BadInputError
        An unknown layout, packed for another kind, or packed with chunks that are not square.
    """
    if layout is not None and layout not in LAYOUTS:
        raise BadInputError(f"unknown layout {layout!r}: {closest(layout, list(LAYOUTS))}")
    if not traits_of(kind).square:
        require(layout != "packed", f"layout='packed' is for kind='symmetric', not for kind={kind!r}: leave layout out")
        return "full"
    if layout != "full" and chunks is not None and chunks[0] != chunks[1]:
        raise BadInputError(
            f"chunks={tuple(chunks)} are not square, and a packed symmetric matrix needs square ones: pass two equal "
            "numbers, or layout='full' (--layout full)"
        )
    return layout or "packed"


def not_square(rows: int, columns: int) -> BadInputError:
    return BadInputError(f"a symmetric matrix is square; this one is {rows} x {columns}")


def size_of_matrix(trace: float, squared_frobenius: float) -> dict[str, float | None]:
    """Trace and squared Frobenius norm for the record; None for what float64 cannot hold (JSON has no infinity)."""
    held = {"trace": trace, "squared_frobenius": squared_frobenius}
    return {name: value if np.isfinite(value) else None for name, value in held.items()}
