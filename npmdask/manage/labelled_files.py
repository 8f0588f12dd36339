"""The components of a run in files for other tools, with the names of columns: CSV, Parquet, NetCDF, h5ad."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from npmdask.errors import BadInputError, extra
from npmdask.storage.labels import Axis, as_dataset

RESIDUALS = "residual_norms"
OF_SCANPY = {"explained_variance": "variance", "explained_variance_ratio": "variance_ratio"}  # in uns["pca"]
BESIDE = ("values", RESIDUALS, *OF_SCANPY, "mean_squares", "similarity", "inside", "earlier")  # numbers of components
SIDE = "columns."  # how the names of arrays begin that say what columns of the data are called
GRID = "grid."  # and those of the whole grid, where some of its columns were left out


class LabelledFile:
    """A sink that collects the arrays of an answer and finally writes some of them, with ``write``.

    ``complex_too``: it has a place for complex components.
    """

    complex_too: ClassVar[bool] = False

    def __init__(self, target: Path) -> None:
        self.names: list[str] = []
        self._target, self._arrays, self._facts = target, dict[str, np.ndarray](), dict[str, Any]()
        self._aside = target.with_name(f".writing-{os.getpid()}-{target.name}")

    def array(self, name: str, array: np.ndarray) -> None:
        """Keep an array."""
        self._arrays[name] = array

    def rows(self, name: str, shape: tuple[int, int], blocks: Iterable[np.ndarray]) -> None:
        """Leave it out: it may be larger than memory."""

    def about(self, facts: Mapping[str, Any]) -> None:
        """Keep what is to be known of all of it."""
        self._facts |= facts

    def publish(self) -> None:
        """Write the file, and move it to its place.

        Raises
        ------
        BadInputError
            The answer has no components of columns, as that of topics or of a tensor.
        """
        if "basis" not in self._arrays:
            raise BadInputError(
                f"{self._target}: this answer ({', '.join(self._arrays)}) has no components: export it as .npz"
            )
        if not self.complex_too and self._arrays["basis"].dtype.kind == "c":
            raise BadInputError(
                f"{self._target}: the components are complex, and {self._target.suffix} files hold real numbers only: "
                "export them as .npz, or as .csv or .parquet (columns of real and imaginary parts)"
            )
        self.names = self.write(self._aside)
        os.replace(self._aside, self._target)

    def drop(self) -> None:
        """Remove what was not published."""
        self._aside.unlink(missing_ok=True)

    @property
    def axes(self) -> list[Axis]:
        """Return the axes that a row of the data consists of."""
        return self.named(SIDE) or [Axis("column", len(self._arrays["basis"]), np.arange(len(self._arrays["basis"])))]

    def named(self, side: str) -> list[Axis]:
        """The axes whose arrays have names that begin so."""
        held = {name.removeprefix(side): array for name, array in self._arrays.items() if name.startswith(side)}
        return [Axis(name, len(array), array) for name, array in held.items()]

    def table(self) -> dict[str, np.ndarray]:
        """Columns of a table with a line for each column of the data: its names, and its part in each component."""
        basis, axes = self._arrays["basis"], self.axes
        places = np.unravel_index(np.arange(len(basis)), [axis.size for axis in axes])
        parts = {f"component{i + 1}": basis[:, i] for i in range(basis.shape[1])}
        if basis.dtype.kind == "c":
            sides = (("real", np.real), ("imag", np.imag))
            parts = {f"{name}_{side}": of(column) for name, column in parts.items() for side, of in sides}
        names = [f"{axis.name}_" if axis.name in parts else axis.name for axis in axes]
        return {name: axis.places[at] for name, axis, at in zip(names, axes, places, strict=True)} | parts

    def write(self, place: Path) -> list[str]:
        """Write the file at ``place``; returns the names in it."""
        raise NotImplementedError


class CsvFile(LabelledFile):
    """A table as text, with all digits of its numbers."""

    complex_too = True

    def write(self, place: Path) -> list[str]:
        table = self.table()
        columns = (column.astype(str) if column.dtype.kind == "M" else column for column in table.values())
        with open(place, "w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(table)
            lines.writerows(zip(*(column.tolist() for column in columns), strict=True))
        return list(table)


class ParquetFile(LabelledFile):
    """The same table as Parquet."""

    complex_too = True

    def write(self, place: Path) -> list[str]:
        with extra("ingest"):
            import pyarrow as pa
            import pyarrow.parquet as pa_parquet
        table = self.table()
        pa_parquet.write_table(pa.table({name: pa.array(column) for name, column in table.items()}), place)
        return list(table)


class NetcdfFile(LabelledFile):
    """Components on their grid, NaN where columns of it were left out."""

    def write(self, place: Path) -> list[str]:
        arrays = self._arrays
        beside: dict[str, np.ndarray] = {name: arrays[name] for name in BESIDE if name in arrays}
        over = {name: self._whole(arrays[name]) for name in ("mean",) if name in arrays}
        found = as_dataset(self.named(GRID) or self.axes, self._whole(arrays["basis"]), beside, over, self._facts)
        found.to_netcdf(place)
        return [str(name) for name in found.variables]

    def _whole(self, array: np.ndarray) -> np.ndarray:
        """An array over columns (d, or d x k) over all of the grid, of which d columns were kept."""
        grid = self.named(GRID)
        if not grid:
            return array
        (kept,) = self.axes  # places in the grid
        whole = np.full((math.prod(axis.size for axis in grid), *array.shape[1:]), np.nan)
        whole[kept.places] = array
        return whole


class AnnDataFile(LabelledFile):
    """Components of genes: ``varm["PCs"]`` and ``uns["pca"]`` of an AnnData without cells."""

    def write(self, place: Path) -> list[str]:
        with extra(None):
            import anndata
            import pandas as pd
        if len(self.axes) > 1:
            raise BadInputError(f"{self._target}: an AnnData has names of genes, not a grid: export it as .nc")
        index = pd.Index(self.axes[0].places.astype(str).astype(object))
        found = anndata.AnnData(var=pd.DataFrame(index=index), obs=pd.DataFrame(index=pd.Index([], dtype=object)))
        found.varm["PCs"] = self._arrays["basis"]
        beside = [name for name in BESIDE if name in self._arrays and name != RESIDUALS]
        found.uns["pca"] = {OF_SCANPY.get(name, name): self._arrays[name] for name in beside}
        found.write_h5ad(place)
        return ["varm/PCs", *(f"uns/pca/{name}" for name in found.uns["pca"])]


LABELLED = {".csv": CsvFile, ".parquet": ParquetFile, ".nc": NetcdfFile, ".h5ad": AnnDataFile}
