"""Turning what people have into a store, out of core: memory does not depend on the size of the source.

The format follows from the suffix, or by the first bytes where the suffix says nothing. A killed ingest goes
on where it was when the same one is run again. ``DEST`` appears only when everything is in it and checked. A file that
is given as a source is ingested into a copy (below).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy import sparse

from npmdask.core.checkpoint.reader import size_of
from npmdask.core.numerics.units import parse_memory
from npmdask.core.storage import paths
from npmdask.core.storage.bundle import write_file_atomically
from npmdask.core.storage.columns import addressed, at, parts_of
from npmdask.core.storage.kinds import KINDS, traits_of
from npmdask.core.storage.labels import Axis
from npmdask.core.storage.paths import NEW_STORE, cache_folder, local_path, locked, require_no_link
from npmdask.core.storage.safe_open import carried, mark_of, of_budget, open_node
from npmdask.core.storage.source import Asked, Source, opened_as
from npmdask.errors import BadInputError, NpmdaskError, RefusedError, closest, package_version, require, warn
from npmdask.formats import TABLES, open_file, open_matrices, open_tensor, tell_format
from npmdask.formats.common import DenseSource, FileSource, SparseSource, after, batch_rows, guarded, reading
from npmdask.formats.cubes import TensorSource
from npmdask.formats.numpy_files import raw_header
from npmdask.symmetric.reader import Place, place_of
from npmdask.symmetric.writer import Box, PackedWriter, TensorWriter, comparing, in_order, mean_block, require_symmetric
from npmdask.writers.dense import DenseWriter, OnSlab
from npmdask.writers.layouts import KEPT, choose_layout, not_square, require_cubic, storage_dtype

# What every ingest shares: its summary, the stamp of its source, values in the stored dtype, what a failure leaves.


Progress = Callable[[int, "int | None", int], None]  # rows done, rows in all if known, bytes done


@dataclass(frozen=True, kw_only=True)
class IngestSummary:
    """Summary of an ingest: ``bytes`` is the size of ``dest`` on disk, ``seconds`` the time of this run alone.

    ``side``: d, of rows that are d x d matrices. ``header``: the first line of a table of text, where it was taken for
    the names of the columns, and not for data. ``notes``: what was decided of the data that their owner may not expect:
    which columns are names of rows, or were left out.
    """

    dest: Path
    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fingerprint: str
    seconds: float
    bytes: int
    side: int | None = None
    header: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


def files_of(path: Path) -> Iterator[tuple[int, int]]:
    """Size and modification time (ns) of a file, of every file below a folder, or of those of a pattern."""
    below = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    for file in below if path.is_dir() else parts_of(path):
        with suppress(FileNotFoundError):  # a link to nothing: a chunk that is missing is found when it is read
            stat = file.stat()
            yield stat.st_size, stat.st_mtime_ns


def stamp(path: Path) -> dict[str, int]:
    stamps = list(files_of(path))
    return {
        "size": sum(size for size, _ in stamps),
        "mtime_ns": max((time_ns for _, time_ns in stamps), default=0),
    }


def cast_values(
    values: np.ndarray,
    dtype: np.dtype,
    place: Callable[[list[int]], tuple[int, ...]],
    rounding: str = "error",
) -> np.ndarray:
    """``values`` as ``dtype``, ``place`` being where an entry is in the source (row and column, or three indices).

    Raises
    ------
    BadInputError
        A value that ``dtype`` does not have; the first is named. With ``rounding`` "nearest" the nearest float is
        taken: losing an integer, a fraction or the whole number is an error all the same.
    """
    exact = np.can_cast(values.dtype, dtype, "safe") and not (values.dtype.kind in "iu" and values.dtype.itemsize == 8)
    if values.dtype == dtype or exact or np.can_cast(values.dtype, dtype, "equiv"):
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        stored = values.astype(dtype)
        lost = _lossy_mask(values, stored) if dtype.kind in "iu" else ~np.isfinite(stored) & np.isfinite(values)
        if dtype.kind == "f" and rounding == "error":
            lost |= _rounded(values, stored)
    if lost.any():
        at = [int(i) for i in np.argwhere(lost)[0]]
        where = place(at)
        said = "row {}, column {}".format(*where) if len(where) == 2 else f"entry {where}"
        remedy = "leave out dtype or choose a wider one"
        if dtype.kind == "f" and np.isfinite(stored[tuple(at)]):
            remedy += ", or let it be rounded to the nearest with rounding='nearest' (--rounding nearest)"
        raise BadInputError(f"{values[tuple(at)]!s} at {said} cannot be stored as {dtype}: {remedy}")
    return stored


def _lossy_mask(values: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Which values are not the integers that they are stored as."""
    lost = np.asarray(stored != values)
    if values.dtype.kind in "iu":
        return lost | ((stored < 0) != (values < 0))  # NumPy wraps around and then finds both equal
    return lost | (np.abs(values) > 2.0**53)  # a float of this size may be any of several integers


