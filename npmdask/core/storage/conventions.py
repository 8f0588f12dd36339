"""Decode stored numbers by the CF conventions of NetCDF, which xarray follows in every Zarr store that it writes.

An array may be *packed* (its values are ``stored * scale_factor + add_offset``), hold signed integers that are meant
unsigned (``_Unsigned``), and mark missing values (``_FillValue``, ``missing_value``, limits of what is valid). Values
are decoded in the same types and steps as by xarray, so that they agree bit for bit; what is missing is refused, with
its number, since no algorithm here knows missing values. Two things differ from xarray, both towards refusing:

- values outside ``valid_range`` (``valid_min``, ``valid_max``) are missing by CF and by netCDF4-python, and numbers by
  xarray. They are refused.
- attributes that say the same under another name (``slope``, ``FillValue``, ...) are refused unless they change
  nothing.

A ``fill_value`` of Zarr, or of HDF5, is what parts that were never written read as. It marks missing values, too, in
Zarr 2 written by xarray or NetCDF (which have no other place for it), and in NetCDF files.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import zarr

from npmdask.core.storage.chunk_access import is_computed, location
from npmdask.core.storage.readers import ReadStats
from npmdask.core.storage.safe_open import require_no_pickle
from npmdask.errors import BadInputError, NpmdaskError

FILLS = ("_FillValue", "missing_value")
LIMITS = ("valid_range", "valid_min", "valid_max")
KNOWN = ("scale_factor", "add_offset", "_Unsigned", *FILLS, *LIMITS)
FOREIGN = {  # the same in other words (lower case, without underscores and blanks) -> the number that changes nothing
    "scalefactor": 1, "scale": 1, "slope": 1, "addoffset": 0, "offset": 0, "intercept": 0, "unsigned": None,
    "fillvalue": None, "missingvalue": None, "nodata": None, "nodatavalue": None, "nodatavals": None,
    "validrange": None, "validmin": None, "validmax": None,
}  # fmt: skip
BOUNDS = ("bounds", "climatology", "cell_bounds")  # attributes that name an array beside another
ALONG = "where dimensions have names (NetCDF, xarray), run on it as it is, and say along which one rows lie: --dim time"
ELSEWHERE = ("compress", "MATLAB_empty", "MATLAB_sparse")  # the values are no array of numbers, but describe one
SINCE = re.compile(r"\s*[a-zA-Z_]+\s+since\s+\S")  # units of dates
DEFAULT_FILLS = {  # of NetCDF, by type: what a variable without a fill value of its own holds where nothing was written
    "i2": -32767, "u2": 65535, "i4": -2147483647, "u4": 4294967295, "i8": -9223372036854775806,
    "u8": 18446744073709551614, "f4": 9.969209968386869e36, "f8": 9.969209968386869e36,
}  # fmt: skip
NETCDF_MARKS = ("_ARRAY_DIMENSIONS", "_nczarr_array", "_NCZARR_ARRAY")
Counted = tuple[int, int, "tuple[int, ...] | None"]  # missing values, values looked at, the first that is missing
COUNTED_BYTES = 256 * 2**20  # of an array are looked through to say how many of its values are missing
BOX_BYTES = 8 * 2**20  # of an array without chunks, at once


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """Rules by which the values of one array are decoded.

    Attributes
    ----------
    attributes : what was said of the array, as far as it matters here.
    stored : type of the stored values, native, and unsigned where that is meant.
    masked : type in which stored values are compared with ``fills``.
    dtype : type of the decoded values.
    scale, offset : None where there is none.
    fills : stored values that mean "missing"; NaN may be one.
    limits : lowest and highest valid value, of decoded values if ``limits_decoded``, else of stored ones.
    """

    attributes: dict[str, Any]
    stored: np.dtype
    masked: np.dtype
    dtype: np.dtype
    scale: Any = None
    offset: Any = None
    fills: tuple[Any, ...] = ()
    limits: tuple[Any, Any] | None = None
    limits_decoded: bool = False

    @property
    def packed(self) -> bool:
        return self.scale is not None or self.offset is not None

    def keeps(self, dtype: np.dtype) -> bool:
        """Say whether values of ``dtype`` are their own decoding: at most NaN is declared missing."""
        only_nan = all(_is_nan(fill) for fill in self.fills) and self.limits is None
        return only_nan and not self.packed and self.dtype == dtype.newbyteorder("=")

    def decode(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The decoded values, NaN where they are missing if their type has it, and which are missing."""
        raw = values.astype(values.dtype.newbyteorder("="), copy=False).astype(self.stored, copy=False)
        decoded = raw.astype(self.masked)
        missing = self._missing(raw, decoded)
        if decoded.dtype.kind == "f":
            decoded[missing] = np.nan
        if self.packed:
            decoded = decoded.astype(self.dtype, copy=False)
            if self.scale is not None:
                decoded *= self.scale
            if self.offset is not None:
                decoded += self.offset
        if self.limits is not None:
            compared = decoded if self.limits_decoded else raw
            with np.errstate(invalid="ignore"):
                missing |= (compared < self.limits[0]) | (compared > self.limits[1])
            if decoded.dtype.kind == "f":
                decoded[missing] = np.nan
        return decoded, missing

    def _missing(self, raw: np.ndarray, wide: np.ndarray) -> np.ndarray:
        missing = np.zeros(raw.shape, bool)
        for fill in self.fills:
            if _is_nan(fill):
                missing |= np.isnan(raw)
                continue
            missing |= (raw == fill) | (wide == fill)
            if raw.dtype.kind == "f":  # of float32 data a fill value may be written down in more digits
                with np.errstate(over="ignore"):
                    missing |= raw == raw.dtype.type(fill)
        return missing

    def required(self, values: np.ndarray, where: str) -> np.ndarray:
        """The decoded values; raises BadInputError for missing ones that their type has no mark for."""
        found, missing = self.decode(values)
        if found.dtype.kind != "f" and missing.any():
            said = ", ".join(f"{name} = {value}" for name, value in self.attributes.items())
            raise BadInputError(
                f"{where} has {int(missing.sum())} missing values in a block of {missing.size} ({said} marks them), "
                "and missing values are refused here: fill them in, or use missing = 'mean' where a run is not private"
            )
        return found

    def without_gaps(self) -> Conventions:
        """The same of data in which nothing may be missing: integers that a fill value is no attribute of stay such."""
        kept = not self.packed and self.stored.kind in "iu" and not any(name in self.attributes for name in FILLS)
        return replace(self, masked=self.stored, dtype=self.stored) if kept else self

    def is_missing(self, value: Any) -> bool:
        """Say whether one stored value is missing."""
        return bool(self.decode(np.asarray([value]).astype(self.stored))[1][0])


