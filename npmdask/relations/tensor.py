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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npmdask.errors import BadInputError, RefusedError
from npmdask.linalg import Block
from npmdask.relations._protocol import MACHINE_EPS, Norm, Relation, positive, scaled_to_one, up

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
    """

    kinds: ClassVar[tuple[str, ...]] = ("tensor",)
    multiplicities: ClassVar[tuple[int, int, int]]  # of change, in a position of an orbit of 6, 3, 1

    change: float = 1.0
    scores: bool = False

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
        largest = self._largest(np.append(np.sort(np.abs(scaled[:, 0]))[::-1][:3], [0.0, 0.0])[:3])
        return up(math.ldexp(largest * (1 + ROUNDINGS * MACHINE_EPS), (3 if self.scores else 2) * exponent))

    def _largest(self, top: np.ndarray) -> float:
        """Over all orbits; ``top``: the three largest |u_i|, the largest first, 0 where there are fewer."""
        (x, y, z), (six, three, one) = (float(v) for v in top), self.changes
        if self.scores:
            return max(6 * six * x * y * z, 3 * three * x * x * y, one * x**3)
        distinct = 2 * six * math.sqrt((y * z) ** 2 + (x * z) ** 2 + (x * y) ** 2)
        pair = three * x * math.sqrt(x * x + 4 * y * y)  # with d = 1 no more than what follows
        return max(distinct, pair, one * x * x)

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
