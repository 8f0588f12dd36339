"""Writing a symmetric matrix row by row, its upper triangle only.

The rows arrive whole. Of each slab the part at and right of the diagonal is stored; the part left of it must be
the mirror image of chunks that are stored already, and is compared with them. For the layout of the array see
:mod:`npmdask.storage.readers.packed_symmetric`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.errors import BadInputError
from npmdask.storage.checksum import DIGEST_BYTES, crc32c, digest_of
from npmdask.storage.kinds import choose_layout, not_square, require_mirrored, size_of_matrix, storage_dtype
from npmdask.storage.readers.packed_symmetric import PackedArray, TriangleReader, chunk_unit, triangle_number
from npmdask.storage.writers.dense import SlabWriter, choose_chunks
from npmdask.storage.writers.journal import reopen


def packed_bytes(columns: int, dtype: np.dtype, chunks: tuple[int, int] | None = None) -> int:
    """Bytes of the packed array before compression, with what fills up the chunks at the edge."""
    side = _side(columns, dtype, chunks)
    return triangle_number(-(-columns // side)) * side**2 * dtype.itemsize


def _side(columns: int, dtype: np.dtype, chunks: tuple[int, int] | None) -> int:
    """The side of a chunk; where it is chosen, the last one of a row is hardly shorter: it is stored filled up."""
    if chunks is not None:
        return min(chunks[0], columns)
    side = choose_chunks(columns, dtype.itemsize, "symmetric")[0]
    even = -(-columns // -(-columns // side))
    return min(-(-even // 64) * 64, columns)


class PackedWriter(SlabWriter):
    """Writes a symmetric matrix in packed layout.

    Parameters
    ----------
    dest : folder to create.
    columns, dtype : of the matrix, which has as many rows.
    identity : facts of the source that must be the same for a killed write to be continued.
    rows : number of rows if known.
    chunks : rows and columns of a chunk, two equal numbers; chosen if None.
    compress : LZ4 with bitshuffle; for integers unless told.
    mirrored : what is left of the diagonal is its mirror image by construction and not looked at.
    """

    def __init__(
        self,
        dest: Path | str,
        *,
        columns: int,
        dtype: np.dtype,
        identity: dict[str, Any],
        rows: int | None = None,
        chunks: tuple[int, int] | None = None,
        compress: bool | None = None,
        mirrored: bool = False,
        overwrite: bool = False,
    ) -> None:
        choose_layout("symmetric", "packed", chunks)
        self.dtype, self.columns, self._expected = storage_dtype(dtype), columns, rows
        self.compress = self.dtype.kind in "iu" if compress is None else compress
        side = _side(columns, self.dtype, chunks)
        self.chunks, self._n, self._mirrored = (side, side), -(-columns // side), mirrored
        facts = {"columns": columns, "dtype": self.dtype.str, "chunks": self.chunks, "rows": rows, "layout": "packed"}
        super().__init__(dest, "symmetric", {**facts, "compress": self.compress, **identity}, overwrite)
        self._checksums = np.zeros((self._n, self._n), np.uint32)
        self._digests = np.zeros((self._n, self._n, DIGEST_BYTES), np.uint8)
        self._trace = self._squares = 0.0
        self._excess = 0  # rows that a square has no room for: counted for the sentence
        found = self._resume()
        if found is None:
            self._gather(0)
            with self._writing():
                self._array = self._create()
        else:
            arrays, meta = found
            self._gather(meta["rows"])
            self._array = reopen(zarr.open_array(self.partial / "data", mode="r+"))
            self._checksums, self._digests = arrays["checksums"], arrays["digests"]
            self._trace, self._squares = meta["trace"], meta["squares"]

    def _create(self) -> Any:
        return zarr.open_group(self.partial, mode="a").create_array(
            "data",
            shape=(triangle_number(self._n), *self.chunks),
            dtype=self.dtype,
            chunks=(1, *self.chunks),
            compressors=self._codecs(self.compress),
            chunk_key_encoding={"name": "default", "separator": "."},  # one folder, not two for each chunk
            config={"write_empty_chunks": True},  # a chunk that is not there is an error, not zeros
        )

    @property
    def next_row(self) -> int:
        """The first row that is not written yet; a continued write must go on exactly here."""
        return super().next_row + self._excess

    def write(self, rows: np.ndarray) -> None:
        """Append rows (b x columns).

        Raises
        ------
        BadInputError
            A NaN or infinity, or an entry that is not its mirror image; row and column are named.
        """
        room = self.columns - self._rows - self._filled
        super().write(rows[:room])
        self._excess += len(rows[room:])
        if self._filled and self._rows + self._filled == self.columns:
            self._flush()

    def _flush(self) -> None:
        i, slab = self._rows // self.chunks[0], self._buffer[: self._filled]
        if not self._mirrored:
            self._require_mirrored(i, slab)
        with self._writing():
            for j, values in self._upper(i, slab):
                unit, padded = chunk_unit(i, j, self._n), np.zeros((1, *self.chunks), self.dtype)
                padded[0, : values.shape[0], : values.shape[1]] = values
                self._array[unit : unit + 1] = padded
                self._sync_chunk(self._array, (unit, 0, 0))
                self._checksums[i, j], self._digests[i, j] = crc32c(values), digest_of(values)
                self._add_size(values, i == j)
                self._since_log += values.nbytes
        self._rows, self._filled = self._rows + self._filled, 0
        if self._due(self._since_log):
            self._checkpoint()

    def _upper(self, i: int, slab: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The chunks of slab ``i`` on and right of the diagonal, by their column."""
        side = self.chunks[0]
        for j in range(i, self._n):
            values = slab[:, j * side : (j + 1) * side]
            yield j, np.triu(values) + np.triu(values, 1).T if self._mirrored and i == j else values

    def _require_mirrored(self, i: int, slab: np.ndarray) -> None:
        side = self.chunks[0]
        stored = TriangleReader(array=PackedArray(self._array, self.columns), checksums=self._checksums)
        for j in range(i + 1):
            mirror = slab[:, j * side : (j + 1) * side].T
            require_mirrored(mirror.T if i == j else stored.chunk(j, i), mirror, j * side, i * side)

    def _add_size(self, values: np.ndarray, diagonal: bool) -> None:
        """Trace and squared Frobenius norm, a chunk at a time and in float64; off the diagonal a chunk counts twice."""
        with np.errstate(over="ignore"):
            squares = float(np.square(values, dtype=np.float64).sum())
        self._squares += squares if diagonal else 2 * squares
        self._trace += float(np.trace(values, dtype=np.float64)) if diagonal else 0.0

    def _checkpoint(self) -> None:
        meta = {"rows": self._rows, "trace": self._trace, "squares": self._squares}
        self._log(self._rows, {"checksums": self._checksums, "digests": self._digests}, meta)
        self._since_log = 0

    def finish(self, extra: dict[str, Any] | None = None, arrays: dict[str, np.ndarray] | None = None) -> str:
        """Write the record and make ``DEST`` appear. Returns the fingerprint.

        ``extra`` goes into the record (attributes), ``arrays`` (names may contain ``/``) beside the data.
        """
        if self.next_row == 0:
            raise BadInputError(f"no rows in the source of {self.dest}")
        if self._expected is not None and self.next_row < self._expected:
            raise BadInputError(
                f"the source of {self.dest} ended after {self.next_row} of {self._expected} rows: it is "
                "truncated; nothing was published"
            )
        if self.next_row != self.columns:
            raise not_square(self.next_row, self.columns)
        d, upper = self.columns, np.triu_indices(self._n)
        tables: dict[str, np.ndarray] = {"checksums": self._checksums[upper], "digests": self._digests[upper]}
        facts = {"shape": [d, d], "dtype": self.dtype.str, "chunks": list(self.chunks), "layout": "packed"}
        extra = {**(extra or {}), **size_of_matrix(self._trace, self._squares)}
        return self._finish(facts, "packed", [tables["digests"]], {**tables, **(arrays or {})}, extra)
