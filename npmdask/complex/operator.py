"""Products with complex data, of which readers give real and imaginary parts beside each other (m x 2 d).

With R (m x 2 d) the rows as they are read and J multiplication by i, ``R w`` and ``R J w`` are the real and the
imaginary part of ``A conj(w)``. So ``R^T R - J R^T R J`` is ``conj(A^H A)`` as a real matrix, for the price of R times
twice as many columns: centred, scaled and weighted as R is, since column means of R are those of A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.complex.parts import beside_i, folded, times_i
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import BlockQuery, Operator, Partial
from npmdask.core.operators.gram import Gram
from npmdask.core.operators.gram_matrix import GramMatrix
from npmdask.core.operators.view import View
from npmdask.symmetric.operator import Symmetric


@dataclass(frozen=True, kw_only=True)
class ComplexGram(Gram):
    """``weight * conj(A^H A)`` of complex rows, for blocks of real columns (2 d x p)."""

    def asked(self, query: BlockQuery) -> Any:
        """The operator that answers ``query``: itself, or all of the matrix."""
        made = super().asked(query)
        if not isinstance(made, GramMatrix):
            return made
        return ComplexGramMatrix(reader=made.reader, weight=made.weight, view=made.view, single=made.single)

    def partial(self, slabs: range, block: Block) -> Partial:
        return super().partial(slabs, beside_i(block))

    def finish(self, total: Partial, block: Block) -> Block:
        p = block.shape[1]
        both = super().finish(total, beside_i(block))
        product = folded(both[:, : 2 * p])
        # What was multiplied beside it: J commutes with rounding, so that of J V is J times that of V.
        return product if not self.rounded else np.concatenate([product, both[:, 2 * p : 3 * p]], axis=1)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return super().task_bytes(2 * p, runs) + 2 * self.block_rows * p * 8

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the sums that wait to be joined, of twice as many columns, and of what is made of the last one."""
        return super().pending_bytes(2 * p, runs) + 6 * self.block_rows * p * 8


@dataclass(frozen=True, kw_only=True)
class ComplexGramMatrix(GramMatrix):
    """``weight * conj(A^H A)`` itself, as a real matrix (2 d x 2 d), and its product with a block."""

    def partial(self, slabs: range, block: Block) -> Partial:
        return super().partial(slabs, beside_i(block))

    def finish(self, total: Partial, block: Block) -> Block:
        """The matrix, its product with the block, and the mean and deviation of every part: 2 d x (2 d + p + 2)."""
        found, d, p = super().finish(total, beside_i(block)), self.block_rows, block.shape[1]
        out = np.empty((d, d + p + 2))
        out[:, :d] = found[:, :d] + times_i(times_i(found[:, :d]).T)  # M - J M J, as M J = -(J M)^T
        out[:, d:-2], out[:, -2:] = folded(found[:, d:-2]), found[:, -2:]
        return out

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return super().task_bytes(2 * p, runs)

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the sums that wait to be joined, or of what is made of the last one: two matrices more."""
        return super().pending_bytes(2 * p, runs) + 2 * self.block_rows**2 * 8


@dataclass(frozen=True, kw_only=True)
class ComplexSymmetric(Symmetric):
    """``conj(A)`` of a Hermitian d x d matrix, for blocks of real columns (2 d x p), a row of chunks at a time."""

    @property
    def block_rows(self) -> int:
        return int(self.reader.shape[1])

    def partial(self, slabs: range, block: Block) -> Partial:
        return super().partial(slabs, beside_i(block))

    def finish(self, total: Partial, block: Block) -> Block:
        both, p = super().finish(total, block), block.shape[1]
        out = np.empty((2 * len(both), p))
        out[0::2] = both[:, :p]
        np.negative(both[:, p:], out=out[1::2])
        return out

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return super().task_bytes(2 * p, runs) + 2 * self.block_rows * p * 8

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the rows of the product that wait to be joined, and of what is made of them."""
        return super().pending_bytes(2 * p, runs) + self.block_rows * p * 8


def of_complex(source: Any, view: View | None, *, first: bool) -> Operator:
    """Return the operator on real vectors of twice as many entries; ``view``: of rows, None of a Hermitian matrix."""
    if view is None:
        return ComplexSymmetric(reader=source.reader)
    weight = 1.0 if source.traits.singular else 1.0 / view.weight_of_rows(source.shape[0])
    return ComplexGram(reader=source.reader, weight=weight, view=view)
