"""All of ``A`` in one pass, where d x d numbers fit into memory: its leading pairs follow without another.

Line by line::

    Input: symmetric, non-negative A (d x d), dimensions k <= p, tolerance tol
    1. X random orthonormal (d x p), Q its first r columns              GramKrylov.init
    2. G ~ A, formed from the data (in float32 or float64), and
       Y = A Q in float64, in the same pass                             GramKrylov.query
    3. The p + 1 leading eigenpairs of G; that they lead is checked     pairs_of_matrix
    4. ||A - G|| <= e: Q is independent of E = A - G, so that with
       probability 1 - delta it holds 1 / sqrt(1 + t^2) of the
       direction that E stretches most, and
       e = sqrt(1 + t^2) ||Y - G Q||                                    _distance
    5. ||A v_i - theta_i v_i|| <= ||G v_i - theta_i v_i|| + e, and
       lambda_i <= theta_i + e for all i <= p + 1 (Weyl): none missed   GramKrylov._update_from_matrix
    6. Where that is above tol: block Krylov from v_1, ..., v_p         BlockKrylov
    Output: the k leading pairs

The bound of line 4: Halko, Martinsson and Tropp, SIAM Review 53 (2011) 217, section 4.3, of an orthonormal Q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from npmdask.core.algorithms.base import Info, Query, Question, Result, Seen
from npmdask.core.algorithms.krylov import BlockKrylov, KrylovState
from npmdask.core.certificates.bounds import rounding_of, tangents
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, orth, starting_block, tall_qr
from npmdask.core.numerics.units import attributes
from npmdask.errors import BadInputError, NpmdaskError, closest

Pairs = Callable[[np.ndarray, int], tuple[np.ndarray, Block]]

PROBES = 16  # r: columns that are multiplied beside; each makes the bound tighter, and the pass longer
BLIND = 1e-3  # delta: of so many runs Q may hold less of that direction
SINGLE_TOL = 1e-7  # float32 reaches this at best: of a smaller tolerance it would be a pass for nothing
SINGLE_OFTEN = 1e-6  # this it reaches in about half of all problems
ORTHONORMAL = 1e-10  # what products of eigenvectors may be away from 0 and 1; LAPACK's are by 1e-14
SMALL = 512  # columns up to which all eigenvectors are had sooner than SciPy is loaded
SINGLE_COLUMNS = 512  # up to there float64 takes no longer than float32 and the pass that often mends it


@dataclass(frozen=True, kw_only=True)
class GramState(KrylovState):
    """That of block Krylov, and ``upper``: bounds of the p + 1 largest eigenvalues, inf before the first pass.

    ``away``: the bound e of what the pass formed.
    """

    upper: np.ndarray
    away: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GramKrylov(BlockKrylov):
    """The leading pairs of a non-negative matrix that is formed in one pass, without noise.

    Parameters
    ----------
    single : form it of float32 tiles.
    elsewhere : finds so many eigenpairs of a large matrix, on a GPU for example; None: LAPACK does, here.
    """

    name: ClassVar[str] = "gram"
    kept: ClassVar[type[KrylovState]] = GramState
    can_be_played: ClassVar[bool] = False
    pairs_of_formed: ClassVar[int] = 1  # steps whose pairs are those of a matrix next to A, and not of its products

    single: bool = False
    elsewhere: Pairs | None = field(default=None, compare=False, repr=False)

    @classmethod
    def make(cls, question: Question, options: Mapping[str, Any]) -> GramKrylov:
        """For a question; in float32 where the data are, many columns make float64 slow, and tol allows it."""
        asked = attributes(question, "target_rank", "iteration_rank", "tol")
        return cls(**asked, single=_in_float32(question, question.d))

    @property
    def usual_steps(self) -> int:
        """Passes that it mostly takes: float32 alone seldom reaches less than its own rounding over the values."""
        return 2 if self.single and self.tol < SINGLE_OFTEN else 1

    @property
    def first_query(self) -> Query:
        """Query of the first pass, without its block."""
        return Query(np.zeros((0, 0)), whole="float32" if self.single else "float64")

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> GramState:
        """Line 1."""
        return GramState(**vars(super().init(d, rng=rng)), upper=np.full(self.iteration_rank + 1, np.inf))

    def query(self, state: KrylovState) -> Query:
        """Line 2; later on line 2a of block Krylov."""
        if state.step:
            return super().query(state=state)
        return self.first_query._replace(block=state.block[:, :PROBES])

    def update(self, state: KrylovState, released: Block) -> tuple[KrylovState, Info]:
        """Lines 3 to 5; later on lines 2b to 2d of block Krylov."""
        return super().update(state, released) if state.step else self._update_from_matrix(state, released)

    def _update_from_matrix(self, state: KrylovState, released: Block) -> tuple[KrylovState, Info]:
        assert isinstance(state, GramState)
        d, k, p = len(state.block), self.target_rank, self.iteration_rank
        matrix, image = released[:, :d], released[:, d:]
        values, vectors = pairs_of_matrix(matrix, min(p + 1, d), self.elsewhere)
        away = self.distance(matrix, state.block, image)
        upper = np.append(values, np.zeros(p + 1 - len(values))) + away
        values, vectors = values[:p], vectors[:, :p]
        products = matrix @ vectors
        norms = np.linalg.norm(products - vectors * values, axis=0) + away
        basis, images = np.zeros_like(state.basis), np.zeros_like(state.products)
        basis[:, :p], images[:, :p] = vectors, products
        after = replace(
            state,
            step=1,
            block=vectors,
            basis=basis,
            products=images,
            ritz_values=values[:k],
            residual_norms=norms[:k],
            upper=upper,
            away=away,
        )
        return after, Info(ritz_values=values[:k], residual_norms=norms[:k], asymmetry=0.0, precision="float64")

    def distance(self, matrix: np.ndarray, block: Block, image: Block) -> float:
        """Line 4: what ||A - G|| does not exceed, from the ``image`` of the leading columns of ``block``."""
        return _distance(matrix, block[:, : image.shape[1]], image)

    def _ritz_history(self, state: KrylovState) -> Seen:
        """The pairs and the bounds of line 5; pairs of G are those of a matrix that is ``away`` from A."""
        assert isinstance(state, GramState)
        known = replace(super()._ritz_history(state), degree=None, left_out=0.0, upper=state.upper)
        return replace(known, away=state.away) if state.step <= self.pairs_of_formed else known


def _in_float32(question: Question, side: int) -> bool:
    """Say whether a matrix of this side is formed of float32."""
    return question.single and side > SINGLE_COLUMNS and question.tol >= SINGLE_TOL


@dataclass(frozen=True, kw_only=True)
class StoredGramPairs(GramKrylov):
    """The leading pairs of a matrix that was formed before and kept: line 3, and a bound of what was found then.

    Parameters
    ----------
    probed : columns that the probes of line 4 were drawn for.
    """

    probed: int

    def distance(self, matrix: np.ndarray, block: Block, image: Block) -> float:
        """Line 4, of ``image``: the columns Y - G Q, and what they do not show."""
        differs, slack = image[:, :-1], float(image[0, -1])
        tangent = float(tangents(self.probed, differs.shape[1], BLIND)[0])
        return float(np.linalg.norm(differs, 2)) * float(np.hypot(1.0, tangent)) + slack


def pairs_of_matrix(matrix: np.ndarray, count: int, elsewhere: Pairs | None = None) -> tuple[np.ndarray, Block]:
    """Line 3: so many eigenvalues, the largest first, and their vectors; of large matrices found ``elsewhere``.

    Raises
    ------
    NpmdaskError
        What the library of linear algebra answered are not the leading pairs.
    """
    d, where = len(matrix), "LAPACK"
    found: Iterable[tuple[np.ndarray, Block]]
    if d <= SMALL:
        values, vectors = np.linalg.eigh(matrix)
        found = [(values[: -count - 1 : -1], np.ascontiguousarray(vectors[:, : -count - 1 : -1]))]
    elif elsewhere is not None:
        found, where = [elsewhere(matrix, count)], "the GPU's library"
    else:
        from npmdask.core.numerics.large_pairs import large_pairs  # half a second of a short program

        found = large_pairs(matrix, count)
    for values, vectors in found:
        if are_leading(matrix, values, vectors):
            return values, vectors
    raise NpmdaskError(
        f"{where} found eigenvectors of a {d} x {d} matrix that are not the leading ones, so there is no answer: "
        'try algorithm = "krylov", device = "cpu", or other builds of NumPy and SciPy, and test the memory of this '
        "machine"
    )


def are_leading(matrix: np.ndarray, values: np.ndarray, vectors: Block) -> bool:
    """Say whether the ``vectors`` are orthonormal, and leave no eigenvalue above the last of ``values``.

    Residuals only show that they are eigenvectors of something. That ``s I - (G - V Theta V^T)`` has a Cholesky factor
    shows that G has no further eigenvalue above s, the last of ``values`` (or 0, if rounding made that negative): by a
    factorization that has nothing in common with the one that found the pairs, in a tenth of its time.
    """
    d, inner = len(matrix), vectors.T @ vectors
    if not np.abs(inner - np.eye(len(inner))).max(initial=0.0) <= ORTHONORMAL:
        return False
    scale = float(np.abs([*values, *np.diagonal(matrix)]).max())  # of constant data all may be below 0, by rounding
    if scale == 0:
        return not matrix.any()
    rest = (vectors * values) @ vectors.T
    rest -= matrix
    np.einsum("ii->i", rest)[:] += max(float(values[-1]), 0.0) + _rounding_of_pairs(d, scale)
    if d <= SMALL:
        try:
            np.linalg.cholesky(rest)
        except np.linalg.LinAlgError:
            return False
        return True
    from scipy.linalg.lapack import dpotrf

    return bool(dpotrf(rest.T, lower=1, overwrite_a=1, clean=0)[1] == 0)


def _rounding_of_pairs(d: int, scale: float) -> float:
    """Bound what rounding may hide of the eigenvalues that vectors leave to a d x d matrix of this size."""
    return (64 + 4 * d) * float(np.finfo(np.float64).eps) * scale


def _distance(matrix: np.ndarray, probes: Block, image: Block) -> float:
    """Line 4: what ||A - G|| does not exceed."""
    tangent = float(tangents(len(matrix), probes.shape[1], BLIND)[0])
    return float(np.linalg.norm(image - matrix @ probes, 2)) * float(np.hypot(1.0, tangent))


# The small side: ``A A^T`` of few rows is formed in one pass, and a second one gives the right vectors.
#
# Line by line::
#
#     Input: A (m x d) with fewer rows than columns, k <= p, tolerance tol
#     1. U random orthonormal (m x q), q = min(p, m), Q its first columns     RowGramKrylov.init
#     2. K ~ A A^T, formed from the data, and Y = A (A^T Q), apart from it    query, of step 1
#     3. The p + 1 leading eigenvalues of K, and its q leading vectors U      _left_vectors
#     4. ||A A^T - K|| <= e, as Y shows, and lambda_i <= theta_i + e for all
#        i <= p + 1 (Weyl): A^T A has the same eigenvalues, and zeros         GramKrylov.distance
#     5. W = A^T U and Z = A W, from one reading                              query, of step 2
#     6. W = V B (QR), Y = Z B^-1 = A V, Y = P T^(1/2) R^T (SVD); V <- V R
#        and Y <- Y R: V the right vectors, T their Ritz values               _right_vectors
#     7. With C = U^T Y, D = Y - U C: A^T A V - V T = (W C - V T) + A^T D,
#        so that ||A^T A v_i - t_i v_i|| <= ||W c_i - t_i v_i||
#        + sqrt(theta_{q+1} + e) ||d_i||, and what Z and W are rounded by     _right_vectors
#     8. Where that is above tol: block Krylov from V                         BlockKrylov
#     Output: the k leading pairs of A^T A
#
# What squaring has lost is seen in line 7, where a small s_i is divided by: pairs far below the largest take line 8,
# which multiplies them by A^T A itself. Column j of Z is rounded by at most c eps ||A|| ||w_j||, of W by c eps ||A||.

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
    parts : of a column of chunks, of which one with all its rows is in memory at a time: so many times each pass that
        multiplies rows with rows reads the data.
    """

    name: ClassVar[str] = "row-gram"
    kept: ClassVar[type[KrylovState]] = RowGramState
    pairs_of_formed: ClassVar[int] = 2

    rows: int
    parts: int = 1

    @classmethod
    def make(cls, question: Question, options: Mapping[str, Any]) -> RowGramKrylov:
        """For a question about rows, with its option ``parts``."""
        for name in options.keys() - {"parts"}:
            raise BadInputError(f"unknown option {name!r} of row-gram: {closest(name, ['parts'])}")
        parts = options.get("parts", 1)
        if not isinstance(parts, int) or isinstance(parts, bool) or parts < 1:
            raise BadInputError(f"parts = {parts!r} is not a whole number of at least 1: leave it out, memory decides")
        asked = attributes(question, "target_rank", "iteration_rank", "tol", "rows")
        return cls(**asked, single=_in_float32(question, question.rows), parts=parts)

    @property
    def usual_steps(self) -> int:
        """Passes that it mostly takes."""
        return 1 + super().usual_steps

    @property
    def first_query(self) -> Query:
        """Query of the first pass, without its block."""
        return super().first_query._replace(of_rows=self.parts)

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> RowGramState:
        """Line 1."""
        held = super().init(d, rng=rng)
        return RowGramState(**vars(held), left=starting_block(self.rows, min(self.iteration_rank, self.rows), rng))

    def query(self, state: KrylovState) -> Query:
        """Lines 2 and 5; later on line 2a of block Krylov."""
        assert isinstance(state, RowGramState)
        if state.step == 0:
            return self.first_query._replace(block=state.left[:, :PROBES])
        return Query(state.left, of_rows=self.parts) if state.step == 1 else BlockKrylov.query(self, state)

    def update(self, state: KrylovState, released: Block) -> tuple[KrylovState, Info]:
        """Lines 3 and 4, then 6 and 7; later on lines 2b to 2d of block Krylov."""
        assert isinstance(state, RowGramState)
        if state.step == 0:
            return self._left_vectors(state, released)
        if state.step == 1:
            return self._right_vectors(state, released)
        return BlockKrylov.update(self, self._with_room(state), released)

    def _with_room(self, state: RowGramState) -> RowGramState:
        """The state of line 8, which holds more than p vectors."""
        d, held = state.basis.shape
        more = ((0, 0), (0, min(self.basis_blocks * self.iteration_rank, d) - held))
        if not more[1][1]:
            return state
        return replace(state, basis=np.pad(state.basis, more), products=np.pad(state.products, more))

    def _left_vectors(self, state: RowGramState, released: Block) -> tuple[KrylovState, Info]:
        """Compute the left vectors.

        Of right vectors nothing is known yet but that no residual exceeds the largest eigenvalue.
        """
        k, p, m = self.target_rank, self.iteration_rank, self.rows
        matrix, image = released[:, :m], released[:, m:]
        values, vectors = pairs_of_matrix(matrix, min(p + 1, m))
        upper = np.append(values, np.zeros(p + 1 - len(values))) + self.distance(matrix, state.left, image)
        state = replace(state, upper=upper, left=np.ascontiguousarray(vectors[:, : state.left.shape[1]]))
        return self._state_of_pairs(state, state.block, np.maximum(values[:k], 0.0), np.full(k, upper[0]))

    def _right_vectors(self, state: RowGramState, released: Block) -> tuple[KrylovState, Info]:
        p, m, q = self.iteration_rank, self.rows, state.left.shape[1]
        right, image, left = released[:-m].copy(), released[-m:], state.left
        lengths, largest = np.linalg.norm(right, axis=0), float(state.upper[0])
        right, turn = tall_qr(right)
        steps = np.abs(np.diagonal(turn))
        weak = np.flatnonzero(steps <= m * np.finfo(np.float64).eps * steps.max())
        count = int(weak[0]) if len(weak) else q  # others may be in the null space
        back = np.linalg.inv(turn[:count, :count])
        seen = image[:, :count] @ back  # A times the orthonormal columns
        _, roots, turned = np.linalg.svd(seen, full_matrices=False)
        rotation, seen, theta = turned.T, seen @ turned.T, roots**2
        inside = left.T @ seen
        beyond = seen - left @ inside
        more = left.T @ beyond
        inside, beyond = inside + more, beyond - left @ more
        differs = turn @ inside
        differs[:count] -= rotation * theta
        following = float(state.upper[-1]) + _rounding_of_pairs(m, largest)
        rounding = np.sqrt(largest) * lengths[:count] @ np.abs(back) @ np.abs(rotation) + np.abs(inside).sum(axis=0)
        rounding *= rounding_of(len(right), np.sqrt(largest))
        bounds = np.linalg.norm(differs, axis=0) + np.sqrt(following) * np.linalg.norm(beyond, axis=0) + rounding
        norms, values, block = np.full(q, largest), steps**2, right
        norms[:count], values[:count] = np.minimum(bounds, largest), theta
        block[:, :count] = right[:, :count] @ rotation
        if q < p:  # the rows have no further direction: what is left is a null space
            rng = generator(0, "completion", state.step)
            block = orth(np.concatenate([block, rng.standard_normal((len(block), p - q))], axis=1), rng)
        return self._state_of_pairs(state, block, values, norms)

    def _state_of_pairs(
        self, state: RowGramState, block: Block, values: np.ndarray, norms: np.ndarray
    ) -> tuple[KrylovState, Info]:
        """The state after a step that found the leading columns of ``block``, with bounds of the norms of residuals.

        Pairs behind the k-th are kept as far as they are as good as the first k.
        """
        k = self.target_rank
        worse = np.flatnonzero(norms > norms[:k].max())
        count = int(worse[0]) if len(worse) else len(norms)
        basis, products = np.zeros((2, *block.shape))  # as wide as p: `_with_room` is for the passes that need more
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
