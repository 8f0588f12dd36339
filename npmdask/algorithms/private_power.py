"""The private power method (Hardt and Price 2014, Figure 3; Balcan et al. 2016): a fixed number of noisy products.

Figure 3, line by line::

    1. X_0 random orthonormal                                          PrivatePower.init
    2. For l = 1 to L:  Y_l = A X_{l-1} + G_l,  X_l = orth(Y_l)        query, the mechanism, update
    Output: X_L                                                        finalize

All Y_l are released, so what is made of them costs no privacy. The answer uses all of them: the estimate of A
that fits every release best (ridge regression, weighted by the noise of each),

    B = argmin  sum_l ||B X_{l-1} - Y_l||^2 / s_l^2  +  ||B||^2 / t^2,

s_l the noise of release l and t^2 the variance of an entry of A, estimated from the first release.

The noise of L products averages out in directions that all X_l share, where the last product alone has sqrt(L)
times as much; measured (docs/private.md) it is never worse than the last product and needs about a third fewer
records for the same captured variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from npmdask.algorithms._protocol import Info, Query, Result
from npmdask.linalg import Block, asymmetry, fix_signs, orth, random_orthonormal, rayleigh_ritz
from npmdask.randomness import generator


class NoiseLevel(Protocol):
    """What is public of a mechanism: the standard deviation of an entry of its noise, given the public block."""

    def noise_stddev(self, block: Block) -> float: ...


@dataclass(frozen=True, kw_only=True)
class PrivateState:
    """X_l, and everything that was released so far, side by side: d x (p L), zero where nothing is yet."""

    step: int
    basis: Block  # X_l
    blocks: Block  # X_0 ... X_{L-1}
    products: Block  # Y_1 ... Y_L
    stddevs: np.ndarray  # of the noise in each (L)


@dataclass(frozen=True, kw_only=True)
class PrivatePower:
    """The private power method for the ``target_rank`` (k) eigenvectors of largest absolute eigenvalue.

    Parameters
    ----------
    target_rank : k, how many vectors are wanted.
    iteration_rank : p >= k, columns iterated. For records and for neighbours in Frobenius norm the noise of an entry
        does not depend on p: as many as memory and time allow.
    releases : L, fixed in advance: how many products are released. A function of the data would leak.
    noise : tells how much noise each release carries (the mechanism; ``SimulatedGaussian`` in studies).
    """

    name: ClassVar[str] = "private-power"

    target_rank: int
    iteration_rank: int
    releases: int
    noise: NoiseLevel

    mixed_precision: ClassVar[bool] = False

    @property
    def state_blocks(self) -> int:
        """d x p blocks of float64 held at once: X, all X_l and Y_l, a copy being written, and the SVD of the last."""
        return 6 + 6 * self.releases

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> PrivateState:
        """Line 1: X_0, from the public seed alone. ``locked`` and ``start`` are refused before (problem)."""
        assert locked is None and start is None
        width = self.iteration_rank * self.releases
        return PrivateState(
            step=0,
            basis=random_orthonormal(d, self.iteration_rank, rng),
            blocks=np.zeros((d, width)),
            products=np.zeros((d, width)),
            stddevs=np.zeros(self.releases),
        )

    def query(self, state: PrivateState) -> Query:
        """Line 2a, the part that touches the data: A X_{l-1}, one pass."""
        return Query(state.basis)

    def update(self, state: PrivateState, released: Block) -> tuple[PrivateState, Info]:
        """Line 2b: X_l = orth(Y_l). ``released`` is all there is of the data from here on."""
        here = slice(state.step * self.iteration_rank, (state.step + 1) * self.iteration_rank)
        blocks, products, stddevs = state.blocks.copy(), state.products.copy(), state.stddevs.copy()
        blocks[:, here], products[:, here] = state.basis, released
        stddevs[state.step] = self.noise.noise_stddev(state.basis)
        pairs = rayleigh_ritz(state.basis, released, self.target_rank)
        skew, size = asymmetry(state.basis, released)
        info = Info(
            ritz_values=pairs.values,
            residual_norms=pairs.residual_norms,
            asymmetry=skew / size if size > 0 else 0.0,
            precision="float64",
        )
        after = PrivateState(
            step=state.step + 1,
            basis=orth(released, generator(0, "completion", state.step)),
            blocks=blocks,
            products=products,
            stddevs=stddevs,
        )
        return after, info

    def finalize(self, state: PrivateState) -> Result:
        """The k leading pairs of B, from everything that was released."""
        return leading_pairs(state, self.iteration_rank, self.target_rank)

    def load(self, arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> PrivateState:
        """The state of a checkpoint."""
        fields: dict[str, Any] = {**arrays, **scalars}
        return PrivateState(**fields)


def leading_pairs(state: PrivateState, p: int, k: int) -> Result:
    """Pairs of the ridge estimate ``B = Y S^T (S S^T + r I)^-1``, S and Y weighted by the noise of each release.

    The vectors are the leading left singular vectors of B. A value is ``v^T B v / v^T P v`` with
    ``P = S S^T (S S^T + r I)^-1``: what the ridge shrinks in v is given back. ``products`` are ``A v`` as far as the
    releases tell, ``residual_norms`` those of the releases: noise, mostly. Nothing here has seen the data.
    """
    fit = _fit(state, p)
    vectors = np.linalg.svd(fit.estimate, full_matrices=False)[0][:, :k]
    vectors = vectors * fix_signs(vectors)
    made = fit.estimate @ (fit.left.T @ vectors) / fit.kept(vectors)
    theta = np.einsum("ij,ij->j", vectors, made)
    order = np.argsort(-np.abs(theta), kind="stable")
    theta, vectors, made = theta[order], np.ascontiguousarray(vectors[:, order]), made[:, order]
    return Result(
        values=theta,
        vectors=vectors,
        products=made,
        residual_norms=np.linalg.norm(made - vectors * theta, axis=0),
    )


def value_stddevs(state: PrivateState, p: int, vectors: Block) -> np.ndarray:
    """The standard deviation that the noise alone gives each value of :func:`leading_pairs` (vectors held fixed)."""
    fit = _fit(state, p)
    # v^T B v = v^T Y c with c = right^T gains left^T v, and every entry of the weighted Y has the noise ``least``.
    coefficients = fit.gains[:, None] * (fit.left.T @ vectors)
    return fit.least * np.linalg.norm(coefficients, axis=0) / fit.kept(vectors)


class _Fit(NamedTuple):
    """B = estimate @ left.T, from S = left diag(values) right: ``gains`` = values / (values^2 + r)."""

    estimate: Block
    left: Block
    values: np.ndarray
    gains: np.ndarray
    least: float

    def kept(self, vectors: Block) -> np.ndarray:
        """v^T P v: the share of each vector that the ridge leaves (and that was asked about at all)."""
        shares = ((self.left.T @ vectors) ** 2 * (self.values * self.gains)[:, None]).sum(axis=0)
        return np.asarray(np.maximum(shares, np.finfo(np.float64).tiny))


def _fit(state: PrivateState, p: int) -> _Fit:
    stddevs = state.stddevs[: state.step]
    least = float(stddevs.min())
    weights = np.repeat(least / stddevs, p) if least > 0 else np.ones(len(stddevs) * p)
    blocks, products = state.blocks[:, : len(weights)], state.products[:, : len(weights)]
    left, values, right = np.linalg.svd(blocks * weights, full_matrices=False)
    gains = values / (values**2 + _ridge(products[:, :p], float(stddevs[0]), least))
    return _Fit((products * weights) @ right.T * gains, left, values, gains, least)


def _ridge(first: Block, stddev: float, least: float) -> float:
    """Variance of the noise over that of an entry of A, as the first release tells: X_0 is random.

    The posterior mean of A under a Gaussian prior has this ridge. At most 3, where more only shrinks; not quite 0
    without noise, where the estimate is A on the range of all X_l.
    """
    signal = float(np.mean(first**2)) - stddev**2
    return max(1e-12, min(3.0, least**2 / signal if signal > 0 else 3.0))
