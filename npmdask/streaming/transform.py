"""The scores of all rows of a source along the components of a store, written out of core: X @ V in memory O(batch)."""

from __future__ import annotations

import hashlib
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import npmdask
from npmdask.core.checkpoint.store import RunStore, folder_of, not_finished
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.columns import places_in
from npmdask.core.runs.components import (
    AS_RUN,
    LEAST_SQUARES,
    StoredComponents,
    components_of_run,
    labels_of_run,
    require_rule,
)
from npmdask.core.runs.observers import Observer
from npmdask.core.storage.columns import addressed
from npmdask.core.storage.paths import is_zarr, local_path, locked
from npmdask.core.storage.safe_open import carried, open_node
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, CommitError, require
from npmdask.missing.gaps import unmarked
from npmdask.missing.rules import Fits, Gaps
from npmdask.streaming.loop import TELL_SECONDS, Stopwatch
from npmdask.streaming.row_files import Partitions, RowFile, is_row_file, joined_keys
from npmdask.streaming.solution import answer_of, is_stream, read_model
from npmdask.streaming.source import STANDARD_INPUT, Opened, Reading, open_stream, said_of
from npmdask.streaming.sources import BatchedStream
from npmdask.streaming.sources.directory import Directory, mark_of
from npmdask.writers.dense import DenseWriter

# Rows along the components that a store holds: of a stream, a model that was saved, a finished run or a release.


def components_of(store: str | Path) -> StoredComponents:
    """The components in ``store``, with what rows were centred and scaled by when they were found.

    Raises
    ------
    BadInputError
        No model, a run that is not finished, or one whose column means lay with a source that is gone or has changed.
    """
    store = folder_of(store)
    held = RunStore(store)
    spec = held.read_spec()
    if spec is None or is_stream(spec):
        arrays, model = answer_of(store), read_model(store)[0]
        choice = addressed((spec or {}).get("source"))[1]
        known: dict[str, Any] = {"marks": model.missing_values, "labels": labels_of_run(held), "choice": choice}
        return StoredComponents(basis=arrays["basis"], mean=arrays.get("mean"), **known)
    result = held.read_part("result")
    if result is None:
        raise not_finished(store)
    data = spec["data"]
    if "basis" not in result[0] or data["kind"] == "tensor":
        raise BadInputError(
            f"{store} holds no components of rows, but the result of {'a' if data['kind'] != 'ica' else 'an'} "
            f"{data['kind']}: read its answer with `npmdask export {store} OUT.npz`"
        )
    if "operator" in spec and len(result[0]["basis"]) != data["shape"][-1]:
        raise BadInputError(
            f"{store} holds eigenvectors of the operator {spec['operator']['registered']!r}, which does not act on "
            f"columns: read its answer with `npmdask export {store} OUT.npz`"
        )
    if result[0]["basis"].dtype.kind == "c":
        raise BadInputError(
            f"{store} holds complex components, and only real scores can be written: compute the scores in Python, "
            f"as npmdask.resume({str(store)!r}).scores(rows)"
        )
    shown = held.read_part("presentation")  # in the order and with the signs of an earlier run: as they are reported
    turned = shown is not None and "basis" in shown[0] and shown[1]["asked"].get("rotate") in (None, "procrustes")
    return components_of_run(held, spec, shown[0]["basis"] if shown and turned else result[0]["basis"])


