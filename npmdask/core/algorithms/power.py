"""The noisy power method (Hardt and Price 2014, Figure 1), with Rayleigh-Ritz, deflation and an honest residual.

Figure 1 of the paper, line by line::

    Input: symmetric A (d x d), number of iterations L, dimension p
    1. Choose X_0, a random d x p matrix with orthonormal columns     PowerMethod.init
    2. For l = 1 to L:
       (a) Y_l = A X_{l-1} + G_l        A X_{l-1}: PowerMethod.query; + G_l: the mechanism (mechanisms)
       (b) Let Y_l = X_l R_l be a QR-factorisation of Y_l             PowerMethod.update -> orth
    Output: X_L                                                       PowerMethod.finalize

The loop over l is the driver's, the only one of the project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from npmdask.core.algorithms.base import Info, Query, Question, Result, Seen, empty_growth, missed, scaled, started
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import (
    BASES,
    Block,
    KeptBlock,
    Places,
    RitzPairs,
    TurnedBlock,
    asymmetry,
    orth,
    rayleigh_ritz_seen,
    starting_block,
    tiled_orth,
    tiled_random,
    tiled_rayleigh_ritz,
)
from npmdask.core.numerics.units import attributes

SINGLE_EPS = float(np.finfo(np.float32).eps)
SINGLE_RANGE = (1e-18, 1e18)  # of the largest value: sums over 10^12 rows and their parts stay inside float32
FLOOR = 16  # residuals in float32 arithmetic cannot be trusted below so many times its eps (times the largest value)


@dataclass(frozen=True, kw_only=True)
class PowerState:
    """X_l (d x p), the j locked vectors (d x j), and the j + k Ritz pairs of the step that made X_l.

    ``seen_values`` and ``seen_gram``: of all j + p Ritz pairs of that step; empty in a checkpoint older than they are.
    ``growth`` (r x r, times exp(``log_growth``)) and ``missed``: of the random columns of a warm start (see ``base``).
    """

    step: int
    fine: bool  # the next product is formed in float64 (always, unless the data are float32 and it is early)
    basis: Block  # X_l
    ritz_values: np.ndarray
    ritz_vectors: Block
    ritz_products: Block
    residual_norms: np.ndarray
    locked_vectors: Block
    locked_products: Block
    seen_values: np.ndarray
    seen_gram: np.ndarray
    growth: np.ndarray
    log_growth: float = 0.0
    missed: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PowerMethod:
    """The noisy power method for the ``target_rank`` (k) eigenvectors of largest absolute eigenvalue.

    Parameters
    ----------
    target_rank : k, how many vectors are wanted.
    iteration_rank : p >= k, columns iterated. The error falls by sigma_{p+1} / sigma_k a step, and a random
        start is good when p - k is of the order of k (Hardt and Price, Lemma 2.5).
    mixed_precision : multiply in float32 (for float32 data) after the first step, and change to float64, for
        good, before rounding can be seen in a residual. The first product is formed in float64: it shows whether
        the squares of the data fit into float32, and whether a matrix is symmetric. The answer is always
        certified in float64.
    tol : the tolerance of the stopping rule; only used to know when to change to float64.
    random_columns : r, of the p columns of a warm start those that are random; 0 without one.

    Notes
    -----
    Neighbours: none. Noise and privacy are the mechanism's.
    Guarantee: tan theta_k <= eps after the L steps of Theorem 2.4 (Hardt and Price) and from then on, if the noise is
        below its two bounds; without noise the residuals that are returned.
    Needs: a symmetric A, 1 <= k <= p <= d; else BadInputError where the problem is posed.
    Cost: L products of p columns, one pass each; O(d p^2) a step besides, and O(d p) memory.
    """

    name: ClassVar[str] = "power"
    takes_noise: ClassVar[bool] = True
    residuals_decrease: ClassVar[bool] = True
    powers_only: ClassVar[bool] = True
    can_be_played: ClassVar[bool] = True

    target_rank: int
    iteration_rank: int
    mixed_precision: bool = False
    tol: float = 1e-8
    random_columns: int = 0

    @classmethod
    def make(cls, question: Question, options: Mapping[str, Any]) -> PowerMethod:
        """The power method for a question; of float32 data it multiplies in float32 as long as that can do no harm."""
        return cls(
            **attributes(question, "target_rank", "iteration_rank", "tol", "random_columns"),
            mixed_precision=question.single and not question.noise,
        )

    @staticmethod
    def start_block(arrays: Mapping[str, np.ndarray]) -> Block:
        """The next block X_l, turned so that what lies closest to the Ritz vectors comes first.

        X_l spans A X_{l-1}, which is one step ahead of the Ritz vectors (they lie in range(X_{l-1})). Turned, its first
        columns can be kept where there is no room for all of them.
        """
        locked, basis = arrays["locked_vectors"], arrays["basis"]
        turn = np.linalg.qr(basis.T @ arrays["ritz_vectors"], mode="complete")[0]
        return np.concatenate([locked, basis @ turn], axis=1)

    @property
    def state_blocks(self) -> int:
        """d x p blocks of float64 held at once: X, its Ritz data, Y, the QR work space, a copy being written.

        Of a warm start besides the random columns' image and their residuals.
        """
        return 8 + 2 * (self.random_columns > 0)

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> PowerState:
        """Line 1: X_0 random orthonormal (orthogonal to what is locked, when deflating), or begun by ``start``."""
        none = np.zeros((d, 0))
        vectors, products = (locked.vectors, locked.products) if locked else (none, none)
        k, against = self.target_rank + vectors.shape[1], vectors if locked else None
        growth, log_growth = empty_growth(), 0.0
        if start is not None and self.random_columns:
            basis, (growth, log_growth) = started(start, self.iteration_rank, self.random_columns, rng, against)
        else:
            basis = starting_block(d, self.iteration_rank, rng, against=against, start=start)
        return PowerState(
            step=0,
            fine=True,
            basis=basis,
            ritz_values=np.zeros(k),
            ritz_vectors=np.zeros((d, k)),
            ritz_products=np.zeros((d, k)),
            residual_norms=np.full(k, np.inf),
            locked_vectors=vectors,
            locked_products=products,
            seen_values=np.zeros(0),
            seen_gram=np.zeros((0, 0)),
            growth=growth,
            log_growth=log_growth,
        )

    def query(self, state: PowerState) -> Query:
        """Line 2a, the part that touches the data: A X_{l-1}, one pass."""
        return Query(state.basis if state.fine else state.basis.astype(np.float32))

    def update(self, state: PowerState, released: Block) -> tuple[PowerState, Info]:
        """Line 2b: QR of Y_l; and the Ritz pairs of range(X_{l-1}), which cost no product of their own.

        With locked vectors U (deflation) X_l stays in their complement, so the iteration is the power method
        on A restricted to it; the Ritz pairs are those of range([U, X_{l-1}]), so that what is left of U's own
        error is rotated out instead of being carried along.
        """
        locked = state.locked_vectors if state.locked_vectors.shape[1] else None
        basis = np.concatenate([state.locked_vectors, state.basis], axis=1)
        product = np.concatenate([state.locked_products, released], axis=1)
        pairs, seen = rayleigh_ritz_seen(basis, product, len(state.residual_norms))
        hidden = self._missed_bound(state, released, pairs)
        info = Info(
            ritz_values=pairs.values,
            residual_norms=pairs.residual_norms,
            asymmetry=asymmetry(state.basis, released),
            precision="float64" if state.fine else "float32",
            missed=hidden,
        )
        following = orth(self.following(state, released), generator(0, "completion", state.step), against=locked)
        growth, log_growth = self._updated_growth(state, following, released)
        after = replace(
            state,
            step=state.step + 1,
            fine=self._needs_float64(state, pairs.values, pairs.residual_norms),
            basis=following,
            ritz_values=pairs.values,
            ritz_vectors=pairs.vectors,
            ritz_products=pairs.products,
            residual_norms=pairs.residual_norms,
            seen_values=seen.values,
            seen_gram=seen.gram,
            growth=growth,
            log_growth=log_growth,
            missed=hidden,
        )
        return after, info

    def following(self, state: PowerState, released: Block) -> Block:
        """Return what the next block comes from."""
        return released

    def _missed_bound(self, state: PowerState, released: Block, pairs: RitzPairs) -> float:
        """Bound the eigenvalues that the known columns may hide, by what the random ones show (0: all were random)."""
        r = len(state.growth)
        if not r or state.basis.shape[1] == len(state.basis):
            return 0.0
        known, image = state.basis[:, :-r], np.asarray(released[:, -r:], dtype=np.float64)
        image = image - known @ (known.T @ image)
        growth = state.growth, state.log_growth
        return missed(state.basis[:, -r:], image, pairs.vectors, pairs.products, growth, state.step)

    def _updated_growth(self, state: PowerState, following: Block, released: Block) -> tuple[np.ndarray, float]:
        """QR goes from left to right: the last columns of Q are orthogonal to what became of the known ones."""
        r = len(state.growth)
        factor = following[:, -r:].T @ released[:, -r:] if r else np.zeros((0, 0))
        return scaled(factor @ state.growth, state.log_growth)

    def _needs_float64(self, state: PowerState, values: np.ndarray, residuals: np.ndarray) -> bool:
        """Change to float64 when float32 has done what it can: all at its floor, near tol, or no progress."""
        if not self.mixed_precision or (state.fine and state.step > 0):
            return True
        magnitude = np.abs(values)
        if not SINGLE_RANGE[0] < magnitude.max(initial=0.0) < SINGLE_RANGE[1]:
            return True
        floor = FLOOR * SINGLE_EPS * magnitude.max(initial=0.0)
        open_ = residuals > np.maximum(10 * self.tol * magnitude, floor)
        if not open_.any():
            return True
        before = _largest_relative(state.residual_norms[open_], np.abs(state.ritz_values[open_]))
        return _largest_relative(residuals[open_], magnitude[open_]) > 0.98 * before

    def finalize(self, state: PowerState) -> Result:
        """The leading pairs: vectors and values, not only a subspace."""
        return Result(
            values=state.ritz_values,
            vectors=state.ritz_vectors,
            products=state.ritz_products,
            residual_norms=state.residual_norms,
            seen=_ritz_history(state),
        )

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> PowerState:
        """The state of a checkpoint."""
        none = {"seen_values": np.zeros(0), "seen_gram": np.zeros((0, 0)), "growth": np.zeros((0, 0))}
        fields: dict[str, Any] = {**none, **arrays, **scalars}
        return PowerState(**fields)


def _ritz_history(state: PowerState) -> Seen | None:
    """All pairs of range(X_{l-1}), which is A^{l-1} times the start."""
    if not len(state.seen_values):
        return None
    return Seen(values=state.seen_values, gram=state.seen_gram, degree=state.step - 1, powers=True, missed=state.missed)


def _largest_relative(residuals: np.ndarray, magnitude: np.ndarray) -> float:
    """The largest relative residual; infinite where a value is (still) zero."""
    relative = np.full(len(residuals), np.inf)
    np.divide(residuals, magnitude, out=relative, where=magnitude > 0)
    return float(relative.max())


# The same with its blocks in files: for blocks that memory cannot hold.
#
# The same start, steps and stopping rule, so that values agree with those of blocks in memory to rounding. Of a step
# the state keeps which files its blocks lie in, their checksums, and what turns X_{l-1} into the Ritz vectors: these
# are formed once, tile by tile, as the answer is written.


@dataclass(frozen=True, kw_only=True)
class DiskPowerState:
    """Step l: X_l lies in the place of step l, X_{l-1} in that before it.

    ``checksums`` and ``previous_checksums``: of their tiles (empty before the first step). ``turn`` (p x k): X_{l-1}
    times it are the Ritz vectors. ``seen_values`` and ``seen_gram``: of all p Ritz pairs.
    """

    step: int
    columns: int  # d
    checksums: np.ndarray
    previous_checksums: np.ndarray
    ritz_values: np.ndarray
    residual_norms: np.ndarray
    turn: Block
    seen_values: np.ndarray
    seen_gram: np.ndarray


@dataclass(frozen=True, kw_only=True)
class PowerOnDisk(PowerMethod):
    """The power method with blocks in files.

    Parameters
    ----------
    workspace : where they lie, which a run says; without one, as in a rehearsal of few rows, blocks are in memory.

    Notes
    -----
    Needs: disk for three blocks; one data-independent start (no warm start, nothing locked), products without noise.
    Cost: besides the products, a step reads a block nine times and writes one.
    """

    workspace: Places | None = None

    def init(self, d: int, *, rng: np.random.Generator, **earlier: Any) -> Any:
        """Line 1: X_0 random and orthonormal."""
        if self.workspace is None:
            return super().init(d, rng=rng, **earlier)
        start = self._basis(0, d)
        self.workspace.reserve([self._basis(step, d) for step in range(BASES)])
        tiled_random(start, rng, self.workspace.threads)
        k, none = self.target_rank, np.zeros(0)
        return DiskPowerState(
            step=0,
            columns=d,
            checksums=start.sums(self.workspace.threads),
            previous_checksums=np.zeros(0, np.uint32),
            ritz_values=np.zeros(k),
            residual_norms=np.full(k, np.inf),
            turn=np.zeros((self.iteration_rank, k)),
            seen_values=none,
            seen_gram=np.zeros((0, 0)),
        )

    def query(self, state: Any) -> Query:
        """Line 2a: the product with X_{l-1}; always in float64."""
        if self.workspace is None:
            return super().query(state)
        asked: Any = self._basis(state.step, state.columns).known_by(state.checksums)
        return Query(asked)

    def update(self, state: Any, released: Any) -> tuple[Any, Info]:
        """Line 2b: Ritz pairs of range(X_{l-1}), and X_l in the place of the product."""
        if self.workspace is None:
            return super().update(state, released)
        basis: Any = self.query(state).block
        found = tiled_rayleigh_ritz(basis, released, self.target_rank, self.workspace.threads)
        values, residuals = found.values[: self.target_rank], np.sqrt(np.diagonal(found.gram)[: self.target_rank])
        info = Info(
            ritz_values=values, residual_norms=residuals, asymmetry=found.asymmetry, precision="float64", missed=0.0
        )
        self.workspace.note(state.step + 1, {})  # from here on the product is no longer what it was
        tiled_orth(released, found.scale, generator(0, "completion", state.step), self.workspace.threads)
        released.flush()
        after = DiskPowerState(
            step=state.step + 1,
            columns=state.columns,
            checksums=released.sums(self.workspace.threads),
            previous_checksums=state.checksums,
            ritz_values=values,
            residual_norms=residuals,
            turn=found.turn,
            seen_values=found.values,
            seen_gram=found.gram,
        )
        return after, info

    def finalize(self, state: Any) -> Result:
        """The leading pairs; vectors are formed as they are written."""
        if not isinstance(state, DiskPowerState):
            return super().finalize(state)
        vectors: Any = None  # of who only asks for values
        if self.workspace is not None:
            block = self._basis(state.step - 1, state.columns).known_by(state.previous_checksums)
            vectors = TurnedBlock(block, state.turn)
        seen = Seen(values=state.seen_values, gram=state.seen_gram, degree=state.step - 1, powers=True)
        return Result(
            values=state.ritz_values,
            vectors=vectors,
            products=vectors,  # of which no copy is kept: see docs/decisions/0057
            residual_norms=state.residual_norms,
            seen=seen,
        )

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> Any:
        """The state of a checkpoint."""
        return super().load(arrays, scalars) if self.workspace is None else DiskPowerState(**{**arrays, **scalars})

    def _basis(self, step: int, d: int) -> KeptBlock:
        assert self.workspace is not None
        return self.workspace.basis(step, (d, self.iteration_rank))
