"""Storing the unique blocks of a tensor, out of core: memory is that of a few blocks and one chunk of the source."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.errors import BadInputError
from npmdask.storage.formats import open_tensor
from npmdask.storage.formats.common import guarded, reading
from npmdask.storage.formats.tensors import TensorSource
from npmdask.storage.ingest_common import (
    IngestSummary,
    Progress,
    cast_values,
    discarded_if_bad,
    files_of,
    require_room,
    scratch_folder,
    stamp,
)
from npmdask.storage.kinds import require_cubic
from npmdask.storage.lock import locked
from npmdask.storage.readers.packed_tensor import Place, place_of
from npmdask.storage.tensor_symmetry import Box, comparing, in_order, mean_block
from npmdask.storage.writers.packed_tensor import TensorWriter


def require_tensor_options(
    layout: str | None, non_finite: str, header: bool | None, chunks: Sequence[int] | None
) -> None:
    """Raise BadInputError for options of rows, or for blocks that are no cubes."""
    if layout is not None:
        raise BadInputError(f"layout={layout!r} is for kind='symmetric': a tensor is stored by its unique blocks")
    if non_finite != "error" or header is not None:
        raise BadInputError("non_finite and header are for rows of numbers: leave them out for kind='tensor'")
    if chunks is not None:
        require_cubic(chunks)


def ingest_tensor(
    path: Path,
    target: Path,
    *,
    dataset: str | None,
    chunks: Sequence[int] | None,
    dtype: np.dtype | None,
    missing: str,
    symmetrise: bool,
    rounding: str,
    overwrite: bool,
    progress: Progress | None,
) -> IngestSummary:
    """The part of :func:`npmdask.storage.ingest.ingest` that is for tensors; parameters and errors are as there."""
    began, options = time.perf_counter(), {"dataset": dataset, "missing": missing, "symmetrise": symmetrise}
    with locked(target), scratch_folder(target) as spool:
        with reading(path):
            source = open_tensor(path, dataset, missing, spool)
        stored = dtype or (np.dtype(np.float64) if symmetrise and source.dtype.kind in "iu" else source.dtype)
        with discarded_if_bad(target):
            require_room(path, target, source.size, source.size**2, source.size**2 * source.dtype.itemsize)
            facts = {"path": str(path), **stamp(path), "format": source.format, **options, **source.facts}
            facts |= {} if rounding == "error" else {"rounding": rounding}
            common: dict[str, Any] = {"identity": {"source": facts}, "overwrite": overwrite}
            common |= {"side": None if chunks is None else chunks[0]}
            writer = TensorWriter(target, size=source.size, dtype=stored, **common)
            record = {"source": {"path": str(path), "format": source.format, "dataset": dataset, **source.facts}}
            printed = _fill(path, source, writer, {**record, "symmetrised": symmetrise}, progress, rounding)
    return IngestSummary(
        dest=target,
        kind="tensor",
        shape=(source.size,) * 3,
        dtype=writer.dtype,
        fingerprint=printed,
        seconds=time.perf_counter() - began,
        bytes=sum(size for size, _ in files_of(target)),
    )


def _fill(
    path: Path,
    source: TensorSource,
    writer: TensorWriter,
    record: dict[str, Any],
    progress: Progress | None,
    rounding: str,
) -> str:
    """Write every block that is not written yet; returns the fingerprint."""
    each = writer.side**3 * writer.dtype.itemsize
    rounding = "nearest" if record["symmetrised"] else rounding  # a mean is rounded as it is
    try:
        with closing(guarded(path, _blocks(source, writer, record["symmetrised"]))) as blocks:
            for place, values in blocks:
                writer.write(cast_values(values, writer.dtype, _from([i * writer.side for i in place]), rounding))
                if progress:
                    progress(writer.next_unit, writer.units, writer.next_unit * each)
    except BadInputError:
        source.refuse_marked()
        raise
    return writer.finish(record)


def _from(first: list[int]) -> Callable[[list[int]], tuple[int, ...]]:
    return lambda at: tuple(start + n for start, n in zip(first, at, strict=True))


def _blocks(source: TensorSource, writer: TensorWriter, symmetrise: bool) -> Iterator[tuple[Place, np.ndarray]]:
    with source.boxes(writer.side) as box:
        made = _maker(box, source, writer, symmetrise)
        for unit in range(writer.next_unit, writer.units):
            place = place_of(unit, writer.grid)
            yield place, made(place)


def _maker(box: Box, source: TensorSource, writer: TensorWriter, symmetrise: bool) -> Callable[[Place], np.ndarray]:
    """What makes the block of a place out of the boxes of the source."""
    if source.mirrored:
        return lambda place: in_order(box(place), place)
    if symmetrise:
        return lambda place: mean_block(box, place, writer.side)
    return comparing(box, writer.side, writer.grid)
