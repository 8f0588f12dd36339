"""Map a function of rows over what is lazy, a block at a time; what comes back is as lazy, and of the same kind.

Nothing is computed before the caller does it: the result is a graph of Dask, and no run that is kept and resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse

from npmdask.containers.containers import partition_values, rows_along, table_of
from npmdask.containers.lazy import plain_block
from npmdask.containers.wholeness import Stored, conventions_left
from npmdask.core.storage.conventions import Conventions
from npmdask.core.storage.labels import Axis
from npmdask.core.storage.safe_open import mark_of, of_budget
from npmdask.errors import BadInputError, require, warn
from npmdask.formats import hdf5


def is_lazy(given: Any) -> bool:
    """Say whether this is an array or DataFrame of Dask, or an object of xarray that holds such arrays."""
    library, kind = type(given).__module__.partition(".")[0], type(given).__name__
    if library == "xarray" and kind in ("DataArray", "Dataset"):
        given = rows_along(given, None)
        return given.chunks is not None and type(given.data).__module__.startswith("dask")
    of_dask = library == "dask" and type(given).__module__ != "dask.delayed"
    return of_dask and (hasattr(given, "chunks") or hasattr(given, "dtypes"))


def token_of(*held: Any) -> Any:
    """Return what Dask tells things apart by."""
    from dask.base import normalize_token

    return normalize_token(held)


@dataclass(frozen=True, kw_only=True)
class _Block:
    """Treatment of a block: its rows are given to the ``function``, with the dtype that it returns.

    ``places``: of columns, in the order that they are wanted in. ``meant``: what is left to do of the values.
    ``variables``: what is read from files of HDF5, and held to be whole.
    """

    function: Callable[[Any, Any], np.ndarray]
    width: int
    dtype: np.dtype
    places: np.ndarray | None
    meant: Conventions | None = None
    variables: tuple[tuple[str, str], ...] = ()

    def __call__(self, block: Any, block_id: tuple[int, ...] | None = None) -> np.ndarray:
        try:
            for file, name in self.variables:
                hdf5.require_variable(file, name)
            rows = block.tocsr() if issparse(block) else plain_block(block)
            rows = rows if self.meant is None or issparse(rows) else self.meant.required(rows, "the block")
            rows = rows if self.places is None else rows[:, self.places]
            return self.function(rows, self.dtype) if rows.shape[0] else np.empty((0, self.width), self.dtype)
        except ValueError as error:  # of masked values, and of npmdask
            raise BadInputError(f"block {block_id[0]} of the rows: {error}" if block_id else str(error)) from error


@dataclass(frozen=True)
class _Partition:
    """The same of a partition of a DataFrame, whose index is kept."""

    values: Callable[[Any], np.ndarray]
    block: _Block
    names: Sequence[Any]

    def __call__(self, part: Any) -> Any:
        return type(part)(self.block(self.values(part)), index=part.index, columns=list(self.names))


def mapped(
    called: str,
    given: Any,
    function: Callable[[Any, Any], np.ndarray],
    to: Axis,
    places: np.ndarray | None,
    *,
    gaps: bool,
) -> Any:
    """The rows that ``function`` makes of those of ``given``, with the columns ``to``: float32 of float32, else
    float64. ``places``: which columns it is given. ``called``: what they are.

    Raises
    ------
    BadInputError
        Not two dimensions, or columns that are no numbers.
    """

    def doing(dtype: Any, meant: Conventions | None = None) -> _Block:
        kept = np.dtype(np.float32 if dtype == np.float32 else np.float64)
        return _Block(function=function, width=to.size, dtype=kept, places=places, meant=meant)

    if hasattr(given, "dtypes") and not hasattr(given, "dims"):
        return _mapped_table(given, doing, to)
    if not hasattr(given, "dims"):
        return _mapped_array(called, given, doing(given.dtype))
    import xarray as xr  # who has an object of it

    given = rows_along(given, None)
    meant = conventions_left(given.attrs, given.encoding, given.dtype, "the DataArray", gaps=gaps)
    found = _mapped_array(called, given.data, doing(given.dtype, meant))
    rows = given.dims[0]
    beside = {name: one for name, one in given.coords.items() if set(one.dims) <= {rows}}
    along = f"{to.name}_" if to.name in {rows, *beside} else to.name
    coords = beside if to.values is None else {**beside, along: to.values}
    return xr.DataArray(found, dims=(rows, along), coords=coords, name=called)


def _mapped_array(called: str, array: Any, block: _Block) -> Any:
    import dask.array as da

    require(array.ndim == 2, f"the lazy array has {array.ndim} dimensions; 2 are needed (rows x columns)")
    known = not np.isnan(array.shape[1])
    require(known, "the lazy array has columns of unknown number: call x.compute_chunk_sizes() first")
    array = array.rechunk({1: -1}) if len(array.chunks[1]) > 1 else array
    graph, names, block = _whole(array.__dask_graph__(), block)
    if names:
        name = names[array.name, 0, 0][0]
        array = da.Array(graph, name, array.chunks, meta=array._meta)
    chunks = (array.chunks[0], (block.width,))
    return array.map_blocks(block, token=called, dtype=block.dtype, chunks=chunks, meta=np.empty((0, 0), block.dtype))


def _mapped_table(table: Any, doing: Callable[[Any], _Block], to: Axis) -> Any:
    import dask.dataframe as dd
    from dask import delayed
    from dask.delayed import Delayed

    table, values = table_of(table, None)[0], partition_values(table)
    parts = table.to_delayed()
    graph, names, block = _whole({k: v for part in parts for k, v in part.dask.items()}, doing(values.args[1]))
    parts = [Delayed(names[part.key], graph) for part in parts] if names else parts
    done = _Partition(values, block, list(to.places))
    meta = type(table._meta)(np.empty((0, to.size), block.dtype), index=table._meta.index, columns=list(to.places))
    made = [delayed(done, pure=True)(part) for part in parts]
    return dd.from_delayed(made, meta=meta, divisions=table.divisions, verify_meta=False)


def _whole(graph: Any, block: _Block) -> tuple[dict[Any, Any], dict[Any, Any], _Block]:
    """The same tasks by other names, all that is stored held to be whole as in a run; no names: nothing is stored."""
    from dask._task_spec import convert_legacy_graph

    stored = Stored()
    found = {key: stored(task) for key, task in convert_legacy_graph(dict(graph)).items()}
    if mark := next(filter(None, map(mark_of, stored.arrays)), None):
        warn(of_budget(str(mark.get("dataset"))))
    if not stored.stores and not stored.variables:
        return {}, {}, block
    names = {key: (f"whole-{key[0]}", *key[1:]) if isinstance(key, tuple) else f"whole-{key}" for key in found}
    made = {names[key]: task.substitute(names, key=names[key]) for key, task in found.items()}
    return made, names, replace(block, variables=tuple(sorted(stored.variables)))
