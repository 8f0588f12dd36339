"""Neighbouring relations: who the neighbours of a data set are, and how far they move a product."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.errors import BadInputError, RefusedError, require, require_known

# What every neighbouring relation is, and norms of a block that are rounded up.


Norm = Literal["l2", "l1"]
MACHINE_EPS = sys.float_info.epsilon


@dataclass(frozen=True, kw_only=True)
class Relation(ABC):
    """Base of all relations; ``clip_norm`` is public and never computed from the data."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    public_rows: ClassVar[bool] = True

    clip_norm: float

    def __post_init__(self) -> None:
        require_positive(f"clip_norm of {self.name}", self.clip_norm)

    @property
    @abstractmethod
    def unit(self) -> float:
        """Distance that one change moves the matrix, in the norm of the relation."""

    @abstractmethod
    def describe(self) -> str:
        """Describe what is protected, in plain words, with the unit."""

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
        require(image_norm is None, f"only images of records can be clipped, and {self.name} has no records")
        block = np.asarray(block, dtype=np.float64)
        if block.ndim != 2 or not block.size or not np.isfinite(block).all():
            raise BadInputError("the sensitivity of a product needs a finite block of d rows and p columns")
        require_known(norm, ("l2", "l1"), "unknown norm")
        scaled, exponent = scaled_to_one(block)
        largest = self._l2(scaled, exponent) if norm == "l2" else self._l1(scaled, rows or len(block), exponent)
        return up(math.ldexp(largest, exponent) * self.unit)

    def of_matrix(self, d: int) -> float:
        """The largest ||A - A'||_F over neighbours of a symmetric A (d x d), rounded up: that of A X with X = I.

        A change of one record or entry meets two coordinates at most, so that two columns of I tell.
        """
        return self.sensitivity(np.eye(min(d, 2)))

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


def require_positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating)) or not 0 < value < math.inf:
        raise BadInputError(f"{what} is {value!r}: give a positive number that was chosen without looking at the data")
    return float(value)


# Relations of records: the rows of a data set of samples.


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
        share = max(require_positive("image_norm", image_norm) / self.clip_norm, LEAST_SHARE)
        scaled, exponent = scaled_to_one(block)
        largest = singular_values(scaled)[0]
        if share >= math.ldexp(largest, exponent):
            return plain  # no image is longer
        moved = math.ldexp(self._clipped(math.ldexp(share, -exponent), largest), exponent)
        return min(plain, up(up(up(moved) * self.unit) * (math.sqrt(scaled.size) if norm == "l1" else 1.0)))

    def _clipped(self, share: float, largest: float) -> float:
        """Bound how far one change moves A X: records of norm 1, images of norm ``share`` < ``largest``, that of X."""
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


# Relations of a matrix that is given by its entries.


@dataclass(frozen=True, kw_only=True)
class MatrixRelation(Relation):
    """Relations of a matrix that is given by its entries; ``change`` is how much of it one neighbour may change."""

    change: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(f"change of {self.name}", self.change)

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
        if self.coherence is not None and not require_positive(f"coherence of {self.name}", self.coherence) >= 1:
            raise BadInputError(
                f"coherence = {self.coherence:g} is impossible: it must be between 1 and the dimension d"
            )

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
        return f"one entry of the matrix, changed by at most {self.unit:g}{self._coherence_text()}"

    def _coherence_text(self) -> str:
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
            f"{self.unit:g}{self._coherence_text()}"
        )


