"""Writing a sparse data set row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec

from npmdask.core.storage.checksum import DIGEST_BYTES, crc32c, digest_of
from npmdask.core.storage.column_statistics import EntrySums
from npmdask.errors import BadInputError, require
from npmdask.writers.journal import JournalledWriter, reopen, sync_tree
from npmdask.writers.layouts import storage_dtype


class SparseWriter(JournalledWriter):
    """Writes a sparse data set as CSR in AnnData's encoding (``X/data``, ``X/indices``, ``X/indptr``).

    Rows are appended in order with ``write``; entries of a row must have different columns. ``shards``: bytes of a file
    of ``data`` or ``indices``, which holds several chunks and is written at once; None for a file each.
    """

    CHUNK = 2**20  # entries: 4 MiB of int32 indices

    def __init__(
        self,
        dest: Path | str,
        *,
        columns: int,
        dtype: np.dtype,
        identity: dict[str, Any],
        shards: int | None = None,
        overwrite: bool = False,
    ) -> None:
        self.dtype, self.columns = storage_dtype(dtype), columns
        self._index = np.dtype(np.int32 if columns < 2**31 else np.int64)
        facts = {"columns": columns, "dtype": self.dtype.str, **({} if shards is None else {"shards": shards})}
        super().__init__(dest, "sparse", {**facts, **identity}, overwrite)
        self._in_file = {  # chunks
            name: 1 if shards is None or name == "indptr" else max(1, shards // (self.CHUNK * dtype.itemsize))
            for name, dtype in self._dtypes().items()
        }
        self._tails: dict[str, list[np.ndarray]] = {name: [] for name in ("data", "indices", "indptr")}
        self._sums: dict[str, list[int]] = {name: [] for name in self._tails}
        self._digests: dict[str, list[np.ndarray]] = {name: [] for name in self._tails}
        self._rows = self._entries = self._logged = 0
        self._columns = EntrySums(columns)
        found = self._resume()
        if found is None:
            with self._reporting_errors():
                self._create()
        else:
            self._restore(*found)

    def _dtypes(self) -> dict[str, np.dtype]:
        return {"data": self.dtype, "indices": self._index, "indptr": np.dtype(np.int64)}

    def _create(self) -> None:
        group = zarr.open_group(self.partial, mode="a").create_group("X")
        for name, dtype in self._dtypes().items():
            codec = BloscCodec(cname="lz4", shuffle="shuffle", typesize=dtype.itemsize)
            options: dict[str, Any] = {"compressors": [codec], "config": {"write_empty_chunks": True}}
            if self._in_file[name] > 1:
                options["shards"] = (self._in_file[name] * self.CHUNK,)
            group.create_array(name, shape=(0,), dtype=dtype, chunks=(self.CHUNK,), **options)
        self._open()
        self._append("indptr", np.zeros(1, np.int64))

    def _open(self) -> None:
        self._group = zarr.open_group(self.partial / "X", mode="r+")
        self._arrays = {name: reopen(self._group[name]) for name in self._dtypes()}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        self._open()
        self._rows, self._entries, self._logged = meta["rows"], meta["entries"], meta["entries"]
        self._columns = EntrySums(self.columns, {"total": arrays["sum"], **arrays})
        for name in self._tails:
            self._tails[name] = [arrays[f"tail_{name}"]]
            self._sums[name] = [int(c) for c in arrays[f"checksums_{name}"]]
            self._digests[name] = list(arrays[f"digests_{name}"])

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
        self._columns.add(indices, data)
        self._rows += len(indptr) - 1
        self._entries += len(data)
        if self._is_entry_due(4 * (self._entries - self._logged) * self.dtype.itemsize):
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
        whole = self._in_file[name] * self.CHUNK
        while sum(map(len, self._tails[name])) >= whole:
            everything = np.concatenate(self._tails[name])
            self._tails[name] = [everything[whole:]]
            self._write_file(name, everything[:whole])

    def _write_file(self, name: str, values: np.ndarray) -> None:
        array, first = self._arrays[name], len(self._sums[name]) * self.CHUNK
        with self._reporting_errors():
            array.resize((first + len(values),))
            array[first : first + len(values)] = values
        for start in range(0, len(values), self.CHUNK):
            chunk = values[start : start + self.CHUNK]
            self._sums[name].append(crc32c(chunk))
            self._digests[name].append(digest_of(chunk))

    def _checkpoint(self) -> None:
        arrays = {name.replace("total", "sum"): values for name, values in self._columns.sums.items()}
        for name in self._tails:
            self._tails[name] = [np.concatenate(self._tails[name])]
            arrays[f"tail_{name}"] = self._tails[name][0]
            arrays[f"checksums_{name}"] = np.array(self._sums[name], np.uint32)
            arrays[f"digests_{name}"] = _table(self._digests[name])
        with self._reporting_errors():
            sync_tree(self.partial / "X")
        self._log(self._rows, arrays, {"rows": self._rows, "entries": self._entries})
        self._logged = self._entries

    def finish(self, extra: dict[str, Any] | None = None, arrays: dict[str, np.ndarray] | None = None) -> str:
        """Write the record and make ``DEST`` appear. Returns the fingerprint."""
        require(self._rows > 0 and self._entries > 0, f"no entries in the source of {self.dest}")
        for name, dtype in self._dtypes().items():
            tail = np.concatenate([*self._tails[name], np.empty(0, dtype)])
            with self._reporting_errors():
                self._arrays[name].resize((len(self._sums[name]) * self.CHUNK,))
            if len(tail):
                self._write_file(name, tail)
        shape = [self._rows, self.columns]
        with self._reporting_errors():
            self._group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": shape})
        facts = {"shape": shape, "dtype": self.dtype.str, "chunks": [self.CHUNK], "entries": self._entries}
        sums = {name: np.array(self._sums[name], np.uint32) for name in self._sums}
        beside = self._columns.statistics(self._rows, self._rows).kept("column_m2")
        digests = {name: _table(self._digests[name]) for name in sorted(sums)}
        beside |= {f"checksums/{name}": table for name, table in sums.items()}
        beside |= {f"digests/{name}": table for name, table in digests.items()}
        return self._finish(facts, "csr", list(digests.values()), {**beside, **(arrays or {})}, extra)


def _table(digests: list[np.ndarray]) -> np.ndarray:
    return np.array(digests, np.uint8).reshape(-1, DIGEST_BYTES)
