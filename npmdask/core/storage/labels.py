"""Keep the names of rows and columns: samples, genes, words, the coordinates of a grid."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.errors import BadInputError, extra

LATITUDES, LONGITUDES = ("lat", "latitude", "nav_lat"), ("lon", "longitude", "nav_lon")
UNITS = {"degree", "degrees"}  # how the units of both begin, by the conventions of CF, before _north or _east
LONGEST = 256  # characters of a name that are kept: an array of names is as wide as the longest


@dataclass(frozen=True, eq=False)
class Axis:
    """
    Hold the name of a dimension and what its places are called.

    Attributes
    ----------
    name : str
        Like "gene" or "lat".
    size : int
        How many places it has.
    values : numpy.ndarray or None, shape (size,)
        Their names (text), coordinates or times; None: they are numbered.

    Examples
    --------
    >>> from npmdask.core.storage.labels import axis_of
    >>> axis_of("gene", ["CD3E", "MS4A1"]).size
    2
    """

    name: str
    size: int
    values: np.ndarray | None = None

    @property
    def places(self) -> np.ndarray:
        """Names of its places, or their numbers."""
        return np.arange(self.size) if self.values is None else self.values


@dataclass(frozen=True, eq=False)
class Labels:
    """
    Hold the axes of rows and of columns.

    Attributes
    ----------
    rows, columns : tuple of Axis
        Several where the values of a grid are a row: the last varies fastest. Empty: numbered.
    grid : tuple of Axis
        Those of all columns, where some were left out of a grid, as land is; else empty.
    points : tuple of Axis
        Latitude and longitude of every column, where columns are places in any order: stations, or the cells of a mesh.

    Examples
    --------
    >>> from npmdask.core.storage.labels import Labels, axis_of
    >>> Labels(columns=(axis_of("lat", [10.0, 20.0]), axis_of("lon", [0.0, 5.0, 10.0]))).columns[1].values[2]
    np.float64(10.0)
    """

    rows: tuple[Axis, ...] = ()
    columns: tuple[Axis, ...] = ()
    grid: tuple[Axis, ...] = ()
    points: tuple[Axis, ...] = ()

    def fitting(self, shape: tuple[int, ...]) -> Labels | None:
        """Leave out axes that are not of data of this shape; None: nothing is left."""
        rows, columns = (
            axes if axes and prod(axis.size for axis in axes) == size else ()
            for axes, size in zip((self.rows, self.columns), shape[:2], strict=True)
        )
        points = self.points if all(axis.size == shape[1] for axis in self.points) else ()
        return Labels(rows, columns, self.grid, points) if rows or columns or points else None

    def bundle(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays, and what is to be known of them, as a part of a store keeps them."""
        sides = {"rows": self.rows, "columns": self.columns}
        sides |= {name: axes for name, axes in (("grid", self.grid), ("points", self.points)) if axes}
        named = {f"{side}-{i}": axis.values for side, axes in sides.items() for i, axis in enumerate(axes)}
        facts = {side: [[axis.name, axis.size] for axis in axes] for side, axes in sides.items()}
        return {name: values for name, values in named.items() if values is not None}, facts

    @classmethod
    def of_bundle(cls, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> Labels:
        """The inverse of :meth:`bundle`."""
        sides = {
            side: tuple(Axis(name, size, arrays.get(f"{side}-{i}")) for i, (name, size) in enumerate(axes))
            for side, axes in facts.items()
        }
        return cls(**sides)

    def named(self) -> dict[str, np.ndarray]:
        """The places of every axis by "columns.NAME", "rows.NAME", "grid.NAME" or "points.NAME": what they are called,
        or numbers.
        """
        sides = {"rows": self.rows, "columns": self.columns, "grid": self.grid, "points": self.points}
        return {f"{side}.{axis.name}": axis.places for side, axes in sides.items() for axis in axes}

    def array(self) -> np.ndarray:
        """All of it as bytes, for a store that keeps arrays of numbers only."""
        arrays, facts = self.bundle()
        held = {name: [values.dtype.str, _to_json_list(values)] for name, values in arrays.items()}
        return np.frombuffer(json.dumps({"facts": facts, "arrays": held}).encode(), np.uint8).copy()

    @classmethod
    def of_array(cls, array: np.ndarray) -> Labels:
        """The inverse of :meth:`array`."""
        found = json.loads(array.tobytes())
        arrays = {name: _from_json_list(dtype, values) for name, (dtype, values) in found["arrays"].items()}
        return cls.of_bundle(arrays, found["facts"])


def labels_in_file(given: str | Path) -> Any:
    """The labels in a file (text, one a line, or an array in .npy), or what was given where that is no file.

    Raises
    ------
    BadInputError
        The file cannot be read so.
    """
    path = Path(given)
    if not path.is_file():
        return str(given)
    try:
        return np.load(path, allow_pickle=False) if path.suffix == ".npy" else path.read_text().splitlines()
    except (OSError, EOFError, ValueError) as error:
        raise BadInputError(
            f"{path} does not contain readable labels ({error}): write one label per line, one for each row"
        ) from error


def require_names(given: Sequence[str], count: int, held: Labels | None) -> Labels:
    """Return labels of the names that are given to ``count`` columns of a run that knows none, as a private one.

    Raises
    ------
    BadInputError
        Other than ``count`` names, or the run has names (``held``).
    """
    if held is not None and held.columns:
        raise BadInputError("the run has names of its columns: leave --columns out")
    if len(given) != count:
        said = f"{len(given)} names of columns are given, and the components have {count}"
        raise BadInputError(f"{said}: give one for each")
    return of_columns([str(name) for name in given])


def colour_of(asked: str | Path | None, labels: Labels, shape: tuple[int, ...]) -> tuple[int | None, np.ndarray | None]:
    """Look up what rows of data of this ``shape`` are coloured by: the number of a column, or a value for each row.

    Raises
    ------
    BadInputError
        There is no such column and no such file, or the file is of other rows.
    """
    if asked is None:
        return None, None
    held = labels_in_file(asked)
    if not isinstance(held, str):
        values = np.asarray(held).ravel()
        if len(values) != shape[0]:
            raise BadInputError(
                f"{asked} has {len(values)} values and the data have {shape[0]} rows: give one for each row"
            )
        return None, values
    for axis in labels.rows:
        if axis.name == held:
            return None, axis.places
    names = [str(name) for name in labels.columns[0].places] if len(labels.columns) == 1 else []
    if held in names:
        return names.index(held), None
    if held.isdigit() and int(held) < shape[1]:
        return int(held), None
    raise BadInputError(
        f"colour {held}: there is no such file, and the data have no column of that name; give a file with a value for "
        "each row, one a line, or the name or number (from 0) of a column"
    )


def points_of(coordinates: Mapping[str, Any], size: int) -> tuple[Axis, ...]:
    """Find latitude and longitude of ``size`` columns among ``coordinates``, by their names or their units.

    Parameters
    ----------
    coordinates : arrays of xarray, HDF5 or Zarr, by name.
    size : how many columns there are.

    Returns
    -------
    Both; or nothing, where one is missing or has other than finite numbers.
    """
    fitting = {n: a for n, a in coordinates.items() if tuple(a.shape) == (size,) and a.dtype.kind in "iuf"}
    found = []
    for names, way in ((LATITUDES, "north"), (LONGITUDES, "east")):
        called = [name for name in names if name in fitting]
        called += [name for name, array in fitting.items() if _units(array) in {f"{unit}_{way}" for unit in UNITS}]
        values = np.asarray(fitting[called[0]][...], np.float64) if called else np.array([np.nan])
        if not np.isfinite(values).all():
            return ()
        found.append(axis_of(called[0], values))
    return tuple(found)


def _units(array: Any) -> str:
    held = array.attrs.get("units", "")
    return held.decode("utf-8", "replace") if isinstance(held, bytes) else str(held)


def of_columns(names: Sequence[str]) -> Labels:
    """The labels of a table whose columns have these names."""
    return Labels(columns=(axis_of("column", names),))


# What a variable of a file or Dataset is, as CF and the pages of xarray show it. Units of the data are not known here.
DESCRIBED: dict[str, dict[str, str]] = {
    "components": {"long_name": "components: orthonormal vectors over the columns (EOFs)", "units": "1"},
    "scores": {"long_name": "scores: coordinates along the components (principal components)"},
    "values": {"long_name": "values, as the bounds of their errors have them"},
    "residual_norms": {"long_name": "norms of the residuals of values and components, in the units of values"},
    "singular_values": {"long_name": "singular values of the data as they were analysed"},
    "explained_variance": {"long_name": "variance of the scores, n - 1 in the denominator"},
    "explained_variance_ratio": {"long_name": "share of the variance of all columns", "units": "1"},
    "mean_squares": {"long_name": "mean square of the scores of rows that were not centred"},
    "mean": {"long_name": "mean of each column, which was subtracted"},
    "similarity": {"long_name": "cosine with the component of the earlier run", "units": "1"},
    "inside": {"long_name": "share of the square inside the space of the earlier run", "units": "1"},
    "earlier": {"long_name": "component of the earlier run, from 0; -1: none", "units": "1"},
}
MODE = {"long_name": "number of the component, the first explains most"}


def _attributes_of(axis: Axis) -> dict[str, str]:
    for names, standard, side in ((LATITUDES, "latitude", "north"), (LONGITUDES, "longitude", "east")):
        if axis.name.lower() in names:
            return {"standard_name": standard, "units": f"degrees_{side}"}
    return {}


def as_dataset(
    labels: Labels, basis: np.ndarray, beside: Mapping[str, Any], over: Mapping[str, Any], facts: Mapping[str, Any]
) -> Any:
    """A Dataset of xarray: ``components`` (mode, and the axes of a row) of a ``basis`` (d x k), what there is of every
    component ``beside`` it (k), and of every column (``over``: d). NaN where columns of a grid were left out. ``facts``
    are its attributes; one called as a variable is what that is (its ``long_name``).

    Raises
    ------
    MissingExtraError
        xarray is not installed.
    """
    with extra(None):
        import xarray as xr
    taken = {"mode", "components", *beside, *over}  # the data may have a dimension of one of these names
    axes = labels.grid or labels.columns or (Axis("column", len(basis)),)
    axes = tuple(replace(axis, name=f"{axis.name}_" if axis.name in taken else axis.name) for axis in axes)
    dims, shape = tuple(axis.name for axis in axes), tuple(axis.size for axis in axes)

    def on_grid(vectors: np.ndarray) -> np.ndarray:
        whole = np.full((len(vectors), prod(shape)), np.nan, np.result_type(vectors, np.float64))
        whole[:, labels.columns[0].places if labels.grid else slice(None)] = vectors
        return whole.reshape(-1, *shape)

    data: dict[str, Any] = {"components": (("mode", *dims), on_grid(basis.T))}  # mode, as xeofs has it
    data |= {name: ("mode", values) for name, values in beside.items()}
    data |= {name: (dims, on_grid(np.asarray(values)[None])[0]) for name, values in over.items()}
    described = {
        name: (*held, DESCRIBED.get(name, {}) | ({"long_name": facts[name]} if name in facts else {}))
        for name, held in data.items()
    }
    coords: dict[str, Any] = {"mode": ("mode", np.arange(1, basis.shape[1] + 1), MODE)}
    coords |= {axis.name: (axis.name, axis.values, _attributes_of(axis)) for axis in axes if axis.values is not None}
    return xr.Dataset(described, coords, attrs={name: fact for name, fact in facts.items() if name not in data})


def _to_json_list(values: np.ndarray) -> list[Any]:
    """As JSON holds it; times as whole numbers of their unit."""
    return list((values.view(np.int64) if values.dtype.kind in "mM" else values).tolist())


def _from_json_list(dtype: str, values: list[Any]) -> np.ndarray:
    kind = np.dtype(dtype)
    return np.array(values, np.int64).view(kind) if kind.kind in "mM" else np.array(values, kind)


def axis_of(name: Any, values: Any, size: int | None = None) -> Axis:
    """An axis; ``values`` that are neither numbers nor times become text. None of them: ``size`` places."""
    if values is None:
        assert size is not None
        return Axis(str(name), size)
    listed = list(values) if not isinstance(values, np.ndarray) else values
    text = any(isinstance(value, tuple | list) for value in listed[:1])  # levels of an index
    held = np.asarray([] if text else listed)
    if text or held.dtype.kind not in "iufmM":
        held = np.array([str(value)[:LONGEST] for value in listed], dtype=np.str_)
    little = held.dtype.newbyteorder("<") if held.dtype.kind != "U" else held.dtype
    return Axis(str(name), len(held), held.astype(little, copy=False))


def gene_labels(root: Any, name: str) -> Labels | None:
    """The names of the columns of ``X``, or of a layer, of an AnnData file; None where it has none, or holds others."""
    if not (name == "X" or name.startswith("layers/")) or "var" not in root:
        return None
    table = root["var"]
    index = str(table.attrs.get("_index", "_index"))
    held: Any = table[index] if index in table else None
    if hasattr(held, "keys") and "values" in held:  # text of pandas, of which some may be missing
        held = held["values"]
    if held is None or len(getattr(held, "shape", ())) != 1 or not is_text(held):
        return None
    return Labels(columns=(axis_of("var", np.asarray(held.asstr()[...] if hasattr(held, "asstr") else held[...])),))


def is_text(array: Any) -> bool:
    """Say whether an array of HDF5 or Zarr holds text, and nothing that would have to be unpickled."""
    return array.dtype.kind in "TUS" or (hasattr(array, "asstr") and array.dtype.metadata is not None)
