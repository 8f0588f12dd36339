"""The private power method (Hardt and Price 2014, Figure 3; Balcan et al. 2016): a fixed number of noisy products.

Figure 3, line by line::

    1. X_0 random orthonormal                                          PrivatePower.init
    2. For l = 1 to L:  Y_l = A X_{l-1} + G_l,  X_l = orth(Y_l)        query, the mechanism, update
    Output: X_L                                                        finalize

All Y_l are released, so what is made of them costs no privacy. The answer begins with X_L and uses all of them,
weighted by the noise of each (:mod:`npmdask.privacy.noisy_products`): the noise of L products averages out in
directions that all X_l share, where the last product alone has sqrt(L) times as much. It loses at most 1.2 times the
variance that X_L loses (measured), and mostly far less. ``answer = "last"`` is X_L itself, as in the paper.

Where A is a sum over records a, the images X^T a are clipped too (``clip_norm``). A record moves A X by at most
|a| |X^T a|: the paper's bound takes |a|^2, but the image in a random X of p of d dimensions is sqrt(p / d) as long,
and in later ones as long as the share of the variance that X captures, which the releases themselves tell. With p = 20
of d = 1000 the first release gets 5.7 times less noise (of replaced records 4 times). Measured, this brings the method
nearer to the noisy covariance matrix (Analyze Gauss), which needs d^2 numbers. Not in the papers; docs/decisions/0023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from npmdask.core.algorithms.base import Info, OfOneState, Query, Result
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, asymmetry, fix_signs, orth, random_orthonormal, rayleigh_ritz
from npmdask.core.numerics.units import options_from
from npmdask.errors import require


@dataclass(frozen=True, kw_only=True)
class PowerOptions:
    """``algorithm.options`` of the private power method.

    ``answer``: of "all" releases, of the "last" alone (X_L, the paper's), or the "fit" that runs ended in before.
    ``momentum``: a share of the k-th value, or "auto": values below are damped alike, so that where they fall slowly
    the square root of the releases is enough (:func:`npmdask.privacy.noisy_products.accelerated`).
    """

    answer: Literal["all", "last", "fit"] = "all"
    momentum: float | str | None = None

    def __post_init__(self) -> None:
        from npmdask.privacy.noisy_products import require_momentum

        require_momentum(self.momentum)


UNSAID = {"answer": "fit"}  # options of a run of which run.json says nothing: it was begun before there was a choice


def begun_options(algorithm: Mapping[str, Any]) -> dict[str, Any] | None:
    """``algorithm.options`` as run.json says, or means."""
    return algorithm.get("options", UNSAID if algorithm["name"] == PrivatePower.name else None)


def with_options(algorithm: Any, options: Mapping[str, Any] | None) -> Any:
    """A private power method with the ``algorithm.options`` that are asked for.

    Raises
    ------
    BadInputError
        An unknown option, or one of alternating products, which have none.
    """
    if isinstance(algorithm, PrivatePower) and options is not None:
        return replace(algorithm, **asdict(options_from("power", PowerOptions, options)))
    require(
        options in (None, UNSAID),
        'algorithm.options of "power" in a private run are for records and symmetric matrices: leave them out, '
        f"{algorithm.name} answers by its last two products",
    )
    return algorithm


FIRST = 1.25  # times the root mean square of the image in a random block: with p = 20, 3 % of them are longer
LATER = 1.0  # times the same, as the releases tell it: measured best of 0.4 to 1.6 where noise matters
CLEAR = 2.0  # times the norm of the noise without clipping: larger values need no help, clipping bends them
WORTH = 0.95  # of the noise without clipping: what clipping must come below


class NoiseLevel(Protocol):
    """Public view of a mechanism: the standard deviation of an entry of its noise, given the public block.

    With ``clip_norm`` also a dataclass with a field ``image_norm``.
    """

    def noise_stddev(self, block: Block) -> float: ...


@dataclass(frozen=True, kw_only=True)
class PrivateState:
    """X_l, and everything that was released so far, side by side: d x (p L), zero where nothing is yet."""

    step: int
    basis: Block  # X_l
    blocks: Block  # X_0 ... X_{L-1}
    products: Block  # Y_1 ... Y_L
    stddevs: np.ndarray  # of the noise in each (L)
    trace: float  # of A, as the first release tells
    image_norm: float  # that images are clipped to in the next step; 0: they are not


@dataclass(frozen=True, kw_only=True)
class PrivatePower(OfOneState[PrivateState]):
    """The private power method for the ``target_rank`` (k) eigenvectors of largest absolute eigenvalue.

    Parameters
    ----------
    target_rank : k, how many vectors are wanted.
    iteration_rank : p >= k, columns iterated. For records and for neighbours in Frobenius norm the noise of an entry
        does not depend on p: as many as memory and time allow.
    releases : L, fixed in advance: how many products are released. A function of the data would leak.
    noise : tells how much noise each release carries (the mechanism).
    clip_norm : of records, where A is a sum over them and images are to be clipped too.
    answer, momentum : see :class:`PowerOptions`.

    Notes
    -----
    Neighbours: the mechanism's relation (npmdask.privacy.neighbors); all L releases together keep its budget.
    Guarantee: private for all data. Error as of Theorem 1.3 (Hardt and Price): npmdask.theory.ppm_error.
    Needs: L fixed in advance, p >= k, a relation that fits the data; else refused where it is posed.
    Cost: L passes of p columns; O(d p L) memory, as all releases are kept for the answer.
    """

    name: ClassVar[str] = "private-power"
    kept: ClassVar[type[PrivateState]] = PrivateState

    target_rank: int
    iteration_rank: int
    releases: int
    noise: NoiseLevel
    clip_norm: float | None = None
    answer: str = "all"
    momentum: float | str | None = None

    mixed_precision: ClassVar[bool] = False

    @property
    def options(self) -> dict[str, Any] | None:
        """Options for run.json; None, as in runs begun before there was a choice, means "fit"."""
        said = {} if self.momentum is None else {"momentum": self.momentum}
        return ({"answer": self.answer} | said) if said or self.answer != "fit" else None

    @property
    def state_blocks(self) -> int:
        """d x p blocks of float64 held at once: X, all X_l and Y_l, a copy being written, and QR of all."""
        return 6 + 6 * self.releases

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> PrivateState:
        """Line 1: X_0, from the public seed alone. ``locked`` and ``start`` are refused before (problem)."""
        assert locked is None and start is None
        width, basis = self.iteration_rank * self.releases, random_orthonormal(d, self.iteration_rank, rng)
        return PrivateState(
            step=0,
            basis=basis,
            blocks=np.zeros((d, width)),
            products=np.zeros((d, width)),
            stddevs=np.zeros(self.releases),
            trace=0.0,
            image_norm=self._first_image_norm(basis),
        )

    def query(self, state: PrivateState) -> Query:
        """Line 2a, the part that touches the data: A X_{l-1}, one pass."""
        return Query(state.basis, image_norm=state.image_norm or None)

    def update(self, state: PrivateState, released: Block) -> tuple[PrivateState, Info]:
        """Line 2b: X_l = orth(Y_l). ``released`` is all there is of the data from here on."""
        here = slice(state.step * self.iteration_rank, (state.step + 1) * self.iteration_rank)
        blocks, products, stddevs = state.blocks.copy(), state.products.copy(), state.stddevs.copy()
        blocks[:, here], products[:, here] = state.basis, released
        stddevs[state.step] = self._stddev(state.basis, state.image_norm)
        pairs = rayleigh_ritz(state.basis, released, self.target_rank)
        info = Info(
            ritz_values=pairs.values,
            residual_norms=pairs.residual_norms,
            asymmetry=asymmetry(state.basis, released),
            precision="float64",
        )
        trace = (
            state.trace if state.step else len(released) / self.iteration_rank * float(np.vdot(state.basis, released))
        )
        basis = orth(self._accelerated(state, blocks, products, released), generator(0, "completion", state.step))
        after = PrivateState(
            step=state.step + 1,
            basis=basis,
            blocks=blocks,
            products=products,
            stddevs=stddevs,
            trace=trace,
            image_norm=self._next_image_norm(released, trace, float(stddevs[state.step]), basis, state.step + 2),
        )
        return after, info

    def _accelerated(self, state: PrivateState, blocks: Block, products: Block, released: Block) -> Block:
        """Return what the next block is computed from: ``released``, unless there is momentum."""
        if self.momentum is None:
            return released
        from npmdask.privacy.noisy_products import accelerated

        made, p = slice(0, (state.step + 1) * self.iteration_rank), self.iteration_rank
        return accelerated(blocks[:, made], products[:, made], p, self.target_rank, self.momentum)

    def _stddev(self, block: Block, image_norm: float) -> float:
        if not image_norm:
            return self.noise.noise_stddev(block)
        clipped: NoiseLevel = replace(self.noise, image_norm=image_norm)  # type: ignore[type-var]
        return clipped.noise_stddev(block)

    def _first_image_norm(self, block: Block) -> float:
        if self.clip_norm is None or self.releases == 1:
            return 0.0
        return self._useful_norm(FIRST * self.clip_norm * math.sqrt(self.iteration_rank / len(block)), block)

    def _useful_norm(self, norm: float, block: Block) -> float:
        """``norm``, if clipping images to it saves noise; 0 if it would only bend them."""
        return norm if self._stddev(block, norm) < WORTH * self._stddev(block, 0.0) else 0.0

    def _next_image_norm(self, released: Block, trace: float, stddev: float, block: Block, step: int) -> float:
        """As long as an image in the next block is likely to be: the root of the share of the trace that it captures.

        ``step``: the one that it is for; not the last, from which values and factors are taken: clipping bends them.
        The singular values of Y, less what the noise adds to their squares, approximate the eigenvalues in its range.
        """
        if self.clip_norm is None or step >= self.releases:
            return 0.0
        d, p = released.shape
        values = np.linalg.svd(released, compute_uv=False)
        if values[self.target_rank - 1] >= CLEAR * self.noise.noise_stddev(block) * math.sqrt(d):
            return 0.0
        captured = float(np.sqrt(np.maximum(values**2 - stddev**2 * d, 0.0)).sum())
        share = captured / trace if trace > 0 else 1.0
        return self._useful_norm(LATER * self.clip_norm * math.sqrt(min(1.0, max(share, p / d))), block)

    def finalize(self, state: PrivateState) -> Result:
        """The k leading pairs, from everything that was released."""
        return leading_pairs(state, self.iteration_rank, self.target_rank, self.answer, self.momentum)


def leading_pairs(state: PrivateState, p: int, k: int, answer: str, momentum: float | str | None = None) -> Result:
    """The k leading pairs: vectors of the ``answer``, values of the last release, in which no image is clipped.

    The value of v is ``v^T Y_L c / |c|^2`` with ``c = X_{L-1}^T v``. ``products`` are ``A v`` as far as the last
    release tells it, ``residual_norms`` those of the release: noise, mostly. Nothing here has seen the data.
    """
    from npmdask.privacy.noisy_products import vectors_of  # which most runs do not need

    made = slice(0, state.step * p)
    blocks, products, stddevs = state.blocks[:, made], state.products[:, made], state.stddevs[: state.step]
    vectors = vectors_of(answer, blocks, products, stddevs, p, k, momentum)
    vectors = vectors * fix_signs(vectors)
    block, product = _last_release(state, p)
    seen = block.T @ vectors
    made = product @ seen / _squares(seen)
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
    """The standard deviation that the noise of the last release gives each value (the vectors held fixed)."""
    seen = _last_release(state, p)[0].T @ vectors
    return np.asarray(state.stddevs[state.step - 1] / np.sqrt(_squares(seen)))


def _last_release(state: PrivateState, p: int) -> tuple[Block, Block]:
    here = slice((state.step - 1) * p, state.step * p)
    return state.blocks[:, here], state.products[:, here]


def _squares(seen: Block) -> np.ndarray:
    return np.asarray(np.maximum((seen**2).sum(axis=0), np.finfo(np.float64).tiny))


# The private power method for a matrix that is not symmetric: alternating products (Hardt and Price, Appendix B).
#
# The dilation ``[[0, B], [B^T, 0]]`` of the paper has every singular value twice and lets one entry of B change two of
# its own (ERR-3). Alternating products release the same information with half the columns::
#
#     U_l = orth(A V_{l-1} + G),    V_l = orth(A^T U_l + G')        two releases a sweep


@dataclass(frozen=True, kw_only=True)
class AlternatingState:
    """The last orthonormal block of either side, and the last release that was made of the left one."""

    step: int
    left: Block  # U (m x p)
    right: Block  # V (d x p)
    product: Block  # A^T U + G' (d x p), once there is one


@dataclass(frozen=True, kw_only=True)
class PrivateAlternating(OfOneState[AlternatingState]):
    """The ``target_rank`` (k) leading singular triplets of A (m x d), from ``releases`` (even) noisy products.

    Notes
    -----
    Neighbours: of a matrix: entry, spectral_norm, frobenius_norm; all releases together keep the mechanism's budget.
    Guarantee: private for all data; without noise the power method on the dilation, from a start on one side.
    Needs: an even number of releases, p >= k; else BadInputError where the problem is posed.
    Cost: one pass of p columns a release, two releases a sweep; O((m + d) p) memory.
    """

    name: ClassVar[str] = "private-alternating"
    kept: ClassVar[type[AlternatingState]] = AlternatingState

    target_rank: int
    iteration_rank: int
    releases: int
    rows: int  # m

    mixed_precision: ClassVar[bool] = False
    alternates: ClassVar[bool] = True

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
