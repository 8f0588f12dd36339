"""The small side: ``A A^T`` of few rows is formed in one pass, and a second one gives the right vectors.

Line by line::

    Input: A (m x d) with fewer rows than columns, k <= p, tolerance tol
    1. U random orthonormal (m x q), q = min(p, m), Q its first columns     RowGramKrylov.init
    2. K ~ A A^T, formed from the data, and Y = A (A^T Q), apart from it    query, of step 1
    3. The p + 1 leading eigenvalues of K, and its q leading vectors U      _left_vectors
    4. ||A A^T - K|| <= e, as Y shows, and lambda_i <= theta_i + e for all
       i <= p + 1 (Weyl): A^T A has the same eigenvalues, and zeros         GramKrylov.distance
    5. W = A^T U and Z = A W, from one reading                              query, of step 2
    6. W = V S H^T (QR and SVD): V the right vectors, U <- U H              _right_vectors
    7. With D = (Z H - U S^2) / S: A^T A V - V S^2 = A^T D but for rounding,
       so that ||A^T A v_i - s_i^2 v_i|| <= sqrt(lambda_1) ||d_i||          _right_vectors
    8. Where that is above tol: block Krylov from V                         BlockKrylov
    Output: the k leading pairs of A^T A

What squaring has lost is seen in line 7, where a small s_i is divided by: pairs far below the largest take line 8,
which multiplies them by A^T A itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from npmdask.algorithms.base import Info, Query, Question, Result
from npmdask.algorithms.gram import PROBES, GramKrylov, GramState, pairs_of_matrix
from npmdask.algorithms.krylov import BlockKrylov, KrylovState
from npmdask.errors import RefusedError
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block, orth, starting_block, tall_qr
from npmdask.theory.certificates.bounds import rounding_of

SYMMETRIC = 0.5 + 1.25**0.5  # E = E^T with (A + E) V = V Theta has at most so many times the norm of A V - V Theta


@dataclass(frozen=True, kw_only=True)
class RowGramState(GramState):
    """That of a matrix which is formed, and ``left``: q left vectors (m x q), random before the first pass."""

    left: Block


@dataclass(frozen=True, kw_only=True)
class RowGramKrylov(GramKrylov):
    """The leading pairs of ``A^T A`` from those of ``A A^T``, which is formed in one pass, without noise.

    Parameters
    ----------
    rows : m, the side of the matrix that is formed.
    """

    name: ClassVar[str] = "row-gram"
    pairs_of_formed: ClassVar[int] = 2

    rows: int

    @classmethod
    def make(cls, question: Question, options: Mapping[str, Any]) -> RowGramKrylov:
        """For a question about rows."""
        if question.random_columns:
            raise RefusedError('a run that starts from an earlier one cannot form A A^T: use "krylov"')
        return cls(
            target_rank=question.target_rank,
            iteration_rank=question.iteration_rank,
            tol=question.tol,
            rows=question.rows,
        )

    @property
    def usual_steps(self) -> int:
        """Passes that it mostly takes."""
        return 2

    @property
    def first_query(self) -> Query:
        """What the first pass is asked, without its block."""
        return Query(np.zeros((0, 0)), whole="float64", of_rows=True)

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> RowGramState:
        """Line 1."""
        held = super().init(d, rng=rng)
        known = {f.name: getattr(held, f.name) for f in fields(held)}
        return RowGramState(**known, left=starting_block(self.rows, min(self.iteration_rank, self.rows), rng))

    def query(self, state: KrylovState) -> Query:
        """Lines 2 and 5; later on line 2a of block Krylov."""
        assert isinstance(state, RowGramState)
        if state.step == 0:
            return self.first_query._replace(block=state.left[:, :PROBES])
        return Query(state.left, of_rows=True) if state.step == 1 else BlockKrylov.query(self, state)

    def update(self, state: KrylovState, released: Block) -> tuple[KrylovState, Info]:
        """Lines 3 and 4, then 6 and 7; later on lines 2b to 2d of block Krylov."""
        assert isinstance(state, RowGramState)
        if state.step == 0:
            return self._left_vectors(state, released)
        return self._right_vectors(state, released) if state.step == 1 else BlockKrylov.update(self, state, released)

    def _left_vectors(self, state: RowGramState, released: Block) -> tuple[KrylovState, Info]:
        """Of right vectors nothing is known yet but that no residual exceeds the largest eigenvalue."""
        k, p, m = self.target_rank, self.iteration_rank, self.rows
        matrix, image = released[:, :m], released[:, m:]
        values, vectors = pairs_of_matrix(matrix, min(p + 1, m))
        upper = np.append(values, np.zeros(p + 1 - len(values))) + self.distance(matrix, state.left, image)
        state = replace(state, upper=upper, left=np.ascontiguousarray(vectors[:, : state.left.shape[1]]))
        return self._found(state, state.block, np.maximum(values[:k], 0.0), np.full(k, upper[0]))

    def _right_vectors(self, state: RowGramState, released: Block) -> tuple[KrylovState, Info]:
        p, m, q = self.iteration_rank, self.rows, state.left.shape[1]
        right, image = released[:-m].copy(), released[-m:]
        right, turn = tall_qr(right)
        first, sizes, second = np.linalg.svd(turn)
        largest, floor = float(state.upper[0]), np.finfo(np.float64).tiny
        differs = np.linalg.norm(image @ second.T - (state.left @ second.T) * sizes**2, axis=0)
        differs += rounding_of(len(right), largest)  # of Z, and of W by what it is multiplied with
        with np.errstate(over="ignore"):
            norms = np.minimum(np.sqrt(largest) * differs / np.maximum(sizes, floor), largest)
        block = right @ first
        if q < p:  # the rows have no further direction: what is left is a null space
            rng = generator(0, "completion", state.step)
            block = orth(np.concatenate([block, rng.standard_normal((len(block), p - q))], axis=1), rng)
        return self._found(state, block, sizes**2, norms)

    def _found(
        self, state: RowGramState, block: Block, values: np.ndarray, norms: np.ndarray
    ) -> tuple[KrylovState, Info]:
        """The state after a step that found the leading columns of ``block``, with bounds of the norms of residuals.

        Pairs behind the k-th are kept as far as they are as good as the first k.
        """
        k = self.target_rank
        worse = np.flatnonzero(norms > norms[:k].max())
        count = int(worse[0]) if len(worse) else len(norms)
        basis, products = np.zeros_like(state.basis), np.zeros_like(state.products)
        basis[:, :count], products[:, :count] = block[:, :count], block[:, :count] * values[:count]
        after = replace(
            state,
            step=state.step + 1,
            block=block,
            basis=basis,
            products=products,
            ritz_values=values[:k],
            residual_norms=norms[:k],
            away=SYMMETRIC * float(np.linalg.norm(norms[:count])),
        )
        return after, Info(ritz_values=values[:k], residual_norms=norms[:k], asymmetry=0.0, precision="float64")

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> RowGramState:
        """The state of a checkpoint."""
        held: dict[str, Any] = {**arrays, **scalars}
        return RowGramState(**held)
