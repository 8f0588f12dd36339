"""Open the containers of programs: tables, labelled arrays, annotated and sparse matrices in memory.

No library of tables is imported here to find out whether something is of it: who holds a table has imported it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import zarr
from scipy.sparse import csr_array, issparse

from npmdask.containers.lazy import (
    BlockRows,
    array_of_parts,
    graph_rows,
    mapped_rows,
    open_blocks,
    rows_of_a_block,
    stored_rows,
)
from npmdask.core import features
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.chunk_access import PLAIN
from npmdask.core.storage.columns import Choice, choice_of, chosen, genotypes, listed, names_of_rows
from npmdask.core.storage.conventions import the_only
from npmdask.core.storage.labels import Axis, Labels, axis_of, of_columns, points_of
from npmdask.core.storage.source import Asked, Source, open_array, open_node_of, open_stored, require_computed
from npmdask.errors import BadInputError, extra, require

ENTRIES = 2**18  # of a chunk of a sparse matrix in memory


def values_of(given: Any, dim: str | int | None = None, *, gaps: bool = False) -> Any:
    """The numbers inside of a table, a labelled, lazy or annotated array; anything else as it is.

    Parameters
    ----------
    given : of pandas or Polars a DataFrame or Series, of PyArrow a Table or RecordBatch, of xarray a DataArray or
        Dataset, of AnnData its annotated matrix, of Dask an array or DataFrame, of h5py a dataset or a CSR group, of
        icechunk a session or its store.
    dim : the dimension that rows lie along, by name or number, of what has more than two: the others are a row.

    Returns
    -------
    numpy.ndarray, a SciPy sparse matrix, rows that are computed or read when they are asked for, a Zarr array or group,
    or ``given``

    Raises
    ------
    BadInputError
        Missing values, columns that are no numbers, or several variables.
    """
    library, kind = type(given).__module__.partition(".")[0], type(given).__name__
    if library == "anndata" and hasattr(given, "dask"):  # part of a view
        library = "dask"
    if library == "xarray" and kind in ("DataArray", "Dataset"):
        return _labelled(given, dim, gaps=gaps)
    if type(given).__module__ == "dask.delayed":  # which seems to have every attribute
        raise BadInputError(
            "a Dask Delayed has no shape and no dtype: give dask.array.from_delayed(x, shape=(m, d), dtype=float)"
        )
    given = table_of(given, None)[0]
    if library == "dask" and hasattr(given, "to_dask_array"):
        given = _computed_table(given)
    if library == "dask" and hasattr(given, "chunks"):
        return graph_rows(_rows_first(given, dim, "the Dask array"), "the Dask array")
    if isinstance(given, np.ndarray) and dim is not None:
        given = _rows_first(given, dim, "the array")
        given = given.reshape(len(given), -1)
        return mapped_rows(given) if isinstance(given, np.memmap) else given
    if library == "icechunk":
        if dim is not None:
            raise BadInputError(
                f"dim = {dim!r} needs an array with named dimensions: give xarray.open_zarr(session.store, "
                "consolidated=False, chunks={})['name'] instead of the session"
            )
        return features.required("fetchers", "icechunk").node_of(given)
    require(dim is None, f"dim = {dim!r} applies only to arrays of xarray, Dask and NumPy: leave it out")
    if library == "pandas" and kind in ("DataFrame", "Series"):
        return _pandas(given, gaps=gaps)
    if (library, kind) in (("polars", "DataFrame"), ("pyarrow", "Table"), ("pyarrow", "RecordBatch")):
        return _arrow(given, gaps=gaps)
    if library == "anndata" and (kind == "AnnData" or hasattr(given, "group")):
        return _annotated(given, gaps=gaps)
    if library == "h5py":
        return stored_rows(given, gaps=gaps)
    return mapped_rows(given) if isinstance(given, np.memmap) else given


class Held:
    """Who opens what a program holds."""

    def numbers(self, given: Any, what: str) -> Any:
        """Return the same in memory, for what is no data but is given as they are: weights, scores.

        Raises
        ------
        BadInputError
            It is not in memory, or as :func:`values_of`.
        """
        values = values_of(given)
        if isinstance(values, BlockRows):
            raise BadInputError(f"{what} are not in memory ({values.name}): give x.compute() or x[...], if they fit")
        return values

    def chosen(self, given: Any, choice: Choice) -> Any:
        """Return the chosen columns of a table."""
        return table_of(given, choice)[0]

    def opened(self, given: Any, asked: Asked) -> Source:
        """Open it, with what its columns are called and what was decided of them."""
        choice = choice_of(asked.columns)
        given, labels, notes = table_of(given, choice)
        if is_linear_operator(given):
            from npmdask.containers.matrix_free import open_operator  # which data with rows do not need

            return open_operator(given, asked)
        labels, values = labels or labels_of(given, asked.dim), values_of(given, asked.dim, gaps=asked.gaps)
        asked = replace(asked, dim=None)
        if isinstance(values, BlockRows):
            opened = open_blocks(values, asked)
        elif issparse(values):
            require_computed(asked)
            opened = open_stored(*sparse_in_memory(values), asked)
        else:
            opened = (open_node_of if isinstance(values, zarr.Array | zarr.Group) else open_array)(values, asked)
        path = opened.path if choice is None else choice.at(opened.path)
        return replace(opened, path=path, labels=labels or opened.labels, notes=(*opened.notes, *notes))


HELD = Held()


def open_along(place: str, asked: Asked) -> Source:
    """Open rows along a dimension of a file or Zarr store that knows its dimensions."""
    from npmdask.containers.wholeness import open_grid  # which a table does not need

    given, cells, place = open_grid(Path(place), str(asked.dim), gaps=asked.gaps)
    assert cells is not None
    opened = open_blocks(cells, asked)
    labels = labels_of(given, asked.dim) or opened.labels
    return replace(opened, path=place, dim=str(asked.dim), labels=labels)


def labels_of(given: Any, dim: str | int | None = None) -> Labels | None:
    """Return the names of the rows and columns of ``given``, as far as it has any; parameters as :func:`values_of`."""
    library, kind = type(given).__module__.partition(".")[0], type(given).__name__
    if library == "xarray" and kind in ("DataArray", "Dataset"):
        array = rows_along(given, dim)
        held = array.indexes
        axes = tuple(axis_of(n, held[n].to_numpy() if n in held else None, size) for n, size in array.sizes.items())
        if len(axes) != 2 and dim is None:
            return None
        along = array.dims[1:]  # of one dimension, every column may have a place: stations, a mesh, a stacked grid
        beside = {str(name): one for name, one in array.coords.items() if one.dims == along} if len(along) == 1 else {}
        return Labels(axes[:1], axes[1:], points=points_of(beside, axes[1].size))
    return table_of(given, None)[1]


def table_of(given: Any, choice: Choice | None) -> tuple[Any, Labels | None, tuple[str, ...]]:
    """The columns of a table, or an AnnData, that are analysed, what they are called, and what is to be said of others;
    anything else as it is.

    Raises
    ------
    BadInputError
        A column is no numbers, there is no such column, or there are none to choose from.
    """
    library, kind = type(given).__module__.partition(".")[0], type(given).__name__
    rows, called, index = tuple[Axis, ...](), "column", list[int]()
    if library == "pandas" and kind in ("DataFrame", "Series"):
        given = given.to_frame() if kind == "Series" else given
        counted = type(given.index).__name__ == "RangeIndex" and (given.index.start, given.index.step) == (0, 1)
        rows = () if counted else (axis_of(given.index.name or "row", given.index.to_numpy()),)
        where, names, called = "the DataFrame", given.columns.to_numpy(), given.columns.name or called
        kinds = [getattr(dtype, "kind", "O") for dtype in given.dtypes]
    elif library == "dask" and type(given).__module__ != "dask.delayed" and hasattr(given, "dtypes"):
        given = given.to_frame() if kind == "Series" else given
        where, names, kinds = "the Dask DataFrame", given.columns, [dtype.kind for dtype in given.dtypes]
    elif library == "anndata" and kind == "AnnData" and given.n_vars:
        where, called, kinds = "the AnnData", "var", "f" * given.n_vars
        rows, names = (axis_of("obs", given.obs_names.to_numpy()),), given.var_names.to_numpy()
    elif (library == "polars" and kind == "DataFrame") or (library == "pyarrow" and hasattr(given, "schema")):
        from npmdask.formats.tables import kind_of

        schema = given.schema if library == "pyarrow" else given.head(0).to_arrow().schema
        where, names, kinds = "the table", schema.names, [kind_of(one) for one in schema.types]
        index = names_of_rows(names, schema.metadata)
        if len(index) == 1 and hasattr(given, "column"):
            rows = (axis_of(names[index[0]], given.column(index[0]).to_pylist()),)
    elif choice is None:
        return given, None, ()
    else:
        raise BadInputError(f"columns are chosen of tables, and this is of type {type(given).__name__}: leave them out")
    kept, notes = chosen([str(n) for n in names], [k in "iuf" for k in kinds], index, choice, where)
    no_numbers = [str(names[i]) for i in kept if kinds[i] not in "iufb"]
    if no_numbers:
        raise BadInputError(
            f"{where} has {len(no_numbers)} columns that are not real numbers{_names_text(no_numbers)}: leave them out "
            "(top_k takes columns='numeric'; of pandas, df.select_dtypes('number')), or convert them"
        )
    labels = Labels(rows, (axis_of(called, np.asarray(names)[kept]),))
    if hasattr(given, "get_fragments"):
        return _dataset(given, [names[i] for i in kept]), labels, notes
    if len(kept) == len(names) and choice is None:
        return given, labels, notes
    if library == "pyarrow":  # whose metadata would still name an index
        return given.select(kept).replace_schema_metadata(), labels, notes
    return (given.iloc if hasattr(given, "iloc") else given)[:, kept], labels, notes


@dataclass(frozen=True, kw_only=True)
class _DatasetFragments(BlockRows):
    """Rows of a dataset of PyArrow: each of its files or row groups is ``read`` as a block."""

    parts: tuple[Any, ...]
    read: Callable[[Any], np.ndarray]
    remedy: ClassVar[str] = "look whether the files of the dataset are there, and as they were written"

    def block(self, number: int) -> np.ndarray:
        return self.read(self.parts[number])


def _dataset(dataset: Any, names: list[str]) -> BlockRows:
    """The rows of some columns of a dataset of PyArrow. Raises BadInputError where it is filtered, or empty."""
    from npmdask.formats.tables import block_of, dtype_of

    try:
        files = list(dataset.get_fragments())
    except ValueError as error:
        raise BadInputError(f"the dataset cannot be read by files ({error}): give dataset.to_table()") from error
    groups = [one for file in files for one in getattr(file, "split_by_row_group", lambda: [file])()]  # noqa: B023
    parts = [(one, rows) for one in groups if (rows := one.count_rows())]
    require(bool(parts), "the dataset has no rows: it has no data to analyse")
    dtype = np.result_type(*[dtype_of(dataset.schema.field(name), "the dataset") for name in names])
    return _DatasetFragments(
        name=f"the dataset of {len(files)} files",
        stamp=str([(getattr(one, "path", ""), rows) for one, rows in parts]),
        shape=(sum(rows for _, rows in parts), len(names)),
        heights=tuple(rows for _, rows in parts),
        parts=tuple(one for one, _ in parts),
        read=partial(block_of, schema=dataset.schema, names=names, dtype=dtype),
    ).measured()


def _rows_first(array: Any, dim: str | int | None, what: str) -> Any:
    """The same array with the dimension ``dim`` in front.

    Raises
    ------
    BadInputError
        There is none of this number, or none was said of an array of more than two.
    """
    if dim is None and array.ndim == 2:
        return array
    if array.ndim < 2 or dim is None:
        more = "; say which dimension the rows lie along, as dim=0: the others are a row" if array.ndim > 2 else ""
        raise BadInputError(f"{what} has {array.ndim} dimensions; 2 are needed (rows x columns){more}")
    if not isinstance(dim, int) or isinstance(dim, bool) or not 0 <= dim < array.ndim:
        raise BadInputError(f"dim = {dim!r}: the dimensions of {what} are 0 to {array.ndim - 1}")
    return array.transpose(dim, *(n for n in range(array.ndim) if n != dim))


def _computed_table(table: Any) -> Any:
    """The columns of a Dask DataFrame as an array."""
    values = partition_values(table)
    return array_of_parts(table.to_delayed(), values, len(table.columns), values.args[1])


def partition_values(table: Any) -> partial[np.ndarray]:
    """A function for the values of a partition of a Dask DataFrame, its columns in the order of the frame."""
    dtype = np.result_type(*(kind if isinstance(kind, np.dtype) else np.float64 for kind in table.dtypes))
    return partial(_aligned, list(table.columns), dtype)


def _aligned(columns: list[Any], dtype: np.dtype, part: Any) -> np.ndarray:
    """The values of a partition, its columns in the order of the frame."""
    from npmdask.core.storage.names import matched

    known, given = of_columns(columns).columns, of_columns(list(part.columns)).columns
    order = matched(known, given, "a partition of the Dask DataFrame", "the frame")
    return np.asarray((part if order.places is None else part.iloc[:, order.places]).to_numpy(dtype))


def _pandas(table: Any, *, gaps: bool) -> np.ndarray:
    missing = table.isna().sum()
    if not gaps:
        _require_whole("the DataFrame", [str(n) for n in missing.index[missing > 0]], int(missing.sum()), "df.dropna()")
    dtypes = [dtype if isinstance(dtype, np.dtype) else np.dtype(np.float64) for dtype in table.dtypes]
    dtype = np.result_type(*dtypes) if dtypes else None
    return np.asarray(table.to_numpy(dtype=dtype, na_value=np.nan) if missing.any() else table.to_numpy(dtype=dtype))


def _arrow(given: Any, *, gaps: bool) -> np.ndarray:
    with extra("ingest"):
        import pyarrow as pa
    table = pa.table(given) if not isinstance(given, pa.RecordBatch) else pa.Table.from_batches([given])
    columns = dict(zip(table.column_names, table.columns, strict=True))
    missing = {name: column.null_count for name, column in columns.items() if column.null_count}
    if not gaps:
        _require_whole("the table", list(missing), sum(missing.values()), "table.drop_null()")
    return np.column_stack([column.to_numpy() for column in columns.values()])


def rows_along(given: Any, dim: str | int | None) -> Any:
    """A DataArray, or the only variable of a Dataset that can be meant, with its rows along ``dim``."""
    if {"alleles", "ploidy"} & {str(name) for name in given.dims}:
        raise genotypes(f"the {type(given).__name__}")
    if type(given).__name__ == "Dataset":
        shapes = {str(name): one.shape for name, one in given.data_vars.items() if dim is None or dim in one.dims}
        only, found = the_only(shapes, 2 if dim is None else None, given.variables)
        if only is None:
            said = "of two dimensions" if dim is None else f"along {dim!r}"
            more = dim is None and any(given[name].ndim > 2 for name in found or given.data_vars)
            raise BadInputError(
                f"the Dataset has {len(found)} variables {said}{' or more' * (more and bool(found))}"
                f"{_names_text(sorted(found))}: give one, as ds['name'] (of a file as FILE/NAME)"
                + (", with dim= where it has more dimensions" if more else "")
            )
        given = given[only]
    if dim is not None and dim not in given.dims:
        raise BadInputError(f"dim = {dim!r}: the dimensions of the DataArray are {', '.join(map(str, given.dims))}")
    if given.ndim > 2 and dim is None and not (given.ndim == 3 and given.shape[1] == given.shape[2]):
        raise BadInputError(
            f"the DataArray has dimensions ({', '.join(map(str, given.dims))}); rows x columns are needed: name the "
            f"dimension along which rows lie, as dim={str(given.dims[0])!r}; all others then form a row"
        )
    return given if dim is None else given.transpose(dim, ...)


def _labelled(given: Any, dim: str | int | None, *, gaps: bool) -> Any:
    """The values of a DataArray or Dataset; rows along ``dim``."""
    from npmdask.containers.wholeness import conventions_left  # which tables do not need

    given = rows_along(given, dim)
    meant = conventions_left(given.attrs, given.encoding, given.dtype, "the DataArray", gaps=gaps)
    require(given.ndim >= 2, f"the DataArray has {given.ndim} dimensions; 2 are needed (rows x columns)")
    if given.chunks is None and not getattr(given.variable, "_in_memory", True):  # a file that was opened
        given = given.chunk({given.dims[0]: rows_of_a_block(given.shape, given.dtype)})
    if given.chunks is not None:
        if not type(given.data).__module__.startswith("dask"):
            raise BadInputError(
                f"the DataArray holds a {type(given.data).__name__}, which is not a Dask array: give x.compute()"
            )
        return graph_rows(given.data, "the DataArray", meant)
    values = given.values if meant is None else meant.required(given.values, "the DataArray")
    return values if dim is None else values.reshape(len(given), -1)


def _annotated(given: Any, *, gaps: bool) -> Any:
    """The matrix of an AnnData, or one that it has in a file."""
    if type(given).__name__ != "AnnData":  # a sparse matrix in a file
        if not hasattr(given, "group") or getattr(given, "format", None) != "csr":
            raise BadInputError(
                f"the {type(given).__name__} is not stored by rows: give it in memory, or write it as a CSR matrix"
            )
        return values_of(given.group, gaps=gaps)
    require(given.X is not None, "the AnnData has no X: give a layer, as adata.layers['name']")
    return values_of(given.X, gaps=gaps)


def _require_whole(what: str, columns: list[str], missing: int, remedy: str) -> None:
    if missing:
        raise BadInputError(
            f"{what} has {missing} missing values in {len(columns)} columns{_names_text(columns)}, and missing values "
            f"are refused: fill them in, leave rows out ({remedy}), or use missing = 'mean' in a run that is not "
            "private"
        )


def _names_text(names: list[str]) -> str:
    return f" ({listed(names)})" if names else ""


def is_linear_operator(given: Any) -> bool:
    """Say whether this is a LinearOperator of scipy.sparse.linalg, without importing scipy.sparse.linalg."""
    return any(
        base.__name__ == "LinearOperator" and base.__module__.startswith("scipy.sparse.linalg")
        for base in type(given).__mro__
    )


def sparse_in_memory(given: Any) -> tuple[zarr.Group, str]:
    """A group in memory that holds a SciPy sparse matrix as CSR, and where it is, by its content.

    Raises
    ------
    BadInputError
        Not two dimensions, or complex numbers.
    """
    require(len(given.shape) == 2, f"the sparse array has {len(given.shape)} dimensions; 2 are needed (rows x columns)")
    require(np.dtype(given.dtype).kind in "iufb", f"the sparse matrix holds {given.dtype}; real numbers are needed")
    held = given.tocsr()
    # Whether entries are given twice is looked for again: SciPy remembers what was so before arrays were changed.
    matrix = csr_array((held.data, held.indices, held.indptr), shape=held.shape)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()  # that of the caller is left as it is
        matrix.sum_duplicates()
    group = zarr.group({})
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(given.shape)})
    content = 0
    for name in ("data", "indices", "indptr"):
        part = np.ascontiguousarray(getattr(matrix, name))
        content = crc32c(part, content)
        chunks = (max(1, min(ENTRIES, len(part))),)
        group.create_array(name, shape=part.shape, dtype=part.dtype, chunks=chunks, **PLAIN)[...] = part
    return group, f"memory, content {content:08x}"
