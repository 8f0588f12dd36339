"""Multiply with a matrix that is known by its products only: ``A^T (A V)``, or ``A V`` of a self-adjoint A."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.containers.matrix_free import PROBES
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.core.operators._protocol import Partial, finite_partial, require_finite
from npmdask.core.operators.gram import Gram, LeftProduct
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.errors import first_of


@dataclass(frozen=True, kw_only=True)
class MatrixFree(Gram):
    """The products of a :class:`~npmdask.containers.matrix_free.MatrixFreeReader`; a pass is one task."""

    reader: Any

    @staticmethod
    def takes(request: Any, source: Any) -> str:
        """Return why a question needs rows or entries; "" where products are enough."""
        asked = {
            **attributes(request, "center", "scale", "privacy", "operator"),
            "a share of the variance": isinstance(request.target_rank, float),
            f'algorithm = "{request.algorithm}"': request.algorithm in ("gram", "row-gram"),
            **{aspect.noun: True for aspect in request.aspects},
        }
        name = first_of(asked)
        where = source.path.partition(", ")[2]  # of what lies in memory
        why = f"{name} needs rows or entries, and {where} gives products only: leave it out, or give the matrix itself"
        return why if name else ""

    def partial(self, slabs: range, block: Block) -> Partial:
        record = ReadStats()
        return finite_partial({"product": self.reader.products(block, record)[1]}, self.reader, slabs, record)

    def left_product(self, target: Any, expected: np.ndarray | None) -> LeftProduct:
        """The pass that keeps ``A @ block``."""
        return _KeptProduct(reader=self.reader, target=target, expected=expected)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Return the bytes of inputs and outputs, with copies of both, and of the operator as measured."""
        return int((p + PROBES) * (self.reader.needs + 3 * 8 * sum(self.reader.shape)))


@dataclass(frozen=True, kw_only=True)
class _KeptProduct(LeftProduct):
    reader: Any

    def partial(self, slabs: range, block: Block) -> Partial:
        record = ReadStats()
        left, back = self.reader.products(block, record)
        sums = {"back": back, "gram": left.T @ left}
        require_finite(sums, self.reader, slabs)
        record.written[0] = crc32c(left)
        if self.expected is None or record.written[0] == int(self.expected[0]):
            self.target[...] = left
        return Partial(sums, record)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        return MatrixFree(reader=self.reader).task_bytes(p, runs)
