"""Hold data that arrived to what is expected of them, before a run spends a pass on them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npmdask.core.storage.bundle import write_file_atomically
from npmdask.core.storage.columns import listed, parts_of
from npmdask.core.storage.labels import Labels
from npmdask.core.storage.paths import cache_folder, is_url
from npmdask.core.storage.readers.dense import DenseReader
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, Later, require
from npmdask.formats import TABLES, open_file, tell_format
from npmdask.formats.common import tile_rows
from npmdask.formats.ingest import file_of, look_of
from npmdask.formats.tables import kind_of, missing_words, open_csv

if TYPE_CHECKING:
    from npmdask.config import ExpectTable, SourceTable

pa = Later("pyarrow", "ingest")
pa_compute = Later("pyarrow.compute", "ingest")
pa_parquet = Later("pyarrow.parquet", "ingest")

Counts = tuple[dict[str, int], int]  # of missing values by column, and of rows
OF_A_TIME = r"(\d:\d\d)(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)?$"  # parts of a second and a zone, which make it no other type
KINDS = {"i": "integer", "u": "integer", "f": "number", "b": "boolean"}  # of NumPy, in words of [expect]


def require_expected(asked: SourceTable, expect: ExpectTable) -> None:
    """Raise BadInputError where data are not as they are expected; what was found good once is not read again.

    Columns, types and rows are told by metadata where the format has these; shares of missing values, and what CSV
    holds, take one read.
    """
    place = asked.place
    found: _Array
    file = None if is_url(place) else file_of(Path(place).absolute())
    if file is not None and tell_format(file[0]) in TABLES:
        found, look = _Table(file[0]), json.dumps(look_of(file[0]))
    else:
        gaps = expect.missing is not None or asked.missing != "refuse"
        source = open_source(place, asked.kind, asked.dim, gaps=gaps, of_complex=True, exact=False)
        found, look = _Array(source), source.fingerprint
    digest = hashlib.sha256(f"{look} {asked} {expect}".encode()).hexdigest()
    note = cache_folder() / "expected" / hashlib.sha256(place.encode()).hexdigest()[:16]
    if note.exists() and note.read_text() == digest:
        return
    if wrong := list(_failed(found, expect, tuple(asked.missing_values or ()))):
        said = f"{asked.path} is not as [expect] says: {'; '.join(wrong)}"
        raise BadInputError(f"{said}. Nothing was computed: correct the data, or what is expected")
    note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file_atomically(note, digest.encode(), 0o600)


def _failed(found: _Array, expect: ExpectTable, marks: tuple[float, ...]) -> Iterator[str]:
    """Say which expectations do not hold, and by how much; those that need a read only where all others hold."""
    types, most = expect.types or {}, expect.missing
    shares = most if isinstance(most, dict) else {}
    wanted = {*(expect.columns or ()), *types, *shares}
    require(not wanted or bool(found.names), "[expect] names columns, and these data have no names of columns")
    gone = sorted(wanted - {*found.names})
    if gone:
        yield f"{len(gone)} of {len(wanted)} expected columns {'are' if gone[1:] else 'is'} not there ({listed(gone)})"
    there = {name: word for name, word in types.items() if name not in gone}
    wrong = [*dict.fromkeys(found.wrong_types(there))]  # of many files, each once
    yield from wrong
    if gone or wrong or (most is None and expect.rows is None):
        return
    counts, rows = found.missing(marks, shares, read=most is not None)
    others = 1.0 if isinstance(most, dict) or most is None else most
    if rows < (expect.rows or 0):
        yield f"{rows:,} rows, and at least {expect.rows:,} are expected"
    for name, count in counts.items():
        if count > (allowed := shares.get(name, others)) * rows:
            yield f"{100 * count / rows:.3g} % of {name} is missing, and at most {100 * allowed:.3g} % is expected"


class _Array:
    """Numbers in a store, or in a file that is no table."""

    def __init__(self, source: Source) -> None:
        self._source, self.names = source, _names_in(source.labels)

    def wrong_types(self, types: Mapping[str, str]) -> Iterator[str]:
        """Say which columns are of another type."""
        return _unlike(dict.fromkeys(types, KINDS.get(self._source.dtype.kind, str(self._source.dtype))), types)

    def missing(self, marks: tuple[float, ...], _: Iterable[str], *, read: bool) -> Counts:
        """Count missing values of columns, if these are to be read, and rows."""
        source, rows = self._source, self._source.shape[0]
        if not read or (source.dtype.kind in "iub" and not marks):
            return {}, rows
        require(isinstance(source.reader, DenseReader), f"[expect] missing is for dense rows, not {source.path}")
        return _count(tile_rows(source.reader, 0), marks, self.names, source.shape[1])


class _Table(_Array):
    """CSV or Parquet: columns of any type, by name."""

    def __init__(self, path: Path) -> None:
        form = tell_format(path)
        self._path, delimiter = path, "\t" if form == "tsv" else None
        read: Any = pa_parquet.read_schema if form == "parquet" else lambda part: open_csv(part, None, delimiter, "nan")
        self._parts = [read(part) for part in parts_of(path)]  # the schema of Parquet, or the source of text
        all_names = [part.names if form == "parquet" else part.header or () for part in self._parts]
        self.names = [name for name in all_names[0] if all(name in other for other in all_names)]

    def wrong_types(self, types: Mapping[str, str]) -> Iterator[str]:
        for part in self._parts if types else ():
            if hasattr(part, "keys"):
                yield from _unparsed(part.keys(list(types)), types)
            else:
                yield from _unlike({name: _word_of(part.field(name).type) for name in types}, types)

    def missing(self, marks: tuple[float, ...], shares: Iterable[str], *, read: bool) -> Counts:
        with tempfile.TemporaryDirectory() as spool:
            source: Any = open_file(self._path, None, "nan", None, Path(spool))
            if not read and source.rows is not None:
                return {}, source.rows
            counts, rows = _count(source.batches(0), marks, _names_in(source.labels), source.columns)
        others = [name for name in shares if name not in counts]
        for table in source.keys(others) if others else ():
            for name in others:
                gaps = pa_compute.is_null(table.column(name), nan_is_null=True)
                counts[name] = counts.get(name, 0) + (pa_compute.sum(gaps).as_py() or 0)
        return counts, rows


def _names_in(labels: Labels | None) -> list[str]:
    axes = () if labels is None else labels.columns
    return [str(name) for name in axes[0].values] if len(axes) == 1 and axes[0].values is not None else []


def _count(batches: Iterator[np.ndarray], marks: tuple[float, ...], names: Sequence[str], columns: int) -> Counts:
    """Count missing values of each column, and rows."""
    from npmdask.missing.gaps import is_marked

    counts, rows = np.zeros(columns, np.int64), 0
    for batch in batches:
        counts += (is_marked(batch, marks) | np.isnan(batch)).sum(axis=0)
        rows += len(batch)
    return dict(zip(names or [f"column {i}" for i in range(columns)], counts.tolist(), strict=True)), rows


def _word_of(type_: Any) -> str:
    """The word of [expect] for a type of Arrow; its own name where there is none."""
    name = str(type_)
    if name.startswith("decimal"):
        return "number"
    text = name.startswith(("string", "large_string", "dictionary<values=string"))
    return KINDS.get(kind_of(type_), "text" if text else "date" if name.startswith(("date", "timestamp")) else name)


def _unlike(found: Mapping[str, str], types: Mapping[str, str]) -> Iterator[str]:
    for name, word in types.items():
        if found[name] not in (word, "null") and (found[name], word) != ("integer", "number"):  # null: all is missing
            yield f"{name} is of type {found[name]}, and {word} is expected"


def _unparsed(tables: Iterator[Any], types: Mapping[str, str]) -> Iterator[str]:
    """Say which column of text holds a value that is not what is expected: the first one."""
    known = {"number": pa.float64(), "integer": pa.int64(), "boolean": pa.bool_(), "date": pa.timestamp("us")}
    for table, name in ((table, name) for table in tables for name, word in types.items() if word in known):
        point = "." if types[name] == "number" else ","  # numbers may have decimal commas
        column = pa_compute.replace_substring(pa_compute.utf8_trim_whitespace(table.column(name)), ",", point)
        if types[name] == "date":
            column = pa_compute.replace_substring_regex(column, OF_A_TIME, r"\1")
        try:
            empty = pa_compute.is_in(column, value_set=pa.array(missing_words()))
            pa_compute.if_else(empty, None, column).cast(known[types[name]])
        except pa.ArrowInvalid as error:
            value = str(error).partition("'")[2].rpartition("'")[0]
            yield f"{name} holds {value!r}, and {types[name]} is expected"
            return
