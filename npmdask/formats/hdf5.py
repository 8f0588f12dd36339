"""HDF5 and NetCDF 4: a 2-D dataset, or a sparse group as AnnData writes it.

HDF5 reads as its fill value, without a word, what was never written and what lies in other files that are gone: the
sources of a virtual dataset, the end of external storage. Both are looked for before anything is read, and once more
after it. Nor does HDF5 compare an index of chunks with anything: where it is damaged, values of other chunks, filters
that are passed over, or fill values would be read. What can be known of it is held to the shape and to the file.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from select import select
from subprocess import DEVNULL, PIPE, Popen
from typing import Any, cast

import numpy as np

from npmdask.core.storage.conventions import (
    Conventions,
    DecodedArray,
    convention_facts,
    conventions_of,
    refuse_marked,
    require_plain_parts,
)
from npmdask.core.storage.labels import Labels, axis_of, gene_labels, is_text, points_of
from npmdask.errors import BadInputError, Later
from npmdask.formats.common import DenseSource, SparseSource, choose_array, grid_rows, require_2d, require_numbers
from npmdask.formats.compressed import (
    PARTS,
    Slices,
    array_shapes,
    compressed_source,
    encoding,
    exact_slice,
    group_shape,
    is_10x,
    is_loom,
    main_array,
)

h5py = Later("h5py", "ingest")

NETCDF = ("_Netcdf4Dimid", "_Netcdf4Coordinates", "DIMENSION_LIST")  # attributes of datasets that NetCDF wrote


PATIENCE = 300.0  # seconds in which not one object is read
WALK = Path(__file__).with_name("walk_hdf5.py")


def require_readable(path: Path) -> None:
    """Raise BadInputError for a file in whose metadata HDF5 loses itself, or crashes, since they are damaged.

    A process of its own reads them first (0.15 s of a processor): in this one HDF5 would not come back to Python, which
    hears no signal meanwhile. It ends when not one object was read for PATIENCE: a slow disk takes as long as it takes.
    """
    _walk_metadata(path.absolute(), path.stat().st_size, path.stat().st_mtime_ns)


@cache
def _walk_metadata(path: Path, size: int, mtime_ns: int) -> None:
    """Walk the metadata of a file in another process, once for each state of the file; raise where it is damaged."""
    with Popen([sys.executable, "-P", WALK, path], stdout=PIPE, stderr=DEVNULL) as walk:
        out, begun = cast(Any, walk.stdout), False
        try:
            while (alive := select([out], [], [], PATIENCE)[0]) and os.read(out.fileno(), 2**16):
                begun = True
            if alive and (walk.wait() >= 0 or not begun):  # that it could not even begin says nothing of the file
                return
        finally:
            walk.kill()
    why = "crashes" if alive else f"reads nothing for {PATIENCE:g} s and does not end"
    raise BadInputError(f"{path} is damaged: HDF5 {why} in its metadata; fetch or write it again, then ingest it again")


def open_hdf5(
    path: Path, dataset: str | None, missing: str, spool: Path, gaps: str = "refuse"
) -> DenseSource | SparseSource:
    """The array ``dataset``; if nothing is named the only one, or ``X`` of an AnnData file.

    Parts that were never written are an error unless ``missing`` is "fill"; missing values unless ``gaps`` is "nan".
    """
    require_readable(path)
    with h5py.File(path, "r") as file:
        dataset = main_array(file) if dataset is None else dataset
        nodes = _nodes(file, dataset, path)
        name = choose_array(path, dataset, array_shapes(nodes), nodes=nodes)
        node = file[name]
        turned = _transposed_format(file, node)
        labels = _axis_names(file if turned == "loom" else node, *NAMES[turned]) if turned else gene_labels(file, name)
        if isinstance(node, h5py.Dataset):
            return replace(_dense(path, name, node, missing, spool, gaps, turned), labels=labels or _grid_labels(node))
        require_plain_parts(node)
        shape, count = group_shape(node, f"{name} of {path}"), len(node["data"])
        dtype, layout = require_numbers(node["data"].dtype, f"{name} of {path}"), encoding(node)

    @contextmanager
    def slices() -> Iterator[Slices]:
        with h5py.File(path, "r") as opened:
            parts = [opened[name][part] for part in PARTS]
            require_whole(parts, missing)
            yield {part: partial(exact_slice, _checked_array(opened[name][part], missing), path) for part in PARTS}
            require_whole(parts, missing)

    found = compressed_source("hdf5", layout, slices, shape, dtype, count, spool, path)
    return replace(found, labels=labels, notes=(TURNED.format(turned, *shape),) if turned else ())


# Formats that store rows as columns, and where the names of columns and rows lie in them.
TURNED = "{} stores rows as columns: the array was read as {} rows x {} columns"
NAMES = {"MATLAB": (), "loom": ("row_attrs/Gene", "col_attrs/CellID"), "10x Genomics": ("features/name", "barcodes")}


def _transposed_format(file: Any, node: Any) -> str:
    """The format by which an array is stored transposed; "": none. Cells by genes, CSC of 10x Genomics is CSR."""
    if is_loom(file) and node.name.strip("/").partition("/")[0] in ("matrix", "layers"):
        return "loom"
    if hasattr(node, "keys") and is_10x(node):
        return "10x Genomics"
    return "MATLAB" if "MATLAB_class" in node.attrs else ""


def _axis_names(node: Any, *names: str) -> Labels | None:
    """The names of columns and rows, where they lie as text."""
    held = [(axis, node.get(name)) for axis, name in zip(("var", "obs"), names, strict=False)]
    axes = [(axis_of(axis, one.asstr()[...]),) if one is not None and is_text(one) else () for axis, one in held]
    return Labels(*axes[::-1]) if any(axes) else None


@dataclass(frozen=True)
class _Transposed:
    """A dataset with rows for columns."""

    array: Any

    def __getitem__(self, region: Any) -> np.ndarray:
        rows, columns = region if isinstance(region, tuple) else (region, slice(None))
        return np.asarray(self.array[columns, rows]).T


def _grid_labels(array: Any) -> Labels | None:
    """Latitude and longitude of every column of a variable of NetCDF, where they lie beside it along its dimension."""
    if len(array.shape) != 2:
        return None
    along = _dimension(array, 1)
    beside = {name: one for name, one in array.parent.items() if isinstance(one, h5py.Dataset) and one.ndim == 1}
    points = points_of({name: one for name, one in beside.items() if _dimension(one, 0) == along}, array.shape[1])
    return Labels(points=points) if points else None


def _dimension(array: Any, number: int) -> str | None:
    """Return the name that NetCDF gives a dimension of an array; None where it gives none."""
    scales = array.dims[number].values() if "DIMENSION_LIST" in array.attrs else ()
    own = array.name if array.is_scale else None
    return next((str(scale.name) for scale in scales), own)


def _nodes(file: Any, dataset: str | None, path: Path) -> dict[str, Any]:
    """Everything in the file by its name, what links lead to included.

    Raises
    ------
    BadInputError
        A link leads nowhere, and no other array was asked for.
    """
    nodes: dict[str, Any] = {}
    file.visititems(nodes.__setitem__)
    wanted = None if dataset is None else dataset.strip("/")

    links: dict[str, Any] = {}
    file.visititems_links(links.__setitem__)
    for name, link in links.items():
        if isinstance(link, h5py.SoftLink | h5py.ExternalLink) and wanted in (None, name):
            try:
                nodes[name] = file[name]
            except (KeyError, OSError, RuntimeError):
                to = f"{link.path} in {link.filename}" if isinstance(link, h5py.ExternalLink) else link.path
                raise BadInputError(
                    f"{name!r} of {path} is a link to {to}, which is not there: restore it, or name another array with "
                    "dataset= (--dataset)"
                ) from None
    return nodes


def _dense(path: Path, name: str, array: Any, missing: str, spool: Path, gaps: str, turned: str) -> DenseSource:
    """``array`` tells shape and chunks; the file is opened again to read. ``turned``: what stores it transposed."""
    where, order = f"dataset {name!r} of {path}", -1 if turned else 1
    shape = require_2d(array.shape[::order], where)
    require_numbers(array.dtype, where)
    found = _conventions(array, where)
    dtype = require_numbers(array.dtype if found is None else found.dtype, where)
    height, width = (array.chunks or (1, array.shape[1]))[::order]
    require_whole([array], missing)

    def meant(node: Any) -> Any:
        return _decoded_array(_checked_array(node, missing), found, where, gaps)

    @contextmanager
    def opened() -> Iterator[Any]:
        with h5py.File(path, "r") as file:
            node = file[name]
            require_whole([node], missing)
            yield _Transposed(meant(node)) if turned else meant(node)
            require_whole([node], missing)

    def refuse() -> None:
        with h5py.File(path, "r") as file:
            if found is not None:
                refuse_marked(DecodedArray(file[name], found, where))

    def batches(start: int) -> Iterator[np.ndarray]:
        return grid_rows(opened, shape, (height, width), dtype, spool, start)

    return DenseSource(
        format="hdf5",
        rows=shape[0],
        columns=shape[1],
        dtype=dtype,
        facts=convention_facts(meant(array)),
        refuse_marked=refuse,
        notes=(TURNED.format(turned, *shape),) if turned else (),
        batches=batches,
    )


def _decoded_array(array: Any, found: Conventions | None, where: str, gaps: str) -> Any:
    return array if found is None or found.keeps(array.dtype) else DecodedArray(array, found, where, gaps)


def whole_dataset(array: Any, *, gaps: bool | None = None) -> Any:
    """A dataset that a person or a graph holds, of which nothing is missing, now or when it is read.

    ``gaps``: decoded, missing values as NaN; False: integers stay what they are, and missing ones are an error.
    """
    require_whole([array], "error")
    if gaps is None:
        return Sought(array)
    where = f"{array.name} of {array.file.filename}"
    found = _conventions(array, where)
    return _decoded_array(Sought(array), found if gaps or found is None else found.without_gaps(), where, "nan")


def _conventions(array: Any, where: str) -> Conventions | None:
    """Read the conventions of values from attributes; NetCDF also marks missing values by the dataset's fill value."""
    from_netcdf = "_NCProperties" in array.file.attrs or any(name in array.attrs for name in NETCDF)
    defined = array.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    marks = from_netcdf and defined and array.dtype.itemsize > 1  # of bytes every value is one (NetCDF users' guide)
    return conventions_of(array.attrs, array.dtype, where, array.fillvalue if marks else None)


