"""Power iterations on a tensor, many columns at once: what a product says of each, and of each component at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


# A sum of rank-one tensors held against the tensor itself, from products that were made anyway.
#
# For unit vectors v_i with products ``T(I, v_i, ..., v_i)`` the weights of least squares, what is left of the tensor at
# every v_i, and the norm of what is left, cost no pass. All v_i are stationary points of
# ``||T - sum_i w_i v_i^p||`` exactly when every residual is zero; where they are orthogonal, the residual of v_i is
# ``T(I, v_i, v_i) - w_i v_i``.


# E_p: the ground state of the spherical p-spin model (Auffinger, Ben Arous and Cerny 2013), by order p.
GROUND_STATES = {3: 1.6573, 4: 1.7942}
MARGIN = 1.15  # over what a Gaussian tensor of the same norm would give: none of 300 simulated ones had more
SAME = 0.9  # two directions of a larger |cosine| are one component
DOUBLE_EPS = float(np.finfo(np.float64).eps)
UNRESOLVED = 64 * DOUBLE_EPS  # of ||T||^2: a difference of squares that is smaller is rounding


class Fit(NamedTuple):
    """``weights`` (m), ``rest`` (d x m): what the other components and its own leave of the product of each.

    ``norms`` (m): of the columns of the rest; ``explained``: ||T||^2 - ||T - sum_i w_i v_i^p||^2.
    """

    weights: np.ndarray
    rest: Block
    norms: np.ndarray
    explained: float


def fitted(vectors: Block, products: Block, order: int, weights: np.ndarray | None = None) -> Fit:
    """The fit of unit ``vectors`` (d x m) with ``products`` T(I, v, ..., v); by least squares unless weights are given.

    Vectors that coincide share their weight: the least-squares solution of least norm.
    """
    cosines = vectors.T @ vectors
    scores = np.einsum("dm,dm->m", vectors, products)
    overlap = cosines**order
    if weights is None:
        weights = np.linalg.lstsq(overlap, scores, rcond=1e-10)[0] if len(scores) else scores
    rest = products - vectors @ (weights[:, None] * cosines ** (order - 1))
    explained = float(2 * weights @ scores - weights @ overlap @ weights)
    return Fit(weights, rest, np.linalg.norm(rest, axis=0), explained)


def noise_score(norm: float, d: int, order: int) -> float:
    """The largest |T(u, ..., u)| over unit u of a symmetric Gaussian tensor of Frobenius norm ``norm``.

    Every T(u, ..., u) of a Gaussian tensor that no rotation changes has the same variance, the expected ||T||^2 over
    d (d + 1) ... (d + p - 1) / p!; the largest has sqrt(d) E_p standard deviations (as d grows). Measured over d = 2 to
    100: the mean of the largest is 0.7 to 0.99 of this for p = 3, 0.7 to 0.96 for p = 4, its relative standard
    deviation falls from 0.15 to 0.02. No |T(u, ..., u)| exceeds the norm itself.
    """
    variance = math.factorial(order) / math.prod(d + i for i in range(order))
    return norm * min(GROUND_STATES[order] * math.sqrt(d * variance), 1.0)


def unbiased(left: float, found: int, d: int, order: int) -> float:
    """The norm that noise had before ``found`` components were fitted: each takes d of its degrees of freedom."""
    every = math.comb(d + order - 1, order)
    return left * math.sqrt(every / max(every - found * d, every / 4))


def like_noise(weights: np.ndarray, left: float, d: int, order: int, margin: float) -> np.ndarray:
    """Which of the components (m, weights by any sign) may be noise, where ``left`` is the norm of what none explains.

    From the weakest on, as long as each has no more than the largest score of a Gaussian tensor as large as what is
    left together with it and those before it. In few dimensions a rank-one tensor explains so much of any tensor that
    all can pass; then they are none if they explain more together than that many would of noise.
    """
    sizes = np.abs(weights)
    rising = np.argsort(sizes, kind="stable")
    norms = np.sqrt(left**2 + np.cumsum(sizes[rising] ** 2))
    ratio = noise_score(1.0, d, order)
    passed = np.cumprod(sizes[rising] <= margin * ratio * norms).astype(bool)
    count = int(passed.sum())
    if count and left**2 < 0.5 * max(1 - ratio**2, 0.1) ** count * norms[count - 1] ** 2:
        count = 0
    noise = np.zeros(len(sizes), dtype=bool)
    noise[rising[:count]] = True
    return noise


def norm_from(products: Block, order: int) -> float:
    """The Frobenius norm of a symmetric tensor from its ``products`` (d x L, L >= 2) with uniform unit vectors.

    For p = 3 the mean of ||T(I, u, u)||^2 is (2 ||T||^2 + ||tau||^2) / (d (d + 2)) with tau_i = sum_j T_ijj, and the
    mean of T(I, u, u) is tau / d: unbiased in the square. For p = 4 the part of the traces is not taken off; it is
    smaller by a factor of d in noise.
    """
    d, count = products.shape
    ways = math.prod(d + 2 * i for i in range(order - 1))
    size = float(np.mean(np.einsum("dl,dl->l", products, products)))
    mean = products.mean(axis=1)
    traces = max((count * float(mean @ mean) - size) / (count - 1), 0.0) * d * d if order == 3 else 0.0
    return math.sqrt(max(ways * size - traces, 0.0) / math.factorial(order - 1))


# Power iterations of many columns at once: what a product says of each, where each goes next, which are the same.


# What the tensor power methods share: starts, deflation that never touches the tensor, unit columns.
#
# The order of a tensor is 3 (moments, topics) or 4 (independent components). ``T(I, u, u)`` has the deflated part
# ``sum_r weight_r (v_r^T u)^2 v_r``: O(k d L) for L columns, so the stored tensor is never rewritten (Wang and
# Anandkumar 2016, Algorithm 1, line 6, kept implicit).


def random_units(d: int, count: int, *, seed: int, place: int) -> Block:
    """``count`` directions (d x count), uniform on the sphere, a function of the seed and the place alone."""
    return unit_columns(generator(seed, "tensor starts", place).standard_normal((d, count)))


def unit_columns(block: Block, instead: Block | None = None) -> Block:
    """The columns over their norms; a column of zeros stays what it is, or is the column of ``instead``."""
    largest = np.abs(block).max(axis=0, initial=0.0)
    scaled = block / np.where(largest > 0, largest, 1.0)  # the square of what is small must not vanish
    norms = np.linalg.norm(scaled, axis=0)
    units: Block = np.ascontiguousarray(scaled / np.where(norms > 0, norms, 1.0))
    return units if instead is None else np.where(norms > 0, units, instead)


def deflated(product: Block, block: Block, vectors: Block, weights: np.ndarray, order: int = 3) -> Block:
    """``T(I, u, ...) - sum_r weight_r (v_r^T u)^(order - 1) v_r`` for every column u of the block (d x L)."""
    if vectors.shape[1] == 0:
        return product
    return product - vectors @ (weights[:, None] * (vectors.T @ block) ** (order - 1))


def scores_of(product: Block, block: Block) -> np.ndarray:
    """``T(u, ..., u)`` (L) from ``T(I, u, ...)``: free once the product is known."""
    return np.einsum("dl,dl->l", product, block)


STALLED = 8  # products without a residual that is smaller by a tenth: the column oscillates, and is shifted
MOST_SHIFT = 3.0  # times the score; p - 1 makes every step climb (Kolda and Mayo 2011, SS-HOPM)
BASIN = 0.02  # a relative residual below this is that of a column on its way into a fixed point


class ColumnScores(NamedTuple):
    """Scores of L columns u: the deflated products g (d x L), scores u^T g and residuals ||g - (u^T g) u||."""

    products: Block
    scores: np.ndarray
    residuals: np.ndarray

    @property
    def relative(self) -> np.ndarray:
        """Residual over |score|; infinite where the score is zero."""
        sizes = np.abs(self.scores)
        out = np.full(len(sizes), np.inf)
        np.divide(self.residuals, sizes, out=out, where=sizes > 0)
        return out


@dataclass(frozen=True)
class Columns:
    """L columns on their way.

    Parameters
    ----------
    block : d x L, unit vectors; and of each (L): ages, products since its start; least, its least relative residual;
        least_ages, when that was; shifts, see :func:`advanced`; sharpest, the least ratio of a relative residual to the
        one before, in the basin of a fixed point and without a shift.
    """

    block: Block
    ages: np.ndarray
    least: np.ndarray
    least_ages: np.ndarray
    shifts: np.ndarray
    sharpest: np.ndarray


G = TypeVar("G", bound="DataclassInstance")


def selected_columns(group: G, which: slice | np.ndarray | list[int]) -> G:
    """The columns or entries ``which`` of every array of a group."""
    return replace(group, **{f.name: getattr(group, f.name)[..., which] for f in fields(group)})


def joined_columns(first: G, second: G) -> G:
    """The arrays of two groups, one behind the other."""
    both = {f.name: (getattr(first, f.name), getattr(second, f.name)) for f in fields(first)}
    return replace(first, **{name: np.concatenate(pair, axis=-1) for name, pair in both.items()})


def with_columns(group: G, start: int, part: G) -> G:
    """A copy of the group with ``part`` in its columns or entries from ``start`` on."""
    return joined_columns(
        joined_columns(selected_columns(group, slice(0, start)), part),
        selected_columns(group, slice(start + _size(part), None)),
    )


def _size(group: DataclassInstance) -> int:
    return int(getattr(group, fields(group)[0].name).shape[-1])


def new_columns(block: Block) -> Columns:
    """Columns that have just started."""
    zeros = np.zeros(block.shape[1])
    return Columns(block, zeros, np.full(block.shape[1], np.inf), zeros, zeros, zeros + 1)


def seen(products: Block, block: Block) -> ColumnScores:
    """Compute score and residual of each unit column u of ``block`` from the deflated ``products``."""
    scores = scores_of(products, block)
    return ColumnScores(products, scores, np.linalg.norm(products - block * scores, axis=0))


def watched_columns(columns: Columns, sight: ColumnScores) -> Columns:
    """The columns with what their last residual says."""
    relative = sight.relative
    ratio = np.ones(len(relative))
    np.divide(
        relative, columns.least, out=ratio, where=(0 < columns.least) & (columns.least < BASIN) & (columns.shifts == 0)
    )
    better = relative < 0.9 * columns.least
    return replace(
        columns,
        least=np.where(better, relative, columns.least),
        least_ages=np.where(better, columns.ages, columns.least_ages),
        sharpest=np.minimum(columns.sharpest, ratio),
    )


def advanced(columns: Columns, sight: ColumnScores, order: int, *, shifted: bool = True) -> Columns:
    """One power step of ``watched`` columns: u <- g / ||g||, up to sign for an even order.

    A column whose product is zero stays. Where the residual has stalled, and where ``shifted``, u <- g + s |score| u
    before normalising, with a shift s that begins at 1 and grows to where no step can lower the score.
    """
    stalled = (columns.ages - columns.least_ages >= STALLED) & shifted
    shifts = np.where(stalled, np.minimum(2 * columns.shifts + 1, MOST_SHIFT), columns.shifts)
    signs = np.where(sight.scores < 0, -1.0, 1.0) if order % 2 == 0 else 1.0
    return replace(
        columns,
        block=power_step(columns.block, sight.products * signs + columns.block * (shifts * np.abs(sight.scores))),
        ages=columns.ages + 1,
        least_ages=np.where(stalled, columns.ages, columns.least_ages),
        shifts=shifts,
    )


def power_step(block: Block, products: Block) -> Block:
    """The products over their norms; where a product is zero, the column of ``block``."""
    units = unit_columns(products)
    return np.where(np.abs(products).max(axis=0, initial=0.0) > 0, units, block)


def replaced(columns: Columns, which: np.ndarray, starts: Block) -> Columns:
    """Fresh ``starts`` (d x L) in place of the columns of the mask ``which``."""
    new = new_columns(starts)
    both = {f.name: (getattr(new, f.name), getattr(columns, f.name)) for f in fields(columns)}
    return Columns(**{name: np.where(which, begun, old) for name, (begun, old) in both.items()})


def nearest(block: Block, vectors: Block) -> np.ndarray:
    """For every column of ``block`` the number of the vector it coincides with, or -1."""
    if vectors.shape[1] == 0:
        return np.full(block.shape[1], -1)
    cosines = np.abs(vectors.T @ block)
    return np.where(cosines.max(axis=0) > SAME, cosines.argmax(axis=0), -1)


def distinct(block: Block, candidates: np.ndarray, against: Block, most: int) -> list[int]:
    """At most ``most`` of the ``candidates``, in their order, that coincide with no vector and not with each other."""
    taken: list[int] = []
    for number in candidates.tolist():
        if len(taken) == most:
            break
        known = np.concatenate([against, block[:, taken]], axis=1)
        if nearest(block[:, [number]], known)[0] < 0:
            taken.append(number)
    return taken


def copies(vectors: Block, weights: np.ndarray) -> np.ndarray:
    """Which of the vectors (d x m) coincide with another of greater |weight|, or of the same that comes before."""
    rank = np.argsort(np.argsort(-np.abs(weights), kind="stable"), kind="stable")
    same = np.abs(vectors.T @ vectors) > SAME
    return np.asarray((same & (rank[None, :] < rank[:, None])).any(axis=1))


SHARP = 0.05  # a residual that once fell by this in a step: there is no noise to speak of around that fixed point


@dataclass(frozen=True)
class FoundComponents:
    """k of them, of which the first have been found.

    Parameters
    ----------
    vectors, products (d x k), weights, norms (k) : v, T(I, v, ...), w, and the residual norm of one and the same v.
    trial : d x k, where they go in the next product.
    sharpest : k, as of :class:`Columns`. landed : columns that ran into each. found_at : the product that found each.
    """

    vectors: Block
    products: Block
    trial: Block
    weights: np.ndarray
    norms: np.ndarray
    sharpest: np.ndarray
    landed: np.ndarray
    found_at: np.ndarray


def no_components(d: int, k: int) -> FoundComponents:
    """k places for components in d dimensions."""
    block, entries = np.zeros((d, k)), np.zeros(k)
    return FoundComponents(block, block, block, entries, entries, entries + 1, entries, entries)


@dataclass(frozen=True, kw_only=True)
class TensorState:
    """Between two products: columns on their way (W), and m = ``count`` of k components.

    Parameters
    ----------
    stage : "search" for components, or "joint": all that there are, together.
    iteration : products since a component was last found, or since the joint stage began.
    lost : columns that went nowhere. let_go : components that turned out to be none.
    norm, left : of T, and of T without the components. scale : the largest ||T(I, u, ...)|| so far.
    margin : over what noise would give, that a component must have; 0: all that rounding does not give count.
    """

    step: int
    stage: str
    count: int
    iteration: int
    columns: Columns
    components: FoundComponents
    lost: int
    let_go: int
    norm: float
    left: float
    scale: float
    margin: float
    finished: bool

    @property
    def d(self) -> int:
        return len(self.columns.block)

    @property
    def ritz_vectors(self) -> Block:
        return self.components.vectors


def with_scale(state: TensorState, released: Block) -> TensorState:
    """One step on, with the size of its products."""
    largest = float(np.linalg.norm(released, axis=0).max(initial=0.0))
    return replace(state, step=state.step + 1, scale=max(state.scale, largest))


def rounding(d: int, scale: float) -> float:
    """Residuals and scores below this are rounding of products as large as ``scale``."""
    return 64 * DOUBLE_EPS * d**0.5 * scale


def converged(state: TensorState, tol: float) -> np.ndarray:
    """Which of the k components have a residual within ``tol`` of their weight, or of rounding."""
    floor = rounding(state.d, state.scale)
    return state.components.norms <= np.maximum(tol * np.abs(state.components.weights), floor)


def errors_of(state: TensorState, norms: np.ndarray) -> float:
    """The score that errors of components with residuals ``norms`` can pretend to have, and rounding.

    An error e of a component w v leaves 3 w sym(v v e), whose largest score is 2 / sqrt(3) times w |e|.
    """
    return max(3 * float(norms.max(initial=0.0)), rounding(state.d, state.scale))


def statuses(state: TensorState, tol: float, order: int) -> list[str]:
    """Return the status of each component: "found", "surplus" or "open".

    Surplus: a search to the end does not find it, or its weight is one that noise alone would give, or what is left of
    larger components. Open: all others that are not found while the search goes on.
    """
    m, d, parts = state.count, state.d, state.components
    near, sizes, noise = converged(state, tol), np.abs(parts.weights), np.zeros(len(parts.weights), dtype=bool)
    blunt = np.flatnonzero((parts.sharpest > SHARP) | (np.arange(len(sizes)) >= m))
    noise[blunt] = like_noise(sizes[blunt], unbiased(state.left, m, d, order), d, order, state.margin)
    near[m:] = False
    surplus = noise | (sizes <= rounding(d, state.scale)) | (sizes <= _deflation_errors(sizes, parts.norms, near))
    surplus[m:] |= sizes[m:] <= errors_of(state, parts.norms[:m])
    surplus[m:] &= state.stage != "search"
    return ["surplus" if s else "found" if n else "open" for s, n in zip(surplus, near, strict=True)]


def _deflation_errors(sizes: np.ndarray, norms: np.ndarray, near: np.ndarray) -> np.ndarray:
    """(k) What the larger components, found as well as tol asks, leave of themselves: a weight of that size is theirs.

    Taken off with the residual r a component leaves ``v v r`` in its three orders, 1.16 |r| as T(u, u, u) at most, and
    residuals are those of a product later, which are smaller: seen were 3.3 times the root of their sum of squares.
    """
    larger = sizes[None, :] > sizes[:, None]
    return 4 * (larger * np.where(near, norms, 0.0)).sum(axis=1)


def settled(state: TensorState, tol: float, order: int) -> bool:
    """At the end, and no component is open."""
    return state.finished and "open" not in statuses(state, tol, order)


def ending_of(state: TensorState, tol: float, order: int, *, measured: bool = True) -> str:
    """The end in a sentence; nothing before. ``measured``: ||T|| is known, not estimated."""
    if not state.finished:
        return ""
    status = statuses(state, tol, order)
    found, surplus, open_ = (status.count(word) for word in ("found", "surplus", "open"))
    relative = [
        float(norm / abs(value)) if value else 0.0
        for norm, value, word in zip(state.components.norms, state.components.weights, status, strict=True)
        if word != "surplus"
    ]
    worst, rest = max(relative, default=0.0), _rest_text(state, measured=measured)
    if open_ and worst <= tol:
        return (
            f"not converged: {open_} of {len(status)} components came out of what the others leave only after the "
            f"search, and were not improved together with them, in {state.step} products; {rest}; use more restarts, "
            "or ask for fewer components"
        )
    if open_:
        return (
            f"not converged: {open_} of {len(status)} components are no fixed points after {state.step} products, "
            f"worst relative residual {worst:.1e} (tol {tol:.1e}); {rest}; use more restarts, or leave iterations out, "
            "or a larger tol"
        )
    said = f"found {found} of {len(status)} components after {state.step} products"
    if not state.norm:
        return f"{said}: the tensor is zero"
    if not found:
        return f"{said}: {rest}, and none can be seen above noise as large as what is left{_caveat_text(status)}"
    said += f": every relative residual is at most {worst:.1e} (tol {tol:.1e}); {rest}"
    if surplus and not _is_resolved(state):
        said += f"; the other {surplus} asked for are surplus (spurious): their weights are rounding"
    elif surplus:
        level = _noise_of(state, order)
        said += (
            f"; the other {surplus} asked for are surplus (spurious): their weights are what noise as large as what "
            f"is left would give alone (up to {level:.2g}), or rounding{_caveat_text(status)}"
        )
    return said


def _is_resolved(state: TensorState) -> bool:
    """Say whether the rest is more than rounding of the difference of squares that it comes from."""
    return state.left > UNRESOLVED**0.5 * state.norm


def _rest_text(state: TensorState, *, measured: bool) -> str:
    """Describe what the components leave unexplained.

    It is part of the answer, as only noise of that size makes a component surplus.
    """
    if not _is_resolved(state):
        return "nothing but rounding is left of the tensor"
    if not state.count:
        return "all of the tensor is left unexplained"
    who = "the one fitted leaves" if state.count == 1 else f"the {state.count} fitted together leave"
    share = f"{100 * min(state.left / state.norm, 1.0):.3g} % of the tensor's norm unexplained"
    return f"{who} {share}" if measured else f"{who} about {share} (estimated from products with random columns)"


def _caveat_text(status: list[str]) -> str:
    """Say what else the rest may be: a norm does not tell noise from components that hide each other."""
    them = "those found" if "found" in status else "each other"
    return (
        f"; but what is left need not be noise: components far from orthogonal to {them} look the same (whiten first)"
    )


def _noise_of(state: TensorState, order: int) -> float:
    """The largest weight in noise that leaves as much as is left."""
    return noise_score(unbiased(state.left, state.count, state.d, order), state.d, order)


def sorted_by_weight(state: TensorState, tol: float, order: int) -> np.ndarray:
    """Numbers of the components by falling |weight|, surplus ones last."""
    surplus = np.array([word == "surplus" for word in statuses(state, tol, order)])
    return np.lexsort((-np.abs(state.components.weights), surplus))


def component_facts(state: TensorState, numbers: np.ndarray, tol: float, order: int) -> dict[str, Any]:
    """Return the facts of the components beside their values, in their order: plain numbers and strings."""
    status = statuses(state, tol, order)
    known = state.norm > 0
    return {
        "status": [status[number] for number in numbers],
        "relative_residual": state.left / state.norm if known else 0.0,
        "noise_score": _noise_of(state, order),
        "rounds": state.count,
        "products": state.step,
        "landed": state.components.landed[numbers].astype(int).tolist(),
        "found_at": state.components.found_at[numbers].astype(int).tolist(),
        "lost": state.lost,
        "let_go": state.let_go,
        "signs": [int(sign) for sign in np.sign(state.components.weights[numbers])],
    }
