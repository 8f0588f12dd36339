"""``A^T (A V)`` of sparse rows (CSR), without filling in a zero."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import BlockQuery, BySlabs, Partial, finite_partial
from npmdask.core.operators.gram_matrix import matrix_answering
from npmdask.core.operators.view import AS_STORED, View
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import CsrReader, Fragment, cut_numbers, cut_rows, whole_rows

SPARSE_ROWS = 2**16  # multiplied at once: bounds A @ block, whatever the length of the rows


@dataclass(frozen=True, kw_only=True)
class SparseGram(BySlabs):
    """``weight * A^T A``, A the ``view`` of a CSR matrix, without filling in a zero.

    Centring is exact algebra, ``(X - 1 mean^T)^T (X - 1 mean^T) = X^T X - m mean mean^T``, applied once a pass; of
    weighted rows with the weighted mean, and their whole weight in place of m.
    """

    reader: CsrReader
    weight: float = 1.0
    view: View = AS_STORED

    centred_by_algebra: ClassVar[bool] = True

    def asked(self, query: BlockQuery) -> Any:
        """The operator that answers ``query``: itself, all of the matrix, or products of rows with rows."""
        return matrix_answering(self, query) or super().asked(query)

    def partial(self, slabs: range, block: Block) -> Partial:
        record, block = ReadStats(), self.view.on_columns(block)
        product, fragments = np.zeros(block.shape), list[Fragment]()
        for at, piece in whole_rows(self.reader, slabs, record, fragments):
            product += _sparse_gram(self.view.weighted(piece, range(at, at + piece.shape[0])), block)
        return finite_partial({"product": product}, self.reader, slabs, record, fragments)

    def finish(self, total: Partial, block: Block) -> Block:
        seen, mean = self.view.on_columns(block), self.view.shift
        rows = self.view.weighted(cut_rows(self.reader, total.fragments), cut_numbers(total.fragments))
        product = total.sums["product"] + _sparse_gram(rows, seen)
        if mean is not None:
            weight = self.view.weight_of_rows(self.reader.shape[0])
            product = product - weight * np.outer(mean, mean @ seen).reshape(product.shape)
        return self.view.on_columns(product * self.weight)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        pointers = max(self.reader.pointer_bytes(slabs) for slabs in runs)
        copied = 0 if self.view.row_weight is None else 2 * 8 * min(self.reader.chunk, self.reader.entries)
        return self.reader.buffer_bytes + copied + pointers + SPARSE_ROWS * p * 8 + 4 * self.block_rows * p * 8


def row_strips(rows: csr_matrix, dtype: Any, height: int = SPARSE_ROWS) -> Iterator[csr_matrix]:
    """``rows`` in ``dtype``, ``height`` at a time and without the empty ones."""
    lengths = np.diff(rows.indptr)
    pointers = np.concatenate([[0], np.cumsum(lengths[lengths > 0])])
    for start in range(0, len(pointers) - 1, height):
        some = pointers[start : start + height + 1]
        inside = slice(some[0], some[-1])
        yield csr_matrix(
            (rows.data[inside].astype(dtype, copy=False), rows.indices[inside], some - some[0]),
            shape=(len(some) - 1, rows.shape[1]),
        )


def _sparse_gram(rows: csr_matrix, block: Block) -> Block:
    """``rows^T (rows block)``, some rows at a time: A block has a row for each."""
    product = np.zeros((rows.shape[1], block.shape[1]))
    for part in row_strips(rows, block.dtype):
        product += part.T @ (part @ block)
    return product
