"""Turning what people have into a store, out of core: memory does not depend on the size of the source.

The format is told by the suffix, or by the first bytes where the suffix says nothing. A killed ingest goes
on where it was when the same one is run again. ``DEST`` appears only when everything is in it and checked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy import sparse

from npmdask.errors import BadInputError, CommitError, RefusedError, closest
from npmdask.storage.formats import (
    BATCH_BYTES,
    DenseSource,
    guarded,
    open_binary,
    open_csv,
    open_idx,
    open_npy,
    open_parquet,
    reading,
)
from npmdask.storage.formats_sparse import (
    SparseSource,
    open_docword,
    open_hdf5,
    open_market,
    open_npz,
    open_zarr,
)
from npmdask.storage.writer import KINDS, DenseWriter, SparseWriter, storage_dtype

SUPPORTED = (
    ".npy, .npz (NumPy or SciPy sparse), .csv, .tsv, .parquet (a file or a folder of parts), "
    ".h5/.hdf5/.h5ad, .mtx, IDX (MNIST), UCI docword*.txt, and Zarr folders; csv, tsv, mtx, IDX and docword "
)
SUFFIXES = {
    ".npy": "npy", ".npz": "npz", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet",
    ".h5": "hdf5", ".hdf5": "hdf5", ".h5ad": "hdf5", ".mtx": "mtx", ".idx": "idx",
}  # fmt: skip
MAGIC = {
    b"\x93NUMPY": "npy", b"PK\x03\x04": "npz", b"PAR1": "parquet", b"\x89HDF\r\n\x1a\n": "hdf5",
    b"%%MatrixMarket": "mtx",
}  # fmt: skip

Progress = Callable[[int, "int | None", int], None]  # rows done, rows in all if known, bytes done


@dataclass(frozen=True, kw_only=True)
class IngestSummary:
    """What came out: ``bytes`` is what ``dest`` takes on disk, ``seconds`` of this run alone."""

    dest: Path
    kind: str
    shape: tuple[int, int]
    dtype: np.dtype
    fingerprint: str
    seconds: float
    bytes: int


def ingest(
    src: Path | str,
    dest: Path | str,
    *,
    kind: str | None = None,
    dataset: str | None = None,
    chunks: tuple[int, int] | None = None,
    dtype: Any = None,
    missing: str = "error",
    header: bool | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> IngestSummary:
    """Write ``src`` into a new npmdask store ``dest``.

    Parameters
    ----------
    src : a file or folder in one of the formats of ``SUPPORTED``.
    dest : folder to create; an ingest that was killed is continued if nothing about it changed.
    kind : samples (default of dense data), sparse (default of sparse data), symmetric (checked), matrix.
        Sparse data become dense for a dense kind and the other way round.
    dataset : which array, where a file holds several.
    chunks : rows and columns of a chunk (dense kinds); chosen if None.
    dtype : stored type; the source's if None. A value that it cannot hold is an error.
    missing : "fill" reads Zarr chunks that are not there as their fill value, "error" refuses.
    header : whether the first line of CSV is names; told from it if None.
    progress : called after every batch with rows done, rows in all (None if unknown) and bytes done.

    Raises
    ------
    BadInputError
        The source cannot be read or not be analysed (non-finite, missing or non-numeric values, not
        symmetric, truncated): the place is named. Nothing is left behind.
    RefusedError
        ``dest`` exists, or another process is writing it.
    CommitError
        The disk is full; what is written is kept and the same call goes on from it.
    """
    began = time.perf_counter()
    path, target = Path(src).absolute(), Path(dest).absolute()
    _require_arguments(path, target, kind, missing, chunks)
    if target.exists() and not overwrite:
        raise RefusedError(f"{target} exists already; choose another name or pass --overwrite")
    with locked(target), scratch_folder(target) as spool:
        with reading(path):
            source = as_kind(open_file(path, dataset, missing, header, spool), kind)
        kind = kind or ("sparse" if isinstance(source, SparseSource) else "samples")
        if dtype is not None:
            source = replace(source, dtype=_dtype(dtype))
        facts = {"format": source.format, "dataset": dataset, "missing": missing, "header": header}
        identity = {"source": {"path": str(path), **_stamp(path), **facts}}
        record = {"source": {"path": str(path), "format": source.format, "dataset": dataset}}
        with discarded_if_bad(target):
            if isinstance(source, SparseSource):
                shape, print_ = _ingest_sparse(path, source, target, identity, record, chunks, overwrite, progress)
            else:
                shape, print_ = _ingest_dense(path, source, target, kind, identity, record, chunks, overwrite, progress)
    return IngestSummary(
        dest=target,
        kind=kind,
        shape=shape,
        dtype=storage_dtype(source.dtype),
        fingerprint=print_,
        seconds=time.perf_counter() - began,
        bytes=sum(size for size, _ in _files(target)),
    )


def _require_arguments(path: Path, target: Path, kind: str | None, missing: str, chunks: Any) -> None:
    if not path.exists():
        raise BadInputError(f"there is nothing at {path}; check the name")
    if path.resolve() == target.resolve():
        raise BadInputError(f"source and destination are both {path}: give the new store another name")
    if kind is not None and kind not in KINDS:
        raise BadInputError(f"unknown kind {kind!r}: {closest(kind, list(KINDS))}")
    if missing not in ("error", "fill"):
        raise BadInputError(f"missing={missing!r}: it is 'error' or 'fill'")
    if chunks is not None and (len(chunks) != 2 or min(chunks) < 1):
        raise BadInputError(f"chunks={chunks!r}: two numbers of at least 1 are needed, rows and columns")


def _dtype(name: Any) -> np.dtype:
    try:
        return storage_dtype(np.dtype(name))
    except TypeError:
        raise BadInputError(f"unknown dtype {name!r}: for example float32, float64, int32, uint8") from None


def _files(path: Path) -> Iterator[tuple[int, int]]:
    """Size and modification time (ns) of a file, or of every file below a folder."""
    found = [path] if path.is_file() else [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    for file in found:
        stat = file.stat()
        yield stat.st_size, stat.st_mtime_ns


def _stamp(path: Path) -> dict[str, int]:
    stamps = list(_files(path))
    return {
        "size": sum(size for size, _ in stamps),
        "mtime_ns": max((time_ns for _, time_ns in stamps), default=0),
    }


# Telling the format


def open_file(
    path: Path, dataset: str | None, missing: str, header: bool | None, spool: Path
) -> DenseSource | SparseSource:
    """The source in ``path``, whatever its format; ``spool`` is where temporary files may go."""
    openers: dict[str, Callable[[], DenseSource | SparseSource]] = {
        "npy": lambda: open_npy(path),
        "npz": lambda: open_npz(path, dataset, spool),
        "csv": lambda: open_csv(path, header),
        "tsv": lambda: open_csv(path, header, "\t"),
        "parquet": lambda: open_parquet(path, spool),
        "hdf5": lambda: open_hdf5(path, dataset, spool),
        "mtx": lambda: open_market(path, spool),
        "idx": lambda: open_idx(path),
        "docword": lambda: open_docword(path),
        "zarr": lambda: open_zarr(path, dataset, missing, spool),
    }
    name = tell_format(path)
    if dataset is not None and name not in ("npz", "hdf5", "zarr"):
        raise BadInputError(f"{path} ({name}) holds one table: leave out dataset={dataset!r}")
    return openers[name]()


def tell_format(path: Path) -> str:
    """The format's name, by suffix and else by content."""
    if path.is_dir():
        return _tell_folder(path)
    name = path.name.lower()
    packed = name.endswith(".gz")
    known = SUFFIXES.get(Path(name.removesuffix(".gz")).suffix, "")
    if packed and known in ("npy", "npz", "parquet", "hdf5"):
        raise BadInputError(f"{path}: unpack it first (gunzip), {known} files are not read through gzip")
    found = known or _sniff(path)
    if not found:
        raise BadInputError(f"{path} is of no known format; supported are {SUPPORTED}")
    return found


