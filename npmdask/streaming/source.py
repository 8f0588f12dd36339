"""A stream out of a source: a store, a file, a directory, standard input, an iterator."""

from __future__ import annotations

import glob
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from scipy.sparse import issparse

from npmdask.containers.containers import is_linear_operator, values_of
from npmdask.containers.lazy import BlockRows
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.core.storage.chunk_access import fetcher_of
from npmdask.core.storage.columns import Choice, addressed, at
from npmdask.core.storage.kinds import require_rows
from npmdask.core.storage.paths import is_zarr, local_path
from npmdask.core.storage.source import Source, is_remote, open_source, schemes
from npmdask.errors import BadInputError, require
from npmdask.formats.tables import taken_for_names
from npmdask.missing.gaps import Marks
from npmdask.streaming.sources import BatchedStream, Stream
from npmdask.streaming.sources.directory import Directory, is_complete
from npmdask.streaming.sources.iterator import IteratorRows, standard_input
from npmdask.streaming.sources.zarr_rows import ZarrRows
from npmdask.weights.aspect import Weights, find_weights

STANDARD_INPUT = "-"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Settings of how a source is read.

    ``order`` ("sequential", "shuffled"), ``epochs``: of a stored array. ``pattern``, ``full_batches``: of a directory.
    ``format`` ("csv", "npy", "float32"), ``columns``: of standard input; ``columns`` also of an empty directory.
    ``header``: of CSV. ``non_finite``: "refuse" rows that are not finite, or "skip" and count them. ``gaps``:
    rows with missing values (NaN) are not finite ("refuse"), or given: all ("give"), or those that have a value
    ("give-some"; the others are skipped and counted). ``missing_values``: what marks missing values, beside NaN.
    """

    order: str = "sequential"
    epochs: int = 1
    non_finite: str = "refuse"
    pattern: str = "*"
    full_batches: bool = False
    format: str | None = None
    columns: int | None = None
    header: bool | None = None
    gaps: str = "refuse"
    missing_values: Marks = ()

    def refuse_others(self, allowed: tuple[str, ...], source: str) -> None:
        """Raise BadInputError for an option that ``source`` does not know."""
        plain = Reading()
        allowed = (*allowed, "non_finite", "gaps", "missing_values")
        for name in (name for name in self.__dataclass_fields__ if name not in allowed):
            if getattr(self, name) != getattr(plain, name):
                raise BadInputError(f"{name} = {getattr(self, name)!r} does not apply to {source}: leave it out")


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A stream with what is known of its source.

    ``name``: what it is called, or its path. ``named``: whether the name suffices to open it again. ``forwards``: it is
    read once, and what was read cannot be asked for again. ``grows``: more may come after its end. ``rows``: in all,
    if that is known. ``truth``: the planted directions (d x j).
    """

    stream: Stream
    name: str
    named: bool = False
    forwards: bool = False
    grows: bool = False
    rows: int | None = None
    buffer_bytes: int = 0
    truth: Block | None = None
    mark: Any = None  # that of data which have a privacy budget
    said: dict[str, Any] = field(default_factory=dict)  # of the data, that their user has to know
    weights: Weights | None = None


def open_stream(
    source: Any, reading: Reading, *, seed: int = 0, row_weights: Any = None, dim: str | int | None = None
) -> Opened:
    """Open ``source``: a Zarr store (path, URL, ``zarr.Array`` or ``Group``, 2-D array), a directory of files or one
    file (path), "-" (standard input), an iterable of batches, a callable that returns one, or a ``Stream``.

    ``row_weights``: of a stored array, as of :func:`npmdask.top_k`, or a ``Weights`` that was found before. ``dim``:
    of an array of xarray or a file that it opens, the dimension that rows lie along.

    Raises
    ------
    BadInputError
        Nothing there, or options that the source does not know.
    """
    if dim is None:
        opened = _open_any(source, reading, seed, row_weights)
    else:
        opened = _open_along_dim(source, reading, seed, row_weights, dim)
    if reading.missing_values:
        if not isinstance(opened.stream, BatchedStream):
            raise BadInputError(
                "missing_values cannot be applied to a stream that is already open: let it give NaN instead"
            )
        opened.stream.marks = reading.missing_values
    return opened


def _open_along_dim(source: Any, reading: Reading, seed: int, row_weights: Any, dim: str | int) -> Opened:
    """The rows of an array of more dimensions."""
    if isinstance(source, str | Path) and str(source) == STANDARD_INPUT:
        raise BadInputError(f"dim = {dim!r} is for an array with named dimensions, and standard input has none")
    opened = open_source(source, dim=dim, gaps=reading.gaps != "refuse")
    weights = find_weights(opened, source, row_weights, None)
    return _open_stored(opened, reading, seed, weights, named=isinstance(source, str | Path))