def conventions_of(attributes: Mapping[str, Any], dtype: np.dtype, where: str, fill: Any = None) -> Conventions | None:
    """Read what the attributes of an array say of its values, and a ``fill`` value beside them; None if nothing.

    Raises
    ------
    BadInputError
        An attribute of this sort that is not understood, or is not in CF.
    """
    for name in (name for name in KNOWN if dtype.kind == "c" and name in attributes):
        if not _is_nan(value := _scalar_value(attributes[name])):
            raise _bad_attribute(where, name, value, "of complex numbers")
    if dtype.kind not in "iufb":
        return None
    if SINCE.match(str(units := _scalar_value(attributes.get("units", "")))) or "calendar" in attributes:
        raise BadInputError(
            f"{where} holds dates ({units}), and dates are no numbers that could be analysed: name another array"
        )
    said = {name: _scalar_value(attributes[name]) for name in KNOWN if name in attributes}
    said |= {name: _fills(name, said[name], dtype, where) for name in FILLS if name in said}
    marks = [fill for name in FILLS for fill in said.get(name, ())]
    beside = {} if fill is None else {"fill_value": _scalar_value(fill)}
    marks += beside.values()
    _require_understood(attributes, marks, where)
    if not said and not marks:
        return None
    if dtype.kind == "b":
        raise _bad_attribute(where, next(iter(said), "fill_value"), next(iter(said.values()), True), "of truth values")
    scale, offset = (_number(name, said.get(name), where) for name in ("scale_factor", "add_offset"))
    stored = _unsigned_dtype(said.get("_Unsigned"), dtype.newbyteorder("="), where)
    if stored.kind in "iu":
        marks = [_wrap_integer(fill, stored) for fill in marks if not _is_nan(fill)]
    limits, decoded = _limits(said, stored, scale is not None or offset is not None, where)
    masked, final = _types(stored, scale, offset, marks)
    return Conventions(
        attributes={name: _as_json(value) for name, value in (said | beside).items()},
        stored=stored,
        masked=masked,
        dtype=final,
        scale=scale,
        offset=offset,
        fills=tuple(marks),
        limits=limits,
        limits_decoded=decoded,
    )