def _rounded(values: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Which values are no longer themselves as floats. NaN stays NaN."""
    if values.dtype.kind == "f":
        return np.asarray((stored != values) & ~np.isnan(values))
    beyond = 2.0 ** (8 * values.dtype.itemsize - (values.dtype.kind == "i"))  # rounded up to this, it fits no integer
    return np.asarray((stored >= beyond) | (stored.astype(values.dtype) != values))


@contextmanager
def discarded_if_bad(target: Path) -> Iterator[None]:
    """A source that is wrong will be another one when it is mended: nothing written from it is of use."""
    try:
        yield
    except (BadInputError, MemoryError) as error:
        shutil.rmtree(target.with_name(target.name + ".partial"), ignore_errors=True)
        if isinstance(error, BadInputError):
            raise
        raise BadInputError(
            f"the source of {target} declares more data than the memory of this machine can hold ({error}): correct "
            "its header, or ingest it on a larger machine"
        ) from error


def require_disk_and_memory(path: Path, target: Path, rows: int | None, columns: int, itemsize: int) -> None:
    """Raise BadInputError for a source that declares what neither memory nor disk could take.

    That is more columns than there is memory for a few sums over each, or a hundred times more values (sparse:
    row pointers) than there is disk: a header that is damaged declares anything.
    """
    memory, free = psutil.virtual_memory().total, shutil.disk_usage(target.parent).free
    if 64 * columns > memory:
        raise BadInputError(
            f"{path} declares {columns} columns, and the sums over them alone take more than the memory of this "
            "machine: correct its header"
        )
    if (rows or 0) * itemsize > 100 * free + 2**30:
        size = (rows or 0) * itemsize
        raise BadInputError(
            f"{path} declares {rows} rows, whose values take {size:.2g} bytes, and {target.parent} has {free:.2g} "
            "left: correct its header, or choose a larger disk"
        )


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` for temporary files; what a killed run left in it goes first."""
    folder = target.with_name(target.name + ".partial.scratch")
    require_no_link(folder)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Storing the unique blocks of a tensor, out of core: memory is that of a few blocks and one chunk of the source.


def require_tensor_options(
    layout: str | None, non_finite: str, header: bool | None, chunks: Sequence[int] | None
) -> None:
    """Raise BadInputError for options of rows, or for blocks that are no cubes."""
    if layout is not None:
        raise BadInputError(
            f"layout={layout!r} applies only to kind='symmetric'; a tensor is stored by its unique blocks: leave it out"
        )
    if non_finite != "error" or header is not None:
        raise BadInputError("non_finite and header apply only to rows of numbers: leave them out for kind='tensor'")
    if chunks is not None:
        require_cubic(chunks)


def ingest_tensor(
    path: Path,
    target: Path,
    *,
    dataset: str | None,
    chunks: Sequence[int] | None,
    dtype: np.dtype | None,
    missing: str,
    symmetrise: bool,
    rounding: str,
    overwrite: bool,
    mark: Any,
    progress: Progress | None,
) -> IngestSummary:
    """The part of :func:`ingest` that is for tensors; parameters and errors are as there."""
    began, options = time.perf_counter(), {"dataset": dataset, "missing": missing, "symmetrise": symmetrise}
    with locked(target), scratch_folder(target) as spool:
        with reading(path):
            source = open_tensor(path, dataset, missing, spool)
        stored = dtype or (np.dtype(np.float64) if symmetrise and source.dtype.kind in "iu" else source.dtype)
        with discarded_if_bad(target):
            require_disk_and_memory(path, target, source.size, source.size**2, source.size**2 * source.dtype.itemsize)
            facts = {"path": str(path), **stamp(path), "format": source.format, **options, **source.facts}
            facts |= {} if rounding == "error" else {"rounding": rounding}
            common: dict[str, Any] = {"identity": {"source": facts} | carried(mark), "overwrite": overwrite}
            common |= {"side": None if chunks is None else chunks[0]}
            writer = TensorWriter(target, size=source.size, dtype=stored, **common)
            record = {"source": {"path": str(path), "format": source.format, "dataset": dataset, **source.facts}}
            printed = _fill(path, source, writer, {**record, "symmetrised": symmetrise}, progress, rounding)
    return IngestSummary(
        dest=target,
        kind="tensor",
        shape=(source.size,) * 3,
        dtype=writer.dtype,
        fingerprint=printed,
        seconds=time.perf_counter() - began,
        bytes=sum(size for size, _ in files_of(target)),
    )


def _fill(
    path: Path,
    source: TensorSource,
    writer: TensorWriter,
    record: dict[str, Any],
    progress: Progress | None,
    rounding: str,
) -> str:
    """Write every block that is not written yet; returns the fingerprint."""
    each = writer.side**3 * writer.dtype.itemsize
    rounding = "nearest" if record["symmetrised"] else rounding  # a mean is rounded as it is
    try:
        with closing(guarded(path, _blocks(source, writer, record["symmetrised"]))) as blocks:
            for place, values in blocks:
                writer.write(cast_values(values, writer.dtype, _offset_by([i * writer.side for i in place]), rounding))
                if progress:
                    progress(writer.next_unit, writer.units, writer.next_unit * each)
    except BadInputError:
        source.refuse_marked()
        raise
    return writer.finish(record)


def _offset_by(first: list[int]) -> Callable[[list[int]], tuple[int, ...]]:
    return lambda at: tuple(start + n for start, n in zip(first, at, strict=True))


def _blocks(source: TensorSource, writer: TensorWriter, symmetrise: bool) -> Iterator[tuple[Place, np.ndarray]]:
    with source.boxes(writer.side) as box:
        made = _maker(box, source, writer, symmetrise)
        for unit in range(writer.next_unit, writer.units):
            place = place_of(unit, writer.grid)
            yield place, made(place)


def _maker(box: Box, source: TensorSource, writer: TensorWriter, symmetrise: bool) -> Callable[[Place], np.ndarray]:
    """Return the function that makes the block of a place out of the boxes of the source."""
    if source.mirrored:
        return lambda place: in_order(box(place), place)
    if symmetrise:
        return lambda place: mean_block(box, place, writer.side)
    return comparing(box, writer.side, writer.grid)


__all__ = ["IngestSummary", "Progress", "as_kind", "ingest"]

NON_FINITE = ("error", "zero", "missing")


def ingest(
    src: Path | str,
    dest: Path | str,
    *,
    kind: str | None = None,
    layout: str | None = None,
    dataset: str | None = None,
    chunks: tuple[int, ...] | None = None,
    shards: int | str | None = None,
    dtype: Any = None,
    missing: str = "error",
    non_finite: str = "error",
    rounding: str = "error",
    symmetrise: bool = False,
    header: bool | None = None,
    columns: Any = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    on_slab: OnSlab | None = None,
) -> IngestSummary:
    """
    Copy a file into a new store: checked, with checksums, in bounded memory.

    The store appears only when it is complete. The same call continues an ingest that was killed.

    Parameters
    ----------
    src : str or Path
        A file or folder in one of the formats that ``npmdask.formats.SUPPORTED`` names, or a pattern of tables, such as
        ``dir/*.csv``.
    dest : str or Path
        Folder to create.
    kind : {"samples", "sparse", "symmetric", "matrix", "matrices", "tensor"}, optional
        What the data are; by default "samples", or "sparse" where they are. Sparse data become dense for a dense kind
        and the other way round. "symmetric": checked. "matrices": a 3-D array (n x d x d) in .npy or Zarr, each matrix
        of which becomes a row of d^2 numbers. "tensor": a 3-D array (d x d x d) in .npy or Zarr, whose every entry is
        compared with its mirror images; its unique blocks are stored.
    layout : {"packed", "full"}, optional
        Of a symmetric matrix: its upper triangle, half the bytes (the default), or all of it.
    dataset : str, optional
        Name of the array, where a file holds several.
    chunks : tuple of int, optional
        Rows and columns of a chunk of a dense kind; three equal numbers for a tensor. By default they are chosen.
    shards : int or str, optional
        Bytes of a file that holds several chunks of dense rows, or of the entries of sparse ones, like "128MiB": there
        are fewer files, each written at once, from memory. By default each chunk is a file.
    dtype : str or dtype, optional
        Stored type; by default that of the source. A value that it does not have is an error.
    missing : {"error", "fill"}, default "error"
        Chunks of Zarr or HDF5 that do not exist: refused, or read as their fill value.
    non_finite : {"error", "zero", "missing"}, default "error"
        NaN and infinities: "error" names the first and refuses. "zero" stores a row of dense data that holds one as
        zeros, as which a private run counts it, and does not say so. "missing" stores a NaN of samples or a matrix,
        which a run treats as its ``missing`` says (docs/howto/missing.md), and does not say whether there was any; an
        infinity is refused.
    rounding : {"error", "nearest"}, default "error"
        Values that a float ``dtype`` does not have: the first is named and refused, or all are rounded.
    symmetrise : bool, default False
        Of a tensor: store the mean over the six orders of the indices, instead of comparing.
    header : bool, optional
        Whether the first line of CSV is names. By default it is where none of it is a number; a line of names and
        numbers is refused.
    columns : list of str, "numeric" or dict, optional
        Columns of a table: names, "numeric" (integers and floats only), or ``{"only": ..., "leave_out": [...]}``. By
        default all, but for names of rows.
    overwrite : bool, default False
        Replace ``dest`` once the new store is complete.
    progress : callable, optional
        Called after every batch with rows done, rows in all (None if unknown) and bytes done.
    on_slab : callable, optional
        Called with the array and how many of its rows are written, after each row of chunks; for dense rows whose
        number is known before.

    Returns
    -------
    IngestSummary
        Kind, shape, dtype and fingerprint of the store, seconds and bytes, and what was taken for names or left out.

    Raises
    ------
    BadInputError
        The source cannot be read or not be analysed (non-finite, missing or non-numeric values, not
        symmetric, truncated): the place is named. Nothing is left behind.
    RefusedError
        ``dest`` exists, or another process is writing it.
    CommitError
        The disk is full; what is written is kept and the same call goes on from it.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import npmdask
    >>> rows = np.random.default_rng(0).standard_normal((500, 20)) * np.geomspace(8, 1, 20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/rows.npy", rows)
    ...     summary = npmdask.ingest(f"{folder}/rows.npy", f"{folder}/rows.zarr")
    ...     solution = npmdask.top_k(f"{folder}/rows.zarr", 3, center=True)
    >>> summary.kind, summary.shape
    ('samples', (500, 20))
    >>> np.allclose(solution.values, np.linalg.eigvalsh(np.cov(rows.T, bias=True))[:-4:-1])
    True
    """
    began = time.perf_counter()
    path = local_path(
        at(src, columns), "what is ingested (an array in a bucket is analysed where it lies, or copied first)"
    )
    target = local_path(dest, NEW_STORE)
    _require_arguments(path, target, kind, missing, chunks)
    shard_bytes = parse_memory(shards, "shards")
    with reading(path):
        mark = mark_of(open_node(path)) if paths.is_zarr(path) else None
    if mark is not None:
        warn(of_budget(mark.get("dataset")))
    if shard_bytes is not None and kind == "tensor":
        raise BadInputError("shards are of rows: leave them out for kind='tensor', whose blocks are files each")
    if symmetrise and kind != "tensor":
        raise BadInputError("symmetrise applies only to kind='tensor'; for a matrix, store (A + A.T)/2")
    require(non_finite in NON_FINITE, f"non_finite={non_finite!r}: it is {', '.join(map(repr, NON_FINITE))}")
    require(rounding in ("error", "nearest"), f"rounding={rounding!r}: it is 'error' or 'nearest'")
    if target.exists() and not overwrite:
        raise RefusedError(f"{target} exists already; choose another name or pass --overwrite")
    if kind == "tensor":
        require_tensor_options(layout, non_finite, header, chunks)
        how: dict[str, Any] = {"dataset": dataset, "missing": missing, "symmetrise": symmetrise, "overwrite": overwrite}
        options = how | {"rounding": rounding, "mark": mark, "dtype": None if dtype is None else _dtype(dtype)}
        return ingest_tensor(path, target, **options, chunks=chunks, progress=progress)
    gaps = "refuse" if non_finite == "error" else "nan"
    asked = "nan" if non_finite == "missing" and missing == "error" else missing
    with locked(target), scratch_folder(target) as spool:
        with reading(path):
            if kind == "matrices":
                source: DenseSource | SparseSource = open_matrices(path, dataset, missing, spool, gaps)
            else:
                source = as_kind(open_file(path, dataset, asked, header, spool, gaps), kind)
        kind = kind or ("sparse" if isinstance(source, SparseSource) else "samples")
        if non_finite == "missing" and kind not in ("samples", "matrix"):
            raise BadInputError(
                f"non_finite='missing' is for samples and dense matrices, and this is of kind {kind}: leave it out, "
                "and fill missing values in before"
            )
        packed = choose_layout(kind, layout, chunks) == "packed"
        if packed and shard_bytes is not None:
            raise BadInputError(
                "shards are of whole rows, and a packed symmetric matrix has a file for each chunk of its upper "
                "triangle: leave out shards, or pass layout='full' (--layout full)"
            )
        if dtype is not None:
            source = replace(source, dtype=_dtype(dtype))
        facts = {"format": source.format, "dataset": dataset, "missing": missing, "header": header}
        facts |= {} if non_finite == "error" else {"non_finite": non_finite}
        facts |= ({} if rounding == "error" else {"rounding": rounding}) | source.facts
        record: dict[str, Any] = {"source": {"path": str(path), "format": source.format, "dataset": dataset}}
        side = math.isqrt(source.columns) if kind == "matrices" else None
        record["source"] |= source.facts
        record |= {"notes": list(source.notes)} if source.notes else {}
        record |= {} if side is None else {"side": side}
        with discarded_if_bad(target):
            wide = 8 if isinstance(source, SparseSource) else source.columns * source.dtype.itemsize
            require_disk_and_memory(path, target, source.rows, source.columns, wide)
            common: dict[str, Any] = {"columns": source.columns, "dtype": source.dtype, "overwrite": overwrite}
            common["identity"] = {"source": {"path": str(path), **stamp(path), **facts}} | carried(mark)
            if isinstance(source, SparseSource):
                if chunks is not None:
                    raise BadInputError(
                        "chunks of sparse data are defined by entries: leave out chunks, or pass kind='samples'"
                    )
                from npmdask.writers.sparse import SparseWriter

                writer = SparseWriter(target, shards=shard_bytes, **common)
                rows, print_ = _fill_sparse(path, source, writer, record, progress, rounding)
            else:
                common |= {"rows": source.rows, "chunks": chunks}
                if non_finite == "missing" and storage_dtype(source.dtype).kind == "f":
                    common["gaps"] = True
                if packed:
                    dense: DenseWriter | PackedWriter = PackedWriter(target, **common)
                else:
                    dense = DenseWriter(target, kind=kind, shards=shard_bytes, **common)
                if isinstance(dense, DenseWriter) and source.rows is not None:
                    dense.on_slab = on_slab
                source = _zero_non_finite(source) if non_finite == "zero" else source
                rows, print_ = _fill_dense(path, source, dense, record, progress, rounding)
    return IngestSummary(
        dest=target,
        kind=kind,
        shape=(rows, source.columns),
        dtype=storage_dtype(source.dtype),
        fingerprint=print_,
        seconds=time.perf_counter() - began,
        bytes=sum(size for size, _ in files_of(target)),
        side=side,
        header=source.header,
        notes=source.notes,
    )


def _require_arguments(path: Path, target: Path, kind: str | None, missing: str, chunks: Any) -> None:
    if not path.exists() and not any(part.exists() for part in parts_of(path)):
        raise BadInputError(f"there is nothing at {path}; check the name")
    if path.resolve() == target.resolve():
        raise BadInputError(f"source and destination are both {path}: give the new store another name")
    if path.resolve() in target.resolve().parents:
        raise paths.inside_data(target, path)
    if kind is not None and kind not in KINDS:
        raise BadInputError(f"unknown kind {kind!r}: {closest(kind, list(KINDS))}")
    require(missing in ("error", "fill"), f"missing={missing!r}: it is 'error' or 'fill'")
    if chunks is not None and kind != "tensor" and (len(chunks) != 2 or min(chunks) < 1):
        raise BadInputError(f"chunks={chunks!r}: two numbers of at least 1 are needed, rows and columns")


def _dtype(name: Any) -> np.dtype:
    try:
        return storage_dtype(np.dtype(name))
    except TypeError:
        raise BadInputError(f"unknown dtype {name!r}: for example float32, float64, int32, uint8") from None


# Kinds


def as_kind(source: DenseSource | SparseSource, kind: str | None) -> DenseSource | SparseSource:
    """The source as rows of ``kind``: dense or sparse, square if it is to be symmetric."""
    if kind == "symmetric" and source.rows not in (None, source.columns):
        raise not_square(source.rows or 0, source.columns)
    if isinstance(source, SparseSource) and kind not in (None, "sparse"):
        return _densified(source)
    if isinstance(source, DenseSource) and kind == "sparse":
        return _sparsified(source)
    return source


def _densified(source: SparseSource) -> DenseSource:
    step = batch_rows(source.columns * source.dtype.itemsize)

    def batches(start: int) -> Iterator[np.ndarray]:
        for batch in source.batches(start):
            for first in range(0, batch.shape[0], step):
                yield batch[first : first + step].toarray()

    return DenseSource(**_facts(source), batches=batches)


def _sparsified(source: DenseSource) -> SparseSource:
    def batches(start: int) -> Iterator[sparse.csr_matrix]:
        # From the first row on: the batches, and with them the order of sums, must not depend on `start`.
        for rows in after(start, source.batches(0)):
            yield sparse.csr_matrix(np.ascontiguousarray(rows, storage_dtype(rows.dtype)))

    return SparseSource(**_facts(source), batches=batches)


def _facts(source: FileSource) -> dict[str, Any]:
    return {f.name: getattr(source, f.name) for f in fields(FileSource)}


# Writing


def _zero_non_finite(source: DenseSource) -> DenseSource:
    """The same source, rows that are not finite as zeros."""

    def batches(start: int) -> Iterator[np.ndarray]:
        for rows in source.batches(start):
            whole = np.isfinite(rows).all(axis=1)
            yield rows if whole.all() else np.where(whole[:, None], rows, np.zeros_like(rows))

    return replace(source, batches=batches)


def _fill_dense(
    path: Path,
    source: DenseSource,
    writer: DenseWriter | PackedWriter,
    record: dict[str, Any],
    progress: Progress | None,
    rounding: str,
) -> tuple[int, str]:
    """Number of rows and fingerprint."""
    wide = source.columns * writer.dtype.itemsize
    with closing(guarded(path, source.batches(writer.next_row))) as batches:
        for rows in batches:
            stored = cast_values(rows, writer.dtype, lambda at: (writer.next_row + at[0], at[1]), rounding)
            try:
                writer.write(stored)
            except BadInputError:
                if not np.isfinite(stored).all():
                    source.refuse_marked()
                raise
            if progress:
                progress(writer.next_row, source.rows, writer.next_row * wide)
    require(writer.next_row > 0, f"{path} has no rows: it has no data to analyse")
    if isinstance(writer, PackedWriter):  # it has compared every entry with its mirror image
        return writer.next_row, writer.finish(record, _label_arrays(source))
    before = require_symmetric if writer.kind == "symmetric" else None
    return writer.next_row, writer.finish(record, _label_arrays(source), before)


def _fill_sparse(
    path: Path,
    source: SparseSource,
    writer: Any,
    record: dict[str, Any],
    progress: Progress | None,
    rounding: str,
) -> tuple[int, str]:
    wide = writer.dtype.itemsize + (4 if source.columns < 2**31 else 8)
    with closing(guarded(path, source.batches(writer.next_row))) as batches:
        for batch in batches:
            rows_of = batch.indptr
            data = cast_values(
                batch.data,
                writer.dtype,
                lambda at: (
                    writer.next_row + int(np.searchsorted(rows_of, at[0], side="right")) - 1,  # noqa: B023
                    int(batch.indices[at[0]]),  # noqa: B023
                ),
                rounding,
            )
            writer.write(batch.indptr, batch.indices, data)
            if progress:
                progress(writer.next_row, source.rows, writer.entries * wide)
    if source.rows is not None and writer.next_row != source.rows:
        raise BadInputError(f"{path} ended after {writer.next_row} of {source.rows} rows: it is truncated")
    return writer.next_row, writer.finish(record, _label_arrays(source))


def _label_arrays(source: FileSource) -> dict[str, np.ndarray]:
    """Return the arrays that keep the names of columns, beside the data."""
    fitting = source.labels and replace(source.labels, rows=()).fitting((0, source.columns))
    return {} if not fitting else {"labels": fitting.array()}


# Files of other formats as sources: read once into a store of their own, which every later run takes.
#
# ::
#
#     CACHE/files/<hash of path, array and kind>/data.zarr     the store, as ``npmdask ingest`` makes it
#     CACHE/files/<hash of path, array and kind>/copied.json   the path, and what its file looked like then
#     CACHE/files/<hash of path, array and kind>/alone, used   locks of who makes it, and of all who use it
#
# CACHE is ``$NPMDASK_CACHE``, or ``~/.cache/npmdask``, its owner's only (0700). A run is bound to the content, whose
# fingerprint is that of the store: a copy may be deleted at any time, and is made again where it is needed.

TELLS = "npmdask.files"  # the logger; the command line shows what it says
NOTE, DATA, ALONE, USED = "copied.json", "data.zarr", "alone", "used"
READS = 2  # one more where the same file is read otherwise than before: since 2 names of rows are no columns
LIMIT, BYTES = "NPMDASK_CACHE_LIMIT", 20 * 2**30  # of all copies of files together
FRESH = 2 * 10**9  # nanoseconds: a file that was written so shortly before may change once more unseen


def file_of(path: Path) -> tuple[Path, str | None] | None:
    """The file at ``path`` and the array in it, as ``FILE/NAME``; None where there is neither: a store, or nothing.

    A folder of Parquet files is a file, too, and so are the tables of a pattern.
    """
    if (place := Path(addressed(path)[0])).is_dir():
        return (path, None) if not paths.is_zarr(place) and any(place.glob("*.parquet")) else None
    if not path.exists() and any(part.is_file() for part in parts_of(path)):  # of a pattern, or with chosen columns
        return path, None
    for file in (path, *path.parents):
        if file.is_file():
            return file, path.relative_to(file).as_posix() if file != path else None
        if file.exists():
            break
    return None


@contextmanager
def copy_of(file: Path, array: str | None, kind: str | None, *, gaps: bool = False) -> Iterator[Path]:
    """The store with the rows of a file, which is read if there is none, or if it has changed since. ``gaps``: its
    missing values are kept, as NaN. Inside nothing can take it away, and afterwards as long as :func:`hold` says.

    Raises
    ------
    BadInputError
        The file cannot be read or not be analysed: the place is named.
    RefusedError
        It changed while it was read, or the disk is too small for the copy.
    """
    asked: dict[str, Any] = {"path": str(file.absolute()), "array": array, "kind": kind, "npmdask": package_version()}
    asked["reads"] = READS
    asked |= {"gaps": True} if gaps else {}
    limit = parse_memory(os.environ.get(LIMIT) or None, LIMIT) or BYTES
    folder = cache_folder() / "files" / hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    with _process_lock(folder):
        seen = look_of(file)
        settled = all(time.time_ns() - part.stat().st_mtime_ns >= FRESH for part in parts_of(file))
        if settled and _read_note(folder) == {**asked, "look": seen} and (folder / DATA).is_dir():
            yield folder / DATA
            return
        (folder / NOTE).unlink(missing_ok=True)
        logging.getLogger(TELLS).warning(
            "%s is read into a store first, %s; later runs of it take that (`npmdask gc --cache` deletes it). `npmdask "
            "ingest` puts it where you want it",
            file,
            folder / DATA,
        )
        try:
            ingest(
                file, folder / DATA, kind=kind, dataset=array, overwrite=True, non_finite="missing" if gaps else "error"
            )
        except BadInputError as error:
            said = str(error).replace(KEPT, "; plain runs take missing values with missing = 'mean' (--missing mean)")
            said = said if said.startswith(str(file)) or str(file) in said else f"{file}: {said}"
            said = said.replace("choose one with dataset=", f"choose one as {file}/NAME")
            said = said.replace("non_finite='missing'", "a rule for missing values")
            said += "; `npmdask ingest` takes these options" if " (--" in said.replace("(--missing mean)", "") else ""
            raise BadInputError(said) from error
        if look_of(file) != seen:
            raise RefusedError(f"{file} changed while it was being read: run again once it is written completely")
        for path in folder.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        if settled:
            write_file_atomically(folder / NOTE, json.dumps({**asked, "look": seen}).encode(), 0o600)
        sizes = {one: sum(size for size, _ in files_of(one)) for one, _ in copies()}
        for one in sizes:
            if sum(sizes.values()) > limit and drop_copy(one):
                sizes[one] = 0
        yield folder / DATA


def hold(copy: Path, owner: object) -> None:
    """Let a copy be in use for as long as ``owner`` lives, and remember when it was used last."""
    descriptor = os.open(copy.parent / USED, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.utime(descriptor)
    weakref.finalize(owner, os.close, descriptor)


def copies() -> list[tuple[Path, str]]:
    """The folders of all copies with the file that each is of, first the one that was not used for the longest time."""
    found = []
    for folder in (cache_folder() / "files").glob("*"):
        with suppress(FileNotFoundError):
            used = folder / USED if (folder / USED).exists() else folder
            found.append((used.stat().st_mtime, folder, str((_read_note(folder) or {}).get("path", "a file"))))
    return [(folder, file) for _, folder, file in sorted(found)]


def drop_copy(folder: Path, *, dry: bool = False) -> bool:
    """Delete a copy unless a process makes or uses it: whether it is free (``dry``: that only)."""
    with paths.unless_locked(folder / ALONE, folder / USED) as free:
        if free and not dry:
            aside = folder.with_name(f"{folder.name}-{time.time_ns()}")  # at once: no other process finds half of it
            with suppress(FileNotFoundError):  # another process has just done the same
                folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        return free


def sweep_copies(broom: Any) -> None:
    """Let ``npmdask gc --cache`` take the copies that no process uses."""
    for folder, file in copies():
        nbytes = size_of(folder).bytes
        if drop_copy(folder, dry=broom.dry):
            broom.took(folder, nbytes, f"a copy of {file}")
        else:
            broom.left.append(f"{folder} is in use, a copy of {file}")


@contextmanager
def _process_lock(folder: Path) -> Iterator[None]:
    """One process at a time makes a copy; the others wait for it, and take it."""
    while True:
        try:
            for one in (folder.parent.parent, folder.parent, folder):
                require_no_link(one)
                one.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            descriptor = os.open(folder / ALONE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise BadInputError(
                f"{folder} cannot be created for a copy ({error.strerror or error}): set NPMDASK_CACHE to a folder "
                "that can be written, or make a store with `npmdask ingest`"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The copy may have been deleted between open and flock: then this lock guards nothing.
            if (folder / ALONE).exists() and os.path.samestat(os.fstat(descriptor), (folder / ALONE).stat()):
                yield
                return
        finally:
            os.close(descriptor)


def look_of(file: Path) -> list[list[Any]]:
    """Changes whenever the file does, or one of a folder of Parquet files."""
    stats = [(path.name, path.stat()) for path in parts_of(file)]
    return [[name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for name, s in stats]


def _read_note(folder: Path) -> Any:
    try:
        return json.loads((folder / NOTE).read_bytes())
    except (OSError, ValueError):
        return None


def row_names(source: str | Path) -> Axis | None:
    """Read the names of the rows of a table from its column of names; None where it has none, or is no table."""
    file = None if paths.is_url(source) else file_of(Path(source).absolute())
    if file is None or tell_format(file[0]) not in TABLES:
        return None
    return open_file(file[0], None, "nan", None, file[0]).row_names()  # nothing is written to a folder


def open_source_at(source: str | Path, path: Path, asked: Asked) -> Source | None:
    """Open the file that a path leads to, from the store that it is read into; None of everything else.

    It has no SHA-256 of its own: private runs ask for a store that was ingested.
    """
    if (found := file_of(path)) is None:
        return None
    (file, array), kind, gaps = found, asked.kind, asked.gaps
    takes_complex = array is None and (kind is None or traits_of(kind).may_be_complex)
    if takes_complex and file.suffix.lower() == ".npy" and _is_complex(file):
        return replace(_memory_mapped(file, kind or "samples"), path=str(source))
    own = kind if kind in ("symmetric", "matrices", "tensor") else None  # which are not stored as a table is
    with copy_of(file, array, own, gaps=gaps and own is None) as store:
        opened = _opened_copy(store, None if own is None else kind)
        fits = own is not None or kind is None or (opened.kind == "sparse") == (kind == "sparse")
        opened = _opened_copy(store, kind) if fits else opened
    if not fits:
        with copy_of(file, array, kind, gaps=gaps and kind != "sparse") as store:
            opened = _opened_copy(store, kind)
    return replace(opened, path=str(source), digests=None)


def _opened_copy(copy: Path, kind: str | None) -> Source:
    """A copy, opened, that is in use for as long as something reads it."""
    opened = opened_as(copy, Asked(kind=kind))
    node: Any = opened.reader.group if opened.reader.layout == "csr" else opened.reader.array
    hold(copy, node.store_path.store)
    return opened


def _is_complex(file: Path) -> bool:
    """Say whether an .npy file holds complex numbers; other faults are found where it is read."""
    try:
        with open(file, "rb") as opened:
            return raw_header(opened)[2].kind == "c"
    except (OSError, ValueError, NpmdaskError):
        return False


def _memory_mapped(file: Path, kind: str) -> Source:
    """The complex rows of an .npy file, which are read where they lie: stores hold real numbers."""
    rows = np.load(file.absolute(), mmap_mode="r", allow_pickle=False)
    if rows.ndim != 2:
        raise BadInputError(f"{file} has shape {rows.shape}: rows and columns are needed, at least one of each")
    return opened_as(rows, Asked(kind=kind))
