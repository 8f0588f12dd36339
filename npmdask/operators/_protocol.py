"""What every operator is, and what they share: reading in one dtype, memory of a task, the look for NaN."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from npmdask.errors import BadInputError
from npmdask.linalg import Block
from npmdask.storage.dense import DenseReader, SlabRecord, scratch
from npmdask.storage.sparse import CsrReader, Fragment
from npmdask.storage.triangle import TriangleReader

RUN_BYTES = 32 * 2**20  # of data in a run: large enough that the cost of scheduling a task vanishes


@dataclass
class Partial:
    """The product of a run of slabs: row blocks to stack or one sum, cut rows, and what the reading cost."""

    products: list[Block]
    record: SlabRecord
    fragments: list[Fragment] = field(default_factory=list)


class Operator(Protocol):
    """A linear map applied to blocks (d x p), one pass over the data each time."""

    @property
    def reader(self) -> Any: ...
    @property
    def block_rows(self) -> int: ...
    def partial(self, slabs: range, block: Block) -> Partial: ...
    def join(self, left: Partial, right: Partial) -> Partial: ...
    def finish(self, total: Partial, block: Block) -> Block: ...
    def task_bytes(self, p: int, runs: list[range]) -> int: ...

    # What a pass is cut into: runs of consecutive units, a function of the stored layout only.
    @property
    def units(self) -> int: ...
    @property
    def pass_bytes(self) -> int: ...
    @property
    def pass_chunks(self) -> int: ...


class BySlabs:
    """An operator whose units are the slabs (rows of chunks) of its reader, all of which a pass reads."""

    reader: Any

    @property
    def units(self) -> int:
        return int(self.reader.grid[0])

    @property
    def pass_bytes(self) -> int:
        return int(self.reader.nbytes)

    @property
    def pass_chunks(self) -> int:
        return int(self.reader.grid[0] * self.reader.grid[1])


def divided(block: Block, scale: np.ndarray | None) -> Block:
    return block if scale is None else (block / scale[:, None]).astype(block.dtype, copy=False)


def as_dtype(values: np.ndarray, dtype: Any, name: Any = 0) -> np.ndarray:
    """``values`` in the dtype of the arithmetic: themselves, or a copy in this thread's reused buffer."""
    if values.dtype == dtype:
        return values
    out = like(values, dtype, name)
    np.copyto(out, values, casting="unsafe")
    return out


def like(values: np.ndarray, dtype: Any, name: Any) -> np.ndarray:
    """A reused buffer of the shape of ``values``; oversized in rows so that short last tiles reuse it too."""
    rows, columns = values.shape
    held = scratch(("cast", name, columns), (-(-rows // 64) * 64, columns), dtype)
    return held[:rows]


def tile_bytes(reader: DenseReader, p: int) -> int:
    cast = reader.tile_rows * reader.shape[1] * (8 + 4)  # float64, and what is left of float32 when it changes
    return reader.buffer_bytes + cast + 2 * reader.chunks[0] * p * 8


def require_finite(product: Block, reader: DenseReader | CsrReader | TriangleReader, slabs: range) -> None:
    """One look at the product finds any NaN or infinity of the data; only then is it searched for."""
    if np.isfinite(product).all():
        return
    for slab in slabs:
        position = _find_non_finite(reader, slab)
        if position:
            raise BadInputError(
                f"{reader.where} holds {position}: remove or impute the non-finite values and ingest it again"
            )
    raise BadInputError(
        f"a product with {reader.where} overflows although the data are finite: divide the data by a constant"
    )


def _find_non_finite(reader: DenseReader | CsrReader | TriangleReader, slab: int) -> str | None:
    if isinstance(reader, CsrReader):
        for piece in reader.blocks(range(slab, slab + 1), SlabRecord()):
            if not np.isfinite(piece.data).all():
                return f"a non-finite value in chunk {slab}"
        return None
    for rows, tile in reader.tiles(slab, SlabRecord()):
        for columns, values in tile:
            bad = np.argwhere(~np.isfinite(values))
            if len(bad):
                row, column = (int(i) for i in bad[0])
                return f"{values[row, column]} at row {rows.start + row}, column {columns.start + column}"
    return None
