"""Relations of a matrix that is given by its entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.subspaces import Block
from npmdask.privacy.neighbors.base import MACHINE_EPS, Relation, positive, singular_values


@dataclass(frozen=True, kw_only=True)
class MatrixRelation(Relation):
    """Relations of a matrix that is given by its entries; ``change`` is how much of it one neighbour may change."""

    change: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(f"change of {self.name}", self.change)

    @property
    def unit(self) -> float:
        return float(self.change)

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "change": float(self.change)}


@dataclass(frozen=True, kw_only=True)
class Entry(MatrixRelation):
    """One entry of a matrix without symmetry differs by at most ``change`` (Hardt and Price 2014, Definition 4.1).

    Parameters
    ----------
    clip_norm : every entry is clipped to [-clip_norm, clip_norm] before it is used. Clipping brings entries only
        closer together, and two clipped entries differ by at most 2 clip_norm: the smaller number counts.
    change : how much the entry may differ.
    coherence : optional public bound mu of d max |U_ij|^2 over the eigenvectors (1 to d). The noise is then
        never less than for a block whose entries are all 4 sqrt(mu ln(d) / d) (or whose rows have norm 1, if that
        is less), so its size does not depend on the iterates while they stay below this cap. Only then does
        Theorem 1.4 of the paper apply: its proof needs a size that is fixed in advance.
    """

    name: ClassVar[str] = "entry"
    kinds: ClassVar[tuple[str, ...]] = ("matrix",)
    entries: ClassVar[int] = 1

    coherence: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coherence is not None and not positive(f"coherence of {self.name}", self.coherence) >= 1:
            raise BadInputError(f"coherence = {self.coherence:g} is impossible: it lies between 1 and the dimension d")

    @property
    def unit(self) -> float:
        return float(min(self.change, 2 * self.clip_norm))

    def _l2(self, block: Block, exponent: int) -> float:
        d, p = block.shape
        cap = math.ldexp(min(1.0, math.sqrt(p) * self._entry_cap(d)), -exponent)
        squares = np.square(block).sum(axis=1)
        return math.sqrt(self._largest(squares, cap * cap)) * (1 + (p + 8) * MACHINE_EPS)

    def _l1(self, block: Block, rows: int, exponent: int) -> float:
        d, p = block.shape
        cap = math.ldexp(min(math.sqrt(p), p * self._entry_cap(d)), -exponent)
        return self._largest(np.abs(block).sum(axis=1), cap) * (1 + (p + 8) * MACHINE_EPS)

    def _largest(self, values: np.ndarray, cap: float) -> float:
        """Sum of the largest values, of as many rows as change, and not below that of rows at the cap."""
        rest = max(len(values) - self.entries, 0)
        changed = np.partition(values, rest)[rest:]
        return max(float(changed.sum()), cap * len(changed))

    def _entry_cap(self, d: int) -> float:
        """4 sqrt(mu ln(d) / d), the bound of all |X_ij| in the proof of Theorem 4.9; 0 without ``coherence``."""
        return 0.0 if self.coherence is None else 4 * math.sqrt(self.coherence * math.log(d) / d)

    def describe(self) -> str:
        return f"one entry of the matrix, changed by at most {self.unit:g}{self._capped()}"

    def _capped(self) -> str:
        return "" if self.coherence is None else f" (noise never below that of coherence {self.coherence:g})"

    def spec(self) -> dict[str, Any]:
        capped = {} if self.coherence is None else {"coherence": float(self.coherence)}
        return {**super().spec(), **capped}


@dataclass(frozen=True, kw_only=True)
class SymmetricEntry(Entry):
    """An entry of a symmetric matrix together with its mirror image, or one of the diagonal, by at most ``change``.

    The only way that one entry of a symmetric matrix can change. Parameters as of :class:`Entry`.
    """

    name: ClassVar[str] = "symmetric_entry"
    kinds: ClassVar[tuple[str, ...]] = ("symmetric",)
    entries: ClassVar[int] = 2

    def describe(self) -> str:
        return (
            "one entry of the symmetric matrix together with its mirror image, changed by at most "
            f"{self.unit:g}{self._capped()}"
        )


@dataclass(frozen=True, kw_only=True)
class SpectralNorm(MatrixRelation):
    """The difference has spectral norm at most ``change`` (Hardt and Price 2014, Definition 4.4).

    ``clip_norm`` is a public bound of all entries, and a promise: clipping entries can *increase* the spectral norm
    of a difference, so the guarantee holds for data whose entries are within the bound as they are.
    """

    name: ClassVar[str] = "spectral_norm"
    kinds: ClassVar[tuple[str, ...]] = ("symmetric", "matrix")

    def _l2(self, block: Block, exponent: int) -> float:
        return float(np.linalg.norm(block)) * (1 + (block.size + 8) * MACHINE_EPS)

    def _l1(self, block: Block, rows: int, exponent: int) -> float:
        return math.sqrt(rows * block.shape[1]) * self._l2(block, exponent)

    def describe(self) -> str:
        return (
            f"any change of the matrix of spectral norm at most {self.change:g}, provided that no entry exceeds "
            f"{self.clip_norm:g} (a promise of whoever provides the data)"
        )


@dataclass(frozen=True, kw_only=True)
class FrobeniusNorm(MatrixRelation):
    """The difference has Frobenius norm at most ``change``.

    Entries are clipped to [-clip_norm, clip_norm], which never increases the Frobenius norm of a difference.
    """

    name: ClassVar[str] = "frobenius_norm"
    kinds: ClassVar[tuple[str, ...]] = ("symmetric", "matrix")

    def _l2(self, block: Block, exponent: int) -> float:
        return singular_values(block)[0]

    def _l1(self, block: Block, rows: int, exponent: int) -> float:
        return math.sqrt(rows * block.shape[1]) * self._l2(block, exponent)

    def describe(self) -> str:
        return f"any change of the matrix of Frobenius norm at most {self.change:g}"
