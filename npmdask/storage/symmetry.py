"""Whether a stored matrix is its own mirror image: one tolerance and one sentence for every layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from npmdask.errors import BadInputError


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


def not_square(rows: int, columns: int) -> BadInputError:
    return BadInputError(f"a symmetric matrix is square; this one is {rows} x {columns}")


def size_of_matrix(trace: float, squared_frobenius: float) -> dict[str, float | None]:
    """Trace and squared Frobenius norm for the record; None for what float64 cannot hold (JSON has no infinity)."""
    held = {"trace": trace, "squared_frobenius": squared_frobenius}
    return {name: value if np.isfinite(value) else None for name, value in held.items()}
