"""What every stream is: rows in an order that does not change, and a position that finds the next one again.

A position is a dictionary of public numbers and names that JSON can hold: a checkpoint keeps it beside the state
of the algorithm, and a new stream of the same source, sought to it, gives the same rows from there on.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from npmdask.errors import BadInputError, RefusedError, closest

Position = dict[str, Any]
NON_FINITE = ("refuse", "skip")


class Stream(Protocol):
    """A source of batches of rows.

    ``columns`` is d. ``rows_read`` counts the rows given so far and ``skipped`` those left out because they were
    not finite; both come back with ``seek``. ``fingerprint`` is of everything that must be the same where a
    position is to be used again, apart from what the position itself holds. The policy on such rows is not part of
    it: one that was refused can be skipped from there on, as if that had been said from the beginning.
    """

    @property
    def columns(self) -> int: ...
    @property
    def rows_read(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def position(self) -> Position: ...
    @property
    def fingerprint(self) -> str: ...

    def read(self, rows: int) -> np.ndarray | None:
        """The next ``rows`` rows (rows x d, float64, C order), fewer at an end, None where there are none.

        A read that raises leaves the position where it was.
        """
        ...

    def seek(self, position: Position) -> None:
        """Go to a ``position`` that this or another stream of the same source once had."""
        ...


def count_of(position: Any, key: str) -> int:
    """The count called ``key`` in a position that may come from anywhere."""
    value = position.get(key) if isinstance(position, dict) else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadInputError(
            f"the position of the stream is damaged: {key} is {value!r} and not a count; use the `position` of a "
            "stream or of a checkpoint as it was given"
        )
    return value


def require_same(position: Position, facts: dict[str, int], source: str) -> None:
    """Raise unless ``position`` was taken where ``facts`` (numbers by their names) were what they are now."""
    for key, now in facts.items():
        then = count_of(position, key)
        if then != now:
            raise RefusedError(
                f"the position was taken with {key} = {then} and {source} has {now}: it would find other rows; open "
                f"the stream with {key} = {then}, or start anew"
            )


def require_policy(non_finite: str) -> str:
    """``non_finite``, if it is one of ``NON_FINITE``."""
    if non_finite not in NON_FINITE:
        raise BadInputError(f"unknown non_finite={non_finite!r}: {closest(str(non_finite), list(NON_FINITE))}")
    return non_finite


def require_count(value: Any, name: str) -> int:
    """``value``, if it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise BadInputError(f"{name} is {value!r}: pass a whole number of at least 1")
    return int(value)
