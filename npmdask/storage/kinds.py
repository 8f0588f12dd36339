"""The kinds of data set, and the types that values are stored in."""

from __future__ import annotations

import numpy as np

from npmdask.errors import BadInputError, closest

KINDS = ("samples", "symmetric", "matrix", "sparse")
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
    raise BadInputError(f"data of type {dtype} cannot be analysed: store real numbers (float32, float64, integers)")


def choose_layout(kind: str, layout: str | None, chunks: tuple[int, int] | None) -> str:
    """The layout to store ``kind`` in: packed for a symmetric matrix unless another is asked for.

    Raises
    ------
    BadInputError
        An unknown layout, packed for another kind, or packed with chunks that are not square.
    """
    if layout is not None and layout not in LAYOUTS:
        raise BadInputError(f"unknown layout {layout!r}: {closest(layout, list(LAYOUTS))}")
    if kind != "symmetric":
        if layout == "packed":
            raise BadInputError(f"layout='packed' is for kind='symmetric', not for kind={kind!r}: leave layout out")
        return "full"
    if layout != "full" and chunks is not None and chunks[0] != chunks[1]:
        raise BadInputError(
            f"chunks={tuple(chunks)} are not square, and a packed symmetric matrix needs square ones: pass two equal "
            "numbers, or layout='full' (--layout full)"
        )
    return layout or "packed"
