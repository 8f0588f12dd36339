"""Compare names and coordinates by name wherever two things meet: a run and rows, two files, data and weights.

The same names in another order are put in order. Other names are refused, naming the first that differs. Where one
side has no names, columns are taken by position, and a sentence says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from npmdask.core.storage.columns import listed
from npmdask.core.storage.labels import LATITUDES, LONGITUDES, Axis, Labels
from npmdask.errors import BadInputError, NpmdaskError, RefusedError

COUNTED = ("column", "row", "var", "obs")  # axes whose places are called 0, 1, 2 without names
ROUNDING = 1e-6  # of the largest coordinate: several times what float32 rounds off
REMEDY = "give the same ones, in any order, or numbers without names, which are taken by position"


class Order(NamedTuple):
    """Places of the known columns among the given ones (None: as they are), and what is to be said of it."""

    places: np.ndarray | None = None
    said: tuple[str, ...] = ()


def columns_of(labels: Labels | None, kept: np.ndarray | None = None, *, whole: bool = False) -> tuple[Axis, ...]:
    """Return the axes of the columns that are read; () where they are only the numbers of those that were ``kept``.

    ``whole``: with the columns that are left out of a grid.
    """
    axes = () if labels is None else labels.grid if whole and labels.grid else labels.columns
    return () if len(axes) == 1 and kept is not None and np.array_equal(axes[0].places, kept) else axes


def require_kept(kept: Labels | None, given: Labels, store: Any) -> None:
    """Raise RefusedError where rows or columns are called otherwise than in the run that a store holds."""
    for what in () if kept is None else ("rows", "columns"):
        for known, own in zip(getattr(kept, what), getattr(given, what), strict=False):
            if known.values is None or own.values is None or known.size != own.size:
                continue
            apart = (known.values != own.values) & ~((known.values != known.values) & (own.values != own.values))
            if np.any(apart):
                at = int(np.argmax(apart))
                raise RefusedError(
                    f"the {what} have other names than in the run that {store} holds, from number {at} on "
                    f"({own.places[at]!s}, {known.places[at]!s} there): use another store"
                )


def matched(
    known: Sequence[Axis],
    given: Sequence[Axis],
    of_given: str,
    of_known: str = "the run",
    *,
    what: str = "columns",
    error: type[NpmdaskError] = BadInputError,
    remedy: str = REMEDY,
) -> Order:
    """The order that the known columns have among the given ones, which may be more where they lie along one axis.

    Parameters
    ----------
    known, given : axes of the columns (or rows); of several the last varies fastest. Empty: without names.
    of_given, of_known : whose they are, in a sentence. what : what they are.
    error, remedy : what a refusal is, and its end.

    Raises
    ------
    NpmdaskError
        The ``error``: other names, or names that are there twice and in another order.
    """

    def by_position(one: bool) -> str:
        whose = "it" if one else of_known
        return f"the {what} of {of_given} were taken by position, because {whose} has no names"

    bare = [is_counted(axes) for axes in (known, given)]
    if not known or not given or (len(known) != len(given) and any(bare)):
        return Order(None, () if all(bare) else (by_position(bare[1]),))
    calls = [
        [_canonical(axis.name) for axis in axes] if len(known) + len(given) > 2 else [""] for axes in (known, given)
    ]
    if sorted(calls[0]) != sorted(calls[1]):
        here, there = (", ".join(axis.name for axis in axes) for axes in (given, known))
        raise error(f"a row of {of_given} has the dimensions ({here}), and one of {of_known} has ({there}): {remedy}")
    along = [calls[1].index(name) for name in calls[0]]
    places, said = [], list[str]()
    for axis, other in zip(known, (given[place] for place in along), strict=True):
        if len(known) > 1 and axis.size != other.size:
            here = f"{of_given} has {other.size} places along {axis.name}"
            raise error(f"{here}, and {of_known} has {axis.size}: {remedy}")
        found = _matching_places(axis, other)
        if found is None:
            mine, theirs = is_counted([axis]), is_counted([other])
            said += [] if mine and theirs else [by_position(theirs)]
            found = np.arange(axis.size)
        elif (found < 0).any():
            raise error(f"{_differing(axis, other, found, of_given, of_known)}: {remedy}")
        elif len(np.unique(found)) < len(found):
            twice = _value_text(axis.places[np.argmax(np.bincount(found)[found] > 1)])
            raise error(
                f"the {what} of {of_given} have another order than those of {of_known}, and {axis.name} {twice} is "
                f"there twice, so that names do not put them in order: {remedy}"
            )
        places.append(found)
    sizes = [axis.size for axis in given]
    order = np.arange(prod(sizes)).reshape(sizes).transpose(along)[np.ix_(*places)].ravel()
    same = np.array_equal(order, np.arange(prod(sizes)))
    return Order(None if same else order, tuple(dict.fromkeys(said)))


def _differing(known: Axis, given: Axis, found: np.ndarray, of_given: str, of_known: str) -> str:
    lost, more = [*map(_value_text, known.places[found < 0])], np.setdiff1d(np.arange(given.size), found)
    instead = f"; it has {_value_text(given.places[more[0]])} instead" if len(more) else ""
    others = f"; it lacks {len(lost) - 1} more ({listed(lost[1:])})" if len(lost) > 1 else ""
    return f"{of_given} has no {known.name} {lost[0]}, which {of_known} has{instead}{others}"


def _value_text(value: np.generic) -> str:
    return repr(str(value)) if isinstance(value, np.str_) else str(value)


def _canonical(name: str) -> str:
    """The name of a dimension, that of latitudes and longitudes whatever they are called."""
    lower = name.lower()
    return next((known[0] for known in (LATITUDES, LONGITUDES) if lower in known), name)


def is_counted(axes: Sequence[Axis]) -> bool:
    """Say whether the places have no names: there are none, or they are the numbers of places."""
    if len(axes) != 1 or axes[0].values is None:
        return all(axis.values is None for axis in axes)
    values = axes[0].values
    return (
        axes[0].name in COUNTED
        and values.dtype.kind in "iuU"
        and bool((values.astype(np.str_) == np.arange(len(values)).astype(np.str_)).all())
    )


def _matching_places(known: Axis, given: Axis) -> np.ndarray | None:
    """Find where each known place lies among the given ones, -1 where nowhere; None: one of them has no names."""
    if known.values is None or given.values is None:
        return None
    mine, theirs = _as_comparable(known.values, given.values)
    around, off = _canonical(known.name) == LONGITUDES[0] and mine.dtype.kind in "if", 0.0
    if mine.dtype.kind == "f" or around:
        mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
        there = np.unique(mine[np.isfinite(mine)])
        off = min(ROUNDING * float(np.abs(there).max(initial=0.0)), float(np.diff(there).min(initial=np.inf)) / 4)
    if mine.shape == theirs.shape and _close(mine, theirs, off).all():
        return np.arange(len(mine))
    found = _nearest(mine, theirs, off)
    if around and (found < 0).any():  # -180 to 180 for 0 to 360
        first = mine[0] - 2 * off
        found = _nearest(np.mod(mine - first, 360.0), np.mod(theirs - first, 360.0), off)
    return None if (found < 0).any() and (is_counted([known]) or is_counted([given])) else found


def _close(mine: np.ndarray, theirs: np.ndarray, off: float) -> np.ndarray:
    return np.isclose(mine, theirs, rtol=0, atol=off, equal_nan=True) if off else np.asarray(mine == theirs)


def _nearest(mine: np.ndarray, theirs: np.ndarray, off: float) -> np.ndarray:
    """Find where each of mine lies among theirs, at most ``off`` away; -1: nowhere."""
    order = np.argsort(theirs, kind="stable")
    at = np.searchsorted(theirs, mine - off if off else mine, sorter=order).clip(max=len(theirs) - 1)
    return np.where(_close(mine, theirs[order[at]], off), order[at], -1)


def _as_comparable(mine: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as times, as numbers, or else as text."""
    kinds = {mine.dtype.kind, theirs.dtype.kind}
    times = [f"{name}64[us]" for name, kind in (("datetime", "M"), ("timedelta", "m")) if kind in kinds <= {kind, "U"}]
    whole = np.int64 if kinds <= {"i", "u"} else np.str_ if kinds == {"U"} or kinds & {"M", "m"} else np.float64
    try:
        return mine.astype(times[0] if times else whole), theirs.astype(times[0] if times else whole)
    except ValueError:
        return mine.astype(np.str_), theirs.astype(np.str_)
