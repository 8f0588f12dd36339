"""Hold what lies behind a lazy array to what readers hold their own chunks to, in whatever a graph keeps it.

zarr reads a chunk that is not there as its fill value, and behind the end of a Blosc frame that was cut off; HDF5 reads
as fill values what was never written. So each array of zarr in a graph is replaced by the same array over a store that
looks at every chunk as it is read, in each pass and process, and each dataset of HDF5 by one that does likewise; what
other libraries read of an HDF5 file is looked at in that file, before and after.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

import numpy as np
import zarr

from npmdask.containers.containers import rows_along
from npmdask.containers.lazy import BlockRows, SlicedRows, rows_of_a_block
from npmdask.core import features
from npmdask.core.storage.checksum import crc32c_bytes
from npmdask.core.storage.chunk_access import WholeStore, location, looked_at, missing_chunk, naming
from npmdask.core.storage.conventions import (
    DEFAULT_FILLS,
    FILLS,
    KNOWN,
    LIMITS,
    Conventions,
    DecodedArray,
    conventions_of,
    dimensions_of,
    member,
    promoted,
    reads_as_missing,
    require_undecoded,
    zarr_conventions,
)
from npmdask.core.storage.paths import is_zarr, local_path
from npmdask.core.storage.safe_open import open_node
from npmdask.core.storage.source import outside
from npmdask.errors import BadInputError, NpmdaskError, extra
from npmdask.formats.hdf5 import h5py, require_readable, whole_dataset
from npmdask.formats.ingest import look_of

DEEPEST = 40  # wrappers within each other
PLAIN = (str, bytes, int, float, complex, type(None), type, np.ndarray, np.generic)
KEPT = {"dask": ("func", "args", "kwargs", "value"), "builtins": (), "_operator": ()}  # where tasks hold things
EMPTY = (
    "restore it, or if it really is empty write the array again with write_empty_chunks=True (an option of xarray's "
    "to_zarr, and of zarr's config)"
)


def lost(array: Any, name: str) -> Exception | None:
    """Return the error for a missing chunk behind a lazy array, unless such a chunk means missing values."""
    return None if reads_as_missing(array) else missing_chunk(name, array, EMPTY)


def lost_raw(array: Any, name: str) -> Exception | None:
    """The same of values that are not decoded, among which only NaN means missing."""
    return None if array.fill_value != array.fill_value else missing_chunk(name, array, EMPTY)


def conventions_left(
    attributes: Mapping[str, Any], encoding: Mapping[str, Any], dtype: np.dtype, where: str, *, gaps: bool
) -> Conventions | None:
    """Return the conventions still to apply to values that xarray has decoded; None: nothing.

    xarray compares no values with the limits of what is valid, nor with NetCDF's own fill values.

    Parameters
    ----------
    attributes, encoding : of the array now, and as it was stored.
    gaps : whether missing values become NaN; else they are an error.

    Raises
    ------
    BadInputError
        As :func:`conventions_of`, and where the values are not decoded.
    """
    limits: dict[str, Any] = {name: attributes[name] for name in LIMITS if name in attributes}
    require_undecoded({n: v for n, v in attributes.items() if n not in limits}, dtype, where, "an array in memory")
    stored, own = np.dtype(encoding.get("dtype", dtype)), {n: encoding[n] for n in KNOWN if n in encoding}
    from_netcdf = "dtype" in encoding and "filters" not in encoding and not any(name in own for name in FILLS)
    fill = DEFAULT_FILLS.get(stored.str[1:]) if from_netcdf and "_Unsigned" not in own else None
    if dtype.kind not in "iuf" or (fill is None and not limits):
        return None
    packing: dict[str, Any] = {name: own[name] for name in ("scale_factor", "add_offset", "_Unsigned") if name in own}
    found = conventions_of({**limits, **packing}, stored if stored.kind in "iuf" else dtype, where, fill)
    if found is None:
        return None
    bare = replace(found, fills=(), limits=None)

    def meant(value: Any) -> Any:
        if not found.packed or not math.isfinite(value):
            return value
        return bare.decode(np.asarray([value]).astype(found.stored))[0].astype(dtype)[0]

    pair = found.limits
    if pair is not None and not found.limits_decoded:
        low, high = map(meant, pair)
        turned = found.scale is not None and found.scale < 0
        pair = (high if math.isfinite(high) else -high, low if math.isfinite(low) else -low) if turned else (low, high)
    final = promoted(dtype) if gaps else dtype
    return Conventions(
        attributes=found.attributes,
        stored=dtype.newbyteorder("="),
        masked=final.newbyteorder("="),
        dtype=final.newbyteorder("="),
        fills=tuple(map(meant, found.fills)),
        limits=pair,
        limits_decoded=True,
    )


def open_grid(place: Path, dim: str, *, gaps: bool | None = None) -> tuple[Any, BlockRows | None, str]:
    """The variable along ``dim`` of a file or Zarr store, as xarray shows it, which knows its coordinates; its rows, as
    they are read here, where ``gaps`` says whether missing values are NaN; and the path that leads to it. ``FILE/NAME``
    names one of several.

    Raises
    ------
    BadInputError
        There is nothing, or nothing that xarray opens, or not one variable along ``dim``.
    MissingExtraError
        xarray is not installed.
    """
    with extra(None):
        import xarray as xr

    place, look = local_path(place, "a file with a grid"), []  # of a Zarr store, each array is looked at
    try:
        far: Any = features.found("fetchers", "icechunk")
        if far and (inside := far.inside(place)) is not None:
            node, path = far.opened(*inside[:2], "")
            root, place = Path(path), Path(path, inside[2])
            found = xr.open_zarr(node.store_path.store, chunks=None, consolidated=False)
        elif (root := _file_or_group(place)).is_dir():
            node = open_node(root)  # refuses what would have to be unpickled
            alone = isinstance(node, zarr.Array)
            found = _placeholder_array(node, place) if alone else xr.open_zarr(root, chunks=None, consolidated=False)
        else:
            require_readable(root)
            found, look = xr.open_dataset(root), look_of(root)
        name = place.relative_to(root).as_posix()
        found = found if name == "." else found[name]
        array = rows_along(found, dim)
        stored = int(array.encoding.get("preferred_chunks", {}).get(dim, 1))
        rows = rows_of_a_block(array.shape, array.dtype, stored)
        # Named by the file and when it was written, so that another process knows the same rows again.
        seen = crc32c_bytes(json.dumps([str(root), str(array.name), dim, look]).encode())
        lazy = array.chunk({dim: rows}, token=f"{seen:08x}", name_prefix=f"{root.name}-")
        own = found if type(found).__name__ == "DataArray" else found[array.name]
        name = "" if own.name is None else str(own.name)
        read = None if gaps is None else grid_rows(str(root), name, own.dims.index(dim), lazy.data, gaps=gaps)
        return lazy, read, str(place)
    except NpmdaskError:
        raise
    except Exception as error:  # each of its engines has errors of its own
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise BadInputError(f"xarray cannot open {place} ({said})") from error


def _placeholder_array(array: Any, place: Path) -> Any:
    """An array of Zarr without a group around it, as one of xarray's that has its shape and names of dimensions."""
    import xarray as xr

    if (names := dimensions_of(array)) is None:
        raise BadInputError(f"{place} is one array without named dimensions: leave dim out")
    return xr.DataArray(np.broadcast_to(np.zeros((), array.dtype), array.shape), dims=names)


