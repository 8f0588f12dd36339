"""Rows of numbers in a file of people's own tools, written a batch at a time: .npy, .csv or .parquet."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from npmdask.core.storage.checksum import fingerprint
from npmdask.core.storage.paths import require_no_link
from npmdask.errors import BadInputError, CommitError, RefusedError, extra, require

FORMS = (".npy", ".csv", ".parquet")
# Endings that say "a file": a folder of that name would be taken for one by every other program.
OF_FILES = (".npz", ".tsv", ".txt", ".json", ".nc", ".h5", ".hdf5", ".h5ad", ".mtx", ".gz", ".mat", ".pkl", ".xlsx")


def is_row_file(target: Path) -> bool:
    """Return whether ``target`` names a file of rows by its ending, else a Zarr store.

    Raises
    ------
    BadInputError
        The ending is that of a file that is not written here.
    """
    suffix = target.suffix.lower()
    if suffix in OF_FILES:
        raise BadInputError(
            f"{target}: rows are not written as {suffix}: give a name that ends in {', '.join(FORMS[:-1])} or "
            f"{FORMS[-1]} for a file, in .zarr for a Zarr store"
        )
    return suffix in FORMS


class RowFile:
    """A file of float64 rows at ``dest``, which appears whole (:meth:`finish`) or not at all.

    Parameters
    ----------
    dest : the file, whose ending says its format.
    names : what its columns are called, where the format has names (.csv, .parquet).
    overwrite : replace a file that is there.

    Raises
    ------
    RefusedError
        There is something at ``dest``.
    """

    def __init__(self, dest: Path, names: list[str], *, overwrite: bool) -> None:
        require_no_link(dest)
        if dest.is_dir():
            raise RefusedError(f"{dest} is a folder; choose another name for the file, or remove the folder")
        if dest.exists() and not overwrite:
            raise RefusedError(f"{dest} exists already; choose another name or pass --overwrite")
        self.dest, self.next_row = dest, 0
        self.partial = dest.with_name(f"{dest.name}.partial")
        self._names, self._hash = names, hashlib.sha256()
        if dest.suffix.lower() == ".parquet":
            with extra("ingest"):
                import pyarrow as pa
                import pyarrow.parquet as pa_parquet
            self._table: Any = pa.table
        with self._reporting_errors():
            text: dict[str, Any] = {"newline": "", "encoding": "utf-8"} if dest.suffix.lower() == ".csv" else {}
            opened: Any = open(self.partial, "w" if text else "wb", **text)
            self._file: IO[Any] = opened
            match dest.suffix.lower():
                case ".csv":
                    self._lines = csv.writer(opened)
                    self._lines.writerow(names)
                case ".parquet":
                    schema = pa.schema([(name, pa.float64()) for name in names])
                    self._parquet = pa_parquet.ParquetWriter(self._file, schema)
                case _:
                    self._begin_npy()

    def write(self, rows: np.ndarray) -> None:
        """Append rows (b x columns)."""
        rows = np.ascontiguousarray(rows, "<f8")
        with self._reporting_errors():
            match self.dest.suffix.lower():
                case ".csv":
                    self._lines.writerows(rows.tolist())
                case ".parquet":
                    self._parquet.write_table(self._table(dict(zip(self._names, rows.T, strict=True))))
                case _:
                    self._file.write(rows.data)
        self._hash.update(rows.data)
        self.next_row += len(rows)

    def finish(self, facts: dict[str, Any]) -> str:
        """Make the file appear; returns the fingerprint of its numbers. ``facts`` of a store have no place in it."""
        require(self.next_row > 0, f"no rows in the source of {self.dest}")
        digest = np.frombuffer(self._hash.digest(), np.uint8)
        with self._reporting_errors():
            if self.dest.suffix.lower() == ".parquet":
                self._parquet.close()
            elif self.dest.suffix.lower() == ".npy":
                self._begin_npy()  # again, with the number of rows that there are: as long as before
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self.partial, self.dest)
        return fingerprint({"shape": [self.next_row, len(self._names)], "dtype": "<f8"}, [digest])

    def drop(self) -> None:
        """Remove what was not finished."""
        self._file.close()
        self.partial.unlink(missing_ok=True)

    def _begin_npy(self) -> None:
        """Write the header, in which NumPy leaves room for any number of rows."""
        self._file.seek(0)
        shape = (self.next_row, len(self._names))
        np.lib.format.write_array_header_1_0(self._file, {"descr": "<f8", "fortran_order": False, "shape": shape})

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CommitError(f"cannot write {self.dest}: {error.strerror or error}") from error
