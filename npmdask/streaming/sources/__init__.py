"""Streams: batches of rows from a store, a growing directory, an iterator or standard input, each row exactly once.

A stream is rows in a fixed order, and a position that finds the next one again.

A position is a dictionary of public numbers and names that JSON can hold: a checkpoint keeps it beside the state
of the algorithm, and a new stream of the same source, sought to it, gives the same rows from there on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from scipy.sparse import issparse

from npmdask.core.storage.labels import Axis
from npmdask.errors import BadInputError, RefusedError, closest
from npmdask.missing.gaps import Marks, is_marked

if TYPE_CHECKING:
    from npmdask.core.storage.names import Order

Position = dict[str, Any]
NON_FINITE = ("refuse", "skip")
# Rows with missing values: not finite; given as they are; given if they have one.
GAPS = ("refuse", "give", "give-some")


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
                f"the position was taken with {key} = {then}, but {source} has {now} and would give other rows: open "
                f"the stream with {key} = {then}, or start again"
            )


def require_count(value: Any, name: str) -> int:
    """``value``, if it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise BadInputError(f"{name} is {value!r}: pass a whole number of at least 1")
    return int(value)


# Batches of any size out of pieces of any size: filled, held to the policy on non-finite rows, or taken back whole.
#
# What a stream has to know is where its next piece is. A read that fails for whatever reason (a corrupt chunk, a
# row that is not finite, Ctrl-C) puts the cursor back, so that no row is lost with it.


class RowBlock(NamedTuple):
    """Rows that follow each other in the stream: an array or a CSR matrix, what row i is called in a sentence, and how
    much each counts, and what was asked to be kept beside it.

    The memory of ``values`` need not outlive the next piece.
    """

    values: Any
    name: Callable[[int], str]
    weights: np.ndarray | None = None
    keys: Any = None  # an Arrow table of as many rows


