"""Two aspects: rows that do not count, and entries that are limited."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from npmdask.core.aspects import Aspect, Extent, Reading
from npmdask.core.operators.view import View
from npmdask.core.storage.readers.around import AroundDense
from npmdask.core.storage.readers.dense import DenseReader, ReadStats, Tile
from npmdask.errors import BadInputError


@dataclass(frozen=True, kw_only=True)
class RowLimit(Aspect):
    """Only the first rows count."""

    place: ClassVar[str] = "row_limit"
    noun: ClassVar[str] = "a limit of rows"

    first: int

    def source(self, source: Any, request: Any) -> Any:
        if source.kind not in ("samples", "matrix", "sparse") or not 1 <= self.first <= source.shape[0]:
            raise BadInputError(f"row_limit.first = {self.first} of {source.path}: give 1 to {source.shape[0]}")
        return source

    def view(self, view: View, extent: Extent) -> View:
        return view.weighing((np.arange(extent.rows) < self.first).astype(float), None)

    def spec(self) -> dict[str, dict[str, Any]]:
        return {self.place: {"first": self.first}}

    @classmethod
    def restored(cls, spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        return cls(**spec[cls.place])

    def options(self, side: str = "") -> list[str]:
        return [] if side == "columns" else [self.place]

    def said(self) -> tuple[str, str]:
        return "Rows", f"The first {self.first} rows count, and no others."


@dataclass(frozen=True, kw_only=True)
class ClippedRows(AroundDense):
    """Rows whose entries are limited as they pass."""

    low: float
    high: float

    @property
    def dtype(self) -> np.dtype:
        return np.promote_types(self.inner.dtype, np.float32)

    @property
    def buffer_bytes(self) -> int:
        return self.inner.buffer_bytes + self.inner.tile_rows * self.inner.shape[1] * self.dtype.itemsize

    def held_to(self, digests: Any) -> Self:
        return replace(self, inner=self.inner.held_to(digests))

    def tiles(self, slab: int, record: ReadStats) -> Iterator[tuple[slice, Tile]]:
        for rows, tile in self._stored.tiles(slab, record):
            yield rows, [(where, np.clip(values, self.low, self.high, dtype=self.dtype)) for where, values in tile]


@dataclass(frozen=True, kw_only=True)
class Clip(Reading):
    """Entries below ``low`` count as it, those above ``high`` as that (Winsor)."""

    place: ClassVar[str] = "clip"
    noun: ClassVar[str] = "a limit of entries"

    low: float
    high: float

    def source(self, source: Any, request: Any) -> Any:
        if isinstance(source.reader, ClippedRows):
            return source
        if source.kind not in ("samples", "matrix") or not isinstance(source.reader, DenseReader):
            raise BadInputError(f"clip is for dense rows, and {source.path} is of kind {source.kind}: leave it out")
        reader = ClippedRows(inner=source.reader, checksums=source.reader.checksums, low=self.low, high=self.high)
        return replace(source, reader=reader)

    @staticmethod
    def scored(opened: Any, found: Any, how: str) -> Any:
        return found.reading.source(opened, None)

    def spec(self) -> dict[str, dict[str, Any]]:
        return {self.place: {"low": self.low, "high": self.high}}

    @classmethod
    def restored(cls, spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        return cls(**spec[cls.place])

    def said(self) -> tuple[str, str]:
        return "Entries", f"Entries are limited to {self.low:g} to {self.high:g}, also of rows that are scored."