@dataclass(frozen=True, kw_only=True)
class SpectralNorm(MatrixRelation):
    """The difference has spectral norm at most ``change`` (Hardt and Price 2014, Definition 4.4).

    ``clip_norm`` is a public bound of all entries, and a promise: clipping entries can *increase* the spectral norm
    of a difference, so the guarantee holds for data whose entries are within the bound as they are.
    """

    name: ClassVar[str] = "spectral_norm"
    kinds: ClassVar[tuple[str, ...]] = ("symmetric", "matrix")

    def of_matrix(self, d: int) -> float:
        """Up to sqrt(d) times the norm: every direction may change."""
        return up(up(math.sqrt(d)) * self.unit)

    def _l2(self, block: Block, exponent: int) -> float:
        return float(np.linalg.norm(block)) * (1 + (block.size + 8) * MACHINE_EPS)

    def _l1(self, block: Block, rows: int, exponent: int) -> float:
        return math.sqrt(rows * block.shape[1]) * self._l2(block, exponent)

    def describe(self) -> str:
        return (
            f"any change of the matrix of spectral norm at most {self.change:g}, provided that no entry exceeds "
            f"{self.clip_norm:g} (a promise of the provider of the data)"
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


# Relations of a symmetric tensor of order 3 that is given by its entries.
#
# One entry of a symmetric tensor changes together with its permutations: its *orbit*. An orbit has six positions (three
# different indices), three (two of them equal) or one (all equal), and moves ``T(I, u, u)`` by the vector
#
#     i, j, k different    2 e (u_j u_k, u_i u_k, u_i u_j)    at rows i, j, k
#     i = j                e (2 u_i u_k, u_i^2)               at rows i, k
#     i = j = k            e u_i^2                            at row i
#
# where e is what each of its positions changes by, and ``T(u, u, u)`` by 6 e u_i u_j u_k, 3 e u_i^2 u_k and e u_i^3.
# Each norm grows with each |u_i|, and is largest for a given kind at the largest |u_i| (the largest one doubled):
# three numbers decide, and the bound is attained. The positions of an orbit may also change unequally (a stored
# tensor that is not quite symmetric, clipping): then e bounds each of them, and no term grows.
#
# Wang and Anandkumar (2016, Definition 4.2) add ``change`` once for each of the 6 permutations, so that e is 1, 2 and 6
# times ``change``: :class:`TensorEntry`, for which their factor 6 is exact (i = j = k) as long as ``clip_norm`` is at
# least three times ``change``. :class:`TensorOrbit` lets every position change by at most ``change``: 2 sqrt(3).
#
# Columns that are released together look at different orbits: the one that moves u_1 most hardly moves u_2. With s_l
# the sensitivity at u_l, one orbit moves all columns by sum_l (moved_l / s_l)^2 <= L, and often far less
# (:meth:`together`): with D_i = sum_l u_il^4 / s_l^2, M_ij = sum_l u_il^2 u_jl^2 / s_l^2 and B_i = max_j M_ij the
# three kinds give
#
#     4 e^2 (M_ij + M_jk + M_ik) <= 4 e^2 (B_j + 2 B_k)  where B_i >= B_j >= B_k,    e^2 (D_i + 4 M_ik),    e^2 D_i
#
# and of scores, with D_i = sum_l u_il^6 / s_l^2, at most (Hoelder) 36 e^2 cbrt(D_i D_j D_k), 9 e^2 cbrt(D_i^2 D_k) and
# e^2 D_i, each largest at the largest D_i. For :class:`TensorEntry` it is the last that counts, and it is attained.


MATES_ROWS = 512  # of a product that is looked at at once
ROUNDINGS = 16  # more than any of the formulas below has, square root included


@dataclass(frozen=True, kw_only=True)
class TensorRelation(Relation):
    """Base of both relations of tensors.

    Parameters
    ----------
    clip_norm : every entry is clipped to [-clip_norm, clip_norm] before it is used. Clipping brings entries only
        closer together, and two clipped entries differ by at most 2 clip_norm: the smaller number counts.
    change : how much an entry may differ; see the relation for how often.
    scores : whether ``T(u, u, u)`` is released, and not ``T(I, u, u)``. No part of who is a neighbour of whom.
    share : of its sensitivity that a column counts with, where several are released together: sqrt(together / L).
    """

    kinds: ClassVar[tuple[str, ...]] = ("tensor",)
    multiplicities: ClassVar[tuple[int, int, int]]  # of change, in a position of an orbit of 6, 3, 1

    change: float = 1.0
    scores: bool = False
    share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(f"change of {self.name}", self.change)

    @property
    def unit(self) -> float:
        """By how much an entry with three different indices changes."""
        return self.changes[0]

    @property
    def changes(self) -> tuple[float, float, float]:
        """By how much a position of an orbit of 6, 3 and 1 positions changes, after clipping."""
        six, three, one = (min(m * float(self.change), 2 * float(self.clip_norm)) for m in self.multiplicities)
        return six, three, one

    def sensitivity(
        self, block: Block, norm: Norm = "l2", *, rows: int | None = None, image_norm: float | None = None
    ) -> float:
        """The largest 2-norm of the change of T(I, u, u), or of T(u, u, u), at one public u (d x 1), rounded up.

        Raises
        ------
        BadInputError
            A block that is not one finite column; ``image_norm``, which is of records.
        RefusedError
            The l1 norm: Laplace noise is not offered for tensors.
        """
        if norm != "l2":
            raise RefusedError(no_laplace())
        require(image_norm is None, f"only images of records can be clipped, and {self.name} has no records")
        column = np.asarray(block, dtype=np.float64)
        if column.ndim != 2 or column.shape[1] != 1 or not column.size or not np.isfinite(column).all():
            raise BadInputError("the sensitivity of a contraction is that at one finite column (d x 1)")
        scaled, exponent = scaled_to_one(column)
        largest = self._largest(*three_largest(np.abs(scaled[:, 0])))
        moved = math.ldexp(largest * (1 + ROUNDINGS * MACHINE_EPS), self._power * exponent)
        return up(up(moved) * self.share)

    @property
    def _power(self) -> int:
        """Power of u in what is released."""
        return 3 if self.scores else 2

    def _largest(self, x: float, y: float, z: float) -> float:
        """Over all orbits; x >= y >= z are the three largest |u_i|, 0 where there are fewer."""
        six, three, one = self.changes
        if self.scores:
            return max(6 * six * x * y * z, 3 * three * x * x * y, one * x**3)
        distinct = 2 * six * math.sqrt((y * z) ** 2 + (x * z) ** 2 + (x * y) ** 2)
        pair = three * x * math.sqrt(x * x + 4 * y * y)  # with d = 1 no more than what follows
        return max(distinct, pair, one * x * x)

    def together(self, block: Block) -> float:
        """The largest sum over the columns u_l (d x L) of (how far one orbit moves it / its sensitivity)^2, rounded up.

        Between 1 and L, and L if a column is zero.
        """
        top, columns = np.abs(np.asarray(block, dtype=np.float64)), block.shape[1]
        norms = top.max(axis=0)
        if not norms.all():
            return float(columns)
        scaled = top / norms
        moved = np.array([replace(self, share=1.0).sensitivity(scaled[:, [l]]) for l in range(columns)])  # noqa: E741
        powers = scaled**self._power / moved
        largest = self._joint_bound(np.einsum("ij,ij->i", powers, powers), powers)
        return min(float(columns), largest * (1 + (columns + 8 * ROUNDINGS) * MACHINE_EPS))

    def _joint_bound(self, sums: np.ndarray, powers: Block) -> float:
        """``sums``: D_i. ``powers``: of contractions u_i^2 / s (d x L)."""
        six, three, one = (e * e for e in self.changes)
        x, y, z = three_largest(sums)
        if self.scores:
            return max(36 * six * math.cbrt(x * y * z), 9 * three * math.cbrt(x * x * y), one * x)
        if one * x >= max(12 * six * x, 5 * three * x):  # M_ij <= sqrt(D_i D_j)
            return one * x
        mates = largest_mates(powers)
        _, second, third = three_largest(mates)
        return max(4 * six * (second + 2 * third), three * float((sums + 4 * mates).max()), one * x)

    def _l2(self, block: Block, exponent: int) -> float:
        return self.sensitivity(np.ldexp(block, exponent))

    def _l1(self, block: Block, rows: int, exponent: int) -> float:
        raise RefusedError(no_laplace())

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "change": float(self.change)}


