"""Zarr 2 and 3: a 2-D array, an AnnData sparse group, or an npmdask store (its checksums are compared)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.core.storage.chunk_access import Boxes
from npmdask.core.storage.conventions import (
    convention_facts,
    decoded,
    member,
    refuse_gap,
    refuse_marked,
    require_plain_parts,
    require_undecoded,
)
from npmdask.core.storage.labels import Labels, gene_labels
from npmdask.core.storage.readers.dense import DenseReader
from npmdask.core.storage.safe_open import open_node
from npmdask.errors import BadInputError, require
from npmdask.formats.common import (
    DenseSource,
    SparseSource,
    choose_array,
    grid_rows,
    require_2d,
    require_numbers,
    spool_grid,
    tile_rows,
    too_wide,
)
from npmdask.formats.compressed import (
    PARTS,
    Slices,
    array_shapes,
    compressed_source,
    encoding,
    exact_slice,
    group_shape,
    main_array,
)
from npmdask.symmetric.reader import open_packed


def open_zarr(
    path: Path, dataset: str | None, missing: str, spool: Path, gaps: str = "refuse"
) -> DenseSource | SparseSource:
    """The array ``dataset``. A missing chunk is an error unless ``missing`` is "fill"; missing values are unless
    ``gaps`` is "nan".
    """
    node = member(open_node(path))
    if isinstance(node, zarr.Array):
        require(dataset is None, f"{path} is one array, not a group: leave out dataset={dataset!r}")
        return dense_array(path, decoded(node, gaps), None, missing, spool)
    record = node.attrs.get("npmdask")
    if record is not None and "side" in record and dataset is None:
        raise BadInputError(
            f"{path} holds square matrices, one for each record: pass kind='matrices' (--kind matrices)"
        )
    if record is not None and record["kind"] == "tensor" and dataset is None:
        raise for_tensor(path)
    if dataset is None and encoding(node):
        return _sparse(path, node, missing, spool)
    if dataset is None:
        stored = "X" if "X" in node else "data"
        dataset = main_array(node) if record is None else stored
    nodes = dict(node.members(max_depth=None))
    name = choose_array(path, dataset, array_shapes(nodes), nodes=nodes)
    if record is None:
        labels = gene_labels(node, name)
    else:
        labels = Labels.of_array(boxes_of(node["labels"], "error")[...]) if "labels" in node else None
    return replace(_open_member(path, node, name, record, missing, spool, gaps), labels=labels)


def _open_member(
    path: Path, node: zarr.Group, name: str, record: Any, missing: str, spool: Path, gaps: str
) -> DenseSource | SparseSource:
    """The array ``name`` of a group; ``record``: of an npmdask store."""
    if isinstance(node[name], zarr.Group):
        return _sparse(path, node[name], missing, spool)
    stored = record is not None and name == "data" and "checksums" in node
    known = boxes_of(node["checksums"], "error")[...] if stored else None
    if known is not None and record.get("layout") == "packed":
        return _packed_source(node[name], int(record["shape"][0]), known)
    if known is not None:
        require_undecoded(dict(node[name].attrs), node[name].dtype, str(path), "an npmdask store")
        return dense_array(path, node[name], known, missing, spool)
    return dense_array(path, decoded(node[name], gaps), None, missing, spool)


def for_tensor(path: Path) -> BadInputError:
    """Return the error for asking another kind of a store of kind tensor."""
    return BadInputError(f"{path} holds a symmetric tensor of order three: pass kind='tensor' (--kind tensor)")


def _packed_source(array: Any, size: int, checksums: np.ndarray) -> DenseSource:
    """The rows of a matrix of which only the upper triangle is stored: off the diagonal a chunk is read twice."""
    reader = open_packed(array, size, checksums)

    def batches(start: int) -> Iterator[np.ndarray]:
        side = reader.chunks[0]
        for i in range(start // side, reader.grid[0]):
            yield reader.slab(i)[max(0, start - i * side) :]

    return DenseSource(format="zarr", rows=size, columns=size, dtype=reader.dtype, batches=batches)


def dense_array(path: Path, array: Any, checksums: np.ndarray | None, missing: str, spool: Path) -> DenseSource:
    """The rows of a 2-D array, compared with ``checksums`` where there are any."""
    shape = require_2d(array.shape, f"array {array.path!r} of {path}")
    dtype = require_numbers(array.dtype, f"array {array.path!r} of {path}")
    reader = DenseReader(array=array, checksums=checksums)

    def batches(start: int) -> Iterator[np.ndarray]:
        if missing == "fill":
            return grid_rows(lambda: nullcontext(boxes_of(array, missing)), shape, reader.chunks, dtype, spool, start)
        if reader.together > 1 and too_wide(shape, (reader.together, reader.chunks[1]), dtype):
            return tile_rows(spool_grid(reader.decode, shape, reader.chunks, dtype, spool), start)
        return tile_rows(reader, start)

    return DenseSource(
        format="zarr",
        rows=shape[0],
        columns=shape[1],
        dtype=dtype,
        facts=convention_facts(array),
        refuse_marked=lambda: refuse_marked(array),
        batches=batches,
    )


def _sparse(path: Path, group: Any, missing: str, spool: Path) -> SparseSource:
    where = f"{group.path or '/'} of {path}"
    shape, data = group_shape(group, where), group["data"]
    require_plain_parts(group)
    parts: Slices = {name: partial(exact_slice, boxes_of(group[name], missing), path) for name in PARTS}
    dtype = require_numbers(data.dtype, where)
    layout = encoding(group)
    return compressed_source("zarr", layout, lambda: nullcontext(parts), shape, dtype, data.shape[0], spool, path)


def boxes_of(array: Any, missing: str) -> Boxes:
    """Parts of a Zarr array; a chunk that is not there is an error, unless ``missing`` is "fill"."""
    remedy = "restore it, or if it really is empty pass missing='fill' (--missing fill)"
    return Boxes(array, fill=missing == "fill", remedy=remedy, before_missing=refuse_gap)