def _types(stored: np.dtype, scale: Any, offset: Any, marks: list[Any]) -> tuple[np.dtype, np.dtype]:
    """Types for masking and for the result: the rules of xarray (coding/variables.py, ``_choose_float_dtype``).

    Where xarray would compute in integers (a whole number as scale factor) or cut off fractions, float64 is taken.
    """
    packed = scale is not None or offset is not None
    values = [mark for mark in marks if not _is_nan(mark)]
    masked = stored
    if values:
        masked = _packed_type(stored, scale, offset) if packed else promoted(stored)
    return masked, (masked if marks else _packed_type(masked, scale, offset)) if packed else masked


def promoted(dtype: np.dtype) -> np.dtype:
    """The type of floats that has NaN and, up to 16 bits, all integers."""
    if dtype.kind == "f":
        return dtype
    return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)


def _packed_type(dtype: np.dtype, scale: Any, offset: Any) -> np.dtype:
    kinds = [np.dtype(type(value)) for value in (scale, offset) if value is not None]
    if len(kinds) == 2 and kinds[0] == kinds[1] and kinds[0] in (np.float32, np.float64):
        return np.dtype(np.float64) if dtype.itemsize == 4 and dtype.kind in "iu" else kinds[0]
    if offset is not None or kinds[0].kind != "f":
        return np.dtype(np.float64)
    return kinds[0]


# Attributes


def _scalar_value(value: Any) -> Any:
    """A single value out of a list or array of one, text out of bytes."""
    if isinstance(value, list | tuple | np.ndarray) and np.size(value) == 1:
        value = np.ravel(value)[0]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _as_json(value: Any) -> Any:
    """A value as JSON takes it, which knows no NaN."""
    if isinstance(value, list | tuple | np.ndarray):
        shown = [_as_json(one) for one in np.ravel(value).tolist()]
        return shown[0] if len(shown) == 1 else shown
    value = value.item() if isinstance(value, np.generic) else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and math.isnan(value)


def _bad_attribute(where: str, name: str, value: Any, why: str) -> BadInputError:
    return BadInputError(
        f"{where} has the attribute {name} = {_as_json(value)!r}, which npmdask cannot interpret ({why}) and will not "
        "ignore: write the array again with decoded values and without this attribute, or delete the attribute if "
        "the stored values are already the right ones"
    )


def _number(name: str, value: Any, where: str) -> Any:
    if value is None:
        return None
    if not _is_number(value) or not math.isfinite(value):
        raise _bad_attribute(where, name, value, "one finite number is expected")
    return value


