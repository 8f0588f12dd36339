"""A symmetric tensor of order three in packed blocks: T(I, u, u) for a block of vectors u in one pass.

The product is not linear in u, which no driver minds: one block goes in, one comes out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import RUN_BYTES, ByBlocks, Partial
from npmdask.operators.block_strips import room_bytes
from npmdask.operators.tensor_contraction import Contraction
from npmdask.storage.readers.dense import SlabRecord
from npmdask.storage.readers.packed_tensor import TensorReader


@dataclass(frozen=True, kw_only=True)
class OfTensor(ByBlocks):
    """An operator whose units are the stored blocks (i <= j <= k) of a symmetric tensor."""

    reader: TensorReader

    @property
    def run_bytes(self) -> int:
        """The least that a run reads: what it computes with them is as much as it is for four times as many."""
        return RUN_BYTES // 4

    def read_ahead(self, units: range) -> None:
        """Have the kernel fetch the first of ``units`` meanwhile, where that can be asked for."""
        self.reader.read_ahead(units[:1])


@dataclass(frozen=True, kw_only=True)
class PackedTensor(OfTensor):
    """T(I, u_l, u_l) (d x L) for the columns u_l of a block, or with ``scores`` T(u_l, u_l, u_l) (1 x L).

    Matrix products are formed in the dtype of the block and added in float64. What is counted for each block, and how
    it is computed: :mod:`npmdask.operators.tensor_contraction`.
    """

    scores: bool = False

    def partial(self, slabs: range, block: Block) -> Partial:
        record, contraction = SlabRecord(), Contraction(block, self.reader.side)
        for place, values in self.reader.blocks(slabs, record):
            contraction.add(place, values)
        product = contraction.product
        require_finite(product, self.reader, slabs)
        return Partial([product], record)

    def finish(self, total: Partial, block: Block) -> Block:
        (product,) = total.products
        if not self.scores:
            return product
        scores: Block = np.einsum("dl,dl->l", product, block)[None]
        return scores

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block, with p columns: vectors once and twice, the sum and its copy."""
        return self.reader.buffer_bytes + room_bytes(self.reader.side, p) + 5 * self.block_rows * p * 8


def require_finite(product: np.ndarray, reader: TensorReader, units: range) -> None:
    """One look at the product finds any NaN or infinity of the data; only then is it searched for.

    Raises
    ------
    BadInputError
        The product is not finite: the entry that is to blame is named, if there is one.
    """
    if np.isfinite(product).all():
        return
    for place, values in reader.blocks(units, SlabRecord()):
        for within in np.argwhere(~np.isfinite(values))[:1]:
            entry = tuple(reader.span(at).start + int(row) for at, row in zip(place, within, strict=True))
            raise BadInputError(
                f"{reader.where} holds {values[tuple(within)]} at entry {entry}: remove or impute the non-finite "
                "values and ingest it again"
            )
    raise BadInputError(
        f"a product with {reader.where} overflows although the data are finite: divide the data by a constant"
    )
