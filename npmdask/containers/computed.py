"""Rows that another program gives: computed, or fetched from where npmdask has no reader for.

Such a program (:class:`Rows`) is registered under the scheme of its URLs
(:func:`npmdask.register_source`) and is then a source like any other. Nothing that it says is
believed: every tile is looked at, its rows are counted, and its checksums, taken in the first pass, must be the same in
every later one, also after a kill.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from npmdask.core.storage.checksum import fingerprint
from npmdask.core.storage.chunk_access import Access, scratch, shown
from npmdask.core.storage.conventions import said_of_gaps
from npmdask.core.storage.readers.dense import DenseReader, Tile
from npmdask.core.storage.source import Asked, Source, consistent
from npmdask.errors import BadInputError, NpmdaskError, require

REAL = "iufb"  # kinds of dtypes
COMPUTED = Access("computed", "computed: rows come from a program or a graph when they are asked for")


class Rows(Protocol):
    """A matrix that gives its rows a *unit* at a time; picklable and small, as every worker process has a copy.

    Attributes
    ----------
    shape : rows and columns.
    dtype : of all values; real numbers.
    unit_rows : rows of a unit; the last one has what is left. A pass is cut between units, and a kill costs some of
        them: 4 to 32 MiB are good.
    identity : what the data are, as text that changes whenever they do: a version, a digest, all that they are
        computed from. A run that was interrupted goes on with data of the same identity only.
    needs : bytes of memory that giving a unit takes at most, its rows included; of the memory plan.
    """

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> np.dtype: ...
    @property
    def unit_rows(self) -> int: ...
    @property
    def identity(self) -> str: ...
    @property
    def needs(self) -> int: ...

    def tiles(self, unit: int) -> Iterable[np.ndarray]:
        """The rows of a unit from its first to its last, any number at a time; a tile is used up before the next."""
        ...


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the most memory allocated since then, as far as Python knows of it."""
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start(1)
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()


@dataclass(frozen=True, kw_only=True)
class RowsReader(DenseReader):
    """Rows of a program as operators read stored ones: a unit is a slab of one chunk.

    ``place`` is the URL. Tiles are cut here, whatever the program gives at once: sums are formed in the same order.
    """

    place: str
    remedy: str = "correct the program that is registered for it"
    array: Any  # Rows, as they were when they were opened: see ``open_rows``; or blocks (``lazy.BlockRows``)

    @property
    def whole(self) -> tuple[int, int]:
        return (int(self.array.unit_rows), self.shape[1])

    @property
    def access(self) -> Access:
        return COMPUTED

    @property
    def buffer_bytes(self) -> int:
        return self.tile_rows * self.shape[1] * self.dtype.itemsize + int(self.array.needs)

    @property
    def where(self) -> str:
        return self.place

    def chunk_name(self, slab: int, column: int) -> str:
        return f"unit {slab}"

    def bad_value(self, position: str) -> BadInputError:
        said = f" ({said_of_gaps(self, position)})" if position.startswith("nan") else ""
        return BadInputError(
            f"{shown(self.place)} holds {position}: remove or impute the non-finite values where they come from{said}"
        )

    def decode(self, slab: int, column: int, slot: int = 0) -> np.ndarray:
        """The rows of a unit, in memory that the next one in the same ``slot`` reuses."""
        rows, at = self.slab_rows(slab), 0
        block = scratch(("unit", slot), self.chunks, self.dtype)[: rows.stop - rows.start]
        for values in self._checked_arrays(slab):
            block[at : at + len(values)] = values
            at += len(values)
        return block

    def _decoded_tiles(self, slab: int) -> Iterator[tuple[slice, Tile]]:
        rows, columns, held = self.slab_rows(slab), slice(0, self.shape[1]), 0
        buffer, start = scratch("given rows", (self.tile_rows, self.shape[1]), self.dtype), rows.start
        for values in self._checked_arrays(slab):
            taken = 0
            while taken < len(values):
                some = values[taken : taken + self.tile_rows - held]
                buffer[held : held + len(some)] = some
                held, taken = held + len(some), taken + len(some)
                if held == self.tile_rows:
                    yield slice(start, start + held), [(columns, buffer)]
                    start, held = start + held, 0
        if held:
            yield slice(start, start + held), [(columns, buffer[:held])]

    def _checked_arrays(self, unit: int) -> Iterator[np.ndarray]:
        """Yield the arrays of a unit that the program gives, each checked: exactly as many rows as the unit has.

        Raises
        ------
        BadInputError
            An array of another shape or dtype, masked values, other rows than promised; or the program fails.
        """
        rows, given = self.slab_rows(unit), 0
        wanted, known = rows.stop - rows.start, self.checksums is not None
        tiles = iter(self._call_program(lambda: iter(self.array.tiles(unit, known)), unit))
        while (values := self._call_program(lambda: next(tiles, None), unit)) is not None:
            if isinstance(values, np.ma.MaskedArray):
                raise self._failure(unit, "gives masked values, and missing values cannot be analysed: fill them in")
            if not isinstance(values, np.ndarray) or values.ndim != 2 or values.shape[1] != self.shape[1]:
                shape = getattr(values, "shape", type(values).__name__)
                raise self._failure(unit, f"gives {shape} where arrays of some rows x {self.shape[1]} columns belong")
            if values.dtype != self.dtype:
                raise self._failure(unit, f"gives values of type {values.dtype}, and said that they are {self.dtype}")
            given += len(values)
            if given > wanted:
                raise self._failure(unit, f"gives {given} rows or more, and the unit has {wanted}")
            yield values
        if given != wanted:
            raise self._failure(unit, f"gives {given} rows, and the unit has {wanted}")

    def _call_program(self, ask: Any, unit: int) -> Any:
        try:
            return ask()
        except NpmdaskError:
            raise
        except Exception as error:  # whatever a program raises
            raise self._failure(unit, f"fails ({type(error).__name__}: {error})") from error

    def _failure(self, unit: int, what: str) -> BadInputError:
        rows = self.slab_rows(unit)
        return BadInputError(
            f"{self.place}, unit {unit} (rows {rows.start} to {rows.stop - 1}): the source {what}; {self.remedy}"
        )

    def _verify(self, slab: int, column: int, found: Any) -> None:
        if self.checksums is not None and int(self.checksums[slab, column]) != found.crc:
            raise BadInputError(
                f"unit {slab} of {self.place} (rows {self.slab_rows(slab).start} to {self.slab_rows(slab).stop - 1}) "
                "has changed: its checksum is not that of the first pass, although the source reports the same "
                "identity; start again in a new store, with data that do not change"
            )


