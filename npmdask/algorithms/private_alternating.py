"""The private power method for a matrix that is not symmetric: alternating products (Hardt and Price, Appendix B).

The dilation ``[[0, B], [B^T, 0]]`` of the paper has every singular value twice and lets one entry of B change two of
its own (ERR-3). Alternating products release the same information with half the columns::

    U_l = orth(A V_{l-1} + G),    V_l = orth(A^T U_l + G')        two releases a sweep
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npmdask.algorithms.base import Info, Query, Result
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block, fix_signs, orth, random_orthonormal


@dataclass(frozen=True, kw_only=True)
class AlternatingState:
    """The last orthonormal block of either side, and the last release that was made of the left one."""

    step: int
    left: Block  # U (m x p)
    right: Block  # V (d x p)
    product: Block  # A^T U + G' (d x p), once there is one


@dataclass(frozen=True, kw_only=True)
class PrivateAlternating:
    """The ``target_rank`` (k) leading singular triplets of A (m x d), from ``releases`` (even) noisy products.

    Notes
    -----
    Neighbours: of a matrix: entry, spectral_norm, frobenius_norm; all releases together keep the mechanism's budget.
    Guarantee: private for all data; without noise the power method on the dilation, from a start on one side.
    Needs: an even number of releases, p >= k; else BadInputError where the problem is posed.
    Cost: one pass of p columns a release, two releases a sweep; O((m + d) p) memory.
    """

    name: ClassVar[str] = "private-alternating"

    target_rank: int
    iteration_rank: int
    releases: int
    rows: int  # m

    mixed_precision: ClassVar[bool] = False

    @property
    def state_blocks(self) -> int:
        """Blocks of max(m, d) x p float64 held at once: U, V, Y, the work space of orth, a copy being written."""
        return 8

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> AlternatingState:
        """V_0, from the public seed alone. ``locked`` and ``start`` are refused before (problem)."""
        assert locked is None and start is None
        p = self.iteration_rank
        return AlternatingState(
            step=0, left=np.zeros((self.rows, p)), right=random_orthonormal(d, p, rng), product=np.zeros((d, p))
        )

    def query(self, state: AlternatingState) -> Query:
        """A V in the first, third, ... step; A^T U in the others."""
        return Query(state.left, transposed=True) if state.step % 2 else Query(state.right)

    def update(self, state: AlternatingState, released: Block) -> tuple[AlternatingState, Info]:
        """The other side's new block. The values are those of R: of what was released."""
        basis = orth(released, generator(0, "completion", state.step))
        values = np.linalg.svd(basis.T @ released, compute_uv=False)[: self.target_rank]
        info = Info(ritz_values=values, residual_norms=np.zeros(len(values)), asymmetry=0.0, precision="float64")
        left, right = (state.left, basis) if state.step % 2 else (basis, state.right)
        product = released if state.step % 2 else state.product
        return AlternatingState(step=state.step + 1, left=left, right=right, product=product), info

    def finalize(self, state: AlternatingState) -> Result:
        """Right vectors and values of the low-rank estimate ``U (A^T U + G')^T``; ``products``: its left vectors."""
        right, values, rotation = np.linalg.svd(state.product, full_matrices=False)
        k = self.target_rank
        signs = fix_signs(right[:, :k])
        return Result(
            values=values[:k],
            vectors=np.ascontiguousarray(right[:, :k] * signs),
            products=state.left @ rotation[:k].T * signs,
            residual_norms=np.zeros(k),
        )

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> AlternatingState:
        """The state of a checkpoint."""
        fields: dict[str, Any] = {**arrays, **scalars}
        return AlternatingState(**fields)
