"""Writing a data set row by row, out of core, so that a kill never leaves a store that looks whole.

Everything goes to ``DEST.partial``; a journal beside the data says how far it is durable; ``finish`` writes
the record (kind, fingerprint, checksums, column statistics) and renames the folder to ``DEST``. A writer
opened again with the same identity goes on at ``next_row``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec

from npmdask.errors import BadInputError, CommitError, RefusedError
from npmdask.storage.bundle import fsync_folder, read_bundle, write_bundle
from npmdask.storage.checksum import crc32c, fingerprint

FORMAT = 1
CHUNK_BYTES = 16 * 2**20  # measured: 16 MiB chunks beat 64 MiB (docs/decisions/0002)
JOURNAL_BYTES = 128 * 2**20  # redone at most, after a kill
KINDS = ("samples", "symmetric", "matrix", "sparse")


def choose_chunks(columns: int, itemsize: int, kind: str) -> tuple[int, int]:
    """Rows and columns of a chunk: squares for a symmetric matrix, full-width row slabs for the rest.

    Full width lets ``A^T (A V)`` be formed chunk by chunk; very wide rows are cut so that a chunk keeps at
    least 64 rows.
    """
    if kind == "symmetric":
        side = max(64, int((CHUNK_BYTES / itemsize) ** 0.5) // 64 * 64)
        return (min(side, columns), min(side, columns))
    width = min(columns, max(1, CHUNK_BYTES // (64 * itemsize)))
    return (max(1, CHUNK_BYTES // (width * itemsize)), width)


def storage_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype that a source is stored in: float32 and float64 kept, small integers kept, no complex.

    Raises
    ------
    BadInputError
        Complex, text or object data.
    """
    dtype = np.dtype(dtype).newbyteorder("=")
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind in "iu" or dtype in (np.float32, np.float64):
        return dtype
    if dtype == np.float16:
        return np.dtype(np.float32)
    if dtype.kind == "f":
        return np.dtype(np.float64)
    raise BadInputError(f"data of type {dtype} cannot be analysed: store real numbers (float32, float64, integers)")


