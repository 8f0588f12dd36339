"""Records of bounded norm, on a grid: a function of each record alone, wherever and beside whatever it is stored.

A record is one row. One that is not finite becomes a record of zeros; one that is longer than ``clip_norm`` is
shortened to it; all are rounded to a grid. The norm after that is at most ``clip_norm`` exactly, not up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from npmdask.errors import BadInputError
from npmdask.operators.exact_sums import RECORD_GRID, round_to, unit_of

FAR_VALUES = 2**17  # of records far too long that are shortened at once: bounds their copies
LEAST_NORM, LARGEST_NORM = 2.0**-200, 2.0**200


@dataclass(frozen=True)
class Clipping:
    """The public numbers of clipping records with ``columns`` entries to ``clip_norm``."""

    clip_norm: float
    columns: int

    def __post_init__(self) -> None:
        if not LEAST_NORM <= self.clip_norm <= LARGEST_NORM:
            raise BadInputError(f"clip_norm = {self.clip_norm} must be a positive number between 2^-200 and 2^200")

    @property
    def unit(self) -> float:
        return unit_of(self.clip_norm)

    @property
    def grid(self) -> float:
        return RECORD_GRID * self.unit

    @property
    def largest_square(self) -> float:
        """The largest float64 that is not above the square of ``clip_norm``."""
        square = self.clip_norm * self.clip_norm
        above = Fraction(square) > Fraction(self.clip_norm) ** 2
        return math.nextafter(square, 0.0) if above else square

    @property
    def exact_below(self) -> float:
        """Sums of squares on the grid are exact in any order below this: 2^53 grid^2."""
        return 32.0 * self.unit * self.unit

    @property
    def target(self) -> float:
        """What long records are shortened to: so far below ``clip_norm`` that rounding cannot lead above it."""
        lost = self.grid / 2 * math.sqrt(self.columns) * (1 + 2.0**-40)
        return self.clip_norm * (1 - 2.0**-44) - lost


def clip_records(rounded: np.ndarray, clipping: Clipping, raw: Callable[[np.ndarray], np.ndarray]) -> None:
    """Make records (rows of ``rounded``, on the grid already) at most ``clip_norm`` long, in place.

    ``raw(which)`` gives a float64 copy of some records as they are stored: for those whose squares overflow the
    exact range, or are not finite.
    """
    squares = np.vecdot(rounded, rounded)
    fits = squares <= clipping.largest_square
    if fits.all():
        return
    exact = squares < clipping.exact_below  # False for NaN
    far = np.flatnonzero(~exact)
    step = max(1, FAR_VALUES // rounded.shape[1])
    for start in range(0, len(far), step):
        which = far[start : start + step]
        rounded[which] = shortened(raw(which), clipping)
    near = exact & ~fits
    if near.any():
        rounded *= factors(squares, near, clipping)[:, None]
        round_to(rounded, clipping.grid)


def factors(squares: np.ndarray, near: np.ndarray, clipping: Clipping) -> np.ndarray:
    """What shortens the records that are ``near`` (by their exact squares) to the target: 1 for the others."""
    return np.divide(clipping.target, np.sqrt(squares), out=np.ones(len(squares)), where=near)


def shortened(raw: np.ndarray, clipping: Clipping) -> np.ndarray:
    """Records of any finite length (rows of ``raw``, overwritten) shortened to the target; zeros if not finite."""
    raw[~np.isfinite(raw).all(axis=1)] = 0.0
    _, exponents = np.frexp(np.abs(raw).max(axis=1, initial=0.0))
    np.ldexp(raw, -exponents[:, None], out=raw)  # entries of at most 1: no square overflows
    norms = np.sqrt(sum_in_one_order(raw * raw))
    raw *= np.divide(clipping.target, norms, out=np.zeros(len(raw)), where=norms > 0)[:, None]
    return round_to(raw, clipping.grid)


def sum_in_one_order(values: np.ndarray) -> np.ndarray:
    """Sums along rows, by halves: their order depends on the width only. ``np.sum`` makes no such promise."""
    width = values.shape[1]
    while width > 1:
        half = width // 2
        values[:, :half] += values[:, width - half : width]
        width -= half
    return values[:, 0]
