"""Tables of numbers: CSV and Parquet, by way of Arrow."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from npmdask.core.storage.columns import NUMERIC, Choice, addressed, chosen, names_of_rows, parts_of, without
from npmdask.core.storage.labels import Axis, axis_of, of_columns
from npmdask.errors import BadInputError, Later, closest, require
from npmdask.formats.common import (
    DenseSource,
    after,
    batch_rows,
    column_major,
    open_binary,
    require_regular_file,
    spool_file,
    spool_write,
)
from npmdask.writers.layouts import KEPT, storage_dtype

pa = Later("pyarrow", "ingest")
pa_csv = Later("pyarrow.csv", "ingest")
pa_parquet = Later("pyarrow.parquet", "ingest")

NAMED = 8  # columns of a header that are named
SAMPLE, FEW = 2**20, 64  # bytes and rows behind the first line that are looked at before anything is read


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


def is_header(fields: Sequence[str], where: str, rows: Sequence[Sequence[str]] = ()) -> bool:
    """Say whether the first line of a table of numbers names its columns; ``rows`` are some that follow.

    Raises
    ------
    BadInputError
        It is half numbers: names that are numbers, or data with an error in them; taking one for the other would drop a
        row, or the names. Or it is all numbers, and they look like names.
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
    if not fields[0] and set(kinds[1:]) == {"number"} and any(row[0] for row in rows):  # above names of rows
        first = [row[0] for row in rows]
        texts = any(_kind_of(one) == "name" for one in first)
        return texts or list(fields[1:]) == _numbering(fields[1:]) or first in (_numbering(first), _numbering(first, 1))
    if not names and set(kinds) == {"number"} and (why := _name_reason(fields, rows)):
        shown = ", ".join(fields[:3])
        raise BadInputError(
            f"{where} begins with {shown}{', ...' if len(fields) > 3 else ''}, which may be names of columns or data "
            f"({why}): pass header=True (--header) or header=False (--no-header)"
        )
    return bool(names)


def _numbering(fields: Sequence[str], first: int = 0) -> list[str]:
    return [str(i) for i in range(first, first + len(fields))]


