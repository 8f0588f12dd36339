"""The kinds of data set, and the types that values are stored in."""

from __future__ import annotations

import numpy as np

from npmdask.errors import BadInputError

KINDS = ("samples", "symmetric", "matrix", "sparse")


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
