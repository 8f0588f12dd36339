"""CF conventions: what xarray reads is what is analysed, bit for bit; what is missing is refused by name."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import eofs
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from xarray.conventions import decode_cf_variable

import npmdask
from npmdask.core.storage.conventions import DecodedArray, conventions_of, decoded
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated metadata:UserWarning"),  # of zarr, where xarray writes it
    pytest.mark.filterwarnings("ignore::xarray.coding.common.SerializationWarning"),  # of unusual attributes
]
ROWS, COLUMNS = 60, 12
EXAMPLES = Path(eofs.__file__).parent / "examples" / "example_data"


def samples(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)) * np.linspace(3, 1, COLUMNS)


def write(folder: Path, values: Any, zarr_format: int = 3, **encoding: Any) -> Path:
    """A store as xarray writes it; the array is ``folder / "a"``."""
    chunked = {"chunks": (25, 7), **encoding}
    dataset = xr.Dataset({"a": (("time", "space"), values)})
    dataset.to_zarr(folder, zarr_format=zarr_format, encoding={"a": chunked})  # type: ignore[call-overload]
    return folder / "a"


def as_xarray(folder: Path) -> np.ndarray:
    with xr.open_zarr(folder) as dataset:
        return np.asarray(dataset["a"].values)


def singular_values(values: np.ndarray, k: int = 3) -> np.ndarray:
    return np.linalg.svd(values.astype(float), compute_uv=False)[:k]


PACKINGS: dict[str, dict[str, Any]] = {
    "int16, scale": {"dtype": "int16", "scale_factor": 0.01},
    "int16, scale, offset": {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15},
    "int16, scale, fill": {"dtype": "int16", "scale_factor": 0.01, "add_offset": 0.0, "_FillValue": -9999},
    "int16, offset": {"dtype": "int16", "add_offset": 5.0},
    "int16, fill": {"dtype": "int16", "_FillValue": -100},
    "int32, scale, offset, fill": {"dtype": "int32", "scale_factor": 1e-4, "add_offset": 1.0, "_FillValue": -(2**31)},
    "int64, fill": {"dtype": "int64", "_FillValue": -100},
    "uint8, scale, offset, fill": {"dtype": "uint8", "scale_factor": 0.1, "add_offset": -10.0, "_FillValue": 255},
    "unsigned int8": {"dtype": "int8", "scale_factor": 0.1, "add_offset": -10.0, "_FillValue": -1, "_Unsigned": "true"},
    "signed uint8": {"dtype": "uint8", "scale_factor": 0.2, "_FillValue": 100, "_Unsigned": "false"},
    "float32, scale": {"dtype": "float32", "scale_factor": 0.5},
    "float32, NaN, scale": {"dtype": "float32", "scale_factor": 0.5, "_FillValue": np.nan},
    "float32, 1e20": {"dtype": "float32", "_FillValue": np.float32(1e20)},
    "float64, missing_value": {"dtype": "float64", "missing_value": 1e20, "_FillValue": 1e20},
    "float64, as by default": {"dtype": "float64"},
    "big-endian": {"dtype": ">i2", "scale_factor": 0.01, "_FillValue": -9999},
}


@pytest.mark.slow
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("packing", PACKINGS.values(), ids=PACKINGS)
def test_values_are_those_that_xarray_reads(tmp_path: Path, packing: dict[str, Any], zarr_format: int) -> None:
    write(tmp_path / "s", samples().clip(-9, 9), zarr_format, **packing)
    truth = as_xarray(tmp_path / "s")
    assert np.isfinite(truth).all()
    for number, path in enumerate((tmp_path / "s", tmp_path / "s" / "a")):  # consolidated, and not
        source = open_source(path)
        assert source.reader.dtype == truth.dtype
        ingest(path, tmp_path / f"{number}.zarr", dataset="a" if path.name == "s" else None, missing="fill")
        stored = zarr.open_array(tmp_path / f"{number}.zarr" / "data", mode="r")[...]
        assert stored.dtype == truth.dtype
        np.testing.assert_array_equal(stored, truth)
    found = npmdask.top_k(tmp_path / "s", 3)
    np.testing.assert_allclose(found.values, singular_values(truth), rtol=1e-6 if truth.dtype.itemsize == 4 else 1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("packing", PACKINGS.values(), ids=PACKINGS)
def test_missing_values_are_refused_with_their_number(
    tmp_path: Path, packing: dict[str, Any], zarr_format: int
) -> None:
    if not {"_FillValue", "missing_value"} & packing.keys() and packing["dtype"] != "float64":
        packing = {**packing, "_FillValue": 30000 if packing["dtype"] != "float32" else np.nan}
    values = samples().clip(-9, 9)
    values[7, 3] = values[30, 8] = values[59, 11] = np.nan
    path = write(tmp_path / "s", values, zarr_format, **packing)
    assert np.isnan(as_xarray(tmp_path / "s")).sum() == 3
    said = f"has 3 missing values of {ROWS * COLUMNS}, the first at row 7, column 3"
    for missing in ("error", "fill"):
        with pytest.raises(BadInputError, match=said) as refused:
            ingest(path, tmp_path / "out.zarr", missing=missing)
        assert "_FillValue" in str(refused.value) or "fill_value" in str(refused.value)
        assert "are refused here: fill them in" in str(refused.value)
        assert not (tmp_path / "out.zarr").exists()
    for kind in ("matrix", "samples"):
        with pytest.raises(BadInputError, match=said):
            npmdask.top_k(path, 3, kind=kind)
    with pytest.raises(BadInputError, match=said):
        npmdask.top_k(zarr.open_array(path, mode="r"), 3)


def test_the_review_reads_what_xarray_reads(tmp_path: Path) -> None:
    rows = samples(1)
    write(tmp_path / "s", rows, dtype="int16", scale_factor=0.01, add_offset=0.0, _FillValue=-9999)
    found = npmdask.top_k(tmp_path / "s", 3)
    np.testing.assert_allclose(found.values, singular_values(np.round(rows, 2)), rtol=1e-11)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_chunk_that_is_absent_is_missing_where_its_fill_value_is(tmp_path: Path, zarr_format: int) -> None:
    values = samples()
    values[25:50, :7] = np.nan  # one whole chunk, which xarray does not write
    path = write(tmp_path / "s", values, zarr_format)
    written = {p.name for p in path.rglob("*") if p.is_file()}
    assert not (path / ("1.0" if zarr_format == 2 else "c/1/0")).exists(), written
    for missing in ("error", "fill"):
        with pytest.raises(BadInputError, match="has 175 missing values of 720, the first at row 25, column 0"):
            ingest(path, tmp_path / "out.zarr", missing=missing)
    with pytest.raises(BadInputError, match="has 175 missing values of 720, the first at row 25, column 0"):
        npmdask.top_k(path, 3)


def test_zarr_2_without_netcdf_keeps_its_fill_value_a_number(tmp_path: Path) -> None:
    values = np.arange(720.0).reshape(ROWS, COLUMNS) % 5
    array = zarr.create_array(
        tmp_path / "a", shape=values.shape, dtype="f8", chunks=(25, 12), zarr_format=2, fill_value=0.0
    )
    array[...] = values
    np.testing.assert_allclose(npmdask.top_k(tmp_path / "a", 2).values, singular_values(values, 2), rtol=1e-11)
    array.attrs["_ARRAY_DIMENSIONS"] = ["time", "space"]  # as xarray marks its own, which reads 0 as missing then
    with pytest.raises(BadInputError, match=r"has 144 missing values of 720.*fill_value = 0.0"):
        npmdask.top_k(tmp_path / "a", 2)


@pytest.mark.slow
def test_rows_with_missing_values_may_be_stored_as_zeros_or_left_out(tmp_path: Path) -> None:
    values = samples()
    values[7, 3] = np.nan
    path = write(tmp_path / "s", values, dtype="int16", scale_factor=0.01, _FillValue=-9999)
    whole = as_xarray(tmp_path / "s")
    ingest(path, tmp_path / "zeros.zarr", non_finite="zero")
    stored = zarr.open_array(tmp_path / "zeros.zarr" / "data", mode="r")[...]
    np.testing.assert_array_equal(stored, np.where(np.isnan(whole).any(1)[:, None], 0, whole))
    with pytest.raises(BadInputError, match="1 missing value of 720"):
        npmdask.stream_pca(path, 2)
    left = npmdask.stream_pca(path, 2, non_finite="skip")
    assert left.skipped == 1


LIMITED = {"valid_range": [-500, 500]}, {"valid_min": -500}, {"valid_max": 500}, {"valid_range": [-5.0, 5.0]}


@pytest.mark.slow
@pytest.mark.parametrize("limits", LIMITED, ids=lambda limits: str(next(iter(limits.items()))))
def test_values_outside_of_the_valid_range_are_refused(tmp_path: Path, limits: dict[str, Any]) -> None:
    """Missing by CF, numbers for xarray: where they are read differently nothing is certified."""
    path = write(tmp_path / "s", samples().clip(-4.9, 4.9), dtype="int16", scale_factor=0.01)
    array = zarr.open_array(path, mode="r+")
    array.attrs.update(limits)
    truth = singular_values(as_xarray(tmp_path / "s"))
    np.testing.assert_allclose(npmdask.top_k(path, 3).values, truth, rtol=1e-11)
    array[7, 3] = -600 if "valid_max" not in limits else 600
    with pytest.raises(BadInputError, match=r"1 missing value of 720, the first at row 7, column 3 \(valid_"):
        npmdask.top_k(path, 3)


NOT_UNDERSTOOD = {
    "scale_factor": "0.01", "add_offset": [1.0, 2.0], "_FillValue": "none", "_Unsigned": "perhaps", "slope": 0.5,
    "Intercept": -273, "FillValue": -999, "nodata": 0, "valid_range": [1, 2, 3], "compress": "landpoint",
    "MATLAB_empty": 1,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_UNDERSTOOD)
def test_what_is_not_understood_is_refused(tmp_path: Path, name: str) -> None:
    array = zarr.create_array(tmp_path / "a", shape=(20, 4), dtype="i2", chunks=(20, 4), attributes={"units": "K"})
    array[...] = np.arange(1, 81).reshape(20, 4)
    npmdask.top_k(tmp_path / "a", 1)
    array.attrs[name] = NOT_UNDERSTOOD[name]
    for act in (lambda: npmdask.top_k(tmp_path / "a", 1), lambda: ingest(tmp_path / "a", tmp_path / "o.zarr")):
        with pytest.raises(BadInputError, match=f"has the attribute {name} = .*, which npmdask cannot interpret"):
            act()


def test_other_names_that_change_nothing_are_accepted(tmp_path: Path) -> None:
    harmless = {"slope": 1.0, "Offset": 0, "scale": "linear", "MissingValue": -1, "_FillValue": -1}
    array = zarr.create_array(tmp_path / "a", shape=(20, 4), dtype="i2", chunks=(20, 4), attributes=harmless)
    array[...] = np.arange(1, 81).reshape(20, 4)
    np.testing.assert_allclose(npmdask.top_k(tmp_path / "a", 1).values, singular_values(array[...], 1), rtol=1e-6)


def test_attributes_change_the_identity_of_data(tmp_path: Path) -> None:
    array = zarr.create_array({}, shape=(20, 4), dtype="i2", chunks=(20, 4))
    array[...] = 1
    plain = open_source(array).fingerprint
    array.attrs["scale_factor"] = 0.5
    assert open_source(array).fingerprint != plain


def test_a_decoded_array_goes_to_workers(tmp_path: Path) -> None:
    path = write(tmp_path / "s", samples(), dtype="int16", scale_factor=0.01)
    array = decoded(zarr.open_array(path, mode="r"))
    assert isinstance(array, DecodedArray)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array))[...], as_xarray(tmp_path / "s"))  # noqa: S301


@pytest.mark.slow
def test_kinds_with_three_dimensions_are_decoded(tmp_path: Path) -> None:
    base = np.random.default_rng(0).integers(-50, 50, (6, 5, 5)).astype("i2")
    mats = zarr.create_array(tmp_path / "m", shape=base.shape, dtype="i2", chunks=(2, 5, 5))
    mats[...], mats.attrs["scale_factor"] = base, 0.25
    ingest(tmp_path / "m", tmp_path / "m.zarr", kind="matrices")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "m.zarr" / "data")[...], base.reshape(6, 25) * 0.25)
    vector = np.arange(1, 6)
    cube = np.einsum("i,j,k", vector, vector, vector).astype("i2")
    tensor = zarr.create_array(tmp_path / "t", shape=cube.shape, dtype="i2", chunks=(5, 5, 5))
    tensor[...], tensor.attrs["scale_factor"] = cube, 0.5
    ingest(tmp_path / "t", tmp_path / "t.zarr", kind="tensor")
    weight = 0.5 * np.linalg.norm(vector) ** 3
    np.testing.assert_allclose(npmdask.top_k(tmp_path / "t.zarr", 1).values, [weight], rtol=1e-9)
    for array, kind in ((mats, "matrices"), (tensor, "tensor")):
        array.attrs["_FillValue"] = int(array[0, 1, 2])
        with pytest.raises(BadInputError, match=r"missing values? of .*the first at entry"):
            ingest(array.store_path.store.root, tmp_path / "o.zarr", kind=kind)


@pytest.mark.slow
def test_symmetric_matrices_are_decoded(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(-99, 99, (30, 30))
    array = zarr.create_array(tmp_path / "a", shape=(30, 30), dtype="i2", chunks=(10, 10))
    array[...], array.attrs["scale_factor"] = rows + rows.T, 0.125
    values = np.linalg.eigvalsh((rows + rows.T) * 0.125)
    expected = sorted(values, key=abs, reverse=True)[:2]
    np.testing.assert_allclose(npmdask.top_k(tmp_path / "a", 2, kind="symmetric").values, expected, rtol=1e-9)
    ingest(tmp_path / "a", tmp_path / "s.zarr", kind="symmetric")
    np.testing.assert_allclose(npmdask.top_k(tmp_path / "s.zarr", 2).values, expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data", "indices", "group"])
@pytest.mark.parametrize("door", ["zarr", "hdf5"])
def test_sparse_matrices_are_not_decoded(tmp_path: Path, name: str, door: str) -> None:
    """Zeros that are not stored have no offset: AnnData knows no such attributes, and they are refused."""
    path = tmp_path / ("x.zarr" if door == "zarr" else "x.h5ad")
    opened: Any = zarr.open_group(path, mode="w") if door == "zarr" else h5py.File(path, "w")
    group = opened.create_group("X")
    parts = {"data": np.ones(4), "indices": np.arange(4), "indptr": np.arange(5)}
    for part, values in parts.items():
        if door == "zarr":
            group.create_array(part, shape=values.shape, dtype=values.dtype, chunks=(5,))[...] = values
        else:
            group[part] = values
    group.attrs.update({"encoding-type": "csr_matrix", "shape": [4, 4]})
    (group if name == "group" else group[name]).attrs["scale_factor"] = 2.0
    if door == "hdf5":
        opened.close()
    with pytest.raises(BadInputError, match=r"scale_factor = 2\.0, but the values of a sparse matrix are not decoded"):
        ingest(path, tmp_path / "o.zarr")
    if door == "zarr":
        with pytest.raises(BadInputError, match="are not decoded"):
            npmdask.top_k(path / "X", 1)


def test_attributes_on_an_ingested_store_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", samples())
    ingest(tmp_path / "a.npy", tmp_path / "a.zarr")
    zarr.open_array(tmp_path / "a.zarr" / "data", mode="r+").attrs["scale_factor"] = 2.0
    for act in (
        lambda: npmdask.top_k(tmp_path / "a.zarr", 1),
        lambda: ingest(tmp_path / "a.zarr", tmp_path / "o.zarr"),
    ):
        with pytest.raises(BadInputError, match="the values of an npmdask store are not decoded"):
            act()


# HDF5 and NetCDF


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["nc", "h5"])
@pytest.mark.parametrize("stored", ["i1", "u1", "i2", ">i2", "i4", "f4", "f8"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"scale_factor": np.float32(0.1)},
        {"scale_factor": np.array([0.1]), "add_offset": np.array([2.5])},
        {"scale_factor": np.float32(0.1), "add_offset": np.float32(2.5), "_FillValue": 99},
        {"add_offset": np.float64(1.5)},
        {"_FillValue": 99, "missing_value": 98},
        {"_Unsigned": "true", "scale_factor": 0.5},
        {},
    ],
    ids=str,
)
def test_hdf5_is_decoded_as_xarray_decodes(
    tmp_path: Path, suffix: str, stored: str, attributes: dict[str, Any]
) -> None:
    values = np.random.default_rng(0).integers(-50, 50, (ROWS, COLUMNS)).astype(stored)
    typed = {n: np.dtype(stored).newbyteorder("=").type(v) if isinstance(v, int) else v for n, v in attributes.items()}
    path = tmp_path / f"a.{suffix}"

    def fill(number: float | None) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("a", data=values, chunks=(25, 7))
            file["a"].attrs.update(typed)
            if number is not None:
                file["a"][7, 3] = number

    fill(None)
    plain = {n: np.ravel(v)[0] if not isinstance(v, str) else v for n, v in typed.items()}
    truth = decode_cf_variable("a", xr.Variable(("time", "space"), values, plain)).values
    ingest(path, tmp_path / "a.zarr")
    got = zarr.open_array(tmp_path / "a.zarr" / "data", mode="r")[...]
    assert got.dtype == truth.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, truth)
    if "_FillValue" in attributes:
        fill(99)
        with pytest.raises(BadInputError, match="has 1 missing value of 720, the first at row 7, column 3"):
            ingest(path, tmp_path / "b.zarr")


@pytest.mark.slow
def test_the_fill_value_of_netcdf_4_is_missing_without_an_attribute(tmp_path: Path) -> None:
    """NetCDF gives every variable a default fill value (here that of float32), which its readers mask."""
    with h5py.File(tmp_path / "a.nc", "w") as file:
        array = file.create_dataset(
            "a", (ROWS, COLUMNS), "f4", chunks=(25, 7), fillvalue=np.float32(9.969209968386869e36)
        )
        array[...] = samples()
        array[7, 3] = array.fillvalue
        array.attrs["_Netcdf4Dimid"] = np.int32(0)
    with pytest.raises(BadInputError, match=r"1 missing value of 720, the first at row 7.*fill_value = 9.96"):
        ingest(tmp_path / "a.nc", tmp_path / "a.zarr")


@pytest.mark.parametrize("name", ["sst_ndjfm_anom.nc", "hgt_djf.nc"])
def test_netcdf_3_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        BadInputError,
        match=r"is NetCDF 3 \(classic\), which only xarray reads: run on it as it is.* write one array of it as",
    ):
        ingest(EXAMPLES / name, tmp_path / "a.zarr")


def sea_surface() -> xr.DataArray:
    """Real anomalies of 50 winters at 18 x 30 places, 90 of them on land; 1e20 marks those in the file."""
    with xr.open_dataset(EXAMPLES / "sst_ndjfm_anom.nc", engine="scipy") as dataset:
        found: xr.DataArray = dataset["sst"].load()
    return found.stack(place=("latitude", "longitude")).reset_index("place", drop=True)


@pytest.mark.slow
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_real_sea_surface_temperatures(tmp_path: Path, zarr_format: int) -> None:
    sst = sea_surface()
    sst.to_dataset().to_zarr(tmp_path / "land.zarr", zarr_format=zarr_format)  # type: ignore[call-overload]
    for act in (
        lambda: npmdask.top_k(tmp_path / "land.zarr" / "sst", 3),
        lambda: ingest(tmp_path / "land.zarr", tmp_path / "x.zarr", dataset="sst"),
    ):
        with pytest.raises(BadInputError, match=r"sst has 4500 missing values of 27000, .*missing_value = 1e\+20"):
            act()
    sea = sst.dropna("place")
    sea.encoding = {"dtype": "int16", "scale_factor": 0.001, "_FillValue": -32768}
    sea.to_dataset().to_zarr(tmp_path / "sea.zarr", zarr_format=zarr_format)  # type: ignore[call-overload]
    with xr.open_zarr(tmp_path / "sea.zarr") as dataset:
        truth = dataset["sst"].values.astype(float)
    left, values, right = np.linalg.svd(truth, full_matrices=False)
    np.testing.assert_allclose(values[:3], [55.95, 41.85, 23.20], rtol=1e-3)  # what the review computed
    ingest(tmp_path / "sea.zarr", tmp_path / "sea-npmdask.zarr", dataset="sst", kind="matrix")
    for path in (tmp_path / "sea.zarr" / "sst", tmp_path / "sea-npmdask.zarr"):
        found = npmdask.top_k(path, 3)
        np.testing.assert_allclose(found.values, values[:3], rtol=1e-10)
        np.testing.assert_allclose(abs(np.sum(found.basis * right[:3].T, axis=0)), 1, rtol=1e-10)
    del left


@pytest.mark.slow
def test_of_plain_arrays_nothing_is_decoded() -> None:
    for attributes in ({}, {"units": "K", "long_name": "temperature", "flag_values": [1, 2]}):
        assert conventions_of(attributes, np.dtype("i2"), "here") is None