class Moments:
    """Column means and sums of squared deviations, merged slab by slab (Chan, Golub and LeVeque 1983)."""

    def __init__(self, columns: int) -> None:
        self.count, self.mean, self.m2 = 0, np.zeros(columns), np.zeros(columns)

    def add(self, rows: np.ndarray) -> None:
        """Add rows (b x columns), a few at a time: the float64 copy stays small."""
        few = max(1, 2**18 // max(1, rows.shape[1]))
        for start in range(0, rows.shape[0], few):
            part = rows[start : start + few]
            mean = part.mean(axis=0, dtype=np.float64)
            deviation = part - mean
            self.merge(part.shape[0], mean, np.einsum("ij,ij->j", deviation, deviation))

    def merge(self, count: int, mean: np.ndarray, m2: np.ndarray) -> None:
        total, delta = self.count + count, mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self.m2 = self.m2 + m2 + delta**2 * (self.count * count / total)
        self.count = total


class _Journalled:
    """The part that dense and sparse writers share: the folder aside, its lock-step journal, the last rename."""

    def __init__(self, dest: Path, identity: dict[str, Any], overwrite: bool) -> None:
        self.dest = Path(dest).absolute()
        self.partial = self.dest.with_name(self.dest.name + ".partial")
        self._journal = self.partial / "journal"
        self.identity = json.loads(json.dumps({"format": FORMAT, **identity}, default=str))
        self._mend_overwrite()
        if self.dest.exists() and not overwrite:
            raise RefusedError(f"{self.dest} exists already; choose another name or pass --overwrite")
        self._overwrite = overwrite

    @property
    def _replaced(self) -> Path:
        return self.dest.with_name(self.dest.name + ".replaced")

    def _mend_overwrite(self) -> None:
        """After a kill between the two renames of an overwrite: the old store is put back, or cleared away."""
        if self._replaced.exists() and not self.dest.exists():
            os.rename(self._replaced, self.dest)
        shutil.rmtree(self._replaced, ignore_errors=True)

    def _resume(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """The last durable journal entry, or None after clearing the way for a fresh start."""
        entries = sorted(self._journal.glob("[0-9]*")) if self._journal.is_dir() else []
        for entry in reversed(entries):
            try:
                arrays, meta = read_bundle(entry)
            except BadInputError:
                continue
            if meta["identity"] == self.identity:
                for left in self.partial.rglob("*.partial"):  # zarr writes each chunk aside under such a name
                    left.unlink()
                return arrays, meta
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        self._journal.mkdir()
        return None

    def _log(self, position: int, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        entry = self._journal / f"{position:015d}"
        if entry.exists():
            return
        write_bundle(entry, arrays, {"identity": self.identity, **meta})
        for older in sorted(self._journal.glob("[0-9]*"))[:-1]:
            shutil.rmtree(older, ignore_errors=True)

    def _publish(self) -> None:
        sync_tree(self.partial)
        shutil.rmtree(self._journal)
        if self._overwrite and self.dest.exists():
            old = self.dest.with_name(self.dest.name + ".replaced")
            shutil.rmtree(old, ignore_errors=True)  # a kill between the renames may have left one
            os.rename(self.dest, old)
            os.rename(self.partial, self.dest)
            shutil.rmtree(old)
        else:
            os.rename(self.partial, self.dest)
        fsync_folder(self.dest.parent)


def sync_tree(root: Path) -> None:
    """Flush every file and folder below ``root``."""
    for folder, _, files in os.walk(root):
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
        fsync_folder(Path(folder))


class DenseWriter(_Journalled):
    """Writes a dense 2-D data set.

    Parameters
    ----------
    dest : folder to create.
    columns, dtype, kind : what the rows are; ``kind`` one of samples, symmetric, matrix.
    identity : facts of the source that must be the same for a killed write to be continued.
    rows : number of rows if known (else it grows).
    chunks : rows and columns of a chunk; chosen if None.
    compress : LZ4 with bitshuffle (right for counts and pixels, wrong for real-valued floats).
    """

    def __init__(
        self,
        dest: Path | str,
        *,
        columns: int,
        dtype: np.dtype,
        kind: str,
        identity: dict[str, Any],
        rows: int | None = None,
        chunks: tuple[int, int] | None = None,
        compress: bool | None = None,
        overwrite: bool = False,
    ) -> None:
        self.dtype, self.kind, self.columns = storage_dtype(dtype), kind, columns
        height, width = chunks or choose_chunks(columns, self.dtype.itemsize, kind)
        self.chunks = (min(height, rows) if rows else height, min(width, columns))
        self.compress = self.dtype.kind in "iu" if compress is None else compress
        facts = {
            "columns": columns,
            "dtype": self.dtype.str,
            "kind": kind,
            "chunks": self.chunks,
            "rows": rows,
        }
        super().__init__(Path(dest), {**facts, "compress": self.compress, **identity}, overwrite)
        self._buffer = np.empty((self.chunks[0], columns), self.dtype)
        self._filled, self._since_log = 0, 0
        self._moments, self._checksums = (
            Moments(columns),
            np.empty((0, -(-columns // self.chunks[1])), np.uint32),
        )
        found = self._resume()
        if found is None:
            self._rows, self._array = 0, self._create(rows)
        else:
            arrays, meta = found
            self._rows, self._array = meta["rows"], _reopen(zarr.open_array(self.partial / "data", mode="r+"))
            self._checksums, self._moments.count = arrays["checksums"], meta["rows"]
            self._moments.mean, self._moments.m2 = arrays["mean"], arrays["m2"]

    def _create(self, rows: int | None) -> Any:
        group = zarr.open_group(self.partial, mode="a")
        codec = BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=self.dtype.itemsize)
        return group.create_array(
            "data",
            shape=(rows or 0, self.columns),
            dtype=self.dtype,
            chunks=self.chunks,
            compressors=[codec] if self.compress else None,
            config={"write_empty_chunks": True},  # a chunk that is not there is an error, not zeros
        )

    @property
    def next_row(self) -> int:
        """The first row that is not written yet; a continued write must go on exactly here."""
        return self._rows + self._filled

    def write(self, rows: np.ndarray) -> None:
        """Append rows (b x columns).

        Raises
        ------
        BadInputError
            A NaN or infinity; its row and column are named.
        """
        if rows.ndim != 2 or rows.shape[1] != self.columns:
            raise BadInputError(f"row {self.next_row}: expected {self.columns} columns, got shape {rows.shape}")
        self._require_finite(rows)
        while len(rows):
            part = rows[: self.chunks[0] - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            rows = rows[len(part) :]
            if self._filled == self.chunks[0]:
                self._flush()

    def _require_finite(self, rows: np.ndarray) -> None:
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            row, column = (int(i) for i in np.argwhere(~np.isfinite(rows))[0])
            raise BadInputError(
                f"{rows[row, column]} at row {self.next_row + row}, column {column}: remove or impute the "
                "non-finite values of the source first"
            )

    def _flush(self) -> None:
        slab = self._buffer[: self._filled]
        first, last = self._rows, self._rows + self._filled
        width = self.chunks[1]
        try:
            if last > self._array.shape[0]:
                self._array.resize((last, self.columns))
            self._array[first:last] = slab
            self._sync_chunks(first // self.chunks[0])
        except OSError as error:
            raise CommitError(
                f"cannot write {self.partial}: {error.strerror or error}. Free some space and run the same "
                "command again: it goes on from what is written"
            ) from error
        sums = [crc32c(slab[:, c : c + width]) for c in range(0, self.columns, width)]
        self._checksums = np.vstack([self._checksums, np.array([sums], np.uint32)])
        self._moments.add(slab)
        self._rows, self._filled = last, 0
        self._since_log += slab.nbytes
        if self._since_log >= JOURNAL_BYTES and self._rows % self.chunks[0] == 0:
            self._checkpoint()

    def _sync_chunks(self, slab: int) -> None:
        for column in range(self._checksums.shape[1]):
            name = self._array.metadata.encode_chunk_key((slab, column))
            with open(self.partial / "data" / name, "rb") as file:
                os.fsync(file.fileno())

    def _checkpoint(self) -> None:
        arrays: dict[str, np.ndarray] = {
            "checksums": self._checksums,
            "mean": self._moments.mean,
            "m2": self._moments.m2,
        }
        self._log(self._rows, arrays, {"rows": self._rows})
        self._since_log = 0

    def finish(
        self,
        extra: dict[str, Any] | None = None,
        arrays: dict[str, np.ndarray] | None = None,
        before_publish: Callable[[Any], None] | None = None,
    ) -> str:
        """Write the record and make ``DEST`` appear. Returns the fingerprint.

        ``extra`` goes into the record (attributes), ``arrays`` (names may contain ``/``) beside the data.
        ``before_publish`` is given the whole array; if it raises, ``DEST`` does not appear.
        """
        if self._filled:
            self._flush()
        if self._rows == 0:
            raise BadInputError(f"no rows in the source of {self.dest}")
        if self._array.shape[0] != self._rows:
            raise BadInputError(
                f"the source of {self.dest} ended after {self._rows} of {self._array.shape[0]} rows: it is "
                "truncated; nothing was published"
            )
        if before_publish:
            before_publish(self._array)
        facts = {"shape": list(self._array.shape), "dtype": self.dtype.str, "chunks": list(self.chunks)}
        print_ = fingerprint({**facts, "layout": "dense"}, [self._checksums])
        group = zarr.open_group(self.partial, mode="a")
        beside: dict[str, np.ndarray] = {
            "column_mean": self._moments.mean,
            "column_m2": self._moments.m2,
            "checksums": self._checksums,
        }
        for name, array in {**beside, **(arrays or {})}.items():
            write_array(group, name, array)
        group.attrs["npmdask"] = {
            "format": FORMAT,
            "kind": self.kind,
            "fingerprint": print_,
            **facts,
            **(extra or {}),
        }
        self._publish()
        return print_


def _reopen(array: Any) -> Any:
    """An opened array that writes chunks of zeros too: that setting is not stored with the array."""
    return array.with_config({"write_empty_chunks": True})


def write_array(group: Any, name: str, array: np.ndarray) -> None:
    """One small or medium array beside the data, whole, replacing what a killed run may have left."""
    chunks = tuple(max(1, min(n, 2**20)) for n in array.shape)
    group.create_array(
        name,
        shape=array.shape,
        dtype=array.dtype,
        chunks=chunks,
        compressors=None,
        config={"write_empty_chunks": True},
        overwrite=True,
    )[...] = array


class SparseWriter(_Journalled):
    """Writes a sparse data set as CSR in AnnData's encoding (``X/data``, ``X/indices``, ``X/indptr``).

    Rows are appended in order with ``write``; entries of a row must have different columns.
    """

    CHUNK = 2**20  # entries: 4 MiB of int32 indices

    def __init__(
        self,
        dest: Path | str,
        *,
        columns: int,
        dtype: np.dtype,
        identity: dict[str, Any],
        overwrite: bool = False,
    ) -> None:
        self.dtype, self.columns = storage_dtype(dtype), columns
        self._index = np.dtype(np.int32 if columns < 2**31 else np.int64)
        super().__init__(
            Path(dest), {"columns": columns, "dtype": self.dtype.str, "kind": "sparse", **identity}, overwrite
        )
        self._tails: dict[str, list[np.ndarray]] = {name: [] for name in ("data", "indices", "indptr")}
        self._sums: dict[str, list[int]] = {name: [] for name in self._tails}
        self._rows = self._entries = self._logged = 0
        self._sum, self._squares = np.zeros(columns), np.zeros(columns)
        found = self._resume()
        if found is None:
            self._create()
        else:
            self._restore(*found)

    def _dtypes(self) -> dict[str, np.dtype]:
        return {"data": self.dtype, "indices": self._index, "indptr": np.dtype(np.int64)}

    def _create(self) -> None:
        group = zarr.open_group(self.partial, mode="a").create_group("X")
        for name, dtype in self._dtypes().items():
            codec = BloscCodec(cname="lz4", shuffle="shuffle", typesize=dtype.itemsize)
            options = {"compressors": [codec], "config": {"write_empty_chunks": True}}
            group.create_array(name, shape=(0,), dtype=dtype, chunks=(self.CHUNK,), **options)
        self._open()
        self._append("indptr", np.zeros(1, np.int64))

    def _open(self) -> None:
        self._group = zarr.open_group(self.partial / "X", mode="r+")
        self._arrays = {name: _reopen(self._group[name]) for name in self._dtypes()}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        self._open()
        self._rows, self._entries, self._logged = meta["rows"], meta["entries"], meta["entries"]
        self._sum, self._squares = arrays["sum"], arrays["squares"]
        for name in self._tails:
            self._tails[name] = [arrays[f"tail_{name}"]]
            self._sums[name] = [int(c) for c in arrays[f"checksums_{name}"]]

    @property
    def next_row(self) -> int:
        """The first row that is not written yet; a continued write must go on exactly here."""
        return self._rows

    @property
    def entries(self) -> int:
        """Entries written so far (all rows before ``next_row``)."""
        return self._entries

    def write(self, indptr: np.ndarray, indices: np.ndarray, data: np.ndarray) -> None:
        """Append rows in CSR form; ``indptr`` (b + 1) starts at 0.

        Raises
        ------
        BadInputError
            A column index out of range or a non-finite value; the row is named.
        """
        self._check(indptr, indices, data)
        self._append("data", data.astype(self.dtype, copy=False))
        self._append("indices", indices.astype(self._index, copy=False))
        self._append("indptr", self._entries + indptr[1:].astype(np.int64))
        values = data.astype(np.float64, copy=False)
        self._sum += np.bincount(indices, values, self.columns)
        self._squares += np.bincount(indices, values**2, self.columns)
        self._rows += len(indptr) - 1
        self._entries += len(data)
        if (self._entries - self._logged) * self.dtype.itemsize >= JOURNAL_BYTES // 4:
            self._checkpoint()

    def _check(self, indptr: np.ndarray, indices: np.ndarray, data: np.ndarray) -> None:
        wrong = (indices < 0) | (indices >= self.columns)
        if data.dtype.kind == "f":
            wrong |= ~np.isfinite(data)
        if wrong.any():
            entry = int(np.argmax(wrong))
            row = self._rows + int(np.searchsorted(indptr, entry, side="right")) - 1
            raise BadInputError(
                f"row {row}: value {data[entry]} in column {indices[entry]} (columns are 0 to "
                f"{self.columns - 1}, values must be finite); correct the source first"
            )

    def _append(self, name: str, values: np.ndarray) -> None:
        self._tails[name].append(values)
        while sum(map(len, self._tails[name])) >= self.CHUNK:
            everything = np.concatenate(self._tails[name])
            self._tails[name] = [everything[self.CHUNK :]]
            self._write_chunk(name, everything[: self.CHUNK])

    def _write_chunk(self, name: str, values: np.ndarray) -> None:
        array, first = self._arrays[name], len(self._sums[name]) * self.CHUNK
        try:
            array.resize((first + len(values),))
            array[first : first + len(values)] = values
        except OSError as error:
            raise CommitError(
                f"cannot write {self.partial}: {error.strerror or error}. Free some space and run the same "
                "command again: it goes on from what is written"
            ) from error
        self._sums[name].append(crc32c(values))

    def _checkpoint(self) -> None:
        arrays: dict[str, np.ndarray] = {"sum": self._sum, "squares": self._squares}
        for name in self._tails:
            self._tails[name] = [np.concatenate(self._tails[name])]
            arrays[f"tail_{name}"] = self._tails[name][0]
            arrays[f"checksums_{name}"] = np.array(self._sums[name], np.uint32)
        sync_tree(self.partial / "X")
        self._log(self._rows, arrays, {"rows": self._rows, "entries": self._entries})
        self._logged = self._entries

    def finish(self, extra: dict[str, Any] | None = None, arrays: dict[str, np.ndarray] | None = None) -> str:
        """Write the record and make ``DEST`` appear. Returns the fingerprint."""
        if self._rows == 0 or self._entries == 0:
            raise BadInputError(f"no entries in the source of {self.dest}")
        for name, dtype in self._dtypes().items():
            tail = np.concatenate([*self._tails[name], np.empty(0, dtype)])
            self._arrays[name].resize((len(self._sums[name]) * self.CHUNK,))
            if len(tail):
                self._write_chunk(name, tail)
        shape = [self._rows, self.columns]
        self._group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": shape})
        facts = {"shape": shape, "dtype": self.dtype.str, "chunks": [self.CHUNK], "entries": self._entries}
        sums = {name: np.array(self._sums[name], np.uint32) for name in self._sums}
        print_ = fingerprint({**facts, "layout": "csr"}, [sums[name] for name in sorted(sums)])
        mean = self._sum / self._rows
        group = zarr.open_group(self.partial, mode="a")
        beside: dict[str, np.ndarray] = {"column_mean": mean, "column_m2": self._squares - self._rows * mean**2}
        beside |= {f"checksums/{name}": table for name, table in sums.items()}
        for name, array in {**beside, **(arrays or {})}.items():
            write_array(group, name, array)
        group.attrs["npmdask"] = {
            "format": FORMAT,
            "kind": "sparse",
            "fingerprint": print_,
            **facts,
            **(extra or {}),
        }
        self._publish()
        return print_