BATCH_BYTES = 16 * 2**20  # of rows as float64


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Scores that ``transform`` wrote: ``rows`` x ``columns`` at ``dest``.

    ``skipped`` rows were not finite, or did not determine their scores, and ``rows_with_gaps`` others have missing
    values.
    """

    rows: int
    columns: int
    skipped: int
    centered: bool
    scaled: bool
    seconds: float
    rows_per_second: float
    dest: str
    fingerprint: str
    source: str
    store: str
    rows_with_gaps: int = 0
    warnings: tuple[str, ...] = ()


def transform(
    store: str | Path,
    source: Any,
    dest: str | Path,
    *,
    dim: str | int | None = None,
    batch_rows: int | None = None,
    non_finite: str = "refuse",
    missing: str = AS_RUN,
    pattern: str = "*",
    format: str | None = None,
    header: bool | None = None,
    overwrite: bool = False,
    keep: Sequence[str] = (),
    partition: str | None = None,
    append: bool = False,
    observer: Observer | None = None,
) -> Scored:
    """Write the scores (n x k, float64) of the rows of ``source`` (n x d) along the components in ``store``.

    Rows are centred and scaled as those were that the components were found of. The scores of records are data of these
    records: along the components of a private release, too, no promise protects them.

    Parameters
    ----------
    store : of a stream (as of its last commit), a model that ``StreamingPCA.save`` wrote, or a finished run.
    source : as for ``stream_pca``: a Zarr store, a file, a directory, "-", an iterable of batches, or a callable.
    dest : what to create: a file that ends in .npy, .csv or .parquet (columns component1, component2, ...), or else a
        folder, a Zarr store with checksums that every command reads; its array is "data". It appears whole or not at
        all; after a kill the same call begins again.
    dim : the dimension that rows lie along, of an array of xarray or a file that it opens (NetCDF, a group of Zarr). Of
        such a source by default that of the run. All others must be those of the run, at the same places, in any order.
    batch_rows : rows in memory at once; by default 16 MiB of them.
    non_finite : "refuse" rows that are not finite, or "skip" and count them: then the rows of ``dest`` move up.
    missing : of rows with missing values (NaN): "as-run" treats them as ``Solution.scores`` does ("mean" and "pairwise"
        fill in means, "em" what the model expects; others are not finite), "least-squares" fits scores to what is
        observed (docs/howto/missing.md). Rows that do not determine their scores then count as not finite. Either way
        columns that the run left out are left out.
    pattern : of a directory: which files. format : of standard input: "csv", "npy" or "float32".
    header : of CSV: whether a first line holds names.
    overwrite : replace what is at ``dest``; of partitions those that have new rows.
    keep : columns of the CSV or Parquet files of ``source`` that are written before the scores, such as ids and dates:
        of Parquet as they are, of CSV as text.
    partition : one of ``keep``, or a name and a value ("night=2026-11-27"): ``dest`` is a folder with a Parquet file
        for each value, each of which appears whole or not at all.
    append : put the rows behind those of Parquet files that are there, if these are of the same components.

    Raises
    ------
    BadInputError
        No components, rows of another width, not finite, or none; a source that cannot be read.
    RefusedError
        ``dest`` exists, or another process is writing it.
    CommitError
        The disk is full; nothing is left behind.
    """
    dest, keep = local_path(dest, "the scores"), tuple(keep)
    _require_form(dest, keep, partition, append=append, overwrite=overwrite)
    start, components = time.perf_counter(), components_of(store)
    known = components.missing is not None or components.fill is not None
    gaps = "give" if require_rule(missing) == LEAST_SQUARES or known else "refuse"
    reading = Reading(non_finite=non_finite, pattern=pattern, format=format, header=header, gaps=gaps)
    source, dim = components.chosen(source), _dim_of_run(store, source) if dim is None else dim
    opened = _open_rows(source, components, store, reading, dim)
    if isinstance(opened.stream, BatchedStream):
        opened.stream.follow(partial(places_in, components, wide=opened.stream.columns))
    if keep:
        if not isinstance(opened.stream, Directory):
            raise BadInputError(
                f"keep is for files of CSV and Parquet, and {opened.name} has no columns beside numbers"
            )
        opened.stream.keep = keep
    scorer = _Scorer(components, missing, opened, skip=non_finite == "skip")
    names = [f"component{i + 1}" for i in range(components.k)]
    key, _, value = (partition, "", "") if partition is None or partition in keep else partition.partition("=")
    if both := set(names) & {*keep, key}:
        raise BadInputError(f"scores are called {min(both)!r}: rename that column")
    about: dict[str, Any] = {
        "run": str(Path(store).resolve()),
        "model": _model_name(components),
        "version": npmdask.__version__,
    }
    about |= {"written": datetime.now(UTC).isoformat(timespec="seconds")}
    where = Path(addressed(source)[0]) if isinstance(source, str | Path) else None
    mark = None if where is None or not where.exists() else mark_of(where)
    about |= {
        "sources": [
            hashlib.sha256(f"{opened.name} {pattern} {mark}".encode()).hexdigest()[:16] if mark else uuid.uuid4().hex
        ]
    }
    into: dict[str, Any] = {"partition": (key, value or None) if key else None, "append": append, "about": about}
    count = batch_rows or max(1, BATCH_BYTES // (8 * opened.stream.columns))
    with single_threaded_blas(), writer_of_scores(dest, names, overwrite, opened.mark, **into) as writer:
        _write_all(opened, scorer, writer, count, observer or Observer())
        facts = {"store": str(Path(store).absolute()), "source": opened.name, "skipped": scorer.skipped}
        facts |= {} if missing == AS_RUN else {"missing": missing}
        fingerprint = writer.finish({"scores": facts})
    seconds, rows = time.perf_counter() - start, writer.next_row
    return Scored(
        rows=rows,
        columns=components.k,
        skipped=scorer.skipped,
        centered=components.mean is not None,
        scaled=components.scale is not None,
        seconds=round(seconds, 3),
        rows_per_second=round(rows / seconds, 1),
        dest=str(writer.dest),
        fingerprint=fingerprint,
        source=opened.name,
        store=str(Path(store).absolute()),
        rows_with_gaps=scorer.rows_with_gaps,
        warnings=(*said_of(opened.stream), *scorer.warnings, *_already(writer)),
    )


def _require_form(dest: Path, keep: tuple[str, ...], partition: str | None, *, append: bool, overwrite: bool) -> None:
    """Raise BadInputError where what is asked of ``dest`` does not go together, before anything is read."""
    in_file, suffix = is_row_file(dest), dest.suffix.lower()  # refuses an ending that is not written
    if partition is not None and in_file:
        raise BadInputError(f"partitions lie in a folder, and {dest} is the name of a file: leave its ending out")
    require(len(set(keep)) == len(keep), f"keep = {', '.join(keep)}: name each column once")
    if partition is not None and partition not in keep:
        key, _, value = partition.partition("=")
        if not (key and value) or key in keep:
            raise BadInputError(
                f"partition = {partition!r}: give one of the columns that are kept ({', '.join(keep) or 'none'}), or a "
                "name of its own with a value for all rows, as night=2026-11-27"
            )
    if keep and partition is None and suffix not in (".csv", ".parquet"):
        raise BadInputError(f"{dest}: only .csv and .parquet have room for {', '.join(keep)} beside the scores")
    if append and partition is None and suffix != ".parquet":
        raise BadInputError(f"{dest}: rows are appended to .parquet files, or to partitions")
    require(not (append and overwrite), "append and overwrite: one of them, as rows are kept or replaced")


def _already(writer: Any) -> list[str]:
    """Say what had the rows before, as after a call that was interrupted."""
    held = getattr(writer, "held_already", 0)
    what = f"{held} partitions of {writer.dest} have" if held > 1 else f"{writer.dest}, or a partition of it, has"
    return [f"{what} the rows of this source already, and nothing was appended there"] if held else []


def _model_name(components: StoredComponents) -> str:
    """A name of the components, and of what rows are centred and scaled by: of others it is another one."""
    held = hashlib.sha256()
    for values in (components.basis, components.mean, components.scale, components.column_weight):
        held.update(b"-" if values is None else np.ascontiguousarray(values, "<f8").tobytes())
    return held.hexdigest()[:16]


GRIDDED = (".nc", ".nc3", ".nc4", ".cdf", ".netcdf", ".grib", ".grb")  # names of files that xarray opens


def _dim_of_run(store: str | Path, source: Any) -> str | None:
    """The dimension that the rows of the run lay along, if ``source`` can have it: a file of a grid, or a DataArray."""
    dim = (RunStore(folder_of(store)).read_spec() or {}).get("dim")
    if dim is None:
        return None
    if not isinstance(source, str | Path):
        return dim if dim in getattr(source, "dims", ()) else None
    path = Path(source)
    if any(part.suffix.lower() in GRIDDED for part in (path, *path.parents)):
        return str(dim)
    node = open_node(path) if is_zarr(path) else None
    return str(dim) if isinstance(node, zarr.Group) and "npmdask" not in node.attrs else None


def _open_rows(
    source: Any, components: StoredComponents, store: str | Path, reading: Reading, dim: str | int | None
) -> Opened:
    """The stream of the rows, as wide as the components, or as the data that they were found of; standard input does
    not say how wide it is.
    """
    found, piped = components.missing, isinstance(source, str | Path) and str(source) == STANDARD_INPUT
    whole = components.d if found is None else len(found.counts)
    opened = open_stream(source, replace(reading, columns=whole if piped else None), dim=dim)
    if opened.stream.columns not in (components.d, whole):
        raise BadInputError(
            f"{opened.name} has {opened.stream.columns} columns and the components in {store} have {components.d}: "
            "give rows with the same columns"
        )
    return opened


class _Scorer:
    """Scores of batches of a stream, with what is done with their gaps, and counted of them."""

    def __init__(self, components: StoredComponents, missing: str, opened: Opened, *, skip: bool) -> None:
        self._components, self._fit, self._opened, self._skip = components, missing == LEAST_SQUARES, opened, skip
        found = components.missing
        wide = found is not None and opened.stream.columns == len(found.counts)
        self._kept = found.kept if wide and found is not None and len(found.kept) < len(found.counts) else None
        self._fill: Any = None if found is None or self._fit else found.fill
        if components.fill is not None and not self._fit:
            self._fill = components.fill.values
        self._marks = components.marks if found is None else found.values
        self._fits, self._left_out = Fits(components), 0
        self.rows_with_gaps = 0

    @property
    def skipped(self) -> int:
        """Rows that are not among the scores."""
        return self._opened.stream.skipped + self._left_out

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for a reader of the scores."""
        if self._fit or self._components.missing is None or not self.rows_with_gaps:
            return self._fits.warnings
        if self._components.model is not None:
            return (
                f"{self.rows_with_gaps} rows have missing values: their scores are what the model of the run expects "
                "of the complete rows, given what is observed, and so nearer to 0 the less that is",
            )
        return (
            f"{self.rows_with_gaps} rows have missing values, which count as means: their scores come "
            f"out too small. missing = {LEAST_SQUARES!r} fits them to what is observed",
        )

    def scores(self, rows: Block) -> tuple[Block, Any]:
        """Scores of the next rows of the stream, without those that have none; and what is kept beside them."""
        if not isinstance(self._components.reading, Gaps | None):  # of another package
            opened = self._components.read_as_run(open_source(rows), AS_RUN)
            rows = np.concatenate([part.copy() for _, part in self._components.rows_of(opened)])
        rows = rows if self._kept is None else rows[:, self._kept]
        rows = unmarked(rows, self._marks)
        gappy = np.isnan(rows).any(axis=1)
        if self._fill is not None and gappy.any():
            rows = np.where(np.isnan(rows), self._fill, rows)
        if self._fit:
            scores, amplified = self._fits.fitted(rows)
            bad = np.isinf(amplified)
            self._fits.add(amplified[~bad])
        else:
            scores = self._components.scores(rows)
            bad = np.isnan(scores).any(axis=1)
        if bad.any() and not self._skip:
            raise self._row_error(len(rows), int(np.argmax(bad)))
        self._left_out += int(bad.sum())
        self.rows_with_gaps += int((gappy & ~bad).sum())
        keys = getattr(self._opened.stream, "keys", None) or None
        keys = None if keys is None else joined_keys(keys)
        if not bad.any():
            return scores, keys
        return scores[~bad], None if keys is None else keys.filter(~bad)

    def _row_error(self, count: int, row: int) -> BadInputError:
        """Return the error for a row of the batch of ``count`` rows that the stream has just given."""
        number = self._opened.stream.rows_read - count + row
        why = f"has missing values, and missing = {LEAST_SQUARES!r} was not asked for"
        why = "lacks too many values to determine its scores" if self._fit else why
        return BadInputError(
            f"row {number} of {self._opened.name} {why}: fill them in, or leave such rows out and count them with "
            "non_finite='skip'"
        )


