"""Rows of numbers in a file of people's own tools, written a batch at a time: .npy, .csv or .parquet."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any
from urllib.parse import quote

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
    append : put the rows behind those of a .parquet file that is there, of the same columns and the same ``model``.
    about : what is noted in the metadata of a .parquet file, under "npmdask"; ``model`` says what the rows mean.

    Raises
    ------
    RefusedError
        There is something at ``dest``.
    """

    def __init__(
        self,
        dest: Path,
        names: list[str],
        *,
        overwrite: bool,
        append: bool = False,
        about: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        require_no_link(dest)
        if dest.is_dir():
            raise RefusedError(f"{dest} is a folder; choose another name for the file, or remove the folder")
        if dest.exists() and not (overwrite or append):
            raise RefusedError(f"{dest} exists already; choose another name or pass --overwrite")
        self.dest, self.next_row = dest, 0
        self.partial = dest.with_name(f".{dest.name}.partial")  # hidden from what reads a folder of files
        self._names, self._hash, self._about, self._append = names, hashlib.sha256(), dict(about), append
        if dest.suffix.lower() == ".parquet":
            with extra("ingest"):
                import pyarrow as pa
                import pyarrow.parquet as pa_parquet
            self._pa, self._parquet_of = pa, pa_parquet
            self._parquet: Any = None
        with self._reporting_errors():
            text: dict[str, Any] = {"newline": "", "encoding": "utf-8"} if dest.suffix.lower() == ".csv" else {}
            opened: Any = open(self.partial, "w" if text else "wb", **text)
            self._file: IO[Any] = opened
            match dest.suffix.lower():
                case ".csv":
                    self._lines = csv.writer(opened)
                case ".parquet":
                    pass  # its columns are known when the first rows are
                case _:
                    self._begin_npy()

    def write(self, rows: np.ndarray, keys: Any = None) -> None:
        """Append rows (b x columns); ``keys``: an Arrow table of columns that come before them."""
        rows = np.ascontiguousarray(rows, "<f8")
        with self._reporting_errors():
            match self.dest.suffix.lower():
                case ".csv":
                    beside = [] if keys is None else [column.to_pylist() for column in keys.columns]
                    if not self.next_row:
                        self._lines.writerow([*(() if keys is None else keys.column_names), *self._names])
                    self._lines.writerows([*key, *row] for *key, row in zip(*beside, rows.tolist(), strict=True))
                case ".parquet":
                    table = self._pa.table(dict(zip(self._names, rows.T, strict=True)))
                    for place, name in enumerate([] if keys is None else keys.column_names):
                        table = table.add_column(place, keys.field(name), keys.column(name))
                    self._write_table(table)
                case _:
                    self._file.write(rows.data)
        self._hash.update(rows.data)
        self.next_row += len(rows)

    def _write_table(self, table: Any) -> None:
        if self._parquet is None:
            known = self._rows_before(table.schema) if self._append and self.dest.exists() else None
            schema = table.schema if known is None else known.schema_arrow
            schema = schema.with_metadata({"npmdask": json.dumps(self._about)})
            self._parquet = self._parquet_of.ParquetWriter(self._file, schema)
            for batch in () if known is None else known.iter_batches():
                self._parquet.write_batch(batch.replace_schema_metadata(schema.metadata))
        try:
            table = table.cast(self._parquet.schema)
        except (self._pa.ArrowInvalid, self._pa.ArrowNotImplementedError, ValueError) as error:
            raise BadInputError(
                f"{self.dest}: the columns that are kept are of other types than in the rows before ({error}): write "
                "them alike in all files"
            ) from error
        self._parquet.write_table(table)

    def _rows_before(self, schema: Any) -> Any:
        """The file that rows are appended to.

        Raises
        ------
        RefusedError
            It has other columns, or scores along other components.
        """
        known = self._parquet_of.ParquetFile(self.dest)
        about = json.loads((known.schema_arrow.metadata or {}).get(b"npmdask", "{}"))
        if known.schema_arrow.names != schema.names:
            raise RefusedError(f"{self.dest} has columns {known.schema_arrow.names}, not {schema.names}: overwrite it")
        if about.get("model") != self._about.get("model"):
            raise RefusedError(
                f"{self.dest} holds scores along other components, to which these cannot be compared: overwrite it, or "
                "transform all rows with one model"
            )
        return known

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


MOST_PARTITIONS = 1000  # files that are written at once
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # as Hive, Spark and Arrow call the partition of rows that have none


class Partitions:
    """A folder of Parquet files, one for each value of a key: DEST/KEY=VALUE/scores.parquet, as warehouses read them.

    Each file appears whole or not at all, in place of what its partition held (``overwrite``) or with it (``append``);
    partitions without new rows stay as they are.

    Parameters
    ----------
    dest : the folder.
    key : what the partitions are called; ``value``: that of all rows, or None: the column of that name says it.
    names, overwrite, append, about : as of :class:`RowFile`.
    """

    def __init__(self, dest: Path, key: str, value: str | None, names: list[str], **options: Any) -> None:
        require_no_link(dest)
        if dest.exists() and not dest.is_dir():
            raise RefusedError(f"{dest} is a file, and partitions lie in a folder: choose another name")
        self.dest, self.next_row, self._files = dest, 0, dict[Any, RowFile]()
        self._key, self._value, self._names, self._options = key, value, names, options

    def write(self, rows: np.ndarray, keys: Any = None) -> None:
        """Append rows (b x columns) to the files of their partitions."""
        if self._value is not None:
            self._file_of(self._value).write(rows, keys)
        else:
            values, others = keys.column(self._key).to_pylist(), keys.drop_columns([self._key])
            for value in dict.fromkeys(values):
                chosen = np.array([one == value for one in values])
                self._file_of(value).write(rows[chosen], others.filter(chosen))
        self.next_row += len(rows)

    def _file_of(self, value: Any) -> RowFile:
        if value not in self._files:
            if len(self._files) == MOST_PARTITIONS:
                raise BadInputError(
                    f"{self._key} has more than {MOST_PARTITIONS} values: partition by a column with few, such as a day"
                )
            folder = self.dest / f"{self._key}={NO_VALUE if value is None else quote(str(value), safe='')}"
            folder.mkdir(parents=True, exist_ok=True)
            self._files[value] = RowFile(folder / "scores.parquet", self._names, **self._options)
        return self._files[value]

    def finish(self, facts: dict[str, Any]) -> str:
        """Make the files appear, one after the other; returns a fingerprint of their numbers."""
        require(self.next_row > 0, f"no rows in the source of {self.dest}")
        return fingerprint({str(value): file.finish(facts) for value, file in self._files.items()}, [])

    def drop(self) -> None:
        """Remove what was not finished."""
        for file in self._files.values():
            file.drop()
