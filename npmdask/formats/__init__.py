"""Files that people have, as row batches: one module a family, and here the way to all of them.

A source knows its shape and dtype at once and gives its rows from any row on, a few MiB at a time, whatever
the size of the file. Nothing is memory-mapped (mapped pages count as memory of the process) and nothing is
ever unpickled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from npmdask.core.storage.columns import addressed, parts_of
from npmdask.core.storage.kinds import MATRICES, TENSOR
from npmdask.core.storage.paths import is_zarr
from npmdask.errors import BadInputError, Later, require
from npmdask.formats.common import DenseSource, SparseSource, open_binary, require_regular_file
from npmdask.formats.cubes import TensorSource, open_npy_matrices, open_npy_tensor, open_zarr_matrices, open_zarr_tensor
from npmdask.formats.numpy_files import open_idx, open_npy, open_npz
from npmdask.formats.zarr_stores import open_zarr

_hdf5 = Later("npmdask.formats.hdf5")  # a module that few need

SUPPORTED = (
    ".npy, .npz (NumPy or SciPy sparse), .csv, .tsv, .parquet (a file or a folder of parts), "
    ".h5/.hdf5/.h5ad/.loom, MATLAB 7.3 and NetCDF 4, .mtx, IDX (MNIST), UCI docword*.txt, and Zarr folders; csv, tsv, "
    "mtx, IDX and docword also packed with gzip"
)
SUFFIXES = {
    ".npy": "npy", ".npz": "npz", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet",
    ".h5": "hdf5", ".hdf5": "hdf5", ".h5ad": "hdf5", ".he5": "hdf5", ".loom": "hdf5", ".mtx": "mtx", ".idx": "idx",
}  # fmt: skip
TABLES = ("csv", "tsv", "parquet")
MAGIC = {
    b"\x93NUMPY": "npy", b"PK\x03\x04": "npz", b"PAR1": "parquet", b"\x89HDF\r\n\x1a\n": "hdf5",
    b"MATLAB 7.3": "hdf5", b"%%MatrixMarket": "mtx",
    b"CDF\x01": "netcdf3", b"CDF\x02": "netcdf3", b"CDF\x05": "netcdf3",
}  # fmt: skip


def open_file(
    path: Path, dataset: str | None, missing: str, header: bool | None, spool: Path, gaps: str = "refuse"
) -> DenseSource | SparseSource:
    """The source in ``path``, whatever its format; ``spool`` is where temporary files may go.

    ``missing``: "error", "fill" (chunks of Zarr or HDF5 that are not there) or "nan" (missing values of a table of
    floats, and of arrays). ``gaps``: whether missing values of arrays are refused, or are NaN ("nan").
    """
    from npmdask.formats.coordinate_text import open_docword, open_market  # what a plain run does not load
    from npmdask.formats.tables import open_parquet, open_text

    gaps = "nan" if missing == "nan" else gaps
    openers: dict[str, Callable[[], DenseSource | SparseSource]] = {
        "npy": lambda: open_npy(path),
        "npz": lambda: open_npz(path, dataset, spool),
        "csv": lambda: open_text(path, header, None, missing),
        "tsv": lambda: open_text(path, header, "\t", missing),
        "parquet": lambda: open_parquet(path, spool, missing),
        "hdf5": lambda: _hdf5.open_hdf5(path, dataset, missing, spool, gaps),
        "mtx": lambda: open_market(path, spool),
        "idx": lambda: open_idx(path),
        "docword": lambda: open_docword(path),
        "zarr": lambda: open_zarr(path, dataset, missing, spool, gaps),
    }
    name = tell_format(path)
    if dataset is not None and name not in ("npz", "hdf5", "zarr"):
        raise BadInputError(f"{path} ({name}) holds one table: leave out dataset={dataset!r}")
    return openers[name]()


def open_matrices(path: Path, dataset: str | None, missing: str, spool: Path, gaps: str = "refuse") -> DenseSource:
    """The square matrices in ``path``, flattened; as :func:`open_file`."""
    name = tell_format(path)
    if name == "npy" and dataset is None:
        return open_npy_matrices(path)
    if name == "zarr":
        return open_zarr_matrices(path, dataset, missing, spool, gaps)
    raise BadInputError(f"{path} ({name}): {MATRICES}, in a .npy file (without dataset) or in Zarr; write it as such")


def open_tensor(path: Path, dataset: str | None, missing: str, spool: Path) -> TensorSource:
    """The tensor of order three in ``path``; as :func:`open_file`."""
    name = tell_format(path)
    if name == "npy" and dataset is None:
        return open_npy_tensor(path)
    if name == "zarr":
        return open_zarr_tensor(path, dataset, missing, spool)
    raise BadInputError(f"{path} ({name}): {TENSOR}, in a .npy file (without dataset) or in Zarr; write it as such")


def tell_format(path: Path) -> str:
    """The format's name, by suffix and else by content."""
    if (place := Path(addressed(path)[0])).is_dir():
        return _folder_format(place)
    if (parts := parts_of(path)) and parts != [path]:
        if (found := tell_format(parts[0])) in TABLES:
            return found
        raise BadInputError(
            f"{path}: {found} is no format of tables ({', '.join(TABLES)}): give one file, and all of it"
        )
    require_regular_file(path)
    name = path.name.lower()
    packed = name.endswith(".gz")
    known = SUFFIXES.get(Path(name.removesuffix(".gz")).suffix, "")
    if packed and known in ("npy", "npz", "parquet", "hdf5"):
        raise BadInputError(f"{path}: unpack it first (gunzip), {known} files are not read through gzip")
    found = known or _sniff(path)
    if found == "netcdf3":
        raise BadInputError(
            f"{path} is NetCDF 3 (classic), which only xarray reads: run on it as it is, and say along which dimension "
            f"rows lie: --dim time; or write one array of it as Zarr: xarray.open_dataset({path.name!r})[NAME].to_zarr"
            "('name.zarr')"
        )
    require(bool(found), f"{path} has no known format; supported are {SUPPORTED}")
    return found


def _folder_format(path: Path) -> str:
    if is_zarr(path):
        return "zarr"
    if any(path.glob("*.parquet")):
        return "parquet"
    raise BadInputError(f"the folder {path} is neither Zarr nor Parquet parts; supported are {SUPPORTED}")


def _sniff(path: Path) -> str:
    with open_binary(path) as file:
        head = file.read(4096)
    for magic, name in MAGIC.items():
        if head.startswith(magic):
            return name
    if len(head) >= 4 and head[:2] == b"\0\0" and head[2] in (8, 9, 11, 12, 13, 14) and head[3]:
        return "idx"
    lines = [line.split() for line in head.split(b"\n")[:4]]
    numbers = all(word.isdigit() for line in lines for word in line)
    return "docword" if numbers and [len(line) for line in lines] == [1, 1, 1, 3] else ""