@dataclass(frozen=True)
class _OpenedRows:
    """Rows as they described themselves when they were opened, and how they are read: later changes do not count."""

    rows: Rows
    shape: tuple[int, int]
    dtype: np.dtype
    unit_rows: int
    needs: int

    def tiles(self, unit: int, known: bool) -> Iterable[np.ndarray]:
        return self.rows.tiles(unit)


def open_rows(rows: Any, place: str) -> tuple[RowsReader, str]:
    """The reader of ``rows``, what they say of themselves checked, and their fingerprint.

    Raises
    ------
    BadInputError
        Something is missing or makes no sense.
    """
    missing = [n for n in ("shape", "dtype", "unit_rows", "identity", "needs", "tiles") if not hasattr(rows, n)]
    require(not missing, f"the source of {place} has no {', '.join(missing)}: see npmdask.containers.computed.Rows")
    try:
        shape, dtype = tuple(int(n) for n in rows.shape), np.dtype(rows.dtype)
        unit_rows, needs = int(rows.unit_rows), int(rows.needs)
    except (TypeError, ValueError) as error:
        raise BadInputError(f"the source of {place} describes itself wrongly: {error}") from error
    if len(shape) != 2 or min(shape) < 1:
        raise BadInputError(f"{place} has shape {shape}: rows and columns are needed, at least one of each")
    require(dtype.kind in REAL, f"{place} holds {dtype}; real numbers are needed")
    if unit_rows < 1 or needs < 0:
        raise BadInputError(
            f"the source of {place} has unit_rows = {unit_rows} and needs = {needs}: give 1 or more, 0 or more"
        )
    identity = rows.identity
    if not isinstance(identity, str) or not identity:
        raise BadInputError(
            f"the source of {place} has identity = {identity!r}: give text that changes whenever the data change, so "
            "that a resume can check that they are the same"
        )
    facts = {"shape": shape, "dtype": dtype.str, "unit_rows": unit_rows, "identity": identity, "source": "rows"}
    held = _OpenedRows(rows, (shape[0], shape[1]), dtype, unit_rows, needs)
    return RowsReader(array=held, place=place), fingerprint(facts, [])


def open_given(url: str, opener: Callable[[str], Any], asked: Asked) -> Source:
    """Open what a registered opener makes of a URL."""
    try:
        rows = opener(url)
    except NpmdaskError:
        raise
    except Exception as error:  # whatever a program raises
        raise BadInputError(
            f"{url} cannot be opened by its registered source ({type(error).__name__}: {error})"
        ) from error
    reader, printed = open_rows(rows, url)
    return consistent(
        Source(path=url, kind=asked.kind or "matrix", reader=reader, fingerprint=printed, registered=False)
    )
