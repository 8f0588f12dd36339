"""Relations of records: the rows of a data set of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from npmdask.linalg import Block
from npmdask.relations._protocol import MACHINE_EPS, Norm, Relation, positive, singular_values, up


@dataclass(frozen=True, kw_only=True)
class RecordRelation(Relation):
    """Relations of records a (rows), each scaled down to 2-norm ``clip_norm`` if it is longer; A = sum of a a^T.

    A is the sum, not the mean: where the number of records is private it may not even be divided by.
    """

    kinds: ClassVar[tuple[str, ...]] = ("samples", "sparse")
    changed: ClassVar[int] = 1  # records that differ between neighbours

    @property
    def unit(self) -> float:
        return up(float(self.clip_norm) ** 2)

    def sensitivity(
        self, block: Block, norm: Norm = "l2", *, rows: int | None = None, image_norm: float | None = None
    ) -> float:
        """As for every relation; less where images are clipped.

        A product with clipped images is the sum of s_a a a^T X with 0 <= s_a <= 1, so the bound without clipping holds;
        and a term is a z^T with |a| <= clip_norm and |z| <= image_norm, whose Frobenius norm is at most the product of
        the two, for each record that differs.
        """
        plain = super().sensitivity(block, norm, rows=rows)
        if image_norm is None:
            return plain
        each = self.clip_norm * positive("image_norm", image_norm) * (math.sqrt(block.size) if norm == "l1" else 1.0)
        return min(plain, up(up(each * self.changed)))

    def _l2(self, block: Block, exponent: int) -> float:
        return singular_values(block)[0]

    def _l1(self, block: Block, rows: int, exponent: int) -> float:
        return math.sqrt(block.size) * self._l2(block, exponent) * (1 + 4 * MACHINE_EPS)


@dataclass(frozen=True, kw_only=True)
class RecordAddRemove(RecordRelation):
    """One record is there or not. The number of records is private: it is not released and not divided by."""

    name: ClassVar[str] = "record_add_remove"
    public_rows: ClassVar[bool] = False

    def describe(self) -> str:
        return (
            f"one record of 2-norm at most {self.clip_norm:g}, there or not (the number of records stays private, "
            "longer records are scaled down)"
        )


@dataclass(frozen=True, kw_only=True)
class RecordReplace(RecordRelation):
    """One record is replaced by any other; the number of records is public."""

    name: ClassVar[str] = "record_replace"
    changed: ClassVar[int] = 2

    def _l2(self, block: Block, exponent: int) -> float:
        first, second = singular_values(block)
        return math.hypot(first, second) * (1 + 4 * MACHINE_EPS)

    def describe(self) -> str:
        return (
            f"one record of 2-norm at most {self.clip_norm:g}, replaced by any other (the number of records is public, "
            "longer records are scaled down)"
        )


@dataclass(frozen=True, kw_only=True)
class RecordZeroOut(RecordRelation):
    """One record is replaced by zeros; the number of records is public."""

    name: ClassVar[str] = "record_zero_out"

    def describe(self) -> str:
        return (
            f"one record of 2-norm at most {self.clip_norm:g}, replaced by zeros (the number of records is public, "
            "longer records are scaled down)"
        )