def _name_reason(fields: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Why a first line of numbers may be names, such as wavelengths, years or numbers of genes; "": it is data.

    Names are short and ascend or descend, mostly evenly, as an axis does; or they are whole and far from what is below
    them. An axis is none where the rows below go on so. How often plain data would look so by chance decides.
    """
    count, digits = len(fields), max(len(field.partition(".")[2]) for field in fields)
    first = np.array([float(field) for field in fields])
    if count < 3 or digits > 4 or not np.isfinite(first).all() or "e" in "".join(fields).lower():
        return ""
    numbers = [[float(one) if _kind_of(one) == "number" else np.nan for one in row] for row in rows]
    below = np.array([row for row in numbers if len(row) == count]).reshape(-1, count)
    unit, slack = 10.0**-digits, 2.1 * 10.0**-digits if digits else 0.0

    def axis(line: np.ndarray, most: float = slack) -> bool:
        steps = np.diff(line)
        return bool((steps > 0).all() or (steps < 0).all()) and float(np.ptp(steps)) <= most

    corner = min(len(below), count - 1)
    symmetric = corner > 1 and bool((below[:corner, 0] == first[1 : corner + 1]).all())
    if symmetric or (corner and (below[0] == first + count * (first[1] - first[0])).all()):  # numpy.arange, folded
        return ""
    if list(fields) == _numbering(fields):
        return "they count"
    if 2 * sum(map(axis, below)) > len(below) or not len(below) or np.isnan(below).all(axis=0).any():
        return ""
    if list(fields) == _numbering(fields, 1) and (count > 4 or not (below[~np.isnan(below)] % 1 == 0).all()):
        return "they count"
    low, high = np.nanmin(below, axis=0), np.nanmax(below, axis=0)
    spread = max(first.max(), high.max()) - min(first.min(), low.min())
    if axis(first) and (max(unit, slack) / spread) ** (count - 2) < 1e-3:
        return "they are evenly spaced, and the rows below are not"
    if count >= 7 and len(below) > 4 and axis(first, np.inf) and not any(axis(row, np.inf) for row in below):
        return "they are in order, and the rows below are not"
    far = np.maximum(first - high, low - first) > np.maximum(high - low, unit)
    if not digits and len(set(fields)) == count and len(below) > 2 and (below % 1 != 0).mean() > 0.9 and far.all():
        return "they are whole, and far from the numbers below"
    return ""


def taken_for_names(names: Sequence[str]) -> str:
    """Say what was taken for a header, so that no row of data goes unnoticed as one."""
    some = ", ".join(names[:NAMED]) + (f", ... ({len(names)} names)" if len(names) > NAMED else "")
    return f"the first line was taken for the names of the columns, not for data: {some}"


def _kind_of(field: str) -> str:
    """ "number", "nothing" (an empty field, or a word for a missing value) or "name"."""
    if field in missing_words():
        return "nothing"
    try:
        float(field.replace("_", "x"))
    except ValueError:
        return "name"
    return "number"


def _has_decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Say whether numbers have commas that cannot be between thousands, and none has a point."""
    fields = [field for row in rows for field in row]
    commas = [field for field in fields if re.fullmatch(r"[+-]?\d*,\d+", field)]
    plain = any(not re.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}", field) for field in commas)
    return plain and not any(re.fullmatch(r"[+-]?\d*\.\d+", field) for field in fields)


def open_csv(
    path: Path,
    header: bool | None = None,
    delimiter: str | None = None,
    missing: str = "error",
    choice: Choice | None = None,
) -> DenseSource:
    """A table of numbers as text. The first row is a header if it has names, and no number beside them."""
    with open_binary(path) as file:
        block = file.readline(64 * 2**20)
        line = next(iter(block.splitlines(keepends=True)), b"")  # they may end with a carriage return alone
        size = max(SAMPLE, 2 * len(line))
        some = block[len(line) :] + file.read(size + 1)
    text = line.decode("utf-8-sig", "replace")  # of another encoding, numbers are the same
    delimiter = delimiter or next((d for d in ",;\t" if d in text), ",")
    fields = [field.strip() for field in next(csv.reader([text], delimiter=delimiter), [])]
    require(bool(fields), f"{path} is empty: it has no data to analyse")
    lines = io.StringIO(some[:size].decode("utf-8", "replace"), newline="")
    rows = [[field.strip() for field in row] for row in csv.reader(lines, delimiter=delimiter)]
    rows = [row for row in (rows if len(some) <= size else rows[:-1]) if row]
    words = [_kind_of(word) for word in (rows or [fields])[0][0].split()] if len(fields) == 1 else []
    if words.count("number") > 1:
        raise BadInputError(
            f"{path}: its columns are separated by blanks, which are not read: put commas between them, for example "
            f"with `tr -s ' ' ',' < {quote(path.name)} > NEW.csv`"
        )
    named, widths = is_header(fields, str(path), rows[:FEW]) if header is None else header, {*map(len, rows[:FEW])}
    empty = not any(row[-1] for row in rows[:FEW]) and min(widths, default=1) > 1  # behind the last delimiter
    if named and widths == {len(fields) + 1}:  # it is of the rows only; or they have names, as R writes them
        fields = [*fields, ""] if empty else ["", *fields]
    empty = empty and widths == {len(fields)} and not (named and fields[-1])
    every = fields if named else _numbering(fields)
    point = "," if delimiter in ";\t" and _has_decimal_commas(rows[:FEW]) else "."
    known, numeric = every[: len(fields) - empty], [True] * len(fields)
    if choice is not None and choice.only == NUMERIC:  # as far as the sample tells: a word behind it is an error
        columns = zip(*(row for row in rows if len(row) == len(fields)), strict=True)
        numeric = [all(_kind_of(one.replace(point, ".")) != "name" for one in column) for column in columns] or numeric
    index = names_of_rows(known) if named else []
    kept, notes = chosen(known, numeric, index, choice, str(path))
    notes += ("numbers were read with a decimal comma",) if point == "," else ()
    places = [f"c{i}" for i in range(len(every))]  # names in the file may repeat
    read, names = [places[i] for i in kept], [every[i] for i in kept]
    ends = {places[-1]: pa.null()} if empty else {}  # it is looked at: a value there is an error
    parsing = {"delimiter": delimiter, "ignore_empty_lines": len(places) > 1}
    parsing["newlines_in_values"] = any("\n" in field for row in rows for field in row)
    dtype, piece = np.dtype(np.float64), min(2**30, max(2**20, 4 * len(line)))

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
                        block_size=piece,
                        use_threads=False,
                    ),
                    parse_options=pa_csv.ParseOptions(**parsing),
                    convert_options=pa_csv.ConvertOptions(
                        column_types=dict.fromkeys(read, pa.float64()) | ends,
                        include_columns=[*read, *ends],
                        decimal_point=point,
                    ),
                ) as reader,
            ):
                for batch in reader:
                    if batch.num_rows:
                        yield table_rows(batch.select(range(len(names))), names, dtype, row, path, missing)
                        row += batch.num_rows
        except pa.ArrowInvalid as error:
            raise _csv_error(path, every, str(error)) from error

    def texts(columns: Sequence[str], *, gaps: bool = False) -> Iterator[Any]:
        as_text = {"include_columns": columns, "column_types": dict.fromkeys(columns, pa.string())}
        wanted = pa_csv.ConvertOptions(**as_text, null_values=[""], strings_can_be_null=gaps)  # NA is a country
        reading = pa_csv.ReadOptions(column_names=places, skip_rows_after_names=1, use_threads=False, block_size=piece)
        with open_binary(path) as file, pa_csv.open_csv(file, reading, pa_csv.ParseOptions(**parsing), wanted) as found:
            yield from map(pa.Table.from_batches, ([batch] for batch in found))

    def keys(wanted: Sequence[str]) -> Iterator[Any]:
        require_columns(wanted, known, path)
        columns = [places[known.index(one)] for one in wanted]
        return (table.rename_columns(list(wanted)) for table in texts(columns, gaps=True))

    def called() -> Axis | None:
        if len(index) != 1:
            return None
        return axis_of(
            known[index[0]] or "row",
            [name for part in texts([places[index[0]]]) for name in part.column(0).to_pylist()],
        )

    return DenseSource(
        format="csv",
        rows=None,
        columns=len(names),
        dtype=dtype,
        header=tuple(every) if named else None,
        labels=of_columns(names) if named else None,
        notes=notes,
        row_names=called,
        batches=batches,
        keys=keys if named else None,
    )