@dataclass(frozen=True, kw_only=True)
class TensorEntry(TensorRelation):
    """``T' - T = +-change`` times the sum over all 6 permutations of e_i x e_j x e_k, multiplicities kept.

    An entry with three different indices differs by at most ``change``, one with two equal ones by twice, one of the
    diagonal by 6 times that (Wang and Anandkumar 2016, Definition 4.2).
    """

    name: ClassVar[str] = "tensor_entry"
    multiplicities: ClassVar[tuple[int, int, int]] = (1, 2, 6)

    def describe(self) -> str:
        six, three, one = self.changes
        return (
            f"one entry of the symmetric tensor with all its permutations, changed by at most {six:g} (two indices "
            f"equal: {three:g}; all equal: {one:g})"
        )


@dataclass(frozen=True, kw_only=True)
class TensorOrbit(TensorRelation):
    """Every position of one orbit differs by at most ``change``, also on the diagonal."""

    name: ClassVar[str] = "tensor_orbit"
    multiplicities: ClassVar[tuple[int, int, int]] = (1, 1, 1)

    def describe(self) -> str:
        return f"one entry of the symmetric tensor with all its permutations, each changed by at most {self.unit:g}"


def no_laplace() -> str:
    """Why pure epsilon is not offered for tensors."""
    return (
        "Laplace noise is not offered for tensors: an orbit moves three of d rows, and pure epsilon would pay with "
        "each of kL(R + 1) releases in full; give a delta and use mechanism = 'gaussian'"
    )


