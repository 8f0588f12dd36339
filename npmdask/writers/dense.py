"""Writing dense rows into a store."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.core.numerics.units import attributes
from npmdask.core.storage.checksum import crc32c, digest_of
from npmdask.core.storage.column_statistics import ColumnSums, of_moments
from npmdask.errors import BadInputError, require
from npmdask.writers.journal import JournalledWriter
from npmdask.writers.layouts import KEPT, size_of_matrix, storage_dtype

CHUNK_BYTES = 16 * 2**20  # measured: 16 MiB chunks beat 64 MiB (docs/decisions/0002)
INNER_BYTES = 2**20  # of a chunk inside a shard


def choose_chunks(columns: int, itemsize: int, kind: str, nbytes: int | None = None) -> tuple[int, int]:
    """Rows and columns of a chunk: squares for a symmetric matrix, full-width row slabs for the rest.

    Full width lets ``A^T (A V)`` be formed chunk by chunk; very wide rows are cut so that a chunk keeps at
    least 64 rows. Square matrices that are rows are not cut: what is done with one needs all of it.
    """
    nbytes = CHUNK_BYTES if nbytes is None else nbytes
    if kind == "symmetric":
        side = max(64, int((nbytes / itemsize) ** 0.5) // 64 * 64)
        return (min(side, columns), min(side, columns))
    width = columns if kind == "matrices" else min(columns, max(1, nbytes // (64 * itemsize)))
    return (max(1, nbytes // (width * itemsize)), width)


def choose_shards(
    columns: int, itemsize: int, kind: str, nbytes: int, chunks: tuple[int, int] | None = None
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of a shard of at most ``nbytes``, if one of its chunks is not larger, and of these.

    Both are as wide as the rows where :func:`choose_chunks` does not cut them. ``chunks``: given, not chosen.
    """
    if chunks is None and kind == "symmetric":
        chunks = choose_chunks(columns, itemsize, kind, min(nbytes, INNER_BYTES))
    elif chunks is None:
        _, width = choose_chunks(columns, itemsize, kind, nbytes)
        chunks = (max(1, min(nbytes, INNER_BYTES) // (width * itemsize)), width)
    high, wide = chunks
    fit, across = max(1, nbytes // (high * wide * itemsize)), -(-columns // wide)
    if kind == "symmetric" and high == wide:  # square, so that the upper triangle can be read alone
        down = across = min(math.isqrt(fit), across)
    else:
        across = min(fit, across)
        down = fit // across
    return (high * down, wide * across), chunks


class SlabWriter(JournalledWriter):
    """Takes rows in batches of any size and gathers them into slabs: rows of chunks, which ``_flush`` writes."""

    columns: int
    dtype: np.dtype
    chunks: tuple[int, int]
    gaps = False  # whether a NaN is written as it is, as a missing value

    def _gather(self, rows_written: int) -> None:
        """Begin to gather behind the rows that are written already."""
        self._rows, self._filled, self._since_log = rows_written, 0, 0
        self._buffer = np.empty((self.chunks[0], self.columns), self.dtype)

    def _flush(self) -> None:
        raise NotImplementedError

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
        if rows.dtype.kind != "f":
            return
        bad = np.isinf(rows) if self.gaps else ~np.isfinite(rows)
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            value = rows[row, column]
            gaps = np.isnan(value) and self.kind in ("samples", "matrix")
            raise BadInputError(
                f"{value} at row {self.next_row + row}, column {column}: remove or impute the non-finite values of the "
                f"source first{KEPT if gaps else ''}"
            )


OnSlab = Callable[[Any, int], None]  # the array, and how many rows of chunks are written


class DenseWriter(SlabWriter):
    """Writes a dense 2-D data set.

    Parameters
    ----------
    dest : folder to create.
    columns, dtype, kind : what the rows are; ``kind`` one of samples, symmetric, matrix, matrices.
    identity : facts of the source that must be the same for a killed write to be continued.
    rows : number of rows if known (else it grows).
    chunks : rows and columns of a chunk; chosen if None.
    shards : bytes of a shard, a file that holds several chunks; None for a file each.
    compress : LZ4 with bitshuffle (right for counts and pixels, wrong for real-valued floats).
    gaps : a NaN is a missing value and is written. The record says that there may be some, and has no column means.
    """

    on_slab: OnSlab | None = None

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
        shards: int | None = None,
        compress: bool | None = None,
        overwrite: bool = False,
        gaps: bool = False,
    ) -> None:
        self.dtype, self.columns, self.gaps = storage_dtype(dtype), columns, gaps
        height, width = chunks or choose_chunks(columns, self.dtype.itemsize, kind)
        self.chunks = (min(height, rows) if rows else height, min(width, columns))
        self._inner: tuple[int, int] | None = None  # inside what is written, and checked, as one
        if shards is not None:
            given = None if chunks is None else self.chunks
            (height, width), inner = choose_shards(columns, self.dtype.itemsize, kind, shards, given)
            self._inner = (min(inner[0], rows) if rows else inner[0], inner[1])
            self.chunks = (min(height, -(-rows // self._inner[0]) * self._inner[0]) if rows else height, width)
        self.compress = self.dtype.kind in "iu" if compress is None else compress
        facts = {"columns": columns, "dtype": self.dtype.str, "chunks": self.chunks, "rows": rows}
        facts |= {} if self._inner is None else {"inner": self._inner}
        super().__init__(dest, kind, {**facts, "compress": self.compress, **identity}, overwrite)
        self._moments = ColumnSums(columns)
        self._checksums = np.empty((0, -(-columns // self.chunks[1])), np.uint32)
        self._digests: list[np.ndarray] = []  # of each row of chunks
        found = self._begin(lambda: self._create(rows))
        self._gather(0 if found is None else found[1]["rows"])
        if found is not None:
            arrays, meta = found
            self._checksums, self._digests = arrays["checksums"], list(arrays["digests"])
            self._moments.count = meta["rows"]
            vars(self._moments).update({name: arrays[name] for name in ("mean", "m2", "lost") if name in arrays})

    def _create(self, rows: int | None) -> Any:
        group = zarr.open_group(self.partial, mode="a")
        return group.create_array(
            "data",
            shape=(rows or 0, self.columns),
            dtype=self.dtype,
            chunks=self._inner or self.chunks,
            shards=None if self._inner is None else self.chunks,
            compressors=self._codecs(self.compress),
            config={"write_empty_chunks": True},  # a chunk that is not there is an error, not zeros
        )

    def _flush(self) -> None:
        slab = self._buffer[: self._filled]
        first, last = self._rows, self._rows + self._filled
        width = self.chunks[1]
        with self._reporting_errors():
            if last > self._array.shape[0]:
                self._array.resize((last, self.columns))
            self._array[first:last] = slab
            for column in range(self._checksums.shape[1]):
                self._sync_chunk(self._array, (first // self.chunks[0], column))
        pieces = [np.ascontiguousarray(slab[:, c : c + width]) for c in range(0, self.columns, width)]
        self._checksums = np.vstack([self._checksums, np.array([[crc32c(piece) for piece in pieces]], np.uint32)])
        self._digests.append(np.stack([digest_of(piece) for piece in pieces]))
        if not self.gaps:
            self._moments.add(slab)
        self._rows, self._filled = last, 0
        self._since_log += slab.nbytes
        if self._is_entry_due(self._since_log) and self._rows % self.chunks[0] == 0:
            self._checkpoint()
        if self.on_slab is not None:
            self.on_slab(self._array, len(self._checksums))

    def _tables(self) -> dict[str, np.ndarray]:
        return {"checksums": self._checksums, "digests": np.stack(self._digests)}

    def _checkpoint(self) -> None:
        self._log(self._rows, self._tables() | attributes(self._moments, "mean", "m2", "lost"), {"rows": self._rows})
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
        require(self._rows != 0, f"no rows in the source of {self.dest}")
        self._require_all(self._rows, self._array.shape[0], "rows")
        if before_publish:
            before_publish(self._array)
        facts = {"shape": list(self._array.shape), "dtype": self.dtype.str, "chunks": list(self.chunks)}
        moments = {} if self.gaps else of_moments(vars(self._moments), self._rows).kept("column_m2")
        beside = moments | self._tables()
        extra = {**(extra or {}), **(self._size_of_matrix() if self.kind == "symmetric" else {})}
        extra |= {"gaps": True} if self.gaps else {}
        return self._finish(facts, "dense", [beside["digests"]], {**beside, **(arrays or {})}, extra)

    def _size_of_matrix(self) -> dict[str, float | None]:
        """Trace and squared Frobenius norm: the chunks on the diagonal are read again, all others have been summed."""
        (rows, columns), height, trace = self._array.shape, self.chunks[0], 0.0
        for start in range(0, min(rows, columns), height):
            inside = slice(start, min(start + height, rows, columns))
            trace += float(np.trace(self._array[inside, inside], dtype=np.float64))
        with np.errstate(over="ignore"):
            squared = float((self._moments.m2 + rows * self._moments.mean**2).sum())
        return size_of_matrix(trace, squared)