def _tell_folder(path: Path) -> str:
    if any((path / name).exists() for name in ("zarr.json", ".zarray", ".zgroup")):
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


# Kinds


def as_kind(source: DenseSource | SparseSource, kind: str | None) -> DenseSource | SparseSource:
    """The source as rows of ``kind``: dense or sparse, square if it is to be symmetric."""
    if kind == "symmetric" and source.rows not in (None, source.columns):
        raise BadInputError(f"a symmetric matrix is square; this one is {source.rows} x {source.columns}")
    if isinstance(source, SparseSource) and kind not in (None, "sparse"):
        return _densified(source)
    if isinstance(source, DenseSource) and kind == "sparse":
        return _sparsified(source)
    return source


def _densified(source: SparseSource) -> DenseSource:
    step = max(1, BATCH_BYTES // (source.columns * source.dtype.itemsize))

    def batches(start: int) -> Iterator[np.ndarray]:
        for batch in source.batches(start):
            for first in range(0, batch.shape[0], step):
                yield batch[first : first + step].toarray()

    return DenseSource(
        format=source.format, rows=source.rows, columns=source.columns, dtype=source.dtype, batches=batches
    )


def _sparsified(source: DenseSource) -> SparseSource:
    def batches(start: int) -> Iterator[sparse.csr_matrix]:
        # From the first row on: the batches, and with them the order of sums, must not depend on `start`.
        row = 0
        for rows in source.batches(0):
            if row >= start:
                yield sparse.csr_matrix(np.ascontiguousarray(rows))
            row += len(rows)

    rows = cast(int, source.rows)  # only told to the progress bar, which takes None
    return SparseSource(format=source.format, rows=rows, columns=source.columns, dtype=source.dtype, batches=batches)


# Writing


def _ingest_dense(
    path: Path,
    source: DenseSource,
    target: Path,
    kind: str,
    identity: dict[str, Any],
    record: dict[str, Any],
    chunks: tuple[int, int] | None,
    overwrite: bool,
    progress: Progress | None,
) -> tuple[tuple[int, int], str]:
    writer = DenseWriter(
        target,
        columns=source.columns,
        dtype=source.dtype,
        kind=kind,
        identity=identity,
        rows=source.rows,
        chunks=chunks,
        overwrite=overwrite,
    )
    wide = source.columns * writer.dtype.itemsize
    with closing(guarded(path, source.batches(writer.next_row))) as batches:
        for rows in batches:
            writer.write(cast_values(rows, writer.dtype, lambda at: (writer.next_row + at[0], at[1])))
            if progress:
                progress(writer.next_row, source.rows, writer.next_row * wide)
    if not writer.next_row:
        raise BadInputError(f"{path} has no rows: there is nothing in it to analyse")
    shape = (writer.next_row, source.columns)
    print_ = writer.finish(record, before_publish=require_symmetric if kind == "symmetric" else None)
    return shape, print_


def _ingest_sparse(
    path: Path,
    source: SparseSource,
    target: Path,
    identity: dict[str, Any],
    record: dict[str, Any],
    chunks: tuple[int, int] | None,
    overwrite: bool,
    progress: Progress | None,
) -> tuple[tuple[int, int], str]:
    if chunks is not None:
        raise BadInputError("sparse data are cut by entries: leave out chunks, or pass kind='samples'")
    writer = SparseWriter(target, columns=source.columns, dtype=source.dtype, identity=identity, overwrite=overwrite)
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
            )
            writer.write(batch.indptr, batch.indices, data)
            if progress:
                progress(writer.next_row, source.rows, writer.entries * wide)
    if source.rows is not None and writer.next_row != source.rows:
        raise BadInputError(f"{path} ended after {writer.next_row} of {source.rows} rows: it is truncated")
    return (writer.next_row, source.columns), writer.finish(record)