def three_largest(values: np.ndarray) -> tuple[float, float, float]:
    """Return the three largest of numbers that are not negative, the largest first; 0 where there are fewer."""
    first, second, third = (float(v) for v in np.append(np.sort(values)[::-1][:3], [0.0, 0.0])[:3])
    return first, second, third


def largest_mates(powers: Block) -> np.ndarray:
    """max over j != i of the inner product of rows i and j (d), a strip of rows at a time."""
    found = np.zeros(len(powers))
    for start in range(0, len(powers), MATES_ROWS):
        products = powers[start : start + MATES_ROWS] @ powers.T
        rows = np.arange(len(products))
        products[rows, start + rows] = 0.0
        found[start : start + MATES_ROWS] = products.max(axis=1)
    return found


# Neighbouring relations: what one person, or one entry, may change; the first thing to say about a private release.
#
# A relation fixes how far apart the products A X of two neighbouring data sets can be (its sensitivity), for the public
# block X of that very step. All formulas are attained: no smaller number is valid for all data.
#
# ==================  ====================================================  ==========================================
# relation            neighbours                                            2-norm sensitivity of A X
# ==================  ====================================================  ==========================================
# entry               one entry of A differs by c                           c max_j r_j
# symmetric_entry     A_ij and A_ji (or A_ii) of a symmetric A differ       c sqrt(sum of the two largest r_j^2)
# spectral_norm       the spectral norm of the difference is at most c      c ||X||_F
# frobenius_norm      the Frobenius norm of the difference is at most c     c ||X||_2
# record_add_remove   a record is there or not; A = sum of a a^T, |a| <= C  C^2 ||X||_2
# record_zero_out     a record is replaced by zeros; n is public            C^2 ||X||_2
# record_replace      a record is replaced by another; n is public          C^2 sqrt(s_1(X)^2 + s_2(X)^2)
# with ``image_norm`` B < C s_1(X), where s_1(X) = 1:
# record_add_remove   as above; images X^T a are clipped to norm B          C B
# record_zero_out     the same                                              C B
# record_replace      the same                                              2 B sqrt(C^2 - B^2) up to B = C / sqrt(3),
#                                                                           then (C^2 + B^2) / sqrt(2)
# of T(I, u, u), T of order 3 (TensorRelation; t: T_ijk and its permutations)
# tensor_entry        t differs by c (i = j: by 2 c; i = j = k: by 6 c)     6 c max u_i^2
# tensor_orbit        every position of t differs by at most c              at most 2 sqrt(3) c max u_i^2
# ==================  ====================================================  ==========================================
#
# r_j is the 2-norm of row j of X, s_i a singular value. X need not be orthonormal: its real norms are used, rounded
# up. Derivations: (C X)_i = c X_j for one entry; tr(C^2 X X^T) <= sum of |eigenvalues of C|^2 s_i(X)^2 (von Neumann)
# for the others, where the eigenvalues of a a^T - b b^T are two, of opposite sign, at most C^2; clipped images:
# docs/decisions/0023. The papers use sqrt(p) max |X_ij| for one entry, and the same for a symmetric pair, which is
# sqrt(2) too small in the worst case.