# What is not in the file


def require_whole(arrays: list[Any], missing: str) -> None:
    """Raise BadInputError if a part of one of ``arrays`` was never written, or lies in a file that is gone."""
    for array in arrays:
        where = f"dataset {array.name!r} of {array.file.filename}"
        if array.is_virtual:
            _require_sources(array, where, missing)
        elif array.external:
            _require_external(array, where)
        else:
            absent = _absent_text(array) if array.chunks is None else _absent_chunks(array, where)
            if absent and missing != "fill":
                raise BadInputError(
                    f"{where} was not written completely: {absent} (HDF5 would silently read them as "
                    f"{array.fillvalue}); write it again, or if they really are empty, pass missing='fill' "
                    "(--missing fill)"
                )


def _absent_text(array: Any) -> str:
    """Say in words how much of a dataset in one piece has no place in the file."""
    if 0 in array.shape or array.id.get_create_plist().get_layout() == h5py.h5d.COMPACT:
        return ""
    held, size = array.id.get_storage_size(), array.size * array.dtype.itemsize
    return f"{size - held} of its {size} bytes are not there" if held < size else ""


def _absent_chunks(array: Any, where: str) -> str:
    """Say in words how many chunks the index of a dataset does not list.

    Raises
    ------
    BadInputError
        What it lists cannot be: places outside of the file or of each other's, sizes that no chunk has, or chunks that
        the dataset does not have.
    """
    listed: list[Any] = []
    array.id.chunk_iter(listed.append)
    created = array.id.get_create_plist()
    filters, end = [created.get_filter(i)[0] for i in range(created.get_nfilters())], 0
    for chunk in sorted(listed, key=lambda chunk: chunk.byte_offset):
        used = [code for i, code in enumerate(filters) if not chunk.filter_mask >> i & 1]
        if not _is_possible_size(chunk.size, math.prod(array.chunks) * array.dtype.itemsize, used):
            raise _damaged_index(where, chunk, f"has {chunk.size} bytes in the file, which its filters cannot give")
        if chunk.byte_offset < end:
            raise _damaged_index(where, chunk, f"begins at byte {chunk.byte_offset}, within another one")
        end = chunk.byte_offset + chunk.size
        if end > array.file.id.get_filesize():
            raise _damaged_index(where, chunk, f"ends at byte {end}, behind the end of the file")
    places = {chunk.chunk_offset for chunk in listed}
    for chunk in listed:
        if any(at >= n or at % c for at, n, c in zip(chunk.chunk_offset, array.shape, array.chunks, strict=True)):
            raise _damaged_index(where, chunk, "is none of this dataset")
    whole = math.prod(-(-n // c) for n, c in zip(array.shape, array.chunks, strict=True))
    if len(places) == whole:
        return ""
    corners = product(*(range(0, n, c) for n, c in zip(array.shape, array.chunks, strict=True)))
    first = next(corner for corner in corners if corner not in places)
    return f"{whole - len(places)} of its {whole} chunks are not there, the first at {first}"


def _is_possible_size(size: int, decoded: int, filters: list[int]) -> bool:
    """Say whether a chunk may have ``size`` bytes; with a wrong size HDF5 reads past the chunk's end, or crashes."""
    checksum = 4 * filters.count(h5py.h5z.FILTER_FLETCHER32)
    if set(filters) <= {h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}:
        return size == decoded + checksum
    return size > checksum


def _damaged_index(where: str, chunk: Any, what: str) -> BadInputError:
    return BadInputError(
        f"the index of {where} is damaged: its chunk at {chunk.chunk_offset} {what}; restore the file from a backup"
    )


def _checked_array(array: Any, missing: str) -> Any:
    """``array``, or where nothing of it may be missing one that notices what was not found."""
    return array if missing == "fill" else Sought(array)


_WHOLE: set[tuple[str, str, int, int]] = set()  # variables of files as they are now, all of which is in the file


def require_variable(file: str, name: str) -> None:
    """Raise BadInputError if a part of what another library reads as ``name`` from a file of HDF5 is not there."""
    if not os.path.isfile(file) or not h5py.is_hdf5(file):
        return
    look = (file, name, os.stat(file).st_size, os.stat(file).st_mtime_ns)
    if look in _WHOLE:
        return
    with h5py.File(file, "r") as opened:
        node = opened[name]
        parts = [node] if isinstance(node, h5py.Dataset) else [node[part] for part in PARTS]
        require_whole(parts, "error")
        if not any(part.is_virtual or part.external for part in parts):  # whose values lie in other files
            _WHOLE.add(look)


class Sought:
    """A dataset of which nothing is read as its fill value because it was not found.

    What an index of chunks lists and what a look-up finds in it are two things. Nothing tells whether it did but
    reading the chunk as it is stored; that is done where nothing but the fill value was read.
    """

    def __init__(self, array: Any) -> None:
        self._array = array

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)

    def __getitem__(self, region: Any) -> np.ndarray:
        values = np.asarray(self._array[region])
        if not values.size:
            return values
        slices = region if isinstance(region, tuple) else (region,)
        if self._array.chunks is None or not all(
            isinstance(one, slice) and one.step in (None, 1) and (one.start or 0) >= 0 for one in slices
        ):
            if (values == self._array.fillvalue).any():
                require_whole([self._array], "error")
            return values
        starts = [one.start or 0 for one in slices] + [0] * (values.ndim - len(slices))
        chunks, fill = self._array.chunks, self._array.fillvalue
        cells = [range(a // c, -(-(a + n) // c)) for a, n, c in zip(starts, values.shape, chunks, strict=True)]
        for cell in product(*cells):
            corner = tuple(i * c for i, c in zip(cell, chunks, strict=True))
            here = values[
                tuple(slice(max(at - a, 0), at - a + c) for at, a, c in zip(corner, starts, chunks, strict=True))
            ]
            if here.flat[0] == fill or fill != fill:
                self._require_found(corner, here)
        return values

    def _require_found(self, corner: tuple[int, ...], values: np.ndarray) -> None:
        fill = self._array.fillvalue
        if not np.array_equal(values, np.full_like(values, fill), equal_nan=values.dtype.kind in "fc"):
            return
        try:
            self._array.id.read_direct_chunk(corner)
        except (OSError, RuntimeError, ValueError) as error:
            where = f"dataset {self._array.name!r} of {self._array.file.filename}"
            raise BadInputError(
                f"the index of {where} is damaged: its chunk at {corner} is listed and not found (HDF5 would silently "
                f"read it as {fill}); restore the file from a backup"
            ) from error


def _require_sources(array: Any, where: str, missing: str) -> None:
    """Every source of a virtual dataset is there, as large as it must be, and whole itself."""
    covered = h5py.h5s.create_simple(array.shape)
    covered.select_none()
    for source in array.virtual_sources():
        if missing != "fill" and _open_ended(source):
            raise BadInputError(
                f"{where} is put together of {source.dset_name!r} in {source.file_name!r} without saying of how many "
                "parts: a part that is gone cannot be noticed. Write its values into one dataset "
                "(out['name'] = file['name'][...]), or if nothing can be missing pass missing='fill' (--missing fill)"
            )
        if not _open_ended(source):
            with _source_of(array, source, where) as part:
                _require_extent(part, source, where)
                require_whole([part], missing)
            _select(covered, source.vspace)
    if missing != "fill" and covered.get_select_npoints() < math.prod(array.shape):
        lost = math.prod(array.shape) - covered.get_select_npoints()
        raise BadInputError(
            f"{where} has {lost} values that none of its sources provide (HDF5 would silently read them as "
            f"{array.fillvalue}); write it again, or if they really are empty, pass missing='fill' (--missing fill)"
        )


def _open_ended(source: Any) -> bool:
    """Say whether the number of parts is not fixed: names with a counter, or selections without an end."""
    name = (source.file_name + source.dset_name).replace("%%", "")
    spaces = [s for s in (source.vspace, source.src_space) if _regular(s)]
    found = [space.get_regular_hyperslab() for space in spaces]
    return "%b" in name or any(h5py.h5s.UNLIMITED in (*s[2], *s[3]) for s in found)


def _regular(space: Any) -> bool:
    return space.get_select_type() == h5py.h5s.SEL_HYPERSLABS and space.is_regular_hyperslab()


def _select(covered: Any, space: Any) -> None:
    """Add the selection of ``space`` to that of ``covered``, which has the same extent."""
    if space.get_select_type() == h5py.h5s.SEL_ALL:
        covered.select_all()
        return
    if _regular(space):
        start, stride, count, block = space.get_regular_hyperslab()
        covered.select_hyperslab(start, count, stride, block, op=h5py.h5s.SELECT_OR)
        return
    for first, last in space.get_select_hyper_blocklist():
        size = tuple(int(b - a + 1) for a, b in zip(first, last, strict=True))
        covered.select_hyperslab(tuple(map(int, first)), (1,) * len(size), None, size, op=h5py.h5s.SELECT_OR)


@contextmanager
def _source_of(array: Any, source: Any, where: str) -> Iterator[Any]:
    """The dataset that ``source`` names, opened. Raises BadInputError if it is not there."""
    if source.file_name == ".":
        if source.dset_name not in array.file:
            raise BadInputError(f"{where} takes values from {source.dset_name!r} of the same file, which is not there")
        yield array.file[source.dset_name]
        return
    found = next((p for p in _external_paths(source.file_name, Path(array.file.filename)) if p.is_file()), None)
    gone = f"{where} takes values from {source.dset_name!r} of {source.file_name}, "
    restore = "(HDF5 would silently read fill values): restore it beside the file, then ingest again"
    if found is None:
        raise BadInputError(f"{gone}which is not there {restore}")
    try:
        file = h5py.File(found, "r")
    except OSError as error:
        raise BadInputError(f"{gone}which cannot be opened, {error} {restore}") from error
    with file:
        if not isinstance(file.get(source.dset_name), h5py.Dataset):
            raise BadInputError(f"{gone}a file in which there is no such dataset {restore}")
        yield file[source.dset_name]


def _external_paths(name: str, near: Path) -> Iterator[Path]:
    """Yield the places where HDF5 looks for a file that another one names, in its order."""
    for tail in dict.fromkeys((Path(name), Path(name).name if os.path.isabs(name) else Path(name))):
        if os.path.isabs(tail):
            yield Path(tail)
            continue
        for prefix in filter(None, os.environ.get("HDF5_VDS_PREFIX", "").split(":")):
            yield Path(prefix.replace("${ORIGIN}", str(near.parent))) / tail
        yield near.absolute().parent / tail
        yield Path(tail)
        yield near.resolve().parent / tail


def _require_extent(part: Any, source: Any, where: str) -> None:
    """Raise where a selection reaches beyond its source: there HDF5 reads the fill value."""
    space = source.src_space
    if space.get_select_type() == h5py.h5s.SEL_ALL:  # which may not say how large the source was
        if source.vspace.get_select_npoints() == math.prod(part.shape):
            return
        needed: tuple[int, ...] = (int(source.vspace.get_select_npoints()),)
    else:
        needed = tuple(int(last) + 1 for last in space.get_select_bounds()[1])
    if len(needed) != len(part.shape) or any(n > there for n, there in zip(needed, part.shape, strict=True)):
        raise BadInputError(
            f"{where} takes values up to {needed} from {source.dset_name!r} of {source.file_name}, which has shape "
            f"{part.shape}: restore the file as it was, then ingest again"
        )


def _require_external(array: Any, where: str) -> None:
    """The plain files of external storage are there, and as long as they must be."""
    left = math.prod(array.shape) * array.dtype.itemsize
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", str(Path(array.file.filename).parent))
    for name, offset, size in array.external:
        path = Path(prefix) / os.fsdecode(name)
        needed = min(left, int(size))
        if not path.is_file() or path.stat().st_size < offset + needed:
            has = f"has {path.stat().st_size} bytes of {offset + needed}" if path.is_file() else "is not there"
            raise BadInputError(
                f"{where} keeps its values in {path}, which {has} (HDF5 would silently read zeros): restore it; its "
                "name is taken relative to the working directory, or to HDF5_EXTFILE_PREFIX"
            )
        left -= needed