def _fills(name: str, value: Any, dtype: np.dtype, where: str) -> list[Any]:
    """Fill values; in Zarr 3 xarray writes those of floats as base64 of a double, others as text or a number."""
    found = []
    for one in np.ravel(value) if isinstance(value, list | tuple | np.ndarray) else [value]:
        number = _float_of(str(one)) if isinstance(one, str) and dtype.kind == "f" else one
        if not _is_number(number):
            raise _bad_attribute(where, name, value, f"values of type {dtype} are expected")
        found.append(number)
    return found


def _float_of(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(struct.unpack("<d", base64.b64decode(text, validate=True))[0])
    except (ValueError, struct.error):
        return None


def _unsigned_dtype(said: Any, dtype: np.dtype, where: str) -> np.dtype:
    if said is None:
        return dtype
    word = str(said).lower()
    if word not in ("true", "false"):
        raise _bad_attribute(where, "_Unsigned", said, "'true' or 'false' is expected")
    if dtype.kind not in "iu":
        return dtype  # as xarray: of floats it says nothing
    return np.dtype(f"{'u' if word == 'true' else 'i'}{dtype.itemsize}")


def _wrap_integer(value: Any, dtype: np.dtype) -> Any:
    """A fill value of integers: -1 of unsigned bytes is 255."""
    if not float(value).is_integer():
        return value
    bits = 8 * dtype.itemsize
    whole = int(value) % 2**bits if -(2 ** (bits - 1)) <= value < 2**bits else int(value)
    return whole - 2**bits if dtype.kind == "i" and 2 ** (bits - 1) <= whole < 2**bits else whole


def _limits(said: dict[str, Any], stored: np.dtype, packed: bool, where: str) -> tuple[tuple[Any, Any] | None, bool]:
    """Lowest and highest valid value; limits that are fractions speak of decoded values where integers are stored."""
    pair = said.get("valid_range", (None, None))
    if np.size(pair) != 2:
        raise _bad_attribute(where, "valid_range", pair, "two numbers are expected")
    both = [pair[0] if said.get("valid_min") is None else said["valid_min"]]
    both += [pair[1] if said.get("valid_max") is None else said["valid_max"]]
    given = [limit for limit in both if limit is not None]
    if not given:
        return None, False
    for limit in given:
        if not _is_number(limit) or math.isnan(limit):
            raise _bad_attribute(where, "valid_range" if "valid_range" in said else "valid_min", limit, "no number")
    decoded = packed and stored.kind in "iu" and any(isinstance(limit, float | np.floating) for limit in given)
    low, high = (-math.inf if both[0] is None else both[0], math.inf if both[1] is None else both[1])
    if stored.kind == "u" and not decoded:
        low, high = (_wrap_integer(limit, stored) if math.isfinite(limit) else limit for limit in (low, high))
    if stored.kind == "f" and not decoded:  # as the values are, which may have fewer digits
        with np.errstate(over="ignore"):
            low, high = stored.type(low), stored.type(high)
    return (low, high), decoded


def _require_understood(attributes: Mapping[str, Any], marks: list[Any], where: str) -> None:
    for name in attributes:
        if name in KNOWN:
            continue
        if name in ELSEWHERE:
            raise _bad_attribute(where, name, _scalar_value(attributes[name]), "its values describe another array")
        word = name.lower().replace("_", "").replace(" ", "")
        if word not in FOREIGN:
            continue
        value = _scalar_value(attributes[name])
        numbers = list(np.ravel(value)) if isinstance(value, list | tuple | np.ndarray) else [value]
        harmless = [FOREIGN[word]] if FOREIGN[word] is not None else marks
        if any(_is_number(number) and not _is_nan(number) and number not in harmless for number in numbers):
            raise _bad_attribute(where, name, value, "CF has another name for it")


# Arrays


@dataclass(frozen=True)
class DecodedArray:
    """An array of Zarr or HDF5 that gives its values decoded. Everything that is not about values is its own.

    ``gaps``: "refuse" missing values, or "nan": give them as NaN to what leaves such rows out.
    """

    array: Any
    conventions: Conventions
    where: str
    gaps: str = "refuse"

    @property
    def dtype(self) -> np.dtype:
        return self.conventions.dtype

    @cached_property
    def fill_value(self) -> Any:
        """Value of a chunk that is not there, decoded; infinite if it is missing, and so refused or NaN anyway."""
        stored = self.array.fill_value
        stored = 0 if stored is None else stored
        if self.conventions.is_missing(stored):
            return np.inf
        return self.conventions.decode(np.asarray([stored]))[0][0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("array", "conventions"):  # while it is unpickled there is no array to ask
            raise AttributeError(name)
        return getattr(self.array, name)

    def __getitem__(self, region: Any) -> np.ndarray:
        values, missing = self.conventions.decode(np.asarray(self.array[region]))
        if missing.any() and (self.gaps == "refuse" or values.dtype.kind != "f"):
            counted = _count(self.array, self.conventions)
            raise missing_values(self.array, self.conventions, self.where, counted, int(missing.sum()))
        return values


def zarr_conventions(array: Any) -> Conventions | None:
    """Those of a Zarr array. Raises BadInputError as :func:`conventions_of`."""
    attributes, metadata = dict(array.attrs), array.metadata
    from_netcdf = metadata.zarr_format == 2 and any(mark in attributes for mark in NETCDF_MARKS)
    return conventions_of(attributes, np.dtype(array.dtype), location(array), array.fill_value if from_netcdf else None)


def decoded(array: Any, gaps: str = "refuse") -> Any:
    """A Zarr array as its values are meant: itself where they are stored as such. Errors as :func:`conventions_of`."""
    found = zarr_conventions(array)
    if found is None or found.keeps(array.dtype):
        return array
    return DecodedArray(array, found, location(array), gaps)


def convention_facts(array: Any) -> dict[str, Any]:
    """Return what decided how the values of ``array`` are read, for identities and records; empty of plain values."""
    return {"decoded": array.conventions.attributes} if isinstance(array, DecodedArray) else {}


def require_undecoded(attributes: Mapping[str, Any], dtype: np.dtype, where: str, what: str) -> None:
    """Raise BadInputError where values would have to be decoded, of arrays that are never decoded (``what``)."""
    found = conventions_of(attributes, dtype, where)
    if found is not None and not found.keeps(dtype):
        said = ", ".join(f"{name} = {value!r}" for name, value in found.attributes.items())
        raise BadInputError(
            f"{where} has the attributes {said}, but the values of {what} are not decoded: write it again with "
            "decoded values and without these attributes"
        )


def dimensions_of(array: Any) -> list[str] | None:
    """The names of the dimensions of a Zarr array, where each has one: in Zarr 2 by the attribute of xarray."""
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    named = isinstance(names, list | tuple) and len(set(names)) == array.ndim and None not in names
    return [str(name) for name in names] if named else None


def reads_as_missing(array: Any) -> bool:
    """Say whether what zarr reads for a chunk that is not there means missing values."""
    fill = array.fill_value
    if fill is None or np.dtype(array.dtype).kind not in "iufc":
        return False
    found = None if fill != fill else zarr_conventions(array)
    return bool(fill != fill or (found is not None and found.is_missing(fill)))


def member(node: Any, name: str = "") -> Any:
    """Return what a group has under a name (or itself), by metadata of its own.

    Consolidated metadata may be of an earlier state.

    One request, however many arrays are in the group.

    Raises
    ------
    BadInputError
        It is not there any more, or would have to be unpickled.
    """
    if getattr(node.metadata, "consolidated_metadata", None) is None:
        return node[name] if name else node
    plain = replace(node.metadata, consolidated_metadata=None)
    own: Any = zarr.Group(zarr.AsyncGroup(metadata=plain, store_path=node.store_path))
    try:
        own = own[name] if name else own
    except KeyError:
        raise BadInputError(
            f"{node.store_path / name} is in the consolidated metadata of the group, and not in its place: restore it, "
            "or write them again (zarr.consolidate_metadata)"
        ) from None
    require_no_pickle(own)
    return own


def the_only(
    shapes: Mapping[str, tuple[int, ...]], dimensions: int | None, nodes: Mapping[str, Any]
) -> tuple[str | None, list[str]]:
    """The array with so many dimensions (None: with any), if it alone can be meant, and else None; all that can be.

    Nothing is taken without a word that one of the ``nodes`` names as its bounds, or that is smaller than an array of
    more dimensions beside it: labels of images, flags of a field.
    """
    held = [getattr(node, kind, {}) for node in nodes.values() for kind in ("attrs", "encoding")]
    said = [one[word] for one in held for word in BOUNDS if word in one]
    bounds = {word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word) for word in said}
    found = [name for name, shape in shapes.items() if dimensions in (None, len(shape))]
    data = [name for name in found if name.rpartition("/")[2] not in bounds]
    size = math.prod(shapes[data[0]]) if len(data) == 1 else 0
    larger = [n for n, s in shapes.items() if dimensions and size and len(s) > dimensions and math.prod(s) > size]
    return (data[0] if len(data) == 1 and not larger else None), [*found, *larger]


def require_plain_parts(group: Any) -> None:
    """Raise BadInputError as :func:`require_undecoded` for a sparse matrix (zeros are not stored) and its arrays."""
    for node in (group, *(group[name] for name in ("data", "indices", "indptr") if name in group)):
        dtype = getattr(node, "dtype", np.dtype(np.float64))
        where = location(node) if hasattr(node, "store_path") else f"{node.name} of {node.file.filename}"
        require_undecoded(dict(node.attrs), dtype, where, "a sparse matrix")


# Missing values


def refuse_marked(array: Any) -> None:
    """Raise BadInputError of missing values if ``array``, which has a NaN, says that NaN means this."""
    found, raw, where = _parts(array)
    if found is not None and found.fills and (counted := _count(raw, found))[0]:
        raise missing_values(raw, found, where, counted)


def refuse_gap(array: Any) -> None:
    """Raise BadInputError of missing values if a chunk of ``array`` that is not there consists of them."""
    found, raw, where = _parts(array)
    if found is not None and raw.fill_value is not None and found.is_missing(raw.fill_value):
        raise missing_values(raw, found, where, _count(raw, found))


def _parts(array: Any) -> tuple[Conventions | None, Any, str]:
    """The conventions of the values of a Zarr array, the array as it is stored, and where it lies."""
    if isinstance(array, DecodedArray):
        return array.conventions, array.array, array.where
    return zarr_conventions(array), array, location(array)


def missing_values(array: Any, conventions: Conventions, where: str, counted: Counted, known: int = 1) -> BadInputError:
    """Return the error for an array with missing values: how many, the first, what to do.

    ``known`` of them were met.
    """
    (count, seen, first), total = counted, math.prod(array.shape)
    number = f"{'at least ' if seen < total else ''}{max(count, known)} missing value{'s' * (max(count, known) != 1)}"
    at = "" if first is None else f", the first at {_place(first)}"
    marking = {name: value for name, value in conventions.attributes.items() if name in (*FILLS, *LIMITS, "fill_value")}
    said = ", ".join(f"{name} = {value}" for name, value in marking.items())
    return BadInputError(
        f"{where} has {number} of {total}{at} ({said} marks them), and missing values are refused here: fill them "
        "in, or leave out the rows or columns that have them (for an xarray object x: x.fillna(0), "
        "x.dropna('time')), and write the array again. Runs on samples and dense matrices that are not private "
        "accept them with missing = 'mean' (--missing mean), and columns without any value with missing = "
        "'drop-columns'"
    )


def _place(index: tuple[int, ...]) -> str:
    return "row {}, column {}".format(*index) if len(index) == 2 else f"entry {index}"


def _count(array: Any, conventions: Conventions) -> Counted:
    """Missing values, values looked at, and the first that is missing (in the order of the chunks)."""
    count = seen = 0
    first = None
    for box in _boxes(array):
        if seen * conventions.stored.itemsize > COUNTED_BYTES:
            break
        try:
            missing = conventions.decode(np.asarray(array[box]))[1]
        except (OSError, ValueError, RuntimeError):  # a damaged chunk is another matter: what was seen is reported
            break
        if first is None and missing.any():
            first = tuple(b.start + int(i) for b, i in zip(box, np.argwhere(missing)[0], strict=True))
        count, seen = count + int(missing.sum()), seen + missing.size
    return count, seen, first


def _boxes(array: Any) -> Iterable[tuple[slice, ...]]:
    chunks = getattr(array, "shards", None) or array.chunks
    if chunks is None:
        wide = max(1, math.prod(array.shape[1:]) * array.dtype.itemsize)
        chunks = (max(1, BOX_BYTES // wide), *array.shape[1:])
    starts = (range(0, n, c) for n, c in zip(array.shape, chunks, strict=True))
    for corner in product(*starts):
        yield tuple(slice(a, min(a + c, n)) for a, c, n in zip(corner, chunks, array.shape, strict=True))


def position_where(tiles: Iterator[tuple[slice, Any]], bad_ones: Callable[[np.ndarray], np.ndarray]) -> str | None:
    """The first of the ``bad_ones`` of some tiles, and where it is, in words."""
    for rows, tile in tiles:
        for columns, values in tile:
            bad = np.argwhere(bad_ones(values))
            if len(bad):
                row, column = (int(i) for i in bad[0])
                return f"{values[row, column]} at row {rows.start + row}, column {columns.start + column}"
    return None


def impute(where: str, position: str, reader: Any = None) -> BadInputError:
    """Return the error for a stored value that is not finite; of a dense ``reader`` also how many are missing."""
    said = "" if reader is None or not position.startswith("nan") else f" ({said_of_gaps(reader, position)})"
    again = "" if where == "the array in memory" else " and write it again"
    return BadInputError(f"{where} holds {position}: remove or impute the non-finite values{again}{said}")


def said_of_gaps(reader: Any, position: str) -> str:
    """Say how many entries are missing, in how many rows and columns, and which runs take them.

    Looked at are the units up to a limit of bytes; of computed rows the one of ``position``, as others cost what they
    cost to compute.
    """
    units: Any = range(reader.units)
    if is_computed(reader):
        units = [int(position.split("row ")[1].partition(",")[0]) // reader.chunks[0]]
    entries = rows_with = seen = 0
    columns_with = np.zeros(reader.shape[1], bool)
    with suppress(NpmdaskError):  # a damaged chunk is another matter
        for unit in units:
            if seen * reader.shape[1] * reader.dtype.itemsize > COUNTED_BYTES:
                break
            for rows, tile in reader.tiles(unit, ReadStats()):
                here = np.zeros(rows.stop - rows.start, bool)
                for columns, values in tile:
                    gaps = np.isnan(values)
                    entries += int(gaps.sum())
                    here |= gaps.any(axis=1)
                    columns_with[columns] |= gaps.any(axis=0)
                rows_with, seen = rows_with + int(here.sum()), seen + len(here)
    far = "" if seen == reader.shape[0] else f" in the {seen} rows that were looked at"
    entry = f"{entries} of {seen * reader.shape[1]} entries {'is' if entries == 1 else 'are'} missing"
    where = f"in {rows_with} of {seen} rows and {int(columns_with.sum())} of {reader.shape[1]} columns"
    return (
        f"{entry}{far}, {where}; plain runs of samples and dense matrices (no stored Gram) take them with missing = "
        "'mean' (--missing mean), and columns without any value with missing = 'drop-columns' (--missing drop-columns)"
    )