def open_text(path: Path, header: bool | None, delimiter: str | None, missing: str) -> DenseSource:
    """A table of text, or those of a pattern one below the other; ``path`` may choose columns.

    Raises
    ------
    BadInputError
        One has other columns.
    """
    from npmdask.core.storage.names import matched

    parts, choice = parts_of(path), addressed(path)[1]
    first, *rest = sources = [open_csv(part, header, delimiter, missing, choice) for part in parts]
    orders: list[Any] = [slice(None)]
    for part, other in zip(parts[1:], rest, strict=True):
        axes, own = (() if one.labels is None else one.labels.columns for one in (first, other))
        remedy = "give files with the same columns, or choose those that all have"
        order = matched(axes, own, str(part), str(parts[0]), remedy=remedy)
        if other.columns != first.columns or order.said:
            raise BadInputError(f"{part} has other columns than {parts[0]}: {remedy}")
        orders.append(slice(None) if order.places is None else order.places)

    def batches(start: int) -> Iterator[np.ndarray]:
        read = zip(sources, orders, strict=True)
        return after(start, (rows[:, order] for source, order in read for rows in source.batches(0)))

    def keys(wanted: Sequence[str]) -> Iterator[Any]:
        return (table for source in sources for table in (source.keys or first.keys)(wanted))  # type: ignore[misc]

    return replace(first, batches=batches, keys=keys if first.keys else None) if rest else first


def _csv_error(path: Path, names: list[str], message: str) -> BadInputError:
    found = re.search(r"column #(\d+): (?:Row #(\d+): )?.*invalid value '(.*)'", message, re.DOTALL)
    if found:
        line, name = f"line {found[2]}, " if found[2] else "", names[int(found[1])]
        return BadInputError(
            f"{path}: {line}column {name!r}: {found[3]!r} is not a number, and not a missing value (an empty field, "
            f"NA): {without(name)}"
        )
    wide = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", message)
    where = f": line {wide[1]} has {wide[3]}" if wide else ""
    return BadInputError(
        f"{path} is not a table of numbers with {len(names)} columns{where}; correct it first, comments with "
        "`grep -v '^#'`"
    )