def cast_values(values: np.ndarray, dtype: np.dtype, place: Callable[[list[int]], tuple[int, int]]) -> np.ndarray:
    """``values`` as ``dtype``; rounding is fine, losing an integer, a fraction or the whole number is not."""
    if values.dtype == dtype or np.can_cast(values.dtype, dtype, "safe"):
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        stored = values.astype(dtype)
        lost = stored != values if dtype.kind in "iu" else ~np.isfinite(stored) & np.isfinite(values)
    if dtype.kind in "iu" and values.dtype.kind in "iu":
        lost |= (stored < 0) != (values < 0)  # NumPy wraps around and then finds both equal
    if lost.any():
        at = [int(i) for i in np.argwhere(lost)[0]]
        row, column = place(at)
        raise BadInputError(
            f"{values[tuple(at)]!s} at row {row}, column {column} cannot be stored as {dtype}: leave out "
            "dtype or choose a wider one"
        )
    return stored


def require_symmetric(array: Any) -> None:
    """Compare block (i, j) with block (j, i) transposed, a pair at a time (A = A^T up to rounding).

    Raises
    ------
    BadInputError
        Not square, or an entry differs from its mirror image by more than 4 machine_eps of the larger one.
    """
    n, side = array.shape[0], array.chunks[0]
    if array.shape != (n, n):
        raise BadInputError(f"a symmetric matrix is square; this one is {array.shape[0]} x {array.shape[1]}")
    tolerance = 4 * np.finfo(array.dtype).eps if array.dtype.kind == "f" else 0.0
    for top in range(0, n, side):
        for left in range(top, n, side):
            rows, columns = slice(top, min(n, top + side)), slice(left, min(n, left + side))
            block = np.asarray(array[rows, columns])
            mirror = block.T if top == left else np.asarray(array[columns, rows]).T
            _require_equal(block, mirror, tolerance, top, left)


def _require_equal(block: np.ndarray, mirror: np.ndarray, tolerance: float, top: int, left: int) -> None:
    wrong = block != mirror
    if tolerance and wrong.any():
        with np.errstate(over="ignore"):
            wrong = np.abs(block - mirror) > tolerance * np.maximum(np.abs(block), np.abs(mirror))
    if wrong.any():
        i, j = (int(n) for n in np.argwhere(wrong)[0])
        raise BadInputError(
            f"not symmetric: entry ({top + i}, {left + j}) is {block[i, j]!s} and entry ({left + j}, "
            f"{top + i}) is {mirror[i, j]!s}; pass kind='matrix', or symmetrise with (A + A.T)/2"
        )


# Around it


@contextmanager
def discarded_if_bad(target: Path) -> Iterator[None]:
    """A source that is wrong will be another one when it is mended: nothing written from it is of use."""
    try:
        yield
    except BadInputError:
        shutil.rmtree(target.with_name(target.name + ".partial"), ignore_errors=True)
        raise


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` for temporary files; what a killed run left in it goes first."""
    folder = target.with_name(target.name + ".partial.scratch")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold ``DEST.partial.lock`` (flock: the kernel lets go of it however this process dies)."""
    path = target.with_name(target.name + ".partial.lock")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path, target)
    except OSError as error:
        raise CommitError(f"cannot write {path}: {error.strerror or error}; choose another place") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, target: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)  # close-on-exec, as Python opens everything
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise RefusedError(
                f"another process (pid {holder}) is writing {target}; wait for it or end it first"
            ) from None
        # The holder before may have removed the file between open and flock: then this lock guards nothing.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor
        os.close(descriptor)
