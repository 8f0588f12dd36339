"""Tables of numbers: CSV and Parquet, by way of Arrow."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.errors import BadInputError, Later
from npmdask.storage.formats.common import (
    DenseSource,
    after,
    batch_rows,
    column_major,
    open_binary,
    require_regular_file,
    spool_file,
    spool_write,
)
from npmdask.storage.kinds import KEPT, storage_dtype
from npmdask.storage.labels import of_columns
from npmdask.storage.names import matched
from npmdask.storage.paths import in_order

pa = Later("pyarrow", "ingest")
pa_csv = Later("pyarrow.csv", "ingest")
pa_parquet = Later("pyarrow.parquet", "ingest")

NAMED = 8  # columns of a header that are named


@cache
def missing_words() -> tuple[str, ...]:
    """The words of a CSV file for a missing value."""
    return ("", *pa_csv.ConvertOptions().null_values)


PAGES = 32  # columns of Parquet that are read at once in large row groups: a page of each is held


def table_rows(
    batch: Any, names: Sequence[str], dtype: np.dtype, row: int, path: Path, missing: str = "error"
) -> np.ndarray:
    """A record batch whose first row is ``row`` as an array (b x columns).

    A missing value is an error, or with ``missing`` "nan" a NaN where the dtype has one.
    """
    rows = np.empty((len(names), batch.num_rows), dtype)
    for index, (name, column) in enumerate(zip(names, batch.columns, strict=True)):
        if column.null_count and not (missing == "nan" and dtype.kind == "f"):
            first = row + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise BadInputError(
                f"{path}: missing value at row {first}, column {name!r} (rows count from 0, without a header): fill "
                f"such values in, or drop the row or the column{KEPT if dtype.kind == 'f' else ''}"
            )
        rows[index] = column.to_numpy(zero_copy_only=False)
        if dtype.kind == "f" and pa.types.is_integer(column.type) and column.type.bit_width == 64:
            _require_held(rows[index], column, row, name, path)
    return rows.T


def _require_held(rows: np.ndarray, column: Any, row: int, name: str, path: Path) -> None:
    """Raise BadInputError for integers that are not the same as floats, beside columns of which they have to be."""
    if np.abs(rows).max(initial=0.0) < 2.0**53:
        return
    first = next((i for i, value in enumerate(column.to_pylist()) if value is not None and value != int(rows[i])), None)
    if first is not None:
        raise BadInputError(
            f"{path}: {column[first]} at row {row + first}, column {name!r} cannot be stored as {rows.dtype}, the type "
            "of all columns together: store that column as floats, or leave it out"
        )


def is_header(fields: Sequence[str], where: str) -> bool:
    """Whether the first line of a table of numbers is the names of its columns.

    Raises
    ------
    BadInputError
        It is half numbers: names that are numbers, or data with an error in them; taking one for the other would drop a
        row, or the names.
    """
    kinds = [_kind_of(field.strip()) for field in fields]
    names = [field for field, kind in zip(fields, kinds, strict=True) if kind == "name"]
    alone = len(fields) == 1 and bool(names) and re.match(r"[+-]?[.,]?\d", names[0]) is not None
    if names and ("number" in kinds or alone):
        raise BadInputError(
            f"{where}: its first line has {kinds.count('number')} numbers and {len(names)} other words, the first of "
            f"them {names[0]!r}: if these are the names of the columns, pass header=True (--header); otherwise "
            "correct the line, or pass header=False (--no-header)"
        )
    return bool(names)


def taken_for_names(names: Sequence[str]) -> str:
    """Say what was taken for a header, so that no row of data goes unnoticed as one."""
    some = ", ".join(names[:NAMED]) + (f", ... ({len(names)} names)" if len(names) > NAMED else "")
    return f"the first line was taken for the names of the columns, not for data: {some}"


def _kind_of(field: str) -> str:
    """ "number", "nothing" (an empty field, or a word for a missing value) or "name"."""
    if field in missing_words():
        return "nothing"
    try:
        float(field)
    except ValueError:
        return "name"
    return "number"


def _csv_layout(path: Path, header: bool | None, delimiter: str | None) -> tuple[str, bool, list[str], int]:
    """Delimiter, whether there is a header, column names and the bytes of the first line."""
    with open_binary(path) as file:
        lines = file.readline(64 * 2**20).splitlines(keepends=True)  # they may end with a carriage return alone
    line = lines[0] if lines else b""
    text = line.decode("utf-8-sig")
    delimiter = delimiter or next((d for d in ",;\t" if d in text), ",")
    fields = [field.strip() for field in next(csv.reader([text], delimiter=delimiter), [])]
    if not fields:
        raise BadInputError(f"{path} is empty: it has no data to analyse")
    counted = [str(i) for i in range(len(fields))]
    if header is None and fields == counted and len(fields) > 2:
        # What pandas writes above nameless columns; taking it for data would go unnoticed.
        raise BadInputError(
            f"{path} begins with 0, 1, 2 to {len(fields) - 1}, which may be column names or data: pass header=True "
            "(--header) or header=False (--no-header)"
        )
    named = is_header(fields, str(path)) if header is None else header
    return delimiter, named, fields if named else counted, len(line)


def open_csv(
    path: Path, header: bool | None = None, delimiter: str | None = None, missing: str = "error"
) -> DenseSource:
    """A table of numbers as text. The first row is a header if it has names, and no number beside them."""
    delimiter, named, names, line = _csv_layout(path, header, delimiter)
    places = [f"c{i}" for i in range(len(names))]  # names in the file may repeat
    dtype = np.dtype(np.float64)

    def batches(start: int) -> Iterator[np.ndarray]:
        row = start
        try:
            # Opened by Python, so that a failing disk is not taken for a broken file; one thread, so that Arrow
            # names the line of a bad value.
            with (
                open_binary(path) as file,
                pa_csv.open_csv(
                    file,
                    read_options=pa_csv.ReadOptions(
                        column_names=places,
                        skip_rows_after_names=int(named) + start,
                        block_size=min(2**30, max(2**20, 4 * line)),
                        use_threads=False,
                    ),
                    parse_options=pa_csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=len(names) > 1),
                    convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(places, pa.float64())),
                ) as reader,
            ):
                for batch in reader:
                    if batch.num_rows:
                        yield table_rows(batch, names, dtype, row, path, missing)
                        row += batch.num_rows
        except pa.ArrowInvalid as error:
            raise _csv_error(path, names, str(error)) from error

    taken = tuple(names) if named else None
    return DenseSource(
        format="csv",
        rows=None,
        columns=len(names),
        dtype=dtype,
        header=taken,
        labels=None if taken is None else of_columns(taken),
        batches=batches,
    )


def _csv_error(path: Path, names: list[str], message: str) -> BadInputError:
    found = re.search(r"column #(\d+): (?:Row #(\d+): )?.*invalid value '(.*)'", message)
    if found:
        line = f"line {found[2]}, " if found[2] else ""
        return BadInputError(
            f"{path}: {line}column {names[int(found[1])]!r}: {found[3]!r} is not a number; drop or encode "
            "that column, then ingest again"
        )
    wide = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", message)
    where = f": line {wide[1]} has {wide[3]}" if wide else ""
    return BadInputError(f"{path} is not a table of numbers with {len(names)} columns{where}; correct it first")


def open_parquet(path: Path, spool: Path, missing: str = "error") -> DenseSource:
    """A Parquet file, or a folder of parts in the order of the numbers in their names; numeric columns only.

    Index columns that pandas wrote by itself (``__index_level_0__``) are left out.
    """
    parts = parts_of(path)
    names, dtype, counts = _parquet_schema(parts)
    step = batch_rows(len(names) * dtype.itemsize)
    # Without a buffer size Arrow would hold whole row groups, which have no limit.
    buffer = max(4096, step * dtype.itemsize)

    def batches(start: int) -> Iterator[np.ndarray]:
        row = 0
        for part, groups in zip(parts, counts, strict=True):
            if row + sum(groups) <= start:
                row += sum(groups)
                continue
            with pa_parquet.ParquetFile(part, buffer_size=buffer, pre_buffer=False) as file:
                for group, count in enumerate(groups):
                    large = count * len(names) * dtype.itemsize > 2 * PAGES * 2**20
                    if row + count > start and large and len(names) > PAGES:
                        yield from _parquet_spooled(
                            file, group, count, names, dtype, (row, start), part, spool, missing
                        )
                    elif row + count > start:
                        options = {"batch_size": step, "row_groups": [group], "columns": names}
                        yield from after(start, _parquet_rows(file, options, dtype, row, part, missing), row)
                    row += count

    return DenseSource(
        format="parquet",
        rows=sum(map(sum, counts)),
        columns=len(names),
        dtype=dtype,
        facts={} if parts == sorted(parts) else {"order": "numbers"},  # an ingest that began in another begins again
        labels=of_columns(names),
        batches=batches,
    )


def parts_of(path: Path) -> list[Path]:
    """The Parquet files of a folder, in order; or the file itself."""
    return sorted(path.glob("*.parquet"), key=lambda part: in_order(part.name)) if path.is_dir() else [path]


def _parquet_rows(
    file: Any, options: dict[str, Any], dtype: np.dtype, row: int, part: Path, missing: str
) -> Iterator[np.ndarray]:
    for batch in file.iter_batches(**options):
        batch = batch if batch.schema.names == options["columns"] else batch.select(options["columns"])
        yield table_rows(batch, options["columns"], dtype, row, part, missing)
        row += batch.num_rows


def _parquet_spooled(
    file: Any,
    group: int,
    count: int,
    names: list[str],
    dtype: np.dtype,
    rows: tuple[int, int],
    part: Path,
    spool: Path,
    missing: str,
) -> Iterator[np.ndarray]:
    """A row group by way of a temporary column-major file, a few columns at a time.

    Arrow holds a page of each column that is read, packed and unpacked: 1 GiB for 500 columns at once.
    ``rows`` is the first row of the group and the row to begin at.
    """
    first, start = rows
    with spool_file(spool, "group") as flat:
        for left in range(0, len(names), PAGES):
            some, top = names[left : left + PAGES], 0
            options = {"batch_size": 2**14, "row_groups": [group], "columns": some}
            for values in _parquet_rows(file, options, dtype, first, part, missing):
                for column, piece in enumerate(values.T, left):
                    flat.seek((column * count + top) * dtype.itemsize)
                    spool_write(flat, piece)
                top += len(values)
    yield from column_major(spool / "group", 0, (count, len(names)), dtype, max(0, start - first))


def _parquet_schema(parts: list[Path]) -> tuple[list[str], np.dtype, list[list[int]]]:
    """Column names and common dtype of all parts, and the rows of each of their row groups."""
    names: list[str] = []
    dtypes: list[np.dtype] = []
    counts = []
    for part in parts:
        require_regular_file(part)
        with pa_parquet.ParquetFile(part) as file:
            schema, meta = file.schema_arrow, file.metadata
            counts.append([meta.row_group(g).num_rows for g in range(meta.num_row_groups)])
        fields = [field for field in schema if not field.name.startswith("__index_level_")]
        here = [field.name for field in fields]
        names = names or here
        axes, own = of_columns(names).columns, of_columns(here).columns
        if len(here) != len(names) or matched(axes, own, str(part), str(parts[0])).said:
            raise BadInputError(
                f"{part} has columns {here} and {parts[0]} has {names}: write all parts with the same columns"
            )
        dtypes += [_parquet_dtype(field, part) for field in fields]
    if not names or not sum(map(sum, counts)):
        raise BadInputError(f"{parts[0]} has no numeric rows: it has no data to analyse")
    return names, np.result_type(*dtypes), counts


def _parquet_dtype(field: Any, part: Path) -> np.dtype:
    kinds = pa.types
    if not (kinds.is_integer(field.type) or kinds.is_floating(field.type) or kinds.is_boolean(field.type)):
        raise BadInputError(
            f"{part}: column {field.name!r} is of type {field.type}, not a number; drop or encode it, then ingest again"
        )
    return storage_dtype(np.dtype(field.type.to_pandas_dtype()))