class BatchedStream(ABC):
    """The loop over pieces that all streams share. ``_cursor`` is immutable and all that a read moves."""

    _cursor: Any
    weights: np.ndarray | None = None  # of the rows that were read last, where rows are weighted
    keys: Any = None  # the same: their columns ``keep``, in Arrow tables one below the other
    marks: Marks = ()  # numbers that mark missing values, which are given as NaN
    header: tuple[str, ...] | None = None  # the line of text that was taken for names; of several files, of the first
    axes: tuple[Axis, ...] = ()  # what the columns are called; of several files, in the first
    notes: tuple[str, ...] = ()  # what was decided of names, in sentences
    _compare: Callable[[Sequence[Axis], str], Order] | None = None

    def __init__(self, columns: int, non_finite: str, gaps: str = "refuse") -> None:
        """``gaps``: what is done with missing values (NaN). Where rows with some are given, the policy is for those
        with infinities; rows without any value are given, too ("give"), or skipped and counted ("give-some").
        """
        if non_finite not in NON_FINITE:
            raise BadInputError(f"unknown non_finite={non_finite!r}: {closest(str(non_finite), list(NON_FINITE))}")
        self._columns, self._non_finite, self._gaps = columns, non_finite, gaps
        self._rows_read = self._skipped = 0

    @property
    def columns(self) -> int:
        """Width of a row, d."""
        return self._columns

    def follow(self, compare: Callable[[Sequence[Axis], str], Order]) -> None:
        """Give columns in the order that ``compare`` finds among those of every part of the stream; without it, in that
        of the first part.
        """
        self._compare = compare

    def _column_places(self, axes: Sequence[Axis], where: str) -> np.ndarray | None:
        """Find the columns of the stream among those of a part of it; None: they are the same."""
        from npmdask.core.storage.names import matched

        if self._compare is None:
            self.axes = tuple(axes)
            self._compare = partial(matched, self.axes, of_known=where)
        places, said = self._compare(axes, where)
        self.notes = self.notes or said
        return places

    @property
    def rows_read(self) -> int:
        """Rows given since the beginning of the stream."""
        return self._rows_read

    @property
    def skipped(self) -> int:
        """Rows left out since the beginning of the stream because they were not finite."""
        return self._skipped

    def read(self, rows: int) -> np.ndarray | None:
        """The next ``rows`` rows (rows x d, float64, C order), fewer at an end, None where there are none.

        Raises
        ------
        BadInputError
            Rows that are not numbers, not finite or of another width, unreadable data: the position stays.
        """
        rows, before = require_count(rows, "rows"), self._cursor
        try:
            self._before_read()
            self.keys = []
            batch, skipped, weights = self._assemble(rows)
            self._after_read()
        except BaseException:
            self._restore(before)
            raise
        if len(batch) < rows and self._defers_partial_batch():
            self._restore(before)
            return None
        self._rows_read, self._skipped = self._rows_read + len(batch), self._skipped + skipped
        self.weights = weights
        return batch if len(batch) else None

    def _assemble(self, rows: int) -> tuple[np.ndarray, int, np.ndarray | None]:
        batch, weights = _empty_batch(rows, self._columns), list[np.ndarray]()
        filled = skipped = 0
        while filled < rows and (piece := self._take(rows - filled)) is not None:
            part = batch[filled : filled + piece.values.shape[0]]
            _fill(part, piece.values)
            if self.marks:
                part[is_marked(part, self.marks)] = np.nan
            self._after_piece(part)
            good = None if _all_finite(part) else self._usable_rows(part, piece)
            if piece.weights is not None:
                good = (piece.weights > 0) & (True if good is None else good)
                weights.append(piece.weights[good])
            if piece.keys is not None:
                self.keys.append(piece.keys if good is None else piece.keys.filter(good))
            kept = len(part) if good is None else _compact_rows(part, good)
            filled, skipped = filled + kept, skipped + len(part) - kept
        whole = np.concatenate(weights) if weights else None
        if filled < rows // 2:
            return batch[:filled].copy(), skipped, whole  # a few rows must not hold the memory of many
        return batch[:filled], skipped, whole

    def _usable_rows(self, part: np.ndarray, piece: RowBlock) -> np.ndarray:
        """Which rows of ``part`` are given."""
        good = np.isfinite(part).all(axis=1) if self._gaps == "refuse" else ~np.isinf(part).any(axis=1)
        if self._non_finite == "refuse" and not good.all():
            held = "NaN or infinity" if self._gaps == "refuse" else "infinity"
            raise BadInputError(
                f"{piece.name(int(np.argmin(good)))} holds {held}; correct it, or leave such rows out "
                "and count them with non_finite='skip'"
            )
        if self._gaps == "give-some":
            good &= ~np.isnan(part).all(axis=1)
        return np.asarray(good)

    @abstractmethod
    def _take(self, limit: int) -> RowBlock | None:
        """The next piece of at most ``limit`` rows, the cursor moved behind it; None at an end."""

    def _before_read(self) -> None:  # noqa: B027
        """Before a read."""

    def _after_piece(self, part: np.ndarray) -> None:  # noqa: B027
        """After the rows of a piece were copied, those that are not finite among them."""

    def _after_read(self) -> None:  # noqa: B027
        """After the rows of a read were copied; may still raise."""

    def _defers_partial_batch(self) -> bool:
        """Say whether a batch that is not full is left for later."""
        return False

    def _restore(self, cursor: Any) -> None:
        self._cursor = cursor


def _compact_rows(part: np.ndarray, good: np.ndarray) -> int:
    """Move the rows that are ``good`` to the top of ``part``, and say how many they are."""
    kept = int(good.sum())
    part[:kept] = part[good]
    return kept


def _empty_batch(rows: int, columns: int) -> np.ndarray:
    try:
        return np.empty((rows, columns))
    except (MemoryError, ValueError) as error:
        raise BadInputError(
            f"a batch of {rows} rows of {columns} numbers does not fit into memory: read fewer rows at once"
        ) from error


def dense(values: Any) -> np.ndarray:
    """Rows as a batch holds them, in memory of their own."""
    rows = _empty_batch(*values.shape)
    _fill(rows, values)
    return rows


def _fill(part: np.ndarray, values: Any) -> None:
    if issparse(values):
        values.astype(np.float64, copy=False).toarray(out=part)
    else:
        part[...] = values


def _all_finite(part: np.ndarray) -> bool:
    """One pass without a second array: NaN and infinity survive in a sum, and only an overflow needs a second look."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(part.sum())) or bool(np.isfinite(part).all())
