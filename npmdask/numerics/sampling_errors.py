"""How far eigenvalues of a sample may be off, and which components such errors mix. NumPy only."""

from __future__ import annotations

import numpy as np

from npmdask.numerics.domains import counts

Groups = tuple[tuple[int, ...], ...]

# Errors on either side of a value. The gap of two equal eigenvalues of normal rows exceeds c errors with probability
# exp(-c^2 / 4): from North's 2 errors 37 of 100 equal pairs would count as two components, from 2 APART 5 do.
APART = float(np.sqrt(np.log(20.0)))


def north_errors(values: np.ndarray, rows: int) -> np.ndarray:
    """
    Compute standard errors of eigenvalues by North's rule of thumb: ``value sqrt(2 / rows)``.

    North, Bell, Cahalan and Moeng, Monthly Weather Review 110 (1982) 699, eq. 24, for normal, independent rows.

    Parameters
    ----------
    values : array, shape (k,)
        Eigenvalues of a covariance matrix.
    rows : int
        Independent ones: fewer than there are, where rows depend on their neighbours.

    Returns
    -------
    numpy.ndarray, shape (k,)
        In the units of the values.
    """
    counts(rows=rows)
    return np.asarray(np.asarray(values, np.float64) * np.sqrt(2.0 / rows))


def mixed_groups(values: np.ndarray, errors: np.ndarray, also: np.ndarray | None = None) -> Groups:
    """
    Name the components that sampling mixes: neighbours whose values overlap within their errors.

    Parameters
    ----------
    values, errors : array, shape (k,)
        Values, falling, and the half widths of what they may be.
    also : array of bool, shape (k - 1,), optional
        Neighbours that are mixed whatever their values are: the first with the second, ...

    Returns
    -------
    tuple of tuple of int
        Numbers from 0, of two components and more each.
    """
    touching = np.asarray(values)[:-1] - np.asarray(errors)[:-1] <= np.asarray(values)[1:] + np.asarray(errors)[1:]
    found: list[list[int]] = [[0]]
    for place, together in enumerate(touching if also is None else touching | also):
        if together:
            found[-1].append(place + 1)
        else:
            found.append([place + 1])
    return tuple(tuple(group) for group in found if len(group) > 1)
