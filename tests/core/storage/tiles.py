"""What operators are given of a source."""

from __future__ import annotations

from typing import Any

import numpy as np

from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import CsrReader, Fragment
from npmdask.core.storage.source import Source


def rows_of_tiles(source: Source) -> np.ndarray:
    """Put the tiles of dense or sparse rows together."""
    reader: Any = source.reader
    if isinstance(reader, CsrReader):
        whole = np.zeros(reader.shape)
        row = 0
        for block in reader.blocks(range(reader.grid[0]), ReadStats()):
            assert not isinstance(block, Fragment)
            whole[row : row + block.shape[0]] += block.toarray()
            row += block.shape[0]
        return whole
    whole = np.empty(reader.shape, reader.dtype)
    for slab in range(reader.grid[0]):
        for rows, tile in reader.tiles(slab, ReadStats()):
            for columns, values in tile:
                whole[rows, columns] = values
    return whole
