"""Relations of records: the rows of a data set of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from npmdask.numerics.subspaces import Block
from npmdask.privacy.neighbors.base import MACHINE_EPS, Norm, Relation, positive, scaled_to_one, singular_values, up

LEAST_SHARE = 2.0**-400  # of clip_norm; less is counted as this, so that no square vanishes


@dataclass(frozen=True, kw_only=True)
class RecordRelation(Relation):
    """Relations of records a (rows), each scaled down to 2-norm ``clip_norm`` if it is longer; A = sum of a a^T.

    A is the sum, not the mean: where the number of records is private it may not even be divided by.
    """

    kinds: ClassVar[tuple[str, ...]] = ("samples", "sparse", "matrices")

    @property
    def unit(self) -> float:
        return up(float(self.clip_norm) ** 2)

    def sensitivity(
        self, block: Block, norm: Norm = "l2", *, rows: int | None = None, image_norm: float | None = None
    ) -> float:
        """As for every relation; less where images are clipped (docs/decisions/0023, where the bounds are proved).

        A product with clipped images is the sum of t a a^T X with 0 <= t <= 1, so the bound without clipping holds:
        sqrt(t) a is a record too. And a term is a z^T with |a| <= clip_norm and |z| <= image_norm.
        """
        plain = super().sensitivity(block, norm, rows=rows)
        if image_norm is None:
            return plain
        share = max(positive("image_norm", image_norm) / self.clip_norm, LEAST_SHARE)
        scaled, exponent = scaled_to_one(block)
        largest = singular_values(scaled)[0]
        if share >= math.ldexp(largest, exponent):
            return plain  # no image is longer
        moved = math.ldexp(self._clipped(math.ldexp(share, -exponent), largest), exponent)
        return min(plain, up(up(up(moved) * self.unit) * (math.sqrt(scaled.size) if norm == "l1" else 1.0)))

    def _clipped(self, share: float, largest: float) -> float:
        """How far one change moves A X: records of norm 1, images of norm ``share`` < ``largest``, and that of X."""
        return share

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

    def _l2(self, block: Block, exponent: int) -> float:
        first, second = singular_values(block)
        return math.hypot(first, second) * (1 + 4 * MACHINE_EPS)

    def _clipped(self, share: float, largest: float) -> float:
        """The two terms are at a right angle at best if their images fill X, and opposite if they are short."""
        square = (share / largest) ** 2
        return 2 * share * math.sqrt(1 - square) if square <= 1 / 3 else largest * (1 + square) / math.sqrt(2)

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
