"""Damaged stores through every door: refused with the chunk named, and never certified; their whole twins are answered.

A store is made once for each layout, whole; for each damage it is copied, one file of it is damaged, and a door is
asked. The whole store goes through the same door, and its answer is that of NumPy's SVD.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import anndata
import dask.array as da
import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr
from numcodecs import LZ4, Blosc, GZip, Zstd
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

import npmdask
from npmdask.errors import BadInputError, NpmdaskError
from npmdask.estimators.pca import PCA
from npmdask.missing.gaps import DROP
from npmdask.xarray import EOF
from tests.conftest import often

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
    pytest.mark.filterwarnings("ignore:.*experimental"),
]

ROWS, DIMS = 40, ("time", "lat", "lon")


def values(dtype: str, ndim: int) -> np.ndarray:
    """Integers that are never 0, whose blocks of rows differ much: one that is lost changes the answer."""
    made = np.random.default_rng(7).integers(1, 900, (ROWS, 6)) * np.repeat([1, 3, 9, 27], 10)[:, None]
    return made.astype(dtype).reshape((ROWS, 6) if ndim == 2 else (ROWS, 3, 2))


def truth(x: np.ndarray) -> np.ndarray:
    flat = x.reshape(len(x), -1).astype(float)
    return np.linalg.svd(flat - flat.mean(0), compute_uv=False)[:2] ** 2 / (len(flat) - 1)


# Layouts: format, codec, dtype, dimensions. Chunks are of 10 rows.

V3: dict[str, Any] = {
    "none": {"compressors": None},
    "lz4": {"compressors": BloscCodec(cname="lz4", shuffle="shuffle")},
    "blosc zstd": {"compressors": BloscCodec(cname="zstd", shuffle="bitshuffle")},
    "zstd": {"compressors": ZstdCodec()},
    "gzip": {"compressors": GzipCodec()},
    "shards": {"compressors": BloscCodec(cname="lz4", shuffle="shuffle"), "shards": True},
}
V2: dict[str, Any] = {
    "none": {"compressors": None},
    "lz4": {"compressors": Blosc("lz4")},
    "blosc zstd": {"compressors": Blosc("zstd")},
    "zstd": {"compressors": Zstd()},
    "gzip": {"compressors": GZip()},
    "plain lz4": {"compressors": LZ4()},
}
LAYOUTS = [(3, codec, ndim) for codec in V3 for ndim in (2, 3)] + [(2, codec, ndim) for codec in V2 for ndim in (2, 3)]
DTYPES = ("float64", "float32", "int32", "int16")
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "removed": lambda data: None,
    "cut by one byte": lambda data: data[:-1],
    "cut by eight bytes": lambda data: data[:-8],
    "half": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
}


@cache
def scratch() -> Path:
    return Path(mkdtemp())


@cache
def store(layout: tuple[int, str, int]) -> tuple[Path, np.ndarray]:
    """A whole store with an array x, as AnnData and xarray can open it, and its values."""
    version, codec, ndim = layout
    x = values(DTYPES[LAYOUTS.index(layout) % 4], ndim)
    path = scratch() / f"v{version} {codec} {ndim}.zarr"
    group = zarr.create_group(path, zarr_format=version)  # type: ignore[arg-type]
    options = dict((V3 if version == 3 else V2)[codec])
    chunks = (10, *x.shape[1:])
    if options.pop("shards", False):
        options |= {"shards": chunks, "chunks": (5, *x.shape[1:])}
    named = (
        {"dimension_names": DIMS[:ndim]}
        if version == 3
        else {"attributes": {"_ARRAY_DIMENSIONS": DIMS[:ndim]}, "fill_value": None}
    )
    group.create_array("x", shape=x.shape, dtype=x.dtype, **{"chunks": chunks, **options, **named})[...] = x
    return path, x


def damaged(path: Path, name: str, to: Path) -> Path:
    """A copy of a store, the file of its second chunk or shard damaged."""
    shutil.copytree(path, to)
    chunks = sorted(
        file for file in (to / "x").rglob("*") if file.is_file() and file.name[0] != "." and file.name != "zarr.json"
    )
    left = DAMAGES[name](chunks[1].read_bytes())
    chunks[1].unlink()
    if left is not None:
        chunks[1].write_bytes(left)
    return to


# Doors: variances of the two largest components of the centred data at a path.


def lazy(path: Path) -> Any:
    return da.from_zarr(str(path / "x"))


def labelled(path: Path) -> Any:
    return xr.open_zarr(path, consolidated=False)["x"]


def largest(given: Any, **more: Any) -> np.ndarray:
    return np.asarray(npmdask.top_k(given, 2, kind="samples", center=True, **more).explained_variance)


def by_scores(path: Path) -> np.ndarray:
    """Scores on a known basis, which is that of the whole data."""
    x = np.asarray(lazy(path).map_blocks(lambda b: b)[:10].compute())  # rows that no damage is in
    solution = npmdask.top_k(x.reshape(10, -1).astype(float), 6, kind="samples", center=True)
    found = solution.scores(labelled(path), dim="time")
    return np.asarray(np.linalg.svd(found - found.mean(0), compute_uv=False)[:2] ** 2 / (ROWS - 1))


def by_stream(path: Path) -> np.ndarray:
    """What it makes of the same numbers in memory is what it is held to: a stream is no SVD."""
    return streamed(lazy(path), dim=0)


def streamed(given: Any, **more: Any) -> np.ndarray:
    return np.abs(npmdask.stream_pca(given, 1, batch_rows=10, **more).basis)


def by_gram(path: Path) -> np.ndarray:
    stored = npmdask.gram(lazy(path), path.with_name(f"{path.name} gram"), kind="samples", dim=0)
    return np.asarray(npmdask.top_k(stored, 2, center=True).explained_variance)


def by_anndata(path: Path) -> np.ndarray:
    """An AnnData in Zarr, whose X lies as the array does."""
    group = zarr.open_group(path, mode="r+")
    group["x"].attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    return largest(anndata.experimental.read_elem_lazy(zarr.open_group(path, mode="r")["x"]))


DOORS: dict[str, Callable[[Path], np.ndarray]] = {
    "path": lambda path: largest(path / "x", dim="time"),
    "path, with gaps": lambda path: largest(path / "x", dim="time", missing="mean"),
    "from_zarr": lambda path: largest(lazy(path), dim=0),
    "from_zarr, with gaps": lambda path: largest(lazy(path), dim=0, missing="mean"),
    "from_array": lambda path: largest(da.from_array(zarr.open_group(path, mode="r")["x"]) * 1, dim=0),
    "open_zarr": lambda path: largest(labelled(path), dim="time"),
    "open_zarr, derived": lambda path: largest((labelled(path) * 2.0).chunk(time=7), dim="time") / 4,
    "EOF": lambda path: EOF(n_modes=2).fit(labelled(path), dim="time").explained_variance().values,
    "PCA": lambda path: PCA(n_components=2).fit(lazy(path).reshape(ROWS, 6)).explained_variance_,
    "gram": by_gram,
    "stream": by_stream,
    "anndata": by_anndata,
    "scores": by_scores,
}
PAIRS = list(product(DOORS, LAYOUTS))
ANSWERED = {"anndata": (2,)}  # doors of matrices only


def family() -> Iterator[tuple[str, tuple[int, str, int]]]:
    return ((door, layout) for door, layout in PAIRS if layout[2] in ANSWERED.get(door, (2, 3)))


def asked(door: str, path: Path) -> np.ndarray | NpmdaskError:
    try:
        return DOORS[door](path)
    except NpmdaskError as error:
        return error


def test_the_family_is_large() -> None:
    assert len(list(family())) * len(DAMAGES) >= 600


CHOSEN = (2, 21, 47, 66, 110, 135, 160, 199, 230)


@pytest.mark.slow
@pytest.mark.parametrize(("door", "layout"), often(list(family()), *CHOSEN))
def test_a_damaged_store_is_refused_and_its_whole_twin_answered(
    door: str, layout: tuple[int, str, int], tmp_path: Path
) -> None:
    path, x = store(layout)
    whole = shutil.copytree(path, tmp_path / "whole")
    right = streamed(x.reshape(ROWS, 6)) if door == "stream" else truth(x)
    np.testing.assert_allclose(DOORS[door](whole), right, rtol=1e-5 if x.dtype == np.float32 else 1e-9)
    for damage in DAMAGES:
        found = asked(door, damaged(path, damage, tmp_path / damage))
        assert isinstance(found, BadInputError), f"{damage}: {found} for {truth(x)}"
        assert "chunk c/1/0" in str(found) or "chunk 1.0" in str(found), f"{damage}: {found}"


# The same of HDF5: rows 10 to 19 were never written, or lie in a file that is gone.

HDF5 = ("chunks", "gzip", "one piece", "virtual", "external")


def write_hdf5(path: Path, layout: str, x: np.ndarray, *, whole: bool) -> Path:
    """A file as NetCDF 4 lays it out, and AnnData, with an array X."""
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        for name, size in (("obs", ROWS), ("var", 6)):
            table = file.create_group(name)
            table.attrs.update(
                {"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index", "column-order": []}
            )
            table["_index"] = [str(i) for i in range(size)]
            table["_index"].attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
        if layout == "virtual":
            made = h5py.VirtualLayout(x.shape, x.dtype)
            for first in range(0, ROWS, 10):
                part = path.with_name(f"{path.stem} {first}.part")
                with h5py.File(part, "w") as other:
                    other["x"] = x[first : first + 10]
                made[first : first + 10] = h5py.VirtualSource(part.name, "x", shape=(10, *x.shape[1:]))
                if first == 10 and not whole:
                    part.unlink()
            array = file.create_virtual_dataset("X", made)
        elif layout == "external":
            part = path.with_suffix(".raw")
            part.write_bytes(x.tobytes()[: None if whole else x.nbytes // 2])
            array = file.create_dataset("X", x.shape, x.dtype, external=[(str(part), 0, x.nbytes)])
        else:
            options = {"chunks": {"chunks": (10, *x.shape[1:])}, "one piece": {}}.get(layout)
            options = {"chunks": (10, *x.shape[1:]), "compression": "gzip"} if options is None else options
            array = file.create_dataset("X", x.shape, x.dtype, **options)
            if whole:
                array[:] = x
            elif layout != "one piece":
                array[:10], array[20:] = x[:10], x[20:]
        array.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        for number, (name, size) in enumerate(zip(DIMS, x.shape, strict=False)):
            file[name] = np.arange(size)
            file[name].make_scale(name)
            array.dims[number].attach_scale(file[name])
    return path


def opened(path: Path, engine: str) -> Any:
    return xr.open_dataset(path, engine=engine, drop_variables=["obs", "var"])["X"]  # type: ignore[arg-type]


HDF5_DOORS: dict[str, Callable[[Path], np.ndarray]] = {
    "h5py": lambda path: largest(h5py.File(path)["X"]),
    "h5py, with gaps": lambda path: largest(h5py.File(path)["X"], missing="mean"),
    "path": lambda path: largest(path / "X"),
    "backed": lambda path: largest(anndata.read_h5ad(path, backed="r")),
    "read_lazy": lambda path: largest(anndata.experimental.read_elem_lazy(h5py.File(path)["X"])),
    "from_array": lambda path: largest(da.from_array(h5py.File(path)["X"], chunks=7) * 1, dim=0),
    "PCA": lambda path: (
        PCA(n_components=2).fit(da.from_array(h5py.File(path)["X"]).reshape(ROWS, 6)).explained_variance_
    ),
    "path, dim": lambda path: largest(path / "X", dim="time"),
    "h5netcdf": lambda path: largest(opened(path, "h5netcdf").chunk(time=7), dim="time"),
    "netcdf4, EOF": lambda path: EOF(n_modes=2).fit(opened(path, "netcdf4"), dim="time").explained_variance().values,
}
NEEDS = {"path, dim": "h5netcdf", "h5netcdf": "h5netcdf", "netcdf4, EOF": "netCDF4"}
MATRICES = ("h5py", "h5py, with gaps", "path", "backed", "read_lazy")
HDF5_CASES = [
    (door, layout, ndim)
    for door, layout, ndim in product(HDF5_DOORS, HDF5, (2, 3))
    if ndim == 2 or door not in MATRICES
]


@pytest.mark.slow
@pytest.mark.parametrize(("door", "layout", "ndim"), often(HDF5_CASES, 0, 8, 17, 23, 26, 31, 42))
def test_a_file_of_hdf5_that_is_not_all_there_is_refused_and_its_whole_twin_answered(
    door: str, layout: str, ndim: int, tmp_path: Path
) -> None:
    if door in NEEDS:
        pytest.importorskip(NEEDS[door])
    x = values("float64", ndim)
    whole = write_hdf5(tmp_path / "whole.h5ad", layout, x, whole=True)
    np.testing.assert_allclose(HDF5_DOORS[door](whole), truth(x), rtol=1e-9)
    lost = write_hdf5(tmp_path / "lost.h5ad", layout, x, whole=False)
    with pytest.raises(BadInputError, match=r"not written completely|not there|takes values from|bytes of"):
        HDF5_DOORS[door](lost)


# Wherever a graph keeps an array.


def hidden(array: Any, how: str) -> Any:
    """A graph of blocks that are read from an array of zarr, which Dask does not know."""
    chunks = {"chunks": ((10,) * 4, (6,)), "dtype": array.dtype, "meta": np.empty((0, 0))}

    def rows(block_info: Any, held: Any) -> np.ndarray:
        return np.asarray(held[slice(*block_info[None]["array-location"][0])])

    def enclosing(block_info: Any = None) -> np.ndarray:
        return rows(block_info, array)

    def given(held: Any = None, block_info: Any = None) -> np.ndarray:
        return rows(block_info, held["inside"][0])

    if how == "closure":
        return da.map_blocks(enclosing, **chunks)
    if how == "partial":
        return da.map_blocks(partial(given, {"inside": [array]}), **chunks)
    return da.map_blocks(given, held={"inside": (array,)}, **chunks)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["closure", "partial", "keyword"])
def test_an_array_is_found_where_a_function_keeps_it(how: str, tmp_path: Path) -> None:
    path, x = store((3, "lz4", 2))
    np.testing.assert_allclose(largest(hidden(zarr.open_array(path / "x", mode="r"), how)), truth(x), rtol=1e-5)
    for damage in ("removed", "cut by one byte"):
        lost = damaged(path, damage, tmp_path / damage)
        with pytest.raises(BadInputError, match="chunk c/1/0"):
            npmdask.top_k(hidden(zarr.open_array(lost / "x", mode="r"), how), 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data", "indices"])
def test_sparse_cells_of_anndata_are_whole(name: str, tmp_path: Path) -> None:
    """Mutant: groups in a graph are passed over."""
    x = sp.random_array((400, 8), density=0.5, rng=np.random.default_rng(3), format="csr")
    path = tmp_path / "x.zarr"
    group = zarr.create_group(path / "X")
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(x.shape)})
    for part in ("data", "indices", "indptr"):
        entries = getattr(x, part)
        group.create_array(part, shape=entries.shape, dtype=entries.dtype, chunks=(100,))[...] = entries

    def asked() -> Any:
        lazy = anndata.experimental.read_elem_lazy(zarr.open_group(path / "X", mode="r"), chunks=(100, -1))
        return npmdask.top_k(lazy, 2)

    np.testing.assert_allclose(asked().values, np.linalg.svd(x.toarray())[1][:2], rtol=1e-9)
    chunk = path / "X" / name / "c" / "9"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(BadInputError, match="chunk c/9"):
        asked()
    chunk.unlink()
    with pytest.raises(BadInputError, match="is missing"):
        asked()


@pytest.mark.slow
def test_land_that_zarr_did_not_write_reads_as_missing(tmp_path: Path) -> None:
    """Chunks of nothing but a fill value that means missing are left out by zarr: no chunk is lost."""
    field = xr.DataArray(values("float64", 3), dims=DIMS, name="x").astype(float)
    field[:, 1] = np.nan
    options = {"x": {"chunks": (10, 1, 2), "_FillValue": np.nan}}
    field.to_dataset().to_zarr(tmp_path / "x.zarr", zarr_format=2, encoding=options, consolidated=False)
    assert len(list((tmp_path / "x.zarr" / "x").glob("[0-9]*"))) == 8
    sea = truth(np.delete(field.values, 1, axis=1))
    for door in (labelled, lambda path: path / "x"):
        asked = npmdask.top_k(door(tmp_path / "x.zarr"), 2, dim="time", kind="samples", center=True, missing=DROP)
        np.testing.assert_allclose(asked.explained_variance, sea, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", ["i4", "f4", "f8"])
def test_zeros_of_a_lost_chunk_are_no_gaps_where_nothing_decodes_them(version: int, dtype: str, tmp_path: Path) -> None:
    """Mutant: what an attribute calls missing is taken for missing of values that Dask hands on as they are stored."""
    x = np.random.default_rng(8).integers(1, 90, (40, 6)).astype(dtype)
    marks = {"_ARRAY_DIMENSIONS": ["time", "place"]} if version == 2 else {"_FillValue": 0}
    options = {"shape": x.shape, "dtype": dtype, "chunks": (10, 3), "fill_value": 0, "attributes": marks}
    zarr.create_array(tmp_path / "x.zarr", zarr_format=version, **options)[:] = x
    wanted = np.linalg.svd(x - x.mean(axis=0))[1][0] ** 2 / 39
    assert npmdask.top_k(da.from_zarr(tmp_path / "x.zarr"), 1, kind="samples", center=True).explained_variance == (
        pytest.approx(wanted, rel=1e-5)
    )
    (tmp_path / "x.zarr" / ("1.0" if version == 2 else "c/1/0")).unlink()
    for ask in (largest, streamed):
        with pytest.raises(BadInputError, match=r"chunk (c/1/0|1\.0) of .* is missing"):
            ask(da.from_zarr(tmp_path / "x.zarr"))
