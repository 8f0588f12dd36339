"""How AnnData lays a sparse matrix into a group of arrays, the same in HDF5 and in Zarr."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.errors import BadInputError
from npmdask.storage.formats.common import truncated

PARTS = ("data", "indices", "indptr")


def encoding(node: Any) -> str:
    """csr, csc or nothing: what AnnData says of a group."""
    text = str(node.attrs.get("encoding-type", node.attrs.get("h5sparse_format", "")))
    return {"csr_matrix": "csr", "csc_matrix": "csc"}.get(text, text if text in ("csr", "csc") else "")


def group_shape(group: Any, where: str) -> tuple[int, int]:
    shape = group.attrs.get("shape", group.attrs.get("h5sparse_shape"))
    if shape is None or len(shape) != 2 or not all(name in group for name in PARTS):
        raise BadInputError(f"group {where} says it is sparse but lacks shape, data, indices or indptr")
    return (int(shape[0]), int(shape[1]))


def main_array(root: Any) -> str | None:
    """``X`` of an AnnData file."""
    return "X" if "X" in root and "encoding-type" in root["X"].attrs else None


def array_shapes(nodes: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of every sparse group, and of every array that is not part of one; ``nodes`` by path."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, node in nodes.items():
        group = nodes.get(name.rpartition("/")[0])
        if hasattr(node, "keys") and encoding(node):
            shapes[name] = group_shape(node, name)
        elif hasattr(node, "shape") and (group is None or not encoding(group)):
            shapes[name] = tuple(node.shape or ())
    return shapes


def exact_slices(array: Any, path: Path) -> Callable[[int, int], np.ndarray]:
    """Slices of a 1-D array; libraries would silently return fewer values than asked for."""

    def read(first: int, last: int) -> np.ndarray:
        if last > array.shape[0]:
            raise truncated(path, f"{array.name} has {array.shape[0]} values and {last} are needed")
        values = np.asarray(array[first:last])
        return values.astype(values.dtype.newbyteorder("="), copy=False)

    return read
