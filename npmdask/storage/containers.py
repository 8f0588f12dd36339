"""What people hold their numbers in, opened: tables, labelled arrays, annotated and sparse matrices in memory.

No library of tables is imported here to find out whether something is of it: who holds a table has imported it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr
from scipy.sparse import csr_array, issparse

from npmdask.errors import BadInputError
from npmdask.storage.checksum import crc32c
from npmdask.storage.conventions import require_undecoded

SHOWN = 5  # names of columns that a sentence lists
ENTRIES = 2**18  # of a chunk of a sparse matrix in memory


def values_of(given: Any) -> Any:
    """The numbers inside of a table, a labelled array or an annotated matrix; anything else as it is.

    Parameters
    ----------
    given : of pandas or Polars a DataFrame or Series, of PyArrow a Table or RecordBatch, of xarray a DataArray or
        Dataset, of AnnData its annotated matrix.

    Returns
    -------
    numpy.ndarray, a SciPy sparse matrix, or ``given``

    Raises
    ------
    BadInputError
        Missing values, columns that are no numbers, several variables, or data that are not in memory.
    """
    library, kind = type(given).__module__.partition(".")[0], type(given).__name__
    if library == "pandas" and kind in ("DataFrame", "Series"):
        return _pandas(given.to_frame() if kind == "Series" else given)
    if (library, kind) in (("polars", "DataFrame"), ("pyarrow", "Table"), ("pyarrow", "RecordBatch")):
        return _arrow(given)
    if library == "xarray" and kind in ("DataArray", "Dataset"):
        return _labelled(given)
    if library == "anndata" and kind == "AnnData":
        return _annotated(given)
    if library == "h5py":
        raise BadInputError(
            f"the {kind} of an HDF5 file is not read as it is yet: give x[...] if it fits into memory; else store it "
            "once, with `npmdask ingest`, and give that path"
        )
    if library == "dask":
        raise BadInputError(
            f"a Dask {kind} is not read as it is yet: write it once, for an array with x.to_zarr('x.zarr'), and give "
            "that path"
        )
    return given


def _pandas(table: Any) -> np.ndarray:
    no_numbers = [str(name) for name, dtype in table.dtypes.items() if getattr(dtype, "kind", "O") not in "iufb"]
    _require_numbers("the DataFrame", no_numbers)
    missing = table.isna().sum()
    _require_whole("the DataFrame", [str(n) for n in missing.index[missing > 0]], int(missing.sum()), "df.dropna()")
    dtypes = [dtype if isinstance(dtype, np.dtype) else np.dtype(np.float64) for dtype in table.dtypes]
    return np.asarray(table.to_numpy(dtype=np.result_type(*dtypes)) if dtypes else table.to_numpy())


def _arrow(given: Any) -> np.ndarray:
    import pyarrow as pa

    table = pa.table(given) if not isinstance(given, pa.RecordBatch) else pa.Table.from_batches([given])
    columns = dict(zip(table.column_names, table.columns, strict=True))
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    _require_numbers("the table", [n for n, c in columns.items() if not any(is_kind(c.type) for is_kind in kinds)])
    missing = {name: column.null_count for name, column in columns.items() if column.null_count}
    _require_whole("the table", list(missing), sum(missing.values()), "table.drop_null()")
    if not columns:
        raise BadInputError("the table has no columns")
    return np.column_stack([column.to_numpy() for column in columns.values()])


def _labelled(given: Any) -> Any:
    if type(given).__name__ == "Dataset":
        found = [str(name) for name, variable in given.data_vars.items() if variable.ndim == 2]
        if len(found) != 1:
            raise BadInputError(
                f"the Dataset has {len(found)} variables of two dimensions{_listed(found)}: give one, as ds['name']"
            )
        given = given[found[0]]
    if given.chunks is not None:
        raise BadInputError(
            "the DataArray is lazy (Dask): give x.load() if it fits into memory; else write it once, with "
            "x.to_dataset(name='x').to_zarr('x.zarr'), and give the path 'x.zarr/x'"
        )
    if given.ndim > 2 and not _square(given.shape):
        first, *others = map(str, given.dims)
        stack = ", ".join(repr(name) for name in others)
        raise BadInputError(
            f"the DataArray has dimensions ({first}, {', '.join(others)}); rows x columns are needed: "
            f"x.stack(feature=({stack})) makes all but {first!r} one"
        )
    require_undecoded(given.attrs, given.dtype, "the DataArray", "an array in memory")
    return given.values


def _square(shape: Sequence[int]) -> bool:
    """Whether these are matrices or a tensor, which have three dimensions."""
    return len(shape) == 3 and shape[1] == shape[2]


def _annotated(given: Any) -> Any:
    if given.isbacked:
        raise BadInputError(
            "the AnnData is backed by a file: give adata.to_memory() if it fits into memory; else the path of its "
            ".h5ad to `npmdask ingest`"
        )
    if given.X is None:
        raise BadInputError("the AnnData has no X: give a layer, as adata.layers['name']")
    return values_of(given.X)


def _require_numbers(what: str, columns: list[str]) -> None:
    if columns:
        raise BadInputError(
            f"{what} has {len(columns)} columns that are no real numbers{_listed(columns)}: leave them out, or convert "
            "them"
        )


def _require_whole(what: str, columns: list[str], missing: int, remedy: str) -> None:
    if missing:
        raise BadInputError(
            f"{what} has {missing} missing values in {len(columns)} columns{_listed(columns)}, and missing values "
            f"cannot be analysed yet: fill them in, or leave rows out ({remedy})"
        )


def _listed(names: list[str]) -> str:
    if not names:
        return ""
    return f" ({', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''})"


def is_sparse(given: Any) -> bool:
    """Whether this is a matrix or array of scipy.sparse."""
    return bool(issparse(given))  # a view of an AnnData, too


def sparse_in_memory(given: Any) -> tuple[zarr.Group, str]:
    """A group in memory that holds a SciPy sparse matrix as CSR, and where it is, by its content.

    Raises
    ------
    BadInputError
        Not two dimensions, or complex numbers.
    """
    if len(given.shape) != 2:
        raise BadInputError(f"the sparse array has {len(given.shape)} dimensions; 2 are needed (rows x columns)")
    if np.dtype(given.dtype).kind not in "iufb":
        raise BadInputError(f"the sparse matrix holds {given.dtype}; real numbers are needed")
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
        stored = group.create_array(
            name,
            shape=part.shape,
            dtype=part.dtype,
            chunks=(max(1, min(ENTRIES, len(part))),),
            compressors=None,
            config={"write_empty_chunks": True},
        )
        stored[...] = part
    return group, f"memory, content {content:08x}"