def _file_or_group(place: Path) -> Path:
    """Return the file or Zarr group that ``place`` is or lies in. Raises BadInputError where there is neither."""
    for path in (place, *place.parents):
        if path.is_file() or (is_zarr(path) and not is_zarr(path.parent)):  # variables are found from the top
            return path
    raise BadInputError(f"there is no file and no Zarr group at {place} that could contain a grid")


@dataclass(frozen=True, kw_only=True)
class GridRows(SlicedRows):
    """Rows along one dimension (``axis``) of an array in a file or store, the others flattened.

    ``known``: what the rows are called where it is written down what they are.
    """

    axis: int
    known: str

    def block(self, number: int) -> Any:
        array = self.opened() if self.array is None else self.array
        region = [slice(None)] * len(array.shape)
        region[self.axis] = slice(int(self.edges[number]), int(self.edges[number + 1]))
        with naming([array.store_path.store] if hasattr(array, "store_path") else []):
            return np.moveaxis(np.asarray(array[tuple(region)]), self.axis, 0)

    @property
    def identity(self) -> str:
        return f"{self.known}, {self.stamp}, {self.heights}, {self.first:08x}"


def grid_rows(root: str, name: str, axis: int, lazy: Any, *, gaps: bool) -> GridRows:
    """The rows along dimension ``axis`` of the array ``name`` of a file or store, read as matrices by path are.

    ``lazy``: the same as an array of Dask, whose name and blocks of rows are taken over, as earlier versions read it.

    Raises
    ------
    BadInputError
        A part of it is not there; it holds no numbers.
    """
    array, stamp = _grid(root, name, gaps=gaps)
    rows = GridRows(
        name=f"{name or 'the array'} of {root}",
        stamp=stamp,
        shape=(int(lazy.shape[0]), int(np.prod(lazy.shape[1:]))),
        heights=tuple(map(int, lazy.chunks[0])),
        opened=partial(_reopen_grid, root, name, gaps),
        array=array,
        axis=axis,
        known=f"the Dask array {lazy.name}",
    )
    return rows.measured()


def _reopen_grid(root: str, name: str, gaps: bool) -> Any:
    return _grid(root, name, gaps=gaps)[0]


