"""What every neighbouring relation is, and norms of a block that are rounded up."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from npmdask.errors import BadInputError, closest
from npmdask.numerics.subspaces import Block

Norm = Literal["l2", "l1"]
MACHINE_EPS = sys.float_info.epsilon


@dataclass(frozen=True, kw_only=True)
class Relation(ABC):
    """What is common to all relations; ``clip_norm`` is public and never computed from the data."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    public_rows: ClassVar[bool] = True

    clip_norm: float

    def __post_init__(self) -> None:
        positive(f"clip_norm of {self.name}", self.clip_norm)

    @property
    @abstractmethod
    def unit(self) -> float:
        """How far one change moves the matrix, in the norm of the relation."""

    @abstractmethod
    def describe(self) -> str:
        """What is protected, in plain words, with the unit."""

    def sensitivity(
        self, block: Block, norm: Norm = "l2", *, rows: int | None = None, image_norm: float | None = None
    ) -> float:
        """The largest ||A X - A' X|| over neighbours A, A', rounded up (``block``: X, d x p, public).

        ``norm``: Frobenius norm (l2) or sum of absolute values (l1) of the d x p difference. ``rows``: rows of the
        product if they are not those of the block (a rectangular A); only the l1 sensitivity of dense changes needs it.
        ``image_norm``: what the images X^T a of records are clipped to, if they are.

        Raises
        ------
        BadInputError
            A block that is not finite or not d x p; an unknown norm.
        """
        if image_norm is not None:
            raise BadInputError(f"images are clipped of records, and {self.name} has none")
        block = np.asarray(block, dtype=np.float64)
        if block.ndim != 2 or not block.size or not np.isfinite(block).all():
            raise BadInputError("the sensitivity of a product needs a finite block of d rows and p columns")
        if norm not in ("l2", "l1"):
            raise BadInputError(f"unknown norm {norm!r}: {closest(str(norm), ['l2', 'l1'])}")
        scaled, exponent = scaled_to_one(block)
        largest = self._l2(scaled, exponent) if norm == "l2" else self._l1(scaled, rows or len(block), exponent)
        return up(math.ldexp(largest, exponent) * self.unit)

    @abstractmethod
    def _l2(self, block: Block, exponent: int) -> float: ...

    @abstractmethod
    def _l1(self, block: Block, rows: int, exponent: int) -> float: ...

    def spec(self) -> dict[str, Any]:
        """The public parameters: ``make_relation(**spec)`` gives the relation back."""
        return {"name": self.name, "clip_norm": float(self.clip_norm)}


def scaled_to_one(block: Block) -> tuple[Block, int]:
    """The block times 2^-exponent, so that squares of its entries neither vanish nor overflow, and the exponent."""
    exponent = max(math.frexp(float(np.abs(block).max()))[1], -1000)
    return np.ldexp(block, -exponent), exponent


def singular_values(block: Block) -> tuple[float, float]:
    """Upper bounds of the two largest singular values (0 if there is one), from the Gram matrix.

    Each entry of a computed Gram matrix is off by at most d machine_eps times the product of its columns' norms, so
    the matrix by at most d machine_eps trace in norm; an eigenvalue by no more (Weyl), and p machine_eps trace for
    the eigenvalue routine.
    """
    gram = block.T @ block
    off = (sum(block.shape) + 16) * MACHINE_EPS * float(np.trace(gram)) * (1 + 1e-6)
    values = np.append(np.linalg.eigvalsh(gram)[::-1], -off)  # ascending in LAPACK
    first, second = (math.sqrt(max(float(value) + off, 0.0)) * (1 + 4 * MACHINE_EPS) for value in values[:2])
    return first, second


def up(value: float) -> float:
    return value * (1 + 4 * MACHINE_EPS)


def positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating)) or not 0 < value < math.inf:
        raise BadInputError(f"{what} is {value!r}: give a positive number that was chosen without looking at the data")
    return float(value)
