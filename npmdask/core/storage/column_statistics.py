"""Weight, mean and second moment of columns over what is observed, and their error: nothing else computes these.

Sums are about means, and those of other rows are merged as variances are (Chan, Golub and LeVeque, Amer. Statist. 37
(1983) 242, eq. 2.1), so that nothing cancels where means are large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

UNIT = float(np.finfo(np.float64).eps) / 2  # of one rounding
AT_ONCE = 2**18  # entries that are added at once: their float64 copy stays small
LONGEST = 2**20  # terms that are added up one after the other, at most
FEW_COLUMNS = 32  # for each entry: sorting the entries takes about as long as two sums over so many columns
MOST_COLUMNS = 2**24  # whose entries are summed about their mean, too: of more it would take gigabytes
CANCELS = 16.0  # variances that a squared mean may be of: beyond, sums of squares about zero lose more than a digit
LEAST = 64 * UNIT  # relative error of a deviation: of less nothing is kept
NOISE, NOISE_ABOUT_ZERO = 1e-13, 1e-7  # of a mean: a deviation of less is rounding, also of sums of squares about zero
MOMENTS = ("count", "mean", "m2", "lost")
Sums = dict[str, Any]


def merged(first: Sums, second: Sums) -> Sums:
    """The ``MOMENTS`` of both: weight of what is observed, one number or one of each column, its mean, its sum of
    squares about that, and what of these the merging may have lost for each rounding of a mean.
    """
    (here, mean, m2, lost), (there, other, more, less) = ([each[name] for name in MOMENTS] for each in (first, second))
    total, away = here + there, other - mean
    share = there / np.where(total > 0, total, 1.0)
    apart = away**2 * here * share if np.ndim(total) else away**2 * (here * there / (total or 1))
    lost = lost + less + 2 * np.abs(away) * (np.abs(mean) + np.abs(other)) * (here * share)
    return {"count": total, "mean": mean + away * share, "m2": m2 + more + apart, "lost": lost}


class ColumnSums:
    """``MOMENTS`` of dense rows, added a few at a time."""

    def __init__(self, columns: int) -> None:
        self.count: Any = 0  # an int where rows are not weighted
        self.mean, self.m2, self.lost = np.zeros(columns), np.zeros(columns), np.zeros(columns)

    def add(self, rows: np.ndarray, weights: np.ndarray | None = None, gaps: np.ndarray | None = None) -> None:
        """Add rows (b x columns), each as often as its weight (b) says, but for their ``gaps`` (b x columns)."""
        few = max(1, AT_ONCE // max(1, rows.shape[1]))
        for here in (slice(start, start + few) for start in range(0, len(rows), few)):
            own = None if weights is None else weights[here]
            count, mean, m2 = _moments(rows[here], own) if gaps is None else _gap_moments(rows[here], own, gaps[here])
            vars(self).update(merged(vars(self), {"count": count, "mean": mean, "m2": m2, "lost": 0.0}))

    def table(self) -> np.ndarray:
        """The sums one below the other (4 x columns)."""
        return np.stack([np.full(self.mean.shape, vars(self)[name], np.float64) for name in MOMENTS])


def _moments(rows: np.ndarray, weights: np.ndarray | None) -> tuple[Any, np.ndarray, np.ndarray]:
    if weights is None:
        mean = rows.mean(axis=0, dtype=np.float64)
        away = rows - mean
        return len(rows), mean, np.einsum("ij,ij->j", away, away)
    rows, weight = rows.astype(np.float64), float(weights.sum())
    mean = weights @ rows / (weight or 1.0)
    return weight, mean, weights @ (rows - mean) ** 2


def _gap_moments(rows: np.ndarray, weights: np.ndarray | None, gaps: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
    values, times = rows.astype(np.float64), (~gaps).astype(np.float64)
    values[gaps] = 0.0
    if weights is not None:
        times *= weights[:, None]
    count = times.sum(axis=0)
    mean = np.einsum("ij,ij->j", times, values) / np.where(count > 0, count, 1.0)
    values -= mean
    values *= values
    return count, mean, np.einsum("ij,ij->j", times, values)


class EntrySums:
    """Sums over the entries that sparse rows store: the others of a column are zeros.

    Plain sums, which are what a column with many zeros has; and the number of entries, and their ``MOMENTS``.
    """

    PLAIN = ("total", "squares", "entries")
    NAMES = (*PLAIN, *MOMENTS)

    def __init__(self, columns: int, found: Mapping[str, np.ndarray] | None = None) -> None:
        """``found``: sums to go on with; those of an earlier version, and of many columns, are plain alone."""
        names = self.NAMES if columns <= MOST_COLUMNS else self.NAMES[:2]
        found = {name: np.zeros(columns) for name in names} if found is None else found
        self.sums = {name: found[name] for name in self.NAMES if name in found}

    def add(self, indices: np.ndarray, values: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Add entries of columns ``indices``, each as often as its weight says.

        Where they are few beside the columns, only columns that they have are touched: a sum over all 10^8 columns for
        each block of rows would be most of the work. The bits are the same.
        """
        at: Any = slice(None)
        places, width = indices, len(self.sums["total"])
        if width > FEW_COLUMNS * len(indices):
            at, places = np.unique(indices, return_inverse=True)
            width = len(at)
        values = values.astype(np.float64, copy=False)
        times = np.ones(len(values)) if weights is None else weights
        entries, count, total, squares = (
            np.bincount(places, each, width) for each in (times**0, times, values * times, values**2 * times)
        )
        over = np.where(count > 0, count, 1.0)
        away = values - (total / over)[places]
        off, about = (np.bincount(places, each, width) for each in (away * times, away**2 * times))
        mean, m2 = total / over + off / over, np.maximum(about - off**2 / over, 0.0)  # less what was off of the mean
        for name, more in zip(self.PLAIN, (total, squares, entries), strict=True):
            if name in self.sums:
                self.sums[name][at] += more
        if "m2" not in self.sums:
            return
        known = {name: self.sums[name][at] for name in MOMENTS}
        for name, found in merged(known, {"count": count, "mean": mean, "m2": m2, "lost": 0.0}).items():
            self.sums[name][at] = found

    def statistics(self, rows: int, weight: float) -> ColumnStatistics:
        """Compute the statistics of so many rows of so much weight: from plain sums, but where these lose digits."""
        mean = self.sums["total"] / weight
        plain = self.sums["squares"] - weight * mean**2
        found = {"column_mean": mean, "column_m2": plain}
        if "m2" not in self.sums:
            return ColumnStatistics.of(found, rows, sparse=True, weight=weight)
        entries, count, own, m2, lost = (self.sums[name] for name in self.NAMES[2:])
        full = own**2 * count * np.where(entries < rows, weight - count, 0.0) / weight  # of zeros
        cancels = CANCELS * (m2 + full) < weight * mean**2
        if not cancels.any():
            return ColumnStatistics.of(found, rows, sparse=True, weight=weight)
        found["column_m2"] = np.where(cancels, m2 + full, plain)
        rounded = np.where(count != entries, own**2 * count * (entries < rows), 0.0)  # weights that were added up
        lost = np.where(cancels, UNIT * lost + relative(rows) * rounded, relative(rows) * weight * mean**2)
        return ColumnStatistics.of(found, rows, sparse=True, weight=weight, lost=lost)


