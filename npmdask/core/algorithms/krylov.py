"""Restarted block Krylov: the power method with a memory of its last few products. For runs without noise.

The power method forgets every product but the last. Here Rayleigh-Ritz looks for the eigenvectors in the span of the
start and all products, for which log(d) / sqrt(gap) steps do what takes the power method log(d) / gap (Musco and Musco
2015). What no longer fits into the memory is given up by the locally optimal rule of LOBPCG and GD+k. Line by line::

    Input: symmetric A (d x d), dimensions k <= p, number of blocks b >= 2
    1. X_1 random orthonormal (d x p), V empty                            BlockKrylov.init
    2. For l = 1, 2, ...
       (a) Y = A X_l; A V is known                                        BlockKrylov.query
           of float32 data in float32 at first: the X_l that was          _Span.straightened
           multiplied is made orthonormal with its product (Cholesky QR:
           Stathopoulos and Wu 2002), and when float32 has done what it
           can, the p leading Ritz vectors are multiplied in float64      BlockKrylov._renew
       (b) Rayleigh-Ritz on span[V, X_l] (Musco and Musco 2015)           _ritz
       (c) V <- all Ritz vectors; when these are more than b p:           BlockKrylov._restart
           the (b - 1) p leading ones (thick restart: Wu and Simon 2000),
           and the p leading ones of the step before ("+k": Stathopoulos
           and Saad 1998, Stathopoulos 2007; P of Knyazev 2001)           _previous
       (d) X_{l+1} <- residuals of the p leading open pairs, without V    BlockKrylov._expand
           (block Lanczos until the first restart, then block GD+k;
           for b = 2 it is span[X, W, P] of LOBPCG, Knyazev 2001)
           a warm start: of the p - r leading ones, and r random columns
           that are multiplied in every step, whatever V gives up        BlockKrylov._advance_chain
    Output: the k leading Ritz pairs                                      BlockKrylov.finalize

Knyazev, SIAM J. Sci. Comput. 23 (2001) 517. Musco and Musco, NIPS 2015. Stathopoulos, SIAM J. Sci. Comput. 29 (2007)
481. Stathopoulos and Saad, Electron. Trans. Numer. Anal. 7 (1998) 163. Stathopoulos and Wu, SIAM J. Sci. Comput. 23
(2002) 2165. Wu and Simon, SIAM J. Matrix Anal. Appl. 22 (2000) 602. The loop over l is the driver's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from npmdask.core.algorithms.base import Info, Query, Question, Result, Seen, empty_growth, missed, scaled, started
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, asymmetry, fix_signs, orth, rayleigh_ritz_seen, starting_block
from npmdask.core.numerics.units import attributes
from npmdask.errors import BadInputError, RefusedError, closest, require

SINGLE_EPS = float(np.finfo(np.float32).eps)
FLOOR = 16  # residuals in float32 arithmetic cannot be trusted below so many times its eps (times the largest value)
PATIENCE = 2  # float32 steps without progress: Ritz values change places, so that one such step means nothing
READY = 0.8  # of the tolerance: residuals in float32 that float64 mostly finds to be small enough
NOISE = 2.0  # times what products are seen to be off in float32: it makes residuals no smaller
CLOSED = 0.1  # of the tolerance: a pair with such a residual asks for no new direction
SETTLED = 0.05  # relative residual of pairs that the random columns of a warm start need no more hold
ROWS = 4096  # at a time, in products that must not copy a whole basis


@dataclass(frozen=True, kw_only=True)
class KrylovState:
    """V and A V (d x b p, of which ``held`` columns count), the block X whose product is asked for next.

    The leading j + k columns of V are the Ritz vectors of the step that made it (j: locked, see ``init``).
    ``chain`` (d x r): random columns of a warm start, multiplied as often as there were steps, without what these
    vectors hold of them; their ``growth`` and what they ``missed``: see npmdask.core.algorithms.base.
    """

    step: int
    fine: bool  # the next product is formed in float64 (always, unless it is early in a run of mixed precision)
    held: int  # 0 at the start, and where float32 ends: then V is what was found, but not what is built upon
    reached: float  # how near float32 came to its floor (1: there), and for how many steps it came no nearer
    stalled: int
    block: Block
    basis: Block
    products: Block
    ritz_values: np.ndarray
    residual_norms: np.ndarray
    locked_vectors: Block
    locked_products: Block
    chain: Block
    growth: np.ndarray
    log_growth: float = 0.0
    missed: float = 0.0

    @property
    def ritz_vectors(self) -> Block:
        return self.basis[:, : len(self.ritz_values)]


@dataclass(frozen=True, kw_only=True)
class MixedState(KrylovState):
    """State of a run that begins in float32.

    ``renewed``: its steps until it went on from p Ritz vectors in float64, or 0.
    """

    renewed: int = 0


@dataclass(frozen=True, kw_only=True)
class BlockKrylov:
    """Restarted block Krylov for the ``target_rank`` (k) eigenvectors of largest absolute eigenvalue, without noise.

    Parameters
    ----------
    target_rank : k, how many vectors are wanted.
    iteration_rank : p >= k, columns multiplied in a pass.
    basis_blocks : b >= 2, how many d x p blocks of vectors are kept from step to step (and as many products).
    mixed_precision : multiply in float32 at first, and change to float64, for good, when float32 has done what it can.
        No product of float32 survives the change.
    tol : the tolerance of the stopping rule; pairs well below it no longer ask for new directions.
    random_columns : r, of the p columns of a warm start those that are random; 0 without one.
    """

    name: ClassVar[str] = "krylov"
    kept: ClassVar[type[KrylovState]] = KrylovState  # of a checkpoint
    residuals_decrease: ClassVar[bool] = True
    can_be_played: ClassVar[bool] = True

    target_rank: int
    iteration_rank: int
    basis_blocks: int = 3
    mixed_precision: bool = False
    tol: float = 1e-8
    random_columns: int = 0

    def __post_init__(self) -> None:
        if self.basis_blocks < 2:
            raise BadInputError(f"basis_blocks = {self.basis_blocks} is too small; use at least 2 (3 is the default)")

    @classmethod
    def make(cls, question: Question, options: Mapping[str, Any]) -> BlockKrylov:
        """Block Krylov for a question, with its ``options`` ``basis_blocks`` and ``precision`` ("float64" or "mixed").

        Left out they are what they were before there were any, so that runs of then go on as they began.
        """
        for name in options.keys() - {"basis_blocks", "precision"}:
            raise BadInputError(f"unknown option {name!r} of krylov: {closest(name, ['basis_blocks', 'precision'])}")
        blocks, precision = options.get("basis_blocks", cls.basis_blocks), options.get("precision", "float64")
        if not isinstance(blocks, int) or isinstance(blocks, bool):
            raise BadInputError(f"basis_blocks = {blocks!r} is not a whole number; use 8, or 3 for less memory")
        require(precision in ("float64", "mixed"), f'precision = {precision!r} is not known; use "mixed" or "float64"')
        if precision == "mixed" and not question.rounded:
            raise RefusedError(
                'precision = "mixed" is only for dense samples and matrices in float32, without noise, weights of '
                'rows, deflation or an earlier run to start from: use "float64"'
            )
        return cls(
            **attributes(question, "target_rank", "iteration_rank", "tol", "random_columns"),
            basis_blocks=blocks,
            mixed_precision=precision == "mixed",
        )

    @staticmethod
    def start_block(arrays: Mapping[str, np.ndarray]) -> Block:
        """The Ritz vectors, in order: the unused columns of their basis are zero."""
        return arrays["basis"][:, arrays["basis"].any(axis=0)]

    @property
    def state_blocks(self) -> int:
        """d x p blocks of float64 held at once: V and A V, old and new; X, old and new; Y; residuals; QR work space.

        Of a warm start besides the random columns, old and new, their image and their residuals. In float32 what was
        multiplied, as it was returned and orthonormal.
        """
        return 4 * self.basis_blocks + 9 + 4 * (self.random_columns > 0) + 3 * self.mixed_precision

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> KrylovState:
        """Line 1, or begun by ``start``. Locked vectors U (deflation) are the first columns of V.

        What is new is orthogonal to them, so they are improved like all others. Their own copy is for the change of
        precision, which drops V.
        """
        none = np.zeros((d, 0))
        vectors, products = (locked.vectors, locked.products) if locked else (none, none)
        j, against = vectors.shape[1], vectors if locked else None
        chain: Block = none
        growth, log_growth = empty_growth(), 0.0
        if start is not None and self.random_columns:
            block, (growth, log_growth) = started(start, self.iteration_rank, self.random_columns, rng, against)
            chain = block[:, -self.random_columns :].copy()
        else:
            block = starting_block(d, self.iteration_rank, rng, against=against, start=start)
        room = min(self.basis_blocks * self.iteration_rank + j, d)
        kind = MixedState if self.mixed_precision else KrylovState
        return kind(
            step=0,
            fine=not self.mixed_precision,
            held=0,
            reached=0.0,
            stalled=0,
            block=block,
            basis=np.zeros((d, room)),
            products=np.zeros((d, room)),
            ritz_values=np.zeros(self.target_rank + j),
            residual_norms=np.full(self.target_rank + j, np.inf),
            locked_vectors=vectors,
            locked_products=products,
            chain=chain,
            growth=growth,
            log_growth=log_growth,
        )

    def query(self, state: KrylovState) -> Query:
        """Line 2a: A X, one pass. Columns that are zero: no direction is left (d columns are kept)."""
        return Query(state.block, rounded=not state.fine)

    def update(self, state: KrylovState, released: Block) -> tuple[KrylovState, Info]:
        """Lines 2b to 2d. No product is asked for: A V is turned as V is."""
        span = _Span.of(state, released)
        image = span.image(state.chain)
        kept = self._restart(state, span)
        chained = self._advance_chain(state, kept, image, whole=span.width == len(state.block))
        info = replace(_info(state, span, kept), missed=chained.missed)
        reached, stalled = self._progress(state, info, kept.noise)
        fine = state.fine or reached >= 1 or stalled >= PATIENCE  # float32 has done what it can
        renewed = fine and not state.fine
        more: dict[str, Any] = {"renewed": state.step + 1} if renewed else {}
        after = replace(
            state,
            step=state.step + 1,
            fine=fine,
            held=0 if renewed else kept.held,
            reached=reached,
            stalled=stalled,
            block=self._renew(state, kept, chained.chain) if renewed else self._expand(state, kept, chained.chain),
            **attributes(kept, "basis", "products"),
            **attributes(info, "ritz_values", "residual_norms"),
            **chained._asdict(),
            **more,
        )
        return after, info

    def _advance_chain(self, state: KrylovState, kept: _RestartSpace, image: Block, *, whole: bool) -> _ChainState:
        """The random columns of a warm start, multiplied once more, and what they show; without one nothing.

        ``whole``: the span is all there is, and nothing is missed.
        """
        if not self.random_columns or not state.chain.shape[1]:
            return _ChainState(state.chain, state.growth, state.log_growth, state.missed)
        k, growth = len(state.ritz_values), (state.growth, state.log_growth)
        vectors, products = kept.basis[:, :k], kept.products[:, :k]
        bound = 0.0 if whole else missed(state.chain, image, vectors, products, growth, state.step)
        settled = vectors[:, kept.residual_norms[:k] <= SETTLED * np.abs(kept.theta[:k])]
        image -= settled @ (settled.T @ image)
        chain = orth(image, generator(0, "chain", state.step), against=settled)
        return _ChainState(chain, *scaled((chain.T @ image) @ state.growth, state.log_growth), bound)

    def _restart(self, state: KrylovState, span: _Span) -> _RestartSpace:
        """Lines 2b and 2c: all Ritz vectors while they fit; then the leading ones and those of the step before."""
        projected = span.projected()
        theta, rotation = _ritz(projected)
        noise = np.zeros(len(theta)) if state.fine else _noise(projected, rotation)
        room = state.basis.shape[1]
        held = min(len(theta), room)
        lead = held if len(theta) <= room else room - self.iteration_rank
        basis, products = np.zeros_like(state.basis), np.zeros_like(state.products)
        span.turn(rotation[:, :lead], basis[:, :lead], products[:, :lead])
        theta = theta[:lead]
        norms = _residual_norms(basis, products, theta)
        closed = norms <= CLOSED * self.tol * np.abs(theta)
        asking = np.argsort(closed, kind="stable")[: self.iteration_rank]
        if lead < held:
            span.turn(_previous(rotation[:, :lead], asking), basis[:, lead:held], products[:, lead:held])
        return _RestartSpace(basis, products, held, theta, norms, asking, closed[asking], noise[:lead])

    def _expand(self, state: KrylovState, kept: _RestartSpace, chain: Block) -> Block:
        """Line 2d: orthonormal residuals, orthogonal to V. Closed pairs give way to random directions.

        The random columns of a warm start come last, and before residuals where there is no room for all.
        """
        block = np.zeros_like(state.block)
        fresh = min(block.shape[1], len(block) - kept.held)
        if fresh:
            chain = chain[:, :fresh]
            most = fresh - chain.shape[1]
            asking = kept.asking[:most]
            residuals = kept.products[:, asking] - kept.basis[:, asking] * kept.theta[asking]
            residuals[:, kept.closed[:most]] = 0.0
            known = kept.basis[:, : kept.held]
            columns = np.concatenate([residuals, chain], axis=1) if chain.shape[1] else residuals
            block[:, :fresh] = orth(columns, generator(0, "completion", state.step), against=known)
        return block

    def _renew(self, state: KrylovState, kept: _RestartSpace, chain: Block) -> Block:
        """The change to float64: multiply the Ritz vectors themselves again, all but what lies in U."""
        locked, p = state.locked_vectors, self.iteration_rank - chain.shape[1]
        found = kept.basis[:, : p + locked.shape[1]]
        inside = np.linalg.norm(locked.T @ found, axis=0)
        outside = np.sort(np.argsort(inside, kind="stable")[:p])
        columns = np.concatenate([found[:, outside], chain], axis=1)
        return orth(columns, generator(0, "completion", state.step), against=locked)

    def _progress(self, state: KrylovState, info: Info, noise: np.ndarray) -> tuple[float, int]:
        """Measure how near residuals are to what float32 can reach (1: there), and how long they came no nearer."""
        size = np.abs(info.ritz_values)
        target = np.maximum(10 * self.tol * size, FLOOR * SINGLE_EPS * size.max(initial=0.0))
        if self.mixed_precision:
            target = np.maximum(READY * self.tol * size, NOISE * noise[: len(size)])
        far = info.residual_norms > target
        reached = float((target[far] / info.residual_norms[far]).min(initial=1.0))
        return (reached, 0) if reached > 1.02 * state.reached else (state.reached, state.stalled + 1)

    def finalize(self, state: KrylovState) -> Result:
        """The leading pairs, with the largest entry of each vector positive."""
        signs = fix_signs(state.ritz_vectors)
        return Result(
            values=state.ritz_values,
            vectors=state.ritz_vectors * signs,
            products=state.products[:, : len(signs)] * signs,
            residual_norms=state.residual_norms,
            seen=self._ritz_history(state),
        )

    def _ritz_history(self, state: KrylovState) -> Seen:
        """Leading pairs of what is held. No Ritz value falls at a restart; until the first the space is Krylov's own.

        After one the last p columns (line 2c, "+k") belong to no pair that was wanted: they say nothing of the rest.
        Nor do pairs beyond the p-th where float64 went on from p Ritz vectors: of a value that comes several times
        these hold a few, and no later product has a part of the others.
        """
        d, room = state.basis.shape
        renewed = state.renewed if isinstance(state, MixedState) else 0
        restarted = room < d and state.step > self.basis_blocks
        count = state.held or int(np.count_nonzero(state.basis.any(axis=0)))
        count = min(count, room - self.iteration_rank) if restarted else count
        held = rayleigh_ritz_seen(state.basis[:, :count], state.products[:, :count], len(state.ritz_values))[1]
        order = _order_as_found(held.values, state.ritz_values)
        values, gram = held.values[order], held.gram[np.ix_(order, order)]
        if renewed:
            lead = self.iteration_rank + state.locked_vectors.shape[1]
            values, gram = values[:lead], gram[:lead, :lead]
        if self.random_columns:
            return Seen(values=values, gram=gram, missed=state.missed)
        degree = min((renewed or state.step) - 1, self.basis_blocks)
        left_out = degree * self.iteration_rank**0.5 * CLOSED * self.tol * float(np.abs(values).max(initial=0.0))
        return Seen(values=values, gram=gram, degree=degree, left_out=left_out)

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> KrylovState:
        """The state of a checkpoint."""
        none = {"chain": np.zeros((len(arrays["block"]), 0)), "growth": np.zeros((0, 0))}
        fields: dict[str, Any] = {**none, **arrays, **scalars}
        return (MixedState if self.mixed_precision else self.kept)(**fields)


def _order_as_found(values: np.ndarray, found: np.ndarray) -> list[int]:
    """Numbers of ``values``, those of ``found`` first: of t and -t rounding alone says which is the larger."""
    rest = list(range(len(values)))
    lead = [rest.pop(next((i for i, j in enumerate(rest) if (values[j] < 0) == (t < 0)), 0)) for t in found]
    return lead + rest


class _RestartSpace(NamedTuple):
    """Parts that a step keeps: V and A V, leading Ritz values and residuals, the pairs that ask for new directions."""

    basis: Block
    products: Block
    held: int
    theta: np.ndarray
    residual_norms: np.ndarray
    asking: np.ndarray
    closed: np.ndarray  # of those that ask: it has nothing to ask for
    noise: np.ndarray  # what float32 is seen to be off in each pair; 0 in float64


class _ChainState(NamedTuple):
    """The random columns of a warm start after a step: fields of the state."""

    chain: Block
    growth: np.ndarray
    log_growth: float
    missed: float


class _Span(NamedTuple):
    """span[V, X] (d x m, orthonormal) and its products, never copied into one array."""

    basis: Block
    products: Block
    block: Block
    product: Block
    exact: bool = True  # products of float64

    @classmethod
    def of(cls, state: KrylovState, released: Block) -> _Span:
        held = state.held
        basis = state.basis[:, :held] if held else state.locked_vectors
        products = state.products[:, :held] if held else state.locked_products
        p = state.block.shape[1]
        fresh = min(p, len(basis) - basis.shape[1])
        product = np.asarray(released[:, :fresh], dtype=np.float64)
        if state.fine:
            return cls(basis, products, state.block[:, :fresh], product)
        return cls(basis, products, released[:, p : p + fresh], product).straightened()

    def straightened(self) -> _Span:
        """The same space and products with X orthonormal, of an X that is so but for its rounding to float32."""
        inside = self.basis.T @ self.block
        block, product = self.block - self.basis @ inside, self.product - self.products @ inside
        turn = np.linalg.inv(np.linalg.cholesky(block.T @ block)).T
        return self._replace(block=block @ turn, product=product @ turn, exact=False)

    def projected(self) -> np.ndarray:
        """[V, X]^T A [V, X] as the products have it: of float32, not symmetric to the last digits."""
        across = self.basis.T @ self.product
        below = across.T if self.exact else self.block.T @ self.products
        return np.block([[self.basis.T @ self.products, across], [below, self.block.T @ self.product]])

    @property
    def width(self) -> int:
        """Columns of V and X."""
        return self.basis.shape[1] + self.block.shape[1]

    def image(self, chain: Block) -> Block:
        """A ``chain``, of columns that lie in the span: no product is asked for."""
        known = self.products @ (self.basis.T @ chain)
        return np.asarray(known + self.product @ (self.block.T @ chain))

    def turn(self, rotation: np.ndarray, vectors: Block, products: Block) -> None:
        """vectors <- [V, X] rotation, products <- [A V, A X] rotation: whatever is rotated, A v stays A v."""
        held = self.basis.shape[1]
        for start in range(0, len(vectors), ROWS):
            rows = slice(start, start + ROWS)
            vectors[rows] = self.basis[rows] @ rotation[:held] + self.block[rows] @ rotation[held:]
            products[rows] = self.products[rows] @ rotation[:held] + self.product[rows] @ rotation[held:]


def _info(state: KrylovState, span: _Span, kept: _RestartSpace) -> Info:
    """The leading pairs; float64 only if every product they rest on is: nothing of float32 outlives the change."""
    found = len(state.ritz_values)
    return Info(
        ritz_values=kept.theta[:found],
        residual_norms=kept.residual_norms[:found],
        asymmetry=asymmetry(span.block, span.product),
        precision="float64" if state.fine else "float32",
    )


def _ritz(projected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Line 2b: all Ritz values by falling magnitude, and their coordinates in [V, X].

    Only v_i^T (A v_j) with i < j is looked at: it has the smaller rounding error, because V is sorted by magnitude.
    LAPACK's coordinates are orthonormal to some 10 roundings, always to the same side, and V is turned by them at
    every step: one step of Newton's iteration for the polar factor (m x m: free) keeps V orthonormal.
    """
    theta, rotation = np.linalg.eigh(projected, UPLO="U")
    order = np.argsort(-np.abs(theta), kind="stable")
    rotation = rotation[:, order]
    return theta[order], rotation @ (1.5 * np.eye(len(theta)) - 0.5 * (rotation.T @ rotation))


def _noise(projected: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """Estimate the error of products in every Ritz pair, as far as V^T A V is not symmetric."""
    skew = rotation.T @ ((projected - projected.T) @ rotation)
    return np.asarray(np.linalg.norm(skew, axis=0) / 2**0.5)


def _residual_norms(basis: Block, products: Block, theta: np.ndarray) -> np.ndarray:
    """||A v_i - theta_i v_i|| for the leading columns, some rows at a time: no copy of a basis."""
    lead, squares = len(theta), np.zeros(len(theta))
    for start in range(0, len(basis), ROWS):
        rows = slice(start, start + ROWS)
        squares += np.square(products[rows, :lead] - basis[rows, :lead] * theta).sum(axis=0)
    return np.sqrt(squares)


def _previous(rotation: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Line 2c, "+k": coordinates of earlier columns of V, orthonormal and orthogonal to those of the new ones.

    Where an earlier vector lies in the new ones already, Householder's QR puts another of the span in its place.
    """
    m, lead = rotation.shape
    earlier = np.zeros((m, len(which)))
    earlier[which, np.arange(len(which))] = 1.0
    return np.linalg.qr(np.concatenate([rotation, earlier], axis=1))[0][:, lead:]
