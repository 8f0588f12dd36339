"""The kinds of data set, and the types that values are stored in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npmdask.core import features
from npmdask.errors import BadInputError, closest, require

KINDS = ("samples", "symmetric", "matrix", "sparse", "matrices", "tensor")
# How data with missing values are stored. Where a run reads them by itself, the rule of the run is what helps.
KEPT = ", or keep them as missing values with non_finite='missing' (--non-finite missing)"
MATRICES = "kind = 'matrices' is for n square matrices, one for each record, given as a 3-D array (n x d x d)"
TENSOR = "kind = 'tensor' is for a symmetric tensor of order three, given as a 3-D array (d x d x d)"
HERE = (np.ndarray, list, tuple)  # what lies in memory and needs no feature
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


def require_square_matrices(shape: Sequence[int], where: str) -> tuple[int, int]:
    """n and d of an array n x d x d.

    Raises
    ------
    BadInputError
        Not three dimensions, not square, or empty.
    """
    if len(shape) != 3:
        raise BadInputError(
            f"{where} has shape {tuple(shape)}: {MATRICES}; rows of numbers are kind='samples', one matrix is "
            "kind='symmetric' or kind='matrix'"
        )
    require(0 not in shape, f"{where} has shape {tuple(shape)}: it has no data to analyse")
    if shape[1] != shape[2]:
        raise BadInputError(f"{where} has shape {tuple(shape)}, and {shape[1]} x {shape[2]} is not square: {MATRICES}")
    return int(shape[0]), int(shape[1])


def require_cube(shape: Sequence[int], where: str) -> int:
    """d of an array d x d x d.

    Raises
    ------
    BadInputError
        Not three dimensions, not all equal, or empty.
    """
    require(len(shape) == 3, f"{where} has shape {tuple(shape)}: {TENSOR}; leave kind out for rows of numbers")
    require(0 not in shape, f"{where} has shape {tuple(shape)}: it has no data to analyse")
    if len(set(shape)) != 1:
        matrices = "; square matrices, one for each record, are kind='matrices'" if shape[1] == shape[2] else ""
        raise BadInputError(f"{where} has shape {tuple(shape)}, which is not a cube: {TENSOR}{matrices}")
    return int(shape[0])


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


def require_rows(kind: str, path: str) -> None:
    """Raise BadInputError for data of kinds that have no rows of numbers, and say what they are for."""
    said = {
        "tensor": f"{path} holds a symmetric tensor of order three (kind = 'tensor'), which only the tensor power "
        "methods (tensor-power) can decompose; give data with rows and columns here",
        "matrices": f"{path} holds square matrices, one for each record (kind = 'matrices'): they are for the private "
        "stochastic algorithms (k-dp-pca), which find the leading eigenvectors of their mean; give data with rows and "
        "columns here, or the mean of the matrices as kind = 'symmetric'",
    }
    require(kind not in said, said.get(kind, ""))


def choose_layout(kind: str, layout: str | None, chunks: Sequence[int] | None) -> str:
    """The layout to store ``kind`` in: packed for a symmetric matrix unless another is asked for.

    Raises
    ------
    BadInputError
        An unknown layout, packed for another kind, or packed with chunks that are not square.
    """
    if layout is not None and layout not in LAYOUTS:
        raise BadInputError(f"unknown layout {layout!r}: {closest(layout, list(LAYOUTS))}")
    if kind != "symmetric":
        require(layout != "packed", f"layout='packed' is for kind='symmetric', not for kind={kind!r}: leave layout out")
        return "full"
    if layout != "full" and chunks is not None and chunks[0] != chunks[1]:
        raise BadInputError(
            f"chunks={tuple(chunks)} are not square, and a packed symmetric matrix needs square ones: pass two equal "
            "numbers, or layout='full' (--layout full)"
        )
    return layout or "packed"


def real_array(given: Any, what: str, form: str = "rows x columns") -> np.ndarray:
    """As :func:`number_array`, of real numbers.

    Raises
    ------
    BadInputError
        As there; or complex numbers.
    """
    array = number_array(given, what, form)
    if array.dtype.kind == "c":
        raise BadInputError(
            f"{what} of type {array.dtype}: give real numbers (real and imaginary parts as separate columns); only "
            "npmdask.top_k on dense rows accepts complex numbers"
        )
    return array


def number_array(given: Any, what: str, form: str = "rows x columns") -> np.ndarray:
    """``given`` (an array, lists that are one, a table, a labelled array) as an array of numbers of any shape.

    ``form``: what an error says of the shape that is needed.

    Raises
    ------
    BadInputError
        Masked values, text, Python objects, lists of unequal length, or no array at all.
    """
    if type(given) not in HERE and (held := features.of_type("sources", type(given))):
        given = held.numbers(given, what)
    if not isinstance(given, np.ndarray | list | tuple | np.generic) and not hasattr(given, "__array__"):
        raise BadInputError(
            f"{what} of type {type(given).__name__}: give an array of real numbers ({form}), or lists of them"
        )
    try:  # masks are kept, those of rows and those of what an object gives as its array: asarray drops them
        masked = isinstance(given, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in given)
        array = np.ma.stack(given) if masked else np.asanyarray(given)
    except Exception as error:  # whatever the library of an object raises
        raise BadInputError(
            f"{what} cannot be converted to an array ({error}): give {form}, all of the same length"
        ) from error
    if isinstance(array, np.ma.MaskedArray):
        if count := int(np.ma.count_masked(array)):
            raise BadInputError(
                f"{what}: {count} masked values of {array.size}, and missing values are refused: fill them in "
                "(x.filled(0)), leave out the rows or columns that have them (numpy.ma.compress_rows(x)), or use "
                "missing = 'mean' in a run that is not private"
            )
        array = array.data
    require(array.dtype.kind in "iufbc", f"{what} of type {array.dtype}: give real numbers, as numpy.asarray(x, float)")
    widest = {"f": np.float64, "c": np.complex128}.get(array.dtype.kind)  # no store holds numpy.longdouble
    return np.asarray(array, widest if widest and array.dtype.itemsize > np.dtype(widest).itemsize else None)


# Whether a stored matrix is its own mirror image: one tolerance and one sentence for every layout.


def not_square(rows: int, columns: int) -> BadInputError:
    return BadInputError(f"a symmetric matrix is square; this one is {rows} x {columns}")


def size_of_matrix(trace: float, squared_frobenius: float) -> dict[str, float | None]:
    """Trace and squared Frobenius norm for the record; None for what float64 cannot hold (JSON has no infinity)."""
    held = {"trace": trace, "squared_frobenius": squared_frobenius}
    return {name: value if np.isfinite(value) else None for name, value in held.items()}