def of_moments(
    sums: Mapping[str, Any], rows: int, weight: float | None = None, observed: np.ndarray | None = None
) -> ColumnStatistics:
    """Compute statistics from the ``MOMENTS`` of dense rows, of so many that weigh so much together."""
    found, few = {"column_mean": sums["mean"], "column_m2": sums["m2"]}, AT_ONCE // len(sums["mean"])
    lost, known = relative(min(few, rows)) / 2 * sums["lost"], {} if observed is None else {"column_observed": observed}
    return ColumnStatistics.of(found | known, rows, sparse=False, weight=weight, lost=lost)


def relative(terms: int) -> float:
    """Error of a sum of so many squares, one after the other: measured (about the half of it), not proved."""
    return (4 + min(terms, LONGEST) ** 0.5) * UNIT


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnStatistics:
    """Mean and deviation of columns (d) over what is observed of them.

    Parameters
    ----------
    mean, m2 : of what is observed, and the sum of squares about it; None where only deviations were kept.
    std : the root of ``m2`` over the weight of all rows, as if gaps were at the mean.
    rows : how many were summed.
    observed : share of the (weight of the) rows that have a value; None: all.
    about_zero : whether squares were summed about zero.
    error : of the deviation; None: what sums of that kind have.
    """

    mean: np.ndarray
    std: np.ndarray
    rows: int
    m2: np.ndarray | None = None
    observed: np.ndarray | None = None
    about_zero: bool = False
    error: np.ndarray | float | None = None

    @classmethod
    def of(
        cls, kept: Mapping[str, Any], rows: int, *, sparse: bool, weight: float | None = None, lost: Any = None
    ) -> ColumnStatistics:
        """Make statistics of what was kept of columns, or summed: then ``lost`` bounds the error of sums of squares."""
        m2, error, over = kept.get("column_m2"), kept.get("column_error"), rows if weight is None else weight
        std = kept["column_std"] if m2 is None else np.sqrt(np.maximum(m2, 0.0) / over)
        known: dict[str, Any] = {"rows": rows, "observed": kept.get("column_observed"), "error": error, "m2": m2}
        found = cls(mean=kept["column_mean"], std=std, about_zero=sparse and error is None, **known)
        if lost is None:
            return found
        share = 1.0 if found.observed is None else np.where(found.observed > 0, found.observed, 1.0)
        less = replace(found, error=found._deviation_error(lost / over / share), about_zero=False)
        return less if sparse or less.scale_error > LEAST else found

    def kept(self, second: str = "column_std") -> dict[str, np.ndarray]:
        """Return what is kept of them: of errors only those that sums of their kind do not always have."""
        known = {"column_mean": self.mean, "column_m2": self.m2, "column_std": self.std, "column_error": self.error}
        wanted = {name: known[name] for name in ("column_mean", second, "column_error")}
        return {name: np.asarray(values) for name, values in wanted.items() if values is not None}

    @cached_property
    def deviation(self) -> np.ndarray:
        """The standard deviation over what is observed, of the population."""
        if self.observed is None:
            return self.std
        return self.std / np.sqrt(np.where(self.observed > 0, self.observed, 1.0))

    @property
    def off(self) -> np.ndarray:
        """Error that the deviation may have."""
        if self.error is None:
            return self._deviation_error(relative(self.rows) * self.mean**2 if self.about_zero else 0.0)
        return np.broadcast_to(self.error, self.mean.shape)

    def _deviation_error(self, lost: Any) -> np.ndarray:
        """The same, of squares of which ``lost`` is off in the mean: besides rounding, and what the mean is off."""
        std, rounding = self.deviation, relative(self.rows)
        lost = lost + rounding * std**2 + (rounding * self.mean) ** 2
        return np.asarray(np.where(4 * lost > std**2, np.sqrt(lost), lost / (2 * np.where(std > 0, std, 1.0))))

    @property
    def varies(self) -> np.ndarray:
        """Columns that are not constant: the deviation of a constant one is rounding, not 0."""
        return self.deviation > np.abs(self.mean) * (NOISE_ABOUT_ZERO if self.about_zero else NOISE)

    @property
    def scale(self) -> np.ndarray:
        """Divisors of columns: 1 of a constant one, as dividing by rounding errors makes something of nothing."""
        return np.where(self.varies, self.deviation, 1.0)

    @property
    def scale_error(self) -> float:
        """The largest relative error of what columns are divided by."""
        return float(np.max(self.off / self.scale, where=self.varies, initial=0.0))

    def of_moduli(self, moduli: Any) -> ColumnStatistics:
        """Return those of complex columns, of whose real and imaginary parts these are."""
        return replace(self, mean=moduli(self.mean), std=moduli(self.std), error=moduli(self.off))
