"""A route: components of the directions of rows, whatever their lengths (spherical PCA, Locantore et al. 1999)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from npmdask.core.aspects import Reading
from npmdask.core.operators import Gram, View
from npmdask.core.runs.plain_release import PlainRelease
from npmdask.core.runs.plain_route import PlainRoute
from npmdask.core.runs.problem import Problem, Request
from npmdask.core.storage.readers.around import AroundDense
from npmdask.core.storage.readers.dense import DenseReader, ReadStats, Tile
from npmdask.errors import BadInputError


@dataclass(frozen=True, kw_only=True)
class Directions(AroundDense):
    """Rows less ``shift``, divided by their lengths."""

    shift: np.ndarray

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float64)

    @property
    def buffer_bytes(self) -> int:
        return self.inner.buffer_bytes + self.inner.tile_rows * self.inner.shape[1] * 16

    def tiles(self, slab: int, record: ReadStats) -> Iterator[tuple[slice, Tile]]:
        for rows, tile in self._stored.tiles(slab, record):
            shifted = [(where, values - self.shift[where]) for where, values in tile]
            lengths = np.sqrt(sum((values**2).sum(axis=1) for _, values in shifted))
            yield rows, [(where, values / np.maximum(lengths, 1e-300)[:, None]) for where, values in shifted]


@dataclass(frozen=True, kw_only=True)
class Signs(Reading):
    """Rows count by their directions from the mean."""

    place: ClassVar[str] = "signs"
    noun: ClassVar[str] = "directions of rows"
    route: ClassVar[str] = "signs"  # type: ignore[assignment]

    def source(self, source: Any, request: Any) -> Any:
        if source.kind != "samples" or not isinstance(source.reader, DenseReader):
            raise BadInputError(f"signs is for dense samples, and {source.path} is of kind {source.kind}: leave it out")
        return source

    @staticmethod
    def scored(opened: Any, found: Any, how: str) -> Any:
        return opened  # as they are: components are robust, scores show the outliers

    def spec(self) -> dict[str, dict[str, Any]]:
        return {self.place: {"on": True}}

    @classmethod
    def restored(cls, spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        return cls()


class SignsRelease(PlainRelease):
    """The trace is that of directions, and not of the rows."""

    def _survey(self, step: int) -> None:
        super()._survey(step)
        self._trace = 1.0


class BySigns(PlainRoute):
    """Products of directions, which get no certificate: npmdask cannot know whose values they are."""

    def takes(self, request: Request, source: Any, earlier: Any) -> str:
        if request.algorithm not in ("auto", "krylov", "power") or not request.center or request.scale:
            return "signs is for centred rows that are not scaled, and for products of blocks: leave the rest out"
        return super().takes(request, source, earlier)

    def release(self, problem: Problem, session: Any) -> SignsRelease:
        return SignsRelease(problem, session)

    def operator(self, problem: Problem, view: View) -> Gram:
        reader = problem.source.reader
        directions = Directions(inner=reader, checksums=reader.checksums, shift=view.shift)
        return Gram(reader=directions, weight=1 / view.weight_of_rows(reader.shape[0]), view=replace(view, shift=None))


BY_SIGNS = BySigns()