def _open_any(source: Any, reading: Reading, seed: int, row_weights: Any) -> Opened:
    given, (source, choice) = source, addressed(source)
    source = values_of(source, gaps=reading.gaps != "refuse")
    if is_linear_operator(source):  # which could be called, as what makes an iterator
        raise BadInputError(f"the {type(source).__name__} has no rows that could be streamed: use npmdask.top_k")
    in_hand = isinstance(source, np.ndarray | zarr.Array | zarr.Group | BlockRows) or issparse(source)
    if in_hand or is_remote(source) or _is_store(source):
        opened = open_source(source, columns=choice, gaps=reading.gaps != "refuse")
        found = isinstance(row_weights, Weights)
        weights = row_weights if found else find_weights(opened, given, row_weights, None)
        return _open_stored(opened, reading, seed, weights, named=not _in_memory(source))
    if row_weights is not None:
        raise BadInputError(
            "row_weights need a known number of rows, in a stored array or in memory: ingest the rows first "
            "(npmdask ingest), or feed batches with their weights to StreamingPCA.partial_fit(rows, sample_weight=...)"
        )
    if isinstance(source, str | Path):
        if str(source) == STANDARD_INPUT:
            return _input(reading)
        return _files(local_path(source, "a stream of files", schemes()), reading, choice)
    if all(hasattr(source, name) for name in ("read", "seek", "position", "fingerprint")):
        reading.refuse_others((), "a stream that is open already")
        held = getattr(source, "buffer_bytes", 0)
        return Opened(stream=source, name=type(source).__name__, grows=True, buffer_bytes=held)
    reading.refuse_others(("columns",), "an iterator")
    rows = IteratorRows(source, columns=reading.columns, non_finite=reading.non_finite, gaps=reading.gaps)
    return Opened(stream=rows, name="an iterator", forwards=not callable(source))


def weights_of(stream: Stream) -> np.ndarray | None:
    """Return the weights of the rows that were read last; None of a stream from elsewhere, which knows none."""
    return getattr(stream, "weights", None)


def said_of(stream: Stream) -> tuple[str, ...]:
    """Return the stream's warnings: what it decided of the names of columns and rows, and what it left out.

    A stream from elsewhere may have none.
    """
    names = getattr(stream, "header", None)
    return (*(() if names is None else (taken_for_names(names),)), *getattr(stream, "notes", ()))


def _is_store(source: Any) -> bool:
    """Say whether a path is one Zarr array or group, and not a directory of files."""
    named = isinstance(source, str | Path) and str(source) != STANDARD_INPUT
    return named and is_zarr(local_path(source, "a stream of files", schemes()))


def _in_memory(source: Any) -> bool:
    """Say whether the numbers are gone with this process."""
    if isinstance(source, zarr.Array | zarr.Group):
        far = fetcher_of(source)
        return isinstance(source.store_path.store, zarr.storage.MemoryStore) or bool(far and far.of_a_program)
    return isinstance(source, np.ndarray | BlockRows) or issparse(source)


def _open_stored(source: Source, reading: Reading, seed: int, weights: Weights | None, *, named: bool) -> Opened:
    require_rows(source.kind, source.path)
    if source.kind == "symmetric":
        raise BadInputError(
            f"{source.path} holds a symmetric matrix, whose rows are not samples: use the algorithm 'power' or 'krylov'"
        )
    reading.refuse_others(("order", "epochs"), "a stored array")
    order = {"order": reading.order, "seed": seed, "epochs": reading.epochs}
    if weights is not None:
        weights.require_fit(source.shape, source.path)
    known = None if weights is None else weights.rows
    stream = ZarrRows(source, **order, non_finite=reading.non_finite, gaps=reading.gaps, weights=known)  # type: ignore[arg-type]
    truth = None if source.truth is None else source.truth.basis.astype(np.float64)
    rows = source.shape[0] * reading.epochs
    facts: dict[str, Any] = {"name": source.path, "mark": source.mark, "said": source.said}
    held = stream.buffer_bytes
    return Opened(stream=stream, named=named, rows=rows, truth=truth, weights=weights, buffer_bytes=held, **facts)


def _files(path: Path, reading: Reading, choice: Choice | None) -> Opened:
    require(path.exists(), f"there is nothing at {path}: name a Zarr store, a directory of files, a file, or '-'")
    whole = path.is_dir()
    if not whole and not is_complete(path.name):
        raise BadInputError(f"{path} has the name of a file that is still being written: rename it when it is complete")
    reading.refuse_others(("columns", "header", *(("pattern", "full_batches") if whole else ())), f"{path}")
    stream = Directory(
        path if whole else path.parent,
        reading.pattern if whole else glob.escape(path.name),
        **attributes(reading, "columns", "header", "full_batches", "non_finite", "gaps"),
        choice=choice,
    )
    return Opened(stream=stream, name=str(at(path.absolute(), choice)), named=True, grows=whole)


def _input(reading: Reading) -> Opened:
    reading.refuse_others(("format", "columns", "header"), "standard input")
    if reading.columns is None or reading.format is None:
        missing = [name for name in ("columns", "format") if getattr(reading, name) is None]
        raise BadInputError(
            f"the width or the format of the rows on standard input is unknown: set {' and '.join(missing)}"
        )
    stream = standard_input(reading.format, **attributes(reading, "columns", "header", "non_finite", "gaps"))
    return Opened(stream=stream, name=STANDARD_INPUT, forwards=True)
