"""The kinds of data set, and the types that values are stored in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.core import features
from npmdask.errors import BadInputError, require

MATRICES = "kind = 'matrices' is for n square matrices, one for each record, given as a 3-D array (n x d x d)"
TENSOR = "kind = 'tensor' is for a symmetric tensor of order three, given as a 3-D array (d x d x d)"
HERE = (np.ndarray, list, tuple)  # what lies in memory and needs no feature


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of a kind of data that the package asks for.

    Parameters
    ----------
    of_rows : they have rows, whose columns are centred and scaled, and which can be scored along the components.
    singular : their values are singular values, roots of the eigenvalues of A^T A.
    left : one more pass makes left singular vectors.
    sparse : they are stored as CSR.
    mirrored : entries are those of their mirror image, and values are those of the data as they are.
    square : a symmetric matrix, whose triangle can be stored alone, and whose values may be negative.
    cube : a symmetric tensor; its components are found one by one from restarts, and are no subspace.
    flattened : square matrices, each stored as a row.
    may_be_complex : their entries may be complex numbers.
    values : what their values are.
    without_rows : what those hold that have no rows of numbers, and what that is for.
    """

    of_rows: bool = False
    singular: bool = False
    left: bool = False
    sparse: bool = False
    mirrored: bool = False
    square: bool = False
    cube: bool = False
    flattened: bool = False
    may_be_complex: bool = False
    values: str = "values"
    without_rows: str = ""


TRAITS = {  # a kind is added here
    "samples": Traits(of_rows=True, may_be_complex=True, values="mean squares"),
    "symmetric": Traits(mirrored=True, square=True, may_be_complex=True, values="eigenvalues"),
    "matrix": Traits(of_rows=True, singular=True, left=True, may_be_complex=True, values="singular values"),
    "sparse": Traits(of_rows=True, singular=True, sparse=True, values="singular values"),
    "matrices": Traits(
        flattened=True,
        without_rows="holds square matrices, one for each record (kind = 'matrices'): they are for the private "
        "stochastic algorithms (k-dp-pca), which find the leading eigenvectors of their mean; give data with rows and "
        "columns here, or the mean of the matrices as kind = 'symmetric'",
    ),
    "tensor": Traits(
        mirrored=True,
        cube=True,
        without_rows="holds a symmetric tensor of order three (kind = 'tensor'), which only the tensor power methods "
        "(tensor-power) can decompose; give data with rows and columns here",
    ),
}
KINDS = tuple(TRAITS)


def traits_of(kind: str | None) -> Traits:
    """Return what there is to know of a kind; of one that a feature has, and of none, nothing holds."""
    return TRAITS.get(kind or "", Traits())


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


def require_rows(kind: str, path: str) -> None:
    """Raise BadInputError for data of kinds that have no rows of numbers, and say what they are for."""
    said = traits_of(kind).without_rows
    require(not said, f"{path} {said}")


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
