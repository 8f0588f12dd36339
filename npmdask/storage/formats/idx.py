"""IDX, the format of MNIST."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from npmdask.errors import BadInputError
from npmdask.storage.formats.common import DenseSource, require_2d
from npmdask.storage.formats.raw import is_gzip, open_binary, require_size, row_major

IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def open_idx(path: Path) -> DenseSource:
    """The first dimension is the rows, the others are flattened; big-endian."""
    with open_binary(path) as file:
        zero, code, dimensions = struct.unpack(">HBB", file.read(4))
        if zero or code not in IDX_TYPES or not dimensions:
            raise BadInputError(f"{path} is not an IDX file: it begins with {zero:04x} {code:02x} {dimensions:02x}")
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
    rows, columns = require_2d((shape[0], int(np.prod(shape[1:], dtype=np.int64))), str(path))
    dtype, offset = np.dtype(IDX_TYPES[code]), 4 + 4 * dimensions
    if not is_gzip(path):
        require_size(path, offset, rows * columns * dtype.itemsize)

    def batches(start: int) -> Iterator[np.ndarray]:
        return row_major(path, lambda: open_binary(path), offset, (rows, columns), dtype, start)

    return DenseSource(format="idx", rows=rows, columns=columns, dtype=dtype, batches=batches)
