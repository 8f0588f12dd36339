"""A field on a grid as rows and columns, and vectors over its columns as maps: the basis of npmdask.xarray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.errors import BadInputError
from npmdask.runs.missing import Missing
from npmdask.runs.weights import cosines, places_of, require_same_places
from npmdask.storage.labels import DESCRIBED, LATITUDES
from npmdask.storage.readers.gaps import DROP, unmarked
from npmdask.storage.readers.lazy import rows_of_a_block


@dataclass(frozen=True)
class Gridded:
    """The grid of a DataArray: its first sample (``grid``, with coordinates), and the dimension of samples.

    Columns are grid points, in the order of the dimensions of the grid.
    """

    grid: Any
    sample: str

    @classmethod
    def of(cls, X: Any, dim: str) -> Gridded:
        """Of a DataArray.

        Raises
        ------
        BadInputError
            No DataArray, nothing along ``dim``, or no other dimension.
        """
        if type(X).__name__ != "DataArray":
            raise BadInputError(f"a DataArray of xarray is needed, not a {type(X).__name__}: give one, as ds['name']")
        if dim in X.dims and not X.sizes[dim]:
            raise BadInputError(f"the DataArray has length 0 along {dim!r}: there are no data to analyse")
        if dim not in X.dims or X.ndim < 2:
            raise BadInputError(f"dim = {dim!r} and others are needed; the DataArray has {', '.join(map(str, X.dims))}")
        return cls(X.isel({dim: 0}, drop=True), dim)

    def rows(self, X: Any) -> Any:
        """The samples of a DataArray in rows, in blocks, so that nothing is copied."""
        rows = X.transpose(self.sample, *self.grid.dims)
        return rows if rows.chunks is not None else rows.chunk({self.sample: rows_of_a_block(rows.shape, rows.dtype)})

    def require_same(self, X: Any) -> None:
        """Raise BadInputError for a DataArray on another grid."""
        sizes, known = dict(Gridded.of(X, self.sample).grid.sizes), dict(self.grid.sizes)
        if sizes != known:
            raise BadInputError(f"the grid is {sizes}, and the modes have {known}")

    def column_weights(
        self, weights: Any, *, use_coslat: bool, missing: str, marks: tuple[float, ...] = ()
    ) -> np.ndarray | None:
        """What squares of columns count: the squares of ``weights``, times the cosines of latitudes.

        0 over land, where nothing is read; None: all alike. ``marks``: numbers that stand for missing values.
        """
        columns = None if weights is None else self._squares(weights)
        if use_coslat:
            columns = self.coslat() * (1.0 if columns is None else columns)
        if columns is not None and missing == DROP and np.isnan(columns).any():
            columns = np.where(np.isnan(columns) & np.isnan(unmarked(self.grid.values, marks)), 0.0, columns)
        return None if columns is None else columns.ravel()

    def coslat(self) -> np.ndarray:
        """The cosines of latitudes, all over the grid."""
        name = next((name for name in LATITUDES if name in self.grid.coords), None)
        if name is None:
            raise BadInputError(
                f"use_coslat needs a coordinate called {', '.join(LATITUDES[:-1])} or {LATITUDES[-1]}; there are "
                f"{', '.join(map(str, self.grid.coords)) or 'none'}: name it so, as da.rename(y='lat')"
            )
        return cosines(self._spread(self.grid[name].reset_coords(drop=True)))

    def _squares(self, weights: Any) -> np.ndarray:
        """The squares of weights, all over the grid; negative ones stay so, and are refused."""
        if type(weights).__name__ != "DataArray":
            raise BadInputError(f"weights are a DataArray over dimensions of the grid, not a {type(weights).__name__}")
        held = {str(dim): size for dim, size in self.grid.sizes.items()}
        if any(held.get(str(dim)) != size for dim, size in weights.sizes.items()):
            raise BadInputError(
                f"the weights lie along {dict(weights.sizes)}, and the grid is {held}: give one for each place"
            )
        for dim in weights.dims:
            require_same_places(str(dim), places_of(weights, dim), places_of(self.grid, dim), "weights")
        values = np.asarray(self._spread(weights.reset_coords(drop=True)), np.float64)
        return values * np.abs(values)

    def _spread(self, values: Any) -> np.ndarray:
        """Values along some dimensions of the grid, repeated along the others, in its order; without their names."""
        bare, grid = values.drop_vars(list(values.coords)), self.grid
        return np.asarray(bare.broadcast_like(grid.drop_vars(list(grid.coords))).transpose(*grid.dims).values)

    # Answers.

    def maps(self, vectors: np.ndarray, missing: Missing | None, name: str) -> Any:
        """Vectors (columns that are there, or all, x k) as maps; NaN where there are no data at any time."""
        seen = np.arange(self.grid.size)
        if missing is not None:
            seen = missing.kept[missing.counts[missing.kept] < missing.rows]
        maps = np.full((vectors.shape[1], self.grid.size), np.nan, vectors.dtype)
        maps[:, seen] = (vectors if len(vectors) == len(seen) else vectors[seen]).T
        coords = {**_modes(vectors.shape[1]), **self.grid.coords}
        return type(self.grid)(
            maps.reshape(-1, *self.grid.shape),
            dims=("mode", *self.grid.dims),
            coords=coords,
            name=name,
            attrs=DESCRIBED.get(name, {}),
        )

    def series(self, values: np.ndarray, samples: Any) -> Any:
        """Scores (n x k) along the samples; ``samples``: a DataArray with the coordinates of these."""
        coords = _modes(values.shape[1])
        if self.sample in samples.coords:
            coords[self.sample] = samples[self.sample]
        return type(self.grid)(
            values, dims=(self.sample, "mode"), coords=coords, name="scores", attrs=DESCRIBED["scores"]
        )

    def by_mode(self, values: np.ndarray, name: str) -> Any:
        """A number for each mode."""
        described = DESCRIBED.get(name, {})
        return type(self.grid)(values, dims=("mode",), coords=_modes(len(values)), name=name, attrs=described)


def _modes(count: int) -> dict[str, Any]:
    return {"mode": np.arange(1, count + 1)}