__all__ = [
    "REGISTRY",
    "TENSORS",
    "Entry",
    "FrobeniusNorm",
    "Norm",
    "RecordAddRemove",
    "RecordReplace",
    "RecordZeroOut",
    "Relation",
    "SpectralNorm",
    "SymmetricEntry",
    "TensorEntry",
    "TensorOrbit",
    "TensorRelation",
    "make_relation",
    "protected",
]

REGISTRY: dict[str, type[Relation]] = {
    relation.name: relation
    for relation in (Entry, SymmetricEntry, SpectralNorm, FrobeniusNorm, RecordAddRemove, RecordReplace, RecordZeroOut)
}
TENSORS: dict[str, type[TensorRelation]] = {relation.name: relation for relation in (TensorEntry, TensorOrbit)}


def make_relation(
    name: str | None, *, clip_norm: float | None = None, change: float = 1.0, coherence: float | None = None
) -> Relation:
    """The relation ``name``; nothing about privacy has a default that could be wrong.

    Raises
    ------
    BadInputError
        No relation, an unknown one, no ``clip_norm``, numbers that are not positive, or parameters of others.
    """
    known = {**REGISTRY, **TENSORS}
    if name is None:
        raise BadInputError(
            f"say what is protected: neighboring_relation is one of {', '.join(known)}; it has no default, because "
            "the noise depends on it"
        )
    require_known(name, known, "unknown neighboring_relation")
    if clip_norm is None:
        raise BadInputError(
            f"{name} needs a clip_norm: a public bound (of the norm of a record, or of every entry), chosen without "
            "looking at the data"
        )
    kind, parameters = known[name], {"clip_norm": clip_norm}
    if issubclass(kind, MatrixRelation | TensorRelation):
        parameters["change"] = change
    elif change != 1.0:
        raise BadInputError(
            f"change = {change} applies only to matrices and tensors; a record of {name} changes as far as clip_norm "
            "allows: leave change out"
        )
    if coherence is not None:
        if not issubclass(kind, Entry):
            raise BadInputError(f"coherence applies only to entry and symmetric_entry, not to {name}: leave it out")
        parameters["coherence"] = coherence
    return kind(**parameters)


def protected(relation: str, shape: tuple[int, ...]) -> int | None:
    """Count the records, or the entries of a matrix or tensor, of which the relation protects one, by ``shape``.

    Return None for a relation of a norm, which counts nothing.
    """
    rows, columns = shape[:2]
    pairs = rows * (rows + 1) // 2
    orbits = dict.fromkeys(TENSORS, pairs * (rows + 2) // 3)
    if relation.endswith("_norm"):
        return None
    return {"entry": rows * columns, "symmetric_entry": pairs, **orbits}.get(relation, rows)
