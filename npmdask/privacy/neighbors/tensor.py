"""Relations of a symmetric tensor of order 3 that is given by its entries.

One entry of a symmetric tensor changes together with its permutations: its *orbit*. An orbit has six positions (three
different indices), three (two of them equal) or one (all equal), and moves ``T(I, u, u)`` by the vector

    i, j, k different    2 e (u_j u_k, u_i u_k, u_i u_j)    at rows i, j, k
    i = j                e (2 u_i u_k, u_i^2)               at rows i, k
    i = j = k            e u_i^2                            at row i

where e is what each of its positions changes by, and ``T(u, u, u)`` by 6 e u_i u_j u_k, 3 e u_i^2 u_k and e u_i^3.
Each norm grows with each |u_i|, and is largest for a given kind at the largest |u_i| (the largest one doubled): three
numbers decide, and the bound is attained. The positions of an orbit may also change unequally (a stored tensor that is
not quite symmetric, clipping): then e bounds each of them, and no term grows.

Wang and Anandkumar (2016, Definition 4.2) add ``change`` once for each of the 6 permutations, so that e is 1, 2 and 6
times ``change``: :class:`TensorEntry`, for which their factor 6 is exact (i = j = k) as long as ``clip_norm`` is at
least three times ``change``. :class:`TensorOrbit` lets every position change by at most ``change``: 2 sqrt(3).

Columns that are released together look at different orbits: the one that moves u_1 most hardly moves u_2. With s_l the
sensitivity at u_l, one orbit moves all columns by sum_l (moved_l / s_l)^2 <= L, and often far less (:meth:`together`):
with D_i = sum_l u_il^4 / s_l^2, M_ij = sum_l u_il^2 u_jl^2 / s_l^2 and B_i = max_j M_ij the three kinds give

    4 e^2 (M_ij + M_jk + M_ik) <= 4 e^2 (B_j + 2 B_k)  where B_i >= B_j >= B_k,    e^2 (D_i + 4 M_ik),    e^2 D_i

and of scores, with D_i = sum_l u_il^6 / s_l^2, at most (Hoelder) 36 e^2 cbrt(D_i D_j D_k), 9 e^2 cbrt(D_i^2 D_k) and
e^2 D_i, each largest at the largest D_i. For :class:`TensorEntry` it is the last that counts, and it is attained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from npmdask.errors import BadInputError, RefusedError
from npmdask.numerics.subspaces import Block
from npmdask.privacy.neighbors.base import MACHINE_EPS, Norm, Relation, positive, scaled_to_one, up

MATES_ROWS = 512  # of a product that is looked at at once
ROUNDINGS = 16  # more than any of the formulas below has, square root included


@dataclass(frozen=True, kw_only=True)
class TensorRelation(Relation):
    """What both have in common.

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
        positive(f"change of {self.name}", self.change)

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
        if image_norm is not None:
            raise BadInputError(f"images are clipped of records, and {self.name} has none")
        column = np.asarray(block, dtype=np.float64)
        if column.ndim != 2 or column.shape[1] != 1 or not column.size or not np.isfinite(column).all():
            raise BadInputError("the sensitivity of a contraction is that at one finite column (d x 1)")
        scaled, exponent = scaled_to_one(column)
        largest = self._largest(*three_largest(np.abs(scaled[:, 0])))
        moved = math.ldexp(largest * (1 + ROUNDINGS * MACHINE_EPS), self._power * exponent)
        return up(up(moved) * self.share)

    @property
    def _power(self) -> int:
        """Of u in what is released."""
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
        largest = self._together(np.einsum("ij,ij->i", powers, powers), powers)
        return min(float(columns), largest * (1 + (columns + 8 * ROUNDINGS) * MACHINE_EPS))

    def _together(self, sums: np.ndarray, powers: Block) -> float:
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
    """Of numbers that are not negative, the largest first; 0 where there are fewer."""
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
