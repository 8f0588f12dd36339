"""Numbers that a formula can be of; others are refused with a sentence.

Sizes beyond 1e-40 to 1e40 are refused as well: powers of them leave the range of floats, and another unit helps.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

import numpy as np

from npmdask.errors import BadInputError, require, require_known

SMALLEST, LARGEST = 1e-40, 1e40
DEVICES = ("cpu", "auto", "cuda")  # what sums are formed on
STEEPEST = 100.0  # of an exponent: beyond it powers are not numbers any more


def positive(**numbers: float) -> None:
    """Refuse what is not a positive number."""
    for name, number in numbers.items():
        if not SMALLEST <= number <= LARGEST:
            raise BadInputError(f"{name} = {number} must be a number from 1e-40 to 1e40: use another unit")


def not_negative(**numbers: float) -> None:
    """Refuse what is not the size of something; 0 is."""
    for name, number in numbers.items():
        if not 0 <= number <= LARGEST:
            raise BadInputError(
                f"{name} = {number} must not be negative, and at most 1e40: it is the size of something"
            )


def exponent(**numbers: float) -> None:
    """Refuse what is no exponent above 0."""
    for name, number in numbers.items():
        if not 0 < number <= STEEPEST:
            raise BadInputError(f"{name} = {number} is an exponent: it must be above 0 and at most {STEEPEST:g}")


def counts(**numbers: float) -> None:
    """Refuse what is not a whole number from 1 on."""
    for name, number in numbers.items():
        if not isinstance(number, Real) or not 1 <= number <= LARGEST or number != math.floor(number):
            raise BadInputError(f"{name} = {number!r} must be a whole number of at least 1: it is a count")


def require_independent(rows: int, held: int) -> None:
    """Raise BadInputError for a number of independent rows that ``held`` rows cannot be worth."""
    counts(independent_rows=rows)
    if rows > held:
        raise BadInputError(
            f"independent_rows = {rows}, and the data have {held} rows: rows that depend on each other count as fewer, "
            "never as more"
        )


def whole_seed(seed: int) -> None:
    """Refuse what is no seed of a random stream."""
    require(isinstance(seed, Integral) and seed >= 0, f"seed = {seed!r} must be a whole number, 0 or more")


def probability(**numbers: float) -> None:
    """Refuse what is not strictly between 0 and 1."""
    for name, number in numbers.items():
        require(0 < number < 1, f"{name} = {number} must lie between 0 and 1: it is a probability")


def accuracy(acc: float) -> None:
    """Refuse what is no sine or tangent below that of 45 degrees."""
    require(SMALLEST <= acc < 1, f"acc = {acc} must lie between 0 and 1: it is the wanted sine or tangent")


def one_of(known: Collection[str], **named: Any) -> None:
    """Refuse what is none of the words that are ``known``."""
    for name, word in named.items():
        require_known(word, known, f"{name} =")


def ranks(d: int, k: int, p: int) -> None:
    """Refuse impossible ranks."""
    counts(d=d, k=k, p=p)
    require(k <= p <= d, f"1 <= k = {k} <= p = {p} <= d = {d} must hold")


def spectrum_gap(larger: float, smaller: float, acc: float | None = None) -> float:
    """larger - smaller of two sizes of eigenvalues, which must fall; ties are 0. ``acc`` must be possible, too."""
    if acc is not None:
        accuracy(acc)
    if not 0 <= smaller <= larger or not SMALLEST <= larger <= LARGEST:
        raise BadInputError(
            f"sizes of eigenvalues fall and are not negative, but {larger} is followed by {smaller}: give sizes, sorted"
        )
    return larger - smaller


def falling(spectrum: np.ndarray, d: int, k: int, p: int) -> np.ndarray:
    """The sizes of a spectrum of at most d values, falling, with zeros up to index p."""
    ranks(d, k, p)
    sizes = np.sort(np.abs(np.asarray(spectrum, dtype=np.float64)))[::-1]
    if len(sizes) > d or not (sizes <= LARGEST).all():
        raise BadInputError(f"the spectrum has {len(sizes)} values: give at most d = {d}, finite and below 1e40")
    return np.concatenate([sizes, np.zeros(max(0, p + 1 - len(sizes)))])


def less_one(rows: float, *, weighted: bool) -> float:
    """Return the divisor of sums of squares for variances: the number of rows less 1, or their total weight less 1.

    Raises
    ------
    BadInputError
        Nothing is left of it.
    """
    if rows > 1:
        return rows - 1
    raise BadInputError(
        f"the row weights add up to {rows:g}, and variances are over their sum less 1, as a weight says how many rows "
        "a row counts for: multiply the weights until their sum is the number of rows, or see values"
        if weighted
        else "one row is its own mean, and variances are over the number of rows less 1: give at least two rows"
    )
