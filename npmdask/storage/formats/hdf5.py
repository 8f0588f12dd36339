"""HDF5: a 2-D dataset, or a sparse group as AnnData writes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.storage.formats.anndata import PARTS, array_shapes, encoding, exact_slices, group_shape, main_array
from npmdask.storage.formats.common import DenseSource, SparseSource, choose_array, require_2d, require_numbers
from npmdask.storage.formats.compressed import Slices, compressed_source
from npmdask.storage.formats.grids import grid_rows


def open_hdf5(path: Path, dataset: str | None, spool: Path) -> DenseSource | SparseSource:
    """The array ``dataset``; if nothing is named the only one, or ``X`` of an AnnData file."""
    import h5py

    with h5py.File(path, "r") as file:
        dataset = main_array(file) if dataset is None else dataset
        name = choose_array(path, dataset, array_shapes(_nodes(file)))
        node = file[name]
        if isinstance(node, h5py.Dataset):
            return _dense(path, name, node, spool)
        shape, count = group_shape(node, f"{name} of {path}"), len(node["data"])
        dtype, layout = require_numbers(node["data"].dtype, f"{name} of {path}"), encoding(node)

    @contextmanager
    def slices() -> Iterator[Slices]:
        with h5py.File(path, "r") as opened:
            yield {part: exact_slices(opened[name][part], path) for part in PARTS}

    return compressed_source("hdf5", layout, slices, shape, dtype, count, spool, path)


def _nodes(file: Any) -> dict[str, Any]:
    nodes: dict[str, Any] = {}
    file.visititems(nodes.__setitem__)
    return nodes


def _dense(path: Path, name: str, array: Any, spool: Path) -> DenseSource:
    """``array`` tells shape and chunks; the file is opened again to read."""
    import h5py

    shape = require_2d(array.shape, f"dataset {name!r} of {path}")
    dtype = require_numbers(array.dtype, f"dataset {name!r} of {path}")
    chunks = array.chunks or (1, shape[1])

    @contextmanager
    def opened() -> Iterator[Any]:
        with h5py.File(path, "r") as file:
            yield file[name]

    def batches(start: int) -> Iterator[np.ndarray]:
        return grid_rows(opened, shape, chunks, dtype, spool, start)

    return DenseSource(format="hdf5", rows=shape[0], columns=shape[1], dtype=dtype, batches=batches)
