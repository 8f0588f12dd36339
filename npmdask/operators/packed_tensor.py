"""A symmetric tensor of order three in packed blocks: T(I, u, u) for a block of vectors u in one pass.

The product is not linear in u, which no driver minds: one block goes in, one comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.subspaces import Block, symmetric_part
from npmdask.operators._protocol import RUN_BYTES, ByBlocks, Partial, require_finite
from npmdask.operators.block_strips import Strips, room_bytes
from npmdask.operators.tensor_contraction import Contraction
from npmdask.storage.readers.dense import SlabRecord
from npmdask.storage.readers.packed_tensor import Place, TensorReader, multiplicity


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
    answers: ClassVar[tuple[str, ...]] = ("scores",)

    def partial(self, slabs: range, block: Block) -> Partial:
        record, contraction = SlabRecord(), Contraction(block, self.reader.side)
        for place, values in self.reader.blocks(slabs, record):
            contraction.add(place, values)
        sums = {"product": contraction.product}
        require_finite(sums, self.reader, slabs)
        return Partial(sums, record)

    def finish(self, total: Partial, block: Block) -> Block:
        product = total.sums["product"]
        if not self.scores:
            return product
        scores: Block = np.einsum("dl,dl->l", product, block)[None]
        return scores

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block, with p columns: vectors once and twice, the sum and its copy."""
        return self.reader.buffer_bytes + room_bytes(self.reader.side, p) + 5 * self.block_rows * p * 8


# Small multilinear forms T(A, B, C) of a symmetric tensor in packed blocks.


@dataclass(frozen=True, kw_only=True)
class PackedMultilinear(OfTensor):
    """T(A, B, C)_abc = sum_ijk T_ijk A_ia B_jb C_kc for a block [A B C], unfolded: m1 x (m2 m3), C varying fastest.

    Without ``widths`` the block is A = B = C (whitening: T(W, W, W), m x m^2). Whatever they are, one form of the whole
    block M = [A B C] is computed: a stored block gives its own share of T(M, M, M), counted once for each of its mirror
    images, and the mean over the six orders of the indices is taken of the sum. For small m: it is m^3 numbers.

    Parameters
    ----------
    widths : columns m1, m2, m3 of A, B and C.
    """

    widths: tuple[int, int, int] | None = None

    def partial(self, slabs: range, block: Block) -> Partial:
        record, m = SlabRecord(), block.shape[1]
        strips, form = Strips(self.reader.side, m, block.dtype), np.zeros((m, m, m))
        for place, values in self.reader.blocks(slabs, record):
            self._add(form, place, values, block, strips)
        sums = {"product": form.reshape(m, m * m)}
        require_finite(sums, self.reader, slabs)
        return Partial(sums, record)

    def _add(self, form: np.ndarray, place: Place, values: np.ndarray, block: Block, strips: Strips) -> None:
        """Add the form of one block, the contracted index first."""
        i, j, k = (self.reader.span(at) for at in place)
        for part, strip in strips.cut(values, 0):
            height, width, depth = strip.shape
            pairs = strips.room("pairs", (block.shape[1], height, width))
            matrix = strips.matrix(strip, (height * width, depth))
            np.matmul(block[k].T, matrix.T, out=pairs.reshape(len(pairs), -1))
            outer = block[i.start + part.start : i.start + part.stop]
            form += multiplicity(place) * np.matmul(outer.T, np.matmul(pairs, block[j]))

    def finish(self, total: Partial, block: Block) -> Block:
        """The form, unfolded. Raises BadInputError if the widths are not those of the block."""
        m = block.shape[1]
        form = symmetric_part(total.sums["product"].reshape(m, m, m))
        if self.widths is not None:
            if sum(self.widths) != m:
                raise BadInputError(f"widths {self.widths} do not add up to the {m} columns of the block: give [A B C]")
            first, second, _ = self.widths
            form = form[:first, first : first + second, first + second :]
        return np.ascontiguousarray(form).reshape(len(form), -1)

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the forms that wait to be joined, and of the mean over the orders of the last."""
        return (2 * len(runs).bit_length() + 4) * p**3 * 8

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block, with p columns."""
        side = self.reader.side
        return self.reader.buffer_bytes + room_bytes(side, p) + 8 * (3 * p**3 + side * p * (p + 2))
