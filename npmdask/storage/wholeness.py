"""Hold what lies behind a lazy array to what readers hold their own chunks to, in whatever a graph keeps it.

zarr reads a chunk that is not there as its fill value, and behind the end of a Blosc frame that was cut off; HDF5 reads
as fill values what was never written. So each array of zarr in a graph is replaced by the same array over a store that
looks at every chunk as it is read, in each pass and process, and each dataset of HDF5 by one that does likewise; what
other libraries read of an HDF5 file is looked at in that file, before and after.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

import numpy as np
import zarr

from npmdask.storage.chunk_access import WholeStore, location, looked_at, missing_chunk, naming
from npmdask.storage.conventions import (
    DEFAULT_FILLS,
    DecodedArray,
    conventions_of,
    member,
    reads_as_missing,
    zarr_conventions,
)
from npmdask.storage.formats.hdf5 import h5py, whole_dataset
from npmdask.storage.object_url import outside
from npmdask.storage.readers.lazy import SlicedRows
from npmdask.storage.safe_open import open_node
from npmdask.storage.snapshots import in_repository, open_repository

DEEPEST = 40  # wrappers within each other
PLAIN = (str, bytes, int, float, complex, type(None), type, np.ndarray, np.generic)
KEPT = {"dask": ("func", "args", "kwargs", "value"), "builtins": (), "_operator": ()}  # where tasks hold things
EMPTY = (
    "restore it, or if it really is empty write the array again with write_empty_chunks=True (an option of xarray's "
    "to_zarr, and of zarr's config)"
)


def lost(array: Any, name: str) -> Exception | None:
    """What to say of a chunk that is not there behind a lazy array, unless that means missing values."""
    return None if reads_as_missing(array) else missing_chunk(name, array, EMPTY)


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
        opened=partial(_reopened, root, name, gaps),
        array=array,
        axis=axis,
        known=f"the Dask array {lazy.name}",
    )
    return rows.measured()


def _reopened(root: str, name: str, gaps: bool) -> Any:
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
    inside = in_repository(path)
    node = open_repository(*inside)[0] if inside is not None else open_node(path)
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
        self._known: dict[int, tuple[Any, Any]] = {}

    def __call__(self, held: Any, depth: int = 0) -> Any:
        """``held``, or where something stored is in it a copy, with that replaced."""
        if isinstance(held, PLAIN) or depth > DEEPEST:
            return held
        if id(held) not in self._known:
            self._known[id(held)] = held, held  # kept, so that its id is not given again; and it may hold itself
            self._known[id(held)] = held, self._found(held, depth + 1)
        return self._known[id(held)][1]

    def _found(self, held: Any, depth: int) -> Any:
        library = type(held).__module__.partition(".")[0]
        if isinstance(held, zarr.Array | zarr.Group):
            return self._of_zarr(held)
        if library == "h5py":
            return whole_dataset(held) if hasattr(held, "chunks") else held
        if type(held) in (list, tuple):
            return self._same(held, list(held), depth, type(held))
        if type(held) is dict:
            return self._same(held, list(held.values()), depth, lambda new: dict(zip(held, new, strict=True)))
        if isinstance(held, partial):
            if getattr(held.func, "__name__", "") == "make_dask_chunk" and isinstance(held.args[0], Path):  # of anndata
                self.variables.add((str(held.args[0]), held.args[1]))
            parts = [held.func, held.args, held.keywords]
            return self._same(held, parts, depth, lambda new: partial(new[0], *new[1], **new[2]))
        if isinstance(held, FunctionType):
            cells = held.__closure__ or ()
            if any(cell == CellType() for cell in cells):  # not filled yet
                return held
            return self._same(held, [cell.cell_contents for cell in cells], depth, partial(_enclosing, held))
        if hasattr(held, "datastore") and hasattr(held, "variable_name"):  # xarray's, of NetCDF
            if (file := getattr(held.datastore, "_filename", None)) is not None:
                group = getattr(held.datastore, "_group", None) or ""
                self.variables.add((str(file), f"{group}/{held.variable_name}"))
            return held
        names: Any = _attributes(held) if library in ("xarray", "anndata") else KEPT.get(library, ("array", "_array"))
        names = [name for name in names if hasattr(held, name)]
        return self._same(held, [getattr(held, name) for name in names], depth, partial(_with, held, names))

    def _same(self, held: Any, parts: list[Any], depth: int, made: Any) -> Any:
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
        self.stores.append(WholeStore(node.store_path.store, arrays, lost))
        return self.stores[-1].over(node)


def _attributes(held: Any) -> list[str]:
    slots = [name for kind in type(held).__mro__ for name in getattr(kind, "__slots__", ())]
    return [name for name in (*slots, *getattr(held, "__dict__", ())) if not name.startswith("__")]


def _with(held: Any, names: list[str], values: list[Any]) -> Any:
    made = copy(held)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


def _enclosing(function: FunctionType, values: list[Any]) -> FunctionType:
    """The same function over other values."""
    cells = tuple(map(CellType, values))
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return made
