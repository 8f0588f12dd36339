"""What releases of images P A_i P w are made with: P v for P = I - U U^T, never formed, and which images are there.

The images themselves are those of :class:`npmdask.operators.record_images.ImagesOf`: a row is a function of that record
and public things alone, bit for bit; every sensitivity of this room rests on it.
"""

from __future__ import annotations

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.subspaces import Block


def project_out(vectors: np.ndarray, found: Block) -> np.ndarray:
    """``P v`` of a vector (d), or of every row (b x d), twice: once leaves what rounding left of the found ones.

    Where none is found yet, ``vectors`` itself.
    """
    if not found.shape[1]:
        return vectors
    projected = vectors - _along(vectors, found)
    projected -= _along(projected, found)
    return projected


def _along(vectors: np.ndarray, found: Block) -> np.ndarray:
    """``U U^T v``. Of one column the same bits without a matrix product, which is several times slower there."""
    parts = vectors @ found
    return parts * found[:, 0] if found.shape[1] == 1 else parts @ found.T


def unit(vector: np.ndarray) -> np.ndarray:
    """``vector`` at length 1.

    Raises
    ------
    BadInputError
        A vector of length zero or not finite.
    """
    length = float(np.linalg.norm(vector))
    if not 0 < length < np.inf:
        raise BadInputError(f"a direction of length {length} has no direction: use a smaller step size")
    return vector / length


def present(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images with rows that are not finite set to zero, and which rows are not zero: those of records that are there.

    Raises
    ------
    BadInputError
        Not two-dimensional float64.
    """
    if not isinstance(images, np.ndarray) or images.dtype != np.float64 or images.ndim != 2:
        raise BadInputError("images of records are a float64 array with one row each")
    values = images.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        squares = values @ values
    if np.isfinite(squares) and images[:, :1].all():  # as a rule: a sum of squares hides nothing
        return images, np.ones(len(images), bool)
    finite = np.isfinite(images).all(axis=1)
    if not finite.all():
        images = np.where(finite[:, None], images, 0.0)
    return images, np.any(images != 0.0, axis=1)