def open_parquet(path: Path, spool: Path, missing: str = "error") -> DenseSource:
    """A Parquet file, or a folder of parts in the order of the numbers in their names; names of rows are left out."""
    parts = parts_of(path)
    names, dtype, counts, notes = _parquet_schema(parts, addressed(path)[1])
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
        notes=notes,
        row_names=partial(_row_names, parts),
        batches=batches,
        keys=partial(_parquet_keys, parts, step),
    )


def _parquet_keys(parts: Sequence[Path], step: int, wanted: Sequence[str]) -> Iterator[Any]:
    for part in parts:
        with pa_parquet.ParquetFile(part) as file:
            require_columns(wanted, file.schema_arrow.names, part)
            for batch in file.iter_batches(batch_size=step, columns=list(wanted)):
                yield pa.Table.from_batches([batch]).select(list(wanted))


def require_columns(wanted: Sequence[str], names: Sequence[str], where: Path) -> None:
    """Raise BadInputError for a column that is not there, or there twice."""
    for name in wanted:
        if names.count(name) != 1:
            what = f"has {names.count(name)} columns {name!r}" if name in names else f"has no column {name!r}"
            raise BadInputError(f"{where} {what}: {closest(name, list(names))}")


def _row_names(parts: Sequence[Path]) -> Axis | None:
    """Return the names of the rows of parts of Parquet, where one column of each holds them."""
    found = []
    for part in parts:
        schema = pa_parquet.read_schema(part)
        index = names_of_rows(schema.names, schema.metadata)
        if len(index) != 1:
            return None
        found.append((schema.names[index[0]], pa_parquet.read_table(part, columns=[schema.names[index[0]]])))
    return axis_of(found[0][0], [name for _, table in found for name in table.column(0).to_pylist()])


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


def _parquet_schema(
    parts: list[Path], choice: Choice | None
) -> tuple[list[str], np.dtype, list[list[int]], tuple[str, ...]]:
    """Column names and common dtype of all parts, the rows of each of their row groups, and what is to be said."""
    from npmdask.core.storage.names import matched

    names: list[str] = []
    dtypes: list[np.dtype] = []
    counts, notes = [], tuple[str, ...]()
    for part in parts:
        require_regular_file(part)
        with pa_parquet.ParquetFile(part) as file:
            schema, meta = file.schema_arrow, file.metadata
            counts.append([meta.row_group(g).num_rows for g in range(meta.num_row_groups)])
        rows = names_of_rows(schema.names, schema.metadata)
        kept, notes = chosen(schema.names, [kind_of(one) in "if" for one in schema.types], rows, choice, str(part))
        here = [schema.names[i] for i in kept]
        names = names or here
        axes, own = of_columns(names).columns, of_columns(here).columns
        remedy = "write all parts with the same columns"
        if len(here) != len(names) or matched(axes, own, str(part), str(parts[0]), remedy=remedy).said:
            raise BadInputError(f"{part} has columns {here} and {parts[0]} has {names}: {remedy}")
        dtypes += [dtype_of(schema.field(i), str(part)) for i in kept]
    if not names or not sum(map(sum, counts)):
        raise BadInputError(f"{parts[0]} has no numeric rows: it has no data to analyse")
    return names, np.result_type(*dtypes), counts, notes


def kind_of(type_: Any) -> str:
    """The kind of a type of Arrow as NumPy has it: i, f or b; O: no plain number."""
    known = {"i": pa.types.is_integer, "f": pa.types.is_floating, "b": pa.types.is_boolean}
    return next((kind for kind, fits in known.items() if fits(type_)), "O")


def dtype_of(field: Any, where: str) -> np.dtype:
    """The dtype of a column of Arrow. Raises BadInputError where it is no numbers."""
    if kind_of(field.type) == "O":
        raise BadInputError(
            f"{where}: column {field.name!r} is of type {field.type}, which is no plain number: {without(field.name)}"
        )
    return storage_dtype(np.dtype(field.type.to_pandas_dtype()))


def block_of(part: Any, schema: Any, names: list[str], dtype: np.dtype) -> np.ndarray:
    """The rows of a fragment of a dataset of Arrow; missing values of floats are NaN."""
    path = Path(getattr(part, "path", "the dataset"))
    return table_rows(part.to_table(schema=schema, columns=names), names, dtype, 0, path, "nan")