@contextmanager
def writer_of_scores(
    dest: str | Path, names: list[str], overwrite: bool, mark: Any = None, *, partition: Any = None, **into: Any
) -> Iterator[DenseWriter | RowFile | Partitions]:
    """A writer of rows of scores, which ``names`` names, to a file or a store, as the ending of ``dest`` says.

    ``mark``: that of the data which have these scores. ``partition``: key and value of partitions; ``into``: for files.

    It begins again, whatever a kill has left, and leaves nothing where it fails.
    """
    target = local_path(dest, "the scores")
    in_file = is_row_file(target)
    with locked(target):
        if in_file or partition is not None:
            file: RowFile | Partitions
            if partition is None:
                file = RowFile(target, names, overwrite=overwrite, **into)
            else:
                key, value = partition
                file = Partitions(target, key, value, names, overwrite=overwrite, **into)
            try:
                yield file
            except BaseException:
                file.drop()
                raise
            return
        writer = DenseWriter(
            target,
            columns=len(names),
            dtype=np.dtype(np.float64),
            kind="samples",
            identity={"scores": uuid.uuid4().hex} | carried(mark),
            overwrite=overwrite,
        )
        try:
            yield writer
        except BaseException as error:
            shutil.rmtree(writer.partial, ignore_errors=True)
            if not isinstance(error, CommitError):
                raise
            raise CommitError(
                f"cannot write {target}: {error.__cause__}; free some space and run again from the first row"
            ) from error


def _write_all(opened: Opened, scorer: _Scorer, writer: Any, batch_rows: int, observer: Observer) -> None:
    stream, tell = opened.stream, Stopwatch(TELL_SECONDS)
    observer.on_begin(0, opened.rows, "row")
    told = 0
    while (rows := stream.read(batch_rows)) is not None:
        scores, keys = scorer.scores(rows)
        writer.write(scores, *(() if keys is None else (keys,)))
        if tell.is_time():
            told = stream.rows_read
            observer.on_rows(told, scorer.skipped, told / tell.total)
    if told != stream.rows_read:
        observer.on_rows(stream.rows_read, scorer.skipped, stream.rows_read / tell.total)
    require(writer.next_row > 0, f"{opened.name} holds no rows to transform ({scorer.skipped} were left out)")
