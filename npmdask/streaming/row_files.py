"""Rows of numbers in a file of people's own tools, written a batch at a time: .npy, .csv or .parquet."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    append : put the rows behind those of a .parquet file that is there, of the same columns and the same ``model``; one
        that has rows of the same ``source`` stays as it is.
    about : what is noted in the metadata of a .parquet file, under "npmdask"; ``model`` says what the rows mean, and
        ``sources`` (of one) where they are from.

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
        self.held_already = False  # rows of this source are in the file that is there
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
        if self.held_already:
            return
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
            if self.held_already:
                return
            schema = named_types(table.schema) if known is None else known.schema_arrow
            schema = schema.with_metadata({"npmdask": json.dumps(self._about)})
            self._parquet = self._parquet_of.ParquetWriter(self._file, schema)
            for batch in () if known is None else known.iter_batches():
                self._parquet.write_batch(batch.replace_schema_metadata(schema.metadata))
        self._parquet.write_table(as_types(table, self._parquet.schema))

    def _rows_before(self, schema: Any) -> Any:
        """The file that rows are appended to.

        Raises
        ------
        RefusedError
            It has other columns, or scores along other components.
        """
        known = self._parquet_of.ParquetFile(self.dest)
        about = json.loads((known.schema_arrow.metadata or {}).get(b"npmdask", "{}"))
        sources = about.get("sources", [])
        own = self._about.get("sources", [])
        self.held_already = self._about.get("model") == about.get("model") and bool(set(own) & set(sources))
        self._about["sources"] = [*sources, *own]
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
        if self.held_already:
            self.drop()
            return ""
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
        with suppress(OSError):  # of a disk that is full
            if getattr(self, "_parquet", None) is not None:
                self._parquet.close()
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


# Types of kept columns. A value is written as it is or not at all: no number out of "007", no time in another zone.


def _holds(wanted: Any, given: Any) -> bool:
    """Say whether a column of one type of Arrow has room for every value of another as it is."""
    from pyarrow import types

    if given == wanted or types.is_null(given):
        return True
    texts = [types.is_string(one) or types.is_large_string(one) for one in (wanted, given)]
    whole = [types.is_integer(one) for one in (wanted, given)]
    signs = [types.is_signed_integer(one) for one in (wanted, given)]
    wider = all(whole) and wanted.bit_width - given.bit_width >= (signs[0] > signs[1])
    return all(texts) or (wider and signs[0] >= signs[1])


def as_types(table: Any, schema: Any) -> Any:
    """The table with the types of a schema.

    Raises
    ------
    BadInputError
        They do not hold its values as they are.
    """
    for field, other in zip(table.schema, schema, strict=True):
        if not _holds(other.type, field.type):
            raise BadInputError(
                f"column {field.name!r} is of type {field.type}, and {other.type} in rows before: write it alike in "
                "all files, or leave it out"
            )
    return table.cast(schema)


def named_types(schema: Any) -> Any:
    """The schema that the first rows have, where a column without any value becomes text."""
    import pyarrow as pa

    kinds = [pa.string() if pa.types.is_null(field.type) else field.type for field in schema]
    return pa.schema(list(zip(schema.names, kinds, strict=True)))


def joined_keys(tables: Sequence[Any]) -> Any:
    """Arrow tables one below the other, in the first of their types that holds the values of all, as :func:`as_types`.

    Values of a dictionary become plain ones.
    """
    import pyarrow as pa

    plain = []
    for table in tables:
        kinds = [
            getattr(f.type, "value_type", f.type) if pa.types.is_dictionary(f.type) else f.type for f in table.schema
        ]
        plain.append(table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True)))))
    of_all = [[table.schema.field(place).type for table in plain] for place in range(plain[0].num_columns)]
    best = [next((k for k in kinds if all(_holds(k, one) for one in kinds)), kinds[0]) for kinds in of_all]
    schema = pa.schema(list(zip(plain[0].column_names, best, strict=True)))
    return pa.concat_tables([as_types(table, schema) for table in plain])


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
        self.dest, self.next_row, self._files = dest, 0, dict[str, RowFile]()
        self._schema: Any = None  # of the key
        self._key, self._value, self._names, self._options = key, value, names, options

    def write(self, rows: np.ndarray, keys: Any = None) -> None:
        """Append rows (b x columns) to the files of their partitions."""
        if self._value is not None:
            self._file_of(self._name(self._value)).write(rows, keys)
        else:
            key, others = keys.select([self._key]), keys.drop_columns([self._key])
            self._schema = self._schema or named_types(key.schema)
            names = [self._name(value) for value in as_types(key, self._schema).column(0).to_pylist()]
            for name in dict.fromkeys(names):
                chosen = np.array([one == name for one in names])
                self._file_of(name).write(rows[chosen], others.filter(chosen))
        self.next_row += len(rows)

    @property
    def held_already(self) -> int:
        """Count the partitions that have rows of this source, and stay as they are."""
        return sum(file.held_already for file in self._files.values())

    def _name(self, value: Any) -> str:
        if isinstance(value, list | dict) or value == NO_VALUE:
            raise BadInputError(
                f"{self._key} is {value!r} in a row, after which no folder is called: take another column"
            )
        if value is None or value != value:  # NaN
            return NO_VALUE
        return quote(str(value), safe="")

    def _file_of(self, name: str) -> RowFile:
        if name not in self._files:
            if len(self._files) == MOST_PARTITIONS:
                raise BadInputError(
                    f"{self._key} has more than {MOST_PARTITIONS} values: partition by a column with few, such as a day"
                )
            folder = self.dest / f"{quote(self._key, safe='')}={name}"
            folder.mkdir(parents=True, exist_ok=True)
            self._files[name] = RowFile(folder / "scores.parquet", self._names, **self._options)
        return self._files[name]

    def finish(self, facts: dict[str, Any]) -> str:
        """Make the files appear, one after the other; returns a fingerprint of their numbers."""
        require(self.next_row > 0, f"no rows in the source of {self.dest}")
        return fingerprint({str(value): file.finish(facts) for value, file in self._files.items()}, [])

    def drop(self) -> None:
        """Remove what was not finished."""
        for file in self._files.values():
            file.drop()
