"""Rows with missing values (NaN), read as rows without: columns that have no value left out, or gaps filled, with means
or, of private rows, with public numbers.

A tile with gaps is filled in a scratch tile that the next one reuses; the data are never copied as a whole. Checksums
are of what is stored. An infinity is no missing value, and is refused whatever the rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from npmdask.core.numerics.domains import one_of
from npmdask.core.storage.chunk_access import is_computed, scratch, shown
from npmdask.core.storage.conventions import DecodedArray, impute, position_where, promoted
from npmdask.core.storage.labels import Axis, Labels, axis_of
from npmdask.core.storage.readers.around import AroundDense
from npmdask.core.storage.readers.dense import DenseReader, ReadStats, Tile
from npmdask.errors import BadInputError, RefusedError

if TYPE_CHECKING:
    from npmdask.core.operators.row_gram import RowGram
    from npmdask.core.storage.source import Source

RULES = ("refuse", "drop-columns", "mean", "fill", "em", "pairwise")
REFUSE, DROP, MEAN, FILL, EM, PAIRWISE = RULES
COUNTED = (MEAN, EM, PAIRWISE)  # with a pass for means and counts of what is observed
ROUNDING = 1e-13  # of a share of weights
Marks = tuple[float, ...]


def percent(share: float) -> str:
    """Write a share."""
    return f"{100 * share:.2g} %"


def checked_marks(given: Any) -> Marks:
    """Values that mark missing ones, as numbers: one, or several; () of None. Raises BadInputError."""
    if given is None:
        return ()
    several = list(given) if isinstance(given, list | tuple | np.ndarray) else [given]
    for value in several:
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise BadInputError(f"missing_values = {given!r}: give the numbers that mark missing values, like [-9999]")
    return tuple(float(value) for value in several if not np.isnan(value))


def is_marked(values: np.ndarray, marks: Marks) -> np.ndarray:
    """Which values are one of the ``marks``: as their dtype holds it, or as float32 does, which they may come from."""
    found = np.zeros(values.shape, bool)
    for mark in marks:
        found |= values == mark
        if values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                found |= values == values.dtype.type(np.float32(mark))
    return found


def nothing_there(where: str) -> BadInputError:
    """Return the error for data without any value."""
    return BadInputError(
        f"all values of {where} with a positive weight are missing: there are no data to analyse. Check what marks "
        "missing values (NaN, _FillValue, missing_value, valid_range)"
    )


def unmarked(rows: np.ndarray, marks: Marks) -> np.ndarray:
    """Rows with NaN in place of what is one of the ``marks``; themselves where nothing is."""
    found = is_marked(rows, marks) if marks else np.zeros(0, bool)
    return np.where(found, np.nan, rows) if found.any() else rows


@dataclass(frozen=True, kw_only=True)
class GapReader(AroundDense):
    """A dense reader of rows with missing values, as operators read rows without.

    Parameters
    ----------
    inner : the reader of the stored rows (m x d), which gives missing values as NaN.
    rule : "drop-columns", "mean", "fill", or one whose operator sees gaps as NaN: "em" or "pairwise".
    kept : numbers of the columns that are read, ascending. Of "drop-columns" all others must have no value at all.
    lacking : of "mean", where columns are left out: missing values of all stored columns.
    fill : what a missing entry is read as (d), in a dtype that holds it: of "fill" given, of "mean" None until a survey
        knows it, and until then gaps are read as NaN.
    observed : of what is counted: the share of the (weight of the) rows that have a value in each column (d).
    axes : what the columns of ``inner`` are called, for errors.
    marks : values that mark missing ones, beside NaN.
    held : of "drop-columns": whether the columns that are left out are held to having no value.
    checksums : as of :class:`DenseReader`.
    """

    rule: str
    kept: np.ndarray | None = None
    lacking: np.ndarray | None = None
    fill: np.ndarray | None = None
    observed: np.ndarray | None = None
    axes: tuple[Axis, ...] = ()
    marks: Marks = ()
    held: bool = True

    @property
    def row_gram(self) -> type[RowGram]:
        """The operator that forms ``A A^T`` of these rows: until it is known what fills gaps, one that finds it."""
        from npmdask.core.operators.row_gram import RowGram
        from npmdask.missing.row_gram import IncompleteRowGram  # which most runs do not need

        return IncompleteRowGram if self.counts_gaps else RowGram

    @cached_property
    def _gone(self) -> np.ndarray:
        """Which stored columns are left out."""
        gone = np.ones(self.inner.shape[1], bool)
        gone[self.kept] = False
        return gone

    @property
    def counts_gaps(self) -> bool:
        """Say whether a pass counts what is observed."""
        return self.rule in COUNTED

    @property
    def stated(self) -> str:
        """The end of the error statement of an answer whose gaps were filled: what it is about."""
        share = 0.0 if self.observed is None else float(np.mean(1 - self.observed))
        if share < ROUNDING:  # nothing, or in rows that weigh nothing
            return ""
        if self.rule == PAIRWISE:
            return (
                " This is the error for the positive semidefinite matrix nearest to the covariances of pairs of "
                f"columns ({percent(share)} of the values are missing); the error against complete data is not known."
            )
        return (
            f" This is the error for data with missing values ({percent(share)}) replaced by column means; the error "
            "against complete data is not known."
        )

    def held_to(self, digests: Any) -> GapReader:
        """The same reader, every chunk compared with its SHA-256 as it is read."""
        return replace(self, inner=self.inner.held_to(digests))

    @property
    def dtype(self) -> np.dtype:
        """That of the data, or of floats that hold them where marked ones become NaN, and what gaps are filled with."""
        own = promoted(self.inner.dtype) if self.marks else self.inner.dtype
        return own if self.fill is None else np.promote_types(own, self.fill.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and columns that are read."""
        rows, columns = self.inner.shape
        return (rows, columns if self.kept is None else len(self.kept))

    @property
    def buffer_bytes(self) -> int:
        """Memory that reading a slab takes: that of what is stored, a filled tile and where its gaps are."""
        tile = self.inner.tile_rows * self.inner.shape[1]
        copies = 1 + bool(self.marks) + (self.rule == MEAN and self.kept is not None)
        return self.inner.buffer_bytes + tile * (self.dtype.itemsize * copies + 1)

    @property
    def chunk_bytes(self) -> int:
        """Memory of a chunk, as it is stored, with what is made of it and its gaps."""
        copies = bool(self.marks) + (self.kept is not None) + (self.rule == MEAN)
        return self.inner.chunk_bytes + math.prod(self.inner.whole) * (self.dtype.itemsize * copies + 2)

    def part_columns(self, unit: int, parts: int) -> slice:
        """The columns of a unit, as they are numbered here."""
        return self._numbered(self.inner.part_columns(unit, parts))

    def column_chunks(self, unit: int, parts: int, record: ReadStats) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield rows, as :meth:`DenseReader.column_chunks`; NaN where nothing is known to fill gaps."""
        columns = self.inner.part_columns(unit, parts)
        for rows, stored in self._stored.column_chunks(unit, parts, record):
            yield rows, self._filled(rows, columns, self._marks_to_nan(columns, stored, "column"), "column")[1]

    def slab_columns(self, column: int) -> slice:
        """The columns of a column of chunks, as they are numbered here."""
        return self._numbered(self.inner.slab_columns(column))

    def _numbered(self, columns: slice) -> slice:
        if self.kept is None:
            return columns
        first, last = np.searchsorted(self.kept, [columns.start, columns.stop])
        return slice(int(first), int(last))

    def tiles(self, slab: int, record: ReadStats) -> Iterator[tuple[slice, Tile]]:
        """Yield (rows of the array, tile), as :meth:`DenseReader.tiles`."""
        for rows, tile in self._stored.tiles(slab, record):
            yield rows, [self._filled(rows, columns, self._marks_to_nan(columns, values)) for columns, values in tile]

    def _marks_to_nan(self, columns: slice, values: np.ndarray, slot: Any = None) -> np.ndarray:
        """The values, NaN where they are marked as missing; a copy is in memory that the next ones in ``slot`` reuse,
        by default those of the same columns.
        """
        if not self.marks:
            return values
        where = is_marked(values, self.marks)
        if not where.any() and values.dtype == self.dtype:
            return values
        out = self._scratch(("without marks", slot or columns.start), values, values.shape[1], self.dtype)
        np.copyto(out, values)
        out[where] = np.nan
        return out

    def _filled(self, rows: slice, columns: slice, values: np.ndarray, slot: Any = None) -> tuple[slice, np.ndarray]:
        here = self._numbered(columns)
        if self.kept is not None:
            # Later passes read the same chunks; whether one is the first is not known of data with recorded checksums.
            if self.rule == DROP and self.held and (self.checksums is None or self.inner.checksums is not None):
                self._require_empty(rows, columns, values)
            if here.stop - here.start != values.shape[1]:
                width = here.stop - here.start  # in its own dtype: `take` casts nothing
                out = self._scratch(("kept", slot or columns.start), values, width, values.dtype)
                np.take(values, self.kept[here] - columns.start, axis=1, out=out, mode="clip")  # others buffer `out`
                values = out
        if self.fill is None:
            return here, values
        gaps = np.isnan(values)
        if not gaps.any() and values.dtype == self.dtype:
            return here, values
        out = self._scratch(("without gaps", slot or columns.start), values, values.shape[1], self.dtype)
        np.copyto(out, values)
        np.copyto(out, np.broadcast_to(self.fill[here], out.shape), where=gaps)
        return here, out

    def _scratch(self, name: Any, values: np.ndarray, width: int, dtype: np.dtype) -> np.ndarray:
        return scratch(name, (max(self.inner.tile_rows, len(values)), width), dtype)[: len(values)]

    def _require_empty(self, rows: slice, columns: slice, values: np.ndarray) -> None:
        """Hold the columns that are left out to having no value."""
        gone = self._gone[columns]
        if not gone.any():
            return
        found = np.argwhere(~np.isnan(values) & gone)
        if len(found):
            row, column = rows.start + int(found[0, 0]), columns.start + int(found[0, 1])
            raise BadInputError(
                f"{self._column(column)} of {shown(self.inner.where)} has no value in the first row but has one in row "
                f"{row}, and missing = {DROP!r} leaves out only columns without any value. Use missing = {MEAN!r} "
                "(--missing mean), fill its gaps, or leave the column out yourself"
            )

    def non_finite(self, unit: int) -> BadInputError | None:
        """Return the error for the first value of a unit that is not allowed: an infinity, or a gap in a column."""
        looked = _not_finite if self.rule == DROP else np.isinf
        position = position_where(self.tiles(unit, ReadStats()), looked)
        if position is None:
            return None
        if not position.startswith("nan"):
            return impute(self.inner.where, position)
        assert self.kept is not None
        column = int(self.kept[int(position.rpartition(" ")[2])])
        count, rows = self._gaps_of(column, unit)
        return BadInputError(
            f"{self._column(column)} of {shown(self.inner.where)} has values and lacks {count} of the {rows} that were "
            f"looked at ({100 * count / rows:.2g} %): missing = {DROP!r} leaves out only columns without any value. "
            f"Use missing = {MEAN!r} (--missing mean), fill its gaps, or leave the column out yourself"
        )

    def _gaps_of(self, column: int, unit: int) -> tuple[int, int]:
        """Missing entries of a column, and entries looked at: of all rows, where looking costs no computation."""
        units = [unit] if is_computed(self.inner) else range(self.inner.units)
        count = seen = 0
        for each in units:
            for _, tile in self.inner.tiles(each, ReadStats()):
                for columns, stored in tile:
                    if columns.start <= column < columns.stop:
                        values = self._marks_to_nan(columns, stored)
                        count += int(np.isnan(values[:, column - columns.start]).sum())
                        seen += len(values)
        return count, seen

    def _column(self, column: int) -> str:
        named = [axis for axis in self.axes if axis.values is not None]
        if not named or len(named) < len(self.axes):
            return f"column {column}"
        places = np.unravel_index(column, [axis.size for axis in named])
        return f"column {column} ({', '.join(f'{a.name} {a.places[i]}' for a, i in zip(named, places, strict=True))})"


def held_fill(fill: np.ndarray, reader: GapReader) -> np.ndarray:
    """Return the values that fill gaps in the dtype of the data if it holds them exactly, else in float64."""
    own = fill.astype(reader.dtype)
    return own if (own == fill).all() else fill


def _not_finite(values: np.ndarray) -> np.ndarray:
    return ~np.isfinite(values)


def as_nan(reader: Any) -> Any:
    """The same reader, of which an array with conventions gives its missing values as NaN."""
    array = getattr(reader, "array", None)
    return replace(reader, array=replace(array, gaps="nan")) if isinstance(array, DecodedArray) else reader


def columns_with_values(reader: DenseReader | GapReader) -> np.ndarray:
    """Numbers of the columns that have a value in the first row: the only ones that can be without a gap."""
    _, tile = next(iter(reader.tiles(0, ReadStats())))
    first = np.concatenate([values[0] for _, values in tile])
    return np.flatnonzero(~np.isnan(first))


def lacking_values(reader: GapReader) -> np.ndarray:
    """Count the values that each column lacks (d): one pass over the data."""
    counts = np.zeros(reader.shape[1], np.int64)
    for unit in range(reader.units):
        for _, tile in reader.tiles(unit, ReadStats()):
            for columns, values in tile:
                counts[columns] += np.isnan(values).sum(axis=0)
    return counts


def with_missing(
    source: Source,
    rule: str,
    fill: float | np.ndarray | None = None,
    marks: Marks = (),
    limit: float | None = None,
) -> Source:
    """The same source, its missing values treated as ``rule`` says: "refuse", "drop-columns", "mean" or "fill".

    Columns are left out where the first row has no value; passes hold them to having none at all. What was ingested
    has no missing values, unless they were kept, and integers have none: they are returned as they are, unless there
    are ``marks``: values that mark missing ones. ``fill``: of "fill" what a gap is read as, one number or one for every
    column (d). ``limit``: of "mean" columns that lack more than this share of their values are left out, which a pass
    over the data finds, once in this process.

    Raises
    ------
    BadInputError
        Another rule, no column has a value in the first row, or what gaps are filled with does not fit the data.
    RefusedError
        Data that are not rows of a dense array.
    """
    one_of(RULES, missing=rule)
    reader = source.reader
    if rule == REFUSE or isinstance(reader, GapReader):
        return source
    if source.parts == 2:
        raise RefusedError(
            f"missing = {rule!r} needs real numbers, but {source.path} holds {source.dtype}: leave it out, and fill "
            "in missing values first"
        )
    if source.kind not in ("samples", "matrix") or not isinstance(reader, DenseReader):
        what, fix = f"of kind {source.kind}", "leave it out, and fill missing values in before"
        if reader.layout == "gram":
            what = "a stored Gram, which has no missing values"
        if reader.layout == "csr":
            what = "sparse, whose entries that are not stored are zeros"
            fix = "leave it out; or, where they mean missing, give rows with NaN there (docs/howto/missing.md: ratings)"
        raise RefusedError(f"missing = {rule!r} needs samples or a dense matrix, but {source.path} is {what}: {fix}")
    if not marks and ((source.registered and not source.gaps) or reader.dtype.kind != "f"):
        return source
    reader, axes = as_nan(reader), () if source.labels is None else source.labels.columns
    known: dict[str, Any] = {"axes": axes, "checksums": reader.checksums, "marks": marks}
    if rule == FILL:
        assert fill is not None
        return replace(source, reader=GapReader(inner=reader, rule=rule, fill=_filling(fill, reader), **known))
    if rule != DROP and limit is None:
        return replace(source, reader=GapReader(inner=reader, rule=rule, **known))
    if limit is not None:
        counts = _missing_counts(source, GapReader(inner=reader, rule=rule, **known))
        kept, known["lacking"] = np.flatnonzero(counts <= limit * reader.shape[0]), counts
    else:
        kept = columns_with_values(GapReader(inner=reader, rule=rule, marks=marks))
    if not len(kept):
        why = "a value in the first row" if limit is None else f"as many values as missing_limit = {limit:g} asks for"
        raise BadInputError(f"no column of {reader.where} has {why}: there are no data to analyse")
    source = replace(source, reader=GapReader(inner=reader, rule=rule, kept=kept, **known))
    if len(kept) == reader.shape[1]:
        return source
    names = axes[0].values if len(axes) == 1 else None
    called = Axis(axes[0].name, len(kept), names[kept]) if names is not None else axis_of("column", kept)
    grid = axes if len(axes) > 1 else ()
    known_labels = source.labels or Labels()
    points = tuple(axis_of(axis.name, axis.places[kept]) for axis in known_labels.points)
    return replace(source, labels=Labels(known_labels.rows, (called,), grid, points))


_COUNTED: dict[Any, np.ndarray] = {}  # of the sources looked at last: a run is planned before it is begun


def _missing_counts(source: Source, reader: GapReader) -> np.ndarray:
    """Count the values that each column lacks (d), once for each source."""
    key = (source.fingerprint, reader.shape, reader.marks)
    if key not in _COUNTED:
        while len(_COUNTED) >= 8:
            _COUNTED.pop(next(iter(_COUNTED)))
        _COUNTED[key] = lacking_values(reader)
    return _COUNTED[key]


def _filling(fill: float | np.ndarray, reader: DenseReader) -> np.ndarray:
    """Return the values that replace gaps (d), in the data's dtype; raises BadInputError where they do not fit."""
    columns, dtype = reader.shape[1], reader.dtype
    values = np.asarray(fill, np.float64)
    if values.ndim and values.shape != (columns,):
        raise BadInputError(
            f"missing_fill has shape {values.shape}, but {reader.where} has {columns} columns: give one number, or "
            "one for each column"
        )
    with np.errstate(over="ignore"):
        held = np.broadcast_to(values, (columns,)).astype(dtype)
    if not np.isfinite(held).all():
        raise BadInputError(
            f"missing_fill holds {values.flat[int(np.argmax(np.abs(values)))]:g}, which {dtype} does not have: give "
            "numbers of the size of the data"
        )
    return held
