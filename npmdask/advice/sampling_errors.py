"""Estimate sampling errors of values, and which components such errors mix."""

from __future__ import annotations

import numpy as np

from npmdask.core.numerics.domains import counts

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


def next_is_mixed(last: float, rows: int, *, upper: float | None, lower: float | None) -> bool | None:
    """
    Say whether sampling mixes the last component with the next, of whose value only bounds are known.

    Parameters
    ----------
    last : float
        The smallest value that is known.
    rows : int
        Independent ones.
    upper, lower : float or None
        Bounds of the next value; None: there is none.

    Returns
    -------
    bool or None
        True if even the lower bound overlaps with it (by :func:`mixed_groups`), False if not even the upper one does.
    """
    known = [None if bound is None else _overlap(last, min(bound, last), rows) for bound in (upper, lower)]
    return False if known[0] is False else True if known[1] else None


def _overlap(one: float, other: float, rows: int) -> bool:
    values = np.array([one, other])
    return bool(mixed_groups(values, APART * north_errors(values, rows)))


def student_factor(confidence: float, groups: int, replicates: int | None = None) -> float:
    """
    Compute how many standard errors an interval reaches to each side, where groups of rows tell the standard error.

    Student's quantile. The squared error of g groups has g - 1 degrees of freedom, and that of r replicates about it
    r - 1 more: together as many as Satterthwaite, Biometrics Bulletin 2 (1946) 110, gives a sum of such errors,
    ``1 / (1 / (g - 1) + 1 / (r - 1))``.

    Parameters
    ----------
    confidence : float
        Nominal coverage, between 0 and 1.
    groups : int
        2 at least.
    replicates : int, optional
        That the error was estimated from, 2 at least; left out where it follows from the groups exactly.

    Returns
    -------
    float
        1.96 for 0.95 and very many of both.
    """
    from scipy.special import stdtrit

    unsure = 1 / (groups - 1) + (0.0 if replicates is None else 1 / (replicates - 1))
    return float(stdtrit(1 / unsure, (1 + confidence) / 2))


def jackknifed(whole: np.ndarray, left_out: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    Compute bias and standard errors from what is found without each group of rows.

    The delete-m_j jackknife of Busing, Meijer and van der Leeden, Statistics and Computing 9 (1999) 3, eq. 3 and 4.

    Parameters
    ----------
    whole : array, shape (k,)
        What all rows give.
    left_out : array, shape (groups, k)
        What all rows but those of one group give.
    sizes : array, shape (groups,)
        Rows of each group.

    Returns
    -------
    bias, errors : numpy.ndarray, shape (k,)
        ``whole`` less the bias is corrected.
    """
    count, times = len(sizes), (sizes.sum() / sizes)[:, None]
    mean = count * whole - ((1 - 1 / times) * left_out).sum(axis=0)
    pseudo = times * whole - (times - 1) * left_out
    return whole - mean, np.sqrt((np.square(pseudo - mean) / (times - 1)).mean(axis=0))