def _grid(root: str, name: str, *, gaps: bool) -> tuple[Any, str]:
    """An array as its values are meant, and what can be seen of it without reading."""
    path = Path(root)
    if path.is_file():
        if find_spec("h5py") is not None and h5py.is_hdf5(path):
            return whole_dataset(h5py.File(path, "r")[name], gaps=gaps), ""
        import xarray as xr

        array: Any = xr.open_dataset(path, decode_cf=False)[name].variable
        fill = None if "_FillValue" in array.attrs else DEFAULT_FILLS.get(array.dtype.str[1:])
        found, where = conventions_of(array.attrs, array.dtype, f"{name} of {path}", fill), f"{name} of {path}"
        found = found if gaps or found is None else found.without_gaps()
        return array if found is None else DecodedArray(array, found, where, "nan"), ""
    far: Any = features.found("fetchers", "icechunk")
    inside = far and far.inside(path)
    node = far.opened(*inside)[0] if inside else open_node(path)
    node = member(node, name)
    found, array = zarr_conventions(node), looked_at(node, lost)
    if found is not None and not found.keeps(node.dtype):
        array = DecodedArray(array, found, location(node), "nan")
    return array, outside(node, {})


class Stored:
    """Finds what is stored in what a graph holds, and gives the same with all of it held to be whole.

    Attributes
    ----------
    arrays : those of zarr that were found.
    stores : what they are read from now.
    variables : file and name of what another library reads from an HDF5 file.
    """

    def __init__(self) -> None:
        self.arrays: list[zarr.Array] = []
        self.stores: list[WholeStore] = []
        self.variables: set[tuple[str, str]] = set()
        self._known: dict[tuple[int, bool], tuple[Any, Any]] = {}
        self._masked = False  # inside what replaces fill values by NaN

    def __call__(self, held: Any, depth: int = 0) -> Any:
        """``held``, or where something stored is in it a copy, with that replaced."""
        if isinstance(held, PLAIN) or depth > DEEPEST:
            return held
        before, key = self._masked, (id(held), self._masked)
        if key not in self._known:
            self._known[key] = held, held  # kept, so that its id is not given again; and it may hold itself
            masks = getattr(getattr(held, "func", None), "keywords", ()) if hasattr(held, "array") else ()
            self._masked = before or "encoded_fill_values" in masks  # of xarray
            self._known[key] = held, self._rebuild(held, depth + 1)
            self._masked = before
        return self._known[key][1]

    def _rebuild(self, held: Any, depth: int) -> Any:
        library = type(held).__module__.partition(".")[0]
        if isinstance(held, zarr.Array | zarr.Group):
            return self._of_zarr(held)
        if library == "h5py":
            return whole_dataset(held) if hasattr(held, "chunks") else held
        if type(held) in (list, tuple):
            return self._with_parts(held, list(held), depth, type(held))
        if type(held) is dict:
            return self._with_parts(held, list(held.values()), depth, lambda new: dict(zip(held, new, strict=True)))
        if isinstance(held, partial):
            if getattr(held.func, "__name__", "") == "make_dask_chunk" and isinstance(held.args[0], Path):  # of anndata
                self.variables.add((str(held.args[0]), held.args[1]))
            parts = [held.func, held.args, held.keywords]
            return self._with_parts(held, parts, depth, lambda new: partial(new[0], *new[1], **new[2]))
        if isinstance(held, FunctionType):
            cells = held.__closure__ or ()
            if any(cell == CellType() for cell in cells):  # not filled yet
                return held
            return self._with_parts(held, [cell.cell_contents for cell in cells], depth, partial(_with_cells, held))
        if hasattr(held, "datastore") and hasattr(held, "variable_name"):  # xarray's, of NetCDF
            if (file := getattr(held.datastore, "_filename", None)) is not None:
                group = getattr(held.datastore, "_group", None) or ""
                self.variables.add((str(file), f"{group}/{held.variable_name}"))
            return held
        names: Any = _attributes(held) if library in ("xarray", "anndata") else KEPT.get(library, ("array", "_array"))
        names = [name for name in names if hasattr(held, name)]
        return self._with_parts(held, [getattr(held, name) for name in names], depth, partial(_copy_with, held, names))

    def _with_parts(self, held: Any, parts: list[Any], depth: int, made: Any) -> Any:
        new = [self(part, depth) for part in parts]
        return held if all(a is b for a, b in zip(new, parts, strict=True)) else made(new)

    def _of_zarr(self, node: Any) -> Any:
        if isinstance(node.store_path.store, WholeStore):
            return node
        if isinstance(node, zarr.Array):
            self.arrays.append(node)
            arrays = {node.path: node}
        else:
            arrays = {one.path: one for _, one in node.members(max_depth=None) if isinstance(one, zarr.Array)}
        self.stores.append(WholeStore(node.store_path.store, arrays, lost if self._masked else lost_raw))
        return self.stores[-1].over(node)


def _attributes(held: Any) -> list[str]:
    slots = [name for kind in type(held).__mro__ for name in getattr(kind, "__slots__", ())]
    return [name for name in (*slots, *getattr(held, "__dict__", ())) if not name.startswith("__")]


def _copy_with(held: Any, names: list[str], values: list[Any]) -> Any:
    made = copy(held)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


def _with_cells(function: FunctionType, values: list[Any]) -> FunctionType:
    """The same function over other values."""
    cells = tuple(map(CellType, values))
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return made
